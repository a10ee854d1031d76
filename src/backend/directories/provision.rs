//! Volumes come and go.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::backend::{CapacityAnswer, CapacityQuery, Expand, Provision, Quiesce, VolumeSpec};
use crate::os::dir::OpenDir;
use crate::os::lock;
use crate::os::step::step;
use crate::os::{subvolume, tree};
use crate::volume::{Bytes, ContentSource, Error, Outcome, Result, Volume, VolumeId};

use super::Controller;
use super::base::{DATA, Ready};
use super::index::Refused;
use super::parameters::{CommonParameters, Consistency, Medium, Ownership};
use super::place::links_name;
use super::record::{self, FORMAT, Phase, VolumeRecord};
use super::subdir;
use super::work::{Source, Work, log_copied};

/// Sizes are whole ones of these, in bytes.
const UNIT: u64 = 1 << 20;

/// What a new volume is copied from.
struct Origin {
    base: Arc<Ready>,
    directory: OpenDir,
    source: Source,
}

impl Provision for Controller {
    fn unit(&self) -> u64 {
        UNIT
    }

    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.locate_whole(id.local())?.map(|(_, record)| record.into_volume(self.topology.clone())))
    }

    fn find_for_create(&self, id: &VolumeId, parameters: &Value) -> Result<Option<Volume>> {
        let found = self.locate_for_create(id.local(), own(parameters))?;
        Ok(found.filter(|(_, record)| record.phase == Phase::Whole).map(|(_, record)| record.into_volume(self.topology.clone())))
    }

    fn create(&self, spec: &VolumeSpec, _quiesce: &dyn Quiesce) -> Result<Volume> {
        match self.begun(spec)? {
            Some((ready, record)) => self.finish(&ready, record),
            None => self.begin(spec).and_then(|(ready, record)| self.finish(&ready, record)),
        }
    }

    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        let local = id.local();
        let Some((ready, mut record)) = self.locate(local)? else {
            // A call that failed may have left a draft.
            self.search(|_| false, |ready| ready.discard_draft(local).map(|()| None::<()>))?;
            return Ok(Outcome::Unchanged(()));
        };
        match record.phase {
            Phase::Making => {
                ready.stop_work(local)?;
                ready.discard(&record)?;
            }
            Phase::Deleting { at } => ready.finish_deletion(&record, at)?,
            Phase::Whole => {
                self.check_not_copied(&Source::Volume(local.to_owned()))?;
                if let Some(place) = ready.location.mounted_at(&ready.root, &record.directory)? {
                    let by = format!("it is mounted at {0}; unmount it (`umount {0}`) if no pod uses it", place.display());
                    return Err(Error::InUse { object: format!("volume {id}"), by });
                }
                let at = record::now();
                record.inode = ready.number(&record.directory)?;
                record.phase = Phase::Deleting { at };
                ready.write_record(&record)?;
                ready.index.put_volume(local, &record.directory, record.capacity.0, false);
                ready.finish_deletion(&record, at)?;
            }
        }
        Ok(Outcome::Changed(()))
    }

    fn list(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>> {
        let ids = |ready: &Ready, after: Option<&str>, max| ready.index.volumes(after, max);
        self.page(after.map(VolumeId::local), max, ids, |ready, local| self.listed(ready, local))
    }

    fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        let (mut available, mut largest, mut seen, mut away) = (0_u64, 0, false, None);
        for (_, ready) in super::ask(self.asked_for(&query.parameters)?) {
            match ready.and_then(|ready| ready.room()) {
                Ok(room) => {
                    let room = room - room % UNIT;
                    available = available.saturating_add(room);
                    largest = largest.max(room);
                    seen = true;
                }
                Err(error) => away = Some(error),
            }
        }
        match away {
            Some(error) if !seen => Err(error),
            _ => Ok(CapacityAnswer {
                available: Bytes(available),
                maximum: Bytes(largest),
                minimum: query.least.max(Bytes(UNIT)).round_up(UNIT),
            }),
        }
    }
}

impl Controller {
    /// What an earlier call began of the same volume, where its copy continues. All else that one left is removed.
    fn begun(&self, spec: &VolumeSpec) -> Result<Option<(Arc<Ready>, VolumeRecord)>> {
        let local = spec.id.local();
        let Some((ready, record)) = self.locate_for_create(local, own(&spec.parameters))? else { return Ok(None) };
        let cleared = match record.phase {
            Phase::Making if is_as_asked(&ready, &record, spec) && ready.work(local).is_some() => {
                return Ok(Some((ready, record)));
            }
            Phase::Making => ready.stop_work(local).and_then(|()| ready.discard(&record)),
            Phase::Deleting { at } => ready.finish_deletion(&record, at),
            Phase::Whole => Ok(()),
        };
        cleared.map(|()| None).map_err(|error| match error {
            pending @ (Error::InProgress { .. } | Error::BackendUnavailable { .. }) => pending,
            error => error.leaving(format!("what an earlier call left of volume {}", spec.id)),
        })
    }

    /// Everything up to a draft that is being filled.
    fn begin(&self, spec: &VolumeSpec) -> Result<(Arc<Ready>, VolumeRecord)> {
        let local = spec.id.local();
        let asked = own(&spec.parameters);
        self.asked_for(asked)?;
        let origin = spec.source.as_ref().map(|source| self.origin(source)).transpose()?;
        let parameters = CommonParameters::from_json(asked)?;
        if parameters.medium == Medium::Memory && !spec.id.is_ephemeral() {
            let reason = "memory is a medium of ephemeral inline volumes alone: a persistent volume would lose its data when it is unstaged";
            return Err(Error::invalid("parameters.medium", reason));
        }
        let directory = parameters.directory(local);
        subdir::check(&directory.to_string_lossy())?;
        let ready = self.choose(asked, spec.capacity, origin.as_ref().map(|origin| &origin.base))?;
        let mut record = VolumeRecord {
            format: FORMAT,
            id: spec.id.clone(),
            name: spec.name.clone(),
            phase: Phase::Making,
            found_parents: ready.found_parents(&directory)?,
            directory,
            capacity: spec.capacity,
            source: spec.source.clone(),
            parameters: filled(spec, &ready)?,
            created: record::now(),
            inode: None,
            on_delete: None,
            project: None,
        };
        let limit = ready.provisionable()?;
        ready
            .index
            .claim(local, &record.directory, spec.capacity.0, limit)
            .map_err(|refused| refusal(&ready, &record, refused, limit))?;
        match draft(&ready, &mut record, origin) {
            Ok(()) => Ok((ready, record)),
            Err(error) => Err(undo(&ready, &record, error)),
        }
    }

    /// Waits for the draft to be filled, and puts it into its place.
    fn finish(&self, ready: &Arc<Ready>, mut record: VolumeRecord) -> Result<Volume> {
        let local = record.id.local().to_owned();
        if let Some(work) = ready.work(&local) {
            if !work.ends_within(self.patience) {
                let reason = format!("its data is being copied ({})", work.control);
                return Err(Error::InProgress { object: format!("volume {}", record.id), reason });
            }
            let copied = work.take().unwrap_or_else(|| Err(Error::failed("copy", record.id.to_string(), "its end was lost")));
            lock(&ready.works).remove(&local);
            if let Err(error) = copied {
                return Err(undo(ready, &record, error));
            }
        }
        let place = || ready.check_owner().and_then(|()| ready.put_in_place(&record));
        let done = set_owner(ready, &record).and_then(|()| place()).and_then(|()| {
            record.phase = Phase::Whole;
            ready.write_record(&record)
        });
        match done {
            Ok(()) => {
                ready.index.put_volume(&local, &record.directory, record.capacity.0, true);
                Ok(record.into_volume(self.topology.clone()))
            }
            Err(error) => Err(undo(ready, &record, error)),
        }
    }

    fn origin(&self, source: &ContentSource) -> Result<Origin> {
        match source {
            ContentSource::Volume(id) => {
                let (base, record) = self.locate_whole(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
                record.check_on_disk()?;
                let directory = base.at(&record.directory)?.ok_or_else(|| missing(&base, &record.directory))?;
                Ok(Origin { base, directory, source: Source::Volume(id.local().to_owned()) })
            }
            ContentSource::Snapshot(id) => {
                let (base, record) = self.locate_snapshot(id.local())?.ok_or_else(|| Error::snapshot_not_found(id))?;
                if !record.ready {
                    return Err(Error::InProgress {
                        object: format!("snapshot {id}"),
                        reason: "is not ready to use yet".to_owned(),
                    });
                }
                let path = Path::new(id.local()).join(DATA);
                let directory = base.snapshots.directory(&path).map_err(|error| base.failure(error))?;
                let directory = directory.ok_or_else(|| missing(&base, &base.snapshots.path_of(&path)))?;
                Ok(Origin { base, directory, source: Source::Snapshot(id.local().to_owned()) })
            }
        }
    }

    /// The base for a new volume: that of its source, where data may be shared, else the one with most room.
    fn choose(&self, asked: &Value, capacity: Bytes, source: Option<&Arc<Ready>>) -> Result<Arc<Ready>> {
        let mut best: Option<(u64, Arc<Ready>)> = None;
        let mut away = None;
        for (_, ready) in super::ask(self.asked_for(asked)?) {
            match ready.and_then(|ready| Ok((ready.index.left(ready.provisionable()?), ready))) {
                Ok((left, ready)) => {
                    if left >= capacity.0 && source.is_some_and(|source| Arc::ptr_eq(source, &ready)) {
                        return Ok(ready);
                    }
                    if best.as_ref().is_none_or(|(most, _)| left > *most) {
                        best = Some((left, ready));
                    }
                }
                Err(error) => away = Some(error),
            }
        }
        match (best, away) {
            // One that is away may have the room.
            (Some((left, _)), Some(error)) if left < capacity.0 => Err(error),
            (Some((_, ready)), _) => Ok(ready),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::invalid("parameters", format!("backend {} has nothing to make volumes in", self.backend))),
        }
    }

    /// A volume for a list. One whose record is damaged is listed with what is known of it: its absence would say that it does not exist.
    fn listed(&self, ready: &Ready, local: &str) -> Result<Option<Volume>> {
        match ready.record(local) {
            Ok(record) => {
                Ok(record.filter(|record| record.phase == Phase::Whole).map(|record| record.into_volume(self.topology.clone())))
            }
            Err(Error::Unverified { .. }) => Ok(Some(Volume {
                id: VolumeId::from_parts(&self.backend, local)?,
                name: String::new(),
                capacity: Bytes(ready.index.capacity(local).unwrap_or(0)),
                source: None,
                parameters: Arc::default(),
                topology: Vec::new(),
                for_one_node: false,
            })),
            Err(error) => Err(error),
        }
    }
}

impl Expand for Controller {
    fn expand(&self, id: &VolumeId, capacity: Bytes) -> Result<Outcome<Bytes>> {
        let (ready, mut record) = self.locate_whole(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
        record.check_on_disk()?;
        let before = record.capacity;
        if before >= capacity {
            // A call that was interrupted may have come so far.
            ready.set_quota(&record)?;
            return Ok(Outcome::Unchanged(before));
        }
        let limit = ready.provisionable()?;
        ready
            .index
            .provision(id.local(), capacity.0, limit)
            .map_err(|left| no_room(&ready, Bytes(capacity.0 - before.0), left, limit))?;
        record.capacity = capacity;
        let grown = ready.write_record(&record).and_then(|()| ready.set_quota(&record));
        match grown {
            Ok(()) => Ok(Outcome::Changed(capacity)),
            // The record says which of both it is by now.
            Err(error) => {
                let now = ready.record(id.local()).ok().flatten().map_or(capacity, |record| record.capacity);
                if ready.index.provision(id.local(), now.0, u64::MAX).is_err() {
                    tracing::debug!(volume = %id, "its provisioned capacity could not be reset");
                }
                Err(error)
            }
        }
    }

    /// A directory is as large as the controller says.
    fn on_node(&self) -> bool {
        false
    }
}

impl Ready {
    /// What may still be provisioned, and is free.
    fn room(&self) -> Result<u64> {
        Ok(self.index.left(self.provisionable()?).min(self.usage()?.available))
    }
}

/// A draft with its record, empty, or with all of its source, or with a copy into it under way.
fn draft(ready: &Arc<Ready>, record: &mut VolumeRecord, origin: Option<Origin>) -> Result<()> {
    let local = record.id.local().to_owned();
    ready.discard_draft(&local)?;
    let failed = |error| ready.failure(error);
    let shown = ready.drafts.path_of(&local);
    if let Some(Origin { directory, .. }) = &origin
        && ready.snapshot_subvolume(directory, &ready.drafts, &local, false)?
    {
        record.inode = ready.draft_number(&local)?;
        return ready.begin_quota(record);
    }
    step("make directory", &shown.display(), || match subvolume::are_possible(&ready.drafts) {
        true => subvolume::create(&ready.drafts, &local, 0o700),
        false => ready.drafts.make_directory(&local, 0o700),
    })
    .map_err(failed)?;
    record.inode = ready.draft_number(&local)?;
    ready.begin_quota(record)?;
    let Some(origin) = origin else { return Ok(()) };
    let links = links_name(&local);
    step("make directory", &ready.drafts.path_of(&links).display(), || ready.drafts.make_directory(&links, 0o700))
        .map_err(failed)?;
    ready.join_quota(record, &links)?;
    let (to, links) = (ready.drafts.existing(&local).map_err(failed)?, ready.drafts.existing(&links).map_err(failed)?);
    let (own, id, Origin { directory, source, base }) = (Arc::clone(ready), record.id.clone(), origin);
    let by_file = record.own_parameters()?.consistency == Consistency::File;
    // A snapshot does not change.
    let watched = record.source.clone().filter(|_| !by_file);
    let work = Work::start(source, move |control| {
        let copy = || tree::copy(&directory, &to, &links, control);
        let copied = match watched {
            Some(ContentSource::Volume(source)) => base.copy_unchanged(&source, &directory, None, control, copy)?,
            _ => copy().map_err(|error| own.failure(error))?,
        };
        log_copied(&id, copied);
        drop(base);
        Ok(copied)
    })?;
    lock(&ready.works).insert(local, work);
    Ok(())
}

/// Gives the draft the mode and owner that were asked for.
fn set_owner(ready: &Ready, record: &VolumeRecord) -> Result<()> {
    let asked = record.own_parameters()?.ownership()?;
    let Ownership { mode, uid, gid } = if record.source.is_some() { asked } else { asked.of_new(ready.location.default_mode()) };
    let local = record.id.local();
    step("set owner", &ready.drafts.path_of(local).display(), || {
        ready.drafts.remove_directory(links_name(local))?;
        if uid.is_some() || gid.is_some() {
            ready.drafts.set_owner(local, uid, gid)?;
        }
        mode.map_or(Ok(()), |mode| ready.drafts.set_mode(local, mode))
    })
    .map_err(|error| ready.failure(error))
}

/// Takes back what was done; answers `failure`, final only if that was seen to work.
fn undo(ready: &Ready, record: &VolumeRecord, failure: Error) -> Error {
    match ready.check_owner().and_then(|()| ready.discard(record)) {
        Ok(()) => failure.rolled_back(),
        Err(error) => failure.leaving(error.to_string()),
    }
}

/// The backend's own of a volume's parameters.
fn own(parameters: &Value) -> &Value {
    parameters.get("backend").unwrap_or(&Value::Null)
}

/// The parameters as the node needs them: with the base that was chosen.
fn filled(spec: &VolumeSpec, ready: &Ready) -> Result<Value> {
    let chosen = ready.location.with_chosen(own(&spec.parameters))?;
    let mut parameters = spec.parameters.clone();
    if let Some(all) = parameters.as_object_mut() {
        all.insert("backend".to_owned(), chosen);
    }
    Ok(parameters)
}

fn is_as_asked(ready: &Ready, record: &VolumeRecord, spec: &VolumeSpec) -> bool {
    let asked = |parameters: &Value| parameters.get("backend").map(|own| ready.location.without_chosen(own));
    record.name == spec.name
        && record.capacity == spec.capacity
        && record.source == spec.source
        && asked(&record.parameters) == asked(&spec.parameters)
}

fn refusal(ready: &Ready, record: &VolumeRecord, refused: Refused, limit: u64) -> Error {
    match refused {
        Refused::NoRoom(left) => no_room(ready, record.capacity, left, limit),
        Refused::Taken { directory, by } => Error::Conflict {
            object: ready.root.path_of(&directory).display().to_string(),
            existing: format!("volume {}:{by}", ready.backend),
            wanted: format!("the directory {} for volume {}", record.directory.display(), record.id),
        },
    }
}

pub(super) fn no_room(ready: &Ready, asked: Bytes, left: u64, limit: u64) -> Error {
    Error::NoCapacity {
        place: ready.place(),
        reason: format!(
            "{asked} asked for, {} of {} left to provision; delete volumes or snapshots, raise the {noun}'s capacity, or add a {noun}",
            Bytes(left),
            Bytes(limit),
            noun = ready.location.noun()
        ),
    }
}

fn missing(ready: &Ready, directory: &Path) -> Error {
    Error::Unverified {
        device: ready.root.path_of(directory).display().to_string(),
        reason: "the directory is gone; put it back, or delete the volume or snapshot".to_owned(),
    }
}

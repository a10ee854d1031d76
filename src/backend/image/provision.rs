//! Volumes come and go.

use std::borrow::Cow;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crate::backend::{CapacityAnswer, CapacityQuery, Holding, Provision, Quiesce, VolumeSpec};
use crate::os::copy;
use crate::os::step::step;
use crate::volume::{Bytes, ContentSource, Error, OnDelete, Outcome, Result, Volume, VolumeId};

use super::connect::is_unbound;
use super::draft::{self, Draft};
use super::export::check_not_exported;
use super::files::{self, Access, IMAGE, Seen, Stamp};
use super::instant::{Job, devices_of};
use super::layout::{ARCHIVE, EXCLUSIVE, Kind, RETAINED};
use super::ledger::VolumeRow;
use super::meta::{FORMAT, VolumeMeta, to_nanos};
use super::ready::Ready;
use super::{ImageBackend, ImageParameters, Ledger, Located, capacity, scan};

/// What a new volume is copied from.
struct Origin {
    pool: Arc<Ready>,
    image: File,
    length: Bytes,
    /// A volume may be in use, a snapshot never changes.
    volume: Option<VolumeId>,
}

impl Provision for ImageBackend {
    fn unit(&self) -> u64 {
        capacity::UNIT
    }

    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let Some(found) = self.locate::<VolumeMeta>(id.local())? else { return Ok(None) };
        let (meta, _) = found.seen.whole()?;
        Ok(Some(self.volume(meta)))
    }

    fn find_for_create(&self, id: &VolumeId, parameters: &serde_json::Value) -> Result<Option<Volume>> {
        let parameters = ImageParameters::from_json(&parameters["backend"])?;
        let Some(found) = self.locate_for_create(id.local(), &parameters)? else { return Ok(None) };
        let (meta, _) = found.seen.whole()?;
        Ok(Some(self.volume(meta)))
    }

    fn create(&self, spec: &VolumeSpec, quiesce: &dyn Quiesce) -> Result<Volume> {
        self.remove_passing(Kind::Volume, spec.id.local())?;
        let parameters = ImageParameters::from_json(&spec.parameters["backend"])?;
        let origin = spec.source.as_ref().map(|source| self.open_origin(source)).transpose()?;
        let spec = holding_all(spec, origin.as_ref())?;
        let pool = self.choose(&parameters, spec.capacity, origin.as_ref().map(|origin| &origin.pool))?;
        let reservation = capacity::reserve(&pool, spec.capacity)?;
        if parameters.preallocate {
            capacity::check_free(&pool, spec.capacity)?;
        }
        let local = spec.id.local();
        let draft = Draft::begin(&pool, Kind::Volume, local)?;
        let (meta, stamp) = match self.fill(&draft, &spec, &parameters, origin.as_ref(), quiesce) {
            Ok(filled) => filled,
            Err(error) => return Err(draft.discard(error)),
        };
        if let Err(error) = draft.place() {
            if pool.has(Kind::Volume, local).unwrap_or(true) {
                reservation.keep_volume(local, spec.capacity.0);
            }
            return Err(error);
        }
        reservation.keep_volume(local, spec.capacity.0);
        let row = scan::remember_new_volume(&pool, stamp, meta);
        Ok(self.volume_of_row(spec.id.clone(), &row))
    }

    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        let local = id.local();
        let Some(Located { pool, seen, .. }) = self.locate_to_delete::<VolumeMeta>(local)? else {
            return self.finish_deletion(Kind::Volume, local);
        };
        let ready = pool.writable()?;
        let (meta, image) = seen.whole()?;
        let deletion = self.begin_deletion(&ready, id)?;
        if let Err(error) = check_unused(&ready, id, &image).and_then(|()| check_not_exported(&ready, id)) {
            return Err(match deletion {
                Some(deletion) => deletion.give_up(error),
                None => error,
            });
        }
        match meta.on_delete {
            OnDelete::Delete => draft::throw_away(&ready, Kind::Volume, local)?,
            OnDelete::Retain => keep(&ready, local, RETAINED)?,
            OnDelete::Archive => keep(&ready, local, ARCHIVE)?,
            OnDelete::Scrub => {
                // In place: were it in the trash, a kill would let it be unlinked unscrubbed.
                scrub(&ready, local)?;
                draft::throw_away(&ready, Kind::Volume, local)?;
            }
        }
        Ok(Outcome::Changed(()))
    }

    fn list(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>> {
        let ids = |ready: &Ready, after: Option<&str>, max| Ok(ready.ledger.volumes(after, max));
        self.page(after.map(VolumeId::local), max, ids, |ready, local| self.listed(ready, local))
    }

    fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        self.answer_capacity(query)
    }

    fn holders(&self, id: &VolumeId) -> Result<Option<Vec<Holding>>> {
        self.held(id)
    }
}

impl ImageBackend {
    /// Deletes what is not in place: a call that failed may have left a part of it.
    pub(super) fn finish_deletion(&self, kind: Kind, local: &str) -> Result<Outcome<()>> {
        let (mut changed, mut away) = (false, None);
        for pool in &self.pools {
            let ready = match pool.counted() {
                Ok(ready) if ready.is_writable() => ready,
                Ok(_) => continue,
                Err(error) => {
                    away = away.or(Some(error).filter(|_| !self.never_had(pool, kind, local)));
                    continue;
                }
            };
            if draft::clear_leftovers(&ready, kind, local)? {
                changed = true;
                // It may be among what is kept.
                ready.ledger.set_kept(scan::kept(&ready));
            }
        }
        if let Some(error) = away {
            return Err(error);
        }
        Ok(if changed { Outcome::Changed(()) } else { Outcome::Unchanged(()) })
    }

    /// Removes what failed calls left of something that is to be made, before anything else can end this call: an error that is
    /// final speaks for them too. They may have used another pool.
    pub(super) fn remove_passing(&self, kind: Kind, local: &str) -> Result<()> {
        let mut writable = self.pools.iter().filter_map(|pool| pool.writable().ok());
        writable.try_for_each(|ready| draft::remove_passing(&ready, kind, local))
    }

    fn open_origin(&self, source: &ContentSource) -> Result<Origin> {
        let (pool, kind, local, volume) = match source {
            ContentSource::Snapshot(id) => {
                let (ready, meta) = self.visible_snapshot(id)?.ok_or_else(|| Error::snapshot_not_found(id))?;
                (ready, Kind::Snapshot, meta.id.local().to_owned(), None)
            }
            ContentSource::Volume(id) => {
                let found = self.locate::<VolumeMeta>(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
                found.seen.whole()?;
                (found.ready, Kind::Volume, id.local().to_owned(), Some(id.clone()))
            }
        };
        let image = pool.open_image(kind, &local, Access::Read)?;
        let seen = files::look_at(&image, &pool.place(kind, &local)).map_err(|error| pool.failure(error))?;
        Ok(Origin { pool, image, length: Bytes(seen.length), volume })
    }

    /// Gives a draft its content, size and metadata, all synced.
    fn fill(
        &self,
        draft: &Draft<'_>,
        spec: &VolumeSpec,
        parameters: &ImageParameters,
        origin: Option<&Origin>,
        quiesce: &dyn Quiesce,
    ) -> Result<(VolumeMeta, Stamp)> {
        match origin {
            Some(Origin { volume: Some(source), image, pool, .. }) => {
                self.copy_at_one_instant(quiesce, &[Job { source, pool, image, into: draft }])?;
                // It may have grown since it was looked at; what it has is not interrupted.
                let copied = draft.length()?;
                if copied > spec.capacity {
                    let reason = format!("the source has grown to {copied} meanwhile; ask for as much");
                    return Err(Error::OutOfRange { field: "capacity_range", reason });
                }
            }
            Some(Origin { volume: None, image, .. }) => {
                draft.copy_from(image)?;
            }
            None => {}
        }
        draft.size(spec.capacity, parameters.preallocate)?;
        let meta = VolumeMeta {
            format: FORMAT,
            id: spec.id.clone(),
            name: spec.name.clone(),
            capacity: spec.capacity,
            source: spec.source.clone(),
            parameters: spec.parameters.clone(),
            on_delete: parameters.on_delete,
            preallocate: parameters.preallocate,
            created: to_nanos(SystemTime::now()),
        };
        if self.shared {
            draft.reserve_room()?;
        }
        let stamp = draft.finish(&meta)?;
        Ok((meta, stamp))
    }

    /// A volume for a list, from its metadata alone. One whose metadata is damaged is listed with what is known of it: its absence
    /// would say that it does not exist.
    fn listed(&self, ready: &Ready, local: &str) -> Result<Option<Volume>> {
        let id = VolumeId::from_parts(&self.name, local)?;
        if let Some(row) = scan::volume_row(ready, local) {
            return Ok(Some(self.volume_of_row(id, &row)));
        }
        if !ready.has(Kind::Volume, local)? {
            return Ok(None);
        }
        let capacity = Bytes(ready.ledger.volume(local).unwrap_or(0));
        let unknown = VolumeRow { capacity, name: Some("".into()), source: None, parameters: Arc::default() };
        Ok(Some(self.volume_of_row(id, &unknown)))
    }

    fn volume_of_row(&self, id: VolumeId, row: &VolumeRow) -> Volume {
        Volume {
            name: row.name.as_deref().unwrap_or(id.local()).to_owned(),
            id,
            capacity: row.capacity,
            source: row.source.as_deref().cloned(),
            parameters: Arc::clone(&row.parameters),
            topology: self.topology.iter().cloned().collect(),
            for_one_node: false,
        }
    }
}

/// The request, for as much as its source has. A volume has more than its recorded capacity where an expansion of it was interrupted, and its
/// file system may have grown already; a snapshot never has.
fn holding_all<'a>(spec: &'a VolumeSpec, origin: Option<&Origin>) -> Result<Cow<'a, VolumeSpec>> {
    let Some(origin) = origin.filter(|origin| origin.length > spec.capacity) else { return Ok(Cow::Borrowed(spec)) };
    let capacity = origin.length.round_up(capacity::UNIT);
    let may_be_more = origin.volume.is_some() && spec.limit.is_none_or(|limit| capacity <= limit);
    if !may_be_more {
        let reason = format!("the source is {} long, more than {}; ask for at least as much", origin.length, spec.capacity);
        return Err(Error::OutOfRange { field: "capacity_range", reason });
    }
    Ok(Cow::Owned(VolumeSpec { capacity, ..spec.clone() }))
}

/// A loop device on the image means that someone uses it, whatever the CO believes.
fn check_unused(ready: &Ready, id: &VolumeId, image: &Seen) -> Result<()> {
    if is_unbound(ready, id, image.inode) {
        return Ok(());
    }
    let devices = devices_of(id, image.inode)?;
    let Some(path) = devices.first().map(|path| path.display()) else { return Ok(()) };
    Err(Error::InUse {
        object: format!("volume {id}"),
        by: format!("{path} shows it on this node; unstage it first, or see with `losetup {path}` who uses it"),
    })
}

fn scrub(ready: &Ready, local: &str) -> Result<()> {
    let image = ready.open_image(Kind::Volume, local, Access::Write)?;
    let path = ready.place(Kind::Volume, local).join(IMAGE);
    step("scrub", &path.display(), || copy::scrub(&image)).map_err(|error| ready.failure(error))
}

/// Moves a deleted volume's directory to where the operator finds it.
fn keep(ready: &Ready, local: &str, directory: &'static str) -> Result<()> {
    ready.check_kept()?;
    let from = ready.place(Kind::Volume, local);
    let parent = ready.path.join(directory);
    step("move aside", &from.display(), || {
        let seconds = to_nanos(SystemTime::now()) / 1_000_000_000;
        let mut to = parent.join(format!("{local}.{seconds}"));
        let mut attempt = 1;
        loop {
            match files::rename_new(&from, &to) {
                Err(error) if error.errno() == Some(libc::EEXIST) && attempt < 1000 => {
                    attempt += 1;
                    to = parent.join(format!("{local}.{seconds}-{attempt}"));
                }
                // The volume is found again without the lease of its deletion.
                Ok(()) => return files::remove_file(&to.join(EXCLUSIVE)).map(|()| to),
                Err(error) => return Err(error),
            }
        }
    })
    .map(|to: PathBuf| tracing::info!(volume = local, directory = %to.display(), "deleted; its data was kept"))
    .map_err(|error| ready.failure(error))?;
    draft::sync_both(ready, Kind::Volume, &parent)?;
    // Counted as kept before it is no longer counted as provisioned: never less than there is.
    let ledger: &Ledger = &ready.ledger;
    ledger.set_kept(scan::kept(ready));
    ledger.remove(Kind::Volume, local);
    Ok(())
}

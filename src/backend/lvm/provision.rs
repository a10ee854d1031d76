//! Volumes come and go.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use crate::backend::{CapacityAnswer, CapacityQuery, Provision, Quiesce, VolumeSpec};
use crate::os::block::Device;
use crate::os::lvm::{ChangeLock, Freed, Lv, Report, VolumeGroup};
use crate::os::step::{note, step};
use crate::os::{cgroup, dm, lock, udev};
use crate::volume::{Bytes, ContentSource, Error, OnDelete, Outcome, Result, Volume, VolumeId};

use super::config::{DeviceClass, LvmParameters, Wipe};
use super::health::PARTIAL;
use super::tags::{self, BLANK, DRAFT, FORMAT, Kind, Object, VolumeRecord};
use super::{
    Found, LvmBackend, Made, NEW, RECENT, Recent, capacity, dm_prefix, mapped, modify, named_in, path, renamed, renamed_in,
};

/// LVM's default extent. Sizes that are no multiple of the volume group's own are rounded up by LVM.
const UNIT: u64 = 4 << 20;
/// Of how many volumes it is remembered that their creation was tried.
const MOST_TRIED: usize = 10_000;

impl Provision for LvmBackend {
    fn unit(&self) -> u64 {
        UNIT
    }

    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        self.whole(&Object::volume(id))?.map(|found| self.volume(id.clone(), &found.lv)).transpose()
    }

    fn find_for_create(&self, id: &VolumeId, _parameters: &serde_json::Value) -> Result<Option<Volume>> {
        let object = Object::volume(id);
        let (asked, was_renamed) = (Instant::now(), Cell::new(false));
        let found = self.search(|report| {
            was_renamed.set(was_renamed.get() || renamed_in(report, &object).is_some());
            named_in(report, &object).cloned()
        })?;
        let mut absent = lock(&self.absent);
        absent.retain(|other, seen| other != id && seen.elapsed() < RECENT);
        if found.is_none() && !was_renamed.get() {
            absent.insert(id.clone(), asked);
        }
        drop(absent);
        found.filter(|found| !found.lv.has_tag(DRAFT)).map(|found| self.volume(id.clone(), &found.lv)).transpose()
    }

    fn create(&self, spec: &VolumeSpec, quiesce: &dyn Quiesce) -> Result<Volume> {
        let parameters = LvmParameters::from_json(&spec.parameters["backend"])?;
        let members = self.config.members(parameters.device_class.as_deref())?;
        let limits = parameters.io_limits().with(modify::parse(&spec.mutable, &self.config, false)?.io_limits);
        if !limits.are_max()
            && let Err(error) = cgroup::check_io()
        {
            // The scheduler takes another node.
            let reason = format!("pods cannot be limited in what they read and write here: {error}");
            return Err(Error::NoCapacity { place: format!("backend {}", self.config.name), reason });
        }
        if lock(&self.absent).remove(&spec.id).is_none_or(|seen| seen.elapsed() > RECENT) {
            self.remove_draft(&spec.id, &Object::volume(&spec.id))?;
        }
        let mut tried = lock(&self.tried);
        if tried.len() >= MOST_TRIED {
            tried.clear();
        }
        tried.insert(spec.id.clone());
        drop(tried);
        let mut refused = None;
        for class in self.candidates(members, spec.source.as_ref())? {
            match self.create_in(class, spec, quiesce) {
                Ok(volume) => {
                    self.remember_io_limits(&spec.id, limits);
                    return Ok(volume);
                }
                // What had the most room may have had it for others that were made at the same time.
                Err(error @ Error::NoCapacity { .. }) => refused = refused.or(Some(error)),
                answer => return answer,
            }
        }
        Err(refused.unwrap_or_else(|| Error::invalid("classes", "there is none")))
    }

    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        let object = Object::volume(id);
        lock(&self.io_limits).remove(id);
        if let Some(made) = lock(&self.made).remove(id) {
            wait_for_udev(&made)?;
        }
        let Some(found) = self.locate(&object)? else {
            self.remove_growth(id)?;
            // What this process has failed to make, or makes for a pod, is in no volume group of before.
            if id.is_ephemeral() || lock(&self.tried).contains(id) {
                return self.check_not_renamed("delete", &object).map(Outcome::Unchanged);
            }
            return self.check_deleted(&object);
        };
        // It lies in the same volume group: another one may be away.
        if named_in(&found.report, &Object::growth(id)).is_some() {
            self.remove_growth(id)?;
        }
        if mapped(&found.report, &found.lv)?.is_some_and(|device| device.open) {
            let by = format!("{} is open; `lsblk {}` shows by what", found.lv.dm_path, found.lv.dm_path);
            return Err(Error::InUse { object: format!("volume {id}"), by });
        }
        let record: VolumeRecord = tags::decode(&found.lv)?;
        match record.on_delete()? {
            // What was never whole holds nothing.
            OnDelete::Retain if !found.lv.has_tag(DRAFT) => retain(&found, &object)?,
            on_delete => {
                // Before its data is overwritten.
                check_dependents(&found.report, &found)?;
                self.check_devices(found.group, &found.report)?;
                self.destroy(&found, id, &record, on_delete)?;
            }
        }
        Ok(Outcome::Changed(()))
    }

    fn list(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>> {
        let ids = self.all(Kind::Volume)?.into_iter().filter_map(|(id, lv)| Some((id.parse::<VolumeId>().ok()?, lv)));
        let behind = ids.filter(|(id, _)| after.is_none_or(|after| id > after));
        behind.take(max).map(|(id, lv)| self.listed(id, &lv)).collect()
    }

    fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        self.answer_capacity(query)
    }
}

impl LvmBackend {
    /// Makes a volume in this volume group.
    ///
    /// # Errors
    /// `NoCapacity` before anything is made.
    fn create_in(&self, class: &DeviceClass, spec: &VolumeSpec, quiesce: &dyn Quiesce) -> Result<Volume> {
        let group = self.group(class)?;
        let object = Object::volume(&spec.id);
        let mut named = object.tags();
        let changes = modify::parse(&spec.mutable, &self.config, class.thin_pool.is_some())?;
        named.extend(tags::encode(&VolumeRecord {
            format: FORMAT,
            name: spec.name.clone(),
            source: spec.source.clone(),
            parameters: spec.parameters.clone(),
            on_delete: changes.on_delete,
            io_limits: changes.io_limits,
        })?);
        // LVM's exit status says that it is there: it is not asked again.
        let extent = match (&class.thin_pool, &spec.source) {
            (Some(pool), None) => self.make_thin(group, class, pool, spec, &object, named)?,
            (Some(pool), Some(source)) => self.copy_thin(group, class, pool, source, spec, &object, named, quiesce)?,
            (None, None) => self.make_thick(group, class, spec, &object, named)?,
            (None, Some(_)) => return Err(only_thin("copying", class)),
        };
        Ok(Volume {
            id: spec.id.clone(),
            name: spec.name.clone(),
            capacity: Bytes(spec.capacity.0.next_multiple_of(extent)),
            source: spec.source.clone(),
            parameters: Arc::new(spec.parameters.clone()),
            topology: self.topology.iter().cloned().collect(),
            for_one_node: true,
        })
    }

    pub(super) fn volume(&self, id: VolumeId, lv: &Lv) -> Result<Volume> {
        let record: VolumeRecord = tags::decode(lv)?;
        Ok(Volume {
            id,
            name: record.name,
            capacity: Bytes(lv.size),
            source: record.source,
            parameters: Arc::new(record.parameters),
            topology: self.topology.iter().cloned().collect(),
            for_one_node: true,
        })
    }

    /// A volume for a list. One whose record is damaged is listed with what is known of it: its absence would say that it does not exist.
    fn listed(&self, id: VolumeId, lv: &Lv) -> Result<Volume> {
        match self.volume(id.clone(), lv) {
            Err(Error::Unverified { .. }) => Ok(Volume {
                id,
                name: String::new(),
                capacity: Bytes(lv.size),
                source: None,
                parameters: Arc::default(),
                topology: self.topology.iter().cloned().collect(),
                for_one_node: true,
            }),
            volume => volume,
        }
    }

    /// Removes a logical volume, and of its data what its class, or its own `onDelete`, says.
    fn destroy(&self, found: &Found<'_>, id: &VolumeId, record: &VolumeRecord, on_delete: OnDelete) -> Result<()> {
        if found.lv.is("thin") {
            return self.remove(found, Freed::Discarded);
        }
        let parameters = LvmParameters::from_json(&record.parameters["backend"])?;
        let wipe = match on_delete {
            OnDelete::Scrub => Wipe::Zero,
            _ => self.config.wipe(&found.group.name, parameters.device_class.as_deref()),
        };
        self.wipe(found, id, wipe)
    }

    /// What an interrupted call left, in whichever class that was: a DeleteVolume, too, whose data is not all overwritten yet. What was renamed
    /// is no reason to make a second one of its id.
    fn remove_draft(&self, id: &VolumeId, object: &Object) -> Result<()> {
        match self.search(|report| named_in(report, object).or_else(|| renamed_in(report, object)).cloned())? {
            Some(found) if found.lv.name != object.name => Err(renamed("create", object, &found.group.name, &found.lv.name)),
            Some(found) if found.lv.has_tag(DRAFT) => {
                let record: VolumeRecord = tags::decode(&found.lv)?;
                self.destroy(&found, id, &record, record.on_delete()?)
            }
            _ => Ok(()),
        }
    }

    /// Answers the extent of the volume group, as the other two do.
    fn make_thin(
        &self,
        group: &VolumeGroup,
        class: &DeviceClass,
        pool: &str,
        spec: &VolumeSpec,
        object: &Object,
        named: Vec<String>,
    ) -> Result<u64> {
        let held = group.lock("lvcreate")?;
        let fits = |recent: &Recent| {
            let made = recent.made.iter().filter(|(of, _)| of == pool).map(|(_, size)| size).sum::<u64>();
            self.check_pool(&recent.report, class, pool, Bytes(spec.capacity.0 + made)).is_ok()
        };
        let recent = self.recent(group).filter(fits);
        let report = match &recent {
            Some(recent) => Arc::clone(&recent.report),
            None => {
                let report = self.report(group)?;
                self.check_pool(&report, class, pool, spec.capacity)?;
                report
            }
        };
        // That of the report, where one was made just now.
        let recent = recent.or_else(|| self.recent(group));
        let (size, path) = (format!("{}b", spec.capacity.0), path(group, pool));
        // Where this process will also stage it: that saves the command that activates it, and the report that finds it.
        let active = self.purpose.stages();
        let activate = if active { "y" } else { "n" };
        let arguments = ["--virtualsize", &size, "--thinpool", &path, "--setactivationskip", "n", "--activate", activate];
        self.lvcreate(group, &held, object, named, &[], &arguments)?;
        let mapping = group.mapping(&object.name);
        if active
            && let Ok(Some(device)) = dm::find(&mapping)
            && device.uuid.starts_with(&dm_prefix(&report))
        {
            let mut made = lock(&self.made);
            made.retain(|_, made| made.at.elapsed() < NEW);
            made.insert(spec.id.clone(), Made { at: Instant::now(), mapping, uuid: device.uuid });
        }
        if let Some(mut recent) = recent {
            recent.made.push((pool.to_owned(), spec.capacity.0.next_multiple_of(report.extent)));
            recent.changes = group.changes();
            lock(&self.recent).insert(group.name.clone(), recent);
        }
        Ok(report.extent)
    }

    /// A copy shares its chunks with the source until one of them is written.
    #[allow(clippy::too_many_arguments, reason = "they are those of create, parsed")]
    fn copy_thin(
        &self,
        group: &VolumeGroup,
        class: &DeviceClass,
        pool: &str,
        source: &ContentSource,
        spec: &VolumeSpec,
        object: &Object,
        named: Vec<String>,
        quiesce: &dyn Quiesce,
    ) -> Result<u64> {
        let (origin, frozen) = match source {
            ContentSource::Snapshot(id) => (Object::snapshot(id), None),
            ContentSource::Volume(id) => (Object::volume(id), Some(id)),
        };
        let found = self.whole(&origin)?.ok_or_else(|| Error::NotFound { kind: "source", id: origin.id.clone() })?;
        if found.group.name != group.name || found.lv.pool.as_deref() != Some(pool) {
            let reason =
                format!("{} is not in thin pool {}/{pool}: a copy lies in the pool of its source", origin.id, group.name);
            return Err(Error::NoCapacity { place: format!("class {}", class.name), reason });
        }
        if found.lv.size > spec.capacity.0 {
            let reason = format!("the source has grown to {} meanwhile; ask for as much", Bytes(found.lv.size));
            return Err(Error::OutOfRange { field: "capacity_range", reason });
        }
        let grows = found.lv.size < spec.capacity.0;
        self.flush(frozen, quiesce)?;
        let held = group.lock("lvcreate")?;
        let report = self.report(group)?;
        self.check_pool(&report, class, pool, spec.capacity)?;
        let from = found.path();
        let state: &[&str] = if grows { &[DRAFT] } else { &[] };
        let arguments = ["--snapshot", "--setactivationskip", "n", "--permission", "rw", "--activate", "n", &from];
        self.at_one_instant(&found, frozen, quiesce, || self.lvcreate(group, &held, object, named, state, &arguments))?;
        if grows {
            let (size, copy) = (format!("{}b", spec.capacity.0), path(group, &object.name));
            step("grow logical volume", &spec.id, || group.change(&held, "lvextend", &["--size", &size, &copy]))?;
            step("complete volume", &spec.id, || group.change(&held, "lvchange", &["--deltag", DRAFT, &copy]))?;
        }
        Ok(report.extent)
    }

    /// Its extents hold what was there before: it is whole when they are zeroed.
    fn make_thick(
        &self,
        group: &VolumeGroup,
        class: &DeviceClass,
        spec: &VolumeSpec,
        object: &Object,
        named: Vec<String>,
    ) -> Result<u64> {
        let held = group.lock("lvcreate")?;
        let report = self.report(group)?;
        capacity::check_thick(class, &report, spec.capacity)?;
        let extents = spec.capacity.0.div_ceil(report.extent).to_string();
        let mut arguments = vec!["--extents", &extents, "--activate", "y", "--wipesignatures", "n", "--zero", "n"];
        let of_class = capacity::class_arguments(class);
        arguments.extend(of_class.iter().map(String::as_str));
        arguments.push(&group.name);
        self.lvcreate(group, &held, object, named, &[DRAFT], &arguments)?;
        drop(held);
        let Some(found) = self.locate(object)? else {
            return Err(Error::failed("create logical volume", path(group, &object.name), "LVM made it and does not show it"));
        };
        self.zero(&found, &spec.id)?;
        let held = group.lock("lvchange")?;
        step("complete volume", &spec.id, || {
            let same = format!("lv_uuid={}", found.lv.uuid);
            group.change(&held, "lvchange", &["--select", &same, "--deltag", DRAFT, "--addtag", BLANK, &found.path()])
        })?;
        Ok(report.extent)
    }

    /// Makes a logical volume with its tags.
    pub(super) fn lvcreate(
        &self,
        group: &VolumeGroup,
        held: &Arc<ChangeLock>,
        object: &Object,
        mut named: Vec<String>,
        state: &[&str],
        arguments: &[&str],
    ) -> Result<()> {
        named.extend(state.iter().map(|tag| (*tag).to_owned()));
        let mut all = vec!["--name", object.name.as_str()];
        for tag in &named {
            all.extend(["--addtag", tag]);
        }
        all.extend(arguments);
        Ok(step("create logical volume", &object.id, || group.change(held, "lvcreate", &all))?)
    }

    /// Writes zeroes to all of a logical volume that is a draft, and leaves it inactive.
    ///
    /// # Errors
    /// `InProgress` where another has it open: an earlier process that still writes.
    pub(super) fn zero(&self, found: &Found<'_>, id: &VolumeId) -> Result<()> {
        if mapped(&found.report, &found.lv)?.is_none() {
            self.activate(found, id)?;
        }
        let device = mapped(&found.report, &found.lv)?.ok_or_else(|| Error::InProgress {
            object: format!("zero logical volume {}", found.path()),
            reason: format!("{} has not shown up", found.lv.dm_path),
        })?;
        step("zero", id, || {
            let open = Device::open_exclusive(&device.path).map_err(|error| match error.errno() {
                Some(libc::EBUSY) => {
                    let reason = "another process has it open; it may still be zeroing it".to_owned();
                    Error::InProgress { object: format!("zero logical volume {}", found.path()), reason }
                }
                _ => error.into(),
            })?;
            // Another process may have completed it, and a pod written to it, before this one had it.
            let now = self.report(found.group)?;
            let is_draft = |lv: &Lv| lv.has_tag(DRAFT);
            if open.number() != device.number || !same_in(&now, found).is_some_and(is_draft) {
                let reason = format!("it is no longer the draft of {id}; nothing was written");
                return Err(Error::Unverified { device: found.lv.dm_path.clone(), reason });
            }
            let size = open.size()?;
            open.zero_out(0, |done| {
                note("zero", &format_args!("{} of {} MiB of {id}", done >> 20, size >> 20));
                Ok(())
            })?;
            Ok(())
        })?;
        found.deactivate()
    }

    /// From now on it is not shown, and may be overwritten.
    fn mark_draft(&self, found: &Found<'_>) -> Result<()> {
        if found.lv.has_tag(DRAFT) {
            return Ok(());
        }
        let held = found.group.lock("lvchange")?;
        let now = self.report(found.group)?;
        check_same(&now, found)?;
        let same = format!("lv_uuid={}", found.lv.uuid);
        let mark = || found.group.change(&held, "lvchange", &["--select", &same, "--addtag", DRAFT, &found.path()]);
        Ok(step("mark draft", &found.lv.name, mark)?)
    }

    /// Removes a thick volume, and of its data what its class says.
    ///
    /// # Errors
    /// `BackendUnavailable` where a disk is missing: LVM would remove the logical volume, and the data on that disk would stay.
    fn wipe(&self, found: &Found<'_>, id: &VolumeId, wipe: Wipe) -> Result<()> {
        if wipe != Wipe::None && found.lv.health == PARTIAL {
            let at = found.path();
            return Err(self.unavailable(format!(
                "logical volume {at} of volume {id} lies on a disk that is missing, where its data would stay; bring the disk back, or, \
                 if it is lost, delete the volume with `lvremove {at}`"
            )));
        }
        let freed = match wipe {
            Wipe::None => Freed::Left,
            Wipe::Discard => Freed::Discarded,
            Wipe::Zero => {
                self.mark_draft(found)?;
                self.zero(found, id)?;
                Freed::Discarded
            }
        };
        self.remove(found, freed)
    }

    /// # Errors
    /// `BackendUnavailable` where a physical volume is here and not configured: see [`capacity::not_configured`].
    fn check_devices(&self, group: &VolumeGroup, report: &Report) -> Result<()> {
        match capacity::not_configured(report, &group.devices) {
            None => Ok(()),
            Some(reason) => Err(self.unavailable(format!("volume group {}: {reason}", group.name))),
        }
    }

    /// Removes what was found, if it is that still.
    ///
    /// # Errors
    /// `InUse` where another depends on it, `InProgress` where it is no longer what was found.
    pub(super) fn remove(&self, found: &Found<'_>, freed: Freed) -> Result<()> {
        let held = found.group.lock("lvremove")?;
        // An administrator may have taken it out of the driver's hands while this waited.
        let now = self.report(found.group)?;
        check_same(&now, found)?;
        check_dependents(&now, found)?;
        self.check_devices(found.group, &now)?;
        let remove = || found.group.remove(&held, freed, &found.path(), &found.lv.uuid);
        Ok(step("remove logical volume", &found.lv.name, remove)?)
    }

    /// Whether a thin pool may get another volume or snapshot of this size.
    ///
    /// # Errors
    /// `NoCapacity`; `Unsupported` where its chunks are not zeroed.
    pub(super) fn check_pool(&self, report: &Report, class: &DeviceClass, pool: &str, size: Bytes) -> Result<()> {
        let room = capacity::thin_room(class, pool, report)
            .map_err(|reason| Error::Unsupported { what: format!("thin pool {}/{pool}", class.volume_group), reason })?;
        match room {
            Ok(room) if size.0 <= room => Ok(()),
            Ok(room) => {
                let reason = format!("{size} is asked for, {} is left of its overcommit {}", Bytes(room), class.overcommit);
                Err(Error::NoCapacity { place: format!("thin pool {}/{pool}", class.volume_group), reason })
            }
            Err(full) => Err(Error::NoCapacity { place: format!("thin pool {}/{pool}", class.volume_group), reason: full }),
        }
    }
}

/// What was found, as a later report has it, where it is the driver's still.
fn same_in<'a>(report: &'a Report, found: &Found<'_>) -> Option<&'a Lv> {
    let object = Object::of(&found.lv)?;
    named_in(report, &object).filter(|lv| lv.uuid == found.lv.uuid)
}

/// # Errors
/// `InProgress` where a later report has it no more: the next call looks anew.
pub(super) fn check_same(report: &Report, found: &Found<'_>) -> Result<()> {
    if same_in(report, found).is_some() {
        return Ok(());
    }
    let reason = "it was removed, renamed, or lost its tags meanwhile; repeat the call".to_owned();
    Err(Error::InProgress { object: format!("logical volume {}", found.path()), reason })
}

/// Whether LVM would remove others with it: snapshots of a thick volume, thick snapshots, thin volumes over an external origin. The driver makes
/// none of these.
///
/// # Errors
/// `InUse`, naming one.
fn check_dependents(report: &Report, found: &Found<'_>) -> Result<()> {
    let depends = |lv: &&Lv| lv.origin.as_ref() == Some(&found.lv.name) && (lv.pool.is_none() || lv.pool != found.lv.pool);
    let Some(lv) = report.lvs.values().find(depends) else { return Ok(()) };
    let path = path(found.group, &lv.name);
    let by = format!(
        "{path} was made from it by another program or an administrator, and would be removed with it; keep its data, then run \
         `lvremove {path}`"
    );
    Err(Error::InUse { object: format!("logical volume {}", found.path()), by })
}

/// udev opens a device that is new for an instant, to look at it: that is no use of the volume.
fn wait_for_udev(made: &Made) -> Result<()> {
    let is_closed = || Ok(!dm::find(&made.mapping)?.is_some_and(|device| device.uuid == made.uuid && device.open));
    udev::wait_until(Instant::now().checked_add(dm::LONGEST_LOOK), is_closed)?;
    Ok(())
}

/// The logical volume stays, under a name by which the driver does not find it.
fn retain(found: &Found<'_>, object: &Object) -> Result<()> {
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let kept = object.retained(seconds);
    if mapped(&found.report, &found.lv)?.is_some() {
        found.deactivate()?;
    }
    let held = found.group.lock("lvrename")?;
    step("retain logical volume", &object.id, || {
        found.group.change(&held, "lvrename", &[&found.group.name, &found.lv.name, &kept])
    })?;
    tracing::info!(volume = object.id, logical_volume = path(found.group, &kept), "deleted; its data was kept");
    Ok(())
}

pub(super) fn only_thin(what: &str, class: &DeviceClass) -> Error {
    let reason = format!(
        "class {} makes thick volumes, which LVM copies by writing each change twice; use a class with a thin pool",
        class.name
    );
    Error::Unsupported { what: format!("{what} a volume"), reason }
}

//! Snapshots of thin volumes: thin volumes themselves, read-only and never active.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::backend::{Quiesce, SnapshotSpec, Snapshots};
use crate::os::dm;
use crate::os::lvm::{Freed, Lv};
use crate::volume::{Bytes, Error, Outcome, RawParameters, Result, Snapshot, SnapshotId, VolumeId};

use super::tags::{self, FORMAT, Kind, Object, SnapshotRecord};
use super::{Found, LvmBackend, mapped, renamed, renamed_in};

impl Snapshots for LvmBackend {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        if raw.is_empty() {
            return Ok(());
        }
        Err(Error::invalid("parameters", format!("{raw:?}: this backend's snapshots have none")))
    }

    fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        self.whole(&Object::snapshot(id))?.map(|found| self.snapshot(id.clone(), &found.lv)).transpose()
    }

    fn create_snapshot(&self, spec: &SnapshotSpec, quiesce: &dyn Quiesce) -> Result<Snapshot> {
        let found = self.whole(&Object::volume(&spec.source))?.ok_or_else(|| Error::volume_not_found(&spec.source))?;
        let Some(pool) = found.lv.pool.clone() else {
            let reason = "it is a thick volume; make it in a class with a thin pool".to_owned();
            return Err(Error::Unsupported { what: format!("a snapshot of volume {}", spec.source), reason });
        };
        let of_pool =
            |class: &&super::DeviceClass| class.volume_group == found.group.name && class.thin_pool.as_ref() == Some(&pool);
        let class = self.config.classes.iter().find(of_pool).ok_or_else(|| {
            Error::invalid(
                "classes",
                format!("thin pool {}/{pool} of volume {} is of no class any more", found.group.name, spec.source),
            )
        })?;
        let object = Object::snapshot(&spec.id);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut named = object.tags();
        let record = SnapshotRecord { format: FORMAT, name: spec.name.clone(), source: spec.source.clone(), created };
        named.extend(tags::encode(&record)?);
        self.flush(Some(&spec.source), quiesce)?;
        let held = found.group.lock("lvcreate")?;
        let report = self.report(found.group)?;
        if let Some(lv) = renamed_in(&report, &object) {
            return Err(renamed("create", &object, &found.group.name, &lv.name));
        }
        self.check_pool(&report, class, &pool, Bytes(found.lv.size))?;
        let from = found.path();
        let arguments = ["--snapshot", "--setactivationskip", "y", "--permission", "r", "--activate", "n", &from];
        self.at_one_instant(&found, Some(&spec.source), quiesce, || {
            self.lvcreate(found.group, &held, &object, named, &[], &arguments)
        })?;
        self.find_snapshot(&spec.id)?.ok_or_else(|| Error::snapshot_not_found(&spec.id))
    }

    fn delete_snapshot(&self, id: &SnapshotId) -> Result<Outcome<()>> {
        let object = Object::snapshot(id);
        let Some(found) = self.locate(&object)? else {
            return self.check_deleted(&object);
        };
        self.remove(&found, Freed::Discarded)?;
        Ok(Outcome::Changed(()))
    }

    fn list_snapshots(&self, source: Option<&VolumeId>, after: Option<&SnapshotId>, max: usize) -> Result<Vec<Snapshot>> {
        let ids = self.all(Kind::Snapshot)?.into_iter().filter_map(|(id, lv)| Some((id.parse::<SnapshotId>().ok()?, lv)));
        let behind = ids.filter(|(id, _)| after.is_none_or(|after| id > after));
        // One whose record is damaged hides no other.
        let all = behind.map(|(id, lv)| self.snapshot(id, &lv)).filter(|found| !matches!(found, Err(Error::Unverified { .. })));
        all.filter(|snapshot| snapshot.as_ref().map_or(true, |snapshot| source.is_none_or(|source| snapshot.source == *source)))
            .take(max)
            .collect()
    }
}

impl LvmBackend {
    fn snapshot(&self, id: SnapshotId, lv: &Lv) -> Result<Snapshot> {
        let record: SnapshotRecord = tags::decode(lv)?;
        Ok(Snapshot {
            id,
            name: record.name,
            source: record.source,
            size: Bytes(lv.size),
            created: UNIX_EPOCH + Duration::from_secs(record.created),
            ready: true,
            group: None,
            topology: self.topology.clone(),
        })
    }

    /// Before the volume group is locked: what pods have written is written out at the rates to which they are limited, and LVM's suspend
    /// waits for it.
    pub(super) fn flush(&self, volume: Option<&VolumeId>, quiesce: &dyn Quiesce) -> Result<()> {
        volume.filter(|_| self.config.io_limits).map_or(Ok(()), |volume| quiesce.flush(volume))
    }

    /// Copies a thin volume. LVM suspends its device meanwhile, by which the kernel freezes the file system on it; one that is frozen already
    /// cannot be suspended. A file system on a mapping over it (LUKS) is frozen by us.
    pub(super) fn at_one_instant(
        &self,
        found: &Found<'_>,
        volume: Option<&VolumeId>,
        quiesce: &dyn Quiesce,
        copy: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let device = mapped(&found.report, &found.lv)?;
        let above = device.map(|device| dm::holders(device.number)).transpose()?.unwrap_or_default();
        match volume.filter(|_| !above.is_empty()) {
            None => copy(),
            Some(volume) => {
                let frozen = quiesce.freeze(std::slice::from_ref(volume))?;
                let copied = copy();
                // The copy is of one instant however the hold ended: it was made by one suspend of the device.
                frozen.release().or_else(|error| copied.as_ref().map_or(Ok(()), |()| Err(error)))?;
                copied
            }
        }
    }
}

//! Snapshots: whole copies of a volume's folder, on the same share, made in the background.
//!
//! A share is in use by machines that we know nothing of, so nothing can be held still: a snapshot is consistent file by file, not at
//! one instant. Where the server shares data between files (NFS 4.2 on xfs or btrfs) it takes no room and little time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Quiesce, SnapshotSpec, Snapshots};
use crate::os::folder::Folder;
use crate::os::step::step;
use crate::os::tree;
use crate::volume::{Bytes, Error, Outcome, RawParameters, Result, Snapshot, SnapshotId, VolumeId};

use super::index::Taken;
use super::provision::tell;
use super::record::{self, FORMAT, SnapshotRecord};
use super::share::{Ready, lock};
use super::work::{Source, Work};
use super::{Controller, PATIENCE};

pub(super) const META: &str = "meta.json";
pub(super) const DATA: &str = "data";
const LINKS: &str = "links";

impl Snapshots for Controller {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        if raw.is_empty() {
            return Ok(());
        }
        Err(Error::invalid("parameters", format!("{raw:?}: a snapshot class of this backend has none")))
    }

    fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        let Some((ready, found)) = self.locate_snapshot(id.local())? else { return Ok(None) };
        if found.ready {
            return Ok(Some(found.into_snapshot()));
        }
        match ready.work(&work_key(id.local())) {
            // It failed: said once, and nothing of it stays, so that it can be made anew.
            Some(work) if work.ends_within(Duration::ZERO) => match work.take() {
                Some(Err(error)) => Err(undo(&ready, id.local(), error)),
                _ => self.again(id.local()),
            },
            Some(_) => Ok(Some(found.into_snapshot())),
            None => ready.copy_snapshot(id.local()).map(|_| Some(found.into_snapshot())),
        }
    }

    fn create_snapshot(&self, spec: &SnapshotSpec, _quiesce: &dyn Quiesce) -> Result<Snapshot> {
        let (ready, volume) = self.locate_whole(spec.source.local())?.ok_or_else(|| Error::volume_not_found(&spec.source))?;
        let local = spec.id.local();
        let record = SnapshotRecord {
            format: FORMAT,
            id: spec.id.clone(),
            name: spec.name.clone(),
            source: spec.source.clone(),
            size: volume.capacity,
            created: record::now(),
            ready: false,
            taken: Bytes(0),
        };
        match ready.begin_snapshot(&record) {
            Ok(work) if work.ends_within(PATIENCE) => match work.take() {
                Some(Err(error)) => Err(undo(&ready, local, error)),
                _ => self.again(local)?.ok_or_else(|| Error::snapshot_not_found(&spec.id)),
            },
            Ok(_) => Ok(record.into_snapshot()),
            Err(error) => Err(undo(&ready, local, error)),
        }
    }

    fn delete_snapshot(&self, id: &SnapshotId) -> Result<Outcome<()>> {
        let local = id.local();
        let found = self.search(|ready| ready.snapshots.stat(local).map_err(|error| ready.failure(error)))?;
        let Some((ready, _)) = found else { return Ok(Outcome::Unchanged(())) };
        self.check_not_copied(&Source::Snapshot(local.to_owned()))?;
        // What is damaged is left, not removed.
        ready.snapshot_record(local)?;
        ready.discard_snapshot(local)?;
        Ok(Outcome::Changed(()))
    }

    fn list_snapshots(&self, source: Option<&VolumeId>, after: Option<&SnapshotId>, max: usize) -> Result<Vec<Snapshot>> {
        let of = source.map(VolumeId::local);
        let ids = |ready: &Ready, after: Option<&str>, max| ready.index.snapshots(of, after, max);
        self.page(after.map(SnapshotId::local), max, ids, |ready, local| match ready.snapshot_record(local) {
            Ok(record) => Ok(record.map(SnapshotRecord::into_snapshot)),
            Err(Error::Unproven { .. }) => Ok(None),
            Err(error) => Err(error),
        })
    }
}

impl Controller {
    pub(super) fn locate_snapshot(&self, local: &str) -> Result<Option<(Arc<Ready>, SnapshotRecord)>> {
        self.search(|ready| ready.snapshot_record(local))
    }

    fn again(&self, local: &str) -> Result<Option<Snapshot>> {
        Ok(self.locate_snapshot(local)?.map(|(_, record)| record.into_snapshot()))
    }
}

impl Ready {
    fn snapshot_folder(&self, local: &str) -> Result<Option<Folder>> {
        self.snapshots.folder(local).map_err(|error| self.failure(error))
    }

    /// `None` where there is no snapshot, or not even a record of it.
    fn snapshot_record(&self, local: &str) -> Result<Option<SnapshotRecord>> {
        let Some(folder) = self.snapshot_folder(local)? else { return Ok(None) };
        let Some(found) = record::read::<SnapshotRecord>(&folder, META)? else { return Ok(None) };
        if found.id.local() == local {
            return Ok(Some(found));
        }
        let device = folder.path_of(META).display().to_string();
        Err(Error::Unproven { device, reason: format!("it is that of {}; restore it from a backup", found.id) })
    }

    fn begin_snapshot(self: &Arc<Self>, record: &SnapshotRecord) -> Result<Arc<Work>> {
        let local = record.id.local();
        self.discard_snapshot(local)?;
        let shown = self.snapshots.path_of(local);
        step("make folder", &shown.display(), || self.snapshots.make_folder(local, 0o700))
            .map_err(|error| self.failure(error))?;
        self.write_snapshot(record)?;
        self.copy_snapshot(local)
    }

    fn write_snapshot(&self, record: &SnapshotRecord) -> Result<()> {
        let local = record.id.local();
        let folder = self.snapshots.existing(local).map_err(|error| self.failure(error))?;
        let text = record::encode(record)?;
        step("write metadata", &folder.path_of(META).display(), || folder.write(META, &text))
            .map_err(|error| self.failure(error))?;
        let source = record.source.local().to_owned();
        self.index.put_snapshot(local, Taken { source, bytes: record.taken.0, ready: record.ready });
        Ok(())
    }

    /// Begins the copy of a snapshot that is not ready, from its start; that which runs already, if one does.
    pub(super) fn copy_snapshot(self: &Arc<Self>, local: &str) -> Result<Arc<Work>> {
        let key = work_key(local);
        if let Some(work) = self.work(&key) {
            return Ok(work);
        }
        let failed = |error| self.failure(error);
        let id = || format!("{}:{local}", self.backend);
        let gone = |kind| Error::NotFound { kind, id: id() };
        let mut record = self.snapshot_record(local)?.ok_or_else(|| gone("snapshot"))?;
        let folder = self.snapshots.existing(local).map_err(failed)?;
        // What was copied by a process that ended.
        for name in [DATA, LINKS] {
            if folder.stat(name).map_err(failed)?.is_some() {
                self.throw_away(&folder, name.as_ref(), &format!("{local}~{name}~{}", record::now()))?;
            }
            step("make folder", &folder.path_of(name).display(), || folder.make_folder(name, 0o700)).map_err(failed)?;
        }
        let (to, links) = (folder.existing(DATA).map_err(failed)?, folder.existing(LINKS).map_err(failed)?);
        let volume = self.record(record.source.local())?.ok_or_else(|| Error::volume_not_found(&record.source))?;
        let from =
            self.at(&volume.folder)?.ok_or_else(|| self.down(format!("the folder {} is gone", volume.folder.display())))?;
        let own = Arc::clone(self);
        // Held until it is in there: at its end the copy takes itself out.
        let mut works = lock(&self.works);
        let work = Work::start(Source::Volume(record.source.local().to_owned()), move |control| {
            let copied = tree::copy(&from, &to, &links, control).map_err(|error| own.failure(error))?;
            folder.remove_folder(LINKS).map_err(|error| own.failure(error))?;
            record.ready = true;
            record.taken = Bytes(copied.bytes);
            own.write_snapshot(&record)?;
            tell(&record.id, copied);
            lock(&own.works).remove(&work_key(record.id.local()));
            Ok(copied)
        })?;
        works.insert(key, Arc::clone(&work));
        Ok(work)
    }

    /// Takes a snapshot away, whatever there is of it.
    fn discard_snapshot(&self, local: &str) -> Result<()> {
        self.stop_work(&work_key(local))?;
        if self.snapshots.stat(local).map_err(|error| self.failure(error))?.is_some() {
            self.throw_away(&self.snapshots, Path::new(local).as_os_str(), &format!("{local}~{}", record::now()))?;
        }
        self.index.remove_snapshot(local);
        Ok(())
    }
}

fn undo(ready: &Ready, local: &str, failure: Error) -> Error {
    match ready.discard_snapshot(local) {
        Ok(()) => failure.nothing_left(),
        Err(error) => failure.but_left(error.to_string()),
    }
}

/// `~` is in no id.
pub(super) fn work_key(local: &str) -> String {
    format!("snapshot~{local}")
}

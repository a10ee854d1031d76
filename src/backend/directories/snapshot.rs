//! Snapshots: whole copies of a volume's directory, on the same base, made in the background; of a subvolume of btrfs its own snapshot.
//!
//! A base is in use by machines that we know nothing of, so nothing can be frozen. A snapshot is of one instant where nothing in the
//! volume changed while it was copied, which is checked afterwards; else it is refused, unless its class takes what is consistent file
//! by file. Where the server bases data between files (NFS 4.2 on xfs or btrfs) it takes no room and little time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Quiesce, SnapshotSpec, Snapshots};
use crate::os::dir::OpenDir;
use crate::os::step::step;
use crate::os::tree::{self, ChangeTime, Control, Copied};
use crate::os::{self, lock, subvolume};
use crate::volume::{Bytes, Error, Outcome, RawParameters, Result, Snapshot, SnapshotId, VolumeId};

use super::Controller;
use super::base::{DATA, LATER, LINKS, META, Ready};
use super::index::IndexedSnapshot;
use super::parameters::{Consistency, DirectorySnapshotParameters};
use super::provision::no_room;
use super::record::{self, FORMAT, SnapshotRecord};
use super::work::{Source, Work, log_copied};

impl Snapshots for Controller {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        raw.parse::<DirectorySnapshotParameters>().map(drop)
    }

    fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        let Some((ready, found)) = self.locate_snapshot(id.local())? else { return Ok(None) };
        if found.ready {
            return Ok(Some(found.into_snapshot(self.topology.clone())));
        }
        match ready.work(&work_key(id.local())) {
            // It failed: said once, and nothing of it stays, so that it can be made anew.
            Some(work) if work.ends_within(Duration::ZERO) => match work.take() {
                Some(Err(error)) => Err(undo(&ready, id.local(), error)),
                _ => self.again(id.local()),
            },
            Some(_) => Ok(Some(found.into_snapshot(self.topology.clone()))),
            None => match ready.copy_snapshot(id.local()) {
                Ok(Some(_)) => Ok(Some(found.into_snapshot(self.topology.clone()))),
                // It was completed after its record was read.
                Ok(None) => self.again(id.local()),
                // Its volume is gone, and so it never will be complete: as where a copy failed.
                Err(error @ Error::NotFound { kind: "volume", .. }) => Err(undo(&ready, id.local(), error)),
                Err(error) => Err(error),
            },
        }
    }

    fn create_snapshot(&self, spec: &SnapshotSpec, _quiesce: &dyn Quiesce) -> Result<Snapshot> {
        let (ready, volume) = self.locate_whole(spec.source.local())?.ok_or_else(|| Error::volume_not_found(&spec.source))?;
        volume.check_on_disk()?;
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
            by_file: spec.parameters.parse::<DirectorySnapshotParameters>()?.consistency == Consistency::File,
        };
        let completed = || self.again(local)?.ok_or_else(|| Error::snapshot_not_found(&spec.id));
        match ready.begin_snapshot(&record) {
            Ok(Some(work)) if work.ends_within(self.patience) => match work.take() {
                Some(Err(error)) => Err(undo(&ready, local, error)),
                _ => completed(),
            },
            Ok(Some(_)) => Ok(record.into_snapshot(self.topology.clone())),
            Ok(None) => completed(),
            Err(error) => Err(undo(&ready, local, error)),
        }
    }

    fn delete_snapshot(&self, id: &SnapshotId) -> Result<Outcome<()>> {
        let local = id.local();
        let stat = |ready: &Arc<Ready>| ready.snapshots.stat(local).map_err(|error| ready.failure(error));
        let found = self.search(|index| index.has_snapshot(local), stat)?;
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
            Ok(record) => Ok(record.map(|record| record.into_snapshot(self.topology.clone()))),
            Err(Error::Unverified { .. }) => Ok(None),
            Err(error) => Err(error),
        })
    }
}

impl Controller {
    pub(super) fn locate_snapshot(&self, local: &str) -> Result<Option<(Arc<Ready>, SnapshotRecord)>> {
        self.search(|index| index.has_snapshot(local), |ready| ready.snapshot_record(local))
    }

    fn again(&self, local: &str) -> Result<Option<Snapshot>> {
        Ok(self.locate_snapshot(local)?.map(|(_, record)| record.into_snapshot(self.topology.clone())))
    }
}

/// Of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    First,
    /// After the process that began it has ended.
    Again,
}

impl Ready {
    fn snapshot_directory(&self, local: &str) -> Result<Option<OpenDir>> {
        self.snapshots.directory(local).map_err(|error| self.failure(error))
    }

    /// `None` where there is no snapshot, or not even a record of it.
    fn snapshot_record(&self, local: &str) -> Result<Option<SnapshotRecord>> {
        let Some(directory) = self.snapshot_directory(local)? else { return Ok(None) };
        let Some(found) = self.read_snapshot(&directory)? else { return Ok(None) };
        if found.id.local() == local {
            return Ok(Some(found));
        }
        let device = directory.path_of(META).display().to_string();
        Err(Error::Unverified { device, reason: format!("it is that of {}; restore it from a backup", found.id) })
    }

    /// The record in a snapshot's directory; `None` where it was not begun.
    ///
    /// # Errors
    /// `Unverified` where it is damaged, or missing beside data, before which it is written.
    pub(super) fn read_snapshot(&self, directory: &OpenDir) -> Result<Option<SnapshotRecord>> {
        if let Some(found) = record::read(directory, META)? {
            return Ok(Some(found));
        }
        for name in [DATA, LINKS, LATER] {
            if directory.stat(name).map_err(|error| self.failure(error))?.is_some() {
                return Err(Error::Unverified {
                    device: directory.path_of(META).display().to_string(),
                    reason: format!(
                        "it is missing, and the snapshot's data is there: restore it from a backup, or remove {} by hand",
                        directory.shown().display()
                    ),
                });
            }
        }
        Ok(None)
    }

    fn begin_snapshot(self: &Arc<Self>, record: &SnapshotRecord) -> Result<Option<Arc<Work>>> {
        let local = record.id.local();
        self.discard_snapshot(local)?;
        // How much it will be is known when it is copied.
        if let Some(Bytes(limit)) = self.capacity().filter(|limit| self.index.left(limit.0) == 0) {
            return Err(no_room(self, record.size, 0, limit));
        }
        let shown = self.snapshots.path_of(local);
        step("make directory", &shown.display(), || self.snapshots.make_directory(local, 0o700))
            .map_err(|error| self.failure(error))?;
        self.write_snapshot(record)?;
        self.start_copy(local, Start::First)
    }

    pub(super) fn write_snapshot(&self, record: &SnapshotRecord) -> Result<()> {
        let local = record.id.local();
        let directory = self.snapshots.existing(local).map_err(|error| self.failure(error))?;
        let text = record::encode(record)?;
        step("write metadata", &directory.path_of(META).display(), || directory.write(META, &text))
            .map_err(|error| self.failure(error))?;
        let source = record.source.local().to_owned();
        self.index.put_snapshot(local, IndexedSnapshot { source, bytes: record.taken.0, ready: record.ready });
        Ok(())
    }

    /// Starts the copy of a snapshot that is not ready again, from its beginning. Returns the copy, or the one that runs already; `None`
    /// for a snapshot that is ready, whose data must stay as they are.
    pub(super) fn copy_snapshot(self: &Arc<Self>, local: &str) -> Result<Option<Arc<Work>>> {
        self.start_copy(local, Start::Again)
    }

    fn start_copy(self: &Arc<Self>, local: &str, start: Start) -> Result<Option<Arc<Work>>> {
        let key = work_key(local);
        // A copy writes the record before it leaves `works`, so the record is read only when no copy runs and none can be started.
        let _starting = lock(&self.snapshot_start);
        if let Some(work) = self.work(&key) {
            return Ok(Some(work));
        }
        let failed = |error| self.failure(error);
        let id = || format!("{}:{local}", self.backend);
        let gone = |kind| Error::NotFound { kind, id: id() };
        let mut record = self.snapshot_record(local)?.ok_or_else(|| gone("snapshot"))?;
        if record.ready {
            return Ok(None);
        }
        let directory = self.snapshots.existing(local).map_err(failed)?;
        // What was made by a process that ended.
        if directory.stat(LATER).map_err(failed)?.is_some() {
            // It is read-only, so it cannot be moved into the trash.
            step("remove snapshot", &directory.path_of(LATER).display(), || subvolume::remove(&directory, LATER.as_ref()))
                .map_err(failed)?;
        }
        let mut taken = false;
        for name in [DATA, LINKS] {
            match directory.stat(name).map_err(failed)? {
                None => {}
                // It was made in an instant, and is whole; where it was made later, it was seen to be of an unchanged volume.
                Some(stat) if subvolume::is_one(&directory, &stat) => taken = true,
                Some(_) => self.throw_away(&directory, name.as_ref(), &format!("{local}~{name}~{}", record::now()))?,
            }
        }
        // What was changed since the snapshot was begun is none of it, whenever it is copied.
        let since = match start {
            Start::First => None,
            Start::Again => ChangeTime::of_entry(&directory, META).map_err(failed)?,
        };
        let from = match taken {
            true => None,
            false => {
                let volume = self.record(record.source.local())?.ok_or_else(|| Error::volume_not_found(&record.source))?;
                let gone = || self.down(format!("the directory {} is gone", volume.directory.display()));
                Some(self.at(&volume.directory)?.ok_or_else(gone)?)
            }
        };
        let own = Arc::clone(self);
        // Held until it is in there: at its end the copy takes itself out.
        let mut works = lock(&self.works);
        let work = Work::start(Source::Volume(record.source.local().to_owned()), move |control| {
            let copied = match from {
                Some(from) => own.fill_snapshot(&record, &from, &directory, since, control)?,
                None => own.contents(&directory, control)?,
            };
            own.check_owner()?;
            own.check_room(record.id.local(), copied.bytes)?;
            record.ready = true;
            record.taken = Bytes(copied.bytes);
            own.write_snapshot(&record)?;
            log_copied(&record.id, copied);
            lock(&own.works).remove(&work_key(record.id.local()));
            Ok(copied)
        })?;
        works.insert(key, Arc::clone(&work));
        Ok(Some(work))
    }

    /// Reserves capacity for what a snapshot holds, where the configuration limits it.
    ///
    /// # Errors
    /// `NoCapacity`.
    fn check_room(&self, local: &str, bytes: u64) -> Result<()> {
        let Some(Bytes(limit)) = self.capacity() else { return Ok(()) };
        let reserved = self.index.provision_snapshot(local, bytes, limit);
        reserved.map_err(|left| no_room(self, Bytes(bytes), left, limit))
    }

    /// Counts what a snapshot that was made in an instant holds.
    fn contents(&self, directory: &OpenDir, control: &Control) -> Result<Copied> {
        directory.existing(DATA).and_then(|data| tree::contents(&data, control)).map_err(|error| self.failure(error))
    }

    pub(super) fn fill_snapshot(
        &self,
        record: &SnapshotRecord,
        from: &OpenDir,
        directory: &OpenDir,
        since: Option<ChangeTime>,
        control: &Control,
    ) -> Result<Copied> {
        let failed = |error| self.failure(error);
        let since_begun = since.filter(|_| !record.by_file);
        since_begun.map_or(Ok(()), |since| self.check_clock(&record.source, since))?;
        let name = if since_begun.is_some() { LATER } else { DATA };
        if self.snapshot_subvolume(from, directory, name, true)? {
            if let Some(since) = since_begun {
                self.check_unchanged(&record.source, &directory.existing(LATER).map_err(failed)?, since, control)?;
                step("complete snapshot", &directory.path_of(DATA).display(), || {
                    directory.rename(LATER, directory, DATA)?;
                    directory.sync()
                })
                .map_err(failed)?;
            }
            return self.contents(directory, control);
        }
        for name in [DATA, LINKS] {
            step("make directory", &directory.path_of(name).display(), || directory.make_directory(name, 0o700))
                .map_err(failed)?;
        }
        let (to, links) = (directory.existing(DATA).map_err(failed)?, directory.existing(LINKS).map_err(failed)?);
        let copy = || tree::copy(from, &to, &links, control);
        let copied = match record.by_file {
            true => copy().map_err(failed)?,
            false => self.copy_unchanged(&record.source, from, since, control, copy)?,
        };
        directory.remove_directory(LINKS).map_err(failed)?;
        Ok(copied)
    }

    /// As [`subvolume::snapshot`]; without a step where the source is a directory as elsewhere.
    pub(super) fn snapshot_subvolume(&self, from: &OpenDir, to: &OpenDir, name: &str, read_only: bool) -> Result<bool> {
        let made = subvolume::is_open(from).and_then(|is_one| match is_one {
            true => step("make snapshot", &to.path_of(name).display(), || subvolume::snapshot(from, to, name, read_only)),
            false => Ok(false),
        });
        made.map_err(|error| self.failure(error))
    }

    /// Takes a snapshot away, whatever there is of it.
    fn discard_snapshot(&self, local: &str) -> Result<()> {
        // Without the lock: other snapshots do not wait for a copy to stop.
        self.stop_work(&work_key(local))?;
        // A copy that started after the stop would write its record into the next snapshot of this id.
        let _starting = lock(&self.snapshot_start);
        self.stop_work(&work_key(local))?;
        if self.snapshots.stat(local).map_err(|error| self.failure(error))?.is_some() {
            self.throw_away(&self.snapshots, Path::new(local).as_os_str(), &format!("{local}~{}", record::now()))?;
        }
        self.index.remove_snapshot(local);
        Ok(())
    }
}

impl Ready {
    /// Runs the copy of a volume's directory in this base. `since` is when what it is to hold was decided; `None` for now.
    ///
    /// # Errors
    /// `InUse` where something in it changed meanwhile: the copy is then of no single instant.
    pub(super) fn copy_unchanged(
        &self,
        volume: &VolumeId,
        directory: &OpenDir,
        since: Option<ChangeTime>,
        control: &Control,
        copy: impl FnOnce() -> os::Result<Copied>,
    ) -> Result<Copied> {
        let failed = |error| self.failure(error);
        let since = since.map_or_else(|| ChangeTime::now(&self.drafts), Ok).map_err(failed)?;
        tree::write_back(directory, control).map_err(failed)?;
        let copied = copy().map_err(failed)?;
        self.check_unchanged(volume, directory, since, control).map(|()| copied)
    }

    fn check_unchanged(&self, volume: &VolumeId, directory: &OpenDir, since: ChangeTime, control: &Control) -> Result<()> {
        self.check_clock(volume, since)?;
        let changed = tree::changed_since(directory, since, control).map_err(|error| self.failure(error))?;
        let Some(path) = changed else { return Ok(()) };
        Err(Error::InUse {
            object: format!("volume {volume}"),
            by: format!(
                "{} changed while it was copied, and {}: stop the pods that write to the volume, or set \"consistency: file\" in the \
                 VolumeSnapshotClass (for a clone in the StorageClass) for copies that are consistent file by file only",
                path.display(),
                self.location.no_freeze()
            ),
        })
    }

    /// What is changed while the clock is earlier than `since` seems to be of before it.
    fn check_clock(&self, volume: &VolumeId, since: ChangeTime) -> Result<()> {
        if ChangeTime::now(&self.drafts).map_err(|error| self.failure(error))? >= since {
            return Ok(());
        }
        Err(Error::InUse {
            object: format!("volume {volume}"),
            by: "the clock of its file system was set back since the copy began, so that what changed is not known; repeat it"
                .to_owned(),
        })
    }
}

fn undo(ready: &Ready, local: &str, failure: Error) -> Error {
    // Else the end of its copy would never be heard of again, and it would stay as it is.
    let stopped = ready.stop_work(&work_key(local));
    match stopped.and_then(|()| ready.check_owner()).and_then(|()| ready.discard_snapshot(local)) {
        Ok(()) => failure.rolled_back(),
        Err(error) => failure.leaving(error.to_string()),
    }
}

/// `~` is in no id.
pub(super) fn work_key(local: &str) -> String {
    format!("snapshot~{local}")
}

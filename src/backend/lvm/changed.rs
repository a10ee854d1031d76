//! Which blocks of a snapshot hold data, and which differ between two: by the metadata of their thin pool, without reading any data.
//!
//! The metadata is read of a snapshot that the kernel makes of it, one at a time for each pool. One that is left by a driver that was killed is
//! known by the block at which it begins, which was noted; any other is another program's.

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use crate::backend::ChangedBlocks;
use crate::backend::extents::Runs;
use crate::os::lvm::thin::{self, Blocks, Extents};
use crate::os::lvm::{Lv, VolumeGroup};
use crate::os::step::step;
use crate::os::{self, dm, durable};
use crate::volume::{Bytes, Error, Extent, Result, SnapshotId};

use super::tags::Object;
use super::{Found, LvmBackend, path};

impl ChangedBlocks for LvmBackend {
    fn allocated(&self, snapshot: &SnapshotId, offset: u64, emit: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
        let found = self.snapshot_of(snapshot)?;
        let (name, _) = thin_volume(&found.lv, snapshot)?;
        let extents =
            Pool { group: found.group, name }.list(|| Ok(Blocks::Mapped { thin: self.thin_id(snapshot, &found.lv)? }))?;
        tell(extents, offset, found.lv.size, emit)
    }

    fn delta(
        &self,
        base: &SnapshotId,
        target: &SnapshotId,
        offset: u64,
        emit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let (old, new) = (self.snapshot_of(base)?, self.snapshot_of(target)?);
        let ((of_old, _), (of_new, _)) = (thin_volume(&old.lv, base)?, thin_volume(&new.lv, target)?);
        if (old.group.name.as_str(), of_old) != (new.group.name.as_str(), of_new) {
            let reason = format!("{base} is in thin pool {}, {target} in {}", path(old.group, of_old), path(new.group, of_new));
            return Err(Error::invalid("base_snapshot_id", reason));
        }
        let extents = Pool { group: new.group, name: of_new }
            .list(|| Ok(Blocks::Differing { from: self.thin_id(base, &old.lv)?, to: self.thin_id(target, &new.lv)? }))?;
        tell(extents, offset, new.lv.size, emit)
    }
}

impl LvmBackend {
    fn snapshot_of(&self, id: &SnapshotId) -> Result<Found<'_>> {
        self.whole(&Object::snapshot(id))?.ok_or_else(|| Error::snapshot_not_found(id))
    }

    /// The id of a snapshot in its pool, seen after the pool's metadata was reserved: before, someone else could have removed it, and LVM could
    /// have given its id to another volume.
    fn thin_id(&self, id: &SnapshotId, before: &Lv) -> Result<u64> {
        let found = self.snapshot_of(id)?;
        if found.lv.uuid != before.uuid {
            return Err(Error::snapshot_not_found(id));
        }
        thin_volume(&found.lv, id).map(|(_, thin)| thin)
    }
}

/// The pool of a thin volume, and its id there.
fn thin_volume<'a>(lv: &'a Lv, id: &SnapshotId) -> Result<(&'a str, u64)> {
    lv.pool.as_deref().zip(lv.thin_id).ok_or_else(|| {
        let reason = "it is in no thin pool, by the report of LVM".to_owned();
        Error::Unsupported { what: format!("the blocks of snapshot {id}"), reason }
    })
}

fn tell(extents: Extents, offset: u64, size: u64, emit: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
    let mut runs = Runs::new(offset, Bytes(size), emit);
    for extent in extents {
        let (at, length) = extent?;
        if runs.push(at, length).is_break() {
            break;
        }
    }
    runs.finish();
    Ok(())
}

struct Pool<'a> {
    group: &'a VolumeGroup,
    name: &'a str,
}

impl Pool<'_> {
    /// `blocks` is asked once the metadata can no longer change.
    fn list(&self, blocks: impl FnOnce() -> Result<Blocks>) -> Result<Extents> {
        let _turn = self.group.lock_thin_metadata("list blocks")?;
        let activated = self.activate()?;
        let listed = self.list_active(blocks);
        // A volume of the pool that is in use keeps it active.
        if activated && let Err(error) = self.change_activity("n") {
            tracing::warn!(thin_pool = self.path(), %error, "stays active");
        }
        listed
    }

    fn list_active(&self, blocks: impl FnOnce() -> Result<Blocks>) -> Result<Extents> {
        self.release_what_was_left()?;
        let mapping = self.mapping();
        dm::message(&mapping, "reserve_metadata_snap")?;
        let listed = self.note().and_then(|()| self.read(blocks()?));
        let released = self.release();
        let extents = listed?;
        released.map(|()| extents)
    }

    fn read(&self, blocks: Blocks) -> Result<Extents> {
        let name = self.group.mapping(&format!("{}_tmeta", self.name));
        let metadata = dm::find(&name)?.ok_or_else(|| self.unexpected(format!("it has no device {name}")))?;
        // Of one call at a time: the name is this volume group's, whose turn this is.
        let spool = self.group.directory().join(format!("{}.thin-blocks.xml", self.group.name));
        Ok(step("list blocks", &self.path(), || thin::list(&metadata.path, blocks, &spool))?)
    }

    /// Whether it was not active. It is while one of its volumes is.
    fn activate(&self) -> Result<bool> {
        if dm::thin_pool(&self.mapping())?.is_some() {
            return Ok(false);
        }
        self.change_activity("y").map(|()| true)
    }

    fn change_activity(&self, activity: &str) -> Result<()> {
        let held = self.group.lock("lvchange")?;
        Ok(self.group.change(&held, "lvchange", &["--activate", activity, &self.path()])?)
    }

    fn release_what_was_left(&self) -> Result<()> {
        let Some(block) = self.held()? else { return Ok(()) };
        if self.noted()? == Some(block) {
            tracing::info!(
                thin_pool = self.path(),
                block,
                "the snapshot of its metadata that a driver before this one left is released"
            );
            return self.release();
        }
        let by = format!(
            "another program, with a snapshot of its metadata; wait for it, or, if none runs, release it: \
             dmsetup message {} 0 release_metadata_snap",
            self.mapping()
        );
        Err(Error::InUse { object: format!("the metadata of thin pool {}", self.path()), by })
    }

    /// The block where the snapshot of its metadata begins.
    fn held(&self) -> Result<Option<u64>> {
        let pool = dm::thin_pool(&self.mapping())?.ok_or_else(|| self.unexpected("it is not active".to_owned()))?;
        Ok(pool.held)
    }

    fn note(&self) -> Result<()> {
        let block = self.held()?.ok_or_else(|| self.unexpected("the snapshot of its metadata is gone".to_owned()))?;
        Ok(durable::write(self.group.directory(), &self.note_name(), block.to_string().as_bytes())?)
    }

    fn noted(&self) -> Result<Option<u64>> {
        let path = self.note_path();
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim().parse().ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(os::Error::io("read", &path, error).into()),
        }
    }

    /// The note first: once the snapshot is released, another program may get one at the same block.
    fn release(&self) -> Result<()> {
        let path = self.note_path();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(os::Error::io("remove", &path, error).into());
            }
            _ => {}
        }
        dm::message(&self.mapping(), "release_metadata_snap")?;
        Ok(durable::sync_dir(self.group.directory())?)
    }

    fn note_name(&self) -> String {
        format!("{}.{}.metadata-snapshot", self.group.name, self.name)
    }

    fn note_path(&self) -> PathBuf {
        self.group.directory().join(self.note_name())
    }

    fn path(&self) -> String {
        path(self.group, self.name)
    }

    fn mapping(&self) -> String {
        self.group.pool_mapping(self.name)
    }

    fn unexpected(&self, reason: String) -> Error {
        os::Error::Unexpected { object: format!("thin pool {}", self.path()), reason }.into()
    }
}

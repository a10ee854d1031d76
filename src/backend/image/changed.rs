//! Which blocks of a snapshot hold data, and which differ between two.

use std::fs::File;
use std::ops::ControlFlow;

use crate::backend::ChangedBlocks;
use crate::backend::extents::Runs;
use crate::os::copy;
use crate::volume::{Bytes, Error, Extent, Result, SnapshotId, VolumeId};

use super::ImageBackend;
use super::files::Access;
use super::layout::Kind;

/// Differences are reported in whole ones of these, in bytes.
const BLOCK: u64 = 4096;

impl ChangedBlocks for ImageBackend {
    fn allocated(&self, snapshot: &SnapshotId, offset: u64, emit: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
        let opened = self.open_snapshot(snapshot)?;
        check_offset(offset, opened.size)?;
        let mut runs = Runs::new(offset, opened.size, emit);
        copy::data_extents(&opened.image, offset, &mut |at, length| runs.push(at, length))?;
        runs.finish();
        Ok(())
    }

    fn delta(
        &self,
        base: &SnapshotId,
        target: &SnapshotId,
        offset: u64,
        emit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let (old, new) = (self.open_snapshot(base)?, self.open_snapshot(target)?);
        if old.source != new.source {
            let reason = format!(
                "{base} is of volume {}, {target} of {}; only snapshots of one volume can be compared",
                old.source, new.source
            );
            return Err(Error::invalid("base_snapshot_id", reason));
        }
        check_offset(offset, new.size)?;
        let mut runs = Runs::new(offset, new.size, emit);
        let from = offset - offset % BLOCK;
        copy::differing_extents(&old.image, &new.image, from, BLOCK, &mut |at, length| runs.push(at, length))?;
        runs.finish();
        Ok(())
    }
}

struct Opened {
    image: File,
    size: Bytes,
    source: VolumeId,
}

impl ImageBackend {
    fn open_snapshot(&self, id: &SnapshotId) -> Result<Opened> {
        let (ready, meta) = self.visible_snapshot(id)?.ok_or_else(|| Error::snapshot_not_found(id))?;
        let image = ready.open_image(Kind::Snapshot, id.local(), Access::Read)?;
        Ok(Opened { image, size: meta.size, source: meta.source })
    }
}

fn check_offset(offset: u64, size: Bytes) -> Result<()> {
    if offset <= size.0 {
        return Ok(());
    }
    Err(Error::OutOfRange {
        field: "starting_offset",
        reason: format!("{offset} is behind the end of the snapshot, which is {size} large"),
    })
}

//! Which blocks of a snapshot hold data, and which differ from an earlier one.

use std::ops::ControlFlow;

use super::*;
use crate::backend::ChangedBlocks;
use crate::volume::{Extent, Snapshot};

impl Controller {
    /// Emits the runs of a snapshot that hold data, in ascending order, from `offset` on (GetMetadataAllocated).
    pub fn allocated(&self, snapshot: &SnapshotId, offset: u64, emit: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
        let blocks = self.changed_blocks(snapshot)?;
        let _snapshot = self.locks.shared(Key::Snapshot(snapshot.clone()), "list allocated blocks")?;
        within(&self.get_snapshot(snapshot)?, offset)?;
        blocks.allocated(snapshot, offset, emit)
    }

    /// Emits the runs in which `target` differs from `base`, in ascending order, from `offset` on (GetMetadataDelta).
    pub fn delta(
        &self,
        base: &SnapshotId,
        target: &SnapshotId,
        offset: u64,
        emit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let blocks = self.changed_blocks(target)?;
        let _base = self.locks.shared(Key::Snapshot(base.clone()), "list changed blocks")?;
        let _target = self.locks.shared(Key::Snapshot(target.clone()), "list changed blocks")?;
        let (earlier, later) = (self.get_snapshot(base)?, self.get_snapshot(target)?);
        if earlier.source != later.source {
            let reason = format!(
                "{base} is of volume {}, {target} of {}; only snapshots of one volume can be compared",
                earlier.source, later.source
            );
            return Err(Error::invalid("base_snapshot_id", reason));
        }
        within(&later, offset)?;
        blocks.delta(base, target, offset, emit)
    }

    fn changed_blocks(&self, snapshot: &SnapshotId) -> Result<&dyn ChangedBlocks> {
        let backend = self.backend(snapshot.backend())?;
        backend.changed_blocks().ok_or_else(|| unsupported(backend, "listing changed blocks"))
    }
}

fn within(snapshot: &Snapshot, offset: u64) -> Result<()> {
    if offset <= snapshot.size.0 {
        return Ok(());
    }
    let reason = format!("{offset} is beyond the end of snapshot {}, which has {}", snapshot.id, snapshot.size);
    Err(Error::OutOfRange { field: "starting_offset", reason })
}

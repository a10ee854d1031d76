//! Changed blocks, from the cloud's own lists: neighbours become one extent.

use std::ops::ControlFlow;

use crate::backend::ChangedBlocks;
use crate::volume::{Error, Extent, Result, SnapshotId};

use super::api::CloudSnapshotId;
use super::controller::Controller;

impl ChangedBlocks for Controller {
    fn allocated(&self, snapshot: &SnapshotId, offset: u64, emit: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
        self.emit_blocks(None, snapshot, offset, emit)
    }

    fn delta(
        &self,
        base: &SnapshotId,
        target: &SnapshotId,
        offset: u64,
        emit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let base = self.completed_snapshot(base)?;
        self.emit_blocks(Some(&base.id), target, offset, emit)
    }
}

impl Controller {
    fn emit_blocks(
        &self,
        base: Option<&CloudSnapshotId>,
        target: &SnapshotId,
        offset: u64,
        emit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let of = self.completed_snapshot(target)?;
        let mut run: Option<Extent> = None;
        let mut disorder = None;
        let mut is_enough = false;
        let read = self.cloud.blocks(base, &of.id, offset, &mut |blocks| {
            for start in blocks.offsets {
                // The last block may reach beyond the end, the first begin before the offset.
                let end = start.saturating_add(blocks.size).min(of.capacity.0);
                let start = start.max(offset);
                if end <= start {
                    continue;
                }
                match &mut run {
                    Some(run) if run.offset + run.length == start => run.length += end - start,
                    Some(run) if start < run.offset + run.length => {
                        disorder = Some(start);
                        return ControlFlow::Break(());
                    }
                    _ => {
                        if let Some(whole) = run.replace(Extent { offset: start, length: end - start })
                            && emit(whole).is_break()
                        {
                            is_enough = true;
                            return ControlFlow::Break(());
                        }
                    }
                }
            }
            ControlFlow::Continue(())
        });
        read.map_err(|refusal| {
            super::errors::unknown(&self.owner.backend, &format!("the blocks of snapshot {target}"), &refusal)
        })?;
        if let Some(start) = disorder {
            let reason = format!("the cloud lists the blocks of snapshot {target} out of order (at {start})");
            return Err(Error::BackendUnavailable { backend: self.owner.backend.to_string(), reason });
        }
        if is_enough {
            return Ok(());
        }
        // Whether the receiver wants more makes no difference after the last.
        if let Some(last) = run {
            let _ = emit(last);
        }
        Ok(())
    }
}

//! Changed blocks, from the cloud's own lists: neighbours become one extent.

use std::ops::ControlFlow;

use crate::backend::ChangedBlocks;
use crate::volume::{Error, Extent, Result, SnapshotId};

use super::api::{BlocksFrom, CloudSnapshotId};
use super::controller::Controller;
use super::pages::Pages;

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
        let mut from = BlocksFrom::Offset(offset);
        let mut run: Option<Extent> = None;
        let mut pages = Pages::new("blocks");
        let unknown =
            |refusal| super::errors::unknown(&self.owner.backend, &format!("the blocks of snapshot {target}"), &refusal);
        loop {
            let page = self.cloud.blocks(base, &of.id, &from).map_err(unknown)?;
            let next = pages.after(page.offsets.is_empty(), page.next).map_err(unknown)?;
            for start in page.offsets {
                // The last block may reach beyond the end, the first begin before the offset.
                let end = start.saturating_add(page.size).min(of.capacity.0);
                let start = start.max(offset);
                if end <= start {
                    continue;
                }
                match &mut run {
                    Some(run) if run.offset + run.length == start => run.length += end - start,
                    Some(run) if start < run.offset + run.length => {
                        let reason = format!("the cloud lists the blocks of snapshot {target} out of order (at {start})");
                        return Err(Error::BackendUnavailable { backend: self.owner.backend.to_string(), reason });
                    }
                    _ => {
                        if let Some(whole) = run.replace(Extent { offset: start, length: end - start })
                            && emit(whole).is_break()
                        {
                            return Ok(());
                        }
                    }
                }
            }
            match next {
                Some(token) => from = BlocksFrom::Token(token),
                None => break,
            }
        }
        // Whether the receiver wants more makes no difference after the last.
        if let Some(last) = run {
            let _ = emit(last);
        }
        Ok(())
    }
}

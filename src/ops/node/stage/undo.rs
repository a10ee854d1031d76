//! The undoing of a stage that failed.

use crate::os::step::step;
use crate::volume::{Error, Result};

use super::super::device_use::{close_mapping, ensure_unused};
use super::super::errors::source_name;
use super::super::mounts::unmount_all;
use super::super::rollback::undo_in_reverse;
use super::super::sources::with_moved;
use super::apply::{StageRun, StageUndo};

impl StageRun<'_> {
    /// Undoes what was done, in reverse, continuing after an error; says in the error what is left.
    pub fn undo(mut self, error: Error) -> Error {
        self.device = None;
        self.luks = None;
        // It may still become connected: what was begun stays in the journal, for the next stage or unstage.
        if matches!(error, Error::InProgress { .. } | Error::BackendUnavailable { .. } | Error::Throttled { .. }) {
            return error;
        }
        if matches!(error, Error::Unverified { .. }) {
            // It was left as it is, and it is for a person to decide: there is nothing that a repeat would complete.
            self.entry.format = None;
        }
        let done = std::mem::take(&mut self.done);
        let mut left = undo_in_reverse(done, StageUndo::Journal, |undo| self.undo_one(undo));
        if let (Some(format), Some(source)) = (self.entry.format, &self.entry.source) {
            let name = source_name(source);
            left.push(format!("{} was interrupted on {name}; the next stage repeats it", format.purpose));
        }
        if self.entry.growth.is_some() {
            left.push("the growth of its file system was interrupted; the next stage continues it".to_owned());
        }
        if left.is_empty() { error.rolled_back() } else { error.leaving(left.join("; ")) }
    }

    fn undo_one(&self, undo: StageUndo) -> Result<()> {
        let (id, staging) = (&self.entry.id, &self.entry.staging);
        match undo {
            StageUndo::Mount => unmount_all(self.order.root, staging, &with_moved(self.entry.shown())).map(|_| ()),
            StageUndo::Directory => Ok(step("remove directory", &staging.display(), || self.order.root.remove(staging))?),
            StageUndo::Mapping => close_mapping(self.node, id),
            StageUndo::Connection => {
                if let Some(source) = &self.entry.source {
                    ensure_unused(self.node, id, source)?;
                }
                self.order.backend.connect().disconnect(id, self.entry.source.as_ref())?;
                Ok(())
            }
            // An inline volume's entry goes with the volume.
            StageUndo::Journal if self.entry.is_interrupted() || self.entry.inline => Ok(()),
            StageUndo::Journal => self.node.journal.remove_stage(id),
        }
    }
}

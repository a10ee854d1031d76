//! Operations are waited for.
//!
//! Where a cloud has them ([`OperationVisibility`]), a request that was accepted has succeeded only once its operation
//! has. One whose end is not known still runs somewhere: what it does may come after the next request (a late detach removes the next
//! attachment, gcp-compute-persistent-disk-csi-driver issue 965). So before a disk is attached, detached or deleted, all operations that
//! attach, detach, create or delete it have ended, whichever process began them: the cloud is asked, not this process' memory. Others, such
//! as a snapshot that is saved for hours, bar nothing.

use crate::volume::{Error, Result, VolumeId};

use super::accepted::{Accepted, Operation, OperationChange, OperationState, still_running};
use super::api::{Answer, Attachment, AttachmentState, Disk, DiskId, DiskState, Refusal};
use super::constants::OperationVisibility;
use super::controller::Controller;
use super::ids::OperationId;
use super::pollers::OperationKey;
use super::timeouts::WAIT;

impl Controller {
    /// The result of a request, once its operation has ended.
    ///
    /// # Errors
    /// The operation's own; `Running` where it has not ended in time, or could not be looked at.
    pub fn finish<T>(&self, action: &'static str, answer: Answer<Accepted<T>>) -> Answer<T> {
        let Accepted { result, operation } = answer?;
        match operation {
            Some(operation) => self.await_operation(action, &operation).map(|()| result),
            None => Ok(result),
        }
    }

    pub fn await_operation(&self, action: &'static str, operation: &OperationId) -> Answer<()> {
        let key = OperationKey::Id(operation.clone());
        let ended = self.pollers.operations.wait(&key, self.clock.now() + WAIT, |seen| {
            seen.iter().find(|seen| seen.id == *operation).and_then(|seen| match &seen.state {
                OperationState::Running => None,
                OperationState::Done => Some(Ok(())),
                OperationState::Failed(refusal) => Some(Err(refusal.as_ref().clone())),
            })
        });
        ended.unwrap_or_else(|unfinished| Err(still_running(action, operation, unfinished.refusal.as_deref())))
    }

    /// Waits until nothing is under way that attaches, detaches, creates or deletes a disk; whether something was. `seen` is its description,
    /// where one has just been read.
    ///
    /// # Errors
    /// `InProgress`, naming the operation that has not ended.
    pub fn await_operations_of(&self, id: &VolumeId, disk: &DiskId, seen: Option<&Disk>) -> Result<bool> {
        let is_quiet = match self.constants.operations {
            OperationVisibility::None => true,
            OperationVisibility::Listed => false,
            OperationVisibility::Described => seen.is_some_and(|seen| !shows_operation(seen)),
        };
        if is_quiet {
            return Ok(false);
        }
        let key = OperationKey::Of(disk.clone());
        let seen = self.pollers.operations.look(&key).map_err(|refusal| self.unknown(id, &refusal))?;
        if !seen.iter().any(is_in_the_way) {
            return Ok(false);
        }
        let mut running = None;
        let ended = self.pollers.operations.wait(&key, self.clock.now() + WAIT, |seen| {
            running = seen.iter().find(|seen| is_in_the_way(seen)).cloned();
            running.is_none().then_some(())
        });
        ended.map(|()| true).map_err(|_| {
            let words = running.map_or_else(|| "an operation".to_owned(), |operation| words(&operation));
            Error::InProgress { object: format!("volume {id}"), reason: format!("{words} about disk {disk} has not ended") }
        })
    }

    /// Why a disk has come to nothing, in the words of the operation that failed; empty where the cloud has none.
    pub fn why_failed(&self, disk: &DiskId) -> String {
        self.failure_of(disk).map(|refusal| format!(": {refusal}")).unwrap_or_default()
    }

    /// The error of the last operation about a disk that failed, where the cloud tells of one.
    pub fn failure_of(&self, disk: &DiskId) -> Option<Refusal> {
        if self.constants.operations == OperationVisibility::None {
            return None;
        }
        let seen = self.pollers.operations.look(&OperationKey::Of(disk.clone())).unwrap_or_default();
        seen.into_iter().find_map(|operation| match operation.state {
            OperationState::Failed(refusal) => Some(*refusal),
            OperationState::Running | OperationState::Done => None,
        })
    }
}

/// Whether a description has what an operation does to a disk while it runs.
fn shows_operation(disk: &Disk) -> bool {
    let moves = |attachment: &Attachment| !matches!(attachment.state, AttachmentState::Attached | AttachmentState::Detached);
    matches!(disk.state, DiskState::Creating | DiskState::Deleting) || disk.attachments.iter().any(moves)
}

fn is_in_the_way(operation: &Operation) -> bool {
    operation.state == OperationState::Running && operation.changes != OperationChange::Other
}

fn words(operation: &Operation) -> String {
    let place = match &operation.changes {
        OperationChange::Attachment(instance) => format!(" on node {instance}"),
        OperationChange::Existence | OperationChange::Other => String::new(),
    };
    format!("operation {} ({}{place})", operation.id.0, operation.action)
}

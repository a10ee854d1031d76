//! Requests that a cloud has accepted and works on: operations with an end, and an error, of their own.

use super::ids::{DiskId, OperationId};
use super::refusal::{CloudErrorKind, Refusal};
use crate::volume::NodeId;

/// What an accepted request is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted<T> {
    pub result: T,
    /// What the cloud still works on: whether the request succeeds, only the end of this says. `None` where that shows in the description of
    /// what was asked about, or all is done.
    pub operation: Option<OperationId>,
}

impl<T> Accepted<T> {
    /// Without an operation.
    pub fn done(result: T) -> Accepted<T> {
        Accepted { result, operation: None }
    }
}

/// An operation about disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub id: OperationId,
    pub disks: Vec<DiskId>,
    pub changes: OperationChange,
    /// The request that began it: `attachDisk`.
    pub action: String,
    pub state: OperationState,
}

/// What an operation changes of its disks, as far as others must wait for its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationChange {
    /// It creates or deletes them; also what the cloud does not know of one.
    Existence,
    /// It attaches them to this machine, or detaches them.
    Attachment(NodeId),
    /// Neither, such as a snapshot, a tag or the size: nothing waits for it but its own request.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationState {
    Running,
    Done,
    /// With the operation's own error. One that was cancelled, or ended without a code, has [`Refusal::maybe_done`].
    Failed(Box<Refusal>),
}

/// Which operations are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhichOperations {
    /// At most [`super::Batches::ids`]; those that the cloud does not know any more are missing.
    Ids(Vec<OperationId>),
    /// About one of these disks: all that run, no matter who began them, and the last one that failed. At most [`super::Batches::ids`].
    Of(Vec<DiskId>),
}

/// An operation whose end is not known.
pub(super) fn still_running(action: &'static str, operation: &OperationId, poll: Option<&Refusal>) -> Refusal {
    let poll = poll.map(|refusal| format!(", and the last look at it failed: {refusal}")).unwrap_or_default();
    Refusal {
        because: CloudErrorKind::Running,
        action,
        code: "operation".to_owned(),
        message: format!("operation {} has not ended{poll}; retry", operation.0),
        request_id: None,
        maybe_done: true,
        retry_after: None,
    }
}

//! What a refusal means to the CO. The one place where that is chosen.
//!
//! Each error keeps the cloud's own code, words and request id.

use std::time::Duration;

use crate::volume::{BackendName, Error, NodeId, Rollback};

use super::api::{Attachment, AttachmentState, CloudErrorKind, DiskId, Refusal};

/// A request that changes something was refused: it is over, and nothing was done, unless the refusal says that it may have been.
pub(super) fn refused(backend: &BackendName, step: &'static str, object: &str, refusal: Refusal) -> Error {
    if refusal.maybe_done && refusal.because != CloudErrorKind::Running {
        return Error::failed(step, object, refusal);
    }
    let reason = refusal.to_string();
    let (backend, object) = (backend.to_string(), object.to_owned());
    match refusal.because {
        CloudErrorKind::NotFound => Error::NotFound { kind: "the cloud's resource for", id: format!("{object} ({reason})") },
        CloudErrorKind::NoInstance => Error::NotFound { kind: "the node of", id: format!("{object} ({reason})") },
        CloudErrorKind::InUse => Error::InUse { object, by: reason },
        CloudErrorKind::InstanceFull => Error::NodeFull { node: object, reason },
        CloudErrorKind::OtherParameters | CloudErrorKind::TokenSpent | CloudErrorKind::Exists => {
            Error::Conflict { object, existing: reason, wanted: "what this call says".to_owned() }
        }
        // Not over: the same request succeeds later. UNAVAILABLE keeps the resizer asking.
        CloudErrorKind::TooSoon | CloudErrorKind::Throttled => Error::Throttled { backend, reason },
        CloudErrorKind::Quota => Error::NoCapacity { place: "the account's quota".to_owned(), reason },
        CloudErrorKind::NoCapacity => Error::NoCapacity { place: "the cloud".to_owned(), reason },
        CloudErrorKind::Invalid => Error::invalid("parameters", reason),
        CloudErrorKind::Denied | CloudErrorKind::Key => Error::Denied { object, reason },
        CloudErrorKind::Running => Error::InProgress { object, reason },
        CloudErrorKind::Unavailable => Error::BackendUnavailable { backend, reason },
        CloudErrorKind::NotAttached | CloudErrorKind::NameTaken | CloudErrorKind::Other => {
            Error::failed(step, object, refusal).rolled_back()
        }
    }
}

/// A question was refused. Nothing can be said of what there is, so that no such error is final, whatever its reason: an earlier
/// call may have left something.
pub(super) fn unknown(backend: &BackendName, object: &str, refusal: &Refusal) -> Error {
    let backend = backend.to_string();
    match refusal.because {
        CloudErrorKind::Throttled | CloudErrorKind::TooSoon => Error::Throttled { backend, reason: refusal.to_string() },
        CloudErrorKind::NotFound
        | CloudErrorKind::NoInstance
        | CloudErrorKind::NotAttached
        | CloudErrorKind::InUse
        | CloudErrorKind::NameTaken
        | CloudErrorKind::InstanceFull
        | CloudErrorKind::OtherParameters
        | CloudErrorKind::TokenSpent
        | CloudErrorKind::Exists
        | CloudErrorKind::Quota
        | CloudErrorKind::NoCapacity
        | CloudErrorKind::Invalid
        | CloudErrorKind::Denied
        | CloudErrorKind::Key
        | CloudErrorKind::Running
        | CloudErrorKind::Unavailable
        | CloudErrorKind::Other => Error::BackendUnavailable { backend, reason: format!("{object}: {refusal}") },
    }
}

/// The same error, for a second caller whose request was part of the same one.
pub(super) fn again(error: &Error) -> Error {
    match error {
        Error::Invalid { field, reason } => Error::Invalid { field, reason: reason.clone() },
        Error::OutOfRange { field, reason } => Error::OutOfRange { field, reason: reason.clone() },
        Error::NotFound { kind, id } => Error::NotFound { kind, id: id.clone() },
        Error::InUse { object, by } => Error::InUse { object: object.clone(), by: by.clone() },
        Error::NoCapacity { place, reason } => Error::NoCapacity { place: place.clone(), reason: reason.clone() },
        Error::InProgress { object, reason } => Error::InProgress { object: object.clone(), reason: reason.clone() },
        Error::BackendUnavailable { backend, reason } => {
            Error::BackendUnavailable { backend: backend.clone(), reason: reason.clone() }
        }
        Error::Throttled { backend, reason } => Error::Throttled { backend: backend.clone(), reason: reason.clone() },
        Error::Denied { object, reason } => Error::Denied { object: object.clone(), reason: reason.clone() },
        Error::Unsupported { what, reason } => Error::Unsupported { what: what.clone(), reason: reason.clone() },
        Error::Failed { step, object, source, rollback: Rollback::Verified } => {
            Error::failed(step, object.clone(), source.to_string()).rolled_back()
        }
        other => Error::failed("change disk", "with another call", other.to_string()),
    }
}

/// What is wrong, and what to do.
pub(super) fn stuck(disk: &DiskId, node: &NodeId, place: &Attachment, since: Duration) -> String {
    let minutes = since.as_secs() / 60;
    let device = &place.device;
    match place.state {
        AttachmentState::Attaching => format!(
            "disk {disk} has been attaching to node {node} as {device} for {minutes} minutes: the machine does not take the name; \
             delete the pod, so that it is detached, and the next attachment has another name; if that does not help, stop and start \
             the machine"
        ),
        AttachmentState::Busy => format!(
            "disk {disk} does not leave node {node}: the machine still uses {device}; unmount what is mounted of it there, or stop the \
             machine"
        ),
        AttachmentState::Detaching | AttachmentState::Attached | AttachmentState::Detached => format!(
            "disk {disk} has been detaching from node {node} for {minutes} minutes: the machine does not let go of {device}; unmount \
             what is mounted of it there, or stop the machine; forcing it loses what is not written yet"
        ),
    }
}

//! What can go wrong, in the terms of the CSI state machine.
//!
//! `rpc/status.rs` maps each variant to one gRPC code. What matters most is whether the code is *final*: the
//! sidecars and the kubelet take some codes as "it may still be running" and keep the undo pending, all others as
//! "it is over, nothing is left". So an unverified failure is never final: see [`Rollback`].

use std::error::Error as StdError;
use std::time::Duration;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is known of the undoing of a failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rollback {
    /// All is undone, and that was seen: a final code may be given.
    Verified,
    /// It may have left something behind. The CO must keep trying.
    Unknown,
    /// What it left behind. The CO must keep trying.
    Incomplete(String),
}

/// A failure of an operation. Every variant names its object, and the remedy where there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request itself is wrong.
    #[error("{field}: {reason}")]
    Invalid { field: &'static str, reason: String },

    /// A size that cannot be, or a token or offset outside what there is.
    #[error("{field}: {reason}")]
    OutOfRange { field: &'static str, reason: String },

    /// A volume, snapshot, group or node that does not exist. Never "not visible yet".
    #[error("{kind} {id} does not exist")]
    NotFound { kind: &'static str, id: String },

    /// The name is taken by something else.
    #[error("{object} exists with {existing}, but {wanted} was asked for")]
    Conflict { object: String, existing: String, wanted: String },

    /// It is in use in a way that forbids this.
    #[error("{object} is in use: {by}")]
    InUse { object: String, by: String },

    /// It could not be released yet, since others use it. The CO must keep trying.
    #[error("release {object}: {by}; end what uses it, then retry")]
    StillInUse { object: String, by: String },

    /// The call belongs on another node.
    #[error("{object} is not on this node ({reason})")]
    WrongNode { object: String, reason: String },

    /// Publish, expand or statistics without a valid stage.
    #[error("volume {volume} is not staged here: {reason}")]
    NotStaged { volume: String, reason: String },

    /// The node has no room for a further volume.
    #[error("node {node} is full: {reason}")]
    NodeFull { node: String, reason: String },

    /// The storage has no room.
    #[error("{place} has no room: {reason}")]
    NoCapacity { place: String, reason: String },

    /// Another operation on the same object runs.
    #[error("{object} is busy: {operation} has been at \"{step}\" for {}; try again later", humantime::format_duration(Duration::from_secs(since.as_secs())))]
    Busy { object: String, operation: &'static str, step: String, since: Duration },

    /// A list token that is no longer valid, or never was.
    #[error("starting_token {token:?} is not one of ours; list again from the start")]
    InvalidPageToken { token: String },

    /// Our deadline passed, work continues; or a device is not visible yet.
    #[error("{object}: {reason}; it is still in progress, retry")]
    InProgress { object: String, reason: String },

    /// The storage system cannot be reached.
    #[error("backend {backend} cannot be reached: {reason}")]
    BackendUnavailable { backend: String, reason: String },

    /// What is mounted is no longer there on the server (ESTALE): it must be mounted again.
    #[error("{object} is stale: {reason}")]
    Stale { object: String, reason: String },

    /// The storage system asks us to slow down.
    #[error("backend {backend} asks us to slow down: {reason}")]
    Throttled { backend: String, reason: String },

    /// The storage system refuses: wrong or missing credentials.
    #[error("{object}: access denied: {reason}")]
    Denied { object: String, reason: String },

    /// This backend or this combination cannot do it.
    #[error("{what} is not supported: {reason}")]
    Unsupported { what: String, reason: String },

    /// A device holds something that we did not expect; it is left as it is.
    #[error("{device}: {reason}")]
    Unverified { device: String, reason: String },

    /// A step failed.
    #[error("{step} {object}: {}{}", chain(&**source), rollback_text(rollback))]
    Failed {
        /// A verb, and what else stands before the object: `mount share`, `grow the mounted ext4 on`.
        step: &'static str,
        object: String,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
        rollback: Rollback,
    },
}

impl Error {
    /// INVALID_ARGUMENT for `field`.
    pub fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Error::Invalid { field, reason: reason.into() }
    }

    /// A failed step of which it is not (yet) known what it left behind.
    pub fn failed(step: &'static str, object: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::Failed { step, object: object.into(), source: source.into(), rollback: Rollback::Unknown }
    }

    /// The same failure, once its rollback was seen to be complete. What a step further in said that it leaves stays:
    /// only that step can know better.
    #[must_use]
    pub fn rolled_back(self) -> Self {
        match self {
            Error::Failed { step, object, source, rollback: Rollback::Unknown } => {
                Error::Failed { step, object, source, rollback: Rollback::Verified }
            }
            other => other,
        }
    }

    /// Whether the same call may succeed later without anybody's doing, so that it is repeated.
    pub fn may_pass(&self) -> bool {
        matches!(self, Error::InProgress { .. } | Error::BackendUnavailable { .. } | Error::Throttled { .. } | Error::Busy { .. })
    }

    /// The same failure, with what is known to be left. An error of a final kind becomes a `Failed` that is not
    /// final: what is left behind must be reported.
    #[must_use]
    pub fn leaving(self, what: impl Into<String>) -> Self {
        let rollback = Rollback::Incomplete(what.into());
        match self {
            Error::Failed { step, object, source, .. } => Error::Failed { step, object, source, rollback },
            other => Error::Failed { step: "roll back", object: "after a failure".to_owned(), source: Box::new(other), rollback },
        }
    }
}

/// An error with all that caused it, outermost first.
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

fn rollback_text(rollback: &Rollback) -> String {
    match rollback {
        Rollback::Verified => " (rolled back)".to_owned(),
        Rollback::Unknown => " (may have left something behind; repeat the call)".to_owned(),
        Rollback::Incomplete(what) => format!(" (may have left something behind: {what}; repeat the call)"),
    }
}

//! Why a cloud did not do what it was asked for.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::os;

/// What a cloud answers.
pub type Answer<T> = Result<T, Refusal>;

/// Why a cloud did not do it, in words that all clouds share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudErrorKind {
    /// The disk, snapshot or machine does not exist; which is what the request named first.
    NotFound,
    /// The machine that was named does not exist, or is terminated.
    NoInstance,
    /// The disk is not attached there.
    NotAttached,
    /// It is in a state in which this cannot be: attached already, or still attached.
    InUse,
    /// The device name is taken on that machine.
    NameTaken,
    /// The machine has no room for a further disk.
    InstanceFull,
    /// The token belongs to a request with other parameters.
    OtherParameters,
    /// What the token made is deleted, says the cloud.
    TokenSpent,
    /// A resource with the chosen name exists; whether it is what was asked for, only a look says.
    Exists,
    /// A further change must wait (EC2: until the last is done and six hours have passed).
    TooSoon,
    /// An account's quota is used up.
    Quota,
    /// The cloud has no room left.
    NoCapacity,
    /// Parameters that cannot be, or not together.
    Invalid,
    /// Wrong or missing credentials, or no right to do this.
    Denied,
    /// The key is refused, disabled or not there.
    Key,
    /// It was accepted, and its operation has not ended.
    Running,
    /// Too many requests, also after waiting as long as could be.
    Throttled,
    /// No answer, or none that can be read, or the cloud's own failure.
    Unavailable,
    /// Anything else that it says.
    Other,
}

/// A refusal, with the cloud's own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{action}: {code}: {message}{}", request_text(request_id.as_deref()))]
pub struct Refusal {
    pub because: CloudErrorKind,
    /// The request: `CreateVolume`.
    pub action: &'static str,
    /// The cloud's own: `InvalidVolume.NotFound`; for what never came to be an answer, what happened: `timeout`.
    pub code: String,
    /// Without secrets.
    pub message: String,
    pub request_id: Option<String>,
    /// It may have been done all the same: the connection was cut, the answer was lost, the cloud failed midway.
    pub maybe_done: bool,
    /// How long to wait before asking again, where the cloud or our own limiter says.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// Whether it is about a disk as it is, not about the account or the cloud: of several disks of a request others would be accepted.
    pub(super) fn concerns_one(&self) -> bool {
        !self.maybe_done
            && matches!(
                self.because,
                CloudErrorKind::NotFound
                    | CloudErrorKind::NotAttached
                    | CloudErrorKind::InUse
                    | CloudErrorKind::NameTaken
                    | CloudErrorKind::InstanceFull
                    | CloudErrorKind::Invalid
                    | CloudErrorKind::Other
            )
    }

    /// The same, where it does not say that what was asked for came to nothing: that of a look after the request itself.
    #[must_use]
    pub fn perhaps(self) -> Refusal {
        Refusal { maybe_done: true, ..self }
    }

    /// Whether the request is to be sent again, where its repeat is harmless: it may have been done, and nothing of it is known to run.
    pub(super) fn may_be_sent_again(&self) -> bool {
        self.maybe_done && self.because != CloudErrorKind::Running
    }
}

/// A refusal of our own, for what is not sent.
pub fn refusal(because: CloudErrorKind, action: &'static str, code: &str, message: String) -> Refusal {
    Refusal { because, action, code: code.to_owned(), message, request_id: None, maybe_done: false, retry_after: None }
}

/// A request that cannot be, and is not sent.
pub fn invalid(action: &'static str, code: &str, message: String) -> Refusal {
    refusal(CloudErrorKind::Invalid, action, code, message)
}

/// What a policy drafted.
///
/// # Errors
/// `Invalid` where it is not of this cloud.
pub fn read_settings<T: DeserializeOwned>(action: &'static str, settings: &Value) -> Answer<T> {
    serde_json::from_value(settings.clone()).map_err(|error| invalid(action, "settings", error.to_string()))
}

/// A step that failed before its request was sent.
impl From<os::Error> for Refusal {
    fn from(error: os::Error) -> Refusal {
        Refusal {
            because: CloudErrorKind::Unavailable,
            action: "step",
            code: "failed".to_owned(),
            message: error.to_string(),
            request_id: None,
            maybe_done: false,
            retry_after: None,
        }
    }
}

fn request_text(id: Option<&str>) -> String {
    id.map(|id| format!(" (request {id})")).unwrap_or_default()
}

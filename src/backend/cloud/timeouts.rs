//! How long calls wait.

use std::time::Duration;

/// How long a request is tried for: after this time no attempt begins. Less than [`WAIT`] for the same reason.
pub(super) const REQUEST: Duration = Duration::from_secs(40);

/// How long a call waits for a disk to become what it should, before it says that this continues. Less than the minute that sidecars give a
/// call as they are usually deployed, so that they hear what it waits for.
pub(super) const WAIT: Duration = Duration::from_secs(45);

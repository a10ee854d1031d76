//! How long calls wait.

use std::time::Duration;

/// How long a call waits for a disk to become what it should, before it says that this continues. Less than the minute that sidecars give a
/// call as they are usually deployed, so that they hear what it waits for.
pub(super) const WAIT: Duration = Duration::from_secs(45);
/// How long something that must be there is waited for, until it is shown.
pub(super) const SHOWN: Duration = Duration::from_secs(15);

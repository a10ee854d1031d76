//! Lists that were fetched, for the pages after the first.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::api::{CloudSnapshot, Disk};

/// What was fetched last.
#[derive(Debug, Default)]
pub(super) struct Lists {
    pub disks: Kept<Disk>,
    pub snapshots: Kept<CloudSnapshot>,
}

/// When it was fetched, and what.
pub(super) type Kept<T> = Mutex<Option<(Duration, Arc<Vec<T>>)>>;

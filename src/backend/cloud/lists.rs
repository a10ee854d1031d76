//! Lists that were fetched, for the pages after the first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::api::{CloudSnapshot, Disk, DiskId};
use super::packed::Packed;

/// What was fetched last.
#[derive(Debug, Default)]
pub(super) struct Lists {
    pub disks: Kept<Disk>,
    pub snapshots: Kept<CloudSnapshot>,
    /// What the cloud finds wrong with disks of the list.
    pub impaired: Mutex<Option<(Duration, Arc<Impaired>)>>,
}

/// What the cloud finds wrong with disks, in its words.
pub(super) type Impaired = BTreeMap<DiskId, String>;

/// When it was fetched, and what.
pub(super) type Kept<T> = Mutex<Option<(Duration, Arc<Packed<T>>)>>;

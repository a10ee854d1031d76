//! Keyed read/write try-locks: the second caller gets an error that names the first, and never waits.
//!
//! A guard is taken inside the task that does the work and lives as long as the work (see `task`), not as long as the
//! caller's patience.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crate::os::step::{self, Progress};
use crate::volume::{Error, GroupId, Result, SnapshotId, VolumeId};

use super::sync::Mutex;

/// What can be locked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Volume(VolumeId),
    Snapshot(SnapshotId),
    Group(GroupId),
    /// A target path of NodePublish.
    Target(PathBuf),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Volume(id) => write!(f, "volume {id}"),
            Key::Snapshot(id) => write!(f, "snapshot {id}"),
            Key::Group(id) => write!(f, "group snapshot {id}"),
            Key::Target(path) => write!(f, "target {}", path.display()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockMode {
    Exclusive,
    Shared,
}

#[derive(Debug)]
struct Holder {
    operation: &'static str,
    since: Instant,
    progress: Arc<Progress>,
}

#[derive(Debug)]
struct Entry {
    way: LockMode,
    /// Oldest first, never empty; one where it is exclusive.
    holders: Vec<Arc<Holder>>,
}

/// All that is locked now. An entry exists only while it is held, so this costs nothing when idle.
#[derive(Clone, Debug, Default)]
pub struct Locks {
    held: Arc<Mutex<HashMap<Key, Entry>>>,
}

/// Holds until dropped.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once protects nothing"]
pub struct Guard {
    locks: Locks,
    key: Key,
    holder: Arc<Holder>,
}

/// An operation that runs now.
#[derive(Clone, Debug)]
pub struct Running {
    pub object: String,
    pub operation: &'static str,
    pub step: String,
    pub since: std::time::Duration,
}

impl Locks {
    /// For `operation` alone.
    ///
    /// # Errors
    /// `Busy`, with what the holder does and since when.
    pub fn exclusive(&self, key: Key, operation: &'static str) -> Result<Guard> {
        self.take(key, operation, LockMode::Exclusive)
    }

    /// Together with others that share it.
    ///
    /// # Errors
    /// `Busy` while someone holds it alone.
    pub fn shared(&self, key: Key, operation: &'static str) -> Result<Guard> {
        self.take(key, operation, LockMode::Shared)
    }

    /// What runs now, oldest first.
    pub fn running(&self) -> Vec<Running> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running: Vec<Running> = held
            .iter()
            .flat_map(|(key, entry)| entry.holders.iter().map(move |holder| (key, holder)))
            .map(|(key, holder)| Running {
                object: key.to_string(),
                operation: holder.operation,
                step: holder.progress.now().0,
                since: holder.since.elapsed(),
            })
            .collect();
        running.sort_by_key(|entry| std::cmp::Reverse(entry.since));
        running
    }

    fn take(&self, key: Key, operation: &'static str, way: LockMode) -> Result<Guard> {
        let key = key.unrecorded();
        let holder = Arc::new(Holder { operation, since: Instant::now(), progress: step::current() });
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = held.entry(key.clone()).or_insert(Entry { way, holders: Vec::new() });
        if let Some(oldest) = entry.holders.first()
            && (way, entry.way) != (LockMode::Shared, LockMode::Shared)
        {
            return Err(Error::Busy {
                object: key.to_string(),
                operation: oldest.operation,
                step: oldest.progress.now().0,
                since: oldest.since.elapsed(),
            });
        }
        entry.holders.push(holder.clone());
        Ok(Guard { locks: self.clone(), key, holder })
    }
}

impl Key {
    /// CreateVolume does not know yet what the storage will call the volume; all later calls do, and must share its lock.
    fn unrecorded(self) -> Key {
        match self {
            Key::Volume(id) => Key::Volume(id.unrecorded()),
            Key::Snapshot(id) => Key::Snapshot(id.unrecorded()),
            Key::Group(_) | Key::Target(_) => self,
        }
    }

    /// The key of a target path.
    pub fn target(path: &Path) -> Key {
        Key::Target(path.to_owned())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = held.get_mut(&self.key) {
            entry.holders.retain(|holder| !Arc::ptr_eq(holder, &self.holder));
            if entry.holders.is_empty() {
                held.remove(&self.key);
            }
        }
    }
}

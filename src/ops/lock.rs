//! Keyed read/write try-locks: who comes second is told who is at work, and never waits.
//!
//! A guard is taken inside the task that does the work and lives as long as the work (see `task`), not as long as the
//! caller's patience.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::os::step::{self, Progress};
use crate::volume::{Error, GroupId, Result, SnapshotId, VolumeId};

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

#[derive(Debug)]
struct Entry {
    /// How many share it; 0 is one exclusive holder.
    sharers: usize,
    /// Of the holder, or of the first that shares it.
    operation: &'static str,
    since: Instant,
    progress: Arc<Progress>,
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
        self.take(key, operation, 0)
    }

    /// Together with others that share it.
    ///
    /// # Errors
    /// `Busy` while someone holds it alone.
    pub fn shared(&self, key: Key, operation: &'static str) -> Result<Guard> {
        self.take(key, operation, 1)
    }

    /// What runs now, oldest first.
    pub fn running(&self) -> Vec<Running> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running: Vec<Running> = held
            .iter()
            .map(|(key, entry)| Running {
                object: key.to_string(),
                operation: entry.operation,
                step: entry.progress.now().0,
                since: entry.since.elapsed(),
            })
            .collect();
        running.sort_by_key(|entry| std::cmp::Reverse(entry.since));
        running
    }

    fn take(&self, key: Key, operation: &'static str, sharers: usize) -> Result<Guard> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get_mut(&key) {
            None => {
                let entry = Entry { sharers, operation, since: Instant::now(), progress: step::current() };
                held.insert(key.clone(), entry);
            }
            Some(entry) if sharers > 0 && entry.sharers > 0 => entry.sharers += 1,
            Some(entry) => {
                return Err(Error::Busy {
                    object: key.to_string(),
                    operation: entry.operation,
                    step: entry.progress.now().0,
                    since: entry.since.elapsed(),
                });
            }
        }
        Ok(Guard { locks: self.clone(), key })
    }
}

impl Key {
    /// The key of a target path.
    pub fn target(path: &Path) -> Key {
        Key::Target(path.to_owned())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = held.get_mut(&self.key) {
            entry.sharers = entry.sharers.saturating_sub(1);
            if entry.sharers == 0 {
                held.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> Key {
        Key::Volume("image:a".parse().expect("a valid id"))
    }

    #[test]
    fn the_second_is_told_what_the_first_does() {
        let locks = Locks::default();
        let progress = Arc::new(Progress::default());
        let guard = step::with_progress(progress, || {
            let guard = locks.exclusive(volume(), "stage").expect("free");
            step::note("mkfs", &"/dev/loop3");
            guard
        });
        let error = locks.shared(volume(), "publish").expect_err("held");
        assert!(error.to_string().contains("stage has been at \"mkfs /dev/loop3\""), "{error}");
        drop(guard);
        assert!(locks.shared(volume(), "publish").is_ok());
    }

    #[test]
    fn sharers_keep_the_exclusive_out_until_the_last_has_left() {
        let locks = Locks::default();
        let first = locks.shared(volume(), "publish").expect("free");
        let second = locks.shared(volume(), "publish").expect("shared");
        drop(first);
        assert!(locks.exclusive(volume(), "unstage").is_err());
        drop(second);
        assert!(locks.exclusive(volume(), "unstage").is_ok());
        assert!(locks.running().is_empty(), "an idle lock costs nothing");
    }

    #[test]
    fn keys_do_not_disturb_each_other() {
        let locks = Locks::default();
        let _volume = locks.exclusive(volume(), "stage").expect("free");
        let _target = locks.exclusive(Key::target(Path::new("/a")), "publish").expect("another object");
    }
}

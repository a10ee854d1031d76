//! Storage from which one process at a time provisions. [`crate::backend::leadership`] decides which.

use std::time::{Duration, Instant};

use crate::volume::Result;

/// For storage that is asked when others have used up the time; one that is there says within it who has its lock.
const LEAST: Duration = Duration::from_millis(200);

/// Storage that is locked by the process that provisions from it.
pub trait Exclusive {
    /// From now on no lock is taken but by `first_lock`, until `lead`.
    fn stand_by(&self);

    /// Tries to take the first lock, in the order of the names, of the pools or shares that are not away. What gives no answer by `until`
    /// counts as away; what is asked after that has [`patience`], and no more.
    ///
    /// # Errors
    /// What waiting will not repair: a directory that is none of ours, one that this process has in two backends.
    fn first_lock(&self, until: Instant) -> Result<FirstLock>;

    /// Who has got a lock that this process had, of which pool: a file server gives it to another client once the holder was silent for
    /// longer than its lease.
    fn lost(&self, _until: Instant) -> Option<String> {
        None
    }

    /// Locks and opens all that can be; the rest is tried again at each use.
    ///
    /// # Errors
    /// As `first_lock`.
    fn lead(&self) -> Result<()>;
}

/// What became of the first lock.
#[derive(Debug)]
pub enum FirstLock {
    Here,
    /// Who has it, and of what.
    Elsewhere(String),
    /// None can be taken: everything is away, or read-only.
    Away,
}

/// How long one pool or share is waited for, of several that are asked one after the other until an instant.
pub(in crate::backend) fn patience(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(LEAST)
}

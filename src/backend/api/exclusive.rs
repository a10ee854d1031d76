//! Storage from which one process at a time provisions. [`crate::backend::leadership`] decides which.

use crate::volume::Result;

/// Storage that is locked by the process that provisions from it.
pub trait Exclusive {
    /// From now on no lock is taken but by `first_lock`, until `lead`.
    fn stand_by(&self);

    /// Tries to take the first lock, in the order of the names, of the pools or shares that are not away. Returns within seconds,
    /// whatever the storage does.
    ///
    /// # Errors
    /// What waiting will not repair: a directory that is none of ours, one that this process has in two backends.
    fn first_lock(&self) -> Result<FirstLock>;

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

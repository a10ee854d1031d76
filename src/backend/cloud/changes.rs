//! Changes of disks that are gathered and made: what is wanted of one disk within a moment becomes one change.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::volume::{Bytes, Error, Outcome, RawParameters, Result};

use super::api::DiskId;
use super::clock::Clock;
use super::errors::again;

/// How long the first waits for the other.
const WINDOW: Duration = Duration::from_secs(2);

/// What one change is to reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub capacity: Option<Bytes>,
    pub parameters: Option<RawParameters>,
}

/// A change that is gathered, or made.
#[derive(Debug, Default)]
struct Joint {
    wanted: Mutex<Wanted>,
    outcome: OnceLock<Result<Outcome<Bytes>>>,
}

#[derive(Debug)]
pub(super) struct Changes {
    clock: Clock,
    /// `true` while others may still join.
    open: Mutex<HashMap<DiskId, (Arc<Joint>, bool)>>,
    reported: Condvar,
}

impl Changes {
    pub fn new(clock: Clock) -> Changes {
        Changes { clock, open: Mutex::default(), reported: Condvar::new() }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<DiskId, (Arc<Joint>, bool)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `wanted` made by `change`, together with what others want of the same disk meanwhile; one change of it at a time. What is
    /// refused together is tried apart: the other's part may be what cannot be.
    pub fn join(
        &self,
        disk: &DiskId,
        wanted: &Wanted,
        change: impl Fn(&Wanted) -> Result<Outcome<Bytes>>,
    ) -> Result<Outcome<Bytes>> {
        let mut apart = false;
        let mut open = self.open();
        loop {
            if let Some((joint, gathers)) = open.get(disk) {
                let joint = Arc::clone(joint);
                let joined = *gathers && !apart && joint.add(wanted);
                if joined {
                    self.reported.notify_all();
                }
                while joint.outcome.get().is_none() {
                    open = self.reported.wait(open).unwrap_or_else(PoisonError::into_inner);
                }
                match joint.outcome.get().filter(|_| joined) {
                    Some(Err(error)) if is_impossible(error) && *joint.wanted() != *wanted => apart = true,
                    Some(outcome) => return outcome.as_ref().map(|outcome| *outcome).map_err(again),
                    None => {}
                }
                continue;
            }
            let joint = Arc::new(Joint { wanted: Mutex::new(wanted.clone()), outcome: OnceLock::new() });
            open.insert(disk.clone(), (Arc::clone(&joint), !apart));
            if !apart {
                let gathered = self.reported.wait_timeout_while(open, self.clock.real(WINDOW), |_| !joint.is_full());
                open = gathered.unwrap_or_else(PoisonError::into_inner).0;
                open.insert(disk.clone(), (Arc::clone(&joint), false));
            }
            drop(open);
            let mut leader = Leader { changes: self, disk, joint: &joint, outcome: None };
            let all = joint.wanted().clone();
            let outcome = change(&all);
            leader.outcome = Some(outcome.as_ref().map(|outcome| *outcome).map_err(again));
            drop(leader);
            match &outcome {
                Err(error) if is_impossible(error) && all != *wanted => apart = true,
                _ => return outcome,
            }
            open = self.open();
        }
    }
}

/// Whether it is what was asked for that cannot be.
fn is_impossible(error: &Error) -> bool {
    matches!(error, Error::Invalid { .. } | Error::OutOfRange { .. } | Error::Unsupported { .. })
}

/// Tells those who joined, however the change ends.
struct Leader<'a> {
    changes: &'a Changes,
    disk: &'a DiskId,
    joint: &'a Joint,
    outcome: Option<Result<Outcome<Bytes>>>,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let ended = || Err(Error::failed("change disk", self.disk.to_string(), "the call that made it has ended"));
        let outcome = self.outcome.take().unwrap_or_else(ended);
        // Both under the lock: who sees an outcome finds the place free.
        let mut open = self.changes.open();
        self.joint.outcome.set(outcome).ok();
        open.remove(self.disk);
        self.changes.reported.notify_all();
    }
}

impl Joint {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it could take this in: parameters of two calls are not mixed.
    fn add(&self, more: &Wanted) -> bool {
        let mut wanted = self.wanted();
        if wanted.parameters.is_some() && more.parameters.is_some() && wanted.parameters != more.parameters {
            return false;
        }
        wanted.capacity = wanted.capacity.max(more.capacity);
        wanted.parameters = wanted.parameters.take().or_else(|| more.parameters.clone());
        true
    }

    fn is_full(&self) -> bool {
        let wanted = self.wanted();
        wanted.capacity.is_some() && wanted.parameters.is_some()
    }
}

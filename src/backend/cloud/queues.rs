//! What waits for one machine, so that those of one moment become one request where a cloud takes several at once.
//!
//! Requests to one machine are sent one after the other, under a lock. Who gets it takes along as many of those who wait as one request
//! has room for; they find their result when it is their turn. Nobody waits for others to come. Who was taken along waits for its result,
//! and has one however the call ends that took it: a request about it may be on its way.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::volume::NodeId;

/// By machine, who waits for it.
type Machines<J, R> = HashMap<NodeId, VecDeque<Arc<Waiting<J, R>>>>;

#[derive(Debug)]
pub(super) struct Queues<J, R> {
    waiting: Mutex<Machines<J, R>>,
}

/// One who waits.
#[derive(Debug)]
pub(super) struct Waiting<J, R> {
    pub job: J,
    result: Mutex<Option<R>>,
    ended: Condvar,
}

/// Those whose requests one call sends.
pub(super) struct TakenAlong<J, R> {
    pub all: Vec<Arc<Waiting<J, R>>>,
    /// The result of those who have none when the call ends: it panicked, and may have sent their request.
    unserved: fn() -> R,
}

impl<J, R> Drop for TakenAlong<J, R> {
    fn drop(&mut self) {
        self.all.iter().for_each(|waiting| waiting.end_unserved(self.unserved));
    }
}

impl<J, R> Default for Queues<J, R> {
    fn default() -> Self {
        Queues { waiting: Mutex::default() }
    }
}

impl<J, R> Queues<J, R> {
    pub fn join(&self, node: &NodeId, job: J) -> Arc<Waiting<J, R>> {
        let mine = Arc::new(Waiting { job, result: Mutex::new(None), ended: Condvar::new() });
        self.waiting().entry(node.clone()).or_default().push_back(Arc::clone(&mine));
        mine
    }

    /// Waits no longer; whether nobody has taken it along.
    pub fn leave(&self, node: &NodeId, mine: &Arc<Waiting<J, R>>) -> bool {
        let mut all = self.waiting();
        let Some(queue) = all.get_mut(node) else { return false };
        let before = queue.len();
        queue.retain(|waiting| !Arc::ptr_eq(waiting, mine));
        let was_there = queue.len() < before;
        if queue.is_empty() {
            all.remove(node);
        }
        was_there
    }

    /// This one and those who wait longest, at most so many; none where another has taken it along.
    pub fn take(&self, node: &NodeId, mine: &Arc<Waiting<J, R>>, most: usize, unserved: fn() -> R) -> TakenAlong<J, R> {
        let mut taken = TakenAlong { all: Vec::new(), unserved };
        if !self.leave(node, mine) {
            return taken;
        }
        let mut all = self.waiting();
        taken.all.push(Arc::clone(mine));
        if let Some(queue) = all.get_mut(node) {
            let further = most.saturating_sub(1).min(queue.len());
            taken.all.extend(queue.drain(..further));
            if queue.is_empty() {
                all.remove(node);
            }
        }
        taken
    }

    fn waiting(&self) -> MutexGuard<'_, Machines<J, R>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J, R> Waiting<J, R> {
    pub fn end(&self, result: R) {
        *self.result() = Some(result);
        self.ended.notify_all();
    }

    fn end_unserved(&self, result: fn() -> R) {
        self.result().get_or_insert_with(result);
        self.ended.notify_all();
    }

    /// Waits until it has ended, once. Only for one who was taken along.
    pub fn wait(&self) -> R {
        let mut result = self.result();
        loop {
            match result.take() {
                Some(result) => return result,
                None => result = self.ended.wait(result).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn result(&self) -> MutexGuard<'_, Option<R>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! What this process remembers of attachments: how it made them, whether a disk was ever attached, and for how long one comes or goes.
//! All of it may be lost: then a node reads a disk fully that was blank, and a stuck attachment is reported later.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::volume::{AccessMode, NodeId};

use super::api::{Attachment, AttachmentState, DiskId};
use super::clock::Clock;
use super::memory::{MOST, insert};

/// How a volume was attached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub mode: AccessMode,
    pub read_only: bool,
    pub since: Duration,
}

/// An attachment of a disk whose tag this process changed to say that it is not blank any more.
#[derive(Debug)]
struct Withdrawn {
    node: NodeId,
    at: Duration,
    /// Nothing was attached before.
    first: bool,
    /// The cloud may have attached it.
    begun: bool,
    /// When the cloud attached it, once that was answered: another attachment is not the first.
    since: Option<Option<SystemTime>>,
    /// What the disk's tag says of its contents since then, which may not be shown yet.
    contents: Option<String>,
}

#[derive(Debug)]
pub(super) struct AttachmentHistory {
    clock: Clock,
    /// After this long a description is taken for true.
    settled: Duration,
    /// Of this process only.
    attaching: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bound: BTreeMap<(DiskId, NodeId), Bound>,
    withdrawn: BTreeMap<DiskId, Withdrawn>,
    /// Since when an attachment is seen to come or go.
    moving: BTreeMap<(DiskId, NodeId), (AttachmentState, Duration)>,
    /// When the answer to a detachment was lost, which may yet be done.
    lost_detaches: BTreeMap<(DiskId, NodeId), Duration>,
    /// As the last list had it, and what was attached and detached since.
    attachments: Option<u64>,
}

impl AttachmentHistory {
    pub fn new(clock: Clock, settled: Duration) -> AttachmentHistory {
        // Seeded anew by the system for each process.
        let attaching = format!("attaching-{:016x}", RandomState::new().build_hasher().finish());
        AttachmentHistory { clock, settled, attaching, state: Mutex::default() }
    }

    /// The disk is gone.
    pub fn forget_disk(&self, gone: &str) {
        let mut state = self.state();
        state.bound.retain(|(disk, _), _| disk.0 != gone);
        state.withdrawn.retain(|disk, _| disk.0 != gone);
    }

    pub fn bind(&self, disk: &DiskId, node: &NodeId, mode: AccessMode, read_only: bool) {
        let now = self.clock.now();
        let mut state = self.state();
        if state.bound.len() >= MOST {
            state.bound.retain(|_, bound| now < bound.since + self.settled);
        }
        state.bound.insert((disk.clone(), node.clone()), Bound { mode, read_only, since: now });
    }

    pub fn bound(&self, disk: &DiskId, node: &NodeId) -> Option<Bound> {
        self.state().bound.get(&(disk.clone(), node.clone())).copied()
    }

    /// The nodes that this process attached it to.
    pub fn bound_to(&self, disk: &DiskId) -> Vec<NodeId> {
        self.state().bound.keys().filter(|(bound, _)| bound == disk).map(|(_, node)| node.clone()).collect()
    }

    pub fn unbind(&self, disk: &DiskId, node: &NodeId) {
        let mut state = self.state();
        let place = (disk.clone(), node.clone());
        state.bound.remove(&place);
        state.moving.remove(&place);
        state.lost_detaches.remove(&place);
    }

    /// What this process puts into a disk's tag before it begins its first attachment.
    pub fn attaching(&self) -> &str {
        &self.attaching
    }

    /// An attachment is about to begin; whether this process has changed the disk's tag before. One that the cloud surely refused does not
    /// count, as long as nobody else has begun one: `untouched` is whether the tag shows that.
    pub fn begins_attachment(&self, disk: &DiskId, node: &NodeId, untouched: bool) -> bool {
        let mut state = self.state();
        let Some(known) = state.withdrawn.get_mut(disk) else { return false };
        known.first &= untouched && !known.begun;
        known.node = node.clone();
        true
    }

    /// The disk's tag was changed: from now on only this process knows whether its next attachment is the `first`.
    pub fn withdrew(&self, disk: &DiskId, node: &NodeId, first: bool, contents: Option<String>) {
        let at = self.clock.now();
        let mut state = self.state();
        if state.withdrawn.len() >= MOST {
            state.withdrawn.retain(|_, known| at < known.at + self.settled);
        }
        state.withdrawn.insert(disk.clone(), Withdrawn { node: node.clone(), at, first, begun: false, since: None, contents });
    }

    /// What this process put into the disk's tag of its contents.
    pub fn contents(&self, disk: &DiskId) -> Option<String> {
        self.state().withdrawn.get(disk)?.contents.clone()
    }

    /// The cloud has attached it, or may have.
    pub fn began_attachment(&self, disk: &DiskId) {
        if let Some(known) = self.state().withdrawn.get_mut(disk) {
            known.begun = true;
        }
    }

    /// It has been attached.
    pub fn is_used(&self, disk: &DiskId) {
        if let Some(known) = self.state().withdrawn.get_mut(disk) {
            known.first = false;
        }
    }

    /// Whether this attachment is the first that the disk ever had. Where the cloud does not say since when it is there, it may be another
    /// one when it is looked at again.
    pub fn is_first_attachment(&self, disk: &DiskId, place: &Attachment) -> bool {
        let mut state = self.state();
        let Some(known) = state.withdrawn.get_mut(disk).filter(|known| known.first && known.begun) else { return false };
        let is_the_same = match known.since {
            None => true,
            Some(since) => since.is_some() && since == place.since,
        };
        known.since = Some(place.since);
        known.first = known.node == place.instance && is_the_same;
        known.first
    }

    /// Hears how an attachment is now; for how long it has been so, where it comes or goes.
    pub fn saw(&self, disk: &DiskId, node: &NodeId, now: AttachmentState) -> Duration {
        let time = self.clock.now();
        let mut state = self.state();
        let place = (disk.clone(), node.clone());
        if matches!(now, AttachmentState::Attached | AttachmentState::Detached) {
            state.moving.remove(&place);
            return Duration::ZERO;
        }
        match state.moving.get(&place) {
            Some((before, since)) if *before == now => time.saturating_sub(*since),
            _ => {
                insert(&mut state.moving, place, (now, time));
                Duration::ZERO
            }
        }
    }

    /// The answer to a detachment was lost.
    pub fn lost_detach(&self, disk: &DiskId, node: &NodeId) {
        let now = self.clock.now();
        insert(&mut self.state().lost_detaches, (disk.clone(), node.clone()), now);
    }

    /// Whether a detachment may yet be done that was asked for before.
    pub fn may_be_detached(&self, disk: &DiskId, node: &NodeId) -> bool {
        let now = self.clock.now();
        let place = (disk.clone(), node.clone());
        self.state().lost_detaches.get(&place).is_some_and(|when| now < *when + self.settled)
    }

    pub fn attachments(&self) -> Option<u64> {
        self.state().attachments
    }

    pub fn set_attachments(&self, count: u64) {
        self.state().attachments = Some(count);
    }

    pub fn count_attachment(&self, change: i64) {
        let mut state = self.state();
        state.attachments = state.attachments.map(|count| count.saturating_add_signed(change));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

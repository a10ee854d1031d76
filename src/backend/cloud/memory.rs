//! What this process remembers of what it did. All of it may be lost: then it takes longer, and is no less right.
//!
//! A cloud's descriptions are *eventually consistent*: a disk that was made, or an attachment, may not be shown for a while, and one that
//! is gone may be shown still (EC2 API reference, "Eventual consistency", which asks callers to try for up to five minutes). So:
//! - what this process made, and is not shown within [`SETTLED`], is waited for, never taken for gone; what it deleted is never
//!   taken for there;
//! - after a request whose answer was lost, an absence is believed only after [`SETTLED`];
//! - for [`STARTUP_GRACE`] after it first acts on an absence (a delete, a detach, a new snapshot), a process looks again until then before it
//!   believes it: the one before it, killed or no longer the leader, may have made the resource a moment ago. A standby controller may
//!   have been up for days by then, so the time is not counted from its start. Afterwards the first look is believed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use crate::volume::{AccessMode, NodeId};

use super::api::{Attachment, AttachmentState, DiskId};
use super::clock::Clock;

/// After this long a description is taken for true.
pub(super) const SETTLED: Duration = Duration::from_secs(300);
/// How long after a process first acts what one before it did is taken not to be shown yet.
pub(super) const STARTUP_GRACE: Duration = Duration::from_secs(15);
/// After this long in one state, an attachment is stuck: what takes seconds has taken minutes.
pub(super) const STUCK: Duration = Duration::from_secs(300);
/// The most of one kind; beyond it, what has settled is forgotten.
const MOST: usize = 16_384;

/// The disk of a volume, or the snapshot of a snapshot.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The cloud's.
    pub id: String,
    /// When this process made it; `None` where it only found it.
    pub made: Option<Duration>,
}

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
}

#[derive(Debug)]
pub(super) struct RecentOperations {
    clock: Clock,
    /// When this process first acted on an absence.
    first: OnceLock<Duration>,
    /// Of this process only.
    attaching: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By what it is for: the disk of a volume by the part of its id behind the colon; a snapshot has `snapshot/` before it, and what is only
    /// the way to a copy `copy/`. So are the others that have text for a key.
    known: BTreeMap<String, Known>,
    /// How many of them this process knows to have come and gone.
    generations: BTreeMap<String, u32>,
    /// When it was deleted, by the cloud's id.
    deleted: BTreeMap<String, Duration>,
    /// Since when it is not known what became of a request.
    unknown_outcomes: BTreeMap<String, Duration>,
    /// When something was first missed, and when last.
    missed: BTreeMap<String, (Duration, Duration)>,
    bound: BTreeMap<(DiskId, NodeId), Bound>,
    withdrawn: BTreeMap<DiskId, Withdrawn>,
    /// Since when an attachment is seen to come or go.
    moving: BTreeMap<(DiskId, NodeId), (AttachmentState, Duration)>,
    /// As the last list had it, and what was attached and detached since.
    attachments: Option<u64>,
    /// Copies whose temporary snapshot is known to be gone.
    tidy: BTreeSet<String>,
    /// Direct copies that were made while their source was written to, and are to be deleted.
    torn: BTreeSet<String>,
}

impl RecentOperations {
    pub fn new(clock: Clock) -> RecentOperations {
        // Seeded anew by the system for each process.
        let attaching = format!("attaching-{:016x}", RandomState::new().build_hasher().finish());
        RecentOperations { clock, first: OnceLock::new(), attaching, state: Mutex::default() }
    }

    /// Whether a process before this one may have done something a moment ago: the moment when not any more. Asked by a call that is
    /// about to act on an absence; the first such call begins the time.
    pub fn young_until(&self) -> Option<Duration> {
        let now = self.clock.now();
        let until = *self.first.get_or_init(|| now) + STARTUP_GRACE;
        (now < until).then_some(until)
    }

    /// As of a process that has acted since its clock began.
    #[cfg(test)]
    pub fn has_acted(&self) {
        self.first.set(Duration::ZERO).ok();
    }

    pub fn known(&self, what: &str) -> Option<Known> {
        self.state().known.get(what).cloned()
    }

    pub fn found(&self, what: &str, id: &str) {
        let mut state = self.state();
        if state.known.get(what).is_none_or(|known| known.id != id) {
            state.know(what, Known { id: id.to_owned(), made: None }, self.clock.now());
        }
    }

    /// This process made it, or had the cloud's word for it.
    pub fn made(&self, what: &str, id: &str) {
        let now = self.clock.now();
        let mut state = self.state();
        if state.known.get(what).is_none_or(|known| known.id != id || known.made.is_none()) {
            state.know(what, Known { id: id.to_owned(), made: Some(now) }, now);
        }
        state.unknown_outcomes.remove(what);
        state.missed.remove(&format!("other/{what}"));
    }

    /// Whether it may well be there without being shown.
    pub fn may_be_hidden(&self, known: &Known) -> bool {
        known.made.is_some_and(|made| self.clock.now() < made + SETTLED)
    }

    /// It is gone: it is never taken for there again, and the next of its kind has another token.
    pub fn gone(&self, what: &str, id: &str) {
        let mut state = self.state();
        // A copy with the same tags, or an earlier one of the same name, says nothing of the one that is known.
        let is_another = state.known.get(what).is_some_and(|known| known.id != id);
        if !is_another {
            state.known.remove(what);
            state.unknown_outcomes.remove(what);
            state.tidy.remove(what);
            state.torn.remove(what);
        }
        state.bound.retain(|(disk, _), _| disk.0 != id);
        state.withdrawn.retain(|disk, _| disk.0 != id);
        let now = self.clock.now();
        if state.deleted.len() >= MOST {
            state.deleted.retain(|_, when| now < *when + SETTLED);
        }
        if state.deleted.insert(id.to_owned(), now).is_none() && !is_another {
            let generation = state.generations.get(what).copied().unwrap_or_default();
            insert(&mut state.generations, what.to_owned(), generation + 1);
        }
    }

    /// Whether this process saw it go: a disk or a snapshot.
    pub fn is_gone(&self, id: &str) -> bool {
        self.state().deleted.contains_key(id)
    }

    pub fn generation(&self, what: &str) -> u32 {
        self.state().generations.get(what).copied().unwrap_or_default()
    }

    pub fn set_generation(&self, what: &str, generation: u32) {
        insert(&mut self.state().generations, what.to_owned(), generation);
    }

    /// The answer to a request about it was lost.
    pub fn note_unknown_outcome(&self, what: &str) {
        let now = self.clock.now();
        let mut state = self.state();
        state.unknown_outcomes.retain(|_, since| *since + SETTLED > now);
        state.unknown_outcomes.insert(what.to_owned(), now);
    }

    /// Until when its absence proves nothing.
    pub fn outcome_unknown_until(&self, what: &str) -> Option<Duration> {
        let now = self.clock.now();
        self.state().unknown_outcomes.get(what).map(|since| *since + SETTLED).filter(|until| *until > now)
    }

    /// For how long it has been missed: anyone who misses it says so each time.
    pub fn missing_for(&self, what: &str) -> Duration {
        let now = self.clock.now();
        let mut state = self.state();
        // One that nobody missed for as long was another's matter.
        let first = match state.missed.get(what) {
            Some((first, last)) if *last + SETTLED > now => *first,
            _ => now,
        };
        insert(&mut state.missed, what.to_owned(), (first, now));
        now.saturating_sub(first)
    }

    pub fn bind(&self, disk: &DiskId, node: &NodeId, mode: AccessMode, read_only: bool) {
        let now = self.clock.now();
        let mut state = self.state();
        if state.bound.len() >= MOST {
            state.bound.retain(|_, bound| now < bound.since + SETTLED);
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
    }

    /// Whether the tags of a disk that are shown are true as long as this process has not changed them: it made the disk, or has
    /// acted for so long that what a process before it changed is shown.
    pub fn knows_tags_of(&self, what: &str, disk: &DiskId) -> bool {
        let made = self.known(what).is_some_and(|known| known.id == disk.0 && known.made.is_some());
        let now = self.clock.now();
        made || now >= *self.first.get_or_init(|| now) + SETTLED
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
    pub fn withdrew(&self, disk: &DiskId, node: &NodeId, first: bool) {
        let at = self.clock.now();
        let mut state = self.state();
        if state.withdrawn.len() >= MOST {
            state.withdrawn.retain(|_, known| at < known.at + SETTLED);
        }
        state.withdrawn.insert(disk.clone(), Withdrawn { node: node.clone(), at, first, begun: false, since: None });
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

    /// Whether this attachment is the first that the disk ever had.
    pub fn is_first_attachment(&self, disk: &DiskId, place: &Attachment) -> bool {
        let mut state = self.state();
        let Some(known) = state.withdrawn.get_mut(disk).filter(|known| known.first && known.begun) else { return false };
        known.first = known.node == place.instance && *known.since.get_or_insert(place.since) == place.since;
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

    /// Whether no temporary snapshot of a copy is left.
    pub fn is_tidy(&self, volume: &str) -> bool {
        self.state().tidy.contains(volume)
    }

    pub fn untidy(&self, volume: &str) {
        self.state().tidy.remove(volume);
    }

    pub fn tidied(&self, volume: &str) {
        let mut state = self.state();
        state.tidy.insert(volume.to_owned());
        if state.tidy.len() > MOST {
            state.tidy.pop_first();
        }
    }

    /// A direct copy, which exists or may exist, is not of one instant.
    pub fn tore(&self, volume: &str) {
        self.state().torn.insert(volume.to_owned());
    }

    pub fn is_torn(&self, volume: &str) -> bool {
        self.state().torn.contains(volume)
    }

    /// What was torn is seen not to be there.
    pub fn untorn(&self, volume: &str) {
        self.state().torn.remove(volume);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What has settled is found again by its tag.
    fn know(&mut self, what: &str, known: Known, now: Duration) {
        if self.known.len() >= MOST {
            self.known.retain(|_, known| known.made.is_some_and(|made| now < made + SETTLED));
        }
        self.known.insert(what.to_owned(), known);
    }
}

/// For what may be forgotten at any time.
fn insert<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: V) {
    if map.len() >= MOST && !map.contains_key(&key) {
        map.pop_first();
    }
    map.insert(key, value);
}

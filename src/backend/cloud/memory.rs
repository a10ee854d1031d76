//! What this process remembers of what it did. All of it may be lost: then it takes longer, and is no less right.
//!
//! A cloud's descriptions are *eventually consistent*: a disk that was made, or an attachment, may not be shown for a while, and one that
//! is gone may be shown still (EC2 API reference, "Eventual consistency", which asks callers to try for up to five minutes). So:
//! - what this process made, and is not shown within [`Consistency::settled`], is waited for, never taken for gone; what it deleted is never
//!   taken for there;
//! - after a request whose answer was lost, an absence is believed only after [`Consistency::settled`];
//! - for [`Consistency::startup_grace`] after it first acts on an absence (a delete, a detach, a new snapshot), a process looks again until
//!   then before it believes it: the one before it, killed or no longer the leader, may have made the resource a moment ago. A standby
//!   controller may have been up for days by then, so the time is not counted from its start. Afterwards the first look is believed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::api::DiskId;
use super::clock::Clock;
use super::constants::{CloudConstants, Consistency, Idempotency};

/// The most of one kind; beyond it, what has settled is forgotten.
pub(super) const MOST: usize = 16_384;

/// The disk of a volume, or the snapshot of a snapshot.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The cloud's.
    pub id: String,
    /// When this process made it; `None` where it only found it.
    pub made: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct RecentOperations {
    clock: Clock,
    consistency: Consistency,
    /// Whether what was deleted may be made again under the same id.
    reuses_ids: bool,
    /// When this process first acted on an absence.
    first: OnceLock<Duration>,
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
    /// Copies whose temporary snapshot is known to be gone.
    tidy: BTreeSet<String>,
    /// Snapshots, and direct copies, that were made while their source was written to, and are to be deleted.
    torn: BTreeSet<String>,
}

impl RecentOperations {
    pub fn new(clock: Clock, constants: CloudConstants) -> RecentOperations {
        let reuses_ids = [constants.disks, constants.snapshots].contains(&Idempotency::UniqueName);
        let consistency = constants.consistency;
        RecentOperations { clock, consistency, reuses_ids, first: OnceLock::new(), state: Mutex::default() }
    }

    /// Whether a process before this one may have done something a moment ago: the moment when not any more. Asked by a call that is
    /// about to act on an absence; the first such call begins the time.
    pub fn young_until(&self) -> Option<Duration> {
        let now = self.clock.now();
        let until = *self.first.get_or_init(|| now) + self.consistency.startup_grace;
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
            state.know(what, Known { id: id.to_owned(), made: None }, self.clock.now(), self.consistency.settled);
        }
    }

    /// This process made it, or had the cloud's word for it.
    pub fn made(&self, what: &str, id: &str) {
        let (now, settled) = (self.clock.now(), self.consistency.settled);
        let mut state = self.state();
        if state.known.get(what).is_none_or(|known| known.id != id || known.made.is_none()) {
            state.know(what, Known { id: id.to_owned(), made: Some(now) }, now, settled);
        }
        if self.reuses_ids {
            state.deleted.remove(id);
        }
        state.unknown_outcomes.remove(what);
        state.missed.remove(&format!("other/{what}"));
    }

    /// Whether it may well be there without being shown.
    pub fn may_be_hidden(&self, known: &Known) -> bool {
        known.made.is_some_and(|made| self.clock.now() < made + self.consistency.settled)
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
        let now = self.clock.now();
        if state.deleted.len() >= MOST {
            state.deleted.retain(|_, when| now < *when + self.consistency.settled);
        }
        if state.deleted.insert(id.to_owned(), now).is_none() && !is_another {
            let generation = state.generations.get(what).copied().unwrap_or_default();
            insert(&mut state.generations, what.to_owned(), generation + 1);
        }
    }

    /// Whether this process saw it go, and it cannot be there again: a disk or a snapshot.
    pub fn is_gone(&self, id: &str) -> bool {
        let now = self.clock.now();
        // Once descriptions are true again, what is shown under this id is another that was made since.
        let counts = |when: &Duration| !self.reuses_ids || now < *when + self.consistency.settled;
        self.state().deleted.get(id).is_some_and(counts)
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
        state.unknown_outcomes.retain(|_, since| *since + self.consistency.settled > now);
        state.unknown_outcomes.insert(what.to_owned(), now);
    }

    /// Until when its absence proves nothing.
    pub fn outcome_unknown_until(&self, what: &str) -> Option<Duration> {
        let now = self.clock.now();
        self.state().unknown_outcomes.get(what).map(|since| *since + self.consistency.settled).filter(|until| *until > now)
    }

    /// For how long it has been missed: anyone who misses it says so each time.
    pub fn missing_for(&self, what: &str) -> Duration {
        let now = self.clock.now();
        let mut state = self.state();
        // One that nobody missed for as long was another's matter.
        let first = match state.missed.get(what) {
            Some((first, last)) if *last + self.consistency.settled > now => *first,
            _ => now,
        };
        insert(&mut state.missed, what.to_owned(), (first, now));
        now.saturating_sub(first)
    }

    /// Whether the tags of a disk that are shown are true as long as this process has not changed them: it made the disk, or has
    /// acted for so long that what a process before it changed is shown.
    pub fn knows_tags_of(&self, what: &str, disk: &DiskId) -> bool {
        let made = self.known(what).is_some_and(|known| known.id == disk.0 && known.made.is_some());
        let now = self.clock.now();
        made || now >= *self.first.get_or_init(|| now) + self.consistency.settled
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

    /// A snapshot or a direct copy, which exists or may exist, is not of one instant.
    pub fn tore(&self, what: &str) {
        self.state().torn.insert(what.to_owned());
    }

    pub fn is_torn(&self, what: &str) -> bool {
        self.state().torn.contains(what)
    }

    /// What was torn is seen not to be there.
    pub fn untorn(&self, what: &str) {
        self.state().torn.remove(what);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What has settled is found again by its tag.
    fn know(&mut self, what: &str, known: Known, now: Duration, settled: Duration) {
        if self.known.len() >= MOST {
            self.known.retain(|_, known| known.made.is_some_and(|made| now < made + settled));
        }
        self.known.insert(what.to_owned(), known);
    }
}

/// For what may be forgotten at any time.
pub(super) fn insert<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: V) {
    if map.len() >= MOST && !map.contains_key(&key) {
        map.pop_first();
    }
    map.insert(key, value);
}

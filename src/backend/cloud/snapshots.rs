//! Snapshots come and go.
//!
//! EC2 has no token for them: a repeated request makes another. So one is looked for by its tag before it is made, under the lock that
//! the caller holds; after a request whose answer was lost it is waited for; and a process that has just begun waits for what the one
//! before it may have made ([`super::memory`]).

use crate::backend::{Quiesce, SnapshotSpec, Snapshots};
use crate::os::step::step;
use crate::volume::{Error, Outcome, RawParameters, Result, Snapshot, SnapshotId, VolumeId};

use super::find::SHOWN;
use super::frame::Controller;
use super::looks::Key;
use super::tags::SNAPSHOT;
use super::{Because, CloudSnapshot, CloudSnapshotSpec, Refusal, SnapshotState};

/// A snapshot to be, or to be found.
pub(super) struct Taking<'a> {
    /// By which it is remembered.
    pub what: String,
    /// For people.
    pub object: String,
    /// The tag that is its alone.
    pub key: Key,
    pub source: &'a VolumeId,
}

impl Snapshots for Controller {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        self.policy.check_snapshot(raw)
    }

    fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        let found = self.taken(&snapshot_what(id), &snapshot_key(id), &format!("snapshot {id}"))?;
        found.filter(|found| found.state != SnapshotState::Failed).map(|found| self.owner.taken(&found)).transpose()
    }

    fn create_snapshot(&self, spec: &SnapshotSpec, quiesce: &dyn Quiesce) -> Result<Snapshot> {
        let draft = self.policy.draft_snapshot(spec)?;
        let object = format!("snapshot {}", spec.id);
        let taking = Taking { what: snapshot_what(&spec.id), object, key: snapshot_key(&spec.id), source: &spec.source };
        let tags = self.owner.snapshot(spec, &draft.tags);
        let taken = self.take(&taking, tags, draft.settings, quiesce)?;
        self.owner.taken(&taken)
    }

    fn delete_snapshot(&self, id: &SnapshotId) -> Result<Outcome<()>> {
        let object = format!("snapshot {id}");
        let what = snapshot_what(id);
        let changed = self.delete_all_taken(&what, &snapshot_key(id), &object)?;
        Ok(if changed { Outcome::Changed(()) } else { Outcome::Unchanged(()) })
    }

    fn list_snapshots(&self, source: Option<&VolumeId>, after: Option<&SnapshotId>, max: usize) -> Result<Vec<Snapshot>> {
        self.list_taken(source, after, max)
    }
}

impl Controller {
    /// The snapshot, which must be there and ready.
    pub fn completed_snapshot(&self, id: &SnapshotId) -> Result<CloudSnapshot> {
        let object = format!("snapshot {id}");
        let found = self.taken(&snapshot_what(id), &snapshot_key(id), &object)?;
        let found = found.ok_or_else(|| Error::snapshot_not_found(id))?;
        match found.state {
            SnapshotState::Completed => Ok(found),
            SnapshotState::Pending => {
                let reason = format!("the cloud has saved {} % of it ({})", found.progress, found.id);
                Err(Error::Pending { object, reason })
            }
            SnapshotState::Failed => {
                Err(Error::Unproven { device: object, reason: format!("the cloud could not make {}", found.id) })
            }
        }
    }

    /// Finds a snapshot, or takes it while its source is held still.
    pub fn take(
        &self,
        taking: &Taking<'_>,
        tags: super::Tags,
        settings: serde_json::Value,
        quiesce: &dyn Quiesce,
    ) -> Result<CloudSnapshot> {
        let Taking { what, object, key, source } = taking;
        if let Some(found) = self.taken_or_hidden(what, key, object)? {
            if found.state != SnapshotState::Failed {
                return Ok(found);
            }
            tracing::warn!(%object, snapshot = %found.id, "the cloud could not make it; it is deleted, and made again");
            self.delete_taken(what, object, &found)?;
        }
        let disk = self.disk(source)?.ok_or_else(|| Error::volume_not_found(source))?;
        let token = crate::volume::digest::sha256_of([
            self.owner.cluster.as_str(),
            self.owner.backend.as_str(),
            what,
            &self.memory.generation(what).to_string(),
        ]);
        let spec = CloudSnapshotSpec { token, disk: disk.id, tags, settings };
        let held = quiesce.hold(std::slice::from_ref(*source))?;
        let begun = step("create snapshot", object, || self.cloud.create_snapshot(&spec));
        // It is of the instant of its request: nothing need be held while it is saved.
        let kept_still = held.release();
        let taken = match begun {
            Ok(taken) => taken,
            Err(refusal) if refusal.maybe_done => self.find_out(taking, refusal)?,
            Err(refusal) => return Err(self.refused("create snapshot", object, refusal).nothing_left()),
        };
        self.memory.made(what, &taken.id.0);
        match kept_still {
            Ok(()) => Ok(taken),
            Err(broken) => Err(match self.delete_taken(what, object, &taken) {
                Ok(_) => broken.nothing_left(),
                Err(error) => broken.but_left(error.to_string()),
            }),
        }
    }

    /// Whether a request whose answer was lost made one.
    fn find_out(&self, taking: &Taking<'_>, refusal: Refusal) -> Result<CloudSnapshot> {
        self.memory.doubt(&taking.what);
        let until = self.clock.now() + SHOWN;
        let found = self.looks.snapshots.wait(&taking.key, until, |seen| self.choose(&taking.key, seen));
        found.map_err(|_| Error::failed("create snapshot", taking.object.clone(), refusal))
    }

    /// The snapshot with this tag, as it is shown.
    pub fn taken(&self, what: &str, key: &Key, object: &str) -> Result<Option<CloudSnapshot>> {
        let unknown = |refusal: Refusal| super::errors::unknown(&self.owner.backend, object, &refusal);
        let known = self.memory.known(what);
        if let Some(known) = &known {
            let seen = self.looks.snapshots.look(&Key::Id(known.id.clone())).map_err(unknown)?;
            if let Some(found) = self.choose(key, &seen) {
                return Ok(Some(found));
            }
        }
        let seen = self.looks.snapshots.look(key).map_err(unknown)?;
        let found = self.choose(key, &seen);
        match (&found, known) {
            (Some(found), _) => self.memory.found(what, &found.id.0),
            (None, Some(known)) if self.memory.may_be_hidden(&known) => {
                let until = self.clock.now() + SHOWN;
                let shown = self.looks.snapshots.wait(&Key::Id(known.id.clone()), until, |seen| self.choose(key, seen));
                let reason = || format!("{} was made not long ago, and the cloud does not show it yet", known.id);
                return shown.map(Some).map_err(|_| Error::Pending { object: object.to_owned(), reason: reason() });
            }
            (None, _) => {}
        }
        Ok(found)
    }

    /// The same before something hangs on its absence.
    fn taken_or_hidden(&self, what: &str, key: &Key, object: &str) -> Result<Option<CloudSnapshot>> {
        if let Some(found) = self.taken(what, key, object)? {
            return Ok(Some(found));
        }
        let doubted = self.memory.doubted_until(what);
        let until = match doubted {
            Some(_) => Some(self.clock.now() + SHOWN),
            None => self.memory.young_until(),
        };
        let Some(until) = until else { return Ok(None) };
        match self.looks.snapshots.wait(key, until, |seen| self.choose(key, seen)) {
            Ok(found) => {
                self.memory.made(what, &found.id.0);
                Ok(Some(found))
            }
            Err(unfinished) => match (unfinished.refusal, doubted) {
                (Some(refusal), _) => Err(super::errors::unknown(&self.owner.backend, object, &refusal)),
                (None, Some(_)) => Err(Error::Pending {
                    object: object.to_owned(),
                    reason: "the answer to an earlier request was lost, and what it made may yet be shown".to_owned(),
                }),
                (None, None) => Ok(None),
            },
        }
    }

    /// Of several with one tag the oldest that is complete; the others are told, and left alone.
    fn choose(&self, key: &Key, seen: &[CloudSnapshot]) -> Option<CloudSnapshot> {
        let mut ours = self.with_tag(key, seen);
        ours.sort_by_key(|found| (rank(found.state), found.created, found.id.clone()));
        if let [kept, others @ ..] = ours.as_slice()
            && !others.is_empty()
        {
            let others: Vec<&str> = others.iter().map(|other| other.id.0.as_str()).collect();
            tracing::warn!(kept = %kept.id, ?others, "several snapshots carry one tag; delete the others if nobody needs them");
        }
        ours.into_iter().next()
    }

    /// Those of ours that carry this tag.
    fn with_tag(&self, key: &Key, seen: &[CloudSnapshot]) -> Vec<CloudSnapshot> {
        let carries = |found: &CloudSnapshot| match key {
            Key::Tag(tag, value) => found.tags.get(*tag) == Some(value),
            Key::Id(id) => found.id.0 == *id,
        };
        let ours = |found: &&CloudSnapshot| self.owner.owns(&found.tags) && carries(found) && !self.memory.is_gone(&found.id.0);
        seen.iter().filter(ours).cloned().collect()
    }

    /// Deletes all that carry this tag; whether there were any.
    pub fn delete_all_taken(&self, what: &str, key: &Key, object: &str) -> Result<bool> {
        // Also for what is hidden still.
        let Some(first) = self.taken_or_hidden(what, key, object)? else { return Ok(false) };
        let seen = self.looks.snapshots.look(key);
        let seen = seen.map_err(|refusal| super::errors::unknown(&self.owner.backend, object, &refusal))?;
        let mut all = self.with_tag(key, &seen);
        if all.iter().all(|found| found.id != first.id) {
            all.push(first);
        }
        let mut changed = false;
        for found in &all {
            changed |= self.delete_taken(what, object, found)?;
        }
        Ok(changed)
    }

    /// Deletes one; whether it was there.
    pub fn delete_taken(&self, what: &str, object: &str, taken: &CloudSnapshot) -> Result<bool> {
        let mut lost = false;
        let was_there = loop {
            match step("delete snapshot", &object, || self.cloud.delete_snapshot(&taken.id)) {
                Ok(()) => break true,
                Err(refusal) if refusal.because == Because::NotFound => break lost,
                Err(refusal) if refusal.maybe_done && !lost => lost = true,
                Err(refusal) => return Err(self.refused("delete snapshot", object, refusal)),
            }
        };
        self.memory.gone(what, &taken.id.0);
        Ok(was_there)
    }
}

fn rank(state: SnapshotState) -> u8 {
    match state {
        SnapshotState::Completed => 0,
        SnapshotState::Pending => 1,
        SnapshotState::Failed => 2,
    }
}

fn snapshot_what(id: &SnapshotId) -> String {
    format!("snapshot/{}", id.local())
}

fn snapshot_key(id: &SnapshotId) -> Key {
    Key::Tag(SNAPSHOT, id.local().to_owned())
}

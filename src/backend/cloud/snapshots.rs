//! Snapshots come and go.
//!
//! Most clouds have no token for them: a repeated request makes another. So one is looked for before it is made, under the lock that
//! the caller holds; after a request whose answer was lost it is waited for; and a process that has just begun waits for what the one
//! before it may have made ([`super::memory`]). All later calls name the cloud's own id, which is recorded in the snapshot's id: a copy
//! with the same tags (CopySnapshot, AWS Backup, Data Lifecycle Manager) is never taken for it.

use crate::backend::{Quiesce, SnapshotSpec, Snapshots};
use crate::os::step::step;
use crate::volume::{Error, Outcome, RawParameters, Result, Snapshot, SnapshotId, VolumeId};

use super::api::{CloudErrorKind, CloudSnapshot, CloudSnapshotSpec, Refusal, SnapshotState, Tags};
use super::controller::Controller;
use super::pollers::Key;
use super::tags::{self, SNAPSHOT};

/// A snapshot to be, or to be found.
pub(super) struct Taking<'a> {
    /// By which it is remembered.
    pub what: String,
    /// For people.
    pub object: String,
    /// The tag that only it and its copies carry.
    pub key: Key,
    pub source: &'a VolumeId,
}

/// A snapshot to be found.
pub(super) struct Sought<'a> {
    pub what: &'a str,
    pub object: &'a str,
    pub key: &'a Key,
    /// The cloud's own id, where it is recorded: this one or none.
    pub recorded: Option<&'a str>,
}

impl Snapshots for Controller {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        self.policy.check_snapshot(raw)
    }

    fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        let (what, key, object) = (snapshot_what(id), snapshot_tag(id), format!("snapshot {id}"));
        let found = self.taken(&Sought { what: &what, object: &object, key: &key, recorded: id.recorded() })?;
        let is_usable = |found: &CloudSnapshot| found.state.is_shown() && !self.memory.is_torn(&what);
        found.filter(is_usable).map(|found| self.owner.taken(&found)).transpose()
    }

    fn create_snapshot(&self, spec: &SnapshotSpec, quiesce: &dyn Quiesce) -> Result<Snapshot> {
        let draft = self.policy.draft_snapshot(spec)?;
        let object = format!("snapshot {}", spec.id);
        let taking = Taking { what: snapshot_what(&spec.id), object, key: snapshot_tag(&spec.id), source: &spec.source };
        let tags = self.owner.snapshot(spec, &draft.tags);
        let taken = self.take(&taking, tags, draft.settings, quiesce)?;
        self.owner.taken(&taken)
    }

    fn delete_snapshot(&self, id: &SnapshotId) -> Result<Outcome<()>> {
        let (what, key, object) = (snapshot_what(id), snapshot_tag(id), format!("snapshot {id}"));
        let sought = Sought { what: &what, object: &object, key: &key, recorded: id.recorded() };
        let changed = match self.taken_or_hidden(&sought)? {
            Some(taken) => self.delete_taken(&what, &object, &taken)?,
            None => false,
        };
        Ok(if changed { Outcome::Changed(()) } else { Outcome::Unchanged(()) })
    }

    fn list_snapshots(&self, source: Option<&VolumeId>, after: Option<&SnapshotId>, max: usize) -> Result<Vec<Snapshot>> {
        self.list_taken(source, after, max)
    }
}

impl Controller {
    /// The snapshot, which must be there and ready.
    pub fn completed_snapshot(&self, id: &SnapshotId) -> Result<CloudSnapshot> {
        let (what, key, object) = (snapshot_what(id), snapshot_tag(id), format!("snapshot {id}"));
        let found = self.taken(&Sought { what: &what, object: &object, key: &key, recorded: id.recorded() })?;
        let found = found.ok_or_else(|| Error::snapshot_not_found(id))?;
        match found.state {
            SnapshotState::Completed => Ok(found),
            SnapshotState::Pending | SnapshotState::Unfinished => {
                let reason = format!("the cloud has saved {} % of it ({})", found.progress, found.id);
                Err(Error::InProgress { object, reason })
            }
            SnapshotState::Failed | SnapshotState::FailedUnfinished => Err(failed_for_good(&object, &found)),
        }
    }

    /// Finds a snapshot, or takes it while its source is frozen.
    pub fn take(
        &self,
        taking: &Taking<'_>,
        tags: Tags,
        settings: serde_json::Value,
        quiesce: &dyn Quiesce,
    ) -> Result<CloudSnapshot> {
        let Taking { what, object, key, source } = taking;
        let mut begun = self.taken_or_hidden(&Sought { what, object, key, recorded: None })?;
        if let Some(found) = &begun {
            let is_temporary = matches!(key, Key::Tag(tags::TEMPORARY, _));
            let of_another = !self.owner.is_taken_of(source, found);
            if of_another && !is_temporary {
                let of = |local: &str| format!("a snapshot of volume {local}");
                return Err(Error::Conflict {
                    object: object.clone(),
                    existing: of(found.tags.get(tags::VOLUME).map_or("?", String::as_str)),
                    wanted: of(source.local()),
                });
            }
            let why = match found.state {
                _ if of_another => Some("it was taken of another volume, for an earlier request of this name"),
                _ if self.memory.is_torn(what) => Some("its source was written to while it was taken"),
                SnapshotState::FailedUnfinished => Some("the cloud could not make it"),
                SnapshotState::Failed if is_temporary => Some("the cloud could not make it"),
                // Its id may have been answered while it was pending, and the CO keeps it (csi-snapshotter: the first one): one that was made
                // again, under another id, would never be used.
                SnapshotState::Failed => return Err(failed_for_good(object, found)),
                SnapshotState::Pending | SnapshotState::Completed => return Ok(found.clone()),
                SnapshotState::Unfinished => None,
            };
            if let Some(why) = why {
                tracing::warn!(%object, snapshot = %found.id, why, "it is deleted, and made again");
                self.delete_taken(what, object, found)?;
                begun = None;
            }
        }
        self.memory.untorn(what);
        let disk = self.disk(source)?.ok_or_else(|| Error::volume_not_found(source))?;
        let request_key = self.request_key(self.constants.snapshots, what, self.memory.generation(what));
        let tags = tags.into_iter().chain(self.contents_tag(&disk)).collect();
        let spec = CloudSnapshotSpec { key: request_key, disk: disk.id, tags, settings };
        let begun = match begun {
            Some(begun) => begun,
            None => self.take_frozen(taking, &spec, quiesce)?,
        };
        match begun.state {
            SnapshotState::Unfinished => self.finish_taken(taking, &begun, &spec),
            _ => Ok(begun),
        }
    }

    /// Makes of what was begun what is asked for.
    fn finish_taken(&self, taking: &Taking<'_>, begun: &CloudSnapshot, spec: &CloudSnapshotSpec) -> Result<CloudSnapshot> {
        let Taking { what, object, .. } = taking;
        let finished = step("finish snapshot", object, || self.cloud.finish_snapshot(begun, spec));
        match self.finish("finish snapshot", finished) {
            Ok(finished) => {
                self.memory.made(what, &finished.id.0);
                Ok(finished)
            }
            Err(refusal) => {
                let is_for_good = !refusal.maybe_done
                    && matches!(
                        refusal.because,
                        CloudErrorKind::Quota
                            | CloudErrorKind::NoCapacity
                            | CloudErrorKind::Invalid
                            | CloudErrorKind::Denied
                            | CloudErrorKind::Key
                    );
                let error = self.refused("finish snapshot", object, refusal);
                // The next call finds what was begun, and continues. Until then nothing is over.
                if !is_for_good {
                    return Err(match error {
                        Error::InProgress { .. } | Error::Throttled { .. } | Error::BackendUnavailable { .. } => error,
                        other => other.leaving(format!("{}, with which the next call continues", begun.id)),
                    });
                }
                Err(match self.delete_taken(what, object, begun) {
                    Ok(_) => error.rolled_back(),
                    Err(left) => error.leaving(left.to_string()),
                })
            }
        }
    }

    /// Takes one while its source is frozen.
    fn take_frozen(&self, taking: &Taking<'_>, spec: &CloudSnapshotSpec, quiesce: &dyn Quiesce) -> Result<CloudSnapshot> {
        let Taking { what, object, source, .. } = taking;
        let held = quiesce.freeze(std::slice::from_ref(*source))?;
        let begun = step("create snapshot", object, || self.cloud.create_snapshot(spec));
        // It is of the instant of its request: nothing need be held while it is saved.
        let kept_still = held.release();
        // Whatever ends this call, the next one must not treat it as whole.
        if kept_still.is_err() && begun.as_ref().err().is_none_or(|refusal| refusal.maybe_done) {
            self.memory.tore(what);
        }
        let taken = match self.finish("create snapshot", begun) {
            Ok(taken) => taken,
            Err(refusal) if refusal.maybe_done || refusal.because == CloudErrorKind::Exists => {
                let found = self.find_out(taking, refusal)?;
                // Another process may have made it, and answered its id; that of a copy's own is answered to nobody.
                if found.state == SnapshotState::Failed && !matches!(taking.key, Key::Tag(tags::TEMPORARY, _)) {
                    return Err(failed_for_good(object, &found));
                }
                found
            }
            Err(refusal) => return Err(self.refused("create snapshot", object, refusal).rolled_back()),
        };
        self.memory.made(what, &taken.id.0);
        let ended = match taken.state {
            SnapshotState::Failed | SnapshotState::FailedUnfinished => kept_still.and(Err(failed_for_good(object, &taken))),
            _ => kept_still,
        };
        match ended {
            Ok(()) => Ok(taken),
            // Its id was never answered: the next call may take another.
            Err(broken) => Err(match self.delete_taken(what, object, &taken) {
                Ok(_) => broken.rolled_back(),
                Err(error) => broken.leaving(error.to_string()),
            }),
        }
    }

    /// Whether a request whose answer was lost made one.
    fn find_out(&self, taking: &Taking<'_>, refusal: Refusal) -> Result<CloudSnapshot> {
        self.memory.note_unknown_outcome(&taking.what);
        let until = self.clock.now() + self.constants.consistency.shown;
        let sought = Sought { what: &taking.what, object: &taking.object, key: &taking.key, recorded: None };
        let key = self.snapshot_key(&taking.what, &taking.key);
        let found = self.pollers.snapshots.wait(&key, until, |seen| self.choose(&sought, seen).transpose());
        found.unwrap_or_else(|_| Err(Error::failed("create snapshot", taking.object.clone(), refusal)))
    }

    /// The snapshot, as it is shown.
    ///
    /// # Errors
    /// `Unverified` where the recorded one carries other tags, or several could be it.
    pub fn taken(&self, sought: &Sought<'_>) -> Result<Option<CloudSnapshot>> {
        let unknown = |refusal: Refusal| super::errors::unknown(&self.owner.backend, sought.object, &refusal);
        let known = self.memory.known(sought.what);
        let id = sought.recorded.or(known.as_ref().map(|known| known.id.as_str())).map(str::to_owned);
        if let Some(id) = &id {
            let seen = self.pollers.snapshots.look(&Key::Id(id.clone())).map_err(unknown)?;
            // What was begun may have been finished by a request whose answer was lost: that has an id of its own.
            let is_it = |found: &CloudSnapshot| sought.recorded.is_some() || found.state != SnapshotState::Unfinished;
            if let Some(found) = self.checked_snapshot(sought, id, &seen)?.filter(is_it) {
                return Ok(Some(found));
            }
        }
        if sought.recorded.is_none() {
            let seen = self.pollers.snapshots.look(&self.snapshot_key(sought.what, sought.key)).map_err(unknown)?;
            if let Some(found) = self.choose(sought, &seen)? {
                self.memory.found(sought.what, &found.id.0);
                return Ok(Some(found));
            }
        }
        let made_here = known.filter(|known| Some(&known.id) == id.as_ref());
        let Some(hidden) = made_here.filter(|known| self.memory.may_be_hidden(known)) else { return Ok(None) };
        let until = self.clock.now() + self.constants.consistency.shown;
        let key = Key::Id(hidden.id.clone());
        let shown = self.pollers.snapshots.wait(&key, until, |seen| self.checked_snapshot(sought, &hidden.id, seen).transpose());
        let reason = || format!("{} was made not long ago, and the cloud does not show it yet", hidden.id);
        shown.unwrap_or_else(|_| Err(Error::InProgress { object: sought.object.to_owned(), reason: reason() })).map(Some)
    }

    /// The same before something hangs on its absence.
    pub fn taken_or_hidden(&self, sought: &Sought<'_>) -> Result<Option<CloudSnapshot>> {
        if let Some(found) = self.taken(sought)? {
            return Ok(Some(found));
        }
        let (key, outcome_unknown) = match sought.recorded {
            // Whose id was answered, was made.
            Some(id) => (Key::Id(id.to_owned()), None),
            None => (self.snapshot_key(sought.what, sought.key), self.memory.outcome_unknown_until(sought.what)),
        };
        let Some(until) = self.look_until(outcome_unknown) else { return Ok(None) };
        match self.pollers.snapshots.wait(&key, until, |seen| self.choose(sought, seen).transpose()) {
            Ok(found) => {
                let found = found?;
                self.memory.made(sought.what, &found.id.0);
                Ok(Some(found))
            }
            Err(unfinished) => match (unfinished.refusal, outcome_unknown) {
                (Some(refusal), _) => Err(super::errors::unknown(&self.owner.backend, sought.object, &refusal)),
                (None, Some(_)) => Err(Error::InProgress {
                    object: sought.object.to_owned(),
                    reason: "the answer to an earlier request was lost, and what it made may yet be shown".to_owned(),
                }),
                (None, None) => Ok(None),
            },
        }
    }

    /// This very snapshot among what is seen.
    fn checked_snapshot(&self, sought: &Sought<'_>, id: &str, seen: &[CloudSnapshot]) -> Result<Option<CloudSnapshot>> {
        let Some(found) = seen.iter().find(|seen| seen.id.0 == id && !self.memory.is_gone(id)) else { return Ok(None) };
        match (self.carries(sought.key, found), sought.key) {
            (true, _) | (_, Key::Id(_) | Key::Name(_)) => Ok(Some(found.clone())),
            (false, Key::Tag(key, derived)) => {
                Err(self.owner.not_of(sought.object, &format!("snapshot {id}"), key, derived, &found.tags))
            }
        }
    }

    /// The one of these that is sought: by its recorded id, else by tag.
    ///
    /// Of several that were taken of the volume's own disk, which is what a request makes that arrived twice, the oldest that is complete;
    /// the others are logged, and left alone.
    ///
    /// # Errors
    /// `Unverified` for several of which no disk is known.
    fn choose(&self, sought: &Sought<'_>, seen: &[CloudSnapshot]) -> Result<Option<CloudSnapshot>> {
        if let Some(recorded) = sought.recorded {
            return self.checked_snapshot(sought, recorded, seen);
        }
        // By its name it is the one that is sought, whatever its tags say: it must not be taken for absent.
        if let (Key::Name(_), Key::Tag(tag, derived)) = (self.snapshot_key(sought.what, sought.key), sought.key)
            && let Some(other) = seen.iter().find(|found| !self.memory.is_gone(&found.id.0) && !self.carries(sought.key, found))
        {
            return Err(self.owner.not_of(sought.object, &format!("snapshot {}", other.id), tag, derived, &other.tags));
        }
        let mut ours = self.made_for(sought.key, seen);
        ours.sort_by_key(|found| (rank(found.state), found.created, found.id.clone()));
        if ours.len() > 1 {
            let names = ours.iter().map(|found| found.id.0.as_str()).collect::<Vec<_>>().join(", ");
            if ours.iter().any(|found| tags::is_of_its_source(found).is_none()) {
                let reason = format!(
                    "several snapshots carry its tag ({names}), and none of them was used or deleted; remove the driver's tags from each \
                     that is a copy"
                );
                return Err(Error::Unverified { device: sought.object.to_owned(), reason });
            }
            tracing::warn!(kept = %ours[0].id, all = names, "several snapshots have the same tag; delete the others if they are not needed");
        }
        Ok(ours.into_iter().next())
    }

    /// Those that this driver made for what carries this tag, copies left out.
    fn made_for(&self, key: &Key, seen: &[CloudSnapshot]) -> Vec<CloudSnapshot> {
        let made = |found: &&CloudSnapshot| {
            self.carries(key, found) && tags::is_of_its_source(found) != Some(false) && !self.memory.is_gone(&found.id.0)
        };
        seen.iter().filter(made).cloned().collect()
    }

    /// Whether it is ours, and carries this tag.
    fn carries(&self, key: &Key, found: &CloudSnapshot) -> bool {
        self.owner.owns(&found.tags)
            && match key {
                Key::Tag(tag, value) => found.tags.get(*tag) == Some(value),
                Key::Id(id) => found.id.0 == *id,
                Key::Name(name) => found.name.as_ref() == Some(name),
            }
    }

    /// Deletes all that this driver made for what carries this tag, and no copies; whether there were any.
    ///
    /// # Errors
    /// As `choose`.
    pub fn delete_all_taken(&self, what: &str, key: &Key, object: &str) -> Result<bool> {
        let sought = Sought { what, object, key, recorded: None };
        // Also for what is hidden still.
        let Some(first) = self.taken_or_hidden(&sought)? else { return Ok(false) };
        let seen = self.pollers.snapshots.look(&self.snapshot_key(what, key));
        let seen = seen.map_err(|refusal| super::errors::unknown(&self.owner.backend, object, &refusal))?;
        self.choose(&sought, &seen)?;
        let mut all = self.made_for(key, &seen);
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
            match self.finish("delete snapshot", step("delete snapshot", &object, || self.cloud.delete_snapshot(&taken.id))) {
                Ok(()) => break true,
                Err(refusal) if refusal.because == CloudErrorKind::NotFound => break lost,
                Err(refusal) if refusal.may_be_sent_again() && !lost => lost = true,
                Err(refusal) => return Err(self.refused("delete snapshot", object, refusal)),
            }
        };
        self.memory.gone(what, &taken.id.0);
        Ok(was_there)
    }
}

fn failed_for_good(object: &str, failed: &CloudSnapshot) -> Error {
    let reason = format!(
        "the cloud could not make {}; delete the snapshot (in Kubernetes its VolumeSnapshot), and take another",
        failed.id
    );
    Error::Unverified { device: object.to_owned(), reason }
}

fn rank(state: SnapshotState) -> u8 {
    match state {
        SnapshotState::Completed => 0,
        SnapshotState::Pending => 1,
        SnapshotState::Unfinished => 2,
        SnapshotState::Failed | SnapshotState::FailedUnfinished => 3,
    }
}

fn snapshot_what(id: &SnapshotId) -> String {
    format!("snapshot/{}", id.derived())
}

fn snapshot_tag(id: &SnapshotId) -> Key {
    Key::Tag(SNAPSHOT, id.derived().to_owned())
}

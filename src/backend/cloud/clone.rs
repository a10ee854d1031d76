//! A copy of a volume: directly, where the cloud copies a disk and accepts the request; else through a snapshot, which is the copy's alone
//! and is deleted afterwards.
//!
//! One copy goes one way only, whatever process continues with it: with the temporary snapshot there, or not known to be absent, it is the
//! snapshot's. A direct copy that was refused goes through a snapshot once it is known that no earlier request made a disk: neither this
//! one's, nor one whose answer was lost, nor one of a process before this one.

use crate::backend::{Quiesce, SnapshotSpec};
use crate::os::step::step;
use crate::volume::{Error, RawParameters, Result, SnapshotId, VolumeId};

use super::api::{CloudErrorKind, CloudSnapshot, Disk, DiskSource, DiskSpec, Refusal, SnapshotState, Zones};
use super::constants::Idempotency;
use super::controller::Controller;
use super::make::{Send, check_source, copied, is_over};
use super::pollers::Key;
use super::snapshots::{Sought, Taking};
use super::tags::TEMPORARY;
use super::timeouts::WAIT;

impl Controller {
    /// Makes the disk of a copy, or continues with what an earlier call began; nothing else of it is left then.
    pub fn make_copy(
        &self,
        copy: &VolumeId,
        source: &VolumeId,
        (spec, required): (DiskSpec, &Zones),
        quiesce: &dyn Quiesce,
    ) -> Result<Disk> {
        if self.memory.is_torn(copy.derived()) {
            self.delete_torn(copy)?;
        }
        // What began through a snapshot ends so; also where its source is gone by now.
        match self.find_temporary(copy)? {
            None => {
                if let Some(disk) = self.copy_without_snapshot(copy, source, (&spec, required), quiesce)? {
                    return Ok(disk);
                }
            }
            // A request for a copy of another volume began it, and its disk may be being made of the snapshot.
            Some(temporary) if !self.owner.is_taken_of(source, &temporary) => {
                if let Some(disk) = self.confirmed_disk(copy)? {
                    check_source(copy, &disk, &spec)?;
                }
            }
            Some(_) => {}
        }
        let snapshot = self.copy_to_snapshot(copy, source, quiesce)?;
        match self.make(copy, copied(spec, DiskSource::Snapshot(snapshot.id), &snapshot.tags), required) {
            Ok(disk) => match self.tidy(copy) {
                Ok(()) => Ok(disk),
                // The disk stays: a final answer would say that nothing does.
                Err(error) if is_over(&error) => Err(error.leaving(format!("disk {}, and its temporary snapshot", disk.id))),
                Err(error) => Err(error),
            },
            Err(error) if is_over(&error) => Err(match self.tidy(copy) {
                Ok(()) => error,
                Err(left) => error.leaving(left.to_string()),
            }),
            Err(error) => Err(error),
        }
    }

    fn find_temporary(&self, copy: &VolumeId) -> Result<Option<CloudSnapshot>> {
        self.taken_or_hidden(&Sought { what: &what(copy), object: &temporary(copy), key: &key(copy), recorded: None })
    }

    /// The disk that an earlier process made, or a direct copy; `None` where there is none, and the copy goes through a snapshot.
    fn copy_without_snapshot(
        &self,
        copy: &VolumeId,
        source: &VolumeId,
        (spec, required): (&DiskSpec, &Zones),
        quiesce: &dyn Quiesce,
    ) -> Result<Option<Disk>> {
        let direct = self.disk(source)?.filter(|disk| self.cloud.copies_disk(disk, spec));
        // After a lost answer the token of a direct copy finds what was made.
        let has_token = self.constants.disks == Idempotency::Token
            && direct.is_some()
            && self.memory.outcome_unknown_until(copy.derived()).is_some();
        if !has_token && let Some(earlier) = self.confirmed_disk(copy)? {
            let id = earlier.id.clone();
            match self.wait_available(copy, earlier)? {
                Some(disk) => return self.matches_request(copy, disk, spec, required).map(Some),
                None => self.disk_gone(copy.derived(), &id.0),
            }
        }
        let Some(direct) = direct else { return Ok(None) };
        self.memory.tidied(copy.derived());
        let spec = copied(spec.clone(), DiskSource::Disk(direct.id.clone()), &self.contents_tag(&direct));
        self.copy_directly(copy, source, (spec, required), quiesce)
    }

    /// `None` where the cloud refused it.
    fn copy_directly(
        &self,
        copy: &VolumeId,
        source: &VolumeId,
        (spec, required): (DiskSpec, &Zones),
        quiesce: &dyn Quiesce,
    ) -> Result<Option<Disk>> {
        let mut broken = None;
        let send: Send<'_> = &mut |spec| {
            let held = quiesce.freeze(std::slice::from_ref(source)).map_err(|error| self.after_unknown_outcome(copy, error))?;
            let answer = step("copy disk", copy, || self.cloud.create_disk(spec));
            // It is of the instant of its request: nothing need be held while it is filled in.
            let kept_still = held.release();
            let may_be_there = answer.as_ref().err().is_none_or(|refusal| refusal.maybe_done);
            if let Some(error) = kept_still.err().filter(|_| may_be_there) {
                self.memory.tore(copy.derived());
                broken = Some(error);
            }
            Ok(self.finish("copy disk", answer))
        };
        let made = self.make_by(send, copy, spec, required);
        match (made, broken) {
            (made, Some(broken)) => Err(match made.and_then(|_| self.delete_torn(copy)) {
                Ok(()) => broken.rolled_back(),
                Err(error) => broken.leaving(error.to_string()),
            }),
            (Ok(Ok(disk)), None) => Ok(Some(disk)),
            (Ok(Err(refusal)), None) => {
                tracing::info!(volume = %copy, %refusal, "the cloud refused a direct copy; it is made through a snapshot");
                Ok(None)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Deletes a copy of a source that was written to meanwhile.
    fn delete_torn(&self, copy: &VolumeId) -> Result<()> {
        // One that is still being made cannot be deleted.
        if let Some(disk) = self.confirmed_disk(copy)?.map(|disk| self.wait_available(copy, disk)).transpose()?.flatten() {
            self.delete_disk(copy, &disk)?;
        }
        self.memory.untorn(copy.derived());
        Ok(())
    }

    /// A complete snapshot of `source` for the new volume `copy`: that of an earlier call, or a new one.
    fn copy_to_snapshot(&self, copy: &VolumeId, source: &VolumeId, quiesce: &dyn Quiesce) -> Result<CloudSnapshot> {
        self.memory.untidy(copy.derived());
        let name = format!("copy of {source} for {copy}");
        let id = SnapshotId::from_parts(copy.backend(), copy.derived())?;
        let spec = SnapshotSpec { id, name: name.clone(), source: source.clone(), parameters: RawParameters::default() };
        let draft = self.policy.draft_snapshot(&spec)?;
        let taking = Taking { what: what(copy), object: name, key: key(copy), source };
        let tags = self.owner.temporary(copy, source, &draft.tags);
        let taken = self.take(&taking, tags, draft.settings, quiesce)?;
        if taken.state == SnapshotState::Completed {
            return Ok(taken);
        }
        let waited = self.pollers.snapshots.wait(&Key::from(&taken.id), self.clock.now() + WAIT, |seen| {
            let seen = seen.iter().find(|seen| seen.id == taken.id)?;
            (seen.state != SnapshotState::Pending).then_some(seen.state)
        });
        match waited {
            Ok(SnapshotState::Failed | SnapshotState::FailedUnfinished) => {
                let failure = Error::failed(
                    "create snapshot",
                    taking.object.clone(),
                    format!("the cloud reports that {} failed", taken.id),
                );
                Err(match self.delete_taken(&taking.what, &taking.object, &taken) {
                    Ok(_) => failure.rolled_back(),
                    Err(error) => failure.leaving(error.to_string()),
                })
            }
            Ok(_) => Ok(taken),
            Err(unfinished) => {
                let seen = unfinished.last.and_then(|seen| seen.into_iter().find(|seen| seen.id == taken.id));
                let progress = seen.map_or(taken.progress, |seen| seen.progress);
                let reason = format!("the cloud has saved {progress} % of snapshot {}, from which it is made", taken.id);
                Err(Error::InProgress { object: format!("volume {copy}"), reason })
            }
        }
    }

    /// Deletes the temporary snapshot of a copy, if there is one.
    pub fn tidy(&self, copy: &VolumeId) -> Result<()> {
        if self.memory.is_tidy(copy.derived()) {
            return Ok(());
        }
        let deleted = self.delete_all_taken(&what(copy), &key(copy), &temporary(copy))?;
        // What a process before this one made a moment ago may not be shown yet.
        if deleted || self.memory.young_until().is_none() {
            self.memory.tidied(copy.derived());
        }
        Ok(())
    }
}

impl Refusal {
    /// Whether it was surely not done, and a copy through a snapshot may be accepted where a direct one is not: no right to it, no such
    /// action, a source or a zone of which there are none, one copy of a source at a time.
    pub(super) fn may_concern_the_copy(&self) -> bool {
        let is_another = match self.because {
            CloudErrorKind::NotFound
            | CloudErrorKind::InUse
            | CloudErrorKind::TooSoon
            | CloudErrorKind::Invalid
            | CloudErrorKind::Denied
            | CloudErrorKind::Key
            | CloudErrorKind::Other => true,
            CloudErrorKind::NoInstance
            | CloudErrorKind::NotAttached
            | CloudErrorKind::NameTaken
            | CloudErrorKind::InstanceFull
            | CloudErrorKind::OtherParameters
            | CloudErrorKind::TokenSpent
            | CloudErrorKind::Exists
            | CloudErrorKind::Quota
            | CloudErrorKind::NoCapacity
            | CloudErrorKind::Running
            | CloudErrorKind::Throttled
            | CloudErrorKind::Unavailable => false,
        };
        is_another && !self.maybe_done
    }
}

fn temporary(copy: &VolumeId) -> String {
    format!("the temporary snapshot of volume {copy}")
}

fn what(copy: &VolumeId) -> String {
    format!("copy/{}", copy.derived())
}

fn key(copy: &VolumeId) -> Key {
    Key::Tag(TEMPORARY, copy.derived().to_owned())
}

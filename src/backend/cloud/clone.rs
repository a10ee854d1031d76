//! A copy of a volume goes through a snapshot, which is the copy's alone and is deleted afterwards.

use crate::backend::{Quiesce, SnapshotSpec};
use crate::volume::{Error, RawParameters, Result, SnapshotId, VolumeId};

use super::frame::Controller;
use super::looks::Key;
use super::provision::WAIT;
use super::snapshots::Taking;
use super::tags::TEMPORARY;
use super::{CloudSnapshotId, SnapshotState};

impl Controller {
    /// A complete snapshot of `source` for the new volume `copy`: that of an earlier call, or a new one.
    pub fn copy(&self, copy: &VolumeId, source: &VolumeId, quiesce: &dyn Quiesce) -> Result<CloudSnapshotId> {
        self.memory.untidy(copy.derived());
        let name = format!("copy of {source} for {copy}");
        let id = SnapshotId::from_parts(copy.backend(), copy.derived())?;
        let spec = SnapshotSpec { id, name: name.clone(), source: source.clone(), parameters: RawParameters::default() };
        let draft = self.policy.draft_snapshot(&spec)?;
        let taking = Taking { what: what(copy), object: name, key: key(copy), source };
        let tags = self.owner.temporary(copy, source, &draft.tags);
        let taken = self.take(&taking, tags, draft.settings, quiesce)?;
        if taken.state == SnapshotState::Completed {
            return Ok(taken.id);
        }
        let waited = self.looks.snapshots.wait(&Key::from(&taken.id), self.clock.now() + WAIT, |seen| {
            let seen = seen.iter().find(|seen| seen.id == taken.id)?;
            (seen.state != SnapshotState::Pending).then_some(seen.state)
        });
        match waited {
            Ok(SnapshotState::Failed) => {
                let failure = Error::failed(
                    "create snapshot",
                    taking.object.clone(),
                    format!("the cloud reports that {} failed", taken.id),
                );
                Err(match self.delete_taken(&taking.what, &taking.object, &taken) {
                    Ok(_) => failure.nothing_left(),
                    Err(error) => failure.but_left(error.to_string()),
                })
            }
            Ok(_) => Ok(taken.id),
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
        let deleted = self.delete_all_taken(&what(copy), &key(copy), &format!("the temporary snapshot of volume {copy}"))?;
        // What a process before this one made a moment ago may not be shown yet.
        if deleted || self.memory.young_until().is_none() {
            self.memory.tidied(copy.derived());
        }
        Ok(())
    }
}

fn what(copy: &VolumeId) -> String {
    format!("copy/{}", copy.derived())
}

fn key(copy: &VolumeId) -> Key {
    Key::Tag(TEMPORARY, copy.derived().to_owned())
}

//! The disk of a volume: by the cloud's id where it is recorded in the volume's id or remembered, else by its unique name or by tag.
//!
//! A recorded disk is the volume's, or the volume has none: another that carries the same tag is a copy that a person made, and is left
//! alone. An id without a recorded disk has only CreateVolume, before its answer, and what was made by a driver that recorded none.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::volume::{Error, Result, VolumeId};

use super::api::{Attachment, Disk, DiskId, DiskState, Refusal};
use super::controller::Controller;
use super::errors;
use super::pollers::Key;
use super::tags::{self, VOLUME};

/// What is known of a volume's disk.
#[derive(Clone, Debug)]
pub(super) enum Located {
    Seen(Box<Disk>),
    /// This process made it not long ago, and it is not shown (any more).
    Hidden(DiskId),
    None,
}

impl Located {
    pub fn seen(&self) -> Option<&Disk> {
        match self {
            Located::Seen(disk) => Some(disk),
            Located::Hidden(_) | Located::None => None,
        }
    }

    /// The disk, and where it is shown to be attached; `None` where there is none.
    pub fn attachments(&self) -> Option<(DiskId, Vec<Attachment>)> {
        match self {
            Located::None => None,
            Located::Hidden(disk) => Some((disk.clone(), Vec::new())),
            Located::Seen(disk) => Some((disk.id.clone(), disk.attachments.clone())),
        }
    }
}

impl Controller {
    /// The disk of a volume, whatever its state, unless it is deleted.
    ///
    /// # Errors
    /// `InProgress` for one that was made not long ago and is not shown yet; `Unverified` where there are two, or where the recorded one
    /// carries other tags.
    pub fn disk(&self, id: &VolumeId) -> Result<Option<Disk>> {
        match self.locate(id)? {
            Located::Seen(disk) => Ok(Some(*disk)),
            Located::None => Ok(None),
            Located::Hidden(disk) => {
                let until = self.clock.now() + self.constants.consistency.shown;
                let shown = self.pollers.disks.wait(&Key::from(&disk), until, |seen| self.checked(id, &disk, seen).transpose());
                shown.unwrap_or_else(|_| Err(hidden(id, &disk))).map(Some)
            }
        }
    }

    /// # Errors
    /// As `disk`.
    pub fn locate(&self, id: &VolumeId) -> Result<Located> {
        let known = self.memory.known(id.derived());
        let recorded = id.recorded().map(|disk| DiskId(disk.to_owned()));
        let Some(disk) = recorded.or_else(|| known.as_ref().map(|known| DiskId(known.id.clone()))) else {
            return self.locate_by_key(id);
        };
        let seen = self.pollers.disks.look(&Key::from(&disk)).map_err(|refusal| self.unknown(id, &refusal))?;
        if let Some(found) = self.checked(id, &disk, &seen)? {
            return Ok(Located::Seen(Box::new(found)));
        }
        let made_here = known.filter(|known| known.id == disk.0);
        let may_be_hidden = seen.is_empty() && made_here.is_some_and(|known| self.memory.may_be_hidden(&known));
        let by_key = if id.recorded().is_some() { Located::None } else { self.locate_by_key(id)? };
        match by_key {
            Located::None if may_be_hidden => Ok(Located::Hidden(disk)),
            located => Ok(located),
        }
    }

    fn locate_by_key(&self, id: &VolumeId) -> Result<Located> {
        let seen = self.pollers.disks.look(&self.disk_key(id)).map_err(|refusal| self.unknown(id, &refusal))?;
        match self.one(id, &seen)? {
            Some(disk) => Ok(Located::Seen(Box::new(disk))),
            None => Ok(Located::None),
        }
    }

    /// This very disk among what is seen, unless it is deleted.
    ///
    /// # Errors
    /// `Unverified` where its tags are not those of the volume: it is neither used nor deleted, nor taken for gone.
    pub fn checked(&self, id: &VolumeId, disk: &DiskId, seen: &[Disk]) -> Result<Option<Disk>> {
        let Some(found) = seen.iter().find(|seen| seen.id == *disk && self.is_there(seen)) else { return Ok(None) };
        match self.owner.is_disk_of(id, found) {
            true => Ok(Some(found.clone())),
            false => Err(self.owner.not_disk_of(id, found)),
        }
    }

    /// The one of these that is the volume's: by its recorded id, else by tag.
    ///
    /// # Errors
    /// `Unverified` where there are several by tag, or the recorded one carries other tags.
    pub fn one(&self, id: &VolumeId, seen: &[Disk]) -> Result<Option<Disk>> {
        if let Some(recorded) = id.recorded() {
            return self.checked(id, &DiskId(recorded.to_owned()), seen);
        }
        // By its name it is the volume's, whatever its tags say: it must not be taken for absent.
        let is_other = |disk: &&Disk| self.is_there(disk) && !self.owner.is_disk_of(id, disk);
        if matches!(self.disk_key(id), Key::Name(_))
            && let Some(other) = seen.iter().find(is_other)
        {
            return Err(self.owner.not_disk_of(id, other));
        }
        let (copies, mut ours): (Vec<Disk>, Vec<Disk>) = self.ours(id, seen).into_iter().partition(tags::is_restored_backup);
        if !copies.is_empty() {
            tracing::warn!(volume = %id, disks = names(&copies), "restored from a backup with the volume's tags; they are left alone");
        }
        if ours.len() > 1 {
            let reason = format!(
                "several disks carry its tag ({}), and none of them was used or deleted; remove the tag {VOLUME} from each that is not \
                 the volume's disk, but a copy",
                names(&ours)
            );
            return Err(Error::Unverified { device: format!("volume {id}"), reason });
        }
        let disk = ours.pop();
        if let Some(disk) = &disk {
            self.memory.found(id.derived(), &disk.id.0);
        }
        Ok(disk)
    }

    /// Those of these that carry the volume's tag, and are not deleted.
    pub fn ours(&self, id: &VolumeId, seen: &[Disk]) -> Vec<Disk> {
        seen.iter().filter(|disk| self.owner.is_disk_of(id, disk) && self.is_there(disk)).cloned().collect()
    }

    /// Until when an absence is looked at again before anything is done on its strength; `None` where the first look is believed.
    /// `outcome_unknown` says that the outcome of an earlier request is not known.
    pub fn look_until(&self, outcome_unknown: Option<Duration>) -> Option<Duration> {
        outcome_unknown.map(|_| self.clock.now() + self.constants.consistency.shown).or_else(|| self.memory.young_until())
    }

    /// Whether it is not deleted, as far as is known.
    pub fn is_there(&self, disk: &Disk) -> bool {
        !matches!(disk.state, DiskState::Deleting | DiskState::Deleted) && !self.memory.is_gone(&disk.id.0)
    }

    /// A disk of a volume is gone.
    pub fn disk_gone(&self, what: &str, disk: &str) {
        self.memory.gone(what, disk);
        self.history.forget_disk(disk);
        self.nodes.names_no_slot(None, disk);
    }

    /// Says in the log which disks carry the tag of a volume whose own disk is gone. What is logged decides nothing.
    pub fn report_copies(&self, id: &VolumeId) {
        // Of a disk without tags nothing carries them.
        if id.is_existing() {
            return;
        }
        let Ok(seen) = self.pollers.disks.look(&self.disk_key(id)) else { return };
        let copies = self.ours(&id.unrecorded(), &seen);
        if !copies.is_empty() {
            tracing::warn!(volume = %id, disks = names(&copies), "its disk is gone; others that carry its tag are left alone");
        }
    }

    /// The disks of many volumes; one request for hundreds. Those that are not shown are missing.
    pub fn disks(&self, ids: &[VolumeId]) -> Result<BTreeMap<VolumeId, Vec<Disk>>> {
        let mut found = BTreeMap::new();
        let known =
            |id: &VolumeId| id.recorded().map(str::to_owned).or_else(|| self.memory.known(id.derived()).map(|known| known.id));
        let by_id = ids.iter().filter_map(|id| Some((Key::Id(known(id)?), id)));
        self.look_for(&by_id.collect(), &mut found)?;
        let rest = ids.iter().filter(|id| id.recorded().is_none() && !found.contains_key(*id));
        let by_key = rest.map(|id| (self.disk_key(id), id)).collect();
        self.look_for(&by_key, &mut found)?;
        Ok(found)
    }

    fn look_for(&self, keys: &BTreeMap<Key, &VolumeId>, found: &mut BTreeMap<VolumeId, Vec<Disk>>) -> Result<()> {
        let asked: Vec<Key> = keys.keys().cloned().collect();
        let about = || format!("{} volumes", asked.len());
        let answers = self.pollers.disks.look_all(&asked);
        for (key, seen) in answers.map_err(|refusal| errors::unknown(&self.owner.backend, &about(), &refusal))? {
            let Some(id) = keys.get(&key) else { continue };
            let ours = self.ours(id, &seen);
            if !ours.is_empty() {
                found.insert((*id).clone(), ours);
            }
        }
        Ok(())
    }

    /// A look-up about a volume that failed.
    pub fn unknown(&self, id: &VolumeId, refusal: &Refusal) -> Error {
        errors::unknown(&self.owner.backend, &format!("volume {id}"), refusal)
    }

    /// A request about a volume that was refused.
    pub fn refused(&self, step: &'static str, object: &str, refusal: Refusal) -> Error {
        errors::refused(&self.owner.backend, step, object, refusal)
    }
}

pub(super) fn hidden(id: &VolumeId, disk: &DiskId) -> Error {
    let reason = format!("its disk {disk} was made not long ago, and the cloud does not show it yet");
    Error::InProgress { object: format!("volume {id}"), reason }
}

fn names(disks: &[Disk]) -> String {
    disks.iter().map(|disk| disk.id.0.as_str()).collect::<Vec<_>>().join(", ")
}

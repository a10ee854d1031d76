//! The disk of a volume: by the cloud's id where that is remembered, else by tag.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::volume::{Error, Result, VolumeId};

use super::frame::Controller;
use super::looks::Key;
use super::tags::VOLUME;
use super::{Disk, DiskId, DiskState, Refusal, errors};

/// How long something that must be there is waited for, until it is shown.
pub(super) const SHOWN: Duration = Duration::from_secs(15);

/// What is known of a volume's disk.
#[derive(Clone, Debug)]
pub(super) enum Located {
    Seen(Box<Disk>),
    /// This process made it not long ago, and it is not shown (any more).
    Hidden(DiskId),
    None,
}

impl Controller {
    /// The disk of a volume, whatever its state, unless it is deleted.
    ///
    /// # Errors
    /// `Pending` for one that was made not long ago and is not shown yet; `Unproven` where there are two.
    pub fn disk(&self, id: &VolumeId) -> Result<Option<Disk>> {
        match self.locate(id)? {
            Located::Seen(disk) => Ok(Some(*disk)),
            Located::None => Ok(None),
            Located::Hidden(disk) => {
                let until = self.clock.now() + SHOWN;
                let shown = self.looks.disks.wait(&Key::from(&disk), until, |seen| self.ours(id, seen).into_iter().next());
                shown.map(Some).map_err(|_| hidden(id, &disk))
            }
        }
    }

    pub fn locate(&self, id: &VolumeId) -> Result<Located> {
        let Some(known) = self.memory.known(id.local()) else { return self.locate_by_tag(id) };
        let seen = self.looks.disks.look(&Key::Id(known.id.clone())).map_err(|refusal| self.unknown(id, &refusal))?;
        match self.ours(id, &seen).into_iter().next() {
            Some(disk) => Ok(Located::Seen(Box::new(disk))),
            None => match self.locate_by_tag(id)? {
                Located::None if seen.is_empty() && self.memory.may_be_hidden(&known) => Ok(Located::Hidden(DiskId(known.id))),
                located => Ok(located),
            },
        }
    }

    fn locate_by_tag(&self, id: &VolumeId) -> Result<Located> {
        let key = Key::Tag(VOLUME, id.local().to_owned());
        let seen = self.looks.disks.look(&key).map_err(|refusal| self.unknown(id, &refusal))?;
        match self.one(id, &seen)? {
            Some(disk) => Ok(Located::Seen(Box::new(disk))),
            None => Ok(Located::None),
        }
    }

    /// The one of these that is the volume's.
    ///
    /// # Errors
    /// `Unproven` where there are several: only somebody's hand makes them, and which of them is right only he knows.
    pub fn one(&self, id: &VolumeId, seen: &[Disk]) -> Result<Option<Disk>> {
        let mut ours = self.ours(id, seen);
        if ours.len() > 1 {
            let names: Vec<&str> = ours.iter().map(|disk| disk.id.0.as_str()).collect();
            let reason =
                format!("several disks carry its tag ({}); take the tag {VOLUME} from all but the right one", names.join(", "));
            return Err(Error::Unproven { device: format!("volume {id}"), reason });
        }
        let disk = ours.pop();
        if let Some(disk) = &disk {
            self.memory.found(id.local(), &disk.id.0);
        }
        Ok(disk)
    }

    /// Those of these that are the volume's, and not deleted.
    pub fn ours(&self, id: &VolumeId, seen: &[Disk]) -> Vec<Disk> {
        seen.iter().filter(|disk| self.owner.is_disk_of(id, disk) && self.is_there(disk)).cloned().collect()
    }

    /// Whether it is not deleted, as far as is known.
    pub fn is_there(&self, disk: &Disk) -> bool {
        !matches!(disk.state, DiskState::Deleting | DiskState::Deleted) && !self.memory.is_gone(&disk.id.0)
    }

    /// The disks of many volumes; one request for hundreds. Those that are not shown are missing.
    pub fn disks(&self, ids: &[VolumeId]) -> Result<BTreeMap<VolumeId, Disk>> {
        let about = || format!("{} volumes", ids.len());
        let by_id: BTreeMap<Key, &VolumeId> =
            ids.iter().filter_map(|id| Some((Key::Id(self.memory.known(id.local())?.id), id))).collect();
        let look = |keys: Vec<Key>| {
            self.looks.disks.look_all(&keys).map_err(|refusal| errors::unknown(&self.owner.backend, &about(), &refusal))
        };
        let mut found = BTreeMap::new();
        for (key, seen) in look(by_id.keys().cloned().collect())? {
            let disk = by_id.get(&key).and_then(|id| Some(((*id).clone(), self.ours(id, &seen).into_iter().next()?)));
            found.extend(disk);
        }
        let rest: BTreeMap<Key, &VolumeId> =
            ids.iter().filter(|id| !found.contains_key(*id)).map(|id| (Key::Tag(VOLUME, id.local().to_owned()), id)).collect();
        for (key, seen) in look(rest.keys().cloned().collect())? {
            if let Some(id) = rest.get(&key)
                && let Some(disk) = self.one(id, &seen)?
            {
                found.insert((*id).clone(), disk);
            }
        }
        Ok(found)
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
    Error::Pending { object: format!("volume {id}"), reason }
}

//! Volumes come and go.

use std::collections::BTreeSet;

use crate::backend::{CapacityAnswer, CapacityQuery, Provision, Quiesce, VolumeSpec, with_own_part};
use crate::os::step::step;
use crate::volume::{Bytes, ContentSource, Error, NodeId, Outcome, Result, Volume, VolumeId};

use super::api::{AttachmentState, CloudErrorKind, Disk, DiskId, DiskSource, DiskSpec, DiskState};
use super::controller::Controller;
use super::existing;
use super::make::copied;
use super::pollers::Key;
use super::tags;

impl Provision for Controller {
    fn unit(&self) -> u64 {
        self.policy.unit()
    }

    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let found = self.disk(id)?.filter(|_| !self.memory.is_torn(id.derived()));
        let disk = match found {
            Some(disk) if disk.is_whole() => disk,
            // Its id was answered: it is the volume, whatever has become of it.
            Some(disk) if id.recorded().is_some() && !matches!(disk.state, DiskState::Deleting | DiskState::Deleted) => {
                return Err(self.not_whole(id, &disk));
            }
            _ => {
                if id.recorded().is_some() {
                    self.report_copies(id);
                }
                return Ok(None);
            }
        };
        if id.is_existing() {
            return Ok(Some(existing::volume(id, &disk, self.policy.as_ref())));
        }
        let volume = self.owner.volume(&disk, self.policy.as_ref())?;
        if matches!(volume.source, Some(ContentSource::Volume(_))) {
            // A call that was killed before it did so left it, and this may be its repeat.
            self.tidy(id).unwrap_or_else(|error| tracing::warn!(volume = %id, %error, "a copy's temporary snapshot is left"));
        }
        Ok(Some(volume))
    }

    fn create(&self, spec: &VolumeSpec, quiesce: &dyn Quiesce) -> Result<Volume> {
        let draft = self.policy.draft(spec)?;
        let (least, most) = self.policy.bounds(&spec.parameters["backend"]);
        if spec.capacity < least || spec.capacity > most {
            let reason = format!("{} cannot be: with these parameters a volume has {least} to {most}", spec.capacity);
            return Err(Error::OutOfRange { field: "capacity_range", reason });
        }
        let (zones, site) = self.choose_zones(spec, draft.zones)?;
        let settings = match site {
            Some(site) => self.policy.placed(draft.settings, &site)?,
            None => draft.settings,
        };
        let required = self.required_zones(&spec.topology);
        let recorded = with_own_part(&spec.parameters, |own| self.policy.requested_parameters(own));
        let request = DiskSpec {
            key: String::new(),
            capacity: spec.capacity,
            zones,
            source: DiskSource::Empty,
            tags: self.owner.disk(spec, &recorded, &draft.tags),
            multi_attach: draft.multi_attach,
            settings,
        };
        let disk = match &spec.source {
            None => self.make(&spec.id, request, &required)?,
            Some(ContentSource::Snapshot(snapshot)) => {
                let snapshot = self.completed_snapshot(snapshot)?;
                self.make(&spec.id, copied(request, DiskSource::Snapshot(snapshot.id), &snapshot.tags), &required)?
            }
            Some(ContentSource::Volume(source)) => self.make_copy(&spec.id, source, (request, &required), quiesce)?,
        };
        self.owner.volume(&disk, self.policy.as_ref())
    }

    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        let mut disk = self.confirmed_disk(id)?;
        // What runs must end first: a creation bars the deletion, and a deletion that is not shown as one in each cloud may fail.
        let known = disk.as_ref().map(|disk| disk.id.clone()).or_else(|| id.recorded().map(|disk| DiskId(disk.to_owned())));
        if let Some(known) = known
            && self.await_operations_of(id, &known, disk.as_ref())?
        {
            disk = self.confirmed_disk(id)?;
        }
        let changed = match &disk {
            Some(disk) => {
                self.owner.may_delete(id, disk)?;
                self.delete_disk(id, disk)?
            }
            None => {
                self.report_copies(id);
                false
            }
        };
        if disk.is_none_or(|disk| tags::is_copy(&disk.tags)) {
            self.tidy(id)?;
        }
        Ok(if changed { Outcome::Changed(()) } else { Outcome::Unchanged(()) })
    }

    fn list(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>> {
        Ok(self.list_published(after, max)?.into_iter().map(|(volume, _)| volume).collect())
    }

    fn list_published(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(Volume, Option<BTreeSet<NodeId>>)>> {
        self.list_volumes(after, max)
    }

    /// A cloud does not say how much room it has: as much as can be said.
    fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        let (least, maximum) = self.policy.bounds(&query.parameters);
        let minimum = least.max(query.least.round_up(self.policy.unit()));
        let elsewhere = match query.topology.as_ref().and_then(|topology| self.policy.zone(topology)) {
            Some(zone) => !self.zones()?.contains(&zone),
            None => false,
        };
        if elsewhere {
            return Ok(CapacityAnswer { available: Bytes(0), maximum: Bytes(0), minimum });
        }
        Ok(CapacityAnswer { available: Bytes(i64::MAX.unsigned_abs()), maximum, minimum })
    }
}

impl Controller {
    /// Why a disk whose id was answered cannot be used now.
    pub(super) fn not_whole(&self, id: &VolumeId, disk: &Disk) -> Error {
        if disk.state == DiskState::Creating {
            // As while Compute Engine restores it (RESTORING).
            let reason = format!("the cloud is still making or restoring its disk {}", disk.id);
            return Error::InProgress { object: format!("volume {id}"), reason };
        }
        let why = self.why_failed(&disk.id);
        let reason = format!("disk {} is {:?}{why}; have it repaired in the cloud, or restore a snapshot", disk.id, disk.state);
        Error::Unverified { device: format!("volume {id}"), reason }
    }

    /// The disk of a volume, whatever its state. That there is none is concluded only where none can be hidden.
    pub(super) fn confirmed_disk(&self, id: &VolumeId) -> Result<Option<Disk>> {
        if let Some(disk) = self.disk(id)? {
            return Ok(Some(disk));
        }
        let (key, outcome_unknown) = match id.recorded() {
            // Whose id was answered, was made.
            Some(disk) => (Key::Id(disk.to_owned()), None),
            None => (self.disk_key(id), self.memory.outcome_unknown_until(id.derived())),
        };
        let Some(until) = self.look_until(outcome_unknown) else { return Ok(None) };
        match self.pollers.disks.wait(&key, until, |seen| self.one(id, seen).transpose()) {
            Ok(disk) => disk.map(Some),
            Err(unfinished) => match (unfinished.refusal, outcome_unknown) {
                (Some(refusal), _) => Err(self.unknown(id, &refusal)),
                (None, Some(_)) => Err(Error::InProgress {
                    object: format!("volume {id}"),
                    reason: "the answer to the request that makes its disk was lost, and a disk may yet be shown".to_owned(),
                }),
                (None, None) => Ok(None),
            },
        }
    }

    /// Deletes the disk of a volume, which was seen to carry its tag; whether it was there.
    pub(super) fn delete_disk(&self, id: &VolumeId, disk: &Disk) -> Result<bool> {
        let attached = disk.attachments.iter().find(|attachment| attachment.state != AttachmentState::Detached);
        if let Some(attachment) = attached {
            let by = format!("disk {} is attached to node {}; detach it first", disk.id, attachment.instance);
            return Err(Error::InUse { object: format!("volume {id}"), by });
        }
        let mut lost = false;
        loop {
            match self.finish("delete disk", step("delete disk", id, || self.cloud.delete_disk(&disk.id))) {
                Ok(()) => break,
                Err(refusal) if refusal.because == CloudErrorKind::NotFound => {
                    self.disk_gone(id.derived(), &disk.id.0);
                    return Ok(lost);
                }
                // Asked again, the cloud says what became of it.
                Err(refusal) if refusal.may_be_sent_again() && !lost => lost = true,
                Err(refusal) => return Err(self.refused("delete disk", &format!("volume {id}"), refusal)),
            }
        }
        self.disk_gone(id.derived(), &disk.id.0);
        Ok(true)
    }
}

//! Volumes come and go.
//!
//! A disk is made with a token derived from its volume, so that a request that is repeated, by this process or the next, answers the
//! disk that was made. Once such a disk is gone, its token is used up: the next one has the next *generation* in it, counted from what
//! this process saw go, else by asking the cloud for one token after the other.

use crate::backend::{CapacityAnswer, CapacityQuery, Provision, Quiesce, VolumeSpec, with_own_part};
use crate::os::step::step;
use crate::volume::digest::{sha256, sha256_of};
use crate::volume::{Bytes, ContentSource, Error, Outcome, Result, Rollback, Topology, Volume, VolumeId};

use super::api::{Answer, AttachmentState, CloudErrorKind, Disk, DiskId, DiskSource, DiskSpec, DiskState, Refusal};
use super::controller::Controller;
use super::find::Located;
use super::memory::SETTLED;
use super::poller::Unfinished;
use super::pollers::Key;
use super::tags::{self, VOLUME};
use super::timeouts::{SHOWN, WAIT};

/// How many disks of one volume may have come and gone without this process knowing.
const GENERATIONS: u32 = 32;
/// How often a request whose answer is lost is sent again at once.
const REPEATS: u32 = 2;

/// What became of a request for a disk.
enum Requested {
    Made(Box<Disk>),
    /// The token's disk has come and gone.
    Used,
    /// A direct copy was refused; no earlier request has made one either.
    Refused(Refusal),
}

/// Sends a request for a disk.
pub(super) type Send<'a> = &'a mut dyn FnMut(&DiskSpec) -> Result<Answer<Disk>>;

impl Provision for Controller {
    fn unit(&self) -> u64 {
        self.policy.unit()
    }

    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let Some(disk) = self.disk(id)?.filter(|disk| disk.is_whole() && !self.memory.is_torn(id.derived())) else {
            if id.recorded().is_some() {
                self.report_copies(id);
            }
            return Ok(None);
        };
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
        let (zone, site) = self.choose_zone(spec)?;
        let settings = match site {
            Some(site) => self.policy.placed(draft.settings, &site)?,
            None => draft.settings,
        };
        let recorded = with_own_part(&spec.parameters, |own| self.policy.requested_parameters(own));
        let request = DiskSpec {
            token: String::new(),
            capacity: spec.capacity,
            zone,
            source: DiskSource::Empty,
            tags: self.owner.disk(spec, &recorded, &draft.tags),
            multi_attach: draft.multi_attach,
            settings,
        };
        let disk = match &spec.source {
            None => self.make(&spec.id, request)?,
            Some(ContentSource::Snapshot(snapshot)) => {
                let source = DiskSource::Snapshot(self.completed_snapshot(snapshot)?.id);
                self.make(&spec.id, DiskSpec { source, ..request })?
            }
            Some(ContentSource::Volume(source)) => self.make_copy(&spec.id, source, request, quiesce)?,
        };
        self.owner.volume(&disk, self.policy.as_ref())
    }

    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        let disk = self.confirmed_disk(id)?;
        let changed = match &disk {
            Some(disk) => self.delete_disk(id, disk)?,
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
    /// The zone that is preferred, else one that is allowed, else any: then each volume's by its digest, so that they are spread.
    /// With it the site in the zone, where one is asked for; nobody gets to one by chance.
    fn choose_zone(&self, spec: &VolumeSpec) -> Result<(String, Option<String>)> {
        let place = |segments: &Topology| {
            let zone = self.policy.zone(segments)?;
            Some(self.policy.site(segments).map(|site| (zone, site)))
        };
        if let Some(preferred) = spec.topology.preferred.iter().find_map(place) {
            return preferred;
        }
        let mut zones: Vec<_> = spec.topology.requisite.iter().filter_map(place).collect::<Result<_>>()?;
        if zones.iter().any(|(_, site)| site.is_none()) {
            zones.retain(|(_, site)| site.is_none());
        }
        if zones.is_empty() {
            zones = self.zones()?.into_iter().map(|zone| (zone, None)).collect();
        }
        zones.sort();
        zones.dedup();
        let digest = sha256(spec.id.derived().as_bytes());
        let place = usize::from_str_radix(&digest[..8], 16).unwrap_or_default();
        let chosen = zones.get(place % zones.len().max(1)).cloned();
        chosen.ok_or_else(|| Error::BackendUnavailable {
            backend: self.owner.backend.to_string(),
            reason: "the cloud tells of no zone in which a disk could be".to_owned(),
        })
    }

    pub(super) fn zones(&self) -> Result<Vec<String>> {
        if let Some(zones) = self.zones.get() {
            return Ok(zones.clone());
        }
        let zones = self.cloud.zones().map_err(|refusal| super::errors::unknown(&self.owner.backend, "zones", &refusal))?;
        Ok(self.zones.get_or_init(|| zones).clone())
    }

    /// Makes the disk of a volume, or finds the one that an earlier request made, and waits until it is available.
    pub(super) fn make(&self, id: &VolumeId, spec: DiskSpec) -> Result<Disk> {
        let send: Send<'_> = &mut |spec| Ok(step("create disk", id, || self.cloud.create_disk(spec)));
        self.make_by(send, id, spec)?.map_err(|refusal| self.not_made(id, refusal))
    }

    /// As `make`, by requests that `send` sends; a direct copy that was refused is an inner error.
    pub(super) fn make_by(&self, send: Send<'_>, id: &VolumeId, mut spec: DiskSpec) -> Result<Answer<Disk>> {
        let what = id.derived();
        // One that is not whole yet was found by `find`.
        if let Some(known) = self.memory.known(what) {
            match self.locate(id)? {
                Located::Seen(disk) => match self.wait_available(id, *disk)? {
                    Some(disk) => return self.matches_request(id, disk, &spec).map(Ok),
                    None => self.memory.gone(what, &known.id),
                },
                Located::Hidden(disk) => return Err(self.not_shown(id, &disk)),
                Located::None => {}
            }
        }
        let first = self.memory.generation(what);
        for generation in first..first + GENERATIONS {
            spec.token = self.token(what, generation);
            match self.request(send, id, &spec)? {
                Requested::Made(disk) if !self.memory.is_gone(&disk.id.0) => {
                    self.memory.made(what, &disk.id.0);
                    let disk_id = disk.id.clone();
                    match self.wait_available(id, *disk)? {
                        Some(disk) => return self.matches_request(id, disk, &spec).map(Ok),
                        None => self.memory.gone(what, &disk_id.0),
                    }
                }
                Requested::Made(_) | Requested::Used => {}
                Requested::Refused(refusal) => return Ok(Err(refusal)),
            }
            self.memory.set_generation(what, generation + 1);
        }
        let reason = format!("all {GENERATIONS} idempotency tokens belong to deleted disks; retry");
        Err(Error::InProgress { object: format!("volume {id}"), reason })
    }

    /// At most 64 characters (EC2 API reference, "Ensuring idempotency").
    fn token(&self, what: &str, generation: u32) -> String {
        sha256_of([self.owner.cluster.as_str(), self.owner.backend.as_str(), what, &generation.to_string()])
    }

    /// One disk by its token. What is asked for is not in the token: a request with other parameters than one whose answer was lost
    /// must not make a second disk.
    fn request(&self, send: Send<'_>, id: &VolumeId, spec: &DiskSpec) -> Result<Requested> {
        let object = format!("volume {id}");
        let is_copy = matches!(spec.source, DiskSource::Disk(_));
        let mut repeats = 0;
        loop {
            let refusal = match send(spec)? {
                Ok(disk) if matches!(disk.state, DiskState::Deleting | DiskState::Deleted) => return Ok(Requested::Used),
                Ok(disk) => return Ok(Requested::Made(Box::new(disk))),
                Err(refusal) => refusal,
            };
            match refusal.because {
                _ if refusal.maybe_done => {
                    self.memory.note_unknown_outcome(id.derived());
                    repeats += 1;
                    if repeats > REPEATS {
                        return Err(Error::failed("create disk", object, refusal));
                    }
                }
                CloudErrorKind::OtherParameters => return self.find_created_with_other_parameters(id, refusal),
                CloudErrorKind::TokenSpent => return Ok(Requested::Used),
                // A cloud may look at its quotas before it looks at the token of a disk that it has made already.
                CloudErrorKind::Quota | CloudErrorKind::NoCapacity => return self.made_before(id, refusal),
                // What is named first is the snapshot; without one it can only be the token's disk.
                CloudErrorKind::NotFound if spec.source == DiskSource::Empty => return Ok(Requested::Used),
                _ if is_copy && refusal.may_concern_the_copy() => {
                    // The first of two requests may have made what the second is refused for.
                    let made = self.confirmed_disk(id)?;
                    return Ok(made.map_or(Requested::Refused(refusal), |disk| Requested::Made(Box::new(disk))));
                }
                _ => return Err(self.not_made(id, refusal)),
            }
        }
    }

    pub(super) fn not_made(&self, id: &VolumeId, refusal: Refusal) -> Error {
        self.after_unknown_outcome(id, self.refused("create disk", &format!("volume {id}"), refusal).rolled_back())
    }

    /// An error that is not final where an earlier request may have made a disk.
    pub(super) fn after_unknown_outcome(&self, id: &VolumeId, error: Error) -> Error {
        match self.memory.outcome_unknown_until(id.derived()) {
            Some(_) => error.leaving("the answer to an earlier request was lost; it may have made a disk"),
            None => error,
        }
    }

    /// The disk that an earlier request made, of this process or of one before it, where this request is refused.
    fn made_before(&self, id: &VolumeId, refusal: Refusal) -> Result<Requested> {
        let key = Key::Tag(VOLUME, id.derived().to_owned());
        let until = self.look_until(self.memory.outcome_unknown_until(id.derived())).unwrap_or_else(|| self.clock.now());
        match self.pollers.disks.wait(&key, until, |seen| self.one(id, seen).transpose()) {
            Ok(disk) => disk.map(|disk| Requested::Made(Box::new(disk))),
            Err(_) => Err(self.not_made(id, refusal)),
        }
    }

    /// An earlier request with this token had other parameters. Its disk is the volume's; if it is not shown, it may be hidden, or long
    /// gone.
    fn find_created_with_other_parameters(&self, id: &VolumeId, refusal: Refusal) -> Result<Requested> {
        let what = format!("other/{}", id.derived());
        let until = self.clock.now() + SHOWN;
        let key = Key::Tag(VOLUME, id.derived().to_owned());
        match self.pollers.disks.wait(&key, until, |seen| self.one(id, seen).transpose()) {
            Ok(disk) => disk.map(|disk| Requested::Made(Box::new(disk))),
            Err(unfinished) if unfinished.refusal.is_none() && self.memory.missing_for(&what) >= SETTLED => Ok(Requested::Used),
            Err(_) => Err(Error::failed("create disk", format!("volume {id}"), refusal)
                .leaving("an earlier request with other parameters may have made a disk, which the cloud does not show yet")),
        }
    }

    /// Waits until a disk is available. `None` is one that has come and gone.
    pub(super) fn wait_available(&self, id: &VolumeId, disk: Disk) -> Result<Option<Disk>> {
        if matches!(disk.state, DiskState::Available | DiskState::InUse) && self.owner.is_disk_of(id, &disk) {
            return Ok(Some(disk));
        }
        if disk.state == DiskState::Failed && self.owner.is_disk_of(id, &disk) {
            return Err(self.delete_failed(id, &disk));
        }
        let mut shown = false;
        let patience = if is_old(&disk) { SHOWN } else { WAIT };
        let waited = self.pollers.disks.wait(&Key::from(&disk.id), self.clock.now() + patience, |seen| {
            let seen = seen.iter().find(|seen| seen.id == disk.id)?;
            shown = true;
            (seen.state != DiskState::Creating).then(|| seen.clone())
        });
        match waited {
            Ok(failed) if failed.state == DiskState::Failed => Err(self.delete_failed(id, &failed)),
            Ok(gone) if matches!(gone.state, DiskState::Deleting | DiskState::Deleted) && is_old(&disk) => Ok(None),
            Ok(gone) if matches!(gone.state, DiskState::Deleting | DiskState::Deleted) => {
                self.memory.gone(id.derived(), &disk.id.0);
                Err(Error::failed("create disk", format!("volume {id}"), self.policy.why_vanished(&disk.id)).rolled_back())
            }
            Ok(disk) if self.owner.is_disk_of(id, &disk) => Ok(Some(disk)),
            Ok(disk) => self.owner.volume(&disk, self.policy.as_ref()).and_then(|volume| {
                let reason = format!("its tags say that it is volume {}'s", volume.id);
                Err(Error::Unverified { device: format!("disk {}", disk.id), reason })
            }),
            Err(unfinished) if !shown && unfinished.refusal.is_none() && self.is_long_gone(id, &disk) => Ok(None),
            Err(unfinished) if unfinished.refusal.is_none() && !unfinished.shows(&disk.id) => Err(self.not_shown(id, &disk.id)),
            Err(unfinished) => {
                let why = unfinished.refusal.map(|refusal| format!(", and the last question failed: {refusal}"));
                let reason = format!("the cloud is still making its disk {}{}", disk.id, why.unwrap_or_default());
                Err(Error::InProgress { object: format!("volume {id}"), reason })
            }
        }
    }

    /// A disk that the cloud has accepted, and does not show, or no longer.
    fn not_shown(&self, id: &VolumeId, disk: &DiskId) -> Error {
        let reason = format!(
            "the cloud does not show its new disk {disk}; retry. If it is not shown within {} minutes, another is made: {}",
            SETTLED.as_secs() / 60,
            self.policy.why_vanished(disk)
        );
        Error::InProgress { object: format!("volume {id}"), reason }
    }

    /// A disk by whose token the cloud answers, and which it does not show, is new, or was deleted by a process before this one.
    fn is_long_gone(&self, id: &VolumeId, disk: &Disk) -> bool {
        let known = self.memory.known(id.derived()).filter(|known| known.id == disk.id.0);
        is_old(disk) || known.is_some_and(|known| !self.memory.may_be_hidden(&known))
    }

    /// A disk that could not be made, or was lost before anybody had it.
    fn delete_failed(&self, id: &VolumeId, disk: &Disk) -> Error {
        let failure =
            Error::failed("create disk", format!("volume {id}"), format!("the cloud reports that disk {} has failed", disk.id));
        match self.delete_disk(id, disk) {
            Ok(_) => failure.rolled_back(),
            Err(error) => failure.leaving(format!("disk {}: {error}", disk.id)),
        }
    }

    /// A disk that an earlier request made, if it is what is asked for now.
    pub(super) fn matches_request(&self, id: &VolumeId, disk: Disk, spec: &DiskSpec) -> Result<Disk> {
        let is = |zone: &str, capacity: Bytes| format!("{capacity} in zone {zone}");
        if disk.capacity == spec.capacity && disk.zone == spec.zone {
            return Ok(disk);
        }
        Err(Error::Conflict {
            object: format!("volume {id}"),
            existing: format!("{} (disk {}, of an earlier request)", is(&disk.zone, disk.capacity), disk.id),
            wanted: is(&spec.zone, spec.capacity),
        })
    }

    /// The disk of a volume, whatever its state. That there is none is concluded only where none can be hidden.
    pub(super) fn confirmed_disk(&self, id: &VolumeId) -> Result<Option<Disk>> {
        if let Some(disk) = self.disk(id)? {
            return Ok(Some(disk));
        }
        let (key, outcome_unknown) = match id.recorded() {
            // Whose id was answered, was made.
            Some(disk) => (Key::Id(disk.to_owned()), None),
            None => (Key::Tag(VOLUME, id.derived().to_owned()), self.memory.outcome_unknown_until(id.derived())),
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
            match step("delete disk", id, || self.cloud.delete_disk(&disk.id)) {
                Ok(()) => break,
                Err(refusal) if refusal.because == CloudErrorKind::NotFound => {
                    self.memory.gone(id.derived(), &disk.id.0);
                    return Ok(lost);
                }
                // Asked again, the cloud says what became of it.
                Err(refusal) if refusal.maybe_done && !lost => lost = true,
                Err(refusal) => return Err(self.refused("delete disk", &format!("volume {id}"), refusal)),
            }
        }
        self.memory.gone(id.derived(), &disk.id.0);
        Ok(true)
    }
}

impl Unfinished<Disk> {
    fn shows(&self, id: &DiskId) -> bool {
        self.last.iter().flatten().any(|disk| disk.id == *id)
    }
}

/// Whether it was made so long ago that it would be shown.
fn is_old(disk: &Disk) -> bool {
    disk.created.is_some_and(|created| created.elapsed().is_ok_and(|age| age >= SETTLED))
}

/// Whether nothing still runs behind an error.
pub(super) fn is_over(error: &Error) -> bool {
    match error {
        Error::InProgress { .. } | Error::BackendUnavailable { .. } | Error::Throttled { .. } | Error::Busy { .. } => false,
        Error::Failed { rollback, .. } => *rollback == Rollback::Verified,
        _ => true,
    }
}

//! The disk of a volume is made, once.
//!
//! A request that is repeated, by this process or the next, must not make a second disk. How that is known is the cloud's
//! ([`Idempotency`]): by a name or a token derived from the volume, or by looking for the disk first. Once a disk is gone, its token is
//! used up: the next one has the next *generation* in it, counted from what this process saw go, else by asking the cloud for one token
//! after the other.

use crate::os::step::step;
use crate::volume::{Bytes, Error, Result, Rollback, VolumeId};

use super::api::{Answer, CloudErrorKind, Disk, DiskId, DiskSource, DiskSpec, DiskState, Refusal, Tags, Zones};
use super::constants::Idempotency;
use super::controller::Controller;
use super::find::Located;
use super::poller::Unfinished;
use super::pollers::Key;
use super::tags;
use super::timeouts::WAIT;
use super::zones;

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

/// The request for a disk that is made of something with these tags, and holds what that holds.
pub(super) fn copied(spec: DiskSpec, source: DiskSource, tags: &Tags) -> DiskSpec {
    let tags = spec.tags.into_iter().chain(tags::contents(tags)).collect();
    DiskSpec { source, tags, ..spec }
}

impl Controller {
    /// Makes the disk of a volume, or finds the one that an earlier request made, and waits until it is available.
    pub(super) fn make(&self, id: &VolumeId, spec: DiskSpec, required: &Zones) -> Result<Disk> {
        let send: Send<'_> = &mut |spec| Ok(self.finish("create disk", step("create disk", id, || self.cloud.create_disk(spec))));
        self.make_by(send, id, spec, required)?.map_err(|refusal| self.not_made(id, refusal))
    }

    /// As `make`, by requests that `send` sends; a direct copy that was refused is an inner error.
    pub(super) fn make_by(&self, send: Send<'_>, id: &VolumeId, mut spec: DiskSpec, required: &Zones) -> Result<Answer<Disk>> {
        let what = id.derived();
        // One that is not whole yet was found by `find`.
        if let Some(known) = self.memory.known(what) {
            match self.locate(id)? {
                Located::Seen(disk) => match self.wait_available(id, *disk)? {
                    Some(disk) => return self.matches_request(id, disk, &spec, required).map(Ok),
                    None => self.disk_gone(what, &known.id),
                },
                Located::Hidden(disk) => return Err(self.not_shown(id, &disk)),
                Located::None => {}
            }
        }
        if let Some(disk) = self.made_earlier(id)? {
            let disk_id = disk.id.clone();
            match self.wait_available(id, disk)? {
                Some(disk) => return self.matches_request(id, disk, &spec, required).map(Ok),
                None => self.disk_gone(what, &disk_id.0),
            }
        }
        let first = self.memory.generation(what);
        let rounds = if self.constants.disks == Idempotency::Token { GENERATIONS } else { 1 };
        for generation in first..first + rounds {
            spec.key = self.request_key(self.constants.disks, what, generation);
            match self.request(send, id, &spec)? {
                Requested::Made(disk) if !self.is_spent(&disk) => {
                    self.memory.made(what, &disk.id.0);
                    let disk = self.older_than(id, &disk)?.unwrap_or(*disk);
                    let disk_id = disk.id.clone();
                    match self.wait_available(id, disk)? {
                        Some(disk) => return self.matches_request(id, disk, &spec, required).map(Ok),
                        None => self.disk_gone(what, &disk_id.0),
                    }
                }
                Requested::Made(_) | Requested::Used => {}
                Requested::Refused(refusal) => return Ok(Err(refusal)),
            }
            self.memory.set_generation(what, generation + 1);
        }
        let reason = match self.constants.disks {
            Idempotency::Token => format!("all {GENERATIONS} idempotency tokens belong to deleted disks; retry"),
            Idempotency::UniqueName | Idempotency::FindFirst => "an earlier disk of it is being deleted; retry".to_owned(),
        };
        Err(Error::InProgress { object: format!("volume {id}"), reason })
    }

    /// Where a repeat is not recognised, two processes that look at the same time make two disks. The older one is the volume's; the one that
    /// this call has just made, whose id nobody was given, is deleted.
    fn older_than(&self, id: &VolumeId, made: &Disk) -> Result<Option<Disk>> {
        if self.constants.disks != Idempotency::FindFirst {
            return Ok(None);
        }
        let seen = self.pollers.disks.look(&self.disk_key(id)).map_err(|refusal| self.unknown(id, &refusal))?;
        let all = self.ours(id, &seen).into_iter().filter(|disk| !tags::is_restored_backup(disk));
        let Some(oldest) = all.min_by_key(|disk| (disk.created, disk.id.clone())) else { return Ok(None) };
        let is_shown = seen.iter().any(|disk| disk.id == made.id);
        if oldest.id == made.id || !is_shown {
            return Ok(None);
        }
        tracing::warn!(volume = %id, kept = %oldest.id, deleted = %made.id, "another process made a disk of the volume at the same time");
        if let Some(whole) = self.wait_available(id, made.clone())? {
            self.delete_disk(id, &whole)?;
        }
        self.memory.made(id.derived(), &oldest.id.0);
        Ok(Some(oldest))
    }

    /// Whether an answer is of a disk that is known to be gone: that of a token that was used before.
    fn is_spent(&self, disk: &Disk) -> bool {
        self.constants.disks == Idempotency::Token && self.memory.is_gone(&disk.id.0)
    }

    /// One disk by its key. What is asked for is not in the key: a request with other parameters than one whose answer was lost must
    /// not make a second disk.
    fn request(&self, send: Send<'_>, id: &VolumeId, spec: &DiskSpec) -> Result<Requested> {
        let object = format!("volume {id}");
        let is_copy = matches!(spec.source, DiskSource::Disk(_));
        let has_token = self.constants.disks == Idempotency::Token;
        let mut repeats = 0;
        loop {
            let refusal = match send(spec)? {
                Ok(disk) if matches!(disk.state, DiskState::Deleting | DiskState::Deleted) => return Ok(Requested::Used),
                Ok(disk) => return Ok(Requested::Made(Box::new(disk))),
                Err(refusal) => refusal,
            };
            match refusal.because {
                CloudErrorKind::Running => {
                    self.memory.note_unknown_outcome(id.derived());
                    return Err(self.refused("create disk", &object, refusal));
                }
                _ if refusal.maybe_done => {
                    self.memory.note_unknown_outcome(id.derived());
                    if self.constants.disks == Idempotency::FindFirst {
                        return self.find_created(id, refusal);
                    }
                    repeats += 1;
                    if repeats > REPEATS {
                        return Err(Error::failed("create disk", object, refusal));
                    }
                }
                CloudErrorKind::OtherParameters => return self.find_created_with_other_parameters(id, refusal),
                CloudErrorKind::TokenSpent => return Ok(Requested::Used),
                CloudErrorKind::Exists => return self.find_created(id, refusal),
                // A cloud may look at its quotas before it looks at the token of a disk that it has made already.
                CloudErrorKind::Quota | CloudErrorKind::NoCapacity => return self.made_before(id, refusal),
                // What is named first is the snapshot; without one it can only be the token's disk.
                CloudErrorKind::NotFound if has_token && spec.source == DiskSource::Empty => return Ok(Requested::Used),
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
        let key = self.disk_key(id);
        let until = self.look_until(self.memory.outcome_unknown_until(id.derived())).unwrap_or_else(|| self.clock.now());
        match self.pollers.disks.wait(&key, until, |seen| self.one(id, seen).transpose()) {
            Ok(disk) => disk.map(|disk| Requested::Made(Box::new(disk))),
            // What is not seen may be there.
            Err(Unfinished { refusal: Some(unseen), .. }) => {
                let unseen = self.unknown(id, &unseen);
                Err(self.not_made(id, refusal).leaving(format!("an earlier request may have made a disk: {unseen}")))
            }
            Err(_) => Err(self.not_made(id, refusal)),
        }
    }

    /// An earlier request with this token had other parameters. Its disk is the volume's; if it is not shown, it may be hidden, or long
    /// gone.
    fn find_created_with_other_parameters(&self, id: &VolumeId, refusal: Refusal) -> Result<Requested> {
        let what = format!("other/{}", id.derived());
        let until = self.clock.now() + self.constants.consistency.shown;
        let key = self.disk_key(id);
        match self.pollers.disks.wait(&key, until, |seen| self.one(id, seen).transpose()) {
            Ok(disk) => disk.map(|disk| Requested::Made(Box::new(disk))),
            Err(unfinished)
                if unfinished.refusal.is_none() && self.memory.missing_for(&what) >= self.constants.consistency.settled =>
            {
                Ok(Requested::Used)
            }
            Err(_) => Err(Error::failed("create disk", format!("volume {id}"), refusal)
                .leaving("an earlier request with other parameters may have made a disk, which the cloud does not show yet")),
        }
    }

    /// The disk that a request has made, or may have made. That it is not shown is never final: it may be soon.
    ///
    /// # Errors
    /// `Unverified` where one has the name that is not the volume's.
    fn find_created(&self, id: &VolumeId, refusal: Refusal) -> Result<Requested> {
        let until = self.clock.now() + self.constants.consistency.shown;
        match self.pollers.disks.wait(&self.disk_key(id), until, |seen| self.one(id, seen).transpose()) {
            Ok(disk) => disk.map(|disk| Requested::Made(Box::new(disk))),
            Err(_) => Err(Error::failed("create disk", format!("volume {id}"), refusal)
                .leaving("a request may have made a disk, which the cloud does not show yet")),
        }
    }

    /// The disk that an earlier request may have made, where a repeat would not be recognised by the cloud: one of unique names has the
    /// name in one place, and a volume that is asked for anew may be wanted in another.
    fn made_earlier(&self, id: &VolumeId) -> Result<Option<Disk>> {
        match self.constants.disks {
            Idempotency::Token => Ok(None),
            Idempotency::UniqueName if self.look_until(self.memory.outcome_unknown_until(id.derived())).is_none() => Ok(None),
            Idempotency::UniqueName | Idempotency::FindFirst => self.confirmed_disk(id),
        }
    }

    /// Waits until a disk is available. `None` is one that has come and gone.
    pub(super) fn wait_available(&self, id: &VolumeId, disk: Disk) -> Result<Option<Disk>> {
        if disk.is_whole() && self.owner.is_disk_of(id, &disk) {
            return Ok(Some(disk));
        }
        if disk.state == DiskState::Failed && self.owner.is_disk_of(id, &disk) {
            return Err(self.delete_failed(id, &disk));
        }
        let mut shown = false;
        let patience = if self.is_old(&disk) { self.constants.consistency.shown } else { WAIT };
        let waited = self.pollers.disks.wait(&Key::from(&disk.id), self.clock.now() + patience, |seen| {
            let seen = seen.iter().find(|seen| seen.id == disk.id)?;
            shown = true;
            (seen.state != DiskState::Creating).then(|| seen.clone())
        });
        match waited {
            Ok(failed) if failed.state == DiskState::Failed => Err(self.delete_failed(id, &failed)),
            Ok(gone) if matches!(gone.state, DiskState::Deleting | DiskState::Deleted) && self.is_old(&disk) => Ok(None),
            Ok(gone) if matches!(gone.state, DiskState::Deleting | DiskState::Deleted) => {
                self.disk_gone(id.derived(), &disk.id.0);
                Err(Error::failed(
                    "create disk",
                    format!("volume {id}"),
                    self.policy.why_vanished(&disk.id) + &self.why_failed(&disk.id),
                )
                .rolled_back())
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
            self.constants.consistency.settled.as_secs() / 60,
            self.policy.why_vanished(disk)
        );
        Error::InProgress { object: format!("volume {id}"), reason }
    }

    /// A disk by whose token the cloud answers, and which it does not show, is new, or was deleted by a process before this one.
    fn is_long_gone(&self, id: &VolumeId, disk: &Disk) -> bool {
        let known = self.memory.known(id.derived()).filter(|known| known.id == disk.id.0);
        self.is_old(disk) || known.is_some_and(|known| !self.memory.may_be_hidden(&known))
    }

    /// Whether it was made so long ago that it would be shown.
    fn is_old(&self, disk: &Disk) -> bool {
        let settled = self.constants.consistency.settled;
        disk.created.is_some_and(|created| created.elapsed().is_ok_and(|age| age >= settled))
    }

    /// A disk that could not be made, or was lost before anybody had it.
    fn delete_failed(&self, id: &VolumeId, disk: &Disk) -> Error {
        let object = format!("volume {id}");
        let failure = match self.failure_of(&disk.id) {
            // Only the end of the operation says so.
            Some(refusal) if matches!(refusal.because, CloudErrorKind::NoCapacity | CloudErrorKind::Quota) => {
                self.refused("create disk", &object, Refusal { maybe_done: false, ..refusal })
            }
            why => {
                let why = why.map(|refusal| format!(": {refusal}")).unwrap_or_default();
                Error::failed("create disk", object, format!("the cloud reports that disk {} has failed{why}", disk.id))
            }
        };
        match self.delete_disk(id, disk) {
            Ok(_) => failure.rolled_back(),
            Err(error) => failure.leaving(format!("disk {}: {error}", disk.id)),
        }
    }

    /// A disk that an earlier request made, if it is what is asked for now: in as many zones, and reached from one of the `required`. Which
    /// of them were chosen may differ, since that depends on the order in which a CO lists them.
    pub(super) fn matches_request(&self, id: &VolumeId, disk: Disk, spec: &DiskSpec, required: &Zones) -> Result<Disk> {
        let is = |zones: &Zones, capacity: Bytes| format!("{capacity} in {}", zones::words(zones));
        let is_reached = required.is_empty() || !disk.zones.is_disjoint(required);
        let is_placed = disk.zones == spec.zones || (disk.zones.len() == spec.zones.len() && is_reached);
        check_source(id, &disk, spec)?;
        if disk.capacity == spec.capacity && is_placed {
            return Ok(disk);
        }
        Err(Error::Conflict {
            object: format!("volume {id}"),
            existing: format!("{} (disk {}, of an earlier request)", is(&disk.zones, disk.capacity), disk.id),
            wanted: is(&spec.zones, spec.capacity),
        })
    }
}

impl Unfinished<Disk> {
    fn shows(&self, id: &DiskId) -> bool {
        self.last.iter().flatten().any(|disk| disk.id == *id)
    }
}

/// Whether a disk that an earlier request made is of the source that is asked for now.
pub(super) fn check_source(id: &VolumeId, disk: &Disk, spec: &DiskSpec) -> Result<()> {
    let source = |of: &Tags| of.get(tags::SOURCE).cloned().unwrap_or_else(|| "nothing".to_owned());
    let (made_of, wanted_of) = (source(&disk.tags), source(&spec.tags));
    if made_of == wanted_of {
        return Ok(());
    }
    Err(Error::Conflict {
        object: format!("volume {id}"),
        existing: format!("made of {made_of} (disk {}, of an earlier request)", disk.id),
        wanted: format!("made of {wanted_of}"),
    })
}

/// Whether nothing still runs behind an error.
pub(super) fn is_over(error: &Error) -> bool {
    match error {
        Error::Failed { rollback, .. } => *rollback == Rollback::Verified,
        other => !other.may_pass(),
    }
}

//! Volumes grow and change.
//!
//! A cloud allows a change of a disk once in hours (EC2: six), and it takes size and settings in one request. The CO asks for the two
//! by separate calls; those that come together become one change. One that continues is waited for, never sent again.

use std::time::SystemTime;

use crate::backend::Modify;
use crate::os::step::step;
use crate::volume::{Bytes, Error, Outcome, RawParameters, Result, VolumeId};

use super::api::{Change, ChangeState, Changing, CloudErrorKind, Disk, DiskId, Refusal};
use super::changes::Wanted;
use super::controller::Controller;
use super::pollers::Key;
use super::timeouts::WAIT;

impl Modify for Controller {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        self.policy.check_mutable(raw)
    }

    fn modify(&self, id: &VolumeId, raw: &RawParameters) -> Result<Outcome<()>> {
        self.policy.check_mutable(raw)?;
        let disk = self.disk(id)?.ok_or_else(|| Error::volume_not_found(id))?;
        if self.policy.amend(&disk, disk.capacity, raw)?.is_none() {
            return Ok(Outcome::Unchanged(()));
        }
        let wanted = Wanted { capacity: None, parameters: Some(raw.clone()) };
        self.join_change(id, &disk, &wanted).map(|outcome| outcome.map(|_| ()))
    }
}

impl Controller {
    pub fn expand(&self, id: &VolumeId, capacity: Bytes) -> Result<Outcome<Bytes>> {
        let disk = self.disk(id)?.ok_or_else(|| Error::volume_not_found(id))?;
        if disk.capacity >= capacity {
            return Ok(Outcome::Unchanged(disk.capacity));
        }
        let most = self.policy.largest(&disk)?;
        if capacity > most {
            let reason = format!("{capacity} is more than the {most} that a disk of its type can have");
            return Err(Error::OutOfRange { field: "capacity_range", reason });
        }
        self.join_change(id, &disk, &Wanted { capacity: Some(capacity), parameters: None })
    }

    fn join_change(&self, id: &VolumeId, disk: &Disk, wanted: &Wanted) -> Result<Outcome<Bytes>> {
        self.changes.join(&disk.id, wanted, |wanted| self.change(id, &disk.id, wanted))
    }

    fn change(&self, id: &VolumeId, disk: &DiskId, wanted: &Wanted) -> Result<Outcome<Bytes>> {
        let object = format!("volume {id}");
        let seen = self.look_again(id, disk)?;
        if self.lacking(&seen, wanted)?.is_none() {
            return Ok(Outcome::Unchanged(seen.capacity));
        }
        let before = self.last_change(id, disk)?;
        // What a call before this one asked for may be on its way.
        if before.as_ref().is_some_and(|before| before.state == ChangeState::Modifying) {
            self.await_change(id, disk, None)?;
        }
        // Or has been made, and is not shown yet.
        if let (Some(before), Some(capacity), None) = (&before, wanted.capacity, &wanted.parameters)
            && before.state.is_usable()
            && before.capacity >= capacity
        {
            return Ok(Outcome::Changed(before.capacity));
        }
        let seen = self.look_again(id, disk)?;
        let Some(change) = self.lacking(&seen, wanted)? else { return Ok(Outcome::Changed(seen.capacity)) };
        let lost = match self.finish("change disk", step("change disk", id, || self.cloud.change_disk(disk, &change))) {
            Ok(begun) if begun.state.is_usable() => return Ok(Outcome::Changed(begun.capacity)),
            Ok(begun) => {
                let ended = self.await_change(id, disk, begun.since)?;
                return match ended.state.is_usable() {
                    true => Ok(Outcome::Changed(ended.capacity)),
                    false => Err(failed(&object, &ended)),
                };
            }
            Err(refusal) if refusal.maybe_done => refusal,
            Err(refusal) if refusal.because == CloudErrorKind::TooSoon => {
                return Err(self.too_soon(id, before.as_ref(), &refusal));
            }
            Err(refusal) if refusal.concerns_one() => {
                // What an earlier process or another controller began may have ended since the look: the disk has it already.
                let seen = self.look_again(id, disk)?;
                return match self.lacking(&seen, wanted)? {
                    None => Ok(Outcome::Changed(seen.capacity)),
                    Some(_) => Err(self.refused("change disk", &object, refusal).rolled_back()),
                };
            }
            Err(refusal) => return Err(self.refused("change disk", &object, refusal).rolled_back()),
        };
        // The next call finds out, and waits for it rather than ask again.
        Err(Error::failed("change disk", object, lost))
    }

    /// What a disk has not yet of what is wanted.
    fn lacking(&self, disk: &Disk, wanted: &Wanted) -> Result<Option<Change>> {
        let capacity = wanted.capacity.filter(|capacity| disk.capacity < *capacity);
        let settings = match (&wanted.parameters, capacity) {
            (None, None) => None,
            (raw, _) => self.policy.amend(disk, capacity.unwrap_or(disk.capacity), &raw.clone().unwrap_or_default())?,
        };
        let lacks = capacity.is_some() || settings.is_some();
        Ok(lacks.then_some(Change { capacity, settings }))
    }

    fn look_again(&self, id: &VolumeId, disk: &DiskId) -> Result<Disk> {
        let seen = self.pollers.disks.look(&Key::from(disk)).map_err(|refusal| self.unknown(id, &refusal))?;
        self.checked(id, disk, &seen)?.ok_or_else(|| super::find::hidden(id, disk))
    }

    fn last_change(&self, id: &VolumeId, disk: &DiskId) -> Result<Option<Changing>> {
        let seen = self.pollers.changes.look(disk).map_err(|refusal| self.unknown(id, &refusal))?;
        Ok(latest(&seen))
    }

    /// Waits until a change has ended, one that began at `since` or later where that is known.
    fn await_change(&self, id: &VolumeId, disk: &DiskId, since: Option<SystemTime>) -> Result<Changing> {
        let mut progress = 0;
        let waited = self.pollers.changes.wait(disk, self.clock.now() + WAIT, |seen| {
            let last = latest(seen).filter(|last| last.since.zip(since).is_none_or(|(last, since)| last >= since))?;
            progress = last.progress;
            (last.state != ChangeState::Modifying).then_some(last)
        });
        waited.map_err(|_| {
            let reason = format!("the cloud is changing disk {disk} ({progress} %)");
            Error::InProgress { object: format!("volume {id}"), reason }
        })
    }

    /// A cooldown is not over: UNAVAILABLE, so that the resizer continues asking, and its words say from when on it helps.
    fn too_soon(&self, id: &VolumeId, last: Option<&Changing>, refusal: &Refusal) -> Error {
        let from = last.and_then(|last| last.since).zip(self.policy.cooldown()).map(|(since, cooldown)| since + cooldown);
        let from = refusal.retry_after.map(|rest| SystemTime::now() + rest).or(from);
        let when = match (from, last.map(|last| last.state)) {
            (_, Some(ChangeState::Modifying)) => "once the change in progress has ended, and its cooldown".to_owned(),
            (Some(from), _) => format!("from {} on", humantime::format_rfc3339_seconds(from)),
            (None, _) => "later".to_owned(),
        };
        let reason = format!("volume {id} was changed not long ago; it may be changed again {when}: {refusal}");
        Error::Throttled { backend: self.owner.backend.to_string(), reason }
    }
}

impl ChangeState {
    /// Whether the new size and settings are there.
    fn is_usable(self) -> bool {
        matches!(self, ChangeState::Usable | ChangeState::Done)
    }
}

fn latest(seen: &[Changing]) -> Option<Changing> {
    seen.iter().max_by_key(|change| change.since).cloned()
}

fn failed(object: &str, change: &Changing) -> Error {
    let why = change.message.clone().unwrap_or_else(|| "without a reason".to_owned());
    Error::failed("change disk", object, format!("the cloud reports a failure: {why}")).rolled_back()
}

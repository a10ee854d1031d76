//! What is wrong with disks, with attachments, and with the cloud.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::backend::ReportHealth;
use crate::volume::{Error, Health, HealthProblem, Result, Severity, VolumeId};

use super::api::{Answer, AttachmentState, Disk, DiskId, DiskState};
use super::controller::Controller;
use super::errors::stuck;
use super::list::SERVES;
use super::lists::Impaired;

/// How long an answer of the cloud, be it a bad one, is good for a probe.
const FRESH: Duration = Duration::from_secs(60);
const FRESH_FAILURE: Duration = Duration::from_secs(5);

impl ReportHealth for Controller {
    fn volume_health(&self, id: &VolumeId) -> Result<Health> {
        let disk = self.disk(id)?.ok_or_else(|| Error::volume_not_found(id))?;
        let impaired = self.impairments(std::iter::once(disk.id.clone()))?;
        Ok(self.problems(&disk, &impaired))
    }

    fn storage_health(&self) -> Result<Health> {
        let failure = self.answers().err();
        let problem = failure.map(|refusal| problem(Severity::Inaccessible, "CloudUnreachable", refusal.to_string()));
        Ok(problem.into_iter().collect())
    }

    fn unhealthy(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(VolumeId, Health)>> {
        let disks = self.all_disks(after.is_some())?;
        let impaired = self.impairments_of_list(after.is_some(), || disks.iter().map(|disk| disk.id))?;
        let from = disks.count_before(|disk| self.owner.volume_id(disk).is_none_or(|id| after.is_some_and(|after| id <= *after)));
        let there = disks.iter_from(from).filter(|disk| self.is_there(disk));
        let found = there.filter_map(|disk| {
            let problems = self.problems(&disk, &impaired);
            (!problems.is_empty()).then_some((self.owner.volume_id(&disk)?, problems))
        });
        Ok(found.take(max).collect())
    }
}

impl Controller {
    pub fn probe(&self) -> Result<()> {
        self.answers().map_err(|refusal| Error::BackendUnavailable {
            backend: self.owner.backend.to_string(),
            reason: format!("{refusal}; check the region, the endpoint and the credentials"),
        })
    }

    /// Whether the cloud answers: as it did last, for whatever reason; else it is asked.
    fn answers(&self) -> Answer<()> {
        let now = self.clock.now();
        let mut probed = self.probed.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = self.pollers.last().into_iter().chain(probed.clone()).max_by_key(|(when, _)| *when);
        if let Some((when, answer)) = last {
            let fresh = if answer.is_ok() { FRESH } else { FRESH_FAILURE };
            if now < when + fresh {
                return answer;
            }
        }
        let answer = self.cloud.zones().map(|_| ());
        *probed = Some((self.clock.now(), answer.clone()));
        answer
    }

    fn impairments(&self, mut disks: impl Iterator<Item = DiskId>) -> Result<Impaired> {
        let mut all = Impaired::new();
        loop {
            let some: Vec<DiskId> = disks.by_ref().take(self.constants.batches.ids).collect();
            if some.is_empty() {
                return Ok(all);
            }
            let reported = self.cloud.impaired(&some);
            all.extend(reported.map_err(|refusal| super::errors::unknown(&self.owner.backend, "the state of disks", &refusal))?);
        }
    }

    /// The same of a list: for its further pages as of the first, which costs a request for each [`super::Batches::ids`] disks.
    fn impairments_of_list<Ids: Iterator<Item = DiskId>>(
        &self,
        kept_will_do: bool,
        disks: impl FnOnce() -> Ids,
    ) -> Result<Arc<Impaired>> {
        let now = self.clock.now();
        let before = self.lists.impaired.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, impaired)) = before.filter(|(when, _)| kept_will_do && now < *when + SERVES) {
            return Ok(impaired);
        }
        let impaired = Arc::new(self.impairments(disks())?);
        *self.lists.impaired.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Arc::clone(&impaired)));
        Ok(impaired)
    }

    fn problems(&self, disk: &Disk, impaired: &Impaired) -> Health {
        let mut health = Health::new();
        if disk.state == DiskState::Failed {
            let message = format!("the cloud reports that disk {} has failed; its data is lost: restore a snapshot", disk.id);
            health.push(problem(Severity::DataLoss, "DiskFailed", message));
        }
        if disk.state == DiskState::Unusable {
            let message =
                format!("the cloud reports an error of disk {}; have it repaired there, or restore a snapshot", disk.id);
            health.push(problem(Severity::Inaccessible, "DiskUnusable", message));
        }
        if let Some(words) = impaired.get(&disk.id) {
            health.push(problem(Severity::Degraded, "DiskImpaired", format!("the cloud reports for disk {}: {words}", disk.id)));
        }
        let stuck = disk.held_by().find_map(|place| {
            let seen_for = self.history.saw(&disk.id, &place.instance, place.state);
            let since = match place.state {
                // The cloud says since when it comes, but not since when it goes.
                AttachmentState::Attaching => {
                    place.since.and_then(|since| since.elapsed().ok()).unwrap_or(seen_for).max(seen_for)
                }
                AttachmentState::Detaching | AttachmentState::Busy => seen_for,
                AttachmentState::Attached | AttachmentState::Detached => return None,
            };
            (since >= self.constants.consistency.stuck).then(|| stuck(&disk.id, &place.instance, place, since))
        });
        health.extend(stuck.map(|message| problem(Severity::Inaccessible, "AttachmentStuck", message)));
        health
    }
}

fn problem(severity: Severity, reason: &'static str, message: String) -> HealthProblem {
    HealthProblem { severity, reason, message }
}

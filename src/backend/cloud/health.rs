//! What is wrong with disks, with attachments, and with the cloud.

use std::sync::PoisonError;
use std::time::Duration;

use crate::backend::ReportHealth;
use crate::volume::{Error, Health, HealthProblem, Result, Severity, VolumeId};

use super::api::{Answer, AttachmentState, Disk, DiskId, DiskState, MOST_IDS};
use super::controller::Controller;
use super::errors::stuck;
use super::memory::STUCK;

/// How long an answer of the cloud, be it a bad one, is good for a probe.
const FRESH: Duration = Duration::from_secs(60);
const FRESH_FAILURE: Duration = Duration::from_secs(5);

impl ReportHealth for Controller {
    fn volume_health(&self, id: &VolumeId) -> Result<Health> {
        let disk = self.disk(id)?.ok_or_else(|| Error::volume_not_found(id))?;
        let impaired = self.impairments(std::slice::from_ref(&disk.id))?;
        Ok(self.problems(&disk, &impaired))
    }

    fn storage_health(&self) -> Result<Health> {
        let failure = self.answers().err();
        let problem = failure.map(|refusal| problem(Severity::Inaccessible, "CloudUnreachable", refusal.to_string()));
        Ok(problem.into_iter().collect())
    }

    fn unhealthy(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(VolumeId, Health)>> {
        let disks = self.all_disks(after.is_some())?;
        let ids: Vec<DiskId> = disks.iter().map(|disk| disk.id.clone()).collect();
        let impaired = self.impairments(&ids)?;
        let mut found: Vec<(VolumeId, Health)> = disks
            .iter()
            .filter(|disk| self.is_there(disk))
            .filter_map(|disk| {
                let id = self.owner.volume_id(disk)?;
                let problems = self.problems(disk, &impaired);
                (!problems.is_empty() && after.is_none_or(|after| id > *after)).then_some((id, problems))
            })
            .collect();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        found.truncate(max);
        Ok(found)
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

    fn impairments(&self, disks: &[DiskId]) -> Result<Vec<(DiskId, String)>> {
        let mut all = Vec::new();
        for some in disks.chunks(MOST_IDS) {
            let reported = self.cloud.impaired(some);
            all.extend(reported.map_err(|refusal| super::errors::unknown(&self.owner.backend, "the state of disks", &refusal))?);
        }
        Ok(all)
    }

    fn problems(&self, disk: &Disk, impaired: &[(DiskId, String)]) -> Health {
        let mut health = Health::new();
        if disk.state == DiskState::Failed {
            let message = format!("the cloud reports that disk {} has failed; its data is lost: restore a snapshot", disk.id);
            health.push(problem(Severity::DataLoss, "DiskFailed", message));
        }
        if let Some((_, words)) = impaired.iter().find(|(id, _)| *id == disk.id) {
            health.push(problem(Severity::Degraded, "DiskImpaired", format!("the cloud reports for disk {}: {words}", disk.id)));
        }
        let stuck = disk.held_by().find_map(|place| {
            let seen_for = self.memory.saw(&disk.id, &place.instance, place.state);
            let since = match place.state {
                // The cloud says since when it comes, but not since when it goes.
                AttachmentState::Attaching => {
                    place.since.and_then(|since| since.elapsed().ok()).unwrap_or(seen_for).max(seen_for)
                }
                AttachmentState::Detaching | AttachmentState::Busy => seen_for,
                AttachmentState::Attached | AttachmentState::Detached => return None,
            };
            (since >= STUCK).then(|| stuck(&disk.id, &place.instance, place, since))
        });
        health.extend(stuck.map(|message| problem(Severity::Inaccessible, "AttachmentStuck", message)));
        health
    }
}

fn problem(severity: Severity, reason: &'static str, message: String) -> HealthProblem {
    HealthProblem { severity, reason, message }
}

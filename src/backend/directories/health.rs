//! What is wrong with volumes and bases.

use std::path::Path;

use crate::backend::ReportHealth;
use crate::volume::{Error, Health, HealthProblem, Result, Severity, VolumeId};

use super::base::Ready;
use super::record::{Phase, VolumeRecord};
use super::{Controller, ask};

impl ReportHealth for Controller {
    fn volume_health(&self, id: &VolumeId) -> Result<Health> {
        match self.locate(id.local()) {
            Ok(Some((ready, record))) if record.phase == Phase::Whole => Ok(ready.directory_health(&record)),
            Ok(_) => Err(Error::volume_not_found(id)),
            Err(error) => Ok(vec![self.problem_of(&error)]),
        }
    }

    fn storage_health(&self) -> Result<Health> {
        let mut health = Health::new();
        for (_, ready) in ask(&self.bases) {
            match ready {
                Ok(ready) => ready.trash_health().into_iter().for_each(|problem| add(&mut health, problem)),
                Err(error) => add(&mut health, self.problem_of(&error)),
            }
        }
        Ok(health)
    }

    fn unhealthy(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(VolumeId, Health)>> {
        let ids = |ready: &Ready, after: Option<&str>, max| ready.index.volumes(after, max);
        self.page(after.map(VolumeId::local), max, ids, |ready, local| {
            let health = match ready.record(local) {
                Ok(Some(record)) if record.phase == Phase::Whole => ready.directory_health(&record),
                Ok(_) => return Ok(None),
                Err(error @ Error::BackendUnavailable { .. }) => return Err(error),
                Err(error) => vec![self.problem_of(&error)],
            };
            if health.is_empty() { Ok(None) } else { Ok(Some((VolumeId::from_parts(&self.backend, local)?, health))) }
        })
    }
}

impl Ready {
    fn directory_health(&self, record: &VolumeRecord) -> Health {
        if record.is_in_memory().unwrap_or(false) {
            return Health::new();
        }
        match self.number(&record.directory) {
            Ok(Some(_)) => match self.quota_problem(record) {
                Ok(problem) => problem.into_iter().collect(),
                Err(error) => vec![problem_of(&error, self.location.unreachable())],
            },
            Ok(None) => vec![missing(&self.root.path_of(&record.directory))],
            Err(error) => vec![problem_of(&error, self.location.unreachable())],
        }
    }

    fn trash_health(&self) -> Health {
        let sweep = self.sweeper.look();
        let mut health = Health::new();
        if let Some(removed) = sweep.removed {
            let message = format!("{}: deleted volumes are being removed, {removed} files and directories so far", self.place());
            health.push(HealthProblem { severity: Severity::Degraded, reason: "EmptyingTrash", message });
        }
        if let Some(first) = sweep.stuck.first() {
            let message = format!(
                "{}: {} of what was deleted cannot be removed, and is tried again; the first is {first}",
                self.place(),
                sweep.stuck.len()
            );
            health.push(HealthProblem { severity: Severity::Degraded, reason: "TrashStuck", message });
        }
        health
    }
}

impl Controller {
    fn problem_of(&self, error: &Error) -> HealthProblem {
        problem_of(error, self.bases.first().map_or("StorageUnreachable", |base| base.location.unreachable()))
    }
}

pub(super) fn missing(directory: &Path) -> HealthProblem {
    let message = format!("{} is gone; put it back, or delete the volume", directory.display());
    HealthProblem { severity: Severity::DataLoss, reason: "DirectoryMissing", message }
}

pub(super) fn problem_of(error: &Error, unreachable: &'static str) -> HealthProblem {
    let reason = match error {
        Error::Unverified { .. } => "MetadataDamaged",
        _ => unreachable,
    };
    HealthProblem { severity: Severity::Inaccessible, reason, message: error.to_string() }
}

/// No two problems of one severity and reason.
fn add(health: &mut Health, problem: HealthProblem) {
    match health.iter_mut().find(|known| (known.severity, known.reason) == (problem.severity, problem.reason)) {
        Some(known) => known.message = format!("{}; {}", known.message, problem.message),
        None => health.push(problem),
    }
}

//! What is wrong with volumes and pools.

use crate::backend::ReportHealth;
use crate::volume::{Bytes, Error, Health, HealthProblem, Result, Severity, VolumeId};

use super::layout::Kind;
use super::meta::{Damage, VolumeMeta};
use super::pool::Pool;
use super::ready::Ready;
use super::scan::{self, examine};
use super::{ImageBackend, Located};

/// Below this share of its file system (1 in so many) a pool is nearly full.
const SCARCE: u64 = 20;

impl ReportHealth for ImageBackend {
    fn volume_health(&self, id: &VolumeId) -> Result<Health> {
        match self.locate::<VolumeMeta>(id.local()) {
            Ok(Some(Located { seen, .. })) => Ok(assess(&seen.damage)),
            Ok(None) => Err(Error::volume_not_found(id)),
            Err(Error::BackendUnavailable { reason, .. }) => Ok(vec![unreachable(reason)]),
            Err(error) => Err(error),
        }
    }

    fn storage_health(&self) -> Result<Health> {
        Ok(self.pools.iter().filter_map(|pool| self.pool_problem(pool)).fold(Health::new(), join))
    }

    fn unhealthy(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(VolumeId, Health)>> {
        let ids = |ready: &Ready, after: Option<&str>, max: usize| {
            if self.role.provision {
                return Ok(ready.ledger.volumes(after, max));
            }
            let mut names = scan::volume_names(ready)?;
            names.sort_unstable();
            let behind = names.into_iter().filter(|name| after.is_none_or(|after| name.as_str() > after));
            Ok(behind.take(max).map(String::into_boxed_str).collect())
        };
        self.page(after.map(VolumeId::local), max, ids, |ready, local| {
            let damage = examine::<VolumeMeta>(ready, local).damage;
            if damage.is_empty() || !ready.has(Kind::Volume, local)? {
                return Ok(None);
            }
            Ok(Some((VolumeId::from_parts(&self.name, local)?, assess(&damage))))
        })
    }
}

impl ImageBackend {
    fn pool_problem(&self, pool: &Pool) -> Option<HealthProblem> {
        let seen = pool.ready().and_then(|ready| Ok((ready.room()?, ready)));
        let (room, ready) = match seen {
            Ok(seen) => seen,
            Err(Error::BackendUnavailable { reason, .. }) => return Some(unreachable(reason)),
            Err(error) => return Some(unreachable(error.to_string())),
        };
        if room.read_only {
            return Some(HealthProblem {
                severity: Severity::Inaccessible,
                reason: "PoolReadOnly",
                message: format!(
                    "{} is on a read-only file system; look for its cause in the kernel's log and remount it",
                    ready.called()
                ),
            });
        }
        // Less than one unit is as good as nothing.
        let reason = match room.free {
            free if free < super::capacity::UNIT => "PoolFull",
            free if free < room.total / SCARCE => "PoolNearlyFull",
            _ => return None,
        };
        let message = format!(
            "{} has {} free of {}; delete volumes or snapshots, or enlarge it",
            ready.called(),
            Bytes(room.free),
            Bytes(room.total)
        );
        Some(HealthProblem { severity: Severity::Degraded, reason, message })
    }
}

fn unreachable(message: String) -> HealthProblem {
    HealthProblem { severity: Severity::Inaccessible, reason: "PoolUnreachable", message }
}

/// The worst first, those of one kind joined.
pub(super) fn assess(damage: &[Damage]) -> Health {
    let mut health = damage.iter().map(Damage::problem).fold(Health::new(), join);
    health.sort_by_key(|problem| std::cmp::Reverse(problem.severity));
    health
}

/// No two problems may have one severity and reason: their messages are joined.
fn join(mut health: Health, problem: HealthProblem) -> Health {
    match health.iter_mut().find(|known| (known.severity, known.reason) == (problem.severity, problem.reason)) {
        Some(known) => known.message = format!("{}; {}", known.message, problem.message),
        None => health.push(problem),
    }
    health
}

//! What is wrong with volumes, thin pools and volume groups.

use std::path::{Path, PathBuf};

use crate::backend::ReportHealth;
use crate::os::cgroup;
use crate::os::lvm::{Lv, Report, VolumeGroup, in_percent, missing_target};
use crate::volume::{Error, Health, HealthProblem, Result, Severity, VolumeId};

use super::LvmBackend;
use super::capacity::FULL;
use super::config::DeviceClass;
use super::tags::{Kind, Object};

/// In hundredths of a percent.
const NEARLY_FULL: u32 = 8000;
/// [`Lv::health`] of what lies on a physical volume that is missing.
pub(super) const PARTIAL: &str = "partial";

impl ReportHealth for LvmBackend {
    fn volume_health(&self, id: &VolumeId) -> Result<Health> {
        match self.whole(&Object::volume(id)) {
            Ok(Some(found)) => Ok(of_volume(&found.report, &found.lv)),
            Ok(None) => Err(Error::volume_not_found(id)),
            Err(Error::BackendUnavailable { reason, .. }) => Ok(vec![unreachable(reason)]),
            Err(error) => Err(error),
        }
    }

    fn storage_health(&self) -> Result<Health> {
        let mut health = Health::new();
        for group in self.groups.values() {
            health.extend(of_targets(&group.name, &group.missing_targets()));
            match self.report(group) {
                Ok(report) => {
                    health.extend(of_group(group, &report));
                    let classes = self.config.classes.iter().filter(|class| class.volume_group == group.name);
                    health.extend(classes.flat_map(|class| of_pool(class, &report)));
                }
                Err(error) => health.push(unreachable(error.to_string())),
            }
        }
        if let Err(error) = self.config.io_limits.then(cgroup::check_io).unwrap_or(Ok(())) {
            let message = format!("volumes with limits of reads and writes cannot be published here: {error}");
            health.push(HealthProblem { severity: Severity::Degraded, reason: "IoLimitsUnavailable", message });
        }
        Ok(health.into_iter().fold(Health::new(), join))
    }

    fn unhealthy(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(VolumeId, Health)>> {
        let mut found = Vec::new();
        for (id, lv) in self.all(Kind::Volume)? {
            let Ok(id) = id.parse::<VolumeId>() else { continue };
            if after.is_some_and(|after| id <= *after) || found.len() == max {
                continue;
            }
            let health = of_lv(&lv);
            if !health.is_empty() {
                found.push((id, health));
            }
        }
        Ok(found)
    }
}

fn of_volume(report: &Report, lv: &Lv) -> Health {
    let pool = lv.pool.as_ref().and_then(|pool| report.lvs.get(pool));
    pool.into_iter().chain([lv]).flat_map(of_lv).fold(Health::new(), join)
}

/// As LVM reports it (lvs(8), lv_health_status).
pub(super) fn of_lv(lv: &Lv) -> Health {
    let mut health = of_state(lv);
    if lv.mismatches > 0 {
        let message = format!(
            "logical volume {}: {} reads of a disk did not match their checksum, and were repaired from another; replace the disk that the \
             kernel's log names",
            lv.name, lv.mismatches
        );
        health.push(HealthProblem { severity: Severity::Degraded, reason: "IntegrityMismatches", message });
    }
    health
}

fn of_state(lv: &Lv) -> Health {
    let (severity, reason, remedy) = match lv.health.as_str() {
        "" => return Health::new(),
        PARTIAL => (Severity::Inaccessible, "PhysicalVolumeMissing", "bring its disk back; `pvs` shows which is missing"),
        "refresh needed" => (Severity::Degraded, "RefreshNeeded", "its disk was away and is back: run `lvchange --refresh`"),
        "mismatches exist" => (Severity::Degraded, "MismatchesExist", "run `lvchange --syncaction repair`"),
        "out_of_data" => (Severity::Inaccessible, "ThinPoolFull", "extend the thin pool with `lvextend`"),
        "metadata_read_only" => (Severity::Inaccessible, "ThinPoolMetadataFull", "repair the thin pool, lvmthin(7)"),
        "failed" => (Severity::Inaccessible, "LogicalVolumeFailed", "see the kernel's log and lvmthin(7)"),
        _ => (Severity::Degraded, "LogicalVolumeUnhealthy", "see lvs(8), lv_health_status"),
    };
    vec![HealthProblem { severity, reason, message: format!("logical volume {}: {}; {remedy}", lv.name, lv.health) }]
}

fn of_group(VolumeGroup { name, devices, .. }: &VolumeGroup, report: &Report) -> Health {
    let mut health = Health::new();
    let mut add = |severity, reason, message: String| health.push(HealthProblem { severity, reason, message });
    if report.missing > 0 {
        let message = format!(
            "volume group {name} misses {} of its physical volumes, and LVM makes and grows nothing in it; bring the disk back, `pvs` shows which",
            report.missing
        );
        add(Severity::Degraded, "PhysicalVolumeMissing", message);
    }
    let used: Vec<PathBuf> = report.pvs.iter().map(|pv| resolved(Path::new(&pv.name))).collect();
    let unused: Vec<String> =
        devices.iter().filter(|device| !used.contains(&resolved(device))).map(|device| device.display().to_string()).collect();
    if !unused.is_empty() && report.missing == 0 {
        let message = format!(
            "{} is configured and not used as a physical volume of {name}: it is another's, or a copy of one that is; `pvs --all` shows it",
            unused.join(", ")
        );
        add(Severity::Degraded, "DeviceNotUsed", message);
    }
    // LVM keeps an old and a new version of the metadata.
    if report.metadata_free < report.metadata_size / 10 {
        let message = format!(
            "the metadata area of volume group {name} has {} of {} bytes free, and no more volumes than that can be made; see --metadatasize in pvcreate(8)",
            report.metadata_free, report.metadata_size
        );
        add(Severity::Degraded, "MetadataAreaNearlyFull", message);
    }
    health
}

/// `missing`: device-mapper targets that the classes of a volume group need and the kernel has not.
fn of_targets(group: &str, missing: &[&str]) -> Health {
    let problem = |target: &&str| HealthProblem {
        severity: Severity::Degraded,
        reason: "DeviceMapperTargetMissing",
        message: format!("a class in volume group {group} cannot be used: {}", missing_target(target)),
    };
    missing.iter().map(problem).fold(Health::new(), join)
}

/// Where a link such as /dev/disk/by-id/... leads; itself where it leads nowhere.
fn resolved(device: &Path) -> PathBuf {
    device.canonicalize().unwrap_or_else(|_| device.to_owned())
}

fn of_pool(class: &DeviceClass, report: &Report) -> Health {
    let Some(pool) = &class.thin_pool else { return Health::new() };
    let called = format!("thin pool {}/{pool}", class.volume_group);
    let Some(lv) = report.lvs.get(pool) else { return vec![unreachable(format!("{called} does not exist"))] };
    let mut health = of_lv(lv);
    for (percent, of, full, nearly) in [
        (lv.data, "data", "ThinPoolFull", "ThinPoolNearlyFull"),
        (lv.metadata, "metadata", "ThinPoolMetadataFull", "ThinPoolMetadataNearlyFull"),
    ] {
        let reason = match percent {
            Some(percent) if percent >= FULL => full,
            Some(percent) if percent >= NEARLY_FULL => nearly,
            _ => continue,
        };
        let message = format!(
            "{} of the {of} of {called} is used; extend it with `lvextend`, or delete volumes and snapshots",
            in_percent(percent)
        );
        health.push(HealthProblem { severity: Severity::Degraded, reason, message });
    }
    health
}

fn unreachable(message: String) -> HealthProblem {
    HealthProblem { severity: Severity::Inaccessible, reason: "VolumeGroupUnreachable", message }
}

/// No two problems may have one severity and reason: their messages are joined.
fn join(mut health: Health, problem: HealthProblem) -> Health {
    match health.iter_mut().find(|known| (known.severity, known.reason) == (problem.severity, problem.reason)) {
        Some(known) if known.message == problem.message => {}
        Some(known) => known.message = format!("{}; {}", known.message, problem.message),
        None => health.push(problem),
    }
    health
}

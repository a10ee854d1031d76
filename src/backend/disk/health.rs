//! What is wrong with volumes and disks.

use crate::backend::ReportHealth;
use crate::os::deadline::within;
use crate::os::disk::Disk;
use crate::os::scsi::Unit;
use crate::os::{nvme, smart};
use crate::volume::{Error, Health, HealthProblem, Result, Severity, VolumeId};

use super::DiskBackend;
use super::look::{Looked, Ours, PATIENCE, Seen, open};

impl ReportHealth for DiskBackend {
    fn volume_health(&self, id: &VolumeId) -> Result<Health> {
        let looked = self.scan()?;
        match self.find_volume(&looked, id) {
            Ok(Some((looked, ours))) => Ok(of_volume(looked, ours)),
            Ok(None) => Err(Error::volume_not_found(id)),
            Err(Error::BackendUnavailable { reason, .. }) => {
                Ok(vec![HealthProblem { severity: Severity::Inaccessible, reason: "DiskMissing", message: reason }])
            }
            Err(Error::Unverified { reason, .. }) => {
                Ok(vec![HealthProblem { severity: Severity::Inaccessible, reason: "DiskCopied", message: reason }])
            }
            Err(error) => Err(error),
        }
    }

    fn storage_health(&self) -> Result<Health> {
        let unknown = self.scan()?.into_iter().filter_map(|looked| match looked.seen {
            Seen::Unknown(why) => Some(format!("{}: {why}", looked.path.display())),
            _ => None,
        });
        let unknown: Vec<String> = unknown.collect();
        if unknown.is_empty() {
            return Ok(Health::new());
        }
        let message = format!(
            "no volume is made here, since one may be on {}; replace the disk, or take it from the classes with `exclude`",
            unknown.join("; ")
        );
        Ok(vec![HealthProblem { severity: Severity::Degraded, reason: "DiskUnreadable", message }])
    }

    fn unhealthy(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(VolumeId, Health)>> {
        let looked = self.scan()?;
        let behind = self.volumes(&looked)?.into_iter().filter(|(volume, ..)| after.is_none_or(|after| volume.id > *after));
        let volumes = behind.map(|(volume, looked, ours)| (volume.id, of_volume(looked, ours)));
        Ok(volumes.filter(|(_, health)| !health.is_empty()).take(max).collect())
    }
}

pub(super) fn of_volume(looked: &Looked, ours: &Ours) -> Health {
    let mut health = Health::new();
    let path = &looked.path;
    let mut add = |severity, reason, message: String| {
        health.push(HealthProblem { severity, reason, message: format!("{}: {message}", path.display()) });
    };
    if let Some(why) = &ours.table {
        add(Severity::Inaccessible, "PartitionTableChanged", why.clone());
    }
    if let Some(why) = &ours.twin {
        add(Severity::Inaccessible, "DiskCopied", why.clone());
    }
    if let Some(why) = &ours.copied {
        add(Severity::Degraded, "DiskChanged", why.clone());
    }
    if looked.disk.read_only {
        add(Severity::Degraded, "DiskReadOnly", "the kernel refuses writes; see its log".to_owned());
    }
    if let Some(warnings) = warnings(looked).filter(|warnings| !warnings.is_empty()) {
        add(Severity::Degraded, "DiskFailing", format!("{}; replace it, `nvme smart-log` shows more", warnings.join(", ")));
    }
    let state = Unit::of(&looked.disk.name).and_then(|unit| unit.state().ok()).unwrap_or_default();
    if state == "running"
        && let Some(why) = prediction(&looked.disk)
    {
        add(Severity::Degraded, "DiskFailing", format!("{why}; replace it, `smartctl --all` shows more"));
    }
    if !state.is_empty() && state != "running" {
        add(Severity::Inaccessible, "DiskOffline", format!("its SCSI state is {state}; see the kernel's log"));
    }
    health
}

/// Why a SCSI disk expects to fail. A bridge of USB is not asked: some hang at commands that they do not know.
fn prediction(disk: &Disk) -> Option<String> {
    let asked = !matches!(disk.transport, Some("usb" | "iscsi" | "virtio"));
    disk.sequence.filter(|_| asked).and_then(|sequence| smart::failure(&disk.name, sequence))
}

/// What an NVMe disk warns of; nothing where it does not answer in time, which others report.
fn warnings(looked: &Looked) -> Option<Vec<&'static str>> {
    let (path, number) = (looked.disk.path(), looked.disk.number);
    within(PATIENCE, move || open(&path, number, false).and_then(|device| nvme::warnings(&device)).ok().flatten()).flatten()
}

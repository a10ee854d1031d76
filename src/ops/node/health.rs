//! NodeGetVolumeHealth and NodeGetStorageHealth.

use std::path::{Path, PathBuf};

use crate::backend::{BlockDevice, Source};
use crate::os::block::Device;
use crate::os::mounts::Mounts;
use crate::volume::{Error, Health, HealthProblem, Result, Severity};

use super::context::Node;
use super::errors::source_name;
use super::journal::{Access, Phase, StageEntry};
use super::observe::{self, MountState};
use super::requests::Handle;
use super::sources::{self, Sources};
use super::{resolve, stats};

pub(super) fn health(node: &Node, handle: &Handle, publish_path: Option<&Path>, staging: Option<&Path>) -> Result<Health> {
    let missing = || Error::NotFound { kind: "volume", id: handle.to_string() };
    let id = stats::id_of(node, handle)?.ok_or_else(missing)?;
    let entry = node.journal.stage(&id)?;
    let mut health = match resolve::backend(node, &id)?.health() {
        Some(report) => match report.volume_health(&id) {
            // What is staged here and gone there is the very thing to be reported. What is not staged yet may never have been there.
            Err(Error::NotFound { .. }) if entry.as_ref().is_some_and(|entry| entry.phase == Phase::Staged) => {
                vec![HealthProblem {
                    severity: Severity::DataLoss,
                    reason: "VolumeMissing",
                    message: format!("volume {id} is staged on this node, but its backend no longer has it"),
                }]
            }
            other => other?,
        },
        None if entry.is_none() => return Err(missing()),
        None => Health::new(),
    };
    let Some(entry) = entry else {
        return match publish_path.or(staging) {
            Some(path) => Err(Error::NotFound { kind: "volume", id: format!("{id} at {}", path.display()) }),
            None => Ok(health),
        };
    };
    if entry.phase == Phase::Staged {
        here(node, &entry, publish_path, &mut health)?;
    }
    Ok(health)
}

pub(super) fn storage_health(node: &Node) -> Result<Health> {
    let mut health = Health::new();
    for backend in node.registry.iter() {
        let report = match backend.health() {
            Some(report) => report.storage_health(),
            None => backend.probe().map(|()| Health::new()),
        };
        // One that cannot answer does not hide what the others say.
        let problems = report.unwrap_or_else(|error| {
            let message = format!("backend {}: {error}", backend.name());
            vec![HealthProblem { severity: Severity::Inaccessible, reason: "BackendUnavailable", message }]
        });
        for problem in problems {
            add(&mut health, problem);
        }
    }
    Ok(health)
}

/// What this node sees of a staged volume.
fn here(node: &Node, entry: &StageEntry, publish_path: Option<&Path>, health: &mut Health) -> Result<()> {
    let used = Sources::observe(node, &entry.id, Some(entry))?.used(entry.encryption()?);
    let Some(source) = used.filter(is_there) else {
        let device = entry.source.as_ref().map(source_name).unwrap_or_default();
        let message = format!("volume {} is no longer connected as {device}; unstage it and stage it again", entry.id);
        add(health, HealthProblem { severity: Severity::Inaccessible, reason: "DeviceGone", message });
        return Ok(());
    };
    match sources::reach(node, &entry.id, &source) {
        Err(error) => {
            let reason = if matches!(error, Error::Stale { .. }) { "StaleMount" } else { "ServerUnreachable" };
            add(
                health,
                HealthProblem { severity: Severity::Inaccessible, reason, message: format!("volume {}: {error}", entry.id) },
            );
        }
        // Only of a server that answers.
        Ok(()) if !source.network_directory().map_or(Ok(true), observe::has_directory)? => {
            let message = format!("volume {}: its directory {} is not there any more", entry.id, source_name(&source));
            add(health, HealthProblem { severity: Severity::DataLoss, reason: "VolumeMissing", message });
        }
        Ok(()) => {}
    }
    let mounts = Mounts::now()?;
    for path in places(node, entry, publish_path)? {
        let at = observe::at(&mounts, &path, std::slice::from_ref(&source))?;
        let unmounted = entry.network_directory().is_some() && node.same_boot(entry);
        if path == entry.staging && at == MountState::Nothing && unmounted {
            continue;
        }
        at_place(&at, &path, entry, health);
        if observe::is_stale(&at, &path, &source) {
            let message = format!(
                "volume {} has another directory on its server than {} shows; start its pod anew",
                entry.id,
                path.display()
            );
            add(health, HealthProblem { severity: Severity::Inaccessible, reason: "StaleMount", message });
        }
    }
    if let (Access::Filesystem { fstype: Some(fstype), .. }, Source::Device(device)) = (&entry.access, &source)
        && fstype == "ext4"
    {
        recorded_errors(device, errors_of(device), entry, health);
    }
    Ok(())
}

fn is_there(source: &Source) -> bool {
    match source {
        Source::Device(device) => Device::open(&device.path, false).is_ok_and(|open| open.number() == device.number),
        Source::Filesystem { .. } | Source::Directory(_) => true,
    }
}

/// Where it ought to be mounted. A published inline volume's staging mount goes with the driver's container, and is not needed any more.
fn places(node: &Node, entry: &StageEntry, publish_path: Option<&Path>) -> Result<Vec<PathBuf>> {
    let mut places = Vec::new();
    if entry.access != Access::Block && !(entry.inline && publish_path.is_some()) {
        places.push(entry.staging.clone());
    }
    if let Some(path) = publish_path {
        let missing = || Error::NotFound { kind: "volume", id: format!("{} at {}", entry.id, path.display()) };
        let path = resolve::path(node, path).map_err(|_| missing())?;
        if path != entry.staging {
            node.journal.target(&entry.id, &path)?.ok_or_else(missing)?;
            places.push(path);
        }
    }
    Ok(places)
}

pub(super) fn at_place(at: &MountState, path: &Path, entry: &StageEntry, health: &mut Health) {
    let id = &entry.id;
    let place = path.display();
    let (severity, reason, message) = match at {
        MountState::Ours(mount) => {
            let gone_read_only = mount.super_options.iter().any(|option| option == "ro");
            if entry.access == Access::Block || entry.read_only || !gone_read_only {
                return;
            }
            let message = format!(
                "volume {id} was mounted for writing, but its file system has become read-only, as after an I/O error; see \
                 the kernel's log, then unstage it, so that the next stage checks it"
            );
            (Severity::Degraded, "ReadOnlyRemounted", message)
        }
        MountState::Nothing => (Severity::Inaccessible, "MountMissing", format!("volume {id} is no longer mounted at {place}")),
        MountState::Stack(count) => {
            let message = format!("{count} mounts of volume {id} lie on top of each other at {place}; unmount all but one");
            (Severity::Degraded, "MountStacked", message)
        }
        MountState::Foreign(mount) => {
            let message = format!("{} ({}) is mounted over volume {id} at {place}", mount.source.display(), mount.fstype);
            (Severity::Inaccessible, "MountStacked", message)
        }
    };
    add(health, HealthProblem { severity, reason, message });
}

/// ext4 counts the errors that it met, also those of earlier mounts.
pub(super) fn errors_of(device: &BlockDevice) -> u64 {
    let Some(name) = device.path.file_name() else { return 0 };
    let path = Path::new("/sys/fs/ext4").join(name).join("errors_count");
    std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

pub(super) fn recorded_errors(device: &BlockDevice, count: u64, entry: &StageEntry, health: &mut Health) {
    if count > 0 {
        let message = format!(
            "ext4 of volume {} on {} has recorded {count} errors; unstage it, so that the next stage checks it",
            entry.id,
            device.path.display()
        );
        add(health, HealthProblem { severity: Severity::Degraded, reason: "FilesystemErrors", message });
    }
}

/// No two of one severity and reason: what a second one says goes to the first.
pub(super) fn add(health: &mut Health, problem: HealthProblem) {
    let same = |there: &&mut HealthProblem| there.severity == problem.severity && there.reason == problem.reason;
    match health.iter_mut().find(same) {
        Some(there) => {
            there.message.push_str("; ");
            there.message.push_str(&problem.message);
        }
        None => health.push(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reason_is_said_once() {
        let mut health = Health::new();
        for message in ["a", "b"] {
            let message = message.to_owned();
            add(&mut health, HealthProblem { severity: Severity::Degraded, reason: "MountStacked", message });
        }
        add(&mut health, HealthProblem { severity: Severity::Inaccessible, reason: "MountStacked", message: "c".to_owned() });
        assert_eq!(health.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>(), ["a; b", "c"]);
    }
}

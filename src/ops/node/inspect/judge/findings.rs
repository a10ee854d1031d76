//! Where a volume is not as it should be, and what repairs it.

use std::path::{Path, PathBuf};

use crate::backend::{BlockDevice, Connected};
use crate::os::mountinfo::Mount;

use super::super::facts::{Looked, Ours};
use super::super::repair::Repair;
use super::super::report::{Finding, Kind, Role, shell};
use crate::ops::node::errors::source_name;
use crate::ops::node::journal::{Phase, StageEntry, TargetEntry};
use crate::ops::node::observe::MountState;
use crate::ops::node::pods::pod_of;

use super::remedies::{BLIND, EPHEMERAL, HAS_POD, close, command, text};
use super::story::Story;

impl Story<'_> {
    /// What is to be repaired, in this order: what lies on top first.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = self.held();
        if self.moving() || self.blind() {
            return findings;
        }
        let unknown: Vec<&Mount> =
            self.mounts.iter().filter(|mount| self.role(&mount.mount_point) == Role::Unknown).copied().collect();
        findings.extend(unknown.iter().map(|mount| self.mount_unknown(mount)));
        // What nothing will unmount keeps all below it in place.
        let kept = findings.iter().find(|finding| !finding.fix).map(|finding| finding.object.clone());
        findings.extend(self.targets().filter_map(|target| self.target(target)));
        if let Some(stage) = self.stage {
            findings.extend(self.staged(stage, kept.as_deref()));
        }
        // A stage that is to be undone takes its own with it.
        let undone = findings.iter().any(|finding| matches!(finding.kind, Kind::StageInterrupted | Kind::MountMissing));
        if self.stage.is_none() {
            findings.extend(self.mapping.map(|ours| self.mapping_unowned(ours, kept.as_deref())));
        }
        let owned = |device: &BlockDevice| {
            self.is_journaled(device) || (undone && self.stage.is_some_and(|stage| stage.source.is_none()))
        };
        for connected in self.devices.iter().filter(|connected| !owned(&connected.device)) {
            findings.push(self.device_unowned(connected, kept.as_deref()));
        }
        findings
            .extend(self.stale.filter(|stale| !stale.is_interrupted()).map(|stale| self.earlier_boot(stale, kept.as_deref())));
        // Once all that is planned until here is done.
        let here = self.stage.is_some() || findings.iter().any(|finding| !finding.fix);
        findings.extend(self.damaged(here));
        findings
    }

    /// Also while the driver is at it: it is this that it waits for.
    fn held(&self) -> Vec<Finding> {
        let held = self.view.facts.held.iter().filter(|held| held.id == *self.id);
        let findings = held.map(|held| {
            let finding = self.finding(Kind::DeviceHeld, text(&held.device), held.holder.to_string());
            let place = held.holder.mount_point.as_deref().map(text).unwrap_or_default();
            let unmount = ["nsenter", "--target", &held.holder.pid.to_string(), "--mount", "umount", &place].map(str::to_owned);
            let why = "it is another program's mount namespace: end the program, or delete its pod, and the unstage completes";
            self.with(finding, vec![command(&unmount)], Err(why.to_owned()))
        });
        findings.collect()
    }

    fn finding(&self, kind: Kind, object: String, what: String) -> Finding {
        let (commands, volume) = (Vec::new(), Some(self.id.to_string()));
        Finding { kind, volume, object, what, commands, fix: false, why_not: None, repair: None }
    }

    /// Why nothing of this volume is repaired by us.
    fn hands_off(&self) -> Option<String> {
        if self.stage.or(self.stale).is_some_and(|stage| stage.inline) {
            return Some(EPHEMERAL.to_owned());
        }
        match self.view.facts.backends.get(self.id.backend().as_str()) {
            None | Some(Looked::Failed) => Some(BLIND.to_owned()),
            Some(Looked::Seen(survey)) if !survey.unseen.is_empty() => Some(BLIND.to_owned()),
            Some(_) => None,
        }
    }

    fn with(&self, finding: Finding, commands: Vec<String>, repair: Result<Repair, String>) -> Finding {
        let repair = self.hands_off().map_or(repair, Err);
        let (repair, why_not) = match repair {
            Ok(repair) => (Some(repair), None),
            Err(why) => (None, Some(why)),
        };
        Finding { commands, fix: repair.is_some(), why_not, repair, ..finding }
    }

    fn mount_unknown(&self, mount: &Mount) -> Finding {
        let path = &mount.mount_point;
        let facts = self.view.facts;
        let top = self.view.index.at(path).last().is_some_and(|top| top.id == mount.id);
        let within = [&facts.kubelet, &facts.state].into_iter().any(|directory| path.starts_with(directory));
        let what = "the volume is mounted here, but the journal has no entry for it".to_owned();
        let finding = self.finding(Kind::MountUnknown, text(path), what);
        let repair = if !top {
            Err("something else is mounted over it".to_owned())
        } else if !within {
            Err("it is outside of the kubelet's directory: it was mounted by hand".to_owned())
        } else if pod_of(&facts.kubelet, path).is_some() {
            Err(HAS_POD.to_owned())
        } else {
            Ok(Repair::Unmount { id: self.id.clone(), path: path.clone(), mount: mount.id })
        };
        self.with(finding, vec![shell(["umount", "--", &text(path)])], repair)
    }

    pub(super) fn target(&self, target: &TargetEntry) -> Option<Finding> {
        let path = &target.target;
        match self.at(path) {
            MountState::Nothing => {
                let what = "the volume was published here, but is no longer mounted".to_owned();
                let finding = self.finding(Kind::TargetMissing, text(path), what);
                let forget = || self.forget(&[self.entry.map(|entry| entry.found.file_of(path)).unwrap_or_default()]);
                let commands = match self.call("unpublish-volume", "--target", path) {
                    Some(call) => vec![call],
                    None => forget(),
                };
                Some(self.with(finding, commands, Ok(Repair::Recover { id: self.id.clone() })))
            }
            MountState::Foreign(mount) => Some(self.foreign(path, &mount)),
            // With no sources left nothing is recognised; what is there is reported as foreign.
            MountState::Ours(_) => None,
            MountState::Stack(count) => Some(self.stacked(path, count)),
        }
    }

    fn foreign(&self, path: &Path, mount: &Mount) -> Finding {
        let what = format!("{} ({}) is mounted over the volume's place", mount.source.display(), mount.fstype);
        let finding = self.finding(Kind::MountForeign, text(path), what);
        self.with(finding, vec![shell(["umount", "--", &text(path)])], Err("it is not the driver's".to_owned()))
    }

    fn stacked(&self, path: &Path, count: usize) -> Finding {
        let finding = self.finding(Kind::MountStacked, text(path), format!("{count} mounts of the volume lie on each other"));
        let commands = vec![shell(["umount", "--", &text(path)]); count.saturating_sub(1)];
        self.with(finding, commands, Err("a process may use any of them".to_owned()))
    }

    fn staged(&self, stage: &StageEntry, kept: Option<&str>) -> Option<Finding> {
        let path = &stage.staging;
        if stage.phase != Phase::Staged {
            if self.is_only_remembered(stage) {
                return None;
            }
            let word = if stage.phase == Phase::Staging { "a stage" } else { "an unstage" };
            let what = format!("{word} was interrupted, and no driver runs that could end it; the next start of one undoes it");
            let finding = self.finding(Kind::StageInterrupted, text(path), what);
            let mut commands =
                vec![shell(["umount", "--", &text(path)]); self.mounts.iter().filter(|mount| mount.mount_point == *path).count()];
            commands.extend(self.take_down());
            if !stage.is_interrupted() {
                commands.extend(self.forget(&self.entry.map(|entry| entry.found.files()).unwrap_or_default()));
            }
            return Some(self.with(finding, commands, self.unless_mounted(kept, Repair::Recover { id: self.id.clone() })));
        }
        let gone = self.is_gone(stage);
        let (kind, what) = match self.at_staging(stage) {
            Some(MountState::Foreign(mount)) => return Some(self.foreign(path, &mount)),
            Some(MountState::Stack(count)) => return Some(self.stacked(path, count)),
            Some(MountState::Ours(_)) | None if !gone => return None,
            _ if gone => {
                let device = stage.source.as_ref().map(source_name).unwrap_or_default();
                (Kind::DeviceMissing, format!("staged as {device}, which is no longer there or another's"))
            }
            _ => (Kind::MountMissing, "the volume is staged here, but no longer mounted".to_owned()),
        };
        let finding = self.finding(kind, text(path), what);
        let commands = match self.call("unstage-volume", "--staging", path) {
            Some(call) => vec![call],
            None => self
                .take_down()
                .into_iter()
                .chain(self.forget(&self.entry.map(|entry| entry.found.files()).unwrap_or_default()))
                .collect(),
        };
        let published = self.mounts.iter().find(|mount| self.role(&mount.mount_point) != Role::Unknown);
        let published = published.map(|mount| text(&mount.mount_point));
        let repair = if stage.is_interrupted() {
            Err("a growth of it was interrupted: stage it again".to_owned())
        } else {
            self.unless_mounted(kept.or(published.as_deref()), Repair::Unstage { id: self.id.clone() })
        };
        Some(self.with(finding, commands, repair))
    }

    fn unless_mounted(&self, kept: Option<&str>, repair: Repair) -> Result<Repair, String> {
        kept.map_or(Ok(repair), |path| Err(format!("it is still mounted at {path}")))
    }

    fn mapping_unowned(&self, ours: &Ours, kept: Option<&str>) -> Finding {
        let what = format!("a LUKS mapping that no stage has, at {}", ours.mapped.path.display());
        let finding = self.finding(Kind::MappingUnowned, ours.name.clone(), what);
        self.with(finding, vec![close(ours)], self.unless_mounted(kept, Repair::CloseMapping { id: self.id.clone() }))
    }

    fn device_unowned(&self, connected: &Connected, kept: Option<&str>) -> Finding {
        let device = &connected.device;
        let what = format!("it shows {}, but no stage has it", connected.shows);
        let finding = self.finding(Kind::DeviceUnowned, text(&device.path), what);
        let commands = vec![command(&connected.release)];
        let used =
            self.mounts.iter().find(|mount| self.role(&mount.mount_point) != Role::Unknown && mount.device == device.number);
        let used = used.map(|mount| text(&mount.mount_point));
        let repair = if connected.ours {
            self.unless_mounted(kept.or(used.as_deref()), Repair::Release { id: self.id.clone(), device: device.clone() })
        } else {
            Err("it was attached by hand".to_owned())
        };
        self.with(finding, commands, repair)
    }

    fn earlier_boot(&self, stale: &StageEntry, kept: Option<&str>) -> Finding {
        let what = "it was staged before the last boot, and not since: no pod here has asked for it".to_owned();
        let finding = self.finding(Kind::StageOfEarlierBoot, text(&stale.staging), what);
        let commands = match self.call("unstage-volume", "--staging", &stale.staging) {
            Some(call) => vec![call],
            None => self.forget(&self.entry.map(|entry| entry.found.files()).unwrap_or_default()),
        };
        self.with(finding, commands, self.unless_mounted(kept, Repair::Unstage { id: self.id.clone() }))
    }

    pub(super) fn damaged(&self, here: bool) -> Vec<Finding> {
        let Some(entry) = self.entry else { return Vec::new() };
        let damaged = entry.found.damaged.iter().map(|file| {
            let what = "a journal file that cannot be read; nothing was concluded from it".to_owned();
            let finding = self.finding(Kind::JournalDamaged, text(file), what);
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let repair = if here {
                Err("something of the volume is still on this node".to_owned())
            } else {
                Ok(Repair::Forget { id: self.id.clone(), name })
            };
            self.with(finding, self.forget(std::slice::from_ref(file)), repair)
        });
        let unreadable = entry.found.unreadable.iter().map(|(file, why)| {
            let finding = self.finding(Kind::JournalDamaged, text(file), why.clone());
            self.with(finding, Vec::new(), Err("it is not ours to judge".to_owned()))
        });
        damaged.chain(unreadable).collect()
    }

    /// While a driver runs, it is asked to do it: nobody else may write into its journal.
    fn call(&self, method: &str, flag: &str, path: &Path) -> Option<String> {
        self.view.facts.driver.as_ref().filter(|driver| driver.answers)?;
        let (endpoint, id, path) = (format!("unix://{}", self.view.facts.endpoint.display()), self.id.to_string(), text(path));
        Some(shell(["longshore", "call", "--endpoint", &endpoint, method, &id, flag, &path]))
    }

    /// Closes the mapping and lets the devices go.
    fn take_down(&self) -> Vec<String> {
        let devices = self.devices.iter().map(|connected| shell(connected.release.iter().map(String::as_str)));
        self.mapping.map(close).into_iter().chain(devices).collect()
    }

    /// Removes journal files, and the volume's directory with the last of them.
    fn forget(&self, files: &[PathBuf]) -> Vec<String> {
        let Some(entry) = self.entry else { return Vec::new() };
        let names: Vec<String> = files.iter().map(|file| text(file)).collect();
        let remove = shell(["rm", "--force", "--"].into_iter().chain(names.iter().map(String::as_str)));
        let directory = text(&entry.found.directory);
        vec![remove, shell(["rmdir", "--ignore-fail-on-non-empty", "--", &directory])]
    }
}

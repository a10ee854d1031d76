//! One volume: its stack, state, places and health.

use std::path::Path;

use crate::backend::{BlockDevice, Connected, Source};
use crate::os::fs::mark::Purpose;
use crate::os::mountinfo::Mount;
use crate::volume::{Health, HealthProblem, Severity, VolumeId};

use super::super::facts::{Entry, Looked, Ours, seconds};
use super::super::report::{Device, Filesystem, Journaled, Mapping, Place, Problem, Role, State, Stored, Volume};
use crate::ops::node::errors::source_name;
use crate::ops::node::health;
use crate::ops::node::journal::{Access, Format, Phase, StageEntry, TargetEntry};
use crate::ops::node::mapping::shown;
use crate::ops::node::observe::{self, MountState};
use crate::ops::node::pods::{is_device_map, pod_of};

use super::view::View;

/// Everything about one volume.
pub(super) struct Story<'a> {
    pub(super) view: &'a View<'a>,
    pub(super) id: &'a VolumeId,
    pub(super) entry: Option<&'a Entry>,
    /// Of this boot.
    pub(super) stage: Option<&'a StageEntry>,
    /// Of an earlier boot.
    pub(super) stale: Option<&'a StageEntry>,
    pub(super) devices: &'a [&'a Connected],
    pub(super) mapping: Option<&'a Ours>,
    pub(super) mounts: &'a [&'a Mount],
    /// What its mounts can be of.
    sources: Vec<Source>,
}

impl<'a> Story<'a> {
    pub(super) fn new(view: &'a View<'a>, id: &'a VolumeId) -> Self {
        let entry = view.entries.get(id).copied();
        let stage = entry.and_then(|entry| entry.found.stage.as_ref());
        let same = |stage: &&StageEntry| stage.boot == view.facts.boot;
        let devices = view.devices.get(id).map(Vec::as_slice).unwrap_or_default();
        let mapping = view.mappings.get(id).copied();
        let journaled = stage.filter(same).filter(|_| entry.is_some_and(|entry| entry.still == Some(true)));
        let mut sources: Vec<Source> = journaled.and_then(|stage| stage.source.clone()).into_iter().collect();
        sources.extend(devices.iter().map(|connected| Source::Device(connected.device.clone())));
        sources.extend(mapping.map(|ours| Source::Device(shown(&ours.mapped))));
        Story {
            view,
            id,
            entry,
            stage: stage.filter(same),
            stale: stage.filter(|stage| !same(stage)),
            devices,
            mapping,
            mounts: view.mounts.get(id).map(Vec::as_slice).unwrap_or_default(),
            sources,
        }
    }

    /// Targets of this boot.
    pub(super) fn targets(&self) -> impl Iterator<Item = &'a TargetEntry> {
        let boot = &self.view.facts.boot;
        self.entry.into_iter().flat_map(|entry| &entry.found.targets).filter(move |target| target.boot == *boot)
    }

    /// Whether a driver is at it just now, so that nothing can be said.
    pub(super) fn moving(&self) -> bool {
        let passing = self.stage.is_some_and(|stage| stage.phase != Phase::Staged);
        self.view.facts.driver.is_some() && (passing || self.entry.is_some_and(|entry| entry.moving))
    }

    /// Whether nothing can be said of what is mounted, since it is not known what the volume is on this node.
    pub(super) fn blind(&self) -> bool {
        let journaled = self.stage.is_some_and(|stage| stage.source.is_some());
        let failed = matches!(self.view.facts.backends.get(self.id.backend().as_str()), None | Some(Looked::Failed));
        failed || (journaled && self.entry.is_some_and(|entry| entry.still.is_none()))
    }

    pub(super) fn at(&self, path: &Path) -> MountState {
        observe::of_stack(&self.view.index.at(path), &self.sources)
    }

    /// Where its own mounts belong.
    pub(super) fn role(&self, path: &Path) -> Role {
        let kubelet = &self.view.facts.kubelet;
        if self.stage.is_some_and(|stage| stage.staging == path) {
            return Role::Staging;
        }
        if self.targets().any(|target| target.target == path) {
            return Role::Target;
        }
        let pod = pod_of(kubelet, path);
        if pod.is_none() || !self.targets().any(|target| pod_of(kubelet, &target.target) == pod) {
            return Role::Unknown;
        }
        let subpaths = pod.as_ref().map(|pod| kubelet.join("pods").join(pod).join("volume-subpaths"));
        match subpaths {
            Some(subpaths) if path.starts_with(&subpaths) => Role::Subpath,
            _ if is_device_map(kubelet, path) => Role::DeviceMap,
            _ => Role::Unknown,
        }
    }

    /// Whether its file system must be mounted at its staging path. That of a published inline volume need not: the driver's container has it
    /// for itself, and it goes with the container.
    pub(super) fn needs_staging_mount(&self, stage: &StageEntry) -> bool {
        let published = || self.targets().any(|target| matches!(self.at(&target.target), MountState::Ours(_)));
        stage.is_mounted_at_staging() && !(stage.inline && published())
    }

    /// What is mounted at its staging path; `None` where nothing is, and need not be.
    pub(super) fn at_staging(&self, stage: &StageEntry) -> Option<MountState> {
        Some(self.at(&stage.staging)).filter(|at| *at != MountState::Nothing || self.needs_staging_mount(stage))
    }

    pub(super) fn is_journaled(&self, device: &BlockDevice) -> bool {
        let source = self.stage.and_then(|stage| stage.source.as_ref());
        let still = self.entry.is_some_and(|entry| entry.still == Some(true));
        matches!(source, Some(Source::Device(reported)) if reported.number == device.number && (still || reported.identity == device.identity))
    }

    pub(super) fn state(&self) -> State {
        match (self.stage, self.stale) {
            (Some(stage), _) if self.is_only_remembered(stage) => State::Interrupted,
            (Some(stage), _) => match stage.phase {
                Phase::Staging => State::Staging,
                Phase::Staged => State::Staged,
                Phase::Unstaging => State::Unstaging,
            },
            (None, Some(stale)) if stale.is_interrupted() => State::Interrupted,
            (None, Some(_)) => State::BeforeBoot,
            (None, None) if self.entry.is_some() || !self.sources.is_empty() => State::Unowned,
            (None, None) => State::Stored,
        }
    }

    /// What remembers a mkfs that was interrupted stays until the next stage, with nothing on the node.
    pub(super) fn is_only_remembered(&self, stage: &StageEntry) -> bool {
        let driver = self.view.facts.driver.is_some();
        !driver && stage.phase == Phase::Staging && stage.is_interrupted() && self.sources.is_empty() && self.mounts.is_empty()
    }

    pub(super) fn volume(&self) -> Volume {
        let stage = self.stage.or(self.stale);
        let stored = self.view.stored.get(self.id);
        let filesystem = stage.and_then(|stage| match &stage.access {
            Access::Filesystem { fstype: Some(fstype), .. } => {
                let usage = self.entry.and_then(|entry| self.view.facts.usage.get(entry.found.mounted_at()?));
                Some(Filesystem {
                    fstype: fstype.clone(),
                    total: usage.map(|usage| usage.total),
                    used: usage.map(|usage| usage.used),
                    available: usage.map(|usage| usage.available),
                })
            }
            _ => None,
        });
        Volume {
            id: self.id.to_string(),
            state: self.state(),
            problems: self.health().iter().map(problem).collect(),
            stored: stored.map(|stored| Stored {
                at: stored.at.clone(),
                capacity: stored.capacity.map(|bytes| bytes.0),
                allocated: stored.allocated.map(|bytes| bytes.0),
                created: stored.created.map(seconds),
                attached: stored.attached.iter().map(ToString::to_string).collect(),
            }),
            journal: self.entry.map(|entry| self.journaled(entry)),
            devices: self.devices_shown(),
            mapping: self.mapping.map(|ours| Mapping {
                name: ours.name.clone(),
                path: ours.mapped.path.clone(),
                live: ours.mapped.live,
            }),
            filesystem,
            places: self.places(),
        }
    }

    pub(super) fn journaled(&self, entry: &Entry) -> Journaled {
        let stage = entry.found.stage.as_ref();
        let interrupted = stage.and_then(|stage| match (&stage.format, &stage.growth) {
            (Some(Format { purpose: Purpose::Filesystem(_), .. }), _) => Some("formatting"),
            (Some(Format { purpose: Purpose::Luks, .. }), _) => Some("encrypting"),
            (None, Some(_)) => Some("growing"),
            (None, None) => None,
        });
        Journaled {
            phase: stage.map(|stage| match stage.phase {
                Phase::Staging => "staging",
                Phase::Staged => "staged",
                Phase::Unstaging => "unstaging",
            }),
            staging: stage.map(|stage| stage.staging.clone()),
            access: stage.map(|stage| if stage.access == Access::Block { "block" } else { "filesystem" }),
            read_only: stage.is_some_and(|stage| stage.read_only),
            ephemeral: stage.is_some_and(|stage| stage.inline),
            interrupted,
            since: stage.map(|stage| stage.created),
            same_boot: self.stale.is_none(),
            targets: entry.found.targets.iter().map(|target| target.target.clone()).collect(),
        }
    }

    fn devices_shown(&self) -> Vec<Device> {
        let number = |device: &BlockDevice| format!("{}:{}", device.number.0, device.number.1);
        let mut devices: Vec<Device> = self
            .devices
            .iter()
            .map(|connected| Device {
                path: connected.device.path.clone(),
                number: number(&connected.device),
                shows: Some(connected.shows.clone()),
                size: connected.size.map(|size| size.0),
                journaled: self.is_journaled(&connected.device),
            })
            .collect();
        // Of a backend that shows nothing of its own, what the journal says and the kernel confirms.
        let journaled =
            self.sources.iter().filter_map(|source| if let Source::Device(device) = source { Some(device) } else { None });
        for device in journaled.filter(|device| self.is_journaled(device)) {
            if devices.iter().all(|known| known.path != device.path) {
                let (path, number) = (device.path.clone(), number(device));
                devices.push(Device { path, number, shows: None, size: None, journaled: true });
            }
        }
        devices
    }

    pub(super) fn places(&self) -> Vec<Place> {
        let mut places: Vec<Place> = self
            .mounts
            .iter()
            .map(|mount| Place {
                role: self.role(&mount.mount_point),
                path: mount.mount_point.clone(),
                mounted: true,
                read_only: mount.is_read_only(),
                pod_uid: pod_of(&self.view.facts.kubelet, &mount.mount_point),
            })
            .collect();
        let staging =
            self.stage.filter(|stage| self.needs_staging_mount(stage)).map(|stage| (Role::Staging, &stage.staging, false));
        let targets = self.targets().map(|target| (Role::Target, &target.target, target.read_only));
        for (role, path, read_only) in staging.into_iter().chain(targets) {
            if places.iter().all(|place| place.path != *path) {
                let pod_uid = pod_of(&self.view.facts.kubelet, path);
                places.push(Place { role, path: path.clone(), mounted: false, read_only, pod_uid });
            }
        }
        places.sort_by(|a, b| (a.role as u8, &a.path).cmp(&(b.role as u8, &b.path)));
        places
    }

    fn health(&self) -> Health {
        let mut health = self.view.stored.get(self.id).map(|stored| stored.health.clone()).unwrap_or_default();
        let Some(stage) = self.stage.filter(|stage| stage.phase == Phase::Staged) else { return health };
        if self.moving() || self.blind() {
            return health;
        }
        let looked = self.view.facts.backends.get(self.id.backend().as_str());
        let seen = matches!(looked, Some(Looked::Seen(survey)) if survey.unseen.is_empty());
        if seen && !self.view.stored.contains_key(self.id) {
            let message = format!("volume {} is staged on this node, but its backend no longer has it", self.id);
            health::add(&mut health, HealthProblem { severity: Severity::DataLoss, reason: "VolumeMissing", message });
        }
        if self.is_gone(stage) {
            let device = stage.source.as_ref().map(source_name).unwrap_or_default();
            let message = format!("volume {} is no longer connected as {device}; unstage it and stage it again", self.id);
            health::add(&mut health, HealthProblem { severity: Severity::Inaccessible, reason: "DeviceGone", message });
            return health;
        }
        if let Some(at) = self.at_staging(stage) {
            health::at_place(&at, &stage.staging, stage, &mut health);
        }
        for target in self.targets().filter(|target| !target.block) {
            health::at_place(&self.at(&target.target), &target.target, stage, &mut health);
        }
        if let (Some(count), Some(Source::Device(device))) = (self.view.facts.errors.get(self.id), stage.shown().pop()) {
            health::recorded_errors(&device, *count, stage, &mut health);
        }
        health
    }

    /// Whether the journaled device, its mapping or the mount of its share is not there any more.
    pub(super) fn is_gone(&self, stage: &StageEntry) -> bool {
        let share = stage.network_directory().is_some_and(|directory| self.view.index.at(&directory.mount).is_empty());
        let device = stage.source.is_some() && self.entry.is_some_and(|entry| entry.still == Some(false));
        let mapping = stage.mapping.is_some() && self.mapping.is_none() && self.view.facts.mappings.is_some();
        device || mapping || share
    }
}

fn problem(problem: &HealthProblem) -> Problem {
    let severity = match problem.severity {
        Severity::Degraded => "degraded",
        Severity::Inaccessible => "inaccessible",
        Severity::DataLoss => "data-loss",
    };
    Problem { severity, reason: problem.reason, message: problem.message.clone() }
}

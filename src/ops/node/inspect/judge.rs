//! From what was seen to what it means: the stack of each volume, orphaned resources, and what repairs it. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::backend::{BlockDevice, Connected, Directory, Leftover, LeftoverKind, Link, Source, Survey};
use crate::os::fs::mark::Purpose;
use crate::os::mountinfo::{Index, Mount};
use crate::volume::{Health, HealthProblem, Severity, VolumeId};

use super::super::errors::source_name;
use super::super::health;
use super::super::journal::{Access, Format, Phase, StageEntry, TargetEntry};
use super::super::mapping::shown;
use super::super::observe::{self, At};
use super::facts::{Entry, Facts, Looked, Ours, seconds};
use super::repair::Repair;
use super::report::{
    Device, Filesystem, Finding, Journaled, Kind, Linked, Mapping, Operation, Place, Problem, Program, Report, Role, Running,
    State, Storage, Stored, VERSION, Volume, shell,
};

const HAS_POD: &str = "a pod may use it; take the pod away, or unpublish it";
const BLIND: &str = "its storage could not be looked at";
const EPHEMERAL: &str = "its data would go with it; the next start of the driver ends it";

/// What is known of everything, by volume.
struct View<'a> {
    facts: &'a Facts,
    index: Index<'a>,
    entries: BTreeMap<&'a VolumeId, &'a Entry>,
    stored: BTreeMap<&'a VolumeId, &'a crate::backend::Stored>,
    devices: BTreeMap<&'a VolumeId, Vec<&'a Connected>>,
    mappings: BTreeMap<&'a VolumeId, &'a Ours>,
    mounts: BTreeMap<VolumeId, Vec<&'a Mount>>,
}

pub(super) fn judge(facts: &Facts, node: &str, driver: &str) -> Report {
    let view = View::new(facts);
    let mut volumes = Vec::new();
    let mut findings = Vec::new();
    for id in view.ids() {
        let story = Story::new(&view, id);
        volumes.push(story.volume());
        findings.extend(story.findings());
    }
    for (name, survey) in surveys(facts) {
        let is_orphaned = |leftover: &&Leftover| leftover.kind != LeftoverKind::Lease || !is_staged(facts, &leftover.id);
        findings.extend(survey.leftovers.iter().filter(is_orphaned).map(|leftover| of_storage(name, leftover)));
    }
    findings.extend(facts.links.iter().filter_map(|(backend, link)| view.unowned(backend, link)));
    findings.extend(view.frozen());
    Report {
        version: VERSION,
        node: node.to_owned(),
        driver: driver.to_owned(),
        state_dir: facts.state.clone(),
        kubelet_dir: facts.kubelet.clone(),
        time: facts.now,
        running: view.running(),
        storage: view.storage(),
        links: facts.links.iter().map(|(backend, link)| shown_link(backend, link)).collect(),
        volumes,
        findings,
        not_seen: facts.not_seen.clone(),
    }
}

/// Finds the volume of a mount.
#[derive(Default)]
struct Owners<'a> {
    by_number: HashMap<(u32, u32), &'a VolumeId>,
    /// btrfs, of which mountinfo has the path of its device only.
    by_path: HashMap<PathBuf, &'a VolumeId>,
    by_share: HashMap<(&'a str, &'a Path), &'a VolumeId>,
    by_place: HashMap<&'a Path, (&'a Directory, &'a VolumeId)>,
}

impl<'a> Owners<'a> {
    fn add(&mut self, device: &'a BlockDevice, id: &'a VolumeId) {
        self.by_number.insert(device.number, id);
        self.by_path.insert(device.path.clone(), id);
    }

    fn of(&self, mount: &Mount) -> Option<&'a VolumeId> {
        let share = || self.by_share.get(&(mount.fstype.as_str(), mount.source.as_path()));
        let owner = match mount.block_node() {
            Some(number) => self.by_number.get(&number),
            None if mount.fstype == "btrfs" => self.by_path.get(&mount.source),
            None => self.by_number.get(&mount.device).or_else(share),
        };
        owner.copied().or_else(|| {
            let (directory, id) = self.by_place.get(mount.mount_point.as_path())?;
            observe::is_filesystem_of(mount, &Source::Directory((*directory).clone())).then_some(*id)
        })
    }
}

impl<'a> View<'a> {
    fn new(facts: &'a Facts) -> Self {
        let entries: BTreeMap<_, _> = facts.journal.iter().map(|entry| (&entry.found.id, entry)).collect();
        let (mut stored, mut devices) = (BTreeMap::new(), BTreeMap::<_, Vec<_>>::new());
        let mut owners = Owners::default();
        for (_, survey) in surveys(facts) {
            stored.extend(survey.volumes.iter().map(|volume| (&volume.id, volume)));
            for connected in &survey.devices {
                devices.entry(&connected.id).or_default().push(connected);
                owners.add(&connected.device, &connected.id);
            }
        }
        for (entry, source) in facts.journal.iter().filter(|entry| entry.still == Some(true)).filter_map(|entry| {
            let source = entry.found.stage.as_ref()?.source.as_ref()?;
            Some((entry, source))
        }) {
            let id = &entry.found.id;
            match source {
                Source::Device(device) => owners.add(device, id),
                Source::Filesystem { fstype, source, .. } => {
                    owners.by_share.insert((fstype, Path::new(source)), id);
                }
                // Others may have the same directory: its mounts are known by their places.
                Source::Directory(directory) => {
                    let stage = entry.found.stage.iter().map(|stage| stage.staging.as_path());
                    let targets = entry.found.targets.iter().map(|target| target.target.as_path());
                    let places = stage.chain(targets).filter(|place| *place != directory.mount);
                    owners.by_place.extend(places.map(|place| (place, (directory, id))));
                }
            }
        }
        for ours in facts.mappings.iter().flatten() {
            owners.by_number.insert(ours.mapped.number, &ours.id);
            owners.by_path.insert(ours.mapped.path.clone(), &ours.id);
            owners.by_path.insert(Path::new("/dev/mapper").join(&ours.name), &ours.id);
        }
        let mut mounts = BTreeMap::<VolumeId, Vec<&Mount>>::new();
        for mount in facts.mounts.iter() {
            if let Some(id) = owners.of(mount) {
                mounts.entry(id.clone()).or_default().push(mount);
            }
        }
        let mappings = facts.mappings.iter().flatten().map(|ours| (&ours.id, ours)).collect();
        View { facts, index: facts.mounts.index(), entries, stored, devices, mappings, mounts }
    }

    fn ids(&self) -> BTreeSet<&'a VolumeId> {
        let of_node = self.entries.keys().chain(self.devices.keys()).chain(self.mappings.keys());
        of_node.chain(self.stored.keys()).copied().collect()
    }

    fn running(&self) -> Running {
        let driver = self.facts.driver.clone();
        let operation = |entry: &&Entry| {
            let operation = match entry.found.stage.as_ref()?.phase {
                Phase::Staging => "stage",
                Phase::Unstaging => "unstage",
                Phase::Staged => return None,
            };
            let since = entry.found.written.map(seconds);
            Some(Operation { volume: entry.found.id.to_string(), operation, since })
        };
        let operations = self.entries.values().filter(|_| driver.is_some()).filter_map(operation).collect();
        let mut of_device = HashMap::new();
        for (id, connected) in self.devices.iter().flat_map(|(id, all)| all.iter().map(move |one| (id, one))) {
            of_device.insert(connected.device.path.as_path(), *id);
        }
        of_device.extend(self.mappings.iter().map(|(id, ours)| (ours.mapped.path.as_path(), *id)));
        let programs = self.facts.programs.iter().flat_map(|program| {
            let of_device = &of_device;
            program.devices.iter().filter_map(move |device| {
                Some(Program {
                    pid: program.pid,
                    name: program.name.clone(),
                    since: seconds(program.since),
                    device: device.clone(),
                    volume: Some(of_device.get(device.as_path())?.to_string()),
                })
            })
        });
        Running { driver, operations, programs: programs.collect() }
    }

    fn storage(&self) -> Vec<Storage> {
        let mut storage = Vec::new();
        for (backend, survey) in surveys(self.facts) {
            storage.extend(survey.places.iter().map(|place| Storage {
                backend: backend.clone(),
                name: place.name.clone(),
                at: place.at.clone(),
                total: place.total.0,
                free: place.free.0,
                read_only: place.read_only,
                provisioner: place.provisioner,
            }));
        }
        storage
    }

    /// A link that was made for volumes of which the journal knows nothing.
    fn unowned(&self, backend: &str, link: &Link) -> Option<Finding> {
        let mut staged = self.entries.values().filter_map(|entry| entry.found.stage.as_ref()?.source.as_ref());
        let carried = staged.any(|source| link.carries(source));
        if carried || link.users.iter().any(|id| self.entries.contains_key(id)) {
            return None;
        }
        let why_not = observe::mounted_from(&self.facts.mounts, link)
            .map(|mount| format!("{} is mounted from it", mount.mount_point.display()));
        let of = match link.users.as_slice() {
            [] => "no volume".to_owned(),
            users => users.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        Some(Finding {
            kind: Kind::LinkUnowned,
            volume: link.users.first().filter(|_| link.users.len() == 1).map(ToString::to_string),
            object: link.object.clone(),
            what: format!("{}; it is of {of}, and the journal knows nothing of that", link.state),
            commands: link.release.iter().map(|words| command(words)).collect(),
            fix: why_not.is_none(),
            repair: why_not.is_none().then(|| Repair::Unlink { backend: backend.to_owned(), link: link.clone() }),
            why_not,
        })
    }

    /// While a driver runs it holds them still for a snapshot.
    fn frozen(&self) -> Option<Finding> {
        let left: Vec<_> = self.facts.frozen.iter().filter(|_| self.facts.driver.is_none()).collect();
        let (first, _) = left.first()?;
        let here = left.iter().filter(|(_, entry)| entry.boot == self.facts.boot);
        let paths: Vec<&PathBuf> = here.flat_map(|(_, entry)| &entry.mounts).collect();
        let thaw = |path: &&PathBuf| format!("{} || true", shell(["fsfreeze", "--unfreeze", &text(path)]));
        let records: Vec<String> = left.iter().map(|(path, _)| text(path)).collect();
        let forget = shell(["rm", "--force", "--"].into_iter().chain(records.iter().map(String::as_str)));
        Some(Finding {
            kind: Kind::Frozen,
            volume: None,
            object: text(first),
            what: "a snapshot was interrupted; the file systems that it froze may be so yet".to_owned(),
            commands: paths.iter().map(thaw).chain([forget]).collect(),
            fix: true,
            why_not: None,
            repair: Some(Repair::Thaw),
        })
    }
}

/// Of the backends that have any, by their names.
fn surveys(facts: &Facts) -> impl Iterator<Item = (&String, &Survey)> {
    facts.backends.iter().filter_map(|(name, looked)| Some((name, looked.survey()?)))
}

fn command(words: &[String]) -> String {
    shell(words.iter().map(String::as_str))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn shown_link(backend: &str, link: &Link) -> Linked {
    Linked {
        backend: backend.to_owned(),
        object: link.object.clone(),
        state: link.state.clone(),
        up: link.up,
        volumes: link.users.iter().map(ToString::to_string).collect(),
    }
}

/// Whether the journal has a stage of the volume, or something that cannot be read.
fn is_staged(facts: &Facts, id: &str) -> bool {
    let of = |entry: &&Entry| entry.found.id.to_string() == id;
    facts.journal.iter().filter(of).any(|entry| {
        entry.moving || entry.found.stage.is_some() || !entry.found.damaged.is_empty() || !entry.found.unreadable.is_empty()
    })
}

fn of_storage(backend: &str, leftover: &Leftover) -> Finding {
    let kind = match leftover.kind {
        LeftoverKind::Draft => Kind::Draft,
        LeftoverKind::Trash => Kind::Trash,
        LeftoverKind::WithoutMetadata => Kind::MetadataMissing,
        LeftoverKind::WithoutData => Kind::DataMissing,
        LeftoverKind::Export => Kind::ExportUnowned,
        LeftoverKind::NotExported => Kind::ExportMissing,
        LeftoverKind::Lease => Kind::LeaseOrphaned,
        LeftoverKind::LeaseDamaged => Kind::LeaseDamaged,
    };
    let why_not = match leftover.kind {
        LeftoverKind::NotExported => "starting the driver does it",
        LeftoverKind::Export => "it is not the driver's",
        LeftoverKind::Lease | LeftoverKind::LeaseDamaged => "it keeps other nodes from the volume, which may be in use",
        _ => "no data is ever moved or deleted by --fix",
    };
    let why_not = (!leftover.removable).then(|| why_not.to_owned());
    Finding {
        kind,
        volume: Some(leftover.id.clone()).filter(|id| id.parse::<VolumeId>().is_ok()),
        object: text(&leftover.object),
        what: leftover.what.clone(),
        commands: leftover.commands.iter().map(|words| command(words)).collect(),
        fix: leftover.removable,
        why_not,
        repair: leftover.removable.then(|| Repair::Remove { backend: backend.to_owned(), leftover: leftover.clone() }),
    }
}

/// The pod whose place a path is: `pods/<uid>/...`, or, of a raw block volume, `.../volumeDevices/publish/<volume>/<uid>`.
pub(super) fn pod_of(kubelet: &Path, path: &Path) -> Option<String> {
    let parts: Vec<&OsStr> = path.strip_prefix(kubelet).ok()?.iter().collect();
    let uid = match parts.as_slice() {
        [pods, uid, _, ..] if *pods == "pods" => uid,
        [plugins, kubernetes, csi, devices, publish, _, uid, ..]
            if [*plugins, *kubernetes, *csi, *devices, *publish]
                == ["plugins", "kubernetes.io", "csi", "volumeDevices", "publish"].map(OsStr::new) =>
        {
            uid
        }
        _ => return None,
    };
    Some(uid.to_string_lossy().into_owned())
}

/// Everything about one volume.
struct Story<'a> {
    view: &'a View<'a>,
    id: &'a VolumeId,
    entry: Option<&'a Entry>,
    /// Of this boot.
    stage: Option<&'a StageEntry>,
    /// Of an earlier boot.
    stale: Option<&'a StageEntry>,
    devices: &'a [&'a Connected],
    mapping: Option<&'a Ours>,
    mounts: &'a [&'a Mount],
    /// What its mounts can be of.
    sources: Vec<Source>,
}

impl<'a> Story<'a> {
    fn new(view: &'a View<'a>, id: &'a VolumeId) -> Self {
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
    fn targets(&self) -> impl Iterator<Item = &'a TargetEntry> {
        let boot = &self.view.facts.boot;
        self.entry.into_iter().flat_map(|entry| &entry.found.targets).filter(move |target| target.boot == *boot)
    }

    /// Whether a driver is at it just now, so that nothing can be said.
    fn moving(&self) -> bool {
        let passing = self.stage.is_some_and(|stage| stage.phase != Phase::Staged);
        self.view.facts.driver.is_some() && (passing || self.entry.is_some_and(|entry| entry.moving))
    }

    /// Whether nothing can be said of what is mounted, since it is not known what the volume is on this node.
    fn blind(&self) -> bool {
        let journaled = self.stage.is_some_and(|stage| stage.source.is_some());
        let failed = matches!(self.view.facts.backends.get(self.id.backend().as_str()), None | Some(Looked::Failed));
        failed || (journaled && self.entry.is_some_and(|entry| entry.still.is_none()))
    }

    fn at(&self, path: &Path) -> At {
        observe::of_stack(&self.view.index.at(path), &self.sources)
    }

    /// Where its own mounts belong.
    fn role(&self, path: &Path) -> Role {
        let kubelet = &self.view.facts.kubelet;
        if self.stage.is_some_and(|stage| stage.staging == path) {
            return Role::Staging;
        }
        if self.targets().any(|target| target.target == path) {
            return Role::Target;
        }
        let pod = pod_of(kubelet, path);
        let subpath = pod.as_ref().is_some_and(|pod| path.starts_with(kubelet.join("pods").join(pod).join("volume-subpaths")));
        if subpath && self.targets().any(|target| pod_of(kubelet, &target.target) == pod) { Role::Subpath } else { Role::Unknown }
    }

    fn is_journaled(&self, device: &BlockDevice) -> bool {
        let source = self.stage.and_then(|stage| stage.source.as_ref());
        let still = self.entry.is_some_and(|entry| entry.still == Some(true));
        matches!(source, Some(Source::Device(told)) if told.number == device.number && (still || told.identity == device.identity))
    }

    fn state(&self) -> State {
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
    fn is_only_remembered(&self, stage: &StageEntry) -> bool {
        let driver = self.view.facts.driver.is_some();
        !driver && stage.phase == Phase::Staging && stage.is_interrupted() && self.sources.is_empty() && self.mounts.is_empty()
    }

    fn volume(&self) -> Volume {
        let stage = self.stage.or(self.stale);
        let stored = self.view.stored.get(self.id);
        let filesystem = stage.and_then(|stage| match &stage.access {
            Access::Filesystem { fstype: Some(fstype), .. } => {
                let usage = self.view.facts.usage.get(&stage.staging);
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

    fn journaled(&self, entry: &Entry) -> Journaled {
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

    fn places(&self) -> Vec<Place> {
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
            self.stage.filter(|stage| stage.access != Access::Block).map(|stage| (Role::Staging, &stage.staging, false));
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
        if stage.access != Access::Block {
            health::at_place(&self.at(&stage.staging), &stage.staging, stage, &mut health);
        }
        for target in self.targets().filter(|target| !target.block) {
            health::at_place(&self.at(&target.target), &target.target, stage, &mut health);
        }
        if let (Some(count), Some(Source::Device(device))) = (self.view.facts.errors.get(self.id), stage.shown().pop()) {
            health::recorded_errors(&device, *count, stage, &mut health);
        }
        health
    }

    /// Whether the journaled device, or its mapping, is not there any more.
    fn is_gone(&self, stage: &StageEntry) -> bool {
        let device = stage.source.is_some() && self.entry.is_some_and(|entry| entry.still == Some(false));
        let mapping = stage.mapping.is_some() && self.mapping.is_none() && self.view.facts.mappings.is_some();
        device || mapping
    }

    /// What is to be repaired, in this order: what lies on top first.
    fn findings(&self) -> Vec<Finding> {
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
        let what = "the volume is mounted here, but the journal knows nothing of it".to_owned();
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

    fn target(&self, target: &TargetEntry) -> Option<Finding> {
        let path = &target.target;
        match self.at(path) {
            At::Nothing => {
                let what = "the volume was published here, but is no longer mounted".to_owned();
                let finding = self.finding(Kind::TargetMissing, text(path), what);
                let forget = || self.forget(&[self.entry.map(|entry| entry.found.file_of(path)).unwrap_or_default()]);
                let commands = match self.call("unpublish-volume", "--target", path) {
                    Some(call) => vec![call],
                    None => forget(),
                };
                Some(self.with(finding, commands, Ok(Repair::Recover { id: self.id.clone() })))
            }
            At::Foreign(mount) => Some(self.foreign(path, &mount)),
            // With no sources left nothing is recognised; what is there is told as foreign.
            At::Ours(_) => None,
            At::Stack(count) => Some(self.stacked(path, count)),
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
        let at = if stage.access == Access::Block { None } else { Some(self.at(path)) };
        let (kind, what) = match at {
            Some(At::Foreign(mount)) => return Some(self.foreign(path, &mount)),
            Some(At::Stack(count)) => return Some(self.stacked(path, count)),
            Some(At::Ours(_)) | None if !gone => return None,
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

    fn damaged(&self, here: bool) -> Vec<Finding> {
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

/// cryptsetup neither opens nor closes one that was interrupted.
fn close(ours: &Ours) -> String {
    if ours.mapped.live { shell(["cryptsetup", "close", &ours.name]) } else { shell(["dmsetup", "remove", &ours.name]) }
}

fn problem(problem: &HealthProblem) -> Problem {
    let severity = match problem.severity {
        Severity::Degraded => "degraded",
        Severity::Inaccessible => "inaccessible",
        Severity::DataLoss => "data-loss",
    };
    Problem { severity, reason: problem.reason, message: problem.message.clone() }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;

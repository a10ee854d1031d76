//! What is looked at: journal, storage, devices, mappings, mounts. Nothing is changed, and no lock is taken.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::backend::{Backend, Directory, SharedConnection, Source, Survey};
use crate::os::deadline::within;
use crate::os::dm::{self, Mapped};
use crate::os::fs::Usage;
use crate::os::holders::{Holder, Namespaces};
use crate::os::mountinfo::MountTable;
use crate::os::socket::{self, Listener};
use crate::os::{self, locks, programs};
use crate::volume::error::chain;
use crate::volume::{Error, Result, VolumeId};

use super::super::journal::{self, Access, Found, FrozenEntry, Phase};
use super::super::mapping::{mapping_name, mapping_prefix};
use super::super::{health, lone, observe};
use super::report::{NotSeen, Process};
use super::{Configured, Setup};

/// For how long a file system or a socket is given to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// For how long a backend is given: thousands of volumes on a busy disk take their time.
const SURVEY: Duration = Duration::from_secs(60);
/// Programs that work on devices of ours.
const WORKERS: [&str; 9] =
    ["mkfs.ext4", "mke2fs", "mkfs.xfs", "mkfs.btrfs", "e2fsck", "resize2fs", "btrfs", "cryptsetup", "longshore-freeze-guard"];

/// All that was seen, as it was seen.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Seconds since 1970.
    pub now: u64,
    pub boot: String,
    /// As mountinfo shows them.
    pub kubelet: PathBuf,
    pub state: PathBuf,
    pub endpoint: PathBuf,
    pub driver: Option<Process>,
    pub programs: Vec<programs::Program>,
    pub journal: Vec<Entry>,
    pub frozen: Vec<(PathBuf, FrozenEntry)>,
    pub mounts: MountTable,
    /// By their names.
    pub backends: BTreeMap<String, Looked>,
    /// With the names of their backends.
    pub connections: Vec<(String, SharedConnection)>,
    /// Those that are ours by their names; `None` where they could not be looked at.
    pub mappings: Option<Vec<Ours>>,
    /// By the place of a mount.
    pub usage: HashMap<PathBuf, Usage>,
    /// What ext4 has recorded.
    pub errors: HashMap<VolumeId, u64>,
    /// Mount namespaces that still have what is unstaged, or being unstaged.
    pub held: Vec<HeldDevice>,
    pub not_seen: Vec<NotSeen>,
}

/// What the journal has of a volume.
#[derive(Debug)]
pub(super) struct Entry {
    pub found: Found,
    /// Whether the journaled device still is what it was; `None` where that cannot be said, or none is journaled.
    pub still: Option<bool>,
    /// It changed while we looked, or a driver is at it.
    pub moving: bool,
}

/// A device that another mount namespace has mounted.
#[derive(Debug)]
pub(super) struct HeldDevice {
    pub id: VolumeId,
    pub device: PathBuf,
    pub holder: Holder,
}

/// What is known of a backend.
#[derive(Debug)]
pub(super) enum Looked {
    Seen(Survey),
    /// It has no storage to show.
    Blind,
    Failed,
}

impl Looked {
    pub fn survey(&self) -> Option<&Survey> {
        match self {
            Looked::Seen(survey) => Some(survey),
            Looked::Blind | Looked::Failed => None,
        }
    }
}

/// A mapping of this driver.
#[derive(Debug)]
pub(super) struct Ours {
    pub name: String,
    pub id: VolumeId,
    pub mapped: Mapped,
}

/// # Errors
/// Where the directories of the configuration cannot be used, or the journal or the mounts not be read.
pub(super) fn gather(setup: &Setup) -> Result<Facts> {
    let kubelet = directory("kubelet_dir", &setup.node.kubelet_dir)?;
    let state = directory("state_dir", &setup.node.state_dir)?;
    let mut not_seen = Vec::new();
    let seen = driver(&state, &setup.endpoint, &mut not_seen)?;
    let boot = observe::boot()?;
    let before = journal::look(&state)?;
    let mut backends = BTreeMap::new();
    for configured in &setup.backends {
        backends.insert(configured.name.to_string(), survey(configured, &mut not_seen));
    }
    let mappings = mappings(&state, &before.volumes, &backends);
    if let Err(error) = &mappings {
        not_seen.push(NotSeen { what: "LUKS mappings".to_owned(), why: error.to_string() });
    }
    let mounts = MountTable::read()?;
    // One may have been started meanwhile.
    let driver = seen.map_or_else(|| driver(&state, &setup.endpoint, &mut Vec::new()), |seen| Ok(Some(seen)))?;
    let mut connections = shared_connections(setup, &mut not_seen);
    let after = if driver.is_some() { journal::look(&state)? } else { before.clone() };
    if driver.is_some() {
        // What is made or taken down just now is nothing to judge.
        let again = shared_connections(setup, &mut Vec::new());
        connections.retain(|connection| again.contains(connection));
    }
    for found in after.volumes.iter().filter(|found| !backends.contains_key(found.id.backend().as_str())) {
        let why = format!("its backend {} is not in the configuration", found.id.backend());
        not_seen.push(NotSeen { what: format!("volume {}", found.id), why });
    }
    let journal = entries(setup, &backends, before.volumes, after.volumes, &boot);
    let errors = journal.iter().filter_map(|entry| Some((entry.found.id.clone(), errors(&entry.found)?))).collect();
    let usage = usage(&journal, &mounts, &boot, &mut not_seen);
    let programs = programs::on_devices(&WORKERS)?;
    let held = held(&journal, &backends);
    Ok(Facts {
        now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        boot,
        kubelet,
        state,
        endpoint: setup.endpoint.clone(),
        driver,
        programs,
        journal,
        frozen: after.frozen,
        mounts,
        backends,
        connections,
        mappings: mappings.ok(),
        usage,
        errors,
        held,
        not_seen,
    })
}

/// Each published volume is also in the mount namespaces of its containers: only of what is to go does it matter who has it.
fn held(journal: &[Entry], backends: &BTreeMap<String, Looked>) -> Vec<HeldDevice> {
    let stages = journal.iter().filter_map(|entry| entry.found.stage.as_ref());
    let leaving = stages.clone().filter(|stage| stage.phase == Phase::Unstaging);
    let leaving = leaving.flat_map(|stage| stage.shown().into_iter().map(|source| (stage.id.clone(), source)));
    let surveys = backends.values().filter_map(Looked::survey).flat_map(|survey| &survey.devices);
    let unowned = surveys.filter(|connected| stages.clone().all(|stage| stage.id != connected.id));
    let unowned = unowned.map(|connected| (connected.id.clone(), Source::Device(connected.device.clone())));
    let devices = leaving.chain(unowned).filter_map(|(id, source)| match source {
        Source::Device(device) => Some((id, device)),
        Source::Filesystem { .. } | Source::Directory(_) => None,
    });
    let mut devices = devices.peekable();
    if devices.peek().is_none() {
        return Vec::new();
    }
    let namespaces = Namespaces::read();
    let held = devices.flat_map(|(id, device)| {
        let holders = namespaces.mounted(device.number, &device.path);
        holders.into_iter().map(move |holder| HeldDevice { id: id.clone(), device: device.path.clone(), holder })
    });
    held.collect()
}

/// A directory of the configuration, as mountinfo shows it.
fn directory(field: &'static str, path: &Path) -> Result<PathBuf> {
    // First by a program that can be left behind: on a dead server each look of our own would hang.
    os::fs::usages(&[path.to_owned()], PATIENCE)?;
    path.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::invalid(field, format!("{} is not there; name the driver's", path.display())),
        _ => os::Error::io("stat", path, error).into(),
    })
}

/// The driver that runs, by the lock on its state directory and by its socket.
fn driver(state: &Path, endpoint: &Path, not_seen: &mut Vec<NotSeen>) -> Result<Option<Process>> {
    let listening = socket::listener(endpoint, PATIENCE).unwrap_or_else(|error| {
        not_seen.push(NotSeen { what: format!("socket {}", endpoint.display()), why: error.to_string() });
        Listener::None
    });
    let held = locks::read()?;
    let holder = locks::on(&held, "FLOCK", &lone::path(state))?;
    let (answers, listener) = match listening {
        Listener::Living(pid) => (true, pid),
        Listener::None | Listener::Dead => (false, None),
    };
    if !answers && holder.is_none() {
        return Ok(None);
    }
    let pid = holder.and_then(|held| held.pid).or(listener);
    Ok(Some(Process { pid, since: pid.and_then(programs::started).map(seconds), answers }))
}

/// An error of looking leaves nothing behind, whatever its kind says of others.
fn reported(error: &Error) -> String {
    match error {
        Error::Failed { step, object, source, .. } => format!("{step} {object}: {}", chain(&**source)),
        other => chain(other),
    }
}

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn survey(configured: &Configured, not_seen: &mut Vec<NotSeen>) -> Looked {
    let what = || format!("backend {}", configured.name);
    let backend = match &configured.backend {
        Ok(backend) => Arc::clone(backend),
        Err(error) => {
            not_seen.push(NotSeen { what: what(), why: reported(error) });
            return Looked::Failed;
        }
    };
    match within(SURVEY, move || backend.inspect().map(|inspect| inspect.survey())) {
        Some(None) => Looked::Blind,
        Some(Some(Ok(survey))) => {
            not_seen.extend(survey.unseen.iter().map(|(what, why)| NotSeen { what: what.clone(), why: why.clone() }));
            Looked::Seen(survey)
        }
        Some(Some(Err(error))) => {
            not_seen.push(NotSeen { what: what(), why: reported(&error) });
            Looked::Failed
        }
        None => {
            let why = format!("no answer within {}", humantime::format_duration(SURVEY));
            not_seen.push(NotSeen { what: what(), why });
            Looked::Failed
        }
    }
}

fn shared_connections(setup: &Setup, not_seen: &mut Vec<NotSeen>) -> Vec<(String, SharedConnection)> {
    let mut connections = Vec::new();
    for configured in &setup.backends {
        let Some(backend) = configured.opened() else { continue };
        match backend.connect().shared_connections() {
            Ok(found) => connections.extend(found.into_iter().map(|connection| (configured.name.to_string(), connection))),
            Err(error) => {
                not_seen.push(NotSeen { what: format!("connections of backend {}", configured.name), why: reported(&error) });
            }
        }
    }
    connections
}

/// Those whose names tell that they are this driver's, be it only by the volumes that are known: a long id is in no name.
fn mappings(state: &Path, journal: &[Found], backends: &BTreeMap<String, Looked>) -> os::Result<Vec<Ours>> {
    let names = dm::names()?;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let prefix = mapping_prefix(state);
    let stored = backends.values().filter_map(Looked::survey).flat_map(|survey| survey.volumes.iter().map(|stored| &stored.id));
    let known: HashMap<String, &VolumeId> =
        journal.iter().map(|found| &found.id).chain(stored).map(|id| (mapping_name(state, id), id)).collect();
    let mut ours = Vec::new();
    for name in names {
        let named = name.strip_prefix(&prefix).and_then(|id| id.parse().ok());
        let Some(id) = known.get(&name).map(|id| (*id).clone()).or(named) else { continue };
        ours.extend(dm::find(&name)?.map(|mapped| Ours { name, id, mapped }));
    }
    Ok(ours)
}

/// What is in the journal now, and whether it stands still.
fn entries(setup: &Setup, backends: &BTreeMap<String, Looked>, before: Vec<Found>, after: Vec<Found>, boot: &str) -> Vec<Entry> {
    let earlier: HashMap<VolumeId, Found> = before.into_iter().map(|found| (found.id.clone(), found)).collect();
    let present: Vec<VolumeId> = after.iter().map(|found| found.id.clone()).collect();
    let mut entries = Vec::new();
    for found in after {
        // One that gave no answer before would give none now.
        let answers = !matches!(backends.get(found.id.backend().as_str()), None | Some(Looked::Failed));
        let still = if answers { still(setup, &found, boot) } else { None };
        let moving = earlier.get(&found.id) != Some(&found);
        entries.push(Entry { found, still, moving });
    }
    // Unstaged while we looked.
    let gone = earlier.into_values().filter(|found| !present.contains(&found.id));
    entries.extend(gone.map(|found| Entry { found, still: None, moving: true }));
    entries
}

fn still(setup: &Setup, found: &Found, boot: &str) -> Option<bool> {
    let source = found.stage.as_ref().filter(|entry| entry.boot == boot)?.source.as_ref()?;
    let configured = setup.backends.iter().find(|configured| configured.name == *found.id.backend())?;
    configured.opened()?.connect().is_same_device(source).ok()
}

fn errors(found: &Found) -> Option<u64> {
    let entry = found.stage.as_ref()?;
    match (&entry.access, entry.shown().pop()?) {
        (Access::Filesystem { fstype: Some(fstype), .. }, Source::Device(device)) if fstype == "ext4" => {
            Some(health::errors_of(&device)).filter(|count| *count > 0)
        }
        _ => None,
    }
}

/// How full what is staged is. File systems on devices together, those of a server together: one that is dead must not hide others.
fn usage(journal: &[Entry], mounts: &MountTable, boot: &str, not_seen: &mut Vec<NotSeen>) -> HashMap<PathBuf, Usage> {
    let index = mounts.index();
    let mut groups: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
    let staged = journal.iter().filter_map(|entry| Some((entry.found.stage.as_ref()?, entry.found.mounted_at()?)));
    for (entry, path) in staged.filter(|(entry, _)| entry.boot == boot) {
        if entry.access == Access::Block || index.at(path).is_empty() {
            continue;
        }
        let group = match &entry.source {
            Some(Source::Filesystem { fstype, source, .. } | Source::Directory(Directory { fstype, source, .. })) => {
                source.split_once(":/").map_or(fstype.as_str(), |(server, _)| server)
            }
            _ => "",
        };
        groups.entry(group).or_default().push(path.to_owned());
    }
    let mut usage = HashMap::new();
    // Together, so that many dead ones cost the time of one.
    let asked: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            groups.into_values().map(|paths| scope.spawn(move || (os::fs::usages(&paths, PATIENCE), paths))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    for (answer, paths) in asked {
        match answer {
            Ok(found) => usage.extend(found),
            Err(error) => {
                let what = match paths.as_slice() {
                    [one] => format!("how full {} is", one.display()),
                    several => format!("how full {} mounts are", several.len()),
                };
                not_seen.push(NotSeen { what, why: error.to_string() });
            }
        }
    }
    usage
}

impl Configured {
    /// The backend, where it could be opened.
    pub(super) fn opened(&self) -> Option<&Arc<dyn Backend>> {
        self.backend.as_ref().ok()
    }
}

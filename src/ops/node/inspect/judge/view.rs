//! What was collected, by volume.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use crate::backend::{BlockDevice, Connected, Directory, SharedConnection, Source, Survey};
use crate::os::mountinfo::{Index, Mount};
use crate::volume::VolumeId;

use super::super::facts::{Entry, Facts, Ours, seconds};
use super::super::report::{Connection, Operation, Program, RecordedProvisioner, Running, Storage};
use crate::ops::node::journal::Phase;
use crate::ops::node::observe::{self};

/// What is known of everything, by volume.
pub(super) struct View<'a> {
    pub(super) facts: &'a Facts,
    pub(super) index: Index<'a>,
    pub(super) entries: BTreeMap<&'a VolumeId, &'a Entry>,
    pub(super) stored: BTreeMap<&'a VolumeId, &'a crate::backend::Stored>,
    pub(super) devices: BTreeMap<&'a VolumeId, Vec<&'a Connected>>,
    pub(super) mappings: BTreeMap<&'a VolumeId, &'a Ours>,
    pub(super) mounts: BTreeMap<VolumeId, Vec<&'a Mount>>,
}

impl<'a> View<'a> {
    pub(super) fn new(facts: &'a Facts) -> Self {
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

    pub(super) fn ids(&self) -> BTreeSet<&'a VolumeId> {
        let of_node = self.entries.keys().chain(self.devices.keys()).chain(self.mappings.keys());
        of_node.chain(self.stored.keys()).copied().collect()
    }

    pub(super) fn running(&self) -> Running {
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

    pub(super) fn storage(&self) -> Vec<Storage> {
        let mut storage = Vec::new();
        for (backend, survey) in surveys(self.facts) {
            storage.extend(survey.places.iter().map(|place| Storage {
                backend: backend.clone(),
                name: place.name.clone(),
                at: place.at.clone(),
                total: place.total.0,
                free: place.free.0,
                read_only: place.read_only,
                provisioner: place.provisioner.as_ref().map(|holder| holder.pid.unwrap_or(0)),
                provisioner_host: place.provisioner.as_ref().and_then(|holder| holder.host.clone()),
                recorded_provisioner: place.recorded.as_ref().map(|record| RecordedProvisioner {
                    pid: record.holder.pid,
                    host: record.holder.host.clone(),
                    since: record.since.map(seconds),
                }),
            }));
        }
        storage
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
    pub(super) fn add(&mut self, device: &'a BlockDevice, id: &'a VolumeId) {
        self.by_number.insert(device.number, id);
        self.by_path.insert(device.path.clone(), id);
    }

    fn of(&self, mount: &Mount) -> Option<&'a VolumeId> {
        let share = || self.by_share.get(&(mount.fstype.as_str(), mount.source.as_path()));
        let owner = match mount.block_node() {
            Some(number) => self.by_number.get(&number),
            None if mount.fstype == "btrfs" => {
                self.by_path.get(&mount.source).or_else(|| self.by_number.get(&mount.btrfs_device()?))
            }
            None => self.by_number.get(&mount.device).or_else(share),
        };
        owner.copied().or_else(|| {
            let (directory, id) = self.by_place.get(mount.mount_point.as_path())?;
            observe::is_filesystem_of(mount, &Source::Directory((*directory).clone())).then_some(*id)
        })
    }
}

/// Of the backends that have any, by their names.
pub(super) fn surveys(facts: &Facts) -> impl Iterator<Item = (&String, &Survey)> {
    facts.backends.iter().filter_map(|(name, looked)| Some((name, looked.survey()?)))
}

/// Whether the journal has a stage of the volume, or something that cannot be read.
pub(super) fn is_staged(facts: &Facts, id: &str) -> bool {
    let of = |entry: &&Entry| entry.found.id.to_string() == id;
    facts.journal.iter().filter(of).any(|entry| {
        entry.moving || entry.found.stage.is_some() || !entry.found.damaged.is_empty() || !entry.found.unreadable.is_empty()
    })
}

pub(super) fn shown_connection(backend: &str, connection: &SharedConnection) -> Connection {
    Connection {
        backend: backend.to_owned(),
        object: connection.object.clone(),
        state: connection.state.clone(),
        up: connection.up,
        volumes: connection.users.iter().map(ToString::to_string).collect(),
    }
}

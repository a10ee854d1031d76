//! Clients of the controller: what each has asked for, and what must be there after a power cut.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use longshore::csi::group_controller_client::GroupControllerClient;
use longshore::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::Channel;

use crate::common::{Harness, MIB, create, nobody_starts};
use crate::disk::{Calls, Clock, pattern};

const CLIENTS: usize = 3;
/// Where a volume is written, in bytes.
const OFFSET: u64 = 1 << 20;
/// The content of an image that is neither empty nor what was written to one.
const TORN: u64 = u64::MAX;

/// What a client does. Names are those of its own volumes, snapshots and groups.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create(&'static str),
    /// A write to the volume's image and its fsync, as a loop device makes them.
    Write(&'static str),
    Snapshot {
        of: &'static str,
        name: &'static str,
    },
    Restore {
        from: &'static str,
        name: &'static str,
    },
    Clone {
        from: &'static str,
        name: &'static str,
    },
    Grow(&'static str),
    /// Gives it disk, and lets its deletion keep it.
    Modify(&'static str),
    Group {
        of: [&'static str; 2],
        name: &'static str,
    },
    Delete(&'static str),
    /// A deletion behind [`Step::Modify`].
    DeleteKept(&'static str),
    DeleteSnapshot(&'static str),
    DeleteGroup(&'static str),
}

const SCRIPT: [Step; 15] = [
    Step::Create("v"),
    Step::Write("v"),
    Step::Snapshot { of: "v", name: "s" },
    Step::Write("v"),
    Step::Restore { from: "s", name: "restored" },
    Step::Modify("restored"),
    Step::DeleteKept("restored"),
    Step::Clone { from: "v", name: "clone" },
    Step::Grow("clone"),
    Step::Group { of: ["v", "clone"], name: "g" },
    Step::DeleteSnapshot("s"),
    Step::DeleteGroup("g"),
    Step::Delete("v"),
    Step::Create("last"),
    Step::Grow("last"),
];

/// A volume, a snapshot, or a volume that was kept when it was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Item {
    bytes: i64,
    source: Option<String>,
    group: String,
    /// The seed of what was written to it; 0 where nothing was.
    content: u64,
    allocated: bool,
}

/// Items by id; what was kept of a volume by [`kept`].
type State = BTreeMap<String, Item>;

fn kept(volume: &str) -> String {
    format!("retained {volume}")
}

/// What a driver serves.
#[derive(Clone)]
struct Api {
    controller: ControllerClient<Channel>,
    groups: GroupControllerClient<Channel>,
}

impl Api {
    fn new(harness: &Harness) -> Api {
        Api { controller: harness.controller(), groups: harness.groups() }
    }
}

/// One who owns some volumes and snapshots and makes one call after the other.
#[derive(Clone)]
pub struct Client {
    number: usize,
    api: Api,
    images: PathBuf,
    ids: BTreeMap<&'static str, String>,
    calls: Calls,
    /// What is its own, before its first call and after each.
    states: Vec<State>,
}

impl Client {
    fn new(api: &Api, number: usize, images: PathBuf) -> Client {
        let states = vec![State::new()];
        Client { number, api: api.clone(), images, ids: BTreeMap::new(), calls: Calls::default(), states }
    }

    async fn run(mut self, clock: Clock) -> Client {
        for (at, step) in SCRIPT.iter().enumerate() {
            let begun = clock.now();
            self.perform(at).await.unwrap_or_else(|status| panic!("client {}: {step:?}: {status:?}", self.number));
            self.calls.note(begun, clock.now());
        }
        self
    }

    /// Makes a call of the script, and notes what is there behind it.
    async fn perform(&mut self, at: usize) -> Result<(), Status> {
        let mut state = self.states.last().expect("a state").clone();
        let called = |name: &str| format!("{name}-{}", self.number);
        let id = |name| self.ids[name].clone();
        match SCRIPT[at] {
            Step::Create(name) => self.create(name, None, 0, &mut state).await?,
            Step::Restore { from, name } => {
                let source = Type::Snapshot(SnapshotSource { snapshot_id: id(from) });
                let content = state[&id(from)].content;
                self.create(name, Some(source), content, &mut state).await?;
            }
            Step::Clone { from, name } => {
                let source = Type::Volume(VolumeSource { volume_id: id(from) });
                let content = state[&id(from)].content;
                self.create(name, Some(source), content, &mut state).await?;
            }
            Step::Write(name) => {
                let content = (100 * self.number + at + 1) as u64;
                let _open = nobody_starts();
                let image = File::options().write(true).open(image(&self.images, "volumes", &id(name))).expect("the image");
                image.write_all_at(&pattern(content), OFFSET).and_then(|()| image.sync_all()).expect("written");
                state.get_mut(&id(name)).expect("a volume").content = content;
            }
            Step::Snapshot { of, name } => {
                let request = csi::CreateSnapshotRequest { source_volume_id: id(of), name: called(name), ..Default::default() };
                let made = self.api.controller.create_snapshot(request).await?.into_inner();
                let made = made.snapshot.expect("a snapshot");
                self.ids.insert(name, made.snapshot_id.clone());
                let content = state[&made.source_volume_id].content;
                enter_snapshot(made, content, &mut state);
            }
            Step::Group { of, name } => {
                let source_volume_ids = of.map(id).to_vec();
                let request =
                    csi::CreateVolumeGroupSnapshotRequest { name: called(name), source_volume_ids, ..Default::default() };
                let made = self.api.groups.create_volume_group_snapshot(request).await?.into_inner();
                let made = made.group_snapshot.expect("a group");
                self.ids.insert(name, made.group_snapshot_id);
                for snapshot in made.snapshots {
                    let content = state[&snapshot.source_volume_id].content;
                    enter_snapshot(snapshot, content, &mut state);
                }
            }
            Step::Grow(name) => {
                let range = csi::CapacityRange { required_bytes: 32 * MIB, limit_bytes: 0 };
                let request =
                    csi::ControllerExpandVolumeRequest { volume_id: id(name), capacity_range: Some(range), ..Default::default() };
                let grown = self.api.controller.controller_expand_volume(request).await?.into_inner();
                state.get_mut(&id(name)).expect("a volume").bytes = grown.capacity_bytes;
            }
            Step::Modify(name) => {
                let changes = [("preallocate", "true"), ("onDelete", "retain")];
                let request = csi::ControllerModifyVolumeRequest {
                    volume_id: id(name),
                    mutable_parameters: changes.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
                    ..Default::default()
                };
                self.api.controller.controller_modify_volume(request).await?;
                state.get_mut(&id(name)).expect("a volume").allocated = true;
            }
            Step::Delete(name) | Step::DeleteKept(name) => {
                let request = csi::DeleteVolumeRequest { volume_id: id(name), ..Default::default() };
                self.api.controller.delete_volume(request).await?;
                let item = state.remove(&id(name)).expect("a volume");
                if matches!(SCRIPT[at], Step::DeleteKept(_)) {
                    state.insert(kept(&id(name)), Item { content: item.content, ..Item::default() });
                }
            }
            Step::DeleteSnapshot(name) => {
                let request = csi::DeleteSnapshotRequest { snapshot_id: id(name), ..Default::default() };
                self.api.controller.delete_snapshot(request).await?;
                state.remove(&id(name));
            }
            Step::DeleteGroup(name) => {
                let members = state.iter().filter(|(_, item)| item.group == id(name)).map(|(id, _)| id.clone());
                let request = csi::DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: id(name),
                    snapshot_ids: members.collect(),
                    ..Default::default()
                };
                self.api.groups.delete_volume_group_snapshot(request).await?;
                state.retain(|_, item| item.group != id(name));
            }
        }
        self.states.push(state);
        Ok(())
    }

    async fn create(&mut self, name: &'static str, source: Option<Type>, content: u64, state: &mut State) -> Result<(), Status> {
        let mut request = create(&format!("{name}-{}", self.number), 16, Some("ext4"), "image");
        request.volume_content_source = source.map(|source| csi::VolumeContentSource { r#type: Some(source) });
        let volume = self.api.controller.create_volume(request).await?.into_inner().volume.expect("a volume");
        self.ids.insert(name, volume.volume_id.clone());
        let (id, item) = listed(volume);
        state.insert(id, Item { content, ..item });
        Ok(())
    }

    /// What is wrong with its own among all that is there after a power cut behind this flush.
    fn wrong(&self, seen: &State, flush: usize) -> Option<String> {
        let [answered, begun] = self.calls.at(flush);
        let mut own = self.own(seen);
        let call = SCRIPT.get(answered).filter(|_| begun > answered);
        if let Some(Step::Write(name)) = call
            && let Some(item) = own.get_mut(&self.ids[name])
        {
            // It was not synced, and may be there in part.
            item.content = self.states[answered][&self.ids[name]].content;
        }
        let expected = [&self.states[answered], &self.states[begun]];
        (!expected.contains(&&own)).then(|| format!("client {}, in {call:?}: {own:#?} is none of {expected:#?}", self.number))
    }

    fn own(&self, seen: &State) -> State {
        let owned = seen.iter().filter(|(id, _)| self.states.iter().any(|state| state.contains_key(*id)));
        owned.map(|(id, item)| (id.clone(), item.clone())).collect()
    }

    /// Makes the call again that a power cut behind this flush has interrupted, and the next one. For the client that it gives, all before
    /// it was answered when `clock` began.
    async fn go_on(mut self, api: Api, flush: usize, clock: Clock) -> Result<Client, String> {
        let [answered, begun] = self.calls.at(flush);
        self.api = api;
        self.states.truncate(answered + 1);
        self.calls = Calls::answered_before(answered);
        for (at, step) in SCRIPT.iter().enumerate().take(begun + 1).skip(answered) {
            let since = if at < begun { 0 } else { clock.now() };
            let made = self.perform(at).await;
            made.map_err(|status| format!("client {}, after the cut: {step:?}: {status:?}", self.number))?;
            self.calls.note(since, clock.now());
        }
        Ok(self)
    }
}

/// The clients after a power cut behind this flush, each having gone on.
pub fn recover(harness: &Harness, clients: &[Client], flush: usize, clock: &Clock) -> Vec<Client> {
    let api = Api::new(harness);
    let clients = clients.iter().map(|client| client.clone().go_on(api.clone(), flush, clock.clone()));
    let clients: JoinSet<Result<Client, String>> = harness.block_on(async { clients.collect() });
    harness.block_on(clients.join_all()).into_iter().map(|client| client.unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// Runs a client alone, which needs its own flushes, and then others at once.
pub fn run_clients(harness: &Harness, clock: &Clock) -> Vec<Client> {
    let api = Api::new(harness);
    let client = |number| Client::new(&api, number, harness.path("pool/images")).run(clock.clone());
    harness.block_on(async {
        let mut clients = vec![client(0).await];
        let others: JoinSet<Client> = (1..=CLIENTS).map(client).collect();
        clients.extend(others.join_all().await);
        clients
    })
}

/// What is wrong after a power cut behind this flush: with what is there, and with what calls then make of it.
pub fn check(harness: &Harness, clients: &[Client], flush: usize) -> Vec<String> {
    let api = Api::new(harness);
    let images = harness.path("pool/images");
    harness.block_on(async {
        let seen = observe(&api, &images).await;
        let mut wrong: Vec<String> = clients.iter().filter_map(|client| client.wrong(&seen, flush)).collect();
        let known = |id: &String| clients.iter().any(|client| client.states.iter().any(|state| state.contains_key(id)));
        wrong.extend(seen.keys().filter(|id| !known(id)).map(|id| format!("{id}: nobody asked for it")));
        if wrong.is_empty() {
            let clients: JoinSet<Result<Client, String>> =
                clients.iter().map(|client| client.clone().go_on(api.clone(), flush, Clock::default())).collect();
            let clients = clients.join_all().await;
            let seen = observe(&api, &images).await;
            wrong.extend(clients.into_iter().filter_map(|client| match client {
                Ok(client) if client.states.last() == Some(&client.own(&seen)) => None,
                Ok(Client { number, states, .. }) => {
                    Some(format!("client {number}, after the cut: {seen:#?}, and its own are not {:#?}", states.last()))
                }
                Err(error) => Some(error),
            }));
        }
        wrong
    })
}

/// All that the driver lists and the pool keeps.
async fn observe(api: &Api, images: &Path) -> State {
    let Api { mut controller, .. } = api.clone();
    let mut state = State::new();
    let volumes = controller.list_volumes(csi::ListVolumesRequest::default()).await.expect("listed").into_inner();
    for volume in volumes.entries.into_iter().filter_map(|entry| entry.volume) {
        let (id, mut item) = listed(volume);
        let path = image(images, "volumes", &id);
        let blocks = fs::metadata(&path).map_or(0, |image| image.blocks());
        item.allocated = blocks * 512 >= item.bytes.cast_unsigned();
        item.content = content(&path, item.bytes);
        state.insert(id, item);
    }
    let snapshots = controller.list_snapshots(csi::ListSnapshotsRequest::default()).await.expect("listed").into_inner();
    for snapshot in snapshots.entries.into_iter().filter_map(|entry| entry.snapshot) {
        let content = content(&image(images, "snapshots", &snapshot.snapshot_id), snapshot.size_bytes);
        enter_snapshot(snapshot, content, &mut state);
    }
    let retained: Vec<PathBuf> = {
        let _open = nobody_starts();
        let entries = fs::read_dir(images.join("retained")).expect("the pool");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    for path in retained {
        let volume = path.file_stem().expect("a name").to_string_lossy();
        state.insert(kept(&format!("image:{volume}")), Item { content: content(&path.join("image"), 0), ..Item::default() });
    }
    state
}

fn image(images: &Path, kind: &str, id: &str) -> PathBuf {
    images.join(kind).join(id.split_once(':').expect("an id of a backend").1).join("image")
}

/// The seed of what was written to an image of at least this length.
fn content(image: &Path, bytes: i64) -> u64 {
    let _open = nobody_starts();
    let Ok(file) = File::open(image) else { return TORN };
    let mut found = pattern(0);
    if file.metadata().map_or(0, |image| image.len()) < bytes.cast_unsigned() || file.read_exact_at(&mut found, OFFSET).is_err() {
        return TORN;
    }
    let seed = u64::from_le_bytes(found[..8].try_into().expect("8 bytes"));
    if found == pattern(seed) { seed } else { TORN }
}

fn listed(volume: csi::Volume) -> (String, Item) {
    let source = volume.content_source.and_then(|source| source.r#type).map(|source| match source {
        Type::Snapshot(source) => source.snapshot_id,
        Type::Volume(source) => source.volume_id,
    });
    (volume.volume_id, Item { bytes: volume.capacity_bytes, source, ..Item::default() })
}

fn enter_snapshot(snapshot: csi::Snapshot, content: u64, state: &mut State) {
    let (bytes, source, group) = (snapshot.size_bytes, Some(snapshot.source_volume_id), snapshot.group_snapshot_id);
    state.insert(snapshot.snapshot_id, Item { bytes, source, group, content, allocated: false });
}

/// How many calls these clients have made.
pub fn calls(clients: &[Client]) -> usize {
    clients.iter().map(|client| client.calls.len()).sum()
}

/// The moments at which clients got an answer, in flushes.
pub fn answered(clients: &[Client]) -> impl Iterator<Item = usize> {
    clients.iter().flat_map(|client| client.calls.answered())
}

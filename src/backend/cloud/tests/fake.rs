//! A cloud in memory, as unfriendly as a real one: it takes its time, shows what was, loses answers, and remembers tokens.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::super::clock::Clock;
use super::super::*;

/// What is to go wrong with a request.
#[derive(Clone, Copy, Debug)]
pub enum Wrong {
    /// It is done, and its answer is lost.
    Lost,
    /// It is not done, and its answer is lost.
    NotDone,
    Refused(Because),
}

/// How long things take, on the cloud's clock; `None` is for ever.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    pub create: Option<Duration>,
    pub attach: Option<Duration>,
    pub detach: Option<Duration>,
    pub change: Option<Duration>,
    pub snapshot: Option<Duration>,
}

const SOON: Option<Duration> = Some(Duration::from_millis(2500));

impl Default for Delays {
    fn default() -> Self {
        Delays { create: SOON, attach: SOON, detach: SOON, change: SOON, snapshot: SOON }
    }
}

#[derive(Clone, Debug, Default)]
struct World {
    disks: BTreeMap<DiskId, Disk>,
    snapshots: BTreeMap<CloudSnapshotId, CloudSnapshot>,
    changes: BTreeMap<DiskId, Changing>,
}

#[derive(Debug, Default)]
pub struct State {
    world: World,
    /// As it was before the last request that changed it, shown for so many questions more.
    past: (World, u32),
    /// By token: what was asked for, and what was answered.
    tokens: BTreeMap<String, (DiskSpec, Disk)>,
    /// What becomes true then.
    later: Vec<(Duration, Later)>,
    pub wrong: BTreeMap<&'static str, VecDeque<Wrong>>,
    pub counts: BTreeMap<&'static str, u64>,
    pub delays: Delays,
    /// How many questions are answered from the past after each change.
    pub stale: u32,
    /// Whether disks fail instead of becoming available.
    pub fail_disks: bool,
    pub instances: BTreeMap<NodeId, Instance>,
    /// Names that the cloud refuses though nobody has them.
    pub cursed: BTreeSet<String>,
    pub blocks: Vec<u64>,
    next: u64,
}

#[derive(Clone, Debug)]
enum Later {
    Made(DiskId),
    Attached(DiskId, NodeId),
    Detached(DiskId, NodeId),
    Changed(DiskId, Change),
    Saved(CloudSnapshotId),
}

#[derive(Debug)]
pub struct FakeCloud {
    clock: Clock,
    state: Mutex<State>,
}

impl FakeCloud {
    pub fn new(clock: Clock) -> FakeCloud {
        FakeCloud { clock, state: Mutex::default() }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wrong(&self, action: &'static str, wrong: impl IntoIterator<Item = Wrong>) {
        self.state().wrong.entry(action).or_default().extend(wrong);
    }

    pub fn count(&self, action: &str) -> u64 {
        self.state().counts.get(action).copied().unwrap_or_default()
    }

    /// The disks that there are, as they are.
    pub fn disks_now(&self) -> Vec<Disk> {
        let mut state = self.state();
        self.advance(&mut state);
        state.world.disks.values().filter(|disk| disk.state != DiskState::Deleted).cloned().collect()
    }

    pub fn snapshots_now(&self) -> Vec<CloudSnapshot> {
        self.state().world.snapshots.values().cloned().collect()
    }

    /// Puts one there by hand.
    pub fn put(&self, change: impl FnOnce(&mut Disk)) -> DiskId {
        let mut state = self.state();
        let id = state.id("vol");
        let mut disk = Disk {
            id: DiskId(id.clone()),
            state: DiskState::Available,
            capacity: Bytes::GIB,
            zone: "a".to_owned(),
            tags: Tags::new(),
            attachments: Vec::new(),
            snapshot: None,
            settings: Value::Null,
            multi_attach: false,
            created: None,
        };
        change(&mut disk);
        state.world.disks.insert(DiskId(id.clone()), disk);
        DiskId(id)
    }

    pub fn with_disk(&self, id: &DiskId, change: impl FnOnce(&mut Disk)) {
        change(self.state().world.disks.get_mut(id).expect("there"));
    }

    pub fn retag(&self, id: &CloudSnapshotId, tags: &Tags) {
        self.state().world.snapshots.get_mut(id).expect("there").tags = tags.clone();
    }

    /// As if all that was made so far had been made long ago.
    pub fn age(&self) {
        self.state().tokens.values_mut().for_each(|(_, disk)| disk.created = Some(SystemTime::UNIX_EPOCH));
    }

    /// A change that takes for ever comes to its end.
    pub fn change(&self, id: &DiskId, capacity: Bytes) {
        self.state().happen(Later::Changed(id.clone(), Change { capacity: Some(capacity), settings: None }));
    }

    fn advance(&self, state: &mut State) {
        let now = self.clock.now();
        let (due, later) = std::mem::take(&mut state.later).into_iter().partition(|(when, _)| *when <= now);
        state.later = later;
        for (_, event) in due {
            state.happen(event);
        }
    }

    fn later(&self, state: &mut State, delay: Option<Duration>, event: Later) {
        match delay {
            Some(Duration::ZERO) => state.happen(event),
            Some(delay) => state.later.push((self.clock.now() + delay, event)),
            None => {}
        }
    }

    /// A request that changes something.
    fn mutate<T>(&self, action: &'static str, work: impl FnOnce(&mut State) -> Answer<T>) -> Answer<T> {
        let mut state = self.state();
        self.advance(&mut state);
        *state.counts.entry(action).or_default() += 1;
        let wrong = state.wrong.get_mut(action).and_then(VecDeque::pop_front);
        match wrong {
            Some(Wrong::NotDone) => return Err(lost(action)),
            Some(Wrong::Refused(because)) => return Err(refusal(action, because)),
            _ => {}
        }
        if state.past.1 == 0 {
            state.past.0 = state.world.clone();
        }
        let answer = work(&mut state)?;
        state.past.1 = state.stale;
        match wrong {
            Some(Wrong::Lost) => Err(lost(action)),
            _ => Ok(answer),
        }
    }

    /// A question, answered from the past where that is due.
    fn ask<T>(&self, action: &'static str, work: impl FnOnce(&World) -> T) -> Answer<T> {
        let mut state = self.state();
        self.advance(&mut state);
        *state.counts.entry(action).or_default() += 1;
        if let Some(Wrong::Refused(because)) = state.wrong.get_mut(action).and_then(VecDeque::pop_front) {
            return Err(refusal(action, because));
        }
        if state.past.1 > 0 {
            state.past.1 -= 1;
            return Ok(work(&state.past.0));
        }
        Ok(work(&state.world))
    }
}

impl State {
    fn id(&mut self, kind: &str) -> String {
        self.next += 1;
        format!("{kind}-{:04}", self.next)
    }

    fn happen(&mut self, event: Later) {
        let world = &mut self.world;
        match event {
            Later::Made(disk) => {
                let failed = self.fail_disks;
                if let Some(disk) = world.disks.get_mut(&disk).filter(|disk| disk.state == DiskState::Creating) {
                    disk.state = if failed { DiskState::Failed } else { DiskState::Available };
                }
            }
            Later::Attached(disk, node) => {
                let place =
                    world.disks.get_mut(&disk).and_then(|disk| disk.attachments.iter_mut().find(|at| at.instance == node));
                if let Some(place) = place.filter(|place| place.state == AttachmentState::Attaching) {
                    place.state = AttachmentState::Attached;
                }
            }
            Later::Detached(id, node) => {
                if let Some(disk) = world.disks.get_mut(&id) {
                    disk.attachments.retain(|at| at.instance != node);
                    if disk.attachments.is_empty() {
                        disk.state = DiskState::Available;
                    }
                }
                if let Some(instance) = self.instances.get_mut(&node) {
                    instance.attached.retain(|_, attached| *attached != id);
                }
            }
            Later::Changed(id, change) => {
                if let Some(disk) = world.disks.get_mut(&id) {
                    disk.capacity = change.capacity.unwrap_or(disk.capacity);
                    disk.settings = change.settings.unwrap_or_else(|| disk.settings.clone());
                }
                if let Some(changing) = world.changes.get_mut(&id) {
                    changing.state = ChangeState::Usable;
                }
            }
            Later::Saved(id) => {
                if let Some(snapshot) = world.snapshots.get_mut(&id) {
                    snapshot.state = SnapshotState::Completed;
                    snapshot.progress = 100;
                }
            }
        }
    }

    fn disk(&mut self, action: &'static str, id: &DiskId) -> Answer<&mut Disk> {
        let there = self.world.disks.get_mut(id).filter(|disk| disk.state != DiskState::Deleted);
        there.ok_or_else(|| refusal(action, Because::NotFound))
    }
}

pub fn refusal(action: &'static str, because: Because) -> Refusal {
    let (code, message) = (format!("Fake.{because:?}"), "said the fake".to_owned());
    Refusal { because, action, code, message, request_id: Some("r-1".to_owned()), maybe_done: false, retry_after: None }
}

fn lost(action: &'static str) -> Refusal {
    Refusal { maybe_done: true, code: "timeout".to_owned(), request_id: None, ..refusal(action, Because::Unavailable) }
}

fn matches_tags(tags: &Tags, wanted: &Tags) -> bool {
    wanted.iter().all(|(key, value)| tags.get(key) == Some(value))
}

/// Pages of three, so that lists have several.
fn page<T>(all: Vec<T>, token: Option<&String>) -> Page<T> {
    let start: usize = token.map_or(0, |token| token.parse().expect("one of ours"));
    let more = all.len() > start + 3;
    Page { items: all.into_iter().skip(start).take(3).collect(), next: more.then(|| (start + 3).to_string()) }
}

impl Cloud for FakeCloud {
    fn disks(&self, which: &Which<DiskId>) -> Answer<Page<Disk>> {
        self.ask("disks", |world| {
            let all = world.disks.values().filter(|disk| disk.state != DiskState::Deleted);
            match which {
                Which::Ids(ids) => {
                    assert!(!ids.is_empty() && ids.len() <= MOST_IDS);
                    Page { items: all.filter(|disk| ids.contains(&disk.id)).cloned().collect(), next: None }
                }
                Which::Tagged { key, values } => {
                    assert!(!values.is_empty() && values.len() <= MOST_VALUES);
                    let tagged = |disk: &&Disk| disk.tags.get(key).is_some_and(|value| values.contains(value));
                    Page { items: all.filter(tagged).cloned().collect(), next: None }
                }
                Which::All { tags, token } => {
                    page(all.filter(|disk| matches_tags(&disk.tags, tags)).cloned().collect(), token.as_ref())
                }
            }
        })
    }

    fn create_disk(&self, spec: &DiskSpec) -> Answer<Disk> {
        self.mutate("create_disk", |state| {
            if let Some((before, disk)) = state.tokens.get(&spec.token) {
                return if before == spec { Ok(disk.clone()) } else { Err(refusal("create_disk", Because::OtherParameters)) };
            }
            if let Some(snapshot) = &spec.snapshot
                && state.world.snapshots.get(snapshot).is_none_or(|there| there.state != SnapshotState::Completed)
            {
                return Err(refusal("create_disk", Because::NotFound));
            }
            let id = DiskId(state.id("vol"));
            let disk = Disk {
                id: id.clone(),
                state: DiskState::Creating,
                capacity: spec.capacity,
                zone: spec.zone.clone(),
                tags: spec.tags.clone(),
                attachments: Vec::new(),
                snapshot: spec.snapshot.clone(),
                settings: spec.settings.clone(),
                multi_attach: spec.multi_attach,
                created: Some(SystemTime::now()),
            };
            state.world.disks.insert(id.clone(), disk.clone());
            state.tokens.insert(spec.token.clone(), (spec.clone(), disk.clone()));
            self.later(state, state.delays.create, Later::Made(id));
            Ok(disk)
        })
    }

    fn delete_disk(&self, id: &DiskId) -> Answer<()> {
        self.mutate("delete_disk", |state| {
            let disk = state.disk("delete_disk", id)?;
            if !disk.attachments.is_empty() {
                return Err(refusal("delete_disk", Because::InUse));
            }
            disk.state = DiskState::Deleted;
            Ok(())
        })
    }

    fn attach_disk(&self, id: &DiskId, node: &NodeId, device: &str) -> Answer<()> {
        self.mutate("attach_disk", |state| {
            let refuse = |because| Err(refusal("attach_disk", because));
            let cursed = state.cursed.contains(device);
            let Some(instance) = state.instances.get(node).cloned() else { return refuse(Because::NoInstance) };
            let disk = state.disk("attach_disk", id)?;
            if disk.state != DiskState::Available && !disk.multi_attach {
                return refuse(Because::InUse);
            }
            if disk.zone != instance.zone {
                return refuse(Because::Invalid);
            }
            if cursed || instance.attached.contains_key(device) {
                return refuse(Because::NameTaken);
            }
            if instance.limit.is_some_and(|limit| instance.attached.len() as u64 >= limit) {
                return refuse(Because::InstanceFull);
            }
            disk.state = DiskState::InUse;
            disk.attachments.push(Attachment {
                instance: node.clone(),
                device: device.to_owned(),
                state: AttachmentState::Attaching,
                since: Some(SystemTime::now()),
            });
            if let Some(instance) = state.instances.get_mut(node) {
                instance.attached.insert(device.to_owned(), id.clone());
            }
            self.later(state, state.delays.attach, Later::Attached(id.clone(), node.clone()));
            Ok(())
        })
    }

    fn detach_disk(&self, id: &DiskId, node: &NodeId) -> Answer<()> {
        self.mutate("detach_disk", |state| {
            let gone = !state.instances.contains_key(node);
            let disk = state.disk("detach_disk", id)?;
            if gone {
                return Err(refusal("detach_disk", Because::NoInstance));
            }
            let place = disk.attachments.iter_mut().find(|at| at.instance == *node);
            let Some(place) = place else { return Err(refusal("detach_disk", Because::NotAttached)) };
            place.state = AttachmentState::Detaching;
            self.later(state, state.delays.detach, Later::Detached(id.clone(), node.clone()));
            Ok(())
        })
    }

    fn change_disk(&self, id: &DiskId, change: &Change) -> Answer<Changing> {
        self.mutate("change_disk", |state| {
            let capacity = state.disk("change_disk", id)?.capacity;
            if state.world.changes.contains_key(id) {
                return Err(refusal("change_disk", Because::TooSoon));
            }
            let changing = Changing {
                disk: id.clone(),
                state: ChangeState::Modifying,
                capacity: change.capacity.unwrap_or(capacity),
                progress: 0,
                since: Some(SystemTime::now()),
                message: None,
            };
            state.world.changes.insert(id.clone(), changing.clone());
            self.later(state, state.delays.change, Later::Changed(id.clone(), change.clone()));
            Ok(changing)
        })
    }

    fn changes(&self, disks: &[DiskId]) -> Answer<Vec<Changing>> {
        self.ask("changes", |world| disks.iter().filter_map(|disk| world.changes.get(disk).cloned()).collect())
    }

    fn create_snapshot(&self, spec: &CloudSnapshotSpec) -> Answer<CloudSnapshot> {
        self.mutate("create_snapshot", |state| {
            let capacity = state.disk("create_snapshot", &spec.disk)?.capacity;
            let id = CloudSnapshotId(state.id("snap"));
            let snapshot = CloudSnapshot {
                id: id.clone(),
                disk: spec.disk.clone(),
                state: SnapshotState::Pending,
                capacity,
                created: SystemTime::now(),
                progress: 0,
                tags: spec.tags.clone(),
            };
            state.world.snapshots.insert(id.clone(), snapshot.clone());
            self.later(state, state.delays.snapshot, Later::Saved(id));
            Ok(snapshot)
        })
    }

    fn delete_snapshot(&self, id: &CloudSnapshotId) -> Answer<()> {
        self.mutate("delete_snapshot", |state| match state.world.snapshots.remove(id) {
            Some(_) => Ok(()),
            None => Err(refusal("delete_snapshot", Because::NotFound)),
        })
    }

    fn snapshots(&self, which: &Which<CloudSnapshotId>) -> Answer<Page<CloudSnapshot>> {
        self.ask("snapshots", |world| {
            let all = world.snapshots.values();
            match which {
                Which::Ids(ids) => {
                    Page { items: all.filter(|snapshot| ids.contains(&snapshot.id)).cloned().collect(), next: None }
                }
                Which::Tagged { key, values } => {
                    let tagged = |snapshot: &&CloudSnapshot| snapshot.tags.get(key).is_some_and(|value| values.contains(value));
                    Page { items: all.filter(tagged).cloned().collect(), next: None }
                }
                Which::All { tags, token } => {
                    page(all.filter(|snapshot| matches_tags(&snapshot.tags, tags)).cloned().collect(), token.as_ref())
                }
            }
        })
    }

    fn instances(&self, ids: &[NodeId]) -> Answer<Vec<Instance>> {
        let mut state = self.state();
        *state.counts.entry("instances").or_default() += 1;
        Ok(ids.iter().filter_map(|id| state.instances.get(id).cloned()).collect())
    }

    fn zones(&self) -> Answer<Vec<String>> {
        self.ask("zones", |_| vec!["a".to_owned(), "b".to_owned()])
    }

    fn device_name(&self, instance: &Instance, taken: &[String]) -> Option<String> {
        let names = ('a'..='z').map(|letter| format!("/dev/xvd{letter}"));
        names.into_iter().find(|name| !instance.attached.contains_key(name) && !taken.contains(name))
    }

    fn blocks(&self, _: Option<&CloudSnapshotId>, _: &CloudSnapshotId, from: &BlocksFrom) -> Answer<Blocks> {
        let all = self.state().blocks.clone();
        let start = match from {
            BlocksFrom::Offset(offset) => all.iter().position(|block| block + 4096 > *offset).unwrap_or(all.len()),
            BlocksFrom::Token(token) => token.parse().expect("one of ours"),
        };
        let next = (all.len() > start + 2).then(|| (start + 2).to_string());
        Ok(Blocks { offsets: all.into_iter().skip(start).take(2).collect(), size: 4096, next })
    }
}

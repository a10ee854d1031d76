//! A cloud in memory, at least as unkind as a real one. Each rule with where it is from:
//! - What it lists by tag begins with an empty page, and continues with short ones (boto3 issue 1776, aws-cli issue 3928; EC2 API reference,
//!   DescribeVolumes: only a missing NextToken ends a list).
//! - Tags are no identity: [`FakeCloud::restore_backup`] (AWS Backup developer guide, "Copy tags during a restore"),
//!   [`FakeCloud::copy_snapshot`] (EBS user guide, "Copy an Amazon EBS snapshot": a copy's volume id is arbitrary).
//! - Another cluster of the account has a disk and a snapshot of the same name for each of ours; anyone who changes one of them panics.
//! - A token is remembered for ever. With other parameters it is refused (EC2 API reference, "Ensuring idempotency"); once what it made
//!   is deleted, it is spent (aws-ebs-csi-driver issue 3010, crossplane-contrib/provider-aws issue 1858), or answers what it answered.
//! - A disk may be accepted and vanish, its token spent ([`State::vanish_disks`]: a KMS key that cannot be used, aws-ebs-csi-driver issues
//!   3010 and 1951).
//! - A disk is copied where [`State::copies`] says so: in its zone and not on a site, once it is made and filled in, one copy of it at a time
//!   and five in all; a copy has none of its tags, and comes from no snapshot (EBS user guide, "Copy an Amazon EBS volume"). Its tokens
//!   are not those of other disks: no guide says that they are.
//! - Descriptions may be old, also of what was just made ([`State::stale`]; EC2 API reference, "Eventual consistency").

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::super::clock::Clock;
use super::super::*;
use crate::volume::{Bytes, NodeId};

/// What is to go wrong with a request.
#[derive(Clone, Copy, Debug)]
pub enum Wrong {
    /// It is done, and its answer is lost.
    Lost,
    /// It is not done, and its answer is lost.
    NotDone,
    Refused(CloudErrorKind),
    /// Another program's same request came first and has ended, and this one is refused.
    Rival(CloudErrorKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    Before,
    After,
}

/// What a killed process unwinds with.
#[derive(Debug)]
pub struct Killed;

/// How long things take, on the cloud's clock; `None` is for ever.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    pub create: Option<Duration>,
    pub attach: Option<Duration>,
    pub detach: Option<Duration>,
    pub change: Option<Duration>,
    pub snapshot: Option<Duration>,
    /// Of the data of a copy.
    pub fill: Option<Duration>,
}

/// As EC2's.
pub const CONSTANTS: CloudConstants = CloudConstants {
    disks: Idempotency::Token,
    snapshots: Idempotency::FindFirst,
    consistency: Consistency {
        settled: Duration::from_secs(300),
        shown: Duration::from_secs(15),
        startup_grace: Duration::from_secs(15),
        stuck: Duration::from_secs(300),
    },
    batches: Batches { one_by_one: false, ids: 500, values: 200, attachments: 1 },
    operations: OperationVisibility::None,
    failed_may_have_data: false,
    shows_identity: true,
    longest_value: 256,
};

const SOON: Option<Duration> = Some(Duration::from_millis(2500));

impl Default for Delays {
    fn default() -> Self {
        Delays { create: SOON, attach: SOON, detach: SOON, change: SOON, snapshot: SOON, fill: SOON }
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
    /// By token, of copies and of others: what was asked for, and what was answered.
    tokens: BTreeMap<(bool, String), (DiskSpec, Disk)>,
    /// Whether disks are copied directly.
    pub copies: bool,
    /// Copies that are not filled in yet, with their sources.
    filling: BTreeMap<DiskId, DiskId>,
    /// The caller's process ends at the request after so many others: before or after it is done.
    pub kill: Option<(u64, Kill)>,
    /// Whether a source is frozen, and whether it was for each copy and snapshot of one.
    pub frozen: Arc<AtomicBool>,
    pub taken_frozen: Vec<bool>,
    /// What becomes true then.
    later: Vec<(Duration, Later)>,
    pub wrong: BTreeMap<&'static str, VecDeque<Wrong>>,
    pub counts: BTreeMap<&'static str, u64>,
    pub delays: Delays,
    /// How many questions are answered from the past after each change.
    pub stale: u32,
    /// Whether disks fail instead of becoming available.
    pub fail_disks: bool,
    /// Whether disks are gone instead of becoming available.
    pub vanish_disks: bool,
    /// Whether a token whose disk is deleted answers as it did, instead of being refused.
    pub answers_spent: bool,
    pub instances: BTreeMap<NodeId, Instance>,
    /// To which card of its machine a disk is attached.
    pub cards: BTreeMap<DiskId, u32>,
    /// How many disks a card takes, where machines have several.
    pub card_limit: Option<usize>,
    /// Names that the cloud refuses though nobody has them.
    pub cursed: BTreeSet<String>,
    pub blocks: Vec<u64>,
    /// Whether lists by tag have empty pages, each with the same token, and no end.
    pub endless: bool,
    next: u64,
}

#[derive(Clone, Debug)]
enum Later {
    Made(DiskId),
    Attached(DiskId, NodeId),
    Detached(DiskId, NodeId),
    Changed(DiskId, Change),
    Saved(CloudSnapshotId),
    Filled(DiskId),
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

    /// The disks that there are, as they are, but for those of the other cluster.
    pub fn disks_now(&self) -> Vec<Disk> {
        let mut state = self.state();
        self.advance(&mut state);
        let there = |disk: &&Disk| disk.state != DiskState::Deleted && !is_theirs(&disk.id.0);
        state.world.disks.values().filter(there).cloned().collect()
    }

    pub fn snapshots_now(&self) -> Vec<CloudSnapshot> {
        self.state().world.snapshots.values().filter(|snapshot| !is_theirs(&snapshot.id.0)).cloned().collect()
    }

    /// As AWS Backup restores a disk: from a snapshot of its own, with all tags.
    pub fn restore_backup(&self, of: &DiskId) -> DiskId {
        let original = self.state().world.disks[of].clone();
        let source = DiskSource::Snapshot(CloudSnapshotId("snap-of-the-backup".to_owned()));
        self.put(|disk| *disk = Disk { id: disk.id.clone(), attachments: Vec::new(), source, ..original })
    }

    /// As CopySnapshot copies a snapshot, with all tags.
    pub fn copy_snapshot(&self, of: &CloudSnapshotId) -> CloudSnapshotId {
        let mut state = self.state();
        let id = CloudSnapshotId(state.id("snap"));
        let disk = DiskId("vol-ffffffff".to_owned());
        let copy = CloudSnapshot { id: id.clone(), disk, ..state.world.snapshots[of].clone() };
        state.world.snapshots.insert(id.clone(), copy);
        id
    }

    /// Puts one there by hand.
    pub fn put(&self, change: impl FnOnce(&mut Disk)) -> DiskId {
        let mut state = self.state();
        let id = state.id("vol");
        let mut disk = Disk {
            id: DiskId(id.clone()),
            name: None,
            state: DiskState::Available,
            capacity: Bytes::GIB,
            zones: ["a".to_owned()].into(),
            site: None,
            tags: Tags::new(),
            attachments: Vec::new(),
            source: DiskSource::Empty,
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

    pub fn fail_snapshot(&self, id: &CloudSnapshotId) {
        self.state().world.snapshots.get_mut(id).expect("there").state = SnapshotState::Failed;
    }

    pub fn retag(&self, id: &CloudSnapshotId, tags: &Tags) {
        self.state().world.snapshots.get_mut(id).expect("there").tags = tags.clone();
    }

    /// As if all that was made so far had been made long ago.
    pub fn age(&self) {
        self.state().tokens.values_mut().for_each(|(_, disk)| disk.created = Some(SystemTime::UNIX_EPOCH));
    }

    /// As if what was made were not shown for so many questions more.
    pub fn hide(&self, questions: u32) {
        let mut state = self.state();
        state.past = (World { snapshots: state.world.snapshots.clone(), ..World::default() }, questions);
        state.past.0.disks = state
            .world
            .disks
            .values()
            .filter(|disk| !disk.tags.contains_key(tags::SOURCE))
            .map(|disk| (disk.id.clone(), disk.clone()))
            .collect();
    }

    /// All is shown as it is.
    pub fn show(&self) {
        self.state().past.1 = 0;
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
    fn mutate<T>(&self, action: &'static str, work: impl FnOnce(&mut State) -> Answer<T>) -> Answer<Accepted<T>> {
        let mut state = self.state();
        self.advance(&mut state);
        *state.counts.entry(action).or_default() += 1;
        let kill = match state.kill.take() {
            Some((0, kill)) => Some(kill),
            others => {
                state.kill = others.map(|(others, kill)| (others - 1, kill));
                None
            }
        };
        if kill == Some(Kill::Before) {
            std::panic::resume_unwind(Box::new(Killed));
        }
        let wrong = state.wrong.get_mut(action).and_then(VecDeque::pop_front);
        match wrong {
            Some(Wrong::NotDone) if kill.is_none() => return Err(lost(action)),
            Some(Wrong::Refused(because)) if kill.is_none() => return Err(refusal(action, because)),
            Some(Wrong::NotDone | Wrong::Refused(_)) => std::panic::resume_unwind(Box::new(Killed)),
            _ => {}
        }
        if state.past.1 == 0 {
            state.past.0 = state.world.clone();
        }
        let answer = work(&mut state)?;
        state.past.1 = state.stale;
        if kill.is_some() {
            std::panic::resume_unwind(Box::new(Killed));
        }
        match wrong {
            Some(Wrong::Lost) => Err(lost(action)),
            Some(Wrong::Rival(because)) => {
                std::mem::take(&mut state.later).into_iter().for_each(|(_, event)| state.happen(event));
                Err(refusal(action, because))
            }
            _ => Ok(Accepted::done(answer)),
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

    fn is_endless<Id>(&self, which: &Which<Id>) -> bool {
        self.state().endless && !matches!(which, Which::Ids(_))
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
                let made = if failed { DiskState::Failed } else { DiskState::Available };
                let made = if self.vanish_disks { DiskState::Deleted } else { made };
                if let Some(disk) = world.disks.get_mut(&disk).filter(|disk| disk.state == DiskState::Creating) {
                    disk.state = made;
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
                    if let Some(disks) = self.cards.remove(&id).and_then(|card| instance.cards.get_mut(&card)) {
                        *disks -= 1;
                    }
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
            Later::Filled(id) => drop(self.filling.remove(&id)),
            Later::Saved(id) => {
                if let Some(snapshot) = world.snapshots.get_mut(&id) {
                    snapshot.state = SnapshotState::Completed;
                    snapshot.progress = 100;
                }
            }
        }
    }

    /// Why a disk cannot be copied.
    fn check_copy(&self, source: &DiskId, spec: &DiskSpec) -> Result<(), CloudErrorKind> {
        const MOST: usize = 5;
        assert!(!is_theirs(&source.0), "copy of {source}, which is another cluster's");
        let there = self.world.disks.get(source).filter(|disk| disk.state != DiskState::Deleted);
        let disk = there.ok_or(CloudErrorKind::NotFound)?;
        let is_busy = self.filling.values().any(|filling| filling == source) || self.filling.len() >= MOST;
        match disk.state {
            _ if disk.zones != spec.zones || disk.site.is_some() || disk.capacity > spec.capacity => Err(CloudErrorKind::Invalid),
            DiskState::Available | DiskState::InUse if self.filling.contains_key(source) => Err(CloudErrorKind::InUse),
            DiskState::Available | DiskState::InUse if is_busy => Err(CloudErrorKind::TooSoon),
            DiskState::Available | DiskState::InUse => Ok(()),
            _ => Err(CloudErrorKind::InUse),
        }
    }

    fn disk(&mut self, action: &'static str, id: &DiskId) -> Answer<&mut Disk> {
        assert!(!is_theirs(&id.0), "{action} of {id}, which is another cluster's");
        let there = self.world.disks.get_mut(id).filter(|disk| disk.state != DiskState::Deleted);
        there.ok_or_else(|| refusal(action, CloudErrorKind::NotFound))
    }
}

pub fn refusal(action: &'static str, because: CloudErrorKind) -> Refusal {
    let (code, message) = (format!("Fake.{because:?}"), "said the fake".to_owned());
    Refusal { because, action, code, message, request_id: Some("r-1".to_owned()), maybe_done: false, retry_after: None }
}

pub fn lost(action: &'static str) -> Refusal {
    Refusal { maybe_done: true, code: "timeout".to_owned(), request_id: None, ..refusal(action, CloudErrorKind::Unavailable) }
}

fn matches_tags(tags: &Tags, wanted: &Tags) -> bool {
    wanted.iter().all(|(key, value)| tags.get(key) == Some(value))
}

/// An empty page, and then two or more short ones.
fn page<T>(all: Vec<T>, token: Option<&str>) -> Page<T> {
    let Some(token) = token else { return Page { items: Vec::new(), next: Some("0".to_owned()) } };
    let start: usize = token.parse().expect("one of ours");
    let most = all.len().div_ceil(2).max(3);
    let more = all.len() > start + most;
    Page { items: all.into_iter().skip(start).take(most).collect(), next: more.then(|| (start + most).to_string()) }
}

/// The other cluster's.
const THEIRS: &str = "-theirs";

fn is_theirs(id: &str) -> bool {
    id.ends_with(THEIRS)
}

fn their_tags(ours: &Tags) -> Tags {
    let mut theirs = ours.clone();
    theirs.insert(tags::CLUSTER.to_owned(), "theirs".to_owned());
    theirs
}

/// Lists by page.
impl FakeCloud {
    fn page_of_disks(&self, which: &Which<DiskId>, token: Option<&str>) -> Answer<Page<Disk>> {
        if self.is_endless(which) {
            return Ok(Page { items: Vec::new(), next: Some("again".to_owned()) });
        }
        self.ask("disks", |world| {
            let all = world.disks.values().filter(|disk| disk.state != DiskState::Deleted);
            match which {
                Which::Ids(ids) => {
                    assert!(!ids.is_empty() && ids.len() <= CONSTANTS.batches.ids);
                    Page { items: all.filter(|disk| ids.contains(&disk.id)).cloned().collect(), next: None }
                }
                Which::Tagged { key, values } => {
                    assert!(!values.is_empty() && values.len() <= CONSTANTS.batches.values);
                    let tagged = |disk: &&Disk| disk.tags.get(key).is_some_and(|value| values.contains(value));
                    page(all.filter(tagged).cloned().collect(), token)
                }
                Which::Named(_) => panic!("this cloud has no names"),
                Which::All { tags } => page(all.filter(|disk| matches_tags(&disk.tags, tags)).cloned().collect(), token),
            }
        })
    }

    fn page_of_snapshots(&self, which: &Which<CloudSnapshotId>, token: Option<&str>) -> Answer<Page<CloudSnapshot>> {
        if self.is_endless(which) {
            return Ok(Page { items: Vec::new(), next: Some("again".to_owned()) });
        }
        self.ask("snapshots", |world| {
            let all = world.snapshots.values();
            match which {
                Which::Ids(ids) => {
                    Page { items: all.filter(|snapshot| ids.contains(&snapshot.id)).cloned().collect(), next: None }
                }
                Which::Tagged { key, values } => {
                    let tagged = |snapshot: &&CloudSnapshot| snapshot.tags.get(key).is_some_and(|value| values.contains(value));
                    page(all.filter(tagged).cloned().collect(), token)
                }
                Which::Named(_) => panic!("this cloud has no names"),
                Which::All { tags } => page(all.filter(|snapshot| matches_tags(&snapshot.tags, tags)).cloned().collect(), token),
            }
        })
    }
}

impl Cloud for FakeCloud {
    fn constants(&self) -> CloudConstants {
        CONSTANTS
    }

    fn disks(&self, which: &Which<DiskId>, take: Take<'_, Disk>) -> Answer<()> {
        pages::each("disks", |token| self.page_of_disks(which, token), take)
    }

    fn copies_disk(&self, source: &Disk, spec: &DiskSpec) -> bool {
        self.state().copies && source.zones == spec.zones
    }

    fn create_disk(&self, spec: &DiskSpec) -> Answer<Accepted<Disk>> {
        let copied = match &spec.source {
            DiskSource::Disk(source) => Some(source),
            DiskSource::Empty | DiskSource::Snapshot(_) => None,
        };
        let action = if copied.is_some() { "copy_disk" } else { "create_disk" };
        self.mutate(action, |state| {
            let token = (copied.is_some(), spec.key.clone());
            if let Some((before, disk)) = state.tokens.get(&token) {
                let is_gone = state.world.disks[&disk.id].state == DiskState::Deleted;
                return match before == spec {
                    false => Err(refusal(action, CloudErrorKind::OtherParameters)),
                    true if is_gone && !state.answers_spent => Err(refusal(action, CloudErrorKind::TokenSpent)),
                    true => Ok(disk.clone()),
                };
            }
            let snapshot = match &spec.source {
                DiskSource::Snapshot(snapshot) => Some(snapshot.clone()),
                DiskSource::Empty | DiskSource::Disk(_) => None,
            };
            if let Some(snapshot) = &snapshot
                && state.world.snapshots.get(snapshot).is_none_or(|there| there.state != SnapshotState::Completed)
            {
                return Err(refusal(action, CloudErrorKind::NotFound));
            }
            if let Some(source) = copied {
                state.check_copy(source, spec).map_err(|because| refusal(action, because))?;
                state.taken_frozen.push(state.frozen.load(Ordering::Relaxed));
            }
            let id = DiskId(state.id("vol"));
            let disk = Disk {
                id: id.clone(),
                name: None,
                state: DiskState::Creating,
                capacity: spec.capacity,
                zones: spec.zones.clone(),
                site: spec.settings["site"].as_str().map(str::to_owned),
                tags: spec.tags.clone(),
                attachments: Vec::new(),
                source: snapshot.map_or(DiskSource::Empty, DiskSource::Snapshot),
                settings: spec.settings.clone(),
                multi_attach: spec.multi_attach,
                created: Some(SystemTime::now()),
            };
            state.world.disks.insert(id.clone(), disk.clone());
            let theirs = Disk { id: DiskId(format!("{id}{THEIRS}")), tags: their_tags(&disk.tags), ..disk.clone() };
            state.world.disks.insert(theirs.id.clone(), Disk { state: DiskState::Available, ..theirs });
            state.tokens.insert(token, (spec.clone(), disk.clone()));
            if let Some(source) = copied {
                state.filling.insert(id.clone(), source.clone());
                self.later(state, state.delays.fill, Later::Filled(id.clone()));
            }
            self.later(state, state.delays.create, Later::Made(id));
            Ok(disk)
        })
    }

    fn delete_disk(&self, id: &DiskId) -> Answer<Accepted<()>> {
        self.mutate("delete_disk", |state| {
            let disk = state.disk("delete_disk", id)?;
            if !disk.attachments.is_empty() || disk.state == DiskState::Creating {
                return Err(refusal("delete_disk", CloudErrorKind::InUse));
            }
            disk.state = DiskState::Deleted;
            Ok(())
        })
    }

    fn tag_disk(&self, id: &DiskId, tags: &Tags) -> Answer<Accepted<()>> {
        self.mutate("tag_disk", |state| {
            state.disk("tag_disk", id)?.tags.extend(tags.clone());
            Ok(())
        })
    }

    fn attach_disks(&self, node: &NodeId, disks: &[AttachSpec]) -> Answer<Accepted<()>> {
        let [AttachSpec { disk: id, device, card, .. }] = disks else { panic!("one at a time, not {}", disks.len()) };
        self.mutate("attach_disk", |state| {
            let refuse = |because| Err(refusal("attach_disk", because));
            let (cursed, card_limit) = (state.cursed.contains(device.as_str()), state.card_limit);
            let Some(instance) = state.instances.get(node).cloned() else { return refuse(CloudErrorKind::NoInstance) };
            let disk = state.disk("attach_disk", id)?;
            if disk.state != DiskState::Available && !disk.multi_attach {
                return refuse(CloudErrorKind::InUse);
            }
            let is_near = disk.zones.is_empty() || instance.zone.as_ref().is_some_and(|zone| disk.zones.contains(zone));
            if !is_near {
                return refuse(CloudErrorKind::Invalid);
            }
            if cursed || instance.attached.contains_key(device.as_str()) {
                return refuse(CloudErrorKind::NameTaken);
            }
            if instance.limit.is_some_and(|limit| instance.attached.len() as u64 >= limit) {
                return refuse(CloudErrorKind::InstanceFull);
            }
            // Without a card it is the first (EC2 API reference, AttachVolume).
            let card = card.unwrap_or_default();
            if card > 0 && !instance.cards.contains_key(&card) {
                return refuse(CloudErrorKind::Invalid);
            }
            if card_limit.is_some_and(|limit| instance.cards.get(&card).is_some_and(|disks| *disks >= limit)) {
                return refuse(CloudErrorKind::InstanceFull);
            }
            disk.state = DiskState::InUse;
            disk.attachments.push(Attachment {
                instance: node.clone(),
                device: device.clone(),
                state: AttachmentState::Attaching,
                since: Some(SystemTime::now()),
            });
            if let Some(instance) = state.instances.get_mut(node) {
                instance.attached.insert(device.as_str().to_owned(), id.clone());
                instance.cards.entry(card).and_modify(|disks| *disks += 1);
            }
            state.cards.insert(id.clone(), card);
            self.later(state, state.delays.attach, Later::Attached(id.clone(), node.clone()));
            Ok(())
        })
    }

    fn detach_disks(&self, node: &NodeId, disks: &[DiskId]) -> Answer<Accepted<()>> {
        let [id] = disks else { panic!("one at a time, not {}", disks.len()) };
        self.mutate("detach_disk", |state| {
            let gone = !state.instances.contains_key(node);
            let disk = state.disk("detach_disk", id)?;
            if gone {
                return Err(refusal("detach_disk", CloudErrorKind::NoInstance));
            }
            let place = disk.attachments.iter_mut().find(|at| at.instance == *node);
            let Some(place) = place else { return Err(refusal("detach_disk", CloudErrorKind::NotAttached)) };
            place.state = AttachmentState::Detaching;
            self.later(state, state.delays.detach, Later::Detached(id.clone(), node.clone()));
            Ok(())
        })
    }

    fn change_disk(&self, id: &DiskId, change: &Change) -> Answer<Accepted<Changing>> {
        self.mutate("change_disk", |state| {
            let capacity = state.disk("change_disk", id)?.capacity;
            if state.world.changes.contains_key(id) {
                return Err(refusal("change_disk", CloudErrorKind::TooSoon));
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

    fn create_snapshot(&self, spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>> {
        self.mutate("create_snapshot", |state| {
            let capacity = state.disk("create_snapshot", &spec.disk)?.capacity;
            state.taken_frozen.push(state.frozen.load(Ordering::Relaxed));
            let id = CloudSnapshotId(state.id("snap"));
            let snapshot = CloudSnapshot {
                id: id.clone(),
                name: None,
                disk: spec.disk.clone(),
                state: SnapshotState::Pending,
                capacity,
                created: SystemTime::now(),
                progress: 0,
                tags: spec.tags.clone(),
            };
            state.world.snapshots.insert(id.clone(), snapshot.clone());
            let theirs = CloudSnapshotId(format!("{id}{THEIRS}"));
            let snapshot_of_theirs = CloudSnapshot { id: theirs.clone(), tags: their_tags(&snapshot.tags), ..snapshot.clone() };
            state.world.snapshots.insert(theirs, snapshot_of_theirs);
            self.later(state, state.delays.snapshot, Later::Saved(id));
            Ok(snapshot)
        })
    }

    fn delete_snapshot(&self, id: &CloudSnapshotId) -> Answer<Accepted<()>> {
        assert!(!is_theirs(&id.0), "{id} is another cluster's");
        self.mutate("delete_snapshot", |state| match state.world.snapshots.remove(id) {
            Some(_) => Ok(()),
            None => Err(refusal("delete_snapshot", CloudErrorKind::NotFound)),
        })
    }

    fn snapshots(&self, which: &Which<CloudSnapshotId>, take: Take<'_, CloudSnapshot>) -> Answer<()> {
        pages::each("snapshots", |token| self.page_of_snapshots(which, token), take)
    }

    fn instances(&self, ids: &[NodeId]) -> Answer<Vec<Instance>> {
        let mut state = self.state();
        *state.counts.entry("instances").or_default() += 1;
        Ok(ids.iter().filter_map(|id| state.instances.get(id).cloned()).collect())
    }

    fn zones(&self) -> Answer<Vec<String>> {
        self.ask("zones", |_| vec!["a".to_owned(), "b".to_owned()])
    }

    fn address(&self, _: &DiskId, instance: &Instance, taken: &[String]) -> Option<DeviceAddress> {
        let names = ('a'..='z').map(|letter| format!("/dev/xvd{letter}"));
        names.into_iter().find(|name| !instance.attached.contains_key(name) && !taken.contains(name)).map(DeviceAddress::Slot)
    }

    fn blocks(
        &self,
        _: Option<&CloudSnapshotId>,
        _: &CloudSnapshotId,
        offset: u64,
        take: &mut dyn FnMut(Blocks) -> ControlFlow<()>,
    ) -> Answer<()> {
        let all: Vec<u64> = self.state().blocks.iter().copied().skip_while(|block| block + 4096 <= offset).collect();
        for offsets in all.chunks(2) {
            if take(Blocks { offsets: offsets.to_vec(), size: 4096 }).is_break() {
                break;
            }
        }
        Ok(())
    }
}

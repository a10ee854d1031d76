//! A second cloud in memory, as unlike EC2 as clouds are: the smallest example of what a new cloud writes (docs/adding-a-cloud.md).
//! - Names are chosen by the caller, unique in a zone, and free again after a deletion (Compute Engine, Azure); with
//!   [`StandIn::without_names`] there are none, and nothing distinguishes a repeat (Cinder).
//! - Every request that concerns a disk begins an operation, which ends after a while and may fail at its end ([`State::fail_at_end`]);
//!   what an attachment or a detachment does comes with its end, however late (gcp-compute-persistent-disk-csi-driver issue 965).
//! - It has no tags, but one text for each resource, in which it keeps them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::super::*;
use super::fake::{Wrong, lost, refusal};
use crate::volume::NodeId;

/// In characters (Compute Engine's descriptions have 2,048).
const LONGEST_TEXT: usize = 2048;

#[derive(Debug)]
pub struct StandIn {
    has_names: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub struct State {
    /// Tags are in the text, not in the disk.
    disks: BTreeMap<DiskId, (Disk, String)>,
    snapshots: BTreeMap<CloudSnapshotId, (CloudSnapshot, String)>,
    pub wrong: BTreeMap<&'static str, VecDeque<Wrong>>,
    pub counts: BTreeMap<&'static str, u64>,
    /// Whether what exists is not shown.
    pub hides: bool,
    /// Whether no attachment is shown.
    pub hides_attachments: bool,
    next: u64,
    pub instances: BTreeMap<NodeId, Instance>,
    operations: BTreeMap<OperationId, (Operation, Vec<Effect>, u32)>,
    /// How long a request to attach or detach takes, in real time.
    pub on_the_way: Duration,
    /// How often an operation is seen to run.
    pub takes: u32,
    /// Whether operations run for ever.
    pub holds: bool,
    /// The operations of this request run for ever.
    pub holds_only: Option<&'static str>,
    /// Whether an attachment is shown as complete while its operation runs.
    pub shows_early: bool,
    /// How the operations of a request end.
    pub fail_at_end: BTreeMap<&'static str, VecDeque<Refusal>>,
}

/// What an operation does at its end.
#[derive(Clone, Debug)]
enum Effect {
    Make(DiskId),
    Delete(DiskId),
    Attach(DiskId, NodeId, DeviceAddress),
    Detach(DiskId, NodeId),
}

impl StandIn {
    pub fn new() -> StandIn {
        let state = State { takes: 1, ..State::default() };
        let cloud = StandIn { has_names: true, state: Mutex::new(state) };
        for name in ["i-1", "i-2"] {
            let id: NodeId = name.parse().expect("a node id");
            let (zone, site, kind) = (Some("a".to_owned()), None, "standard-2".to_owned());
            let (attached, limit, cards) = (BTreeMap::new(), Some(4), BTreeMap::new());
            cloud
                .state()
                .instances
                .insert(id.clone(), Instance { id, zone, site, kind, state: MachineState::Running, attached, limit, cards });
        }
        cloud
    }

    pub fn without_names() -> StandIn {
        StandIn { has_names: false, ..StandIn::new() }
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

    pub fn disks_now(&self) -> Vec<Disk> {
        self.state().disks.values().map(shown).collect()
    }

    pub fn snapshots_now(&self) -> Vec<CloudSnapshot> {
        self.state().snapshots.values().map(shown_snapshot).collect()
    }

    /// An administrator copies the only disk, with its text.
    pub fn copy_by_hand(&self) {
        let mut state = self.state();
        let (original, kept) = state.disks.values().next().cloned().expect("a disk");
        let (id, source) = (DiskId("by-hand".to_owned()), DiskSource::Disk(original.id.clone()));
        state.disks.insert(id.clone(), (Disk { id, source, ..original }, kept));
    }

    /// An administrator detaches a disk from wherever it is.
    pub fn detach_by_hand(&self, disk: &DiskId) {
        let mut state = self.state();
        let (detached, _) = state.disks.get_mut(disk).expect("a disk");
        (detached.attachments, detached.state) = (Vec::new(), DiskState::Available);
        for machine in state.instances.values_mut() {
            machine.attached.retain(|_, attached| attached != disk);
        }
    }

    /// An administrator changes the tags of all there is.
    pub fn retag(&self, change: impl Fn(&mut Tags)) {
        let mut state = self.state();
        let State { disks, snapshots, .. } = &mut *state;
        let texts = disks.values_mut().map(|(_, text)| text).chain(snapshots.values_mut().map(|(_, text)| text));
        for kept in texts {
            let mut tags = tags_in(kept);
            change(&mut tags);
            *kept = text(&tags);
        }
    }

    /// A request, with what is to go wrong with it.
    fn request<T>(&self, action: &'static str, work: impl FnOnce(&mut State) -> Answer<T>) -> Answer<T> {
        if ["attach_disks", "detach_disks"].contains(&action) {
            let wait = self.state().on_the_way;
            std::thread::park_timeout(wait);
        }
        let mut state = self.state();
        *state.counts.entry(action).or_default() += 1;
        match state.wrong.get_mut(action).and_then(VecDeque::pop_front) {
            None => work(&mut state),
            Some(Wrong::NotDone) => Err(lost(action)),
            Some(Wrong::Refused(because)) => Err(refusal(action, because)),
            Some(Wrong::Lost) => work(&mut state).and_then(|_| Err(lost(action))),
            Some(Wrong::Rival(because)) => work(&mut state).and_then(|_| Err(refusal(action, because))),
        }
    }

    /// All that runs ends now.
    pub fn end_all(&self) {
        let mut state = self.state();
        let all: Vec<OperationId> = state.operations.keys().cloned().collect();
        all.iter().for_each(|id| state.end(id));
    }
}

impl State {
    /// What a new resource is called; where it has a name, a place has one of it.
    fn id(&mut self, has_names: bool, place: &str, key: &str) -> String {
        self.next += 1;
        if has_names { format!("{place}_{key}") } else { format!("id-{}", self.next) }
    }

    fn begin<T>(
        &mut self,
        action: &'static str,
        disks: Vec<DiskId>,
        changes: OperationChange,
        effects: Vec<Effect>,
        result: T,
    ) -> Answer<Accepted<T>> {
        self.next += 1;
        let id = OperationId(format!("operation-{}", self.next));
        let operation = Operation { id: id.clone(), disks, changes, action: action.to_owned(), state: OperationState::Running };
        self.operations.insert(id.clone(), (operation, effects, self.takes));
        Ok(Accepted { result, operation: Some(id) })
    }

    /// Another look at an operation.
    fn look(&mut self, id: &OperationId) -> Option<Operation> {
        let is_due = match self.operations.get_mut(id)? {
            (Operation { state: OperationState::Running, action, .. }, _, left)
                if !self.holds && self.holds_only != Some(action.as_str()) =>
            {
                *left = left.saturating_sub(1);
                *left == 0
            }
            _ => false,
        };
        if is_due {
            self.end(id);
        }
        Some(self.operations[id].0.clone())
    }

    fn end(&mut self, id: &OperationId) {
        let Some((operation, effects, _)) = self.operations.get_mut(id) else { return };
        if operation.state != OperationState::Running {
            return;
        }
        let failure = self.fail_at_end.get_mut(operation.action.as_str()).and_then(VecDeque::pop_front);
        operation.state = failure.clone().map_or(OperationState::Done, |refusal| OperationState::Failed(Box::new(refusal)));
        for effect in effects.clone() {
            self.happen(effect, failure.is_some());
        }
    }

    fn happen(&mut self, effect: Effect, fails: bool) {
        match (effect, fails) {
            (Effect::Make(disk), true) => drop(self.disks.remove(&disk)),
            (Effect::Make(disk), false) => drop(self.disks.get_mut(&disk).map(|(disk, _)| disk.state = DiskState::Available)),
            (Effect::Delete(disk), false) => drop(self.disks.remove(&disk)),
            (Effect::Attach(disk, node, device), false) => {
                if let Some((disk, _)) = self.disks.get_mut(&disk) {
                    disk.state = DiskState::InUse;
                    disk.attachments.retain(|place| place.instance != node);
                    disk.attachments.push(Attachment { instance: node, device, state: AttachmentState::Attached, since: None });
                }
            }
            (Effect::Detach(disk, node), false) => {
                if let Some((disk, _)) = self.disks.get_mut(&disk) {
                    disk.attachments.retain(|place| place.instance != node);
                    disk.state = if disk.attachments.is_empty() { DiskState::Available } else { DiskState::InUse };
                }
                if let Some(instance) = self.instances.get_mut(&node) {
                    instance.attached.retain(|_, attached| *attached != disk);
                }
            }
            (Effect::Attach(disk, node, device), true) => {
                if let Some((disk, _)) = self.disks.get_mut(&disk) {
                    disk.attachments.retain(|place| place.instance != node);
                    disk.state = if disk.attachments.is_empty() { DiskState::Available } else { DiskState::InUse };
                }
                if let Some(instance) = self.instances.get_mut(&node) {
                    instance.attached.remove(device.as_str());
                }
            }
            (Effect::Delete(_) | Effect::Detach(..), true) => {}
        }
    }
}

/// Where a name is unique: a zone, or the region for what is in several or none.
fn place(zones: &Zones) -> String {
    let zone = zones.first().filter(|_| zones.len() == 1);
    zone.cloned().unwrap_or_else(|| "region".to_owned())
}

/// All tags as one text, in the cloud's charset and size.
fn text(tags: &Tags) -> String {
    let text = serde_json::to_string(tags).expect("strings");
    assert!(text.is_ascii() && text.len() <= LONGEST_TEXT, "{text:?}");
    text
}

fn tags_in(text: &str) -> Tags {
    serde_json::from_str(text).expect("as it was written")
}

fn shown((disk, text): &(Disk, String)) -> Disk {
    Disk { tags: tags_in(text), ..disk.clone() }
}

fn shown_snapshot((snapshot, text): &(CloudSnapshot, String)) -> CloudSnapshot {
    CloudSnapshot { tags: tags_in(text), ..snapshot.clone() }
}

/// Which of all there is are asked for.
fn selected<Id: PartialEq>(which: &Which<Id>, id: &Id, name: Option<&String>, tags: &Tags) -> bool {
    match which {
        Which::Ids(ids) => ids.contains(id),
        Which::Named(names) => name.is_some_and(|name| names.contains(name)),
        Which::Tagged { key, values } => tags.get(key).is_some_and(|value| values.contains(value)),
        Which::All { tags: wanted } => wanted.iter().all(|(key, value)| tags.get(key) == Some(value)),
    }
}

impl Cloud for StandIn {
    fn constants(&self) -> CloudConstants {
        let idempotency = if self.has_names { Idempotency::UniqueName } else { Idempotency::FindFirst };
        CloudConstants {
            disks: idempotency,
            snapshots: idempotency,
            consistency: Consistency {
                settled: Duration::from_secs(60),
                shown: Duration::from_secs(5),
                startup_grace: Duration::from_secs(5),
                stuck: Duration::from_secs(120),
            },
            batches: Batches { one_by_one: true, ids: 10, values: 10, attachments: 3 },
            operations: OperationVisibility::Listed,
            failed_may_have_data: false,
            shows_identity: !self.has_names,
            longest_value: 1024,
        }
    }

    fn disks(&self, which: &Which<DiskId>, take: Take<'_, Disk>) -> Answer<()> {
        assert!(!self.has_names || !matches!(which, Which::Tagged { .. }), "where names are unique, no tag is asked for");
        self.request("disks", |state| {
            // Operations go on, whether anyone looks at them or not.
            let all: Vec<OperationId> = state.operations.keys().cloned().collect();
            all.iter().for_each(|id| drop(state.look(id)));
            let as_shown = |disk: Disk| match state.hides_attachments {
                true => Disk { attachments: Vec::new(), ..disk },
                false => disk,
            };
            let disks = state.disks.values().filter(|_| !state.hides).map(shown).map(as_shown);
            take(disks.filter(|disk| selected(which, &disk.id, disk.name.as_ref(), &disk.tags)).collect());
            Ok(())
        })
    }

    fn copies_disk(&self, source: &Disk, spec: &DiskSpec) -> bool {
        source.zones == spec.zones
    }

    fn create_disk(&self, spec: &DiskSpec) -> Answer<Accepted<Disk>> {
        self.request("create_disk", |state| {
            let id = DiskId(state.id(self.has_names, &place(&spec.zones), &spec.key));
            if state.disks.contains_key(&id) {
                return Err(refusal("create_disk", CloudErrorKind::Exists));
            }
            let disk = Disk {
                id: id.clone(),
                name: self.has_names.then(|| spec.key.clone()),
                state: DiskState::Creating,
                capacity: spec.capacity,
                zones: spec.zones.clone(),
                site: None,
                tags: Tags::new(),
                attachments: Vec::new(),
                source: spec.source.clone(),
                settings: Value::Null,
                multi_attach: spec.multi_attach,
                created: Some(SystemTime::now()),
            };
            let stored = (disk, text(&spec.tags));
            let answer = shown(&stored);
            state.disks.insert(id.clone(), stored);
            state.begin("create_disk", vec![id.clone()], OperationChange::Existence, vec![Effect::Make(id)], answer)
        })
    }

    fn tag_disk(&self, id: &DiskId, tags: &Tags) -> Answer<Accepted<()>> {
        self.request("tag_disk", |state| {
            let (_, kept) = state.disks.get_mut(id).ok_or_else(|| refusal("tag_disk", CloudErrorKind::NotFound))?;
            let mut all = tags_in(kept);
            all.extend(tags.clone());
            *kept = text(&all);
            state.begin("tag_disk", vec![id.clone()], OperationChange::Other, Vec::new(), ())
        })
    }

    fn delete_disk(&self, id: &DiskId) -> Answer<Accepted<()>> {
        self.request("delete_disk", |state| {
            let (disk, _) = state.disks.get(id).ok_or_else(|| refusal("delete_disk", CloudErrorKind::NotFound))?;
            if !disk.attachments.is_empty() {
                return Err(refusal("delete_disk", CloudErrorKind::InUse));
            }
            state.begin("delete_disk", vec![id.clone()], OperationChange::Existence, vec![Effect::Delete(id.clone())], ())
        })
    }

    /// All or none. Who asks for more than there is room is at fault, whatever came before.
    fn attach_disks(&self, node: &NodeId, disks: &[AttachSpec]) -> Answer<Accepted<()>> {
        assert!(disks.len() <= self.constants().batches.attachments);
        self.request("attach_disks", |state| {
            let refuse = |because| Err(refusal("attach_disks", because));
            for spec in disks {
                match state.disks.get(&spec.disk) {
                    None => return refuse(CloudErrorKind::NotFound),
                    Some((disk, _)) if !disk.attachments.is_empty() => return refuse(CloudErrorKind::InUse),
                    Some(_) => {}
                }
            }
            let Some(instance) = state.instances.get_mut(node) else { return refuse(CloudErrorKind::NoInstance) };
            let room = instance.limit.unwrap_or(u64::MAX) as usize - instance.attached.len();
            assert!(disks.len() <= room, "{} disks, and room for {room}", disks.len());
            for spec in disks {
                let before = instance.attached.insert(spec.device.as_str().to_owned(), spec.disk.clone());
                assert_eq!(before, None, "a slot is given twice");
            }
            let effect = |spec: &AttachSpec| Effect::Attach(spec.disk.clone(), node.clone(), spec.device.clone());
            let (ids, effects): (_, Vec<Effect>) = disks.iter().map(|spec| (spec.disk.clone(), effect(spec))).unzip();
            if state.shows_early {
                effects.iter().cloned().for_each(|effect| state.happen(effect, false));
            }
            state.begin("attach_disks", ids, OperationChange::Attachment(node.clone()), effects, ())
        })
    }

    /// Also of what is not attached: that is found at the end.
    fn detach_disks(&self, node: &NodeId, disks: &[DiskId]) -> Answer<Accepted<()>> {
        assert!(disks.len() <= self.constants().batches.attachments);
        self.request("detach_disks", |state| {
            match state.instances.get(node).map(|instance| instance.state) {
                None => return Err(refusal("detach_disks", CloudErrorKind::NoInstance)),
                Some(MachineState::Hibernated | MachineState::BeingDeleted) => {
                    return Err(refusal("detach_disks", CloudErrorKind::InUse));
                }
                Some(_) => {}
            }
            let effects = disks.iter().map(|disk| Effect::Detach(disk.clone(), node.clone())).collect();
            state.begin("detach_disks", disks.to_vec(), OperationChange::Attachment(node.clone()), effects, ())
        })
    }

    fn change_disk(&self, id: &DiskId, change: &Change) -> Answer<Accepted<Changing>> {
        self.request("change_disk", |state| {
            let (disk, _) = state.disks.get_mut(id).ok_or_else(|| refusal("change_disk", CloudErrorKind::NotFound))?;
            disk.capacity = change.capacity.unwrap_or(disk.capacity);
            let (disk, capacity) = (id.clone(), disk.capacity);
            let changing = Changing { disk, state: ChangeState::Done, capacity, progress: 100, since: None, message: None };
            state.begin("change_disk", vec![id.clone()], OperationChange::Other, Vec::new(), changing)
        })
    }

    fn changes(&self, _: &[DiskId]) -> Answer<Vec<Changing>> {
        Ok(Vec::new())
    }

    fn create_snapshot(&self, spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>> {
        self.request("create_snapshot", |state| {
            let capacity =
                state.disks.get(&spec.disk).ok_or_else(|| refusal("create_snapshot", CloudErrorKind::NotFound))?.0.capacity;
            let id = CloudSnapshotId(state.id(self.has_names, "global", &spec.key));
            if state.snapshots.contains_key(&id) {
                return Err(refusal("create_snapshot", CloudErrorKind::Exists));
            }
            let snapshot = CloudSnapshot {
                id: id.clone(),
                name: self.has_names.then(|| spec.key.clone()),
                disk: spec.disk.clone(),
                state: SnapshotState::Completed,
                capacity,
                created: SystemTime::now(),
                progress: 100,
                tags: Tags::new(),
            };
            let stored = (snapshot, text(&spec.tags));
            let answer = shown_snapshot(&stored);
            state.snapshots.insert(id, stored);
            state.begin("create_snapshot", vec![spec.disk.clone()], OperationChange::Other, Vec::new(), answer)
        })
    }

    fn delete_snapshot(&self, id: &CloudSnapshotId) -> Answer<Accepted<()>> {
        self.request("delete_snapshot", |state| match state.snapshots.remove(id) {
            Some(_) => Ok(Accepted::done(())),
            None => Err(refusal("delete_snapshot", CloudErrorKind::NotFound)),
        })
    }

    fn snapshots(&self, which: &Which<CloudSnapshotId>, take: Take<'_, CloudSnapshot>) -> Answer<()> {
        self.request("snapshots", |state| {
            let all = state.snapshots.values().filter(|_| !state.hides).map(shown_snapshot);
            take(all.filter(|found| selected(which, &found.id, found.name.as_ref(), &found.tags)).collect());
            Ok(())
        })
    }

    fn operations(&self, which: &WhichOperations) -> Answer<Vec<Operation>> {
        self.request("operations", |state| {
            let is_asked = |operation: &Operation| match which {
                WhichOperations::Ids(ids) => ids.contains(&operation.id),
                WhichOperations::Of(disks) => {
                    operation.disks.iter().any(|disk| disks.contains(disk)) && operation.state != OperationState::Done
                }
            };
            let asked: Vec<_> = state.operations.values().map(|(operation, _, _)| operation).filter(|it| is_asked(it)).collect();
            let asked: Vec<OperationId> = asked.into_iter().map(|operation| operation.id.clone()).collect();
            Ok(asked.iter().filter_map(|id| state.look(id)).collect())
        })
    }

    fn instances(&self, ids: &[NodeId]) -> Answer<Vec<Instance>> {
        self.request("instances", |state| Ok(ids.iter().filter_map(|id| state.instances.get(id).cloned()).collect()))
    }

    fn zones(&self) -> Answer<Vec<String>> {
        Ok(["a", "b", "c"].map(str::to_owned).to_vec())
    }

    /// A slot where there are names; else each disk has a serial number, the beginning of its id.
    fn address(&self, disk: &DiskId, instance: &Instance, taken: &[String]) -> Option<DeviceAddress> {
        if !self.has_names {
            return Some(DeviceAddress::Identity(disk.0.chars().take(20).collect()));
        }
        let mut slots = (0..16).map(|slot: u32| slot.to_string());
        slots.find(|slot| !instance.attached.contains_key(slot) && !taken.contains(slot)).map(DeviceAddress::Slot)
    }

    fn blocks(
        &self,
        _: Option<&CloudSnapshotId>,
        _: &CloudSnapshotId,
        _: u64,
        _: &mut dyn FnMut(Blocks) -> ControlFlow<()>,
    ) -> Answer<()> {
        Err(refusal("blocks", CloudErrorKind::Invalid))
    }
}

//! The five things that are looked at: disks, snapshots, changes, machines and operations.

use std::sync::Arc;
use std::time::Duration;

use crate::volume::NodeId;

use super::accepted::{Operation, WhichOperations};
use super::api::{Answer, Changing, Cloud, CloudSnapshot, CloudSnapshotId, Disk, DiskId, Instance, Tags, Which};
use super::clock::Clock;
use super::constants::Batches;
use super::ids::OperationId;
use super::poller::{Ended, Poller, Source};

/// By what a disk or snapshot is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Id(String),
    /// The tag's key and its value. Others than ours may answer to it.
    Tag(&'static str, String),
    /// The name that was chosen for it, where names are unique.
    Name(String),
}

impl From<&DiskId> for Key {
    fn from(id: &DiskId) -> Key {
        Key::Id(id.0.clone())
    }
}

impl From<&CloudSnapshotId> for Key {
    fn from(id: &CloudSnapshotId) -> Key {
        Key::Id(id.0.clone())
    }
}

impl Key {
    fn batch(&self, batches: Batches) -> (&'static str, usize) {
        match self {
            Key::Id(_) => ("", batches.ids),
            Key::Tag(key, _) => (key, batches.values),
            // No tag is called so.
            Key::Name(_) => ("name", batches.values),
        }
    }
}

/// The question that keys of one batch make.
fn which<Id>(keys: &[Key], id: impl Fn(String) -> Id) -> Which<Id> {
    let values = keys.iter().map(|(Key::Id(value) | Key::Tag(_, value) | Key::Name(value))| value.clone());
    match keys.first() {
        Some(Key::Tag(tag, _)) => Which::Tagged { key: (*tag).to_owned(), values: values.collect() },
        Some(Key::Name(_)) => Which::Named(values.collect()),
        Some(Key::Id(_)) | None => Which::Ids(values.map(id).collect()),
    }
}

/// Which of the keys an item answers.
fn answers(keys: &[Key], id: &str, name: Option<&str>, tags: &Tags) -> Option<Key> {
    match keys.first()? {
        Key::Tag(tag, _) => Some(Key::Tag(tag, tags.get(*tag)?.clone())),
        Key::Name(_) => Some(Key::Name(name?.to_owned())),
        Key::Id(_) => Some(Key::Id(id.to_owned())),
    }
}

/// Whom to ask, and about how many at once.
#[derive(Clone)]
struct Asked {
    cloud: Arc<dyn Cloud>,
    batches: Batches,
}

pub(super) struct Disks(Asked);

impl Source for Disks {
    type Key = Key;
    type Item = Disk;

    fn batch(&self, key: &Key) -> (&'static str, usize) {
        key.batch(self.0.batches)
    }

    fn fetch(&self, keys: &[Key]) -> Answer<Vec<(Key, Disk)>> {
        let which = which(keys, DiskId);
        let mut items = Vec::new();
        self.0.cloud.disks(&which, &mut |some| items.extend(some))?;
        Ok(items
            .into_iter()
            .filter_map(|disk| Some((answers(keys, &disk.id.0, disk.name.as_deref(), &disk.tags)?, disk)))
            .collect())
    }
}

pub(super) struct Snapshots(Asked);

impl Source for Snapshots {
    type Key = Key;
    type Item = CloudSnapshot;

    fn batch(&self, key: &Key) -> (&'static str, usize) {
        key.batch(self.0.batches)
    }

    fn fetch(&self, keys: &[Key]) -> Answer<Vec<(Key, CloudSnapshot)>> {
        let which = which(keys, CloudSnapshotId);
        let mut items = Vec::new();
        self.0.cloud.snapshots(&which, &mut |some| items.extend(some))?;
        let key = |snapshot: &CloudSnapshot| answers(keys, &snapshot.id.0, snapshot.name.as_deref(), &snapshot.tags);
        Ok(items.into_iter().filter_map(|snapshot| Some((key(&snapshot)?, snapshot))).collect())
    }
}

pub(super) struct LastChanges(Asked);

impl Source for LastChanges {
    type Key = DiskId;
    type Item = Changing;

    fn batch(&self, _: &DiskId) -> (&'static str, usize) {
        ("", self.0.batches.ids)
    }

    fn fetch(&self, disks: &[DiskId]) -> Answer<Vec<(DiskId, Changing)>> {
        Ok(self.0.cloud.changes(disks)?.into_iter().map(|change| (change.disk.clone(), change)).collect())
    }
}

pub(super) struct Instances(Asked);

impl Source for Instances {
    type Key = NodeId;
    type Item = Instance;

    fn batch(&self, _: &NodeId) -> (&'static str, usize) {
        ("", self.0.batches.ids)
    }

    fn fetch(&self, ids: &[NodeId]) -> Answer<Vec<(NodeId, Instance)>> {
        Ok(self.0.cloud.instances(ids)?.into_iter().map(|instance| (instance.id.clone(), instance)).collect())
    }
}

/// By what an operation is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OperationKey {
    Id(OperationId),
    /// About this disk.
    Of(DiskId),
}

pub(super) struct Operations(Asked);

impl Source for Operations {
    type Key = OperationKey;
    type Item = Operation;

    fn batch(&self, key: &OperationKey) -> (&'static str, usize) {
        let about = match key {
            OperationKey::Id(_) => "",
            OperationKey::Of(_) => "disk",
        };
        (about, self.0.batches.ids)
    }

    fn fetch(&self, keys: &[OperationKey]) -> Answer<Vec<(OperationKey, Operation)>> {
        let (mut ids, mut disks) = (Vec::new(), Vec::new());
        for key in keys {
            match key {
                OperationKey::Id(id) => ids.push(id.clone()),
                OperationKey::Of(disk) => disks.push(disk.clone()),
            }
        }
        let is_by_id = disks.is_empty();
        let found = self.0.cloud.operations(&if is_by_id { WhichOperations::Ids(ids) } else { WhichOperations::Of(disks) })?;
        let keys = |found: &Operation| match is_by_id {
            true => vec![OperationKey::Id(found.id.clone())],
            false => found.disks.iter().cloned().map(OperationKey::Of).collect(),
        };
        Ok(found.into_iter().flat_map(|found| keys(&found).into_iter().map(move |key| (key, found.clone()))).collect())
    }
}

/// One poller for each.
pub(super) struct Pollers {
    pub disks: Poller<Disks>,
    pub snapshots: Poller<Snapshots>,
    pub changes: Poller<LastChanges>,
    pub instances: Poller<Instances>,
    pub operations: Poller<Operations>,
}

impl Pollers {
    pub fn new(cloud: &Arc<dyn Cloud>, clock: Clock) -> Pollers {
        let asked = Asked { cloud: Arc::clone(cloud), batches: cloud.constants().batches };
        let one_by_one = asked.batches.one_by_one;
        Pollers {
            disks: Poller::new(Disks(asked.clone()), clock, one_by_one),
            snapshots: Poller::new(Snapshots(asked.clone()), clock, one_by_one),
            changes: Poller::new(LastChanges(asked.clone()), clock, one_by_one),
            instances: Poller::new(Instances(asked.clone()), clock, one_by_one),
            operations: Poller::new(Operations(asked), clock, one_by_one),
        }
    }

    /// How the last request of any of them ended, and when.
    pub fn last(&self) -> Option<Ended> {
        let all = [self.disks.last(), self.snapshots.last(), self.changes.last(), self.instances.last(), self.operations.last()];
        all.into_iter().flatten().max_by_key(|(when, _): &(Duration, _)| *when)
    }
}

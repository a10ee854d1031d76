//! The four things that are looked at: disks, snapshots, changes and machines.

use std::sync::Arc;
use std::time::Duration;

use crate::volume::NodeId;

use super::api::{
    Answer, Changing, Cloud, CloudSnapshot, CloudSnapshotId, Disk, DiskId, Instance, MOST_IDS, MOST_VALUES, Tags, Which,
};
use super::clock::Clock;
use super::pages;
use super::poller::{Ended, Poller, Source};

/// By what a disk or snapshot is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Id(String),
    /// The tag's key and its value. Others than ours may answer to it.
    Tag(&'static str, String),
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
    fn batch(&self) -> (&'static str, usize) {
        match self {
            Key::Id(_) => ("", MOST_IDS),
            Key::Tag(key, _) => (key, MOST_VALUES),
        }
    }
}

/// The question that keys of one batch make.
fn which<Id>(keys: &[Key], id: impl Fn(String) -> Id) -> Which<Id> {
    let values = keys.iter().map(|(Key::Id(value) | Key::Tag(_, value))| value.clone());
    match tag(keys) {
        None => Which::Ids(values.map(id).collect()),
        Some(tag) => Which::Tagged { key: tag.to_owned(), values: values.collect() },
    }
}

/// Which of the keys an item answers.
fn answers(keys: &[Key], id: &str, tags: &Tags) -> Option<Key> {
    match tag(keys) {
        Some(tag) => Some(Key::Tag(tag, tags.get(tag)?.clone())),
        None => Some(Key::Id(id.to_owned())),
    }
}

fn tag(keys: &[Key]) -> Option<&'static str> {
    match keys.first()? {
        Key::Tag(tag, _) => Some(tag),
        Key::Id(_) => None,
    }
}

pub(super) struct Disks(Arc<dyn Cloud>);

impl Source for Disks {
    type Key = Key;
    type Item = Disk;

    fn batch(&self, key: &Key) -> (&'static str, usize) {
        key.batch()
    }

    fn fetch(&self, keys: &[Key]) -> Answer<Vec<(Key, Disk)>> {
        let which = which(keys, DiskId);
        let items = pages::all("disks", |page| self.0.disks(&which, page))?.into_iter();
        Ok(items.filter_map(|disk| Some((answers(keys, &disk.id.0, &disk.tags)?, disk))).collect())
    }
}

pub(super) struct Snapshots(Arc<dyn Cloud>);

impl Source for Snapshots {
    type Key = Key;
    type Item = CloudSnapshot;

    fn batch(&self, key: &Key) -> (&'static str, usize) {
        key.batch()
    }

    fn fetch(&self, keys: &[Key]) -> Answer<Vec<(Key, CloudSnapshot)>> {
        let which = which(keys, CloudSnapshotId);
        let items = pages::all("snapshots", |page| self.0.snapshots(&which, page))?.into_iter();
        Ok(items.filter_map(|snapshot| Some((answers(keys, &snapshot.id.0, &snapshot.tags)?, snapshot))).collect())
    }
}

pub(super) struct LastChanges(Arc<dyn Cloud>);

impl Source for LastChanges {
    type Key = DiskId;
    type Item = Changing;

    fn batch(&self, _: &DiskId) -> (&'static str, usize) {
        ("", MOST_IDS)
    }

    fn fetch(&self, disks: &[DiskId]) -> Answer<Vec<(DiskId, Changing)>> {
        Ok(self.0.changes(disks)?.into_iter().map(|change| (change.disk.clone(), change)).collect())
    }
}

pub(super) struct Instances(Arc<dyn Cloud>);

impl Source for Instances {
    type Key = NodeId;
    type Item = Instance;

    fn batch(&self, _: &NodeId) -> (&'static str, usize) {
        ("", MOST_IDS)
    }

    fn fetch(&self, ids: &[NodeId]) -> Answer<Vec<(NodeId, Instance)>> {
        Ok(self.0.instances(ids)?.into_iter().map(|instance| (instance.id.clone(), instance)).collect())
    }
}

/// One poller for each.
pub(super) struct Pollers {
    pub disks: Poller<Disks>,
    pub snapshots: Poller<Snapshots>,
    pub changes: Poller<LastChanges>,
    pub instances: Poller<Instances>,
}

impl Pollers {
    pub fn new(cloud: &Arc<dyn Cloud>, clock: Clock) -> Pollers {
        Pollers {
            disks: Poller::new(Disks(Arc::clone(cloud)), clock),
            snapshots: Poller::new(Snapshots(Arc::clone(cloud)), clock),
            changes: Poller::new(LastChanges(Arc::clone(cloud)), clock),
            instances: Poller::new(Instances(Arc::clone(cloud)), clock),
        }
    }

    /// How the last request of any of them ended, and when.
    pub fn last(&self) -> Option<Ended> {
        let all = [self.disks.last(), self.snapshots.last(), self.changes.last(), self.instances.last()];
        all.into_iter().flatten().max_by_key(|(when, _): &(Duration, _)| *when)
    }
}

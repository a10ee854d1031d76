//! What there is, as plain data under one short lock. No I/O here, and none while the lock is held.
//!
//! The invariants that span several entries are kept here and nowhere else: what is provisioned is the sum of all sizes
//! (and of what is just being made), a node's count is the number of its attachments, and each snapshot is in the
//! index of its source.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::Value;

use super::config::{Medium, Tier};
use super::contents::Contents;
use crate::backend::{PoolUsage, Provisioned, Usage};
use crate::volume::{
    AccessMode, BackendName, Bytes, ContentSource, Error, Group, GroupId, Health, NodeId, Result, Snapshot, SnapshotId, Volume,
    VolumeId,
};

/// A volume. Kept small: with the key and the tree around it, an idle one takes less than 500 bytes.
#[derive(Debug)]
pub(super) struct StoredVolume {
    pub(super) name: Box<str>,
    pub(super) capacity: Bytes,
    pub(super) source: Option<Box<ContentSource>>,
    /// The same parameters are kept once, however many volumes have them.
    pub(super) parameters: Arc<Value>,
    pub(super) medium: Medium,
    pub(super) tier: Option<Tier>,
    /// A `filesystem` volume was connected and not disconnected. Of a `block` volume the kernel knows it.
    pub(super) connected: bool,
    /// `None` while nobody has looked at them: all zeroes.
    pub(super) contents: Option<Arc<Contents>>,
    pub(super) attached: BTreeMap<NodeId, Attachment>,
}

/// How a node has a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attachment {
    pub(super) mode: AccessMode,
    pub(super) read_only: bool,
}

#[derive(Debug)]
pub(super) struct StoredSnapshot {
    pub(super) name: Box<str>,
    pub(super) source: VolumeId,
    pub(super) size: Bytes,
    pub(super) created: SystemTime,
    pub(super) group: Option<GroupId>,
    /// `None` is all zeroes.
    pub(super) contents: Option<Arc<Contents>>,
}

#[derive(Debug)]
struct StoredGroup {
    name: Box<str>,
    created: SystemTime,
    members: Vec<SnapshotId>,
}

/// All that there is.
#[derive(Debug)]
pub(super) struct State {
    capacity: Bytes,
    provisioned: u64,
    volumes: BTreeMap<VolumeId, StoredVolume>,
    snapshots: BTreeMap<SnapshotId, StoredSnapshot>,
    snapshots_of: BTreeMap<VolumeId, BTreeSet<SnapshotId>>,
    groups: BTreeMap<GroupId, StoredGroup>,
    attached_to: BTreeMap<NodeId, u64>,
    unhealthy: BTreeMap<VolumeId, Health>,
    parameters: HashSet<Arc<Value>>,
}

impl State {
    /// What can still be provisioned.
    pub(super) fn available(&self) -> Bytes {
        Bytes(self.capacity.0.saturating_sub(self.provisioned))
    }

    /// Memory is one pool. What is written there, only the kernel knows.
    pub(super) fn usage(&self) -> Usage {
        let provisioned = Provisioned {
            provisioned: Bytes(self.provisioned),
            volumes: self.volumes.len() as u64,
            snapshots: self.snapshots.len() as u64,
        };
        let pool = PoolUsage {
            total: self.capacity,
            used: None,
            metadata: None,
            provisionable: self.capacity,
            provisioned: Some(provisioned),
        };
        Usage { pools: vec![("memory".to_owned(), Some(pool))], attachments: Some(self.attached_to.values().sum()) }
    }

    pub(super) fn volume(&self, id: &VolumeId) -> Result<&StoredVolume> {
        self.volumes.get(id).ok_or_else(|| Error::volume_not_found(id))
    }

    /// To change what no other entry depends on; not its capacity and not its attachments.
    pub(super) fn volume_mut(&mut self, id: &VolumeId) -> Result<&mut StoredVolume> {
        self.volumes.get_mut(id).ok_or_else(|| Error::volume_not_found(id))
    }

    pub(super) fn found(&self, id: &VolumeId) -> Option<Volume> {
        self.volumes.get(id).map(|stored| stored.found(id))
    }

    pub(super) fn volumes_after(&self, after: Option<&VolumeId>, max: usize) -> Vec<Volume> {
        self.volumes.range(from(after)).take(max).map(|(id, stored)| stored.found(id)).collect()
    }

    /// Whose contents these are; looks at every volume.
    pub(super) fn owner(&self, identity: (u64, u64)) -> Option<&VolumeId> {
        let owns = |stored: &StoredVolume| stored.contents.as_ref().is_some_and(|contents| contents.identity == identity);
        self.volumes.iter().find(|(_, stored)| owns(stored)).map(|(id, _)| id)
    }

    /// The one copy of these parameters.
    pub(super) fn intern(&mut self, parameters: &Value) -> Arc<Value> {
        if let Some(known) = self.parameters.get(parameters) {
            return known.clone();
        }
        let new = Arc::new(parameters.clone());
        self.parameters.insert(new.clone());
        new
    }

    /// Adds a volume whose capacity was reserved.
    pub(super) fn add_volume(&mut self, id: VolumeId, volume: StoredVolume) {
        self.volumes.insert(id, volume);
    }

    /// Sets a larger capacity; the difference was reserved.
    pub(super) fn set_capacity(&mut self, id: &VolumeId, capacity: Bytes) -> Result<()> {
        self.volume_mut(id)?.capacity = capacity;
        Ok(())
    }

    /// Takes a volume out. To be dropped by the caller when the lock is free: its memory may take a while to go.
    ///
    /// # Errors
    /// `InUse` while it is attached.
    pub(super) fn remove_volume(&mut self, id: &VolumeId) -> Result<Option<StoredVolume>> {
        let Some(stored) = self.volumes.get(id) else { return Ok(None) };
        if let Some(node) = stored.attached.keys().next() {
            return Err(Error::InUse {
                object: format!("volume {id}"),
                by: format!("it is attached to node {node}; detach it first"),
            });
        }
        let Some(removed) = self.volumes.remove(id) else { return Ok(None) };
        self.provisioned -= removed.capacity.0;
        self.unhealthy.remove(id);
        // Two: the one in the table, and this.
        if Arc::strong_count(&removed.parameters) <= 2 {
            self.parameters.remove(&removed.parameters);
        }
        Ok(Some(removed))
    }

    /// How many volumes a node has.
    pub(super) fn attached_to(&self, node: &NodeId) -> u64 {
        self.attached_to.get(node).copied().unwrap_or_default()
    }

    pub(super) fn attach(&mut self, id: &VolumeId, node: &NodeId, how: Attachment) -> Result<()> {
        if self.volume_mut(id)?.attached.insert(node.clone(), how).is_none() {
            *self.attached_to.entry(node.clone()).or_default() += 1;
        }
        Ok(())
    }

    /// Whether it was attached there, or anywhere.
    pub(super) fn detach(&mut self, id: &VolumeId, node: Option<&NodeId>) -> bool {
        let Some(stored) = self.volumes.get_mut(id) else { return false };
        let gone: Vec<NodeId> = match node {
            Some(node) => stored.attached.remove_entry(node).into_iter().map(|(node, _)| node).collect(),
            None => std::mem::take(&mut stored.attached).into_keys().collect(),
        };
        let changed = !gone.is_empty();
        for node in gone {
            if let Entry::Occupied(mut count) = self.attached_to.entry(node) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        changed
    }

    pub(super) fn snapshot(&self, id: &SnapshotId) -> Result<&StoredSnapshot> {
        self.snapshots.get(id).ok_or_else(|| Error::snapshot_not_found(id))
    }

    pub(super) fn snapshots_after(&self, source: Option<&VolumeId>, after: Option<&SnapshotId>, max: usize) -> Vec<Snapshot> {
        match source {
            None => self.snapshots.range(from(after)).take(max).map(|(id, stored)| stored.snapshot(id)).collect(),
            Some(source) => {
                let ids = self.snapshots_of.get(source).into_iter().flat_map(|ids| ids.range(from(after)));
                ids.take(max).filter_map(|id| self.snapshots.get(id).map(|stored| stored.snapshot(id))).collect()
            }
        }
    }

    /// Adds a snapshot whose size was reserved.
    pub(super) fn add_snapshot(&mut self, id: SnapshotId, snapshot: StoredSnapshot) {
        self.snapshots_of.entry(snapshot.source.clone()).or_default().insert(id.clone());
        self.snapshots.insert(id, snapshot);
    }

    /// Takes a snapshot out, to be dropped when the lock is free.
    pub(super) fn remove_snapshot(&mut self, id: &SnapshotId) -> Option<StoredSnapshot> {
        let removed = self.snapshots.remove(id)?;
        self.provisioned -= removed.size.0;
        if let Some(ids) = self.snapshots_of.get_mut(&removed.source) {
            ids.remove(id);
            if ids.is_empty() {
                self.snapshots_of.remove(&removed.source);
            }
        }
        Some(removed)
    }

    pub(super) fn group(&self, id: &GroupId) -> Option<Group> {
        let stored = self.groups.get(id)?;
        let members = stored.members.iter().filter_map(|member| self.snapshots.get(member).map(|stored| stored.snapshot(member)));
        Some(Group { id: id.clone(), name: stored.name.to_string(), created: stored.created, snapshots: members.collect() })
    }

    /// Adds a group of snapshots whose sizes were reserved.
    pub(super) fn add_group(&mut self, id: GroupId, name: &str, created: SystemTime, members: Vec<(SnapshotId, StoredSnapshot)>) {
        let mut ids = Vec::new();
        for (member, snapshot) in members {
            ids.push(member.clone());
            self.add_snapshot(member, snapshot);
        }
        self.groups.insert(id, StoredGroup { name: name.into(), created, members: ids });
    }

    /// Takes a group and its members out, to be dropped when the lock is free.
    pub(super) fn remove_group(&mut self, id: &GroupId) -> Option<Vec<StoredSnapshot>> {
        let removed = self.groups.remove(id)?;
        Some(removed.members.iter().filter_map(|member| self.remove_snapshot(member)).collect())
    }

    pub(super) fn health(&self, id: &VolumeId) -> Result<Health> {
        self.volume(id)?;
        Ok(self.unhealthy.get(id).cloned().unwrap_or_default())
    }

    pub(super) fn set_health(&mut self, id: &VolumeId, health: Health) -> Result<()> {
        self.volume(id)?;
        if health.is_empty() {
            self.unhealthy.remove(id);
        } else {
            self.unhealthy.insert(id.clone(), health);
        }
        Ok(())
    }

    pub(super) fn unhealthy_after(&self, after: Option<&VolumeId>, max: usize) -> Vec<(VolumeId, Health)> {
        self.unhealthy.range(from(after)).take(max).map(|(id, health)| (id.clone(), health.clone())).collect()
    }
}

/// All keys behind `after`.
fn from<K>(after: Option<&K>) -> (Bound<&K>, Bound<&K>) {
    (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

impl StoredVolume {
    fn found(&self, id: &VolumeId) -> Volume {
        Volume {
            id: id.clone(),
            name: self.name.to_string(),
            capacity: self.capacity,
            source: self.source.as_deref().cloned(),
            parameters: Arc::clone(&self.parameters),
            topology: Vec::new(),
            for_one_node: false,
        }
    }
}

impl StoredSnapshot {
    pub(super) fn snapshot(&self, id: &SnapshotId) -> Snapshot {
        Snapshot {
            id: id.clone(),
            name: self.name.to_string(),
            source: self.source.clone(),
            size: self.size,
            created: self.created,
            ready: true,
            group: self.group.clone(),
            topology: None,
        }
    }
}

/// The state and its lock.
#[derive(Debug)]
pub(super) struct Store {
    name: BackendName,
    state: Mutex<State>,
}

impl Store {
    pub(super) fn new(name: BackendName, capacity: Bytes) -> Self {
        let state = State {
            capacity,
            provisioned: 0,
            volumes: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            snapshots_of: BTreeMap::new(),
            groups: BTreeMap::new(),
            attached_to: BTreeMap::new(),
            unhealthy: BTreeMap::new(),
            parameters: HashSet::new(),
        };
        Store { name, state: Mutex::new(state) }
    }

    pub(super) fn name(&self) -> &BackendName {
        &self.name
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `size` bytes to something that is still to be made.
    ///
    /// # Errors
    /// `NoCapacity`.
    pub(super) fn reserve(&self, size: Bytes) -> Result<Reservation<'_>> {
        let mut state = self.lock();
        let available = state.available();
        if size > available {
            let reason = format!(
                "{size} was asked for, {available} of {} is left; delete something or raise its capacity",
                state.capacity
            );
            return Err(Error::NoCapacity { place: format!("backend {}", self.name), reason });
        }
        state.provisioned += size.0;
        Ok(Reservation { store: self, size })
    }
}

/// Bytes provisioned to what is being made. Given back when dropped, whatever went wrong.
#[derive(Debug)]
#[must_use = "a reservation that is dropped at once reserves nothing"]
pub(super) struct Reservation<'a> {
    store: &'a Store,
    size: Bytes,
}

impl Reservation<'_> {
    /// Records what was made: from then on the reservation is its.
    pub(super) fn commit<T>(mut self, record: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let made = record(&mut self.store.lock())?;
        self.size = Bytes(0);
        Ok(made)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.size > Bytes(0) {
            self.store.lock().provisioned -= self.size.0;
        }
    }
}

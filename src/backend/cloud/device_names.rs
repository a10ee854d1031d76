//! The device names that this process gives on each node.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::backend::keyed_mutex::KeyedMutex;
use crate::volume::{NodeId, Result, VolumeId};

use super::accepted::Accepted;
use super::api::{Answer, DeviceAddress, Disk, DiskAccess, DiskId, Instance, Refusal};
use super::ids::OperationId;
use super::queues::Queues;

#[derive(Debug, Default)]
pub(super) struct DeviceNames {
    pub locks: KeyedMutex,
    pub attaching: Queues<AttachJob, Result<Begun>>,
    /// With whether others were in the same request.
    pub detaching: Queues<DiskId, (bool, Answer<Accepted<()>>)>,
    nodes: Mutex<HashMap<NodeId, Names>>,
}

/// An attachment to be begun.
#[derive(Debug)]
pub(super) struct AttachJob {
    pub volume: VolumeId,
    pub disk: Disk,
    pub access: DiskAccess,
}

/// How an attachment was begun.
#[derive(Debug)]
pub(super) enum Begun {
    /// With its operation, if it has one.
    Accepted(Option<OperationId>),
    /// The same, in one request with others: where the operation fails, it may have been for one of them.
    Together(Option<OperationId>),
    /// It may have been.
    Perhaps(Refusal),
    /// The disk is attached already, or in a state in which it cannot be.
    InUse(Refusal),
}

/// What is known of a node's names.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub seen: Option<(Duration, Instance)>,
    /// Names that this process gave, until they are shown, and when.
    pub given: BTreeMap<String, Given>,
    /// Slots that publish_context has named for a disk, until the CO has had it detached: a disk may be detached behind the CO's back, which
    /// still names the slot to its node, so that no other disk must come into it. A restart forgets them.
    pub named: BTreeMap<String, DiskId>,
    /// Names under which the cloud would not attach, or did not come to an end.
    pub bad: BTreeSet<String>,
}

/// For what a name was given.
#[derive(Debug)]
pub(super) struct Given {
    pub disk: DiskId,
    pub at: Duration,
    pub card: Option<u32>,
}

impl DeviceNames {
    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeId, Names>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn with<T>(&self, node: &NodeId, work: impl FnOnce(&mut Names) -> T) -> T {
        work(self.nodes().entry(node.clone()).or_default())
    }

    /// The disk is not attached there (any more): its name is free.
    pub fn release_device_name(&self, node: &NodeId, disk: &DiskId) {
        let mut nodes = self.nodes();
        let Some(names) = nodes.get_mut(node) else { return };
        names.seen = None;
        names.given.retain(|_, given| given.disk != *disk);
        if names.given.is_empty() && names.named.is_empty() && names.bad.is_empty() {
            nodes.remove(node);
        }
    }

    /// publish_context names this slot for the disk.
    pub fn names_slot(&self, node: &NodeId, device: &DeviceAddress, disk: &DiskId) {
        if let DeviceAddress::Slot(slot) = device {
            self.with(node, |names| {
                names.named.retain(|_, named| named != disk);
                names.named.insert(slot.clone(), disk.clone());
            });
        }
    }

    /// The CO has had the disk detached from this node, or from all: no publish_context names a slot for it there any more.
    pub fn names_no_slot(&self, node: Option<&NodeId>, disk: &str) {
        let mut nodes = self.nodes();
        for (_, names) in nodes.iter_mut().filter(|(of, _)| node.is_none_or(|node| node == *of)) {
            names.named.retain(|_, named| named.0 != disk);
        }
    }

    /// An attachment in this slot did not come to an end: the next one has another. An identity stays what it is.
    pub fn blacklist_device_name(&self, node: &NodeId, device: &DeviceAddress) {
        if let DeviceAddress::Slot(slot) = device {
            self.with(node, |names| names.bad.insert(slot.clone()));
        }
    }
}

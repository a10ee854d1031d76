//! One attachment of a node is begun at a time, since each needs a device name that no other has; different nodes do not wait for one
//! another.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::os::step::step;
use crate::volume::{Error, NodeId, Result, VolumeId};

use super::api::{CloudErrorKind, Disk, Instance, Refusal};
use super::controller::Controller;
use super::device_names::Given;
use super::memory::SETTLED;

/// How long a description of a machine serves for further attachments to it, in which its names are counted here.
const FRESH: Duration = Duration::from_secs(10);
/// How long a call waits for the lock, in real time.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many names are tried in one call.
const NAMES: usize = 8;

/// How an attachment was begun.
#[derive(Debug)]
pub(super) enum Begun {
    Accepted,
    /// It may have been.
    Perhaps(Refusal),
    /// The disk is attached already, or in a state in which it cannot be.
    InUse(Refusal),
}

impl Controller {
    /// Begins to attach, under the best name that is free.
    ///
    /// # Errors
    /// `NotFound` for a node that is not there, `Invalid` for one in another zone; `NodeFull`; `Busy` where others have been at it for
    /// too long.
    pub fn begin_attach(&self, id: &VolumeId, disk: &Disk, node: &NodeId) -> Result<Begun> {
        let object = format!("volume {id} on node {node}");
        let lock = self.nodes.locks.lock(node.as_str(), "attach", PATIENCE);
        let _lock = lock.map_err(|holder| Error::Busy {
            object: format!("node {node}"),
            operation: holder.operation,
            step: "attach disk".to_owned(),
            since: holder.since.elapsed(),
        })?;
        let mut full_cards = BTreeSet::new();
        for _ in 0..NAMES {
            let (instance, device) = self.choose_name(disk, node)?;
            let card = self.choose_card(&instance, node, &full_cards);
            let given = Given { disk: disk.id.clone(), at: self.clock.now(), card };
            self.nodes.with(node, |names| names.given.insert(device.clone(), given));
            let refusal = match step("attach disk", id, || self.cloud.attach_disk(&disk.id, &instance.id, &device, card)) {
                Ok(()) => return Ok(Begun::Accepted),
                Err(refusal) if refusal.maybe_done => return Ok(Begun::Perhaps(refusal)),
                Err(refusal) => refusal,
            };
            self.nodes.release_device_name(node, &disk.id);
            match refusal.because {
                CloudErrorKind::NameTaken => self.nodes.blacklist_device_name(node, &device),
                CloudErrorKind::InUse => return Ok(Begun::InUse(refusal)),
                // Perhaps only this card is.
                CloudErrorKind::InstanceFull if full_cards.len() + 1 < instance.cards.len() => full_cards.extend(card),
                CloudErrorKind::InstanceFull => {
                    return Err(Error::NodeFull { node: node.to_string(), reason: refusal.to_string() });
                }
                CloudErrorKind::NoInstance => return Err(no_such_node(node, &refusal)),
                _ => return Err(self.refused("attach disk", &object, refusal)),
            }
        }
        let reason = format!("the cloud reports all {NAMES} device names as in use; detach a volume, or retry");
        Err(Error::NodeFull { node: node.to_string(), reason })
    }

    /// The card with the fewest disks, those that are on their way among them; `None` where there is no choice.
    fn choose_card(&self, instance: &Instance, node: &NodeId, full: &BTreeSet<u32>) -> Option<u32> {
        let mut cards = instance.cards.clone();
        self.nodes.with(node, |names| {
            let on_their_way = names.given.iter().filter(|(name, _)| !instance.attached.contains_key(*name));
            for card in on_their_way.filter_map(|(_, given)| given.card) {
                *cards.entry(card).or_default() += 1;
            }
        });
        let free = cards.into_iter().filter(|(card, _)| !full.contains(card));
        free.min_by_key(|(card, disks)| (*disks, *card)).map(|(card, _)| card)
    }

    /// A free name on a node that has room.
    fn choose_name(&self, disk: &Disk, node: &NodeId) -> Result<(Instance, String)> {
        let now = self.clock.now();
        let fresh = self.nodes.with(node, |names| names.seen.clone()).filter(|(seen, _)| now < *seen + FRESH);
        let was_fresh = fresh.is_some();
        let instance = match fresh {
            Some((_, instance)) => instance,
            None => self.look_at(node)?,
        };
        match self.name_on(&instance, disk, node) {
            // Something may have been detached since.
            Err(Error::NodeFull { .. }) if was_fresh => {
                let instance = self.look_at(node)?;
                let device = self.name_on(&instance, disk, node)?;
                Ok((instance, device))
            }
            device => Ok((instance, device?)),
        }
    }

    fn name_on(&self, instance: &Instance, disk: &Disk, node: &NodeId) -> Result<String> {
        if instance.zone != disk.zone {
            let reason = format!("node {node} is in zone {}, disk {} in zone {}", instance.zone, disk.id, disk.zone);
            return Err(Error::invalid("node_id", reason));
        }
        if instance.site != disk.site {
            let place = |site: &Option<String>| site.clone().unwrap_or_else(|| format!("in the data centers of {}", disk.zone));
            let reason = format!("node {node} is {}, disk {} is {}", place(&instance.site), disk.id, place(&disk.site));
            return Err(Error::invalid("node_id", reason));
        }
        let full = |reason: String| Err(Error::NodeFull { node: node.to_string(), reason });
        let (given, mut taken) = self.nodes.with(node, |names| {
            let given: Vec<String> = names.given.keys().cloned().collect();
            let taken: Vec<String> = given.iter().chain(&names.bad).cloned().collect();
            (given, taken)
        });
        let count = instance.attached.len() + given.iter().filter(|name| !instance.attached.contains_key(*name)).count();
        if let Some(limit) = instance.limit.filter(|limit| count as u64 >= *limit) {
            return full(format!("{count} disks are attached to it, and a {} takes {limit}; detach one first", instance.kind));
        }
        if let Some(device) = self.cloud.device_name(instance, &taken) {
            return Ok(device);
        }
        // Names that once failed are better than none.
        taken.retain(|name| given.contains(name));
        self.nodes.with(node, |names| names.bad.clear());
        match self.cloud.device_name(instance, &taken) {
            Some(device) => Ok(device),
            None => full("no device name is free on it; detach a disk first".to_owned()),
        }
    }

    /// The node as it is now.
    fn look_at(&self, node: &NodeId) -> Result<Instance> {
        let seen = self.pollers.instances.look(node);
        let seen = seen.map_err(|refusal| super::errors::unknown(&self.owner.backend, &format!("node {node}"), &refusal))?;
        let Some(instance) = seen.into_iter().next() else {
            return Err(Error::NotFound { kind: "node", id: node.to_string() });
        };
        let now = self.clock.now();
        self.nodes.with(node, |names| {
            // What is shown is counted there; what is not shown for long has come to nothing.
            names.given.retain(|name, given| !instance.attached.contains_key(name) && now < given.at + SETTLED);
            names.seen = Some((now, instance.clone()));
        });
        Ok(instance)
    }

    /// Whether the cloud says that there is no such machine, or that it is terminated.
    pub fn is_node_gone(&self, node: &NodeId) -> bool {
        matches!(self.pollers.instances.look(node).as_deref(), Ok([]))
    }

    pub fn node_limit(&self, node: &NodeId) -> Result<Option<u64>> {
        Ok(self.look_at(node)?.limit)
    }
}

pub(super) fn no_such_node(node: &NodeId, refusal: &Refusal) -> Error {
    Error::NotFound { kind: "node", id: format!("{node} ({refusal})") }
}

//! What is known of a machine: its names, its room, and its cards.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::volume::{Error, NodeId, Result};

use super::api::{CloudErrorKind, DeviceAddress, Disk, Instance, Refusal};
use super::controller::Controller;
use super::machine::{DetachRule, detach_rule};
use super::zones;

/// How long a description of a machine serves for further attachments to it, in which its names are counted here.
const FRESH: Duration = Duration::from_secs(10);
impl Controller {
    /// Why an attachment was refused, by the request or at the end of its operation.
    pub fn attach_refused(&self, object: &str, node: &NodeId, refusal: Refusal) -> Error {
        match refusal.because {
            CloudErrorKind::InstanceFull => Error::NodeFull { node: node.to_string(), reason: refusal.to_string() },
            CloudErrorKind::NoInstance => no_such_node(node, &refusal),
            _ => self.refused("attach disk", object, refusal),
        }
    }

    /// The card with the fewest disks, those that are on their way among them; `None` where there is no choice.
    pub fn choose_card(&self, instance: &Instance, node: &NodeId, full: &BTreeSet<u32>) -> Option<u32> {
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
    pub fn choose_name(&self, disk: &Disk, node: &NodeId) -> Result<(Instance, DeviceAddress)> {
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

    fn name_on(&self, instance: &Instance, disk: &Disk, node: &NodeId) -> Result<DeviceAddress> {
        zones::check_reach(instance, disk)?;
        let full = |reason: String| Err(Error::NodeFull { node: node.to_string(), reason });
        let (given, own, others, mut taken) = self.nodes.with(node, |names| {
            let given: Vec<String> = names.given.keys().cloned().collect();
            let named =
                |by_it: bool| names.named.iter().filter(move |(_, named)| (**named == disk.id) == by_it).map(|(name, _)| name);
            let is_free =
                |name: &&String| !names.bad.contains(*name) && names.given.get(*name).is_none_or(|given| given.disk == disk.id);
            let own = named(true).find(is_free).cloned();
            let others: Vec<String> = named(false).cloned().collect();
            let taken: Vec<String> = given.iter().chain(&others).chain(&names.bad).cloned().collect();
            (given, own, others, taken)
        });
        let count = instance.attached.len() + given.iter().filter(|name| !instance.attached.contains_key(*name)).count();
        if let Some(limit) = instance.limit.filter(|limit| count as u64 >= *limit) {
            return full(format!("{count} disks are attached to it, and a {} takes {limit}; detach one first", instance.kind));
        }
        // Its node may still look for it there.
        if let Some(name) = own.filter(|name| !instance.attached.contains_key(name)) {
            return Ok(DeviceAddress::Slot(name));
        }
        if let Some(device) = self.cloud.address(&disk.id, instance, &taken) {
            return Ok(device);
        }
        // Names that once failed are better than none; those that publish_context names for another disk are not.
        taken.retain(|name| given.contains(name) || others.contains(name));
        self.nodes.with(node, |names| names.bad.clear());
        match self.cloud.address(&disk.id, instance, &taken) {
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
        let (now, settled) = (self.clock.now(), self.constants.consistency.settled);
        self.nodes.with(node, |names| {
            // What is shown is counted there; what is not shown for long has come to nothing.
            names.given.retain(|name, given| !instance.attached.contains_key(name) && now < given.at + settled);
            names.seen = Some((now, instance.clone()));
        });
        Ok(instance)
    }

    /// How a disk is detached from this machine. Where nothing is known of it, nothing is concluded.
    pub fn detach_rule(&self, node: &NodeId) -> DetachRule {
        match self.pollers.instances.look(node) {
            Ok(seen) => detach_rule(seen.first().map(|machine| machine.state)),
            Err(_) => DetachRule::Request,
        }
    }

    pub fn node_limit(&self, node: &NodeId) -> Result<Option<u64>> {
        Ok(self.look_at(node)?.limit)
    }
}

pub(super) fn no_such_node(node: &NodeId, refusal: &Refusal) -> Error {
    Error::NotFound { kind: "node", id: format!("{node} ({refusal})") }
}

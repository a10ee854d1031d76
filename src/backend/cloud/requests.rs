//! Requests to attach and to detach, several at once where the cloud takes them so.
//!
//! Those to one machine are sent one after the other, since each disk needs a device name that no other has, and never more are asked for
//! than there is room left; different machines do not wait for one another.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::keyed_mutex::{Holder, KeyedGuard};
use crate::os::step::step;
use crate::volume::{Error, NodeId, Result, VolumeId};

use super::accepted::Accepted;
use super::api::{Answer, AttachSpec, CloudErrorKind, DeviceAddress, DiskId, Instance, Refusal};
use super::controller::Controller;
use super::device_names::{AttachJob, Begun, Given};
use super::queues::Waiting;

/// How long a call waits for the lock, in real time.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many names are tried in one call.
const NAMES: usize = 8;

impl Controller {
    /// Begins to attach, under the best name that is free; with others who wait for the same machine where the cloud takes several.
    ///
    /// # Errors
    /// `NotFound` for a node that is not there, `Invalid` for one in another zone; `NodeFull`; `Busy` where others have been at it for
    /// too long.
    pub fn begin_attach(&self, job: AttachJob, node: &NodeId) -> Result<Begun> {
        self.begin_attach_within(PATIENCE, job, node)
    }

    /// The same, with so much time for the lock.
    pub fn begin_attach_within(&self, patience: Duration, job: AttachJob, node: &NodeId) -> Result<Begun> {
        let mine = self.nodes.attaching.join(node, job);
        let _lock = match self.nodes.locks.lock(node.as_str(), "attach", patience) {
            Ok(lock) => lock,
            Err(holder) if self.nodes.attaching.leave(node, &mine) => return Err(busy(node, &holder)),
            // Another call sends it. Only the result says whether it is attached.
            Err(_) => return mine.wait(),
        };
        let unserved = || Ok(Begun::Perhaps(not_answered("attach")));
        let taken = self.nodes.attaching.take(node, &mine, self.constants.batches.attachments, unserved);
        match taken.all.as_slice() {
            // Another call had it, and has ended.
            [] => {}
            [one] => return self.attach_locked(&one.job, node),
            several => self.attach_together(several, node),
        }
        drop(taken);
        mine.wait()
    }

    /// The same, in a request of its own.
    pub fn begin_attach_alone(&self, job: &AttachJob, node: &NodeId) -> Result<Begun> {
        let _lock = self.lock_node(node, "attach").map_err(|holder| busy(node, &holder))?;
        self.attach_locked(job, node)
    }

    fn lock_node(&self, node: &NodeId, operation: &'static str) -> Result<KeyedGuard<'_>, Holder> {
        self.nodes.locks.lock(node.as_str(), operation, PATIENCE)
    }

    fn attach_locked(&self, job: &AttachJob, node: &NodeId) -> Result<Begun> {
        let AttachJob { volume, disk, .. } = job;
        let mut full_cards = BTreeSet::new();
        for _ in 0..NAMES {
            let (instance, spec) = self.give_name(job, node, &full_cards)?;
            let (device, card) = (spec.device.clone(), spec.card);
            let refusal = match step("attach disk", volume, || self.cloud.attach_disks(&instance.id, &[spec])) {
                Ok(accepted) => return Ok(Begun::Accepted(accepted.operation)),
                Err(refusal) if refusal.maybe_done => return Ok(Begun::Perhaps(refusal)),
                Err(refusal) => refusal,
            };
            self.nodes.release_device_name(node, &disk.id);
            match refusal.because {
                CloudErrorKind::NameTaken if matches!(device, DeviceAddress::Slot(_)) => {
                    self.nodes.blacklist_device_name(node, &device)
                }
                CloudErrorKind::InUse => return Ok(Begun::InUse(refusal)),
                // Perhaps only this card is.
                CloudErrorKind::InstanceFull if full_cards.len() + 1 < instance.cards.len() => full_cards.extend(card),
                _ => return Err(self.attach_refused(&words(job, node), node, refusal)),
            }
        }
        let reason = format!("the cloud reports all {NAMES} device names as in use; detach a volume, or retry");
        Err(Error::NodeFull { node: node.to_string(), reason })
    }

    /// Chooses a name, which nobody else is given then. Each one that is given takes of the room that is left.
    fn give_name(&self, job: &AttachJob, node: &NodeId, full_cards: &BTreeSet<u32>) -> Result<(Instance, AttachSpec)> {
        let (instance, device) = self.choose_name(&job.disk, node)?;
        let card = self.choose_card(&instance, node, full_cards);
        let given = Given { disk: job.disk.id.clone(), at: self.clock.now(), card };
        self.nodes.with(node, |names| names.given.insert(device.as_str().to_owned(), given));
        Ok((instance, AttachSpec { disk: job.disk.id.clone(), device, card, access: job.access }))
    }

    /// One request for several. Who has no room, or is elsewhere, is not in it.
    fn attach_together(&self, all: &[Arc<Waiting<AttachJob, Result<Begun>>>], node: &NodeId) {
        let (mut placed, mut specs) = (Vec::new(), Vec::new());
        for waiting in all {
            match self.give_name(&waiting.job, node, &BTreeSet::new()) {
                Ok((_, spec)) => {
                    placed.push(waiting);
                    specs.push(spec);
                }
                Err(error) => waiting.end(Err(error)),
            }
        }
        if specs.is_empty() {
            return;
        }
        match step("attach disk", &node, || self.cloud.attach_disks(node, &specs)) {
            Ok(accepted) => placed.iter().for_each(|waiting| waiting.end(Ok(Begun::Together(accepted.operation.clone())))),
            Err(refusal) if refusal.maybe_done => {
                placed.iter().for_each(|waiting| waiting.end(Ok(Begun::Perhaps(refusal.clone()))));
            }
            Err(refusal) => {
                placed.iter().for_each(|waiting| self.nodes.release_device_name(node, &waiting.job.disk.id));
                for waiting in placed {
                    waiting.end(match refusal.concerns_one() {
                        true => self.attach_locked(&waiting.job, node),
                        false => Err(self.attach_refused(&words(&waiting.job, node), node, refusal.clone())),
                    });
                }
            }
        }
    }

    /// Detaches, with others who wait for the same machine where the cloud takes several. What was refused for one of several is asked for
    /// once more, alone.
    pub fn request_detach(&self, id: &VolumeId, disk: &DiskId, node: &NodeId) -> Answer<()> {
        let alone = || step("detach disk", id, || self.cloud.detach_disks(node, std::slice::from_ref(disk)));
        if self.constants.batches.attachments <= 1 {
            return self.finish("detach disk", alone());
        }
        let (is_one_of_several, answer) = self.detach_queued(disk, node);
        match self.finish("detach disk", answer) {
            Err(refusal) if is_one_of_several && refusal.concerns_one() => self.finish("detach disk", alone()),
            answer => answer,
        }
    }

    fn detach_queued(&self, disk: &DiskId, node: &NodeId) -> (bool, Answer<Accepted<()>>) {
        let mine = self.nodes.detaching.join(node, disk.clone());
        let _lock = match self.lock_node(node, "detach") {
            Ok(lock) => lock,
            Err(_) if self.nodes.detaching.leave(node, &mine) => return (false, Err(not_sent())),
            Err(_) => return mine.wait(),
        };
        let unserved = || (true, Err(not_answered("detach")));
        let taken = self.nodes.detaching.take(node, &mine, self.constants.batches.attachments, unserved);
        if taken.all.is_empty() {
            return mine.wait();
        }
        let disks: Vec<DiskId> = taken.all.iter().map(|waiting| waiting.job.clone()).collect();
        let answer = step("detach disk", &node, || self.cloud.detach_disks(node, &disks));
        let result = (disks.len() > 1, answer);
        taken.all.iter().for_each(|waiting| waiting.end(result.clone()));
        result
    }
}

/// The requests of others took too long.
fn not_sent() -> Refusal {
    Refusal {
        code: "busy".to_owned(),
        message: "other requests to this machine have not come to an end; retry".to_owned(),
        maybe_done: false,
        ..not_answered("detach")
    }
}

/// The call that was to send it, with others, did not come to its end.
fn not_answered(action: &'static str) -> Refusal {
    Refusal {
        because: CloudErrorKind::Unavailable,
        action,
        code: "interrupted".to_owned(),
        message: "the call that was to send this request with others was interrupted; retry".to_owned(),
        request_id: None,
        maybe_done: true,
        retry_after: None,
    }
}

fn busy(node: &NodeId, holder: &Holder) -> Error {
    let (operation, since) = (holder.operation, holder.since.elapsed());
    Error::Busy { object: format!("node {node}"), operation, step: "attach disk".to_owned(), since }
}

fn words(job: &AttachJob, node: &NodeId) -> String {
    format!("volume {} on node {node}", job.volume)
}

//! Volumes are bound to nodes, and freed from them.
//!
//! The truth about an attachment is what the cloud answers to a request, then what it describes: a description may be out of date, so
//! what this process attached not long ago is detached by a request even where no attachment is shown. That the disk, the attachment
//! or the machine is not there means detached. What neither comes nor goes for minutes is reported, with what to do, and is never final.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::backend::{Attach, check_same_attachment};
use crate::os::step::step;
use crate::volume::{AccessMode, Error, NodeId, Outcome, Result, VolumeId};

use super::api::{Attachment, AttachmentState, CloudErrorKind, Disk, DiskId, DiskState, Refusal, Tags};
use super::controller::Controller;
use super::errors::stuck;
use super::find::Located;
use super::memory::{SETTLED, STUCK};
use super::nodes::Begun;
use super::pollers::Key;
use super::tags;
use super::timeouts::WAIT;

/// Keys of publish_context: the cloud's id of the disk, and the device name that it was attached under.
pub const VOLUME: &str = "volume";
pub const DEVICE: &str = "device";
/// `true`: the disk was made empty for this volume, and this is its first attachment.
pub const EMPTY: &str = "madeEmpty";

impl Attach for Controller {
    fn attach(
        &self,
        id: &VolumeId,
        node: &NodeId,
        mode: AccessMode,
        read_only: bool,
    ) -> Result<Outcome<BTreeMap<String, String>>> {
        let disk = self.disk(id)?.ok_or_else(|| Error::volume_not_found(id))?;
        if let Some(outcome) = self.attached_already(id, &disk, node, mode, read_only)? {
            return Ok(outcome);
        }
        let (disk, lost) = match self.place_of(&disk, node).map(|attachment| attachment.state) {
            Some(AttachmentState::Attaching) => (disk, None),
            // What is being detached must be gone before it can come again.
            Some(AttachmentState::Detaching | AttachmentState::Busy) => {
                self.await_detached(id, &disk.id, node)?;
                (disk.clone(), self.start(id, &disk, node, mode)?)
            }
            _ => {
                let disk = self.freed_elsewhere(id, disk, mode)?;
                let lost = self.start(id, &disk, node, mode)?;
                (disk, lost)
            }
        };
        self.memory.bind(&disk.id, node, mode, read_only);
        let place = self.await_attached(id, &disk.id, node, lost)?;
        self.memory.count_attachment(1);
        Ok(Outcome::Changed(self.context(&disk.id, &place)))
    }

    fn detach(&self, id: &VolumeId, node: Option<&NodeId>) -> Result<Outcome<()>> {
        let (disk, seen) = match self.locate(id)? {
            Located::None => return Ok(Outcome::Unchanged(())),
            Located::Hidden(disk) => (disk, Vec::new()),
            Located::Seen(disk) => (disk.id.clone(), disk.attachments),
        };
        let nodes: BTreeSet<NodeId> = match node {
            Some(node) => BTreeSet::from([node.clone()]),
            None => seen.iter().map(|seen| seen.instance.clone()).chain(self.memory.bound_to(&disk)).collect(),
        };
        self.memory.is_used(&disk);
        let mut changed = false;
        for node in &nodes {
            let state = seen.iter().find(|seen| seen.instance == *node).map(|seen| seen.state);
            changed |= self.detach_from(id, &disk, node, state)?;
        }
        Ok(if changed { Outcome::Changed(()) } else { Outcome::Unchanged(()) })
    }

    fn attachments(&self, ids: &[VolumeId]) -> Result<BTreeMap<VolumeId, BTreeSet<NodeId>>> {
        let nodes = |disks: &[Disk]| disks.iter().flat_map(Disk::held_by).map(|attachment| attachment.instance.clone()).collect();
        Ok(self.disks(ids)?.into_iter().map(|(id, disks)| (id, nodes(&disks))).collect())
    }

    fn limit(&self, node: &NodeId) -> Result<Option<u64>> {
        self.node_limit(node)
    }
}

impl Controller {
    fn place_of<'a>(&self, disk: &'a Disk, node: &NodeId) -> Option<&'a Attachment> {
        disk.held_by().find(|attachment| attachment.instance == *node)
    }

    /// The answer to a repeat.
    ///
    /// # Errors
    /// `Conflict` where this process attached it otherwise (CSI spec, ControllerPublishVolume: "Volume published but is incompatible").
    /// The cloud does not keep how, so that a later process cannot tell.
    fn attached_already(
        &self,
        id: &VolumeId,
        disk: &Disk,
        node: &NodeId,
        mode: AccessMode,
        read_only: bool,
    ) -> Result<Option<Outcome<BTreeMap<String, String>>>> {
        let Some(attachment) = self.place_of(disk, node).filter(|place| place.state == AttachmentState::Attached) else {
            return Ok(None);
        };
        match self.memory.bound(&disk.id, node) {
            Some(bound) => check_same_attachment(id, node, (bound.mode, bound.read_only), (mode, read_only))?,
            None => self.memory.bind(&disk.id, node, mode, read_only),
        }
        Ok(Some(Outcome::Unchanged(self.context(&disk.id, attachment))))
    }

    /// The disk, once nobody has it who keeps it from others.
    ///
    /// # Errors
    /// `InUse`, naming the node.
    fn freed_elsewhere(&self, id: &VolumeId, disk: Disk, mode: AccessMode) -> Result<Disk> {
        if !mode.is_single_node() && !disk.multi_attach {
            let reason = "it was made for one node; make one with this access mode".to_owned();
            return Err(Error::Unsupported { what: format!("access mode {mode:?} for volume {id}"), reason });
        }
        if disk.multi_attach && !mode.is_single_node() {
            return Ok(disk);
        }
        for attachment in disk.held_by() {
            let other = &attachment.instance;
            if attachment.state == AttachmentState::Detaching {
                self.await_detached(id, &disk.id, other)?;
            } else if !self.is_node_gone(other) {
                let by = format!("disk {} is attached to node {other}; detach it there first", disk.id);
                return Err(Error::InUse { object: format!("volume {id}"), by });
            }
            // Where the machine is gone, the cloud decides.
        }
        Ok(disk)
    }

    /// What publish_context says of an attachment.
    fn context(&self, disk: &DiskId, place: &Attachment) -> BTreeMap<String, String> {
        let mut context = BTreeMap::from([(VOLUME.to_owned(), disk.0.clone()), (DEVICE.to_owned(), place.device.clone())]);
        if self.memory.is_first_attachment(disk, place) {
            context.insert(EMPTY.to_owned(), "true".to_owned());
        }
        context
    }

    /// Before an attachment begins, the disk's tag stops saying that nothing was written to it: durably, so that no later process takes
    /// a used disk for a blank one. A node reads a disk fully that is not reported as blank, so that what is doubtful costs only time.
    fn withdraw_blank(&self, id: &VolumeId, disk: &Disk, node: &NodeId) -> Result<()> {
        let ours = self.memory.attaching();
        let (value, first) = match tags::blank(disk) {
            None | Some(tags::USED) => {
                self.memory.is_used(&disk.id);
                return Ok(());
            }
            // What this process has put there may not be shown yet.
            Some(value) if self.memory.begins_attachment(&disk.id, node, [ours, tags::NEVER_ATTACHED].contains(&value)) => {
                return Ok(());
            }
            Some(tags::NEVER_ATTACHED) => (ours, self.memory.knows_tags_of(id.derived(), &disk.id)),
            Some(_) => (tags::USED, false),
        };
        let changed = Tags::from([(tags::BLANK.to_owned(), value.to_owned())]);
        match step("tag disk", id, || self.cloud.tag_disk(&disk.id, &changed)) {
            Ok(()) => self.memory.withdrew(&disk.id, node, first),
            Err(refusal) if refusal.because == CloudErrorKind::Denied => tracing::warn!(
                volume = %id, disk = %disk.id, %refusal,
                "the tag {} cannot be changed, so that the node reads the whole disk before it formats it; allow CreateTags", tags::BLANK
            ),
            Err(refusal) => return Err(self.refused("tag disk", &format!("volume {id}"), refusal)),
        }
        Ok(())
    }

    /// Begins to attach; a refusal that may have been none is waited out.
    fn start(&self, id: &VolumeId, disk: &Disk, node: &NodeId, mode: AccessMode) -> Result<Option<Refusal>> {
        match disk.state {
            DiskState::Available | DiskState::InUse => {}
            DiskState::Creating | DiskState::Deleting | DiskState::Deleted | DiskState::Failed => {
                let reason = format!("disk {} is {:?}", disk.id, disk.state);
                return Err(Error::Unverified { device: format!("volume {id}"), reason });
            }
        }
        self.withdraw_blank(id, disk, node)?;
        let begun = self.begin_attach(id, disk, node)?;
        self.memory.began_attachment(&disk.id);
        let refusal = match begun {
            Begun::Accepted => return Ok(None),
            Begun::Perhaps(refusal) => return Ok(Some(refusal)),
            Begun::InUse(refusal) => {
                self.memory.is_used(&disk.id);
                refusal
            }
        };
        // Our description was out of date: what does a new one say?
        let seen = self.pollers.disks.look(&Key::from(&disk.id)).map_err(|refusal| self.unknown(id, &refusal))?;
        let held: Vec<NodeId> = seen
            .iter()
            .filter(|seen| seen.id == disk.id)
            .flat_map(Disk::held_by)
            .map(|attachment| attachment.instance.clone())
            .collect();
        match held.iter().find(|other| *other != node) {
            Some(other) if mode.is_single_node() => {
                let by = format!("disk {} is attached to node {other}; detach it there first ({refusal})", disk.id);
                Err(Error::InUse { object: format!("volume {id}"), by })
            }
            // Here, by an earlier call; or by one that is not shown yet.
            _ => Ok(Some(refusal)),
        }
    }

    /// Waits until it is attached.
    fn await_attached(&self, id: &VolumeId, disk: &DiskId, node: &NodeId, lost: Option<Refusal>) -> Result<Attachment> {
        let mut last: Option<Attachment> = None;
        let mut moving_for = Duration::ZERO;
        let waited = self.pollers.disks.wait(&Key::from(disk), self.clock.now() + WAIT, |seen| {
            let disk = seen.iter().find(|seen| seen.id == *disk)?;
            match self.place_of(disk, node) {
                Some(place) => {
                    moving_for = self.memory.saw(&disk.id, node, place.state);
                    last = Some(place.clone());
                    (place.state == AttachmentState::Attached).then(|| Ok(place.clone()))
                }
                // It was coming, and is gone again.
                None => last.take().map(Err),
            }
        });
        let object = format!("volume {id} on node {node}");
        let unfinished = match waited {
            Ok(Ok(place)) => return Ok(place),
            Ok(Err(gone)) => {
                self.nodes.release_device_name(node, disk);
                self.nodes.blacklist_device_name(node, &gone.device);
                self.memory.unbind(disk, node);
                let reason = format!("the cloud gave up attaching disk {disk} as {}", gone.device);
                return Err(Error::failed("attach disk", object, reason));
            }
            Err(unfinished) => unfinished,
        };
        let Some(place) = last else {
            let refusal = lost.or(unfinished.refusal.map(|refusal| *refusal));
            let reason = format!("the cloud does not show the attachment of disk {disk} yet");
            return Err(match refusal {
                Some(refusal) => Error::failed("attach disk", object, refusal),
                None => Error::InProgress { object, reason },
            });
        };
        let since = place.since.and_then(|since| since.elapsed().ok()).unwrap_or_default().max(moving_for);
        if since < STUCK {
            let reason = format!("disk {disk} is being attached as {}", place.device);
            return Err(Error::InProgress { object, reason });
        }
        self.nodes.blacklist_device_name(node, &place.device);
        Err(Error::failed("attach disk", object, stuck(disk, node, &place, since)))
    }

    /// Detaches from one node; whether it was attached. `state` is what the cloud shows of it.
    fn detach_from(&self, id: &VolumeId, disk: &DiskId, node: &NodeId, state: Option<AttachmentState>) -> Result<bool> {
        let shown = state.is_some_and(|state| state != AttachmentState::Detached);
        // An attachment that this process, or one before it, began a moment ago may not be shown.
        let recent = self.memory.bound(disk, node).is_some_and(|bound| self.clock.now() < bound.since + SETTLED);
        if !shown && !recent && self.memory.young_until().is_none() {
            self.forget_attachment(disk, node);
            return Ok(false);
        }
        if !matches!(state, Some(AttachmentState::Detaching | AttachmentState::Busy)) {
            match step("detach disk", id, || self.cloud.detach_disk(disk, node)) {
                Ok(()) => {}
                Err(refusal) => match refusal.because {
                    _ if refusal.maybe_done => {}
                    CloudErrorKind::NotFound | CloudErrorKind::NotAttached | CloudErrorKind::NoInstance => {
                        self.forget_attachment(disk, node);
                        self.memory.count_attachment(if shown { -1 } else { 0 });
                        return Ok(shown);
                    }
                    // It goes already, or cannot go yet.
                    CloudErrorKind::InUse if shown => {}
                    _ => return Err(self.refused("detach disk", &format!("volume {id} from node {node}"), refusal)),
                },
            }
        }
        self.await_detached(id, disk, node)?;
        self.memory.count_attachment(-1);
        Ok(true)
    }

    /// Waits until it is seen to be detached, or its machine to be gone.
    fn await_detached(&self, id: &VolumeId, disk: &DiskId, node: &NodeId) -> Result<()> {
        let mut last: Option<Attachment> = None;
        let mut moving_for = Duration::ZERO;
        let waited = self.pollers.disks.wait(&Key::from(disk), self.clock.now() + WAIT, |seen| {
            let disk = seen.iter().find(|seen| seen.id == *disk)?;
            let place = self.place_of(disk, node);
            if let Some(place) = place {
                moving_for = self.memory.saw(&disk.id, node, place.state);
            }
            last = place.cloned();
            place.is_none().then_some(())
        });
        if waited.is_ok() || self.is_node_gone(node) {
            self.forget_attachment(disk, node);
            return Ok(());
        }
        let object = format!("volume {id} on node {node}");
        match last {
            Some(place) if place.state == AttachmentState::Busy || moving_for >= STUCK => {
                Err(Error::failed("detach disk", object, stuck(disk, node, &place, moving_for)))
            }
            _ => Err(Error::InProgress { object, reason: format!("disk {disk} is being detached") }),
        }
    }

    fn forget_attachment(&self, disk: &DiskId, node: &NodeId) {
        self.memory.unbind(disk, node);
        self.nodes.release_device_name(node, disk);
    }
}

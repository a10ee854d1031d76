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

use super::api::{
    Answer, Attachment, AttachmentState, CloudErrorKind, DeviceAddress, Disk, DiskAccess, DiskId, DiskState, Refusal, Tags,
};
use super::controller::Controller;
use super::device_names::{AttachJob, Begun};
use super::errors::stuck;
use super::machine::DetachRule;
use super::pollers::Key;
use super::proof::{self, CONTENTS, COPIED, EXISTING, SIZE};
use super::tags;
use super::timeouts::WAIT;

/// Keys of publish_context: the cloud's id of the disk, and the slot in which it was attached, or its identity.
pub const VOLUME: &str = "volume";
pub const DEVICE: &str = "device";
pub const IDENTITY: &str = "identity";
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
        let access = DiskAccess { mode, read_only };
        let mut disk = self.disk(id)?.ok_or_else(|| Error::volume_not_found(id))?;
        // One whose end is not known bars this one: what it does would come afterwards.
        if self.await_operations_of(id, &disk.id, Some(&disk))? {
            disk = self.disk(id)?.ok_or_else(|| Error::volume_not_found(id))?;
        }
        // A detachment whose answer was lost may yet be done.
        if self.history.may_be_detached(&disk.id, node) && self.place_of(&disk, node).is_some() {
            self.await_detached(id, &disk.id, node)?;
            disk = self.disk(id)?.ok_or_else(|| Error::volume_not_found(id))?;
        }
        if let Some(outcome) = self.attached_already(id, &disk, node, mode, read_only)? {
            return Ok(outcome);
        }
        let (disk, lost) = match self.place_of(&disk, node).map(|attachment| attachment.state) {
            Some(AttachmentState::Attaching) => (disk, None),
            // What is being detached must be gone before it can come again.
            Some(AttachmentState::Detaching | AttachmentState::Busy) => {
                self.await_detached(id, &disk.id, node)?;
                (disk.clone(), self.start(id, &disk, node, access)?)
            }
            _ => {
                let disk = self.freed_elsewhere(id, disk, mode)?;
                let lost = self.start(id, &disk, node, access)?;
                (disk, lost)
            }
        };
        self.history.bind(&disk.id, node, mode, read_only);
        // An attachment may be shown whose operation runs, and fails.
        match &lost {
            Some(refusal) if refusal.because == CloudErrorKind::Running => {
                return Err(self.refused("attach disk", &format!("volume {id} on node {node}"), refusal.clone()));
            }
            Some(_) => drop(self.await_operations_of(id, &disk.id, None)?),
            None => {}
        }
        let (disk, place) = self.await_attached(id, &disk.id, node, lost)?;
        self.history.count_attachment(1);
        Ok(Outcome::Changed(self.context(&disk, &place)))
    }

    fn detach(&self, id: &VolumeId, node: Option<&NodeId>) -> Result<Outcome<()>> {
        let gone = |outcome| {
            id.recorded().into_iter().for_each(|disk| self.nodes.names_no_slot(node, disk));
            Ok(outcome)
        };
        let located = self.locate(id)?;
        let Some((mut disk, mut seen)) = located.attachments() else { return gone(Outcome::Unchanged(())) };
        // What runs is waited for, and not sent again: the second would remove the attachment that comes next.
        if self.await_operations_of(id, &disk, located.seen())? {
            let Some(now) = self.locate(id)?.attachments() else { return gone(Outcome::Changed(())) };
            (disk, seen) = now;
        }
        let nodes: BTreeSet<NodeId> = match node {
            Some(node) => BTreeSet::from([node.clone()]),
            None => seen.iter().map(|seen| seen.instance.clone()).chain(self.history.bound_to(&disk)).collect(),
        };
        self.history.is_used(&disk);
        let mut changed = false;
        for node in &nodes {
            let state = seen.iter().find(|seen| seen.instance == *node).map(|seen| seen.state);
            changed |= self.detach_from(id, &disk, node, state)?;
        }
        self.nodes.names_no_slot(node, &disk.0);
        Ok(if changed { Outcome::Changed(()) } else { Outcome::Unchanged(()) })
    }

    fn attachments(&self, ids: &[VolumeId]) -> Result<BTreeMap<VolumeId, BTreeSet<NodeId>>> {
        Ok(self.disks(ids)?.into_iter().map(|(id, disks)| (id, nodes_of(&disks))).collect())
    }

    fn limit(&self, node: &NodeId) -> Result<Option<u64>> {
        self.node_limit(node)
    }
}

/// The nodes that have one of these disks.
pub(super) fn nodes_of(disks: &[Disk]) -> BTreeSet<NodeId> {
    disks.iter().flat_map(Disk::held_by).map(|attachment| attachment.instance.clone()).collect()
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
        match self.history.bound(&disk.id, node) {
            Some(bound) => check_same_attachment(id, node, (bound.mode, bound.read_only), (mode, read_only))?,
            None => self.history.bind(&disk.id, node, mode, read_only),
        }
        Ok(Some(Outcome::Unchanged(self.context(disk, attachment))))
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
                continue;
            }
            match self.detach_rule(other) {
                DetachRule::Wait => self.await_detached(id, &disk.id, other)?,
                DetachRule::Request | DetachRule::Refuse(_) => {
                    let by = format!("disk {} is attached to node {other}; detach it there first", disk.id);
                    return Err(Error::InUse { object: format!("volume {id}"), by });
                }
                // The cloud decides.
                DetachRule::Detached => {}
            }
        }
        Ok(disk)
    }

    /// What publish_context says of an attachment. Its slot is no other disk's from now on.
    fn context(&self, disk: &Disk, place: &Attachment) -> BTreeMap<String, String> {
        let key = match place.device {
            DeviceAddress::Slot(_) => DEVICE,
            DeviceAddress::Identity(_) => IDENTITY,
        };
        self.nodes.names_slot(&place.instance, &place.device, &disk.id);
        let address = (key.to_owned(), place.device.as_str().to_owned());
        let mut context = BTreeMap::from([(VOLUME.to_owned(), disk.id.0.clone()), address]);
        if !self.constants.shows_identity {
            context.insert(SIZE.to_owned(), disk.capacity.0.to_string());
            context.extend(self.contents_tag(disk).into_values().map(|uuid| (CONTENTS.to_owned(), uuid)));
            if tags::is_made_of_something(disk) {
                context.insert(COPIED.to_owned(), "true".to_owned());
            }
            if !tags::is_tagged(disk) {
                context.insert(EXISTING.to_owned(), "true".to_owned());
            }
        }
        if self.history.is_first_attachment(&disk.id, place) {
            context.insert(EMPTY.to_owned(), "true".to_owned());
        }
        context
    }

    /// What a disk's tag says of its contents, also where this process has put it there a moment ago and it is not shown yet.
    pub(super) fn contents_tag(&self, disk: &Disk) -> Tags {
        let mut shown = tags::contents(&disk.tags);
        if let Some(uuid) = self.history.contents(&disk.id).filter(|_| shown.is_empty()) {
            shown.insert(tags::CONTENTS.to_owned(), uuid);
        }
        shown
    }

    /// Before an attachment begins, the disk's tag stops saying that nothing was written to it: durably, so that no later process takes
    /// a used disk for a blank one. A node reads a disk fully that is not reported as blank, so that what is doubtful costs only time.
    ///
    /// The same request records the UUID of what nodes will make on it, where only that tells them one disk from another. This is the one
    /// moment at which that is certain: before, nothing was on the disk, and whatever a node makes afterwards has that UUID. A disk that was
    /// attached before without such a record may hold anything, and never gets one. No record says that a format has ended: only the node
    /// knows, which has no rights in the cloud.
    fn withdraw_blank(&self, id: &VolumeId, disk: &Disk, node: &NodeId) -> Result<()> {
        if id.is_existing() {
            self.history.is_used(&disk.id);
            return Ok(());
        }
        let ours = self.history.attaching();
        let (value, first) = match tags::blank(disk) {
            Some(tags::USED) => {
                self.history.is_used(&disk.id);
                return Ok(());
            }
            // By the tag a disk that could not be made is distinguished from one that broke later.
            None if self.constants.failed_may_have_data && !disk.tags.contains_key(tags::BLANK) => (tags::USED, false),
            None => {
                self.history.is_used(&disk.id);
                return Ok(());
            }
            // What this process has put there may not be shown yet.
            Some(value) if self.history.begins_attachment(&disk.id, node, [ours, tags::NEVER_ATTACHED].contains(&value)) => {
                return Ok(());
            }
            Some(tags::NEVER_ATTACHED) => (ours, self.memory.knows_tags_of(id.derived(), &disk.id)),
            Some(_) => (tags::USED, false),
        };
        let mut changed = Tags::from([(tags::BLANK.to_owned(), value.to_owned())]);
        let is_recorded = self.constants.shows_identity || tags::blank(disk) != Some(tags::NEVER_ATTACHED);
        let contents = (!is_recorded).then(|| proof::contents_of(&self.owner, disk));
        changed.extend(contents.clone().map(|uuid| (tags::CONTENTS.to_owned(), uuid)));
        match self.finish("tag disk", step("tag disk", id, || self.cloud.tag_disk(&disk.id, &changed))) {
            Ok(()) => self.history.withdrew(&disk.id, node, first, contents),
            // A disk that is written to must not say for ever that it is blank.
            Err(refusal) if refusal.because == CloudErrorKind::Denied => {
                let object = format!("volume {id} on node {node}");
                let (tag, action) = (tags::BLANK, refusal.action);
                let reason = format!(
                    "the tag {tag} of disk {} must be changed before its first attachment: {refusal}; allow {action} for this tag",
                    disk.id
                );
                return Err(Error::Denied { object, reason });
            }
            Err(refusal) => return Err(self.refused("tag disk", &format!("volume {id}"), refusal)),
        }
        Ok(())
    }

    /// Begins to attach; a refusal that may have been none is waited out.
    fn start(&self, id: &VolumeId, disk: &Disk, node: &NodeId, access: DiskAccess) -> Result<Option<Refusal>> {
        match disk.state {
            DiskState::Available | DiskState::InUse => {}
            DiskState::Creating | DiskState::Deleting | DiskState::Deleted | DiskState::Failed | DiskState::Unusable => {
                return Err(self.not_whole(id, disk));
            }
        }
        self.withdraw_blank(id, disk, node)?;
        let job = || AttachJob { volume: id.clone(), disk: disk.clone(), access };
        let begun = self.begin_attach(job(), node)?;
        self.history.began_attachment(&disk.id);
        let begun = match self.end_of(begun, &disk.id, node) {
            // It may have been for another disk of the same request.
            (true, Err(refusal)) if refusal.concerns_one() => {
                let alone = self.begin_attach_alone(&job(), node)?;
                self.end_of(alone, &disk.id, node).1
            }
            (_, end) => end,
        };
        let refusal = match begun {
            Ok(perhaps) => return Ok(perhaps),
            Err(refusal) if refusal.because == CloudErrorKind::InUse => {
                self.history.is_used(&disk.id);
                refusal
            }
            Err(refusal) => return Err(self.attach_refused(&format!("volume {id} on node {node}"), node, refusal)),
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
            Some(other) if access.mode.is_single_node() => {
                let by = format!("disk {} is attached to node {other}; detach it there first ({refusal})", disk.id);
                Err(Error::InUse { object: format!("volume {id}"), by })
            }
            // Here, by an earlier call; or by one that is not shown yet.
            _ => Ok(Some(refusal)),
        }
    }

    /// How a request to attach ended, its operation too, and whether there were others in it: accepted, or perhaps, or refused.
    fn end_of(&self, begun: Begun, disk: &DiskId, node: &NodeId) -> (bool, Answer<Option<Refusal>>) {
        let is_one_of_several = matches!(begun, Begun::Together(_));
        let end = match begun {
            Begun::Accepted(Some(operation)) | Begun::Together(Some(operation)) => {
                self.await_operation("attach disk", &operation)
            }
            Begun::Accepted(None) | Begun::Together(None) => Ok(()),
            Begun::Perhaps(refusal) | Begun::InUse(refusal) => Err(refusal),
        };
        let end = match end {
            Ok(()) => Ok(None),
            Err(refusal) if refusal.maybe_done => Ok(Some(refusal)),
            Err(refusal) => {
                self.nodes.release_device_name(node, disk);
                Err(refusal)
            }
        };
        (is_one_of_several, end)
    }

    /// Waits until it is attached; the disk as it is then, and its place.
    fn await_attached(&self, id: &VolumeId, disk: &DiskId, node: &NodeId, lost: Option<Refusal>) -> Result<(Disk, Attachment)> {
        let mut last: Option<Attachment> = None;
        let mut moving_for = Duration::ZERO;
        let waited = self.pollers.disks.wait(&Key::from(disk), self.clock.now() + WAIT, |seen| {
            let disk = seen.iter().find(|seen| seen.id == *disk)?;
            match self.place_of(disk, node) {
                Some(place) => {
                    moving_for = self.history.saw(&disk.id, node, place.state);
                    last = Some(place.clone());
                    (place.state == AttachmentState::Attached).then(|| Ok((disk.clone(), place.clone())))
                }
                // It was coming, and is gone again.
                None => last.take().map(Err),
            }
        });
        let object = format!("volume {id} on node {node}");
        let unfinished = match waited {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(gone)) => {
                self.nodes.release_device_name(node, disk);
                self.nodes.blacklist_device_name(node, &gone.device);
                self.history.unbind(disk, node);
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
        if since < self.constants.consistency.stuck {
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
        let recent = self
            .history
            .bound(disk, node)
            .is_some_and(|bound| self.clock.now() < bound.since + self.constants.consistency.settled);
        let is_lost = self.history.may_be_detached(disk, node);
        if !shown && !recent && !is_lost && self.memory.young_until().is_none() {
            self.forget_attachment(disk, node);
            return Ok(false);
        }
        let is_begun = matches!(state, Some(AttachmentState::Detaching | AttachmentState::Busy));
        if !is_begun && let Some(was_attached) = self.begin_detach(id, disk, node, shown)? {
            return Ok(was_attached);
        }
        self.await_detached(id, disk, node)?;
        self.history.count_attachment(-1);
        Ok(true)
    }

    /// Asks for a detachment; whether it was attached, where it is known to be detached, and `None` where that is to be waited for.
    fn begin_detach(&self, id: &VolumeId, disk: &DiskId, node: &NodeId, shown: bool) -> Result<Option<bool>> {
        let Err(refusal) = self.request_detach(id, disk, node) else { return Ok(None) };
        let object = format!("volume {id} from node {node}");
        match refusal.because {
            CloudErrorKind::Running => Err(self.refused("detach disk", &object, refusal)),
            _ if refusal.maybe_done => {
                self.history.lost_detach(disk, node);
                // Without this nothing would say that it was detached: no answer, and no attachment that is shown no longer.
                if shown {
                    return Ok(None);
                }
                let reason = format!("disk {disk} may still be attached, and the cloud does not show it: {refusal}; retry");
                Err(Error::InProgress { object, reason })
            }
            CloudErrorKind::NotFound | CloudErrorKind::NotAttached | CloudErrorKind::NoInstance => {
                self.forget_attachment(disk, node);
                self.history.count_attachment(if shown { -1 } else { 0 });
                Ok(Some(shown))
            }
            // What the state of the machine may explain.
            CloudErrorKind::InUse | CloudErrorKind::Invalid | CloudErrorKind::Other => match self.detach_rule(node) {
                DetachRule::Wait => Ok(None),
                DetachRule::Detached => {
                    self.forget_attachment(disk, node);
                    Ok(Some(shown))
                }
                DetachRule::Refuse(remedy) => Err(Error::InUse { object, by: format!("node {node}: {remedy} ({refusal})") }),
                // It goes already, or cannot go yet.
                DetachRule::Request if shown && refusal.because == CloudErrorKind::InUse => Ok(None),
                DetachRule::Request => Err(self.refused("detach disk", &object, refusal)),
            },
            _ => Err(self.refused("detach disk", &object, refusal)),
        }
    }

    /// Waits until it is seen to be detached, or its machine to be gone.
    fn await_detached(&self, id: &VolumeId, disk: &DiskId, node: &NodeId) -> Result<()> {
        let mut last: Option<Attachment> = None;
        let mut moving_for = Duration::ZERO;
        let waited = self.pollers.disks.wait(&Key::from(disk), self.clock.now() + WAIT, |seen| {
            let disk = seen.iter().find(|seen| seen.id == *disk)?;
            let place = self.place_of(disk, node);
            if let Some(place) = place {
                moving_for = self.history.saw(&disk.id, node, place.state);
            }
            last = place.cloned();
            place.is_none().then_some(())
        });
        let rule = if waited.is_ok() { DetachRule::Detached } else { self.detach_rule(node) };
        if rule == DetachRule::Detached {
            self.forget_attachment(disk, node);
            return Ok(());
        }
        let object = format!("volume {id} on node {node}");
        if let DetachRule::Refuse(remedy) = rule {
            let reason = format!("disk {disk} is being detached, and stays as long as node {node} is as it is: {remedy}");
            return Err(Error::InProgress { object, reason });
        }
        match last {
            Some(place) if place.state == AttachmentState::Busy || moving_for >= self.constants.consistency.stuck => {
                Err(Error::failed("detach disk", object, stuck(disk, node, &place, moving_for)))
            }
            _ => Err(Error::InProgress { object, reason: format!("disk {disk} is being detached") }),
        }
    }

    fn forget_attachment(&self, disk: &DiskId, node: &NodeId) {
        self.history.unbind(disk, node);
        self.nodes.release_device_name(node, disk);
    }
}

//! What a cloud is asked and answers: one trait, and its words. It knows of nothing else here but constants and operations.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::SystemTime;

use super::accepted::{Accepted, Operation, WhichOperations};
use super::constants::CloudConstants;
use super::machine::MachineState;
use crate::volume::{AccessMode, Bytes, NodeId};

pub use super::address::DeviceAddress;
pub use super::ids::{CloudSnapshotId, DiskId};
pub use super::refusal::{Answer, CloudErrorKind, Refusal};

/// Tags of a disk or snapshot.
pub type Tags = BTreeMap<String, String>;

/// Where a disk is.
pub type Zones = BTreeSet<String>;

/// Takes a list, part by part as it comes.
pub type Take<'a, T> = &'a mut dyn FnMut(Vec<T>);

/// A block store. Every method is one request, or the requests for all pages of one list, each sent once or retried only where that cannot
/// do it twice; it blocks until there is an answer, or the deadline of requests has passed.
///
/// A list may be out of date by seconds, and so may a description: anyone who decides on the strength of an absence must have another
/// proof ([`super::Idempotency`]).
pub trait Cloud: Send + Sync + 'static {
    /// Always the same.
    fn constants(&self) -> CloudConstants;

    /// All disks that are asked for, in any order. Those that do not exist are missing from the list, never an error. How a list is paged is
    /// the cloud's own; what was taken is no list where this fails, or before it returns.
    fn disks(&self, which: &Which<DiskId>, take: Take<'_, Disk>) -> Answer<()>;

    /// Makes a disk. A repeat of an earlier request whose answer was lost is recognised as [`CloudConstants::disks`] says.
    fn create_disk(&self, spec: &DiskSpec) -> Answer<Accepted<Disk>>;

    /// Whether `create_disk` may be asked for a direct copy ([`DiskSource::Disk`]) of this disk as `spec` wants it. What the cloud refuses
    /// all the same is copied through a snapshot.
    fn copies_disk(&self, _source: &Disk, _spec: &DiskSpec) -> bool {
        false
    }

    /// Sets these tags of a disk, in place of those of the same keys.
    fn tag_disk(&self, disk: &DiskId, tags: &Tags) -> Answer<Accepted<()>>;

    /// Removes a disk that is attached nowhere.
    fn delete_disk(&self, disk: &DiskId) -> Answer<Accepted<()>>;

    /// Begins to attach these, at most [`super::Batches::attachments`]: all of them or none. Where it is refused for one, each is asked for
    /// alone.
    fn attach_disks(&self, instance: &NodeId, disks: &[AttachSpec]) -> Answer<Accepted<()>>;

    /// Begins to detach these; as `attach_disks`. Leaves alone whatever else is attached.
    fn detach_disks(&self, instance: &NodeId, disks: &[DiskId]) -> Answer<Accepted<()>>;

    /// Begins to change size or settings, all of it in one request.
    fn change_disk(&self, disk: &DiskId, change: &Change) -> Answer<Accepted<Changing>>;

    /// The last change of each of these, where there was one; at most [`super::Batches::ids`].
    fn changes(&self, disks: &[DiskId]) -> Answer<Vec<Changing>>;

    /// Begins a snapshot; a repeat is recognised as [`CloudConstants::snapshots`] says. Its source is frozen until this returns.
    fn create_snapshot(&self, spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>>;

    /// Makes of one that is [`SnapshotState::Unfinished`] what `spec` asks for, while its source is no longer frozen. Called again, it makes
    /// no second one.
    fn finish_snapshot(&self, begun: &CloudSnapshot, _spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>> {
        Ok(Accepted::done(begun.clone()))
    }

    fn delete_snapshot(&self, snapshot: &CloudSnapshotId) -> Answer<Accepted<()>>;

    /// Operations, where the cloud has them ([`super::OperationVisibility`]).
    fn operations(&self, _which: &WhichOperations) -> Answer<Vec<Operation>> {
        Ok(Vec::new())
    }

    /// As `disks`.
    fn snapshots(&self, which: &Which<CloudSnapshotId>, take: Take<'_, CloudSnapshot>) -> Answer<()>;

    /// Those of these machines that exist, terminated ones left out; at most [`super::Batches::ids`].
    fn instances(&self, ids: &[NodeId]) -> Answer<Vec<Instance>>;

    /// The zones of this region.
    fn zones(&self) -> Answer<Vec<String>>;

    /// The disk's identity on any machine; or else the best slot that it may have on this one and no other disk has, where `taken` are slots
    /// that are being given, or in which an attachment has failed. Asks nothing.
    fn address(&self, disk: &DiskId, instance: &Instance, taken: &[String]) -> Option<DeviceAddress>;

    /// What the cloud itself finds wrong with these, in its words; at most [`super::Batches::ids`].
    /// Nothing where it does not tell.
    fn impaired(&self, _disks: &[DiskId]) -> Answer<Vec<(DiskId, String)>> {
        Ok(Vec::new())
    }

    /// Blocks of a snapshot that hold data (`base` is `None`), or that differ from `base`: from that at `offset` (in bytes) on, in ascending
    /// order, until `take` breaks.
    fn blocks(
        &self,
        base: Option<&CloudSnapshotId>,
        of: &CloudSnapshotId,
        offset: u64,
        take: &mut dyn FnMut(Blocks) -> ControlFlow<()>,
    ) -> Answer<()>;
}

/// Which are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which<Id> {
    /// At most [`super::Batches::ids`].
    Ids(Vec<Id>),
    /// Whose tag of this key has one of these values, at most [`super::Batches::values`]. Not asked where names are unique.
    Tagged { key: String, values: Vec<String> },
    /// That have one of these names, wherever they are; at most [`super::Batches::values`]. Only asked where names are unique.
    Named(Vec<String>),
    /// All with these tags.
    All { tags: Tags },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskState {
    Creating,
    Available,
    InUse,
    Deleting,
    /// Deleted not long ago, and still reported.
    Deleted,
    /// It could not be made, or is lost.
    Failed,
    /// It was made, and cannot be used as it is now; what was written to it may be there still (Cinder: `error` of a volume that was
    /// attached before).
    Unusable,
}

/// A disk, as its cloud tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What identifies it in requests. Where that is a name, another disk may have it later.
    pub id: DiskId,
    /// The name that its maker chose, where names are unique.
    pub name: Option<String>,
    pub state: DiskState,
    pub capacity: Bytes,
    /// Machines of these can have it attached: of its zone, of several where it is kept in several, of any where there are none.
    pub zones: Zones,
    /// Where in its zone, if not in the zone's own data centers (EC2: an Outpost's ARN): only machines there can have it attached.
    pub site: Option<String>,
    pub tags: Tags,
    pub attachments: Vec<Attachment>,
    /// As far as the cloud tells: a copy may be shown as empty (EC2's volumes that were copied from a volume).
    pub source: DiskSource,
    /// Type, IOPS, encryption and so on, as the cloud's backend reads them again; never a secret.
    pub settings: serde_json::Value,
    /// It may be attached to several machines at once.
    pub multi_attach: bool,
    pub created: Option<SystemTime>,
}

impl Disk {
    /// Its attachments, but for those that are over.
    pub(super) fn held_by(&self) -> impl Iterator<Item = &Attachment> {
        self.attachments.iter().filter(|attachment| attachment.state != AttachmentState::Detached)
    }

    /// Whether it was made, and was not lost.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.state, DiskState::Available | DiskState::InUse | DiskState::Unusable)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentState {
    Attaching,
    Attached,
    Detaching,
    Detached,
    /// The machine does not let go of it (EC2: `busy`, a device still mounted).
    Busy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub instance: NodeId,
    /// As it was asked for.
    pub device: DeviceAddress,
    pub state: AttachmentState,
    pub since: Option<SystemTime>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// The unique name or the token, as [`CloudConstants::disks`] says; the same again for a repeat of the same request. Empty where there
    /// is neither.
    pub key: String,
    pub capacity: Bytes,
    /// As [`Disk::zones`]; as many as [`super::Draft::zones`] says.
    pub zones: Zones,
    pub source: DiskSource,
    pub tags: Tags,
    pub multi_attach: bool,
    /// The cloud's own parameters, as its backend parsed them.
    pub settings: serde_json::Value,
}

/// How a disk is to be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachSpec {
    pub disk: DiskId,
    /// As [`Cloud::address`] chose it.
    pub device: DeviceAddress,
    /// One of the machine's `cards`, where it has several.
    pub card: Option<u32>,
    pub access: DiskAccess,
}

/// How a machine is to use a disk, as the CO says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskAccess {
    pub mode: AccessMode,
    pub read_only: bool,
}

/// Of what a disk is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskSource {
    Empty,
    Snapshot(CloudSnapshotId),
    /// A direct copy, of the instant of its request; only where [`Cloud::copies_disk`] says so.
    Disk(DiskId),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub capacity: Option<Bytes>,
    /// As in `DiskSpec`, only what is to change.
    pub settings: Option<serde_json::Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeState {
    Modifying,
    /// The new size and settings are there; the cloud still moves data (EC2: `optimizing`).
    Usable,
    Done,
    Failed,
}

/// A change of a disk that runs or has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changing {
    pub disk: DiskId,
    pub state: ChangeState,
    pub capacity: Bytes,
    /// Percent.
    pub progress: u8,
    pub since: Option<SystemTime>,
    pub message: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudSnapshotSpec {
    /// As [`DiskSpec::key`], by [`CloudConstants::snapshots`].
    pub key: String,
    pub disk: DiskId,
    pub tags: Tags,
    /// The snapshot class's own parameters, as the cloud's backend parsed them.
    pub settings: serde_json::Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotState {
    Pending,
    Completed,
    Failed,
    /// It holds the data of its instant, and is not what was asked for yet: [`Cloud::finish_snapshot`] makes that of it, or of another that has
    /// an id of its own. Its id is given to nobody.
    Unfinished,
    /// It failed while it was [`SnapshotState::Unfinished`]: its id was given to nobody, and another may be made.
    FailedUnfinished,
}

impl SnapshotState {
    /// The state of one with this state, of which [`Cloud::finish_snapshot`] makes what was asked for.
    pub fn of_unfinished(self) -> SnapshotState {
        match self {
            SnapshotState::Failed | SnapshotState::FailedUnfinished => SnapshotState::FailedUnfinished,
            SnapshotState::Pending | SnapshotState::Completed | SnapshotState::Unfinished => SnapshotState::Unfinished,
        }
    }

    /// Whether a CO may see it.
    pub(super) fn is_shown(self) -> bool {
        matches!(self, SnapshotState::Pending | SnapshotState::Completed)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudSnapshot {
    pub id: CloudSnapshotId,
    /// As [`Disk::name`].
    pub name: Option<String>,
    pub disk: DiskId,
    pub state: SnapshotState,
    pub capacity: Bytes,
    pub created: SystemTime,
    /// Percent.
    pub progress: u8,
    pub tags: Tags,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub id: NodeId,
    /// `None` where its region has no zones.
    pub zone: Option<String>,
    /// As [`Disk::site`].
    pub site: Option<String>,
    /// Such as `m5.large`.
    pub kind: String,
    pub state: MachineState,
    /// What is attached to it: by device name, disks of others too.
    pub attached: BTreeMap<String, DiskId>,
    /// How many disks it takes in all, those in `attached` among them; `None` where the cloud does not say.
    pub limit: Option<u64>,
    /// How many disks are attached to each of its cards, by index, where it has several; else empty. Each card has a bandwidth of its own.
    pub cards: BTreeMap<u32, usize>,
}

/// Some blocks, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Offset in bytes.
    pub offsets: Vec<u64>,
    /// Bytes of each.
    pub size: u64,
}

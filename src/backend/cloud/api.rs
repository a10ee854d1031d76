//! What a cloud is asked and answers: one trait, and its words. It knows of nothing else here.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use crate::os;
use crate::volume::{Bytes, NodeId};

/// The most ids that one question takes.
pub const MOST_IDS: usize = 500;
/// The most tag values that one question takes.
pub const MOST_VALUES: usize = 200;

/// The cloud's own id of a disk: `vol-0123456789abcdef0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub String);

/// The cloud's own id of a snapshot: `snap-0123456789abcdef0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CloudSnapshotId(pub String);

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for CloudSnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Tags of a disk or snapshot.
pub type Tags = BTreeMap<String, String>;

/// What a cloud answers.
pub type Answer<T> = Result<T, Refusal>;

/// A block store. Every method is one request (or one page of one), sent once or retried only where that cannot do it twice; it
/// blocks until there is an answer, or the deadline of requests has passed.
///
/// A list may be out of date by seconds, and so may a description: anyone who decides on the strength of an absence must have another
/// proof ([`Cloud::create_disk`] has the token).
pub trait Cloud: Send + Sync + 'static {
    /// A page of the disks that are asked for, in any order: the first, or that of an earlier page's `next`. Those that do not exist are
    /// missing from the list, never an error; whether one is missing, only all pages tell ([`super::pages::all`]).
    fn disks(&self, which: &Which<DiskId>, page: Option<&str>) -> Answer<Page<Disk>>;

    /// Makes a disk. With the token of an earlier request whose answer was lost it answers what that one made.
    fn create_disk(&self, spec: &DiskSpec) -> Answer<Disk>;

    /// Whether `create_disk` may be asked for a direct copy ([`DiskSource::Disk`]) of this disk as `spec` wants it. What the cloud refuses
    /// all the same is copied through a snapshot.
    fn copies_disk(&self, _source: &Disk, _spec: &DiskSpec) -> bool {
        false
    }

    /// Sets these tags of a disk, in place of those of the same keys.
    fn tag_disk(&self, disk: &DiskId, tags: &Tags) -> Answer<()>;

    /// Removes a disk that is attached nowhere.
    fn delete_disk(&self, disk: &DiskId) -> Answer<()>;

    /// Begins to attach, to one of the machine's `cards` where it has several.
    fn attach_disk(&self, disk: &DiskId, instance: &NodeId, device: &str, card: Option<u32>) -> Answer<()>;

    /// Begins to detach.
    fn detach_disk(&self, disk: &DiskId, instance: &NodeId) -> Answer<()>;

    /// Begins to change size or settings, all of it in one request.
    fn change_disk(&self, disk: &DiskId, change: &Change) -> Answer<Changing>;

    /// The last change of each of these, where there was one; at most [`MOST_IDS`].
    fn changes(&self, disks: &[DiskId]) -> Answer<Vec<Changing>>;

    /// Begins a snapshot, with a token as `create_disk`, where the cloud has such (EC2 has none: ours are found by tag).
    fn create_snapshot(&self, spec: &CloudSnapshotSpec) -> Answer<CloudSnapshot>;

    fn delete_snapshot(&self, snapshot: &CloudSnapshotId) -> Answer<()>;

    /// As `disks`.
    fn snapshots(&self, which: &Which<CloudSnapshotId>, page: Option<&str>) -> Answer<Page<CloudSnapshot>>;

    /// Those of these machines that exist, terminated ones left out; at most [`MOST_IDS`].
    fn instances(&self, ids: &[NodeId]) -> Answer<Vec<Instance>>;

    /// The zones of this region.
    fn zones(&self) -> Answer<Vec<String>>;

    /// The best name that a disk may have on this machine and no other disk has; `taken` are names that are being given, or under
    /// which an attachment has failed. Asks nothing.
    fn device_name(&self, instance: &Instance, taken: &[String]) -> Option<String>;

    /// What the cloud itself finds wrong with these, in its words; at most [`MOST_IDS`]. Nothing
    /// where it does not tell.
    fn impaired(&self, _disks: &[DiskId]) -> Answer<Vec<(DiskId, String)>> {
        Ok(Vec::new())
    }

    /// Blocks of a snapshot that hold data (`base` is `None`), or that differ from `base`.
    fn blocks(&self, base: Option<&CloudSnapshotId>, of: &CloudSnapshotId, from: &BlocksFrom) -> Answer<Blocks>;
}

/// Which are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which<Id> {
    /// At most [`MOST_IDS`].
    Ids(Vec<Id>),
    /// Whose tag of this key has one of these values, at most [`MOST_VALUES`].
    Tagged { key: String, values: Vec<String> },
    /// All with these tags.
    All { tags: Tags },
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Where it continues.
    pub next: Option<String>,
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
}

/// A disk, as its cloud tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    pub id: DiskId,
    pub state: DiskState,
    pub capacity: Bytes,
    pub zone: String,
    /// Where in its zone, if not in the zone's own data centers (EC2: an Outpost's ARN): only machines there can have it attached.
    pub site: Option<String>,
    pub tags: Tags,
    pub attachments: Vec<Attachment>,
    pub snapshot: Option<CloudSnapshotId>,
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

    /// Whether it can be used.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.state, DiskState::Available | DiskState::InUse)
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
    /// As it was asked for: `/dev/xvdaa`.
    pub device: String,
    pub state: AttachmentState,
    pub since: Option<SystemTime>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// Derived from the volume; the same again for a repeat of the same request.
    pub token: String,
    pub capacity: Bytes,
    pub zone: String,
    pub source: DiskSource,
    pub tags: Tags,
    pub multi_attach: bool,
    /// The cloud's own parameters, as its backend parsed them.
    pub settings: serde_json::Value,
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
    pub token: String,
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
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudSnapshot {
    pub id: CloudSnapshotId,
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
    pub zone: String,
    /// As [`Disk::site`].
    pub site: Option<String>,
    /// Such as `m5.large`.
    pub kind: String,
    /// Whether it runs, or may run again with its disks still attached.
    pub running: bool,
    /// What is attached to it: by device name, disks of others too.
    pub attached: BTreeMap<String, DiskId>,
    /// How many disks it takes in all, those in `attached` among them; `None` where the cloud does not say.
    pub limit: Option<u64>,
    /// How many disks are attached to each of its cards, by index, where it has several; else empty. Each card has a bandwidth of its own.
    pub cards: BTreeMap<u32, usize>,
}

/// Where a list of blocks continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlocksFrom {
    /// Bytes.
    Offset(u64),
    Token(String),
}

/// A page of blocks, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Offset in bytes.
    pub offsets: Vec<u64>,
    /// Bytes of each.
    pub size: u64,
    pub next: Option<String>,
}

/// Why a cloud did not do it, in words that all clouds share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudErrorKind {
    /// The disk, snapshot or machine does not exist; which is what the request named first.
    NotFound,
    /// The machine that was named does not exist, or is terminated.
    NoInstance,
    /// The disk is not attached there.
    NotAttached,
    /// It is in a state in which this cannot be: attached already, or still attached.
    InUse,
    /// The device name is taken on that machine.
    NameTaken,
    /// The machine has no room for a further disk.
    InstanceFull,
    /// The token belongs to a request with other parameters.
    OtherParameters,
    /// What the token made is deleted, says the cloud.
    TokenSpent,
    /// A further change must wait (EC2: until the last is done and six hours have passed).
    TooSoon,
    /// An account's quota is used up.
    Quota,
    /// The cloud has no room left.
    NoCapacity,
    /// Parameters that cannot be, or not together.
    Invalid,
    /// Wrong or missing credentials, or no right to do this.
    Denied,
    /// The key is refused, disabled or not there.
    Key,
    /// Too many requests, also after waiting as long as could be.
    Throttled,
    /// No answer, or none that can be read, or the cloud's own failure.
    Unavailable,
    /// Anything else that it says.
    Other,
}

/// A refusal, with the cloud's own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{action}: {code}: {message}{}", request_text(request_id.as_deref()))]
pub struct Refusal {
    pub because: CloudErrorKind,
    /// The request: `CreateVolume`.
    pub action: &'static str,
    /// The cloud's own: `InvalidVolume.NotFound`; for what never came to be an answer, what happened: `timeout`.
    pub code: String,
    /// Without secrets.
    pub message: String,
    pub request_id: Option<String>,
    /// It may have been done all the same: the connection was cut, the answer was lost, the cloud failed midway.
    pub maybe_done: bool,
    /// How long to wait before asking again, where the cloud or our own limiter says.
    pub retry_after: Option<Duration>,
}

/// A step that failed before its request was sent.
impl From<os::Error> for Refusal {
    fn from(error: os::Error) -> Refusal {
        Refusal {
            because: CloudErrorKind::Unavailable,
            action: "step",
            code: "failed".to_owned(),
            message: error.to_string(),
            request_id: None,
            maybe_done: false,
            retry_after: None,
        }
    }
}

fn request_text(id: Option<&str>) -> String {
    id.map(|id| format!(" (request {id})")).unwrap_or_default()
}

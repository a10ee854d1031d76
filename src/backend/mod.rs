//! The traits that a storage system implements.
//!
//! A backend offers what it can through small traits, each reached by a method of [`Backend`] that answers `None`
//! where it cannot; the capabilities that we advertise are derived from which are there.
//!
//! Rules for all of them:
//! - Calls are synchronous and run on a thread of their own; they may block, but what can hang needs a deadline.
//! - The caller (`ops`) holds the lock of the volume or snapshot. No two mutating calls about one object overlap.
//! - Each mutating call is repeatable: it may find what an earlier, killed call of the same kind left, and goes on.
//! - Each side effect runs in [`crate::os::step::step`], so that it is named, timed, and can be interrupted by tests.
//! - A failure whose rollback was not seen stays as `Error::failed` made it: not final.
//!
//! A backend knows neither gRPC nor mounts: on a node it only connects a volume and says what it became.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::os::block::Device;
use crate::volume::{
    AccessMode, BackendName, Bytes, Capability, ContentSource, Error, Extent, Group, GroupId, Health, MountFlags, NodeId,
    Outcome, RawParameters, Result, Secrets, Snapshot, SnapshotId, Topology, TopologyRequirement, Volume, VolumeId,
};

#[cfg(feature = "ec2")]
pub mod cloud;
#[cfg(feature = "ec2")]
pub mod ec2;
pub mod fake;
pub mod image;
pub mod iscsi;
pub mod nfs;
pub mod registry;
mod turns;

/// One configured storage system.
pub trait Backend: Send + Sync {
    /// As configured; the part of every id before the colon.
    fn name(&self) -> &BackendName;

    /// The type in the configuration file: `image`, `fake`.
    fn kind(&self) -> &'static str;

    /// Whether all of it can be used right now.
    ///
    /// # Errors
    /// `BackendUnavailable` with what to do.
    fn probe(&self) -> Result<()>;

    /// Whether some of its storage can be used right now, where `probe` failed: one pool of several.
    fn is_usable_in_part(&self) -> bool {
        false
    }

    /// The access modes that it can truly offer.
    fn access_modes(&self) -> &[AccessMode];

    /// Whether `capability` could be served, apart from its access mode (raw block on a file share could not).
    fn check_capability(&self, _capability: &Capability) -> Result<()> {
        Ok(())
    }

    /// Parses what is left of the parameters after the common ones; the result is kept with the volume.
    ///
    /// # Errors
    /// `Invalid`, naming a parameter that is not known or has a value that cannot be.
    fn parameters(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        if raw.is_empty() {
            return Ok(serde_json::Value::Null);
        }
        Err(Error::invalid("parameters", format!("{raw:?}: this backend knows none of its own")))
    }

    /// Whether these attributes are those of a static volume (an export, a LUN), and that is only
    /// to be connected. Its handle may be any text.
    fn accepts_static(&self, _attributes: &RawParameters) -> bool {
        false
    }

    /// Parses the attributes of a static volume.
    ///
    /// # Errors
    /// As `parameters`.
    fn attributes(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        self.parameters(raw)
    }

    /// The parameters of a volume by which a repeated CreateVolume is compared with it: without those that `create` has filled in or kept
    /// elsewhere.
    fn requested_parameters(&self, made: &serde_json::Value) -> serde_json::Value {
        made.clone()
    }

    /// The segments that this node adds to its topology for this backend; `None` if reachable from everywhere.
    ///
    /// # Errors
    /// `BackendUnavailable` while it is not known where this node is.
    fn topology(&self) -> Result<Option<Topology>> {
        Ok(None)
    }

    /// Whether volumes are reachable from some nodes only; the same in each process with this configuration, whatever its mode.
    fn has_topology(&self) -> bool {
        !matches!(self.topology(), Ok(None))
    }

    /// Whether its volumes lie where this node is. A cloud chooses a place for each, wherever it is asked from.
    fn is_local(&self) -> bool {
        true
    }

    /// How much is in it, for metrics. Costs the same however much that is, but may hang with the storage.
    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn provision(&self) -> Option<&dyn Provision> {
        None
    }
    fn expand(&self) -> Option<&dyn Expand> {
        None
    }
    fn modify(&self) -> Option<&dyn Modify> {
        None
    }
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }
    fn groups(&self) -> Option<&dyn Groups> {
        None
    }
    fn changed_blocks(&self) -> Option<&dyn ChangedBlocks> {
        None
    }
    fn attach(&self) -> Option<&dyn Attach> {
        None
    }
    fn health(&self) -> Option<&dyn ReportHealth> {
        None
    }
    /// What `longshore inspect` shows of its storage; without it, only what the journal and the kernel say of its volumes.
    fn inspect(&self) -> Option<&dyn Inspect> {
        None
    }
    /// The node's side. Every backend has one.
    fn connect(&self) -> &dyn Connect;
}

/// How much is in a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// By name; `None` for one that cannot be used now.
    pub pools: Vec<(String, Option<PoolUsage>)>,
    /// Of volumes to nodes, where volumes are attached at all.
    pub attachments: Option<u64>,
}

/// How much is in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// What lies below it.
    pub total: Bytes,
    /// Of that, by any file.
    pub used: Option<Bytes>,
    /// What may be provisioned.
    pub provisionable: Bytes,
    /// `None` where this process does not provision from it.
    pub provisioned: Option<Provisioned>,
}

/// What was provisioned from a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provisioned {
    pub provisioned: Bytes,
    pub volumes: u64,
    pub snapshots: u64,
}

/// What CreateVolume asks for, checked: the capacity suits the capabilities, the parameters are known.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    pub id: VolumeId,
    /// The CO's name; kept with the volume.
    pub name: String,
    pub capacity: Bytes,
    /// For a new volume from a snapshot or volume; never larger than `capacity`.
    pub source: Option<ContentSource>,
    /// The whole of `{"node": ..., "backend": ...}`; `backend` is what [`Backend::parameters`] made.
    pub parameters: serde_json::Value,
    /// Whether several nodes are to have it at once, by the access modes asked for.
    pub several_nodes: bool,
    /// Checked by [`Modify::check`]. `create` may set them at once; what it leaves, `modify` is asked for afterwards.
    pub mutable: RawParameters,
    pub topology: TopologyRequirement,
}

/// What GetCapacity asks.
#[derive(Clone, Debug, Default)]
pub struct CapacityQuery {
    /// The backend's own parameters, as [`Backend::parameters`] made them.
    pub parameters: serde_json::Value,
    pub topology: Option<Topology>,
    /// The least size of a volume that the capabilities asked about allow.
    pub least: Bytes,
}

/// What GetCapacity answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityAnswer {
    /// Bytes that can still be provisioned.
    pub available: Bytes,
    /// The largest single volume.
    pub maximum: Bytes,
    /// The smallest single volume.
    pub minimum: Bytes,
}

/// Volumes come and go. CSI: CreateVolume, DeleteVolume, ListVolumes, ControllerGetVolume, GetCapacity.
pub trait Provision: Send + Sync {
    /// The capacity unit in bytes: sizes are rounded up to whole ones.
    fn unit(&self) -> u64 {
        1 << 20
    }

    /// The volume, if it is whole. What a killed `create` left does not count. The id of the answer is what the CO keeps: a storage that
    /// names its objects itself has its own id of the volume recorded in it ([`VolumeId::record`]); what CreateVolume asks with has not.
    fn find(&self, id: &VolumeId) -> Result<Option<Volume>>;

    /// As `find`, for a volume that is made if there is none, with the parameters of its [`VolumeSpec`]: a part of the storage that is
    /// away does not count where it is certain that it does not hold the volume.
    ///
    /// # Errors
    /// `BackendUnavailable` where that is not certain, with what to do: two volumes of one id must never be made.
    fn find_for_create(&self, id: &VolumeId, _parameters: &serde_json::Value) -> Result<Option<Volume>> {
        self.find(id)
    }

    /// Makes the volume; `find_for_create` said that it is not there. On return it is durable. `quiesce` must be held while a
    /// source *volume* is copied at one instant.
    ///
    /// # Errors
    /// `NoCapacity` where it does not fit; `NotFound` for a source that is gone.
    fn create(&self, spec: &VolumeSpec, quiesce: &dyn Quiesce) -> Result<Volume>;

    /// Removes it, in the way its parameters say. `Unchanged` where there is none. Also removes what a killed
    /// `create` or `delete` left of it. Snapshots of it stay usable.
    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>>;

    /// Up to `max` volumes with ids after `after`, in the order of their ids.
    fn list(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>>;

    fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer>;

    /// On which nodes the volume is connected, as its storage knows it; anyone who copies or changes it asks. An answer is of this
    /// instant. `None` where the storage does not know it: not that there is none.
    ///
    /// # Errors
    /// `NotFound`; `Unverified` where what says it cannot be read.
    fn holders(&self, _id: &VolumeId) -> Result<Option<Vec<Holding>>> {
        Ok(None)
    }
}

/// A node that has a volume connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub node: NodeId,
    /// It may write; else it only reads.
    pub writes: bool,
}

/// Volumes grow. CSI: ControllerExpandVolume.
pub trait Expand: Send + Sync {
    /// Makes the volume at least `capacity` large; never smaller.
    fn expand(&self, id: &VolumeId, capacity: Bytes) -> Result<Outcome<Bytes>>;

    /// Whether `expand` and `modify` of one volume may be called at the same time, to become one change.
    fn joins_changes(&self) -> bool {
        false
    }

    /// Whether the node must take the new size over: that of its device, and of the file system on it.
    fn on_node(&self) -> bool {
        true
    }
}

/// Parameters that may change during a volume's life. CSI: ControllerModifyVolume, CreateVolume.mutable_parameters.
pub trait Modify: Send + Sync {
    /// Whether these could be set; also used at creation.
    fn check(&self, raw: &RawParameters) -> Result<()>;

    /// Sets them.
    fn modify(&self, id: &VolumeId, raw: &RawParameters) -> Result<Outcome<()>>;
}

/// Freezes file systems while their blocks are copied.
pub trait Quiesce: Send + Sync {
    /// Freezes what is mounted of `volumes` on this node, all together, and thaws when the guard is dropped, also if
    /// this process is killed. Volumes that are not mounted here are flushed only: [`Held::writers`] reports which.
    fn hold(&self, volumes: &[VolumeId]) -> Result<Box<dyn Held>>;
}

/// Who can write to a volume until the release of a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Nobody: its file system is frozen, or its storage holds writes back.
    Frozen,
    /// Nobody on this node: it is not in use here, or its device refuses writes. Other nodes are for the backend to check.
    None,
    /// It may be written: how it is in use, and that could not be frozen.
    Possible(String),
    /// Unknown: no node is in this process.
    Unknown,
}

/// Frozen until dropped.
pub trait Held: Send {
    /// Who can write to one of the volumes meanwhile.
    fn writers(&self, _volume: &VolumeId) -> Writers {
        Writers::Unknown
    }

    /// Thaws now and says whether the freeze held all the time; a copy made under a hold that broke is no snapshot.
    fn release(self: Box<Self>) -> Result<()>;
}

/// A snapshot to make.
#[derive(Clone, Debug)]
pub struct SnapshotSpec {
    pub id: SnapshotId,
    /// The CO's name; kept with the snapshot.
    pub name: String,
    pub source: VolumeId,
    /// The snapshot class's, checked by [`Snapshots::check`].
    pub parameters: RawParameters,
}

/// CSI: CreateSnapshot, DeleteSnapshot, ListSnapshots, GetSnapshot; restoring is `Provision::create`.
pub trait Snapshots: Send + Sync {
    /// Checks the snapshot class's parameters.
    fn check(&self, raw: &RawParameters) -> Result<()>;
    fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>>;
    /// Makes it, durable on return.
    fn create_snapshot(&self, spec: &SnapshotSpec, quiesce: &dyn Quiesce) -> Result<Snapshot>;
    /// `Unchanged` where there is none.
    ///
    /// # Errors
    /// `InUse` for a member of a group (CSI spec, DeleteSnapshot).
    fn delete_snapshot(&self, id: &SnapshotId) -> Result<Outcome<()>>;
    /// Up to `max` snapshots with ids after `after`, in the order of their ids; of one volume if `source` is given.
    fn list_snapshots(&self, source: Option<&VolumeId>, after: Option<&SnapshotId>, max: usize) -> Result<Vec<Snapshot>>;
}

/// Snapshots of several volumes at one instant. CSI: GroupController.
pub trait Groups: Send + Sync {
    /// Checks the group snapshot class's parameters.
    fn check_group(&self, raw: &RawParameters) -> Result<()>;
    fn find_group(&self, id: &GroupId) -> Result<Option<Group>>;
    /// Makes all members or none. `members` have ids and names made from the group's.
    fn create_group(&self, id: &GroupId, name: &str, members: &[SnapshotSpec], quiesce: &dyn Quiesce) -> Result<Group>;
    /// Deletes the group and all its members. `Unchanged` where there is none.
    fn delete_group(&self, id: &GroupId) -> Result<Outcome<()>>;
}

/// CSI: SnapshotMetadata. Extents are given in ascending order, not overlapping, until `emit` breaks.
pub trait ChangedBlocks: Send + Sync {
    /// What of the snapshot holds data, from `offset` on.
    fn allocated(&self, snapshot: &SnapshotId, offset: u64, emit: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()>;
    /// What differs in `target` from `base`, from `offset` on. Both are snapshots of one volume.
    fn delta(
        &self,
        base: &SnapshotId,
        target: &SnapshotId,
        offset: u64,
        emit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()>;
}

/// Volumes are bound to a node before it can connect. CSI: ControllerPublishVolume, ControllerUnpublishVolume.
pub trait Attach: Send + Sync {
    /// Attaches; the answer travels to the node as publish_context.
    ///
    /// # Errors
    /// `NotFound` for a node that does not exist; `InUse` where it is attached elsewhere and may not be twice;
    /// `NodeFull`; `Conflict` where it is attached here otherwise.
    fn attach(
        &self,
        id: &VolumeId,
        node: &NodeId,
        mode: AccessMode,
        read_only: bool,
    ) -> Result<Outcome<BTreeMap<String, String>>>;
    /// Detaches from `node`, or from all. Not attached is `Unchanged`.
    fn detach(&self, id: &VolumeId, node: Option<&NodeId>) -> Result<Outcome<()>>;
    /// Where each of `ids` is attached: one query for many.
    fn attachments(&self, ids: &[VolumeId]) -> Result<BTreeMap<VolumeId, BTreeSet<NodeId>>>;
    /// How many volumes `node` takes; `None` is no limit.
    fn limit(&self, node: &NodeId) -> Result<Option<u64>>;
}

/// A volume's parameters with `change` made of its backend's part ([`VolumeSpec::parameters`]).
pub fn with_own_part(
    parameters: &serde_json::Value,
    change: impl FnOnce(&serde_json::Value) -> serde_json::Value,
) -> serde_json::Value {
    let mut changed = parameters.clone();
    if let Some(own) = changed.get_mut("backend") {
        *own = change(own);
    }
    changed
}

/// Whether a repeated attach asks for what there is, each a mode and whether it is read-only (CSI spec, ControllerPublishVolume: "Volume
/// published but is incompatible").
///
/// # Errors
/// `Conflict` where it does not.
pub fn check_same_attachment(
    id: &VolumeId,
    node: &NodeId,
    existing: (AccessMode, bool),
    wanted: (AccessMode, bool),
) -> Result<()> {
    if existing == wanted {
        return Ok(());
    }
    let words = |(mode, read_only)| format!("{mode:?}, {}", if read_only { "read-only" } else { "read-write" });
    Err(Error::Conflict {
        object: format!("the attachment of volume {id} to node {node}"),
        existing: words(existing),
        wanted: words(wanted),
    })
}

/// CSI: the volume and storage health RPCs of v1.13.
pub trait ReportHealth: Send + Sync {
    /// What is wrong with one volume; `NotFound` where there is none.
    fn volume_health(&self, id: &VolumeId) -> Result<Health>;
    /// What is wrong with the storage as a whole.
    fn storage_health(&self) -> Result<Health>;
    /// Up to `max` volumes with something wrong, with ids after `after`, in the order of their ids.
    fn unhealthy(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(VolumeId, Health)>>;
}

/// What a connected volume is on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// A block device: image over loop, LVM, iSCSI, cloud disk.
    Device(BlockDevice),
    /// Something to mount as it is: tmpfs.
    Filesystem { fstype: String, source: String, options: Vec<String> },
    /// A directory of what this node has mounted for several volumes: NFS.
    Directory(Directory),
}

/// A directory of a shared mount, to be bound wherever the volume is staged. Others may have the same directory, so that a mount is this
/// volume's by the journal's word for its place, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Directory {
    /// Where the shared mount is, in a directory of the driver's own.
    pub mount: PathBuf,
    /// Below it; empty for all of it.
    pub directory: PathBuf,
    /// As mountinfo shows a bind mount of the directory.
    pub fstype: String,
    pub source: String,
    /// Of the shared mount's file system.
    pub device: (u32, u32),
    /// Options of each bind mount of it, before those that the CO gives: `nosuid`, `nodev`.
    pub options: Vec<String>,
}

/// A block device of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockDevice {
    /// Such as `/dev/loop3`. A name may come to mean another device: check `number` and `identity` on the open device.
    pub path: PathBuf,
    /// Major and minor.
    pub number: (u32, u32),
    /// What makes it this volume's and no other's: serial, WWID, backing file. Compared as a whole within a boot. What follows an
    /// `@` is another after a boot: see [`BlockDevice::lasting_identity`].
    pub identity: String,
}

impl BlockDevice {
    /// What of the identity stays from boot to boot. A file system may have another device number after each (btrfs, NFS, device
    /// mapper).
    pub fn lasting_identity(&self) -> &str {
        self.identity.split_once('@').map_or(&self.identity, |(lasting, _)| lasting)
    }

    /// What a LUKS mapping is called below /dev/mapper, by its identity: `CRYPT-<type>-<uuid>-<name>`.
    pub fn mapper_name(&self) -> Option<&str> {
        self.identity.strip_prefix("CRYPT-")?.splitn(3, '-').nth(2)
    }
}

/// What a node holds towards a storage, for one volume or several: the mount of a share, the sessions with a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// A path, or a target's name.
    pub object: String,
    /// To where, and in what state, for people.
    pub state: String,
    /// All of it is there, as far as the kernel knows.
    pub up: bool,
    /// For whom the backend made it.
    pub users: Vec<VolumeId>,
    /// That come with it.
    pub devices: Vec<BlockDevice>,
    /// What a person runs to take it down, each as words.
    pub release: Vec<Vec<String>>,
}

impl Link {
    /// Whether something is by way of it.
    pub fn carries(&self, source: &Source) -> bool {
        match source {
            Source::Device(device) => self.devices.iter().any(|own| own.number == device.number),
            Source::Directory(directory) => directory.mount.as_os_str() == self.object.as_str(),
            Source::Filesystem { .. } => false,
        }
    }
}

/// What was to be repaired is not what it was when it was looked at.
fn changed(object: impl Display) -> Error {
    let reason = "it is not what it was a moment ago; look again".to_owned();
    Error::Unverified { device: object.to_string(), reason }
}

/// A command for people.
fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// What a node needs to know to connect a volume.
#[derive(Clone, Debug)]
pub struct ConnectRequest<'a> {
    pub id: &'a VolumeId,
    /// The backend's own parameters, from volume_context; `Null` for a volume that came without.
    pub parameters: &'a serde_json::Value,
    /// From ControllerPublishVolume.
    pub publish_context: &'a BTreeMap<String, String>,
    pub secrets: &'a Secrets,
    /// The CO's mount options, for what is mounted on the way ([`Source::Directory`]).
    pub mount_flags: &'a MountFlags,
    /// Nobody on this node may write.
    pub read_only: bool,
    /// What it was connected as before, be it in an earlier boot: for a call that brings no publish_context.
    pub earlier: Option<&'a Source>,
}

/// The node's side of a backend. No mounts, no file systems: those are `ops::node`'s.
pub trait Connect: Send + Sync {
    /// Makes the volume appear on this node. Connected already is fine.
    ///
    /// # Errors
    /// `NotFound`; `WrongNode` where it lies elsewhere; `InProgress` for a device that has not shown up in time.
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>>;

    /// Whether it is connected, and as what. `hint` is what `connect` answered, from the journal, if that is known:
    /// a true hint makes this cheap, a wrong one is never believed.
    fn connected(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>>;

    /// Whether a device still is what it was when `connect` answered it, be that no volume's any more: its name and number may be
    /// another's by now, and then the mounts of it are, too. Without an answer of the backend's own, no device is believed.
    fn is_same_device(&self, source: &Source) -> Result<bool> {
        Ok(matches!(source, Source::Filesystem { .. }))
    }

    /// Whether this node may still use what it has connected, where its storage leaves it to the nodes to ask. Asked before what is
    /// staged already is staged again or published.
    ///
    /// # Errors
    /// `InUse` or `WrongNode`, naming the node that may.
    fn may_use(&self, _id: &VolumeId) -> Result<()> {
        Ok(())
    }

    /// Whether what is connected answers, where that is not certain: a server. Comes back in seconds, whatever the server does;
    /// asked before anything that would wait for it.
    ///
    /// # Errors
    /// `BackendUnavailable`; `Stale` where it answers, but what was mounted is no longer there.
    fn reach(&self, _source: &Source) -> Result<()> {
        Ok(())
    }

    /// Undoes `connect`, seen to be undone on return. Not connected is `Unchanged`.
    fn disconnect(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Outcome<()>>;

    /// When the driver starts, before any call: lets go of what an earlier process left that no volume has.
    fn recover(&self) {}

    /// What this node holds towards the storage, by looking only, and without asking any server: for `longshore inspect`.
    fn links(&self) -> Result<Vec<Link>> {
        Ok(Vec::new())
    }

    /// Takes down a link whose volumes are nowhere on this node, if it still is what it was in `links`. No driver runs meanwhile.
    ///
    /// # Errors
    /// Where it is something else by now, or in use.
    fn unlink(&self, link: &Link) -> Result<()> {
        let reason = "its backend has none".to_owned();
        Err(Error::Unsupported { what: format!("taking down {}", link.object), reason })
    }

    /// Makes the device as large as the volume has become; answers its size in bytes.
    fn refresh(&self, id: &VolumeId, source: &Source) -> Result<Bytes>;

    /// The file that the open device shows byte for byte, flushed: where it has holes, the device is blank without being read.
    /// `None` where there is no such file.
    ///
    /// # Errors
    /// `Unverified` where the open device is not this volume's, whatever its name.
    fn backing_file(&self, _id: &VolumeId, _device: &Device) -> Result<Option<File>> {
        Ok(None)
    }

    /// Whether the storage says that this very volume was empty when it was attached, and that its device never was anything else: reading
    /// all of a disk over a network would take hours. Its signatures' places and samples of it are read all the same.
    fn known_blank(&self, _publish_context: &BTreeMap<String, String>) -> bool {
        false
    }

    /// Bytes in use, where the backend knows it of a raw device.
    fn used(&self, _id: &VolumeId) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// The id that this node has with its storage, where the CO must know it by that one.
    ///
    /// # Errors
    /// `BackendUnavailable` while it is not known.
    fn node_id(&self) -> Result<Option<NodeId>> {
        Ok(None)
    }

    /// The most volumes that this node can have connected; `None` is no limit of ours.
    fn limit(&self) -> Option<u64> {
        None
    }
}

/// What `longshore inspect` shows of a backend's storage, and lets go of.
pub trait Inspect: Send + Sync {
    /// What is there, by looking only: nothing is changed and no lock is taken, so that a driver that runs is not hindered.
    ///
    /// # Errors
    /// Where nothing could be seen; what could not be seen of a part goes into [`Survey::unseen`].
    fn survey(&self) -> Result<Survey>;

    /// Takes exactly this device from the node, if it still is what it was in `survey`. No driver runs meanwhile.
    ///
    /// # Errors
    /// Where it is something else by now, or in use.
    fn release(&self, device: &BlockDevice) -> Result<()>;

    /// Removes a [`Leftover`] that is `removable`, after looking again, and not while someone provisions.
    ///
    /// # Errors
    /// `InUse`, naming who provisions.
    fn remove(&self, leftover: &Leftover) -> Result<()> {
        Err(Error::Unsupported {
            what: format!("removing {}", leftover.object.display()),
            reason: "its backend leaves nothing".to_owned(),
        })
    }
}

/// What a backend has, as [`Inspect::survey`] saw it.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    pub places: Vec<Place>,
    /// In the order of their ids.
    pub volumes: Vec<Stored>,
    /// What of it is connected on this node, be it no volume's any more.
    pub devices: Vec<Connected>,
    pub leftovers: Vec<Leftover>,
    /// What could not be seen, and why: nothing may be concluded from its absence.
    pub unseen: Vec<(String, String)>,
}

/// Where volumes lie: a pool, an export, a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub name: String,
    /// A path, or how else an operator finds it.
    pub at: String,
    pub total: Bytes,
    pub free: Bytes,
    pub read_only: bool,
    /// The process that provisions from it, if one is seen to.
    pub provisioner: Option<u32>,
}

/// A volume in its storage.
#[derive(Clone, Debug)]
pub struct Stored {
    pub id: VolumeId,
    /// An image, a LUN, a share.
    pub at: String,
    pub capacity: Option<Bytes>,
    /// What it takes of its place.
    pub allocated: Option<Bytes>,
    pub created: Option<SystemTime>,
    /// The nodes that have it, where its storage shows it to nodes.
    pub attached: Vec<NodeId>,
    pub health: Health,
}

/// A device of this node that shows something of the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    pub device: BlockDevice,
    /// The volume that it shows, or did.
    pub id: VolumeId,
    /// The backend made it. What someone else attached is told and left alone.
    pub ours: bool,
    /// What it shows now, for people.
    pub shows: String,
    pub size: Option<Bytes>,
    /// What a person runs to take exactly this device from the node.
    pub release: Vec<String>,
}

/// An orphaned resource in the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub kind: LeftoverKind,
    /// Whose it was.
    pub id: String,
    pub object: PathBuf,
    pub what: String,
    /// The commands that repair it, each as words.
    pub commands: Vec<Vec<String>>,
    /// [`Inspect::remove`] does it: no data is lost by it.
    pub removable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoverKind {
    /// Half made.
    Draft,
    /// Deleted, but not to the end.
    Trash,
    /// Data of which it is not known what it is.
    WithoutMetadata,
    /// Known, but its data is gone.
    WithoutData,
    /// Shown to nodes, though nothing says that it should be.
    Export,
    /// To be shown to nodes, but not.
    NotExported,
    /// This node's lease of a volume that others may not connect meanwhile. Left over, unless a stage of it is journaled here.
    Lease,
    /// A lease of which it is not known whose it is.
    LeaseDamaged,
}

//! The controller's side: volumes and snapshots come and go, grow, change and are attached.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use crate::volume::{
    AccessMode, Bytes, ContentSource, Error, Extent, Group, GroupId, Health, NodeId, Outcome, RawParameters, Result, Snapshot,
    SnapshotId, Topology, TopologyRequirement, Volume, VolumeId,
};

/// What CreateVolume asks for, checked: the capacity suits the capabilities, the parameters are known.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    pub id: VolumeId,
    /// The CO's name; kept with the volume.
    pub name: String,
    pub capacity: Bytes,
    /// The most that it may have, where its storage has sizes of its own.
    pub limit: Option<Bytes>,
    /// For a new volume from a snapshot or volume; its recorded capacity is never more than `capacity`.
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
    /// source *volume* is copied at one instant. A spec has a source only where the backend has [`Snapshots`], or another one here has.
    ///
    /// # Errors
    /// `NoCapacity` where it does not fit; `NotFound` for a source that is gone.
    fn create(&self, spec: &VolumeSpec, quiesce: &dyn Quiesce) -> Result<Volume>;

    /// Removes it, in the way its parameters say. `Unchanged` where there is none. Also removes what a killed
    /// `create` or `delete` left of it. Snapshots of it stay usable.
    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>>;

    /// Up to `max` volumes with ids after `after`, in the order of their ids.
    fn list(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>>;

    /// As `list`, with the nodes that have each volume, where the list shows them; of the others [`Attach::attachments`] is asked.
    fn list_published(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(Volume, Option<BTreeSet<NodeId>>)>> {
        Ok(self.list(after, max)?.into_iter().map(|volume| (volume, None)).collect())
    }

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
    /// this process is killed. Volumes that are not mounted here are flushed only: [`FreezeGuard::writers`] reports which.
    fn freeze(&self, volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>>;

    /// Writes out what the node has of a volume in memory, so that a freeze that follows takes little time.
    fn flush(&self, _volume: &VolumeId) -> Result<()> {
        Ok(())
    }
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
pub trait FreezeGuard: Send {
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
    /// The snapshots of a group, by its record alone: also where one of them is damaged or gone.
    fn group_members(&self, id: &GroupId) -> Result<Option<Vec<SnapshotId>>>;
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

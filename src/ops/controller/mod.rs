//! The controller's side: volumes, snapshots and groups come and go, are bound to nodes, grow and change.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::backend::registry::Registry;
use crate::backend::{CapacityAnswer, Quiesce};
use crate::ops::lock::Locks;
use crate::ops::node::Node;
use crate::volume::{
    AccessMode, Bytes, Capability, CapacityRange, ContentSource, Extent, Group, GroupId, Health, NodeId, Outcome, RawParameters,
    Result, Snapshot, SnapshotId, Topology, TopologyRequirement, Volume, VolumeId,
};

#[derive(Clone, Debug)]
pub struct ProvisionRequest {
    pub name: String,
    pub range: CapacityRange,
    /// At least one.
    pub capabilities: Vec<Capability>,
    pub parameters: RawParameters,
    pub mutable_parameters: RawParameters,
    pub source: Option<ContentSource>,
    pub topology: TopologyRequirement,
}

#[derive(Clone, Debug)]
pub struct AttachRequest {
    pub id: VolumeId,
    pub node: NodeId,
    pub capability: Capability,
    pub read_only: bool,
}

/// ListVolumes and ControllerGetVolume.
#[derive(Clone, Debug)]
pub struct VolumeEntry {
    pub volume: Volume,
    pub published: Vec<NodeId>,
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct Page<T> {
    pub entries: Vec<T>,
    /// Empty at the end.
    pub next_token: String,
}

/// ControllerExpandVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expanded {
    pub capacity: Bytes,
    pub node_expansion_required: bool,
}

/// The controller's operations.
pub struct Controller {
    registry: Registry,
    locks: Locks,
    /// The node in this process, if there is one: freezes for snapshots, knows what is in use here.
    node: Option<Arc<Node>>,
}

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

/// What ListSnapshots is asked for.
#[derive(Clone, Debug, Default)]
pub struct SnapshotFilter {
    pub source: Option<VolumeId>,
    pub id: Option<SnapshotId>,
}

#[allow(unused_variables)]
impl Controller {
    pub fn new(registry: Registry, locks: Locks, node: Option<Arc<Node>>) -> Controller {
        Controller { registry, locks, node }
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    pub fn provision(&self, request: &ProvisionRequest) -> Result<Outcome<Volume>> {
        unimplemented!()
    }

    pub fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        unimplemented!()
    }

    pub fn attach(&self, request: &AttachRequest) -> Result<Outcome<BTreeMap<String, String>>> {
        unimplemented!()
    }

    pub fn detach(&self, id: &VolumeId, node: Option<&NodeId>) -> Result<Outcome<()>> {
        unimplemented!()
    }

    /// `None` is confirmed; else why not.
    pub fn validate(
        &self,
        id: &VolumeId,
        capabilities: &[Capability],
        volume_context: &BTreeMap<String, String>,
        parameters: &RawParameters,
    ) -> Result<Option<String>> {
        unimplemented!()
    }

    /// `max` 0 is no limit; an empty token is the start.
    pub fn list(&self, max: usize, token: &str) -> Result<Page<VolumeEntry>> {
        unimplemented!()
    }

    pub fn get(&self, id: &VolumeId) -> Result<VolumeEntry> {
        unimplemented!()
    }

    pub fn capacity(
        &self,
        capabilities: &[Capability],
        parameters: &RawParameters,
        topology: Option<&Topology>,
    ) -> Result<CapacityAnswer> {
        unimplemented!()
    }

    pub fn snapshot(&self, name: &str, source: &VolumeId, parameters: &RawParameters) -> Result<Outcome<Snapshot>> {
        unimplemented!()
    }

    pub fn delete_snapshot(&self, id: &SnapshotId) -> Result<Outcome<()>> {
        unimplemented!()
    }

    pub fn list_snapshots(&self, filter: &SnapshotFilter, max: usize, token: &str) -> Result<Page<Snapshot>> {
        unimplemented!()
    }

    pub fn get_snapshot(&self, id: &SnapshotId) -> Result<Snapshot> {
        unimplemented!()
    }

    pub fn expand(&self, id: &VolumeId, range: CapacityRange, capability: Option<&Capability>) -> Result<Expanded> {
        unimplemented!()
    }

    pub fn modify(&self, id: &VolumeId, parameters: &RawParameters) -> Result<Outcome<()>> {
        unimplemented!()
    }

    pub fn health(&self, id: &VolumeId) -> Result<Health> {
        unimplemented!()
    }

    pub fn list_health(&self, max: usize, token: &str) -> Result<Page<(VolumeId, Health)>> {
        unimplemented!()
    }

    pub fn create_group(&self, name: &str, sources: &[VolumeId], parameters: &RawParameters) -> Result<Outcome<Group>> {
        unimplemented!()
    }

    pub fn delete_group(&self, id: &GroupId, snapshots: &[SnapshotId]) -> Result<Outcome<()>> {
        unimplemented!()
    }

    pub fn get_group(&self, id: &GroupId, snapshots: &[SnapshotId]) -> Result<Group> {
        unimplemented!()
    }

    pub fn allocated(&self, snapshot: &SnapshotId, offset: u64, emit: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
        unimplemented!()
    }

    pub fn delta(
        &self,
        base: &SnapshotId,
        target: &SnapshotId,
        offset: u64,
        emit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        unimplemented!()
    }
}

//! The node's side: stage, publish, expand and their inverses.
//!
//! Each is: look at the journal and the kernel -> a pure plan -> run its steps, undoing one's own in reverse if one
//! fails. Already right means an empty plan.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::backend::registry::Registry;
use crate::backend::{Held, Quiesce};
use crate::ops::lock::Locks;
use crate::volume::{Bytes, Capability, Health, NodeId, Outcome, Result, Secrets, Topology, VolumeId};

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    pub node_id: NodeId,
    /// Staging and target paths must lie below it.
    pub kubelet_dir: PathBuf,
    /// The journal lies in `<state_dir>/journal`.
    pub state_dir: PathBuf,
}

/// A volume as the CO names it to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handle {
    /// One of ours.
    Id(VolumeId),
    /// An ephemeral inline volume: the kubelet made the name (`csi-...`); it lives from publish to unpublish.
    Inline(String),
}

#[derive(Clone, Debug)]
pub struct StageRequest {
    pub id: VolumeId,
    pub staging: PathBuf,
    pub capability: Capability,
    pub volume_context: BTreeMap<String, String>,
    pub publish_context: BTreeMap<String, String>,
    pub secrets: Secrets,
}

#[derive(Clone, Debug)]
pub struct PublishRequest {
    pub handle: Handle,
    /// `None` only for an inline volume.
    pub staging: Option<PathBuf>,
    pub target: PathBuf,
    pub capability: Capability,
    pub read_only: bool,
    pub volume_context: BTreeMap<String, String>,
    pub publish_context: BTreeMap<String, String>,
    pub secrets: Secrets,
}

#[derive(Clone, Debug)]
pub struct ExpandRequest {
    pub id: VolumeId,
    /// Where it is published or staged.
    pub path: PathBuf,
    pub staging: Option<PathBuf>,
    /// What the volume must be at least; `None` to fill the device.
    pub required: Option<Bytes>,
    /// The CO's word on the access type, if it gave one.
    pub block: Option<bool>,
}

/// NodeGetVolumeStats. Inodes only for a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    pub total: u64,
    pub available: Option<u64>,
    pub used: Option<u64>,
    /// (total, available, used)
    pub inodes: Option<(u64, u64, u64)>,
}

/// NodeGetInfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    pub node_id: NodeId,
    pub topology: Option<Topology>,
    /// `None` is no limit.
    pub limit: Option<u64>,
}

/// The node's operations.
pub struct Node {
    settings: NodeSettings,
    registry: Registry,
    locks: Locks,
}

impl Node {
    /// Opens the journal, compares it with the kernel, finishes or undoes what a kill cut off, thaws what was left frozen.
    /// What it does not own it reports in the log and leaves alone.
    ///
    /// # Errors
    /// Where the journal or the kubelet's folder cannot be used.
    pub fn open(settings: NodeSettings, registry: Registry, locks: Locks) -> Result<Node> {
        Ok(Node { settings, registry, locks })
    }

    /// Of this node.
    pub fn id(&self) -> &NodeId {
        &self.settings.node_id
    }

    pub fn stage(&self, _request: &StageRequest) -> Result<Outcome<()>> {
        unimplemented!()
    }

    /// # Errors
    /// `InUse` while it is still published.
    pub fn unstage(&self, _id: &VolumeId, _staging: &std::path::Path) -> Result<Outcome<()>> {
        unimplemented!()
    }

    pub fn publish(&self, _request: &PublishRequest) -> Result<Outcome<()>> {
        unimplemented!()
    }

    pub fn unpublish(&self, _handle: &Handle, _target: &std::path::Path) -> Result<Outcome<()>> {
        unimplemented!()
    }

    /// # Errors
    /// `NotFound` where the volume is not at `path`.
    pub fn stats(&self, _handle: &Handle, _path: &std::path::Path) -> Result<Stats> {
        unimplemented!()
    }

    pub fn health(
        &self,
        _handle: &Handle,
        _publish_path: Option<&std::path::Path>,
        _staging: Option<&std::path::Path>,
    ) -> Result<Health> {
        unimplemented!()
    }

    pub fn storage_health(&self) -> Result<Health> {
        unimplemented!()
    }

    /// The size of the device afterwards.
    pub fn expand(&self, _request: &ExpandRequest) -> Result<Bytes> {
        unimplemented!()
    }

    pub fn info(&self) -> Result<NodeInfo> {
        unimplemented!()
    }

    /// Volumes that are staged on this node now, of those asked about.
    pub fn staged(&self, _ids: &[VolumeId]) -> Result<Vec<VolumeId>> {
        unimplemented!()
    }

    /// Whether the volume is staged or published here, in words; `None` if not. DeleteVolume asks.
    pub fn in_use(&self, _id: &VolumeId) -> Result<Option<String>> {
        unimplemented!()
    }
}

impl Quiesce for Node {
    fn hold(&self, _volumes: &[VolumeId]) -> Result<Box<dyn Held>> {
        unimplemented!()
    }
}

//! What the node is asked for and what it returns: plain values, as `rpc` decodes and encodes them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::volume::{Bytes, Capability, NodeId, Secrets, Topology, VolumeId};

/// A volume as the CO names it to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handle {
    /// One of ours.
    Id(VolumeId),
    /// Any other text: the kubelet's name of an ephemeral inline volume (`csi-...`), which lives from publish to unpublish, or what
    /// the handle of a static volume.
    Name(String),
}

impl From<VolumeId> for Handle {
    fn from(id: VolumeId) -> Handle {
        Handle::Id(id)
    }
}

impl fmt::Display for Handle {
    /// As the CO calls it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Handle::Id(id) => id.fmt(f),
            Handle::Name(name) => f.write_str(name),
        }
    }
}

#[derive(Clone, Debug)]
pub struct StageRequest {
    pub handle: Handle,
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
    pub handle: Handle,
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

/// How much this node's journal holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub stages: u64,
    pub publishes: u64,
}

/// NodeGetInfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    pub node_id: NodeId,
    pub topology: Option<Topology>,
    /// `None` is no limit.
    pub limit: Option<u64>,
}

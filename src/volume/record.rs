//! What there is: volumes, snapshots, groups.

use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::capacity::Bytes;
use super::id::{GroupId, SnapshotId, VolumeId};
use super::topology::Topology;

/// From what a volume was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentSource {
    Snapshot(SnapshotId),
    Volume(VolumeId),
}

/// A volume, as its backend knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub id: VolumeId,
    /// The CO's name for it, kept to tell a repeat from another volume.
    pub name: String,
    pub capacity: Bytes,
    pub source: Option<ContentSource>,
    /// Its parameters as typed JSON (`{"node": ..., "backend": ...}`): travels to the node in volume_context. Many volumes share theirs.
    pub parameters: Arc<serde_json::Value>,
    /// From where it can be reached: by a node with all segments of one of these. Empty is from everywhere.
    pub topology: Vec<Topology>,
    /// It was made so that only one node at a time can have it, whatever else its backend can make.
    pub for_one_node: bool,
}

/// A snapshot, as its backend knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub id: SnapshotId,
    /// The CO's name for it.
    pub name: String,
    pub source: VolumeId,
    /// The least size of a volume that can hold it.
    pub size: Bytes,
    pub created: SystemTime,
    pub ready: bool,
    pub group: Option<GroupId>,
    /// From where volumes made of it can be reached; `None` is from everywhere.
    pub topology: Option<Topology>,
}

/// Snapshots of several volumes, all of one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub id: GroupId,
    /// The CO's name for it.
    pub name: String,
    pub created: SystemTime,
    pub snapshots: Vec<Snapshot>,
}

/// A run of bytes of a volume or snapshot, for changed-block tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes from the start.
    pub offset: u64,
    /// Bytes; never 0.
    pub length: u64,
}

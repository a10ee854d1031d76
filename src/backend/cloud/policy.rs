//! What differs between clouds apart from their requests: parameters, access modes, sizes, zones.

use std::time::Duration;

use serde_json::Value;

use crate::backend::{SnapshotSpec, VolumeSpec};
use crate::volume::topology::ZONE;
use crate::volume::{AccessMode, AccessType, Bytes, Capability, Error, RawParameters, Result, Topology};

use super::api::{Disk, DiskId, Tags};

/// How a new disk, or a snapshot, is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// The cloud's own, for [`super::api::DiskSpec::settings`] or [`super::api::CloudSnapshotSpec::settings`].
    pub settings: Value,
    /// Beside those that the frame gives: what the operator and the StorageClass ask for.
    pub tags: Tags,
    pub multi_attach: bool,
    /// Of a disk: in how many zones it is kept; 0 for one that any machine can have attached.
    pub zones: usize,
}

/// A cloud's own rules. Nothing here asks the cloud.
pub trait Policy: Send + Sync + 'static {
    /// The type in the configuration file: `ec2`.
    fn kind(&self) -> &'static str;

    /// The access modes of a disk; for several nodes `draft` has it made so, or refuses.
    fn access_modes(&self) -> &[AccessMode];

    /// As [`crate::backend::Backend::check_capability`]: whatever the cloud lets several machines have.
    fn check_capability(&self, capability: &Capability) -> Result<()> {
        if !AccessMode::SINGLE_NODE.contains(&capability.mode) && capability.access != AccessType::Block {
            let reason = "a file system of one node's is destroyed by a second node; use volumeMode Block, or one node";
            return Err(Error::invalid("volume_capability.access_mode", reason));
        }
        Ok(())
    }

    /// As [`crate::backend::Backend::parameters`].
    fn parameters(&self, raw: &RawParameters) -> Result<Value>;

    /// As [`crate::backend::Backend::requested_parameters`]; what is recorded with the disk, too.
    fn requested_parameters(&self, made: &Value) -> Value {
        made.clone()
    }

    /// Whether the cloud tells which blocks of a snapshot have changed ([`super::Cloud::blocks`]).
    fn has_changed_blocks(&self) -> bool {
        true
    }

    /// The segments that this node adds; `None` where no node is served here.
    ///
    /// # Errors
    /// `BackendUnavailable` while they are not known.
    fn topology(&self) -> Result<Option<Topology>>;

    /// Whether volumes are reachable from some nodes only: as [`crate::backend::Backend::has_topology`], wherever this process runs.
    fn has_topology(&self) -> bool {
        true
    }

    /// The zone that these segments mean, if they mean one.
    fn zone(&self, segments: &Topology) -> Option<String>;

    /// From where this disk can be reached: each by all of its segments. Empty is from everywhere.
    fn places(&self, disk: &Disk) -> Vec<Topology>;

    /// The site within the zone ([`Disk::site`]) that these segments mean, if they mean one.
    ///
    /// # Errors
    /// `Invalid` where they name one that cannot be.
    fn site(&self, _segments: &Topology) -> Result<Option<String>> {
        Ok(None)
    }

    /// The settings of a new disk ([`Draft::settings`]) that is to be at this site.
    ///
    /// # Errors
    /// `Invalid` where its parameters say another one.
    fn placed(&self, settings: Value, _site: &str) -> Result<Value> {
        Ok(settings)
    }

    /// Sizes are whole ones of these, in bytes.
    fn unit(&self) -> u64 {
        Bytes::GIB.0
    }

    /// The smallest and the largest disk with these parameters (`{"node": ..., "backend": ...}` is the volume's; this is `backend`).
    fn bounds(&self, parameters: &Value) -> (Bytes, Bytes);

    /// The largest that this disk can become: its type may be another than the one of its parameters by now.
    fn largest(&self, disk: &Disk) -> Result<Bytes>;

    /// How the disk of a new volume is to be made, `spec.mutable` set at once.
    ///
    /// # Errors
    /// `Invalid`, `OutOfRange` for what cannot be, or not together.
    fn draft(&self, spec: &VolumeSpec) -> Result<Draft>;

    /// Why the cloud may have accepted a new disk and deleted it before it could be used, with the remedy.
    fn why_vanished(&self, disk: &DiskId) -> String {
        format!("the cloud accepted disk {disk}, and deleted it before it was available")
    }

    /// Whether these parameters can be set: VolumeAttributesClass, mutable_parameters.
    fn check_mutable(&self, raw: &RawParameters) -> Result<()>;

    /// What is to change of `disk`, which has or gets `capacity`, so that it has these mutable parameters; `None` where it has them
    /// already. Without any (`raw` is empty), what must follow a new capacity.
    fn amend(&self, disk: &Disk, capacity: Bytes, raw: &RawParameters) -> Result<Option<Value>>;

    /// How long after a change the next one must wait, to tell when it may be.
    fn cooldown(&self) -> Option<Duration> {
        None
    }

    /// Checks the snapshot class's parameters.
    fn check_snapshot(&self, raw: &RawParameters) -> Result<()>;

    /// How a snapshot is to be made.
    fn draft_snapshot(&self, spec: &SnapshotSpec) -> Result<Draft>;
}

/// Parameters, or settings, as they are recorded.
pub fn to_json<T: serde::Serialize>(value: &T) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| Error::invalid("parameters", error.to_string()))
}

/// What is reached from one zone.
pub fn in_zone(zone: &str) -> Topology {
    Topology::from_iter([(ZONE.to_owned(), zone.to_owned())])
}

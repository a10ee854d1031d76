//! The traits that a storage system implements. What they are about is in [`crate::backend`].

use std::any::Any;

use crate::volume::{AccessMode, BackendName, Bytes, Capability, Error, RawParameters, Result, Topology, VolumeId};

mod controller;
mod doctor;
mod exclusive;
mod inspect;
mod node;
mod usage;

pub use controller::{
    Attach, CapacityAnswer, CapacityQuery, ChangedBlocks, Expand, FreezeGuard, Groups, Holding, Modify, Provision, Quiesce,
    ReportHealth, SnapshotSpec, Snapshots, VolumeSpec, Writers, check_same_attachment, with_own_part,
};
pub use doctor::{Check, Level, NodeCheck, StoragePath, ToolUse};
pub(super) use exclusive::patience;
pub use exclusive::{Exclusive, FirstLock};
pub use inspect::{Compare, Connected, Garbage, Inspect, Leftover, LeftoverKind, Place, Stored, Survey, Unnamed};
pub(super) use inspect::{changed, words};
pub use node::{BlockDevice, Connect, ConnectRequest, Directory, ExpectedContents, SharedConnection, Source, detached_meanwhile};
pub use usage::{PoolUsage, Provisioned, Usage};

/// Applies settings. It cannot fail, so that the settings of all backends are applied together or not at all.
pub type ApplySettings<'a> = Box<dyn FnOnce() + 'a>;

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

    /// The least size of a volume that can be used so: by default what a file system of its own needs.
    fn least_size(&self, capability: &Capability) -> Bytes {
        capability.least_size()
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
    fn parse_static_attributes(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        self.parameters(raw)
    }

    /// The volume that another driver of the same storage has given this handle, where such volumes are used here. Asks nothing: the same in
    /// each process with this configuration.
    fn existing_volume(&self, _handle: &str) -> Option<VolumeId> {
        None
    }

    /// Whether it may have volumes that are not in its list: [`Backend::existing_volume`].
    fn has_unlisted_volumes(&self) -> bool {
        false
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

    /// Prepares the settings that `Configuration::RELOADABLE` lists to be those of `configuration`, which is validated and of this
    /// backend's type. Calls that run see the old or the new values.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    fn reload(&self, _configuration: &dyn Any) -> Result<ApplySettings<'_>> {
        Ok(Box::new(|| {}))
    }

    /// How much is in it, for metrics. Costs the same however much that is, but may hang with the storage.
    fn usage(&self) -> Usage {
        Usage::default()
    }

    /// Where only one process at a time may provision: its lock.
    fn exclusive(&self) -> Option<&dyn Exclusive> {
        None
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
    /// What `longshore inspect --backend` compares: a cloud's, opened for [`crate::backend::catalog::Purpose::Compare`].
    fn compare(&self) -> Option<&dyn Compare> {
        None
    }
    /// The node's side. Every backend has one.
    fn connect(&self) -> &dyn Connect;
}

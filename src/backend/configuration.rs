//! What the configuration file says of one backend, and with what the backend is opened. [`super::catalog`] has the types that there are.

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::metrics::{CloudRequests, Metrics};
use crate::volume::{BackendName, Error, NodeId, Result};

use super::api::{Backend, NodeCheck, StoragePath, ToolUse};

/// The configuration of one type of backend, as the file has it, and what is to be known of such a backend before it is opened.
pub trait Configuration:
    Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
    /// `type` in the configuration file.
    const KIND: &'static str;
    /// A line for `longshore serve --help`: where its volumes lie.
    const SUMMARY: &'static str;
    /// The programs that a node runs for this backend alone.
    const TOOLS: &'static [ToolUse] = &[];
    /// The settings that [`Backend::reload`] applies while calls run, as paths below the backend: `pools[].capacity`. Any other needs a
    /// restart.
    const RELOADABLE: &'static [&'static str] = &[];
    /// What `longshore doctor` checks of a node for this backend alone.
    const NODE_CHECKS: &'static [NodeCheck] = &[];

    /// The part of every volume id before the colon.
    fn name(&self) -> &BackendName;

    /// Checks what needs no I/O.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    fn validate(&self) -> Result<()>;

    /// Waits for no storage: what is away is tried again by the calls that need it.
    ///
    /// # Errors
    /// What waiting will not repair.
    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>>;

    /// Fills in what the file leaves to the node on which it is read.
    fn set_node_default(&mut self, _node: &NodeId) {}

    /// Whether it keeps the id of this node with its storage, so that it must not be opened under a provisional one.
    fn keeps_node_id(&self) -> bool {
        false
    }

    /// The directories of this machine in which it keeps volumes: no two backends share one, and `longshore doctor` checks them.
    fn storage_paths(&self) -> Vec<StoragePath> {
        Vec::new()
    }

    /// Where the storage has a name of its own for the node: who knows it. Asks nothing yet.
    fn node_identity(&self, _node: &NodeId, _state_dir: &Path) -> Option<Arc<dyn NodeIdentity>> {
        None
    }
}

/// A configuration of the backend's own type.
///
/// # Errors
/// `Invalid` for that of another type.
pub fn of_type<C: Configuration>(configuration: &dyn Any) -> Result<&C> {
    configuration
        .downcast_ref()
        .ok_or_else(|| Error::invalid("backends", format!("this is no configuration of type {}", C::KIND)))
}

/// Knows by which id a storage (a cloud) calls this node. The backends of one driver share it.
pub trait NodeIdentity: Any + Send + Sync {
    /// # Errors
    /// `BackendUnavailable` while it is not known.
    fn node_id(&self) -> Result<NodeId>;
}

/// What a process opens a backend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To serve calls: those of a controller, those of a node, or both.
    Serve { controller: bool, node: bool },
    /// For `longshore inspect`: only looks; nothing is made, ended or locked.
    Inspect,
    /// For `longshore inspect --backend`: as `Inspect`, but the storage itself is asked for all that it has ([`Backend::compare`]).
    Compare,
}

impl Purpose {
    /// Whether volumes are made and deleted.
    pub fn provisions(self) -> bool {
        matches!(self, Purpose::Serve { controller: true, .. })
    }

    /// Whether volumes are staged, too, by the process that makes them.
    pub fn stages(self) -> bool {
        matches!(self, Purpose::Serve { node: true, .. })
    }

    /// Whether this process may change something.
    pub fn serves(self) -> bool {
        matches!(self, Purpose::Serve { .. })
    }
}

/// With what a backend is opened.
pub struct OpenContext<'a> {
    pub purpose: Purpose,
    /// The node of this process.
    pub node_id: &'a NodeId,
    /// A directory that outlives this process. Each backend uses one of its own below it.
    pub state_dir: &'a Path,
    /// Where something is served.
    pub metrics: Option<&'a Metrics>,
    /// Of the first backend whose storage has a name of its own for this node.
    pub identity: Option<Arc<dyn NodeIdentity>>,
}

impl<'a> OpenContext<'a> {
    /// For a backend that is not served, but only inspected.
    pub fn to_look(purpose: Purpose, node_id: &'a NodeId, state_dir: &'a Path) -> Self {
        OpenContext { purpose, node_id, state_dir, metrics: None, identity: None }
    }
}

impl OpenContext<'_> {
    /// Counts the requests to a cloud.
    pub fn cloud_requests(&self, backend: &BackendName) -> CloudRequests {
        self.metrics.map(|metrics| metrics.cloud(backend.as_str())).unwrap_or_default()
    }

    /// The node's identity, if it is one of this type.
    pub fn identity<T: NodeIdentity>(&self) -> Option<Arc<T>> {
        let identity: Arc<dyn Any + Send + Sync> = self.identity.clone()?;
        identity.downcast().ok()
    }
}

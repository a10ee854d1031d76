//! What every operation of a node works with: settings, backends, locks, journal, the two directories.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use crate::backend::registry::Registry;
use crate::ops::lock::Locks;
use crate::os::lock;
use crate::os::path::Root;
use crate::volume::{Bytes, Error, NodeId, Result};

use super::journal::{Journal, StageEntry};
use super::observe;

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    pub node_id: NodeId,
    /// Staging and target paths must lie below it.
    pub kubelet_dir: PathBuf,
    /// The journal lies in `<state_dir>/journal`.
    pub state_dir: PathBuf,
    /// At the start; a reload changes them.
    pub inline_limits: InlineLimits,
}

/// What an ephemeral inline volume may be: anyone who may create pods asks for one.
#[derive(Clone, Debug)]
pub struct InlineLimits {
    pub max_size: Bytes,
    /// What its attributes may set.
    pub allowed_parameters: Vec<String>,
}

/// The node's operations.
pub struct Node {
    pub(super) settings: NodeSettings,
    inline_limits: Mutex<Arc<InlineLimits>>,
    pub(super) registry: Registry,
    pub(super) locks: Locks,
    /// Shared with what holds file systems still.
    pub(super) journal: Arc<Journal>,
    pub(super) kubelet: Root,
    pub(super) state: Root,
    pub(super) boot: String,
    pub(super) resolved: OnceLock<NodeId>,
    /// Numbers the records of what is frozen.
    pub(super) freezes: AtomicU64,
    /// What an earlier process left frozen is thawed.
    pub(super) thawed: AtomicBool,
}

impl Node {
    /// As `open`, but nothing is compared, finished or undone.
    pub(super) fn open_unrecovered(settings: NodeSettings, registry: Registry, locks: Locks) -> Result<Node> {
        let kubelet = Root::open(&settings.kubelet_dir).map_err(|error| {
            let path = settings.kubelet_dir.display();
            Error::invalid("kubelet_dir", format!("{path} cannot be used ({error}); make it, or name the kubelet's directory"))
        })?;
        let journal = Arc::new(Journal::open(&settings.state_dir)?);
        let state = Root::open(&settings.state_dir)?;
        let boot = observe::boot()?;
        Ok(Node {
            inline_limits: Mutex::new(Arc::new(settings.inline_limits.clone())),
            settings,
            registry,
            locks,
            journal,
            kubelet,
            state,
            boot,
            resolved: OnceLock::new(),
            freezes: AtomicU64::new(0),
            thawed: AtomicBool::new(false),
        })
    }

    pub(super) fn inline_limits(&self) -> Arc<InlineLimits> {
        Arc::clone(&lock(&self.inline_limits))
    }

    /// For the inline volumes that are made from now on.
    pub fn set_inline_limits(&self, limits: InlineLimits) {
        *lock(&self.inline_limits) = Arc::new(limits);
    }

    /// Of this node; as it is configured, while its storage's own id of it is not known.
    pub fn id(&self) -> &NodeId {
        self.resolved.get().unwrap_or(&self.settings.node_id)
    }

    /// The id by which the CO and stored data know this node.
    ///
    /// # Errors
    /// `BackendUnavailable` while a backend that has its own id of this node does not know it.
    pub(super) fn resolved_id(&self) -> Result<&NodeId> {
        if let Some(resolved) = self.resolved.get() {
            return Ok(resolved);
        }
        let mut id = self.settings.node_id.clone();
        for backend in self.registry.iter() {
            id = backend.connect().node_id()?.unwrap_or(id);
        }
        Ok(self.resolved.get_or_init(|| id))
    }

    /// The directory below which the entry's staging path lies.
    pub(super) fn root_of(&self, entry: &StageEntry) -> &Root {
        if entry.inline { &self.state } else { &self.kubelet }
    }

    pub(super) fn same_boot(&self, entry: &StageEntry) -> bool {
        entry.boot == self.boot
    }
}

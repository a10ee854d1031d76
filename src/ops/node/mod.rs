//! The node's side: stage, publish, expand and their inverses.
//!
//! Each is: look at the journal and the kernel -> a pure plan -> run its steps, undoing one's own in reverse if one
//! fails. Already right means an empty plan.
//!
//! - The journal says what we meant to do, mountinfo and the backend what is so. Where they differ, the latter win.
//! - A mount that is not the volume's is never unmounted, a device that is not proven blank never formatted.
//! - Locks: stage, unstage and expand hold the volume alone; publish and unpublish share it and hold the target, except
//!   where one target decides about another (raw block, SINGLE_NODE_SINGLE_WRITER).

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backend::registry::Registry;
use crate::backend::{Backend, Directory, Held, Quiesce, Source};
use crate::ops::lock::Locks;
use crate::ops::parameters::static_volume_backend;
use crate::os;
use crate::os::path::Root;
use crate::volume::{Bytes, Capability, Error, Health, NodeId, Outcome, Result, Secrets, Topology, Volume, VolumeId};

use journal::{Journal, Phase, StageEntry};

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use journal::rewritten;

mod execute;
mod expand;
mod group;
mod health;
mod inline;
pub mod inspect;
mod journal;
pub mod lone;
mod observe;
mod plan;
mod publish;
mod quiesce;
mod recover;
mod sources;
mod stage;
mod stats;
mod unpublish;
mod unstage;

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    pub node_id: NodeId,
    /// Staging and target paths must lie below it.
    pub kubelet_dir: PathBuf,
    /// The journal lies in `<state_dir>/journal`.
    pub state_dir: PathBuf,
    /// How large an ephemeral inline volume may be.
    pub inline_max_size: Bytes,
    /// What its attributes may set.
    pub allow_inline_parameters: Vec<String>,
}

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

/// The node's operations.
pub struct Node {
    settings: NodeSettings,
    registry: Registry,
    locks: Locks,
    /// Shared with what holds file systems still.
    journal: Arc<Journal>,
    kubelet: Root,
    state: Root,
    boot: String,
    settled: OnceLock<NodeId>,
    /// Numbers the records of what is frozen.
    freezes: AtomicU64,
    /// What an earlier process left frozen is thawed.
    thawed: AtomicBool,
}

impl Node {
    /// Opens the journal, compares it with the kernel, finishes or undoes what a kill interrupted, thaws what was left frozen.
    /// What it does not own it reports in the log and leaves alone.
    ///
    /// Returns when that is done, and at the latest after `patience`: what hangs with its storage is locked until it is done, and
    /// calls about it are turned away.
    ///
    /// # Errors
    /// Where the journal or the kubelet's directory cannot be used.
    pub fn open(settings: NodeSettings, registry: Registry, locks: Locks, patience: Duration) -> Result<Arc<Node>> {
        let node = Arc::new(Node::as_it_is(settings, registry, locks)?);
        recover::recover(&node, patience);
        Ok(node)
    }

    /// As `open`, but nothing is compared, finished or undone.
    fn as_it_is(settings: NodeSettings, registry: Registry, locks: Locks) -> Result<Node> {
        let kubelet = Root::open(&settings.kubelet_dir).map_err(|error| {
            let path = settings.kubelet_dir.display();
            Error::invalid("kubelet_dir", format!("{path} cannot be used ({error}); make it, or name the kubelet's directory"))
        })?;
        let journal = Arc::new(Journal::open(&settings.state_dir)?);
        let state = Root::open(&settings.state_dir)?;
        let boot = observe::boot()?;
        Ok(Node {
            settings,
            registry,
            locks,
            journal,
            kubelet,
            state,
            boot,
            settled: OnceLock::new(),
            freezes: AtomicU64::new(0),
            thawed: AtomicBool::new(false),
        })
    }

    /// Of this node; as it is configured, while its storage's own id of it is not known.
    pub fn id(&self) -> &NodeId {
        self.settled.get().unwrap_or(&self.settings.node_id)
    }

    /// The id by which the CO and stored data know this node.
    ///
    /// # Errors
    /// `BackendUnavailable` while a backend that has its own id of this node does not know it.
    fn settled_id(&self) -> Result<&NodeId> {
        if let Some(settled) = self.settled.get() {
            return Ok(settled);
        }
        let mut id = self.settings.node_id.clone();
        for backend in self.registry.iter() {
            id = backend.connect().node_id()?.unwrap_or(id);
        }
        Ok(self.settled.get_or_init(|| id))
    }

    /// Makes the volume ready on this node: connected, formatted if it is proven blank, checked, grown, mounted at the
    /// staging path; a raw block volume is connected only.
    ///
    /// # Errors
    /// `Conflict` where it is staged otherwise; `InUse` where the staging path is taken; `Unverified` where the device
    /// holds something that was not to be expected.
    pub fn stage(&self, request: &StageRequest) -> Result<Outcome<()>> {
        stage::stage(self, request)
    }

    /// # Errors
    /// `InUse` while it is still published.
    pub fn unstage(&self, handle: &Handle, staging: &Path) -> Result<Outcome<()>> {
        match self.known(handle)? {
            Some(id) => unstage::unstage(self, &id, staging),
            None => Ok(Outcome::Unchanged(())),
        }
    }

    /// Shows a staged volume at the target; an ephemeral inline volume is made and staged before.
    ///
    /// # Errors
    /// `NotStaged`; `Conflict` where something else is at the target; `InUse` where another target forbids it.
    pub fn publish(&self, request: &PublishRequest) -> Result<Outcome<()>> {
        match inline::handle_of(request) {
            Some(handle) => inline::publish(self, request, &handle),
            None => publish::publish(self, request),
        }
    }

    /// Takes it from the target; an ephemeral inline volume is then deleted.
    ///
    /// # Errors
    /// `InUse` where something else is mounted there.
    pub fn unpublish(&self, handle: &Handle, target: &Path) -> Result<Outcome<()>> {
        if let Some(id) = inline::find(self, handle)? {
            return inline::unpublish(self, &id, target);
        }
        match self.known(handle)? {
            Some(id) if inline::is_journaled(self, &id)? => inline::unpublish(self, &id, target),
            Some(id) => unpublish::unpublish(self, &id, target),
            None => unpublish::unpublish_unknown(self, handle, target),
        }
    }

    /// # Errors
    /// `NotFound` where the volume is not at `path`.
    pub fn stats(&self, handle: &Handle, path: &Path) -> Result<Stats> {
        stats::stats(self, handle, path)
    }

    /// What is wrong with the volume as this node sees it.
    ///
    /// # Errors
    /// `NotFound` where neither the journal nor the backend knows it.
    pub fn health(&self, handle: &Handle, publish_path: Option<&Path>, staging: Option<&Path>) -> Result<Health> {
        health::health(self, handle, publish_path, staging)
    }

    /// What is wrong with the storage behind all volumes.
    pub fn storage_health(&self) -> Result<Health> {
        health::storage_health(self)
    }

    /// The size of the device afterwards.
    ///
    /// # Errors
    /// `NotFound` where the volume is not at the path; `OutOfRange` where the device is smaller than required.
    pub fn expand(&self, request: &ExpandRequest) -> Result<Bytes> {
        expand::expand(self, request)
    }

    pub fn info(&self) -> Result<NodeInfo> {
        stats::info(self)
    }

    /// What is staged and published here, or was begun; known without a look.
    pub fn counts(&self) -> Counts {
        let (stages, publishes) = self.journal.counts();
        Counts { stages, publishes }
    }

    /// Volumes that are staged on this node now, of those asked about.
    pub fn staged(&self, ids: &[VolumeId]) -> Result<Vec<VolumeId>> {
        let mut staged = Vec::new();
        for id in ids {
            if self.journal.stage(id)?.is_some_and(|entry| entry.phase == Phase::Staged && self.same_boot(&entry)) {
                staged.push(id.clone());
            }
        }
        Ok(staged)
    }

    /// Whether its storage says that it is an ephemeral volume of this node and state directory.
    ///
    /// # Errors
    /// While the id of this node is not known.
    pub fn owns(&self, volume: &Volume) -> Result<bool> {
        inline::owns(self, volume)
    }

    /// Whether the volume is staged or published here, in words; `None` if not. DeleteVolume asks.
    pub fn in_use(&self, id: &VolumeId) -> Result<Option<String>> {
        if !self.journal.knows(id)? {
            return Ok(None);
        }
        let node = self.id();
        if let Some(entry) = self.journal.stage(id)? {
            let staging = entry.staging.display();
            // A mkfs must be seen to an end before another volume can have this identity.
            if self.same_boot(&entry) || entry.is_interrupted() {
                return Ok(Some(format!("it is staged on node {node} at {staging}; unstage it first")));
            }
        }
        if let Some(target) = self.journal.targets(id)?.iter().find(|target| target.boot == self.boot) {
            return Ok(Some(format!("it is published on node {node} at {}; unpublish it first", target.target.display())));
        }
        // An entry of an earlier boot, or a damaged one, does not tell; the backend does.
        let connected = match self.registry.get(id.backend()) {
            Some(backend) => backend.connect().connected(id, None)?,
            None => None,
        };
        Ok(connected.map(|source| format!("it is connected on node {node} as {}; unstage it first", source_name(&source))))
    }

    /// Which volume a CO means that tells no more than a handle: by an id of a backend that is configured, or by the journal. `None`
    /// where it can be none that is here. An ephemeral one is [`inline::find`]'s.
    fn known(&self, handle: &Handle) -> Result<Option<VolumeId>> {
        if let Handle::Id(id) = handle
            && self.registry.get(id.backend()).is_some()
        {
            return Ok(Some(id.clone()));
        }
        let name = handle.to_string();
        for backend in self.registry.iter() {
            let id = VolumeId::by_hand(backend.name(), &name);
            if self.journal.knows(&id)? {
                return Ok(Some(id));
            }
        }
        match handle {
            Handle::Id(id) if self.journal.knows(id)? => Ok(Some(id.clone())),
            Handle::Id(_) | Handle::Name(_) => self.known_of_left(&name),
        }
    }

    /// A volume that a backend, which has left the configuration since, has left here under a name that is no id. Costs as much as the
    /// journal has volumes, and is the last resort.
    fn known_of_left(&self, name: &str) -> Result<Option<VolumeId>> {
        for id in self.journal.volumes()?.into_iter().filter(|id| self.registry.get(id.backend()).is_none()) {
            let backend = id.backend();
            if id == VolumeId::by_hand(backend, name) || inline::ids(self, backend, name)?.contains(&id) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Which volume a CO means that also tells its attributes.
    fn told(&self, handle: &Handle, context: &BTreeMap<String, String>) -> Result<VolumeId> {
        match (handle, static_volume_backend(&self.registry, context)) {
            (Handle::Id(id), _) if self.registry.get(id.backend()).is_some() => Ok(id.clone()),
            (_, Some(backend)) => Ok(VolumeId::by_hand(backend.name(), &handle.to_string())),
            _ => self.known(handle)?.ok_or_else(|| Error::NotFound { kind: "volume", id: handle.to_string() }),
        }
    }

    /// The volume's backend.
    ///
    /// # Errors
    /// `BackendUnavailable` where the journal has the volume, but its backend has left the configuration; `NotFound` where neither has it.
    fn backend(&self, id: &VolumeId) -> Result<&Arc<dyn Backend>> {
        match self.registry.get(id.backend()) {
            Some(backend) => Ok(backend),
            None if self.journal.knows(id)? => Err(Error::BackendUnavailable {
                backend: id.backend().to_string(),
                reason: format!(
                    "it is not in the configuration, but the journal of node {} has its volume {id}; add the backend to the \
                     configuration again, until the volume is unstaged",
                    self.id()
                ),
            }),
            None => Err(Error::volume_not_found(id)),
        }
    }

    /// A path of the CO's, below the kubelet's directory, as mountinfo will show it.
    fn place(&self, path: &Path) -> Result<PathBuf> {
        Ok(self.kubelet.path().join(self.kubelet.relative(path)?))
    }

    /// The directory below which the entry's staging path lies.
    fn root_of(&self, entry: &StageEntry) -> &Root {
        if entry.inline { &self.state } else { &self.kubelet }
    }

    fn same_boot(&self, entry: &StageEntry) -> bool {
        entry.boot == self.boot
    }
}

impl Node {
    /// As that which holds volumes still, with nothing left of earlier holds.
    pub(super) fn quiesce(&self) -> Result<&dyn Quiesce> {
        self.journal.remove_stale()?;
        Ok(self)
    }
}

impl Quiesce for Node {
    fn hold(&self, volumes: &[VolumeId]) -> Result<Box<dyn Held>> {
        quiesce::hold(self, volumes)
    }
}

/// As an operator knows it.
fn source_name(source: &Source) -> String {
    match source {
        Source::Device(device) => device.path.display().to_string(),
        Source::Filesystem { source, .. } | Source::Directory(Directory { source, .. }) => source.clone(),
    }
}

/// A failed check of what the kernel shows.
fn unexpected(object: &Path, reason: impl Into<String>) -> Error {
    os::Error::Unexpected { object: object.display().to_string(), reason: reason.into() }.into()
}

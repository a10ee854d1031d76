//! The node's side: stage, publish, expand and their inverses.
//!
//! Each is: look at the journal and the kernel -> a pure plan -> run its steps, undoing one's own in reverse if one
//! fails. Already right means an empty plan.
//!
//! - The journal says what we meant to do, mountinfo and the backend what is so. Where they differ, the latter win.
//! - A mount that is not the volume's is never unmounted, a device that is not proven blank never formatted.
//! - Locks: stage, unstage and expand hold the volume alone; publish and unpublish share it and hold the target, except
//!   where one target decides about another (raw block, SINGLE_NODE_SINGLE_WRITER).

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::registry::Registry;
use crate::backend::{Quiesce, Source};
use crate::ops::lock::Locks;
use crate::os::holders;
use crate::volume::{Bytes, Health, Outcome, Result, Volume, VolumeId};

use errors::source_name;
use inline::identity;
use journal::{Phase, StageEntry};

pub use context::{InlineLimits, Node, NodeSettings};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use journal::rewritten;
pub use requests::{Counts, ExpandRequest, Handle, NodeInfo, PublishRequest, StageRequest, Stats};

mod context;
mod device_use;
mod errors;
mod expand;
mod fs_group;
mod health;
mod inline;
pub mod inspect;
mod io_limits;
mod journal;
pub mod lone;
mod mapping;
mod mounts;
mod observe;
mod pods;
mod publish;
mod quiesce;
mod recover;
mod requests;
mod resolve;
mod rollback;
mod sources;
mod stage;
mod stats;
mod unpublish;
mod unstage;

/// Of so many volumes the journal is looked into for each of them.
const FEW: usize = 100;

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
        let node = Arc::new(Node::open_unrecovered(settings, registry, locks)?);
        recover::recover(&node, patience);
        Ok(node)
    }

    /// Makes the volume ready on this node: connected, formatted if it is proven blank, checked, grown, mounted at the
    /// staging path; a raw block volume is connected only, and so is a directory of a network share.
    ///
    /// # Errors
    /// `Conflict` where it is staged otherwise; `InUse` where the staging path is taken; `Unverified` where the device
    /// holds something that was not to be expected.
    pub fn stage(&self, request: &StageRequest) -> Result<Outcome<()>> {
        stage::stage(self, request)
    }

    /// # Errors
    /// `InUse` while it is still published, and where something else is mounted there.
    pub fn unstage(&self, handle: &Handle, staging: &Path) -> Result<Outcome<()>> {
        match resolve::volume_by_handle(self, handle)? {
            Some(id) => unstage::unstage(self, &id, staging),
            None => unstage::unstage_unknown(self, handle, staging),
        }
    }

    /// Shows a staged volume at the target; an ephemeral inline volume is made and staged before.
    ///
    /// # Errors
    /// `NotStaged`; `Conflict` where something else is at the target; `InUse` where another target forbids it.
    pub fn publish(&self, request: &PublishRequest) -> Result<Outcome<()>> {
        match identity::handle_of(request) {
            Some(handle) => inline::publish(self, request, &handle),
            None => publish::publish(self, request),
        }
    }

    /// Takes it from the target; an ephemeral inline volume is then deleted.
    ///
    /// # Errors
    /// `InUse` where something else is mounted there.
    pub fn unpublish(&self, handle: &Handle, target: &Path) -> Result<Outcome<()>> {
        if let Some(id) = identity::find(self, handle)? {
            return inline::unpublish(self, &id, target);
        }
        match resolve::volume_by_handle(self, handle)? {
            Some(id) if identity::is_journaled(self, &id)? => inline::unpublish(self, &id, target),
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

    /// Limits what the pods that have the volume read and write of it, as it is set now. The caller holds the volume.
    ///
    /// # Errors
    /// `Unsupported` where this node cannot limit it.
    pub fn apply_io_limits(&self, id: &VolumeId) -> Result<()> {
        io_limits::apply_to_all(self, id)
    }

    /// As that which holds volumes still, with nothing left of earlier holds.
    pub(super) fn quiesce(&self) -> Result<&dyn Quiesce> {
        self.journal.remove_stale()?;
        Ok(self)
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
    pub fn staged(&self, ids: &[&VolumeId]) -> Result<Vec<VolumeId>> {
        // Of many volumes few are staged here: one look at the journal's directory instead of one for each.
        let known: Option<HashSet<VolumeId>> =
            if ids.len() > FEW { Some(self.journal.volumes()?.into_iter().collect()) } else { None };
        let mut staged = Vec::new();
        for id in ids.iter().filter(|id| known.as_ref().is_none_or(|known| known.contains(id))) {
            if self.journal.stage(id)?.is_some_and(|entry| entry.phase == Phase::Staged && self.same_boot(&entry)) {
                staged.push((*id).clone());
            }
        }
        Ok(staged)
    }

    /// Whether its storage says that it is an ephemeral volume of this node and state directory.
    ///
    /// # Errors
    /// While the id of this node is not known.
    pub fn owns(&self, volume: &Volume) -> Result<bool> {
        identity::owns(self, volume)
    }

    /// Why an unstage that has begun has not ended, in words. The kubelet shows its error to nobody: the pod is gone. So DeleteVolume, whose
    /// error is an event of the PersistentVolume, says who keeps the volume.
    fn unstaging(&self, entry: &StageEntry) -> String {
        let (node, staging) = (self.id(), entry.staging.display());
        let held = match &entry.source {
            Some(Source::Device(device)) => holders::of(device.number, &device.path),
            _ => Vec::new(),
        };
        if held.is_empty() {
            return format!("its unstage from {staging} on node {node} has not ended; see the log of the node's driver");
        }
        format!("its unstage on node {node} waits: {}; end what uses it", holders::listed(&held))
    }

    /// Removes what the journal has of a deleted volume, which is of an earlier boot: else the volume could not be deleted. Nobody unstages
    /// it where the node was rebooted and its pods were moved by force.
    pub fn forget(&self, id: &VolumeId) {
        let remove = || {
            for target in self.journal.targets(id)?.iter().filter(|target| target.boot != self.boot) {
                self.journal.remove_target(id, &target.target)?;
            }
            match self.journal.stage(id)? {
                Some(entry) if !self.same_boot(&entry) && !entry.is_interrupted() => self.journal.remove_stage(id),
                _ => Ok(()),
            }
        };
        if let Err(error) = self.journal.knows(id).and_then(|known| if known { remove() } else { Ok(()) }) {
            tracing::warn!(volume = %id, %error, "it is deleted, and what the journal has of its stage before the last boot stays");
        }
    }

    /// Whether the volume is staged or published here, in words; `None` if not. DeleteVolume asks.
    pub fn in_use(&self, id: &VolumeId) -> Result<Option<String>> {
        if !self.journal.knows(id)? {
            return Ok(None);
        }
        let node = self.id();
        if let Some(entry) = self.journal.stage(id)? {
            let staging = entry.staging.display();
            if entry.phase == Phase::Unstaging && self.same_boot(&entry) {
                return Ok(Some(self.unstaging(&entry)));
            }
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
}

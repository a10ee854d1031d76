//! The controller's side: volumes, snapshots and groups come and go, are bound to nodes, grow and change.
//!
//! Each operation takes its locks, looks at what there is, answers if that is right already, refuses if it is
//! something else, and only then lets the backend act. Nothing is kept between calls: what there is, the backend knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::registry::Registry;
use crate::backend::{Backend, FreezeGuard, Provision, Quiesce, with_own_part};
use crate::ops::check_capability;
use crate::ops::lock::{Key, Locks};
use crate::ops::node::{Handle, Node};
use crate::ops::parameters::{CONTEXT_KEY, Parameters, static_volume_backend};
use crate::volume::{
    BackendName, Bytes, Capability, CapacityRange, ContentSource, Error, Health, NodeId, Outcome, RawParameters, Result,
    SnapshotId, TopologyRequirement, Volume, VolumeId,
};

mod attach;
mod changed_blocks;
mod expand;
mod group;

mod list;
mod provision;
mod snapshot;

pub use list::{Page, VolumeEntry};
pub use snapshot::SnapshotFilter;

/// CreateVolume.
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

/// ControllerPublishVolume.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    pub handle: Handle,
    pub node: NodeId,
    pub capability: Capability,
    pub read_only: bool,
    pub volume_context: BTreeMap<String, String>,
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

/// For a controller without a node: it can freeze nothing, and who can write to a volume is unknown to it ([`FreezeGuard::writers`]).
struct NoNode;

impl Quiesce for NoNode {
    fn freeze(&self, _volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        Ok(Box::new(NoNode))
    }
}

impl FreezeGuard for NoNode {
    fn release(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Controller {
    pub fn new(registry: Registry, locks: Locks, node: Option<Arc<Node>>) -> Controller {
        Controller { registry, locks, node }
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What is wrong with a volume.
    pub fn health(&self, id: &VolumeId) -> Result<Health> {
        let backend = self.backend(id.backend())?;
        match backend.health() {
            Some(health) => health.volume_health(id),
            None => self.existing(backend, id).map(|_| Health::new()),
        }
    }

    /// Sets parameters that may change during a volume's life.
    pub fn modify(&self, id: &VolumeId, parameters: &RawParameters) -> Result<Outcome<()>> {
        let backend = self.backend(id.backend())?;
        let _volume = self.lock_change(backend, id, "modify volume")?;
        self.existing(backend, id)?;
        if parameters.is_empty() {
            return Ok(Outcome::Unchanged(()));
        }
        let modify = backend.modify().ok_or_else(|| unsupported(backend, "modifying a volume"))?;
        modify.check(parameters)?;
        let outcome = modify.modify(id, parameters)?;
        if let Some(node) = &self.node {
            node.apply_io_limits(id)?;
        }
        Ok(outcome)
    }

    /// Whether the volume can be used as requested: `None` is yes; else why not (ValidateVolumeCapabilities).
    pub fn validate(
        &self,
        handle: &Handle,
        capabilities: &[Capability],
        volume_context: &BTreeMap<String, String>,
        parameters: &RawParameters,
    ) -> Result<Option<String>> {
        let refused = |backend: &Arc<dyn Backend>| {
            capabilities.iter().find_map(|capability| check_capability(backend.as_ref(), capability).err())
        };
        let (id, backend) = match self.whose(handle, volume_context)? {
            Whose::Ours(id, backend) => (id, backend),
            Whose::Static(backend) => {
                let attributes = Parameters::from_context(backend.as_ref(), volume_context).err();
                return Ok(refused(backend).or(attributes).map(|why| why.to_string()));
            }
        };
        let volume = self.existing(backend, id)?;
        if let Some(why) = refused(backend) {
            return Ok(Some(why.to_string()));
        }
        if volume.for_one_node && several_nodes(capabilities) {
            return Ok(Some("it was made for one node".to_owned()));
        }
        let kept = <Parameters as serde::Deserialize>::deserialize(&*volume.parameters)
            .map_err(|error| Error::failed("read parameters", id.to_string(), error))?;
        let least = kept.least(backend.as_ref(), capabilities);
        if least > volume.capacity {
            return Ok(Some(format!("{} is too small: it takes {least}", volume.capacity)));
        }
        if let Some(reported) = volume_context.get(CONTEXT_KEY)
            && serde_json::from_str::<serde_json::Value>(reported).ok().as_ref() != Some(&*volume.parameters)
        {
            return Ok(Some(format!("volume_context {CONTEXT_KEY} is {reported}, the volume has {}", volume.parameters)));
        }
        if !parameters.is_empty() {
            let wanted = Parameters::parse(&self.registry, parameters).map(|(_, parameters)| parameters.to_json());
            match wanted {
                Ok(wanted) if requested(backend, &wanted) == requested(backend, &volume.parameters) => {}
                Ok(wanted) => return Ok(Some(format!("parameters are {wanted}, the volume has {}", volume.parameters))),
                Err(error) => return Ok(Some(error.to_string())),
            }
        }
        Ok(None)
    }

    /// Who has the volume, by its handle and its attributes.
    ///
    /// # Errors
    /// `NotFound` where it can be no backend's.
    fn whose<'a>(&'a self, handle: &'a Handle, context: &BTreeMap<String, String>) -> Result<Whose<'a>> {
        match (handle, static_volume_backend(&self.registry, context)) {
            (_, Some(backend)) => Ok(Whose::Static(backend)),
            (Handle::Id(id), None) => Ok(Whose::Ours(id, self.backend(id.backend())?)),
            (Handle::Name(name), None) => Err(Error::NotFound { kind: "volume", id: name.clone() }),
        }
    }

    /// # Errors
    /// `BackendUnavailable`, not `NotFound`: what lies in a backend that is not configured here may well exist.
    fn backend(&self, name: &BackendName) -> Result<&Arc<dyn Backend>> {
        self.registry.get(name).ok_or_else(|| Error::BackendUnavailable {
            backend: name.to_string(),
            reason: "it is not in this driver's configuration; add it there, or ask the driver that has it".to_owned(),
        })
    }

    fn quiesce(&self) -> Result<&dyn Quiesce> {
        match &self.node {
            Some(node) => node.quiesce(),
            None => Ok(&NoNode),
        }
    }

    /// # Errors
    /// `NotFound`.
    fn existing(&self, backend: &Arc<dyn Backend>, id: &VolumeId) -> Result<Volume> {
        provision(backend)?.find(id)?.ok_or_else(|| Error::volume_not_found(id))
    }
}

/// Whose a volume is.
enum Whose<'a> {
    /// Made by this driver.
    Ours(&'a VolumeId, &'a Arc<dyn Backend>),
    /// A static volume: it is only connected, on the node.
    Static(&'a Arc<dyn Backend>),
}

fn provision(backend: &Arc<dyn Backend>) -> Result<&dyn Provision> {
    backend.provision().ok_or_else(|| unsupported(backend, "provisioning"))
}

fn unsupported(backend: &Arc<dyn Backend>, what: &str) -> Error {
    Error::Unsupported { what: what.to_owned(), reason: format!("backend {} ({}) cannot do it", backend.name(), backend.kind()) }
}

fn several_nodes(capabilities: &[Capability]) -> bool {
    capabilities.iter().any(|capability| !capability.mode.is_single_node())
}

/// Parameters as a request could have had them: without what the backend filled in when it made the volume.
fn requested(backend: &Arc<dyn Backend>, parameters: &serde_json::Value) -> serde_json::Value {
    with_own_part(parameters, |own| backend.requested_parameters(own))
}

/// Whether what lies in this backend can be reached from where it is asked for.
fn check_place(backend: &Arc<dyn Backend>, wanted: &TopologyRequirement) -> Result<()> {
    if !backend.is_local() {
        return Ok(());
    }
    match backend.topology()?.filter(|place| !wanted.accepts(place)) {
        None => Ok(()),
        Some(place) => Err(not_there(wanted, format!("backend {} is only in {:?}", backend.name(), place.segments()))),
    }
}

/// By which the CO chooses another place (CSI, CreateVolume: "Unable to provision in `accessible_topology`").
fn not_there(wanted: &TopologyRequirement, reason: String) -> Error {
    Error::NoCapacity { place: format!("the topology asked for ({:?})", wanted.requisite), reason }
}

/// The id of the snapshot of `source` in a group: a digest of both names, so that no plain snapshot's name can meet it.
fn member_id(group: &str, source: &VolumeId) -> (SnapshotId, String) {
    let name = format!("{group}/{}", source.local());
    (SnapshotId::derive(source.backend(), &name), name)
}

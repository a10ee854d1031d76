//! The backend of any cloud.
//!
//! What must be known again lies with the cloud, in tags. What this process remembers makes it faster, or lets it question a
//! description that is out of date; it never takes the place of one.

use std::sync::Arc;

use serde_json::Value;

use crate::backend::{
    Attach, Backend, ChangedBlocks, Compare, Connect, Expand, Modify, Provision, ReportHealth, Snapshots, Usage,
};
use crate::volume::{AccessMode, BackendName, Bytes, Capability, Error, Outcome, RawParameters, Result, Topology, VolumeId};

use super::api::Cloud;
use super::clock::Clock;
use super::controller::Controller;
use super::existing::{self, ExistingDisks, NamedDisk};
use super::policy::Policy;
use super::tags::Owner;

/// Of what a backend is made.
pub struct CloudOptions {
    pub name: BackendName,
    /// Who owns what is made: in every tag, and alone deleted.
    pub cluster: String,
    /// What is done with disks that were made by other programs, and how they are known; `None`: nothing.
    pub existing: Option<(ExistingDisks, NamedDisk)>,
    pub policy: Arc<dyn Policy>,
    /// `None` where this process only serves a node, and asks the cloud nothing.
    pub cloud: Option<Arc<dyn Cloud>>,
    pub connect: Box<dyn Connect>,
    pub clock: Clock,
}

/// A cloud's disks as volumes.
pub struct CloudBackend {
    name: BackendName,
    existing: Option<NamedDisk>,
    policy: Arc<dyn Policy>,
    connect: Box<dyn Connect>,
    controller: Option<Controller>,
}

impl CloudBackend {
    pub fn new(parts: CloudOptions) -> CloudBackend {
        let CloudOptions { name, cluster, existing, policy, cloud, connect, clock } = parts;
        let (existing, named) = existing.unzip();
        let controller = cloud.map(|cloud| {
            let owner = Owner { backend: name.clone(), cluster, longest_value: cloud.constants().longest_value, existing };
            Controller::new(owner, Arc::clone(&policy), cloud, clock)
        });
        CloudBackend { name, existing: named, policy, connect, controller }
    }

    pub(super) fn controller_as<'a, T: ?Sized>(&'a self, part: impl FnOnce(&'a Controller) -> &'a T) -> Option<&'a T> {
        self.controller.as_ref().map(part)
    }
}

impl Backend for CloudBackend {
    fn name(&self) -> &BackendName {
        &self.name
    }

    fn kind(&self) -> &'static str {
        self.policy.kind()
    }

    fn probe(&self) -> Result<()> {
        self.controller.as_ref().map_or(Ok(()), Controller::probe)
    }

    fn access_modes(&self) -> &[AccessMode] {
        self.policy.access_modes()
    }

    fn check_capability(&self, capability: &Capability) -> Result<()> {
        self.policy.check_capability(capability)
    }

    fn parameters(&self, raw: &RawParameters) -> Result<Value> {
        self.policy.parameters(raw)
    }

    fn parse_static_attributes(&self, raw: &RawParameters) -> Result<Value> {
        match self.existing {
            Some(_) => existing::parse_attributes(raw),
            None => self.policy.parameters(raw),
        }
    }

    fn existing_volume(&self, handle: &str) -> Option<VolumeId> {
        let disk = self.existing.as_ref()?(handle)?;
        VolumeId::existing(&self.name, &disk.0).ok()
    }

    fn has_unlisted_volumes(&self) -> bool {
        self.existing.is_some()
    }

    fn requested_parameters(&self, made: &Value) -> Value {
        self.policy.requested_parameters(made)
    }

    fn topology(&self) -> Result<Option<Topology>> {
        self.policy.topology()
    }

    fn has_topology(&self) -> bool {
        self.policy.has_topology()
    }

    fn is_local(&self) -> bool {
        false
    }

    fn usage(&self) -> Usage {
        Usage { pools: Vec::new(), attachments: self.controller.as_ref().and_then(|controller| controller.history.attachments()) }
    }

    fn provision(&self) -> Option<&dyn Provision> {
        self.controller_as(|controller| controller as _)
    }
    fn expand(&self) -> Option<&dyn Expand> {
        // Also on a node: growing what is on a volume is its half, and from this it says that it can.
        Some(self)
    }
    fn modify(&self) -> Option<&dyn Modify> {
        self.controller_as(|controller| controller as _)
    }
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.controller_as(|controller| controller as _)
    }
    fn changed_blocks(&self) -> Option<&dyn ChangedBlocks> {
        self.controller_as(|controller| controller as _).filter(|_| self.policy.has_changed_blocks())
    }
    fn attach(&self) -> Option<&dyn Attach> {
        self.controller_as(|controller| controller as _)
    }
    fn health(&self) -> Option<&dyn ReportHealth> {
        self.controller_as(|controller| controller as _)
    }
    fn compare(&self) -> Option<&dyn Compare> {
        self.controller.as_ref().map(|_| self as &dyn Compare)
    }
    fn connect(&self) -> &dyn Connect {
        self.connect.as_ref()
    }
}

impl Expand for CloudBackend {
    fn expand(&self, id: &VolumeId, capacity: Bytes) -> Result<Outcome<Bytes>> {
        match &self.controller {
            Some(controller) => controller.expand(id, capacity),
            None => Err(Error::Unsupported {
                what: format!("expanding volume {id}"),
                reason: "the controller does it, which this is not".to_owned(),
            }),
        }
    }

    fn joins_changes(&self) -> bool {
        true
    }
}

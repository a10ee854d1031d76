//! Directories of a node's own file system.
//!
//! The controller's side is [`super::directories`]'s: a directory per volume in a base directory (a subvolume on btrfs), snapshots and clones
//! by copying (reflinks where the file system has them; snapshots of subvolumes), deletion in the background, capacities by project quotas.
//! A node binds the directory ([`connect`]).
//! Volumes that are made lie in the base directory; a static volume is any directory below one that the configuration allows.
//!
//! Invariants:
//! - Nothing is made, found or shown in a base directory that is not the one that was recorded ([`location`]).
//! - No link is followed and no mount entered on the way from the base or the allowed directory to a volume's own.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use crate::volume::{AccessMode, AccessType, BackendName, Bytes, Capability, Error, RawParameters, Result, Topology};

use super::configuration::{Configuration, of_type};
use super::directories::{Base, Controller, Location, Medium};
use super::local::topology_of;
use super::{
    ApplySettings, Backend, BlockDevice, Connect, Exclusive, Expand, Inspect, Modify, Provision, ReportHealth, Role, Snapshots,
    Survey, Usage,
};

pub mod config;
mod connect;
mod flags;
mod location;
mod row;

pub use config::{DirectoryConfig, DirectoryParameters, QuotaMode};
use location::BaseLocation;

/// A backend of directories of this node.
#[derive(Debug)]
pub struct DirectoryBackend {
    config: DirectoryConfig,
    topology: Option<Topology>,
    /// The base directory, to be looked at.
    base: Base,
    location: Arc<dyn Location>,
    /// Where this process provisions.
    controller: Option<Controller>,
}

impl DirectoryBackend {
    /// Nothing is opened yet. `state` is the driver's own directory.
    ///
    /// # Errors
    /// `Invalid`, naming the field of the configuration.
    pub fn open(config: DirectoryConfig, role: Role, state: &Path) -> Result<DirectoryBackend> {
        config.validate()?;
        let topology = topology_of(config.node.as_ref());
        let location: Arc<dyn Location> = Arc::new(BaseLocation::new(config.clone()));
        let base = Base::new(Arc::clone(&location), &config.name, state);
        let controller =
            role.provision.then(|| Controller::new(&config.name, vec![Arc::clone(&location)], topology.clone(), state));
        Ok(DirectoryBackend { config, topology, base, location, controller })
    }
}

impl Backend for DirectoryBackend {
    fn name(&self) -> &BackendName {
        &self.config.name
    }

    fn kind(&self) -> &'static str {
        DirectoryConfig::KIND
    }

    fn probe(&self) -> Result<()> {
        self.controller.as_ref().map_or(Ok(()), Controller::probe)
    }

    fn access_modes(&self) -> &[AccessMode] {
        // Of as many pods as there are, on the one node.
        &AccessMode::ALL
    }

    fn check_capability(&self, capability: &Capability) -> Result<()> {
        match &capability.access {
            AccessType::Block => Err(Error::Unsupported {
                what: "raw block".to_owned(),
                reason: format!("backend {} has directories, not devices", self.config.name),
            }),
            AccessType::Filesystem { mount_flags, .. } => flags::check_flags(mount_flags),
        }
    }

    fn least_size(&self, _capability: &Capability) -> Bytes {
        Bytes::MIB
    }

    fn parameters(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let parameters = DirectoryParameters::of_class(raw)?;
        serde_json::to_value(parameters).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    fn parse_static_attributes(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let parameters: DirectoryParameters = raw.parse()?;
        if parameters.medium == Medium::Memory {
            return Err(Error::invalid("volume_context.medium", "memory is a medium of ephemeral inline volumes alone"));
        }
        let path = parameters.path.as_deref().unwrap_or_default();
        self.config.static_directory(path)?;
        serde_json::to_value(parameters).map_err(|error| Error::invalid("volume_context", error.to_string()))
    }

    fn accepts_static(&self, attributes: &RawParameters) -> bool {
        attributes.get("path").is_some()
    }

    fn topology(&self) -> Result<Option<Topology>> {
        Ok(self.topology.clone())
    }

    fn reload(&self, configuration: &dyn Any) -> Result<ApplySettings<'_>> {
        let config: &DirectoryConfig = of_type(configuration)?;
        let capacity = config.capacity;
        Ok(match &self.controller {
            Some(controller) => controller.apply_capacities(vec![capacity]),
            None => Box::new(|| {}),
        })
    }

    fn usage(&self) -> Usage {
        self.controller.as_ref().map_or_else(Usage::default, Controller::usage)
    }

    fn exclusive(&self) -> Option<&dyn Exclusive> {
        self.controller.as_ref().map(|controller| controller as &dyn Exclusive)
    }
    fn provision(&self) -> Option<&dyn Provision> {
        self.controller.as_ref().map(|controller| controller as &dyn Provision)
    }
    fn expand(&self) -> Option<&dyn Expand> {
        self.controller.as_ref().map(|controller| controller as &dyn Expand)
    }
    fn modify(&self) -> Option<&dyn Modify> {
        self.controller.as_ref().map(|controller| controller as &dyn Modify)
    }
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.controller.as_ref().map(|controller| controller as &dyn Snapshots)
    }
    fn health(&self) -> Option<&dyn ReportHealth> {
        self.controller.as_ref().map(|controller| controller as &dyn ReportHealth)
    }
    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
    fn connect(&self) -> &dyn Connect {
        self
    }
}

impl Inspect for DirectoryBackend {
    fn survey(&self) -> Result<Survey> {
        let mut survey = Survey::default();
        if let Err(error) = self.base.survey(&mut survey) {
            survey.unseen.push((format!("base directory {}", self.config.path.display()), error.to_string()));
        }
        Ok(survey)
    }

    /// A directory is bound: there is no device.
    fn release(&self, device: &BlockDevice) -> Result<()> {
        let reason = format!("backend {} has directories, not devices", self.config.name);
        Err(Error::Unsupported { what: format!("taking {} away", device.path.display()), reason })
    }
}

//! Directories of NFS shares.
//!
//! - A node has one kernel mount for each server, share and set of options, whatever number of volumes uses it ([`connect`]).
//! - The controller mounts its shares where nobody else sees them ([`location`]), and makes a directory per volume, as
//!   [`super::directories`] does it.

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::os;
use crate::os::single_flight::SingleFlight;
use crate::volume::{AccessMode, AccessType, BackendName, Bytes, Capability, Error, RawParameters, Result};

use super::configuration::{Configuration, of_type};
use super::directories::subdir;
use super::directories::{Controller, Location, Silence};
use super::{ApplySettings, Backend, Connect, Exclusive, Expand, Modify, Provision, ReportHealth, Role, Snapshots, Usage};

pub mod config;
mod connect;
mod export;
mod location;
mod options;
mod row;
mod shared_connections;
mod shares;

pub use super::directories::DirectorySnapshotParameters as NfsSnapshotParameters;
pub(super) use config::requested_parameters;
pub use config::{NfsConfig, NfsParameters, ShareConfig};
use export::Export;
use location::{Access, ShareLocation};
use options::OptionRules;
use shares::Shares;

/// A backend of shares.
#[derive(Debug)]
pub struct NfsBackend {
    config: NfsConfig,
    /// Those in force, which a reload changes; `config` has those of the start.
    option_rules: Mutex<Arc<OptionRules>>,
    shares: Shares,
    /// By the place of a share's mount.
    checks: SingleFlight<Silence>,
    /// Where this process provisions, and there are shares to do it on.
    controller: Option<Controller>,
}

impl NfsBackend {
    /// No server is asked anything yet.
    ///
    /// # Errors
    /// `Invalid`, naming the field of the configuration.
    pub fn open(config: NfsConfig, role: Role, state: &Path) -> Result<NfsBackend> {
        config.validate()?;
        let shares = Shares::new(state.join("nfs").join(config.name.as_str()));
        let provisions = role.provision && !config.shares.is_empty();
        let controller = provisions.then(|| controller(&config, state)).transpose()?;
        let option_rules = Mutex::new(Arc::new(config.option_rules()));
        Ok(NfsBackend { config, option_rules, shares, checks: SingleFlight::default(), controller })
    }

    fn option_rules(&self) -> Arc<OptionRules> {
        Arc::clone(&os::lock(&self.option_rules))
    }
}

impl Backend for NfsBackend {
    fn name(&self) -> &BackendName {
        &self.config.name
    }

    fn kind(&self) -> &'static str {
        NfsConfig::KIND
    }

    fn probe(&self) -> Result<()> {
        self.controller.as_ref().map_or(Ok(()), Controller::probe)
    }

    fn access_modes(&self) -> &[AccessMode] {
        // A file share is for everyone.
        &AccessMode::ALL
    }

    fn check_capability(&self, capability: &Capability) -> Result<()> {
        match &capability.access {
            AccessType::Block => Err(Error::Unsupported {
                what: "raw block".to_owned(),
                reason: format!("backend {} has directories of file shares", self.config.name),
            }),
            AccessType::Filesystem { mount_flags, .. } => options::check(&self.option_rules(), mount_flags).map(drop),
        }
    }

    fn least_size(&self, _capability: &Capability) -> Bytes {
        Bytes::MIB
    }

    fn parameters(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let parameters = NfsParameters::of_class(raw)?;
        if self.controller.is_some() {
            self.config.check_share(&parameters)?;
        }
        serde_json::to_value(parameters).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    fn requested_parameters(&self, made: &serde_json::Value) -> serde_json::Value {
        requested_parameters(made)
    }

    fn parse_static_attributes(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let mut parameters: NfsParameters = raw.parse()?;
        Export::new(&parameters.server, &parameters.share)?;
        subdir::directory(parameters.sub_dir.get_or_insert_default())?;
        serde_json::to_value(parameters).map_err(|error| Error::invalid("volume_context", error.to_string()))
    }

    fn accepts_static(&self, attributes: &RawParameters) -> bool {
        attributes.get("server").is_some() && attributes.get("share").is_some()
    }

    fn reload(&self, configuration: &dyn Any) -> Result<ApplySettings<'_>> {
        let config: &NfsConfig = of_type(configuration)?;
        let rules = Arc::new(config.option_rules());
        let capacities = self.controller.as_ref().map(|controller| controller.apply_capacities(config.capacities()));
        Ok(Box::new(move || {
            *os::lock(&self.option_rules) = rules;
            capacities.into_iter().for_each(|apply| apply());
        }))
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
    fn connect(&self) -> &dyn Connect {
        self
    }
}

/// The controller of its shares. `state` is a directory of the driver's own.
fn controller(config: &NfsConfig, state: &Path) -> Result<Controller> {
    let at = state.join("nfs-mount");
    match rustix::fs::mkdir(&at, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(os::Error::io("make directory", &at, errno).into()),
    }
    Ok(Controller::new(&config.name, locations(config, |_| Access::Mount { at: at.clone() }), None, state))
}

fn locations(config: &NfsConfig, access: impl Fn(usize) -> Access) -> Vec<Arc<dyn Location>> {
    let locations = config.shares.iter().enumerate();
    locations.map(|(number, share)| Arc::new(ShareLocation::new(share.clone(), access(number))) as Arc<dyn Location>).collect()
}

/// Shares that are directories of this machine.
#[cfg(test)]
pub(super) fn locations_on(config: &NfsConfig, directories: &[std::path::PathBuf]) -> Vec<Arc<dyn Location>> {
    locations(config, |number| Access::Directory(directories[number].clone()))
}

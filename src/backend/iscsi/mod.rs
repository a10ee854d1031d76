//! iSCSI: what any target serves, and any Linux machine as a target server.
//!
//! - On a node: sessions, and the devices that come with them ([`connect`]).
//! - On the target server: image files by the code of the `image` backend, exported through the kernel's target (LIO).
//! - What the one tells the other is an [`Attachment`].

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::os;
use crate::volume::{
    AccessMode, AccessType, BackendName, Bytes, Capability, Error, NodeId, Outcome, RawParameters, Result, VolumeId,
};

use super::configuration::{Configuration, of_type};
use super::keyed_mutex::KeyedMutex;
use super::{
    ApplySettings, Attach, Backend, ChangedBlocks, Connect, Exclusive, Expand, FirstLock, Groups, Inspect, Modify, Provision,
    ReportHealth, Role, Snapshots, Usage,
};

mod allowed;
mod attachment;
pub mod config;
mod connect;
mod connections;
mod doctor;
mod health;
mod login;
mod parameters;
mod release;
mod row;
mod san;
mod shared_connections;
mod way;

pub use attachment::{Attachment, Chap, initiator_name};
pub use config::IscsiConfig;
pub use parameters::IscsiParameters;

use allowed::AllowedPortals;
use connections::Connections;
use san::TargetServer;

const ACCESS_MODES: [AccessMode; 6] = [
    AccessMode::SingleNodeWriter,
    AccessMode::SingleNodeReaderOnly,
    AccessMode::SingleNodeSingleWriter,
    AccessMode::SingleNodeMultiWriter,
    AccessMode::MultiNodeReaderOnly,
    AccessMode::MultiNodeMultiWriter,
];

/// A backend of LUNs.
#[derive(Debug)]
pub struct IscsiBackend {
    config: IscsiConfig,
    /// Those in force, which a reload changes; `config` has those of the start.
    allowed: Mutex<Arc<AllowedPortals>>,
    node: NodeId,
    /// The driver's state directory.
    state: PathBuf,
    /// What is connected on this node.
    connections: Connections,
    locks: KeyedMutex,
    /// Where this process is the target server's.
    san: Option<Arc<TargetServer>>,
}

impl IscsiBackend {
    /// # Errors
    /// `Invalid`, naming the field of the configuration.
    pub fn open(config: IscsiConfig, role: Role, node: NodeId, state: &Path) -> Result<IscsiBackend> {
        config.validate()?;
        let provisions = role.provision && !config.pools.is_empty();
        let san = provisions.then(|| TargetServer::open(config.clone(), state)).transpose()?;
        Self::with(config, san, node, state)
    }

    /// To look at sessions and, on the target server, at what it has: nothing is made, ended, exported or locked.
    ///
    /// # Errors
    /// As `open`; `InProgress` where the file system of a pool gives no answer.
    pub fn open_to_look(config: IscsiConfig, node: NodeId, state: &Path) -> Result<IscsiBackend> {
        config.validate()?;
        let san = if config.pools.is_empty() { None } else { TargetServer::open_to_look(config.clone())? };
        Self::with(config, san, node, state)
    }

    fn with(config: IscsiConfig, san: Option<Arc<TargetServer>>, node: NodeId, state: &Path) -> Result<IscsiBackend> {
        let connections = Connections::open(state.join("iscsi").join(config.name.as_str()));
        let allowed = Mutex::new(Arc::new(config.allowed()?));
        Ok(IscsiBackend { config, allowed, node, state: state.to_owned(), connections, locks: KeyedMutex::default(), san })
    }

    fn allowed(&self) -> Arc<AllowedPortals> {
        Arc::clone(&os::lock(&self.allowed))
    }
}

impl Backend for IscsiBackend {
    fn name(&self) -> &BackendName {
        &self.config.name
    }

    fn kind(&self) -> &'static str {
        IscsiConfig::KIND
    }

    fn probe(&self) -> Result<()> {
        self.san.as_ref().map_or(Ok(()), |san| san.probe())
    }

    fn is_usable_in_part(&self) -> bool {
        self.san.as_ref().is_some_and(|san| san.is_usable_in_part())
    }

    fn access_modes(&self) -> &[AccessMode] {
        &ACCESS_MODES
    }

    fn check_capability(&self, capability: &Capability) -> Result<()> {
        if capability.mode == AccessMode::MultiNodeMultiWriter && capability.access != AccessType::Block {
            let reason = "a file system of one node's is destroyed by a second writer; use volumeMode Block, or one node";
            return Err(Error::invalid("volume_capability.access_mode", reason));
        }
        Ok(())
    }

    fn parameters(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        match &self.san {
            Some(san) => san.images.parameters(raw),
            None if raw.is_empty() => Ok(serde_json::Value::Null),
            None => {
                Err(Error::invalid("parameters", format!("{raw:?}: backend {} has no pools here, and knows none", self.name())))
            }
        }
    }

    fn accepts_static(&self, attributes: &RawParameters) -> bool {
        IscsiParameters::accepts_static(attributes)
    }

    fn parse_static_attributes(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        if !IscsiParameters::accepts_static(raw) {
            return self.parameters(raw);
        }
        let parameters = IscsiParameters::parse(raw)?;
        serde_json::to_value(parameters).map_err(|error| Error::invalid("volume_context", error.to_string()))
    }

    fn health(&self) -> Option<&dyn ReportHealth> {
        Some(self)
    }

    fn reload(&self, configuration: &dyn Any) -> Result<ApplySettings<'_>> {
        let config: &IscsiConfig = of_type(configuration)?;
        let allowed = Arc::new(config.allowed()?);
        let limits = self.san.as_ref().map(|san| san.images.apply_limits(&config.pools));
        Ok(Box::new(move || {
            *os::lock(&self.allowed) = allowed;
            limits.into_iter().for_each(|apply| apply());
        }))
    }

    fn usage(&self) -> Usage {
        self.san.as_ref().map(|san| san.usage()).unwrap_or_default()
    }

    fn exclusive(&self) -> Option<&dyn Exclusive> {
        self.san.is_some().then_some(self)
    }
    fn provision(&self) -> Option<&dyn Provision> {
        self.san.as_ref().map(|san| &**san as _)
    }
    fn expand(&self) -> Option<&dyn Expand> {
        // Also where it only connects: growing what is on a volume is the node's half, and from this the node says that it can.
        Some(self)
    }
    fn modify(&self) -> Option<&dyn Modify> {
        self.san.as_ref().and_then(|san| Backend::modify(&san.images))
    }
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.san.as_ref().map(|san| &**san as _)
    }
    fn groups(&self) -> Option<&dyn Groups> {
        self.san.as_ref().map(|san| &**san as _)
    }
    fn changed_blocks(&self) -> Option<&dyn ChangedBlocks> {
        self.san.as_ref().and_then(|san| san.images.changed_blocks())
    }
    fn attach(&self) -> Option<&dyn Attach> {
        self.san.as_ref().map(|san| &**san as _)
    }
    fn inspect(&self) -> Option<&dyn Inspect> {
        self.san.as_ref().map(|san| &**san as _)
    }
    fn connect(&self) -> &dyn Connect {
        self
    }
}

impl Exclusive for IscsiBackend {
    fn stand_by(&self) {
        if let Some(san) = &self.san {
            san.images.stand_by();
        }
    }

    fn first_lock(&self, until: Instant) -> Result<FirstLock> {
        self.san.as_ref().map_or(Ok(FirstLock::Away), |san| san.images.first_lock(until))
    }

    fn lost(&self, until: Instant) -> Option<String> {
        self.san.as_ref().and_then(|san| san.images.lost(until))
    }

    fn lead(&self) -> Result<()> {
        self.san.as_ref().map_or(Ok(()), |san| san.lead())
    }
}

impl Expand for IscsiBackend {
    fn expand(&self, id: &VolumeId, capacity: Bytes) -> Result<Outcome<Bytes>> {
        match &self.san {
            Some(san) => san.expand(id, capacity),
            None => Err(Error::Unsupported {
                what: format!("expanding volume {id}"),
                reason: "its target server does it, which this is not".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_portals_of_a_reload_hold_from_then_on() {
        let state = tempfile::tempdir().expect("a directory");
        let config = |allowed: &str| -> IscsiConfig {
            serde_yaml_ng::from_str(&format!("{{name: san, allowedPortals: [{allowed}]}}")).expect("fields")
        };
        let node = "node-1".parse().expect("a node id");
        let backend = IscsiBackend::open(config("192.0.2.0/24"), Role { provision: false }, node, state.path()).expect("opened");
        let (one, other) = ("192.0.2.1:3260".parse().expect("an address"), "198.51.100.1:3260".parse().expect("an address"));
        let prepared = backend.reload(&config("198.51.100.0/24")).expect("valid");
        assert!(backend.allowed().permits(one) && !backend.allowed().permits(other), "prepared, not applied");
        prepared();
        assert!(!backend.allowed().permits(one) && backend.allowed().permits(other));
        assert!(backend.reload(&config("nowhere")).is_err());
        assert!(backend.reload(&"another type").is_err());
    }
}

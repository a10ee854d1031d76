//! iSCSI: what any target serves, and any Linux machine as a storage machine.
//!
//! - On a node: sessions, and the devices that come with them ([`connect`]).
//! - On the storage machine: image files by the code of the `image` backend, exported through the kernel's target (LIO).
//! - What the one tells the other is an [`Attachment`].

use std::path::{Path, PathBuf};

use crate::volume::{AccessMode, BackendName, Error, NodeId, RawParameters, Result};

use super::image::Role;
use super::{Backend, Connect, ReportHealth};

mod attachment;
pub mod config;
mod connect;
mod health;
mod login;
mod memory;
mod parameters;
mod release;
mod turns;
mod way;

pub use attachment::{Attachment, Chap, initiator_name};
pub use config::IscsiConfig;
pub use parameters::IscsiParameters;

use memory::Memory;
use turns::Turns;

/// A backend of LUNs.
#[derive(Debug)]
pub struct IscsiBackend {
    config: IscsiConfig,
    node: NodeId,
    /// The driver's state folder.
    state: PathBuf,
    /// What is connected on this node.
    memory: Memory,
    turns: Turns,
}

impl IscsiBackend {
    /// # Errors
    /// `Invalid`, naming the field of the configuration.
    pub fn open(config: IscsiConfig, _role: Role, node: NodeId, state: &Path) -> Result<IscsiBackend> {
        config.validate()?;
        let memory = Memory::open(state.join("iscsi").join(config.name.as_str()));
        Ok(IscsiBackend { config, node, state: state.to_owned(), memory, turns: Turns::default() })
    }
}

impl Backend for IscsiBackend {
    fn name(&self) -> &BackendName {
        &self.config.name
    }

    fn kind(&self) -> &'static str {
        "iscsi"
    }

    fn probe(&self) -> Result<()> {
        Ok(())
    }

    fn access_modes(&self) -> &[AccessMode] {
        &AccessMode::SINGLE_NODE
    }

    fn describes(&self, attributes: &RawParameters) -> bool {
        IscsiParameters::describes(attributes)
    }

    fn attributes(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        if !IscsiParameters::describes(raw) {
            return self.parameters(raw);
        }
        let parameters = IscsiParameters::parse(raw)?;
        serde_json::to_value(parameters).map_err(|error| Error::invalid("volume_context", error.to_string()))
    }

    fn health(&self) -> Option<&dyn ReportHealth> {
        Some(self)
    }

    fn expand(&self) -> Option<&dyn super::Expand> {
        // Also where it only connects: growing what is on a volume is the node's half, and from this the node says that it can.
        Some(self)
    }
    fn connect(&self) -> &dyn Connect {
        self
    }
}

impl super::Expand for IscsiBackend {
    fn expand(
        &self,
        id: &crate::volume::VolumeId,
        _capacity: crate::volume::Bytes,
    ) -> Result<crate::volume::Outcome<crate::volume::Bytes>> {
        Err(Error::Unsupported {
            what: format!("expanding volume {id}"),
            reason: "its storage machine does it, which this is not".to_owned(),
        })
    }
}

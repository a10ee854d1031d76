//! iSCSI: what any target serves, and any Linux machine as a storage machine.
//!
//! - On a node: sessions, and the devices that come with them ([`connect`]).
//! - On the storage machine: image files by the code of the `image` backend, exported through the kernel's target (LIO).
//! - What the one tells the other is an [`Attachment`].

use std::path::Path;

use crate::volume::{AccessMode, BackendName, NodeId, RawParameters, Result};

use super::image::Role;
use super::{Backend, Connect};

mod attachment;
pub mod config;
mod connect;

pub use attachment::{Attachment, Chap, initiator_name};
pub use config::IscsiConfig;

/// A backend of LUNs.
#[derive(Debug)]
pub struct IscsiBackend {
    config: IscsiConfig,
}

impl IscsiBackend {
    /// # Errors
    /// `Invalid`, naming the field of the configuration.
    pub fn open(config: IscsiConfig, _role: Role, _node: NodeId, _state: &Path) -> Result<IscsiBackend> {
        config.validate()?;
        Ok(IscsiBackend { config })
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
        attributes.get("targetPortal").is_some() && attributes.get("iqn").is_some()
    }

    fn connect(&self) -> &dyn Connect {
        self
    }
}

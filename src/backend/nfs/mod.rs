//! Folders of NFS shares.
//!
//! - A node has one kernel mount for each server, share and set of options, whatever number of volumes uses it ([`connect`]).
//! - The controller mounts its shares where nobody else sees them, and makes a folder per volume.

use std::path::Path;

use crate::os::answers::Answers;
use crate::volume::{AccessMode, AccessType, BackendName, Capability, Error, RawParameters, Result};

use super::image::Role;
use super::{Backend, Connect};

pub mod config;
mod connect;
mod export;
mod options;
mod shares;

pub use config::{NfsConfig, NfsParameters, ShareConfig};
use connect::Silence;
use export::Export;
use shares::Shares;

/// A file share is for everyone.
const ACCESS_MODES: [AccessMode; 7] = [
    AccessMode::SingleNodeWriter,
    AccessMode::SingleNodeReaderOnly,
    AccessMode::SingleNodeSingleWriter,
    AccessMode::SingleNodeMultiWriter,
    AccessMode::MultiNodeReaderOnly,
    AccessMode::MultiNodeSingleWriter,
    AccessMode::MultiNodeMultiWriter,
];

/// A backend of shares.
#[derive(Debug)]
pub struct NfsBackend {
    config: NfsConfig,
    shares: Shares,
    /// By the place of a share's mount.
    answers: Answers<Silence>,
}

impl NfsBackend {
    /// No server is asked anything yet.
    ///
    /// # Errors
    /// `Invalid`, naming the field of the configuration.
    pub fn open(config: NfsConfig, _role: Role, state: &Path) -> Result<NfsBackend> {
        config.validate()?;
        let shares = Shares::new(state.join("nfs").join(config.name.as_str()));
        Ok(NfsBackend { config, shares, answers: Answers::default() })
    }
}

impl Backend for NfsBackend {
    fn name(&self) -> &BackendName {
        &self.config.name
    }

    fn kind(&self) -> &'static str {
        "nfs"
    }

    fn probe(&self) -> Result<()> {
        Ok(())
    }

    fn access_modes(&self) -> &[AccessMode] {
        &ACCESS_MODES
    }

    fn check_capability(&self, capability: &Capability) -> Result<()> {
        match &capability.access {
            AccessType::Block => Err(Error::Unsupported {
                what: "raw block".to_owned(),
                reason: format!("backend {} has folders of file shares", self.config.name),
            }),
            AccessType::Filesystem { mount_flags, .. } => options::check(&self.config, mount_flags).map(drop),
        }
    }

    fn parameters(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let parameters: NfsParameters = raw.parse()?;
        serde_json::to_value(parameters).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    fn attributes(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let mut parameters: NfsParameters = raw.parse()?;
        Export::new(&parameters.server, &parameters.share)?;
        export::folder(parameters.sub_dir.get_or_insert_default())?;
        serde_json::to_value(parameters).map_err(|error| Error::invalid("volume_context", error.to_string()))
    }

    fn describes(&self, attributes: &RawParameters) -> bool {
        attributes.get("server").is_some() && attributes.get("share").is_some()
    }

    fn connect(&self) -> &dyn Connect {
        self
    }
}

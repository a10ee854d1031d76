//! The row of this backend in the catalog: its type, how its configuration is checked, and how it is opened.

use std::path::Path;
use std::sync::Arc;

use crate::backend::Backend;
use crate::backend::cloud::Role;
use crate::backend::configuration::{Configuration, NodeIdentity, OpenContext};
use crate::volume::{BackendName, NodeId, Result};

use super::config::CinderConfig;
use super::metadata::{Identity, Metadata};
use super::open;

impl Configuration for CinderConfig {
    const KIND: &'static str = "cinder";
    const SUMMARY: &'static str = "volumes of OpenStack's block storage (Cinder)";

    fn name(&self) -> &BackendName {
        &self.name
    }

    fn validate(&self) -> Result<()> {
        CinderConfig::validate(self)
    }

    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        let requests = context.cloud_requests(&self.name);
        Ok(Arc::new(open(self, Role::of(context.purpose), requests, context.identity())?))
    }

    /// Nova knows a node as a server, whatever Kubernetes calls it.
    fn node_identity(&self, node: &NodeId, state_dir: &Path) -> Option<Arc<dyn NodeIdentity>> {
        let metadata = Metadata::new(self.config_drive.clone(), self.metadata_endpoint.as_deref());
        Some(Arc::new(Identity::new(&self.name, metadata, node, state_dir)))
    }
}

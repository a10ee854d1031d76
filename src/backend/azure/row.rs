//! The row of this backend in the catalog: its type, how its configuration is checked, and how it is opened.

use std::path::Path;
use std::sync::Arc;

use crate::backend::Backend;
use crate::backend::cloud::Role;
use crate::backend::configuration::{Configuration, NodeIdentity, OpenContext};
use crate::volume::{BackendName, NodeId, Result};

use super::config::AzureConfig;
use super::metadata::{Identity, Metadata};
use super::open;

impl Configuration for AzureConfig {
    const KIND: &'static str = "azure";
    const SUMMARY: &'static str = "managed disks of Azure";

    fn name(&self) -> &BackendName {
        &self.name
    }

    fn validate(&self) -> Result<()> {
        AzureConfig::validate(self)
    }

    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        let role = Role::of(context.purpose);
        let requests = context.cloud_requests(&self.name);
        Ok(Arc::new(open(self, role, requests, context.identity())?))
    }

    /// Azure knows a node as a virtual machine of a resource group, whatever Kubernetes calls it.
    fn node_identity(&self, node: &NodeId, state_dir: &Path) -> Option<Arc<dyn NodeIdentity>> {
        let metadata = Metadata::new(self.metadata_endpoint.as_deref());
        Some(Arc::new(Identity::new(&self.name, metadata, node, state_dir)))
    }
}

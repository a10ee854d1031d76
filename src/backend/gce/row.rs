//! The row of this backend in the catalog: its type, how its configuration is checked, and how it is opened.

use std::path::Path;
use std::sync::Arc;

use crate::backend::Backend;
use crate::backend::cloud::Role;
use crate::backend::configuration::{Configuration, NodeIdentity, OpenContext};
use crate::volume::{BackendName, NodeId, Result};

use super::config::GceConfig;
use super::{identity, open};

impl Configuration for GceConfig {
    const KIND: &'static str = "gce";
    const SUMMARY: &'static str = "persistent disks and Hyperdisks of Google Compute Engine";

    fn name(&self) -> &BackendName {
        &self.name
    }

    fn validate(&self) -> Result<()> {
        GceConfig::validate(self)
    }

    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        let role = Role::of(context.purpose);
        let requests = context.cloud_requests(&self.name);
        Ok(Arc::new(open(self, role, requests, context.identity())?))
    }

    /// Compute Engine knows a node as an instance, whatever Kubernetes calls it.
    fn node_identity(&self, node: &NodeId, state_dir: &Path) -> Option<Arc<dyn NodeIdentity>> {
        Some(Arc::new(identity::of_this_machine(&self.name, node, state_dir)))
    }
}

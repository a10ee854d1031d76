//! The row of this backend in the catalog: its type, how its configuration is checked, and how it is opened.

use std::path::Path;
use std::sync::Arc;

use crate::backend::Backend;
use crate::backend::cloud::Role;
use crate::backend::configuration::{Configuration, NodeIdentity, OpenContext};
use crate::volume::{BackendName, NodeId, Result};

use super::config::Ec2Config;
use super::identity::Identity;
use super::open;

impl Configuration for Ec2Config {
    const KIND: &'static str = "ec2";
    const SUMMARY: &'static str = "EBS volumes of AWS";

    fn name(&self) -> &BackendName {
        &self.name
    }

    fn validate(&self) -> Result<()> {
        Ec2Config::validate(self)
    }

    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        let role = Role::of(context.purpose);
        let requests = context.cloud_requests(&self.name);
        Ok(Arc::new(open(self, role, requests, context.identity())?))
    }

    /// EC2 knows a node as an instance, whatever Kubernetes calls it.
    fn node_identity(&self, node: &NodeId, state_dir: &Path) -> Option<Arc<dyn NodeIdentity>> {
        Some(Arc::new(Identity::new(&self.name, node, state_dir)))
    }
}

impl NodeIdentity for Identity {
    fn node_id(&self) -> Result<NodeId> {
        Identity::node_id(self)
    }
}

//! The row of this backend in the catalog: its type, how its configuration is checked, and how it is opened.

use std::sync::Arc;

use crate::backend::configuration::{Configuration, OpenContext, Purpose};
use crate::backend::{Backend, Role, StoragePath};
use crate::volume::{BackendName, NodeId, Result};

use super::config::{ImageConfig, PoolConfig};
use super::{Holder, ImageBackend};

impl Configuration for ImageConfig {
    const KIND: &'static str = "image";
    const SUMMARY: &'static str = "image files on a node's disk, or on a file system that all nodes share";

    const RELOADABLE: &'static [&'static str] = &["pools[].capacity", "pools[].overcommit"];

    fn name(&self) -> &BackendName {
        &self.name
    }

    fn validate(&self) -> Result<()> {
        ImageConfig::validate(self)
    }

    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        let (node, state) = (context.node_id.clone(), context.state_dir);
        Ok(Arc::new(match context.purpose {
            Purpose::Serve { controller, .. } => {
                let holder = self.shared.then(|| Holder::of(node, state)).transpose()?;
                ImageBackend::open_on_lead(self, Role { provision: controller }, Some(&state.join("pools")), holder)?
            }
            Purpose::Inspect | Purpose::Compare => ImageBackend::open_to_look(self, Holder::known(node, state)?)?,
        }))
    }

    /// What lies on a local disk is on this node's, unless the file says otherwise.
    fn set_node_default(&mut self, node: &NodeId) {
        if !self.shared {
            self.node.get_or_insert_with(|| node.clone());
        }
    }

    fn keeps_node_id(&self) -> bool {
        self.shared
    }

    fn storage_paths(&self) -> Vec<StoragePath> {
        self.pools.iter().map(PoolConfig::storage_path).collect()
    }
}

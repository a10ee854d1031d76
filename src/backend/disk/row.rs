//! The row of this backend in the catalog: its type, how its configuration is checked, and how it is opened.

use std::sync::Arc;

use crate::backend::configuration::{Configuration, OpenContext};
use crate::backend::{Backend, ToolUse};
use crate::os::smart::SMARTCTL;
use crate::volume::{BackendName, NodeId, Result};

use super::DiskBackend;
use super::config::DiskConfig;

impl Configuration for DiskConfig {
    const KIND: &'static str = "disk";
    const SUMMARY: &'static str = "whole disks of a node, one volume on each";
    const TOOLS: &'static [ToolUse] = &[ToolUse::optional(SMARTCTL, &["--version"], "asks SATA and SAS disks for their health")];

    fn name(&self) -> &BackendName {
        &self.name
    }

    fn validate(&self) -> Result<()> {
        DiskConfig::validate(self)
    }

    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(DiskBackend::open(self, context.purpose.provisions())?))
    }

    fn set_node_default(&mut self, node: &NodeId) {
        self.node.get_or_insert_with(|| node.clone());
    }
}

//! The row of this backend in the catalog: its type, how its configuration is checked, and how it is opened.

use std::sync::Arc;

use crate::backend::configuration::{Configuration, OpenContext};
use crate::backend::{Backend, ToolUse};
use crate::os::lvm::{LVM, THIN_CHECK, THIN_DELTA, THIN_DUMP};
use crate::volume::{BackendName, NodeId, Result};

use super::LvmBackend;
use super::config::LvmConfig;

impl Configuration for LvmConfig {
    const KIND: &'static str = "lvm";
    const SUMMARY: &'static str = "logical volumes in a node's volume groups";
    const TOOLS: &'static [ToolUse] = &[
        ToolUse::required(LVM, &["version"], "makes and activates logical volumes"),
        ToolUse::optional(THIN_CHECK, &["--version"], "checks a thin pool before it is activated"),
        ToolUse::optional(THIN_DUMP, &["--version"], "lists the blocks of a snapshot that hold data"),
        ToolUse::optional(THIN_DELTA, &["--version"], "lists the blocks in which two snapshots differ"),
    ];

    fn name(&self) -> &BackendName {
        &self.name
    }

    fn validate(&self) -> Result<()> {
        LvmConfig::validate(self)
    }

    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(LvmBackend::open(self, context.purpose, context.state_dir)?))
    }

    fn set_node_default(&mut self, node: &NodeId) {
        self.node.get_or_insert_with(|| node.clone());
    }
}

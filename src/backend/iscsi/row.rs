//! The row of this backend in the catalog: its type, how its configuration is checked, and how it is opened.

use std::sync::Arc;

use crate::backend::configuration::{Configuration, OpenContext};
use crate::backend::image::PoolConfig;
use crate::backend::{Backend, NodeCheck, Role, StoragePath, ToolUse};
use crate::os::process::Tool;
use crate::volume::{BackendName, Result};

use super::config::IscsiConfig;
use super::{IscsiBackend, doctor};

impl Configuration for IscsiConfig {
    const KIND: &'static str = "iscsi";
    const SUMMARY: &'static str = "LUNs: those of any target, or image files that this machine exports";
    const TOOLS: &'static [ToolUse] = &[
        ToolUse::required(Tool { name: "iscsiadm", package: "open-iscsi" }, &["--version"], "makes and ends sessions"),
        ToolUse::optional(Tool { name: "multipathd", package: "multipath-tools" }, &["-h"], "makes one device of several paths"),
    ];
    const NODE_CHECKS: &'static [NodeCheck] = &[NodeCheck { name: doctor::STARTUP, run: doctor::startup }];

    const RELOADABLE: &'static [&'static str] = &["pools[].capacity", "pools[].overcommit", "allowedPortals"];

    fn name(&self) -> &BackendName {
        &self.name
    }

    fn validate(&self) -> Result<()> {
        IscsiConfig::validate(self)
    }

    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        let (node, state) = (context.node_id.clone(), context.state_dir);
        Ok(Arc::new(if context.purpose.serves() {
            IscsiBackend::open(self, Role { provision: context.purpose.provisions() }, node, state)?
        } else {
            IscsiBackend::open_to_look(self, node, state)?
        }))
    }

    fn keeps_node_id(&self) -> bool {
        true
    }

    fn storage_paths(&self) -> Vec<StoragePath> {
        self.pools.iter().map(PoolConfig::storage_path).collect()
    }
}

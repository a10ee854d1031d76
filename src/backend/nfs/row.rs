//! The row of this backend in the catalog: its type, how its configuration is checked, and how it is opened.

use std::sync::Arc;

use crate::backend::configuration::{Configuration, OpenContext};
use crate::backend::{Backend, Role, ToolUse};
use crate::os::process::Tool;
use crate::volume::{BackendName, Result};

use super::NfsBackend;
use super::config::NfsConfig;

impl Configuration for NfsConfig {
    const KIND: &'static str = "nfs";
    const SUMMARY: &'static str = "directories of NFS shares";
    const TOOLS: &'static [ToolUse] = &[
        ToolUse::required(Tool { name: "mount.nfs", package: "nfs-common" }, &["-V"], "mounts shares"),
        ToolUse::required(Tool { name: "umount", package: "mount" }, &["--version"], "unmounts shares"),
    ];

    const RELOADABLE: &'static [&'static str] = &["shares[].capacity", "allowMountOptions", "forbidMountOptions"];

    fn name(&self) -> &BackendName {
        &self.name
    }

    fn validate(&self) -> Result<()> {
        NfsConfig::validate(self)
    }

    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        let role = Role { provision: context.purpose.provisions() };
        Ok(Arc::new(NfsBackend::open(self, role, context.state_dir)?))
    }
}

//! The row of this backend in the catalog: its type, how its configuration is checked, and how it is opened.

use std::sync::Arc;

use crate::backend::configuration::{Configuration, OpenContext};
use crate::backend::directories::LOCK_BELOW_BASE;
use crate::backend::directories::subdir::OURS;
use crate::backend::{Backend, Level, Role, StoragePath};
use crate::volume::{BackendName, NodeId, Result};

use super::DirectoryBackend;
use super::config::{DirectoryConfig, QuotaMode};

impl Configuration for DirectoryConfig {
    const KIND: &'static str = "directory";
    const SUMMARY: &'static str = "directories of a node's file system";

    const RELOADABLE: &'static [&'static str] = &["capacity"];

    fn name(&self) -> &BackendName {
        &self.name
    }

    fn validate(&self) -> Result<()> {
        DirectoryConfig::validate(self)
    }

    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        let role = Role { provision: context.purpose.provisions() };
        Ok(Arc::new(DirectoryBackend::open(self, role, context.state_dir)?))
    }

    fn set_node_default(&mut self, node: &NodeId) {
        self.node.get_or_insert_with(|| node.clone());
    }

    fn storage_paths(&self) -> Vec<StoragePath> {
        let own_entries: &[&str] = &[OURS, "lost+found"];
        let project_quotas = match self.quota {
            QuotaMode::Auto => Some(Level::Warning),
            QuotaMode::Required => Some(Level::Error),
            QuotaMode::None => None,
        };
        let (name, path) = ("base".to_owned(), self.path.clone());
        vec![StoragePath { name, path, marker: Some(OURS), lock: Some(LOCK_BELOW_BASE), own_entries, project_quotas }]
    }
}

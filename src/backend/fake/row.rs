//! The row of this backend in the catalog: its type, how its configuration is checked, and how it is opened.

use std::sync::Arc;

use crate::backend::Backend;
use crate::backend::configuration::{Configuration, OpenContext};
use crate::volume::{BackendName, Result};

use super::Fake;
use super::config::FakeConfig;

impl Configuration for FakeConfig {
    const KIND: &'static str = "fake";
    const SUMMARY: &'static str = "the memory of this process, for tests";

    fn name(&self) -> &BackendName {
        &self.name
    }

    fn validate(&self) -> Result<()> {
        FakeConfig::validate(self)
    }

    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(Fake::new(self, context.node_id.clone())?))
    }
}

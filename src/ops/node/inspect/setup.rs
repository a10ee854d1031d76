//! What `inspect` is given: the node as it is configured, and its backends.

use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::Backend;
use crate::ops::node::NodeSettings;
use crate::volume::{BackendName, Result};

/// What is to be looked at.
pub struct Setup {
    pub node: NodeSettings,
    /// The driver's name.
    pub driver: String,
    /// Its socket.
    pub endpoint: PathBuf,
    pub backends: Vec<Configured>,
}

/// A backend, or why it cannot be looked at.
pub struct Configured {
    pub name: BackendName,
    pub backend: Result<Arc<dyn Backend>>,
}

//! What `longshore doctor` is to check.

use std::path::PathBuf;

use crate::backend::catalog::BackendConfig;
use crate::backend::{NodeCheck, StoragePath, ToolUse};
use crate::volume::NodeId;

/// What is to be checked.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The driver serves a node here.
    pub node: bool,
    pub node_id: NodeId,
    pub driver: String,
    pub endpoint: PathBuf,
    pub state_dir: PathBuf,
    pub kubelet_dir: PathBuf,
    /// Those of the configured backends, as are the tools and checks: beside what every node needs.
    pub storage: Vec<StoragePath>,
    /// Backends whose storage is not a directory of this machine.
    pub backends: Vec<BackendConfig>,
    pub tools: Vec<ToolUse>,
    pub node_checks: Vec<NodeCheck>,
    /// This process runs in a container of a pod.
    pub in_pod: bool,
}

//! What `longshore doctor` is to check.

use std::path::PathBuf;

use crate::backend::{NodeCheck, StoragePath, ToolUse};

/// What is to be checked.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The driver serves a node here.
    pub node: bool,
    pub driver: String,
    pub endpoint: PathBuf,
    pub state_dir: PathBuf,
    pub kubelet_dir: PathBuf,
    /// Those of the configured backends, as are the tools and checks: beside what every node needs.
    pub storage: Vec<StoragePath>,
    pub tools: Vec<ToolUse>,
    pub node_checks: Vec<NodeCheck>,
    /// This process runs in a container of a pod.
    pub in_pod: bool,
}

//! The CSI state machine, written once for all backends: lock, observe, plan, execute, undo.
//!
//! Knows volumes, backends and the kernel (through `os`); knows no gRPC message. Everything here is synchronous and runs
//! in a [`task::Tasks`] thread.

use std::path::{Path, PathBuf};

use crate::backend::Backend;
use crate::volume::{Capability, Error, Result};

pub mod controller;
pub mod doctor;
pub mod gauges;
pub mod lock;
#[cfg(test)]
mod lock_tests;
pub mod node;
pub mod parameters;
pub mod task;

pub use controller::Controller;
pub use node::Node;

/// Whether the backend can serve a volume in this way.
pub(crate) fn check_capability(backend: &dyn Backend, capability: &Capability) -> Result<()> {
    if !backend.access_modes().contains(&capability.mode) {
        return Err(Error::invalid(
            "volume_capability.access_mode",
            format!("backend {} cannot offer {:?}; it offers {:?}", backend.name(), capability.mode, backend.access_modes()),
        ));
    }
    backend.check_capability(capability)
}

/// What the locks are built on. The model checker includes `lock.rs` over a mutex of its own (tests/loom).
mod sync {
    pub use std::sync::Mutex;
}

/// Where the kubelet, which watches this directory of its own, looks for a driver.
pub fn registration_socket(kubelet_dir: &Path, driver_name: &str) -> PathBuf {
    kubelet_dir.join("plugins_registry").join(format!("{driver_name}-reg.sock"))
}

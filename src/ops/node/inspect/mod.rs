//! What `longshore inspect` shows: this node's truth from journal, storage and kernel, whether a driver runs or not.
//!
//! [`facts`] looks, [`judge`] says what it means and is pure, [`report`] is what is said, [`repair`] does what is asked.
//!
//! - Looking changes nothing and takes no lock; what can hang is waited for only so long.
//! - What could not be looked at is told as that, and nothing is concluded from it.
//! - An orphan is what the journal does not have and the driver made; what someone else made is told and left alone.
//! - Beside a driver that runs, what it is at just now is no orphan.

use std::path::PathBuf;
use std::sync::Arc;

use crate::backend::Backend;
use crate::volume::{BackendName, Result};

use super::NodeSettings;

mod facts;
mod judge;
mod repair;
mod report;

pub use repair::{Repair, Repairer};
pub use report::{
    Device, Filesystem, Finding, Journaled, Kind, Linked, Mapping, NotSeen, Operation, Place, Problem, Process, Program, Report,
    Role, Running, State, Storage, Stored, Volume, shell,
};

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

/// Looks at everything.
///
/// # Errors
/// `Invalid` where a directory of the configuration is not there; any, where journal or mounts cannot be read at all.
pub fn inspect(setup: &Setup) -> Result<Report> {
    let facts = facts::gather(setup)?;
    Ok(judge::judge(&facts, setup.node.node_id.as_str(), &setup.driver))
}

//! What `longshore inspect` shows: this node's truth from journal, storage and kernel, whether a driver runs or not.
//!
//! [`facts`] looks, [`judge`] says what it means and is pure, [`report`] is what is said, [`repair`] does what is asked.
//!
//! - Looking changes nothing and takes no lock; what can hang is waited for only so long.
//! - What could not be looked at is reported as that, and nothing is concluded from it.
//! - An orphan is what the journal does not have and the driver made; what someone else made is reported and left alone.
//! - Beside a driver that runs, what it is at just now is no orphan.

use crate::volume::Result;

mod facts;
mod judge;
mod repair;
mod report;
mod setup;

pub use repair::{Repair, Repairer};
pub use report::{
    Connection, Device, Filesystem, Finding, Journaled, Kind, Mapping, NotSeen, Operation, Place, Problem, Process, Program,
    Report, Role, Running, State, Storage, Stored, Volume, shell,
};
pub use setup::{Configured, Setup};

/// Looks at everything.
///
/// # Errors
/// `Invalid` where a directory of the configuration is not there; any, where journal or mounts cannot be read at all.
pub fn inspect(setup: &Setup) -> Result<Report> {
    let facts = facts::gather(setup)?;
    Ok(judge::judge(&facts, setup.node.node_id.as_str(), &setup.driver))
}

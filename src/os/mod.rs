//! The only place that touches Linux: mounts, loop devices, file systems, programs, paths.
//!
//! Synchronous. Knows nothing of CSI: no volume ids, no stages. What it is asked to do it does once and says exactly
//! what failed; policy (whether, in which order, what to undo) is `ops`'s and the backends'.
//! `unsafe` is allowed in the files that call the kernel directly, nowhere else.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::volume;

pub mod block;
pub mod cgroup;
pub mod copy;
pub mod deadline;
pub mod dir;
pub mod disk;
pub mod dm;
pub mod durable;
#[cfg(feature = "faults")]
mod faults;
pub mod freeze;
pub mod fs;
#[cfg(feature = "faults")]
mod gate;
pub mod holders;
#[cfg(feature = "azure")]
pub mod hyperv;
#[cfg(any(feature = "cinder", feature = "gce"))]
pub mod inquiry;
pub mod iscsi;
pub mod lio;
pub mod locks;
pub mod loopdev;
pub mod luks;
pub mod lvm;
pub mod memfd;
pub mod memory;
pub mod mount;
pub mod mountinfo;
pub mod mounts;
pub mod multipath;
pub mod nfs;
pub mod nvme;
pub mod own;
pub mod path;
pub mod private_mount;
pub mod process;
pub mod programs;
pub mod quota;
pub mod random;
pub mod responsive;
pub mod scsi;
pub mod settings;
pub mod single;
pub mod single_flight;
pub mod smart;
pub mod socket;
pub mod step;
pub mod subvolume;
pub mod tree;
pub mod udev;
#[cfg(feature = "cinder")]
pub mod virtio;
pub mod xen;

/// A failed action on Linux. Says what was tried, on what, and what the kernel or the program answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{action} {object}: {source}")]
    Io {
        /// The system call or what it is for: `open`, `mount`, `attach loop device`.
        action: &'static str,
        object: String,
        #[source]
        source: io::Error,
    },

    /// A program ended with an exit status that means failure.
    #[error("{tool} {object}: {}", ended(status, output))]
    Tool { tool: &'static str, object: String, status: String, output: String },

    /// A program is not installed.
    #[error("{tool} is not installed; install the package {package}")]
    ToolMissing { tool: &'static str, package: &'static str },

    /// It took too long and was stopped, as far as it can be.
    #[error("{action} {object}: no answer within {}", humantime::format_duration(*after))]
    Deadline { action: &'static str, object: String, after: Duration },

    /// A path that leaves its directory, holds a link, or cannot be one.
    #[error("{}: {reason}", path.display())]
    Path { path: PathBuf, reason: String },

    /// What the kernel shows is not what was to be expected; nothing was done to it.
    #[error("{object}: {reason}")]
    Unexpected { object: String, reason: String },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Locks, also after a thread that had the lock panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a program ended, and what it printed, if anything.
fn ended(status: &str, output: &str) -> String {
    if output.is_empty() { status.to_owned() } else { format!("{status}: {output}") }
}

impl Error {
    pub fn io(action: &'static str, object: impl AsRef<Path>, source: impl Into<io::Error>) -> Self {
        Error::Io { action, object: object.as_ref().display().to_string(), source: source.into() }
    }

    /// The kernel's error number, where it was a system call.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// ENOSPC, or EDQUOT: the file system has no room.
    pub fn is_full(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOSPC | libc::EDQUOT))
    }

    /// ENOENT.
    pub fn is_missing(&self) -> bool {
        self.errno() == Some(libc::ENOENT)
    }
}

impl From<Error> for volume::Error {
    /// Not final until someone has seen that nothing was left: see [`volume::Error::rolled_back`]. A bad path is the
    /// caller's mistake and final.
    fn from(error: Error) -> Self {
        match error {
            Error::Path { path, reason } => volume::Error::invalid("path", format!("{}: {reason}", path.display())),
            Error::Io { action, object, source } => volume::Error::failed(action, object, source),
            Error::Tool { tool, object, status, output } => volume::Error::failed(tool, object, ended(&status, &output)),
            Error::Deadline { action, object, after } => volume::Error::InProgress {
                object: format!("{action} {object}"),
                reason: format!("no answer within {}", humantime::format_duration(after)),
            },
            Error::ToolMissing { tool, package } => {
                volume::Error::failed("start", tool, format!("it is not installed; install the package {package}"))
            }
            Error::Unexpected { object, reason } => volume::Error::failed("check", object, reason),
        }
    }
}

//! The traits that a storage system implements.
//!
//! A backend offers what it can through small traits, each reached by a method of [`Backend`] that answers `None`
//! where it cannot; the capabilities that we advertise are derived from which are there.
//!
//! Rules for all of them:
//! - Calls are synchronous and run on a thread of their own; they may block, but what can hang needs a deadline.
//! - The caller (`ops`) holds the lock of the volume or snapshot. No two mutating calls about one object overlap.
//! - Each mutating call is repeatable: it may find what an earlier, killed call of the same kind left, and continues.
//! - Each side effect runs in [`crate::os::step::step`], so that it is named, timed, and can be interrupted by tests.
//! - A failure whose rollback was not seen stays as `Error::failed` made it: not final.
//!
//! A backend knows neither gRPC nor mounts: on a node it only connects a volume and says what it became.

mod api;
#[cfg(feature = "azure")]
pub mod azure;
pub mod catalog;
#[cfg(feature = "cinder")]
pub mod cinder;
#[cfg(feature = "cloud")]
pub mod cloud;
mod configuration;
mod directories;
pub mod directory;
pub mod disk;
#[cfg(feature = "ec2")]
pub mod ec2;
mod extents;
pub mod fake;
#[cfg(feature = "gce")]
pub mod gce;
pub mod image;
pub mod iscsi;
mod keyed_mutex;
pub mod leadership;
mod local;
mod lock_holder;
pub mod lvm;
pub mod nfs;
mod record;
pub mod registry;

pub use api::*;
pub use lock_holder::{LockHolder, LockRecord};

/// What this process does with a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// Creates and deletes volumes, which at most one process does at a time.
    pub provision: bool,
}

//! The words that every other part shares.
//!
//! Pure types: parsed once at the edge, valid from then on. No I/O, no async, nothing of gRPC. What is built
//! here need not be checked again below.

pub mod capability;
pub mod capacity;
pub mod digest;
pub mod error;
pub mod health;
pub mod id;
pub mod io_limits;
pub mod mount_flags;
pub mod parameters;
pub mod record;
pub mod secret;
pub mod suggest;
pub mod topology;

pub use capability::{AccessMode, AccessType, Capability, FsType};
pub use capacity::{Bytes, CapacityRange};
pub use error::{Error, Result, Rollback};
pub use health::{Health, HealthProblem, Severity};
pub use id::{BackendName, GroupId, NodeId, SnapshotId, VolumeId};
pub use io_limits::{IoLimit, IoLimits};
pub use mount_flags::MountFlags;
pub use parameters::{Encryption, NodeParameters, Number, OnDelete, RawParameters};
pub use record::{ContentSource, Extent, Group, Snapshot, Volume};
pub use secret::Secrets;
pub use topology::{Topology, TopologyRequirement};

/// What a mutating call did. Both are OK to the caller; a storm of repeats shows as `Unchanged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It was so already.
    Unchanged(T),
    /// This call made it so.
    Changed(T),
}

impl<T> Outcome<T> {
    /// What there is now, no matter who made it.
    pub fn into_inner(self) -> T {
        match self {
            Outcome::Unchanged(value) | Outcome::Changed(value) => value,
        }
    }

    /// The same, to be looked at.
    pub fn as_inner(&self) -> &T {
        match self {
            Outcome::Unchanged(value) | Outcome::Changed(value) => value,
        }
    }

    /// The same outcome about something else.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Outcome::Unchanged(value) => Outcome::Unchanged(change(value)),
            Outcome::Changed(value) => Outcome::Changed(change(value)),
        }
    }
}

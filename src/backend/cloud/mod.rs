//! Cloud block stores: what is the same for all of them.
//!
//! A cloud implements [`Cloud`]: a few dozen requests, each sent once. All else is here: many questions become one
//! (`poller`), what a cloud allows at a time is kept (`bucket`), a request whose answer was lost is found out about, and what
//! the CSI state machine wants is made of them.
//!
//! From below: `constants`, `ids`, `refusal`, `accepted`, `address`, `machine` and `api`; clock, bucket, retry, http, rest, tokens, poller, pages and errors; what is remembered (`memory`, `attachment_history`,
//! `changes`, `device_names`, `packed`, `lists`, `probe`); `key`; `controller` and `find`; a file for each capability; `backend`. `identity`, `node` and `proof` are the node's half.
//!
//! Words: a *disk* is what the cloud calls a volume, by the cloud's id; a *volume* is ours, by an id derived from the CO's name, in which the
//! cloud's id of its disk is recorded once there is one. The CO keeps that id: each call is about exactly that disk. A disk carries its
//! volume in its tags, and is ours only if it carries our cluster's tag; but tags are copied (backups, copies of snapshots) and changed by
//! hand, so that a tag alone never says which disk is meant. Only CreateVolume, which has no id yet, looks by tag.

mod accepted;
mod address;
mod api;
#[cfg(any(feature = "azure", feature = "cinder", feature = "gce"))]
pub mod ask_each;
mod attach;
mod attachment_history;
mod backend;
mod blocks;
pub mod bucket;
mod changes;
pub mod clock;
mod clone;
mod constants;
mod controller;
mod device_names;
mod errors;
mod existing;
mod find;
pub mod garbage;
mod health;
pub mod http;
pub mod identity;
mod ids;
mod key;
mod list;
mod lists;
mod machine;
mod make;
mod memory;
mod modify;
pub mod node;
#[cfg(all(test, any(feature = "azure", feature = "cinder", feature = "gce")))]
pub mod node_lab;
mod nodes;
mod operations;
mod packed;
pub mod pages;
pub mod policy;
mod poller;
mod pollers;
mod probe;
mod proof;
mod provision;
mod queues;
mod refusal;
mod requests;
pub mod rest;
pub mod retry;
mod role;
mod snapshots;
mod sysfs;
pub mod tags;
#[cfg(test)]
mod tests;
mod timeouts;
pub mod tokens;
mod zones;

pub use accepted::{Accepted, Operation, OperationChange, OperationState, WhichOperations};
pub use api::{
    Answer, AttachSpec, Attachment, AttachmentState, Blocks, Change, ChangeState, Changing, Cloud, CloudErrorKind, CloudSnapshot,
    CloudSnapshotId, CloudSnapshotSpec, DeviceAddress, Disk, DiskAccess, DiskId, DiskSource, DiskSpec, DiskState, Instance,
    Refusal, SnapshotState, Tags, Take, Which, Zones,
};
pub use attach::{DEVICE as CONTEXT_DEVICE, VOLUME as CONTEXT_DISK};
pub use backend::{CloudBackend, CloudOptions};
pub use constants::{Batches, CloudConstants, Consistency, Idempotency, OperationVisibility};
pub use existing::{ExistingDisks, NamedDisk};
pub use ids::OperationId;
pub use machine::MachineState;
pub use pages::Page;
pub use policy::{Draft, Policy, in_zone, to_json};
#[cfg(all(test, feature = "azure"))]
pub use proof::SIZE as CONTEXT_SIZE;
#[cfg(any(feature = "azure", feature = "cinder", feature = "gce"))]
pub use refusal::{invalid, read_settings, refusal};
pub use role::Role;
pub use sysfs::Sysfs;

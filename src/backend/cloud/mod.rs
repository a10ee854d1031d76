//! Cloud block stores: what is the same for all of them.
//!
//! A cloud implements [`Cloud`]: a few dozen requests, each sent once. All else is here: many questions become one
//! (`poller`), what a cloud allows at a time is kept (`bucket`), a request whose answer was lost is found out about, and what
//! the CSI state machine wants is made of them.
//!
//! From below: `api`; clock, bucket, retry, poller, pages and errors; what is remembered (`memory`, `changes`, `device_names`,
//! `packed`, `lists`, `probe`); `controller` and `find`; a file for each capability; `backend`.
//!
//! Words: a *disk* is what the cloud calls a volume, by the cloud's id; a *volume* is ours, by an id derived from the CO's name, in which the
//! cloud's id of its disk is recorded once there is one. The CO keeps that id: each call is about exactly that disk. A disk carries its
//! volume in its tags, and is ours only if it carries our cluster's tag; but tags are copied (backups, copies of snapshots) and changed by
//! hand, so that a tag alone never says which disk is meant. Only CreateVolume, which has no id yet, looks by tag.

mod api;
mod attach;
mod backend;
mod blocks;
pub mod bucket;
mod changes;
pub mod clock;
mod clone;
mod controller;
mod device_names;
mod errors;
mod find;
pub mod garbage;
mod health;
mod list;
mod lists;
mod memory;
mod modify;
mod nodes;
mod packed;
pub mod pages;
pub mod policy;
mod poller;
mod pollers;
mod probe;
mod provision;
pub mod retry;
mod snapshots;
pub mod tags;
#[cfg(test)]
mod tests;
mod timeouts;

pub use api::{
    Answer, Attachment, AttachmentState, Blocks, BlocksFrom, Change, ChangeState, Changing, Cloud, CloudErrorKind, CloudSnapshot,
    CloudSnapshotId, CloudSnapshotSpec, Disk, DiskId, DiskSource, DiskSpec, DiskState, Instance, MOST_IDS, MOST_VALUES, Page,
    Refusal, SnapshotState, Tags, Which,
};
pub use attach::{DEVICE as CONTEXT_DEVICE, EMPTY as CONTEXT_EMPTY, VOLUME as CONTEXT_DISK};
pub use backend::{CloudBackend, CloudOptions};
pub use policy::{Draft, Policy};

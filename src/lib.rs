//! Longshore, a Container Storage Interface (CSI) driver: one binary, many backends.
//!
//! # Where things are
//! ```text
//!  gRPC request
//!    -> rpc/      one file per CSI service: decode -> run -> encode. No I/O, no policy.
//!    -> ops/      the CSI state machine, written once for all backends: lock, observe, plan, apply, undo.
//!    -> backend/  one directory per storage system, each implementing the small traits of backend/api; catalog/ has a row for each.
//!    -> os/       alone in touching Linux: mounts, loop devices, mkfs, processes, paths. Knows no CSI.
//!       volume/   the words all of them share: pure types, parsed once, valid from then on.
//!       metrics   what is counted, and how it is shown; used by rpc, ops and os.
//! ```
//! Beside them: [`config`] (flags, environment and file become one validated value; pure), [`server`] (the socket, readiness,
//! signals, drain; health and metrics over HTTP; the registration with the kubelet) and [`cli`] (the command line, with a CSI client
//! for people). What `longshore inspect` and `longshore doctor` find out is in [`ops::node::inspect`] and [`ops::doctor`].
//!
//! # Invariants
//! - Arrows point down only: main -> cli, server -> rpc -> ops -> {backend, os} -> {volume, metrics}; a backend may use os.
//!   No modules import each other in a circle, no backend knows another but where it is declared, and above the backends no protocol is
//!   named. `tests/architecture.rs` holds this.
//! - Only `rpc`, `server` and, in `cli`, the client and the relay know of gRPC. No other function answers with a `tonic::Status`;
//!   `rpc/status.rs` alone chooses the driver's codes, by one exhaustive match over [`volume::Error`]; the relay passes them on.
//! - Everything below `rpc` is synchronous. A call runs on a thread of its own ([`ops::task`]) and outlives a caller that has
//!   gone; its locks ([`ops::lock`]) live in that thread, not in the handler.
//! - A final error code is given only where nothing was left behind and that was seen: [`volume::Rollback`].
//! - Nothing is formatted that was not proven blank ([`os::fs::Evidence`] says by what); a failed look-up is never taken for an answer.
//! - A format is repeated only where the medium itself shows that it was interrupted ([`os::fs::mark`]); a journal says where to look, and
//!   is never evidence.
//! - A device is disconnected only once the kernel lets us have it exclusively: our own mountinfo shows nothing of other mount namespaces.
//! - Of a volume that several nodes reach, the storage says which node has it: an attachment, a LUN's access list, a lease in the pool.
//! - A snapshot is of one instant, or it is refused ([`backend::FreezeGuard::writers`]).
//! - Nothing is deleted outside a directory of ours, and nothing recursively but what lies in a trash of ours ([`os::tree`]),
//!   and the subvolume of a snapshot that was interrupted ([`os::subvolume`]).
//! - Every side effect runs in [`os::step::step`], which names, times and counts it.
//! - A scrape of the metrics costs the same however many volumes there are, and waits for no storage; no volume's id is a label.
//! - The start waits for no storage: pools are opened, and what was interrupted is recovered, on threads of their own. The volumes to be
//!   recovered are locked before the first call is taken ([`os::single`], [`ops::node`]).
//! - A server may be dead: anyone who would wait for one asks first whether it answers ([`os::answers`]), one question at a time and with a
//!   deadline; unmounting looks at nothing of what it unmounts.
//! - In a cloud an answer may be lost, late or out of date: what may have been done is found out about by token and tag, nothing is
//!   concluded from an absence alone, nor from a part of a list ([`backend::cloud::pages`]), and only what carries the cluster's tag is
//!   changed ([`backend::cloud`]): but for a disk that another program made and a handle names, where the configuration says so.
//! - Which disk or snapshot of a cloud a call is about, the cloud's own id says, which is recorded in the volume's or snapshot's id
//!   ([`volume::VolumeId::recorded`]); tags are copied by others, and alone prove nothing.
//! - A command of LVM that changes something is never killed; the next one waits for it, also in the next process ([`os::lvm`]).
//! - A disk is given to a volume only once all of it was seen to be zeroes, or the driver has overwritten it; what it is for lies on the disk,
//!   which the volume's id names ([`backend::disk`]).
//! - A static volume may be called anything: its backend is recognised by its attributes, and later from the journal.
//! - One process at a time serves a node from a state directory, or repairs it ([`ops::node::lone`]); anyone who only looks takes no lock.
//! - What the controller must know again lies with the storage; what a node must know again lies in its journal, on disk
//!   before the first side effect.
//! - Secrets are of a type that cannot be printed, mount options of one that prints their names ([`volume::MountFlags`]); messages that
//!   hold them have no derived `Debug`.
//! - Only `os/process/` (and the freeze guard in `os/freeze.rs`, which must outlive us) starts programs.
//! - `unsafe` is denied, and allowed with a reason in those files of `os` that call the kernel directly.

pub mod backend;
pub mod cli;
pub mod config;
pub mod metrics;
pub mod ops;
pub mod os;
mod program;
pub mod rpc;
pub mod server;
pub mod volume;

pub use program::main_with;

/// The kubelet's protocol for the registration of plugins, generated from proto/pluginregistration.proto.
#[allow(clippy::all, clippy::pedantic, missing_docs, unused_qualifications)]
pub mod pluginregistration {
    tonic::include_proto!("pluginregistration");
}

/// What the driver serves beside CSI, generated from proto/longshore.proto.
#[allow(clippy::all, clippy::pedantic, missing_docs, unused_qualifications)]
pub mod admin {
    tonic::include_proto!("longshore.v1");
}

/// The CSI protocol, generated from proto/csi.proto.
#[allow(clippy::all, clippy::pedantic, missing_docs, unused_qualifications)]
pub mod csi {
    tonic::include_proto!("csi.v1");
}

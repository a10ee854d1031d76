//! What is seen of each RPC: a span with what it is about, and one line when it is over.
//!
//! The line is written where the work ends, not where the caller waits: work that outlives its caller is told too.
//! Nothing below this layer logs an error that it returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tonic::{Code, Status};
use tracing::Span;

use super::method::Rpc;
use super::{cut, status};
use crate::csi;
use crate::volume::{Error, Outcome};

/// What a request is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject<'a> {
    /// A volume, snapshot or group: its id, or the name of one that is to be made.
    id: Option<&'a str>,
    path: Option<&'a str>,
}

impl Subject<'_> {
    /// A span for all that happens during the call. At the error level, so that it is there for whatever is logged in it.
    pub(super) fn span(self, rpc: Rpc) -> Span {
        tracing::error_span!("rpc", rpc = rpc.name(), id = self.id, path = self.path)
    }
}

/// A request that can say what it is about.
pub(super) trait Observed {
    fn subject(&self) -> Subject<'_>;
}

/// At most this many bytes of what the caller sent go into a log line.
const LONGEST: usize = 256;

fn shown(text: &str) -> Option<&str> {
    (!text.is_empty()).then(|| cut(text, LONGEST))
}

macro_rules! observed {
    ($($message:ident $(id $id:ident)? $(path $path:ident)?;)*) => {
        $(impl Observed for csi::$message {
            #[allow(clippy::needless_update, reason = "some have all fields")]
            fn subject(&self) -> Subject<'_> {
                Subject { $(id: shown(&self.$id),)? $(path: shown(&self.$path),)? ..Subject::default() }
            }
        })*
    };
}

observed! {
    CreateVolumeRequest id name;
    DeleteVolumeRequest id volume_id;
    ControllerPublishVolumeRequest id volume_id;
    ControllerUnpublishVolumeRequest id volume_id;
    ValidateVolumeCapabilitiesRequest id volume_id;
    ListVolumesRequest;
    ControllerListVolumeHealthRequest;
    ControllerGetVolumeHealthRequest id volume_id;
    ControllerGetVolumeRequest id volume_id;
    ControllerModifyVolumeRequest id volume_id;
    GetCapacityRequest;
    CreateSnapshotRequest id name;
    DeleteSnapshotRequest id snapshot_id;
    ListSnapshotsRequest id snapshot_id;
    GetSnapshotRequest id snapshot_id;
    ControllerExpandVolumeRequest id volume_id;
    CreateVolumeGroupSnapshotRequest id name;
    DeleteVolumeGroupSnapshotRequest id group_snapshot_id;
    GetVolumeGroupSnapshotRequest id group_snapshot_id;
    GetMetadataAllocatedRequest id snapshot_id;
    GetMetadataDeltaRequest id target_snapshot_id;
    NodeStageVolumeRequest id volume_id path staging_target_path;
    NodeUnstageVolumeRequest id volume_id path staging_target_path;
    NodePublishVolumeRequest id volume_id path target_path;
    NodeUnpublishVolumeRequest id volume_id path target_path;
    NodeGetVolumeStatsRequest id volume_id path volume_path;
    NodeGetVolumeHealthRequest id volume_id path volume_publish_path;
    NodeGetStorageHealthRequest;
    NodeExpandVolumeRequest id volume_id path volume_path;
    NodeGetInfoRequest;
}

/// What a call that went well did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It looked.
    Read,
    /// It does not say whether that changed anything.
    Done,
    Unchanged,
    Changed,
}

impl Effect {
    pub(super) fn of<T>(outcome: &Outcome<T>) -> Self {
        match outcome {
            Outcome::Unchanged(_) => Effect::Unchanged,
            Outcome::Changed(_) => Effect::Changed,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Effect::Read => "read",
            Effect::Done => "done",
            Effect::Unchanged => "unchanged",
            Effect::Changed => "changed",
        }
    }
}

/// How loudly the end of a call is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// By method and finality: what was only looked at is for those who look closely; what the caller can put right is a
/// warning, and so is ABORTED, which turns away a second call while the first is at work, and CANCELLED, of a call that nobody
/// waited for; the rest needs an operator.
fn level(rpc: Rpc, code: Code) -> Level {
    match code {
        Code::Ok if rpc.mutates() => Level::Info,
        Code::Ok => Level::Debug,
        Code::Internal | Code::Unknown | Code::DataLoss => Level::Error,
        Code::Aborted | Code::Cancelled => Level::Warn,
        code if status::is_final(rpc, code) => Level::Warn,
        _ => Level::Error,
    }
}

/// Owed for every call: dropped without an end, it says that.
#[derive(Debug)]
pub(super) struct Report {
    rpc: Rpc,
    started: Instant,
    caller_gone: Arc<AtomicBool>,
    told: bool,
}

/// Held by who waits for the answer.
#[derive(Debug)]
pub(super) struct Caller(Arc<AtomicBool>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Report {
    pub(super) fn new(rpc: Rpc) -> Self {
        Report::since(rpc, Instant::now())
    }

    pub(super) fn since(rpc: Rpc, started: Instant) -> Self {
        Report { rpc, started, caller_gone: Arc::default(), told: false }
    }

    /// To be held by the handler: if it goes before the end, the line will say so.
    pub(super) fn caller(&self) -> Caller {
        Caller(self.caller_gone.clone())
    }

    pub(super) fn ok(mut self, effect: Effect) {
        self.line(Code::Ok, effect.as_str(), "done");
    }

    /// Tells the error; answers what the caller is to be told.
    pub(super) fn failed(self, error: &Error) -> Status {
        let status = status::status(self.rpc, error);
        self.refused(status)
    }

    pub(super) fn refused(mut self, status: Status) -> Status {
        self.line(status.code(), "none", status.message());
        status
    }

    fn line(&mut self, code: Code, outcome: &'static str, text: &str) {
        self.told = true;
        let is_final = code == Code::Ok || status::is_final(self.rpc, code);
        let caller_gone = self.caller_gone.load(Ordering::Relaxed);
        let took = self.started.elapsed();
        macro_rules! line {
            ($macro:ident) => {
                tracing::$macro!(?code, r#final = is_final, outcome, ?took, caller_gone, "{text}")
            };
        }
        match level(self.rpc, code) {
            Level::Debug => line!(debug),
            Level::Info => line!(info),
            Level::Warn => line!(warn),
            Level::Error => line!(error),
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if self.told {
            return;
        }
        if self.caller_gone.load(Ordering::Relaxed) && !std::thread::panicking() {
            self.line(Code::Cancelled, "none", "its caller had gone before it began");
        } else {
            self.line(Code::Unavailable, "unknown", "ended without an answer: it panicked, or the driver is stopping");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_follows_method_and_finality() {
        for (rpc, code, expected) in [
            (Rpc::Probe, Code::Ok, Level::Debug),
            (Rpc::ListVolumes, Code::Ok, Level::Debug),
            (Rpc::NodeStageVolume, Code::Ok, Level::Info),
            (Rpc::CreateVolume, Code::InvalidArgument, Level::Warn),
            (Rpc::CreateVolume, Code::ResourceExhausted, Level::Warn),
            (Rpc::ControllerPublishVolume, Code::ResourceExhausted, Level::Error),
            (Rpc::NodeStageVolume, Code::Aborted, Level::Warn),
            (Rpc::NodeStageVolume, Code::Cancelled, Level::Warn),
            (Rpc::NodeStageVolume, Code::Internal, Level::Error),
            (Rpc::NodeStageVolume, Code::Unavailable, Level::Error),
        ] {
            assert_eq!(level(rpc, code), expected, "{} {code:?}", rpc.name());
        }
    }

    #[test]
    fn a_subject_is_short_and_absent_where_there_is_none() {
        let request = csi::NodePublishVolumeRequest { volume_id: "ü".repeat(200), ..Default::default() };
        let subject = request.subject();
        assert_eq!(subject.id.map(str::len), Some(LONGEST));
        assert_eq!(subject.path, None);
    }
}

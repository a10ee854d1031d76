//! What is seen of each RPC: a span with what it is about, and one line when it is over.
//!
//! The line is written where the work ends, not where the caller waits: work that outlives its caller is logged too.
//! Nothing below this layer logs an error that it returns.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tonic::{Code, Status};
use tracing::Span;
use tracing::field::Empty;

use super::method::Rpc;
use super::{cut, status};
use crate::csi;
use crate::metrics::{Begun, Call, Metrics};
use crate::ops::task::last_step;
use crate::volume::{Error, Outcome};

/// What a request is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject<'a> {
    /// A volume, snapshot or group: its id, or the name of one that is to be made.
    id: Option<&'a str>,
    path: Option<&'a str>,
    /// The node that it is about, if that may be another than this one.
    node: Option<&'a str>,
    /// In which the CO may say of which of its own objects it speaks: parameters, or volume_context.
    context: Option<&'a HashMap<String, String>>,
}

/// The names that Kubernetes gives: the provisioner and the snapshotter with `--extra-create-metadata`, the kubelet with
/// `podInfoOnMount` (kubernetes-csi/external-provisioner, external-snapshotter; kubernetes/pkg/volume/csi).
mod kubernetes {
    pub const PVC: [&str; 2] = ["csi.storage.k8s.io/pvc/namespace", "csi.storage.k8s.io/pvc/name"];
    pub const PV: &str = "csi.storage.k8s.io/pv/name";
    pub const SNAPSHOT: [&str; 2] = ["csi.storage.k8s.io/volumesnapshot/namespace", "csi.storage.k8s.io/volumesnapshot/name"];
    pub const POD: [&str; 2] = ["csi.storage.k8s.io/pod.namespace", "csi.storage.k8s.io/pod.name"];
    pub const POD_UID: &str = "csi.storage.k8s.io/pod.uid";
}

impl<'a> Subject<'a> {
    pub(super) fn id(self) -> Option<&'a str> {
        self.id
    }

    /// The backend and pool that the parameters name; `None` where they name none.
    pub(super) fn place(self) -> Option<String> {
        let named = |key: &str| self.context.and_then(|context| context.get(key)).and_then(|text| shown(text));
        let words = ["backend", "pool"].into_iter().filter_map(|key| named(key).map(|name| format!("{key} {name}")));
        let words: Vec<String> = words.collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// A span for all that happens during the call, with what an operator looks for. At the error level, so that it is there
    /// for whatever is logged in it.
    pub(super) fn span(self, rpc: Rpc, this_node: Option<&str>) -> Span {
        let said = |key: &str| self.context.and_then(|context| context.get(key)).and_then(|text| shown(text));
        let both = |[namespace, name]: [&str; 2]| Some(format!("{}/{}", said(namespace)?, said(name)?));
        tracing::error_span!(
            "rpc",
            rpc = rpc.name(),
            id = self.id,
            path = self.path,
            node = self.node.or(this_node),
            pvc = both(kubernetes::PVC),
            pv = said(kubernetes::PV),
            snapshot = both(kubernetes::SNAPSHOT),
            pod = both(kubernetes::POD),
            pod_uid = said(kubernetes::POD_UID),
            made = Empty,
        )
    }

    /// The same for a call and the one that undoes it: a volume, or a volume at a path.
    fn digest(self) -> Digest {
        let mut hasher = DefaultHasher::new();
        (self.id, self.path, self.node).hash(&mut hasher);
        hasher.finish()
    }
}

/// Notes the id of what a call has made or found, whose request had only a name.
pub(super) fn made(id: &impl Display) {
    Span::current().record("made", tracing::field::display(id));
}

/// A request that can say what it is about.
pub(super) trait Observed {
    fn subject(&self) -> Subject<'_>;

    /// The handles of volumes in it, which another driver may have given.
    fn handles(&mut self) -> Vec<&mut String> {
        Vec::new()
    }
}

/// At most this many bytes of what the caller sent go into a log line.
const LONGEST: usize = 256;

fn shown(text: &str) -> Option<&str> {
    (!text.is_empty()).then(|| cut(text, LONGEST))
}

macro_rules! observed {
    ($($message:ident $(id $id:ident)? $(path $path:ident)? $(node $node:ident)? $(context $context:ident)?
       $(handle $handle:ident)? $(handles $handles:path)?;)*) => {
        $(impl Observed for csi::$message {
            #[allow(clippy::needless_update, reason = "some have all fields")]
            fn subject(&self) -> Subject<'_> {
                Subject {
                    $(id: shown(&self.$id),)?
                    $(path: shown(&self.$path),)?
                    $(node: shown(&self.$node),)?
                    $(context: Some(&self.$context),)?
                    ..Subject::default()
                }
            }

            $(fn handles(&mut self) -> Vec<&mut String> {
                vec![&mut self.$handle]
            })?
            $(fn handles(&mut self) -> Vec<&mut String> {
                $handles(self)
            })?
        })*
    };
}

fn source_handles(request: &mut csi::CreateVolumeRequest) -> Vec<&mut String> {
    use csi::volume_content_source::Type;
    match request.volume_content_source.as_mut().and_then(|source| source.r#type.as_mut()) {
        Some(Type::Volume(source)) => vec![&mut source.volume_id],
        Some(Type::Snapshot(_)) | None => Vec::new(),
    }
}

fn member_handles(request: &mut csi::CreateVolumeGroupSnapshotRequest) -> Vec<&mut String> {
    request.source_volume_ids.iter_mut().collect()
}

observed! {
    CreateVolumeRequest id name context parameters handles source_handles;
    DeleteVolumeRequest id volume_id handle volume_id;
    ControllerPublishVolumeRequest id volume_id node node_id context volume_context handle volume_id;
    ControllerUnpublishVolumeRequest id volume_id node node_id handle volume_id;
    ValidateVolumeCapabilitiesRequest id volume_id handle volume_id;
    ListVolumesRequest;
    ControllerListVolumeHealthRequest;
    ControllerGetVolumeHealthRequest id volume_id handle volume_id;
    ControllerGetVolumeRequest id volume_id handle volume_id;
    ControllerModifyVolumeRequest id volume_id handle volume_id;
    GetCapacityRequest context parameters;
    CreateSnapshotRequest id name context parameters handle source_volume_id;
    DeleteSnapshotRequest id snapshot_id;
    ListSnapshotsRequest id snapshot_id handle source_volume_id;
    GetSnapshotRequest id snapshot_id;
    ControllerExpandVolumeRequest id volume_id handle volume_id;
    CreateVolumeGroupSnapshotRequest id name handles member_handles;
    DeleteVolumeGroupSnapshotRequest id group_snapshot_id;
    GetVolumeGroupSnapshotRequest id group_snapshot_id;
    GetMetadataAllocatedRequest id snapshot_id;
    GetMetadataDeltaRequest id target_snapshot_id;
    NodeStageVolumeRequest id volume_id path staging_target_path context volume_context handle volume_id;
    NodeUnstageVolumeRequest id volume_id path staging_target_path handle volume_id;
    NodePublishVolumeRequest id volume_id path target_path context volume_context handle volume_id;
    NodeUnpublishVolumeRequest id volume_id path target_path handle volume_id;
    NodeGetVolumeStatsRequest id volume_id path volume_path handle volume_id;
    NodeGetVolumeHealthRequest id volume_id path volume_publish_path handle volume_id;
    NodeGetStorageHealthRequest;
    NodeExpandVolumeRequest id volume_id path volume_path handle volume_id;
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

/// At which level the end of a call is logged.
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
    /// What is done and undone by calls that share it; `None` where nothing is done.
    object: Option<Digest>,
    started: Instant,
    caller_gone: Arc<AtomicBool>,
    metrics: Metrics,
    _running: Begun,
    reported: bool,
}

/// A subject in eight bytes.
type Digest = u64;

/// Held by who waits for the answer.
#[derive(Debug)]
pub(super) struct Caller(Arc<AtomicBool>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Report {
    pub(super) fn new(rpc: Rpc, subject: Subject<'_>, metrics: &Metrics) -> Self {
        Report {
            rpc,
            object: rpc.mutates().then(|| subject.digest()),
            started: Instant::now(),
            caller_gone: Arc::default(),
            metrics: metrics.clone(),
            _running: metrics.begin(rpc.path()),
            reported: false,
        }
    }

    pub(super) fn rpc(&self) -> Rpc {
        self.rpc
    }

    /// To be held by the handler: if it goes before the end, the line will say so.
    pub(super) fn caller(&self) -> Caller {
        Caller(self.caller_gone.clone())
    }

    pub(super) fn ok(mut self, effect: Effect) {
        self.line(Code::Ok, effect.as_str(), "done");
    }

    /// Logs the error; returns the error for the caller.
    pub(super) fn failed(self, error: &Error) -> Status {
        let status = status::status(self.rpc, error);
        self.refused(status)
    }

    pub(super) fn refused(mut self, status: Status) -> Status {
        self.line(status.code(), "none", status.message());
        status
    }

    fn line(&mut self, code: Code, outcome: &'static str, text: &str) {
        self.reported = true;
        let is_final = code == Code::Ok || status::is_final(self.rpc, code);
        let caller_gone = self.caller_gone.load(Ordering::Relaxed);
        let took = self.started.elapsed();
        self.count(code, is_final, outcome, took);
        let step = last_step();
        let step = step.as_deref();
        macro_rules! line {
            ($macro:ident) => {
                tracing::$macro!(?code, r#final = is_final, outcome, step, ?took, caller_gone, "{text}")
            };
        }
        match level(self.rpc, code) {
            Level::Debug => line!(debug),
            Level::Info => line!(info),
            Level::Warn => line!(warn),
            Level::Error => line!(error),
        }
    }

    fn count(&self, code: Code, is_final: bool, outcome: &'static str, took: Duration) {
        self.metrics.ended(&Call { method: self.rpc.path(), code: status::name(code), is_final, outcome, took });
        // One that was turned away, or for which nobody waited, has done nothing: what it was about is as before.
        if let Some(object) = self.object
            && !matches!(code, Code::Aborted | Code::Cancelled)
        {
            self.metrics.record_outcome(object, is_final);
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if self.reported {
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
    #[allow(clippy::needless_update, reason = "one has all fields")]
    fn handles_of_volumes_are_found_in_each_request() {
        let handle = || "projects/p/zones/z-a-b/disks/d".to_owned();
        fn found<R: Observed>(mut request: R) -> Vec<String> {
            request.handles().into_iter().map(|handle| handle.clone()).collect()
        }
        macro_rules! volume_id {
            ($($message:ident),*) => { [$(found(csi::$message { volume_id: handle(), ..Default::default() })),*] };
        }
        let by_volume_id = volume_id![
            DeleteVolumeRequest,
            ControllerPublishVolumeRequest,
            ControllerUnpublishVolumeRequest,
            ValidateVolumeCapabilitiesRequest,
            ControllerGetVolumeHealthRequest,
            ControllerGetVolumeRequest,
            ControllerModifyVolumeRequest,
            ControllerExpandVolumeRequest,
            NodeStageVolumeRequest,
            NodeUnstageVolumeRequest,
            NodePublishVolumeRequest,
            NodeUnpublishVolumeRequest,
            NodeGetVolumeStatsRequest,
            NodeGetVolumeHealthRequest,
            NodeExpandVolumeRequest
        ];
        let volume = csi::volume_content_source::VolumeSource { volume_id: handle() };
        let source = csi::VolumeContentSource { r#type: Some(csi::volume_content_source::Type::Volume(volume)) };
        let others = [
            found(csi::CreateSnapshotRequest { source_volume_id: handle(), ..Default::default() }),
            found(csi::ListSnapshotsRequest { source_volume_id: handle(), ..Default::default() }),
            found(csi::CreateVolumeGroupSnapshotRequest { source_volume_ids: vec![handle()], ..Default::default() }),
            found(csi::CreateVolumeRequest { volume_content_source: Some(source), ..Default::default() }),
        ];
        for one in by_volume_id.into_iter().chain(others) {
            assert_eq!(one, [handle()]);
        }
        assert!(found(csi::NodeGetInfoRequest::default()).is_empty());
    }

    #[test]
    fn a_subject_is_short_and_absent_where_there_is_none() {
        let request = csi::NodePublishVolumeRequest { volume_id: "ü".repeat(200), ..Default::default() };
        let subject = request.subject();
        assert_eq!(subject.id.map(str::len), Some(LONGEST));
        assert_eq!(subject.path, None);
    }

    #[test]
    fn a_call_and_the_one_that_undoes_it_are_about_the_same() {
        let stage = csi::NodeStageVolumeRequest {
            volume_id: "a:b".to_owned(),
            staging_target_path: "/s".to_owned(),
            volume_context: HashMap::from([("k".to_owned(), "v".to_owned())]),
            ..Default::default()
        };
        let unstage = csi::NodeUnstageVolumeRequest { volume_id: "a:b".to_owned(), staging_target_path: "/s".to_owned() };
        assert_eq!(stage.subject().digest(), unstage.subject().digest());
        let elsewhere = csi::NodeUnstageVolumeRequest { staging_target_path: "/t".to_owned(), ..unstage };
        assert_ne!(stage.subject().digest(), elsewhere.subject().digest());
    }
}

//! What tests/fuzz/ tries of the requests: bytes to message to what the operations are given.

use std::fmt::Debug;

use prost::Message;

use super::Rpc;
use super::decode::{controller, group, metadata, node, snapshot};
use super::status::status;
use crate::csi;
use crate::volume::Error;

/// What became of a request.
pub struct Tried {
    /// The message as it may be printed.
    pub shown: String,
    /// What was decoded from it, printed; or the error for its sender.
    pub decoded: Result<String, tonic::Status>,
}

type Attempt = fn(&[u8], &str) -> Option<Tried>;

fn attempt<Q, R>(rpc: Rpc, request: Q) -> Tried
where
    Q: Debug,
    R: TryFrom<Q, Error = Error> + Debug,
{
    let shown = format!("{request:?}");
    let decoded = R::try_from(request);
    Tried { shown, decoded: decoded.map(|decoded| format!("{decoded:?}")).map_err(|error| status(rpc, &error)) }
}

macro_rules! requests {
    ($($rpc:ident $message:ident -> $decoded:path $(, $secrets:ident)?;)*) => {
        /// All requests that are decoded, and how: from bytes, with a secret put into those that can have one. `None` where
        /// the bytes are no such message.
        pub const REQUESTS: &[(Rpc, Attempt)] = &[$((Rpc::$rpc, |bytes, secret| {
            #[allow(unused_mut, reason = "some have no secrets")]
            let mut request = csi::$message::decode(bytes).ok()?;
            $(request.$secrets.insert("key".to_owned(), secret.to_owned());)?
            let _ = secret;
            Some(attempt::<_, $decoded>(Rpc::$rpc, request))
        })),*];
    };
}

requests! {
    CreateVolume CreateVolumeRequest -> controller::Create, secrets;
    DeleteVolume DeleteVolumeRequest -> controller::Delete, secrets;
    ControllerPublishVolume ControllerPublishVolumeRequest -> controller::Attached, secrets;
    ControllerUnpublishVolume ControllerUnpublishVolumeRequest -> controller::Unbind, secrets;
    ValidateVolumeCapabilities ValidateVolumeCapabilitiesRequest -> controller::Validate, secrets;
    ListVolumes ListVolumesRequest -> controller::List;
    ControllerListVolumeHealth ControllerListVolumeHealthRequest -> controller::List, secrets;
    ControllerGetVolume ControllerGetVolumeRequest -> controller::Lookup;
    ControllerGetVolumeHealth ControllerGetVolumeHealthRequest -> controller::Lookup, secrets;
    GetCapacity GetCapacityRequest -> controller::GetCapacity;
    ControllerExpandVolume ControllerExpandVolumeRequest -> controller::Expand, secrets;
    ControllerModifyVolume ControllerModifyVolumeRequest -> controller::Modify, secrets;
    CreateSnapshot CreateSnapshotRequest -> snapshot::CreateSnapshot, secrets;
    DeleteSnapshot DeleteSnapshotRequest -> snapshot::DeleteSnapshot, secrets;
    ListSnapshots ListSnapshotsRequest -> snapshot::ListSnapshots, secrets;
    GetSnapshot GetSnapshotRequest -> snapshot::LookupSnapshot, secrets;
    CreateVolumeGroupSnapshot CreateVolumeGroupSnapshotRequest -> group::CreateGroup, secrets;
    DeleteVolumeGroupSnapshot DeleteVolumeGroupSnapshotRequest -> group::DeleteGroup, secrets;
    GetVolumeGroupSnapshot GetVolumeGroupSnapshotRequest -> group::GetGroup, secrets;
    GetMetadataAllocated GetMetadataAllocatedRequest -> metadata::Walk, secrets;
    GetMetadataDelta GetMetadataDeltaRequest -> metadata::Walk, secrets;
    NodeStageVolume NodeStageVolumeRequest -> node::Stage, secrets;
    NodeUnstageVolume NodeUnstageVolumeRequest -> node::Unstage;
    NodePublishVolume NodePublishVolumeRequest -> node::Publish, secrets;
    NodeUnpublishVolume NodeUnpublishVolumeRequest -> node::Unpublish;
    NodeGetVolumeStats NodeGetVolumeStatsRequest -> node::GetStats;
    NodeGetVolumeHealth NodeGetVolumeHealthRequest -> node::GetHealth;
    NodeGetStorageHealth NodeGetStorageHealthRequest -> node::GetStorageHealth, secrets;
    NodeGetInfo NodeGetInfoRequest -> node::GetInfo;
    NodeExpandVolume NodeExpandVolumeRequest -> node::Expand, secrets;
}

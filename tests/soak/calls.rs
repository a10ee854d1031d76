//! The RPCs, as a CO sends them.

use std::collections::HashMap;
use std::time::Duration;

use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use longshore::csi::group_controller_client::GroupControllerClient;
use longshore::csi::node_client::NodeClient;
use longshore::csi::snapshot_metadata_client::SnapshotMetadataClient;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::common::text;
use super::model::{Op, Slot};
use super::shared::{Place, Shared};

/// One way to the driver.
#[derive(Clone)]
pub struct Calls {
    pub channel: Channel,
    /// The client's, sent with the request.
    pub deadline: Option<Duration>,
    /// The driver's steps may fail.
    pub may_fail: bool,
}

/// What an operation answers, as far as it is compared.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The capacity, or the snapshot's size.
    pub size: Option<i64>,
    pub context: HashMap<String, String>,
}

impl Calls {
    pub fn ask<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        request
    }

    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }
    pub fn groups(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel.clone())
    }
    pub fn metadata(&self) -> SnapshotMetadataClient<Channel> {
        SnapshotMetadataClient::new(self.channel.clone())
    }
    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    /// Asks for `op` once. What the volume is now is of `slot`.
    pub async fn perform(&self, shared: &Shared, place: &Place, slot: &Slot, op: &Op) -> Result<Reply, Status> {
        let volume_id = place.volume_id();
        let size = |size| Reply { size: Some(size), ..Reply::default() };
        // An inverse is also asked for of a volume that may not be there.
        let volume = match op {
            Op::Create(volume) => Some(&**volume),
            _ => slot.volume.as_ref(),
        };
        let capability = volume.map(|volume| volume.capability());
        let range = |required_bytes| Some(csi::CapacityRange { required_bytes, limit_bytes: 0 });
        match op {
            Op::Create(volume) => {
                let response = self.controller().create_volume(self.ask(volume.request.clone())).await?.into_inner();
                let made = response.volume.unwrap_or_default();
                let source = made.content_source == volume.request.volume_content_source;
                // Nobody else makes volumes of this name.
                assert!(made.volume_id == volume_id && source, "CreateVolume answers with another volume: {made:?}");
                Ok(Reply { size: Some(made.capacity_bytes), context: made.volume_context })
            }
            Op::Delete => {
                let request = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
                self.controller().delete_volume(self.ask(request)).await.map(|_| Reply::default())
            }
            Op::Stage => {
                let request = csi::NodeStageVolumeRequest {
                    volume_id,
                    staging_target_path: text(&shared.staging(place)),
                    volume_capability: capability,
                    volume_context: volume.map(|volume| volume.context.clone()).unwrap_or_default(),
                    ..Default::default()
                };
                self.node().node_stage_volume(self.ask(request)).await.map(|_| Reply::default())
            }
            Op::Unstage => {
                let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path: text(&shared.staging(place)) };
                self.node().node_unstage_volume(self.ask(request)).await.map(|_| Reply::default())
            }
            Op::Publish { target, read_only } => {
                let request = csi::NodePublishVolumeRequest {
                    volume_id,
                    staging_target_path: text(&shared.staging(place)),
                    target_path: text(&shared.target(place, *target)),
                    volume_capability: capability,
                    readonly: *read_only,
                    volume_context: volume.map(|volume| volume.context.clone()).unwrap_or_default(),
                    ..Default::default()
                };
                self.node().node_publish_volume(self.ask(request)).await.map(|_| Reply::default())
            }
            Op::Unpublish { target } => {
                let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path: text(&shared.target(place, *target)) };
                self.node().node_unpublish_volume(self.ask(request)).await.map(|_| Reply::default())
            }
            Op::Snapshot { number } => {
                let request = csi::CreateSnapshotRequest {
                    source_volume_id: volume_id,
                    name: place.snapshot_name(*number),
                    ..Default::default()
                };
                let response = self.controller().create_snapshot(self.ask(request)).await?.into_inner();
                let snapshot = response.snapshot.unwrap_or_default();
                assert!(snapshot.ready_to_use && snapshot.snapshot_id == place.snapshot_id(*number), "{snapshot:?}");
                Ok(size(snapshot.size_bytes))
            }
            Op::DeleteSnapshot { number } => {
                let request = csi::DeleteSnapshotRequest { snapshot_id: place.snapshot_id(*number), ..Default::default() };
                self.controller().delete_snapshot(self.ask(request)).await.map(|_| Reply::default())
            }
            Op::Group(group) => {
                let request = csi::CreateVolumeGroupSnapshotRequest {
                    name: place.group_name(),
                    source_volume_ids: group.members.keys().map(|name| format!("image:{name}")).collect(),
                    ..Default::default()
                };
                let response = self.groups().create_volume_group_snapshot(self.ask(request)).await?.into_inner();
                let made = response.group_snapshot.unwrap_or_default();
                assert_eq!(made.snapshots.len(), group.members.len(), "{made:?}");
                Ok(Reply::default())
            }
            Op::DeleteGroup => {
                // Of a group that was perhaps never made, too.
                let group = match (&slot.pending, &slot.group) {
                    (Some(Op::Group(group)), _) | (_, Some(group)) => group,
                    _ => return Ok(Reply::default()),
                };
                let request = csi::DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: place.group_id(),
                    snapshot_ids: group.members.keys().map(|member| place.member_id(member).to_string()).collect(),
                    ..Default::default()
                };
                self.groups().delete_volume_group_snapshot(self.ask(request)).await.map(|_| Reply::default())
            }
            Op::Expand { capacity } => {
                let request = csi::ControllerExpandVolumeRequest {
                    volume_id,
                    capacity_range: range(*capacity),
                    volume_capability: capability,
                    ..Default::default()
                };
                let response = self.controller().controller_expand_volume(self.ask(request)).await?.into_inner();
                Ok(size(response.capacity_bytes))
            }
            Op::NodeExpand => {
                let request = csi::NodeExpandVolumeRequest {
                    volume_id,
                    volume_path: text(&shared.staging(place)),
                    staging_target_path: text(&shared.staging(place)),
                    capacity_range: volume.and_then(|volume| range(volume.capacity)),
                    volume_capability: capability,
                    ..Default::default()
                };
                let response = self.node().node_expand_volume(self.ask(request)).await?.into_inner();
                Ok(size(response.capacity_bytes))
            }
            Op::Modify { on_delete } => {
                let mutable_parameters = [("onDelete".to_owned(), (*on_delete).to_owned())].into();
                let request = csi::ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() };
                self.controller().controller_modify_volume(self.ask(request)).await.map(|_| Reply::default())
            }
        }
    }
}

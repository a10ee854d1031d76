//! GroupController: snapshots of several volumes at one instant.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::decode::group::{CreateGroup, DeleteGroup, GetGroup};
use super::method::Rpc;
use super::observe::made;
use super::{Services, encode};
use crate::csi;
use crate::ops::Controller;
use crate::volume::Outcome;

pub struct GroupControllerService {
    pub(super) services: Services,
    pub(super) controller: Arc<Controller>,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl csi::group_controller_server::GroupController for GroupControllerService {
    async fn group_controller_get_capabilities(
        &self,
        _request: Request<csi::GroupControllerGetCapabilitiesRequest>,
    ) -> Answer<csi::GroupControllerGetCapabilitiesResponse> {
        let capabilities = self.services.capabilities().group_controller();
        self.services.answer(Rpc::GroupControllerGetCapabilities, csi::GroupControllerGetCapabilitiesResponse { capabilities })
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<csi::CreateVolumeGroupSnapshotRequest>,
    ) -> Answer<csi::CreateVolumeGroupSnapshotResponse> {
        let controller = self.controller.clone();
        let work = move |create: CreateGroup| {
            let made_or_found = controller.create_group(&create.name, &create.sources, &create.parameters);
            made_or_found.inspect(|group| made(&group.as_inner().id))
        };
        let group = self.services.mutate(Rpc::CreateVolumeGroupSnapshot, request, work).await?;
        Ok(Response::new(csi::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(encode::group(&group)) }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<csi::DeleteVolumeGroupSnapshotRequest>,
    ) -> Answer<csi::DeleteVolumeGroupSnapshotResponse> {
        let controller = self.controller.clone();
        let work = move |delete| match delete {
            DeleteGroup::Group { id, snapshots } => controller.delete_group(&id, &snapshots),
            DeleteGroup::Nothing => Ok(Outcome::Unchanged(())),
        };
        self.services.mutate(Rpc::DeleteVolumeGroupSnapshot, request, work).await?;
        Ok(Response::new(csi::DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<csi::GetVolumeGroupSnapshotRequest>,
    ) -> Answer<csi::GetVolumeGroupSnapshotResponse> {
        let controller = self.controller.clone();
        let work = move |get: GetGroup| controller.get_group(&get.id, &get.snapshots);
        let group = self.services.read(Rpc::GetVolumeGroupSnapshot, request, work).await?;
        Ok(Response::new(csi::GetVolumeGroupSnapshotResponse { group_snapshot: Some(encode::group(&group)) }))
    }
}

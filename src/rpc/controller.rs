//! Controller: volumes and snapshots come and go, are bound to nodes, grow and change.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::decode::controller::{Attached, Create, Delete, Expand, GetCapacity, List, Lookup, Modify, Unbind, Validate};
use super::decode::snapshot::{CreateSnapshot, DeleteSnapshot, ListSnapshots, LookupSnapshot};
use super::method::Rpc;
use super::observe::{Effect, made};
use super::{Services, encode};
use crate::csi;
use crate::ops::Controller;
use crate::ops::controller::Page;
use crate::volume::Outcome;

pub struct ControllerService {
    pub(super) services: Services,
    pub(super) controller: Arc<Controller>,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl csi::controller_server::Controller for ControllerService {
    async fn create_volume(&self, request: Request<csi::CreateVolumeRequest>) -> Answer<csi::CreateVolumeResponse> {
        let controller = self.controller.clone();
        let work = move |Create(create)| controller.provision(&create).inspect(|volume| made(&volume.as_inner().id));
        let volume = self.services.mutate(Rpc::CreateVolume, request, work).await?;
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(encode::volume(&volume)) }))
    }

    async fn delete_volume(&self, request: Request<csi::DeleteVolumeRequest>) -> Answer<csi::DeleteVolumeResponse> {
        let controller = self.controller.clone();
        let work = move |delete: Delete| match delete.id {
            Some(id) => controller.delete(&id),
            None => Ok(Outcome::Unchanged(())),
        };
        self.services.mutate(Rpc::DeleteVolume, request, work).await?;
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Answer<csi::ControllerPublishVolumeResponse> {
        let controller = self.controller.clone();
        let work = move |Attached(attach)| controller.attach(&attach);
        let context = self.services.mutate(Rpc::ControllerPublishVolume, request, work).await?;
        Ok(Response::new(csi::ControllerPublishVolumeResponse { publish_context: context.into_iter().collect() }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Answer<csi::ControllerUnpublishVolumeResponse> {
        let controller = self.controller.clone();
        let work = move |unbind| match unbind {
            Unbind::From { id, node } => controller.detach(&id, node.as_ref()),
            Unbind::Nothing => Ok(Outcome::Unchanged(())),
        };
        self.services.mutate(Rpc::ControllerUnpublishVolume, request, work).await?;
        Ok(Response::new(csi::ControllerUnpublishVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<csi::ValidateVolumeCapabilitiesResponse> {
        let controller = self.controller.clone();
        let asked = request.get_ref().clone();
        let work = move |ask: Validate| controller.validate(&ask.handle, &ask.capabilities, &ask.context, &ask.parameters);
        let refused = self.services.read(Rpc::ValidateVolumeCapabilities, request, work).await?;
        Ok(Response::new(encode::validated(asked, refused)))
    }

    async fn list_volumes(&self, request: Request<csi::ListVolumesRequest>) -> Answer<csi::ListVolumesResponse> {
        let controller = self.controller.clone();
        let work = move |list: List| {
            let Page { entries, next_token } = controller.list(list.max, &list.token)?;
            Ok((encode::volume_entries(&entries), next_token))
        };
        let (entries, next_token) = self.services.read(Rpc::ListVolumes, request, work).await?;
        Ok(Response::new(csi::ListVolumesResponse { entries, next_token }))
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Answer<csi::ControllerListVolumeHealthResponse> {
        let controller = self.controller.clone();
        let work = move |list: List| controller.list_health(list.max, &list.token);
        let Page { entries, next_token } = self.services.read(Rpc::ControllerListVolumeHealth, request, work).await?;
        let entries = entries.into_iter().map(|(id, health)| encode::volume_health(id.to_string(), health)).collect();
        Ok(Response::new(csi::ControllerListVolumeHealthResponse { entries, next_token }))
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> Answer<csi::ControllerGetVolumeHealthResponse> {
        let controller = self.controller.clone();
        let id = request.get_ref().volume_id.clone();
        let work = move |Lookup { id }| controller.health(&id);
        let health = self.services.read(Rpc::ControllerGetVolumeHealth, request, work).await?;
        Ok(Response::new(csi::ControllerGetVolumeHealthResponse { volume_health: Some(encode::volume_health(id, health)) }))
    }

    async fn get_capacity(&self, request: Request<csi::GetCapacityRequest>) -> Answer<csi::GetCapacityResponse> {
        let controller = self.controller.clone();
        let work = move |ask: GetCapacity| controller.capacity(&ask.capabilities, &ask.parameters, ask.topology.as_ref());
        let capacity = self.services.read(Rpc::GetCapacity, request, work).await?;
        Ok(Response::new(encode::capacity(capacity)))
    }

    async fn controller_get_capabilities(
        &self,
        _request: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Answer<csi::ControllerGetCapabilitiesResponse> {
        let capabilities = self.services.capabilities().controller();
        self.services.answer(Rpc::ControllerGetCapabilities, csi::ControllerGetCapabilitiesResponse { capabilities })
    }

    async fn create_snapshot(&self, request: Request<csi::CreateSnapshotRequest>) -> Answer<csi::CreateSnapshotResponse> {
        let controller = self.controller.clone();
        let asked = request.get_ref().source_volume_id.clone();
        let work = move |create: CreateSnapshot| {
            let made_or_found = controller.snapshot(&create.name, &create.source, &create.parameters, &create.topology);
            made_or_found.inspect(|snapshot| made(&snapshot.as_inner().id))
        };
        let snapshot = self.services.mutate(Rpc::CreateSnapshot, request, work).await?;
        Ok(Response::new(csi::CreateSnapshotResponse { snapshot: Some(encode::snapshot_of(&snapshot, asked)) }))
    }

    async fn delete_snapshot(&self, request: Request<csi::DeleteSnapshotRequest>) -> Answer<csi::DeleteSnapshotResponse> {
        let controller = self.controller.clone();
        let work = move |delete: DeleteSnapshot| match delete.id {
            Some(id) => controller.delete_snapshot(&id),
            None => Ok(Outcome::Unchanged(())),
        };
        self.services.mutate(Rpc::DeleteSnapshot, request, work).await?;
        Ok(Response::new(csi::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(&self, request: Request<csi::ListSnapshotsRequest>) -> Answer<csi::ListSnapshotsResponse> {
        let controller = self.controller.clone();
        let work = move |list: ListSnapshots| match list.filter {
            Some(filter) => controller.list_snapshots(&filter, list.page.max, &list.page.token),
            None => Ok(Page { entries: Vec::new(), next_token: String::new() }),
        };
        let Page { entries, next_token } = self.services.read(Rpc::ListSnapshots, request, work).await?;
        let entry = |snapshot| csi::list_snapshots_response::Entry { snapshot: Some(encode::snapshot(snapshot)) };
        Ok(Response::new(csi::ListSnapshotsResponse { entries: entries.iter().map(entry).collect(), next_token }))
    }

    async fn get_snapshot(&self, request: Request<csi::GetSnapshotRequest>) -> Answer<csi::GetSnapshotResponse> {
        let controller = self.controller.clone();
        let work = move |LookupSnapshot { id }| controller.get_snapshot(&id);
        let snapshot = self.services.read(Rpc::GetSnapshot, request, work).await?;
        Ok(Response::new(csi::GetSnapshotResponse { snapshot: Some(encode::snapshot(&snapshot)) }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Answer<csi::ControllerExpandVolumeResponse> {
        let controller = self.controller.clone();
        let work = move |expand: Expand| controller.expand(&expand.id, expand.range, expand.capability.as_ref());
        let expanded = self.services.run(Rpc::ControllerExpandVolume, request, |_| Effect::Done, work).await?;
        Ok(Response::new(encode::expanded(expanded)))
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Answer<csi::ControllerGetVolumeResponse> {
        let controller = self.controller.clone();
        let asked = request.get_ref().volume_id.clone();
        let work = move |Lookup { id }| controller.get(&id);
        let entry = self.services.read(Rpc::ControllerGetVolume, request, work).await?;
        Ok(Response::new(encode::volume_found(&entry, &asked)))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Answer<csi::ControllerModifyVolumeResponse> {
        let controller = self.controller.clone();
        let work = move |modify: Modify| controller.modify(&modify.id, &modify.parameters);
        self.services.mutate(Rpc::ControllerModifyVolume, request, work).await?;
        Ok(Response::new(csi::ControllerModifyVolumeResponse {}))
    }
}

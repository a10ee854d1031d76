//! Node: what happens to a volume on the machine where it is used.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::decode::node::{Expand, GetHealth, GetInfo, GetStats, GetStorageHealth, Publish, Stage, Unpublish, Unstage};
use super::method::Rpc;
use super::observe::Effect;
use super::{Services, encode};
use crate::csi;
use crate::ops::Node;
use crate::volume::Outcome;

pub struct NodeService {
    pub(super) services: Services,
    pub(super) node: Arc<Node>,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl csi::node_server::Node for NodeService {
    async fn node_stage_volume(&self, request: Request<csi::NodeStageVolumeRequest>) -> Answer<csi::NodeStageVolumeResponse> {
        let node = self.node.clone();
        let work = move |Stage(stage)| node.stage(&stage);
        self.services.mutate(Rpc::NodeStageVolume, request, work).await?;
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Answer<csi::NodeUnstageVolumeResponse> {
        let node = self.node.clone();
        let work = move |unstage: Unstage| match unstage.handle {
            Some(handle) => node.unstage(&handle, &unstage.staging),
            None => Ok(Outcome::Unchanged(())),
        };
        self.services.mutate(Rpc::NodeUnstageVolume, request, work).await?;
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Answer<csi::NodePublishVolumeResponse> {
        let node = self.node.clone();
        let work = move |Publish(publish)| node.publish(&publish);
        self.services.mutate(Rpc::NodePublishVolume, request, work).await?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Answer<csi::NodeUnpublishVolumeResponse> {
        let node = self.node.clone();
        let work = move |unpublish: Unpublish| match unpublish.handle {
            Some(handle) => node.unpublish(&handle, &unpublish.target),
            None => Ok(Outcome::Unchanged(())),
        };
        self.services.mutate(Rpc::NodeUnpublishVolume, request, work).await?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Answer<csi::NodeGetVolumeStatsResponse> {
        let node = self.node.clone();
        let work = move |ask: GetStats| node.stats(&ask.handle, &ask.path);
        let stats = self.services.read(Rpc::NodeGetVolumeStats, request, work).await?;
        Ok(Response::new(encode::stats(stats)))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> Answer<csi::NodeGetVolumeHealthResponse> {
        let node = self.node.clone();
        let id = request.get_ref().volume_id.clone();
        let work = move |ask: GetHealth| node.health(&ask.handle, ask.published.as_deref(), ask.staging.as_deref());
        let health = self.services.read(Rpc::NodeGetVolumeHealth, request, work).await?;
        Ok(Response::new(csi::NodeGetVolumeHealthResponse { volume_health: Some(encode::volume_health(id, health)) }))
    }

    async fn node_get_storage_health(
        &self,
        request: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Answer<csi::NodeGetStorageHealthResponse> {
        let node = self.node.clone();
        let work = move |GetStorageHealth| node.storage_health();
        let health = self.services.read(Rpc::NodeGetStorageHealth, request, work).await?;
        Ok(Response::new(encode::storage_health(health)))
    }

    async fn node_expand_volume(&self, request: Request<csi::NodeExpandVolumeRequest>) -> Answer<csi::NodeExpandVolumeResponse> {
        let node = self.node.clone();
        let work = move |Expand(expand)| node.expand(&expand);
        let size = self.services.run(Rpc::NodeExpandVolume, request, |_| Effect::Done, work).await?;
        Ok(Response::new(csi::NodeExpandVolumeResponse { capacity_bytes: encode::bytes(size.0) }))
    }

    async fn node_get_capabilities(
        &self,
        _request: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Answer<csi::NodeGetCapabilitiesResponse> {
        let capabilities = self.services.capabilities().node();
        self.services.answer(Rpc::NodeGetCapabilities, csi::NodeGetCapabilitiesResponse { capabilities })
    }

    async fn node_get_info(&self, request: Request<csi::NodeGetInfoRequest>) -> Answer<csi::NodeGetInfoResponse> {
        let node = self.node.clone();
        let work = move |GetInfo| node.info();
        let info = self.services.read(Rpc::NodeGetInfo, request, work).await?;
        Ok(Response::new(encode::node_info(info)))
    }
}

//! The controller's half: a CSI driver for csi-resizer, without storage.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_smithy_types::base64;
use prost::Message;
use serde::Deserialize;
use serde_json::json;
use tonic::{Code, Response as Answered, Status};

use super::super::api::{Api, Body, List};
use super::message::{NODE, REQUEST, RESPONSE, Request, Response, VOLUMES, Volume};
use crate::csi;
use crate::csi::controller_service_capability::rpc::Type as Rpc;
use crate::os::lock;

/// Between two tries of what failed.
const PAUSE: Duration = Duration::from_secs(1);
/// PersistentVolumes of one page, where all are looked through.
const PAGE: usize = 500;

/// Serves what csi-resizer calls. Cheap to clone.
#[derive(Clone)]
pub(super) struct Relay {
    inner: Arc<Inner>,
}

struct Inner {
    api: Api,
    driver: String,
    /// For how long a node is waited for.
    timeout: Duration,
    /// csi-resizer grows a volume and changes its attributes at the same time; there is room for one request.
    volumes: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Relay {
    pub(super) fn new(api: Api, driver: &str, timeout: Duration) -> Self {
        Relay { inner: Arc::new(Inner { api, driver: driver.to_owned(), timeout, volumes: Mutex::default() }) }
    }

    /// Has the driver of the volume's node do the call.
    async fn relay<A: Message + Default>(&self, rpc: &str, handle: &str, message: Vec<u8>) -> Result<Answered<A>, Status> {
        let Inner { api, driver, timeout, volumes } = &*self.inner;
        let volume = find(api, driver, handle).await?;
        let name = volume.metadata.name.clone();
        let about = format!("{rpc} {handle}");
        let Some(node) = volume.node().map(str::to_owned) else {
            return Err(Status::not_found(format!(
                "{about}: the PersistentVolume {name} is not on one node, by its node affinity, so no node's driver provisioned it; \
                 change the volume where it is stored"
            )));
        };
        let turn = lock(volumes).entry(name.clone()).or_default().clone();
        let waited = tokio::time::timeout(*timeout, async {
            let _turn = turn.lock().await;
            let id = fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(|error| Status::internal(error.to_string()))?;
            let request = Request { id: id.trim().to_owned(), rpc: rpc.to_owned(), message: base64::encode(message) };
            tracing::info!(volume = handle, pv = name, node, id = request.id, "{rpc}: asking the node");
            ask(api, &volume, &node, &request).await?;
            answer(api, &volume, &request).await
        });
        let waited = waited.await;
        drop(turn);
        lock(volumes).retain(|_, turn| Arc::strong_count(turn) > 1);
        let response = waited.unwrap_or_else(|_| {
            Err(Status::deadline_exceeded(format!(
                "{about}: node {node} has not answered within {}; it does so when it runs again. See whether the driver's pod runs there",
                humantime::format_duration(*timeout)
            )))
        })?;
        tracing::info!(
            volume = handle,
            node,
            id = response.id,
            code = response.code,
            reason = response.reason,
            "{rpc}: answered"
        );
        if response.code != Code::Ok as i32 {
            return Err(passed_on(response));
        }
        let message = base64::decode(&response.message).ok().and_then(|message| A::decode(&*message).ok());
        // It may have been done all the same.
        message.map(Answered::new).ok_or_else(|| away(format!("{about}: the answer of node {node} is malformed")))
    }
}

/// The PersistentVolume of the handle.
async fn find(api: &Api, driver: &str, handle: &str) -> Result<Volume, Status> {
    // Those that csi-provisioner made are called as the volume is.
    let named = handle.split_once(':').map_or(handle, |(_, name)| name);
    let is_name = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    if !named.is_empty()
        && named.bytes().all(is_name)
        && let Some(volume) = read::<Volume>(api, &format!("{VOLUMES}/{named}")).await?
        && volume.is(driver, handle)
    {
        return Ok(volume);
    }
    let mut rest = String::new();
    loop {
        let path = format!("{VOLUMES}?limit={PAGE}&continue={rest}");
        let list: List<Volume> =
            read(api, &path).await?.ok_or_else(|| away(format!("{}: there is no such list", api.url(VOLUMES))))?;
        if let Some(volume) = list.items.into_iter().find(|volume| volume.is(driver, handle)) {
            return Ok(volume);
        }
        if list.metadata.rest.is_empty() {
            return Err(Status::not_found(format!(
                "find volume {handle}: no PersistentVolume of the driver {driver} has this handle"
            )));
        }
        rest = list.metadata.rest;
    }
}

/// An object; `None` where there is none.
async fn read<T: for<'de> Deserialize<'de>>(api: &Api, path: &str) -> Result<Option<T>, Status> {
    match api.call(path, Body::None).await.map_err(away)? {
        (200, body) => serde_json::from_slice(&body).map(Some).map_err(|error| away(format!("{}: {error}", api.url(path)))),
        (404, _) => Ok(None),
        (status, _) => Err(away(format!("{}: the API server answers {status}", api.url(path)))),
    }
}

/// Puts the request on the volume. One that is there already is replaced: its caller has given up.
async fn ask(api: &Api, volume: &Volume, node: &str, request: &Request) -> Result<(), Status> {
    let text = serde_json::to_string(request).map_err(|error| Status::internal(error.to_string()))?;
    let patch = json!({ "metadata": { "labels": { NODE: node }, "annotations": { REQUEST: text, RESPONSE: null } } });
    match api.call(&volume.path(), Body::MergePatch(patch.to_string().into_bytes())).await.map_err(away)? {
        (200, _) => Ok(()),
        (404, _) => Err(Status::not_found(format!("{}: it is gone", api.url(&volume.path())))),
        (status, body) => Err(away(format!(
            "{}: the API server answers {status} to the request for node {node}: {}",
            api.url(&volume.path()),
            String::from_utf8_lossy(&body)
        ))),
    }
}

/// Waits for the response to the request.
async fn answer(api: &Api, volume: &Volume, request: &Request) -> Result<Response, Status> {
    let selector = format!("fieldSelector=metadata.name%3D{}", volume.metadata.name);
    loop {
        match response(api, &selector, request).await {
            Ok(Some(response)) => return Ok(response),
            Ok(None) => {}
            Err(error) => tracing::warn!(pv = volume.metadata.name, error, "the answer is waited for again"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn response(api: &Api, selector: &str, request: &Request) -> Result<Option<Response>, String> {
    let mut watch = api.watch(VOLUMES, selector, 60).await?;
    while let Some(volume) = watch.next::<Volume>().await? {
        // What was there before is no answer; neither is one to a request that has replaced ours.
        if let Some(response) = volume.response().filter(|response| response.id == request.id) {
            return Ok(Some(response));
        }
    }
    Ok(None)
}

#[allow(clippy::disallowed_methods, reason = "the driver of the node has chosen the code")]
fn passed_on(response: Response) -> Status {
    Status::new(Code::from_i32(response.code), response.reason)
}

/// Not over: csi-resizer asks again.
fn away(reason: String) -> Status {
    Status::unavailable(reason)
}

#[tonic::async_trait]
impl csi::identity_server::Identity for Relay {
    async fn get_plugin_info(
        &self,
        _request: tonic::Request<csi::GetPluginInfoRequest>,
    ) -> Result<Answered<csi::GetPluginInfoResponse>, Status> {
        Ok(Answered::new(csi::GetPluginInfoResponse {
            name: self.inner.driver.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _request: tonic::Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Answered<csi::GetPluginCapabilitiesResponse>, Status> {
        let controller =
            csi::plugin_capability::Service { r#type: csi::plugin_capability::service::Type::ControllerService.into() };
        let capability = csi::PluginCapability { r#type: Some(csi::plugin_capability::Type::Service(controller)) };
        Ok(Answered::new(csi::GetPluginCapabilitiesResponse { capabilities: vec![capability] }))
    }

    /// Whether there is a node that answers, each call shows.
    async fn probe(&self, _request: tonic::Request<csi::ProbeRequest>) -> Result<Answered<csi::ProbeResponse>, Status> {
        Ok(Answered::new(csi::ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl csi::controller_server::Controller for Relay {
    /// What csi-resizer asks for. A node whose storage cannot do it says so by its answer.
    async fn controller_get_capabilities(
        &self,
        _request: tonic::Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Answered<csi::ControllerGetCapabilitiesResponse>, Status> {
        let capability = |rpc: Rpc| csi::ControllerServiceCapability {
            r#type: Some(csi::controller_service_capability::Type::Rpc(csi::controller_service_capability::Rpc {
                r#type: rpc.into(),
            })),
        };
        let capabilities = [Rpc::ExpandVolume, Rpc::ModifyVolume, Rpc::SingleNodeMultiWriter].map(capability).into();
        Ok(Answered::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_expand_volume(
        &self,
        request: tonic::Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Answered<csi::ControllerExpandVolumeResponse>, Status> {
        let mut request = request.into_inner();
        // Everyone who may read PersistentVolumes reads annotations. No backend of a node wants any secret here.
        request.secrets.clear();
        self.relay("ControllerExpandVolume", &request.volume_id, request.encode_to_vec()).await
    }

    async fn controller_modify_volume(
        &self,
        request: tonic::Request<csi::ControllerModifyVolumeRequest>,
    ) -> Result<Answered<csi::ControllerModifyVolumeResponse>, Status> {
        let mut request = request.into_inner();
        request.secrets.clear();
        self.relay("ControllerModifyVolume", &request.volume_id, request.encode_to_vec()).await
    }
}

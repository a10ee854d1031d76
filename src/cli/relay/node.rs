//! The node's half: carries out what is asked of the node's volumes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_smithy_types::base64;
use prost::Message;
use serde_json::json;
use tonic::Status;

use super::super::api::{Api, Body};
use super::super::call::Client;
use super::super::progress::Progress;
use super::message::{NODE, REQUEST, RESPONSE, Request, Response, VOLUMES, Volume};
use crate::config::Endpoint;
use crate::csi;
use crate::os::lock;

/// How long the driver is waited for; what it has begun continues.
const CALL: Duration = Duration::from_secs(60);
/// Between two tries of what failed: at first, and at most.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Seconds of a watch. Not the same for all nodes: they would come all at once.
const WATCH: u32 = 240;
const SPREAD: u32 = 60;
/// Bytes of a driver's message that are passed on: all annotations of an object have 256 KiB.
const LONGEST_REASON: usize = 4096;

/// Watches for requests. Cheap to clone.
#[derive(Clone)]
pub(super) struct Relay {
    inner: Arc<Inner>,
}

struct Inner {
    api: Api,
    driver: String,
    node: String,
    endpoint: Endpoint,
    /// The last request of each PersistentVolume that was begun here: a watch may show it more than once.
    begun: Mutex<HashMap<String, String>>,
}

impl Relay {
    pub(super) fn new(api: Api, driver: &str, node: &str, endpoint: &Endpoint) -> Self {
        let (driver, node) = (driver.to_owned(), node.to_owned());
        Relay { inner: Arc::new(Inner { api, driver, node, endpoint: endpoint.clone(), begun: Mutex::default() }) }
    }

    pub(super) async fn run(&self) {
        let spread = self.inner.node.bytes().fold(0, |sum: u32, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % SPREAD;
        let selector = format!("labelSelector={}%3D{}", NODE.replace('/', "%2F"), self.inner.node);
        let mut pause = PAUSE;
        loop {
            match self.watch(&selector, WATCH + spread).await {
                Ok(()) => pause = PAUSE,
                Err(error) => {
                    tracing::warn!(error, "requests for this node's volumes are watched for again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    async fn watch(&self, selector: &str, seconds: u32) -> Result<(), String> {
        let mut watch = self.inner.api.watch(VOLUMES, selector, seconds).await?;
        while let Some(volume) = watch.next::<Volume>().await? {
            self.begin(volume);
        }
        Ok(())
    }

    /// Carries the volume's request out, if it has one that is ours and has not been begun.
    fn begin(&self, volume: Volume) {
        let Inner { driver, node, begun, .. } = &*self.inner;
        // Another driver's relay has the same label.
        if volume.spec.csi.driver != *driver {
            return;
        }
        let Some(request) = volume.request() else { return };
        if volume.node() != Some(node) {
            tracing::warn!(
                pv = volume.metadata.name,
                "a request for a volume that is not on this node, by its node affinity; ignored"
            );
            return;
        }
        if lock(begun).insert(volume.metadata.name.clone(), request.id.clone()).as_ref() == Some(&request.id) {
            return;
        }
        let relay = self.clone();
        tokio::spawn(async move {
            let handle = &volume.spec.csi.volume_handle;
            let response = match carry_out(&relay.inner.endpoint, handle, &request).await {
                Ok(message) => {
                    Response { id: request.id.clone(), code: 0, reason: String::new(), message: base64::encode(message) }
                }
                Err(status) => {
                    let reason = status.message().chars().take(LONGEST_REASON).collect();
                    Response { id: request.id.clone(), code: status.code().into(), reason, message: String::new() }
                }
            };
            tracing::info!(volume = handle, id = response.id, code = response.code, reason = response.reason, "{}", request.rpc);
            relay.answer(&volume, &response).await;
        });
    }

    /// Puts the response in the request's place, unless that is another one meanwhile.
    async fn answer(&self, volume: &Volume, response: &Response) {
        let api = &self.inner.api;
        let pointer = |map: &str, key: &str| format!("/metadata/{map}/{}", key.replace('/', "~1"));
        let text = json!(response).to_string();
        let patch = json!([
            { "op": "test", "path": pointer("annotations", REQUEST), "value": volume.metadata.annotations.get(REQUEST) },
            { "op": "remove", "path": pointer("annotations", REQUEST) },
            { "op": "add", "path": pointer("annotations", RESPONSE), "value": text },
            { "op": "remove", "path": pointer("labels", NODE) },
        ]);
        let patch = patch.to_string().into_bytes();
        let mut pause = PAUSE;
        loop {
            let reason = match api.call(&volume.path(), Body::JsonPatch(patch.clone())).await {
                Ok((200, _)) => return,
                // The volume is gone, or has another request, which answers itself.
                Ok((404 | 422, _)) => return,
                Ok((status, body)) => format!("the API server answers {status}: {}", String::from_utf8_lossy(&body)),
                Err(error) => error,
            };
            tracing::warn!(pv = volume.metadata.name, reason, "the answer is sent again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Calls the node's driver.
async fn carry_out(endpoint: &Endpoint, handle: &str, request: &Request) -> Result<Vec<u8>, Status> {
    let message = base64::decode(&request.message).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let malformed = |error: prost::DecodeError| Status::invalid_argument(error.to_string());
    let same = |id: &str| {
        let other =
            || Status::invalid_argument(format!("{}: the request is about {id:?}, and this volume is {handle:?}", request.rpc));
        (id == handle).then_some(()).ok_or_else(other)
    };
    let client = || async {
        let connected = Client::connect(endpoint, CALL, Progress::new(false)).await;
        connected.map(|client| client.controller()).map_err(|error| Status::unavailable(format!("{}: {error}", request.rpc)))
    };
    let call = async {
        match request.rpc.as_str() {
            "ControllerExpandVolume" => {
                let expand = csi::ControllerExpandVolumeRequest::decode(&*message).map_err(malformed)?;
                same(&expand.volume_id)?;
                Ok(client().await?.controller_expand_volume(expand).await?.into_inner().encode_to_vec())
            }
            "ControllerModifyVolume" => {
                let modify = csi::ControllerModifyVolumeRequest::decode(&*message).map_err(malformed)?;
                same(&modify.volume_id)?;
                Ok(client().await?.controller_modify_volume(modify).await?.into_inner().encode_to_vec())
            }
            other => Err(Status::unimplemented(format!("{other}: not passed on to a node's driver"))),
        }
    };
    let late = |_| Err(Status::deadline_exceeded(format!("{}: the driver has not answered within {CALL:?}", request.rpc)));
    tokio::time::timeout(CALL, call).await.unwrap_or_else(late)
}

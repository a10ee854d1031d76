//! Identity: who we are, what we can, whether we are well.

use std::time::Duration;

use tonic::{Request, Response, Status};

use super::Services;
use super::method::Rpc;
use super::observe::{Report, Subject};
use crate::csi;

/// For how long a caller of Probe waits. The sidecars give it some seconds.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct Identity {
    pub(super) services: Services,
}

#[tonic::async_trait]
impl csi::identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        _request: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        let parts = &self.services.inner.parts;
        let answer = csi::GetPluginInfoResponse {
            name: parts.name.clone(),
            vendor_version: parts.version.clone(),
            manifest: Default::default(),
        };
        self.services.answer(Rpc::GetPluginInfo, answer)
    }

    async fn get_plugin_capabilities(
        &self,
        _request: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        let capabilities = self.services.capabilities().plugin();
        self.services.answer(Rpc::GetPluginCapabilities, csi::GetPluginCapabilitiesResponse { capabilities })
    }

    /// Never an error: a sidecar that gets one at its start ends, and then serves no backend at all. `ready: false` while the driver
    /// starts or stops, is on standby, or no backend can be used; `/readyz`, the log, the metrics and the health RPCs name each that cannot.
    async fn probe(&self, _request: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        let readiness = self.services.readiness();
        let report = Report::new(Rpc::Probe, Subject::default(), self.services.metrics());
        let ready = readiness.is_ready() && readiness.is_usable(PATIENCE).await;
        self.services.done(report, csi::ProbeResponse { ready: Some(ready) })
    }
}

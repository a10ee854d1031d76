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

    /// Starting or stopping is `ready: false`; a backend that cannot be reached is an error, since that may need someone
    /// (CSI spec, ProbeResponse.ready).
    async fn probe(&self, _request: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        let readiness = self.services.readiness();
        let report = Report::new(Rpc::Probe, Subject::default(), self.services.metrics());
        if !readiness.is_ready() {
            return self.services.done(report, csi::ProbeResponse { ready: Some(false) });
        }
        match readiness.backends(PATIENCE).await {
            Ok(()) => self.services.done(report, csi::ProbeResponse { ready: Some(true) }),
            Err(error) => Err(Subject::default().span(Rpc::Probe, self.services.this_node()).in_scope(|| report.failed(&error))),
        }
    }
}

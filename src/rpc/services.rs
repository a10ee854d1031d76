//! What all services share, and how each call runs: decoded, run, reported.

use std::fmt;
use std::sync::Arc;

use tonic::{Request, Response, Status};
use tracing::Instrument;

use crate::backend::registry::Registry;
use crate::metrics::{Metrics, Seen};
use crate::ops::gauges::Gauges;
use crate::ops::lock::Locks;
use crate::ops::task::Tasks;
use crate::ops::{Controller, Node};
use crate::volume::{Error, Outcome, Result};

use super::capabilities::Capabilities;
use super::method::Rpc;
use super::observe::{Effect, Observed, Report, Subject};
use super::readiness::Readiness;
use super::status;

/// What the services need. The mode of the process is which of `controller` and `node` are there.
#[derive(Clone)]
pub struct Parts {
    /// The driver's name, as the CO knows it: `csi.longshore.dev`.
    pub name: String,
    pub version: String,
    pub registry: Registry,
    /// With it: Controller, GroupController and SnapshotMetadata are served.
    pub controller: Option<Arc<Controller>>,
    /// With it: Node is served.
    pub node: Option<Arc<Node>>,
    pub tasks: Tasks,
    pub locks: Locks,
    pub metrics: Metrics,
}

/// All services of one process, sharing what they need. Cheap to clone.
#[derive(Clone)]
pub struct Services {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) parts: Parts,
    capabilities: Capabilities,
    readiness: Readiness,
    gauges: Gauges,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services")
            .field("name", &self.inner.parts.name)
            .field("version", &self.inner.parts.version)
            .field("controller", &self.inner.parts.controller.is_some())
            .field("node", &self.inner.parts.node.is_some())
            .finish_non_exhaustive()
    }
}

impl Services {
    /// Probe answers "not ready" until [`Readiness::set_ready`].
    pub fn new(parts: Parts) -> Self {
        let capabilities = Capabilities::of(&parts.registry, parts.node.is_some());
        let readiness = Readiness::new(&parts.registry);
        let gauges = Gauges::new(&parts.registry, parts.node.clone());
        Services { inner: Arc::new(Inner { parts, capabilities, readiness, gauges }) }
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.parts.metrics
    }

    /// What is looked up for the metrics; in time, whatever the storage does.
    pub async fn seen(&self) -> Seen {
        self.inner.gauges.seen().await
    }

    pub fn readiness(&self) -> &Readiness {
        &self.inner.readiness
    }

    /// What runs the operations, to wait for it at the end.
    pub fn tasks(&self) -> &Tasks {
        &self.inner.parts.tasks
    }

    /// What is at work, for the log at the end.
    pub fn locks(&self) -> &Locks {
        &self.inner.parts.locks
    }

    /// The name of the node, where Node is served.
    pub(super) fn this_node(&self) -> Option<&str> {
        self.inner.parts.node.as_ref().map(|node| node.id().as_str())
    }

    pub(super) fn capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    /// Runs an operation that changes something.
    pub(super) async fn mutate<Q, R, T>(
        &self,
        rpc: Rpc,
        request: Request<Q>,
        work: impl FnOnce(R) -> Result<Outcome<T>> + Send + 'static,
    ) -> Result<T, Status>
    where
        Q: Observed + fmt::Debug,
        R: TryFrom<Q, Error = Error> + Send + 'static,
        T: Send + 'static,
    {
        self.run(rpc, request, Effect::of, work).await.map(Outcome::into_inner)
    }

    /// Runs an operation that only looks.
    pub(super) async fn read<Q, R, T>(
        &self,
        rpc: Rpc,
        request: Request<Q>,
        work: impl FnOnce(R) -> Result<T> + Send + 'static,
    ) -> Result<T, Status>
    where
        Q: Observed + fmt::Debug,
        R: TryFrom<Q, Error = Error> + Send + 'static,
        T: Send + 'static,
    {
        self.run(rpc, request, |_| Effect::Read, work).await
    }

    /// Decodes, runs and reports. The report goes with the work, to be made when that ends.
    pub(super) async fn run<Q, R, T>(
        &self,
        rpc: Rpc,
        request: Request<Q>,
        effect: impl FnOnce(&T) -> Effect + Send + 'static,
        work: impl FnOnce(R) -> Result<T> + Send + 'static,
    ) -> Result<T, Status>
    where
        Q: Observed + fmt::Debug,
        R: TryFrom<Q, Error = Error> + Send + 'static,
        T: Send + 'static,
    {
        let request = request.into_inner();
        let subject = request.subject();
        let object = read_object(rpc, subject);
        let span = subject.span(rpc, self.this_node());
        let call = async {
            let (report, request) = self.admit(rpc, request)?;
            let _waiting = report.caller();
            let turn = match object {
                Some(object) => match self.tasks().read_turn(rpc.name(), &object).await {
                    Ok(turn) => Some(turn),
                    Err(error) => return Err(report.failed(&error)),
                },
                None => None,
            };
            let run = move || {
                let result = work(request);
                match &result {
                    Ok(done) => report.ok(effect(done)),
                    Err(error) => {
                        report.failed(error);
                    }
                }
                result
            };
            let result = match turn {
                Some(turn) => self.tasks().run_read(turn, run).await,
                None => self.tasks().run(run).await,
            };
            result.map_err(|error| status::status(rpc, &error))
        };
        call.instrument(span).await
    }

    /// Turns away what is not offered and what cannot be decoded; both are reported here.
    pub(super) fn admit<Q, R>(&self, rpc: Rpc, mut request: Q) -> Result<(Report, R), Status>
    where
        Q: Observed + fmt::Debug,
        R: TryFrom<Q, Error = Error>,
    {
        tracing::trace!(?request, "called");
        let report = Report::new(rpc, request.subject(), self.metrics());
        if !self.capabilities().serves(rpc) {
            return Err(report.refused(status::not_offered(rpc)));
        }
        if rpc.is_controllers()
            && let Some(reason) = self.inner.parts.registry.leadership().standby()
        {
            return Err(report.failed(&reason));
        }
        for handle in request.handles() {
            if let Some(id) = self.inner.parts.registry.existing_volume(handle) {
                *handle = id.to_string();
            }
        }
        match R::try_from(request) {
            Ok(request) => Ok((report, request)),
            Err(error) => Err(report.failed(&error)),
        }
    }

    /// Answers what needs neither a request nor a task.
    pub(super) fn answer<T>(&self, rpc: Rpc, answer: T) -> Result<Response<T>, Status> {
        let report = Report::new(rpc, Subject::default(), self.metrics());
        self.done(report, answer)
    }

    pub(super) fn done<T>(&self, report: Report, answer: T) -> Result<Response<T>, Status> {
        self.tasks().touch();
        Subject::default().span(report.rpc(), self.this_node()).in_scope(|| report.ok(Effect::Read));
        Ok(Response::new(answer))
    }
}

/// What a read is about, of which there is one of a kind at a time: it may hang with the storage. `None` for all other calls.
fn read_object(rpc: Rpc, subject: Subject<'_>) -> Option<String> {
    let kind = match rpc {
        Rpc::NodeGetStorageHealth => return Some("storage".to_owned()),
        Rpc::ListVolumes | Rpc::ControllerListVolumeHealth => return Some("all volumes".to_owned()),
        Rpc::ListSnapshots if subject.id().is_none() => return Some("all snapshots".to_owned()),
        // One that hangs must not keep the scheduler from those of others.
        Rpc::GetCapacity => return Some(subject.place().unwrap_or_else(|| "all backends".to_owned())),
        Rpc::GetSnapshot | Rpc::ListSnapshots => "snapshot",
        Rpc::GetVolumeGroupSnapshot => "group snapshot",
        rpc if rpc.mutates() => return None,
        _ => "volume",
    };
    subject.id().map(|id| format!("{kind} {id}"))
}

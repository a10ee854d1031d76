//! A collector of traces, as small as it can be: takes all, and keeps it.

use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// Dropped, nobody listens any more.
pub struct Collector {
    pub address: SocketAddr,
    taken: Receiver<ExportTraceServiceRequest>,
    /// All that has come.
    pub requests: Vec<ExportTraceServiceRequest>,
    _runtime: tokio::runtime::Runtime,
}

struct Taking(Sender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Taking {
    async fn export(&self, request: Request<ExportTraceServiceRequest>) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).expect("the test listens");
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    pub fn start() -> Collector {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (sender, taken) = mpsc::channel();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("its address");
        let service = TraceServiceServer::new(Taking(sender));
        runtime.spawn(
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Collector { address, taken, requests: Vec::new(), _runtime: runtime }
    }

    /// Waits until `there` is among what has come.
    pub fn until(&mut self, there: impl Fn(&[Span]) -> bool) {
        let end = Instant::now() + LONG;
        while !there(&self.spans()) {
            let left = end.saturating_duration_since(Instant::now());
            self.requests.push(self.taken.recv_timeout(left).expect("more spans"));
        }
    }

    /// Takes what has come meanwhile.
    pub fn take(&mut self) {
        self.requests.extend(self.taken.try_iter());
    }

    pub fn spans(&self) -> Vec<Span> {
        let resources = self.requests.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
    }
}

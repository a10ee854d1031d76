//! The connection to a driver.

use std::error::Error;
use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Uri};
use tonic::{Code, Response, Status, Streaming};

use crate::admin::admin_client::AdminClient;
use crate::config::Endpoint;
use crate::csi::controller_client::ControllerClient;
use crate::csi::group_controller_client::GroupControllerClient;
use crate::csi::identity_client::IdentityClient;
use crate::csi::node_client::NodeClient;
use crate::csi::snapshot_metadata_client::SnapshotMetadataClient;
use crate::volume::error::chain;

use super::super::Failure;
use super::super::progress::Progress;

/// The largest answer that is read: a list of 10,000 volumes in one page has some 4 MiB, gRPC's default limit.
const LARGEST_ANSWER: usize = 256 << 20;

/// A driver that has answered the phone.
pub struct Client {
    channel: Channel,
    timeout: Duration,
    progress: Progress,
}

macro_rules! services {
    ($($service:ident: $client:ident),*) => {
        $(pub fn $service(&self) -> $client<Channel> {
            $client::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER)
        })*
    };
}

impl Client {
    services!(
        admin: AdminClient,
        identity: IdentityClient,
        controller: ControllerClient,
        group_controller: GroupControllerClient,
        snapshot_metadata: SnapshotMetadataClient,
        node: NodeClient
    );

    /// # Errors
    /// `Unreachable` where nobody listens, or not within the timeout.
    pub async fn connect(endpoint: &Endpoint, timeout: Duration, progress: Progress) -> Result<Self, Failure> {
        let unreachable = |reason: String| Failure::Unreachable { endpoint: endpoint.to_string(), reason };
        let path = endpoint.path().to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // A socket has no name; HTTP wants one.
        let nominal = Channel::from_static("http://localhost");
        let connecting = nominal.connect_with_connector(connector);
        match tokio::time::timeout(timeout, connecting).await {
            Ok(Ok(channel)) => Ok(Client { channel, timeout, progress }),
            Ok(Err(error)) => Err(unreachable(cause(&error))),
            Err(_) => Err(unreachable(format!("no connection within {}", humantime::format_duration(timeout)))),
        }
    }

    /// Waits for the answer to one call, `what` standing on the screen.
    ///
    /// # Errors
    /// The driver's; DEADLINE_EXCEEDED where there is no answer in time.
    pub async fn answer<T>(&self, what: &str, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Failure> {
        let response = self.within(self.progress.watch(what, call)).await?;
        Ok(response.into_inner())
    }

    /// Waits for all messages of a stream; the timeout is for the whole.
    pub async fn collect<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    ) -> Result<Vec<T>, Failure> {
        let all = async {
            let mut stream = call.await?.into_inner();
            let mut messages = Vec::new();
            while let Some(message) = stream.message().await? {
                messages.push(message);
            }
            Ok(messages)
        };
        self.within(self.progress.watch(what, all)).await
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Failure> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(status)) => Err(Failure::Call { code: status.code(), message: status.message().to_owned() }),
            Err(_) => {
                let message = format!("no answer within {}", humantime::format_duration(self.timeout));
                Err(Failure::Call { code: Code::DeadlineExceeded, message })
            }
        }
    }
}

/// What the operating system said, if it was that; tonic's own words for it ("transport error") tell nothing.
fn cause(error: &(dyn Error + 'static)) -> String {
    let mut inner = Some(error);
    while let Some(error) = inner {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.to_string();
        }
        inner = error.source();
    }
    chain(error)
}

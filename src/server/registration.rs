//! The driver registers itself with the kubelet, as node-driver-registrar does it from a container of its own.
//!
//! The kubelet watches a directory for sockets. It asks each who it is, and says whether it has taken the plugin up. A socket
//! that comes anew is asked anew: that is how a registration that failed is tried again, and how one is renewed whose
//! socket another process has removed. A kubelet that starts again asks the sockets that it finds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::authority::AnyAuthority;
use super::{Error, Result, Socket, SocketFile, directory_of};
use crate::ops::registration_socket;
use crate::pluginregistration as protocol;
use crate::pluginregistration::registration_server::{Registration, RegistrationServer};

/// What the kubelet calls a CSI driver, and the versions of CSI that it asks for (k8s.io/kubelet, pluginregistration/v1,
/// constants.go; its CSI plugin takes the highest of these, which is CSI's major version 1).
const KIND: &str = "CSIPlugin";
const VERSIONS: [&str; 1] = ["1.0.0"];
/// How often it is looked whether the socket is still there: two system calls.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Between two tries, from the first on; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// For how long the kubelet may take to fetch its last answer from a socket that is given up.
const CLOSING: Duration = Duration::from_secs(1);

/// How the driver is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The kubelet's own directory.
    pub kubelet_dir: PathBuf,
    pub driver_name: String,
    /// The driver's socket as the kubelet sees it.
    pub endpoint: PathBuf,
}

impl Settings {
    fn socket(&self) -> PathBuf {
        registration_socket(&self.kubelet_dir, &self.driver_name)
    }
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// There is a socket; the kubelet has not said anything.
    Waiting,
    Registered,
    /// The kubelet has said that it failed, and why. So it stays until the kubelet says something else.
    Refused(String),
    /// There is no socket, and why.
    NoSocket(String),
}

/// What has become of the registration, for those who ask.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    socket: PathBuf,
    state: watch::Receiver<State>,
}

impl Watched {
    /// Why the driver is not registered, and what to do; `None` where it is.
    pub fn problem(&self) -> Option<String> {
        let socket = self.socket.display();
        match &*self.state.borrow() {
            State::Registered => None,
            State::Waiting => Some(format!(
                "the kubelet has not taken the driver up by {socket}; see that it runs, and that --kubelet-dir is its directory"
            )),
            State::Refused(why) => Some(format!("the kubelet has refused the driver: {why}; it is tried again")),
            State::NoSocket(why) => Some(format!("there is no socket for the kubelet: {why}; it is tried again")),
        }
    }
}

/// A registration whose socket is there.
pub(super) struct Registrar {
    settings: Settings,
    state: watch::Sender<State>,
    socket: Option<Socket>,
}

impl Registrar {
    /// Makes the socket.
    ///
    /// # Errors
    /// `NoRegistry` where the kubelet's directory is not there; those of any socket.
    pub async fn open(settings: Settings) -> Result<Registrar> {
        let socket = bind(&settings.socket()).await?;
        Ok(Registrar { settings, state: watch::Sender::new(State::Waiting), socket: Some(socket) })
    }

    pub fn watched(&self) -> Watched {
        Watched { socket: self.settings.socket(), state: self.state.subscribe() }
    }

    /// Never ends. Dropped, it removes the socket's file if that is still ours.
    pub async fn run(mut self) {
        let path = self.settings.socket();
        let mut pause = FIRST_PAUSE;
        loop {
            let socket = match self.socket.take() {
                Some(socket) => Ok(socket),
                None => bind(&path).await,
            };
            match socket {
                Ok(socket) => match self.serve(socket).await {
                    Ended::Lost => {
                        tracing::warn!(socket = %path.display(), "the socket for the kubelet was removed; it is made again");
                        pause = FIRST_PAUSE;
                        continue;
                    }
                    Ended::Refused { registered: true } => pause = FIRST_PAUSE,
                    Ended::Refused { registered: false } => {}
                },
                Err(error) => {
                    tracing::warn!(%error, again_after = ?pause, "the driver cannot be registered with the kubelet");
                    self.state.send_replace(State::NoSocket(error.to_string()));
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Answers the kubelet until the socket is of no more use.
    async fn serve(&self, socket: Socket) -> Ended {
        self.state.send_if_modified(|state| {
            let modified = !matches!(state, State::Refused(_) | State::Waiting);
            if modified {
                *state = State::Waiting;
            }
            modified
        });
        let state = self.state.subscribe();
        let (listener, file) = socket.split();
        let file = Kept(file);
        tracing::info!(socket = %file.0.path.display(), endpoint = %self.settings.endpoint.display(), "offered to the kubelet");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let service = Service { settings: self.settings.clone(), state: self.state.clone() };
        let serving = Server::builder().add_service(RegistrationServer::new(service)).serve_with_incoming_shutdown(
            UnixListenerStream::new(listener).map(|stream| stream.map(AnyAuthority::new)),
            async {
                // An error says that the other end was dropped, which is a reason to stop too.
                stopped.await.unwrap_or_default();
            },
        );
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = watch(&file.0, state) => ended,
            result = &mut serving => {
                tracing::warn!(?result, "the socket for the kubelet ended");
                Ended::Lost
            }
        };
        // The kubelet is to see it go before it sees the next one come.
        drop(file);
        drop(stop);
        if tokio::time::timeout(CLOSING, serving).await.is_err() {
            tracing::debug!("the kubelet keeps its connection to a socket that is gone");
        }
        ended
    }
}

/// Until the kubelet refuses the driver, or the socket's file is no longer ours.
async fn watch(file: &SocketFile, mut state: watch::Receiver<State>) -> Ended {
    let mut look = tokio::time::interval_at(Instant::now() + LOOK_AFTER, LOOK_AFTER);
    let mut registered = false;
    loop {
        tokio::select! {
            _ = look.tick() => {
                if !file.is_ours() {
                    return Ended::Lost;
                }
            }
            changed = state.changed() => {
                let now = state.borrow_and_update().clone();
                registered |= now == State::Registered;
                // The sender outlives this.
                if changed.is_err() || matches!(now, State::Refused(_)) {
                    return Ended::Refused { registered };
                }
            }
        }
    }
}

/// Why a socket is given up.
enum Ended {
    /// Its file is gone, or another's.
    Lost,
    /// By the kubelet, perhaps after it had taken it up once.
    Refused { registered: bool },
}

/// Removes the file when dropped, also where the task is cancelled.
struct Kept(SocketFile);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.remove();
    }
}

async fn bind(path: &Path) -> Result<Socket> {
    let directory = directory_of(path);
    if !directory.is_dir() {
        return Err(Error::NoRegistry { directory: directory.to_owned() });
    }
    Socket::bind_in_place(path, "--driver-name").await
}

/// What the kubelet calls.
struct Service {
    settings: Settings,
    state: watch::Sender<State>,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _request: Request<protocol::InfoRequest>) -> Result<Response<protocol::PluginInfo>, Status> {
        tracing::debug!("the kubelet asks who is there");
        Ok(Response::new(protocol::PluginInfo {
            r#type: KIND.to_owned(),
            name: self.settings.driver_name.clone(),
            endpoint: self.settings.endpoint.display().to_string(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<protocol::RegistrationStatus>,
    ) -> Result<Response<protocol::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let state = match status.plugin_registered {
            true => {
                tracing::info!("registered with the kubelet");
                State::Registered
            }
            false => {
                tracing::error!(error = status.error, "the kubelet has refused the driver");
                State::Refused(status.error)
            }
        };
        self.state.send_replace(state);
        Ok(Response::new(protocol::RegistrationStatusResponse {}))
    }
}

//! The socket: made safely, served until asked to stop, drained, and removed. Beside it, where they are asked for, the
//! kubelet's registration, and health over HTTP.
//!
//! Only who owns the process may talk to it: the socket's file is never anything but 0600, from the instant it exists. A
//! file that a dead process left is replaced; one that a living process listens on is not.

mod admin;
mod authority;
mod crowd;
mod error;
mod http;
pub mod registration;
mod socket;
mod traffic;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::csi;
use crate::rpc::Services;

pub use admin::{Admin, Log, Reload};
pub use error::{Error, Result};

use authority::AnyAuthority;
use http::{Asked, Http, Pages};
use registration::Registrar;
use socket::{Socket, SocketFile, directory_of};
use traffic::{Counted, Traffic};

/// The kernel's limit: `sun_path` of sockaddr_un has 108 bytes, the last of them NUL.
const LONGEST_PATH: usize = 107;
/// For how long connections may stay open once nothing runs any more, while they still carry something.
const CLOSING: Duration = Duration::from_secs(1);
/// A connection that carries nothing for that long has got its last answer.
const QUIET: Duration = Duration::from_millis(20);

/// Where the driver listens: an absolute path. Reads `unix:///path`, `unix:path` and `/path`; prints `unix:///path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    path: PathBuf,
}

impl Endpoint {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |reason| Err(Error::Endpoint { text: text.to_owned(), reason });
        let path = match text.strip_prefix("unix:") {
            // `unix://` names an authority, which must be empty.
            Some(rest) => match rest.strip_prefix("//") {
                Some(path) if !path.starts_with('/') => return refuse("the path must be absolute"),
                Some(path) => path,
                None => rest,
            },
            None if text.starts_with('/') => text,
            None => return refuse("only Unix sockets are served"),
        };
        if path.is_empty() || path.ends_with('/') {
            return refuse("it has no file name");
        }
        if path.contains('\0') {
            return refuse("it holds a NUL character");
        }
        let Ok(path) = std::path::absolute(path) else { return refuse("the current directory is not known") };
        if path.as_os_str().len() > LONGEST_PATH {
            return refuse("a socket's path has at most 107 bytes");
        }
        Ok(Endpoint { path })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.path.display())
    }
}

/// What is served, and how it ends.
#[derive(Clone, Debug)]
pub struct Settings {
    pub endpoint: Endpoint,
    /// How the driver registers with the kubelet, if it does so itself.
    pub registration: Option<registration::Settings>,
    /// Where health is served over HTTP, if at all.
    pub http: Option<SocketAddr>,
    /// Where metrics are.
    pub metrics: Metrics,
    pub admin: Admin,
    /// How long running calls may continue at the end.
    pub grace: Duration,
}

/// Where metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metrics {
    /// Where health is.
    WithHealth,
    At(SocketAddr),
    Nowhere,
}

/// Serves until `shutdown` comes; then takes no more connections, says "not ready", and gives what runs at most
/// the grace to come to its end.
///
/// Ready as soon as the socket listens: nothing slow is done here.
///
/// # Errors
/// Where a socket cannot be made, or the server breaks.
pub async fn serve(settings: Settings, services: Services, shutdown: impl Future<Output = ()>) -> Result<()> {
    let Settings { endpoint, registration, http, metrics, admin, grace } = settings;
    let mut ports = Vec::new();
    if let Some(address) = http {
        ports.push(Http::bind(address, Pages { health: true, metrics: metrics == Metrics::WithHealth })?);
    }
    if let Metrics::At(address) = metrics {
        ports.push(Http::bind(address, Pages { health: false, metrics: true })?);
    }
    let (listener, file) = Socket::bind(endpoint.path()).await?.split();
    let registrar = match registration {
        Some(settings) => match Registrar::open(settings).await {
            Ok(registrar) => Some(registrar),
            Err(error) => {
                file.remove();
                return Err(error);
            }
        },
        None => None,
    };
    services.readiness().set_ready(true);
    tracing::info!(%endpoint, "listening");
    let mut beside = JoinSet::new();
    beside.spawn(services.tasks().clone().tidy());
    let asked = Asked { services: services.clone(), registration: registrar.as_ref().map(Registrar::watched) };
    for port in ports {
        beside.spawn(port.run(asked.clone()));
    }
    if let Some(registrar) = registrar {
        beside.spawn(registrar.run());
    }
    let result = run(listener, &services, admin, shutdown, grace).await;
    // Ended, and seen to be ended: the kubelet's socket goes with its task.
    beside.shutdown().await;
    file.remove();
    result
}

/// Serves a Controller that has no storage, until `shutdown` comes. What runs then is not waited for: its caller repeats it.
///
/// # Errors
/// Where the socket cannot be made, or the server breaks.
pub async fn serve_controller(
    endpoint: &Endpoint,
    identity: impl csi::identity_server::Identity,
    controller: impl csi::controller_server::Controller,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let (listener, file) = Socket::bind(endpoint.path()).await?.split();
    tracing::info!(%endpoint, "listening");
    let traffic = Traffic::default();
    let incoming = UnixListenerStream::new(listener)
        .map(move |stream| stream.map(|stream| AnyAuthority::new(Counted::new(stream, &traffic))));
    let serving = Server::builder()
        .add_service(csi::identity_server::IdentityServer::new(identity))
        .add_service(csi::controller_server::ControllerServer::new(controller))
        .serve_with_incoming(incoming);
    let result = tokio::select! {
        ended = serving => ended.map_err(|source| Error::Serve { source }),
        () = shutdown => Ok(()),
    };
    file.remove();
    result
}

async fn run(
    listener: UnixListener,
    services: &Services,
    admin: Admin,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) -> Result<()> {
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let traffic = Traffic::default();
    let counting = traffic.clone();
    let incoming = UnixListenerStream::new(listener)
        .map(move |stream| stream.map(|stream| AnyAuthority::new(Counted::new(stream, &counting))));
    let serving = Server::builder()
        .add_service(services.identity())
        .add_service(admin.service(services.readiness().clone()))
        .add_optional_service(services.controller())
        .add_optional_service(services.group_controller())
        .add_optional_service(services.snapshot_metadata())
        .add_optional_service(services.node())
        .serve_with_incoming_shutdown(incoming, async {
            // An error says that the other end was dropped, which is a reason to stop too.
            stopped.await.unwrap_or_default();
        });
    tokio::pin!(serving, shutdown);
    tokio::select! {
        ended = &mut serving => return ended.map_err(|source| Error::Serve { source }),
        () = &mut shutdown => {}
    }
    services.readiness().set_ready(false);
    tracing::info!(grace = %humantime::format_duration(grace), "stopping: no new connections; what runs is finished");
    let deadline = Instant::now() + grace;
    drop(stop);
    let mut ended = None;
    let drained = services.tasks().drained(grace);
    tokio::pin!(drained);
    let mut drained = loop {
        tokio::select! {
            result = &mut serving, if ended.is_none() => ended = Some(result),
            drained = &mut drained => break drained,
        }
    };
    // The last answers are still to be sent; a client that merely keeps its connection open does not keep us.
    if ended.is_none() {
        tokio::select! {
            result = &mut serving => ended = Some(result),
            () = traffic.quiet(QUIET, CLOSING) => {}
        }
    }
    // What had arrived just before, and began only now.
    drained &= services.tasks().drained(deadline.saturating_duration_since(Instant::now())).await;
    tell_the_end(services, drained);
    ended.unwrap_or(Ok(())).map_err(|source| Error::Serve { source })
}

fn tell_the_end(services: &Services, drained: bool) {
    // Also what is still recovered, which is no call and is not waited for.
    let running = services.locks().running();
    if drained && running.is_empty() {
        tracing::info!("stopped: nothing runs any more");
        return;
    }
    let still: Vec<String> = running
        .iter()
        .map(|running| {
            let since = humantime::format_duration(Duration::from_secs(running.since.as_secs()));
            format!("{} of {}, at {:?}, since {since}", running.operation, running.object, running.step)
        })
        .collect();
    tracing::warn!(still = still.join("; "), "stopped with work unfinished; the next start takes it up");
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use tokio::net::UnixStream;

    use super::*;

    #[test]
    fn endpoints_are_read_as_people_write_them() {
        let path = |text: &str| text.parse::<Endpoint>().map(|endpoint| endpoint.path);
        assert_eq!(path("unix:///run/x/csi.sock").expect("valid"), Path::new("/run/x/csi.sock"));
        assert_eq!(path("/run/x/csi.sock").expect("valid"), Path::new("/run/x/csi.sock"));
        assert_eq!(path("unix:/run/csi.sock").expect("valid"), Path::new("/run/csi.sock"));
        let here = std::env::current_dir().expect("a directory");
        assert_eq!(path("unix:csi.sock").expect("valid"), here.join("csi.sock"));
        assert_eq!("/run/csi.sock".parse::<Endpoint>().expect("valid").to_string(), "unix:///run/csi.sock");
        for bad in ["", "unix:", "unix://", "unix://host/csi.sock", "tcp://1.2.3.4:5", "csi.sock", "/run/", "/a\0b"] {
            assert!(path(bad).is_err(), "{bad:?}");
        }
        assert!(path(&format!("/{}", "a".repeat(LONGEST_PATH))).is_err());
    }

    #[tokio::test]
    async fn the_socket_is_private_and_its_directory_is_made() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("sub/csi.sock");
        let socket = Socket::bind(&path).await.expect("bound");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let names: Vec<_> = fs::read_dir(directory.path().join("sub")).expect("a directory").collect();
        assert_eq!(names.len(), 1, "nothing beside the socket");
        socket.file.remove();
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("csi.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        let socket = Socket::bind(&path).await.expect("the dead one is replaced");
        assert!(matches!(Socket::bind(&path).await, Err(Error::Taken { .. })));
        UnixStream::connect(&path).await.expect("the living one still listens");
        drop(socket);
    }

    #[tokio::test]
    async fn file_that_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&path, "data").expect("written");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        for path in [&path, &link] {
            assert!(matches!(Socket::bind(path).await, Err(Error::NoSocket { .. })), "{}", path.display());
        }
        assert_eq!(fs::read_to_string(&path).expect("still there"), "data");
    }

    #[tokio::test]
    async fn another_process_s_socket_is_not_removed_at_the_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("csi.sock");
        let socket = Socket::bind(&path).await.expect("bound");
        fs::rename(&path, directory.path().join("old")).expect("moved away");
        let _other = std::os::unix::net::UnixListener::bind(&path).expect("bound by another");
        socket.file.remove();
        assert!(path.exists());
    }
}

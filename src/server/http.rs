//! Health over HTTP, for the kubelet's probes: `/healthz`, `/readyz`; and `/metrics`, for Prometheus.
//!
//! One short request per connection, each with a deadline: anyone who connects holds up nobody, and keeps nobody out, however many
//! connections it makes. No TLS and no secrets: what is served here may be read by anyone who reaches the port. Paths and causes are served
//! on the machine itself only.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::crowd::{Crowd, Place};
use super::registration::Watched;
use super::{Error, Result};
use crate::rpc::Services;

/// A connection has this long for its request and its answer.
const LONGEST: Duration = Duration::from_secs(10);
/// And this long for the head of its request, which those who ask here send in one piece.
const LONGEST_SILENCE: Duration = Duration::from_secs(2);
/// Connections that wait to be accepted. Where they are too many, the kernel drops a new one, which then comes again after a second.
const BACKLOG: u32 = 4096;
/// Bytes of a request's head. Those who ask here send a few hundred.
const LONGEST_HEAD: usize = 16 << 10;
/// The kubelet gives a probe one second, if nobody says otherwise.
const PATIENCE: Duration = Duration::from_millis(800);
/// After an accept that failed, as where there are no more file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

const PLAIN: &str = "text/plain; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const WITHHELD: &str = "failed; the cause is shown on this machine itself (loopback), and in the log";

const WITHHELD_STANDBY: &str = "another process provisions; which one is shown on this machine itself (loopback), and in the log";

/// What a port serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pages {
    /// `/healthz` and `/readyz`.
    pub health: bool,
    /// `/metrics`.
    pub metrics: bool,
}

/// A port that is bound.
pub(super) struct Http {
    listener: TcpListener,
    pages: Pages,
}

impl Http {
    /// Binds; where `[::]` is meant and there is no IPv6, all of IPv4.
    ///
    /// # Errors
    /// `HttpTaken` for a port in use.
    pub fn bind(address: SocketAddr, pages: Pages) -> Result<Http> {
        let option = if pages.health { "--http-endpoint" } else { "--metrics-endpoint" };
        let mut bound = listen(address);
        if address.is_ipv6() && address.ip().is_unspecified() && bound.as_ref().is_err_and(lacks_ipv6) {
            bound = listen((Ipv4Addr::UNSPECIFIED, address.port()).into());
        }
        match bound {
            Ok(listener) => {
                let address = listener.local_addr().unwrap_or(address);
                tracing::info!(health = pages.health, metrics = pages.metrics, %address, "serving HTTP");
                Ok(Http { listener, pages })
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(Error::HttpTaken { address, option }),
            Err(source) => Err(Error::Http { address, option, source }),
        }
    }

    /// Never ends.
    pub async fn run(self, asked: Asked) {
        let (asked, crowd) = (Arc::new(asked), Crowd::default());
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let (place, gone) = crowd.enter(peer.ip());
                    let serving = serve(stream, peer.ip(), self.pages, asked.clone(), place);
                    tokio::spawn(async move {
                        tokio::select! {
                            () = serving => {}
                            _ = gone => tracing::debug!("an HTTP connection made room for a later one"),
                        }
                    });
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As TcpListener::bind has it: connections of an earlier driver may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

async fn serve(stream: TcpStream, peer: IpAddr, pages: Pages, asked: Arc<Asked>, place: Place) {
    let local = peer.to_canonical().is_loopback();
    let answer = service_fn(|request: Request<Incoming>| {
        place.asked();
        let asked = asked.clone();
        async move { Ok::<_, Infallible>(asked.answer(request.method(), request.uri().path(), pages, local).await) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(LONGEST_HEAD).timer(TokioTimer::new()).header_read_timeout(LONGEST_SILENCE);
    match tokio::time::timeout(LONGEST, http.serve_connection(TokioIo::new(stream), answer)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP connection broke"),
        Err(_) => tracing::debug!("an HTTP connection took too long"),
    }
}

/// What is asked about.
#[derive(Clone)]
pub(super) struct Asked {
    pub services: Services,
    /// Where the driver registers itself.
    pub registration: Option<Watched>,
}

impl Asked {
    async fn answer(&self, method: &Method, path: &str, pages: Pages, local: bool) -> Response<String> {
        // hyper leaves the body of an answer to HEAD away.
        if ![Method::GET, Method::HEAD].contains(method) {
            return page(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD are answered\n".to_owned());
        }
        match path {
            // Anyone who reads it knows that the runtime still gets to its tasks.
            "/healthz" if pages.health => page(StatusCode::OK, PLAIN, "ok\n".to_owned()),
            "/readyz" if pages.health => self.ready(local).await,
            "/metrics" if pages.metrics => self.metrics().await,
            _ => page(StatusCode::NOT_FOUND, PLAIN, pages.list()),
        }
    }

    /// Each part on a line of its own: `[+] calls: ok`, or `[-]`, to the machine itself with what is wrong and what to do.
    async fn ready(&self, local: bool) -> Response<String> {
        let readiness = self.services.readiness();
        let calls = (!readiness.is_ready()).then(|| "it is starting or stopping; wait".to_owned());
        let problems: Vec<String> = readiness.problems(PATIENCE).await.iter().map(ToString::to_string).collect();
        let backends = (!problems.is_empty()).then(|| problems.join("; "));
        let mut parts = vec![("calls", calls), ("backends", backends)];
        parts.extend(self.registration.as_ref().map(|watched| ("registration", watched.problem())));
        let status = match parts.iter().all(|(_, problem)| problem.is_none()) {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        // A standby is as well as the one that provisions: it is to count where Kubernetes counts the pods that are ready.
        let standby = readiness.standby().map(|reason| match local {
            true => format!("[+] standby: {reason}\n"),
            false => format!("[+] standby: {WITHHELD_STANDBY}\n"),
        });
        let line = |(part, problem): (&str, Option<String>)| match problem {
            None => format!("[+] {part}: ok\n"),
            Some(problem) if local => format!("[-] {part}: {problem}\n"),
            Some(_) => format!("[-] {part}: {WITHHELD}\n"),
        };
        page(status, PLAIN, parts.into_iter().map(line).chain(standby).collect())
    }

    /// Costs the same however many volumes there are, and does not wait for storage that hangs.
    async fn metrics(&self) -> Response<String> {
        let mut seen = self.services.seen().await;
        seen.registered = self.registration.as_ref().map(|watched| watched.problem().is_none());
        page(StatusCode::OK, OPENMETRICS, self.services.metrics().text(&seen))
    }
}

impl Pages {
    /// What is served, for who asks for something else.
    fn list(self) -> String {
        let health = "/healthz: the process lives\n/readyz: it takes calls, and what keeps it from being ready\n";
        let metrics = "/metrics: for Prometheus\n";
        [(self.health, health), (self.metrics, metrics)].into_iter().filter(|(served, _)| *served).map(|(_, line)| line).collect()
    }
}

fn page(status: StatusCode, kind: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

//! One HTTPS request and its answer: what the clients of all clouds send by, and the thread on which they do.
//!
//! How a request is signed is the cloud's own. What is here is asynchronous, but for [`Worker`].

use std::error::Error;
use std::io;
use std::sync::mpsc;
use std::time::Duration;

use aws_smithy_http_client::Connector;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode};
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorSettings};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::runtime::{Builder, Runtime};
use tracing::subscriber::NoSubscriber;

use super::refusal::{CloudErrorKind, Refusal};
use super::rest::encoded;
use super::retry::Repeat;

/// To come to a connection, TLS included.
const CONNECT: Duration = Duration::from_secs(5);
/// Shorter than clouds keep a connection, so that no request is lost on one that is just being closed.
const IDLE: Duration = Duration::from_secs(15);
/// A page of a thousand volumes of EC2 with fifty tags each has some 15 MB.
const MOST_ANSWER: usize = 64 << 20;

const PROVIDER: Provider = Provider::Rustls(CryptoMode::Ring);

/// What was answered.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    /// By its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    /// `Retry-After`, in seconds.
    pub fn retry_after(&self) -> Option<Duration> {
        self.header("retry-after").and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs)
    }
}

/// Why there was no answer.
#[derive(Debug)]
pub enum Lost {
    /// No credentials or no region are configured, or who gives credentials refuses us; nothing was sent.
    NoCredentials(String),
    /// Credentials could not be had this time; nothing was sent.
    Credentials(String),
    /// Nothing was sent: what happened, and more of it.
    Unsent(&'static str, String),
    /// It may have come to the cloud.
    Sent(&'static str, String),
}

impl Lost {
    /// The thread of the connections has ended in the midst of it ([`Worker::wait`]).
    pub fn stopped() -> Lost {
        Lost::Sent("client stopped", "the request ended without an answer".to_owned())
    }

    pub fn refusal(self, action: &'static str, repeat: Repeat) -> Refusal {
        let (because, code, message, sent) = match self {
            Lost::NoCredentials(message) => (CloudErrorKind::Denied, "credentials", message, false),
            Lost::Credentials(message) => (CloudErrorKind::Unavailable, "credentials", message, false),
            Lost::Unsent(code, message) => (CloudErrorKind::Unavailable, code, message, false),
            Lost::Sent(code, message) => (CloudErrorKind::Unavailable, code, message, true),
        };
        let maybe_done = sent && repeat != Repeat::Reads;
        Refusal { because, action, code: code.to_owned(), message, request_id: None, maybe_done, retry_after: None }
    }
}

/// Whether a secret may be sent to this URL: over TLS, or to this very machine.
pub fn may_hear_secrets(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    // Before an `@` would be a user; in a path it is a letter like others.
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_this_machine = || matches!(authority.split(':').next(), Some("127.0.0.1" | "localhost"));
    !authority.contains('@') && (scheme == "https" || (scheme == "http" && is_this_machine()))
}

/// A request with JSON, or nothing, for a body.
///
/// # Errors
/// `Unsent` for what is no URL or no header.
pub fn json_request(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> Result<HttpRequest, Lost> {
    let mut builder = ::http::Request::builder()
        .method(method)
        .uri(url)
        .header("content-type", "application/json")
        .header("user-agent", concat!("longshore/", env!("CARGO_PKG_VERSION")));
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    let request = builder.body(SdkBody::from(body)).map_err(|error| Lost::Unsent("request", error.to_string()))?;
    HttpRequest::try_from(request).map_err(|error| Lost::Unsent("request", error.to_string()))
}

/// A request with a form for a body (OAuth 2.0).
///
/// # Errors
/// `Unsent` for what is no URL.
pub fn form_request(url: &str, form: &[(&str, &str)]) -> Result<HttpRequest, Lost> {
    let body: Vec<String> = form.iter().map(|(key, value)| format!("{key}={}", encoded(value))).collect();
    let request = ::http::Request::builder()
        .method("POST")
        .uri(url)
        .header("content-type", "application/x-www-form-urlencoded")
        .body(SdkBody::from(body.join("&")))
        .map_err(|error| Lost::Unsent("request", error.to_string()))?;
    HttpRequest::try_from(request).map_err(|error| Lost::Unsent("request", error.to_string()))
}

/// Connections that are kept.
#[derive(Debug)]
pub struct Sender {
    connector: Connector,
    /// For a whole answer.
    within: Duration,
}

impl Sender {
    /// With the proxy that the environment names (`HTTPS_PROXY`, `NO_PROXY`).
    pub fn new(within: Duration) -> Sender {
        Sender { connector: connector(Some(&settings(within)), ProxyConfig::from_env()), within }
    }

    /// Without a proxy: what is on the same machine.
    pub fn direct(within: Duration) -> Sender {
        Sender { connector: connector(Some(&settings(within)), ProxyConfig::disabled()), within }
    }

    /// As `new`, but servers show certificates of these authorities (PEM), and of no others.
    ///
    /// # Errors
    /// Why these are no certificates.
    pub fn trusting(within: Duration, authorities: &[u8]) -> Result<Sender, String> {
        let all: Vec<_> =
            CertificateDer::pem_slice_iter(authorities).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        if all.is_empty() {
            return Err("it has no certificate in PEM".to_owned());
        }
        let mut store = RootCertStore::empty();
        all.into_iter().try_for_each(|authority| store.add(authority)).map_err(|error| error.to_string())?;
        let trusted = TrustStore::empty().with_pem_certificate(authorities);
        let context = TlsContext::builder().with_trust_store(trusted).build().map_err(|error| error.to_string())?;
        let builder = Connector::builder().pool_idle_timeout(IDLE).proxy_config(ProxyConfig::from_env());
        let builder = builder.connector_settings(settings(within)).tls_provider(PROVIDER).tls_context(context);
        Ok(Sender { connector: builder.build(), within })
    }

    pub fn within(&self) -> Duration {
        self.within
    }

    /// Sends a request; `base` is where to, for people.
    ///
    /// # Errors
    /// Where there is no whole answer, whether it may have been sent.
    pub async fn send(&self, base: &str, request: HttpRequest) -> Result<Reply, Lost> {
        match tokio::time::timeout(self.within, self.exchange(base, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Lost::Sent("timeout", format!("{base}: no whole answer within {:?}", self.within))),
        }
    }

    async fn exchange(&self, base: &str, request: HttpRequest) -> Result<Reply, Lost> {
        let mut response = self.connector.call(request).await.map_err(|error| {
            let text = format!("{base}: {}", chain_text(&error));
            match (never_sent(&error), error.is_timeout()) {
                (true, false) => Lost::Unsent("connection", text),
                (true, true) => Lost::Unsent("timeout", text),
                (false, true) => Lost::Sent("timeout", text),
                (false, false) => Lost::Sent("connection", text),
            }
        })?;
        let status = response.status().as_u16();
        let headers = response.headers().iter().map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        let mut stream = ByteStream::new(response.take_body());
        let mut body = Vec::new();
        while let Some(part) = stream.next().await {
            body.extend_from_slice(&part.map_err(|error| Lost::Sent("answer interrupted", chain_text(&error)))?);
            if body.len() > MOST_ANSWER {
                return Err(Lost::Sent("answer too long", format!("more than {MOST_ANSWER} bytes")));
            }
        }
        let body = String::from_utf8(body).map_err(|_| Lost::Sent("unreadable answer", "it is not UTF-8".to_owned()))?;
        Ok(Reply { status, headers, body })
    }
}

fn settings(within: Duration) -> HttpConnectorSettings {
    HttpConnectorSettings::builder().connect_timeout(CONNECT.min(within)).build()
}

/// The connector of a cloud's own libraries, which send by it, too.
pub fn connector(settings: Option<&HttpConnectorSettings>, proxy: ProxyConfig) -> Connector {
    let mut builder = Connector::builder().pool_idle_timeout(IDLE).proxy_config(proxy);
    builder.set_connector_settings(settings.cloned());
    builder.tls_provider(PROVIDER).build()
}

/// Whether it failed before the request was written: no connection came to be.
fn never_sent(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<hyper_util::client::legacy::Error>())
        .any(hyper_util::client::legacy::Error::is_connect)
}

/// An error with all its causes, each once.
pub fn chain_text(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |&error| error.source()) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The thread of a client's connections, for callers that block.
#[derive(Debug)]
pub struct Worker {
    /// Until it is dropped.
    runtime: Option<Runtime>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Also where no thread may be waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Worker {
    /// # Errors
    /// Where the thread cannot be started.
    pub fn new(name: &str) -> io::Result<Worker> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            // For look-ups of names.
            .max_blocking_threads(2)
            .thread_name(name)
            .on_thread_start(keep_silent)
            .enable_all()
            .build()?;
        Ok(Worker { runtime: Some(runtime) })
    }

    /// Runs a future on the runtime, and waits for it on this thread; nothing where it panicked.
    pub fn wait<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (send, receive) = mpsc::sync_channel(1);
        self.runtime.as_ref()?.spawn(async move {
            // The other end waits.
            let _ = send.send(future.await);
        });
        receive.recv().ok()
    }
}

/// Nothing that runs on this thread is logged: the crates below trace what they send, session tokens included. What goes wrong there comes
/// back as an error.
fn keep_silent() {
    // Until the thread ends.
    std::mem::forget(tracing::subscriber::set_default(NoSubscriber::new()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_that_are_no_certificates_are_refused() {
        for authorities in ["", "hello", "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n"] {
            Sender::trusting(CONNECT, authorities.as_bytes()).map(drop).expect_err(authorities);
        }
    }

    #[test]
    fn secrets_are_sent_over_tls_or_to_this_machine() {
        for (url, is) in [
            ("https://example.com", true),
            ("http://127.0.0.1:1/v3", true),
            ("http://localhost/", true),
            ("http://example.com", false),
            ("http://127.0.0.1.example.com", false),
            ("http://127.0.0.1:80@example.com", false),
            ("http://127.0.0.1:80\\@example.com", false),
            ("https://user@example.com", false),
            ("https://example.com/accounts/a@b:generate", true),
            ("", false),
        ] {
            assert_eq!(may_hear_secrets(url), is, "{url}");
        }
    }
}

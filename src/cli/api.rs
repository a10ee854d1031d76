//! A client of the Kubernetes API server, for the commands that run in a pod beside the driver.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_smithy_http_client::Connector;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_runtime_api::client::http::HttpConnector;
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::os::lock;
use crate::volume::error::chain;

/// For one answer.
const ANSWER: Duration = Duration::from_secs(10);
/// A watch on which nothing has come for so long is given up: the connection may be dead. Bookmarks come each minute.
const SILENCE: Duration = Duration::from_secs(150);
/// Bytes of one event of a watch. An object has 1.5 MiB at most in etcd.
const LARGEST_EVENT: usize = 16 << 20;

/// The API server, where a pod's environment says it is.
pub struct Api {
    connector: Mutex<Arc<Connector>>,
    server: String,
    account: PathBuf,
}

/// A request's body, and what it is.
pub enum Body {
    None,
    MergePatch(Vec<u8>),
    JsonPatch(Vec<u8>),
}

impl Api {
    /// `account` is the directory with the pod's token (`token`) and the API server's certificate (`ca.crt`).
    ///
    /// # Errors
    /// Where this is no pod, or one without a token.
    pub fn new(account: &Path) -> Result<Api, String> {
        let said =
            |name: &str| env::var(name).map_err(|_| format!("find the API server: {name} is not set; this runs in a pod only"));
        let (host, port) = (said("KUBERNETES_SERVICE_HOST")?, said("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let connector = Mutex::new(Arc::new(connect(account)?));
        Ok(Api { connector, server: format!("https://{host}:{port}"), account: account.to_owned() })
    }

    /// The address of a resource, for messages.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server)
    }

    /// The status and the body of one answer.
    ///
    /// # Errors
    /// Where there is none.
    pub async fn call(&self, path: &str, body: Body) -> Result<(u16, Vec<u8>), String> {
        let call = async {
            let (status, body) = self.send(path, body).await?;
            let body = body.collect().await.map_err(|error| format!("{}: {}", self.url(path), chain(&error)))?;
            Ok((status, body.to_vec()))
        };
        self.answered(path, call).await
    }

    /// Waits for an answer. Without one the next request has a connection of its own: one that is dead would keep all later requests, and
    /// the API server may have another certificate.
    async fn answered<T>(&self, path: &str, call: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let late = |_| Err(format!("{}: no answer within {ANSWER:?}", self.url(path)));
        let result = tokio::time::timeout(ANSWER, call).await.unwrap_or_else(late);
        if result.is_err()
            && let Ok(connector) = connect(&self.account)
        {
            *lock(&self.connector) = Arc::new(connector);
        }
        result
    }

    /// The objects that there are, and each again as it changes, until the API server ends it after `seconds`.
    ///
    /// # Errors
    /// Where the API server does not answer, or refuses.
    pub async fn watch(&self, path: &str, selector: &str, seconds: u32) -> Result<Watch, String> {
        let url = self.url(path);
        let refused =
            |status| format!("watch {url}: the API server answers {status}; see the rights of the pod's service account");
        // Of version 0: out of the API server's memory; etcd is not asked. It may be old, and the watch continues from there.
        let (status, body) = self.call(&format!("{path}?resourceVersion=0&{selector}"), Body::None).await?;
        if status != 200 {
            return Err(refused(status));
        }
        let list: List<Value> = serde_json::from_slice(&body).map_err(|error| format!("watch {url}: {error}"))?;
        let version = list.metadata.resource_version;
        let query = format!("?watch=1&resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds={seconds}&{selector}");
        let (status, body) = self.answered(path, self.send(&format!("{path}{query}"), Body::None)).await?;
        if status != 200 {
            return Err(refused(status));
        }
        Ok(Watch { listed: list.items.into_iter(), body, read: Vec::new(), url })
    }

    async fn send(&self, path: &str, body: Body) -> Result<(u16, ByteStream), String> {
        let url = self.url(path);
        let failed = |error: &(dyn std::error::Error + 'static)| format!("{url}: {}", chain(error));
        // Read each time: the kubelet replaces it.
        let token = self.account.join("token");
        let token = fs::read_to_string(&token).map_err(|error| format!("read {}: {error}", token.display()))?;
        let (method, content, body) = match body {
            Body::None => ("GET", None, SdkBody::empty()),
            Body::MergePatch(patch) => ("PATCH", Some("application/merge-patch+json"), SdkBody::from(patch)),
            Body::JsonPatch(patch) => ("PATCH", Some("application/json-patch+json"), SdkBody::from(patch)),
        };
        let mut request = http::Request::builder()
            .method(method)
            .uri(&url)
            .header("authorization", format!("Bearer {}", token.trim()))
            .header("user-agent", concat!("longshore/", env!("CARGO_PKG_VERSION")))
            .header("accept", "application/json");
        if let Some(content) = content {
            request = request.header("content-type", content);
        }
        let request = request.body(body).map_err(|error| failed(&error))?;
        let request = HttpRequest::try_from(request).map_err(|error| failed(&error))?;
        let connector = lock(&self.connector).clone();
        let mut response = connector.call(request).await.map_err(|error| failed(&error))?;
        Ok((response.status().as_u16(), ByteStream::new(response.take_body())))
    }
}

/// New connections to the API server, whose certificate the pod has been given.
fn connect(account: &Path) -> Result<Connector, String> {
    let ca = account.join("ca.crt");
    let certificates = fs::read(&ca)
        .map_err(|error| format!("read {}: {error}; the container needs the service account's directory", ca.display()))?;
    let context = TlsContext::builder().with_trust_store(TrustStore::empty().with_pem_certificate(certificates)).build();
    let context = context.map_err(|error| format!("trust {}: {}", ca.display(), chain(&error)))?;
    Ok(Connector::builder().tls_provider(Provider::Rustls(CryptoMode::Ring)).tls_context(context).build())
}

/// Objects as they change.
pub struct Watch {
    listed: std::vec::IntoIter<Value>,
    body: ByteStream,
    read: Vec<u8>,
    url: String,
}

/// A list of objects, or a page of one.
#[derive(Deserialize)]
pub struct List<T> {
    pub metadata: ListMetadata,
    pub items: Vec<T>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListMetadata {
    resource_version: String,
    /// Where the next page begins; empty at the end.
    #[serde(default, rename = "continue")]
    pub rest: String,
}

#[derive(Deserialize)]
struct Event {
    r#type: String,
    object: Value,
}

impl Watch {
    /// The next object that there is; `None` at the end, after which the watch is to be begun anew.
    ///
    /// # Errors
    /// Where the connection breaks or is silent, or the API server ends the watch with an error.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        let unreadable = |url: &str, error: serde_json::Error| format!("watch {url}: {error}");
        if let Some(object) = self.listed.next() {
            return serde_json::from_value(object).map(Some).map_err(|error| unreadable(&self.url, error));
        }
        loop {
            let Some(line) = self.line().await? else { return Ok(None) };
            let unreadable = |error| unreadable(&self.url, error);
            let event: Event = serde_json::from_slice(&line).map_err(unreadable)?;
            match event.r#type.as_str() {
                "ADDED" | "MODIFIED" => return serde_json::from_value(event.object).map(Some).map_err(unreadable),
                "ERROR" => return Err(format!("watch {}: {}", self.url, event.object["message"])),
                // Bookmarks, and what is gone or is no longer selected.
                _ => {}
            }
        }
    }

    async fn line(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.read.drain(..=end).collect()));
            }
            if self.read.len() > LARGEST_EVENT {
                return Err(format!("watch {}: an event has more than {LARGEST_EVENT} bytes", self.url));
            }
            match tokio::time::timeout(SILENCE, self.body.next()).await {
                Ok(Some(Ok(bytes))) => self.read.extend_from_slice(&bytes),
                Ok(Some(Err(error))) => return Err(format!("watch {}: {}", self.url, chain(&error))),
                Ok(None) => return Ok(None),
                Err(_) => return Err(format!("watch {}: nothing came for {SILENCE:?}", self.url)),
            }
        }
    }
}

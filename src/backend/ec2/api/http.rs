//! One HTTPS request and its answer, and AWS's credential chain over the same client.
//!
//! Everything here is asynchronous and runs on the client's own small runtime.

use std::error::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_http_client::{Builder, Connector};
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorSettings, SharedHttpClient};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use tokio::sync::OnceCell;

use super::endpoint::{Endpoint, Service};

/// To come to a connection, TLS included.
const CONNECT: Duration = Duration::from_secs(5);
/// For the credentials provider; some of aws-config's ways have no limit of their own.
const GIVE: Duration = Duration::from_secs(10);
/// Shorter than EC2 keeps a connection, so that no request is lost on one that is just being closed.
const IDLE: Duration = Duration::from_secs(15);
/// A page of a thousand volumes with fifty tags each has some 15 MB.
const MOST_ANSWER: usize = 64 << 20;
/// So long before they expire, credentials are asked for anew; AWS renews its own five minutes ahead.
const RENEW: Duration = Duration::from_secs(4 * 60);

/// A request before it is signed.
#[derive(Clone, Debug)]
pub(super) struct Unsigned {
    pub service: Service,
    pub method: &'static str,
    /// With its query, encoded.
    pub path: String,
    /// A form; empty where there is none.
    pub body: String,
}

/// What was answered.
#[derive(Debug)]
pub(super) struct Answered {
    pub status: u16,
    pub request_id: Option<String>,
    /// `x-amzn-ErrorType`, without what follows a colon.
    pub error_type: Option<String>,
    pub retry_after: Option<Duration>,
    pub body: String,
}

/// Why there was no answer.
#[derive(Debug)]
pub(super) enum Lost {
    /// No credentials or no region are configured, or who gives credentials refuses us; nothing was sent.
    NoCredentials(String),
    /// Credentials could not be had this time; nothing was sent.
    Credentials(String),
    /// Nothing was sent: what happened, and more of it.
    Unsent(&'static str, String),
    /// It may have come to EC2.
    Sent(&'static str, String),
}

/// The connections to AWS, and who we are there.
pub(super) struct Http {
    connector: Connector,
    /// For a whole answer.
    within: Duration,
    /// Given, or the chain's.
    region: Option<String>,
    endpoint: Endpoint,
    chain: OnceCell<SdkConfig>,
    /// In place of the chain's.
    provider: Option<SharedCredentialsProvider>,
    credentials: Mutex<Option<Credentials>>,
    /// Held by the one request that asks for others.
    renewing: tokio::sync::Mutex<()>,
}

impl Http {
    pub fn new(region: Option<String>, endpoint: Endpoint, within: Duration) -> Http {
        let settings = HttpConnectorSettings::builder().connect_timeout(CONNECT.min(within)).build();
        let connector = connector(Some(&settings));
        Http {
            connector,
            within,
            region,
            endpoint,
            chain: OnceCell::new(),
            provider: None,
            credentials: Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
        }
    }

    #[cfg(test)]
    pub fn with_provider(self, provider: impl ProvideCredentials + 'static) -> Http {
        Http { provider: Some(SharedCredentialsProvider::new(provider)), ..self }
    }

    #[cfg(test)]
    pub fn remember(&self, credentials: Credentials) {
        *self.remembered() = Some(credentials);
    }

    /// The environment, the profile, and last the instance's metadata say what is not given. It is remembered once there is a region.
    async fn chain(&self) -> Result<&SdkConfig, Lost> {
        self.chain
            .get_or_try_init(|| async {
                let client: SharedHttpClient = Builder::new().build_with_connector_fn(|settings, _| connector(settings));
                let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(client);
                if let Some(region) = &self.region {
                    loader = loader.region(Region::new(region.clone()));
                }
                let chain = loader.load().await;
                let without = || {
                    Lost::NoCredentials(
                        "no region is configured, and neither the environment nor the instance metadata has one".to_owned(),
                    )
                };
                chain.region().is_some().then_some(chain).ok_or_else(without)
            })
            .await
    }

    pub async fn region(&self) -> Result<String, Lost> {
        match &self.region {
            Some(region) => Ok(region.clone()),
            None => Ok(self.chain().await?.region().map(ToString::to_string).unwrap_or_default()),
        }
    }

    /// Those that are remembered, while they are good.
    pub async fn credentials(&self) -> Result<Credentials, Lost> {
        if let Some(good) = self.good_for(RENEW) {
            return Ok(good);
        }
        let give = GIVE.min(self.within);
        let not_in_time = || Lost::Credentials(format!("the credentials provider did not answer within {give:?}"));
        let _renewing = match (self.renewing.try_lock(), self.good_for(Duration::ZERO)) {
            (Ok(renewing), _) => renewing,
            // Another request sees to it.
            (Err(_), Some(good)) => return Ok(good),
            (Err(_), None) => tokio::time::timeout(give, self.renewing.lock()).await.map_err(|_| not_in_time())?,
        };
        if let Some(good) = self.good_for(RENEW) {
            return Ok(good);
        }
        let lost = match tokio::time::timeout(give, self.given()).await {
            Ok(Ok(fresh)) => {
                *self.remembered() = Some(fresh.clone());
                return Ok(fresh);
            }
            Ok(Err(lost)) => lost,
            Err(_) => not_in_time(),
        };
        // They are still good for some minutes, in which those who give them may come back.
        self.good_for(Duration::ZERO).ok_or(lost)
    }

    async fn given(&self) -> Result<Credentials, Lost> {
        let provider = match &self.provider {
            Some(provider) => Some(provider.clone()),
            None => self.chain().await?.credentials_provider(),
        };
        let provider = provider.ok_or_else(|| Lost::NoCredentials("no credentials are configured".to_owned()))?;
        provider.provide_credentials().await.map_err(|error| not_given(&error))
    }

    fn good_for(&self, span: Duration) -> Option<Credentials> {
        let end = SystemTime::now() + span;
        self.remembered().as_ref().filter(|credentials| credentials.expiry().is_none_or(|expiry| expiry > end)).cloned()
    }

    fn remembered(&self) -> MutexGuard<'_, Option<Credentials>> {
        self.credentials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for credentials anew, since AWS refused `used`. Answers whether there are others now.
    pub async fn renew(&self, used: &Credentials) -> bool {
        self.remembered().take_if(|remembered| remembered == used);
        self.credentials().await.is_ok_and(|fresh| fresh != *used)
    }

    /// Signs with `credentials` and sends.
    pub async fn send(&self, unsigned: &Unsigned, credentials: &Credentials) -> Result<Answered, Lost> {
        let region = self.region().await?;
        let base = match self.endpoint.of(unsigned.service) {
            Some(endpoint) => endpoint.to_owned(),
            None => {
                let chain = self.chain().await?;
                let (fips, dual_stack) = (chain.use_fips().unwrap_or(false), chain.use_dual_stack().unwrap_or(false));
                unsigned.service.url(&region, fips, dual_stack)
            }
        };
        let request =
            signed(unsigned, &base, &region, credentials).map_err(|error| Lost::Unsent("request", chain_text(&*error)))?;
        match tokio::time::timeout(self.within, self.exchange(&base, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Lost::Sent("timeout", format!("{base}: no whole answer within {:?}", self.within))),
        }
    }

    async fn exchange(&self, base: &str, request: HttpRequest) -> Result<Answered, Lost> {
        let mut response = self.connector.call(request).await.map_err(|error| {
            let text = format!("{base}: {}", chain_text(&error));
            match (never_sent(&error), error.is_timeout()) {
                (true, false) => Lost::Unsent("connection", text),
                (true, true) => Lost::Unsent("timeout", text),
                (false, true) => Lost::Sent("timeout", text),
                (false, false) => Lost::Sent("connection", text),
            }
        })?;
        let header = |name: &str| response.headers().get(name).map(str::to_owned);
        let status = response.status().as_u16();
        let request_id = header("x-amzn-requestid").or_else(|| header("x-amz-request-id"));
        let error_type = header("x-amzn-errortype").map(|kind| kind.split(':').next().unwrap_or_default().to_owned());
        let retry_after = header("retry-after").and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs);
        let mut stream = ByteStream::new(response.take_body());
        let mut body = Vec::new();
        while let Some(part) = stream.next().await {
            body.extend_from_slice(&part.map_err(|error| Lost::Sent("answer interrupted", chain_text(&error)))?);
            if body.len() > MOST_ANSWER {
                return Err(Lost::Sent("answer too long", format!("more than {MOST_ANSWER} bytes")));
            }
        }
        let body = String::from_utf8(body).map_err(|_| Lost::Sent("unreadable answer", "it is not UTF-8".to_owned()))?;
        Ok(Answered { status, request_id, error_type, retry_after, body })
    }
}

/// No token or key is in these messages.
fn not_given(error: &CredentialsError) -> Lost {
    let text = chain_text(error);
    // STS says so for a role that does not trust us, or a token that is not accepted.
    let refused = ["AccessDenied", "InvalidIdentityToken", "ExpiredToken"].iter().any(|code| text.contains(code));
    match error {
        CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_) => Lost::NoCredentials(text),
        _ if refused => Lost::NoCredentials(text),
        _ => Lost::Credentials(text),
    }
}

/// With the proxy that the environment names (`HTTPS_PROXY`, `NO_PROXY`).
fn connector(settings: Option<&HttpConnectorSettings>) -> Connector {
    let mut builder = Connector::builder().pool_idle_timeout(IDLE).proxy_config(ProxyConfig::from_env());
    builder.set_connector_settings(settings.cloned());
    builder.tls_provider(Provider::Rustls(CryptoMode::Ring)).build()
}

/// Signature Version 4, in headers.
fn signed(
    unsigned: &Unsigned,
    base: &str,
    region: &str,
    credentials: &Credentials,
) -> Result<HttpRequest, Box<dyn Error + Send + Sync>> {
    let identity = credentials.clone().into();
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(unsigned.service.name())
        .time(SystemTime::now())
        .settings(SigningSettings::default())
        .build()?
        .into();
    let uri = format!("{}{}", base.trim_end_matches('/'), unsigned.path);
    let mut request = http::Request::builder()
        .method(unsigned.method)
        .uri(&uri)
        .header("user-agent", concat!("longshore/", env!("CARGO_PKG_VERSION")));
    if !unsigned.body.is_empty() {
        request = request.header("content-type", "application/x-www-form-urlencoded; charset=utf-8");
    }
    let mut request = request.body(SdkBody::from(unsigned.body.as_str()))?;
    let headers = request.headers().iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    let body = SignableBody::Bytes(unsigned.body.as_bytes());
    let instructions = sign(SignableRequest::new(unsigned.method, &uri, headers, body)?, &parameters)?.into_parts().0;
    instructions.apply_to_request_http1x(&mut request);
    Ok(HttpRequest::try_from(request)?)
}

/// Whether it failed before the request was written: no connection came to be.
fn never_sent(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<hyper_util::client::legacy::Error>())
        .any(hyper_util::client::legacy::Error::is_connect)
}

/// An error with all its causes, each once.
fn chain_text(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |&error| error.source()) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

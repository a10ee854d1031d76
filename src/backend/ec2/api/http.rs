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
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use tokio::sync::OnceCell;

use crate::backend::cloud::http::{Lost, Reply, Sender, chain_text, connector};

use super::endpoint::{Endpoint, Service};

/// For the credentials provider; some of aws-config's ways have no limit of their own.
const GIVE: Duration = Duration::from_secs(10);
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

/// The connections to AWS, and who we are there.
pub(super) struct Http {
    sender: Sender,
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
        Http {
            sender: Sender::new(within),
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
                let client: SharedHttpClient =
                    Builder::new().build_with_connector_fn(|settings, _| connector(settings, ProxyConfig::from_env()));
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
        let give = GIVE.min(self.sender.within());
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
        self.sender.send(&base, request).await.map(answered)
    }
}

fn answered(reply: Reply) -> Answered {
    let header = |name: &str| reply.header(name).map(str::to_owned);
    Answered {
        status: reply.status,
        request_id: header("x-amzn-requestid").or_else(|| header("x-amz-request-id")),
        error_type: header("x-amzn-errortype").map(|kind| kind.split(':').next().unwrap_or_default().to_owned()),
        retry_after: reply.retry_after(),
        body: reply.body,
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

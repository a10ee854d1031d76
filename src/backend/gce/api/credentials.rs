//! Credentials in a file (Google Cloud, "How Application Default Credentials works").
//!
//! Two kinds are known: the key of a service account, by which the access token is signed here and no server is asked for it (AIP-4111), and
//! workload identity federation with a token of another provider in a file (AIP-4117). Files are read for each token: both are renewed.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_smithy_types::base64;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::backend::cloud::http::{Lost, Reply, Sender, form_request, json_request, may_hear_secrets};
use crate::backend::cloud::tokens::{Token, ask_for_token, error_word, read_credentials};

/// What a token may be used for.
const COMPUTE: &str = "https://www.googleapis.com/auth/compute";
/// What one must be good for that another is asked for with ("Service Account Credentials API").
const IAM: &str = "https://www.googleapis.com/auth/iam";
/// The longest life of a token that is signed by the key of a service account, or asked for one.
const LIFE: Duration = Duration::from_secs(3600);
/// Google's clock may be behind ours.
const SKEW: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Kind {
    ServiceAccount(Key),
    ExternalAccount(Federation),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Key {
    client_email: String,
    private_key_id: String,
    /// PKCS #8, in PEM.
    private_key: String,
}

#[derive(Deserialize)]
struct Federation {
    audience: String,
    subject_token_type: String,
    token_url: String,
    service_account_impersonation_url: Option<String>,
    credential_source: Subject,
}

/// Where the other provider's token is. What has no file (a URL, a program, AWS) is refused.
#[derive(Deserialize)]
struct Subject {
    file: Option<PathBuf>,
    #[serde(default)]
    format: Format,
}

#[derive(Default, Deserialize)]
struct Format {
    /// Of a file that is JSON.
    subject_token_field_name: Option<String>,
}

#[derive(Deserialize)]
struct Exchanged {
    access_token: String,
    expires_in: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Impersonated {
    access_token: String,
}

/// A file of credentials.
#[derive(Clone, Debug)]
pub struct CredentialsFile(pub PathBuf);

impl CredentialsFile {
    /// The project of the service account, where the file has one.
    pub fn project(&self) -> Option<String> {
        let content: Value = serde_json::from_str(&std::fs::read_to_string(&self.0).ok()?).ok()?;
        content.get("project_id").and_then(Value::as_str).map(str::to_owned)
    }

    /// # Errors
    /// `Credentials` where a file or a server does not answer, `NoCredentials` where what is in the file cannot be used, or is refused.
    pub async fn token(&self, sender: &Sender) -> Result<Token<()>, Lost> {
        let begun = Instant::now();
        match self.read()? {
            Kind::ServiceAccount(key) => {
                let text = signed(&key, SystemTime::now()).map_err(|reason| self.unusable(&reason))?;
                Ok(Token { text, end: begun + LIFE - SKEW, with: () })
            }
            Kind::ExternalAccount(federation) => self.federated(sender, &federation, begun).await,
            Kind::Other => Err(self.unusable("it is neither of a service_account nor of an external_account")),
        }
    }

    fn read(&self) -> Result<Kind, Lost> {
        // What is in it is not repeated.
        serde_json::from_str(&read_credentials(&self.0)?)
            .map_err(|_| self.unusable("it is not what Google writes for a type it has"))
    }

    fn unusable(&self, reason: &str) -> Lost {
        Lost::NoCredentials(format!("the credentials in {} cannot be used: {reason}", self.0.display()))
    }

    /// "Obtain a federated access token", and "generateAccessToken" where the file names a service account.
    async fn federated(&self, sender: &Sender, federation: &Federation, begun: Instant) -> Result<Token<()>, Lost> {
        let impersonation = federation.service_account_impersonation_url.as_deref();
        for url in [Some(federation.token_url.as_str()), impersonation].into_iter().flatten() {
            if !may_hear_secrets(url) {
                return Err(self.unusable(&format!("a token would be sent to {url}, which is not https://")));
            }
        }
        let Some(file) = &federation.credential_source.file else {
            return Err(self.unusable("its credential_source has no file; others are not supported"));
        };
        let subject = read_credentials(file)?;
        let subject = match &federation.credential_source.format.subject_token_field_name {
            None => subject,
            Some(field) => {
                let content: Value = serde_json::from_str(&subject).unwrap_or_default();
                let missing = || Lost::Credentials(format!("{} is no JSON with a field {field}", file.display()));
                content.get(field).and_then(Value::as_str).ok_or_else(missing)?.to_owned()
            }
        };
        let form = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("audience", &federation.audience),
            ("scope", if impersonation.is_some() { IAM } else { COMPUTE }),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("subject_token", subject.trim()),
            ("subject_token_type", &federation.subject_token_type),
        ];
        let url = &federation.token_url;
        let reply = ask_for_token(sender, url, form_request(url, &form)?).await?;
        let given: Exchanged = self.granted(url, &reply)?;
        let Some(url) = impersonation else {
            return Ok(Token {
                text: given.access_token,
                end: begun + Duration::from_secs(given.expires_in.min(86_400)),
                with: (),
            });
        };
        let body = json!({"scope": [COMPUTE], "lifetime": format!("{}s", LIFE.as_secs())}).to_string();
        let bearer = format!("Bearer {}", given.access_token);
        let reply = ask_for_token(sender, url, json_request("POST", url, &[("authorization", &bearer)], &body)?).await?;
        let given: Impersonated = self.granted(url, &reply)?;
        Ok(Token { text: given.access_token, end: begun + LIFE, with: () })
    }

    fn granted<T: for<'a> Deserialize<'a>>(&self, url: &str, reply: &Reply) -> Result<T, Lost> {
        match reply.status {
            200 => serde_json::from_str(&reply.body)
                .map_err(|_| Lost::Credentials(format!("the answer of {url} has no access token"))),
            status @ (400 | 401 | 403 | 404) => Err(self.unusable(&format!(
                "{url} refuses them (status {status}{}); check the audience, the provider's attribute mapping and condition, and \
                 roles/iam.workloadIdentityUser",
                error_word(&reply.body)
            ))),
            status => Err(Lost::Credentials(format!("{url} answers with status {status}"))),
        }
    }
}

/// A token as AIP-4111 has it: with a scope, and without an audience.
fn signed(key: &Key, now: SystemTime) -> Result<String, String> {
    let der = PrivatePkcs8KeyDer::from_pem_slice(key.private_key.as_bytes())
        .map_err(|_| "its private_key is no private key in PEM".to_owned())?;
    let pair =
        RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).map_err(|error| format!("its private_key is no RSA key: {error}"))?;
    let issued = (now - SKEW).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let head = json!({"alg": "RS256", "typ": "JWT", "kid": key.private_key_id});
    let claims = json!({
        "iss": key.client_email, "sub": key.client_email, "scope": COMPUTE, "iat": issued, "exp": issued + LIFE.as_secs(),
    });
    let text = format!("{}.{}", base64url(head.to_string().as_bytes()), base64url(claims.to_string().as_bytes()));
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
        .map_err(|_| "its private_key does not sign".to_owned())?;
    Ok(format!("{text}.{}", base64url(&signature)))
}

/// RFC 4648, section 5, without padding.
fn base64url(bytes: &[u8]) -> String {
    base64::encode(bytes).trim_end_matches('=').replace('+', "-").replace('/', "_")
}

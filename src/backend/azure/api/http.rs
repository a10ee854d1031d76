//! A request to Azure Resource Manager with its access token, and where that is from.
//!
//! Everything here is asynchronous and runs on the client's own small runtime.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::super::metadata::Metadata;
use crate::backend::cloud::http::{Lost, Reply, Sender, form_request, json_request};
use crate::backend::cloud::rest::Unsigned;
use crate::backend::cloud::tokens::{Token, Tokens, ask_for_token, error_word, read_credentials};

/// So long before its end a token is asked for anew.
const RENEW: Duration = Duration::from_secs(5 * 60);

/// Who we are.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// A managed identity of this machine, from its metadata service; that with this client id, where it has several.
    Machine { client_id: Option<String> },
    /// An application of Microsoft Entra.
    Application { authority: String, tenant_id: String, client_id: String, proof: Proof },
}

/// By what an application proves that it is the one. The file is read for each token: both kinds are renewed.
#[derive(Clone, Debug)]
pub enum Proof {
    /// A secret, in a file.
    Secret(PathBuf),
    /// A token of the cluster's own, in a file (workload identity).
    Federated(PathBuf),
}

/// What both give; the metadata service has the seconds as a text.
#[derive(Deserialize)]
struct Given {
    access_token: String,
    expires_in: Value,
}

/// The connections to Azure, and who we are there.
pub(super) struct Http {
    sender: Sender,
    base: String,
    metadata: Metadata,
    credentials: Credentials,
    tokens: Tokens<()>,
}

impl Http {
    pub fn new(base: &str, metadata: Metadata, credentials: Credentials, within: Duration) -> Http {
        Http { sender: Sender::new(within), base: base.to_owned(), metadata, credentials, tokens: Tokens::new(RENEW) }
    }

    async fn given(&self) -> Result<Token<()>, Lost> {
        let begun = Instant::now();
        let text = match &self.credentials {
            Credentials::Machine { client_id } => self.metadata.token(&self.base, client_id.as_deref()).await?,
            Credentials::Application { authority, tenant_id, client_id, proof } => {
                self.application(authority, tenant_id, client_id, proof).await?
            }
        };
        // What it says is not repeated.
        let unreadable = || Lost::Credentials("the answer to a request for a token has no access token".to_owned());
        let given: Given = serde_json::from_str(&text).map_err(|_| unreadable())?;
        let seconds = given.expires_in.as_u64().or_else(|| given.expires_in.as_str()?.parse().ok()).ok_or_else(unreadable)?;
        Ok(Token { text: given.access_token, end: begun + Duration::from_secs(seconds.min(86_400)), with: () })
    }

    /// "Microsoft identity platform and the OAuth 2.0 client credentials flow".
    async fn application(&self, authority: &str, tenant_id: &str, client_id: &str, proof: &Proof) -> Result<String, Lost> {
        let (Proof::Secret(path) | Proof::Federated(path)) = proof;
        let read = read_credentials(path)?;
        let scope = format!("{}/.default", self.base);
        let mut form = vec![("grant_type", "client_credentials"), ("client_id", client_id), ("scope", &scope)];
        match proof {
            Proof::Secret(_) => form.push(("client_secret", read.trim())),
            Proof::Federated(_) => {
                form.push(("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"));
                form.push(("client_assertion", read.trim()));
            }
        }
        let url = format!("{authority}/{tenant_id}/oauth2/v2.0/token");
        let reply = ask_for_token(&self.sender, authority, form_request(&url, &form)?).await?;
        match reply.status {
            200 => Ok(reply.body),
            status @ (400 | 401 | 403) => Err(Lost::NoCredentials(format!(
                "{authority} refuses application {client_id} of tenant {tenant_id} (status {status}{}); check tenantId, clientId and what \
                 is in {}",
                error_word(&reply.body),
                path.display()
            ))),
            status => Err(Lost::Credentials(format!("{authority} answers with status {status}"))),
        }
    }

    /// Sends a request, by its path.
    pub async fn send(&self, unsigned: &Unsigned) -> Result<(Reply, String), Lost> {
        self.tokens.send([self.given(), self.given()], |token| self.attempt(unsigned, token.text)).await
    }

    async fn attempt(&self, unsigned: &Unsigned, token: String) -> Result<Reply, Lost> {
        let url = format!("{}/{}", self.base, unsigned.path);
        let request = json_request(unsigned.method, &url, &[("authorization", &format!("Bearer {token}"))], &unsigned.body)?;
        self.sender.send(&self.base, request).await
    }
}

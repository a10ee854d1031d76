//! A request to the API with its access token.
//!
//! Everything here is asynchronous and runs on the client's own small runtime.

use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::sync::OnceCell;

use super::super::metadata::{self, Metadata};
use super::credentials::CredentialsFile;
use crate::backend::cloud::http::{Lost, Reply, Sender, json_request};
use crate::backend::cloud::rest::Unsigned;
use crate::backend::cloud::tokens::{Token, Tokens};

/// Google's API.
const ENDPOINT: &str = "https://compute.googleapis.com";
/// For one answer of the metadata server, which is on the same machine.
const METADATA: Duration = Duration::from_secs(5);
/// So long before its end a token is asked for anew; the metadata server has another five minutes before.
const RENEW: Duration = Duration::from_secs(4 * 60);

/// What the metadata server gives.
#[derive(Deserialize)]
struct Given {
    access_token: String,
    expires_in: u64,
}

/// The connections to Google, and who we are there.
pub(super) struct Http {
    sender: Sender,
    base: String,
    metadata: Metadata,
    /// In place of the metadata server's service account.
    credentials: Option<CredentialsFile>,
    project: OnceCell<String>,
    region: OnceCell<String>,
    tokens: Tokens<()>,
}

impl Http {
    pub fn new(
        project: Option<String>,
        region: Option<String>,
        endpoint: Option<String>,
        credentials: Option<CredentialsFile>,
        within: Duration,
    ) -> Http {
        Http {
            sender: Sender::new(within),
            base: endpoint.unwrap_or_else(|| ENDPOINT.to_owned()).trim_end_matches('/').to_owned(),
            metadata: Metadata::new(METADATA.min(within)),
            credentials,
            project: OnceCell::new_with(project),
            region: OnceCell::new_with(region),
            tokens: Tokens::new(RENEW),
        }
    }

    /// Given, or that of the credentials' file, or this machine's.
    pub async fn project(&self) -> Result<String, Lost> {
        let asked = self.project.get_or_try_init(|| async {
            if let Some(project) = self.credentials.as_ref().and_then(CredentialsFile::project) {
                return Ok(project);
            }
            let missing = || Lost::NoCredentials("no project is configured, and the metadata server has none".to_owned());
            self.metadata.get(metadata::PROJECT).await?.filter(|project| !project.is_empty()).ok_or_else(missing)
        });
        asked.await.cloned()
    }

    /// Given, or that of this machine's zone.
    pub async fn region(&self) -> Result<String, Lost> {
        let asked = self.region.get_or_try_init(|| async {
            let zone = self.metadata.get(metadata::ZONE).await?.unwrap_or_default();
            let region = zone.rsplit('/').next().and_then(|zone| zone.rsplit_once('-')).map(|(region, _)| region.to_owned());
            region.ok_or_else(|| Lost::NoCredentials("no region is configured, and the metadata server has no zone".to_owned()))
        });
        asked.await.cloned()
    }

    async fn given(&self) -> Result<Token<()>, Lost> {
        if let Some(file) = &self.credentials {
            return file.token(&self.sender).await;
        }
        let begun = Instant::now();
        let missing = || Lost::NoCredentials("the metadata server has no service account for this machine or pod".to_owned());
        let text = self.metadata.get(metadata::TOKEN).await?.ok_or_else(missing)?;
        // What it says is not repeated.
        let unreadable = |_| Lost::Credentials("the metadata server's answer has no access token".to_owned());
        let given: Given = serde_json::from_str(&text).map_err(unreadable)?;
        Ok(Token { text: given.access_token, end: begun + Duration::from_secs(given.expires_in), with: () })
    }

    /// Sends a request, below the project.
    pub async fn send(&self, unsigned: &Unsigned) -> Result<(Reply, String), Lost> {
        let project = self.project().await?;
        let attempt = |token: Token<()>| self.attempt(unsigned, &project, token.text);
        let (reply, token) = self.tokens.send([self.given(), self.given()], attempt).await?;
        if reply.status == 401 {
            let whose = self.credentials.as_ref().map_or("the metadata server".to_owned(), |file| file.0.display().to_string());
            return Err(Lost::NoCredentials(format!(
                "{} refuses the access token of {whose} (status 401); its key or its service account may be disabled or deleted, or this \
                 machine's clock be wrong",
                self.base
            )));
        }
        Ok((reply, token))
    }

    async fn attempt(&self, unsigned: &Unsigned, project: &str, token: String) -> Result<Reply, Lost> {
        let url = format!("{}/compute/v1/projects/{project}/{}", self.base, unsigned.path);
        let request = json_request(unsigned.method, &url, &[("authorization", &format!("Bearer {token}"))], &unsigned.body)?;
        self.sender.send(&self.base, request).await
    }
}

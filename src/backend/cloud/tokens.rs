//! An access token is kept while it is good, and asked for anew before its end, or once after the API has refused it.

use std::path::Path;
use std::time::{Duration, Instant};

use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use serde_json::Value;
use tokio::sync::Mutex;

use super::http::{Lost, Reply, Sender};

/// A token, with what came with it.
#[derive(Clone)]
pub struct Token<T> {
    pub text: String,
    pub end: Instant,
    pub with: T,
}

/// The token of a client. The one request that asks for another holds up the rest.
pub struct Tokens<T> {
    kept: Mutex<Option<Token<T>>>,
    /// So long before its end a token is asked for anew.
    renew: Duration,
}

impl<T: Clone> Tokens<T> {
    pub fn new(renew: Duration) -> Tokens<T> {
        Tokens { kept: Mutex::default(), renew }
    }

    /// A token that is good; `refused` is one that the API did not take.
    async fn get(&self, refused: Option<&str>, ask: impl Future<Output = Result<Token<T>, Lost>>) -> Result<Token<T>, Lost> {
        let mut kept = self.kept.lock().await;
        kept.take_if(|token| Some(token.text.as_str()) == refused);
        let good_for = |token: &Token<T>, span| Instant::now() + span < token.end;
        if let Some(token) = kept.as_ref().filter(|token| good_for(token, self.renew)) {
            return Ok(token.clone());
        }
        match ask.await {
            Ok(token) => Ok(kept.insert(token).clone()),
            // It is still good for a while, in which the server may come back.
            Err(lost) => kept.as_ref().filter(|token| good_for(token, Duration::ZERO)).cloned().ok_or(lost),
        }
    }

    /// Sends a request; once more where its token was refused. With the token that it was sent with, to keep it out of messages. Each of
    /// `asks` asks for a token once it is waited for.
    pub async fn send<A, F>(&self, asks: [A; 2], attempt: impl Fn(Token<T>) -> F) -> Result<(Reply, String), Lost>
    where
        A: Future<Output = Result<Token<T>, Lost>>,
        F: Future<Output = Result<Reply, Lost>>,
    {
        let [first, second] = asks;
        let mut token = self.get(None, first).await?;
        let mut reply = attempt(token.clone()).await?;
        if reply.status == 401 {
            let other = self.get(Some(&token.text), second).await?;
            if other.text != token.text {
                token = other;
                reply = attempt(token.clone()).await?;
            }
        }
        Ok((reply, token.text))
    }
}

/// What a file of credentials has.
///
/// # Errors
/// `Credentials`: it may be mounted later.
pub fn read_credentials(path: &Path) -> Result<String, Lost> {
    let unread = |error| Lost::Credentials(format!("read {}: {error}; mount the credentials there", path.display()));
    std::fs::read_to_string(path).map_err(unread)
}

/// Sends a request for a token to a server that gives them.
///
/// # Errors
/// `Credentials` where it does not answer: nothing was sent to the cloud.
pub async fn ask_for_token(sender: &Sender, server: &str, request: HttpRequest) -> Result<Reply, Lost> {
    sender.send(server, request).await.map_err(|lost| match lost {
        Lost::Unsent(_, reason) | Lost::Sent(_, reason) => Lost::Credentials(format!("{server} does not answer: {reason}")),
        other => other,
    })
}

/// The one word of a refusal that has no secret (RFC 6749, section 5.2): `, invalid_client`.
pub fn error_word(body: &str) -> String {
    let answer: Value = serde_json::from_str(body).unwrap_or_default();
    let word = answer
        .get("error")
        .and_then(Value::as_str)
        .filter(|word| word.len() < 64 && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
    word.map(|word| format!(", {word}")).unwrap_or_default()
}

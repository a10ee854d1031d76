//! An access token is kept while it is good, and asked for anew before its end, or once after the API has refused it.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use serde_json::Value;
use tokio::time::timeout;

use super::http::{Lost, Reply, Sender};

/// How long a request waits for a token.
const GIVE: Duration = Duration::from_secs(20);
/// After a token was asked for in vain none is asked for so long, while there is one.
const PAUSE: Duration = Duration::from_secs(30);
/// How many tokens that the API refused are given up without such a pause.
const MOST_REFUSED: u32 = 3;

/// A token, with what came with it.
#[derive(Clone)]
pub struct Token<T> {
    pub text: String,
    pub end: Instant,
    pub with: T,
}

/// The token of a client. While one request asks for another, the rest use the old one as long as it is good.
pub struct Tokens<T> {
    kept: Mutex<Kept<T>>,
    /// Held by the one request that asks for another.
    renewing: tokio::sync::Mutex<()>,
    /// So long before its end a token is asked for anew.
    renew: Duration,
}

struct Kept<T> {
    token: Option<Token<T>>,
    /// When a token was last asked for in vain.
    failed: Option<Instant>,
    /// How many tokens were given up lately because the API refused them, and when the last was.
    refused: Option<(u32, Instant)>,
}

impl<T: Clone> Kept<T> {
    fn good_for(&self, span: Duration) -> Option<Token<T>> {
        self.token.as_ref().filter(|token| Instant::now() + span < token.end).cloned()
    }
}

impl<T: Clone> Tokens<T> {
    pub fn new(renew: Duration) -> Tokens<T> {
        let kept = Kept { token: None, failed: None, refused: None };
        Tokens { kept: Mutex::new(kept), renewing: tokio::sync::Mutex::default(), renew }
    }

    /// A token that is good; `refused` is one that the API did not take.
    async fn get(&self, refused: Option<&str>, ask: impl Future<Output = Result<Token<T>, Lost>>) -> Result<Token<T>, Lost> {
        if let Some(refused) = refused {
            self.give_up(refused);
        }
        if let Some(token) = self.good() {
            return Ok(token);
        }
        let not_in_time = || Lost::Credentials(format!("there was no access token within {GIVE:?}"));
        let usable = self.kept().good_for(Duration::ZERO);
        let _renewing = match (self.renewing.try_lock(), usable) {
            (Ok(renewing), _) => renewing,
            // Another request sees to it.
            (Err(_), Some(token)) => return Ok(token),
            (Err(_), None) => timeout(GIVE, self.renewing.lock()).await.map_err(|_| not_in_time())?,
        };
        if let Some(token) = self.good() {
            return Ok(token);
        }
        let lost = match timeout(GIVE, ask).await {
            Ok(Ok(token)) => {
                let mut kept = self.kept();
                (kept.token, kept.failed) = (Some(token.clone()), None);
                return Ok(token);
            }
            Ok(Err(lost)) => lost,
            Err(_) => not_in_time(),
        };
        let mut kept = self.kept();
        kept.failed = Some(Instant::now());
        // It is still good for a while, in which the server may come back.
        kept.good_for(Duration::ZERO).ok_or(lost)
    }

    /// The token, unless another is to be asked for now.
    fn good(&self) -> Option<Token<T>> {
        let kept = self.kept();
        let has_failed = kept.failed.is_some_and(|failed| failed.elapsed() < PAUSE);
        kept.good_for(if has_failed { Duration::ZERO } else { self.renew })
    }

    /// Forgets a token that the API refused. An API that refuses whatever it gets must not make each request ask for another.
    fn give_up(&self, refused: &str) {
        let mut kept = self.kept();
        let lately = kept.refused.filter(|(_, last)| last.elapsed() < PAUSE).map_or(0, |(count, _)| count);
        if lately < MOST_REFUSED && kept.token.take_if(|token| token.text == refused).is_some() {
            kept.refused = Some((lately + 1, Instant::now()));
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept<T>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use super::*;

    /// Longer than any token here is good for.
    const RENEW: Duration = Duration::from_secs(3600);

    fn token(text: &str, good_for: Duration) -> Token<()> {
        Token { text: text.to_owned(), end: Instant::now() + good_for, with: () }
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async { timeout(Duration::from_secs(10), test).await.expect("nobody waits") })
    }

    async fn text(tokens: &Tokens<()>, refused: Option<&str>, ask: impl Future<Output = Result<Token<()>, Lost>>) -> String {
        tokens.get(refused, ask).await.expect("a token").text
    }

    #[test]
    fn token_is_used_while_the_server_hangs_that_gives_the_next() {
        let tokens = Tokens::new(RENEW);
        run(async {
            assert_eq!(text(&tokens, None, ready(Ok(token("old", RENEW / 2)))).await, "old");
            tokio::select! {
                biased;
                _ = tokens.get(None, pending()) => panic!("the server hangs"),
                used = text(&tokens, None, pending()) => assert_eq!(used, "old"),
            }
        });
    }

    #[test]
    fn token_is_used_after_the_server_failed_that_gives_the_next() {
        let tokens = Tokens::new(RENEW);
        let asked = Cell::new(0);
        let fail = || async {
            asked.set(asked.get() + 1);
            Err(Lost::Credentials("it does not answer".to_owned()))
        };
        run(async {
            assert!(tokens.get(None, fail()).await.is_err());
            assert_eq!(text(&tokens, None, ready(Ok(token("old", RENEW / 2)))).await, "old");
            for _ in 0..3 {
                assert_eq!(text(&tokens, None, fail()).await, "old");
            }
        });
        assert_eq!(asked.get(), 2, "each failure is remembered for a while");
    }

    #[test]
    fn token_is_not_renewed_with_each_refusal() {
        let tokens = Tokens::new(RENEW / 2);
        run(async {
            assert_eq!(text(&tokens, None, ready(Ok(token("0", RENEW)))).await, "0");
            for number in 1..=MOST_REFUSED {
                let (refused, next) = ((number - 1).to_string(), number.to_string());
                assert_eq!(text(&tokens, Some(&refused), ready(Ok(token(&next, RENEW)))).await, next);
                // Of another request that was sent with it.
                assert_eq!(text(&tokens, Some(&refused), pending()).await, next);
            }
            let last = MOST_REFUSED.to_string();
            assert_eq!(text(&tokens, Some(&last), pending()).await, last);
        });
    }
}

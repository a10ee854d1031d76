//! A client of the Compute Engine API: the two dozen requests that we need, sent as JSON with an access token.
//!
//! Calls block. Each passes the token bucket of its method, is sent again where that can do no harm, and ends by the deadline of
//! [`Patience`]. Every failure is a [`Refusal`] in the API's own words.
//!
//! - Each mutating request has a `requestId`, the same for all its attempts: what was done already is not done once more. It begins with
//!   a mark of the disk that it is about, by which the operation is recognised later.
//! - A list that lacks a zone is a failure, never a shorter list.
//! - No token gets into an error, a log or `Debug`.
//! - No server is asked anything before the first call.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::backend::cloud::bucket::{Buckets, Limit};
use crate::backend::cloud::clock::Clock;
use crate::backend::cloud::http::{Lost, Reply, Worker};
use crate::backend::cloud::pages::{self, Page};
pub use crate::backend::cloud::rest::Request;
use crate::backend::cloud::retry::{Patience, Repeat, Retry};
use crate::backend::cloud::{Answer, CloudErrorKind, Refusal};
use crate::metrics::CloudRequests;
use crate::volume::digest::sha256_of;

mod codes;
mod credentials;
mod http;
#[cfg(test)]
mod tests;
mod types;

pub use credentials::CredentialsFile;
pub use types::{AttachedDisk, Disk, EncryptionKey, Instance, Operation, Snapshot, Zone};

use http::Http;
use types::{Aggregated, Listed, incomplete};

/// How many resources a page of a list has at most (`maxResults`).
const PAGE: &str = "500";

/// Whom to ask.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Else that of the metadata server.
    pub project: Option<String>,
    /// Else that of the metadata server's zone.
    pub region: Option<String>,
    /// Else Google's.
    pub endpoint: Option<String>,
    /// Else the service account of the metadata server.
    pub credentials: Option<CredentialsFile>,
    pub patience: Patience,
}

/// A change, which is done once however often it is sent. `about` is what it is about: see [`is_about`].
pub fn change(action: &'static str, method: &'static str, path: impl Into<String>, about: &str) -> Request {
    Request::change(action, method, path, Repeat::Harmless).query("requestId", request_id(about))
}

/// A new UUID of version 4, of which the first 12 digits are the mark of what the request is about.
fn request_id(about: &str) -> String {
    let (random, more) = (RandomState::new().hash_one(about), RandomState::new().hash_one(about));
    let digits = format!("{random:016x}{more:016x}");
    let mark = mark(about);
    format!("{}-{}-4{}-8{}-{}", &mark[..8], &mark[8..12], &digits[..3], &digits[3..6], &digits[6..18])
}

fn mark(about: &str) -> String {
    sha256_of([about])[..12].to_owned()
}

/// Whether the request that has this id was about this.
pub fn is_about(request_id: &str, about: &str) -> bool {
    request_id.replace('-', "").starts_with(&mark(about))
}

/// A client for one project.
pub struct Gce {
    http: Arc<Http>,
    retry: Retry,
    worker: Worker,
}

impl fmt::Debug for Gce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gce").finish_non_exhaustive()
    }
}

impl Gce {
    /// # Errors
    /// Where the thread for the connections cannot be started.
    pub fn new(settings: Settings, clock: Clock, requests: CloudRequests) -> io::Result<Gce> {
        let buckets = Buckets::of_groups(clock, |_| PUBLISHED, group);
        let retry = Retry::new(clock, buckets, settings.patience, requests);
        let Settings { project, region, endpoint, credentials, patience } = settings;
        let http = Http::new(project, region, endpoint, credentials, patience.answer);
        Ok(Gce { http: Arc::new(http), retry, worker: Worker::new("gce")? })
    }

    /// # Errors
    /// `Denied` where none is configured, nor given by the metadata server.
    pub fn project(&self) -> Answer<String> {
        let http = self.http.clone();
        self.wait(async move { http.project().await }).map_err(|lost| lost.refusal("project", Repeat::Reads))
    }

    /// # Errors
    /// As `project`.
    pub fn region(&self) -> Answer<String> {
        let http = self.http.clone();
        self.wait(async move { http.region().await }).map_err(|lost| lost.refusal("region", Repeat::Reads))
    }

    fn wait<T: Send + 'static>(&self, future: impl Future<Output = Result<T, Lost>> + Send + 'static) -> Result<T, Lost> {
        self.worker.wait(future).unwrap_or_else(|| Err(Lost::stopped()))
    }

    /// Sends a request until it is answered.
    pub fn send<T: DeserializeOwned>(&self, request: &Request) -> Answer<T> {
        let unsigned = request.unsigned();
        self.retry.run((request.action, request.purpose), request.repeat, self.retry.deadline(), || {
            let (http, unsigned) = (self.http.clone(), unsigned.clone());
            let answered = self.wait(async move { http.send(&unsigned).await });
            let (reply, token) = answered.map_err(|lost| lost.refusal(request.action, request.repeat))?;
            read(request, &reply).map_err(|refusal| without(refusal, &token))
        })
    }

    /// As `send`; `None` for what does not exist, by the API's own word.
    pub fn look<T: DeserializeOwned>(&self, request: &Request) -> Answer<Option<T>> {
        match self.send(request) {
            Ok(found) => Ok(Some(found)),
            Err(refusal) if matches!(refusal.because, CloudErrorKind::NotFound | CloudErrorKind::NoInstance) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// A list, page by page.
    pub fn list<T: DeserializeOwned>(&self, request: &Request, take: impl FnMut(Vec<T>)) -> Answer<()> {
        let request = request.clone().query("maxResults", PAGE);
        let fetch = |token: Option<&str>| {
            let page: Listed<T> = self.send(&paged(&request, token))?;
            refuse_incomplete(&request, incomplete([&page.warning], &page.unreachables))?;
            Ok(Page { items: page.items, next: page.next_page_token })
        };
        pages::each(request.action, fetch, take)
    }

    /// The disks of all zones and regions that a filter names.
    pub fn all_disks(&self, filter: Option<&str>, take: impl FnMut(Vec<Disk>)) -> Answer<()> {
        let mut request = Request::get("disks.aggregatedList", "aggregated/disks").query("maxResults", PAGE).for_list();
        if let Some(filter) = filter {
            request = request.query("filter", filter);
        }
        let fetch = |token: Option<&str>| {
            let page: Aggregated = self.send(&paged(&request, token))?;
            let warnings = page.items.values().map(|scope| &scope.warning).chain([&page.warning]);
            refuse_incomplete(&request, incomplete(warnings, &page.unreachables))?;
            Ok(Page { items: page.items.into_values().flat_map(|scope| scope.disks).collect(), next: page.next_page_token })
        };
        pages::each(request.action, fetch, take)
    }
}

fn paged(request: &Request, token: Option<&str>) -> Request {
    token.into_iter().fold(request.clone(), |request, token| request.query("pageToken", token))
}

/// A part of a list is none.
fn refuse_incomplete(request: &Request, why: Option<String>) -> Answer<()> {
    match why {
        Some(why) => Err(refusal(request, CloudErrorKind::Unavailable, "incomplete list", why)),
        None => Ok(()),
    }
}

/// The group of methods whose requests Google counts together.
fn group(action: &'static str) -> &'static str {
    match action {
        _ if action.ends_with("Operations.get") => "operations",
        _ if action.ends_with(".get") => "reads",
        _ if action.to_ascii_lowercase().ends_with("list") => "lists",
        _ => "mutations",
    }
}

/// What Google allows a project in a region by default: 1,500 requests per minute for each of several groups of methods ("Compute Engine API
/// rate quotas"), in windows of a minute. A share of that here, since other programs of the project take from it, too.
const PUBLISHED: Limit = Limit { capacity: 150.0, refill: 20.0 };

/// What a refusal has in its body.
#[derive(Deserialize)]
struct Failure {
    error: FailureBody,
}

#[derive(Deserialize)]
struct FailureBody {
    #[serde(default)]
    message: String,
    #[serde(default)]
    errors: Vec<Reason>,
    #[serde(default)]
    status: String,
}

#[derive(Deserialize)]
struct Reason {
    #[serde(default)]
    reason: String,
}

/// Makes an answer of what was answered.
fn read<T: DeserializeOwned>(request: &Request, reply: &Reply) -> Answer<T> {
    if (200..300).contains(&reply.status) {
        return serde_json::from_str(&reply.body)
            .map_err(|error| refusal(request, CloudErrorKind::Unavailable, "unreadable answer", error.to_string()));
    }
    let failed = match serde_json::from_str::<Failure>(&reply.body) {
        Ok(Failure { error }) => {
            let reason = error.errors.into_iter().map(|reason| reason.reason).find(|reason| !reason.is_empty());
            let code = reason.unwrap_or(error.status);
            let because = codes::because(request.action, &code, &error.message, reply.status);
            refusal(request, because, &code, error.message)
        }
        Err(_) => {
            let because = if reply.status == 429 { CloudErrorKind::Throttled } else { CloudErrorKind::Unavailable };
            let begin: String = reply.body.chars().take(200).collect();
            refusal(request, because, &format!("HTTP {}", reply.status), format!("an answer that is not the API's: {begin:?}"))
        }
    };
    Err(Refusal { retry_after: reply.retry_after(), ..failed })
}

fn refusal(request: &Request, because: CloudErrorKind, code: &str, message: String) -> Refusal {
    Refusal {
        because,
        action: request.action,
        code: code.to_owned(),
        message,
        request_id: None,
        maybe_done: because == CloudErrorKind::Unavailable && request.repeat != Repeat::Reads,
        retry_after: None,
    }
}

/// Others than Google may tell all that they were sent.
fn without(mut refusal: Refusal, token: &str) -> Refusal {
    if !token.is_empty() {
        refusal.message = refusal.message.replace(token, "***");
    }
    refusal
}

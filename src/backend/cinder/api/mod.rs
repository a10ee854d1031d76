//! A client of Keystone, Cinder and Nova: the two dozen requests that we need, sent as JSON with a token.
//!
//! Calls block. Each passes the token bucket of its request, is sent again where that can do no harm, and ends by the deadline of
//! [`Patience`]. Every failure is a [`Refusal`] in the service's own words.
//!
//! - Nothing by which Cinder would recognise a repeated request: what makes a volume or a snapshot is sent again only where it was not done.
//! - No token and no secret gets into an error, a log or `Debug`.
//! - No server is asked anything, and no file is read, before the first call.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::clouds::CloudsFile;
use crate::backend::cloud::bucket::{Buckets, Limit};
use crate::backend::cloud::clock::Clock;
use crate::backend::cloud::http::{Lost, Reply, Worker};
use crate::backend::cloud::pages::{self, Page};
use crate::backend::cloud::rest::Request;
use crate::backend::cloud::retry::{Patience, Repeat, Retry};
use crate::backend::cloud::{Answer, CloudErrorKind, Refusal};
use crate::metrics::CloudRequests;

mod codes;
mod http;
#[cfg(test)]
mod tests;
mod types;

pub use http::Service;
#[cfg(test)]
pub use types::moment;
pub use types::{Attachment, Backup, Made, Message, Server, Snapshot, Volume, VolumeAttachment, VolumeType, Zone};

use http::Http;
use types::Link;

/// How many resources a page of a list has at most: Cinder's own limit by default (`osapi_max_limit`).
const PAGE: &str = "1000";

/// Whom to ask.
#[derive(Clone, Debug)]
pub struct Settings {
    pub file: CloudsFile,
    pub patience: Patience,
    /// Requests about backups are sent.
    pub backups: bool,
}

/// A client for one project.
pub struct OpenStack {
    http: Arc<Http>,
    retry: Retry,
    worker: Worker,
}

impl fmt::Debug for OpenStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenStack").finish_non_exhaustive()
    }
}

impl OpenStack {
    /// # Errors
    /// Where the thread for the connections cannot be started.
    pub fn new(settings: Settings, clock: Clock, requests: CloudRequests) -> io::Result<OpenStack> {
        let retry = Retry::new(clock, Buckets::new(clock, own_limit), settings.patience, requests);
        let http = Http::new(settings.file, settings.patience.answer, settings.backups);
        Ok(OpenStack { http: Arc::new(http), retry, worker: Worker::new("cinder")? })
    }

    /// Sends a request until it is answered; null is an answer without a body.
    pub fn send(&self, service: Service, request: &Request) -> Answer<Value> {
        let unsigned = request.unsigned();
        self.retry.run((request.action, request.purpose), request.repeat, self.retry.deadline(), || {
            let (http, unsigned) = (self.http.clone(), unsigned.clone());
            let answered =
                self.worker.wait(async move { http.send(service, &unsigned).await }).unwrap_or_else(|| Err(Lost::stopped()));
            let (reply, token) = answered.map_err(|lost| lost.refusal(request.action, request.repeat))?;
            read(request, &reply).map_err(|refusal| Refusal { message: refusal.message.replace(&token, "***"), ..refusal })
        })
    }

    /// What is in the answer's `field`.
    pub fn get<T: DeserializeOwned>(&self, service: Service, request: &Request, field: &str) -> Answer<T> {
        field_of(request, self.send(service, request)?, field)
    }

    /// As `get`; `None` for what does not exist, by the service's own word.
    pub fn look<T: DeserializeOwned>(&self, service: Service, request: &Request, field: &str) -> Answer<Option<T>> {
        match self.get(service, request, field) {
            Ok(found) => Ok(Some(found)),
            Err(refusal) if matches!(refusal.because, CloudErrorKind::NotFound | CloudErrorKind::NoInstance) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// A list of Cinder's, page by page.
    pub fn list<T: DeserializeOwned>(&self, request: &Request, field: &str, take: impl FnMut(Vec<T>)) -> Answer<()> {
        let request = request.clone().query("limit", PAGE);
        let fetch = |marker: Option<&str>| {
            let page = marker.into_iter().fold(request.clone(), |request, marker| request.query("marker", marker));
            let mut answer = self.send(Service::Volume, &page)?;
            // Of `volume_types` they are called `volume_type_links`.
            let links = answer.as_object_mut().and_then(|all| all.iter_mut().find(|(key, _)| key.ends_with("_links")));
            let links = links.map(|(_, links)| links.take()).unwrap_or_default();
            let links: Vec<Link> = serde_json::from_value(links).unwrap_or_default();
            let next = links.into_iter().find(|link| link.rel == "next").map(|link| marker_in(&page, &link.href)).transpose()?;
            Ok(Page { items: field_of(&page, answer, field)?, next })
        };
        pages::each(request.action, fetch, take)
    }
}

/// The id behind which the next page begins. Only that is taken from a link: its host may be one that is not reached from here.
fn marker_in(request: &Request, href: &str) -> Answer<String> {
    let query = href.split_once('?').map_or("", |(_, query)| query);
    let marker = query.split('&').find_map(|pair| pair.strip_prefix("marker=")).filter(|marker| !marker.is_empty());
    let lost = || refusal(request, CloudErrorKind::Unavailable, "endless list", format!("the next page has no marker: {href:?}"));
    marker.map(str::to_owned).ok_or_else(lost)
}

fn field_of<T: DeserializeOwned>(request: &Request, mut answer: Value, field: &str) -> Answer<T> {
    let value = answer.get_mut(field).map(Value::take).unwrap_or_default();
    serde_json::from_value(value)
        .map_err(|error| refusal(request, CloudErrorKind::Unavailable, "unreadable answer", format!("{field}: {error}")))
}

/// OpenStack publishes no limits: these are ours, so that a driver does not take all of an API.
fn own_limit(action: &str) -> Limit {
    match action.split(' ').next() {
        Some("show" | "list") => Limit { capacity: 200.0, refill: 50.0 },
        _ => Limit { capacity: 100.0, refill: 20.0 },
    }
}

/// Makes an answer of what was answered.
fn read(request: &Request, reply: &Reply) -> Answer<Value> {
    if (200..300).contains(&reply.status) {
        if reply.body.trim().is_empty() {
            return Ok(Value::Null);
        }
        return serde_json::from_str(&reply.body)
            .map_err(|error| refusal(request, CloudErrorKind::Unavailable, "unreadable answer", error.to_string()));
    }
    let code = format!("HTTP {}", reply.status);
    let failed = match http::message(&reply.body) {
        Some(words) => refusal(request, codes::because(request.action, reply.status, &words), &code, words),
        None => {
            let because = match reply.status {
                429 => CloudErrorKind::Throttled,
                401 => CloudErrorKind::Denied,
                _ => CloudErrorKind::Unavailable,
            };
            let begin: String = reply.body.chars().take(200).collect();
            refusal(request, because, &code, format!("an answer that is not the API's: {begin:?}"))
        }
    };
    // Quotas are refused with `Retry-After: 0`, too.
    let retry_after = reply.retry_after().filter(|after| *after > Duration::ZERO);
    let request_id = reply.header("x-openstack-request-id").map(str::to_owned);
    Err(Refusal { retry_after, request_id, ..failed })
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

/// What a message about a request that was accepted means.
pub fn because_later(message: &str) -> CloudErrorKind {
    codes::because_later(message)
}

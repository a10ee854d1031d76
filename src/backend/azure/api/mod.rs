//! A client of Azure Resource Manager: the requests of disks, snapshots and virtual machines that we need, sent as JSON with an access token.
//!
//! Calls block. Each passes the token bucket of its request, is sent again where that can do no harm, and ends by the deadline of
//! [`Patience`]. Every failure is a [`Refusal`] in the API's own words.
//!
//! - A PUT of a name that exists changes that resource: what makes something is sent again only where it was not done.
//! - Of an address in an answer (`Azure-AsyncOperation`, `Location`, `nextLink`) only path and query are used: no token goes to another host.
//! - No token and no secret gets into an error, a log or `Debug`.
//! - No server is asked anything, and no file is read, before the first call.

use std::fmt;
use std::io;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::metadata::Metadata;
use crate::backend::cloud::bucket::{Buckets, Limit};
use crate::backend::cloud::clock::Clock;
use crate::backend::cloud::http::{Lost, Reply, Worker};
use crate::backend::cloud::pages::{self, Page};
pub use crate::backend::cloud::rest::Request;
use crate::backend::cloud::retry::{Patience, Repeat, Retry};
use crate::backend::cloud::{Answer, CloudErrorKind, OperationId, OperationState, Refusal};
use crate::metrics::CloudRequests;

mod codes;
mod http;
#[cfg(test)]
mod tests;
mod types;

pub use http::{Credentials, Proof};
pub use types::{
    CreationData, DataDisk, Disk, DiskProperties, DiskView, Encryption, InstanceView, Location, Machine, MachineProperties,
    ManagedDisk, Snapshot, SnapshotProperties, Status, StorageProfile,
};

use http::Http;
use types::{ErrorBody, Listed, OperationStatus};

/// Of disks and snapshots, of virtual machines (the first with `attachDetachDataDisks` is 2024-03-01), of tags, of subscriptions.
pub const DISKS: &str = "2024-03-02";
pub const MACHINES: &str = "2024-07-01";
pub const TAGS: &str = "2021-04-01";
pub const SUBSCRIPTIONS: &str = "2022-12-01";

/// How the id of an operation begins: it has a status of its own, or its end is that of its result's address.
const STATUS: &str = "status:";
const RESULT: &str = "result:";

/// Whom to ask.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Without a slash at its end.
    pub endpoint: String,
    pub metadata_endpoint: Option<String>,
    pub credentials: Credentials,
    pub patience: Patience,
}

/// A client for all that one identity may do.
pub struct Azure {
    http: Arc<Http>,
    retry: Retry,
    worker: Worker,
}

impl fmt::Debug for Azure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Azure").finish_non_exhaustive()
    }
}

impl Azure {
    /// # Errors
    /// Where the thread for the connections cannot be started.
    pub fn new(settings: Settings, clock: Clock, requests: CloudRequests) -> io::Result<Azure> {
        let retry = Retry::new(clock, Buckets::new(clock, published_limit), settings.patience, requests);
        let metadata = Metadata::new(settings.metadata_endpoint.as_deref());
        let http = Http::new(&settings.endpoint, metadata, settings.credentials, settings.patience.answer);
        Ok(Azure { http: Arc::new(http), retry, worker: Worker::new("azure")? })
    }

    /// Sends a request until it is answered.
    fn reply(&self, request: &Request) -> Answer<Reply> {
        let unsigned = request.unsigned();
        self.retry.run((request.action, request.purpose), request.repeat, self.retry.deadline(), || {
            let (http, unsigned) = (self.http.clone(), unsigned.clone());
            let answered = self.worker.wait(async move { http.send(&unsigned).await }).unwrap_or_else(|| Err(Lost::stopped()));
            let (reply, token) = answered.map_err(|lost| lost.refusal(request.action, request.repeat))?;
            if let Some(left) = remaining(&reply) {
                self.retry.remaining(request.action, left);
            }
            read(request, reply).map_err(|refusal| Refusal { message: without(&refusal.message, &token), ..refusal })
        })
    }

    pub fn get<T: DeserializeOwned>(&self, request: &Request) -> Answer<T> {
        parse(request, &self.reply(request)?)
    }

    /// As `get`; `None` for what does not exist, by the API's own word.
    pub fn look<T: DeserializeOwned>(&self, request: &Request) -> Answer<Option<T>> {
        match self.get(request) {
            Ok(found) => Ok(Some(found)),
            Err(refusal) if matches!(refusal.because, CloudErrorKind::NotFound | CloudErrorKind::NoInstance) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// Sends a change; the operation, where the API still works on it.
    pub fn begin(&self, request: &Request) -> Answer<Option<OperationId>> {
        let reply = self.reply(request)?;
        // Also with 200 (azuredisk-csi-driver PR 1356).
        if let Some(status) = failure_in(&reply) {
            return Err(Refusal { action: request.action, ..failed(&status) });
        }
        let at = |header: &str| reply.header(header).and_then(path_of);
        if let Some(path) = at("azure-asyncoperation") {
            return Ok(Some(OperationId(format!("{STATUS}{path}"))));
        }
        if reply.status != 202 {
            return Ok(None);
        }
        match at("location") {
            Some(path) => Ok(Some(OperationId(format!("{RESULT}{path}")))),
            None => {
                let message = "it was accepted, and the answer does not say where its end is to be seen".to_owned();
                Err(refusal(request, CloudErrorKind::Unavailable, "unreadable answer", message).perhaps())
            }
        }
    }

    /// How an operation is; `None` for one that is not known (any more).
    ///
    /// # Errors
    /// Where this look failed, which says nothing of the operation.
    pub fn operation(&self, id: &OperationId) -> Answer<Option<OperationState>> {
        const ACTION: &str = "operations.get";
        let Some((kind, path)) = id.0.split_at_checked(STATUS.len()).filter(|(kind, _)| [STATUS, RESULT].contains(kind)) else {
            return Ok(None);
        };
        let request = Request::get(ACTION, path);
        let reply = match self.reply(&request) {
            Ok(reply) => reply,
            // A throttled or refused look ends nothing. What has no status of its own ends with the refusal that is at its address.
            Err(refusal) if refusal.code == "NotFound" || refusal.code == "ResourceNotFound" => return Ok(None),
            Err(refusal) if kind == RESULT && is_end(&refusal) => return Ok(Some(OperationState::Failed(Box::new(refusal)))),
            Err(refusal) => return Err(refusal),
        };
        if kind == RESULT {
            if let Some(status) = failure_in(&reply) {
                return Ok(Some(OperationState::Failed(Box::new(failed(&status)))));
            }
            return Ok(Some(if reply.status == 202 { OperationState::Running } else { OperationState::Done }));
        }
        let status: OperationStatus = parse(&request, &reply)?;
        Ok(Some(match status.status.as_str() {
            "Succeeded" => OperationState::Done,
            "Failed" | "Canceled" => OperationState::Failed(Box::new(failed(&status))),
            _ => OperationState::Running,
        }))
    }

    /// A list, page by page.
    pub fn list<T: DeserializeOwned>(&self, request: &Request, take: impl FnMut(Vec<T>)) -> Answer<()> {
        let fetch = |next: Option<&str>| {
            let page: Listed<T> = match next {
                None => self.get(request)?,
                Some(path) => self.get(&Request::get(request.action, path).for_list())?,
            };
            let lost =
                || refusal(request, CloudErrorKind::Unavailable, "endless list", "the next page has no address".to_owned());
            let next = page.next_link.filter(|link| !link.is_empty()).map(|link| path_of(&link).ok_or_else(lost)).transpose()?;
            Ok(Page { items: page.value, next })
        };
        pages::each(request.action, fetch, take)
    }
}

/// The error in an answer whose status is one of success.
fn failure_in(reply: &Reply) -> Option<OperationStatus> {
    let status: OperationStatus = serde_json::from_str(&reply.body).ok()?;
    (status.error.is_some() || ["Failed", "Canceled"].contains(&status.status.as_str())).then_some(status)
}

/// Whether the refusal at the address of a result is how its operation ended.
fn is_end(refusal: &Refusal) -> bool {
    !matches!(refusal.because, CloudErrorKind::Throttled | CloudErrorKind::Unavailable | CloudErrorKind::Denied)
}

/// Why an operation failed. Nothing is concluded from one that was cancelled, ended without a code, or by a failure of the cloud.
fn failed(status: &OperationStatus) -> Refusal {
    const ACTION: &str = "operations.get";
    let error = status.error.clone().unwrap_or_default();
    let telling = error.telling().clone();
    let because = match telling.code.as_str() {
        _ if status.status == "Canceled" => CloudErrorKind::Unavailable,
        "" => CloudErrorKind::Unavailable,
        code => codes::because("virtualMachines.operation", code, &telling.message, 0),
    };
    Refusal {
        because,
        action: ACTION,
        code: if telling.code.is_empty() { format!("operation {}", status.status) } else { telling.code },
        message: telling.message,
        request_id: None,
        maybe_done: matches!(because, CloudErrorKind::Unavailable | CloudErrorKind::TooSoon),
        retry_after: None,
    }
}

/// The path and the query of an address, without the slash in front.
fn path_of(url: &str) -> Option<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (_, path) = rest.split_once('/')?;
    (!path.is_empty() && path.bytes().all(|byte| byte.is_ascii_graphic())).then(|| path.to_owned())
}

/// The quota that is left, by the headers of an answer ("Throttling Resource Manager requests", "Troubleshooting API throttling errors"):
/// `x-ms-ratelimit-remaining-subscription-writes: 199`, `x-ms-ratelimit-remaining-resource: Microsoft.Compute/PutVM3Min;107,…`.
fn remaining(reply: &Reply) -> Option<f64> {
    let whole = ["reads", "writes", "deletes"].map(|of| format!("x-ms-ratelimit-remaining-subscription-{of}"));
    let whole = whole.iter().filter_map(|name| reply.header(name)?.trim().parse::<f64>().ok());
    let resource = reply.header("x-ms-ratelimit-remaining-resource").unwrap_or_default();
    let parts = resource.split(',').filter_map(|part| part.rsplit_once(';')?.1.trim().parse::<f64>().ok());
    whole.chain(parts).reduce(f64::min)
}

/// A share of what Azure allows: of all reads of a principal 250 and 25 a second more, of writes and of deletions 200 and 10; of changes of
/// machines 1,500 and 500 a minute ("Throttling Resource Manager requests"; "Troubleshooting API throttling errors"), since other programs
/// take from it, too.
fn published_limit(action: &str) -> Limit {
    match action {
        "operations.get" => Limit { capacity: 200.0, refill: 20.0 },
        // Those of disks, of machines and of operations together stay below 25 a second.
        _ if action.ends_with(".get") || action.ends_with(".list") => Limit { capacity: 150.0, refill: 15.0 },
        "virtualMachines.attachDetachDataDisks" => Limit { capacity: 100.0, refill: 8.0 },
        _ => Limit { capacity: 100.0, refill: 8.0 },
    }
}

#[derive(Deserialize)]
struct Failure {
    error: ErrorBody,
}

fn parse<T: DeserializeOwned>(request: &Request, reply: &Reply) -> Answer<T> {
    serde_json::from_str(&reply.body)
        .map_err(|error| refusal(request, CloudErrorKind::Unavailable, "unreadable answer", error.to_string()))
}

/// Makes an answer of what was answered.
fn read(request: &Request, reply: Reply) -> Answer<Reply> {
    if (200..300).contains(&reply.status) {
        return Ok(reply);
    }
    let failed = match serde_json::from_str::<Failure>(&reply.body) {
        Ok(Failure { error }) => {
            let telling = error.telling();
            let because = codes::because(request.action, &telling.code, &telling.message, reply.status);
            refusal(request, because, &telling.code, telling.message.clone())
        }
        Err(_) => {
            let because = match reply.status {
                429 => CloudErrorKind::Throttled,
                401 => CloudErrorKind::Denied,
                _ => CloudErrorKind::Unavailable,
            };
            let begin: String = reply.body.chars().take(200).collect();
            refusal(request, because, &format!("HTTP {}", reply.status), format!("an answer that is not the API's: {begin:?}"))
        }
    };
    let request_id = reply.header("x-ms-request-id").map(str::to_owned);
    Err(Refusal { retry_after: reply.retry_after(), request_id, ..failed })
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

/// Others than Azure may tell all that they were sent.
fn without(message: &str, token: &str) -> String {
    if token.is_empty() { message.to_owned() } else { message.replace(token, "***") }
}

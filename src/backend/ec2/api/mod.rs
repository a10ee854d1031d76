//! A client of EC2 and of the EBS direct APIs: the two dozen requests that we need, typed, signed and sent.
//!
//! Calls block. Each passes the token bucket of its action, is sent again where that can do no harm, and ends by the deadline of
//! [`Patience`] (and what a last attempt may take). Every failure is a [`Refusal`] in EC2's own words, with its
//! request id.
//!
//! - An answer that lacks what it should have is a failure, never an empty list.
//! - No key, session token or signature gets into an error, a log or `Debug`.
//! - No server is asked anything before the first call.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use aws_credential_types::Credentials;
use serde::de::DeserializeOwned;

use crate::backend::cloud::bucket::{Buckets, Limit, Purpose};
use crate::backend::cloud::clock::Clock;
use crate::backend::cloud::http::{Lost, Worker};
use crate::backend::cloud::retry::{Patience, Repeat, Retry};
use crate::backend::cloud::{Answer, CloudErrorKind, Refusal};
use crate::metrics::CloudRequests;

mod blocks;
mod codes;
mod endpoint;
mod http;
mod instances;
mod list;
mod query;
mod snapshots;
#[cfg(test)]
mod tests;
mod volumes;

pub use blocks::BlockPage;
pub use instances::{EbsInfo, Instance, InstanceDisk, InstanceState, InstanceType, NetworkInfo, StorageInfo, Zone};
pub use list::{MOST_IDS, MOST_VALUES, Select};
pub use query::Filter;
pub use snapshots::{CreateSnapshot, FastRestore, Snapshot, SnapshotState};
pub use volumes::{
    AttachmentState, CopyVolume, CreateVolume, Modification, ModificationState, ModifyVolume, StatusDetail, StatusEvent,
    StatusSummary, Volume, VolumeAttachment, VolumeState, VolumeStatus,
};

use endpoint::{Endpoint, Service};
use http::{Answered, Http, Unsigned};
use query::Query;

/// Whom to ask, and how often.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Else `AWS_REGION`, the profile's, or that of the instance metadata.
    pub region: Option<String>,
    /// Of EC2, such as `http://127.0.0.1:5000`; else `AWS_ENDPOINT_URL_EC2`, `AWS_ENDPOINT_URL`, or the region's own.
    pub endpoint: Option<String>,
    /// Of the EBS direct APIs; else `AWS_ENDPOINT_URL_EBS`, `AWS_ENDPOINT_URL`, or the region's own.
    pub ebs_endpoint: Option<String>,
    /// By action, where the account has others than [`published_limit`].
    pub limits: BTreeMap<String, Limit>,
    pub patience: Patience,
}

/// A client for one account and region.
pub struct Ec2 {
    http: Arc<Http>,
    retry: Retry,
    worker: Worker,
}

impl fmt::Debug for Ec2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ec2").finish_non_exhaustive()
    }
}

impl Ec2 {
    /// # Errors
    /// Where the thread for the connections cannot be started.
    pub fn new(settings: Settings, clock: Clock, requests: CloudRequests) -> io::Result<Ec2> {
        let limits = settings.limits;
        let limit = move |action: &str| limits.get(action).copied().unwrap_or_else(|| published_limit(action));
        let retry = Retry::new(clock, Buckets::new(clock, limit), settings.patience, requests);
        let endpoint = Endpoint::new(settings.endpoint, settings.ebs_endpoint);
        let http = Http::new(settings.region, endpoint, settings.patience.answer);
        Ok(Ec2 { http: Arc::new(http), retry, worker: Worker::new("ec2")? })
    }

    /// The region that is asked.
    ///
    /// # Errors
    /// `Denied` where none is configured, nor given by the environment or the instance metadata.
    pub fn region(&self) -> Answer<String> {
        let http = self.http.clone();
        let region = self.worker.wait(async move { http.region().await }).unwrap_or_else(|| Err(Lost::stopped()));
        region.map_err(|lost| lost.refusal("Region", Repeat::Reads))
    }

    /// Sends a request of the query API.
    fn query<T: DeserializeOwned>(&self, query: &Query) -> Answer<T> {
        let unsigned = Unsigned { service: Service::Ec2, method: "POST", path: "/".to_owned(), body: query.form() };
        self.request((query.action, query.purpose), query.repeat, &unsigned, query::parse)
    }

    fn request<T>(
        &self,
        (action, purpose): (&'static str, Purpose),
        repeat: Repeat,
        unsigned: &Unsigned,
        parse: fn(&str) -> Result<T, String>,
    ) -> Answer<T> {
        let deadline = self.retry.deadline();
        let used = RefCell::new(None);
        let attempt = || {
            let (credentials, answered) = self.send(unsigned.clone());
            let answer = answered
                .map_err(|lost| lost.refusal(action, repeat))
                .and_then(|answered| read(action, repeat, unsigned.service, &answered, parse))
                .map_err(|refusal| without_secrets(refusal, credentials.as_ref()));
            *used.borrow_mut() = credentials;
            answer
        };
        let answer = self.retry.run((action, purpose), repeat, deadline, &attempt);
        match answer {
            Err(refusal) if codes::credentials_refused(&refusal.code) && self.renewed(used.take()) => {
                let again = self.retry.run((action, purpose), repeat, deadline, &attempt);
                again.map_err(|again| Refusal { maybe_done: again.maybe_done || refusal.maybe_done, ..again })
            }
            answer => answer,
        }
    }

    /// One attempt, and the credentials that it was signed with.
    fn send(&self, unsigned: Unsigned) -> (Option<Credentials>, Result<Answered, Lost>) {
        let http = self.http.clone();
        let attempt = async move {
            match http.credentials().await {
                Ok(credentials) => {
                    let answered = http.send(&unsigned, &credentials).await;
                    (Some(credentials), answered)
                }
                Err(lost) => (None, Err(lost)),
            }
        };
        self.worker.wait(attempt).unwrap_or_else(|| (None, Err(Lost::stopped())))
    }

    fn renewed(&self, used: Option<Credentials>) -> bool {
        let http = self.http.clone();
        used.and_then(|used| self.worker.wait(async move { http.renew(&used).await })).unwrap_or(false)
    }
}

/// What EC2 allows each account in each region (EC2 developer guide, "Request throttling for the Amazon EC2 API"). `DescribeVolumes`
/// and its like have 100 and 20 where a filter or page is asked for; by ids they have less, and one bucket serves for both.
pub fn published_limit(action: &str) -> Limit {
    let (capacity, refill) = match action {
        "CreateVolume" | "DeleteVolume" | "CreateSnapshot" | "DeleteSnapshot" => (100.0, 5.0),
        "DescribeInstances" | "DescribeSnapshots" | "DescribeVolumes" => (50.0, 10.0),
        // EBS direct APIs: 50 per second ("Quotas for EBS direct APIs").
        "ListChangedBlocks" | "ListSnapshotBlocks" => (50.0, 50.0),
        _ if action.starts_with("Describe") => (100.0, 20.0),
        // AttachVolume, DetachVolume, ModifyVolume, EnableFastSnapshotRestores: "mutating actions".
        _ => (50.0, 5.0),
    };
    Limit { capacity, refill }
}

/// Makes an answer of what was answered.
fn read<T>(
    action: &'static str,
    repeat: Repeat,
    service: Service,
    answered: &Answered,
    parse: fn(&str) -> Result<T, String>,
) -> Answer<T> {
    let refusal = |because, code: String, message: String, request_id: Option<String>| Refusal {
        because,
        action,
        code,
        message,
        request_id: request_id.or_else(|| answered.request_id.clone()),
        maybe_done: because == CloudErrorKind::Unavailable && repeat != Repeat::Reads,
        retry_after: answered.retry_after,
    };
    if (200..300).contains(&answered.status) {
        let unreadable = |error| refusal(CloudErrorKind::Unavailable, "unreadable answer".to_owned(), error, None);
        if service == Service::Ec2 && !answered.body.contains(&format!("<{action}Response")) {
            return Err(unreadable(format!("there is no {action}Response in it")));
        }
        return parse(&answered.body).map_err(unreadable);
    }
    let failure = match service {
        Service::Ec2 => query::failure(&answered.body),
        Service::Ebs => query::failure_of_json(&answered.body, answered.error_type.as_deref()),
    };
    Err(match failure {
        Some(failure) => {
            let because = codes::because(action, &failure.code, &failure.message, answered.status);
            refusal(because, failure.code, failure.message, failure.request_id)
        }
        None => {
            let because = if answered.status == 429 { CloudErrorKind::Throttled } else { CloudErrorKind::Unavailable };
            let begin: String = answered.body.chars().take(200).collect();
            refusal(because, format!("HTTP {}", answered.status), format!("an answer that is not AWS's: {begin:?}"), None)
        }
    })
}

/// AWS tells what was signed when it refuses a signature, session token included; others may tell all that they were sent.
fn without_secrets(mut refusal: Refusal, credentials: Option<&Credentials>) -> Refusal {
    for begin in ["The Canonical String", "Credential=", "Signature="] {
        let end = refusal.message.find(begin).unwrap_or(refusal.message.len());
        refusal.message.truncate(end);
    }
    let secrets = credentials.into_iter().flat_map(|credentials| {
        [Some(credentials.secret_access_key()), credentials.session_token(), Some(credentials.access_key_id())]
    });
    for secret in secrets.flatten().filter(|secret| !secret.is_empty()) {
        refusal.message = refusal.message.replace(secret, "***");
    }
    refusal.message = refusal.message.trim_end().to_owned();
    refusal
}

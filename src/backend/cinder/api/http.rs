//! A request to Cinder or Nova with a token of Keystone's.
//!
//! Everything here is asynchronous and runs on the client's own small runtime.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use serde_json::Value;

use super::super::clouds::{CloudEntry, CloudsFile};
use super::types::moment;
use crate::backend::cloud::http::{Lost, Reply, Sender, json_request, may_hear_secrets};
use crate::backend::cloud::rest::Unsigned;
use crate::backend::cloud::tokens::{Token, Tokens};

/// So long before its end a token is asked for anew. Keystone gives one for an hour by default.
const RENEW: Duration = Duration::from_secs(5 * 60);
/// A token that says no end.
const UNKNOWN_END: Duration = Duration::from_secs(10 * 60);

/// Whom a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Volume,
    Compute,
}

impl Service {
    /// As a catalog calls it (service types authority): the official type, and those by which older catalogs call the same.
    fn types(self) -> &'static [&'static str] {
        match self {
            Service::Volume => &["block-storage", "block-store", "volumev3", "volume"],
            Service::Compute => &["compute"],
        }
    }

    /// The microversion that our requests need. Cinder: 3.27 lists attachments, 3.42 expands a volume that is in use, 3.43 has metadata of
    /// backups, 3.47 makes volumes of them, 3.51 has their zones; who has 3.71 (2024.1) deletes no attachment that a server uses
    /// (CVE-2023-2088). Nova: 2.60 attaches volumes for several machines.
    fn version(self, backups: bool, unsigned: &Unsigned) -> &'static str {
        match self {
            Service::Volume if unsigned.method == "DELETE" && unsigned.path.starts_with("attachments/") => "volume 3.71",
            Service::Volume if backups => "volume 3.51",
            Service::Volume => "volume 3.42",
            Service::Compute => "compute 2.60",
        }
    }
}

/// What a token came with.
#[derive(Clone, Debug)]
struct Session {
    sender: Arc<Sender>,
    volume: String,
    compute: String,
}

impl Session {
    fn endpoint(&self, service: Service) -> &str {
        match service {
            Service::Volume => &self.volume,
            Service::Compute => &self.compute,
        }
    }
}

/// Keystone's answer.
#[derive(Deserialize)]
struct Given {
    token: GivenToken,
}

#[derive(Deserialize)]
struct GivenToken {
    #[serde(default)]
    expires_at: Option<String>,
    #[serde(default)]
    catalog: Vec<Entry>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Entry {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Deserialize)]
struct Endpoint {
    interface: String,
    #[serde(default)]
    region: Option<String>,
    #[serde(default)]
    region_id: Option<String>,
    url: String,
}

/// The connections to the cloud, and who we are there.
pub(super) struct Http {
    file: CloudsFile,
    within: Duration,
    backups: bool,
    tokens: Tokens<Session>,
    /// With the authorities that it trusts.
    sender: Mutex<Option<(Vec<u8>, Arc<Sender>)>>,
}

impl Http {
    pub fn new(file: CloudsFile, within: Duration, backups: bool) -> Http {
        Http { file, within, backups, tokens: Tokens::new(RENEW), sender: Mutex::default() }
    }

    /// Sends a request; with the token that it was sent with, to keep it out of messages.
    pub async fn send(&self, service: Service, unsigned: &Unsigned) -> Result<(Reply, String), Lost> {
        self.tokens
            .send([self.given(), self.given()], |token| {
                attempt(token, service, service.version(self.backups, unsigned), unsigned)
            })
            .await
    }

    /// Asks Keystone for a token. The file is read each time: credentials may have been exchanged.
    async fn given(&self) -> Result<Token<Session>, Lost> {
        let entry = self.file.read().map_err(Lost::NoCredentials)?;
        let sender = self.sender(&entry).map_err(Lost::NoCredentials)?;
        let (keystone, begun) = (entry.keystone(), Instant::now());
        let unusable = |reason: String| Lost::Credentials(format!("Keystone at {keystone} {reason}"));
        let body = entry.credentials().map_err(Lost::NoCredentials)?.to_string();
        let request = json_request("POST", &format!("{keystone}/auth/tokens"), &[], &body)?;
        let reply = sender.send(&keystone, request).await.map_err(|lost| match lost {
            Lost::Unsent(_, reason) | Lost::Sent(_, reason) => unusable(format!("does not answer: {reason}")),
            other => other,
        })?;
        match reply.status {
            200 | 201 => {}
            400 | 401 | 403 | 404 => {
                let remedy = "check the credentials of clouds.yaml, and that they are not expired";
                let why = message(&reply.body).unwrap_or_default();
                return Err(Lost::NoCredentials(format!(
                    "Keystone at {keystone} refuses us ({}): {why}; {remedy}",
                    reply.status
                )));
            }
            // What else answers there may repeat what it was sent.
            status => return Err(unusable(format!("answers with status {status}"))),
        }
        let text = reply.header("x-subject-token").map(str::to_owned).ok_or_else(|| unusable("gave no token".to_owned()))?;
        let given: Given =
            serde_json::from_str(&reply.body).map_err(|_| unusable("gave a token without its description".to_owned()))?;
        let end = given.token.expires_at.as_deref().and_then(moment).and_then(|end| end.duration_since(SystemTime::now()).ok());
        let found = |service, over: &Option<String>| match over {
            Some(url) => Ok(url.trim_end_matches('/').to_owned()),
            None => endpoint(&given.token.catalog, service, entry.region_name.as_deref(), entry.interface.as_deref()),
        };
        let session = Session {
            sender,
            volume: found(Service::Volume, &entry.block_storage_endpoint_override).map_err(Lost::NoCredentials)?,
            compute: found(Service::Compute, &entry.compute_endpoint_override).map_err(Lost::NoCredentials)?,
        };
        Ok(Token { text, end: begun + end.unwrap_or(UNKNOWN_END), with: session })
    }

    /// The connections that are kept, as long as the authorities are the same.
    fn sender(&self, entry: &CloudEntry) -> Result<Arc<Sender>, String> {
        let authorities = match &entry.cacert {
            Some(path) => std::fs::read(path).map_err(|error| format!("cacert: read {}: {error}", path.display()))?,
            None => Vec::new(),
        };
        let mut kept = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, sender)) = kept.as_ref().filter(|(of, _)| *of == authorities) {
            return Ok(Arc::clone(sender));
        }
        let sender = Arc::new(match &entry.cacert {
            Some(path) => {
                Sender::trusting(self.within, &authorities).map_err(|error| format!("cacert: {}: {error}", path.display()))?
            }
            None => Sender::new(self.within),
        });
        *kept = Some((authorities, Arc::clone(&sender)));
        Ok(sender)
    }
}

async fn attempt(token: Token<Session>, service: Service, version: &str, unsigned: &Unsigned) -> Result<Reply, Lost> {
    let base = token.with.endpoint(service);
    let headers = [("x-auth-token", token.text.as_str()), ("openstack-api-version", version)];
    let request = json_request(unsigned.method, &format!("{base}/{}", unsigned.path), &headers, &unsigned.body)?;
    token.with.sender.send(base, request).await
}

/// The words of a refusal: each service has them in an object of one field.
pub(super) fn message(body: &str) -> Option<String> {
    let value: Value = serde_json::from_str(body).ok()?;
    let inner = value.as_object()?.values().next()?;
    inner.get("message").and_then(Value::as_str).map(str::to_owned)
}

/// Where a service answers, without a slash at its end.
///
/// # Errors
/// What the catalog lacks.
pub(super) fn endpoint(
    catalog: &[Entry],
    service: Service,
    region: Option<&str>,
    interface: Option<&str>,
) -> Result<String, String> {
    let interface = interface.unwrap_or("public").trim_end_matches("URL");
    let what = format!("{interface} endpoint of {}", service.types()[0]);
    let by_type = |kind: &&str| {
        let of = catalog.iter().filter(|entry| entry.kind == **kind).flat_map(|entry| &entry.endpoints);
        let all: Vec<&Endpoint> = of.filter(|endpoint| endpoint.interface == interface).collect();
        (!all.is_empty()).then_some(all)
    };
    let all = service.types().iter().find_map(by_type).unwrap_or_default();
    let is_near = |endpoint: &&&Endpoint| {
        region.is_none() || [&endpoint.region_id, &endpoint.region].iter().any(|of| of.as_deref() == region)
    };
    let near: Vec<&&Endpoint> = all.iter().filter(is_near).collect();
    let regions = || {
        let names = all.iter().filter_map(|endpoint| endpoint.region_id.as_deref().or(endpoint.region.as_deref()));
        names.collect::<Vec<_>>().join(", ")
    };
    match near.as_slice() {
        [one] if may_hear_secrets(&one.url) => Ok(one.url.trim_end_matches('/').to_owned()),
        [one] => Err(format!("the {what} is {:?}, where tokens would be sent in clear; have https in the catalog", one.url)),
        [] if all.is_empty() => Err(format!("Keystone's catalog has no {what}")),
        [] => Err(format!("Keystone's catalog has no {what} in region {}; there are {}", region.unwrap_or_default(), regions())),
        _ => Err(format!("Keystone's catalog has several for {what} ({}); say region_name in clouds.yaml", regions())),
    }
}

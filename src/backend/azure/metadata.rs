//! Azure's Instance Metadata Service: which machine this is, what is attached to it, and tokens of its managed identities.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::backend::cloud::http::{Lost, Sender, json_request};
use crate::backend::cloud::identity::{self, Described, DescribesMachine};
use crate::backend::cloud::rest::encoded;
use crate::volume::{Bytes, Result};

use super::names::{self, MachineName};

/// By its address, since names may not be looked up.
const ENDPOINT: &str = "http://169.254.169.254";
/// For one answer.
const ANSWER: Duration = Duration::from_secs(3);
/// What the service demands, so that no forwarded request is answered.
const HEADER: (&str, &str) = ("metadata", "true");

/// This machine, as far as it is known.
pub type Identity = identity::Identity<Metadata>;

/// Without a proxy, whatever the environment says.
#[derive(Debug)]
pub struct Metadata {
    endpoint: String,
    sender: Sender,
}

/// What the service has of this machine ("Instance metadata", 2021-02-01).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    compute: Compute,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Compute {
    resource_id: String,
    #[serde(default)]
    location: String,
    #[serde(default)]
    zone: String,
    #[serde(default)]
    vm_size: String,
    #[serde(default)]
    storage_profile: StorageProfile,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StorageProfile {
    #[serde(default)]
    data_disks: Vec<DataDisk>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DataDisk {
    lun: String,
    /// Of text by the documentation.
    #[serde(default, rename = "diskSizeGB")]
    size: serde_json::Value,
    #[serde(default)]
    managed_disk: ManagedDisk,
}

#[derive(Default, Deserialize)]
struct ManagedDisk {
    #[serde(default)]
    id: String,
}

impl Metadata {
    pub fn new(endpoint: Option<&str>) -> Metadata {
        let endpoint = endpoint.unwrap_or(ENDPOINT).trim_end_matches('/').to_owned();
        Metadata { endpoint, sender: Sender::direct(ANSWER) }
    }

    async fn get(&self, path: &str) -> Result<(u16, String), String> {
        let request = json_request("GET", &format!("{}/metadata/{path}", self.endpoint), &[HEADER], "");
        let reply = match request {
            Ok(request) => self.sender.send(&self.endpoint, request).await,
            Err(lost) => Err(lost),
        };
        match reply {
            Ok(reply) => Ok((reply.status, reply.body)),
            Err(Lost::NoCredentials(reason) | Lost::Credentials(reason) | Lost::Unsent(_, reason) | Lost::Sent(_, reason)) => {
                Err(format!("the metadata service does not answer: {reason}"))
            }
        }
    }

    /// A token for `audience`, as the service gives it.
    ///
    /// # Errors
    /// `NoCredentials` where this machine has no such identity.
    pub async fn token(&self, audience: &str, client_id: Option<&str>) -> Result<String, Lost> {
        let client = client_id.map(|id| format!("&client_id={}", encoded(id))).unwrap_or_default();
        let path = format!("identity/oauth2/token?api-version=2018-02-01&resource={}{client}", encoded(&format!("{audience}/")));
        match self.get(&path).await.map_err(Lost::Credentials)? {
            (200, body) => Ok(body),
            (400, _) => Err(Lost::NoCredentials(format!(
                "the metadata service has no managed identity {} for this machine; assign it one, or configure an application",
                client_id.unwrap_or("of the system's")
            ))),
            // What is in the answer is not repeated: it may be a token.
            (status, _) => {
                Err(Lost::Credentials(format!("the metadata service answers a request for a token with status {status}")))
            }
        }
    }

    fn document(&self) -> Result<Compute, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        match runtime.block_on(self.get("instance?api-version=2021-02-01"))? {
            (200, body) => {
                let document: Document = serde_json::from_str(&body)
                    .map_err(|error| format!("the metadata service's answer cannot be read: {error}"))?;
                Ok(document.compute)
            }
            (status, _) => Err(format!("the metadata service answers with status {status}")),
        }
    }

    /// The disks that this machine has in its slots, as its own host says; blocks.
    ///
    /// # Errors
    /// Why it is not known, for people.
    pub fn data_disks(&self) -> Result<Vec<SlotDisk>, String> {
        let disks = self.document()?.storage_profile.data_disks.into_iter();
        let read = |disk: DataDisk| {
            let gib = disk.size.as_u64().or_else(|| disk.size.as_str()?.parse().ok());
            let size = gib.and_then(|gib: u64| gib.checked_mul(Bytes::GIB.0));
            Some(SlotDisk { lun: disk.lun.parse().ok()?, id: disk.managed_disk.id, size })
        };
        Ok(disks.filter_map(read).collect())
    }
}

/// What the host says of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotDisk {
    pub lun: u32,
    /// The disk's resource id.
    pub id: String,
    /// In bytes.
    pub size: Option<u64>,
}

impl DescribesMachine for Metadata {
    const RECORD: &'static str = "azure-machine.json";
    const REMEDY: &'static str = "say which machine this is (--node-id GROUP/NAME) and where (zone, in the backend's configuration), or make \
                                  the metadata service reachable; it is asked again with each call";
    const SERIAL: &'static str = "/sys/class/dmi/id/product_uuid";

    fn is_id(id: &str) -> bool {
        MachineName::parse(id).is_some()
    }

    /// Azure shows a guest its machine's id ("Accessing and using the Azure VM unique ID").
    fn is_own_serial(serial: &str) -> bool {
        let lengths = serial.split('-').map(str::len);
        lengths.eq([8, 4, 4, 4, 12]) && serial.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
    }

    fn ask(&self) -> Result<Described, String> {
        let compute = self.document()?;
        let id = MachineName::in_id(&compute.resource_id).and_then(|name| name.node());
        let id = id.ok_or_else(|| format!("the metadata service returned no machine's id: {:?}", compute.resource_id))?;
        let zone = if compute.zone.is_empty() { String::new() } else { names::zone_of(&compute.location, &compute.zone) };
        Ok(Described { id, zone, machine_type: compute.vm_size })
    }
}

/// This machine with what the operator says of it in a backend's configuration.
#[derive(Clone, Debug)]
pub struct Site {
    pub identity: Arc<Identity>,
    pub zone: Option<String>,
    pub vm_size: Option<String>,
}

impl Site {
    /// Empty for a machine that is in no zone.
    ///
    /// # Errors
    /// As [`identity::Identity::instance`].
    pub fn zone(&self) -> Result<String> {
        match &self.zone {
            Some(zone) => Ok(zone.clone()),
            None => self.identity.instance().map(|machine| machine.zone),
        }
    }

    /// Empty where it is not known.
    pub fn vm_size(&self) -> String {
        let asked = || self.identity.instance().map(|machine| machine.machine_type);
        self.vm_size.clone().map_or_else(asked, Ok).unwrap_or_else(|error| {
            tracing::warn!(%error, "the size of this machine is not known; its limit of volumes is the least");
            String::new()
        })
    }
}

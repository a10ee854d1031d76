//! What the API answers, as far as we read it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use serde::{Deserialize, Deserializer};

use crate::backend::cloud::CloudErrorKind;

/// A number of 64 bits, which the API sends as a text.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn may_be_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    number(deserializer).map(Some)
}

/// RFC 3339 with an offset.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time = DateTime::from_str(&text, Format::DateTimeWithOffset).map_err(serde::de::Error::custom)?;
    SystemTime::try_from(time).map(Some).map_err(serde::de::Error::custom)
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    #[serde(deserialize_with = "number")]
    pub id: u64,
    pub name: String,
    pub status: String,
    #[serde(deserialize_with = "number")]
    pub size_gb: u64,
    #[serde(rename = "type", default)]
    pub kind: String,
    #[serde(default)]
    pub zone: Option<String>,
    #[serde(default)]
    pub region: Option<String>,
    #[serde(default)]
    pub replica_zones: Vec<String>,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub label_fingerprint: String,
    #[serde(default)]
    pub users: Vec<String>,
    #[serde(default)]
    pub source_snapshot_id: Option<String>,
    #[serde(default)]
    pub source_disk: Option<String>,
    #[serde(default)]
    pub source_disk_id: Option<String>,
    #[serde(default)]
    pub source_image_id: Option<String>,
    #[serde(default)]
    pub source_instant_snapshot_id: Option<String>,
    #[serde(default, deserialize_with = "may_be_number")]
    pub provisioned_iops: Option<u64>,
    #[serde(default, deserialize_with = "may_be_number")]
    pub provisioned_throughput: Option<u64>,
    #[serde(default)]
    pub access_mode: Option<String>,
    #[serde(default)]
    pub enable_confidential_compute: bool,
    #[serde(default)]
    pub disk_encryption_key: Option<EncryptionKey>,
    #[serde(default, deserialize_with = "time")]
    pub creation_timestamp: Option<SystemTime>,
    #[serde(default, deserialize_with = "time")]
    pub last_attach_timestamp: Option<SystemTime>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EncryptionKey {
    #[serde(default)]
    pub kms_key_name: Option<String>,
}

/// Or an image.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    #[serde(deserialize_with = "number")]
    pub id: u64,
    pub name: String,
    pub status: String,
    #[serde(default, deserialize_with = "may_be_number")]
    pub disk_size_gb: Option<u64>,
    #[serde(default)]
    pub source_disk: String,
    #[serde(default)]
    pub source_disk_id: String,
    /// Of an image.
    #[serde(default, deserialize_with = "may_be_number")]
    pub source_snapshot_id: Option<u64>,
    /// Not of an image.
    #[serde(default)]
    pub snapshot_encryption_key: Option<EncryptionKey>,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "time")]
    pub creation_timestamp: Option<SystemTime>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    pub name: String,
    pub status: String,
    #[serde(default)]
    pub machine_type: String,
    #[serde(default)]
    pub disks: Vec<AttachedDisk>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachedDisk {
    #[serde(default)]
    pub device_name: String,
    /// Local disks have none.
    #[serde(default)]
    pub source: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Zone {
    pub name: String,
    #[serde(default)]
    pub status: String,
    #[serde(default)]
    pub region: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    pub name: String,
    pub status: String,
    #[serde(default)]
    pub operation_type: String,
    #[serde(default)]
    pub target_link: String,
    /// Of the resource as it is now: another of the same name has another.
    #[serde(default)]
    pub target_id: Option<String>,
    /// The `requestId` of the request that began it.
    #[serde(default)]
    pub client_operation_id: Option<String>,
    #[serde(default)]
    pub zone: Option<String>,
    #[serde(default)]
    pub region: Option<String>,
    #[serde(default)]
    pub error: Option<OperationErrors>,
    #[serde(default)]
    pub http_error_message: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct OperationErrors {
    #[serde(default)]
    pub errors: Vec<OperationError>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct OperationError {
    #[serde(default)]
    pub code: String,
    #[serde(default)]
    pub message: String,
}

impl Operation {
    pub fn is_done(&self) -> bool {
        self.status == "DONE"
    }

    /// Why it failed, if it did: the code, its words, and what they mean; no meaning where nothing can be concluded from it.
    pub fn failure(&self, action: &str) -> Option<(Option<CloudErrorKind>, String, String)> {
        if self.error.is_none() && self.http_error_message.is_none() {
            return None;
        }
        let first = self.error.as_ref().and_then(|error| error.errors.first()).cloned().unwrap_or_default();
        let because = match first.code.as_str() {
            "" | "OPERATION_CANCELED_BY_USER" => None,
            code => Some(super::codes::because(action, code, &first.message, 0)),
        };
        let message = if first.message.is_empty() { self.http_error_message.clone().unwrap_or_default() } else { first.message };
        Some((because, first.code, message))
    }
}

/// A page of a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed<T> {
    /// Of an empty list there may be none.
    #[serde(default = "Vec::new")]
    pub items: Vec<T>,
    #[serde(default)]
    pub next_page_token: Option<String>,
    #[serde(default)]
    pub warning: Option<Warning>,
    #[serde(default)]
    pub unreachables: Vec<String>,
}

/// A page of a list of all zones and regions.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Aggregated {
    #[serde(default)]
    pub items: BTreeMap<String, Scope>,
    #[serde(default)]
    pub next_page_token: Option<String>,
    #[serde(default)]
    pub warning: Option<Warning>,
    #[serde(default)]
    pub unreachables: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Scope {
    #[serde(default)]
    pub disks: Vec<Disk>,
    #[serde(default)]
    pub warning: Option<Warning>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Warning {
    #[serde(default)]
    pub code: String,
    #[serde(default)]
    pub message: String,
}

/// Why a page has less than there is, if it has: a zone that did not answer.
pub fn incomplete<'a>(warnings: impl IntoIterator<Item = &'a Option<Warning>>, unreachables: &[String]) -> Option<String> {
    let is_bad = |warning: &&Warning| !["NO_RESULTS_ON_PAGE", ""].contains(&warning.code.as_str());
    let warning = warnings.into_iter().flatten().find(is_bad).map(|warning| format!("{}: {}", warning.code, warning.message));
    warning.or_else(|| (!unreachables.is_empty()).then(|| format!("these did not answer: {}", unreachables.join(", "))))
}

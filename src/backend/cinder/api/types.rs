//! What Cinder and Nova answer, as far as we read it (Block Storage API v3, Compute API v2.1).

use std::collections::BTreeMap;
use std::time::SystemTime;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use serde::{Deserialize, Deserializer};

/// `2026-11-26T01:02:03.000000`, in UTC though it does not say so; Keystone says it.
pub fn moment(text: &str) -> Option<SystemTime> {
    let text = format!("{}Z", text.trim_end_matches('Z'));
    SystemTime::try_from(DateTime::from_str(&text, Format::DateTime).ok()?).ok()
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.as_deref().and_then(moment))
}

fn or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Volume {
    pub id: String,
    /// Empty where it is null: a backup for which there was no cinder-backup (cinder/scheduler/manager.py, `create_backup`).
    #[serde(deserialize_with = "or_empty")]
    pub status: String,
    /// In GiB.
    pub size: u64,
    #[serde(default)]
    pub availability_zone: Option<String>,
    /// By its name.
    #[serde(default)]
    pub volume_type: Option<String>,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Those that are whole: what comes is in the list of attachments only.
    #[serde(default)]
    pub attachments: Vec<VolumeAttachment>,
    #[serde(default)]
    pub snapshot_id: Option<String>,
    #[serde(default)]
    pub source_volid: Option<String>,
    #[serde(default)]
    pub multiattach: bool,
    #[serde(default)]
    pub description: Option<String>,
    /// `true` for one that was made of an image, or may be booted for another reason.
    #[serde(default)]
    pub bootable: String,
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<SystemTime>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct VolumeAttachment {
    #[serde(default)]
    pub server_id: Option<String>,
    /// Where no server of Nova has it.
    #[serde(default)]
    pub host_name: Option<String>,
    #[serde(default)]
    pub attachment_id: String,
    #[serde(default, deserialize_with = "time")]
    pub attached_at: Option<SystemTime>,
}

/// An attachment as the list of attachments has it (microversion 3.27).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Attachment {
    pub id: String,
    /// `reserved`, `attaching`, `attached`, `detached`, `error_attaching`, `error_detaching`.
    pub status: String,
    #[serde(default)]
    pub instance: Option<String>,
    #[serde(default, deserialize_with = "time")]
    pub attached_at: Option<SystemTime>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Snapshot {
    pub id: String,
    pub status: String,
    /// In GiB, its volume's.
    pub size: u64,
    pub volume_id: String,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// `0%`
    #[serde(rename = "os-extended-snapshot-attributes:progress", default)]
    pub progress: String,
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<SystemTime>,
}

/// A backup (microversion 3.43, for its metadata).
#[derive(Clone, Debug, Deserialize)]
pub struct Backup {
    pub id: String,
    #[serde(deserialize_with = "or_empty")]
    pub status: String,
    /// In GiB, its volume's.
    #[serde(default)]
    pub size: Option<u64>,
    pub volume_id: String,
    /// Of which it was made; named also when that is gone.
    #[serde(default)]
    pub snapshot_id: Option<String>,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    #[serde(default)]
    pub fail_reason: Option<String>,
    /// Of which instant its data is.
    #[serde(default, deserialize_with = "time")]
    pub data_timestamp: Option<SystemTime>,
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<SystemTime>,
}

/// What a request has made, of which the answer says no more.
#[derive(Clone, Debug, Deserialize)]
pub struct Made {
    pub id: String,
}

/// What went wrong behind a request that was accepted (microversion 3.3, "Messages").
#[derive(Clone, Debug, Deserialize)]
pub struct Message {
    #[serde(default)]
    pub user_message: String,
    #[serde(default)]
    pub event_id: String,
    #[serde(default)]
    pub created_at: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Server {
    pub status: String,
    #[serde(rename = "OS-EXT-AZ:availability_zone", default)]
    pub zone: String,
    /// Such as `deleting`.
    #[serde(rename = "OS-EXT-STS:task_state", default)]
    pub task: Option<String>,
    #[serde(rename = "os-extended-volumes:volumes_attached", default)]
    pub volumes: Vec<AttachedVolume>,
    #[serde(default)]
    pub flavor: Flavor,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct AttachedVolume {
    pub id: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Flavor {
    #[serde(default)]
    pub original_name: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct VolumeType {
    pub name: String,
    /// As far as a user is shown any.
    #[serde(default)]
    pub extra_specs: Option<BTreeMap<String, String>>,
}

/// A zone of Cinder.
#[derive(Clone, Debug, Deserialize)]
pub struct Zone {
    #[serde(rename = "zoneName")]
    pub name: String,
    #[serde(rename = "zoneState")]
    pub state: ZoneState,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ZoneState {
    pub available: bool,
}

/// A link at the end of a page.
#[derive(Clone, Debug, Deserialize)]
pub struct Link {
    pub rel: String,
    pub href: String,
}

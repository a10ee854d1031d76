//! What the API answers, as far as we read it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use serde::{Deserialize, Deserializer};

/// RFC 3339 with an offset. A text of another form is no time.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    Ok(DateTime::from_str(&text, Format::DateTimeWithOffset).ok().and_then(|time| SystemTime::try_from(time).ok()))
}

/// null is as what is not there.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Sku {
    #[serde(default)]
    pub name: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Disk {
    pub name: String,
    #[serde(default)]
    pub location: String,
    #[serde(default, deserialize_with = "or_default")]
    pub zones: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub tags: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_default")]
    pub sku: Sku,
    #[serde(rename = "managedBy", default)]
    pub managed_by: Option<String>,
    /// Of a disk for several machines.
    #[serde(rename = "managedByExtended", default, deserialize_with = "or_default")]
    pub managed_by_extended: Vec<String>,
    pub properties: DiskProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskProperties {
    #[serde(rename = "diskSizeGB", default)]
    pub disk_size_gb: u64,
    #[serde(default)]
    pub provisioning_state: String,
    #[serde(default)]
    pub disk_state: String,
    #[serde(default)]
    pub creation_data: CreationData,
    #[serde(rename = "diskIOPSReadWrite", default)]
    pub iops: Option<u64>,
    #[serde(rename = "diskMBpsReadWrite", default)]
    pub mbps: Option<u64>,
    /// The performance tier: `P30`.
    #[serde(default)]
    pub tier: Option<String>,
    #[serde(default)]
    pub bursting_enabled: Option<bool>,
    #[serde(default)]
    pub max_shares: Option<u64>,
    #[serde(default)]
    pub encryption: Encryption,
    /// Of the copy in the background; where there is none, nothing or 100.
    #[serde(default)]
    pub completion_percent: Option<f64>,
    #[serde(default, deserialize_with = "time")]
    pub time_created: Option<SystemTime>,
    /// When it was attached or detached last.
    #[serde(rename = "LastOwnershipUpdateTime", default, deserialize_with = "time")]
    pub last_ownership_update_time: Option<SystemTime>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreationData {
    #[serde(default)]
    pub create_option: String,
    #[serde(default)]
    pub source_resource_id: Option<String>,
    #[serde(default)]
    pub logical_sector_size: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Encryption {
    #[serde(default)]
    pub disk_encryption_set_id: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    pub name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub tags: BTreeMap<String, String>,
    pub properties: SnapshotProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotProperties {
    #[serde(rename = "diskSizeGB", default)]
    pub disk_size_gb: u64,
    #[serde(default)]
    pub provisioning_state: String,
    #[serde(default)]
    pub creation_data: CreationData,
    #[serde(default)]
    pub completion_percent: Option<f64>,
    #[serde(default, deserialize_with = "time")]
    pub time_created: Option<SystemTime>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Machine {
    #[serde(default, deserialize_with = "or_default")]
    pub zones: Vec<String>,
    #[serde(default)]
    pub location: String,
    pub properties: MachineProperties,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineProperties {
    #[serde(default)]
    pub provisioning_state: String,
    #[serde(default)]
    pub hardware_profile: HardwareProfile,
    #[serde(default)]
    pub storage_profile: StorageProfile,
    #[serde(default)]
    pub instance_view: InstanceView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HardwareProfile {
    #[serde(default)]
    pub vm_size: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageProfile {
    #[serde(default, deserialize_with = "or_default")]
    pub data_disks: Vec<DataDisk>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataDisk {
    pub lun: u32,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub managed_disk: Option<ManagedDisk>,
    #[serde(default, deserialize_with = "or_default")]
    pub to_be_detached: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct ManagedDisk {
    #[serde(default)]
    pub id: String,
}

/// What is, where the rest of a machine is what is to be.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct InstanceView {
    #[serde(default, deserialize_with = "or_default")]
    pub statuses: Vec<Status>,
    #[serde(default, deserialize_with = "or_default")]
    pub disks: Vec<DiskView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct DiskView {
    #[serde(default)]
    pub name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub statuses: Vec<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Status {
    #[serde(default)]
    pub code: String,
}

/// A region of the subscription.
#[derive(Clone, Debug, Deserialize)]
pub struct Location {
    pub name: String,
    #[serde(rename = "availabilityZoneMappings", default, deserialize_with = "or_default")]
    pub zones: Vec<ZoneMapping>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ZoneMapping {
    #[serde(rename = "logicalZone")]
    pub logical_zone: String,
}

/// What an operation's own address answers.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct OperationStatus {
    #[serde(default)]
    pub status: String,
    #[serde(default)]
    pub error: Option<ErrorBody>,
}

/// A refusal, or why an operation failed.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ErrorBody {
    #[serde(default, deserialize_with = "or_default")]
    pub code: String,
    #[serde(default, deserialize_with = "or_default")]
    pub message: String,
    #[serde(default, deserialize_with = "or_default")]
    pub details: Vec<ErrorBody>,
}

impl ErrorBody {
    /// The code that says most: that of the only detail, where the whole has one that says nothing.
    pub fn telling(&self) -> &ErrorBody {
        let says_nothing =
            ["", "Conflict", "BadRequest", "OperationNotAllowed", "DeploymentFailed"].contains(&self.code.as_str());
        match self.details.as_slice() {
            [one] if says_nothing && !one.code.is_empty() => one.telling(),
            _ => self,
        }
    }
}

/// A page of a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed<T> {
    #[serde(default = "Vec::new")]
    pub value: Vec<T>,
    #[serde(default)]
    pub next_link: Option<String>,
}

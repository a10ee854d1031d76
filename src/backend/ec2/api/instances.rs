//! Machines, their types, and the zones.

use std::time::SystemTime;

use serde::{Deserialize, Deserializer};

use super::MOST_VALUES;
use super::list::{Listing, Select};
use super::query::{self, Filter, Query};
use super::{AttachmentState, Ec2};
use crate::backend::cloud::retry::Repeat;
use crate::backend::cloud::{Answer, Page};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    pub instance_id: String,
    /// Such as `m5.large`.
    pub instance_type: String,
    #[serde(rename = "instanceState", deserialize_with = "state")]
    pub state: InstanceState,
    #[serde(rename = "placement", deserialize_with = "zone")]
    pub zone: String,
    /// `/dev/xvda`.
    #[serde(default, deserialize_with = "query::some")]
    pub root_device_name: Option<String>,
    /// The volumes, the root's too.
    #[serde(rename = "blockDeviceMapping", default, deserialize_with = "query::items")]
    pub disks: Vec<InstanceDisk>,
    /// How many network interfaces it has: with types of `shared` limits each takes the place of a volume.
    #[serde(rename = "networkInterfaceSet", default, deserialize_with = "number")]
    pub network_interfaces: usize,
    #[serde(default, deserialize_with = "query::some")]
    pub outpost_arn: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceState {
    Pending,
    Running,
    ShuttingDown,
    Terminated,
    Stopping,
    Stopped,
    /// A state that EC2 did not have yet.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Mapping")]
pub struct InstanceDisk {
    /// `/dev/xvdaa`.
    pub device: String,
    pub volume_id: String,
    pub state: AttachmentState,
    pub attach_time: Option<SystemTime>,
    /// Without one it is on the first.
    pub card: u32,
}

/// What a type of machine has room for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceType {
    pub instance_type: String,
    /// `nitro` or `xen`; of bare metal nothing.
    #[serde(default, deserialize_with = "query::some")]
    pub hypervisor: Option<String>,
    #[serde(default)]
    pub bare_metal: bool,
    #[serde(default)]
    pub ebs_info: Option<EbsInfo>,
    #[serde(default)]
    pub network_info: Option<NetworkInfo>,
    #[serde(default)]
    pub instance_storage_info: Option<StorageInfo>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EbsInfo {
    /// `unsupported`, `supported` or `required` (nitro).
    #[serde(default)]
    pub nvme_support: String,
    /// The root's included.
    #[serde(default, deserialize_with = "query::some")]
    pub maximum_ebs_attachments: Option<u64>,
    /// `dedicated`, or `shared` with network interfaces and instance store NVMe disks.
    #[serde(default, deserialize_with = "query::some")]
    pub attachment_limit_type: Option<String>,
    /// To which volumes are attached; each has its bandwidth. Nothing where there is only one, or in answers of old.
    #[serde(rename = "ebsCardSet", default, deserialize_with = "cards")]
    pub cards: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkInfo {
    #[serde(default, deserialize_with = "query::some")]
    pub maximum_network_interfaces: Option<u64>,
}

/// Disks of the machine itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StorageInfo {
    /// As `EbsInfo::nvme_support`.
    #[serde(rename = "nvmeSupport", default)]
    pub nvme_support: String,
    /// How many there are.
    #[serde(rename = "disks", default, deserialize_with = "count")]
    pub disks: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Zone {
    #[serde(rename = "zoneName")]
    pub name: String,
    /// The same for all accounts: `euc1-az2`.
    #[serde(rename = "zoneId", default)]
    pub id: String,
    /// `available`, ...
    #[serde(rename = "zoneState", default)]
    pub state: String,
    /// `availability-zone`, `local-zone` or `wavelength-zone`.
    #[serde(rename = "zoneType", default)]
    pub kind: String,
}

const INSTANCES: Listing =
    Listing { action: "DescribeInstances", id: "InstanceId", id_filter: "instance-id", page: 500, with: &[] };

impl Ec2 {
    /// Terminated ones are reported for about an hour. Filters: `instance-state-name`, `tag:KEY`, ...
    ///
    /// # Errors
    /// Whatever EC2 refuses; not that some do not exist.
    pub fn describe_instances(&self, select: &Select) -> Answer<Page<Instance>> {
        #[derive(Deserialize)]
        struct Reservation {
            #[serde(rename = "instancesSet", deserialize_with = "query::items")]
            instances: Vec<Instance>,
        }
        let page: Page<Reservation> = self.select(INSTANCES, select)?;
        Ok(Page { items: page.items.into_iter().flat_map(|reservation| reservation.instances).collect(), next: page.next })
    }

    /// Those of these types that the region knows.
    ///
    /// # Errors
    /// Whatever EC2 refuses.
    pub fn describe_instance_types(&self, types: &[String]) -> Answer<Vec<InstanceType>> {
        let mut found = Vec::new();
        for types in types.chunks(MOST_VALUES) {
            // By a filter, since a type that is not known would make it refuse the rest.
            let filter = Filter::new("instance-type", types);
            found.extend(self.all::<InstanceType>(&Query::new("DescribeInstanceTypes", Repeat::Reads).filters(&[filter]))?);
        }
        Ok(found)
    }

    /// Those that this account may use.
    ///
    /// # Errors
    /// Whatever EC2 refuses.
    pub fn describe_availability_zones(&self) -> Answer<Vec<Zone>> {
        self.all(&Query::new("DescribeAvailabilityZones", Repeat::Reads))
    }
}

fn state<'de, D: Deserializer<'de>>(deserializer: D) -> Result<InstanceState, D::Error> {
    #[derive(Deserialize)]
    struct State {
        name: InstanceState,
    }
    State::deserialize(deserializer).map(|state| state.name)
}

fn zone<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    struct Placement {
        #[serde(rename = "availabilityZone")]
        zone: String,
    }
    Placement::deserialize(deserializer).map(|placement| placement.zone)
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    #[derive(Deserialize)]
    struct Interface {}
    query::items::<Interface, D>(deserializer).map(|interfaces| interfaces.len())
}

fn cards<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Card {
        ebs_card_index: u32,
    }
    query::items::<Card, D>(deserializer).map(|cards| cards.iter().map(|card| card.ebs_card_index).collect())
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    struct Disk {
        #[serde(default)]
        count: u64,
    }
    query::items::<Disk, D>(deserializer).map(|disks| disks.iter().map(|disk| disk.count).sum())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    device_name: String,
    ebs: Ebs,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ebs {
    volume_id: String,
    status: AttachmentState,
    #[serde(default, deserialize_with = "query::time")]
    attach_time: Option<SystemTime>,
    #[serde(default, deserialize_with = "query::some")]
    ebs_card_index: Option<u32>,
}

impl From<Mapping> for InstanceDisk {
    fn from(Mapping { device_name: device, ebs }: Mapping) -> Self {
        let Ebs { volume_id, status: state, attach_time, ebs_card_index } = ebs;
        InstanceDisk { device, volume_id, state, attach_time, card: ebs_card_index.unwrap_or_default() }
    }
}

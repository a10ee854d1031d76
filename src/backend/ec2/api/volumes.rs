//! Volumes: made, deleted, attached, detached, modified, described. Names and shapes as in the EC2 API reference.

use std::time::SystemTime;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::Ec2;
use super::list::{Listing, Select};
use super::query::{self, Query};
use crate::backend::cloud::retry::Repeat;
use crate::backend::cloud::{Answer, Page, Tags};

/// `CreateVolume`. What is `None` is left to EC2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateVolume {
    /// The same request with the same token makes no second volume.
    pub client_token: String,
    pub zone: String,
    /// GiB; may be missing where there is a snapshot.
    pub size: Option<u64>,
    /// `gp3`, `io2`, ...
    pub volume_type: Option<String>,
    pub iops: Option<u64>,
    /// MiB/s; gp3 only.
    pub throughput: Option<u64>,
    pub encrypted: Option<bool>,
    /// Id, alias or ARN; with `encrypted` only.
    pub kms_key_id: Option<String>,
    pub snapshot_id: Option<String>,
    pub multi_attach: Option<bool>,
    pub outpost_arn: Option<String>,
    /// MiB/s, 100 to 300; with a snapshot only.
    pub initialization_rate: Option<u64>,
    pub tags: Tags,
}

/// `CopyVolumes`. What is `None` is left to EC2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyVolume {
    /// As in [`CreateVolume`].
    pub client_token: String,
    pub source_volume_id: String,
    /// GiB; at least what the source has.
    pub size: Option<u64>,
    /// Without it EC2 takes gp2.
    pub volume_type: Option<String>,
    pub iops: Option<u64>,
    /// MiB/s; gp3 only.
    pub throughput: Option<u64>,
    pub multi_attach: Option<bool>,
    /// The source's are not copied.
    pub tags: Tags,
}

/// `ModifyVolume`. What is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModifyVolume {
    pub volume_id: String,
    /// GiB.
    pub size: Option<u64>,
    pub volume_type: Option<String>,
    pub iops: Option<u64>,
    /// MiB/s.
    pub throughput: Option<u64>,
    pub multi_attach: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    pub volume_id: String,
    #[serde(rename = "status")]
    pub state: VolumeState,
    /// GiB.
    pub size: u64,
    #[serde(rename = "availabilityZone")]
    pub zone: String,
    #[serde(default)]
    pub volume_type: String,
    #[serde(default, deserialize_with = "query::some")]
    pub iops: Option<u64>,
    /// MiB/s.
    #[serde(default, deserialize_with = "query::some")]
    pub throughput: Option<u64>,
    #[serde(default)]
    pub encrypted: bool,
    #[serde(default, deserialize_with = "query::some")]
    pub kms_key_id: Option<String>,
    #[serde(default, deserialize_with = "query::some")]
    pub snapshot_id: Option<String>,
    #[serde(rename = "multiAttachEnabled", default)]
    pub multi_attach: bool,
    #[serde(default, deserialize_with = "query::some")]
    pub outpost_arn: Option<String>,
    #[serde(default, deserialize_with = "query::time")]
    pub create_time: Option<SystemTime>,
    /// Attaching and detaching ones too.
    #[serde(rename = "attachmentSet", default, deserialize_with = "query::items")]
    pub attachments: Vec<VolumeAttachment>,
    #[serde(rename = "tagSet", default, deserialize_with = "query::tags")]
    pub tags: Tags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    Creating,
    Available,
    InUse,
    Deleting,
    Deleted,
    Error,
    /// A state that EC2 did not have yet.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachment {
    pub volume_id: String,
    #[serde(default, deserialize_with = "query::some")]
    pub instance_id: Option<String>,
    /// As it was asked for: `/dev/xvdaa`.
    #[serde(default, deserialize_with = "query::some")]
    pub device: Option<String>,
    #[serde(rename = "status")]
    pub state: AttachmentState,
    #[serde(default, deserialize_with = "query::time")]
    pub attach_time: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachmentState {
    Attaching,
    Attached,
    Detaching,
    Detached,
    /// The machine does not let go of it.
    Busy,
    /// A state that EC2 did not have yet.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Modification {
    pub volume_id: String,
    #[serde(rename = "modificationState")]
    pub state: ModificationState,
    /// GiB.
    #[serde(default, deserialize_with = "query::some")]
    pub target_size: Option<u64>,
    #[serde(default, deserialize_with = "query::some")]
    pub target_iops: Option<u64>,
    #[serde(default, deserialize_with = "query::some")]
    pub target_throughput: Option<u64>,
    #[serde(default, deserialize_with = "query::some")]
    pub target_volume_type: Option<String>,
    /// GiB.
    #[serde(default, deserialize_with = "query::some")]
    pub original_size: Option<u64>,
    /// Percent.
    #[serde(default, deserialize_with = "query::percent")]
    pub progress: u8,
    #[serde(default, deserialize_with = "query::some")]
    pub status_message: Option<String>,
    #[serde(default, deserialize_with = "query::time")]
    pub start_time: Option<SystemTime>,
    #[serde(default, deserialize_with = "query::time")]
    pub end_time: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModificationState {
    Modifying,
    /// The new size and settings are there, data still moves.
    Optimizing,
    Completed,
    Failed,
    /// A state that EC2 did not have yet.
    #[serde(other)]
    Unknown,
}

/// What EC2 knows of a volume's health.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct VolumeStatus {
    #[serde(rename = "volumeId")]
    pub volume_id: String,
    #[serde(rename = "volumeStatus")]
    pub summary: StatusSummary,
    #[serde(rename = "eventsSet", default, deserialize_with = "query::items")]
    pub events: Vec<StatusEvent>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StatusSummary {
    /// `ok`, `impaired`, `warning` or `insufficient-data`.
    pub status: String,
    #[serde(default, deserialize_with = "query::items")]
    pub details: Vec<StatusDetail>,
}

/// Such as `io-enabled`: `passed`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StatusDetail {
    pub name: String,
    #[serde(default)]
    pub status: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StatusEvent {
    /// Such as `potential-data-inconsistency`.
    #[serde(rename = "eventType", default)]
    pub kind: String,
    #[serde(default)]
    pub description: String,
}

const VOLUMES: Listing = Listing { action: "DescribeVolumes", id: "VolumeId", id_filter: "volume-id", page: 500, with: &[] };
const MODIFICATIONS: Listing = Listing { action: "DescribeVolumesModifications", ..VOLUMES };
const STATUSES: Listing = Listing { action: "DescribeVolumeStatus", ..VOLUMES };

/// What an action without an answer answers: `return` too, which EC2's model does not have.
#[derive(Deserialize)]
pub(super) struct Done {
    #[serde(rename = "requestId")]
    _request_id: String,
    #[serde(rename = "return", default, deserialize_with = "yes")]
    _done: (),
}

fn yes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    let done = bool::deserialize(deserializer)?;
    if done { Ok(()) } else { Err(D::Error::custom("it was not done")) }
}

impl Ec2 {
    /// With the token of an earlier request it answers what that one made.
    ///
    /// # Errors
    /// `OtherParameters` where that one differed; as every method here, whatever EC2 refuses.
    pub fn create_volume(&self, create: &CreateVolume) -> Answer<Volume> {
        self.query(&create_volume(create))
    }

    /// A copy of the instant of the request, in the source's zone. With the token of an earlier request it answers what that one made.
    ///
    /// # Errors
    /// As `create_volume`; `TooSoon` while another copy of the source is filled in, or as many as a region may have; `InUse` where the
    /// source is such a copy, or being modified.
    pub fn copy_volume(&self, copy: &CopyVolume) -> Answer<Volume> {
        #[derive(Deserialize)]
        struct Reply {
            #[serde(rename = "volumeSet", deserialize_with = "query::one")]
            volume: Volume,
        }
        self.query(&copy_volume(copy)).map(|reply: Reply| reply.volume)
    }

    /// # Errors
    /// `NotFound`, which after a lost answer also means that it was this request; `InUse` while it is attached.
    pub fn delete_volume(&self, volume: &str) -> Answer<()> {
        self.query(&Query::new("DeleteVolume", Repeat::Harmless).set("VolumeId", volume)).map(|Done { .. }| ())
    }

    /// Begins to attach; the answer says under which name.
    ///
    /// # Errors
    /// `InUse` where it is attached already, there or elsewhere, which after a lost answer (`maybe_done`) can be this request's doing;
    /// `NameTaken`, `InstanceFull`, `NoInstance`, `NotFound`.
    pub fn attach_volume(&self, volume: &str, instance: &str, device: &str, card: Option<u32>) -> Answer<VolumeAttachment> {
        let query = Query::new("AttachVolume", Repeat::Harmless).set("VolumeId", volume);
        self.query(&query.set("InstanceId", instance).set("Device", device).may_set("EbsCardIndex", card))
    }

    /// Sets tags of a volume or snapshot, in place of those of the same keys.
    ///
    /// # Errors
    /// `NotFound`; whatever else EC2 refuses.
    pub fn create_tags(&self, resource: &str, tags: &Tags) -> Answer<()> {
        self.query(&Query::new("CreateTags", Repeat::Harmless).set("ResourceId.1", resource).tags("", tags)).map(|Done { .. }| ())
    }

    /// Begins to detach; never by force, which loses what the machine has not written.
    ///
    /// # Errors
    /// `NotAttached`, `NotFound`, `NoInstance`; `InUse` while it detaches already.
    pub fn detach_volume(&self, volume: &str, instance: &str) -> Answer<VolumeAttachment> {
        self.query(&Query::new("DetachVolume", Repeat::Harmless).set("VolumeId", volume).set("InstanceId", instance))
    }

    /// # Errors
    /// `TooSoon` during and after another modification, which after a lost answer (`maybe_done`) can be this one.
    pub fn modify_volume(&self, modify: &ModifyVolume) -> Answer<Modification> {
        #[derive(Deserialize)]
        struct Reply {
            #[serde(rename = "volumeModification")]
            modification: Modification,
        }
        self.query(&modify_volume(modify)).map(|reply: Reply| reply.modification)
    }

    /// Filters: `tag:KEY`, `status`, `attachment.instance-id`, `volume-id`, `snapshot-id`, ...
    ///
    /// # Errors
    /// Whatever EC2 refuses, as in all lists; not that some do not exist.
    pub fn describe_volumes(&self, select: &Select) -> Answer<Page<Volume>> {
        self.select(VOLUMES, select)
    }

    /// The last modification of each, where there was one in the last weeks. Filters: `modification-state`, `volume-id`, ...
    ///
    /// # Errors
    /// As `describe_volumes`.
    pub fn describe_volumes_modifications(&self, select: &Select) -> Answer<Page<Modification>> {
        self.select(MODIFICATIONS, select)
    }

    /// Filters: `volume-status.status`, `event.event-type`, ...
    ///
    /// # Errors
    /// As `describe_volumes`.
    pub fn describe_volume_status(&self, select: &Select) -> Answer<Page<VolumeStatus>> {
        self.select(STATUSES, select)
    }
}

pub(super) fn create_volume(create: &CreateVolume) -> Query {
    Query::new("CreateVolume", Repeat::Harmless)
        .set("ClientToken", &create.client_token)
        .set("AvailabilityZone", &create.zone)
        .may_set("Size", create.size)
        .may_set("VolumeType", create.volume_type.as_ref())
        .may_set("Iops", create.iops)
        .may_set("Throughput", create.throughput)
        .may_set("Encrypted", create.encrypted)
        .may_set("KmsKeyId", create.kms_key_id.as_ref())
        .may_set("SnapshotId", create.snapshot_id.as_ref())
        .may_set("MultiAttachEnabled", create.multi_attach)
        .may_set("OutpostArn", create.outpost_arn.as_ref())
        .may_set("VolumeInitializationRate", create.initialization_rate)
        .tag_specification("volume", &create.tags)
}

pub(super) fn copy_volume(copy: &CopyVolume) -> Query {
    Query::new("CopyVolumes", Repeat::Harmless)
        .set("ClientToken", &copy.client_token)
        .set("SourceVolumeId", &copy.source_volume_id)
        .may_set("Size", copy.size)
        .may_set("VolumeType", copy.volume_type.as_ref())
        .may_set("Iops", copy.iops)
        .may_set("Throughput", copy.throughput)
        .may_set("MultiAttachEnabled", copy.multi_attach)
        .tag_specification("volume", &copy.tags)
}

pub(super) fn modify_volume(modify: &ModifyVolume) -> Query {
    Query::new("ModifyVolume", Repeat::Harmless)
        .set("VolumeId", &modify.volume_id)
        .may_set("Size", modify.size)
        .may_set("VolumeType", modify.volume_type.as_ref())
        .may_set("Iops", modify.iops)
        .may_set("Throughput", modify.throughput)
        .may_set("MultiAttachEnabled", modify.multi_attach)
}

//! Snapshots, and their fast restore.

use std::time::SystemTime;

use serde::Deserialize;

use super::list::{Listing, Select};
use super::query::{self, Query};
use super::volumes::Done;
use super::{Ec2, codes};
use crate::backend::cloud::retry::Repeat;
use crate::backend::cloud::{Answer, Page, Refusal, Tags};

/// `CreateSnapshot`. EC2 has no token for it: after a lost answer it is found again by its tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateSnapshot {
    pub volume_id: String,
    pub description: Option<String>,
    pub outpost_arn: Option<String>,
    pub tags: Tags,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    pub snapshot_id: String,
    /// Of a copy `vol-ffffffff`.
    #[serde(default)]
    pub volume_id: String,
    #[serde(rename = "status")]
    pub state: SnapshotState,
    #[serde(default, deserialize_with = "query::some")]
    pub status_message: Option<String>,
    /// GiB, of the volume.
    pub volume_size: u64,
    #[serde(default, deserialize_with = "query::time")]
    pub start_time: Option<SystemTime>,
    /// Percent.
    #[serde(default, deserialize_with = "query::percent")]
    pub progress: u8,
    #[serde(default)]
    pub encrypted: bool,
    #[serde(default, deserialize_with = "query::some")]
    pub kms_key_id: Option<String>,
    #[serde(default, deserialize_with = "query::some")]
    pub outpost_arn: Option<String>,
    #[serde(default)]
    pub owner_id: String,
    #[serde(rename = "tagSet", default, deserialize_with = "query::tags")]
    pub tags: Tags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotState {
    Pending,
    Completed,
    Error,
    /// In the recycle bin.
    Recoverable,
    Recovering,
    /// A state that EC2 did not have yet.
    #[serde(other)]
    Unknown,
}

/// Whether volumes that are made from a snapshot in a zone are fast at once.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FastRestore {
    pub snapshot_id: String,
    #[serde(rename = "availabilityZone", default)]
    pub zone: String,
    /// `enabling`, `optimizing`, `enabled`, `disabling` or `disabled`.
    pub state: String,
}

const SNAPSHOTS: Listing = Listing {
    action: "DescribeSnapshots",
    id: "SnapshotId",
    id_filter: "snapshot-id",
    page: 500,
    // Not all that the world shares.
    with: &[("Owner.1", "self")],
};
const FAST_RESTORES: Listing =
    Listing { action: "DescribeFastSnapshotRestores", id_filter: "snapshot-id", id: "", page: 200, with: &[] };

impl Ec2 {
    /// # Errors
    /// With `maybe_done` there may be a snapshot, to be found by its tags.
    pub fn create_snapshot(&self, create: &CreateSnapshot) -> Answer<Snapshot> {
        self.query(&create_snapshot(create))
    }

    /// # Errors
    /// `NotFound`, which after a lost answer also means that it was this request; `InUse` of an image.
    pub fn delete_snapshot(&self, snapshot: &str) -> Answer<()> {
        self.query(&Query::new("DeleteSnapshot", Repeat::Harmless).set("SnapshotId", snapshot)).map(|Done { .. }| ())
    }

    /// By filters only those of this account. Filters: `tag:KEY`, `status`, `volume-id`, `snapshot-id`, ...
    ///
    /// # Errors
    /// Whatever EC2 refuses; not that some do not exist.
    pub fn describe_snapshots(&self, select: &Select) -> Answer<Page<Snapshot>> {
        self.select(SNAPSHOTS, select)
    }

    /// # Errors
    /// Also where it was refused for one of the zones: that zone's reason.
    pub fn enable_fast_snapshot_restores(&self, snapshot: &str, zones: &[String]) -> Answer<Vec<FastRestore>> {
        const ACTION: &str = "EnableFastSnapshotRestores";
        let query = Query::new(ACTION, Repeat::Harmless).list("AvailabilityZone", zones).list("SourceSnapshotId", [snapshot]);
        let reply: EnableReply = self.query(&query)?;
        let Some(zone) = reply.unsuccessful.into_iter().flat_map(|failed| failed.zones).next() else {
            return Ok(reply.successful);
        };
        Err(Refusal {
            because: codes::because(ACTION, &zone.error.code, &zone.error.message, 400),
            action: ACTION,
            code: zone.error.code,
            message: format!("{}: {}", zone.zone, zone.error.message),
            request_id: reply.request_id,
            maybe_done: !reply.successful.is_empty(),
            retry_after: None,
        })
    }

    /// Filters: `snapshot-id`, `availability-zone`, `state`.
    ///
    /// # Errors
    /// Whatever EC2 refuses.
    pub fn describe_fast_snapshot_restores(&self, filters: Vec<super::Filter>) -> Answer<Vec<FastRestore>> {
        let query = Query::new(FAST_RESTORES.action, Repeat::Reads).filters(&filters).set("MaxResults", FAST_RESTORES.page);
        self.all(&query)
    }
}

pub(super) fn create_snapshot(create: &CreateSnapshot) -> Query {
    Query::new("CreateSnapshot", Repeat::Doubles)
        .set("VolumeId", &create.volume_id)
        .may_set("Description", create.description.as_ref())
        .may_set("OutpostArn", create.outpost_arn.as_ref())
        .tag_specification("snapshot", &create.tags)
}

#[derive(Deserialize)]
struct EnableReply {
    #[serde(default, deserialize_with = "query::items")]
    successful: Vec<FastRestore>,
    #[serde(default, deserialize_with = "query::items")]
    unsuccessful: Vec<Unsuccessful>,
    #[serde(rename = "requestId")]
    request_id: Option<String>,
}

#[derive(Deserialize)]
struct Unsuccessful {
    #[serde(rename = "fastSnapshotRestoreStateErrorSet", default, deserialize_with = "query::items")]
    zones: Vec<UnsuccessfulZone>,
}

#[derive(Deserialize)]
struct UnsuccessfulZone {
    #[serde(rename = "availabilityZone", default)]
    zone: String,
    error: StateError,
}

#[derive(Deserialize)]
struct StateError {
    code: String,
    #[serde(default)]
    message: String,
}

//! What the operator configures.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::cloud::ExistingDisks;
use crate::volume::{BackendName, Error, Result, suggest};

use super::tags;

/// What is asked of EC2 and the EBS direct APIs.
const ACTIONS: [&str; 20] = [
    "AttachVolume",
    "CopyVolumes",
    "CreateSnapshot",
    "CreateTags",
    "CreateVolume",
    "DeleteSnapshot",
    "DeleteVolume",
    "DescribeAvailabilityZones",
    "DescribeFastSnapshotRestores",
    "DescribeInstanceTypes",
    "DescribeInstances",
    "DescribeSnapshots",
    "DescribeVolumeStatus",
    "DescribeVolumes",
    "DescribeVolumesModifications",
    "DetachVolume",
    "EnableFastSnapshotRestores",
    "ListChangedBlocks",
    "ListSnapshotBlocks",
    "ModifyVolume",
];

/// EBS volumes of one region and account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Ec2Config {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// Whose volumes these are, in a tag of each: only what carries it is ever changed or deleted. Two clusters of one account must
    /// not share it, and it must stay as it is. Needed by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Such as `eu-central-1`. Default: `AWS_REGION`, the profile's, or the instance's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Where EC2 answers, if not at the region's own address: `https://vpce-….ec2.eu-central-1.vpce.amazonaws.com`. Default:
    /// `AWS_ENDPOINT_URL_EC2`, `AWS_ENDPOINT_URL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The same of the EBS direct APIs, for changed blocks. Default: `AWS_ENDPOINT_URL_EBS`, `AWS_ENDPOINT_URL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ebs_endpoint: Option<String>,
    /// Tags of all volumes and snapshots.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// What the account may ask for, by action (`AttachVolume`), where AWS has granted other rates than it publishes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, LimitConfig>,
    /// Disks that another program made, by their handles in aws-ebs-csi-driver (`vol-…`): `use` them, or `delete` them as well where the
    /// PersistentVolume's reclaim policy says so. The same on the controller and on nodes. Default: they are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_disks: Option<ExistingDisks>,
    /// The zone of this node. Default: from the instance metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The type of this instance. Default: from the instance metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// How many volumes this node takes. Default: by its type, less what is attached already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_attach_limit: Option<u64>,
    /// How many of its attachments are kept for what is no volume of ours (root disks, CNI interfaces). Default: what the instance
    /// metadata tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_volume_attachments: Option<u64>,
}

/// A token bucket of AWS's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LimitConfig {
    /// How many requests at once.
    pub burst: f64,
    /// How many per second, on and on.
    pub refill: f64,
}

impl Ec2Config {
    /// Checks what needs no cloud.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        for (field, text) in [("cluster", &self.cluster), ("region", &self.region), ("zone", &self.zone)] {
            if let Some(text) = text.as_ref().filter(|text| text.trim().is_empty() || text.chars().count() > 256) {
                return Err(Error::invalid(
                    field,
                    format!("{text:?} must have 1 to 256 characters; leave the field out for its default"),
                ));
            }
        }
        for (field, url) in [("endpoint", &self.endpoint), ("ebsEndpoint", &self.ebs_endpoint)] {
            if let Some(url) = url.as_ref().filter(|url| !url.starts_with("http://") && !url.starts_with("https://")) {
                return Err(Error::invalid(field, format!("{url:?} is no address; write https://…")));
            }
        }
        for (key, value) in &self.tags {
            tags::check(key, value).map_err(|reason| Error::invalid("tags", reason))?;
        }
        for (action, limit) in &self.limits {
            if !ACTIONS.contains(&action.as_str()) {
                let nearest = suggest::nearest(action, ACTIONS.into_iter());
                let question = nearest.map(|nearest| format!("; did you mean `{nearest}`?")).unwrap_or_default();
                let reason = format!("{action} is no action that is asked for: {}{question}", ACTIONS.join(", "));
                return Err(Error::invalid("limits", reason));
            }
            if !(limit.burst >= 1.0 && limit.refill > 0.0 && limit.burst.is_finite() && limit.refill.is_finite()) {
                return Err(Error::invalid("limits", format!("{action}: burst must be at least 1, and refill more than 0")));
            }
        }
        if self.volume_attach_limit == Some(0) {
            return Err(Error::invalid(
                "volumeAttachLimit",
                "0 would let this node have no volume; leave it out for its type's limit",
            ));
        }
        if self.volume_attach_limit.is_some() && self.reserved_volume_attachments.is_some() {
            return Err(Error::invalid("reservedVolumeAttachments", "it has no effect with volumeAttachLimit; give one of them"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_action_of_the_client_may_have_a_limit() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend/ec2/api");
        let mut asked = 0;
        for entry in std::fs::read_dir(directory).expect("the client") {
            let code = std::fs::read_to_string(entry.expect("a source").path()).expect("a source");
            for part in ["Query::new(\"", "action: \""].iter().flat_map(|start| code.split(start).skip(1)) {
                let action = part.split('"').next().unwrap_or_default();
                assert!(ACTIONS.contains(&action), "{action} lacks in ACTIONS");
                asked += 1;
            }
        }
        assert!(asked > 10, "the test has stopped finding what it looks for");
    }
}

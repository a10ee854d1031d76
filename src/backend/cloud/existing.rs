//! Disks that were made by another program, used by the handles that the cloud's own CSI driver gives them, where the operator says so.
//!
//! Such a disk has none of our tags and never gets one: its id is in the volume's ([`VolumeId::existing`]). It is attached, detached, grown,
//! changed, copied and taken snapshots of as any other. It was never known to be blank, it is in no list of ours, and it is deleted only
//! where the operator has said that as well.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::volume::{Error, RawParameters, Result, Volume, VolumeId};

use super::api::{Disk, DiskId};
use super::policy::Policy;

/// What is done with disks that were made by other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ExistingDisks {
    /// They are used, and never deleted.
    Use,
    /// They are used, and deleted with their PersistentVolume where its reclaim policy is `Delete`.
    Delete,
}

/// The disk that the cloud's own CSI driver gives a handle, where this backend can reach it: its id in requests. Asks nothing.
pub type NamedDisk = Box<dyn Fn(&str) -> Option<DiskId> + Send + Sync>;

/// What another driver has put into a PersistentVolume's attributes is about how it made and attached the disk: the cloud tells what the disk
/// is. But for one that says which part of the disk is the volume.
///
/// # Errors
/// `Invalid` for a partition.
pub(super) fn parse_attributes(raw: &RawParameters) -> Result<Value> {
    match raw.get("partition").filter(|number| !["", "0"].contains(number)) {
        Some(number) => {
            let reason = format!("partition: {number}: a partition of a disk cannot be a volume; copy its data to a new volume");
            Err(Error::invalid("volume_context", reason))
        }
        None => Ok(Value::Null),
    }
}

/// An existing disk as a volume.
pub(super) fn volume(id: &VolumeId, disk: &Disk, policy: &dyn Policy) -> Volume {
    Volume {
        id: id.clone(),
        name: disk.name.clone().unwrap_or_else(|| disk.id.0.clone()),
        capacity: disk.capacity,
        source: None,
        parameters: serde_json::json!({ "node": {}, "backend": {} }).into(),
        topology: policy.places(disk),
        for_one_node: !disk.multi_attach,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_another_driver_are_ignored_but_for_a_partition() {
        let parse = |pairs: &[(&str, &str)]| {
            parse_attributes(&RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))))
        };
        // As azuredisk-csi-driver writes them.
        parse(&[("cachingMode", "ReadWrite"), ("requestedsizegib", "10"), ("skuname", "Premium_LRS"), ("partition", "")])
            .expect("ignored");
        let error = parse(&[("partition", "1")]).expect_err("the disk is not the volume").to_string();
        assert!(error.contains("partition: 1"), "{error}");
    }
}

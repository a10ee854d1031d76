//! The small files beside the data: what an id can't hold lies with the storage.
//!
//! JSON with a format version, read strictly: an unknown field, a missing one, or an id that is not the directory's is
//! damage, as is a file that was interrupted. Damage is reported, never repaired and never taken for absence.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::record;
use crate::volume::{
    BackendName, Bytes, ContentSource, Error, GroupId, HealthProblem, OnDelete, Result, Severity, Snapshot, SnapshotId, Topology,
    Volume, VolumeId,
};

/// The version of all formats here.
pub(super) const FORMAT: u32 = 1;
/// No file of ours is longer, in bytes.
pub(super) const LONGEST: u64 = 1 << 20;

/// `longshore-pool.json`: says that a directory is a pool, and whose.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Marker {
    pub format: u32,
    /// Random; tells two pools apart.
    pub id: String,
    /// The backend whose ids the volumes have.
    pub backend: BackendName,
}

/// `volumes/<id>/meta.json`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VolumeMeta {
    pub format: u32,
    pub id: VolumeId,
    pub name: String,
    /// What is provisioned, in bytes; the image is at least that long.
    pub capacity: Bytes,
    pub source: Option<ContentSource>,
    /// As given at creation, for the node and for telling a repeat from another volume.
    pub parameters: Value,
    /// In force now; `parameters` say what it was at creation.
    pub on_delete: OnDelete,
    /// In force now.
    pub preallocate: bool,
    /// Nanoseconds since 1970.
    pub created: u64,
}

/// `snapshots/<id>/meta.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SnapshotMeta {
    pub format: u32,
    pub id: SnapshotId,
    pub name: String,
    pub source: VolumeId,
    /// The volume's size when it was taken, in bytes.
    pub size: Bytes,
    /// The bytes allocated when it was taken: the most that it can ever keep from being freed.
    #[serde(rename = "promised")]
    pub provisioned: Bytes,
    /// Nanoseconds since 1970.
    pub created: u64,
    pub group: Option<Membership>,
}

/// A member of a group exists only while the group's record does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Membership {
    pub id: GroupId,
    /// The random id of the pool in which the record lies: a record in a pool that is not configured now is not gone.
    pub home: String,
}

/// `groups/<id>.json`: where it is, the group and all its members exist; where it is not, none does.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupRecord {
    pub format: u32,
    pub id: GroupId,
    pub name: String,
    /// Nanoseconds since 1970.
    pub created: u64,
    pub members: Vec<SnapshotId>,
}

impl VolumeMeta {
    /// No other volume has it, in no pool of any machine, nor will a later one of the same id. `pool` is the pool's random id.
    pub fn unique(&self, pool: &str) -> String {
        format!("{pool} {} {}", self.id, self.created)
    }

    pub fn into_volume(self, topology: Option<Topology>) -> Volume {
        Volume {
            id: self.id,
            name: self.name,
            capacity: self.capacity,
            source: self.source,
            parameters: Arc::new(self.parameters),
            topology: topology.into_iter().collect(),
            for_one_node: false,
        }
    }
}

impl SnapshotMeta {
    pub fn into_snapshot(self, topology: Option<Topology>) -> Snapshot {
        Snapshot {
            id: self.id,
            name: self.name,
            source: self.source,
            size: self.size,
            created: from_nanos(self.created),
            ready: true,
            group: self.group.map(|member| member.id),
            topology,
        }
    }
}

/// Nanoseconds since 1970; a clock before that counts as 1970.
pub(super) fn to_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn from_nanos(nanos: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
}

/// The file's text.
pub(super) fn encode<T: Serialize>(record: &T, path: &Path) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(record)
        .map_err(|error| Error::failed("write metadata", path.display().to_string(), error).rolled_back())?;
    text.push(b'\n');
    Ok(text)
}

/// Reads what [`encode`] wrote.
///
/// # Errors
/// [`Damage`] for whatever is not exactly that, or is of a later format.
pub(super) fn decode<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, Damage> {
    record::decode(text, FORMAT).map_err(|error| Damage::metadata(path, error.to_string()))
}

/// What is wrong with the files of one volume, snapshot or group. They are left as they are.
#[derive(Clone, Debug)]
pub(super) struct Damage {
    pub severity: Severity,
    pub reason: &'static str,
    pub file: PathBuf,
    /// What was seen and what to do.
    pub what: String,
}

impl Damage {
    pub fn metadata(file: &Path, what: impl Into<String>) -> Self {
        Damage { severity: Severity::Inaccessible, reason: "MetadataDamaged", file: file.to_owned(), what: what.into() }
    }

    pub fn image_missing(file: &Path) -> Self {
        let directory = file.parent().unwrap_or(file).display();
        Damage {
            severity: Severity::DataLoss,
            reason: "ImageMissing",
            file: file.to_owned(),
            what: format!("the file is gone; put it back, or give it up by removing the directory {directory} by hand"),
        }
    }

    pub fn image_short(file: &Path, length: u64, capacity: Bytes) -> Self {
        Damage {
            severity: Severity::DataLoss,
            reason: "ImageTruncated",
            file: file.to_owned(),
            what: format!(
                "it is {} long, less than its capacity of {capacity}; restore it from a backup or a snapshot",
                Bytes(length)
            ),
        }
    }

    pub fn problem(&self) -> HealthProblem {
        HealthProblem { severity: self.severity, reason: self.reason, message: format!("{}: {}", self.file.display(), self.what) }
    }
}

impl From<Damage> for Error {
    fn from(damage: Damage) -> Self {
        Error::Unverified { device: damage.file.display().to_string(), reason: damage.what }
    }
}

/// A record as it would be written again; `None` where the bytes are none.
#[cfg(feature = "fuzzing")]
pub fn rewritten(kind: &str, text: &[u8]) -> Option<Vec<u8>> {
    let path = Path::new("meta.json");
    match kind {
        "volume" => {
            let meta: VolumeMeta = decode(path, text).ok()?;
            let text = encode(&meta, path).ok();
            meta.into_volume(None);
            text
        }
        "snapshot" => {
            let meta: SnapshotMeta = decode(path, text).ok()?;
            let text = encode(&meta, path).ok();
            meta.into_snapshot(None);
            text
        }
        "group" => encode(&decode::<GroupRecord>(path, text).ok()?, path).ok(),
        _ => encode(&decode::<Marker>(path, text).ok()?, path).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> VolumeMeta {
        VolumeMeta {
            format: FORMAT,
            id: "image:a".parse().expect("an id"),
            name: "a".to_owned(),
            capacity: Bytes::GIB,
            source: Some(ContentSource::Snapshot("image:s".parse().expect("an id"))),
            parameters: serde_json::json!({"node": {"fsck": "true"}, "backend": {"onDelete": "scrub"}}),
            on_delete: OnDelete::Retain,
            preallocate: true,
            created: to_nanos(SystemTime::now()),
        }
    }

    #[test]
    fn record_is_read_as_written() {
        let path = Path::new("/pool/volumes/a/meta.json");
        let text = encode(&meta(), path).expect("serializes");
        assert_eq!(decode::<VolumeMeta>(path, &text).expect("our own"), meta_like(&text));
        fn meta_like(text: &[u8]) -> VolumeMeta {
            serde_json::from_slice(text).expect("json")
        }
    }

    #[test]
    fn a_file_interrupted_anywhere_is_damage() {
        let path = Path::new("/pool/volumes/a/meta.json");
        let text = encode(&meta(), path).expect("serializes");
        // The last byte is only the newline.
        for length in 0..text.len() - 1 {
            let damage = decode::<VolumeMeta>(path, &text[..length]).expect_err("interrupted");
            assert_eq!(damage.reason, "MetadataDamaged");
        }
        assert!(decode::<VolumeMeta>(path, &vec![0; text.len()]).is_err());
    }

    #[test]
    fn a_later_format_is_not_guessed_at() {
        let damage = decode::<VolumeMeta>(Path::new("/m"), b"{\"format\": 2, \"shape\": \"round\"}").expect_err("later");
        assert!(damage.what.contains("format 2"), "{}", damage.what);
    }

    #[test]
    fn times_survive() {
        let now = SystemTime::now();
        assert_eq!(from_nanos(to_nanos(now)), now);
        assert_eq!(to_nanos(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), 0);
    }
}

//! The small files beside the data: what an id cannot hold lies with the storage.
//!
//! JSON with a format version, read strictly. What is damaged is reported, never repaired and never taken for absence.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::record;
use crate::os::dir::OpenDir;
use crate::volume::{
    BackendName, Bytes, ContentSource, Error, OnDelete, Result, Snapshot, SnapshotId, Topology, Volume, VolumeId,
};

use super::parameters::{CommonParameters, Medium};

/// The version of all formats here.
pub(super) const FORMAT: u32 = 1;
/// No file of ours is longer, in bytes.
const LONGEST: u64 = 1 << 20;

/// `marker.json`: whose base this is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Marker {
    pub format: u32,
    /// Tells two bases apart.
    pub id: String,
    /// The backend whose ids the volumes have.
    pub backend: BackendName,
}

/// Where a volume is in its life. Only a whole one exists for anybody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    Making,
    Whole,
    /// From this moment on (nanoseconds since 1970) it is deleted; its data is still to be taken away.
    Deleting {
        at: u64,
    },
}

/// `volumes/<local>.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VolumeRecord {
    pub format: u32,
    pub id: VolumeId,
    pub name: String,
    pub phase: Phase,
    /// Below the base.
    #[serde(rename = "folder")]
    pub directory: PathBuf,
    pub capacity: Bytes,
    pub source: Option<ContentSource>,
    /// As the node needs them: with server and base.
    pub parameters: Value,
    /// Nanoseconds since 1970.
    pub created: u64,
    /// Of the directory that is being made, or taken away (`os::subvolume::number`): so that another in its place is left alone.
    pub inode: Option<u64>,
    /// What DeleteVolume does with the data, where that was changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<OnDelete>,
    /// So many of the directories on the way to it were there before it was made.
    pub found_parents: usize,
    /// The project whose quota enforces the capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<u32>,
}

/// `snapshots/<local>/meta.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SnapshotRecord {
    pub format: u32,
    pub id: SnapshotId,
    pub name: String,
    pub source: VolumeId,
    /// The least capacity of a volume that is made of it.
    pub size: Bytes,
    /// When its making was begun, in nanoseconds since 1970.
    pub created: u64,
    /// All of it is there.
    pub ready: bool,
    /// What was copied, or what a subvolume has allocated; counts as provisioned.
    pub taken: Bytes,
    /// Whether it may be consistent file by file only, as its class says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_file: bool,
}

impl VolumeRecord {
    pub fn into_volume(self, topology: Option<Topology>) -> Volume {
        let VolumeRecord { id, name, capacity, source, parameters, .. } = self;
        let topology = topology.into_iter().collect();
        Volume { id, name, capacity, source, parameters: parameters.into(), topology, for_one_node: false }
    }

    pub fn on_delete(&self) -> Result<OnDelete> {
        self.on_delete.map_or_else(|| Ok(self.own_parameters()?.on_delete), Ok)
    }

    /// That its directory has its data, to be copied or expanded.
    ///
    /// # Errors
    /// `Unsupported` where its data is in memory.
    pub fn check_on_disk(&self) -> Result<()> {
        if self.is_in_memory()? {
            let reason = "its data is in memory (medium: memory)".to_owned();
            return Err(Error::Unsupported { what: format!("copying or expanding volume {}", self.id), reason });
        }
        Ok(())
    }

    pub fn is_in_memory(&self) -> Result<bool> {
        Ok(self.own_parameters()?.medium == Medium::Memory)
    }

    pub fn own_parameters(&self) -> Result<CommonParameters> {
        CommonParameters::from_json(self.parameters.get("backend").unwrap_or(&Value::Null))
    }
}

impl SnapshotRecord {
    pub fn into_snapshot(self, topology: Option<Topology>) -> Snapshot {
        let SnapshotRecord { id, name, source, size, created, ready, .. } = self;
        let created = UNIX_EPOCH + Duration::from_nanos(created);
        Snapshot { id, name, source, size, created, ready, group: None, topology }
    }
}

/// Nanoseconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// As a file's text, with a newline at its end.
pub(super) fn encode<T: Serialize>(record: &T) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(record).map_err(|error| Error::failed("encode", "metadata", error).rolled_back())?;
    text.push(b'\n');
    Ok(text)
}

/// What a file holds; `None` where there is none.
///
/// # Errors
/// `Damaged` where it is not exactly that, or of a later format.
pub(super) fn read<T: DeserializeOwned>(directory: &OpenDir, name: &str) -> Result<Option<T>> {
    let Some(text) = directory.read(name, LONGEST)? else { return Ok(None) };
    decode(&directory.path_of(name), &text).map(Some)
}

fn decode<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T> {
    record::decode(text, FORMAT)
        .map_err(|error| Error::Unverified { device: path.display().to_string(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_interrupted_anywhere_is_damage() {
        let record = VolumeRecord {
            format: FORMAT,
            id: "nfs:a".parse().expect("an id"),
            name: "a".to_owned(),
            phase: Phase::Deleting { at: 7 },
            directory: "x/y".into(),
            capacity: Bytes::GIB,
            source: Some(ContentSource::Snapshot("nfs:s".parse().expect("an id"))),
            parameters: serde_json::json!({"node": {}, "backend": {"server": "a"}}),
            created: now(),
            inode: Some(5),
            on_delete: None,
            found_parents: 1,
            project: None,
        };
        let path = Path::new("a.json");
        let text = encode(&record).expect("serializes");
        assert_eq!(decode::<VolumeRecord>(path, &text).expect("our own"), record);
        for length in 0..text.len() - 1 {
            assert!(matches!(decode::<VolumeRecord>(path, &text[..length]), Err(Error::Unverified { .. })));
        }
        let error = decode::<VolumeRecord>(path, b"{\"format\": 2, \"shape\": \"round\"}").expect_err("later").to_string();
        assert!(error.contains("format 2"), "{error}");
    }
}

//! Tags, as Cinder keeps them: metadata, of which a key has no slash (Block Storage API v3, "metadata", with the pattern of
//! cinder/api/validation/parameter_types.py).

use serde_json::Value;
use serde_json::map::Map;

use crate::backend::cloud::tags::{BACKEND, CLUSTER, OURS, SOURCE, VOLUME};
use crate::backend::cloud::{CloudSnapshotId, Tags};
use crate::volume::digest::sha256_of;

use super::metadata::is_uuid;

/// Of a key and of a value, in characters.
pub const LONGEST: usize = 255;
const KEPT: &str = "longshore.dev:";
/// In the metadata of a snapshot of which a backup is made.
pub const FOR_BACKUP: &str = "longshore.dev:backup";
/// In a volume's metadata: the backup that it was restored of (cinder/backup/manager.py, `restore_backup`).
pub const RESTORED_OF: &str = "src_backup_id";
/// How the description of a volume begins that was made of a backup.
const RESTORED: &str = "longshore.dev/restored/";
/// How the id of a snapshot begins that is a backup.
const BACKUP: &str = "backup_";

fn kept_key(key: &str) -> String {
    key.strip_prefix(OURS).map_or_else(|| key.to_owned(), |rest| format!("{KEPT}{rest}"))
}

/// Metadata that keeps these tags.
pub fn metadata<'a>(tags: impl IntoIterator<Item = (&'a String, &'a String)>) -> Value {
    tags.into_iter().map(|(key, value)| (kept_key(key), Value::from(value.as_str()))).collect::<Map<_, _>>().into()
}

/// The tags again.
pub fn tags(metadata: Tags) -> Tags {
    let tag = |(key, value): (String, String)| {
        (key.strip_prefix(KEPT).map_or_else(|| key.clone(), |rest| format!("{OURS}{rest}")), value)
    };
    metadata.into_iter().map(tag).collect()
}

/// The id by which a backup is a snapshot.
pub fn snapshot_of_backup(backup: &str) -> CloudSnapshotId {
    CloudSnapshotId(format!("{BACKUP}{backup}"))
}

/// The backup that a snapshot is, if it is one.
pub fn backup(snapshot: &CloudSnapshotId) -> Option<&str> {
    snapshot.0.strip_prefix(BACKUP).filter(|id| is_uuid(id))
}

/// The backup that a volume's tag of its source names.
pub fn backup_in(source: &str) -> Option<&str> {
    source.split_once(BACKUP)?.1.get(..36).filter(|id| is_uuid(id))
}

/// What the description of the volume of these tags says where it is made of a backup, whatever becomes of its metadata. A volume that was
/// backed up has another source than a volume that is made of the backup.
pub fn restored_mark(tags: &Tags) -> String {
    let parts = [CLUSTER, BACKEND, VOLUME, SOURCE].map(|key| tags.get(key).map_or("", String::as_str));
    format!("{RESTORED}{}", sha256_of(parts))
}

pub fn is_restored_mark(description: &str) -> bool {
    description.starts_with(RESTORED)
}

/// Whether a user may have this metadata on a volume.
///
/// # Errors
/// Why not.
pub fn check_metadata(key: &str, value: &str) -> Result<(), String> {
    if key.starts_with(KEPT) {
        return Err(format!("{key:?}: what begins with {KEPT} is not for users"));
    }
    let fits = key.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_:. ".contains(letter));
    if key.is_empty() || !fits || key.len() > LONGEST || value.chars().count() > LONGEST {
        return Err(format!(
            "{key:?} has 1 to {LONGEST} letters, digits, spaces and any of -_:. in each key, and at most {LONGEST} characters in each value"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cloud::tags::PARAMETERS;

    #[test]
    fn tags_are_given_back_as_they_were() {
        let all: Tags = [(CLUSTER, "Клас\"тер"), (PARAMETERS, "{}"), ("team", "storage")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let kept = metadata(&all);
        for key in kept.as_object().expect("a map").keys() {
            check_metadata(key.trim_start_matches(KEPT), "").expect("a key of Cinder's");
        }
        assert_eq!(tags(serde_json::from_value(kept).expect("texts")), all);
    }

    #[test]
    fn backup_is_a_snapshot_by_its_id_and_a_restored_volume_itself_by_its_description() {
        let id = "0b3c0a54-0e0e-4d0b-8a4a-1f0c7a3a7a2b";
        assert_eq!(backup(&snapshot_of_backup(id)), Some(id));
        for other in [id, "backup_", "backup_../volumes", &format!("backup_{id}/x")] {
            assert_eq!(backup(&CloudSnapshotId(other.to_owned())), None, "{other}");
        }
        let source = format!("snapshot/vol:d-backup_{id}.then");
        assert_eq!((backup_in(&source), backup_in("snapshot/vol:then"), backup_in("backup_1")), (Some(id), None, None));
        let of = |cluster: &str, volume: &str, source: &str| -> Tags {
            let all = [(CLUSTER, cluster), (BACKEND, "vol"), (VOLUME, volume), (SOURCE, source)];
            all.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
        };
        let mark = restored_mark(&of("c", "data", &source));
        assert!(is_restored_mark(&mark) && mark.len() <= LONGEST, "{mark}");
        for other in [of("d", "data", &source), of("c", "other", &source), of("c", "data", "snapshot/x"), Tags::new()] {
            assert_ne!(restored_mark(&other), mark);
        }
    }

    #[test]
    fn metadata_that_cinder_refuses_is_refused() {
        let long = "x".repeat(LONGEST + 1);
        for (key, value) in [("", "a"), ("a/b", "c"), (long.as_str(), "a"), ("a", long.as_str()), ("longshore.dev:blank", "a")] {
            check_metadata(key, value).expect_err(key);
        }
        check_metadata("cost center: 7", "").expect("metadata");
    }
}

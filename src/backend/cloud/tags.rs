//! What the controller must know again lies with the disk, in its tags.
//!
//! A cloud keeps tags as it can, as tags, labels, metadata or in one text, and gives them back as they were; its longest value is a constant
//! of it ([`super::CloudConstants::longest_value`]), and what may be longer is cut into pieces.

use std::str::FromStr;

use serde_json::Value;

use crate::backend::{SnapshotSpec, VolumeSpec};
use crate::volume::{BackendName, ContentSource, Error, Result, Snapshot, SnapshotId, Volume, VolumeId};

use super::api::{CloudSnapshot, Disk, DiskId, DiskSource, SnapshotState, Tags};
use super::existing::ExistingDisks;
use super::policy::Policy;

/// How the keys of our tags begin.
pub const OURS: &str = "longshore.dev/";
/// Whose it is.
pub const CLUSTER: &str = "longshore.dev/cluster";
/// The backend's name: two of one cluster may share an account.
pub const BACKEND: &str = "longshore.dev/backend";
/// The part of the volume's id that is derived from its name. On a snapshot, that of its source with the source's disk recorded in it.
pub const VOLUME: &str = "longshore.dev/volume";
/// The part of the snapshot's id that is derived from its name.
pub const SNAPSHOT: &str = "longshore.dev/snapshot";
/// The CO's name.
pub const NAME: &str = "longshore.dev/name";
/// JSON; further pieces have `-1`, `-2` and so on behind.
pub const PARAMETERS: &str = "longshore.dev/parameters";
/// `snapshot/<id>` or `volume/<id>`, of what it was made.
pub const SOURCE: &str = "longshore.dev/source";
/// On a disk that was made of nothing: [`NEVER_ATTACHED`], until a process that begins its first attachment puts a value of its own there,
/// and a process that finds another's value puts [`USED`].
pub const BLANK: &str = "longshore.dev/blank";
pub const NEVER_ATTACHED: &str = "never-attached";
pub const USED: &str = "used";
/// The UUID of whatever this driver makes on the disk, or made on the one that it was copied from; a snapshot has that of its source. It is
/// set with [`BLANK`], before the first attachment: without it, something of another UUID may be on the disk.
pub const CONTENTS: &str = "longshore.dev/contents";
/// On a snapshot that is only the way to a copy: the part of the copy's volume id that is derived from its name.
pub const TEMPORARY: &str = "longshore.dev/temporary";

/// Who owns what is tagged.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub backend: BackendName,
    pub cluster: String,
    /// In characters.
    pub longest_value: usize,
    /// `None`: no disk that was made by another program is used.
    pub existing: Option<ExistingDisks>,
}

impl Owner {
    /// What all of ours carries.
    pub fn tags(&self) -> Tags {
        tags([(CLUSTER, self.cluster.clone()), (BACKEND, self.backend.to_string())])
    }

    /// Whether it is ours.
    pub fn owns(&self, tags: &Tags) -> bool {
        self.tags().iter().all(|(key, value)| tags.get(key) == Some(value))
    }

    /// Whether it is ours, and carries this volume's tag; and is the disk that is recorded in the id, if one is. An existing disk carries none.
    pub fn is_disk_of(&self, id: &VolumeId, disk: &Disk) -> bool {
        if id.is_existing() {
            return self.existing.is_some() && id.recorded() == Some(&disk.id.0) && !is_tagged(disk);
        }
        self.owns(&disk.tags)
            && disk.tags.get(VOLUME).is_some_and(|derived| derived == id.derived())
            && id.recorded().is_none_or(|recorded| recorded == disk.id.0)
    }

    /// The volume's id, with the disk recorded in it; `None` where its tags say none.
    pub fn volume_id(&self, disk: &Disk) -> Option<VolumeId> {
        VolumeId::from_parts(&self.backend, disk.tags.get(VOLUME)?).and_then(|id| id.record(&disk.id.0)).ok()
    }

    /// The snapshot's id, with the cloud's recorded in it; `None` where its tags say none.
    pub fn snapshot_id(&self, snapshot: &CloudSnapshot) -> Option<SnapshotId> {
        SnapshotId::from_parts(&self.backend, snapshot.tags.get(SNAPSHOT)?).and_then(|id| id.record(&snapshot.id.0)).ok()
    }

    /// # Errors
    /// `Unverified` where existing disks are not to be deleted.
    pub fn may_delete(&self, id: &VolumeId, disk: &Disk) -> Result<()> {
        if !id.is_existing() || self.existing == Some(ExistingDisks::Delete) {
            return Ok(());
        }
        let reason = format!(
            "disk {} was made by another program and is not deleted; set existingDisks of backend {} to delete, or the reclaim policy of its \
             PersistentVolume to Retain",
            disk.id, self.backend
        );
        Err(Error::Unverified { device: format!("volume {id}"), reason })
    }

    /// Why `is_disk_of` is not so.
    pub fn not_disk_of(&self, id: &VolumeId, disk: &Disk) -> Error {
        if !id.is_existing() {
            return self.not_of(&format!("volume {id}"), &format!("disk {}", disk.id), VOLUME, id.derived(), &disk.tags);
        }
        let reason = match self.existing {
            None => format!(
                "disk {} was made by another program; to use it, set existingDisks of backend {} to use",
                disk.id, self.backend
            ),
            Some(_) => format!("disk {} carries the tags of a volume of this driver; use the handle of that volume", disk.id),
        };
        Error::Unverified { device: format!("volume {id}"), reason }
    }

    /// The id names this disk or snapshot, whose tags say something else: an administrator changed them, or it never was ours.
    pub fn not_of(&self, object: &str, cloud_id: &str, key: &str, derived: &str, tags: &Tags) -> Error {
        let mut wanted = self.tags();
        wanted.insert(key.to_owned(), derived.to_owned());
        let lacking: Vec<String> = wanted.iter().filter(|(key, value)| tags.get(*key) != Some(*value)).map(pair).collect();
        let reason = format!(
            "it is {cloud_id}, whose tags are not {object}'s: {} missing or changed; nothing was done to it. If it is {object}, restore \
             these tags",
            lacking.join(", ")
        );
        Error::Unverified { device: object.to_owned(), reason }
    }

    /// The tags of a new disk. What the operator asks for never takes the place of ours.
    pub fn disk(&self, spec: &VolumeSpec, parameters: &Value, further: &Tags) -> Tags {
        let mut all = further.clone();
        all.extend(self.tags());
        all.extend(tags([(VOLUME, spec.id.derived().to_owned()), (NAME, spec.name.clone())]));
        all.extend(cut(PARAMETERS, &parameters.to_string(), self.longest_value));
        all.extend(match &spec.source {
            Some(source) => tags([(SOURCE, source_text(source))]),
            None => tags([(BLANK, NEVER_ATTACHED.to_owned())]),
        });
        all
    }

    /// The tags of a new snapshot.
    pub fn snapshot(&self, spec: &SnapshotSpec, further: &Tags) -> Tags {
        let mut all = further.clone();
        all.extend(self.tags());
        // The source's disk is recorded, too: by it a snapshot is distinguished from a copy that carries the same tags.
        let (id, source) = (spec.id.derived().to_owned(), spec.source.local().to_owned());
        all.extend(tags([(SNAPSHOT, id), (VOLUME, source), (NAME, spec.name.clone())]));
        all
    }

    /// The tags of a snapshot that is only the way to a copy.
    pub fn temporary(&self, copy: &VolumeId, source: &VolumeId, further: &Tags) -> Tags {
        let mut all = further.clone();
        all.extend(self.tags());
        all.extend(tags([(TEMPORARY, copy.derived().to_owned()), (VOLUME, source.local().to_owned())]));
        all
    }

    /// Whether a snapshot was taken of this volume; yes, where its tags do not say.
    pub fn is_taken_of(&self, source: &VolumeId, snapshot: &CloudSnapshot) -> bool {
        let Some(Ok(of)) = snapshot.tags.get(VOLUME).map(|local| VolumeId::from_parts(&self.backend, local)) else { return true };
        let same_disk = of.recorded().zip(source.recorded()).is_none_or(|(of, source)| of == source);
        of.derived() == source.derived() && same_disk
    }

    /// # Errors
    /// `Unverified` for tags that someone has changed: the disk is left alone.
    pub fn volume(&self, disk: &Disk, policy: &dyn Policy) -> Result<Volume> {
        let read = || -> Option<Volume> {
            let source = match disk.tags.get(SOURCE) {
                Some(text) => Some(source(text)?),
                None => None,
            };
            Some(Volume {
                id: self.volume_id(disk)?,
                name: disk.tags.get(NAME)?.clone(),
                capacity: disk.capacity,
                source,
                parameters: parameters(&disk.tags)?.into(),
                topology: policy.places(disk),
                for_one_node: !disk.multi_attach,
            })
        };
        read().ok_or_else(|| changed_by_hand("disk", &disk.id.0, &disk.tags))
    }

    /// # Errors
    /// As `volume`.
    pub fn taken(&self, snapshot: &CloudSnapshot) -> Result<Snapshot> {
        let read = || {
            Some(Snapshot {
                id: self.snapshot_id(snapshot)?,
                name: snapshot.tags.get(NAME)?.clone(),
                source: VolumeId::from_parts(&self.backend, snapshot.tags.get(VOLUME)?).ok()?,
                size: snapshot.capacity,
                created: snapshot.created,
                ready: snapshot.state == SnapshotState::Completed,
                group: None,
                topology: None,
            })
        };
        read().ok_or_else(|| changed_by_hand("snapshot", &snapshot.id.0, &snapshot.tags))
    }
}

/// What is said of a disk's being blank; `None` where it was made of something, or by a driver that did not say.
pub(super) fn blank(disk: &Disk) -> Option<&str> {
    disk.tags.get(BLANK).filter(|_| !is_made_of_something(disk)).map(String::as_str)
}

/// Whether a disk was copied from a snapshot or a disk.
pub(super) fn is_made_of_something(disk: &Disk) -> bool {
    disk.source != DiskSource::Empty || disk.tags.contains_key(SOURCE)
}

/// The tag by which a copy is known to hold what its source, with these tags, holds.
pub(super) fn contents(tags: &Tags) -> Tags {
    tags.get_key_value(CONTENTS).map(|(key, uuid)| (key.clone(), uuid.clone())).into_iter().collect()
}

/// Whether a disk was made of a volume.
pub(super) fn is_copy(tags: &Tags) -> bool {
    tags.get(SOURCE).is_some_and(|text| text.starts_with("volume/"))
}

/// Whether a disk that carries a volume's tags was made of a snapshot or a disk of which these tags know nothing: a person restored a
/// backup with its tags (AWS Backup, "Copy tags during a restore"), or copied the disk, and the volume's own is, or was, another one.
pub(super) fn is_restored_backup(disk: &Disk) -> bool {
    let snapshot = match &disk.source {
        DiskSource::Empty => return false,
        DiskSource::Disk(_) => return !is_copy(&disk.tags),
        DiskSource::Snapshot(snapshot) => snapshot,
    };
    match disk.tags.get(SOURCE).map(|text| source(text)) {
        None => true,
        Some(Some(ContentSource::Snapshot(id))) => id.recorded().is_some_and(|recorded| recorded != snapshot.0),
        // Of a copied volume: through a snapshot that was deleted afterwards.
        Some(_) => false,
    }
}

/// Whether a snapshot was taken of the disk that its tags name: `None` where they name none. A copy of a snapshot has none, or any, for a
/// source (EBS user guide, "Copy an Amazon EBS snapshot": an arbitrary volume id that is not to be used).
pub(super) fn is_of_its_source(snapshot: &CloudSnapshot) -> Option<bool> {
    source_disk(&snapshot.tags).map(|disk| disk == snapshot.disk)
}

/// Whether a snapshot with these tags was taken of a disk that another program made.
pub fn is_of_existing_disk(tags: &Tags) -> bool {
    source_volume(tags).is_some_and(|source| source.is_existing())
}

/// The disk that a snapshot with these tags was taken of, as it is recorded in the volume's id.
pub fn source_disk(tags: &Tags) -> Option<DiskId> {
    source_volume(tags)?.recorded().map(|disk| DiskId(disk.to_owned()))
}

/// The volume that a snapshot was taken of, of whatever backend.
fn source_volume(tags: &Tags) -> Option<VolumeId> {
    format!("x:{}", tags.get(VOLUME)?).parse().ok()
}

/// Whether it carries a tag of ours: any will do, even one that is left of several.
pub(super) fn is_tagged(disk: &Disk) -> bool {
    disk.tags.keys().any(|key| key.starts_with(OURS))
}

fn pair((key, value): (&String, &String)) -> String {
    format!("{key}={value}")
}

fn changed_by_hand(what: &str, id: &str, tags: &Tags) -> Error {
    let ours: Vec<String> = tags.iter().filter(|(key, _)| key.starts_with(OURS)).map(pair).collect();
    let reason = format!("its tags are not as they were made ({}); restore them", ours.join(", "));
    Error::Unverified { device: format!("{what} {id}"), reason }
}

fn tags<const N: usize>(pairs: [(&str, String); N]) -> Tags {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn cut(key: &str, text: &str, longest: usize) -> Tags {
    let letters: Vec<char> = text.chars().collect();
    let pieces = letters.chunks(longest.max(1)).map(|piece| piece.iter().collect::<String>());
    pieces.enumerate().map(|(number, piece)| (piece_key(key, number), piece)).collect()
}

fn piece_key(key: &str, number: usize) -> String {
    if number == 0 { key.to_owned() } else { format!("{key}-{number}") }
}

fn parameters(tags: &Tags) -> Option<Value> {
    let pieces = (0..).map_while(|number| tags.get(&piece_key(PARAMETERS, number)));
    serde_json::from_str(&pieces.map(String::as_str).collect::<String>()).ok()
}

fn source_text(source: &ContentSource) -> String {
    match source {
        ContentSource::Snapshot(id) => format!("snapshot/{id}"),
        ContentSource::Volume(id) => format!("volume/{id}"),
    }
}

fn source(text: &str) -> Option<ContentSource> {
    match text.split_once('/')? {
        ("snapshot", id) => SnapshotId::from_str(id).ok().map(ContentSource::Snapshot),
        ("volume", id) => VolumeId::from_str(id).ok().map(ContentSource::Volume),
        _ => None,
    }
}

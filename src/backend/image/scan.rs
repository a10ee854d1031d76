//! What the disk shows of volumes, snapshots and groups: whole, damaged, or not there.

use std::path::Path;

use crate::os;
use crate::volume::{Bytes, Error, Result, VolumeId};

use super::files::{self, IMAGE, META, Seen};
use super::layout::{ARCHIVE, GROUPS, Kind, RETAINED};
use super::ledger::Entry;
use super::meta::{self, Damage, GroupRecord, SnapshotMeta, VolumeMeta};
use super::ready::Ready;

/// What was seen of a volume or snapshot.
#[derive(Debug)]
pub(super) struct Examined<M> {
    /// `None` where it is damaged.
    pub meta: Option<M>,
    pub image: Option<Seen>,
    /// Worst first; empty where all is well.
    pub damage: Vec<Damage>,
}

/// What a metadata file must be about.
pub(super) trait About: serde::de::DeserializeOwned {
    const KIND: Kind;
    /// The id as text.
    fn id(&self) -> String;
    /// How long the image must be at least.
    fn length(&self) -> Bytes;
}

impl About for VolumeMeta {
    const KIND: Kind = Kind::Volume;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn length(&self) -> Bytes {
        self.capacity
    }
}

impl About for SnapshotMeta {
    const KIND: Kind = Kind::Snapshot;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn length(&self) -> Bytes {
        self.size
    }
}

impl<M> Examined<M> {
    /// The metadata of what is whole.
    ///
    /// # Errors
    /// `Unverified`, naming the damaged file and what to do.
    pub fn whole(self) -> Result<(M, Seen)> {
        match (self.damage.into_iter().next(), self.meta, self.image) {
            (None, Some(meta), Some(image)) => Ok((meta, image)),
            (Some(damage), _, _) => Err(damage.into()),
            (None, _, _) => {
                Err(Error::failed("examine", "a volume or snapshot", "it is neither damaged nor whole").rolled_back())
            }
        }
    }
}

/// Looks at the files of one volume or snapshot. Whatever can't be read is damage: it must not stop the others.
pub(super) fn examine<M: About>(ready: &Ready, local: &str) -> Examined<M> {
    let directory = ready.place(M::KIND, local);
    let (meta_path, image_path) = (directory.join(META), directory.join(IMAGE));
    let mut damage = Vec::new();
    let image = match ready.look_at_image(M::KIND, local) {
        Ok(Some(seen)) if seen.regular => Some(seen),
        Ok(Some(_)) => {
            damage.push(Damage::metadata(&image_path, "it is no regular file; put the image back"));
            None
        }
        Ok(None) => {
            damage.push(Damage::image_missing(&image_path));
            None
        }
        Err(error) => {
            damage.push(Damage::metadata(&image_path, format!("it cannot be looked at ({error}); check the disk")));
            None
        }
    };
    let meta = read_meta::<M>(ready, local, &meta_path).map_err(|found| damage.push(found)).ok();
    if let (Some(meta), Some(seen)) = (&meta, image)
        && seen.length < meta.length().0
    {
        damage.push(Damage::image_short(&image_path, seen.length, meta.length()));
    }
    Examined { meta, image, damage }
}

fn read_meta<M: About>(ready: &Ready, local: &str, path: &Path) -> Result<M, Damage> {
    let text = match ready.read_meta(M::KIND, local) {
        Ok(Some(text)) => text,
        Ok(None) => return Err(Damage::metadata(path, "the file is gone; restore it from a backup")),
        Err(error) => return Err(Damage::metadata(path, format!("it cannot be read ({error}); check the disk"))),
    };
    let meta: M = meta::decode(path, &text)?;
    let expected = format!("{}:{local}", &ready.backend);
    if meta.id() != expected {
        return Err(Damage::metadata(path, format!("it belongs to {}, not to {expected}; restore the right one", meta.id())));
    }
    Ok(meta)
}

/// As [`examine`]; `None` where there is nothing of that id in this pool.
pub(super) fn find<M: About>(ready: &Ready, local: &str) -> Result<Option<Examined<M>>> {
    if !ready.has(M::KIND, local)? {
        return Ok(None);
    }
    let examined = examine(ready, local);
    // What looks damaged may have been deleted while we looked.
    if !examined.damage.is_empty() && !ready.has(M::KIND, local)? {
        return Ok(None);
    }
    Ok(Some(examined))
}

/// The record of a group in this pool; `None` where there is none.
pub(super) fn group_record(ready: &Ready, local: &str) -> Result<Option<GroupRecord>> {
    let relative = Path::new(GROUPS).join(group_file(local));
    let path = ready.path.join(&relative);
    let text = files::read(ready.root(), &relative, meta::LONGEST)
        .map_err(|error| Error::from(Damage::metadata(&path, format!("it cannot be read ({error}); check the disk"))))?;
    let Some(text) = text else { return ready.check_directory(GROUPS).map(|()| None).map_err(|reason| ready.down(reason)) };
    let record: GroupRecord = meta::decode(&path, &text)?;
    if record.id.local() != local || record.id.backend() != &ready.backend {
        return Err(Damage::metadata(&path, format!("it belongs to {}; restore the right one", record.id)).into());
    }
    Ok(Some(record))
}

/// The name of a group's record.
pub(super) fn group_file(local: &str) -> String {
    format!("{local}.json")
}

/// Whether a group's record is there, damaged or not.
pub(super) fn has_group(ready: &Ready, local: &str) -> Result<bool> {
    let found = files::look(ready.root(), &Path::new(GROUPS).join(group_file(local)));
    match found {
        Ok(Some(_)) => Ok(true),
        Ok(None) => ready.check_directory(GROUPS).map(|()| false).map_err(|reason| ready.down(reason)),
        Err(error) => Err(ready.down(error.to_string())),
    }
}

/// The local ids of the volumes in a pool, from the disk.
pub(super) fn volume_names(ready: &Ready) -> Result<Vec<String>> {
    let names = files::names(&ready.path.join(Kind::Volume.directory())).map_err(|error| ready.down(error.to_string()))?;
    Ok(names.into_iter().filter(|local| is_ours(ready, Kind::Volume, local)).collect())
}

/// Fills the ledger from the disk. Damaged volumes count with what their image shows.
pub(super) fn load(ready: &Ready) -> os::Result<()> {
    for local in files::names(&ready.path.join(Kind::Volume.directory()))? {
        if !is_ours(ready, Kind::Volume, &local) {
            continue;
        }
        let found = examine::<VolumeMeta>(ready, &local);
        warn(&found.damage);
        let capacity = found.meta.map(|meta| meta.capacity.0).or(found.image.map(|image| image.length));
        ready.ledger.put_volume(&local, capacity.unwrap_or(0));
    }
    for local in files::names(&ready.path.join(Kind::Snapshot.directory()))? {
        if !is_ours(ready, Kind::Snapshot, &local) {
            continue;
        }
        let found = examine::<SnapshotMeta>(ready, &local);
        warn(&found.damage);
        let entry = match &found.meta {
            Some(meta) => Entry {
                id: &local,
                source: meta.source.local(),
                group: meta.group.as_ref().map(|member| member.id.local()),
                provisioned: meta.provisioned.0,
            },
            None => Entry { id: &local, source: "", group: None, provisioned: found.image.map_or(0, |image| image.allocated) },
        };
        ready.ledger.put_snapshot(entry);
    }
    ready.ledger.set_kept(kept(ready));
    Ok(())
}

/// Whether a name in one of our directories can be an id.
fn is_ours(ready: &Ready, kind: Kind, local: &str) -> bool {
    let ours = VolumeId::from_parts(&ready.backend, local).is_ok();
    if !ours {
        tracing::warn!(path = %ready.place(kind, local).display(), "not ours; left alone");
    }
    ours
}

fn warn(damage: &[Damage]) {
    for found in damage {
        tracing::error!(file = %found.file.display(), reason = found.reason, "{}", found.what);
    }
}

/// The bytes allocated by what was archived and retained, as far as it can be seen.
pub(super) fn kept(ready: &Ready) -> u64 {
    let mut sum: u64 = 0;
    for directory in [ARCHIVE, RETAINED] {
        for name in files::names(&ready.path.join(directory)).unwrap_or_default() {
            let image = Path::new(directory).join(name).join(IMAGE);
            if let Ok(Some(seen)) = files::look(ready.root(), &image) {
                sum = sum.saturating_add(seen.allocated);
            }
        }
    }
    sum
}

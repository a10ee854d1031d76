//! What the disk shows of volumes, snapshots and groups: whole, damaged, or not there.

use std::path::Path;
use std::sync::Arc;

use crate::os;
use crate::volume::{Bytes, Error, Result, VolumeId};

use super::files::{self, Access, IMAGE, META, Seen, Stamp};
use super::index::Rows;
use super::layout::{ARCHIVE, GROUPS, Kind, RETAINED, VOLUMES};
use super::ledger::{AsRead, Entry, VolumeRow};
use super::meta::{self, Damage, GroupRecord, SnapshotMeta, VolumeMeta};
use super::parallel::map_each;
use super::ready::Ready;

/// So many rows are compared with the disk at a time.
const PAGE: usize = 256;

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
    let image_path = directory.join(IMAGE);
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
    let meta = read_meta::<M>(ready, local).map(|(meta, _)| meta).map_err(|found| damage.push(found)).ok();
    let is_short = |seen: &Seen| meta.as_ref().is_some_and(|meta| seen.length < meta.length().0);
    // Of a volume that was just expanded, a client of NFS may know the old length still. Opening the file asks the server (nfs(5), "Close-to-open cache
    // consistency").
    let image = image.map(|seen| {
        let opened = || files::look_at(&ready.open_image(M::KIND, local, Access::Read).ok()?, &image_path).ok();
        if is_short(&seen) { opened().unwrap_or(seen) } else { seen }
    });
    if let (Some(meta), Some(seen)) = (&meta, image)
        && is_short(&seen)
    {
        damage.push(Damage::image_short(&image_path, seen.length, meta.length()));
    }
    Examined { meta, image, damage }
}

/// The metadata of a volume or snapshot, and of which file that is.
fn read_meta<M: About>(ready: &Ready, local: &str) -> Result<(M, Stamp), Damage> {
    let path = ready.place(M::KIND, local).join(META);
    let (text, seen) = match ready.read_meta(M::KIND, local) {
        Ok(Some(read)) => read,
        Ok(None) => return Err(Damage::metadata(&path, "the file is gone; restore it from a backup")),
        Err(error) => return Err(Damage::metadata(&path, format!("it cannot be read ({error}); check the disk"))),
    };
    let meta: M = meta::decode(&path, &text)?;
    let expected = format!("{}:{local}", &ready.backend);
    if meta.id() != expected {
        return Err(Damage::metadata(&path, format!("it belongs to {}, not to {expected}; restore the right one", meta.id())));
    }
    Ok((meta, seen.stamp()))
}

/// What a list shows of a volume: as it was read last, where the metadata file is still the same one, else read now. `None` where it is
/// damaged or not there.
pub(super) fn volume_row(ready: &Ready, local: &str) -> Option<Arc<VolumeRow>> {
    let known = ready.ledger.volume_as_read(local);
    if let Some(row) = known.as_ref().and_then(|known| known.of(ready.meta_stamp(Kind::Volume, local)?)) {
        return Some(Arc::clone(row));
    }
    let (meta, stamp) = read_meta::<VolumeMeta>(ready, local).ok()?;
    Some(remember_volume(ready, local, known.as_ref(), stamp, meta))
}

/// Remembers what was read of a metadata file, or written to it, in the ledger and in the index.
fn remember_volume(
    ready: &Ready,
    local: &str,
    before: Option<&AsRead<VolumeRow>>,
    stamp: Stamp,
    meta: VolumeMeta,
) -> Arc<VolumeRow> {
    let (row, remembered) = ready.ledger.remember_volume(local, before, stamp, meta);
    if remembered {
        ready.index.put_volume(&ready.contents(), local, stamp, &row);
    }
    row
}

/// Remembers the metadata of a volume that was just entered into the ledger.
pub(super) fn remember_new_volume(ready: &Ready, stamp: Stamp, meta: VolumeMeta) -> Arc<VolumeRow> {
    let local = meta.id.local().to_owned();
    remember_volume(ready, &local, ready.ledger.volume_as_read(&local).as_ref(), stamp, meta)
}

fn remember_snapshot(
    ready: &Ready,
    local: &str,
    before: Option<&AsRead<SnapshotMeta>>,
    stamp: Stamp,
    meta: SnapshotMeta,
) -> Arc<SnapshotMeta> {
    let (row, remembered) = ready.ledger.remember_snapshot(local, before, stamp, meta);
    if remembered {
        ready.index.put_snapshot(&ready.contents(), stamp, &row);
    }
    row
}

/// As [`remember_new_volume`].
pub(super) fn remember_new_snapshot(ready: &Ready, stamp: Stamp, meta: SnapshotMeta) {
    let local = meta.id.local().to_owned();
    remember_snapshot(ready, &local, ready.ledger.snapshot_as_read(&local).as_ref(), stamp, meta);
}

/// As [`volume_row`], of a snapshot.
pub(super) fn snapshot_row(ready: &Ready, local: &str) -> Option<Arc<SnapshotMeta>> {
    let known = ready.ledger.snapshot_as_read(local);
    if let Some(row) = known.as_ref().and_then(|known| known.of(ready.meta_stamp(Kind::Snapshot, local)?)) {
        return Some(Arc::clone(row));
    }
    let (meta, stamp) = read_meta::<SnapshotMeta>(ready, local).ok()?;
    Some(remember_snapshot(ready, local, known.as_ref(), stamp, meta))
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
    our_names(ready, Kind::Volume).map_err(|error| ready.down(error.to_string()))
}

/// Fills the ledger: with the rows of the index, of what is there; from the disk, of what has none. Damaged volumes count with what their
/// image shows.
pub(super) fn load(ready: &Ready) -> os::Result<()> {
    let Rows { mut volumes, mut snapshots, lines } = Rows::read(&ready.contents());
    let names = our_names(ready, Kind::Volume)?;
    let (known, unknown): (Vec<_>, Vec<_>) = names.into_iter().map(|local| (volumes.remove(&local), local)).partition(is_known);
    let known = known.into_iter().filter_map(|(row, local)| row.map(|(stamp, row)| (local, stamp, row)));
    ready.ledger.put_volumes(known.collect());
    let read = map_each(&unknown, |(_, local)| load_volume(ready, local, None)).contains(&true);

    let names = our_names(ready, Kind::Snapshot)?;
    let (known, unknown): (Vec<_>, Vec<_>) = names.into_iter().map(|local| (snapshots.remove(&local), local)).partition(is_known);
    for (stamp, meta) in known.into_iter().filter_map(|(row, _)| row) {
        enter_snapshot(ready, stamp, meta);
    }
    let read = map_each(&unknown, |(_, local)| load_snapshot(ready, local)).contains(&true) || read;

    ready.ledger.set_kept(kept(ready));
    if ready.is_writable() {
        ready.index.begin(&ready.contents(), lines.filter(|_| !read));
    }
    Ok(())
}

fn is_known<R>(row: &(Option<R>, String)) -> bool {
    row.0.is_some()
}

/// The names in a directory that can be ids.
fn our_names(ready: &Ready, kind: Kind) -> os::Result<Vec<String>> {
    let mut names = files::names(&ready.path.join(kind.directory()))?;
    names.retain(|local| is_ours(ready, kind, local));
    Ok(names)
}

/// Looks at the files of all volumes that the ledger has from the index: what is damaged is logged, what another version of the driver or
/// an administrator has changed is counted as it is. Until `stop`.
pub(super) fn verify(ready: &Ready, stop: &dyn Fn() -> bool) {
    let mut after: Option<Box<str>> = None;
    while !stop() {
        let page = ready.ledger.volumes(after.as_deref(), PAGE);
        let Some(last) = page.last() else { return };
        after = Some(last.clone());
        for local in page {
            let Some(known) = ready.ledger.volume_as_read(&local) else { continue };
            let same = ready.meta_stamp(Kind::Volume, &local).and_then(|stamp| known.of(stamp)).is_some_and(|row| {
                let image = files::glance(ready.root(), &Path::new(VOLUMES).join(&*local).join(IMAGE));
                image.is_ok_and(|image| image.is_some_and(|image| image.regular && image.length >= row.capacity.0))
            });
            if !same {
                load_volume(ready, &local, Some(&known));
            }
        }
    }
}

/// Enters a volume from the disk, unless it was changed or replaced since `before` was asked for. Whether it is whole.
fn load_volume(ready: &Ready, local: &str, before: Option<&AsRead<VolumeRow>>) -> bool {
    let put = |capacity| match before {
        Some(before) => ready.ledger.correct_volume(local, before, capacity),
        None => ready.ledger.put_volume(local, capacity),
    };
    let Some((meta, stamp)) = whole::<VolumeMeta>(ready, local) else {
        let found = examine::<VolumeMeta>(ready, local);
        if before.is_some() && ready.has(Kind::Volume, local).is_ok_and(|there| !there) {
            // It was deleted meanwhile, or moved away.
            return false;
        }
        warn(&found.damage);
        let capacity = found.meta.map(|meta| meta.capacity.0).or(found.image.map(|image| image.length));
        put(capacity.unwrap_or(0));
        return false;
    };
    put(meta.capacity.0);
    remember_new_volume(ready, stamp, meta);
    true
}

/// Enters a snapshot from the disk. Whether it is whole.
fn load_snapshot(ready: &Ready, local: &str) -> bool {
    let Some((meta, stamp)) = whole::<SnapshotMeta>(ready, local) else {
        let found = examine::<SnapshotMeta>(ready, local);
        warn(&found.damage);
        let lost = Entry { id: local, source: "", group: None, provisioned: found.image.map_or(0, |image| image.allocated) };
        ready.ledger.put_snapshot(found.meta.as_ref().map_or(lost, Entry::of));
        return false;
    };
    enter_snapshot(ready, stamp, meta);
    true
}

fn enter_snapshot(ready: &Ready, stamp: Stamp, meta: SnapshotMeta) {
    ready.ledger.put_snapshot(Entry::of(&meta));
    remember_new_snapshot(ready, stamp, meta);
}

/// The metadata where all is well, by fewer system calls than [`examine`] makes, which says what is wrong.
fn whole<M: About>(ready: &Ready, local: &str) -> Option<(M, Stamp)> {
    let (meta, stamp) = read_meta::<M>(ready, local).ok()?;
    let image = files::glance(ready.root(), &Path::new(M::KIND.directory()).join(local).join(IMAGE)).ok()??;
    (image.regular && image.length >= meta.length().0).then_some((meta, stamp))
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

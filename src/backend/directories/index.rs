//! What lies on a base and what of it is provisioned, in memory. The base is the truth; this gives order to lists, sums to capacity, and
//! keeps two volumes out of one directory. Its mutex is only ever held for arithmetic and maps, never for I/O.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::Provisioned;
use crate::volume::Bytes;

use super::subdir::overlap;

#[derive(Debug, Default)]
pub(super) struct Index {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    volumes: BTreeMap<String, IndexedVolume>,
    /// Directories of volumes, and whose they are.
    directories: BTreeMap<PathBuf, String>,
    snapshots: BTreeMap<String, IndexedSnapshot>,
    provisioned: u64,
}

#[derive(Debug)]
struct IndexedVolume {
    capacity: u64,
    directory: PathBuf,
    whole: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexedSnapshot {
    /// The local id of its volume.
    pub source: String,
    pub bytes: u64,
    pub ready: bool,
}

/// Why a volume cannot be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// So much is left.
    NoRoom(u64),
    /// That volume lies in the directory, or around it.
    Taken { directory: PathBuf, by: String },
}

impl Index {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What can still be provisioned of `limit` bytes.
    pub fn left(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.inner().provisioned)
    }

    pub fn provisioned(&self) -> Provisioned {
        let inner = self.inner();
        let volumes = inner.volumes.values().filter(|held| held.whole).count() as u64;
        Provisioned { provisioned: Bytes(inner.provisioned), volumes, snapshots: inner.snapshots.len() as u64 }
    }

    /// Reserves a directory and capacity for a volume in the making.
    pub fn claim(&self, local: &str, directory: &Path, capacity: u64, limit: u64) -> Result<(), Refused> {
        let mut inner = self.inner();
        let left = limit.saturating_sub(inner.provisioned);
        if let Some((directory, by)) = inner.overlapping(directory) {
            return Err(Refused::Taken { directory, by });
        }
        if capacity > left {
            return Err(Refused::NoRoom(left));
        }
        inner.put(local, directory, capacity, false);
        Ok(())
    }

    /// What was found on the base, or has become whole.
    pub fn put_volume(&self, local: &str, directory: &Path, capacity: u64, whole: bool) {
        self.inner().put(local, directory, capacity, whole);
    }

    /// Sets a volume's provisioned capacity, if no more than `limit` is provisioned then.
    ///
    /// # Errors
    /// What is left.
    pub fn provision(&self, local: &str, capacity: u64, limit: u64) -> Result<(), u64> {
        let Inner { volumes, provisioned, .. } = &mut *self.inner();
        volumes.get_mut(local).map_or(Ok(()), |held| reserve(provisioned, &mut held.capacity, capacity, limit))
    }

    /// Sets what a snapshot holds, as `provision` does of a volume.
    pub fn provision_snapshot(&self, local: &str, bytes: u64, limit: u64) -> Result<(), u64> {
        let Inner { snapshots, provisioned, .. } = &mut *self.inner();
        snapshots.get_mut(local).map_or(Ok(()), |held| reserve(provisioned, &mut held.bytes, bytes, limit))
    }

    pub fn remove_volume(&self, local: &str) {
        self.inner().take_volume(local);
    }

    /// Removes a whole volume whose record is not there any more. One in the making has none yet.
    pub fn remove_lost(&self, local: &str) {
        let mut inner = self.inner();
        if inner.volumes.get(local).is_some_and(|held| held.whole) {
            inner.take_volume(local);
        }
    }

    pub fn put_snapshot(&self, local: &str, taken: IndexedSnapshot) {
        let mut inner = self.inner();
        inner.take_snapshot(local);
        inner.provisioned = inner.provisioned.saturating_add(taken.bytes);
        inner.snapshots.insert(local.to_owned(), taken);
    }

    pub fn remove_snapshot(&self, local: &str) {
        self.inner().take_snapshot(local);
    }

    /// Up to `max` whole volumes after `after`, in order.
    pub fn volumes(&self, after: Option<&str>, max: usize) -> Vec<String> {
        let inner = self.inner();
        let whole = inner.volumes.range::<str, _>(behind(after)).filter(|(_, held)| held.whole);
        whole.take(max).map(|(local, _)| local.clone()).collect()
    }

    /// Whether there is such a volume, or one in the making or on its way out.
    pub fn has_volume(&self, local: &str) -> bool {
        self.inner().volumes.contains_key(local)
    }

    pub fn has_snapshot(&self, local: &str) -> bool {
        self.inner().snapshots.contains_key(local)
    }

    /// What is provisioned to a volume.
    pub fn capacity(&self, local: &str) -> Option<u64> {
        self.inner().volumes.get(local).map(|held| held.capacity)
    }

    /// Up to `max` snapshots after `after`, in order; of one volume if `source` is given.
    pub fn snapshots(&self, source: Option<&str>, after: Option<&str>, max: usize) -> Vec<String> {
        let inner = self.inner();
        let wanted =
            inner.snapshots.range::<str, _>(behind(after)).filter(|(_, taken)| source.is_none_or(|of| of == taken.source));
        wanted.take(max).map(|(local, _)| local.clone()).collect()
    }

    /// Those of which the copy is not done.
    pub fn unready(&self) -> Vec<String> {
        self.inner().snapshots.iter().filter(|(_, taken)| !taken.ready).map(|(local, _)| local.clone()).collect()
    }
}

impl Inner {
    fn put(&mut self, local: &str, directory: &Path, capacity: u64, whole: bool) {
        self.take_volume(local);
        self.directories.insert(directory.to_owned(), local.to_owned());
        self.volumes.insert(local.to_owned(), IndexedVolume { capacity, directory: directory.to_owned(), whole });
        self.provisioned = self.provisioned.saturating_add(capacity);
    }

    fn take_volume(&mut self, local: &str) {
        if let Some(held) = self.volumes.remove(local) {
            self.provisioned = self.provisioned.saturating_sub(held.capacity);
            self.directories.remove(&held.directory);
        }
    }

    fn take_snapshot(&mut self, local: &str) {
        if let Some(taken) = self.snapshots.remove(local) {
            self.provisioned = self.provisioned.saturating_sub(taken.bytes);
        }
    }

    /// A volume's directory that is this one, around it or in it.
    fn overlapping(&self, directory: &Path) -> Option<(PathBuf, String)> {
        let around = directory.ancestors().find_map(|around| self.directories.get_key_value(around));
        // Paths are ordered by components: what lies in a directory comes right behind it.
        let within = || self.directories.range::<Path, _>((Bound::Excluded(directory), Bound::Unbounded)).next();
        around.or_else(|| within().filter(|(next, _)| overlap(next, directory))).map(|(path, by)| (path.clone(), by.clone()))
    }
}

/// Sets one part of all that is provisioned.
///
/// # Errors
/// What is left of `limit`, where that is less than it grows by.
fn reserve(provisioned: &mut u64, held: &mut u64, wanted: u64, limit: u64) -> Result<(), u64> {
    let left = limit.saturating_sub(*provisioned);
    if wanted.saturating_sub(*held) > left {
        return Err(left);
    }
    let before = std::mem::replace(held, wanted);
    *provisioned = provisioned.saturating_sub(before).saturating_add(wanted);
    Ok(())
}

fn behind(after: Option<&str>) -> (Bound<&str>, Bound<&str>) {
    (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_volumes_share_a_directory_or_lie_in_one_another() {
        let index = Index::default();
        index.claim("one", Path::new("a/b"), 1, 100).expect("free");
        for (directory, taken) in [("a/b", true), ("a", true), ("a/b/c", true), ("a/bc", false), ("a/a", false), ("b", false)] {
            let claimed = index.claim("two", Path::new(directory), 1, 100);
            assert_eq!(claimed.is_err(), taken, "{directory}: {claimed:?}");
            if taken {
                assert_eq!(claimed, Err(Refused::Taken { directory: "a/b".into(), by: "one".to_owned() }));
            }
            index.remove_volume("two");
        }
        index.remove_volume("one");
        index.claim("two", Path::new("a"), 1, 100).expect("free again");
    }

    #[test]
    fn provisioned_capacity_is_summed() {
        let index = Index::default();
        index.claim("a", Path::new("a"), 60, 100).expect("fits");
        assert_eq!(index.claim("b", Path::new("b"), 41, 100), Err(Refused::NoRoom(40)));
        index.put_snapshot("s", IndexedSnapshot { source: "a".to_owned(), bytes: 30, ready: true });
        assert_eq!((index.left(100), index.provision("a", 71, 100), index.provision("a", 70, 100)), (10, Err(10), Ok(())));
        assert_eq!(index.left(100), 0);
        assert!(index.volumes(None, 9).is_empty(), "it is not whole yet");
        index.put_volume("a", Path::new("a"), 70, true);
        assert_eq!(index.volumes(None, 9), ["a"]);
        index.remove_volume("a");
        index.remove_snapshot("s");
        assert_eq!(index.left(100), 100);
    }
}

//! What of a pool is provisioned, and to whom: the index of a pool in memory.
//!
//! The disk is the truth about what exists; the ledger gives order to lists and sums to capacity. Its mutex is only
//! ever held for arithmetic and map operations, never for I/O.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::backend::Provisioned;
use crate::volume::{Bytes, ContentSource};

use super::files::Stamp;
use super::layout::Kind;
use super::meta::{SnapshotMeta, VolumeMeta};

/// Records of some hundred bytes per volume or snapshot; everything else is read from the disk when asked for.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By local id.
    volumes: BTreeMap<Box<str>, Counted>,
    snapshots: BTreeMap<Box<str>, Taken>,
    /// (local id of the volume, of the snapshot)
    by_source: BTreeSet<(Box<str>, Box<str>)>,
    /// (local id of the group, of the snapshot)
    by_group: BTreeSet<(Box<str>, Box<str>)>,
    provisioned: u64,
    /// Of calls that run.
    reserved: u64,
    /// Allocated by what was deleted but kept: retained and archived.
    kept: u64,
    /// Those of all volumes: most volumes share theirs with others.
    parameters: HashSet<Arc<Value>>,
    /// How often something was entered.
    entered: u64,
}

#[derive(Debug)]
struct Counted {
    capacity: u64,
    read: AsRead<VolumeRow>,
}

#[derive(Debug)]
struct Taken {
    source: Box<str>,
    group: Option<Box<str>>,
    provisioned: u64,
    read: AsRead<SnapshotMeta>,
}

/// What was read last of a metadata file.
#[derive(Debug)]
pub(super) struct AsRead<T> {
    /// Of which entry in the ledger: what was read before a volume was changed, or made anew, is not remembered of it.
    entry: u64,
    row: Option<(Stamp, Arc<T>)>,
}

impl<T> AsRead<T> {
    /// What was read, if the file is still the same.
    pub fn of(&self, stamp: Stamp) -> Option<&Arc<T>> {
        self.row.as_ref().filter(|(of, _)| *of == stamp).map(|(_, row)| row)
    }

    fn new(entry: u64) -> AsRead<T> {
        AsRead { entry, row: None }
    }

    fn share(&self) -> AsRead<T> {
        AsRead { entry: self.entry, row: self.row.clone() }
    }

    /// Whether it is remembered.
    fn remember(&mut self, before: Option<&AsRead<T>>, stamp: Stamp, row: &Arc<T>) -> bool {
        let same = before.is_some_and(|before| before.entry == self.entry);
        if same {
            self.row = Some((stamp, Arc::clone(row)));
        }
        same
    }
}

/// What a list shows of a volume, besides its id.
#[derive(Debug)]
pub(super) struct VolumeRow {
    pub capacity: Bytes,
    /// `None` where it is the local id.
    pub name: Option<Box<str>>,
    pub source: Option<Box<ContentSource>>,
    pub parameters: Arc<Value>,
}

/// Bytes set aside for a call that runs; given back when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    ledger: Arc<Ledger>,
    bytes: u64,
}

/// A snapshot as the ledger keeps it. Ids are the local parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub id: &'a str,
    pub source: &'a str,
    pub group: Option<&'a str>,
    pub provisioned: u64,
}

impl<'a> Entry<'a> {
    pub fn of(meta: &'a SnapshotMeta) -> Entry<'a> {
        Entry {
            id: meta.id.local(),
            source: meta.source.local(),
            group: meta.group.as_ref().map(|member| member.id.local()),
            provisioned: meta.provisioned.0,
        }
    }
}

impl Inner {
    fn left(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.provisioned).saturating_sub(self.reserved).saturating_sub(self.kept)
    }

    fn new_entry<T>(&mut self) -> AsRead<T> {
        self.entered += 1;
        AsRead::new(self.entered)
    }

    fn row(&mut self, id: &str, meta: VolumeMeta) -> Arc<VolumeRow> {
        let VolumeMeta { name, capacity, source, parameters, .. } = meta;
        let parameters = self.shared(Arc::new(parameters));
        Arc::new(VolumeRow { capacity, name: (name != id).then(|| name.into()), source: source.map(Box::new), parameters })
    }

    /// The one copy of these parameters.
    fn shared(&mut self, parameters: Arc<Value>) -> Arc<Value> {
        if let Some(known) = self.parameters.get(&parameters) {
            return Arc::clone(known);
        }
        if self.parameters.len() == self.parameters.capacity() {
            self.parameters.retain(|known| Arc::strong_count(known) > 1);
        }
        self.parameters.insert(Arc::clone(&parameters));
        parameters
    }

    fn put_volume(&mut self, id: &str, capacity: u64) {
        let read = self.new_entry();
        self.put_volume_as_read(id, capacity, read);
    }

    fn put_volume_as_read(&mut self, id: &str, capacity: u64, read: AsRead<VolumeRow>) {
        let before = self.volumes.insert(id.into(), Counted { capacity, read }).map_or(0, |before| before.capacity);
        self.provisioned = self.provisioned.saturating_sub(before).saturating_add(capacity);
    }

    fn put_snapshot(&mut self, entry: Entry<'_>) {
        self.remove_snapshot(entry.id);
        self.by_source.insert((entry.source.into(), entry.id.into()));
        if let Some(group) = entry.group {
            self.by_group.insert((group.into(), entry.id.into()));
        }
        let (source, group) = (entry.source.into(), entry.group.map(Into::into));
        let taken = Taken { source, group, provisioned: entry.provisioned, read: self.new_entry() };
        self.snapshots.insert(entry.id.into(), taken);
        self.provisioned = self.provisioned.saturating_add(entry.provisioned);
    }

    fn remove_volume(&mut self, id: &str) -> bool {
        let Some(counted) = self.volumes.remove(id) else { return false };
        self.provisioned = self.provisioned.saturating_sub(counted.capacity);
        true
    }

    fn remove_snapshot(&mut self, id: &str) -> bool {
        let Some(taken) = self.snapshots.remove(id) else { return false };
        self.provisioned = self.provisioned.saturating_sub(taken.provisioned);
        self.by_source.remove(&(taken.source, id.into()));
        if let Some(group) = taken.group {
            self.by_group.remove(&(group, id.into()));
        }
        true
    }
}

impl Ledger {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What can still be provisioned of `limit` bytes.
    pub fn left(&self, limit: u64) -> u64 {
        self.inner().left(limit)
    }

    /// What there is; provisioned is what is kept, too, but not what is only reserved.
    pub fn provisioned(&self) -> Provisioned {
        let inner = self.inner();
        Provisioned {
            provisioned: Bytes(inner.provisioned.saturating_add(inner.kept)),
            volumes: inner.volumes.len() as u64,
            snapshots: inner.snapshots.len() as u64,
        }
    }

    /// Sets `bytes` aside.
    ///
    /// # Errors
    /// What is left, if that is less.
    pub fn reserve(self: &Arc<Self>, bytes: u64, limit: u64) -> Result<Reservation, u64> {
        let mut inner = self.inner();
        let left = inner.left(limit);
        if bytes > left {
            return Err(left);
        }
        inner.reserved += bytes;
        drop(inner);
        Ok(Reservation { ledger: Arc::clone(self), bytes })
    }

    pub fn set_kept(&self, bytes: u64) {
        self.inner().kept = bytes;
    }

    pub fn put_volume(&self, id: &str, capacity: u64) {
        self.inner().put_volume(id, capacity);
    }

    /// Whether it was there.
    pub fn remove(&self, kind: Kind, id: &str) -> bool {
        match kind {
            Kind::Volume => self.inner().remove_volume(id),
            Kind::Snapshot => self.inner().remove_snapshot(id),
        }
    }

    pub fn put_snapshot(&self, entry: Entry<'_>) {
        self.inner().put_snapshot(entry);
    }

    /// Up to `max` volumes after `after`, in order.
    pub fn volumes(&self, after: Option<&str>, max: usize) -> Vec<Box<str>> {
        self.inner().volumes.range::<str, _>(behind(after)).take(max).map(|(id, _)| id.clone()).collect()
    }

    /// The capacity that the ledger counts for a volume.
    pub fn volume(&self, id: &str) -> Option<u64> {
        self.inner().volumes.get(id).map(|counted| counted.capacity)
    }

    /// What was read last of a volume's metadata file; `None` where the ledger has no such volume.
    pub fn volume_as_read(&self, id: &str) -> Option<AsRead<VolumeRow>> {
        self.inner().volumes.get(id).map(|counted| counted.read.share())
    }

    pub fn snapshot_as_read(&self, id: &str) -> Option<AsRead<SnapshotMeta>> {
        self.inner().snapshots.get(id).map(|taken| taken.read.share())
    }

    /// Remembers what was read of a volume's metadata file, unless the volume was changed or replaced since `before` was asked for. The
    /// row, and whether it is remembered.
    pub fn remember_volume(
        &self,
        id: &str,
        before: Option<&AsRead<VolumeRow>>,
        stamp: Stamp,
        meta: VolumeMeta,
    ) -> (Arc<VolumeRow>, bool) {
        let mut inner = self.inner();
        let row = inner.row(id, meta);
        let Some(counted) = inner.volumes.get_mut(id) else { return (row, false) };
        let remembered = counted.read.remember(before, stamp, &row);
        if remembered {
            let counted = std::mem::replace(&mut counted.capacity, row.capacity.0);
            inner.provisioned = inner.provisioned.saturating_sub(counted).saturating_add(row.capacity.0);
        }
        (row, remembered)
    }

    pub fn remember_snapshot(
        &self,
        id: &str,
        before: Option<&AsRead<SnapshotMeta>>,
        stamp: Stamp,
        meta: SnapshotMeta,
    ) -> (Arc<SnapshotMeta>, bool) {
        let row = Arc::new(meta);
        let mut inner = self.inner();
        let taken = inner.snapshots.get_mut(id);
        let remembered = taken.is_some_and(|taken| taken.read.remember(before, stamp, &row));
        (row, remembered)
    }

    /// Enters volumes whose rows are known.
    pub fn put_volumes(&self, volumes: Vec<(String, Stamp, VolumeRow)>) {
        let mut inner = self.inner();
        // Most volumes have the parameters of the one before.
        let mut last: Option<(Arc<Value>, Arc<Value>)> = None;
        for (id, stamp, mut row) in volumes {
            let shared = match last.take() {
                Some((same, shared)) if Arc::ptr_eq(&same, &row.parameters) => shared,
                _ => inner.shared(Arc::clone(&row.parameters)),
            };
            last = Some((std::mem::replace(&mut row.parameters, Arc::clone(&shared)), shared));
            let mut read = inner.new_entry();
            let capacity = row.capacity.0;
            read.row = Some((stamp, Arc::new(row)));
            inner.put_volume_as_read(&id, capacity, read);
        }
    }

    /// As [`Ledger::put_volume`], of a volume that was not changed or replaced since `before` was asked for.
    pub fn correct_volume(&self, id: &str, before: &AsRead<VolumeRow>, capacity: u64) {
        let mut inner = self.inner();
        if inner.volumes.get(id).is_some_and(|counted| counted.read.entry == before.entry) {
            inner.put_volume(id, capacity);
        }
    }

    /// What was read of all metadata files.
    #[allow(clippy::type_complexity, reason = "rows, and of which files they are")]
    pub fn rows(&self) -> (Vec<(Box<str>, Stamp, Arc<VolumeRow>)>, Vec<(Stamp, Arc<SnapshotMeta>)>) {
        let inner = self.inner();
        let volumes = inner.volumes.iter().filter_map(|(id, counted)| {
            let (stamp, row) = counted.read.row.as_ref()?;
            Some((id.clone(), *stamp, Arc::clone(row)))
        });
        (volumes.collect(), inner.snapshots.values().filter_map(|taken| taken.read.row.clone()).collect())
    }

    /// How many volumes and snapshots there are.
    pub fn count(&self) -> usize {
        let inner = self.inner();
        inner.volumes.len() + inner.snapshots.len()
    }

    /// Whether it is there, or its disk is not given back yet.
    pub fn has(&self, kind: Kind, id: &str) -> bool {
        let inner = self.inner();
        match kind {
            Kind::Volume => inner.volumes.contains_key(id),
            Kind::Snapshot => inner.snapshots.contains_key(id),
        }
    }

    /// Up to `max` snapshots after `after`, in order; of one volume if `source` is given.
    pub fn snapshots(&self, source: Option<&str>, after: Option<&str>, max: usize) -> Vec<Box<str>> {
        let inner = self.inner();
        match source {
            None => inner.snapshots.range::<str, _>(behind(after)).take(max).map(|(id, _)| id.clone()).collect(),
            Some(source) => pairs(&inner.by_source, source, after).take(max).cloned().collect(),
        }
    }

    /// All snapshots of a group, whether its record is there or not.
    pub fn members(&self, group: &str) -> Vec<Box<str>> {
        pairs(&self.inner().by_group, group, None).cloned().collect()
    }

    /// All members of groups, as (group, snapshot).
    pub fn grouped(&self) -> Vec<(Box<str>, Box<str>)> {
        self.inner().by_group.iter().cloned().collect()
    }
}

fn behind(after: Option<&str>) -> (Bound<&str>, Bound<&str>) {
    (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

/// The second halves of the pairs that begin with `first`, after `after`.
fn pairs<'a>(set: &'a BTreeSet<(Box<str>, Box<str>)>, first: &'a str, after: Option<&str>) -> impl Iterator<Item = &'a Box<str>> {
    let start = match after {
        Some(after) => Bound::Excluded((first.into(), after.into())),
        None => Bound::Included((first.into(), Box::default())),
    };
    set.range((start, Bound::Unbounded)).take_while(move |(key, _)| &**key == first).map(|(_, id)| id)
}

impl Reservation {
    /// Sets aside what is missing to `bytes`; never gives back.
    ///
    /// # Errors
    /// What is left, if that is less; the reservation stays as it is.
    pub fn grow(&mut self, bytes: u64, limit: u64) -> Result<(), u64> {
        let mut inner = self.ledger.inner();
        let missing = bytes.saturating_sub(self.bytes);
        let left = inner.left(limit);
        if missing > left {
            return Err(left);
        }
        inner.reserved += missing;
        self.bytes += missing;
        Ok(())
    }

    /// Turns what is reserved into the provisioned capacity of a volume.
    pub fn keep_volume(mut self, id: &str, capacity: u64) {
        let ledger = Arc::clone(&self.ledger);
        let mut inner = ledger.inner();
        self.give_back(&mut inner);
        inner.put_volume(id, capacity);
    }

    /// Turns what is reserved into the provisioned capacity of a snapshot.
    pub fn keep_snapshot(mut self, entry: Entry<'_>) {
        let ledger = Arc::clone(&self.ledger);
        let mut inner = ledger.inner();
        self.give_back(&mut inner);
        inner.put_snapshot(entry);
    }

    fn give_back(&mut self, inner: &mut Inner) {
        inner.reserved = inner.reserved.saturating_sub(self.bytes);
        self.bytes = 0;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let ledger = Arc::clone(&self.ledger);
        self.give_back(&mut ledger.inner());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_is_returned_unless_it_is_kept() {
        let ledger = Arc::new(Ledger::default());
        drop(ledger.reserve(60, 100).expect("fits"));
        let mut held = ledger.reserve(60, 100).expect("fits again");
        assert_eq!(ledger.reserve(41, 100).expect_err("too much"), 40);
        assert_eq!(held.grow(101, 100).expect_err("too much"), 40);
        held.grow(70, 100).expect("fits");
        held.keep_volume("a", 50);
        assert_eq!(ledger.left(100), 50);
        ledger.put_volume("a", 80);
        assert_eq!(ledger.left(100), 20);
        ledger.set_kept(30);
        assert_eq!(ledger.left(100), 0);
        ledger.remove(Kind::Volume, "a");
        ledger.remove(Kind::Volume, "a");
        assert_eq!(ledger.left(100), 70);
    }

    #[test]
    fn snapshots_are_found_by_order_by_source_and_by_group() {
        let ledger = Ledger::default();
        let names = |found: Vec<Box<str>>| found.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (id, source, group) in [("s3", "a", Some("g")), ("s1", "a", None), ("s2", "ab", Some("g")), ("s4", "a", Some("gg"))] {
            ledger.put_snapshot(Entry { id, source, group, provisioned: 10 });
        }
        assert_eq!(names(ledger.snapshots(None, None, 2)), ["s1", "s2"]);
        assert_eq!(names(ledger.snapshots(None, Some("s2"), 9)), ["s3", "s4"]);
        assert_eq!(names(ledger.snapshots(Some("a"), None, 9)), ["s1", "s3", "s4"]);
        assert_eq!(names(ledger.snapshots(Some("a"), Some("s1"), 1)), ["s3"]);
        assert_eq!(names(ledger.members("g")), ["s2", "s3"]);
        ledger.remove(Kind::Snapshot, "s3");
        assert_eq!(names(ledger.members("g")), ["s2"]);
        assert_eq!(names(ledger.snapshots(Some("a"), None, 9)), ["s1", "s4"]);
        assert_eq!(ledger.provisioned(), Provisioned { provisioned: Bytes(30), volumes: 0, snapshots: 3 });
    }

    #[test]
    fn concurrent_reservations_never_overshoot() {
        let ledger = Arc::new(Ledger::default());
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let ledger = &ledger;
                scope.spawn(move || {
                    for number in 0..100 {
                        if let Ok(held) = ledger.reserve(7, 1000) {
                            held.keep_volume(&format!("{thread}-{number}"), 7);
                        }
                    }
                });
            }
        });
        assert_eq!(ledger.provisioned(), Provisioned { provisioned: Bytes(1000 / 7 * 7), volumes: 1000 / 7, snapshots: 0 });
    }
}

//! Lists, in the order of our ids, which no cloud has.
//!
//! The first page of a list fetches all; the next pages are of the same moment, and cost no request, for at most [`SERVES`]. So a page is
//! at most that old, and the list as a whole is of one instant. What was fetched is kept packed and in order: a page costs what it holds,
//! whatever the length of the list.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::volume::{NodeId, Result, Snapshot, SnapshotId, Volume, VolumeId};

use super::api::{Answer, CloudSnapshot, Disk, Take, Which};
use super::attach::nodes_of;
use super::controller::Controller;
use super::lists::Kept;
use super::packed::{Pack, Packed, Packer};

/// How long what was fetched serves for the pages after the first.
pub(super) const SERVES: Duration = Duration::from_secs(120);

impl Controller {
    /// With the nodes that have each volume where they would be a request for each volume otherwise. A description of several disks is more
    /// recent than the list, and costs little.
    pub fn list_volumes(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(Volume, Option<BTreeSet<NodeId>>)>> {
        let all = self.all_disks(after.is_some())?;
        let from = after.map_or(0, |after| all.count_before(|disk| self.owner.volume_id(disk).is_none_or(|id| id <= *after)));
        let disks = all.iter_from(from).filter(|disk| disk.is_whole() && self.is_there(disk));
        let nodes = |disk: &Disk| self.constants.batches.one_by_one.then(|| nodes_of(std::slice::from_ref(disk)));
        let page: Vec<_> = disks.filter_map(|disk| Some((self.listed_volume(&disk)?, nodes(&disk)))).take(max).collect();
        forget_at_end(&self.lists.disks, page.len() < max);
        Ok(page)
    }

    fn listed_volume(&self, disk: &Disk) -> Option<Volume> {
        let volume = self.owner.volume(disk, self.policy.as_ref());
        volume.inspect_err(|error| tracing::warn!(disk = %disk.id, %error, "a disk of this cluster is left out of the list")).ok()
    }

    /// All disks of ours, whatever their state, in the order of their volumes; those whose tags name no volume are the first.
    pub fn all_disks(&self, kept_will_do: bool) -> Result<Arc<Packed<Disk>>> {
        let ours = |disk: &Disk| self.owner.owns(&disk.tags);
        let volume = |disk: &Disk| self.owner.volume_id(disk);
        let mut attachments = 0;
        let fetch = |which: &_, take: Take<'_, Disk>| {
            self.cloud.disks(which, &mut |some| {
                attachments += some.iter().filter(|disk| ours(disk)).map(|disk| disk.held_by().count() as u64).sum::<u64>();
                take(some);
            })
        };
        let disks = self.all(&self.lists.disks, kept_will_do, ours, volume, fetch)?;
        if !kept_will_do {
            self.history.set_attachments(attachments);
        }
        Ok(disks)
    }

    pub fn list_taken(&self, source: Option<&VolumeId>, after: Option<&SnapshotId>, max: usize) -> Result<Vec<Snapshot>> {
        let all = self.all_snapshots(after.is_some())?;
        let from = after.map_or(0, |after| all.count_before(|found| self.owner.snapshot_id(found).is_none_or(|id| id <= *after)));
        let there = |found: &CloudSnapshot| {
            found.state.is_shown() && found.tags.contains_key(super::tags::SNAPSHOT) && !self.memory.is_gone(&found.id.0)
        };
        let taken = all.iter_from(from).filter(there).filter_map(|found| self.listed_snapshot(&found));
        let page: Vec<Snapshot> = taken.filter(|taken| source.is_none_or(|source| taken.source == *source)).take(max).collect();
        forget_at_end(&self.lists.snapshots, page.len() < max);
        Ok(page)
    }

    fn listed_snapshot(&self, found: &CloudSnapshot) -> Option<Snapshot> {
        let taken = self.owner.taken(found);
        taken
            .inspect_err(
                |error| tracing::warn!(snapshot = %found.id, %error, "a snapshot of this cluster is left out of the list"),
            )
            .ok()
    }

    /// All snapshots of ours, whatever their state, in the order of their ids; those whose tags name none are the first.
    pub fn all_snapshots(&self, kept_will_do: bool) -> Result<Arc<Packed<CloudSnapshot>>> {
        let ours = |snapshot: &CloudSnapshot| self.owner.owns(&snapshot.tags);
        let id = |snapshot: &CloudSnapshot| self.owner.snapshot_id(snapshot);
        self.all(&self.lists.snapshots, kept_will_do, ours, id, |which, take| self.cloud.snapshots(which, take))
    }

    fn all<T: Pack, Id, Key: Ord>(
        &self,
        kept: &Kept<T>,
        kept_will_do: bool,
        ours: impl Fn(&T) -> bool,
        key: impl Fn(&T) -> Option<Key>,
        mut fetch: impl FnMut(&Which<Id>, Take<'_, T>) -> Answer<()>,
    ) -> Result<Arc<Packed<T>>> {
        let now = self.clock.now();
        let before = kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, all)) = before.filter(|(when, _)| kept_will_do && now < *when + SERVES) {
            return Ok(all);
        }
        let which = Which::All { tags: self.owner.tags() };
        let mut packer = Packer::default();
        let read = fetch(&which, &mut |items: Vec<T>| items.iter().filter(|item| ours(item)).for_each(|item| packer.push(item)));
        read.map_err(|refusal| super::errors::unknown(&self.owner.backend, "the list", &refusal))?;
        let all = Arc::new(packer.sorted(key));
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Arc::clone(&all)));
        Ok(all)
    }
}

/// After the last page nobody needs what was fetched.
fn forget_at_end<T>(kept: &Kept<T>, is_end: bool) {
    if is_end {
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

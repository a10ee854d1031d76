//! Lists, in the order of our ids, which no cloud has.
//!
//! The first page of a list fetches all; the next pages are of the same moment, and cost no request, for at most [`SERVES`]. So a page is
//! at most that old, and the list as a whole is of one instant.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::volume::{Result, Snapshot, SnapshotId, Volume, VolumeId};

use super::api::{Answer, CloudSnapshot, Disk, Page, SnapshotState, Which};
use super::controller::Controller;
use super::lists::Kept;
use super::pages;

/// How long what was fetched serves for the pages after the first.
pub(super) const SERVES: Duration = Duration::from_secs(120);

impl Controller {
    pub fn list_volumes(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>> {
        let all = self.all_disks(after.is_some())?;
        let volumes = self.by_volume(&all);
        let page: Vec<Volume> =
            volumes.into_values().filter(|volume| after.is_none_or(|after| volume.id > *after)).take(max).collect();
        forget_at_end(&self.lists.disks, page.len() < max);
        Ok(page)
    }

    /// Those disks that are whole, by their volume.
    fn by_volume(&self, disks: &[Disk]) -> BTreeMap<VolumeId, Volume> {
        let mut volumes = BTreeMap::new();
        for disk in disks.iter().filter(|disk| disk.is_whole() && self.is_there(disk)) {
            match self.owner.volume(disk, self.policy.as_ref()) {
                Ok(volume) => drop(volumes.insert(volume.id.clone(), volume)),
                Err(error) => tracing::warn!(disk = %disk.id, %error, "a disk of this cluster is left out of the list"),
            }
        }
        volumes
    }

    /// All disks of ours, whatever their state.
    pub fn all_disks(&self, kept_will_do: bool) -> Result<Arc<Vec<Disk>>> {
        let ours = |disk: &Disk| self.owner.owns(&disk.tags);
        let disks = self.all(&self.lists.disks, kept_will_do, ours, |which, page| self.cloud.disks(which, page))?;
        if !kept_will_do {
            self.memory.set_attachments(disks.iter().map(|disk| disk.held_by().count() as u64).sum());
        }
        Ok(disks)
    }

    pub fn list_taken(&self, source: Option<&VolumeId>, after: Option<&SnapshotId>, max: usize) -> Result<Vec<Snapshot>> {
        let all = self.all_snapshots(after.is_some())?;
        let mut by_id: BTreeMap<SnapshotId, Snapshot> = BTreeMap::new();
        let there = |found: &&CloudSnapshot| {
            found.state != SnapshotState::Failed
                && found.tags.contains_key(super::tags::SNAPSHOT)
                && !self.memory.is_gone(&found.id.0)
        };
        for found in all.iter().filter(there) {
            match self.owner.taken(found) {
                Ok(taken) => drop(by_id.insert(taken.id.clone(), taken)),
                Err(error) => tracing::warn!(snapshot = %found.id, %error, "a snapshot of this cluster is left out of the list"),
            }
        }
        let wanted =
            |taken: &Snapshot| source.is_none_or(|source| taken.source == *source) && after.is_none_or(|after| taken.id > *after);
        let page: Vec<Snapshot> = by_id.into_values().filter(wanted).take(max).collect();
        forget_at_end(&self.lists.snapshots, page.len() < max);
        Ok(page)
    }

    /// All snapshots of ours, whatever their state.
    pub fn all_snapshots(&self, kept_will_do: bool) -> Result<Arc<Vec<CloudSnapshot>>> {
        let ours = |snapshot: &CloudSnapshot| self.owner.owns(&snapshot.tags);
        self.all(&self.lists.snapshots, kept_will_do, ours, |which, page| self.cloud.snapshots(which, page))
    }

    fn all<T, Id>(
        &self,
        kept: &Kept<T>,
        kept_will_do: bool,
        ours: impl Fn(&T) -> bool,
        fetch: impl Fn(&Which<Id>, Option<&str>) -> Answer<Page<T>>,
    ) -> Result<Arc<Vec<T>>> {
        let now = self.clock.now();
        let before = kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, all)) = before.filter(|(when, _)| kept_will_do && now < *when + SERVES) {
            return Ok(all);
        }
        let which = Which::All { tags: self.owner.tags() };
        let read = pages::all("list", |page| fetch(&which, page));
        let mut all = read.map_err(|refusal| super::errors::unknown(&self.owner.backend, "the list", &refusal))?;
        all.retain(ours);
        let all = Arc::new(all);
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

//! Lists, a page at a time over all backends.
//!
//! A token is the last id that was given: it stays true whatever comes and goes meanwhile, and costs nothing to keep.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::*;
use crate::volume::Snapshot;

/// The most entries of one page where the CO sets no limit: an answer must fit into a gRPC message (4 MiB by default),
/// and into little memory.
const LARGEST_PAGE: usize = 500;

/// One page of a list.
#[derive(Clone, Debug)]
pub struct Page<T> {
    pub entries: Vec<T>,
    /// Empty at the end.
    pub next_token: String,
}

/// A volume with the nodes that have it.
#[derive(Clone, Debug)]
pub struct VolumeEntry {
    pub volume: Volume,
    pub published: Vec<NodeId>,
}

impl Controller {
    /// All volumes (ListVolumes). `max` 0 is no limit of the CO's; an empty token is the start.
    pub fn list(&self, max: usize, token: &str) -> Result<Page<VolumeEntry>> {
        let after: Option<VolumeId> = parse_token(token)?;
        let page =
            self.page(max, after.as_ref().map(|id| (id.backend(), id)), |backend, after, count| match backend.provision() {
                Some(provision) => provision.list_published(after, count),
                None => Ok(Vec::new()),
            })?;
        let page = page.with_token(|(volume, _)| volume.id.to_string());
        let unseen = page.entries.iter().filter(|(_, nodes)| nodes.is_none()).map(|(volume, _)| volume);
        let mut asked = self.published(&unseen.collect::<Vec<_>>())?.into_iter();
        let entries = page.entries.into_iter().map(|(volume, nodes)| {
            let published = nodes.map(Vec::from_iter).or_else(|| asked.next()).unwrap_or_default();
            VolumeEntry { volume, published }
        });
        Ok(Page { entries: entries.collect(), next_token: page.next_token })
    }

    /// One volume (ControllerGetVolume).
    pub fn get(&self, id: &VolumeId) -> Result<VolumeEntry> {
        let volume = self.existing(self.backend(id.backend())?, id)?;
        let published = self.published(&[&volume])?.pop().unwrap_or_default();
        Ok(VolumeEntry { volume, published })
    }

    /// Snapshots, all or filtered (ListSnapshots). What does not exist gives an empty list, not an error.
    pub fn list_snapshots(&self, filter: &SnapshotFilter, max: usize, token: &str) -> Result<Page<Snapshot>> {
        let after: Option<SnapshotId> = parse_token(token)?;
        if let Some(id) = &filter.id {
            let found = match self.get_snapshot(id) {
                Ok(snapshot) => Some(snapshot),
                Err(Error::NotFound { .. }) => None,
                Err(error) => return Err(error),
            };
            let entries = found.into_iter().filter(|found| filter.source.as_ref().is_none_or(|source| found.source == *source));
            return Ok(Page { entries: entries.collect(), next_token: String::new() });
        }
        let page = self.page(max, after.as_ref().map(|id| (id.backend(), id)), |backend, after, count| {
            let elsewhere = filter.source.as_ref().is_some_and(|source| source.backend() != backend.name());
            match backend.snapshots().filter(|_| !elsewhere) {
                Some(snapshots) => snapshots.list_snapshots(filter.source.as_ref(), after, count),
                None => Ok(Vec::new()),
            }
        })?;
        Ok(page.with_token(|snapshot| snapshot.id.to_string()))
    }

    /// Volumes with something wrong (ControllerListVolumeHealth).
    pub fn list_health(&self, max: usize, token: &str) -> Result<Page<(VolumeId, Health)>> {
        let after: Option<VolumeId> = parse_token(token)?;
        let page =
            self.page(max, after.as_ref().map(|id| (id.backend(), id)), |backend, after, count| match backend.health() {
                Some(health) => health.unhealthy(after, count),
                None => Ok(Vec::new()),
            })?;
        Ok(page.with_token(|(id, _)| id.to_string()))
    }

    /// One entry more than the page holds is asked for: whether it comes says whether there is a next page.
    fn page<Id, T>(
        &self,
        max: usize,
        after: Option<(&BackendName, &Id)>,
        list: impl Fn(&Arc<dyn Backend>, Option<&Id>, usize) -> Result<Vec<T>>,
    ) -> Result<Untold<T>> {
        let size = if max == 0 { LARGEST_PAGE } else { max.min(LARGEST_PAGE) };
        let mut entries = Vec::new();
        for backend in self.registry.iter() {
            let from = match after {
                Some((name, _)) if backend.name() < name => continue,
                Some((name, id)) if backend.name() == name => Some(id),
                _ => None,
            };
            entries.extend(list(backend, from, size + 1 - entries.len())?);
            if entries.len() > size {
                break;
            }
        }
        let more = entries.len() > size;
        entries.truncate(size);
        Ok(Untold { entries, more })
    }

    /// The nodes that have each of `volumes`: one question for each backend, not for each volume.
    fn published(&self, volumes: &[&Volume]) -> Result<Vec<Vec<NodeId>>> {
        let mut nodes: BTreeMap<VolumeId, BTreeSet<NodeId>> = BTreeMap::new();
        let mut unattachable = Vec::new();
        for run in volumes.chunk_by(|left, right| left.id.backend() == right.id.backend()) {
            let ids = run.iter().map(|volume| &volume.id);
            match self.backend(run[0].id.backend())?.attach() {
                Some(attach) => nodes.extend(attach.attachments(&ids.cloned().collect::<Vec<_>>())?),
                None => unattachable.extend(ids),
            }
        }
        // What needs no attaching is published where it is staged, and only this node is known.
        if let Some(node) = &self.node {
            for id in node.staged(&unattachable)? {
                nodes.entry(id).or_default().insert(node.id().clone());
            }
        }
        Ok(volumes.iter().map(|volume| nodes.remove(&volume.id).unwrap_or_default().into_iter().collect()).collect())
    }
}

/// A page whose token is still to be made from its last entry.
struct Untold<T> {
    entries: Vec<T>,
    more: bool,
}

impl<T> Untold<T> {
    fn with_token(self, id: impl Fn(&T) -> String) -> Page<T> {
        let next_token = self.entries.last().filter(|_| self.more).map(id).unwrap_or_default();
        Page { entries: self.entries, next_token }
    }
}

fn parse_token<Id: FromStr>(token: &str) -> Result<Option<Id>> {
    if token.is_empty() {
        return Ok(None);
    }
    token.parse().map(Some).map_err(|_| Error::InvalidPageToken { token: token.to_owned() })
}

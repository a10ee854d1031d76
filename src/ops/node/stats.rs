//! NodeGetVolumeStats and NodeGetInfo.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::backend::Source;
use crate::os;
use crate::os::block::Device;
use crate::os::mounts::Mounts;
use crate::os::path::Root;
use crate::os::step::step;
use crate::volume::{Error, Result, Topology, VolumeId};

use super::context::Node;
use super::inline::identity;
use super::journal::{Phase, StageEntry};
use super::observe::{self, MountState};
use super::requests::{Handle, NodeInfo, Stats};
use super::resolve;
use super::sources::{self, Sources};

/// A place of a volume.
pub(super) struct Place<'a> {
    pub entry: StageEntry,
    pub root: &'a Root,
    /// As mountinfo shows it.
    pub path: PathBuf,
    pub block: bool,
    pub at: At,
}

/// What a place is to the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Staging,
    Target,
    /// Not in the journal. The kubelet asks about a raw block volume where it has bound the published device itself:
    /// `volumeDevices/<volume>/dev/<pod>` (kubernetes, pkg/volume/csi/csi_block.go, `NewBlockVolumeMapper`).
    Elsewhere,
}

/// It may hang with the storage, so it is a step: a call that comes meanwhile names it.
const MEASURE: &str = "measure file system";
/// How long a server has to say how full its share is.
const PATIENCE: Duration = Duration::from_secs(5);

/// The id behind a handle; `None` for a volume that is not here.
pub(super) fn id_of(node: &Node, handle: &Handle) -> Result<Option<VolumeId>> {
    match identity::find(node, handle)? {
        Some(id) => Ok(Some(id)),
        None => resolve::volume_by_handle(node, handle),
    }
}

/// The place `path` of the volume.
///
/// # Errors
/// `NotFound` where the journal does not have the volume there; of a raw block volume, only where it does not have the volume.
pub(super) fn place<'a>(node: &'a Node, handle: &Handle, path: &Path) -> Result<Place<'a>> {
    let missing = || Error::NotFound { kind: "volume", id: format!("{handle} at {}", path.display()) };
    let id = id_of(node, handle)?.ok_or_else(missing)?;
    let entry = node.journal.stage(&id)?.ok_or_else(missing)?;
    let block = entry.access == super::journal::Access::Block;
    if entry.inline && path == entry.staging {
        return Ok(Place { root: &node.state, path: entry.staging.clone(), entry, block, at: At::Staging });
    }
    let path = resolve::path(node, path).map_err(|_| missing())?;
    if path == entry.staging {
        return Ok(Place { root: node.root_of(&entry), path, entry, block, at: At::Staging });
    }
    let at = match node.journal.target(&id, &path)? {
        Some(_) => At::Target,
        None if block => At::Elsewhere,
        None => return Err(missing()),
    };
    Ok(Place { root: &node.kubelet, path, entry, block, at })
}

pub(super) fn stats(node: &Node, handle: &Handle, path: &Path) -> Result<Stats> {
    let place = place(node, handle, path)?;
    resolve::backend(node, &place.entry.id)?;
    let missing = || Error::NotFound { kind: "volume", id: format!("{} at {}", place.entry.id, path.display()) };
    let sources = Sources::observe(node, &place.entry.id, Some(&place.entry))?;
    let source = sources.used(place.entry.encryption()?).ok_or_else(missing)?;
    if place.block {
        return block_stats(node, &place, &source, missing);
    }
    // statfs of a bare directory would be the node's own disk.
    let mounts = Mounts::now()?;
    if let Source::Directory(directory) = &source {
        let staged = place.entry.phase == Phase::Staged && node.same_boot(&place.entry);
        let path = match source.network_directory().filter(|_| place.at == At::Staging && staged) {
            Some(share) => share.mount.clone(),
            None => {
                let MountState::Ours(_) = observe::at(&mounts, &place.path, &sources.all)? else { return Err(missing()) };
                place.path.clone()
            }
        };
        sources::reach(node, &place.entry.id, &source)?;
        if directory.root.is_some() {
            let open = place.root.open_path(&place.path)?.ok_or_else(missing)?;
            let connect = resolve::backend(node, &place.entry.id)?.connect();
            return step(MEASURE, &place.path.display(), || connect.usage(&place.entry.id, open.as_fd())).map(stats_of);
        }
        let measure = || os::fs::usages(std::slice::from_ref(&path), PATIENCE);
        let mut found = step(MEASURE, &path.display(), measure)?;
        return found.remove(&path).map(stats_of).ok_or_else(missing);
    }
    let at = observe::at(&mounts, &place.path, std::slice::from_ref(&source))?;
    let MountState::Ours(_) = at else { return Err(missing()) };
    let open = place.root.open_path(&place.path)?.ok_or_else(missing)?;
    let usage = step(MEASURE, &place.path.display(), || os::fs::usage(open.as_fd()))?;
    Ok(stats_of(usage))
}

fn stats_of(usage: os::fs::Usage) -> Stats {
    Stats { total: usage.total, available: Some(usage.available), used: Some(usage.used), inodes: usage.inodes }
}

fn block_stats(node: &Node, place: &Place<'_>, source: &Source, missing: impl Fn() -> Error) -> Result<Stats> {
    let Source::Device(device) = source else { return Err(missing()) };
    if place.at != At::Staging && !observe::shows_device(place.root, &place.path, device)? {
        return Err(missing());
    }
    let open = Device::open(&device.path, false)?;
    if open.number() != device.number {
        return Err(missing());
    }
    let used = resolve::backend(node, &place.entry.id)?.connect().used(&place.entry.id)?;
    Ok(Stats { total: open.size()?, available: None, used: used.map(|bytes| bytes.0), inodes: None })
}

/// A node that was registered without its id or segments would lack them until its registration is repeated: what is not known yet is
/// an error, and the kubelet asks again.
pub(super) fn info(node: &Node) -> Result<NodeInfo> {
    let node_id = node.resolved_id()?.clone();
    let mut topology: Option<BTreeMap<String, String>> = None;
    let mut limit: Option<u64> = None;
    for backend in node.registry.iter() {
        if let Some(segments) = backend.topology()? {
            topology.get_or_insert_with(BTreeMap::new).extend(BTreeMap::from(segments));
        }
        // The CO has one number for all volumes of the driver, whatever their backend: only the smallest limit holds for each of them.
        limit = [limit, backend.connect().limit()].into_iter().flatten().min();
    }
    Ok(NodeInfo { node_id, topology: topology.map(Topology::from), limit })
}

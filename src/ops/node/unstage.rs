//! NodeUnstageVolume, and the undoing of a stage that was cut off.

use std::collections::BTreeMap;
use std::path::Path;

use crate::backend::Source;
use crate::ops::lock::Key;
use crate::os::block::Device;
use crate::os::dm;
use crate::os::mountinfo::MountTable;
use crate::os::multipath::Map;
use crate::os::step::step;
use crate::volume::{Error, Outcome, Result, Secrets, VolumeId};

use super::execute::{self, Job};
use super::journal::{Access, Phase, StageEntry, TargetEntry};
use super::plan::{Wanted, WantedAccess};
use super::stage::Order;
use super::{Node, observe, source_name};

pub(super) fn unstage(node: &Node, id: &VolumeId, staging: &Path) -> Result<Outcome<()>> {
    let staging = node.place(staging)?;
    let _guard = node.locks.exclusive(Key::Volume(id.clone()), "unstage")?;
    let entry = node.journal.stage(id)?;
    match entry {
        Some(entry) if entry.staging != staging && node.same_boot(&entry) => {
            // Nothing of the volume's is to be at this path; its stage elsewhere is not what was asked about.
            tracing::warn!(volume = %id, path = %staging.display(), staged = %entry.staging.display(), "unstage of another path");
            let sources = node.sources(id, Some(&entry))?;
            let count = execute::unmount_all(&node.kubelet, &staging, &sources.all)?;
            Ok(if count == 0 { Outcome::Unchanged(()) } else { Outcome::Changed(()) })
        }
        Some(entry) => finish(node, entry),
        None => without_journal(node, id, &staging),
    }
}

/// The journal is lost, or there never was a stage: only what the backend says is the volume's is undone.
fn without_journal(node: &Node, id: &VolumeId, staging: &Path) -> Result<Outcome<()>> {
    let sources = node.sources(id, None)?;
    if !sources.all.is_empty() {
        unpublished(node, id, staging, &sources.all)?;
    }
    let count = execute::unmount_all(&node.kubelet, staging, &sources.all)?;
    node.close_mapping(id)?;
    match (sources.connected, node.registry.get(id.backend())) {
        (Some(source), Some(backend)) => {
            node.unused(id, &source)?;
            allow_writes(&source)?;
            backend.connect().disconnect(id, Some(&source))?;
            Ok(Outcome::Changed(()))
        }
        _ if count > 0 || sources.mapping.is_some() => Ok(Outcome::Changed(())),
        _ => Ok(Outcome::Unchanged(())),
    }
}

/// Undoes a stage: unmounts, disconnects, forgets. The caller holds the volume. An inline volume's entry stays, since it goes
/// with the volume.
///
/// # Errors
/// `InUse` while it is published; not final where something is left.
pub(super) fn finish(node: &Node, mut entry: StageEntry) -> Result<Outcome<()>> {
    let id = entry.id.clone();
    let sources = node.sources(&id, Some(&entry))?;
    unpublished(node, &id, &entry.staging, &sources.all)?;
    // Seen before anything is undone, so that a refusal changes nothing.
    if let observe::At::Foreign(mount) = observe::at(&MountTable::read()?, &entry.staging, &sources.all) {
        return Err(super::plan::taken(&entry.staging, &mount));
    }
    if entry.phase != Phase::Unstaging {
        entry.phase = Phase::Unstaging;
        node.journal.write_stage(&entry)?;
    }
    execute::unmount_all(node.root_of(&entry), &entry.staging, &sources.all)?;
    node.close_mapping(&id)?;
    if entry.is_cut_off() && !entry.inline {
        finish_cut_off(node, &entry)?;
    }
    match node.registry.get(id.backend()) {
        Some(backend) => {
            if let Some(source) = &sources.connected {
                node.unused(&id, source)?;
                allow_writes(source)?;
            }
            backend.connect().disconnect(&id, sources.all.first())?;
        }
        None if sources.all.is_empty() => {}
        None => {
            let device = sources.all.first().map(source_name).unwrap_or_default();
            return Err(Error::BackendDown {
                backend: id.backend().to_string(),
                reason: format!("it is no longer configured, but volume {id} is still connected by it as {device}; configure it"),
            });
        }
    }
    if !entry.inline {
        node.journal.remove_stage(&id)?;
    }
    Ok(Outcome::Changed(()))
}

/// A device whose mkfs was cut off would be taken for somebody's data for ever, and one whose growth was for a damaged one, so that
/// is ended before the journal forgets it. If a mkfs cannot be, the volume stays unformatted: a loss of nothing, and said.
///
/// # Errors
/// `Pending`, where the time for it is yet to come; any, where there is data that was growing.
fn finish_cut_off(node: &Node, entry: &StageEntry) -> Result<()> {
    let attempt = || -> Result<()> {
        let order = Order {
            backend: node.backend(&entry.id)?.as_ref(),
            root: node.root_of(entry),
            wanted: Wanted {
                id: entry.id.clone(),
                staging: entry.staging.clone(),
                access: WantedAccess::Filesystem { fstype: entry.formatting, mount_flags: Vec::new() },
                mode: entry.mode,
                read_only: false,
                inline: entry.inline,
            },
            group: None,
            parameters: entry.parameters()?,
            publish_context: &BTreeMap::new(),
            secrets: &Secrets::default(),
        };
        Job::new(node, &order, Some(entry.clone())).finish_cut_off()
    };
    match attempt() {
        // What says that there is nothing to end, or that it is not ours, stays so; anything else may pass.
        Err(error)
            if entry.growing || !matches!(error, Error::Unproven { .. } | Error::NotFound { .. } | Error::Invalid { .. }) =>
        {
            return Err(error);
        }
        Err(error) => tracing::error!(
            volume = %entry.id,
            error = %crate::volume::error::chain(&error),
            "a mkfs or LUKS format was cut off and could not be ended; the volume never held data. It will not be formatted again by \
             itself: delete it and make a new one, or clear its storage (`blkdiscard --zeroout`)"
        ),
        Ok(()) => {}
    }
    Ok(())
}

/// Refuses while the volume is still published: at a journaled target, or anywhere else where targets are. A target that is no
/// longer mounted is forgotten. Mounts outside are looked at after the staging mount is gone: they may be its copies in
/// another view of the node's files, which go with it.
fn unpublished(node: &Node, id: &VolumeId, staging: &Path, sources: &[Source]) -> Result<()> {
    let table = MountTable::read()?;
    for target in node.journal.targets(id)? {
        if mounted_target(&table, &target, sources) {
            return Err(published_at(id, &target.target));
        }
        tracing::warn!(volume = %id, path = %target.target.display(), "a published target is no longer mounted; forgotten");
        node.journal.remove_target(id, &target.target)?;
    }
    let mut elsewhere = table.iter().filter(|mount| {
        let ours = [node.kubelet.path(), node.state.path()].iter().any(|folder| mount.mount_point.starts_with(folder));
        ours && mount.mount_point != staging
    });
    let sources = observe::exclusive(sources);
    match elsewhere.find(|mount| observe::is_of(mount, &sources)) {
        Some(mount) => Err(published_at(id, &mount.mount_point)),
        None => Ok(()),
    }
}

/// Whether a journaled target is mounted, and by this volume.
pub(super) fn mounted_target(table: &MountTable, target: &TargetEntry, sources: &[Source]) -> bool {
    table.at(&target.target).iter().any(|mount| observe::is_of(mount, sources))
}

fn published_at(id: &VolumeId, path: &Path) -> Error {
    Error::InUse { object: format!("volume {id}"), by: format!("it is mounted at {}; unpublish it there first", path.display()) }
}

/// Write protection outlives the binding of a loop device: the next volume on it would find it.
pub(super) fn allow_writes(source: &Source) -> Result<()> {
    let Source::Device(device) = source else { return Ok(()) };
    let open = match Device::open(&device.path, false) {
        Ok(open) if open.number() == device.number => open,
        Ok(_) => return Ok(()),
        Err(error) if error.is_missing() => return Ok(()),
        // A disk whose path is lost for good: it goes with its session, protection and all.
        Err(error) if error.errno() == Some(libc::ENXIO) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if open.read_only()? {
        step("allow writes", &device.path.display(), || open.set_read_only(false))?;
    }
    Ok(())
}

impl Node {
    /// Whether nothing uses a connected volume any more, so that it may be disconnected.
    ///
    /// # Errors
    /// `InUse`, naming where it is mounted or published.
    pub(super) fn unused(&self, id: &VolumeId, source: &Source) -> Result<()> {
        let table = MountTable::read()?;
        let sources = std::slice::from_ref(source);
        if let Some(target) = self.journal.targets(id)?.iter().find(|target| mounted_target(&table, target, sources)) {
            return Err(published_at(id, &target.target));
        }
        let exclusive = observe::exclusive(sources);
        if let Some(mount) = table.iter().find(|mount| observe::is_of(mount, &exclusive)) {
            return Err(published_at(id, &mount.mount_point));
        }
        let Source::Device(device) = source else { return Ok(()) };
        let mut holders = dm::holders(device.number)?;
        holders.retain(|holder| !is_idle_map(holder, &table).unwrap_or(false));
        if holders.is_empty() {
            return Ok(());
        }
        let by = format!(
            "{} lies on its device {}; take that down first (`lsblk` shows it)",
            holders.join(", "),
            device.path.display()
        );
        Err(Error::InUse { object: format!("volume {id}"), by })
    }
}

/// multipathd also takes what was connected as a single disk: its map goes with the disk, if nothing uses it.
fn is_idle_map(holder: &str, table: &MountTable) -> Result<bool> {
    let Some(map) = Map::of(holder)? else { return Ok(false) };
    Ok(dm::holders(map.number)?.is_empty() && !table.iter().any(|mount| mount.device == map.number))
}

/// What an entry's access is, in words.
pub(super) fn access_name(access: &Access) -> &str {
    match access {
        Access::Block => "raw block",
        Access::Filesystem { fstype, .. } => fstype.as_deref().unwrap_or("a file system"),
    }
}

//! The start: journal and kernel are compared, and what a kill cut off is finished or undone.
//!
//! A volume that cannot be recovered is reported and does not stop the start; its next call tries again.

use std::collections::HashMap;
use std::path::Path;

use crate::ops::lock::Key;
use crate::os::mountinfo::{Mount, MountTable};
use crate::volume::error::chain;
use crate::volume::{Result, VolumeId};

use super::journal::{Access, Phase, StageEntry, TargetEntry};
use super::observe::{self, At};
use super::publish::remove_place;
use super::unstage::{allow_writes, finish, mounted_target};
use super::{Node, inline, quiesce};

pub(super) fn recover(node: &Node) {
    if let Err(error) = quiesce::thaw_left(node) {
        tracing::error!(error = %chain(&error), "what an earlier process left frozen; run `fsfreeze -u` on the mount if a volume hangs");
    }
    if let Err(error) = node.journal.sweep() {
        tracing::error!(error = %chain(&error), "half-written files in the journal's folder could not be removed");
    }
    let volumes = match node.journal.volumes() {
        Ok(volumes) => volumes,
        Err(error) => {
            tracing::error!(error = %chain(&error), "the journal's folder cannot be read; nothing was recovered");
            return;
        }
    };
    let table = MountTable::read().unwrap_or_else(|error| {
        tracing::error!(%error, "mountinfo cannot be read");
        MountTable::default()
    });
    let mounted = by_place(&table);
    for id in volumes {
        if let Err(error) = recover_volume(node, &id, &mounted) {
            tracing::error!(volume = %id, error = %chain(&error), "not recovered; the next stage or unstage of it tries again");
        }
    }
}

pub(super) fn by_place(table: &MountTable) -> HashMap<&Path, Vec<&Mount>> {
    let mut mounted: HashMap<&Path, Vec<&Mount>> = HashMap::new();
    for mount in table.iter() {
        mounted.entry(&mount.mount_point).or_default().push(mount);
    }
    mounted
}

/// Whether nothing was cut off, by what the journal and one reading of mountinfo say: so it is for nearly all volumes, and the
/// start must not cost more than that for each.
fn is_whole(node: &Node, entry: Option<&StageEntry>, targets: &[TargetEntry], mounted: &HashMap<&Path, Vec<&Mount>>) -> bool {
    let Some(entry) = entry else { return targets.is_empty() };
    // Write protection is to be looked at.
    let block = entry.access == Access::Block;
    let sources = entry.shown();
    let published = |target: &TargetEntry| {
        mounted.get(target.target.as_path()).is_some_and(|mounts| mounts.iter().all(|mount| observe::is_of(mount, &sources)))
    };
    entry.phase == Phase::Staged && node.same_boot(entry) && !block && targets.iter().all(published)
}

pub(super) fn recover_volume(node: &Node, id: &VolumeId, mounted: &HashMap<&Path, Vec<&Mount>>) -> Result<()> {
    let _guard = node.locks.exclusive(Key::Volume(id.clone()), "recover")?;
    let entry = node.journal.stage(id)?;
    let targets = node.journal.targets(id)?;
    node.journal.found(id, entry.as_ref(), &targets);
    if is_whole(node, entry.as_ref(), &targets, mounted) {
        return Ok(());
    }
    recover_targets(node, id, entry.as_ref(), &targets)?;
    let Some(entry) = entry else { return Ok(()) };
    match entry.phase {
        Phase::Staged if node.same_boot(&entry) => Ok(()),
        Phase::Staged => {
            tracing::info!(volume = %id, "staged before the last boot; it must be staged again before it is published");
            Ok(())
        }
        Phase::Staging | Phase::Unstaging => undo(node, entry),
    }
}

/// Nobody was told of a stage that is not whole, so nobody can miss it. What remembers a mkfs or a growth that was cut off
/// stays: the CO will stage again, or unstage.
fn undo(node: &Node, entry: StageEntry) -> Result<()> {
    let id = entry.id.clone();
    if entry.phase == Phase::Staging && entry.is_cut_off() {
        let sources = node.sources(&id, Some(&entry))?;
        super::execute::unmount_all(node.root_of(&entry), &entry.staging, &sources.all)?;
        node.close_mapping(&id)?;
        if let Some(source) = sources.connected {
            node.unused(&id, &source)?;
            node.backend(&id)?.connect().disconnect(&id, Some(&source))?;
        }
        tracing::warn!(volume = %id, path = %entry.staging.display(), "its mkfs or its growth was cut off; the next stage ends it");
        return Ok(());
    }
    tracing::warn!(volume = %id, path = %entry.staging.display(), phase = ?entry.phase, "a stage or unstage was cut off; undone");
    let inline = entry.inline;
    finish(node, entry)?;
    if inline { inline::delete(node, &id) } else { Ok(()) }
}

/// A target that is mounted is whole: a mount appears in one instant, with all its attributes. One that is not was cut off
/// before, or after its unmounting.
fn recover_targets(node: &Node, id: &VolumeId, entry: Option<&StageEntry>, targets: &[TargetEntry]) -> Result<()> {
    let sources = node.sources(id, entry)?;
    let table = MountTable::read()?;
    let mut protected = false;
    for target in targets {
        let mounted = sources.at_target(Some(target), &node.boot);
        if mounted_target(&table, target, &mounted) {
            protected |= target.block && target.read_only;
            continue;
        }
        if let At::Foreign(mount) = observe::at(&table, &target.target, &mounted) {
            tracing::error!(
                volume = %id, path = %target.target.display(), source = %mount.source.display(),
                "something else is mounted at a published target; unmount it, then unpublish the volume"
            );
            continue;
        }
        if target.boot == node.boot {
            tracing::warn!(volume = %id, path = %target.target.display(), "a publish or unpublish was cut off; undone");
            remove_place(&node.kubelet, &target.target)?;
        }
        node.journal.remove_target(id, &target.target)?;
    }
    match entry.filter(|entry| entry.access == Access::Block && !entry.read_only && !protected) {
        Some(entry) => sources.used(entry.encryption()?).map_or(Ok(()), |source| allow_writes(&source)),
        None => Ok(()),
    }
}

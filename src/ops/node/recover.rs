//! The start: journal and kernel are compared, and what a kill cut off is finished or undone.
//!
//! A volume that cannot be recovered is reported and does not stop the start; its next call tries again.

use crate::ops::lock::Key;
use crate::os::mountinfo::MountTable;
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
    let volumes = match node.journal.volumes() {
        Ok(volumes) => volumes,
        Err(error) => {
            tracing::error!(error = %chain(&error), "the journal's folder cannot be read; nothing was recovered");
            return;
        }
    };
    for id in volumes {
        if let Err(error) = recover_volume(node, &id) {
            tracing::error!(volume = %id, error = %chain(&error), "not recovered; the next stage or unstage of it tries again");
        }
    }
}

fn recover_volume(node: &Node, id: &VolumeId) -> Result<()> {
    let _guard = node.locks.exclusive(Key::Volume(id.clone()), "recover")?;
    let entry = node.journal.stage(id)?;
    let targets = node.journal.targets(id)?;
    let quiet = entry.as_ref().is_none_or(|entry| entry.phase == Phase::Staged && node.same_boot(entry));
    if quiet && targets.is_empty() && entry.as_ref().is_none_or(|entry| entry.access != Access::Block) {
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

/// Nobody was told of a stage that is not whole, so nobody can miss it. What remembers a mkfs that was cut off stays: the CO
/// will stage again, or unstage.
fn undo(node: &Node, entry: StageEntry) -> Result<()> {
    let id = entry.id.clone();
    if entry.phase == Phase::Staging && entry.formatting.is_some() {
        let (connected, sources) = node.sources(&id, Some(&entry))?;
        super::execute::unmount_all(&entry.staging, &sources)?;
        if let Some(source) = connected {
            node.unused(&id, &source)?;
            node.backend(&id)?.connect().disconnect(&id, Some(&source))?;
        }
        tracing::warn!(volume = %id, path = %entry.staging.display(), "its mkfs was cut off; the next stage makes it anew");
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
    let (connected, sources) = node.sources(id, entry)?;
    let table = MountTable::read()?;
    let mut protected = false;
    for target in targets {
        if mounted_target(&table, target, &sources) {
            protected |= target.block && target.read_only;
            continue;
        }
        if let At::Foreign(mount) = observe::at(&table, &target.target, &sources) {
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
    let writable = entry.is_some_and(|entry| entry.access == Access::Block && !entry.read_only);
    match connected {
        Some(source) if writable && !protected => allow_writes(&source),
        _ => Ok(()),
    }
}

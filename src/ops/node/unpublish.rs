//! NodeUnpublishVolume.

use std::path::Path;

use crate::backend::Source;
use crate::ops::lock::{Guard, Key};
use crate::os;
use crate::os::mounts::Mounts;
use crate::volume::{Error, Outcome, Result, VolumeId};

use super::context::Node;
use super::device_use::allow_writes;
use super::errors::access_word;
use super::journal::{Access, StageEntry};
use super::mounts::{mounted_target, remove_place, unmount_all};
use super::requests::Handle;
use super::sources::Sources;
use super::{io_limits, observe, resolve};

pub(super) fn unpublish(node: &Node, id: &VolumeId, target: &Path) -> Result<Outcome<()>> {
    let target = resolve::path(node, target)?;
    let _volume = lock(node, id)?;
    let _target = node.locks.exclusive(Key::target(&target), "unpublish")?;
    let entry = node.journal.stage(id)?;
    run(node, id, entry.as_ref(), &target)
}

/// A volume that the journal does not know by its handle and that no id names: it is gone, or never was, unless another driver has made it.
pub(super) fn unpublish_unknown(node: &Node, handle: &Handle, target: &Path) -> Result<Outcome<()>> {
    let target = resolve::path(node, target)?;
    if let Some(id) = resolve::existing_at(node, &target)? {
        return unpublish(node, &id, &target);
    }
    let _target = node.locks.exclusive(Key::target(&target), "unpublish")?;
    tracing::debug!(volume = %handle, "no such volume in the journal");
    clear(node, &target, &[])
}

/// Raw block targets share the write protection of their device: one at a time.
fn lock(node: &Node, id: &VolumeId) -> Result<Guard> {
    let block = node.journal.stage(id)?.is_some_and(|entry| entry.access == Access::Block);
    let key = Key::Volume(id.clone());
    if block { node.locks.exclusive(key, "unpublish") } else { node.locks.shared(key, "unpublish") }
}

/// The caller holds the volume and the target.
pub(super) fn run(node: &Node, id: &VolumeId, entry: Option<&StageEntry>, target: &Path) -> Result<Outcome<()>> {
    let sources = Sources::observe(node, id, entry)?;
    let journaled = node.journal.target(id, target)?;
    let outcome = clear(node, target, &sources.at_target(&Mounts::now()?, journaled.as_ref(), &node.boot)?)?;
    let Some(journaled) = journaled else { return Ok(outcome) };
    if journaled.block
        && journaled.read_only
        && let Some(entry) = entry.filter(|entry| !entry.read_only)
        && let Some(source) = sources.used(entry.encryption()?)
    {
        end_protection(node, id, target, &source)?;
    }
    io_limits::lift(node, id, &sources, entry, target);
    node.journal.remove_target(id, target)?;
    Ok(Outcome::Changed(()))
}

/// Takes this volume's mounts from the target, then the target itself.
fn clear(node: &Node, target: &Path, sources: &[Source]) -> Result<Outcome<()>> {
    let mounts = Mounts::now()?;
    observe::nothing_inside(&mounts, target)?;
    let count = unmount_all(&node.kubelet, target, sources)?;
    if count > 0 {
        // What the mount hid.
        observe::nothing_inside(&mounts, target)?;
    }
    let Some(place) = node.kubelet.open_path(target)? else {
        return Ok(if count == 0 { Outcome::Unchanged(()) } else { Outcome::Changed(()) });
    };
    // A file goes only if it can have been a place to mount on.
    let stat = rustix::fs::fstat(&place).map_err(|errno| os::Error::io("stat", target, errno))?;
    let file = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile;
    drop(place);
    if file && stat.st_size > 0 {
        return Err(Error::InUse {
            object: format!("target {}", target.display()),
            by: "it is a file with data, which no volume's target is; move it away".to_owned(),
        });
    }
    remove_place(&node.kubelet, target)?;
    Ok(Outcome::Changed(()))
}

/// The device takes writes again once its last read-only target is gone.
fn end_protection(node: &Node, id: &VolumeId, target: &Path, source: &Source) -> Result<()> {
    let mounts = Mounts::now()?;
    let others = node.journal.targets(id)?;
    for other in others.iter().filter(|other| other.target != target && other.read_only) {
        if mounted_target(&mounts, other, std::slice::from_ref(source))? {
            tracing::debug!(volume = %id, "the device stays {}: another target is", access_word(true));
            return Ok(());
        }
    }
    allow_writes(source)
}

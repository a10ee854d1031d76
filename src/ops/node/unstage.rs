//! NodeUnstageVolume, and the undoing of a stage that was interrupted.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::backend::Source;
use crate::ops::lock::Key;
use crate::os;
use crate::os::mountinfo::Mount;
use crate::os::mounts::Mounts;
use crate::os::step::step;
use crate::volume::{Error, MountFlags, Outcome, Result, Secrets, VolumeId};

use super::context::Node;
use super::device_use::{allow_writes, close_mapping, ensure_unused, published_at};
use super::errors::taken;
use super::journal::{Phase, StageEntry};
use super::mounts::{mounted_target, unmount_all};
use super::requests::Handle;
use super::sources::Sources;
use super::stage::apply::StageRun;
use super::stage::spec::{DesiredAccess, DesiredStage, StageSpec};
use super::{observe, resolve};

pub(super) fn unstage(node: &Node, id: &VolumeId, staging: &Path) -> Result<Outcome<()>> {
    let staging = resolve::path(node, staging)?;
    let _guard = node.locks.exclusive(Key::Volume(id.clone()), "unstage")?;
    let entry = node.journal.stage(id)?;
    match entry {
        Some(entry) if entry.staging != staging && node.same_boot(&entry) => {
            // Nothing of the volume's is to be at this path; its stage elsewhere is not what was asked about.
            tracing::warn!(volume = %id, path = %staging.display(), staged = %entry.staging.display(), "unstage of another path");
            let sources = Sources::observe(node, id, Some(&entry))?;
            let count = unmount_all(&node.kubelet, &staging, &sources.all)?;
            Ok(if count == 0 { Outcome::Unchanged(()) } else { Outcome::Changed(()) })
        }
        Some(entry) => finish(node, entry),
        None => without_journal(node, id, &staging),
    }
}

/// As [`unpublish_unknown`](super::unpublish::unpublish_unknown). What is mounted there nobody has unmounted yet: said to be unstaged, its
/// disk would be detached below it.
///
/// # Errors
/// `InUse` where anything is mounted there.
pub(super) fn unstage_unknown(node: &Node, handle: &Handle, staging: &Path) -> Result<Outcome<()>> {
    let staging = resolve::path(node, staging)?;
    if let Some(id) = resolve::existing_at(node, &staging)? {
        return unstage(node, &id, &staging);
    }
    tracing::debug!(volume = %handle, "no such volume in the journal");
    match Mounts::now()?.at(&staging)?.last() {
        Some(mount) => Err(taken(&staging, mount)),
        None => Ok(Outcome::Unchanged(())),
    }
}

/// The journal is lost, or there never was a stage: only what the backend says is the volume's is undone.
fn without_journal(node: &Node, id: &VolumeId, staging: &Path) -> Result<Outcome<()>> {
    let sources = Sources::observe(node, id, None)?;
    if !sources.all.is_empty() {
        unpublished(node, id, staging, &sources)?;
    }
    let count = unmount_all(&node.kubelet, staging, &sources.all)?;
    close_mapping(node, id)?;
    match (sources.connected, node.registry.get(id.backend())) {
        (Some(source), Some(backend)) => {
            ensure_unused(node, id, &source)?;
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
    let sources = Sources::observe(node, &id, Some(&entry))?;
    unpublished(node, &id, &entry.staging, &sources)?;
    let mounted = sources.at_staging();
    // StageObservation before anything is undone, so that a refusal changes nothing.
    if let observe::MountState::Foreign(mount) = observe::at(&Mounts::now()?, &entry.staging, &mounted)? {
        return Err(taken(&entry.staging, &mount));
    }
    if entry.phase != Phase::Unstaging {
        entry.phase = Phase::Unstaging;
        node.journal.write_unstaging(&entry);
    }
    write_out(node, &entry, &sources.all);
    unmount_all(node.root_of(&entry), &entry.staging, &mounted)?;
    close_mapping(node, &id)?;
    if entry.is_interrupted() && !entry.inline {
        finish_interrupted(node, &entry)?;
    }
    match node.registry.get(id.backend()) {
        Some(backend) => {
            if let Some(source) = sources.below_mapping() {
                ensure_unused(node, &id, source)?;
                allow_writes(source)?;
            }
            backend.connect().disconnect(&id, sources.all.first())?;
        }
        None if sources.all.is_empty() => {}
        None => drop(resolve::backend(node, &id)?),
    }
    if !entry.inline {
        node.journal.remove_stage(&id)?;
    }
    Ok(Outcome::Changed(()))
}

/// Writes out what the file system at the staging path still has in memory (syncfs(2)): the last unmount would do it, but another mount
/// namespace may have that, and its node may be lost before. What a disk refuses to take is lost whatever we answer; it is logged, so that
/// the volume does not stay on this node for ever.
fn write_out(node: &Node, entry: &StageEntry, sources: &[Source]) {
    let at = Mounts::now().map_err(Error::from).and_then(|mounts| observe::at(&mounts, &entry.staging, sources));
    let Ok(observe::MountState::Ours(mount)) = at else { return };
    let device = sources.iter().find(|source| matches!(source, Source::Device(_)) && observe::is_filesystem_of(&mount, source));
    let Some(source) = device.filter(|_| !mount.is_read_only()) else { return };
    let failed = |errno: Errno| os::Error::io("sync the file system at", &entry.staging, errno);
    let synced = observe::open(node.root_of(entry), &entry.staging, source).and_then(|mounted| {
        let open = rustix::fs::openat(&mounted, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)?;
        Ok(step("sync", &entry.staging.display(), || rustix::fs::syncfs(&open).map_err(failed))?)
    });
    if let Err(error) = synced {
        tracing::error!(
            volume = %entry.id, path = %entry.staging.display(), error = %crate::volume::error::chain(&error),
            "unstage: the file system could not be written out; writes that no pod synced may be lost. Check the disk (`dmesg`)"
        );
    }
}

/// A file system whose growth was interrupted would be taken for a damaged one, so that is ended before the journal forgets it. An
/// interrupted format is, too, since its mark is hard to find once the device has grown; if it cannot be, the mark on the medium tells
/// the next stage, on whatever node.
///
/// # Errors
/// `InProgress`, where the time for it is yet to come; any, where there is data that was growing.
fn finish_interrupted(node: &Node, entry: &StageEntry) -> Result<()> {
    let attempt = || -> Result<()> {
        let order = StageSpec {
            backend: resolve::backend(node, &entry.id)?.as_ref(),
            root: node.root_of(entry),
            wanted: DesiredStage {
                id: entry.id.clone(),
                staging: entry.staging.clone(),
                access: DesiredAccess::Filesystem { fstype: None, mount_flags: MountFlags::default() },
                mode: entry.mode,
                read_only: false,
                inline: entry.inline,
            },
            group: None,
            parameters: entry.parameters()?,
            publish_context: &BTreeMap::new(),
            secrets: &Secrets::default(),
        };
        StageRun::new(node, &order, Some(entry.clone())).finish_interrupted()
    };
    match attempt() {
        Ok(()) => {}
        // Another node has it by now, and sees the mark, or the damage, itself.
        Err(error @ (Error::InUse { .. } | Error::WrongNode { .. })) => {
            tracing::warn!(volume = %entry.id, %error, "what was interrupted on its device is left to the node that has it now");
        }
        // The volume is gone, or cannot be connected by what an unstage knows (its portals and passwords came with the stage): no repeat
        // would end it.
        Err(error @ (Error::NotFound { kind: "volume", .. } | Error::Invalid { .. })) if entry.growth.is_some() => {
            tracing::error!(
                volume = %entry.id,
                error = %crate::volume::error::chain(&error),
                "the interrupted growth of its file system could not be completed at unstage; if the next stage refuses the file system, \
                 check it with `e2fsck -f`"
            )
        }
        // What says that there is nothing to end, or that it is not ours, stays so; anything else may pass.
        Err(error)
            if entry.growth.is_some()
                || !matches!(error, Error::Unverified { .. } | Error::NotFound { .. } | Error::Invalid { .. }) =>
        {
            return Err(error);
        }
        Err(error) => tracing::error!(
            volume = %entry.id,
            error = %crate::volume::error::chain(&error),
            "an interrupted mkfs or luksFormat could not be completed at unstage; the volume holds no data. The next stage repeats it if \
             the device still has the mark of the format; else delete the volume, or clear its storage (`blkdiscard --zeroout`)"
        ),
    }
    Ok(())
}

/// Refuses while the volume is still published: at a journaled target, or anywhere else where targets are. A target that is no longer
/// mounted is forgotten, unless something else is mounted there. Mounts outside are looked at after the staging mount is gone: they may be
/// its copies in another view of the node's files, which go with it.
fn unpublished(node: &Node, id: &VolumeId, staging: &Path, sources: &Sources) -> Result<()> {
    let mounts = Mounts::now()?;
    for target in node.journal.targets(id)? {
        if mounted_target(&mounts, &target, &sources.at_target(&mounts, Some(&target), &node.boot)?)? {
            return Err(published_at(id, &target.target));
        }
        // It may be this volume's, by a device or share that it is not known as any more.
        if target.boot == node.boot
            && let Some(mount) = mounts.at(&target.target)?.last()
        {
            return Err(taken(&target.target, mount));
        }
        tracing::warn!(volume = %id, path = %target.target.display(), "a published target is no longer mounted; forgotten");
        node.journal.remove_target(id, &target.target)?;
    }
    let elsewhere = |mount: &Mount| {
        let ours = [node.kubelet.path(), node.state.path()].iter().any(|directory| mount.mount_point.starts_with(directory));
        ours && mount.mount_point != staging
    };
    match observe::find(&mounts, &observe::exclusive(&sources.all), elsewhere)? {
        Some(mount) => Err(published_at(id, &mount.mount_point)),
        None => Ok(()),
    }
}

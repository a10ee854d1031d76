//! Mounts of volumes, as stage and publish make them and unstage, unpublish and recovery take them away.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::backend::Source;
use crate::os::mount::{self, Attributes};
use crate::os::mounts::Mounts;
use crate::os::path::Root;
use crate::os::step::step;
use crate::os::{self, udev};
use crate::volume::{Error, MountFlags, Result};

use super::errors::{stacked, taken, unexpected};
use super::fs_group;
use super::journal::TargetEntry;
use super::observe::{self, MountState};

/// More mounts than this on top of each other are not ours.
const HIGHEST_STACK: usize = 64;

/// The CO's mount options, parted.
///
/// # Errors
/// `Invalid` for an option that makes no sense here.
pub(super) fn split_flags(flags: &MountFlags) -> Result<(Attributes, MountFlags)> {
    mount::split_options(flags).map_err(|error| Error::invalid("volume_capability.mount.mount_flags", error.to_string()))
}

/// Gives the file system of `source`, staged at `path`, to the group. Answers whether anything had to be done.
pub(super) fn apply_group(root: &Root, path: &Path, source: &Source, gid: u32, read_only: bool) -> Result<bool> {
    if read_only {
        return Ok(false);
    }
    let directory = match source {
        Source::Directory(directory) => Some(directory),
        _ => None,
    };
    let path = directory.map_or_else(|| path.to_owned(), |directory| directory.mount.join(&directory.directory));
    step("apply group", &format_args!("{gid} to {}", path.display()), || {
        let place = match directory {
            // A mount of its own, since `..` leads out of no mount, and the share's holds other volumes.
            Some(directory) => mount::clone_mount(observe::open_directory(directory)?.as_fd(), &Attributes::default())?,
            None => observe::open(root, &path, source)?,
        };
        Ok(fs_group::apply(place.as_fd(), &path, gid)?)
    })
}

/// Whether a journaled target is mounted, and by this volume.
pub(super) fn mounted_target(mounts: &Mounts, target: &TargetEntry, sources: &[Source]) -> Result<bool> {
    Ok(mounts.at(&target.target)?.iter().any(|mount| observe::is_of(mount, sources)))
}

/// Unmounts all that lies at `path`, which must all be of `sources`; seen to be none on return. Answers how many there were.
///
/// # Errors
/// `InUse` for a mount of someone else, which stays; not final where the kernel says that it is busy.
pub(super) fn unmount_all(root: &Root, path: &Path, sources: &[Source]) -> Result<usize> {
    for count in 0..HIGHEST_STACK {
        let stack = Mounts::now()?.at(path)?;
        if let MountState::Foreign(mount) = observe::of_stack(&stack, sources) {
            return Err(taken(path, &mount));
        }
        let Some(top) = stack.last().map(|mount| mount.id) else { return Ok(count) };
        step("unmount", &path.display(), || unmount_patiently(root, path, top)).map_err(|error| {
            let busy = error.errno() == Some(libc::EBUSY);
            let error = Error::from(error);
            if busy {
                let path = path.display();
                error.leaving(format!("{path} is still mounted, a process uses it: `fuser -vm {path}` shows which"))
            } else {
                error
            }
        })?;
    }
    Err(stacked(path, HIGHEST_STACK))
}

/// A program that we start at this moment for another volume has our own descriptors until its exec, those in this mount too: so EBUSY is
/// believed only after a while.
fn unmount_patiently(root: &Root, path: &Path, id: u64) -> os::Result<()> {
    const STARTING: Duration = Duration::from_secs(1);
    let mut busy = None;
    let attempt = || match mount::unmount(root, path, id) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(libc::EBUSY) => {
            busy = Some(error);
            Ok(false)
        }
        Err(error) => Err(error),
    };
    let done = udev::wait_until(Instant::now().checked_add(STARTING), attempt)?;
    busy.filter(|_| !done).map_or(Ok(()), Err)
}

/// Removes the directory or file that was mounted on, once mountinfo shows that nothing is any more.
pub(super) fn remove_place(root: &Root, path: &Path) -> Result<()> {
    match observe::at(&Mounts::now()?, path, &[])? {
        MountState::Nothing => Ok(step("remove target", &path.display(), || root.remove(path))?),
        MountState::Foreign(mount) => Err(taken(path, &mount)),
        MountState::Ours(_) | MountState::Stack(_) => Err(unexpected(path, "something is still mounted there")),
    }
}

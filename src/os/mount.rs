//! Mounts, by the new mount API: fsopen(2), fsmount(2), open_tree(2), mount_setattr(2), move_mount(2). Linux 5.12.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use super::Result;

/// Options that belong to a mount rather than to its file system (mount_setattr(2)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub read_only: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    pub noatime: bool,
    pub nodiratime: bool,
    /// `strictatime`; the kernel's default is relatime.
    pub strictatime: bool,
    pub nosymfollow: bool,
}

/// Parts mount options into those of the mount and those of the file system. `rw`, `defaults`, `relatime`, `suid`, `dev`,
/// `exec`, `atime` are the default and vanish.
///
/// # Errors
/// `Unexpected`, naming an option that makes no sense here (`bind`, `remount`, `move`, `loop`, `shared`, `x-...` and the like).
pub fn split_options(options: &[String]) -> Result<(Attributes, Vec<String>)> {
    unimplemented!()
}

/// Makes a detached mount of a file system: nobody sees it until [`attach`]. What the file system says of a refused
/// option (it is read from the context) is in the error.
pub fn new_filesystem(fstype: &str, source: &Path, options: &[String], attributes: &Attributes) -> Result<OwnedFd> {
    unimplemented!()
}

/// Makes a detached copy of the mount at `from` (an O_PATH descriptor of a folder, file or device node), with
/// `attributes` set before anyone can see it. Not recursive.
pub fn clone_mount(from: BorrowedFd<'_>, attributes: &Attributes) -> Result<OwnedFd> {
    unimplemented!()
}

/// Moves a detached mount onto `target` (O_PATH).
pub fn attach(mount: OwnedFd, target: BorrowedFd<'_>, target_path: &Path) -> Result<()> {
    unimplemented!()
}

/// Unmounts what is on top at `path`, never following a link (UMOUNT_NOFOLLOW). EBUSY is an error, EINVAL (no mount) too.
pub fn unmount(path: &Path) -> Result<()> {
    unimplemented!()
}

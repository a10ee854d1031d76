//! Proof that no loop device has a file, without a look at any device.
#![allow(unsafe_code, reason = "F_SETSIG and F_SETLEASE have no safe wrapper")]

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

use super::super::{Error, Result};

/// F_SETSIG of fcntl(2), which libc has for some architectures only.
const SET_SIGNAL: libc::c_int = 10;
/// Which file systems a lease is believed of, by statfs(2): ext4, xfs, btrfs, tmpfs. In these all who open a file share one inode of
/// this kernel. Not so where another machine may have it open (NFS, CephFS), or another file system shows it (overlayfs, FUSE).
const LOCAL: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

/// Whether nobody else in this kernel has the file open, and hence no loop device has it either: one keeps its file open while it is
/// bound, no matter who bound it, in which mount namespace. `file` must have been opened for reading only, by name. `false` is no
/// statement: another has it open, be it to read a backup, or the question cannot be asked.
///
/// A write lease (F_SETLEASE) is granted only to the sole opener: the kernel compares the inode's counts of writers and of readers with
/// the asker's own (check_conflicting_open in fs/locks.c; since Linux 5.3, earlier ones refuse whenever the inode or the name has any
/// other user). Found on Linux 6.18, with ext4 and tmpfs: it is refused while the file is bound to a loop device for reading or writing,
/// in this or in another mount namespace, by a second hard link, through a bind mount, or removed since; while it is mapped; and granted
/// once all that is over, and beside descriptors of O_PATH, by which nothing can be read.
///
/// The descriptor that memfd_create(2) returns is in neither count, but taken as a writer when it asks: with one loop device over
/// the file it would be granted the lease. So a descriptor that can write is not asked with.
///
/// The lease ends before the return. Who opens the file at that moment waits for it (with O_NONBLOCK: EAGAIN), and the kernel tells us
/// by a signal, which must not be SIGIO: that would end the process.
pub fn is_unbound(file: File) -> bool {
    match lease(&file) {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(%error, "a walk over all loop devices is needed");
            false
        }
    }
}

/// Takes the lease and gives it back.
#[allow(clippy::useless_conversion, reason = "the constants' types differ between C libraries")]
fn lease(file: &File) -> Result<()> {
    let failed = |errno: Errno| Error::io("take a lease on", "a backing file", errno);
    let set = |action, value: libc::c_int| {
        // SAFETY: the descriptor is open, and these actions take a plain number.
        Errno::result(unsafe { libc::fcntl(file.as_raw_fd(), action, value) }).map_err(failed)
    };
    let system = rustix::fs::fstatfs(file).map_err(|errno| Error::io("statfs", "a backing file", errno))?;
    if !LOCAL.iter().any(|local| u64::try_from(system.f_type).is_ok_and(|kind| kind & 0xffff_ffff == *local)) {
        return Err(failed(Errno::EOPNOTSUPP));
    }
    if set(libc::F_GETFL, 0)? & libc::O_ACCMODE != libc::O_RDONLY {
        return Err(failed(Errno::EBADF));
    }
    // By default it is ignored, unless someone asks for it: nobody does.
    set(SET_SIGNAL, libc::SIGURG)?;
    set(libc::F_SETLEASE, libc::F_WRLCK.into())?;
    // Not left to the closing: a program that is being started may have a copy of the descriptor for a moment.
    set(libc::F_SETLEASE, libc::F_UNLCK.into()).map(drop)
}

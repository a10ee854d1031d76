//! Mounts, by the new mount API: fsopen(2), fsmount(2), open_tree(2), mount_setattr(2), move_mount(2). Linux 5.12.
#![allow(unsafe_code, reason = "mount_setattr(2) has no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use super::mounts::Mounts;
use super::path::Root;
use super::{Error, Result};
use crate::volume::MountFlags;
use crate::volume::mount_flags::option_name;

pub use options::{Attributes, split_options};

use options::refuse;

mod options;

/// What fsconfig(2) takes for one value.
const VALUE_LIMIT: usize = 255;

/// Makes a detached mount of a file system: nobody sees it until [`attach`]. What the file system says of a refused
/// option (it is read from the context) is in the error. With `attributes.read_only` the file system itself is read-only
/// too, as by `mount -o ro`: else one on a write-protected device would be refused.
///
/// If the same device is mounted already, it is the same file system, and most kinds then ignore `options`. Their values are in no
/// error.
///
/// # Errors
/// `Io`: EINVAL for an option, ENODEV for a kind of file system that the kernel lacks, EBUSY where the device is mounted in
/// another mode or held by something else.
pub fn new_filesystem(fstype: &str, source: &Path, options: &MountFlags, attributes: &Attributes) -> Result<OwnedFd> {
    let object = format!("{} as {fstype}", source.display());
    if fstype == "btrfs"
        && let Err(error) = super::fs::forget(source)
    {
        // If that matters, the mount will tell.
        tracing::debug!(%error, "before a mount");
    }
    let context = fsopen(fstype, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|errno| Error::io("mount", &object, errno))?;
    let refused = |doing: &str, errno| {
        let messages = options.redact(&said(&context));
        Error::io("mount", format!("{object}{doing}{messages}"), errno)
    };

    fsconfig_set_string(&context, "source", source).map_err(|errno| refused("", errno))?;
    if attributes.read_only {
        fsconfig_set_flag(&context, "ro").map_err(|errno| refused(" with the option ro", errno))?;
    }
    for option in options.expose() {
        let set = match option.split_once('=') {
            Some((_, value)) if value.len() > VALUE_LIMIT => {
                return Err(refuse(option, &format!("has a value of {} bytes; at most {VALUE_LIMIT} can be", value.len())));
            }
            Some((key, value)) => fsconfig_set_string(&context, key, value),
            None => fsconfig_set_flag(&context, option.as_str()),
        };
        set.map_err(|errno| refused(&format!(" with the option {}", option_name(option)), errno))?;
    }
    fsconfig_create(&context).map_err(|errno| refused("", errno))?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes.flags()).map_err(|errno| refused("", errno))
}

/// What the file system has said so far, in parentheses. Each read(2) of a context gives one message; without any it is
/// ENODATA.
fn said(context: &OwnedFd) -> String {
    let mut messages: Vec<String> = Vec::new();
    let mut buffer = [0; 1024];
    // The kernel keeps 8 at most; the limit is against a kernel that is not what we think.
    while messages.len() < 32 {
        let Ok(length) = rustix::io::read(context, &mut buffer) else { break };
        let line = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        // The first letter is the level: e, w or i.
        let message = line.split_once(' ').filter(|(level, _)| level.len() == 1).map_or(&*line, |(_, message)| message);
        messages.push(message.trim_end().to_owned());
    }
    if messages.is_empty() { String::new() } else { format!(" ({})", messages.join("; ")) }
}

/// Opens a directory (O_PATH) of the file system mounted at `mount`, a path of the driver's own; never through a link, and not of what
/// is mounted inside.
///
/// Each directory on the way is asked of its server before its name for the next is believed (statx(2), AT_STATX_FORCE_SYNC): a client of
/// NFS keeps names for a minute, and one of them may be another directory's by now, its old one being in a trash directory.
///
/// # Errors
/// `Path` where a link or a file is in the way; `Io`: ENOENT, ESTALE.
pub fn open_in(mount: &Path, directory: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let asked = |open: OwnedFd, path: &Path| match rustix::fs::statx(
        &open,
        "",
        AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC,
        StatxFlags::BASIC_STATS,
    ) {
        Ok(_) => Ok(open),
        Err(errno) => Err(Error::io("ask for", path, errno)),
    };
    let top = rustix::fs::open(mount, flags | OFlags::NOFOLLOW, Mode::empty());
    let mut open = asked(top.map_err(|errno| Error::io("open mount", mount, errno))?, mount)?;
    let mut path = mount.to_owned();
    for name in directory {
        path.push(name);
        let next = rustix::fs::openat2(&open, name, flags, Mode::empty(), resolve).map_err(|errno| match errno {
            Errno::LOOP | Errno::XDEV | Errno::NOTDIR => Error::Path {
                path: mount.join(directory),
                reason: "leads over a link, into another file system, or through a file; nothing of it is used".to_owned(),
            },
            errno => Error::io("open directory", &path, errno),
        })?;
        open = asked(next, &path)?;
    }
    Ok(open)
}

/// Makes a detached copy of the mount at `from` (an O_PATH descriptor of a directory, file or device node), with
/// `attributes` set before anyone can see it. Not recursive. What the original mount forbids (`ro`, `noexec`, ...) the copy
/// forbids too: attributes are added, never taken away.
pub fn clone_mount(from: BorrowedFd<'_>, attributes: &Attributes) -> Result<OwnedFd> {
    let object = || format!("/proc/self/fd/{}", from.as_raw_fd());
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = open_tree(from, "", flags).map_err(|errno| Error::io("clone mount", object(), errno))?;
    set_attributes(&mount, attributes).map_err(|error| Error::io("set mount attributes", object(), error))?;
    Ok(mount)
}

fn set_attributes(mount: &OwnedFd, attributes: &Attributes) -> io::Result<()> {
    let set = u64::from(attributes.flags().bits());
    if set == 0 {
        return Ok(());
    }
    // The three kinds of atime are a number in one field, so that setting one needs the field cleared.
    let clear = if attributes.noatime || attributes.strictatime { libc::MOUNT_ATTR__ATIME } else { 0 };
    let attr = libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is a C string, and the kernel reads as many bytes of `attr` as we say, which is its size.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the kernel has mount_setattr(2), asked so that nothing can come of it.
///
/// # Errors
/// `Io`: ENOSYS where it has not; EPERM where a container's seccomp profile keeps it from us.
pub fn is_supported() -> Result<()> {
    let nothing: *const libc::mount_attr = std::ptr::null();
    // SAFETY: the kernel refuses a structure of no bytes (EINVAL) before it looks at anything else.
    let answer = unsafe { libc::syscall(libc::SYS_mount_setattr, -1, c"".as_ptr(), libc::AT_EMPTY_PATH, nothing, 0_usize) };
    match io::Error::last_os_error() {
        error if answer != 0 && matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            Err(Error::io("call", "mount_setattr", error))
        }
        _ => Ok(()),
    }
}

/// Moves a detached mount onto `target` (O_PATH); on top, where something is mounted there already.
///
/// # Errors
/// `Io`: EINVAL where one is a directory and the other is not.
pub fn attach(mount: OwnedFd, target: BorrowedFd<'_>, target_path: &Path) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&mount, "", target, "", flags).map_err(|errno| Error::io("mount onto", target_path, errno))
}

/// Unmounts the mount `id` (of mountinfo), which is on top at `path`. Through the open parent directory, and only if it is this
/// mount that lies there: the path may by now lead over a link, or to another's. Nothing of the mount itself is looked at: its server
/// may be dead.
///
/// # Errors
/// `Path`, `Unexpected` where it is not there any more; `Io`: EBUSY.
pub fn unmount(root: &Root, path: &Path, id: u64) -> Result<()> {
    let (parent, name) = root.parent(path)?;
    let directory = format!("/proc/self/fd/{}", parent.as_raw_fd());
    let unexpected = |reason: &str| Err(Error::Unexpected { object: path.display().to_string(), reason: reason.to_owned() });
    // The open directory is the one that mountinfo speaks of, before and after it was read. What is mounted upon cannot be renamed,
    // so that from then on the name in the open directory leads to that mount.
    let is_directory =
        || rustix::fs::readlink(&directory, Vec::new()).is_ok_and(|link| Some(link.as_bytes()) == path.parent().map(bytes));
    if !is_directory() || Mounts::now()?.at(path)?.last().map(|top| top.id) != Some(id) || !is_directory() {
        return unexpected("another mount is there by now");
    }
    let place = Path::new(&directory).join(name);
    rustix::mount::unmount(place, UnmountFlags::NOFOLLOW).map_err(|errno| Error::io("unmount", path, errno))
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// The id, in mountinfo, of the mount that an open place is on.
pub fn id(place: BorrowedFd<'_>, path: &Path) -> Result<u64> {
    match rustix::fs::statx(place, "", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID) {
        Ok(seen) => Ok(seen.stx_mnt_id),
        Err(errno) => Err(Error::io("stat", path, errno)),
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

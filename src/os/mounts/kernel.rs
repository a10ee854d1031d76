//! statmount(2) and listmount(2), which neither libc nor rustix has.
#![allow(unsafe_code, reason = "statmount(2) and listmount(2) have no safe wrapper")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::io::Errno;

use super::super::mountinfo::{self, Mount};

/// The same on all architectures but alpha.
const SYS_STATMOUNT: libc::c_long = 457;
const SYS_LISTMOUNT: libc::c_long = 458;

/// For [`list`]: all mounts that can be reached from the root directory, that of the root itself among them.
pub(super) const ALL: u64 = u64::MAX;

// linux/mount.h
const SB_BASIC: u64 = 0x1;
const MNT_BASIC: u64 = 0x2;
const PROPAGATE_FROM: u64 = 0x4;
const MNT_ROOT: u64 = 0x8;
const MNT_POINT: u64 = 0x10;
const FS_TYPE: u64 = 0x20;
const MNT_OPTS: u64 = 0x80;
const FS_SUBTYPE: u64 = 0x100;
pub(super) const SB_SOURCE: u64 = 0x200;
/// All that is in a line of mountinfo.
const LINE: u64 = SB_BASIC | MNT_BASIC | PROPAGATE_FROM | MNT_ROOT | MNT_POINT | FS_TYPE | MNT_OPTS | FS_SUBTYPE | SB_SOURCE;

/// struct mnt_id_req, as it was in Linux 6.8.
#[repr(C)]
struct Request {
    size: u32,
    spare: u32,
    mount: u64,
    param: u64,
}

const REQUEST_SIZE: u32 = 24;
const _: () = assert!(size_of::<Request>() == REQUEST_SIZE as usize);

/// The ids of all mounts below this one (itself not among them), in whatever depth and also where another mount hides them. All of one moment.
pub(super) fn list(below: u64) -> Result<Vec<u64>, Errno> {
    let request = Request { size: REQUEST_SIZE, spare: 0, mount: below, param: 0 };
    let mut ids = vec![0_u64; 1024];
    loop {
        // SAFETY: the kernel reads `size` bytes of `request`, and writes at most as many ids as we say that there is room for.
        let count = unsafe { libc::syscall(SYS_LISTMOUNT, &raw const request, ids.as_mut_ptr(), ids.len(), 0 as libc::c_uint) };
        let count = usize::try_from(count).map_err(|_| last_errno())?;
        if count < ids.len() {
            ids.truncate(count);
            return Ok(ids);
        }
        ids.resize(ids.len() * 4, 0);
    }
}

/// What statmount(2) shows of one mount.
pub(super) struct Seen {
    /// Never given to another mount, until the next boot.
    pub id: u64,
    pub parent: u64,
    /// What could be said ([`SB_SOURCE`] and its like); a text that is empty is not said.
    pub mask: u64,
    /// No mount point where it cannot be reached from the root directory.
    pub reachable: bool,
    /// As mountinfo has it.
    pub mount: Mount,
}

pub(super) fn stat(id: u64) -> Result<Seen, Errno> {
    const MOST: usize = 1 << 20;
    let request = Request { size: REQUEST_SIZE, spare: 0, mount: id, param: LINE };
    let mut buffer = vec![0_u8; 4096];
    loop {
        // SAFETY: the kernel reads `size` bytes of `request`, and writes at most as many bytes as we say that there is room for.
        let answer =
            unsafe { libc::syscall(SYS_STATMOUNT, &raw const request, buffer.as_mut_ptr(), buffer.len(), 0 as libc::c_uint) };
        match answer {
            0 => return Statmount(&buffer).seen().ok_or(Errno::BADMSG),
            _ => match last_errno() {
                Errno::OVERFLOW if buffer.len() < MOST => buffer.resize(buffer.len() * 4, 0),
                errno => return Err(errno),
            },
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// struct statmount.
struct Statmount<'a>(&'a [u8]);

impl Statmount<'_> {
    /// Where the texts begin.
    const TEXTS: usize = 512;

    fn u32(&self, offset: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.0.get(offset..)?.first_chunk().copied()?))
    }

    fn u64(&self, offset: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(self.0.get(offset..)?.first_chunk().copied()?))
    }

    /// The text whose place is at `offset`; none where the kernel has none.
    fn text(&self, flag: u64, offset: usize) -> Option<&[u8]> {
        if self.u64(8)? & flag == 0 {
            return None;
        }
        let begin = Self::TEXTS.checked_add(usize::try_from(self.u32(offset)?).ok()?)?;
        self.0.get(begin..)?.split(|byte| *byte == 0).next()
    }

    fn path(&self, flag: u64, offset: usize) -> Option<PathBuf> {
        self.text(flag, offset).map(|text| OsStr::from_bytes(text).into())
    }

    /// `None` where the answer is not what linux/mount.h says.
    fn seen(&self) -> Option<Seen> {
        let mask = self.u64(8)?;
        if mask & (SB_BASIC | MNT_BASIC | FS_TYPE) != SB_BASIC | MNT_BASIC | FS_TYPE {
            return None;
        }
        let name = |flag, offset| self.text(flag, offset).map(|text| String::from_utf8_lossy(text).into_owned());
        let fstype = match (name(FS_TYPE, 36)?, name(FS_SUBTYPE, 120)) {
            (fstype, Some(subtype)) => format!("{fstype}.{subtype}"),
            (fstype, None) => fstype,
        };
        let point = self.path(MNT_POINT, 108);
        let mount = Mount {
            id: self.u32(56)?.into(),
            parent: self.u32(60)?.into(),
            device: (self.u32(16)?, self.u32(20)?),
            root: self.path(MNT_ROOT, 104)?,
            options: attributes(self.u64(64)?),
            propagation: propagation(self.u64(72)?, self.u64(80)?, self.u64(88)?, self.u64(96)?),
            fstype,
            source: self.path(SB_SOURCE, 124).unwrap_or_default(),
            super_options: super_options(self.u32(32)?, self.text(MNT_OPTS, 4).unwrap_or_default()),
            node: OnceLock::new(),
            mount_point: point.clone().unwrap_or_default(),
        };
        Some(Seen { id: self.u64(40)?, parent: self.u64(48)?, mask, reachable: point.is_some(), mount })
    }
}

/// Options of a mount, in the words and the order of mountinfo.
fn attributes(attr: u64) -> Vec<String> {
    const ATIME: u64 = libc::MOUNT_ATTR__ATIME;
    const NOSYMFOLLOW: u64 = libc::MOUNT_ATTR_NOSYMFOLLOW;
    let has = |bit: u64, name: &'static str| (attr & bit != 0).then_some(name);
    let words = [
        Some(if attr & libc::MOUNT_ATTR_RDONLY == 0 { "rw" } else { "ro" }),
        has(libc::MOUNT_ATTR_NOSUID, "nosuid"),
        has(libc::MOUNT_ATTR_NODEV, "nodev"),
        has(libc::MOUNT_ATTR_NOEXEC, "noexec"),
        (attr & ATIME == libc::MOUNT_ATTR_NOATIME).then_some("noatime"),
        has(libc::MOUNT_ATTR_NODIRATIME, "nodiratime"),
        (attr & ATIME == libc::MOUNT_ATTR_RELATIME).then_some("relatime"),
        has(NOSYMFOLLOW, "nosymfollow"),
        has(libc::MOUNT_ATTR_IDMAP, "idmapped"),
    ];
    words.into_iter().flatten().map(str::to_owned).collect()
}

fn propagation(flags: u64, group: u64, master: u64, from: u64) -> Vec<String> {
    let has = |flag: libc::c_ulong| flags & flag != 0;
    let tags = [
        has(libc::MS_SHARED).then(|| format!("shared:{group}")),
        has(libc::MS_SLAVE).then(|| format!("master:{master}")),
        (has(libc::MS_SLAVE) && from != 0 && from != master).then(|| format!("propagate_from:{from}")),
        has(libc::MS_UNBINDABLE).then(|| "unbindable".to_owned()),
    ];
    tags.into_iter().flatten().collect()
}

/// Options of a file system: flags that all have, then its own.
fn super_options(flags: u32, own: &[u8]) -> Vec<String> {
    let flags = libc::c_ulong::from(flags);
    let has = |flag: libc::c_ulong, name: &'static str| (flags & flag != 0).then_some(name);
    let words = [
        Some(if flags & libc::MS_RDONLY == 0 { "rw" } else { "ro" }),
        has(libc::MS_SYNCHRONOUS, "sync"),
        has(libc::MS_DIRSYNC, "dirsync"),
        has(libc::MS_LAZYTIME, "lazytime"),
    ];
    words.into_iter().flatten().map(str::to_owned).chain(mountinfo::options(own)).collect()
}

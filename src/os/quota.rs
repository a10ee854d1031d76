//! Project quotas of xfs and ext4: a directory and all that is made in it is one project, which may have so many bytes.
//!
//! ioctl_xfs_fsgetxattr(2), quotactl_fd(2) with Q_XSETQLIM, Q_XGETQUOTA, Q_XGETNEXTQUOTA and Q_XGETQSTATV (linux/dqblk_xfs.h), which the
//! kernel has for both. On ext4 a limit does not stop root (CAP_SYS_RESOURCE), on xfs it does.
#![allow(unsafe_code, reason = "the ioctls and quotactl_fd(2) have no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use super::{Error, Result};

/// linux/fs.h, struct fsxattr.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_field_names, reason = "the kernel's names")]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// FS_XFLAG_PROJINHERIT: what is made in a directory has its project.
const INHERIT: u32 = 0x200;
/// FS_XFLAG_RTINHERIT: what is made in a directory has its data on the realtime device.
const REALTIME: u32 = 0x100;

nix::ioctl_read!(get_attributes, b'X', 31, FsXattr);
nix::ioctl_write_ptr!(set_attributes, b'X', 32, FsXattr);

/// linux/dqblk_xfs.h, struct fs_disk_quota. Blocks are of 512 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct DiskQuota {
    version: i8,
    flags: i8,
    fieldmask: u16,
    id: u32,
    hard: u64,
    soft: u64,
    inodes_hard: u64,
    inodes_soft: u64,
    blocks: u64,
    inodes: u64,
    timers: [i32; 2],
    warnings: [u16; 2],
    timers_high: [i8; 4],
    realtime: [u64; 3],
    realtime_timer: i32,
    realtime_warnings: u16,
    padding: i16,
    more_padding: [u8; 8],
}

const BLOCK: u64 = 512;
const VERSION: i8 = 1;
/// FS_PROJ_QUOTA.
const PROJECT_FLAG: i8 = 2;
/// FS_DQ_BSOFT | FS_DQ_BHARD.
const BOTH_LIMITS: u16 = 1 << 2 | 1 << 3;
const Q_XGETQUOTA: libc::c_int = (b'X' as libc::c_int) << 8 | 3;
const Q_XSETQLIM: libc::c_int = (b'X' as libc::c_int) << 8 | 4;
const Q_XGETNEXTQUOTA: libc::c_int = (b'X' as libc::c_int) << 8 | 9;
const Q_XGETQSTATV: libc::c_int = (b'X' as libc::c_int) << 8 | 8;
const PRJQUOTA: libc::c_int = 2;

/// linux/dqblk_xfs.h, struct fs_quota_statv, as far as it is of interest here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct QuotaState {
    version: i8,
    padding: u8,
    flags: u16,
    rest: [u64; 19],
}

/// FS_QSTATV_VERSION1.
const STATE_VERSION: i8 = 1;
/// FS_QUOTA_PDQ_ACCT, FS_QUOTA_PDQ_ENFD.
const ACCOUNTED: u16 = 1 << 4;
const ENFORCED: u16 = 1 << 5;

/// What a project has and may have, in bytes; a limit of 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub limit: u64,
    pub used: u64,
    /// Files and directories of it.
    pub inodes: u64,
}

impl Quota {
    /// Whether nothing is of this project and nobody has limited it.
    pub fn is_unused(self) -> bool {
        self.limit == 0 && self.used == 0 && self.inodes == 0
    }
}

impl From<DiskQuota> for Quota {
    fn from(quota: DiskQuota) -> Quota {
        Quota { limit: quota.hard * BLOCK, used: quota.blocks * BLOCK, inodes: quota.inodes }
    }
}

/// What a file system does with projects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projects {
    /// Nothing: it has none, or is not mounted with `prjquota`.
    Off,
    /// It counts what they use, and limits nobody.
    Counted,
    Limited,
}

/// What the file system of `on` does with projects.
pub fn projects(on: impl AsFd) -> Result<Projects> {
    let mut state = QuotaState { version: STATE_VERSION, ..QuotaState::default() };
    match control(on.as_fd(), Q_XGETQSTATV, 0, (&raw mut state).cast()) {
        Ok(()) if state.flags & ENFORCED != 0 => Ok(Projects::Limited),
        Ok(()) if state.flags & ACCOUNTED != 0 => Ok(Projects::Counted),
        Ok(()) => Ok(Projects::Off),
        // A kernel without quotas, a file system without them, or one without a device.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOSYS | libc::EINVAL | libc::ESRCH | libc::ENODEV | libc::ENOTBLK | libc::EOPNOTSUPP)
            ) =>
        {
            Ok(Projects::Off)
        }
        Err(error) => Err(failed("read the state of the quotas of", on.as_fd(), error)),
    }
}

/// The project of a file or directory, and whether what is made in it has the same; `None` where its file system has no projects.
pub fn project(of: impl AsFd) -> Result<Option<(u32, bool)>> {
    Ok(attributes(of.as_fd())?.map(|found| (found.projid, found.xflags & INHERIT != 0)))
}

/// Whether files that are made in an xfs directory have their data on the realtime device.
pub fn makes_realtime_files(directory: impl AsFd) -> Result<bool> {
    Ok(attributes(directory.as_fd())?.is_some_and(|found| found.xflags & REALTIME != 0))
}

fn attributes(fd: BorrowedFd<'_>) -> Result<Option<FsXattr>> {
    let mut attributes = FsXattr::default();
    // SAFETY: the descriptor is open, and the struct is the kernel's.
    match unsafe { get_attributes(fd.as_raw_fd(), &raw mut attributes) } {
        Ok(_) => Ok(Some(attributes)),
        Err(nix::errno::Errno::ENOTTY | nix::errno::Errno::EOPNOTSUPP) => Ok(None),
        Err(errno) => Err(failed("read the attributes of", fd, errno)),
    }
}

/// Makes an empty directory, and all that will be in it, part of a project.
pub fn set_project(directory: impl AsFd, project: u32) -> Result<()> {
    let fd = directory.as_fd();
    let mut attributes = FsXattr::default();
    // SAFETY: the descriptor is open, and the struct is the kernel's.
    unsafe { get_attributes(fd.as_raw_fd(), &raw mut attributes) }.map_err(|errno| failed("read the project of", fd, errno))?;
    attributes.projid = project;
    attributes.xflags |= INHERIT;
    // SAFETY: as above; the kernel only reads it.
    unsafe { set_attributes(fd.as_raw_fd(), &raw const attributes) }.map_err(|errno| failed("set the project of", fd, errno))?;
    Ok(())
}

/// Limits a project on the file system of `on`, at once: more than that is ENOSPC for it. 0 is no limit.
///
/// # Errors
/// `Io`: ENOSYS, ESRCH or EINVAL where the file system is not mounted with `prjquota`.
pub fn limit(on: impl AsFd, project: u32, bytes: u64) -> Result<()> {
    let blocks = bytes.div_ceil(BLOCK);
    let mut quota = DiskQuota {
        version: VERSION,
        flags: PROJECT_FLAG,
        fieldmask: BOTH_LIMITS,
        id: project,
        hard: blocks,
        soft: blocks,
        ..DiskQuota::default()
    };
    control(on.as_fd(), Q_XSETQLIM, project, (&raw mut quota).cast())
        .map_err(|error| failed("limit a project of", on.as_fd(), error))
}

/// What a project has; nothing where nobody has heard of it.
pub fn get(on: impl AsFd, project: u32) -> Result<Quota> {
    let mut quota = DiskQuota::default();
    match control(on.as_fd(), Q_XGETQUOTA, project, (&raw mut quota).cast()) {
        Ok(()) => Ok(quota.into()),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Quota { limit: 0, used: 0, inodes: 0 }),
        Err(error) => Err(failed("read a project's quota of", on.as_fd(), error)),
    }
}

/// The projects from `first` on that have or may have something, in order.
pub fn all(on: impl AsFd, first: u32) -> Result<Vec<(u32, Quota)>> {
    let (mut found, mut next) = (Vec::new(), Some(first));
    while let Some(project) = next {
        let mut quota = DiskQuota::default();
        match control(on.as_fd(), Q_XGETNEXTQUOTA, project, (&raw mut quota).cast()) {
            Ok(()) => found.push((quota.id, quota.into())),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
            Err(error) => return Err(failed("list the projects of", on.as_fd(), error)),
        }
        next = quota.id.checked_add(1);
    }
    Ok(found)
}

/// `data` is the struct of the command.
fn control(on: BorrowedFd<'_>, command: libc::c_int, project: u32, data: *mut libc::c_void) -> io::Result<()> {
    let command = command << 8 | PRJQUOTA;
    // SAFETY: the struct behind `data` is as long as the kernel's, and lives until the call is over.
    let answer = unsafe { libc::syscall(libc::SYS_quotactl_fd, on.as_raw_fd(), command, project, data) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn failed(action: &'static str, fd: BorrowedFd<'_>, error: impl Into<io::Error>) -> Error {
    let link = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    Error::io(action, std::fs::read_link(&link).unwrap_or(link), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_are_the_kernels() {
        assert_eq!((size_of::<FsXattr>(), size_of::<DiskQuota>(), size_of::<QuotaState>()), (28, 112, 160));
    }

    #[test]
    fn file_system_without_projects_says_so() {
        let proc = std::fs::File::open("/proc").expect("open");
        assert_eq!(projects(&proc).expect("answered"), Projects::Off);
        assert_eq!(project(&proc).expect("answered"), None);
    }
}

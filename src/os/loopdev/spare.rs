//! Loop devices that the kernel has made for us stay when they are unbound. All but a few are removed again.
//!
//! Which ones we have made is written on their nodes, as an extended attribute: it is there as long as the device, for a later
//! process of the driver, too. No other's device is removed, nor one that is bound or open: that the kernel refuses (LOOP_CTL_REMOVE).
#![allow(unsafe_code, reason = "LOOP_CTL_REMOVE has no safe wrapper")]

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use loopdev::LoopControl;
use nix::errno::Errno;
use rustix::fs::{AtFlags, CWD, StatxFlags, Timespec, XattrFlags};
use rustix::time::{ClockId, clock_gettime};

use super::super::{Error, Result};
use super::kernel::{self, CONTROL};
use super::status::{SYS_BLOCK, is_bound};

/// How many unused ones stay: those of the lowest numbers, which the kernel offers first, so that anyone who was just offered one finds it.
pub(super) const KEPT: usize = 8;
/// How many are removed in one go. One takes the kernel about 50 ms.
const AT_ONCE: usize = 16;
/// Of the device node.
const MADE_BY_US: &str = "trusted.longshore.made";

/// Whether there may be one to remove.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// Something was detached.
pub(super) fn note_detached() {
    CHANGED.store(true, Ordering::Relaxed);
}

/// The kernel's clock for what file systems note: taken before a device is asked for, for [`mark_if_new`].
pub(super) fn now() -> Timespec {
    clock_gettime(ClockId::RealtimeCoarse)
}

/// Notes on the node of a device that was offered as free that it is ours to remove, if it was made since `before`: then it was made
/// because we asked. Where that cannot be seen or noted, it stays.
pub(super) fn mark_if_new(path: &Path, before: Timespec) {
    let Ok(node) = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME) else { return };
    let made = (node.stx_btime.tv_sec, i64::from(node.stx_btime.tv_nsec));
    if node.stx_mask & StatxFlags::BTIME.bits() == 0 || made < (before.tv_sec, before.tv_nsec) {
        return;
    }
    if let Err(error) = rustix::fs::lsetxattr(path, MADE_BY_US, b"1", XattrFlags::empty()) {
        tracing::debug!(device = %path.display(), %error, "a loop device is not removed again");
    }
}

pub(super) fn is_ours(name: &OsStr) -> bool {
    rustix::fs::lgetxattr(Path::new("/dev").join(name), MADE_BY_US, &mut [0; 8][..]).is_ok()
}

/// Our devices that are unbound, by number.
pub(super) fn unused() -> Result<Vec<u32>> {
    let failed = |error| Error::io("list", SYS_BLOCK, error);
    let mut unused = Vec::new();
    for entry in std::fs::read_dir(SYS_BLOCK).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse::<u32>().ok());
        if let Some(number) = number.filter(|_| is_ours(&name))
            && !is_bound(&name)?
        {
            unused.push(number);
        }
    }
    unused.sort_unstable();
    Ok(unused)
}

/// Removes some of our devices that nobody uses, but for a few. Whether there are more. Looks at all loop devices once something was
/// detached, and takes a while: not for the path of a call.
///
/// # Errors
/// `Io` where the kernel cannot be asked.
pub fn remove_spare() -> Result<bool> {
    if !CHANGED.swap(false, Ordering::Relaxed) {
        return Ok(false);
    }
    let unused = unused()?;
    let spare = unused.get(KEPT..).unwrap_or_default();
    if spare.is_empty() {
        return Ok(false);
    }
    let control = LoopControl::open().map_err(|error| Error::io("open", CONTROL, error))?;
    let mut removed = 0;
    for number in spare.iter().rev().take(AT_ONCE) {
        // SAFETY: the descriptor is open, no memory is passed.
        match unsafe { kernel::remove(control.as_raw_fd(), libc::c_int::try_from(*number).unwrap_or(-1)) } {
            Ok(_) => removed += 1,
            // In use since, be it by udev for a moment; or removed.
            Err(Errno::EBUSY | Errno::ENODEV) => {}
            Err(errno) => return Err(Error::io("remove loop device", format!("/dev/loop{number}"), errno)),
        }
    }
    note_detached();
    Ok(removed > 0 && spare.len() > removed)
}

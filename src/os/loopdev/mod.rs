//! Loop devices (loop(4)), found again by backing file, never by guessed name.
#![allow(unsafe_code, reason = "LOOP_CONFIGURE, LOOP_GET_STATUS64 and their like have no safe wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use loopdev::{LoopControl, LoopDevice};
use nix::errno::Errno;

use super::block::Device;
use super::{Error, Result, holders, udev};

pub use spare::remove_spare;
pub use status::{Loop, Silent, backing_of, file_of, find, find_by_name, in_use, list, paths_of, shows, status, status_in_time};
pub use unbound::is_unbound;

use kernel::CONTROL;
use status::{READ_STATUS, backing, described, info, is_bound};

mod kernel;
mod spare;
mod status;
mod unbound;

/// What every device presents, whatever its backing file lies on. A file system made on a device with blocks of 4096 bytes cannot
/// be mounted on one of 512 and the other way round, so this must never depend on where the file is or on whether direct I/O works.
const BLOCK_SIZE: u32 = 512;
/// How long the node of a new device may take to appear.
const NODE_DEADLINE: Duration = Duration::from_secs(10);
/// How long others who look at the device for a moment (udev's blkid) may hold up its unbinding.
const DETACH_DEADLINE: Duration = Duration::from_secs(3);
/// How long others may have it exclusively for a moment: another driver that looks whether it is claimed, a mkfs that asks all devices.
const CLAIM_DEADLINE: Duration = Duration::from_secs(1);
/// How often others may be faster.
const ATTEMPTS: u32 = 256;

/// Binds a free loop device to `backing` in one call (LOOP_CONFIGURE), with direct I/O where the file system allows it for
/// blocks of 512 bytes, which every device has. `label` (at most 63 bytes kept) is what `losetup -l` shows. Waits for the
/// device node. Another process taking the same free number is no error: the next one is tried.
///
/// `backing` may be open in any mode: it is opened anew, so that neither its mode nor its flags (O_APPEND) get into the device.
pub fn attach(backing: &File, label: &str, read_only: bool) -> Result<Loop> {
    let (backing, identity) = reopen(backing, label, read_only)?;
    let control = LoopControl::open().map_err(|error| Error::io("open", CONTROL, error))?;
    let mut last = Errno::EBUSY;
    for attempt in 1..=ATTEMPTS {
        let Some(device) = open_free(&control, attempt)? else { continue };
        match configure(&device, &backing, label, read_only) {
            Ok(()) => return check_attached(&device, identity, label, read_only),
            // Someone else was faster, or has just removed the device.
            Err(errno @ (Errno::EBUSY | Errno::ENXIO | Errno::ENODEV)) => last = errno,
            Err(errno) => return Err(Error::io("attach loop device to", label, errno)),
        }
    }
    Err(Error::io("find a free loop device for", label, last))
}

/// The backing file for the device's own use, and its identity.
fn reopen(backing: &File, label: &str, read_only: bool) -> Result<(File, (u64, u64))> {
    let fail = |error| Error::io("open backing file", label, error);
    let file =
        File::options().read(true).write(!read_only).open(format!("/proc/self/fd/{}", backing.as_raw_fd())).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    if !metadata.is_file() {
        return Err(Error::Unexpected { object: label.to_owned(), reason: "the backing file is not a regular file".to_owned() });
    }
    Ok((file, (metadata.dev(), metadata.ino())))
}

/// A device that was free a moment ago. `None`: it has gone since, try again.
fn open_free(control: &LoopControl, attempt: u32) -> Result<Option<LoopDevice>> {
    // A device that has no backing file but is held by someone is offered as free again and again; after a few refusals a
    // new one is made now and then.
    let before = spare::now();
    if attempt.is_multiple_of(16) {
        // SAFETY: the descriptor is open, -1 asks for any new number, no memory is passed.
        unsafe { kernel::add(control.as_raw_fd(), -1) }.map_err(|errno| Error::io("add loop device", CONTROL, errno))?;
    }
    match control.next_free() {
        Ok(device) => {
            if let Some(path) = device.path() {
                spare::mark_if_new(&path, before);
            }
            Ok(Some(device))
        }
        // The device was made, its node was not yet, unless the device is gone again.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            // SAFETY: the descriptor is open, no memory is passed.
            let number = unsafe { kernel::get_free(control.as_raw_fd()) }
                .map_err(|errno| Error::io("find free loop device", CONTROL, errno))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            udev::wait_for_node(&path, NODE_DEADLINE)?;
            spare::mark_if_new(&path, before);
            Ok(None)
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV | libc::EBUSY)) => Ok(None),
        Err(error) => Err(Error::io("find free loop device", CONTROL, error)),
    }
}

fn configure(device: &LoopDevice, backing: &File, label: &str, read_only: bool) -> Result<(), Errno> {
    let mut info = kernel::Info::EMPTY;
    // The last byte stays NUL.
    for (to, from) in info.file_name.iter_mut().take(63).zip(label.bytes()) {
        *to = from;
    }
    let fd = u32::try_from(backing.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    let flags = if read_only { kernel::READ_ONLY } else { 0 };
    // Where direct I/O cannot be, most kernels quietly do without; some file systems may have it refused.
    let mut answer = Err(Errno::EINVAL);
    for direct_io in [kernel::DIRECT_IO, 0] {
        info.flags = flags | direct_io;
        let config = kernel::Config { fd, block_size: BLOCK_SIZE, info, reserved: [0; 8] };
        // SAFETY: both descriptors are open, and `config` is laid out as the kernel's struct loop_config.
        answer = unsafe { kernel::configure(device.as_raw_fd(), &raw const config) }.map(drop);
        if answer != Err(Errno::EINVAL) {
            break;
        }
    }
    answer
}

/// What the kernel made of it; undone where that is not what was asked for.
fn check_attached(device: &LoopDevice, identity: (u64, u64), label: &str, read_only: bool) -> Result<Loop> {
    let path = device.path().ok_or_else(|| Error::io("read the name of the loop device for", label, io::ErrorKind::NotFound))?;
    let fd = device.as_raw_fd();
    let seen = || {
        if !read_only {
            // The kernel keeps write protection (BLKROSET) with the number, also when an earlier user's file has gone.
            Device::open(&path, false)?.set_read_only(false)?;
        }
        info(fd).map_err(|errno| Error::io("read status of", &path, errno)).and_then(|info| described(&path, &info))
    };
    match seen() {
        Ok(found) if found.backing == identity && found.read_only == read_only => Ok(found),
        found => {
            let reason = format!("attached to {label}, but shows {found:?}; detached again");
            device.detach().map_err(|error| Error::io("detach", &path, error))?;
            Err(Error::Unexpected { object: path.display().to_string(), reason })
        }
    }
}

/// Unbinds, if it is still bound to `backing`; seen to be unbound on return. EBUSY (still in use, so that the kernel would
/// only unbind later) is an error that names who uses it, and the device is then as it was before.
pub fn detach(path: &Path, backing: (u64, u64)) -> Result<()> {
    let Some(device) = open_exclusively(path, backing)? else { return Ok(()) };
    match info(device.as_raw_fd()) {
        Ok(info) if self::backing(&info) == backing => {}
        Ok(_) | Err(Errno::ENXIO) => return Ok(()),
        Err(errno) => return Err(Error::io(READ_STATUS, path, errno)),
    }
    // SAFETY: the descriptor is open, no memory is passed.
    match unsafe { kernel::clear(device.as_raw_fd()) } {
        Ok(_) => {}
        Err(Errno::ENXIO) => return Ok(()),
        Err(errno) => return Err(Error::io("detach", path, errno)),
    }
    // The kernel unbinds when the last who has it open closes it; from Linux 6.10 on that is true of ourselves.
    drop(device);
    spare::note_detached();
    let until = Instant::now().checked_add(DETACH_DEADLINE);
    if udev::wait_until(until, || is_unbound_from(path, backing))? {
        return Ok(());
    }
    let busy = busy(path);
    keep_bound(path, backing)?;
    if is_unbound_from(path, backing)? { Ok(()) } else { Err(busy) }
}

/// Opens the device for nobody else: O_EXCL is refused where someone has it exclusively (a mounted file system, device-mapper), and keeps
/// such users off from then on. `None` where it is not, or no longer, bound to `backing`: another's device is not even opened so, since
/// that would fail anyone who mounts or detaches it at that moment. For the same reason a refusal is believed only after a while.
fn open_exclusively(path: &Path, backing: (u64, u64)) -> Result<Option<File>> {
    let mut exclusive = None;
    let until = Instant::now().checked_add(CLAIM_DEADLINE);
    let done = udev::wait_until(until, || {
        if is_unbound_from(path, backing)? {
            return Ok(true);
        }
        // Read-only, since udev looks at a device whenever a writer has closed it.
        match File::options().read(true).custom_flags(libc::O_EXCL).open(path) {
            Ok(device) => exclusive = Some(device),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {}
                Some(libc::EBUSY) => return Ok(false),
                _ => return Err(Error::io("detach", path, error)),
            },
        }
        Ok(true)
    })?;
    if done { Ok(exclusive) } else { Err(busy(path)) }
}

fn busy(path: &Path) -> Error {
    let holders = Device::open(path, false).map(|device| holders::in_words(device.number(), path)).unwrap_or_default();
    Error::io("detach", format!("{} ({holders})", path.display()), Errno::EBUSY)
}

/// Whether `backing` is not what the device is bound to, and no unbinding is under way either: then the device cannot be
/// opened any more (ENXIO), but sysfs still shows the binding.
fn is_unbound_from(path: &Path, backing: (u64, u64)) -> Result<bool> {
    let shown = path.file_name().map(is_bound).transpose()?.unwrap_or_default();
    match status(path) {
        Ok(Some(found)) => Ok(found.backing != backing),
        Ok(None) => Ok(!shown),
        Err(error) if error.is_missing() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Takes back a LOOP_CLR_FD that has not come to effect: else the device would vanish under anyone who was answered that it could
/// not be detached, as soon as its present user is done.
fn keep_bound(path: &Path, backing: (u64, u64)) -> Result<()> {
    let device = match File::open(path) {
        Ok(device) => device,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENXIO | libc::ENODEV)) => return Ok(()),
        Err(error) => return Err(Error::io("open", path, error)),
    };
    let fail = |errno| Error::io("keep attached", path, errno);
    let mut info = match info(device.as_raw_fd()) {
        Ok(info) if self::backing(&info) == backing => info,
        Ok(_) | Err(Errno::ENXIO) => return Ok(()),
        Err(errno) => return Err(fail(errno)),
    };
    info.flags &= !kernel::AUTOCLEAR;
    // SAFETY: `info` is laid out as the kernel's struct loop_info64, which it reads.
    unsafe { kernel::set_status(device.as_raw_fd(), &raw const info) }.map(drop).map_err(fail)
}

/// Takes over the backing file's new size (LOOP_SET_CAPACITY); answers the device's size in bytes.
pub fn refresh(path: &Path) -> Result<u64> {
    // Read-only: kernels can be set to refuse writers while a file system is mounted.
    let device = Device::open(path, false)?;
    // SAFETY: the descriptor is open, no memory is passed.
    unsafe { kernel::set_capacity(device.file().as_raw_fd()) }
        .map_err(|errno| Error::io("take over the new size of", path, errno))?;
    device.size()
}

#[cfg(test)]
mod tests;

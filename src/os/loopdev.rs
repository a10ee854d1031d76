//! Loop devices (loop(4)), found again by backing file, never by guessed name.
#![allow(unsafe_code, reason = "LOOP_CONFIGURE, LOOP_GET_STATUS64 and their like have no safe wrapper")]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use loopdev::{LoopControl, LoopDevice};
use nix::errno::Errno;

use super::block::Device;
use super::{Error, Result, holders, lock, udev};

const CONTROL: &str = "/dev/loop-control";
const SYS_BLOCK: &str = "/sys/block";
/// What every device presents, whatever its backing file lies on. A file system made on a device with blocks of 4096 bytes cannot
/// be mounted on one of 512 and the other way round, so this must never depend on where the file is or on whether direct I/O works.
const BLOCK_SIZE: u32 = 512;
/// How long the node of a new device may take to appear.
const NODE_DEADLINE: Duration = Duration::from_secs(10);
/// How long others who look at the device for a moment (udev's blkid) may hold up its unbinding.
const DETACH_DEADLINE: Duration = Duration::from_secs(3);
/// How long others may have it exclusively for a moment: another driver that looks whether it is claimed, a mkfs that asks all devices.
const CLAIM_DEADLINE: Duration = Duration::from_secs(1);
/// How long a device may take to say what it is bound to. The kernel asks the backing file's file system then (loop_get_status calls
/// vfs_getattr), which may hang with a disk or server.
const STATUS_DEADLINE: Duration = Duration::from_secs(2);
const READ_STATUS: &str = "read status of";
/// How often others may be faster.
const ATTEMPTS: u32 = 256;

/// linux/loop.h
mod kernel {
    pub(super) const READ_ONLY: u32 = 1;
    pub(super) const AUTOCLEAR: u32 = 4;
    pub(super) const DIRECT_IO: u32 = 16;

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub(super) struct Info {
        pub device: u64,
        pub inode: u64,
        pub rdevice: u64,
        pub offset: u64,
        pub size_limit: u64,
        pub number: u32,
        pub encrypt_type: u32,
        pub encrypt_key_size: u32,
        pub flags: u32,
        pub file_name: [u8; 64],
        pub crypt_name: [u8; 64],
        pub encrypt_key: [u8; 32],
        pub init: [u64; 2],
    }

    impl Info {
        pub(super) const EMPTY: Info = Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: 0,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        };
    }

    #[repr(C)]
    pub(super) struct Config {
        pub fd: u32,
        pub block_size: u32,
        pub info: Info,
        pub reserved: [u64; 8],
    }

    const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

    nix::ioctl_none_bad!(clear, 0x4C01);
    nix::ioctl_write_ptr_bad!(set_status, 0x4C04, Info);
    nix::ioctl_read_bad!(get_status, 0x4C05, Info);
    nix::ioctl_none_bad!(set_capacity, 0x4C07);
    nix::ioctl_write_ptr_bad!(configure, 0x4C0A, Config);
    nix::ioctl_write_int_bad!(add, 0x4C80);
    nix::ioctl_none_bad!(get_free, 0x4C82);
}

/// A loop device that has a backing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// `/dev/loopN`.
    pub path: PathBuf,
    pub number: (u32, u32),
    /// Device and inode of the backing file (LOOP_GET_STATUS64): its identity, whatever it is called now.
    pub backing: (u64, u64),
    /// The first 63 bytes of what its maker called it: ours say the volume, losetup says the file.
    pub label: String,
    pub read_only: bool,
    pub direct_io: bool,
}

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
    if attempt.is_multiple_of(16) {
        // SAFETY: the descriptor is open, -1 asks for any new number, no memory is passed.
        unsafe { kernel::add(control.as_raw_fd(), -1) }.map_err(|errno| Error::io("add loop device", CONTROL, errno))?;
    }
    match control.next_free() {
        Ok(device) => Ok(Some(device)),
        // The device was made, its node was not yet, unless the device is gone again.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            // SAFETY: the descriptor is open, no memory is passed.
            let number = unsafe { kernel::get_free(control.as_raw_fd()) }
                .map_err(|errno| Error::io("find free loop device", CONTROL, errno))?;
            udev::wait_for_node(Path::new(&format!("/dev/loop{number}")), NODE_DEADLINE)?;
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

/// Looks at one device: `None` where it has no backing file.
///
/// # Errors
/// `Io`, with ENOENT where there is no such device; `Unexpected` where it is no block device.
pub fn status(path: &Path) -> Result<Option<Loop>> {
    let device = match Device::open(path, false) {
        // Being unbound, or without a device behind the node.
        Err(error) if matches!(error.errno(), Some(libc::ENXIO | libc::ENODEV)) => return Ok(None),
        device => device?,
    };
    match info(device.file().as_raw_fd()) {
        Ok(info) => described(path, &info).map(Some),
        Err(Errno::ENXIO) => Ok(None),
        Err(errno) => Err(Error::io(READ_STATUS, path, errno)),
    }
}

/// Device and inode of what backs the open device: `None` where it is no loop device, or has no backing file.
pub fn backing_of(device: &Device) -> Result<Option<(u64, u64)>> {
    match info(device.file().as_raw_fd()) {
        Ok(info) => Ok(Some(backing(&info))),
        Err(Errno::ENXIO | Errno::ENOTTY | Errno::EINVAL) => Ok(None),
        Err(errno) => Err(Error::io(READ_STATUS, device.path(), errno)),
    }
}

fn info(fd: i32) -> Result<kernel::Info, Errno> {
    let mut info = kernel::Info::EMPTY;
    // SAFETY: `info` is laid out as the kernel's struct loop_info64, which it fills.
    unsafe { kernel::get_status(fd, &raw mut info) }?;
    Ok(info)
}

fn described(path: &Path, info: &kernel::Info) -> Result<Loop> {
    let metadata = path.metadata().map_err(|error| Error::io("stat", path, error))?;
    Ok(Loop {
        path: path.to_owned(),
        number: (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev())),
        backing: backing(info),
        label: String::from_utf8_lossy(info.file_name.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned(),
        read_only: info.flags & kernel::READ_ONLY != 0,
        direct_io: info.flags & kernel::DIRECT_IO != 0,
    })
}

/// In the terms of stat(2). The kernel gives the device number in an encoding of its own (huge_encode_dev), which differs
/// from that of the C library for majors beyond 4095.
fn backing(info: &kernel::Info) -> (u64, u64) {
    let major = u32::try_from((info.device >> 8) & 0xfff).unwrap_or_default();
    let minor = u32::try_from((info.device & 0xff) | ((info.device >> 12) & 0xf_ff00)).unwrap_or_default();
    (rustix::fs::makedev(major, minor), info.inode)
}

/// The devices whose file the kernel calls `.../<name>`, for who may not open devices and so cannot ask for identities.
pub fn find_by_name(name: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(SYS_BLOCK).map_err(|error| Error::io("list", SYS_BLOCK, error))? {
        let device = Path::new("/dev").join(entry.map_err(|error| Error::io("list", SYS_BLOCK, error))?.file_name());
        if shows(&device, name)? {
            found.push(device);
        }
    }
    found.sort();
    Ok(found)
}

/// The devices bound to the file with this device and inode, whose file system has just answered, and whose path ends with `name`. A
/// device that cannot be asked (its disk or server hangs, or is gone) lies on another file system, then: it is left out unless the kernel
/// calls its file so, too.
///
/// # Errors
/// Those of such a device; `Deadline` where it hangs.
pub fn find(backing: (u64, u64), name: &Path) -> Result<Vec<Loop>> {
    let (found, silent) = ask(bound()?)?;
    for Silent { device, reason } in silent {
        if shows(&device, name)? {
            return Err(reason);
        }
        tracing::warn!(device = %device.display(), error = %reason, "this loop device cannot be asked: the disk or server of its file may hang, or be gone");
    }
    Ok(found.into_iter().filter(|device| device.backing == backing).collect())
}

/// As [`status`], but `Deadline` instead of waiting for a disk or server that hangs.
///
/// # Errors
/// As [`status`], and `Deadline`.
pub fn status_in_time(path: &Path) -> Result<Option<Loop>> {
    let name = path.file_name().unwrap_or_default();
    if Path::new("/dev").join(name) != path || !is_bound(name)? {
        return status(path);
    }
    let (found, silent) = ask(vec![name.to_owned()])?;
    match silent.into_iter().next() {
        Some(silent) => Err(silent.reason),
        None => Ok(found.into_iter().next()),
    }
}

/// A device that cannot be asked what it is bound to: the disk or server of its file hangs (`Deadline`), or is gone.
#[derive(Debug)]
pub struct Silent {
    pub device: PathBuf,
    pub reason: Error,
}

/// All devices that have a backing file, by number, and those that cannot be asked.
pub fn list() -> Result<(Vec<Loop>, Vec<Silent>)> {
    ask(bound()?)
}

/// The names of all that have a backing file.
fn bound() -> Result<Vec<OsString>> {
    let failed = |error| Error::io("list", SYS_BLOCK, error);
    let names = std::fs::read_dir(SYS_BLOCK).map_err(failed)?.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names = names.collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let mut outcome = Ok(());
    names.retain(|name| match is_bound(name) {
        Ok(bound) => bound,
        Err(error) => {
            outcome = Err(error);
            false
        }
    });
    outcome.map(|()| names)
}

/// The devices that are being asked now.
static ASKED: Mutex<Vec<(OsString, Instant)>> = Mutex::new(Vec::new());

/// Takes back the entry of a device that has answered.
struct Asking(OsString, Instant);

impl Asking {
    fn new(name: &OsStr) -> Asking {
        let asking = Asking(name.to_owned(), Instant::now());
        lock(&ASKED).push((asking.0.clone(), asking.1));
        asking
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut asked = lock(&ASKED);
        if let Some(own) = asked.iter().position(|(name, since)| *name == self.0 && *since == self.1) {
            asked.swap_remove(own);
        }
    }
}

/// What these are bound to, by number, and those that cannot be asked. One thread asks them one after the other; where a device hangs, it
/// is left with that one, which is not asked again before it has answered, and another thread goes on.
fn ask(names: Vec<OsString>) -> Result<(Vec<Loop>, Vec<Silent>)> {
    let device = |name: &OsStr| Path::new("/dev").join(name);
    let (mut left, mut found, mut silent) = (names, Vec::new(), Vec::new());
    while !left.is_empty() {
        let (tell, told) = mpsc::channel();
        let wanted = left.clone();
        let thread = std::thread::Builder::new().name("ask loop".to_owned()).spawn(move || {
            for name in wanted {
                let hangs = lock(&ASKED).iter().any(|(asked, since)| *asked == name && since.elapsed() >= STATUS_DEADLINE);
                let answer = if hangs {
                    Err(silence(&Path::new("/dev").join(&name)))
                } else {
                    let _asking = Asking::new(&name);
                    status_of_bound(&name)
                };
                if tell.send(answer).is_err() {
                    break;
                }
            }
        });
        thread.map_err(|error| Error::io("start a thread to ask", "loop devices", error))?;
        // In the order in which they were asked.
        loop {
            match told.recv_timeout(STATUS_DEADLINE) {
                Ok(answer) => {
                    let device = device(&left.remove(0));
                    match answer {
                        // The kernel's answer is that of the backing file's file system. Any other error is ours, and says nothing of it.
                        Err(reason @ (Error::Io { action: READ_STATUS, .. } | Error::Deadline { .. })) => {
                            silent.push(Silent { device, reason })
                        }
                        answer => found.extend(answer?),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let device = device(&left.remove(0));
                    silent.push(Silent { reason: silence(&device), device });
                    break;
                }
                Err(RecvTimeoutError::Disconnected) if left.is_empty() => break,
                Err(RecvTimeoutError::Disconnected) => {
                    let object = device(&left[0]).display().to_string();
                    return Err(Error::Unexpected { object, reason: "asking for its status panicked".to_owned() });
                }
            }
        }
    }
    found.sort_by_key(|device: &Loop| device.number);
    Ok((found, silent))
}

fn status_of_bound(name: &OsStr) -> Result<Option<Loop>> {
    match status(&Path::new("/dev").join(name)) {
        // Removed since the walk began. One that is still bound but has no node is an error: it might be ours.
        Err(error) if error.is_missing() && !is_bound(name)? => Ok(None),
        answer => answer,
    }
}

fn silence(device: &Path) -> Error {
    Error::Deadline { action: READ_STATUS, object: device.display().to_string(), after: STATUS_DEADLINE }
}

/// Whether the device has a backing file that the kernel calls `.../<name>`. No file system is asked.
pub fn shows(device: &Path, name: &Path) -> Result<bool> {
    Ok(file_of(device)?.is_some_and(|file| is_called(&file, name)))
}

/// Whether a path that sysfs shows is that of a file so called, which may have been removed.
fn is_called(file: &Path, name: &Path) -> bool {
    let kept = file.as_os_str().as_encoded_bytes().strip_suffix(b" (deleted)").map(|kept| OsString::from_vec(kept.to_vec()));
    file.ends_with(name) || kept.is_some_and(|kept| Path::new(&kept).ends_with(name))
}

/// Where the backing file of a device lies, as sysfs shows it: a file that was removed ends in ` (deleted)`. `None` where the device
/// has none any more. For people: what counts is [`Loop::backing`]. No file system is asked: the kernel knows it.
pub fn file_of(device: &Path) -> Result<Option<PathBuf>> {
    let name = device.file_name().unwrap_or_default();
    let path = Path::new(SYS_BLOCK).join(name).join("loop/backing_file");
    match std::fs::read(&path) {
        Ok(mut text) => {
            text.pop_if(|last| *last == b'\n');
            Ok(Some(OsString::from_vec(text).into()))
        }
        // ENODEV while it is taken down.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => Ok(None),
        Err(error) => Err(Error::io("read", &path, error)),
    }
}

/// How many are in use, no matter who made them. One file to read, which lists the block devices that have a size: no walk, and
/// nothing in it waits for a device.
///
/// # Errors
/// Where proc is not mounted.
pub fn in_use() -> Result<u64> {
    const PARTITIONS: &str = "/proc/partitions";
    let text = std::fs::read_to_string(PARTITIONS).map_err(|error| Error::io("read", PARTITIONS, error))?;
    let names = text.lines().filter_map(|line| line.split_ascii_whitespace().nth(3)).filter_map(|name| name.strip_prefix("loop"));
    Ok(names.filter(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).count() as u64)
}

/// Whether this block device is a loop device with a backing file: only then sysfs has its directory `loop`.
fn is_bound(name: &OsStr) -> Result<bool> {
    let path = Path::new(SYS_BLOCK).join(name).join("loop");
    match path.try_exists() {
        Ok(bound) => Ok(bound),
        Err(error) => Err(Error::io("look for", path, error)),
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

/// Takes back a LOOP_CLR_FD that has not come to effect: else the device would vanish under anyone who is told that it could
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
mod tests {
    use std::collections::BTreeSet;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::os::mount::testing::in_own_namespace;
    use crate::os::mount::{self, Attributes};
    use crate::os::path::Root;
    use crate::os::process::{self, Run, Tool};
    use crate::volume::MountFlags;

    /// Of each backing file.
    const NAME: &str = "image";

    /// A file of a MiB, detached from whatever it is bound to when it goes out of scope.
    struct Backing {
        directory: tempfile::TempDir,
        file: File,
        identity: (u64, u64),
    }

    impl Drop for Backing {
        fn drop(&mut self) {
            clean_up(self.identity);
        }
    }

    /// Detaches all that is bound to a file. What a failed test left mounted goes with its namespace, in a moment.
    fn clean_up(backing: (u64, u64)) {
        let until = Instant::now().checked_add(Duration::from_secs(10));
        let gone = udev::wait_until(until, || {
            let devices = find(backing, Path::new(NAME))?;
            Ok(devices.iter().all(|device| detach(&device.path, backing).is_ok()))
        });
        if !matches!(gone, Ok(true)) {
            eprintln!("a loop device is left over: {gone:?}");
        }
    }

    /// Detached when it goes out of scope.
    struct Guard(Loop);

    impl Drop for Guard {
        fn drop(&mut self) {
            clean_up(self.0.backing);
        }
    }

    /// `None` where there are no loop devices for us.
    fn backing() -> Option<Backing> {
        if let Err(error) = LoopControl::open() {
            eprintln!("SKIPPED: loop devices: {CONTROL}: {error}");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let file = File::options().read(true).write(true).create_new(true).open(directory.path().join("image")).unwrap();
        file.set_len(1 << 20).unwrap();
        let metadata = file.metadata().unwrap();
        Some(Backing { directory, file, identity: (metadata.dev(), metadata.ino()) })
    }

    fn sys(device: &Loop, attribute: &str) -> String {
        let path = Path::new(SYS_BLOCK).join(device.path.file_name().unwrap()).join(attribute);
        std::fs::read_to_string(path).unwrap().trim_end().to_owned()
    }

    #[test]
    fn a_device_is_attached_found_and_detached() {
        let Some(mut backing) = backing() else { return };
        assert!(find(backing.identity, Path::new(NAME)).unwrap().is_empty());
        let device = attach(&backing.file, "label", false).unwrap();
        assert_eq!(device.backing, backing.identity);
        assert!(!device.read_only);
        assert_eq!(sys(&device, "loop/backing_file"), backing.directory.path().join("image").display().to_string());
        assert_eq!(file_of(&device.path).unwrap(), Some(backing.directory.path().join("image")));
        assert_eq!(device.label, "label");
        assert_eq!(sys(&device, "dev"), format!("{}:{}", device.number.0, device.number.1));
        assert_eq!(sys(&device, "queue/logical_block_size"), "512");
        assert_eq!(sys(&device, "loop/autoclear"), "0");
        assert_eq!(sys(&device, "loop/dio") == "1", device.direct_io);
        assert_eq!(find(backing.identity, Path::new(NAME)).unwrap(), std::slice::from_ref(&device));
        assert_eq!(status(&device.path).unwrap().as_ref(), Some(&device));

        let open = Device::open(&device.path, true).unwrap();
        assert_eq!((open.number(), open.size().unwrap(), open.read_only().unwrap()), (device.number, 1 << 20, false));
        open.file().write_all(b"through").unwrap();
        open.flush().unwrap();
        drop(open);
        let mut content = [0; 7];
        backing.file.rewind().unwrap();
        backing.file.read_exact(&mut content).unwrap();
        assert_eq!(&content, b"through");

        // A renamed file is the same file.
        std::fs::rename(backing.directory.path().join("image"), backing.directory.path().join("renamed")).unwrap();
        assert_eq!(find(backing.identity, Path::new(NAME)).unwrap(), std::slice::from_ref(&device));

        // Not by a wrong identity.
        detach(&device.path, (backing.identity.0, backing.identity.1 + 1)).unwrap();
        assert_eq!(find(backing.identity, Path::new(NAME)).unwrap(), std::slice::from_ref(&device));
        for _ in 0..2 {
            detach(&device.path, backing.identity).unwrap();
            assert!(find(backing.identity, Path::new(NAME)).unwrap().is_empty());
        }
    }

    #[test]
    fn the_mode_and_flags_of_the_given_descriptor_do_not_matter() {
        let Some(backing) = backing() else { return };
        let path = backing.directory.path().join("image");
        for file in [File::open(&path).unwrap(), File::options().append(true).open(&path).unwrap()] {
            let device = attach(&file, "label", false).unwrap();
            assert!(!device.read_only);
            let mut open = File::options().write(true).open(&device.path).unwrap();
            open.write_all(&[7; 4096]).unwrap();
            open.sync_all().unwrap();
            drop(open);
            assert_eq!(std::fs::read(&path).unwrap()[..4096], [7; 4096]);
            assert_eq!(path.metadata().unwrap().len(), 1 << 20);
            detach(&device.path, device.backing).unwrap();
        }
    }

    #[test]
    fn a_read_only_device_takes_no_writes() {
        let Some(backing) = backing() else { return };
        let device = attach(&backing.file, "label", true).unwrap();
        assert!(device.read_only);
        assert!(Device::open(&device.path, false).unwrap().read_only().unwrap());
        let written = File::options().write(true).open(&device.path).and_then(|mut file| {
            file.write_all(&[1; 512])?;
            file.sync_all()
        });
        assert!(written.is_err());
    }

    #[test]
    fn write_protection_can_be_set_and_taken_off() {
        let Some(backing) = backing() else { return };
        let device = attach(&backing.file, "label", false).unwrap();
        let open = Device::open(&device.path, false).unwrap();
        open.set_read_only(true).unwrap();
        assert!(open.read_only().unwrap());
        assert_eq!(sys(&device, "ro"), "1");
        open.set_read_only(false).unwrap();
        assert_eq!(sys(&device, "ro"), "0");
    }

    /// The kernel keeps it with the number; a program that was killed in between leaves it to anyone who comes next.
    #[test]
    fn an_earlier_user_s_write_protection_is_not_ours() {
        let Some(first) = (0..8).map(|_| backing()).collect::<Option<Vec<_>>>() else { return };
        let protected: BTreeSet<_> = first
            .iter()
            .map(|backing| {
                let device = attach(&backing.file, "label", false).unwrap();
                Device::open(&device.path, false).unwrap().set_read_only(true).unwrap();
                device.path
            })
            .collect();
        drop(first);
        let second: Vec<_> = (0..16).map(|_| backing().unwrap()).collect();
        let devices: Vec<_> = second.iter().map(|backing| attach(&backing.file, "label", false).unwrap()).collect();
        assert!(devices.iter().any(|device| protected.contains(&device.path)), "none of {protected:?} was used again");
        for device in devices {
            assert_eq!(sys(&device, "ro"), "0", "{}", device.path.display());
        }
    }

    #[test]
    fn a_long_label_is_cut() {
        let Some(backing) = backing() else { return };
        let device = attach(&backing.file, &"l".repeat(100), false).unwrap();
        let open = File::open(&device.path).unwrap();
        let name = info(open.as_raw_fd()).unwrap().file_name;
        assert_eq!((&name[..63], name[63]), (&[b'l'; 63][..], 0));
    }

    #[test]
    fn a_grown_file_is_taken_over() {
        let Some(backing) = backing() else { return };
        let device = attach(&backing.file, "label", false).unwrap();
        backing.file.set_len(3 << 20).unwrap();
        assert_eq!(Device::open(&device.path, false).unwrap().size().unwrap(), 1 << 20);
        assert_eq!(refresh(&device.path).unwrap(), 3 << 20);
        assert_eq!(sys(&device, "size"), (3 << 11).to_string());
    }

    #[test]
    fn a_device_that_is_open_is_busy_and_stays_as_it_was() {
        let Some(backing) = backing() else { return };
        let device = attach(&backing.file, "label", false).unwrap();
        for flags in [0, libc::O_EXCL] {
            let user = File::options().read(true).custom_flags(flags).open(&device.path).unwrap();
            assert_eq!(detach(&device.path, device.backing).unwrap_err().errno(), Some(libc::EBUSY));
            assert_eq!(sys(&device, "loop/autoclear"), "0");
            drop(user);
            assert_eq!(find(device.backing, Path::new(NAME)).unwrap(), std::slice::from_ref(&device));
        }
        detach(&device.path, device.backing).unwrap();
    }

    /// A journal of another driver, or of an earlier life, names this number: its owner mounts and detaches it as if alone. Anyone who claimed
    /// it here would be refused, since its owner has claimed it.
    #[test]
    fn device_of_another_is_not_claimed_by_detach() {
        let Some(backing) = backing() else { return };
        let device = attach(&backing.file, "label", false).unwrap();
        let owner = File::options().read(true).custom_flags(libc::O_EXCL).open(&device.path).unwrap();
        let another = (device.backing.0, device.backing.1 + 1);
        for _ in 0..100 {
            detach(&device.path, another).unwrap();
        }
        drop(owner);
        assert_eq!(find(device.backing, Path::new(NAME)).unwrap(), std::slice::from_ref(&device));
    }

    #[test]
    fn detach_waits_for_who_claims_the_device_for_a_moment() {
        let Some(backing) = backing() else { return };
        let device = attach(&backing.file, "label", false).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let claiming = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Once it is detached, another test may have its number.
                    if !is_unbound_from(&device.path, device.backing).unwrap() {
                        drop(File::options().read(true).custom_flags(libc::O_EXCL).open(&device.path));
                    }
                }
            });
            let results: Vec<_> = (0..50)
                .map(|_| {
                    detach(&device.path, device.backing)?;
                    attach(&backing.file, "label", false).map(|again| again.path == device.path)
                })
                .take_while(|result| result.as_ref().is_ok_and(|same| *same))
                .collect();
            stop.store(true, Ordering::Relaxed);
            claiming.join().unwrap();
            assert!(results.iter().all(Result::is_ok), "{results:?}");
        });
    }

    #[test]
    fn who_looks_for_a_moment_is_waited_for() {
        let Some(backing) = backing() else { return };
        let device = attach(&backing.file, "label", false).unwrap();
        let looker = File::open(&device.path).unwrap();
        std::thread::scope(|scope| {
            let detaching = scope.spawn(|| detach(&device.path, device.backing));
            // Until it has been told to go, which only we hold up.
            while is_bound(device.path.file_name().unwrap()).unwrap() && sys(&device, "loop/autoclear") == "0" {
                assert!(!detaching.is_finished());
                std::thread::yield_now();
            }
            drop(looker);
            detaching.join().unwrap().unwrap();
        });
        assert!(find(backing.identity, Path::new(NAME)).unwrap().is_empty());
    }

    #[test]
    fn a_mounted_device_is_busy_and_can_be_grown() {
        let Some(backing) = backing() else { return };
        backing.file.set_len(16 << 20).unwrap();
        let device = attach(&backing.file, "label", false).unwrap();
        let mkfs = Tool { name: "mkfs.ext4", package: "e2fsprogs" };
        let arguments = vec!["-q".to_owned(), device.path.display().to_string()];
        let run = Run { tool: mkfs, arguments, keep: Vec::new(), stdin: Vec::new(), deadline: Duration::from_secs(60) };
        if let Err(error @ Error::ToolMissing { .. }) = process::run_ok(run, "test image", &[0]) {
            eprintln!("SKIPPED: a mounted loop device: {error}");
            return;
        }
        in_own_namespace(|| {
            let root = Root::open(backing.directory.path()).unwrap();
            let path = root.path().join("mounted");
            let target = root.make_dir(&path, 0o700).unwrap();
            let fs = mount::new_filesystem("ext4", &device.path, &MountFlags::default(), &Attributes::default()).unwrap();
            mount::attach(fs, target.as_fd(), &path).unwrap();
            let begun = Instant::now();
            assert_eq!(detach(&device.path, device.backing).unwrap_err().errno(), Some(libc::EBUSY));
            assert!(begun.elapsed() < DETACH_DEADLINE, "told at once");
            assert_eq!(sys(&device, "loop/autoclear"), "0");
            backing.file.set_len(20 << 20).unwrap();
            assert_eq!(refresh(&device.path).unwrap(), 20 << 20);
            rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).unwrap();
            root.remove(&path).unwrap();
        });
        detach(&device.path, device.backing).unwrap();
    }

    /// A loop device of 4096-byte blocks over `backing`: what a disk of that kind is.
    fn with_large_blocks(backing: &Backing) -> Loop {
        let control = LoopControl::open().unwrap();
        let config = kernel::Config {
            fd: backing.file.as_raw_fd().cast_unsigned(),
            block_size: 4096,
            info: kernel::Info::EMPTY,
            reserved: [0; 8],
        };
        loop {
            let device = control.next_free().unwrap();
            // SAFETY: both descriptors are open, and `config` is laid out as the kernel's struct loop_config.
            match unsafe { kernel::configure(device.as_raw_fd(), &raw const config) } {
                Ok(_) => {
                    let device = status(&device.path().unwrap()).unwrap().unwrap();
                    // Another test leaves its write protection to anyone who has its number next.
                    Device::open(&device.path, false).unwrap().set_read_only(false).unwrap();
                    return device;
                }
                Err(errno) => assert_eq!(errno, Errno::EBUSY),
            }
        }
    }

    #[test]
    fn blocks_are_512_bytes_and_files_recognised_on_every_file_system() {
        let Some(disk) = backing() else { return };
        disk.file.set_len(400 << 20).unwrap();
        let large = with_large_blocks(&disk);
        for (fstype, package, device) in [
            ("tmpfs", None, Path::new("none")),
            ("ext4", Some(Tool { name: "mkfs.ext4", package: "e2fsprogs" }), &large.path),
            ("xfs", Some(Tool { name: "mkfs.xfs", package: "xfsprogs" }), &large.path),
            ("btrfs", Some(Tool { name: "mkfs.btrfs", package: "btrfs-progs" }), &large.path),
        ] {
            if let Some(tool) = package {
                let force = if fstype == "ext4" { "-F" } else { "-f" };
                let arguments = vec!["-q".to_owned(), force.to_owned(), device.display().to_string()];
                let run = Run { tool, arguments, keep: Vec::new(), stdin: Vec::new(), deadline: Duration::from_secs(60) };
                if let Err(error @ Error::ToolMissing { .. }) = process::run_ok(run, "test image", &[0]).map(drop) {
                    eprintln!("SKIPPED: loop devices over {fstype}: {error}");
                    continue;
                }
            }
            in_own_namespace(|| {
                let root = Root::open(disk.directory.path()).unwrap();
                let path = root.path().join(fstype);
                let target = root.make_dir(&path, 0o700).unwrap();
                let fs = mount::new_filesystem(fstype, device, &MountFlags::default(), &Attributes::default()).unwrap();
                mount::attach(fs, target.as_fd(), &path).unwrap();
                let file = File::options().read(true).write(true).create_new(true).open(path.join("image")).unwrap();
                file.set_len(1 << 20).unwrap();
                let metadata = file.metadata().unwrap();
                let attached = attach(&file, fstype, false).unwrap();
                let _guard = Guard(attached.clone());
                assert_eq!(attached.backing, (metadata.dev(), metadata.ino()), "{fstype}");
                assert_eq!(sys(&attached, "queue/logical_block_size"), "512", "{fstype}");
                assert_eq!(find(attached.backing, Path::new(NAME)).unwrap(), std::slice::from_ref(&attached), "{fstype}");
                // Blocks of 512 bytes cannot go directly to a disk of larger ones. (btrfs says they can, and goes through its cache.)
                assert!(!matches!(fstype, "ext4" | "xfs") || !attached.direct_io, "{fstype}");
                let open = Device::open(&attached.path, true).unwrap();
                open.file().write_all_at(&[7; 512], 1536).unwrap();
                open.flush().unwrap();
                drop(open);
                let mut content = [0; 1536];
                file.read_exact_at(&mut content, 1024).unwrap();
                assert!(content[..512] == [0; 512] && content[512..1024] == [7; 512] && content[1024..] == [0; 512], "{fstype}");
                detach(&attached.path, attached.backing).unwrap();
                drop(file);
                // A program that another test starts has this mount's file, and what it was made by (fsopen), open until its exec.
                let until = Instant::now().checked_add(Duration::from_secs(10));
                let unmounted = || Ok(rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).is_ok());
                assert!(udev::wait_until(until, unmounted).unwrap());
                let unclaimed =
                    || Ok(package.is_none() || File::options().read(true).custom_flags(libc::O_EXCL).open(device).is_ok());
                assert!(udev::wait_until(until, unclaimed).unwrap(), "{fstype}");
            });
        }
        detach(&large.path, large.backing).unwrap();
    }

    #[test]
    fn many_at_once_get_one_each() {
        let Some(backing) = backing() else { return };
        let devices: Vec<Loop> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| attach(&backing.file, "label", true).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut paths: Vec<_> = devices.iter().map(|device| &device.path).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 8);
        assert_eq!(find(backing.identity, Path::new(NAME)).unwrap().len(), 8);
        std::thread::scope(|scope| {
            for device in &devices {
                scope.spawn(|| detach(&device.path, device.backing).unwrap());
            }
        });
        assert!(find(backing.identity, Path::new(NAME)).unwrap().is_empty());
    }

    /// A file system with one file, by the protocol of fuse(4), whose server stops answering on demand: until it is ended, but for no
    /// longer than `LONGEST_HANG`, since other processes of this machine ask its loop device, too.
    struct Served {
        stop: Arc<AtomicBool>,
        end: Option<mpsc::Sender<()>>,
        server: Option<std::thread::JoinHandle<()>>,
    }

    const LONGEST_HANG: Duration = Duration::from_secs(20);

    impl Served {
        fn at(path: &Path) -> Option<Served> {
            let Ok(mut device) = File::options().read(true).write(true).open("/dev/fuse") else {
                eprintln!("SKIPPED: there is no /dev/fuse");
                return None;
            };
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
            nix::mount::mount(Some("test"), path, Some("fuse"), nix::mount::MsFlags::empty(), Some(options.as_str())).unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let (stopped, path) = (stop.clone(), path.to_owned());
            let (end, ended) = mpsc::channel();
            let server = std::thread::spawn(move || {
                let mut request = vec![0; 1 << 18];
                while let Ok(length) = device.read(&mut request) {
                    if stopped.load(Ordering::SeqCst) {
                        break;
                    }
                    let Some(answer) = Served::answer(&request[..length]) else { continue };
                    if device.write_all(&answer).is_err() {
                        break;
                    }
                }
                // Until the sender is dropped.
                ended.recv_timeout(LONGEST_HANG).ok();
                // By force: anyone who waits for an answer gets an error.
                nix::mount::umount2(&path, nix::mount::MntFlags::MNT_FORCE | nix::mount::MntFlags::MNT_DETACH).unwrap();
            });
            Some(Served { stop, end: Some(end), server: Some(server) })
        }

        /// linux/fuse.h
        fn answer(request: &[u8]) -> Option<Vec<u8>> {
            let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
            let node = u64::from_le_bytes(request[16..24].try_into().unwrap());
            let attributes = |node: u64| {
                let (size, mode): (u64, u32) = if node == 1 { (0, 0o40_755) } else { (1 << 20, 0o100_644) };
                let longs = [node, size, size / 512, 0, 0, 0].into_iter().flat_map(u64::to_le_bytes);
                longs.chain([0, 0, 0, mode, 1, 0, 0, 0, 512, 0].into_iter().flat_map(u32::to_le_bytes)).collect::<Vec<u8>>()
            };
            let (error, body): (i32, Vec<u8>) = match word(4) {
                // FORGET and BATCH_FORGET have no answer.
                2 | 42 => return None,
                // LOOKUP: the node's number; no answer is kept for any time.
                1 => (0, 2_u64.to_le_bytes().into_iter().chain([0; 32]).chain(attributes(2)).collect()),
                // GETATTR
                3 => (0, [0; 16].into_iter().chain(attributes(node)).collect()),
                // OPEN
                14 => (0, vec![0; 16]),
                // READ
                15 => (0, vec![0; word(56) as usize]),
                // RELEASE
                18 => (0, Vec::new()),
                // INIT: version 7.31.
                26 => {
                    let words = [7, 31, 0, 0, 0, 4096, 1, 0].into_iter().flat_map(u32::to_le_bytes);
                    (0, words.chain([0; 32]).collect())
                }
                _ => (-libc::ENOSYS, Vec::new()),
            };
            let length = u32::try_from(16 + body.len()).unwrap();
            let head = length.to_le_bytes().into_iter().chain(error.to_le_bytes()).chain(request[8..16].iter().copied());
            Some(head.chain(body).collect())
        }

        /// The next question has no answer.
        fn hang(&self) {
            self.stop.store(true, Ordering::SeqCst);
        }

        fn end(&mut self) {
            self.end.take();
            self.hang();
            self.server.take().map(std::thread::JoinHandle::join);
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            // Its server reads until it is asked something.
            self.end();
        }
    }

    /// What such a device is bound to cannot be asked: it is unbound as it is.
    struct Unbound(Option<PathBuf>);

    impl Drop for Unbound {
        fn drop(&mut self) {
            if let Some(device) = self.0.take().map(|path| File::open(path).unwrap()) {
                // SAFETY: the descriptor is open, no memory is passed.
                unsafe { kernel::clear(device.as_raw_fd()) }.unwrap();
            }
        }
    }

    /// Threads of this process that ask a device and wait for the file system's answer.
    fn stuck() -> usize {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|thread| thread.path());
        let read = |thread: &Path, name| std::fs::read_to_string(thread.join(name)).unwrap_or_default();
        threads.filter(|thread| read(thread, "comm") == "ask loop\n" && read(thread, "wchan") == "request_wait_answer").count()
    }

    #[test]
    fn device_whose_file_hangs_holds_up_no_look_for_another() {
        in_own_namespace(|| {
            let Some(backing) = backing() else { return };
            let directory = tempfile::tempdir().unwrap();
            // Dropped after the file system.
            let mut unbound = Unbound(None);
            let Some(mut served) = Served::at(directory.path()) else { return };
            let hung_name = Path::new("hung");
            let file = File::open(directory.path().join(hung_name)).unwrap();
            let hung = attach(&file, "label", true).unwrap();
            unbound.0 = Some(hung.path.clone());
            let ours = attach(&backing.file, "label", false).unwrap();
            assert_eq!(find(hung.backing, hung_name).unwrap(), std::slice::from_ref(&hung));
            served.hang();

            let found = || find(ours.backing, Path::new(NAME)).unwrap();
            assert_eq!(found(), std::slice::from_ref(&ours), "the other does not answer");
            // Another test's look may have asked it at the same moment.
            let left = stuck();
            let started = Instant::now();
            for _ in 0..20 {
                assert_eq!(found(), std::slice::from_ref(&ours));
            }
            assert!(started.elapsed() < STATUS_DEADLINE, "it is known by now which one hangs: {:?}", started.elapsed());
            assert_eq!(stuck(), left, "and it is not asked again");
            assert_eq!(status_in_time(&ours.path).unwrap().as_ref(), Some(&ours));
            for refused in [find(hung.backing, hung_name).map(drop), status_in_time(&hung.path).map(drop)] {
                let error = refused.unwrap_err();
                let named = matches!(&error, Error::Deadline { object, .. } if Path::new(object) == hung.path);
                assert!(named, "it may be bound to the file: {error}");
            }
            assert!(list().unwrap().1.iter().any(|silent| silent.device == hung.path));
            assert!(shows(&hung.path, hung_name).unwrap() && !shows(&ours.path, hung_name).unwrap(), "sysfs asks no file");

            served.end();
            let until = Instant::now().checked_add(Duration::from_secs(30));
            assert!(udev::wait_until(until, || Ok(stuck() == 0)).unwrap(), "its thread has ended");
            // Now the kernel says ENOTCONN of its file.
            assert_eq!(found(), std::slice::from_ref(&ours), "the file system of the other is gone");
            let error = find(hung.backing, hung_name).unwrap_err();
            assert!(error.errno() == Some(libc::ENOTCONN), "it may be bound to the file: {error}");
        });
    }

    #[test]
    fn what_is_no_file_cannot_back_a_device() {
        let directory = File::open("/").unwrap();
        assert!(matches!(attach(&directory, "/", true), Err(Error::Unexpected { .. })));
    }

    #[test]
    fn a_missing_device_is_detached_already() {
        detach(Path::new("/dev/loop9999999"), (1, 2)).unwrap();
        assert!(status(Path::new("/dev/loop9999999")).unwrap_err().is_missing());
    }
}

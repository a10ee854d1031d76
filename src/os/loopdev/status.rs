//! What loop devices say of themselves, and those that do not answer.
#![allow(unsafe_code, reason = "LOOP_CONFIGURE, LOOP_GET_STATUS64 and their like have no safe wrapper")]

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::super::block::Device;
use super::super::{Error, Result, lock};
use super::kernel;

pub(super) const SYS_BLOCK: &str = "/sys/block";

/// How long a device may take to say what it is bound to. The kernel asks the backing file's file system then (loop_get_status calls
/// vfs_getattr), which may hang with a disk or server.
pub(super) const STATUS_DEADLINE: Duration = Duration::from_secs(2);

pub(super) const READ_STATUS: &str = "read status of";

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

pub(super) fn info(fd: i32) -> Result<kernel::Info, Errno> {
    let mut info = kernel::Info::EMPTY;
    // SAFETY: `info` is laid out as the kernel's struct loop_info64, which it fills.
    unsafe { kernel::get_status(fd, &raw mut info) }?;
    Ok(info)
}

pub(super) fn described(path: &Path, info: &kernel::Info) -> Result<Loop> {
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
pub(super) fn backing(info: &kernel::Info) -> (u64, u64) {
    let major = u32::try_from((info.device >> 8) & 0xfff).unwrap_or_default();
    let minor = u32::try_from((info.device & 0xff) | ((info.device >> 12) & 0xf_ff00)).unwrap_or_default();
    (rustix::fs::makedev(major, minor), info.inode)
}

/// As [`find`]. A process that may not open devices, or has no nodes of them (a controller in its pod), still sees what their files are
/// called: other devices on its machine must not keep it from its work.
pub fn paths_of(backing: (u64, u64), name: &Path) -> Result<Vec<PathBuf>> {
    match find(backing, name) {
        Ok(devices) => Ok(devices.into_iter().map(|device| device.path).collect()),
        Err(error) if matches!(error.errno(), Some(libc::EACCES | libc::EPERM | libc::ENOENT)) => find_by_name(name),
        Err(error) => Err(error),
    }
}

/// The devices whose file the kernel calls `.../<name>`; no file system is asked.
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
    pub(super) fn new(name: &OsStr) -> Asking {
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
/// is left with that one, which is not asked again before it has answered, and another thread continues.
fn ask(names: Vec<OsString>) -> Result<(Vec<Loop>, Vec<Silent>)> {
    let device = |name: &OsStr| Path::new("/dev").join(name);
    let (mut left, mut found, mut silent) = (names, Vec::new(), Vec::new());
    while !left.is_empty() {
        let (sender, receiver) = mpsc::channel();
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
                if sender.send(answer).is_err() {
                    break;
                }
            }
        });
        thread.map_err(|error| Error::io("start a thread to ask", "loop devices", error))?;
        // In the order in which they were asked.
        loop {
            match receiver.recv_timeout(STATUS_DEADLINE) {
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
pub(super) fn is_bound(name: &OsStr) -> Result<bool> {
    let path = Path::new(SYS_BLOCK).join(name).join("loop");
    match path.try_exists() {
        Ok(bound) => Ok(bound),
        Err(error) => Err(Error::io("look for", path, error)),
    }
}

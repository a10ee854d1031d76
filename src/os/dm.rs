//! Device-mapper devices, by name, and targets (linux/dm-ioctl.h). Only to look, to remove, to send a message and to have a target loaded:
//! what makes a device is a program (cryptsetup, LVM).
//!
//! A program that is killed may leave a device without a table, which sysfs shows on nothing and which its own tool
//! then neither opens nor closes; so this asks the kernel itself.
#![allow(unsafe_code, reason = "the device-mapper's ioctls have no safe wrapper")]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::{Error, Result, udev};

const CONTROL: &str = "/dev/mapper/control";
/// udev opens each new device for an instant, to look at it.
pub const LONGEST_LOOK: Duration = Duration::from_secs(5);
const NAME_LENGTH: usize = 128;

/// A device that is mapped onto others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// `/dev/dm-0`: the kernel's own node, which is there without udev.
    pub path: PathBuf,
    pub number: (u32, u32),
    /// Who made it, and of what: `CRYPT-LUKS2-<uuid>-<name>`.
    pub uuid: String,
    /// It has a table. One that has none was interrupted while it was made.
    pub live: bool,
    /// I/O to it waits until it is resumed.
    pub suspended: bool,
    /// Something has it open: a mount, a mapping, a program.
    pub open: bool,
    /// What it lies on.
    pub below: Vec<(u32, u32)>,
}

mod ioctl {
    use super::Request;
    nix::ioctl_readwrite!(list, 0xfd, 2, Request);
    nix::ioctl_readwrite!(remove, 0xfd, 4, Request);
    nix::ioctl_readwrite!(status, 0xfd, 7, Request);
    nix::ioctl_readwrite!(table_status, 0xfd, 12, Request);
    nix::ioctl_readwrite!(message, 0xfd, 14, Request);
    nix::ioctl_readwrite!(get_target_version, 0xfd, 17, Request);
}

const SUSPENDED: u32 = 1 << 1;
const ACTIVE_PRESENT: u32 = 1 << 5;
const BUFFER_FULL: u32 = 1 << 8;
/// What a thin pool has not yet written is left so: it may be unable to.
const NOFLUSH: u32 = 1 << 11;
/// Bytes for the status of a device of one target.
const STATUS_LENGTH: usize = 4 << 10;
/// Bytes for a message.
const MESSAGE_LENGTH: usize = 64;
/// Of struct dm_target_spec, before the status in words.
const TARGET_LENGTH: usize = 40;
/// Where its type is in there, ended by NUL.
const TARGET_TYPE: usize = 24;
/// Bytes for the names of all devices; more than any node has mappings.
const LIST_LENGTH: usize = 256 << 10;

/// struct dm_ioctl
#[repr(C)]
struct Request {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event_nr: u32,
    padding: u32,
    dev: u64,
    name: [u8; NAME_LENGTH],
    uuid: [u8; 129],
    data: [u8; 7],
}

impl Request {
    /// About no device, with room for `data` bytes behind it.
    fn about_all(data: usize) -> Request {
        let size = u32::try_from(size_of::<Request>()).unwrap_or_default();
        Request {
            version: [4, 0, 0],
            data_size: size.saturating_add(u32::try_from(data).unwrap_or_default()),
            data_start: size,
            target_count: 0,
            open_count: 0,
            flags: 0,
            event_nr: 0,
            padding: 0,
            dev: 0,
            name: [0; NAME_LENGTH],
            uuid: [0; 129],
            data: [0; 7],
        }
    }

    fn of(name: &str) -> Result<Request> {
        let mut bytes = [0; NAME_LENGTH];
        // The last byte stays zero.
        match bytes.get_mut(..name.len()) {
            Some(place) if name.len() < NAME_LENGTH && !name.is_empty() => place.copy_from_slice(name.as_bytes()),
            _ => {
                let reason = format!("a device-mapper name has 1 to {} bytes", NAME_LENGTH - 1);
                return Err(Error::Unexpected { object: name.to_owned(), reason });
            }
        }
        Ok(Request { name: bytes, ..Request::about_all(0) })
    }
}

/// [`Request`] with room for the answer of `list`.
#[repr(C)]
struct List {
    request: Request,
    names: [u8; LIST_LENGTH],
}

/// What all devices are called; none where this kernel has no device-mapper.
///
/// # Errors
/// `Unexpected` where there are so many that the list is not whole.
pub fn names() -> Result<Vec<String>> {
    let Some(control) = control()? else { return Ok(Vec::new()) };
    let mut list = Box::new(List { request: Request::about_all(LIST_LENGTH), names: [0; LIST_LENGTH] });
    // SAFETY: the descriptor is open, and `list` begins with a dm_ioctl that says the size of the whole.
    unsafe { ioctl::list(control.as_raw_fd(), (&raw mut *list).cast()) }.map_err(|errno| Error::io("list", CONTROL, errno))?;
    let start = usize::try_from(list.request.data_start).unwrap_or_default().checked_sub(size_of::<Request>());
    match start.filter(|_| list.request.flags & BUFFER_FULL == 0).and_then(|start| list.names.get(start..)) {
        Some(answer) => Ok(names_in(answer)),
        None => Err(Error::Unexpected { object: CONTROL.to_owned(), reason: "there are too many devices to list".to_owned() }),
    }
}

/// struct dm_name_list: the device's number (u64), the offset of the next entry from this one (u32; the last has 0), and the
/// name, ended by NUL. A single entry of the number 0 says that there is none.
fn names_in(mut answer: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((device, rest)) = answer.split_first_chunk::<8>()
        && let Some((next, rest)) = rest.split_first_chunk::<4>()
        && u64::from_ne_bytes(*device) != 0
    {
        let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        names.push(String::from_utf8_lossy(name).into_owned());
        match usize::try_from(u32::from_ne_bytes(*next)).ok().filter(|next| *next > 0).and_then(|next| answer.get(next..)) {
            Some(entry) => answer = entry,
            None => break,
        }
    }
    names
}

/// The device called `name`; `None` where there is none, or no device-mapper in this kernel.
pub fn find(name: &str) -> Result<Option<Mapped>> {
    let Some(control) = control()? else { return Ok(None) };
    let mut request = Request::of(name)?;
    // SAFETY: the descriptor is open, and `request` is a dm_ioctl that says its own size.
    match unsafe { ioctl::status(control.as_raw_fd(), &raw mut request) } {
        Ok(_) => {}
        Err(Errno::ENXIO) => return Ok(None),
        Err(errno) => return Err(Error::io("look for mapping", name, errno)),
    }
    let number = (rustix::fs::major(request.dev), rustix::fs::minor(request.dev));
    let end = request.uuid.iter().position(|byte| *byte == 0).unwrap_or_default();
    Ok(Some(Mapped {
        path: format!("/dev/dm-{}", number.1).into(),
        number,
        uuid: String::from_utf8_lossy(request.uuid.get(..end).unwrap_or_default()).into_owned(),
        live: request.flags & ACTIVE_PRESENT != 0,
        suspended: request.flags & SUSPENDED != 0,
        open: request.open_count > 0,
        below: neighbours(number, "slaves")?.into_iter().map(|(_, number)| number).collect(),
    }))
}

/// [`Request`] with room for the answer of `table_status`.
#[repr(C)]
struct Status {
    request: Request,
    targets: [u8; STATUS_LENGTH],
}

/// A thin pool, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinPool {
    /// Hundredths of a percent that are used of its data.
    pub data: u32,
    /// The same of its metadata.
    pub metadata: u32,
    /// The block of its metadata where a snapshot of it begins that userspace holds.
    pub held: Option<u64>,
}

/// The thin pool called `name`; `None` where it is not active.
///
/// # Errors
/// `Unexpected` where it is no thin pool, or has failed.
pub fn thin_pool(name: &str) -> Result<Option<ThinPool>> {
    read_status(name, "thin-pool", thin_pool_in)
}

/// How many sectors of the thin volume called `name` have a place in its pool: were ever written to, or are shared with another volume, and
/// not discarded since. `None` where it is not active.
///
/// # Errors
/// `Unexpected` where it is no thin volume, or its pool has failed.
pub fn thin_sectors(name: &str) -> Result<Option<u64>> {
    read_status(name, "thin", thin_sectors_in)
}

/// What `parse` makes of the status of the only target, of type `kind`.
fn read_status<T>(name: &str, kind: &str, parse: fn(&str) -> Option<T>) -> Result<Option<T>> {
    let Some(control) = control()? else { return Ok(None) };
    let mut request = Request::about_all(STATUS_LENGTH);
    (request.name, request.flags) = (Request::of(name)?.name, NOFLUSH);
    let mut status = Box::new(Status { request, targets: [0; STATUS_LENGTH] });
    // SAFETY: the descriptor is open, and `status` begins with a dm_ioctl that says the size of the whole.
    match unsafe { ioctl::table_status(control.as_raw_fd(), (&raw mut *status).cast()) } {
        Ok(_) if status.request.flags & ACTIVE_PRESENT == 0 => return Ok(None),
        Ok(_) => {}
        Err(Errno::ENXIO) => return Ok(None),
        Err(errno) => return Err(Error::io("read the status of mapping", name, errno)),
    }
    let start = usize::try_from(status.request.data_start).unwrap_or_default().saturating_sub(size_of::<Request>());
    let targets = status.targets.get(start..).unwrap_or_default();
    let text = |place: std::ops::Range<usize>| {
        let bytes = targets.get(place).unwrap_or_default();
        bytes.split(|byte| *byte == 0).next().map(String::from_utf8_lossy).unwrap_or_default()
    };
    let (found, words) = (text(TARGET_TYPE..TARGET_LENGTH), text(TARGET_LENGTH..targets.len()));
    let parsed = Some(&words).filter(|_| found == kind && status.request.target_count == 1).and_then(|words| parse(words));
    parsed.map(Some).ok_or_else(|| Error::Unexpected {
        object: name.to_owned(),
        reason: format!("its status is {found:?} {words:?}, not that of one target of type {kind}"),
    })
}

/// As [`thin_pool_in`]: mapped sectors, then the highest of them or `-`.
fn thin_sectors_in(words: &str) -> Option<u64> {
    let (sectors, _) = words.split_once(' ')?;
    sectors.parse().ok()
}

/// Of Documentation/admin-guide/device-mapper/thin-provisioning.rst: the transaction, used/total blocks of metadata and of data, then the held
/// root of the metadata or `-`.
fn thin_pool_in(words: &str) -> Option<ThinPool> {
    let part = |word: &str| {
        let (used, total) = word.split_once('/')?;
        let (used, total) = (used.parse::<u64>().ok()?, total.parse::<u64>().ok()?);
        u32::try_from(used.checked_mul(10_000)?.checked_div(total)?).ok()
    };
    let mut words = words.split(' ').skip(1);
    let metadata = part(words.next()?)?;
    let data = part(words.next()?)?;
    let held = match words.next()? {
        "-" => None,
        block => Some(block.parse().ok()?),
    };
    Some(ThinPool { data, metadata, held })
}

/// [`Request`] with a struct dm_target_msg: the sector of the target, and the text, ended by NUL.
#[repr(C)]
struct Message {
    request: Request,
    sector: u64,
    text: [u8; MESSAGE_LENGTH],
}

/// Sends a message to the target at the start of the device called `name`, such as `release_metadata_snap` to a thin pool.
///
/// # Errors
/// With the errno of the target; `Unexpected` for a text of more than 63 bytes.
pub fn message(name: &str, text: &str) -> Result<()> {
    let Some(control) = control()? else { return Err(Error::io("send a message to mapping", name, Errno::ENODEV)) };
    let mut bytes = [0; MESSAGE_LENGTH];
    match bytes.get_mut(..text.len()) {
        Some(place) if text.len() < MESSAGE_LENGTH => place.copy_from_slice(text.as_bytes()),
        _ => return Err(Error::Unexpected { object: name.to_owned(), reason: format!("the message {text:?} is too long") }),
    }
    let request = Request { name: Request::of(name)?.name, ..Request::about_all(size_of::<Message>() - size_of::<Request>()) };
    let mut message = Message { request, sector: 0, text: bytes };
    // SAFETY: the descriptor is open, and `message` begins with a dm_ioctl that says the size of the whole.
    match unsafe { ioctl::message(control.as_raw_fd(), (&raw mut message).cast()) } {
        Ok(_) => Ok(()),
        Err(errno) => Err(Error::io("send a message to mapping", format!("{name} ({text})"), errno)),
    }
}

/// Has the kernel load the module of a target (`thin-pool`, `snapshot`, `raid`), unless it has the target; answers whether it has it then.
/// LVM's tools run modprobe for that, which finds no module in a container; the kernel runs the node's (drivers/md/dm-target.c,
/// `load_module`).
///
/// # Errors
/// `Io`, as where the caller has no CAP_SYS_ADMIN.
pub fn load_target(name: &str) -> Result<bool> {
    let Some(control) = control()? else { return Ok(false) };
    let mut request = Request::of(name)?;
    // SAFETY: the descriptor is open, and `request` is a dm_ioctl that says its own size: what does not fit is not written.
    match unsafe { ioctl::get_target_version(control.as_raw_fd(), &raw mut request) } {
        Ok(_) => Ok(true),
        Err(Errno::EINVAL) => Ok(false),
        Err(errno) => Err(Error::io("load the device-mapper target", name, errno)),
    }
}

/// The UUID of the device of this number, as sysfs has it; `None` where there is no such device, or it is not mapped.
pub fn uuid_of((major, minor): (u32, u32)) -> Result<Option<String>> {
    let path = Path::new("/sys/dev/block").join(format!("{major}:{minor}")).join("dm/uuid");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path, error)),
    }
}

/// Removes the device called `name`, seen to be gone on return. `false` where there is none.
///
/// # Errors
/// EBUSY while something has it open.
pub fn remove(name: &str) -> Result<bool> {
    let Some(control) = control()? else { return Ok(false) };
    let mut there = true;
    let gone = udev::wait_until(Instant::now().checked_add(LONGEST_LOOK), || {
        let mut request = Request::of(name)?;
        // SAFETY: the descriptor is open, and `request` is a dm_ioctl that says its own size.
        match unsafe { ioctl::remove(control.as_raw_fd(), &raw mut request) } {
            Ok(_) => Ok(true),
            Err(Errno::ENXIO) => {
                there = false;
                Ok(true)
            }
            Err(Errno::EBUSY) => Ok(false),
            Err(errno) => Err(Error::io("remove mapping", name, errno)),
        }
    })?;
    if !gone {
        return Err(Error::io("remove mapping", name, Errno::EBUSY));
    }
    if !there {
        return Ok(false);
    }
    // Made by libdevmapper where udev did not; udev takes its own away.
    let node = Path::new("/dev/mapper").join(name);
    match fs::remove_file(&node) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove device node", &node, error)),
        _ => Ok(true),
    }
}

/// The devices that lie on the device of this number, such as `dm-3`.
pub fn holders(number: (u32, u32)) -> Result<Vec<String>> {
    Ok(neighbours(number, "holders")?.into_iter().map(|(name, _)| name).collect())
}

fn neighbours((major, minor): (u32, u32), kind: &str) -> Result<Vec<(String, (u32, u32))>> {
    let directory = Path::new("/sys/dev/block").join(format!("{major}:{minor}")).join(kind);
    let entries = match fs::read_dir(&directory) {
        // The device is gone, or is a partition, whose holders are its disk's.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| Error::io("list", &directory, error))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("list", &directory, error))?;
        let path = entry.path().join("dev");
        let text = fs::read_to_string(&path).map_err(|error| Error::io("read", &path, error))?;
        let number = text.trim().split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let number = number.ok_or_else(|| Error::Unexpected {
            object: path.display().to_string(),
            reason: format!("{text:?} is no device number"),
        })?;
        found.push((entry.file_name().to_string_lossy().into_owned(), number));
    }
    Ok(found)
}

/// `None` where the kernel has no device-mapper, so that nothing can be mapped.
fn control() -> Result<Option<File>> {
    match File::options().read(true).write(true).open(CONTROL) {
        Ok(control) => Ok(Some(control)),
        // There is a node, but nothing in the kernel behind it.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let misc = fs::read_to_string("/proc/misc").map_err(|error| Error::io("read", "/proc/misc", error))?;
            if misc.lines().any(|line| line.split_whitespace().nth(1) == Some("device-mapper")) {
                let object = format!("{CONTROL} (the kernel has a device-mapper; is /dev the node's own?)");
                return Err(Error::io("open", object, error));
            }
            Ok(None)
        }
        Err(error) => Err(Error::io("open", CONTROL, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_as_large_as_the_kernels() {
        assert_eq!(size_of::<Request>(), 312);
    }

    #[test]
    fn the_list_is_read_to_its_end() {
        let entry = |number: u64, next: u32, name: &str| {
            let mut bytes = [&number.to_ne_bytes()[..], &next.to_ne_bytes(), name.as_bytes()].concat();
            bytes.resize(24, 0);
            bytes
        };
        assert_eq!(
            names_in(&[entry(5, 24, "a"), entry(6, 24, "b-c"), entry(7, 0, "d"), entry(8, 0, "e")].concat()),
            ["a", "b-c", "d"]
        );
        assert!(names_in(&entry(0, 0, "")).is_empty());
        assert!(names_in(&[1, 2, 3]).is_empty());
        assert!(names().is_ok());
    }

    #[test]
    fn absent_mapping_is_none() {
        assert_eq!(find("longshore-no-such-mapping").expect("asked"), None);
        assert!(!remove("longshore-no-such-mapping").expect("asked"));
        assert_eq!(holders((7, 9999)).expect("asked"), Vec::<String>::new());
    }

    #[test]
    fn usage_of_a_thin_pool_is_in_its_status() {
        let status = "0 145/4161600 12/6144 - rw discard_passdown queue_if_no_space - 1024";
        assert_eq!(thin_pool_in(status), Some(ThinPool { data: 19, metadata: 0, held: None }));
        let full = "1 512/1024 6144/6144 873 out_of_data_space";
        assert_eq!(thin_pool_in(full), Some(ThinPool { data: 10_000, metadata: 5000, held: Some(873) }));
        for wrong in ["", "Fail", "0 1/0 1/2 -", "0 a/b 1/2 -", "0 1/2", "0 1/2 1/2", "0 1/2 1/2 x"] {
            assert_eq!(thin_pool_in(wrong), None, "{wrong}");
        }
        assert_eq!(thin_pool("longshore-no-such-mapping").expect("asked"), None);
    }

    #[test]
    fn sectors_of_a_thin_volume_are_in_its_status() {
        assert_eq!(thin_sectors_in("0 -"), Some(0));
        assert_eq!(thin_sectors_in("8192 20479"), Some(8192));
        for wrong in ["", "Fail", "Error", "-", "x 1"] {
            assert_eq!(thin_sectors_in(wrong), None, "{wrong}");
        }
        assert_eq!(thin_sectors("longshore-no-such-mapping").expect("asked"), None);
    }

    #[test]
    fn a_name_that_cannot_be_is_refused() {
        for name in ["", &"x".repeat(128)] {
            assert!(Request::of(name).is_err(), "{name:?}");
        }
        assert!(Request::of(&"x".repeat(127)).is_ok());
    }
}

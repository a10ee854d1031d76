//! What is mounted, asked of the kernel one question at a time: a table of all mounts costs as much as there are mounts, and one is read and
//! parsed for each question. statmount(2) and listmount(2) (Linux 6.8, all that we need from 6.13 on) show single mounts, by ids that are never
//! given twice.
//!
//! [`MountTable`] stays the model, and is what answers where the kernel or a container's seccomp profile does not have these calls, and
//! wherever their answer is not certain. A look-up that failed is never taken for "nothing is mounted".

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::mountinfo::{Mount, MountTable};
use super::{Error, Result, lock};

use kernel::Seen;

mod kernel;

/// linux/stat.h; rustix has no name for it.
const STATX_MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// How often a mount may come or go while we look at it.
const ATTEMPTS: u32 = 8;
const PLACE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The mounts of the calling thread's mount namespace.
#[derive(Debug)]
pub enum Mounts {
    /// Each question goes to the kernel, and is answered as it is then.
    Kernel,
    /// As they were when the table was read.
    Table(MountTable),
}

impl From<MountTable> for Mounts {
    fn from(table: MountTable) -> Mounts {
        Mounts::Table(table)
    }
}

impl Mounts {
    /// As they are now. Where the kernel cannot be asked for single ones, one table is read for all questions.
    ///
    /// # Errors
    /// As [`MountTable::read`].
    pub fn now() -> Result<Mounts> {
        if is_supported() { Ok(Mounts::Kernel) } else { MountTable::read().map(Mounts::Table) }
    }

    /// What is mounted exactly at `path`, the topmost last: see [`MountTable::at`]. Nothing that is mounted there is waited for: its
    /// server may be dead.
    ///
    /// # Errors
    /// As [`MountTable::read`].
    pub fn at(&self, path: &Path) -> Result<Vec<Mount>> {
        let of_table = |table: &MountTable| table.at(path).into_iter().cloned().collect();
        match self {
            Mounts::Table(table) => Ok(of_table(table)),
            Mounts::Kernel => match stack(path) {
                Some(stack) => Ok(stack.into_iter().map(|seen| seen.mount).collect()),
                None => Ok(of_table(&MountTable::read()?)),
            },
        }
    }

    /// A mount strictly below `path`: inside what is mounted there, or in the directory. What another mount hides may be left out, unless it
    /// is inside a mount at `path`.
    ///
    /// # Errors
    /// As [`MountTable::read`].
    pub fn inside(&self, path: &Path) -> Result<Option<Mount>> {
        let of_table = |table: &MountTable| table.below(path).next().cloned();
        match self {
            Mounts::Table(table) => Ok(of_table(table)),
            Mounts::Kernel => match inside(path) {
                Some(answer) => Ok(answer.map(|mount| *mount)),
                None => Ok(of_table(&MountTable::read()?)),
            },
        }
    }

    /// A mount, wherever it is, that `is` says to be the one. Only those are looked at of which `may` says that they can be, by what never
    /// changes of a mount and is remembered.
    ///
    /// # Errors
    /// As [`MountTable::read`].
    pub fn find(&self, may: impl Fn(&Fixed) -> bool, is: impl Fn(&Mount) -> bool) -> Result<Option<Mount>> {
        let of_table = |table: &MountTable| table.iter().find(|mount| is(mount)).cloned();
        match self {
            Mounts::Table(table) => Ok(of_table(table)),
            Mounts::Kernel => match find(&may, &is) {
                Ok(answer) => Ok(answer),
                Err(_) => Ok(of_table(&MountTable::read()?)),
            },
        }
    }
}

impl Mounts {
    /// The mount on which an open directory or file lies.
    ///
    /// # Errors
    /// As [`MountTable::read`]; `Unexpected` where it is on none that is shown.
    pub fn holder_of(&self, place: BorrowedFd<'_>) -> Result<Mount> {
        let shown = super::path::of_open(place, Path::new("an open directory"))?;
        let of_table = |table: &MountTable| {
            let seen = rustix::fs::statx(place, "", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID);
            let id = seen.map_err(|errno| Error::io("stat", &shown, errno))?.stx_mnt_id;
            let found = table.iter().find(|mount| mount.id == id).cloned();
            let reason = "the mount that it lies on is not shown in this mount namespace".to_owned();
            found.ok_or_else(|| Error::Unexpected { object: shown.display().to_string(), reason })
        };
        match self {
            Mounts::Table(table) => of_table(table),
            Mounts::Kernel => match mount_of(place).map(|(id, _)| kernel::stat(id)) {
                Some(Ok(seen)) if seen.reachable => Ok(seen.mount),
                _ => of_table(&MountTable::read()?),
            },
        }
    }

    /// As `holder_of`, with the path in the file system: what mountinfo shows as the root of a bind mount of the place.
    ///
    /// # Errors
    /// As `holder_of`.
    pub fn place_of(&self, place: BorrowedFd<'_>) -> Result<(Mount, PathBuf)> {
        let mount = self.holder_of(place)?;
        let path = super::path::of_open(place, &mount.mount_point)?;
        match path.strip_prefix(&mount.mount_point) {
            Ok(rest) if rest.as_os_str().is_empty() => Ok((mount.clone(), mount.root)),
            Ok(rest) => Ok((mount.clone(), mount.root.join(rest))),
            Err(_) => Err(Error::Unexpected {
                object: path.display().to_string(),
                reason: format!("it lies on the mount at {}, but not below it", mount.mount_point.display()),
            }),
        }
    }
}

/// Whether the kernel shows single mounts, with all that is in a line of mountinfo. EPERM of a seccomp profile is a no, as any other
/// failure is: the table is slower, not worse.
fn is_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        let root = rustix::fs::open("/", PLACE, Mode::empty()).ok();
        let seen = root.and_then(|root| mount_of(root.as_fd())).and_then(|(id, _)| kernel::stat(id).ok());
        seen.is_some_and(|seen| seen.mask & kernel::SB_SOURCE != 0) && kernel::list(kernel::ALL).is_ok()
    })
}

/// The id of the mount on which this lies, and whether it is that mount's top.
fn mount_of(place: BorrowedFd<'_>) -> Option<(u64, bool)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let seen = rustix::fs::statx(place, "", flags, STATX_MNT_ID_UNIQUE).ok()?;
    let known = StatxFlags::from_bits_retain(seen.stx_mask).contains(STATX_MNT_ID_UNIQUE);
    known.then_some((seen.stx_mnt_id, seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)))
}

/// Whether names in this directory are looked up on a disk of this machine, or in memory: no server has to answer.
fn is_local(directory: BorrowedFd<'_>) -> bool {
    const LOCAL: [&str; 4] = ["ext4", "xfs", "btrfs", "tmpfs"];
    let seen = mount_of(directory).and_then(|(id, _)| kernel::stat(id).ok());
    seen.is_some_and(|seen| LOCAL.contains(&seen.mount.fstype.as_str()))
}

/// What an attempt to look came to.
enum Look {
    Stack(Vec<Seen>),
    /// A mount came or went meanwhile.
    Changed,
    Unknown,
}

/// The mounts at `path`, the topmost last; `None` where the table must answer.
fn stack(path: &Path) -> Option<Vec<Seen>> {
    for _ in 0..ATTEMPTS {
        match look(path) {
            Look::Stack(stack) => return Some(stack),
            Look::Changed => {}
            Look::Unknown => return None,
        }
    }
    None
}

fn look(path: &Path) -> Look {
    let Some((directory, name)) = path.parent().zip(path.file_name()) else { return Look::Unknown };
    let directory = match parent(directory) {
        Ok(directory) => directory,
        Err(Errno::NOENT | Errno::NOTDIR) => return Look::Stack(Vec::new()),
        Err(_) => return Look::Unknown,
    };
    // Without entering any mount: where it is none, that is the kernel's own word.
    let place = |more| rustix::fs::openat2(&directory, name, PLACE, Mode::empty(), ResolveFlags::NO_XDEV | more);
    let found = match place(ResolveFlags::CACHED) {
        // A name that is not in memory, as most that do not exist.
        Err(Errno::AGAIN) if is_local(directory.as_fd()) => place(ResolveFlags::empty()),
        found => found,
    };
    match found {
        Ok(_) | Err(Errno::NOENT) => return Look::Stack(Vec::new()),
        Err(Errno::XDEV) => {}
        Err(_) => return Look::Unknown,
    }
    // Only by what the kernel has in memory, which it has of every mount, so that no file system or server is asked for anything.
    let top = match rustix::fs::openat2(&directory, name, PLACE, Mode::empty(), ResolveFlags::CACHED) {
        Ok(top) => top,
        Err(Errno::AGAIN | Errno::NOENT) => return Look::Changed,
        Err(_) => return Look::Unknown,
    };
    let seen = mount_of(top.as_fd());
    // Held for no longer: it would keep others from unmounting.
    drop(top);
    let Some((id, true)) = seen else { return Look::Changed };
    match kernel::stat(id) {
        Ok(top) if top.reachable && top.mount.mount_point == path => with_those_beneath(top),
        Err(Errno::NOENT) => Look::Changed,
        Ok(_) | Err(_) => Look::Unknown,
    }
}

/// A directory, by its plain path; not waited for.
fn parent(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::CACHED;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)
}

/// Each mount of a stack lies on the one beneath it, its parent.
fn with_those_beneath(top: Seen) -> Look {
    let path = top.mount.mount_point.clone();
    let mut stack = vec![top];
    while let Some(lowest) = stack.last().filter(|lowest| lowest.parent != lowest.id) {
        match kernel::stat(lowest.parent) {
            Ok(next) if next.reachable && next.mount.mount_point == path => stack.push(next),
            Ok(_) => break,
            Err(Errno::NOENT) => return Look::Changed,
            Err(_) => return Look::Unknown,
        }
    }
    stack.reverse();
    Look::Stack(stack)
}

/// The outer `None`: the table must answer.
#[allow(clippy::option_option, reason = "the outer says whether it is known")]
fn inside(path: &Path) -> Option<Option<Box<Mount>>> {
    let stack = stack(path)?;
    let Some(bottom) = stack.first() else { return is_empty(path)?.then_some(None) };
    for id in kernel::list(bottom.id).ok()? {
        if stack.iter().any(|seen| seen.id == id) {
            continue;
        }
        match kernel::stat(id) {
            Ok(seen) if seen.reachable && seen.mount.mount_point != path && seen.mount.mount_point.starts_with(path) => {
                return Some(Some(Box::new(seen.mount)));
            }
            // It has gone since.
            Err(Errno::NOENT) => {}
            // Moved meanwhile, or put upon the stack.
            Ok(_) | Err(_) => return None,
        }
    }
    Some(None)
}

/// Whether `path`, where nothing is mounted, is no directory, or one without entries: then no mount can be below it. `None`: not known.
fn is_empty(path: &Path) -> Option<bool> {
    let (directory, name) = path.parent().zip(path.file_name())?;
    let directory = match parent(directory) {
        Ok(directory) => directory,
        Err(Errno::NOENT | Errno::NOTDIR) => return Some(true),
        Err(_) => return None,
    };
    if !is_local(directory.as_fd()) {
        return None;
    }
    // It may be a directory of others: looking leaves no trace in it.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOATIME;
    let open = match rustix::fs::openat2(&directory, name, flags, Mode::empty(), ResolveFlags::NO_XDEV) {
        Ok(open) => open,
        Err(Errno::NOENT | Errno::NOTDIR) => return Some(true),
        Err(_) => return None,
    };
    for entry in rustix::fs::Dir::new(open).ok()? {
        if !matches!(entry.ok()?.file_name().to_bytes(), b"." | b"..") {
            return Some(false);
        }
    }
    Some(true)
}

/// What never changes of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    id: u64,
    /// Major and minor of the file system's device.
    pub device: (u32, u32),
    pub fstype: String,
    /// Only of a tmpfs: others may change theirs.
    pub source: Option<PathBuf>,
    /// It shows the top of its file system.
    whole: bool,
    /// Of the block device whose node it shows, once that was found out.
    node: Option<(u32, u32)>,
}

impl Fixed {
    fn of(seen: &Seen) -> Fixed {
        let Mount { device, fstype, source, root, .. } = &seen.mount;
        Fixed {
            id: seen.id,
            device: *device,
            fstype: fstype.clone(),
            source: (fstype == "tmpfs").then(|| source.clone()),
            whole: root == Path::new("/"),
            node: None,
        }
    }

    /// Whether it can be what shows the node of the block device with this number ([`Mount::block_node`]); `dev` is the device of the
    /// file system at /dev ([`super::mountinfo::of_dev`]).
    pub fn may_be_node_of(&self, number: (u32, u32), dev: Option<(u32, u32)>) -> bool {
        match self.node {
            Some(node) => node == number,
            None => Some(self.device) == dev && !self.whole,
        }
    }
}

/// Of all mounts that there were when it was last asked, by id. The ids are those of all namespaces.
static KNOWN: Mutex<Vec<Fixed>> = Mutex::new(Vec::new());

fn find(may: &dyn Fn(&Fixed) -> bool, is: &dyn Fn(&Mount) -> bool) -> rustix::io::Result<Option<Mount>> {
    for id in candidates(may)? {
        let seen = match kernel::stat(id) {
            Ok(seen) => seen,
            // It has gone since.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        if !seen.reachable {
            return Err(Errno::AGAIN);
        }
        let found = is(&seen.mount);
        if let Some(Some(node)) = seen.mount.node.get() {
            remember_node(id, *node);
        }
        if found {
            return Ok(Some(seen.mount));
        }
    }
    Ok(None)
}

/// The ids of all mounts that `may` be what is looked for. Each mount that is there is asked for once in its life.
fn candidates(may: &dyn Fn(&Fixed) -> bool) -> rustix::io::Result<Vec<u64>> {
    let mut known = lock(&KNOWN);
    // With the lock, since the list and what is known of it go together.
    let mut ids = kernel::list(kernel::ALL)?;
    ids.sort_unstable();
    let mut earlier = std::mem::take(&mut *known).into_iter().peekable();
    for id in ids {
        while earlier.next_if(|fixed| fixed.id < id).is_some() {}
        match earlier.next_if(|fixed| fixed.id == id) {
            Some(fixed) => known.push(fixed),
            None => match kernel::stat(id) {
                Ok(seen) => known.push(Fixed::of(&seen)),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            },
        }
    }
    Ok(known.iter().filter(|fixed| may(fixed)).map(|fixed| fixed.id).collect())
}

fn remember_node(id: u64, node: (u32, u32)) {
    let mut known = lock(&KNOWN);
    if let Ok(at) = known.binary_search_by_key(&id, |fixed| fixed.id)
        && let Some(fixed) = known.get_mut(at)
    {
        fixed.node = Some(node);
    }
}

#[cfg(test)]
mod tests;

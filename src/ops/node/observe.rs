//! What the kernel shows: what is mounted where, and whether it is the volume's.

use std::borrow::Borrow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use crate::backend::{BlockDevice, Directory, SharedConnection, Source};
use crate::os;
use crate::os::mountinfo::{Mount, MountTable, of_dev};
use crate::os::mounts::{Fixed, Mounts};
use crate::os::path::Root;
use crate::volume::{Error, Result};

use super::errors::unexpected;

/// What is mounted at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountState {
    Nothing,
    /// One mount, of this volume.
    Ours(Mount),
    /// Several mounts, all of this volume.
    Stack(usize),
    /// The topmost mount that is not this volume's.
    Foreign(Mount),
}

/// This boot's id, from the kernel.
pub fn boot() -> Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(PATH).map_err(|error| os::Error::io("read", PATH, error))?;
    Ok(id.trim().to_owned())
}

/// Whether `mount` shows the file system of `source`.
pub fn is_filesystem_of(mount: &Mount, source: &Source) -> bool {
    match source {
        Source::Device(device) if mount.fstype == "btrfs" => mount.is_btrfs_of(&device.path, device.number),
        Source::Device(device) => mount.device == device.number,
        Source::Filesystem { fstype, source, .. } => mount.fstype == *fstype && mount.source == Path::new(source),
        // Whichever mount of the share it is a bind of: one that went stale is the volume's, too.
        Source::Directory(Directory { root: Some(root), device, mount: shared, .. }) => {
            // What was removed shows nothing of any other.
            let shown = match mount.root.to_str().and_then(|shown| shown.strip_suffix("//deleted")) {
                Some(shown) => Path::new(shown),
                None => &mount.root,
            };
            // Without a name, any directory of the file system.
            let named = root.as_os_str().is_empty() || shown == root;
            mount.device == *device && named && mount.mount_point != *shared
        }
        Source::Directory(directory) => {
            mount.fstype == directory.fstype
                && mount.source == Path::new(&directory.source)
                && mount.mount_point != directory.mount
        }
    }
}

/// Those of `sources` that no other volume can have, so that every mount of them is this volume's, wherever it is.
pub fn exclusive(sources: &[Source]) -> Vec<Source> {
    sources.iter().filter(|source| !matches!(source, Source::Directory(_))).cloned().collect()
}

/// Whether `mount` is a bind of the device's node.
pub fn is_node_of(mount: &Mount, device: &BlockDevice) -> bool {
    mount.block_node() == Some(device.number)
}

/// Whether `mount` is of this volume, as a file system or as a device node.
pub fn is_of(mount: &Mount, sources: &[Source]) -> bool {
    sources.iter().any(|source| {
        let node = matches!(source, Source::Device(device) if is_node_of(mount, device));
        node || is_filesystem_of(mount, source)
    })
}

/// Whether a mount can be of this volume, by what never changes of it.
fn may_be_of(mount: &Fixed, sources: &[Source], dev: Option<(u32, u32)>) -> bool {
    sources.iter().any(|source| match source {
        Source::Device(device) => {
            mount.device == device.number || mount.fstype == "btrfs" || mount.may_be_node_of(device.number, dev)
        }
        Source::Filesystem { fstype, source, .. } => {
            mount.fstype == *fstype && mount.source.as_deref().is_none_or(|mounted| mounted == Path::new(source))
        }
        Source::Directory(Directory { root: Some(_), device, .. }) => mount.device == *device,
        Source::Directory(directory) => mount.fstype == directory.fstype,
    })
}

/// A mount of this volume, as a file system or as a device node, wherever it is, that is `also` this.
pub fn find(mounts: &Mounts, sources: &[Source], also: impl Fn(&Mount) -> bool) -> Result<Option<Mount>> {
    if sources.is_empty() {
        return Ok(None);
    }
    let dev = of_dev();
    Ok(mounts.find(|fixed| may_be_of(fixed, sources, dev), |mount| also(mount) && is_of(mount, sources))?)
}

/// A mount of what comes with a link, as a file system or as a device node.
pub fn mounted_from<'a>(table: &'a MountTable, connection: &SharedConnection) -> Option<&'a Mount> {
    let sources: Vec<Source> = connection.devices.iter().cloned().map(Source::Device).collect();
    table.iter().find(|mount| is_of(mount, &sources))
}

/// Whether what is mounted at a place shows a directory that its server no longer has (ESTALE): another was put where it was.
pub fn is_stale(at: &MountState, place: &Path, source: &Source) -> bool {
    const PATIENCE: Duration = Duration::from_secs(3);
    let shared = matches!((at, source), (MountState::Ours(_), Source::Directory(Directory { root: None, .. })));
    shared && os::responsive::answers(place, PATIENCE).is_err_and(|error| error.errno() == Some(libc::ESTALE))
}

/// What is at `path`; `sources` are what this volume is or was in this boot.
///
/// # Errors
/// Where the kernel does not tell.
pub fn at(mounts: &Mounts, path: &Path, sources: &[Source]) -> Result<MountState> {
    Ok(of_stack(&mounts.at(path)?, sources))
}

/// As [`at`], for the mounts that lie there.
pub fn of_stack<M: Borrow<Mount>>(stack: &[M], sources: &[Source]) -> MountState {
    if let Some(foreign) = stack.iter().map(Borrow::borrow).rev().find(|mount| !is_of(mount, sources)) {
        return MountState::Foreign(foreign.clone());
    }
    match stack {
        [] => MountState::Nothing,
        [one] => MountState::Ours(one.borrow().clone()),
        several => MountState::Stack(several.len()),
    }
}

/// Opens the one mount of this volume at `path`, and sees that it is this which is open: what mountinfo showed at a path may
/// have made way for something else since.
///
/// # Errors
/// Where it is not there.
pub fn open(root: &Root, path: &Path, source: &Source) -> Result<OwnedFd> {
    let gone = || unexpected(path, "the volume's mount is not there; repeat the call");
    let place = root.open_path(path)?.ok_or_else(gone)?;
    let id = os::mount::id(place.as_fd(), path)?;
    match at(&Mounts::now()?, path, std::slice::from_ref(source))? {
        MountState::Ours(mount) if mount.id == id => Ok(place),
        _ => Err(gone()),
    }
}

/// Opens a directory of a shared mount. Of a network share it is seen to be of this mount: one that is being mounted anew has none for a
/// moment, and the node's own directory lies there.
///
/// # Errors
/// `Stale` where it is of another mount.
pub fn open_directory(directory: &Directory) -> Result<OwnedFd> {
    let open = os::mount::open_in(&directory.mount, &directory.directory)?;
    let stat = rustix::fs::fstat(&open).map_err(|errno| os::Error::io("stat", &directory.mount, errno))?;
    let number = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    // A subvolume of btrfs has a number of its own.
    if directory.root.is_none() && number != directory.device {
        return Err(Error::Stale { object: directory.source.clone(), reason: "its share is being mounted anew".to_owned() });
    }
    Ok(open)
}

/// Whether the directory is in its share.
///
/// # Errors
/// Where that cannot be said.
pub fn has_directory(directory: &Directory) -> Result<bool> {
    match os::mount::open_in(&directory.mount, &directory.directory) {
        Ok(_) => Ok(true),
        Err(error) if error.is_missing() || error.errno() == Some(libc::ESTALE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Refuses a path in which something is mounted: it would be covered, or its unmounting fail.
pub fn nothing_inside(mounts: &Mounts, path: &Path) -> Result<()> {
    let Some(inside) = mounts.inside(path)? else { return Ok(()) };
    Err(Error::InUse {
        object: path.display().to_string(),
        by: format!("{} is mounted inside it at {}; unmount that first", inside.source.display(), inside.mount_point.display()),
    })
}

/// The number of the block device that lies open, `None` where it is none.
pub fn device_number(place: BorrowedFd<'_>, path: &Path) -> Result<Option<(u32, u32)>> {
    let stat = rustix::fs::fstat(place).map_err(|errno| os::Error::io("stat", path, errno))?;
    let block = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice;
    Ok(block.then(|| (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev))))
}

/// Whether `path` shows exactly this device's node.
pub fn shows_device(root: &Root, path: &Path, device: &BlockDevice) -> Result<bool> {
    let Some(place) = root.open_path(path)? else { return Ok(false) };
    Ok(device_number(place.as_fd(), path)? == Some(device.number))
}

/// Mounts for the tables of the plans.
#[cfg(test)]
pub(super) mod testing {
    use super::MountState;
    use crate::os::mountinfo::Mount;

    pub(in crate::ops::node) fn mounted(fstype: &str, options: &str) -> Mount {
        Mount {
            id: 10,
            parent: 1,
            device: (7, 3),
            root: "/".into(),
            mount_point: "/k/s".into(),
            options: options.split(',').map(str::to_owned).collect(),
            propagation: Vec::new(),
            fstype: fstype.to_owned(),
            source: "/dev/loop3".into(),
            super_options: vec!["rw".to_owned()],
            node: std::sync::OnceLock::new(),
        }
    }

    pub(in crate::ops::node) fn ours() -> MountState {
        MountState::Ours(mounted("ext4", "rw"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &str) -> MountTable {
        MountTable::parse(lines.as_bytes()).expect("a mountinfo")
    }

    fn device() -> Source {
        Source::Device(BlockDevice { path: "/dev/loop3".into(), number: (7, 3), identity: "x".to_owned() })
    }

    #[test]
    fn a_mount_is_ours_by_its_device_and_by_nothing_else() {
        let lines = "1 0 0:1 / / rw - rootfs rootfs rw\n\
                     10 1 7:3 / /a rw - ext4 /dev/loop3 rw\n\
                     11 1 7:4 / /b rw - ext4 /dev/loop3 rw\n\
                     12 1 0:40 / /c rw - btrfs /dev/loop3 rw\n\
                     13 1 0:41 / /d rw - btrfs /dev/loop4 rw\n\
                     14 1 0:5 /loop3 /e rw - devtmpfs dev rw\n\
                     15 1 0:5 /loop4 /f rw - devtmpfs dev rw\n\
                     16 1 7:3 / /g rw - ext4 /dev/loop3 rw\n\
                     17 16 7:3 / /g rw - ext4 /dev/loop3 rw\n\
                     18 17 0:9 / /h rw - tmpfs t rw\n\
                     19 1 0:9 /loop3 /i rw - tmpfs t rw\n\
                     20 1 0:5 /loop3//deleted /j rw - devtmpfs dev rw\n";
        let table = table(lines).with_node(14, (7, 3)).with_node(15, (7, 4)).with_node(20, (7, 3));
        let table = Mounts::from(table);
        let at = |path: &str| at(&table, Path::new(path), &[device()]).expect("a table");
        assert!(matches!(at("/a"), MountState::Ours(mount) if mount.id == 10));
        assert!(matches!(at("/b"), MountState::Foreign(_)), "a name may lie");
        assert!(matches!(at("/c"), MountState::Ours(_)));
        assert!(matches!(at("/d"), MountState::Foreign(_)));
        assert!(matches!(at("/e"), MountState::Ours(_)));
        assert!(matches!(at("/f"), MountState::Foreign(_)));
        assert!(matches!(at("/i"), MountState::Foreign(_)), "a file of a pod's tmpfs may have any name");
        assert!(matches!(at("/j"), MountState::Ours(_)), "a node that was removed keeps its number");
        assert!(matches!(at("/g"), MountState::Stack(2)));
        assert!(matches!(at("/x"), MountState::Nothing));
        assert!(
            matches!(super::at(&table, Path::new("/a"), &[]), Ok(MountState::Foreign(_))),
            "of an unknown volume nothing is ours"
        );
    }

    #[test]
    fn a_share_is_ours_by_type_and_source() {
        let share = Source::Filesystem { fstype: "nfs4".to_owned(), source: "s:/x".to_owned(), options: Vec::new() };
        let lines = "1 0 0:1 / / rw - rootfs rootfs rw\n2 1 0:9 / /a rw - nfs4 s:/x rw\n3 1 0:9 / /b rw - nfs4 s:/y rw\n";
        let table = Mounts::from(table(lines));
        assert!(matches!(at(&table, Path::new("/a"), std::slice::from_ref(&share)), Ok(MountState::Ours(_))));
        assert!(matches!(at(&table, Path::new("/b"), &[share]), Ok(MountState::Foreign(_))));
    }

    #[test]
    fn the_boot_has_an_id() {
        assert_eq!(boot().expect("reads").len(), 36);
    }
}

//! Subvolumes of btrfs: btrfs-ioctl(2), linux/btrfs.h, linux/btrfs_tree.h.
//!
//! A snapshot of one is made in an instant and is of one instant. What another subvolume has that lies in it is not in the snapshot: there it
//! is an empty directory.
#![allow(unsafe_code, reason = "no safe wrapper has btrfs's own ioctls")]

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::dir::OpenDir;
use super::mounts::Mounts;
use super::{Error, Result, path};

/// BTRFS_SUPER_MAGIC, statfs(2).
const BTRFS: i64 = 0x9123_683e;
/// The inode number of the top directory of each subvolume (BTRFS_FIRST_FREE_OBJECTID).
const TOP: u64 = 256;
/// BTRFS_SUBVOL_RDONLY, BTRFS_SUBVOL_SPEC_BY_ID.
const READ_ONLY: u64 = 1 << 1;
const BY_ID: u64 = 1 << 4;
/// The tree in which it is recorded which subvolume lies in which (BTRFS_ROOT_TREE_OBJECTID, BTRFS_ROOT_REF_KEY).
const ROOTS: u64 = 1;
const ROOT_REF: u32 = 156;
/// [`number`] of a subvolume is its id with this bit, which no inode number of btrfs has.
const IS_SUBVOLUME: u64 = 1 << 63;
/// A removal that finds more subvolumes in each other, or new ones again and again, is left for another time.
const MOST: usize = 10_000;

mod ioctl {
    /// struct btrfs_ioctl_vol_args_v2. The name is a number where the flags say so.
    #[repr(C)]
    pub(super) struct Arguments {
        pub fd: i64,
        pub transaction: u64,
        pub flags: u64,
        pub unused: [u64; 4],
        pub name: [u8; 4040],
    }
    const _: () = assert!(size_of::<Arguments>() == 4096);

    /// struct btrfs_ioctl_ino_lookup_args
    #[repr(C)]
    pub(super) struct Lookup {
        pub tree: u64,
        pub object: u64,
        pub name: [u8; 4080],
    }
    const _: () = assert!(size_of::<Lookup>() == 4096);

    /// struct btrfs_ioctl_search_args
    #[repr(C)]
    pub(super) struct Search {
        pub tree: u64,
        pub objects: [u64; 2],
        pub offsets: [u64; 2],
        pub transactions: [u64; 2],
        pub types: [u32; 2],
        pub items: u32,
        pub unused: u32,
        pub more_unused: [u64; 4],
        pub found: [u8; 3992],
    }
    const _: () = assert!(size_of::<Search>() == 4096);

    nix::ioctl_readwrite!(search, 0x94, 17, Search);
    nix::ioctl_readwrite!(look_up, 0x94, 18, Lookup);
    nix::ioctl_write_ptr!(snapshot, 0x94, 23, Arguments);
    nix::ioctl_write_ptr!(create, 0x94, 24, Arguments);
    nix::ioctl_write_ptr!(destroy, 0x94, 63, Arguments);
}

/// Whether a directory lies on btrfs.
pub fn are_possible(directory: &OpenDir) -> bool {
    rustix::fs::fstatfs(directory).is_ok_and(|found| found.f_type == BTRFS)
}

/// Whether `stat`, of what lies in this directory, or of the directory itself, is of the top of a subvolume.
pub fn is_one(directory: &OpenDir, stat: &Stat) -> bool {
    stat.st_ino == TOP && FileType::from_raw_mode(stat.st_mode) == FileType::Directory && are_possible(directory)
}

/// Whether an open directory is the top of one.
///
/// # Errors
/// `Io`.
pub fn is_open(directory: &OpenDir) -> Result<bool> {
    Ok(is_one(directory, &directory.stat_self()?))
}

/// What tells a directory from all others of its file system, also from those that were there before: its inode number; of a subvolume its
/// id, as all of them have one inode number. `stat` is that of `name` in `parent`.
///
/// # Errors
/// `Io`.
pub fn number(parent: &OpenDir, name: &OsStr, stat: &Stat) -> Result<u64> {
    if !is_one(parent, stat) {
        return Ok(stat.st_ino);
    }
    id_of(&parent.existing(name)?).map(|id| id | IS_SUBVOLUME)
}

/// Makes an empty one. It is durable once its parent is synced.
///
/// # Errors
/// `Io`: EEXIST where anything is there.
pub fn create(parent: &OpenDir, name: &str, mode: u32) -> Result<()> {
    let arguments = named(parent, name.as_ref(), 0, 0)?;
    // SAFETY: the descriptor is open, and `arguments` is laid out as the kernel's struct, which it reads.
    unsafe { ioctl::create(parent.as_fd().as_raw_fd(), &raw const arguments) }
        .map_err(|errno| failed("create subvolume", parent, name, errno))?;
    parent.set_mode(name, mode)
}

/// Makes a snapshot of a subvolume, durable on return. `false`, and nothing, where it is no subvolume, has other ones in it, or lies on another
/// file system.
///
/// # Errors
/// `Io`: EEXIST where anything is there.
pub fn snapshot(of: &OpenDir, parent: &OpenDir, name: &str, read_only: bool) -> Result<bool> {
    if !is_open(of)? {
        return Ok(false);
    }
    let id = id_of(of)?;
    if !inside(of, id)?.is_empty() {
        return Ok(false);
    }
    let arguments = named(parent, name.as_ref(), of.as_fd().as_raw_fd().into(), if read_only { READ_ONLY } else { 0 })?;
    // SAFETY: the descriptors are open, and `arguments` is laid out as the kernel's struct, which it reads.
    match unsafe { ioctl::snapshot(parent.as_fd().as_raw_fd(), &raw const arguments) } {
        Ok(_) => {}
        Err(nix::Error::EXDEV) => return Ok(false),
        Err(errno) => return Err(failed("create snapshot of subvolume", parent, name, errno)),
    }
    // One that was made in it meanwhile is missing in the snapshot.
    if inside(of, id)?.is_empty() {
        return Ok(true);
    }
    remove(parent, name.as_ref())?;
    Ok(false)
}

/// Removes one with all that is in it, other subvolumes too.
///
/// # Errors
/// `Io`: EBUSY where something is mounted in it (the kernel would unmount that), EPERM where the kernel refuses it, as for the default subvolume.
pub fn remove(parent: &OpenDir, name: &OsStr) -> Result<()> {
    let directory = parent.existing(name)?;
    let place = path::of_open(directory.as_fd(), directory.shown())?;
    if Mounts::now()?.inside(&place)?.is_some() {
        return Err(Error::io("remove subvolume", place, Errno::BUSY));
    }
    let mut ids = vec![id_of(&directory)?];
    drop(directory);
    let mut found = 0;
    while let Some(id) = ids.last().copied() {
        // By its name, in case it is moved away meanwhile; those in it have their names in directories that are not open.
        let arguments = if ids.len() == 1 {
            named(parent, name, 0, 0)?
        } else {
            let mut arguments = named(parent, OsStr::new(""), 0, BY_ID)?;
            arguments.name[..8].copy_from_slice(&id.to_ne_bytes());
            arguments
        };
        // SAFETY: the descriptor is open, and `arguments` is laid out as the kernel's struct, which it reads.
        match unsafe { ioctl::destroy(parent.as_fd().as_raw_fd(), &raw const arguments) } {
            Ok(_) | Err(nix::Error::ENOENT) => drop(ids.pop()),
            // Those in it go first.
            Err(errno @ nix::Error::ENOTEMPTY) => {
                let children = inside(parent, id)?;
                found += children.len();
                if children.is_empty() || found > MOST {
                    return Err(failed("remove subvolume", parent, name, errno));
                }
                ids.extend(children);
            }
            Err(errno) => return Err(failed("remove subvolume", parent, name, errno)),
        }
    }
    Ok(())
}

/// Of the subvolume in which a directory lies.
fn id_of(directory: &OpenDir) -> Result<u64> {
    let mut lookup = ioctl::Lookup { tree: 0, object: TOP, name: [0; 4080] };
    // SAFETY: the descriptor is open, and `lookup` is laid out as the kernel's struct, which it reads and writes.
    unsafe { ioctl::look_up(directory.as_fd().as_raw_fd(), &raw mut lookup) }
        .map_err(|errno| Error::io("read the subvolume of", directory.shown(), errno))?;
    Ok(lookup.tree)
}

/// Ids of the subvolumes that lie in the one with this id, but not in others in it; some of them, where there are very many. `directory` is any
/// of that file system.
fn inside(directory: &OpenDir, id: u64) -> Result<Vec<u64>> {
    let mut search = ioctl::Search {
        tree: ROOTS,
        objects: [id, id],
        offsets: [0, u64::MAX],
        transactions: [0, u64::MAX],
        types: [ROOT_REF, ROOT_REF],
        items: u32::MAX,
        unused: 0,
        more_unused: [0; 4],
        found: [0; 3992],
    };
    // SAFETY: the descriptor is open, and `search` is laid out as the kernel's struct, which it reads and writes.
    unsafe { ioctl::search(directory.as_fd().as_raw_fd(), &raw mut search) }
        .map_err(|errno| Error::io("read the subvolumes in", directory.shown(), errno))?;
    let mut rest = search.found.as_slice();
    let mut ids = Vec::new();
    for _ in 0..search.items {
        // struct btrfs_ioctl_search_header: transaction, object, offset (here the id), type, length of what follows.
        let (Some(offset), Some(length)) = (rest.get(16..24), rest.get(28..32)) else { break };
        let (Ok(offset), Ok(length)) = (offset.try_into().map(u64::from_ne_bytes), length.try_into().map(u32::from_ne_bytes))
        else {
            break;
        };
        ids.push(offset);
        rest = rest.get(32 + length as usize..).unwrap_or_default();
    }
    Ok(ids)
}

fn named(parent: &OpenDir, name: &OsStr, fd: i64, flags: u64) -> Result<ioctl::Arguments> {
    let mut arguments = ioctl::Arguments { fd, transaction: 0, flags, unused: [0; 4], name: [0; 4040] };
    // The last byte stays NUL.
    if name.len() >= arguments.name.len() || name.as_bytes().contains(&b'/') {
        return Err(failed("name subvolume", parent, name, nix::Error::ENAMETOOLONG));
    }
    arguments.name[..name.len()].copy_from_slice(name.as_bytes());
    Ok(arguments)
}

fn failed(action: &'static str, parent: &OpenDir, name: impl AsRef<OsStr>, errno: nix::Error) -> Error {
    Error::io(action, parent.path_of(name.as_ref()), errno)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::os::fs::testing::{self, Mounted, Scratch, tool};

    fn on_btrfs(test: impl FnOnce(&Path, OpenDir) + Send) {
        testing::on_btrfs(|at| test(at, OpenDir::open(at).unwrap()));
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn snapshot_has_what_was_there_at_its_instant() {
        on_btrfs(|at, top| {
            create(&top, "volume", 0o750).unwrap();
            assert_eq!(top.stat("volume").unwrap().unwrap().st_mode & 0o7777, 0o750);
            assert_eq!(create(&top, "volume", 0o750).unwrap_err().errno(), Some(libc::EEXIST));
            fs::write(at.join("volume/file"), "before").unwrap();
            let volume = top.existing("volume").unwrap();
            assert!(snapshot(&volume, &top, "kept", true).unwrap());
            assert!(snapshot(&volume, &top, "copy", false).unwrap());
            fs::write(at.join("volume/file"), "after").unwrap();
            fs::write(at.join("copy/more"), "more").unwrap();
            assert_eq!(fs::read(at.join("kept/file")).unwrap(), b"before");
            assert_eq!(names(&at.join("kept")), ["file"]);
            assert_eq!(names(&at.join("copy")), ["file", "more"]);
            assert_eq!(fs::write(at.join("kept/file"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
            let numbers = ["volume", "kept", "copy"].map(|name| {
                let stat = top.stat(name).unwrap().unwrap();
                assert!(is_one(&top, &stat), "{name}");
                number(&top, name.as_ref(), &stat).unwrap()
            });
            assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2], "{numbers:?}");
            for name in ["volume", "kept", "copy"] {
                remove(&top, name.as_ref()).unwrap();
            }
            assert_eq!(names(at), [""; 0]);
        });
    }

    #[test]
    fn directory_and_subvolume_with_another_in_it_have_no_snapshot() {
        on_btrfs(|at, top| {
            fs::create_dir(at.join("plain")).unwrap();
            assert!(!snapshot(&top.existing("plain").unwrap(), &top, "copy", true).unwrap());
            create(&top, "volume", 0o755).unwrap();
            tool("btrfs", &["subvolume", "create", at.join("volume/inner").to_str().unwrap()]).unwrap();
            assert!(!snapshot(&top.existing("volume").unwrap(), &top, "copy", true).unwrap());
            assert_eq!(names(at), ["plain", "volume"]);
            // Of another file system.
            let other = Scratch::mounted("btrfs", 200 << 20).unwrap();
            let elsewhere = OpenDir::open(other.path()).unwrap();
            create(&top, "alone", 0o755).unwrap();
            assert!(!snapshot(&top.existing("alone").unwrap(), &elsewhere, "copy", true).unwrap());
        });
    }

    #[test]
    fn removal_takes_those_in_it_too_but_waits_for_what_is_mounted() {
        on_btrfs(|at, top| {
            create(&top, "volume", 0o755).unwrap();
            let volume = at.join("volume");
            for path in ["directory/inner", "directory/inner/innermost", "directory/second"] {
                fs::create_dir_all(volume.join(path).parent().unwrap()).unwrap();
                tool("btrfs", &["subvolume", "create", volume.join(path).to_str().unwrap()]).unwrap();
            }
            let (from, to) = (volume.join("directory/second"), volume.join("directory/inner/read-only"));
            tool("btrfs", &["subvolume", "snapshot", "-r", from.to_str().unwrap(), to.to_str().unwrap()]).unwrap();
            let odd = OpenDir::open(&volume.join("directory")).unwrap();
            let raw = OsStr::from_bytes(b"not UTF-8: \xff");
            snapshot(&OpenDir::open(&volume.join("directory/second")).unwrap(), &odd, "odd", true).unwrap();
            odd.rename("odd", &odd, raw).unwrap();
            remove(&odd, raw).unwrap();
            assert!(odd.stat(raw).unwrap().is_none());
            let place = volume.join("directory/second/mounted");
            fs::create_dir(&place).unwrap();
            let mounted = Mounted::new(Path::new("tmpfs"), &place, "tmpfs");
            fs::write(place.join("precious"), "another's").unwrap();
            assert_eq!(remove(&top, "volume".as_ref()).unwrap_err().errno(), Some(libc::EBUSY));
            assert_eq!(fs::read(place.join("precious")).unwrap(), b"another's");
            drop(mounted);
            remove(&top, "volume".as_ref()).unwrap();
            assert_eq!(names(at), [""; 0]);
        });
    }
}

//! A group that may read and write a whole volume (VOLUME_MOUNT_GROUP; Kubernetes' fsGroup, OnRootMismatch).
//!
//! The root is done last: whoever finds it right knows that everything below is right, and a walk that was cut off is
//! done again. No link is followed and no mount below is entered.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat};

use crate::os;

/// For a file: read and write, for its owner too, as kubelet does it.
const FILE: u32 = 0o660;
/// For a folder also: enter it, and what is made in it belongs to the group.
const FOLDER: u32 = 0o2770;

/// Makes everything on the file system of the folder `root` belong to `gid`, readable and writable for it. Answers whether
/// anything had to be done. `path` is for messages.
pub fn apply(root: BorrowedFd<'_>, path: &Path, gid: u32) -> os::Result<bool> {
    let stat = stat(root, path)?;
    if is_right(&stat, gid) {
        return Ok(false);
    }
    let folder = reopen(root, path)?;
    walk(&folder, path, stat.st_dev, gid)?;
    set(folder.as_fd(), path, &stat, gid)?;
    Ok(true)
}

/// One folder that is being read.
struct Level {
    folder: OwnedFd,
    stat: Stat,
    entries: Dir,
    path: PathBuf,
}

/// Depth first; a folder is set after what it holds.
fn walk(root: &OwnedFd, path: &Path, device: u64, gid: u32) -> os::Result<()> {
    let mut levels = vec![open_level(reopen(root.as_fd(), path)?, path.to_owned())?];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.read() else {
            let Some(done) = levels.pop() else { break };
            // The root itself is the caller's.
            if !levels.is_empty() {
                set(done.folder.as_fd(), &done.path, &done.stat, gid)?;
            }
            continue;
        };
        let entry = entry.map_err(|errno| os::Error::io("read folder", &level.path, errno))?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let path = level.path.join(String::from_utf8_lossy(name.to_bytes()).as_ref());
        let opened = rustix::fs::openat(&level.folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let place = match opened {
            Ok(place) => place,
            // Whoever uses the volume may remove things meanwhile.
            Err(rustix::io::Errno::NOENT) => continue,
            Err(errno) => return Err(os::Error::io("open", &path, errno)),
        };
        let stat = stat(place.as_fd(), &path)?;
        if stat.st_dev != device {
            continue;
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            levels.push(open_level(reopen(place.as_fd(), &path)?, path)?);
        } else {
            set(place.as_fd(), &path, &stat, gid)?;
        }
    }
    Ok(())
}

fn open_level(folder: OwnedFd, path: PathBuf) -> os::Result<Level> {
    let stat = stat(folder.as_fd(), &path)?;
    let entries = Dir::read_from(&folder).map_err(|errno| os::Error::io("read folder", &path, errno))?;
    Ok(Level { folder, stat, entries, path })
}

/// From a place to a folder that can be read.
fn reopen(place: BorrowedFd<'_>, path: &Path) -> os::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(place, ".", flags, Mode::empty()).map_err(|errno| os::Error::io("open folder", path, errno))
}

fn stat(place: BorrowedFd<'_>, path: &Path) -> os::Result<Stat> {
    rustix::fs::fstat(place).map_err(|errno| os::Error::io("stat", path, errno))
}

fn wanted(stat: &Stat) -> u32 {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => FOLDER,
        FileType::Symlink => 0,
        _ => FILE,
    }
}

fn is_right(stat: &Stat, gid: u32) -> bool {
    stat.st_gid == gid && stat.st_mode & wanted(stat) == wanted(stat)
}

fn set(place: BorrowedFd<'_>, path: &Path, stat: &Stat, gid: u32) -> os::Result<()> {
    if is_right(stat, gid) {
        return Ok(());
    }
    if stat.st_gid != gid {
        rustix::fs::chownat(place, "", None, Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)
            .map_err(|errno| os::Error::io("change group", path, errno))?;
    }
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Ok(());
    }
    // chown took setuid and setgid off a file; the mode as it was brings them back. A place opened with O_PATH takes no fchmod;
    // its entry below /proc leads to exactly this inode.
    let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | wanted(stat));
    rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), mode)
        .map_err(|errno| os::Error::io("change mode", path, errno))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn all_below_belongs_to_the_group_and_no_link_is_followed() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: changing groups needs root");
            return;
        }
        let outside = tempfile::NamedTempFile::new().expect("a file");
        let before = fs::metadata(outside.path()).expect("stat");
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("a/b");
        fs::create_dir_all(&deep).expect("makes");
        fs::write(deep.join("file"), "x").expect("writes");
        fs::set_permissions(deep.join("file"), fs::Permissions::from_mode(0o4700)).expect("chmod");
        symlink(outside.path(), deep.join("link")).expect("links");
        let root = fs::File::open(folder.path()).expect("opens");

        assert!(apply(root.as_fd(), folder.path(), 4711).expect("applies"));
        for path in [folder.path(), &deep, &folder.path().join("a")] {
            let stat = fs::metadata(path).expect("stat");
            assert_eq!((stat.gid(), stat.mode() & 0o2770), (4711, 0o2770), "{}", path.display());
        }
        let file = fs::metadata(deep.join("file")).expect("stat");
        assert_eq!((file.gid(), file.mode() & 0o7777), (4711, 0o4760));
        assert_eq!(fs::symlink_metadata(deep.join("link")).expect("stat").gid(), 4711);
        let after = fs::metadata(outside.path()).expect("stat");
        assert_eq!((after.gid(), after.mode()), (before.gid(), before.mode()), "what a link leads to is untouched");

        assert!(!apply(root.as_fd(), folder.path(), 4711).expect("applies"), "a right root is all that is looked at");
    }

    #[test]
    fn a_walk_that_was_cut_off_is_done_again() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: changing groups needs root");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("early"), "").expect("writes");
        fs::write(folder.path().join("late"), "").expect("writes");
        std::os::unix::fs::chown(folder.path().join("early"), None, Some(4711)).expect("as a cut-off walk leaves it");
        let root = fs::File::open(folder.path()).expect("opens");
        assert!(apply(root.as_fd(), folder.path(), 4711).expect("applies"));
        assert_eq!(fs::metadata(folder.path().join("late")).expect("stat").gid(), 4711);
    }
}

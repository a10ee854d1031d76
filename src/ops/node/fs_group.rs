//! A group that may read and write a whole volume (VOLUME_MOUNT_GROUP; Kubernetes' fsGroup, OnRootMismatch).
//!
//! The root is done last: anyone who finds it right knows that everything below is right, and a walk that was interrupted is
//! done again. No link is followed and no mount below is entered.
//!
//! A pod chooses how deep and how wide its volume is. So the walk has four descriptors and bounded memory, whatever the tree: it goes
//! down by name and up by `..`, and reads on in the parent after the directory that it came from.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::hash::{BuildHasher, RandomState};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::os;

/// For a file: read and write, for its owner too, as kubelet does it.
const FILE: u32 = 0o660;
/// For a directory also: enter it, and what is made in it belongs to the group.
const DIRECTORY: u32 = 0o2770;
/// Of how many open directories, the deepest, it is remembered where to read on; 16 bytes each. Further up the directory is read again, up
/// to the one that the walk came from.
const REMEMBERED: usize = 1 << 16;
/// Bytes of directory entries that are read at a time; the longest entry takes 280. After each subdirectory they are read again.
const BUFFER: usize = 4096;
/// Neither out of the mount nor along a link.
const WITHIN: ResolveFlags = ResolveFlags::NO_XDEV.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Makes everything on the file system of the directory `root` belong to `gid`, readable and writable for it. Answers whether
/// anything had to be done. `path` is for messages.
///
/// # Errors
/// `Io`; `Unexpected` where a directory was moved meanwhile, so that the call must be repeated.
pub fn apply(root: BorrowedFd<'_>, path: &Path, gid: u32) -> os::Result<bool> {
    let stat = rustix::fs::fstat(root).map_err(|errno| os::Error::io("stat", path, errno))?;
    if is_right(&stat, gid) {
        return Ok(false);
    }
    Walk::new(root, path, gid, REMEMBERED)?.run()?;
    set(root, &stat, gid).map_err(|(action, errno)| os::Error::io(action, path, errno))?;
    Ok(true)
}

/// A directory above the present one.
struct Level {
    inode: u64,
    /// Where to read on (d_off of the entry that was entered).
    next: u64,
}

/// Depth first; a directory is set after what it holds.
struct Walk<'a> {
    /// For messages.
    root: &'a Path,
    gid: u32,
    device: u64,
    /// The directory that is read, and its inode.
    current: OwnedFd,
    inode: u64,
    depth: u64,
    /// The nearest directories above, the parent last.
    above: VecDeque<Level>,
    remembered: usize,
    /// Each directory by its depth and inode, from when it is entered until it is left: 0 at the end, unless one that is not remembered
    /// was moved meanwhile.
    trail: u64,
    hasher: RandomState,
}

impl<'a> Walk<'a> {
    fn new(root: BorrowedFd<'_>, path: &'a Path, gid: u32, remembered: usize) -> os::Result<Walk<'a>> {
        let current = reopen(root).map_err(|errno| os::Error::io("open directory", path, errno))?;
        let stat = rustix::fs::fstat(&current).map_err(|errno| os::Error::io("stat", path, errno))?;
        let (above, hasher) = (VecDeque::new(), RandomState::new());
        let (device, inode) = (stat.st_dev, stat.st_ino);
        Ok(Walk { root: path, gid, device, current, inode, depth: 0, above, remembered, trail: 0, hasher })
    }

    /// Sets all below the root; the root itself is the caller's.
    fn run(&mut self) -> os::Result<()> {
        let mut from = 0;
        loop {
            match self.set_entries(from)? {
                Some((directory, stat, next)) => {
                    self.enter(directory, &stat, next);
                    from = 0;
                }
                None if self.depth == 0 => break,
                None => from = self.leave()?,
            }
        }
        if self.trail == 0 { Ok(()) } else { Err(self.moved()) }
    }

    /// Sets what the present directory holds after `from`, up to the next directory: that, and where to read on after it.
    fn set_entries(&self, from: u64) -> os::Result<Option<(OwnedFd, Stat, u64)>> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut entries = self.entries(&mut buffer, from)?;
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| self.failed("read directory", None, errno))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let failed = |action| move |errno| self.failed(action, Some(name), errno);
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            // A symbolic link at the end is opened itself, as O_PATH and O_NOFOLLOW together do.
            let place = match rustix::fs::openat2(&self.current, name, flags, Mode::empty(), ResolveFlags::NO_XDEV) {
                Ok(place) => place,
                // Anyone who uses the volume may remove things meanwhile; or it is a mount.
                Err(Errno::NOENT | Errno::XDEV) => continue,
                Err(errno) => return Err(failed("open")(errno)),
            };
            let stat = rustix::fs::fstat(&place).map_err(failed("stat"))?;
            if stat.st_dev != self.device {
                continue;
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let directory = reopen(place.as_fd()).map_err(failed("open directory"))?;
                return Ok(Some((directory, stat, entry.next_entry_cookie())));
            }
            set(place.as_fd(), &stat, self.gid).map_err(|(action, errno)| failed(action)(errno))?;
        }
        Ok(None)
    }

    fn enter(&mut self, directory: OwnedFd, stat: &Stat, next: u64) {
        if self.above.len() == self.remembered {
            self.above.pop_front();
        }
        self.above.push_back(Level { inode: self.inode, next });
        (self.current, self.inode) = (directory, stat.st_ino);
        self.depth += 1;
        self.trail ^= self.hasher.hash_one((self.depth, self.inode));
    }

    /// Sets the present directory and goes up to its parent: where to read on there.
    ///
    /// # Errors
    /// `Unexpected` where `..` does not lead where the walk came from. The kernel follows no `..` out of the mount.
    fn leave(&mut self) -> os::Result<u64> {
        let stat = rustix::fs::fstat(&self.current).map_err(|errno| self.failed("stat", None, errno))?;
        set(self.current.as_fd(), &stat, self.gid).map_err(|(action, errno)| self.failed(action, None, errno))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = match rustix::fs::openat2(&self.current, "..", flags, Mode::empty(), WITHIN) {
            Ok(parent) => parent,
            Err(Errno::NOENT | Errno::XDEV) => return Err(self.moved()),
            Err(errno) => return Err(self.failed("open the parent of", None, errno)),
        };
        let stat = rustix::fs::fstat(&parent).map_err(|errno| self.failed("stat the parent of", None, errno))?;
        let known = self.above.pop_back();
        if stat.st_dev != self.device || known.as_ref().is_some_and(|level| level.inode != stat.st_ino) {
            return Err(self.moved());
        }
        self.trail ^= self.hasher.hash_one((self.depth, self.inode));
        self.depth -= 1;
        self.current = parent;
        let left = std::mem::replace(&mut self.inode, stat.st_ino);
        known.map_or_else(|| self.position_after(left), |level| Ok(level.next))
    }

    /// Where to read on in the present directory after the one with this inode.
    fn position_after(&self, inode: u64) -> os::Result<u64> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut entries = self.entries(&mut buffer, 0)?;
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| self.failed("read directory", None, errno))?;
            if entry.ino() == inode && !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                return Ok(entry.next_entry_cookie());
            }
        }
        Err(self.moved())
    }

    fn entries<'b>(&self, buffer: &'b mut [MaybeUninit<u8>], from: u64) -> os::Result<RawDir<'b, BorrowedFd<'_>>> {
        rustix::fs::seek(&self.current, SeekFrom::Start(from)).map_err(|errno| self.failed("seek in directory", None, errno))?;
        Ok(RawDir::new(self.current.as_fd(), buffer))
    }

    /// Where the walk is, for messages: too deep for a path it is the root.
    fn place(&self) -> PathBuf {
        let shown = std::fs::read_link(format!("/proc/self/fd/{}", self.current.as_raw_fd()));
        match shown {
            Ok(place) if place.starts_with(self.root) => place,
            // In a mount that is mounted nowhere, the path begins at its root.
            Ok(place) => self.root.join(place.strip_prefix("/").unwrap_or(&place)),
            Err(_) => self.root.to_owned(),
        }
    }

    fn failed(&self, action: &'static str, name: Option<&CStr>, errno: Errno) -> os::Error {
        let place = self.place();
        let object = name.map_or(place.clone(), |name| place.join(std::ffi::OsStr::from_bytes(name.to_bytes())));
        os::Error::io(action, object, errno)
    }

    fn moved(&self) -> os::Error {
        os::Error::Unexpected {
            object: self.place().display().to_string(),
            reason: format!("a directory was moved while the group of {} was set; repeat the call", self.root.display()),
        }
    }
}

/// From a place to a directory that can be read.
fn reopen(place: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(place, ".", flags, Mode::empty())
}

fn wanted(stat: &Stat) -> u32 {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => DIRECTORY,
        FileType::Symlink => 0,
        _ => FILE,
    }
}

fn is_right(stat: &Stat, gid: u32) -> bool {
    stat.st_gid == gid && stat.st_mode & wanted(stat) == wanted(stat)
}

/// # Errors
/// What failed, and why.
fn set(place: BorrowedFd<'_>, stat: &Stat, gid: u32) -> Result<(), (&'static str, Errno)> {
    if is_right(stat, gid) {
        return Ok(());
    }
    if stat.st_gid != gid {
        rustix::fs::chownat(place, "", None, Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)
            .map_err(|errno| ("change group", errno))?;
    }
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Ok(());
    }
    // chown took setuid and setgid off a file; the mode as it was brings them back. A place opened with O_PATH takes no fchmod;
    // its entry below /proc leads to exactly this inode.
    let mode = Mode::from_raw_mode((stat.st_mode & 0o7777) | wanted(stat));
    rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), mode).map_err(|errno| ("change mode", errno))
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
        let directory = tempfile::tempdir().expect("a directory");
        let deep = directory.path().join("a/b");
        fs::create_dir_all(&deep).expect("makes");
        fs::write(deep.join("file"), "x").expect("writes");
        fs::set_permissions(deep.join("file"), fs::Permissions::from_mode(0o4700)).expect("chmod");
        symlink(outside.path(), deep.join("link")).expect("links");
        let root = fs::File::open(directory.path()).expect("opens");

        assert!(apply(root.as_fd(), directory.path(), 4711).expect("applies"));
        for path in [directory.path(), &deep, &directory.path().join("a")] {
            let stat = fs::metadata(path).expect("stat");
            assert_eq!((stat.gid(), stat.mode() & 0o2770), (4711, 0o2770), "{}", path.display());
        }
        let file = fs::metadata(deep.join("file")).expect("stat");
        assert_eq!((file.gid(), file.mode() & 0o7777), (4711, 0o4760));
        assert_eq!(fs::symlink_metadata(deep.join("link")).expect("stat").gid(), 4711);
        let after = fs::metadata(outside.path()).expect("stat");
        assert_eq!((after.gid(), after.mode()), (before.gid(), before.mode()), "what a link leads to is untouched");

        assert!(!apply(root.as_fd(), directory.path(), 4711).expect("applies"), "a right root is all that is looked at");
    }

    #[test]
    fn a_walk_that_was_interrupted_is_done_again() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: changing groups needs root");
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("early"), "").expect("writes");
        fs::write(directory.path().join("late"), "").expect("writes");
        std::os::unix::fs::chown(directory.path().join("early"), None, Some(4711)).expect("as an interrupted walk leaves it");
        let root = fs::File::open(directory.path()).expect("opens");
        assert!(apply(root.as_fd(), directory.path(), 4711).expect("applies"));
        assert_eq!(fs::metadata(directory.path().join("late")).expect("stat").gid(), 4711);
    }

    /// Runs `test` in a process of its own, which may have few descriptors; true in that process.
    #[allow(clippy::disallowed_methods, reason = "the test itself, with limits of its own")]
    fn alone(test: &str) -> bool {
        const ALONE: &str = "LONGSHORE_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return true;
        }
        let mut command = std::process::Command::new(std::env::current_exe().expect("this test"));
        let name = format!("{}::{test}", module_path!().split_once("::").expect("in a crate").1);
        let output = command.args([&name, "--exact", "--nocapture", "--test-threads=1"]).env(ALONE, "1").output().expect("runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
        false
    }

    fn descend(directory: &mut OwnedFd, name: &str) {
        rustix::fs::mkdirat(&*directory, name, Mode::RWXU).expect("makes");
        let below = rustix::fs::openat(&*directory, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opens");
        *directory = below;
    }

    /// VmHWM, in KiB.
    fn most_resident() -> u64 {
        let status = fs::read_to_string("/proc/self/status").expect("reads");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    #[test]
    fn deep_tree_takes_few_descriptors_and_little_memory() {
        const DEPTH: usize = 100_000;
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: changing groups needs root");
            return;
        }
        if !alone("deep_tree_takes_few_descriptors_and_little_memory") {
            return;
        }
        let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("limits");
        os::mount::testing::in_own_namespace(|| {
            let volume = tempfile::tempdir().expect("a directory");
            rustix::mount::mount("deep", volume.path(), "tmpfs", rustix::mount::MountFlags::empty(), None).expect("mounts");
            let root = fs::File::open(volume.path()).expect("opens");
            let mut deepest: OwnedFd = root.try_clone().expect("clones").into();
            for _ in 0..DEPTH {
                descend(&mut deepest, "d");
            }
            // Beside, as wide as several buffers, so that something is to be read on after the deep one.
            for number in 0..2000 {
                fs::create_dir(volume.path().join(format!("wide-{number}"))).expect("makes");
                fs::write(volume.path().join(format!("wide-{number}/file")), "").expect("writes");
            }
            let before = most_resident();
            assert!(apply(root.as_fd(), volume.path(), 4711).expect("applies"));
            let grown = most_resident() - before;
            assert!(grown < 16 << 10, "{grown} KiB for {DEPTH} levels");
            let deepest = rustix::fs::fstat(&deepest).expect("stat");
            assert_eq!((deepest.st_gid, deepest.st_mode & 0o2770), (4711, 0o2770));
            for number in 0..2000 {
                let file = fs::metadata(volume.path().join(format!("wide-{number}/file"))).expect("stat");
                assert_eq!((file.gid(), file.mode() & 0o660), (4711, 0o660), "{number}");
            }
            drop(root);
            rustix::mount::unmount(volume.path(), rustix::mount::UnmountFlags::DETACH).expect("unmounts");
        });
    }

    /// As in a tree that is deeper than what is remembered.
    #[test]
    fn directories_that_are_not_remembered_are_read_on_where_the_walk_came_from() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: changing groups needs root");
            return;
        }
        let volume = tempfile::tempdir().expect("a directory");
        let mut places = vec![volume.path().to_owned()];
        for _ in 0..4 {
            for place in std::mem::take(&mut places) {
                for name in ["a", "b", "c"] {
                    fs::create_dir(place.join(name)).expect("makes");
                    fs::write(place.join(format!("file-{name}")), "").expect("writes");
                    places.push(place.join(name));
                }
            }
        }
        let root = fs::File::open(volume.path()).expect("opens");
        for (gid, remembered) in [(4711, 1), (4712, 2), (4713, 3)] {
            Walk::new(root.as_fd(), volume.path(), gid, remembered).expect("opens").run().expect("runs");
            for place in places.iter().flat_map(|place| place.ancestors().take(4)) {
                for name in ["", "file-a", "file-c"].map(|name| place.join(name)).iter().filter(|path| path.exists()) {
                    assert_eq!(fs::metadata(name).expect("stat").gid(), gid, "{}", name.display());
                }
            }
        }
    }

    #[test]
    fn directory_that_is_moved_meanwhile_fails_the_walk() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: changing groups needs root");
            return;
        }
        for remembered in [8, 1] {
            let volume = tempfile::tempdir().expect("a directory");
            let path = |name: &str| volume.path().join(name);
            fs::create_dir_all(path("a/b/c/d")).expect("makes");
            fs::create_dir_all(path("other/x")).expect("makes");
            let root = fs::File::open(volume.path()).expect("opens");
            let mut walk = Walk::new(root.as_fd(), volume.path(), 4711, remembered).expect("opens");
            for name in ["a", "b", "c", "d"] {
                let below = rustix::fs::openat(&walk.current, name, OFlags::RDONLY, Mode::empty()).expect("opens");
                let stat = rustix::fs::fstat(&below).expect("stat");
                walk.enter(below, &stat, u64::MAX >> 1);
            }
            fs::rename(path("a/b/c"), path("other/x/c")).expect("moves");
            let mut result = walk.leave();
            for _ in 0..3 {
                result = result.and_then(|_| walk.leave());
            }
            let error = match result {
                // Nothing that was remembered shows it.
                Ok(_) => {
                    assert_eq!((remembered, walk.depth), (1, 0));
                    assert_ne!(walk.trail, 0);
                    walk.run().expect_err("the trail tells it")
                }
                Err(error) => error,
            };
            assert!(error.to_string().contains("was moved while the group of"), "{error}");
        }
    }

    #[test]
    fn mounts_inside_are_not_entered() {
        os::mount::testing::in_own_namespace(|| {
            let volume = tempfile::tempdir().expect("a directory");
            let path = |name: &str| volume.path().join(name);
            for name in ["tmpfs", "bind", "elsewhere/below"] {
                fs::create_dir_all(path(name)).expect("makes");
            }
            let outside = tempfile::tempdir().expect("a directory");
            fs::create_dir(outside.path().join("x")).expect("makes");
            rustix::mount::mount("m", path("tmpfs"), "tmpfs", rustix::mount::MountFlags::empty(), None).expect("mounts");
            fs::write(path("tmpfs/file"), "").expect("writes");
            // Of the same file system, which st_dev does not tell.
            rustix::mount::mount_bind(outside.path(), path("bind")).expect("binds");
            let root = fs::File::open(volume.path()).expect("opens");
            let before = fs::metadata(outside.path().join("x")).expect("stat").gid();
            assert!(apply(root.as_fd(), volume.path(), 4711).expect("applies"));
            assert_eq!(fs::metadata(path("elsewhere/below")).expect("stat").gid(), 4711);
            assert_ne!(fs::metadata(path("tmpfs/file")).expect("stat").gid(), 4711);
            assert_eq!(fs::metadata(outside.path().join("x")).expect("stat").gid(), before);
            for name in ["tmpfs", "bind"] {
                rustix::mount::unmount(path(name), rustix::mount::UnmountFlags::DETACH).expect("unmounts");
            }
        });
    }
}

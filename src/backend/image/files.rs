//! What a pool does with its own files. Names are resolved below the pool's open directory, never through a link; a
//! directory is only ever emptied of the files that we put there.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FallocateFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, StatVfsMountFlags};
use rustix::io::Errno;

use crate::os::{self, Error, durable};

use super::layout::is_lease_name;

/// The data of a volume or snapshot.
pub(super) const IMAGE: &str = "image";
/// What is to be known of it.
pub(super) const META: &str = "meta.json";
/// All that a directory of ours can hold; the last is what an interrupted [`os::durable::write`] leaves.
const KNOWN: [&str; 3] = [IMAGE, META, ".meta.json.tmp"];

/// Whether a directory of ours may hold a file of this name.
pub(super) fn is_known(name: &str) -> bool {
    KNOWN.contains(&name) || is_lease_name(name)
}

const BELOW: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// What the kernel says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Device and inode: the identity.
    pub inode: (u64, u64),
    pub length: u64,
    /// Bytes of disk that it has.
    pub allocated: u64,
    pub regular: bool,
    pub directory: bool,
    /// When its content, name or owner changed last (ctime), in nanoseconds since 1970; the kernel alone sets it.
    pub changed: i64,
}

/// Which file it is, and as of when: of a file that is replaced and not written to, the same stamp means the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: (u64, u64),
    length: u64,
    changed: i64,
}

/// A [`Stamp`] as it is kept on disk: without the device, whose number may be another one after a reboot.
pub(super) type StoredStamp = (u64, u64, i64);

impl Seen {
    pub fn stamp(&self) -> Stamp {
        Stamp { inode: self.inode, length: self.length, changed: self.changed }
    }
}

impl Stamp {
    pub fn stored(self) -> StoredStamp {
        (self.inode.1, self.length, self.changed)
    }

    /// Of a file of this device.
    pub fn of_stored(device: u64, (inode, length, changed): StoredStamp) -> Stamp {
        Stamp { inode: (device, inode), length, changed }
    }
}

#[allow(clippy::useless_conversion, reason = "the fields' types differ between architectures")]
fn seen(stat: &rustix::fs::Stat) -> Seen {
    let kind = FileType::from_raw_mode(stat.st_mode);
    Seen {
        inode: (stat.st_dev.into(), stat.st_ino.into()),
        length: u64::try_from(stat.st_size).unwrap_or(0),
        allocated: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
        regular: kind == FileType::RegularFile,
        directory: kind == FileType::Directory,
        changed: i64::from(stat.st_ctime).saturating_mul(1_000_000_000).saturating_add_unsigned(stat.st_ctime_nsec.into()),
    }
}

/// Looks at `relative`, through no link at any component; `None` where there is nothing.
pub(super) fn look(root: BorrowedFd<'_>, relative: &Path) -> os::Result<Option<Seen>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat2(root, relative, flags, Mode::empty(), BELOW).and_then(rustix::fs::fstat) {
        Ok(stat) => Ok(Some(seen(&stat))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(Error::io("stat", relative, error)),
    }
}

/// As [`look`], by one system call, which follows links in directories: for what is only compared with what was seen before.
pub(super) fn glance(root: BorrowedFd<'_>, relative: &Path) -> os::Result<Option<Seen>> {
    match rustix::fs::statat(root, relative, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(seen(&stat))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(Error::io("stat", relative, error)),
    }
}

/// Looks at an open file.
pub(super) fn look_at(file: &File, path: &Path) -> os::Result<Seen> {
    rustix::fs::fstat(file).map(|stat| seen(&stat)).map_err(|error| Error::io("stat", path, error))
}

/// Looks at what the operator's path leads to, through links.
pub(super) fn look_through(path: &Path) -> os::Result<Seen> {
    rustix::fs::stat(path).map(|stat| seen(&stat)).map_err(|error| Error::io("stat", path, error))
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// Opens the regular file `relative`, through no link at any component; `None` where there is nothing.
pub(super) fn open(root: BorrowedFd<'_>, relative: &Path, access: Access) -> os::Result<Option<File>> {
    Ok(open_seen(root, relative, access)?.map(|(file, _)| file))
}

fn open_seen(root: BorrowedFd<'_>, relative: &Path, access: Access) -> os::Result<Option<(File, Seen)>> {
    let mode = match access {
        Access::Read => OFlags::RDONLY,
        Access::Write => OFlags::RDWR,
    };
    // Non-blocking, so that a pipe that a user put there can't hold us; it means nothing for regular files.
    let flags = mode | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::openat2(root, relative, flags, Mode::empty(), BELOW) {
        Ok(descriptor) => File::from(descriptor),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::AGAIN) => match open_leased(root, relative, mode)? {
            Some(file) => file,
            None => return Ok(None),
        },
        Err(error) => return Err(Error::io("open", relative, error)),
    };
    let seen = look_at(&file, relative)?;
    if !seen.regular {
        return Err(not_regular(relative));
    }
    Ok(Some((file, seen)))
}

/// As [`open`], where another has a lease on the file (F_SETLEASE in fcntl(2)), as [`os::loopdev::is_unbound`] has for a moment: waits
/// until it is given back, which the kernel enforces (lease-break-time in proc(5)).
fn open_leased(root: BorrowedFd<'_>, relative: &Path, mode: OFlags) -> os::Result<Option<File>> {
    let place = match rustix::fs::openat2(root, relative, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty(), BELOW)
    {
        Ok(place) => File::from(place),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(Error::io("open", relative, error)),
    };
    if !look_at(&place, relative)?.regular {
        return Err(not_regular(relative));
    }
    let opened = rustix::fs::open(format!("/proc/self/fd/{}", place.as_raw_fd()), mode | OFlags::CLOEXEC, Mode::empty());
    opened.map(|file| Some(File::from(file))).map_err(|error| Error::io("open", relative, error))
}

fn not_regular(relative: &Path) -> Error {
    Error::Unexpected { object: relative.display().to_string(), reason: "it is no regular file".to_owned() }
}

/// The whole of a small file; `None` where there is none.
pub(super) fn read(root: BorrowedFd<'_>, relative: &Path, limit: u64) -> os::Result<Option<Vec<u8>>> {
    Ok(read_seen(root, relative, limit)?.map(|(text, _)| text))
}

/// As [`read`], with the file as it was before it was read.
pub(super) fn read_seen(root: BorrowedFd<'_>, relative: &Path, limit: u64) -> os::Result<Option<(Vec<u8>, Seen)>> {
    let Some((file, seen)) = open_seen(root, relative, Access::Read)? else { return Ok(None) };
    // With room for all of it and one byte more, it takes one read to get it and one to see its end.
    let mut text = Vec::with_capacity(usize::try_from(seen.length.min(limit)).unwrap_or(0).saturating_add(1));
    file.take(limit + 1).read_to_end(&mut text).map_err(|error| Error::io("read", relative, error))?;
    if text.len() as u64 > limit {
        return Err(Error::Unexpected {
            object: relative.display().to_string(),
            reason: format!("it is longer than {limit} bytes"),
        });
    }
    Ok(Some((text, seen)))
}

/// Opens a regular file to append to it.
pub(super) fn append(root: BorrowedFd<'_>, relative: &Path) -> os::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = rustix::fs::openat2(root, relative, flags, Mode::empty(), BELOW).map(File::from);
    let file = file.map_err(|error| Error::io("open", relative, error))?;
    if look_at(&file, relative)?.regular { Ok(file) } else { Err(not_regular(relative)) }
}

/// Makes a directory that only we may enter.
pub(super) fn make_directory(path: &Path) -> os::Result<()> {
    rustix::fs::mkdir(path, Mode::RWXU).map_err(|error| Error::io("make directory", path, error))
}

/// As [`make_directory`], where another may make the same directory at this moment.
pub(super) fn ensure_directory(path: &Path) -> os::Result<()> {
    match make_directory(path) {
        Err(error) if error.errno() == Some(libc::EEXIST) => Ok(()),
        made => made,
    }
}

/// Makes a file that is not there yet.
pub(super) fn make_file(path: &Path) -> os::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| Error::io("create", path, error))
}

/// Makes a file with this content; not synced.
pub(super) fn write_new(path: &Path, content: &[u8]) -> os::Result<File> {
    let mut file = make_file(path)?;
    file.write_all(content).map_err(|error| Error::io("write", path, error))?;
    Ok(file)
}

pub(super) fn sync(file: &File, path: &Path) -> os::Result<()> {
    file.sync_all().map_err(|error| Error::io("sync", path, error))
}

/// See [`durable::write_back`].
pub(super) fn write_back(file: &File, path: &Path) -> os::Result<()> {
    durable::write_back(file).map_err(|error| Error::io("write back", path, error))
}

/// Sets the length. What is added is a hole.
pub(super) fn set_length(file: &File, path: &Path, length: u64) -> os::Result<()> {
    file.set_len(length).map_err(|error| Error::io("set the length of", path, error))
}

/// Gives disk to the holes of the first `length` bytes, also past the file's end, whose length stays. Reads as zeroes still.
pub(super) fn allocate(file: &File, path: &Path, length: u64) -> os::Result<()> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, length) {
            Err(Errno::INTR) => {}
            done => return done.map_err(|error| Error::io("allocate", path, error)),
        }
    }
}

/// Renames a directory, which may not replace anything.
pub(super) fn rename_new(from: &Path, to: &Path) -> os::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // NFS, CephFS and OCFS2 know no flags (rename(2)).
        Err(Errno::INVAL) => rename_directory(from, to),
        done => done.map_err(|error| Error::io("rename", from, error)),
    }
}

/// rename(2) of a directory: of itself it replaces no other that holds anything.
fn rename_directory(from: &Path, to: &Path) -> os::Result<()> {
    rustix::fs::rename(from, to).map_err(|error| {
        let taken = matches!(error, Errno::NOTEMPTY | Errno::NOTDIR);
        Error::io("rename", from, if taken { Errno::EXIST } else { error })
    })
}

/// Removes a directory of ours with the files that we know, one by one. Missing is fine; a file that is not ours makes it
/// stay, with an error.
pub(super) fn remove_directory(path: &Path) -> os::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Err(Error::Unexpected { object: path.display().to_string(), reason: "it is no directory".to_owned() });
        }
        Err(error) => return Err(Error::io("open directory", path, error)),
    };
    for name in KNOWN {
        match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(Error::io("remove", path.join(name), error)),
        }
    }
    let remove = || match rustix::fs::rmdir(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(Error::io("remove directory", path, error)),
    };
    match remove() {
        Err(error) if matches!(error.errno(), Some(libc::ENOTEMPTY | libc::EEXIST)) => {
            // Whose volume is gone has no leases.
            names(path)?.iter().filter(|name| is_lease_name(name)).try_for_each(|name| remove_in(&directory, name))?;
            remove()
        }
        other => other,
    }
}

/// Opens a directory below `root`, through no link at any component; `None` where there is none.
pub(super) fn open_directory(root: BorrowedFd<'_>, relative: &Path) -> os::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat2(root, relative, flags, Mode::empty(), BELOW) {
        Ok(directory) => Ok(Some(File::from(directory))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(Error::io("open directory", relative, error)),
    }
}

/// The names in an open directory, read anew, but for `.` and `..`; those that are not UTF-8 are none of ours and left out.
pub(super) fn names_in(directory: impl AsFd, path: &Path) -> os::Result<Vec<String>> {
    let failed = |error| Error::io("list", path, error);
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(failed)? {
        if let Ok(name) = entry.map_err(failed)?.file_name().to_str()
            && ![".", ".."].contains(&name)
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Gives the file `from` a second name in its directory, decided where the file system is; `false` where there is such a name.
pub(super) fn link_new(directory: impl AsFd, from: &str, to: &str) -> os::Result<bool> {
    match rustix::fs::linkat(&directory, from, &directory, to, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(error) => Err(Error::io("link", to, error)),
    }
}

/// Unlinks a file in an open directory. Missing is fine.
pub(super) fn remove_in(directory: impl AsFd, name: &str) -> os::Result<()> {
    match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(Error::io("remove", name, error)),
    }
}

/// Unlinks a file. Missing is fine.
pub(super) fn remove_file(path: &Path) -> os::Result<()> {
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(Error::io("remove", path, error)),
    }
}

/// The names in a directory; those that are not UTF-8 are none of ours and left out.
pub(super) fn names(directory: &Path) -> os::Result<Vec<String>> {
    let failed = |error: io::Error| Error::io("list", directory, error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

/// How much room the file system of a pool has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub total: u64,
    /// For unprivileged users: what root keeps for itself does not count.
    pub free: u64,
    pub read_only: bool,
}

/// statvfs(3) of the pool's open directory.
pub(super) fn room(root: BorrowedFd<'_>, path: &Path) -> os::Result<Room> {
    let figures = rustix::fs::fstatvfs(root).map_err(|error| Error::io("statvfs", path, error))?;
    Ok(Room {
        total: figures.f_blocks.saturating_mul(figures.f_frsize),
        free: figures.f_bavail.saturating_mul(figures.f_frsize),
        read_only: figures.f_flag.contains(StatVfsMountFlags::RDONLY),
    })
}

/// A random UUID, from the kernel.
pub(super) fn random_id() -> os::Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/uuid";
    let id = std::fs::read_to_string(PATH).map_err(|error| Error::io("read", PATH, error))?;
    Ok(id.trim().to_owned())
}

#[cfg(test)]
#[allow(unsafe_code, reason = "F_SETLEASE has no safe wrapper")]
mod tests {
    use super::*;

    /// F_SETSIG.
    const SET_SIGNAL: libc::c_int = 10;

    fn fcntl(file: &File, action: libc::c_int, value: libc::c_int) -> libc::c_int {
        // SAFETY: the descriptor is open, and these actions take a plain number.
        unsafe { libc::fcntl(file.as_raw_fd(), action, value) }
    }

    #[test]
    fn rename_of_a_directory_without_flags_replaces_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        for path in [&from, &to] {
            make_directory(path).expect("made");
            std::fs::write(path.join(META), path.as_os_str().as_encoded_bytes()).expect("written");
        }
        assert_eq!(rename_directory(&from, &to).expect_err("taken").errno(), Some(libc::EEXIST));
        assert_eq!(std::fs::read(to.join(META)).expect("read"), to.as_os_str().as_encoded_bytes());
        remove_directory(&to).expect("removed");
        std::fs::write(&to, "a file").expect("written");
        assert_eq!(rename_directory(&from, &to).expect_err("taken").errno(), Some(libc::EEXIST));
        remove_file(&to).expect("removed");
        rename_directory(&from, &to).expect("renamed");
        assert!(!from.exists() && to.join(META).exists());
    }

    /// As [`os::loopdev::is_unbound`] has one for a moment.
    #[test]
    fn open_of_a_file_under_a_lease_waits_until_it_is_given_back() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        make_file(&directory.path().join(IMAGE)).expect("made");
        let root = File::open(directory.path()).expect("opened");
        let holder = || File::open(directory.path().join(IMAGE)).expect("opened");
        let lease =
            std::iter::repeat_with(holder).find(|file| fcntl(file, libc::F_SETLEASE, libc::F_WRLCK) == 0).expect("a lease");
        fcntl(&lease, SET_SIGNAL, libc::SIGURG);
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| open(root.as_fd(), Path::new(IMAGE), Access::Write));
            // From the attempt on, the kernel says what is to become of the lease.
            while fcntl(&lease, libc::F_GETLEASE, 0) == libc::F_WRLCK && !opening.is_finished() {
                std::thread::yield_now();
            }
            fcntl(&lease, libc::F_SETLEASE, libc::F_UNLCK);
            assert!(opening.join().expect("no panic").expect("opened").is_some());
        });
    }

    #[test]
    fn directory_of_a_deleted_volume_goes_with_its_lease_and_with_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("volume~v");
        make_directory(&path).expect("made");
        let ours = ["lease", "lease-0123456789abcdef", ".lease-0123456789abcdef.tmp", "attached.json", ".attached.json.tmp"];
        for name in ours.into_iter().chain([IMAGE, META, "lease-of-mine"]) {
            std::fs::write(path.join(name), "x").expect("written");
        }
        assert!(remove_directory(&path).is_err());
        assert_eq!(names(&path).expect("listed"), ["lease-of-mine"]);
        remove_file(&path.join("lease-of-mine")).expect("removed");
        remove_directory(&path).expect("removed");
        assert!(!path.exists());
    }
}

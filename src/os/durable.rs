//! Small files that are whole or not there, also after a power cut.
#![allow(unsafe_code, reason = "sync_file_range(2) has no safe wrapper")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::dir::temporary_of;
use super::{Error, Result, lock, quota};

/// Replaces `directory/name` by `content`: a [temporary file](temporary_of), fsync, rename, fsync of the directory. Only our user may
/// read it. Two writers of the same file must keep each other out.
///
/// # Errors
/// `Path` where `name` is no plain name; `Io`. After an error the old content is there, or, if it was the directory's fsync that
/// failed, one of both.
pub fn write(directory: &Path, name: &str, content: &[u8]) -> Result<()> {
    let open = open_directory(directory, name)?;
    let temporary = temporary_of(name);
    if let Err((action, errno)) = fill(&open, &temporary, content)
        .and_then(|()| rustix::fs::renameat(&open, &temporary, &open, name).map_err(|errno| ("rename", errno)))
    {
        // It is overwritten by the next attempt, so it is no harm if it stays; what counts is the first error.
        if let Err(errno) = rustix::fs::unlinkat(&open, &temporary, AtFlags::empty()) {
            tracing::debug!(directory = %directory.display(), name = temporary, %errno, "remove temporary file");
        }
        return Err(Error::io(action, directory.join(name), errno));
    }
    sync(&open, directory)
}

fn fill(directory: &OwnedFd, name: &str, content: &[u8]) -> Result<(), (&'static str, Errno)> {
    // O_NOFOLLOW: no link may turn this into another file. Not O_TRUNC: what is there keeps its room, which a full file system would not give
    // again.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let fd = rustix::fs::openat(directory, name, flags, mode).map_err(|errno| ("create", errno))?;
    let mut file = File::from(fd);
    let written = file.write_all(content).and_then(|()| file.set_len(content.len() as u64));
    written.map_err(|error| ("write", Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    rustix::fs::fsync(&file).map_err(|errno| ("sync", errno))
}

/// The whole file; `None` where there is none. A link is not followed. More than `limit` bytes is an error.
///
/// # Errors
/// `Io`; `Unexpected` where it is no regular file or too long.
pub fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    // O_NONBLOCK: a FIFO in its place does not hang us.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(Error::io("open", path, errno)),
    };
    let unexpected = |reason: String| Err(Error::Unexpected { object: path.display().to_string(), reason });
    if !file.metadata().map_err(|error| Error::io("stat", path, error))?.is_file() {
        return unexpected("is not a regular file".to_owned());
    }
    let mut content = Vec::new();
    let read = (&file).take(limit.saturating_add(1)).read_to_end(&mut content);
    if read.map_err(|error| Error::io("read", path, error))? as u64 > limit {
        return unexpected(format!("is longer than {limit} bytes"));
    }
    Ok(Some(content))
}

/// Writes the data of a file to its disk and waits until it is there (sync_file_range(2)).
///
/// That is not durable. But where the file system [commits in order](commits_in_order), what is done after this call never becomes durable
/// without the data: a file that is renamed into place then is whole there, though neither it nor its directory were fsynced before.
pub fn write_back(file: impl AsFd) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open; 0 bytes from 0 on are all of the file.
    match unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the file system of a directory makes all changes of names, lengths, owners and extents durable in the order in which they were
/// made, and none before the data that was [written back](write_back) earlier: ext4 and xfs, with one journal each, whose commits flush
/// the disk's cache first (linux/fs/jbd2/commit.c, linux/fs/xfs/xfs_log_cil.c). btrfs may log one file alone; ext4 can be without a journal
/// (`mkfs.ext4 -O ^has_journal`, and ext2, which has the same type); with xfs, data on a realtime device is flushed by the fsync of its
/// file alone. Of others it is not known.
pub fn commits_in_order(directory: impl AsFd) -> bool {
    let fd = directory.as_fd();
    ext4_has_journal(fd).unwrap_or_else(|| xfs_has_one_device(fd))
}

fn xfs_has_one_device(fd: BorrowedFd<'_>) -> bool {
    const XFS: i64 = 0x5846_5342;
    // The descriptor may be one of O_PATH, which takes no ioctl.
    rustix::fs::fstatfs(fd).is_ok_and(|found| found.f_type == XFS)
        && rustix::fs::openat(fd, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .is_ok_and(|directory| quota::makes_realtime_files(directory).is_ok_and(|realtime| !realtime))
}

/// Whether an ext4 has a journal, by sysfs: `journal_task` is the process id of its jbd2 thread (0 in a PID namespace, such as that of a
/// container), or `<none>`. `None` of other file systems, and where that cannot be read.
pub fn ext4_has_journal(directory: impl AsFd) -> Option<bool> {
    /// Of ext2 and ext3, too (linux/magic.h).
    const EXT4: i64 = 0xef53;
    let fd = directory.as_fd();
    rustix::fs::fstatfs(fd).ok().filter(|found| found.f_type == EXT4)?;
    let device = rustix::fs::fstat(fd).ok()?.st_dev;
    let link = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let device = std::fs::read_link(link).ok()?;
    let task = std::fs::read_to_string(Path::new("/sys/fs/ext4").join(device.file_name()?).join("journal_task")).ok()?;
    match task.trim() {
        "<none>" => Some(false),
        task => task.parse::<u32>().is_ok().then_some(true),
    }
}

/// fsync of a directory: what was created, renamed or removed in it is durable.
pub fn sync_dir(directory: &Path) -> Result<()> {
    sync(open(directory)?, directory)
}

/// Unlinks a file and syncs its directory. Missing is fine, and synced as well: who removed it may have been killed before.
///
/// # Errors
/// `Path` where `name` is no plain name; `Io`, also where the directory is missing.
pub fn remove(directory: &Path, name: &str) -> Result<()> {
    let open = open_directory(directory, name)?;
    match rustix::fs::unlinkat(&open, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => sync(&open, directory),
        Err(errno) => Err(Error::io("remove", directory.join(name), errno)),
    }
}

/// fsyncs of one directory by many threads: those that come while one runs share the next one (group commit).
#[derive(Debug, Default)]
pub struct SharedSync {
    state: Mutex<SyncState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SyncState {
    running: bool,
    /// The result of the fsync that has not begun; the callers that come now share it.
    next: Arc<OnceLock<Result<(), Errno>>>,
}

impl SharedSync {
    /// What was created, renamed or removed in `directory`, which is always the same, before this call is durable.
    ///
    /// # Errors
    /// `Io`: to all that share an fsync that failed.
    pub fn sync(&self, directory: &Path) -> Result<()> {
        let fsync = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(directory, flags, Mode::empty()).and_then(rustix::fs::fsync)
        };
        self.share(fsync).map_err(|errno| Error::io("sync directory", directory, errno))
    }

    /// The result of an `fsync` that began after this call: of its own, or of another caller's.
    fn share(&self, fsync: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        let ours = Arc::clone(&state.next);
        while state.running && ours.get().is_none() {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(shared) = ours.get() {
            return *shared;
        }
        state.running = true;
        state.next = Arc::default();
        drop(state);
        let _ended = Ended(self);
        *ours.get_or_init(fsync)
    }
}

/// Lets the next one begin, also after a panic.
struct Ended<'a>(&'a SharedSync);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).running = false;
        self.0.ended.notify_all();
    }
}

fn open_directory(directory: &Path, name: &str) -> Result<OwnedFd> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(Error::Path { path: directory.join(name), reason: "is not a plain file name".to_owned() });
    }
    open(directory)
}

fn open(directory: &Path) -> Result<OwnedFd> {
    rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::io("open directory", directory, errno))
}

fn sync(open: impl AsFd, directory: &Path) -> Result<()> {
    rustix::fs::fsync(open).map_err(|errno| Error::io("sync directory", directory, errno))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;
    use crate::os::fs::testing::{Loop, Mounted, Scratch, in_namespace, tool};

    #[test]
    fn shared_sync_covers_what_was_done_before_the_call_and_reports_its_failure_to_all() {
        use std::sync::atomic::{AtomicU64, Ordering};
        let (shared, done, synced, calls) = (SharedSync::default(), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (shared, done, synced, calls) = (&shared, &done, &synced, &calls);
                scope.spawn(move || {
                    for round in 0..200 {
                        let own = done.fetch_add(1, Ordering::SeqCst) + 1;
                        let result = shared.share(|| {
                            calls.fetch_add(1, Ordering::SeqCst);
                            let covered = done.load(Ordering::SeqCst);
                            std::thread::yield_now();
                            synced.fetch_max(covered, Ordering::SeqCst);
                            if covered.is_multiple_of(7) { Err(Errno::IO) } else { Ok(()) }
                        });
                        assert!(synced.load(Ordering::SeqCst) >= own, "thread {thread}, round {round}: {result:?}");
                    }
                });
            }
        });
        assert!(calls.load(Ordering::SeqCst) <= 1600);
        let missing = Path::new("/proc/self/no-such-directory");
        assert_eq!(shared.sync(missing).unwrap_err().errno(), Some(libc::ENOENT));
    }

    /// Of what only `mkfs` decides: ext2 and an ext4 without a journal are shown as ext4 by fstatfs(2).
    #[test]
    fn only_file_systems_with_one_journal_commit_in_order() {
        in_namespace(|| {
            for (mkfs, arguments, fstype, expected) in [
                ("mkfs.ext4", &["-q"][..], "ext4", true),
                ("mkfs.ext4", &["-q", "-O", "^has_journal"], "ext4", false),
                ("mkfs.ext2", &["-q"], "ext4", false),
                ("mkfs.xfs", &["-q"], "xfs", true),
                // What is made in its root lies on the realtime device, which a kernel need not know.
                ("mkfs.xfs", &["-q", "-d", "rtinherit=1"], "xfs", false),
                ("mkfs.btrfs", &["-q"], "btrfs", false),
            ] {
                let Some(under) = Loop::new(320 << 20) else { return };
                if tool(mkfs, &[arguments, &[under.name()]].concat()).is_none() {
                    return;
                }
                let directory = tempfile::tempdir().unwrap();
                let _mounted = Mounted::new(&under.device, directory.path(), fstype);
                let file = File::create(directory.path().join("file")).unwrap();
                write_back(&file).unwrap();
                for flags in [OFlags::RDONLY, OFlags::PATH] {
                    let root = rustix::fs::open(directory.path(), flags | OFlags::DIRECTORY, Mode::empty()).unwrap();
                    assert_eq!(commits_in_order(root), expected, "{mkfs} {arguments:?}, {flags:?}");
                }
            }
            let Some(scratch) = Scratch::tmpfs() else { return };
            assert!(!commits_in_order(File::open(scratch.path()).unwrap()));
        });
    }

    #[test]
    fn shared_sync_that_panics_lets_the_next_one_begin() {
        let shared = SharedSync::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shared.share(|| panic!("within fsync"))));
        assert!(panicked.is_err());
        assert_eq!(shared.share(|| Ok(())), Ok(()));
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn file_is_written_replaced_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        assert_eq!(read(&path, 10).unwrap(), None);
        for content in [&b"first"[..], b"", b"0123456789"] {
            write(directory.path(), "a", content).unwrap();
            assert_eq!(read(&path, 10).unwrap().as_deref(), Some(content));
        }
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(names(directory.path()), ["a"]);
        for _ in 0..2 {
            remove(directory.path(), "a").unwrap();
        }
        assert!(names(directory.path()).is_empty());
        sync_dir(directory.path()).unwrap();
    }

    #[test]
    fn draft_of_a_killed_writer_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(".a.tmp"), "a long left-over of an attempt that was interrupted").unwrap();
        write(directory.path(), "a", b"new").unwrap();
        assert_eq!(std::fs::read(directory.path().join("a")).unwrap(), b"new");
        assert_eq!(names(directory.path()), ["a"]);
    }

    #[test]
    fn a_failed_write_leaves_the_old_content_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        // A directory cannot be replaced by a file.
        std::fs::create_dir(directory.path().join("a")).unwrap();
        assert_eq!(write(directory.path(), "a", b"new").unwrap_err().errno(), Some(libc::EISDIR));
        assert_eq!(names(directory.path()), ["a"]);
    }

    #[test]
    fn a_planted_link_is_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, directory.path().join(".a.tmp")).unwrap();
        symlink(&victim, directory.path().join("b")).unwrap();
        assert_eq!(write(directory.path(), "a", b"new").unwrap_err().errno(), Some(libc::ELOOP));
        write(directory.path(), "b", b"new").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert_eq!(std::fs::read(directory.path().join("b")).unwrap(), b"new");
    }

    #[test]
    fn too_long_or_no_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "a", b"12345").unwrap();
        let error = read(&directory.path().join("a"), 4).unwrap_err();
        assert!(error.to_string().contains("longer than 4 bytes"), "{error}");
        assert!(matches!(read(directory.path(), 4), Err(Error::Unexpected { .. })));
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(read(&fifo, 4), Err(Error::Unexpected { .. })));
        assert_eq!(read(&directory.path().join("a/b"), 4).unwrap_err().errno(), Some(libc::ENOTDIR));
    }

    #[test]
    fn only_plain_names_are_taken() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "a/b", "/a", "../a", "a\0"] {
            assert!(matches!(write(directory.path(), name, b""), Err(Error::Path { .. })), "{name:?}");
            assert!(matches!(remove(directory.path(), name), Err(Error::Path { .. })), "{name:?}");
        }
    }

    #[test]
    fn a_missing_directory_is_an_error_not_a_missing_file() {
        let directory = Path::new("/no-such-directory");
        assert!(remove(directory, "a").unwrap_err().is_missing());
        assert!(write(directory, "a", b"").unwrap_err().is_missing());
        assert!(sync_dir(directory).unwrap_err().is_missing());
    }
}

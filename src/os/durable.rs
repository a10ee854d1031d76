//! Small files that are whole or not there, also after a power cut.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::{Error, Result};

/// Replaces `folder/name` by `content`: a temporary file (`.name.tmp`), fsync, rename, fsync of the folder. Only our user may
/// read it. Two writers of the same file must keep each other out.
///
/// # Errors
/// `Path` where `name` is no plain name; `Io`. After an error the old content is there, or, if it was the folder's fsync that
/// failed, one of both.
pub fn write(folder: &Path, name: &str, content: &[u8]) -> Result<()> {
    let open = open_folder(folder, name)?;
    let temporary = format!(".{name}.tmp");
    if let Err((action, errno)) = fill(&open, &temporary, content)
        .and_then(|()| rustix::fs::renameat(&open, &temporary, &open, name).map_err(|errno| ("rename", errno)))
    {
        // It is overwritten by the next attempt, so it is no harm if it stays; what counts is the first error.
        if let Err(errno) = rustix::fs::unlinkat(&open, &temporary, AtFlags::empty()) {
            tracing::debug!(folder = %folder.display(), name = temporary, %errno, "remove temporary file");
        }
        return Err(Error::io(action, folder.join(name), errno));
    }
    sync(&open, folder)
}

fn fill(folder: &OwnedFd, name: &str, content: &[u8]) -> Result<(), (&'static str, Errno)> {
    // O_NOFOLLOW: nobody's link may turn this into another file.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let fd = rustix::fs::openat(folder, name, flags, mode).map_err(|errno| ("create", errno))?;
    let mut file = File::from(fd);
    file.write_all(content).map_err(|error| ("write", Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
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

/// fsync of a folder: what was created, renamed or removed in it is durable.
pub fn sync_dir(folder: &Path) -> Result<()> {
    sync(open(folder)?, folder)
}

/// Unlinks a file and syncs its folder. Missing is fine, and synced as well: who removed it may have been killed before.
///
/// # Errors
/// `Path` where `name` is no plain name; `Io`, also where the folder is missing.
pub fn remove(folder: &Path, name: &str) -> Result<()> {
    let open = open_folder(folder, name)?;
    match rustix::fs::unlinkat(&open, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => sync(&open, folder),
        Err(errno) => Err(Error::io("remove", folder.join(name), errno)),
    }
}

fn open_folder(folder: &Path, name: &str) -> Result<OwnedFd> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(Error::Path { path: folder.join(name), reason: "is not a plain file name".to_owned() });
    }
    open(folder)
}

fn open(folder: &Path) -> Result<OwnedFd> {
    rustix::fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::io("open folder", folder, errno))
}

fn sync(open: impl AsFd, folder: &Path) -> Result<()> {
    rustix::fs::fsync(open).map_err(|errno| Error::io("sync folder", folder, errno))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_written_is_read_and_replaced_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert_eq!(read(&path, 10).unwrap(), None);
        for content in [&b"first"[..], b"", b"0123456789"] {
            write(folder.path(), "a", content).unwrap();
            assert_eq!(read(&path, 10).unwrap().as_deref(), Some(content));
        }
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(names(folder.path()), ["a"]);
        for _ in 0..2 {
            remove(folder.path(), "a").unwrap();
        }
        assert!(names(folder.path()).is_empty());
        sync_dir(folder.path()).unwrap();
    }

    #[test]
    fn what_a_killed_writer_left_is_no_hindrance() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(".a.tmp"), "a long left-over of an attempt that was cut off").unwrap();
        write(folder.path(), "a", b"new").unwrap();
        assert_eq!(std::fs::read(folder.path().join("a")).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn a_failed_write_leaves_the_old_content_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        // A folder cannot be replaced by a file.
        std::fs::create_dir(folder.path().join("a")).unwrap();
        assert_eq!(write(folder.path(), "a", b"new").unwrap_err().errno(), Some(libc::EISDIR));
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn a_planted_link_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, folder.path().join(".a.tmp")).unwrap();
        symlink(&victim, folder.path().join("b")).unwrap();
        assert_eq!(write(folder.path(), "a", b"new").unwrap_err().errno(), Some(libc::ELOOP));
        write(folder.path(), "b", b"new").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert_eq!(std::fs::read(folder.path().join("b")).unwrap(), b"new");
    }

    #[test]
    fn too_long_or_no_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a", b"12345").unwrap();
        let error = read(&folder.path().join("a"), 4).unwrap_err();
        assert!(error.to_string().contains("longer than 4 bytes"), "{error}");
        assert!(matches!(read(folder.path(), 4), Err(Error::Unexpected { .. })));
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(read(&fifo, 4), Err(Error::Unexpected { .. })));
        assert_eq!(read(&folder.path().join("a/b"), 4).unwrap_err().errno(), Some(libc::ENOTDIR));
    }

    #[test]
    fn only_plain_names_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "a/b", "/a", "../a", "a\0"] {
            assert!(matches!(write(folder.path(), name, b""), Err(Error::Path { .. })), "{name:?}");
            assert!(matches!(remove(folder.path(), name), Err(Error::Path { .. })), "{name:?}");
        }
    }

    #[test]
    fn a_missing_folder_is_an_error_not_a_missing_file() {
        let folder = Path::new("/no-such-folder");
        assert!(remove(folder, "a").unwrap_err().is_missing());
        assert!(write(folder, "a", b"").unwrap_err().is_missing());
        assert!(sync_dir(folder).unwrap_err().is_missing());
    }
}

//! An open directory, in which everything is done by name: through no link, into no other mount, never out of it.
//!
//! For places where others may rename and plant things while we work: names are looked up again by the kernel each time
//! (openat2(2), RESOLVE_BENEATH), so there is nothing that could be swapped between a check and a use.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;

use super::{Error, Result};

const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);
/// So many bytes of a path are resolved at once: PATH_MAX counts the NUL at its end.
const PATH_LIMIT: usize = 4000;

/// An open directory.
#[derive(Debug)]
pub struct OpenDir {
    fd: OwnedFd,
    /// For messages.
    shown: PathBuf,
}

/// An entry, as the directory names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: OsString,
    /// Where the file system says so at once; it may be another thing by now.
    pub kind: Option<FileType>,
}

impl OpenDir {
    /// `fd` must be readable (not O_PATH). `shown` is what messages call it.
    pub fn new(fd: OwnedFd, shown: impl Into<PathBuf>) -> OpenDir {
        OpenDir { fd, shown: shown.into() }
    }

    /// By a path of the operator's, whose links are followed.
    pub fn open(path: &Path) -> Result<OpenDir> {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map(|fd| OpenDir::new(fd, path))
            .map_err(|errno| Error::io("open directory", path, errno))
    }

    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// What messages call `name` in here.
    pub fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.shown.join(name)
    }

    pub fn try_clone(&self) -> Result<OpenDir> {
        let fd = self.fd.try_clone().map_err(|error| Error::io("duplicate", &self.shown, error))?;
        Ok(OpenDir::new(fd, &self.shown))
    }

    /// A directory below this one; `None` where there is none. An empty path is this directory.
    ///
    /// # Errors
    /// `Path` where a link, a mount or a file is there or on the way.
    pub fn directory(&self, relative: impl AsRef<Path>) -> Result<Option<OpenDir>> {
        let relative = relative.as_ref();
        let mut current = self.try_clone()?;
        for part in portions(relative) {
            match current.resolve(&part, OFlags::RDONLY | OFlags::DIRECTORY, 0) {
                Ok(fd) => current = OpenDir::new(fd, current.shown.join(&part)),
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(self.refused("open directory", relative, errno)),
            }
        }
        Ok(Some(current))
    }

    /// As `directory`, where it must be there: ENOENT where not.
    pub fn existing(&self, relative: impl AsRef<Path>) -> Result<OpenDir> {
        let found = self.directory(&relative)?;
        found.ok_or_else(|| Error::io("open directory", self.path_of(relative), Errno::NOENT))
    }

    /// What is called `name`; `None` where there is nothing. A link is itself.
    pub fn stat(&self, name: impl AsRef<OsStr>) -> Result<Option<Stat>> {
        let name = plain(&self.shown, name.as_ref())?;
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("stat", name, errno)),
        }
    }

    /// This directory itself.
    pub fn stat_self(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.fd).map_err(|errno| Error::io("stat", &self.shown, errno))
    }

    /// A new directory; EEXIST where anything is there. Whatever the umask.
    pub fn make_directory(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<()> {
        let name = plain(&self.shown, name.as_ref())?;
        let mode = Mode::from_raw_mode(mode);
        rustix::fs::mkdirat(&self.fd, name, mode).map_err(|errno| self.failed("make directory", name, errno))?;
        match self.stat(name)? {
            Some(made) if Mode::from_raw_mode(made.st_mode & 0o7777) == mode => Ok(()),
            _ => self.set_mode(name, mode.as_raw_mode()),
        }
    }

    /// chmod(2) of the directory itself.
    pub fn set_own_mode(&self, mode: u32) -> Result<()> {
        chmod(self.as_fd(), mode).map_err(|errno| Error::io("set mode of", &self.shown, errno))
    }

    /// chmod(2), of no link's target.
    pub fn set_mode(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<()> {
        let name = plain(&self.shown, name.as_ref())?;
        let fd = self.resolve(Path::new(name), OFlags::PATH | OFlags::NOFOLLOW, 0);
        let fd = fd.map_err(|errno| self.refused("open", Path::new(name), errno))?;
        let is_link = rustix::fs::fstat(&fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
        if is_link {
            return Err(self.refused("set mode of", Path::new(name), Errno::LOOP));
        }
        chmod(fd.as_fd(), mode).map_err(|errno| self.failed("set mode of", name, errno))
    }

    /// chown(2), of no link's target; `None` leaves it as it is.
    pub fn set_owner(&self, name: impl AsRef<OsStr>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let name = plain(&self.shown, name.as_ref())?;
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        rustix::fs::chownat(&self.fd, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| self.failed("set owner of", name, errno))
    }

    /// The directory of that name, made where there is none.
    pub fn ensure_directory(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<OpenDir> {
        let name = name.as_ref();
        if let Some(directory) = self.directory(name)? {
            return Ok(directory);
        }
        match self.make_directory(name, mode) {
            Err(error) if error.errno() != Some(libc::EEXIST) => Err(error),
            _ => self.existing(name),
        }
    }

    /// A file in here; never one that waits (FIFO) or is somewhere else (link).
    pub fn open_file(&self, name: impl AsRef<OsStr>, flags: OFlags, mode: u32) -> Result<File> {
        let name = plain(&self.shown, name.as_ref())?;
        self.resolve(Path::new(name), flags | OFlags::NOFOLLOW | OFlags::NONBLOCK, mode)
            .map(File::from)
            .map_err(|errno| self.refused("open", Path::new(name), errno))
    }

    /// A regular file in here, for reading. Nothing else is ever opened: opening a device may do something (a watchdog, a tape), and what a
    /// pod can write to may be another with each look.
    ///
    /// # Errors
    /// As `open_file`; `Io`: ENOENT where it is no regular file.
    pub fn open_regular(&self, name: impl AsRef<OsStr>) -> Result<File> {
        let name = plain(&self.shown, name.as_ref())?;
        let place = self.resolve(Path::new(name), OFlags::PATH | OFlags::NOFOLLOW, 0);
        let place = place.map_err(|errno| self.refused("open", Path::new(name), errno))?;
        let stat = rustix::fs::fstat(&place).map_err(|errno| self.failed("stat", name, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.failed("open file", name, Errno::NOENT));
        }
        let path = format!("/proc/self/fd/{}", place.as_raw_fd());
        let open = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        open.map(File::from).map_err(|errno| self.failed("open", name, errno))
    }

    /// The whole file; `None` where there is none.
    ///
    /// # Errors
    /// `Unexpected` where it is no regular file, or longer than `limit` bytes.
    pub fn read(&self, name: impl AsRef<OsStr>, limit: u64) -> Result<Option<Vec<u8>>> {
        let name = name.as_ref();
        let file = match self.open_file(name, OFlags::RDONLY, 0) {
            Err(error) if error.is_missing() => return Ok(None),
            file => file?,
        };
        let unexpected =
            |reason: &str| Err(Error::Unexpected { object: self.path_of(name).display().to_string(), reason: reason.into() });
        let failed = |error| Error::io("read", self.path_of(name), error);
        if !file.metadata().map_err(failed)?.is_file() {
            return unexpected("is not a regular file");
        }
        let mut content = Vec::new();
        if file.take(limit.saturating_add(1)).read_to_end(&mut content).map_err(failed)? as u64 > limit {
            return unexpected(&format!("is longer than {limit} bytes"));
        }
        Ok(Some(content))
    }

    /// Replaces a file of ours as a whole, durably: a new one (`.name.tmp`), synced, renamed over it.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        self.replace(name, content, OFlags::CREATE | OFlags::TRUNC)
    }

    /// As `write`, on a file system that may be full: the new file takes the room of another, `spare`, which is no longer there then.
    ///
    /// # Errors
    /// `Io`: ENOENT without a spare file.
    pub fn write_over(&self, name: &str, content: &[u8], spare: (&OpenDir, &str)) -> Result<()> {
        spare.0.rename(spare.1, self, temporary_of(name))?;
        self.replace(name, content, OFlags::empty())
    }

    fn replace(&self, name: &str, content: &[u8], more: OFlags) -> Result<()> {
        let temporary = temporary_of(name);
        let failed = |error| Error::io("write", self.path_of(name), error);
        let mode = if more.contains(OFlags::CREATE) { 0o600 } else { 0 };
        let mut file = self.open_file(&temporary, OFlags::WRONLY | more, mode)?;
        let written = file.write_all(content).and_then(|()| file.set_len(content.len() as u64));
        written.and_then(|()| file.sync_all()).map_err(failed)?;
        self.rename(&temporary, self, name)?;
        self.sync()
    }

    /// Unlinks what is no directory. Whether there was something.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> Result<bool> {
        self.unlink(name.as_ref(), AtFlags::empty())
    }

    /// Removes an empty directory. Whether there was one.
    ///
    /// # Errors
    /// `Io`: ENOTEMPTY (or EEXIST), ENOTDIR.
    pub fn remove_directory(&self, name: impl AsRef<OsStr>) -> Result<bool> {
        self.unlink(name.as_ref(), AtFlags::REMOVEDIR)
    }

    fn unlink(&self, name: &OsStr, flags: AtFlags) -> Result<bool> {
        let name = plain(&self.shown, name)?;
        match rustix::fs::unlinkat(&self.fd, name, flags) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.failed("remove", name, errno)),
        }
    }

    /// rename(2): replaces a file, or an empty directory by a directory.
    pub fn rename(&self, name: impl AsRef<OsStr>, to: &OpenDir, new: impl AsRef<OsStr>) -> Result<()> {
        let (name, new) = (plain(&self.shown, name.as_ref())?, plain(&to.shown, new.as_ref())?);
        rustix::fs::renameat(&self.fd, name, &to.fd, new).map_err(|errno| self.failed("rename", name, errno))
    }

    /// Up to `max` entries, as the directory is now, from its start.
    pub fn entries(&self, max: usize) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        self.each_entry(|entry| {
            found.push(entry);
            found.len() < max
        })?;
        Ok(found)
    }

    /// Tells all entries, until it is asked to stop by `false`.
    pub fn each_entry(&self, mut tell: impl FnMut(Entry) -> bool) -> Result<()> {
        let failed = |errno| Error::io("list", &self.shown, errno);
        // Opened anew: a place in a list is the open file's.
        let own = rustix::fs::openat(&self.fd, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        for entry in Dir::new(own.map_err(failed)?).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = Some(entry.file_type()).filter(|kind| *kind != FileType::Unknown);
            if !tell(Entry { name: name.to_owned(), kind }) {
                break;
            }
        }
        Ok(())
    }

    /// fsync(2): what was made, renamed or removed in here is durable.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd).map_err(|errno| Error::io("sync directory", &self.shown, errno))
    }

    fn resolve(&self, relative: &Path, flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
        let mut tries = 0;
        loop {
            let mode = Mode::from_raw_mode(mode);
            // It answers EAGAIN when something was renamed at the wrong moment.
            match rustix::fs::openat2(&self.fd, relative, flags | OFlags::CLOEXEC, mode, RESOLVE) {
                Err(Errno::AGAIN | Errno::INTR) if tries < 100 => tries += 1,
                answer => return answer,
            }
        }
    }

    fn refused(&self, action: &'static str, relative: &Path, errno: Errno) -> Error {
        match errno {
            Errno::LOOP | Errno::XDEV | Errno::NOTDIR => Error::Path {
                path: self.path_of(relative),
                reason: "is a link, a mount or a file, or leads over one; nothing is followed here".to_owned(),
            },
            errno => Error::io(action, self.path_of(relative), errno),
        }
    }

    fn failed(&self, action: &'static str, name: &OsStr, errno: Errno) -> Error {
        Error::io(action, self.path_of(name), errno)
    }
}

/// By its descriptor, through /proc: fchmod(2) takes no O_PATH, and a name could have become a link's.
fn chmod(open: BorrowedFd<'_>, mode: u32) -> rustix::io::Result<()> {
    rustix::fs::chmod(format!("/proc/self/fd/{}", open.as_raw_fd()), Mode::from_raw_mode(mode))
}

impl AsFd for OpenDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What [`Directory::write`] calls a file that is not yet whole.
pub fn temporary_of(name: &str) -> String {
    format!(".{name}.tmp")
}

/// Whether [`temporary_of`] gives this name to some file.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".tmp")
}

/// A path in portions that the kernel takes.
fn portions(relative: &Path) -> Vec<PathBuf> {
    let mut portions: Vec<PathBuf> = Vec::new();
    for component in relative.components() {
        match portions.last_mut() {
            Some(last) if last.as_os_str().len() + 1 + component.as_os_str().len() <= PATH_LIMIT => last.push(component),
            _ => portions.push(PathBuf::from(component.as_os_str())),
        }
    }
    portions
}

/// One name, not a path.
fn plain<'a>(directory: &Path, name: &'a OsStr) -> Result<&'a OsStr> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') || bytes.contains(&0) {
        return Err(Error::Path { path: directory.join(name), reason: "is not a plain file name".to_owned() });
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn ground() -> (tempfile::TempDir, OpenDir) {
        let ground = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(ground.path().join("root/a/b")).unwrap();
        std::fs::create_dir(ground.path().join("outside")).unwrap();
        std::fs::write(ground.path().join("outside/file"), "precious").unwrap();
        let root = OpenDir::open(&ground.path().join("root")).unwrap();
        (ground, root)
    }

    #[test]
    fn paths_do_not_lead_out_of_a_directory() {
        let (ground, root) = ground();
        symlink(ground.path().join("outside"), ground.path().join("root/a/link")).unwrap();
        symlink("../outside", ground.path().join("root/up")).unwrap();
        for way in ["a/link", "up", "a/../../outside", "/etc", "a/link/file"] {
            let error = root.directory(way).unwrap_err();
            assert!(matches!(error, Error::Path { .. }), "{way}: {error}");
        }
        for name in ["..", ".", "", "a/b", "a\0b"] {
            assert!(matches!(root.remove_file(name), Err(Error::Path { .. })), "{name}");
            assert!(matches!(root.make_directory(name, 0o700), Err(Error::Path { .. })), "{name}");
        }
        assert!(matches!(root.open_file("up", OFlags::RDONLY, 0), Err(Error::Path { .. })));
        assert!(root.directory("a/b").unwrap().is_some());
        assert!(root.directory("a/c/d").unwrap().is_none());
        assert!(root.remove_file("up").unwrap());
        assert_eq!(std::fs::read(ground.path().join("outside/file")).unwrap(), b"precious");
    }

    #[test]
    fn files_are_replaced_as_a_whole() {
        let (ground, root) = ground();
        for text in ["one", "", "three"] {
            root.write("file", text.as_bytes()).unwrap();
            assert_eq!(root.read("file", 5).unwrap().as_deref(), Some(text.as_bytes()));
        }
        assert!(matches!(root.read("file", 4), Err(Error::Unexpected { .. })));
        assert!(matches!(root.read("a", 4), Err(Error::Unexpected { .. } | Error::Io { .. })));
        assert_eq!(root.read("other", 4).unwrap(), None);
        assert_eq!(ground.path().join("root/file").metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut names: Vec<_> = root.entries(9).unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        assert_eq!(names, ["a", "file"]);
        assert_eq!(root.entries(1).unwrap().len(), 1);
    }

    #[test]
    fn a_path_longer_than_the_kernel_takes_is_walked() {
        let (_ground, root) = ground();
        let mut deepest = root.try_clone().unwrap();
        let mut path = PathBuf::new();
        for _ in 0..60 {
            let name = "n".repeat(200);
            deepest = deepest.ensure_directory(&name, 0o755).unwrap();
            path.push(name);
        }
        assert_eq!(root.existing(&path).unwrap().stat_self().unwrap().st_ino, deepest.stat_self().unwrap().st_ino);
    }

    #[test]
    fn a_directory_has_the_mode_that_was_asked_for() {
        let (ground, root) = ground();
        root.make_directory("open", 0o2777).unwrap();
        assert_eq!(ground.path().join("root/open").metadata().unwrap().permissions().mode() & 0o7777, 0o2777);
        assert_eq!(root.make_directory("open", 0o700).unwrap_err().errno(), Some(libc::EEXIST));
    }
}

//! Paths from outside, resolved below a directory of ours without following links (openat2(2)).

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{Error, Result};

/// PATH_MAX, which counts the NUL at the end.
const PATH_LIMIT: usize = 4096;
/// NAME_MAX of every file system we meet.
const NAME_LIMIT: usize = 255;
/// So many components below a root may be mounts of the operator's (`pods`, `plugins/kubernetes.io`). What is mounted further
/// down is a volume, and nothing is done in one.
const FURNITURE: usize = 2;

/// A directory below which everything asked for must lie: the kubelet's directory, the state directory, a pool.
#[derive(Debug)]
pub struct Root {
    given: PathBuf,
    path: PathBuf,
    directory: OwnedFd,
}

impl Root {
    /// Opens an existing directory. Links in `path` itself are followed: it is the operator's.
    ///
    /// # Errors
    /// `Io`: ENOENT, or ENOTDIR where it is no directory.
    pub fn open(path: &Path) -> Result<Root> {
        let canonical = path.canonicalize().map_err(|error| Error::io("open directory", path, error))?;
        let directory = rustix::fs::open(&canonical, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| Error::io("open directory", path, errno))?;
        Ok(Root { given: path.to_owned(), path: canonical, directory })
    }

    /// As given to `open`, made canonical: mountinfo shows mount points below this path, whatever name the caller uses.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks, without touching the disk, that `path` is absolute, lies below this directory (not the directory itself), has
    /// no `.`/`..`/empty components and no NUL, and gives it relative to the directory. The directory may be called what it was
    /// called in `open`, or by its canonical path.
    ///
    /// # Errors
    /// [`super::Error::Path`].
    pub fn relative(&self, path: &Path) -> Result<PathBuf> {
        let refuse = |reason: String| Err(Error::Path { path: shortened(path), reason });
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() >= PATH_LIMIT {
            return refuse(format!("is {} bytes long; at most {} can be", bytes.len(), PATH_LIMIT - 1));
        }
        if bytes.contains(&0) {
            return refuse("holds a NUL byte".to_owned());
        }
        let Some(components) = bytes.strip_prefix(b"/") else {
            return refuse("is not absolute".to_owned());
        };
        // Over the bytes: Path::components() makes `a//b/./c/` look like `a/b/c`.
        for component in components.split(|byte| *byte == b'/') {
            match component {
                b"" => return refuse("has an empty component (// or a / at the end)".to_owned()),
                b"." | b".." => return refuse(format!("has the component {}", component.escape_ascii())),
                long if long.len() > NAME_LIMIT => {
                    return refuse(format!("has a component of {} bytes; at most {NAME_LIMIT} can be", long.len()));
                }
                _ => {}
            }
        }
        let relative = path.strip_prefix(&self.given).or_else(|_| path.strip_prefix(&self.path));
        match relative {
            Ok(relative) if relative.as_os_str().is_empty() => refuse("is the directory itself, not something in it".to_owned()),
            Ok(relative) => Ok(relative.to_owned()),
            Err(_) => refuse(format!("is not below {}", self.path.display())),
        }
    }

    /// Opens what is at the absolute `path` with O_PATH: never through a link, at any component (ELOOP becomes
    /// [`super::Error::Path`] saying so). Missing is `Ok(None)`; any other failure is an error.
    pub fn open_path(&self, path: &Path) -> Result<Option<OwnedFd>> {
        let place = match self.place(path) {
            Err(error) if error.is_missing() => return Ok(None),
            place => place?,
        };
        match open_beneath(&place.parent, place.name.as_ref(), OFlags::PATH, 0) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("open", path, &place.relative, errno)),
        }
    }

    /// The open parent directory of `path`, as in `open_path`, and its name in there.
    pub fn parent(&self, path: &Path) -> Result<(OwnedFd, OsString)> {
        self.place(path).map(|place| (place.parent, place.name))
    }

    /// Makes one directory (its parent exists) and opens it with O_PATH. An existing directory is fine. `mode` is less the umask.
    ///
    /// # Errors
    /// `Path` where a link or a file is there, `Io` where the parent is missing.
    pub fn make_dir(&self, path: &Path, mode: u32) -> Result<OwnedFd> {
        let place = self.place(path)?;
        match rustix::fs::mkdirat(&place.parent, &place.name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.error("make directory", path, &place.relative, errno)),
        }
        match open_beneath(&place.parent, place.name.as_ref(), OFlags::PATH | OFlags::DIRECTORY, 0) {
            Ok(fd) => Ok(fd),
            Err(Errno::NOTDIR) => {
                Err(Error::Path { path: path.to_owned(), reason: "is there, but not as a directory".to_owned() })
            }
            Err(errno) => Err(self.error("open directory", path, &place.relative, errno)),
        }
    }

    /// Makes one empty file (its parent exists) to mount a device on, and opens it with O_PATH. An existing empty
    /// file or device node is fine, a directory or a file with data is not. `mode` is less the umask.
    ///
    /// # Errors
    /// `Path` where a link or anything else is there, `Io` where the parent is missing.
    pub fn make_file(&self, path: &Path, mode: u32) -> Result<OwnedFd> {
        let place = self.place(path)?;
        let fail = |action, errno| self.error(action, path, &place.relative, errno);
        // With O_EXCL, so that what is there is never opened for writing: opening a device or a FIFO does things.
        match open_beneath(&place.parent, place.name.as_ref(), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode) {
            Ok(_) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(fail("make file", errno)),
        }
        let fd = open_beneath(&place.parent, place.name.as_ref(), OFlags::PATH, 0).map_err(|errno| fail("open file", errno))?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| fail("stat", errno))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if stat.st_size > 0 => Err(with_data(path)),
            FileType::RegularFile | FileType::BlockDevice | FileType::CharacterDevice => Ok(fd),
            FileType::Directory => Err(Error::Path { path: path.to_owned(), reason: "is a directory, not a file".to_owned() }),
            _ => Err(Error::Path { path: path.to_owned(), reason: "is neither a file nor a device".to_owned() }),
        }
    }

    /// Removes one empty directory or one empty file (never a tree). Missing is fine. Anyone who calls has seen in mountinfo that it is
    /// no mount.
    ///
    /// # Errors
    /// `Path` where it is a link or a file with data, which are not ours; `Io` with ENOTEMPTY, with EBUSY where it is a mount after all.
    pub fn remove(&self, path: &Path) -> Result<()> {
        let place = match self.place(path) {
            Err(error) if error.is_missing() => return Ok(()),
            place => place?,
        };
        let stat = match rustix::fs::statat(&place.parent, &place.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(self.error("stat", path, &place.relative, errno)),
        };
        let flags = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if stat.st_size > 0 => return Err(with_data(path)),
            FileType::Symlink => return Err(self.error("remove", path, &place.relative, Errno::LOOP)),
            FileType::Directory => AtFlags::REMOVEDIR,
            _ => AtFlags::empty(),
        };
        match rustix::fs::unlinkat(&place.parent, &place.name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error("remove", path, &place.relative, errno)),
        }
    }

    /// The open parent directory of `path`, and its name in there.
    fn place(&self, path: &Path) -> Result<Place> {
        let relative = self.relative(path)?;
        let (Some(parent), Some(name)) = (relative.parent(), relative.file_name()) else {
            return Err(Error::Path { path: path.to_owned(), reason: "has no name".to_owned() });
        };
        let name = name.to_owned();
        match self.directory(parent) {
            Ok(directory) => Ok(Place { parent: directory, name, relative }),
            Err(errno) => Err(self.error("open directory", &self.path.join(parent), parent, errno)),
        }
    }

    /// Opens a directory at a relative path, perhaps an empty one.
    fn directory(&self, relative: &Path) -> Result<OwnedFd, Errno> {
        let mut components = relative.components();
        let furniture: PathBuf = std::iter::once(Component::CurDir).chain(components.by_ref().take(FURNITURE)).collect();
        let directory = resolve(&self.directory, &furniture, OFlags::PATH | OFlags::DIRECTORY, 0, WITHOUT_LINKS)?;
        match components.as_path() {
            rest if rest.as_os_str().is_empty() => Ok(directory),
            rest => resolve(&directory, rest, OFlags::PATH | OFlags::DIRECTORY, 0, WITHOUT_LINKS | ResolveFlags::NO_XDEV),
        }
    }

    /// What `errno` means for `path`: ELOOP is a link, and we say which; EXDEV a mount.
    fn error(&self, action: &'static str, path: &Path, relative: &Path, errno: Errno) -> Error {
        if errno == Errno::XDEV {
            return Error::Path { path: path.to_owned(), reason: "lies inside what is mounted on the way".to_owned() };
        }
        if errno != Errno::LOOP {
            return Error::io(action, path, errno);
        }
        match self.first_link(relative) {
            Some(link) => Error::Path { path: link, reason: "is a symbolic link, and none is followed here".to_owned() },
            None => Error::Path { path: path.to_owned(), reason: "led over a symbolic link that is gone by now".to_owned() },
        }
    }

    fn first_link(&self, relative: &Path) -> Option<PathBuf> {
        let mut prefixes: Vec<&Path> = relative.ancestors().filter(|prefix| !prefix.as_os_str().is_empty()).collect();
        prefixes.reverse();
        let is_link = |prefix: &&Path| {
            // With O_NOFOLLOW the last component may be a link, and is then opened itself.
            open_beneath(&self.directory, prefix, OFlags::PATH | OFlags::NOFOLLOW, 0)
                .and_then(rustix::fs::fstat)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
        };
        prefixes.into_iter().find(is_link).map(|prefix| self.path.join(prefix))
    }
}

struct Place {
    parent: OwnedFd,
    name: OsString,
    relative: PathBuf,
}

const WITHOUT_LINKS: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

fn open_beneath(directory: impl AsFd, path: &Path, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
    resolve(directory, path, flags, mode, WITHOUT_LINKS)
}

/// openat2(2). It answers EAGAIN when something was renamed or mounted at the wrong moment.
fn resolve(directory: impl AsFd, path: &Path, flags: OFlags, mode: u32, how: ResolveFlags) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(&directory, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode), how) {
            Err(Errno::AGAIN | Errno::INTR) if tries < 100 => tries += 1,
            answer => return answer,
        }
    }
}

fn with_data(path: &Path) -> Error {
    Error::Path { path: path.to_owned(), reason: "is a file with data, which no volume's target is; move it away".to_owned() }
}

/// Fit to be repeated in an error.
fn shortened(path: &Path) -> PathBuf {
    match path.as_os_str().as_bytes().get(..PATH_LIMIT) {
        None => path.to_owned(),
        Some(start) => {
            let mut name = OsString::from_vec(start.iter().copied().take(NAME_LIMIT).collect());
            name.push(OsStr::new("..."));
            name.into()
        }
    }
}

/// The path of an open directory or file in this mount namespace, as the kernel has it; `shown` is for messages.
///
/// # Errors
/// `Io`; `Unexpected` where it was removed, or lies outside of the root directory.
pub fn of_open(open: BorrowedFd<'_>, shown: &Path) -> Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", open.as_raw_fd());
    let path = std::fs::read_link(link).map_err(|error| Error::io("find the path of", shown, error))?;
    if path.is_absolute() && !path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)") {
        return Ok(path);
    }
    Err(Error::Unexpected { object: shown.display().to_string(), reason: format!("its path is {}", path.display()) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use rustix::fs::RenameFlags;

    use super::*;

    /// A directory `root` to work in and a directory `outside` beside it, with a file that must survive.
    struct Ground {
        directory: tempfile::TempDir,
        root: Root,
    }

    fn ground() -> Ground {
        let directory = tempfile::tempdir().unwrap();
        for name in ["root", "outside"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        std::fs::write(directory.path().join("outside/file"), "precious").unwrap();
        let root = Root::open(&directory.path().join("root")).unwrap();
        Ground { directory, root }
    }

    impl Ground {
        fn at(&self, path: &str) -> PathBuf {
            self.root.path().join(path)
        }

        fn outside(&self) -> PathBuf {
            self.directory.path().join("outside")
        }

        fn assert_outside_untouched(&self) {
            let names: Vec<_> = std::fs::read_dir(self.outside()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names, ["file"]);
            assert_eq!(std::fs::read(self.outside().join("file")).unwrap(), b"precious");
        }
    }

    fn reason<T: std::fmt::Debug>(result: Result<T>) -> String {
        match result {
            Err(Error::Path { path, reason }) => format!("{}: {reason}", path.display()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_plain_paths_below_the_directory_are_taken() {
        let ground = ground();
        let root = ground.root.path().display().to_string();
        for good in ["a", "a/b c/d\ne", "...", "a/.b/..c"] {
            assert_eq!(ground.root.relative(&ground.at(good)).unwrap(), Path::new(good));
        }
        let nul = PathBuf::from(OsString::from_vec([root.as_bytes(), b"/a\0b"].concat()));
        assert!(reason(ground.root.relative(&nul)).contains("NUL"));
        for (bad, why) in [
            ("a/b".to_owned(), "not absolute"),
            (String::new(), "not absolute"),
            (root.clone(), "directory itself"),
            (format!("{root}/"), "empty component"),
            (format!("{root}/a//b"), "empty component"),
            (format!("{root}/a/"), "empty component"),
            (format!("/{root}/a"), "empty component"),
            (format!("{root}/a/./b"), "component ."),
            (format!("{root}/../outside/file"), "component .."),
            (format!("{root}x/a"), "not below"),
            ("/etc/passwd".to_owned(), "not below"),
            (format!("{root}/{}", "n".repeat(256)), "component of 256 bytes"),
            (format!("{root}/{}", "n/".repeat(4000)), "bytes long"),
        ] {
            let reason = reason(ground.root.relative(Path::new(&bad)));
            assert!(reason.contains(why), "{bad}: {reason}");
            assert!(reason.len() < 700, "{}", reason.len());
        }
    }

    #[test]
    fn path_inside_a_volume_is_refused_and_inside_a_mount_of_the_operator_allowed() {
        crate::os::mount::testing::in_own_namespace(|| {
            let ground = ground();
            let mount = |path: &str| {
                std::fs::create_dir_all(ground.at(path)).unwrap();
                let none: Option<&str> = None;
                nix::mount::mount(Some("x"), &ground.at(path), Some("tmpfs"), nix::mount::MsFlags::empty(), none).unwrap();
            };
            for operators in ["pods", "plugins/kubernetes.io"] {
                mount(operators);
                ground.root.make_dir(&ground.at(&format!("{operators}/new")), 0o700).unwrap();
            }
            mount("pods/a/volume");
            assert!(ground.root.open_path(&ground.at("pods/a/volume")).unwrap().is_some(), "the mount itself is a target");
            for inside in ["pods/a/volume/new", "pods/a/volume/new/deep"] {
                std::fs::create_dir_all(ground.at("pods/a/volume/new")).unwrap();
                let path = ground.at(inside);
                for answer in [
                    reason(ground.root.open_path(&path)),
                    reason(ground.root.make_dir(&path, 0o700)),
                    reason(ground.root.make_file(&path, 0o700)),
                    reason(ground.root.remove(&path)),
                ] {
                    assert!(answer.contains("inside what is mounted"), "{answer}");
                }
            }
            assert!(ground.at("pods/a/volume/new").is_dir());
        });
    }

    #[test]
    fn a_name_of_255_bytes_works() {
        let ground = ground();
        let path = ground.at(&"n".repeat(255));
        ground.root.make_dir(&path, 0o700).unwrap();
        assert!(path.is_dir());
    }

    #[test]
    fn a_linked_directory_may_be_called_by_either_name() {
        let ground = ground();
        let link = ground.directory.path().join("link");
        symlink(ground.root.path(), &link).unwrap();
        let root = Root::open(&link).unwrap();
        assert_eq!(root.path(), ground.root.path());
        root.make_dir(&link.join("a"), 0o700).unwrap();
        assert!(root.open_path(&ground.at("a")).unwrap().is_some());
    }

    #[test]
    fn the_directory_must_be_one() {
        let ground = ground();
        assert!(Root::open(&ground.at("missing")).unwrap_err().is_missing());
        assert_eq!(Root::open(&ground.outside().join("file")).unwrap_err().errno(), Some(libc::ENOTDIR));
    }

    #[test]
    fn making_and_removing_can_be_repeated() {
        let ground = ground();
        for _ in 0..2 {
            ground.root.make_dir(&ground.at("a"), 0o750).unwrap();
            ground.root.make_file(&ground.at("a/f"), 0o640).unwrap();
        }
        assert_eq!(ground.at("a").metadata().unwrap().mode() & 0o7777, 0o750);
        assert_eq!(ground.at("a/f").metadata().unwrap().mode() & 0o7777, 0o640);
        assert_eq!(ground.root.remove(&ground.at("a")).unwrap_err().errno(), Some(libc::ENOTEMPTY));
        for _ in 0..2 {
            ground.root.remove(&ground.at("a/f")).unwrap();
        }
        for _ in 0..2 {
            ground.root.remove(&ground.at("a")).unwrap();
        }
        // Not even the parent is there.
        ground.root.remove(&ground.at("a/f")).unwrap();
        assert!(ground.root.open_path(&ground.at("a/f")).unwrap().is_none());
    }

    #[test]
    fn the_parent_must_be_there() {
        let ground = ground();
        assert!(ground.root.make_dir(&ground.at("a/b"), 0o700).unwrap_err().is_missing());
        assert!(ground.root.make_file(&ground.at("a/b"), 0o600).unwrap_err().is_missing());
        std::fs::write(ground.at("a"), "").unwrap();
        assert_eq!(ground.root.make_dir(&ground.at("a/b"), 0o700).unwrap_err().errno(), Some(libc::ENOTDIR));
        assert_eq!(ground.root.open_path(&ground.at("a/b")).unwrap_err().errno(), Some(libc::ENOTDIR));
    }

    #[test]
    fn path_of_another_kind_is_refused() {
        let ground = ground();
        std::fs::create_dir(ground.at("directory")).unwrap();
        std::fs::write(ground.at("file"), "kept").unwrap();
        nix::unistd::mkfifo(&ground.at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(reason(ground.root.make_dir(&ground.at("file"), 0o700)).contains("not as a directory"));
        assert!(reason(ground.root.make_file(&ground.at("directory"), 0o600)).contains("is a directory"));
        assert!(reason(ground.root.make_file(&ground.at("fifo"), 0o600)).contains("neither"));
        assert!(reason(ground.root.make_file(&ground.at("file"), 0o600)).contains("with data"));
        assert!(reason(ground.root.remove(&ground.at("file"))).contains("with data"));
        assert_eq!(std::fs::read(ground.at("file")).unwrap(), b"kept");
        assert!(ground.at("fifo").metadata().unwrap().file_type().is_fifo());
    }

    #[test]
    fn no_link_is_followed_and_the_link_is_named() {
        let ground = ground();
        std::fs::create_dir(ground.at("a")).unwrap();
        symlink(ground.outside(), ground.at("a/link")).unwrap();
        symlink("/proc/self/root", ground.at("magic")).unwrap();
        symlink("nowhere", ground.at("dangling")).unwrap();
        let link = ground.at("a/link").display().to_string();
        for path in ["a/link", "a/link/file", "a/link/new", "a/link/x/y"] {
            let path = ground.at(path);
            for reason in [
                reason(ground.root.open_path(&path)),
                reason(ground.root.make_dir(&path, 0o700)),
                reason(ground.root.make_file(&path, 0o600)),
                reason(ground.root.remove(&path)),
            ] {
                assert_eq!(reason, format!("{link}: is a symbolic link, and none is followed here"));
            }
        }
        assert!(reason(ground.root.open_path(&ground.at("magic/etc"))).contains("magic: is a symbolic link"));
        assert!(reason(ground.root.make_file(&ground.at("dangling"), 0o600)).contains("dangling: is a symbolic link"));
        assert!(!ground.at("nowhere").exists());
        assert!(ground.at("dangling").is_symlink());
        ground.assert_outside_untouched();
    }

    #[test]
    fn a_directory_swapped_for_a_link_meanwhile_leads_nowhere() {
        let ground = ground();
        std::fs::create_dir(ground.at("a")).unwrap();
        symlink(ground.outside(), ground.at("b")).unwrap();
        let stop = AtomicBool::new(false);
        let (mut inside, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(&ground.root.directory, "a", &ground.root.directory, "b", RenameFlags::EXCHANGE)
                        .unwrap();
                }
            });
            let begun = Instant::now();
            while (inside < 300 || refused < 300) && begun.elapsed() < Duration::from_secs(10) {
                let results = [
                    ground.root.make_file(&ground.at("a/new"), 0o600).map(drop),
                    ground.root.open_path(&ground.at("a/new")).map(drop),
                    ground.root.remove(&ground.at("a/new")),
                    ground.root.make_dir(&ground.at("a/directory"), 0o700).map(drop),
                    ground.root.remove(&ground.at("a/directory")),
                    ground.root.remove(&ground.at("a/file")),
                ];
                for result in results {
                    match result {
                        Ok(()) => inside += 1,
                        Err(Error::Path { .. }) => refused += 1,
                        // Made in one moment, looked for in another directory the next.
                        Err(error) if error.is_missing() => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(inside > 0 && refused > 0, "no race: {inside} times inside, {refused} times refused");
        ground.assert_outside_untouched();
    }
}

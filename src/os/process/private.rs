//! Files that only one program sees.
#![allow(unsafe_code, reason = "what a child does between fork and exec (prctl, fcntl) cannot be said in safe Rust")]

use std::ffi::CString;
use std::fmt;
use std::io::{self};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};

use super::super::{Error, Result};

/// A view of the machine's files that only one program has: over some directories lie empty ones in memory, with files that may hold
/// secrets. It is gone with the program, however that ends. The memory is ramfs's, which no kernel swaps to a disk.
#[derive(Default)]
pub struct Private {
    /// Whose view it begins with; `None` is ours.
    view: Option<View>,
    pub(super) covered: Vec<CString>,
    /// Below those, each after its parent.
    directories: Vec<CString>,
    pub(super) files: Vec<(CString, Vec<u8>)>,
}

/// The view of a process: its mount namespace, and the root directory in it.
struct View {
    namespace: OwnedFd,
    root: OwnedFd,
}

/// Files may hold secrets: only how many there are shows.
impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Private").field("covered", &self.covered).field("files", &self.files.len()).finish()
    }
}

impl Private {
    /// In the view of another process, which may be in another container or on the node itself. The program is that which is found there.
    pub fn of_process(pid: u32) -> Result<Private> {
        let open = |name: &str, flags| {
            let path = format!("/proc/{pid}/{name}");
            rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| Error::io("open", path, errno))
        };
        let view = View { namespace: open("ns/mnt", OFlags::RDONLY)?, root: open("root", OFlags::PATH | OFlags::DIRECTORY)? };
        Ok(Private { view: Some(view), ..Private::default() })
    }

    /// Whether there is such a directory in its view.
    pub fn has_directory(&self, path: &Path) -> bool {
        self.stat(path).is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Whether there is such a program in its view.
    pub(super) fn has_program(&self, path: &Path) -> bool {
        self.stat(path)
            .is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & 0o111 != 0)
    }

    /// Links are those of its view, too.
    fn stat(&self, path: &Path) -> Option<Stat> {
        let (flags, mode) = (OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let open = match &self.view {
            Some(view) => rustix::fs::openat2(&view.root, path, flags, mode, ResolveFlags::IN_ROOT),
            None => rustix::fs::open(path, flags, mode),
        };
        rustix::fs::fstat(&open.ok()?).ok()
    }

    /// Puts an empty directory over one that exists.
    pub fn cover(&mut self, directory: &Path) -> Result<()> {
        self.covered.push(c_path(directory)?);
        Ok(())
    }

    /// Puts a file into a covered directory, with the directories that lead to it.
    pub fn add(&mut self, covered: &Path, name: &Path, content: &[u8]) -> Result<()> {
        let mut directory = covered.to_owned();
        for part in name.parent().into_iter().flat_map(Path::components) {
            directory.push(part);
            let path = c_path(&directory)?;
            if !self.directories.contains(&path) {
                self.directories.push(path);
            }
        }
        self.files.push((c_path(&covered.join(name))?, content.to_vec()));
        Ok(())
    }

    /// In the child, before exec: system calls only, nothing is allocated.
    pub(super) fn enter(&self) -> io::Result<()> {
        let done = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
        let none = std::ptr::null();
        // SAFETY: all pointers are to strings and bytes that outlive the calls, or null where that is allowed.
        unsafe {
            if let Some(view) = &self.view {
                done(libc::setns(view.namespace.as_raw_fd(), libc::CLONE_NEWNS))?;
            }
            done(libc::unshare(libc::CLONE_NEWNS))?;
            // Nothing of it may be seen outside; but what is unmounted outside must go here too: a private copy of a volume's mount would
            // keep its file system in the kernel for as long as this program runs (mount_namespaces(7)).
            done(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_SLAVE, none.cast()))?;
            for directory in &self.covered {
                let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
                done(libc::mount(c"none".as_ptr(), directory.as_ptr(), c"ramfs".as_ptr(), flags, c"mode=700".as_ptr().cast()))?;
            }
            for directory in &self.directories {
                done(libc::mkdir(directory.as_ptr(), 0o700))?;
            }
            for (path, content) in &self.files {
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
                let file = done(libc::open(path.as_ptr(), flags, 0o600))?;
                let written = libc::write(file, content.as_ptr().cast(), content.len());
                done(libc::close(file))?;
                if usize::try_from(written) != Ok(content.len()) {
                    return Err(io::Error::from_raw_os_error(libc::ENOSPC));
                }
            }
        }
        Ok(())
    }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::Path { path: path.to_owned(), reason: "holds a NUL byte".to_owned() })
}

//! The tree of configfs, below an open directory.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::super::{Error, Result};

use super::Lio;

impl Lio {
    pub(super) fn shown(&self, relative: &Path) -> String {
        self.path.join(relative).display().to_string()
    }

    fn error(&self, action: &'static str, relative: &Path, errno: Errno) -> Error {
        Error::io(action, self.path.join(relative), errno)
    }

    /// What is there; `None` where nothing is.
    pub(super) fn kind(&self, relative: &Path) -> Result<Option<FileType>> {
        match rustix::fs::statat(&self.root, relative, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("stat", relative, errno)),
        }
    }

    /// An attribute's text; `None` where its object is gone.
    pub(super) fn read(&self, relative: &Path) -> Result<Option<String>> {
        let open = rustix::fs::openat(&self.root, relative, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let mut text = String::new();
        match open.map(File::from) {
            Ok(mut file) => match file.read_to_string(&mut text) {
                Ok(_) => Ok(Some(text)),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
                Err(error) => Err(Error::io("read", self.path.join(relative), error)),
            },
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("open", relative, errno)),
        }
    }

    pub(super) fn is_on(&self, relative: &Path) -> Result<bool> {
        Ok(self.read(relative)?.is_some_and(|text| text.trim() == "1"))
    }

    /// Writes an attribute, in one call, as configfs wants it. The value is in no error: it may be a secret.
    pub(super) fn write(&self, relative: &Path, value: &str) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, relative, flags, Mode::empty())
            .map_err(|errno| self.error("open", relative, errno))?;
        match rustix::io::write(&file, value.as_bytes()) {
            Ok(written) if written == value.len() => Ok(()),
            Ok(_) => {
                Err(Error::Unexpected { object: self.shown(relative), reason: "the kernel took only a part of it".to_owned() })
            }
            Err(errno) => Err(self.error("write", relative, errno)),
        }
    }

    /// Writes an attribute unless it has this value: some may not be written once they are in use.
    pub(super) fn set(&self, relative: &Path, value: &str) -> Result<()> {
        match self.read(relative)? {
            Some(text) if text.trim() == value => Ok(()),
            _ => self.write(relative, value),
        }
    }

    pub(super) fn make_directory(&self, relative: &Path) -> Result<()> {
        match rustix::fs::mkdirat(&self.root, relative, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(self.error("make directory", relative, errno)),
        }
    }

    pub(super) fn close_to_others(&self, relative: &Path) -> Result<()> {
        rustix::fs::chmodat(&self.root, relative, Mode::RWXU, AtFlags::empty())
            .map_err(|errno| self.error("chmod", relative, errno))
    }

    /// The kernel looks for the object by the link's text, from where this process is: it must be absolute.
    pub(super) fn link(&self, object: &Path, relative: &Path) -> Result<()> {
        match rustix::fs::symlinkat(self.path.join(object), &self.root, relative) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(self.error("link", relative, errno)),
        }
    }

    /// Removes an object of the kernel's; gone is fine.
    pub(super) fn remove_directory(&self, relative: &Path) -> Result<()> {
        match rustix::fs::unlinkat(&self.root, relative, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error("remove", relative, errno)),
        }
    }

    /// Removes a LUN: the links that make it one, then itself.
    pub(super) fn remove_linking(&self, relative: &Path) -> Result<()> {
        for link in self.entries(relative, FileType::Symlink)? {
            match rustix::fs::unlinkat(&self.root, relative.join(&link), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(self.error("unlink", &relative.join(link), errno)),
            }
        }
        self.remove_directory(relative)
    }

    pub(super) fn directories(&self, relative: &Path) -> Result<Vec<String>> {
        self.entries(relative, FileType::Directory)
    }

    /// The names of what lies there; none where it is gone.
    fn entries(&self, relative: &Path, kind: FileType) -> Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |errno| self.error("list", relative, errno);
        let directory = match rustix::fs::openat(&self.root, relative, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(Vec::new()),
            Err(errno) => return Err(failed(errno)),
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(directory.as_fd()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().to_str()
                && entry.file_type() == kind
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }
}

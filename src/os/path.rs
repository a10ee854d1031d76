//! Paths from outside, resolved below a folder of ours without following links (openat2(2)).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::Result;

/// A folder below which everything asked for must lie: the kubelet's folder, the state folder, a pool.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    folder: OwnedFd,
}

impl Root {
    /// Opens an existing folder. Links in `path` itself are followed: it is the operator's.
    pub fn open(path: &Path) -> Result<Root> {
        unimplemented!()
    }

    /// As given to `open`, made canonical.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks, without touching the disk, that `path` is absolute, lies below this folder (not the folder itself), has
    /// no `.`/`..`/empty components and no NUL, and gives it relative to the folder.
    ///
    /// # Errors
    /// [`super::Error::Path`].
    pub fn relative(&self, path: &Path) -> Result<PathBuf> {
        unimplemented!()
    }

    /// Opens what is at the absolute `path` with O_PATH: never through a link, at any component (ELOOP becomes
    /// [`super::Error::Path`] saying so). Missing is `Ok(None)`; any other failure is an error.
    pub fn open_path(&self, path: &Path) -> Result<Option<OwnedFd>> {
        unimplemented!()
    }

    /// Makes one folder (its parent exists) and opens it with O_PATH. An existing folder is fine.
    pub fn make_dir(&self, path: &Path, mode: u32) -> Result<OwnedFd> {
        unimplemented!()
    }

    /// Makes one empty file (its parent exists) to mount a device on, and opens it with O_PATH. An existing regular
    /// file or device node is fine, a folder is not.
    pub fn make_file(&self, path: &Path, mode: u32) -> Result<OwnedFd> {
        unimplemented!()
    }

    /// Removes one empty folder or one file (never a tree). Missing is fine. Whoever calls has seen in mountinfo that it is no mount.
    pub fn remove(&self, path: &Path) -> Result<()> {
        unimplemented!()
    }
}

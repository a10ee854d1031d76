//! /proc/self/mountinfo, our own parser: over bytes, octal escapes undone (proc_pid_mountinfo(5)).

use std::path::{Path, PathBuf};

use super::Result;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    pub parent: u64,
    /// Major and minor of the file system's device.
    pub device: (u32, u32),
    /// What of the file system is mounted: `/`, or a folder or file in it for a bind mount.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    /// Options of this mount: `ro`, `nosuid`.
    pub options: Vec<String>,
    /// `shared:1`, `master:2`, `propagate_from:`, `unbindable`.
    pub propagation: Vec<String>,
    pub fstype: String,
    pub source: PathBuf,
    /// Options of the file system.
    pub super_options: Vec<String>,
}

impl Mount {
    /// Whether writes are refused by the mount or by the file system.
    pub fn is_read_only(&self) -> bool {
        unimplemented!()
    }
}

/// All mounts of this mount namespace, in the kernel's order.
#[derive(Clone, Debug, Default)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// Reads /proc/self/mountinfo.
    pub fn read() -> Result<MountTable> {
        unimplemented!()
    }

    /// Parses the text of a mountinfo file.
    ///
    /// # Errors
    /// `Unexpected`, naming the line.
    pub fn parse(text: &[u8]) -> Result<MountTable> {
        unimplemented!()
    }

    /// What is mounted exactly at `path`: none, one, or a stack, the topmost last.
    pub fn at(&self, path: &Path) -> Vec<&Mount> {
        unimplemented!()
    }

    /// Mounts strictly below `path`.
    pub fn below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Mount> {
        self.mounts.iter().filter(move |_| unimplemented!())
    }

    /// Mounts of one file system, wherever they are.
    pub fn of_device(&self, device: (u32, u32)) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(move |_| unimplemented!())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter()
    }
}

//! Block devices, on one open descriptor.

use std::fs::File;
use std::path::Path;

use super::Result;

/// An open block device; probe, identity check and mkfs all go through this one descriptor.
#[derive(Debug)]
pub struct Device {
    file: File,
    path: std::path::PathBuf,
    number: (u32, u32),
}

impl Device {
    /// Opens a block device (anything else is an error) read-only or read-write.
    pub fn open(path: &Path, writable: bool) -> Result<Device> {
        unimplemented!()
    }
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Major and minor of the open device.
    pub fn number(&self) -> (u32, u32) {
        self.number
    }
    pub fn file(&self) -> &File {
        &self.file
    }
    /// Size in bytes (BLKGETSIZE64).
    pub fn size(&self) -> Result<u64> {
        unimplemented!()
    }
    /// Whether the kernel refuses writes (BLKROGET).
    pub fn read_only(&self) -> Result<bool> {
        unimplemented!()
    }
    /// Makes the kernel refuse writes, or take them again (BLKROSET).
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        unimplemented!()
    }
    /// Writes what the page cache holds (fsync).
    pub fn flush(&self) -> Result<()> {
        unimplemented!()
    }
}

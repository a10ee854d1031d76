//! Loop devices (loop(4)), found again by backing file, never by guessed name.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::Result;

/// A loop device that has a backing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// `/dev/loopN`.
    pub path: PathBuf,
    pub number: (u32, u32),
    /// Device and inode of the backing file (LOOP_GET_STATUS64): its identity, whatever it is called now.
    pub backing: (u64, u64),
    pub read_only: bool,
    pub direct_io: bool,
}

/// Binds a free loop device to `backing` in one call (LOOP_CONFIGURE), with direct I/O where the file system allows it, block size
/// as the backing file system wants it. `label` (at most 63 bytes kept) is what `losetup -l` shows. Waits for the
/// device node. Another process taking the same free number is no error: the next one is tried.
pub fn attach(backing: &File, label: &str, read_only: bool) -> Result<Loop> {
    unimplemented!()
}

/// Looks at one device: `None` where it has no backing file.
pub fn status(path: &Path) -> Result<Option<Loop>> {
    unimplemented!()
}

/// The devices bound to the file with this device and inode, by a walk over /sys/block.
pub fn find(backing: (u64, u64)) -> Result<Vec<Loop>> {
    unimplemented!()
}

/// Unbinds, if it is still bound to `backing`; seen to be unbound on return. EBUSY (still in use, so that the kernel would
/// only unbind later) is an error.
pub fn detach(path: &Path, backing: (u64, u64)) -> Result<()> {
    unimplemented!()
}

/// Takes over the backing file's new size (LOOP_SET_CAPACITY); answers the device's size in bytes.
pub fn refresh(path: &Path) -> Result<u64> {
    unimplemented!()
}

//! The bytes of a volume or snapshot: a sparse file in memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::os::loopdev::{self, Loop};
use crate::os::{copy, memfd};
use crate::volume::{Bytes, Result, VolumeId};

/// A memfd. Its memory is given back when the last user is gone: we, or a loop device that is still bound to it.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) file: File,
    /// Device and inode.
    pub(super) identity: (u64, u64),
}

impl Contents {
    /// All zeroes, without memory. `label` is what `losetup -l` shows.
    pub(super) fn new(label: &str, size: Bytes) -> Result<Self> {
        let file = memfd::create(label, size.0)?;
        let identity = memfd::identity(&file)?;
        Ok(Contents { file, identity })
    }

    /// The loop devices that show them, of the volume that they are of.
    pub(super) fn devices(&self, id: &VolumeId) -> Result<Vec<Loop>> {
        if File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd())).is_ok_and(loopdev::is_unbound) {
            return Ok(Vec::new());
        }
        Ok(loopdev::find(self.identity, Path::new(&format!("memfd:{id}")))?)
    }

    /// What `self` holds now, holes included, with zeroes behind it up to `size`.
    pub(super) fn duplicate(&self, label: &str, size: Bytes) -> Result<Self> {
        let new = Contents::new(label, Bytes(0))?;
        copy::clone_or_copy(&self.file, &new.file)?;
        new.grow(size)?;
        Ok(new)
    }

    /// Makes it at least `size` long; never shorter.
    pub(super) fn grow(&self, size: Bytes) -> Result<()> {
        let io = |error| crate::os::Error::io("ftruncate", "memfd", error);
        if self.file.metadata().map_err(io)?.len() < size.0 {
            self.file.set_len(size.0).map_err(io)?;
        }
        Ok(())
    }
}

/// Device and inode, as they stand in [`crate::backend::BlockDevice`].
pub(super) fn identity_text((device, inode): (u64, u64)) -> String {
    format!("memfd:{device}:{inode}")
}

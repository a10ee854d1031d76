//! File systems that become as large as their device.

use std::path::Path;

use super::*;

/// The size in bytes of the file system, from its superblock on the device.
pub fn size_on_device(device: &Device, fstype: FsType) -> Result<u64> {
    unimplemented!()
}

/// Grows a file system that is not mounted: ext4 (a forced `e2fsck -fp` before). xfs and btrfs grow only mounted: `Ok(false)`.
pub fn grow_unmounted(device: &Device, fstype: FsType) -> Result<bool> {
    unimplemented!()
}

/// Grows a mounted file system to its device's size: resize2fs, xfs_growfs, btrfs filesystem resize.
pub fn grow_mounted(device: &Device, fstype: FsType, mount_point: &Path) -> Result<()> {
    unimplemented!()
}

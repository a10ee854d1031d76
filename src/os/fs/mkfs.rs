//! mkfs, never forced.

use super::*;

/// Makes a file system on the open device (by `/proc/self/fd`), with `options` before the device, and syncs it.
/// The caller has proven the device blank on this same descriptor.
pub fn mkfs(device: &Device, fstype: FsType, options: &[String]) -> Result<()> {
    unimplemented!()
}

//! The check before a mount.

use super::*;

/// What the check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    Clean,
    /// It had errors and mended them.
    Mended,
}

/// ext4: `e2fsck -p`; xfs and btrfs check themselves when mounted (xfs replays its log, fsck.xfs does nothing), so nothing.
///
/// # Errors
/// `Tool` where errors are left, with what to run by hand.
pub fn check(device: &Device, fstype: FsType) -> Result<Checked> {
    unimplemented!()
}

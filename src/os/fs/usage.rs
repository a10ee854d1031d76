//! How full a mounted file system is (statvfs(3)).

use std::os::fd::BorrowedFd;

use super::*;

/// In bytes and inodes. Inode figures are `None` where the file system makes inodes as needed (btrfs says 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub total: u64,
    /// For unprivileged users.
    pub available: u64,
    pub used: u64,
    pub inodes: Option<(u64, u64, u64)>,
}

/// Of the file system of an open descriptor. Inodes are (total, available, used).
pub fn usage(mounted: BorrowedFd<'_>) -> Result<Usage> {
    unimplemented!()
}

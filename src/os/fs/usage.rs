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
///
/// # Errors
/// `Io` of fstatvfs(3).
pub fn usage(mounted: BorrowedFd<'_>) -> Result<Usage> {
    let stat = rustix::fs::fstatvfs(mounted)
        .map_err(|errno| Error::io("measure file system of", format!("descriptor {}", mounted.as_raw_fd()), errno))?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let inodes = (stat.f_files > 0).then(|| (stat.f_files, stat.f_ffree, stat.f_files.saturating_sub(stat.f_ffree)));
    Ok(Usage {
        total: bytes(stat.f_blocks),
        available: bytes(stat.f_bavail),
        used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        inodes,
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::testing::{Scratch, in_namespace};
    use super::*;

    #[test]
    fn figures_are_those_of_the_file_system() {
        in_namespace(|| {
            for (fstype, inodes) in [("ext4", true), ("xfs", true), ("btrfs", false)] {
                let Some(scratch) = Scratch::mounted(fstype, 400 << 20) else { return };
                let file = std::fs::File::create_new(scratch.path().join("file")).unwrap();
                let folder = std::fs::File::open(scratch.path()).unwrap();
                let before = usage(folder.as_fd()).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 10 << 20], 0).unwrap();
                file.sync_all().unwrap();
                let after = usage(folder.as_fd()).unwrap();
                assert!((200 << 20..=400 << 20).contains(&after.total), "{fstype}: {after:?}");
                assert!(after.used >= before.used + (10 << 20), "{fstype}: {before:?} {after:?}");
                assert!(after.available <= before.available - (10 << 20), "{fstype}: {before:?} {after:?}");
                assert_eq!(after.inodes.is_some(), inodes, "{fstype}");
                assert!(after.inodes.is_none_or(|(total, available, used)| total == available + used && used > 0));
            }
        });
    }
}

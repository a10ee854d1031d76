//! The UUID of a mounted file system.
#![allow(unsafe_code, reason = "FS_IOC_GETFSUUID has no safe wrapper")]

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};

use super::*;
use crate::os::mountinfo::Mount;

/// linux/fs.h, struct fsuuid2.
mod ioctl {
    #[repr(C)]
    #[derive(Default)]
    pub(super) struct FsUuid {
        pub len: u8,
        pub uuid: [u8; 16],
    }

    nix::ioctl_read!(get, 0x15, 0, FsUuid);
}

/// Of the file system on which the open directory lies, `mount` being how it is mounted: as the kernel says it (Linux 6.9), else as its
/// device has it; `None` where neither does (overlayfs).
///
/// # Errors
/// `Io` where it cannot be asked.
pub fn uuid_of(open: BorrowedFd<'_>, mount: &Mount) -> Result<Option<String>> {
    let mut answer = ioctl::FsUuid::default();
    // SAFETY: the descriptor is open, and `answer` is laid out as the kernel's struct fsuuid2, which it fills.
    match unsafe { ioctl::get(open.as_raw_fd(), &raw mut answer) } {
        Ok(_) if answer.len == 16 => Ok(Some(text(&answer.uuid))),
        Ok(_) | Err(nix::Error::ENOTTY | nix::Error::EOPNOTSUPP | nix::Error::EINVAL) => Ok(on_device(mount)),
        Err(errno) => Err(Error::io("read the UUID of the file system at", &mount.mount_point, errno)),
    }
}

/// Of the file system on a device, by its first superblock, past the page cache.
///
/// # Errors
/// `Io` where it cannot be read.
pub fn uuid_on_device(device: &Device, fstype: FsType) -> Result<Option<String>> {
    let place = superblock::place(fstype);
    let bytes = grow::read_superblock(device, place)?;
    let read = |at: u64, length| bytes.get(usize::try_from(at.checked_sub(place)?).ok()?..)?.get(..length).map(<[u8]>::to_vec);
    Ok(superblock::uuid(fstype, &read))
}

/// As the superblock on its device has it, where the device is this one's; it may not be there in a container.
fn on_device(mount: &Mount) -> Option<String> {
    let fstype: FsType = mount.fstype.parse().ok()?;
    let device = File::open(&mount.source).ok()?;
    let seen = device.metadata().ok()?;
    let number = (rustix::fs::major(seen.rdev()), rustix::fs::minor(seen.rdev()));
    // A btrfs has a device number of its own making.
    if !seen.file_type().is_block_device() || (number != mount.device && fstype != FsType::Btrfs) {
        return None;
    }
    superblock::uuid(fstype, &|at, length| {
        let mut bytes = vec![0; length];
        device.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    })
}

fn text(uuid: &[u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::testing::{Scratch, in_namespace, tool};
    use super::*;
    use crate::os::mounts::Mounts;

    #[test]
    fn uuid_of_a_mounted_file_system_is_the_one_that_blkid_shows() {
        in_namespace(|| {
            for fstype in ["ext4", "xfs", "btrfs"] {
                let Some(scratch) = Scratch::mounted(fstype, 400 << 20) else { return };
                let directory = File::open(scratch.path()).unwrap();
                let mount = Mounts::now().unwrap().holder_of(directory.as_fd()).unwrap();
                let device = mount.source.to_str().unwrap();
                let Some(shown) = tool("blkid", &["-p", "-s", "UUID", "-o", "value", device]) else { return };
                let shown = shown.trim().to_owned();
                assert!(shown.len() == 36, "{shown:?}");
                assert_eq!(uuid_of(directory.as_fd(), &mount).unwrap(), Some(shown.clone()), "{fstype}");
                assert_eq!(on_device(&mount), Some(shown.clone()), "{fstype}");
                let open = Device::open(device.as_ref(), false).unwrap();
                assert_eq!(uuid_on_device(&open, fstype.parse().unwrap()).unwrap(), Some(shown), "{fstype}");
            }
        });
    }
}

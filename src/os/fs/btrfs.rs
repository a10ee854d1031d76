//! What the kernel remembers of btrfs devices.
#![allow(unsafe_code, reason = "BTRFS_IOC_FORGET_DEV has no safe wrapper")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::*;

const CONTROL: &str = "/dev/btrfs-control";

/// linux/btrfs.h
mod ioctl {
    #[repr(C)]
    pub(super) struct Arguments {
        pub fd: i64,
        pub name: [u8; 4088],
    }

    nix::ioctl_write_ptr!(forget, 0x94, 5, Arguments);
}

/// Lets the kernel forget what it knows of a device that is not mounted. It remembers a device by its number: one whose mount was
/// interrupted stays known, and another that gets its number, with a copy of a mounted file system, is then taken for it and cannot
/// be mounted. Nothing known is fine.
///
/// # Errors
/// `Io`: EBUSY where it is mounted; where there is no btrfs in the kernel.
pub fn forget(device: &Path) -> Result<()> {
    let control = File::open(CONTROL).map_err(|error| Error::io("open", CONTROL, error))?;
    let mut arguments = ioctl::Arguments { fd: 0, name: [0; 4088] };
    // The last byte stays NUL.
    for (to, from) in arguments.name.iter_mut().take(4087).zip(device.as_os_str().as_bytes()) {
        *to = *from;
    }
    // SAFETY: the descriptor is open, and `arguments` is laid out as the kernel's struct btrfs_ioctl_vol_args, which it reads.
    match unsafe { ioctl::forget(control.as_raw_fd(), &raw const arguments) } {
        Ok(_) | Err(nix::Error::ENOENT) => Ok(()),
        Err(errno) => Err(Error::io("forget", device, errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek;
    use std::time::{Duration, Instant};

    use super::testing::{Loop, Mounted, in_namespace, tool};
    use super::*;
    use crate::os::mount::{Attributes, new_filesystem};
    use crate::os::udev;
    use crate::volume::MountFlags;

    /// What a mount that was interrupted leaves is left here by a scan, which a kernel keeps of a file system of several devices only.
    #[test]
    fn a_copy_can_be_mounted_on_a_number_that_the_kernel_knows_as_another() {
        const SIZE: u64 = 200 << 20;
        in_namespace(|| {
            let (Some(mut source), Some(mut reused), Some(second)) = (Loop::new(SIZE), Loop::new(SIZE), Loop::new(SIZE)) else {
                return;
            };
            if tool("mkfs.btrfs", &["-q", source.name()]).is_none() {
                return;
            }
            let directory = tempfile::tempdir().unwrap();
            let _mounted = Mounted::new(&source.device, directory.path(), "btrfs");
            tool("sync", &["--file-system", directory.path().to_str().unwrap()]);
            tool("mkfs.btrfs", &["-q", reused.name(), second.name()]);
            tool("btrfs", &["device", "scan", reused.name()]);

            source.image.rewind().unwrap();
            reused.image.rewind().unwrap();
            std::io::copy(&mut source.image, &mut reused.image).unwrap();
            reused.image.sync_all().unwrap();
            tool("blockdev", &["--flushbufs", reused.name()]);
            drop(new_filesystem("btrfs", &reused.device, &MountFlags::default(), &Attributes::default()).unwrap());
            // It is unmounted with its last descriptor, of which a child that another test starts has one for a moment.
            let unmounted = || match forget(&reused.device) {
                Err(error) if error.errno() == Some(libc::EBUSY) => Ok(false),
                other => other.map(|()| true),
            };
            assert!(udev::wait_until(Instant::now().checked_add(Duration::from_secs(20)), unmounted).unwrap());
            forget(&second.device).unwrap();
        });
    }
}

//! File systems that become as large as their device.
#![allow(unsafe_code, reason = "the ioctls that grow ext4 and xfs have no safe wrapper")]

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::superblock::{self, Superblock};
use super::*;
use crate::os::process::{Run, Tool, run_ok};

/// Growth writes metadata only, but moves some of it; a slow disk takes its time.
const LONGEST: Duration = Duration::from_secs(3600);

mod ioctl {
    // The new number of blocks. linux/fs/ext4/ext4.h
    nix::ioctl_write_ptr!(ext4_resize, b'f', 16, u64);

    /// struct xfs_fsop_geom_v1; of it, what we read. linux/fs/xfs/libxfs/xfs_fs.h
    #[repr(C)]
    #[derive(Default)]
    pub struct XfsGeometry {
        /// Bytes.
        pub block_size: u32,
        other: [u32; 6],
        /// The most of the space that inodes may have, in percent.
        pub most_for_inodes: u32,
        /// Blocks of the data section.
        pub data_blocks: u64,
        rest: [u64; 9],
    }

    /// struct xfs_growfs_data.
    #[repr(C)]
    pub struct XfsGrow {
        pub blocks: u64,
        pub most_for_inodes: u32,
        pub padding: u32,
    }

    nix::ioctl_read!(xfs_geometry, b'X', 100, XfsGeometry);
    nix::ioctl_write_ptr!(xfs_grow, b'X', 110, XfsGrow);
}

/// The size in bytes of the file system, from its superblock on the device.
///
/// Read past the page cache, which xfs and btrfs do not use for theirs. While xfs is mounted, growth stands in its log first and
/// here later: there statvfs(3) is the truth.
///
/// # Errors
/// `Unexpected` without a sound superblock of this type; `Io`.
pub fn size_on_device(device: &Device, fstype: FsType) -> Result<u64> {
    let bytes = read_superblock(device, superblock::place(fstype))?;
    let reason = match superblock::parse(fstype, &bytes) {
        Some(Superblock::Sound { size }) => return Ok(size),
        Some(Superblock::Broken(why)) => format!("its {fstype} superblock is no good: {why}"),
        Some(Superblock::Foreign(name)) => format!("it holds {name}, not {fstype}"),
        None => format!("it holds no {fstype}"),
    };
    Err(Error::Unexpected { object: device_name(device), reason })
}

/// What identifies an ext4 and its last mount: the same text as long as nobody has mounted it, on whatever node.
///
/// # Errors
/// `Io`.
pub fn ext4_uses(device: &Device) -> Result<String> {
    let bytes = read_superblock(device, superblock::place(FsType::Ext4))?;
    let read = |offset: u64, length| bytes.get(usize::try_from(offset).ok()?..)?.get(..length).map(<[u8]>::to_vec);
    Ok(superblock::ext4_uses(&read).unwrap_or_default())
}

pub(super) fn read_superblock(device: &Device, place: u64) -> Result<Vec<u8>> {
    const LENGTH: usize = superblock::LENGTH;
    let failed = |action, error| Error::io(action, device.path(), error);
    let direct = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(device.argument())
        .map_err(|error| failed("open for direct I/O", error))?;
    // Direct I/O wants memory that is aligned to the device's blocks.
    let mut memory = vec![0; 2 * LENGTH];
    let shift = memory.as_ptr().align_offset(LENGTH);
    let bytes = memory.get_mut(shift..).and_then(|aligned| aligned.get_mut(..LENGTH)).unwrap_or_default();
    direct.read_exact_at(bytes, place).map_err(|error| failed("read superblock of", error))?;
    Ok(bytes.to_vec())
}

/// Grows an ext4 that is not mounted, after [`check_fully`]. xfs and btrfs grow only mounted. The device must be open for writing.
/// Interrupted, it leaves what only `check_fully` with [`Repair::All`] repairs.
///
/// # Errors
/// `Tool`.
pub fn grow_unmounted(device: &Device) -> Result<()> {
    let tool = Tool { name: "resize2fs", package: "e2fsprogs" };
    let keep = vec![device.file().as_fd()];
    let command = Run { tool, arguments: vec![device.argument()], keep, stdin: Vec::new(), deadline: LONGEST };
    run_ok(command, &device_name(device), &[0])?;
    device.flush()
}

/// Grows a mounted file system to its device's size. One that is as large already is fine. `mount` is where it is mounted,
/// open with O_PATH: a path might lead elsewhere by the time that a program opens it.
///
/// ext4 and xfs by the same ioctls as resize2fs and xfs_growfs, which find the mount by its path, or tell nothing by their exit
/// status; btrfs filesystem resize.
///
/// # Errors
/// `Io` (ext4: EPERM without CAP_SYS_RESOURCE), `Tool`.
pub fn grow_mounted(device: &Device, fstype: FsType, mount: BorrowedFd<'_>) -> Result<()> {
    let failed = |errno: rustix::io::Errno| Error::io("open mount of", device.path(), errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(mount, ".", flags, Mode::empty()).map_err(failed)?;
    match fstype {
        FsType::Ext4 => grow_mounted_ext4(device, &directory),
        FsType::Xfs => grow_mounted_xfs(device, &directory),
        FsType::Btrfs => {
            let tool = Tool { name: "btrfs", package: "btrfs-progs" };
            let place = format!("/proc/self/fd/{}", directory.as_raw_fd());
            let arguments = ["filesystem", "resize", "max", &place].map(str::to_owned).to_vec();
            let command = Run { tool, arguments, keep: vec![directory.as_fd()], stdin: Vec::new(), deadline: LONGEST };
            run_ok(command, &device_name(device), &[0]).map(drop)
        }
    }
}

fn grow_mounted_ext4(device: &Device, directory: &OwnedFd) -> Result<()> {
    let failed = |action, error: std::io::Error| Error::io(action, device.path(), error);
    let block = rustix::fs::fstatfs(directory).map_err(|errno| failed("read the block size of", errno.into()))?.f_bsize;
    let block = u64::try_from(block).ok().filter(|block| *block > 0).unwrap_or(4096);
    let (now, wanted) = (size_on_device(device, FsType::Ext4)? / block, device.size()? / block);
    if wanted <= now {
        return Ok(());
    }
    // SAFETY: the descriptor is open, and the kernel reads one u64 where `wanted` is.
    match unsafe { ioctl::ext4_resize(directory.as_raw_fd(), &raw const wanted) } {
        Ok(_) => device.flush(),
        Err(nix::Error::EPERM) => {
            let needs = "it takes CAP_SYS_RESOURCE, and a file system without recorded errors";
            let object = format!("{} ({needs})", device.path().display());
            Err(Error::io("grow the mounted ext4 on", object, nix::Error::EPERM))
        }
        Err(errno) => Err(failed("grow the mounted ext4 on", errno.into())),
    }
}

fn grow_mounted_xfs(device: &Device, directory: &OwnedFd) -> Result<()> {
    let failed = |action, errno: nix::Error| Error::io(action, device.path(), errno);
    let mut geometry = ioctl::XfsGeometry::default();
    // SAFETY: the descriptor is open, and the kernel writes as many bytes as the type has, by the ioctl's number.
    unsafe { ioctl::xfs_geometry(directory.as_raw_fd(), &raw mut geometry) }
        .map_err(|errno| failed("read the geometry of the mounted xfs on", errno))?;
    let blocks = device.size()? / u64::from(geometry.block_size.max(512));
    if blocks <= geometry.data_blocks {
        return Ok(());
    }
    let wanted = ioctl::XfsGrow { blocks, most_for_inodes: geometry.most_for_inodes, padding: 0 };
    // SAFETY: the descriptor is open, and the kernel reads one such struct.
    unsafe { ioctl::xfs_grow(directory.as_raw_fd(), &raw const wanted) }
        .map_err(|errno| failed("grow the mounted xfs on", errno))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Instant;

    use super::interrupted::{ext4_interrupted, is_whole_ext4, killed_at_write, writes};
    use super::testing::{Loop, Mounted, in_namespace};
    use super::*;
    use crate::os::udev;

    const MIB: u64 = 1 << 20;

    /// Made on 400 MiB, on a device of now 700 MiB.
    fn outgrown(fstype: FsType) -> Option<(Loop, Device)> {
        let under = Loop::new(400 * MIB)?;
        let device = Device::open(&under.device, true).unwrap();
        mkfs(&device, fstype, &[], None).unwrap();
        assert_eq!(size_on_device(&device, fstype).unwrap(), 400 * MIB, "{fstype}");
        under.resize(700 * MIB);
        Some((under, device))
    }

    #[test]
    fn ext4_grows_unmounted() {
        let Some((_under, device)) = outgrown(FsType::Ext4) else { return };
        for _ in 0..2 {
            assert_eq!(check_fully(&device, Repair::Safely).unwrap(), Checked::Clean);
            grow_unmounted(&device).unwrap();
            assert_eq!(size_on_device(&device, FsType::Ext4).unwrap(), 700 * MIB);
        }
        assert_eq!(check_fully(&device, Repair::Safely).unwrap(), Checked::Clean);
    }

    #[test]
    fn ext4_grows_though_it_was_killed_at_a_write() {
        in_namespace(|| {
            let Some(bytes) = ext4_interrupted(24 * MIB) else { return };
            let Some(under) = Loop::new(48 * MIB) else { return };
            let device = Device::open(&under.device, true).unwrap();
            device.file().write_all_at(&bytes, 0).unwrap();
            check_fully(&device, Repair::Safely).unwrap();
            let mut bytes = vec![0; 48 << 20];
            device.file().read_exact_at(&mut bytes, 0).unwrap();
            let mut kills = 0;
            for number in writes() {
                device.file().write_all_at(&bytes, 0).unwrap();
                let killed = killed_at_write("resize2fs", &[under.name()], number);
                assert!(killed || number > 10, "it wrote less than this test needs");
                let repaired = check_fully(&device, Repair::All);
                assert!(repaired.is_ok(), "killed at write {number}: {repaired:?}");
                grow_unmounted(&device).unwrap();
                assert_eq!(size_on_device(&device, FsType::Ext4).unwrap(), 48 * MIB, "killed at write {number}");
                assert!(is_whole_ext4(&under), "killed at write {number}");
                if !killed {
                    break;
                }
                kills += 1;
            }
            println!("FIGURE: killed at each write of resize2fs: {kills} kills");
        });
    }

    #[test]
    fn xfs_and_btrfs_grow_mounted() {
        in_namespace(|| {
            for fstype in [FsType::Xfs, FsType::Btrfs] {
                let Some((under, device)) = outgrown(fstype) else { return };
                let directory = tempfile::Builder::new().prefix("with space").tempdir().unwrap();
                let mounted = Mounted::new(&under.device, directory.path(), fstype.as_str());
                let total = || usage(File::open(directory.path()).unwrap().as_fd()).unwrap().total;
                let before = total();
                grow_mounted(&device, fstype, File::open(directory.path()).unwrap().as_fd()).unwrap();
                assert!((299 * MIB..=301 * MIB).contains(&(total() - before)), "{fstype} {before} {}", total());
                grow_mounted(&device, fstype, File::open(directory.path()).unwrap().as_fd()).unwrap();
                drop(mounted);
                // It stands there once it is unmounted, which is when a child that another test starts has let go of the directory.
                let written = || Ok(size_on_device(&device, fstype)? == 700 * MIB);
                assert!(udev::wait_until(Instant::now().checked_add(Duration::from_secs(20)), written).unwrap(), "{fstype}");
                assert_eq!(probe(&device, Evidence::None).unwrap(), Contents::Filesystem(fstype));
            }
        });
    }

    #[test]
    fn ext4_grows_mounted_where_that_is_allowed() {
        in_namespace(|| {
            let Some((under, device)) = outgrown(FsType::Ext4) else { return };
            let directory = tempfile::tempdir().unwrap();
            let _mounted = Mounted::new(&under.device, directory.path(), "ext4");
            let total = || usage(File::open(directory.path()).unwrap().as_fd()).unwrap().total;
            let before = total();
            match grow_mounted(&device, FsType::Ext4, File::open(directory.path()).unwrap().as_fd()) {
                Ok(()) => {
                    assert!(total() > before + 250 * MIB);
                    grow_mounted(&device, FsType::Ext4, File::open(directory.path()).unwrap().as_fd()).unwrap();
                }
                Err(error) => {
                    assert_eq!(error.errno(), Some(libc::EPERM), "{error}");
                    assert!(error.to_string().contains("CAP_SYS_RESOURCE"), "{error}");
                    assert_eq!(total(), before);
                    eprintln!("SKIPPED: growth of a mounted ext4: {error}");
                }
            }
        });
    }

    #[test]
    fn absent_file_system_has_no_size() {
        let Some(under) = Loop::new(400 * MIB) else { return };
        let device = Device::open(&under.device, true).unwrap();
        for fstype in FsType::ALL {
            let error = size_on_device(&device, fstype).unwrap_err();
            assert!(matches!(error, Error::Unexpected { .. }), "{error}");
        }
    }
}

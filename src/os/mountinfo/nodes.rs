//! Which block device a mounted device node stands for: its number (st_rdev) says it, never its name. A tmpfs of a pod may hold files of
//! any name.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};

use super::Mount;
use crate::os::mount;

const DEV: &str = "/dev";

impl Mount {
    /// The number of the block device whose node below /dev is mounted (a bind mount of the node); `None` for any other mount. Looked up
    /// when it is first asked for.
    pub fn block_node(&self) -> Option<(u32, u32)> {
        *self.node.get_or_init(|| number(self))
    }

    /// Whether it shows the btrfs on the block device `number`, which is called `path`. btrfs has device numbers of its own making, and the
    /// kernel shows the path by which its device was scanned last: udev scans a device of LVM or multipath below /dev/mapper (btrfs-progs,
    /// 64-btrfs-dm.rules), and an administrator (`btrfs device scan`) by any name.
    pub fn is_btrfs_of(&self, path: &Path, number: (u32, u32)) -> bool {
        self.fstype == "btrfs" && (self.source == path || self.btrfs_device() == Some(number) || self.is_mapper_name_of(number))
    }

    /// The device that the source of a btrfs names now.
    pub fn btrfs_device(&self) -> Option<(u32, u32)> {
        let stat = self.source.starts_with(DEV).then(|| rustix::fs::stat(&self.source).ok()).flatten()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice).then(|| device(stat.st_rdev))
    }

    /// Also where /dev/mapper has no such node.
    fn is_mapper_name_of(&self, (major, minor): (u32, u32)) -> bool {
        let name = || std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/dm/name"));
        self.source.strip_prefix("/dev/mapper").is_ok_and(|named| name().is_ok_and(|name| Path::new(name.trim_end()) == named))
    }
}

/// The number of the block device whose node is mounted; `None` where `mount` shows no block device node of the machine's own /dev.
fn number(mount: &Mount) -> Option<(u32, u32)> {
    // Only /dev itself counts, which these file systems can be: that spares nearly all mounts the look.
    if !matches!(mount.fstype.as_str(), "devtmpfs" | "tmpfs") || mount.root == Path::new("/") {
        return None;
    }
    if of_dev()? != mount.device {
        return None;
    }
    let below = below_dev(mount).and_then(|path| rustix::fs::lstat(path).ok());
    below.and_then(|stat| block(&stat, mount)).or_else(|| at_mount_point(mount))
}

/// The device of the file system at /dev, of which alone nodes count.
pub fn of_dev() -> Option<(u32, u32)> {
    Some(device(rustix::fs::stat(DEV).ok()?.st_dev))
}

/// The mounted node's path; `None` where that was removed (`//deleted`), as is the node of a disk that is gone.
fn below_dev(mount: &Mount) -> Option<PathBuf> {
    (!mount.is_removed()).then(|| Path::new(DEV).join(mount.root.strip_prefix("/").unwrap_or(&mount.root)))
}

/// A removed node lives on in its mounts, and keeps its number.
fn at_mount_point(mount: &Mount) -> Option<(u32, u32)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::open(&mount.mount_point, flags, Mode::empty()).ok()?;
    if mount::id(place.as_fd(), &mount.mount_point).ok()? != mount.id {
        return None;
    }
    block(&rustix::fs::fstat(&place).ok()?, mount)
}

fn block(stat: &Stat, mount: &Mount) -> Option<(u32, u32)> {
    let node = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice && device(stat.st_dev) == mount.device;
    node.then(|| device(stat.st_rdev))
}

fn device(number: u64) -> (u32, u32) {
    (rustix::fs::major(number), rustix::fs::minor(number))
}

#[cfg(test)]
mod tests {
    use super::super::MountTable;
    use super::*;

    #[test]
    fn a_node_that_was_removed_has_no_path_below_dev() {
        let below = |root: &str| {
            let line = format!("1 0 0:6 {root} /t rw - devtmpfs devtmpfs rw\n");
            below_dev(MountTable::parse(line.as_bytes()).unwrap().iter().next().unwrap())
        };
        assert_eq!(below("/nvme1n1"), Some("/dev/nvme1n1".into()));
        assert_eq!(below("/mapper/a"), Some("/dev/mapper/a".into()));
        assert_eq!(below("/nvme1n1//deleted"), None);
        assert_eq!(below("/mapper/a//deleted"), None);
    }

    #[test]
    fn file_systems_that_are_not_dev_have_no_nodes() {
        let stat = rustix::fs::stat(DEV).unwrap();
        let (major, minor) = device(stat.st_dev);
        for line in [
            format!("1 0 {major}:{minor} / /dev rw - devtmpfs devtmpfs rw\n"),
            format!("1 0 {major}:{} /loop0 /t rw - tmpfs tmpfs rw\n", minor + 1000),
            format!("1 0 {major}:{minor} /null /t rw - devtmpfs devtmpfs rw\n"),
        ] {
            assert_eq!(number(MountTable::parse(line.as_bytes()).unwrap().iter().next().unwrap()), None, "{line}");
        }
    }
}

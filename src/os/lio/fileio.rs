//! Files as disks (core/fileio_*).

use std::fmt::Display;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::super::{Error, Result};

use super::{Lio, refused};

/// The kernel takes no longer ones (SE_UDEV_PATH_LEN, with the NUL).
const LONGEST_LABEL: usize = 511;

/// ALUA states (SPC-4, 6.37): served; come back in a moment.
const ACTIVE: &str = "0";

const TRANSITION: &str = "15";

/// A file that is shown as a disk.
#[derive(Debug)]
pub struct Disk<'a> {
    /// Exactly this file, whatever its name leads to later.
    pub file: &'a File,
    pub bytes: u64,
    /// Of 32 hexadecimal digits; what initiators know the disk by is made of the first 25: [`wwid`].
    pub serial: &'a str,
    /// The file's path, for people, and by which its owner knows it again.
    pub label: &'a Path,
}

/// A disk as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSeen {
    /// Device and inode of the file, `None` where the disk was never finished.
    pub inode: Option<(u64, u64)>,
    pub label: PathBuf,
    pub bytes: u64,
}

impl Display for DiskSeen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.label.display(), self.bytes)
    }
}

/// As which device an initiator sees a disk of this serial number (`/sys/block/sdX/device/wwid`): NAA 6, LIO's company id, the first
/// 25 digits (drivers/target/target_core_spc.c, spc_gen_naa_6h_vendor_specific).
pub fn wwid(serial: &str) -> String {
    format!("naa.6001405{}", serial.get(..25).unwrap_or(serial))
}

impl Lio {
    /// Shows a file as a disk, with discard; one that is shown already is left as it is.
    ///
    /// # Errors
    /// `Unexpected` where a disk of this name shows another file.
    pub fn make_disk(&self, hba: u32, name: &str, disk: &Disk<'_>) -> Result<()> {
        let inode = inode_of(disk.file, disk.label)?;
        let directory = disk_directory(hba, name);
        self.make_disk_directory(hba, &directory)?;
        if let Some(seen) = self.disk(hba, name)?
            && self.is_on(&directory.join("enable"))?
        {
            if seen.inode != Some(inode) {
                let reason = format!("it shows {}, not {}; take it down by hand", seen.label.display(), disk.label.display());
                return Err(Error::Unexpected { object: self.shown(&directory), reason });
            }
        } else {
            // By descriptor, so that it is this file; a path would also be interrupted at 255 bytes, and at its first comma.
            let file = format!("/proc/self/fd/{}", disk.file.as_raw_fd());
            self.write(&directory.join("control"), &format!("fd_dev_name={file},fd_dev_size={}", disk.bytes))?;
            self.write(&directory.join("udev_path"), label(disk.label))?;
            self.write(&directory.join("alias"), &format!("{}:{}", inode.0, inode.1))?;
            self.write(&directory.join("wwn/vpd_unit_serial"), disk.serial)?;
            self.write(&directory.join("enable"), "1")?;
        }
        self.set(&directory.join("attrib/emulate_tpu"), "1")?;
        // Copies between disks at an initiator's word (XCOPY) are for none of ours.
        self.set(&directory.join("attrib/emulate_3pc"), "0")
    }

    fn make_disk_directory(&self, hba: u32, directory: &Path) -> Result<()> {
        // Anyone who takes the last disk of it down removes the adapter, perhaps just now.
        for _ in 0..100 {
            self.make_directory(&adapter(hba)).map_err(|error| refused(error, &self.path))?;
            match self.make_directory(directory) {
                Err(error) if error.is_missing() => {}
                made => return made,
            }
        }
        Err(Error::io("make directory", self.path.join(directory), Errno::NOENT))
    }

    /// `None` where there is no such disk.
    pub fn disk(&self, hba: u32, name: &str) -> Result<Option<DiskSeen>> {
        let directory = disk_directory(hba, name);
        let Some(info) = self.read(&directory.join("info"))? else { return Ok(None) };
        let alias = self.read(&directory.join("alias"))?.unwrap_or_default();
        let label = self.read(&directory.join("udev_path"))?.unwrap_or_default();
        Ok(Some(DiskSeen {
            inode: parse_inode(&alias),
            label: PathBuf::from(label.trim_end()),
            bytes: parse_bytes(&info).unwrap_or(0),
        }))
    }

    /// The names of the disks of an adapter.
    pub fn disks(&self, hba: u32) -> Result<Vec<String>> {
        self.directories(&adapter(hba))
    }

    /// Whether some disk, no matter who made it, is known to show this file.
    pub fn shows(&self, inode: (u64, u64)) -> Result<Option<String>> {
        for adapter in self.directories(Path::new("core"))? {
            for disk in self.directories(&Path::new("core").join(&adapter))? {
                let directory = Path::new("core").join(&adapter).join(&disk);
                if self.read(&directory.join("alias"))?.as_deref().and_then(parse_inode) == Some(inode) {
                    return Ok(Some(self.shown(&directory)));
                }
            }
        }
        Ok(None)
    }

    /// Makes a disk as large as its file has become. Initiators see it when they look again.
    pub fn resize(&self, hba: u32, name: &str, bytes: u64) -> Result<()> {
        let directory = disk_directory(hba, name);
        self.write(&directory.join("control"), &format!("fd_dev_size={bytes}"))?;
        match self.disk(hba, name)? {
            Some(seen) if seen.bytes == bytes => Ok(()),
            seen => {
                let reason = format!("it was to have {bytes} bytes, but is {seen:?}");
                Err(Error::Unexpected { object: self.shown(&directory), reason })
            }
        }
    }

    /// From now on initiators are asked to retry in a moment. What was begun before may still be written, but nothing that was
    /// sent after its end was acknowledged. Costs them about a second.
    pub fn pause(&self, hba: u32, name: &str) -> Result<()> {
        self.write(&access_state(hba, name), TRANSITION)
    }

    /// Ends a pause, and says whether there was one until now.
    pub fn resume(&self, hba: u32, name: &str) -> Result<bool> {
        let state = access_state(hba, name);
        let paused = self.read(&state)?.is_some_and(|state| state.trim() == TRANSITION);
        if paused {
            self.write(&state, ACTIVE)?;
        }
        Ok(paused)
    }

    /// Takes a disk down; its file stays.
    ///
    /// # Errors
    /// `Io` with EBUSY while it is some target's LUN.
    pub fn remove_disk(&self, hba: u32, name: &str) -> Result<()> {
        self.remove_directory(&disk_directory(hba, name))?;
        match self.remove_directory(&adapter(hba)) {
            Err(error) if matches!(error.errno(), Some(libc::ENOTEMPTY | libc::EBUSY)) => Ok(()),
            done => done,
        }
    }
}

fn adapter(hba: u32) -> PathBuf {
    PathBuf::from(format!("core/fileio_{hba}"))
}

pub(super) fn disk_directory(hba: u32, name: &str) -> PathBuf {
    adapter(hba).join(name)
}

fn access_state(hba: u32, name: &str) -> PathBuf {
    disk_directory(hba, name).join("alua/default_tg_pt_gp/alua_access_state")
}

/// As much of a path as the kernel keeps.
pub(super) fn label(path: &Path) -> &str {
    let text = path.to_str().unwrap_or("?");
    let mut end = text.len().min(LONGEST_LABEL);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[allow(clippy::useless_conversion, reason = "the fields' types differ between architectures")]
fn inode_of(file: &File, path: &Path) -> Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file).map_err(|errno| Error::io("stat", path, errno))?;
    Ok((stat.st_dev.into(), stat.st_ino.into()))
}

pub(super) fn parse_inode(alias: &str) -> Option<(u64, u64)> {
    let (device, inode) = alias.trim().split_once(':')?;
    Some((device.parse().ok()?, inode.parse().ok()?))
}

/// `TCM FILEIO ID: 0        File: /p/image  Size: 67108864  Mode: O_DSYNC Async: 0` (target_core_file.c, fd_show_configfs_dev_params)
pub(super) fn parse_bytes(info: &str) -> Option<u64> {
    info.rsplit_once("Size: ")?.1.split_whitespace().next()?.parse().ok()
}

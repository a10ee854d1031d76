//! The kernel's SCSI target (LIO) and its iSCSI face, by configfs (kernel documentation, target/tcm_mod_builder and
//! drivers/target/*_configfs.c): files become disks, disks become LUNs of targets, and initiators are let in by name.
//!
//! ```text
//! core/fileio_<hba>/<disk>/             a file as a disk
//! iscsi/<target>/tpgt_1/lun/lun_0       the disk, as the target's one LUN
//!                      /np/<portal>     where it listens
//!                      /acls/<name>     an initiator that is let in, with its credentials and its view of the LUN
//! ```
//! - A disk is written through: the kernel opens the file with O_DSYNC, and the initiator sees no write cache. So
//!   what was acknowledged to an initiator as written survives a crash of this machine, which initiators outlive: had the disk a cache, what was
//!   lost of it would never be written again.
//! - Nobody is let in but those named (no demo mode), and nobody learns of a target by discovery who is not.
//! - Every call is repeatable, finds what a killed one left, and takes what is gone already for done.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Error, Result};

pub use fileio::{Disk, DiskSeen, wwid};
pub use target::{Credentials, Initiator};

mod configfs;
mod fileio;
mod target;

const CONFIGFS: &str = "/sys/kernel/config";
/// CONFIGFS_MAGIC of linux/magic.h.
const MAGIC: i64 = 0x6265_6570;
/// The kernel's target.
#[derive(Debug)]
pub struct Lio {
    root: OwnedFd,
    path: PathBuf,
}

impl Lio {
    /// `None` where the kernel has no target loaded, so that nothing is exported.
    ///
    /// # Errors
    /// `Unexpected` where configfs is not mounted: then nothing is known.
    pub fn open() -> Result<Option<Lio>> {
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mounted = rustix::fs::open(CONFIGFS, directory, Mode::empty())
            .and_then(|configfs| Ok((rustix::fs::fstatfs(&configfs)?.f_type, configfs)));
        let configfs = match mounted {
            #[allow(clippy::unnecessary_cast, clippy::useless_conversion, reason = "the type differs between architectures")]
            Ok((magic, configfs)) if magic as i64 == MAGIC => configfs,
            Ok(_) | Err(Errno::NOENT) => {
                return Err(Error::Unexpected {
                    object: CONFIGFS.to_owned(),
                    reason:
                        "configfs is not mounted there: run `mount -t configfs configfs /sys/kernel/config`, and in a container \
                             give it the host's"
                            .to_owned(),
                });
            }
            Err(errno) => return Err(Error::io("open", CONFIGFS, errno)),
        };
        let path = Path::new(CONFIGFS).join("target");
        match rustix::fs::openat(&configfs, "target", directory, Mode::empty()) {
            Ok(root) => Ok(Some(Lio { root, path })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::io("open", path, errno)),
        }
    }

    /// As `open`, for anyone who needs it.
    ///
    /// # Errors
    /// `Unexpected` with what to load.
    pub fn loaded() -> Result<Lio> {
        Lio::open()?.ok_or_else(|| not_loaded(&Path::new(CONFIGFS).join("target")))
    }

    // ---- disks

    // ---- targets

    // ---- configfs
}

/// A directory that the kernel makes by loading a module.
fn refused(error: Error, root: &Path) -> Error {
    match error.errno() {
        Some(libc::ENOENT | libc::EINVAL | libc::ENODEV) => not_loaded(root),
        _ => error,
    }
}

fn not_loaded(root: &Path) -> Error {
    let reason = "the kernel's iSCSI target is not loaded: run `modprobe -a iscsi_target_mod target_core_file`";
    Error::Unexpected { object: root.display().to_string(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests;

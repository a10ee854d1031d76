//! What the kernel says of this machine's data disks: in which slot each is, and nothing of which disk it is.

use std::path::PathBuf;

use crate::os::hyperv::{self, DataDisk};
use crate::os::scsi::Unit;
use crate::os::{Result, nvme};

/// Where the kernel tells it.
const SYSFS: &str = "/sys";

/// Who is asked.
#[derive(Clone, Debug)]
pub struct Disks {
    sysfs: PathBuf,
    #[cfg(any(test, feature = "faults"))]
    stand_in: bool,
}

impl Default for Disks {
    /// The kernel; with the feature `faults` the directory that `LONGSHORE_AZURE_DISKS` names, for tests on other machines.
    fn default() -> Self {
        #[cfg(feature = "faults")]
        if let Some(directory) = std::env::var_os("LONGSHORE_AZURE_DISKS") {
            return Disks::stand_in(directory.into());
        }
        Disks {
            sysfs: SYSFS.into(),
            #[cfg(any(test, feature = "faults"))]
            stand_in: false,
        }
    }
}

impl Disks {
    /// A directory laid out as sysfs says of the block devices of this machine in which slot they are: as namespaces of NVMe, with
    /// `block/loop3/dev`, `block/loop3/nsid`, `block/loop3/device/model` and `block/loop3/diskseq`.
    #[cfg(any(test, feature = "faults"))]
    pub fn stand_in(directory: PathBuf) -> Disks {
        Disks { sysfs: directory, stand_in: true }
    }

    pub fn shown(&self) -> Result<Vec<DataDisk>> {
        hyperv::data_disks(&self.sysfs)
    }

    /// Has the kernel ask a disk for its size anew.
    pub fn rescan(&self, name: &str) -> Result<()> {
        #[cfg(any(test, feature = "faults"))]
        if self.stand_in {
            return Ok(());
        }
        match Unit::of(name).filter(|_| !name.starts_with("nvme")) {
            Some(unit) => unit.rescan(),
            None => nvme::rescan(&self.sysfs, name),
        }
    }
}

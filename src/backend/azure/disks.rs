//! What the kernel says of this machine's data disks: in which slot each is, and nothing of which disk it is.

use crate::backend::cloud::Sysfs;
use crate::os::Result;
use crate::os::hyperv::{self, DataDisk};

/// Who is asked.
#[derive(Clone, Debug)]
pub struct Disks {
    sysfs: Sysfs,
}

impl Default for Disks {
    /// The kernel; with the feature `faults` the directory that `LONGSHORE_AZURE_DISKS` names, for tests on other machines.
    fn default() -> Self {
        Disks { sysfs: Sysfs::unless_set("LONGSHORE_AZURE_DISKS") }
    }
}

impl Disks {
    /// A directory laid out as sysfs says of the block devices of this machine in which slot they are: as namespaces of NVMe, with
    /// `block/loop3/dev`, `block/loop3/nsid`, `block/loop3/device/model` and `block/loop3/diskseq`.
    #[cfg(test)]
    pub fn stand_in(directory: std::path::PathBuf) -> Disks {
        Disks { sysfs: Sysfs::stand_in(directory) }
    }

    pub fn shown(&self) -> Result<Vec<DataDisk>> {
        hyperv::data_disks(self.sysfs.path())
    }

    /// Has the kernel ask a disk for its size anew.
    pub fn rescan(&self, name: &str) -> Result<()> {
        #[cfg(any(test, feature = "faults"))]
        if self.sysfs.is_stand_in() {
            return Ok(());
        }
        self.sysfs.rescan(name)
    }
}

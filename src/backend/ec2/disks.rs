//! What the kernel and the disks' controllers say of this machine's disks.

use std::path::Path;

use crate::backend::cloud::Sysfs;
use crate::os::block::Device;
use crate::os::{Result, nvme, xen};

/// Who is asked.
#[derive(Clone, Debug)]
pub struct Disks {
    sysfs: Sysfs,
}

impl Default for Disks {
    /// The kernel; with the feature `faults` the directory that `LONGSHORE_EC2_DISKS` names, for tests on machines without NVMe.
    fn default() -> Self {
        Disks { sysfs: Sysfs::unless_set("LONGSHORE_EC2_DISKS") }
    }
}

impl Disks {
    /// A directory laid out as sysfs says of the block devices of this machine which disks they stand for: `block/loop3/device/serial` and
    /// `block/loop3/dev` (or `block/loop3/device/devtype`, for a disk of Xen). Their controllers' word is in `block/loop3/controller`,
    /// and looked up by the number of the device that is open.
    #[cfg(test)]
    pub fn stand_in(directory: std::path::PathBuf) -> Disks {
        Disks { sysfs: Sysfs::stand_in(directory) }
    }

    pub fn sysfs(&self) -> &Path {
        self.sysfs.path()
    }

    /// The disks with a serial number, as the kernel remembers it.
    pub fn nvme(&self) -> Result<Vec<nvme::Disk>> {
        nvme::disks(self.sysfs.path())
    }

    pub fn xen(&self, name: &str) -> Result<Option<xen::Disk>> {
        xen::disk(self.sysfs.path(), name)
    }

    /// The serial number of the open disk, by its controller's word; `None` where it is no NVMe disk.
    pub fn serial(&self, device: &Device) -> Result<Option<String>> {
        #[cfg(any(test, feature = "faults"))]
        if self.sysfs.is_stand_in() {
            let listed = self.nvme()?.into_iter().find(|disk| disk.number == device.number());
            return Ok(listed.and_then(|disk| self.sysfs.said(&disk.name, "controller")));
        }
        Ok(nvme::controller(device)?.map(|controller| controller.serial))
    }
}

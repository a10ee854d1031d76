//! What the kernel and the disks' controllers say of this machine's disks.

use std::path::{Path, PathBuf};

use crate::os::block::Device;
use crate::os::{Result, nvme, xen};

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
    /// The kernel; with the feature `faults` the directory that `LONGSHORE_EC2_DISKS` names, for tests on machines without NVMe.
    fn default() -> Self {
        #[cfg(feature = "faults")]
        if let Some(directory) = std::env::var_os("LONGSHORE_EC2_DISKS") {
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
    /// A directory laid out as sysfs says of the block devices of this machine which disks they stand for: `block/loop3/device/serial` and
    /// `block/loop3/dev` (or `block/loop3/device/devtype`, for a disk of Xen). Their controllers' word is in `block/loop3/controller`,
    /// and looked up by the number of the device that is open.
    #[cfg(any(test, feature = "faults"))]
    pub fn stand_in(directory: PathBuf) -> Disks {
        Disks { sysfs: directory, stand_in: true }
    }

    pub fn sysfs(&self) -> &Path {
        &self.sysfs
    }

    /// The disks with a serial number, as the kernel remembers it.
    pub fn nvme(&self) -> Result<Vec<nvme::Disk>> {
        nvme::disks(&self.sysfs)
    }

    pub fn xen(&self, name: &str) -> Result<Option<xen::Disk>> {
        xen::disk(&self.sysfs, name)
    }

    /// The serial number of the open disk, by its controller's word; `None` where it is no NVMe disk.
    pub fn serial(&self, device: &Device) -> Result<Option<String>> {
        #[cfg(any(test, feature = "faults"))]
        if self.stand_in {
            let listed = self.nvme()?.into_iter().find(|disk| disk.number == device.number());
            let said = listed.map(|disk| self.sysfs.join("block").join(disk.name).join("controller"));
            return Ok(said.and_then(|file| std::fs::read_to_string(file).ok()).map(|text| text.trim().to_owned()));
        }
        Ok(nvme::controller(device)?.map(|controller| controller.serial))
    }
}

//! What the kernel and the disks themselves say of this machine's disks.
//!
//! A disk of SCSI has the name by which it was attached in page 0x83, one of NVMe in the vendor's part of its namespace (as Google's
//! `scsi_id` and `google_nvme_id` rules read them for the links in /dev/disk/by-id).

use serde::Deserialize;

use crate::backend::cloud::Sysfs;
use crate::os::block::Device;
use crate::os::scsi::{Disk, disks_with_model};
use crate::os::{Result, inquiry, nvme};

/// How a name based on the vendor's begins (SPC-4, "T10 vendor ID based designator").
const VENDOR: &str = "Google  PersistentDisk";

/// Who is asked.
#[derive(Clone, Debug)]
pub struct Disks {
    sysfs: Sysfs,
}

impl Default for Disks {
    /// The kernel; with the feature `faults` the directory that `LONGSHORE_GCE_DISKS` names, for tests on other machines.
    fn default() -> Self {
        Disks { sysfs: Sysfs::unless_set("LONGSHORE_GCE_DISKS") }
    }
}

impl Disks {
    /// A directory laid out as sysfs says of the block devices of this machine which disks they stand for: `block/loop3/dev` and
    /// `block/loop3/device/model`. What they say themselves is in `block/loop3/attached-as`, and looked up by the number of the device that
    /// is open.
    #[cfg(test)]
    pub fn stand_in(directory: std::path::PathBuf) -> Disks {
        Disks { sysfs: Sysfs::stand_in(directory) }
    }

    /// The disks whose model is one of Google's: `PersistentDisk` of SCSI, `nvme_card-pd` and its like of NVMe.
    pub fn shown(&self) -> Result<Vec<Disk>> {
        let is_googles = |model: &str| model.starts_with("PersistentDisk") || model.starts_with("nvme_card");
        let disks = disks_with_model(&self.sysfs.block())?.into_iter();
        Ok(disks.filter(|(_, model)| is_googles(model)).map(|(disk, _)| disk).collect())
    }

    /// The name by which the open disk was attached, by its own word; `None` where it has none.
    pub fn attached_as(&self, device: &Device) -> Result<Option<String>> {
        #[cfg(any(test, feature = "faults"))]
        if self.sysfs.is_stand_in() {
            let listed = self.shown()?.into_iter().find(|disk| disk.number == device.number());
            return Ok(listed.and_then(|disk| self.sysfs.said(&disk.name, "attached-as")));
        }
        if let Some(data) = nvme::vendor_data(device)? {
            return Ok(name_in(&data));
        }
        let names = inquiry::vendor_names(device)?.unwrap_or_default();
        Ok(names.into_iter().next().map(|name| without_vendor(&name).to_owned()))
    }

    /// The size in bytes that the open disk has, where it may differ from what the kernel has taken over.
    pub fn size(&self, device: &Device) -> Result<Option<u64>> {
        #[cfg(any(test, feature = "faults"))]
        if self.sysfs.is_stand_in() {
            return Ok(None);
        }
        nvme::size(device)
    }

    /// Has the kernel ask a disk for its size anew.
    pub fn rescan(&self, name: &str) -> Result<()> {
        self.sysfs.rescan(name)
    }
}

/// What NVMe disks have for a name: JSON, filled up with zeroes.
#[derive(Deserialize)]
struct VendorData {
    device_name: String,
}

fn name_in(data: &[u8]) -> Option<String> {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    serde_json::from_slice::<VendorData>(data.get(..end)?).ok().map(|data| data.device_name)
}

fn without_vendor(name: &str) -> &str {
    name.strip_prefix(VENDOR).map_or(name, str::trim_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_what_the_disk_says() {
        let mut data = br#"{"device_name":"longshore-7","disk_type":"PERSISTENT"}"#.to_vec();
        assert_eq!(name_in(&data).as_deref(), Some("longshore-7"));
        data.resize(3712, 0);
        assert_eq!(name_in(&data).as_deref(), Some("longshore-7"));
        assert_eq!(name_in(&[0; 10]), None);
        assert_eq!(without_vendor("Google  PersistentDisk  longshore-7"), "longshore-7");
        assert_eq!(without_vendor("longshore-7"), "longshore-7");
    }
}

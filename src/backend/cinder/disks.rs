//! What the kernel and the disks themselves say of this machine's disks.
//!
//! Nova's drivers give a disk the volume's id for a serial number (nova/virt/libvirt/driver.py, `conf.serial`). Of virtio-blk a guest sees 20
//! characters of it, of QEMU's SCSI disks as many in page 0x83, or all.

use crate::backend::cloud::Sysfs;
use crate::os::block::Device;
use crate::os::scsi::{Disk, Unit, disks_with_model};
use crate::os::{Result, inquiry, virtio};

/// The model of QEMU's SCSI disks.
const MODEL: &str = "QEMU HARDDISK";
/// So much of a volume's id is a disk's serial number at least.
const SHORTEST: usize = 20;

/// Who is asked.
#[derive(Clone, Debug)]
pub struct Disks {
    sysfs: Sysfs,
}

impl Default for Disks {
    /// The kernel; with the feature `faults` the directory that `LONGSHORE_CINDER_DISKS` names, for tests on other machines: laid out as sysfs
    /// shows block devices, `block/loop3/dev` and `block/loop3/serial`.
    fn default() -> Self {
        Disks { sysfs: Sysfs::unless_set("LONGSHORE_CINDER_DISKS") }
    }
}

impl Disks {
    /// As `default` with a directory for the kernel.
    #[cfg(test)]
    pub fn stand_in(directory: std::path::PathBuf) -> Disks {
        Disks { sysfs: Sysfs::stand_in(directory) }
    }

    /// The disks that may be a volume.
    pub fn shown(&self) -> Result<Vec<Disk>> {
        let block = self.sysfs.block();
        let scsi = disks_with_model(&block)?.into_iter().filter(|(_, model)| model.starts_with(MODEL));
        let mut disks: Vec<Disk> = scsi.map(|(disk, _)| disk).collect();
        disks.extend(virtio::disks_with_serial(&block)?.into_iter().map(|(disk, _)| disk));
        Ok(disks)
    }

    /// The serial number of the open disk, by its own word; `None` where it has none. While it is open, no other has its number.
    pub fn serial(&self, device: &Device) -> Result<Option<String>> {
        let shown = virtio::disks_with_serial(&self.sysfs.block())?;
        if let Some((_, serial)) = shown.into_iter().find(|(disk, _)| disk.number == device.number()) {
            return Ok(Some(serial));
        }
        Ok(inquiry::vendor_names(device)?.unwrap_or_default().into_iter().next())
    }

    /// Has the kernel ask a disk for its size anew. One of virtio-blk tells it by itself.
    pub fn rescan(&self, name: &str) -> Result<()> {
        Unit::of(name).map_or(Ok(()), |unit| unit.rescan())
    }
}

/// Whether a disk with this serial number is the volume of this id.
pub fn is_serial_of(serial: &str, id: &str) -> bool {
    serial == id || (serial.len() == SHORTEST && id.starts_with(serial))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_number_is_all_of_the_id_or_its_begin() {
        let id = "0b3c0a54-0e0e-4d0b-8a4a-1f0c7a3a7a2b";
        for (serial, is) in [
            (id, true),
            ("0b3c0a54-0e0e-4d0b-8", true),
            ("0b3c0a54-0e0e-4d0b-", false),
            ("0b3c0a54-0e0e-4d0b-9", false),
            ("", false),
            ("0b3c0a54-0e0e-4d0b-8a", false),
        ] {
            assert_eq!(is_serial_of(serial, id), is, "{serial}");
        }
    }
}

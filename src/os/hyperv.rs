//! Disks that Azure attaches to a machine, as sysfs shows them: SCSI disks of a Hyper-V host, or namespaces of its NVMe controller.

use std::path::Path;

use super::Result;
use super::scsi::{Disk, attribute, children, number};

/// The host's SCSI controller of data disks (WALinuxAgent, config/66-azure-storage.rules: `scsi1`). Those of others have the same numbers.
const DATA_DISKS: &str = "f8b3781b-1e82-4818-a1c3-63d806ec15bb";
/// The NVMe controller of remote disks; the local ones have another ("Remote NVMe disks FAQ").
const ACCELERATOR: &str = "MSFT NVMe Accelerator";
/// Namespace 1 is the disk of the operating system; a data disk on LUN n is namespace n + 2 (azuredisk-csi-driver issue 2777).
const FIRST_NAMESPACE: u32 = 2;

/// A data disk in its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDisk {
    pub disk: Disk,
    pub lun: u32,
    /// The kernel's count of disks in this boot when it came (since Linux 5.15): another disk in the same slot has another.
    pub sequence: Option<u64>,
}

/// All data disks of this machine.
pub fn data_disks(sysfs: &Path) -> Result<Vec<DataDisk>> {
    let block = sysfs.join("block");
    let mut disks = Vec::new();
    for name in children(&block)? {
        let directory = block.join(&name);
        let Some(number) = attribute(&directory, "dev")?.as_deref().and_then(number) else { continue };
        let lun = match attribute(&directory, "nsid")? {
            Some(namespace) => {
                let model = attribute(&directory, "device/model")?.unwrap_or_default();
                let namespace = namespace.parse::<u32>().ok().filter(|_| model.starts_with(ACCELERATOR));
                namespace.and_then(|namespace| namespace.checked_sub(FIRST_NAMESPACE))
            }
            None => scsi_lun(&directory)?,
        };
        let Some(lun) = lun else { continue };
        let sequence = attribute(&directory, "diskseq")?.and_then(|text| text.parse().ok());
        disks.push(DataDisk { disk: Disk { name, number }, lun, sequence });
    }
    Ok(disks)
}

/// `…/VMBUS:00/f8b3781b-…/host1/target1:0:0/1:0:0:5`; older kernels have `vmbus_0_15` for the controller, with its id in a file.
fn scsi_lun(directory: &Path) -> Result<Option<u32>> {
    let Ok(unit) = directory.join("device").canonicalize() else { return Ok(None) };
    let address = unit.file_name().unwrap_or_default().to_string_lossy();
    let parts: Vec<&str> = address.split(':').collect();
    let [_, _, _, lun] = parts.as_slice() else { return Ok(None) };
    for ancestor in unit.ancestors().skip(1) {
        let name = ancestor.file_name().unwrap_or_default().to_string_lossy();
        let is_named = name.eq_ignore_ascii_case(DATA_DISKS);
        if is_named
            || attribute(ancestor, "device_id")?.is_some_and(|id| id.trim_matches(['{', '}']).eq_ignore_ascii_case(DATA_DISKS))
        {
            return Ok(lun.parse().ok());
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn put(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    #[test]
    fn only_data_disks_have_slots() {
        let sysfs = tempfile::tempdir().expect("a directory");
        let scsi = |name: &str, bus: &str, address: &str, minor: u32| {
            let unit = sysfs.path().join("devices/VMBUS:00").join(bus).join("host1/target1:0:0").join(address);
            put(&unit.join("model"), "Virtual Disk\n");
            put(&sysfs.path().join("block").join(name).join("dev"), &format!("8:{minor}\n"));
            symlink(&unit, sysfs.path().join("block").join(name).join("device")).expect("a link");
        };
        scsi("sda", "f8b3781a-1e82-4818-a1c3-63d806ec15bb", "0:0:0:0", 0);
        scsi("sdc", DATA_DISKS, "1:0:0:5", 32);
        scsi("sdd", "vmbus_0_15", "1:0:0:6", 48);
        put(&sysfs.path().join("devices/VMBUS:00/vmbus_0_15/device_id"), &format!("{{{DATA_DISKS}}}\n"));
        put(&sysfs.path().join("block/sdc/diskseq"), "7\n");
        for (name, model, namespace) in [
            ("nvme0n1", "MSFT NVMe Accelerator v1.0", 1),
            ("nvme0n3", "MSFT NVMe Accelerator v1.0", 3),
            ("nvme1n1", "Microsoft NVMe Direct Disk", 3),
        ] {
            let directory = sysfs.path().join("block").join(name);
            put(&directory.join("dev"), "259:1\n");
            put(&directory.join("nsid"), &format!("{namespace}\n"));
            put(&directory.join("device/model"), &format!("{model}\n"));
        }
        let mut found = data_disks(sysfs.path()).expect("they are read");
        found.sort_by(|one, other| one.disk.name.cmp(&other.disk.name));
        let found: Vec<_> = found.into_iter().map(|found| (found.disk.name, found.lun, found.sequence)).collect();
        assert_eq!(found, [("nvme0n3".to_owned(), 1, None), ("sdc".to_owned(), 5, Some(7)), ("sdd".to_owned(), 6, None)]);
    }
}

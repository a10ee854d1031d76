//! Whole disks of this machine and their partitions, as sysfs shows them. A disk that hangs is not touched by looking here.

use std::path::{Path, PathBuf};

use super::scsi::{attribute, children, number};
use super::{Error, Result};

pub mod gpt;
pub mod record;

/// Bytes of a sector in sysfs, whatever the disk's own are (Documentation/ABI/stable/sysfs-block).
const SECTOR: u64 = 512;
/// What is no disk of this machine, by the start of its name: in memory, removable, on the network. What is made of other devices has `slaves`.
const OTHERS: [&str; 9] = ["ram", "zram", "sr", "fd", "mtd", "nbd", "rbd", "drbd", "zd"];

/// A whole disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// `sdb`. It may be another disk's at the next start of the machine.
    pub name: String,
    pub number: (u32, u32),
    /// In bytes.
    pub size: u64,
    /// Bytes of a logical block.
    pub block: u64,
    pub read_only: bool,
    pub rotational: bool,
    pub model: Option<String>,
    pub serial: Option<String>,
    pub wwid: Option<String>,
    /// `nvme`, `sas`, `sata`, `usb`, `virtio`, `iscsi`, `loop`; `None` for any other.
    pub transport: Option<&'static str>,
    /// Counts all disks that came since the machine started (Linux 5.15): no two have the same.
    pub sequence: Option<u64>,
    pub partitions: Vec<Partition>,
    /// What is made of all of it: `dm-3` (a multipath device), `md0`.
    pub holders: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// `sdb2`
    pub name: String,
    pub number: (u32, u32),
    /// From 1.
    pub index: u32,
    /// In bytes.
    pub start: u64,
    /// In bytes.
    pub size: u64,
    /// As [`Disk::holders`].
    pub holders: Vec<String>,
}

impl Disk {
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    pub fn partition(&self, index: u32) -> Option<&Partition> {
        self.partitions.iter().find(|partition| partition.index == index)
    }
}

impl Partition {
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }
}

/// The whole disks of which `by_name` likes the names, `sysfs` being `/sys`, in the order of their names. Of others nothing is read: a node
/// may have hundreds of loop devices.
pub fn all(sysfs: &Path, by_name: impl Fn(&str) -> bool) -> Result<Vec<Disk>> {
    let block = sysfs.join("block");
    let mut disks = Vec::new();
    for name in children(&block)? {
        let directory = block.join(&name);
        if OTHERS.iter().any(|other| name.starts_with(other))
            || !by_name(&name)
            || count(&directory, "size")?.is_none_or(|size| size == 0)
        {
            continue;
        }
        if children(&directory.join("slaves"))?.is_empty() {
            disks.extend(read(&directory, name)?);
        }
    }
    Ok(disks)
}

/// Has udevd look at a disk and its partitions anew: it gives up an event that waits for a lock for minutes.
pub fn announce(disk: &Disk) {
    let directory = Path::new("/sys/block").join(&disk.name);
    for directory in disk.partitions.iter().map(|partition| directory.join(&partition.name)).chain([directory.clone()]) {
        // It is for the links below /dev/disk alone.
        if let Err(error) = std::fs::write(directory.join("uevent"), "change") {
            tracing::debug!(device = %directory.display(), %error, "announce device");
        }
    }
}

/// The whole disk with this number, or with a partition of this number.
pub fn of(sysfs: &Path, number: (u32, u32)) -> Result<Option<Disk>> {
    let link = sysfs.join("dev/block").join(format!("{}:{}", number.0, number.1));
    let directory = match link.canonicalize() {
        Ok(directory) if directory.join("partition").exists() => directory.parent().map(Path::to_path_buf),
        Ok(directory) => Some(directory),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::io("look for device", link, error)),
    };
    let Some(directory) = directory else { return Ok(None) };
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    read(&directory, name)
}

fn read(directory: &Path, name: String) -> Result<Option<Disk>> {
    let flag = |file: &str| Ok::<bool, Error>(attribute(directory, file)?.as_deref() == Some("1"));
    let Some(number) = attribute(directory, "dev")?.as_deref().and_then(number) else { return Ok(None) };
    let mut partitions = Vec::new();
    for child in children(directory)?.into_iter().filter(|child| child.starts_with(&name)) {
        let below = directory.join(&child);
        partitions.extend(partition(&below, child)?);
    }
    partitions.sort_by_key(|partition| partition.index);
    Ok(Some(Disk {
        number,
        size: count(directory, "size")?.unwrap_or_default() * SECTOR,
        block: count(directory, "queue/logical_block_size")?.unwrap_or(SECTOR),
        read_only: flag("ro")?,
        rotational: flag("queue/rotational")?,
        model: attribute(directory, "device/model")?,
        serial: serial(directory)?,
        wwid: first(directory, &["wwid", "device/wwid"])?.map(|wwid| wwid.split_whitespace().collect::<Vec<_>>().join(" ")),
        transport: directory.canonicalize().ok().and_then(|path| transport(&path)),
        sequence: count(directory, "diskseq")?,
        partitions,
        holders: children(&directory.join("holders"))?,
        name,
    }))
}

fn partition(directory: &Path, name: String) -> Result<Option<Partition>> {
    let Some(index) = count(directory, "partition")? else { return Ok(None) };
    let (Some(start), Some(size)) = (count(directory, "start")?, count(directory, "size")?) else { return Ok(None) };
    let number = attribute(directory, "dev")?.as_deref().and_then(number);
    let (Some(number), Ok(index)) = (number, u32::try_from(index)) else { return Ok(None) };
    let holders = children(&directory.join("holders"))?;
    Ok(Some(Partition { name, number, index, start: start * SECTOR, size: size * SECTOR, holders }))
}

fn count(directory: &Path, file: &str) -> Result<Option<u64>> {
    Ok(attribute(directory, file)?.and_then(|text| text.parse().ok()))
}

fn first(directory: &Path, files: &[&str]) -> Result<Option<String>> {
    for file in files {
        if let Some(text) = attribute(directory, file)? {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// As NVMe and virtio have it in a file, or a SCSI disk in its VPD page 0x80 (SPC-4, 7.8.15: four bytes of header).
fn serial(directory: &Path) -> Result<Option<String>> {
    if let Some(serial) = first(directory, &["device/serial", "serial"])? {
        return Ok(Some(serial));
    }
    let Ok(page) = std::fs::read(directory.join("device/vpd_pg80")) else { return Ok(None) };
    let text = String::from_utf8_lossy(page.get(4..).unwrap_or_default()).trim_matches(['\0', ' ']).to_owned();
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// By the devices above it.
fn transport(path: &Path) -> Option<&'static str> {
    const BY_START: [(&str, &str); 7] = [
        ("nvme", "nvme"),
        ("usb", "usb"),
        ("virtio", "virtio"),
        ("session", "iscsi"),
        ("end_device-", "sas"),
        ("ata", "sata"),
        ("loop", "loop"),
    ];
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    let has = |start: &str| {
        parts.iter().any(|part| part.strip_prefix(start).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_lowercase())))
    };
    BY_START.iter().find(|(start, _)| has(start)).map(|(_, transport)| *transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }
    }

    #[test]
    fn disk_is_read_with_its_partitions_and_holders() {
        let root = tempfile::tempdir().expect("a directory");
        put(
            root.path(),
            &[
                ("block/sdb/dev", "8:16\n"),
                ("block/sdb/size", "4096\n"),
                ("block/sdb/ro", "0\n"),
                ("block/sdb/queue/logical_block_size", "4096\n"),
                ("block/sdb/queue/rotational", "1\n"),
                ("block/sdb/device/model", "DISK 1          \n"),
                ("block/sdb/device/wwid", "naa.5000c500a\n"),
                ("block/sdb/device/vpd_pg80", "\0\u{1}\0\u{8}  SERIAL"),
                ("block/sdb/diskseq", "7\n"),
                ("block/sdb/sdb2/dev", "8:18\n"),
                ("block/sdb/sdb2/partition", "2\n"),
                ("block/sdb/sdb2/start", "2048\n"),
                ("block/sdb/sdb2/size", "1024\n"),
                ("block/sdb/sdb2/holders/dm-3/x", ""),
                ("block/dm-3/dev", "253:3\n"),
                ("block/dm-3/size", "8\n"),
                ("block/dm-3/slaves/sdb2/x", ""),
                ("block/ram0/dev", "1:0\n"),
                ("block/ram0/size", "8\n"),
                ("block/sdc/dev", "8:32\n"),
                ("block/sdc/size", "0\n"),
            ],
        );
        let (start, size, holders) = (1 << 20, 512 << 10, vec!["dm-3".to_owned()]);
        let partition = Partition { name: "sdb2".to_owned(), number: (8, 18), index: 2, start, size, holders };
        let disk = Disk {
            name: "sdb".to_owned(),
            number: (8, 16),
            size: 2 << 20,
            block: 4096,
            read_only: false,
            rotational: true,
            model: Some("DISK 1".to_owned()),
            serial: Some("SERIAL".to_owned()),
            wwid: Some("naa.5000c500a".to_owned()),
            transport: None,
            sequence: Some(7),
            partitions: vec![partition],
            holders: Vec::new(),
        };
        assert_eq!(all(root.path(), |_| true).expect("reads"), [disk], "no empty slot, nothing in memory, nothing made of disks");
        assert_eq!(all(root.path(), |name| name != "sdb").expect("reads"), []);
        assert_eq!(all(Path::new("/no/such/directory"), |_| true).expect("none"), []);
    }

    #[test]
    fn transport_is_that_of_the_devices_above() {
        for (path, expected) in [
            ("/sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda", Some("sata")),
            ("/sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0/nvme/nvme0/nvme0n1", Some("nvme")),
            ("/sys/devices/pci0000:00/0000:00:05.0/virtio1/block/vda", Some("virtio")),
            ("/sys/devices/pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdc", Some("usb")),
            ("/sys/devices/platform/host2/session1/target2:0:0/2:0:0:1/block/sdb", Some("iscsi")),
            ("/sys/devices/virtual/block/loop3", Some("loop")),
            ("/sys/devices/pseudo_0/adapter0/host2/target2:0:0/2:0:0:0/block/sda", None),
        ] {
            assert_eq!(transport(Path::new(path)), expected, "{path}");
        }
    }
}

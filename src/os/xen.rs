//! Disks of a Xen guest as sysfs shows them (drivers/xen/xenbus, drivers/block/xen-blkfront.c).

use std::path::Path;

use super::Result;
use super::scsi::{attribute, number};

/// A disk that Xen gave this machine. It has no identity but its name, by which it was attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// `xvdba`.
    pub name: String,
    pub number: (u32, u32),
    /// The kernel's count of disks in this boot when it came (since Linux 5.15): another disk of the same name has another.
    pub sequence: Option<u64>,
}

/// The disk of this name; `None` where there is none, or none of Xen's.
pub fn disk(sysfs: &Path, name: &str) -> Result<Option<Disk>> {
    let directory = sysfs.join("block").join(name);
    if attribute(&directory, "device/devtype")?.as_deref() != Some("vbd") {
        return Ok(None);
    }
    let Some(number) = attribute(&directory, "dev")?.as_deref().and_then(number) else { return Ok(None) };
    let sequence = attribute(&directory, "diskseq")?.and_then(|text| text.parse().ok());
    Ok(Some(Disk { name: name.to_owned(), number, sequence }))
}

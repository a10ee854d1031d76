//! File systems on a block device: probe, make, check, grow, measure.

use std::os::fd::{AsFd, AsRawFd};

use crate::os::block::Device;
use crate::os::{Error, Result};
use crate::volume::FsType;

mod btrfs;
mod check;
mod grow;
#[cfg(test)]
pub(crate) mod interrupted;
pub mod mark;
mod mkfs;
mod probe;
mod signature;
mod superblock;
#[cfg(test)]
pub(crate) mod testing;
mod usage;
mod uuid;

pub use btrfs::forget;
pub use check::{Checked, Repair, check, check_fully};
pub use grow::{ext4_uses, grow_mounted, grow_unmounted, size_on_device};
pub use mark::{Mark, wipe};
pub use mkfs::mkfs;
pub use probe::{Contents, Evidence, Probed, probe, probe_marked};
pub use usage::{Usage, usage, usages};
pub use uuid::{uuid_of, uuid_on_device};

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use probe::contents;

/// As it is called, for messages.
fn device_name(device: &Device) -> String {
    device.path().display().to_string()
}

//! File systems on a block device: probe, make, check, grow, measure.

use crate::os::Result;
use crate::os::block::Device;
use crate::volume::FsType;

mod check;
mod grow;
mod mkfs;
mod probe;
#[cfg(test)]
pub(crate) mod testing;
mod usage;

pub use check::{Checked, check};
pub use grow::{grow_mounted, grow_unmounted, size_on_device};
pub use mkfs::mkfs;
pub use probe::{Contents, probe};
pub use usage::{Usage, usage};

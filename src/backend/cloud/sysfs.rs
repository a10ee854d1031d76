//! Where the kernel tells of this machine's disks.

use std::path::{Path, PathBuf};

use crate::os::Result;
use crate::os::nvme;
use crate::os::scsi::Unit;

/// sysfs(5); for tests on other machines a directory that is laid out like it, and has what the disks themselves would say.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
    #[cfg(any(test, feature = "faults"))]
    stand_in: bool,
}

impl Sysfs {
    /// The kernel's; with the feature `faults` the directory that the environment variable names.
    #[cfg_attr(not(feature = "faults"), allow(unused_variables, reason = "for tests"))]
    pub fn unless_set(variable: &str) -> Sysfs {
        #[cfg(feature = "faults")]
        if let Some(directory) = std::env::var_os(variable) {
            return Sysfs::stand_in(directory.into());
        }
        Sysfs {
            root: "/sys".into(),
            #[cfg(any(test, feature = "faults"))]
            stand_in: false,
        }
    }

    #[cfg(any(test, feature = "faults"))]
    pub fn stand_in(root: PathBuf) -> Sysfs {
        Sysfs { root, stand_in: true }
    }

    #[cfg(any(test, feature = "faults"))]
    pub fn is_stand_in(&self) -> bool {
        self.stand_in
    }

    /// What a stand-in for a disk says, by the name of a file beside it.
    #[cfg(any(test, feature = "faults"))]
    pub fn said(&self, disk: &str, file: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.block().join(disk).join(file)).ok()?;
        Some(text.trim().to_owned())
    }

    pub fn path(&self) -> &Path {
        &self.root
    }

    /// The directory of block devices.
    pub fn block(&self) -> PathBuf {
        self.root.join("block")
    }

    /// Has the kernel ask a disk of SCSI or NVMe for its size anew.
    ///
    /// # Errors
    /// Where the kernel does not take it.
    pub fn rescan(&self, disk: &str) -> Result<()> {
        match Unit::of(disk).filter(|_| !disk.starts_with("nvme")) {
            Some(unit) => unit.rescan(),
            None => nvme::rescan(&self.root, disk),
        }
    }
}

//! Where directories are made: what the backends of directories differ in.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::os;
use crate::os::dir::OpenDir;
use crate::volume::{Bytes, Result};

use super::silence::Silence;

/// A top directory, as its backend knows it: how it is reached, and what is said of it.
pub trait Location: fmt::Debug + Send + Sync {
    /// What such a place is called in messages: `share`, `base directory`.
    fn noun(&self) -> &'static str;

    /// `server:/share`, or a path.
    fn called(&self) -> String;

    /// How much may be provisioned, as configured at the start; `None` is what the file system has.
    fn capacity(&self) -> Option<Bytes>;

    /// Opens the top directory for reading.
    fn reach(&self) -> os::Result<OpenDir>;

    /// Makes the top directory, where the driver may do that and only its last component is missing; whether it did. Asked only where none
    /// was seen before.
    fn make_top(&self) -> os::Result<bool> {
        Ok(false)
    }

    /// Whether the open top directory still is what `reach` would open, and answers. Comes back in seconds.
    fn check_answers(&self, root: &OpenDir) -> Result<(), Silence>;

    /// Whether a failure to open it is reported again for some seconds before it is tried again: each try costs a server something.
    fn remembers_failure(&self) -> bool;

    /// What tells its file system from any other that could be in its place, where that can be read; `None` where only our marker does.
    ///
    /// # Errors
    /// In words, where it is not the file system that is configured, or directories cannot be made in it.
    fn file_system(&self, root: &OpenDir) -> Result<Option<String>, String>;

    /// The directory of the driver's state in which it is recorded which one was seen here.
    fn records(&self) -> &'static str;

    /// Why our own directory may be missing although it was there, and what to do about it.
    fn missing(&self) -> &'static str;

    /// The name of this as a problem of a volume's health.
    fn unreachable(&self) -> &'static str;

    /// What to do where root is refused something.
    fn denied(&self) -> &'static str;

    /// What to do where no lock is given.
    fn no_lock(&self) -> &'static str;

    /// Where project quotas are set, if capacities are to be enforced.
    ///
    /// # Errors
    /// In words, where they must be and cannot.
    fn quotas(&self, root: &OpenDir) -> Result<Option<OpenDir>, String>;

    /// Where a directory below the open top one is mounted on this machine, as far as this process sees it and it can be known: what a
    /// pod has is not deleted, also where the node's journal was lost.
    fn mounted_at(&self, root: &OpenDir, directory: &Path) -> Result<Option<PathBuf>>;

    /// The mode of a new directory where nobody says otherwise.
    fn default_mode(&self) -> u32;

    /// Why nothing in use can be frozen for a copy.
    fn no_freeze(&self) -> &'static str;

    /// Whether a volume of these parameters (the backend's own) may lie here.
    ///
    /// # Errors
    /// `Invalid` for what are no parameters of this backend.
    fn allows(&self, parameters: &Value) -> Result<bool>;

    /// The parameters as the node needs them, where this place was chosen for them.
    fn with_chosen(&self, parameters: &Value) -> Result<Value>;

    /// As they were before `with_chosen`.
    fn without_chosen(&self, parameters: &Value) -> Value;

    /// What else a class could do where a volume may be on a place that is away.
    fn name_another(&self) -> &'static str;
}

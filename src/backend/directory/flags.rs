//! The mount options that a directory may have.

use crate::os::mount;
use crate::volume::mount_flags::option_name;
use crate::volume::{Error, MountFlags, Result};

/// # Errors
/// `Invalid`, naming a mount option that a directory cannot have.
pub(super) fn check_flags(flags: &MountFlags) -> Result<()> {
    const FIELD: &str = "volume_capability.mount.mount_flags";
    let refuse = |option: &str, reason: &str| Err(Error::invalid(FIELD, format!("mount option {option} {reason}")));
    if let Some(option) = flags.expose().iter().find(|option| matches!(option.as_str(), "suid" | "dev")) {
        return refuse(option, "is forbidden: what lies in the directory is the node's, too");
    }
    let (_, own) = mount::split_options(flags).map_err(|error| Error::invalid(FIELD, error.to_string()))?;
    match own.expose().first() {
        Some(option) => refuse(
            option_name(option),
            "is one of a file system; the directory lies on one that is mounted already: use ro, noexec, noatime and the like",
        ),
        None => Ok(()),
    }
}

//! Mount options: those of the mount, and those of its file system.

use rustix::mount::MountAttrFlags;

use super::super::{Error, Result};
use crate::volume::MountFlags;
use crate::volume::mount_flags::option_name;

/// Options that belong to a mount rather than to its file system (mount_setattr(2)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub read_only: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    pub noatime: bool,
    pub nodiratime: bool,
    /// `strictatime`; the kernel's default is relatime.
    pub strictatime: bool,
    pub nosymfollow: bool,
}

impl Attributes {
    /// Takes over an option of a mount; says whether it was one.
    fn take(&mut self, option: &str) -> bool {
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "nosuid" => self.nosuid = true,
            "suid" => self.nosuid = false,
            "nodev" => self.nodev = true,
            "dev" => self.nodev = false,
            "noexec" => self.noexec = true,
            "exec" => self.noexec = false,
            "nodiratime" => self.nodiratime = true,
            "diratime" => self.nodiratime = false,
            "nosymfollow" => self.nosymfollow = true,
            "symfollow" => self.nosymfollow = false,
            "noatime" => (self.noatime, self.strictatime) = (true, false),
            "strictatime" => (self.noatime, self.strictatime) = (false, true),
            "atime" | "relatime" | "norelatime" | "nostrictatime" => (self.noatime, self.strictatime) = (false, false),
            "defaults" => {}
            _ => return false,
        }
        true
    }

    pub(super) fn flags(&self) -> MountAttrFlags {
        [
            (self.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
            (self.nosuid, MountAttrFlags::MOUNT_ATTR_NOSUID),
            (self.nodev, MountAttrFlags::MOUNT_ATTR_NODEV),
            (self.noexec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
            (self.noatime, MountAttrFlags::MOUNT_ATTR_NOATIME),
            (self.strictatime && !self.noatime, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
            (self.nodiratime, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
            (self.nosymfollow, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
        ]
        .into_iter()
        .filter_map(|(wanted, flag)| wanted.then_some(flag))
        .collect()
    }
}

/// Parts mount options into those of the mount and those of the file system. `rw`, `defaults`, `relatime`, `suid`, `dev`,
/// `exec`, `atime` are the default and vanish; of two that contradict each other the later counts, as with mount(8). One
/// string may hold several, with commas between them; a value with commas stands in double quotes
/// (`context="system_u:object_r:container_file_t:s0:c1,c2"`), which are taken off.
///
/// # Errors
/// `Unexpected`, naming an option that makes no sense here (`bind`, `remount`, `move`, `loop`, `shared`, `x-...` and the like).
pub fn split_options(options: &MountFlags) -> Result<(Attributes, MountFlags)> {
    let mut attributes = Attributes::default();
    let mut of_filesystem = Vec::new();
    for options in options.expose() {
        for option in split_commas(options)? {
            if option.is_empty() || attributes.take(&option) {
                continue;
            }
            if let Some(reason) = senseless(&option) {
                return Err(refuse(&option, reason));
            }
            of_filesystem.push(option);
        }
    }
    Ok((attributes, of_filesystem.into()))
}

pub(super) fn refuse(option: &str, reason: &str) -> Error {
    let object = match option_name(option) {
        "" => "a mount option".to_owned(),
        name => format!("mount option {name}"),
    };
    Error::Unexpected { object, reason: reason.to_owned() }
}

/// Splits at the commas that are not within double quotes, and takes the quotes off.
fn split_commas(options: &str) -> Result<Vec<String>> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for character in options.chars() {
        match (character, parts.last_mut()) {
            ('"', _) => quoted = !quoted,
            (',', _) if !quoted => parts.push(String::new()),
            (_, Some(part)) => part.push(character),
            (_, None) => {}
        }
    }
    if quoted { Err(refuse(options, "has a double quote that is not closed")) } else { Ok(parts) }
}

/// Why an option cannot be one of a volume's file system, if so.
fn senseless(option: &str) -> Option<&'static str> {
    if option.contains('\0') {
        return Some("holds a NUL byte");
    }
    let key = option.split_once('=').map_or(option, |(key, _)| key);
    match key {
        "" => Some("has no name"),
        "bind" | "rbind" | "remount" | "move" | "rmove" | "beneath" => {
            Some("says how to mount, which is the driver's to decide; leave it out")
        }
        "shared" | "rshared" | "private" | "rprivate" | "slave" | "rslave" | "unbindable" | "runbindable" => {
            Some("is about mount propagation, which is the pod's to decide (mountPropagation); leave it out")
        }
        "loop" | "offset" | "sizelimit" | "encryption" | "source" => {
            Some("says what to mount, which is the driver's to decide; leave it out")
        }
        "auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "group" | "nofail" | "_netdev" | "comment" | "helper"
        | "uhelper"
            // `user=name` and `group=name` are options of some network file systems.
            if key == option || !matches!(key, "user" | "group") =>
        {
            Some("is for /etc/fstab and mount(8), the kernel does not know it; leave it out")
        }
        _ if key.starts_with("x-") || key.starts_with("X-") => {
            Some("is for /etc/fstab and mount(8), the kernel does not know it; leave it out")
        }
        _ => None,
    }
}

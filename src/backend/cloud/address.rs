//! How a machine finds a disk that is attached to it.

use std::fmt;

/// What an attachment gives a disk on its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceAddress {
    /// The disk's own, by which the machine recognises it whatever else is attached: a serial number, a name in its pages.
    Identity(String),
    /// A place of the machine, which another disk may have had before, and every other machine has, too: a LUN, the name of a device. What
    /// is found there is the disk only with further proof.
    Slot(String),
}

impl DeviceAddress {
    pub fn as_str(&self) -> &str {
        match self {
            DeviceAddress::Identity(text) | DeviceAddress::Slot(text) => text,
        }
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

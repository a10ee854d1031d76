//! What is on a device: a known signature, proven nothing, or unknown. Unknown is never blank.

use super::*;

/// What a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// A file system that we can mount.
    Filesystem(FsType),
    /// Something else that has a name: `LUKS`, `GPT partition table`, `ext4 backup superblock at 128 MiB`.
    Other(String),
    /// Every place where a signature could be was read, and held zeroes only.
    Blank,
    /// It could not be read everywhere, or holds data that we have no name for; why, with offsets.
    Unknown(String),
}

/// Looks, through the open descriptor.
pub fn probe(device: &Device) -> Result<Contents> {
    unimplemented!()
}

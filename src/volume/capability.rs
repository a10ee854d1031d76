//! How a volume is to be used: as a file system or as a raw block device, by whom.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::capacity::Bytes;
use super::error::{Error, Result};
use super::mount_flags::MountFlags;

/// A file system that we can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    Ext4,
    Xfs,
    Btrfs,
}

impl FsType {
    /// What a CO gets that does not say which.
    pub const DEFAULT: FsType = FsType::Ext4;
    pub const ALL: [FsType; 3] = [FsType::Ext4, FsType::Xfs, FsType::Btrfs];

    /// The kernel's name of it.
    pub const fn as_str(self) -> &'static str {
        match self {
            FsType::Ext4 => "ext4",
            FsType::Xfs => "xfs",
            FsType::Btrfs => "btrfs",
        }
    }

    /// The fsType of a request; `None` where it asks for nothing: it is empty, or names what a server shares, which is what it is (static
    /// volumes say so).
    pub fn asked_for(name: &str) -> Result<Option<FsType>> {
        if ["", "nfs", "nfs4"].contains(&name) { Ok(None) } else { name.parse().map(Some) }
    }

    /// The smallest device on which mkfs makes one that can grow: xfsprogs refuses below 300 MiB; btrfs-progs
    /// makes smaller ones, but the kernel refuses to resize to less than 256 MiB, so that they could not grow.
    pub const fn least_size(self) -> Bytes {
        match self {
            FsType::Ext4 => Bytes::mib(2),
            FsType::Xfs => Bytes::mib(300),
            FsType::Btrfs => Bytes::mib(256),
        }
    }
}

impl fmt::Display for FsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FsType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        FsType::ALL.into_iter().find(|fs| fs.as_str() == text).ok_or_else(|| {
            Error::invalid("volume_capability.mount.fs_type", format!("{text:?} is not supported: use ext4, xfs or btrfs"))
        })
    }
}

/// Who may use a volume at a time (CSI spec, VolumeCapability.AccessMode).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessMode {
    SingleNodeWriter,
    SingleNodeReaderOnly,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
    MultiNodeReaderOnly,
    MultiNodeSingleWriter,
    MultiNodeMultiWriter,
}

impl AccessMode {
    /// The modes of storage that one node sees at a time.
    pub const SINGLE_NODE: [AccessMode; 4] = [
        AccessMode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly,
        AccessMode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter,
    ];

    /// The modes of storage that all nodes see.
    pub const ALL: [AccessMode; 7] = [
        AccessMode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly,
        AccessMode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter,
        AccessMode::MultiNodeReaderOnly,
        AccessMode::MultiNodeSingleWriter,
        AccessMode::MultiNodeMultiWriter,
    ];

    /// Whether nobody may write.
    pub const fn is_read_only(self) -> bool {
        matches!(self, AccessMode::SingleNodeReaderOnly | AccessMode::MultiNodeReaderOnly)
    }

    /// Whether only one node may have it.
    pub const fn is_single_node(self) -> bool {
        matches!(
            self,
            AccessMode::SingleNodeWriter
                | AccessMode::SingleNodeReaderOnly
                | AccessMode::SingleNodeSingleWriter
                | AccessMode::SingleNodeMultiWriter
        )
    }
}

/// As what a volume appears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessType {
    /// A raw block device.
    Block,
    /// A mounted file system.
    Filesystem {
        /// Which; `None` where the CO leaves it to us.
        fstype: Option<FsType>,
        /// Mount options, in the CO's order, not yet checked against what the file system knows.
        mount_flags: MountFlags,
        /// The group that must be able to read and write (VOLUME_MOUNT_GROUP; Kubernetes' fsGroup).
        group: Option<u32>,
    },
}

/// One way in which a volume is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    pub access: AccessType,
    pub mode: AccessMode,
}

impl Capability {
    /// The least size of a volume that can be used so.
    pub fn least_size(&self) -> Bytes {
        match &self.access {
            AccessType::Block => Bytes::MIB,
            AccessType::Filesystem { fstype, .. } => fstype.unwrap_or(FsType::DEFAULT).least_size(),
        }
    }
}

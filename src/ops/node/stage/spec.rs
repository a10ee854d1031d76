//! What a stage is asked for, checked: the desired state, and what it takes to reach it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::backend::Backend;
use crate::ops::parameters::Parameters;
use crate::os::path::Root;
use crate::volume::{AccessMode, AccessType, Capability, FsType, MountFlags, Result, Secrets, VolumeId};

use super::super::mounts::split_flags;

/// A stage that was asked for, checked.
pub struct StageSpec<'a> {
    pub backend: &'a dyn Backend,
    /// Below which the staging path lies.
    pub root: &'a Root,
    pub wanted: DesiredStage,
    pub group: Option<u32>,
    pub parameters: Parameters,
    pub publish_context: &'a BTreeMap<String, String>,
    pub secrets: &'a Secrets,
}

/// How a volume is to be staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredStage {
    pub id: VolumeId,
    pub staging: PathBuf,
    pub access: DesiredAccess,
    pub mode: AccessMode,
    pub read_only: bool,
    pub inline: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DesiredAccess {
    Block,
    Filesystem {
        /// `None`: what is there; on a blank device the default.
        fstype: Option<FsType>,
        mount_flags: MountFlags,
    },
}

pub fn group_of(capability: &Capability) -> Option<u32> {
    match capability.access {
        AccessType::Filesystem { group, .. } => group,
        AccessType::Block => None,
    }
}

/// What a capability means for the staging path.
///
/// # Errors
/// `Invalid` for a mount option that makes no sense.
pub fn wanted(id: &VolumeId, staging: PathBuf, capability: &Capability) -> Result<DesiredStage> {
    let mut read_only = capability.mode.is_read_only();
    let access = match &capability.access {
        AccessType::Block => DesiredAccess::Block,
        AccessType::Filesystem { fstype, mount_flags, .. } => {
            read_only |= split_flags(mount_flags)?.0.read_only;
            DesiredAccess::Filesystem { fstype: *fstype, mount_flags: mount_flags.clone() }
        }
    };
    Ok(DesiredStage { id: id.clone(), staging, access, mode: capability.mode, read_only, inline: false })
}

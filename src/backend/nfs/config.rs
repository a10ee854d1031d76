//! What the operator configures, and what a StorageClass or the attributes of a volume made by hand may say.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::volume::{BackendName, Bytes, OnDelete, Result};

/// One backend of NFS shares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NfsConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// Where volumes are made, by the controller. Without any, only volumes made by hand can be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<ShareConfig>,
    /// Mount options that a volume may have though they are forbidden otherwise: `suid`, `dev`. Every volume is mounted `nosuid`
    /// and `nodev` unless it asks for the contrary and that is allowed here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_mount_options: Vec<String>,
    /// Mount options that no volume may have (`exec`, `nolock`), by their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forbid_mount_options: Vec<String>,
}

/// One export of one server, below which the controller makes volumes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ShareConfig {
    /// A host name or address.
    pub server: String,
    /// The exported path, absolute.
    pub share: PathBuf,
    /// How the controller mounts it, for itself: `nfsvers=4.2`, `nconnect=4`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// How much of it may be promised to volumes. Default: what statfs says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Bytes>,
    /// The exported folder itself, where the controller runs on the server and it lies on xfs mounted with `prjquota`: capacities
    /// are then enforced, by project quotas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<PathBuf>,
}

impl NfsConfig {
    /// Checks what needs no server.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        Ok(())
    }
}

/// Parameters of a StorageClass, and attributes of a volume made by hand, as csi-driver-nfs names them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NfsParameters {
    /// A host name or address. Default in a StorageClass: that of the share with most room.
    #[serde(default)]
    pub server: String,
    /// The exported path, absolute. Default as for `server`.
    #[serde(default)]
    pub share: String,
    /// The volume's folder below the share, its template filled in. Default: of a volume that the controller made, the part of
    /// its id behind the colon; of one that was made by hand, the share itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_dir: Option<String>,
    /// What DeleteVolume does with the data: `delete`, `retain`, `archive`.
    #[serde(default)]
    pub on_delete: OnDelete,
}

impl NfsParameters {
    /// The volume's folder below the share; empty for the share itself.
    pub fn folder(&self, local: &str) -> PathBuf {
        Path::new(self.sub_dir.as_deref().unwrap_or(local)).to_owned()
    }
}

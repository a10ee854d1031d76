//! What the StorageClass parameters of all backends of directories have in common.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::volume::{Error, OnDelete, Result};

/// Of what a copy shows one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// Of the volume as a whole.
    #[default]
    Volume,
    /// Of each file by itself.
    File,
}

impl Consistency {
    pub fn is_volume(&self) -> bool {
        *self == Consistency::Volume
    }
}

/// Where the data of a volume lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// In its directory.
    #[default]
    Disk,
    /// In a tmpfs, as long as it is staged: of ephemeral inline volumes alone.
    Memory,
}

/// Parameters of a VolumeSnapshotClass.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectorySnapshotParameters {
    /// `volume` (default): a snapshot of a volume that is written meanwhile is refused. `file`: it is taken, and each file is as it was
    /// when it was copied.
    #[serde(default)]
    pub consistency: Consistency,
}

/// The parameters that say where a volume's directory lies, what it is like and what becomes of it. Each backend has more of its own,
/// and has checked them: what is not known here is left to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CommonParameters {
    pub sub_dir: Option<String>,
    pub on_delete: OnDelete,
    pub mount_permissions: Option<String>,
    pub uid: Option<String>,
    pub gid: Option<String>,
    pub consistency: Consistency,
    pub medium: Medium,
}

/// What a new volume's directory is to have; `None` is as its source has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

impl CommonParameters {
    /// From the `backend` member of a volume's parameters.
    pub fn from_json(value: &serde_json::Value) -> Result<CommonParameters> {
        if value.is_null() {
            return Ok(CommonParameters::default());
        }
        CommonParameters::deserialize(value).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn ownership(&self) -> Result<Ownership> {
        let mode = self.mount_permissions.as_deref().map(|text| match u32::from_str_radix(text.trim_start_matches("0o"), 8) {
            Ok(mode) if mode <= 0o7777 => Ok(mode),
            _ => Err(Error::invalid("parameters.mountPermissions", format!("{text:?} is no octal mode such as 0750"))),
        });
        let number = |field, text: &Option<String>| match text.as_deref().map(str::parse::<u32>) {
            // chown(2) takes the last one for "leave it as it is".
            Some(Ok(u32::MAX) | Err(_)) => Err(Error::invalid(field, format!("{text:?} is no number of an owner"))),
            Some(Ok(number)) => Ok(Some(number)),
            None => Ok(None),
        };
        Ok(Ownership {
            mode: mode.transpose()?.filter(|mode| *mode != 0),
            uid: number("parameters.uid", &self.uid)?,
            gid: number("parameters.gid", &self.gid)?,
        })
    }

    /// The volume's directory below the top one; empty for the top one itself.
    pub fn directory(&self, local: &str) -> PathBuf {
        Path::new(self.sub_dir.as_deref().unwrap_or(local)).to_owned()
    }
}

impl Ownership {
    /// As it is for a directory that has no source.
    pub fn of_new(self, default_mode: u32) -> Ownership {
        Ownership { mode: Some(self.mode.unwrap_or(default_mode)), ..self }
    }
}

/// # Errors
/// `Invalid` for what a directory's files cannot have done to them.
pub fn check_on_delete(field: &'static str, on_delete: OnDelete) -> Result<()> {
    match on_delete {
        OnDelete::Scrub => Err(Error::invalid(field, "files cannot be scrubbed; use delete, retain or archive")),
        OnDelete::Delete | OnDelete::Retain | OnDelete::Archive => Ok(()),
    }
}

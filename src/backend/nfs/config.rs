//! What the operator configures, and what a StorageClass or the attributes of a static volume may say.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::volume::{BackendName, Bytes, Error, OnDelete, RawParameters, Result};

use super::export::Export;
use super::options::OptionRules;
use super::subdir;

/// The mode of a volume's directory where nobody says otherwise: csi-driver-nfs's.
const DEFAULT_MODE: u32 = 0o777;

/// One backend of NFS shares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NfsConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// Where volumes are made, by the controller. Without any, only static volumes can be used.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ShareConfig {
    /// A host name or address.
    pub server: String,
    /// The exported path, absolute.
    pub share: PathBuf,
    /// How the controller mounts it, for itself: `nfsvers=4.2`, `nconnect=4`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// How much of it may be provisioned to volumes. Default: what statfs says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Bytes>,
    /// The exported directory itself, where the controller runs on the server and it lies on xfs mounted with `prjquota`: capacities
    /// are then enforced, by project quotas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<PathBuf>,
}

impl NfsConfig {
    pub(super) fn option_rules(&self) -> OptionRules {
        OptionRules { allow: self.allow_mount_options.clone(), forbid: self.forbid_mount_options.clone() }
    }

    /// Checks what needs no server.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        for (number, share) in self.shares.iter().enumerate() {
            share.validate()?;
            if self.shares.iter().skip(number + 1).any(|other| other.called() == share.called()) {
                return Err(Error::invalid("shares", format!("{} is there twice", share.called())));
            }
        }
        Ok(())
    }
}

impl ShareConfig {
    fn validate(&self) -> Result<()> {
        self.export()?;
        let plain = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == ',');
        if let Some(bad) = self.mount_options.iter().find(|option| !plain(option)) {
            return Err(Error::invalid("shares.mountOptions", format!("{bad:?} is no mount option; give each by itself")));
        }
        if let Some(quota) = self.quota.as_ref().filter(|quota| !quota.is_absolute()) {
            return Err(Error::invalid("shares.quota", format!("{} is not absolute", quota.display())));
        }
        Ok(())
    }

    pub(super) fn export(&self) -> Result<Export> {
        Export::new(&self.server, &self.share.to_string_lossy())
    }

    /// `server:/share`, for people and for mount.nfs.
    pub fn called(&self) -> String {
        // What is no export was refused by `validate`.
        self.export().map_or_else(|_| format!("{}:{}", self.server, self.share.display()), |export| export.to_string())
    }
}

/// Parameters of a StorageClass, and attributes of a static volume, as csi-driver-nfs names them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NfsParameters {
    /// A host name or address. Default in a StorageClass: that of the share with most room.
    #[serde(default)]
    pub server: String,
    /// The exported path, absolute. Default as for `server`.
    #[serde(default)]
    pub share: String,
    /// The volume's directory below the share, its template filled in. Default: of a volume that the controller made, the part of
    /// its id behind the colon; of a static volume, the share itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_dir: Option<String>,
    /// What DeleteVolume does with the data: `delete` (default; an instant, the files are removed in the background), `retain`
    /// (it stays where it is) or `archive` (moved to the share's `.longshore/archive/`).
    #[serde(default)]
    pub on_delete: OnDelete,
    /// The mode of the volume's directory, octal. Default, and `0`: `0777`; of a clone or restored snapshot, its source's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_permissions: Option<String>,
    /// The owner of the volume's directory, a number. Default: root; of a clone or restored snapshot, its source's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Its group, as `uid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<String>,
    /// What a clone of a volume that is written meanwhile is: refused (`volume`, default) or consistent file by file (`file`).
    #[serde(default, skip_serializing_if = "Consistency::is_volume")]
    pub consistency: Consistency,
    /// Not for people: which of the above were not asked for, but chosen when the volume was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chosen: Vec<Chosen>,
}

/// Parameters of a VolumeSnapshotClass.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NfsSnapshotParameters {
    /// `volume` (default): a snapshot of a volume that is written meanwhile is refused. `file`: it is taken, and each file is as it was
    /// when it was copied.
    #[serde(default)]
    pub consistency: Consistency,
}

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
    fn is_volume(&self) -> bool {
        *self == Consistency::Volume
    }
}

/// What the controller may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Chosen {
    Server,
    Share,
}

/// What a new volume's directory is to have; `None` is as its source has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ownership {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

impl NfsParameters {
    /// Whether a volume of these parameters may lie on `share`: the one that they name, or any.
    pub(super) fn allows(&self, share: &ShareConfig) -> bool {
        (self.server.is_empty() || self.server == share.server)
            && (self.share.is_empty() || Path::new(&self.share) == share.share)
    }

    /// Of a StorageClass: its template filled in, all values checked.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn of_class(raw: &RawParameters) -> Result<NfsParameters> {
        let mut parameters: NfsParameters = raw.parse()?;
        check_on_delete("parameters.onDelete", parameters.on_delete)?;
        if let Some(template) = &parameters.sub_dir {
            parameters.sub_dir = Some(subdir::fill(template, raw)?);
        }
        parameters.ownership()?;
        Ok(parameters)
    }

    /// From the `backend` member of a volume's parameters.
    pub(super) fn from_json(value: &serde_json::Value) -> Result<NfsParameters> {
        NfsParameters::deserialize(value).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    /// On the share that was chosen for them, where they name none.
    pub(super) fn on_share(mut self, share: &ShareConfig) -> NfsParameters {
        if self.server.is_empty() {
            self.server.clone_from(&share.server);
            self.chosen.push(Chosen::Server);
        }
        if self.share.is_empty() {
            self.share = share.share.to_string_lossy().into_owned();
            self.chosen.push(Chosen::Share);
        }
        self
    }

    /// Without what `on_share` chose.
    pub(super) fn without_chosen(mut self) -> NfsParameters {
        for chosen in std::mem::take(&mut self.chosen) {
            match chosen {
                Chosen::Server => self.server.clear(),
                Chosen::Share => self.share.clear(),
            }
        }
        self
    }

    pub(super) fn ownership(&self) -> Result<Ownership> {
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

    /// The volume's directory below the share; empty for the share itself.
    pub fn directory(&self, local: &str) -> PathBuf {
        Path::new(self.sub_dir.as_deref().unwrap_or(local)).to_owned()
    }
}

impl Ownership {
    /// As it is for a directory that has no source.
    pub fn of_new(self) -> Ownership {
        Ownership { mode: Some(self.mode.unwrap_or(DEFAULT_MODE)), ..self }
    }
}

/// # Errors
/// `Invalid` for what a share cannot do.
pub(super) fn check_on_delete(field: &'static str, on_delete: OnDelete) -> Result<()> {
    match on_delete {
        OnDelete::Scrub => Err(Error::invalid(field, "a share cannot scrub; use delete, retain or archive")),
        OnDelete::Delete | OnDelete::Retain | OnDelete::Archive => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    fn config(yaml: &str) -> Result<()> {
        let config: NfsConfig = serde_yaml_ng::from_str(yaml).map_err(|error| Error::invalid("config", error.to_string()))?;
        config.validate()
    }

    #[test]
    fn a_class_of_csi_driver_nfs_is_understood() {
        let parameters = NfsParameters::of_class(&raw(&[
            ("server", "nas"),
            ("share", "/srv"),
            ("subDir", "${pvc.metadata.namespace}/${pvc.metadata.name}"),
            ("mountPermissions", "0750"),
            ("onDelete", "archive"),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
        ]))
        .expect("understood");
        assert_eq!(parameters.sub_dir.as_deref(), Some("shop/data"));
        assert_eq!(parameters.ownership().expect("valid"), Ownership { mode: Some(0o750), uid: None, gid: None });
        assert_eq!(parameters.on_delete, OnDelete::Archive);
        let none = NfsParameters::of_class(&raw(&[("mountPermissions", "0")])).expect("none");
        assert_eq!(none.ownership().expect("valid").of_new().mode, Some(0o777));
    }

    #[test]
    fn impossible_value_is_refused_by_name() {
        for (key, value) in [
            ("mountPermissions", "rwx"),
            ("mountPermissions", "77777"),
            ("uid", "root"),
            ("gid", "4294967295"),
            ("onDelete", "scrub"),
            ("subDir", "../x"),
            ("chosen", "true"),
            ("onDelet", "delete"),
        ] {
            let error = NfsParameters::of_class(&raw(&[(key, value)])).expect_err(key).to_string();
            assert!(error.contains(key) || error.contains("sequence"), "{key}: {error}");
        }
        for (yaml, field) in [
            ("name: n\nshares: [{server: a, share: srv}]", "share"),
            ("name: n\nshares: [{server: a, share: /srv/../etc}]", "share"),
            ("name: n\nshares: [{server: -oops, share: /srv}]", "server"),
            ("name: n\nshares: [{server: a, share: /srv}, {server: a, share: /srv}]", "shares"),
            ("name: n\nshares: [{server: a, share: /srv, mountOptions: ['a,b']}]", "shares.mountOptions"),
            ("name: n\nshares: [{server: a, share: /srv, quota: srv}]", "shares.quota"),
        ] {
            match config(yaml) {
                Err(Error::Invalid { field: named, .. }) => assert_eq!(named, field, "{yaml}"),
                other => panic!("{yaml}: {other:?}"),
            }
        }
        assert!(
            config("name: n\nshares: [{server: 'fd00::1', share: /srv, capacity: 1GiB, mountOptions: [nfsvers=4.2]}]").is_ok()
        );
    }
}

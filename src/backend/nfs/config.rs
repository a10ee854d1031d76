//! What the operator configures, and what a StorageClass or the attributes of a static volume may say.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::volume::{BackendName, Bytes, Error, OnDelete, RawParameters, Result};

use crate::backend::directories::{CommonParameters, Consistency, Medium, Ownership, check_on_delete, subdir};

use super::export::Export;
use super::options::OptionRules;

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

    /// Of its shares, in their order.
    pub(super) fn capacities(&self) -> Vec<Option<Bytes>> {
        self.shares.iter().map(|share| share.capacity).collect()
    }

    /// Whether the parameters name shares of ours.
    ///
    /// # Errors
    /// `Invalid`, naming those that there are.
    pub(super) fn check_share(&self, parameters: &NfsParameters) -> Result<()> {
        if self.shares.iter().any(|share| parameters.allows(share)) {
            return Ok(());
        }
        let known: Vec<String> = self.shares.iter().map(ShareConfig::called).collect();
        let field = if parameters.server.is_empty() { "parameters.share" } else { "parameters.server" };
        let asked = format!("{}:{}", parameters.server, parameters.share);
        Err(Error::invalid(field, format!("{asked} is no share that backend {} has; there are {}", self.name, known.join(", "))))
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

/// What the controller may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Chosen {
    Server,
    Share,
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
        self.common().ownership()
    }

    fn common(&self) -> CommonParameters {
        CommonParameters {
            sub_dir: self.sub_dir.clone(),
            on_delete: self.on_delete,
            mount_permissions: self.mount_permissions.clone(),
            uid: self.uid.clone(),
            gid: self.gid.clone(),
            consistency: self.consistency,
            medium: Medium::Disk,
        }
    }

    /// The volume's directory below the share; empty for the share itself.
    pub fn directory(&self, local: &str) -> PathBuf {
        self.common().directory(local)
    }
}

/// A volume's parameters without the share that was chosen for it.
pub(in crate::backend) fn requested_parameters(made: &serde_json::Value) -> serde_json::Value {
    let asked = NfsParameters::from_json(made).map(NfsParameters::without_chosen);
    asked.ok().and_then(|asked| serde_json::to_value(asked).ok()).unwrap_or_else(|| made.clone())
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
        assert_eq!(none.ownership().expect("valid").of_new(0o777).mode, Some(0o777));
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

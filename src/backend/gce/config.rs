//! What the operator configures.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::cloud::ExistingDisks;
use crate::backend::cloud::http::may_hear_secrets;
use crate::volume::{BackendName, Error, Result};

use super::api::CredentialsFile;
use super::record::check_label;

/// Persistent disks and Hyperdisks of Compute Engine, of one project and region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct GceConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// Whose disks these are, in the description of each: only what carries it is ever changed or deleted. Two clusters of one project must
    /// not share it, and it must stay as it is. Needed by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The id of the project. Default: from the metadata server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Such as `europe-west3`. Default: from the metadata server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Where the API answers, if not at `https://compute.googleapis.com`: the address of a Private Service Connect endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// A file with the key of a service account, or with the configuration of workload identity federation, whose token is in a file, too
    /// (absolute path). Default: `GOOGLE_APPLICATION_CREDENTIALS`, or else the service account of the metadata server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// Labels of all disks and snapshots.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// A VolumeSnapshotClass may say `snapshot-type: images`: an image is a snapshot then. It needs further permissions, and a snapshot is
    /// looked for among images, too. Leave it on as long as there are images.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub images: bool,
    /// Disks that another program made, by their handles in gcp-compute-persistent-disk-csi-driver (`projects/P/zones/Z/disks/N`. With
    /// it, `project` and `region` are needed): `use` them, or `delete` them as well where the PersistentVolume's reclaim policy says so.
    /// The same on the controller and on nodes. Default: they are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_disks: Option<ExistingDisks>,
    /// The zone of this node. Default: from the metadata server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The machine type of this node. Default: from the metadata server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// How many volumes this node takes. Default: by its machine type, less its boot disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_attach_limit: Option<u64>,
}

impl GceConfig {
    pub fn credentials_file(&self) -> Option<CredentialsFile> {
        let from_environment = || std::env::var_os("GOOGLE_APPLICATION_CREDENTIALS").filter(|path| !path.is_empty());
        self.credentials_file.clone().or_else(|| from_environment().map(PathBuf::from)).map(CredentialsFile)
    }

    /// Checks what needs no cloud.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        if let Some(cluster) = self.cluster.as_ref().filter(|text| text.trim().is_empty() || text.chars().count() > 256) {
            return Err(Error::invalid("cluster", format!("{cluster:?} must have 1 to 256 characters")));
        }
        // They become part of paths.
        let names =
            [("project", &self.project), ("region", &self.region), ("zone", &self.zone), ("machineType", &self.machine_type)];
        for (field, text) in names {
            let is_name = |text: &String| {
                let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.:".contains(&byte);
                (1..=100).contains(&text.len()) && text.bytes().all(fits)
            };
            if let Some(text) = text.as_ref().filter(|text| !is_name(text)) {
                return Err(Error::invalid(field, format!("{text:?} is no name; leave the field out for its default")));
            }
        }
        if let Some(url) = self.endpoint.as_ref().filter(|url| !may_hear_secrets(url)) {
            let reason = format!("{url:?}: write https://…, since an access token is sent there (http:// only to 127.0.0.1)");
            return Err(Error::invalid("endpoint", reason));
        }
        if let Some(path) = self.credentials_file.as_ref().filter(|path| !path.is_absolute()) {
            return Err(Error::invalid("credentialsFile", format!("{} is no absolute path", path.display())));
        }
        for (key, value) in &self.labels {
            check_label(key, value).map_err(|reason| Error::invalid("labels", reason))?;
        }
        if self.existing_disks.is_some() && (self.project.is_none() || self.region.is_none()) {
            let reason = "it needs project and region, by which handles of this backend are known";
            return Err(Error::invalid("existingDisks", reason));
        }
        if self.volume_attach_limit == Some(0) {
            let reason = "0 would let this node have no volume; leave it out for its machine type's limit";
            return Err(Error::invalid("volumeAttachLimit", reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_setting_is_named() {
        let check =
            |more: &str| serde_yaml_ng::from_str::<GceConfig>(&format!("{{name: pd, {more}}}")).expect("fields").validate();
        check("cluster: c, project: 'example.com:p', region: europe-west3, endpoint: 'http://127.0.0.1:1', labels: {a: b}")
            .expect("fine");
        for (more, field) in [
            ("cluster: ''", "cluster"),
            ("project: a/b", "project"),
            ("region: '../x'", "region"),
            ("zone: 'a b'", "zone"),
            ("endpoint: 'http://example.com'", "endpoint"),
            ("endpoint: 'http://127.0.0.1.example.com'", "endpoint"),
            ("endpoint: 'http://127.0.0.1:80@example.com'", "endpoint"),
            ("credentialsFile: key.json", "credentialsFile"),
            ("labels: {A: b}", "labels"),
            ("volumeAttachLimit: 0", "volumeAttachLimit"),
            ("existingDisks: use, project: p", "existingDisks"),
        ] {
            let error = check(more).expect_err(more).to_string();
            assert!(error.starts_with(field), "{more}: {error}");
        }
    }
}

//! What the operator configures.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::cloud::ExistingDisks;
use crate::volume::{BackendName, Error, Result};

use super::record::{LONGEST, check_metadata};
use super::zones::ZoneMap;

const CLOUDS_FILE: &str = "/etc/openstack/clouds.yaml";
const CLOUD: &str = "openstack";

/// Volumes of OpenStack's block storage, of one project and region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CinderConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// Whose volumes these are, in the metadata of each: only what carries it is ever changed or deleted. Two clusters of one project must
    /// not share it, and it must stay as it is. Needed by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// An absolute path. Only the controller reads it, each time that it asks Keystone for a token. Default: `/etc/openstack/clouds.yaml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clouds_file: Option<PathBuf>,
    /// Which entry of the file. Default: `openstack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud: Option<String>,
    /// The zone of Cinder whose volumes the machines of a zone of Nova use, by the zone of Nova. Default: that of the same name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub zones: BTreeMap<String, String>,
    /// Every machine can have every volume attached, whatever their zones: no topology.
    #[serde(default)]
    pub any_zone: bool,
    /// A VolumeSnapshotClass may say `type: backup`: what is saved by cinder-backup is a snapshot then. It needs Cinder's microversion 3.51
    /// (Rocky), and further rights. Leave it on as long as there are backups.
    #[serde(default)]
    pub backups: bool,
    /// Metadata of all volumes and snapshots.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Disks that another program made, by their handles in cinder-csi-plugin (a UUID): `use` them, or `delete` them as well where the
    /// PersistentVolume's reclaim policy says so. The same on the controller and on nodes. Default: they are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_disks: Option<ExistingDisks>,
    /// The zone of Nova that this node is in. Default: from the config drive or the metadata service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Where the config drive is mounted, an absolute path; it is read in place of the metadata service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_drive: Option<PathBuf>,
    /// Where the metadata service answers. Default: `http://169.254.169.254`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_endpoint: Option<String>,
    /// How many volumes a node takes, its root among them where that is a volume. Default: 25.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_attach_limit: Option<u64>,
}

impl CinderConfig {
    pub fn clouds_file(&self) -> PathBuf {
        self.clouds_file.clone().unwrap_or_else(|| CLOUDS_FILE.into())
    }

    pub fn cloud(&self) -> &str {
        self.cloud.as_deref().unwrap_or(CLOUD)
    }

    pub fn zones(&self) -> ZoneMap {
        ZoneMap { is_any: self.any_zone, by_compute: self.zones.clone() }
    }

    /// Checks what needs no cloud.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        let is_short = |text: &str| !text.trim().is_empty() && text.chars().count() <= LONGEST;
        if let Some(cluster) = self.cluster.as_ref().filter(|text| !is_short(text)) {
            return Err(Error::invalid("cluster", format!("{cluster:?} must have 1 to {LONGEST} characters")));
        }
        for (field, path) in [("cloudsFile", &self.clouds_file), ("configDrive", &self.config_drive)] {
            if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
                return Err(Error::invalid(field, format!("{} is no absolute path", path.display())));
            }
        }
        let zones = self.zones.iter().flat_map(|(compute, volume)| [compute, volume]);
        for (field, zone) in zones.map(|zone| ("zones", zone)).chain(self.zone.iter().map(|zone| ("zone", zone))) {
            if !is_short(zone) {
                return Err(Error::invalid(field, format!("{zone:?} is no name of a zone")));
            }
        }
        if self.any_zone && !self.zones.is_empty() {
            return Err(Error::invalid("zones", "with anyZone no zone is asked for; leave out one of the two"));
        }
        if let Some(url) =
            self.metadata_endpoint.as_ref().filter(|url| !url.starts_with("http://") && !url.starts_with("https://"))
        {
            return Err(Error::invalid("metadataEndpoint", format!("{url:?} is no URL; write http://…")));
        }
        for (key, value) in &self.metadata {
            check_metadata(key, value).map_err(|reason| Error::invalid("metadata", reason))?;
        }
        if self.volume_attach_limit == Some(0) {
            return Err(Error::invalid(
                "volumeAttachLimit",
                "0 would let this node have no volume; leave it out for the default",
            ));
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
            |more: &str| serde_yaml_ng::from_str::<CinderConfig>(&format!("{{name: vol, {more}}}")).expect("fields").validate();
        check("cluster: c, cloudsFile: /a/clouds.yaml, zones: {az1: ceph}, metadata: {team: storage}, configDrive: /b")
            .expect("fine");
        for (more, field) in [
            ("cluster: ''", "cluster"),
            ("cloudsFile: clouds.yaml", "cloudsFile"),
            ("configDrive: config-2", "configDrive"),
            ("zones: {az1: ''}", "zones"),
            ("zones: {az1: a}, anyZone: true", "zones"),
            ("zone: ''", "zone"),
            ("metadataEndpoint: 169.254.169.254", "metadataEndpoint"),
            ("metadata: {'a/b': c}", "metadata"),
            ("metadata: {'longshore.dev:cluster': c}", "metadata"),
            ("volumeAttachLimit: 0", "volumeAttachLimit"),
        ] {
            let error = check(more).expect_err(more).to_string();
            assert!(error.starts_with(field), "{more}: {error}");
        }
    }
}

//! What the operator configures.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::cloud::ExistingDisks;
use crate::backend::cloud::http::may_hear_secrets;
use crate::volume::{BackendName, Error, Result};

use super::api::{Credentials, Proof};
use super::names::is_name;
use super::record::check_tag;

const ENDPOINT: &str = "https://management.azure.com";
const AUTHORITY: &str = "https://login.microsoftonline.com";

/// Managed disks of Azure, of one resource group and region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AzureConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// Whose disks these are, in the tags of each: only what carries it is ever changed or deleted. Two clusters of one resource group must
    /// not share it, and it must stay as it is. Needed by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The subscription of the disks and of the machines. Needed by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription_id: Option<String>,
    /// In which disks and snapshots are made; machines may be in others. It must stay as it is. Needed by the controller and by nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_group: Option<String>,
    /// The region, such as `westeurope`. Needed by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The region has no zones, or machines are in none: no topology. It must stay as it is.
    #[serde(default)]
    pub without_zones: bool,
    /// The tenant of an application of Microsoft Entra. Default: `AZURE_TENANT_ID`, as workload identity sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// The application, or the managed identity of the machine where that has several. Default: `AZURE_CLIENT_ID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// An absolute path: the application's secret. The controller reads it for each token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret_file: Option<PathBuf>,
    /// An absolute path: a service account's token, for workload identity. Default: `AZURE_FEDERATED_TOKEN_FILE`; without it, and without a
    /// secret, the machine's managed identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub federated_token_file: Option<PathBuf>,
    /// Where Azure Resource Manager answers. Default: `https://management.azure.com`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Where Microsoft Entra answers. Default: `AZURE_AUTHORITY_HOST`, else `https://login.microsoftonline.com`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// Where the metadata service answers. Default: `http://169.254.169.254`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_endpoint: Option<String>,
    /// Tags of all disks and snapshots.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Disks that another program made, by their handles in azuredisk-csi-driver
    /// (`/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/disks/N`. With it, `subscriptionId` and `resourceGroup` are
    /// needed): `use` them, or `delete` them as well where the PersistentVolume's reclaim policy says so. The same on the controller and
    /// on nodes. Default: they are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing_disks: Option<ExistingDisks>,
    /// The zone of this node, such as `westeurope-1`. Default: from the metadata service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The size of this node, such as `Standard_D4s_v5`. Default: from the metadata service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_size: Option<String>,
    /// How many volumes this node takes. Default: by its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_attach_limit: Option<u64>,
}

fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl AzureConfig {
    pub fn endpoint(&self) -> String {
        self.endpoint.as_deref().unwrap_or(ENDPOINT).trim_end_matches('/').to_owned()
    }

    /// Who the controller is: by a secret, by a token of the cluster's, or as the machine.
    ///
    /// # Errors
    /// `Invalid` for an application without its tenant or its id.
    pub fn credentials(&self) -> Result<Credentials> {
        let client_id = self.client_id.clone().or_else(|| from_environment("AZURE_CLIENT_ID"));
        let federated =
            self.federated_token_file.clone().or_else(|| from_environment("AZURE_FEDERATED_TOKEN_FILE").map(PathBuf::from));
        let proof = match (self.client_secret_file.clone(), federated) {
            (Some(file), _) => Proof::Secret(file),
            (None, Some(file)) => Proof::Federated(file),
            (None, None) => return Ok(Credentials::Machine { client_id }),
        };
        let needed = |field: &'static str, value: Option<String>| {
            let value = value.filter(|value| is_name(value));
            value.ok_or_else(|| Error::invalid(field, format!("backend {}: an application needs it", self.name)))
        };
        let authority = self.authority.clone().or_else(|| from_environment("AZURE_AUTHORITY_HOST"));
        let authority = authority.as_deref().unwrap_or(AUTHORITY).trim_end_matches('/').to_owned();
        if !may_hear_secrets(&authority) {
            return Err(Error::invalid("authority", format!("{authority:?}: write https://…, since credentials are sent there")));
        }
        Ok(Credentials::Application {
            authority,
            tenant_id: needed("tenantId", self.tenant_id.clone().or_else(|| from_environment("AZURE_TENANT_ID")))?,
            client_id: needed("clientId", client_id)?,
            proof,
        })
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
        let names = [
            ("subscriptionId", &self.subscription_id),
            ("resourceGroup", &self.resource_group),
            ("location", &self.location),
            ("tenantId", &self.tenant_id),
            ("clientId", &self.client_id),
            ("zone", &self.zone),
            ("vmSize", &self.vm_size),
        ];
        for (field, text) in names {
            if let Some(text) = text.as_ref().filter(|text| !is_name(text)) {
                return Err(Error::invalid(field, format!("{text:?} is no name; write 1 to 90 letters, digits and -_.()")));
            }
        }
        if let Some(location) =
            self.location.as_ref().filter(|text| !text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()))
        {
            return Err(Error::invalid("location", format!("{location:?} is no region's name; write it as in westeurope")));
        }
        if let Some(zone) = self.zone.as_ref().filter(|zone| !zone.contains('-')) {
            return Err(Error::invalid("zone", format!("{zone:?}: write the region, too, as in westeurope-1")));
        }
        let files = [("clientSecretFile", &self.client_secret_file), ("federatedTokenFile", &self.federated_token_file)];
        for (field, path) in files {
            if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
                return Err(Error::invalid(field, format!("{} is no absolute path", path.display())));
            }
        }
        for (field, url) in [("endpoint", &self.endpoint), ("authority", &self.authority)] {
            if let Some(url) = url.as_ref().filter(|url| !may_hear_secrets(url)) {
                let reason = format!("{url:?}: write https://…, since credentials are sent there (http:// only to 127.0.0.1)");
                return Err(Error::invalid(field, reason));
            }
        }
        for (key, value) in &self.tags {
            check_tag(key, value).map_err(|reason| Error::invalid("tags", reason))?;
        }
        if self.existing_disks.is_some() && (self.subscription_id.is_none() || self.resource_group.is_none()) {
            let reason = "it needs subscriptionId and resourceGroup, by which handles of this backend are known";
            return Err(Error::invalid("existingDisks", reason));
        }
        if self.volume_attach_limit == Some(0) {
            let reason = "0 would let this node have no volume; leave it out for the limit of its size";
            return Err(Error::invalid("volumeAttachLimit", reason));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: &str) -> AzureConfig {
        serde_yaml_ng::from_str(&format!("{{name: az, {more}}}")).expect("fields")
    }

    #[test]
    fn impossible_setting_is_named() {
        let fine = "cluster: c, subscriptionId: 0b3c0a54, resourceGroup: 'G_(1)', location: westeurope, zone: westeurope-1, tags: {a: b}";
        read(fine).validate().expect("fine");
        for (more, field) in [
            ("cluster: ''", "cluster"),
            ("subscriptionId: a/b", "subscriptionId"),
            ("resourceGroup: '..'", "resourceGroup"),
            ("location: West Europe", "location"),
            ("location: WestEurope", "location"),
            ("zone: '1'", "zone"),
            ("clientSecretFile: secret", "clientSecretFile"),
            ("endpoint: 'http://example.com'", "endpoint"),
            ("authority: 'http://example.com'", "authority"),
            ("tags: {'a/b': c}", "tags"),
            ("volumeAttachLimit: 0", "volumeAttachLimit"),
        ] {
            let error = read(more).validate().expect_err(more).to_string();
            assert!(error.starts_with(field), "{more}: {error}");
        }
    }

    #[test]
    fn secret_is_over_the_token_of_the_cluster_and_that_over_the_machine() {
        let application = "tenantId: t, clientId: c, federatedTokenFile: /f";
        assert!(matches!(read(application).credentials(), Ok(Credentials::Application { proof: Proof::Federated(_), .. })));
        let both = format!("{application}, clientSecretFile: /s");
        assert!(matches!(read(&both).credentials(), Ok(Credentials::Application { proof: Proof::Secret(_), .. })));
        assert!(matches!(read("clientId: c").credentials(), Ok(Credentials::Machine { client_id: Some(_) })));
        assert!(
            read("clientSecretFile: /s, clientId: c").credentials().expect_err("no tenant").to_string().starts_with("tenantId")
        );
    }
}

//! Managed disks of Azure, as a tenant of [`super::cloud`].
//!
//! `api` is the client of Azure Resource Manager, `cloud` and `convert` make its words those of all clouds, `policy` has the rules that need no
//! request, `connect` is the node's side, `metadata` the machine's own host. `names` says by what a resource is known, `record` how tags are
//! kept.

use std::sync::Arc;

use crate::metrics::CloudRequests;
use crate::volume::{Error, Result};

use super::cloud::clock::Clock;
use super::cloud::retry::Patience;
use super::cloud::{Cloud, CloudBackend, CloudOptions, NamedDisk, Role};

pub mod api;
mod cloud;
mod config;
pub mod connect;
mod convert;
pub mod disks;
pub mod limits;
pub mod metadata;
pub mod names;
pub mod parameters;
mod policy;
mod record;
mod row;
pub mod skus;

pub use config::AzureConfig;

use cloud::{AzureCloud, Place};
use connect::{Host, Node};
use disks::Disks;
use metadata::{Identity, Metadata, Site};
use parameters::ConfiguredPlace;
use policy::AzurePolicy;

/// Opens the backend; nobody is asked anything yet. `identity` is this machine's where the role is to connect.
///
/// # Errors
/// `Invalid` for a process whose part of the configuration is missing; `BackendUnavailable` where the client cannot be started.
pub fn open(config: AzureConfig, role: Role, requests: CloudRequests, identity: Option<Arc<Identity>>) -> Result<CloudBackend> {
    let site = identity.filter(|_| role.connect).map(|identity| Site {
        identity,
        zone: config.zone.clone(),
        vm_size: config.vm_size.clone(),
    });
    let group = config.resource_group.clone().map(|group| group.to_ascii_lowercase());
    if role.connect && group.is_none() {
        return Err(missing(&config, "resourceGroup", "a node needs it: in which the disks are that it connects"));
    }
    let place = ConfiguredPlace {
        subscription: config.subscription_id.clone(),
        resource_group: config.resource_group.clone(),
        location: config.location.clone(),
    };
    let policy = AzurePolicy { tags: config.tags.clone(), site: site.clone(), without_zones: config.without_zones, place };
    let host = Host { metadata: Metadata::new(config.metadata_endpoint.as_deref()), group: group.clone().unwrap_or_default() };
    let node = Node::new(site, config.volume_attach_limit, host, Disks::default());
    let clock = Clock::default();
    let cloud = role.provision.then(|| client(&config, clock, requests)).transpose()?;
    Ok(CloudBackend::new(CloudOptions {
        name: config.name,
        cluster: config.cluster.unwrap_or_default(),
        existing: config.existing_disks.map(|disks| (disks, named(config.subscription_id, config.resource_group))),
        policy: Arc::new(policy),
        cloud,
        connect: Box::new(node),
        clock,
    }))
}

/// The disks that azuredisk-csi-driver has given handles, of this subscription and resource group.
fn named(subscription: Option<String>, group: Option<String>) -> NamedDisk {
    let (subscription, group) = (subscription.unwrap_or_default(), group.unwrap_or_default());
    Box::new(move |handle| names::disk_of_handle(handle, &subscription, &group))
}

fn missing(config: &AzureConfig, field: &'static str, reason: &str) -> Error {
    Error::invalid(field, format!("backend {}: {reason}", config.name))
}

fn client(config: &AzureConfig, clock: Clock, requests: CloudRequests) -> Result<Arc<dyn Cloud>> {
    let needed =
        |field: &'static str, value: &Option<String>, reason: &str| value.clone().ok_or_else(|| missing(config, field, reason));
    let reason =
        "a controller needs it: a name for this cluster that no other of the resource group has, kept in the tags of each disk";
    needed("cluster", &config.cluster, reason)?;
    let place = Place {
        subscription: needed("subscriptionId", &config.subscription_id, "a controller needs it")?,
        group: needed("resourceGroup", &config.resource_group, "a controller needs it")?.to_ascii_lowercase(),
        location: needed("location", &config.location, "a controller needs it: the region of the disks")?,
    };
    let settings = api::Settings {
        endpoint: config.endpoint(),
        metadata_endpoint: config.metadata_endpoint.clone(),
        credentials: config.credentials()?,
        patience: Patience::default(),
    };
    let api = api::Azure::new(settings, clock, requests)
        .map_err(|error| Error::BackendUnavailable { backend: config.name.to_string(), reason: error.to_string() })?;
    Ok(Arc::new(AzureCloud::new(api, place, clock)))
}

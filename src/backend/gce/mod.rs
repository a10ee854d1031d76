//! Persistent disks and Hyperdisks of Google Compute Engine, as a tenant of [`super::cloud`].
//!
//! `api` is the client, `cloud` and `convert` make its words those of all clouds, `policy` has the rules that need no request, `connect` is
//! the node's side. `names` says by what a disk is known, `record` how tags are kept.

use std::sync::Arc;

use crate::metrics::CloudRequests;
use crate::volume::{Error, Result};

use super::cloud::clock::Clock;
use super::cloud::{Cloud, CloudBackend, CloudOptions, NamedDisk, Role};

pub mod api;
mod cloud;
mod config;
pub mod connect;
mod convert;
pub mod disks;
pub mod identity;
pub mod kinds;
pub mod limits;
pub mod metadata;
pub mod names;
pub mod parameters;
mod policy;
mod record;
mod row;

pub use config::GceConfig;

use cloud::GceCloud;
use connect::Node;
use disks::Disks;
use identity::{Identity, Site};
use policy::GcePolicy;

/// Opens the backend; nobody is asked anything yet. `identity` is this instance's where the role is to connect.
///
/// # Errors
/// `Invalid` for a controller without a cluster; `BackendUnavailable` where the client cannot be started.
pub fn open(config: GceConfig, role: Role, requests: CloudRequests, identity: Option<Arc<Identity>>) -> Result<CloudBackend> {
    let site = identity.filter(|_| role.connect).map(|identity| Site {
        identity,
        zone: config.zone.clone(),
        machine_type: config.machine_type.clone(),
    });
    let policy = GcePolicy { labels: config.labels.clone(), site: site.clone(), images: config.images };
    let node = Node::new(site, config.volume_attach_limit, Disks::default());
    let clock = Clock::default();
    let cloud = role.provision.then(|| client(&config, clock, requests)).transpose()?;
    Ok(CloudBackend::new(CloudOptions {
        name: config.name,
        cluster: config.cluster.unwrap_or_default(),
        existing: config.existing_disks.map(|disks| (disks, named(config.project, config.region))),
        policy: Arc::new(policy),
        cloud,
        connect: Box::new(node),
        clock,
    }))
}

/// The disks that gcp-compute-persistent-disk-csi-driver has given handles, of this project and region.
fn named(project: Option<String>, region: Option<String>) -> NamedDisk {
    let (project, region) = (project.unwrap_or_default(), region.unwrap_or_default());
    Box::new(move |handle| names::disk_of_handle(handle, &project, &region))
}

fn client(config: &GceConfig, clock: Clock, requests: CloudRequests) -> Result<Arc<dyn Cloud>> {
    if config.cluster.is_none() {
        let reason = "a controller needs it: a name for this cluster that no other of the project has, kept in the description of each disk";
        return Err(Error::invalid("cluster", format!("backend {}: {reason}", config.name)));
    }
    let settings = api::Settings {
        project: config.project.clone(),
        region: config.region.clone(),
        endpoint: config.endpoint.clone(),
        credentials: config.credentials_file(),
        ..api::Settings::default()
    };
    let api = api::Gce::new(settings, clock, requests)
        .map_err(|error| Error::BackendUnavailable { backend: config.name.to_string(), reason: error.to_string() })?;
    Ok(Arc::new(GceCloud::new(api, clock, config.images)))
}

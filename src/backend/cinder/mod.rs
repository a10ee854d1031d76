//! Volumes of OpenStack's block storage (Cinder), attached to servers by its compute service (Nova), as a tenant of [`super::cloud`].
//!
//! `clouds` reads clouds.yaml, `api` is the client with Keystone's tokens, `cloud` and `convert` make its words those of all clouds, `policy`
//! has the rules that need no request, `connect` is the node's side. `record` says how tags are kept, `zones` which machines reach what.

use std::sync::Arc;

use crate::metrics::CloudRequests;
use crate::volume::{Error, Result};

use super::cloud::clock::Clock;
use super::cloud::retry::Patience;
use super::cloud::{Cloud, CloudBackend, CloudOptions, DiskId, NamedDisk, Role};

pub mod api;
mod cloud;
pub mod clouds;
mod config;
pub mod connect;
mod convert;
pub mod disks;
pub mod metadata;
pub mod parameters;
mod policy;
mod record;
mod row;
pub mod zones;

pub use config::CinderConfig;

use api::Settings;
use cloud::CinderCloud;
use clouds::CloudsFile;
use connect::Node;
use disks::Disks;
use metadata::{Identity, Site, is_uuid};
use policy::CinderPolicy;

/// How many volumes a node takes where nobody says it. With virtio-blk each is a device on the PCI bus, which has 32, and the machine's own are
/// among them. Nova has no limit of its own by default (`max_disk_devices_to_attach`).
const VOLUMES: u64 = 25;

/// Opens the backend; nobody is asked anything yet. `identity` is this server's where the role is to connect.
///
/// # Errors
/// `Invalid` for a controller without a cluster; `BackendUnavailable` where the client cannot be started.
pub fn open(config: CinderConfig, role: Role, requests: CloudRequests, identity: Option<Arc<Identity>>) -> Result<CloudBackend> {
    let zones = config.zones();
    let limit = config.volume_attach_limit.unwrap_or(VOLUMES);
    let site = identity.filter(|_| role.connect).map(|identity| Site { identity, zone: config.zone.clone() });
    let policy =
        CinderPolicy { metadata: config.metadata.clone(), site: site.clone(), zones: zones.clone(), backups: config.backups };
    let node = Node::new(site, limit, Disks::default());
    let clock = Clock::default();
    let cloud = role.provision.then(|| client(&config, clock, requests)).transpose()?;
    let cloud = cloud.map(|api| Arc::new(CinderCloud::new(api, clock, zones, limit, config.backups)) as Arc<dyn Cloud>);
    Ok(CloudBackend::new(CloudOptions {
        name: config.name,
        cluster: config.cluster.unwrap_or_default(),
        existing: config.existing_disks.map(|disks| (disks, Box::new(disk_of_handle) as NamedDisk)),
        policy: Arc::new(policy),
        cloud,
        connect: Box::new(node),
        clock,
    }))
}

/// The volume that cinder-csi-plugin has given this handle: a UUID, as Cinder writes it.
fn disk_of_handle(handle: &str) -> Option<DiskId> {
    is_uuid(handle).then(|| DiskId(handle.to_owned()))
}

fn client(config: &CinderConfig, clock: Clock, requests: CloudRequests) -> Result<api::OpenStack> {
    if config.cluster.is_none() {
        let reason = "a controller needs it: a name for this cluster that no other of the project has, kept in the metadata of each volume";
        return Err(Error::invalid("cluster", format!("backend {}: {reason}", config.name)));
    }
    let file = CloudsFile { path: config.clouds_file(), cloud: config.cloud().to_owned() };
    let settings = Settings { file, patience: Patience::default(), backups: config.backups };
    api::OpenStack::new(settings, clock, requests)
        .map_err(|error| Error::BackendUnavailable { backend: config.name.to_string(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_of_another_driver_is_a_uuid() {
        let uuid = "0a1b2c3d-1111-4111-8111-0123456789ab";
        assert_eq!(disk_of_handle(uuid), Some(DiskId(uuid.to_owned())));
        for handle in [
            &uuid[1..],
            &uuid.to_uppercase(),
            &uuid.replace('-', ""),
            &format!("vol:{uuid}"),
            "../../11-4111-8111-0123-456789ab0000",
        ] {
            assert_eq!(disk_of_handle(handle), None, "{handle}");
        }
    }
}

//! Amazon EBS: the first tenant of [`super::cloud`].
//!
//! `api` is the client of EC2, `cloud` and `convert` make its words those of all clouds, `policy` has EBS's own rules, `connect` is the node's side.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::metrics::CloudRequests;
use crate::volume::{Error, Result};

use super::cloud::bucket::Limit;
use super::cloud::clock::Clock;
use super::cloud::{Cloud, CloudBackend, CloudOptions, DiskId, NamedDisk, Role};

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
pub mod parameters;
mod policy;
mod row;
mod tags;
pub mod zone;

pub use config::{Ec2Config, LimitConfig};

use cloud::Ec2Cloud;
use connect::Node;
use disks::Disks;
use identity::{Identity, Place};
use limits::Limits;
use policy::Ec2Policy;

/// Opens the backend; nobody is asked anything yet. `identity` is this instance's where the role is to connect.
///
/// # Errors
/// `Invalid` for a controller without a cluster; `BackendUnavailable` where the client cannot be started.
pub fn open(config: Ec2Config, role: Role, requests: CloudRequests, identity: Option<Arc<Identity>>) -> Result<CloudBackend> {
    let place = identity.filter(|_| role.connect).map(|identity| Place {
        identity,
        zone: config.zone.clone(),
        kind: config.instance_type.clone(),
    });
    let limits = Limits {
        volume_attach_limit: config.volume_attach_limit,
        reserved_volume_attachments: config.reserved_volume_attachments,
    };
    let policy = Ec2Policy { tags: config.tags.clone(), place: place.clone() };
    let node = Node::new(place, &limits, Disks::default());
    let clock = Clock::default();
    let cloud = role.provision.then(|| client(&config, clock, requests)).transpose()?;
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

/// The volume that aws-ebs-csi-driver has given this handle: its id, of 8 or 17 hexadecimal digits.
fn disk_of_handle(handle: &str) -> Option<DiskId> {
    let digits = handle.strip_prefix("vol-")?;
    let fits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    ([8, 17].contains(&digits.len()) && digits.bytes().all(fits)).then(|| DiskId(handle.to_owned()))
}

fn client(config: &Ec2Config, clock: Clock, requests: CloudRequests) -> Result<Arc<dyn Cloud>> {
    if config.cluster.is_none() {
        let reason =
            "a controller needs it: a name for this cluster that no other of the account has, kept in a tag of each volume";
        return Err(Error::invalid("cluster", format!("backend {}: {reason}", config.name)));
    }
    let limit =
        |(action, limit): (&String, &LimitConfig)| (action.clone(), Limit { capacity: limit.burst, refill: limit.refill });
    let settings = api::Settings {
        region: config.region.clone(),
        endpoint: config.endpoint.clone(),
        ebs_endpoint: config.ebs_endpoint.clone(),
        limits: config.limits.iter().map(limit).collect::<BTreeMap<_, _>>(),
        ..api::Settings::default()
    };
    let api = api::Ec2::new(settings, clock, requests)
        .map_err(|error| Error::BackendUnavailable { backend: config.name.to_string(), reason: error.to_string() })?;
    Ok(Arc::new(Ec2Cloud::new(api)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::registry::Registry;

    #[test]
    fn controller_without_a_node_has_topology_and_its_snapshots_have_none() {
        let config: Ec2Config = serde_yaml_ng::from_str("{name: ebs, cluster: c, region: eu-west-1}").expect("a configuration");
        let role = Role { provision: true, connect: false };
        let backend = open(config, role, CloudRequests::default(), None).expect("EC2 is not asked");
        let offers = Registry::new(vec![Arc::new(backend)]).expect("one backend").offers();
        assert!(offers.topology, "VOLUME_ACCESSIBILITY_CONSTRAINTS: disks are made in the zone that the scheduler chose");
        assert!(offers.snapshots && !offers.local_snapshots, "a snapshot can be restored in any zone of its region");
    }

    #[test]
    fn handle_of_another_driver_is_an_id_of_a_volume() {
        for handle in ["vol-0123456789abcdef0", "vol-1a2b3c4d"] {
            assert_eq!(disk_of_handle(handle), Some(DiskId(handle.to_owned())));
        }
        for handle in ["vol-", "vol-0123456789ABCDEF0", "vol-0123456789abcdef01", "ebs:vol-1a2b3c4d", "vol-../../etc"] {
            assert_eq!(disk_of_handle(handle), None, "{handle}");
        }
    }
}

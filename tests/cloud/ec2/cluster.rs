//! The unfriendly cloud serves a whole Kubernetes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::super::cluster::{Hosts, serve};
use super::super::driver::{SECRET, ZONE};
use super::super::emulated::Passed;
use super::super::machine::Attached;
use super::super::moto::REGION;
use super::super::proxy::Cloud;
use super::super::tenant::Emulated;
use super::super::wire::Request;
use super::super::{rights, sanity};

/// In the tags of what the driver makes.
const CLUSTER: &str = "tests";

#[test]
#[ignore = "tests/kubernetes/run ec2-cases"]
fn ec2_serves_a_cluster() {
    serve(|| {
        let cloud = Cloud::start(1).expect("moto is installed");
        cloud.manners().policy = Some(rights::documented(CLUSTER));
        Machines { cloud, ids: Mutex::default() }
    });
}

/// Instances, and what they are called in Kubernetes.
struct Machines {
    cloud: Arc<Cloud>,
    ids: Mutex<BTreeMap<String, String>>,
}

impl Machines {
    fn id(&self, node: &str) -> String {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)[node].clone()
    }
}

impl Emulated for Machines {
    const SECRETS: &'static [&'static str] = &[SECRET];

    fn assert_empty(&self, when: &str) {
        assert_eq!(self.cloud.moto.volumes(), [], "volumes are left {when}");
        assert_eq!(self.cloud.moto.snapshots(), [], "snapshots are left {when}");
        for code in [
            "UnauthorizedOperation",
            "InvalidParameter",
            "InvalidParameterValue",
            "InvalidParameterCombination",
            "MissingParameter",
        ] {
            assert_eq!(self.cloud.refused(code), None, "a request was refused as {code} {when}");
        }
    }
}

impl Hosts for Machines {
    fn address(&self) -> SocketAddr {
        self.cloud.address
    }

    fn add_node(&self, name: &str) {
        let id = self.cloud.run_instances(1, "m5.large", ZONE).remove(0);
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), id);
    }

    fn attached_to(&self, name: &str) -> Vec<Attached> {
        sanity::attached(&self.cloud, &self.id(name))
    }

    fn sources(&self) -> Vec<(String, String)> {
        let world = self.cloud.world();
        let snapshots = world.snapshots.iter().map(|(id, snapshot)| (id.clone(), snapshot.item.get("volumeId").to_owned()));
        let volumes = world.volumes.iter().map(|(id, volume)| {
            let copied = volume.filling.as_ref().map(|(source, _)| source.clone());
            (id.clone(), copied.unwrap_or_else(|| volume.item.get("snapshotId").to_owned()))
        });
        snapshots.chain(volumes).filter(|(_, source)| !source.is_empty()).collect()
    }

    fn is_empty(&self) -> bool {
        self.cloud.moto.volumes().is_empty() && self.cloud.moto.snapshots().is_empty()
    }

    /// The instance metadata service, version 2, with the credentials of the instance's role.
    fn metadata(&self, node: &str, request: &Request) -> Option<Passed> {
        let said = |status, body: String| {
            let ttl = ("x-aws-ec2-metadata-token-ttl-seconds".to_owned(), "21600".to_owned());
            Some(Passed { status, headers: [ttl].into(), body })
        };
        if (request.method.as_str(), request.path.as_str()) == ("PUT", "/latest/api/token") {
            return said(200, "token".to_owned());
        }
        if request.headers.get("x-aws-ec2-metadata-token").is_none_or(|token| token != "token") {
            return said(401, String::new());
        }
        let Some(asked) = request.path.strip_prefix("/latest/meta-data/") else { return said(404, String::new()) };
        let body = match asked.trim_end_matches('/') {
            "instance-id" => self.id(node),
            "instance-type" => "m5.large".to_owned(),
            "placement/availability-zone" => ZONE.to_owned(),
            "placement/region" => REGION.to_owned(),
            "network/interfaces/macs" => "02:00:00:00:00:01/".to_owned(),
            "block-device-mapping" => "ami\nroot".to_owned(),
            // The role of the machines, and what it is given.
            "iam/security-credentials" => "nodes".to_owned(),
            "iam/security-credentials/nodes" => json!({"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "2026-01-01T00:00:00Z",
                "AccessKeyId": super::super::KEY, "SecretAccessKey": SECRET, "Token": "session", "Expiration": "2036-01-01T00:00:00Z"})
            .to_string(),
            _ => return said(404, String::new()),
        };
        said(200, body)
    }

    fn backend(&self, url: &str) -> (Value, Vec<(&'static str, String)>) {
        let backend =
            json!({"name": "ebs", "type": "ec2", "cluster": CLUSTER, "region": REGION, "endpoint": url, "ebsEndpoint": url});
        (backend, Vec::new())
    }
}

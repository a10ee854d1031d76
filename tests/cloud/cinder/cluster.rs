//! The stand-in for OpenStack serves a whole Kubernetes.

use std::net::SocketAddr;

use super::super::cluster::{Hosts, serve};
use super::*;

#[test]
#[ignore = "tests/kubernetes/run cinder-cases"]
fn cinder_serves_a_cluster() {
    serve(|| OpenStack::start(None));
}

impl Hosts for OpenStack {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn add_node(&self, name: &str) {
        self.add_server(name, ZONE);
    }

    fn attached_to(&self, name: &str) -> Vec<Attached> {
        attached_to(self, &node(name))
    }

    fn sources(&self) -> Vec<(String, String)> {
        let state = self.state();
        let of = |one: (&String, &Value), field: &str| Some((one.0.clone(), one.1[field].as_str()?.to_owned()));
        let snapshots = state.snapshots.iter().filter_map(|one| of(one, "volume_id"));
        snapshots
            .chain(state.volumes.iter().filter_map(|one| of(one, "snapshot_id").or_else(|| of(one, "source_volid"))))
            .collect()
    }

    fn is_empty(&self) -> bool {
        let state = self.state();
        state.volumes.is_empty() && state.snapshots.is_empty() && state.attachments.is_empty()
    }

    fn backend(&self, url: &str) -> (Value, Vec<(&'static str, String)>) {
        let clouds = clouds(self, false).replace(&format!("http://{}", self.address), url);
        let clouds = clouds.replace("    auth:", "    cacert: /etc/cloud-ca/ca.pem\n    auth:");
        let backend = json!({"name": "vol", "type": "cinder", "cluster": "tests", "cloudsFile": "/etc/cloud/clouds.yaml", "zones": {ZONE: VOLUME_ZONE}});
        (backend, vec![("clouds.yaml", clouds)])
    }
}

//! The stand-in for Azure serves a whole Kubernetes.

use std::net::SocketAddr;

use super::super::cluster::{Hosts, serve};
use super::*;

#[test]
#[ignore = "tests/kubernetes/run azure-cases"]
fn azure_serves_a_cluster() {
    serve(Azure::start);
}

impl Hosts for Azure {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn add_node(&self, name: &str) {
        self.add_machine(name, "Standard_D4s_v5", Some("1"));
    }

    fn attached_to(&self, name: &str) -> Vec<Attached> {
        attached_to(self, name)
    }

    /// Snapshots and disks have names of their own.
    fn sources(&self) -> Vec<(String, String)> {
        let state = self.state();
        let of = |(name, one): (&String, &Value)| {
            let source = one["properties"]["creationData"]["sourceResourceId"].as_str()?;
            Some((name.clone(), source.rsplit('/').next()?.to_ascii_lowercase()))
        };
        state.snapshots.iter().chain(&state.disks).filter_map(of).collect()
    }

    fn is_empty(&self) -> bool {
        let state = self.state();
        state.disks.is_empty() && state.snapshots.is_empty()
    }

    /// The controller is known as its machine.
    fn backend(&self, url: &str) -> (Value, Vec<(&'static str, String)>) {
        let backend = json!({"name": "az", "type": "azure", "cluster": "tests", "subscriptionId": SUBSCRIPTION, "resourceGroup": GROUP,
            "location": LOCATION, "endpoint": url});
        (backend, Vec::new())
    }
}

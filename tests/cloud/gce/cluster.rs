//! The emulator of Compute Engine serves a whole Kubernetes.

use std::net::SocketAddr;

use super::super::cluster::{Hosts, serve};
use super::*;

#[test]
#[ignore = "tests/kubernetes/run gce-cases"]
fn gce_serves_a_cluster() {
    serve(|| Google::start().expect("it is installed"));
}

impl Google {
    /// Disks, snapshots and instances.
    fn seen(&self) -> Value {
        self.order(&json!({"lean": true}))
    }
}

/// As the handle of a volume has it.
fn disk(id: &Value) -> Option<String> {
    Some(format!("{ZONE}_{}", id.as_str()?))
}

impl Hosts for Google {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn add_node(&self, name: &str) {
        self.order(&json!({"instances": {format!("{ZONE}/{name}"): "c4-standard-4"}, "settings": {"zones": [ZONE]}}));
    }

    fn attached_to(&self, name: &str) -> Vec<Attached> {
        let shown = attached_to(&self.seen(), name).into_iter();
        shown.map(|attached| Attached { disk: format!("{ZONE}_{}", attached.disk), ..attached }).collect()
    }

    fn sources(&self) -> Vec<(String, String)> {
        let state = self.seen();
        let all = |kind: &str| state[kind].as_array().expect("a list").clone().into_iter();
        let snapshots = all("snapshots").filter_map(|one| Some((one["id"].as_str()?.to_owned(), disk(&one["sourceDiskId"])?)));
        let source = |one: &Value| one["sourceSnapshotId"].as_str().map(str::to_owned).or_else(|| disk(&one["sourceDiskId"]));
        snapshots.chain(all("disks").filter_map(|one| Some((disk(&one["id"])?, source(&one)?)))).collect()
    }

    fn is_empty(&self) -> bool {
        let state = self.seen();
        (&state["disks"], &state["snapshots"]) == (&json!([]), &json!([]))
    }

    /// The controller is known as its machine.
    fn backend(&self, url: &str) -> (Value, Vec<(&'static str, String)>) {
        let backend =
            json!({"name": "pd", "type": "gce", "cluster": "tests", "project": "p-1", "region": "europe-west3", "endpoint": url});
        (backend, Vec::new())
    }
}

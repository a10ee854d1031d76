//! `longshore relay`: how one csi-resizer reaches the drivers of all nodes, where volumes are local to nodes.
//!
//! csi-resizer has no mode for drivers on nodes: it asks one driver about every claim that grows. Here that driver is the relay
//! (`--mode controller`), which knows no storage. It writes each call as an annotation of the PersistentVolume, with a label that names the
//! node. On that node a second relay (`--mode node`) watches for this label, calls the node's own driver, and writes the answer beside it.
//! So no node listens on a port, each node is told of its own volumes only, and an answer is the driver's own: code, message and response.
//!
//! Calls are repeated by csi-resizer and idempotent. So nothing here is remembered: a request that outlives its relay is carried out and
//! nobody reads the answer; of two requests the later one replaces the earlier.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::api::Api;
use super::args::{RelayArgs, RelayMode};
use super::{Failure, call, serve};
use crate::backend::catalog::Catalog;
use crate::server;
use crate::volume::topology;

mod controller;
mod node;

/// The node whose relay is asked; removed with the answer.
const NODE: &str = "relay.longshore.csi.dev/node";
/// A [`Request`]; removed with the answer.
const REQUEST: &str = "relay.longshore.csi.dev/request";
/// A [`Response`] to the last request; stays.
const RESPONSE: &str = "relay.longshore.csi.dev/response";
const VOLUMES: &str = "/api/v1/persistentvolumes";

/// A call, for the driver of a volume's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Request {
    /// No two have the same.
    id: String,
    /// As the specification calls it.
    rpc: String,
    /// The message of csi.proto, without secrets, in base64.
    message: String,
}

/// What the driver answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Response {
    /// The request's.
    id: String,
    /// gRPC's.
    code: i32,
    /// Why, where the code is not 0.
    reason: String,
    /// The message of csi.proto, in base64.
    message: String,
}

/// What of a PersistentVolume matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Volume {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    csi: Csi,
    node_affinity: NodeAffinity,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Csi {
    driver: String,
    volume_handle: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeAffinity {
    required: Terms,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terms {
    node_selector_terms: Vec<Term>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Term {
    match_expressions: Vec<Expression>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Expression {
    key: String,
    operator: String,
    values: Vec<String>,
}

impl Volume {
    fn is(&self, driver: &str, handle: &str) -> bool {
        self.spec.csi.driver == driver && self.spec.csi.volume_handle == handle
    }

    /// The one node on which it is, by its node affinity.
    fn node(&self) -> Option<&str> {
        let [term] = &self.spec.node_affinity.required.node_selector_terms[..] else { return None };
        let of_node = |expression: &&Expression| expression.key == topology::NODE && expression.operator == "In";
        match &term.match_expressions.iter().find(of_node)?.values[..] {
            [node] => Some(node),
            _ => None,
        }
    }

    fn request(&self) -> Option<Request> {
        serde_json::from_str(self.metadata.annotations.get(REQUEST)?).ok()
    }

    fn response(&self) -> Option<Response> {
        serde_json::from_str(self.metadata.annotations.get(RESPONSE)?).ok()
    }

    fn path(&self) -> String {
        format!("{VOLUMES}/{}", self.metadata.name)
    }
}

/// Relays until SIGTERM or SIGINT.
pub fn run(args: &RelayArgs, catalog: &Catalog) -> Result<(), Failure> {
    let config = serve::configure(catalog, args.place.layer(), args.place.config.as_deref())?;
    let runtime = call::runtime()?;
    let (_log, _traces) = serve::start_log(&config, &runtime)?;
    let api = Api::new(&args.service_account).map_err(Failure::Api)?;
    let endpoint = &config.endpoint;
    runtime.block_on(async {
        let signals = serve::Signals::listen().map_err(serve::failed("listen for signals"))?;
        match args.mode {
            RelayMode::Controller => {
                let endpoint = endpoint.to_string().parse().map_err(serve::failed("use the endpoint"))?;
                let relay = controller::Relay::new(api, config.driver_name.as_str(), *args.timeout);
                let served = server::serve_controller(&endpoint, relay.clone(), relay, signals.first());
                served.await.map_err(serve::failed("serve"))
            }
            RelayMode::Node => {
                let relay = node::Relay::new(api, config.driver_name.as_str(), config.node_id.as_str(), endpoint);
                // What runs is begun again by the next relay: its request is still there.
                tokio::select! {
                    () = relay.run() => {}
                    () = signals.first() => {}
                }
                Ok(())
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(affinity: &str) -> Volume {
        let text = format!(
            r#"{{"metadata": {{"name": "a"}}, "spec": {{"csi": {{"driver": "a.b", "volumeHandle": "local:a"}}, "nodeAffinity": {affinity}}}}}"#
        );
        serde_json::from_str(&text).expect("a PersistentVolume")
    }

    #[test]
    fn node_of_volume_is_the_one_of_its_affinity() {
        let term = |values: &str| {
            format!(
                r#"{{"matchExpressions": [{{"key": "topology.longshore.csi.dev/node", "operator": "In", "values": {values}}}]}}"#
            )
        };
        let terms = |terms: &str| volume(&format!(r#"{{"required": {{"nodeSelectorTerms": [{terms}]}}}}"#));
        assert_eq!(terms(&term(r#"["node-a"]"#)).node(), Some("node-a"));
        assert_eq!(terms(&term(r#"["node-a", "node-b"]"#)).node(), None);
        assert_eq!(terms(&[term(r#"["node-a"]"#), term(r#"["node-b"]"#)].join(",")).node(), None);
        assert_eq!(terms(&term(r#"["node-a"]"#).replace("In", "NotIn")).node(), None);
        assert_eq!(terms(&term(r#"["node-a"]"#).replace("/node", "/zone")).node(), None);
        assert_eq!(volume("{}").node(), None);
    }

    #[test]
    fn volume_is_known_by_its_driver_and_handle() {
        assert!(volume("{}").is("a.b", "local:a"));
        assert!(!volume("{}").is("other", "local:a"));
        assert!(!volume("{}").is("a.b", "local:b"));
    }
}

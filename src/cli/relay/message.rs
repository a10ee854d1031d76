//! What the two halves write for each other, and what of a PersistentVolume matters to them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::volume::topology;

/// The node whose relay is asked; removed with the answer.
pub(super) const NODE: &str = "relay.longshore.csi.dev/node";
/// A [`Request`]; removed with the answer.
pub(super) const REQUEST: &str = "relay.longshore.csi.dev/request";
/// A [`Response`] to the last request; stays.
pub(super) const RESPONSE: &str = "relay.longshore.csi.dev/response";
pub(super) const VOLUMES: &str = "/api/v1/persistentvolumes";

/// A call, for the driver of a volume's node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    /// No two have the same.
    pub(super) id: String,
    /// As the specification calls it.
    pub(super) rpc: String,
    /// The message of csi.proto, without secrets, in base64.
    pub(super) message: String,
}

/// What the driver answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Response {
    /// The request's.
    pub(super) id: String,
    /// gRPC's.
    pub(super) code: i32,
    /// Why, where the code is not 0.
    pub(super) reason: String,
    /// The message of csi.proto, in base64.
    pub(super) message: String,
}

/// What of a PersistentVolume matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Volume {
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    pub(super) csi: Csi,
    node_affinity: NodeAffinity,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Csi {
    pub(super) driver: String,
    pub(super) volume_handle: String,
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
    pub(super) fn is(&self, driver: &str, handle: &str) -> bool {
        self.spec.csi.driver == driver && self.spec.csi.volume_handle == handle
    }

    /// The one node on which it is, by its node affinity.
    pub(super) fn node(&self) -> Option<&str> {
        let [term] = &self.spec.node_affinity.required.node_selector_terms[..] else { return None };
        let of_node = |expression: &&Expression| expression.key == topology::NODE && expression.operator == "In";
        match &term.match_expressions.iter().find(of_node)?.values[..] {
            [node] => Some(node),
            _ => None,
        }
    }

    pub(super) fn request(&self) -> Option<Request> {
        serde_json::from_str(self.metadata.annotations.get(REQUEST)?).ok()
    }

    pub(super) fn response(&self) -> Option<Response> {
        serde_json::from_str(self.metadata.annotations.get(RESPONSE)?).ok()
    }

    pub(super) fn path(&self) -> String {
        format!("{VOLUMES}/{}", self.metadata.name)
    }
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

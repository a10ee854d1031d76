//! From where a volume can be reached.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The keys that are returned: all with one prefix (CSI spec, Topology: "the same prefix MUST be used for all topology keys returned by
/// the SP").
pub const NODE: &str = "topology.longshore.csi.dev/node";
pub const ZONE: &str = "topology.longshore.csi.dev/zone";
/// Where in its zone, if not in the zone's own data centers.
pub const OUTPOST: &str = "topology.longshore.csi.dev/outpost";

/// Segments such as `topology.longshore.csi.dev/node = worker-3`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Topology(pub BTreeMap<String, String>);

impl Topology {
    /// Whether a node with these segments can reach what lies in `place`: every segment of the place must agree.
    pub fn reaches(&self, place: &Topology) -> bool {
        place.0.iter().all(|(key, value)| self.0.get(key) == Some(value))
    }
}

/// Where the CO wants a volume (CSI spec, TopologyRequirement). Both lists may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyRequirement {
    /// It must be reachable from at least one of these.
    pub requisite: Vec<Topology>,
    /// Best from the first of these.
    pub preferred: Vec<Topology>,
}

impl TopologyRequirement {
    /// Whether storage at `place` will do. Without a requirement everything does.
    pub fn accepts(&self, place: &Topology) -> bool {
        let asked = if self.requisite.is_empty() { &self.preferred } else { &self.requisite };
        asked.is_empty() || asked.iter().any(|wanted| wanted.reaches(place))
    }
}

//! From where a volume can be reached.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The keys that are returned: all with one prefix (CSI spec, Topology: "the same prefix MUST be used for all topology keys returned by
/// the SP").
pub const NODE: &str = "topology.longshore.csi.dev/node";
pub const ZONE: &str = "topology.longshore.csi.dev/zone";
/// Where in its zone, if not in the zone's own data centers.
pub const OUTPOST: &str = "topology.longshore.csi.dev/outpost";

/// Segments such as `topology.longshore.csi.dev/node = worker-3`. Copies share them: all volumes of a node have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Topology(Arc<BTreeMap<String, String>>);

impl From<BTreeMap<String, String>> for Topology {
    fn from(segments: BTreeMap<String, String>) -> Topology {
        Topology(Arc::new(segments))
    }
}

impl From<Topology> for BTreeMap<String, String> {
    fn from(topology: Topology) -> BTreeMap<String, String> {
        Arc::unwrap_or_clone(topology.0)
    }
}

impl FromIterator<(String, String)> for Topology {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(segments: I) -> Topology {
        BTreeMap::from_iter(segments).into()
    }
}

impl Topology {
    pub fn segments(&self) -> &BTreeMap<String, String> {
        &self.0
    }

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
    /// Whether nothing is required.
    pub fn is_empty(&self) -> bool {
        self.requisite.is_empty() && self.preferred.is_empty()
    }

    /// Whether storage at `place` will do. Without a requirement everything does.
    pub fn accepts(&self, place: &Topology) -> bool {
        let asked = if self.requisite.is_empty() { &self.preferred } else { &self.requisite };
        asked.is_empty() || asked.iter().any(|wanted| wanted.reaches(place))
    }
}

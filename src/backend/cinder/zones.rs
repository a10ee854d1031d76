//! Zones of Cinder and of Nova are named by their administrators, each on its own: which volumes a machine can have attached, only the operator
//! knows. Here and in the topology of nodes and volumes a zone is one of Cinder's, but for those of machines as Nova describes them.

use std::collections::BTreeMap;

/// Which zone of Cinder belongs to a zone of Nova.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneMap {
    /// All machines reach all volumes.
    pub is_any: bool,
    /// By the zone of Nova; of one that is not here, the zone of the same name.
    pub by_compute: BTreeMap<String, String>,
}

impl ZoneMap {
    /// The zone of the volumes that machines in this zone of Nova can have attached.
    pub fn of_compute(&self, zone: &str) -> String {
        self.by_compute.get(zone).map_or(zone, String::as_str).to_owned()
    }
}

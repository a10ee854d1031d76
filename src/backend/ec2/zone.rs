//! Zones, as topology segments.

use std::collections::BTreeMap;

use crate::volume::Topology;
use crate::volume::topology::ZONE;

/// Further keys by which a StorageClass may name a zone: Kubernetes' own label, and that of aws-ebs-csi-driver. They are never returned:
/// all keys that a plugin returns have one prefix (CSI spec, Topology).
const ACCEPTED: [&str; 2] = ["topology.kubernetes.io/zone", "topology.ebs.csi.aws.com/zone"];

/// The segments of a node or a volume in `zone`.
pub fn segments(zone: &str) -> Topology {
    Topology(BTreeMap::from([(ZONE.to_owned(), zone.to_owned())]))
}

/// The zone that segments name; `None` where they name none, or two.
pub fn named_by(topology: &Topology) -> Option<&str> {
    let mut zones = ACCEPTED.into_iter().chain([ZONE]).filter_map(|key| topology.0.get(key)).map(String::as_str);
    let zone = zones.next()?;
    zones.all(|other| other == zone).then_some(zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_reaches_volumes_of_its_zone() {
        assert!(segments("eu-west-1a").reaches(&segments("eu-west-1a")));
        assert!(!segments("eu-west-1a").reaches(&segments("eu-west-1b")));
    }

    #[test]
    fn each_accepted_key_names_a_zone() {
        let mut all = segments("a");
        assert_eq!(named_by(&all), Some("a"));
        for key in ACCEPTED {
            assert_eq!(named_by(&Topology(BTreeMap::from([(key.to_owned(), "b".to_owned())]))), Some("b"), "{key}");
            all.0.insert(key.to_owned(), "a".to_owned());
        }
        assert_eq!(named_by(&all), Some("a"));
        all.0.insert(ACCEPTED[0].to_owned(), "b".to_owned());
        assert_eq!(named_by(&all), None, "two zones");
        assert_eq!(named_by(&Topology::default()), None);
    }
}

//! Zones, as topology segments.

use std::collections::BTreeMap;

use crate::volume::Topology;

/// Kubernetes' own label (well-known labels): what volumes are said to be reachable by.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// What StorageClasses and volumes of aws-ebs-csi-driver have beside it or instead.
pub const ZONE_OF_EBS: &str = "topology.ebs.csi.aws.com/zone";

/// The segments of a node: by either key a StorageClass or volume may ask for it.
pub fn of_node(zone: &str) -> Topology {
    Topology([ZONE, ZONE_OF_EBS].map(|key| (key.to_owned(), zone.to_owned())).into())
}

/// From where a volume can be reached.
pub fn of_volume(zone: &str) -> Topology {
    Topology(BTreeMap::from([(ZONE.to_owned(), zone.to_owned())]))
}

/// The zone that segments name; `None` where they name none, or two.
pub fn named_by(topology: &Topology) -> Option<&str> {
    let zone = |key| topology.0.get(key).map(String::as_str);
    match (zone(ZONE), zone(ZONE_OF_EBS)) {
        (Some(one), Some(other)) if one != other => None,
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_reaches_what_lies_in_its_zone() {
        assert!(of_node("eu-west-1a").reaches(&of_volume("eu-west-1a")));
        assert!(!of_node("eu-west-1a").reaches(&of_volume("eu-west-1b")));
        let by_ebs = Topology(BTreeMap::from([(ZONE_OF_EBS.to_owned(), "eu-west-1a".to_owned())]));
        assert!(of_node("eu-west-1a").reaches(&by_ebs), "a volume made by aws-ebs-csi-driver");
    }

    #[test]
    fn either_key_names_a_zone() {
        let mut both = of_node("a");
        assert_eq!(named_by(&both), Some("a"));
        assert_eq!(named_by(&of_volume("b")), Some("b"));
        both.0.remove(ZONE);
        assert_eq!(named_by(&both), Some("a"));
        both.0.insert(ZONE.to_owned(), "b".to_owned());
        assert_eq!(named_by(&both), None, "not both");
        assert_eq!(named_by(&Topology::default()), None);
    }
}

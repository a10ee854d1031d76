//! Zones and Outposts, as topology segments.
//!
//! An Outpost is known by an ARN, `arn:aws:outposts:us-west-2:123456789012:outpost/op-0123456789abcdef0`, which cannot be the value of a
//! label. The segment has the parts in which ARNs differ: `aws.us-west-2.123456789012.op-0123456789abcdef0`.

use crate::volume::topology::{OUTPOST, ZONE};
use crate::volume::{Error, Result, Topology};

/// Further keys by which a StorageClass may name a zone: Kubernetes' own label, and that of aws-ebs-csi-driver. They are never returned:
/// all keys that a plugin returns have one prefix (CSI spec, Topology).
const ACCEPTED: [&str; 2] = ["topology.kubernetes.io/zone", "topology.ebs.csi.aws.com/zone"];

/// The keys by which aws-ebs-csi-driver names an Outpost, in the order of an ARN's parts.
const EBS_OUTPOST: [&str; 4] = [
    "topology.ebs.csi.aws.com/partition",
    "topology.ebs.csi.aws.com/region",
    "topology.ebs.csi.aws.com/account-id",
    "topology.ebs.csi.aws.com/outpost-id",
];

/// The segments of a node or a volume in `zone`, on an Outpost of this ARN if there is one.
pub fn segments(zone: &str, outpost: Option<&str>) -> Topology {
    let outpost = outpost.map(|arn| (OUTPOST.to_owned(), label(arn)));
    [(ZONE.to_owned(), zone.to_owned())].into_iter().chain(outpost).collect()
}

/// An ARN as the value of a label; what is none is the value itself, and names no Outpost.
fn label(arn: &str) -> String {
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    match parts.as_slice() {
        ["arn", partition, "outposts", region, account, outpost] => {
            let id = outpost.strip_prefix("outpost/").unwrap_or(outpost);
            format!("{partition}.{region}.{account}.{id}")
        }
        _ => arn.to_owned(),
    }
}

/// The ARN of the Outpost that segments name; `None` where they name none.
///
/// # Errors
/// `Invalid` for a segment that is of no Outpost: the volume must not be made elsewhere.
pub fn outpost_named_by(topology: &Topology) -> Result<Option<String>> {
    let theirs: Vec<&str> = EBS_OUTPOST.iter().filter_map(|key| topology.segments().get(*key)).map(String::as_str).collect();
    let (text, parts) = match topology.segments().get(OUTPOST) {
        Some(text) => (text.clone(), text.split('.').collect()),
        None if topology.segments().contains_key(EBS_OUTPOST[3]) => (theirs.join("."), theirs),
        None => return Ok(None),
    };
    match parts.as_slice() {
        [partition, region, account, id] if id.starts_with("op-") => {
            Ok(Some(format!("arn:{partition}:outposts:{region}:{account}:outpost/{id}")))
        }
        _ => {
            let reason = format!("{text:?} is no Outpost; its value is partition.region.account.id, as NodeGetInfo has it");
            Err(Error::invalid("accessibility_requirements", format!("{OUTPOST}: {reason}")))
        }
    }
}

/// The zone that segments name; `None` where they name none, or two.
pub fn named_by(topology: &Topology) -> Option<&str> {
    let mut zones = ACCEPTED.into_iter().chain([ZONE]).filter_map(|key| topology.segments().get(key)).map(String::as_str);
    let zone = zones.next()?;
    zones.all(|other| other == zone).then_some(zone)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn node_reaches_volumes_of_its_zone() {
        let [a, b] = ["eu-west-1a", "eu-west-1b"].map(|zone| segments(zone, None));
        assert!(a.reaches(&a) && !a.reaches(&b));
    }

    #[test]
    fn volume_on_an_outpost_is_reached_from_there_only() {
        const ARN: &str = "arn:aws-us-gov:outposts:us-gov-west-1:123456789012:outpost/op-0123456789abcdef0";
        let there = segments("eu-west-1a", Some(ARN));
        assert!(there.reaches(&there));
        for elsewhere in [segments("eu-west-1a", None), segments("eu-west-1a", Some(&ARN.replace("op-0", "op-1")))] {
            assert!(!elsewhere.reaches(&there), "{elsewhere:?}");
        }
        assert_eq!(outpost_named_by(&there).expect("one of ours"), Some(ARN.to_owned()));
        assert_eq!(outpost_named_by(&segments("eu-west-1a", None)).expect("none"), None);
        // A label of Kubernetes' (API conventions): 63 characters, and no colon or slash.
        let label = &there.segments()[OUTPOST];
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        assert!(label.len() <= 63 && label.bytes().all(fits), "{label}");
        // As aws-ebs-csi-driver names it.
        let values = ["aws-us-gov", "us-gov-west-1", "123456789012", "op-0123456789abcdef0"];
        let mut theirs: BTreeMap<String, String> =
            EBS_OUTPOST.into_iter().zip(values).map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        assert_eq!(outpost_named_by(&Topology::from(theirs.clone())).expect("theirs"), Some(ARN.to_owned()));
        theirs.remove(EBS_OUTPOST[1]);
        outpost_named_by(&Topology::from(theirs)).expect_err("not in the zone's data centers instead");
        outpost_named_by(&Topology::from_iter([(OUTPOST.to_owned(), "op-1".to_owned())])).expect_err("not whole");
    }

    #[test]
    fn each_accepted_key_names_a_zone() {
        let mut all = BTreeMap::from(segments("a", None));
        assert_eq!(named_by(&all.clone().into()), Some("a"));
        for key in ACCEPTED {
            assert_eq!(named_by(&Topology::from_iter([(key.to_owned(), "b".to_owned())])), Some("b"), "{key}");
            all.insert(key.to_owned(), "a".to_owned());
        }
        assert_eq!(named_by(&all.clone().into()), Some("a"));
        all.insert(ACCEPTED[0].to_owned(), "b".to_owned());
        assert_eq!(named_by(&all.into()), None, "two zones");
        assert_eq!(named_by(&Topology::default()), None);
    }
}

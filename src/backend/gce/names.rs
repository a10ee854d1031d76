//! What Compute Engine calls its resources.
//!
//! A disk's name is free again once the disk is deleted; its number is of this disk alone. So a disk is known by its number, with the zone
//! or region in which that is asked for: `europe-west3-a_1234567890123456789`. An instance is known by its name, as in
//! gcp-compute-persistent-disk-csi-driver: what the API says of a disk's users has no more.

use crate::backend::cloud::{CloudSnapshotId, DiskId};
use crate::volume::NodeId;

/// How the name begins by which a disk is attached, and found on its machine; its number follows.
const DEVICE: &str = "longshore-";

/// Where a disk is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Zone(String),
    Region(String),
}

impl Place {
    /// By its name: `europe-west3` is a region, `europe-west3-a` one of its zones.
    pub fn named(name: &str) -> Place {
        match name.matches('-').count() {
            0 | 1 => Place::Region(name.to_owned()),
            _ => Place::Zone(name.to_owned()),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Place::Zone(name) | Place::Region(name) => name,
        }
    }

    /// As paths have it.
    pub fn path(&self) -> String {
        match self {
            Place::Zone(zone) => format!("zones/{zone}"),
            Place::Region(region) => format!("regions/{region}"),
        }
    }

    /// The method of disks here: `disks.get` or `regionDisks.get`.
    pub fn action(&self, zonal: &'static str, regional: &'static str) -> &'static str {
        match self {
            Place::Zone(_) => zonal,
            Place::Region(_) => regional,
        }
    }
}

/// The region of a zone.
pub fn region_of(zone: &str) -> &str {
    zone.rsplit_once('-').map_or(zone, |(region, _)| region)
}

/// What comes last in a URL.
pub fn last(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or(url)
}

/// The segment after this one in a URL.
fn after<'a>(url: &'a str, key: &str) -> Option<&'a str> {
    let mut parts = url.split('/').skip_while(|part| *part != key);
    parts.nth(1).filter(|part| !part.is_empty())
}

/// The place in a URL of a disk or an operation.
pub fn place_in(url: &str) -> Option<Place> {
    let zone = after(url, "zones").map(|zone| Place::Zone(zone.to_owned()));
    zone.or_else(|| after(url, "regions").map(|region| Place::Region(region.to_owned())))
}

pub fn disk_id(place: &Place, number: impl std::fmt::Display) -> DiskId {
    DiskId(format!("{}_{number}", place.name()))
}

/// The place and the number of a disk; `None` for what is no id of one.
pub fn parse_disk(id: &DiskId) -> Option<(Place, u64)> {
    let (place, number) = id.0.split_once('_')?;
    let is_name =
        !place.is_empty() && place.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    is_name.then(|| number.parse().ok()).flatten().map(|number| (Place::named(place), number))
}

/// The number of a snapshot.
pub fn parse_snapshot(id: &CloudSnapshotId) -> Option<u64> {
    id.0.parse().ok()
}

/// The name by which a disk is attached.
pub fn device_name(id: &DiskId) -> String {
    let number = parse_disk(id).map(|(_, number)| number.to_string());
    format!("{DEVICE}{}", number.unwrap_or_else(|| id.0.clone()))
}

/// The number in the name by which a disk of ours is attached.
pub fn number_in(device: &str) -> Option<u64> {
    device.strip_prefix(DEVICE)?.parse().ok()
}

/// An instance, as NodeGetInfo names it: `projects/P/zones/Z/instances/N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceName {
    pub project: String,
    pub zone: String,
    pub name: String,
}

impl InstanceName {
    /// `None` for the id of a node that is no instance.
    pub fn parse(node: &str) -> Option<InstanceName> {
        let parts: Vec<&str> = node.split('/').collect();
        let is_name = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.:".contains(&byte))
        };
        match parts.as_slice() {
            ["projects", project, "zones", zone, "instances", name] if [project, zone, name].iter().all(|text| is_name(text)) => {
                let [project, zone, name] = [project, zone, name].map(|text| (*text).to_owned());
                Some(InstanceName { project, zone, name })
            }
            _ => None,
        }
    }

    /// In a URL of the API.
    pub fn in_url(url: &str) -> Option<InstanceName> {
        let part = |key| after(url, key).map(str::to_owned);
        Some(InstanceName { project: part("projects")?, zone: part("zones")?, name: part("instances")? })
    }

    pub fn node(&self) -> Option<NodeId> {
        format!("projects/{}/zones/{}/instances/{}", self.project, self.zone, self.name).parse().ok()
    }

    /// Below the project.
    pub fn path(&self) -> String {
        format!("zones/{}/instances/{}", self.zone, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_is_known_by_its_place_and_number() {
        for (text, place) in [
            ("europe-west3-a_1234567890123456789", Place::Zone("europe-west3-a".to_owned())),
            ("northamerica-northeast1_18446744073709551615", Place::Region("northamerica-northeast1".to_owned())),
        ] {
            let id = DiskId(text.to_owned());
            let (parsed, number) = parse_disk(&id).expect("an id");
            assert_eq!(parsed, place);
            assert_eq!(disk_id(&parsed, number), id);
            assert_eq!(number_in(&device_name(&id)), Some(number));
            // In a volume's id, with the longest name of a backend and a claim's.
            assert!(text.len() <= 128 - 32 - 1 - 2 - 1 - "pvc-00000000-0000-0000-0000-000000000000".len(), "{text}");
        }
        for text in ["", "z-a-b", "z-a-b_", "z-a-b_x", "_1", "z/a-b_1", "z-a-b_1/../2"] {
            assert_eq!(parse_disk(&DiskId(text.to_owned())), None, "{text}");
        }
    }

    #[test]
    fn urls_are_taken_apart() {
        let url = "https://www.googleapis.com/compute/v1/projects/p/zones/z-a-b/instances/node-1";
        let instance = InstanceName::in_url(url).expect("an instance");
        let node = instance.node().expect("a node");
        assert_eq!(node.as_str(), "projects/p/zones/z-a-b/instances/node-1");
        assert_eq!(InstanceName::parse(node.as_str()), Some(instance));
        assert_eq!(place_in(url), Some(Place::Zone("z-a-b".to_owned())));
        assert_eq!(place_in("projects/p/regions/r/disks/d"), Some(Place::Region("r".to_owned())));
        for node in [
            "",
            "node-1",
            "projects/p/zones/z/instances/",
            "projects/p/zones/z/instances/a?b",
            "projects/p/zones/z/instances/n/x",
        ] {
            assert_eq!(InstanceName::parse(node), None, "{node}");
        }
    }
}

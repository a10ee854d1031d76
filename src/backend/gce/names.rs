//! What Compute Engine calls its resources.
//!
//! A disk's name is free again once the disk is deleted; its number is of this disk alone. So a disk is known by its number, with the zone
//! or region in which that is asked for: `europe-west3-a_1234567890123456789`. A disk that another program made is known by the name that its
//! handle has: `europe-west3-a_data`. An instance is known by its name, as in gcp-compute-persistent-disk-csi-driver: what the API says of a
//! disk's users has no more.

use crate::backend::cloud::{CloudSnapshotId, DiskId};
use crate::volume::NodeId;

/// How the name begins by which a disk is attached, and found on its machine; its number follows.
const DEVICE: &str = "longshore-";
/// How the id of a snapshot begins that is an image; the image's number follows.
const IMAGE: &str = "image-";

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

/// By what a disk is asked for in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called<'a> {
    Number(u64),
    /// Of one that another program made: a later disk may have it.
    Name(&'a str),
}

impl Called<'_> {
    pub fn is(self, number: u64, name: &str) -> bool {
        match self {
            Called::Number(own) => own == number,
            Called::Name(own) => own == name,
        }
    }
}

impl std::fmt::Display for Called<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Called::Number(number) => number.fmt(f),
            Called::Name(name) => name.fmt(f),
        }
    }
}

/// Letters in lower case, digits and dashes.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// "Naming resources": RFC 1035, at most 63 characters.
pub fn is_resource_name(text: &str) -> bool {
    is_plain(text) && text.len() <= 63 && text.starts_with(|first: char| first.is_ascii_lowercase()) && !text.ends_with('-')
}

/// Whether a disk that another program made may be called so. By a name in the form of those by which disks of ours are attached, it could be
/// taken for one of them.
fn is_disk_name(text: &str) -> bool {
    is_resource_name(text) && number_in(text).is_none()
}

/// The place of a disk and by what it is asked for there; `None` for what is no id of one.
pub fn parse_disk(id: &DiskId) -> Option<(Place, Called<'_>)> {
    let (place, called) = id.0.split_once('_')?;
    let called = match called.parse() {
        Ok(number) => Called::Number(number),
        Err(_) if is_disk_name(called) => Called::Name(called),
        Err(_) => return None,
    };
    is_plain(place).then(|| (Place::named(place), called))
}

/// The disk that gcp-compute-persistent-disk-csi-driver has given this handle, if it is of this project and region:
/// `projects/P/zones/Z/disks/N`, `projects/P/regions/R/disks/N`. `UNSPECIFIED` stands there for the driver's own project.
pub fn disk_of_handle(handle: &str, project: &str, region: &str) -> Option<DiskId> {
    let ["projects", of, kind, place, "disks", name] = handle.split('/').collect::<Vec<_>>()[..] else { return None };
    let place = Place::named(place);
    let is_here = match (kind, &place) {
        ("zones", Place::Zone(zone)) => region_of(zone) == region,
        ("regions", Place::Region(name)) => name == region,
        _ => false,
    };
    let is_ours = is_here && [project, "UNSPECIFIED"].contains(&of) && is_disk_name(name);
    is_ours.then(|| disk_id(&place, name))
}

/// The number of a snapshot.
pub fn parse_snapshot(id: &CloudSnapshotId) -> Option<u64> {
    id.0.parse().ok()
}

/// The id by which an image is a snapshot.
pub fn snapshot_of_image(number: impl std::fmt::Display) -> CloudSnapshotId {
    CloudSnapshotId(format!("{IMAGE}{number}"))
}

/// The number of the image that a snapshot is, if it is one.
pub fn parse_image(id: &CloudSnapshotId) -> Option<u64> {
    id.0.strip_prefix(IMAGE)?.parse().ok()
}

/// The name by which a disk is attached. One that another program made has its own name, by which that has perhaps attached it already.
pub fn device_name(id: &DiskId) -> String {
    match parse_disk(id) {
        Some((_, Called::Number(number))) => format!("{DEVICE}{number}"),
        Some((_, Called::Name(name))) => name.to_owned(),
        None => format!("{DEVICE}{}", id.0),
    }
}

/// Whether a disk may be attached by this name ([`device_name`]).
pub fn is_device_name(name: &str) -> bool {
    number_in(name).is_some() || is_disk_name(name)
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
            assert_eq!(number_in(&device_name(&id)).map(Called::Number), Some(number));
            // In a volume's id, with the longest name of a backend and a claim's.
            assert!(text.len() <= 128 - 32 - 1 - 2 - 1 - "pvc-00000000-0000-0000-0000-000000000000".len(), "{text}");
        }
        for text in ["", "z-a-b", "z-a-b_", "z-a-b_X", "z-a-b_-x", "z-a-b_x-", "_1", "z/a-b_1", "z-a-b_1/../2"] {
            assert_eq!(parse_disk(&DiskId(text.to_owned())), None, "{text}");
        }
    }

    #[test]
    fn image_is_a_snapshot_by_its_id() {
        let id = snapshot_of_image(7);
        assert_eq!((id.0.as_str(), parse_image(&id), parse_snapshot(&id)), ("image-7", Some(7), None));
        for other in ["7", "image-", "image-x", "instant-7", "image-7/../8"] {
            assert_eq!(parse_image(&CloudSnapshotId(other.to_owned())), None, "{other}");
        }
    }

    #[test]
    fn handle_of_another_driver_is_a_disk_of_this_project_and_region() {
        let read = |handle: &str| disk_of_handle(handle, "p", "europe-west3").map(|disk| disk.0);
        for (handle, disk) in [
            ("projects/p/zones/europe-west3-a/disks/pvc-1", "europe-west3-a_pvc-1"),
            ("projects/UNSPECIFIED/zones/europe-west3-b/disks/data", "europe-west3-b_data"),
            ("projects/p/regions/europe-west3/disks/pvc-1", "europe-west3_pvc-1"),
        ] {
            assert_eq!(read(handle).as_deref(), Some(disk));
            let id = DiskId(disk.to_owned());
            let name = handle.rsplit('/').next().expect("a name");
            assert_eq!(parse_disk(&id).map(|(_, called)| called), Some(Called::Name(name)));
            assert!(device_name(&id) == name && is_device_name(name));
        }
        for handle in [
            "projects/other/zones/europe-west3-a/disks/d",
            "projects/p/zones/europe-west4-a/disks/d",
            "projects/p/zones/UNSPECIFIED/disks/d",
            "projects/p/zones/multi-zone/disks/d",
            "projects/p/zones/europe-west3/disks/d",
            "projects/p/regions/europe-west3-a/disks/d",
            "projects/p/zones/europe-west3-a/disks/D",
            "projects/p/zones/europe-west3-a/disks/1",
            "projects/p/zones/europe-west3-a/disks/longshore-1",
            "projects/p/zones/europe-west3-a/disks/d/x",
            "/projects/p/zones/europe-west3-a/disks/d",
            "pd:pvc-1",
        ] {
            assert_eq!(read(handle), None, "{handle}");
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

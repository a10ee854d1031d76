//! What Azure calls its resources.
//!
//! A disk is known by its name, which no other disk of the resource group has; a machine by its resource group and name, or by the set and
//! the number that it has there. Names have no case (Azure Resource Manager answers with another case than it was asked in), so that all of
//! ours are in lower case.

use crate::backend::cloud::DiskId;
use crate::volume::NodeId;

/// Whether it may be part of a path.
pub fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.()".contains(&byte);
    (1..=90).contains(&text.len()) && text.bytes().all(fits) && !text.bytes().all(|byte| byte == b'.')
}

/// The segment after this one in a resource id, in lower case.
fn after(id: &str, key: &str) -> Option<String> {
    let mut parts = id.split('/').skip_while(|part| !part.eq_ignore_ascii_case(key));
    parts.nth(1).filter(|part| is_name(part)).map(str::to_ascii_lowercase)
}

/// The disk of a resource id; one of another resource group has that in front, so that it is none of ours.
pub fn disk_in(id: &str, group: &str) -> Option<DiskId> {
    let name = after(id, "disks")?;
    let of = after(id, "resourceGroups")?;
    Some(DiskId(if of.eq_ignore_ascii_case(group) { name } else { format!("{of}/{name}") }))
}

/// The disk that azuredisk-csi-driver has given this handle, if it is of this subscription and resource group:
/// `/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/disks/N`, in any case.
pub fn disk_of_handle(handle: &str, subscription: &str, group: &str) -> Option<DiskId> {
    let prefix = format!("/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute/disks/");
    let (front, name) = handle.split_at_checked(prefix.len())?;
    let name = name.to_ascii_lowercase();
    (front.eq_ignore_ascii_case(&prefix) && is_disk(&name)).then_some(DiskId(name))
}

/// The snapshot of a resource id.
pub fn snapshot_in(id: &str) -> Option<String> {
    after(id, "snapshots")
}

/// What comes last in a resource id.
pub fn last(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or(id)
}

/// Whether a disk is one of the backend's resource group, by its id.
pub fn is_disk(id: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    (1..=80).contains(&id.len()) && id.bytes().all(fits) && id.starts_with(|first: char| first.is_ascii_alphanumeric())
}

/// A virtual machine, as NodeGetInfo names it: `GROUP/NAME`, or `GROUP/SET/NUMBER` in a scale set with uniform orchestration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineName {
    pub group: String,
    pub set: Option<String>,
    pub name: String,
}

impl MachineName {
    /// `None` for the id of a node that is no machine.
    pub fn parse(node: &str) -> Option<MachineName> {
        let parts: Vec<String> = node.split('/').filter(|part| is_name(part)).map(str::to_ascii_lowercase).collect();
        if parts.len() != node.split('/').count() {
            return None;
        }
        match parts.as_slice() {
            [group, name] => Some(MachineName { group: group.clone(), set: None, name: name.clone() }),
            [group, set, name] => Some(MachineName { group: group.clone(), set: Some(set.clone()), name: name.clone() }),
            _ => None,
        }
    }

    /// Of a resource id: what a disk is managed by, or what the metadata service says of this machine.
    pub fn in_id(id: &str) -> Option<MachineName> {
        let name = after(id, "virtualMachines")?;
        Some(MachineName { group: after(id, "resourceGroups")?, set: after(id, "virtualMachineScaleSets"), name })
    }

    pub fn node(&self) -> Option<NodeId> {
        let MachineName { group, set, name } = self;
        let text = match set {
            Some(set) => format!("{group}/{set}/{name}"),
            None => format!("{group}/{name}"),
        };
        text.parse().ok()
    }

    /// Below the subscription.
    pub fn path(&self) -> String {
        let MachineName { group, set, name } = self;
        let set = set.as_ref().map(|set| format!("virtualMachineScaleSets/{set}/")).unwrap_or_default();
        format!("resourceGroups/{group}/providers/Microsoft.Compute/{set}virtualMachines/{name}")
    }
}

/// A zone as topology has it, `westeurope-1`: its number means nothing without its region.
pub fn zone_of(location: &str, number: &str) -> String {
    format!("{location}-{number}")
}

/// The number of a zone.
pub fn number_of(zone: &str) -> &str {
    zone.rsplit_once('-').map_or(zone, |(_, number)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_of_another_driver_is_a_disk_of_this_group_in_any_case() {
        let read = |handle: &str| disk_of_handle(handle, "S-1", "MC_Group").map(|disk| disk.0);
        let prefix = "/subscriptions/s-1/resourceGroups/mc_group/providers/Microsoft.Compute/disks/";
        assert_eq!(read(&format!("{prefix}PVC-1.x")), Some("pvc-1.x".to_owned()));
        assert_eq!(read(&format!("{}pvc-1", prefix.to_uppercase())), Some("pvc-1".to_owned()));
        for handle in [
            prefix,
            &format!("{prefix}a/b"),
            &prefix[1..],
            "/subscriptions/s-2/resourceGroups/mc_group/providers/Microsoft.Compute/disks/d",
            "/subscriptions/s-1/resourceGroups/mc_other/providers/Microsoft.Compute/disks/d",
            "/subscriptions/s-1/resourceGroups/mc_group/providers/Microsoft.Compute/snapshots/d",
            "az:pvc-1",
            "/subscriptions/s-1/resourceGroups/mc_group/providers/Microsoft.Comput\u{e9}",
        ] {
            assert_eq!(read(handle), None, "{handle}");
        }
    }

    #[test]
    fn resource_ids_are_read_in_any_case() {
        let id = "/subscriptions/S/resourceGroups/MC_Group/providers/Microsoft.Compute/disks/Longshore-1";
        assert_eq!(disk_in(id, "mc_group"), Some(DiskId("longshore-1".to_owned())));
        let other = disk_in(id, "other").expect("a disk");
        assert!(!is_disk(&other.0), "{other}");
        assert_eq!(disk_in("/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/disks/../x", "g"), None);
        let machine =
            MachineName::in_id("/subscriptions/s/resourceGroups/MC_G/providers/Microsoft.Compute/virtualMachines/Node-1");
        let machine = machine.expect("a machine");
        let node = machine.node().expect("a node");
        assert_eq!(node.as_str(), "mc_g/node-1");
        assert_eq!(MachineName::parse(node.as_str()), Some(machine));
        let id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/aks/virtualMachines/3";
        let member = MachineName::in_id(id).expect("a machine");
        assert_eq!(member.node().expect("a node").as_str(), "g/aks/3");
        assert_eq!(member.path(), "resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/aks/virtualMachines/3");
        for node in ["", "worker", "g/", "g/../x", "g/n?x", "a/b/c/d", "g/.."] {
            assert_eq!(MachineName::parse(node), None, "{node}");
        }
    }

    #[test]
    fn zone_has_its_region() {
        assert_eq!(zone_of("westeurope", "1"), "westeurope-1");
        assert_eq!(number_of("westeurope-1"), "1");
    }
}

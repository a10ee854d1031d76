//! Azure's words made those of all clouds.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use crate::backend::cloud::{
    Attachment, AttachmentState, CloudSnapshot, CloudSnapshotId, DeviceAddress, Disk, DiskId, DiskSource, DiskState, Instance,
    MachineState, Operation, OperationChange, OperationId, OperationState, SnapshotState, Zones,
};
use crate::volume::{Bytes, NodeId};

use super::api;
use super::limits;
use super::names::{self, MachineName};
use super::parameters::{Caching, DiskSettings};
use super::record;
use super::skus::{Sku, own_tier};

const GIB: u64 = 1 << 30;
/// On a disk: what a host is to cache of it, where that is anything. Only an attachment has it in Azure.
pub(super) const CACHING: &str = "longshore.dev/caching";

/// Machines that were looked at, by name; `None` is one that does not exist.
pub(super) type Machines = BTreeMap<MachineName, Option<api::Machine>>;

/// Whole GiB, rounded up. (The API calls them GB.)
pub(super) fn gib(capacity: Bytes) -> u64 {
    capacity.0.div_ceil(GIB)
}

/// Who has a disk, by its own word: also a machine that was deleted a moment ago.
pub(super) fn holders(disk: &api::Disk) -> Vec<MachineName> {
    let mut all: Vec<MachineName> =
        disk.managed_by.iter().chain(&disk.managed_by_extended).filter_map(|id| MachineName::in_id(id)).collect();
    all.sort();
    all.dedup();
    all
}

/// `machines` are those that have it; one that was not looked at is taken to have it.
pub(super) fn disk(found: api::Disk, machines: &Machines) -> Disk {
    let id = DiskId(found.name.to_ascii_lowercase());
    let holders = holders(&found);
    let properties = found.properties;
    // With several holders it is not known whose time it is.
    let since = properties.last_ownership_update_time.filter(|_| holders.len() == 1);
    let attachments: Vec<Attachment> = holders
        .iter()
        .filter_map(|holder| {
            let (state, slot) = match machines.get(holder) {
                Some(Some(machine)) => attachment(&id, holder, machine),
                // Not looked at; or deleted, which decides elsewhere.
                None | Some(None) => (AttachmentState::Attached, String::new()),
            };
            Some(Attachment { instance: holder.node()?, device: DeviceAddress::Slot(slot), state, since })
        })
        .collect();
    let is_made = !properties.disk_state.is_empty();
    let state = match (properties.provisioning_state.as_str(), properties.disk_state.as_str()) {
        ("Deleting", _) => DiskState::Deleting,
        ("Failed" | "Canceled", _) if !is_made => DiskState::Failed,
        ("Creating", _) => DiskState::Creating,
        (_, _) if !attachments.is_empty() => DiskState::InUse,
        (_, "Unattached" | "Attached" | "Reserved" | "Frozen") => DiskState::Available,
        (_, "ActiveSAS" | "ActiveSASFrozen" | "ReadyToUpload" | "ActiveUpload") => DiskState::Unusable,
        _ => DiskState::Creating,
    };
    let capacity = Bytes(properties.disk_size_gb.saturating_mul(GIB));
    // A type that is not known here is taken for the most usual one.
    let sku = Sku::named(&found.sku.name).unwrap_or_default();
    let settings = DiskSettings {
        sku,
        // The API has them of all disks.
        iops: properties.iops.filter(|_| sku.has_rates()),
        mbps: properties.mbps.filter(|_| sku.has_rates()),
        // Azure tells the tier of all such disks: that of the size is as none.
        tier: properties.tier.filter(|tier| sku.has_tiers() && tier != own_tier(capacity)),
        bursting: properties.bursting_enabled,
        logical_sector_size: properties.creation_data.logical_sector_size,
        disk_encryption_set_id: properties.encryption.disk_encryption_set_id,
        max_shares: properties.max_shares.unwrap_or(1),
        // What is only said when it is made.
        ..DiskSettings::default()
    };
    Disk {
        name: Some(id.0.clone()),
        id,
        state,
        capacity,
        zones: found.zones.iter().filter(|_| !sku.is_in_all_zones()).map(|zone| names::zone_of(&found.location, zone)).collect(),
        site: None,
        tags: record::tags(&found.tags),
        attachments,
        source: source(&properties.creation_data),
        multi_attach: settings.max_shares > 1,
        settings: serde_json::to_value(settings).unwrap_or_default(),
        created: properties.time_created,
    }
}

/// How a machine has a disk that says to be its. What a machine lists is what is to be: whether that is so, only its instance view says
/// while it changes, or after a change that failed (azuredisk-csi-driver issue 780).
fn attachment(disk: &DiskId, holder: &MachineName, machine: &api::Machine) -> (AttachmentState, String) {
    let Some(listed) = listed(disk, machine) else { return (AttachmentState::Detaching, String::new()) };
    let slot = listed.lun.to_string();
    let properties = &machine.properties;
    let is_there = || {
        let seen = properties.instance_view.disks.iter().find(|seen| seen.name.eq_ignore_ascii_case(&listed.name));
        seen.is_some_and(|seen| seen.statuses.iter().any(|status| status.code == "ProvisioningState/succeeded"))
    };
    let state = match properties.provisioning_state.as_str() {
        // After a change that failed it stays so, and nothing detaches it, nor may it be used: the next change may detach it.
        state if listed.to_be_detached && has_failed(state) => AttachmentState::Attaching,
        _ if listed.to_be_detached => AttachmentState::Detaching,
        "Succeeded" | "Deleting" => AttachmentState::Attached,
        _ if is_there() => AttachmentState::Attached,
        state => {
            tracing::debug!(%disk, machine = holder.name, state, "it is listed, and not there yet");
            AttachmentState::Attaching
        }
    };
    (state, slot)
}

/// Whether the last change of a machine failed, by its provisioning state.
fn has_failed(state: &str) -> bool {
    matches!(state, "Failed" | "Canceled")
}

fn listed<'a>(disk: &DiskId, machine: &'a api::Machine) -> Option<&'a api::DataDisk> {
    let path = format!("/disks/{disk}");
    machine.properties.storage_profile.data_disks.iter().find(|listed| {
        let id = listed.managed_disk.as_ref().map(|managed| managed.id.to_ascii_lowercase()).unwrap_or_default();
        id.ends_with(&path)
    })
}

fn source(data: &api::CreationData) -> DiskSource {
    let id = data.source_resource_id.as_deref().unwrap_or_default();
    if let Some(snapshot) = names::snapshot_in(id) {
        return DiskSource::Snapshot(CloudSnapshotId(snapshot));
    }
    if data.create_option == "Copy" {
        return DiskSource::Disk(DiskId(names::last(id).to_ascii_lowercase()));
    }
    // An image, an upload: it is not empty, whatever it was made of.
    match data.create_option.as_str() {
        "Empty" => DiskSource::Empty,
        other => DiskSource::Snapshot(CloudSnapshotId(format!("other-{other}"))),
    }
}

pub(super) fn snapshot(found: api::Snapshot) -> CloudSnapshot {
    let properties = found.properties;
    let percent = properties.completion_percent;
    let state = match properties.provisioning_state.as_str() {
        "Failed" | "Canceled" => SnapshotState::Failed,
        // Copied in the background, which one of an older API does not tell of.
        "Succeeded" if percent.is_none_or(|percent| percent >= 100.0) => SnapshotState::Completed,
        _ => SnapshotState::Pending,
    };
    let source = properties.creation_data.source_resource_id.unwrap_or_default();
    let name = found.name.to_ascii_lowercase();
    CloudSnapshot {
        id: CloudSnapshotId(name.clone()),
        name: Some(name),
        disk: DiskId(names::last(&source).to_ascii_lowercase()),
        state,
        capacity: Bytes(properties.disk_size_gb.saturating_mul(GIB)),
        created: properties.time_created.unwrap_or(UNIX_EPOCH),
        progress: if state == SnapshotState::Completed { 100 } else { percent.unwrap_or_default().clamp(0.0, 99.0) as u8 },
        tags: record::tags(&found.tags),
    }
}

pub(super) fn instance(found: &api::Machine, id: &NodeId, group: &str) -> Instance {
    let properties = &found.properties;
    let says = |code: &str| properties.instance_view.statuses.iter().any(|status| status.code.eq_ignore_ascii_case(code));
    let state = match properties.provisioning_state.as_str() {
        "Deleting" => MachineState::BeingDeleted,
        _ if says("HibernationState/Hibernated") => MachineState::Hibernated,
        _ if says("PowerState/deallocated") || says("PowerState/deallocating") => MachineState::Deallocated,
        _ if says("PowerState/stopped") || says("PowerState/stopping") => MachineState::Stopped,
        "Failed" => MachineState::Failed,
        _ => MachineState::Running,
    };
    let disks = properties.storage_profile.data_disks.iter().map(|disk| {
        let managed = disk.managed_disk.as_ref().and_then(|managed| names::disk_in(&managed.id, group));
        (disk.lun.to_string(), managed.unwrap_or_else(|| DiskId(format!("unmanaged/{}", disk.name))))
    });
    Instance {
        id: id.clone(),
        zone: found.zones.first().map(|zone| names::zone_of(&found.location, zone)),
        site: None,
        kind: properties.hardware_profile.vm_size.clone(),
        state,
        attached: disks.collect(),
        limit: limits::of_size(&properties.hardware_profile.vm_size),
        cards: BTreeMap::new(),
    }
}

/// What is under way about a disk, as far as the descriptions of it and of its machines say: Azure has no list of operations. A disk that is
/// its machine's and that the machine does not list any more is being detached, by whomever.
pub(super) fn operations_of(found: &api::Disk, machines: &Machines) -> Vec<Operation> {
    let id = DiskId(found.name.to_ascii_lowercase());
    let running = |action: &str, changes: OperationChange| Operation {
        id: OperationId(format!("{action}/{id}")),
        disks: vec![id.clone()],
        changes,
        action: action.to_owned(),
        state: OperationState::Running,
    };
    let properties = &found.properties;
    let mut all = Vec::new();
    match properties.provisioning_state.as_str() {
        "Creating" => all.push(running("create", OperationChange::Existence)),
        "Deleting" => all.push(running("delete", OperationChange::Existence)),
        "Updating" if properties.disk_state.is_empty() => all.push(running("create", OperationChange::Existence)),
        _ => {}
    }
    for (name, machine) in machines.iter().filter(|(name, _)| holders(found).contains(name)) {
        let (Some(machine), Some(node)) = (machine, name.node()) else { continue };
        let is_going = match listed(&id, machine) {
            Some(listed) => listed.to_be_detached && !has_failed(&machine.properties.provisioning_state),
            None => machine.properties.provisioning_state == "Updating",
        };
        if is_going {
            all.push(running("detach", OperationChange::Attachment(node)));
        }
    }
    all
}

/// What an attachment needs of a disk's description.
pub(super) fn caching(disk: &Disk) -> Caching {
    match disk.tags.get(CACHING).map(String::as_str) {
        Some("ReadOnly") => Caching::ReadOnly,
        _ => Caching::None,
    }
}

/// One zone, as a request has it; none for a disk that any machine can have attached.
pub(super) fn zone_numbers(zones: &Zones) -> Vec<String> {
    zones.iter().map(|zone| names::number_of(zone).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const ID: &str = "/subscriptions/s/resourceGroups/G/providers/Microsoft.Compute";

    fn read_disk(more: Value) -> api::Disk {
        let mut all = json!({"name": "Longshore-1", "location": "westeurope", "zones": ["2"], "sku": {"name": "Premium_LRS"},
            "tags": {"longshore.dev.cluster": "c"}, "managedBy": format!("{ID}/virtualMachines/VM"),
            "properties": {"diskSizeGB": 10, "provisioningState": "Succeeded", "diskState": "Attached", "diskIOPSReadWrite": 500,
                "creationData": {"createOption": "Empty"}}});
        for (key, value) in more.as_object().expect("a map") {
            match key.as_str() {
                "managedBy" | "zones" | "sku" => all[key] = value.clone(),
                _ => all["properties"][key] = value.clone(),
            }
        }
        serde_json::from_value(all).expect("a disk")
    }

    fn machine(state: &str, disks: Value, seen: &[&str]) -> Machines {
        let view: Vec<Value> =
            seen.iter().map(|name| json!({"name": name, "statuses": [{"code": "ProvisioningState/succeeded"}]})).collect();
        let machine = json!({"zones": ["2"], "location": "westeurope", "properties": {"provisioningState": state,
            "hardwareProfile": {"vmSize": "Standard_D4s_v5"}, "storageProfile": {"dataDisks": disks},
            "instanceView": {"statuses": [{"code": "PowerState/running"}], "disks": view}}});
        let name = MachineName::parse("g/vm").expect("a name");
        Machines::from([(name, Some(serde_json::from_value(machine).expect("a machine")))])
    }

    fn on_lun_5(going: bool) -> Value {
        json!([{"lun": 5, "name": "longshore-1", "toBeDetached": going, "managedDisk": {"id": format!("{ID}/disks/LONGSHORE-1")}}])
    }

    #[test]
    fn disk_is_what_the_api_describes() {
        let plain = disk(read_disk(json!({})), &machine("Succeeded", on_lun_5(false), &[]));
        assert_eq!((plain.id.0.as_str(), plain.state, plain.capacity), ("longshore-1", DiskState::InUse, Bytes(10 * GIB)));
        assert_eq!((plain.zones.first().map(String::as_str), plain.tags.len()), (Some("westeurope-2"), 1));
        assert_eq!(plain.attachments[0].instance.as_str(), "g/vm");
        assert_eq!(plain.attachments[0].device, DeviceAddress::Slot("5".to_owned()));
        assert_eq!(DiskSettings::read(&plain.settings).expect("settings").iops, None);
        let free = |more: Value| {
            let mut all = json!({"managedBy": null, "diskState": "Unattached"});
            all.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            disk(read_disk(all), &Machines::new())
        };
        for (more, state) in [
            (json!({}), DiskState::Available),
            (json!({"provisioningState": "Creating"}), DiskState::Creating),
            (json!({"provisioningState": "Updating", "diskState": ""}), DiskState::Creating),
            (json!({"provisioningState": "Failed", "diskState": ""}), DiskState::Failed),
            // A change of it failed, and it is there.
            (json!({"provisioningState": "Failed"}), DiskState::Available),
            (json!({"provisioningState": "Deleting"}), DiskState::Deleting),
            (json!({"diskState": "ActiveSAS"}), DiskState::Unusable),
        ] {
            assert_eq!(free(more.clone()).state, state, "{more}");
        }
        assert!(free(json!({"sku": {"name": "Premium_ZRS"}})).zones.is_empty());
        let source = |option: &str, of: &str| {
            free(json!({"creationData": {"createOption": option, "sourceResourceId": format!("{ID}/{of}")}})).source
        };
        assert_eq!(source("Copy", "snapshots/S"), DiskSource::Snapshot(CloudSnapshotId("s".to_owned())));
        assert_eq!(source("Copy", "disks/D"), DiskSource::Disk(DiskId("d".to_owned())));
        assert_ne!(source("FromImage", "images/i"), DiskSource::Empty);
    }

    #[test]
    fn goal_of_a_machine_is_not_what_is() {
        let state = |machines: &Machines| disk(read_disk(json!({})), machines).attachments[0].state;
        for (of, disks, seen, expected) in [
            ("Succeeded", on_lun_5(false), &[][..], AttachmentState::Attached),
            ("Updating", on_lun_5(false), &[], AttachmentState::Attaching),
            ("Updating", on_lun_5(false), &["longshore-1"], AttachmentState::Attached),
            ("Failed", on_lun_5(false), &[], AttachmentState::Attaching),
            ("Succeeded", on_lun_5(true), &["longshore-1"], AttachmentState::Detaching),
            ("Failed", on_lun_5(true), &["longshore-1"], AttachmentState::Attaching),
            ("Canceled", on_lun_5(true), &[], AttachmentState::Attaching),
            ("Updating", json!([]), &[], AttachmentState::Detaching),
        ] {
            assert_eq!(state(&machine(of, disks.clone(), seen)), expected, "{of} {disks}");
        }
        // A machine that is gone keeps its disks for a while, by their word.
        let gone = Machines::from([(MachineName::parse("g/vm").expect("a name"), None)]);
        assert_eq!(state(&gone), AttachmentState::Attached);
    }

    #[test]
    fn detachment_of_anyone_is_seen() {
        let of = |machines: &Machines| operations_of(&read_disk(json!({})), machines).len();
        assert_eq!(of(&machine("Updating", json!([]), &[])), 1);
        assert_eq!(of(&machine("Succeeded", on_lun_5(true), &[])), 1);
        assert_eq!(of(&machine("Updating", on_lun_5(false), &[])), 0);
        assert_eq!(of(&machine("Failed", on_lun_5(true), &[])), 0, "it has ended");
        let made = read_disk(json!({"managedBy": null, "provisioningState": "Creating", "diskState": ""}));
        assert_eq!(operations_of(&made, &Machines::new())[0].changes, OperationChange::Existence);
    }

    #[test]
    fn machine_has_its_slots_and_its_state() {
        let machines = machine("Succeeded", on_lun_5(false), &[]);
        let found = machines.values().next().cloned().flatten().expect("a machine");
        let node: NodeId = "g/vm".parse().expect("a node");
        let seen = instance(&found, &node, "g");
        assert_eq!((seen.zone.as_deref(), seen.limit, seen.state), (Some("westeurope-2"), Some(8), MachineState::Running));
        assert_eq!(seen.attached["5"], DiskId("longshore-1".to_owned()));
        assert_eq!(instance(&found, &node, "other").attached["5"], DiskId("g/longshore-1".to_owned()));
    }

    #[test]
    fn snapshot_is_ready_with_all_of_its_data() {
        let read = |state: &str, percent: Value| {
            let found = json!({"name": "s", "properties": {"diskSizeGB": 1, "provisioningState": state, "completionPercent": percent,
                "creationData": {"createOption": "Copy", "sourceResourceId": format!("{ID}/disks/D")}}});
            snapshot(serde_json::from_value(found).expect("a snapshot"))
        };
        assert_eq!((read("Succeeded", json!(40.5)).state, read("Succeeded", json!(40.5)).progress), (SnapshotState::Pending, 40));
        assert_eq!(
            (read("Succeeded", json!(100)).state, read("Succeeded", Value::Null).state),
            (SnapshotState::Completed, SnapshotState::Completed)
        );
        assert_eq!((read("Failed", json!(100)).state, read("Failed", json!(100)).disk.0.as_str()), (SnapshotState::Failed, "d"));
    }
}

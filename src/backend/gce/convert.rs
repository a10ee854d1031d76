//! The words of Compute Engine's API made those of all clouds.

use std::time::UNIX_EPOCH;

use crate::backend::cloud::{
    Attachment, AttachmentState, CloudErrorKind, CloudSnapshot, CloudSnapshotId, DeviceAddress, Disk, DiskId, DiskSource,
    DiskState, Instance, MachineState, Operation, OperationChange, OperationId, OperationState, Refusal, SnapshotState, Zones,
    tags,
};
use crate::volume::Bytes;

use super::api::{self, is_about};
use super::kinds::Kind;
use super::names::{self, InstanceName, Place};
use super::parameters::{DiskSettings, MANY_READERS, MANY_WRITERS};
use super::record::{FOR_IMAGE, INSTANT, Record};

const GIB: u64 = 1 << 30;

/// Whole GiB, rounded up. (The API calls them GB.)
pub(super) fn gib(capacity: Bytes) -> u64 {
    capacity.0.div_ceil(GIB)
}

pub(super) fn place_of(disk: &api::Disk) -> Option<Place> {
    let zone = disk.zone.as_deref().map(|zone| Place::Zone(names::last(zone).to_owned()));
    zone.or_else(|| disk.region.as_deref().map(|region| Place::Region(names::last(region).to_owned())))
}

/// Those whose machines can have it attached.
pub(super) fn zones_of(disk: &api::Disk, place: &Place) -> Zones {
    match place {
        Place::Zone(zone) => [zone.clone()].into(),
        Place::Region(_) => disk.replica_zones.iter().map(|zone| names::last(zone).to_owned()).collect(),
    }
}

/// `None` for one without a place.
pub(super) fn disk(disk: api::Disk) -> Option<Disk> {
    let id = names::disk_id(&place_of(&disk)?, disk.id);
    disk_called(disk, &id)
}

/// As `disk`, by the id with which it was asked for.
pub(super) fn disk_called(disk: api::Disk, id: &DiskId) -> Option<Disk> {
    let (place, id) = (place_of(&disk)?, id.clone());
    let zones = zones_of(&disk, &place);
    // With several users it is not known whose time it is.
    let since = disk.last_attach_timestamp.filter(|_| disk.users.len() == 1);
    let attachment = |user: &String| {
        let instance = InstanceName::in_url(user)?.node()?;
        let device = DeviceAddress::Identity(names::device_name(&id));
        Some(Attachment { instance, device, state: AttachmentState::Attached, since })
    };
    let attachments: Vec<Attachment> = disk.users.iter().filter_map(attachment).collect();
    let state = match disk.status.as_str() {
        "READY" if attachments.is_empty() => DiskState::Available,
        "READY" => DiskState::InUse,
        "FAILED" => DiskState::Failed,
        "DELETING" => DiskState::Deleting,
        // CREATING, RESTORING, and what nobody knows is waited out.
        _ => DiskState::Creating,
    };
    let settings = DiskSettings {
        kind: Kind::named(names::last(&disk.kind)).unwrap_or_default(),
        iops: disk.provisioned_iops,
        throughput: disk.provisioned_throughput,
        kms_key: kms_key(disk.disk_encryption_key.as_ref()),
        is_confidential: disk.enable_confidential_compute,
        access_mode: disk.access_mode.clone(),
        ..DiskSettings::default()
    };
    let (source, multi_attach) = (source(&disk), is_for_several(disk.access_mode.as_deref()));
    Some(Disk {
        name: Some(disk.name),
        state,
        capacity: Bytes(disk.size_gb.saturating_mul(GIB)),
        zones,
        site: None,
        tags: Record::tags(&disk.description, &disk.labels),
        attachments,
        source,
        settings: serde_json::to_value(settings).unwrap_or_default(),
        multi_attach,
        created: disk.creation_timestamp,
        id,
    })
}

pub(super) fn is_for_several(access_mode: Option<&str>) -> bool {
    matches!(access_mode, Some(MANY_WRITERS | MANY_READERS))
}

/// As it was asked for: the API adds the version that it used.
pub(super) fn kms_key(key: Option<&api::EncryptionKey>) -> Option<String> {
    let name = key?.kms_key_name.as_deref()?;
    Some(name.split("/cryptoKeyVersions/").next().unwrap_or(name).to_owned())
}

fn source(disk: &api::Disk) -> DiskSource {
    if let Some(snapshot) = &disk.source_snapshot_id {
        return DiskSource::Snapshot(CloudSnapshotId(snapshot.clone()));
    }
    if let Some(number) = &disk.source_disk_id {
        let place = disk.source_disk.as_deref().and_then(names::place_in);
        return DiskSource::Disk(place.map_or_else(|| DiskId(number.clone()), |place| names::disk_id(&place, number)));
    }
    if let Some(image) = &disk.source_image_id {
        return DiskSource::Snapshot(names::snapshot_of_image(image));
    }
    // It is not empty, whatever it was made of.
    let other = disk.source_instant_snapshot_id.as_ref();
    other.map_or(DiskSource::Empty, |other| DiskSource::Snapshot(CloudSnapshotId(format!("instant-{other}"))))
}

pub(super) fn snapshot(snapshot: api::Snapshot) -> CloudSnapshot {
    let place = names::place_in(&snapshot.source_disk);
    let tags = Record::tags(&snapshot.description, &snapshot.labels);
    // Its source is known as its volume's id says: by name where another program made it.
    let is_by_name = tags::is_of_existing_disk(&tags);
    let called = if is_by_name { names::last(&snapshot.source_disk) } else { &snapshot.source_disk_id };
    let disk = place.map_or_else(|| DiskId(snapshot.source_disk_id.clone()), |place| names::disk_id(&place, called));
    let state = match snapshot.status.as_str() {
        "READY" => SnapshotState::Completed,
        "FAILED" => SnapshotState::Failed,
        // CREATING, UPLOADING, DELETING.
        _ => SnapshotState::Pending,
    };
    let state = if is_for_image(&snapshot) { state.of_unfinished() } else { state };
    CloudSnapshot {
        id: CloudSnapshotId(snapshot.id.to_string()),
        name: Some(snapshot.name),
        disk,
        state,
        capacity: Bytes(snapshot.disk_size_gb.unwrap_or_default().saturating_mul(GIB)),
        created: snapshot.creation_timestamp.unwrap_or(UNIX_EPOCH),
        progress: if state == SnapshotState::Completed { 100 } else { 0 },
        tags,
    }
}

/// Whether an image is made of a snapshot, which is deleted then.
pub(super) fn is_for_image(snapshot: &api::Snapshot) -> bool {
    snapshot.labels.contains_key(FOR_IMAGE)
}

/// An image, as the snapshot that it is; `has_temporary`: the snapshot that it was made of is there.
pub(super) fn image(image: api::Snapshot, has_temporary: bool) -> CloudSnapshot {
    let tags = Record::tags(&image.description, &image.labels);
    let state = match image.status.as_str() {
        "READY" if !has_temporary => SnapshotState::Completed,
        "FAILED" => SnapshotState::FailedUnfinished,
        // PENDING, DELETING.
        _ => SnapshotState::Unfinished,
    };
    let instant = tags.get(INSTANT).and_then(|text| humantime::parse_rfc3339(text).ok());
    CloudSnapshot {
        id: names::snapshot_of_image(image.id),
        name: Some(image.name),
        // It names the snapshot that it was made of, and not that one's source.
        disk: tags::source_disk(&tags).unwrap_or_else(|| DiskId(String::new())),
        state,
        capacity: Bytes(image.disk_size_gb.unwrap_or_default().saturating_mul(GIB)),
        created: instant.or(image.creation_timestamp).unwrap_or(UNIX_EPOCH),
        progress: if state == SnapshotState::Completed { 100 } else { 0 },
        tags,
    }
}

/// `None` for a machine whose name is none.
pub(super) fn instance(found: &api::Instance, asked: &InstanceName, limit: u64) -> Option<Instance> {
    let state = match found.status.as_str() {
        // Stopped, for all that it is called.
        "TERMINATED" | "STOPPED" | "STOPPING" | "PENDING_STOP" => MachineState::Stopped,
        "SUSPENDED" | "SUSPENDING" => MachineState::Hibernated,
        "DEPROVISIONING" => MachineState::BeingDeleted,
        _ => MachineState::Running,
    };
    // A local disk has no source, and takes no room.
    let persistent = found.disks.iter().filter(|disk| !disk.source.is_empty());
    let attached = persistent.map(|disk| {
        let place = names::place_in(&disk.source).unwrap_or(Place::Zone(asked.zone.clone()));
        let number = names::number_in(&disk.device_name).map(|number| number.to_string());
        (disk.device_name.clone(), names::disk_id(&place, number.unwrap_or_else(|| names::last(&disk.source).to_owned())))
    });
    Some(Instance {
        id: asked.node()?,
        zone: Some(asked.zone.clone()),
        site: None,
        kind: names::last(&found.machine_type).to_owned(),
        state,
        attached: attached.collect(),
        limit: Some(limit),
        cards: std::collections::BTreeMap::new(),
    })
}

/// Where an operation is asked for: `zones/Z/operations/N`.
pub(super) fn operation_id(operation: &api::Operation) -> OperationId {
    let place = operation.zone.as_deref().map(|zone| Place::Zone(names::last(zone).to_owned()));
    let place = place.or_else(|| operation.region.as_deref().map(|region| Place::Region(names::last(region).to_owned())));
    let scope = place.map_or_else(|| "global".to_owned(), |place| place.path());
    OperationId(format!("{scope}/operations/{}", operation.name))
}

/// `disks` are those that are asked about; `None` where it is about none of them.
pub(super) fn operation(found: &api::Operation, disks: &[DiskId]) -> Option<Operation> {
    let changes = match found.operation_type.as_str() {
        "attachDisk" | "detachDisk" => match InstanceName::in_url(&found.target_link).and_then(|name| name.node()) {
            Some(node) => OperationChange::Attachment(node),
            None => OperationChange::Existence,
        },
        "insert" | "delete" => OperationChange::Existence,
        _ => OperationChange::Other,
    };
    let is_of = |disk: &&DiskId| match &changes {
        // Its target is the machine; the disk is in the request's id.
        OperationChange::Attachment(_) => found.client_operation_id.as_deref().is_some_and(|request| is_about(request, &disk.0)),
        _ => names::parse_disk(disk).is_some_and(|(_, called)| {
            let number = found.target_id.as_deref().and_then(|number| number.parse().ok());
            number.is_some_and(|number| called.is(number, names::last(&found.target_link)))
        }),
    };
    let about: Vec<DiskId> = disks.iter().filter(is_of).cloned().collect();
    if about.is_empty() && !disks.is_empty() {
        return None;
    }
    Some(Operation { id: operation_id(found), disks: about, changes, action: found.operation_type.clone(), state: state(found) })
}

fn state(found: &api::Operation) -> OperationState {
    if !found.is_done() {
        return OperationState::Running;
    }
    let action = action(&found.operation_type);
    let Some((because, code, message)) = found.failure(action) else { return OperationState::Done };
    OperationState::Failed(Box::new(Refusal {
        because: because.unwrap_or(CloudErrorKind::Unavailable),
        action,
        code: if code.is_empty() { "operation failed".to_owned() } else { code },
        message,
        request_id: Some(found.name.clone()),
        // Nothing is concluded from one that was cancelled, ended without a code, or by a failure of the cloud.
        maybe_done: because.is_none_or(|because| because == CloudErrorKind::Unavailable),
        retry_after: None,
    }))
}

/// The request that begins operations of this type.
fn action(operation_type: &str) -> &'static str {
    match operation_type {
        "attachDisk" => "instances.attachDisk",
        "detachDisk" => "instances.detachDisk",
        "insert" => "insert",
        "delete" => "delete",
        "setLabels" => "setLabels",
        "update" | "resize" => "disks.update",
        _ => "operation",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_disk(more: Value) -> Disk {
        let mut all = json!({"id": "7", "name": "d", "status": "READY", "sizeGb": "10",
            "type": "https://www.googleapis.com/compute/v1/projects/p/zones/z-a-b/diskTypes/pd-ssd", "zone": "projects/p/zones/z-a-b"});
        all.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        disk(serde_json::from_value(all).expect("a disk")).expect("it has a place")
    }

    #[test]
    fn disk_is_what_the_api_describes() {
        let plain = read_disk(json!({"lastAttachTimestamp": "2026-11-25T01:02:03.000-08:00",
            "users": ["https://www.googleapis.com/compute/v1/projects/p/zones/z-a-b/instances/node-1"]}));
        assert_eq!((plain.id.0.as_str(), plain.state, plain.capacity), ("z-a-b_7", DiskState::InUse, Bytes(10 * GIB)));
        assert_eq!(plain.attachments[0].instance.as_str(), "projects/p/zones/z-a-b/instances/node-1");
        assert_eq!(plain.attachments[0].device, DeviceAddress::Identity("longshore-7".to_owned()));
        assert!(plain.attachments[0].since.is_some());
        for (status, state) in
            [("CREATING", DiskState::Creating), ("RESTORING", DiskState::Creating), ("FAILED", DiskState::Failed)]
        {
            assert_eq!(read_disk(json!({"status": status})).state, state);
        }
        let zones = ["projects/p/zones/z-a-b", "projects/p/zones/z-a-c"];
        let regional = read_disk(json!({"zone": null, "region": "projects/p/regions/z-a", "replicaZones": zones}));
        assert_eq!((regional.id.0.as_str(), regional.zones.len()), ("z-a_7", 2));
        assert!(read_disk(json!({"accessMode": "READ_WRITE_MANY"})).multi_attach && !plain.multi_attach);
        assert_eq!(plain.source, DiskSource::Empty);
        assert_eq!(read_disk(json!({"sourceImageId": "5"})).source, DiskSource::Snapshot(names::snapshot_of_image(5)));
        assert_ne!(read_disk(json!({"sourceInstantSnapshotId": "5"})).source, DiskSource::Empty);
        let copy = read_disk(json!({"sourceDiskId": "5", "sourceDisk": "projects/p/zones/z-a-b/disks/s"}));
        assert_eq!(copy.source, DiskSource::Disk(DiskId("z-a-b_5".to_owned())));
    }

    #[test]
    fn image_is_a_snapshot_of_the_instant_of_its_temporary_one() {
        let read = |status: &str, labels: Value| -> api::Snapshot {
            let description = r#"{"volume":"d-z-a-b_7.data","instant":"2026-11-25T01:02:03.000Z"}"#;
            let made = json!({"id": "9", "name": "n", "status": status, "diskSizeGb": "10", "labels": labels,
                "description": description, "creationTimestamp": "2026-11-25T02:00:00.000-00:00"});
            serde_json::from_value(made).expect("an image")
        };
        for (status, has_temporary, state) in [
            ("PENDING", true, SnapshotState::Unfinished),
            ("READY", true, SnapshotState::Unfinished),
            ("READY", false, SnapshotState::Completed),
            ("FAILED", true, SnapshotState::FailedUnfinished),
            ("DELETING", false, SnapshotState::Unfinished),
        ] {
            assert_eq!(image(read(status, json!({})), has_temporary).state, state, "{status}");
        }
        let whole = image(read("READY", json!({})), false);
        assert_eq!((whole.id.0.as_str(), whole.disk.0.as_str(), whole.capacity), ("image-9", "z-a-b_7", Bytes(10 * GIB)));
        assert_eq!(humantime::format_rfc3339(whole.created).to_string(), "2026-11-25T01:02:03Z");
        let temporary = |status: &str| snapshot(read(status, json!({FOR_IMAGE: "true"}))).state;
        assert_eq!((temporary("READY"), temporary("FAILED")), (SnapshotState::Unfinished, SnapshotState::FailedUnfinished));
        assert_eq!(snapshot(read("READY", json!({}))).state, SnapshotState::Completed);
    }

    #[test]
    fn operation_is_about_the_disk_that_its_request_names() {
        let disk = DiskId("z-a-b_7".to_owned());
        let request = api::change("instances.attachDisk", "POST", "x", &disk.0);
        let id = format!("{request:?}");
        let id = id.split("requestId\", \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a request id");
        let running = |kind: &str, more: Value| {
            let mut all =
                json!({"name": "operation-1", "status": "RUNNING", "operationType": kind, "zone": "projects/p/zones/z-a-b"});
            all.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
            serde_json::from_value::<api::Operation>(all).expect("an operation")
        };
        let target = json!({"targetLink": "projects/p/zones/z-a-b/instances/n", "targetId": "9", "clientOperationId": id});
        let found = operation(&running("detachDisk", target), std::slice::from_ref(&disk)).expect("about the disk");
        assert_eq!(found.changes, OperationChange::Attachment("projects/p/zones/z-a-b/instances/n".parse().expect("a node")));
        assert_eq!((found.id.0.as_str(), found.state), ("zones/z-a-b/operations/operation-1", OperationState::Running));
        let other = json!({"targetLink": "projects/p/zones/z-a-b/instances/n", "clientOperationId": "00000000-0000-4000-8000-000000000000"});
        assert_eq!(operation(&running("detachDisk", other), std::slice::from_ref(&disk)), None);
        assert!(operation(&running("delete", json!({"targetId": "7"})), std::slice::from_ref(&disk)).is_some());
        assert_eq!(operation(&running("delete", json!({"targetId": "8"})), std::slice::from_ref(&disk)), None);
    }

    #[test]
    fn operation_that_was_cancelled_or_has_no_code_may_be_done() {
        for (errors, because, maybe_done) in [
            (json!([{"code": "QUOTA_EXCEEDED", "message": "m"}]), CloudErrorKind::Quota, false),
            (json!([{"code": "RESOURCE_ALREADY_EXISTS", "message": "m"}]), CloudErrorKind::Exists, false),
            (json!([{"code": "OPERATION_CANCELED_BY_USER", "message": "m"}]), CloudErrorKind::Unavailable, true),
            (json!([{"code": "INTERNAL_ERROR", "message": "m"}]), CloudErrorKind::Unavailable, true),
            (json!([]), CloudErrorKind::Unavailable, true),
        ] {
            let ended = json!({"name": "o", "status": "DONE", "operationType": "insert", "error": {"errors": errors}});
            let ended: api::Operation = serde_json::from_value(ended).expect("an operation");
            let OperationState::Failed(refusal) = state(&ended) else { panic!("it failed") };
            assert_eq!((refusal.because, refusal.maybe_done), (because, maybe_done), "{refusal}");
        }
    }
}

//! The words of Cinder and Nova made those of all clouds.

use std::time::UNIX_EPOCH;

use crate::backend::cloud::tags::{BLANK, NEVER_ATTACHED, OURS};
use crate::backend::cloud::{
    Attachment, AttachmentState, CloudSnapshot, CloudSnapshotId, DeviceAddress, Disk, DiskId, DiskSource, DiskState, Instance,
    MachineState, SnapshotState, Tags, Zones,
};
use crate::volume::{Bytes, NodeId};

use super::api;
use super::parameters::DiskSettings;
use super::record;
use super::zones::ZoneMap;

/// Whole GiB, rounded up.
pub(super) fn gib(capacity: Bytes) -> u64 {
    capacity.0.div_ceil(Bytes::GIB.0)
}

fn bytes(gib: u64) -> Bytes {
    Bytes(gib.saturating_mul(Bytes::GIB.0))
}

/// Whether something runs about a volume that ends by itself, and during which it can neither be attached nor detached, nor deleted; but for
/// attachments, which are shown as such (Block Storage API v3, "Volume statuses").
pub(super) fn is_busy(status: &str) -> bool {
    const BUSY: [&str; 10] = [
        "creating",
        "downloading",
        "uploading",
        "deleting",
        "extending",
        "retyping",
        "backing-up",
        "restoring-backup",
        "reverting",
        "managing",
    ];
    BUSY.contains(&status)
}

/// Whether attachments come or go that the description of a volume does not show.
pub(super) fn is_between(volume: &api::Volume) -> bool {
    volume.multiattach || ["reserved", "attaching", "detaching"].contains(&volume.status.as_str())
}

/// `listed` is what the list of attachments has of it, where it was asked for.
pub(super) fn disk(volume: api::Volume, listed: Option<Vec<api::Attachment>>, zones: &ZoneMap) -> Disk {
    let attachments: Vec<Attachment> = match listed {
        Some(listed) => listed.into_iter().filter_map(|of| listed_attachment(of, &volume)).collect(),
        None => volume.attachments.iter().filter_map(|of| shown_attachment(of, &volume)).collect(),
    };
    let mut tags = record::tags(volume.metadata);
    let restored_of = tags.get(record::RESTORED_OF).map(|backup| record::snapshot_of_backup(backup));
    // Its metadata is that of the volume that was backed up: nothing in it is about this one. A person may have restored it, too.
    let is_its_own = match volume.description.filter(|text| record::is_restored_mark(text)) {
        Some(mark) => mark == record::restored_mark(&tags),
        None => restored_of.is_none(),
    };
    if !is_its_own {
        tags.retain(|key, _| !key.starts_with(OURS));
    }
    let settings = DiskSettings { kind: volume.volume_type, availability: volume.availability_zone.clone(), may_migrate: false };
    Disk {
        name: None,
        state: state(&volume.status, &tags, attachments.is_empty()),
        capacity: bytes(volume.size),
        zones: volume.availability_zone.filter(|_| !zones.is_any).into_iter().collect::<Zones>(),
        site: None,
        tags,
        attachments,
        source: match (volume.snapshot_id.map(CloudSnapshotId).or(restored_of), volume.source_volid) {
            (Some(snapshot), _) => DiskSource::Snapshot(snapshot),
            (None, Some(source)) => DiskSource::Disk(DiskId(source)),
            // It is not empty, whatever it was made of.
            (None, None) if volume.bootable == "true" => DiskSource::Snapshot(CloudSnapshotId("image".to_owned())),
            (None, None) => DiskSource::Empty,
        },
        settings: serde_json::to_value(settings).unwrap_or_default(),
        multi_attach: volume.multiattach,
        created: volume.created_at,
        id: DiskId(volume.id),
    }
}

fn state(status: &str, tags: &Tags, is_free: bool) -> DiskState {
    // A volume that was attached may come to be in error later (cinder-volume that does not find it when it starts): its data is there.
    let was_never_attached = tags.get(BLANK).is_none_or(|blank| blank == NEVER_ATTACHED);
    match status {
        "creating" | "downloading" => DiskState::Creating,
        "deleting" => DiskState::Deleting,
        "error" | "error_restoring" if was_never_attached && is_free => DiskState::Failed,
        _ if status.starts_with("error") => DiskState::Unusable,
        "available" => DiskState::Available,
        _ if is_free && is_busy(status) => DiskState::Available,
        // In use, reserved, and what nobody knows.
        _ => DiskState::InUse,
    }
}

/// Who has it: a server of Nova, or else a host by its name.
fn holder(server: Option<&String>, other: &str) -> Option<NodeId> {
    server.map_or(other, String::as_str).parse().ok()
}

fn shown_attachment(of: &api::VolumeAttachment, volume: &api::Volume) -> Option<Attachment> {
    let state = if volume.status == "detaching" { AttachmentState::Detaching } else { AttachmentState::Attached };
    let instance = holder(of.server_id.as_ref().or(of.host_name.as_ref()), &of.attachment_id)?;
    Some(Attachment { instance, device: DeviceAddress::Identity(volume.id.clone()), state, since: of.attached_at })
}

fn listed_attachment(of: api::Attachment, volume: &api::Volume) -> Option<Attachment> {
    let state = match of.status.as_str() {
        "detached" | "deleted" => return None,
        "attached" if volume.status == "detaching" => AttachmentState::Detaching,
        "attached" => AttachmentState::Attached,
        "error_detaching" => AttachmentState::Busy,
        // reserved, attaching, error_attaching: Nova removes what came to nothing.
        _ => AttachmentState::Attaching,
    };
    let instance = holder(of.instance.as_ref(), &of.id)?;
    Some(Attachment { instance, device: DeviceAddress::Identity(volume.id.clone()), state, since: of.attached_at })
}

pub(super) fn snapshot(snapshot: api::Snapshot) -> CloudSnapshot {
    let state = match snapshot.status.as_str() {
        "available" | "backing-up" => SnapshotState::Completed,
        _ if snapshot.status.starts_with("error") => SnapshotState::Failed,
        // creating, deleting.
        _ => SnapshotState::Pending,
    };
    let state = if snapshot.metadata.contains_key(record::FOR_BACKUP) { state.of_unfinished() } else { state };
    let progress = snapshot.progress.trim_end_matches('%').parse().unwrap_or(0);
    CloudSnapshot {
        id: CloudSnapshotId(snapshot.id),
        name: None,
        disk: DiskId(snapshot.volume_id),
        state,
        capacity: bytes(snapshot.size),
        created: snapshot.created_at.unwrap_or(UNIX_EPOCH),
        progress: if state == SnapshotState::Completed { 100 } else { progress },
        tags: record::tags(snapshot.metadata),
    }
}

/// A backup, as the snapshot that it is.
pub(super) fn backup(backup: api::Backup, has_temporary: bool) -> CloudSnapshot {
    let state = match backup.status.as_str() {
        "available" | "restoring" if !has_temporary => SnapshotState::Completed,
        "error" => SnapshotState::FailedUnfinished,
        // error_deleting: it was whole.
        status if status.starts_with("error") => SnapshotState::Failed,
        // creating, deleting.
        _ => SnapshotState::Unfinished,
    };
    CloudSnapshot {
        id: record::snapshot_of_backup(&backup.id),
        name: None,
        disk: DiskId(backup.volume_id),
        state,
        capacity: bytes(backup.size.unwrap_or_default()),
        // Of the snapshot that it is made of.
        created: backup.data_timestamp.or(backup.created_at).unwrap_or(UNIX_EPOCH),
        progress: if state == SnapshotState::Completed { 100 } else { 0 },
        tags: record::tags(backup.metadata),
    }
}

/// `None` for a server that is deleted.
pub(super) fn instance(server: api::Server, id: &NodeId, zones: &ZoneMap, limit: u64) -> Option<Instance> {
    let state = match server.status.as_str() {
        "DELETED" => return None,
        _ if server.task.as_deref() == Some("deleting") => MachineState::BeingDeleted,
        // Its memory is on disk, with what it has not written.
        "SUSPENDED" => MachineState::Hibernated,
        "SHUTOFF" | "STOPPED" | "SOFT_DELETED" | "SHELVED" => MachineState::Stopped,
        "SHELVED_OFFLOADED" => MachineState::Deallocated,
        "ERROR" => MachineState::Failed,
        _ => MachineState::Running,
    };
    Some(Instance {
        id: id.clone(),
        zone: Some(server.zone).filter(|zone| !zone.is_empty()).map(|zone| zones.of_compute(&zone)),
        site: None,
        kind: server.flavor.original_name,
        state,
        attached: server.volumes.into_iter().map(|volume| (volume.id.clone(), DiskId(volume.id))).collect(),
        limit: Some(limit),
        cards: std::collections::BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SERVER: &str = "0b3c0a54-0e0e-4d0b-8a4a-1f0c7a3a7a2b";

    fn volume(more: Value) -> api::Volume {
        let mut all = json!({"id": "1b3c", "status": "available", "size": 10, "availability_zone": "ceph", "volume_type": "ssd",
            "metadata": {"longshore.dev:volume": "a", "team": "storage"}, "attachments": [], "bootable": "false", "multiattach": false,
            "created_at": "2026-11-25T01:02:03.000000"});
        all.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        serde_json::from_value(all).expect("a volume")
    }

    fn read_disk(more: Value) -> Disk {
        disk(volume(more), None, &ZoneMap::default())
    }

    #[test]
    fn volume_is_what_cinder_describes() {
        let attached =
            json!([{"server_id": SERVER, "attachment_id": "x", "attached_at": "2026-11-25T01:02:03.000000", "host_name": null}]);
        let used = read_disk(json!({"status": "in-use", "attachments": attached}));
        assert_eq!((used.state, used.capacity, used.zones.len()), (DiskState::InUse, Bytes(10 << 30), 1));
        assert_eq!(used.tags["longshore.dev/volume"], "a");
        let place = &used.attachments[0];
        assert_eq!((place.instance.as_str(), place.state), (SERVER, AttachmentState::Attached));
        assert!(place.since.is_some() && place.device == DeviceAddress::Identity("1b3c".to_owned()));
        let going = read_disk(json!({"status": "detaching", "attachments": attached}));
        assert_eq!(going.attachments[0].state, AttachmentState::Detaching);
        // A host that is no server of Nova holds it, too.
        let bare =
            read_disk(json!({"status": "in-use", "attachments": [{"server_id": null, "host_name": "h1", "attachment_id": "x"}]}));
        assert_eq!(bare.attachments[0].instance.as_str(), "h1");
        let any = ZoneMap { is_any: true, ..ZoneMap::default() };
        assert!(disk(volume(json!({})), None, &any).zones.is_empty());
        assert_eq!(read_disk(json!({})).source, DiskSource::Empty);
        assert_ne!(read_disk(json!({"bootable": "true"})).source, DiskSource::Empty);
        assert_eq!(read_disk(json!({"source_volid": "5"})).source, DiskSource::Disk(DiskId("5".to_owned())));
    }

    #[test]
    fn volume_in_error_is_failed_only_where_nothing_was_written_to_it() {
        let blank = |value: &str| json!({"longshore.dev:volume": "a", "longshore.dev:blank": value});
        for (status, metadata, expected) in [
            ("error", blank("never-attached"), DiskState::Failed),
            ("error", json!({"longshore.dev:volume": "a", "longshore.dev:source": "snapshot/s"}), DiskState::Failed),
            ("error", blank("used"), DiskState::Unusable),
            ("error", blank("attaching-0123"), DiskState::Unusable),
            ("error_extending", blank("never-attached"), DiskState::Unusable),
            ("error_deleting", blank("never-attached"), DiskState::Unusable),
            ("creating", json!({}), DiskState::Creating),
            ("deleting", json!({}), DiskState::Deleting),
            ("extending", json!({}), DiskState::Available),
            ("reserved", json!({}), DiskState::InUse),
            ("something-new", json!({}), DiskState::InUse),
        ] {
            assert_eq!(read_disk(json!({"status": status, "metadata": metadata})).state, expected, "{status} {metadata}");
        }
        let held = json!({"status": "error", "attachments": [{"server_id": SERVER, "attachment_id": "x"}]});
        assert_eq!(read_disk(held).state, DiskState::Unusable);
    }

    /// cinder-backup puts the metadata of the volume that was backed up in place of a restored volume's own.
    #[test]
    fn restored_volume_is_not_what_anothers_metadata_says() {
        let own = json!({"longshore.dev:cluster": "c", "longshore.dev:volume": "restored", "longshore.dev:source": "snapshot/x"});
        let mark = record::restored_mark(&record::tags(serde_json::from_value(own.clone()).expect("texts")));
        let described = |metadata: &Value| read_disk(json!({"description": mark, "metadata": metadata}));
        assert_eq!(described(&own).tags["longshore.dev/volume"], "restored");
        let mut theirs = own;
        (theirs["longshore.dev:volume"], theirs["src_backup_id"]) = (json!("source"), json!("b"));
        let replaced = described(&theirs);
        let is_ours = |disk: &Disk| disk.tags.keys().any(|key| key.starts_with(OURS));
        assert_eq!((is_ours(&replaced), replaced.source), (false, DiskSource::Snapshot(record::snapshot_of_backup("b"))));
        // What a person restores has no such description.
        assert!(!is_ours(&read_disk(json!({"metadata": theirs}))));
        // A backup for which there was no cinder-backup.
        assert_eq!(read_disk(json!({"status": null})).state, DiskState::InUse);
    }

    #[test]
    fn backup_is_a_snapshot_of_the_instant_of_its_data() {
        let read = |status: &str| {
            let made = json!({"id": "b", "status": status, "size": 3, "volume_id": "v", "snapshot_id": "s",
                "data_timestamp": "2026-11-25T01:02:03.000000", "created_at": "2026-11-25T02:00:00.000000"});
            serde_json::from_value::<api::Backup>(made).expect("a backup")
        };
        for (status, state) in [
            ("creating", SnapshotState::Unfinished),
            ("available", SnapshotState::Completed),
            ("restoring", SnapshotState::Completed),
            ("deleting", SnapshotState::Unfinished),
            ("error", SnapshotState::FailedUnfinished),
            ("error_deleting", SnapshotState::Failed),
        ] {
            assert_eq!(backup(read(status), false).state, state, "{status}");
        }
        assert_eq!(backup(read("available"), true).state, SnapshotState::Unfinished, "its temporary snapshot is there");
        let whole = backup(read("available"), false);
        assert_eq!((whole.id, whole.capacity, whole.disk.0.as_str()), (record::snapshot_of_backup("b"), Bytes(3 << 30), "v"));
        assert_eq!(Some(whole.created), api::moment("2026-11-25T01:02:03.000000"));
        let of = |metadata: Value, status: &str| {
            let made = json!({"id": "s", "status": status, "size": 3, "volume_id": "v", "metadata": metadata});
            snapshot(serde_json::from_value(made).expect("a snapshot")).state
        };
        assert_eq!(of(json!({"longshore.dev:backup": "true"}), "available"), SnapshotState::Unfinished);
        assert_eq!(of(json!({"longshore.dev:backup": "true"}), "error"), SnapshotState::FailedUnfinished);
        assert_eq!(of(json!({}), "available"), SnapshotState::Completed);
    }

    #[test]
    fn attachment_that_comes_is_in_the_list_of_attachments() {
        let listed = |status: &str| {
            let of = json!([{"id": "x", "status": status, "instance": SERVER}]);
            let of: Vec<api::Attachment> = serde_json::from_value(of).expect("a list");
            disk(volume(json!({"status": "reserved"})), Some(of), &ZoneMap::default())
                .attachments
                .first()
                .map(|place| place.state)
        };
        assert_eq!(listed("reserved"), Some(AttachmentState::Attaching));
        assert_eq!(listed("attaching"), Some(AttachmentState::Attaching));
        assert_eq!(listed("attached"), Some(AttachmentState::Attached));
        assert_eq!(listed("error_detaching"), Some(AttachmentState::Busy));
        assert_eq!(listed("detached"), None);
    }

    #[test]
    fn server_is_what_nova_describes() {
        let zones = ZoneMap { is_any: false, by_compute: [("az1".to_owned(), "ceph".to_owned())].into() };
        let read = |status: &str, task: Option<&str>| {
            let server = json!({"status": status, "OS-EXT-AZ:availability_zone": "az1", "OS-EXT-STS:task_state": task,
                "os-extended-volumes:volumes_attached": [{"id": "v", "delete_on_termination": false}], "flavor": {"original_name": "m1"}});
            instance(serde_json::from_value(server).expect("a server"), &SERVER.parse().expect("a node"), &zones, 26)
        };
        let running = read("ACTIVE", None).expect("it exists");
        assert_eq!((running.zone.as_deref(), running.state, running.attached.len()), (Some("ceph"), MachineState::Running, 1));
        for (status, task, state) in [
            ("SHUTOFF", None, MachineState::Stopped),
            ("SUSPENDED", None, MachineState::Hibernated),
            ("SHELVED_OFFLOADED", None, MachineState::Deallocated),
            ("ERROR", None, MachineState::Failed),
            ("ACTIVE", Some("deleting"), MachineState::BeingDeleted),
            ("REBOOT", Some("rebooting"), MachineState::Running),
        ] {
            assert_eq!(read(status, task).expect("it exists").state, state, "{status}");
        }
        assert_eq!(read("DELETED", None), None);
    }
}

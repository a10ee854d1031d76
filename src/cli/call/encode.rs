//! The protocol's messages as JSON: the field names of csi.proto, numbers as numbers, enumerations by name, points in
//! time as RFC 3339.

use serde_json::{Value, json};

use crate::csi::volume_capability::AccessType;
use crate::csi::volume_content_source::Type as Source;
use crate::csi::{Snapshot, Topology, Volume, VolumeCapability, VolumeContentSource, VolumeGroupSnapshot, VolumeHealth};

use super::super::table;

/// A list of messages.
pub fn list<T>(messages: &[T], each: impl Fn(&T) -> Value) -> Value {
    messages.iter().map(each).collect()
}

pub fn volume(volume: &Volume) -> Value {
    json!({
        "capacity_bytes": volume.capacity_bytes,
        "volume_id": volume.volume_id,
        "volume_context": volume.volume_context,
        "content_source": volume.content_source.as_ref().map(content_source),
        "accessible_topology": list(&volume.accessible_topology, topology),
    })
}

fn content_source(source: &VolumeContentSource) -> Value {
    match &source.r#type {
        Some(Source::Snapshot(snapshot)) => json!({ "snapshot": { "snapshot_id": snapshot.snapshot_id } }),
        Some(Source::Volume(volume)) => json!({ "volume": { "volume_id": volume.volume_id } }),
        None => Value::Null,
    }
}

pub fn topology(topology: &Topology) -> Value {
    json!({ "segments": topology.segments })
}

pub fn snapshot(snapshot: &Snapshot) -> Value {
    json!({
        "size_bytes": snapshot.size_bytes,
        "snapshot_id": snapshot.snapshot_id,
        "source_volume_id": snapshot.source_volume_id,
        "creation_time": table::time(snapshot.creation_time.as_ref()),
        "ready_to_use": snapshot.ready_to_use,
        "group_snapshot_id": snapshot.group_snapshot_id,
        "accessible_topology": list(&snapshot.accessible_topology, topology),
    })
}

pub fn group(group: &VolumeGroupSnapshot) -> Value {
    json!({
        "group_snapshot_id": group.group_snapshot_id,
        "snapshots": list(&group.snapshots, snapshot),
        "creation_time": table::time(group.creation_time.as_ref()),
        "ready_to_use": group.ready_to_use,
    })
}

pub fn health(health: &VolumeHealth) -> Value {
    let entries = list(
        &health.health_statuses,
        |entry| json!({ "status": entry.status().as_str_name(), "reason": entry.reason, "message": entry.message }),
    );
    json!({ "volume_id": health.volume_id, "health_statuses": entries })
}

pub fn capability(capability: &VolumeCapability) -> Value {
    let mode = capability.access_mode.as_ref().map(|access| json!({ "mode": access.mode().as_str_name() }));
    match &capability.access_type {
        Some(AccessType::Block(_)) => json!({ "block": {}, "access_mode": mode }),
        Some(AccessType::Mount(mount)) => json!({
            "mount": {
                "fs_type": mount.fs_type,
                "mount_flags": mount.mount_flags,
                "volume_mount_group": mount.volume_mount_group,
            },
            "access_mode": mode,
        }),
        None => json!({ "access_mode": mode }),
    }
}

#[cfg(test)]
mod tests {
    use crate::csi::volume_content_source::SnapshotSource;

    use super::*;

    #[test]
    fn a_volume_has_the_protocols_field_names() {
        let source = Source::Snapshot(SnapshotSource { snapshot_id: "image:s".to_owned() });
        let shown = volume(&Volume {
            capacity_bytes: 1 << 40,
            volume_id: "image:a".to_owned(),
            volume_context: [("k".to_owned(), "v".to_owned())].into(),
            content_source: Some(VolumeContentSource { r#type: Some(source) }),
            accessible_topology: vec![Topology { segments: [("node".to_owned(), "n".to_owned())].into() }],
        });
        let wanted = json!({
            "capacity_bytes": 1_099_511_627_776_u64,
            "volume_id": "image:a",
            "volume_context": { "k": "v" },
            "content_source": { "snapshot": { "snapshot_id": "image:s" } },
            "accessible_topology": [{ "segments": { "node": "n" } }],
        });
        assert_eq!(shown, wanted);
    }
}

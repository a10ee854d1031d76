//! What the operations answer, as messages.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::backend::CapacityAnswer;
use crate::csi;
use crate::ops::controller::{Expanded, VolumeEntry};
use crate::ops::node::{NodeInfo, Stats};
use crate::ops::parameters::Parameters;
use crate::volume::{ContentSource, Extent, Group, Health, NodeId, Severity, Snapshot, Topology, Volume};

/// The protocol counts in i64; what does not fit is as large as it can say.
pub(super) fn bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) fn volume(volume: &Volume) -> csi::Volume {
    Shared::of(volume).volume(volume)
}

/// What many volumes have in common, as messages.
struct Shared<'a> {
    parameters: &'a Arc<Value>,
    topology: &'a [Topology],
    context: HashMap<String, String>,
    places: Vec<csi::Topology>,
}

impl<'a> Shared<'a> {
    fn of(volume: &'a Volume) -> Shared<'a> {
        Shared {
            parameters: &volume.parameters,
            topology: &volume.topology,
            context: Parameters::to_context(&volume.parameters).into_iter().collect(),
            places: volume.topology.iter().map(topology).collect(),
        }
    }

    fn has(&self, volume: &Volume) -> bool {
        Arc::ptr_eq(self.parameters, &volume.parameters) && self.topology == volume.topology
    }

    fn volume(&self, volume: &Volume) -> csi::Volume {
        csi::Volume {
            capacity_bytes: bytes(volume.capacity.0),
            volume_id: (&volume.id).into(),
            volume_context: self.context.clone(),
            content_source: volume.source.as_ref().map(content_source),
            accessible_topology: self.places.clone(),
        }
    }
}

fn content_source(source: &ContentSource) -> csi::VolumeContentSource {
    use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
    let source = match source {
        ContentSource::Snapshot(id) => Type::Snapshot(SnapshotSource { snapshot_id: id.to_string() }),
        ContentSource::Volume(id) => Type::Volume(VolumeSource { volume_id: id.to_string() }),
    };
    csi::VolumeContentSource { r#type: Some(source) }
}

fn topology(topology: &Topology) -> csi::Topology {
    csi::Topology { segments: topology.segments().iter().map(|(key, value)| (key.clone(), value.clone())).collect() }
}

fn node_ids(nodes: &[NodeId]) -> Vec<String> {
    nodes.iter().map(ToString::to_string).collect()
}

pub(super) fn volume_entries(entries: &[VolumeEntry]) -> Vec<csi::list_volumes_response::Entry> {
    // Most volumes have what the one before has.
    let mut last: Option<Shared<'_>> = None;
    let encoded = entries.iter().map(|VolumeEntry { volume, published }| {
        let shared = last.take().filter(|shared| shared.has(volume)).unwrap_or_else(|| Shared::of(volume));
        let status = csi::list_volumes_response::VolumeStatus { published_node_ids: node_ids(published) };
        let entry = csi::list_volumes_response::Entry { volume: Some(shared.volume(volume)), status: Some(status) };
        last = Some(shared);
        entry
    });
    encoded.collect()
}

/// `asked` is the handle by which the CO asked.
pub(super) fn volume_found(entry: &VolumeEntry, asked: &str) -> csi::ControllerGetVolumeResponse {
    let status = csi::controller_get_volume_response::VolumeStatus { published_node_ids: node_ids(&entry.published) };
    let mut volume = volume(&entry.volume);
    if entry.volume.id.is_existing() {
        asked.clone_into(&mut volume.volume_id);
    }
    csi::ControllerGetVolumeResponse { volume: Some(volume), status: Some(status) }
}

/// Confirms what was asked, as it was asked, or says why not. mutable_parameters are not among what was looked at, so they
/// are not among what is confirmed.
pub(super) fn validated(
    asked: csi::ValidateVolumeCapabilitiesRequest,
    refused: Option<String>,
) -> csi::ValidateVolumeCapabilitiesResponse {
    if let Some(message) = refused {
        return csi::ValidateVolumeCapabilitiesResponse { confirmed: None, message };
    }
    let confirmed = csi::validate_volume_capabilities_response::Confirmed {
        volume_context: asked.volume_context,
        volume_capabilities: asked.volume_capabilities,
        parameters: asked.parameters,
        mutable_parameters: Default::default(),
    };
    csi::ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() }
}

pub(super) fn capacity(answer: CapacityAnswer) -> csi::GetCapacityResponse {
    csi::GetCapacityResponse {
        available_capacity: bytes(answer.available.0),
        maximum_volume_size: Some(bytes(answer.maximum.0)),
        minimum_volume_size: Some(bytes(answer.minimum.0)),
    }
}

pub(super) fn expanded(expanded: Expanded) -> csi::ControllerExpandVolumeResponse {
    csi::ControllerExpandVolumeResponse {
        capacity_bytes: bytes(expanded.capacity.0),
        node_expansion_required: expanded.node_expansion_required,
    }
}

/// The answer to CreateSnapshot; `source` is the handle by which the CO asked.
pub(super) fn snapshot_of(taken: &Snapshot, source: String) -> csi::Snapshot {
    let mut encoded = snapshot(taken);
    if taken.source.is_existing() {
        encoded.source_volume_id = source;
    }
    encoded
}

pub(super) fn snapshot(snapshot: &Snapshot) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: bytes(snapshot.size.0),
        snapshot_id: snapshot.id.to_string(),
        source_volume_id: snapshot.source.to_string(),
        creation_time: Some(snapshot.created.into()),
        ready_to_use: snapshot.ready,
        group_snapshot_id: snapshot.group.as_ref().map(ToString::to_string).unwrap_or_default(),
        accessible_topology: snapshot.topology.iter().map(topology).collect(),
    }
}

pub(super) fn group(group: &Group) -> csi::VolumeGroupSnapshot {
    csi::VolumeGroupSnapshot {
        group_snapshot_id: group.id.to_string(),
        snapshots: group.snapshots.iter().map(snapshot).collect(),
        creation_time: Some(group.created.into()),
        ready_to_use: group.snapshots.iter().all(|snapshot| snapshot.ready),
    }
}

/// `id` is as the CO wrote it.
pub(super) fn volume_health(id: String, health: Health) -> csi::VolumeHealth {
    let entry = |problem: crate::volume::HealthProblem| csi::volume_health::VolumeHealthEntry {
        status: match problem.severity {
            Severity::Degraded => csi::VolumeHealthErrorType::Degraded,
            Severity::Inaccessible => csi::VolumeHealthErrorType::Inaccessible,
            Severity::DataLoss => csi::VolumeHealthErrorType::DataLoss,
        }
        .into(),
        reason: problem.reason.to_owned(),
        message: problem.message,
    };
    csi::VolumeHealth { volume_id: id, health_statuses: health.into_iter().map(entry).collect() }
}

/// The protocol knows two kinds of trouble with a storage system; what lost data cannot be relied on either.
pub(super) fn storage_health(health: Health) -> csi::NodeGetStorageHealthResponse {
    let entry = |problem: crate::volume::HealthProblem| csi::node_get_storage_health_response::StorageBackendHealth {
        status: match problem.severity {
            Severity::Degraded => csi::StorageHealthErrorType::StorageDegraded,
            Severity::Inaccessible | Severity::DataLoss => csi::StorageHealthErrorType::StorageUnreachable,
        }
        .into(),
        reason: problem.reason.to_owned(),
        message: problem.message,
        volume_capability: None,
    };
    csi::NodeGetStorageHealthResponse { backend_health: health.into_iter().map(entry).collect() }
}

pub(super) fn stats(stats: Stats) -> csi::NodeGetVolumeStatsResponse {
    use csi::volume_usage::Unit;
    let usage = |unit: Unit, total: u64, available: u64, used: u64| csi::VolumeUsage {
        available: bytes(available),
        total: bytes(total),
        used: bytes(used),
        unit: unit.into(),
    };
    let in_bytes = usage(Unit::Bytes, stats.total, stats.available.unwrap_or(0), stats.used.unwrap_or(0));
    let in_inodes = stats.inodes.map(|(total, available, used)| usage(Unit::Inodes, total, available, used));
    csi::NodeGetVolumeStatsResponse { usage: std::iter::once(in_bytes).chain(in_inodes).collect() }
}

pub(super) fn node_info(info: NodeInfo) -> csi::NodeGetInfoResponse {
    csi::NodeGetInfoResponse {
        node_id: info.node_id.to_string(),
        // 0 leaves it to the CO.
        max_volumes_per_node: info.limit.map_or(0, bytes),
        accessible_topology: info.topology.as_ref().map(topology),
    }
}

pub(super) fn block(extent: Extent) -> csi::BlockMetadata {
    csi::BlockMetadata { byte_offset: bytes(extent.offset), size_bytes: bytes(extent.length) }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::volume::{Bytes, HealthProblem};

    fn member(name: &str, ready: bool) -> Snapshot {
        Snapshot {
            id: format!("image:{name}").parse().expect("an id"),
            name: name.to_owned(),
            source: "image:source".parse().expect("an id"),
            size: Bytes::GIB,
            created: SystemTime::UNIX_EPOCH + Duration::from_secs(5),
            ready,
            group: Some("image:together".parse().expect("an id")),
            topology: None,
        }
    }

    #[test]
    fn a_volume_carries_its_parameters_and_its_place() {
        let encoded = volume(&Volume {
            id: "image:a".parse().expect("an id"),
            name: "a".to_owned(),
            capacity: Bytes::GIB,
            source: Some(ContentSource::Snapshot("image:s".parse().expect("an id"))),
            parameters: serde_json::json!({ "node": {}, "backend": null }).into(),
            topology: vec![Topology::from_iter([("topology.longshore.csi.dev/node".to_owned(), "n1".to_owned())])],
            for_one_node: false,
        });
        assert_eq!((encoded.volume_id.as_str(), encoded.capacity_bytes), ("image:a", 1 << 30));
        assert!(encoded.volume_context.values().any(|value| value.contains("backend")));
        assert_eq!(encoded.accessible_topology.len(), 1);
        assert!(encoded.content_source.is_some());
    }

    #[test]
    fn a_group_is_ready_when_all_its_members_are() {
        let mut together = Group {
            id: "image:together".parse().expect("an id"),
            name: "together".to_owned(),
            created: SystemTime::UNIX_EPOCH,
            snapshots: vec![member("a", true), member("b", false)],
        };
        assert!(!group(&together).ready_to_use);
        together.snapshots.pop();
        let encoded = group(&together);
        assert!(encoded.ready_to_use);
        assert_eq!(encoded.snapshots[0].group_snapshot_id, encoded.group_snapshot_id);
        assert_eq!(encoded.snapshots[0].creation_time.map(|time| time.seconds), Some(5));
    }

    #[test]
    fn health_and_statistics_keep_their_units() {
        let lost = HealthProblem { severity: Severity::DataLoss, reason: "ImageMissing", message: "gone".to_owned() };
        let entry = volume_health("image:a".to_owned(), vec![lost.clone()]).health_statuses.remove(0);
        assert_eq!(entry.status(), csi::VolumeHealthErrorType::DataLoss);
        let entry = storage_health(vec![lost]).backend_health.remove(0);
        assert_eq!(entry.status(), csi::StorageHealthErrorType::StorageUnreachable);

        let block = Stats { total: 10, available: None, used: None, inodes: None };
        assert_eq!(stats(block).usage.len(), 1);
        let mounted = Stats { total: u64::MAX, available: Some(1), used: Some(2), inodes: Some((9, 4, 5)) };
        let usage = stats(mounted).usage;
        assert_eq!(usage[0].total, i64::MAX);
        assert_eq!((usage[1].unit(), usage[1].used), (csi::volume_usage::Unit::Inodes, 5));
    }

    #[test]
    fn only_what_was_looked_at_is_confirmed() {
        let asked = csi::ValidateVolumeCapabilitiesRequest {
            volume_capabilities: vec![csi::VolumeCapability::default()],
            mutable_parameters: [("iops".to_owned(), "9".to_owned())].into(),
            ..Default::default()
        };
        let confirmed = validated(asked.clone(), None).confirmed.expect("confirmed");
        assert_eq!(confirmed.volume_capabilities.len(), 1);
        assert!(confirmed.mutable_parameters.is_empty());
        let refused = validated(asked, Some("too small".to_owned()));
        assert!(refused.confirmed.is_none() && refused.message == "too small");
    }
}

//! How CSI messages may be printed.
//!
//! Their derived `Debug` is switched off (build.rs), since many hold secrets. Those written here show only what is named:
//! a field that a later version of the protocol adds is not printed until a developer has put it into one of the groups.
//! - `{ ... }`: shown as it is;
//! - `maps { ... }`: the keys, and the values of those in [`SHOWN`]. The kubelet puts service account tokens into volume_context
//!   (CVE-2024-3744 is a driver that logged them), a target server its CHAP password into publish_context, and anyone may
//!   put anything under a key of his own;
//! - `hidden { ... }`: only how many there are. `secrets`, and `mount_flags`, which "MAY contain sensitive information".

use std::collections::HashMap;
use std::fmt;

use crate::csi;

/// Keys whose values name an object, a kind or a size, and are of no use to anybody else. A further one is hidden until it stands here.
const SHOWN: &[&str] = &[
    "csi.storage.k8s.io/ephemeral",
    "csi.storage.k8s.io/fstype",
    "csi.storage.k8s.io/pod.name",
    "csi.storage.k8s.io/pod.namespace",
    "csi.storage.k8s.io/pod.uid",
    "csi.storage.k8s.io/pv/name",
    "csi.storage.k8s.io/pvc/name",
    "csi.storage.k8s.io/pvc/namespace",
    "csi.storage.k8s.io/serviceAccount.name",
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumesnapshotcontent/name",
    "backend",
    "encryption",
    "fsType",
    "iops",
    "iqn",
    "lun",
    "onDelete",
    "pool",
    "portals",
    "preallocate",
    "server",
    "share",
    "size",
    "subDir",
    "throughput",
    "type",
];
/// Where a volume or node is.
const SHOWN_PREFIX: &str = "topology.";

/// A map of which only the values of known keys are shown.
struct Map<'a>(&'a HashMap<String, String>);

impl fmt::Debug for Map<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort_unstable();
        let mut map = f.debug_map();
        for (key, value) in sorted {
            match SHOWN.contains(&key.as_str()) || key.starts_with(SHOWN_PREFIX) {
                true => map.entry(key, value),
                false => map.entry(key, &Hidden(1)),
            };
        }
        map.finish()
    }
}

/// Stands for this many values.
struct Hidden(usize);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} hidden)", self.0)
    }
}

/// The last part of a path such as `csi::volume_capability::MountVolume`.
fn last(path: &'static str) -> &'static str {
    path.rsplit("::").next().unwrap_or(path).trim()
}

macro_rules! messages {
    ($($message:path { $($field:ident),* } $(maps { $($map:ident),* })? $(hidden { $($secret:ident),* })?;)*) => {
        $(impl fmt::Debug for $message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(last(stringify!($message)))
                    $(.field(stringify!($field), &self.$field))*
                    $($(.field(stringify!($map), &Map(&self.$map)))*)?
                    $($(.field(stringify!($secret), &Hidden(self.$secret.len())))*)?
                    .finish()
            }
        })*
    };
}

macro_rules! choices {
    ($($choice:path { $($variant:ident),* };)*) => {
        $(impl fmt::Debug for $choice {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                use $choice as Choice;
                match self {
                    $(Choice::$variant(value) => f.debug_tuple(stringify!($variant)).field(value).finish()),*
                }
            }
        })*
    };
}

macro_rules! names {
    ($($choice:path),* $(,)?) => {
        $(impl fmt::Debug for $choice {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str_name())
            }
        })*
    };
}

names! {
    csi::VolumeHealthErrorType,
    csi::StorageHealthErrorType,
    csi::BlockMetadataType,
    csi::volume_usage::Unit,
    csi::volume_capability::access_mode::Mode,
    csi::plugin_capability::service::Type,
    csi::plugin_capability::volume_expansion::Type,
    csi::controller_service_capability::rpc::Type,
    csi::node_service_capability::rpc::Type,
    csi::group_controller_service_capability::rpc::Type,
}

// What is shared by several.
messages! {
    csi::VolumeCapability { access_type, access_mode };
    csi::volume_capability::BlockVolume {};
    csi::volume_capability::MountVolume { fs_type, volume_mount_group } hidden { mount_flags };
    csi::volume_capability::AccessMode { mode };
    csi::CapacityRange { required_bytes, limit_bytes };
    csi::VolumeContentSource { r#type };
    csi::volume_content_source::SnapshotSource { snapshot_id };
    csi::volume_content_source::VolumeSource { volume_id };
    csi::TopologyRequirement { requisite, preferred };
    csi::Topology {} maps { segments };
    csi::Volume { volume_id, capacity_bytes, content_source, accessible_topology } maps { volume_context };
    csi::Snapshot { snapshot_id, source_volume_id, size_bytes, creation_time, ready_to_use, group_snapshot_id,
        accessible_topology };
    csi::VolumeGroupSnapshot { group_snapshot_id, snapshots, creation_time, ready_to_use };
    csi::VolumeHealth { volume_id, health_statuses };
    csi::volume_health::VolumeHealthEntry { status, reason, message };
    csi::VolumeUsage { unit, total, available, used };
    csi::BlockMetadata { byte_offset, size_bytes };
    csi::PluginCapability { r#type };
    csi::plugin_capability::Service { r#type };
    csi::plugin_capability::VolumeExpansion { r#type };
    csi::ControllerServiceCapability { r#type };
    csi::controller_service_capability::Rpc { r#type };
    csi::NodeServiceCapability { r#type };
    csi::node_service_capability::Rpc { r#type };
    csi::GroupControllerServiceCapability { r#type };
    csi::group_controller_service_capability::Rpc { r#type };
}

choices! {
    csi::volume_capability::AccessType { Block, Mount };
    csi::volume_content_source::Type { Snapshot, Volume };
    csi::plugin_capability::Type { Service, VolumeExpansion };
    csi::controller_service_capability::Type { Rpc };
    csi::node_service_capability::Type { Rpc };
    csi::group_controller_service_capability::Type { Rpc };
}

// Identity.
messages! {
    csi::GetPluginInfoRequest {};
    csi::GetPluginInfoResponse { name, vendor_version } maps { manifest };
    csi::GetPluginCapabilitiesRequest {};
    csi::GetPluginCapabilitiesResponse { capabilities };
    csi::ProbeRequest {};
    csi::ProbeResponse { ready };
}

// Controller.
messages! {
    csi::CreateVolumeRequest { name, capacity_range, volume_capabilities, volume_content_source, accessibility_requirements }
        maps { parameters, mutable_parameters } hidden { secrets };
    csi::CreateVolumeResponse { volume };
    csi::DeleteVolumeRequest { volume_id } hidden { secrets };
    csi::DeleteVolumeResponse {};
    csi::ControllerPublishVolumeRequest { volume_id, node_id, volume_capability, readonly } maps { volume_context }
        hidden { secrets };
    csi::ControllerPublishVolumeResponse {} maps { publish_context };
    csi::ControllerUnpublishVolumeRequest { volume_id, node_id } hidden { secrets };
    csi::ControllerUnpublishVolumeResponse {};
    csi::ValidateVolumeCapabilitiesRequest { volume_id, volume_capabilities }
        maps { volume_context, parameters, mutable_parameters } hidden { secrets };
    csi::ValidateVolumeCapabilitiesResponse { confirmed, message };
    csi::validate_volume_capabilities_response::Confirmed { volume_capabilities }
        maps { volume_context, parameters, mutable_parameters };
    csi::ListVolumesRequest { max_entries, starting_token };
    csi::ListVolumesResponse { entries, next_token };
    csi::list_volumes_response::VolumeStatus { published_node_ids };
    csi::list_volumes_response::Entry { volume, status };
    csi::ControllerListVolumeHealthRequest { max_entries, starting_token } hidden { secrets };
    csi::ControllerListVolumeHealthResponse { entries, next_token };
    csi::ControllerGetVolumeHealthRequest { volume_id } hidden { secrets };
    csi::ControllerGetVolumeHealthResponse { volume_health };
    csi::ControllerGetVolumeRequest { volume_id };
    csi::ControllerGetVolumeResponse { volume, status };
    csi::controller_get_volume_response::VolumeStatus { published_node_ids };
    csi::ControllerModifyVolumeRequest { volume_id } maps { mutable_parameters } hidden { secrets };
    csi::ControllerModifyVolumeResponse {};
    csi::GetCapacityRequest { volume_capabilities, accessible_topology } maps { parameters };
    csi::GetCapacityResponse { available_capacity, maximum_volume_size, minimum_volume_size };
    csi::ControllerGetCapabilitiesRequest {};
    csi::ControllerGetCapabilitiesResponse { capabilities };
    csi::CreateSnapshotRequest { source_volume_id, name, accessibility_requirements } maps { parameters } hidden { secrets };
    csi::CreateSnapshotResponse { snapshot };
    csi::DeleteSnapshotRequest { snapshot_id } hidden { secrets };
    csi::DeleteSnapshotResponse {};
    csi::ListSnapshotsRequest { max_entries, starting_token, source_volume_id, snapshot_id } hidden { secrets };
    csi::ListSnapshotsResponse { entries, next_token };
    csi::list_snapshots_response::Entry { snapshot };
    csi::GetSnapshotRequest { snapshot_id } hidden { secrets };
    csi::GetSnapshotResponse { snapshot };
    csi::ControllerExpandVolumeRequest { volume_id, capacity_range, volume_capability } hidden { secrets };
    csi::ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required };
}

// GroupController and SnapshotMetadata.
messages! {
    csi::GroupControllerGetCapabilitiesRequest {};
    csi::GroupControllerGetCapabilitiesResponse { capabilities };
    csi::CreateVolumeGroupSnapshotRequest { name, source_volume_ids } maps { parameters } hidden { secrets };
    csi::CreateVolumeGroupSnapshotResponse { group_snapshot };
    csi::DeleteVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids } hidden { secrets };
    csi::DeleteVolumeGroupSnapshotResponse {};
    csi::GetVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids } hidden { secrets };
    csi::GetVolumeGroupSnapshotResponse { group_snapshot };
    csi::GetMetadataAllocatedRequest { snapshot_id, starting_offset, max_results } hidden { secrets };
    csi::GetMetadataAllocatedResponse { block_metadata_type, volume_capacity_bytes, block_metadata };
    csi::GetMetadataDeltaRequest { base_snapshot_id, target_snapshot_id, starting_offset, max_results } hidden { secrets };
    csi::GetMetadataDeltaResponse { block_metadata_type, volume_capacity_bytes, block_metadata };
}

// Node.
messages! {
    csi::NodeStageVolumeRequest { volume_id, staging_target_path, volume_capability } maps { publish_context, volume_context }
        hidden { secrets };
    csi::NodeStageVolumeResponse {};
    csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
    csi::NodeUnstageVolumeResponse {};
    csi::NodePublishVolumeRequest { volume_id, staging_target_path, target_path, volume_capability, readonly }
        maps { publish_context, volume_context } hidden { secrets };
    csi::NodePublishVolumeResponse {};
    csi::NodeUnpublishVolumeRequest { volume_id, target_path };
    csi::NodeUnpublishVolumeResponse {};
    csi::NodeGetVolumeStatsRequest { volume_id, volume_path, staging_target_path };
    csi::NodeGetVolumeStatsResponse { usage };
    csi::NodeGetVolumeHealthRequest { volume_id, volume_publish_path, staging_target_path };
    csi::NodeGetVolumeHealthResponse { volume_health };
    csi::NodeGetStorageHealthRequest {} hidden { secrets };
    csi::NodeGetStorageHealthResponse { backend_health };
    csi::node_get_storage_health_response::StorageBackendHealth { status, reason, message, volume_capability };
    csi::NodeGetCapabilitiesRequest {};
    csi::NodeGetCapabilitiesResponse { capabilities };
    csi::NodeGetInfoRequest {};
    csi::NodeGetInfoResponse { node_id, max_volumes_per_node, accessible_topology };
    csi::NodeExpandVolumeRequest { volume_id, volume_path, capacity_range, staging_target_path, volume_capability }
        hidden { secrets };
    csi::NodeExpandVolumeResponse { capacity_bytes };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const MARK: &str = "hunter2";

    fn marked() -> HashMap<String, String> {
        HashMap::from([("key-of-hunter2".to_owned(), MARK.to_owned())])
    }

    /// Every message that has secrets, with one that must not be seen.
    #[allow(clippy::needless_update, reason = "some have nothing but secrets")]
    fn with_secrets() -> Vec<(&'static str, String)> {
        macro_rules! printed {
            ($($message:ident),*) => {
                vec![$((stringify!($message), format!("{:#?}", csi::$message { secrets: marked(), ..Default::default() }))),*]
            };
        }
        printed![
            CreateVolumeRequest,
            DeleteVolumeRequest,
            ControllerPublishVolumeRequest,
            ControllerUnpublishVolumeRequest,
            ValidateVolumeCapabilitiesRequest,
            ControllerListVolumeHealthRequest,
            ControllerGetVolumeHealthRequest,
            ControllerModifyVolumeRequest,
            CreateSnapshotRequest,
            DeleteSnapshotRequest,
            ListSnapshotsRequest,
            GetSnapshotRequest,
            ControllerExpandVolumeRequest,
            NodeStageVolumeRequest,
            NodePublishVolumeRequest,
            NodeGetStorageHealthRequest,
            NodeExpandVolumeRequest,
            CreateVolumeGroupSnapshotRequest,
            DeleteVolumeGroupSnapshotRequest,
            GetVolumeGroupSnapshotRequest,
            GetMetadataAllocatedRequest,
            GetMetadataDeltaRequest
        ]
    }

    /// The messages that csi.proto marks with `csi_secret`.
    fn secret_in_the_protocol() -> BTreeSet<&'static str> {
        let mut message = "";
        let mut found = BTreeSet::new();
        for line in include_str!("../../proto/csi.proto").lines() {
            if let Some(name) = line.strip_prefix("message ") {
                message = name.trim_end_matches(['{', '}']).trim();
            }
            if line.contains("(csi_secret) = true") {
                found.insert(message);
            }
        }
        found
    }

    #[test]
    fn no_secret_of_any_message_is_printed() {
        let printed = with_secrets();
        for (message, text) in &printed {
            assert!(!text.contains(MARK), "{message}: {text}");
            assert!(text.contains("(1 hidden)"), "{message}: {text}");
        }
        let tested: BTreeSet<&str> = printed.iter().map(|(message, _)| *message).collect();
        assert_eq!(tested, secret_in_the_protocol(), "the protocol has other messages with secrets");
    }

    #[test]
    fn of_a_context_only_values_of_known_keys_are_shown() {
        let mount = csi::volume_capability::MountVolume { mount_flags: vec![format!("password={MARK}")], ..Default::default() };
        let request = csi::NodePublishVolumeRequest {
            volume_id: "image:a".to_owned(),
            volume_capability: Some(csi::VolumeCapability {
                access_type: Some(csi::volume_capability::AccessType::Mount(mount)),
                access_mode: None,
            }),
            volume_context: HashMap::from([
                ("csi.storage.k8s.io/serviceAccount.tokens".to_owned(), MARK.to_owned()),
                ("csi.storage.k8s.io/pod.name".to_owned(), "db-0".to_owned()),
                ("topology.kubernetes.io/zone".to_owned(), "zone-7".to_owned()),
                // Neither says of itself what it holds.
                ("chap".to_owned(), MARK.to_owned()),
                ("note".to_owned(), MARK.to_owned()),
            ]),
            publish_context: HashMap::from([("key".to_owned(), MARK.to_owned()), ("pool".to_owned(), "p1".to_owned())]),
            ..Default::default()
        };
        let text = format!("{request:?}");
        assert!(!text.contains(MARK), "{text}");
        for shown in ["image:a", "db-0", "zone-7", "p1", r#""note": (1 hidden)"#] {
            assert!(text.contains(shown), "{shown}: {text}");
        }
    }
}

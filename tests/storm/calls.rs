//! Volumes, and the calls that a CO makes for them.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use longshore::csi::group_controller_client::GroupControllerClient;
use longshore::csi::node_client::NodeClient;
use longshore::volume::{SnapshotId, VolumeId};
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::common::{Harness, MIB, capability, create, publish_request, text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Create,
    Delete,
    Stage,
    Unstage,
    /// At the first or the second target.
    Publish(usize),
    Unpublish(usize),
    Snapshot,
    DeleteSnapshot,
    Group,
    DeleteGroup,
    /// From the snapshot.
    Restore,
    DeleteRestored,
    Clone,
    DeleteCloned,
    /// What becomes of it when it is deleted.
    Modify(&'static str),
    /// To so many MiB.
    Expand(i64),
    NodeExpand(i64),
    /// An ephemeral inline volume, at the second target.
    Inline,
    EndInline,
    Attach,
    Detach,
}

#[derive(Clone, Debug)]
pub struct Volume {
    pub name: String,
    pub backend: &'static str,
    /// `None` for raw block.
    pub fstype: Option<&'static str>,
    pub mib: i64,
    pub staging: PathBuf,
    pub targets: [PathBuf; 2],
}

impl Volume {
    pub fn new(harness: &Harness, name: &str, backend: &'static str, fstype: Option<&'static str>) -> Volume {
        let mib = if fstype == Some("xfs") { 320 } else { 64 };
        let targets = [1, 2].map(|number| harness.target(&format!("{name}-{number}")));
        Volume { name: name.to_owned(), backend, fstype, mib, staging: harness.staging(name), targets }
    }

    pub fn id(&self) -> String {
        format!("{}:{}", self.backend, self.name)
    }

    fn snapshot(&self) -> String {
        format!("{}-then", self.name)
    }

    fn group(&self) -> String {
        format!("{}-together", self.name)
    }
}

/// A CO's end of the socket; one connection.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    pub deadline: Option<Duration>,
}

const INLINE: &str = "csi-0123456789abcdef";

impl Client {
    pub fn new(harness: &Harness) -> Client {
        Client { channel: harness.channel(), deadline: None }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        request
    }

    pub async fn call(&self, volume: &Volume, call: Call) -> Result<(), Status> {
        let mut controller = ControllerClient::new(self.channel.clone());
        let mut node = NodeClient::new(self.channel.clone());
        let mut groups = GroupControllerClient::new(self.channel.clone());
        let (volume_id, staging_target_path) = (volume.id(), text(&volume.staging));
        let backend: VolumeId = volume_id.parse().expect("a valid id");
        let backend = backend.backend();
        let capability = capability(volume.fstype);
        let range = |mib| Some(csi::CapacityRange { required_bytes: mib * MIB, limit_bytes: 0 });
        let snapshot_id = || format!("{}:{}", volume.backend, volume.snapshot());
        let delete = |volume_id: String| self.request(csi::DeleteVolumeRequest { volume_id, ..Default::default() });
        match call {
            Call::Create => {
                let message = create(&volume.name, volume.mib, volume.fstype, volume.backend);
                controller.create_volume(self.request(message)).await.map(drop)
            }
            Call::Delete => controller.delete_volume(delete(volume_id)).await.map(drop),
            Call::Restore | Call::Clone => {
                use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
                let (name, source) = match call {
                    Call::Clone => ("cloned", Type::Volume(VolumeSource { volume_id })),
                    _ => ("restored", Type::Snapshot(SnapshotSource { snapshot_id: snapshot_id() })),
                };
                let mut message = create(&format!("{}-{name}", volume.name), 1024, volume.fstype, volume.backend);
                message.volume_content_source = Some(csi::VolumeContentSource { r#type: Some(source) });
                controller.create_volume(self.request(message)).await.map(drop)
            }
            Call::DeleteRestored => controller.delete_volume(delete(format!("{volume_id}-restored"))).await.map(drop),
            Call::DeleteCloned => controller.delete_volume(delete(format!("{volume_id}-cloned"))).await.map(drop),
            Call::Stage => {
                let volume_capability = Some(capability);
                let message =
                    csi::NodeStageVolumeRequest { volume_id, staging_target_path, volume_capability, ..Default::default() };
                node.node_stage_volume(self.request(message)).await.map(drop)
            }
            Call::Unstage => {
                let message = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
                node.node_unstage_volume(self.request(message)).await.map(drop)
            }
            Call::Publish(target) => {
                let message = publish_request(volume_id, &staging_target_path, &volume.targets[target], capability);
                node.node_publish_volume(self.request(message)).await.map(drop)
            }
            Call::Unpublish(target) => {
                let message = csi::NodeUnpublishVolumeRequest { volume_id, target_path: text(&volume.targets[target]) };
                node.node_unpublish_volume(self.request(message)).await.map(drop)
            }
            Call::Inline => {
                let of = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
                let attributes =
                    [("csi.storage.k8s.io/ephemeral", "true"), ("size", "16MiB"), ("fsType", "ext4"), ("backend", "image")];
                let message = csi::NodePublishVolumeRequest {
                    volume_id: INLINE.to_owned(),
                    target_path: text(&volume.targets[1]),
                    volume_capability: Some(crate::common::capability(Some(""))),
                    volume_context: HashMap::from(attributes.map(of)),
                    ..Default::default()
                };
                node.node_publish_volume(self.request(message)).await.map(drop)
            }
            Call::EndInline => {
                let target_path = text(&volume.targets[1]);
                let message = csi::NodeUnpublishVolumeRequest { volume_id: INLINE.to_owned(), target_path };
                node.node_unpublish_volume(self.request(message)).await.map(drop)
            }
            Call::Snapshot => {
                let (source_volume_id, name) = (volume_id, volume.snapshot());
                let message = csi::CreateSnapshotRequest { source_volume_id, name, ..Default::default() };
                controller.create_snapshot(self.request(message)).await.map(drop)
            }
            Call::DeleteSnapshot => {
                let message = csi::DeleteSnapshotRequest { snapshot_id: snapshot_id(), ..Default::default() };
                controller.delete_snapshot(self.request(message)).await.map(drop)
            }
            Call::Group => {
                let (name, source_volume_ids) = (volume.group(), vec![volume_id]);
                let message = csi::CreateVolumeGroupSnapshotRequest { name, source_volume_ids, ..Default::default() };
                groups.create_volume_group_snapshot(self.request(message)).await.map(drop)
            }
            Call::DeleteGroup => {
                let member = SnapshotId::derive(backend, &format!("{}/{}", volume.group(), volume.name));
                let message = csi::DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: format!("{}:{}", volume.backend, volume.group()),
                    snapshot_ids: vec![member.to_string()],
                    ..Default::default()
                };
                groups.delete_volume_group_snapshot(self.request(message)).await.map(drop)
            }
            Call::Modify(on_delete) => {
                let mutable_parameters = [("onDelete".to_owned(), on_delete.to_owned())].into();
                let message = csi::ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() };
                controller.controller_modify_volume(self.request(message)).await.map(drop)
            }
            Call::Expand(mib) => {
                let capacity_range = range(mib);
                let message = csi::ControllerExpandVolumeRequest { volume_id, capacity_range, ..Default::default() };
                controller.controller_expand_volume(self.request(message)).await.map(drop)
            }
            Call::NodeExpand(mib) => {
                let message = csi::NodeExpandVolumeRequest {
                    volume_id,
                    volume_path: text(&volume.targets[0]),
                    staging_target_path,
                    capacity_range: range(mib),
                    ..Default::default()
                };
                node.node_expand_volume(self.request(message)).await.map(drop)
            }
            Call::Attach => {
                let message = csi::ControllerPublishVolumeRequest {
                    volume_id,
                    node_id: "node-1".to_owned(),
                    volume_capability: Some(capability),
                    ..Default::default()
                };
                controller.controller_publish_volume(self.request(message)).await.map(drop)
            }
            Call::Detach => {
                let node_id = "node-1".to_owned();
                let message = csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
                controller.controller_unpublish_volume(self.request(message)).await.map(drop)
            }
        }
    }
}

/// All that calls may leave behind, as the kernel and the disk show it.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    mounts: Vec<String>,
    loops: usize,
    journal: Vec<String>,
    pool: BTreeSet<String>,
}

impl Left {
    pub fn now(harness: &Harness) -> Left {
        let pool = harness.path("pool/images");
        let inner = |directory: &str| {
            let entries = fs::read_dir(pool.join(directory)).into_iter().flatten().flatten();
            entries.map(|entry| format!("{directory}/{}", entry.file_name().to_string_lossy())).collect::<Vec<_>>()
        };
        let mut mounts = harness.mounts();
        mounts.sort();
        Left {
            mounts,
            loops: harness.loops().len(),
            journal: harness.journal(),
            pool: ["volumes", "snapshots", "groups", "tmp", "trash"].into_iter().flat_map(inner).collect(),
        }
    }
}

//! What we say that we can: derived from what the configured backends offer and from nothing else.

use super::method::Rpc;
use crate::backend::registry::{Offers, Registry};
use crate::csi;
use crate::csi::controller_service_capability::rpc::Type as ControllerRpc;
use crate::csi::group_controller_service_capability::rpc::Type as GroupRpc;
use crate::csi::node_service_capability::rpc::Type as NodeRpc;
use crate::csi::plugin_capability::service::Type as Service;
use crate::volume::AccessMode;

/// What this process can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capabilities {
    offers: Offers,
    /// A backend tells one workload on a node from several.
    counts_writers: bool,
    /// A node in this process knows what is in use on it.
    node_here: bool,
}

impl Capabilities {
    pub(super) fn of(registry: &Registry, node_here: bool) -> Self {
        let counts_writers = registry.iter().any(|backend| backend.access_modes().contains(&AccessMode::SingleNodeMultiWriter));
        Capabilities { offers: registry.offers(), counts_writers, node_here }
    }

    /// Whether the RPC is served. One that is not answers UNIMPLEMENTED, as its missing capability says.
    pub(super) fn serves(&self, rpc: Rpc) -> bool {
        let offers = &self.offers;
        match rpc {
            Rpc::CreateVolume | Rpc::DeleteVolume | Rpc::ListVolumes | Rpc::ControllerGetVolume | Rpc::GetCapacity => {
                offers.provision
            }
            Rpc::ControllerPublishVolume | Rpc::ControllerUnpublishVolume => offers.attach,
            Rpc::CreateSnapshot | Rpc::DeleteSnapshot | Rpc::ListSnapshots | Rpc::GetSnapshot => offers.snapshots,
            Rpc::ControllerExpandVolume | Rpc::NodeExpandVolume => offers.expand,
            Rpc::ControllerModifyVolume => offers.modify,
            Rpc::ControllerGetVolumeHealth | Rpc::ControllerListVolumeHealth => offers.health,
            Rpc::CreateVolumeGroupSnapshot | Rpc::DeleteVolumeGroupSnapshot | Rpc::GetVolumeGroupSnapshot => offers.groups,
            Rpc::GetMetadataAllocated | Rpc::GetMetadataDelta => offers.changed_blocks,
            Rpc::GetPluginInfo
            | Rpc::GetPluginCapabilities
            | Rpc::Probe
            | Rpc::ValidateVolumeCapabilities
            | Rpc::ControllerGetCapabilities
            | Rpc::GroupControllerGetCapabilities
            | Rpc::NodeStageVolume
            | Rpc::NodeUnstageVolume
            | Rpc::NodePublishVolume
            | Rpc::NodeUnpublishVolume
            | Rpc::NodeGetVolumeStats
            | Rpc::NodeGetVolumeHealth
            | Rpc::NodeGetStorageHealth
            | Rpc::NodeGetCapabilities
            | Rpc::NodeGetInfo => true,
        }
    }

    /// Of the plugin "as a whole": the same from every instance, whichever services it has (CSI spec,
    /// GetPluginCapabilities). So it does not depend on the mode of this process.
    pub(super) fn plugin(&self) -> Vec<csi::PluginCapability> {
        let service = |service: Service| csi::PluginCapability {
            r#type: Some(csi::plugin_capability::Type::Service(csi::plugin_capability::Service { r#type: service.into() })),
        };
        let online =
            csi::plugin_capability::VolumeExpansion { r#type: csi::plugin_capability::volume_expansion::Type::Online.into() };
        let online = csi::PluginCapability { r#type: Some(csi::plugin_capability::Type::VolumeExpansion(online)) };
        let offers = &self.offers;
        let mut all = vec![service(Service::ControllerService)];
        all.extend(offers.topology.then(|| service(Service::VolumeAccessibilityConstraints)));
        // Not for snapshots of a cloud: they are restored in any zone of its region.
        all.extend(offers.local_snapshots.then(|| service(Service::SnapshotAccessibilityConstraints)));
        all.extend(offers.groups.then(|| service(Service::GroupControllerService)));
        all.extend(offers.changed_blocks.then(|| service(Service::SnapshotMetadataService)));
        all.extend(offers.expand.then_some(online));
        all
    }

    pub(super) fn controller(&self) -> Vec<csi::ControllerServiceCapability> {
        let offers = &self.offers;
        let table = [
            (ControllerRpc::CreateDeleteVolume, offers.provision),
            (ControllerRpc::PublishUnpublishVolume, offers.attach),
            (ControllerRpc::PublishReadonly, offers.attach),
            (ControllerRpc::ListVolumes, offers.provision),
            // The CO takes a volume that is not in the list for detached (external-attacher, ReconcileVA).
            (ControllerRpc::ListVolumesPublishedNodes, offers.provision && !offers.unlisted && (offers.attach || self.node_here)),
            (ControllerRpc::GetCapacity, offers.provision),
            (ControllerRpc::GetVolume, offers.provision),
            // A backend that copies one for a snapshot copies one for a clone: see `Provision::create`.
            (ControllerRpc::CloneVolume, offers.provision && offers.snapshots),
            (ControllerRpc::CreateDeleteSnapshot, offers.snapshots),
            (ControllerRpc::ListSnapshots, offers.snapshots),
            (ControllerRpc::GetSnapshot, offers.snapshots),
            (ControllerRpc::ExpandVolume, offers.expand),
            (ControllerRpc::ModifyVolume, offers.modify),
            (ControllerRpc::GetVolumeHealth, offers.health),
            (ControllerRpc::ListVolumeHealth, offers.health),
            (ControllerRpc::SingleNodeMultiWriter, self.counts_writers),
        ];
        let capability = |rpc: ControllerRpc| csi::ControllerServiceCapability {
            r#type: Some(csi::controller_service_capability::Type::Rpc(csi::controller_service_capability::Rpc {
                r#type: rpc.into(),
            })),
        };
        table.into_iter().filter(|(_, offered)| *offered).map(|(rpc, _)| capability(rpc)).collect()
    }

    pub(super) fn group_controller(&self) -> Vec<csi::GroupControllerServiceCapability> {
        let capability = csi::GroupControllerServiceCapability {
            r#type: Some(csi::group_controller_service_capability::Type::Rpc(csi::group_controller_service_capability::Rpc {
                r#type: GroupRpc::CreateDeleteGetVolumeGroupSnapshot.into(),
            })),
        };
        self.offers.groups.then_some(capability).into_iter().collect()
    }

    /// Staging, statistics, groups and health are the node's own, whatever the backend.
    pub(super) fn node(&self) -> Vec<csi::NodeServiceCapability> {
        let table = [
            (NodeRpc::StageUnstageVolume, true),
            (NodeRpc::GetVolumeStats, true),
            (NodeRpc::ExpandVolume, self.offers.expand),
            (NodeRpc::SingleNodeMultiWriter, self.counts_writers),
            (NodeRpc::VolumeMountGroup, true),
            (NodeRpc::GetVolumeHealth, true),
            (NodeRpc::GetStorageHealth, true),
        ];
        let capability = |rpc: NodeRpc| csi::NodeServiceCapability {
            r#type: Some(csi::node_service_capability::Type::Rpc(csi::node_service_capability::Rpc { r#type: rpc.into() })),
        };
        table.into_iter().filter(|(_, offered)| *offered).map(|(rpc, _)| capability(rpc)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Capabilities {
        let offers = Offers {
            provision: true,
            expand: true,
            modify: true,
            snapshots: true,
            groups: true,
            changed_blocks: true,
            attach: true,
            unlisted: false,
            health: true,
            topology: true,
            local_snapshots: true,
        };
        Capabilities { offers, counts_writers: true, node_here: true }
    }

    fn nothing() -> Capabilities {
        Capabilities { offers: Offers::default(), counts_writers: false, node_here: false }
    }

    #[test]
    fn everything_offered_is_everything_of_the_protocol() {
        // All of the protocol's, less UNKNOWN.
        assert_eq!(all().controller().len(), 16);
        assert_eq!(all().node().len(), 7);
        assert_eq!(all().group_controller().len(), 1);
        assert_eq!(all().plugin().len(), 6);
        assert!(Rpc::ALL.iter().all(|rpc| all().serves(*rpc)));
    }

    #[test]
    fn feature_of_no_backend_is_neither_claimed_nor_served() {
        assert!(nothing().controller().is_empty() && nothing().group_controller().is_empty());
        assert_eq!(nothing().plugin().len(), 1);
        for rpc in [Rpc::CreateVolume, Rpc::CreateSnapshot, Rpc::CreateVolumeGroupSnapshot, Rpc::GetMetadataDelta] {
            assert!(!nothing().serves(rpc), "{}", rpc.name());
        }
        assert!(nothing().serves(Rpc::ValidateVolumeCapabilities), "mandatory");
        assert!(nothing().serves(Rpc::NodeUnstageVolume), "mandatory once staged");
    }

    #[test]
    fn clones_are_claimed_only_where_something_is_copied() {
        let clone = |capabilities: Capabilities| {
            let is_clone = |capability: &csi::ControllerServiceCapability| match &capability.r#type {
                Some(csi::controller_service_capability::Type::Rpc(rpc)) => rpc.r#type() == ControllerRpc::CloneVolume,
                None => false,
            };
            capabilities.controller().iter().any(is_clone)
        };
        assert!(clone(all()));
        assert!(!clone(Capabilities { offers: Offers { snapshots: false, ..all().offers }, ..all() }));
    }

    #[test]
    fn published_nodes_are_claimed_only_where_a_backend_knows_them() {
        let claims = |capabilities: Capabilities| {
            capabilities.controller().iter().any(|capability| match &capability.r#type {
                Some(csi::controller_service_capability::Type::Rpc(rpc)) => {
                    rpc.r#type() == ControllerRpc::ListVolumesPublishedNodes
                }
                None => false,
            })
        };
        let alone = Capabilities { node_here: false, offers: Offers { attach: false, ..all().offers }, ..all() };
        assert!(!claims(alone));
        assert!(claims(Capabilities { node_here: true, ..alone }));
        assert!(claims(all()));
        assert!(!claims(Capabilities { offers: Offers { unlisted: true, ..all().offers }, ..all() }), "the list lacks some");
    }
}

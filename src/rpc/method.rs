//! The RPCs of CSI 1.13, and what the protocol says of each as a whole.

use tonic::Code;

macro_rules! rpcs {
    ($($service:ident: $($name:ident),+;)+) => {
        /// One RPC of CSI.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Rpc { $($($name),+),+ }

        impl Rpc {
            pub const ALL: &[Rpc] = &[$($(Rpc::$name),+),+];

            /// As the protocol writes it.
            pub const fn name(self) -> &'static str {
                match self { $($(Rpc::$name => stringify!($name)),+),+ }
            }

            /// As gRPC writes it: with its service.
            pub const fn path(self) -> &'static str {
                match self { $($(Rpc::$name => concat!("/csi.v1.", stringify!($service), "/", stringify!($name))),+),+ }
            }
        }
    };
}

rpcs! {
    Identity: GetPluginInfo, GetPluginCapabilities, Probe;
    Controller: CreateVolume, DeleteVolume, ControllerPublishVolume, ControllerUnpublishVolume, ValidateVolumeCapabilities, ListVolumes,
    ControllerListVolumeHealth, ControllerGetVolumeHealth, GetCapacity, ControllerGetCapabilities, CreateSnapshot,
    DeleteSnapshot, ListSnapshots, GetSnapshot, ControllerExpandVolume, ControllerGetVolume, ControllerModifyVolume;
    GroupController: GroupControllerGetCapabilities, CreateVolumeGroupSnapshot, DeleteVolumeGroupSnapshot, GetVolumeGroupSnapshot;
    SnapshotMetadata: GetMetadataAllocated, GetMetadataDelta;
    Node: NodeStageVolume, NodeUnstageVolume, NodePublishVolume, NodeUnpublishVolume, NodeGetVolumeStats, NodeGetVolumeHealth,
    NodeGetStorageHealth, NodeExpandVolume, NodeGetCapabilities, NodeGetInfo;
}

impl Rpc {
    /// Whether it changes anything. What only looks is logged where someone looks closely.
    pub const fn mutates(self) -> bool {
        matches!(
            self,
            Rpc::CreateVolume
                | Rpc::DeleteVolume
                | Rpc::ControllerPublishVolume
                | Rpc::ControllerUnpublishVolume
                | Rpc::CreateSnapshot
                | Rpc::DeleteSnapshot
                | Rpc::ControllerExpandVolume
                | Rpc::ControllerModifyVolume
                | Rpc::CreateVolumeGroupSnapshot
                | Rpc::DeleteVolumeGroupSnapshot
                | Rpc::NodeStageVolume
                | Rpc::NodeUnstageVolume
                | Rpc::NodePublishVolume
                | Rpc::NodeUnpublishVolume
                | Rpc::NodeExpandVolume
        )
    }

    /// Whether it is of the services that only a process which provisions serves: Controller, GroupController, SnapshotMetadata.
    pub(super) fn is_controllers(self) -> bool {
        !["/csi.v1.Identity/", "/csi.v1.Node/"].iter().any(|service| self.path().starts_with(service))
    }

    /// How the RPC says that this volume, or this combination, cannot be had, where the driver as a whole knows the
    /// RPC: each has its own row in the specification's error tables, or the general one (CSI spec, "Error Scheme").
    pub(super) const fn unsupported(self) -> Code {
        match self {
            // "Source incompatible or not supported", "Exceeds capabilities", "Parameters not supported", and the
            // general "unsupported field in the request".
            Rpc::CreateVolume
            | Rpc::ValidateVolumeCapabilities
            | Rpc::GetCapacity
            | Rpc::ControllerPublishVolume
            | Rpc::ControllerExpandVolume
            | Rpc::ControllerModifyVolume
            | Rpc::CreateSnapshot
            | Rpc::NodeExpandVolume => Code::InvalidArgument,
            // "Exceeds capabilities", "Cannot snapshot multiple volumes together", "Changed block tracking is not enabled".
            Rpc::NodeStageVolume
            | Rpc::NodePublishVolume
            | Rpc::CreateVolumeGroupSnapshot
            | Rpc::GetMetadataAllocated
            | Rpc::GetMetadataDelta => Code::FailedPrecondition,
            _ => Code::Unimplemented,
        }
    }
}

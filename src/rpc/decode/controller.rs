//! Requests of the Controller service about volumes.

use super::capability::{any_capabilities, capabilities, present, range, requirement, topology};
use super::*;
use crate::csi;
use crate::ops::controller::{AttachRequest, ProvisionRequest};
use crate::volume::{Capability, CapacityRange, ContentSource, Topology};

/// CreateVolume.
#[derive(Debug)]
pub(in crate::rpc) struct Create(pub ProvisionRequest);

impl TryFrom<csi::CreateVolumeRequest> for Create {
    type Error = Error;

    fn try_from(request: csi::CreateVolumeRequest) -> Result<Self> {
        let name = name(&request.name)?;
        let capabilities = capabilities(request.volume_capabilities)?;
        secrets(request.secrets)?;
        Ok(Create(ProvisionRequest {
            name,
            capabilities,
            range: range(request.capacity_range)?,
            parameters: parameters("parameters", request.parameters)?,
            mutable_parameters: parameters("mutable_parameters", request.mutable_parameters)?,
            topology: requirement(request.accessibility_requirements)?,
            source: request.volume_content_source.map(source).transpose()?,
        }))
    }
}

fn source(wire: csi::VolumeContentSource) -> Result<ContentSource> {
    use csi::volume_content_source::Type;
    match wire.r#type {
        None => Err(Error::invalid("volume_content_source.type", "is required: snapshot or volume")),
        Some(Type::Snapshot(source)) => {
            let id = required("volume_content_source.snapshot.snapshot_id", &source.snapshot_id)?;
            snapshot_id(id).map(ContentSource::Snapshot)
        }
        Some(Type::Volume(source)) => {
            let id = required("volume_content_source.volume.volume_id", &source.volume_id)?;
            volume(id).map(ContentSource::Volume)
        }
    }
}

/// DeleteVolume. Without an id there can be no such volume, and it counts as deleted.
#[derive(Debug)]
pub(in crate::rpc) struct Delete {
    pub id: Option<VolumeId>,
}

impl TryFrom<csi::DeleteVolumeRequest> for Delete {
    type Error = Error;

    fn try_from(request: csi::DeleteVolumeRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?.parse().ok();
        secrets(request.secrets)?;
        Ok(Delete { id })
    }
}

/// ControllerPublishVolume.
#[derive(Debug)]
pub(in crate::rpc) struct Attached(pub AttachRequest);

impl TryFrom<csi::ControllerPublishVolumeRequest> for Attached {
    type Error = Error;

    fn try_from(request: csi::ControllerPublishVolumeRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?;
        let node = required("node_id", &request.node_id)?;
        let capability = present(request.volume_capability)?.try_into()?;
        let volume_context = map("volume_context", request.volume_context)?;
        secrets(request.secrets)?;
        Ok(Attached(AttachRequest {
            handle: handle(id)?,
            node: node_id(node)?,
            capability,
            read_only: request.readonly,
            volume_context,
        }))
    }
}

/// ControllerUnpublishVolume.
#[derive(Debug)]
pub(in crate::rpc) enum Unbind {
    /// From one node, or from all.
    From { id: VolumeId, node: Option<NodeId> },
    /// No such volume or node can exist: it is not bound.
    Nothing,
}

impl TryFrom<csi::ControllerUnpublishVolumeRequest> for Unbind {
    type Error = Error;

    fn try_from(request: csi::ControllerUnpublishVolumeRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?.parse();
        let node = (!request.node_id.is_empty()).then(|| request.node_id.parse()).transpose();
        secrets(request.secrets)?;
        Ok(match (id, node) {
            (Ok(id), Ok(node)) => Unbind::From { id, node },
            _ => Unbind::Nothing,
        })
    }
}

/// ValidateVolumeCapabilities.
#[derive(Debug)]
pub(in crate::rpc) struct Validate {
    pub handle: Handle,
    pub capabilities: Vec<Capability>,
    pub context: BTreeMap<String, String>,
    pub parameters: RawParameters,
}

impl TryFrom<csi::ValidateVolumeCapabilitiesRequest> for Validate {
    type Error = Error;

    fn try_from(request: csi::ValidateVolumeCapabilitiesRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?;
        let capabilities = capabilities(request.volume_capabilities)?;
        let context = map("volume_context", request.volume_context)?;
        let parameters = parameters("parameters", request.parameters)?;
        map("mutable_parameters", request.mutable_parameters)?;
        secrets(request.secrets)?;
        Ok(Validate { handle: handle(id)?, capabilities, context, parameters })
    }
}

/// ListVolumes and ControllerListVolumeHealth; a part of ListSnapshots.
#[derive(Debug)]
pub(in crate::rpc) struct List {
    /// 0 is no limit.
    pub max: usize,
    /// Empty is the start. Whether it is one of ours the list itself knows.
    pub token: String,
}

impl TryFrom<csi::ListVolumesRequest> for List {
    type Error = Error;

    fn try_from(request: csi::ListVolumesRequest) -> Result<Self> {
        Ok(List { max: max("max_entries", request.max_entries)?, token: request.starting_token })
    }
}

impl TryFrom<csi::ControllerListVolumeHealthRequest> for List {
    type Error = Error;

    fn try_from(request: csi::ControllerListVolumeHealthRequest) -> Result<Self> {
        secrets(request.secrets)?;
        Ok(List { max: max("max_entries", request.max_entries)?, token: request.starting_token })
    }
}

/// ControllerGetVolume and ControllerGetVolumeHealth.
#[derive(Debug)]
pub(in crate::rpc) struct Lookup {
    pub id: VolumeId,
}

impl TryFrom<csi::ControllerGetVolumeRequest> for Lookup {
    type Error = Error;

    fn try_from(request: csi::ControllerGetVolumeRequest) -> Result<Self> {
        Ok(Lookup { id: volume(required("volume_id", &request.volume_id)?)? })
    }
}

impl TryFrom<csi::ControllerGetVolumeHealthRequest> for Lookup {
    type Error = Error;

    fn try_from(request: csi::ControllerGetVolumeHealthRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?;
        secrets(request.secrets)?;
        Ok(Lookup { id: volume(id)? })
    }
}

/// GetCapacity.
#[derive(Debug)]
pub(in crate::rpc) struct GetCapacity {
    pub capabilities: Vec<Capability>,
    pub parameters: RawParameters,
    pub topology: Option<Topology>,
}

impl TryFrom<csi::GetCapacityRequest> for GetCapacity {
    type Error = Error;

    fn try_from(request: csi::GetCapacityRequest) -> Result<Self> {
        Ok(GetCapacity {
            capabilities: any_capabilities(request.volume_capabilities)?,
            parameters: parameters("parameters", request.parameters)?,
            topology: request.accessible_topology.map(topology).transpose()?,
        })
    }
}

/// ControllerExpandVolume.
#[derive(Debug)]
pub(in crate::rpc) struct Expand {
    pub id: VolumeId,
    /// With a requirement, a limit, or both.
    pub range: CapacityRange,
    pub capability: Option<Capability>,
}

impl TryFrom<csi::ControllerExpandVolumeRequest> for Expand {
    type Error = Error;

    fn try_from(request: csi::ControllerExpandVolumeRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?;
        let range = range(request.capacity_range)?;
        if range == CapacityRange::default() {
            return Err(Error::invalid("capacity_range", "required_bytes or limit_bytes is required"));
        }
        let capability = request.volume_capability.map(Capability::try_from).transpose()?;
        secrets(request.secrets)?;
        Ok(Expand { id: volume(id)?, range, capability })
    }
}

/// ControllerModifyVolume. No parameters at all change nothing: only keys that are there do (CSI spec), so they are
/// accepted, as csi-sanity expects with its default settings.
#[derive(Debug)]
pub(in crate::rpc) struct Modify {
    pub id: VolumeId,
    pub parameters: RawParameters,
}

impl TryFrom<csi::ControllerModifyVolumeRequest> for Modify {
    type Error = Error;

    fn try_from(request: csi::ControllerModifyVolumeRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?;
        let parameters = parameters("mutable_parameters", request.mutable_parameters)?;
        secrets(request.secrets)?;
        Ok(Modify { id: volume(id)?, parameters })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::decode::testing::{capability, not_found, refused};
    use crate::volume::Bytes;

    fn create() -> csi::CreateVolumeRequest {
        csi::CreateVolumeRequest { name: "a".to_owned(), volume_capabilities: vec![capability()], ..Default::default() }
    }

    fn attach() -> csi::ControllerPublishVolumeRequest {
        csi::ControllerPublishVolumeRequest {
            volume_id: "image:a".to_owned(),
            node_id: "node-1".to_owned(),
            volume_capability: Some(capability()),
            ..Default::default()
        }
    }

    fn from(r#type: csi::volume_content_source::Type) -> csi::CreateVolumeRequest {
        csi::CreateVolumeRequest { volume_content_source: Some(csi::VolumeContentSource { r#type: Some(r#type) }), ..create() }
    }

    #[test]
    fn create_needs_a_name_and_capabilities() {
        assert!(Create::try_from(create()).is_ok());
        refused::<Create, _>(csi::CreateVolumeRequest { name: String::new(), ..create() }, "name");
        refused::<Create, _>(csi::CreateVolumeRequest { name: "n".repeat(129), ..create() }, "name");
        refused::<Create, _>(csi::CreateVolumeRequest { volume_capabilities: vec![], ..create() }, "volume_capabilities");
        let unsaid = csi::CreateVolumeRequest { volume_content_source: Some(Default::default()), ..create() };
        refused::<Create, _>(unsaid, "volume_content_source.type");
    }

    #[test]
    fn a_source_is_ours_or_does_not_exist() {
        use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
        let snapshot = |id: &str| from(Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() }));
        let volume = |id: &str| from(Type::Volume(VolumeSource { volume_id: id.to_owned() }));
        refused::<Create, _>(snapshot(""), "volume_content_source.snapshot.snapshot_id");
        refused::<Create, _>(volume(""), "volume_content_source.volume.volume_id");
        not_found::<Create, _>(snapshot("non-existing-snapshot-id"));
        not_found::<Create, _>(volume("fake-vol-id-12"));
        assert!(matches!(Create::try_from(volume("image:b")), Ok(Create(ProvisionRequest { source: Some(_), .. }))));
    }

    #[test]
    fn sizes_are_numbers_that_can_be() {
        let sized = |required_bytes, limit_bytes| csi::CreateVolumeRequest {
            capacity_range: Some(csi::CapacityRange { required_bytes, limit_bytes }),
            ..create()
        };
        let Create(request) = Create::try_from(sized(5, 0)).expect("a size");
        assert_eq!(request.range.required(), Some(Bytes(5)));
        refused::<Create, _>(sized(2, 1), "capacity_range");
        assert!(matches!(Create::try_from(sized(-1, 0)), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn removals_need_an_id_and_accept_one_that_cannot_exist() {
        refused::<Delete, _>(csi::DeleteVolumeRequest::default(), "volume_id");
        let delete = |id: &str| Delete::try_from(csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() });
        assert_eq!(delete("fake-vol-id").expect("accepted").id, None);
        assert!(delete("image:a").expect("accepted").id.is_some());

        refused::<Unbind, _>(csi::ControllerUnpublishVolumeRequest::default(), "volume_id");
        let unbind = |id: &str, node: &str| {
            let request = csi::ControllerUnpublishVolumeRequest {
                volume_id: id.to_owned(),
                node_id: node.to_owned(),
                ..Default::default()
            };
            Unbind::try_from(request).expect("accepted")
        };
        assert!(matches!(unbind("image:a", ""), Unbind::From { node: None, .. }));
        assert!(matches!(unbind("image:a", "n1"), Unbind::From { node: Some(_), .. }));
        assert!(matches!(unbind("fake", "n1"), Unbind::Nothing));
        assert!(matches!(unbind("image:a", "no node"), Unbind::Nothing));
    }

    #[test]
    fn attach_needs_volume_node_and_capability_before_any_is_looked_for() {
        assert!(Attached::try_from(attach()).is_ok());
        let fake = || csi::ControllerPublishVolumeRequest { volume_id: "fake-vol-id".to_owned(), ..attach() };
        refused::<Attached, _>(csi::ControllerPublishVolumeRequest { volume_id: String::new(), ..attach() }, "volume_id");
        refused::<Attached, _>(csi::ControllerPublishVolumeRequest { node_id: String::new(), ..fake() }, "node_id");
        refused::<Attached, _>(csi::ControllerPublishVolumeRequest { volume_capability: None, ..fake() }, "volume_capability");
        not_found::<Attached, _>(csi::ControllerPublishVolumeRequest { node_id: "no node".to_owned(), ..attach() });
    }

    #[test]
    fn validate_needs_an_id_and_capabilities() {
        let ask = || csi::ValidateVolumeCapabilitiesRequest {
            volume_id: "image:a".to_owned(),
            volume_capabilities: vec![capability()],
            ..Default::default()
        };
        assert!(Validate::try_from(ask()).is_ok());
        refused::<Validate, _>(csi::ValidateVolumeCapabilitiesRequest { volume_id: String::new(), ..ask() }, "volume_id");
        let without = csi::ValidateVolumeCapabilitiesRequest { volume_capabilities: vec![], ..ask() };
        refused::<Validate, _>(without, "volume_capabilities");
        let handle = csi::ValidateVolumeCapabilitiesRequest { volume_id: "server/share".to_owned(), ..ask() };
        assert!(Validate::try_from(handle).is_ok(), "a static volume, perhaps");
    }

    #[test]
    fn expand_needs_an_id_and_a_size() {
        let ask = |required_bytes| csi::ControllerExpandVolumeRequest {
            volume_id: "image:a".to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        assert!(Expand::try_from(ask(1 << 30)).is_ok());
        refused::<Expand, _>(csi::ControllerExpandVolumeRequest { volume_id: String::new(), ..ask(1) }, "volume_id");
        refused::<Expand, _>(csi::ControllerExpandVolumeRequest { capacity_range: None, ..ask(1) }, "capacity_range");
        refused::<Expand, _>(ask(0), "capacity_range");
    }

    #[test]
    fn look_ups_lists_and_changes_need_what_they_need() {
        refused::<Lookup, _>(csi::ControllerGetVolumeRequest::default(), "volume_id");
        refused::<Lookup, _>(csi::ControllerGetVolumeHealthRequest::default(), "volume_id");
        refused::<Modify, _>(csi::ControllerModifyVolumeRequest::default(), "volume_id");
        let modify = |id: &str| csi::ControllerModifyVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        not_found::<Modify, _>(modify("non-existing-volume-id"));
        assert!(Modify::try_from(modify("image:a")).is_ok());
        refused::<List, _>(csi::ListVolumesRequest { max_entries: -1, ..Default::default() }, "max_entries");
        refused::<List, _>(csi::ControllerListVolumeHealthRequest { max_entries: -1, ..Default::default() }, "max_entries");
        assert!(GetCapacity::try_from(csi::GetCapacityRequest::default()).is_ok(), "nothing is required");
    }
}

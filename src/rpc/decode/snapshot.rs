//! Requests of the Controller service about snapshots.

use super::capability::requirement;
use super::controller::List;
use super::*;
use crate::csi;
use crate::ops::controller::SnapshotFilter;
use crate::volume::TopologyRequirement;

/// CreateSnapshot.
#[derive(Debug)]
pub(in crate::rpc) struct CreateSnapshot {
    pub name: String,
    pub source: VolumeId,
    pub parameters: RawParameters,
    pub topology: TopologyRequirement,
}

impl TryFrom<csi::CreateSnapshotRequest> for CreateSnapshot {
    type Error = Error;

    fn try_from(request: csi::CreateSnapshotRequest) -> Result<Self> {
        let source = required("source_volume_id", &request.source_volume_id)?;
        let name = name(&request.name)?;
        let parameters = parameters("parameters", request.parameters)?;
        secrets(request.secrets)?;
        let topology = requirement(request.accessibility_requirements)?;
        Ok(CreateSnapshot { name, source: volume(source)?, parameters, topology })
    }
}

/// DeleteSnapshot. Without an id there can be no such snapshot, and it counts as deleted.
#[derive(Debug)]
pub(in crate::rpc) struct DeleteSnapshot {
    pub id: Option<SnapshotId>,
}

impl TryFrom<csi::DeleteSnapshotRequest> for DeleteSnapshot {
    type Error = Error;

    fn try_from(request: csi::DeleteSnapshotRequest) -> Result<Self> {
        let id = required("snapshot_id", &request.snapshot_id)?.parse().ok();
        secrets(request.secrets)?;
        Ok(DeleteSnapshot { id })
    }
}

/// ListSnapshots.
#[derive(Debug)]
pub(in crate::rpc) struct ListSnapshots {
    /// `None`: nothing that exists can match.
    pub filter: Option<SnapshotFilter>,
    pub page: List,
}

impl TryFrom<csi::ListSnapshotsRequest> for ListSnapshots {
    type Error = Error;

    fn try_from(request: csi::ListSnapshotsRequest) -> Result<Self> {
        let page = List { max: max("max_entries", request.max_entries)?, token: request.starting_token };
        secrets(request.secrets)?;
        let source = (!request.source_volume_id.is_empty()).then(|| request.source_volume_id.parse()).transpose();
        let id = (!request.snapshot_id.is_empty()).then(|| request.snapshot_id.parse()).transpose();
        let filter = source.ok().zip(id.ok()).map(|(source, id)| SnapshotFilter { source, id });
        Ok(ListSnapshots { filter, page })
    }
}

/// GetSnapshot.
#[derive(Debug)]
pub(in crate::rpc) struct LookupSnapshot {
    pub id: SnapshotId,
}

impl TryFrom<csi::GetSnapshotRequest> for LookupSnapshot {
    type Error = Error;

    fn try_from(request: csi::GetSnapshotRequest) -> Result<Self> {
        let id = required("snapshot_id", &request.snapshot_id)?;
        secrets(request.secrets)?;
        Ok(LookupSnapshot { id: snapshot_id(id)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::decode::testing::{not_found, refused};

    fn create() -> csi::CreateSnapshotRequest {
        csi::CreateSnapshotRequest { source_volume_id: "image:a".to_owned(), name: "s".to_owned(), ..Default::default() }
    }

    #[test]
    fn create_needs_a_source_and_a_name() {
        assert!(CreateSnapshot::try_from(create()).is_ok());
        let no_source = csi::CreateSnapshotRequest { source_volume_id: String::new(), ..create() };
        refused::<CreateSnapshot, _>(no_source, "source_volume_id");
        // csi-sanity leaves out the name of a snapshot of a volume that does not exist.
        let no_name = csi::CreateSnapshotRequest { source_volume_id: "testId".to_owned(), name: String::new(), ..create() };
        refused::<CreateSnapshot, _>(no_name, "name");
        not_found::<CreateSnapshot, _>(csi::CreateSnapshotRequest { source_volume_id: "testId".to_owned(), ..create() });
        let placed = csi::CreateSnapshotRequest { accessibility_requirements: Some(Default::default()), ..create() };
        refused::<CreateSnapshot, _>(placed, "accessibility_requirements");
    }

    #[test]
    fn impossible_snapshot_id_is_deleted_not_listed_and_not_found() {
        refused::<DeleteSnapshot, _>(csi::DeleteSnapshotRequest::default(), "snapshot_id");
        refused::<LookupSnapshot, _>(csi::GetSnapshotRequest::default(), "snapshot_id");
        refused::<ListSnapshots, _>(csi::ListSnapshotsRequest { max_entries: -1, ..Default::default() }, "max_entries");

        let fake = || "reallyfakesnapshotid".to_owned();
        let delete = csi::DeleteSnapshotRequest { snapshot_id: fake(), ..Default::default() };
        assert_eq!(DeleteSnapshot::try_from(delete).expect("accepted").id, None);
        not_found::<LookupSnapshot, _>(csi::GetSnapshotRequest { snapshot_id: fake(), ..Default::default() });
        let list = |request| ListSnapshots::try_from(request).expect("accepted").filter;
        assert!(list(csi::ListSnapshotsRequest { snapshot_id: fake(), ..Default::default() }).is_none());
        assert!(list(csi::ListSnapshotsRequest { source_volume_id: fake(), ..Default::default() }).is_none());
        let all = list(csi::ListSnapshotsRequest::default()).expect("all");
        assert!(all.id.is_none() && all.source.is_none());
    }
}

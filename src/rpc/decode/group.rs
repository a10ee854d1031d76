//! Requests of the GroupController service.

use super::*;
use crate::csi;
use crate::volume::GroupId;

/// CreateVolumeGroupSnapshot.
#[derive(Debug)]
pub(in crate::rpc) struct CreateGroup {
    pub name: String,
    /// At least one.
    pub sources: Vec<VolumeId>,
    pub parameters: RawParameters,
}

impl TryFrom<csi::CreateVolumeGroupSnapshotRequest> for CreateGroup {
    type Error = Error;

    fn try_from(request: csi::CreateVolumeGroupSnapshotRequest) -> Result<Self> {
        let name = name(&request.name)?;
        if request.source_volume_ids.is_empty() {
            return Err(Error::invalid("source_volume_ids", "at least one is required"));
        }
        let parameters = parameters("parameters", request.parameters)?;
        secrets(request.secrets)?;
        let source = |id: &String| required("source_volume_ids", id).and_then(volume);
        let sources = request.source_volume_ids.iter().map(source).collect::<Result<_>>()?;
        Ok(CreateGroup { name, sources, parameters })
    }
}

/// DeleteVolumeGroupSnapshot.
#[derive(Debug)]
pub(in crate::rpc) enum DeleteGroup {
    Group {
        id: GroupId,
        snapshots: Vec<SnapshotId>,
    },
    /// No such group can exist; it counts as deleted, whatever its members are said to be.
    Nothing,
}

impl TryFrom<csi::DeleteVolumeGroupSnapshotRequest> for DeleteGroup {
    type Error = Error;

    fn try_from(request: csi::DeleteVolumeGroupSnapshotRequest) -> Result<Self> {
        let id = required("group_snapshot_id", &request.group_snapshot_id)?;
        secrets(request.secrets)?;
        match id.parse() {
            Ok(id) => Ok(DeleteGroup::Group { id, snapshots: members(&request.snapshot_ids)? }),
            Err(_) => Ok(DeleteGroup::Nothing),
        }
    }
}

/// GetVolumeGroupSnapshot.
#[derive(Debug)]
pub(in crate::rpc) struct GetGroup {
    pub id: GroupId,
    pub snapshots: Vec<SnapshotId>,
}

impl TryFrom<csi::GetVolumeGroupSnapshotRequest> for GetGroup {
    type Error = Error;

    fn try_from(request: csi::GetVolumeGroupSnapshotRequest) -> Result<Self> {
        let id = required("group_snapshot_id", &request.group_snapshot_id)?;
        secrets(request.secrets)?;
        let id = lookup("group snapshot", id)?;
        Ok(GetGroup { id, snapshots: members(&request.snapshot_ids)? })
    }
}

/// A member that cannot be ours is a mismatch: INVALID_ARGUMENT (CSI spec, "Snapshot list mismatch").
fn members(ids: &[String]) -> Result<Vec<SnapshotId>> {
    if ids.is_empty() {
        return Err(Error::invalid("snapshot_ids", "at least one is required"));
    }
    let member = |id: &String| {
        id.parse().map_err(|error| match error {
            Error::Invalid { reason, .. } => Error::invalid("snapshot_ids", cut(&reason)),
            other => other,
        })
    };
    ids.iter().map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::decode::testing::{not_found, refused};

    #[test]
    fn create_needs_a_name_and_sources() {
        let create = |name: &str, sources: &[&str]| csi::CreateVolumeGroupSnapshotRequest {
            name: name.to_owned(),
            source_volume_ids: sources.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        assert_eq!(CreateGroup::try_from(create("g", &["image:a", "image:b"])).expect("valid").sources.len(), 2);
        refused::<CreateGroup, _>(create("", &[]), "name");
        refused::<CreateGroup, _>(create("g", &[]), "source_volume_ids");
        refused::<CreateGroup, _>(create("g", &["image:a", ""]), "source_volume_ids");
        not_found::<CreateGroup, _>(create("g", &["image:a", "fake-vol-id"]));
    }

    #[test]
    fn delete_and_get_need_an_id_and_the_members_of_a_group_that_may_exist() {
        let delete = |id: &str, members: &[&str]| csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: id.to_owned(),
            snapshot_ids: members.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        refused::<DeleteGroup, _>(delete("", &[]), "group_snapshot_id");
        assert!(matches!(DeleteGroup::try_from(delete("fake-vol-id", &[])), Ok(DeleteGroup::Nothing)));
        refused::<DeleteGroup, _>(delete("image:g", &[]), "snapshot_ids");
        refused::<DeleteGroup, _>(delete("image:g", &["no id"]), "snapshot_ids");
        assert!(matches!(DeleteGroup::try_from(delete("image:g", &["image:s"])), Ok(DeleteGroup::Group { .. })));

        let get = |id: &str, members: &[&str]| csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: id.to_owned(),
            snapshot_ids: members.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        refused::<GetGroup, _>(get("", &[]), "group_snapshot_id");
        not_found::<GetGroup, _>(get("fake-vol-id", &[]));
        refused::<GetGroup, _>(get("image:g", &[]), "snapshot_ids");
        assert!(GetGroup::try_from(get("image:g", &["image:s"])).is_ok());
    }
}

//! Snapshots of several volumes at one instant.

use std::collections::BTreeSet;

use super::*;
use crate::backend::{Groups, SnapshotSpec};
use crate::volume::{Group, GroupId};

impl Controller {
    /// Takes snapshots of all `sources` at one instant, or finds that they were taken (CreateVolumeGroupSnapshot).
    ///
    /// # Errors
    /// `Invalid` where the volumes lie in several backends; `Conflict` where the name is taken by other volumes' group.
    pub fn create_group(&self, name: &str, sources: &[VolumeId], parameters: &RawParameters) -> Result<Outcome<Group>> {
        let sources: BTreeSet<&VolumeId> = sources.iter().collect();
        let first = sources.first().ok_or_else(|| Error::invalid("source_volume_ids", "at least one is needed"))?;
        if let Some(other) = sources.iter().find(|source| source.backend() != first.backend()) {
            let reason = format!("{first} and {other} lie in different backends, which share no instant");
            return Err(Error::invalid("source_volume_ids", reason));
        }
        let backend = self.backend(first.backend())?;
        let groups = groups(backend)?;
        groups.check_group(parameters)?;
        let id = GroupId::derive(backend.name(), name);
        let _group = self.locks.exclusive(Key::Group(id.clone()), "create group snapshot")?;
        if let Some(existing) = groups.find_group(&id)? {
            let existing_sources: BTreeSet<&VolumeId> = existing.snapshots.iter().map(|snapshot| &snapshot.source).collect();
            if existing_sources == sources {
                return Ok(Outcome::Unchanged(existing));
            }
            return Err(Error::Conflict {
                object: format!("group snapshot {id}"),
                existing: format!("the volumes {existing_sources:?}"),
                wanted: format!("{sources:?}"),
            });
        }
        let mut guards = Vec::new();
        let mut members = Vec::new();
        for source in sources {
            guards.push(self.locks.shared(Key::Volume(source.clone()), "group snapshot")?);
            self.existing(backend, source)?;
            let (snapshot, member_name) = member_id(name, source);
            guards.push(self.locks.exclusive(Key::Snapshot(snapshot.clone()), "group snapshot")?);
            let (source, parameters) = (source.clone(), parameters.clone());
            members.push(SnapshotSpec { id: snapshot, name: member_name, source, parameters });
        }
        groups.create_group(&id, name, &members, self.quiesce()?).map(Outcome::Changed)
    }

    /// Removes a group with all its snapshots; one that is not there is fine (DeleteVolumeGroupSnapshot).
    pub fn delete_group(&self, id: &GroupId, snapshots: &[SnapshotId]) -> Result<Outcome<()>> {
        let groups = groups(self.backend(id.backend())?)?;
        let _group = self.locks.exclusive(Key::Group(id.clone()), "delete group snapshot")?;
        let Some(members) = groups.group_members(id)? else {
            // What a killed call has left of it is the backend's to know.
            return groups.delete_group(id);
        };
        belong(id, &members, snapshots)?;
        let mut guards = Vec::new();
        for snapshot in members {
            guards.push(self.locks.exclusive(Key::Snapshot(snapshot), "delete group snapshot")?);
        }
        groups.delete_group(id)
    }

    /// One group (GetVolumeGroupSnapshot).
    pub fn get_group(&self, id: &GroupId, snapshots: &[SnapshotId]) -> Result<Group> {
        let group = groups(self.backend(id.backend())?)?.find_group(id)?;
        let group = group.ok_or_else(|| Error::NotFound { kind: "group snapshot", id: id.to_string() })?;
        let members: Vec<SnapshotId> = group.snapshots.iter().map(|snapshot| snapshot.id.clone()).collect();
        belong(id, &members, snapshots)?;
        Ok(group)
    }
}

fn groups(backend: &Arc<dyn Backend>) -> Result<&dyn Groups> {
    backend.groups().ok_or_else(|| unsupported(backend, "group snapshots"))
}

/// The CO's list of members must be ours (CSI spec, DeleteVolumeGroupSnapshot: "Snapshot list mismatch").
fn belong(group: &GroupId, members: &[SnapshotId], reported: &[SnapshotId]) -> Result<()> {
    match reported.iter().find(|id| !members.contains(id)) {
        None => Ok(()),
        Some(stranger) => Err(Error::invalid("snapshot_ids", format!("{stranger} is not in group {group}"))),
    }
}

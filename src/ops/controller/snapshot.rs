//! Snapshots come and go.

use super::*;
use crate::backend::{SnapshotSpec, Snapshots};
use crate::volume::Snapshot;

/// What ListSnapshots is asked for.
#[derive(Clone, Debug, Default)]
pub struct SnapshotFilter {
    pub source: Option<VolumeId>,
    pub id: Option<SnapshotId>,
}

impl Controller {
    /// Takes a snapshot, or finds that it was taken (CreateSnapshot).
    ///
    /// # Errors
    /// `Conflict` where the name is taken by a snapshot of another volume.
    /// `NoCapacity` where it must be usable from a place that its volume is not in.
    pub fn snapshot(
        &self,
        name: &str,
        source: &VolumeId,
        parameters: &RawParameters,
        topology: &TopologyRequirement,
    ) -> Result<Outcome<Snapshot>> {
        let backend = self.backend(source.backend())?;
        let snapshots = snapshots(backend)?;
        snapshots.check(parameters)?;
        check_place(backend, topology)?;
        let id = SnapshotId::derive(source.backend(), name);
        let _snapshot = self.locks.exclusive(Key::Snapshot(id.clone()), "create snapshot")?;
        if let Some(existing) = snapshots.find_snapshot(&id)? {
            if existing.source == *source && existing.name == name {
                return Ok(Outcome::Unchanged(existing));
            }
            return Err(Error::Conflict {
                object: format!("snapshot {:?} ({id})", existing.name),
                existing: format!("the source {}", existing.source),
                wanted: source.to_string(),
            });
        }
        let _source = self.locks.shared(Key::Volume(source.clone()), "snapshot")?;
        self.existing(backend, source)?;
        let spec = SnapshotSpec { id, name: name.to_owned(), source: source.clone(), parameters: parameters.clone() };
        snapshots.create_snapshot(&spec, self.quiesce()?).map(Outcome::Changed)
    }

    /// Removes a snapshot; one that is not there is fine (DeleteSnapshot).
    ///
    /// # Errors
    /// `Invalid` for a member of a group, as the specification wants it: it goes with its group only.
    pub fn delete_snapshot(&self, id: &SnapshotId) -> Result<Outcome<()>> {
        let backend = self.backend(id.backend())?;
        let snapshots = snapshots(backend)?;
        let _snapshot = self.locks.exclusive(Key::Snapshot(id.clone()), "delete snapshot")?;
        // Looking at one that is not ready may continue with it.
        if backend.groups().is_some()
            && let Some(group) = snapshots.find_snapshot(id)?.and_then(|snapshot| snapshot.group)
        {
            return Err(Error::invalid("snapshot_id", format!("{id} is part of group {group}; delete the group")));
        }
        snapshots.delete_snapshot(id)
    }

    /// One snapshot (GetSnapshot).
    pub fn get_snapshot(&self, id: &SnapshotId) -> Result<Snapshot> {
        snapshots(self.backend(id.backend())?)?.find_snapshot(id)?.ok_or_else(|| Error::snapshot_not_found(id))
    }
}

pub(super) fn snapshots(backend: &Arc<dyn Backend>) -> Result<&dyn Snapshots> {
    backend.snapshots().ok_or_else(|| unsupported(backend, "snapshots"))
}

//! What of this cluster lies in the cloud that no handle names, and which handles name nothing. It only reports; one volume is deleted by
//! its name, on demand, after looking again.

use std::collections::BTreeSet;

use crate::backend::{Attach, Provision};
use crate::volume::{BackendName, Error, Outcome, Result, VolumeId};

use super::frame::{CloudBackend, Controller};
use super::tags::{SNAPSHOT, TEMPORARY, VOLUME};
use super::{CloudSnapshot, Disk, DiskState};

/// Something that no handle names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// Our id of it; `None` where its tags do not say.
    pub handle: Option<String>,
    /// The cloud's id, with what is known of it, for people.
    pub what: String,
    /// The nodes that have it.
    pub attached: Vec<String>,
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Garbage {
    pub disks: Vec<Unnamed>,
    pub snapshots: Vec<Unnamed>,
    /// Handles of this backend that have no disk and no snapshot.
    pub missing: Vec<String>,
}

/// Compares handles (of volumes and of snapshots, as PersistentVolumes and VolumeSnapshotContents have them) with what lies in the cloud.
/// Handles of other backends are left out. Without the snapshots' handles, pass no snapshots.
pub fn compare(backend: &BackendName, handles: &BTreeSet<String>, disks: &[Disk], snapshots: &[CloudSnapshot]) -> Garbage {
    let handle = |local: Option<&String>| local.map(|local| format!("{backend}:{local}"));
    let named = |handle: &Option<String>| handle.as_ref().is_some_and(|handle| handles.contains(handle));
    let mut garbage = Garbage::default();
    let mut there = BTreeSet::new();
    for disk in disks.iter().filter(|disk| !matches!(disk.state, DiskState::Deleting | DiskState::Deleted)) {
        let handle = handle(disk.tags.get(VOLUME));
        there.extend(handle.clone());
        if !named(&handle) {
            let what = format!("disk {}, {} in {}, {:?}", disk.id, disk.capacity, disk.zone, disk.state);
            let attached = super::attach::held_by(disk).map(|place| place.instance.to_string()).collect();
            garbage.disks.push(Unnamed { handle, what, attached });
        }
    }
    for snapshot in snapshots {
        let handle = handle(snapshot.tags.get(SNAPSHOT));
        there.extend(handle.clone());
        if !named(&handle) {
            let purpose = match snapshot.tags.get(TEMPORARY) {
                Some(copy) => format!(", on the way to volume {backend}:{copy}"),
                None => String::new(),
            };
            let what = format!("snapshot {} of disk {}, {}{purpose}", snapshot.id, snapshot.disk, snapshot.capacity);
            garbage.snapshots.push(Unnamed { handle, what, attached: Vec::new() });
        }
    }
    let ours = format!("{backend}:");
    garbage.missing = handles.iter().filter(|handle| handle.starts_with(&ours) && !there.contains(*handle)).cloned().collect();
    garbage
}

impl CloudBackend {
    /// What no handle names, as the cloud tells it now. Volumes that are being made, and whose PersistentVolume does not exist yet, are
    /// among it.
    ///
    /// # Errors
    /// Where the cloud could not be asked: then nothing is said of anything.
    pub fn garbage(&self, handles: &BTreeSet<String>) -> Result<Garbage> {
        let controller = self.controller()?;
        let disks = controller.all_disks(false)?;
        let snapshots = controller.all_snapshots(false)?;
        Ok(compare(&controller.owner.backend, handles, &disks, &snapshots))
    }

    /// Deletes one volume that no handle names, after looking again.
    ///
    /// # Errors
    /// `InUse` where a handle names it, or a node has it; `NotFound`.
    pub fn delete_garbage(&self, id: &VolumeId, handles: &BTreeSet<String>) -> Result<Outcome<()>> {
        let controller = self.controller()?;
        let in_use = |by: String| Err(Error::InUse { object: format!("volume {id}"), by });
        if handles.contains(&id.to_string()) {
            return in_use("a PersistentVolume names it".to_owned());
        }
        let nodes = controller.attachments(std::slice::from_ref(id))?;
        match nodes.get(id) {
            None => Err(Error::volume_not_found(id)),
            Some(nodes) => match nodes.first() {
                Some(node) => in_use(format!("it is attached to node {node}")),
                None => Provision::delete(controller, id),
            },
        }
    }

    fn controller(&self) -> Result<&Controller> {
        self.half(|controller| controller).ok_or_else(|| Error::Unsupported {
            what: "looking at what lies in the cloud".to_owned(),
            reason: "this process serves a node only".to_owned(),
        })
    }
}

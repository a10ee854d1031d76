//! What of this cluster lies in the cloud that no handle names, and which handles name nothing. It only reports; one volume is deleted by
//! its name, on demand, after looking again.

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::{Attach, Compare, Garbage, Provision, Unnamed};
use crate::volume::{Error, Outcome, Result, VolumeId};

use super::api::{CloudSnapshot, Disk, DiskState};
use super::backend::CloudBackend;
use super::controller::Controller;
use super::tags::{Owner, SNAPSHOT, TEMPORARY, VOLUME};
use super::zones;

/// Compares handles (of volumes and of snapshots, as PersistentVolumes and VolumeSnapshotContents have them) with what lies in the cloud.
/// Handles of other backends are left out. Without the snapshots' handles, pass no snapshots.
///
/// A handle without a recorded disk, of a volume that a driver made that recorded none, names the disk with its tag where there is one.
/// A snapshot that only has a volume's tags is a backup that another program took of it, and is left out.
pub(super) fn compare(owner: &Owner, handles: &BTreeSet<String>, disks: &[Disk], snapshots: &[CloudSnapshot]) -> Garbage {
    let mut garbage = Garbage::default();
    let mut there = BTreeSet::new();
    let disks: Vec<&Disk> = disks.iter().filter(|disk| !matches!(disk.state, DiskState::Deleting | DiskState::Deleted)).collect();
    let mut by_tag: BTreeMap<Option<&String>, u32> = BTreeMap::new();
    disks.iter().for_each(|disk| *by_tag.entry(disk.tags.get(VOLUME)).or_default() += 1);
    for disk in &disks {
        let id = owner.volume_id(disk);
        let unrecorded = id.as_ref().map(|id| id.unrecorded().to_string());
        let (handle, is_one) = (id.map(|id| id.to_string()), by_tag[&disk.tags.get(VOLUME)] == 1);
        there.extend(handle.iter().chain(&unrecorded).cloned());
        let is_named = |handle: &Option<String>| handle.as_ref().is_some_and(|handle| handles.contains(handle));
        let is_used = is_named(&handle) || is_one && is_named(&unrecorded);
        if !is_used {
            let copy =
                if is_one { "" } else { ", one of several with this volume's tag: others may be copies of it, or it of one" };
            let what = format!("disk {}, {} in {}, {:?}{copy}", disk.id, disk.capacity, zones::words(&disk.zones), disk.state);
            let attached = disk.held_by().map(|place| place.instance.to_string()).collect();
            garbage.disks.push(Unnamed { handle, what, attached });
        }
    }
    let made = |snapshot: &&CloudSnapshot| [SNAPSHOT, TEMPORARY].iter().any(|key| snapshot.tags.contains_key(*key));
    for snapshot in snapshots.iter().filter(made) {
        let id = owner.snapshot_id(snapshot);
        let names = id.as_ref().map(|id| [id.to_string(), id.unrecorded().to_string()]);
        there.extend(names.iter().flatten().cloned());
        if !names.iter().flatten().any(|name| handles.contains(name)) {
            let purpose = match snapshot.tags.get(TEMPORARY) {
                Some(copy) => format!(", on the way to volume {}:{copy}", owner.backend),
                None => String::new(),
            };
            let what = format!("snapshot {} of disk {}, {}{purpose}", snapshot.id, snapshot.disk, snapshot.capacity);
            garbage.snapshots.push(Unnamed { handle: id.map(|id| id.to_string()), what, attached: Vec::new() });
        }
    }
    let ours = format!("{}:", owner.backend);
    // Existing disks are not among ours.
    let is_existing = |handle: &String| handle.parse::<VolumeId>().is_ok_and(|id| id.is_existing());
    let is_missing = |handle: &&String| handle.starts_with(&ours) && !there.contains(*handle) && !is_existing(handle);
    garbage.missing = handles.iter().filter(is_missing).cloned().collect();
    garbage
}

impl Compare for CloudBackend {
    fn unnamed(&self, handles: &BTreeSet<String>) -> Result<Garbage> {
        self.garbage(handles)
    }

    fn delete_unnamed(&self, id: &VolumeId, handles: &BTreeSet<String>) -> Result<Outcome<()>> {
        self.delete_garbage(id, handles)
    }
}

impl CloudBackend {
    /// What no handle names, as the cloud tells it now. Volumes that are being made, and whose PersistentVolume does not exist yet, are
    /// among it.
    ///
    /// # Errors
    /// Where the cloud could not be asked: then nothing is said of anything.
    pub fn garbage(&self, handles: &BTreeSet<String>) -> Result<Garbage> {
        let controller = self.controller()?;
        let disks: Vec<Disk> = controller.all_disks(false)?.iter().collect();
        let snapshots: Vec<CloudSnapshot> = controller.all_snapshots(false)?.iter().collect();
        Ok(compare(&controller.owner, handles, &disks, &snapshots))
    }

    /// Deletes one volume that no handle names, after looking again.
    ///
    /// # Errors
    /// `InUse` where a handle names it, or a node has it; `NotFound`.
    pub fn delete_garbage(&self, id: &VolumeId, handles: &BTreeSet<String>) -> Result<Outcome<()>> {
        let controller = self.controller()?;
        let in_use = |by: String| Err(Error::InUse { object: format!("volume {id}"), by });
        // Handles of one volume may have its disk recorded or not; only two that name different disks are of different volumes.
        let names = |handle: &String| {
            let other = handle.parse::<VolumeId>().ok().filter(|other| other.unrecorded() == id.unrecorded());
            other.is_some_and(|other| other.recorded().is_none() || id.recorded().is_none() || other == *id)
        };
        if handles.iter().any(names) {
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
        self.controller_as(|controller| controller).ok_or_else(|| Error::Unsupported {
            what: "looking at what lies in the cloud".to_owned(),
            reason: "this process serves a node only".to_owned(),
        })
    }
}

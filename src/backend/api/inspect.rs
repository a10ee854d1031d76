//! What `longshore inspect` shows of a backend's storage.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::backend::lock_holder::{LockHolder, LockRecord};
use crate::volume::{Bytes, Error, Health, NodeId, Outcome, Result, VolumeId};

use super::node::BlockDevice;

/// What was to be repaired is not what it was when it was looked at.
pub(in crate::backend) fn changed(object: impl Display) -> Error {
    let reason = "it is not what it was a moment ago; look again".to_owned();
    Error::Unverified { device: object.to_string(), reason }
}

/// A command for people.
pub(in crate::backend) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// What `longshore inspect` shows of a backend's storage, and lets go of.
pub trait Inspect: Send + Sync {
    /// What is there, by looking only: nothing is changed and no lock is taken, so that a driver that runs is not hindered.
    ///
    /// # Errors
    /// Where nothing could be seen; what could not be seen of a part goes into [`Survey::unseen`].
    fn survey(&self) -> Result<Survey>;

    /// Takes exactly this device from the node, if it still is what it was in `survey`. No driver runs meanwhile.
    ///
    /// # Errors
    /// Where it is something else by now, or in use.
    fn release(&self, device: &BlockDevice) -> Result<()>;

    /// Removes a [`Leftover`] that is `removable`, after looking again, and not while someone provisions.
    ///
    /// # Errors
    /// `InUse`, naming who provisions.
    fn remove(&self, leftover: &Leftover) -> Result<()> {
        Err(Error::Unsupported {
            what: format!("removing {}", leftover.object.display()),
            reason: "its backend leaves nothing".to_owned(),
        })
    }
}

/// What a backend has, as [`Inspect::survey`] saw it.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    pub places: Vec<Place>,
    /// In the order of their ids.
    pub volumes: Vec<Stored>,
    /// What of it is connected on this node, be it no volume's any more.
    pub devices: Vec<Connected>,
    pub leftovers: Vec<Leftover>,
    /// What could not be seen, and why: nothing may be concluded from its absence.
    pub unseen: Vec<(String, String)>,
}

/// Where volumes lie: a pool, an export, a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub name: String,
    /// A path, or how else an operator finds it.
    pub at: String,
    pub total: Bytes,
    pub free: Bytes,
    pub read_only: bool,
    /// The process that provisions from it, if one is seen to.
    pub provisioner: Option<LockHolder>,
    /// Where none is seen to: who has recorded on another machine that it does, which is no proof that it still does.
    pub recorded: Option<LockRecord>,
}

/// A volume in its storage.
#[derive(Clone, Debug)]
pub struct Stored {
    pub id: VolumeId,
    /// An image, a LUN, a share.
    pub at: String,
    pub capacity: Option<Bytes>,
    /// What it takes of its place.
    pub allocated: Option<Bytes>,
    pub created: Option<SystemTime>,
    /// The nodes that have it, where its storage shows it to nodes.
    pub attached: Vec<NodeId>,
    pub health: Health,
}

/// A device of this node that shows something of the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    pub device: BlockDevice,
    /// The volume that it shows, or did.
    pub id: VolumeId,
    /// The backend made it. What someone else attached is reported and left alone.
    pub ours: bool,
    /// What it shows now, for people.
    pub shows: String,
    pub size: Option<Bytes>,
    /// What a person runs to take exactly this device from the node.
    pub release: Vec<String>,
}

/// An orphaned resource in the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub kind: LeftoverKind,
    /// Whose it was.
    pub id: String,
    pub object: PathBuf,
    pub what: String,
    /// The commands that repair it, each as words.
    pub commands: Vec<Vec<String>>,
    /// [`Inspect::remove`] does it: no data is lost by it.
    pub removable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoverKind {
    /// Half made.
    Draft,
    /// Deleted, but not to the end.
    Trash,
    /// Data of which it is not known what it is.
    WithoutMetadata,
    /// Known, but its data is gone.
    WithoutData,
    /// Shown to nodes, though nothing says that it should be.
    Export,
    /// To be shown to nodes, but not.
    NotExported,
    /// This node's lease of a volume that others may not connect meanwhile. Left over, unless a stage of it is journaled here.
    Lease,
    /// A lease of which it is not known whose it is.
    LeaseDamaged,
    /// A volume or snapshot that has another name in the storage than the driver gave it, and so is not found there.
    Renamed,
    /// The limit of a project that nothing has.
    Quota,
}

/// Compares what a storage holds of this cluster with the handles that are in use, for `longshore inspect --backend`.
pub trait Compare: Send + Sync {
    /// What no handle (of volumes and of snapshots, as PersistentVolumes and VolumeSnapshotContents have them) names, and which handles
    /// name nothing. Volumes that are being made, and whose PersistentVolume does not exist yet, are among it.
    ///
    /// # Errors
    /// Where the storage could not be asked: then nothing is known of anything.
    fn unnamed(&self, handles: &BTreeSet<String>) -> Result<Garbage>;

    /// Deletes one volume that no handle names, after looking again.
    ///
    /// # Errors
    /// `InUse` where a handle names it, or a node has it; `NotFound`.
    fn delete_unnamed(&self, id: &VolumeId, handles: &BTreeSet<String>) -> Result<Outcome<()>>;
}

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

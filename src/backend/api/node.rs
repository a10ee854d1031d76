//! The node's side: what a volume becomes there.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::os;
use crate::os::block::Device;
use crate::volume::{Bytes, Error, IoLimits, MountFlags, NodeId, Outcome, Result, Secrets, VolumeId};

/// What a connected volume is on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// A block device: image over loop, LVM, iSCSI, cloud disk.
    Device(BlockDevice),
    /// Something to mount as it is: tmpfs.
    Filesystem { fstype: String, source: String, options: Vec<String> },
    /// A directory of what this node has mounted for several volumes: NFS, a local file system.
    Directory(Directory),
}

impl Source {
    /// The directory of a network share that it is (`root: None`). Nothing is mounted at its staging path: the kubelet takes mounts with
    /// the same device number and root in mountinfo for mounts of one device, all mounts of an export have the same, and while another is
    /// there the kubelet does not unstage (kubernetes, pkg/volume/util/operationexecutor, `GetDeviceMountRefs`).
    pub fn network_directory(&self) -> Option<&Directory> {
        match self {
            Source::Directory(directory) if directory.root.is_none() => Some(directory),
            _ => None,
        }
    }
}

/// A directory of a shared mount, to be bound where the volume is published, and staged if it has a `root`. Others may have the same
/// directory, so that a mount is this volume's by the journal's word for its place, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Directory {
    /// Where the shared mount is, in a directory of the driver's own.
    pub mount: PathBuf,
    /// Below it; empty for all of it.
    pub directory: PathBuf,
    /// As mountinfo shows a bind mount of the directory.
    pub fstype: String,
    pub source: String,
    /// Of the shared mount's file system.
    pub device: (u32, u32),
    /// What mountinfo shows as the root of a bind mount of the directory, where that and the device distinguish it (a local file system);
    /// `None` where the source does (NFS), and then it is not bound where it is staged. Empty is any: what was bound where the journal says
    /// is the volume's, be it renamed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<PathBuf>,
    /// Options of each bind mount of it, before those that the CO gives: `nosuid`, `nodev`.
    pub options: Vec<String>,
}

/// A block device of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockDevice {
    /// Such as `/dev/loop3`. A name may come to mean another device: check `number` and `identity` on the open device.
    pub path: PathBuf,
    /// Major and minor.
    pub number: (u32, u32),
    /// What makes it this volume's and no other's: serial, WWID, backing file. Compared as a whole within a boot. What follows an
    /// `@` is another after a boot: see [`BlockDevice::lasting_identity`].
    pub identity: String,
}

impl BlockDevice {
    /// What of the identity stays from boot to boot. A file system may have another device number after each (btrfs, NFS, device
    /// mapper).
    pub fn lasting_identity(&self) -> &str {
        self.identity.split_once('@').map_or(&self.identity, |(lasting, _)| lasting)
    }
}

/// What a node holds towards a storage, for one volume or several: the mount of a share, the sessions with a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedConnection {
    /// A path, or a target's name.
    pub object: String,
    /// To where, and in what state, for people.
    pub state: String,
    /// All of it is there, as far as the kernel knows.
    pub up: bool,
    /// For whom the backend made it.
    pub users: Vec<VolumeId>,
    /// That come with it.
    pub devices: Vec<BlockDevice>,
    /// What a person runs to take it down, each as words.
    pub release: Vec<Vec<String>>,
}

impl SharedConnection {
    /// Whether something is by way of it.
    pub fn carries(&self, source: &Source) -> bool {
        match source {
            Source::Device(device) => self.devices.iter().any(|own| own.number == device.number),
            Source::Directory(directory) => directory.mount.as_os_str() == self.object.as_str(),
            Source::Filesystem { .. } => false,
        }
    }
}

/// What a device must hold to be the volume's, where nothing else shows this node for certain which device the volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedContents {
    /// Of the file system or LUKS header, and of those that are to be made: 36 characters in lower case. `None`: any.
    pub uuid: Option<String>,
    /// The volume was copied from one that held something, or made by another program: it is not blank.
    pub is_copy: bool,
    /// Where the device is by the storage's word, for people: `LUN 5`.
    pub place: String,
    /// What a person does about a device that holds something else.
    pub remedy: String,
}

impl ExpectedContents {
    /// Whether what has this UUID may be the volume's.
    pub fn may_be(&self, uuid: &str) -> bool {
        self.uuid.as_deref().is_none_or(|own| own == uuid)
    }
}

/// What a node needs to know to connect a volume.
#[derive(Clone, Debug)]
pub struct ConnectRequest<'a> {
    pub id: &'a VolumeId,
    /// The backend's own parameters, from volume_context; `Null` for a volume that came without.
    pub parameters: &'a serde_json::Value,
    /// From ControllerPublishVolume.
    pub publish_context: &'a BTreeMap<String, String>,
    pub secrets: &'a Secrets,
    /// The CO's mount options, for what is mounted on the way ([`Source::Directory`]).
    pub mount_flags: &'a MountFlags,
    /// Nobody on this node may write.
    pub read_only: bool,
    /// What it was connected as before, be it in an earlier boot: for a call that brings no publish_context.
    pub earlier: Option<&'a Source>,
}

/// The node's side of a backend. No mounts, no file systems: those are `ops::node`'s.
pub trait Connect: Send + Sync {
    /// Makes the volume appear on this node. Connected already is fine.
    ///
    /// # Errors
    /// `NotFound`; `WrongNode` where it lies elsewhere; `InProgress` for a device that has not shown up in time.
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>>;

    /// Whether it is connected, and as what. `hint` is what `connect` answered, from the journal, if that is known:
    /// a true hint makes this cheap, a wrong one is never believed.
    fn connected(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>>;

    /// Whether a device still is what it was when `connect` answered it, be that no volume's any more: its name and number may be
    /// another's by now, and then the mounts of it are, too. Without an answer of the backend's own, no device is believed.
    fn is_same_device(&self, source: &Source) -> Result<bool> {
        Ok(matches!(source, Source::Filesystem { .. }))
    }

    /// Whether this node may still use what it has connected, where its storage leaves it to the nodes to ask. Asked before what is
    /// staged already is staged again or published.
    ///
    /// # Errors
    /// `InUse` or `WrongNode`, naming the node that may.
    fn may_use(&self, _id: &VolumeId) -> Result<()> {
        Ok(())
    }

    /// Whether what is connected is so by the attachment that publish_context is of, where that is known: between two attachments of a volume to
    /// one node another may have written to it. Asked with `may_use`.
    ///
    /// # Errors
    /// [`detached_meanwhile`]
    fn check_attachment(&self, _id: &VolumeId, _publish_context: &BTreeMap<String, String>) -> Result<()> {
        Ok(())
    }

    /// Whether what is connected answers, where that is not certain: a server. Comes back in seconds, whatever the server does;
    /// asked before anything that would wait for it.
    ///
    /// # Errors
    /// `BackendUnavailable`; `Stale` where it answers, but what was mounted is no longer there.
    fn reach(&self, _source: &Source) -> Result<()> {
        Ok(())
    }

    /// Undoes `connect`, seen to be undone on return. Not connected is `Unchanged`.
    fn disconnect(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Outcome<()>>;

    /// When the driver starts, before any call: lets go of what an earlier process left that no volume has.
    fn recover(&self) {}

    /// What this node holds towards the storage, by looking only, and without asking any server: for `longshore inspect`.
    fn shared_connections(&self) -> Result<Vec<SharedConnection>> {
        Ok(Vec::new())
    }

    /// Takes down a connection whose volumes are nowhere on this node, if it still is what it was in `shared_connections`. No driver runs meanwhile.
    ///
    /// # Errors
    /// Where it is something else by now, or in use.
    fn release_connection(&self, connection: &SharedConnection) -> Result<()> {
        let reason = "its backend has none".to_owned();
        Err(Error::Unsupported { what: format!("taking down {}", connection.object), reason })
    }

    /// Makes the device as large as the volume has become; answers its size in bytes.
    fn refresh(&self, id: &VolumeId, source: &Source) -> Result<Bytes>;

    /// The file that the open device shows byte for byte, flushed: where it has holes, the device is blank without being read.
    /// `None` where there is no such file.
    ///
    /// # Errors
    /// `Unverified` where the open device is not this volume's, whatever its name.
    fn backing_file(&self, _id: &VolumeId, _device: &Device) -> Result<Option<File>> {
        Ok(None)
    }

    /// Whether the storage says that this very volume was empty when it was attached, and that its device never was anything else: reading
    /// all of a large disk would take hours. Its signatures' places and samples of it are read all the same.
    fn known_blank(&self, _id: &VolumeId, _publish_context: &BTreeMap<String, String>) -> bool {
        false
    }

    /// What the connected device must hold, if that is known: of a volume that was made by an earlier driver, for one, it is not.
    ///
    /// # Errors
    /// `Invalid` for a publish_context that says no UUID.
    fn expected_contents(
        &self,
        _source: &Source,
        _publish_context: &BTreeMap<String, String>,
    ) -> Result<Option<ExpectedContents>> {
        Ok(None)
    }

    /// What is connected is about to be written for the first time since: from now on, durably, it is not known to be blank.
    fn about_to_write(&self, _id: &VolumeId, _source: &Source) -> Result<()> {
        Ok(())
    }

    /// How full a directory of a local file system is, `open` being where it is bound: by its quota, if it has one.
    ///
    /// # Errors
    /// Where the file system cannot be asked.
    fn usage(&self, _id: &VolumeId, open: BorrowedFd<'_>) -> Result<os::fs::Usage> {
        Ok(os::fs::usage(open)?)
    }

    /// Bytes in use, where the backend knows it of a raw device.
    fn used(&self, _id: &VolumeId) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// Whether [`Connect::io_limits`] may answer any.
    fn limits_io(&self) -> bool {
        false
    }

    /// How much each pod that has the volume may read and write of its device, as it is set now.
    ///
    /// # Errors
    /// Where the storage does not say it.
    fn io_limits(&self, _id: &VolumeId) -> Result<IoLimits> {
        Ok(IoLimits::default())
    }

    /// The id that this node has with its storage, where the CO must know it by that one.
    ///
    /// # Errors
    /// `BackendUnavailable` while it is not known.
    fn node_id(&self) -> Result<Option<NodeId>> {
        Ok(None)
    }

    /// The most volumes that this node can have connected; `None` is no limit of ours.
    fn limit(&self) -> Option<u64> {
        None
    }
}

/// A volume that was detached from this node while it was staged here, and attached again.
pub fn detached_meanwhile(id: &VolumeId) -> Error {
    let reason = "the volume was detached from this node meanwhile, and another node may have written to it: unstage the volume here (delete the \
                  pods that use it), and stage it again";
    Error::NotStaged { volume: id.to_string(), reason: reason.to_owned() }
}

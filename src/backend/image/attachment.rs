//! `attached.json` beside an image: to which nodes the controller has attached the volume.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::os::step::step;
use crate::volume::{AccessMode, Error, NodeId, Result, VolumeId};

use super::files;
use super::layout::{ATTACHED, Kind};
use super::meta;
use super::ready::Ready;
use super::room;

/// In publish_context: the node to which the controller has attached the volume.
pub(super) const ATTACHED_TO: &str = "attachedTo";

/// `attached.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttachmentRecord {
    pub format: u32,
    pub volume: VolumeId,
    pub nodes: BTreeMap<NodeId, Grant>,
}

/// How a node may use the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Grant {
    pub mode: AccessMode,
    pub read_only: bool,
}

impl Grant {
    pub fn writes(self) -> bool {
        !self.read_only && !self.mode.is_read_only()
    }
}

impl AttachmentRecord {
    /// `None` where the volume was never attached.
    ///
    /// # Errors
    /// `Unverified` where it cannot be read: then it is not known who may use the volume.
    pub fn read(ready: &Ready, id: &VolumeId) -> Result<Option<AttachmentRecord>> {
        let relative = Path::new(Kind::Volume.directory()).join(id.local()).join(ATTACHED);
        let text = files::read(ready.root(), &relative, meta::LONGEST).map_err(|error| ready.failure(error))?;
        let Some(text) = text else { return Ok(None) };
        let path = ready.path.join(&relative);
        let record: AttachmentRecord = meta::decode(&path, &text)?;
        if record.volume != *id {
            return Err(meta::Damage::metadata(&path, format!("it belongs to {}; restore the right one", record.volume)).into());
        }
        Ok(Some(record))
    }

    pub fn write(&self, ready: &Ready) -> Result<()> {
        ready.check_kept()?;
        let path = ready.place(Kind::Volume, self.volume.local());
        let text = meta::encode(self, &path.join(ATTACHED))?;
        let relative = Path::new(Kind::Volume.directory()).join(self.volume.local());
        let directory = files::open_directory(ready.root(), &relative).map_err(|error| ready.failure(error))?;
        let directory = directory.ok_or_else(|| Error::volume_not_found(&self.volume))?;
        step("write attachment", &path.display(), || room::replace_record(&directory, &path, &text))
            .map_err(|error| ready.failure(error))
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.nodes.keys().map(NodeId::as_str).collect();
        if names.is_empty() { "no node".to_owned() } else { names.join(", ") }
    }
}

/// Whether `node` may connect a volume, as far as its controller decides.
///
/// # Errors
/// `WrongNode`, naming the nodes to which it is attached.
pub(super) fn check_attached(
    ready: &Ready,
    id: &VolumeId,
    node: &NodeId,
    publish_context: &BTreeMap<String, String>,
    read_only: bool,
) -> Result<()> {
    let wrong = |reason: String| Err(Error::WrongNode { object: format!("volume {id}"), reason });
    let Some(record) = AttachmentRecord::read(ready, id)? else {
        if publish_context.contains_key(ATTACHED_TO) {
            return wrong(format!("{ATTACHED} beside its image is gone; attach it again (ControllerPublishVolume)"));
        }
        return Ok(());
    };
    match record.nodes.get(node) {
        Some(grant) if read_only || grant.writes() => Ok(()),
        Some(_) => wrong(format!("it is attached to node {node} for reading only; detach it, and attach it for writing")),
        None => wrong(format!(
            "it is attached to {}, not to node {node}; attach it first (ControllerPublishVolume). Where no controller attaches \
             volumes any more, remove {}",
            record.names(),
            ready.place(Kind::Volume, id.local()).join(ATTACHED).display()
        )),
    }
}

/// Whether the volume is attached to no node.
///
/// # Errors
/// `InUse`, naming the nodes.
pub(super) fn check_detached(ready: &Ready, id: &VolumeId) -> Result<()> {
    match AttachmentRecord::read(ready, id)?.filter(|record| !record.nodes.is_empty()) {
        None => Ok(()),
        Some(record) => {
            let by = format!("it is attached to {}; detach it first", record.names());
            Err(Error::InUse { object: format!("volume {id}"), by })
        }
    }
}

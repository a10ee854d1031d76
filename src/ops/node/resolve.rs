//! What a call means: which volume, which backend, which path.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::Backend;
use crate::ops::parameters::static_volume_backend;
use crate::volume::{Error, Result, VolumeId};

use super::context::Node;
use super::inline::identity;
use super::requests::Handle;

/// Which volume a CO means that tells no more than a handle: by an id of a backend that is configured, or by the journal. `None`
/// where it can be none that is here. An ephemeral one is [`identity::find`]'s.
pub(super) fn volume_by_handle(node: &Node, handle: &Handle) -> Result<Option<VolumeId>> {
    if let Handle::Id(id) = handle
        && node.registry.get(id.backend()).is_some()
    {
        return Ok(Some(id.clone()));
    }
    let name = handle.to_string();
    for backend in node.registry.iter() {
        let id = VolumeId::by_hand(backend.name(), &name);
        if node.journal.knows(&id)? {
            return Ok(Some(id));
        }
    }
    match handle {
        Handle::Id(id) if node.journal.knows(id)? => Ok(Some(id.clone())),
        Handle::Id(_) | Handle::Name(_) => volume_of_removed_backend(node, &name),
    }
}

/// A volume that a backend, which has left the configuration since, has left here under a name that is no id. Costs as much as the
/// journal has volumes, and is the last resort.
fn volume_of_removed_backend(node: &Node, name: &str) -> Result<Option<VolumeId>> {
    for id in node.journal.volumes()?.into_iter().filter(|id| node.registry.get(id.backend()).is_none()) {
        let backend = id.backend();
        if id == VolumeId::by_hand(backend, name) || identity::ids(node, backend, name)?.contains(&id) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// The volume that is staged or published at a path below the kubelet's directory, where its storage has it from another driver: its handle
/// means nothing any more once the configuration no longer says that such volumes are used.
pub(super) fn existing_at(node: &Node, path: &Path) -> Result<Option<VolumeId>> {
    for id in node.journal.volumes()?.into_iter().filter(VolumeId::is_existing) {
        let staged = node.journal.stage(&id)?.is_some_and(|entry| entry.staging == path);
        if staged || node.journal.target(&id, path)?.is_some() {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Which volume a CO means that also tells its attributes.
pub(super) fn volume_by_request(node: &Node, handle: &Handle, context: &BTreeMap<String, String>) -> Result<VolumeId> {
    match (handle, static_volume_backend(&node.registry, context)) {
        (Handle::Id(id), _) if node.registry.get(id.backend()).is_some() => Ok(id.clone()),
        (_, Some(backend)) => Ok(VolumeId::by_hand(backend.name(), &handle.to_string())),
        _ => volume_by_handle(node, handle)?.ok_or_else(|| Error::NotFound { kind: "volume", id: handle.to_string() }),
    }
}

/// The volume's backend.
///
/// # Errors
/// `BackendUnavailable` where the journal has the volume, but its backend has left the configuration; `NotFound` where neither has it.
pub(super) fn backend<'a>(node: &'a Node, id: &VolumeId) -> Result<&'a Arc<dyn Backend>> {
    match node.registry.get(id.backend()) {
        Some(backend) => Ok(backend),
        None if node.journal.knows(id)? => Err(Error::BackendUnavailable {
            backend: id.backend().to_string(),
            reason: format!(
                "it is not in the configuration, but the journal of node {} has its volume {id}; add the backend to the \
                 configuration again, until the volume is unstaged",
                node.id()
            ),
        }),
        None => Err(Error::volume_not_found(id)),
    }
}

/// A path of the CO's, below the kubelet's directory, as mountinfo will show it.
pub(super) fn path(node: &Node, path: &Path) -> Result<PathBuf> {
    Ok(node.kubelet.path().join(node.kubelet.relative(path)?))
}

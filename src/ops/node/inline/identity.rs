//! Which ephemeral inline volume a call means, and how its storage says that it is one of this node.

use crate::volume::{BackendName, Result, Volume, VolumeId};

use super::super::context::Node;
use super::super::requests::{Handle, PublishRequest};

/// The kubelet's word for it (volume_context).
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// The kubelet's name of the volume, if the request is for an ephemeral one.
pub(in crate::ops::node) fn handle_of(request: &PublishRequest) -> Option<String> {
    let ephemeral = request.volume_context.get(EPHEMERAL).is_some_and(|value| value == "true");
    ephemeral.then(|| request.handle.to_string())
}

/// The name of an ephemeral volume in its storage: the kubelet's name for it, and the driver that it belongs to.
pub(in crate::ops::node) fn mark(node: &Node, name: &str) -> Result<String> {
    Ok(format!("ephemeral volume {name}{}", owner(node)?))
}

fn owner(node: &Node) -> Result<String> {
    Ok(format!(" of node {} ({})", node.resolved_id()?, node.state.path().display()))
}

/// Whether its storage says that `volume` is an ephemeral one of this very driver: node and state directory.
pub(in crate::ops::node) fn owns(node: &Node, volume: &Volume) -> Result<bool> {
    Ok(volume.id.unrecorded() == VolumeId::ephemeral(volume.id.backend(), &volume.name) && volume.name.ends_with(&owner(node)?))
}

/// The ephemeral volume that the journal has under this name; it does not say in which backend, so each is looked at.
pub(in crate::ops::node) fn find(node: &Node, handle: &Handle) -> Result<Option<VolumeId>> {
    let name = handle.to_string();
    for backend in node.registry.iter() {
        let ids = match ids(node, backend.name(), &name) {
            // Without this node's id: of those that it makes up, none is here, so that no other volume waits for the id.
            Err(_) if !node.journal.volumes()?.iter().any(VolumeId::is_ephemeral) => {
                vec![VolumeId::derive(backend.name(), &name)]
            }
            ids => ids?.to_vec(),
        };
        for id in ids {
            if is_journaled(node, &id)? {
                return Ok(Some(id));
            }
        }
    }
    Ok(None)
}

/// The ids that the ephemeral volume of this name can have in a backend. Earlier versions gave it the id of a persistent volume: it is
/// unpublished, but nothing proves that it may be deleted.
pub(in crate::ops::node) fn ids(node: &Node, backend: &BackendName, name: &str) -> Result<[VolumeId; 2]> {
    Ok([VolumeId::ephemeral(backend, &mark(node, name)?), VolumeId::derive(backend, name)])
}

/// Whether the journal has it as an ephemeral volume.
pub(in crate::ops::node) fn is_journaled(node: &Node, id: &VolumeId) -> Result<bool> {
    Ok(node.journal.stage(id)?.is_some_and(|entry| entry.inline))
}

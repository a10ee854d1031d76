//! Volumes are bound to nodes, where their backend needs it.

use super::*;
use crate::ops::parameters::READ_ONLY_KEY;

impl Controller {
    /// Binds a volume to a node; the answer is for the node (ControllerPublishVolume). A backend whose volumes need no
    /// binding answers with nothing, since the capability is the whole driver's.
    pub fn attach(&self, request: &AttachRequest) -> Result<Outcome<BTreeMap<String, String>>> {
        let (id, backend) = match self.whose(&request.handle, &request.volume_context)? {
            Whose::Ours(id, backend) => (id, backend),
            Whose::Static(backend) => {
                check_capability(backend.as_ref(), &request.capability)?;
                return Ok(Outcome::Unchanged(BTreeMap::new()));
            }
        };
        let _volume = self.locks.exclusive(Key::Volume(id.clone()), "attach")?;
        self.existing(backend, id)?;
        check_capability(backend.as_ref(), &request.capability)?;
        match backend.attach() {
            Some(attach) => {
                let attached = attach.attach(id, &request.node, request.capability.mode, request.read_only)?;
                Ok(attached.map(|mut context| {
                    context.extend(request.read_only.then(|| (READ_ONLY_KEY.to_owned(), true.to_string())));
                    context
                }))
            }
            None => Ok(Outcome::Unchanged(BTreeMap::new())),
        }
    }

    /// Unbinds it from one node, or from all; not bound is fine (ControllerUnpublishVolume).
    pub fn detach(&self, id: &VolumeId, node: Option<&NodeId>) -> Result<Outcome<()>> {
        let Some(backend) = self.registry.get(id.backend()) else {
            // A static volume may be called so. Nor could one of a backend that was configured before be attached
            // anywhere else by this driver.
            tracing::warn!(volume = %id, "detached, since no such backend is configured");
            return Ok(Outcome::Unchanged(()));
        };
        let _volume = self.locks.exclusive(Key::Volume(id.clone()), "detach")?;
        match backend.attach() {
            Some(attach) => attach.detach(id, node),
            None => Ok(Outcome::Unchanged(())),
        }
    }
}

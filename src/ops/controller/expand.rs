//! Volumes grow.

use super::*;
use crate::backend::Expand;
use crate::ops::lock::Guard;

impl Controller {
    /// Makes a volume at least as large as asked; never smaller (ControllerExpandVolume). The node always has to take
    /// the new size over: the device's, and the file system's on it.
    ///
    /// # Errors
    /// `OutOfRange` where the limit is below what it has, or allows no size that is large enough.
    pub fn expand(&self, id: &VolumeId, range: CapacityRange, capability: Option<&Capability>) -> Result<Expanded> {
        let backend = self.backend(id.backend())?;
        if let Some(capability) = capability {
            check_capability(backend.as_ref(), capability)?;
        }
        let expand = backend.expand().ok_or_else(|| unsupported(backend, "expanding a volume"))?;
        let _volume = self.lock_change(backend, id, "expand")?;
        let now = self.existing(backend, id)?.capacity;
        let wanted = range.required().unwrap_or(now).max(now).round_up(provision(backend)?.unit());
        if let Some(limit) = range.limit().filter(|limit| wanted > *limit) {
            return Err(Error::OutOfRange {
                field: "capacity_range.limit_bytes",
                reason: format!("it has {now} and would have {wanted}, above the limit of {limit}; volumes do not shrink"),
            });
        }
        let capacity = match range.required() {
            None => now,
            // Also where it is as large already: an earlier call may have been interrupted behind that.
            Some(required) => expand.expand(id, if required <= now { now } else { wanted })?.into_inner(),
        };
        Ok(Expanded { capacity, node_expansion_required: expand.on_node() })
    }

    /// Changes of one volume that its backend joins to one may come together.
    pub(super) fn lock_change(&self, backend: &Arc<dyn Backend>, id: &VolumeId, operation: &'static str) -> Result<Guard> {
        let key = Key::Volume(id.clone());
        match backend.expand().is_some_and(Expand::joins_changes) {
            true => self.locks.shared(key, operation),
            false => self.locks.exclusive(key, operation),
        }
    }
}

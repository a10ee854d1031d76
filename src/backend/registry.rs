//! Which backends there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::volume::{BackendName, Error, RawParameters, Result, VolumeId};

use super::Backend;
use super::leadership::Leadership;

/// The configured backends, by name.
#[derive(Clone)]
pub struct Registry {
    backends: BTreeMap<BackendName, Arc<dyn Backend>>,
    default: BackendName,
    leadership: Leadership,
}

impl Registry {
    /// The first backend is the one for volumes whose StorageClass names none.
    ///
    /// # Errors
    /// `Invalid` where there is none, or two share a name.
    pub fn new(backends: Vec<Arc<dyn Backend>>) -> Result<Self> {
        let default = backends.first().ok_or_else(|| Error::invalid("backends", "at least one is needed"))?.name().clone();
        let mut by_name = BTreeMap::new();
        for backend in backends {
            let name = backend.name().clone();
            if by_name.insert(name.clone(), backend).is_some() {
                return Err(Error::invalid("backends", format!("two are called {name}")));
            }
        }
        let leadership = Leadership::new(by_name.values());
        Ok(Registry { backends: by_name, default, leadership })
    }

    /// Whether this process provisions, where only one does.
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// The backend of an id; `None` where no such is configured, so that nothing of it can exist here.
    pub fn get(&self, name: &BackendName) -> Option<&Arc<dyn Backend>> {
        self.backends.get(name)
    }

    /// The backend for a new volume.
    pub fn choose(&self, parameter: Option<&str>) -> Result<&Arc<dyn Backend>> {
        let Some(text) = parameter else { return Ok(&self.backends[&self.default]) };
        let name: BackendName = text.parse()?;
        self.get(&name).ok_or_else(|| {
            let known: Vec<_> = self.backends.keys().map(BackendName::as_str).collect();
            Error::invalid("parameters.backend", format!("{text:?} is not configured; there are: {}", known.join(", ")))
        })
    }

    /// The backend of a static volume, by its attributes: the one that `backend` names, else the first that knows
    /// them for its own.
    pub fn describing(&self, attributes: &RawParameters) -> Option<&Arc<dyn Backend>> {
        let mut rest = attributes.clone();
        let named = rest.take("backend");
        let mut candidates = self.backends.values().filter(|backend| backend.accepts_static(&rest));
        match named {
            Some(name) => candidates.find(|backend| backend.name().as_str() == name),
            None => candidates.next(),
        }
    }

    /// The volume that another driver has given this handle ([`Backend::existing_volume`]): of the first backend that knows it.
    pub fn existing_volume(&self, handle: &str) -> Option<VolumeId> {
        self.backends.values().find_map(|backend| backend.existing_volume(handle))
    }

    /// All of them, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Backend>> {
        self.backends.values()
    }
}

/// What at least one backend can do: from this, and from nothing else, the capabilities are derived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    pub provision: bool,
    pub expand: bool,
    pub modify: bool,
    pub snapshots: bool,
    pub groups: bool,
    pub changed_blocks: bool,
    pub attach: bool,
    /// Lists may lack volumes.
    pub unlisted: bool,
    pub health: bool,
    pub topology: bool,
    /// Snapshots that can be restored only where their volume is.
    pub local_snapshots: bool,
}

impl Registry {
    /// The union over all backends.
    pub fn offers(&self) -> Offers {
        let any = |can: fn(&dyn Backend) -> bool| self.iter().any(|backend| can(backend.as_ref()));
        Offers {
            provision: any(|backend| backend.provision().is_some()),
            expand: any(|backend| backend.expand().is_some()),
            modify: any(|backend| backend.modify().is_some()),
            snapshots: any(|backend| backend.snapshots().is_some()),
            groups: any(|backend| backend.groups().is_some()),
            changed_blocks: any(|backend| backend.changed_blocks().is_some()),
            attach: any(|backend| backend.attach().is_some()),
            unlisted: any(|backend| backend.has_unlisted_volumes()),
            health: any(|backend| backend.health().is_some()),
            topology: any(|backend| backend.has_topology()),
            local_snapshots: any(|backend| backend.has_topology() && backend.is_local() && backend.snapshots().is_some()),
        }
    }
}

//! Parameters on their way: parsed once in the controller, carried as typed JSON, read on the node.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::backend::registry::Registry;
use crate::volume::{Bytes, Capability, Error, FsType, NodeParameters, RawParameters, Result};

/// The key of publish_context that says `true` where the volume was attached for reading only: a node may not write to it, and is not
/// asked so by NodeStageVolume (CSI spec, PUBLISH_READONLY).
pub const READ_ONLY_KEY: &str = "readOnly";

/// The key in volume_context under which the controller sends them to the node.
pub const CONTEXT_KEY: &str = "longshore.dev/parameters";

/// All parameters of a volume, typed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    pub node: NodeParameters,
    /// The backend's own; only it knows their shape.
    pub backend: serde_json::Value,
}

impl Parameters {
    /// Parses a StorageClass's parameters. The one called `backend` says for which backend.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse<'a>(registry: &'a Registry, raw: &RawParameters) -> Result<(&'a Arc<dyn Backend>, Parameters)> {
        let mut raw = raw.clone();
        let backend = registry.choose(raw.take("backend").as_deref())?;
        Ok((backend, Parameters::for_backend(backend.as_ref(), raw)?))
    }

    /// As `parse`, for a backend that is known already.
    pub fn for_backend(backend: &dyn Backend, raw: RawParameters) -> Result<Parameters> {
        Parameters::split(raw, |own| backend.parameters(own))
    }

    fn split(mut raw: RawParameters, own: impl FnOnce(&RawParameters) -> Result<serde_json::Value>) -> Result<Parameters> {
        let node: NodeParameters = raw.split(&NodeParameters::KEYS).parse()?;
        // For which type is known on the node, where it is asked again.
        let arguments = FsType::ALL.map(|fstype| node.mkfs_arguments(fstype));
        if arguments.iter().all(Result::is_err) {
            let [first, ..] = arguments;
            first?;
        }
        Ok(Parameters { node, backend: own(&raw)? })
    }

    /// The least size of a volume of `backend` that can be used as each of `capabilities` says.
    pub fn least(&self, backend: &dyn Backend, capabilities: &[Capability]) -> Bytes {
        let usable = capabilities.iter().map(|capability| backend.least_size(capability)).max().unwrap_or(Bytes::MIB);
        Bytes(usable.0 + self.node.encryption.overhead().0)
    }

    /// As the volume keeps them.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "node": self.node, "backend": self.backend })
    }

    /// As they travel in volume_context.
    pub fn to_context(json: &serde_json::Value) -> BTreeMap<String, String> {
        BTreeMap::from([(CONTEXT_KEY.to_owned(), json.to_string())])
    }

    /// What the controller put into volume_context; for a volume that came without (provisioned by hand), its
    /// attributes are read as parameters.
    pub fn from_context(backend: &dyn Backend, context: &BTreeMap<String, String>) -> Result<Parameters> {
        match context.get(CONTEXT_KEY) {
            Some(json) => {
                serde_json::from_str(json).map_err(|error| Error::invalid("volume_context", format!("{CONTEXT_KEY}: {error}")))
            }
            None => {
                let mut raw = own_attributes(context);
                raw.take("backend");
                Parameters::split(raw, |own| backend.parse_static_attributes(own))
            }
        }
    }
}

/// What a volume that did not come from our controller says of itself.
fn own_attributes(context: &BTreeMap<String, String>) -> RawParameters {
    let mut raw = RawParameters::new(context.iter().map(|(key, value)| (key.clone(), value.clone())));
    // external-provisioner puts its own identity into every volume's attributes.
    raw.take("storage.kubernetes.io/csiProvisionerIdentity");
    raw
}

/// The backend of a static volume, by its attributes; `None` where they are not such a volume's.
pub fn static_volume_backend<'a>(registry: &'a Registry, context: &BTreeMap<String, String>) -> Option<&'a Arc<dyn Backend>> {
    if context.contains_key(CONTEXT_KEY) {
        return None;
    }
    let mut own = own_attributes(context);
    own.split(&NodeParameters::KEYS);
    registry.describing(&own)
}

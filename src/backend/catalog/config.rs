//! One backend of a configuration, whatever its type.

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::ser::{Error as _, SerializeMap};
use serde::{Serialize, Serializer};
use serde_yaml_ng::Value;

use crate::volume::{BackendName, NodeId, Result};

use crate::backend::configuration::{Configuration, NodeIdentity, OpenContext};
use crate::backend::{ApplySettings, Backend, StoragePath};

/// One backend, by its `type`. Methods are those of its [`Configuration`].
#[derive(Clone)]
pub struct BackendConfig(Arc<dyn AnyConfiguration>);

/// A [`Configuration`] of any type.
trait AnyConfiguration: Any + fmt::Debug + Send + Sync {
    fn kind(&self) -> &'static str;
    fn reloadable(&self) -> &'static [&'static str];
    fn name(&self) -> &BackendName;
    fn validate(&self) -> Result<()>;
    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>>;
    fn with_node_default(&self, node: &NodeId) -> BackendConfig;
    fn keeps_node_id(&self) -> bool;
    fn storage_paths(&self) -> Vec<StoragePath>;
    fn node_identity(&self, node: &NodeId, state_dir: &Path) -> Option<Arc<dyn NodeIdentity>>;
    fn equals(&self, other: &dyn Any) -> bool;
    fn to_value(&self) -> Result<Value, serde_yaml_ng::Error>;
}

impl<C: Configuration> AnyConfiguration for C {
    fn kind(&self) -> &'static str {
        C::KIND
    }
    fn reloadable(&self) -> &'static [&'static str] {
        C::RELOADABLE
    }
    fn name(&self) -> &BackendName {
        Configuration::name(self)
    }
    fn validate(&self) -> Result<()> {
        Configuration::validate(self)
    }
    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        Configuration::open(self.clone(), context)
    }
    fn with_node_default(&self, node: &NodeId) -> BackendConfig {
        let mut filled = self.clone();
        filled.set_node_default(node);
        BackendConfig::new(filled)
    }
    fn keeps_node_id(&self) -> bool {
        Configuration::keeps_node_id(self)
    }
    fn storage_paths(&self) -> Vec<StoragePath> {
        Configuration::storage_paths(self)
    }
    fn node_identity(&self, node: &NodeId, state_dir: &Path) -> Option<Arc<dyn NodeIdentity>> {
        Configuration::node_identity(self, node, state_dir)
    }
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<C>() == Some(self)
    }
    fn to_value(&self) -> Result<Value, serde_yaml_ng::Error> {
        serde_yaml_ng::to_value(self)
    }
}

impl BackendConfig {
    pub fn new<C: Configuration>(config: C) -> Self {
        BackendConfig(Arc::new(config))
    }

    /// Where it is of this type.
    pub fn get<C: Configuration>(&self) -> Option<&C> {
        let any: &dyn Any = &*self.0;
        any.downcast_ref()
    }

    pub fn kind(&self) -> &'static str {
        self.0.kind()
    }

    pub fn name(&self) -> &BackendName {
        self.0.name()
    }

    /// [`Configuration::RELOADABLE`].
    pub fn reloadable(&self) -> &'static [&'static str] {
        self.0.reloadable()
    }

    /// Prepares the reloadable settings of the backend that was opened from an earlier configuration of this name and type.
    ///
    /// # Errors
    /// As [`Backend::reload`].
    pub fn reload<'a>(&self, backend: &'a dyn Backend) -> Result<ApplySettings<'a>> {
        backend.reload(&*self.0)
    }

    /// # Errors
    /// As [`Configuration::validate`].
    pub fn validate(&self) -> Result<()> {
        self.0.validate()
    }

    /// # Errors
    /// As [`Configuration::open`].
    pub fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        self.0.open(context)
    }

    #[must_use]
    pub fn with_node_default(&self, node: &NodeId) -> Self {
        self.0.with_node_default(node)
    }

    pub fn keeps_node_id(&self) -> bool {
        self.0.keeps_node_id()
    }

    pub fn storage_paths(&self) -> Vec<StoragePath> {
        self.0.storage_paths()
    }

    pub fn node_identity(&self, node: &NodeId, state_dir: &Path) -> Option<Arc<dyn NodeIdentity>> {
        self.0.node_identity(node, state_dir)
    }
}

impl fmt::Debug for BackendConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for BackendConfig {
    fn eq(&self, other: &Self) -> bool {
        let other: &dyn Any = &*other.0;
        self.0.equals(other)
    }
}

/// As in a configuration file.
impl Serialize for BackendConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Value::Mapping(fields) = self.0.to_value().map_err(S::Error::custom)? else {
            return Err(S::Error::custom("the configuration of a backend is no map"));
        };
        let mut map = serializer.serialize_map(Some(fields.len() + 1))?;
        map.serialize_entry("type", self.kind())?;
        for (key, value) in &fields {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

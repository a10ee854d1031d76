//! The list of backends.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

#[cfg(feature = "ec2")]
use crate::backend::ec2::Ec2Config;
use crate::backend::fake::FakeConfig;
use crate::backend::image::{ImageConfig, PoolConfig};
use crate::backend::iscsi::IscsiConfig;
use crate::backend::nfs::NfsConfig;
use crate::volume::{self, BackendName, NodeId};

/// One backend, by its `type`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum BackendConfig {
    Image(ImageConfig),
    Nfs(NfsConfig),
    Iscsi(IscsiConfig),
    #[cfg(feature = "ec2")]
    Ec2(Ec2Config),
    Fake(FakeConfig),
}

impl BackendConfig {
    /// What its `type` is.
    pub fn kind(&self) -> &'static str {
        match self {
            BackendConfig::Image(_) => "image",
            BackendConfig::Nfs(_) => "nfs",
            BackendConfig::Iscsi(_) => "iscsi",
            #[cfg(feature = "ec2")]
            BackendConfig::Ec2(_) => "ec2",
            BackendConfig::Fake(_) => "fake",
        }
    }

    /// The part of every volume id before the colon.
    pub fn name(&self) -> &BackendName {
        match self {
            BackendConfig::Image(config) => &config.name,
            BackendConfig::Nfs(config) => &config.name,
            BackendConfig::Iscsi(config) => &config.name,
            #[cfg(feature = "ec2")]
            BackendConfig::Ec2(config) => &config.name,
            BackendConfig::Fake(config) => &config.name,
        }
    }

    /// Its directories of images.
    pub fn pools(&self) -> &[PoolConfig] {
        match self {
            BackendConfig::Image(config) => &config.pools,
            BackendConfig::Iscsi(config) => &config.pools,
            BackendConfig::Nfs(_) | BackendConfig::Fake(_) => &[],
            #[cfg(feature = "ec2")]
            BackendConfig::Ec2(_) => &[],
        }
    }

    /// What lies on a local disk is on this node's, unless the file says otherwise.
    pub(super) fn on_node(mut self, node_id: &NodeId) -> BackendConfig {
        if let BackendConfig::Image(image) = &mut self
            && !image.shared
        {
            image.node.get_or_insert_with(|| node_id.clone());
        }
        self
    }

    /// Whether it keeps the id of this node with its storage, so that it must not be opened under a provisional one.
    pub fn keeps_node_id(&self) -> bool {
        match self {
            BackendConfig::Image(image) => image.shared,
            BackendConfig::Iscsi(_) => true,
            BackendConfig::Nfs(_) | BackendConfig::Fake(_) => false,
            #[cfg(feature = "ec2")]
            BackendConfig::Ec2(_) => false,
        }
    }

    fn validate(&self) -> volume::Result<()> {
        match self {
            BackendConfig::Image(config) => config.validate(),
            BackendConfig::Nfs(config) => config.validate(),
            BackendConfig::Iscsi(config) => config.validate(),
            #[cfg(feature = "ec2")]
            BackendConfig::Ec2(config) => config.validate(),
            BackendConfig::Fake(config) => config.validate(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Image,
    Nfs,
    Iscsi,
    #[cfg(feature = "ec2")]
    Ec2,
    Fake,
}

/// By hand, because serde's own tagged enums lose the lines of what they read.
impl<'de> Deserialize<'de> for BackendConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tagged;

        impl<'de> Visitor<'de> for Tagged {
            type Value = BackendConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a backend: a map with name and type")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<BackendConfig, A::Error> {
                let mut before = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if key != "type" {
                        before.push((key, map.next_value()?));
                        continue;
                    }
                    let kind = map.next_value()?;
                    let fields = MapAccessDeserializer::new(Fields { before: before.into_iter(), value: None, rest: map });
                    return match kind {
                        Kind::Image => ImageConfig::deserialize(fields).map(BackendConfig::Image),
                        Kind::Nfs => NfsConfig::deserialize(fields).map(BackendConfig::Nfs),
                        Kind::Iscsi => IscsiConfig::deserialize(fields).map(BackendConfig::Iscsi),
                        #[cfg(feature = "ec2")]
                        Kind::Ec2 => Ec2Config::deserialize(fields).map(BackendConfig::Ec2),
                        Kind::Fake => FakeConfig::deserialize(fields).map(BackendConfig::Fake),
                    };
                }
                Err(de::Error::missing_field("type"))
            }
        }

        deserializer.deserialize_map(Tagged)
    }
}

/// The fields of a backend, those that stood before its type first.
struct Fields<M> {
    before: std::vec::IntoIter<(String, serde_yaml_ng::Value)>,
    value: Option<serde_yaml_ng::Value>,
    rest: M,
}

impl<'de, M: MapAccess<'de>> MapAccess<'de> for Fields<M> {
    type Error = M::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, M::Error> {
        match self.before.next() {
            Some((key, value)) => {
                self.value = Some(value);
                seed.deserialize(key.into_deserializer()).map(Some)
            }
            None => self.rest.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, M::Error> {
        match self.value.take() {
            Some(value) => seed.deserialize(value).map_err(de::Error::custom),
            None => self.rest.next_value_seed(seed),
        }
    }
}

/// Each backend by itself, then all together.
pub(super) fn check(backends: &[BackendConfig]) -> Result<(), String> {
    if backends.is_empty() {
        return Err(
            "none is given; name at least one, or leave the field out for an image pool in the state directory".to_owned()
        );
    }
    let mut names = BTreeSet::new();
    let mut pools: Vec<(&BackendName, &Path)> = Vec::new();
    for backend in backends {
        let name = backend.name();
        if !names.insert(name) {
            return Err(format!("two are called {name}; the name is part of every volume id, so each needs its own"));
        }
        backend.validate().map_err(|error| format!("{name}: {error}"))?;
        for path in backend.pools().iter().map(|pool| pool.path.as_path()) {
            if let Some((other, _)) = pools.iter().find(|(_, used)| used.starts_with(path) || path.starts_with(used)) {
                return Err(format!(
                    "{name}: pool {} shares its directory with one of {other}; each needs its own",
                    path.display()
                ));
            }
        }
        pools.extend(backend.pools().iter().map(|pool| (name, pool.path.as_path())));
    }
    Ok(())
}

//! What the operator configures, and what a StorageClass may say to this backend.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::StoragePath;
use crate::volume::parameters::text_bool;
use crate::volume::{BackendName, Bytes, Error, NodeId, OnDelete, Result};

use super::layout::{LOCK, Limits, MARKER, OWN_ENTRIES};

/// One backend of image files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageConfig {
    /// The part of every volume id before the colon. A pool remembers it: it can't be changed once there are volumes.
    pub name: BackendName,
    /// Where the images lie; at least one.
    pub pools: Vec<PoolConfig>,
    /// The node that has these pools on its local disks; its volumes are only reachable there
    /// (`topology.longshore.csi.dev/node`). In a configuration file the default is this process's node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// `true`: all nodes have these pools mounted at the same paths (a cluster's file system), so that the volumes are
    /// reachable from everywhere. Default `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// One directory of images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// What a StorageClass calls it: 1 to 63 characters of `[A-Za-z0-9._-]`.
    pub name: String,
    /// An absolute path. The directory is made if only its last component is missing; it must be empty when it is
    /// first used.
    pub path: PathBuf,
    /// How many times the capacity may be provisioned to volumes. Images are sparse, so more than 1 works for as long as
    /// not all of them are filled. Default 1.0.
    #[serde(default = "one")]
    pub overcommit: f64,
    /// How much of the file system is ours, as `100GiB` or a number of bytes. Default: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Bytes>,
}

fn one() -> f64 {
    1.0
}

impl ImageConfig {
    /// Checks what needs no disk.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        if self.pools.is_empty() {
            return Err(Error::invalid("pools", format!("backend {} has none; name at least one directory", self.name)));
        }
        if let Some(node) = self.node.as_ref().filter(|_| self.shared) {
            return Err(Error::invalid(
                "shared",
                format!("the pools are on node {node} only, or on all nodes: leave one of the two out"),
            ));
        }
        let mut names = BTreeSet::new();
        for (at, pool) in self.pools.iter().enumerate() {
            pool.validate()?;
            if !names.insert(&pool.name) {
                return Err(Error::invalid("pools.name", format!("two pools of backend {} are called {}", self.name, pool.name)));
            }
            let nested = |other: &&PoolConfig| other.path.starts_with(&pool.path) || pool.path.starts_with(&other.path);
            if let Some(other) = self.pools[..at].iter().find(nested) {
                return Err(Error::invalid(
                    "pools.path",
                    format!(
                        "{} and {} lie in one another; each pool needs a directory of its own",
                        other.path.display(),
                        pool.path.display()
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl PoolConfig {
    pub fn storage_path(&self) -> StoragePath {
        StoragePath {
            name: self.name.clone(),
            path: self.path.clone(),
            marker: Some(MARKER),
            lock: Some(LOCK),
            own_entries: &OWN_ENTRIES,
            project_quotas: None,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        Limits { overcommit: self.overcommit, capacity: self.capacity.map(|capacity| capacity.0) }
    }

    fn validate(&self) -> Result<()> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if self.name.is_empty() || self.name.len() > 63 || !self.name.bytes().all(allowed) {
            return Err(Error::invalid(
                "pools.name",
                format!("{:?} is no pool name: 1 to 63 characters of A-Z a-z 0-9 . _ -", self.name),
            ));
        }
        if !plain(&self.path) {
            return Err(Error::invalid("pools.path", format!("{} must be absolute, without . and ..", self.path.display())));
        }
        if !self.overcommit.is_finite() || self.overcommit <= 0.0 {
            return Err(Error::invalid(
                "pools.overcommit",
                format!("{} must be more than 0; 1 provisions no more than there is", self.overcommit),
            ));
        }
        if self.capacity.is_some_and(|capacity| capacity < Bytes::MIB) {
            return Err(Error::invalid("pools.capacity", format!("pool {} needs at least {}", self.name, Bytes::MIB)));
        }
        Ok(())
    }
}

/// Absolute, deeper than `/`, without `.` and `..`.
fn plain(path: &Path) -> bool {
    path.is_absolute()
        && path.components().count() > 1
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

/// The StorageClass parameters of this backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ImageParameters {
    /// The pool's name. Default: the pool of the source for a clone or restore, else the one with most room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// `true`: all blocks are allocated at once, so that a write never meets a full pool. Default `false` (sparse).
    #[serde(with = "text_bool")]
    pub preallocate: bool,
    /// What DeleteVolume does with the data: `delete` (default), `retain` (moved to the pool's `retained/`), `archive`
    /// (moved to its `archive/`) or `scrub` (zeroes are written over it and seen to be on disk, then it is deleted).
    /// Scrub reaches the old blocks where the file system overwrites in place (ext4; xfs unless the blocks are shared
    /// with a snapshot or clone, which keeps them); btrfs writes elsewhere and frees the old blocks as they are.
    pub on_delete: OnDelete,
}

impl ImageParameters {
    /// From the `backend` member of a volume's parameters; `null` and none at all are the defaults.
    pub(super) fn from_json(value: &serde_json::Value) -> Result<Self> {
        if value.is_null() {
            return Ok(ImageParameters::default());
        }
        Self::deserialize(value).map_err(|error| Error::invalid("parameters", error.to_string()))
    }
}

/// What ControllerModifyVolume may change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MutableParameters {
    /// As in [`ImageParameters`].
    pub on_delete: Option<OnDelete>,
    /// `true` allocates what is still sparse now. `false` is refused for a volume that is allocated.
    #[serde(with = "optional_bool")]
    pub preallocate: Option<bool>,
}

/// `"true"`, `"false"` or absent.
mod optional_bool {
    use serde::Deserializer;

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
        super::text_bool::deserialize(deserializer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::RawParameters;

    fn config(yaml: &str) -> Result<ImageConfig> {
        let config: ImageConfig = serde_yaml_ng::from_str(yaml).map_err(|error| Error::invalid("config", error.to_string()))?;
        config.validate()?;
        Ok(config)
    }

    #[test]
    fn a_configuration_reads_as_people_write_it() {
        let config = config("name: local\npools:\n- {name: fast, path: /srv/fast, capacity: 100GiB, overcommit: 2}\n- {name: slow, path: /srv/slow}\n")
            .expect("valid");
        assert_eq!(config.pools[0].capacity, Some(Bytes(100 << 30)));
        assert!((config.pools[1].overcommit - 1.0).abs() < f64::EPSILON);
        assert_eq!(config.node, None);
    }

    #[test]
    fn impossible_value_is_refused_by_name() {
        for (yaml, field) in [
            ("name: a\npools: []\n", "pools"),
            ("name: a\nnode: n\nshared: true\npools: [{name: p, path: /srv}]\n", "shared"),
            ("name: a\npools: [{name: p, path: srv}]\n", "pools.path"),
            ("name: a\npools: [{name: p, path: /}]\n", "pools.path"),
            ("name: a\npools: [{name: p, path: /srv/../x}]\n", "pools.path"),
            ("name: a\npools: [{name: p/q, path: /srv}]\n", "pools.name"),
            ("name: a\npools: [{name: p, path: /srv, overcommit: 0}]\n", "pools.overcommit"),
            ("name: a\npools: [{name: p, path: /srv, overcommit: .nan}]\n", "pools.overcommit"),
            ("name: a\npools: [{name: p, path: /srv}, {name: p, path: /other}]\n", "pools.name"),
            ("name: a\npools: [{name: p, path: /srv}, {name: q, path: /srv/q}]\n", "pools.path"),
            ("name: a\npools: [{name: p, path: /srv, size: 1}]\n", "size"),
        ] {
            let error = config(yaml).expect_err(yaml).to_string();
            assert!(error.contains(field), "{yaml}: {error}");
        }
    }

    #[test]
    fn parameters_survive_their_json_and_unknown_ones_are_named() {
        let raw = |pairs: &[(&str, &str)]| {
            RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
        };
        let parsed: ImageParameters =
            raw(&[("pool", "fast"), ("preallocate", "true"), ("onDelete", "scrub")]).parse().expect("all known");
        assert_eq!(parsed, ImageParameters { pool: Some("fast".to_owned()), preallocate: true, on_delete: OnDelete::Scrub });
        let json = serde_json::to_value(&parsed).expect("serializes");
        assert_eq!(ImageParameters::from_json(&json).expect("our own"), parsed);
        let error = raw(&[("ondelete", "scrub")]).parse::<ImageParameters>().expect_err("a typo").to_string();
        assert!(error.contains("ondelete") && error.contains("onDelete"), "{error}");
        assert!(raw(&[("preallocate", "yes")]).parse::<MutableParameters>().is_err());
        assert!(raw(&[("pool", "fast")]).parse::<MutableParameters>().is_err());
    }
}

//! What the operator configures, and what a StorageClass may say to this backend.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::volume::{BackendName, Bytes, Error, NodeId, Result};

/// One storage system in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FakeConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// How much may be provisioned to volumes and snapshots together, as `100GiB` or a number of bytes. Default 1TiB. Memory
    /// is taken only for what is written.
    #[serde(default = "default_capacity")]
    pub capacity: Bytes,
    /// How many volumes may be attached to one node. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_per_node: Option<u64>,
    /// The nodes that exist beside the one that this process runs on. Default: none. Volumes can be attached to them
    /// but connected only here.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub nodes: BTreeSet<NodeId>,
}

/// The largest file: its length is a signed number.
const LARGEST: Bytes = Bytes(i64::MAX as u64);

fn default_capacity() -> Bytes {
    Bytes(1 << 40)
}

impl FakeConfig {
    /// The defaults, under this name.
    pub fn named(name: BackendName) -> Self {
        FakeConfig { name, capacity: default_capacity(), volumes_per_node: None, nodes: BTreeSet::new() }
    }

    /// Checks the values against each other.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        if self.capacity < Bytes::MIB {
            return Err(Error::invalid(
                "capacity",
                format!("{} is too small for any volume: at least {}", self.capacity, Bytes::MIB),
            ));
        }
        if self.capacity > LARGEST {
            return Err(Error::invalid("capacity", format!("{} is more than a file can have: at most {LARGEST}", self.capacity)));
        }
        if self.volumes_per_node == Some(0) {
            return Err(Error::invalid("volumesPerNode", "0 would allow no volume at all; leave it out for no limit"));
        }
        Ok(())
    }
}

/// The StorageClass parameters of this backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FakeParameters {
    /// As what a volume appears on its node: `block` (default), a loop device over memory, or `filesystem`, a tmpfs.
    /// The contents of a `filesystem` volume live only while it is mounted, and it has no snapshots, clones or raw block.
    pub medium: Medium,
}

impl FakeParameters {
    /// From all of a volume's parameters, `{"node": ..., "backend": ...}`; absent and `null` are the defaults.
    pub(super) fn of_volume(parameters: &serde_json::Value) -> Result<Self> {
        match parameters.get("backend") {
            None | Some(serde_json::Value::Null) => Ok(FakeParameters::default()),
            Some(own) => Self::deserialize(own).map_err(|error| Error::invalid("parameters", error.to_string())),
        }
    }
}

/// Where the contents of a volume lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// In a memfd of ours; they live as long as the volume, at most as long as this process.
    #[default]
    Block,
    /// In a tmpfs that the node mounts; they are gone when it is unmounted.
    Filesystem,
}

/// What ControllerModifyVolume may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MutableParameters {
    /// `bronze`, `silver` or `gold`. It is remembered; all are equally fast.
    pub tier: Option<Tier>,
}

/// A performance class, which means nothing in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    Bronze,
    Silver,
    Gold,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::RawParameters;

    fn config(yaml: &str) -> Result<FakeConfig> {
        let config: FakeConfig = serde_yaml_ng::from_str(yaml).map_err(|error| Error::invalid("config", error.to_string()))?;
        config.validate()?;
        Ok(config)
    }

    fn raw(key: &str, value: &str) -> RawParameters {
        RawParameters::new([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn all_but_the_name_has_a_default() {
        let name: BackendName = "memory".parse().expect("a valid name");
        assert_eq!(config("name: memory").expect("valid"), FakeConfig::named(name));
    }

    #[test]
    fn a_configuration_reads_as_people_write_it_and_prints_what_it_reads() {
        let read = config("{name: memory, capacity: 10GiB, volumesPerNode: 3, nodes: [a, b]}").expect("valid");
        assert_eq!((read.capacity, read.volumes_per_node, read.nodes.len()), (Bytes(10 << 30), Some(3), 2));
        let printed = serde_yaml_ng::to_string(&read).expect("serializes");
        assert_eq!(config(&printed).expect("our own"), read);
    }

    #[test]
    fn impossible_value_is_refused_by_name() {
        for (yaml, field) in [
            ("{name: a, capacity: 1}", "capacity"),
            ("{name: a, capacity: 18446744073709551615}", "capacity"),
            ("{name: a, capacity: much}", "much"),
            ("{name: a, volumesPerNode: 0}", "volumesPerNode"),
            ("{name: a, nodes: ['']}", "node_id"),
            ("{name: a, latency: 1s}", "latency"),
            ("{capacity: 1GiB}", "name"),
        ] {
            let error = config(yaml).expect_err(yaml).to_string();
            assert!(error.contains(field), "{yaml}: {error}");
        }
    }

    #[test]
    fn parameters_survive_their_json_and_unknown_ones_are_named() {
        let parsed: FakeParameters = raw("medium", "filesystem").parse().expect("known");
        let json = serde_json::json!({ "backend": parsed });
        assert_eq!(FakeParameters::of_volume(&json).expect("our own"), parsed);
        assert_eq!(FakeParameters::of_volume(&serde_json::Value::Null).expect("none"), FakeParameters::default());
        let error = raw("Medium", "block").parse::<FakeParameters>().expect_err("a typo").to_string();
        assert!(error.contains("Medium") && error.contains("medium"), "{error}");
        assert!(raw("tier", "gold").parse::<FakeParameters>().is_err(), "only to be modified");
        assert!(raw("tier", "tin").parse::<MutableParameters>().is_err());
    }
}

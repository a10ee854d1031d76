//! Whole disks of a node, one volume on each.
//!
//! - The disk itself is the truth: a record on it ([`record`]) says whose it is. It is found by that, in whatever slot or machine the disk is.
//! - A disk is used only once every byte of it was seen to be zero, or was overwritten with zeroes by the driver after a volume. A disk with
//!   anything else on it, or in use, is never written to.
//! - What says that a disk is blank or free is believed only on the disk that it was written for, and while no other disk has the same record.
//! - A volume's id names its disk: one whose disk is not here is not reached, which is never taken for deleted.
//! - A disk that does not answer delays no call about another for more than seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use crate::os::lock;
use crate::volume::{AccessMode, BackendName, Error, RawParameters, Result, Topology, VolumeId};

use super::configuration::Configuration;
use super::local::topology_of;
use super::{Backend, Connect, Inspect, Modify, PoolUsage, Provision, ReportHealth, Usage};

mod change;
pub mod config;
mod connect;
mod health;
mod inspect;
mod look;
mod modify;
mod provision;
mod record;
mod row;
#[cfg(test)]
mod tests;

pub use config::{DiskConfig, DiskParameters};

/// A backend of disks of this node.
#[derive(Debug)]
pub struct DiskBackend {
    config: DiskConfig,
    topology: Option<Topology>,
    provisions: bool,
    /// Volumes that were blank when this process connected them.
    blank: Mutex<BTreeSet<VolumeId>>,
    /// By disk, a look at it that was late, and whether it has ended since.
    looks: Mutex<BTreeMap<String, Arc<AtomicBool>>>,
    /// Disks that seemed blank and are not, and why, until they are pulled or the driver ends.
    refused: Mutex<BTreeMap<String, String>>,
    /// Disks on which the last attempt to make a volume did not come to its end.
    failed: Mutex<BTreeSet<String>>,
    /// For metrics: as the last question about capacity found it.
    usage: Mutex<BTreeMap<String, PoolUsage>>,
}

impl DiskBackend {
    /// Nothing is looked at yet.
    ///
    /// # Errors
    /// `Invalid`, naming the field of the configuration.
    pub fn open(config: DiskConfig, provisions: bool) -> Result<DiskBackend> {
        config.validate()?;
        let topology = topology_of(config.node.as_ref());
        let (blank, looks, refused, failed, usage) =
            (Mutex::default(), Mutex::default(), Mutex::default(), Mutex::default(), Mutex::default());
        Ok(DiskBackend { config, topology, provisions, blank, looks, refused, failed, usage })
    }
}

impl Backend for DiskBackend {
    fn name(&self) -> &BackendName {
        &self.config.name
    }

    fn kind(&self) -> &'static str {
        DiskConfig::KIND
    }

    /// A disk that cannot be read is a matter of health: others can be used.
    fn probe(&self) -> Result<()> {
        self.scan().map(drop)
    }

    fn access_modes(&self) -> &[AccessMode] {
        &AccessMode::SINGLE_NODE
    }

    fn parameters(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let parameters = DiskParameters::of_class(raw, &self.config)?;
        serde_json::to_value(parameters).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    fn accepts_static(&self, attributes: &RawParameters) -> bool {
        attributes.get("device").is_some()
    }

    fn parse_static_attributes(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let parameters: DiskParameters = raw.parse()?;
        parameters.static_device()?;
        serde_json::to_value(parameters).map_err(|error| Error::invalid("volume_context", error.to_string()))
    }

    fn topology(&self) -> Result<Option<Topology>> {
        Ok(self.topology.clone())
    }

    fn usage(&self) -> Usage {
        let known = lock(&self.usage);
        let pools = self.config.classes.iter().map(|class| (class.name.clone(), known.get(&class.name).copied())).collect();
        Usage { pools, attachments: None }
    }

    fn provision(&self) -> Option<&dyn Provision> {
        self.provisions.then_some(self)
    }
    fn modify(&self) -> Option<&dyn Modify> {
        self.provisions.then_some(self)
    }
    fn health(&self) -> Option<&dyn ReportHealth> {
        Some(self)
    }
    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
    fn connect(&self) -> &dyn Connect {
        self
    }
}

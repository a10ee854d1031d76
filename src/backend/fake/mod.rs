//! A storage system in memory: for a first try, for tests of everything above it, and as the example of a backend.
//!
//! It is honest: it models sizes, provisioned capacity, attachments, nodes and their limits, and answers from that model; nothing
//! depends on what a name looks like. What it holds is gone when the process ends, so one process must be controller and
//! node at once.
//!
//! - The contents of a `block` volume are a sparse memfd, made when someone first looks at them; on the node it is a loop
//!   device over that memfd, whose device and inode are the volume's identity. A loop device outlives the process: it is
//!   then still recognised, and undone, by what the journal says of it. Each memfd takes one file
//!   descriptor, and the memory of what was written: an empty ext4 a few MiB, an empty xfs its log, 64 MiB.
//! - A `filesystem` volume is a tmpfs that the node mounts; its contents live from mount to unmount.
//! - `store` is the whole state, under one lock that is never held over I/O. Nothing is durable.
//! - Since what was made in vain is freed at once and by dropping it, a failure of ours leaves nothing.

use std::collections::BTreeSet;

use crate::volume::{AccessMode, BackendName, Error, NodeId, RawParameters, Result, VolumeId};

use super::configuration::Configuration;
use super::{
    Attach, Backend, ChangedBlocks, Connect, Expand, FreezeGuard, Groups, Modify, Provision, Quiesce, ReportHealth, Snapshots,
    Usage, Writers,
};
use store::Store;

mod attach;
mod changed_blocks;
pub mod config;
mod connect;
mod contents;
mod health;
mod modify;
mod provision;
mod row;
mod snapshots;
mod store;

#[cfg(test)]
mod model;
#[cfg(test)]
mod testing;

pub use config::{FakeConfig, FakeParameters, Medium, Tier};

/// All single-node modes, and readers on many nodes: a loop device is not shared between writers.
const ACCESS_MODES: [AccessMode; 5] = [
    AccessMode::SINGLE_NODE[0],
    AccessMode::SINGLE_NODE[1],
    AccessMode::SINGLE_NODE[2],
    AccessMode::SINGLE_NODE[3],
    AccessMode::MultiNodeReaderOnly,
];

/// The backend.
#[derive(Debug)]
pub struct Fake {
    store: Store,
    /// Where this process runs, and where alone volumes can be connected.
    here: NodeId,
    /// All that exist, this one included.
    nodes: BTreeSet<NodeId>,
    volumes_per_node: Option<u64>,
}

impl Fake {
    /// An empty one, on the node `here`.
    ///
    /// # Errors
    /// `Invalid`, naming the field of the configuration.
    pub fn new(config: FakeConfig, here: NodeId) -> Result<Self> {
        config.validate()?;
        let mut nodes = config.nodes;
        nodes.insert(here.clone());
        let store = Store::new(config.name, config.capacity);
        Ok(Fake { store, here, nodes, volumes_per_node: config.volumes_per_node })
    }
}

impl Backend for Fake {
    fn name(&self) -> &BackendName {
        self.store.name()
    }

    fn kind(&self) -> &'static str {
        FakeConfig::KIND
    }

    fn probe(&self) -> Result<()> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.store.lock().usage()
    }

    fn parameters(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let parameters: FakeParameters = raw.parse()?;
        serde_json::to_value(parameters).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    fn access_modes(&self) -> &[AccessMode] {
        &ACCESS_MODES
    }

    fn provision(&self) -> Option<&dyn Provision> {
        Some(self)
    }
    fn expand(&self) -> Option<&dyn Expand> {
        Some(self)
    }
    fn modify(&self) -> Option<&dyn Modify> {
        Some(self)
    }
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }
    fn groups(&self) -> Option<&dyn Groups> {
        Some(self)
    }
    fn changed_blocks(&self) -> Option<&dyn ChangedBlocks> {
        Some(self)
    }
    fn attach(&self) -> Option<&dyn Attach> {
        Some(self)
    }
    fn health(&self) -> Option<&dyn ReportHealth> {
        Some(self)
    }
    fn connect(&self) -> &dyn Connect {
        self
    }
}

/// The Rust code of the guide is compiled as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/adding-a-backend.md")]
struct Guide;

/// Runs `copy` while the file systems of `volumes` are frozen. What it made is thrown away if they were not, all
/// the time.
///
/// # Errors
/// `InUse` where one may be written meanwhile. Without a node in this process none is in use: its memory is this process's.
fn while_still<T>(quiesce: &dyn Quiesce, volumes: &[VolumeId], copy: impl FnOnce() -> Result<T>) -> Result<T> {
    let held: Box<dyn FreezeGuard> = quiesce.freeze(volumes)?;
    for id in volumes {
        if let Writers::Possible(how) = held.writers(id) {
            let by = format!("{how}; a copy of it takes time and would be of no single instant: stop the pods that use it");
            return Err(Error::InUse { object: format!("volume {id}"), by });
        }
    }
    let copied = copy()?;
    held.release()?;
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::testing::fake;
    use super::*;
    use crate::backend::registry::{Offers, Registry};

    #[test]
    fn fake_backend_has_every_feature_and_no_topology() {
        let fake: Arc<dyn Backend> = Arc::new(fake(|_| ()));
        fake.probe().expect("memory is always there");
        assert!(fake.access_modes().starts_with(&AccessMode::SINGLE_NODE));
        let offers = Registry::new(vec![fake]).expect("one backend").offers();
        let everything = Offers {
            provision: true,
            expand: true,
            modify: true,
            snapshots: true,
            groups: true,
            changed_blocks: true,
            attach: true,
            unlisted: false,
            health: true,
            topology: false,
            local_snapshots: false,
        };
        assert_eq!(offers, everything);
    }
}

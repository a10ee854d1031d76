//! Volumes as image files on a local disk, shown to the node over loop devices.
//!
//! A *pool* is a directory; a backend has one or more. What lies in a pool, and who may change it, is in [`pool`]; the
//! small files beside the data are in [`meta`]; how something is made whole before it appears, and how it goes, is in
//! [`draft`].
//!
//! Invariants:
//! - The disk is the truth: a volume exists iff its directory does. The [`ledger`] in memory orders lists and sums provisioned capacity.
//! - "Not there" is only said when every pool could be looked into; a pool that is away makes it an error.
//! - Damaged files are reported and left as they are: their volume can't be used, deleted or replaced, all others can.
//! - One process provisions from a pool at a time; any number may read and connect.
//! - Nothing is removed but files of known names in directories that we made; nothing is opened through a link.
//!
//! What is not here: mounts, file systems and locks per volume, which are `ops`'s.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::os;
use crate::volume::{AccessMode, BackendName, Error, RawParameters, Result, Topology, Volume};

use super::configuration::{Configuration, of_type};
use super::local::topology_of;
use super::{
    ApplySettings, Attach, Backend, ChangedBlocks, Connect, Exclusive, Expand, FirstLock, Groups, Inspect, Modify, Provision,
    ReportHealth, Snapshots, Usage,
};

mod attach;
mod attachment;
mod capacity;
mod changed;
pub mod config;
mod connect;
mod draft;
mod expand;
mod export;
mod files;
mod group;
mod health;
mod index;
mod instant;
mod layout;
mod lease;
mod leases;
mod ledger;
mod lock;
mod meta;
mod modify;
mod open;
mod parallel;
mod pool;
mod pool_id;
mod provision;
mod ready;
mod room;
mod row;
mod scan;
mod snapshot;
mod survey;

pub use lease::Holder;

pub use super::Role;
pub use config::{ImageConfig, ImageParameters, MutableParameters, PoolConfig};
pub(super) use export::{EXPORTS, Image, export_room};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use meta::rewritten;

use layout::{Kind, Limits};
use ledger::Ledger;
use meta::VolumeMeta;
use pool::Pool;
use ready::Ready;
use scan::{About, Examined};

/// The access modes of a pool that all nodes have: one writes, or several read.
const SHARED: [AccessMode; 5] = [
    AccessMode::SingleNodeWriter,
    AccessMode::SingleNodeReaderOnly,
    AccessMode::SingleNodeSingleWriter,
    AccessMode::SingleNodeMultiWriter,
    AccessMode::MultiNodeReaderOnly,
];

/// A backend of image files.
#[derive(Debug)]
pub struct ImageBackend {
    name: BackendName,
    topology: Option<Topology>,
    role: Role,
    /// All nodes have the pools: what one has connected, the others must not touch.
    shared: bool,
    /// In whose name leases are taken; `None` where nothing is connected or deleted.
    holder: Option<Holder>,
    pools: Vec<Arc<Pool>>,
}

impl ImageBackend {
    /// Opens the pools. One that is away, read-only or another process's is no error yet: what needs it answers
    /// `BackendUnavailable`, and it is tried again.
    ///
    /// # Errors
    /// What waiting will not repair: `Invalid` for a configuration or directory that cannot be; `InUse` for a pool that
    /// this process has already; `Unverified` for a damaged `longshore-pool.json`.
    pub fn open(config: ImageConfig, role: Role) -> Result<ImageBackend> {
        ImageBackend::open_remembering(config, role, None, None)
    }

    /// As `open`; which pool was where is remembered in the directory `memory`, over restarts: a mount point that is bare
    /// after a reboot is then no new pool. Of shared pools volumes are connected and deleted in the name of `holder`.
    pub fn open_remembering(
        config: ImageConfig,
        role: Role,
        memory: Option<&Path>,
        holder: Option<Holder>,
    ) -> Result<ImageBackend> {
        let backend = ImageBackend::configured(config, role, memory, holder)?;
        backend.open_pools()?;
        Ok(backend)
    }

    /// As `open_remembering`, but where this process provisions the pools are opened by [`Exclusive::lead`].
    pub fn open_on_lead(config: ImageConfig, role: Role, memory: Option<&Path>, holder: Option<Holder>) -> Result<ImageBackend> {
        let backend = ImageBackend::configured(config, role, memory, holder)?;
        if !role.provision {
            backend.open_pools()?;
        }
        Ok(backend)
    }

    fn configured(config: ImageConfig, role: Role, memory: Option<&Path>, holder: Option<Holder>) -> Result<ImageBackend> {
        config.validate()?;
        let ImageConfig { name, pools, node, shared } = config;
        let alone = pools.len() == 1;
        let pools =
            pools.into_iter().map(|pool| Pool::new(pool, name.clone(), role, memory, alone)).collect::<Result<Vec<_>>>()?;
        let topology = topology_of(node.as_ref());
        Ok(ImageBackend { name, topology, role, shared, holder, pools })
    }

    fn open_pools(&self) -> Result<()> {
        Pool::open_all(&self.pools)?;
        if self.role.provision {
            self.remove_stray_groups();
        }
        Ok(())
    }

    /// Where a volume or snapshot lies, and what is seen of it. Looks into all pools.
    ///
    /// # Errors
    /// `BackendUnavailable` where it was not found, but a pool could not be looked into; `Unverified` where it lies in two pools.
    fn locate<M: About>(&self, local: &str) -> Result<Option<Located<'_, M>>> {
        self.locate_where(local, |_| true)
    }

    /// As `locate`, for a deletion: what is gone already, or lies elsewhere, waits for no pool that never had it.
    fn locate_to_delete<M: About>(&self, local: &str) -> Result<Option<Located<'_, M>>> {
        self.locate_where(local, |pool| !self.never_had(pool, M::KIND, local))
    }

    /// `counts` says of which pools that are away it is an error that nothing was found.
    fn locate_where<M: About>(&self, local: &str, counts: impl Fn(&Pool) -> bool) -> Result<Option<Located<'_, M>>> {
        let LookedInto { found, away } = self.look_into_all(local)?;
        match away.into_iter().rfind(|(pool, _)| counts(pool)) {
            Some((_, error)) if found.is_none() => Err(error),
            _ => Ok(found),
        }
    }

    /// Whether a pool that is away lacks this for certain, so that its deletion need not wait. Not if it is shared: another machine may have
    /// got its lock meanwhile, and made it.
    fn never_had(&self, pool: &Pool, kind: Kind, local: &str) -> bool {
        !self.shared && pool.surely_lacks(kind, local)
    }

    /// As `locate`, for a volume that is made if there is none. A pool that is away does not count where its ledger, which only this
    /// process changes, does not have the volume, or where the StorageClass names another pool.
    fn locate_for_create(&self, local: &str, parameters: &ImageParameters) -> Result<Option<Located<'_, VolumeMeta>>> {
        let LookedInto { found, away } = self.look_into_all(local)?;
        let is_other = |pool: &Pool| parameters.pool.as_ref().is_some_and(|named| *named != pool.config.name);
        match away.into_iter().find(|(pool, _)| !is_other(pool) && !pool.surely_lacks(Kind::Volume, local)) {
            Some((pool, Error::BackendUnavailable { backend, reason })) if found.is_none() => {
                let name = &pool.config.name;
                let reason = format!(
                    "{reason}; whether pool {name} holds volume {local} is not known, so that none is made in another pool: make \
                     pool {name} usable, or name another pool in the StorageClass (parameter pool)"
                );
                Err(Error::BackendUnavailable { backend, reason })
            }
            Some((_, error)) if found.is_none() => Err(error),
            _ => Ok(found),
        }
    }

    /// Looks into all pools: what was found, and the pools that could not be looked into.
    ///
    /// # Errors
    /// `Unverified` where two pools have something of this id, naming both.
    fn look_into_all<M: About>(&self, local: &str) -> Result<LookedInto<'_, M>> {
        let mut found: Option<Located<'_, M>> = None;
        let mut away = Vec::new();
        for pool in self.in_order(M::KIND, local) {
            let looked = match &found {
                None => pool.ready().and_then(|ready| {
                    let seen = scan::find(&ready, local)?;
                    Ok(seen.map(|seen| Located { pool, ready, seen }))
                }),
                // What is found waits for no other pool.
                Some(first) if pool.holds_too(M::KIND, local) => Err(in_two_pools(M::KIND, local, &first.ready, &pool.config)),
                Some(_) => Ok(None),
            };
            match looked {
                Ok(Some(located)) => found = Some(located),
                Ok(None) => {}
                Err(error @ Error::Unverified { .. }) => return Err(error),
                Err(error) => away.push((pool, error)),
            }
        }
        Ok(LookedInto { found, away })
    }

    /// The first pool in which `look` finds something.
    fn search<T>(
        &self,
        kind: Kind,
        local: &str,
        look: impl Fn(&Ready) -> Result<Option<T>>,
    ) -> Result<Option<(&Pool, Arc<Ready>, T)>> {
        let mut away = None;
        for pool in self.in_order(kind, local) {
            match pool.ready().and_then(|ready| Ok(look(&ready)?.map(|found| (pool, ready, found)))) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error) => away = Some(error),
            }
        }
        away.map_or(Ok(None), Err)
    }

    /// All pools: first those whose ledger has it, then those that were opened. One that hangs or is away is only waited for where no
    /// other has what is looked for.
    fn in_order(&self, kind: Kind, local: &str) -> impl Iterator<Item = &Pool> {
        let mut pools: Vec<&Pool> = self.pools.iter().map(|pool| &**pool).collect();
        if pools.len() > 1 {
            pools.sort_by_key(|pool| (!pool.records(kind, local), !pool.is_open()));
        }
        pools.into_iter()
    }

    /// All pools: for reading, and for their ledgers where this process provisions.
    fn all_ready(&self) -> Result<Vec<Arc<Ready>>> {
        self.pools.iter().map(|pool| if self.role.provision { pool.counted() } else { pool.ready() }).collect()
    }

    /// Up to `max` things after `after`, over all pools, in the order of their ids. `ids` gives those of one pool;
    /// `read` looks at one, and leaves it out by `None`.
    fn page<T>(
        &self,
        after: Option<&str>,
        max: usize,
        ids: impl Fn(&Ready, Option<&str>, usize) -> Result<Vec<Box<str>>>,
        read: impl Fn(&Ready, &str) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let pools = self.all_ready()?;
        let mut after: Option<Box<str>> = after.map(Into::into);
        let mut page = Vec::new();
        while page.len() < max {
            let wanted = max - page.len();
            let mut batch = Vec::new();
            for ready in &pools {
                batch.extend(ids(ready, after.as_deref(), wanted)?.into_iter().map(|id| (id, ready)));
            }
            batch.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            batch.truncate(wanted);
            let Some((last, _)) = batch.last() else { break };
            after = Some(last.clone());
            for (id, ready) in &batch {
                page.extend(read(ready, id)?);
            }
        }
        Ok(page)
    }

    /// Has each pool provision as much as these pools, which are the same ones, say.
    pub(super) fn apply_limits(&self, pools: &[PoolConfig]) -> ApplySettings<'_> {
        let limits: Vec<Limits> = pools.iter().map(PoolConfig::limits).collect();
        Box::new(move || self.pools.iter().zip(limits).for_each(|(pool, limits)| *os::lock(&pool.limits) = limits))
    }

    fn holder(&self) -> Result<&Holder> {
        let reason = format!("backend {} was opened only to be looked at", self.name);
        self.holder.as_ref().ok_or_else(|| Error::invalid("backends", reason))
    }

    fn volume(&self, meta: VolumeMeta) -> Volume {
        meta.into_volume(self.topology.clone())
    }
}

/// Which of the two was meant is for a person to say: nothing is connected, copied or deleted of either.
fn in_two_pools(kind: Kind, local: &str, one: &Ready, other: &PoolConfig) -> Error {
    let (first, second) = (one.place(kind, local), other.path.join(kind.directory()).join(local));
    Error::Unverified {
        device: first.display().to_string(),
        reason: format!(
            "{} has the same id; see which of the two is in use, and move the other one out of its pool",
            second.display()
        ),
    }
}

/// A volume or snapshot, and the pool that it lies in.
struct Located<'a, M> {
    pool: &'a Pool,
    ready: Arc<Ready>,
    seen: Examined<M>,
}

/// What was found in all pools that could be looked into, and why the others could not.
struct LookedInto<'a, M> {
    found: Option<Located<'a, M>>,
    away: Vec<(&'a Pool, Error)>,
}

impl Exclusive for ImageBackend {
    fn stand_by(&self) {
        self.pools.iter().for_each(|pool| pool.set_standby(true));
    }

    fn first_lock(&self, until: Instant) -> Result<FirstLock> {
        let mut pools: Vec<&Pool> = self.pools.iter().map(|pool| &**pool).collect();
        pools.sort_by(|a, b| a.config.name.cmp(&b.config.name));
        for pool in pools {
            match pool.first_lock(until)? {
                FirstLock::Away => {}
                found => return Ok(found),
            }
        }
        Ok(FirstLock::Away)
    }

    fn lost(&self, until: Instant) -> Option<String> {
        self.pools.iter().find_map(|pool| pool.lost_to(until))
    }

    fn lead(&self) -> Result<()> {
        self.pools.iter().for_each(|pool| pool.set_standby(false));
        self.open_pools()
    }
}

impl Backend for ImageBackend {
    fn name(&self) -> &BackendName {
        &self.name
    }

    fn kind(&self) -> &'static str {
        ImageConfig::KIND
    }

    fn probe(&self) -> Result<()> {
        let failed: Vec<Error> = self.pools.iter().filter_map(|pool| pool.probe().err()).collect();
        let reasons = failed.into_iter().map(|error| match error {
            Error::BackendUnavailable { reason, .. } => reason,
            other => other.to_string(),
        });
        let reasons: Vec<String> = reasons.collect();
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Error::BackendUnavailable { backend: self.name.to_string(), reason: reasons.join("; ") })
    }

    fn is_usable_in_part(&self) -> bool {
        self.pools.iter().any(|pool| pool.probe().is_ok())
    }

    fn access_modes(&self) -> &[AccessMode] {
        if self.shared { &SHARED } else { &AccessMode::SINGLE_NODE }
    }

    fn parameters(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let parameters: ImageParameters = raw.parse()?;
        self.check_parameters(&parameters)?;
        serde_json::to_value(&parameters).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    fn topology(&self) -> Result<Option<Topology>> {
        Ok(self.topology.clone())
    }

    fn reload(&self, configuration: &dyn Any) -> Result<ApplySettings<'_>> {
        Ok(self.apply_limits(&of_type::<ImageConfig>(configuration)?.pools))
    }

    fn usage(&self) -> Usage {
        Usage { pools: self.pools.iter().map(|pool| (pool.config.name.clone(), pool.usage().ok())).collect(), attachments: None }
    }

    fn exclusive(&self) -> Option<&dyn Exclusive> {
        self.role.provision.then_some(self)
    }
    fn provision(&self) -> Option<&dyn Provision> {
        self.role.provision.then_some(self)
    }
    fn expand(&self) -> Option<&dyn Expand> {
        // Also where it only connects: growing what is on a volume is the node's half, and from this the node says that it can.
        Some(self)
    }
    fn modify(&self) -> Option<&dyn Modify> {
        self.role.provision.then_some(self)
    }
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.role.provision.then_some(self)
    }
    fn groups(&self) -> Option<&dyn Groups> {
        self.role.provision.then_some(self)
    }
    fn changed_blocks(&self) -> Option<&dyn ChangedBlocks> {
        self.role.provision.then_some(self)
    }
    fn attach(&self) -> Option<&dyn Attach> {
        (self.shared && self.role.provision).then_some(self)
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

//! Directories as volumes: what the backends of directories share, whatever their directories lie on.
//!
//! A backend gives a [`Location`] for each top directory in which volumes are made, and gets a [`Controller`] with all of the controller's
//! side: records, atomic creation, quotas, snapshots, trash, health.
//!
//! Invariants:
//! - The base (a share, a directory of a local file system) is the truth: a volume exists iff its record says that it is whole. The index
//!   in memory orders lists and sums provisioned capacity.
//! - "Not there" is only said when every base could be looked into.
//! - Nothing that is not ours is replaced or removed: a place is claimed before it is taken, a directory goes by one rename, into the
//!   trash, and only from there by its files.
//! - One process provisions from a base at a time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::backend::FirstLock;
use crate::backend::{ApplySettings, Exclusive, PoolUsage, Usage};
use crate::os::lock;
use crate::volume::{BackendName, Bytes, Error, Result, Topology};

mod base;
mod health;
mod index;
mod location;
mod modify;
mod parameters;
mod place;
mod provision;
mod quota;
mod record;
mod recover;
mod silence;
mod snapshot;
pub mod subdir;
mod survey;
mod sweeper;
#[cfg(test)]
mod tests;
mod work;

pub use base::{Base, LOCK_BELOW_BASE, UNKNOWN_FILE_SYSTEM};
pub use location::Location;
pub use parameters::{CommonParameters, Consistency, DirectorySnapshotParameters, Medium, Ownership, check_on_delete};
pub use silence::Silence;

use base::Ready;
use index::Index;
use record::{Phase, VolumeRecord};
use work::{Source, Work};

/// How long a call waits for a copy before it says that it continues.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a copy may take to see that it is to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Makes and removes volumes on the bases of one backend.
#[derive(Debug)]
pub struct Controller {
    backend: BackendName,
    bases: Vec<Arc<Base>>,
    /// From where its volumes and snapshots can be reached; `None` is from everywhere.
    topology: Option<Topology>,
    patience: Duration,
    standby: AtomicBool,
}

impl Controller {
    /// Nothing is opened yet. `state` is a directory of the driver's own.
    pub fn new(backend: &BackendName, locations: Vec<Arc<dyn Location>>, topology: Option<Topology>, state: &Path) -> Controller {
        let bases = locations.into_iter().map(|location| Arc::new(Base::new(location, backend, state))).collect();
        Controller { backend: backend.clone(), bases, topology, patience: PATIENCE, standby: AtomicBool::new(false) }
    }

    #[cfg(test)]
    fn impatient(self) -> Controller {
        Controller { patience: Duration::from_millis(50), ..self }
    }

    /// Has as much of each base provisioned as these, which are in the order of the locations.
    pub fn apply_capacities(&self, capacities: Vec<Option<Bytes>>) -> ApplySettings<'_> {
        Box::new(move || self.bases.iter().zip(capacities).for_each(|(base, capacity)| *lock(&base.capacity) = capacity))
    }

    fn set_standby(&self, standby: bool) {
        self.standby.store(standby, Ordering::Relaxed);
        self.bases.iter().for_each(|base| base.set_standby(standby));
    }

    /// Whether any base can be used. On standby none is asked: they are not mounted.
    ///
    /// # Errors
    /// `BackendUnavailable` with the reasons of all.
    pub fn probe(&self) -> Result<()> {
        if self.standby.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut reasons = Vec::new();
        for (_, ready) in ask(&self.bases) {
            match ready {
                Ok(_) => return Ok(()),
                Err(Error::BackendUnavailable { reason, .. }) => reasons.push(reason),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(Error::BackendUnavailable { backend: self.backend.to_string(), reason: reasons.join("; ") })
    }

    /// The bases that a class allows.
    ///
    /// # Errors
    /// `Invalid` where there are none.
    fn asked_for(&self, parameters: &Value) -> Result<Vec<&Arc<Base>>> {
        let mut allowed = Vec::new();
        for base in &self.bases {
            if base.location.allows(parameters)? {
                allowed.push(base);
            }
        }
        if allowed.is_empty() {
            let known: Vec<String> = self.bases.iter().map(|base| base.location.called()).collect();
            let reason = format!("they name none of what backend {} has; there are {}", self.backend, known.join(", "));
            return Err(Error::invalid("parameters", reason));
        }
        Ok(allowed)
    }

    /// The first base on which `look` finds something: of the one that has it by its index nobody waits for another; else all are asked.
    ///
    /// # Errors
    /// `BackendUnavailable` where nothing was found, but not all bases could be looked into.
    fn search<T>(
        &self,
        has: impl Fn(&Index) -> bool,
        look: impl Fn(&Arc<Ready>) -> Result<Option<T>>,
    ) -> Result<Option<(Arc<Ready>, T)>> {
        if let Some(found) = self.search_own(has, &look)? {
            return Ok(Some(found));
        }
        let mut away = None;
        for (_, ready) in ask(&self.bases) {
            match ready.and_then(|ready| Ok(look(&ready)?.map(|found| (ready, found)))) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error @ Error::Unverified { .. }) => return Err(error),
                Err(error) => away = Some(error),
            }
        }
        away.map_or(Ok(None), Err)
    }

    /// Looks only on the base that has it by its index.
    fn search_own<T>(
        &self,
        has: impl Fn(&Index) -> bool,
        look: impl Fn(&Arc<Ready>) -> Result<Option<T>>,
    ) -> Result<Option<(Arc<Ready>, T)>> {
        let Some(own) = self.bases.iter().find(|base| base.current().is_some_and(|ready| has(&ready.index))) else {
            return Ok(None);
        };
        let ready = own.ready()?;
        Ok(look(&ready)?.map(|found| (ready, found)))
    }

    /// A volume's record, whatever its phase, for a volume that is made if there is none. A base that is away does not count where its
    /// index, which only this process changes, does not have the volume, or where the StorageClass names another base.
    ///
    /// # Errors
    /// As `search`, with what to do; `Unverified` where two bases have the volume, naming both.
    fn locate_for_create(&self, local: &str, parameters: &Value) -> Result<Option<(Arc<Ready>, VolumeRecord)>> {
        if let Some(found) = self.search_own(|index| index.has_volume(local), |ready| ready.record(local))? {
            return self.check_only(local, found).map(Some);
        }
        let mut found: Option<(Arc<Ready>, VolumeRecord)> = None;
        let mut away = None;
        for (base, ready) in ask(&self.bases) {
            let looked = ready.and_then(|ready| Ok(ready.record(local)?.map(|record| (ready, record))));
            match (looked, &found) {
                (Ok(Some((ready, _))), Some((first, _))) => return Err(in_two_bases(local, first, &ready)),
                (Ok(Some(first)), None) => found = Some(first),
                (Err(error @ Error::Unverified { .. }), _) => return Err(error),
                (Err(error), _) if base.location.allows(parameters)? && !base.surely_lacks(local) => away = Some((base, error)),
                (Ok(None) | Err(_), _) => {}
            }
        }
        match away {
            Some((base, Error::BackendUnavailable { backend, reason })) if found.is_none() => {
                let reason = format!(
                    "{reason}; whether {noun} {called} holds volume {local} is not known, so that none is made on another {noun}: make \
                     {noun} {called} usable, or {}",
                    base.location.name_another(),
                    noun = base.location.noun(),
                    called = base.location.called(),
                );
                Err(Error::BackendUnavailable { backend, reason })
            }
            Some((_, error)) if found.is_none() => Err(error),
            _ => Ok(found),
        }
    }

    /// A volume's record, whatever its phase.
    ///
    /// # Errors
    /// As `search`; `Unverified` where two bases have the volume, naming both.
    fn locate(&self, local: &str) -> Result<Option<(Arc<Ready>, VolumeRecord)>> {
        let found = self.search(|index| index.has_volume(local), |ready| ready.record(local))?;
        found.map(|found| self.check_only(local, found)).transpose()
    }

    /// # Errors
    /// `Unverified` where another base has the volume, too, by its index, and by its record where it answers.
    fn check_only(&self, local: &str, found: (Arc<Ready>, VolumeRecord)) -> Result<(Arc<Ready>, VolumeRecord)> {
        for base in &self.bases {
            let Some(other) = base.current().filter(|other| !Arc::ptr_eq(other, &found.0) && other.index.has_volume(local))
            else {
                continue;
            };
            // A damaged record, or one that cannot be read, is there. A base that is away is not waited for.
            if base.is_away() || !matches!(other.record(local), Ok(None)) {
                return Err(in_two_bases(local, &found.0, &other));
            }
        }
        Ok(found)
    }

    /// A volume that there is.
    fn locate_whole(&self, local: &str) -> Result<Option<(Arc<Ready>, VolumeRecord)>> {
        Ok(self.locate(local)?.filter(|(_, record)| record.phase == Phase::Whole))
    }

    /// Up to `max` things after `after`, over all bases, in the order of their ids.
    fn page<T>(
        &self,
        after: Option<&str>,
        max: usize,
        ids: impl Fn(&Ready, Option<&str>, usize) -> Vec<String>,
        read: impl Fn(&Ready, &str) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let bases = ask(&self.bases).map(|(_, ready)| ready).collect::<Result<Vec<_>>>()?;
        let mut after = after.map(str::to_owned);
        let mut page = Vec::new();
        while page.len() < max {
            let wanted = max - page.len();
            let found = |ready| ids(ready, after.as_deref(), wanted).into_iter().map(move |id| (id, ready));
            let mut batch: Vec<(String, &Ready)> = bases.iter().flat_map(|ready| found(ready.as_ref())).collect();
            batch.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            batch.truncate(wanted);
            let Some((last, _)) = batch.last() else { break };
            after = Some(last.clone());
            for (id, ready) in batch {
                page.extend(read(ready, &id)?);
            }
        }
        Ok(page)
    }

    /// Whether no copy of it runs.
    ///
    /// # Errors
    /// `InProgress`: the copy continues, and then it may go.
    fn check_not_copied(&self, source: &Source) -> Result<()> {
        // Those of this process, also onto a base that is away by now.
        for ready in self.bases.iter().filter_map(|base| base.current()) {
            let copies: Vec<Arc<Work>> = lock(&ready.works).values().filter(|work| work.source == *source).cloned().collect();
            if let Some(work) = copies.iter().find(|work| !work.ends_within(Duration::ZERO)) {
                let (Source::Volume(local) | Source::Snapshot(local)) = source;
                let reason = format!("is being copied into another one ({})", work.control);
                return Err(Error::InProgress { object: format!("{}:{local}", self.backend), reason });
            }
        }
        Ok(())
    }

    pub fn usage(&self) -> Usage {
        let pools = ask(&self.bases).map(|(base, ready)| {
            let usage = ready.and_then(|ready| ready.pool_usage());
            (base.location.called(), usage.ok())
        });
        Usage { pools: pools.collect(), attachments: None }
    }
}

impl Exclusive for Controller {
    fn stand_by(&self) {
        self.set_standby(true);
    }

    fn first_lock(&self, until: Instant) -> Result<FirstLock> {
        let mut bases: Vec<&Arc<Base>> = self.bases.iter().collect();
        bases.sort_by_key(|base| base.location.called());
        let found = bases.into_iter().map(|base| base.first_lock(until)).find(|found| !matches!(found, FirstLock::Away));
        Ok(found.unwrap_or(FirstLock::Away))
    }

    /// The bases are opened when they are used.
    fn lead(&self) -> Result<()> {
        self.set_standby(false);
        Ok(())
    }
}

/// Asks all of these at the same time, and answers those first that were there the last time: a server that hangs is waited for last, and
/// once.
fn ask<'a>(bases: impl IntoIterator<Item = &'a Arc<Base>>) -> impl Iterator<Item = (&'a Base, Result<Arc<Ready>>)> {
    let mut asked: Vec<_> = bases.into_iter().map(|base| (&**base, base.ask())).collect();
    asked.sort_by_key(|(base, _)| (base.is_away(), base.current().is_none()));
    asked.into_iter().map(|(base, asked)| (base, base.answer(asked)))
}

/// Which of the two was meant is for a person to say.
fn in_two_bases(local: &str, one: &Ready, other: &Ready) -> Error {
    Error::Unverified {
        device: format!("volume {local} on {}", one.place()),
        reason: format!(
            "{} has a volume of the same id; see which of the two is in use, and move the directory and the record of the other one away",
            other.place()
        ),
    }
}

impl Ready {
    fn pool_usage(&self) -> Result<PoolUsage> {
        let usage = self.usage()?;
        Ok(PoolUsage {
            total: Bytes(usage.total),
            used: Some(Bytes(usage.used)),
            metadata: None,
            provisionable: self.capacity().unwrap_or(Bytes(usage.total)),
            provisioned: Some(self.index.provisioned()),
        })
    }

    fn work(&self, key: &str) -> Option<Arc<Work>> {
        lock(&self.works).get(key).cloned()
    }

    /// Ends a copy, if there is one, and forgets it.
    ///
    /// # Errors
    /// `InProgress` where it has not seen that yet.
    fn stop_work(&self, key: &str) -> Result<()> {
        let Some(work) = self.work(key) else { return Ok(()) };
        work.control.stop();
        if !work.ends_within(STOP_PATIENCE) {
            return Err(Error::InProgress { object: key.to_owned(), reason: "a copy into it is being stopped".to_owned() });
        }
        lock(&self.works).remove(key);
        Ok(())
    }
}

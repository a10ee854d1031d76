//! The controller's side of a backend of shares.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::backend::FirstLock;
use crate::backend::{ApplySettings, Exclusive, PoolUsage, Usage};
use crate::os::lock;
use crate::volume::{BackendName, Bytes, Error, Result};

use super::config::{NfsConfig, NfsParameters, ShareConfig};

mod health;
mod index;
mod modify;
mod place;
mod provision;
mod quota;
mod record;
mod recover;
mod share;
mod snapshot;
mod sweeper;
#[cfg(test)]
mod tests;
mod work;

use index::Index;
use record::{Phase, VolumeRecord};
use share::{Access, Ready, Share};
use work::{Source, Work};

/// How long a call waits for a copy before it says that it continues.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a copy may take to see that it is to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Makes and removes volumes on the shares of one backend.
#[derive(Debug)]
pub(super) struct Controller {
    backend: BackendName,
    shares: Vec<Arc<Share>>,
    patience: Duration,
    standby: AtomicBool,
}

impl Controller {
    /// No server is asked anything yet. `state` is a directory of the driver's own.
    pub fn new(config: &NfsConfig, state: &Path) -> Result<Controller> {
        let at = state.join("nfs-mount");
        match rustix::fs::mkdir(&at, rustix::fs::Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(crate::os::Error::io("make directory", &at, errno).into()),
        }
        Ok(Controller::with(config, state, |_| Access::Mount { at: at.clone() }))
    }

    fn with(config: &NfsConfig, state: &Path, access: impl Fn(usize) -> Access) -> Controller {
        let shares = config.shares.iter().enumerate();
        let shares =
            shares.map(|(number, share)| Arc::new(Share::new(share.clone(), &config.name, access(number), state))).collect();
        Controller { backend: config.name.clone(), shares, patience: PATIENCE, standby: AtomicBool::new(false) }
    }

    /// Shares that are directories of this machine.
    #[cfg(test)]
    fn on_directories(config: &NfsConfig, state: &Path, directories: &[std::path::PathBuf]) -> Controller {
        let controller = Controller::with(config, state, |number| Access::Directory(directories[number].clone()));
        Controller { patience: Duration::from_millis(50), ..controller }
    }

    /// Has as much of each share provisioned as these shares, which are the same ones, say.
    pub fn apply_capacities(&self, shares: &[ShareConfig]) -> ApplySettings<'_> {
        let capacities: Vec<Option<Bytes>> = shares.iter().map(|share| share.capacity).collect();
        Box::new(move || self.shares.iter().zip(capacities).for_each(|(share, capacity)| *lock(&share.capacity) = capacity))
    }

    fn set_standby(&self, standby: bool) {
        self.standby.store(standby, Ordering::Relaxed);
        self.shares.iter().for_each(|share| share.set_standby(standby));
    }

    /// Whether any share can be used. On standby none is asked: they are not mounted.
    ///
    /// # Errors
    /// `BackendUnavailable` with the reasons of all.
    pub fn probe(&self) -> Result<()> {
        if self.standby.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut reasons = Vec::new();
        for (_, ready) in ask(&self.shares) {
            match ready {
                Ok(_) => return Ok(()),
                Err(Error::BackendUnavailable { reason, .. }) => reasons.push(reason),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(Error::BackendUnavailable { backend: self.backend.to_string(), reason: reasons.join("; ") })
    }

    /// Whether the parameters name shares of ours.
    pub fn check(&self, parameters: &NfsParameters) -> Result<()> {
        if self.asked_for(parameters).next().is_some() {
            return Ok(());
        }
        let known: Vec<String> = self.shares.iter().map(|share| share.config.called()).collect();
        let field = if parameters.server.is_empty() { "parameters.share" } else { "parameters.server" };
        let asked = format!("{}:{}", parameters.server, parameters.share);
        Err(Error::invalid(
            field,
            format!("{asked} is no share that backend {} has; there are {}", self.backend, known.join(", ")),
        ))
    }

    /// The shares that a class allows.
    fn asked_for<'a>(&'a self, parameters: &'a NfsParameters) -> impl Iterator<Item = &'a Arc<Share>> {
        self.shares.iter().filter(|share| parameters.allows(&share.config))
    }

    /// The first share on which `look` finds something: of the one that has it by its index nobody waits for another; else all are asked.
    ///
    /// # Errors
    /// `BackendUnavailable` where nothing was found, but not all shares could be looked into.
    fn search<T>(
        &self,
        has: impl Fn(&Index) -> bool,
        look: impl Fn(&Arc<Ready>) -> Result<Option<T>>,
    ) -> Result<Option<(Arc<Ready>, T)>> {
        if let Some(found) = self.search_own(has, &look)? {
            return Ok(Some(found));
        }
        let mut away = None;
        for (_, ready) in ask(&self.shares) {
            match ready.and_then(|ready| Ok(look(&ready)?.map(|found| (ready, found)))) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error @ Error::Unverified { .. }) => return Err(error),
                Err(error) => away = Some(error),
            }
        }
        away.map_or(Ok(None), Err)
    }

    /// Looks only on the share that has it by its index.
    fn search_own<T>(
        &self,
        has: impl Fn(&Index) -> bool,
        look: impl Fn(&Arc<Ready>) -> Result<Option<T>>,
    ) -> Result<Option<(Arc<Ready>, T)>> {
        let Some(own) = self.shares.iter().find(|share| share.current().is_some_and(|ready| has(&ready.index))) else {
            return Ok(None);
        };
        let ready = own.ready()?;
        Ok(look(&ready)?.map(|found| (ready, found)))
    }

    /// A volume's record, whatever its phase, for a volume that is made if there is none. A share that is away does not count where its
    /// index, which only this process changes, does not have the volume, or where the StorageClass names another share.
    ///
    /// # Errors
    /// As `search`, with what to do; `Unverified` where two shares have the volume, naming both.
    fn locate_for_create(&self, local: &str, parameters: &NfsParameters) -> Result<Option<(Arc<Ready>, VolumeRecord)>> {
        if let Some(found) = self.search_own(|index| index.has_volume(local), |ready| ready.record(local))? {
            return self.check_only(local, found).map(Some);
        }
        let mut found: Option<(Arc<Ready>, VolumeRecord)> = None;
        let mut away = None;
        for (share, ready) in ask(&self.shares) {
            let looked = ready.and_then(|ready| Ok(ready.record(local)?.map(|record| (ready, record))));
            match (looked, &found) {
                (Ok(Some((ready, _))), Some((first, _))) => return Err(in_two_shares(local, first, &ready)),
                (Ok(Some(first)), None) => found = Some(first),
                (Err(error @ Error::Unverified { .. }), _) => return Err(error),
                (Err(error), _) if parameters.allows(&share.config) && !share.surely_lacks(local) => away = Some((share, error)),
                (Ok(None) | Err(_), _) => {}
            }
        }
        match away {
            Some((share, Error::BackendUnavailable { backend, reason })) if found.is_none() => {
                let called = share.config.called();
                let reason = format!(
                    "{reason}; whether share {called} holds volume {local} is not known, so that none is made on another share: make \
                     share {called} usable, or name another share in the StorageClass (parameters server and share)"
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
    /// As `search`; `Unverified` where two shares have the volume, naming both.
    fn locate(&self, local: &str) -> Result<Option<(Arc<Ready>, VolumeRecord)>> {
        let found = self.search(|index| index.has_volume(local), |ready| ready.record(local))?;
        found.map(|found| self.check_only(local, found)).transpose()
    }

    /// # Errors
    /// `Unverified` where another share has the volume, too, by its index.
    fn check_only(&self, local: &str, found: (Arc<Ready>, VolumeRecord)) -> Result<(Arc<Ready>, VolumeRecord)> {
        let mut others = self.shares.iter().filter_map(|share| share.current()).filter(|other| !Arc::ptr_eq(other, &found.0));
        match others.find(|other| other.index.has_volume(local)) {
            Some(other) => Err(in_two_shares(local, &found.0, &other)),
            None => Ok(found),
        }
    }

    /// A volume that there is.
    fn locate_whole(&self, local: &str) -> Result<Option<(Arc<Ready>, VolumeRecord)>> {
        Ok(self.locate(local)?.filter(|(_, record)| record.phase == Phase::Whole))
    }

    /// Up to `max` things after `after`, over all shares, in the order of their ids.
    fn page<T>(
        &self,
        after: Option<&str>,
        max: usize,
        ids: impl Fn(&Ready, Option<&str>, usize) -> Vec<String>,
        read: impl Fn(&Ready, &str) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let shares = ask(&self.shares).map(|(_, ready)| ready).collect::<Result<Vec<_>>>()?;
        let mut after = after.map(str::to_owned);
        let mut page = Vec::new();
        while page.len() < max {
            let wanted = max - page.len();
            let found = |ready| ids(ready, after.as_deref(), wanted).into_iter().map(move |id| (id, ready));
            let mut batch: Vec<(String, &Ready)> = shares.iter().flat_map(|ready| found(ready.as_ref())).collect();
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
        // Those of this process, also onto a share that is away by now.
        for ready in self.shares.iter().filter_map(|share| share.current()) {
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
        let pools = ask(&self.shares).map(|(share, ready)| {
            let usage = ready.and_then(|ready| ready.pool_usage());
            (share.config.called(), usage.ok())
        });
        Usage { pools: pools.collect(), attachments: None }
    }
}

impl Exclusive for Controller {
    fn stand_by(&self) {
        self.set_standby(true);
    }

    fn first_lock(&self, until: Instant) -> Result<FirstLock> {
        let mut shares: Vec<&Arc<Share>> = self.shares.iter().collect();
        shares.sort_by_key(|share| share.config.called());
        let found = shares.into_iter().map(|share| share.first_lock(until)).find(|found| !matches!(found, FirstLock::Away));
        Ok(found.unwrap_or(FirstLock::Away))
    }

    /// The shares are opened when they are used.
    fn lead(&self) -> Result<()> {
        self.set_standby(false);
        Ok(())
    }
}

/// Asks all of these at the same time, and answers those first that were there the last time: a server that hangs is waited for last, and
/// once.
fn ask<'a>(shares: impl IntoIterator<Item = &'a Arc<Share>>) -> impl Iterator<Item = (&'a Share, Result<Arc<Ready>>)> {
    let mut asked: Vec<_> = shares.into_iter().map(|share| (&**share, share.ask())).collect();
    asked.sort_by_key(|(share, _)| (share.is_away(), share.current().is_none()));
    asked.into_iter().map(|(share, asked)| (share, share.answer(asked)))
}

/// Which of the two was meant is for a person to say.
fn in_two_shares(local: &str, one: &Ready, other: &Ready) -> Error {
    Error::Unverified {
        device: format!("volume {local} on share {}", one.called),
        reason: format!(
            "share {} has a volume of the same id; see which of the two is in use, and move the directory and the record of the other \
             one out of its share",
            other.called
        ),
    }
}

impl Ready {
    fn pool_usage(&self) -> Result<PoolUsage> {
        let usage = self.usage()?;
        Ok(PoolUsage {
            total: Bytes(usage.total),
            used: Some(Bytes(usage.used)),
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

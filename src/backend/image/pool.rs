//! A configured pool: opened when it is there, locked where this process provisions from it, and opened anew when it was away.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::backend::FirstLock;
use crate::backend::{LockHolder, Role, patience};
use crate::os::lock as lock_of;
use crate::os::single::{NoResult, Single};
use crate::volume::{BackendName, Error, Result};

use super::config::PoolConfig;
use super::layout::{Kind, Limits};
use super::ledger::Ledger;
use super::lock::{NoLock, PoolLock};
use super::open::Opening;
use super::pool_id::PoolIdFile;
use super::ready::{Ready, down};
use super::scan;

/// How long the start waits for pools to open. Most take milliseconds; one whose file system is frozen or hangs is opened later.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// How old the opening of a pool becomes before calls no longer wait for it.
const CALL_PATIENCE: Duration = Duration::from_secs(5);
/// How old a look at a pool's directory becomes before calls no longer wait for it, where the backend has other pools.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// A configured pool, usable or not.
#[derive(Debug)]
pub(super) struct Pool {
    pub config: PoolConfig,
    /// Those in force, which a reload changes; `config` has those of the start.
    pub limits: Arc<Mutex<Limits>>,
    pub backend: BackendName,
    pub role: Role,
    current: Mutex<Option<Arc<Ready>>>,
    /// The random id of the pool that was here first. What appears in its place later must be the same: a directory that is
    /// suddenly empty is a file system that was unmounted, not a new pool.
    pub id: OnceLock<String>,
    /// Keeps the id over restarts.
    pub memory: Option<PoolIdFile>,
    /// Its opening, which may hang with its file system. The reason where it fails.
    opening: Single<Result<(), String>>,
    /// Why the last opening failed, where waiting will not repair that.
    refusal: Mutex<Option<Error>>,
    /// Another process has the lock, as far as this one has tried to take it.
    elsewhere: Mutex<Option<LockHolder>>,
    /// Another process has taken over the lock that this one had.
    lost: AtomicBool,
    /// While this process is on standby only `first_lock` takes the lock.
    standby: AtomicBool,
    /// It was away, or late at the start: that it has come is logged.
    missed: AtomicBool,
    this: Weak<Pool>,
    /// The backend has no other: nothing is held up by looking at it in place.
    alone: bool,
    /// Whether it is in its place, for a pool that is not alone.
    looking: Single<bool>,
}

impl Pool {
    /// Not opened yet.
    ///
    /// # Errors
    /// Where it cannot be read which pool was seen in its place.
    pub fn new(config: PoolConfig, backend: BackendName, role: Role, memory: Option<&Path>, alone: bool) -> Result<Arc<Pool>> {
        let memory = memory.map(|directory| PoolIdFile::new(directory, &backend, &config.name));
        let id = OnceLock::new();
        if let Some(known) = memory.as_ref().map(PoolIdFile::load_pool_id).transpose()?.flatten() {
            id.get_or_init(|| known);
        }
        let limits = Arc::new(Mutex::new(config.limits()));
        Ok(Arc::new_cyclic(|this| Pool {
            config,
            limits,
            backend,
            role,
            current: Mutex::new(None),
            id,
            memory,
            opening: Single::new("open pool"),
            refusal: Mutex::new(None),
            elsewhere: Mutex::new(None),
            lost: AtomicBool::new(false),
            standby: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            this: this.clone(),
            alone,
            looking: Single::new("look at pool"),
        }))
    }

    /// Opens all of them that can be opened now, at the same time. One that is away, or whose file system does not answer in time, is tried
    /// again at each use.
    ///
    /// # Errors
    /// What waiting will not repair: a new pool's directory that is none of ours, or one that this process has already.
    pub fn open_all(pools: &[Arc<Pool>]) -> Result<()> {
        let opened: Vec<Result<()>> = std::thread::scope(|scope| {
            let opening: Vec<_> =
                pools.iter().map(|pool| scope.spawn(|| pool.attempt(START_PATIENCE, pool.may_lock()))).collect();
            let panicked = |pool: &Pool| Err(pool.down("its opening panicked"));
            pools.iter().zip(opening).map(|(pool, opening)| opening.join().unwrap_or_else(|_| panicked(pool))).collect()
        });
        for (pool, opened) in pools.iter().zip(opened) {
            let Err(error) = opened else {
                if let Some(holder) = pool.elsewhere() {
                    tracing::warn!(pool = pool.config.name, reason = %NoLock::Elsewhere(holder), "nothing can be provisioned from the pool yet");
                }
                continue;
            };
            pool.refusal()?;
            pool.missed.store(true, Ordering::Relaxed);
            tracing::warn!(pool = pool.config.name, %error, "the pool cannot be used yet");
        }
        Ok(())
    }

    /// The pool, for reading.
    ///
    /// # Errors
    /// `BackendUnavailable`, naming the directory and what to do.
    pub fn ready(&self) -> Result<Arc<Ready>> {
        match self.at_hand() {
            Some(ready) => Ok(ready),
            None => self.reopen(),
        }
    }

    /// The pool, for changing it.
    ///
    /// # Errors
    /// `BackendUnavailable`, also where it is read-only.
    pub fn writable(&self) -> Result<Arc<Ready>> {
        let ready = self.ready()?;
        if ready.lock.is_ok() {
            self.check_kept(&ready)?;
            return Ok(ready);
        }
        let ready = self.reopen()?;
        match &ready.lock {
            Ok(_) => Ok(ready),
            Err(reason) => Err(self.down(reason.to_string())),
        }
    }

    /// As [`Ready::check_kept`]; remembers who has it, since this process is to end.
    fn check_kept(&self, ready: &Ready) -> Result<()> {
        let Some(holder) = ready.taken_over()? else { return Ok(()) };
        if !self.lost.swap(true, Ordering::Relaxed) {
            tracing::error!(pool = self.config.name, %holder, "another process has taken over the pool's lock, or its file is gone");
        }
        let error = self.down(NoLock::Elsewhere(holder.clone()).to_string());
        *lock_of(&self.elsewhere) = Some(holder);
        Err(error)
    }

    /// Who has taken over the lock that this process had, if one has.
    pub fn lost_to(&self, until: Instant) -> Option<String> {
        if self.current().is_some_and(|ready| ready.is_writable()) {
            // What hangs with its file system is seen later.
            self.attempt(patience(until), self.may_lock()).ok();
        }
        let lost = self.lost.load(Ordering::Relaxed);
        let holder = self.elsewhere().filter(|_| lost)?;
        Some(self.reason(&NoLock::Elsewhere(holder).to_string()))
    }

    /// The pool, for its ledger.
    ///
    /// # Errors
    /// `BackendUnavailable`, also where another process changes what it counts.
    pub fn counted(&self) -> Result<Arc<Ready>> {
        let ready = self.ready()?;
        if ready.has_ledger() { Ok(ready) } else { self.writable() }
    }

    /// Whether it can be used right now, for all that this process does with it.
    ///
    /// # Errors
    /// `BackendUnavailable`, naming the directory and what to do.
    pub fn probe(&self) -> Result<()> {
        let provisions = self.role.provision && self.may_lock();
        let ready = if provisions { self.writable()? } else { self.ready()? };
        let read_only = ready.room()?.read_only && provisions;
        if read_only { Err(ready.down("its file system is read-only; remount it writable")) } else { Ok(()) }
    }

    /// Whether it is certain that there is no such volume or snapshot in it, also while it is away: by its ledger, as long as this
    /// process has the lock that lets nobody else make one.
    pub fn surely_lacks(&self, kind: Kind, local: &str) -> bool {
        self.ledger_says(|ledger| !ledger.has(kind, local))
    }

    /// As `surely_lacks`, of all members of a group.
    pub fn surely_lacks_group(&self, group: &str) -> bool {
        self.ledger_says(|ledger| ledger.members(group).is_empty())
    }

    fn ledger_says(&self, what: impl FnOnce(&Ledger) -> bool) -> bool {
        let lost = self.lost.load(Ordering::Relaxed);
        !lost && self.current().is_some_and(|ready| ready.is_writable() && what(&ready.ledger))
    }

    fn current(&self) -> Option<Arc<Ready>> {
        lock_of(&self.current).clone()
    }

    fn set(&self, ready: Ready) {
        // Where it is known already, `Opening` has compared.
        let id = self.id.get_or_init(|| ready.id.clone());
        if let Some(Err(error)) = self.memory.as_ref().map(|memory| memory.keep(id)) {
            tracing::warn!(pool = self.config.name, %error, "after a restart an empty directory would be taken for a new pool");
        }
        let ready = Arc::new(ready);
        if ready.has_ledger() {
            verify_in_background(&ready);
        }
        *lock_of(&self.current) = Some(ready);
    }

    /// Whether it has what was found in another pool. Where this process provisions, only looked at if its ledger says so.
    pub fn holds_too(&self, kind: Kind, local: &str) -> bool {
        let recorded = self.records(kind, local);
        if !recorded && self.current().is_some_and(|ready| ready.has_ledger()) {
            return false;
        }
        // The ledger also has what was deleted and whose disk is not given back yet.
        self.at_hand().map_or(recorded, |ready| ready.has(kind, local).unwrap_or(recorded))
    }

    /// Whether its ledger has this volume or snapshot; without a look at its file system.
    pub fn records(&self, kind: Kind, local: &str) -> bool {
        self.current().is_some_and(|ready| ready.ledger.has(kind, local))
    }

    /// Whether it has been opened; it may be away by now.
    pub fn is_open(&self) -> bool {
        self.current().is_some()
    }

    /// The pool, if it is there without being opened anew.
    pub fn at_hand(&self) -> Option<Arc<Ready>> {
        let ready = self.current()?;
        if self.alone {
            return ready.is_in_place().then_some(ready);
        }
        let own = ready.clone();
        self.looking.run(LOOK_PATIENCE, move || own.is_in_place()).unwrap_or(false).then_some(ready)
    }

    fn reopen(&self) -> Result<Arc<Ready>> {
        self.missed.store(true, Ordering::Relaxed);
        self.attempt(CALL_PATIENCE, self.may_lock())?;
        self.current().ok_or_else(|| self.down("it is gone again"))
    }

    /// Opens it on a thread of its own, or joins the opening that runs.
    ///
    /// # Errors
    /// `BackendUnavailable`, also where that opening is `patience` old; it continues.
    fn attempt(&self, patience: Duration, lock: bool) -> Result<()> {
        let Some(pool) = self.this.upgrade() else { return Err(self.down("it is closed")) };
        match self.opening.run(patience, move || pool.open_now(lock)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(Error::BackendUnavailable { backend: self.backend.to_string(), reason }),
            Err(running @ NoResult::Running(_)) => Err(self.down(match self.elsewhere() {
                Some(holder) => NoLock::Elsewhere(holder).to_string(),
                None => format!(
                    "{}: its metadata is read for the first time, or its file system does not answer; it is used as soon as it is open. If \
                     that lasts, check its storage, and run `fsfreeze -u` if it is frozen",
                    running.reason("its opening")
                ),
            })),
            Err(none) => Err(self.down(none.reason("its opening"))),
        }
    }

    fn open_now(&self, lock: bool) -> Result<(), String> {
        // Another call may have opened it meanwhile; or it was there all the time, and looking at it took too long. On this thread it may.
        if let Some(ready) = self.current().filter(|ready| ready.is_writable() && ready.is_in_place()) {
            return self.check_kept(&ready).map_err(|error| error.to_string());
        }
        *lock_of(&self.refusal) = None;
        let held = Cell::new(false);
        let note_holder = |holder: &LockHolder| {
            held.set(true);
            // Once: what has it longer than that is no orphan.
            lock_of(&self.elsewhere).replace(holder.clone()).as_ref() != Some(holder)
        };
        let opened = self.opening(lock, &note_holder).run();
        if !held.get() || opened.as_ref().is_ok_and(Ready::is_writable) {
            *lock_of(&self.elsewhere) = None;
        }
        match opened {
            Ok(ready) => {
                self.set(ready);
                if self.elsewhere().is_none() && self.missed.swap(false, Ordering::Relaxed) {
                    tracing::info!(pool = self.config.name, "the pool is there");
                }
                Ok(())
            }
            Err(Error::BackendUnavailable { reason, .. }) => Err(reason),
            Err(error) => {
                let reason = self.reason(&error.to_string());
                *lock_of(&self.refusal) = Some(error);
                Err(reason)
            }
        }
    }

    fn opening<'a>(&'a self, lock: bool, held: &'a dyn Fn(&LockHolder) -> bool) -> Opening<'a> {
        Opening {
            config: &self.config,
            limits: &self.limits,
            backend: &self.backend,
            role: self.role,
            lock,
            expected: self.id.get().map(String::as_str),
            memory: self.memory.as_ref(),
            held,
        }
    }

    fn may_lock(&self) -> bool {
        !self.standby.load(Ordering::Relaxed)
    }

    pub fn set_standby(&self, standby: bool) {
        self.standby.store(standby, Ordering::Relaxed);
    }

    /// Takes its lock, also on standby.
    ///
    /// # Errors
    /// What waiting will not repair.
    pub fn first_lock(&self, until: Instant) -> Result<FirstLock> {
        let opened = self.attempt(patience(until), true);
        self.refusal()?;
        if let Some(holder) = self.elsewhere() {
            return Ok(FirstLock::Elsewhere(self.reason(&NoLock::Elsewhere(holder).to_string())));
        }
        let here = opened.is_ok() && self.current().is_some_and(|ready| ready.is_writable());
        Ok(if here { FirstLock::Here } else { FirstLock::Away })
    }

    /// Keeps everybody from provisioning, for as long as what is answered is there.
    ///
    /// # Errors
    /// `InUse`, naming who does.
    pub fn keep_off(&self) -> Result<PoolLock> {
        let locked = PoolLock::take(&self.config, |_| true)?;
        locked.map_err(|reason| match reason {
            NoLock::Elsewhere(holder) => Error::InUse {
                object: format!("pool {} ({})", self.config.name, self.config.path.display()),
                by: format!("{holder} provisions from it; stop that one"),
            },
            reason => self.down(reason.to_string()),
        })
    }

    fn elsewhere(&self) -> Option<LockHolder> {
        lock_of(&self.elsewhere).clone()
    }

    /// Whether the driver may start without this pool. Not with a new one that cannot be: its configuration is wrong. One that was open on
    /// this node before, and is damaged now, or was changed by a later version, keeps no other pool's volumes from being used.
    fn refusal(&self) -> Result<()> {
        match lock_of(&self.refusal).take() {
            Some(error @ Error::InUse { .. }) => Err(error),
            Some(error) if self.id.get().is_none() => Err(error),
            _ => Ok(()),
        }
    }

    fn reason(&self, reason: &str) -> String {
        format!("pool {} ({}): {reason}", self.config.name, self.config.path.display())
    }

    fn down(&self, reason: impl Into<String>) -> Error {
        down(&self.backend, &self.config, reason)
    }
}

/// Has what was entered from the index compared with the disk, on a thread that ends with the pool.
fn verify_in_background(ready: &Arc<Ready>) {
    let own = Arc::downgrade(ready);
    // Another one: the lock must not outlive the pool.
    let started = ready.for_reading().and_then(|reader| {
        let verify = move || scan::verify(&reader, &|| own.strong_count() == 0);
        std::thread::Builder::new().name("verify pool".to_owned()).spawn(verify)
    });
    if let Err(error) = started {
        tracing::warn!(pool = ready.name, %error, "damage of volumes is only seen when they are used");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// As on a disk that answers nothing for some seconds.
    #[test]
    fn pool_that_was_slow_to_look_at_is_used_again_and_not_in_the_way_of_itself() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = serde_json::json!({"name": "a", "path": directory.path().join("images")});
        let config = serde_json::from_value(config).expect("a pool");
        let pool = Pool::new(config, "image".parse().expect("a name"), Role { provision: true }, None, false).expect("made");
        Pool::open_all(std::slice::from_ref(&pool)).expect("opened");
        let (answer, hung) = mpsc::channel::<()>();
        let look = pool.looking.start(move || hung.recv().is_ok());
        assert!(pool.at_hand().is_none(), "it is slow");
        assert!(pool.writable().expect("it is there").is_writable());
        drop(answer);
        drop(look);
    }
}

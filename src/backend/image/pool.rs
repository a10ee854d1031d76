//! One directory of images: its layout, who may change it, and what lies in it.
//!
//! ```text
//! longshore-pool.json   says that this is a pool, and of which backend
//! lock                  held (flock) by the one process that provisions; holds its process id
//! volumes/<id>/         image, meta.json: the directory's presence is the volume's existence
//! snapshots/<id>/       image, meta.json
//! groups/<id>.json      a group's record: its presence is the existence of its members
//! tmp/<kind>~<id>/      being made: renamed into place when whole and synced
//! trash/<kind>~<id>/    deleted by a rename, waiting for its files to be unlinked
//! archive/, retained/   <id>.<unix time>/: deleted, but kept for the operator
//! exports/              who else shows an image, where that is not a loop device's matter (the `iscsi` backend)
//! ```
//! What lies in `tmp` and `trash` belongs to nobody: the lock's holder empties them when it opens the pool.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::os::single::{NoResult, Single};
use crate::os::{self, copy, durable};
use crate::volume::{BackendName, Error, Result};

use super::config::{PoolConfig, Role};
use super::files::{self, Access, IMAGE, META, Room, Seen};
use super::ledger::Ledger;
use super::meta::{self, Damage};
use super::opening::Opening;

/// How long the start waits for pools to open. Most take milliseconds; one whose file system is frozen or hangs is opened later.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// How old the opening of a pool becomes before calls no longer wait for it.
const CALL_PATIENCE: Duration = Duration::from_secs(5);
/// How old a look at a pool's directory becomes before calls no longer wait for it, where the backend has other pools.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of the file that remembers a pool's id.
const LONGEST_ID: u64 = 256;
pub(super) const GROUPS: &str = "groups";
pub(super) const TMP: &str = "tmp";
pub(super) const TRASH: &str = "trash";
pub(super) const ARCHIVE: &str = "archive";
pub(super) const RETAINED: &str = "retained";
pub(super) const VOLUMES: &str = "volumes";
pub(super) const SNAPSHOTS: &str = "snapshots";
/// Without these something was lost.
pub(super) const ESSENTIAL: [&str; 3] = [VOLUMES, SNAPSHOTS, GROUPS];

/// What has an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Volume,
    Snapshot,
}

impl Kind {
    pub const fn directory(self) -> &'static str {
        match self {
            Kind::Volume => VOLUMES,
            Kind::Snapshot => SNAPSHOTS,
        }
    }

    /// Its name in `tmp` and `trash`: `~` is in no id, so no two things share one.
    pub fn passing_name(self, local: &str) -> String {
        match self {
            Kind::Volume => format!("volume~{local}"),
            Kind::Snapshot => format!("snapshot~{local}"),
        }
    }
}

/// A configured pool, usable or not.
#[derive(Debug)]
pub(super) struct Pool {
    pub config: PoolConfig,
    pub backend: BackendName,
    pub role: Role,
    current: Mutex<Option<Arc<Ready>>>,
    /// The random id of the pool that was here first. What appears in its place later must be the same: a directory that is
    /// suddenly empty is a file system that was unmounted, not a new pool.
    pub id: OnceLock<String>,
    /// Keeps the id over restarts.
    pub memory: Option<Memory>,
    /// Its opening, which may hang with its file system. The reason where it fails.
    opening: Single<Result<(), String>>,
    /// Why the last opening failed, where waiting will not repair that.
    refusal: Mutex<Option<Error>>,
    /// It was away, or late at the start: that it has come is logged.
    missed: AtomicBool,
    this: Weak<Pool>,
    /// The backend has no other: nothing is held up by looking at it in place.
    alone: bool,
    /// Whether it is in its place, for a pool that is not alone.
    looking: Single<bool>,
}

/// Where a node remembers, outside of the pool, which pool it has seen in a place.
#[derive(Debug)]
pub(super) struct Memory {
    directory: PathBuf,
    /// `<backend>.<pool>`
    name: String,
}

impl Memory {
    /// The file, for the operator who wants it forgotten.
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    fn recall(&self) -> Result<Option<String>> {
        let text = durable::read(&self.path(), LONGEST_ID)?;
        Ok(text.map(|text| String::from_utf8_lossy(&text).trim().to_owned()).filter(|id| !id.is_empty()))
    }

    fn keep(&self, id: &str) -> os::Result<()> {
        if durable::read(&self.path(), LONGEST_ID)?.is_some() {
            return Ok(());
        }
        if !self.directory.is_dir() {
            files::make_directory(&self.directory)?;
        }
        durable::write(&self.directory, &self.name, format!("{id}\n").as_bytes())
    }
}

/// A pool that is there.
#[derive(Debug)]
pub(super) struct Ready {
    pub name: String,
    pub path: PathBuf,
    pub id: String,
    pub backend: BackendName,
    /// The directory, whatever the path leads to later.
    pub directory: File,
    pub inode: (u64, u64),
    /// Why we may not change it, or the lock that lets us.
    pub lock: Result<File, String>,
    pub limits: Limits,
    pub ledger: Arc<Ledger>,
    pub shares: OnceLock<bool>,
}

/// How much may be provisioned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub overcommit: f64,
    pub capacity: Option<u64>,
}

impl Limits {
    /// In bytes, where the file system has `total`.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a factor of the operator's"
    )]
    pub fn provisionable(self, total: u64) -> u64 {
        (self.capacity.unwrap_or(total) as f64 * self.overcommit) as u64
    }
}

impl Pool {
    /// Not opened yet.
    ///
    /// # Errors
    /// Where it cannot be read which pool was seen in its place.
    pub fn new(config: PoolConfig, backend: BackendName, role: Role, memory: Option<&Path>, alone: bool) -> Result<Arc<Pool>> {
        let memory =
            memory.map(|directory| Memory { directory: directory.to_owned(), name: format!("{backend}.{}", config.name) });
        let id = OnceLock::new();
        if let Some(known) = memory.as_ref().map(Memory::recall).transpose()?.flatten() {
            id.get_or_init(|| known);
        }
        Ok(Arc::new_cyclic(|this| Pool {
            config,
            backend,
            role,
            current: Mutex::new(None),
            id,
            memory,
            opening: Single::new("open pool"),
            refusal: Mutex::new(None),
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
    /// What waiting will not repair: a directory that is none of ours, another process that has it.
    pub fn open_all(pools: &[Arc<Pool>]) -> Result<()> {
        let opened: Vec<Result<()>> = std::thread::scope(|scope| {
            let opening: Vec<_> = pools.iter().map(|pool| scope.spawn(|| pool.attempt(START_PATIENCE))).collect();
            let panicked = |pool: &Pool| Err(pool.down("its opening panicked"));
            pools.iter().zip(opening).map(|(pool, opening)| opening.join().unwrap_or_else(|_| panicked(pool))).collect()
        });
        for (pool, opened) in pools.iter().zip(opened) {
            let Err(error) = opened else { continue };
            if let Some(refusal) = pool.refusal.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Err(refusal);
            }
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
            return Ok(ready);
        }
        let ready = self.reopen()?;
        match &ready.lock {
            Ok(_) => Ok(ready),
            Err(reason) => Err(self.down(reason.clone())),
        }
    }

    /// Whether it can be used right now, for all that this process does with it.
    ///
    /// # Errors
    /// `BackendUnavailable`, naming the directory and what to do.
    pub fn probe(&self) -> Result<()> {
        let ready = if self.role.provision { self.writable()? } else { self.ready()? };
        let read_only = ready.room()?.read_only && self.role.provision;
        if read_only { Err(ready.down("its file system is read-only; remount it writable")) } else { Ok(()) }
    }

    /// Whether it is certain that there is no such volume or snapshot in it, also while it is away: by its ledger, as long as this
    /// process has the lock that lets nobody else make one.
    pub fn surely_lacks(&self, kind: Kind, local: &str) -> bool {
        self.current().is_some_and(|ready| ready.is_writable() && !ready.ledger.has(kind, local))
    }

    fn current(&self) -> Option<Arc<Ready>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, ready: Ready) {
        // Where it is known already, `Opening` has compared.
        let id = self.id.get_or_init(|| ready.id.clone());
        if let Some(Err(error)) = self.memory.as_ref().map(|memory| memory.keep(id)) {
            tracing::warn!(pool = self.config.name, %error, "after a restart an empty directory would be taken for a new pool");
        }
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(ready));
    }

    /// Whether it has what was found in another pool. Where this process provisions, only looked at if its ledger says so.
    pub fn holds_too(&self, kind: Kind, local: &str) -> bool {
        let recorded = self.records(kind, local);
        if self.role.provision && !recorded {
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
        self.attempt(CALL_PATIENCE)?;
        self.current().ok_or_else(|| self.down("it is gone again"))
    }

    /// Opens it on a thread of its own, or joins the opening that runs.
    ///
    /// # Errors
    /// `BackendUnavailable`, also where that opening is `patience` old; it goes on.
    fn attempt(&self, patience: Duration) -> Result<()> {
        let Some(pool) = self.this.upgrade() else { return Err(self.down("it is closed")) };
        match self.opening.run(patience, move || pool.open_now()) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(Error::BackendUnavailable { backend: self.backend.to_string(), reason }),
            Err(running @ NoResult::Running(_)) => Err(self.down(format!(
                "{}, since its file system does not answer; run `fsfreeze -u` if it is frozen, or check its storage. It is used as \
                 soon as it answers",
                running.reason("its opening")
            ))),
            Err(none) => Err(self.down(none.reason("its opening"))),
        }
    }

    fn open_now(&self) -> Result<(), String> {
        // Another call may have opened it meanwhile.
        if self.at_hand().is_some_and(|ready| ready.is_writable()) {
            return Ok(());
        }
        match Opening::new(self).run() {
            Ok(ready) => {
                self.set(ready);
                if self.missed.load(Ordering::Relaxed) {
                    tracing::info!(pool = self.config.name, "the pool is there");
                }
                Ok(())
            }
            Err(Error::BackendUnavailable { reason, .. }) => Err(reason),
            Err(error) => {
                let reason = self.reason(&error.to_string());
                *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Err(reason)
            }
        }
    }

    fn reason(&self, reason: &str) -> String {
        format!("pool {} ({}): {reason}", self.config.name, self.config.path.display())
    }

    fn down(&self, reason: impl Into<String>) -> Error {
        down(&self.backend, &self.config, reason)
    }
}

pub(super) fn down(backend: &BackendName, pool: &PoolConfig, reason: impl Into<String>) -> Error {
    let reason = format!("pool {} ({}): {}", pool.name, pool.path.display(), reason.into());
    Error::BackendUnavailable { backend: backend.to_string(), reason }
}

impl Ready {
    /// The open directory.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Whether the path still leads to the directory that we opened: not unmounted, not covered by another mount.
    fn is_in_place(&self) -> bool {
        files::look_through(&self.path).is_ok_and(|seen| seen.inode == self.inode)
    }

    /// Where a volume or snapshot lies.
    pub fn place(&self, kind: Kind, local: &str) -> PathBuf {
        self.path.join(kind.directory()).join(local)
    }

    /// Whether there is a volume or snapshot of this id, whole or damaged.
    ///
    /// # Errors
    /// `BackendUnavailable` where that cannot be seen.
    pub fn has(&self, kind: Kind, local: &str) -> Result<bool> {
        let relative = Path::new(kind.directory()).join(local);
        match files::look(self.root(), &relative) {
            Ok(Some(_)) => Ok(true),
            // Gone, or the directory that would hold it is?
            Ok(None) => self.check_directory(kind.directory()).map(|()| false).map_err(|reason| self.down(reason)),
            Err(error) => Err(self.down(error.to_string())),
        }
    }

    /// Whether the directories are there whose loss would make everything look absent; else why not.
    pub fn check_essential(&self) -> Result<(), String> {
        ESSENTIAL.iter().try_for_each(|name| self.check_directory(name))
    }

    /// Whether one of our directories is there; else why not.
    pub fn check_directory(&self, name: &str) -> Result<(), String> {
        match files::look(self.root(), Path::new(name)) {
            Ok(Some(seen)) if seen.directory => Ok(()),
            Ok(_) => Err(format!("its directory {name} is missing; restore it from a backup, or mount the right file system")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Looks at an image; `None` where it is missing.
    pub fn look_at_image(&self, kind: Kind, local: &str) -> os::Result<Option<Seen>> {
        files::look(self.root(), &Path::new(kind.directory()).join(local).join(IMAGE))
    }

    /// Opens an image, through no link.
    pub fn open_image(&self, kind: Kind, local: &str, access: Access) -> Result<File> {
        let relative = Path::new(kind.directory()).join(local).join(IMAGE);
        let opened = files::open(self.root(), &relative, access).map_err(|error| self.failure(error))?;
        opened.ok_or_else(|| Damage::image_missing(&self.path.join(&relative)).into())
    }

    /// The text of a metadata file; `None` where it is missing.
    pub fn read_meta(&self, kind: Kind, local: &str) -> os::Result<Option<Vec<u8>>> {
        files::read(self.root(), &Path::new(kind.directory()).join(local).join(META), meta::LONGEST)
    }

    /// How full the file system is.
    pub fn room(&self) -> Result<Room> {
        files::room(self.root(), &self.path).map_err(|error| self.down(error.to_string()))
    }

    /// Whether files in here can share extents. Tried once.
    pub fn shares_extents(&self) -> bool {
        *self.shares.get_or_init(|| {
            copy::reflink_works(&self.path).unwrap_or_else(|error| {
                tracing::warn!(pool = self.name, %error, "reflinks could not be tried; images will be copied");
                false
            })
        })
    }

    /// A failed action in this pool, in the right terms: full, read-only, or a failure of which it is not known what it left.
    pub fn failure(&self, error: os::Error) -> Error {
        match error.errno() {
            Some(libc::ENOSPC | libc::EDQUOT) => Error::NoCapacity {
                place: self.called(),
                reason: format!("its file system is full ({error}); free some, or add a pool"),
            },
            Some(libc::EROFS) => self.down(format!("{error}; look for its cause in the kernel's log and remount it writable")),
            Some(libc::EFBIG) => Error::OutOfRange {
                field: "capacity_range",
                reason: format!("the file system of {} has no files of that size ({error})", self.called()),
            },
            _ => error.into(),
        }
    }

    /// For errors: `pool fast (/srv/fast)`.
    pub fn called(&self) -> String {
        format!("pool {} ({})", self.name, self.path.display())
    }

    /// `BackendUnavailable`.
    pub fn down(&self, reason: impl Into<String>) -> Error {
        Error::BackendUnavailable { backend: self.backend.to_string(), reason: format!("{}: {}", self.called(), reason.into()) }
    }

    /// Whether this process holds the lock.
    pub fn is_writable(&self) -> bool {
        self.lock.is_ok()
    }
}

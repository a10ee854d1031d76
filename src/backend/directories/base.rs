//! One base, as the controller has it: mounted where nobody sees it, and what lies on it.
//!
//! ```text
//! <directory>/                    a volume
//! .longshore/                  ours alone (0700)
//!   marker.json                whose base this is
//!   lock                       held by the one process that provisions
//!   owner                      which one: a random name, written by each that gets the lock
//!   volumes/<id>.json          a volume's record: it exists iff this says that it is whole
//!   drafts/<id>/               a volume's directory in the making; renamed into place when it is whole
//!   drafts/<id>.links/         what is linked more than once, while it is copied
//!   snapshots/<id>/            meta.json, data/, links/
//!   trash/                     deleted, its files still to be removed
//!   archive/<id>-<time>/       deleted, but kept for the operator; its record beside it
//! ```
//! Everything is done relative to the open top directory. The lock is flock(2): on NFS 4 the server keeps it, on NFS 3 lockd does; with
//! `nolock` it only holds on one machine. A server gives it to another client once our lease has expired (RFC 8881, section 8.4.3), and
//! does not tell us: so `owner` is read before each operation, and who finds another name there stops.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::backend::FirstLock;
use crate::backend::{LockHolder, lock_holder, patience};
use crate::os::dir::{OpenDir, temporary_of};
use crate::os::fs::{Usage, usage};
use crate::os::single::{Attempt, NoResult, Single};
use crate::os::{self, durable, lock, random};
use crate::volume::{BackendName, Bytes, Error, Result};

use super::index::Index;
use super::location::Location;
use super::record::{self, FORMAT, Marker, Phase, VolumeRecord};
use super::silence::Silence;
use super::subdir::OURS;
use super::sweeper::Sweeper;
use super::work::Work;

const MARKER: &str = "marker.json";
const LOCK: &str = "lock";
/// The same, below the base.
pub const LOCK_BELOW_BASE: &str = ".longshore/lock";
const OWNER: &str = "owner";
const SPARE: &str = "spare";
/// More than a record has.
const SPARE_BYTES: usize = 16 << 10;
/// What is recorded of a file system that says nothing of itself.
pub const UNKNOWN_FILE_SYSTEM: &str = "unknown";
/// Bytes of what a node remembers of a base.
const LONGEST_KNOWN: u64 = 8192;
/// Of a snapshot, in its directory.
pub(super) const META: &str = "meta.json";
pub(super) const DATA: &str = "data";
pub(super) const LINKS: &str = "links";
/// What is made after a restart, until it is seen that nothing in the volume was changed since the snapshot was begun.
pub(super) const LATER: &str = "later";
/// How long a call waits for a base to answer.
const CALL_PATIENCE: Duration = Duration::from_secs(10);
/// How long it waits for one to be mounted and locked: a server that has just started lets nobody lock for some seconds (its grace period).
const OPEN_PATIENCE: Duration = Duration::from_secs(25);
/// How long it waits for one that gave no answer, or a bad one, the last time.
const AWAY_PATIENCE: Duration = Duration::from_secs(1);
/// After a failure to open a base others hear of it for so long, before it is tried again.
const FAILURE_HOLDS: Duration = Duration::from_secs(5);

/// A configured base, usable or not.
#[derive(Debug)]
pub struct Base {
    pub location: Arc<dyn Location>,
    /// That in force, which a reload changes; `location` has that of the start.
    pub capacity: Arc<Mutex<Option<Bytes>>>,
    pub(super) backend: BackendName,
    current: Mutex<Option<Arc<Ready>>>,
    /// Whether it is there, which may hang with its server. The reason where it is not.
    asking: Single<Answer>,
    /// The last answer was bad or late.
    away: AtomicBool,
    /// Why it could not be opened the last time.
    failure: Mutex<Option<(Instant, String)>>,
    /// Another process has the lock, as far as this one has tried to take it.
    elsewhere: Mutex<Option<LockHolder>>,
    /// While this process is on standby only `first_lock` opens it.
    standby: AtomicBool,
    /// As it was opened before; running calls may still have it, and with it the lock.
    previous: Mutex<Weak<Ready>>,
    known_base: KnownBase,
}

/// What came of asking for it.
type Answer = Result<Arc<Ready>, String>;
/// An answer that comes.
pub(super) type Asked = Result<Arc<Attempt<Answer>>, NoResult>;

/// Which base was seen in its place: one without our directory is then no new base, but a server that lacks a mount.
#[derive(Debug)]
struct KnownBase {
    directory: PathBuf,
    name: String,
    known: OnceLock<String>,
}

/// A base that is there.
#[derive(Debug)]
pub(super) struct Ready {
    pub called: String,
    pub backend: BackendName,
    pub location: Arc<dyn Location>,
    /// The base's, which a reload changes.
    capacity: Arc<Mutex<Option<Bytes>>>,
    pub root: OpenDir,
    pub own: OpenDir,
    pub volumes: OpenDir,
    pub drafts: OpenDir,
    pub snapshots: OpenDir,
    pub trash: OpenDir,
    pub archive: OpenDir,
    pub index: Index,
    pub sweeper: Sweeper,
    /// Copies that run, of volumes and snapshots in the making.
    pub works: Mutex<HashMap<String, Arc<Work>>>,
    /// Held while the copy of a snapshot is started or a snapshot discarded: it is never started twice, nor for one that goes.
    pub snapshot_start: Mutex<()>,
    /// Held while directories on the way to volumes are made and removed.
    pub places: Mutex<()>,
    owner: String,
    /// Whether there is the spare file.
    has_spare: Mutex<bool>,
    _lock: File,
}

impl Base {
    pub fn new(location: Arc<dyn Location>, backend: &BackendName, state: &Path) -> Base {
        let name = location.called().replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_");
        let known_base =
            KnownBase { directory: state.join(location.records()), name: format!("{backend}.{name}"), known: OnceLock::new() };
        Base {
            capacity: Arc::new(Mutex::new(location.capacity())),
            location,
            backend: backend.clone(),
            current: Mutex::new(None),
            asking: Single::new("ask share"),
            away: AtomicBool::new(false),
            failure: Mutex::new(None),
            elsewhere: Mutex::new(None),
            standby: AtomicBool::new(false),
            previous: Mutex::new(Weak::new()),
            known_base,
        }
    }

    /// The base, when its server answers; mounted if it is not yet.
    ///
    /// # Errors
    /// `BackendUnavailable`, naming the base and what to do.
    pub(super) fn ready(self: &Arc<Self>) -> Result<Arc<Ready>> {
        self.answer(self.ask())
    }

    /// Begins to ask for it on a thread of its own, or joins who does: however its server hangs, no other base waits for it.
    pub(super) fn ask(self: &Arc<Self>) -> Asked {
        self.ask_as(!self.standby.load(Ordering::Relaxed))
    }

    /// As `ask`; opens it only where it `may` be locked.
    fn ask_as(self: &Arc<Self>, may: bool) -> Asked {
        let base = Arc::clone(self);
        self.asking.start(move || {
            let answer = base.look(may);
            base.away.store(answer.is_err(), Ordering::Relaxed);
            answer.map_err(|error| match error {
                Error::BackendUnavailable { reason, .. } => reason,
                other => base.reason(&other.to_string()),
            })
        })
    }

    pub fn set_standby(&self, standby: bool) {
        self.standby.store(standby, Ordering::Relaxed);
    }

    /// Opens it, also on standby.
    pub fn first_lock(self: &Arc<Self>, until: Instant) -> FirstLock {
        match self.ask_as(true).and_then(|attempt| attempt.wait(patience(until))) {
            Ok(Ok(_)) => FirstLock::Here,
            _ => match lock(&self.elsewhere).clone() {
                Some(holder) => FirstLock::Elsewhere(self.reason(&holder.provisions())),
                None => FirstLock::Away,
            },
        }
    }

    /// Waits for the answer, but not for a server that hangs.
    ///
    /// # Errors
    /// `BackendUnavailable`, also where there is none yet; the next call joins it.
    pub(super) fn answer(&self, asked: Asked) -> Result<Arc<Ready>> {
        let patience = match self.current() {
            _ if self.is_away() => AWAY_PATIENCE,
            Some(_) => CALL_PATIENCE,
            None => OPEN_PATIENCE,
        };
        match asked.and_then(|attempt| attempt.wait(patience)) {
            Ok(Ok(ready)) => Ok(ready),
            Ok(Err(reason)) => Err(Error::BackendUnavailable { backend: self.backend.to_string(), reason }),
            Err(none) => {
                self.away.store(true, Ordering::Relaxed);
                let reason = none.reason("asking its server, or mounting it,");
                Err(self.down(format!("{reason}; check the server and the network to it. It is used as soon as it answers")))
            }
        }
    }

    /// Whether it gave no answer, or a bad one, the last time.
    pub fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    fn look(&self, may: bool) -> Result<Arc<Ready>> {
        if let Some(ready) = self.current() {
            match self.location.check_answers(&ready.root) {
                Ok(()) if ready.is_owner()? => return Ok(ready),
                // Another call of this process may have opened it anew, and is the owner that is found then.
                Ok(()) if !self.forget(&ready) => {}
                Ok(()) => {
                    tracing::error!(
                        base = ready.called,
                        "another controller has taken over the {}: this one stops provisioning from it",
                        self.location.noun()
                    );
                    lock(&ready.works).values().for_each(|work| work.control.stop());
                }
                Err(Silence::Stale(reason)) => {
                    tracing::warn!(base = ready.called, reason, "what was mounted is no longer there: it is mounted anew");
                    self.forget(&ready);
                    // They are begun again there. Until they end they have the lock.
                    lock(&ready.works).values().for_each(|work| work.control.stop());
                }
                Err(Silence::Dead(reason)) => return Err(self.down(reason)),
            }
        }
        if !may {
            return Err(self.down("this process is on standby, and does not open it"));
        }
        self.open()
    }

    /// Whether it is certain that no volume of this id lies on it or is being made there, also while its server is away: by its index, as
    /// long as this process has the lock that lets nobody else make one.
    pub fn surely_lacks(&self, local: &str) -> bool {
        self.current().is_some_and(|ready| !ready.index.has_volume(local))
    }

    /// As it was when its server answered last.
    pub(super) fn current(&self) -> Option<Arc<Ready>> {
        lock(&self.current).clone()
    }

    /// Unless it was opened anew meanwhile; whether it was the present one.
    fn forget(&self, ready: &Arc<Ready>) -> bool {
        let taken = lock(&self.current).take_if(|current| Arc::ptr_eq(current, ready));
        if let Some(taken) = &taken {
            *lock(&self.previous) = Arc::downgrade(taken);
        }
        taken.is_some()
    }

    fn open(&self) -> Result<Arc<Ready>> {
        if let Some((when, reason)) = &*lock(&self.failure)
            && when.elapsed() < FAILURE_HOLDS
            && self.location.remembers_failure()
        {
            return Err(self.down(reason.clone()));
        }
        let opened = self.reach().and_then(|root| self.open_in(root)).map(Arc::new);
        match opened.and_then(|ready| ready.recover().map(|()| ready)) {
            Ok(ready) => {
                tracing::info!(base = ready.called, "the {} is there", self.location.noun());
                *lock(&self.failure) = None;
                *lock(&self.current) = Some(Arc::clone(&ready));
                ready.keep_spare();
                ready.go_on();
                Ok(ready)
            }
            Err(error) => {
                let reason = match error {
                    Error::BackendUnavailable { reason, .. } => reason,
                    other => other.to_string(),
                };
                *lock(&self.failure) = Some((Instant::now(), reason.clone()));
                Err(self.down(reason))
            }
        }
    }

    /// The open top directory; made, if it was never seen.
    fn reach(&self) -> Result<OpenDir> {
        match self.location.reach() {
            Err(error) if error.is_missing() && self.known_base.recall()?.is_none() && self.location.make_top()? => {
                Ok(self.location.reach()?)
            }
            reached => Ok(reached?),
        }
    }

    fn open_in(&self, root: OpenDir) -> Result<Ready> {
        let called = self.location.called();
        let known = self.known_base.recall()?;
        if let (Some(known), None) = (&known, root.directory(OURS)?) {
            return Err(self.lacks_ours(&format!("which was there before ({} {known})", self.location.noun())));
        }
        let file_system = self.location.file_system(&root).map_err(|reason| self.down(reason))?;
        let own = root
            .ensure_directory(OURS, 0o700)
            .map_err(|error| if is_denied(&error) { self.down(self.denied(&error)) } else { error.into() })?;
        self.check_known(&own, known.as_deref(), file_system.as_deref())?;
        let lock_file = own.open_file(LOCK, OFlags::RDWR | OFlags::CREATE, 0o600)?;
        self.check_ours(&root, &own)?;
        self.take_lock(&own, &lock_file)?;
        let id = self.base_id(&own)?;
        self.known_base.keep(&format!("{id} {}", file_system.unwrap_or_else(|| called.clone())));
        // For people only, so that a full base is no reason to stop.
        if let Err(error) = lock_file.write_all_at(LockHolder::this().encode().as_bytes(), 0) {
            tracing::warn!(base = called, %error, "the lock is held, but our process id could not be written into it");
        }
        let owner = random::hexadecimal(16)?;
        // In place, since a full base must open, so that volumes can be deleted.
        let owner_file = own.open_file(OWNER, OFlags::RDWR | OFlags::CREATE, 0o600)?;
        let written = owner_file.write_all_at(owner.as_bytes(), 0).and_then(|()| owner_file.sync_all());
        written.map_err(|error| os::Error::io("write", own.path_of(OWNER), error))?;
        let directory = |name: &str| own.ensure_directory(name, 0o700);
        let trash = directory("trash")?;
        Ok(Ready {
            called,
            backend: self.backend.clone(),
            location: Arc::clone(&self.location),
            capacity: Arc::clone(&self.capacity),
            volumes: directory("volumes")?,
            drafts: directory("drafts")?,
            snapshots: directory("snapshots")?,
            archive: directory("archive")?,
            sweeper: Sweeper::new(trash.try_clone()?),
            trash,
            index: Index::default(),
            works: Mutex::default(),
            snapshot_start: Mutex::default(),
            places: Mutex::default(),
            owner,
            has_spare: Mutex::default(),
            _lock: lock_file,
            root,
            own,
        })
    }

    /// One process provisions from a base.
    fn take_lock(&self, own: &OpenDir, lock_file: &File) -> Result<()> {
        match rustix::fs::flock(lock_file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                *lock(&self.elsewhere) = None;
                Ok(())
            }
            Err(Errno::WOULDBLOCK) if lock(&self.previous).upgrade().is_some() => {
                Err(self.down("calls of this process that still end have its lock; it is tried again"))
            }
            Err(Errno::WOULDBLOCK) => {
                let text = own.read(LOCK, lock_holder::LONGEST)?.unwrap_or_default();
                let holder = LockHolder::parse(&text);
                let reason = holder.provisions();
                *lock(&self.elsewhere) = Some(holder);
                Err(self.down(reason))
            }
            Err(errno) => Err(self.down(format!("no lock is given ({errno}); {}", self.location.no_lock()))),
        }
    }

    fn lacks_ours(&self, reason: &str) -> Error {
        self.down(format!(
            "its directory {OURS} is missing, {reason}: {}, or remove {} if the {} is to be used anew",
            self.location.missing(),
            self.known_base.path().display(),
            self.location.noun(),
        ))
    }

    /// The open top directory, seen to be this backend's, and the one that was seen there before. Nothing is made.
    ///
    /// # Errors
    /// `BackendUnavailable` with what to do.
    pub fn verified_root(&self) -> Result<OpenDir> {
        let down = |error: os::Error| self.down(error.to_string());
        let root = self.location.reach().map_err(down)?;
        let Some(own) = root.directory(OURS).map_err(down)? else {
            return Err(self.lacks_ours("so that no volume was made here"));
        };
        let file_system = self.location.file_system(&root).map_err(|reason| self.down(reason))?;
        self.check_known(&own, self.known_base.recall()?.as_deref(), file_system.as_deref())?;
        match record::read::<Marker>(&own, MARKER)? {
            Some(marker) if marker.backend == self.backend => Ok(root),
            Some(marker) => Err(self.down(format!("it belongs to the backend {}", marker.backend))),
            None => Err(self.lacks_ours("or its marker is")),
        }
    }

    /// Whether nothing was ever made in it, as far as this node knows.
    ///
    /// # Errors
    /// `BackendUnavailable` where that is not seen.
    pub(super) fn is_new(&self) -> Result<bool> {
        if self.known_base.recall()?.is_some() {
            return Ok(false);
        }
        match self.location.reach().and_then(|root| root.directory(OURS)) {
            Ok(own) => Ok(own.is_none()),
            Err(error) if error.is_missing() => Ok(true),
            Err(error) => Err(self.down(error.to_string())),
        }
    }

    /// The open top directory, and the record of a volume that is whole, by looking only.
    fn look_up(&self, local: &str) -> Result<Option<(OpenDir, VolumeRecord)>> {
        let root = self.verified_root()?;
        let Some(volumes) = root.directory(format!("{OURS}/volumes")).map_err(|error| self.down(error.to_string()))? else {
            return Ok(None);
        };
        let record = record::read::<VolumeRecord>(&volumes, &format!("{local}.json"))?;
        let record = record.filter(|record| record.id.local() == local && record.phase == Phase::Whole);
        Ok(record.map(|record| (root, record)))
    }

    /// The open top directory, and where below it a volume lies that was made here.
    ///
    /// # Errors
    /// As `verified_root`; `Unverified` where its record is damaged.
    pub fn directory_of(&self, local: &str) -> Result<Option<(OpenDir, PathBuf)>> {
        Ok(self.look_up(local)?.map(|(root, record)| (root, record.directory)))
    }

    /// The project of a volume that was made here with one.
    ///
    /// # Errors
    /// As `directory_of`.
    pub fn project_of(&self, local: &str) -> Result<Option<u32>> {
        Ok(self.look_up(local)?.and_then(|(_, record)| record.project))
    }

    /// The capacity of a volume that was made here and has its data in memory.
    ///
    /// # Errors
    /// As `directory_of`.
    pub fn in_memory(&self, local: &str) -> Result<Option<Bytes>> {
        let Some((_, record)) = self.look_up(local)? else { return Ok(None) };
        Ok(record.is_in_memory()?.then_some(record.capacity))
    }

    /// Nothing is made or served where another base is in the place of the one that was seen there: with a disk unmounted, data would go
    /// to the disk below it; with another share at its address, what is deleted would be answered as deleted. `file_system` is `None` where
    /// file systems cannot be distinguished (NFS).
    fn check_known(&self, own: &OpenDir, known: Option<&str>, file_system: Option<&str>) -> Result<()> {
        let Some(known) = known else { return Ok(()) };
        let (id, recorded) = known.split_once(' ').unwrap_or((known, UNKNOWN_FILE_SYSTEM));
        let (recorded, file_system) = match file_system {
            Some(file_system) => (recorded, file_system),
            // Two shares may have one name here; and earlier versions did not say of which it is.
            None if recorded != self.location.called() => return Ok(()),
            None => (UNKNOWN_FILE_SYSTEM, UNKNOWN_FILE_SYSTEM),
        };
        let seen = record::read::<Marker>(own, MARKER)?.map_or_else(|| "none".to_owned(), |marker| marker.id);
        let same_file_system = [recorded, file_system].contains(&UNKNOWN_FILE_SYSTEM) || recorded == file_system;
        if seen == id && same_file_system {
            return Ok(());
        }
        Err(self.down(format!(
            "it is not the {noun} that was used before: that had the id {id} on file system {recorded}, this one has the id {seen} on file \
             system {file_system}; {}, or, if the data were moved here for good, remove {} and restart the driver",
            self.location.missing(),
            self.known_base.path().display(),
            noun = self.location.noun(),
        )))
    }

    /// The base's id, which its first opening makes.
    fn base_id(&self, own: &OpenDir) -> Result<String> {
        let marker = match record::read::<Marker>(own, MARKER)? {
            Some(marker) => marker,
            None => {
                let marker = Marker { format: FORMAT, backend: self.backend.clone(), id: format!("{:x}", record::now()) };
                own.write(MARKER, &record::encode(&marker)?)?;
                marker
            }
        };
        if marker.backend != self.backend {
            return Err(self.down(format!(
                "it belongs to the backend {}; each backend needs a {} of its own",
                marker.backend,
                self.location.noun()
            )));
        }
        Ok(marker.id)
    }

    /// Nobody else may have made our directory, or look into it.
    fn check_ours(&self, root: &OpenDir, own: &OpenDir) -> Result<()> {
        let seen = own.stat_self()?;
        let us = own.stat(LOCK)?.map(|file| file.st_uid);
        if us != Some(seen.st_uid) || seen.st_mode & 0o077 != 0 {
            let shown = root.path_of(OURS);
            return Err(self.down(format!(
                "{} is not the driver's alone (owner {}, mode {:o}); see who made it, and give it to the owner that the server \
                 makes of root, with mode 0700",
                shown.display(),
                seen.st_uid,
                seen.st_mode & 0o7777
            )));
        }
        Ok(())
    }

    pub fn down(&self, reason: impl Into<String>) -> Error {
        down(&self.backend, &*self.location, reason)
    }

    fn reason(&self, reason: &str) -> String {
        with_base(&*self.location, reason)
    }

    fn denied(&self, error: &os::Error) -> String {
        denied(&*self.location, error)
    }
}

fn down(backend: &BackendName, location: &dyn Location, reason: impl Into<String>) -> Error {
    Error::BackendUnavailable { backend: backend.to_string(), reason: with_base(location, &reason.into()) }
}

fn with_base(location: &dyn Location, reason: &str) -> String {
    let (noun, called) = (location.noun(), location.called());
    match (reason.strip_prefix(noun).is_some_and(|rest| rest.starts_with(' ')), reason.contains(&called)) {
        (true, _) => reason.to_owned(),
        (false, true) => format!("{noun} {reason}"),
        (false, false) => format!("{noun} {called}: {reason}"),
    }
}

fn is_denied(error: &os::Error) -> bool {
    matches!(error.errno(), Some(libc::EACCES | libc::EPERM))
}

/// We are root; who denies us something is the server, or what confines this process.
fn denied(location: &dyn Location, error: &os::Error) -> String {
    format!("{error}; {}", location.denied())
}

impl KnownBase {
    fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    fn recall(&self) -> Result<Option<String>> {
        if let Some(known) = self.known.get() {
            return Ok(Some(known.clone()));
        }
        let text = durable::read(&self.path(), LONGEST_KNOWN)?;
        Ok(text.map(|text| String::from_utf8_lossy(&text).trim().to_owned()).filter(|id| !id.is_empty()))
    }

    fn keep(&self, id: &str) {
        self.known.get_or_init(|| id.to_owned());
        // Earlier versions kept the id alone.
        let is_kept = |known: &[u8]| known.trim_ascii().contains(&b' ') || !id.as_bytes().starts_with(known.trim_ascii());
        let kept = durable::read(&self.path(), LONGEST_KNOWN).and_then(|known| match known {
            Some(known) if is_kept(&known) => Ok(()),
            _ => {
                let made = rustix::fs::mkdir(&self.directory, rustix::fs::Mode::RWXU);
                match made {
                    Ok(()) | Err(Errno::EXIST) => durable::write(&self.directory, &self.name, format!("{id}\n").as_bytes()),
                    Err(errno) => Err(os::Error::io("make directory", &self.directory, errno)),
                }
            }
        });
        if let Err(error) = kept {
            tracing::warn!(%error, "after a restart another file system without our directory would be taken for a new one");
        }
    }
}

impl Ready {
    /// Sees to it that there is a spare file, in whose room a deletion can be recorded once the base is full.
    pub(super) fn keep_spare(&self) {
        self.ensure_spare(&mut lock(&self.has_spare));
    }

    fn ensure_spare(&self, has_spare: &mut bool) {
        if *has_spare {
            return;
        }
        // Such as no file system makes small.
        let content = || random::hexadecimal(SPARE_BYTES / 2);
        let made = self.own.stat(SPARE).and_then(|there| match there {
            Some(_) => Ok(()),
            None => self.own.write(SPARE, content()?.as_bytes()),
        });
        match made {
            Ok(()) => *has_spare = true,
            Err(error) => {
                tracing::debug!(base = self.called, %error, "without a spare file nothing can be deleted from a full base");
                // It must not have the room that a deletion's record would need.
                self.own.remove_file(temporary_of(SPARE)).ok();
            }
        }
    }

    /// Makes a file that is to be removed the spare one, where there is none and no room for one. Whether it is that now.
    pub(super) fn becomes_spare(&self, directory: &OpenDir, name: &str) -> bool {
        let mut has_spare = lock(&self.has_spare);
        self.ensure_spare(&mut has_spare);
        if !*has_spare {
            *has_spare = directory.rename(name, &self.own, SPARE).is_ok();
            return *has_spare;
        }
        false
    }

    /// As [`OpenDir::write`], of what leads to more room; on a full base in the room of the spare file.
    pub(super) fn write_even_if_full(&self, directory: &OpenDir, name: &str, content: &[u8]) -> os::Result<()> {
        match directory.write(name, content) {
            Err(error) if error.is_full() => {
                let mut has_spare = lock(&self.has_spare);
                self.ensure_spare(&mut has_spare);
                if !std::mem::take(&mut *has_spare) {
                    return directory.write(name, content).map_err(|_| error);
                }
                directory.write_over(name, content, (&self.own, SPARE))
            }
            written => written,
        }
    }

    /// Whether no other process has got the lock since this one did. A file that is opened anew is read from the server (nfs(5),
    /// "Close-to-open cache consistency").
    fn is_owner(&self) -> Result<bool> {
        let owner = self.own.read(OWNER, 64).map_err(|error| self.failure(error))?;
        Ok(owner.is_some_and(|owner| owner == self.owner.as_bytes()))
    }

    /// Asked once more before what took long is completed or undone: by now it may be another's who works at the same.
    ///
    /// # Errors
    /// `BackendUnavailable`.
    pub fn check_owner(&self) -> Result<()> {
        if self.is_owner()? {
            return Ok(());
        }
        let reason = format!("another controller has taken over the {} {}", self.location.noun(), self.called);
        Err(Error::BackendUnavailable { backend: self.backend.to_string(), reason })
    }

    /// How full the base is.
    pub fn usage(&self) -> Result<Usage> {
        usage(self.root.as_fd()).map_err(|error| self.failure(error))
    }

    /// With what it is, for messages.
    pub fn place(&self) -> String {
        format!("{} {}", self.location.noun(), self.called)
    }

    /// As the operator limits it.
    pub fn capacity(&self) -> Option<Bytes> {
        *lock(&self.capacity)
    }

    /// How much may be provisioned.
    pub fn provisionable(&self) -> Result<u64> {
        match self.capacity() {
            Some(capacity) => Ok(capacity.0),
            None => Ok(self.usage()?.total),
        }
    }

    /// A failed action on this base, in the right terms.
    pub fn failure(&self, error: os::Error) -> Error {
        match error.errno() {
            _ if error.is_full() => Error::NoCapacity {
                place: self.place(),
                reason: format!("its file system is full ({error}); free some, or add a {}", self.location.noun()),
            },
            Some(libc::EROFS) => self.down(format!("{error}; mount or export it writable")),
            Some(libc::EACCES | libc::EPERM) => self.down(denied(&*self.location, &error)),
            Some(libc::ESTALE | libc::EIO | libc::ETIMEDOUT) => self.down(error.to_string()),
            _ => match error {
                // Not the caller's mistake: something lies in our way.
                os::Error::Path { path, reason } => Error::Unverified { device: path.display().to_string(), reason },
                error => error.into(),
            },
        }
    }

    pub fn down(&self, reason: impl Into<String>) -> Error {
        down(&self.backend, &*self.location, reason)
    }
}

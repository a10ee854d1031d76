//! One folder of images: its layout, who may change it, and what lies in it.
//!
//! ```text
//! longshore-pool.json   says that this is a pool, and of which backend
//! lock                  held (flock) by the one process that provisions; holds its process id
//! volumes/<id>/         image, meta.json: the folder's presence is the volume's existence
//! snapshots/<id>/       image, meta.json
//! groups/<id>.json      a group's record: its presence is the existence of its members
//! tmp/<kind>~<id>/      being made: renamed into place when whole and synced
//! trash/<kind>~<id>/    deleted by a rename, waiting for its files to be unlinked
//! archive/, retained/   <id>.<unix time>/: deleted, but kept for the operator
//! ```
//! What lies in `tmp` and `trash` belongs to nobody: the lock's holder empties them when it opens the pool.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::os::step::step;
use crate::os::{self, copy, durable};
use crate::volume::{BackendName, Error, Result};

use super::config::{PoolConfig, Role};
use super::files::{self, Access, IMAGE, META, Room, Seen};
use super::ledger::Ledger;
use super::meta::{self, Damage, Marker};

const MARKER: &str = "longshore-pool.json";
const LOCK: &str = "lock";
pub(super) const GROUPS: &str = "groups";
pub(super) const TMP: &str = "tmp";
pub(super) const TRASH: &str = "trash";
pub(super) const ARCHIVE: &str = "archive";
pub(super) const RETAINED: &str = "retained";
const VOLUMES: &str = "volumes";
const SNAPSHOTS: &str = "snapshots";
/// Without these something was lost.
const ESSENTIAL: [&str; 3] = [VOLUMES, SNAPSHOTS, GROUPS];
/// These can be made anew.
const PASSING: [&str; 4] = [TMP, TRASH, ARCHIVE, RETAINED];
const FOLDERS: [&str; 7] = [VOLUMES, SNAPSHOTS, GROUPS, TMP, TRASH, ARCHIVE, RETAINED];

/// What has an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Volume,
    Snapshot,
}

impl Kind {
    pub const fn folder(self) -> &'static str {
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
    backend: BackendName,
    role: Role,
    current: Mutex<Option<Arc<Ready>>>,
    /// The random id of the pool that was here first. What appears in its place later must be the same: a folder that is
    /// suddenly empty is a file system that was unmounted, not a new pool.
    id: OnceLock<String>,
    /// Held while it is opened, which may take long; nobody waits for it.
    opening: Mutex<()>,
}

/// A pool that is there.
#[derive(Debug)]
pub(super) struct Ready {
    pub name: String,
    pub path: PathBuf,
    id: String,
    backend: BackendName,
    /// The folder, whatever the path leads to later.
    folder: File,
    inode: (u64, u64),
    /// Why we may not change it, or the lock that lets us.
    lock: Result<File, String>,
    pub limits: Limits,
    pub ledger: Arc<Ledger>,
    shares: OnceLock<bool>,
}

/// How much may be promised.
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
    pub fn promisable(self, total: u64) -> u64 {
        (self.capacity.unwrap_or(total) as f64 * self.overcommit) as u64
    }
}

impl Pool {
    /// Opens it if that is possible now; a pool that is away is tried again at each use.
    ///
    /// # Errors
    /// What waiting will not mend: a folder that is none of ours, another process that has it.
    pub fn open(config: PoolConfig, backend: BackendName, role: Role) -> Result<Pool> {
        let pool = Pool { config, backend, role, current: Mutex::new(None), id: OnceLock::new(), opening: Mutex::new(()) };
        match Opening::new(&pool).run() {
            Ok(ready) => pool.set(ready),
            Err(error @ Error::BackendDown { .. }) => {
                tracing::warn!(pool = pool.config.name, %error, "the pool cannot be used yet")
            }
            Err(error) => return Err(error),
        }
        Ok(pool)
    }

    /// The pool, for reading.
    ///
    /// # Errors
    /// `BackendDown`, naming the folder and what to do.
    pub fn ready(&self) -> Result<Arc<Ready>> {
        match self.current() {
            Some(ready) if ready.is_in_place() => Ok(ready),
            _ => self.reopen(),
        }
    }

    /// The pool, for changing it.
    ///
    /// # Errors
    /// `BackendDown`, also where it is read-only.
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

    fn current(&self) -> Option<Arc<Ready>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, ready: Ready) {
        // Fails where it is known already, which `Opening` has compared.
        self.id.get_or_init(|| ready.id.clone());
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(ready));
    }

    fn reopen(&self) -> Result<Arc<Ready>> {
        let Ok(_opening) = self.opening.try_lock() else { return Err(self.down("it is being opened; try again")) };
        // Another call may have opened it meanwhile.
        if let Some(ready) = self.current().filter(|ready| ready.is_in_place() && ready.lock.is_ok()) {
            return Ok(ready);
        }
        match Opening::new(self).run() {
            Ok(ready) => {
                tracing::info!(pool = self.config.name, "the pool is there");
                self.set(ready);
            }
            Err(error @ Error::BackendDown { .. }) => return Err(error),
            Err(error) => return Err(self.down(error.to_string())),
        }
        self.current().ok_or_else(|| self.down("it is gone again"))
    }

    fn down(&self, reason: impl Into<String>) -> Error {
        down(&self.backend, &self.config, reason)
    }
}

fn down(backend: &BackendName, pool: &PoolConfig, reason: impl Into<String>) -> Error {
    let reason = format!("pool {} ({}): {}", pool.name, pool.path.display(), reason.into());
    Error::BackendDown { backend: backend.to_string(), reason }
}

/// The way from a path to a [`Ready`].
struct Opening<'a> {
    config: &'a PoolConfig,
    backend: &'a BackendName,
    role: Role,
    /// The id that the pool must have, if it was open before.
    expected: Option<&'a str>,
}

impl<'a> Opening<'a> {
    fn new(pool: &'a Pool) -> Self {
        Opening { config: &pool.config, backend: &pool.backend, role: pool.role, expected: pool.id.get().map(String::as_str) }
    }

    fn run(&self) -> Result<Ready> {
        let path = &self.config.path;
        let (folder, inode) = self.folder()?;
        let marker = self.marker(&folder)?;
        if marker.is_none() {
            self.check_virgin()?;
        }
        let lock = if self.role.provision { self.lock()? } else { Err("this process does not provision".to_owned()) };
        let marker = match (marker, &lock) {
            (Some(marker), Ok(_)) => {
                self.furnish(&PASSING)?;
                marker
            }
            (Some(marker), Err(_)) => marker,
            // Read again: another process may have made the pool before we had the lock.
            (None, Ok(_)) => match self.marker(&folder)? {
                Some(marker) => marker,
                None => self.make()?,
            },
            (None, Err(reason)) => return Err(self.down(format!("it is no pool yet and can't be made one: {reason}"))),
        };
        let ready = Ready {
            name: self.config.name.clone(),
            path: path.clone(),
            id: marker.id,
            backend: self.backend.clone(),
            folder,
            inode,
            lock,
            limits: Limits { overcommit: self.config.overcommit, capacity: self.config.capacity.map(|capacity| capacity.0) },
            ledger: Arc::default(),
            shares: OnceLock::new(),
        };
        ready.check_essential().map_err(|reason| self.down(reason))?;
        if ready.lock.is_ok() {
            ready.sweep();
            ready.settle().map_err(|error| self.down(error.to_string()))?;
        }
        if self.role.provision {
            super::inspect::load(&ready).map_err(|error| self.down(error.to_string()))?;
        }
        Ok(ready)
    }

    /// The open folder; made, if only the last component is missing.
    fn folder(&self) -> Result<(File, (u64, u64))> {
        let path = &self.config.path;
        match files::look_through(path) {
            Ok(_) => {}
            Err(error) if error.is_missing() && self.role.provision && self.expected.is_none() => self.make_folder()?,
            Err(error) => return Err(self.down(format!("{error}; mount or make it"))),
        }
        let flags = libc::O_DIRECTORY | libc::O_PATH;
        let folder = File::options().read(true).custom_flags(flags).open(path);
        let folder = folder.map_err(|error| self.down(format!("{}; it must be a folder", os::Error::io("open", path, error))))?;
        let seen = files::look_at(&folder, path).map_err(|error| self.down(error.to_string()))?;
        Ok((folder, seen.inode))
    }

    fn make_folder(&self) -> Result<()> {
        let path = &self.config.path;
        let made = step("make pool", &path.display(), || {
            files::make_folder(path)?;
            durable::sync_dir(path.parent().unwrap_or(path))
        });
        made.map_err(|error| self.down(format!("{error}; mount or make the folder")))
    }

    fn marker(&self, folder: &File) -> Result<Option<Marker>> {
        let path = self.config.path.join(MARKER);
        let text = files::read(folder.as_fd(), Path::new(MARKER), meta::LONGEST).map_err(|error| self.down(error.to_string()))?;
        let Some(text) = text else {
            return match self.expected {
                Some(_) => Err(self.down(format!("{MARKER} is gone; mount the pool's file system again"))),
                None => Ok(None),
            };
        };
        let marker: Marker = meta::decode(&path, &text)?;
        if marker.backend != *self.backend {
            let reason = format!(
                "{} is the pool of backend {:?}, not of {:?}; call the backend so, or name another folder",
                self.config.path.display(),
                marker.backend.as_str(),
                self.backend.as_str()
            );
            return Err(Error::invalid("pools.path", reason));
        }
        if self.expected.is_some_and(|expected| expected != marker.id) {
            return Err(self.down("another pool lies here now; mount the right file system, or restart to take this one"));
        }
        Ok(Some(marker))
    }

    /// Whether the folder may become a pool: it holds nothing, or only what a cut-off first use leaves.
    fn check_virgin(&self) -> Result<()> {
        let path = &self.config.path;
        if !self.role.provision {
            return Err(self.down(format!("{MARKER} is missing: it is no pool, or its file system is not mounted")));
        }
        for name in files::names(path).map_err(|error| self.down(error.to_string()))? {
            let ours = [LOCK, "lost+found"].contains(&name.as_str()) || name == format!(".{MARKER}.tmp");
            let inside = path.join(&name);
            let empty = FOLDERS.contains(&name.as_str()) && files::names(&inside).is_ok_and(|names| names.is_empty());
            if !ours && !empty {
                let reason = format!(
                    "{} is no pool ({MARKER} is missing) and not empty (it holds {name:?}): it was left as it is; name an empty \
                     folder, or mount the pool's file system",
                    path.display()
                );
                return Err(Error::invalid("pools.path", reason));
            }
        }
        Ok(())
    }

    /// Takes the lock; the inner error is why the pool may only be read.
    fn lock(&self) -> Result<Result<File, String>> {
        let path = self.config.path.join(LOCK);
        let failed = |error| os::Error::io("open", &path, error);
        let writable = step("open lock", &path.display(), || {
            let mut options = File::options();
            options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            options.open(&path).map_err(failed)
        });
        // What is held is open for reading: an operator can still remount the file system read-only.
        let opened = writable.and_then(|writable| Ok((writable, File::open(&path).map_err(failed)?)));
        let (mut writable, file) = match opened {
            Ok(files) => files,
            Err(error) => return Ok(Err(format!("{error}; make it writable"))),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let read = (&file).take(32).read_to_string(&mut holder);
                let holder = if read.is_ok() && !holder.trim().is_empty() { holder.trim() } else { "unknown" };
                return Err(Error::InUse {
                    object: format!("pool {} ({})", self.config.name, self.config.path.display()),
                    by: format!("the longshore process {holder} provisions from it; stop that one, or name another folder"),
                });
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(self.down(os::Error::io("lock", &path, error).to_string())),
        }
        // Always as many bytes, in place: a full file system must not stop us from opening the pool.
        if let Err(error) = writeln!(writable, "{:10}", std::process::id()) {
            tracing::warn!(file = %path.display(), %error, "the lock is held, but our process id could not be written into it");
        }
        Ok(Ok(file))
    }

    /// Makes a new pool: its folders, and last of all the marker.
    fn make(&self) -> Result<Marker> {
        let path = &self.config.path;
        self.furnish(&FOLDERS)?;
        let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
        let random = random.map_err(|error| self.down(format!("no random id: {error}")))?;
        let marker = Marker { format: meta::FORMAT, id: random.trim().to_owned(), backend: self.backend.clone() };
        let text = meta::encode(&marker, &path.join(MARKER))?;
        step("write pool marker", &path.display(), || durable::write(path, MARKER, &text))
            .map_err(|error| self.down(error.to_string()))?;
        Ok(marker)
    }

    /// Makes those of `folders` that are missing.
    fn furnish(&self, folders: &[&str]) -> Result<()> {
        let missing =
            folders.iter().map(|name| self.config.path.join(name)).try_for_each(|folder| match files::look_through(&folder) {
                Ok(_) => Ok(()),
                Err(error) if error.is_missing() => step("make folder", &folder.display(), || files::make_folder(&folder)),
                Err(error) => Err(error),
            });
        missing.map_err(|error| self.down(error.to_string()))
    }

    fn down(&self, reason: impl Into<String>) -> Error {
        down(self.backend, self.config, reason)
    }
}

impl Ready {
    /// The open folder.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Whether the path still leads to the folder that we opened: not unmounted, not covered by another mount.
    fn is_in_place(&self) -> bool {
        files::look_through(&self.path).is_ok_and(|seen| seen.inode == self.inode)
    }

    /// Where a volume or snapshot lies.
    pub fn place(&self, kind: Kind, local: &str) -> PathBuf {
        self.path.join(kind.folder()).join(local)
    }

    /// Whether there is a volume or snapshot of this id, whole or damaged.
    ///
    /// # Errors
    /// `BackendDown` where that cannot be seen.
    pub fn has(&self, kind: Kind, local: &str) -> Result<bool> {
        let relative = Path::new(kind.folder()).join(local);
        match files::look(self.root(), &relative) {
            Ok(Some(_)) => Ok(true),
            // Gone, or the folder that would hold it is?
            Ok(None) => self.check_essential().map(|()| false).map_err(|reason| self.down(reason)),
            Err(error) => Err(self.down(error.to_string())),
        }
    }

    fn check_essential(&self) -> Result<(), String> {
        for name in ESSENTIAL {
            match files::look(self.root(), Path::new(name)) {
                Ok(Some(seen)) if seen.folder => {}
                Ok(_) => {
                    return Err(format!(
                        "its folder {name} is missing; restore it from a backup, or mount the right file system"
                    ));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Looks at an image; `None` where it is missing.
    pub fn look_at_image(&self, kind: Kind, local: &str) -> os::Result<Option<Seen>> {
        files::look(self.root(), &Path::new(kind.folder()).join(local).join(IMAGE))
    }

    /// Opens an image, through no link.
    pub fn open_image(&self, kind: Kind, local: &str, access: Access) -> Result<File> {
        let relative = Path::new(kind.folder()).join(local).join(IMAGE);
        let opened = files::open(self.root(), &relative, access).map_err(|error| self.failure(error))?;
        opened.ok_or_else(|| Damage::image_missing(&self.path.join(&relative)).into())
    }

    /// The text of a metadata file; `None` where it is missing.
    pub fn read_meta(&self, kind: Kind, local: &str) -> os::Result<Option<Vec<u8>>> {
        files::read(self.root(), &Path::new(kind.folder()).join(local).join(META), meta::LONGEST)
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

    /// `BackendDown`.
    pub fn down(&self, reason: impl Into<String>) -> Error {
        Error::BackendDown { backend: self.backend.to_string(), reason: format!("{}: {}", self.called(), reason.into()) }
    }

    /// Whether this process holds the lock.
    pub fn is_writable(&self) -> bool {
        self.lock.is_ok()
    }

    /// The backend's name, for ids.
    pub fn backend(&self) -> &BackendName {
        &self.backend
    }

    /// Makes durable what a killed process had renamed but not yet synced: from now on it is taken as done.
    fn settle(&self) -> os::Result<()> {
        ESSENTIAL
            .iter()
            .map(|name| self.path.join(name))
            .try_for_each(|folder| step("sync folder", &folder.display(), || durable::sync_dir(&folder)))
    }

    /// Removes what killed calls left. What is not ours stays, with a warning.
    fn sweep(&self) {
        for parent in [TMP, TRASH] {
            let parent = self.path.join(parent);
            for name in files::names(&parent).unwrap_or_default() {
                let leftover = parent.join(&name);
                match step("remove leftover", &leftover.display(), || files::remove_folder(&leftover)) {
                    Ok(()) => tracing::info!(folder = %leftover.display(), "removed what an interrupted call left"),
                    Err(error) => tracing::warn!(%error, "what lies here is not ours; remove it by hand"),
                }
            }
        }
        let groups = self.path.join(GROUPS);
        for name in files::names(&groups).unwrap_or_default() {
            if name.starts_with('.') && name.ends_with(".json.tmp") {
                let leftover = groups.join(name);
                if let Err(error) = step("remove leftover", &leftover.display(), || files::remove_file(&leftover)) {
                    tracing::warn!(%error, "a half-written group record could not be removed");
                }
            }
        }
    }
}

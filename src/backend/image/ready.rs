//! A pool that is there: its open directory, its lock, its ledger, and what is read of it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use crate::backend::LockHolder;
use crate::os::durable::{self, SharedSync};
use crate::os::step::step;
use crate::os::{self, copy};
use crate::volume::{BackendName, Error, Result};

use super::config::PoolConfig;
use super::files::{self, Access, IMAGE, META, Room, Seen, Stamp};
use super::index::{Contents, Index};
use super::layout::{ESSENTIAL, Kind, Limits};
use super::ledger::Ledger;
use super::lock::{NoLock, PoolLock};
use super::meta::{self, Damage};

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
    pub lock: Result<PoolLock, NoLock>,
    /// The pool's, which a reload changes.
    pub limits: Arc<Mutex<Limits>>,
    pub ledger: Arc<Ledger>,
    pub index: Index,
    pub shares: OnceLock<bool>,
    pub in_order: OnceLock<bool>,
    pub syncs: Syncs,
}

/// The fsyncs of the directories that all calls change.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    volumes: SharedSync,
    snapshots: SharedSync,
}

pub(super) fn down(backend: &BackendName, pool: &PoolConfig, reason: impl Into<String>) -> Error {
    let reason = format!("pool {} ({}): {}", pool.name, pool.path.display(), reason.into());
    Error::BackendUnavailable { backend: backend.to_string(), reason }
}

impl Ready {
    /// The same, with the same ledger, for reading.
    ///
    /// # Errors
    /// Where there are no more descriptors.
    pub fn for_reading(&self) -> std::io::Result<Ready> {
        Ok(Ready {
            name: self.name.clone(),
            path: self.path.clone(),
            id: self.id.clone(),
            backend: self.backend.clone(),
            directory: self.directory.try_clone()?,
            inode: self.inode,
            lock: Err(NoLock::NotTaken("this is for reading")),
            limits: Arc::clone(&self.limits),
            ledger: Arc::clone(&self.ledger),
            index: Index::default(),
            shares: OnceLock::new(),
            in_order: OnceLock::new(),
            syncs: Syncs::default(),
        })
    }

    /// The open directory.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// For its index.
    pub fn contents(&self) -> Contents<'_> {
        Contents { root: self.root(), path: &self.path, id: &self.id, device: self.inode.0, ledger: &self.ledger }
    }

    /// In bytes, where the file system has `total`.
    pub fn provisionable(&self, total: u64) -> u64 {
        os::lock(&self.limits).provisionable(total)
    }

    /// Whether the path still leads to the directory that we opened: not unmounted, not covered by another mount.
    pub fn is_in_place(&self) -> bool {
        files::look_through(&self.path).is_ok_and(|seen| seen.inode == self.inode)
    }

    /// Where a volume or snapshot lies.
    pub fn place(&self, kind: Kind, local: &str) -> PathBuf {
        self.path.join(kind.directory()).join(local)
    }

    /// fsync of the directory of all volumes or snapshots; calls that come at the same time share it.
    pub fn sync_directory(&self, kind: Kind) -> os::Result<()> {
        let directory = self.path.join(kind.directory());
        let shared = match kind {
            Kind::Volume => &self.syncs.volumes,
            Kind::Snapshot => &self.syncs.snapshots,
        };
        step("sync directory", &directory.display(), || shared.sync(&directory))
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

    /// The text of a metadata file, and the file; `None` where it is missing.
    pub fn read_meta(&self, kind: Kind, local: &str) -> os::Result<Option<(Vec<u8>, Seen)>> {
        files::read_seen(self.root(), &Path::new(kind.directory()).join(local).join(META), meta::LONGEST)
    }

    /// Which metadata file is there, as far as that can be seen.
    pub fn meta_stamp(&self, kind: Kind, local: &str) -> Option<Stamp> {
        let path = [kind.directory(), "/", local, "/", META].concat();
        let seen = files::glance(self.root(), Path::new(&path));
        seen.ok().flatten().map(|seen| seen.stamp())
    }

    /// See [`durable::commits_in_order`].
    pub fn commits_in_order(&self) -> bool {
        *self.in_order.get_or_init(|| durable::commits_in_order(self.root()))
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
            _ if error.is_full() => Error::NoCapacity {
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

    /// Whether no other process has got the lock since this one did: looked at before each change, since a server that gives it to another
    /// client says nothing. What is known in memory means nothing then.
    ///
    /// # Errors
    /// `BackendUnavailable`, naming the holder.
    pub fn check_kept(&self) -> Result<()> {
        match self.taken_over()? {
            None => Ok(()),
            Some(holder) => Err(self.down(NoLock::Elsewhere(holder).to_string())),
        }
    }

    /// Who has got the lock that this process had.
    ///
    /// # Errors
    /// `BackendUnavailable` where that cannot be seen.
    pub fn taken_over(&self) -> Result<Option<LockHolder>> {
        let Ok(lock) = &self.lock else { return Ok(None) };
        let found = lock.taken_over().map_err(|error| self.down(format!("who has its lock cannot be read: {error}")))?;
        // Its path may lead elsewhere by now.
        if found.is_some() && !self.is_in_place() {
            return Err(self.down("it is not in its place any more"));
        }
        Ok(found)
    }

    /// Whether this process holds the lock.
    pub fn is_writable(&self) -> bool {
        self.lock.is_ok()
    }

    /// Whether the ledger has all that is there: it was filled, and no other process makes or deletes anything.
    pub fn has_ledger(&self) -> bool {
        matches!(self.lock, Ok(_) | Err(NoLock::Unwritable(_)))
    }
}

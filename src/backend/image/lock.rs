//! The lock of a pool: who has it provisions.
//!
//! It is flock(2). A file server gives it to another client once ours was silent for longer than its lease (RFC 8881, section 8.4.3), and
//! does not tell us: so who gets it writes a random name behind the record of who that is, and who finds another name there has lost it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags};

use crate::backend::LockHolder;
use crate::os::step::step;
use crate::os::{self, random, udev};
use crate::volume::{Error, Result};

use super::config::PoolConfig;
use super::layout::LOCK;

/// Random bytes, of the name that a holder gives itself.
const NAME: usize = 16;
/// How long what a killed driver left may keep its locks.
const ORPHANS: Duration = Duration::from_secs(5);

/// The lock files that this process has locked, by device and inode, and for which pool: a second lock of its own is a mistake in the
/// configuration, and nothing to wait for.
static OWN: Mutex<BTreeMap<(u64, u64), PathBuf>> = Mutex::new(BTreeMap::new());

/// The lock, given back when dropped.
#[derive(Debug)]
pub(in crate::backend) struct PoolLock {
    file: Option<File>,
    inode: (u64, u64),
    path: PathBuf,
    /// What this process wrote into it; `None` where that failed.
    written: Option<String>,
}

/// Why there is no lock.
#[derive(Clone, Debug)]
pub(super) enum NoLock {
    /// It was not asked for.
    NotTaken(&'static str),
    /// The pool can only be read.
    Unwritable(String),
    /// Another process has it.
    Elsewhere(LockHolder),
}

impl fmt::Display for NoLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoLock::NotTaken(reason) => f.write_str(reason),
            NoLock::Unwritable(reason) => f.write_str(reason),
            NoLock::Elsewhere(holder) => f.write_str(&holder.provisions()),
        }
    }
}

impl PoolLock {
    /// Takes the lock. Where another process has it, `held` says whether what may only be a killed driver's child is waited for.
    ///
    /// # Errors
    /// `InUse` where this very process has it for another pool; `os::Error` where it cannot be locked at all. The inner error is why the
    /// pool may only be read.
    pub(super) fn take(pool: &PoolConfig, held: impl FnOnce(&LockHolder) -> bool) -> Result<Result<PoolLock, NoLock>> {
        let path = pool.path.join(LOCK);
        let (mut writable, file) = match open(&path) {
            Ok(files) => files,
            Err(error) => return Ok(Err(NoLock::Unwritable(format!("{error}; make it writable")))),
        };
        let seen = file.metadata().map_err(|error| os::Error::io("stat", &path, error))?;
        let inode = (seen.dev(), seen.ino());
        // NFS grants an exclusive lock to writers only (flock(2)).
        let file = match file.try_lock() {
            Err(std::fs::TryLockError::Error(error)) if error.raw_os_error() == Some(libc::EBADF) => {
                writable.try_clone().map_err(|error| os::Error::io("open", &path, error))?
            }
            _ => file,
        };
        let try_lock = || match file.try_lock() {
            Ok(()) => Ok(true),
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            Err(std::fs::TryLockError::Error(error)) => Err(os::Error::io("lock", &path, error)),
        };
        if !try_lock()? {
            if let Some(other) = own().get(&inode) {
                let object = format!("pool {} ({})", pool.name, pool.path.display());
                let pid = std::process::id();
                let by = format!("process {pid}, this one, provisions from it as {}; name another directory", other.display());
                return Err(Error::InUse { object, by });
            }
            // For people: what cannot be read is not known.
            let holder = LockHolder::read(&mut writable).unwrap_or_default();
            // A child that a killed driver was about to start has the lock for the moment that it takes to run its program, or to
            // see that it is an orphan.
            let waits = held(&holder) && may_be_orphaned(&holder);
            if !waits || !udev::wait_until(Instant::now().checked_add(ORPHANS), try_lock)? {
                return Ok(Err(NoLock::Elsewhere(holder)));
            }
        }
        let content = LockHolder::this().encode() + &random::hexadecimal(NAME)?;
        // Always as long, in place: also on a full file system.
        let written = match writable.write_all_at(content.as_bytes(), 0).and_then(|()| writable.sync_data()) {
            Ok(()) => Some(content),
            Err(error) => {
                let error = os::Error::io("write", &path, error);
                if !error.is_full() {
                    return Ok(Err(NoLock::Unwritable(format!("{error}; see the kernel's log"))));
                }
                tracing::warn!(%error, "the lock is held, but it cannot be written who has it; if a server gives it away, that is not seen");
                None
            }
        };
        own().insert(inode, pool.path.clone());
        Ok(Ok(PoolLock { file: Some(file), inode, path, written }))
    }

    /// Who has taken it from us, if another process has, or can: where the file is gone, nobody is named.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub(super) fn taken_over(&self) -> os::Result<Option<LockHolder>> {
        let Some(written) = &self.written else { return Ok(None) };
        let read = || {
            // Asks the server, whatever this client remembers: what it has cached is dropped if the file has changed (nfs(5)).
            rustix::fs::statx(rustix::fs::CWD, &self.path, AtFlags::STATX_FORCE_SYNC, StatxFlags::MTIME)?;
            let mut file = File::open(&self.path)?;
            let mut found = vec![0; written.len()];
            match file.read_exact_at(&mut found, 0) {
                Ok(()) if found == written.as_bytes() => Ok(None),
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
                _ => LockHolder::read(&mut file).map(Some),
            }
        };
        match read() {
            // Another process locks a new one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(LockHolder::default())),
            read => read.map_err(|error| os::Error::io("read", &self.path, error)),
        }
    }
}

impl Drop for PoolLock {
    fn drop(&mut self) {
        // First, so that nobody finds it locked and not ours.
        drop(self.file.take());
        own().remove(&self.inode);
    }
}

/// For writing, and what is locked, which is open for reading: an operator can still remount the file system read-only.
fn open(path: &Path) -> os::Result<(File, File)> {
    let failed = |error: io::Error| os::Error::io("open", path, error);
    let writable = step("open lock", &path.display(), || {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        options.open(path).map_err(failed)
    })?;
    Ok((writable, File::open(path).map_err(failed)?))
}

/// Whether the process that wrote this has ended. In a container that was started anew we have the number of the one before us.
fn may_be_orphaned(holder: &LockHolder) -> bool {
    let lives = |pid: u32| pid != std::process::id() && Path::new("/proc").join(pid.to_string()).exists();
    holder.is_of_this_host() && !holder.pid.is_some_and(lives)
}

fn own() -> MutexGuard<'static, BTreeMap<(u64, u64), PathBuf>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

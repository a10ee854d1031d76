//! From a path to a usable pool: whose directory it is, the lock, what is made, what is swept.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use crate::backend::{LockHolder, Role};
use crate::os::step::step;
use crate::os::{self, durable};
use crate::volume::{BackendName, Error, Result};

use super::config::PoolConfig;
use super::index::Index;
use super::layout::{DIRECTORIES, ESSENTIAL, GROUPS, LOCK, Limits, MARKER, PASSING, TMP, TRASH};
use super::lock::{NoLock, PoolLock};
use super::meta::{self, Marker};
use super::pool_id::PoolIdFile;
use super::ready::{Ready, Syncs, down};
use super::{files, scan};

/// The way from a path to a [`Ready`].
pub(super) struct Opening<'a> {
    pub config: &'a PoolConfig,
    pub limits: &'a Arc<Mutex<Limits>>,
    pub backend: &'a BackendName,
    pub role: Role,
    /// Whether the lock is to be taken, where this process provisions.
    pub lock: bool,
    /// The id that the pool must have, if it was open before.
    pub expected: Option<&'a str>,
    pub memory: Option<&'a PoolIdFile>,
    /// Called where another process has the lock; whether it is waited for, for some seconds.
    pub held: &'a dyn Fn(&LockHolder) -> bool,
}

impl Opening<'_> {
    pub fn run(&self) -> Result<Ready> {
        let path = &self.config.path;
        let (directory, inode) = self.directory()?;
        let mut marker = self.marker(&directory)?;
        if marker.is_none()
            && let Err(error) = self.check_empty()
        {
            // Another process may have made it a pool meanwhile: what is not empty comes after the marker.
            marker = self.marker(&directory)?;
            if marker.is_none() {
                return Err(error);
            }
        }
        let lock = match (self.role.provision, self.lock) {
            (true, true) => self.lock()?,
            (true, false) => Err(NoLock::NotTaken("this process is on standby")),
            (false, _) => Err(NoLock::NotTaken("this process does not provision")),
        };
        let marker = match (marker, &lock) {
            (Some(marker), Ok(_)) => {
                self.create_layout(&PASSING)?;
                marker
            }
            (Some(marker), Err(_)) => marker,
            // Read again: another process may have made the pool before we had the lock.
            (None, Ok(_)) => match self.marker(&directory)? {
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
            directory,
            inode,
            lock,
            limits: Arc::clone(self.limits),
            ledger: Arc::default(),
            index: Index::default(),
            shares: OnceLock::new(),
            in_order: OnceLock::new(),
            syncs: Syncs::default(),
        };
        ready.check_essential().map_err(|reason| self.down(reason))?;
        if ready.lock.is_ok() {
            ready.sweep();
            ready.sync_essential().map_err(|error| self.down(error.to_string()))?;
        }
        if ready.has_ledger() {
            scan::load(&ready).map_err(|error| self.down(error.to_string()))?;
        }
        Ok(ready)
    }

    /// The open directory; made, if only the last component is missing.
    fn directory(&self) -> Result<(File, (u64, u64))> {
        let path = &self.config.path;
        match files::look_through(path) {
            Ok(_) => {}
            Err(error) if error.is_missing() && self.role.provision && self.expected.is_none() => self.make_directory()?,
            Err(error) => return Err(self.down(format!("{error}; mount or make it{}", self.forget()))),
        }
        let flags = libc::O_DIRECTORY | libc::O_PATH;
        let directory = File::options().read(true).custom_flags(flags).open(path);
        let directory =
            directory.map_err(|error| self.down(format!("{}; it must be a directory", os::Error::io("open", path, error))))?;
        let seen = files::look_at(&directory, path).map_err(|error| self.down(error.to_string()))?;
        Ok((directory, seen.inode))
    }

    /// What to do about a pool that was here and will not come back.
    fn forget(&self) -> String {
        let forget = |memory: &PoolIdFile| {
            format!(", or, if it is gone for good, stop us, remove {} and start again", memory.path().display())
        };
        self.expected.and(self.memory).map(forget).unwrap_or_default()
    }

    fn make_directory(&self) -> Result<()> {
        let path = &self.config.path;
        let made = step("make pool", &path.display(), || {
            // The lock says whose it is.
            files::ensure_directory(path)?;
            durable::sync_dir(path.parent().unwrap_or(path))
        });
        made.map_err(|error| self.down(format!("{error}; mount or make the directory")))
    }

    fn marker(&self, directory: &File) -> Result<Option<Marker>> {
        let path = self.config.path.join(MARKER);
        let text =
            files::read(directory.as_fd(), Path::new(MARKER), meta::LONGEST).map_err(|error| self.down(error.to_string()))?;
        let Some(text) = text else {
            return match self.expected {
                Some(_) => Err(self.down(format!("{MARKER} is gone; mount the pool's file system again{}", self.forget()))),
                None => Ok(None),
            };
        };
        let marker: Marker = meta::decode(&path, &text)?;
        if marker.backend != *self.backend {
            let reason = format!(
                "{} is the pool of backend {:?}, not of {:?}; call the backend so, or name another directory",
                self.config.path.display(),
                marker.backend.as_str(),
                self.backend.as_str()
            );
            return Err(Error::invalid("pools.path", reason));
        }
        if self.expected.is_some_and(|expected| expected != marker.id) {
            return Err(self.down(format!("another pool lies here now; mount the right file system{}", self.forget())));
        }
        Ok(Some(marker))
    }

    /// Whether the directory may become a pool: it holds nothing, or only what an interrupted first use leaves.
    fn check_empty(&self) -> Result<()> {
        let path = &self.config.path;
        if !self.role.provision {
            return Err(self.down(format!("{MARKER} is missing: it is no pool, or its file system is not mounted")));
        }
        for name in files::names(path).map_err(|error| self.down(error.to_string()))? {
            let ours = [LOCK, "lost+found"].contains(&name.as_str()) || name == format!(".{MARKER}.tmp");
            let inside = path.join(&name);
            let empty = DIRECTORIES.contains(&name.as_str()) && files::names(&inside).is_ok_and(|names| names.is_empty());
            if !ours && !empty {
                let reason = format!(
                    "{} is no pool ({MARKER} is missing) and not empty (it holds {name:?}): it was left as it is; name an empty \
                     directory, or mount the pool's file system",
                    path.display()
                );
                return Err(Error::invalid("pools.path", reason));
            }
        }
        Ok(())
    }

    /// Takes the lock.
    ///
    /// # Errors
    /// `InUse` where another pool of this process has it. The inner error is why the pool may only be read.
    fn lock(&self) -> Result<Result<PoolLock, NoLock>> {
        let taken = PoolLock::take(self.config, |holder| (self.held)(holder));
        taken.map_err(|error| match error {
            Error::InUse { .. } => error,
            error => self.down(error.to_string()),
        })
    }

    /// Makes a new pool: its directories, and last of all the marker.
    fn make(&self) -> Result<Marker> {
        let path = &self.config.path;
        self.create_layout(&DIRECTORIES)?;
        let id = files::random_id().map_err(|error| self.down(error.to_string()))?;
        let marker = Marker { format: meta::FORMAT, id, backend: self.backend.clone() };
        let text = meta::encode(&marker, &path.join(MARKER))?;
        step("write pool marker", &path.display(), || durable::write(path, MARKER, &text))
            .map_err(|error| self.down(error.to_string()))?;
        Ok(marker)
    }

    /// Makes those of `directories` that are missing.
    fn create_layout(&self, directories: &[&str]) -> Result<()> {
        let missing = directories.iter().map(|name| self.config.path.join(name)).try_for_each(|directory| {
            match files::look_through(&directory) {
                Ok(_) => Ok(()),
                Err(error) if error.is_missing() => {
                    step("make directory", &directory.display(), || files::make_directory(&directory))
                }
                Err(error) => Err(error),
            }
        });
        missing.map_err(|error| self.down(error.to_string()))
    }

    fn down(&self, reason: impl Into<String>) -> Error {
        down(self.backend, self.config, reason)
    }
}

impl Ready {
    /// Makes durable what a killed process had renamed but not yet synced: from now on it is taken as done.
    fn sync_essential(&self) -> os::Result<()> {
        ESSENTIAL
            .iter()
            .map(|name| self.path.join(name))
            .try_for_each(|directory| step("sync directory", &directory.display(), || durable::sync_dir(&directory)))
    }

    /// Removes what killed calls left. What is not ours stays, with a warning.
    fn sweep(&self) {
        for parent in [TMP, TRASH] {
            let parent = self.path.join(parent);
            for name in files::names(&parent).unwrap_or_default() {
                let leftover = parent.join(&name);
                match step("remove leftover", &leftover.display(), || files::remove_directory(&leftover)) {
                    Ok(()) => tracing::info!(directory = %leftover.display(), "removed what an interrupted call left"),
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

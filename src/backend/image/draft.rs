//! Something in the making: a directory in `tmp`, renamed into place when it is whole and synced, removed when not.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::os::copy::{self, Method};
use crate::os::durable;
use crate::os::step::step;
use crate::volume::{Bytes, Error, Result};

use super::files::{self, IMAGE, META, Stamp};
use super::layout::{Kind, TMP, TRASH};
use super::meta;
use super::ready::Ready;
use super::room;

/// A half-made volume or snapshot. One that is neither placed nor discarded is swept when the pool is next opened.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pool: &'a Ready,
    kind: Kind,
    local: String,
    directory: PathBuf,
    image: File,
    /// Nothing was copied into the image.
    empty: Cell<bool>,
}

impl<'a> Draft<'a> {
    /// An empty image in a directory of its own. What failed calls left of the same thing must be gone: see [`remove_passing`].
    pub fn begin(pool: &'a Ready, kind: Kind, local: &str) -> Result<Self> {
        pool.check_kept()?;
        let directory = pool.path.join(TMP).join(kind.passing_name(local));
        let shown = directory.display();
        // mkdir is all or nothing, unless the step was stopped behind it: look.
        step("make directory", &shown, || files::make_directory(&directory))
            .map_err(|error| remove(pool, &directory, pool.failure(error)))?;
        let image = step("create image", &shown, || files::make_file(&directory.join(IMAGE)));
        match image {
            Ok(image) => Ok(Draft { pool, kind, local: local.to_owned(), directory, image, empty: Cell::new(true) }),
            Err(error) => Err(remove(pool, &directory, pool.failure(error))),
        }
    }

    pub fn pool(&self) -> &'a Ready {
        self.pool
    }

    /// The empty image's path, for people.
    fn image_path(&self) -> PathBuf {
        self.directory.join(IMAGE)
    }

    /// Fills the image from another; see [`copy::clone_or_copy`].
    pub fn copy_from(&self, from: &File) -> Result<Method> {
        let path = self.image_path();
        self.empty.set(false);
        step("copy image", &path.display(), || copy::clone_or_copy(from, &self.image)).map_err(|error| self.pool.failure(error))
    }

    /// Fills the image with what another holds at one instant, while that may be written: see [`copy::clone_only`].
    pub fn share_from(&self, from: &File) -> Result<bool> {
        let path = self.image_path();
        self.empty.set(false);
        step("share image", &path.display(), || copy::clone_only(from, &self.image)).map_err(|error| self.pool.failure(error))
    }

    /// Makes the image `capacity` long, and allocates all of it if asked to.
    pub fn size(&self, capacity: Bytes, preallocate: bool) -> Result<()> {
        let path = self.image_path();
        let sized = step("set length", &path.display(), || files::set_length(&self.image, &path, capacity.0)).and_then(|()| {
            if preallocate {
                step("allocate", &path.display(), || files::allocate(&self.image, &path, capacity.0))
            } else {
                Ok(())
            }
        });
        sized.map_err(|error| self.pool.failure(error))
    }

    /// The bytes of disk that the image has.
    pub fn allocated(&self) -> Result<u64> {
        let seen = files::look_at(&self.image, &self.image_path()).map_err(|error| self.pool.failure(error))?;
        Ok(seen.allocated)
    }

    /// How long the image is.
    pub fn length(&self) -> Result<Bytes> {
        let seen = files::look_at(&self.image, &self.image_path()).map_err(|error| self.pool.failure(error))?;
        Ok(Bytes(seen.length))
    }

    /// See [`room::reserve`].
    pub fn reserve_room(&self) -> Result<()> {
        let reserved =
            step("reserve room", &self.directory.display(), || room::reserve(&self.directory, self.pool.commits_in_order()));
        reserved.map_err(|error| self.pool.failure(error))
    }

    /// Writes the metadata. Which metadata file that is.
    ///
    /// All of it is synced, so that it is whole wherever it is renamed to. An empty image has only its length: where the file system
    /// commits in order, that and the metadata become durable with the rename or before it, by the one fsync of [`Draft::place`].
    pub fn finish<M: Serialize>(&self, record: &M) -> Result<Stamp> {
        let path = self.directory.join(META);
        let text = meta::encode(record, &path)?;
        let in_order = self.empty.get() && self.pool.commits_in_order();
        let finished = step("write metadata", &path.display(), || {
            let file = files::write_new(&path, &text)?;
            if in_order {
                files::write_back(&file, &path)?
            } else {
                files::sync(&file, &path)?
            }
            Ok(files::look_at(&file, &path)?.stamp())
        })
        .and_then(|stamp| {
            if !in_order {
                step("sync", &self.directory.display(), || {
                    files::sync(&self.image, &self.image_path())?;
                    durable::sync_dir(&self.directory)
                })?;
            }
            Ok(stamp)
        });
        finished.map_err(|error| self.pool.failure(error))
    }

    /// Renames it into place, durably. Nothing may be there.
    ///
    /// # Errors
    /// Then it is gone again, but not final if the rename may have become durable.
    pub fn place(self) -> Result<()> {
        // What has been made may have taken hours.
        if let Err(error) = self.pool.check_kept() {
            return Err(self.discard(error));
        }
        let to = self.pool.place(self.kind, &self.local);
        if let Err(error) = step("rename into place", &to.display(), || files::rename_new(&self.directory, &to)) {
            let failure = if error.errno() == Some(libc::EEXIST) {
                Error::Conflict {
                    object: to.display().to_string(),
                    existing: "data that is not ours to replace".to_owned(),
                    wanted: "a new one".to_owned(),
                }
            } else {
                self.pool.failure(error)
            };
            return Err(self.discard(failure));
        }
        self.pool.sync_directory(self.kind).map_err(|error| {
            let failure = self.pool.failure(error);
            let left = format!("{} may come back after a crash", to.display());
            if let Err(error) = self.pool.check_kept() {
                return failure.leaving(error.to_string());
            }
            let undone = step("undo the rename", &to.display(), || files::rename_new(&to, &self.directory));
            match undone {
                Ok(()) => self.discard(failure).leaving(left),
                Err(_) => failure.leaving(to.display().to_string()),
            }
        })
    }

    /// Removes it; answers `failure`, final only if the removal was seen to work.
    pub fn discard(self, failure: Error) -> Error {
        remove(self.pool, &self.directory, failure)
    }
}

/// It is another process's that has got the pool's lock, if there is one.
fn remove(pool: &Ready, directory: &Path, failure: Error) -> Error {
    if pool.check_kept().is_err() {
        return failure.leaving(directory.display().to_string());
    }
    match step("roll back", &directory.display(), || files::remove_directory(directory)) {
        Ok(()) => failure.rolled_back(),
        Err(error) => failure.leaving(error.to_string()),
    }
}

/// Deletes what is in place: one durable rename into the trash, then its files are unlinked.
pub(super) fn throw_away(pool: &Ready, kind: Kind, local: &str) -> Result<()> {
    pool.check_kept()?;
    let from = pool.place(kind, local);
    let to = pool.path.join(TRASH).join(kind.passing_name(local));
    step("move to trash", &from.display(), || match files::rename_new(&from, &to) {
        // What an earlier call of the same name could not unlink.
        Err(error) if error.errno() == Some(libc::EEXIST) => {
            files::remove_directory(&to)?;
            files::rename_new(&from, &to)
        }
        done => done,
    })
    .map_err(|error| pool.failure(error))?;
    // What must last is that it is gone from here. Whether the trash shows it after a crash is all the same.
    pool.sync_directory(kind).map_err(|error| pool.failure(error))?;
    step("empty trash", &to.display(), || files::remove_directory(&to)).map_err(|error| pool.failure(error))?;
    // Not before: until its disk is given back it counts, and by the ledger a repeated call finds what is left.
    pool.ledger.remove(kind, local);
    Ok(())
}

/// Makes a rename out of `kind`'s directory into `to` durable.
pub(super) fn sync_both(pool: &Ready, kind: Kind, to: &Path) -> Result<()> {
    let from = pool.path.join(kind.directory());
    step("sync directories", &from.display(), || {
        durable::sync_dir(&from)?;
        durable::sync_dir(to)
    })
    .map_err(|error| pool.failure(error))
}

/// Brings to its end what a failed call began with something that is not in place any more: makes sure that it stays
/// away, and removes what is left of it. Whether the failed call had left something that still counted.
pub(super) fn clear_leftovers(pool: &Ready, kind: Kind, local: &str) -> Result<bool> {
    // Always: a rename whose sync failed leaves nothing else to see. Where it is in order this costs nothing.
    pool.sync_directory(kind).map_err(|error| pool.failure(error))?;
    remove_passing(pool, kind, local)?;
    Ok(pool.ledger.remove(kind, local))
}

/// Whether there is no draft, as far as can be seen.
pub(super) fn is_gone(pool: &Ready, kind: Kind, local: &str) -> bool {
    files::look(pool.root(), &Path::new(TMP).join(kind.passing_name(local))).is_ok_and(|found| found.is_none())
}

/// Removes what failed calls left of one thing, half made or half deleted.
///
/// # Errors
/// Not final: it is still there.
pub(super) fn remove_passing(pool: &Ready, kind: Kind, local: &str) -> Result<()> {
    pool.check_kept()?;
    for parent in [TMP, TRASH] {
        let relative = Path::new(parent).join(kind.passing_name(local));
        if files::look(pool.root(), &relative).map_err(|error| pool.failure(error))?.is_some() {
            let directory = pool.path.join(relative);
            step("remove leftover", &directory.display(), || files::remove_directory(&directory))
                .map_err(|error| pool.failure(error).leaving(directory.display().to_string()))?;
        }
    }
    Ok(())
}

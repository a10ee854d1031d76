//! How a volume's directory comes to its place, and goes from it.
//!
//! NFS has no rename that replaces nothing (RENAME_NOREPLACE), but mkdir is exclusive. So a place is claimed by an empty directory of mode
//! 0, and the draft is renamed over it, which fails if anything was put into it meanwhile: nothing that is there is ever replaced.

use std::path::Path;

use rustix::fs::{FileType, Stat};

use crate::os::dir::OpenDir;
use crate::os::step::step;
use crate::os::{self, lock, subvolume};
use crate::volume::{Error, OnDelete, Result};

use super::base::Ready;
use super::record::{self, Phase, VolumeRecord};
use super::subdir;

impl Ready {
    /// The record of a volume, whatever its phase; `None` where there is none.
    ///
    /// # Errors
    /// `Unverified` where it is damaged, or another volume's.
    pub fn record(&self, local: &str) -> Result<Option<VolumeRecord>> {
        let name = record_name(local);
        let Some(record) = record::read::<VolumeRecord>(&self.volumes, &name).map_err(|error| self.with_cause_of_base(error))?
        else {
            // An administrator has removed it.
            self.index.remove_lost(local);
            return Ok(None);
        };
        let sound =
            record.id.local() == local && record.directory.to_str().is_some_and(|directory| subdir::check(directory).is_ok());
        if sound {
            return Ok(Some(record));
        }
        let device = self.volumes.path_of(name).display().to_string();
        Err(Error::Unverified { device, reason: "it is not this volume's; restore it from a backup".to_owned() })
    }

    /// A failed read means that the base is down.
    fn with_cause_of_base(&self, error: Error) -> Error {
        match error {
            Error::Failed { step, object, source, .. } => self.down(format!("{step} {object}: {source}")),
            other => other,
        }
    }

    /// Makes what a record says durable.
    pub fn write_record(&self, record: &VolumeRecord) -> Result<()> {
        let name = record_name(record.id.local());
        let text = record::encode(record)?;
        let write = || match record.phase {
            Phase::Deleting { .. } => self.write_even_if_full(&self.volumes, &name, &text),
            Phase::Making | Phase::Whole => self.volumes.write(&name, &text),
        };
        step("write metadata", &self.volumes.path_of(&name).display(), write).map_err(|error| self.failure(error))
    }

    fn remove_record(&self, local: &str) -> Result<()> {
        let name = record_name(local);
        step("remove metadata", &self.volumes.path_of(&name).display(), || {
            if !self.becomes_spare(&self.volumes, &name) {
                self.volumes.remove_file(&name)?;
            }
            self.volumes.sync()
        })
        .map_err(|error| self.failure(error))?;
        self.index.remove_volume(local);
        Ok(())
    }

    /// A directory of a volume or on the way to one; `None` where it is not there.
    pub fn at(&self, directory: &Path) -> Result<Option<OpenDir>> {
        self.root.directory(directory).map_err(|error| self.failure(error))
    }

    /// What lies in a volume's place, with its number, and the directory that it lies in.
    fn seen(&self, directory: &Path) -> Result<Option<(OpenDir, Stat, u64)>> {
        let (parent, name) = parted(directory)?;
        let Some(parent) = self.at(parent)? else { return Ok(None) };
        let numbered = numbered(&parent, name).map_err(|error| self.failure(error))?;
        Ok(numbered.map(|(stat, number)| (parent, stat, number)))
    }

    /// Puts a draft into its place, durably.
    ///
    /// # Errors
    /// `Conflict` where something is there that is not this volume's.
    pub fn put_in_place(&self, record: &VolumeRecord) -> Result<()> {
        let shown = self.root.path_of(&record.directory);
        let _places = lock(&self.places);
        let (_, name) = parted(&record.directory)?;
        let parent = step("make parents", &shown.display(), || self.make_parents(&record.directory))?;
        step("claim place", &shown.display(), || self.claim(&parent, name))?;
        let local = record.id.local();
        step("rename into place", &shown.display(), || {
            self.drafts.rename(local, &parent, name).or_else(|error| {
                // A server may have done it, and its first answer was lost.
                match numbered(&parent, name)? {
                    Some((_, number)) if Some(number) == record.inode => Ok(()),
                    _ => Err(error),
                }
            })
        })
        .map_err(|error| match error.errno() {
            Some(libc::ENOTEMPTY | libc::EEXIST | libc::ENOTDIR) => self.in_the_way(&parent, name),
            _ => self.failure(error),
        })?;
        step("sync directories", &shown.display(), || {
            parent.sync()?;
            self.drafts.sync()
        })
        .map_err(|error| self.failure(error))
    }

    /// The directories on the way to a volume, made one by one. The open last one.
    fn make_parents(&self, directory: &Path) -> Result<OpenDir> {
        let mut at = self.root.try_clone()?;
        for parent in subdir::parents(directory) {
            let (_, name) = parted(parent)?;
            at = match at.ensure_directory(name, 0o755) {
                Err(os::Error::Path { .. }) => return Err(self.in_the_way(&at, name)),
                made => made.map_err(|error| self.failure(error))?,
            };
            self.check_parent(&at)?;
        }
        Ok(at)
    }

    /// Anyone who can write in a directory can take what lies in it from its place: another volume that was retained, for one.
    fn check_parent(&self, parent: &OpenDir) -> Result<()> {
        let seen = parent.stat_self().map_err(|error| self.failure(error))?;
        let root = self.root.stat_self().map_err(|error| self.failure(error))?;
        let own = self.own.stat_self().map_err(|error| self.failure(error))?;
        let trusted = seen.st_uid == own.st_uid || seen.st_uid == root.st_uid;
        if trusted && seen.st_mode & 0o022 == 0 {
            return Ok(());
        }
        Err(Error::Conflict {
            object: parent.shown().display().to_string(),
            existing: format!("the owner {} and the mode {:o}", seen.st_uid, seen.st_mode & 0o7777),
            wanted: "a directory that only root can write in, for a volume to lie in".to_owned(),
        })
    }

    fn claim(&self, parent: &OpenDir, name: &std::ffi::OsStr) -> Result<()> {
        match parent.make_directory(name, 0) {
            Ok(()) => Ok(()),
            Err(error) if error.errno() == Some(libc::EEXIST) => {
                match parent.stat(name).map_err(|error| self.failure(error))? {
                    // Data of no volume: what an interrupted call left, or one whose answer was lost.
                    Some(stat) if is_claim(&stat) => Ok(()),
                    _ => Err(self.in_the_way(parent, name)),
                }
            }
            Err(error) => Err(self.failure(error)),
        }
    }

    fn in_the_way(&self, parent: &OpenDir, name: &std::ffi::OsStr) -> Error {
        Error::Conflict {
            object: parent.path_of(name).display().to_string(),
            existing: "what is not this volume's, and is left as it is".to_owned(),
            wanted: "the directory of a new volume".to_owned(),
        }
    }

    /// Undoes what was done for a volume that is not whole. It has none of anybody's data: no call reported it as done.
    pub fn discard(&self, record: &VolumeRecord) -> Result<()> {
        let local = record.id.local();
        {
            let _places = lock(&self.places);
            let shown = self.root.path_of(&record.directory);
            let (_, name) = parted(&record.directory)?;
            let seen = match self.seen(&record.directory) {
                // Someone's link is on the way: then it never came so far.
                Err(Error::Unverified { .. }) => None,
                seen => seen?,
            };
            match seen {
                Some((parent, _, number)) if record.inode == Some(number) => {
                    self.throw_away(&parent, name, &format!("{local}~{}", record.created))?;
                }
                Some((parent, stat, _)) if is_claim(&stat) => {
                    step("remove claim", &shown.display(), || parent.remove_directory(name).or_else(not_empty))
                        .map_err(|error| self.failure(error))?;
                }
                _ => {}
            }
            self.remove_parents(&record.directory, record.found_parents)?;
        }
        self.discard_draft(local)?;
        self.clear_quota(record);
        self.remove_record(local)
    }

    /// Throws away the draft of a volume, and what belongs to its copy.
    pub fn discard_draft(&self, local: &str) -> Result<()> {
        for name in [local.to_owned(), links_name(local)] {
            if self.drafts.stat(&name).map_err(|error| self.failure(error))?.is_some() {
                self.throw_away(&self.drafts, name.as_ref(), &format!("{name}~{}", record::now()))?;
            }
        }
        Ok(())
    }

    /// As [`Ready::number`].
    pub fn draft_number(&self, local: &str) -> Result<Option<u64>> {
        let numbered = numbered(&self.drafts, local.as_ref()).map_err(|error| self.failure(error))?;
        Ok(numbered.map(|(_, number)| number))
    }

    /// Renames something into the trash, durably; the rest is the sweeper's.
    pub fn throw_away(&self, from: &OpenDir, name: &std::ffi::OsStr, as_what: &str) -> Result<()> {
        let shown = from.path_of(name);
        step("move to trash", &shown.display(), || {
            match from.rename(name, &self.trash, as_what) {
                Err(error) if error.is_missing() && from.stat(name)?.is_none() => {}
                moved => moved?,
            }
            from.sync()
        })
        .map_err(|error| self.failure(error))?;
        self.sweeper.wake();
        Ok(())
    }

    /// Takes a deleted volume's data out of its place, as its parameters say, and then its record. May be repeated after a kill
    /// anywhere.
    pub fn finish_deletion(&self, record: &VolumeRecord, at: u64) -> Result<()> {
        let local = record.id.local();
        let way = record.on_delete()?;
        {
            let _places = lock(&self.places);
            let (_, name) = parted(&record.directory)?;
            // Another directory in its place is not what was deleted.
            if let Some((parent, ..)) = self.seen(&record.directory)?.filter(|(.., number)| record.inode == Some(*number)) {
                match way {
                    OnDelete::Delete | OnDelete::Scrub => self.throw_away(&parent, name, &format!("{local}~{at}"))?,
                    OnDelete::Retain => {}
                    OnDelete::Archive => self.move_to_archive(&parent, name, &archive_name(local, at))?,
                }
            }
            if way != OnDelete::Retain {
                self.remove_parents(&record.directory, 0)?;
            }
        }
        self.clear_quota(record);
        if way == OnDelete::Archive {
            // By rename: a full base has no room for another.
            let (from, name) = (record_name(local), format!("{}.json", archive_name(local, at)));
            step("archive metadata", &self.archive.path_of(&name).display(), || {
                self.volumes.rename(&from, &self.archive, &name)?;
                self.archive.sync()
            })
            .map_err(|error| self.failure(error))?;
        }
        self.remove_record(local)?;
        self.keep_spare();
        Ok(())
    }

    fn move_to_archive(&self, parent: &OpenDir, name: &std::ffi::OsStr, new: &str) -> Result<()> {
        step("move to archive", &parent.path_of(name).display(), || {
            match parent.rename(name, &self.archive, new) {
                Err(error) if error.is_missing() && parent.stat(name)?.is_none() => {}
                moved => moved?,
            }
            parent.sync()?;
            self.archive.sync()
        })
        .map_err(|error| self.failure(error))
    }

    /// How many of the directories on the way to a volume are there already.
    pub fn found_parents(&self, directory: &Path) -> Result<usize> {
        let mut found = 0;
        for parent in subdir::parents(directory) {
            match self.at(parent) {
                Ok(Some(_)) | Err(Error::Unverified { .. }) => found += 1,
                Ok(None) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Removes the directories on the way to where a volume was, but for the topmost `keep`: from the last up, until one is not empty.
    fn remove_parents(&self, directory: &Path, keep: usize) -> Result<()> {
        for parent in subdir::parents(directory).into_iter().skip(keep).rev() {
            let (above, name) = parted(parent)?;
            let above = match self.at(above) {
                Err(Error::Unverified { .. }) => break,
                above => above?,
            };
            let Some(above) = above else { continue };
            let shown = above.path_of(name);
            let removed = step("remove parent", &shown.display(), || above.remove_directory(name));
            match removed {
                Ok(_) => {}
                Err(error) if matches!(error.errno(), Some(libc::ENOTEMPTY | libc::EEXIST | libc::ENOTDIR | libc::EBUSY)) => {
                    break;
                }
                Err(error) => return Err(self.failure(error)),
            }
        }
        Ok(())
    }

    /// The number of what lies in a volume's place, by which another one there is distinguished from it.
    ///
    /// # Errors
    /// `Unverified` where it is no directory.
    pub fn number(&self, directory: &Path) -> Result<Option<u64>> {
        match self.seen(directory)? {
            None => Ok(None),
            Some((_, stat, number)) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => Ok(Some(number)),
            Some(_) => Err(Error::Unverified {
                device: self.root.path_of(directory).display().to_string(),
                reason: "something else is where a volume's directory was; see what it is, and remove it by hand".to_owned(),
            }),
        }
    }
}

/// What is called `name`, with its [`subvolume::number`].
fn numbered(parent: &OpenDir, name: &std::ffi::OsStr) -> os::Result<Option<(Stat, u64)>> {
    let stat = parent.stat(name)?;
    stat.map(|stat| Ok((stat, subvolume::number(parent, name, &stat)?))).transpose()
}

/// An empty directory cannot be seen to be so by its attributes; but nobody works with one of mode 0.
fn is_claim(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_mode & 0o7777 == 0
}

fn not_empty(error: os::Error) -> os::Result<bool> {
    match error.errno() {
        Some(libc::ENOTEMPTY | libc::EEXIST) => Ok(false),
        _ => Err(error),
    }
}

/// A directory's parent (empty at the top) and its name.
fn parted(directory: &Path) -> Result<(&Path, &std::ffi::OsStr)> {
    match (directory.parent(), directory.file_name()) {
        (Some(parent), Some(name)) => Ok((parent, name)),
        _ => Err(Error::invalid("subDir", format!("{} is no directory below another one", directory.display()))),
    }
}

pub(super) fn record_name(local: &str) -> String {
    format!("{local}.json")
}

/// What is linked more than once, while a volume is copied. `~` is in no id.
pub(super) fn links_name(local: &str) -> String {
    format!("{local}~links")
}

/// By the second, as people read it.
fn archive_name(local: &str, at: u64) -> String {
    format!("{local}-{}", at / 1_000_000_000)
}

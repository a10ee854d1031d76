//! What this node has begun and not yet undone, on disk.
//!
//! `<state directory>/journal/<volume id>/stage.json`, and beside it one `target-<digest of the path>.json` per published
//! target. Written before the first side effect, removed after the last is undone. Each file is whole or not there.
//! A file that cannot be read is reported and kept aside as `.damaged`; nothing is guessed from it.
//!
//! No secrets: neither a request's secrets nor its publish_context are ever written here, nor the values of mount options
//! ([`RecordedFlags`]).

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::os::{self, durable};
use crate::volume::{Result, VolumeId};

pub use entries::{Access, Format, FrozenEntry, Phase, RecordedFlags, StageEntry, TargetEntry, VERSION};
pub use snapshot::{Found, look};

use files::{FROZEN, STAGE, encode, names, read, remove_empty, sweep_files, target_name};

mod entries;
mod files;
mod snapshot;

/// The journal's directory.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    /// Records of frozen mounts that no longer hold, but could not be removed: at the next start they would thaw what someone
    /// else holds still by then.
    stale: Mutex<Vec<String>>,
    counted: Mutex<Counted>,
}

/// What is in it, so that nobody need look to count it: as it was found at the start, and written and removed since.
#[derive(Debug, Default)]
struct Counted {
    stages: HashSet<VolumeId>,
    /// With the names of their files.
    targets: HashSet<(VolumeId, String)>,
}

impl Counted {
    fn note(&mut self, id: &VolumeId, name: &str, there: bool) {
        match (name == STAGE, there) {
            (true, true) => self.stages.insert(id.clone()),
            (true, false) => self.stages.remove(id),
            (false, true) => self.targets.insert((id.clone(), name.to_owned())),
            (false, false) => self.targets.remove(&(id.clone(), name.to_owned())),
        };
    }
}

impl Journal {
    /// Opens `<state>/journal`, making it if need be, for its owner only.
    pub fn open(state: &Path) -> Result<Journal> {
        let directory = state.join("journal");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|error| os::Error::io("make journal directory", &directory, error))?;
        Ok(Journal { directory, stale: Mutex::default(), counted: Mutex::default() })
    }

    /// The volume's stage.
    pub fn stage(&self, id: &VolumeId) -> Result<Option<StageEntry>> {
        let entry: Option<StageEntry> = read(&self.of(id), STAGE)?;
        self.belongs(id, entry, |entry| &entry.id)
    }

    /// Writes the volume's stage, durable on return.
    pub fn write_stage(&self, entry: &StageEntry) -> Result<()> {
        self.write(&entry.id, STAGE, entry)
    }

    /// As `write_stage`, before a stage is undone, which must not wait for a disk that is full or read-only: there the entry stays as it is.
    /// What it says is then looked for and not found, and the call that undoes it is repeated, also after a crash.
    pub fn write_unstaging(&self, entry: &StageEntry) {
        if let Err(error) = self.write_stage(entry) {
            let error = crate::volume::error::chain(&error);
            tracing::warn!(volume = %entry.id, %error, "unstage: that it begins cannot be written into the journal; it continues");
        }
    }

    /// Removes the volume's stage, and its directory if nothing else is in it.
    pub fn remove_stage(&self, id: &VolumeId) -> Result<()> {
        self.remove(id, STAGE)
    }

    /// One target of a volume.
    pub fn target(&self, id: &VolumeId, target: &Path) -> Result<Option<TargetEntry>> {
        let entry: Option<TargetEntry> = read(&self.of(id), &target_name(target))?;
        self.belongs(id, entry, |entry| &entry.id)
    }

    /// All targets of a volume.
    pub fn targets(&self, id: &VolumeId) -> Result<Vec<TargetEntry>> {
        let directory = self.of(id);
        let mut names: Vec<String> =
            names(&directory)?.into_iter().filter(|name| name.starts_with("target-") && name.ends_with(".json")).collect();
        names.sort();
        let mut targets = Vec::with_capacity(names.len());
        for name in names {
            let entry: Option<TargetEntry> = read(&directory, &name)?;
            targets.extend(self.belongs(id, entry, |entry| &entry.id)?);
        }
        Ok(targets)
    }

    /// Writes a target, durable on return.
    pub fn write_target(&self, entry: &TargetEntry) -> Result<()> {
        self.write(&entry.id, &target_name(&entry.target), entry)
    }

    /// Removes a target, and the volume's directory if nothing else is in it.
    pub fn remove_target(&self, id: &VolumeId, target: &Path) -> Result<()> {
        self.remove(id, &target_name(target))
    }

    /// How many stages and targets there are.
    pub fn counts(&self) -> (u64, u64) {
        let counted = self.counted();
        (counted.stages.len() as u64, counted.targets.len() as u64)
    }

    /// Counts what the start has found; from then on it counts by itself.
    pub fn found(&self, id: &VolumeId, stage: Option<&StageEntry>, targets: &[TargetEntry]) {
        let mut counted = self.counted();
        if stage.is_some() {
            counted.note(id, STAGE, true);
        }
        for target in targets {
            counted.note(id, &target_name(&target.target), true);
        }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is anything about the volume, be it damaged.
    pub fn knows(&self, id: &VolumeId) -> Result<bool> {
        Ok(!names(&self.of(id))?.is_empty())
    }

    /// All volumes that the journal knows. For the start and for long lists: it costs as much as there are.
    pub fn volumes(&self) -> Result<Vec<VolumeId>> {
        Ok(names(&self.directory)?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Removes what killed writers left: half-written files, and directories in which there is nothing. Only for the start, when
    /// nobody writes.
    pub fn sweep(&self) -> Result<()> {
        sweep_files(&self.directory)?;
        for id in self.volumes()? {
            let directory = self.of(&id);
            sweep_files(&directory)?;
            if names(&directory)?.is_empty() {
                os::step::step("remove leftover", &directory.display(), || remove_empty(&directory))?;
            }
        }
        Ok(())
    }

    /// Records mounts that are about to be frozen; answers the record's name.
    pub fn write_frozen(&self, number: u64, entry: &FrozenEntry) -> Result<String> {
        let name = format!("{FROZEN}{}-{number}.json", std::process::id());
        let content = encode(entry)?;
        let written = os::step::step("write journal", &name, || durable::write(&self.directory, &name, &content));
        written.inspect_err(|_: &os::Error| self.stale().push(name.clone()))?;
        Ok(name)
    }

    /// Forgets a record of frozen mounts.
    pub fn remove_frozen(&self, name: &str) -> Result<()> {
        let removed = os::step::step("remove journal", &name, || durable::remove(&self.directory, name));
        Ok(removed.inspect_err(|_: &os::Error| self.stale().push(name.to_owned()))?)
    }

    /// Forgets those that could not be forgotten before.
    pub fn remove_stale(&self) -> Result<()> {
        let stale = std::mem::take(&mut *self.stale());
        // One that still cannot be removed is kept in mind again.
        let failed = stale.iter().filter_map(|name| self.remove_frozen(name).err()).last();
        failed.map_or(Ok(()), |error| Err(error.leaving("what an earlier snapshot noted in the node's journal".to_owned())))
    }

    fn stale(&self) -> MutexGuard<'_, Vec<String>> {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a file that was kept aside, and the volume's directory if nothing else is in it.
    pub fn remove_damaged(&self, id: &VolumeId, name: &str) -> Result<()> {
        self.remove(id, name)
    }

    /// What was frozen when an earlier process ended.
    pub fn frozen(&self) -> Result<Vec<(String, FrozenEntry)>> {
        let mut found = Vec::new();
        for name in names(&self.directory)? {
            if name.starts_with(FROZEN) && name.ends_with(".json") {
                found.extend(read(&self.directory, &name)?.map(|entry| (name, entry)));
            }
        }
        Ok(found)
    }

    fn of(&self, id: &VolumeId) -> PathBuf {
        self.directory.join(id.to_string())
    }

    fn write<T: Serialize>(&self, id: &VolumeId, name: &str, entry: &T) -> Result<()> {
        let directory = self.of(id);
        let content = encode(entry)?;
        os::step::step("write journal", &format_args!("{}/{name}", directory.display()), || {
            match fs::DirBuilder::new().mode(0o700).create(&directory) {
                Ok(()) => durable::sync_dir(&self.directory)?,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(os::Error::io("make journal directory", &directory, error)),
            }
            durable::write(&directory, name, &content)
        })?;
        self.counted().note(id, name, true);
        Ok(())
    }

    fn remove(&self, id: &VolumeId, name: &str) -> Result<()> {
        let directory = self.of(id);
        os::step::step("remove journal", &format_args!("{}/{name}", directory.display()), || {
            match durable::remove(&directory, name) {
                // The directory itself may be gone already.
                Err(error) if error.is_missing() => {}
                other => other?,
            }
            remove_empty(&directory)
        })?;
        self.counted().note(id, name, false);
        Ok(())
    }

    /// An entry that names another volume was put here by hand: nothing can be said of it.
    fn belongs<T>(&self, id: &VolumeId, entry: Option<T>, named: impl Fn(&T) -> &VolumeId) -> Result<Option<T>> {
        match entry {
            Some(entry) if named(&entry) != id => Err(os::Error::Unexpected {
                object: self.of(id).display().to_string(),
                reason: format!("the journal of volume {id} holds an entry of volume {}; move it away", named(&entry)),
            }
            .into()),
            other => Ok(other),
        }
    }
}

/// An entry as it would be written again; `None` where the bytes are none.
#[cfg(feature = "fuzzing")]
pub fn rewritten(kind: &str, content: &[u8]) -> Option<Vec<u8>> {
    fn again<T: Serialize + serde::de::DeserializeOwned>(content: &[u8]) -> Option<Vec<u8>> {
        match files::parse::<T>(content) {
            Ok(files::Parsed::Entry(entry)) => encode(&entry).ok(),
            _ => None,
        }
    }
    match kind {
        "stage" => again::<StageEntry>(content),
        "target" => again::<TargetEntry>(content),
        _ => again::<FrozenEntry>(content),
    }
}

#[cfg(test)]
mod tests;

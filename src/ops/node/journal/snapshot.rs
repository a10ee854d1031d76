//! The whole journal read beside a driver that runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::de::DeserializeOwned;

use crate::os::durable;
use crate::volume::{Result, VolumeId};

use super::entries::{FrozenEntry, StageEntry, TargetEntry};
use super::files::{FROZEN, LONGEST, Parsed, STAGE, names, other_version, parse, target_name};

/// What the journal has of one volume, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub id: VolumeId,
    pub directory: PathBuf,
    pub stage: Option<StageEntry>,
    /// When the stage's entry was written last: its phase is as old.
    pub written: Option<SystemTime>,
    pub targets: Vec<TargetEntry>,
    /// Files that cannot be read, kept aside already or not.
    pub damaged: Vec<PathBuf>,
    /// Files that say something which is not ours to read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
}

impl Found {
    /// Where its file system is mounted, if all is well. A directory of a network share is where it is published, and else the share's mount
    /// shows how full that is.
    pub fn mounted_at(&self) -> Option<&Path> {
        let stage = self.stage.as_ref()?;
        let Some(directory) = stage.network_directory() else { return Some(&stage.staging) };
        let target = self.targets.iter().find(|target| target.boot == stage.boot);
        Some(target.map_or(&directory.mount, |target| &target.target))
    }
}

/// The whole journal, as it was found.
#[derive(Clone, Debug, Default)]
pub struct JournalSnapshot {
    pub volumes: Vec<Found>,
    /// With the file's path.
    pub frozen: Vec<(PathBuf, FrozenEntry)>,
}

/// Reads the journal below a state directory without opening it: nothing is made, kept aside or swept, so that it can be done beside
/// a driver that runs. Costs as much as there are volumes. No journal is an empty one.
///
/// # Errors
/// Where a directory or file cannot be read.
pub fn look(state: &Path) -> Result<JournalSnapshot> {
    let directory = state.join("journal");
    let mut sight = JournalSnapshot::default();
    let mut list = names(&directory)?;
    list.sort();
    for name in list {
        if let Ok(id) = name.parse::<VolumeId>() {
            sight.volumes.extend(look_at(id, directory.join(&name))?);
        } else if name.starts_with(FROZEN) && name.ends_with(".json") {
            let path = directory.join(&name);
            if let Some(Ok(Parsed::Entry(entry))) = durable::read(&path, LONGEST)?.map(|content| parse(&content)) {
                sight.frozen.push((path, entry));
            }
        }
    }
    Ok(sight)
}

/// `None` where there is nothing of the volume.
fn look_at(id: VolumeId, directory: PathBuf) -> Result<Option<Found>> {
    let mut list = names(&directory)?;
    list.sort();
    let (stage, written) = (None, None);
    let mut found = Found { id, directory, stage, written, targets: Vec::new(), damaged: Vec::new(), unreadable: Vec::new() };
    for name in list {
        let path = found.directory.join(&name);
        if name.ends_with(".damaged") {
            found.damaged.push(path);
        } else if name == STAGE {
            found.written = fs::metadata(&path).and_then(|seen| seen.modified()).ok();
            found.stage = found.take(path, |entry: &StageEntry| &entry.id)?;
        } else if name.starts_with("target-") && name.ends_with(".json") {
            let target = found.take(path, |entry: &TargetEntry| &entry.id)?;
            found.targets.extend(target);
        }
    }
    let nothing = found.stage.is_none() && found.targets.is_empty() && found.damaged.is_empty() && found.unreadable.is_empty();
    Ok((!nothing).then_some(found))
}

impl Found {
    pub(super) fn take<T: DeserializeOwned>(&mut self, path: PathBuf, named: impl Fn(&T) -> &VolumeId) -> Result<Option<T>> {
        match durable::read(&path, LONGEST)?.map(|content| parse::<T>(&content)) {
            Some(Ok(Parsed::Entry(entry))) if named(&entry) == &self.id => return Ok(Some(entry)),
            Some(Ok(Parsed::Entry(entry))) => {
                self.unreadable.push((path, format!("it is an entry of volume {}; move it away", named(&entry))));
            }
            Some(Ok(Parsed::OtherVersion(version))) => {
                self.unreadable.push((path, other_version(version)));
            }
            Some(Err(_)) => self.damaged.push(path),
            None => {}
        }
        Ok(None)
    }

    /// All files of it, for anyone who takes it away by hand.
    pub fn files(&self) -> Vec<PathBuf> {
        let stage = self.stage.iter().map(|_| self.directory.join(STAGE));
        let targets = self.targets.iter().map(|target| self.directory.join(target_name(&target.target)));
        stage.chain(targets).chain(self.damaged.iter().cloned()).collect()
    }

    /// The file of a target.
    pub fn file_of(&self, target: &Path) -> PathBuf {
        self.directory.join(target_name(target))
    }
}

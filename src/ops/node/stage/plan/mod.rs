//! What to do, from what is wanted and what was seen. Pure: no I/O, so every case is a row of a table.
//!
//! A stage is planned in two rounds, since what is on a device shows only once it is connected.

use std::path::Path;

use crate::backend::Source;
use crate::volume::{Error, FsType, Result};

use super::super::errors::{access_word, stacked, taken};
use super::super::journal::{Access, Phase, StageEntry};
use super::super::observe::MountState;
use super::spec::{DesiredAccess, DesiredStage};

pub(super) mod filesystem;
pub(super) mod luks;
pub(super) mod proof;
mod remedy;

/// What there is before anything was done.
#[derive(Clone, Debug)]
pub struct StageObservation {
    pub entry: Option<StageEntry>,
    /// Whether the entry was written in this boot; only then mounts and device numbers in it mean anything.
    pub same_boot: bool,
    /// What the backend says now.
    pub connected: Option<Source>,
    /// What is mounted or shown of it: what is connected, or the mapping on it, where it is encrypted.
    pub used: Option<Source>,
    /// What is mounted at the staging path.
    pub staging: MountState,
}

/// The first round's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Unmount what an earlier stage left, at the staging path in its journal entry; no call reported it as done.
    ClearMounts,
    /// Disconnect what an earlier stage connected otherwise.
    Disconnect,
    /// Write the intent.
    Begin,
    Connect,
    /// The mount is there and right; only the journal of it was lost.
    Adopt,
}

/// The first round. Nothing to do means that it is staged already, exactly so.
///
/// # Errors
/// `Conflict` where it is staged otherwise; `InUse` where the staging path is taken.
pub fn start(wanted: &DesiredStage, seen: &StageObservation) -> Result<Vec<Start>> {
    if let MountState::Foreign(mount) = &seen.staging {
        return Err(taken(&wanted.staging, mount));
    }
    let Some(entry) = &seen.entry else { return start_without_journal(wanted, seen) };
    if entry.inline != wanted.inline {
        let kind = |inline: bool| if inline { "an ephemeral volume" } else { "a persistent volume" };
        return Err(conflict(wanted, kind(entry.inline), kind(wanted.inline)));
    }
    let mut steps = Vec::new();
    if entry.phase == Phase::Staged && seen.same_boot {
        compatible(wanted, entry)?;
        if let MountState::Stack(count) = seen.staging
            && entry.is_mounted_at_staging()
        {
            return Err(stacked(&wanted.staging, count));
        }
        let mounted = !entry.is_mounted_at_staging() || matches!(seen.staging, MountState::Ours(_));
        let connected = seen.connected.is_some() && seen.connected == entry.source && seen.used.is_some();
        if mounted && connected {
            return Ok(steps);
        }
        // A share is connected anew beside its targets, which are known by what is recorded of the stage: that stays until it has been.
        if entry.network_directory().is_some() {
            return Ok(vec![Start::Connect]);
        }
    }
    // Begun and never acknowledged, or half undone, or of another boot: start afresh.
    if seen.same_boot {
        steps.push(Start::ClearMounts);
    }
    // What an unstage left connected serves again: something may use it still, in another mount namespace.
    let otherwise = seen.connected.is_some() && entry.read_only != wanted.read_only;
    // What the journal names is no longer what the volume is (its image was replaced); nothing else will let it go.
    let stale = seen.same_boot && entry.source.is_some() && seen.connected != entry.source;
    if otherwise || stale {
        steps.push(Start::Disconnect);
    }
    steps.extend([Start::Begin, Start::Connect]);
    Ok(steps)
}

fn start_without_journal(wanted: &DesiredStage, seen: &StageObservation) -> Result<Vec<Start>> {
    match (&seen.staging, &wanted.access) {
        // What an earlier version mounted there is taken away.
        (_, DesiredAccess::Filesystem { .. }) if seen.used.as_ref().is_some_and(|used| used.network_directory().is_some()) => {
            Ok(vec![Start::Begin, Start::Connect])
        }
        (MountState::Stack(count), _) => Err(stacked(&wanted.staging, *count)),
        (MountState::Ours(mount), DesiredAccess::Filesystem { fstype, .. }) => {
            let directory = matches!(seen.used, Some(Source::Directory(_)));
            if let Some(fstype) = fstype.filter(|fstype| !directory && fstype.as_str() != mount.fstype) {
                return Err(conflict(wanted, &mount.fstype, fstype.as_str()));
            }
            if mount.is_read_only() != wanted.read_only {
                return Err(conflict(wanted, access_word(mount.is_read_only()), access_word(wanted.read_only)));
            }
            Ok(vec![Start::Begin, Start::Connect, Start::Adopt])
        }
        (MountState::Ours(mount), DesiredAccess::Block) => Err(conflict(wanted, &mount.fstype, "raw block")),
        _ => Ok(vec![Start::Begin, Start::Connect]),
    }
}

fn compatible(wanted: &DesiredStage, entry: &StageEntry) -> Result<()> {
    if entry.staging != wanted.staging {
        let at = |path: &Path| format!("staging path {}", path.display());
        return Err(conflict(wanted, &at(&entry.staging), &at(&wanted.staging)));
    }
    if entry.read_only != wanted.read_only {
        return Err(conflict(wanted, access_word(entry.read_only), access_word(wanted.read_only)));
    }
    match (&entry.access, &wanted.access) {
        (Access::Block, DesiredAccess::Block) => Ok(()),
        (Access::Block, DesiredAccess::Filesystem { .. }) => Err(conflict(wanted, "raw block", "a file system")),
        (Access::Filesystem { .. }, DesiredAccess::Block) => Err(conflict(wanted, "a file system", "raw block")),
        (Access::Filesystem { fstype, mount_flags }, DesiredAccess::Filesystem { fstype: asked, mount_flags: flags }) => {
            // What is mounted as it is (NFS) has a name that is none of ours; the CO's default does not apply to it.
            let ours = fstype.as_deref().and_then(|name| name.parse::<FsType>().ok());
            if let (Some(existing), Some(asked)) = (ours, asked)
                && existing != *asked
            {
                return Err(conflict(wanted, existing.as_str(), asked.as_str()));
            }
            if !mount_flags.are(flags) {
                let [existing, asked] =
                    [&mount_flags.names(), flags].map(|flags| format!("mount options {:?}", flags.to_string()));
                let other = if existing == asked { " with other values" } else { "" };
                return Err(conflict(wanted, &existing, &format!("{asked}{other}")));
            }
            Ok(())
        }
    }
}

fn conflict(wanted: &DesiredStage, existing: &str, asked: &str) -> Error {
    Error::Conflict { object: format!("stage of volume {}", wanted.id), existing: existing.to_owned(), wanted: asked.to_owned() }
}

#[cfg(test)]
mod tests;

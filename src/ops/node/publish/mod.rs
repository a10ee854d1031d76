//! NodePublishVolume.

use std::path::PathBuf;

use crate::backend::Source;
use crate::ops::check_capability;
use crate::ops::lock::Key;
use crate::os::mounts::Mounts;
use crate::volume::{AccessMode, AccessType, Capability, Error, Outcome, Result, VolumeId};

use super::context::Node;
use super::errors::{source_name, stacked, taken};
use super::journal::{Phase, StageEntry};
use super::mounts::mounted_target;
use super::observe::{self, MountState};
use super::requests::PublishRequest;
use super::sources::Sources;
use super::{resolve, stage};
use apply::{PublishRun, PublishUndo};
use plan::{DesiredTarget, PublishAction, TargetObservation};

mod apply;
mod plan;

pub(super) fn publish(node: &Node, request: &PublishRequest) -> Result<Outcome<()>> {
    let id = &resolve::volume_by_request(node, &request.handle, &request.volume_context)?;
    match attempt(node, request, id) {
        Err(Error::Stale { .. }) => {
            stage::restage_stale_share(node, id, &request.capability)?;
            attempt(node, request, id)
        }
        other => other,
    }
}

fn attempt(node: &Node, request: &PublishRequest, id: &VolumeId) -> Result<Outcome<()>> {
    let Some(staging) = &request.staging else {
        return Err(Error::invalid("staging_target_path", "it is needed: volumes are staged before they are published"));
    };
    let staging = resolve::path(node, staging)?;
    let target = resolve::path(node, &request.target)?;
    check_capability(resolve::backend(node, id)?.as_ref(), &request.capability)?;
    let staged = || node.journal.stage(id)?.ok_or_else(|| not_staged(id, "there is no stage of it in the journal".to_owned()));
    let key = || Key::Volume(id.clone());
    let shared = node.locks.shared(key(), "publish")?;
    let entry = staged()?;
    let (_volume, entry) = if decides_about_others(&request.capability, &entry) {
        // Released first, since no lock is upgraded; what was read may have changed since.
        drop(shared);
        (node.locks.exclusive(key(), "publish")?, staged()?)
    } else {
        (shared, entry)
    };
    let _target = node.locks.exclusive(Key::target(&target), "publish")?;
    if entry.staging != staging {
        let reason = format!("it is staged at {}, not at {}", entry.staging.display(), staging.display());
        return Err(not_staged(id, reason));
    }
    resolve::backend(node, id)?.connect().check_attachment(id, &request.publish_context)?;
    run(node, &entry, target, &request.capability, request.read_only)
}

/// Whether one target decides what another may be: then two publishes must not overlap. Each may have another access mode than the stage.
fn decides_about_others(capability: &Capability, stage: &StageEntry) -> bool {
    capability.access == AccessType::Block || [capability.mode, stage.mode].contains(&AccessMode::SingleNodeSingleWriter)
}

/// Publishes a staged volume. The caller holds the volume and the target.
pub(super) fn run(
    node: &Node,
    entry: &StageEntry,
    target: PathBuf,
    capability: &Capability,
    read_only: bool,
) -> Result<Outcome<()>> {
    let mounts = Mounts::now()?;
    let (source, sources) = staged_source(node, entry, &mounts)?;
    let mut job = PublishRun::new(node, entry, source, target, capability, read_only)?;
    let mounts = job.take_away_stale(mounts, &sources)?;
    let mut others = node.journal.targets(&entry.id)?;
    others.retain(|other| other.target != job.target.target);
    let mounted = others.iter().map(|other| mounted_target(&mounts, other, &sources)).collect::<Result<Vec<_>>>()?;
    let others = others.into_iter().zip(mounted).filter_map(|(other, mounted)| mounted.then_some(other));
    let seen = TargetObservation {
        at: observe::at(&mounts, &job.target.target, &sources)?,
        entry: node.journal.target(&entry.id, &job.target.target)?,
        others: others.collect(),
    };
    let alone = [entry.mode, capability.mode].contains(&AccessMode::SingleNodeSingleWriter);
    let wanted = DesiredTarget { target: job.target.target.clone(), read_only: job.target.read_only, alone };
    if job.target.block {
        plan::protection(&entry.id, &wanted, &seen.others)?;
    }
    let decision = plan::publish(&entry.id, &wanted, &seen)?;
    if decision == PublishAction::Mount {
        observe::nothing_inside(&mounts, &job.target.target)?;
        job.done.push(PublishUndo::Journal);
    }
    // The journal has it, but it is not there: an earlier publish did not come to its end or could not be rolled back, or the mount
    // was lost. Place and write protection are then as much ours as if they were made now.
    if decision == PublishAction::Mount && seen.entry.is_some() {
        job.done.push(PublishUndo::Place);
        let protected_by_target = job.target.block && !entry.read_only && seen.others.is_empty();
        job.done.extend(protected_by_target.then_some(PublishUndo::Protection));
    }
    match job.run(decision) {
        Ok(outcome) => Ok(outcome),
        Err(error) => Err(job.undo(error)),
    }
}

/// What is staged, seen to be so: a pod must never be given the node's own disk.
fn staged_source(node: &Node, entry: &StageEntry, mounts: &Mounts) -> Result<(Source, Vec<Source>)> {
    let id = &entry.id;
    if !node.same_boot(entry) {
        return Err(not_staged(id, "its stage is of before the node's last boot; stage it again".to_owned()));
    }
    if entry.phase != Phase::Staged {
        return Err(not_staged(id, "its stage did not come to its end, or is being undone; stage it again".to_owned()));
    }
    resolve::backend(node, id)?.connect().may_use(id)?;
    let sources = Sources::observe(node, id, Some(entry))?;
    let gone = || not_staged(id, "it is no longer connected; unstage it and stage it again".to_owned());
    let source = match sources.used(entry.encryption()?) {
        Some(source) => source,
        // It was unmounted; mounting it is all that is needed.
        None if entry.network_directory().is_some() => {
            return Err(Error::Stale { object: id.to_string(), reason: "its share is not mounted".to_owned() });
        }
        None => return Err(gone()),
    };
    if matches!(source, Source::Directory(_)) && entry.source.as_ref() != Some(&source) {
        return Err(Error::Stale { object: source_name(&source), reason: "its share was mounted anew".to_owned() });
    }
    if entry.is_mounted_at_staging() {
        let staging = entry.staging.display();
        match observe::at(mounts, &entry.staging, std::slice::from_ref(&source))? {
            MountState::Ours(_) => {}
            MountState::Nothing => return Err(not_staged(id, format!("nothing is mounted at {staging}; stage it again"))),
            MountState::Stack(count) => return Err(stacked(&entry.staging, count)),
            MountState::Foreign(mount) => return Err(taken(&entry.staging, &mount)),
        }
    }
    Ok((source, sources.all))
}

fn not_staged(id: &VolumeId, reason: String) -> Error {
    Error::NotStaged { volume: id.to_string(), reason }
}

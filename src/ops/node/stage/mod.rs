//! NodeStageVolume.

use std::collections::BTreeMap;

use crate::backend::Source;
use crate::ops::check_capability;
use crate::ops::lock::Key;
use crate::ops::parameters::{Parameters, READ_ONLY_KEY};
use crate::os::mounts::Mounts;
use crate::volume::{AccessType, Capability, Error, Outcome, Result, Secrets, VolumeId};

use super::context::Node;
use super::journal::StageEntry;
use super::mounts::{apply_group, unmount_all};
use super::observe::{self, MountState};
use super::requests::StageRequest;
use super::resolve;
use super::sources::Sources;
use apply::StageRun;
use plan::StageObservation;
use spec::{DesiredAccess, DesiredStage, StageSpec, group_of, wanted};

pub(super) mod apply;
mod filesystem;
mod interrupted;
mod luks;
mod plan;
pub(super) mod spec;
mod undo;

pub(super) fn stage(node: &Node, request: &StageRequest) -> Result<Outcome<()>> {
    let id = resolve::volume_by_request(node, &request.handle, &request.volume_context)?;
    let backend = resolve::backend(node, &id)?.as_ref();
    // No controller of this driver has seen it where nothing is attached, and the PersistentVolume may be written by hand.
    check_capability(backend, &request.capability)?;
    let staging = resolve::path(node, &request.staging)?;
    let _guard = node.locks.exclusive(Key::Volume(id.clone()), "stage")?;
    let wanted = wanted(&id, staging, &request.capability)?;
    let is_attached_read_only = request.publish_context.get(READ_ONLY_KEY).is_some_and(|text| text == "true");
    let order = StageSpec {
        backend,
        root: &node.kubelet,
        wanted: DesiredStage { read_only: wanted.read_only || is_attached_read_only, ..wanted },
        group: group_of(&request.capability),
        parameters: Parameters::from_context(backend, &request.volume_context)?,
        publish_context: &request.publish_context,
        secrets: &request.secrets,
    };
    run(node, &order)
}

/// Stages a volume again, whose share was mounted anew or must be: as the journal has it, and with the mount options of this
/// capability where they are the same. Without a secret or what came from the controller, since only a share can need it.
///
/// # Errors
/// `NotStaged` where the journal does not have the values of the mount options, and the capability has other ones.
pub(super) fn restage_stale_share(node: &Node, id: &VolumeId, capability: &Capability) -> Result<()> {
    let _guard = node.locks.exclusive(Key::Volume(id.clone()), "stage")?;
    let Some(entry) = node.journal.stage(id)? else { return Ok(()) };
    let staged = entry.mount_flags().cloned().unwrap_or_default();
    let asked = match &capability.access {
        AccessType::Filesystem { mount_flags, .. } if staged.are(mount_flags) => Some(mount_flags.clone()),
        _ => staged.without_values(),
    };
    let Some(mount_flags) = asked else {
        let reason =
            format!("its share is stale, and it was staged with other mount options ({}); stage it again", staged.names());
        return Err(Error::NotStaged { volume: id.to_string(), reason });
    };
    tracing::warn!(volume = %id, path = %entry.staging.display(), "its share is stale; staged anew");
    let (publish_context, secrets) = (BTreeMap::new(), Secrets::default());
    let order = StageSpec {
        backend: resolve::backend(node, id)?.as_ref(),
        root: node.root_of(&entry),
        wanted: DesiredStage {
            id: id.clone(),
            staging: entry.staging.clone(),
            access: DesiredAccess::Filesystem { fstype: None, mount_flags },
            mode: entry.mode,
            read_only: entry.read_only,
            inline: entry.inline,
        },
        group: None,
        parameters: entry.parameters()?,
        publish_context: &publish_context,
        secrets: &secrets,
    };
    run(node, &order).map(drop)
}

/// Looks, plans, runs. The caller holds the volume.
pub(super) fn run(node: &Node, order: &StageSpec<'_>) -> Result<Outcome<()>> {
    let entry = node.journal.stage(&order.wanted.id)?;
    let seen = look(node, order, entry)?;
    let steps = plan::start(&order.wanted, &seen)?;
    if steps.is_empty() {
        order.backend.connect().may_use(&order.wanted.id)?;
        order.backend.connect().check_attachment(&order.wanted.id, order.publish_context)?;
        if seen.staging != MountState::Nothing
            && let Some(entry) = seen.entry.filter(|entry| entry.network_directory().is_some())
            && let Err(error) = unmount_all(order.root, &entry.staging, &entry.shown())
        {
            tracing::warn!(volume = %entry.id, %error, "what an earlier version mounted at the staging path is still there");
        }
        let changed = match (order.group, &order.wanted.access, &seen.used) {
            (Some(gid), DesiredAccess::Filesystem { .. }, Some(source)) => {
                apply_group(order.root, &order.wanted.staging, source, gid, order.wanted.read_only)?
            }
            _ => false,
        };
        return Ok(if changed { Outcome::Changed(()) } else { Outcome::Unchanged(()) });
    }
    tracing::debug!(volume = %order.wanted.id, ?steps, "stage");
    let mut job = StageRun::new(node, order, seen.entry);
    match job.run(&steps) {
        Ok(()) => Ok(Outcome::Changed(())),
        Err(error) => Err(job.undo(error)),
    }
}

fn look(node: &Node, order: &StageSpec<'_>, entry: Option<StageEntry>) -> Result<StageObservation> {
    let mut sources = Sources::observe(node, &order.wanted.id, entry.as_ref())?;
    if let Some(Err(error)) = sources.connected.as_ref().map(|source| order.backend.connect().reach(source)) {
        match error {
            // As if it were gone: it is connected anew.
            Error::Stale { .. } => sources.connected = None,
            other => return Err(other),
        }
    }
    let mounts = Mounts::now()?;
    let staging = observe::at(&mounts, &order.wanted.staging, &sources.all)?;
    if staging == MountState::Nothing {
        observe::nothing_inside(&mounts, &order.wanted.staging)?;
    }
    // As if it were gone, too: it is connected anew, or said to be missing.
    if let Some(directory) = sources.connected.as_ref().and_then(Source::network_directory)
        && !observe::has_directory(directory)?
    {
        sources.connected = None;
    }
    let used = sources.used(order.parameters.node.encryption);
    let same_boot = entry.as_ref().is_some_and(|entry| node.same_boot(entry));
    Ok(StageObservation { entry, same_boot, connected: sources.connected, used, staging })
}

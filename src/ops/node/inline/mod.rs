//! Ephemeral inline volumes: made when they are published, deleted when they are unpublished.
//!
//! The journal entry is written before the volume is made and removed after it is deleted, so that a kill in between
//! leaves nothing that nobody knows of. They are staged in a directory of ours, `<state directory>/inline/<volume id>`.
//!
//! The journal alone is no evidence that a volume is ephemeral: it may be lost, or of an earlier version, and another node may have
//! the same storage. So the volume's name in its storage says that it is, and of which node and state directory ([`identity::mark`]), and its id
//! is a digest of that, in a space of its own ([`VolumeId::ephemeral`]). What is not so marked is neither used nor deleted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::backend::{Backend, Provision, VolumeSpec};
use crate::ops::lock::Key;
use crate::ops::parameters::{CONTEXT_KEY, Parameters};
use crate::os::mounts::Mounts;
use crate::os::step::step;
use crate::volume::parameters::KUBERNETES_PREFIX;
use crate::volume::{
    AccessType, Bytes, Capability, Error, FsType, Outcome, RawParameters, Result, TopologyRequirement, VolumeId,
};

use super::context::Node;
use super::errors::unexpected;
use super::journal::{Access, Phase, StageEntry, VERSION};
use super::mounts::mounted_target;
use super::requests::PublishRequest;
use super::sources::Sources;
use super::stage::spec::{self, DesiredAccess, StageSpec};
use super::{publish, resolve, stage, unpublish, unstage};

pub(super) mod identity;
const DEFAULT_SIZE: Bytes = Bytes::GIB;

/// What the pod's attributes ask for.
struct Recipe<'a> {
    backend: &'a dyn Backend,
    provision: &'a dyn Provision,
    spec: VolumeSpec,
    parameters: Parameters,
    capability: Capability,
}

pub(super) fn publish(node: &Node, request: &PublishRequest, name: &str) -> Result<Outcome<()>> {
    let target = resolve::path(node, &request.target)?;
    let journaled = identity::find(node, &request.handle)?;
    if journaled.is_none() {
        check(node, &request.volume_context)?;
    }
    let mut recipe = recipe(node, request, name)?;
    // One that an earlier version published stays under its id.
    if let Some(id) = journaled.filter(|id| id.backend() == recipe.backend.name()) {
        recipe.spec.id = id;
    }
    let id = recipe.spec.id.clone();
    let _volume = node.locks.exclusive(Key::Volume(id.clone()), "publish")?;
    let _target = node.locks.exclusive(Key::target(&target), "publish")?;
    let known = node.journal.stage(&id)?;
    if known.as_ref().is_some_and(|entry| !entry.inline) {
        return Err(Error::Conflict {
            object: format!("volume {id}"),
            existing: "a persistent volume".to_owned(),
            wanted: "an ephemeral volume".to_owned(),
        });
    }
    let whole = known.as_ref().is_some_and(|entry| entry.phase == Phase::Staged);
    match make(node, request, &recipe, known, target) {
        Ok(outcome) => Ok(outcome),
        // One that was published before stays; a first publish leaves nothing. Of one that is staged but nowhere mounted it is not
        // known which it is (before a reboot it may have been published): it stays, and is said to.
        Err(error) if whole && is_mounted(node, &id)? => Err(error),
        Err(error) if whole => Err(error.leaving(format!("ephemeral volume {id}"))),
        Err(error) => Err(undo(node, &id, error)),
    }
}

fn is_mounted(node: &Node, id: &VolumeId) -> Result<bool> {
    let sources = Sources::observe(node, id, node.journal.stage(id)?.as_ref())?;
    let mounts = Mounts::now()?;
    for target in node.journal.targets(id)? {
        if mounted_target(&mounts, &target, &sources.at_target(&mounts, Some(&target), &node.boot)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn make(
    node: &Node,
    request: &PublishRequest,
    recipe: &Recipe<'_>,
    known: Option<StageEntry>,
    target: PathBuf,
) -> Result<Outcome<()>> {
    let id = &recipe.spec.id;
    // Before anything of it is in the journal: what is another program's is not undone either.
    let is_there = is_there(node, recipe)?;
    let staging = directory(node, id)?;
    let mut wanted = spec::wanted(id, staging, &recipe.capability)?;
    wanted.inline = true;
    if known.is_none() {
        node.journal.write_stage(&begin(node, recipe, &wanted.access, &wanted.staging, wanted.read_only))?;
    }
    if !is_there {
        recipe.provision.create(&recipe.spec, node)?;
    }
    let order = StageSpec {
        backend: recipe.backend,
        root: &node.state,
        wanted,
        group: spec::group_of(&recipe.capability),
        parameters: recipe.parameters.clone(),
        publish_context: &request.publish_context,
        secrets: &request.secrets,
    };
    let staged = stage::run(node, &order)?;
    let entry = node.journal.stage(id)?.ok_or_else(|| unexpected(&order.wanted.staging, "its journal entry vanished"))?;
    let published = publish::run(node, &entry, target, &recipe.capability, request.read_only)?;
    Ok(match (staged, published) {
        (Outcome::Unchanged(()), Outcome::Unchanged(())) => Outcome::Unchanged(()),
        _ => Outcome::Changed(()),
    })
}

/// Whether the volume is there already: made by an earlier call, or by an earlier version.
///
/// # Errors
/// `Conflict` where another volume has its id; `NotFound` for an earlier version's that is gone.
fn is_there(node: &Node, recipe: &Recipe<'_>) -> Result<bool> {
    let id = &recipe.spec.id;
    match recipe.provision.find_for_create(id, &recipe.spec.parameters)? {
        Some(volume) if id.is_ephemeral() && !identity::owns(node, &volume)? => Err(Error::Conflict {
            object: format!("volume {id}"),
            existing: format!("in its storage as {:?}", volume.name),
            wanted: recipe.spec.name.clone(),
        }),
        Some(_) => Ok(true),
        None if id.is_ephemeral() => Ok(false),
        None => Err(Error::volume_not_found(id)),
    }
}

/// What the attributes of a new volume may not ask for. One that is there already is as it is.
///
/// # Errors
/// `Invalid` for `onDelete`, by which a pod's author could fill the storage with volumes that outlive the pod, and for what the operator
/// did not allow; `OutOfRange` for a size above the node's limit.
fn check(node: &Node, attributes: &BTreeMap<String, String>) -> Result<()> {
    if attributes.contains_key("onDelete") {
        let reason = "an ephemeral inline volume is deleted with its pod; leave onDelete out, or use a PersistentVolumeClaim";
        return Err(Error::invalid("volume_context.onDelete", reason));
    }
    let limits = node.inline_limits();
    let allowed = &limits.allowed_parameters;
    let not_allowed =
        |key: &&String| *key != CONTEXT_KEY && !key.starts_with(KUBERNETES_PREFIX) && !allowed.iter().any(|name| name == *key);
    if let Some(key) = attributes.keys().find(not_allowed) {
        let reason = format!(
            "parameter {key} is not allowed for an ephemeral inline volume (allowed: {}); leave it out, use a PersistentVolumeClaim, or \
             add it to allowInlineParameters in the driver's configuration",
            allowed.join(", ")
        );
        return Err(Error::invalid("volume_context", reason));
    }
    let most = limits.max_size;
    match size(attributes)? {
        size if size > most => Err(Error::OutOfRange {
            field: "volume_context.size",
            reason: format!(
                "{size} is more than the {most} that an ephemeral inline volume may have here; ask for less, use a \
                 PersistentVolumeClaim, or raise inlineMaxSize in the driver's configuration"
            ),
        }),
        _ => Ok(()),
    }
}

fn size(attributes: &BTreeMap<String, String>) -> Result<Bytes> {
    attributes.get("size").map_or(Ok(DEFAULT_SIZE), |text| text.parse())
}

fn recipe<'a>(node: &'a Node, request: &PublishRequest, name: &str) -> Result<Recipe<'a>> {
    let attributes = request.volume_context.iter().filter(|(key, _)| *key != CONTEXT_KEY);
    let mut raw = RawParameters::new(attributes.map(|(key, value)| (key.clone(), value.clone())));
    let backend = node.registry.choose(raw.take("backend").as_deref())?.as_ref();
    let provision = backend.provision().ok_or_else(|| Error::Unsupported {
        what: "an ephemeral inline volume".to_owned(),
        reason: format!("backend {} makes no volumes; name another by the attribute `backend`", backend.name()),
    })?;
    let mut capability = request.capability.clone();
    let asked = raw.take("fsType").map(|text| text.parse::<FsType>()).transpose()?;
    match &mut capability.access {
        AccessType::Filesystem { fstype, .. } => *fstype = fstype.or(asked),
        AccessType::Block => {
            let reason = "an ephemeral inline volume is a file system".to_owned();
            return Err(Error::Unsupported { what: "raw block".to_owned(), reason });
        }
    }
    backend.check_capability(&capability)?;
    let size = size(&request.volume_context)?;
    raw.take("size");
    let parameters = Parameters::for_backend(backend, raw)?;
    let least = parameters.least(backend, std::slice::from_ref(&capability));
    if size < least {
        let reason = format!("{size} is below the least possible size; ask for at least {least}");
        return Err(Error::OutOfRange { field: "volume_context.size", reason });
    }
    let mark = identity::mark(node, name)?;
    let spec = VolumeSpec {
        id: VolumeId::ephemeral(backend.name(), &mark),
        name: mark,
        capacity: size.round_up(provision.unit()),
        limit: None,
        source: None,
        parameters: parameters.to_json(),
        several_nodes: false,
        mutable: RawParameters::default(),
        topology: TopologyRequirement::default(),
    };
    Ok(Recipe { backend, provision, spec, parameters, capability })
}

fn begin(node: &Node, recipe: &Recipe<'_>, access: &DesiredAccess, staging: &Path, read_only: bool) -> StageEntry {
    StageEntry {
        version: VERSION,
        id: recipe.spec.id.clone(),
        phase: Phase::Staging,
        source: None,
        mapping: None,
        access: match access {
            DesiredAccess::Block => Access::Block,
            DesiredAccess::Filesystem { mount_flags, .. } => Access::Filesystem { fstype: None, mount_flags: mount_flags.into() },
        },
        mode: recipe.capability.mode,
        staging: staging.to_owned(),
        read_only,
        format: None,
        growth: None,
        inline: true,
        boot: node.boot.clone(),
        parameters: recipe.spec.parameters.clone(),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    }
}

/// Where it is staged. The parent directory is made here; the volume's own is the stage's.
fn directory(node: &Node, id: &VolumeId) -> Result<PathBuf> {
    let parent = node.state.path().join("inline");
    step("make directory", &parent.display(), || node.state.make_dir(&parent, 0o700))?;
    Ok(parent.join(id.to_string()))
}

fn undo(node: &Node, id: &VolumeId, error: Error) -> Error {
    let attempt = || match node.journal.stage(id)? {
        Some(entry) if entry.inline => {
            unstage::finish(node, entry)?;
            delete(node, id)
        }
        _ => Ok(()),
    };
    match attempt() {
        Ok(()) => error.rolled_back(),
        Err(left) => error.leaving(left.to_string()),
    }
}

pub(super) fn unpublish(node: &Node, id: &VolumeId, target: &Path) -> Result<Outcome<()>> {
    let target = resolve::path(node, target)?;
    let _volume = node.locks.exclusive(Key::Volume(id.clone()), "unpublish")?;
    let _target = node.locks.exclusive(Key::target(&target), "unpublish")?;
    let entry = node.journal.stage(id)?;
    unpublish::run(node, id, entry.as_ref(), &target)?;
    let Some(entry) = entry.filter(|entry| entry.inline) else { return Ok(Outcome::Changed(())) };
    if let Some(other) = node.journal.targets(id)?.first() {
        tracing::warn!(volume = %id, path = %other.target.display(), "an inline volume is still published elsewhere; kept");
        return Ok(Outcome::Changed(()));
    }
    unstage::finish(node, entry)?;
    delete(node, id)?;
    Ok(Outcome::Changed(()))
}

/// Deletes an unstaged inline volume if its storage says that it is one of ours, its directory, and last what the journal has of it.
pub(super) fn delete(node: &Node, id: &VolumeId) -> Result<()> {
    let backend = resolve::backend(node, id)?;
    if let Some(provision) = backend.provision() {
        match provision.find(id)? {
            Some(volume) if !identity::owns(node, &volume)? => tracing::error!(
                volume = %id, name = volume.name,
                "not deleted: its storage does not say that it is an ephemeral volume of this node; if no PersistentVolume names it, \
                 delete it with `longshore call delete-volume`"
            ),
            // Of a volume that is not whole, only what has an id of ours can be a part of ours.
            None if !id.is_ephemeral() => {}
            _ => drop(provision.delete(id)?),
        }
    }
    let staging = directory(node, id)?;
    if !Mounts::now()?.at(&staging)?.is_empty() {
        return Err(unexpected(&staging, "something is still mounted there; unmount it"));
    }
    step("remove directory", &staging.display(), || node.state.remove(&staging))?;
    node.journal.remove_stage(id)
}

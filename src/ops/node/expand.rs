//! NodeExpandVolume.

use std::os::fd::AsFd;

use crate::backend::Source;
use crate::ops::lock::Key;
use crate::os::block::Device;
use crate::os::fs;
use crate::os::luks;
use crate::os::mounts::Mounts;
use crate::os::step::step;
use crate::volume::{Bytes, Error, FsType, Result, VolumeId};

use super::context::Node;
use super::errors::{source_name, unexpected};
use super::journal::{Access, Phase, StageEntry};
use super::observe::{self, MountState};
use super::requests::{ExpandRequest, Handle};
use super::sources::Sources;
use super::stats::{self, At, Place};
use super::{mapping, resolve};

pub(super) fn expand(node: &Node, request: &ExpandRequest) -> Result<Bytes> {
    let missing = || Error::NotFound { kind: "volume", id: request.handle.to_string() };
    let id = &resolve::volume_by_handle(node, &request.handle)?.ok_or_else(missing)?;
    let _guard = node.locks.exclusive(Key::Volume(id.clone()), "expand")?;
    let Place { entry, at, .. } = stats::place(node, &Handle::Id(id.clone()), &request.path)?;
    if at == At::Elsewhere {
        return Err(Error::NotFound { kind: "volume", id: format!("{id} at {}", request.path.display()) });
    }
    if entry.phase != Phase::Staged || !node.same_boot(&entry) {
        return Err(not_staged(id, "its stage is not whole, or of before the last boot; stage it again"));
    }
    let block = entry.access == Access::Block;
    if request.block.is_some_and(|asked| asked != block) {
        let kind = |block: bool| if block { "raw block" } else { "a file system" }.to_owned();
        return Err(Error::Conflict { object: format!("stage of volume {id}"), existing: kind(block), wanted: kind(!block) });
    }
    if entry.read_only {
        let by = "it is staged read-only, so that its file system cannot grow; stage it for writing".to_owned();
        return Err(Error::InUse { object: format!("volume {id}"), by });
    }
    let connect = resolve::backend(node, id)?.connect();
    let gone = || not_staged(id, "it is no longer connected; unstage it and stage it again");
    let sources = Sources::observe(node, id, Some(&entry))?;
    let used = sources.used(entry.encryption()?).ok_or_else(gone)?;
    let source = sources.connected.ok_or_else(gone)?;
    if let Source::Directory(_) = source {
        // A directory is as large as its server lets it become; the node has nothing to do.
        return Ok(request.required.unwrap_or_default());
    }
    let size = step("refresh", &source_name(&source), || connect.refresh(id, &source))?;
    if let Some(required) = request.required.filter(|required| size < *required) {
        let reason = format!("device {} has {size}, less than {required}; expand the volume first", source_name(&source));
        return Err(Error::OutOfRange { field: "capacity_range.required_bytes", reason });
    }
    if used != source {
        let name = mapping::name_of(node, id);
        step("grow mapping", &name, || luks::grow(&name))?;
    }
    if let (Access::Filesystem { fstype: Some(fstype), .. }, Source::Device(_)) = (&entry.access, &used) {
        grow(node, &entry, fstype, &used)?;
    }
    Ok(size)
}

/// Grows the mounted file system, by its staging mount.
fn grow(node: &Node, entry: &StageEntry, fstype: &str, source: &Source) -> Result<()> {
    let Source::Device(device) = source else { return Ok(()) };
    let fstype: FsType = fstype.parse()?;
    match observe::at(&Mounts::now()?, &entry.staging, std::slice::from_ref(source))? {
        MountState::Ours(_) => {}
        _ => return Err(not_staged(&entry.id, "its file system is not mounted at the staging path; stage it again")),
    }
    let open = Device::open(&device.path, false)?;
    if open.number() != device.number {
        return Err(unexpected(&device.path, format!("it is no longer the device of volume {}", entry.id)));
    }
    // Nothing is begun for a repeat.
    if fs::mark::fills(fs::size_on_device(&open, fstype)?, open.size()?) {
        return Ok(());
    }
    let mount = observe::open(node.root_of(entry), &entry.staging, source)?;
    Ok(step("grow", &device.path.display(), || fs::grow_mounted(&open, fstype, mount.as_fd()))?)
}

fn not_staged(id: &VolumeId, reason: &str) -> Error {
    Error::NotStaged { volume: id.to_string(), reason: reason.to_owned() }
}

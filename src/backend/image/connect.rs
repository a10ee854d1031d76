//! An image becomes a loop device of this node, known by the image's device and inode, never by its name.

use std::fs::File;
use std::path::Path;

use crate::backend::{BlockDevice, Connect, ConnectRequest, Directory, Source};
use crate::os::block::Device;
use crate::os::loopdev::{self, Loop};
use crate::os::step::step;
use crate::volume::{Bytes, Error, Outcome, Result, VolumeId};

use super::export::check_not_exported;
use super::files::{self, Access};
use super::inspect;
use super::meta::VolumeMeta;
use super::pool::Kind;
use super::{ImageBackend, Located};

/// Device and inode of an image.
type Inode = (u64, u64);

impl Connect for ImageBackend {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        let id = request.id;
        let Located { ready, seen, .. } = self.locate::<VolumeMeta>(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
        let (_, image) = seen.whole()?;
        if let Some(device) = bound(id, image.inode)? {
            return Ok(Outcome::Unchanged(source(&device)));
        }
        // Two caches of one file lose data.
        check_not_exported(&ready, id)?;
        let read_only = ready.room()?.read_only;
        let file = ready.open_image(Kind::Volume, id.local(), if read_only { Access::Read } else { Access::Write })?;
        let opened = files::look_at(&file, &ready.place(Kind::Volume, id.local()))?;
        let device = step("attach loop device", id, || loopdev::attach(&file, &id.to_string(), read_only))?;
        if device.backing == opened.inode {
            return Ok(Outcome::Changed(source(&device)));
        }
        let failure = Error::Unproven {
            device: device.path.display().to_string(),
            reason: format!("it shows {}, not the image of {id} ({})", identity(device.backing), identity(opened.inode)),
        };
        match step("detach loop device", id, || loopdev::detach(&device.path, device.backing)) {
            Ok(()) => Err(failure),
            Err(error) => Err(failure.but_left(error.to_string())),
        }
    }

    fn connected(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>> {
        match self.inode(id) {
            Ok(Some(inode)) => {
                if let Some(device) = confirm(hint, inode)? {
                    return Ok(Some(source(&device)));
                }
                Ok(bound(id, inode)?.as_ref().map(source))
            }
            Ok(None) => Ok(self.orphan(hint)?.as_ref().map(source)),
            Err(away) => self.orphan(hint)?.as_ref().map(source).map_or(Err(away), |found| Ok(Some(found))),
        }
    }

    fn is_still(&self, source: &Source) -> Result<bool> {
        let Source::Device(told) = source else { return Ok(false) };
        Ok(status(&told.path)?.is_some_and(|device| identity(device.backing) == told.identity))
    }

    fn disconnect(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Outcome<()>> {
        let devices = match self.inode(id) {
            Ok(Some(inode)) => {
                let mut devices = loopdev::find(inode)?;
                // The image may have been replaced by another since: then the device shows what is no file of the pool's any more.
                if confirm(hint, inode)?.is_none() {
                    devices.extend(self.orphan(hint)?);
                }
                devices
            }
            Ok(None) => self.orphan(hint)?.into_iter().collect(),
            // Without its pool the image can't be looked at, but its device can still be let go.
            Err(away) => vec![self.orphan(hint)?.ok_or(away)?],
        };
        for device in &devices {
            step("detach loop device", &device.path.display(), || loopdev::detach(&device.path, device.backing))?;
        }
        Ok(if devices.is_empty() { Outcome::Unchanged(()) } else { Outcome::Changed(()) })
    }

    fn refresh(&self, id: &VolumeId, source: &Source) -> Result<Bytes> {
        let inode = self.inode(id)?.ok_or_else(|| Error::volume_not_found(id))?;
        let device = confirm(Some(source), inode)?.ok_or_else(|| not_this(id, path_of(source)))?;
        let size = step("refresh loop device", &device.path.display(), || loopdev::refresh(&device.path))?;
        Ok(Bytes(size))
    }

    fn beneath(&self, id: &VolumeId, device: &Device) -> Result<Option<File>> {
        let Located { ready, seen, .. } = self.locate::<VolumeMeta>(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
        seen.whole()?;
        let file = ready.open_image(Kind::Volume, id.local(), Access::Read)?;
        let image = files::look_at(&file, &ready.place(Kind::Volume, id.local()))?;
        if loopdev::backing_of(device)? != Some(image.inode) {
            return Err(not_this(id, device.path()));
        }
        // What someone wrote through the device may still be in its own cache.
        device.flush()?;
        Ok(Some(file))
    }

    fn used(&self, id: &VolumeId) -> Result<Option<Bytes>> {
        let found = self.search(|ready| seen_image(ready, id))?;
        Ok(found.map(|(_, _, image)| Bytes(image.allocated)))
    }
}

impl ImageBackend {
    /// The image's identity; `None` where there is no image.
    fn inode(&self, id: &VolumeId) -> Result<Option<Inode>> {
        let found = self.search(|ready| seen_image(ready, id))?;
        Ok(found.map(|(_, _, image)| image.inode))
    }

    /// The device that was this volume's when it still had an image that we can see: it must show what it showed then,
    /// and that must be no other volume's image (an inode number is used again once its file is gone).
    fn orphan(&self, hint: Option<&Source>) -> Result<Option<Loop>> {
        let Some(Source::Device(told)) = hint else { return Ok(None) };
        let Some(device) = status(&told.path)? else { return Ok(None) };
        if identity(device.backing) != told.identity || self.owns(device.backing)? {
            return Ok(None);
        }
        Ok(Some(device))
    }

    /// Whether a volume in a pool that can be seen has this image. Walks over all of them; for what happens rarely.
    fn owns(&self, inode: Inode) -> Result<bool> {
        for ready in self.pools.iter().filter_map(|pool| pool.ready().ok()) {
            for local in inspect::volume_names(&ready)? {
                if ready.look_at_image(Kind::Volume, &local)?.is_some_and(|image| image.inode == inode) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

fn seen_image(ready: &super::Ready, id: &VolumeId) -> Result<Option<files::Seen>> {
    if !ready.has(Kind::Volume, id.local())? {
        return Ok(None);
    }
    ready.look_at_image(Kind::Volume, id.local()).map_err(|error| ready.down(error.to_string()))
}

/// The device of a hint, if it shows this image now.
fn confirm(hint: Option<&Source>, inode: Inode) -> Result<Option<Loop>> {
    let Some(Source::Device(told)) = hint else { return Ok(None) };
    Ok(status(&told.path)?.filter(|device| device.backing == inode))
}

/// A device that is no longer there shows nothing.
pub(super) fn status(path: &Path) -> Result<Option<Loop>> {
    match loopdev::status(path) {
        Err(error) if error.is_missing() => Ok(None),
        other => Ok(other?),
    }
}

/// The device that shows this image, found by a walk. There should be one; of several the first serves, and all are let go
/// together.
fn bound(id: &VolumeId, inode: Inode) -> Result<Option<Loop>> {
    let mut devices = loopdev::find(inode)?;
    if devices.len() > 1 {
        let paths: Vec<_> = devices.iter().map(|device| device.path.display().to_string()).collect();
        tracing::warn!(volume = %id, devices = paths.join(" "), "several loop devices show one image; the first is used");
    }
    devices.sort_by_key(|device| device.number);
    Ok(devices.into_iter().next())
}

pub(super) fn identity(inode: Inode) -> String {
    format!("{}:{}", inode.0, inode.1)
}

pub(super) fn source(device: &Loop) -> Source {
    Source::Device(BlockDevice { path: device.path.clone(), number: device.number, identity: identity(device.backing) })
}

fn path_of(source: &Source) -> &Path {
    match source {
        Source::Device(device) => &device.path,
        Source::Filesystem { source, .. } | Source::Directory(Directory { source, .. }) => Path::new(source),
    }
}

fn not_this(id: &VolumeId, device: &Path) -> Error {
    let reason = format!("it does not show the image of {id}; nothing was done to it. Unstage the volume and stage it again");
    Error::Unproven { device: device.display().to_string(), reason }
}

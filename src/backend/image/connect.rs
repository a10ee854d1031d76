//! An image becomes a loop device of this node, known by the image's device and inode, never by its name. What is remembered of it
//! from boot to boot is named by its pool and volume.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::{BlockDevice, Connect, ConnectRequest, Directory, Source};
use crate::os;
use crate::os::block::Device;
use crate::os::loopdev::{self, Loop};
use crate::os::step::step;
use crate::volume::{Bytes, Error, Outcome, Result, VolumeId};

use super::export::check_not_exported;
use super::files::{self, Access, IMAGE};
use super::layout::Kind;
use super::lease::Acquired;
use super::meta::VolumeMeta;
use super::ready::Ready;
use super::scan;
use super::{ImageBackend, Located};

/// Device and inode of an image.
pub(super) type Inode = (u64, u64);

impl Connect for ImageBackend {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        let id = request.id;
        let Located { ready, seen, .. } = self.locate::<VolumeMeta>(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
        let (meta, image) = seen.whole()?;
        let acquired = if self.shared { Some(self.take_lease(&ready, request, image.inode)?) } else { None };
        let named = |inode| match request.earlier {
            // As an older version named it: what it has begun continues.
            Some(Source::Device(reported)) if reported.identity == numbers(inode) => numbers(inode),
            _ => identity(&ready, &meta, inode),
        };
        // Of several readers, each has a device of its own.
        let new_reader = request.read_only && acquired == Some(Acquired::Now);
        let there = match confirm(id, request.earlier, image.inode)? {
            None if !new_reader => bound(&ready, id, image.inode)?,
            confirmed => confirmed,
        };
        if let Some(device) = there {
            return Ok(Outcome::Unchanged(source(&device, named(image.inode))));
        }
        // Two caches of one file lose data.
        check_not_exported(&ready, id)?;
        // A journal that is replayed is a write, and other nodes may read.
        let read_only = ready.room()?.read_only || (self.shared && request.read_only);
        let file = ready.open_image(Kind::Volume, id.local(), if read_only { Access::Read } else { Access::Write })?;
        let opened = files::look_at(&file, &ready.place(Kind::Volume, id.local()))?;
        let device = step("attach loop device", id, || loopdev::attach(&file, &id.to_string(), read_only))?;
        if device.backing == opened.inode {
            return Ok(Outcome::Changed(source(&device, named(opened.inode))));
        }
        let failure = Error::Unverified {
            device: device.path.display().to_string(),
            reason: format!("it shows {}, not the image of {id} ({})", numbers(device.backing), numbers(opened.inode)),
        };
        match step("detach loop device", id, || loopdev::detach(&device.path, device.backing)) {
            Ok(()) => Err(failure),
            Err(error) => Err(failure.leaving(error.to_string())),
        }
    }

    fn connected(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>> {
        match self.inode(id) {
            Ok(Some((ready, inode))) => {
                let found = match confirm(id, hint, inode)? {
                    Some(device) => Some(device),
                    // On a machine with several drivers it may be another's.
                    None if self.shared && !self.holds(&ready, id)? => None,
                    None => bound(&ready, id, inode)?,
                };
                Ok(found.map(|device| hinted_or_named(&device, hint, &ready, id)))
            }
            Ok(None) => Ok(self.orphan(hint)?.and(hint.cloned())),
            Err(away) => match self.orphan(hint)? {
                Some(_) => Ok(hint.cloned()),
                None if self.is_unnamed(id)? => Ok(None),
                None => Err(away),
            },
        }
    }

    fn is_same_device(&self, source: &Source) -> Result<bool> {
        let Source::Device(reported) = source else { return Ok(false) };
        Ok(status(&reported.path)?.is_some_and(|device| shows(reported, device.backing)))
    }

    fn may_use(&self, id: &VolumeId) -> Result<()> {
        if !self.shared {
            return Ok(());
        }
        let Located { ready, .. } = self.locate::<VolumeMeta>(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
        self.check_lease(&ready, id)
    }

    fn disconnect(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Outcome<()>> {
        let mut changed = false;
        let devices = match self.inode(id) {
            Ok(Some((ready, inode))) => match confirm(id, hint, inode)? {
                Some(device) if self.shared => vec![device],
                None if self.shared && !self.holds(&ready, id)? => self.orphan(hint)?.into_iter().collect(),
                confirmed => {
                    // The one that is known first: then it is mostly proven that there is no other.
                    if let Some(device) = &confirmed {
                        detach(device)?;
                    }
                    let mut devices = devices(&ready, id, inode)?;
                    // The image may have been replaced by another since: then the device shows what is no file of the pool's any
                    // more.
                    if confirmed.is_none() {
                        devices.extend(self.orphan(hint)?);
                    }
                    changed |= confirmed.is_some();
                    devices
                }
            },
            Ok(None) => self.orphan(hint)?.into_iter().collect(),
            // Without its pool the image can't be looked at, but its device can still be let go.
            Err(away) => match self.orphan(hint)? {
                Some(device) => vec![device],
                None if self.is_unnamed(id)? => Vec::new(),
                None => return Err(away),
            },
        };
        devices.iter().try_for_each(detach)?;
        changed |= !devices.is_empty();
        changed |= self.shared && self.release_lease(id)?;
        Ok(if changed { Outcome::Changed(()) } else { Outcome::Unchanged(()) })
    }

    fn refresh(&self, id: &VolumeId, source: &Source) -> Result<Bytes> {
        let (ready, inode) = self.inode(id)?.ok_or_else(|| Error::volume_not_found(id))?;
        if self.shared {
            // As in `scan::examine`: the loop device asks the kernel, not the server.
            drop(ready.open_image(Kind::Volume, id.local(), Access::Read)?);
        }
        let device = confirm(id, Some(source), inode)?.ok_or_else(|| not_this(id, path_of(source)))?;
        let size = step("refresh loop device", &device.path.display(), || loopdev::refresh(&device.path))?;
        Ok(Bytes(size))
    }

    fn backing_file(&self, id: &VolumeId, device: &Device) -> Result<Option<File>> {
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
        let found = self.search(Kind::Volume, id.local(), |ready| seen_image(ready, id))?;
        Ok(found.map(|(_, _, image)| Bytes(image.allocated)))
    }
}

impl ImageBackend {
    /// Whether no device shows a file that is called as the volume's image, so that it is not connected, though its pool is away: as after a
    /// boot without its disk. Of a shared pool there is its lease, too.
    fn is_unnamed(&self, id: &VolumeId) -> Result<bool> {
        Ok(!self.shared && loopdev::find_by_name(&image_name(id))?.is_empty())
    }

    /// The image's pool, device and inode; `None` where there is no image.
    fn inode(&self, id: &VolumeId) -> Result<Option<(Arc<Ready>, Inode)>> {
        let found = self.search(Kind::Volume, id.local(), |ready| seen_image(ready, id))?;
        Ok(found.map(|(_, ready, image)| (ready, image.inode)))
    }

    /// The device that was this volume's when it still had an image that we can see: it must show what it showed then,
    /// and that must be no other volume's image (an inode number is used again once its file is gone).
    fn orphan(&self, hint: Option<&Source>) -> Result<Option<Loop>> {
        let Some(Source::Device(reported)) = hint else { return Ok(None) };
        let Some(device) = status(&reported.path)? else { return Ok(None) };
        if !shows(reported, device.backing) || self.owns(device.backing)? {
            return Ok(None);
        }
        Ok(Some(device))
    }

    /// Whether a volume in a pool that can be seen has this image. Walks over all of them; for what happens rarely.
    fn owns(&self, inode: Inode) -> Result<bool> {
        for ready in self.pools.iter().filter_map(|pool| pool.ready().ok()) {
            for local in scan::volume_names(&ready)? {
                if ready.look_at_image(Kind::Volume, &local)?.is_some_and(|image| image.inode == inode) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

fn seen_image(ready: &Ready, id: &VolumeId) -> Result<Option<files::Seen>> {
    if !ready.has(Kind::Volume, id.local())? {
        return Ok(None);
    }
    ready.look_at_image(Kind::Volume, id.local()).map_err(|error| ready.down(error.to_string()))
}

/// The device of a hint, if it shows this image now. One that shows a file of another name is not asked, since its disk may hang; where it
/// is this image nevertheless, the walk over all devices finds it.
pub(super) fn confirm(id: &VolumeId, hint: Option<&Source>, inode: Inode) -> Result<Option<Loop>> {
    let Some(Source::Device(reported)) = hint else { return Ok(None) };
    if !loopdev::shows(&reported.path, &image_name(id))? {
        return Ok(None);
    }
    match loopdev::status(&reported.path) {
        Err(error) if error.is_missing() => Ok(None),
        device => Ok(device?.filter(|device| device.backing == inode)),
    }
}

/// The end of the path of a volume's image.
pub(super) fn image_name(id: &VolumeId) -> PathBuf {
    Path::new(Kind::Volume.directory()).join(id.local()).join(IMAGE)
}

/// A device that is no longer there shows nothing.
pub(super) fn status(path: &Path) -> Result<Option<Loop>> {
    match loopdev::status_in_time(path) {
        Err(error) if error.is_missing() => Ok(None),
        other => Ok(other?),
    }
}

pub(super) fn detach(device: &Loop) -> os::Result<()> {
    step("detach loop device", &device.path.display(), || loopdev::detach(&device.path, device.backing))
}

/// Whether it is proven that no loop device of this machine shows the image, at no cost that grows with their number.
pub(super) fn is_unbound(ready: &Ready, id: &VolumeId, inode: Inode) -> bool {
    let image = ready.open_image(Kind::Volume, id.local(), Access::Read);
    image.is_ok_and(|image| {
        let same = files::look_at(&image, Path::new(IMAGE)).is_ok_and(|seen| seen.inode == inode);
        same && loopdev::is_unbound(image)
    })
}

/// The devices that show this image.
pub(super) fn devices(ready: &Ready, id: &VolumeId, inode: Inode) -> Result<Vec<Loop>> {
    if is_unbound(ready, id, inode) { Ok(Vec::new()) } else { Ok(loopdev::find(inode, &image_name(id))?) }
}

/// The device that shows this image. There should be one; of several the first serves, and all are let go together.
fn bound(ready: &Ready, id: &VolumeId, inode: Inode) -> Result<Option<Loop>> {
    let mut devices = devices(ready, id, inode)?;
    if devices.len() > 1 {
        let paths: Vec<_> = devices.iter().map(|device| device.path.display().to_string()).collect();
        tracing::warn!(volume = %id, devices = paths.join(" "), "several loop devices show one image; the first is used");
    }
    devices.sort_by_key(|device| device.number);
    Ok(devices.into_iter().next())
}

/// What older versions gave as the identity of an image: of this boot only.
pub(super) fn numbers(inode: Inode) -> String {
    format!("{}:{}", inode.0, inode.1)
}

/// What makes a device this volume's: which image of which pool it shows, and, of this boot, the number of the pool's file system.
/// The inode number is a part, too: who puts another image in its place puts other data there.
pub(super) fn identity(ready: &Ready, meta: &VolumeMeta, inode: Inode) -> String {
    format!("{} {}@{}", meta.unique(&ready.id), inode.1, inode.0)
}

/// Whether a recorded device showed this image, whichever version recorded it.
pub(super) fn shows(reported: &BlockDevice, inode: Inode) -> bool {
    match reported.identity.split_once('@') {
        Some((lasting, device)) => {
            device == inode.0.to_string() && lasting.rsplit_once(' ').is_some_and(|(_, number)| number == inode.1.to_string())
        }
        None => reported.identity == numbers(inode),
    }
}

pub(super) fn source(device: &Loop, identity: String) -> Source {
    Source::Device(BlockDevice { path: device.path.clone(), number: device.number, identity })
}

/// A device of this volume, with its recorded identity, if it is that device: it costs nothing to know, and what an older
/// version recorded stays as it is.
fn hinted_or_named(device: &Loop, hint: Option<&Source>, ready: &Ready, id: &VolumeId) -> Source {
    if let Some(Source::Device(reported)) = hint
        && reported.path == device.path
        && shows(reported, device.backing)
    {
        return source(device, reported.identity.clone());
    }
    source(device, named(ready, id.local(), device.backing))
}

/// The identity of an image that may be damaged: by its numbers alone, where its metadata cannot be read.
pub(super) fn named(ready: &Ready, local: &str, inode: Inode) -> String {
    scan::examine::<VolumeMeta>(ready, local).meta.map_or_else(|| numbers(inode), |meta| identity(ready, &meta, inode))
}

fn path_of(source: &Source) -> &Path {
    match source {
        Source::Device(device) => &device.path,
        Source::Filesystem { source, .. } | Source::Directory(Directory { source, .. }) => Path::new(source),
    }
}

fn not_this(id: &VolumeId, device: &Path) -> Error {
    let reason = format!("it does not show the image of {id}; nothing was done to it. Unstage the volume and stage it again");
    Error::Unverified { device: device.display().to_string(), reason }
}

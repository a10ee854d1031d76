//! When a node takes, checks and releases the lease of a volume of a shared pool.

use std::collections::BTreeMap;

use crate::backend::{ConnectRequest, detached_meanwhile};
use crate::os::loopdev::Loop;
use crate::os::step::step;
use crate::volume::{Error, Result, VolumeId};

use super::ImageBackend;
use super::attachment::{check_attached, check_detached};
use super::connect::{Inode, confirm, detach, devices};
use super::files;
use super::layout::Kind;
use super::lease::{Access, Acquired, VolumeDirectory};
use super::ready::Ready;

impl ImageBackend {
    /// Makes sure, before a volume of a shared pool is connected, that no other node has it, nor will have it meanwhile.
    pub(super) fn take_lease(&self, ready: &Ready, request: &ConnectRequest<'_>, inode: Inode) -> Result<Acquired> {
        let (id, holder) = (request.id, self.holder()?);
        let attached = || check_attached(ready, id, &holder.node, request.publish_context, request.read_only);
        // Opened first: what a node remembers of a directory on NFS is checked then.
        let directory = VolumeDirectory::open(ready, id)?.ok_or_else(|| Error::volume_not_found(id))?;
        attached()?;
        let access = if request.read_only { Access::Read } else { Access::Write };
        let acquired = directory.acquire(holder, access, |leases| {
            // Where nobody has a lease, no device shows the image rightly; other readers on this machine have devices of their own.
            let stale = match leases {
                [] => devices(ready, id, inode)?,
                leases if leases.iter().any(|lease| lease.is_of(holder)) => Vec::new(),
                _ => confirm(id, request.earlier, inode)?.into_iter().collect(),
            };
            stale.iter().try_for_each(|device| detach_stale(id, device))
        })?;
        // It may have been detached just before it had the lease.
        match attached() {
            Err(refused) if acquired == Acquired::Now => {
                match directory.release(|lease| lease.is_of(holder) && lease.access == access) {
                    Ok(_) => Err(refused.rolled_back()),
                    Err(error) => Err(refused.leaving(error.to_string())),
                }
            }
            other => other.map(|()| acquired),
        }
    }

    /// Whether this node still has its lease. It gets no other one while the volume is connected: what is cached here may be older than
    /// what another node has written meanwhile.
    pub(super) fn check_lease(&self, ready: &Ready, id: &VolumeId) -> Result<()> {
        let holder = self.holder()?;
        let directory = VolumeDirectory::open(ready, id)?.ok_or_else(|| Error::volume_not_found(id))?;
        let own = directory.leases()?.into_iter().find(|lease| lease.is_of(holder)).map(|lease| lease.access);
        check_attached(ready, id, &holder.node, &BTreeMap::new(), own != Some(Access::Write))?;
        if own.is_none() {
            return Err(detached_meanwhile(id));
        }
        Ok(())
    }

    /// Whether this node has a lease of the volume.
    pub(super) fn holds(&self, ready: &Ready, id: &VolumeId) -> Result<bool> {
        let holder = self.holder()?;
        let Some(directory) = VolumeDirectory::open(ready, id)? else { return Ok(false) };
        Ok(directory.leases()?.iter().any(|lease| lease.is_of(holder)))
    }

    /// Releases this node's leases of a volume that it has disconnected. First all that it wrote is where other nodes see it.
    /// Answers whether there was any.
    ///
    /// # Errors
    /// Not final while the pool is away: the lease is still there.
    pub(super) fn release_lease(&self, id: &VolumeId) -> Result<bool> {
        let holder = self.holder()?;
        let Some((_, ready, ())) =
            self.search(Kind::Volume, id.local(), |ready| Ok(ready.has(Kind::Volume, id.local())?.then_some(())))?
        else {
            return Ok(false);
        };
        let Some(directory) = VolumeDirectory::open(&ready, id)? else { return Ok(false) };
        let leases = directory.leases()?;
        let own = leases.iter().find(|lease| lease.is_of(holder));
        if own.is_some_and(|lease| lease.access == Access::Write) && ready.look_at_image(Kind::Volume, id.local())?.is_some() {
            let image = ready.open_image(Kind::Volume, id.local(), files::Access::Read)?;
            let path = ready.place(Kind::Volume, id.local()).join(files::IMAGE);
            step("sync image", &path.display(), || files::sync(&image, &path)).map_err(|error| ready.failure(error))?;
        }
        directory.release(|lease| lease.is_of(holder))
    }

    /// Keeps every node from connecting a volume that is to be deleted. `None` where the pool is not shared.
    ///
    /// # Errors
    /// `InUse`, naming the node that has it, or to which it is attached.
    pub(super) fn begin_deletion<'a>(&self, ready: &'a Ready, id: &'a VolumeId) -> Result<Option<Deletion<'a>>> {
        if !self.shared {
            return Ok(None);
        }
        check_detached(ready, id)?;
        let directory = VolumeDirectory::open(ready, id)?.ok_or_else(|| Error::volume_not_found(id))?;
        directory.acquire(self.holder()?, Access::Delete, |_| Ok(()))?;
        let deletion = Deletion { directory };
        match check_detached(ready, id) {
            Ok(()) => Ok(Some(deletion)),
            Err(error) => Err(deletion.give_up(error)),
        }
    }
}

/// Lets go of a device of before this node was detached: its cache may be older than what another node has written meanwhile.
///
/// # Errors
/// `InUse` where something uses it.
fn detach_stale(id: &VolumeId, device: &Loop) -> Result<()> {
    tracing::warn!(volume = %id, device = %device.path.display(), "a device of before this node was detached is let go");
    detach(device).map_err(|error| match error.errno() {
        Some(libc::EBUSY) => {
            let by = format!("{error}; that device is of before this node was detached from it: unstage the volume here first");
            Error::InUse { object: format!("volume {id}"), by }
        }
        _ => error.into(),
    })
}

/// A volume that no node can connect any more.
pub(super) struct Deletion<'a> {
    directory: VolumeDirectory<'a>,
}

impl Deletion<'_> {
    /// The volume stays as it is.
    pub fn give_up(self, failure: Error) -> Error {
        match self.directory.release(|lease| lease.access == Access::Delete) {
            Ok(_) => failure.rolled_back(),
            Err(error) => failure.leaving(error.to_string()),
        }
    }
}

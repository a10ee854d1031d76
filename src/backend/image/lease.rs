//! Which node has a volume of a shared pool connected: a small file beside the image, where every node and the controller see it.
//!
//! ```text
//! volumes/<id>/lease            the node that may write, or the controller that deletes the volume: at most one
//! volumes/<id>/lease-<holder>   a node that only reads: several, and none while another may write
//! ```
//! A lease is taken before the loop device is attached, and released after it was seen detached and the image is synced.
//!
//! - It does not expire: no clock decides about data. It survives a crash of its holder, who finds it again and continues. It ends
//!   when its holder releases it, when the controller detaches the node (`super::attach`), or when an administrator removes it.
//! - It needs no locks of the file system. `lease` appears by link(2), complete and once, decided where the storage is: so on
//!   NFS, CephFS, GlusterFS, GFS2 and OCFS2. Between a writer and readers: each makes its own entry, and then lists the directory
//!   again, so that of two at least one sees the other, and withdraws.
//! - What cannot be read is a lease of an unknown holder: everybody is refused.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::os::durable;
use crate::os::step::step;
use crate::volume::digest::sha256_of;
use crate::volume::{Error, NodeId, Result, VolumeId};

use super::files;
use super::layout::{DIGITS, EXCLUSIVE, Kind, READER, is_lease_name};
use super::meta::{self, FORMAT, from_nanos, to_nanos};
use super::ready::Ready;
use super::room;

/// The file in the state directory that tells its driver from any other, also from one of the same node id.
const DRIVER_ID: &str = "driver-id";

/// Who takes leases: a node, and the state directory from which its driver runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    pub node: NodeId,
    /// Random, from the state directory.
    pub driver: String,
}

impl Holder {
    /// The driver of this state directory, which gets an id if it has none.
    ///
    /// # Errors
    /// Where the file cannot be read or written.
    pub fn of(node: NodeId, state: &Path) -> Result<Holder> {
        if let Some(holder) = Holder::known(node.clone(), state)? {
            return Ok(holder);
        }
        let driver = files::random_id()?;
        durable::write(state, DRIVER_ID, format!("{driver}\n").as_bytes())?;
        Ok(Holder { node, driver })
    }

    /// As `of`; `None` where the state directory has no id yet.
    pub fn known(node: NodeId, state: &Path) -> Result<Option<Holder>> {
        const LONGEST: u64 = 256;
        let text = durable::read(&state.join(DRIVER_ID), LONGEST)?;
        let driver = text.map(|text| String::from_utf8_lossy(&text).trim().to_owned());
        Ok(driver.filter(|driver| !driver.is_empty()).map(|driver| Holder { node, driver }))
    }

    fn digest(&self) -> String {
        sha256_of([self.node.as_str(), &self.driver])[..DIGITS].to_owned()
    }
}

/// What a lease allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Access {
    Write,
    Read,
    /// No node may connect it any more.
    Delete,
}

/// The content of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lease {
    pub format: u32,
    /// The random id of the pool.
    pub pool: String,
    pub volume: VolumeId,
    pub holder: Holder,
    pub access: Access,
    /// Nanoseconds since 1970, for people only.
    pub since: u64,
}

impl Lease {
    fn file_name(&self) -> String {
        match self.access {
            Access::Read => format!("{READER}{}", self.holder.digest()),
            Access::Write | Access::Delete => EXCLUSIVE.to_owned(),
        }
    }

    /// Whether it is this node's, to use the volume.
    pub fn is_of(&self, holder: &Holder) -> bool {
        self.holder == *holder && self.access != Access::Delete
    }

    /// Whether a holder may have `access` beside this lease.
    fn allows(&self, holder: &Holder, access: Access) -> bool {
        match (self.access, access) {
            // Only the one process that holds the pool's lock deletes: it continues where a killed one was.
            (Access::Delete, Access::Delete) | (Access::Read, Access::Read) => true,
            (Access::Delete, _) | (_, Access::Delete) => false,
            _ => self.holder == *holder,
        }
    }
}

/// A volume's directory, open.
pub(super) struct VolumeDirectory<'a> {
    ready: &'a Ready,
    id: &'a VolumeId,
    open: File,
    path: PathBuf,
}

impl<'a> VolumeDirectory<'a> {
    /// `None` where there is no such volume in this pool.
    pub fn open(ready: &'a Ready, id: &'a VolumeId) -> Result<Option<VolumeDirectory<'a>>> {
        let path = ready.place(Kind::Volume, id.local());
        let relative = Path::new(Kind::Volume.directory()).join(id.local());
        let open = files::open_directory(ready.root(), &relative).map_err(|error| ready.failure(error))?;
        Ok(open.map(|open| VolumeDirectory { ready, id, open, path }))
    }

    /// All leases, as the directory shows them now.
    ///
    /// # Errors
    /// `Unverified`, naming a file that cannot be read: anyone who has it is not known.
    pub fn leases(&self) -> Result<Vec<Lease>> {
        let names = files::names_in(&self.open, &self.path).map_err(|error| self.ready.failure(error))?;
        let held = names.iter().filter(|name| is_lease_name(name) && (*name == EXCLUSIVE || name.starts_with(READER)));
        held.filter_map(|name| self.read(name).transpose()).collect()
    }

    /// `None` where it was released meanwhile.
    fn read(&self, name: &str) -> Result<Option<Lease>> {
        let path = self.path.join(name);
        let text = files::read(self.open.as_fd(), Path::new(name), meta::LONGEST).map_err(|error| self.ready.failure(error))?;
        let Some(text) = text else { return Ok(None) };
        let refused = |what: String| Error::Unverified {
            device: path.display().to_string(),
            reason: format!(
                "it is a lease of volume {}, of which it is not known who holds it: {what}. If no node has the volume connected, \
                 remove the file",
                self.id
            ),
        };
        let lease: Lease = meta::decode(&path, &text).map_err(|damage| refused(damage.what))?;
        if lease.pool != self.ready.id || lease.volume != *self.id || lease.file_name() != name {
            return Err(refused(format!("it was made for volume {} of pool {}", lease.volume, lease.pool)));
        }
        Ok(Some(lease))
    }

    /// Takes a lease; repeated, it finds its own. On return it is durable, and no other stands against it. `before` sees all leases, none of
    /// which stands against it, before it is taken.
    ///
    /// # Errors
    /// `InUse`, naming who has the volume; `NotFound` where the volume went meanwhile; `Unverified`.
    pub fn acquire(&self, holder: &Holder, access: Access, before: impl FnOnce(&[Lease]) -> Result<()>) -> Result<Acquired> {
        let leases = self.leases()?;
        self.check_free(&leases, holder, access)?;
        before(&leases)?;
        let wanted = Lease {
            format: FORMAT,
            pool: self.ready.id.clone(),
            volume: self.id.clone(),
            holder: holder.clone(),
            access,
            since: to_nanos(SystemTime::now()),
        };
        let earlier = leases.iter().any(|lease| lease.access == access && (lease.holder == *holder || access == Access::Delete));
        let acquired = if earlier { Acquired::Earlier } else { Acquired::Now };
        if !earlier {
            self.put(&wanted)?;
        }
        let seen = self.sync().and_then(|()| {
            self.check_free(&self.leases()?, holder, access)?;
            // Who deletes the volume moves its directory away, and then looks for leases.
            if self.is_in_place()? { Ok(()) } else { Err(Error::volume_not_found(self.id)) }
        });
        if let Err(failure) = seen {
            return Err(if earlier { failure } else { self.withdraw(&wanted, failure) });
        }
        // What it held before is no longer needed, or too much.
        let other = leases.iter().filter(|lease| lease.holder == *holder && lease.access != access);
        other.map(Lease::file_name).try_for_each(|name| self.remove(&name))?;
        Ok(acquired)
    }

    fn check_free(&self, leases: &[Lease], holder: &Holder, access: Access) -> Result<()> {
        match leases.iter().find(|lease| !lease.allows(holder, access)) {
            None => Ok(()),
            Some(lease) => Err(self.held_by(lease)),
        }
    }

    /// Whether `node` could take such a lease as far as the other nodes are concerned.
    ///
    /// # Errors
    /// `InUse`, naming the one that has the volume.
    pub fn check_others(&self, node: &NodeId, access: Access) -> Result<()> {
        let leases = self.leases()?;
        let hinders = |lease: &&Lease| {
            (access == Access::Write || lease.access != Access::Read)
                && (lease.access == Access::Delete || lease.holder.node != *node)
        };
        leases.iter().find(hinders).map_or(Ok(()), |lease| Err(self.held_by(lease)))
    }

    fn held_by(&self, lease: &Lease) -> Error {
        let path = self.path.join(lease.file_name());
        let (node, since) = (&lease.holder.node, humantime::format_rfc3339_seconds(from_nanos(lease.since)));
        let by = match lease.access {
            Access::Delete => format!("it has been in deletion since {since}; repeat DeleteVolume"),
            access => format!(
                "node {node} has it connected {} since {since}; unstage it there. If that node is off for good, detach the volume \
                 from it (ControllerUnpublishVolume), or remove {}",
                if access == Access::Read { "for reading" } else { "for writing" },
                path.display()
            ),
        };
        Error::InUse { object: format!("volume {}", self.id), by }
    }

    /// Makes the file appear whole, if nothing is there by its name.
    fn put(&self, lease: &Lease) -> Result<()> {
        let name = lease.file_name();
        let draft = format!(".{READER}{}.tmp", lease.holder.digest());
        let text = meta::encode(lease, &self.path.join(&name))?;
        let shown = self.path.join(&name);
        let linked = step("write lease", &shown.display(), || room::draft_lease(&self.open, &draft, &text)).and_then(|()| {
            let linked = step("take lease", &shown.display(), || files::link_new(&self.open, &draft, &name));
            step("remove draft", &shown.display(), || match linked {
                Ok(true) => files::remove_in(&self.open, &draft),
                _ => room::give_back(&self.open, &draft),
            })?;
            linked
        });
        match linked {
            Ok(true) => Ok(()),
            // By another, or by ourselves: the server may have done it, and its answer have been lost.
            Ok(false) => match self.read(&name)? {
                Some(there) if there == *lease => Ok(()),
                Some(other) => Err(self.held_by(&other)),
                None => Err(Error::InProgress {
                    object: format!("volume {}", self.id),
                    reason: "its lease was taken and released by another at this moment".to_owned(),
                }),
            },
            Err(error) => Err(self.withdraw(lease, self.ready.failure(error))),
        }
    }

    /// Takes back a lease that this call has taken.
    fn withdraw(&self, lease: &Lease, failure: Error) -> Error {
        let name = lease.file_name();
        let undone = match self.read(&name) {
            Ok(Some(there)) if there == *lease => self.remove(&name),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        match undone {
            Ok(()) => failure.rolled_back(),
            Err(error) => failure.leaving(error.to_string()),
        }
    }

    /// Releases all leases that `whose` says. Answers whether there was any.
    pub fn release(&self, whose: impl Fn(&Lease) -> bool) -> Result<bool> {
        let mut released = false;
        for lease in self.leases()?.iter().filter(|lease| whose(lease)) {
            self.remove(&lease.file_name())?;
            released = true;
        }
        Ok(released)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let removed = step("release lease", &self.path.join(name).display(), || room::release_lease(&self.open, name));
        removed.map_err(|error| self.ready.failure(error))?;
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        let synced = step("sync directory", &self.path.display(), || files::sync(&self.open, &self.path));
        synced.map_err(|error| self.ready.failure(error))
    }

    /// Whether the volume's path still leads to this directory.
    fn is_in_place(&self) -> Result<bool> {
        let relative = Path::new(Kind::Volume.directory()).join(self.id.local());
        let now = files::look(self.ready.root(), &relative).map_err(|error| self.ready.failure(error))?;
        let open = files::look_at(&self.open, &self.path).map_err(|error| self.ready.failure(error))?;
        Ok(now.is_some_and(|now| now.inode == open.inode))
    }
}

/// The files by which a node has a volume.
///
/// # Errors
/// `Unverified` where a lease of the volume cannot be read.
pub(super) fn own(ready: &Ready, id: &VolumeId, holder: &Holder) -> Result<Vec<PathBuf>> {
    let Some(directory) = VolumeDirectory::open(ready, id)? else { return Ok(Vec::new()) };
    let leases = directory.leases()?;
    Ok(leases.iter().filter(|lease| lease.is_of(holder)).map(|lease| directory.path.join(lease.file_name())).collect())
}

/// Since when a lease is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acquired {
    Now,
    /// By an earlier call, also of a process before this one.
    Earlier,
}

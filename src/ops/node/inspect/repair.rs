//! The repairing: each thing is looked at again, with nobody else at work, and then done by the driver's own means.

use std::path::PathBuf;

use crate::backend::registry::Registry;
use crate::backend::{Backend, BlockDevice, Inspect, Leftover, SharedConnection, Source};
use crate::ops::lock::Locks;
use crate::os::mount;
use crate::os::mountinfo::MountTable;
use crate::os::mounts::Mounts;
use crate::os::step::step;
use crate::volume::{Error, Result, VolumeId};

use super::super::context::Node;
use super::super::device_use::{allow_writes, close_mapping, device_unused, ensure_unused};
use super::super::errors::{source_name, unexpected};
use super::super::journal::{Phase, StageEntry};
use super::super::lone::StateDirLock;
use super::super::sources::Sources;
use super::super::{observe, quiesce, recover, unstage};
use super::Setup;

/// What `--fix` does. It never touches what the driver did not make, and never deletes data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Unmounts exactly this mount.
    Unmount {
        id: VolumeId,
        path: PathBuf,
        mount: u64,
    },
    CloseMapping {
        id: VolumeId,
    },
    /// Takes exactly this device from the node.
    Release {
        id: VolumeId,
        device: BlockDevice,
    },
    /// Takes down exactly this connection.
    ReleaseConnection {
        backend: String,
        connection: SharedConnection,
    },
    /// Undoes a stage of which nothing is mounted any more.
    Unstage {
        id: VolumeId,
    },
    /// Does what the driver does with it at its start.
    Recover {
        id: VolumeId,
    },
    Thaw,
    /// Removes a damaged file of the journal.
    Forget {
        id: VolumeId,
        name: String,
    },
    Remove {
        backend: String,
        leftover: Leftover,
    },
}

/// The node with nobody else at work on it.
pub struct Repairer {
    node: Node,
    _alone: StateDirLock,
}

impl Repairer {
    /// Keeps every driver off, until it is dropped.
    ///
    /// # Errors
    /// `InUse` where a driver runs.
    pub fn new(setup: &Setup) -> Result<Repairer> {
        let alone = StateDirLock::take(&setup.node.state_dir)?;
        let backends = setup.backends.iter().filter_map(|configured| configured.opened().cloned()).collect();
        let node = Node::open_unrecovered(setup.node.clone(), Registry::new(backends)?, Locks::default())?;
        Ok(Repairer { node, _alone: alone })
    }

    /// Does one of them.
    ///
    /// # Errors
    /// Where it is not what it was, or is in use; it is then left as it is.
    pub fn repair(&self, repair: &Repair) -> Result<()> {
        let node = &self.node;
        match repair {
            Repair::Unmount { id, path, mount } => self.unmount(id, path, *mount),
            Repair::CloseMapping { id } => {
                self.unstaged(id)?;
                close_mapping(node, id)
            }
            Repair::Release { id, device } => {
                let named = |stage: &StageEntry| stage.source.as_ref() == Some(&Source::Device(device.clone()));
                if node.journal.stage(id)?.is_some_and(|stage| node.same_boot(&stage) && named(&stage)) {
                    return Err(unexpected(&device.path, "a stage has it by now"));
                }
                let source = Source::Device(device.clone());
                ensure_unused(node, id, &source)?;
                let inspect = self.inspect(id.backend().as_str())?;
                allow_writes(&source)?;
                inspect.release(device)
            }
            Repair::ReleaseConnection { backend, connection } => self.release_connection(backend, connection),
            Repair::Unstage { id } => {
                let entry = node.journal.stage(id)?.ok_or_else(|| Error::volume_not_found(id))?;
                if entry.phase != Phase::Staged || entry.inline || entry.is_interrupted() {
                    return Err(unexpected(&entry.staging, "its stage is not what it was a moment ago; look again"));
                }
                let sources = Sources::observe(node, id, Some(&entry))?.all;
                if let Some(mount) = MountTable::read()?.iter().find(|mount| observe::is_of(mount, &sources)) {
                    return Err(unexpected(&mount.mount_point, "the volume is mounted here"));
                }
                unstage::finish(node, entry).map(drop)
            }
            Repair::Recover { id } => {
                if node.journal.stage(id)?.is_some_and(|stage| stage.inline) {
                    return Err(unexpected(&node.settings.state_dir, "an ephemeral volume is left to the driver"));
                }
                let table = MountTable::read()?;
                recover::recover_volume(node, id, &recover::by_place(&table))
            }
            Repair::Thaw => quiesce::thaw_left(node),
            Repair::Forget { id, name } => {
                let sources = Sources::observe(node, id, None)?;
                if let Some(source) = sources.all.first() {
                    return Err(Error::InUse { object: format!("volume {id}"), by: source_name(source) });
                }
                // It was kept aside meanwhile, if it was read by one of the repairs before.
                node.journal.remove_damaged(id, name)?;
                node.journal.remove_damaged(id, &format!("{name}.damaged"))
            }
            Repair::Remove { backend, leftover } => self.inspect(backend)?.remove(leftover),
        }
    }

    fn backend(&self, name: &str) -> Result<&dyn Backend> {
        let backend = self.node.registry.iter().find(|one| one.name().as_str() == name);
        backend
            .map(AsRef::as_ref)
            .ok_or_else(|| Error::Unsupported { what: "repairing".to_owned(), reason: format!("backend {name} is not open") })
    }

    /// The journal still knows none of its volumes, and nothing of them is mounted.
    fn release_connection(&self, backend: &str, connection: &SharedConnection) -> Result<()> {
        let connect = self.backend(backend)?.connect();
        for id in &connection.users {
            if let Some(stage) = self.node.journal.stage(id)? {
                return Err(unexpected(&stage.staging, "the volume is staged here by now"));
            }
            if let Some(source) = connect.connected(id, None)? {
                ensure_unused(&self.node, id, &source)?;
            }
        }
        let table = MountTable::read()?;
        if let Some(mount) = observe::mounted_from(&table, connection) {
            return Err(unexpected(&mount.mount_point, "it is mounted from this connection"));
        }
        // Nor in another mount namespace.
        let mounts = Mounts::from(table);
        connection.devices.iter().try_for_each(|device| device_unused(&connection.object, device, &mounts))?;
        connect.release_connection(connection)
    }

    fn inspect(&self, backend: &str) -> Result<&dyn Inspect> {
        self.backend(backend)?.inspect().ok_or_else(|| Error::Unsupported {
            what: "repairing".to_owned(),
            reason: "the backend shows nothing of its storage".to_owned(),
        })
    }

    fn unstaged(&self, id: &VolumeId) -> Result<()> {
        match self.node.journal.stage(id)?.filter(|stage| self.node.same_boot(stage)) {
            Some(stage) => Err(unexpected(&stage.staging, "the volume is staged here by now")),
            None => Ok(()),
        }
    }

    /// The journal still has no entry for it, and it is still this volume's.
    fn unmount(&self, id: &VolumeId, path: &PathBuf, mount: u64) -> Result<()> {
        let node = &self.node;
        let stage = node.journal.stage(id)?;
        let known = stage.as_ref().is_some_and(|stage| stage.staging == *path) || node.journal.target(id, path)?.is_some();
        let sources = Sources::observe(node, id, stage.as_ref())?.all;
        let table = MountTable::read()?;
        let top = table.at(path).last().copied().filter(|top| top.id == mount && observe::is_of(top, &sources));
        if known || top.is_none() {
            return Err(unexpected(path, "it is not what it was a moment ago; look again"));
        }
        let root = if path.starts_with(node.kubelet.path()) { &node.kubelet } else { &node.state };
        step("unmount", &path.display(), || mount::unmount(root, path, mount))?;
        Ok(())
    }
}

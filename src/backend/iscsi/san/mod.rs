//! The target server: volumes are image files by the code of the `image` backend, shown to nodes through the kernel's target.
//!
//! - A volume that some node has is one disk, one target with that disk as LUN 0, and an initiator let in for each such node. It is
//!   made with the first attachment and goes with the last: a volume that nobody has listens nowhere, and its image is an
//!   ordinary file.
//! - Who has what lies with the storage ([`record`]); the kernel is made to show that, at the start too.
//! - The kernel comes first when a node is shut out, the record first when one is let in: what is recorded may not be exported
//!   yet, but nobody is let in whom nothing records.
//! - Only what carries our names and shows an image in one of our pools is ever taken down.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use crate::backend::image::{Image, ImageBackend, Role};
use crate::backend::keyed_mutex::{KeyedGuard, KeyedMutex};
use crate::backend::{Backend, Exclusive, Usage};
use crate::os::deadline;
use crate::os::lio::{self, Disk, DiskSeen, Initiator, Lio};
use crate::os::step::step;
use crate::volume::digest::sha256;
use crate::volume::{BackendName, Error, NodeId, Result, VolumeId};

use super::attachment::AUTHORITY;
use super::{IscsiConfig, initiator_name};

mod attach;
mod health;
mod inspect;
mod names;
mod record;
mod volumes;

use names::Names;
use record::Record;

/// How long the start, or a call, waits for the exports of pools that were not there before.
const RESTORE_PATIENCE: Duration = Duration::from_secs(2);
/// How long a call waits for what puts right the export of its volume.
const PATIENCE: Duration = Duration::from_secs(20);

/// The one process that provisions.
#[derive(Debug)]
pub(super) struct TargetServer {
    config: IscsiConfig,
    portals: Vec<SocketAddr>,
    pub images: ImageBackend,
    known: Mutex<Known>,
    /// Who is at an export, by the name of its target: a call about its volume, or what makes the kernel show what is recorded.
    locks: KeyedMutex,
    /// One reads the records of pools that were away; nobody waits for it for long, since such a pool may hang.
    settling: Mutex<()>,
    this: Weak<TargetServer>,
}

/// What the records say, so that a list or a limit reads none.
#[derive(Debug, Default)]
struct Known {
    by_volume: BTreeMap<VolumeId, BTreeSet<NodeId>>,
    by_node: BTreeMap<NodeId, BTreeSet<VolumeId>>,
    /// The pools whose records were read.
    pools: BTreeSet<String>,
    /// Recorded, but not to be exported when it was tried.
    failed: BTreeSet<VolumeId>,
}

impl Known {
    fn insert(&mut self, id: &VolumeId, node: &NodeId) {
        self.by_volume.entry(id.clone()).or_default().insert(node.clone());
        self.by_node.entry(node.clone()).or_default().insert(id.clone());
    }

    fn remove(&mut self, id: &VolumeId, node: &NodeId) {
        remove_from(&mut self.by_volume, id, node);
        remove_from(&mut self.by_node, node, id);
    }
}

fn remove_from<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = map.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(key);
        }
    }
}

impl TargetServer {
    /// No pool is opened yet.
    pub fn open(config: IscsiConfig, state: &Path) -> Result<Arc<TargetServer>> {
        let images = ImageBackend::open_on_lead(config.images(), Role { provision: true }, Some(&state.join("pools")), None)?;
        TargetServer::new(config, images)
    }

    fn new(config: IscsiConfig, images: ImageBackend) -> Result<Arc<TargetServer>> {
        let portals = config.portals()?;
        Ok(Arc::new_cyclic(|this| TargetServer {
            portals,
            config,
            images,
            known: Mutex::default(),
            locks: KeyedMutex::default(),
            settling: Mutex::default(),
            this: this.clone(),
        }))
    }

    /// Opens the pools to look at them: nothing is exported, taken down, made or locked. `None` where none of them is on this machine.
    pub fn open_to_look(config: IscsiConfig) -> Result<Option<Arc<TargetServer>>> {
        let images = ImageBackend::open_to_look(config.images(), None)?;
        let here = config.pools.iter().any(|pool| pool.path.exists());
        if here { TargetServer::new(config, images).map(Some) } else { Ok(None) }
    }

    /// Opens the pools, and makes the kernel show what is recorded.
    pub fn lead(&self) -> Result<()> {
        self.images.lead()?;
        self.restore_exports();
        Ok(())
    }

    pub fn probe(&self) -> Result<()> {
        let images = self.images.probe();
        self.target()?;
        // What lies in the other pools is exported, also while one is away.
        self.restore_exports();
        self.export_failed();
        images
    }

    pub fn is_usable_in_part(&self) -> bool {
        self.target().is_ok() && self.images.is_usable_in_part()
    }

    /// Whether the kernel has its target.
    fn target(&self) -> Result<()> {
        match Lio::loaded() {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::BackendUnavailable { backend: self.name().to_string(), reason: error.to_string() }),
        }
    }

    pub fn usage(&self) -> Usage {
        let attachments = self.known().by_volume.values().map(|nodes| nodes.len() as u64).sum();
        Usage { attachments: Some(attachments), ..self.images.usage() }
    }

    fn name(&self) -> &BackendName {
        &self.config.name
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a call about one volume: its export is nobody else's until the lock is released.
    fn begin(&self, id: &VolumeId, operation: &'static str) -> Result<KeyedGuard<'_>> {
        self.restore_exports();
        self.lock_target(&Names::of(id), operation, PATIENCE)
    }

    fn lock_target(&self, names: &Names, operation: &'static str, patience: Duration) -> Result<KeyedGuard<'_>> {
        self.locks.lock(&names.target, operation, patience).map_err(|holder| Error::Busy {
            object: format!("target {}", names.target),
            operation: holder.operation,
            step: "its export".to_owned(),
            since: holder.since.elapsed(),
        })
    }

    /// The record of a volume, and the directory of its pool.
    ///
    /// # Errors
    /// `BackendUnavailable` where it was not found, but a pool that may have the volume could not be looked into.
    fn record(&self, id: &VolumeId) -> Result<Option<(PathBuf, Record)>> {
        let mut away = None;
        for home in self.images.homes_of(id) {
            match home.and_then(|pool| Ok(Record::read(id, &pool)?.map(|record| (pool, record)))) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error) => away = Some(error),
            }
        }
        away.map_or(Ok(None), Err)
    }

    /// Makes the kernel show a volume to those whom its record names, and to no others.
    fn export(&self, lio: &Lio, image: &Image, record: &Record) -> Result<()> {
        let names = Names::of(&record.id);
        let Names { target, disk, hba } = &names;
        let serial = serial(image);
        let bytes = image.capacity.0;
        let shown = Disk { file: &image.file, bytes, serial: &serial, label: &image.path };
        step("make disk", target, || lio.make_disk(*hba, disk, &shown))?;
        self.resize(lio, &names, bytes)?;
        if lio.resume(*hba, disk)? {
            tracing::info!(volume = %record.id, "resumed: it was suspended by a process that was killed");
        }
        step("make target", target, || lio.make_target(target, *hba, disk, record.chap))?;
        let admitted: BTreeMap<String, _> = record.nodes.iter().map(|(node, grant)| (initiator_name(node), grant)).collect();
        for other in lio.initiators(target)?.iter().filter(|name| !admitted.contains_key(*name)) {
            step("expel node", other, || lio.expel(target, other))?;
        }
        for (name, grant) in &admitted {
            let chap = grant.keys.as_ref().map(record::Keys::credentials);
            step("admit node", name, || lio.admit(target, &Initiator { name, write_protect: grant.is_read_only(), chap }))?;
        }
        step("listen", target, || lio.listen(target, &self.portals))?;
        self.known().failed.remove(&record.id);
        Ok(())
    }

    /// Makes a disk as large as its volume; never smaller. Whether it was.
    fn resize(&self, lio: &Lio, names: &Names, bytes: u64) -> Result<bool> {
        match lio.disk(names.hba, &names.disk)? {
            Some(seen) if seen.bytes < bytes => {
                step("resize disk", &names.target, || lio.resize(names.hba, &names.disk, bytes))?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Takes down a target that lets nobody in any more, and its disk.
    fn take_down(&self, lio: &Lio, names: &Names) -> Result<()> {
        step("remove target", &names.target, || lio.remove_target(&names.target))?;
        step("remove disk", &names.target, || lio.remove_disk(names.hba, &names.disk))?;
        Ok(())
    }

    /// Reads the records of pools that were not there before, exports what they say, and takes down what none of them says. On a thread
    /// of its own, which continues where it takes long.
    fn restore_exports(&self) {
        if !self.all_read()
            && let Some(san) = self.this.upgrade()
            && deadline::within(RESTORE_PATIENCE, move || san.restore_exports_now()).is_none()
        {
            tracing::warn!("what is attached is still being exported again");
        }
    }

    fn all_read(&self) -> bool {
        self.known().pools.len() == self.config.pools.len()
    }

    fn restore_exports_now(&self) {
        let Some(_alone) = alone(&self.settling) else { return };
        if self.all_read() {
            return;
        }
        for (name, home) in self.images.homes() {
            if self.known().pools.contains(name) {
                continue;
            }
            // A pool that is away was reported by its opening.
            let Ok(pool) = home else { continue };
            match self.load(&pool) {
                Ok(()) => drop(self.known().pools.insert(name.to_owned())),
                Err(error) => tracing::warn!(pool = name, %error, "which volumes are attached cannot be read yet"),
            }
        }
        // What a pool that is away records is not known.
        if self.all_read()
            && let Err(error) = self.remove_strays()
        {
            tracing::warn!(%error, "whether the kernel exports what nothing records cannot be seen");
        }
    }

    fn load(&self, pool: &Path) -> Result<()> {
        for local in Record::list(pool)? {
            let Ok(id) = VolumeId::from_parts(self.name(), &local) else { continue };
            let _lock = self.lock_target(&Names::of(&id), "export again", PATIENCE)?;
            match Record::read(&id, pool) {
                Ok(Some(record)) => {
                    record.nodes.keys().for_each(|node| self.known().insert(&id, node));
                    self.export_again(&record);
                }
                Ok(None) => {}
                Err(error) => tracing::error!(volume = %id, %error, "who has it cannot be read; it is left as it is"),
            }
        }
        Ok(())
    }

    /// Exports what is recorded; one that cannot be is tried again, and does not stop the others.
    fn export_again(&self, record: &Record) {
        let id = &record.id;
        let exported = Lio::loaded().map_err(Error::from).and_then(|lio| {
            let image = self.images.image(id)?.ok_or_else(|| Error::volume_not_found(id))?;
            let lacking = self.lacking(&lio, record)?;
            self.export(&lio, &image, record)?;
            Ok(lacking)
        });
        let nodes: Vec<&str> = record.nodes.keys().map(NodeId::as_str).collect();
        match exported {
            Ok(None) => {}
            Ok(Some(lacking)) => tracing::info!(volume = %id, nodes = nodes.join(" "), lacking, "exported again"),
            Err(error) => {
                tracing::error!(volume = %id, nodes = nodes.join(" "), %error, "it is attached, but could not be exported again");
                self.known().failed.insert(id.clone());
            }
        }
    }

    /// Tries again what could not be exported, unless a call is at it.
    fn export_failed(&self) {
        let failed: Vec<VolumeId> = self.known().failed.iter().cloned().collect();
        for id in failed {
            let Ok(_lock) = self.lock_target(&Names::of(&id), "export again", Duration::ZERO) else { continue };
            match self.record(&id) {
                Ok(Some((_, record))) => self.export_again(&record),
                Ok(None) => drop(self.known().failed.remove(&id)),
                Err(error) => tracing::warn!(volume = %id, %error, "it is attached, but still cannot be exported"),
            }
        }
    }

    /// Takes down what carries our names and shows an image of ours, but nothing records.
    fn remove_strays(&self) -> Result<()> {
        let Some(lio) = Lio::open()? else { return Ok(()) };
        let pools = self.images.homes().map(|(_, home)| home).collect::<Result<Vec<PathBuf>>>()?;
        for names in self.strays(&lio, &pools)? {
            let _lock = self.lock_target(&names, "take down", PATIENCE)?;
            // A call may have recorded it before this lock was taken.
            if self.recorded(&pools)?.contains(&names.disk) {
                continue;
            }
            let Some(seen) = lio.disk(names.hba, &names.disk)? else { continue };
            if !is_ours(&seen, &pools) {
                tracing::warn!(target = names.target, file = %seen.label.display(), "not ours, though it has such a name; left alone");
                continue;
            }
            match self.shut(&lio, &names) {
                Ok(()) => tracing::info!(target = names.target, file = %seen.label.display(), "taken down: nothing records it"),
                Err(error) => {
                    tracing::error!(target = names.target, %error, "nothing records it, but it could not be taken down")
                }
            }
        }
        Ok(())
    }

    /// What carries our names, but no record in these pools wants.
    fn strays(&self, lio: &Lio, pools: &[PathBuf]) -> Result<Vec<Names>> {
        let recorded = self.recorded(pools)?;
        let disks = lio.disks(names::hba(self.name()))?.into_iter().filter(|disk| !recorded.contains(disk));
        Ok(disks.filter_map(|disk| Names::of_disk(self.name(), &disk)).collect())
    }

    /// The names of the disks that records in these pools want.
    fn recorded(&self, pools: &[PathBuf]) -> Result<BTreeSet<String>> {
        let mut disks = BTreeSet::new();
        for pool in pools {
            let ids = Record::list(pool)?.into_iter().filter_map(|local| VolumeId::from_parts(self.name(), &local).ok());
            disks.extend(ids.map(|id| Names::of(&id).disk));
        }
        Ok(disks)
    }

    /// Shuts everybody out, and takes it down.
    fn shut(&self, lio: &Lio, names: &Names) -> Result<()> {
        for initiator in lio.initiators(&names.target)? {
            step("expel node", &initiator, || lio.expel(&names.target, &initiator))?;
        }
        self.take_down(lio, names)
    }

    /// What of a record the kernel does not show; `None` where all is there.
    fn lacking(&self, lio: &Lio, record: &Record) -> Result<Option<String>> {
        let Names { target, disk, hba } = Names::of(&record.id);
        if lio.disk(hba, &disk)?.is_none() {
            return Ok(Some("the disk".to_owned()));
        }
        for (node, grant) in &record.nodes {
            if !lio.admits(&target, &initiator_name(node), grant.is_read_only())? {
                return Ok(Some(format!("node {node}")));
            }
        }
        let bound = lio.portals(&target)?;
        Ok(self.portals.iter().find(|portal| !bound.contains(portal)).map(|portal| format!("the portal {portal}")))
    }
}

/// Whether a disk shows an image of these pools. One that was never finished shows nothing, and is what a killed process of ours left.
fn is_ours(seen: &DiskSeen, pools: &[PathBuf]) -> bool {
    seen.inode.is_none() || pools.iter().any(|pool| seen.label.starts_with(pool))
}

/// `None` while another has it.
fn alone(lock: &Mutex<()>) -> Option<MutexGuard<'_, ()>> {
    match lock.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// What an image's disk is known by, wherever it is shown: a later volume of the same name has another, and one on another storage
/// machine, too, so that a node with paths to both does not take them for one.
fn serial(image: &Image) -> String {
    sha256(image.unique.as_bytes())[..32].to_owned()
}

/// As the node sees it.
fn wwid(image: &Image) -> String {
    lio::wwid(&serial(image))
}

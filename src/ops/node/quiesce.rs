//! File systems frozen for a snapshot.
//!
//! Takes no volume's lock: who snapshots holds it already.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::backend::{FreezeGuard, Quiesce, Source, Writers};
use crate::os;
use crate::os::block::Device;
use crate::os::deadline;
use crate::os::freeze::{self, Frozen};
use crate::os::mounts::Mounts;
use crate::os::step::step;
use crate::volume::{Error, Result, VolumeId};

use super::context::Node;
use super::errors::source_name;
use super::journal::{Access, FrozenEntry, Journal, Phase, StageEntry, VERSION};
use super::observe::{self, MountState};
use super::sources::Sources;

/// A copy without reflink of a large volume takes that long; after it the volume's user comes first.
const LONGEST: Duration = Duration::from_secs(600);

/// Thaws when dropped. Nothing is in it where nothing had to be frozen.
struct Hold {
    journal: Arc<Journal>,
    frozen: Option<Frozen>,
    /// What the journal has of it.
    record: Option<String>,
    writers: BTreeMap<VolumeId, Writers>,
}

/// How a volume is held.
enum Prepared {
    /// Its file system is to be frozen: where it is mounted, and a descriptor of that.
    Mounted(PathBuf, OwnedFd),
    /// There is nothing to freeze.
    Unmounted(Writers),
}

impl Quiesce for Node {
    fn freeze(&self, volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        freeze(self, volumes)
    }

    fn flush(&self, volume: &VolumeId) -> Result<()> {
        match prepare(self, volume)? {
            Prepared::Mounted(path, mount) => {
                let failed = |errno| os::Error::io("sync the file system at", &path, errno);
                Ok(step("sync", &path.display(), || rustix::fs::syncfs(&mount).map_err(failed))?)
            }
            Prepared::Unmounted(_) => Ok(()),
        }
    }
}

fn freeze(node: &Node, volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
    let mut hold = Hold { journal: node.journal.clone(), frozen: None, record: None, writers: BTreeMap::new() };
    let mut mounts: BTreeMap<PathBuf, (VolumeId, OwnedFd)> = BTreeMap::new();
    for id in volumes {
        match prepare(node, id)? {
            Prepared::Mounted(path, mount) => drop(mounts.insert(path, (id.clone(), mount))),
            Prepared::Unmounted(writers) => drop(hold.writers.insert(id.clone(), writers)),
        }
    }
    if mounts.is_empty() {
        return Ok(Box::new(hold));
    }
    // Otherwise the thaw might be of this freeze.
    if !node.thawed.load(Ordering::Acquire) {
        let reason = "is not begun: what an earlier process left frozen is still being thawed".to_owned();
        return Err(Error::InProgress { object: "the freeze for a snapshot".to_owned(), reason });
    }
    let number = node.freezes.fetch_add(1, Ordering::Relaxed);
    let entry = FrozenEntry { version: VERSION, mounts: mounts.keys().cloned().collect(), boot: node.boot.clone() };
    let record = node.journal.write_frozen(number, &entry)?;
    let borrowed: Vec<_> = mounts.values().map(|(_, mount)| mount.as_fd()).collect();
    let names = entry.mounts.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let frozen = step("freeze", &names, || freeze::freeze(&borrowed, LONGEST)).map_err(|error| {
        let error = Error::from(error);
        match node.journal.remove_frozen(&record) {
            Ok(()) => error,
            Err(left) => error.leaving(left.to_string()),
        }
    })?;
    hold.record = Some(record);
    let frozen = hold.frozen.insert(frozen);
    for (path, (id, mount)) in mounts {
        let writers = if frozen.holds(mount.as_fd())? {
            Writers::Frozen
        } else {
            Writers::Possible(format!("its file system, mounted at {}, cannot be frozen", path.display()))
        };
        hold.writers.insert(id, writers);
    }
    Ok(Box::new(hold))
}

/// Opens what is to be frozen of a volume; a raw device is flushed.
fn prepare(node: &Node, id: &VolumeId) -> Result<Prepared> {
    let entry = node.journal.stage(id)?.filter(|entry| node.same_boot(entry));
    let sources = Sources::observe(node, id, entry.as_ref())?;
    let mounts = Mounts::now()?;
    let staged = entry.filter(|entry| entry.phase == Phase::Staged);
    if let Some(entry) = staged.as_ref().filter(|entry| entry.access != Access::Block)
        && let Some(source) = sources.used(entry.encryption()?)
        && let MountState::Ours(_) = observe::at(&mounts, &entry.staging, std::slice::from_ref(&source))?
    {
        let mount = open_mount(observe::open(node.root_of(entry), &entry.staging, &source)?, &entry.staging)?;
        return Ok(Prepared::Mounted(entry.staging.clone(), mount));
    }
    // What is written to a mapping goes to the device below it, which comes first in the list.
    let mut writable = None;
    for source in sources.all.iter().rev() {
        let Source::Device(device) = source else {
            writable = Some(source_name(source));
            continue;
        };
        let open = match Device::open(&device.path, false) {
            // What it was once.
            Err(error) if error.is_missing() => continue,
            open => open?,
        };
        if open.number() == device.number {
            step("flush", &device.path.display(), || open.flush())?;
            if !open.read_only()? {
                writable = Some(device.path.display().to_string());
            }
        }
    }
    let Some(device) = writable else { return Ok(Prepared::Unmounted(Writers::None)) };
    let writers = match staged {
        Some(entry) if entry.access == Access::Block => writers_of_device(node, &entry, &sources, &mounts)?,
        _ => Writers::Possible(format!(
            "{device} shows it on node {}, though no mount of it at its staging path can be frozen; unstage it, or stage it again",
            node.id()
        )),
    };
    Ok(Prepared::Unmounted(writers))
}

/// Who can write to a staged raw block volume. The kernel does not report who has a block device open, so that one that is published
/// for writing counts as written. A pod that was unpublished but still runs cannot be seen here; a backend that copies a volume without
/// writers checks afterwards that its contents did not change.
fn writers_of_device(node: &Node, entry: &StageEntry, sources: &Sources, mounts: &Mounts) -> Result<Writers> {
    // A read-only publish sets the device's own flag, by which the kernel refuses write(2) of anyone who has it open, wherever.
    if let Some(Source::Device(used)) = sources.used(entry.encryption()?) {
        let open = Device::open(&used.path, false)?;
        if open.number() == used.number && open.read_only()? {
            return Ok(Writers::None);
        }
    }
    let journaled = node.journal.targets(&entry.id)?.into_iter().find(|target| target.boot == node.boot);
    let target = journaled.map(|target| target.target);
    let place = match target {
        Some(target) => Some(target),
        None => observe::find(mounts, &sources.all, |_| true)?.map(|mount| mount.mount_point),
    };
    Ok(match place {
        None => Writers::None,
        Some(target) => Writers::Possible(format!(
            "it is published for writing as a raw block device at {} on node {}, and a raw device cannot be frozen",
            target.display(),
            node.id()
        )),
    })
}

/// A descriptor that FIFREEZE takes.
fn open_mount(place: OwnedFd, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&place, ".", flags, Mode::empty()).map_err(|errno| os::Error::io("open mount", path, errno))?)
}

impl Hold {
    fn end(&mut self) -> Result<()> {
        let Some(record) = &self.record else { return Ok(()) };
        // Thawed in any case; the error says that it was not frozen all the time.
        let thawed = self.frozen.take().map_or(Ok(()), |frozen| step("thaw", record, || frozen.thaw()));
        self.journal.remove_frozen(record)?;
        self.record = None;
        Ok(thawed?)
    }
}

impl FreezeGuard for Hold {
    fn writers(&self, volume: &VolumeId) -> Writers {
        self.writers.get(volume).cloned().unwrap_or(Writers::Unknown)
    }

    fn release(mut self: Box<Self>) -> Result<()> {
        let Err(error) = self.end() else { return Ok(()) };
        // The record must not stay: it would thaw at the next start what someone else holds still by then.
        match self.end() {
            Ok(()) => Err(error),
            Err(left) => Err(error.leaving(left.to_string())),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "thawing after a snapshot that failed; if a volume hangs, run `fsfreeze -u` on its mount");
        }
    }
}

/// How long one file system that does not answer holds up the rest.
pub(super) const THAW_PATIENCE: Duration = Duration::from_secs(2);

/// Thaws what an earlier process left frozen. The guard child does so when its parent dies; this is for the case
/// that it was killed too. One that cannot be thawed keeps no other frozen.
///
/// # Errors
/// The first, after all were tried.
pub(super) fn thaw_left(node: &Node) -> Result<()> {
    let mut all = Ok(());
    for (record, entry) in node.journal.frozen()? {
        let mut own = Ok(());
        for path in entry.mounts.iter().filter(|_| entry.boot == node.boot) {
            let thawed = thaw_one(node, path);
            if let Err(error) = &thawed {
                tracing::error!(path = %path.display(), %error, "an earlier process may have left it frozen, and it cannot be thawed");
            }
            own = own.and(thawed);
        }
        all = all.and(own.and_then(|()| node.journal.remove_frozen(&record)));
    }
    all
}

fn thaw_one(node: &Node, path: &Path) -> Result<()> {
    let root = if path.starts_with(node.kubelet.path()) { &node.kubelet } else { &node.state };
    if Mounts::now()?.at(path)?.is_empty() {
        return Ok(());
    }
    if let Some(place) = root.open_path(path)? {
        let mount = open_mount(place, path)?;
        // It writes the superblock.
        let shown = path.display().to_string();
        let thawed = deadline::within(THAW_PATIENCE, move || step("thaw", &shown, || freeze::thaw(mount.as_fd())));
        thawed.unwrap_or_else(|| {
            Err(os::Error::Deadline { action: "thaw", object: path.display().to_string(), after: THAW_PATIENCE })
        })?;
        tracing::warn!(path = %path.display(), "thawed what an earlier process may have left frozen");
    }
    Ok(())
}

//! File systems held still for a snapshot.
//!
//! Takes no volume's lock: who snapshots holds it already.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::backend::{Held, Source};
use crate::os;
use crate::os::block::Device;
use crate::os::freeze::{self, Frozen};
use crate::os::mountinfo::MountTable;
use crate::os::path::Root;
use crate::os::step::step;
use crate::volume::{Error, Result, VolumeId};

use super::journal::{Access, FrozenEntry, Journal, Phase, VERSION};
use super::observe::{self, At};
use super::{Node, unexpected};

/// A copy without reflink of a large volume takes that long; after it the volume's user comes first.
const LONGEST: Duration = Duration::from_secs(600);

/// Thaws when dropped. Nothing is in it where nothing had to be frozen.
struct Hold {
    journal: Arc<Journal>,
    frozen: Option<Frozen>,
    /// What the journal has of it.
    record: Option<String>,
}

pub(super) fn hold(node: &Node, volumes: &[VolumeId]) -> Result<Box<dyn Held>> {
    let mut mounts = Vec::new();
    let mut paths: Vec<PathBuf> = Vec::new();
    for id in volumes {
        if let Some((path, mount)) = prepare(node, id)?
            && !paths.contains(&path)
        {
            paths.push(path);
            mounts.push(mount);
        }
    }
    if mounts.is_empty() {
        return Ok(Box::new(Hold { journal: node.journal.clone(), frozen: None, record: None }));
    }
    let number = node.freezes.fetch_add(1, Ordering::Relaxed);
    let entry = FrozenEntry { version: VERSION, mounts: paths, boot: node.boot.clone() };
    let record = node.journal.write_frozen(number, &entry)?;
    let borrowed: Vec<_> = mounts.iter().map(AsFd::as_fd).collect();
    let names = entry.mounts.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    match step("freeze", &names, || freeze::freeze(&borrowed, LONGEST)) {
        Ok(frozen) => Ok(Box::new(Hold { journal: node.journal.clone(), frozen: Some(frozen), record: Some(record) })),
        Err(error) => {
            let error = Error::from(error);
            Err(match node.journal.remove_frozen(&record) {
                Ok(()) => error,
                Err(left) => error.but_left(left.to_string()),
            })
        }
    }
}

/// What must be frozen of a volume; a raw device is flushed.
fn prepare(node: &Node, id: &VolumeId) -> Result<Option<(PathBuf, OwnedFd)>> {
    let entry = node.journal.stage(id)?.filter(|entry| entry.phase == Phase::Staged && node.same_boot(entry));
    let (connected, _) = node.sources(id, entry.as_ref())?;
    let Some(source) = connected else { return Ok(None) };
    if let Some(entry) = entry.filter(|entry| entry.access != Access::Block && !entry.read_only) {
        let sources = std::slice::from_ref(&source);
        if let At::Ours(_) = observe::at(&MountTable::read()?, &entry.staging, sources) {
            let mount = open_mount(node.root_of(&entry), &entry.staging)?
                .ok_or_else(|| unexpected(&entry.staging, "the staging folder vanished"))?;
            return Ok(Some((entry.staging, mount)));
        }
    }
    if let Source::Device(device) = &source {
        let open = Device::open(&device.path, false)?;
        if open.number() == device.number {
            step("flush", &device.path.display(), || open.flush())?;
        }
    }
    Ok(None)
}

/// A descriptor that FIFREEZE takes.
fn open_mount(root: &Root, path: &Path) -> Result<Option<OwnedFd>> {
    let Some(place) = root.open_path(path)? else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mount =
        rustix::fs::openat(&place, ".", flags, Mode::empty()).map_err(|errno| os::Error::io("open mount", path, errno))?;
    Ok(Some(mount))
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

impl Held for Hold {
    fn release(mut self: Box<Self>) -> Result<()> {
        let Err(error) = self.end() else { return Ok(()) };
        // The record must not stay: it would thaw at the next start what someone else holds still by then.
        match self.end() {
            Ok(()) => Err(error),
            Err(left) => Err(error.but_left(left.to_string())),
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

/// Thaws what an earlier process left frozen. The guard child does so when its parent dies; this is for the case
/// that it was killed too.
pub(super) fn thaw_left(node: &Node) -> Result<()> {
    for (record, entry) in node.journal.frozen()? {
        if entry.boot == node.boot {
            for path in &entry.mounts {
                thaw_one(node, path)?;
            }
        }
        node.journal.remove_frozen(&record)?;
    }
    Ok(())
}

fn thaw_one(node: &Node, path: &Path) -> Result<()> {
    let root = if path.starts_with(node.kubelet.path()) { &node.kubelet } else { &node.state };
    let table = MountTable::read()?;
    if table.at(path).is_empty() {
        return Ok(());
    }
    if let Some(mount) = open_mount(root, path)? {
        step("thaw", &path.display(), || freeze::thaw(mount.as_fd()))?;
        tracing::warn!(path = %path.display(), "thawed what an earlier process may have left frozen");
    }
    Ok(())
}

//! The start: journal and kernel are compared, and what a kill interrupted is finished or undone.
//!
//! A volume may hang with its storage. So the volumes that need recovery are locked before any call is taken, and recovered on threads
//! of their own, each released when it is done: calls about it are ABORTED until then, those about others are not held up. One that
//! cannot be recovered is reported; its next call tries again.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::backend::Backend;
use crate::ops::lock::{Guard, Key};
use crate::os::mountinfo::{Mount, MountTable};
use crate::os::mounts::Mounts;
use crate::volume::error::chain;
use crate::volume::{Result, VolumeId};

use super::context::Node;
use super::device_use::{allow_writes, close_mapping, ensure_unused};
use super::journal::{Access, Phase, StageEntry, TargetEntry};
use super::mounts::{mounted_target, remove_place, unmount_all};
use super::observe::{self, MountState};
use super::quiesce::{self, THAW_PATIENCE};
use super::sources::Sources;
use super::unstage::finish;
use super::{inline, resolve};

/// Threads that recovery begins with.
const THREADS: usize = 4;
/// Where nothing was recovered for so long, what runs may hang: one more thread continues with the rest.
const STALLED: Duration = Duration::from_millis(100);

/// What is to be recovered, and what is at it.
struct Recovery {
    node: Arc<Node>,
    queue: Mutex<Queue>,
    /// Something was recovered.
    ended: Condvar,
}

struct Queue {
    waiting: VecDeque<Job>,
    /// Waiting or running.
    unfinished: usize,
}

enum Job {
    Volume(Box<Interrupted>),
    /// What the backend lets go of that no volume has.
    Backend(Arc<dyn Backend>),
}

/// A volume of which something was interrupted, and what the journal has of it. It is locked until it is recovered.
struct Interrupted {
    id: VolumeId,
    entry: Option<StageEntry>,
    targets: Vec<TargetEntry>,
    _guard: Guard,
}

/// Locks what needs recovery and begins it; waits for its end, at most for `patience`.
pub(super) fn recover(node: &Arc<Node>, patience: Duration) {
    let deadline = Instant::now().checked_add(patience);
    let mut waiting: VecDeque<Job> = VecDeque::new();
    begin(node, &mut waiting);
    waiting.extend(node.registry.iter().map(|backend| Job::Backend(backend.clone())));
    let unfinished = waiting.len();
    let queue = Mutex::new(Queue { waiting, unfinished });
    let recovery = Arc::new(Recovery { node: node.clone(), queue, ended: Condvar::new() });
    let own = recovery.clone();
    if let Err(error) = spawn(move || own.supervise()) {
        tracing::error!(%error, "no thread for the recovery of what was interrupted: the start waits for it");
        recovery.supervise();
        recovery.work();
    }
    let left = recovery.wait(deadline);
    if left > 0 {
        tracing::warn!(
            left,
            "what was interrupted is still being recovered; calls about these volumes are ABORTED until it is done"
        );
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("recovery".to_owned()).spawn(work).map(drop)
}

impl Recovery {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until all is done, or the deadline; answers how much is not.
    fn wait(&self, deadline: Option<Instant>) -> usize {
        let mut queue = self.queue();
        while queue.unfinished > 0 {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            queue = match self.ended.wait_timeout(queue, left) {
                Ok((queue, _)) => queue,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        queue.unfinished
    }

    /// Thaws, then sees to it that something continues with what waits.
    fn supervise(self: &Arc<Self>) {
        let (node, (thawing, thawed)) = (self.node.clone(), mpsc::channel::<()>());
        let thaw = move || {
            thaw(&node);
            drop(thawing);
        };
        match spawn(thaw) {
            // A disk that is gone must not hold up the volumes of others.
            Ok(()) => drop(thawed.recv_timeout(THAW_PATIENCE)),
            Err(_) => self::thaw(&self.node),
        }
        let mut threads = 0;
        let mut unfinished = usize::MAX;
        loop {
            let queue = self.queue();
            if queue.waiting.is_empty() {
                return;
            }
            let stalled = std::mem::replace(&mut unfinished, queue.unfinished) == queue.unfinished;
            drop(queue);
            if threads < THREADS || stalled {
                let own = self.clone();
                match spawn(move || own.work()) {
                    Ok(()) => threads += 1,
                    Err(_) if threads == 0 => return self.work(),
                    // Those that there are continue.
                    Err(error) => {
                        tracing::debug!(%error, "no further thread for the recovery");
                        self.pause();
                    }
                }
            }
            if threads >= THREADS {
                self.pause();
            }
        }
    }

    /// Until something was recovered, or nothing was for [`STALLED`].
    fn pause(&self) {
        drop(self.ended.wait_timeout(self.queue(), STALLED));
    }

    /// Recovers one after another until nothing waits.
    fn work(&self) {
        loop {
            let Some(job) = self.queue().waiting.pop_front() else { return };
            let _ended = Ended(self);
            match job {
                Job::Volume(volume) => {
                    let id = volume.id.clone();
                    if let Err(error) = recover_locked(&self.node, *volume) {
                        not_recovered(&id, &error);
                    }
                }
                Job::Backend(backend) => backend.connect().recover(),
            }
        }
    }
}

/// One job less, also after a panic.
struct Ended<'a>(&'a Recovery);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.queue().unfinished -= 1;
        self.0.ended.notify_all();
    }
}

fn not_recovered(id: &VolumeId, error: &crate::volume::Error) {
    tracing::error!(volume = %id, error = %chain(error), "not recovered; the next stage or unstage of it tries again");
}

fn thaw(node: &Node) {
    if let Err(error) = quiesce::thaw_left(node) {
        tracing::error!(error = %chain(&error), "what an earlier process left frozen; run `fsfreeze -u` on the mount if a volume hangs");
    }
    node.thawed.store(true, Ordering::Release);
}

/// Locks the volumes of which something was interrupted. Reads the journal and mountinfo only, so that it waits for no storage.
fn begin(node: &Node, waiting: &mut VecDeque<Job>) {
    if let Err(error) = node.journal.sweep() {
        tracing::error!(error = %chain(&error), "half-written files in the journal's directory could not be removed");
    }
    let volumes = match node.journal.volumes() {
        Ok(volumes) => volumes,
        Err(error) => {
            tracing::error!(error = %chain(&error), "the journal's directory cannot be read; nothing was recovered");
            return;
        }
    };
    let table = MountTable::read().unwrap_or_else(|error| {
        tracing::error!(%error, "mountinfo cannot be read");
        MountTable::default()
    });
    let mounted = by_place(&table);
    for id in volumes {
        match lock_interrupted(node, &id, &mounted) {
            Ok(Some(volume)) => waiting.push_back(Job::Volume(Box::new(volume))),
            Ok(None) => {}
            Err(error) => not_recovered(&id, &error),
        }
    }
}

/// `None` where nothing was interrupted.
fn lock_interrupted(node: &Node, id: &VolumeId, mounted: &HashMap<&Path, Vec<&Mount>>) -> Result<Option<Interrupted>> {
    let _guard = node.locks.exclusive(Key::Volume(id.clone()), "recover")?;
    let entry = node.journal.stage(id)?;
    let targets = node.journal.targets(id)?;
    node.journal.found(id, entry.as_ref(), &targets);
    let whole = is_whole(node, entry.as_ref(), &targets, mounted);
    Ok((!whole).then(|| Interrupted { id: id.clone(), entry, targets, _guard }))
}

pub(super) fn by_place(table: &MountTable) -> HashMap<&Path, Vec<&Mount>> {
    let mut mounted: HashMap<&Path, Vec<&Mount>> = HashMap::new();
    for mount in table.iter() {
        mounted.entry(&mount.mount_point).or_default().push(mount);
    }
    mounted
}

/// Whether nothing was interrupted, by what the journal and one reading of mountinfo say: so it is for nearly all volumes, and the
/// start must not cost more than that for each.
fn is_whole(node: &Node, entry: Option<&StageEntry>, targets: &[TargetEntry], mounted: &HashMap<&Path, Vec<&Mount>>) -> bool {
    let Some(entry) = entry else { return targets.is_empty() };
    // Write protection is to be looked at.
    let block = entry.access == Access::Block;
    let sources = entry.shown();
    let published = |target: &TargetEntry| {
        mounted.get(target.target.as_path()).is_some_and(|mounts| mounts.iter().all(|mount| observe::is_of(mount, &sources)))
    };
    // Earlier versions mounted it there, where no kubelet unstaged it.
    let shared = entry.network_directory().is_some() && mounted.contains_key(entry.staging.as_path());
    entry.phase == Phase::Staged && node.same_boot(entry) && !block && !shared && targets.iter().all(published)
}

pub(super) fn recover_volume(node: &Node, id: &VolumeId, mounted: &HashMap<&Path, Vec<&Mount>>) -> Result<()> {
    match lock_interrupted(node, id, mounted)? {
        Some(volume) => recover_locked(node, volume),
        None => Ok(()),
    }
}

fn recover_locked(node: &Node, volume: Interrupted) -> Result<()> {
    let Interrupted { id, entry, targets, _guard } = volume;
    let staged = entry.as_ref().filter(|entry| entry.phase == Phase::Staged && node.same_boot(entry));
    let unmounted = match staged.filter(|entry| entry.network_directory().is_some()) {
        Some(entry) => unmount_all(node.root_of(entry), &entry.staging, &entry.shown()).map(drop),
        None => Ok(()),
    };
    recover_targets(node, &id, entry.as_ref(), &targets)?;
    let Some(entry) = entry else { return Ok(()) };
    match entry.phase {
        Phase::Staged if node.same_boot(&entry) => unmounted,
        Phase::Staged => {
            tracing::info!(volume = %id, "staged before the last boot; it must be staged again before it is published");
            Ok(())
        }
        Phase::Staging | Phase::Unstaging => undo(node, entry),
    }
}

/// No call reported success of a stage that is not whole, so nobody can miss it. What remembers a mkfs or a growth that was interrupted
/// stays: the CO will stage again, or unstage.
fn undo(node: &Node, entry: StageEntry) -> Result<()> {
    let id = entry.id.clone();
    if entry.phase == Phase::Staging && entry.is_interrupted() {
        let sources = Sources::observe(node, &id, Some(&entry))?;
        unmount_all(node.root_of(&entry), &entry.staging, &sources.all)?;
        close_mapping(node, &id)?;
        if let Some(source) = sources.connected {
            ensure_unused(node, &id, &source)?;
            resolve::backend(node, &id)?.connect().disconnect(&id, Some(&source))?;
        }
        tracing::warn!(volume = %id, path = %entry.staging.display(), "its mkfs or its growth was interrupted; the next stage ends it");
        return Ok(());
    }
    tracing::warn!(volume = %id, path = %entry.staging.display(), phase = ?entry.phase, "a stage or unstage was interrupted; undone");
    let inline = entry.inline;
    finish(node, entry)?;
    if inline { inline::delete(node, &id) } else { Ok(()) }
}

/// A target that is mounted is whole: a mount appears in one instant, with all its attributes. One that is not was interrupted
/// before, or after its unmounting.
fn recover_targets(node: &Node, id: &VolumeId, entry: Option<&StageEntry>, targets: &[TargetEntry]) -> Result<()> {
    let sources = Sources::observe(node, id, entry)?;
    let mounts = Mounts::now()?;
    let mut protected = false;
    for target in targets {
        let mounted = sources.at_target(&mounts, Some(target), &node.boot)?;
        if mounted_target(&mounts, target, &mounted)? {
            protected |= target.block && target.read_only;
            continue;
        }
        if let MountState::Foreign(mount) = observe::at(&mounts, &target.target, &mounted)? {
            tracing::error!(
                volume = %id, path = %target.target.display(), source = %mount.source.display(),
                "something else is mounted at a published target; unmount it, then unpublish the volume"
            );
            continue;
        }
        if target.boot == node.boot {
            tracing::warn!(volume = %id, path = %target.target.display(), "a publish or unpublish was interrupted; undone");
            remove_place(&node.kubelet, &target.target)?;
        }
        node.journal.remove_target(id, &target.target)?;
    }
    match entry.filter(|entry| entry.access == Access::Block && !entry.read_only && !protected) {
        Some(entry) => sources.used(entry.encryption()?).map_or(Ok(()), |source| allow_writes(&source)),
        None => Ok(()),
    }
}

//! What all workers share: where things are, whether the driver is up, what was counted and what was found wrong.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longshore::volume::SnapshotId;
use tokio::runtime::Runtime;

use super::common::{Harness, loop_files};
use super::model::{SNAPSHOTS, Slot, TARGETS};

/// A driver is back within this time, also on a busy machine.
pub const BACK: Duration = Duration::from_secs(20);
/// Lines kept of what was done to one volume.
const HISTORY: usize = 120;

/// The driver as the workers see it.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// Counts the processes.
    pub incarnation: u64,
    pub up: bool,
    /// Its steps may fail: errors that nothing else explains are explained by that.
    pub may_fail: bool,
}

/// Whether a volume exists, as far as those know who do not own it: changed whenever it becomes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Unsure,
    Present,
    Absent,
}

/// One volume's name, with all that belongs to it.
pub struct Place {
    pub index: usize,
    pub slot: Mutex<Slot>,
    history: Mutex<VecDeque<String>>,
    /// A version, and in the two lowest bits a [`Known`].
    known: AtomicU64,
}

impl Place {
    pub fn name(&self) -> String {
        format!("v{:03}", self.index)
    }
    pub fn volume_id(&self) -> String {
        format!("image:{}", self.name())
    }
    pub fn snapshot_name(&self, number: usize) -> String {
        format!("s{:03}-{number}", self.index)
    }
    pub fn snapshot_id(&self, number: usize) -> String {
        format!("image:{}", self.snapshot_name(number))
    }
    pub fn group_name(&self) -> String {
        format!("g{:03}", self.index)
    }
    pub fn group_id(&self) -> String {
        format!("image:{}", self.group_name())
    }
    /// The snapshot of `volume` in this group.
    pub fn member_id(&self, volume: &str) -> SnapshotId {
        SnapshotId::derive(&"image".parse().expect("a name"), &format!("{}/{volume}", self.group_name()))
    }

    pub fn try_own(&self) -> Option<MutexGuard<'_, Slot>> {
        self.slot.try_lock().ok()
    }

    pub fn mark(&self, known: Known) {
        let state = match known {
            Known::Unsure => 0,
            Known::Present => 1,
            Known::Absent => 2,
        };
        let version = self.known.load(Ordering::SeqCst) >> 2;
        self.known.store((version + 1) << 2 | state, Ordering::SeqCst);
    }

    /// What is known, with its version: the same twice was so all the time between.
    pub fn known(&self) -> (u64, Known) {
        let known = self.known.load(Ordering::SeqCst);
        let state = match known & 3 {
            1 => Known::Present,
            2 => Known::Absent,
            _ => Known::Unsure,
        };
        (known >> 2, state)
    }

    pub fn note(&self, line: String) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if history.len() == HISTORY {
            history.pop_front();
        }
        history.push_back(line);
    }
}

#[derive(Default)]
pub struct Counts {
    pub operations: AtomicU64,
    pub refused: AtomicU64,
    pub cut: AtomicU64,
    pub compared: AtomicU64,
}

pub struct Shared {
    pub seed: u64,
    pub begun: Instant,
    pub runtime: Runtime,
    pub places: Vec<Place>,
    pub counts: Counts,
    pub stop: AtomicBool,
    /// No more kills: an operation is carried to its end.
    pub closing: AtomicBool,
    pub violations: Mutex<Vec<String>>,
    pub socket: PathBuf,
    pools: [PathBuf; 2],
    kubelet: PathBuf,
    journal: PathBuf,
    driver: Mutex<Driver>,
    changed: Condvar,
}

impl Shared {
    pub fn new(harness: &Harness, seed: u64, volumes: usize) -> Shared {
        let place = |index| Place {
            index,
            slot: Mutex::default(),
            history: Mutex::default(),
            known: AtomicU64::new(2), // absent
        };
        let shared = Shared {
            seed,
            begun: Instant::now(),
            runtime: tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"),
            places: (0..volumes).map(place).collect(),
            counts: Counts::default(),
            stop: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            violations: Mutex::default(),
            socket: harness.path("csi.sock"),
            pools: ["pool/images", "pool/plain/images"].map(|pool| harness.path(pool)),
            kubelet: harness.path("kubelet"),
            journal: harness.path("state/journal"),
            driver: Mutex::new(Driver { incarnation: 0, up: false, may_fail: false }),
            changed: Condvar::new(),
        };
        for place in &shared.places {
            fs::create_dir_all(shared.staging(place)).expect("a staging directory");
            for target in 0..TARGETS {
                fs::create_dir_all(shared.target(place, target).parent().expect("a parent")).expect("a pod's directory");
            }
        }
        shared
    }

    pub fn staging(&self, place: &Place) -> PathBuf {
        self.kubelet.join("plugins").join(place.name()).join("globalmount")
    }
    pub fn target(&self, place: &Place, target: usize) -> PathBuf {
        self.kubelet.join("pods").join(format!("{}-{target}", place.name())).join("mount")
    }

    pub fn down(&self) {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner).up = false;
    }

    pub fn up(&self, may_fail: bool) {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        *driver = Driver { incarnation: driver.incarnation + 1, up: true, may_fail };
        self.changed.notify_all();
    }

    pub fn incarnation(&self) -> u64 {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner).incarnation
    }

    /// Waits for a driver that is up, and is another than `but`.
    pub fn wait_up(&self, but: u64) -> Driver {
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |driver: &mut Driver| !driver.up || driver.incarnation == but;
        let (driver, timeout) = self.changed.wait_timeout_while(driver, BACK, waits).unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "no driver answers: {driver:?}, waiting for another than {but}");
        *driver
    }

    pub fn stamp(&self) -> String {
        format!("{:8.3} #{}", self.begun.elapsed().as_secs_f64(), self.incarnation())
    }

    /// Tells it at once, with all that was done to the volume.
    pub fn violation(&self, place: Option<&Place>, what: &str) {
        let name = place.map_or("the driver".to_owned(), Place::volume_id);
        let mut text = format!("{} seed {}: {name}: {what}", self.stamp(), self.seed);
        if let Some(place) = place {
            for line in place.history.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                text.push_str("\n    ");
                text.push_str(line);
            }
        }
        eprintln!("VIOLATION {text}");
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// What a volume's deletion kept, in `retained` or `archive`.
    pub fn kept(&self, place: &Place, directory: &str) -> Vec<PathBuf> {
        let ours = format!("{}.", place.name());
        let entries = self.pools.iter().filter_map(|pool| fs::read_dir(pool.join(directory)).ok()).flatten();
        entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&ours))
            .map(|entry| entry.path())
            .collect()
    }

    /// What the kernel, the pools and the journal show of a volume and what belongs to it.
    pub fn seen(&self, place: &Place, members: &[String]) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut objects = vec![("volume", "volumes", place.name(), "volume".to_owned())];
        for number in 0..SNAPSHOTS {
            objects.push(("snapshot", "snapshots", place.snapshot_name(number), format!("snapshot {number}")));
        }
        for member in members {
            objects.push(("snapshot", "snapshots", place.member_id(member).local().to_owned(), format!("member {member}")));
        }
        for pool in &self.pools {
            for (kind, directory, local, called) in &objects {
                for (at, prefix) in [
                    (pool.join(directory).join(local), ""),
                    (passing(pool, "tmp", kind, local), "half-made "),
                    (passing(pool, "trash", kind, local), "half-deleted "),
                ] {
                    seen.extend(at.exists().then(|| format!("{prefix}{called}")));
                }
            }
            seen.extend(pool.join("groups").join(format!("{}.json", place.group_name())).exists().then(|| "group".to_owned()));
        }
        let images =
            self.pools.each_ref().map(|pool| pool.join("volumes").join(place.name()).join("image").display().to_string());
        for (device, _) in loop_files().into_iter().filter(|(_, file)| images.contains(file)) {
            if !seen.insert("loop device".to_owned()) {
                seen.insert(format!("a second loop device, {device}"));
            }
        }
        let mut points: Vec<(PathBuf, String)> =
            (0..TARGETS).map(|target| (self.target(place, target), format!("target {target}"))).collect();
        for (path, called) in &points {
            seen.extend(path.exists().then(|| called.clone()));
        }
        points.push((self.staging(place), "staging".to_owned()));
        for (point, read_only) in mounts() {
            if let Some((_, called)) = points.iter().find(|(path, _)| *path == Path::new(&point)) {
                let mounted = format!("mount {} at {called}", if read_only { "ro" } else { "rw" });
                if !seen.insert(mounted.clone()) {
                    seen.insert(format!("a second {mounted}"));
                }
            }
        }
        let journal = fs::read_dir(self.journal.join(place.volume_id()));
        let names: Vec<String> =
            journal.into_iter().flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        for name in &names {
            if !name.starts_with("target-") {
                seen.insert(format!("journal {name}"));
            }
        }
        let targets = names.iter().filter(|name| name.starts_with("target-")).count();
        if targets > 0 {
            seen.insert(format!("journal of {targets} targets"));
        }
        seen
    }

    /// What `seen` must be, by what is known.
    pub fn expected(&self, slot: &Slot) -> BTreeSet<String> {
        let mut expected = BTreeSet::new();
        for (number, _) in slot.snapshots.iter().enumerate().filter(|(_, snapshot)| snapshot.is_some()) {
            expected.insert(format!("snapshot {number}"));
        }
        if let Some(group) = &slot.group {
            expected.insert("group".to_owned());
            expected.extend(group.members.keys().map(|member| format!("member {member}")));
        }
        let Some(volume) = &slot.volume else { return expected };
        expected.insert("volume".to_owned());
        if !volume.staged {
            return expected;
        }
        expected.insert("loop device".to_owned());
        expected.insert("journal stage.json".to_owned());
        if !volume.raw() {
            expected.insert("mount rw at staging".to_owned());
        }
        let targets: Vec<usize> = volume.published().collect();
        for target in &targets {
            let way = if volume.targets[*target] == Some(true) { "ro" } else { "rw" };
            expected.insert(format!("target {target}"));
            expected.insert(format!("mount {way} at target {target}"));
        }
        if !targets.is_empty() {
            expected.insert(format!("journal of {} targets", targets.len()));
        }
        expected
    }
}

fn passing(pool: &Path, directory: &str, kind: &str, local: &str) -> PathBuf {
    pool.join(directory).join(format!("{kind}~{local}"))
}

/// Every mount point, and whether it is read-only.
fn mounts() -> Vec<(String, bool)> {
    let table = fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
    let fields = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.map(|fields| (fields[4].to_owned(), fields[5].split(',').any(|option| option == "ro"))).collect()
}

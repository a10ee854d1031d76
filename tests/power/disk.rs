//! A disk whose writes and flushes are recorded, and what of them is there after a power cut.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::FallocateFlags;

use crate::common::{Harness, LoopDevice, loop_files, run, text};
use crate::one_file::{self, Storage};

const DISK: u64 = 512 << 20;
/// What the storage writes whole or not at all.
const SECTOR: usize = 4096;
const NONE: Option<&str> = None;

/// Writes in the order in which they came, and the number of writes before each flush.
#[derive(Default)]
pub struct Log {
    writes: Vec<(u64, Vec<u8>)>,
    flushes: Vec<usize>,
}

/// The log while it is written; tells the time in flushes.
#[derive(Clone, Default)]
pub struct Clock(Arc<Mutex<Log>>);

impl Clock {
    pub fn now(&self) -> usize {
        self.0.lock().expect("the log").flushes.len()
    }
}

/// The disk under the pool and the state directory. Nothing between it and the loop device keeps a write back.
struct Recorder {
    file: File,
    log: Clock,
}

impl Storage for Recorder {
    fn size(&self) -> u64 {
        DISK
    }

    fn read(&self, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; size];
        let length = self.file.read_at(&mut bytes, offset)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut log = self.log.0.lock().expect("the log");
        self.file.write_all_at(data, offset)?;
        log.writes.push((offset, data.to_vec()));
        Ok(())
    }

    fn sync(&self) {
        let mut log = self.log.0.lock().expect("the log");
        let writes = log.writes.len();
        log.flushes.push(writes);
    }
}

/// A file system over a loop device, mounted as the pool; its directory `state` is the state directory. Also unmounted when the
/// test fails.
pub struct Mounted {
    points: [PathBuf; 2],
    // Dropped after the unmount.
    _device: LoopDevice,
}

impl Mounted {
    /// Makes a file system of type `new` first, if given.
    fn over(file: &Path, fstype: &str, harness: &Harness, new: bool) -> Mounted {
        let device = LoopDevice::over(file);
        if new {
            let whole =
                if ["xfs", "btrfs"].contains(&fstype) { "-K" } else { "-Enodiscard,lazy_itable_init=0,lazy_journal_init=0" };
            run(&format!("mkfs.{fstype}"), ["-q", whole, &device.0]);
        }
        let [pool, state] = ["pool", "state"].map(|name| harness.path(name));
        mount(Some(device.0.as_str()), &pool, Some(fstype), MsFlags::empty(), NONE)
            .unwrap_or_else(|error| panic!("the pool is not mounted: {error}; the kernel says:\n{}", kernel_log_end()));
        let mounted = Mounted { points: [state.clone(), pool.clone()], _device: device };
        if new {
            ["images", "state"].iter().for_each(|name| fs::create_dir(pool.join(name)).expect("a directory"));
        }
        mount(Some(&pool.join("state")), &state, NONE, MsFlags::MS_BIND, NONE).expect("the state directory is mounted");
        mounted
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for point in &self.points {
            umount2(point, MntFlags::empty()).or_else(|_| umount2(point, MntFlags::MNT_DETACH)).ok();
        }
    }
}

/// A run of the driver on a recorded disk, which ended without its power.
pub struct Recording<T> {
    pub fstype: &'static str,
    pub result: T,
    /// The first and the last flush of the run.
    pub flushes: [usize; 2],
    disk: Disk,
    prepare: Prepare,
}

/// What is done between the mount of the pool and the start of the driver.
pub type Prepare = fn(&Harness);

impl<T> Recording<T> {
    /// Starts a driver on a new file system, and records until `work` returns.
    pub fn new(
        harness: &mut Harness,
        fstype: &'static str,
        prepare: Prepare,
        work: impl FnOnce(&Harness, &Clock) -> T,
    ) -> Recording<T> {
        let (recorded, base) = (harness.path("recorded"), harness.path("base"));
        File::create_new(&recorded).and_then(|file| file.set_len(DISK)).expect("a disk");
        let (result, log, first) = record(harness, &recorded, fstype, true, prepare, work);
        assert!(first > 0, "a flush of the loop device is a sync of its file");
        fs::remove_file(&recorded).expect("the disk");
        File::create_new(&base).and_then(|file| file.set_len(DISK)).expect("a disk");
        Recording { fstype, result, flushes: [first, log.flushes.len()], disk: Disk::new(log, base), prepare }
    }

    /// As `new`, on the disk as it is after a power cut of this one.
    pub fn after_cut<R>(
        &mut self,
        harness: &mut Harness,
        cut: &PowerCut,
        work: impl FnOnce(&Harness, &T, &Clock) -> R,
    ) -> Recording<R> {
        let (recorded, base) = (harness.path("recorded"), harness.path("base-of-second"));
        self.disk.cut(cut, &recorded);
        run("cp", [&recorded, &base]);
        let (result, log, _) =
            record(harness, &recorded, self.fstype, false, self.prepare, |harness, clock| work(harness, &self.result, clock));
        fs::remove_file(&recorded).expect("the disk");
        // From its start on: recovery of the file system and of the driver is what is cut.
        Recording {
            fstype: self.fstype,
            result,
            flushes: [1, log.flushes.len()],
            disk: Disk::new(log, base),
            prepare: self.prepare,
        }
    }

    /// A cut at each flush that made something certain, and `more` somewhere between them.
    pub fn cuts(&self, more: usize, mut seed: u64) -> Vec<PowerCut> {
        let [first, last] = self.flushes;
        let log = &self.disk.log.flushes;
        // Of flushes with no write between them the last one has all answers that need them.
        let telling = (first..=last).filter(|flush| log.get(*flush) != Some(&log[flush - 1]));
        let mut cuts: Vec<PowerCut> = telling.map(PowerCut::at).collect();
        for _ in 0..more {
            cuts.push(self.somewhere(&mut seed));
        }
        cuts.sort_by_key(|cut| cut.flush);
        cuts
    }

    /// A cut between two flushes.
    pub fn somewhere(&self, seed: &mut u64) -> PowerCut {
        let [first, last] = self.flushes;
        let flush = first + below(last - first + 1, seed);
        PowerCut { flush, seed: Some(next(seed)) }
    }

    /// Starts a driver on the disk as it is after this power cut, for as long as `check` runs.
    pub fn after<R>(&mut self, harness: &mut Harness, cut: &PowerCut, check: impl FnOnce(&Harness, &T) -> R) -> R {
        let disk = harness.path("disk");
        self.disk.cut(cut, &disk);
        harness.forget_log();
        let mounted = Mounted::over(&disk, self.fstype, harness, false);
        (self.prepare)(harness);
        assert!(harness.try_start(), "{}: the driver does not start after {cut:?}: {}", self.fstype, harness.log());
        let result = check(harness, &self.result);
        clear_node(harness);
        drop(mounted);
        await_unbound(&disk);
        fs::remove_file(&disk).expect("the disk");
        result
    }
}

/// Starts a driver on this disk and records its writes until `work` returns and the node is off; also says which flush was the first behind
/// its start.
fn record<R>(
    harness: &mut Harness,
    file: &Path,
    fstype: &str,
    new: bool,
    prepare: Prepare,
    work: impl FnOnce(&Harness, &Clock) -> R,
) -> (R, Log, usize) {
    let point = harness.path("fuse");
    let clock = Clock::default();
    fs::create_dir_all(&point).expect("a mount point");
    let file = File::options().read(true).write(true).open(file).expect("a file");
    let served = one_file::serve(Recorder { file, log: clock.clone() }, &point);
    let mounted = Mounted::over(&point.join(one_file::NAME), fstype, harness, new);
    prepare(harness);
    harness.forget_log();
    harness.start();
    run("sync", ["-f", &text(&harness.path("pool"))]);
    let first = clock.now();
    let result = work(harness, &clock);
    let log = std::mem::take(&mut *clock.0.lock().expect("the log"));
    clear_node(harness);
    drop(mounted);
    await_unbound(&point.join(one_file::NAME));
    served.end();
    reboot(harness);
    (result, log, first)
}

/// What starts next does so after another boot.
fn reboot(harness: &Harness) {
    let boot = harness.path("boot");
    let id = "/proc/sys/kernel/random/boot_id";
    let number = fs::read_to_string(&boot).map_or(0, |before| before.trim_end()[24..].parse::<u64>().expect("a number")) + 1;
    let first = !boot.exists();
    fs::write(&boot, format!("11111111-2222-3333-4444-{number:012}\n")).expect("a boot id");
    if first {
        mount(Some(&boot), id, NONE, MsFlags::MS_BIND, NONE).expect("another boot");
    }
}

/// The driver ends, and with it all mounts and loop devices of volumes, as in a reboot.
fn clear_node(harness: &mut Harness) {
    harness.kill();
    for point in volume_mounts(harness).iter().rev() {
        umount2(point.as_str(), MntFlags::UMOUNT_NOFOLLOW).expect("unmounted");
    }
    harness.power_off();
}

/// Waits until the file system over this file is gone: a process of another test that is between fork and exec keeps it when it
/// was unmounted, and xfs refuses to mount the next one with the same UUID. Also waits for those that have looked at the loop
/// device while it was detached.
fn await_unbound(file: &Path) {
    let begun = Instant::now();
    while loop_files().iter().any(|(_, backing)| *backing == text(file)) {
        assert!(begun.elapsed() < Duration::from_secs(10), "a loop device is still bound to {}", file.display());
        std::thread::yield_now();
    }
}

/// The last lines of the kernel's log.
fn kernel_log_end() -> String {
    let log = run("dmesg", [] as [&str; 0]);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

/// Mounts of volumes.
pub fn volume_mounts(harness: &Harness) -> Vec<String> {
    let state = text(&harness.path("state"));
    harness.mounts().into_iter().filter(|point| *point != state).collect()
}

/// A moment at which the power fails: what came before this flush is there. Of what came after it, until the next, nothing is
/// there, or what the seed decides.
#[derive(Debug)]
pub struct PowerCut {
    pub flush: usize,
    seed: Option<u64>,
}

impl PowerCut {
    pub fn at(flush: usize) -> PowerCut {
        PowerCut { flush, seed: None }
    }
}

/// A recorded disk, from the first write to some later one.
struct Disk {
    log: Log,
    /// As it was before the first write.
    before: PathBuf,
    path: PathBuf,
    file: File,
    written: usize,
}

impl Disk {
    fn new(log: Log, before: PathBuf) -> Disk {
        let path = before.with_extension("later");
        run("cp", [&before, &path]);
        let file = File::options().read(true).write(true).open(&path).expect("a disk");
        Disk { log, before, path, file, written: 0 }
    }

    /// Puts the disk as it is after a power cut into a new file.
    fn cut(&mut self, cut: &PowerCut, to: &Path) {
        let certain = self.log.flushes[cut.flush - 1];
        if self.written > certain {
            run("cp", [&self.before, &self.path]);
            self.written = 0;
        }
        for (offset, data) in &self.log.writes[self.written..certain] {
            write(&self.file, *offset, data);
        }
        self.written = certain;
        run("cp", [&self.path, to]);
        let Some(mut seed) = cut.seed else { return };
        let file = File::options().write(true).open(to).expect("the disk");
        let end = self.log.flushes.get(cut.flush).copied().unwrap_or(self.log.writes.len());
        let end = certain + below(end - certain + 1, &mut seed);
        // Nearly nothing, half, or nearly all of it.
        let kept = [1, 4, 7][below(3, &mut seed)];
        for (offset, data) in &self.log.writes[certain..end] {
            for (sector, at) in data.chunks(SECTOR).zip((*offset..).step_by(SECTOR)) {
                if next(&mut seed) % 8 < kept {
                    write(&file, at, sector);
                }
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for path in [&self.before, &self.path] {
            fs::remove_file(path).expect("the disk");
        }
    }
}

/// Writes, and leaves zeroes a hole.
fn write(file: &File, offset: u64, data: &[u8]) {
    if data.iter().all(|byte| *byte == 0) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, flags, offset, data.len() as u64).expect("a hole");
    } else {
        file.write_all_at(data, offset).expect("written");
    }
}

/// The next of a sequence that looks random (xorshift).
pub fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// A number below this one, by chance.
pub fn below(number: usize, seed: &mut u64) -> usize {
    usize::try_from(next(seed) % number as u64).expect("small")
}

/// Bytes that only this seed gives, 64 KiB: it, over and over.
pub fn pattern(seed: u64) -> Vec<u8> {
    seed.to_le_bytes().repeat(8 << 10)
}

/// When calls of one client, which makes one after the other, began and were answered, in flushes.
#[derive(Clone, Debug, Default)]
pub struct Calls(Vec<[usize; 2]>);

impl Calls {
    /// So many, all from before the record.
    pub fn answered_before(number: usize) -> Calls {
        Calls(vec![[0, 0]; number])
    }

    pub fn note(&mut self, begun: usize, answered: usize) {
        self.0.push([begun, answered]);
    }

    /// How many calls have certainly come to their end at a power cut behind this flush, and how many may have.
    pub fn at(&self, flush: usize) -> [usize; 2] {
        let answered = self.0.iter().filter(|[_, answered]| *answered <= flush).count();
        [answered, self.0.iter().filter(|[begun, _]| *begun <= flush).count()]
    }

    pub fn answered(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|[_, answered]| *answered)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

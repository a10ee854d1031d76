//! LVM, by its own program and its JSON reports: no library of it is kept, and its texts are for people.
//!
//! - Each command sees the configured physical volumes alone (`--devices`): a scan of all devices hangs where one of them does, and finds
//!   volume groups that lie inside of volumes.
//! - One change of a volume group runs at a time, and none is ever killed: LVM's and the kernel's views of a thin pool could part
//!   ([`process::run_detached`]). A command that outlives the process that started it keeps the lock, by its standard input: the next
//!   process changes nothing before it has ended. LVM itself keeps off the commands of others, by its own lock file.
//! - Many who ask at the same time share one report.
//! - lvm.conf of the machine is not changed. What matters here is given with each command.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::process::{self, Output, Tool};
use super::{Error, Result, dm, lock};

pub mod report;
pub mod thin;

pub use report::{Lv, Pv, Report, in_percent};

pub const LVM: Tool = Tool { name: "lvm", package: "lvm2" };
/// LVM runs it when a thin pool is activated.
pub const THIN_CHECK: Tool = Tool { name: "thin_check", package: "thin-provisioning-tools" };
/// They list which blocks of a thin volume are mapped, and which two of them do not share.
pub const THIN_DUMP: Tool = Tool { name: "thin_dump", package: "thin-provisioning-tools" };
pub const THIN_DELTA: Tool = Tool { name: "thin_delta", package: "thin-provisioning-tools" };

/// How long a caller waits for a command. A large thin pool is checked for minutes when it is activated.
const PATIENCE: Duration = Duration::from_secs(60);

/// One volume group of this machine. Clones share its lock and its reports.
#[derive(Clone, Debug)]
pub struct VolumeGroup {
    pub name: String,
    /// Its physical volumes.
    pub devices: Vec<PathBuf>,
    /// The lock of changes, and where LVM keeps copies of the metadata before each change.
    directory: PathBuf,
    changes: Exclusive,
    thin_metadata: Exclusive,
    changes_made: Arc<AtomicU64>,
    reports: Arc<Reports>,
    /// Whether reports have [`Lv::mismatches`], which LVM before 2.03.9 does not know.
    with_mismatches: bool,
    targets: Vec<&'static str>,
}

/// What becomes of extents that a logical volume had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// They keep what was written to them.
    Left,
    /// Discarded, where their disk can. What is read of them afterwards is not defined.
    Discarded,
}

/// What one thread of all drivers of this machine does at a time. Clones are one.
#[derive(Clone, Debug)]
struct Exclusive {
    /// For errors: `changes of volume group vg0`.
    what: String,
    /// The file that is locked (flock(2)).
    path: PathBuf,
    turns: Arc<Turns>,
}

impl Exclusive {
    fn new(what: String, path: PathBuf) -> Exclusive {
        Exclusive { what, path, turns: Arc::default() }
    }

    /// Waits until no change runs, of this process or of one before it.
    ///
    /// # Errors
    /// `Deadline`, naming the change that still runs.
    fn lock(&self, operation: &str) -> Result<Arc<ChangeLock>> {
        let deadline = Instant::now() + PATIENCE;
        let holder = lock(&self.turns.holder);
        let waited = self.turns.released.wait_timeout_while(holder, PATIENCE, |holder| holder.is_some());
        let (mut holder, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some((other, since)) = &*holder {
            let running = humantime::format_duration(Duration::from_secs(since.elapsed().as_secs()));
            return Err(self.waited_for(&format!("\"{other}\" has been running for {running}")));
        }
        *holder = Some((operation.to_owned(), Instant::now()));
        drop(holder);
        let turn = Turn(Arc::clone(&self.turns));
        let path = self.path.clone();
        let directory = path.parent().unwrap_or(&path);
        let file = std::fs::create_dir_all(directory).and_then(|()| File::create(&path));
        let file = file.map_err(|error| Error::io("create", &path, error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Arc::new(ChangeLock { file, _turn: turn })),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(Error::io("lock", &path, std::io::Error::from(error))),
        }
        // A command of a process before this one. In a thread, since flock(2) has no time-out.
        let (send, receive) = mpsc::sync_channel(1);
        let wait = move || {
            let locked = flock(&file, FlockOperation::LockExclusive).map(|()| file);
            // Dropped, and so released, where nobody waits any more.
            drop(send.send(locked));
        };
        let started = std::thread::Builder::new().name("lvm lock".to_owned()).spawn(wait);
        started.map_err(|error| Error::io("start a thread for", &path, error))?;
        match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Ok(file)) => Ok(Arc::new(ChangeLock { file, _turn: turn })),
            Ok(Err(error)) => Err(Error::io("lock", &path, std::io::Error::from(error))),
            Err(_) => Err(self.waited_for(&format!("a command of another driver has {}; `lslocks` shows it", path.display()))),
        }
    }

    fn waited_for(&self, what: &str) -> Error {
        Error::Deadline { action: "wait for", object: format!("{}: {what}", self.what), after: PATIENCE }
    }
}

/// Whose turn it is, and since when.
#[derive(Debug, Default)]
struct Turns {
    holder: Mutex<Option<(String, Instant)>>,
    released: Condvar,
}

/// Keeps other changes by drivers of this machine off the volume group until it is dropped; after a [`VolumeGroup::change`] that is overdue,
/// until that has ended.
#[derive(Debug)]
pub struct ChangeLock {
    /// Locked (flock(2)). Closed before this process's own are let in.
    file: File,
    _turn: Turn,
}

#[derive(Debug)]
struct Turn(Arc<Turns>);

impl Drop for Turn {
    fn drop(&mut self) {
        *lock(&self.0.holder) = None;
        self.0.released.notify_all();
    }
}

/// For [`process::run_detached`].
struct Held(Arc<ChangeLock>);

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

/// The last report, by the number of its start.
#[derive(Debug, Default)]
struct Reports {
    state: Mutex<ReportState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct ReportState {
    started: u64,
    running: bool,
    last: Option<(u64, Shared)>,
}

/// What all who asked get.
type Shared = Result<Arc<Report>, Arc<Error>>;

impl VolumeGroup {
    /// Nothing is run yet.
    pub fn new(name: &str, devices: &[PathBuf], directory: &Path) -> VolumeGroup {
        VolumeGroup {
            name: name.to_owned(),
            devices: devices.to_vec(),
            directory: directory.to_owned(),
            changes: Exclusive::new(format!("changes of volume group {name}"), directory.join(format!("{name}.lock"))),
            thin_metadata: Exclusive::new(
                format!("the metadata of thin pools of volume group {name}"),
                directory.join(format!("{name}.thin-metadata.lock")),
            ),
            changes_made: Arc::default(),
            reports: Arc::default(),
            with_mismatches: false,
            targets: Vec::new(),
        }
    }

    /// Device-mapper targets that its commands need, beside those that the device-mapper always has.
    pub fn with_targets(self, targets: Vec<&'static str>) -> VolumeGroup {
        VolumeGroup { targets, ..self }
    }

    /// Reports have [`Lv::mismatches`], too.
    pub fn with_mismatches(self, with_mismatches: bool) -> VolumeGroup {
        VolumeGroup { with_mismatches, ..self }
    }

    /// What is there now: of a report that was started after this call.
    ///
    /// # Errors
    /// `Deadline` where LVM gives none in time; `Tool` where the volume group is not there.
    pub fn report(&self) -> Result<Arc<Report>> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = lock(&self.reports.state);
        let newer_than = state.started;
        loop {
            if let Some((number, result)) = &state.last
                && *number > newer_than
            {
                return result.clone().map_err(|error| again(&error));
            }
            if !state.running {
                let number = state.started + 1;
                // It has no result before this waits.
                self.start_report(number)?;
                (state.running, state.started) = (true, number);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Deadline { action: "report volume group", object: self.name.clone(), after: PATIENCE });
            }
            state = self.reports.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// In a thread: it may hang with a disk.
    fn start_report(&self, number: u64) -> Result<()> {
        let (name, arguments, reports) = (self.name.clone(), self.report_arguments(), Arc::clone(&self.reports));
        let work = move || {
            let result = read_report(&name, arguments).map(Arc::new).map_err(Arc::new);
            let mut state = lock(&reports.state);
            (state.running, state.last) = (false, Some((number, result)));
            reports.ended.notify_all();
        };
        let started = std::thread::Builder::new().name("lvm report".to_owned()).spawn(work);
        started.map(drop).map_err(|error| Error::io("start a thread for", LVM.name, error))
    }

    fn report_arguments(&self) -> Vec<String> {
        let mut arguments = self.arguments("fullreport", Freed::Left);
        arguments.extend(["--reportformat", "json", "--units", "b", "--nosuffix", "-qq", "--all"].map(str::to_owned));
        for (kind, fields) in report::FIELDS.into_iter().chain([report::UNUSED]) {
            let more = if kind == "lv" && self.with_mismatches { ",integritymismatches" } else { "" };
            arguments.extend(["--configreport", kind, "--options"].map(str::to_owned));
            arguments.push(format!("{fields}{more}"));
        }
        arguments.push(self.name.clone());
        arguments
    }

    /// A command with what each of them gets.
    fn arguments(&self, command: &str, freed: Freed) -> Vec<String> {
        let devices: Vec<String> = self.devices.iter().map(|device| device.display().to_string()).collect();
        let settings = [
            // No daemon of the machine is asked, and udev rules of a container's own are none: libdevmapper makes the device nodes.
            "global/use_lvmlockd=0".to_owned(),
            "global/use_lvmpolld=0".to_owned(),
            "global/notify_dbus=0".to_owned(),
            // Else LVM 2.03.31 says why a report failed in the report, and not on standard error.
            "log/report_command_log=0".to_owned(),
            "activation/monitoring=0".to_owned(),
            "activation/udev_sync=0".to_owned(),
            "activation/udev_rules=0".to_owned(),
            format!("devices/issue_discards={}", u8::from(freed == Freed::Discarded)),
            format!("backup/backup_dir=\"{}/backup\"", self.directory.display()),
            format!("backup/archive_dir=\"{}/archive\"", self.directory.display()),
            "backup/retain_min=10".to_owned(),
            "backup/retain_days=1".to_owned(),
        ];
        [command, "--devices", &devices.join(","), "--config", &settings.join(" ")].map(str::to_owned).to_vec()
    }

    /// Waits until no change runs, of this process or of one before it.
    ///
    /// # Errors
    /// `Deadline`, naming the change that still runs.
    pub fn lock(&self, operation: &str) -> Result<Arc<ChangeLock>> {
        self.changes.lock(operation)
    }

    /// As [`VolumeGroup::lock`], for what reads the metadata of its thin pools.
    pub fn lock_thin_metadata(&self, operation: &str) -> Result<Arc<ChangeLock>> {
        self.thin_metadata.lock(operation)
    }

    /// As LVM calls the device of a logical volume (lib/misc/lvm-string.c, `build_dm_name`).
    pub fn mapping(&self, name: &str) -> String {
        format!("{}-{}", self.name.replace('-', "--"), name.replace('-', "--"))
    }

    /// That of a thin pool's own device.
    pub fn pool_mapping(&self, pool: &str) -> String {
        format!("{}-tpool", self.mapping(pool))
    }

    /// Where the driver keeps what is about this volume group.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Runs a command that changes something. It answers yes to every question, which are about what the caller has decided.
    ///
    /// # Errors
    /// `Tool` with what LVM prints; `Deadline`: it continues, and `held` with it.
    pub fn change(&self, held: &Arc<ChangeLock>, command: &'static str, arguments: &[&str]) -> Result<()> {
        self.run(held, command, Freed::Left, arguments)
    }

    /// Removes a logical volume, `vg/lv`, if it has this UUID still; LVM refuses where it is open, and removes what depends on it, too.
    ///
    /// # Errors
    /// As of [`VolumeGroup::change`].
    pub fn remove(&self, held: &Arc<ChangeLock>, freed: Freed, lv: &str, uuid: &str) -> Result<()> {
        self.run(held, "lvremove", freed, &["--select", &format!("lv_uuid={uuid}"), lv])
    }

    /// How many changes this process has begun and ended: the same number means that none ran in between.
    pub fn changes(&self) -> u64 {
        self.changes_made.load(Ordering::SeqCst)
    }

    fn run(&self, held: &Arc<ChangeLock>, command: &'static str, freed: Freed, arguments: &[&str]) -> Result<()> {
        self.load_targets();
        self.changes_made.fetch_add(1, Ordering::SeqCst);
        let mut all = self.arguments(command, freed);
        all.extend(["-qq", "--yes"].map(str::to_owned));
        if !self.has_room_for_backups() {
            // Else the command fails, though the volume group has room, and with it what would make room on the node's disk.
            all.extend(["--autobackup", "n"].map(str::to_owned));
        }
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let output = process::run_detached(LVM, all, PATIENCE, Held(Arc::clone(held)));
        self.changes_made.fetch_add(1, Ordering::SeqCst);
        accepted(output?, command, &self.name).map(drop)
    }

    /// Whether LVM can write a copy of the metadata before each change. A directory that is still to be made lies on its parent's file system.
    fn has_room_for_backups(&self) -> bool {
        const BYTES: u64 = 8 << 20;
        const INODES: u64 = 16;
        let stat = self.directory.ancestors().find_map(|directory| rustix::fs::statvfs(directory).ok());
        stat.is_none_or(|stat| {
            let inodes = stat.f_files == 0 || stat.f_favail >= INODES;
            inodes && stat.f_bavail.saturating_mul(stat.f_frsize) >= BYTES
        })
    }

    /// Those of its targets that the kernel neither has nor can load.
    pub fn missing_targets(&self) -> Vec<&'static str> {
        self.targets.iter().copied().filter(|target| matches!(dm::load_target(target), Ok(false))).collect()
    }

    /// What is missing fails the command that needs it.
    fn load_targets(&self) {
        for target in &self.targets {
            match dm::load_target(target) {
                Ok(true) => {}
                Ok(false) => tracing::warn!(target_type = target, "{}", missing_target(target)),
                Err(error) => {
                    tracing::warn!(%error, target_type = target, "`modprobe {}` on the node, if it is missing", module_of(target))
                }
            }
        }
    }
}

fn module_of(target: &str) -> String {
    format!("dm_{}", target.replace('-', "_"))
}

/// That the kernel has no such device-mapper target, and what to do.
pub fn missing_target(target: &str) -> String {
    let module = module_of(target);
    format!("the kernel has no device-mapper target {target} and cannot load it; `modprobe {module}` on the node")
}

fn read_report(name: &str, arguments: Vec<String>) -> Result<Report> {
    // It is waited for by those who asked, with their own patience.
    let nothing = File::open("/dev/null").map_err(|error| Error::io("open", "/dev/null", error))?;
    let output = process::run_detached(LVM, arguments, Duration::from_secs(u64::from(u32::MAX)), nothing)?;
    report::parse(name, &accepted(output, "fullreport", name)?.stdout)
}

/// Of what LVM prints, the error is what counts; its warnings are of each command.
fn accepted(output: Output, command: &'static str, vg: &str) -> Result<Output> {
    let relevant: Vec<&str> = output.stderr.lines().filter(|line| !is_noise(line)).map(str::trim).collect();
    let stderr = relevant.join("; ");
    Output { stderr, ..output }.accepted(command, vg, &[0])
}

fn is_noise(line: &str) -> bool {
    [
        "Udev is running and DM_DISABLE_UDEV",
        "WARNING: This metadata update is NOT backed up",
        "WARNING: Sum of all thin volume sizes",
    ]
    .iter()
    .any(|noise| line.trim_start().starts_with(noise))
}

/// The same error for another who shares the report.
fn again(error: &Error) -> Error {
    match error {
        Error::Tool { tool, object, status, output } => {
            Error::Tool { tool, object: object.clone(), status: status.clone(), output: output.clone() }
        }
        Error::ToolMissing { tool, package } => Error::ToolMissing { tool, package },
        Error::Deadline { action, object, after } => Error::Deadline { action, object: object.clone(), after: *after },
        other => Error::Unexpected { object: LVM.name.to_owned(), reason: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(directory: &Path) -> VolumeGroup {
        VolumeGroup::new("vg0", &["/dev/sda".into(), "/dev/sdb".into()], directory)
    }

    #[test]
    fn commands_see_the_configured_devices_alone() {
        let arguments = group(Path::new("/state")).report_arguments();
        assert_eq!(arguments.get(..3).expect("three"), ["fullreport", "--devices", "/dev/sda,/dev/sdb"]);
        assert_eq!(arguments.last().expect("one"), "vg0");
        assert!(arguments.iter().any(|argument| argument.contains("backup_dir=\"/state/backup\"")), "{arguments:?}");
    }

    #[test]
    fn second_change_waits_for_the_first() {
        let directory = tempfile::tempdir().expect("a directory");
        let group = Arc::new(group(directory.path()));
        let held = group.lock("lvcreate a").expect("free");
        let of_command = Arc::clone(&held);
        drop(held);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| group.lock("lvcreate b").map(drop));
            assert_eq!(lock(&group.changes.turns.holder).as_ref().expect("held by the command").0, "lvcreate a");
            drop(of_command);
            other.join().expect("no panic").expect("released");
        });
    }

    #[test]
    fn warnings_of_each_command_are_no_cause() {
        let stderr =
            "  Udev is running and DM_DISABLE_UDEV environment variable is set. Bypassing udev\n  Failed to find \"vg0/a\"\n";
        let output = Output { status: Ok(5), stdout: String::new(), stderr: stderr.to_owned() };
        let error = accepted(output, "lvremove", "vg0").expect_err("it failed").to_string();
        assert_eq!(error, "lvremove vg0: exit status 5: Failed to find \"vg0/a\"");
    }
}

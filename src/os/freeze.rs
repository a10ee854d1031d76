//! FIFREEZE and FITHAW, with a thaw that comes even if we are killed.
//!
//! A child process (this same binary, `longshore freeze-guard`) inherits descriptors of the mounts, freezes them, says so
//! on its standard output, and thaws them all when its standard input closes: by our will or by our death. It thaws at
//! a deadline too, and then says so. It takes no signal that asks it to end, sits in a process group of its own, and writes nowhere
//! but to that pipe: a write to a frozen file system would wait for itself.
//!
//! What it cannot outlive: SIGKILL to itself while we live ([`Frozen::thaw`] then thaws in its stead), and SIGKILL to both at once,
//! as when the first process of a container's PID namespace dies. After that the kernel keeps the freeze, and anyone who starts next
//! calls [`thaw`] for what it knows.
#![allow(unsafe_code, reason = "FIFREEZE, FITHAW, syncfs of inherited descriptors, and what a child does between fork and exec")]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use super::process::poll;
use super::{Error, Result, step};

/// The argument by which the binary knows that it is the guard.
const GUARD: &str = "freeze-guard";
/// How long the guard may take to write out what is dirty, before it freezes anything.
const FLUSH: Duration = Duration::from_secs(120);
/// How long another's freeze is waited for. The guard of a driver that was just killed thaws at once, but it may come to that
/// only after the next driver has started.
const FOREIGN: Duration = Duration::from_secs(1);
const FOREIGN_PAUSE: Duration = Duration::from_millis(10);
/// How long a thaw may take.
const THAW: Duration = Duration::from_secs(30);

mod ioctl {
    // linux/fs.h. The argument is not looked at.
    nix::ioctl_readwrite!(freeze, b'X', 119, libc::c_int);
    nix::ioctl_readwrite!(thaw, b'X', 120, libc::c_int);
}

/// What the guard says: one line of JSON each.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Frozen {
        /// Descriptors of file systems that cannot be frozen.
        unfrozen: Vec<RawFd>,
    },
    Thawed,
    /// The deadline thawed them.
    Late,
    Failed {
        action: Action,
        descriptor: RawFd,
        errno: i32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Sync,
    Freeze,
    Thaw,
}

/// File systems frozen. Thawed on drop.
#[derive(Debug)]
pub struct Frozen {
    guard: Guard,
    mounts: Vec<OwnedFd>,
    /// Device numbers of the file systems that could not be frozen.
    unfrozen: Vec<u64>,
    longest: Duration,
    thawed: bool,
}

/// Freezes the file systems of these descriptors (of mount points, opened O_RDONLY), all or none, for at most `longest`.
///
/// What is dirty is written out before the first is frozen, so that all stand still only briefly. A file system that cannot be
/// frozen (EOPNOTSUPP: tmpfs) is only written out: [`Frozen::holds`] reports which. Two descriptors of one mounted device count once.
///
/// # Errors
/// `Io`: EBUSY if one is frozen already, by whomever, and stays so for a second; EPERM without CAP_SYS_ADMIN. `Deadline` if it takes too long; what then gets
/// frozen late is thawed at once.
///
/// Between this and the thaw the caller must write nothing to these file systems, its log included: it would wait for itself.
pub fn freeze(mounts: &[BorrowedFd<'_>], longest: Duration) -> Result<Frozen> {
    freeze_by(Path::new("/proc/self/exe"), mounts, longest)
}

/// As [`freeze`], with the guard in another program: tests are not the `longshore` binary.
#[doc(hidden)]
pub fn freeze_by(program: &Path, mounts: &[BorrowedFd<'_>], longest: Duration) -> Result<Frozen> {
    let mounts = distinct(mounts)?;
    let guard = Guard::start(program, &mounts, longest)?;
    let mut frozen = Frozen { guard, mounts, unfrozen: Vec::new(), longest, thawed: false };
    let wait = FLUSH.saturating_add(longest);
    step::note("freeze", &frozen.object());
    match frozen.guard.hear(wait) {
        Ok(Some(Word::Frozen { unfrozen })) => {
            for mount in frozen.mounts.iter().filter(|mount| unfrozen.contains(&mount.as_raw_fd())) {
                frozen.unfrozen.push(device_of(mount.as_fd())?);
            }
            Ok(frozen)
        }
        Ok(Some(Word::Failed { action, descriptor, errno })) => {
            // It has undone what it did. Its end gives the descriptors back.
            frozen.thawed = true;
            if let Err(error) = frozen.guard.end(THAW) {
                tracing::warn!(%error, "end of the freeze guard");
            }
            Err(failed(action, descriptor, errno))
        }
        Ok(_) => Err(frozen.unexpected("the guard ended before they were frozen")),
        Err(error) => {
            // It may hang in the kernel. Once that lets it go, it sees that it is not wanted any more, and thaws.
            frozen.thawed = true;
            frozen.guard.abandon();
            Err(frozen.unheard("freeze", wait, error))
        }
    }
}

impl Frozen {
    /// Whether the file system of this mount, one of those given to [`freeze`], was frozen.
    ///
    /// # Errors
    /// `Io` of fstat(2).
    pub fn holds(&self, mount: BorrowedFd<'_>) -> Result<bool> {
        Ok(!self.unfrozen.contains(&device_of(mount)?))
    }

    /// Thaws, and says whether all was frozen until now (an error if the deadline thawed it earlier). Nothing is frozen by us
    /// afterwards, unless the error is about the thaw itself.
    pub fn thaw(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.thawed = true;
        step::note("thaw", &self.object());
        let word = match self.guard.end(THAW) {
            Ok(Some(Word::Thawed)) => return Ok(()),
            Ok(word) => word,
            Err(error) => {
                self.guard.abandon();
                return Err(self.unheard("thaw", THAW, error));
            }
        };
        // Whatever it was, they must not stay frozen. Another's freeze cannot be among them: ours would have been refused.
        let thawed: Vec<Result<()>> = self.mounts.iter().map(|mount| thaw(mount.as_fd())).collect();
        thawed.into_iter().collect::<Result<()>>()?;
        Err(match word {
            Some(Word::Late) => self.late(),
            Some(Word::Failed { action, descriptor, errno }) => failed(action, descriptor, errno),
            _ => self.unexpected("the guard was killed, so that they may have been thawed before their time"),
        })
    }

    fn unheard(&self, action: &'static str, after: Duration, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::TimedOut => Error::Deadline { action, object: self.object(), after },
            _ => Error::io("hear from the guard of", self.object(), error),
        }
    }

    fn late(&self) -> Error {
        let after = humantime::format_duration(self.longest);
        self.unexpected(&format!("thawed before their time: they may be frozen for {after} at most"))
    }

    fn unexpected(&self, reason: &str) -> Error {
        Error::Unexpected { object: self.object(), reason: reason.to_owned() }
    }

    fn object(&self) -> String {
        let names: Vec<String> = self.mounts.iter().map(|mount| name_of(mount.as_raw_fd()).display().to_string()).collect();
        names.join(", ")
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if !self.thawed
            && let Err(error) = self.end()
        {
            tracing::warn!(%error, "thaw");
        }
    }
}

/// Thaws one file system if it is frozen; one that is not is fine.
///
/// # Errors
/// `Io` of FITHAW.
pub fn thaw(mount: BorrowedFd<'_>) -> Result<()> {
    match thaw_one(mount.as_raw_fd()) {
        Ok(()) | Err(Errno::EINVAL) => Ok(()),
        Err(errno) => Err(failed(Action::Thaw, mount.as_raw_fd(), errno as i32)),
    }
}

/// `descriptor` is one of ours: the guard's have the same numbers.
fn failed(action: Action, descriptor: RawFd, errno: i32) -> Error {
    let action = match (action, Errno::from_raw(errno)) {
        (Action::Sync, _) => "sync the file system of",
        (Action::Freeze, Errno::EBUSY) => "freeze (something has frozen it already; `fsfreeze -u` ends that) the file system of",
        (Action::Freeze, _) => "freeze the file system of",
        (Action::Thaw, Errno::EINVAL) => "keep frozen (something else thawed it) the file system of",
        (Action::Thaw, _) => "thaw the file system of",
    };
    Error::io(action, name_of(descriptor), io::Error::from_raw_os_error(errno))
}

fn name_of(descriptor: RawFd) -> PathBuf {
    let link = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
    std::fs::read_link(&link).unwrap_or(link)
}

/// Duplicates, one for each file system, whose numbers are free for the guard's own streams.
fn distinct(mounts: &[BorrowedFd<'_>]) -> Result<Vec<OwnedFd>> {
    let mut devices = Vec::new();
    let mut distinct = Vec::new();
    for mount in mounts {
        let device = device_of(*mount)?;
        if !devices.contains(&device) {
            devices.push(device);
            let above_streams = libc::STDERR_FILENO + 1;
            let duplicate = rustix::io::fcntl_dupfd_cloexec(mount, above_streams);
            distinct.push(duplicate.map_err(|errno| Error::io("duplicate", name_of(mount.as_raw_fd()), errno))?);
        }
    }
    Ok(distinct)
}

/// Device number of the mounted file system.
fn device_of(mount: BorrowedFd<'_>) -> Result<u64> {
    let stat = rustix::fs::fstat(mount).map_err(|errno| Error::io("stat", name_of(mount.as_raw_fd()), errno))?;
    Ok(stat.st_dev)
}

/// The child, and our ends of its pipes.
#[derive(Debug)]
struct Guard {
    child: Option<Child>,
    /// Its closing is the sign to thaw.
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    heard: Vec<u8>,
}

impl Guard {
    fn start(program: &Path, mounts: &[OwnedFd], longest: Duration) -> Result<Guard> {
        let descriptors: Vec<RawFd> = mounts.iter().map(AsRawFd::as_raw_fd).collect();
        #[allow(clippy::disallowed_methods, reason = "os/process ends what it starts when we die, and this must not be ended")]
        let mut command = Command::new(program);
        command
            .arg(GUARD)
            .arg("--longest")
            .arg(longest.as_millis().to_string())
            .args(descriptors.iter().map(RawFd::to_string))
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        // SAFETY: runs in the child between fork and exec; `keep_open` makes system calls only and does not allocate.
        unsafe { command.pre_exec(move || keep_open(&descriptors)) };
        let mut child = command.spawn().map_err(|error| Error::io("start", program, error))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Ok(Guard { child: Some(child), stdin, stdout, heard: Vec::new() })
    }

    /// The next line; none if there is none to come. TimedOut at the deadline.
    fn hear(&mut self, wait: Duration) -> io::Result<Option<Word>> {
        let deadline = Instant::now().checked_add(wait);
        let Some(stdout) = &mut self.stdout else { return Ok(None) };
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if !poll(&mut [PollFd::new(stdout, PollFlags::IN)], deadline)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut buffer = [0; 512];
            match stdout.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(read) => self.heard.extend(buffer.iter().take(read)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks for the thaw and waits for its last word and its end, after which no descriptor of it keeps a mount busy.
    fn end(&mut self, wait: Duration) -> io::Result<Option<Word>> {
        self.stdin = None;
        let mut last = None;
        while let Some(word) = self.hear(wait)? {
            last = Some(word);
        }
        // What it said last it said on its way out.
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        Ok(last)
    }

    /// Leaves it alone; it is waited for in a thread, since one that hangs in the kernel may hang for ever. It is not killed: it is
    /// what thaws.
    fn abandon(&mut self) {
        self.stdin = None;
        let Some(mut child) = self.child.take() else { return };
        let wait = move || {
            if let Err(error) = child.wait() {
                tracing::warn!(%error, "reap the freeze guard");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("reap".to_owned()).spawn(wait) {
            tracing::warn!(%error, "cannot wait for the freeze guard");
        }
    }
}

/// In the child, before exec: the mounts stay open.
fn keep_open(descriptors: &[RawFd]) -> io::Result<()> {
    for descriptor in descriptors {
        // SAFETY: fcntl(F_SETFD) takes plain numbers; a bad descriptor is EBADF.
        if unsafe { libc::fcntl(*descriptor, libc::F_SETFD, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The guard's exit status, if this process was started to be one (`freeze-guard --longest MILLISECONDS DESCRIPTOR...`). To be
/// asked first of all in `main`.
pub fn main_if_guard() -> Option<i32> {
    let mut arguments = std::env::args_os().skip(1).map(|argument| argument.into_string().unwrap_or_default());
    if arguments.next()? != GUARD {
        return None;
    }
    let longest = arguments.next().filter(|name| name == "--longest").and_then(|_| arguments.next()?.parse().ok());
    let descriptors: Result<Vec<i32>, _> = arguments.map(|argument| argument.parse::<i32>()).collect();
    match (longest, descriptors) {
        (Some(longest), Ok(descriptors)) => Some(guard_main(&descriptors, Duration::from_millis(longest))),
        _ => Some(BAD_USAGE),
    }
}

const BAD_USAGE: i32 = 2;

/// The child's main function: `descriptors` are numbers of inherited descriptors. Answers the exit status.
pub fn guard_main(descriptors: &[i32], longest: Duration) -> i32 {
    stay_alive();
    let word = guard(descriptors, longest);
    let status = i32::from(word != Word::Thawed);
    // Nobody may be there to hear it. All is thawed by now.
    say(&word).map_or(status, |()| status)
}

/// Freezes, waits, thaws; the last word.
fn guard(descriptors: &[RawFd], longest: Duration) -> Word {
    for descriptor in descriptors {
        if let Err(errno) = sync_one(*descriptor) {
            return Word::Failed { action: Action::Sync, descriptor: *descriptor, errno: errno as i32 };
        }
    }
    let begun = Instant::now();
    // Given up while it was written out? Then there is nothing to do.
    if wait_for_sign(Some(begun)) {
        return Word::Thawed;
    }
    let frozen = loop {
        match freeze_all(descriptors) {
            Ok(frozen) => break frozen,
            Err(Word::Failed { action: Action::Freeze, errno, .. })
                if errno == Errno::EBUSY as i32 && begun.elapsed() < FOREIGN =>
            {
                if wait_for_sign(Instant::now().checked_add(FOREIGN_PAUSE)) {
                    return Word::Thawed;
                }
            }
            Err(word) => return word,
        }
    };
    // If nobody is there to hear it, standard input is closed, too.
    let unfrozen = descriptors.iter().copied().filter(|descriptor| !frozen.contains(descriptor)).collect();
    let asked = say(&Word::Frozen { unfrozen }).is_err() || wait_for_sign(begun.checked_add(longest));
    let failed = thaw_all(&frozen);
    failed.unwrap_or(if asked { Word::Thawed } else { Word::Late })
}

/// All or none; those that can be frozen.
fn freeze_all(descriptors: &[RawFd]) -> Result<Vec<RawFd>, Word> {
    let mut frozen = Vec::new();
    for descriptor in descriptors {
        match freeze_one(*descriptor) {
            Ok(()) => frozen.push(*descriptor),
            // It was written out above, and that is all that can be done.
            Err(Errno::EOPNOTSUPP) => {}
            Err(errno) => {
                let first = Word::Failed { action: Action::Freeze, descriptor: *descriptor, errno: errno as i32 };
                return Err(thaw_all(&frozen).unwrap_or(first));
            }
        }
    }
    Ok(frozen)
}

/// Until standard input closes (true), or the deadline (false).
fn wait_for_sign(deadline: Option<Instant>) -> bool {
    let stdin = io::stdin();
    // An error is no reason to stay frozen.
    poll(&mut [PollFd::new(&stdin, PollFlags::IN)], deadline).unwrap_or(false)
}

/// The last first. All are tried; the first failure.
fn thaw_all(frozen: &[RawFd]) -> Option<Word> {
    let failed = |descriptor: &RawFd| {
        let errno = thaw_one(*descriptor).err()?;
        Some(Word::Failed { action: Action::Thaw, descriptor: *descriptor, errno: errno as i32 })
    };
    let failures: Vec<Word> = frozen.iter().rev().filter_map(failed).collect();
    failures.into_iter().next()
}

fn say(word: &Word) -> io::Result<()> {
    let mut line = serde_json::to_vec(word)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

/// Those that ask a service to end reach the guard as well, and it has its own way to end.
fn stay_alive() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
        // SAFETY: SIG_IGN runs no code of ours. These signals can be ignored, so it cannot fail.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // Not to be chosen when memory runs out. May be forbidden, and is worth no more than this attempt.
    std::fs::write("/proc/self/oom_score_adj", "-1000").unwrap_or_default();
}

fn sync_one(descriptor: RawFd) -> Result<(), Errno> {
    // SAFETY: syncfs takes a plain number; a bad descriptor is EBADF.
    Errno::result(unsafe { libc::syncfs(descriptor) }).map(drop)
}

fn freeze_one(descriptor: RawFd) -> Result<(), Errno> {
    let mut unused = 0;
    // SAFETY: a bad descriptor is EBADF; the argument is an int, as the request says.
    unsafe { ioctl::freeze(descriptor, &raw mut unused) }.map(drop)
}

fn thaw_one(descriptor: RawFd) -> Result<(), Errno> {
    let mut unused = 0;
    // SAFETY: a bad descriptor is EBADF; the argument is an int, as the request says.
    unsafe { ioctl::thaw(descriptor, &raw mut unused) }.map(drop)
}

//! The one place that starts programs.
//!
//! Absolute tool paths, clean environment with `LC_ALL=C` and a fixed PATH, standard input closed (or given), its own process group,
//! killed whole at the deadline, and with us (PR_SET_PDEATHSIG). Secrets travel by standard input, or by files in memory that only
//! the program sees ([`Private`]).
#![allow(unsafe_code, reason = "what a child does between fork and exec (prctl, fcntl) cannot be said in safe Rust")]

use std::collections::VecDeque;
use std::ffi::CString;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{Error, Result};

/// Where tools are looked for, and the PATH that they get.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How much of an output is kept.
const OUTPUT_LIMIT: usize = 64 << 10;
/// How much of an output an error repeats.
const TAIL_LIMIT: usize = 1 << 10;
/// How long a killed program may take to be gone. One that hangs in the kernel (state D) takes longer.
const KILL_GRACE: Duration = Duration::from_secs(3);

/// A program and the Debian package that has it.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    pub name: &'static str,
    pub package: &'static str,
}

impl Tool {
    /// Its absolute path, if it is installed.
    ///
    /// # Errors
    /// `ToolMissing`.
    pub fn find(&self) -> Result<PathBuf> {
        SEARCH
            .split(':')
            .map(|directory| Path::new(directory).join(self.name))
            .find(|path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok())
            .ok_or(Error::ToolMissing { tool: self.name, package: self.package })
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Output {
    /// Exit status; `Err(signal)` where a signal ended it.
    pub status: std::result::Result<i32, i32>,
    /// At most 64 KiB each, the end of what was said.
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// How it ended, in words, unless with one of these exit statuses.
    pub fn failure(&self, accepted: &[i32]) -> Option<String> {
        match self.status {
            Ok(code) if accepted.contains(&code) => None,
            Ok(code) => Some(format!("exit status {code}")),
            Err(signal) => Some(format!("killed by signal {signal}")),
        }
    }

    /// The same as an error about `object`, with the tail of stderr (or stdout).
    pub fn accepted(self, tool: &'static str, object: &str, accepted: &[i32]) -> Result<Output> {
        let Some(status) = self.failure(accepted) else { return Ok(self) };
        let said = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        Err(Error::Tool { tool, object: object.to_owned(), status, output: tail(said) })
    }
}

/// How to run it.
pub struct Run<'a> {
    pub tool: Tool,
    pub arguments: Vec<String>,
    /// Kept open in the child under the same number, so that `/proc/self/fd/N` in an argument names it.
    pub keep: Vec<BorrowedFd<'a>>,
    pub stdin: Vec<u8>,
    pub deadline: Duration,
}

/// Standard input may hold a secret: only its length shows.
impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("tool", &self.tool.name)
            .field("arguments", &self.arguments)
            .field("keep", &self.keep)
            .field("stdin", &format_args!("{} bytes", self.stdin.len()))
            .field("deadline", &self.deadline)
            .finish()
    }
}

/// A view of the machine's files that only one program has: over some directories lie empty ones in memory, with files that may hold
/// secrets. It is gone with the program, however that ends. The memory is ramfs's, which no kernel swaps to a disk.
#[derive(Default)]
pub struct Private {
    covered: Vec<CString>,
    /// Below those, each after its parent.
    directories: Vec<CString>,
    files: Vec<(CString, Vec<u8>)>,
}

/// Files may hold secrets: only how many there are shows.
impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Private").field("covered", &self.covered).field("files", &self.files.len()).finish()
    }
}

impl Private {
    /// Puts an empty directory over one that exists.
    pub fn cover(&mut self, directory: &Path) -> Result<()> {
        self.covered.push(c_path(directory)?);
        Ok(())
    }

    /// Puts a file into a covered directory, with the directories that lead to it.
    pub fn add(&mut self, covered: &Path, name: &Path, content: &[u8]) -> Result<()> {
        let mut directory = covered.to_owned();
        for part in name.parent().into_iter().flat_map(Path::components) {
            directory.push(part);
            let path = c_path(&directory)?;
            if !self.directories.contains(&path) {
                self.directories.push(path);
            }
        }
        self.files.push((c_path(&covered.join(name))?, content.to_vec()));
        Ok(())
    }

    /// In the child, before exec: system calls only, nothing is allocated.
    fn enter(&self) -> io::Result<()> {
        let done = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
        let none = std::ptr::null();
        // SAFETY: all pointers are to strings and bytes that outlive the calls, or null where that is allowed.
        unsafe {
            done(libc::unshare(libc::CLONE_NEWNS))?;
            // Nothing of it may be seen outside; but what is unmounted outside must go here too: a private copy of a volume's mount would
            // keep its file system in the kernel for as long as this program runs (mount_namespaces(7)).
            done(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_SLAVE, none.cast()))?;
            for directory in &self.covered {
                let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
                done(libc::mount(c"none".as_ptr(), directory.as_ptr(), c"ramfs".as_ptr(), flags, c"mode=700".as_ptr().cast()))?;
            }
            for directory in &self.directories {
                done(libc::mkdir(directory.as_ptr(), 0o700))?;
            }
            for (path, content) in &self.files {
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
                let file = done(libc::open(path.as_ptr(), flags, 0o600))?;
                let written = libc::write(file, content.as_ptr().cast(), content.len());
                done(libc::close(file))?;
                if usize::try_from(written) != Ok(content.len()) {
                    return Err(io::Error::from_raw_os_error(libc::ENOSPC));
                }
            }
        }
        Ok(())
    }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::Path { path: path.to_owned(), reason: "holds a NUL byte".to_owned() })
}

/// Runs it to its end. What it started in the background and left running is not waited for.
///
/// # Errors
/// `ToolMissing`; `Io` where it could not be started; `Deadline` (the whole group was killed; if it hangs in the kernel, it is
/// reaped later). A failing exit status is not an error here: see [`run_ok`].
pub fn run(run: Run<'_>) -> Result<Output> {
    run_with(run, None)
}

/// As `run`, with files of its own.
pub fn run_private(run: Run<'_>, files: Private) -> Result<Output> {
    run_with(run, Some(files))
}

fn run_with(run: Run<'_>, files: Option<Private>) -> Result<Output> {
    let path = run.tool.find()?;
    let begun = Instant::now();
    let mut child = start(&path, &run, files)?;
    #[cfg(feature = "faults")]
    let run = Run { deadline: super::faults::started(run.tool.name, child.id()).unwrap_or(run.deadline), ..run };
    let mut pipes = Pipes::of(&mut child, run.stdin);
    match pipes.serve(&child, begun.checked_add(run.deadline)) {
        Ok(true) => {}
        Ok(false) => {
            end(child);
            return Err(Error::Deadline { action: "run", object: run.tool.name.to_owned(), after: run.deadline });
        }
        Err(error) => {
            end(child);
            return Err(Error::io("wait for", &path, error));
        }
    }
    let status = child.wait().map_err(|error| Error::io("wait for", &path, error))?;
    #[cfg(feature = "faults")]
    super::faults::ended(run.tool.name);
    let [stdout, stderr] = pipes.output.map(Collector::into_string);
    Ok(Output { status: how_it_ended(status), stdout, stderr })
}

/// As `run`; an exit status outside `accepted` is an error: see [`Output::accepted`].
pub fn run_ok(command: Run<'_>, object: &str, accepted: &[i32]) -> Result<Output> {
    let tool = command.tool.name;
    run(command)?.accepted(tool, object, accepted)
}

fn how_it_ended(status: ExitStatus) -> std::result::Result<i32, i32> {
    // One of the two is there: a stopped child is not reaped.
    status.code().ok_or_else(|| status.signal().unwrap_or_default())
}

/// The last lines, as they fit.
fn tail(text: &str) -> String {
    let text = text.trim();
    let excess = text.len().saturating_sub(TAIL_LIMIT);
    if excess == 0 {
        return text.to_owned();
    }
    let tail = (excess..text.len()).find_map(|from| text.get(from..)).unwrap_or_default();
    format!("... {}", tail.split_once('\n').map_or(tail, |(_, whole_lines)| whole_lines))
}

fn start(path: &Path, run: &Run<'_>, files: Option<Private>) -> Result<Child> {
    let kept: Vec<RawFd> = run.keep.iter().map(AsRawFd::as_raw_fd).collect();
    if let Some(low) = kept.iter().find(|fd| **fd <= libc::STDERR_FILENO) {
        let reason = format!("descriptor {low} cannot be kept: the program's own standard streams have that number");
        return Err(Error::Unexpected { object: run.tool.name.to_owned(), reason });
    }
    let parent = rustix::process::getpid().as_raw_nonzero().get();

    #[allow(clippy::disallowed_methods, reason = "this is the one place")]
    let mut command = Command::new(path);
    command
        .args(&run.arguments)
        .env_clear()
        .env("LC_ALL", "C")
        .env("PATH", SEARCH)
        // libdevmapper waits for udev by a semaphore that no udev outside of our container sees.
        .env("DM_DISABLE_UDEV", "1")
        .current_dir("/")
        .process_group(0)
        .stdin(if run.stdin.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // SAFETY: runs in the child between fork and exec; prepare_child and enter make system calls only and do not allocate.
    unsafe {
        command.pre_exec(move || prepare_child(parent, &kept).and_then(|()| files.as_ref().map_or(Ok(()), Private::enter)))
    };
    command.spawn().map_err(|error| Error::io("start", path, error))
}

/// In the child, before exec.
fn prepare_child(parent: i32, kept: &[RawFd]) -> io::Result<()> {
    // The signal comes when the *thread* that started the child ends; that thread waits for the child in `run`.
    // SAFETY: prctl and getppid take and give plain numbers.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        // We may have died before the line above; then the signal never comes.
        if libc::getppid() != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
    }
    for fd in kept {
        // SAFETY: fcntl(F_SETFD) takes plain numbers; a bad descriptor is EBADF.
        if unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Kills the whole group and reaps the child: at once if it goes at once, else in a thread of its own, for what hangs in the
/// kernel may hang for ever.
fn end(mut child: Child) {
    let Some(pid) = Pid::from_raw(child.id().cast_signed()) else { return };
    // The child is not reaped yet, so the number is still its group's. ESRCH only says that all of it is gone.
    if let Err(errno) = rustix::process::kill_process_group(pid, Signal::KILL) {
        tracing::debug!(pid = pid.as_raw_nonzero(), %errno, "kill");
    }
    let gone = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from).and_then(|pidfd| {
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        poll(&mut fds, Instant::now().checked_add(KILL_GRACE))
    });
    match gone {
        Ok(true) => report(child.wait()),
        _ => {
            tracing::warn!(pid = pid.as_raw_nonzero(), "a killed program hangs in the kernel");
            // If no thread can be had, the zombie is left until we end: there is nothing better to do.
            if let Err(error) = std::thread::Builder::new().name("reap".to_owned()).spawn(move || report(child.wait())) {
                tracing::warn!(%error, "cannot wait for a killed program");
            }
        }
    }
}

fn report(waited: io::Result<ExitStatus>) {
    if let Err(error) = waited {
        tracing::warn!(%error, "cannot reap a killed program");
    }
}

/// Our ends of a child's standard streams. None of them blocks.
struct Pipes {
    /// What is still to be written; closed when all of it is, or when the child wants no more.
    input: Option<(ChildStdin, VecDeque<u8>)>,
    /// Standard output and standard error.
    output: [Collector; 2],
}

impl Pipes {
    fn of(child: &mut Child, stdin: Vec<u8>) -> Pipes {
        let input = child.stdin.take().map(|pipe| (pipe, VecDeque::from(stdin)));
        let stdout = Collector::new(child.stdout.take().map(OwnedFd::from));
        let stderr = Collector::new(child.stderr.take().map(OwnedFd::from));
        Pipes { input, output: [stdout, stderr] }
    }

    /// Feeds and empties the pipes until the child has ended: `Ok(true)`; or until the deadline: `Ok(false)`. The end is
    /// seen on a pidfd, not by the end of the output: a grandchild may hold the pipe for ever.
    fn serve(&mut self, child: &Child, deadline: Option<Instant>) -> io::Result<bool> {
        let pid = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        for fd in self.descriptors() {
            let flags = rustix::fs::fcntl_getfl(fd)?;
            rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        }
        loop {
            let mut fds = vec![PollFd::new(&pidfd, PollFlags::IN)];
            fds.extend(self.input.iter().map(|(pipe, _)| PollFd::new(pipe, PollFlags::OUT)));
            fds.extend(self.output.iter().filter_map(|o| o.pipe.as_ref()).map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            let awake = poll(&mut fds, deadline)?;
            let ended = fds.first().is_some_and(|child| !child.revents().is_empty());
            // All are tried, whichever woke us: those that have nothing say so at once.
            if !ended {
                self.feed();
            }
            for output in &mut self.output {
                output.drain()?;
            }
            if ended || !awake {
                return Ok(ended);
            }
        }
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let input = self.input.iter().map(|(pipe, _)| pipe.as_fd());
        input.chain(self.output.iter().filter_map(|output| output.pipe.as_ref()).map(AsFd::as_fd))
    }

    fn feed(&mut self) {
        let Some((pipe, rest)) = &mut self.input else { return };
        match pipe.write(rest.as_slices().0) {
            Ok(written) => {
                rest.drain(..written);
                if rest.is_empty() {
                    self.input = None;
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // EPIPE: it does not want to read the rest, as is its right. Its exit status says what it thinks of that.
            Err(_) => self.input = None,
        }
    }
}

/// The end of what is said on one pipe.
struct Collector {
    pipe: Option<std::fs::File>,
    kept: VecDeque<u8>,
}

impl Collector {
    fn new(pipe: Option<OwnedFd>) -> Collector {
        Collector { pipe: pipe.map(std::fs::File::from), kept: VecDeque::new() }
    }

    /// Reads what is there.
    fn drain(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut buffer = [0; 16 << 10];
        // Bounded, so that a child that never stops talking cannot keep us from the deadline.
        for _ in 0..64 {
            match pipe.read(&mut buffer) {
                Ok(0) => {
                    self.pipe = None;
                    return Ok(());
                }
                Ok(count) => {
                    self.kept.extend(buffer.iter().take(count));
                    let excess = self.kept.len().saturating_sub(OUTPUT_LIMIT);
                    self.kept.drain(..excess);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn into_string(self) -> String {
        String::from_utf8_lossy(&Vec::from(self.kept)).into_owned()
    }
}

/// Waits for one of `fds`, until the deadline (none: for ever). Says whether one is ready.
pub(super) fn poll(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map(Timespec::try_from).transpose().map_err(|_| io::ErrorKind::InvalidInput)?;
        match rustix::event::poll(fds, timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SH: Tool = Tool { name: "sh", package: "dash" };

    fn sh(script: &str) -> Run<'static> {
        let arguments = vec!["-c".to_owned(), script.to_owned()];
        Run { tool: SH, arguments, keep: Vec::new(), stdin: Vec::new(), deadline: Duration::from_secs(30) }
    }

    /// Running or stopped: a zombie whose parent does not reap it is dead enough.
    fn lives(pid: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
            .is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with(['Z', 'X']))
    }

    #[test]
    fn output_status_and_signal_are_told() {
        let output = run(sh("echo out; echo err >&2; exit 7")).unwrap();
        assert_eq!((output.status, &*output.stdout, &*output.stderr), (Ok(7), "out\n", "err\n"));
        assert_eq!(run(sh("kill -TERM $$")).unwrap().status, Err(libc::SIGTERM));
    }

    #[test]
    fn the_environment_is_clean() {
        let output = run(sh("/usr/bin/env; pwd; readlink /proc/self/fd/0")).unwrap();
        let mut lines: Vec<&str> = output.stdout.lines().filter(|line| !line.starts_with("PWD=")).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["/", "/dev/null", "DM_DISABLE_UDEV=1", "LC_ALL=C", &format!("PATH={SEARCH}")]);
    }

    #[test]
    fn files_of_its_own_are_seen_by_no_other() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("public"), "x").unwrap();
        let mut files = Private::default();
        files.cover(directory.path()).unwrap();
        files.add(directory.path(), Path::new("a/b/secret"), b"hush").unwrap();
        files.add(directory.path(), Path::new("a/other"), b"").unwrap();
        assert!(!format!("{files:?}").contains("hush"));
        let script = format!(
            "cd {} && find . -type f -printf '%p %m\\n' | sort; cat a/b/secret; stat -f -c ' %T' .; echo more >left",
            directory.path().display()
        );
        let output = run_private(sh(&script), files).unwrap();
        assert_eq!(output.stdout, "./a/b/secret 600\n./a/other 600\nhush ramfs\n", "{}", output.stderr);
        let mut left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["public"]);
        assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(directory.path().to_str().unwrap()));
    }

    /// As the kubelet's directory is: shared.
    #[test]
    fn program_with_files_of_its_own_keeps_no_unmounted_volume() {
        crate::os::mount::testing::in_own_namespace(|| {
            let directory = tempfile::tempdir().unwrap();
            let [volume, covered, ready] = ["volume", "covered", "ready"].map(|name| directory.path().join(name));
            [&volume, &covered].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
            let shared = rustix::mount::MountPropagationFlags::SHARED | rustix::mount::MountPropagationFlags::REC;
            rustix::mount::mount_change("/", shared).unwrap();
            rustix::mount::mount("volume", &volume, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
            let script = format!(
                "grep -q ' {0} ' /proc/self/mountinfo && echo mounted; : >{1}; \
                 while grep -q ' {0} ' /proc/self/mountinfo; do :; done; echo unmounted",
                volume.display(),
                ready.display()
            );
            let mut files = Private::default();
            files.cover(&covered).unwrap();
            let output = std::thread::scope(|scope| {
                let program = scope.spawn(|| run_private(Run { deadline: Duration::from_secs(10), ..sh(&script) }, files));
                while !ready.exists() && !program.is_finished() {
                    std::thread::yield_now();
                }
                rustix::mount::unmount(&volume, rustix::mount::UnmountFlags::empty()).unwrap();
                program.join().unwrap()
            });
            assert_eq!(output.unwrap().stdout, "mounted\nunmounted\n");
        });
    }

    #[test]
    fn it_leads_a_process_group() {
        let output = run(sh("cut -d' ' -f1,5 /proc/$$/stat")).unwrap();
        let (pid, group) = output.stdout.trim().split_once(' ').unwrap();
        assert_eq!(pid, group);
    }

    #[test]
    fn it_is_killed_when_we_die() {
        let tool = Tool { name: "setpriv", package: "util-linux" };
        match run(Run { tool, arguments: vec!["--dump".to_owned()], ..sh("") }) {
            Ok(output) => assert!(output.stdout.contains("Parent death signal: KILL"), "{}", output.stdout),
            Err(error) => eprintln!("SKIPPED: the signal at our death: {error}"),
        }
    }

    #[test]
    fn a_missing_tool_names_its_package() {
        let tool = Tool { name: "no-such-tool", package: "no-such-package" };
        let error = run(Run { tool, ..sh("") }).unwrap_err();
        assert_eq!(error.to_string(), "no-such-tool is not installed; install the package no-such-package");
    }

    #[test]
    fn much_on_all_three_streams_does_not_deadlock() {
        let input: Vec<u8> = b"0123456789abcde\n".repeat(64 << 10);
        let output = run(Run { stdin: input.clone(), ..sh("tee /dev/stderr; echo end") }).unwrap();
        assert_eq!(output.status, Ok(0));
        assert_eq!((output.stdout.len(), output.stderr.len()), (OUTPUT_LIMIT, OUTPUT_LIMIT));
        assert!(output.stdout.ends_with("abcde\nend\n"));
        assert_eq!(output.stderr.as_bytes(), &input[input.len() - OUTPUT_LIMIT..]);
    }

    #[test]
    fn who_does_not_read_its_input_is_no_failure() {
        let output = run(Run { stdin: vec![b'x'; 1 << 20], ..sh("exec 0<&-; exit 3") }).unwrap();
        assert_eq!(output.status, Ok(3));
    }

    #[test]
    fn at_the_deadline_the_whole_group_is_killed_and_the_child_reaped() {
        let directory = tempfile::tempdir().unwrap();
        let pids = directory.path().join("pids");
        let script = format!("trap '' TERM; sleep 1000 & echo $! $$ >{}; wait", pids.display());
        let begun = Instant::now();
        let error = run(Run { deadline: Duration::from_millis(500), ..sh(&script) }).unwrap_err();
        assert!(matches!(error, Error::Deadline { action: "run", .. }), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10));
        let pids = std::fs::read_to_string(pids).unwrap();
        let (background, shell) = pids.split_once(' ').unwrap();
        assert!(!Path::new("/proc").join(shell.trim()).exists(), "reaped");
        // It got the signal in the same call; its last moments are the kernel's.
        while lives(background) {
            std::thread::yield_now();
            assert!(begun.elapsed() < Duration::from_secs(20), "the background process lives");
        }
    }

    #[test]
    fn a_background_process_that_holds_the_pipe_is_not_waited_for() {
        let begun = Instant::now();
        let output = run(sh("sleep 20 & echo $!")).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(15));
        let pid: i32 = output.stdout.trim().parse().unwrap();
        rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn only_what_is_kept_is_open_in_the_child() {
        let mut kept = tempfile::tempfile().unwrap();
        kept.write_all(b"by number").unwrap();
        let other = tempfile::tempfile().unwrap();
        let fd = kept.as_raw_fd();
        let script = format!("cat /proc/self/fd/{fd}; test -e /proc/self/fd/{} && echo leaked", other.as_raw_fd());
        let output = run(Run { keep: vec![kept.as_fd()], ..sh(&script) }).unwrap();
        assert_eq!(output.stdout, "by number");
        assert!(rustix::io::fcntl_getfd(&kept).unwrap().contains(rustix::io::FdFlags::CLOEXEC), "still closed in others");
    }

    #[test]
    fn a_standard_stream_cannot_be_kept() {
        let stderr = io::stderr();
        let error = run(Run { keep: vec![stderr.as_fd()], ..sh("") }).unwrap_err();
        assert!(matches!(error, Error::Unexpected { .. }), "{error}");
    }

    #[test]
    fn an_unaccepted_status_is_an_error_with_what_was_said() {
        assert_eq!(run_ok(sh("exit 2"), "x", &[0, 2]).unwrap().status, Ok(2));
        let error = run_ok(sh("echo why >&2; exit 4"), "/dev/x", &[0]).unwrap_err();
        assert_eq!(error.to_string(), "sh /dev/x: exit status 4: why");
        let error = run_ok(sh("echo instead; kill -KILL $$"), "/dev/x", &[0]).unwrap_err();
        assert_eq!(error.to_string(), "sh /dev/x: killed by signal 9: instead");
    }

    #[test]
    fn the_tail_is_whole_lines_and_whole_characters() {
        let text = format!("first\n{}last\n", "ä line\n".repeat(1000));
        let tail = tail(&text);
        assert!(tail.starts_with("... ä line\n") && tail.ends_with("\nlast") && tail.len() <= TAIL_LIMIT + 4);
    }

    #[test]
    fn debug_shows_no_secret() {
        let shown = format!("{:?}", Run { stdin: b"secret".to_vec(), ..sh("") });
        assert!(shown.contains("6 bytes") && !shown.contains("secret") && !shown.contains("115"));
    }
}

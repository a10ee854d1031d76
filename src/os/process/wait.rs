//! The wait for a program: its streams are served until it ends, or until the deadline, when its whole group is killed.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

/// How much of an output is kept.
pub(super) const OUTPUT_LIMIT: usize = 64 << 10;

/// How long a killed program may take to be gone. One that hangs in the kernel (state D) takes longer.
const KILL_GRACE: Duration = Duration::from_secs(3);

pub(super) fn how_it_ended(status: ExitStatus) -> Result<i32, i32> {
    // One of the two is there: a stopped child is not reaped.
    status.code().ok_or_else(|| status.signal().unwrap_or_default())
}

/// Kills the whole group and reaps the child: at once if it goes at once, else in a thread of its own, for what hangs in the
/// kernel may hang for ever.
pub(super) fn end(mut child: Child) {
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
pub(super) struct Pipes {
    /// What is still to be written; closed when all of it is, or when the child wants no more.
    input: Option<(ChildStdin, VecDeque<u8>)>,
    /// Standard output and standard error.
    pub(super) output: [Collector; 2],
}

impl Pipes {
    pub(super) fn of(child: &mut Child, stdin: Vec<u8>) -> Pipes {
        let input = child.stdin.take().map(|pipe| (pipe, VecDeque::from(stdin)));
        let stdout = Collector::new(child.stdout.take().map(OwnedFd::from));
        let stderr = Collector::new(child.stderr.take().map(OwnedFd::from));
        Pipes { input, output: [stdout, stderr] }
    }

    /// Feeds and empties the pipes until the child has ended: `Ok(true)`; or until the deadline: `Ok(false)`. The end is
    /// seen on a pidfd, not by the end of the output: a grandchild may hold the pipe for ever.
    pub(super) fn serve(&mut self, child: &Child, deadline: Option<Instant>) -> io::Result<bool> {
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
pub(super) struct Collector {
    pipe: Option<std::fs::File>,
    pub(super) kept: VecDeque<u8>,
}

impl Collector {
    pub(super) fn new(pipe: Option<OwnedFd>) -> Collector {
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

    pub(super) fn into_string(self) -> String {
        String::from_utf8_lossy(&Vec::from(self.kept)).into_owned()
    }
}

/// Waits for one of `fds`, until the deadline (none: for ever). Says whether one is ready.
pub(in crate::os) fn poll(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<bool> {
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

//! The start of a program: what is set up between fork and exec.
#![allow(unsafe_code, reason = "what a child does between fork and exec (prctl, fcntl) cannot be said in safe Rust")]

use std::fs::File;
use std::io::{self};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::super::{Error, Result};

use super::command::{Run, SEARCH};
use super::private::Private;

pub(super) fn start(path: &Path, run: &Run<'_>, files: Option<Private>, stdout: Option<File>) -> Result<Child> {
    let kept: Vec<RawFd> = run.keep.iter().map(AsRawFd::as_raw_fd).collect();
    if let Some(low) = kept.iter().find(|fd| **fd <= libc::STDERR_FILENO) {
        let reason = format!("descriptor {low} cannot be kept: the program's own standard streams have that number");
        return Err(Error::Unexpected { object: run.tool.name.to_owned(), reason });
    }
    let parent = rustix::process::getpid().as_raw_nonzero().get();

    let mut command = command(path, &run.arguments);
    command
        .stdin(if run.stdin.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(stdout.map_or_else(Stdio::piped, Stdio::from))
        .stderr(Stdio::piped());
    // SAFETY: runs in the child between fork and exec; prepare_child and enter make system calls only and do not allocate.
    unsafe {
        command.pre_exec(move || prepare_child(parent, &kept).and_then(|()| files.as_ref().map_or(Ok(()), Private::enter)))
    };
    command.spawn().map_err(|error| Error::io("start", path, error))
}

/// Starts a program that outlives this process. What it prints goes to files: a pipe that nobody reads would end it.
pub(super) fn start_detached(path: &Path, arguments: &[String], [stdin, stdout, stderr]: [File; 3]) -> Result<Child> {
    let mut command = command(path, arguments);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    command.spawn().map_err(|error| Error::io("start", path, error))
}

fn command(path: &Path, arguments: &[String]) -> Command {
    #[allow(clippy::disallowed_methods, reason = "this is the one place")]
    let mut command = Command::new(path);
    command
        .args(arguments)
        .env_clear()
        .env("LC_ALL", "C")
        .env("PATH", SEARCH)
        // libdevmapper waits for udev by a semaphore that no udev outside of our container sees.
        .env("DM_DISABLE_UDEV", "1")
        .current_dir("/")
        .process_group(0);
    command
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

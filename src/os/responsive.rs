//! Whether the server behind a mounted file system answers, asked so that nothing hangs if it does not.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::deadline::within;
use super::process::{Run, Tool, run};
use super::{Error, Result};

/// Whether `statfs` of the share at `place` is answered: a network file system keeps no answer of it, so that it is the server's. A program asks, which
/// can be left behind, where a call of our own would hang.
///
/// # Errors
/// `Deadline`; `Io` with what statfs(2) said: ESTALE.
pub fn answers(place: &Path, deadline: Duration) -> Result<()> {
    let path = place.to_owned();
    ask(place, Vec::new(), deadline, move || rustix::fs::statfs(&path).map(drop))
}

/// As `answers`, of the open top directory of a mount to which no path leads.
///
/// # Errors
/// As `answers`.
pub fn answers_open(mounted: BorrowedFd<'_>, deadline: Duration) -> Result<()> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", mounted.as_raw_fd()));
    let own = mounted.try_clone_to_owned().map_err(|error| Error::io("duplicate", &path, error))?;
    ask(&path, vec![mounted], deadline, move || rustix::fs::fstatfs(own).map(drop))
}

fn ask(
    place: &Path,
    keep: Vec<BorrowedFd<'_>>,
    deadline: Duration,
    ourselves: impl FnOnce() -> rustix::io::Result<()> + Send + 'static,
) -> Result<()> {
    let tool = Tool { name: "stat", package: "coreutils" };
    let arguments = ["--file-system", "--format=%i", "--"].map(str::to_owned).into_iter();
    let arguments = arguments.chain([place.display().to_string()]).collect();
    if run(Run { tool, arguments, keep, stdin: Vec::new(), deadline })?.status == Ok(0) {
        return Ok(());
    }
    // It was answered, and badly: what with, a call of our own tells, which is answered as fast.
    match within(deadline, ourselves) {
        Some(answer) => answer.map_err(|errno| Error::io("ask for the state of", place, errno)),
        None => Err(Error::Deadline { action: "ask for the state of", object: place.display().to_string(), after: deadline }),
    }
}

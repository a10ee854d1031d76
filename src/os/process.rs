//! The one place that starts programs.
//!
//! Absolute tool paths, clean environment with `LC_ALL=C` and a fixed PATH, standard input closed (or given), its own process group,
//! killed whole at the deadline, and with us (PR_SET_PDEATHSIG). Secrets travel by standard input only.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::Result;

/// A program and the Debian package that has it.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    pub name: &'static str,
    pub package: &'static str,
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

/// How to run it.
#[derive(Debug)]
pub struct Run<'a> {
    pub tool: Tool,
    pub arguments: Vec<String>,
    /// Kept open in the child under the same number, so that `/proc/self/fd/N` in an argument names it.
    pub keep: Vec<BorrowedFd<'a>>,
    pub stdin: Vec<u8>,
    pub deadline: Duration,
}

/// Runs it to its end.
///
/// # Errors
/// `ToolMissing`; `Deadline` (the group was killed and reaped). A failing exit status is not an error here: see [`run_ok`].
pub fn run(run: Run<'_>) -> Result<Output> {
    unimplemented!()
}

/// As `run`; an exit status outside `accepted` is `Error::Tool` about `object`, with the tail of stderr (or stdout).
pub fn run_ok(run: Run<'_>, object: &str, accepted: &[i32]) -> Result<Output> {
    unimplemented!()
}

//! A program to run, and what it returned.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::{Error, Result};

/// Where tools are looked for, and the PATH that they get.
pub(super) const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How much of an output an error repeats.
pub(super) const TAIL_LIMIT: usize = 1 << 10;

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
        self.find_where(|path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok())
    }

    /// As `find`, by what is said to be a program.
    pub(super) fn find_where(&self, is_program: impl Fn(&Path) -> bool) -> Result<PathBuf> {
        SEARCH
            .split(':')
            .map(|directory| Path::new(directory).join(self.name))
            .find(|path| is_program(path))
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

/// The last lines, as they fit.
pub(super) fn tail(text: &str) -> String {
    let text = text.trim();
    let excess = text.len().saturating_sub(TAIL_LIMIT);
    if excess == 0 {
        return text.to_owned();
    }
    let tail = (excess..text.len()).find_map(|from| text.get(from..)).unwrap_or_default();
    format!("... {}", tail.split_once('\n').map_or(tail, |(_, whole_lines)| whole_lines))
}

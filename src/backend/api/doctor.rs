//! What a backend has `longshore doctor` check.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::os::process::Tool;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Something will not work, or not well; the driver does.
    Warning,
    /// The driver would fail, at its start or at the first pod.
    Error,
}

/// What came of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// For programs: `kernel`, `propagation`.
    pub name: &'static str,
    pub level: Level,
    pub found: String,
    /// What to do; not with `ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Check { name, level: Level::Ok, found: found.into(), remedy: None }
    }

    pub fn warning(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Check { name, level: Level::Warning, found: found.into(), remedy: Some(remedy.into()) }
    }

    pub fn error(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Check { name, level: Level::Error, found: found.into(), remedy: Some(remedy.into()) }
    }
}

/// A check of a node that is made only where a backend needs it.
#[derive(Clone, Copy, Debug)]
pub struct NodeCheck {
    /// What it is called where it gives no result in time.
    pub name: &'static str,
    pub run: fn() -> Vec<Check>,
}

/// A program that the driver runs.
#[derive(Clone, Copy, Debug)]
pub struct ToolUse {
    pub tool: Tool,
    /// What makes it print its version, and do nothing else.
    pub version: &'static [&'static str],
    /// As what follows "it": `mounts shares`.
    pub what_for: &'static str,
    /// Without it the driver fails; else only what it is for does.
    pub required: bool,
}

impl ToolUse {
    pub const fn required(tool: Tool, version: &'static [&'static str], what_for: &'static str) -> Self {
        ToolUse { tool, version, what_for, required: true }
    }

    pub const fn optional(tool: Tool, version: &'static [&'static str], what_for: &'static str) -> Self {
        ToolUse { tool, version, what_for, required: false }
    }
}

/// A directory of this machine in which a backend keeps volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoragePath {
    /// As its configuration calls it.
    pub name: String,
    pub path: PathBuf,
    /// The file, if there is one, that shows that the driver uses the directory already: without it the directory must be empty but for
    /// `own_entries`.
    pub marker: Option<&'static str>,
    /// The file, if there is one, that the process which provisions has locked: [`crate::backend::LockRecord`].
    pub lock: Option<&'static str>,
    /// What the driver itself puts into a directory, maybe before the marker.
    pub own_entries: &'static [&'static str],
    /// Whether its file system should limit projects; `Error` is that it must.
    pub project_quotas: Option<Level>,
}

impl StoragePath {
    /// One that may hold anything.
    pub fn directory(name: &str, path: &Path) -> Self {
        StoragePath {
            name: name.to_owned(),
            path: path.to_owned(),
            marker: None,
            lock: None,
            own_entries: &[],
            project_quotas: None,
        }
    }
}

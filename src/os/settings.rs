//! Configuration files of other programs: lines, with comments behind `#`.

use std::fs;
use std::path::Path;

use super::{Error, Result};

/// The lines without comments; `None` where there is no such file.
///
/// # Errors
/// Where it cannot be read.
pub fn read(path: &Path) -> Result<Option<Vec<String>>> {
    let text = match fs::read_to_string(path).map_err(|error| Error::io("read", path, error)) {
        Ok(text) => text,
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => return Err(error),
    };
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    Ok(Some(lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()))
}

/// Whether this is a line `key = value`.
pub fn has(line: &str, key: &str, value: impl Fn(&str) -> bool) -> bool {
    line.split_once('=').is_some_and(|(left, right)| left.trim() == key && value(right.trim()))
}

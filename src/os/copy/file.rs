//! A file that lies open: its size, its name for messages, its errors.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use super::super::{Error, Result};

pub(super) fn size_of(file: &File) -> Result<u64> {
    Ok(file.metadata().map_err(|error| failed("stat", file, error))?.len())
}

/// The file's name, for messages.
pub(super) fn name_of(file: &File) -> PathBuf {
    let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    std::fs::read_link(&link).unwrap_or(link)
}

pub(super) fn failed(action: &'static str, file: &File, source: impl Into<std::io::Error>) -> Error {
    Error::io(action, name_of(file), source)
}

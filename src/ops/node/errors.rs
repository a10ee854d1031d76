//! Errors and words that the operations share.

use std::path::Path;

use crate::backend::{Directory, Source};
use crate::os;
use crate::os::mountinfo::Mount;
use crate::volume::Error;

use super::journal::Access;

/// As an operator knows it.
pub fn source_name(source: &Source) -> String {
    match source {
        Source::Device(device) => device.path.display().to_string(),
        Source::Filesystem { source, .. } | Source::Directory(Directory { source, .. }) => source.clone(),
    }
}

/// What an entry's access is, in words.
pub fn access_name(access: &Access) -> &str {
    match access {
        Access::Block => "raw block",
        Access::Filesystem { fstype, .. } => fstype.as_deref().unwrap_or("a file system"),
    }
}

pub fn access_word(read_only: bool) -> &'static str {
    if read_only { "read-only" } else { "read-write" }
}

/// A failed check of what the kernel shows.
pub fn unexpected(object: &Path, reason: impl Into<String>) -> Error {
    os::Error::Unexpected { object: object.display().to_string(), reason: reason.into() }.into()
}

/// A path on which someone else mounted something.
pub fn taken(path: &Path, mount: &Mount) -> Error {
    Error::InUse {
        object: path.display().to_string(),
        by: format!(
            "{} ({}) is mounted there, which is not this volume; unmount it (`umount {}`) if it is not needed",
            mount.source.display(),
            mount.fstype,
            path.display()
        ),
    }
}

pub fn stacked(path: &Path, count: usize) -> Error {
    Error::InUse {
        object: path.display().to_string(),
        by: format!("{count} mounts lie on top of each other there; unmount all but the first (`umount {}`)", path.display()),
    }
}

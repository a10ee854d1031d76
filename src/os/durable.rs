//! Small files that are whole or not there, also after a power cut.

use std::path::Path;

use super::Result;

/// Replaces `folder/name` by `content`: a temporary file (`.name.tmp`), fsync, rename, fsync of the folder.
pub fn write(folder: &Path, name: &str, content: &[u8]) -> Result<()> {
    unimplemented!()
}

/// The whole file; `None` where there is none. More than `limit` bytes is an error.
pub fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    unimplemented!()
}

/// fsync of a folder: what was created, renamed or removed in it is durable.
pub fn sync_dir(folder: &Path) -> Result<()> {
    unimplemented!()
}

/// Unlinks a file and syncs its folder. Missing is fine.
pub fn remove(folder: &Path, name: &str) -> Result<()> {
    unimplemented!()
}

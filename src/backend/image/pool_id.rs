//! The file in which a node remembers, outside of the pool, which pool it has seen in a place: a mount point that is bare after a reboot is
//! then no new pool.

use std::path::{Path, PathBuf};

use crate::os::{self, durable};
use crate::volume::{BackendName, Result};

use super::files;

/// Bytes.
const LONGEST_ID: u64 = 256;

/// Where a node remembers, outside of the pool, which pool it has seen in a place.
#[derive(Debug)]
pub(super) struct PoolIdFile {
    directory: PathBuf,
    /// `<backend>.<pool>`
    name: String,
}

impl PoolIdFile {
    pub fn new(directory: &Path, backend: &BackendName, pool: &str) -> PoolIdFile {
        PoolIdFile { directory: directory.to_owned(), name: format!("{backend}.{pool}") }
    }

    /// The file, for the operator who wants it forgotten.
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    pub fn load_pool_id(&self) -> Result<Option<String>> {
        let text = durable::read(&self.path(), LONGEST_ID)?;
        Ok(text.map(|text| String::from_utf8_lossy(&text).trim().to_owned()).filter(|id| !id.is_empty()))
    }

    pub fn keep(&self, id: &str) -> os::Result<()> {
        if durable::read(&self.path(), LONGEST_ID)?.is_some() {
            return Ok(());
        }
        files::ensure_directory(&self.directory)?;
        durable::write(&self.directory, &self.name, format!("{id}\n").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Pools are opened at the same time, and the first makes the directory.
    #[test]
    fn ids_kept_at_the_same_time_in_a_missing_directory_are_all_kept() {
        let parent = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let directory = parent.path().join(round.to_string());
            let files: Vec<PoolIdFile> =
                (0..4).map(|pool| PoolIdFile::new(&directory, &"image".parse().unwrap(), &pool.to_string())).collect();
            let barrier = Barrier::new(files.len());
            std::thread::scope(|scope| {
                for file in &files {
                    scope.spawn(|| {
                        barrier.wait();
                        file.keep("id").unwrap();
                    });
                }
            });
            assert!(files.iter().all(|file| file.load_pool_id().unwrap().as_deref() == Some("id")), "round {round}");
        }
    }
}

//! Which volume groups hold volumes of this backend, as the state directory has it while they do: that a volume is in none of the volume
//! groups that are configured says nothing of one that was taken out of the configuration, or replaced by another of its name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use crate::os::{self, durable, lock};

/// Bytes: a name has at most 127 (lvm(8)).
const LONGEST_NAME: u64 = 256;

/// A directory of files `<backend>.<UUID of the volume group>`, which hold its name.
#[derive(Debug)]
pub(super) struct Holding {
    directory: PathBuf,
    /// How the names of its files begin.
    prefix: String,
    /// What was last seen of each volume group, by its name: its UUID, and whether it held anything.
    seen: Mutex<BTreeMap<String, (String, bool)>>,
}

impl Holding {
    pub(super) fn new(directory: PathBuf, backend: &str) -> Holding {
        Holding { directory, prefix: format!("{backend}."), seen: Mutex::default() }
    }

    /// That a volume group was seen, and whether it holds anything of this backend.
    pub(super) fn note(&self, name: &str, uuid: &str, holds: bool) -> os::Result<()> {
        let mut seen = lock(&self.seen);
        if seen.get(name).is_some_and(|(known, held)| known == uuid && *held == holds) {
            return Ok(());
        }
        let file = format!("{}{uuid}", self.prefix);
        if holds {
            std::fs::create_dir_all(&self.directory).map_err(|error| os::Error::io("create", &self.directory, error))?;
            durable::write(&self.directory, &file, name.as_bytes())?;
        } else if self.directory.exists() {
            durable::remove(&self.directory, &file)?;
        }
        seen.insert(name.to_owned(), (uuid.to_owned(), holds));
        Ok(())
    }

    /// A volume group that held something when it was last seen, and is none of those seen by this process: its name, and the file that
    /// says so.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub(super) fn unseen(&self) -> os::Result<Option<(String, PathBuf)>> {
        let names = match std::fs::read_dir(&self.directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            entries => entries.and_then(|entries| {
                entries
                    .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
                    .collect::<Result<Vec<_>, _>>()
            }),
        };
        let names = names.map_err(|error| os::Error::io("read", &self.directory, error))?;
        let seen = lock(&self.seen);
        let is_unseen =
            |name: &&String| name.strip_prefix(&self.prefix).is_some_and(|uuid| !seen.values().any(|(known, _)| known == uuid));
        let Some(file) = names.iter().find(is_unseen).map(|name| self.directory.join(name)) else { return Ok(None) };
        let name = durable::read(&file, LONGEST_NAME)?.unwrap_or_default();
        Ok(Some((String::from_utf8_lossy(&name).into_owned(), file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_that_held_something_is_missed_until_it_is_seen_or_forgotten() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join("lvm-groups");
        let holding = || Holding::new(directory.clone(), "lvm");
        let first = holding();
        assert_eq!(first.unseen().unwrap(), None);
        first.note("empty", "B-2", false).unwrap();
        assert!(!directory.exists());
        first.note("data", "A-1", true).unwrap();
        Holding::new(directory.clone(), "lvm-2").note("theirs", "C-3", true).unwrap();
        assert_eq!(first.unseen().unwrap(), None);
        // A later process has another volume group of that name.
        let second = holding();
        second.note("data", "D-4", false).unwrap();
        let (name, file) = second.unseen().unwrap().expect("it is missed");
        assert_eq!((name.as_str(), file.file_name().unwrap()), ("data", "lvm.A-1".as_ref()));
        std::fs::remove_file(file).unwrap();
        assert_eq!(second.unseen().unwrap(), None);
        // Or it has that one again, which is empty by now.
        first.note("data", "A-1", true).unwrap();
        first.note("data", "A-1", false).unwrap();
        assert_eq!(holding().unseen().unwrap(), None);
    }
}

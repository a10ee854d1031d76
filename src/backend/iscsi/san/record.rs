//! Who may have a volume, as it lies with the storage: `<pool>/exports/<volume>.json`, which only root may read.
//!
//! It is written before the kernel lets anybody in, and goes after the last is shut out: what a reboot takes from the kernel is made
//! again by it, with the same credentials.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::backend::image::{EXPORTS, export_room};
use crate::backend::record::{self, Unreadable};
use crate::os::dir::temporary_of;
use crate::os::step::step;
use crate::os::{self, durable, random};
use crate::volume::{AccessMode, Error, NodeId, Result, VolumeId};

use super::super::Chap;

const FORMAT: u32 = 1;
/// No record is longer, in bytes.
const LONGEST: u64 = 1 << 20;
/// Random bytes of a password: 32 characters, where CHAP wants at least 12 and initiators take no more than 255.
const PASSWORD: usize = 16;
/// Random bytes of what tells an attachment from others.
const ATTACHMENT: usize = 8;
const NODE: &str = "longshore-node";
const TARGET: &str = "longshore-target";

/// The nodes that have a volume.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    format: u32,
    pub id: VolumeId,
    /// Of all of them, or none: the target has one rule.
    pub chap: bool,
    pub nodes: BTreeMap<NodeId, Grant>,
}

/// How a node has it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Grant {
    pub mode: AccessMode,
    pub read_only: bool,
    pub keys: Option<Keys>,
    /// Random, of this attachment alone; `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
}

/// The passwords of a node's sessions.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Keys {
    password: String,
    mutual_password: String,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(hidden)")
    }
}

impl Keys {
    fn new() -> os::Result<Keys> {
        Ok(Keys { password: random::hexadecimal(PASSWORD)?, mutual_password: random::hexadecimal(PASSWORD)? })
    }

    pub fn chap(&self) -> Chap {
        let mutual = Some((TARGET.to_owned(), self.mutual_password.clone()));
        Chap { user: NODE.to_owned(), password: self.password.clone(), mutual }
    }

    pub fn credentials(&self) -> os::lio::Credentials<'_> {
        os::lio::Credentials { user: NODE, password: &self.password, mutual_user: TARGET, mutual_password: &self.mutual_password }
    }
}

impl Record {
    pub fn new(id: &VolumeId, chap: bool) -> Record {
        Record { format: FORMAT, id: id.clone(), chap, nodes: BTreeMap::new() }
    }

    /// Lets a further node have it, with passwords of its own.
    pub fn grant(&mut self, node: &NodeId, mode: AccessMode, read_only: bool) -> Result<()> {
        let keys = self.chap.then(Keys::new).transpose()?;
        let attachment = Some(random::hexadecimal(ATTACHMENT)?);
        self.nodes.insert(node.clone(), Grant { mode, read_only, keys, attachment });
        Ok(())
    }

    /// Durably, in the pool of this directory.
    pub fn write(&self, pool: &Path) -> Result<()> {
        let directory = pool.join(EXPORTS);
        let file = file_of(&self.id);
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::failed("write export", self.id.to_string(), error).rolled_back())?;
        text.push(b'\n');
        step("write export", &directory.join(&file).display(), || {
            make_directory(&directory, pool)?;
            rename(&export_room(&self.id, pool), &directory.join(temporary_of(&file)))?;
            durable::write(&directory, &file, &text)
        })?;
        Ok(())
    }

    /// Removes it, durably; gone is fine. Its room stays with the volume.
    pub fn remove(id: &VolumeId, pool: &Path) -> Result<()> {
        let directory = pool.join(EXPORTS);
        let file = file_of(id);
        step("remove export", &directory.join(&file).display(), || {
            rename(&directory.join(&file), &export_room(id, pool))?;
            match durable::remove(&directory, &file) {
                // No volume of this pool was ever exported.
                Err(error) if error.is_missing() => Ok(()),
                done => done,
            }
        })?;
        Ok(())
    }

    /// `None` where this pool has none.
    ///
    /// # Errors
    /// `Unverified` for a damaged one.
    pub fn read(id: &VolumeId, pool: &Path) -> Result<Option<Record>> {
        let path = Record::path(id, pool);
        let Some(text) = durable::read(&path, LONGEST)? else { return Ok(None) };
        decode(&text, id).map(Some).map_err(|reason| Error::Unverified {
            device: path.display().to_string(),
            reason: format!("{reason}; restore it, or remove it: then no node has the volume"),
        })
    }

    /// The local ids of the volumes that have a record in this pool, damaged or not.
    pub fn list(pool: &Path) -> Result<Vec<String>> {
        let directory = pool.join(EXPORTS);
        let failed = |error| os::Error::io("list", &directory, error);
        let mut found = Vec::new();
        let entries = match std::fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            if let Some(local) = name.to_str().and_then(|name| name.strip_suffix(".json")) {
                found.push(local.to_owned());
            }
        }
        found.sort();
        Ok(found)
    }

    fn path(id: &VolumeId, pool: &Path) -> PathBuf {
        pool.join(EXPORTS).join(file_of(id))
    }
}

/// Where there is nothing of that name, or no such directory, nothing is done.
fn rename(from: &Path, to: &Path) -> os::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(os::Error::io("rename", from, error)),
        _ => Ok(()),
    }
}

fn make_directory(directory: &Path, pool: &Path) -> os::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => durable::sync_dir(pool),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(os::Error::io("make directory", directory, error)),
    }
}

fn file_of(id: &VolumeId) -> String {
    format!("{}.json", id.local())
}

fn decode(text: &[u8], id: &VolumeId) -> Result<Record, String> {
    let record: Record = record::decode(text, FORMAT).map_err(|error| match error {
        // What serde says of a value may hold it: only the place is reported.
        Unreadable::Damaged(error) => format!("it is damaged at line {}, column {}", error.line(), error.column()),
        other @ Unreadable::OtherFormat { .. } => other.to_string(),
    })?;
    if record.id != *id {
        return Err(format!("it belongs to {}", record.id));
    }
    if record.nodes.values().any(|grant| grant.keys.is_some() != record.chap) {
        return Err("it has passwords for some nodes only".to_owned());
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(chap: bool) -> Record {
        let mut record = Record::new(&"san:a".parse().expect("an id"), chap);
        for node in ["a", "b"] {
            record.grant(&node.parse().expect("a node"), AccessMode::MultiNodeReaderOnly, true).expect("random bytes");
        }
        record
    }

    #[test]
    fn record_is_read_as_written_and_only_by_root() {
        use std::os::unix::fs::MetadataExt;
        let pool = tempfile::tempdir().expect("a directory");
        for chap in [true, false] {
            let record = record(chap);
            assert_eq!(Record::read(&record.id, pool.path()).expect("none"), None);
            assert!(Record::list(pool.path()).expect("none").is_empty());
            record.write(pool.path()).expect("written");
            assert_eq!(Record::read(&record.id, pool.path()).expect("ours").as_ref(), Some(&record));
            assert_eq!(Record::list(pool.path()).expect("one"), ["a"]);
            let path = Record::path(&record.id, pool.path());
            assert_eq!(path.metadata().expect("there").mode() & 0o777, 0o600);
            assert_eq!(path.parent().expect("a directory").metadata().expect("there").mode() & 0o777, 0o700);
            for _ in 0..2 {
                Record::remove(&record.id, pool.path()).expect("removed");
            }
        }
    }

    /// By the file that it is written into: a new one is what a full pool has no room for.
    #[test]
    fn record_of_a_volume_that_was_exported_before_is_written_in_the_same_room() {
        use std::os::unix::fs::MetadataExt;
        let pool = tempfile::tempdir().expect("a directory");
        let record = record(true);
        let beside = pool.path().join("volumes/a");
        std::fs::create_dir_all(&beside).expect("a directory");
        let path = Record::path(&record.id, pool.path());
        let mut rooms = Vec::new();
        for _ in 0..3 {
            record.write(pool.path()).expect("written");
            rooms.push(path.metadata().expect("there").ino());
            assert_eq!(std::fs::read_dir(&beside).expect("a directory").count(), 0);
            for _ in 0..2 {
                Record::remove(&record.id, pool.path()).expect("removed");
            }
            assert!(!path.exists());
            assert_eq!(std::fs::read_dir(&beside).expect("a directory").count(), 1);
        }
        assert_eq!(rooms, [rooms[0]; 3]);
    }

    #[test]
    fn each_node_has_passwords_of_its_own_that_are_in_no_text() {
        let record = record(true);
        let keys: Vec<Keys> = record.nodes.values().filter_map(|grant| grant.keys.clone()).collect();
        let all: Vec<&String> = keys.iter().flat_map(|keys| [&keys.password, &keys.mutual_password]).collect();
        for (at, one) in all.iter().enumerate() {
            assert!(one.len() >= 12 && !all[at + 1..].contains(one));
            assert!(!format!("{record:?}").contains(one.as_str()));
        }
    }

    #[test]
    fn a_damaged_record_is_reported_without_its_secrets() {
        let pool = tempfile::tempdir().expect("a directory");
        let record = record(true);
        record.write(pool.path()).expect("written");
        let path = Record::path(&record.id, pool.path());
        let text = std::fs::read_to_string(&path).expect("written");
        let password = &record.nodes.values().next().and_then(|grant| grant.keys.as_ref()).expect("with chap").password;
        for damaged in [
            text[..text.len() / 2].to_owned(),
            text.replace("\"format\": 1", "\"format\": 2"),
            text.replace("san:a", "san:b"),
            text.replace("\"chap\": true", "\"chap\": false"),
            text.replace(&format!("\"{password}\""), &format!("[\"{password}\"]")),
        ] {
            assert_ne!(damaged, text);
            std::fs::write(&path, damaged).expect("written");
            let error = Record::read(&record.id, pool.path()).expect_err("damaged");
            assert!(matches!(error, Error::Unverified { .. }) && !error.to_string().contains(password.as_str()), "{error}");
        }
    }
}

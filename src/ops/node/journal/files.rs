//! The journal's files: their names, how they are read, and what is done with a damaged one.

use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::os::{self, durable};
use crate::volume::digest::sha256;
use crate::volume::{Error, Result};

use super::entries::VERSION;

/// The first form said of an interrupted mkfs, luksFormat or growth only that there was one. That is no evidence, and is not read.
const NO_EVIDENCE: [&str; 3] = ["formatting", "encrypting", "growing"];

/// The first form without [`NO_EVIDENCE`].
const WITH_EVIDENCE: u32 = 2;

/// No entry comes near it; what is larger is damaged.
pub(super) const LONGEST: u64 = 1 << 20;

pub(super) const STAGE: &str = "stage.json";

pub(super) const FROZEN: &str = "frozen-";

/// Removes a volume's directory if nothing is in it.
pub(super) fn remove_empty(directory: &Path) -> os::Result<()> {
    match fs::remove_dir(directory) {
        Ok(()) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTEMPTY | libc::EEXIST)) => Ok(()),
        Err(error) => Err(os::Error::io("remove journal directory", directory, error)),
    }
}

/// Removes what [`durable::write`] leaves when it is interrupted.
pub(super) fn sweep_files(directory: &Path) -> Result<()> {
    for name in names(directory)?.iter().filter(|name| name.starts_with('.') && name.ends_with(".json.tmp")) {
        os::step::step("remove leftover", &directory.join(name).display(), || durable::remove(directory, name))?;
    }
    Ok(())
}

/// `target-<the first 16 hexadecimal digits of the path's SHA-256>.json`.
pub(super) fn target_name(target: &Path) -> String {
    format!("target-{}.json", &sha256(target.as_os_str().as_encoded_bytes())[..16])
}

pub(super) fn encode<T: Serialize>(entry: &T) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(entry).map_err(|error| Error::failed("write journal", "entry", error))
}

/// The names in a directory; none where there is no directory.
pub(super) fn names(directory: &Path) -> Result<Vec<String>> {
    let list = match fs::read_dir(directory) {
        Ok(list) => list,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(os::Error::io("read journal directory", directory, error).into()),
    };
    let mut names = Vec::new();
    for entry in list {
        let entry = entry.map_err(|error| os::Error::io("read journal directory", directory, error))?;
        names.extend(entry.file_name().into_string().ok());
    }
    Ok(names)
}

#[derive(Deserialize)]
struct Versioned {
    pub(super) version: u32,
}

pub(super) fn read<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<Option<T>> {
    let path = directory.join(name);
    let Some(content) = durable::read(&path, LONGEST)? else { return Ok(None) };
    match parse(&content) {
        Ok(Parsed::Entry(entry)) => Ok(Some(entry)),
        Ok(Parsed::OtherVersion(version)) => {
            Err(os::Error::Unexpected { object: path.display().to_string(), reason: other_version(version) }.into())
        }
        Err(error) => {
            keep_aside(&path, &error)?;
            Ok(None)
        }
    }
}

pub(super) fn other_version(version: u32) -> String {
    format!(
        "the journal entry was written by another version of Longshore (form {version}, this version reads 1 to {VERSION}) and was left as \
         it is; start that version, or a later one"
    )
}

/// What a file says that is not damaged.
pub(super) enum Parsed<T> {
    Entry(T),
    OtherVersion(u32),
}

pub(super) fn parse<T: DeserializeOwned>(content: &[u8]) -> serde_json::Result<Parsed<T>> {
    match serde_json::from_slice::<Versioned>(content)?.version {
        VERSION => serde_json::from_slice(content).map(Parsed::Entry),
        earlier @ 1..VERSION => {
            let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(content)?;
            if earlier < WITH_EVIDENCE {
                NO_EVIDENCE.iter().for_each(|name| drop(fields.remove(*name)));
            }
            fields.insert("version".to_owned(), VERSION.into());
            serde_json::from_value(fields.into()).map(Parsed::Entry)
        }
        other => Ok(Parsed::OtherVersion(other)),
    }
}

fn keep_aside(path: &Path, error: &serde_json::Error) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".damaged");
    fs::rename(path, &aside).map_err(|error| os::Error::io("keep aside", path, error))?;
    tracing::error!(
        path = %path.display(),
        kept = %Path::new(&aside).display(),
        %error,
        "a journal file cannot be read and was kept aside; the next stage or unstage of the volume finds its device and \
         mounts without it. Remove the kept file once the volume is unstaged"
    );
    Ok(())
}

//! `longshore inspect --backend`: what a cloud holds of this cluster that no PersistentVolume names, and the reverse.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::backend::catalog::{OpenContext, Purpose};
use crate::backend::{Backend, Compare, Garbage, Unnamed};
use crate::config::Config;
use crate::volume::VolumeId;

use super::args::InspectArgs;
use super::{Failure, print, table};

/// Something was found.
const FOUND: u8 = 1;

/// Answers the exit code.
pub fn run(args: &InspectArgs, config: &Config, backend: &str) -> Result<u8, Failure> {
    let Some(file) = &args.handles else {
        return Err(Failure::Usage(
            "--backend compares with the volumes that are in use: give their handles, --handles FILE".to_owned(),
        ));
    };
    let mut handles = read(file)?;
    let snapshots = args.snapshot_handles.as_deref().map(read).transpose()?;
    let compared = snapshots.is_some();
    handles.extend(snapshots.into_iter().flatten());
    let opened = open(config, backend)?;
    let Some(cloud) = opened.compare() else {
        return Err(Failure::Usage(format!("backend {backend} lies in no cloud; `longshore inspect` shows what it holds")));
    };
    if let Some(volume) = &args.delete {
        return delete(cloud, backend, volume, &handles);
    }
    let mut garbage = cloud.unnamed(&handles)?;
    if !compared {
        // Without the list of those in use each would be called unnamed.
        garbage.snapshots.clear();
    }
    let text = match args.json {
        true => super::output::json(&Shown::new(&garbage, compared))?,
        false => shown(&garbage, backend, compared),
    };
    print(&text)?;
    let well = garbage.disks.is_empty() && garbage.snapshots.is_empty() && garbage.missing.is_empty();
    Ok(if well { 0 } else { FOUND })
}

/// Only by its whole id, and only against handles that are certainly those of this backend.
fn delete(cloud: &dyn Compare, backend: &str, volume: &str, handles: &BTreeSet<String>) -> Result<u8, Failure> {
    let id: VolumeId = volume.parse()?;
    if !handles.iter().any(|handle| handle.starts_with(&format!("{backend}:"))) {
        let reason = format!(
            "--handles names no volume of {backend} at all, which cannot be the list of what is in use; nothing was deleted"
        );
        return Err(Failure::Usage(reason));
    }
    cloud.delete_unnamed(&id, handles)?;
    print(&format!("deleted {id}\n"))?;
    Ok(0)
}

/// A handle in each line; `-` is standard input.
fn read(file: &Path) -> Result<BTreeSet<String>, Failure> {
    let unreadable = |source| Failure::Unreadable { path: file.to_owned(), source };
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map_err(unreadable)?;
    } else {
        text = std::fs::read_to_string(file).map_err(unreadable)?;
    }
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

fn open(config: &Config, name: &str) -> Result<Arc<dyn Backend>, Failure> {
    match config.backends.iter().find(|backend| backend.name().as_str() == name) {
        Some(backend) => Ok(backend.open(&OpenContext::to_look(Purpose::Compare, &config.node_id, config.state_dir.path()))?),
        None => {
            let known: Vec<&str> = config.backends.iter().map(|backend| backend.name().as_str()).collect();
            Err(Failure::Usage(format!("no backend is called {name}; there are: {}", known.join(", "))))
        }
    }
}

/// As JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    version: u32,
    volumes: Vec<One<'a>>,
    snapshots: Vec<One<'a>>,
    missing: &'a [String],
    /// Whether `snapshots` says anything: their handles were given.
    snapshots_compared: bool,
}

#[derive(Serialize)]
struct One<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<&'a str>,
    what: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    nodes: &'a [String],
}

impl<'a> Shown<'a> {
    fn new(garbage: &'a Garbage, snapshots_compared: bool) -> Self {
        fn all(unnamed: &[Unnamed]) -> Vec<One<'_>> {
            unnamed.iter().map(|one| One { handle: one.handle.as_deref(), what: &one.what, nodes: &one.attached }).collect()
        }
        Shown {
            version: 1,
            volumes: all(&garbage.disks),
            snapshots: all(&garbage.snapshots),
            missing: &garbage.missing,
            snapshots_compared,
        }
    }
}

fn shown(garbage: &Garbage, backend: &str, snapshots_compared: bool) -> String {
    let mut text = String::new();
    for (title, unnamed) in
        [("Volumes that no handle names", &garbage.disks), ("Snapshots that no handle names", &garbage.snapshots)]
    {
        if unnamed.is_empty() {
            continue;
        }
        let row = |one: &Unnamed| vec![one.handle.clone().unwrap_or_default(), one.what.clone(), one.attached.join(", ")];
        let _ = write!(text, "{title}:\n{}\n", table::rows(&["HANDLE", "WHAT", "NODES"], unnamed.iter().map(row)));
    }
    if !garbage.missing.is_empty() {
        let rows = garbage.missing.iter().map(|handle| vec![handle.clone()]);
        let _ = write!(text, "Handles without a volume or snapshot:\n{}\n", table::rows(&["HANDLE"], rows));
    }
    if text.is_empty() {
        text.push_str("everything that was compared is named by a handle, and each handle has its volume\n");
    } else {
        let _ = writeln!(
            text,
            "A volume that is being made has no PersistentVolume yet. Nothing was changed; `longshore inspect --backend {backend} --handles \
             FILE --snapshot-handles FILE --delete HANDLE` deletes one volume."
        );
    }
    if !snapshots_compared {
        text.push_str("Snapshots were not compared: --snapshot-handles FILE gives the handles of those in use.\n");
    }
    text
}

//! `longshore inspect --backend`: what a cloud holds of this cluster that no PersistentVolume names, and the reverse.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use serde::Serialize;

use crate::backend::cloud::CloudBackend;
use crate::backend::cloud::garbage::{Garbage, Unnamed};
use crate::backend::ec2;
use crate::config::{BackendConfig, Config};
use crate::metrics::CloudRequests;
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
    let handles = read(file)?;
    let cloud = open(config, backend)?;
    if let Some(volume) = &args.delete {
        return delete(&cloud, backend, volume, &handles);
    }
    let garbage = cloud.garbage(&handles)?;
    let text = if args.json { super::inspect::json(&Shown::from(&garbage))? } else { shown(&garbage, backend) };
    print(&text)?;
    let well = garbage.disks.is_empty() && garbage.snapshots.is_empty() && garbage.missing.is_empty();
    Ok(if well { 0 } else { FOUND })
}

/// Only by its whole id, and only against handles that are certainly those of this backend.
fn delete(cloud: &CloudBackend, backend: &str, volume: &str, handles: &BTreeSet<String>) -> Result<u8, Failure> {
    let id: VolumeId = volume.parse()?;
    if !handles.iter().any(|handle| handle.starts_with(&format!("{backend}:"))) {
        let reason = format!(
            "--handles names no volume of {backend} at all, which cannot be the list of what is in use; nothing was deleted"
        );
        return Err(Failure::Usage(reason));
    }
    cloud.delete_garbage(&id, handles)?;
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

fn open(config: &Config, name: &str) -> Result<CloudBackend, Failure> {
    let configured = config.backends.iter().find(|backend| backend.name().as_str() == name);
    match configured {
        Some(BackendConfig::Ec2(cloud)) => {
            Ok(ec2::open(cloud.clone(), ec2::Role { provision: true, connect: false }, CloudRequests::default())?)
        }
        Some(_) => Err(Failure::Usage(format!("backend {name} lies in no cloud; `longshore inspect` shows what it holds"))),
        None => {
            let known: Vec<&str> = config.backends.iter().map(|backend| backend.name().as_str()).collect();
            Err(Failure::Usage(format!("no backend is called {name}; there are: {}", known.join(", "))))
        }
    }
}

/// As JSON.
#[derive(Serialize)]
struct Shown<'a> {
    version: u32,
    volumes: Vec<One<'a>>,
    snapshots: Vec<One<'a>>,
    missing: &'a [String],
}

#[derive(Serialize)]
struct One<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<&'a str>,
    what: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    nodes: &'a [String],
}

impl<'a> From<&'a Garbage> for Shown<'a> {
    fn from(garbage: &'a Garbage) -> Self {
        fn all(unnamed: &[Unnamed]) -> Vec<One<'_>> {
            unnamed.iter().map(|one| One { handle: one.handle.as_deref(), what: &one.what, nodes: &one.attached }).collect()
        }
        Shown { version: 1, volumes: all(&garbage.disks), snapshots: all(&garbage.snapshots), missing: &garbage.missing }
    }
}

fn shown(garbage: &Garbage, backend: &str) -> String {
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
        return "everything is named by a handle, and each handle has its volume\n".to_owned();
    }
    let _ = writeln!(
        text,
        "A volume that is being made has no PersistentVolume yet. Nothing was changed; `longshore inspect --backend {backend} --handles FILE \
         --delete HANDLE` deletes one volume."
    );
    text
}

//! Several paths to one disk: device-mapper's maps, which multipathd makes and keeps, as sysfs shows them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::process::{Run, Tool, run_ok};
use super::scsi::{Disk, Unit, attribute, children, number};
use super::{Error, Result};

const MULTIPATHD: Tool = Tool { name: "multipathd", package: "multipath-tools" };
/// How the UUIDs of its maps begin (multipath-tools, UUID_PREFIX).
const MADE_BY_MULTIPATH: &str = "mpath-";
/// Names of its sockets, in /proc/net/unix: abstract, and since 0.10 also by a path.
const SOCKETS: [&str; 2] = ["@/org/kernel/linux/storage/multipathd", "/run/multipathd.socket"];
const DEADLINE: Duration = Duration::from_secs(20);

/// A map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Below /dev/mapper.
    pub name: String,
    /// `/dev/dm-3`.
    pub path: PathBuf,
    pub number: (u32, u32),
    /// `mpath-` and the disk's identity, as multipath-tools write it.
    pub uuid: String,
}

impl Map {
    /// The map of this kernel name (`dm-3`); `None` where it is none of multipathd's, or gone.
    pub fn of(kernel_name: &str) -> Result<Option<Map>> {
        let directory = Path::new("/sys/block").join(kernel_name);
        let get = |file: &str| attribute(&directory, file);
        let (Some(uuid), Some(name), Some(number)) = (get("dm/uuid")?, get("dm/name")?, get("dev")?.as_deref().and_then(number))
        else {
            return Ok(None);
        };
        let path = Path::new("/dev").join(kernel_name);
        Ok(uuid.starts_with(MADE_BY_MULTIPATH).then_some(Map { name, path, number, uuid }))
    }

    /// The map that lies on a disk.
    pub fn on(disk: &Disk) -> Result<Option<Map>> {
        for holder in super::dm::holders(disk.number)? {
            if let Some(map) = Map::of(&holder)? {
                return Ok(Some(map));
            }
        }
        Ok(None)
    }

    /// The disks that are its paths.
    pub fn disks(&self) -> Result<Vec<String>> {
        children(&self.directory().join("slaves"))
    }

    /// Whether it shows the disk of this identity, and no other.
    pub fn shows(&self, wwid: &str) -> Result<bool> {
        let disks = self.disks()?;
        if disks.is_empty() {
            // All of its paths are lost. A name that the world registers is in the map's own, after a digit for its kind.
            let digits = wwid.strip_prefix("naa.").or_else(|| wwid.strip_prefix("eui."));
            return Ok(digits.is_some_and(|digits| self.uuid.get(MADE_BY_MULTIPATH.len() + 1..) == Some(digits)));
        }
        for disk in disks {
            if Unit::of(&disk).map(|unit| unit.wwid()).transpose()?.flatten().as_deref() != Some(wwid) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// In bytes.
    pub fn size(&self) -> Result<u64> {
        size_of(&self.directory())
    }

    /// Makes the map as large as its paths, which have grown.
    ///
    /// # Errors
    /// `Tool` where multipathd refuses, as for paths of several sizes; `Unexpected` where it does not run.
    pub fn resize(&self) -> Result<()> {
        order(&["resize", "map", &self.name])
    }

    /// Lets what waits for a path fail now.
    pub fn stop_waiting(&self) -> Result<()> {
        order(&["disablequeueing", "map", &self.name])
    }

    fn directory(&self) -> PathBuf {
        Path::new("/sys/block").join(self.path.file_name().unwrap_or_default())
    }
}

/// Whether multipathd runs, as far as we can reach it: its socket is in our network namespace.
pub fn runs() -> bool {
    socket_listens(&SOCKETS)
}

/// Tells multipathd of a disk that it may not have heard of yet; returns when it has decided about it by its configuration.
pub fn offer(disk: &Disk) -> Result<()> {
    order(&["add", "path", &disk.name])
}

/// Takes a disk out of its map, which keeps its other paths.
pub fn withdraw(disk: &Disk) -> Result<()> {
    order(&["del", "path", &disk.name])
}

/// Bytes of a disk, as the kernel knows them.
pub fn size_of_disk(disk: &Disk) -> Result<u64> {
    size_of(&Path::new("/sys/block").join(&disk.name))
}

fn size_of(directory: &Path) -> Result<u64> {
    let sectors = attribute(directory, "size")?.and_then(|size| size.parse::<u64>().ok());
    let sectors = sectors.ok_or_else(|| Error::Unexpected {
        object: directory.display().to_string(),
        reason: "it has no size; the device is gone".to_owned(),
    })?;
    Ok(sectors.saturating_mul(512))
}

fn order(words: &[&str]) -> Result<()> {
    if !runs() {
        return Err(Error::Unexpected {
            object: "multipathd".to_owned(),
            reason: "it does not run; start it (`systemctl enable --now multipathd`), or let it run in this pod".to_owned(),
        });
    }
    let run = Run {
        tool: MULTIPATHD,
        arguments: words.iter().map(|word| (*word).to_owned()).collect(),
        keep: Vec::new(),
        stdin: Vec::new(),
        deadline: DEADLINE,
    };
    run_ok(run, &words.join(" "), &[0]).map(drop)
}

/// Whether one of these unix sockets is listened on in our network namespace (proc_net(5)).
pub(super) fn socket_listens(names: &[&str]) -> bool {
    let Ok(text) = std::fs::read_to_string("/proc/net/unix") else { return false };
    text.lines().any(|line| line.split_whitespace().nth(7).is_some_and(|name| names.contains(&name)))
}

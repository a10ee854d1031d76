//! Programs that run, from /proc: which, since when, and on which devices.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::unistd::{SysconfVar, sysconf};

use super::{Error, Result};

/// A running program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub pid: u32,
    /// At most 15 bytes of its name, as the kernel keeps them.
    pub name: String,
    pub since: SystemTime,
    /// The block devices that it has open.
    pub devices: Vec<PathBuf>,
}

/// Those of these names that have a device open. One that ends while it is looked at is left out.
pub fn on_devices(names: &[&str]) -> Result<Vec<Program>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").map_err(|error| Error::io("list", "/proc", error))? {
        let entry = entry.map_err(|error| Error::io("list", "/proc", error))?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Some(name) = name(pid).filter(|name| names.iter().any(|wanted| same(wanted, name))) else { continue };
        let devices = devices(pid);
        if let (false, Some(since)) = (devices.is_empty(), started(pid)) {
            found.push(Program { pid, name, since, devices });
        }
    }
    Ok(found)
}

/// The kernel keeps 15 bytes.
fn same(wanted: &str, name: &str) -> bool {
    wanted.get(..15).unwrap_or(wanted) == name
}

/// A process's name; `None` where there is none.
pub fn name(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}

/// When a process was started, to a hundredth of a second or so; `None` where there is none.
pub fn started(pid: u32) -> Option<SystemTime> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything. The 22nd field is the start, in ticks since the boot.
    let ticks: u64 = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
    let rate = u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok().filter(|rate| *rate > 0)?;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let uptime = Duration::try_from_secs_f64(uptime.split(' ').next()?.parse().ok()?).ok()?;
    let since_boot = Duration::from_millis(ticks.saturating_mul(1000) / rate);
    SystemTime::now().checked_sub(uptime.saturating_sub(since_boot))
}

fn devices(pid: u32) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let opened = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let mut devices: Vec<PathBuf> = opened.filter(|path| path.starts_with("/dev") && is_block(path)).collect();
    devices.sort();
    devices.dedup();
    devices
}

fn is_block(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.metadata().is_ok_and(|seen| seen.file_type().is_block_device())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_start_and_a_name() {
        let pid = std::process::id();
        let age = started(pid).and_then(|since| since.elapsed().ok()).expect("a start in the past");
        assert!(age < Duration::from_secs(24 * 3600), "{age:?}");
        assert!(name(pid).is_some());
        assert_eq!(started(u32::MAX), None);
    }

    #[test]
    fn a_long_name_is_known_by_its_beginning() {
        assert!(same("longshore-freeze-guard", "longshore-freez"));
        assert!(same("mkfs.ext4", "mkfs.ext4") && !same("mkfs.ext4", "mkfs.ext"));
    }
}

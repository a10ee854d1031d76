//! The machine: clock, kernel, permissions, devices, programs.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::os::mountinfo::MountTable;
use crate::os::process::{Run, Tool, run};
use crate::os::{loopdev, mount, udev};

use super::setup::Setup;
use crate::backend::ToolUse;
use crate::backend::{Check, Level};

/// Of mount_setattr(2).
const OLDEST_KERNEL: (u32, u32) = (5, 12);
/// A clock before this (2025-01-01) was never set.
const BUILT: Duration = Duration::from_secs(1_735_689_600);
/// How long the node of a device that was just made may take.
const APPEARS: Duration = Duration::from_secs(1);
const TOOL_PATIENCE: Duration = Duration::from_secs(15);

/// Those of every node; a test compares them, and those of the backends, with those that `os` names.
pub(super) const TOOLS: &[ToolUse] = &[
    ToolUse::required(Tool { name: "mkfs.ext4", package: "e2fsprogs" }, &["-V"], "formats ext4, the default"),
    ToolUse::required(Tool { name: "e2fsck", package: "e2fsprogs" }, &["-V"], "checks ext4 before it is mounted"),
    ToolUse::required(Tool { name: "resize2fs", package: "e2fsprogs" }, &[], "grows ext4 that is not mounted"),
    ToolUse::optional(Tool { name: "mkfs.xfs", package: "xfsprogs" }, &["-V"], "formats xfs"),
    ToolUse::optional(Tool { name: "mkfs.btrfs", package: "btrfs-progs" }, &["--version"], "formats btrfs"),
    ToolUse::optional(Tool { name: "btrfs", package: "btrfs-progs" }, &["--version"], "grows btrfs"),
    ToolUse::optional(Tool { name: "cryptsetup", package: "cryptsetup-bin" }, &["--version"], "opens encrypted volumes"),
    ToolUse::optional(
        Tool { name: "stat", package: "coreutils" },
        &["--version"],
        "asks how full volumes are, and whether servers live",
    ),
];

pub(super) fn tool(used: &ToolUse) -> Check {
    let ToolUse { tool, version, what_for, required } = used;
    if tool.find().is_err() {
        let found = format!("{} is not installed: it {what_for}", tool.name);
        let level = if *required { Level::Error } else { Level::Warning };
        return Check { level, ..Check::warning("tool", found, format!("install the package {}", tool.package)) };
    }
    let arguments = version.iter().map(|word| (*word).to_owned()).collect();
    let command = Run { tool: *tool, arguments, keep: Vec::new(), stdin: Vec::new(), deadline: TOOL_PATIENCE };
    match run(command) {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            let version = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown version").to_owned();
            Check::ok("tool", format!("{}: {version}", tool.name))
        }
        Err(error) => Check::error("tool", format!("{} cannot be run: {error}", tool.name), "see whether it runs by hand"),
    }
}

pub(super) fn clock(setup: &Setup) -> Vec<Check> {
    let now = SystemTime::now();
    if now.duration_since(UNIX_EPOCH).unwrap_or_default() < BUILT {
        let found = format!("the system clock reads {}", humantime::format_rfc3339_seconds(now));
        return vec![Check::error("clock", found, "set it: volumes and snapshots are dated by it")];
    }
    let written = fs::metadata(setup.state_dir.join("journal")).and_then(|seen| seen.modified()).ok();
    if let Some(ahead) = written.and_then(|written| written.duration_since(now).ok()).filter(|ahead| ahead.as_secs() > 60) {
        let found =
            format!("the journal was written {} from now", humantime::format_duration(Duration::from_secs(ahead.as_secs())));
        return vec![Check::warning("clock", found, "the clock was set back; see that the node's time is synchronised")];
    }
    vec![Check::ok("clock", humantime::format_rfc3339_seconds(now).to_string())]
}

pub(super) fn kernel(_: &Setup) -> Vec<Check> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let (major, minor) = OLDEST_KERNEL;
    let mut checks = vec![match version(release) {
        Some(version) if version >= OLDEST_KERNEL => Check::ok("kernel", format!("Linux {release}")),
        Some(_) => {
            let remedy = format!("{major}.{minor} or later is needed (mount_setattr)");
            Check::error("kernel", format!("Linux {release} is too old"), remedy)
        }
        None => Check::warning("kernel", format!("Linux {release:?} tells no version"), format!("{major}.{minor} is needed")),
    }];
    checks.push(match mount::is_supported() {
        Ok(()) => Check::ok("mount-api", "mount_setattr answers"),
        Err(error) => {
            Check::error("mount-api", error.to_string(), "a newer kernel, or a container whose seccomp profile lets it through")
        }
    });
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    for fstype in ["ext4", "xfs", "btrfs"] {
        checks.push(if known.lines().any(|line| line.trim_start_matches("nodev").trim() == fstype) {
            Check::ok("filesystem", format!("the kernel has {fstype}"))
        } else {
            let remedy = format!("`modprobe {fstype}` on the node, if volumes are to have it");
            Check::warning("filesystem", format!("the kernel has not loaded {fstype}"), remedy)
        });
    }
    let mapper = fs::read_to_string("/proc/misc").is_ok_and(|misc| misc.contains("device-mapper"));
    checks.push(if mapper && Path::new("/sys/module/dm_crypt").exists() {
        Check::ok("dm-crypt", "the kernel has device-mapper and dm_crypt")
    } else {
        let found =
            if mapper { "the kernel has not loaded dm_crypt" } else { "the kernel has no device-mapper, or has not loaded it" };
        Check::warning("dm-crypt", found, "`modprobe dm_crypt` on the node, if volumes are to be encrypted")
    });
    checks
}

/// Major and minor.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub(super) fn permissions(_: &Setup) -> Vec<Check> {
    // linux/capability.h
    const SYS_ADMIN: u32 = 21;
    const OTHERS: [(u32, &str, &str); 4] = [
        (24, "CAP_SYS_RESOURCE", "a mounted ext4 cannot be grown"),
        (0, "CAP_CHOWN", "volumes cannot be given to a pod's group (fsGroup)"),
        (1, "CAP_DAC_OVERRIDE", "directories of pods cannot be entered"),
        (3, "CAP_FOWNER", "volumes cannot be given to a pod's group (fsGroup)"),
    ];
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let Some(effective) = effective else {
        return vec![Check::warning("permissions", "/proc/self/status tells no capabilities", "see that /proc is mounted")];
    };
    let has = |number: u32| effective & (1 << number) != 0;
    if !has(SYS_ADMIN) {
        let found = format!("no CAP_SYS_ADMIN (user {})", rustix::process::geteuid().as_raw());
        return vec![Check::error(
            "permissions",
            found,
            "run as root; in a container with `privileged: true`: mounting needs it",
        )];
    }
    let missing = OTHERS.iter().filter(|(number, _, _)| !has(*number));
    let mut checks: Vec<Check> = missing
        .map(|(_, name, what)| Check::warning("permissions", format!("no {name}: {what}"), format!("give the process {name}")))
        .collect();
    if checks.is_empty() {
        checks.push(Check::ok("permissions", "all capabilities that are needed"));
    }
    checks
}

pub(super) fn loops(_: &Setup) -> Vec<Check> {
    const CONTROL: &str = "/dev/loop-control";
    if let Err(error) = fs::File::options().read(true).write(true).open(CONTROL) {
        let remedy = "`modprobe loop` on the node; in a container mount the node's /dev (hostPath)";
        return vec![Check::error("loop", format!("{CONTROL}: {error}"), remedy)];
    }
    match loopdev::in_use() {
        // The kernel makes one more whenever none is free, up to the largest minor number.
        Ok(used) => vec![Check::ok("loop", format!("{used} devices in use of 1048576"))],
        Err(error) => {
            vec![Check::error("loop", error.to_string(), "see `losetup --list`; in a container mount the node's /dev (hostPath)")]
        }
    }
}

/// Whether what the kernel makes appears here: a container has a /dev of its own unless it is given the node's.
pub(super) fn devices(setup: &Setup) -> Vec<Check> {
    let mut checks = vec![match without_node(Path::new("/sys/block"), Path::new("/dev")) {
        None => Check::ok("devices", "/dev shows the kernel's block devices"),
        Some(first) => {
            let found = format!("/dev does not show {first}, which the kernel has");
            Check::error("devices", found, "mount the node's /dev into the container (hostPath)")
        }
    }];
    if setup.in_pod {
        const LOCKS: &str = "/run/cryptsetup";
        let mounted = MountTable::read().is_ok_and(|table| !table.at(Path::new(LOCKS)).is_empty());
        checks.push(if mounted {
            Check::ok("cryptsetup-locks", format!("{LOCKS} is mounted"))
        } else {
            let found = format!("{LOCKS} is the container's own: cryptsetup on the node would not wait for ours");
            Check::warning("cryptsetup-locks", found, format!("mount the node's {LOCKS} (hostPath, DirectoryOrCreate)"))
        });
    }
    checks
}

/// A disk below `sysfs` whose node is not below `dev`. One without a number is hidden by the kernel and has none: each path to an NVMe disk that
/// may have several (`nvme0c0n1`), beside the disk itself (`nvme0n1`).
fn without_node(sysfs: &Path, dev: &Path) -> Option<String> {
    let mut names = fs::read_dir(sysfs).into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let number = |name: &str| sysfs.join(name).join("dev");
    // What is called a/b is a!b in sysfs.
    let node = |name: &str| dev.join(name.replace('!', "/"));
    // One that comes or goes just now is not missing.
    names.find(|name| {
        number(name).exists()
            && !node(name).exists()
            && udev::wait_for_node(&node(name), APPEARS).is_err()
            && number(name).exists()
    })
}

#[cfg(test)]
mod tests {
    use crate::backend::catalog::Catalog;

    use super::*;

    #[test]
    fn releases_are_read_as_distributions_write_them() {
        for (release, expected) in [
            ("6.18.0", Some((6, 18))),
            ("5.12-rc1", Some((5, 12))),
            ("4.18.0-553.el8.x86_64", Some((4, 18))),
            ("linux", None),
            ("", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }

    fn sources(directory: &Path) -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
        entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    /// What `os` names outside of its tests.
    #[test]
    fn every_program_that_is_run_is_checked() {
        let mut named = 0;
        let catalog = Catalog::built_in();
        let tools: Vec<&ToolUse> = TOOLS.iter().chain(catalog.rows().iter().flat_map(|row| row.tools)).collect();
        let all = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/os"));
        for path in all.into_iter().filter(|path| !path.ends_with("testing.rs") && !path.ends_with("tests.rs")) {
            let code = fs::read_to_string(&path).expect("a source");
            let production = code.split("#[cfg(test)]").next().unwrap_or_default();
            for part in production.split("Tool { name: \"").skip(1) {
                let name = part.split('"').next().unwrap_or_default();
                named += 1;
                assert!(tools.iter().any(|used| used.tool.name == name), "{} runs {name}", path.display());
            }
        }
        assert!(named >= tools.len(), "{named}: the test has stopped finding what it looks for");
    }

    #[test]
    fn hidden_paths_of_nvme_disks_need_no_node() {
        let place = tempfile::tempdir().expect("a directory");
        let [sysfs, dev] = ["sys", "dev"].map(|name| place.path().join(name));
        for disk in ["nvme0n1", "nvme0c0n1", "cciss!c0d0"] {
            fs::create_dir_all(sysfs.join(disk)).expect("a directory");
        }
        for (disk, number) in [("nvme0n1", "259:0"), ("cciss!c0d0", "104:0")] {
            fs::write(sysfs.join(disk).join("dev"), number).expect("a number");
        }
        fs::create_dir_all(dev.join("cciss")).expect("a directory");
        fs::write(dev.join("nvme0n1"), "").expect("a node");
        assert_eq!(without_node(&sysfs, &dev).as_deref(), Some("cciss!c0d0"));
        fs::write(dev.join("cciss/c0d0"), "").expect("a node");
        assert_eq!(without_node(&sysfs, &dev), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_reported_with_its_package() {
        let unknown = Tool { name: "no-such-tool", package: "no-such-package" };
        let missing = ToolUse::required(unknown, &[], "does nothing");
        let check = tool(&missing);
        assert!(check.level == Level::Error && check.remedy.is_some_and(|remedy| remedy.contains("no-such-package")));
    }
}

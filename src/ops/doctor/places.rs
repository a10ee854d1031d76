//! Directories and sockets: the kubelet's, our own, the pools.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::Access;

use crate::backend::{Check, Level, LockRecord, StoragePath};
use crate::ops::registration_socket;
use crate::os::fs::{Usage, usages};
use crate::os::holders::{Copies, Namespaces};
use crate::os::mountinfo::MountTable;
use crate::os::quota::{self, Projects};
use crate::os::socket::{self as unix, Listener};
use crate::os::{copy, durable, programs};
use crate::volume::Bytes;

use super::setup::Setup;

const PATIENCE: Duration = Duration::from_secs(5);
/// An fsync that takes longer slows down each stage and each creation, which wait for several.
const SLOW: Duration = Duration::from_millis(200);
/// Below this share of its file system (1 in so many) a pool is nearly full.
const SCARCE: u64 = 20;

/// Whether what is mounted below the kubelet's directory reaches the pods. An error only where it certainly does not: in a container of
/// a pod, into which the directory was mounted without `mountPropagation: Bidirectional`. Beside a kubelet in one mount namespace no
/// propagation is needed, and outside of a pod it is not known where the kubelet is.
pub fn reaches_pods(kubelet: &Path, in_pod: bool) -> Check {
    const NAME: &str = "propagation";
    if in_pod && !kubelet.exists() {
        let remedy = "mount the node's kubelet directory at the same path (hostPath) with mountPropagation: Bidirectional";
        return Check::error(NAME, format!("{} is not there", kubelet.display()), remedy);
    }
    let table = match MountTable::read() {
        Ok(table) => table,
        Err(error) => return Check::error(NAME, error.to_string(), "see that /proc is mounted"),
    };
    let path = kubelet.canonicalize().unwrap_or_else(|_| kubelet.to_owned());
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let at_home = namespace("1").is_some_and(|first| Some(first) == namespace("self"));
    judge_propagation(&table, &path, in_pod, at_home)
}

pub(super) const PRIVATE_MOUNTS: &str = "private-mounts";

/// Which processes have this driver's volumes mounted privately: a container that was started with the node's files and without mount
/// propagation. Each of these volumes can be unstaged only once that process has ended.
pub(super) fn private_mounts(setup: &Setup) -> Vec<Check> {
    const MOST: usize = 3;
    const REMEDY: &str = "give the container's volume with the node's files mountPropagation: HostToContainer, and restart it";
    let staged = setup.kubelet_dir.join("plugins/kubernetes.io/csi").join(&setup.driver);
    let copies = Namespaces::read().private_copies(&staged);
    if copies.is_empty() {
        return vec![Check::ok(PRIVATE_MOUNTS, "no process that is seen has volumes mounted apart from the node")];
    }
    let check = |copies: &Copies| {
        let place = copies.holder.mount_point.as_ref().map(|place| format!(", one at {}", place.display())).unwrap_or_default();
        let found = format!(
            "{} has {} volumes mounted in a mount namespace of its own{place}; they cannot be unstaged while it runs",
            copies.holder.process(),
            copies.count
        );
        Check::warning(PRIVATE_MOUNTS, found, REMEDY)
    };
    copies.iter().take(MOST).map(check).collect()
}

fn judge_propagation(table: &MountTable, kubelet: &Path, in_pod: bool, at_home: bool) -> Check {
    const NAME: &str = "propagation";
    const REMEDY: &str = "mountPropagation: Bidirectional on the container's mount of it";
    let Some(mount) = table.index().holder(kubelet) else {
        return Check::warning(NAME, format!("{} lies in no mount that is shown", kubelet.display()), "see /proc/self/mountinfo");
    };
    let (directory, place) = (kubelet.display(), mount.mount_point.display());
    if mount.propagation.iter().any(|tag| tag.starts_with("shared:")) {
        return Check::ok(NAME, format!("{directory} lies in {place}, which is shared"));
    }
    let found = format!("{directory} lies in {place}, which is not shared: what is mounted below stays in this mount namespace");
    match (in_pod, at_home) {
        (true, _) if mount.mount_point == kubelet => Check::error(NAME, format!("{found}, and no pod sees it"), REMEDY),
        (true, _) => {
            Check::warning(NAME, format!("{found}; it is no mount of the node's directory"), format!("a hostPath, and {REMEDY}"))
        }
        (false, true) => {
            Check::ok(NAME, format!("{directory} is not shared, nor need it be beside a kubelet in this mount namespace"))
        }
        (false, false) => {
            let remedy =
                format!("if the kubelet runs outside of it: `mount --make-shared` of that mount; in a container {REMEDY}");
            Check::warning(NAME, found, remedy)
        }
    }
}

pub(super) fn kubelet(setup: &Setup) -> Vec<Check> {
    const NAME: &str = "kubelet-dir";
    let path = &setup.kubelet_dir;
    let reach = reaches_pods(path, setup.in_pod);
    let directory = match answered(path) {
        Err(found) => Check::error(NAME, found, "a dead file system is mounted there: unmount it"),
        Ok(None) => {
            Check::warning(NAME, format!("{} is not there", path.display()), "name the kubelet's --root-dir with --kubelet-dir")
        }
        Ok(Some(_)) if !path.is_dir() => Check::error(NAME, format!("{} is no directory", path.display()), "name the right one"),
        Ok(Some(_)) => match rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) => Check::ok(NAME, format!("{} can be written to", path.display())),
            Err(errno) => Check::error(NAME, format!("{}: {errno}", path.display()), "mount it writable; run as root"),
        },
    };
    vec![directory, reach]
}

pub(super) fn registration(setup: &Setup) -> Vec<Check> {
    const NAME: &str = "registration";
    let path = registration_socket(&setup.kubelet_dir, &setup.driver);
    let place = path.display();
    vec![match unix::listener(&path, PATIENCE) {
        Ok(Listener::Living(_)) => Check::ok(NAME, format!("{place} answers")),
        Ok(Listener::None) => {
            let remedy =
                "before the driver runs that is so; else see node-driver-registrar, its --kubelet-registration-path and its log";
            Check::warning(NAME, format!("the driver is not registered with the kubelet: {place} is not there"), remedy)
        }
        Ok(Listener::Dead) => {
            let remedy = "start node-driver-registrar again; it replaces the socket";
            Check::warning(NAME, format!("no process listens at {place}"), remedy)
        }
        Err(error) => Check::warning(NAME, error.to_string(), "see who made it, and remove it"),
    }]
}

pub(super) fn state(setup: &Setup) -> Vec<Check> {
    const NAME: &str = "state-dir";
    let (place, reported) = match usable(NAME, &setup.state_dir) {
        Ok(found) => found,
        Err(check) => return vec![check],
    };
    let begun = Instant::now();
    let synced = unnamed(&place, 0).and_then(|mut file| {
        file.write_all(b"longshore")?;
        file.sync_all()
    });
    let took = begun.elapsed();
    vec![match synced {
        Err(error) => {
            let found = format!("{}: {error}", place.display());
            Check::error(
                NAME,
                found,
                "it must be on a writable disk that survives a reboot: mount one, or name another with --state-dir",
            )
        }
        Ok(()) if took > SLOW => {
            let found = format!("{reported}; an fsync took {}", humantime::format_duration(Duration::from_millis(millis(took))));
            Check::warning(NAME, found, "each stage waits for several: put it on a faster disk")
        }
        Ok(()) => Check::ok(NAME, format!("{reported}, can be written to, and is synced in {} ms", millis(took))),
    }]
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn pool(setup: &Setup, pool: &StoragePath) -> Vec<Check> {
    const NAME: &str = "pool";
    let called = format!("pool {}", pool.name);
    let (place, reported) = match usable(NAME, &pool.path) {
        Ok(found) => found,
        Err(check) => return vec![check],
    };
    if place == pool.path && pool.marker.is_some_and(|marker| holds_more(&place, marker, pool.own_entries)) {
        let found = format!("{called}: {reported}, is no pool, and not empty");
        return vec![Check::error(NAME, found, "name an empty directory, or mount the pool's file system")];
    }
    let mut checks = Vec::new();
    match unnamed(&place, 0) {
        Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => {
            return vec![Check::error(NAME, format!("{called}: {}: {error}", place.display()), "mount it writable; run as root")];
        }
        _ => checks.push(Check::ok(NAME, format!("{called}: {reported}, can be written to"))),
    }
    checks.push(match copy::reflink_works(&place) {
        Ok(true) => Check::ok("reflink", format!("{called} shares blocks between files")),
        Ok(false) => {
            let remedy = "put it on xfs (reflink=1) or btrfs, if there are to be snapshots";
            Check::warning("reflink", format!("{called} cannot share blocks: snapshots and clones are copies"), remedy)
        }
        Err(error) => Check::warning("reflink", format!("{called}: {error}"), "see the kernel's log"),
    });
    checks.push(match unnamed(&place, libc::O_DIRECT) {
        Ok(_) => Check::ok("direct-io", format!("{called} can do direct I/O")),
        Err(_) => {
            let found = format!("{called} cannot do direct I/O: what pods write is kept in memory twice");
            Check::warning("direct-io", found, "put it on ext4, xfs or btrfs of a disk")
        }
    });
    checks.extend(journal(&called, &place));
    checks.extend(room(&called, &place));
    checks.extend(pool.lock.and_then(|lock| lock_holder(&called, &place.join(lock))));
    checks.extend(pool.project_quotas.map(|missing| project_quotas(&called, &place, missing)));
    if setup.node && same_disk(&place, &setup.kubelet_dir) {
        let found = format!("{called} is on the kubelet's file system: a full pool makes the kubelet evict pods");
        checks.push(Check::warning("pool-disk", found, "put it on a disk of its own, or limit it (`capacity`)"));
    }
    checks
}

/// Of an ext4 alone: the others are made for power failures.
fn journal(called: &str, place: &Path) -> Option<Check> {
    const NAME: &str = "journal";
    if durable::ext4_has_journal(File::open(place).ok()?)? {
        return Some(Check::ok(NAME, format!("{called} is on an ext4 with a journal")));
    }
    let found = format!("{called} is on an ext4 without a journal: after a power failure volumes can be damaged or lost");
    let remedy =
        "unmount it and run `tune2fs -O has_journal` on its device, or put it on xfs; meanwhile e2fsck it after each failure";
    Some(Check::warning(NAME, found, remedy))
}

/// Who provisions from a pool, as far as that is seen without taking its lock.
fn lock_holder(called: &str, lock: &Path) -> Option<Check> {
    const NAME: &str = "pool-lock";
    let record = match LockRecord::read(lock) {
        Ok(record) => record?,
        Err(error) => return Some(Check::warning(NAME, format!("{called}: {error}"), "make it readable")),
    };
    let since = record.since.map(|since| format!(" since {}", humantime::format_rfc3339_seconds(since))).unwrap_or_default();
    let holder = &record.holder;
    Some(Check::ok(
        NAME,
        match record.held {
            true => format!("{called}: {holder} has its lock{since}"),
            false if record.is_of_another_host() => {
                format!("{called}: its lock is recorded by {holder}{since}; whether that one still has it is not seen from here")
            }
            false => format!("{called}: no process is seen to have its lock; the last one was {holder}{since}"),
        },
    ))
}

/// Whether the file system limits projects; of level `missing` where it does not.
fn project_quotas(called: &str, place: &Path, missing: Level) -> Check {
    const NAME: &str = "pool-quota";
    let remedy = "mount its file system with prjquota (xfs: not by remount; ext4: made with -O quota,project)";
    let found = match File::open(place)
        .map_err(|error| error.to_string())
        .and_then(|open| quota::projects(open).map_err(|error| error.to_string()))
    {
        Ok(Projects::Limited) => return Check::ok(NAME, format!("{called} enforces capacities by project quotas")),
        Ok(Projects::Counted) => format!("{called} counts what volumes use and does not enforce their capacities"),
        Ok(Projects::Off) => format!("{called} has no project quotas: capacities are not enforced"),
        Err(error) => format!("{called}: {error}"),
    };
    Check { name: NAME, level: missing, found, remedy: Some(remedy.to_owned()) }
}

fn room(called: &str, place: &Path) -> Option<Check> {
    const NAME: &str = "pool-room";
    let Ok(Some(Usage { total, available, .. })) = answered(place) else { return None };
    let found = format!("{called} has {} free of {}", Bytes(available), Bytes(total));
    Some(match available {
        left if left < 1 << 20 => Check::error(NAME, found, "delete volumes or snapshots, or enlarge it"),
        left if left < total / SCARCE => Check::warning(NAME, found, "delete volumes or snapshots, or enlarge it"),
        _ => Check::ok(NAME, found),
    })
}

fn same_disk(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| path.metadata().map(|seen| seen.dev()).ok();
    device(one).is_some_and(|number| Some(number) == device(other))
}

/// Whether the directory lacks the marker of one in use, and holds what a new one may not.
fn holds_more(directory: &Path, marker: &str, own: &[&str]) -> bool {
    if directory.join(marker).exists() {
        return false;
    }
    let names = std::fs::read_dir(directory).into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_own = |name: &str| own.contains(&name) || name == "lost+found" || name == format!(".{marker}.tmp");
    names.into_iter().any(|name| !is_own(&name))
}

pub(super) fn socket(setup: &Setup) -> Vec<Check> {
    const NAME: &str = "socket";
    let path = &setup.endpoint;
    let place = path.display();
    let mut checks = vec![match unix::listener(path, PATIENCE) {
        Ok(Listener::None) => match usable(NAME, path.parent().unwrap_or(Path::new("/"))) {
            Ok(_) => Check::ok(NAME, format!("{place} is free")),
            Err(check) => check,
        },
        Ok(Listener::Dead) => Check::ok(NAME, format!("{place} was left by a process that is gone; the next start replaces it")),
        Ok(Listener::Living(Some(pid))) => match programs::name(pid) {
            Some(name) if name == "longshore" => Check::ok(NAME, format!("longshore listens at {place} (process {pid})")),
            other => {
                let name = other.unwrap_or_else(|| "a process".to_owned());
                Check::error(NAME, format!("{name} listens at {place} (process {pid})"), "stop it, or use another --endpoint")
            }
        },
        Ok(Listener::Living(None)) => {
            let remedy = "if that is not this driver, stop it, or use another --endpoint";
            Check::warning(NAME, format!("a process outside of this container listens at {place}"), remedy)
        }
        Err(error) => Check::error(NAME, error.to_string(), "move it away, or use another --endpoint"),
    }];
    if setup.in_pod {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let holder =
            MountTable::read().ok().and_then(|table| table.index().holder(directory).map(|mount| mount.mount_point.clone()));
        if holder.as_deref() == Some(Path::new("/")) {
            let found = format!("{} is the container's own: sidecars and the kubelet do not see the socket", directory.display());
            checks.push(Check::warning(
                "sidecars",
                found,
                "mount a volume there (hostPath plugins/<driver>, or emptyDir) in all containers",
            ));
        } else {
            checks.push(Check::ok("sidecars", format!("{} is a volume, which sidecars can see", directory.display())));
        }
    }
    checks
}

/// The directory itself, or, where it is still to be made, the nearest above it; and how to say so.
fn usable(name: &'static str, directory: &Path) -> Result<(PathBuf, String), Check> {
    for place in directory.ancestors() {
        match answered(place) {
            Err(found) => return Err(Check::error(name, found, "a dead file system is mounted there: unmount it")),
            Ok(None) => continue,
            Ok(Some(_)) => {}
        }
        let shown = directory.display();
        if !place.is_dir() {
            return Err(Check::error(name, format!("{} is no directory", place.display()), "name another directory"));
        }
        if let Err(errno) = rustix::fs::access(place, Access::WRITE_OK | Access::EXEC_OK) {
            let found = format!("{} cannot be written to: {errno}", place.display());
            return Err(Check::error(name, found, "mount it writable; run as root"));
        }
        let reported =
            if place == directory { shown.to_string() } else { format!("{shown} is to be made in {}", place.display()) };
        return Ok((place.to_owned(), reported));
    }
    Err(Check::error(name, format!("{} lies nowhere", directory.display()), "name an absolute path"))
}

/// How full the file system at a path is; `None` where there is nothing. Asked by a program that can be left behind, before we look
/// ourselves.
fn answered(path: &Path) -> Result<Option<Usage>, String> {
    match usages(&[path.to_owned()], PATIENCE) {
        Ok(found) => Ok(found.into_values().next()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// A file without a name, gone when it is closed.
fn unnamed(directory: &Path, flags: i32) -> std::io::Result<File> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_TMPFILE | flags).open(directory)?;
    // Some file systems say only now that they are read-only or full.
    file.write_all_at(&[], 0).map(|()| file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Level;

    #[test]
    fn private_propagation_is_an_error_only_where_no_pod_can_see_through_it() {
        let table = |tag: &str| {
            let text =
                format!("1 1 0:1 / / rw {tag} - rootfs rootfs rw\n2 1 0:2 / /k rw {tag} - ext4 /dev/x rw\n").replace("  ", " ");
            MountTable::parse(text.as_bytes()).expect("a mountinfo")
        };
        let level = |tag: &str, directory: &str, in_pod, at_home| {
            judge_propagation(&table(tag), Path::new(directory), in_pod, at_home).level
        };
        for (in_pod, at_home) in [(true, true), (true, false), (false, true), (false, false)] {
            assert_eq!(level("shared:7", "/k", in_pod, at_home), Level::Ok);
        }
        assert_eq!(level("", "/k", true, true), Level::Error);
        assert_eq!(level("master:3", "/k", true, true), Level::Error, "HostToContainer");
        assert_eq!(level("", "/k/deeper", true, true), Level::Warning, "a test's own directory in a pod");
        assert_eq!(level("", "/k", false, true), Level::Ok, "beside the kubelet");
        assert_eq!(level("", "/k", false, false), Level::Warning);
    }
}

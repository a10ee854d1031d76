//! Who still uses a block device: processes of other mount namespaces among them.
//!
//! A file system is in the kernel for as long as any mount namespace has it mounted, whatever our own mountinfo shows: a container with a
//! private copy of the host's mounts (`hostPath: /` without propagation) keeps it there. An exclusive open of the device tells
//! ([`super::block::Device::is_claimed`]); this module finds out who it is, for messages. Only what is in this PID namespace can be seen, so the
//! driver's container has the node's (`hostPID`).

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::cgroup::pod_named;
use super::mountinfo::{Mount, MountTable};

/// Processes that share a mount namespace in which a device is mounted, or one that has the device itself open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Of the process that has been there longest.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`).
    pub command: String,
    /// UID of its pod, where its control group tells.
    pub pod: Option<String>,
    /// How many more processes are in its mount namespace.
    pub more: usize,
    /// Where it is mounted in that namespace; `None`: the device is open.
    pub mount_point: Option<PathBuf>,
}

impl Holder {
    /// The process in words, with its pod.
    pub fn process(&self) -> String {
        let pod = self.pod.as_ref().map(|pod| format!(" of pod {pod}")).unwrap_or_default();
        format!("process {} ({}){pod}", self.pid, self.command)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.process())?;
        match &self.mount_point {
            Some(place) => write!(f, " has it mounted at {} in a mount namespace of its own", place.display())?,
            None => f.write_str(" has the device open")?,
        }
        if self.more > 0 {
            write!(f, ", with {} more processes", self.more)?;
        }
        Ok(())
    }
}

/// Who has the file system on this device mounted in another mount namespace than this thread's, and who has the device open. What
/// cannot be read, or ends meanwhile, is left out: this is for messages, and decides nothing. Costs as much as the machine has processes.
pub fn of(number: (u32, u32), path: &Path) -> Vec<Holder> {
    let mut holders = Namespaces::read().mounted(number, path);
    let mut opened: Vec<u32> = processes().into_iter().filter(|pid| *pid != std::process::id() && opens(*pid, number)).collect();
    opened.sort_unstable();
    holders.extend(opened.into_iter().map(|pid| holder(pid, 0, None)));
    holders
}

/// The mount namespaces of the machine's processes, other than this thread's, read once to ask about many devices.
pub struct Namespaces(Vec<Namespace>);

struct Namespace {
    /// Of the process that has been there longest.
    pid: u32,
    more: usize,
    table: MountTable,
}

impl Namespaces {
    /// What cannot be read, or ends meanwhile, is left out.
    pub fn read() -> Namespaces {
        let own = namespace("thread-self");
        let mut namespaces: HashMap<u64, Vec<u32>> = HashMap::new();
        for pid in processes() {
            if let Some(namespace) = namespace(&pid.to_string()).filter(|namespace| Some(*namespace) != own) {
                namespaces.entry(namespace).or_default().push(pid);
            }
        }
        let read = |pids: Vec<u32>| {
            let pid = pids.iter().copied().min()?;
            let table = MountTable::parse(&fs::read(format!("/proc/{pid}/mountinfo")).ok()?).ok()?;
            Some(Namespace { pid, more: pids.len() - 1, table })
        };
        let mut namespaces: Vec<Namespace> = namespaces.into_values().filter_map(read).collect();
        namespaces.sort_by_key(|namespace| namespace.pid);
        Namespaces(namespaces)
    }

    /// Who has the file system on this device mounted.
    pub fn mounted(&self, number: (u32, u32), path: &Path) -> Vec<Holder> {
        let shows = |mount: &&Mount| mount.device == number || mount.is_btrfs_of(path, number);
        let found = self.0.iter().filter_map(|namespace| {
            let mount = namespace.table.iter().find(shows)?;
            Some(holder(namespace.pid, namespace.more, Some(mount.mount_point.clone())))
        });
        found.collect()
    }
}

/// Processes of another mount namespace with mounts of their own that nothing done in this one reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies {
    /// `mount_point` is one of them.
    pub holder: Holder,
    pub count: usize,
}

impl Namespaces {
    /// Who has private copies of mounts below `directory`, at paths that end as theirs do (`/host/var/lib/kubelet/...`): as long as these
    /// processes live, what is unmounted here stays in the kernel. A copy that follows this namespace (`shared:`, `master:`) is none.
    pub fn private_copies(&self, directory: &Path) -> Vec<Copies> {
        let found = self.0.iter().filter_map(|namespace| {
            let mut copies =
                namespace.table.iter().filter(|mount| is_private(mount) && lies_below(&mount.mount_point, directory));
            let first = copies.next()?.mount_point.clone();
            Some(Copies { holder: holder(namespace.pid, namespace.more, Some(first)), count: 1 + copies.count() })
        });
        found.collect()
    }
}

fn is_private(mount: &Mount) -> bool {
    !mount.propagation.iter().any(|tag| tag.starts_with("shared:") || tag.starts_with("master:"))
}

/// Whether `path` is below `directory`, or below a copy of it at another place.
fn lies_below(path: &Path, directory: &Path) -> bool {
    let Ok(relative) = directory.strip_prefix("/") else { return false };
    path.ancestors().skip(1).any(|ancestor| ancestor.ends_with(relative))
}

/// Who has the node of a device bind-mounted (`/dev/NAME`, as raw block volumes are given to pods), in any mount namespace. Processes that
/// cannot be looked at, or end meanwhile, are left out.
pub fn binds(name: &str) -> Vec<Holder> {
    let root = Path::new("/").join(name);
    let shows = |mount: &&Mount| mount.fstype == "devtmpfs" && mount.root == root;
    let own = fs::read("/proc/self/mountinfo").ok().and_then(|text| MountTable::parse(&text).ok());
    let own = own.map(|table| Namespace { pid: std::process::id(), more: 0, table });
    let others = Namespaces::read();
    let found = own.iter().chain(&others.0).filter_map(|namespace| {
        let mount = namespace.table.iter().find(shows)?;
        Some(holder(namespace.pid, namespace.more, Some(mount.mount_point.clone())))
    });
    found.collect()
}

/// What [`of`] finds in words, for an error: what holds a device that is claimed ([`super::block::Device::is_claimed`]).
pub fn in_words(number: (u32, u32), path: &Path) -> String {
    let holders = of(number, path);
    if holders.is_empty() {
        return format!(
            "{} is still in use, by a mount namespace or device that this driver cannot see; it needs the node's process namespace \
             (hostPID: true) to name it, else `grep {}:{} /proc/*/mountinfo` on the node does",
            path.display(),
            number.0,
            number.1
        );
    }
    listed(&holders)
}

/// The first of them in words.
pub fn listed(holders: &[Holder]) -> String {
    const MOST: usize = 4;
    let mut words: Vec<String> = holders.iter().take(MOST).map(ToString::to_string).collect();
    if holders.len() > MOST {
        words.push(format!("and {} more", holders.len() - MOST));
    }
    words.join("; ")
}

/// A process in words, with its pod.
pub(super) fn process(pid: u32) -> String {
    holder(pid, 0, None).process()
}

fn holder(pid: u32, more: usize, mount_point: Option<PathBuf>) -> Holder {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    Holder { pid, command: read("comm").trim().to_owned(), pod: pod_of(&read("cgroup")), more, mount_point }
}

/// All that can be seen.
pub(super) fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The inode of its mount namespace.
fn namespace(pid: &str) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()?;
    link.to_str()?.strip_prefix("mnt:[")?.strip_suffix(']')?.parse().ok()
}

fn opens(pid: u32, number: (u32, u32)) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        // To look at anything else might wait for a dead server.
        fs::read_link(&path).is_ok_and(|link| link.starts_with("/dev"))
            && fs::metadata(&path).is_ok_and(|stat| {
                let block = rustix::fs::FileType::from_raw_mode(stat.mode()) == rustix::fs::FileType::BlockDevice;
                block && (rustix::fs::major(stat.rdev()), rustix::fs::minor(stat.rdev())) == number
            })
    })
}

/// The pod in whose control group a process is, by `/proc/PID/cgroup`.
fn pod_of(cgroup: &str) -> Option<String> {
    cgroup.split(['/', '\n']).filter_map(pod_named).next_back()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::os::block::Device;
    use crate::os::fs::testing::{Loop, Mounted, in_namespace, tool};
    use crate::os::udev;

    #[test]
    fn pod_is_recognised_under_either_cgroup_driver() {
        let uid = "0b9c3b8e-6d2f-4a55-9a53-2f9d1c6f7e11";
        let underscored = uid.replace('-', "_");
        for cgroup in [
            format!("0::/kubepods/burstable/pod{uid}/abcdef\n"),
            format!(
                "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{underscored}.slice/cri-containerd-abc.scope\n"
            ),
            format!("12:cpu:/kubepods.slice/kubepods-pod{underscored}.slice\n0::/\n"),
        ] {
            assert_eq!(pod_of(&cgroup).as_deref(), Some(uid), "{cgroup}");
        }
        for cgroup in ["0::/system.slice/podman.service\n", "0::/\n", ""] {
            assert_eq!(pod_of(cgroup), None, "{cgroup}");
        }
    }

    #[test]
    fn copies_that_follow_the_nodes_mounts_are_not_private() {
        let line = |place: &str, tags: &str| format!("10 1 7:3 / {place} rw {tags}- xfs /dev/loop3 rw\n");
        let csi = "/var/lib/kubelet/plugins/kubernetes.io/csi/longshore.csi.dev";
        for (place, tags, private) in [
            (format!("/host{csi}/a/globalmount"), "", true),
            (format!("{csi}/a/globalmount"), "unbindable ", true),
            (format!("/host{csi}/a/globalmount"), "master:7 ", false),
            (format!("{csi}/a/globalmount"), "shared:7 ", false),
            ("/data".to_owned(), "", false),
            (format!("/host{csi}"), "", false),
        ] {
            let table = MountTable::parse(line(&place, tags).as_bytes()).unwrap();
            let copies = Namespaces(vec![Namespace { pid: 1, more: 0, table }]).private_copies(Path::new(csi));
            assert_eq!(copies.len(), usize::from(private), "{place} {tags}");
        }
    }

    /// A thread's mount namespace is not its process's: what it shows is reported of a program in it.
    #[test]
    fn device_mounted_in_a_private_namespace_is_claimed_and_its_holder_named() {
        in_namespace(|| {
            for fstype in ["ext4", "btrfs"] {
                let Some(under) = Loop::new(300 << 20) else { return };
                if tool(if fstype == "ext4" { "mkfs.ext4" } else { "mkfs.btrfs" }, &["-q", under.name()]).is_none() {
                    return;
                }
                let device = Device::open(&under.device, false).unwrap();
                assert!(!device.is_claimed().unwrap());
                let directory = tempfile::tempdir().unwrap();
                let mounted = Mounted::new(&under.device, directory.path(), fstype);
                assert!(device.is_claimed().unwrap());
                let (copied, seen) = (Barrier::new(2), Barrier::new(2));
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
                        #[allow(clippy::disallowed_methods, reason = "a process of its own, which is ended below")]
                        let mut process = std::process::Command::new("sleep").arg("60").spawn().unwrap();
                        copied.wait();
                        seen.wait();
                        process.kill().unwrap();
                        process.wait().unwrap();
                    });
                    copied.wait();
                    drop(mounted);
                    let claimed = device.is_claimed().unwrap();
                    let holders = of(device.number(), &under.device);
                    let copies = Namespaces::read().private_copies(directory.path().parent().unwrap());
                    seen.wait();
                    assert!(claimed, "{fstype}: our own mountinfo shows nothing any more");
                    let holder = holders.iter().find(|holder| holder.command == "sleep").expect("the holder");
                    assert_eq!(holder.mount_point.as_deref(), Some(directory.path()));
                    let copy = copies.iter().find(|copies| copies.holder.pid == holder.pid).expect("a private copy");
                    assert_eq!((copy.count, copy.holder.mount_point.as_deref()), (1, Some(directory.path())));
                });
                // The kernel ends a namespace some time after its last process.
                let until = Instant::now().checked_add(Duration::from_secs(10));
                assert!(udev::wait_until(until, || Ok(!device.is_claimed()?)).unwrap(), "{fstype}");
            }
        });
    }
}

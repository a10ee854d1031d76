//! Paths that lead elsewhere: whatever a call's path, a link on the way, or a link swapped in while it works, nothing outside
//! is read, written, mounted or deleted.

mod common;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Harness, LoopDevice, MIB, Pool, capability, create, isolated, publish_request, run, stage_request, text};
use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use longshore::csi::node_client::NodeClient;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Where the kubelet has a pod's volume and a staged one, below its directory.
const TARGET: &str = "pods/7f3a/volumes/kubernetes.io~csi/pv/mount";
const DEVICE: &str = "pods/7f3a/volumeDevices/kubernetes.io~csi/pv";
const STAGING: &str = "plugins/kubernetes.io/csi/csi.longshore.dev/5e8f/globalmount";
/// Another driver's, which is as far outside as anything.
const OTHERS: &str = "plugins/kubernetes.io/csi/other.example.org/90ab";
/// How long each race lasts and how many rounds it has at most; a slow machine runs the fewest.
const RACE: Duration = Duration::from_secs(3);
const ROUNDS: usize = 300;
const FEWEST: usize = 10;

/// All that is to be seen of a file without leaving a trace; for a directory the times tell what came and went.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    inode: (u64, u64),
    mode: u32,
    owner: (u32, u32),
    times: [(i64, i64); 3],
    content: Vec<u8>,
}

/// What must not change: trees, and every mount that is not below the kubelet's or the state directory or is the other driver's.
struct Victim {
    trees: Vec<PathBuf>,
    ours: [PathBuf; 2],
    seen: BTreeMap<PathBuf, Seen>,
    mounts: Vec<String>,
    /// Loop devices over its files.
    loops: Vec<String>,
}

impl Victim {
    fn look(harness: &Harness) -> Victim {
        let others = harness.path("kubelet").join(OTHERS);
        let trees = vec![harness.path("victim"), others];
        let mut victim = Victim {
            trees,
            ours: [harness.path("kubelet"), harness.path("state")],
            seen: BTreeMap::new(),
            mounts: Vec::new(),
            loops: Vec::new(),
        };
        victim.seen = victim.walk();
        victim.mounts = victim.table();
        victim.loops = victim.devices();
        assert!(victim.seen.len() > 20 && victim.mounts.len() > 5, "the victim has something to lose");
        victim
    }

    fn walk(&self) -> BTreeMap<PathBuf, Seen> {
        let mut seen = BTreeMap::new();
        let mut left = self.trees.clone();
        while let Some(path) = left.pop() {
            let stat = fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let mut content = Vec::new();
            let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if stat.is_dir() {
                let directory = rustix::fs::open(&path, flags | OFlags::DIRECTORY, Mode::empty()).expect("a directory");
                for entry in rustix::fs::Dir::new(directory).expect("a directory") {
                    let name = entry.expect("an entry").file_name().to_bytes().to_vec();
                    if name != b"." && name != b".." {
                        left.push(path.join(OsString::from_vec(name)));
                    }
                }
            } else if stat.is_file() && stat.len() < 1 << 20 {
                use std::io::Read;
                let file = rustix::fs::open(&path, flags, Mode::empty()).expect("a file");
                fs::File::from(file).read_to_end(&mut content).expect("read");
            }
            let one = Seen {
                inode: (stat.dev(), stat.ino()),
                mode: stat.mode(),
                owner: (stat.uid(), stat.gid()),
                times: [(stat.atime(), stat.atime_nsec()), (stat.mtime(), stat.mtime_nsec()), (stat.ctime(), stat.ctime_nsec())],
                content,
            };
            seen.insert(path, one);
        }
        seen
    }

    fn table(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
        let place = |line: &&str| {
            let point = Path::new(line.split(' ').nth(4).expect("a mount point"));
            self.trees.iter().any(|tree| point.starts_with(tree)) || !self.ours.iter().any(|ours| point.starts_with(ours))
        };
        table.lines().filter(place).map(str::to_owned).collect()
    }

    fn devices(&self) -> Vec<String> {
        let ours = |file: &str| self.trees.iter().any(|tree| Path::new(file.trim_end()).starts_with(tree));
        let entries = fs::read_dir("/sys/block").expect("sysfs").map(|entry| entry.expect("an entry").path());
        let files =
            entries.filter_map(|entry| Some(text(&entry) + " " + &fs::read_to_string(entry.join("loop/backing_file")).ok()?));
        let mut devices: Vec<String> = files.filter(|line| line.split_once(' ').is_some_and(|(_, file)| ours(file))).collect();
        devices.sort();
        devices
    }

    /// Fails where anything outside is not as it was.
    fn assert_unharmed(&self, attack: &str) {
        let now = self.walk();
        for (path, before) in &self.seen {
            assert_eq!(now.get(path), Some(before), "{attack}: {} (left: now, right: before)", path.display());
        }
        let new: Vec<_> = now.keys().filter(|path| !self.seen.contains_key(*path)).collect();
        assert!(new.is_empty(), "{attack}: made outside: {new:?}");
        assert_eq!(self.table(), self.mounts, "{attack}: other mounts (left: now, right: before)");
        assert_eq!(self.devices(), self.loops, "{attack}: other loop devices (left: now, right: before)");
    }
}

/// A driver, and around it what is not its own: a mirror of the kubelet's directory with mounts where links would lead, and
/// another driver's volume.
struct Ground {
    harness: Harness,
    victim: Victim,
    /// One connection for all calls.
    node: NodeClient<Channel>,
    controller: ControllerClient<Channel>,
    attacks: Cell<usize>,
}

impl Ground {
    fn new() -> Ground {
        let mut harness = Harness::new(Pool::Local);
        let mirror = harness.path("victim");
        let kubelet = harness.path("kubelet");
        for place in [mirror.join(TARGET), mirror.join(STAGING), kubelet.join(OTHERS).join("globalmount")] {
            tmpfs(&place);
            fs::write(place.parent().expect("a parent").join("vol_data.json"), "{\"driverName\":\"other.example.org\"}")
                .expect("data");
        }
        // Where a raw block volume's target would be: an empty file, and one with data.
        let device = mirror.join(DEVICE);
        fs::create_dir_all(device.parent().expect("a parent")).expect("directories");
        fs::write(&device, "").expect("a file");
        fs::create_dir_all(mirror.join("empty/mount")).expect("a directory");
        for path in [TARGET, DEVICE, STAGING] {
            fs::create_dir_all(kubelet.join(path).parent().expect("a parent")).expect("directories");
        }
        fs::create_dir(kubelet.join(STAGING)).expect("a directory");
        harness.start();
        let victim = Victim::look(&harness);
        let (node, controller) = (harness.node(), harness.controller());
        Ground { harness, victim, node, controller, attacks: Cell::new(0) }
    }

    fn kubelet(&self, path: &str) -> PathBuf {
        self.harness.path("kubelet").join(path)
    }

    /// Says how much was tried, by what.
    fn figure(&self, what: &str, rounds: usize) {
        println!("FIGURE: path attacks by {what}: {} attacks, {rounds} race rounds, 0 escapes", self.attacks.get());
    }

    /// One call, after which everything outside is as it was.
    fn attack<T>(&self, what: &str, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        self.attacks.set(self.attacks.get() + 1);
        let answer = self.harness.block_on(call);
        let said = match &answer {
            Ok(_) => "OK".to_owned(),
            Err(status) => format!("{status:?}"),
        };
        self.victim.assert_unharmed(&format!("{what}, answered {said}"));
        if let Err(status) = &answer {
            assert!(!status.message().is_empty(), "{what}: it says nothing");
        }
        answer
    }

    /// A volume of 64 MiB.
    fn volume(&self, name: &str, fstype: Option<&str>) -> String {
        let request = create(name, if fstype == Some("xfs") { 320 } else { 64 }, fstype, "image");
        let created = self.harness.block_on(self.controller.clone().create_volume(request)).expect("created");
        created.into_inner().volume.expect("a volume").volume_id
    }

    fn stage(&self, id: &str, fstype: Option<&str>, staging: &Path) -> Result<(), Status> {
        let request = stage_request(id, staging, capability(fstype));
        let mut node = self.node.clone();
        self.attack(&format!("stage at {staging:?}"), async move { node.node_stage_volume(request).await }).map(drop)
    }

    fn unstage(&self, id: &str, staging: &Path) -> Result<(), Status> {
        let request = csi::NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: text(staging) };
        let mut node = self.node.clone();
        self.attack(&format!("unstage at {staging:?}"), async move { node.node_unstage_volume(request).await }).map(drop)
    }

    fn publish(&self, id: &str, fstype: Option<&str>, staging: &Path, target: &Path) -> Result<(), Status> {
        let request = publish_request(id, staging, target, capability(fstype));
        let mut node = self.node.clone();
        self.attack(&format!("publish at {target:?}"), async move { node.node_publish_volume(request).await }).map(drop)
    }

    fn publish_inline(&self, id: &str, target: &Path, attributes: &[(&str, &str)]) -> Result<(), Status> {
        let own = [("csi.storage.k8s.io/ephemeral", "true"), ("size", "16MiB"), ("backend", "image")];
        let request = csi::NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: text(target),
            volume_capability: Some(capability(Some("ext4"))),
            volume_context: own.iter().chain(attributes).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            ..Default::default()
        };
        let mut node = self.node.clone();
        self.attack(&format!("publish inline at {target:?} with {attributes:?}"), async move {
            node.node_publish_volume(request).await
        })
        .map(drop)
    }

    fn unpublish(&self, id: &str, target: &Path) -> Result<(), Status> {
        let request = csi::NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: text(target) };
        let mut node = self.node.clone();
        self.attack(&format!("unpublish at {target:?}"), async move { node.node_unpublish_volume(request).await }).map(drop)
    }

    fn look_at(&self, id: &str, path: &Path) -> [Result<(), Status>; 3] {
        let stats = csi::NodeGetVolumeStatsRequest { volume_id: id.to_owned(), volume_path: text(path), ..Default::default() };
        let expand = csi::NodeExpandVolumeRequest { volume_id: id.to_owned(), volume_path: text(path), ..Default::default() };
        let health =
            csi::NodeGetVolumeHealthRequest { volume_id: id.to_owned(), volume_publish_path: text(path), ..Default::default() };
        let (mut first, mut second, mut third) = (self.node.clone(), self.node.clone(), self.node.clone());
        [
            self.attack(&format!("stats of {path:?}"), async move { first.node_get_volume_stats(stats).await }).map(drop),
            self.attack(&format!("expand {path:?}"), async move { second.node_expand_volume(expand).await }).map(drop),
            self.attack(&format!("health of {path:?}"), async move { third.node_get_volume_health(health).await }).map(drop),
        ]
    }

    /// Every call that takes a path, with this one; `staged` is a volume that is staged, `block` a raw one, `fresh` one that is
    /// not staged. None may work, but for removals, which may find nothing to remove.
    fn every_call(&self, path: &Path, volumes: &Volumes) {
        let good = self.kubelet(STAGING);
        self.stage(&volumes.fresh, Some("ext4"), path).expect_err("staged elsewhere");
        self.publish(&volumes.staged, Some("ext4"), &good, path).expect_err("published elsewhere");
        self.publish(&volumes.staged, Some("ext4"), path, &self.kubelet("pods/good")).expect_err("it is not staged there");
        self.publish(&volumes.block, None, &volumes.block_staging, path).expect_err("published elsewhere");
        self.publish_inline("csi-inline", path, &[]).expect_err("published elsewhere");
        for id in [volumes.staged.as_str(), &volumes.block, &volumes.fresh, "csi-inline"] {
            let _ = self.unpublish(id, path);
            if id != "csi-inline" {
                let _ = self.unstage(id, path);
            }
        }
        let [stats, expand, _] = self.look_at(&volumes.staged, path);
        stats.expect_err("statistics of something else");
        expand.expect_err("it is not there");
    }

    /// Volumes in each state, and a place to try.
    fn volumes(&self) -> Volumes {
        let volumes = Volumes {
            staged: self.volume("staged", Some("ext4")),
            block: self.volume("block", None),
            fresh: self.volume("fresh", Some("ext4")),
            block_staging: self.harness.staging("block"),
        };
        self.stage(&volumes.staged, Some("ext4"), &self.kubelet(STAGING)).expect("staged");
        self.stage(&volumes.block, None, &volumes.block_staging).expect("staged");
        volumes
    }

    /// Unstages all, after which nothing is left.
    fn finish(&self, volumes: &Volumes) {
        self.unstage(&volumes.staged, &self.kubelet(STAGING)).expect("unstaged");
        self.unstage(&volumes.block, &volumes.block_staging).expect("unstaged");
        self.assert_nothing_left();
    }

    /// Nothing is left of ours; the other driver's mount is not ours.
    fn assert_nothing_left(&self) {
        let others = text(&self.kubelet(OTHERS));
        let mounts: Vec<String> = self.harness.mounts().into_iter().filter(|point| !point.starts_with(&others)).collect();
        assert_eq!(mounts, Vec::<String>::new(), "mounts are left\n{}", self.harness.log());
        assert_eq!(self.harness.loops(), Vec::<String>::new(), "loop devices are left\n{}", self.harness.log());
        assert_eq!(self.harness.journal(), Vec::<String>::new(), "journal entries are left\n{}", self.harness.log());
    }
}

struct Volumes {
    staged: String,
    block: String,
    fresh: String,
    block_staging: PathBuf,
}

/// A mount with data, which notes every access.
fn tmpfs(path: &Path) {
    fs::create_dir_all(path).expect("directories");
    mount(Some("victim"), path, Some("tmpfs"), MsFlags::MS_STRICTATIME, Some("size=1m")).expect("mounted");
    fs::create_dir_all(path.join("sub/mount")).expect("directories");
    fs::write(path.join("data"), "precious").expect("data");
}

/// Prefixes of a path, the shortest first, with the path itself.
fn prefixes(path: &str) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        Path::new(path).ancestors().map(Path::to_owned).filter(|path| path != Path::new("")).collect();
    prefixes.reverse();
    prefixes
}

/// Put aside while a link is in its place.
struct Swapped {
    path: PathBuf,
    aside: Option<PathBuf>,
}

impl Swapped {
    fn new(path: &Path, link_to: &Path) -> Swapped {
        let aside = path.with_file_name("put-aside");
        let aside = fs::rename(path, &aside).is_ok().then_some(aside);
        symlink(link_to, path).expect("a link");
        Swapped { path: path.to_owned(), aside }
    }
}

impl Drop for Swapped {
    fn drop(&mut self) {
        fs::remove_file(&self.path).expect("the link is still there");
        if let Some(aside) = &self.aside {
            fs::rename(aside, &self.path).expect("put back");
        }
    }
}

/// `from` as seen from the directory `to_be_in`, both absolute.
fn relative(from: &Path, to_be_in: &Path) -> PathBuf {
    let up = to_be_in.components().count() - 1;
    Path::new(&"../".repeat(up)).join(from.strip_prefix("/").expect("absolute"))
}

#[test]
fn paths_that_name_what_is_outside() {
    isolated(|| {
        let ground = Ground::new();
        let volumes = ground.volumes();
        let kubelet = ground.harness.path("kubelet");
        let victim = ground.harness.path("victim");
        let root = |path: &Path| PathBuf::from("/proc/self/root").join(path.strip_prefix("/").expect("absolute"));
        let others = kubelet.join(OTHERS);
        let paths = [
            victim.join(TARGET),
            victim.join(STAGING),
            victim.join(DEVICE),
            victim.join("empty/mount"),
            victim.join("empty/new"),
            PathBuf::from(format!("{}/../victim/{TARGET}", text(&kubelet))),
            PathBuf::from(format!("{}/pods/../../victim/empty/new", text(&kubelet))),
            PathBuf::from(format!("{}/pods/./new", text(&kubelet))),
            PathBuf::from(format!("{}//pods/new", text(&kubelet))),
            PathBuf::from(format!("{}/pods/new/", text(&kubelet))),
            PathBuf::from(format!("{}/..", text(&kubelet))),
            PathBuf::from(format!("{}/.", text(&kubelet))),
            root(&victim.join(TARGET)),
            root(&kubelet.join("pods/new")),
            PathBuf::from(format!("/proc/{}/root{}", ground.harness.pid(), text(&victim.join("empty/new")))),
            PathBuf::from("/proc/self/cwd/new"),
            PathBuf::from("/proc/self/fd/3/new"),
            kubelet.clone(),
            kubelet.join("plugins"),
            PathBuf::from(format!("{}x/mount", text(&kubelet))),
            PathBuf::from("/"),
            PathBuf::from("."),
            PathBuf::from(""),
            PathBuf::from("pods/new"),
            PathBuf::from(format!("{}/pods/nu\0l", text(&kubelet))),
            kubelet.join("pods").join("n".repeat(256)),
            kubelet.join("pods").join("n/".repeat(2100)).join("mount"),
            kubelet.join("pods").join("n".repeat(5000)),
            // Another driver's staging path, what is in it, and what is around it.
            others.join("globalmount"),
            others.join("globalmount/sub/mount"),
            others.join("globalmount/new"),
            others.join("globalmount/data"),
            others.join("vol_data.json"),
            others.clone(),
            others.parent().expect("a parent").to_owned(),
        ];
        for path in paths {
            ground.every_call(&path, &volumes);
        }
        ground.finish(&volumes);
        ground.figure("names of what is outside", 0);
    });
}

#[test]
fn odd_names_are_names() {
    isolated(|| {
        let ground = Ground::new();
        let volumes = ground.volumes();
        let pods = ground.kubelet("pods");
        let names = [
            "new\nline",
            "back\\slash",
            "octal\\040",
            "a b",
            "tab\t",
            "#",
            "\\134\\n",
            "...",
            "-rf",
            "\u{1F980}",
            &"n".repeat(255),
        ];
        for name in names {
            let directory = pods.join(name);
            fs::create_dir(&directory).expect("a directory");
            let target = directory.join(name);
            ground.publish(&volumes.staged, Some("ext4"), &ground.kubelet(STAGING), &target).expect("published");
            assert_ne!(
                target.metadata().expect("a directory").dev(),
                directory.metadata().expect("a directory").dev(),
                "{name:?}"
            );
            ground.look_at(&volumes.staged, &target)[0].clone().expect("statistics");
            ground.unpublish(&volumes.staged, &target).expect("unpublished");
            ground.publish(&volumes.block, None, &volumes.block_staging, &target).expect("published");
            ground.unpublish(&volumes.block, &target).expect("unpublished");
            assert!(!target.exists());
            ground.stage(&volumes.fresh, Some("ext4"), &target).expect("staged");
            ground.unstage(&volumes.fresh, &target).expect("unstaged");
            // Its staging directory is the CO's.
            let _ = fs::remove_dir(&target);
            fs::remove_dir(&directory).expect("nothing is left in it");
        }
        ground.finish(&volumes);
        ground.figure("odd names", 0);
    });
}

#[test]
fn links_at_each_component() {
    isolated(|| {
        let ground = Ground::new();
        let volumes = ground.volumes();
        let victim = ground.harness.path("victim");
        let open = rustix::fs::open(&victim, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("the victim");
        let magic = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), open.as_raw_fd()));
        for place in [TARGET, DEVICE] {
            for prefix in prefixes(place) {
                let path = ground.kubelet(&text(&prefix));
                let parent = path.parent().expect("a parent");
                let seen = victim.join(&prefix);
                let links = [
                    seen.clone(),
                    relative(&seen, parent),
                    PathBuf::from("/proc/self/root").join(seen.strip_prefix("/").expect("absolute")),
                    magic.join(&prefix),
                    PathBuf::from("/proc/self/cwd").join(seen.strip_prefix("/").expect("absolute")),
                ];
                // What a link says matters to one kind of target as to the other.
                for link in links.into_iter().take(if place == TARGET { 5 } else { 1 }) {
                    let _swapped = Swapped::new(&path, &link);
                    ground.every_call(&ground.kubelet(place), &volumes);
                }
            }
        }
        // The same for a volume that is published there: its mount has moved away with what was put aside.
        let target = ground.kubelet(TARGET);
        let device = ground.kubelet(DEVICE);
        for (id, fstype, staging, place) in [
            (&volumes.staged, Some("ext4"), ground.kubelet(STAGING), &target),
            (&volumes.block, None, volumes.block_staging.clone(), &device),
        ] {
            ground.publish(id, fstype, &staging, place).expect("published");
            let below = place.strip_prefix(ground.harness.path("kubelet")).expect("below");
            let mut parents = prefixes(&text(below));
            parents.pop(); // a mount point cannot be renamed
            for prefix in parents {
                let _swapped = Swapped::new(&ground.kubelet(&text(&prefix)), &victim.join(&prefix));
                ground.unpublish(id, place).expect_err("a link is in the way");
                ground.publish(id, fstype, &staging, place).expect_err("a link is in the way");
                // Growing goes by the staging path, and may be done.
                let [stats, ..] = ground.look_at(id, place);
                stats.expect_err("a link is in the way");
            }
            ground.unpublish(id, place).expect("unpublished");
        }
        // And for the staging path; further up lies the other driver's too.
        let staging = ground.kubelet(STAGING);
        let parents = prefixes(STAGING);
        for prefix in &parents[3..parents.len() - 1] {
            let _swapped = Swapped::new(&ground.kubelet(&text(prefix)), &victim.join(prefix));
            ground.unstage(&volumes.staged, &staging).expect_err("a link is in the way");
            ground.publish(&volumes.staged, Some("ext4"), &staging, &target).expect_err("a link is in the way");
            ground.stage(&volumes.fresh, Some("ext4"), &staging).expect_err("a link is in the way");
        }
        ground.finish(&volumes);
        ground.figure("links", 0);
    });
}

#[test]
fn mounts_inside_a_target_are_reported_and_left() {
    isolated(|| {
        let ground = Ground::new();
        let volumes = ground.volumes();
        let (staging, target) = (ground.kubelet(STAGING), ground.kubelet(TARGET));
        ground.publish(&volumes.staged, Some("ext4"), &staging, &target).expect("published");
        let inner = target.join("inner");
        tmpfs(&inner);
        let status = ground.unpublish(&volumes.staged, &target).expect_err("in use");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("inner"), "{status}");
        assert_eq!(fs::read_to_string(inner.join("data")).expect("still there"), "precious");
        umount2(&inner, MntFlags::UMOUNT_NOFOLLOW).expect("unmounted");
        // Something of another's on top is not ours to unmount.
        tmpfs(&target);
        ground.unpublish(&volumes.staged, &target).expect_err("in use");
        assert_eq!(fs::read_to_string(target.join("data")).expect("still there"), "precious");
        umount2(&target, MntFlags::UMOUNT_NOFOLLOW).expect("unmounted");
        ground.unpublish(&volumes.staged, &target).expect("unpublished");
        // At the staging path.
        let inner = staging.join("inner");
        tmpfs(&inner);
        ground.unstage(&volumes.staged, &staging).expect_err("in use");
        assert_eq!(fs::read_to_string(inner.join("data")).expect("still there"), "precious");
        umount2(&inner, MntFlags::UMOUNT_NOFOLLOW).expect("unmounted");
        ground.finish(&volumes);
        ground.figure("mounts inside", 0);
    });
}

/// Swaps a directory and a link all the time, until dropped.
struct Swapping {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<usize>>,
    directory: PathBuf,
    link: PathBuf,
}

impl Swapping {
    fn begin(directory: &Path, link_to: &Path) -> Swapping {
        let link = directory.with_file_name("swapped");
        symlink(link_to, &link).expect("a link");
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, one, other) = (stop.clone(), directory.to_owned(), link.clone());
        let swap = move || {
            let mut count = 0;
            while !seen.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).expect("exchanged");
                count += 1;
                // From none to some hundred thousand instructions, so that both states meet every step of a call.
                for _ in 0..(count * 7919) % 65_536 {
                    std::hint::spin_loop();
                }
            }
            count
        };
        Swapping { stop, thread: Some(std::thread::spawn(swap)), directory: directory.to_owned(), link }
    }

    /// The directory is where it was.
    fn end(&mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return 0 };
        let count = thread.join().expect("it swapped");
        if self.directory.is_symlink() {
            fs::rename(&self.directory, self.directory.with_file_name("aside")).expect("renamed");
            fs::rename(&self.link, &self.directory).expect("renamed");
            fs::rename(self.directory.with_file_name("aside"), &self.link).expect("renamed");
        }
        fs::remove_file(&self.link).expect("the link");
        count
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs rounds while a component is swapped; answers how many.
fn race(directory: &Path, link_to: &Path, mut round: impl FnMut()) -> usize {
    let mut swapping = Swapping::begin(directory, link_to);
    let begun = Instant::now();
    let mut rounds = 0;
    while rounds < ROUNDS && (begun.elapsed() < RACE || rounds < FEWEST) {
        round();
        rounds += 1;
    }
    let swaps = swapping.end();
    assert!(swaps > rounds, "{rounds} rounds, {swaps} swaps: that was no race");
    rounds
}

#[test]
fn links_swapped_in_while_targets_come_and_go() {
    isolated(|| {
        let ground = Ground::new();
        let volumes = ground.volumes();
        let victim = ground.harness.path("victim");
        let staging = ground.kubelet(STAGING);
        let mut rounds = 0;
        for (place, id, fstype, staging) in
            [(TARGET, &volumes.staged, Some("ext4"), &staging), (DEVICE, &volumes.block, None, &volumes.block_staging)]
        {
            let target = ground.kubelet(place);
            let parents = prefixes(place);
            for prefix in [&parents[parents.len() - 2], &parents[1]] {
                let (mut published, mut unpublished) = (0, 0);
                rounds += race(&ground.kubelet(&text(prefix)), &victim.join(prefix), || {
                    published += usize::from(ground.publish(id, fstype, staging, &target).is_ok());
                    let _ = ground.look_at(id, &target);
                    unpublished += usize::from(ground.unpublish(id, &target).is_ok());
                });
                eprintln!("{place}: {published} published, {unpublished} unpublished");
                // What was cut short by a link is undone by the call that is repeated.
                ground.unpublish(id, &target).expect("unpublished");
            }
        }
        let target = ground.kubelet(TARGET);
        let parents = prefixes(TARGET);
        let prefix = &parents[parents.len() - 2];
        rounds += race(&ground.kubelet(&text(prefix)), &victim.join(prefix), || {
            let _ = ground.publish_inline("csi-raced", &target, &[]);
            let _ = ground.unpublish("csi-raced", &target);
        });
        ground.unpublish("csi-raced", &target).expect("unpublished");
        ground.finish(&volumes);
        ground.figure("links swapped in at targets", rounds);
    });
}

#[test]
fn links_swapped_in_while_volumes_are_staged() {
    isolated(|| {
        let ground = Ground::new();
        let victim = ground.harness.path("victim");
        let id = ground.volume("raced", Some("ext4"));
        let (staging, target) = (ground.kubelet(STAGING), ground.kubelet(TARGET));
        let parents = prefixes(STAGING);
        let mut rounds = 0;
        for prefix in [&parents[parents.len() - 2], &parents[3]] {
            let (mut staged, mut unstaged) = (0, 0);
            rounds += race(&ground.kubelet(&text(prefix)), &victim.join(prefix), || {
                staged += usize::from(ground.stage(&id, Some("ext4"), &staging).is_ok());
                let _ = ground.publish(&id, Some("ext4"), &staging, &target);
                let _ = ground.unpublish(&id, &target);
                unstaged += usize::from(ground.unstage(&id, &staging).is_ok());
            });
            eprintln!("{staged} staged, {unstaged} unstaged");
            ground.unpublish(&id, &target).expect("unpublished");
            ground.unstage(&id, &staging).expect("unstaged");
        }
        ground.assert_nothing_left();
        ground.figure("links swapped in at staging paths", rounds);
    });
}

/// The victim's own file system, of another size than its device, in the way of a growth.
struct Ungrown {
    mounted: PathBuf,
    // Dropped after the unmount.
    _device: LoopDevice,
}

impl Ungrown {
    fn new(image: &Path, mounted: &Path) -> Ungrown {
        fs::File::create(image).expect("a file").set_len(300 << 20).expect("sized");
        run("mkfs.xfs", ["-q", &text(image)]);
        fs::OpenOptions::new().write(true).open(image).expect("the file").set_len(400 << 20).expect("sized");
        let device = LoopDevice::over(image);
        umount2(mounted, MntFlags::UMOUNT_NOFOLLOW).expect("unmounted");
        mount(Some(device.0.as_str()), mounted, Some("xfs"), MsFlags::empty(), None::<&str>).expect("mounted");
        Ungrown { mounted: mounted.to_owned(), _device: device }
    }
}

/// Of a mounted file system, its log not counted.
fn blocks(mounted: &Path) -> u64 {
    rustix::fs::statvfs(mounted).expect("mounted").f_blocks
}

impl Drop for Ungrown {
    fn drop(&mut self) {
        umount2(&self.mounted, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).ok();
    }
}

#[test]
fn links_swapped_in_while_a_volume_grows() {
    isolated(|| {
        let mut ground = Ground::new();
        let victim = ground.harness.path("victim");
        let theirs = Ungrown::new(&victim.join("theirs.img"), &victim.join(STAGING));
        ground.victim = Victim::look(&ground.harness);
        let id = ground.volume("growing", Some("xfs"));
        let staging = ground.kubelet(STAGING);
        ground.stage(&id, Some("xfs"), &staging).expect("staged");
        let (before, own) = (blocks(&theirs.mounted), blocks(&staging));
        let parents = prefixes(STAGING);
        let prefix = &parents[parents.len() - 2];
        let mut size = 320;
        let rounds = race(&ground.kubelet(&text(prefix)), &victim.join(prefix), || {
            size += 4;
            let range = Some(csi::CapacityRange { required_bytes: size * MIB, limit_bytes: 0 });
            let request =
                csi::ControllerExpandVolumeRequest { volume_id: id.clone(), capacity_range: range, ..Default::default() };
            let mut controller = ground.controller.clone();
            ground.attack("expand", async move { controller.controller_expand_volume(request).await }).expect("larger");
            let request = csi::NodeExpandVolumeRequest {
                volume_id: id.clone(),
                volume_path: text(&staging),
                capacity_range: range,
                ..Default::default()
            };
            let mut node = ground.node.clone();
            let _ = ground.attack("expand on the node", async move { node.node_expand_volume(request).await });
            assert_eq!(blocks(&theirs.mounted), before, "another's file system was made larger");
        });
        ground.look_at(&id, &staging)[1].clone().expect("it grows when it is left in peace");
        let grown = u64::try_from((size - 320) * MIB).expect("a size");
        // And by the end of the device, which mkfs leaves alone.
        let seen = (blocks(&staging) - own) * 4096;
        assert!((grown..grown + (256 << 10)).contains(&seen), "it has grown by {seen}, not {grown} bytes");
        ground.unstage(&id, &staging).expect("unstaged");
        ground.assert_nothing_left();
        ground.figure("links swapped in at growth", rounds);
    });
}

/// Calls of the controller about one volume; none may work but those that only list.
fn controller_calls(ground: &Ground, id: &str) {
    let call = || ground.controller.clone();
    let range = Some(csi::CapacityRange { required_bytes: 128 * MIB, limit_bytes: 0 });
    let (mut one, mut two, mut three, mut four, mut five, mut six) = (call(), call(), call(), call(), call(), call());
    let get = csi::ControllerGetVolumeRequest { volume_id: id.to_owned() };
    ground.attack("get", async move { one.controller_get_volume(get).await }).expect_err("it is not whole");
    let expand = csi::ControllerExpandVolumeRequest { volume_id: id.to_owned(), capacity_range: range, ..Default::default() };
    ground.attack("expand", async move { two.controller_expand_volume(expand).await }).expect_err("it is not whole");
    let modify = csi::ControllerModifyVolumeRequest {
        volume_id: id.to_owned(),
        mutable_parameters: [("onDelete".to_owned(), "scrub".to_owned())].into(),
        ..Default::default()
    };
    ground.attack("modify", async move { three.controller_modify_volume(modify).await }).expect_err("it is not whole");
    let snapshot = csi::CreateSnapshotRequest { source_volume_id: id.to_owned(), name: "s".to_owned(), ..Default::default() };
    ground.attack("snapshot", async move { four.create_snapshot(snapshot).await }).expect_err("it is not whole");
    let delete = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
    ground.attack("delete", async move { five.delete_volume(delete).await }).expect_err("it is not whole");
    ground.attack("list", async move { six.list_volumes(csi::ListVolumesRequest::default()).await }).expect("others are there");
}

#[test]
fn links_planted_in_the_pool() {
    isolated(|| {
        let mut ground = Ground::new();
        let (pool, stolen) = (ground.harness.path("pool/images"), ground.harness.path("victim/volumes"));
        fs::create_dir(&stolen).expect("a directory");
        for name in ["directory", "meta", "image", "gone"] {
            ground.volume(name, Some("ext4"));
        }
        // A volume's directory, its metadata, its image lie elsewhere, with a link in their place.
        for path in ["directory", "meta/meta.json", "image/image"] {
            let (from, to) = (pool.join("volumes").join(path), stolen.join(path.replace('/', "-")));
            fs::rename(&from, &to).expect("moved");
            symlink(&to, &from).expect("a link");
        }
        let _device = LoopDevice::over(&stolen.join("directory/image"));
        // What is made or removed next, and what is swept at a start.
        for name in ["tmp/volume~made", "trash/volume~gone", "trash/volume~old", "snapshots/s"] {
            symlink(stolen.join("directory"), pool.join(name)).expect("a link");
        }
        ground.victim = Victim::look(&ground.harness);
        assert_eq!(ground.victim.loops.len(), 1);

        let staging = ground.kubelet(STAGING);
        for name in ["directory", "meta", "image"] {
            let id = format!("image:{name}");
            ground.stage(&id, Some("ext4"), &staging).expect_err("it is not whole");
            let _ = ground.unstage(&id, &staging);
            let _ = ground.unpublish(&id, &ground.kubelet(TARGET));
            ground.look_at(&id, &staging)[0].clone().expect_err("it is not there");
            controller_calls(&ground, &id);
            let (again, clone) = (create(name, 64, Some("ext4"), "image"), create("clone", 64, Some("ext4"), "image"));
            let source = csi::volume_content_source::VolumeSource { volume_id: id };
            let source = csi::VolumeContentSource { r#type: Some(csi::volume_content_source::Type::Volume(source)) };
            let clone = csi::CreateVolumeRequest { volume_content_source: Some(source), ..clone };
            for request in [again, clone] {
                let mut controller = ground.controller.clone();
                ground.attack("create", async move { controller.create_volume(request).await }).expect_err("it is not whole");
            }
        }
        let mut controller = ground.controller.clone();
        let made = create("made", 64, Some("ext4"), "image");
        let _ = ground.attack("create over a link", async move { controller.create_volume(made).await });
        for volume_id in ["image:gone", "image:made"] {
            let mut controller = ground.controller.clone();
            let request = csi::DeleteVolumeRequest { volume_id: volume_id.to_owned(), ..Default::default() };
            let _ = ground.attack("delete into a link", async move { controller.delete_volume(request).await });
        }
        let (mut one, mut two) = (ground.controller.clone(), ground.controller.clone());
        let get = csi::GetSnapshotRequest { snapshot_id: "image:s".to_owned(), ..Default::default() };
        ground.attack("get a linked snapshot", async move { one.get_snapshot(get).await }).expect_err("it is not whole");
        let delete = csi::DeleteSnapshotRequest { snapshot_id: "image:s".to_owned(), ..Default::default() };
        ground.attack("delete a linked snapshot", async move { two.delete_snapshot(delete).await }).expect_err("it is not whole");

        // A start sweeps what is ours.
        ground.harness.kill();
        ground.harness.forget_log();
        ground.harness.start();
        ground.victim.assert_unharmed("a start");
        ground.harness.kill();
        // All volumes are elsewhere.
        fs::rename(pool.join("volumes"), ground.harness.path("victim/all")).expect("moved");
        symlink(ground.harness.path("victim/all"), pool.join("volumes")).expect("a link");
        ground.victim = Victim::look(&ground.harness);
        ground.harness.forget_log();
        ground.harness.start();
        (ground.node, ground.controller) = (ground.harness.node(), ground.harness.controller());
        let mut controller = ground.controller.clone();
        let request = create("new", 64, Some("ext4"), "image");
        ground
            .attack("create elsewhere", async move { controller.create_volume(request).await })
            .expect_err("the pool is not whole");
        ground.harness.kill();
        ground.figure("links in the pool", 0);
    });
}

#[test]
fn names_and_parameters_that_are_paths() {
    isolated(|| {
        let ground = Ground::new();
        let pool = ground.harness.path("pool/images");
        let outside = ground.harness.path("victim").join("empty");
        let names = [
            "../../x",
            "..",
            ".",
            "/etc/x",
            "a/../../b",
            "a\nb",
            &text(&outside),
            "volumes/../../x",
            "-rf",
            "~",
            "a\\b",
            "%2e%2e",
        ];
        for name in names {
            let mut controller = ground.controller.clone();
            let request = create(name, 16, Some("ext4"), "image");
            let made = ground.attack(&format!("create {name:?}"), async move { controller.create_volume(request).await });
            let id = made.expect("any name is a name").into_inner().volume.expect("a volume").volume_id;
            let local = id.strip_prefix("image:").expect("its backend");
            assert!(pool.join("volumes").join(local).join("image").is_file(), "{name:?} is {id}");
            let mut controller = ground.controller.clone();
            let request =
                csi::CreateSnapshotRequest { source_volume_id: id.clone(), name: name.to_owned(), ..Default::default() };
            let made = ground.attack(&format!("snapshot {name:?}"), async move { controller.create_snapshot(request).await });
            let snapshot = made.expect("any name is a name").into_inner().snapshot.expect("a snapshot").snapshot_id;
            let local = snapshot.strip_prefix("image:").expect("its backend");
            assert!(pool.join("snapshots").join(local).join("image").is_file(), "{name:?} is {snapshot}");
            let (mut one, mut two) = (ground.controller.clone(), ground.controller.clone());
            let request = csi::DeleteSnapshotRequest { snapshot_id: snapshot, ..Default::default() };
            ground.attack("delete", async move { one.delete_snapshot(request).await }).expect("deleted");
            let request = csi::DeleteVolumeRequest { volume_id: id, ..Default::default() };
            ground.attack("delete", async move { two.delete_volume(request).await }).expect("deleted");
        }
        ground.harness.assert_pool_empty();

        let bare = text(&outside).trim_start_matches('/').to_owned();
        for (key, value) in [
            ("pool", "../images"),
            ("pool", "/etc"),
            ("pool", "default/../default"),
            ("backend", "../image"),
            ("backend", "image:x"),
            ("onDelete", "../archive"),
            // mkfs runs as root, in the root directory: files to read, files to write, devices to format.
            ("mkfsOptions", &format!("-d {bare}")),
            ("mkfsOptions", &format!("-d{}", text(&outside))),
            ("mkfsOptions", "-d etc"),
            ("mkfsOptions", "-d .."),
            ("mkfsOptions", "-z undo.e2undo"),
            ("mkfsOptions", "-z/undo.e2undo"),
            ("mkfsOptions", "-l name=initrd.img"),
            ("mkfsOptions", "-p proto"),
            ("mkfsOptions", "--rootdir=etc"),
            ("mkfsOptions", "initrd.img"),
        ] {
            let mut controller = ground.controller.clone();
            let mut request = create("bad", 320, None, "image");
            request.parameters.insert(key.to_owned(), value.to_owned());
            let status = ground.attack(&format!("{key} {value}"), async move { controller.create_volume(request).await });
            let refused = match status {
                Err(status) => status,
                // Another file system has an option of that name: then it is refused where the type is known.
                Ok(made) => {
                    assert!(key == "mkfsOptions" && ["-d etc", "-d .."].contains(&value), "{key} {value}");
                    let volume = made.into_inner().volume.expect("a volume");
                    let request = csi::NodeStageVolumeRequest {
                        volume_context: volume.volume_context,
                        ..stage_request(volume.volume_id.clone(), ground.kubelet(STAGING), capability(Some("ext4")))
                    };
                    let (mut node, mut controller) = (ground.node.clone(), ground.controller.clone());
                    let staged = ground.attack("stage", async move { node.node_stage_volume(request).await });
                    let request = csi::DeleteVolumeRequest { volume_id: volume.volume_id, ..Default::default() };
                    ground.attack("delete", async move { controller.delete_volume(request).await }).expect("deleted");
                    assert_eq!(ground.harness.journal(), Vec::<String>::new(), "it is as if it had never been tried");
                    staged.expect_err("refused")
                }
            };
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
            // A pod's author chooses these.
            ground.publish_inline("csi-inline", &ground.kubelet(TARGET), &[(key, value)]).expect_err("refused");
        }
        for name in ["../x", "..", "a/b", "csi:x", ".hidden", "", &"c".repeat(200)] {
            ground.publish_inline(name, &ground.kubelet(TARGET), &[]).expect_err("refused");
            let _ = ground.unpublish(name, &ground.kubelet(TARGET));
        }
        for id in
            ["image:../../victim/empty", "image:..", "image:.", "image:/etc", "image:a/b", "image:a\0b", "../image:a", "image:"]
        {
            ground.stage(id, Some("ext4"), &ground.kubelet(STAGING)).expect_err("refused");
            let _ = ground.unstage(id, &ground.kubelet(STAGING));
            ground.publish(id, Some("ext4"), &ground.kubelet(STAGING), &ground.kubelet(TARGET)).expect_err("refused");
            let _ = ground.unpublish(id, &ground.kubelet(TARGET));
            let mut controller = ground.controller.clone();
            let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
            let _ = ground.attack("delete", async move { controller.delete_volume(request).await });
        }
        ground.harness.assert_pool_empty();
        ground.assert_nothing_left();
        ground.figure("names and parameters", 0);
    });
}

//! What the tests stand on: disks of their own, backends on them, and eyes to look with.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longshore::backend::image::{ImageBackend, ImageConfig, PoolConfig, Role};
use longshore::backend::{Backend, FreezeGuard, Groups, Provision, Quiesce, SnapshotSpec, Snapshots, VolumeSpec};
use longshore::os::loopdev::{self, Loop};
use longshore::os::udev;
use longshore::volume::{
    BackendName, Bytes, ContentSource, Error, RawParameters, Result, SnapshotId, TopologyRequirement, Volume, VolumeId,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
pub use test_support::nobody_starts;
use test_support::starting;

pub const MIB: u64 = 1 << 20;

/// Runs `test` in a mount namespace of its own.
pub fn isolated(test: impl FnOnce() + Send) {
    test_support::in_namespace(test);
}

/// On what a pool lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    Xfs,
    Btrfs,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];

    pub fn shares(self) -> bool {
        self != Kind::Ext4
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }
}

/// A mounted file system of its own, with a directory for a pool. Unmounted and detached when dropped.
pub struct Disk {
    directory: tempfile::TempDir,
    device: Loop,
    kind: Kind,
}

impl Disk {
    pub fn new(kind: Kind, mebibytes: u64) -> Disk {
        let directory = tempfile::Builder::new().prefix("longshore-image-").tempdir_in("/var/tmp").expect("a directory");
        std::fs::create_dir(directory.path().join("mnt")).expect("a directory");
        let backing = directory.path().join("disk");
        let file = File::create_new(&backing).expect("a backing file");
        file.set_len(mebibytes * MIB).expect("its length");
        let file = File::options().read(true).write(true).open(&backing).expect("a backing file");
        let device = loopdev::attach(&file, "longshore test disk", false).expect("a loop device");
        let disk = Disk { directory, device, kind };
        let quiet = if kind == Kind::Ext4 { "-qF" } else { "-q" };
        run(&format!("mkfs.{}", kind.name()), &[quiet, disk.device.path.to_str().expect("a name")]);
        disk.mount();
        std::fs::create_dir(disk.pool()).expect("a directory");
        disk
    }

    pub fn mount(&self) {
        mount(Some(&self.device.path), &self.mountpoint(), Some(self.kind.name()), MsFlags::empty(), None::<&str>)
            .expect("mounted");
    }

    pub fn remount(&self, read_only: bool) {
        let _alone = nobody_starts();
        let flags = if read_only { MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY } else { MsFlags::MS_REMOUNT };
        mount(None::<&str>, &self.mountpoint(), None::<&str>, flags, None::<&str>).expect("remounted");
    }

    /// As if the disk were pulled: the mount is gone anyone who uses it.
    pub fn unmount(&self) {
        umount2(&self.mountpoint(), MntFlags::MNT_DETACH).expect("unmounted");
    }

    /// As after a boot: the same file system, by another device number.
    pub fn renumber(&mut self) {
        let number = |disk: &Disk| std::fs::metadata(disk.mountpoint()).expect("mounted").dev();
        let before = number(self);
        // The kernel lets go of an image's file a moment after its device is seen unbound, where someone else had the device open.
        umount2(&self.mountpoint(), MntFlags::MNT_DETACH).expect("unmounted");
        let alone = || Ok(File::options().read(true).custom_flags(libc::O_EXCL).open(&self.device.path).is_ok());
        let until = Instant::now().checked_add(Duration::from_secs(10));
        assert!(udev::wait_until(until, alone).expect("looked"), "the file system has left the kernel");
        // While the old number is still taken.
        let file = File::options().read(true).write(true).open(self.directory.path().join("disk")).expect("a backing file");
        let device = loopdev::attach(&file, "longshore test disk", false).expect("a loop device");
        let old = std::mem::replace(&mut self.device, device);
        loopdev::detach(&old.path, old.backing).expect("detached");
        // btrfs takes the first number that is free: others take the one before.
        let other = self.directory.path().join("other");
        std::fs::create_dir(&other).expect("a directory");
        self.mount();
        while number(self) == before {
            umount2(&self.mountpoint(), MntFlags::empty()).expect("unmounted");
            mount(Some("other"), &other, Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("mounted");
            self.mount();
        }
        while umount2(&other, MntFlags::empty()).is_ok() {}
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    pub fn pool(&self) -> PathBuf {
        self.mountpoint().join("pool")
    }

    /// Bytes in use, with everything written back.
    pub fn used(&self) -> u64 {
        let root = File::open(self.mountpoint()).expect("the mount");
        nix::unistd::syncfs(&root).expect("synced");
        let figures = nix::sys::statvfs::statvfs(&self.mountpoint()).expect("statvfs");
        (figures.blocks() - figures.blocks_free()) * figures.fragment_size()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A failed test leaves what it connected; those devices hold files of this disk.
        if let Err(error) = umount2(&self.mountpoint(), MntFlags::MNT_DETACH) {
            eprintln!("{}: {error}", self.mountpoint().display());
        }
        if let Err(error) = loopdev::detach(&self.device.path, self.device.backing) {
            eprintln!("{error}");
        }
    }
}

/// A plain directory on the machine's own file system.
pub fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("longshore-image-").tempdir_in("/var/tmp").expect("a directory")
}

pub fn start(command: &mut Command) -> Child {
    let _starting = starting();
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}", command.get_program().display()))
}

/// Runs a program to its end.
pub fn ended(command: &mut Command) -> Output {
    let child = start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    child.wait_with_output().expect("its output")
}

pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = ended(Command::new(program).args(arguments));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub fn pool(name: &str, path: &Path) -> PoolConfig {
    PoolConfig { name: name.to_owned(), path: path.to_owned(), overcommit: 1.0, capacity: None }
}

pub fn config(pools: Vec<PoolConfig>) -> ImageConfig {
    ImageConfig { name: name(), pools, node: None, shared: false }
}

pub fn name() -> BackendName {
    "image".parse().expect("a name")
}

pub fn open(pools: Vec<PoolConfig>) -> ImageBackend {
    let _alone = nobody_starts();
    ImageBackend::open(config(pools), Role { provision: true }).expect("the pools open")
}

/// One pool at this path.
pub fn open_at(path: &Path) -> ImageBackend {
    open(vec![pool("p", path)])
}

pub fn volume_id(name_of_it: &str) -> VolumeId {
    VolumeId::derive(&name(), name_of_it)
}

pub fn snapshot_id(name_of_it: &str) -> SnapshotId {
    SnapshotId::derive(&name(), name_of_it)
}

/// What CreateVolume would ask for.
pub fn spec(name_of_it: &str, capacity: u64, parameters: &[(&str, &str)]) -> VolumeSpec {
    let backend: serde_json::Map<_, _> = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    VolumeSpec {
        id: volume_id(name_of_it),
        name: name_of_it.to_owned(),
        capacity: Bytes(capacity),
        limit: None,
        source: None,
        parameters: serde_json::json!({"node": {"fsck": "true"}, "backend": backend}),
        several_nodes: false,
        mutable: RawParameters::default(),
        topology: TopologyRequirement::default(),
    }
}

pub fn create(backend: &ImageBackend, name_of_it: &str, capacity: u64) -> Volume {
    create_with(backend, &spec(name_of_it, capacity, &[])).expect("created")
}

pub fn create_with(backend: &ImageBackend, spec: &VolumeSpec) -> Result<Volume> {
    provision(backend).create(spec, &NoQuiesce::default())
}

pub fn create_from(backend: &ImageBackend, name_of_it: &str, capacity: u64, source: ContentSource) -> Result<Volume> {
    create_with(backend, &VolumeSpec { source: Some(source), ..spec(name_of_it, capacity, &[]) })
}

pub fn snapshot_spec(name_of_it: &str, volume: &str) -> SnapshotSpec {
    SnapshotSpec {
        id: snapshot_id(name_of_it),
        name: name_of_it.to_owned(),
        source: volume_id(volume),
        parameters: RawParameters::default(),
    }
}

pub fn take(backend: &ImageBackend, name_of_it: &str, volume: &str) -> longshore::volume::Snapshot {
    snapshots(backend).create_snapshot(&snapshot_spec(name_of_it, volume), &NoQuiesce::default()).expect("a snapshot")
}

pub fn provision(backend: &ImageBackend) -> &dyn Provision {
    backend.provision().expect("provisions")
}

pub fn snapshots(backend: &ImageBackend) -> &dyn Snapshots {
    backend.snapshots().expect("snapshots")
}

pub fn groups(backend: &ImageBackend) -> &dyn Groups {
    backend.groups().expect("groups")
}

/// The names in a directory, in order.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

/// Nothing half-made or half-deleted is left in the pool.
pub fn assert_clean(pool: &Path) {
    assert_eq!(names(&pool.join("tmp")), [""; 0]);
    assert_eq!(names(&pool.join("trash")), [""; 0]);
}

/// Writes `length` bytes of `value` into an image.
pub fn write(image: &Path, offset: u64, length: u64, value: u8) {
    let file = File::options().write(true).open(image).unwrap_or_else(|error| panic!("{}: {error}", image.display()));
    let length = usize::try_from(length).expect("a length");
    file.write_all_at(&vec![value; length], offset).expect("written");
    file.sync_all().expect("synced");
}

/// Whether all of a range has this value.
pub fn holds(image: &Path, offset: u64, length: u64, value: u8) -> bool {
    let file = File::open(image).unwrap_or_else(|error| panic!("{}: {error}", image.display()));
    let mut bytes = vec![0; usize::try_from(length).expect("a length")];
    file.read_exact_at(&mut bytes, offset).expect("read");
    bytes.iter().all(|byte| *byte == value)
}

pub fn allocated(path: &Path) -> u64 {
    std::fs::metadata(path).expect("a file").blocks() * 512
}

pub fn length(path: &Path) -> u64 {
    std::fs::metadata(path).expect("a file").len()
}

/// Counts holds; freezes nothing, because nothing here is mounted.
#[derive(Default)]
pub struct NoQuiesce {
    pub held: AtomicUsize,
    pub volumes: AtomicUsize,
    /// The hold turns out to have broken.
    pub breaks: bool,
}

impl Quiesce for NoQuiesce {
    fn freeze(&self, volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        self.held.fetch_add(1, Ordering::Relaxed);
        self.volumes.fetch_add(volumes.len(), Ordering::Relaxed);
        Ok(Box::new(NotHeld { breaks: self.breaks }))
    }
}

struct NotHeld {
    breaks: bool,
}

impl FreezeGuard for NotHeld {
    fn release(self: Box<Self>) -> Result<()> {
        if self.breaks { Err(Error::failed("thaw", "volume", "the deadline thawed it")) } else { Ok(()) }
    }
}

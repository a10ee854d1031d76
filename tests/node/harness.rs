//! What each test stands on: a kubelet's directory, a state directory, and a small backend of files behind loop devices.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longshore::backend::registry::Registry;
use longshore::backend::{
    Backend, BlockDevice, CapacityAnswer, CapacityQuery, Connect, ConnectRequest, Provision, Quiesce, Source, VolumeSpec,
};
use longshore::ops::lock::Locks;
use longshore::ops::node::{Handle, InlineLimits, Node, NodeSettings, PublishRequest, StageRequest};
use longshore::os;
use longshore::os::loopdev;
use longshore::os::mountinfo::{Mount, MountTable};
use longshore::volume::{
    AccessMode, AccessType, BackendName, Bytes, Capability, Error, FsType, MountFlags, NodeId, Outcome, Result, Secrets, Volume,
    VolumeId,
};

/// Until all is recovered.
const RECOVERED: Duration = Duration::from_secs(60);

/// Files in one directory; each becomes a loop device.
pub struct Files {
    name: BackendName,
    directory: PathBuf,
    /// Disconnecting fails, as with a storage that does not answer.
    pub stuck: AtomicBool,
    /// Connecting fails.
    pub away: AtomicBool,
    /// Nothing is connected without publish_context.
    pub needs_context: AtomicBool,
    /// The storage has an id of its own for this node, and does not know it.
    pub unnamed: AtomicBool,
    /// What the storage keeps of a volume beside its file, by the local id.
    pub names: Mutex<BTreeMap<String, String>>,
}

impl Files {
    fn new(directory: PathBuf) -> Files {
        Files {
            name: "files".parse().expect("a name"),
            directory,
            stuck: AtomicBool::new(false),
            away: AtomicBool::new(false),
            needs_context: AtomicBool::new(false),
            unnamed: AtomicBool::new(false),
            names: Mutex::default(),
        }
    }

    pub fn path(&self, id: &VolumeId) -> PathBuf {
        self.directory.join(id.local())
    }

    fn open(&self, id: &VolumeId, write: bool) -> Result<File> {
        match File::options().read(true).write(write).open(self.path(id)) {
            Ok(file) => Ok(file),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::volume_not_found(id)),
            Err(error) => Err(Error::failed("open", id.to_string(), error)),
        }
    }

    fn backing(&self, id: &VolumeId) -> Result<(u64, u64)> {
        let stat = fs::metadata(self.path(id)).map_err(|_| Error::volume_not_found(id))?;
        Ok((stat.dev(), stat.ino()))
    }
}

fn source(device: loopdev::Loop) -> Source {
    let identity = format!("{}:{}", device.backing.0, device.backing.1);
    Source::Device(BlockDevice { path: device.path, number: device.number, identity })
}

impl Connect for Files {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        if self.needs_context.load(Ordering::SeqCst) && request.publish_context.is_empty() {
            return Err(Error::invalid("publish_context", "it is missing"));
        }
        if let Some(there) = self.connected(request.id, None)? {
            return Ok(Outcome::Unchanged(there));
        }
        if self.away.load(Ordering::SeqCst) {
            return Err(Error::failed("connect", request.id.to_string(), std::io::Error::from_raw_os_error(libc::EIO)));
        }
        let file = self.open(request.id, !request.read_only)?;
        Ok(Outcome::Changed(source(loopdev::attach(&file, &request.id.to_string(), request.read_only)?)))
    }

    fn connected(&self, id: &VolumeId, _hint: Option<&Source>) -> Result<Option<Source>> {
        let Ok(backing) = self.backing(id) else { return Ok(None) };
        Ok(loopdev::find(backing, Path::new(id.local()))?.into_iter().next().map(source))
    }

    fn is_same_device(&self, source: &Source) -> Result<bool> {
        let Source::Device(reported) = source else { panic!("only devices here") };
        match loopdev::status(&reported.path) {
            Err(error) if error.is_missing() => Ok(false),
            status => Ok(status?.is_some_and(|device| self::source(device) == *source)),
        }
    }

    fn disconnect(&self, id: &VolumeId, _hint: Option<&Source>) -> Result<Outcome<()>> {
        if self.stuck.load(Ordering::SeqCst) {
            return Err(Error::failed("disconnect", id.to_string(), std::io::Error::from_raw_os_error(libc::EIO)));
        }
        let Ok(backing) = self.backing(id) else { return Ok(Outcome::Unchanged(())) };
        for device in loopdev::find(backing, Path::new(id.local()))? {
            loopdev::detach(&device.path, backing)?;
        }
        Ok(Outcome::Changed(()))
    }

    fn node_id(&self) -> Result<Option<NodeId>> {
        match self.unnamed.load(Ordering::SeqCst) {
            true => Err(Error::BackendUnavailable { backend: self.name.to_string(), reason: "no metadata service".to_owned() }),
            false => Ok(None),
        }
    }

    fn refresh(&self, _id: &VolumeId, source: &Source) -> Result<Bytes> {
        let Source::Device(device) = source else { panic!("only devices here") };
        Ok(Bytes(loopdev::refresh(&device.path)?))
    }
}

impl Provision for Files {
    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.path(id).exists().then(|| Volume {
            id: id.clone(),
            name: self.names.lock().unwrap().get(id.local()).cloned().unwrap_or_else(|| id.local().to_owned()),
            capacity: Bytes(fs::metadata(self.path(id)).map_or(0, |stat| stat.len())),
            source: None,
            parameters: Arc::default(),
            topology: Vec::new(),
            for_one_node: false,
        }))
    }

    fn create(&self, spec: &VolumeSpec, _quiesce: &dyn Quiesce) -> Result<Volume> {
        File::create_new(self.path(&spec.id)).unwrap().set_len(spec.capacity.0).unwrap();
        self.names.lock().unwrap().insert(spec.id.local().to_owned(), spec.name.clone());
        Ok(self.find(&spec.id)?.expect("just made"))
    }

    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        match fs::remove_file(self.path(id)) {
            Ok(()) => Ok(Outcome::Changed(())),
            Err(_) => Ok(Outcome::Unchanged(())),
        }
    }

    fn list(&self, _after: Option<&VolumeId>, _max: usize) -> Result<Vec<Volume>> {
        Ok(Vec::new())
    }

    fn capacity(&self, _query: &CapacityQuery) -> Result<CapacityAnswer> {
        Ok(CapacityAnswer { available: Bytes::GIB, maximum: Bytes::GIB, minimum: Bytes::MIB })
    }
}

impl Backend for Files {
    fn name(&self) -> &BackendName {
        &self.name
    }
    fn kind(&self) -> &'static str {
        "files"
    }
    fn probe(&self) -> Result<()> {
        Ok(())
    }
    fn access_modes(&self) -> &[AccessMode] {
        &AccessMode::ALL
    }
    fn check_capability(&self, capability: &Capability) -> Result<()> {
        match !AccessMode::SINGLE_NODE.contains(&capability.mode) && capability.access != AccessType::Block {
            true => Err(Error::invalid("volume_capability.access_mode", "a file system is for one node")),
            false => Ok(()),
        }
    }
    fn provision(&self) -> Option<&dyn Provision> {
        Some(self)
    }
    fn connect(&self) -> &dyn Connect {
        self
    }
}

/// One test's directories and storage; unmounted and unbound when dropped, also by a panic.
pub struct Harness {
    base: tempfile::TempDir,
    pub backend: Arc<Files>,
    /// In bytes, of nodes that are opened from now on.
    pub inline_max_size: AtomicU64,
}

/// Runs `test` in a mount namespace of its own.
pub fn harness(test: impl FnOnce(&Harness) + Send) {
    test_support::in_namespace(|| {
        let base = tempfile::tempdir().expect("a directory");
        for directory in ["kubelet", "state", "pool"] {
            fs::create_dir(base.path().join(directory)).expect("a directory");
        }
        let directory = base.path().canonicalize().expect("a directory").join("pool");
        let harness = Harness { base, backend: Arc::new(Files::new(directory)), inline_max_size: AtomicU64::new(1 << 40) };
        test(&harness);
    });
}

/// Unmounts it by hand. A program that another test starts has this test's open files until its exec.
pub fn unmount(path: &Path) {
    let mut last = None;
    let unmounted = || {
        last = rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).err();
        Ok(last != Some(rustix::io::Errno::BUSY))
    };
    os::udev::wait_until(std::time::Instant::now().checked_add(Duration::from_secs(30)), unmounted).unwrap();
    assert_eq!(last, None, "unmount {}", path.display());
}

impl Drop for Harness {
    fn drop(&mut self) {
        let base = self.base.path().canonicalize().expect("the directory is there");
        let table = MountTable::read().expect("mountinfo");
        let mut points: Vec<_> =
            table.iter().map(|mount| mount.mount_point.clone()).filter(|path| path.starts_with(&base)).collect();
        points.sort();
        for point in points.iter().rev() {
            if let Err(error) = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH) {
                eprintln!("unmount {}: {error}", point.display());
            }
        }
        for entry in fs::read_dir(&self.backend.directory).expect("the pool is there").flatten() {
            let stat = entry.metadata().expect("stat");
            let backing = (stat.dev(), stat.ino());
            for device in loopdev::find(backing, &entry.path()).unwrap_or_default() {
                if let Err(error) = loopdev::detach(&device.path, backing) {
                    eprintln!("detach {}: {error}", device.path.display());
                }
            }
        }
    }
}

impl Harness {
    fn path(&self, name: &str) -> PathBuf {
        self.base.path().canonicalize().expect("the directory is there").join(name)
    }

    /// Starts the driver's node: what a restart does.
    pub fn node(&self) -> Arc<Node> {
        self.node_called("n1", "state")
    }

    /// Starts another node, with a state directory of its own, on the same storage.
    pub fn node_called(&self, name: &str, state: &str) -> Arc<Node> {
        self.node_with(name, state, self.registry(), Locks::default())
    }

    fn node_with(&self, name: &str, state: &str, registry: Registry, locks: Locks) -> Arc<Node> {
        let settings = NodeSettings {
            node_id: name.parse().expect("a node id"),
            kubelet_dir: self.path("kubelet"),
            state_dir: self.path(state),
            inline_limits: InlineLimits {
                max_size: Bytes(self.inline_max_size.load(Ordering::SeqCst)),
                allowed_parameters: inline_parameters(),
            },
        };
        fs::create_dir_all(&settings.state_dir).expect("a directory");
        Node::open(settings, registry, locks, RECOVERED).expect("opens")
    }

    /// The driver's node with these locks, for a test that holds some of them.
    pub fn node_locked(&self, locks: Locks) -> Arc<Node> {
        self.node_with("n1", "state", self.registry(), locks)
    }

    /// The driver's node after its backend left the configuration.
    pub fn node_without_backend(&self) -> Arc<Node> {
        let other = Files { name: "other".parse().expect("a name"), directory: self.path("other"), ..Files::new(PathBuf::new()) };
        self.node_with("n1", "state", Registry::new(vec![Arc::new(other)]).expect("one backend"), Locks::default())
    }

    pub fn registry(&self) -> Registry {
        Registry::new(vec![self.backend.clone()]).expect("one backend")
    }

    /// Another node of the cluster, on the same storage: its own node id, state and kubelet directories.
    pub fn peer(&self, name: &str) -> Arc<Node> {
        for part in ["kubelet", "state"] {
            fs::create_dir_all(self.path(&format!("{part}-{name}"))).expect("a directory");
        }
        let settings = NodeSettings {
            node_id: name.parse().expect("a node id"),
            kubelet_dir: self.path(&format!("kubelet-{name}")),
            state_dir: self.path(&format!("state-{name}")),
            inline_limits: InlineLimits { max_size: Bytes::GIB, allowed_parameters: inline_parameters() },
        };
        let registry = Registry::new(vec![self.backend.clone()]).expect("one backend");
        Node::open(settings, registry, Locks::default(), RECOVERED).expect("opens")
    }

    /// A staging path of [`Harness::peer`].
    pub fn peer_staging(&self, name: &str) -> PathBuf {
        let path = self.path(&format!("kubelet-{name}")).join("s");
        fs::create_dir_all(&path).expect("a directory");
        path
    }

    /// A new volume: one hole.
    pub fn volume(&self, name: &str, size: Bytes) -> VolumeId {
        let id = VolumeId::from_parts(&self.backend.name, name).expect("an id");
        File::create_new(self.backend.path(&id)).expect("new").set_len(size.0).expect("sparse");
        id
    }

    pub fn kubelet(&self, name: &str) -> PathBuf {
        self.path("kubelet").join(name)
    }

    /// A staging path, made as the CO makes it.
    pub fn staging(&self, name: &str) -> PathBuf {
        let path = self.kubelet(name);
        fs::create_dir(&path).expect("a directory");
        path
    }

    pub fn journal(&self, id: &VolumeId) -> PathBuf {
        self.path("state/journal").join(id.to_string())
    }

    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// Changes a stage's journal entry, as an earlier life of the driver might have left it.
    pub fn edit_journal(&self, id: &VolumeId, changes: &[(&str, serde_json::Value)]) {
        edit(&self.journal(id).join("stage.json"), |entry| {
            for (key, value) in changes {
                assert!(entry.get(*key).is_some(), "no {key} in the journal");
                entry[*key] = value.clone();
            }
        });
    }

    /// The same with each of the volume's entries, its targets' too.
    pub fn edit_journal_entries(&self, id: &VolumeId, change: impl Fn(&mut serde_json::Value)) {
        names(&self.journal(id)).iter().for_each(|name| edit(&self.journal(id).join(name), &change));
    }

    pub fn device(&self, id: &VolumeId) -> Option<PathBuf> {
        match self.backend.connected(id, None).expect("looks") {
            Some(Source::Device(device)) => Some(device.path),
            _ => None,
        }
    }

    /// No volume is left in the storage.
    pub fn assert_storage_empty(&self) {
        assert_eq!(names(&self.backend.directory), [""; 0]);
    }

    /// Nothing of the volume is left on this node.
    pub fn assert_gone(&self, id: &VolumeId) {
        assert_eq!(self.device(id), None, "its loop device is left");
        assert!(!self.journal(id).exists(), "its journal is left: {:?}", names(&self.journal(id)));
        let left = mounts_below(&self.path(""));
        assert!(left.is_empty(), "mounts are left: {left:?}");
    }
}

fn edit(path: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let mut entry: serde_json::Value = serde_json::from_slice(&fs::read(path).expect("an entry")).expect("JSON");
    change(&mut entry);
    fs::write(path, entry.to_string()).expect("writes");
}

pub fn names(directory: &Path) -> Vec<String> {
    let Ok(list) = fs::read_dir(directory) else { return Vec::new() };
    list.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

/// What mountinfo shows at a path.
pub fn mounts_at(path: &Path) -> Vec<Mount> {
    MountTable::read().expect("mountinfo").at(path).into_iter().cloned().collect()
}

pub fn mounts_below(path: &Path) -> Vec<Mount> {
    MountTable::read().expect("mountinfo").iter().filter(|mount| mount.mount_point.starts_with(path)).cloned().collect()
}

pub fn tmpfs_on(path: &Path) {
    rustix::mount::mount("foreign", path, "tmpfs", rustix::mount::MountFlags::empty(), None).expect("mounts a tmpfs");
}

pub fn filesystem(fstype: Option<FsType>) -> Capability {
    Capability {
        access: AccessType::Filesystem { fstype, mount_flags: MountFlags::default(), group: None },
        mode: AccessMode::SingleNodeMultiWriter,
    }
}

pub fn block() -> Capability {
    Capability { access: AccessType::Block, mode: AccessMode::SingleNodeMultiWriter }
}

pub fn with_flags(capability: Capability, flags: &[&str]) -> Capability {
    let AccessType::Filesystem { fstype, group, .. } = capability.access else { panic!("no file system") };
    let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Capability { access: AccessType::Filesystem { fstype, mount_flags, group }, ..capability }
}

pub fn stage_request(id: &VolumeId, staging: &Path, capability: &Capability) -> StageRequest {
    StageRequest {
        handle: id.clone().into(),
        staging: staging.to_owned(),
        capability: capability.clone(),
        volume_context: BTreeMap::new(),
        publish_context: BTreeMap::new(),
        secrets: Secrets::default(),
    }
}

pub fn publish_request(id: &VolumeId, staging: &Path, target: &Path, capability: &Capability) -> PublishRequest {
    PublishRequest {
        handle: Handle::Id(id.clone()),
        staging: Some(staging.to_owned()),
        target: target.to_owned(),
        capability: capability.clone(),
        read_only: false,
        volume_context: BTreeMap::new(),
        publish_context: BTreeMap::new(),
        secrets: Secrets::default(),
    }
}

/// `unstage` by id.
pub fn unstage(node: &Node, id: &VolumeId, staging: &Path) -> Result<Outcome<()>> {
    node.unstage(&Handle::Id(id.clone()), staging)
}

/// `unpublish` by id.
pub fn unpublish(node: &Node, id: &VolumeId, target: &Path) -> Result<Outcome<()>> {
    node.unpublish(&Handle::Id(id.clone()), target)
}

/// Whether this error allows a final code: nothing was left.
pub fn is_final(error: &Error) -> bool {
    !matches!(
        error,
        Error::Failed { rollback: longshore::volume::Rollback::Unknown | longshore::volume::Rollback::Incomplete(_), .. }
            | Error::InProgress { .. }
            | Error::Busy { .. }
            | Error::BackendUnavailable { .. }
            | Error::Throttled { .. }
            | Error::StillInUse { .. }
    )
}

/// Bytes and total size of the file system at a path.
pub fn total(path: &Path) -> u64 {
    let open = File::open(path).expect("opens");
    os::fs::usage(std::os::fd::AsFd::as_fd(&open)).expect("statfs").total
}

/// Runs a program to its end; what it printed.
#[allow(clippy::disallowed_methods, reason = "the tools that a test looks with")]
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(program).args(arguments).output().expect("it is installed");
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}

/// More than the default.
fn inline_parameters() -> Vec<String> {
    ["size", "fsType", "discard", "backend", "mkfsOptions"].map(str::to_owned).to_vec()
}

//! What the tests of this backend share.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use super::{Fake, FakeConfig};
use crate::backend::{CapacityQuery, Connect, ConnectRequest, FreezeGuard, Provision, Quiesce, SnapshotSpec, Source, VolumeSpec};
use crate::volume::{
    BackendName, Bytes, Error, MountFlags, NodeId, Outcome, RawParameters, Result, Secrets, SnapshotId, TopologyRequirement,
    Volume, VolumeId,
};

pub(super) const GIB: Bytes = Bytes::GIB;

pub(super) fn backend_name() -> BackendName {
    "fake".parse().expect("a valid name")
}

pub(super) fn id(name: &str) -> VolumeId {
    VolumeId::derive(&backend_name(), name)
}

pub(super) fn snapshot_id(name: &str) -> SnapshotId {
    SnapshotId::derive(&backend_name(), name)
}

pub(super) fn node(name: &str) -> NodeId {
    name.parse().expect("a valid node id")
}

pub(super) fn raw(pairs: &[(&str, &str)]) -> RawParameters {
    RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
}

pub(super) fn member(name: &str, source: &str) -> SnapshotSpec {
    SnapshotSpec { id: snapshot_id(name), name: name.to_owned(), source: id(source), parameters: RawParameters::default() }
}

pub(super) fn spec(name: &str, capacity: Bytes) -> VolumeSpec {
    VolumeSpec {
        id: id(name),
        name: name.to_owned(),
        capacity,
        limit: None,
        source: None,
        parameters: serde_json::json!({ "node": { "mkfsOptions": "" }, "backend": { "medium": "block" } }),
        several_nodes: false,
        mutable: RawParameters::default(),
        topology: TopologyRequirement::default(),
    }
}

/// On the node `here`.
pub(super) fn fake(change: impl FnOnce(&mut FakeConfig)) -> Fake {
    let mut config = FakeConfig::named(backend_name());
    change(&mut config);
    Fake::new(config, node("here")).expect("a valid configuration")
}

/// Whether loop devices can be made; says so if not.
pub(super) fn loops_work() -> bool {
    let control = std::fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control");
    if let Err(error) = &control {
        eprintln!("SKIPPED: /dev/loop-control cannot be opened: {error}");
    }
    control.is_ok()
}

/// A backend whose devices go when the test ends, however it ends.
pub(super) struct Bench {
    pub(super) fake: Arc<Fake>,
    capacity: Bytes,
}

impl Bench {
    pub(super) fn new() -> Self {
        Bench::with(|_| ())
    }

    pub(super) fn with(change: impl FnOnce(&mut FakeConfig)) -> Self {
        let fake = Arc::new(fake(change));
        let capacity = fake.store.lock().available();
        Bench { fake, capacity }
    }

    pub(super) fn create(&self, name: &str, capacity: Bytes) -> Volume {
        self.fake.create(&spec(name, capacity), &Still::default()).expect("room for it")
    }

    pub(super) fn tmpfs(&self, name: &str, capacity: Bytes) -> Volume {
        let parameters = serde_json::json!({ "backend": { "medium": "filesystem" } });
        self.fake.create(&VolumeSpec { parameters, ..spec(name, capacity) }, &Still::default()).expect("room for it")
    }

    pub(super) fn volume(&self, name: &str) -> Volume {
        self.fake.find(&id(name)).expect("in memory").expect("it is there")
    }

    /// What is provisioned, as GetCapacity shows it.
    pub(super) fn provisioned(&self) -> Bytes {
        let left = self.fake.capacity(&CapacityQuery::default()).expect("in memory").available;
        Bytes(self.capacity.0 - left.0)
    }

    pub(super) fn connect(&self, name: &str) -> Result<Outcome<Source>> {
        self.connect_as(name, false)
    }

    pub(super) fn connect_as(&self, name: &str, read_only: bool) -> Result<Outcome<Source>> {
        let (publish_context, secrets) = (BTreeMap::new(), Secrets::default());
        let request = ConnectRequest {
            id: &id(name),
            parameters: &serde_json::Value::Null,
            publish_context: &publish_context,
            secrets: &secrets,
            mount_flags: &MountFlags::default(),
            read_only,
            earlier: None,
        };
        Connect::connect(self.fake.as_ref(), &request)
    }

    /// Writes past any device, into the memory itself.
    pub(super) fn write(&self, name: &str, offset: u64, bytes: &[u8]) {
        let contents = self.fake.contents_of(&id(name)).expect("a memfd");
        contents.file.write_all_at(bytes, offset).expect("memory");
    }

    pub(super) fn read(&self, name: &str, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![1; length];
        let contents = self.fake.contents_of(&id(name)).expect("a memfd");
        contents.file.read_exact_at(&mut bytes, offset).expect("inside");
        bytes
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for volume in self.fake.list(None, usize::MAX).unwrap_or_default() {
            if let Err(error) = self.fake.disconnect(&volume.id, None) {
                eprintln!("left behind: {error}");
            }
        }
    }
}

/// Remembers what it was to freeze.
#[derive(Default)]
pub(super) struct Still {
    pub(super) held: Mutex<Vec<Vec<VolumeId>>>,
}

struct Released;

impl FreezeGuard for Released {
    fn release(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Quiesce for Still {
    fn freeze(&self, volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        self.held.lock().expect("not poisoned").push(volumes.to_vec());
        Ok(Box::new(Released))
    }
}

/// Cannot hold, or finds in the end that it did not.
#[derive(Clone, Copy, Debug)]
pub(super) enum Broken {
    Hold,
    Release,
}

impl Quiesce for Broken {
    fn freeze(&self, _volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        match self {
            Broken::Hold => Err(Error::failed("freeze", "test", "cannot")),
            Broken::Release => Ok(Box::new(*self)),
        }
    }
}

impl FreezeGuard for Broken {
    fn release(self: Box<Self>) -> Result<()> {
        Err(Error::failed("thaw", "test", "it was thawed before"))
    }
}

//! The frame over a cloud in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::clock::Clock;
use super::{Cloud, CloudBackend, CloudOptions, Disk, Draft, Instance, MachineState, Policy, Tags};
use crate::backend::{Backend, Connect, ConnectRequest, FreezeGuard, Provision, Quiesce, SnapshotSpec, Source, VolumeSpec};
use crate::volume::{
    AccessMode, BackendName, Bytes, Error, NodeId, Outcome, RawParameters, Result, Rollback, SnapshotId, Topology,
    TopologyRequirement, Volume, VolumeId,
};

mod attachments;
mod batches;
mod changes;
mod clones;
pub(super) mod fake;
mod identity;
mod operations;
mod poller;
mod snapshots;
mod stand_in;
mod volumes;
mod zones;

use fake::FakeCloud;

/// So fast that a minute's wait takes little, so slow that a busy machine keeps up.
const SPEED: u32 = 30;
const GIB: Bytes = Bytes::GIB;

/// A cloud, one driver after the other, and what a CO keeps.
struct Bench {
    clock: Clock,
    cloud: Arc<FakeCloud>,
    backend: CloudBackend,
    /// By name, what was last answered.
    handles: Mutex<BTreeMap<String, VolumeId>>,
    snapshot_handles: Mutex<BTreeMap<String, SnapshotId>>,
}

impl Bench {
    /// Of a driver that has been up for an hour, and whose look-ups are believed.
    fn new() -> Bench {
        Bench::with_speed(SPEED)
    }

    fn with_speed(speed: u32) -> Bench {
        let clock = Clock::fast(speed, Duration::from_secs(3600));
        let cloud = Arc::new(FakeCloud::new(clock));
        for name in ["i-1", "i-2"] {
            let instance = Instance {
                id: node(name),
                zone: Some("a".to_owned()),
                site: None,
                kind: "m5.large".to_owned(),
                state: MachineState::Running,
                attached: [].into(),
                limit: Some(8),
                cards: [].into(),
            };
            cloud.state().instances.insert(node(name), instance);
        }
        let backend = driver(&cloud, clock);
        Bench { clock, cloud, backend, handles: Mutex::default(), snapshot_handles: Mutex::default() }
    }

    /// The driver is killed, and another one begins.
    fn restart(&mut self) {
        self.backend = driver(&self.cloud, Clock::fast(SPEED, Duration::ZERO));
    }

    fn provision(&self) -> &dyn Provision {
        self.backend.provision().expect("a controller")
    }

    fn create(&self, name: &str) -> Result<Volume> {
        self.create_as(&spec(name))
    }

    fn create_as(&self, spec: &VolumeSpec) -> Result<Volume> {
        self.provision().create(spec, &Nothing).map(|volume| self.answered(volume))
    }

    fn answered(&self, volume: Volume) -> Volume {
        self.handles.lock().expect("not poisoned").insert(volume.name.clone(), volume.id.clone());
        volume
    }

    /// The handle of a volume as the CO has it; of one that was never answered, what CreateVolume derives.
    fn id(&self, name: &str) -> VolumeId {
        self.handles.lock().expect("not poisoned").get(name).cloned().unwrap_or_else(|| id(name))
    }

    fn snapshot_id(&self, name: &str) -> SnapshotId {
        self.snapshot_handles.lock().expect("not poisoned").get(name).cloned().unwrap_or_else(|| snapshot_id(name))
    }

    /// As `ops` does: find first.
    fn ensure(&self, name: &str) -> Result<Volume> {
        match self.provision().find(&id(name))? {
            Some(volume) => Ok(self.answered(volume)),
            None => self.create(name),
        }
    }

    fn delete(&self, name: &str) -> Result<Outcome<()>> {
        self.provision().delete(&self.id(name))
    }

    fn attach(&self, name: &str, to: &str) -> Result<Outcome<String>> {
        let attach = self.backend.attach().expect("a controller");
        let context = attach.attach(&self.id(name), &node(to), AccessMode::SingleNodeWriter, false)?;
        Ok(context.map(|context| context["device"].clone()))
    }

    fn detach(&self, name: &str, from: &str) -> Result<Outcome<()>> {
        self.backend.attach().expect("a controller").detach(&self.id(name), Some(&node(from)))
    }

    fn attached(&self, name: &str) -> Vec<String> {
        let all = self.backend.attach().expect("a controller").attachments(&[self.id(name)]).expect("answered");
        all.into_values().flatten().map(|node| node.to_string()).collect()
    }
}

fn driver(cloud: &Arc<FakeCloud>, clock: Clock) -> CloudBackend {
    driver_of(Arc::clone(cloud) as _, clock)
}

fn driver_of(cloud: Arc<dyn Cloud>, clock: Clock) -> CloudBackend {
    let grace = cloud.constants().consistency.startup_grace;
    let backend = standby(cloud, clock);
    if clock.now() >= grace {
        backend.controller_as(|controller| &controller.memory).expect("a controller").has_acted();
    }
    backend
}

/// One that has not acted yet, however long it has been up.
fn standby(cloud: Arc<dyn Cloud>, clock: Clock) -> CloudBackend {
    CloudBackend::new(CloudOptions {
        existing: None,
        name: backend_name(),
        cluster: "ours".to_owned(),
        policy: Arc::new(TestPolicy),
        cloud: Some(cloud),
        connect: Box::new(NoNode),
        clock,
    })
}

fn backend_name() -> BackendName {
    "cloud".parse().expect("a name")
}

fn id(name: &str) -> VolumeId {
    VolumeId::derive(&backend_name(), name)
}

fn snapshot_id(name: &str) -> SnapshotId {
    SnapshotId::derive(&backend_name(), name)
}

fn node(name: &str) -> NodeId {
    name.parse().expect("a node id")
}

fn raw(pairs: &[(&str, &str)]) -> RawParameters {
    RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
}

fn spec(name: &str) -> VolumeSpec {
    VolumeSpec {
        id: id(name),
        name: name.to_owned(),
        capacity: GIB,
        limit: None,
        source: None,
        parameters: json!({"node": {"mkfsOptions": "x".repeat(300)}, "backend": {"type": "fast"}}),
        several_nodes: false,
        mutable: RawParameters::default(),
        topology: TopologyRequirement { requisite: Vec::new(), preferred: vec![zone("a")] },
    }
}

fn zone(name: &str) -> Topology {
    at(name, None)
}

fn at(zone: &str, site: Option<&str>) -> Topology {
    let site = site.map(|site| ("site".to_owned(), site.to_owned()));
    [("zone".to_owned(), zone.to_owned())].into_iter().chain(site).collect()
}

fn member(name: &str, source: VolumeId) -> SnapshotSpec {
    SnapshotSpec { id: snapshot_id(name), name: name.to_owned(), source, parameters: RawParameters::default() }
}

/// Whether the CO takes the error as the end of the matter.
fn is_final(error: &Error) -> bool {
    match error {
        Error::InProgress { .. } | Error::BackendUnavailable { .. } | Error::Throttled { .. } | Error::Busy { .. } => false,
        Error::Failed { rollback, .. } => *rollback == Rollback::Verified,
        _ => true,
    }
}

struct Nothing;

impl Quiesce for Nothing {
    fn freeze(&self, _: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        Ok(Box::new(Nothing))
    }
}

impl FreezeGuard for Nothing {
    fn release(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct NoNode;

impl Connect for NoNode {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        Err(Error::volume_not_found(request.id))
    }
    fn connected(&self, _: &VolumeId, _: Option<&Source>) -> Result<Option<Source>> {
        Ok(None)
    }
    fn disconnect(&self, _: &VolumeId, _: Option<&Source>) -> Result<Outcome<()>> {
        Ok(Outcome::Unchanged(()))
    }
    fn refresh(&self, id: &VolumeId, _: &Source) -> Result<Bytes> {
        Err(Error::volume_not_found(id))
    }
}

/// One mutable parameter, `speed`.
struct TestPolicy;

impl Policy for TestPolicy {
    fn kind(&self) -> &'static str {
        "fake-cloud"
    }
    fn access_modes(&self) -> &[AccessMode] {
        &AccessMode::SINGLE_NODE
    }
    fn parameters(&self, _: &RawParameters) -> Result<Value> {
        Ok(json!({"type": "fast"}))
    }
    fn topology(&self) -> Result<Option<Topology>> {
        Ok(None)
    }
    fn zone(&self, segments: &Topology) -> Option<String> {
        segments.segments().get("zone").cloned()
    }
    fn places(&self, disk: &Disk) -> Vec<Topology> {
        disk.zones.iter().map(|zone| at(zone, disk.site.as_deref())).collect()
    }
    fn site(&self, segments: &Topology) -> Result<Option<String>> {
        Ok(segments.segments().get("site").cloned())
    }
    fn placed(&self, mut settings: Value, site: &str) -> Result<Value> {
        settings["site"] = site.into();
        Ok(settings)
    }
    fn bounds(&self, _: &Value) -> (Bytes, Bytes) {
        (GIB, Bytes(GIB.0 << 14))
    }
    fn largest(&self, disk: &Disk) -> Result<Bytes> {
        // A type is a speed here; the slow one has small disks.
        Ok(Bytes(GIB.0 << if disk.settings["speed"] == "slow" { 6 } else { 14 }))
    }
    fn draft(&self, spec: &VolumeSpec) -> Result<Draft> {
        let tags = Tags::from([("team".to_owned(), "red".to_owned()), (super::tags::CLUSTER.to_owned(), "theirs".to_owned())]);
        Ok(Draft {
            settings: json!({"speed": spec.mutable.get("speed")}),
            tags,
            multi_attach: false,
            zones: spec.parameters["zones"].as_u64().map_or(1, |count| count as usize),
        })
    }
    fn check_mutable(&self, raw: &RawParameters) -> Result<()> {
        match raw.is_empty() || raw.get("speed").is_some() {
            true => Ok(()),
            false => Err(Error::invalid("mutable_parameters", "only speed is known")),
        }
    }
    fn amend(&self, disk: &Disk, _: Bytes, raw: &RawParameters) -> Result<Option<Value>> {
        let wanted = json!({"speed": raw.get("speed")});
        Ok((!raw.is_empty() && disk.settings != wanted).then_some(wanted))
    }
    fn cooldown(&self) -> Option<Duration> {
        Some(Duration::from_secs(6 * 3600))
    }
    fn check_snapshot(&self, _: &RawParameters) -> Result<()> {
        Ok(())
    }
    fn draft_snapshot(&self, _: &SnapshotSpec) -> Result<Draft> {
        Ok(Draft::default())
    }
}

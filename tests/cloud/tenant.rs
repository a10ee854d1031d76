//! A driver for one cloud, with what the emulators of all clouds are asked for, and the matrices that are the same for them: what is lost, and a
//! kill before each step.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::common::{Harness, capability, is_left_out, is_short};
use super::driver::{Called, GIB, is_final};

/// How fast the cloud's time is for the driver; what an emulator does takes so long in real time.
pub const SPEED: u32 = 20;
const GIVES_UP: Duration = Duration::from_secs(60);

/// An emulated cloud.
pub trait Emulated {
    /// Shown nowhere but to the API.
    const SECRETS: &'static [&'static str];

    /// Nothing of ours is left, and each request was valid.
    fn assert_empty(&self, when: &str);
}

pub struct Driver {
    pub harness: Harness,
    /// Whether calls are made again until they are answered for good.
    pub persistent: bool,
    /// How long a call may take: longer than the driver itself waits, also on a busy machine.
    pub patience: Duration,
    /// The id of a node of this name.
    pub nodes: fn(&str) -> String,
    pub creation: fn(&str) -> csi::CreateVolumeRequest,
    /// The parameters of the VolumeSnapshotClass.
    pub snapshot_class: HashMap<String, String>,
}

impl Driver {
    /// Around a driver that is configured, and not started yet.
    pub fn of(harness: Harness, nodes: fn(&str) -> String, creation: fn(&str) -> csi::CreateVolumeRequest) -> Driver {
        Driver { harness, persistent: true, patience: Duration::from_secs(20), nodes, creation, snapshot_class: HashMap::new() }
    }

    pub fn started(mut self) -> Driver {
        self.harness.start();
        self
    }

    /// With its steps printed, and failed on demand.
    pub fn with_faults(mut self) -> Driver {
        self.arm("");
        let path = self.harness.path("fault").display().to_string();
        self.harness.set("LONGSHORE_FAULT_FILE", &path);
        self
    }

    /// What the next steps do: `crash@3`. Counted from 1 again.
    pub fn arm(&mut self, order: &str) {
        static ORDERS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = ORDERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.harness.forget_log();
        fs::write(self.harness.path("fault"), format!("{number} {order}")).expect("the order");
    }

    pub fn reached(&self, step: u64) -> bool {
        self.harness.log().contains(&format!("fault: step {step}: "))
    }

    /// Makes a call again and again, as sidecars do, until it is answered for good; only once where we are not persistent.
    pub fn call<T, F>(&self, call: impl Fn(ControllerClient<Channel>) -> F) -> Called<T>
    where
        F: Future<Output = Called<tonic::Response<T>>>,
    {
        let begun = Instant::now();
        loop {
            let client = self.harness.controller();
            let answer = self.harness.block_on(async { tokio::time::timeout(self.patience, call(client)).await });
            let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("the caller's patience is over")));
            match answer.map(tonic::Response::into_inner) {
                Err(status) if self.persistent && !is_final(status.code()) && begun.elapsed() < GIVES_UP => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                answer => return answer,
            }
        }
    }

    pub fn create(&self, name: &str) -> Called<String> {
        self.create_as((self.creation)(name)).map(|volume| volume.volume_id)
    }

    pub fn create_as(&self, request: csi::CreateVolumeRequest) -> Called<csi::Volume> {
        let made = self.call(|mut client| {
            let request = request.clone();
            async move { client.create_volume(request).await }
        });
        Ok(made?.volume.expect("a volume"))
    }

    pub fn delete(&self, id: &str) -> Called<()> {
        let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        let deleted = self.call(|mut client| {
            let request = request.clone();
            async move { client.delete_volume(request).await }
        });
        deleted.map(drop)
    }

    pub fn attach(&self, id: &str, instance: &str) -> Called<HashMap<String, String>> {
        self.attach_as(id, instance, capability(Some("ext4")), false)
    }

    pub fn attach_as(
        &self,
        id: &str,
        instance: &str,
        capability: csi::VolumeCapability,
        readonly: bool,
    ) -> Called<HashMap<String, String>> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: (self.nodes)(instance),
            volume_capability: Some(capability),
            readonly,
            ..Default::default()
        };
        let attached = self.call(|mut client| {
            let request = request.clone();
            async move { client.controller_publish_volume(request).await }
        });
        attached.map(|answer| answer.publish_context)
    }

    pub fn detach(&self, id: &str, instance: &str) -> Called<()> {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: (self.nodes)(instance),
            ..Default::default()
        };
        let detached = self.call(|mut client| {
            let request = request.clone();
            async move { client.controller_unpublish_volume(request).await }
        });
        detached.map(drop)
    }

    pub fn expand(&self, id: &str, gib: i64) -> Called<i64> {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes: gib * GIB, limit_bytes: 0 }),
            volume_capability: Some(capability(Some("ext4"))),
            ..Default::default()
        };
        let grown = self.call(|mut client| {
            let request = request.clone();
            async move { client.controller_expand_volume(request).await }
        });
        grown.map(|answer| answer.capacity_bytes)
    }

    pub fn modify(&self, id: &str, parameters: &[(&str, &str)]) -> Called<()> {
        let mutable_parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = csi::ControllerModifyVolumeRequest { volume_id: id.to_owned(), mutable_parameters, ..Default::default() };
        let modified = self.call(|mut client| {
            let request = request.clone();
            async move { client.controller_modify_volume(request).await }
        });
        modified.map(drop)
    }

    /// Made, and ready to be used.
    pub fn snapshot(&self, name: &str, of: &str) -> Called<String> {
        let (name, source_volume_id) = (name.to_owned(), of.to_owned());
        let parameters = self.snapshot_class.clone();
        self.snapshot_as(csi::CreateSnapshotRequest { name, source_volume_id, parameters, ..Default::default() })
    }

    pub fn snapshot_as(&self, request: csi::CreateSnapshotRequest) -> Called<String> {
        let begun = Instant::now();
        loop {
            let made = self.call(|mut client| {
                let request = request.clone();
                async move { client.create_snapshot(request).await }
            });
            let snapshot = made?.snapshot.expect("a snapshot");
            if snapshot.ready_to_use || begun.elapsed() > GIVES_UP {
                return Ok(snapshot.snapshot_id);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn delete_snapshot(&self, id: &str) -> Called<()> {
        let request = csi::DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        let deleted = self.call(|mut client| {
            let request = request.clone();
            async move { client.delete_snapshot(request).await }
        });
        deleted.map(drop)
    }

    /// Each volume, with the nodes that it is published to.
    pub fn list(&self) -> Vec<(String, Vec<String>)> {
        let page = self.call(|mut client| async move { client.list_volumes(csi::ListVolumesRequest::default()).await });
        let entries = page.expect("a list").entries.into_iter();
        let entry = |entry: csi::list_volumes_response::Entry| {
            (entry.volume.expect("a volume").volume_id, entry.status.map(|status| status.published_node_ids).unwrap_or_default())
        };
        entries.map(entry).collect()
    }

    /// Nothing of ours is left, no secret was shown, and nothing panicked.
    pub fn assert_clean<C: Emulated>(&self, cloud: &C, when: &str) {
        cloud.assert_empty(when);
        let log = self.harness.log();
        assert!(C::SECRETS.iter().all(|secret| !log.contains(secret)), "a secret is in the log");
        assert!(!log.contains("panicked"), "{log}");
    }

    pub fn restored_from(&self, name: &str, id: &str) -> csi::CreateVolumeRequest {
        let snapshot = csi::volume_content_source::SnapshotSource { snapshot_id: id.to_owned() };
        self.made_of(name, csi::volume_content_source::Type::Snapshot(snapshot))
    }

    pub fn clone_of(&self, name: &str, id: &str) -> csi::CreateVolumeRequest {
        let volume = csi::volume_content_source::VolumeSource { volume_id: id.to_owned() };
        self.made_of(name, csi::volume_content_source::Type::Volume(volume))
    }

    /// Twice as large as its source.
    fn made_of(&self, name: &str, source: csi::volume_content_source::Type) -> csi::CreateVolumeRequest {
        let request = (self.creation)(name);
        let required_bytes = 2 * request.capacity_range.as_ref().expect("a range").required_bytes;
        csi::CreateVolumeRequest {
            volume_content_source: Some(csi::VolumeContentSource { r#type: Some(source) }),
            capacity_range: Some(csi::CapacityRange { required_bytes, limit_bytes: 0 }),
            ..request
        }
    }
}

pub fn code<T: std::fmt::Debug>(answer: Called<T>) -> (Code, String) {
    let status = answer.expect_err("it is refused");
    (status.code(), status.message().to_owned())
}

/// Raw block, for several nodes.
pub fn shared_block() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_type: Some(csi::volume_capability::AccessType::Block(csi::volume_capability::BlockVolume {})),
        access_mode: Some(csi::volume_capability::AccessMode {
            mode: csi::volume_capability::access_mode::Mode::MultiNodeMultiWriter.into(),
        }),
    }
}

/// Two drivers make the same call at the same time.
pub fn both<T: Send + std::fmt::Debug>(drivers: &[Driver; 2], call: impl Fn(&Driver) -> Called<T> + Sync) -> Vec<T> {
    let call = &call;
    std::thread::scope(|scope| {
        let all: Vec<_> = drivers.iter().map(|driver| scope.spawn(move || call(driver))).collect();
        all.into_iter().map(|one| one.join().expect("no panic").expect("answered")).collect()
    })
}

/// The calls of a volume's life that change something, and the request that each sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Create,
    Attach,
    Expand,
    Modify,
    Snapshot,
    Restore,
    Clone,
    DeleteSnapshot,
    Detach,
    Delete,
}

pub const CALLS: [Call; 10] = [
    Call::Create,
    Call::Attach,
    Call::Expand,
    Call::Modify,
    Call::Snapshot,
    Call::Restore,
    Call::Clone,
    Call::DeleteSnapshot,
    Call::Detach,
    Call::Delete,
];

/// A cloud in which a volume lives.
pub trait Stage: Emulated + Sized {
    /// As figures and tests call it.
    const NAME: &'static str;
    /// The backend's name: what handles begin with.
    const BACKEND: &'static str;
    /// What changes of a volume: a VolumeAttributesClass.
    const MUTABLE: &'static [(&'static str, &'static str)];
    /// Those that the matrices are about.
    const CALLS: &'static [Call] = &CALLS;

    /// `None`, and said, where it cannot be had.
    fn open() -> Option<Self>;
    /// Configured, with `more` of the configuration, and not started.
    fn driver_with(&self, more: &str) -> Driver;
    fn driver(&self) -> Driver {
        self.driver_with("")
    }
    /// The handle that the cloud's own CSI driver would give the one disk there is.
    fn handle(&self) -> String;
    /// Makes the one disk there is one of another program's.
    fn disown(&self);
    /// The request that a call sends, as the cloud calls it.
    fn request_of(call: Call) -> &'static str;
    /// A request for a volume, made one for a volume that can change.
    fn changeable(request: csi::CreateVolumeRequest) -> csi::CreateVolumeRequest;
    /// Loses so many requests, `before` they are done or `after`.
    fn lose(&self, request: &'static str, kind: &'static str, times: u32);
    /// Loses none.
    fn forget(&self);
    /// What there is, without what is another in each cell.
    fn summary(&self) -> Vec<String>;
    /// Whether what a call has begun is found by its name alone, without an id.
    fn can_be_undone(_: Call) -> bool {
        true
    }
}

/// What is otherwise about a cloud whose snapshots are of another kind.
pub trait Variant {
    type Cloud: Stage;
    const NAME: &'static str;
    /// Whatever has to be set in the cloud.
    fn prepare(_: &Self::Cloud) {}
    fn driver_with(cloud: &Self::Cloud, more: &str) -> Driver;
    /// `None`: as of the cloud.
    fn request_of(call: Call) -> Option<&'static str>;
    fn can_be_undone(call: Call) -> bool {
        Self::Cloud::can_be_undone(call)
    }
}

pub struct With<V: Variant>(pub V::Cloud);

impl<V: Variant> std::ops::Deref for With<V> {
    type Target = V::Cloud;

    fn deref(&self) -> &V::Cloud {
        &self.0
    }
}

impl<V: Variant> Emulated for With<V> {
    const SECRETS: &'static [&'static str] = V::Cloud::SECRETS;

    fn assert_empty(&self, when: &str) {
        self.0.assert_empty(when);
    }
}

impl<V: Variant> Stage for With<V> {
    const NAME: &'static str = V::NAME;
    const BACKEND: &'static str = V::Cloud::BACKEND;
    const MUTABLE: &'static [(&'static str, &'static str)] = V::Cloud::MUTABLE;
    const CALLS: &'static [Call] = &[Call::Snapshot, Call::Restore, Call::DeleteSnapshot];

    fn open() -> Option<With<V>> {
        let cloud = V::Cloud::open()?;
        V::prepare(&cloud);
        Some(With(cloud))
    }

    fn driver_with(&self, more: &str) -> Driver {
        V::driver_with(&self.0, more)
    }

    fn handle(&self) -> String {
        self.0.handle()
    }

    fn disown(&self) {
        self.0.disown();
    }

    fn request_of(call: Call) -> &'static str {
        V::request_of(call).unwrap_or_else(|| V::Cloud::request_of(call))
    }

    fn changeable(request: csi::CreateVolumeRequest) -> csi::CreateVolumeRequest {
        V::Cloud::changeable(request)
    }

    fn lose(&self, request: &'static str, kind: &'static str, times: u32) {
        self.0.lose(request, kind, times);
    }

    fn forget(&self) {
        self.0.forget();
    }

    fn summary(&self) -> Vec<String> {
        self.0.summary()
    }

    fn can_be_undone(call: Call) -> bool {
        V::can_be_undone(call)
    }
}

/// A driver, and a volume of a name of its own for each cell.
pub struct Story<C> {
    pub cloud: C,
    pub driver: Driver,
    cell: u32,
    /// The handles that the CO keeps.
    ids: [Option<String>; 3],
}

impl<C: Stage> Story<C> {
    pub fn start() -> Option<Story<C>> {
        let cloud = C::open()?;
        let driver = cloud.driver().with_faults().started();
        Some(Story { cloud, driver, cell: 0, ids: Default::default() })
    }

    pub fn id(&self) -> String {
        self.ids[0].clone().unwrap_or_else(|| format!("{}:story-{}", C::BACKEND, self.cell))
    }

    pub fn then(&self) -> String {
        self.ids[1].clone().unwrap_or_else(|| format!("{}:then-{}", C::BACKEND, self.cell))
    }

    /// Makes what a call needs.
    pub fn prepare(&mut self, call: Call) {
        self.cell += 1;
        self.ids = Default::default();
        if call != Call::Create {
            self.perform(Call::Create).expect("created");
        }
        if call == Call::Detach {
            self.perform(Call::Attach).expect("attached");
        }
        if [Call::Restore, Call::DeleteSnapshot].contains(&call) {
            self.perform(Call::Snapshot).expect("a snapshot");
        }
    }

    pub fn perform(&mut self, call: Call) -> Called<()> {
        let (driver, id, then, cell) = (&self.driver, self.id(), self.then(), self.cell);
        let make = |request| driver.create_as(C::changeable(request)).map(|volume| volume.volume_id);
        let (place, made) = match call {
            Call::Create => (0, make((driver.creation)(&format!("story-{cell}")))),
            Call::Snapshot => (1, driver.snapshot(&format!("then-{cell}"), &id)),
            Call::Restore => (2, make(driver.restored_from(&format!("copy-{cell}"), &then))),
            Call::Clone => (2, make(driver.clone_of(&format!("copy-{cell}"), &id))),
            Call::Attach => return driver.attach(&id, "n1").map(drop),
            Call::Expand => return driver.expand(&id, 20).map(drop),
            Call::Modify => return driver.modify(&id, C::MUTABLE),
            Call::DeleteSnapshot => return driver.delete_snapshot(&then),
            Call::Detach => return driver.detach(&id, "n1"),
            Call::Delete => return driver.delete(&id),
        };
        self.ids[place] = Some(made?);
        Ok(())
    }

    pub fn undisturbed(&mut self, call: Call) -> Vec<String> {
        self.prepare(call);
        self.perform(call).expect("undisturbed");
        let state = self.cloud.summary();
        self.clear(&format!("after {call:?}"));
        state
    }

    /// Undoes all of it, whatever was answered.
    pub fn clear(&self, when: &str) {
        let done = |answer: Called<()>, what: &str| {
            answer.unwrap_or_else(|status| panic!("{what} {when}: {status}\n{}", self.driver.harness.log()))
        };
        done(self.driver.detach(&self.id(), "n1"), "detach");
        done(self.driver.delete_snapshot(&self.then()), "delete the snapshot");
        let copy = self.ids[2].clone().unwrap_or_else(|| format!("{}:copy-{}", C::BACKEND, self.cell));
        done(self.driver.delete(&copy), "delete the copy");
        done(self.driver.delete(&self.id()), "delete");
        self.driver.assert_clean(&self.cloud, when);
    }
}

/// What a request does, or does not, and nobody hears of it: the call is made again, or undone.
pub fn lost<C: Stage>(kind: &'static str) {
    let Some(mut story) = Story::<C>::start() else { return };
    let mut cells = 0;
    for (number, call) in C::CALLS.iter().copied().enumerate() {
        let expected = story.undisturbed(call);
        for again in [true, false].into_iter().filter(|again| *again || C::can_be_undone(call)) {
            // Once, so that the client's own attempt comes through; and so often that the call ends.
            for times in [1, 4] {
                if is_short() && (times == 1) == (again == number.is_multiple_of(2)) {
                    continue;
                }
                let when = format!("{call:?}, {kind} {times} times, {}", if again { "made again" } else { "undone" });
                story.prepare(call);
                story.cloud.lose(C::request_of(call), kind, times);
                story.driver.persistent = false;
                let answer = story.perform(call);
                story.driver.persistent = true;
                if again {
                    story
                        .perform(call)
                        .unwrap_or_else(|status| panic!("{when}: {status} after {answer:?}\n{}", story.driver.harness.log()));
                    assert_eq!(story.cloud.summary(), expected, "{when}\n{}", story.driver.harness.log());
                } else {
                    // What the call left must not meet the next one.
                    story.cloud.forget();
                }
                story.clear(&when);
                cells += 1;
            }
        }
    }
    println!("FIGURE: {} {kind}: {cells} cells", C::NAME);
}

/// The driver is killed before each step of each call, which is made again, or undone.
pub fn killed_before_every_step<C: Stage>() {
    let Some(mut story) = Story::<C>::start() else { return };
    let (mut cells, mut kills) = (0, 0);
    for call in C::CALLS.iter().copied() {
        let expected = story.undisturbed(call);
        for again in [true, false].into_iter().filter(|again| *again || C::can_be_undone(call)) {
            for step in (1..).filter(|step| !is_left_out(*step, again)) {
                let when = format!("{call:?}, killed at step {step} and {}", if again { "made again" } else { "undone" });
                story.prepare(call);
                story.driver.arm(&format!("crash@{step}"));
                story.driver.persistent = false;
                let mut answer = story.perform(call);
                // On a slow machine a look before the first step may have failed.
                for _ in 0..5 {
                    if story.driver.reached(step) || answer.as_ref().err().is_none_or(|status| is_final(status.code())) {
                        break;
                    }
                    answer = story.perform(call);
                }
                story.driver.persistent = true;
                if !story.driver.reached(step) {
                    story.driver.arm("");
                    assert!(step > 1, "{call:?} has no step");
                    answer.unwrap_or_else(|status| panic!("{when}: {status}"));
                    story.clear(&when);
                    break;
                }
                assert!(story.driver.harness.wait_end(), "{when}: it was not killed: {answer:?}");
                story.driver.arm("");
                story.driver.harness.start();
                (cells, kills) = (cells + 1, kills + 1);
                if again {
                    story.perform(call).unwrap_or_else(|status| panic!("{when}: {status}\n{}", story.driver.harness.log()));
                    assert_eq!(story.cloud.summary(), expected, "{when}\n{}", story.driver.harness.log());
                }
                story.clear(&when);
            }
        }
    }
    println!("FIGURE: {} crash matrix: {cells} cells, {kills} kills", C::NAME);
}

/// A disk that another program made is used by the handle that the cloud's own CSI driver gave it, where the configuration says so: its life
/// but for its beginning. Nothing of it is changed that was not asked for.
pub fn existing_disk_by_its_handle<C: Stage>() {
    let Some(cloud) = C::open() else { return };
    let driver = cloud.driver().started();
    let own = driver.create("data").expect("created");
    let handle = cloud.handle();
    cloud.disown();

    // As a rule it is no volume of ours, by whatever handle.
    assert_eq!(code(driver.attach(&handle, "n1")).0, Code::NotFound);
    driver.delete(&handle).expect("there is no such volume");
    driver.detach(&handle, "n1").expect("there is no such volume");
    let (refused, why) = code(driver.attach(&own, "n1"));
    assert!(refused == Code::FailedPrecondition && why.contains("restore these tags"), "{refused}: {why}");
    drop(driver);

    let driver = cloud.driver_with("existingDisks: use").started();
    let context = driver.attach(&handle, "n1").expect("attached");
    assert!(!context.contains_key("madeEmpty"), "nobody knows that it is blank: {context:?}");
    assert_eq!(driver.attach(&handle, "n1").expect("again"), context);
    assert_eq!(code(driver.attach(&handle, "n2")).0, Code::FailedPrecondition);
    assert_eq!(driver.expand(&handle, 20).expect("grown"), 20 * GIB);
    let snapshot = driver.snapshot("then", &handle).expect("a snapshot");
    assert_eq!(driver.snapshot("then", &handle).expect("again"), snapshot);
    let restored = driver.create_as(driver.restored_from("restored", &snapshot)).expect("restored").volume_id;
    let copy = driver.create_as(driver.clone_of("copy", &handle)).expect("copied").volume_id;
    assert_eq!(driver.list().len(), 2, "only what this driver made is listed");
    driver.delete(&restored).expect("deleted");
    driver.delete(&copy).expect("deleted");
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.detach(&handle, "n1").expect("detached");
    driver.detach(&handle, "n1").expect("again");
    assert!(driver.attach(&handle, "n2").is_ok(), "attached elsewhere");
    driver.detach(&handle, "n2").expect("detached");
    let before = cloud.summary();
    let (refused, why) = code(driver.delete(&handle));
    assert!(refused == Code::FailedPrecondition && why.contains("existingDisks") && why.contains("Retain"), "{refused}: {why}");
    assert_eq!(cloud.summary(), before);
    drop(driver);

    let driver = cloud.driver_with("existingDisks: delete").started();
    driver.delete(&handle).expect("deleted");
    driver.delete(&handle).expect("again");
    driver.assert_clean(&cloud, "at the end");
}

/// A disk of a volume of ours is not also a volume by another handle: two PersistentVolumes would share it.
pub fn own_disk_is_refused_by_the_handle_of_another_driver<C: Stage>() {
    let Some(cloud) = C::open() else { return };
    let driver = cloud.driver_with("existingDisks: delete").started();
    let own = driver.create("data").expect("created");
    let handle = cloud.handle();
    for (refused, why) in [code(driver.attach(&handle, "n1")), code(driver.delete(&handle)), code(driver.expand(&handle, 20))] {
        assert!(refused == Code::FailedPrecondition && why.contains("use the handle of that volume"), "{refused}: {why}");
    }
    driver.delete(&own).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

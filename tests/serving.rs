//! The driver over its socket: who it is, what it says it can, how it refuses, how it ends.
//!
//! The backend here is a stand-in that can be told to be down, to hang, or to take its time; what volumes really do is
//! tested elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use longshore::backend::registry::Registry;
use longshore::backend::{
    Backend, CapacityAnswer, CapacityQuery, Connect, ConnectRequest, Provision, Quiesce, Source, VolumeSpec,
};
use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use longshore::csi::identity_client::IdentityClient;
use longshore::ops::Controller;
use longshore::ops::lock::Locks;
use longshore::ops::task::Tasks;
use longshore::rpc::{Parts, Services};
use longshore::server::{self, Endpoint};
use longshore::volume::{AccessMode, BackendName, Bytes, Error, Outcome, RawParameters, Result, Volume, VolumeId};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::transport::{Channel, Uri};

/// Something that blocks until it is opened.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn shut(&self) {
        *self.shut.lock().expect("no panic") = true;
    }

    fn open(&self) {
        *self.shut.lock().expect("no panic") = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let shut = self.shut.lock().expect("no panic");
        drop(self.opened.wait_while(shut, |shut| *shut).expect("no panic"));
    }
}

struct Stand {
    name: BackendName,
    down: AtomicBool,
    probes: AtomicUsize,
    probing: Gate,
    creating: Gate,
    created: AtomicUsize,
    volumes: Mutex<BTreeMap<VolumeId, Volume>>,
}

impl Stand {
    fn new() -> Arc<Self> {
        Arc::new(Stand {
            name: "stand".parse().expect("a name"),
            down: AtomicBool::new(false),
            probes: AtomicUsize::new(0),
            probing: Gate::default(),
            creating: Gate::default(),
            created: AtomicUsize::new(0),
            volumes: Mutex::default(),
        })
    }
}

impl Backend for Stand {
    fn name(&self) -> &BackendName {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "stand-in"
    }

    fn probe(&self) -> Result<()> {
        self.probes.fetch_add(1, Ordering::SeqCst);
        self.probing.pass();
        match self.down.load(Ordering::SeqCst) {
            false => Ok(()),
            true => Err(Error::BackendDown { backend: "stand".to_owned(), reason: "unplugged; plug it in".to_owned() }),
        }
    }

    fn access_modes(&self) -> &[AccessMode] {
        &AccessMode::SINGLE_NODE
    }

    fn provision(&self) -> Option<&dyn Provision> {
        Some(self)
    }

    fn connect(&self) -> &dyn Connect {
        self
    }
}

impl Provision for Stand {
    fn parameters(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        match raw.is_empty() {
            true => Ok(serde_json::Value::Null),
            false => Err(Error::invalid("parameters", "none are known")),
        }
    }

    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.volumes.lock().expect("no panic").get(id).cloned())
    }

    fn create(&self, spec: &VolumeSpec, _quiesce: &dyn Quiesce) -> Result<Volume> {
        self.creating.pass();
        if spec.name == "panics" {
            panic!("a bug in a backend");
        }
        let volume = Volume {
            id: spec.id.clone(),
            name: spec.name.clone(),
            capacity: spec.capacity,
            source: None,
            parameters: spec.parameters.clone(),
            topology: None,
        };
        self.volumes.lock().expect("no panic").insert(volume.id.clone(), volume.clone());
        self.created.fetch_add(1, Ordering::SeqCst);
        Ok(volume)
    }

    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        match self.volumes.lock().expect("no panic").remove(id) {
            Some(_) => Ok(Outcome::Changed(())),
            None => Ok(Outcome::Unchanged(())),
        }
    }

    fn list(&self, _after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>> {
        Ok(self.volumes.lock().expect("no panic").values().take(max).cloned().collect())
    }

    fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        Ok(CapacityAnswer { available: Bytes::GIB, maximum: Bytes::GIB, minimum: query.least })
    }
}

impl Connect for Stand {
    fn connect(&self, _request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        Err(Error::Unsupported { what: "connecting".to_owned(), reason: "a stand-in".to_owned() })
    }

    fn connected(&self, _id: &VolumeId, _hint: Option<&Source>) -> Result<Option<Source>> {
        Ok(None)
    }

    fn disconnect(&self, _id: &VolumeId, _hint: Option<&Source>) -> Result<Outcome<()>> {
        Ok(Outcome::Unchanged(()))
    }

    fn refresh(&self, _id: &VolumeId, _source: &Source) -> Result<Bytes> {
        Ok(Bytes(0))
    }
}

/// A driver that serves on a socket of its own, in controller mode.
struct Driver {
    stand: Arc<Stand>,
    services: Services,
    path: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<server::Result<()>>,
    _folder: tempfile::TempDir,
}

impl Driver {
    async fn start(grace: Duration) -> Driver {
        logged();
        let stand = Stand::new();
        let registry = Registry::new(vec![stand.clone()]).expect("one backend");
        let locks = Locks::default();
        let controller = Arc::new(Controller::new(registry.clone(), locks.clone(), None));
        let services = Services::new(Parts {
            name: "csi.longshore.dev".to_owned(),
            version: "1.2.3".to_owned(),
            registry,
            controller: Some(controller),
            node: None,
            tasks: Tasks::default(),
            locks,
        });
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("csi.sock");
        let endpoint: Endpoint = path.to_str().expect("a plain path").parse().expect("an endpoint");
        let (stop, stopped) = oneshot::channel();
        let shared = services.clone();
        let serving = tokio::spawn(async move {
            let stopped = async { stopped.await.unwrap_or_default() };
            server::serve(&endpoint, shared, stopped, grace).await
        });
        Driver { stand, services, path, stop: Some(stop), serving, _folder: folder }
    }

    async fn channel(&self) -> Channel {
        let path = self.path.clone();
        let connect = move |_: Uri| {
            let path = path.clone();
            async move { Ok::<_, io::Error>(TokioIo::new(connected(&path).await)) }
        };
        tonic::transport::Endpoint::from_static("http://csi")
            .connect_with_connector(tower::service_fn(connect))
            .await
            .expect("connected")
    }

    async fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel().await)
    }

    async fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel().await)
    }

    fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.send(()).expect("it still serves");
        }
    }
}

/// Connects as soon as the driver listens.
async fn connected(path: &Path) -> UnixStream {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return stream,
            Err(error) if Instant::now() > until => panic!("{}: {error}", path.display()),
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

/// What this test process has logged so far.
fn logged() -> &'static Mutex<Vec<u8>> {
    static LOG: OnceLock<&'static Mutex<Vec<u8>>> = OnceLock::new();
    struct Writer(&'static Mutex<Vec<u8>>);
    impl io::Write for Writer {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(text);
            Ok(text.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    LOG.get_or_init(|| {
        let log: &'static Mutex<Vec<u8>> = Box::leak(Box::default());
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || Writer(log))
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("the only one");
        log
    })
}

/// The lines of the log that hold all of `words`.
fn lines(words: &[&str]) -> Vec<String> {
    let log = String::from_utf8_lossy(&logged().lock().expect("no panic")).into_owned();
    log.lines().filter(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned).collect()
}

fn create(name: &str) -> csi::CreateVolumeRequest {
    let block = csi::volume_capability::AccessType::Block(csi::volume_capability::BlockVolume {});
    let mode = csi::volume_capability::access_mode::Mode::SingleNodeWriter;
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![csi::VolumeCapability {
            access_type: Some(block),
            access_mode: Some(csi::volume_capability::AccessMode { mode: mode.into() }),
        }],
        ..Default::default()
    }
}

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn identity_says_who_what_and_ready() {
    let driver = Driver::start(LONG).await;
    let mut identity = driver.identity().await;
    let info = identity.get_plugin_info(csi::GetPluginInfoRequest {}).await.expect("info").into_inner();
    assert_eq!((info.name.as_str(), info.vendor_version.as_str()), ("csi.longshore.dev", "1.2.3"));
    let plugin = identity.get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {}).await.expect("capabilities");
    assert_eq!(plugin.into_inner().capabilities.len(), 1, "a stand-in offers no topology, groups, growth or changed blocks");
    let probe = identity.probe(csi::ProbeRequest {}).await.expect("probe").into_inner();
    assert_eq!(probe.ready, Some(true));
}

#[tokio::test]
async fn a_good_probe_is_kept_and_a_bad_one_names_the_backend() {
    let driver = Driver::start(LONG).await;
    let mut identity = driver.identity().await;
    driver.stand.down.store(true, Ordering::SeqCst);
    let status = identity.probe(csi::ProbeRequest {}).await.expect_err("down");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("stand") && status.message().contains("plug it in"), "{}", status.message());

    driver.stand.down.store(false, Ordering::SeqCst);
    let before = driver.stand.probes.load(Ordering::SeqCst);
    let started = Instant::now();
    for _ in 0..50 {
        identity.probe(csi::ProbeRequest {}).await.expect("up again");
    }
    let most = 1 + usize::try_from(started.elapsed().as_secs()).expect("a few seconds");
    assert!(driver.stand.probes.load(Ordering::SeqCst) - before <= most, "a good answer holds for a second");
}

#[tokio::test]
async fn a_backend_that_hangs_is_asked_once_and_holds_nobody_up() {
    let driver = Driver::start(LONG).await;
    driver.stand.probing.shut();
    let mut asking = Vec::new();
    for _ in 0..8 {
        let mut identity = driver.identity().await;
        asking.push(tokio::spawn(async move { identity.probe(csi::ProbeRequest {}).await }));
    }
    for asked in asking {
        let status = asked.await.expect("no panic").expect_err("it hangs");
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("backend stand") && status.message().contains("3s"), "{}", status.message());
    }
    assert_eq!(driver.stand.probes.load(Ordering::SeqCst), 1);
    driver.stand.probing.open();
}

#[tokio::test]
async fn what_is_not_offered_and_what_is_not_in_this_mode_is_unimplemented() {
    let driver = Driver::start(LONG).await;
    let mut controller = driver.controller().await;
    let request =
        csi::CreateSnapshotRequest { name: "s".to_owned(), source_volume_id: "stand:a".to_owned(), ..Default::default() };
    let status = controller.create_snapshot(request).await.expect_err("no snapshots");
    assert_eq!(status.code(), Code::Unimplemented);
    let mut node = csi::node_client::NodeClient::new(driver.channel().await);
    let status = node.node_get_info(csi::NodeGetInfoRequest {}).await.expect_err("controller mode");
    assert_eq!(status.code(), Code::Unimplemented);
    let capabilities = controller.controller_get_capabilities(csi::ControllerGetCapabilitiesRequest {}).await.expect("a list");
    assert_eq!(capabilities.into_inner().capabilities.len(), 6, "volumes: make, list, get, clone, capacity; several writers");
}

#[tokio::test]
async fn volumes_come_are_listed_and_go_as_csi_sanity_expects() {
    let driver = Driver::start(LONG).await;
    let mut controller = driver.controller().await;
    let code = |result: Result<_, tonic::Status>| result.map(|_: tonic::Response<_>| ()).expect_err("refused").code();

    let volume = controller.create_volume(create("lives")).await.expect("made").into_inner().volume.expect("a volume");
    assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("stand:lives", 1 << 30));
    controller.create_volume(create("lives")).await.expect("made already");
    assert_eq!(driver.stand.created.load(Ordering::SeqCst), 1);

    let list = controller.list_volumes(csi::ListVolumesRequest::default()).await.expect("listed").into_inner();
    assert_eq!(list.entries.len(), 1);
    let token = csi::ListVolumesRequest { starting_token: "invalid-token".to_owned(), ..Default::default() };
    assert_eq!(code(controller.list_volumes(token).await.map(|_| tonic::Response::new(()))), Code::Aborted);
    let negative = csi::ListVolumesRequest { max_entries: -1, ..Default::default() };
    assert_eq!(code(controller.list_volumes(negative).await.map(|_| tonic::Response::new(()))), Code::InvalidArgument);
    assert_eq!(code(controller.create_volume(create("")).await.map(|_| tonic::Response::new(()))), Code::InvalidArgument);

    for id in ["stand:lives", "stand:lives", "fake-vol-id"] {
        let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        controller.delete_volume(request).await.expect(id);
    }
    let elsewhere = csi::DeleteVolumeRequest { volume_id: "other:lives".to_owned(), ..Default::default() };
    let status = controller.delete_volume(elsewhere).await.expect_err("that backend is not here");
    assert_eq!(status.code(), Code::Unavailable, "it may well exist: {}", status.message());
    assert_eq!(lines(&["rpc=\"CreateVolume\"", "id=\"lives\"", "outcome=\"changed\"", "INFO"]).len(), 1);
    assert_eq!(lines(&["rpc=\"CreateVolume\"", "id=\"lives\"", "outcome=\"unchanged\"", "INFO"]).len(), 1);
}

#[tokio::test]
async fn a_refusal_is_one_line_and_no_secret_is_in_the_log() {
    let driver = Driver::start(LONG).await;
    let mut controller = driver.controller().await;
    let request = csi::CreateVolumeRequest {
        secrets: HashMap::from([("passphrase".to_owned(), "hunter2-in-clear".to_owned())]),
        volume_capabilities: vec![],
        ..create("refused")
    };
    controller.create_volume(request).await.expect_err("no capabilities");
    let told = lines(&["rpc=\"CreateVolume\"", "id=\"refused\"", "code="]);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains("WARN") && told[0].contains("code=InvalidArgument") && told[0].contains("final=true"),
        "{}",
        told[0]
    );
    assert!(told[0].contains("volume_capabilities"), "{}", told[0]);
    assert_eq!(lines(&["called", "id=\"refused\"", "(1 hidden)"]).len(), 1, "the request itself, at the trace level");
    assert!(lines(&["hunter2-in-clear"]).is_empty());
}

#[tokio::test]
async fn a_panic_is_an_answer_that_is_not_final_and_the_driver_lives_on() {
    let driver = Driver::start(LONG).await;
    let mut controller = driver.controller().await;
    let status = controller.create_volume(create("panics")).await.expect_err("a bug");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(lines(&["id=\"panics\"", "ERROR", "ended without an answer"]).len(), 1);
    controller.create_volume(create("after-the-panic")).await.expect("others are served");
}

#[tokio::test]
async fn work_outlives_its_caller_and_the_end_waits_for_it() {
    let mut driver = Driver::start(LONG).await;
    let mut controller = driver.controller().await;
    driver.stand.creating.shut();
    let mut impatient = tonic::Request::new(create("outlives"));
    impatient.set_timeout(Duration::from_millis(50));
    controller.create_volume(impatient).await.expect_err("the caller gave up");
    let status = controller.create_volume(create("outlives")).await.expect_err("it is still made");
    assert_eq!(status.code(), Code::Aborted);
    assert!(status.message().contains("create volume"), "{}", status.message());

    driver.stop();
    while driver.services.readiness().is_ready() {
        tokio::task::yield_now().await;
    }
    assert!(!driver.serving.is_finished(), "it waits");
    driver.stand.creating.open();
    driver.serving.await.expect("no panic").expect("a clean end");
    assert_eq!(driver.stand.created.load(Ordering::SeqCst), 1);
    assert!(!driver.path.exists(), "the socket's file is gone");
    assert_eq!(lines(&["id=\"outlives\"", "outcome=\"changed\"", "caller_gone=true"]).len(), 1);
}

#[tokio::test]
async fn the_end_does_not_wait_for_ever_and_says_what_still_runs() {
    let mut driver = Driver::start(Duration::from_millis(100)).await;
    let mut controller = driver.controller().await;
    driver.stand.creating.shut();
    let call = tokio::spawn(async move { controller.create_volume(create("stuck")).await });
    while driver.services.locks().running().is_empty() {
        tokio::task::yield_now().await;
    }
    driver.stop();
    let stand = driver.stand.clone();
    driver.serving.await.expect("no panic").expect("an end");
    assert_eq!(lines(&["WARN", "stopped with work unfinished", "create volume of volume stand:stuck"]).len(), 1);
    stand.creating.open();
    // Whatever the client was told, it was told something.
    drop(call.await.expect("no panic"));
}

//! The driver over its socket: who it is, what it says it can, how it refuses, how it ends.
//!
//! The backend here is a stand-in that can be made to be down, to hang, or to take its time; what volumes really do is
//! tested elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use hyper_util::rt::TokioIo;
use longshore::backend::registry::Registry;
use longshore::backend::{
    Backend, CapacityAnswer, CapacityQuery, ChangedBlocks, Connect, ConnectRequest, PoolUsage, Provision, Quiesce, SnapshotSpec,
    Snapshots, Source, Usage, VolumeSpec,
};
use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use longshore::csi::identity_client::IdentityClient;
use longshore::csi::snapshot_metadata_client::SnapshotMetadataClient;
use longshore::metrics::Metrics;
use longshore::ops::Controller;
use longshore::ops::lock::Locks;
use longshore::ops::task::Tasks;
use longshore::rpc::{Parts, Services};
use longshore::server::{self, Endpoint, Settings};
use longshore::volume::{
    AccessMode, BackendName, Bytes, Error, Extent, Outcome, RawParameters, Result, Snapshot, SnapshotId, Volume, VolumeId,
};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Uri};
use tonic::{Code, Streaming};

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
    measuring: Gate,
    measured: AtomicUsize,
    creating: Gate,
    created: AtomicUsize,
    reading: Gate,
    reads: AtomicUsize,
    volumes: Mutex<BTreeMap<VolumeId, Volume>>,
}

impl Stand {
    fn new(name: &str) -> Arc<Self> {
        Arc::new(Stand {
            name: name.parse().expect("a name"),
            down: AtomicBool::new(false),
            probes: AtomicUsize::new(0),
            probing: Gate::default(),
            measuring: Gate::default(),
            measured: AtomicUsize::new(0),
            creating: Gate::default(),
            created: AtomicUsize::new(0),
            reading: Gate::default(),
            reads: AtomicUsize::new(0),
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
            true => Err(Error::BackendUnavailable { backend: self.name.to_string(), reason: "unplugged; plug it in".to_owned() }),
        }
    }

    fn usage(&self) -> Usage {
        self.measured.fetch_add(1, Ordering::SeqCst);
        self.measuring.pass();
        let (total, provisionable) = (Bytes(7), Bytes(7));
        Usage {
            pools: vec![(
                "pool".to_owned(),
                Some(PoolUsage { total, used: None, metadata: None, provisionable, provisioned: None }),
            )],
            attachments: None,
        }
    }

    fn access_modes(&self) -> &[AccessMode] {
        &AccessMode::SINGLE_NODE
    }

    fn provision(&self) -> Option<&dyn Provision> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn changed_blocks(&self) -> Option<&dyn ChangedBlocks> {
        Some(self)
    }

    fn connect(&self) -> &dyn Connect {
        self
    }
}

/// Of every volume there are snapshots `before` and `after`, of 1 MiB.
impl Snapshots for Stand {
    fn check(&self, _raw: &RawParameters) -> Result<()> {
        Ok(())
    }

    fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        let snapshot = Snapshot {
            id: id.clone(),
            name: id.local().to_owned(),
            source: "stand:source".parse()?,
            size: Bytes::MIB,
            created: SystemTime::UNIX_EPOCH,
            ready: true,
            group: None,
            topology: None,
        };
        Ok(["before", "after"].contains(&id.local()).then_some(snapshot))
    }

    fn create_snapshot(&self, spec: &SnapshotSpec, _quiesce: &dyn Quiesce) -> Result<Snapshot> {
        Err(Error::NoCapacity { place: spec.id.to_string(), reason: "a stand-in".to_owned() })
    }

    fn delete_snapshot(&self, _id: &SnapshotId) -> Result<Outcome<()>> {
        Ok(Outcome::Unchanged(()))
    }

    fn list_snapshots(&self, _source: Option<&VolumeId>, _after: Option<&SnapshotId>, _max: usize) -> Result<Vec<Snapshot>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.reading.pass();
        Ok(Vec::new())
    }
}

/// Every second 4 KiB hold data. Any comparison breaks half-way.
impl ChangedBlocks for Stand {
    fn allocated(&self, _: &SnapshotId, offset: u64, emit: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
        let all = (0..Bytes::MIB.0).step_by(8192).filter(|start| start + 4096 > offset);
        for start in all {
            if emit(Extent { offset: start, length: 4096 }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn delta(
        &self,
        _base: &SnapshotId,
        target: &SnapshotId,
        offset: u64,
        emit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut left = 64;
        self.allocated(target, offset, &mut |extent| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { emit(extent) }
        })?;
        Err(Error::BackendUnavailable { backend: "stand".to_owned(), reason: "broke half-way".to_owned() })
    }
}

impl Provision for Stand {
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
            parameters: spec.parameters.clone().into(),
            topology: Vec::new(),
            for_one_node: false,
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
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.reading.pass();
        Ok(self.volumes.lock().expect("no panic").values().take(max).cloned().collect())
    }

    fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.reading.pass();
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
    _directory: tempfile::TempDir,
}

impl Driver {
    async fn start(grace: Duration) -> Driver {
        Driver::start_with(grace, None).await
    }

    async fn start_with_two() -> (Driver, Arc<Stand>) {
        let second = Stand::new("second");
        (Driver::start_with(LONG, Some(second.clone())).await, second)
    }

    async fn start_with(grace: Duration, second: Option<Arc<Stand>>) -> Driver {
        logged();
        let stand = Stand::new("stand");
        let backends = std::iter::once(&stand).chain(&second).map(|stand| stand.clone() as Arc<dyn Backend>).collect();
        let registry = Registry::new(backends).expect("backends of different names");
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
            metrics: Metrics::new("csi.longshore.dev", "1.2.3"),
        });
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("csi.sock");
        let endpoint: Endpoint = path.to_str().expect("a plain path").parse().expect("an endpoint");
        let (stop, stopped) = oneshot::channel();
        let shared = services.clone();
        let serving = tokio::spawn(async move {
            let stopped = async { stopped.await.unwrap_or_default() };
            let admin = server::Admin { log: server::Log::fixed(), reload: server::Reload::none() };
            let metrics = server::Metrics::WithHealth;
            server::serve(Settings { endpoint, registration: None, http: None, metrics, admin, grace }, shared, stopped).await
        });
        Driver { stand, services, path, stop: Some(stop), serving, _directory: directory }
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
    assert_eq!(plugin.into_inner().capabilities.len(), 2, "of a stand-in: a controller, and changed blocks");
    let probe = identity.probe(csi::ProbeRequest {}).await.expect("probe").into_inner();
    assert_eq!(probe.ready, Some(true));
}

/// What Probe answers: never an error.
async fn is_ready(driver: &Driver) -> bool {
    let answer = driver.identity().await.probe(csi::ProbeRequest {}).await;
    answer.expect("no error, whatever a backend does").into_inner().ready.expect("an answer")
}

/// What `/readyz` says of the backends.
async fn problems(driver: &Driver) -> Vec<String> {
    driver.services.readiness().problems(Duration::from_millis(300)).await.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn probe_of_a_good_backend_is_kept_and_of_one_that_is_down_is_not_ready() {
    let driver = Driver::start(LONG).await;
    driver.stand.down.store(true, Ordering::SeqCst);
    assert!(!is_ready(&driver).await, "nothing can be used");
    let reported = problems(&driver).await;
    assert!(matches!(&reported[..], [one] if one.contains("stand") && one.contains("plug it in")), "{reported:?}");

    driver.stand.down.store(false, Ordering::SeqCst);
    let before = driver.stand.probes.load(Ordering::SeqCst);
    let started = Instant::now();
    for _ in 0..50 {
        assert!(is_ready(&driver).await, "up again");
    }
    let most = 1 + usize::try_from(started.elapsed().as_secs()).expect("a few seconds");
    assert!(driver.stand.probes.load(Ordering::SeqCst) - before <= most, "a good answer holds for a second");
    assert_eq!(problems(&driver).await, [""; 0]);
}

#[tokio::test]
async fn probe_with_one_of_two_backends_down_is_ready() {
    let (driver, second) = Driver::start_with_two().await;
    driver.stand.down.store(true, Ordering::SeqCst);
    assert!(is_ready(&driver).await, "the second can be used");
    let reported = problems(&driver).await;
    assert!(matches!(&reported[..], [one] if one.contains("backend stand") && one.contains("plug it in")), "{reported:?}");
    // One that hangs keeps nobody from the answer that another gives.
    driver.stand.probing.shut();
    let started = Instant::now();
    assert!(is_ready(&driver).await, "the second can be used");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    let reported = problems(&driver).await;
    assert!(matches!(&reported[..], [one] if one.contains("backend stand") && one.contains("300ms")), "{reported:?}");
    second.down.store(true, Ordering::SeqCst);
    driver.stand.probing.open();
    // What was good a moment ago holds for a second.
    let until = Instant::now() + LONG;
    while is_ready(&driver).await {
        assert!(Instant::now() < until, "nothing can be used");
    }
    assert_eq!(problems(&driver).await.len(), 2);
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
        let answer = asked.await.expect("no panic").expect("no error").into_inner();
        assert_eq!(answer.ready, Some(false), "whether it can be used is not known");
    }
    assert_eq!(driver.stand.probes.load(Ordering::SeqCst), 1);
    driver.stand.probing.open();
}

/// What a scrape takes of the backend: whether it is up, and what lies below its pool.
async fn scraped(driver: &Driver) -> (bool, Option<u64>) {
    let seen = driver.services.seen().await;
    let [stand] = &seen.backends[..] else { panic!("one backend: {seen:?}") };
    (stand.up, stand.pools.first().and_then(|pool| pool.total))
}

#[tokio::test]
async fn a_scrape_does_not_wait_for_a_backend_that_hangs_and_looks_at_it_once() {
    let driver = Driver::start(LONG).await;
    assert_eq!(scraped(&driver).await, (true, Some(7)));
    let before = driver.stand.measured.load(Ordering::SeqCst);
    driver.stand.measuring.shut();
    for _ in 0..4 {
        let started = Instant::now();
        assert_eq!(scraped(&driver).await, (false, None), "absent, and said to be");
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
    assert_eq!(driver.stand.measured.load(Ordering::SeqCst), before + 1, "one look waits, not four");
    driver.stand.measuring.open();
    let until = Instant::now() + LONG;
    while scraped(&driver).await != (true, Some(7)) {
        assert!(Instant::now() < until, "it answers again");
    }
}

#[tokio::test]
async fn call_not_offered_or_not_in_this_mode_is_unimplemented() {
    let driver = Driver::start(LONG).await;
    let mut groups = csi::group_controller_client::GroupControllerClient::new(driver.channel().await);
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: vec!["stand:a".to_owned()],
        ..Default::default()
    };
    let status = groups.create_volume_group_snapshot(request).await.expect_err("no groups");
    assert_eq!(status.code(), Code::Unimplemented);
    let mut node = csi::node_client::NodeClient::new(driver.channel().await);
    let status = node.node_get_info(csi::NodeGetInfoRequest {}).await.expect_err("controller mode");
    assert_eq!(status.code(), Code::Unimplemented);
}

/// All blocks of a stream's messages, the lengths of the messages, and how the stream ended.
async fn read<M>(mut stream: Streaming<M>, open: fn(M) -> (i64, Vec<csi::BlockMetadata>)) -> (Vec<i64>, Vec<usize>, Code) {
    let (mut offsets, mut lengths) = (Vec::new(), Vec::new());
    loop {
        match stream.message().await {
            Ok(Some(message)) => {
                let (size, blocks) = open(message);
                assert_eq!(size, 1 << 20);
                lengths.push(blocks.len());
                offsets.extend(blocks.iter().map(|block| block.byte_offset));
            }
            Ok(None) => return (offsets, lengths, Code::Ok),
            Err(status) => return (offsets, lengths, status.code()),
        }
    }
}

#[tokio::test]
async fn blocks_come_as_a_stream_in_messages_of_the_size_asked_for() {
    let driver = Driver::start(LONG).await;
    let mut metadata = SnapshotMetadataClient::new(driver.channel().await);
    let ask = |snapshot: &str, starting_offset, max_results| csi::GetMetadataAllocatedRequest {
        snapshot_id: snapshot.to_owned(),
        starting_offset,
        max_results,
        ..Default::default()
    };
    let open = |message: csi::GetMetadataAllocatedResponse| {
        assert_eq!(message.block_metadata_type(), csi::BlockMetadataType::VariableLength);
        (message.volume_capacity_bytes, message.block_metadata)
    };
    let stream = metadata.get_metadata_allocated(ask("stand:after", 0, 50)).await.expect("a stream").into_inner();
    let (offsets, lengths, code) = read(stream, open).await;
    assert_eq!((lengths, code), (vec![50, 50, 28], Code::Ok));
    assert_eq!(offsets, (0..1 << 20).step_by(8192).collect::<Vec<i64>>());

    let stream = metadata.get_metadata_allocated(ask("stand:after", 1_000_000, 0)).await.expect("a stream").into_inner();
    let (offsets, lengths, _) = read(stream, open).await;
    assert_eq!((offsets[0], lengths.len()), (999_424, 1), "the block that the offset lies in is the first");

    for (request, expected) in [
        (ask("stand:never", 0, 0), Code::NotFound),
        (ask("", 0, 0), Code::InvalidArgument),
        (ask("stand:after", -1, 0), Code::OutOfRange),
        (ask("stand:after", (1 << 20) + 1, 0), Code::OutOfRange),
    ] {
        let status = metadata.get_metadata_allocated(request).await.expect_err("refused before the stream begins");
        assert_eq!(status.code(), expected, "{}", status.message());
    }
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_the_error_after_what_was_found() {
    let driver = Driver::start(LONG).await;
    let mut metadata = SnapshotMetadataClient::new(driver.channel().await);
    let request = csi::GetMetadataDeltaRequest {
        base_snapshot_id: "stand:before".to_owned(),
        target_snapshot_id: "stand:after".to_owned(),
        max_results: 32,
        ..Default::default()
    };
    let stream = metadata.get_metadata_delta(request).await.expect("a stream").into_inner();
    let (offsets, _, code) =
        read(stream, |message: csi::GetMetadataDeltaResponse| (message.volume_capacity_bytes, message.block_metadata)).await;
    assert_eq!(code, Code::Unavailable);
    assert_eq!(offsets.len(), 32, "whole messages only");
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_walk() {
    let driver = Driver::start(LONG).await;
    let mut metadata = SnapshotMetadataClient::new(driver.channel().await);
    let request =
        csi::GetMetadataAllocatedRequest { snapshot_id: "stand:after".to_owned(), max_results: 1, ..Default::default() };
    let mut stream = metadata.get_metadata_allocated(request).await.expect("a stream").into_inner();
    stream.message().await.expect("no error").expect("a first message");
    drop(stream);
    assert!(driver.services.tasks().drained(LONG).await, "nothing runs for a client that has gone");
}

/// Each would keep a thread for as long as the storage hangs.
#[tokio::test]
async fn repeated_lists_and_capacities_of_hung_storage_take_one_thread_each() {
    let (driver, second) = Driver::start_with_two().await;
    let of = |backend: &str| csi::GetCapacityRequest {
        parameters: HashMap::from([("backend".to_owned(), backend.to_owned())]),
        ..Default::default()
    };
    driver.stand.reading.shut();
    let controller = driver.controller().await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (mut lists, mut snapshots, mut capacities) = (controller.clone(), controller.clone(), controller.clone());
        let capacity = of("stand");
        calls.spawn(async move { lists.list_volumes(csi::ListVolumesRequest::default()).await.map(drop) });
        calls.spawn(async move { snapshots.list_snapshots(csi::ListSnapshotsRequest::default()).await.map(drop) });
        calls.spawn(async move { capacities.get_capacity(capacity).await.map(drop) });
    }
    for _ in 0..57 {
        let status = calls.join_next().await.expect("57 end").expect("no panic").expect_err("one of its kind hangs");
        assert_eq!(status.code(), Code::Aborted, "{status}");
        let words = ["all volumes", "all snapshots", "backend stand"];
        assert!(words.iter().any(|word| status.message().contains(word)), "{status}");
    }
    assert_eq!(driver.stand.reads.load(Ordering::SeqCst), 3, "one of each kind is at the storage");
    // The lists began with it.
    let before = second.reads.load(Ordering::SeqCst);
    controller.clone().get_capacity(of("second")).await.expect("that of another backend");
    assert_eq!(second.reads.load(Ordering::SeqCst), before + 1);
    driver.stand.reading.open();
    while let Some(call) = calls.join_next().await {
        call.expect("no panic").expect("it ends");
    }
    controller.clone().get_capacity(of("stand")).await.expect("it answers again");
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
    let reported = lines(&["rpc=\"CreateVolume\"", "id=\"refused\"", "code="]);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(
        reported[0].contains("WARN") && reported[0].contains("code=InvalidArgument") && reported[0].contains("final=true"),
        "{}",
        reported[0]
    );
    assert!(reported[0].contains("volume_capabilities"), "{}", reported[0]);
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
    let mut impatient = controller.clone();
    let impatient = tokio::spawn(async move { impatient.create_volume(create("outlives")).await });
    while driver.services.locks().running().is_empty() {
        tokio::task::yield_now().await;
    }
    impatient.abort();
    impatient.await.expect_err("the caller gave up");
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
    // The client got an answer, whatever it was.
    drop(call.await.expect("no panic"));
}

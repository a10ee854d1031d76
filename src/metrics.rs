//! What the driver counts and shows of itself, in the text that Prometheus scrapes (OpenMetrics 1.0).
//!
//! The lowest layer beside `volume`: `os` times its steps here, `rpc` its calls, and what is only known at the moment of a
//! scrape comes as [`Seen`]. What there is stands in [`DECLARED`], and nothing else can be shown.
//!
//! No label holds a volume's id, a path or a message: the number of series does not grow with the number of volumes, and no
//! secret can get in. Nothing here does I/O or waits for anyone.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// A metric, as people read of it. The samples of a counter end in `_total`, those of a histogram in `_bucket`, `_sum`, `_count`.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    pub name: &'static str,
    pub help: &'static str,
}

macro_rules! declared {
    ($($constant:ident $name:literal $help:literal;)*) => {
        $(const $constant: Declared = Declared { name: $name, help: $help };)*

        /// All that is ever shown.
        pub const DECLARED: &[Declared] = &[$($constant),*];
    };
}

declared! {
    // The name that csi-lib-utils gives to what drivers measure, with its labels, so that dashboards made for others fit.
    OPERATIONS "csi_plugin_operations_seconds" "How long RPCs took, by method and answered code, in seconds";
    CALLS "longshore_calls" "RPCs that ended, by method, code, whether that is final for the caller, and whether they changed anything";
    STEPS "longshore_step_seconds" "How long the steps of operations took (mkfs, mount, fsync of a journal), in seconds";
    RUNNING "longshore_operations_running" "RPCs that run now, by method";
    OLDEST "longshore_operations_oldest_seconds" "For how long the oldest RPC of a method has been running";
    UNKNOWN "longshore_operations_unknown" "Objects whose last call that changes them ended without a final code: something may be left, and the caller is expected to come again";
    BACKEND_UP "longshore_backend_up" "1 if the backend answered in time and all its pools can be used; else what is known of it is absent below";
    VOLUMES "longshore_volumes" "Volumes, by backend and pool";
    SNAPSHOTS "longshore_snapshots" "Snapshots, by backend and pool";
    ATTACHED "longshore_attachments" "Attachments of volumes to nodes, by backend";
    POOL_TOTAL "longshore_pool_total_bytes" "Size of the storage below a pool, in bytes";
    POOL_USED "longshore_pool_used_bytes" "Bytes of the storage below a pool that are in use";
    POOL_METADATA "longshore_pool_metadata_used_ratio" "Part of the metadata of a thin pool that is in use, 0 to 1; absent of other pools";
    POOL_PROVISIONABLE "longshore_pool_provisionable_bytes" "Bytes that may be provisioned to volumes and snapshots of a pool: its capacity times its overcommit";
    POOL_PROVISIONED "longshore_pool_provisioned_bytes" "Bytes that are provisioned to volumes and snapshots of a pool";
    STAGES "longshore_stages" "Volumes that are staged on this node, by its journal; also what was begun and not yet undone";
    PUBLISHES "longshore_publishes" "Targets at which volumes are published on this node, by its journal";
    LOOPS "longshore_loop_devices" "Loop devices in use on this node, no matter who made them";
    CLOUD_REQUESTS "longshore_cloud_requests" "Requests sent to a cloud, by backend, action and outcome";
    CLOUD_SECONDS "longshore_cloud_request_seconds" "How long a cloud took to answer a request, in seconds";
    CLOUD_WAITS "longshore_cloud_wait_seconds" "How long requests to a cloud waited to be sent, so as not to be throttled, in seconds";
    REGISTERED "longshore_kubelet_registered" "1 if the kubelet has taken the driver up; absent where the driver does not register itself";
    STANDBY "longshore_standby" "1 if another process provisions and this one waits for its lock; absent where there is nothing to wait for";
    BUILD "longshore_build_info" "1, with the version";
    CPU "process_cpu_seconds" "User and system CPU time spent, in seconds";
    RESIDENT "process_resident_memory_bytes" "Resident memory size in bytes";
    OPEN_FILES "process_open_fds" "Number of open file descriptors";
    STARTED "process_start_time_seconds" "Start time of the process since the Unix epoch, in seconds";
}

/// In seconds: csi-lib-utils' own, with further ones below, where a driver of local storage is at home.
const CALL_BUCKETS: [f64; 19] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
/// In seconds; fewer, since there are many kinds of steps.
const STEP_BUCKETS: [f64; 12] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0];
/// In seconds: how long a cloud takes, or a request to it waits for its turn.
const CLOUD_BUCKETS: [f64; 9] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Of so many objects it is remembered that their outcome is not known; with more, something else is to be looked into.
const MOST_UNKNOWN: usize = 1 << 16;

/// A name and a value that the code gives, not a caller.
type Fixed = (&'static str, &'static str);
type Labelled<const N: usize, M> = Family<[Fixed; N], M>;
type Number = Gauge<f64, AtomicU64>;

/// What a process counts. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

struct Shared {
    driver_name: String,
    registry: Registry,
    operations: Labelled<2, Histogram>,
    calls: Labelled<4, Counter>,
    steps: Steps,
    clouds: Clouds,
    running: Mutex<Running>,
    /// Digests of objects.
    unknown: Mutex<HashSet<u64>>,
}

/// The calls that run, in the order in which they began.
#[derive(Default)]
struct Running {
    next: u64,
    since: BTreeMap<u64, (&'static str, Instant)>,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// As gRPC writes it: `/csi.v1.Node/NodeStageVolume`.
    pub method: &'static str,
    /// As gRPC's Go library prints it, and with that the sidecars' metrics: `OK`, `DeadlineExceeded`.
    pub code: &'static str,
    pub is_final: bool,
    /// What it did: `changed`, `unchanged`, ...
    pub outcome: &'static str,
    pub took: Duration,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("driver_name", &self.shared.driver_name).finish_non_exhaustive()
    }
}

impl Metrics {
    pub fn new(driver_name: &str, version: &str) -> Metrics {
        let mut registry = labelled(driver_name);
        let operations = Family::new_with_constructor((|| Histogram::new(CALL_BUCKETS)) as fn() -> _);
        let calls = Family::default();
        let steps = Steps::default();
        let clouds = Clouds::default();
        register(&mut registry, OPERATIONS, operations.clone());
        register(&mut registry, CALLS, calls.clone());
        register(&mut registry, STEPS, steps.family.clone());
        register(&mut registry, CLOUD_REQUESTS, clouds.requests.clone());
        register(&mut registry, CLOUD_SECONDS, clouds.seconds.clone());
        register(&mut registry, CLOUD_WAITS, clouds.waits.clone());
        register(&mut registry, BUILD, family([([("version", version.to_owned())], 1.0)]));
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        register(&mut registry, STARTED, number(started.as_secs_f64()));
        let (driver_name, running, unknown) = (driver_name.to_owned(), Mutex::default(), Mutex::default());
        Metrics { shared: Arc::new(Shared { driver_name, registry, operations, calls, steps, clouds, running, unknown }) }
    }

    /// To be handed to those who run steps.
    pub fn steps(&self) -> Steps {
        self.shared.steps.clone()
    }

    /// To be handed to what sends requests to the cloud of this backend.
    pub fn cloud(&self, backend: &str) -> CloudRequests {
        CloudRequests { backend: backend.to_owned(), clouds: self.shared.clouds.clone() }
    }

    /// A call of this method runs until the answer is dropped.
    pub fn begin(&self, method: &'static str) -> Begun {
        let mut running = lock(&self.shared.running);
        let number = running.next;
        running.next += 1;
        running.since.insert(number, (method, Instant::now()));
        drop(running);
        Begun { metrics: self.clone(), number }
    }

    /// Counts a call.
    pub fn ended(&self, call: &Call) {
        let (method, code) = (("method_name", call.method), ("grpc_status_code", call.code));
        let is_final = ("final", if call.is_final { "true" } else { "false" });
        self.shared.operations.get_or_create(&[method, code]).observe(call.took.as_secs_f64());
        self.shared.calls.get_or_create(&[method, code, is_final, ("outcome", call.outcome)]).inc();
    }

    /// From now on the outcome of what was done to the object of this digest is known, or is not.
    pub fn record_outcome(&self, object: u64, known: bool) {
        let mut unknown = lock(&self.shared.unknown);
        if known {
            unknown.remove(&object);
        } else if unknown.len() < MOST_UNKNOWN {
            unknown.insert(object);
        }
    }

    /// All of it, with what is `seen` at this moment.
    pub fn text(&self, seen: &Seen) -> String {
        let mut now = labelled(&self.shared.driver_name);
        self.show_running(&mut now);
        seen.show(&mut now);
        let mut text = String::new();
        if encode_registry(&mut text, &self.shared.registry).and_then(|()| encode(&mut text, &now)).is_err() {
            // A `String` takes all that is written to it.
            tracing::error!("the metrics could not be written");
        }
        text
    }

    fn show_running(&self, registry: &mut Registry) {
        let mut running: BTreeMap<&'static str, (f64, f64)> = BTreeMap::new();
        for (method, since) in lock(&self.shared.running).since.values() {
            // The first of a method is its oldest.
            running.entry(method).or_insert_with(|| (0.0, since.elapsed().as_secs_f64())).0 += 1.0;
        }
        let by_method =
            |of: fn((f64, f64)) -> f64| family(running.iter().map(|(method, both)| ([("method_name", *method)], of(*both))));
        register(registry, RUNNING, by_method(|both| both.0));
        register(registry, OLDEST, by_method(|both| both.1));
        register(registry, UNKNOWN, number(lock(&self.shared.unknown).len() as f64));
    }
}

/// A call that runs.
#[derive(Debug)]
#[must_use = "dropped at once, nothing runs"]
pub struct Begun {
    metrics: Metrics,
    number: u64,
}

impl Drop for Begun {
    fn drop(&mut self) {
        lock(&self.metrics.shared.running).since.remove(&self.number);
    }
}

/// The durations of steps, by name and by whether they failed.
#[derive(Clone, Debug)]
pub struct Steps {
    family: Labelled<2, Histogram>,
}

impl Default for Steps {
    fn default() -> Self {
        Steps { family: Family::new_with_constructor(|| Histogram::new(STEP_BUCKETS)) }
    }
}

impl Steps {
    pub fn ended(&self, step: &'static str, failed: bool, took: Duration) {
        let outcome = ("outcome", if failed { "failed" } else { "done" });
        self.family.get_or_create(&[("step", step), outcome]).observe(took.as_secs_f64());
    }
}

/// The requests of all backends to their clouds. Labels are `backend` and `action`, and `outcome` for the first.
#[derive(Clone, Debug)]
struct Clouds {
    requests: Family<[(&'static str, String); 3], Counter>,
    seconds: Family<[(&'static str, String); 2], Histogram>,
    waits: Family<[(&'static str, String); 2], Histogram>,
}

impl Default for Clouds {
    fn default() -> Self {
        let histogram = (|| Histogram::new(CLOUD_BUCKETS)) as fn() -> Histogram;
        let (seconds, waits) = (Family::new_with_constructor(histogram), Family::new_with_constructor(histogram));
        Clouds { requests: Family::default(), seconds, waits }
    }
}

/// Counts the requests of one backend to its cloud; by default nobody reads it.
#[derive(Clone, Debug, Default)]
pub struct CloudRequests {
    backend: String,
    clouds: Clouds,
}

impl CloudRequests {
    /// A request of this `action` was answered, or not; `outcome` is `ok`, `throttled`, `refused` or `lost`.
    pub fn ended(&self, action: &'static str, outcome: &'static str, took: Duration) {
        let [backend, name] = self.labels(action);
        self.clouds.seconds.get_or_create(&[backend.clone(), name.clone()]).observe(took.as_secs_f64());
        self.clouds.requests.get_or_create(&[backend, name, ("outcome", outcome.to_owned())]).inc();
    }

    /// A request waited for so long to be sent.
    pub fn waited(&self, action: &'static str, waited: Duration) {
        self.clouds.waits.get_or_create(&self.labels(action)).observe(waited.as_secs_f64());
    }

    fn labels(&self, action: &'static str) -> [(&'static str, String); 2] {
        [("backend", self.backend.clone()), ("action", action.to_owned())]
    }
}

/// What is looked up when it is asked for. What could not be seen in time is absent.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub backends: Vec<BackendSeen>,
    pub stages: Option<u64>,
    pub publishes: Option<u64>,
    pub loop_devices: Option<u64>,
    pub registered: Option<bool>,
    pub standby: Option<bool>,
    pub process: ProcessSeen,
}

/// One backend.
#[derive(Clone, Debug, Default)]
pub struct BackendSeen {
    pub name: String,
    pub up: bool,
    pub attachments: Option<u64>,
    pub pools: Vec<PoolSeen>,
}

/// One pool; sizes in bytes.
#[derive(Clone, Debug, Default)]
pub struct PoolSeen {
    pub name: String,
    pub total: Option<u64>,
    pub used: Option<u64>,
    /// Of a thin pool, 0 to 1.
    pub metadata_used: Option<f64>,
    pub provisionable: Option<u64>,
    pub provisioned: Option<u64>,
    pub volumes: Option<u64>,
    pub snapshots: Option<u64>,
}

/// What this process takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessSeen {
    pub cpu: Duration,
    /// In bytes.
    pub resident: Option<u64>,
    pub open_files: Option<u64>,
}

impl Seen {
    fn show(&self, registry: &mut Registry) {
        let up = |backend: &BackendSeen| ([("backend", backend.name.clone())], f64::from(u8::from(backend.up)));
        register(registry, BACKEND_UP, family(self.backends.iter().map(up)));
        let attachments = self.backends.iter().filter_map(|backend| Some((backend, backend.attachments?)));
        let attachments = attachments.map(|(backend, number)| ([("backend", backend.name.clone())], number as f64));
        register(registry, ATTACHED, family(attachments));
        for (declared, of) in [
            (VOLUMES, (|pool| pool.volumes.map(float)) as fn(&PoolSeen) -> Option<f64>),
            (SNAPSHOTS, |pool| pool.snapshots.map(float)),
            (POOL_TOTAL, |pool| pool.total.map(float)),
            (POOL_USED, |pool| pool.used.map(float)),
            (POOL_METADATA, |pool| pool.metadata_used),
            (POOL_PROVISIONABLE, |pool| pool.provisionable.map(float)),
            (POOL_PROVISIONED, |pool| pool.provisioned.map(float)),
        ] {
            let pools = self.backends.iter().flat_map(|backend| backend.pools.iter().map(move |pool| (backend, pool)));
            let some = pools.filter_map(|(backend, pool)| Some((backend, pool, of(pool)?)));
            let labels =
                |backend: &BackendSeen, pool: &PoolSeen| [("backend", backend.name.clone()), ("pool", pool.name.clone())];
            register(registry, declared, family(some.map(|(backend, pool, value)| (labels(backend, pool), value))));
        }
        let registered = self.registered.map(u64::from);
        for (declared, value) in [
            (STAGES, self.stages),
            (PUBLISHES, self.publishes),
            (LOOPS, self.loop_devices),
            (REGISTERED, registered),
            (STANDBY, self.standby.map(u64::from)),
            (RESIDENT, self.process.resident),
            (OPEN_FILES, self.process.open_files),
        ] {
            if let Some(value) = value {
                register(registry, declared, number(value as f64));
            }
        }
        register(registry, CPU, ConstCounter::new(self.process.cpu.as_secs_f64()));
    }
}

/// Every sample says of which driver it is, as the sidecars' do.
fn labelled(driver_name: &str) -> Registry {
    Registry::with_labels([("driver_name".into(), driver_name.to_owned().into())].into_iter())
}

fn register(registry: &mut Registry, declared: Declared, metric: impl Metric) {
    registry.register(declared.name, declared.help, metric);
}

fn float(value: u64) -> f64 {
    value as f64
}

fn number(value: f64) -> Number {
    let gauge = Number::default();
    gauge.set(value);
    gauge
}

fn family<L>(values: impl IntoIterator<Item = (L, f64)>) -> Family<L, Number>
where
    L: Clone + Eq + Hash + EncodeLabelSet,
{
    let family = Family::default();
    for (labels, value) in values {
        Family::<L, Number>::get_or_create(&family, &labels).set(value);
    }
    family
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> Metrics {
        Metrics::new("a.b", "1.2.3")
    }

    fn lines(text: &str, name: &str) -> Vec<String> {
        let mut lines: Vec<String> = text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[test]
    fn names_are_as_prometheus_wants_them_and_none_is_there_twice() {
        let names: HashSet<&str> = DECLARED.iter().map(|declared| declared.name).collect();
        assert_eq!(names.len(), DECLARED.len());
        for declared in DECLARED {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            assert!(declared.name.bytes().all(plain) && !declared.name.ends_with("_total"), "{}", declared.name);
            assert!(!declared.help.ends_with('.') && !declared.help.contains('\n'), "{}", declared.help);
        }
    }

    #[test]
    fn a_call_is_counted_under_the_fields_names() {
        let metrics = metrics();
        let method = "/csi.v1.Node/NodeStageVolume";
        let call = Call { method, code: "Aborted", is_final: false, outcome: "none", took: Duration::from_millis(30) };
        metrics.ended(&call);
        metrics.ended(&Call { took: Duration::from_secs(700), ..call });
        let text = metrics.text(&Seen::default());
        assert!(text.ends_with("# EOF\n"));
        let driver = "driver_name=\"a.b\"";
        let labels = format!("method_name=\"{method}\",grpc_status_code=\"Aborted\"");
        for line in [
            format!("csi_plugin_operations_seconds_count{{{driver},{labels}}} 2"),
            format!("csi_plugin_operations_seconds_bucket{{{driver},le=\"0.025\",{labels}}} 0"),
            format!("csi_plugin_operations_seconds_bucket{{{driver},le=\"0.05\",{labels}}} 1"),
            format!("csi_plugin_operations_seconds_bucket{{{driver},le=\"+Inf\",{labels}}} 2"),
            format!("longshore_calls_total{{{driver},{labels},final=\"false\",outcome=\"none\"}} 2"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn running_calls_are_shown_with_the_age_of_the_oldest() {
        let metrics = metrics();
        let first = metrics.begin("/a");
        std::thread::park_timeout(Duration::from_millis(20));
        let second = metrics.begin("/a");
        let running = |expected: &[&str]| assert_eq!(lines(&metrics.text(&Seen::default()), RUNNING.name), expected);
        running(&["longshore_operations_running{driver_name=\"a.b\",method_name=\"/a\"} 2.0"]);
        let age = || -> f64 {
            let lines = lines(&metrics.text(&Seen::default()), OLDEST.name);
            lines[0].split(' ').next_back().expect("a value").parse().expect("a number")
        };
        let both = age();
        assert!(both >= 0.02, "{both}");
        drop(first);
        assert!(age() < both);
        drop(second);
        running(&[]);
    }

    #[test]
    fn an_object_is_unknown_until_it_is_settled() {
        let metrics = metrics();
        let unknown =
            || lines(&metrics.text(&Seen::default()), UNKNOWN.name).concat().replace("longshore_operations_unknown", "");
        for (object, known, expected) in
            [(1, false, "1.0"), (1, false, "1.0"), (2, false, "2.0"), (1, true, "1.0"), (2, true, "0.0")]
        {
            metrics.record_outcome(object, known);
            assert_eq!(unknown(), format!("{{driver_name=\"a.b\"}} {expected}"));
        }
    }

    #[test]
    fn requests_to_a_cloud_are_counted_by_outcome() {
        let metrics = metrics();
        let cloud = metrics.cloud("disks");
        for outcome in ["ok", "ok", "throttled"] {
            cloud.ended("CreateVolume", outcome, Duration::from_millis(300));
        }
        cloud.waited("CreateVolume", Duration::from_secs(2));
        let text = metrics.text(&Seen::default());
        let labels = "driver_name=\"a.b\",backend=\"disks\",action=\"CreateVolume\"";
        for line in [
            format!("longshore_cloud_requests_total{{{labels},outcome=\"ok\"}} 2"),
            format!("longshore_cloud_requests_total{{{labels},outcome=\"throttled\"}} 1"),
            format!("longshore_cloud_request_seconds_count{{{labels}}} 3"),
            format!("longshore_cloud_wait_seconds_sum{{{labels}}} 2.0"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn metadata_of_a_thin_pool_is_a_ratio() {
        let shown = |metadata_used| {
            let pool = PoolSeen { name: "thin".to_owned(), metadata_used, ..PoolSeen::default() };
            let backend = BackendSeen { name: "lvm".to_owned(), up: true, attachments: None, pools: vec![pool] };
            lines(&metrics().text(&Seen { backends: vec![backend], ..Seen::default() }), "longshore_pool_metadata_used_ratio{")
        };
        let labels = "driver_name=\"a.b\",backend=\"lvm\",pool=\"thin\"";
        assert_eq!(shown(Some(0.955)), [format!("longshore_pool_metadata_used_ratio{{{labels}}} 0.955")]);
        assert_eq!(shown(None), Vec::<String>::new());
    }

    #[test]
    fn unknown_usage_has_no_metric() {
        let pool = PoolSeen { name: "p".to_owned(), total: Some(10), ..PoolSeen::default() };
        let up = BackendSeen { name: "b".to_owned(), up: true, attachments: None, pools: vec![pool] };
        let down = BackendSeen { name: "c".to_owned(), ..BackendSeen::default() };
        let text = metrics().text(&Seen { backends: vec![up, down], ..Seen::default() });
        let of = |name: &str| lines(&text, &format!("{name}{{"));
        assert_eq!(of("longshore_backend_up").len(), 2, "{text}");
        assert_eq!(
            of("longshore_pool_total_bytes"),
            ["longshore_pool_total_bytes{driver_name=\"a.b\",backend=\"b\",pool=\"p\"} 10.0"]
        );
        for absent in [POOL_USED, POOL_METADATA, VOLUMES, ATTACHED, STAGES, LOOPS, REGISTERED, RESIDENT] {
            assert_eq!(of(absent.name), Vec::<String>::new());
        }
    }
}

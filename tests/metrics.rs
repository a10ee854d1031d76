//! `/metrics` of the real driver: what is declared is there and moves, and says what is so.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::http::ask;
use common::{Harness, MIB, Pool, capability, connect, create, isolated, publish_request, stage_request, text};
use longshore::csi;
use longshore::csi::node_client::NodeClient;
use longshore::metrics::DECLARED;
use longshore::pluginregistration::RegistrationStatus;
use longshore::pluginregistration::registration_client::RegistrationClient;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use tonic::Code;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// What cannot move.
const CONSTANT: &str = "longshore_build_info";

/// The samples of one scrape: name with labels, without the driver's, and value.
#[derive(Clone, PartialEq)]
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    fn of(harness: &Harness) -> Scrape {
        let (status, text) = harness.get("/metrics");
        assert!(status == 200 && text.ends_with("# EOF\n"), "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            assert!(sample.contains("driver_name=\"longshore.csi.dev\""), "{sample}");
            let sample =
                sample.replace("driver_name=\"longshore.csi.dev\"", "").replace("{,", "{").replace(",,", ",").replace("{}", "");
            (sample.replace(",}", "}"), value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
        });
        Scrape(samples.collect())
    }

    fn value(&self, sample: &str) -> Option<f64> {
        self.0.get(sample).copied()
    }

    fn assert(&self, sample: &str, expected: f64) {
        assert_eq!(self.value(sample), Some(expected), "{sample} in {:#?}", self.0);
    }

    /// The samples by the declared metric that they belong to.
    fn families(&self) -> BTreeMap<&'static str, BTreeMap<&str, f64>> {
        let mut families: BTreeMap<&'static str, BTreeMap<&str, f64>> = BTreeMap::new();
        for (sample, value) in &self.0 {
            let name = sample.split('{').next().expect("a name");
            let endings = ["", "_total", "_bucket", "_sum", "_count"];
            let declared =
                DECLARED.iter().find(|declared| name.strip_prefix(declared.name).is_some_and(|ending| endings.contains(&ending)));
            let declared = declared.unwrap_or_else(|| panic!("{sample} is not declared"));
            families.entry(declared.name).or_default().insert(sample, *value);
        }
        families
    }
}

/// What has moved from scrape to scrape.
struct Watch {
    last: Scrape,
    moved: BTreeSet<&'static str>,
}

impl Watch {
    fn next(&mut self, harness: &Harness) -> Scrape {
        let now = Scrape::of(harness);
        let (before, after) = (self.last.families(), now.families());
        for declared in DECLARED {
            if before.get(declared.name) != after.get(declared.name) {
                self.moved.insert(declared.name);
            }
        }
        self.last = now.clone();
        now
    }

    /// Scrapes until `there` is.
    fn until(&mut self, harness: &Harness, there: impl Fn(&Scrape) -> bool) -> Scrape {
        let end = Instant::now() + LONG;
        loop {
            let now = self.next(harness);
            if there(&now) {
                return now;
            }
            assert!(Instant::now() < end, "it does not come: {:#?}", now.0);
        }
    }
}

/// mkfs.ext4 waits until the test opens the pipe that is answered, for writing.
fn slow_mkfs(harness: &Harness) -> PathBuf {
    let pipe = harness.path("mkfs.pipe");
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
    let directory = "/usr/local/sbin";
    mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("a tmpfs of our own");
    let real =
        ["/usr/sbin", "/sbin"].into_iter().map(|directory| Path::new(directory).join("mkfs.ext4")).find(|path| path.exists());
    let script = format!("#!/bin/sh\ncat '{}'\nexec '{}' \"$@\"\n", pipe.display(), real.expect("mkfs.ext4").display());
    let path = Path::new(directory).join("mkfs.ext4");
    fs::write(&path, script).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    pipe
}

#[test]
fn declared_metrics_exist_and_change() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        let pipe = slow_mkfs(&harness);
        harness.with_http();
        harness.configure("kubeletRegistration: true");
        let registry = harness.path("kubelet/plugins_registry");
        fs::create_dir(&registry).expect("the kubelet's directory");
        harness.start();
        let mut watch = Watch { last: Scrape::of(&harness), moved: BTreeSet::new() };
        watch.last.assert("longshore_kubelet_registered", 0.0);
        watch.last.assert(&format!("longshore_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0);

        // Two volumes, one of them attached, and a snapshot.
        let (mut controller, mut node) = (harness.controller(), harness.node());
        let image = "backend=\"image\",pool=\"default\"";
        harness.block_on(controller.create_volume(create("measured", 64, Some("ext4"), "image"))).expect("created");
        harness.block_on(controller.create_volume(create("attached", 64, Some("ext4"), "fake"))).expect("created");
        let attach = csi::ControllerPublishVolumeRequest {
            volume_id: "fake:attached".to_owned(),
            node_id: "node-1".to_owned(),
            volume_capability: Some(capability(Some("ext4"))),
            ..Default::default()
        };
        harness.block_on(controller.controller_publish_volume(attach)).expect("attached");
        let snapshot = csi::CreateSnapshotRequest {
            source_volume_id: "image:measured".to_owned(),
            name: "then".to_owned(),
            ..Default::default()
        };
        harness.block_on(controller.create_snapshot(snapshot)).expect("a snapshot");
        let now = watch.next(&harness);
        let room = nix::sys::statvfs::statvfs(&harness.path("pool/images")).expect("the pool");
        let total = (room.blocks() * room.fragment_size()) as f64;
        now.assert(&format!("longshore_pool_total_bytes{{{image}}}"), total);
        now.assert(&format!("longshore_pool_provisionable_bytes{{{image}}}"), total * 8.0);
        // A snapshot is provisioned what its source has allocated: nothing yet.
        now.assert(&format!("longshore_pool_provisioned_bytes{{{image}}}"), 64.0 * MIB as f64);
        now.assert(&format!("longshore_volumes{{{image}}}"), 1.0);
        now.assert(&format!("longshore_snapshots{{{image}}}"), 1.0);
        now.assert("longshore_volumes{backend=\"fake\",pool=\"memory\"}", 1.0);
        now.assert("longshore_attachments{backend=\"fake\"}", 1.0);
        now.assert("longshore_backend_up{backend=\"image\"}", 1.0);
        let created = "method_name=\"/csi.v1.Controller/CreateVolume\",grpc_status_code=\"OK\"";
        now.assert(&format!("longshore_calls_total{{{created},final=\"true\",outcome=\"changed\"}}"), 2.0);
        now.assert(&format!("csi_plugin_operations_seconds_count{{{created}}}"), 2.0);

        // A stage whose mkfs takes its time, as seen meanwhile and afterwards.
        let (socket, staging, target) = (harness.path("csi.sock"), harness.staging("measured"), harness.target("measured"));
        let stage = stage_request("image:measured", &staging, capability(Some("ext4")));
        let staged = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { NodeClient::new(connect(socket)).node_stage_volume(stage).await })
        });
        let method = "method_name=\"/csi.v1.Node/NodeStageVolume\"";
        let running = watch.until(&harness, |now| now.value("longshore_stages") == Some(1.0) && harness.loops().len() == 1);
        running.assert(&format!("longshore_operations_running{{{method}}}"), 1.0);
        let age = |now: &Scrape| now.value(&format!("longshore_operations_oldest_seconds{{{method}}}"));
        watch.until(&harness, |now| age(now) > age(&running));
        assert!(running.value("longshore_loop_devices").expect("counted") >= 1.0);
        fs::write(&pipe, "").expect("it continues");
        staged.join().expect("no panic").expect("staged");
        let publish = publish_request("image:measured", &staging, &target, capability(Some("ext4")));
        harness.block_on(node.node_publish_volume(publish)).expect("published");
        let now = watch.next(&harness);
        assert_eq!(age(&now), None, "nothing runs");
        now.assert("longshore_stages", 1.0);
        now.assert("longshore_publishes", 1.0);
        now.assert("longshore_step_seconds_count{step=\"mkfs\",outcome=\"done\"}", 1.0);
        now.assert("longshore_step_seconds_bucket{le=\"+Inf\",step=\"mkfs\",outcome=\"done\"}", 1.0);

        // The pool is away: what a call about it has left is not known, until a later one has shown it.
        let (pool, away) = (harness.path("pool/images"), harness.path("pool/away"));
        fs::rename(&pool, &away).expect("moved away");
        let lost = harness.block_on(controller.create_volume(create("lost", 64, None, "image"))).expect_err("no pool");
        assert_eq!(lost.code(), Code::Unavailable, "{lost}");
        let now = watch.next(&harness);
        now.assert("longshore_operations_unknown", 1.0);
        now.assert("longshore_backend_up{backend=\"image\"}", 0.0);
        now.assert("longshore_backend_up{backend=\"fake\"}", 1.0);
        assert_eq!(now.value(&format!("longshore_pool_total_bytes{{{image}}}")), None, "what is not seen is absent");
        let refused =
            "method_name=\"/csi.v1.Controller/CreateVolume\",grpc_status_code=\"Unavailable\",final=\"false\",outcome=\"none\"";
        now.assert(&format!("longshore_calls_total{{{refused}}}"), 1.0);
        fs::rename(&away, &pool).expect("moved back");
        harness.block_on(controller.create_volume(create("lost", 64, None, "image"))).expect("created");
        watch.next(&harness).assert("longshore_operations_unknown", 0.0);

        // The kubelet has its word, and the counts outlive the driver.
        harness.block_on(async {
            let mut client = RegistrationClient::new(connect(registry.join("longshore.csi.dev-reg.sock")));
            let status = RegistrationStatus { plugin_registered: true, error: String::new() };
            client.notify_registration_status(status).await.expect("heard");
        });
        watch.next(&harness).assert("longshore_kubelet_registered", 1.0);
        harness.kill();
        // Another process has the pool meanwhile.
        let lock = fs::File::open(harness.path("pool/images/lock")).expect("the lock");
        lock.lock().expect("nobody has it");
        harness.start();
        watch.next(&harness).assert("longshore_standby", 1.0);
        drop(lock);
        let now = watch.until(&harness, |now| now.value("longshore_standby") == Some(0.0));
        now.assert("longshore_stages", 1.0);
        now.assert("longshore_publishes", 1.0);
        now.assert(&format!("longshore_volumes{{{image}}}"), 2.0);
        let mut node = harness.node();
        let unpublish = csi::NodeUnpublishVolumeRequest { volume_id: "image:measured".to_owned(), target_path: text(&target) };
        harness.block_on(node.node_unpublish_volume(unpublish)).expect("unpublished");
        watch.next(&harness).assert("longshore_publishes", 0.0);
        let unstage =
            csi::NodeUnstageVolumeRequest { volume_id: "image:measured".to_owned(), staging_target_path: text(&staging) };
        harness.block_on(node.node_unstage_volume(unstage)).expect("unstaged");
        watch.next(&harness).assert("longshore_stages", 0.0);

        // Nobody asks a cloud here, and there is no thin pool; what is counted of them moves in tests beside the declarations.
        let moves = |name: &&str| {
            *name != CONSTANT && !name.starts_with("longshore_cloud_") && *name != "longshore_pool_metadata_used_ratio"
        };
        let declared: BTreeSet<&str> = DECLARED.iter().map(|declared| declared.name).filter(moves).collect();
        assert_eq!(watch.moved, declared, "what is declared and never moves is not measured");
        println!("FIGURE: metrics: {} metrics declared, {} moved", DECLARED.len(), watch.moved.len());
        assert!(harness.stop());
        harness.assert_nothing_left();
    });
}

#[test]
fn more_volumes_make_no_more_series() {
    isolated(|| {
        const VOLUMES: usize = 500;
        let mut harness = Harness::new(Pool::Local);
        harness.with_http();
        harness.start();
        let mut controller = harness.controller();
        harness.block_on(controller.create_volume(create("marked-0", 1, None, "fake"))).expect("created");
        Scrape::of(&harness);
        let one = Scrape::of(&harness);
        for number in 1..VOLUMES {
            harness.block_on(controller.create_volume(create(&format!("marked-{number}"), 1, None, "fake"))).expect("created");
        }
        let many = Scrape::of(&harness);
        many.assert("longshore_volumes{backend=\"fake\",pool=\"memory\"}", VOLUMES as f64);
        let names = |scrape: &Scrape| -> BTreeSet<String> { scrape.0.keys().cloned().collect() };
        assert_eq!(names(&one), names(&many));
        assert!(many.0.keys().all(|sample| !sample.contains("marked")));
        let (head, text) = ask(harness.http(), "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
        for declared in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
            assert!(DECLARED.iter().any(|metric| declared.starts_with(metric.name)), "{declared}");
        }
        assert!(harness.stop());
    });
}

/// docs/metrics.md lists what is declared, word for word.
#[test]
fn the_documentation_lists_all_metrics() {
    let reported: BTreeSet<&str> = include_str!("../docs/metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(|name| name.split('{').next().expect("a name").trim_end_matches("_total"))
        .collect();
    let known: BTreeSet<&str> = DECLARED.iter().map(|declared| declared.name).collect();
    assert_eq!(reported, known);
}

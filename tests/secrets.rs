//! A secret that the CO sends is in no log, metric, journal, file, answer, command line or environment, at any log level and
//! whatever fails.
#![cfg(feature = "faults")]
#![allow(clippy::needless_update, reason = "one macro sends requests with and without further fields")]

mod common;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::http::get;
use common::{Harness, MIB, Pool, capability, create, isolated, text};
use longshore::csi;
use longshore::volume::SnapshotId;
use nix::mount::{MsFlags, mount};
use tonic::Status;

/// Nothing else in the world reads so.
const MARK: &str = "kLq7-marked-secret-Zt0w";

/// The mark as it is, and as what prints bytes would show it.
fn disguises() -> Vec<Vec<u8>> {
    let hex: String = MARK.bytes().map(|byte| format!("{byte:02x}")).collect();
    let decimal = MARK.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
    // Base64, wherever in a triple of bytes it begins.
    let base64 = ["a0xxNy1tYXJrZWQtc2VjcmV0LVp0", "cTctbWFya2VkLXNlY3JldC1adDB3", "THE3LW1hcmtlZC1zZWNyZXQtWnQw"];
    let texts = [MARK, &hex.to_uppercase(), &hex, &decimal].map(|text| text.as_bytes().to_vec());
    texts.into_iter().chain(base64.map(|text| text.as_bytes().to_vec())).collect()
}

fn marked() -> HashMap<String, String> {
    ["encryptionPassphrase", "password"].into_iter().map(|key| (key.to_owned(), MARK.to_owned())).collect()
}

fn find(place: &str, content: &[u8]) {
    for disguise in disguises() {
        let found = content.windows(disguise.len()).any(|window| window == disguise);
        assert!(!found, "the secret is in {place}, as {:?}", String::from_utf8_lossy(&disguise));
    }
}

/// Every request of the protocol that has a field marked as a secret.
fn requests_with_secrets() -> BTreeSet<String> {
    let proto = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/csi.proto")).expect("the protocol");
    let (mut message, mut found) = (String::new(), BTreeSet::new());
    for line in proto.lines() {
        if let Some(rest) = line.strip_prefix("message ") {
            message = rest.split_whitespace().next().expect("a name").to_owned();
        }
        if line.contains("(csi_secret) = true") {
            found.insert(message.clone());
        }
    }
    found
}

/// What was sent, and what came back.
#[derive(Default)]
struct Sent {
    requests: BTreeSet<&'static str>,
    failures: usize,
    /// Each step of each call fails once.
    failing: bool,
    steps: usize,
    orders: usize,
}

impl Sent {
    /// Lets a step of the next call fail, from 1; 0 is none.
    fn arm(&mut self, harness: &Harness, step: usize) {
        if self.failing {
            find("the driver's log", harness.log().as_bytes());
            harness.forget_log();
            self.orders += 1;
            fs::write(harness.path("fault"), format!("{} EIO@{step}", self.orders)).expect("the order");
        }
    }

    /// Whether the call came to the step that was to fail; then it is to be sent again, with the next one failing.
    fn reached(&mut self, harness: &Harness, step: usize) -> bool {
        let reached = self.failing && harness.log().contains(&format!("fault: step {step}: "));
        self.steps += usize::from(reached);
        reached
    }

    fn answer<T: Debug>(&mut self, request: &'static str, answer: Result<T, Status>) {
        self.requests.insert(request);
        self.failures += usize::from(answer.is_err());
        find(&format!("the answer to {request}"), format!("{answer:?}").as_bytes());
    }
}

/// The tools of the driver are run by way of a script that writes down how each was called.
fn watch_tools(harness: &Harness) -> PathBuf {
    let record = harness.path("tools.record");
    let directory = "/usr/local/sbin";
    mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("a tmpfs of our own");
    for tool in ["mkfs.ext4", "mkfs.xfs", "e2fsck", "resize2fs", "cryptsetup"] {
        let real = ["/usr/sbin", "/sbin"].into_iter().map(|directory| Path::new(directory).join(tool)).find(|path| path.exists());
        let Some(real) = real else { continue };
        let script = format!(
            "#!/bin/sh\n{{ tr '\\0' ' ' </proc/$$/cmdline; tr '\\0' ' ' </proc/$$/environ; echo; }} >>'{}'\nexec '{}' \"$@\"\n",
            record.display(),
            real.display()
        );
        let path = Path::new(directory).join(tool);
        fs::write(&path, script).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    record
}

/// Every call that takes secrets, in an order in which they do something; most fail where a step was made to.
fn send_all(harness: &Harness, failing: bool) -> Sent {
    let mut sent = Sent { failing, ..Sent::default() };
    let (mut controller, mut node, mut groups) = (harness.controller(), harness.node(), harness.groups());
    let mut metadata = harness.metadata();
    let id = "image:marked".to_owned();
    let (staging, target) = (text(&harness.staging("marked")), text(&harness.target("marked")));
    let context = |encryption: &str| {
        let json = format!(
            r#"{{"node":{{"mkfsOptions":"","discard":"false","fsck":"true","encryption":"{encryption}"}},"backend":null}}"#
        );
        HashMap::from([("longshore.dev/parameters".to_owned(), json)])
    };
    let range = Some(csi::CapacityRange { required_bytes: 96 * MIB, limit_bytes: 0 });
    macro_rules! send {
        ($client:ident.$method:ident($request:ident { $($field:ident: $value:expr),* $(,)? })) => {{
            for step in 1.. {
                sent.arm(harness, step);
                let request = csi::$request { secrets: marked(), $($field: $value.clone(),)* ..Default::default() };
                find("the request's Debug", format!("{request:?}").as_bytes());
                let answer = harness.block_on(async { $client.$method(request).await.map(tonic::Response::into_inner) });
                sent.answer(stringify!($request), answer);
                if !sent.reached(harness, step) {
                    break;
                }
            }
        }};
    }
    let creation = create("marked", 64, Some("ext4"), "image");
    send!(controller.create_volume(CreateVolumeRequest {
        name: creation.name,
        capacity_range: creation.capacity_range,
        volume_capabilities: creation.volume_capabilities,
        parameters: creation.parameters,
    }));
    let wanted = || Some(capability(Some("ext4")));
    send!(controller.controller_publish_volume(ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: "node-1".to_owned(),
        volume_capability: wanted(),
    }));
    send!(controller.validate_volume_capabilities(ValidateVolumeCapabilitiesRequest {
        volume_id: id.clone(),
        volume_capabilities: vec![capability(Some("ext4"))],
    }));
    // Encrypted first: it writes a header where there is cryptsetup, and fails where there is no device-mapper.
    for encryption in ["luks2", "none"] {
        send!(node.node_stage_volume(NodeStageVolumeRequest {
            volume_id: id.clone(),
            staging_target_path: staging.clone(),
            volume_capability: wanted(),
            volume_context: context(encryption),
        }));
        send!(node.node_publish_volume(NodePublishVolumeRequest {
            volume_id: id.clone(),
            staging_target_path: staging.clone(),
            target_path: target.clone(),
            volume_capability: wanted(),
        }));
        send!(
            controller.controller_expand_volume(ControllerExpandVolumeRequest { volume_id: id.clone(), capacity_range: range })
        );
        send!(node.node_expand_volume(NodeExpandVolumeRequest {
            volume_id: id.clone(),
            volume_path: target.clone(),
            staging_target_path: staging.clone(),
            capacity_range: range,
        }));
        send!(controller.create_snapshot(CreateSnapshotRequest { source_volume_id: id.clone(), name: "then".to_owned() }));
        sent.arm(harness, 0);
        let unpublish = csi::NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: target.clone() };
        let unstage = csi::NodeUnstageVolumeRequest { volume_id: id.clone(), staging_target_path: staging.clone() };
        let unpublished = harness.block_on(node.node_unpublish_volume(unpublish));
        let unstaged = harness.block_on(node.node_unstage_volume(unstage));
        find("the answers to unpublish and unstage", format!("{unpublished:?} {unstaged:?}").as_bytes());
        // The header in the first round is no blank device to the second.
        if encryption == "luks2" {
            send!(controller.delete_snapshot(DeleteSnapshotRequest { snapshot_id: "image:then".to_owned() }));
            send!(controller.delete_volume(DeleteVolumeRequest { volume_id: id.clone() }));
            send!(controller.create_volume(CreateVolumeRequest {
                name: creation.name,
                capacity_range: creation.capacity_range,
                volume_capabilities: creation.volume_capabilities,
                parameters: creation.parameters,
            }));
        }
    }
    let attributes = [("csi.storage.k8s.io/ephemeral", "true"), ("backend", "image"), ("size", "64MiB"), ("encryption", "luks2")];
    let attributes: HashMap<String, String> =
        attributes.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    send!(node.node_publish_volume(NodePublishVolumeRequest {
        volume_id: "csi-marked".to_owned(),
        target_path: target.clone(),
        volume_capability: wanted(),
        volume_context: attributes,
    }));
    sent.arm(harness, 0);
    let unpublish = csi::NodeUnpublishVolumeRequest { volume_id: "csi-marked".to_owned(), target_path: target.clone() };
    harness.block_on(node.node_unpublish_volume(unpublish)).ok();
    send!(controller.controller_modify_volume(ControllerModifyVolumeRequest {
        volume_id: id.clone(),
        mutable_parameters: HashMap::from([("preallocate".to_owned(), "true".to_owned())]),
    }));
    send!(controller.controller_get_volume_health(ControllerGetVolumeHealthRequest { volume_id: id.clone() }));
    send!(controller.controller_list_volume_health(ControllerListVolumeHealthRequest {}));
    send!(node.node_get_storage_health(NodeGetStorageHealthRequest {}));
    send!(controller.get_snapshot(GetSnapshotRequest { snapshot_id: "image:then".to_owned() }));
    send!(controller.list_snapshots(ListSnapshotsRequest {}));
    let request = csi::GetMetadataAllocatedRequest {
        snapshot_id: "image:then".to_owned(),
        max_results: 10,
        secrets: marked(),
        ..Default::default()
    };
    let answer = harness.block_on(async { metadata.get_metadata_allocated(request).await?.into_inner().message().await });
    sent.answer("GetMetadataAllocatedRequest", answer);
    let request = csi::GetMetadataDeltaRequest {
        base_snapshot_id: "image:then".to_owned(),
        target_snapshot_id: "image:then".to_owned(),
        max_results: 10,
        secrets: marked(),
        ..Default::default()
    };
    let answer = harness.block_on(async { metadata.get_metadata_delta(request).await?.into_inner().message().await });
    sent.answer("GetMetadataDeltaRequest", answer);
    send!(groups.create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest {
        name: "together".to_owned(),
        source_volume_ids: vec![id.clone()],
    }));
    send!(groups.get_volume_group_snapshot(GetVolumeGroupSnapshotRequest { group_snapshot_id: "image:together".to_owned() }));
    let member = SnapshotId::derive(&"image".parse().expect("a name"), "together/marked").to_string();
    send!(groups.delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: "image:together".to_owned(),
        snapshot_ids: vec![member.clone()]
    }));
    send!(controller.delete_snapshot(DeleteSnapshotRequest { snapshot_id: "image:then".to_owned() }));
    send!(
        controller.controller_unpublish_volume(ControllerUnpublishVolumeRequest {
            volume_id: id.clone(),
            node_id: "node-1".to_owned(),
        })
    );
    send!(controller.delete_volume(DeleteVolumeRequest { volume_id: id }));
    sent
}

/// Where traces go, if they are built in.
#[cfg(feature = "otlp")]
struct Traces(common::otlp::Collector);
#[cfg(not(feature = "otlp"))]
struct Traces;

impl Traces {
    #[cfg(feature = "otlp")]
    fn to(harness: &Harness) -> Traces {
        let collector = common::otlp::Collector::start();
        harness.configure(&format!("otlpEndpoint: http://{}", collector.address));
        Traces(collector)
    }

    #[cfg(not(feature = "otlp"))]
    fn to(_harness: &Harness) -> Traces {
        Traces
    }

    /// Looks at all that has been sent; to be called when the driver has ended.
    #[cfg(feature = "otlp")]
    fn search(&mut self) {
        self.0.until(|spans| spans.iter().any(|span| span.name == "NodeStageVolume"));
        self.0.take();
        find("the traces", format!("{:?}", self.0.requests).as_bytes());
        self.0.requests.clear();
    }

    #[cfg(not(feature = "otlp"))]
    fn search(&mut self) {}
}

/// Looks everywhere where something may have been written, at what is reported over HTTP, and at the driver itself.
fn search(harness: &Harness, http: SocketAddr, record: &Path) {
    for page in ["/metrics", "/readyz", "/nothing"] {
        find(page, get(http, page).1.as_bytes());
    }
    find("the driver's log", harness.log().as_bytes());
    find("the calls of tools", &fs::read(record).unwrap_or_default());
    for file in ["cmdline", "environ"] {
        let content = fs::read(format!("/proc/{}/{file}", harness.pid())).expect("the driver runs");
        find(&format!("the driver's {file}"), &content);
    }
    for directory in ["state", "pool/images", "kubelet"] {
        search_below(&harness.path(directory));
    }
}

fn search_below(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().map(|entry| entry.expect("an entry")) {
        let path = entry.path();
        find("a file's name", path.as_os_str().as_encoded_bytes());
        match entry.file_type().expect("a type") {
            kind if kind.is_dir() => search_below(&path),
            kind if kind.is_file() => find(&path.display().to_string(), &fs::read(&path).expect("readable")),
            _ => {}
        }
    }
}

#[test]
fn the_search_finds_what_is_there() {
    for disguise in disguises() {
        let content = [b"before ", disguise.as_slice(), b" after"].concat();
        let found = std::panic::catch_unwind(|| find("here", &content));
        assert!(found.is_err(), "{:?}", String::from_utf8_lossy(&disguise));
    }
    find("nowhere", b"something else");
}

#[test]
fn at_every_log_level() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        let record = watch_tools(&harness);
        harness.with_http();
        let mut traces = Traces::to(&harness);
        let configuration = fs::read_to_string(harness.path("config.yaml")).expect("the configuration");
        for format in ["text", "json"] {
            fs::write(harness.path("config.yaml"), format!("{configuration}log:\n  format: {format}\n"))
                .expect("the configuration");
            for level in ["error", "warn", "info", "debug", "trace"] {
                // That it listens is said in any case: the test waits for it.
                harness.set("LONGSHORE_LOG", &format!("{level},longshore::server=info"));
                harness.start();
                let http = harness.http();
                let sent = send_all(&harness, false);
                let all: BTreeSet<String> = sent.requests.iter().map(|name| (*name).to_owned()).collect();
                assert_eq!(all, requests_with_secrets(), "a request that takes secrets was left out");
                search(&harness, http, &record);
                assert!(harness.stop());
                traces.search();
                harness.forget_log();
            }
        }
        assert!(fs::read_to_string(&record).expect("tools were run").contains("mkfs.ext4"), "what tools were given was not seen");
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

#[test]
fn with_every_step_failing() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        let record = watch_tools(&harness);
        harness.with_http();
        let mut traces = Traces::to(&harness);
        harness.set("LONGSHORE_LOG", "trace");
        harness.set("LONGSHORE_FAULT_FILE", &harness.path("fault").display().to_string());
        fs::write(harness.path("fault"), "").expect("no order yet");
        harness.start();
        let http = harness.http();
        let sent = send_all(&harness, true);
        search(&harness, http, &record);
        assert!(harness.stop());
        traces.search();
        assert!(sent.steps > 60, "{} steps only", sent.steps);
        harness.assert_nothing_left();
        harness.assert_pool_empty();
        println!("FIGURE: secrets: {} steps failing, {} calls failed, 0 secrets found", sent.steps, sent.failures);
    });
}

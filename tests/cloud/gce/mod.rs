//! The backend `gce` against an emulator of Compute Engine that checks each request, and each of its own answers, by Google's own description
//! of the API (`server.py`): operations that take time and may fail at their end, names that stay in use, labels that others change.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use longshore::csi;
use serde_json::{Value, json};
use tonic::Code;

use super::common::{self, Harness, Pool, capability, skipped, text};
use super::driver::{GIB, is_final};
use super::emulated::Passed;
use super::machine::Attached;
use super::moto;
use super::scale::{self, Limit, Rate, Rated};
use super::tenant::{Call, Driver, Emulated, SPEED, Stage, code, shared_block};
use super::wire::Request;

mod cluster;
mod credentials;
mod faults;
mod images;
mod lifecycle;
mod sanity;

pub const ZONE: &str = "europe-west3-a";
/// Shown nowhere but to the API.
const TOKEN: &str = "ya29.a-secret-token";

/// An emulated project of its own.
pub struct Google {
    pub address: SocketAddr,
    /// Its standard input stays open for as long as it is needed.
    process: Child,
}

/// A Python with Google's packages, installed at the first need.
fn python() -> Result<PathBuf, String> {
    let requirements = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cloud/gce/requirements.txt"));
    common::tools::python("gce", requirements)
}

impl Drop for Google {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Google {
    /// With two machines; `None`, and said, where it cannot be installed.
    pub fn start() -> Option<Google> {
        let started = python().and_then(|python| moto::serve_by(&python, &[include_str!("server.py")]));
        match started {
            Ok((address, process)) => {
                let google = Google { address, process };
                google
                    .order(&json!({"instances": {format!("{ZONE}/n1"): "c4-standard-4", format!("{ZONE}/n2"): "n2-standard-4"},
                    "settings": {"rights": documented_rights()}}));
                Some(google)
            }
            Err(why) => {
                skipped(&why);
                None
            }
        }
    }

    /// What there is.
    pub fn state(&self) -> Value {
        self.order(&Value::Null)
    }

    /// Sets what is to go wrong, and tells what there is.
    pub fn order(&self, order: &Value) -> Value {
        let body = if order.is_null() { String::new() } else { order.to_string() };
        let mut stream = TcpStream::connect(self.address).expect("the emulator serves");
        let head = format!("POST /test HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        serde_json::from_str(text.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON")
    }

    pub fn fault(&self, fault: Value) {
        self.order(&json!({"faults": [fault]}));
    }

    pub fn disks(&self) -> Vec<Value> {
        self.state()["disks"].as_array().expect("a list").clone()
    }

    pub fn snapshots(&self) -> Vec<Value> {
        self.state()["snapshots"].as_array().expect("a list").clone()
    }

    pub fn images(&self) -> Vec<Value> {
        self.state()["images"].as_array().expect("a list").clone()
    }

    /// The one disk there is.
    pub fn disk(&self) -> Value {
        let mut disks = self.disks();
        assert_eq!(disks.len(), 1, "{disks:#?}");
        disks.remove(0)
    }

    pub fn count(&self, method: &str) -> u64 {
        self.state()["counts"][method].as_u64().unwrap_or_default()
    }

    /// Each request and each answer was as the API's description has it.
    pub fn assert_valid(&self) {
        assert_eq!(self.state()["violations"], json!([]));
    }
}

/// The permissions of docs/gce.md, without those that only images need.
pub fn documented_rights() -> Vec<String> {
    all_rights().into_iter().filter(|right| !right.starts_with("compute.images.")).collect()
}

pub fn all_rights() -> Vec<String> {
    let text = include_str!("../../../docs/gce.md");
    let rights = text.lines().filter_map(|line| line.trim().strip_prefix("- compute."));
    rights.map(|right| format!("compute.{right}")).collect()
}

/// The id of a machine of the project.
pub fn node(name: &str) -> String {
    format!("projects/p-1/zones/{ZONE}/instances/{name}")
}

/// As disks of NVMe on a machine.
fn attached_to(state: &Value, name: &str) -> Vec<Attached> {
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let disks = list(&state["disks"]);
    let machine = list(&state["instances"]).into_iter().find(|machine| machine["name"] == name).expect("it is there");
    let shown = list(&machine["disks"]).into_iter().filter(|attached| attached["boot"] != true).map(|attached| {
        let disk = disks.iter().find(|disk| disk["selfLink"] == attached["source"]).expect("it is there");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        Attached {
            disk: text(&disk["id"]),
            gib: text(&disk["sizeGb"]).parse().expect("a size"),
            files: vec![("device/model", "nvme_card-pd".to_owned()), ("attached-as", text(&attached["deviceName"]))],
        }
    });
    shown.collect()
}

impl Emulated for Google {
    const SECRETS: &'static [&'static str] = &[TOKEN, "ya29.federated-secret", "ya29.impersonated-secret"];

    fn assert_empty(&self, when: &str) {
        assert_eq!((self.disks(), self.snapshots(), self.images()), (vec![], vec![], vec![]), "something is left {when}");
        self.assert_valid();
    }
}

impl Stage for Google {
    const NAME: &'static str = "gce";
    const BACKEND: &'static str = "pd";
    const MUTABLE: &'static [(&'static str, &'static str)] = &[("iops", "4000"), ("throughput", "200")];

    fn open() -> Option<Google> {
        let google = Google::start()?;
        google.order(&json!({"settings": {"delay": 0.02}}));
        Some(google)
    }

    fn driver_with(&self, more: &str) -> Driver {
        // Handles of the other driver are known by the project that the configuration says.
        let project = if more.is_empty() { "" } else { "project: p-1\n    " };
        driver_with(self, "test", &format!("{project}{more}"))
    }

    fn handle(&self) -> String {
        format!("projects/p-1/zones/{ZONE}/disks/{}", self.disk()["name"].as_str().expect("a name"))
    }

    fn disown(&self) {
        self.order(&json!({"disown": true}));
    }

    fn request_of(call: Call) -> &'static str {
        match call {
            Call::Create | Call::Restore | Call::Clone => "disks.insert",
            Call::Attach => "instances.attachDisk",
            Call::Expand => "disks.resize",
            Call::Modify => "disks.update",
            Call::Snapshot => "snapshots.insert",
            Call::DeleteSnapshot => "snapshots.delete",
            Call::Detach => "instances.detachDisk",
            Call::Delete => "disks.delete",
        }
    }

    fn changeable(mut request: csi::CreateVolumeRequest) -> csi::CreateVolumeRequest {
        request.parameters.insert("type".to_owned(), "hyperdisk-balanced".to_owned());
        request
    }

    fn lose(&self, request: &'static str, kind: &'static str, times: u32) {
        self.fault(json!({"method": request, "kind": kind, "times": times}));
    }

    fn forget(&self) {
        self.order(&json!({"forget": true}));
    }

    fn summary(&self) -> Vec<String> {
        let state = self.state();
        let part = |resource: &Value, field: &str| resource[field].to_string();
        let disk = |disk: &Value| {
            let fields = ["sizeGb", "provisionedIops", "provisionedThroughput", "status", "users"];
            fields.map(|field| part(disk, field)).join(" ")
        };
        let list = |kind: &str| state[kind].as_array().expect("a list").clone();
        let disks = list("disks").iter().map(disk).collect::<Vec<_>>();
        let snapshots = list("snapshots").iter().chain(&list("images")).map(|one| part(one, "status")).collect::<Vec<_>>();
        let attached = list("instances").iter().map(|one| one["disks"].as_array().expect("a list").len().to_string()).collect();
        let mut all = [disks, snapshots, attached].concat();
        all.sort();
        all
    }
}

/// Started, on the first machine.
fn start(google: &Google) -> Driver {
    driver_of(google, "test").started()
}

/// Not started yet.
fn driver_of(google: &Google, cluster: &str) -> Driver {
    driver_with(google, cluster, "")
}

/// With `more` of the configuration, `$SCRATCH` being its directory.
fn driver_with(google: &Google, cluster: &str, more: &str) -> Driver {
    let mut harness = Harness::new(Pool::Local);
    let config = format!(
        "backends:\n  - name: pd\n    type: gce\n    cluster: {cluster}\n    region: europe-west3\n    endpoint: http://{}\n    \
         labels: {{team: storage}}\n    {}\n",
        google.address,
        more.replace("$SCRATCH/", &text(&harness.path(""))),
    );
    fs::write(harness.path("config.yaml"), config).expect("the configuration");
    harness.set_node_id(&node("n1"));
    harness.set("GCE_METADATA_HOST", &google.address.to_string());
    harness.set("LONGSHORE_CLOUD_SPEED", &SPEED.to_string());
    Driver::of(harness, node, creation)
}

/// Ten GiB of pd-balanced in the zone.
pub fn creation(name: &str) -> csi::CreateVolumeRequest {
    let zone = csi::Topology { segments: HashMap::from([("topology.gke.io/zone".to_owned(), ZONE.to_owned())]) };
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 10 * GIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability(Some("ext4"))],
        parameters: HashMap::from([("type".to_owned(), "pd-balanced".to_owned())]),
        accessibility_requirements: Some(csi::TopologyRequirement { requisite: vec![zone.clone()], preferred: vec![zone] }),
        ..Default::default()
    }
}

/// "Compute Engine API rate quotas": of a project in a region, of each group of methods.
impl Rated for Google {
    const RATES: &'static [Rate] = &[
        Rate { of: "reads", limit: Limit::Minute(1500.0) },
        Rate { of: "lists", limit: Limit::Minute(1500.0) },
        Rate { of: "operations", limit: Limit::Minute(1500.0) },
        Rate { of: "mutations", limit: Limit::Minute(1500.0) },
    ];
    const MOST: [(u64, u64); 4] = [(100, 1200), (200, 1100), (100, 800), (100, 800)];

    fn address(&mut self) -> &mut SocketAddr {
        &mut self.address
    }

    fn add_machines(&self, count: usize) {
        let all: serde_json::Map<String, Value> =
            (0..count).map(|number| (format!("{ZONE}/m{number}"), "n2-standard-4".into())).collect();
        self.order(&json!({"instances": all}));
    }

    fn rate_of(request: &Request) -> Option<&'static str> {
        let path = request.path.split('?').next().unwrap_or_default();
        match request.method.as_str() {
            _ if !path.starts_with("/compute/") => None,
            "GET" if path.contains("/operations") => Some("operations"),
            "GET" if ["disks", "instances", "snapshots", "images", "zones"].iter().any(|list| path.ends_with(list)) => {
                Some("lists")
            }
            "GET" => Some("reads"),
            _ => Some("mutations"),
        }
    }

    fn throttled() -> Passed {
        let message = "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute'";
        let reason = json!([{"message": message, "domain": "usageLimits", "reason": "rateLimitExceeded"}]);
        let body = json!({"error": {"code": 403, "message": message, "errors": reason}}).to_string();
        Passed { status: 403, headers: std::collections::BTreeMap::new(), body }
    }
}

#[test]
fn gce_many_volumes_cost_few_requests() {
    scale::many_volumes::<Google>();
}

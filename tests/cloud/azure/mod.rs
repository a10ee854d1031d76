//! The backend `azure` against a stand-in for Azure Resource Manager (`emulator`).

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use longshore::csi;
use serde_json::{Value, json};
use tonic::Code;

use super::common::{Harness, Pool, capability};
use super::driver::{GIB, is_final};
use super::emulated::Passed;
use super::machine::Attached;
use super::scale::{self, Limit, Rate, Rated};
use super::tenant::{Call, Driver, Emulated, SPEED, Stage, code, shared_block};
use super::wire::Request;

mod cluster;
mod emulator;
mod faults;
mod lifecycle;
mod sanity;
mod slots;
mod vendor;

use emulator::{Azure, Trouble};

const SUBSCRIPTION: &str = "00000000-1111-2222-3333-444444444444";
const GROUP: &str = "MC_Group";
const LOCATION: &str = "westeurope";
const ZONE: &str = "westeurope-1";
/// Shown nowhere but to Entra, and to the API.
const SECRET: &str = "an-applications-secret";
const FEDERATED: &str = "a-token-of-the-cluster";
const TOKEN: &str = "eyJ0-a-secret-token";

/// The id of a machine of the group: `n1`, or `set/3`.
fn node(name: &str) -> String {
    format!("{}/{name}", GROUP.to_ascii_lowercase())
}

/// Ten GiB of StandardSSD_LRS in the zone.
fn creation(name: &str) -> csi::CreateVolumeRequest {
    let zone = csi::Topology { segments: HashMap::from([("topology.disk.csi.azure.com/zone".to_owned(), ZONE.to_owned())]) };
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 10 * GIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability(Some("ext4"))],
        accessibility_requirements: Some(csi::TopologyRequirement { requisite: vec![zone.clone()], preferred: vec![zone] }),
        ..Default::default()
    }
}

fn with(parameters: &[(&str, &str)], request: csi::CreateVolumeRequest) -> csi::CreateVolumeRequest {
    let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    csi::CreateVolumeRequest { parameters, ..request }
}

/// Not started yet, on the first machine; `more` of the configuration.
fn driver_with(azure: &Azure, cluster: &str, more: &str) -> Driver {
    let mut harness = Harness::new(Pool::Local);
    fs::write(harness.path("secret"), format!("{SECRET}\n")).expect("the secret");
    fs::write(harness.path("federated"), FEDERATED).expect("the token");
    let url = format!("http://{}", azure.address);
    let config = format!(
        "backends:\n  - name: az\n    type: azure\n    cluster: {cluster}\n    subscriptionId: {SUBSCRIPTION}\n    resourceGroup: {GROUP}\n    \
         location: {LOCATION}\n    endpoint: {url}\n    authority: {url}\n    metadataEndpoint: {url}\n    tags: {{team: storage}}\n    {}\n",
        more.replace("$SCRATCH", &harness.path("").display().to_string())
    );
    fs::write(harness.path("config.yaml"), config).expect("the configuration");
    harness.set_node_id(&node("n1"));
    harness.set("LONGSHORE_CLOUD_SPEED", &SPEED.to_string());
    Driver::of(harness, node, creation)
}

/// As namespaces of an NVMe controller of this machine.
fn attached_to(azure: &Azure, machine: &str) -> Vec<Attached> {
    let luns = azure.luns(machine);
    let state = azure.state();
    let attached = luns.into_iter().map(|(lun, disk)| Attached {
        gib: state.disks[&disk]["properties"]["diskSizeGB"].as_u64().expect("a size"),
        files: vec![("device/model", "MSFT NVMe Accelerator v1.0".to_owned()), ("nsid", (lun + 2).to_string())],
        disk,
    });
    attached.collect()
}

fn driver_of(azure: &Azure, cluster: &str) -> Driver {
    driver_with(azure, cluster, "")
}

fn start(azure: &Azure) -> Driver {
    driver_of(azure, "test").started()
}

impl Emulated for Azure {
    const SECRETS: &'static [&'static str] = &[SECRET, FEDERATED, TOKEN];

    fn assert_empty(&self, when: &str) {
        self.wait_until_idle();
        let state = self.state();
        assert!(state.disks.is_empty(), "disks are left {when}: {:#?}", state.disks);
        assert!(state.snapshots.is_empty(), "snapshots are left {when}: {:#?}", state.snapshots);
        assert_eq!(state.violations, Vec::<String>::new(), "{when}");
    }
}

impl Stage for Azure {
    const NAME: &'static str = "azure";
    const BACKEND: &'static str = "az";
    const MUTABLE: &'static [(&'static str, &'static str)] = &[("skuName", "Premium_LRS"), ("tags", "tier=fast")];

    fn open() -> Option<Azure> {
        let azure = Azure::start();
        azure.state().delay = Duration::from_millis(20);
        azure.state().copy = Duration::from_millis(20);
        Some(azure)
    }

    fn driver_with(&self, more: &str) -> Driver {
        driver_with(self, "test", more)
    }

    /// In another case than ours, as Azure may answer.
    fn handle(&self) -> String {
        let name = self.disk()["name"].as_str().expect("a name").to_uppercase();
        format!("/subscriptions/{SUBSCRIPTION}/resourcegroups/{GROUP}/providers/Microsoft.Compute/disks/{name}")
    }

    fn disown(&self) {
        self.wait_until_idle();
        self.state().disks.values_mut().for_each(|disk| disk["tags"] = json!({"owner": "someone"}));
    }

    fn request_of(call: Call) -> &'static str {
        match call {
            Call::Create | Call::Restore | Call::Clone => "disks.put",
            Call::Attach | Call::Detach => "virtualMachines.attachDetachDataDisks",
            Call::Expand | Call::Modify => "disks.update",
            Call::Snapshot => "snapshots.put",
            Call::DeleteSnapshot => "snapshots.delete",
            Call::Delete => "disks.delete",
        }
    }

    fn changeable(request: csi::CreateVolumeRequest) -> csi::CreateVolumeRequest {
        request
    }

    fn lose(&self, request: &'static str, kind: &'static str, times: u32) {
        self.trouble(request, if kind == "before" { Trouble::Before } else { Trouble::After }, times);
    }

    fn forget(&self) {
        self.forget_troubles();
    }

    fn summary(&self) -> Vec<String> {
        self.wait_until_idle();
        let state = self.state();
        let disk = |one: &Value| {
            let parts =
                [&one["properties"]["diskSizeGB"], &one["properties"]["diskState"], &one["sku"]["name"], &one["tags"]["tier"]];
            parts.map(Value::to_string).join(" ")
        };
        let machine =
            |one: &Value| one["properties"]["storageProfile"]["dataDisks"].as_array().expect("a list").len().to_string();
        let all = state.disks.values().map(disk).chain(state.snapshots.keys().map(|_| "snapshot".to_owned()));
        let mut all: Vec<String> = all.chain(state.machines.values().map(machine)).collect();
        all.sort();
        all
    }
}

/// "Throttling Resource Manager requests": of each subscription, by principal and region.
impl Rated for Azure {
    const RATES: &'static [Rate] = &[
        Rate { of: "reads", limit: Limit::Bucket((250.0, 25.0)) },
        Rate { of: "writes", limit: Limit::Bucket((200.0, 10.0)) },
        Rate { of: "deletes", limit: Limit::Bucket((200.0, 10.0)) },
    ];
    const MOST: [(u64, u64); 4] = [(100, 800), (200, 1200), (100, 1000), (100, 800)];

    fn address(&mut self) -> &mut std::net::SocketAddr {
        &mut self.address
    }

    fn add_machines(&self, count: usize) {
        (0..count).for_each(|number| self.add_machine(&format!("m{number}"), "Standard_D4s_v5", Some("1")));
    }

    fn rate_of(request: &Request) -> Option<&'static str> {
        match request.method.as_str() {
            _ if !request.path.starts_with("/subscriptions/") => None,
            "GET" => Some("reads"),
            "DELETE" => Some("deletes"),
            _ => Some("writes"),
        }
    }

    fn throttled() -> Passed {
        let error =
            json!({"error": {"code": "SubscriptionRequestsThrottled", "message": "Number of requests exceeded the limit."}});
        Passed { status: 429, headers: [("retry-after".to_owned(), "5".to_owned())].into(), body: error.to_string() }
    }
}

#[test]
fn azure_many_volumes_cost_few_requests() {
    scale::many_volumes::<Azure>();
}

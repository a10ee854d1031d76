//! The backend `cinder` against a stand-in for OpenStack (`emulator`), and its control plane against a real Cinder (`real`), of which only Keystone and
//! Nova are stand-ins.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use longshore::csi;
use serde_json::{Value, json};
use tonic::Code;

use super::common::{self, Harness, Pool, capability, skipped};
use super::driver::{GIB, is_final};
use super::emulated::Passed;
use super::machine::Attached;
use super::scale::{self, Rate, Rated};
use super::tenant::{Call, Driver, Emulated, SPEED, Stage, code, shared_block};
use super::wire::Request;

mod backups;
mod cluster;
mod emulator;
mod faults;
mod lifecycle;
mod real;
mod sanity;

use emulator::{OpenStack, PROJECT, Trouble};

/// The zone of Nova that the servers are in, and the zone of Cinder that belongs to it.
const ZONE: &str = "az-a";
const VOLUME_ZONE: &str = "ceph-a";
/// Shown nowhere but to Keystone, and to the services.
const SECRET: &str = "an-application-credentials-secret";
const PASSWORD: &str = "a-password-of-keystone";
const TOKEN: &str = "gAAAAA-a-secret-token";

/// The id of a server of this name.
fn node(name: &str) -> String {
    let digits: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    let digits = format!("{digits:0>8}");
    format!("{}-1111-4111-8111-111111111111", &digits[digits.len() - 8..])
}

/// Ten GiB in the zone.
fn creation(name: &str) -> csi::CreateVolumeRequest {
    let zone = csi::Topology { segments: HashMap::from([("topology.kubernetes.io/zone".to_owned(), ZONE.to_owned())]) };
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 10 * GIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability(Some("ext4"))],
        accessibility_requirements: Some(csi::TopologyRequirement { requisite: vec![zone.clone()], preferred: vec![zone] }),
        ..Default::default()
    }
}

/// clouds.yaml with an application credential, or a password.
fn clouds(cloud: &OpenStack, with_password: bool) -> String {
    let auth = match with_password {
        true => format!("username: driver, password: {PASSWORD}, user_domain_name: Default, project_id: {PROJECT}"),
        false => format!("application_credential_id: app, application_credential_secret: {SECRET}"),
    };
    format!(
        "clouds:\n  openstack:\n    region_name: RegionOne\n    auth: {{auth_url: 'http://{}/identity', {auth}}}\n",
        cloud.address
    )
}

/// Not started yet, on the first server.
fn driver_of(cloud: &OpenStack, cluster: &str) -> Driver {
    driver_with(cloud, cluster, "")
}

/// With `more` of the configuration.
fn driver_with(cloud: &OpenStack, cluster: &str, more: &str) -> Driver {
    let mut harness = Harness::new(Pool::Local);
    fs::write(harness.path("clouds.yaml"), clouds(cloud, cluster == "password")).expect("clouds.yaml");
    let config = format!(
        "backends:\n  - name: vol\n    type: cinder\n    cluster: {cluster}\n    cloudsFile: {}\n    zones: {{az-a: ceph-a, az-b: ceph-b}}\n    \
         zone: {ZONE}\n    metadata: {{team: storage}}\n    {more}\n",
        harness.path("clouds.yaml").display()
    );
    fs::write(harness.path("config.yaml"), config).expect("the configuration");
    harness.set_node_id(&node("n1"));
    harness.set("LONGSHORE_CLOUD_SPEED", &SPEED.to_string());
    Driver::of(harness, node, creation)
}

/// As disks of virtio-blk on this server, which have 20 characters of the volume's id for a serial number.
fn attached_to(cloud: &OpenStack, server: &str) -> Vec<Attached> {
    let state = cloud.state();
    let held = state.servers[server]["os-extended-volumes:volumes_attached"].as_array().expect("a list");
    let shown = held.iter().map(|held| {
        let disk = held["id"].as_str().expect("an id").to_owned();
        let gib = state.volumes[&disk]["size"].as_u64().expect("a size");
        Attached { gib, files: vec![("serial", disk[..20].to_owned())], disk }
    });
    shown.collect()
}

fn start(cloud: &OpenStack) -> Driver {
    driver_of(cloud, "test").started()
}

impl Emulated for OpenStack {
    const SECRETS: &'static [&'static str] = &[SECRET, PASSWORD, TOKEN];

    fn assert_empty(&self, when: &str) {
        let state = self.state();
        assert!(state.volumes.is_empty(), "volumes are left {when}: {:#?}", state.volumes);
        assert!(state.snapshots.is_empty(), "snapshots are left {when}: {:#?}", state.snapshots);
        assert!(state.backups.is_empty(), "backups are left {when}: {:#?}", state.backups);
        assert!(state.attachments.is_empty(), "attachments are left {when}: {:#?}", state.attachments);
        assert_eq!(state.violations, Vec::<String>::new());
    }
}

impl Stage for OpenStack {
    const NAME: &'static str = "cinder";
    const BACKEND: &'static str = "vol";
    const MUTABLE: &'static [(&'static str, &'static str)] = &[("type", "fast")];

    fn open() -> Option<OpenStack> {
        let cloud = OpenStack::start(None);
        cloud.state().delay = Duration::from_millis(20);
        Some(cloud)
    }

    fn driver_with(&self, more: &str) -> Driver {
        driver_with(self, "test", more)
    }

    fn handle(&self) -> String {
        self.volume()["id"].as_str().expect("an id").to_owned()
    }

    fn disown(&self) {
        self.state().volumes.values_mut().for_each(|volume| volume["metadata"] = json!({"owner": "someone"}));
    }

    fn request_of(call: Call) -> &'static str {
        match call {
            Call::Create | Call::Restore | Call::Clone => "create volume",
            Call::Attach => "attach volume",
            Call::Expand => "extend volume",
            Call::Modify => "retype volume",
            Call::Snapshot => "create snapshot",
            Call::DeleteSnapshot => "delete snapshot",
            Call::Detach => "detach volume",
            Call::Delete => "delete volume",
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
        let state = self.state();
        let volume = |one: &Value| ["size", "volume_type", "status"].map(|field| one[field].to_string()).join(" ");
        let snapshot = |one: &Value| one["status"].to_string();
        let backup = |one: &Value| format!("backup {}", one["status"]);
        let server = |one: &Value| one["os-extended-volumes:volumes_attached"].as_array().expect("a list").len().to_string();
        let all = state.volumes.values().map(volume).chain(state.snapshots.values().map(snapshot));
        let all = all.chain(state.backups.values().map(backup));
        let mut all: Vec<String> = all.chain(state.servers.values().map(server)).collect();
        all.sort();
        all
    }
}

/// OpenStack publishes no rates.
impl Rated for OpenStack {
    const RATES: &'static [Rate] = &[];
    const MOST: [(u64, u64); 4] = [(100, 800), (200, 800), (100, 600), (100, 800)];

    fn address(&mut self) -> &mut std::net::SocketAddr {
        &mut self.address
    }

    fn add_machines(&self, count: usize) {
        self.state().quota = usize::MAX;
        (0..count).for_each(|number| self.add_server(&format!("m{number}"), ZONE));
    }

    fn rate_of(request: &Request) -> Option<&'static str> {
        match request.method.as_str() {
            _ if request.path.contains("/auth/tokens") => None,
            "GET" => Some("reads"),
            _ => Some("writes"),
        }
    }

    fn throttled() -> Passed {
        unreachable!("it has no rates")
    }
}

#[test]
fn cinder_many_volumes_cost_few_requests() {
    scale::many_volumes::<OpenStack>();
}

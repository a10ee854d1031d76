//! A driver that has the unfriendly cloud for its cloud, and its caller.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::common::{Harness, Pool, capability};
use super::moto::{self, Moto, REGION};
use super::proxy::Cloud;
use super::wire::Parameters;
use super::xml::Element;

pub const ZONE: &str = "us-east-1a";
pub const GIB: i64 = 1 << 30;
/// Shown nowhere but to sign with.
pub const SECRET: &str = "wJalrXUtnFEMIlongshorebPxRfiCYSECRETKEY0";
/// Who owns what the driver makes.
const CLUSTER: &str = "test";
const CLUSTER_TAG: &str = "longshore.dev/cluster";

/// How long a call may take, in the cloud's time, as long as the sidecars' `--timeout`.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long a caller continues asking, in real time.
const GIVES_UP: Duration = Duration::from_secs(60);

pub type Called<T> = Result<T, Status>;

pub struct Driver {
    pub harness: Harness,
    pub cloud: Arc<Cloud>,
    /// The truth of what there is.
    pub moto: Moto,
    /// Whether calls are made again until they are answered for good.
    pub persistent: bool,
    /// How long a call is waited for, in the cloud's time.
    pub patience: Duration,
    /// What a CO keeps: by what CreateVolume and CreateSnapshot derive from a name, the handle that they answered.
    volumes: Mutex<BTreeMap<String, String>>,
    snapshots: Mutex<BTreeMap<String, String>>,
    speed: u32,
}

impl Driver {
    /// Started, on the first of these machines.
    pub fn start(cloud: &Arc<Cloud>, speed: u32, instance: &str) -> Driver {
        let address = cloud.address;
        let mut driver = Driver::new(cloud, speed, instance, &format!("http://{address}"));
        driver.harness.start();
        driver
    }

    /// Not started yet, and with this address of its cloud.
    pub fn new(cloud: &Arc<Cloud>, speed: u32, instance: &str, endpoint: &str) -> Driver {
        let mut harness = Harness::new(Pool::Local);
        let config = format!(
            "backends:\n  - name: ebs\n    type: ec2\n    cluster: {CLUSTER}\n    region: {REGION}\n    endpoint: {endpoint}\n    \
             ebsEndpoint: {endpoint}\n    zone: {ZONE}\n    instanceType: m5.large\n    tags: {{team: storage}}\n"
        );
        fs::write(harness.path("config.yaml"), config).expect("the configuration");
        // Its role has the rights that are documented, and no others.
        cloud.manners().policy = Some(super::rights::documented(CLUSTER));
        harness.set_node_id(instance);
        harness.set("AWS_ACCESS_KEY_ID", super::KEY);
        harness.set("AWS_SECRET_ACCESS_KEY", SECRET);
        harness.set("LONGSHORE_CLOUD_SPEED", &speed.to_string());
        // Nothing of this machine's.
        harness.set("AWS_EC2_METADATA_DISABLED", "true");
        harness.set("AWS_CONFIG_FILE", "/dev/null");
        harness.set("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
        Driver {
            harness,
            cloud: Arc::clone(cloud),
            moto: cloud.moto.clone(),
            persistent: true,
            patience: PATIENCE,
            volumes: Mutex::default(),
            snapshots: Mutex::default(),
            speed,
        }
    }

    /// The handle of `ebs:NAME` as the CO has it; what was never answered has none but that.
    pub fn handle(&self, id: &str) -> String {
        self.volumes.lock().expect("no panic").get(id).cloned().unwrap_or_else(|| id.to_owned())
    }

    /// The same for a snapshot.
    pub fn snapshot_handle(&self, id: &str) -> String {
        self.snapshots.lock().expect("no panic").get(id).cloned().unwrap_or_else(|| id.to_owned())
    }

    /// As where the handle was kept, and the call is about another one of the same name.
    pub fn forget_handles(&self) {
        self.volumes.lock().expect("no panic").clear();
        self.snapshots.lock().expect("no panic").clear();
    }

    /// With its steps printed, and failed on demand.
    pub fn with_faults(mut self) -> Driver {
        let path = self.harness.path("fault").display().to_string();
        self.arm("");
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

    /// Whether a step of this number has been come to since the last order.
    pub fn reached(&self, step: u64) -> bool {
        self.harness.log().contains(&format!("fault: step {step}: "))
    }

    /// Makes one call, as a sidecar does, which waits only for so long.
    pub fn once<T, F: Future<Output = Called<tonic::Response<T>>>>(
        &self,
        call: impl FnOnce(ControllerClient<Channel>) -> F,
    ) -> Called<T> {
        let client = self.harness.controller();
        let call = call(client);
        let patience = self.patience / self.speed;
        self.harness.block_on(async {
            match tokio::time::timeout(patience, call).await {
                Ok(answer) => answer.map(tonic::Response::into_inner),
                Err(_) => Err(Status::deadline_exceeded("the caller's patience is over")),
            }
        })
    }

    /// Makes a call again and again, as sidecars do, until it is answered for good; only once where we are not persistent.
    pub fn call<T, F>(&self, call: impl Fn(ControllerClient<Channel>) -> F) -> Called<T>
    where
        F: Future<Output = Called<tonic::Response<T>>>,
    {
        let begun = Instant::now();
        loop {
            match self.once(&call) {
                Err(status) if self.persistent && !is_final(status.code()) && begun.elapsed() < GIVES_UP => {
                    self.cloud.clock.sleep(Duration::from_secs(1));
                }
                answer => return answer,
            }
        }
    }

    pub fn create(&self, name: &str) -> Called<csi::Volume> {
        self.create_as(creation(name))
    }

    pub fn create_as(&self, mut request: csi::CreateVolumeRequest) -> Called<csi::Volume> {
        use csi::volume_content_source::Type;
        match request.volume_content_source.as_mut().and_then(|source| source.r#type.as_mut()) {
            Some(Type::Snapshot(snapshot)) => snapshot.snapshot_id = self.snapshot_handle(&snapshot.snapshot_id),
            Some(Type::Volume(volume)) => volume.volume_id = self.handle(&volume.volume_id),
            None => {}
        }
        let made = self.call(|mut client| {
            let request = request.clone();
            async move { client.create_volume(request).await }
        });
        let volume = made?.volume.expect("a volume");
        self.volumes.lock().expect("no panic").insert(unrecorded(&volume.volume_id), volume.volume_id.clone());
        Ok(volume)
    }

    pub fn delete(&self, id: &str) -> Called<()> {
        let request = csi::DeleteVolumeRequest { volume_id: self.handle(id), ..Default::default() };
        self.call(|mut client| {
            let request = request.clone();
            async move { client.delete_volume(request).await }
        })
        .map(drop)
    }

    pub fn attach(&self, id: &str, instance: &str) -> Called<HashMap<String, String>> {
        let request = publication(&self.handle(id), instance);
        let attached = self.call(|mut client| {
            let request = request.clone();
            async move { client.controller_publish_volume(request).await }
        });
        attached.map(|answer| answer.publish_context)
    }

    pub fn detach(&self, id: &str, instance: &str) -> Called<()> {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: self.handle(id),
            node_id: instance.to_owned(),
            ..Default::default()
        };
        self.call(|mut client| {
            let request = request.clone();
            async move { client.controller_unpublish_volume(request).await }
        })
        .map(drop)
    }

    pub fn expand(&self, id: &str, gib: i64) -> Called<csi::ControllerExpandVolumeResponse> {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: self.handle(id),
            capacity_range: Some(csi::CapacityRange { required_bytes: gib * GIB, limit_bytes: 0 }),
            volume_capability: Some(capability(Some("ext4"))),
            ..Default::default()
        };
        self.call(|mut client| {
            let request = request.clone();
            async move { client.controller_expand_volume(request).await }
        })
    }

    pub fn modify(&self, id: &str, parameters: &[(&str, &str)]) -> Called<()> {
        let mutable_parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = csi::ControllerModifyVolumeRequest { volume_id: self.handle(id), mutable_parameters, ..Default::default() };
        self.call(|mut client| {
            let request = request.clone();
            async move { client.controller_modify_volume(request).await }
        })
        .map(drop)
    }

    /// Made, and ready to be used.
    pub fn snapshot(&self, name: &str, of: &str) -> Called<csi::Snapshot> {
        let request =
            csi::CreateSnapshotRequest { name: name.to_owned(), source_volume_id: self.handle(of), ..Default::default() };
        let begun = Instant::now();
        loop {
            let made = self.call(|mut client| {
                let request = request.clone();
                async move { client.create_snapshot(request).await }
            });
            let snapshot = made?.snapshot.expect("a snapshot");
            self.snapshots.lock().expect("no panic").insert(unrecorded(&snapshot.snapshot_id), snapshot.snapshot_id.clone());
            if snapshot.ready_to_use || !self.persistent || begun.elapsed() > GIVES_UP {
                return Ok(snapshot);
            }
            self.cloud.clock.sleep(Duration::from_secs(2));
        }
    }

    pub fn delete_snapshot(&self, id: &str) -> Called<()> {
        let request = csi::DeleteSnapshotRequest { snapshot_id: self.snapshot_handle(id), ..Default::default() };
        self.call(|mut client| {
            let request = request.clone();
            async move { client.delete_snapshot(request).await }
        })
        .map(drop)
    }

    /// Every volume, as `ebs:NAME`, with the nodes it is published to, in pages of `most`.
    pub fn list(&self, most: i32) -> BTreeMap<String, Vec<String>> {
        let mut found = BTreeMap::new();
        let mut token = String::new();
        loop {
            let request = csi::ListVolumesRequest { max_entries: most, starting_token: token };
            let page = self.call(|mut client| {
                let request = request.clone();
                async move { client.list_volumes(request).await }
            });
            let page = page.expect("a list");
            for entry in page.entries {
                let id = entry.volume.expect("a volume").volume_id;
                let nodes = entry.status.map(|status| status.published_node_ids).unwrap_or_default();
                assert!(found.insert(unrecorded(&id), nodes).is_none(), "a volume is listed twice");
            }
            token = page.next_token;
            if token.is_empty() {
                return found;
            }
        }
    }

    /// moto's volumes with our cluster's tag.
    pub fn disks(&self) -> Vec<Element> {
        owned(self.moto.volumes())
    }

    /// moto's snapshots with our cluster's tag.
    pub fn snapshots(&self) -> Vec<Element> {
        owned(self.moto.snapshots())
    }

    /// The one disk there is.
    pub fn disk(&self) -> Element {
        let mut disks = self.disks();
        assert_eq!(disks.len(), 1, "{disks:#?}");
        disks.remove(0)
    }

    /// Nothing of ours is left in the cloud, no secret was shown, and nobody panicked.
    pub fn assert_clean(&self, when: &str) {
        assert_eq!(self.disks(), [], "disks are left {when}");
        assert_eq!(self.snapshots(), [], "snapshots are left {when}");
        self.assert_discreet();
    }

    pub fn assert_discreet(&self) {
        let log = self.harness.log();
        assert!(!log.contains(SECRET), "the secret key is in the log");
        assert!(!log.contains("Signature="), "a signature is in the log");
        assert!(!log.contains("panicked"), "{log}");
    }
}

/// A handle without the recorded id: `ebs:d-vol-0123.data` is `ebs:data`.
pub fn unrecorded(handle: &str) -> String {
    let id: longshore::volume::VolumeId = handle.parse().expect("a handle");
    assert!(id.recorded().is_some(), "{handle} has no disk or snapshot recorded");
    id.unrecorded().to_string()
}

fn owned(items: Vec<Element>) -> Vec<Element> {
    let ours = |item: &Element| moto::tags_of(item).get(CLUSTER_TAG).is_some_and(|cluster| cluster == CLUSTER);
    items.into_iter().filter(ours).collect()
}

/// What csi-attacher and csi-provisioner take for the end of it.
pub fn is_final(code: Code) -> bool {
    !matches!(code, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
}

/// Ten GiB of gp3 in the zone.
pub fn creation(name: &str) -> csi::CreateVolumeRequest {
    let zone = csi::Topology { segments: HashMap::from([("topology.kubernetes.io/zone".to_owned(), ZONE.to_owned())]) };
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 10 * GIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability(Some("ext4"))],
        parameters: HashMap::from([("type".to_owned(), "gp3".to_owned())]),
        accessibility_requirements: Some(csi::TopologyRequirement { requisite: vec![zone.clone()], preferred: vec![zone] }),
        ..Default::default()
    }
}

pub fn publication(id: &str, instance: &str) -> csi::ControllerPublishVolumeRequest {
    csi::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: instance.to_owned(),
        volume_capability: Some(capability(Some("ext4"))),
        ..Default::default()
    }
}

/// The value of a tag; empty where there is none.
pub fn tag(item: &Element, key: &str) -> String {
    let tags: Parameters = moto::tags_of(item);
    tags.get(key).cloned().unwrap_or_default()
}

//! One volume's life: its calls, what undoes them, and what was noted when nothing went wrong.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use longshore::csi;
use longshore::volume::SnapshotId;
use tonic::{Code, Status};

use crate::common::{
    Harness, MIB, Pool, capability, create, mounts_at, nobody_starts, publish_request, run, runs, stage_request, text,
};
use crate::state;

/// How long a call may take that nobody disturbs.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Behind what any file system keeps at the start of its device, so that it is a place of its own on a raw one.
const PLACE: u64 = 1 << 20;
const LENGTH: usize = 256 << 10;

pub type Settled = Result<(), Status>;

/// The calls. Those of one story are in the order of its `calls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Create,
    Attach,
    Stage,
    Publish,
    PublishReadOnly,
    PublishInline,
    Modify,
    Expand,
    NodeExpand,
    Snapshot,
    Restore,
    Clone,
    /// Of the volume and its clone.
    Group,
    StageRestored,
    /// Shows, reads and unstages the restored volume.
    ReadRestored,
    /// Stages, shows, reads and unstages the clone.
    ReadCloned,
    Unpublish,
    UnpublishReadOnly,
    UnpublishInline,
    Unstage,
    Detach,
    DeleteGroup,
    DeleteCloned,
    DeleteRestored,
    DeleteSnapshot,
    Delete,
    /// What undoes others; in no story.
    ModifyBack,
    UnstageRestored,
}

use Call::*;

/// What takes everything down, from any state; each must be OK, whether there is something to take down or not.
const TEAR_DOWN: [Call; 11] = [
    UnpublishReadOnly,
    Unpublish,
    UnpublishInline,
    Unstage,
    UnstageRestored,
    Detach,
    DeleteGroup,
    DeleteCloned,
    DeleteRestored,
    DeleteSnapshot,
    Delete,
];

impl Call {
    pub const LIFE: [Call; 20] = [
        Create,
        Stage,
        Publish,
        Modify,
        Expand,
        NodeExpand,
        Snapshot,
        Restore,
        Clone,
        Group,
        StageRestored,
        ReadRestored,
        ReadCloned,
        Unpublish,
        Unstage,
        DeleteGroup,
        DeleteCloned,
        DeleteRestored,
        DeleteSnapshot,
        Delete,
    ];
    pub const COPYING: [Call; 4] = [Snapshot, Group, Restore, Clone];
    pub const TARGETS: [Call; 8] = [Create, Stage, Publish, PublishReadOnly, Unpublish, UnpublishReadOnly, Unstage, Delete];
    pub const READ_ONLY_BLOCK: [Call; 8] =
        [Create, Stage, Publish, Unpublish, PublishReadOnly, UnpublishReadOnly, Unstage, Delete];
    pub const INLINE: [Call; 2] = [PublishInline, UnpublishInline];
    /// Of a share, which has no devices and grows in its record only.
    pub const SHARE: [Call; 16] = [
        Create,
        Stage,
        Publish,
        Expand,
        Snapshot,
        Restore,
        Clone,
        StageRestored,
        ReadRestored,
        ReadCloned,
        Unpublish,
        Unstage,
        DeleteCloned,
        DeleteRestored,
        DeleteSnapshot,
        Delete,
    ];
    /// Of a thin logical volume: as the life, but for what it has not.
    pub const THIN: [Call; 17] = [
        Create,
        Stage,
        Publish,
        Expand,
        NodeExpand,
        Snapshot,
        Restore,
        Clone,
        StageRestored,
        ReadRestored,
        ReadCloned,
        Unpublish,
        Unstage,
        DeleteCloned,
        DeleteRestored,
        DeleteSnapshot,
        Delete,
    ];
    /// Of one that has no copies.
    pub const ALONE: [Call; 8] = [Create, Stage, Publish, Expand, NodeExpand, Unpublish, Unstage, Delete];
    /// Of a unit of a target server.
    pub const SAN: [Call; 10] = [Create, Attach, Stage, Publish, Expand, NodeExpand, Unpublish, Unstage, Detach, Delete];
    /// That cannot grow.
    pub const FIXED: [Call; 6] = [Create, Stage, Publish, Unpublish, Unstage, Delete];
    pub const MADE: [Call; 2] = [Create, Delete];
    pub const ATTACHED: [Call; 8] = [Create, Attach, Stage, Publish, Unpublish, Unstage, Detach, Delete];
    /// Whose steps differ with the file system, or with what lies on it.
    pub const ON_NODE: [Call; 9] =
        [Stage, Publish, PublishInline, NodeExpand, Snapshot, StageRestored, Unpublish, UnpublishInline, Unstage];

    /// Whether its steps are none that another call of the same story has.
    pub fn has_own_steps(self) -> bool {
        !matches!(self, ReadRestored | ReadCloned)
    }

    /// Of a volume: the provisioner alone takes RESOURCE_EXHAUSTED as final.
    pub fn is_creation(self) -> bool {
        matches!(self, Create | Restore | Clone)
    }

    /// Whether it keeps the volume's writers still. What it noted for that, to be thawed by the next driver, is not for its inverse.
    pub fn holds(self) -> bool {
        matches!(self, Snapshot | Group | Clone)
    }

    /// Whether it has something to take down in a story of these calls.
    fn takes_down_any_of(self, calls: &[Call]) -> bool {
        match self {
            UnpublishReadOnly => calls.contains(&PublishReadOnly),
            UnpublishInline => calls.contains(&PublishInline),
            DeleteGroup => calls.contains(&Group),
            DeleteSnapshot => calls.contains(&Snapshot),
            // Not attached is fine for every backend.
            _ => true,
        }
    }

    /// What brings the story from behind this call to before it; `None`: only a new beginning does.
    fn inverse(self) -> Option<&'static [Call]> {
        Some(match self {
            Create => &[Delete],
            Attach => &[Detach],
            // The next stage must find a device without a file system again.
            Stage => &[Unstage, Detach, Delete, Create, Attach],
            Publish => &[Unpublish],
            PublishReadOnly => &[UnpublishReadOnly],
            PublishInline => &[UnpublishInline],
            Modify => &[ModifyBack],
            Snapshot => &[DeleteSnapshot],
            Group => &[DeleteGroup],
            Restore => &[DeleteRestored],
            Clone => &[DeleteCloned],
            // The next stage must find one that has not grown yet.
            StageRestored => &[UnstageRestored, DeleteRestored, Restore],
            Unpublish => &[Publish],
            UnpublishReadOnly => &[PublishReadOnly],
            UnpublishInline => &[PublishInline],
            Unstage => &[Stage],
            Detach => &[Attach],
            DeleteCloned => &[Clone],
            DeleteRestored => &[Restore],
            DeleteGroup => &[Group],
            DeleteSnapshot => &[Snapshot],
            Expand | NodeExpand | Delete | ReadRestored | ReadCloned | ModifyBack | UnstageRestored => return None,
        })
    }
}

/// What a story is about. Another kind of volume is a parameter and a secret here.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub name: &'static str,
    pub backend: &'static str,
    pub pool: Pool,
    pub fstype: Option<&'static str>,
    /// Of the StorageClass.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Of each call that stages.
    pub secrets: &'static [(&'static str, &'static str)],
    pub calls: &'static [Call],
    /// The calls to disturb; none is all.
    pub only: &'static [Call],
}

impl Variant {
    /// Why it cannot run on this machine, if so.
    pub fn cannot_run(&self) -> Option<&'static str> {
        if self.backend == "nfs" {
            return std::env::var(NFS_SHARE).is_err().then_some("no NFS server: it is tested in the virtual machine");
        }
        if self.backend == "iscsi" {
            let target = Path::new("/sys/kernel/config/target").exists();
            return (!target).then_some("no iSCSI target in this kernel: it is tested in the virtual machine");
        }
        if self.backend == "lvm" {
            return std::env::var(VOLUME_GROUP).is_err().then_some("no volume group: it is tested in the virtual machine");
        }
        let encrypted = self.parameters.iter().any(|(name, _)| *name == "encryption");
        let devices = fs::read_to_string("/proc/misc").expect("proc");
        let why = "no device-mapper here: what is encrypted is tested in the virtual machine";
        (encrypted && !devices.contains("device-mapper")).then_some(why)
    }
}

/// The export below which volumes of NFS are made, as `server:/path`; on this machine it is that path, too.
pub const NFS_SHARE: &str = "LONGSHORE_NFS_SHARE";

/// The volume group vg0 with the thin pool pool0, as its physical volumes separated by commas.
pub const VOLUME_GROUP: &str = "LONGSHORE_VOLUME_GROUP";

/// The base directory of the backend `directory`, in the test's own.
pub const DIRECTORY: &str = "pool/directory";

/// The part of the configuration that a variant needs beside what every driver has.
fn configuration(variant: Variant, harness: &Harness) -> String {
    match variant.backend {
        "nfs" => {
            let share = std::env::var(NFS_SHARE).expect("a share");
            let (server, path) = share.split_once(':').expect("server:/path");
            format!("  - name: nfs\n    type: nfs\n    shares:\n      - server: {server}\n        share: {path}\n")
        }
        "directory" => {
            let base = harness.path(DIRECTORY);
            fs::create_dir_all(&base).expect("a directory");
            fs::set_permissions(&base, PermissionsExt::from_mode(0o755)).expect("a mode");
            format!("  - name: directory\n    type: directory\n    path: {}\n", base.display())
        }
        "lvm" => {
            let devices = std::env::var(VOLUME_GROUP).expect("devices");
            let each = format!("volumeGroup: vg0, devices: [{devices}]");
            format!(
                "  - name: lvm\n    type: lvm\n    classes: [{{name: thick, {each}}}, {{name: thin, {each}, thinPool: pool0, overcommit: 4}}]\n"
            )
        }
        // Larger than the volume by what the driver has for itself, and a second one of the same size.
        "disk" => {
            let disks = [0, 1].map(|number| disk(harness, number));
            format!("  - name: disk\n    type: disk\n    classes: [{{name: all, devices: [{}]}}]\n", disks.join(", "))
        }
        "iscsi" => {
            let pool = harness.path("pool/iscsi");
            fs::create_dir_all(&pool).expect("a directory");
            format!(
                "  - name: iscsi\n    type: iscsi\n    portals: [\"127.0.0.1:3260\"]\n    pools:\n      - name: default\n        path: {}\n",
                pool.display()
            )
        }
        _ => String::new(),
    }
}

/// Makes a disk of a file. Its partitions go with it.
fn disk(harness: &Harness, number: u32) -> String {
    let path = harness.path(&format!("pool/disk{number}"));
    fs::File::create(&path).and_then(|file| file.set_len(DISK)).expect("an image");
    run("losetup", ["--partscan", "--find", "--show", &text(&path)]).trim().to_owned()
}

/// The variant whose disks are blank before each volume.
pub const NEW_DISK: &str = "new disk";
/// Bytes of a disk.
const DISK: u64 = 68 << 20;

/// A step as it ran undisturbed.
#[derive(Clone, Debug)]
pub struct Step {
    pub number: u64,
    pub name: String,
    pub micros: u64,
    pub programs: Vec<String>,
}

pub struct Story {
    harness: Harness,
    variant: Variant,
    /// The volume's name.
    name: String,
    calls: Vec<Call>,
    /// The state before each call, and after the last.
    noted: Vec<Vec<String>>,
    /// The steps of each call.
    steps: Vec<Vec<Step>>,
    /// From the answers to CreateVolume and ControllerPublishVolume.
    volume_context: HashMap<String, String>,
    publish_context: HashMap<String, String>,
    /// Whether the volume holds what `content` writes.
    written: bool,
    orders: u64,
    pub patience: Duration,
    /// A program that was killed with its driver may need a moment to go: calls are repeated while their answer is not final, as a
    /// CO does.
    pub lingering: bool,
}

impl Story {
    pub fn new(variant: Variant) -> Story {
        let mut harness = Harness::in_memory(variant.pool);
        harness.set("LONGSHORE_FAULT_FILE", &text(&harness.path("fault")));
        let name = if variant.backend == "fake" { harness.name() } else { "story".to_owned() };
        let calls = calls_of(variant);
        harness.configure(&configuration(variant, &harness));
        Story {
            harness,
            variant,
            name,
            calls,
            noted: Vec::new(),
            steps: Vec::new(),
            volume_context: HashMap::new(),
            publish_context: HashMap::new(),
            written: false,
            orders: 0,
            patience: PATIENCE,
            lingering: false,
        }
    }

    /// How long a caller waits for a step that hangs: longer than what comes before it takes.
    pub fn impatience(&self) -> Duration {
        Duration::from_millis(if self.variant.backend == "lvm" { 6000 } else { 100 })
    }

    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The call's steps, as they were when nothing went wrong.
    pub fn steps(&self, index: usize) -> Vec<Step> {
        self.steps[index].clone()
    }

    pub fn when(&self, index: usize, what: &str) -> String {
        format!("({}, {:?} {what})", self.variant.name, self.calls[index])
    }

    /// Tells it once with nothing wrong, and notes how that looks. The driver runs from here on.
    pub fn tell_undisturbed(&mut self) {
        self.arm("");
        self.harness.start();
        self.create_layout();
        self.noted.push(state::of(&self.harness));
        for index in 0..self.calls.len() {
            self.arm("");
            self.must(self.calls[index], "undisturbed");
            self.steps.push(steps_in(&self.harness.log()));
            self.noted.push(state::of(&self.harness));
        }
        self.compare(0, "after an undisturbed story");
        self.renew_disks();
        self.arm("");
    }

    /// A backend's first volume finds its storage bare; what it makes there for itself stays.
    fn create_layout(&mut self) {
        if matches!(self.variant.backend, "nfs" | "iscsi" | "directory" | "disk") && self.variant.name != NEW_DISK {
            let mut controller = self.harness.controller();
            let request = self.request(self.creation("first", self.size()));
            self.harness.block_on(controller.create_volume(request)).expect("a first volume");
            if self.calls.contains(&Attach) {
                self.attach("first").expect("attached");
                self.detach("first").expect("detached");
            }
            self.delete(self.id("first")).expect("it goes");
        }
    }

    /// What goes wrong from now on: `crash@3`, or nothing.
    pub fn arm(&mut self, order: &str) {
        self.orders += 1;
        self.harness.forget_log();
        fs::write(self.harness.path("fault"), format!("{} {order}", self.orders)).expect("the order");
    }

    /// Makes the call once.
    pub fn perform(&mut self, index: usize) -> Settled {
        self.call(self.calls[index])
    }

    /// Makes the call after something went wrong: the state is then as if nothing had.
    pub fn repeat(&mut self, index: usize, when: &str) {
        self.must(self.calls[index], when);
        self.compare(index + 1, when);
    }

    /// Makes the call with nothing wrong.
    pub fn go_on(&mut self, index: usize) {
        self.arm("");
        self.repeat(index, "on the way");
    }

    /// Undoes the call, or what it may have done.
    pub fn go_back(&mut self, index: usize, when: &str) {
        match self.calls[index].inverse() {
            Some(inverse) => {
                for call in inverse {
                    self.must(*call, when);
                }
            }
            None => {
                self.tear_down(when);
                for earlier in 0..index {
                    self.must(self.calls[earlier], when);
                }
            }
        }
        self.compare(index, when);
        self.renew_disks();
    }

    /// Of a story of new disks, each is as if it had never been used.
    fn renew_disks(&self) {
        if self.variant.name == NEW_DISK {
            for disk in self.harness.loops() {
                // The driver looks at its disks in threads of their own, and what it starts has open what it has: both end soon.
                let begun = Instant::now();
                while Path::new(&format!("{disk}p1")).exists() && !runs("partx", ["--delete", &disk]) {
                    assert!(begun.elapsed() < PATIENCE, "a partition of {disk} is still in use");
                }
                run("blkdiscard", ["--zeroout", "--force", &disk]);
            }
        }
    }

    pub fn is_as_before(&self, index: usize, when: &str) {
        self.compare(index, when);
    }

    /// Sees that nothing is left, and ends the driver.
    pub fn end(&mut self) {
        self.tear_down("at the end");
        assert!(self.harness.stop(), "the driver ends with success");
        if self.variant.backend == "disk" {
            self.harness.loops().iter().for_each(|disk| drop(run("losetup", ["--detach", disk])));
        }
        self.harness.assert_nothing_left();
        self.harness.assert_pool_empty();
    }

    fn tear_down(&mut self, when: &str) {
        for call in TEAR_DOWN.into_iter().filter(|call| call.takes_down_any_of(self.variant.calls)) {
            self.must(call, &format!("in the tear-down {when}"));
        }
        self.compare(0, &format!("after the tear-down {when}"));
    }

    fn compare(&self, index: usize, when: &str) {
        let (noted, seen) = (&self.noted[index], state::of(&self.harness));
        let missing: Vec<_> = noted.iter().filter(|line| !seen.contains(line)).collect();
        let left: Vec<_> = seen.iter().filter(|line| !noted.contains(line)).collect();
        assert!(noted == &seen, "another state {when}\nmissing: {missing:#?}\ninstead: {left:#?}");
    }

    /// Whether the driver came to this step since the last order; after an answer or an end all is said.
    pub fn reached(&self, step: u64) -> bool {
        self.said(&format!("fault: step {step}: "))
    }

    pub fn said(&self, what: &str) -> bool {
        self.harness.log().contains(what)
    }

    /// The driver has killed itself: starts the next. Answers the programs that were interrupted.
    pub fn killed(&mut self, when: &str) -> Vec<u32> {
        assert!(self.harness.wait_end(), "it was not killed {when}");
        let interrupted = interrupted_in(&self.harness.log());
        self.start();
        interrupted
    }

    /// Kills the driver and starts the next.
    pub fn kill(&mut self) {
        self.harness.kill();
        self.start();
    }

    fn start(&mut self) {
        self.arm("");
        self.harness.start();
    }

    /// Other volumes do not wait for this one.
    pub fn others_go_on(&mut self, when: &str) {
        let (mut controller, mut node) = (self.harness.controller(), self.harness.node());
        let volume_id = "image:beside".to_owned();
        let staging_target_path = text(&self.harness.staging("beside"));
        let beside = async {
            controller.create_volume(create("beside", 1, None, "image")).await?;
            let request = stage_request(volume_id.clone(), &staging_target_path, capability(None));
            node.node_stage_volume(request).await?;
            let request = csi::NodeUnstageVolumeRequest { volume_id: volume_id.clone(), staging_target_path };
            node.node_unstage_volume(request).await?;
            controller.delete_volume(csi::DeleteVolumeRequest { volume_id, ..Default::default() }).await
        };
        let patient = async { tokio::time::timeout(Duration::from_secs(10), beside).await };
        let answer = self.harness.block_on(patient);
        assert!(matches!(answer, Ok(Ok(_))), "another volume waits {when}: {answer:?}");
    }

    fn must(&mut self, call: Call, when: &str) {
        let begun = Instant::now();
        while let Err(status) = self.call(call) {
            let again = self.lingering && !is_final(status.code()) && begun.elapsed() < Duration::from_secs(10);
            assert!(again, "{call:?} {when}: {status}");
        }
        if call == Snapshot {
            self.until_ready(when);
        }
        self.content(call);
    }

    /// What is copied in the background is asked about again, as a CO does.
    fn until_ready(&self, when: &str) {
        let begun = Instant::now();
        loop {
            let request = csi::ListSnapshotsRequest { snapshot_id: self.id("then"), ..Default::default() };
            let list = self.harness.block_on(self.harness.controller().list_snapshots(request)).expect("a list").into_inner();
            let snapshot = list.entries.first().and_then(|entry| entry.snapshot.as_ref()).expect("the snapshot");
            if snapshot.ready_to_use {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "the snapshot does not become ready {when}");
        }
    }

    /// Writes when the volume is first published, and from then on reads what was written, wherever it is to be seen.
    fn content(&mut self, done: Call) {
        if done == Delete {
            self.written = false;
        }
        let place = if mounts_at(&self.target("story")) > 0 { self.target("story") } else { self.staging("story") };
        if mounts_at(&place) == 0 {
            return;
        }
        if done == Publish && !self.written {
            self.write(&place);
            self.written = true;
        }
        if self.written {
            self.read(&place, &format!("after {done:?}"));
            self.takes_writes(&place);
        }
    }

    fn file(&self, place: &Path) -> (PathBuf, u64) {
        if self.variant.fstype.is_some() { (place.join("file"), 0) } else { (place.to_owned(), PLACE) }
    }

    fn write(&self, place: &Path) {
        let (path, at) = self.file(place);
        let _open = nobody_starts();
        let mut options = fs::OpenOptions::new();
        let mut file = options.create(self.variant.fstype.is_some()).truncate(false).write(true).open(path).expect("the volume");
        file.seek(SeekFrom::Start(at)).expect("a seek");
        file.write_all(&content()).expect("written");
        file.sync_all().expect("synced");
    }

    fn read(&self, place: &Path, when: &str) {
        let (path, at) = self.file(place);
        let found = {
            let _open = nobody_starts();
            read_at(&path, at).unwrap_or_else(|error| panic!("{}: {error} {when}", place.display()))
        };
        assert!(found == content(), "what was written is not there {when}");
    }

    /// It must not stay frozen. One that does is thawed, or this test would never end.
    fn takes_writes(&self, place: &Path) {
        if self.variant.fstype.is_none() {
            return;
        }
        let (done, written) = mpsc::channel();
        let path = place.join("touched");
        std::thread::spawn(move || {
            let _open = nobody_starts();
            done.send(fs::write(path, "x"))
        });
        if written.recv_timeout(Duration::from_secs(10)).is_err() {
            run("fsfreeze", ["--unfreeze".as_ref(), place.as_os_str()]);
            panic!("{} is frozen", place.display());
        }
    }

    /// The loop devices of its volumes.
    pub fn loops(&self) -> Vec<String> {
        self.harness.loops()
    }

    pub fn staging(&self, name: &str) -> PathBuf {
        self.harness.staging(name)
    }

    fn target(&self, name: &str) -> PathBuf {
        self.harness.target(name)
    }

    fn size(&self) -> i64 {
        match self.variant.fstype {
            Some("xfs") => 320,
            Some("btrfs") => 256,
            _ => 64,
        }
    }

    fn id(&self, name: &str) -> String {
        let name = if name == "story" { &self.name } else { name };
        format!("{}:{name}", self.variant.backend)
    }

    fn creation(&self, name: &str, size: i64) -> csi::CreateVolumeRequest {
        let mut request = create(name, size, self.variant.fstype, self.variant.backend);
        request.parameters.extend(owned(self.variant.parameters));
        request
    }

    fn copy(&self, name: &str, source: csi::volume_content_source::Type) -> csi::CreateVolumeRequest {
        let mut request = self.creation(name, self.size() + 128);
        request.volume_content_source = Some(csi::VolumeContentSource { r#type: Some(source) });
        request
    }

    fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.patience);
        request
    }

    fn stage(&self, name: &str) -> Settled {
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.id(name),
            staging_target_path: text(&self.staging(name)),
            volume_capability: Some(capability(self.variant.fstype)),
            volume_context: self.volume_context.clone(),
            publish_context: self.publish_context.clone(),
            secrets: owned(self.variant.secrets),
        };
        self.harness.block_on(self.harness.node().node_stage_volume(self.request(request))).map(drop)
    }

    fn unstage(&self, name: &str) -> Settled {
        let request = csi::NodeUnstageVolumeRequest { volume_id: self.id(name), staging_target_path: text(&self.staging(name)) };
        self.harness.block_on(self.harness.node().node_unstage_volume(self.request(request))).map(drop)
    }

    fn publish(&self, name: &str, target: &str, readonly: bool) -> Settled {
        let request = csi::NodePublishVolumeRequest {
            volume_context: self.volume_context.clone(),
            publish_context: self.publish_context.clone(),
            readonly,
            ..publish_request(self.id(name), self.staging(name), self.target(target), capability(self.variant.fstype))
        };
        self.harness.block_on(self.harness.node().node_publish_volume(self.request(request))).map(drop)
    }

    fn publish_inline(&self) -> Settled {
        let attributes = [("csi.storage.k8s.io/ephemeral", "true"), ("backend", self.variant.backend), ("size", "64Mi")];
        let request = csi::NodePublishVolumeRequest {
            volume_id: INLINE_ID.to_owned(),
            target_path: text(&self.target("inline")),
            volume_capability: Some(capability(self.variant.fstype)),
            volume_context: owned(&attributes),
            ..Default::default()
        };
        self.harness.block_on(self.harness.node().node_publish_volume(self.request(request))).map(drop)
    }

    fn unpublish(&self, volume_id: String, target: &str) -> Settled {
        let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path: text(&self.target(target)) };
        self.harness.block_on(self.harness.node().node_unpublish_volume(self.request(request))).map(drop)
    }

    fn attach(&self, name: &str) -> Result<HashMap<String, String>, Status> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: self.id(name),
            node_id: "node-1".to_owned(),
            volume_capability: Some(capability(self.variant.fstype)),
            ..Default::default()
        };
        let answer = self.harness.block_on(self.harness.controller().controller_publish_volume(self.request(request)))?;
        Ok(answer.into_inner().publish_context)
    }

    fn detach(&self, name: &str) -> Settled {
        let (volume_id, node_id) = (self.id(name), "node-1".to_owned());
        let request = csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
        self.harness.block_on(self.harness.controller().controller_unpublish_volume(self.request(request))).map(drop)
    }

    fn delete(&self, volume_id: String) -> Settled {
        let request = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
        self.harness.block_on(self.harness.controller().delete_volume(self.request(request))).map(drop)
    }

    fn modify(&self, on_delete: &str) -> Settled {
        let mutable_parameters = owned(&[("onDelete", on_delete)]);
        let request =
            csi::ControllerModifyVolumeRequest { volume_id: self.id("story"), mutable_parameters, ..Default::default() };
        self.harness.block_on(self.harness.controller().controller_modify_volume(self.request(request))).map(drop)
    }

    /// Shows a copy, reads it and takes it down again.
    fn read_copy(&self, name: &str) -> Settled {
        self.publish(name, name, false)?;
        self.read(&self.target(name), &format!("in {name}"));
        self.unpublish(self.id(name), name)?;
        self.unstage(name)
    }

    fn call(&mut self, call: Call) -> Settled {
        use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
        let (mut controller, mut groups) = (self.harness.controller(), self.harness.groups());
        let volume_id = self.id("story");
        let snapshot_id = self.id("then");
        let range = Some(csi::CapacityRange { required_bytes: (self.size() + 64) * MIB, limit_bytes: 0 });
        match call {
            Create => {
                let request = self.request(self.creation(&self.name, self.size()));
                let answer = self.harness.block_on(controller.create_volume(request))?.into_inner();
                self.volume_context = answer.volume.expect("a volume").volume_context;
                Ok(())
            }
            Attach => {
                self.publish_context = self.attach("story")?;
                Ok(())
            }
            Detach => self.detach("story"),
            Restore => {
                let request = self.request(self.copy("restored", Type::Snapshot(SnapshotSource { snapshot_id })));
                self.harness.block_on(controller.create_volume(request)).map(drop)
            }
            Clone => {
                let request = self.request(self.copy("cloned", Type::Volume(VolumeSource { volume_id })));
                self.harness.block_on(controller.create_volume(request)).map(drop)
            }
            Snapshot => {
                let request =
                    csi::CreateSnapshotRequest { source_volume_id: volume_id, name: "then".to_owned(), ..Default::default() };
                self.harness.block_on(controller.create_snapshot(self.request(request))).map(drop)
            }
            DeleteSnapshot => {
                let request = csi::DeleteSnapshotRequest { snapshot_id, ..Default::default() };
                self.harness.block_on(controller.delete_snapshot(self.request(request))).map(drop)
            }
            Group => {
                let request = csi::CreateVolumeGroupSnapshotRequest {
                    name: "together".to_owned(),
                    source_volume_ids: vec![volume_id, self.id("cloned")],
                    ..Default::default()
                };
                self.harness.block_on(groups.create_volume_group_snapshot(self.request(request))).map(drop)
            }
            DeleteGroup => {
                let backend = self.variant.backend.parse().expect("a name");
                let member = |name: &str| SnapshotId::derive(&backend, &format!("together/{name}")).to_string();
                let request = csi::DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: self.id("together"),
                    snapshot_ids: vec![member(&self.name), member("cloned")],
                    ..Default::default()
                };
                self.harness.block_on(groups.delete_volume_group_snapshot(self.request(request))).map(drop)
            }
            Expand => {
                let request = csi::ControllerExpandVolumeRequest { volume_id, capacity_range: range, ..Default::default() };
                self.harness.block_on(controller.controller_expand_volume(self.request(request))).map(drop)
            }
            NodeExpand => {
                let request = csi::NodeExpandVolumeRequest {
                    volume_id,
                    volume_path: text(&self.target("story")),
                    staging_target_path: text(&self.staging("story")),
                    capacity_range: range,
                    ..Default::default()
                };
                self.harness.block_on(self.harness.node().node_expand_volume(self.request(request))).map(drop)
            }
            Modify => self.modify("scrub"),
            ModifyBack => self.modify("delete"),
            Stage => self.stage("story"),
            Unstage => self.unstage("story"),
            StageRestored => self.stage("restored"),
            UnstageRestored => self.unstage("restored"),
            ReadRestored => self.read_copy("restored"),
            ReadCloned => self.stage("cloned").and_then(|()| self.read_copy("cloned")),
            Publish => self.publish("story", "story", false),
            PublishReadOnly => self.publish("story", "read-only", true),
            PublishInline => self.publish_inline(),
            Unpublish => self.unpublish(volume_id, "story"),
            UnpublishReadOnly => self.unpublish(volume_id, "read-only"),
            UnpublishInline => self.unpublish(INLINE_ID.to_owned(), "inline"),
            DeleteCloned => self.delete(self.id("cloned")),
            DeleteRestored => self.delete(self.id("restored")),
            Delete => self.delete(volume_id),
        }
    }
}

const INLINE_ID: &str = "csi-0123456789abcdef";

/// The calls of the story. ext4 grows mounted only with a capability that is not had everywhere: without it, the volume grows at
/// its end, when it is not mounted.
fn calls_of(variant: Variant) -> Vec<Call> {
    let mut calls = variant.calls.to_vec();
    if variant.fstype == Some("ext4") && calls.contains(&NodeExpand) && !may_grow_ext4() {
        calls.retain(|call| ![Expand, NodeExpand].contains(call));
        calls.insert(calls.len() - 1, Expand);
    }
    calls
}

/// CAP_SYS_RESOURCE.
fn may_grow_ext4() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("our status");
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("our capabilities");
    u64::from_str_radix(capabilities.trim(), 16).expect("a number") & 1 << 24 != 0
}

/// Whether a CO takes it for the end of the matter.
pub fn is_final(code: Code) -> bool {
    !matches!(code, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
}

fn owned(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn read_at(path: &Path, at: u64) -> std::io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(at))?;
    let mut found = vec![0; LENGTH];
    file.read_exact(&mut found)?;
    Ok(found)
}

/// What is written: no block of it is like another.
fn content() -> Vec<u8> {
    (0..LENGTH as u64 / 8).flat_map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

/// The steps that a driver reported.
fn steps_in(log: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in log.lines().filter_map(|line| line.strip_prefix("fault: ")) {
        let words: Vec<&str> = line.split(' ').collect();
        match (words[0], steps.last_mut()) {
            ("program", Some(step)) => step.programs.push(words[1].to_owned()),
            ("step", Some(step)) if words[2] == "took" => step.micros = words[3].parse().expect("microseconds"),
            ("step", _) => {
                let number = words[1].trim_end_matches(':').parse().expect("a number");
                steps.push(Step { number, name: words[2..].join(" "), micros: 0, programs: Vec::new() });
            }
            _ => {}
        }
    }
    steps
}

/// The processes of programs that had not ended when the driver did.
fn interrupted_in(log: &str) -> Vec<u32> {
    let mut running = Vec::new();
    for line in log.lines().filter_map(|line| line.strip_prefix("fault: ")) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "program" => running.push(words[3].parse().expect("a process id")),
            "ended" => running.clear(),
            _ => {}
        }
    }
    running
}

/// Whether a process has ended, or does so within seconds.
pub fn is_gone(pid: u32) -> bool {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    let Ok(process) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return true };
    let mut polled = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    let patience = rustix::time::Timespec { tv_sec: 5, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&patience)).expect("a poll") > 0
}

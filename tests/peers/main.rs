//! Two nodes, one storage: no matter who has a volume, whatever happens to him, no matter who takes it over.
//!
//! Three drivers on one pool that all share (`image`, `shared: true`): a controller, and two nodes on machines of their own, each
//! with its mounts, its network, its state and its view of the pool. Each cell is one volume's life: node A has it, something
//! happens to A, another node takes the volume over, and in the end both have had it and it is deleted. In each cell:
//! - never two writers: no two nodes have the image attached read-write at once;
//! - never a reformatted volume: what one wrote and synced, the next reads;
//! - nothing forgotten: no device, mount, journal entry, or file in the pool is left;
//! - a refusal with a final code left nothing on the node that was refused.
//!
//! Files cannot shut out a node that continues writing. So the controller is asked to detach a volume from a node that did not release it
//! (`Forced`) only where that node's power is off, as Kubernetes' `out-of-service` taint demands.
#![cfg(feature = "faults")]
#![allow(clippy::disallowed_methods, reason = "what a failed cell left in directories of the test, on machines that are off")]

#[path = "../common/mod.rs"]
mod common;
mod share;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{Harness, Pool, create, isolated, loop_files, nobody_starts, skipped, stage_request, text};
use longshore::csi;
use longshore::csi::controller_service_capability::{Type, rpc};
use longshore::csi::volume_capability::access_mode::Mode;
use longshore::os::iscsi;
use share::Share;
use tonic::{Code, Status};

/// What holds in every cell, or does not, in words.
type Held = Result<(), String>;

/// How long a client waits.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whose volumes: by LONGSHORE_PEERS, `image` if it is not set. The others need a kernel that has their servers (tests/vm/).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Image,
    Nfs,
    Iscsi,
}

impl Backend {
    fn chosen() -> Backend {
        match std::env::var("LONGSHORE_PEERS").as_deref() {
            Err(_) | Ok("image") => Backend::Image,
            Ok("nfs") => Backend::Nfs,
            Ok("iscsi") => Backend::Iscsi,
            Ok(other) => panic!("LONGSHORE_PEERS={other}"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Backend::Image => "image",
            Backend::Nfs => "nfs",
            Backend::Iscsi => "iscsi",
        }
    }

    fn fstype(self) -> &'static str {
        if self == Backend::Nfs { "nfs" } else { "ext4" }
    }

    /// The storage, as `harness` has it.
    fn configure(self, harness: &Harness, is_node: bool) {
        let pools = format!("pools: [{{name: default, path: {}}}]", harness.path("pool/images").display());
        let fields = match self {
            Backend::Image => format!("shared: true, {pools}"),
            Backend::Iscsi if is_node => String::new(),
            Backend::Iscsi => format!("portals: ['127.0.0.1:3260'], {pools}"),
            Backend::Nfs => {
                let share = std::env::var("LONGSHORE_NFS_SHARE").expect("a share");
                let (server, path) = share.split_once(':').expect("server:/path");
                format!("shares: [{{server: {server}, share: {path}}}]")
            }
        };
        let backend = format!("{{name: {name}, type: {name}, {fields}}}", name = self.name());
        fs::write(harness.path("config.yaml"), format!("backends: [{backend}]\n")).expect("a configuration");
    }

    /// Whether a cell takes seconds, as a login does, and there is not the time for all of them.
    fn is_slow(self) -> bool {
        self == Backend::Iscsi
    }

    /// Whether the storage shuts out a node from which a volume is detached, though that node continues.
    fn fences(self) -> bool {
        self == Backend::Iscsi
    }

    fn capability(self, hold: Hold) -> csi::VolumeCapability {
        let mut capability = common::capability(Some(self.fstype()));
        let mode = match hold {
            Hold::Writing => Mode::SingleNodeMultiWriter,
            Hold::Reading => Mode::SingleNodeReaderOnly,
        };
        capability.access_mode = Some(csi::volume_capability::AccessMode { mode: mode.into() });
        capability
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Writing,
    Reading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Stage,
    Unstage,
}

/// What happens to A.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    /// The driver is killed by this order of its fault injection, in this call.
    Killed(Call, String),
    /// As `Killed`; then the machine goes down, too.
    PowerLost(Call, String),
    /// The driver is killed after it staged.
    KilledStaged,
    /// The machine goes down after the driver staged.
    PowerLostStaged,
    /// A's storage answers no request, until the volume is to be released on A.
    IsolatedFromStorage,
    /// Nobody hears of A's driver; its kernel continues.
    IsolatedFromController,
    /// Unstaged and detached.
    Moved,
}

/// Who takes the volume over, after which calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakeOver {
    /// B, after A unstaged and the controller detached.
    InOrder,
    /// B, with nobody asking A or detaching.
    Without,
    /// B, after the controller detached from A.
    Forced,
    /// B, detached from A where that is off; and A comes back and stages while B has it.
    Rivals,
    /// A stages again.
    Again,
}

use TakeOver::{Again, Forced, InOrder, Rivals, Without};

impl Event {
    /// Who may take over after it. Where the storage does not shut a node out, that must be known to be off before the volume is taken
    /// from it.
    fn take_overs(&self, fences: bool) -> &'static [TakeOver] {
        match self {
            Event::Nothing | Event::KilledStaged | Event::IsolatedFromController if fences => &[InOrder, Without, Forced, Again],
            Event::Nothing | Event::KilledStaged | Event::IsolatedFromStorage => &[InOrder, Without, Again],
            Event::Killed(..) => &[InOrder, Without, Rivals, Again],
            Event::PowerLost(..) | Event::PowerLostStaged => &[InOrder, Without, Forced, Rivals, Again],
            Event::IsolatedFromController => &[Without, Again],
            Event::Moved => &[Without, Rivals, Again],
        }
    }
}

/// A node on a machine of its own.
struct Peer {
    name: &'static str,
    backend: Backend,
    harness: Harness,
    /// Its view of what all share, where that is a file system of the machine's.
    share: Option<Share>,
    /// The end of its network that is the storage's, where that is reached by a network of the node's own.
    cable: Option<String>,
    orders: u64,
    stopped: bool,
}

impl Peer {
    fn new(name: &'static str, backend: Backend, storage: &Harness) -> Peer {
        let mut harness = Harness::in_memory(Pool::Local);
        let share = (backend == Backend::Image).then(|| Share::mount(&storage.path("pool"), &harness.path("pool")));
        backend.configure(&harness, true);
        harness.set("LONGSHORE_FAULT_FILE", &text(&harness.path("fault")));
        harness.set_node_id(name);
        harness.argue("--mode=node");
        let mut peer = Peer { name, backend, harness, share, cable: None, orders: 0, stopped: false };
        peer.arm("");
        peer.boot();
        peer
    }

    /// The machine comes up as after a reboot, and the driver starts.
    fn boot(&mut self) {
        self.harness.boot(self.backend != Backend::Iscsi);
        self.orders += 1;
        if self.backend == Backend::Nfs {
            self.connect();
        }
        let id = self.harness.path("boot");
        fs::write(&id, format!("{:08x}-2222-3333-4444-555555555555\n", self.orders)).expect("a boot id");
        let machine = self.harness.machine().expect("it is up");
        assert!(machine.runs("mount", ["--bind", &text(&id), "/proc/sys/kernel/random/boot_id"]), "no other boot id");
        self.harness.start();
    }

    /// A network between the machine and the bridge `storage`, and a name by which the server knows its client from others.
    fn connect(&mut self) {
        let machine = self.harness.machine().expect("it is up");
        let cable = format!("{}-{}", self.name, self.orders);
        let pid = machine.pid().to_string();
        common::run("ip", ["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &pid]);
        common::run("ip", ["link", "set", &cable, "master", "storage", "up"]);
        let address = format!("10.98.0.{}/24", if self.name == "node-a" { 2 } else { 3 });
        for command in ["hostname {name}", "ip link set lo up", "ip address add {address} dev eth0", "ip link set eth0 up"] {
            let command = command.replace("{name}", self.name).replace("{address}", &address);
            let (program, arguments) = command.split_once(' ').expect("arguments");
            assert!(machine.runs(program, arguments.split(' ')), "{command}");
        }
        self.cable = Some(cable);
    }

    /// What goes wrong from now on: `crash@3`, or nothing.
    fn arm(&mut self, order: &str) {
        self.orders += 1;
        self.harness.forget_log();
        fs::write(self.harness.path("fault"), format!("{} {order}", self.orders)).expect("the order");
    }

    fn signal(&mut self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.harness.pid()).expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("the driver lives");
        self.stopped = signal == nix::sys::signal::Signal::SIGSTOP;
    }

    fn isolate(&self, cut: bool) {
        if let Some(share) = &self.share {
            share.isolate(cut);
        }
        if let (Some(cable), Some(_)) = (&self.cable, self.harness.machine()) {
            common::run("ip", ["link", "set", cable, if cut { "down" } else { "up" }]);
        }
    }

    /// The machine goes down, and what it had of the storage's with it.
    fn power_off(&mut self) {
        self.harness.power_off();
        for session in self.sessions() {
            iscsi::admin::logout(&session).expect("the session goes with its machine");
        }
    }

    fn sessions(&self) -> Vec<iscsi::Session> {
        let all = if self.backend == Backend::Iscsi { iscsi::sessions().expect("sysfs") } else { Vec::new() };
        all.into_iter().filter(|session| session.initiator.ends_with(self.name)).collect()
    }

    /// It can be asked, and can reach its storage.
    fn revive(&mut self) {
        self.isolate(false);
        self.arm("");
        if self.stopped {
            self.signal(nix::sys::signal::Signal::SIGCONT);
        }
        if self.harness.machine().is_none() {
            self.boot();
        } else if self.harness.has_ended() {
            self.harness.start();
        }
    }

    fn staging(&self) -> PathBuf {
        self.harness.staging("volume")
    }

    fn stage(&self, volume: &Volume, hold: Hold) -> Result<(), Status> {
        let request = csi::NodeStageVolumeRequest {
            volume_context: volume.context.clone(),
            publish_context: volume.publish_context.get(self.name).cloned().unwrap_or_default(),
            ..stage_request(volume.id.clone(), self.staging(), self.backend.capability(hold))
        };
        self.harness.block_on(self.harness.node().node_stage_volume(patient(request))).map(drop)
    }

    fn unstage(&self, volume: &Volume) -> Result<(), Status> {
        let request = csi::NodeUnstageVolumeRequest { volume_id: volume.id.clone(), staging_target_path: text(&self.staging()) };
        self.harness.block_on(self.harness.node().node_unstage_volume(patient(request))).map(drop)
    }

    fn file(&self, name: &str) -> PathBuf {
        let machine = self.harness.machine().expect("it is up");
        if self.backend != Backend::Nfs {
            return machine.path(&self.staging().join(name));
        }
        // Nothing is mounted at the staging path of a share's directory: the volume's is the only one that the share shows.
        let visible = |directory: &Path| {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
            entries
                .filter(|path| !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")))
                .collect::<Vec<_>>()
        };
        let shares = visible(&machine.path(&self.harness.path("state/nfs/nfs")));
        let volumes = shares.iter().flat_map(|share| visible(&share.join("mount"))).collect::<Vec<_>>();
        assert!(volumes.len() <= 1, "{volumes:?}");
        volumes.first().map_or_else(|| machine.path(&self.staging()), Clone::clone).join(name)
    }

    /// Durably.
    fn write(&self, name: &str) -> Held {
        let _open = nobody_starts();
        let write = || {
            let mut file = fs::File::create(self.file(name))?;
            std::io::Write::write_all(&mut file, name.as_bytes())?;
            file.sync_all()
        };
        write().map_err(|error| format!("{} cannot write {name}: {error}", self.name))
    }

    fn reads(&self, names: &[String]) -> Held {
        let _open = nobody_starts();
        for name in names {
            let found = fs::read_to_string(self.file(name)).unwrap_or_else(|error| error.to_string());
            if found != *name {
                return Err(format!("LOST: {} reads {found:?} where {name} was written", self.name));
            }
        }
        Ok(())
    }

    /// The ways by which it can write to a volume: loop devices over the image that take writes; of a target server, the rights that it
    /// has there.
    fn writers(&self) -> Vec<String> {
        if self.backend == Backend::Iscsi {
            return files_named(Path::new("/sys/kernel/config/target/iscsi"), self.name);
        }
        let takes_writes = |device: &String| {
            fs::read_to_string(format!("/sys/block/{}/ro", device.trim_start_matches("/dev/"))).is_ok_and(|ro| ro.trim() == "0")
        };
        self.harness.loops().into_iter().filter(takes_writes).collect()
    }

    fn rolled_back(&self) -> Held {
        let sessions = self.sessions().into_iter().map(|session| format!("session {}", session.id)).collect();
        let left = [self.harness.mounts(), self.harness.loops(), sessions, self.harness.journal()].concat();
        if left.is_empty() { Ok(()) } else { Err(format!("LEFT on {}: {left:?}", self.name)) }
    }
}

fn patient<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(PATIENCE);
    request
}

/// Makes a call again while its answer says that it is not over, as a CO does: a login that was interrupted may come for some seconds.
fn repeated(call: impl Fn() -> Result<(), Status>) -> Result<(), Status> {
    let begun = Instant::now();
    loop {
        match call() {
            Err(status) if !is_final(status.code()) && begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(200));
            }
            other => return other,
        }
    }
}

fn is_final(code: Code) -> bool {
    !matches!(code, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
}

struct Volume {
    id: String,
    context: HashMap<String, String>,
    /// Of each node to which it is attached.
    publish_context: BTreeMap<String, HashMap<String, String>>,
    /// What was written to it.
    files: Vec<String>,
}

struct Peers {
    backend: Backend,
    storage: Harness,
    a: Peer,
    b: Peer,
    /// Whether the controller attaches.
    attaches: bool,
    cells: u64,
    refused: u64,
    kills: u64,
    /// The cells in which something did not hold.
    failed: Vec<String>,
    /// What A's driver said of its steps in the last call with which nothing went wrong.
    undisturbed: String,
}

impl Peers {
    fn new() -> Peers {
        let backend = Backend::chosen();
        let mut storage = Harness::in_memory(Pool::Xfs);
        backend.configure(&storage, false);
        storage.argue("--mode=controller");
        storage.start();
        let (a, b) = (Peer::new("node-a", backend, &storage), Peer::new("node-b", backend, &storage));
        let request = csi::ControllerGetCapabilitiesRequest::default();
        let said = storage.block_on(storage.controller().controller_get_capabilities(request)).expect("an answer").into_inner();
        let attach = Type::Rpc(csi::controller_service_capability::Rpc { r#type: rpc::Type::PublishUnpublishVolume.into() });
        let attaches = said.capabilities.iter().any(|one| one.r#type.as_ref() == Some(&attach));
        Peers { backend, storage, a, b, attaches, cells: 0, refused: 0, kills: 0, failed: Vec::new(), undisturbed: String::new() }
    }

    fn create(&self) -> Volume {
        let request = create(&format!("cell-{}", self.cells), 64, Some(self.backend.fstype()), self.backend.name());
        let made = self.storage.block_on(self.storage.controller().create_volume(request)).expect("created");
        let made = made.into_inner().volume.expect("a volume");
        Volume { id: made.volume_id, context: made.volume_context, publish_context: BTreeMap::new(), files: Vec::new() }
    }

    fn attach(&self, volume: &mut Volume, node: &str, hold: Hold) -> Result<(), Status> {
        if !self.attaches {
            return Ok(());
        }
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume.id.clone(),
            node_id: node.to_owned(),
            volume_capability: Some(self.backend.capability(hold)),
            volume_context: volume.context.clone(),
            ..Default::default()
        };
        let answer = self.storage.block_on(self.storage.controller().controller_publish_volume(patient(request)))?;
        volume.publish_context.insert(node.to_owned(), answer.into_inner().publish_context);
        Ok(())
    }

    fn detach(&self, volume: &mut Volume, node: &str) -> Held {
        if !self.attaches {
            return Ok(());
        }
        volume.publish_context.remove(node);
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: volume.id.clone(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        let answer = self.storage.block_on(self.storage.controller().controller_unpublish_volume(patient(request)));
        answer.map(drop).map_err(|status| format!("STUCK: it is not detached from {node}: {status}"))
    }

    /// What must hold at each moment.
    fn one_writer(&self) -> Held {
        let (a, b) = (self.a.writers(), self.b.writers());
        // A node without a way to its storage writes nothing.
        if a.is_empty() || b.is_empty() || self.a.share.as_ref().is_some_and(Share::is_interrupted) {
            return Ok(());
        }
        Err(format!("TWO WRITERS: node-a has {a:?}, node-b has {b:?}"))
    }

    /// Attached and staged, whatever it takes of the calls that a CO repeats; what was written is there.
    fn take(&self, volume: &mut Volume, of: impl Fn(&Self) -> &Peer, hold: Hold) -> Held {
        let node = of(self);
        let taken = self.attach(volume, node.name, hold).and_then(|()| repeated(|| node.stage(volume, hold)));
        taken.map_err(|status| format!("STUCK: {} cannot have it: {status}", node.name))?;
        self.one_writer()?;
        node.reads(&volume.files)
    }

    /// Unstaged and detached, as a CO does it: what is not over is repeated.
    fn release(&self, volume: &mut Volume, of: impl Fn(&Self) -> &Peer) -> Held {
        let node = of(self);
        repeated(|| node.unstage(volume)).map_err(|status| format!("STUCK: {} cannot release it: {status}", node.name))?;
        self.detach(volume, node.name)?;
        node.rolled_back()
    }

    /// A has it, or was to have it.
    fn hold(&mut self, volume: &mut Volume, hold: Hold) -> Held {
        if hold == Hold::Reading {
            self.take(volume, |peers| &peers.b, Hold::Writing)?;
            self.b.write("before")?;
            volume.files.push("before".to_owned());
            self.release(volume, |peers| &peers.b)?;
        }
        self.take(volume, |peers| &peers.a, hold)?;
        if hold == Hold::Writing {
            self.a.write("by-a")?;
            volume.files.push("by-a".to_owned());
        }
        Ok(())
    }

    /// A makes the call, and is killed in it. `false` where it was not.
    fn killed(&mut self, volume: &mut Volume, hold: Hold, call: Call, order: &str) -> Result<bool, String> {
        match call {
            Call::Stage if hold == Hold::Reading => {
                self.hold(volume, hold)?;
                self.release(volume, |peers| &peers.a)?;
            }
            Call::Stage => {}
            Call::Unstage => self.hold(volume, hold)?,
        }
        if call == Call::Stage {
            self.attach(volume, self.a.name, hold).map_err(|status| format!("it is not attached: {status}"))?;
        }
        self.a.arm(order);
        // It may have answered before it was killed.
        let _answer = match call {
            Call::Stage => self.a.stage(volume, hold),
            Call::Unstage => self.a.unstage(volume),
        };
        let reached = self.a.harness.log().contains(&format!("fault: {} at step", order.split('@').next().unwrap_or_default()));
        if reached {
            assert!(self.a.harness.wait_end(), "the driver was not killed by {order}");
            self.kills += 1;
        }
        Ok(reached)
    }

    /// `false` where the order was for a step that there is not.
    fn happen(&mut self, volume: &mut Volume, hold: Hold, event: &Event) -> Result<bool, String> {
        use nix::sys::signal::Signal;
        if let Event::Killed(call, order) | Event::PowerLost(call, order) = event {
            if !self.killed(volume, hold, *call, order)? {
                return Ok(false);
            }
            if matches!(event, Event::PowerLost(..)) {
                self.a.power_off();
            }
            return Ok(true);
        }
        self.hold(volume, hold)?;
        match event {
            Event::KilledStaged => self.a.harness.kill(),
            Event::PowerLostStaged => self.a.power_off(),
            Event::IsolatedFromStorage => self.a.isolate(true),
            Event::IsolatedFromController => self.a.signal(Signal::SIGSTOP),
            Event::Moved => self.release(volume, |peers| &peers.a)?,
            Event::Nothing | Event::Killed(..) | Event::PowerLost(..) => {}
        }
        Ok(true)
    }

    /// B stages, with A as it is. Whether it was let.
    fn try_b(&mut self, volume: &mut Volume) -> Result<bool, String> {
        // A hostile CO would continue without what ControllerPublishVolume answers.
        self.attach(volume, self.b.name, Hold::Writing).ok();
        let answer = self.b.stage(volume, Hold::Writing);
        self.one_writer()?;
        let Err(status) = answer else { return Ok(true) };
        self.refused += 1;
        if is_final(status.code()) {
            self.b.rolled_back().map_err(|left| format!("NOT FINAL: {status}, but {left}"))?;
        }
        Ok(false)
    }

    /// What B does with the volume that it has; whether A comes back meanwhile.
    fn use_b(&mut self, volume: &mut Volume, hold: Hold, rivals: bool) -> Held {
        self.b.reads(&volume.files)?;
        self.b.write("by-b")?;
        volume.files.push("by-b".to_owned());
        if rivals {
            self.a.revive();
            self.one_writer()?;
            // It may be refused, or be let read.
            let _answer = self.a.stage(volume, hold);
            self.one_writer()?;
            self.b.reads(&volume.files)?;
        }
        self.release(volume, |peers| &peers.b)
    }

    /// `false` where the event was of a step that there is not.
    fn play(&mut self, hold: Hold, event: &Event, take_over: TakeOver) -> Result<bool, String> {
        let volume = &mut self.create();
        if !self.happen(volume, hold, event)? {
            self.a.revive();
            self.release(volume, |peers| &peers.a)?;
            self.delete(volume)?;
            return Ok(false);
        }
        let has_b = match take_over {
            Forced | Rivals if take_over == Forced || self.a.harness.machine().is_none() => {
                self.detach(volume, self.a.name)?;
                if !self.try_b(volume)? {
                    return Err("STUCK: node-b is refused though node-a was detached".to_owned());
                }
                true
            }
            Without | Forced | Rivals => self.try_b(volume)?,
            InOrder | Again => false,
        };
        if has_b {
            self.use_b(volume, hold, take_over == Rivals)?;
        } else if matches!(take_over, Without | Rivals) {
            // A CO that was refused goes in order.
            self.detach(volume, self.b.name)?;
        }
        let was_off = self.a.harness.machine().is_none();
        self.a.revive();
        if take_over == Forced && !was_off {
            // It was shut out, and what it has mounted is of no use any more.
            self.release(volume, |peers| &peers.a)?;
        }
        if take_over == Again || has_b {
            // Before anybody unstages there.
            self.take(volume, |peers| &peers.a, hold)?;
        }
        self.release(volume, |peers| &peers.a)?;
        self.take(volume, |peers| &peers.b, Hold::Writing)?;
        self.b.write("at-last")?;
        volume.files.push("at-last".to_owned());
        self.release(volume, |peers| &peers.b)?;
        self.take(volume, |peers| &peers.a, Hold::Writing)?;
        self.release(volume, |peers| &peers.a)?;
        self.delete(volume)?;
        Ok(true)
    }

    fn delete(&self, volume: &Volume) -> Held {
        let request = csi::DeleteVolumeRequest { volume_id: volume.id.clone(), ..Default::default() };
        let deleted = self.storage.block_on(self.storage.controller().delete_volume(patient(request)));
        deleted.map_err(|status| format!("STUCK: it is not deleted: {status}"))?;
        // On a share, what is deleted goes behind the answer.
        let left = files_named(&self.storage.path("pool/images"), volume.id.split_once(':').expect("an id").1);
        if left.is_empty() { Ok(()) } else { Err(format!("LEFT in the pool: {left:?}")) }
    }

    /// Plays one cell, and notes what did not hold. `false` where the event was of a step that there is not.
    fn cell(&mut self, hold: Hold, event: &Event, take_over: TakeOver) -> bool {
        let played = self.play(hold, event, take_over);
        self.cells += 1;
        match played {
            Ok(true) => true,
            Ok(false) => {
                self.cells -= 1;
                false
            }
            Err(why) => {
                self.fail(format!("{hold:?} x {event:?} x {take_over:?}: {why}"));
                true
            }
        }
    }

    /// Notes what did not hold; the next cell finds nothing of this one.
    fn fail(&mut self, why: String) {
        eprintln!("peers: {why}");
        for peer in [&self.a, &self.b] {
            eprintln!("{} says:\n{}", peer.name, peer.harness.log());
        }
        assert_eq!(self.backend, Backend::Image, "{why}");
        self.failed.push(why);
        self.reset();
    }

    /// After a cell that failed: nothing of it is left anywhere.
    fn reset(&mut self) {
        for peer in [&mut self.a, &mut self.b] {
            peer.isolate(false);
            peer.stopped = false;
            peer.power_off();
            for directory in ["state/journal", "state/inline", "kubelet"] {
                fs::remove_dir_all(peer.harness.path(directory)).ok();
            }
            fs::create_dir(peer.harness.path("kubelet")).expect("a directory");
        }
        self.storage.kill();
        for (device, file) in loop_files() {
            assert!(!file.starts_with(&text(&self.storage.path("pool/"))), "{device} is left: {file}");
        }
        let volumes = self.storage.path("pool/images/volumes");
        for volume in fs::read_dir(&volumes).expect("the pool").flatten() {
            fs::remove_dir_all(volume.path()).expect("the volume goes");
        }
        self.storage.start();
        for peer in [&mut self.a, &mut self.b] {
            peer.arm("");
            peer.boot();
        }
    }

    /// Each step of the call, with A killed before it, and, where it runs a program or lasts, within it.
    fn at_each_step(&mut self, hold: Hold, call: Call, event: fn(Call, String) -> Event) {
        let steps = self.steps(hold, call);
        let mut reached = 0;
        for (turn, (number, micros)) in (1..).zip(steps).enumerate() {
            let within = if micros > 1000 { vec![micros.min(500_000) / 2] } else { Vec::new() };
            let orders = std::iter::once(format!("crash@{number}"))
                .chain(within.into_iter().map(|micros| format!("crash-within:{micros}@{number}")));
            let mut cells: Vec<(Event, TakeOver)> = Vec::new();
            for event in orders.map(|order| event(call, order)) {
                cells.extend(event.take_overs(self.backend.fences()).iter().map(|take_over| (event.clone(), *take_over)));
            }
            // One cell for each step, another kind each time.
            if self.backend.is_slow() {
                let chosen = turn % cells.len();
                cells = vec![cells.swap_remove(chosen)];
            }
            for (event, take_over) in cells {
                reached += u64::from(self.cell(hold, &event, take_over));
            }
        }
        assert!(reached > 0, "{call:?}: none of its steps was reached");
    }

    /// How long each step of the call takes undisturbed, in microseconds.
    fn steps(&mut self, hold: Hold, call: Call) -> Vec<u64> {
        let volume = &mut self.create();
        let order = "none@0";
        if call == Call::Stage && hold == Hold::Writing {
            self.attach(volume, self.a.name, hold).expect("attached");
            self.a.arm(order);
            self.a.stage(volume, hold).expect("staged");
        } else {
            self.killed(volume, hold, call, order).expect("undisturbed");
        }
        self.undisturbed = self.a.harness.log();
        self.a.arm("");
        self.release(volume, |peers| &peers.a).expect("released");
        self.delete(volume).expect("deleted");
        let took = |line: &str| line.strip_prefix("fault: step ")?.split_once(" took ")?.1.split(' ').next()?.parse().ok();
        let steps: Vec<u64> = self.undisturbed.lines().filter_map(took).collect();
        assert!(!steps.is_empty(), "{call:?} has no steps: the driver was built without the feature `faults`");
        steps
    }

    /// Prints what was counted.
    fn end(&self, suite: &str, begun: Instant) {
        eprintln!("peers {suite}: {} cells in {:?}", self.cells, begun.elapsed());
        println!(
            "FIGURE: peers {}, {suite}: {} cells, {} kills, {} takeovers refused",
            self.backend.name(),
            self.cells,
            self.kills,
            self.refused
        );
        assert!(self.cells > 0, "no cell was played");
        assert!(self.failed.is_empty(), "{} of {} cells failed:\n{}", self.failed.len(), self.cells, self.failed.join("\n"));
    }
}

fn files_named(directory: &Path, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().contains(name) {
            found.push(text(&path));
        } else if path.is_dir() {
            found.extend(files_named(&path, name));
        }
    }
    found
}

fn matrix(suite: &'static str, cells: fn(&mut Peers)) {
    if !rustix::process::geteuid().is_root() || (Backend::chosen() == Backend::Image && !Path::new("/dev/fuse").exists()) {
        return skipped("machines of their own, and a file system that they share, need root and FUSE");
    }
    isolated(move || {
        let begun = Instant::now();
        let mut peers = Peers::new();
        cells(&mut peers);
        peers.end(suite, begun);
        for peer in [&mut peers.a, &mut peers.b] {
            assert!(peer.harness.stop(), "{} does not end with success", peer.name);
        }
        if peers.backend == Backend::Image {
            peers.storage.assert_pool_empty();
        }
    });
}

#[test]
fn volume_of_a_staged_node_is_taken_over() {
    matrix("staged", |peers| {
        let mut events =
            vec![Event::Nothing, Event::KilledStaged, Event::PowerLostStaged, Event::IsolatedFromController, Event::Moved];
        // iscsid has one network for all sessions: connections that are cut are for tests/vm/inside/71-iscsi-multipath.sh.
        events.extend((peers.backend != Backend::Iscsi).then_some(Event::IsolatedFromStorage));
        for (hold, event) in
            [Hold::Writing, Hold::Reading].into_iter().flat_map(|hold| events.iter().map(move |event| (hold, event)))
        {
            let mut take_overs = event.take_overs(peers.backend.fences()).to_vec();
            // Who only reads is taken over in one way after each event, another each time.
            if peers.backend.is_slow() && hold == Hold::Reading {
                let chosen = usize::try_from(peers.cells).expect("few") % take_overs.len();
                take_overs = vec![take_overs.swap_remove(chosen)];
            }
            for take_over in take_overs {
                peers.cell(hold, event, take_over);
            }
        }
    });
}

#[test]
fn volume_of_a_node_killed_while_it_staged_is_taken_over() {
    matrix("killed in stage", |peers| peers.at_each_step(Hold::Writing, Call::Stage, Event::Killed));
}

#[test]
fn volume_of_a_node_that_lost_power_while_it_staged_is_taken_over() {
    matrix("power lost in stage", |peers| peers.at_each_step(Hold::Writing, Call::Stage, Event::PowerLost));
}

#[test]
fn volume_of_a_node_killed_while_it_unstaged_is_taken_over() {
    matrix("killed in unstage", |peers| peers.at_each_step(Hold::Writing, Call::Unstage, Event::Killed));
}

#[test]
fn volume_of_a_node_that_lost_power_while_it_unstaged_is_taken_over() {
    matrix("power lost in unstage", |peers| peers.at_each_step(Hold::Writing, Call::Unstage, Event::PowerLost));
}

#[test]
fn volume_of_a_reader_killed_while_it_staged_or_unstaged_is_taken_over() {
    matrix("reader killed", |peers| {
        for call in [Call::Stage, Call::Unstage] {
            peers.at_each_step(Hold::Reading, call, Event::Killed);
            peers.at_each_step(Hold::Reading, call, Event::PowerLost);
        }
    });
}

/// The scenario by which a volume was once formatted again: A's journal says that a mkfs was interrupted, but it had ended, and B has
/// filled the volume since.
#[test]
fn volume_filled_elsewhere_after_an_interrupted_mkfs_is_not_formatted_again() {
    if Backend::chosen() != Backend::Image {
        return skipped("how far mkfs came is looked up in the image: here it is one of the cells of lost power");
    }
    matrix("interrupted mkfs", |peers| {
        for first in [Call::Stage, Call::Unstage] {
            let reported = peers.interrupted_mkfs(first);
            peers.cells += 1;
            if let Err(why) = reported {
                peers.fail(format!("{first:?} on A afterwards: {why}"));
            }
        }
    });
}

impl Peers {
    fn interrupted_mkfs(&mut self, first: Call) -> Held {
        let behind_mkfs = self.mkfs_step() + 1;
        let volume = &mut self.create();
        assert!(self.killed(volume, Hold::Writing, Call::Stage, &format!("crash@{behind_mkfs}"))?, "there is a step behind mkfs");
        let image = self.storage.path("pool/images/volumes").join(volume.id.trim_start_matches("image:")).join("image");
        assert_eq!(common::run("blkid", ["-p", "-o", "value", "-s", "TYPE", &text(&image)]), "ext4", "mkfs has ended");
        for device in self.a.harness.loops() {
            common::run("losetup", ["--detach", &device]);
        }
        self.detach(volume, self.a.name)?;
        self.take(volume, |peers| &peers.b, Hold::Writing)?;
        self.b.write("by-b")?;
        volume.files.push("by-b".to_owned());
        self.release(volume, |peers| &peers.b)?;
        self.a.revive();
        if first == Call::Unstage {
            self.release(volume, |peers| &peers.a)?;
        }
        self.take(volume, |peers| &peers.a, Hold::Writing)?;
        self.release(volume, |peers| &peers.a)?;
        self.delete(volume)
    }

    /// The number of the step of a first stage that formats.
    fn mkfs_step(&mut self) -> u64 {
        self.steps(Hold::Writing, Call::Stage);
        let step = |line: &str| line.strip_prefix("fault: step ")?.split_once(": mkfs ")?.0.parse().ok();
        self.undisturbed.lines().find_map(step).expect("a first stage formats")
    }
}

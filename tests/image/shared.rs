//! One pool, several drivers: a controller and two nodes, each a process with its own node id, state and kubelet's directory, and mount
//! namespace. They share one kernel here, and with it the loop devices: a node whose machine dies loses its devices by hand.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use longshore::backend::image::{Holder, ImageBackend, ImageConfig, Role};
use longshore::backend::{Backend, ConnectRequest};
use longshore::os::loopdev;
use longshore::volume::{Error, MountFlags, Outcome, Secrets};

use crate::harness::*;

const DRIVER: &str = env!("CARGO_BIN_EXE_longshore");
/// Another boot for the process that follows.
const REBOOTED: &str = "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"";

/// A process of longshore's; killed with the test.
pub struct Driver {
    name: &'static str,
    pub directory: PathBuf,
    child: Option<Child>,
    said: String,
}

impl Driver {
    pub fn new(directory: &Path, name: &'static str) -> Driver {
        let directory = directory.join(name);
        fs::create_dir_all(directory.join("kubelet")).expect("a directory");
        Driver { name, directory, child: None, said: String::new() }
    }

    pub fn of(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// In a mount namespace of its own; `boot` is a file that holds another boot's id.
    pub fn start(&mut self, mode: &str, boot: Option<&Path>) {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private"]);
        if let Some(boot) = boot {
            command.args(["sh", "-c", REBOOTED, "sh"]).arg(boot);
        }
        command.env("LONGSHORE_GATE", self.directory.join("gate"));
        command.args([DRIVER, "serve", &format!("--node-id={}", self.name), &format!("--mode={mode}")]);
        for (flag, value) in
            [("kubelet-dir", "kubelet"), ("state-dir", "state"), ("endpoint", "csi.sock"), ("config", "../config.yaml")]
        {
            command.arg(format!("--{flag}={}", self.of(value)));
        }
        let mut child = start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()));
        let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut said = String::new();
        while !said.contains("listening") {
            assert!(log.read_line(&mut said).expect("a log") > 0, "{} ended: {said}", self.name);
        }
        // What is not read would stop it when the pipe is full.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        (self.child, self.said) = (Some(child), said);
    }

    /// SIGKILL; its mount namespace goes with it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("reaped");
        }
    }

    pub fn output(&self, words: &[&str]) -> Output {
        ended(&mut self.client(words))
    }

    fn client(&self, words: &[&str]) -> Command {
        let mut client = Command::new(DRIVER);
        client.args(["call", &format!("--endpoint={}", self.of("csi.sock"))]).args(words);
        client
    }

    /// Calls, and holds the driver before the `n`-th step of the call; `None` where it has fewer, and then the call has ended.
    #[cfg(feature = "faults")]
    fn held_at(&self, n: usize, words: &[&str]) -> Option<(String, std::os::unix::net::UnixStream)> {
        use std::io::{Read, Write};
        use std::os::unix::net::{UnixListener, UnixStream};
        let path = self.directory.join("gate");
        fs::remove_file(&path).ok();
        let gate = UnixListener::bind(&path).expect("a gate");
        let mut client = start(self.client(words).stdout(Stdio::null()).stderr(Stdio::null()));
        std::thread::spawn(move || {
            client.wait().expect("an answer");
            // Nobody listens any more where the step was held.
            UnixStream::connect(path).and_then(|mut end| end.write_all(b"end")).ok();
        });
        for number in 1.. {
            let (mut stream, _) = gate.accept().expect("a step");
            let mut step = String::new();
            stream.read_to_string(&mut step).expect("its name");
            if step == "end" {
                break;
            }
            if number == n {
                return Some((step, stream));
            }
        }
        None
    }

    pub fn call(&self, words: &[&str]) -> String {
        let output = self.output(words);
        assert!(output.status.success(), "{} {words:?}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Refused with FAILED_PRECONDITION; what it says.
    fn refuses(&self, words: &[&str]) -> String {
        let output = self.output(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{} {words:?} was not refused", self.name);
        assert!(said.contains("FAILED_PRECONDITION"), "{} {words:?}: {said}", self.name);
        said
    }

    pub fn staging(&self) -> String {
        let path = self.directory.join("kubelet/staging");
        fs::create_dir_all(&path).expect("a directory");
        format!("--staging={}", path.display())
    }

    /// Runs a shell in the driver's mount namespace, in the staging directory.
    pub fn shell(&self, script: &str) -> String {
        let pid = self.child.as_ref().expect("a driver runs").id();
        let script = format!("cd {} && {script}", self.of("kubelet/staging"));
        run("nsenter", &[&format!("--mount=/proc/{pid}/ns/mnt"), "sh", "-c", &script])
    }

    pub fn is_mounted(&self) -> bool {
        let pid = self.child.as_ref().expect("a driver runs").id();
        let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("mountinfo");
        table.lines().any(|line| line.split(' ').nth(4) == Some(&self.of("kubelet/staging")))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.kill();
    }
}

struct World {
    directory: tempfile::TempDir,
    pool: PathBuf,
    controller: Driver,
    a: Driver,
    b: Driver,
    boots: u32,
}

const ID: &str = "shared:v";
const STAGE: [&str; 3] = ["stage-volume", ID, "--fs=ext4"];
const READ: &str = "--access=multi-node-reader-only";
const ATTACHED_TO_A: &str = "--publish-context=attachedTo=node-a";
const ATTACHED_TO_B: &str = "--publish-context=attachedTo=node-b";

impl World {
    /// With a volume `v`.
    fn new() -> World {
        let directory = directory();
        let pool = directory.path().join("pool");
        fs::create_dir(&pool).expect("a directory");
        World::with(directory, pool)
    }

    fn with(directory: tempfile::TempDir, pool: PathBuf) -> World {
        let pools = format!("pools: [{{name: default, path: {}}}]", pool.display());
        fs::write(
            directory.path().join("config.yaml"),
            format!("grace: 1s\nbackends: [{{name: shared, type: image, shared: true, {pools}}}]\n"),
        )
        .expect("a configuration");
        let [controller, a, b] = ["controller", "node-a", "node-b"].map(|name| Driver::new(directory.path(), name));
        let mut world = World { directory, pool, controller, a, b, boots: 0 };
        world.controller.start("controller", None);
        world.a.start("node", None);
        world.b.start("node", None);
        world.create();
        world
    }

    fn create(&self) {
        self.controller.call(&["create-volume", "--name=v", "--size=16MiB", "--fs=ext4"]);
    }

    fn volume(&self) -> PathBuf {
        self.pool.join("volumes/v")
    }

    fn leases(&self) -> Vec<String> {
        let names = fs::read_dir(self.volume()).expect("a volume").map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().expect("a name")).collect();
        names.retain(|name| name.starts_with("lease"));
        names.sort();
        names
    }

    fn devices(&self) -> Vec<String> {
        let devices = loopdev::list().expect("a list").0.into_iter().map(|device| device.path);
        let of = |path: &PathBuf| loopdev::file_of(path).expect("a file").is_some_and(|file| file.starts_with(&self.pool));
        devices.filter(of).map(|path| path.display().to_string()).collect()
    }

    /// The machine of a node dies: the process, its mounts, its devices.
    fn crash(&mut self, node: impl Fn(&mut World) -> &mut Driver) {
        node(self).kill();
        for device in self.devices() {
            run("losetup", &["--detach", &device]);
        }
    }

    /// After the crash.
    fn boot(&mut self, node: impl Fn(&mut World) -> &mut Driver) {
        let boot = self.directory.path().join("boot");
        self.boots += 1;
        fs::write(&boot, format!("11111111-2222-3333-4444-{:012}\n", self.boots)).expect("a boot id");
        node(self).start("node", Some(&boot));
    }

    fn attach(&self, node: &str) {
        self.controller.call(&["controller-publish-volume", ID, "--node", node, "--fs=ext4"]);
    }

    fn detach(&self, node: &str) {
        self.controller.call(&["controller-unpublish-volume", ID, "--node", node]);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for driver in [&mut self.a, &mut self.b, &mut self.controller] {
            if std::thread::panicking() {
                eprintln!("{} said at its start: {}", driver.name, driver.said);
            }
            driver.kill();
        }
        for device in self.devices() {
            ended(Command::new("losetup").args(["--detach", &device]));
        }
    }
}

fn stage(driver: &Driver, more: &[&str]) -> Vec<String> {
    [&STAGE[..], &[&driver.staging()], more].concat().into_iter().map(str::to_owned).collect()
}

macro_rules! words {
    ($words:expr) => {
        &$words.iter().map(String::as_str).collect::<Vec<_>>()
    };
}

fn stages(driver: &Driver, more: &[&str]) {
    driver.call(words!(stage(driver, more)));
}

fn stage_is_refused(driver: &Driver, more: &[&str]) -> String {
    driver.refuses(words!(stage(driver, more)))
}

fn unstages(driver: &Driver) {
    driver.call(&["unstage-volume", ID, &driver.staging()]);
}

#[test]
fn shared_volume_that_a_node_holds_is_refused_to_another_and_not_deleted() {
    isolated(|| {
        let world = World::new();
        stages(&world.a, &[]);
        world.a.shell("echo first > data && sync");
        let (lease, devices) = (fs::read(world.volume().join("lease")).expect("a lease"), world.devices());
        for _ in 0..2 {
            let said = stage_is_refused(&world.b, &[]);
            assert!(said.contains("node-a") && said.contains("/lease"), "{said}");
            unstages(&world.b);
        }
        let said = world.controller.refuses(&["delete-volume", ID]);
        assert!(said.contains("node-a"), "{said}");
        assert_eq!((fs::read(world.volume().join("lease")).expect("a lease"), world.devices()), (lease, devices));
        assert!(world.a.is_mounted() && !world.b.is_mounted());
        assert_eq!(world.a.shell("cat data && echo second > more && sync && cat more"), "first\nsecond");
        stages(&world.a, &[]);

        unstages(&world.a);
        assert_eq!((world.leases(), world.devices()), (vec![], vec![]));
        stages(&world.b, &[]);
        assert_eq!(world.b.shell("cat data more"), "first\nsecond");
        assert!(stage_is_refused(&world.a, &[]).contains("node-b"));
        unstages(&world.b);
        world.controller.call(&["delete-volume", ID]);
        assert!(!world.volume().exists());
    });
}

#[test]
fn crashed_holder_keeps_its_lease_and_continues_with_it() {
    isolated(|| {
        let mut world = World::new();
        stages(&world.a, &[]);
        world.a.shell("echo kept > data && sync");
        world.crash(|world| &mut world.a);
        assert!(stage_is_refused(&world.b, &[]).contains("node-a"));
        world.boot(|world| &mut world.a);
        assert!(stage_is_refused(&world.b, &[]).contains("node-a"));
        stages(&world.a, &[]);
        assert_eq!(world.a.shell("cat data"), "kept");
        unstages(&world.a);
        assert_eq!((world.leases(), world.devices()), (vec![], vec![]));
        // The same node id from another state directory is another driver.
        stages(&world.b, &[]);
        let mut other = Driver::new(&world.directory.path().join("other"), "node-b");
        fs::copy(world.directory.path().join("config.yaml"), world.directory.path().join("other/config.yaml")).expect("copied");
        other.start("node", None);
        assert!(stage_is_refused(&other, &[]).contains("node-b"));
    });
}

#[test]
fn crashed_holder_is_released_by_the_controller_and_then_refused() {
    isolated(|| {
        let mut world = World::new();
        world.attach("node-a");
        stages(&world.a, &[ATTACHED_TO_A]);
        world.a.shell("echo of-a > data && sync");
        world.crash(|world| &mut world.a);
        let said = world.controller.refuses(&["controller-publish-volume", ID, "--node=node-b", "--fs=ext4"]);
        assert!(said.contains("node-a"), "{said}");
        assert!(stage_is_refused(&world.b, &[]).contains("node-a"));
        assert!(world.controller.refuses(&["delete-volume", ID]).contains("node-a"));

        world.detach("node-a");
        assert!(stage_is_refused(&world.b, &[]).contains("no node"), "not attached yet");
        world.attach("node-b");
        stages(&world.b, &[ATTACHED_TO_B]);
        assert_eq!(world.b.shell("cat data && echo of-b > data && sync && cat data"), "of-a\nof-b");
        let lease = fs::read(world.volume().join("lease")).expect("a lease");

        world.boot(|world| &mut world.a);
        for context in [&[ATTACHED_TO_A][..], &[]] {
            assert!(stage_is_refused(&world.a, context).contains("node-b"));
        }
        unstages(&world.a);
        assert_eq!(fs::read(world.volume().join("lease")).expect("a lease"), lease);
        assert_eq!(world.devices().len(), 1);
        assert_eq!(world.b.shell("cat data"), "of-b");
        unstages(&world.b);
        assert!(world.controller.refuses(&["delete-volume", ID]).contains("node-b"), "it is attached still");
        world.detach("node-b");
        world.controller.call(&["delete-volume", ID]);
    });
}

#[test]
fn interrupted_stage_of_a_detached_node_touches_nothing_at_its_start() {
    isolated(|| {
        let mut world = World::new();
        world.attach("node-a");
        stages(&world.a, &[ATTACHED_TO_A]);
        world.crash(|world| &mut world.a);
        // As a kill in the middle of mkfs leaves it.
        let journal = world.a.directory.join("state/journal").join(ID).join("stage.json");
        let mut entry: serde_json::Value = serde_json::from_slice(&fs::read(&journal).expect("a journal")).expect("JSON");
        let format = serde_json::json!({ "purpose": { "filesystem": "ext4" }, "offset": 1 << 20 });
        (entry["phase"], entry["format"]) = ("staging".into(), format);
        fs::write(&journal, entry.to_string()).expect("written");
        world.detach("node-a");
        world.attach("node-b");
        stages(&world.b, &[ATTACHED_TO_B]);
        world.b.shell("echo of-b > data && sync");
        unstages(&world.b);
        world.boot(|world| &mut world.a);
        // It may still say that something was left: its journal remembers a mkfs.
        let refused = world.a.output(words!(stage(&world.a, &[])));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("attached to node-b"), "{said}");
        world.a.output(&["unstage-volume", ID, &world.a.staging()]);
        assert_eq!((world.leases(), world.devices()), (vec![], vec![]));
        stages(&world.b, &[ATTACHED_TO_B]);
        assert_eq!(world.b.shell("cat data"), "of-b");
    });
}

#[test]
fn node_that_is_detached_while_it_runs_publishes_no_more() {
    isolated(|| {
        let world = World::new();
        world.attach("node-a");
        stages(&world.a, &[ATTACHED_TO_A]);
        world.detach("node-a");
        let target = format!("--target={}", world.a.of("kubelet/target"));
        let said = world.a.refuses(&["publish-volume", ID, "--fs=ext4", &world.a.staging(), &target]);
        assert!(said.contains("attached to no node"), "{said}");
        assert!(stage_is_refused(&world.a, &[]).contains("attached to no node"));
        unstages(&world.a);
        assert_eq!((world.leases(), world.devices()), (vec![], vec![]));
    });
}

/// A PersistentVolume with `readOnly: true`: NodeStageVolume has no word for it.
#[test]
fn volume_that_is_attached_for_reading_is_staged_so() {
    isolated(|| {
        let world = World::new();
        world.attach("node-a");
        stages(&world.a, &[ATTACHED_TO_A]);
        world.a.shell("echo kept > data");
        unstages(&world.a);
        world.detach("node-a");
        let said = world.controller.call(&["controller-publish-volume", ID, "--node=node-a", "--fs=ext4", "--read-only"]);
        assert!(said.contains("readOnly"), "{said}");
        let before = fs::read(world.volume().join("image")).expect("the image");
        stages(&world.a, &[ATTACHED_TO_A, "--publish-context=readOnly=true"]);
        assert_eq!(world.a.shell("cat data; touch more 2>/dev/null || echo refused"), "kept\nrefused");
        unstages(&world.a);
        assert!(fs::read(world.volume().join("image")).expect("the image") == before, "it was written to");
    });
}

#[test]
fn nodes_that_stage_at_once_are_never_two() {
    isolated(|| {
        let world = World::new();
        let mut staged = [0; 2];
        for round in 0..40 {
            let start = std::sync::Barrier::new(2);
            let [a, b] = [&world.a, &world.b].map(|driver| (driver, stage(driver, &[])));
            let run = |(driver, words): (&Driver, Vec<String>)| {
                start.wait();
                driver.output(words!(words)).status.success()
            };
            let won = std::thread::scope(|scope| {
                let (a, b) = (scope.spawn(|| run(a)), scope.spawn(|| run(b)));
                [a.join().expect("no panic"), b.join().expect("no panic")]
            });
            assert_ne!(won, [true, true], "round {round}");
            assert!(world.devices().len() <= 1, "round {round}");
            assert!(world.leases().len() <= 1, "round {round}");
            for ((driver, won), staged) in [&world.a, &world.b].into_iter().zip(won).zip(&mut staged) {
                if won {
                    *staged += 1;
                    unstages(driver);
                }
            }
            assert_eq!((world.leases(), world.devices()), (vec![], vec![]), "round {round}");
        }
        assert!(staged[0] + staged[1] >= 30, "nearly always one of the two: {staged:?}");
    });
}

#[test]
fn readers_share_a_volume_and_keep_writers_out() {
    isolated(|| {
        let world = World::new();
        stages(&world.a, &[]);
        world.a.shell("echo read > data && sync");
        assert!(stage_is_refused(&world.b, &[READ]).contains("for writing"));
        unstages(&world.a);
        for driver in [&world.a, &world.b] {
            stages(driver, &[READ]);
        }
        assert_eq!((world.leases().len(), world.devices().len()), (2, 2));
        for driver in [&world.a, &world.b] {
            assert_eq!(driver.shell("cat data"), "read");
        }
        for device in world.devices() {
            assert_eq!(run("blockdev", &["--getro", &device]), "1", "a journal is not replayed under another reader");
        }
        unstages(&world.a);
        assert_eq!(world.b.shell("cat data"), "read");
        assert!(stage_is_refused(&world.a, &[]).contains("node-b has it connected for reading"));
        assert!(world.controller.refuses(&["delete-volume", ID]).contains("node-b"));
        unstages(&world.b);
        assert_eq!((world.leases(), world.devices()), (vec![], vec![]));
        stages(&world.a, &[]);
    });
}

#[test]
fn lease_that_cannot_be_read_is_refused_and_named() {
    isolated(|| {
        let world = World::new();
        let lease = world.volume().join("lease");
        stages(&world.a, &[]);
        let whole = fs::read_to_string(&lease).expect("a lease");
        unstages(&world.a);
        let torn = &whole[..whole.len() / 2];
        let (later, others) = (whole.replace("\"format\": 1", "\"format\": 2"), whole.replace("shared:v", "shared:w"));
        for text in ["", torn, &later, &others] {
            fs::write(&lease, text).expect("written");
            for driver in [&world.a, &world.b] {
                let said = stage_is_refused(driver, &[]);
                assert!(said.contains(&lease.display().to_string()) && said.contains("remove the file"), "{said}");
            }
            let said = world.controller.refuses(&["delete-volume", ID]);
            assert!(said.contains(&lease.display().to_string()), "{said}");
            world.controller.refuses(&["controller-unpublish-volume", ID, "--node=node-a"]);
            assert_eq!(fs::read_to_string(&lease).expect("it stays"), text);
            assert!(world.devices().is_empty());
        }
        // A deletion that was interrupted: no node gets it any more, and it continues.
        fs::write(&lease, whole.replace("\"access\": \"write\"", "\"access\": \"delete\"")).expect("written");
        assert!(stage_is_refused(&world.a, &[]).contains("deletion"));
        world.controller.call(&["delete-volume", ID]);
        assert!(!world.volume().exists());
    });
}

#[cfg(feature = "faults")]
#[test]
fn node_that_dies_before_any_step_of_a_stage_or_unstage_is_the_holder_or_nobody_is() {
    isolated(|| {
        let mut world = World::new();
        let mut steps = [Vec::new(), Vec::new()];
        for (unstage, steps) in [false, true].into_iter().zip(&mut steps) {
            for n in 1.. {
                let words = match unstage {
                    true => {
                        stages(&world.a, &[]);
                        ["unstage-volume", ID, &world.a.staging()].map(str::to_owned).to_vec()
                    }
                    false => stage(&world.a, &[]),
                };
                let held = world.a.held_at(n, words!(words));
                let ended = held.is_none();
                world.crash(|world| &mut world.a);
                steps.extend(held.map(|(step, _)| step));
                let (at, free) = (steps.last().cloned().unwrap_or_default(), world.leases().is_empty());
                if free {
                    stages(&world.b, &[]);
                    unstages(&world.b);
                } else {
                    assert!(stage_is_refused(&world.b, &[]).contains("node-a"), "{at}");
                }
                world.boot(|world| &mut world.a);
                stages(&world.a, &[]);
                world.a.shell(&format!("echo {n} > data && sync"));
                unstages(&world.a);
                stages(&world.b, &[]);
                assert_eq!(world.b.shell("cat data"), n.to_string(), "{at}");
                unstages(&world.b);
                assert_eq!(world.devices(), [""; 0], "{at}");
                assert_eq!(
                    names(&world.volume()),
                    [".attached.json.tmp", ".lease-0000000000000000.tmp", ".lease.tmp", "image", "meta.json"]
                );
                if ended {
                    break;
                }
            }
        }
        let has = |steps: &[String], name: &str| steps.iter().any(|step| step.starts_with(name));
        assert!(has(&steps[0], "take lease") && has(&steps[0], "attach loop device"), "{steps:?}");
        assert!(has(&steps[1], "sync image") && has(&steps[1], "release lease"), "{steps:?}");
        let position = |steps: &[String], name: &str| steps.iter().position(|step| step.starts_with(name));
        assert!(position(&steps[0], "take lease") < position(&steps[0], "attach loop device"), "{steps:?}");
        assert!(position(&steps[1], "detach loop device") < position(&steps[1], "sync image"), "{steps:?}");
        assert!(position(&steps[1], "sync image") < position(&steps[1], "release lease"), "{steps:?}");
    });
}

#[cfg(feature = "faults")]
#[test]
fn node_that_is_held_at_any_step_of_a_stage_never_has_the_volume_beside_another() {
    isolated(|| {
        let world = World::new();
        for n in 1.. {
            let Some((step, held)) = world.a.held_at(n, words!(stage(&world.a, &[]))) else { break };
            let other = world.b.output(words!(stage(&world.b, &[]))).status.success();
            drop(held);
            // It waits for the call that was held, or repeats it.
            let mine = loop {
                let answer = world.a.output(words!(stage(&world.a, &[])));
                let said = String::from_utf8_lossy(&answer.stderr).into_owned();
                if !said.contains("ABORTED") {
                    break answer.status.success();
                }
            };
            assert!(mine != other, "{step}: {mine} {other}");
            assert_eq!((world.a.is_mounted(), world.b.is_mounted(), world.devices().len()), (mine, other, 1), "{step}");
            unstages(if mine { &world.a } else { &world.b });
            assert_eq!((world.leases(), world.devices()), (vec![], vec![]), "{step}");
        }
    });
}

/// It holds the lock of the state directory until it is gone.
#[cfg(feature = "faults")]
#[test]
fn call_that_outlasts_the_grace_does_not_keep_the_process() {
    isolated(|| {
        let mut world = World::new();
        let (_, stuck) = world.a.held_at(1, words!(stage(&world.a, &[]))).expect("a step");
        let mut child = world.a.child.take().expect("it runs");
        run("kill", &["-TERM", &child.id().to_string()]);
        let ended = longshore::os::udev::wait_until(Instant::now().checked_add(Duration::from_secs(30)), || {
            Ok(child.try_wait().expect("waited").is_some())
        });
        child.kill().ok();
        child.wait().expect("reaped");
        drop(stuck);
        assert!(ended.expect("waited"), "it waits for a call that hangs");
    });
}

#[test]
fn lease_is_shown_by_inspect_and_an_orphaned_one_with_the_command_that_removes_it() {
    isolated(|| {
        let mut world = World::new();
        let inspect = |driver: &Driver| -> serde_json::Value {
            let mut command = Command::new(DRIVER);
            command.args(["inspect", "--json", &format!("--node-id={}", driver.name)]);
            for (flag, value) in
                [("kubelet-dir", "kubelet"), ("state-dir", "state"), ("endpoint", "csi.sock"), ("config", "../config.yaml")]
            {
                command.arg(format!("--{flag}={}", driver.of(value)));
            }
            let output = ended(&mut command);
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no report: {error}"))
        };
        let kinds = |report: &serde_json::Value| {
            let found =
                report["findings"].as_array().expect("a list").iter().map(|found| found["kind"].as_str().expect("a kind"));
            found.filter(|kind| kind.starts_with("lease")).map(str::to_owned).collect::<Vec<_>>()
        };
        stages(&world.a, &[]);
        for driver in [&world.a, &world.b] {
            let report = inspect(driver);
            assert_eq!(report["volumes"][0]["stored"]["attached"][0], "node-a", "{report}");
            assert_eq!(kinds(&report), Vec::<String>::new());
        }
        world.crash(|world| &mut world.a);
        fs::remove_file(world.a.directory.join("state/journal").join(ID).join("stage.json")).expect("a lost journal");
        assert_eq!(kinds(&inspect(&world.b)), Vec::<String>::new(), "it is not for node-b to say");
        let report = inspect(&world.a);
        assert_eq!(kinds(&report), ["lease-orphaned"]);
        let found = report["findings"].as_array().expect("a list").iter().find(|found| found["kind"] == "lease-orphaned");
        let command = found.expect("found")["commands"][0].as_str().expect("a command");
        run("sh", &["-c", command]);
        stages(&world.b, &[]);
        fs::write(world.volume().join("lease"), "torn").expect("written");
        assert_eq!(kinds(&inspect(&world.b)), ["lease-damaged"]);
        fs::remove_file(world.volume().join("lease")).expect("removed");
        unstages(&world.b);
    });
}

#[test]
fn holders_of_a_volume_are_the_nodes_that_have_it_connected() {
    let directory = directory();
    let open = |name: &str, shared: bool, provision: bool| {
        let state = directory.path().join(name);
        fs::create_dir_all(&state).expect("a directory");
        let holder = Holder::of(name.parse().expect("a node id"), &state).expect("a holder");
        assert_eq!(Holder::of(name.parse().expect("a node id"), &state).expect("again"), holder);
        let config = ImageConfig { shared, ..config(vec![pool("p", &directory.path().join("pool"))]) };
        let _alone = nobody_starts();
        ImageBackend::open_remembering(config, Role { provision }, None, Some(holder)).expect("opens")
    };
    let (id, none) = (volume_id("v"), serde_json::Value::Null);
    let connect = |node: &ImageBackend, read_only| {
        let (context, secrets) = (BTreeMap::new(), Secrets::default());
        let (parameters, publish_context, secrets) = (&none, &context, &secrets);
        let request = ConnectRequest {
            id: &id,
            parameters,
            publish_context,
            secrets,
            mount_flags: &MountFlags::default(),
            read_only,
            earlier: None,
        };
        node.connect().connect(&request).map(Outcome::into_inner)
    };
    let controller = open("controller", true, true);
    let holders = |backend: &ImageBackend| {
        provision(backend).holders(&id).map(|all| {
            all.map(|mut all| {
                all.sort_by(|a, b| a.node.cmp(&b.node));
                all.into_iter().map(|held| (held.node.to_string(), held.writes)).collect::<Vec<_>>()
            })
        })
    };
    assert!(matches!(holders(&controller), Err(Error::NotFound { .. })));
    create(&controller, "v", 2 * MIB);
    assert_eq!(holders(&controller).expect("asked"), Some(vec![]));
    let (a, b) = (open("node-a", true, false), open("node-b", true, false));
    let device = connect(&a, false).expect("connected");
    assert_eq!(holders(&controller).expect("asked"), Some(vec![("node-a".to_owned(), true)]));
    assert!(matches!(connect(&b, true), Err(Error::InUse { .. })));
    a.connect().disconnect(&id, Some(&device)).expect("disconnected");
    let devices = [connect(&a, true).expect("connected"), connect(&b, true).expect("connected")];
    let readers = vec![("node-a".to_owned(), false), ("node-b".to_owned(), false)];
    assert_eq!(holders(&controller).expect("asked"), Some(readers));
    for (node, device) in [&a, &b].into_iter().zip(&devices) {
        node.connect().disconnect(&id, Some(device)).expect("disconnected");
    }
    fs::write(directory.path().join("pool/volumes/v/lease"), "torn").expect("written");
    assert!(matches!(holders(&controller), Err(Error::Unverified { .. })));
    fs::remove_file(directory.path().join("pool/volumes/v/lease")).expect("removed");
    drop(controller);
    assert_eq!(holders(&open("controller", false, true)).expect("asked"), None, "of a local pool the node itself knows");
}

/// What it has cached may be older than what another node has written meanwhile: neither is it published, nor does it get a lease.
#[test]
fn node_that_was_detached_and_attached_again_has_to_unstage_first() {
    isolated(|| {
        let world = World::new();
        world.attach("node-a");
        stages(&world.a, &[ATTACHED_TO_A]);
        world.a.shell("echo kept > data && sync");
        world.detach("node-a");
        world.attach("node-a");
        let target = format!("--target={}", world.a.of("kubelet/target"));
        for _ in 0..2 {
            let said = world.a.refuses(&["publish-volume", ID, "--fs=ext4", &world.a.staging(), &target]);
            assert!(said.contains("detached from this node meanwhile"), "{said}");
            let said = stage_is_refused(&world.a, &[ATTACHED_TO_A]);
            assert!(said.contains("detached from this node meanwhile"), "{said}");
            assert_eq!(world.leases(), [""; 0]);
        }
        unstages(&world.a);
        stages(&world.a, &[ATTACHED_TO_A]);
        assert_eq!(world.a.shell("cat data"), "kept");
        unstages(&world.a);
        assert_eq!((world.leases(), world.devices()), (vec![], vec![]));
    });
}

/// As a stage leaves it that was interrupted between connecting and mounting.
#[test]
fn device_of_before_the_node_was_detached_is_not_connected_again() {
    isolated(|| {
        let world = World::new();
        world.attach("node-a");
        let block = ["stage-volume", ID, "--block", &world.a.staging(), ATTACHED_TO_A].map(str::to_owned);
        world.a.call(words!(block));
        let [device] = &world.devices()[..] else { panic!("one device") };
        // In its cache.
        assert_eq!(fs::read(device).expect("read")[..4], [0; 4]);
        let journal = world.a.directory.join("state/journal").join(ID).join("stage.json");
        let mut entry: serde_json::Value = serde_json::from_slice(&fs::read(&journal).expect("a journal")).expect("JSON");
        entry["phase"] = "staging".into();
        fs::write(&journal, entry.to_string()).expect("written");
        world.detach("node-a");
        let image = fs::File::options().write(true).open(world.volume().join("image")).expect("the image");
        std::os::unix::fs::FileExt::write_all_at(&image, b"of-b", 0).expect("written on another node");

        world.attach("node-a");
        let user = fs::File::open(device).expect("opened");
        let said = world.a.refuses(words!(block));
        assert!(said.contains("of before this node was detached") && world.leases().is_empty(), "{said}");
        drop(user);
        world.a.call(words!(block));
        let [device] = &world.devices()[..] else { panic!("one device") };
        assert_eq!(fs::read(device).expect("read")[..4], *b"of-b");
        unstages(&world.a);
        assert_eq!((world.leases(), world.devices()), (vec![], vec![]));
    });
}

/// Whatever room is given back, another volume takes at once.
#[test]
fn volumes_of_a_full_shared_pool_are_attached_staged_detached_and_deleted() {
    isolated(|| {
        for kind in [Kind::Ext4, Kind::Xfs] {
            let disk = Disk::new(kind, 320);
            let world = World::with(directory(), disk.pool());
            let other = Filler::new(&disk);
            world.controller.call(&["create-volume", "--name=new", "--size=16MiB", "--fs=ext4"]);
            world.attach("node-a");
            stages(&world.a, &[ATTACHED_TO_A]);
            world.a.shell("echo kept > data && sync");
            for _ in 0..2 {
                for (driver, to) in [(&world.a, "node-b"), (&world.b, "node-a")] {
                    other.fills();
                    unstages(driver);
                    other.fills();
                    world.detach(if to == "node-a" { "node-b" } else { "node-a" });
                    other.fills();
                    world.attach(to);
                    other.fills();
                    let (next, attached) = if to == "node-a" { (&world.a, ATTACHED_TO_A) } else { (&world.b, ATTACHED_TO_B) };
                    stages(next, &[attached]);
                    assert_eq!(next.shell("cat data"), "kept", "{kind:?}");
                }
            }
            other.fills();
            let id = "shared:new";
            world.controller.call(&["controller-publish-volume", id, "--node=node-b", "--block"]);
            other.fills();
            world.b.call(&["stage-volume", id, "--block", &world.b.staging(), ATTACHED_TO_B]);
            other.fills();
            world.b.call(&["unstage-volume", id, &world.b.staging()]);
            other.fills();
            world.controller.call(&["controller-unpublish-volume", id, "--node=node-b"]);
            other.fills();
            world.controller.call(&["delete-volume", id]);
            unstages(&world.a);
            world.detach("node-a");
            other.fills();
            world.controller.call(&["delete-volume", ID]);
            assert_eq!((names(&disk.pool().join("volumes")), world.devices()), (vec![], vec![]), "{kind:?}");
        }
    });
}

/// A file that takes all blocks that its file system has left.
struct Filler(fs::File, PathBuf);

impl Filler {
    fn new(disk: &Disk) -> Filler {
        let path = disk.mountpoint().join("filler");
        Filler(fs::File::create_new(&path).expect("a file"), path)
    }

    fn fills(&self) {
        for block in [1 << 20, 1 << 16, 1 << 12, 1 << 10] {
            while (&self.0).write_all(&vec![1; block]).and_then(|()| self.0.sync_all()).is_ok() {}
        }
        let more = self.1.with_extension("more");
        assert!(fs::write(&more, [1; 1 << 10]).is_err(), "full");
        fs::remove_file(more).ok();
    }
}

//! A driver process on the real kernel, for black-box tests: socket in, kernel out.
//!
//! Each test runs on a thread with a mount namespace of its own, in a directory of its own, and takes down what it made also
//! when it fails.

#![allow(dead_code, reason = "each test program uses another part of it")]
#![allow(clippy::disallowed_methods, reason = "tests start programs and the driver itself")]

pub mod holder;
pub mod http;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod sequence;
pub mod tools;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use longshore::csi::group_controller_client::GroupControllerClient;
use longshore::csi::identity_client::IdentityClient;
use longshore::csi::node_client::NodeClient;
use longshore::csi::snapshot_metadata_client::SnapshotMetadataClient;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
pub use test_support::is_short;
#[allow(unused_imports, reason = "each test program uses another part of it")]
pub use test_support::{nobody_starts, skipped, starting};
use tonic::transport::{Channel, Endpoint, Uri};

pub const MIB: i64 = 1 << 20;

/// What the pool lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// The directory's own file system.
    Local,
    /// An xfs with reflinks, over a loop device.
    Xfs,
    /// A btrfs, which has reflinks, over a loop device.
    Btrfs,
    /// Two pools: `default` on such an xfs, `plain` on an ext4, which has no reflinks, over another loop device.
    XfsAndExt4,
}

/// Runs `test` in a mount namespace of its own.
pub fn isolated(test: impl FnOnce() + Send) {
    test_support::in_namespace(test);
}

/// Whether this cell of a matrix is left out: where they are short, the 1st, 4th, 7th, ... step is disturbed once, and then the call is
/// repeated and undone in turns.
pub fn is_left_out(step: u64, is_repeated: bool) -> bool {
    is_short() && (step % 3 != 1 || step.is_multiple_of(2) == is_repeated)
}

/// Runs a program to its end and gives what it printed; a failure ends the test.
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> String {
    let output = ended(program, arguments);
    assert!(output.status.success(), "{program}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Runs a program to its end, and says whether it ended well.
pub fn runs<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> bool {
    ended(program, arguments).status.success()
}

fn ended<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Output {
    let _starting = starting();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let finds = program == "losetup" && command.get_args().any(|argument| argument == "--find" || argument == "-f");
    let mut output = command.output().unwrap_or_else(|error| panic!("{program}: {error}"));
    // `losetup --find` looks for a free number first, and another process may bind it before losetup does.
    while finds && String::from_utf8_lossy(&output.stderr).contains("failed to set up loop device: Device or resource busy") {
        output = command.output().unwrap_or_else(|error| panic!("{program}: {error}"));
    }
    output
}

/// A driver with its directories.
pub struct Harness {
    directory: tempfile::TempDir,
    pool_devices: Vec<String>,
    environment: Vec<(String, String)>,
    node_id: String,
    /// Further arguments of `serve`.
    arguments: Vec<String>,
    machine: Option<Machine>,
    /// Instead of `longshore` itself.
    program: Option<PathBuf>,
    driver: Option<Child>,
    runtime: tokio::runtime::Runtime,
}

/// Namespaces for mounts and the network that outlive the drivers in them, as a machine outlives its pods. They are copies of the
/// test's, and see nothing of what it mounts later.
pub struct Machine(Child);

impl Machine {
    fn boot(network: bool) -> Machine {
        let mut command = Command::new("unshare");
        command.args(network.then_some("--net"));
        command.args(["--uts", "--mount", "--propagation", "private", "sh", "-c", "echo up; exec cat >/dev/null"]);
        // It ends with the pipe, whatever becomes of the test.
        let starting = starting();
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a machine");
        drop(starting);
        let mut up = [0; 3];
        std::io::Read::read_exact(process.stdout.as_mut().expect("a pipe"), &mut up).expect("it is up");
        Machine(process)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Runs a program in it to its end, and says whether it ended well.
    pub fn runs<S: AsRef<OsStr>>(&self, program: &str, arguments: impl IntoIterator<Item = S>) -> bool {
        let _starting = starting();
        self.command(program).args(arguments).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid().to_string(), "--mount", "--net", "--uts", "--"]).arg(program);
        command
    }

    fn mount_points(&self) -> Vec<String> {
        points_in(&fs::read_to_string(format!("/proc/{}/mountinfo", self.pid())).expect("mountinfo"))
    }

    /// A path in it, seen from outside.
    pub fn path(&self, path: &Path) -> PathBuf {
        Path::new("/proc").join(self.pid().to_string()).join("root").join(path.strip_prefix("/").expect("absolute"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Harness {
    /// Directories and a pool; the driver is not started yet.
    pub fn new(pool: Pool) -> Harness {
        Harness::new_in("/var/tmp", pool)
    }

    /// As `new`, with all its directories and what the pools lie on below `place`.
    pub fn new_in(place: &str, pool: Pool) -> Harness {
        Harness::over(Harness::directory(place), pool)
    }

    /// As `new`, but all lies in memory: for tests that start and kill so often that a disk's fsync would be most of their time,
    /// and that look at what a killed process leaves, which no disk decides.
    pub fn in_memory(pool: Pool) -> Harness {
        let directory = Harness::directory("/var/tmp");
        mount(Some("longshore-test"), directory.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("a tmpfs");
        Harness::over(directory, pool)
    }

    fn directory(place: &str) -> tempfile::TempDir {
        tempfile::Builder::new().prefix("longshore-test-").tempdir_in(place).expect("a directory")
    }

    fn over(directory: tempfile::TempDir, pool: Pool) -> Harness {
        for name in ["kubelet", "state", "pool"] {
            fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let node_id = "node-1".to_owned();
        let mut harness = Harness {
            directory,
            pool_devices: Vec::new(),
            environment: Vec::new(),
            node_id,
            arguments: Vec::new(),
            machine: None,
            program: None,
            driver: None,
            runtime,
        };
        match pool {
            Pool::Local => {}
            Pool::Btrfs => harness.mount_pool("btrfs", "pool"),
            Pool::Xfs | Pool::XfsAndExt4 => harness.mount_pool("xfs", "pool"),
        }
        fs::create_dir(harness.path("pool/images")).expect("a directory");
        let mut pools = vec![("default", harness.path("pool/images"))];
        if pool == Pool::XfsAndExt4 {
            fs::create_dir(harness.path("pool/plain")).expect("a directory");
            harness.mount_pool("ext4", "pool/plain");
            fs::create_dir(harness.path("pool/plain/images")).expect("a directory");
            pools.push(("plain", harness.path("pool/plain/images")));
        }
        let pools: String = pools
            .into_iter()
            .map(|(name, path)| format!("      - name: {name}\n        path: {}\n        overcommit: 8.0\n", path.display()))
            .collect();
        // There are two backends: inline volumes have to say which.
        let backends = format!(
            "allowInlineParameters: [size, fsType, backend, encryption, medium, mountPermissions, gid, mkfsOptions]\nbackends:\n  - name: image\n    type: image\n    pools:\n{pools}  - name: fake\n    type: fake\n"
        );
        fs::write(harness.path("config.yaml"), backends).expect("the configuration");
        harness
    }

    /// A new file system of 4 GiB over a loop device of its own.
    fn mount_pool(&mut self, fstype: &str, place: &str) {
        let image = self.path(&format!("{fstype}.img"));
        run("truncate", [OsStr::new("-s"), OsStr::new("4G"), image.as_os_str()]);
        let device = run("losetup", [OsStr::new("--find"), OsStr::new("--show"), image.as_os_str()]);
        self.pool_devices.push(device.clone());
        run(&format!("mkfs.{fstype}"), ["-q", &device]);
        mount(Some(device.as_str()), &self.path(place), Some(fstype), MsFlags::empty(), None::<&str>)
            .expect("the pool is mounted");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Of this test alone. In the fake backend, volumes of this name are distinguished from other tests' by it.
    pub fn name(&self) -> String {
        self.directory.path().file_name().expect("a name").to_string_lossy().into_owned()
    }

    /// Adds to the configuration of the next driver that is started.
    pub fn configure(&self, yaml: &str) {
        let path = self.path("config.yaml");
        let before = fs::read_to_string(&path).expect("the configuration");
        fs::write(&path, format!("{before}{yaml}\n")).expect("the configuration");
    }

    /// `longshore inspect` or `doctor` of this driver's node; to be run under [`starting`].
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
        command.arg(name).args(["--node-id", "node-1", "--endpoint"]).arg(self.path("csi.sock"));
        command.arg("--state-dir").arg(self.path("state")).arg("--kubelet-dir").arg(self.path("kubelet"));
        command.arg("--config").arg(self.path("config.yaml"));
        command.env_remove("CSI_ENDPOINT").env_remove("KUBE_NODE_NAME").stdin(Stdio::null());
        command
    }

    /// A variable in the environment of the next driver that is started.
    pub fn set(&mut self, key: &str, value: &str) {
        self.environment.retain(|(name, _)| name != key);
        self.environment.push((key.to_owned(), value.to_owned()));
    }

    /// What the next driver that is started calls its node.
    pub fn set_node_id(&mut self, id: &str) {
        id.clone_into(&mut self.node_id);
    }

    /// An argument of the next driver that is started.
    pub fn argue(&mut self, argument: &str) {
        self.arguments.push(argument.to_owned());
    }

    /// The next driver that is started is of another program that has `serve`; `None`: the one that was built with the tests.
    pub fn set_program(&mut self, program: Option<PathBuf>) {
        self.program = program;
    }

    /// Drivers run on a machine of their own from now on, with what is mounted now. Their network is one of their own, too, unless their
    /// storage is reached through that of all.
    pub fn boot(&mut self, network: bool) {
        self.machine = Some(Machine::boot(network));
    }

    pub fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    /// The driver and its machine end, with all mounts and loop devices of theirs; files stay.
    pub fn power_off(&mut self) {
        self.kill();
        // By their files, which have no path any more once the machine is gone.
        let loops = self.held_loops();
        if let Some(machine) = self.machine.take() {
            let ours = self.path("").display().to_string();
            let pool = self.path("pool").display().to_string();
            // Its mounts go with it, but not at once.
            for point in machine.mount_points().iter().rev().filter(|point| point.starts_with(&ours) && **point != pool) {
                machine.runs("umount", ["--lazy", point]);
            }
        }
        detach(loops);
    }

    /// Starts the driver and waits until its socket answers.
    pub fn start(&mut self) {
        if !self.try_start() {
            panic!("the driver ended:\n{}", self.log());
        }
    }

    /// As `start`; `false` where the driver refuses to start.
    pub fn try_start(&mut self) -> bool {
        let socket = self.path("csi.sock");
        let path = self.path("driver.log");
        let log = fs::OpenOptions::new().append(true).create(true).open(&path).expect("a log");
        let before = usize::try_from(log.metadata().expect("the log").len()).expect("a length");
        let watch = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).expect("inotify");
        rustix::fs::inotify::add_watch(&watch, &path, rustix::fs::inotify::WatchFlags::MODIFY).expect("the log is watched");
        // Where there is no cargo, the driver lies elsewhere than where it was built.
        let program = self.program.clone().or_else(|| std::env::var_os("LONGSHORE").map(PathBuf::from));
        let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_longshore").into());
        let starting = starting();
        let mut command = match &self.machine {
            Some(machine) => machine.command(program),
            None => Command::new(program),
        };
        let driver = command
            .arg("serve")
            .args(&self.arguments)
            .args(["--node-id", &self.node_id, "--endpoint"])
            .arg(format!("unix://{}", socket.display()))
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--kubelet-dir")
            .arg(self.path("kubelet"))
            .arg("--config")
            .arg(self.path("config.yaml"))
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the driver starts");
        drop(starting);
        // The driver says on its log that it serves.
        let patience = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
        let ended = pidfd(&driver);
        self.driver = Some(driver);
        while !fs::read_to_string(&path).expect("the log").get(before..).is_some_and(|said| said.contains("listening")) {
            let mut polled = [
                rustix::event::PollFd::new(&watch, rustix::event::PollFlags::IN),
                rustix::event::PollFd::new(&ended, rustix::event::PollFlags::IN),
            ];
            let some = rustix::event::poll(&mut polled, Some(&patience)).expect("a poll");
            if some == 0 || !polled[1].revents().is_empty() {
                return false;
            }
            let mut events = [std::mem::MaybeUninit::uninit(); 4096];
            rustix::fs::inotify::Reader::new(&watch, &mut events).next().expect("events");
        }
        true
    }

    /// Everything that drivers of this test have said.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("driver.log")).unwrap_or_default()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            driver.kill().ok();
            driver.wait().expect("the driver is reaped");
        }
    }

    /// Whether the driver has ended by itself; it is reaped then.
    pub fn has_ended(&mut self) -> bool {
        let ended = self.driver.as_mut().is_none_or(|driver| driver.try_wait().expect("a child of ours").is_some());
        if ended {
            self.driver = None;
        }
        ended
    }

    /// Waits for the driver's end, which is under way; `false` where it has not come after some seconds.
    pub fn wait_end(&mut self) -> bool {
        self.ends_within(std::time::Duration::from_secs(2))
    }

    /// Waits so long for the driver to end by itself, and says whether it did.
    pub fn ends_within(&mut self, patience: std::time::Duration) -> bool {
        let Some(driver) = self.driver.as_mut() else { return true };
        let descriptor = pidfd(driver);
        let mut polled = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
        let patience = rustix::time::Timespec::try_from(patience).expect("a timespan");
        rustix::event::poll(&mut polled, Some(&patience)).expect("a poll");
        self.has_ended()
    }

    /// Begins the log anew.
    pub fn forget_log(&self) {
        fs::write(self.path("driver.log"), "").expect("the log");
    }

    /// SIGTERM, and whether it ended with success. Our clients hear that it goes, as living ones do.
    pub fn stop(&mut self) -> bool {
        let Some(driver) = self.terminate() else { return false };
        let end = self.runtime.block_on(async { tokio::task::spawn_blocking(move || reap(driver)).await });
        end.expect("the driver is reaped")
    }

    /// As `stop`, but our clients keep their connections and say nothing.
    pub fn stop_unheard(&mut self) -> bool {
        self.terminate().is_some_and(reap)
    }

    fn terminate(&mut self) -> Option<Child> {
        let driver = self.driver.take()?;
        let pid = nix::unistd::Pid::from_raw(i32::try_from(driver.id()).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("the driver lives");
        Some(driver)
    }

    pub fn pid(&self) -> u32 {
        self.driver.as_ref().expect("a driver runs").id()
    }

    /// Runs a client's call to its end.
    pub fn block_on<T>(&self, call: impl Future<Output = T>) -> T {
        self.runtime.block_on(call)
    }

    pub fn channel(&self) -> Channel {
        let socket = self.path("csi.sock");
        self.runtime.block_on(async move { connect(socket) })
    }

    pub fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel())
    }
    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel())
    }
    pub fn groups(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel())
    }
    pub fn metadata(&self) -> SnapshotMetadataClient<Channel> {
        SnapshotMetadataClient::new(self.channel())
    }
    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel())
    }

    /// A staging directory, as the kubelet makes it.
    pub fn staging(&self, name: &str) -> PathBuf {
        let path = self.path("kubelet").join("plugins").join(name).join("globalmount");
        fs::create_dir_all(&path).expect("a staging directory");
        path
    }

    /// A target path whose parent is there, as the kubelet gives it.
    pub fn target(&self, name: &str) -> PathBuf {
        let parent = self.path("kubelet").join("pods").join(name);
        fs::create_dir_all(&parent).expect("a pod's directory");
        parent.join("mount")
    }

    /// Loop devices over files of this test, but for the pool's own.
    pub fn loops(&self) -> Vec<String> {
        let ours = self.path("pool/").display().to_string();
        let memory = format!("/memfd:fake:{}", self.name());
        loop_files()
            .into_iter()
            .filter(|(_, file)| file.starts_with(&ours) || file.starts_with(&memory))
            .map(|(device, _)| device)
            .collect()
    }

    /// The same, held open: while they are, their numbers do not become another process's.
    fn held_loops(&self) -> Vec<(String, fs::File)> {
        let open = |device: String| fs::File::open(&device).ok().map(|file| (device, file));
        let mut held: Vec<_> = self.loops().into_iter().filter_map(open).collect();
        // Nor did they before they were open.
        let ours = self.loops();
        held.retain(|(device, _)| ours.contains(device));
        held
    }

    /// Mounts below the kubelet's and the state directory.
    pub fn mounts(&self) -> Vec<String> {
        let (kubelet, state) = (self.path("kubelet").display().to_string(), self.path("state").display().to_string());
        let points = self.machine.as_ref().map_or_else(mount_points, Machine::mount_points);
        points.into_iter().filter(|point| point.starts_with(&kubelet) || point.starts_with(&state)).collect()
    }

    /// Journal entries, as paths relative to the journal.
    pub fn journal(&self) -> Vec<String> {
        files_below(&self.path("state/journal"))
    }

    /// Nothing is left on this node: no mount, no loop device, no journal entry, no staged directory's content.
    pub fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), Vec::<String>::new(), "mounts are left\n{}", self.log());
        assert_eq!(self.loops(), Vec::<String>::new(), "loop devices are left\n{}", self.log());
        assert_eq!(self.journal(), Vec::<String>::new(), "journal entries are left\n{}", self.log());
    }

    /// No file is left in the pools, but for those that make them pools.
    pub fn assert_pool_empty(&self) {
        let of = |directory: &str| files_below(&self.path(directory)).into_iter();
        let left: Vec<String> = of("pool/images")
            .chain(of("pool/plain/images"))
            .filter(|file| !["longshore-pool.json", "lock", "index"].contains(&file.as_str()))
            .collect();
        assert_eq!(left, Vec::<String>::new(), "the pool holds something\n{}", self.log());
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the driver's log:\n{}", self.log());
        }
        self.kill();
        if self.machine.is_some() {
            self.power_off();
        }
        let ours = self.directory.path().display().to_string();
        let mut points: Vec<String> = mount_points().into_iter().filter(|point| point.starts_with(&ours)).collect();
        points.sort();
        let [pool, plain] = ["pool", "pool/plain"].map(|name| self.path(name).display().to_string());
        let in_memory = points.contains(&ours);
        points.retain(|point| *point != ours);
        let (pools, others): (Vec<String>, Vec<String>) =
            points.into_iter().rev().partition(|point| [&pool, &plain].contains(&point));
        for point in others {
            umount2(point.as_str(), MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).ok();
        }
        detach(self.held_loops());
        for pool in pools {
            umount2(pool.as_str(), MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).ok();
        }
        for device in &self.pool_devices {
            Command::new("losetup").args(["--detach", device]).status().ok();
        }
        if in_memory {
            umount2(ours.as_str(), MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).ok();
        }
    }
}

/// A loop device of the test's own, detached on drop.
pub struct LoopDevice(pub String);

impl LoopDevice {
    pub fn over(file: &Path) -> LoopDevice {
        LoopDevice(run("losetup", ["--find", "--show", &text(file)]))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        Command::new("losetup").args(["--detach", &self.0]).status().ok();
    }
}

/// A channel to a driver's socket, connected at its first use; to be called in a runtime.
pub fn connect(socket: PathBuf) -> Channel {
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
    }))
}

fn reap(mut driver: Child) -> bool {
    driver.wait().expect("the driver is reaped").success()
}

/// Becomes readable when the process ends.
fn pidfd(process: &Child) -> std::os::fd::OwnedFd {
    let pid = rustix::process::Pid::from_raw(i32::try_from(process.id()).expect("a pid")).expect("a pid");
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("a pidfd")
}

/// Every loop device with its backing file, from sysfs.
pub fn loop_files() -> Vec<(String, String)> {
    let entries = fs::read_dir("/sys/block").expect("sysfs");
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let file = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            Some((format!("/dev/{}", entry.file_name().to_string_lossy()), file.trim_end().to_owned()))
        })
        .collect()
}

/// Detaches loop devices, each when nobody has it open any more.
fn detach(held: Vec<(String, fs::File)>) {
    let _starting = starting();
    for (device, _held) in held {
        Command::new("losetup").args(["--detach", &device]).status().ok();
    }
}

pub fn mount_points() -> Vec<String> {
    points_in(&fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo"))
}

fn points_in(table: &str) -> Vec<String> {
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect()
}

/// How often `path` is mounted upon, from mountinfo.
pub fn mounts_at(path: &Path) -> usize {
    let path = path.display().to_string();
    mount_points().into_iter().filter(|point| *point == path).count()
}

fn files_below(directory: &Path) -> Vec<String> {
    fn walk(directory: &Path, top: &Path, found: &mut Vec<String>) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries.map(|entry| entry.expect("a readable entry")) {
            if entry.file_type().expect("a type").is_dir() {
                walk(&entry.path(), top, found);
            } else {
                found.push(entry.path().strip_prefix(top).expect("below").display().to_string());
            }
        }
    }
    let mut found = Vec::new();
    walk(directory, directory, &mut found);
    found.sort();
    found
}

/// A capability: a file system of this type, or raw block for `None`.
pub fn capability(fstype: Option<&str>) -> csi::VolumeCapability {
    use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};
    let access = match fstype {
        Some(fstype) => AccessType::Mount(MountVolume {
            fs_type: fstype.to_owned(),
            mount_flags: Vec::new(),
            volume_mount_group: String::new(),
        }),
        None => AccessType::Block(BlockVolume {}),
    };
    csi::VolumeCapability {
        access_type: Some(access),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeMultiWriter.into() }),
    }
}

/// A CreateVolume request.
pub fn create(name: &str, mib: i64, fstype: Option<&str>, backend: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: mib * MIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability(fstype)],
        parameters: HashMap::from([("backend".to_owned(), backend.to_owned())]),
        ..Default::default()
    }
}

/// A NodeStageVolume request.
pub fn stage_request(
    volume_id: impl Into<String>,
    staging: impl AsRef<Path>,
    capability: csi::VolumeCapability,
) -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_id: volume_id.into(),
        staging_target_path: text(staging.as_ref()),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

/// A NodePublishVolume request of what is staged there.
pub fn publish_request(
    volume_id: impl Into<String>,
    staging: impl AsRef<Path>,
    target: impl AsRef<Path>,
    capability: csi::VolumeCapability,
) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: volume_id.into(),
        staging_target_path: text(staging.as_ref()),
        target_path: text(target.as_ref()),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

pub fn text(path: &Path) -> String {
    path.display().to_string()
}

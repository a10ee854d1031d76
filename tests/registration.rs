//! The driver registers itself with the kubelet. The kubelet here is a stand-in, written from the protocol and from what the
//! kubelet's plugin manager does: it watches the directory, asks each socket that comes who it is, checks that, calls
//! NodeGetInfo on the endpoint that it is given, and tells the socket what has become of it.
#![allow(clippy::disallowed_methods, reason = "a test starts a second driver")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Harness, Pool, connect, isolated};
use longshore::csi;
use longshore::csi::node_client::NodeClient;
use longshore::pluginregistration::registration_client::RegistrationClient;
use longshore::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify;

const NAME: &str = "longshore.csi.dev";
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// What the stand-in saw and did.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// A socket came, was valid, and was accepted; of which node the endpoint is.
    Registered { node: String },
    /// A socket came and was refused.
    Refused,
    /// A socket went.
    Gone,
}

/// Dropped as a kubelet is that ends: no one is informed.
struct Kubelet {
    directory: PathBuf,
    watch: OwnedFd,
    known: BTreeSet<String>,
    /// What it says of the next plugin, instead of taking it up.
    refuses: Option<&'static str>,
}

impl Kubelet {
    fn directory(harness: &Harness) -> PathBuf {
        harness.path("kubelet").join("plugins_registry")
    }

    /// Makes the directory, as the kubelet does at its start.
    fn start(harness: &Harness) -> Kubelet {
        let directory = Kubelet::directory(harness);
        fs::create_dir_all(&directory).expect("the directory");
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC).expect("inotify");
        let events = inotify::WatchFlags::CREATE | inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVE;
        inotify::add_watch(&watch, &directory, events).expect("the directory is watched");
        Kubelet { directory, watch, known: BTreeSet::new(), refuses: None }
    }

    /// The sockets that were there before, as after a restart.
    fn find(&mut self, harness: &Harness) -> Vec<Seen> {
        let entries = fs::read_dir(&self.directory).expect("the directory");
        let names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
        names.into_iter().filter_map(|name| self.came(harness, name)).collect()
    }

    /// Follows the directory until something has come of it.
    fn next(&mut self, harness: &Harness) -> Seen {
        let until = Instant::now() + LONG;
        loop {
            for name in self.changed(until) {
                let there = fs::symlink_metadata(self.directory.join(&name)).is_ok();
                if there && !self.known.contains(&name) {
                    if let Some(seen) = self.came(harness, name) {
                        return seen;
                    }
                } else if !there && self.known.remove(&name) {
                    return Seen::Gone;
                }
            }
        }
    }

    /// The names that have come, gone, or changed.
    fn changed(&self, until: Instant) -> Vec<String> {
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "nothing has come of it");
        let left = rustix::time::Timespec::try_from(left).expect("a timespan");
        let mut polled = [PollFd::new(&self.watch, PollFlags::IN)];
        if rustix::event::poll(&mut polled, Some(&left)).expect("a poll") == 0 {
            return Vec::new();
        }
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.watch, &mut buffer);
        let mut names = Vec::new();
        loop {
            let event = reader.next().expect("an event");
            names.extend(event.file_name().map(|name| name.to_string_lossy().into_owned()));
            if reader.is_buffer_empty() {
                return names;
            }
        }
    }

    /// A socket came: it is asked who it is, and gets the result.
    fn came(&mut self, harness: &Harness, name: String) -> Option<Seen> {
        let path = self.directory.join(&name);
        // Names with a dot in front are none of the kubelet's, nor is what is no socket.
        if name.starts_with('.') || !fs::symlink_metadata(&path).ok()?.file_type().is_socket() {
            return None;
        }
        let verdict = harness.block_on(async {
            let mut client = RegistrationClient::new(connect(path.clone()));
            let info = patiently(async || client.clone().get_info(InfoRequest {}).await).await.into_inner();
            let verdict = match self.refuses {
                Some(why) => Err(why.to_owned()),
                None => register(&info).await,
            };
            let status = match &verdict {
                Ok(_) => RegistrationStatus { plugin_registered: true, error: String::new() },
                Err(error) => RegistrationStatus { plugin_registered: false, error: error.clone() },
            };
            client.notify_registration_status(status).await.expect("it hears what has become of it");
            verdict
        });
        self.known.insert(name);
        match verdict {
            Ok(node) => Some(Seen::Registered { node }),
            Err(_) if self.refuses.is_some() => Some(Seen::Refused),
            Err(error) => panic!("the driver does not register as it must: {error}"),
        }
    }
}

/// A socket's file is there an instant before anybody listens; the kubelet continues dialing, too.
async fn patiently<T>(call: impl AsyncFn() -> Result<T, tonic::Status>) -> T {
    let until = Instant::now() + LONG;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(status) if Instant::now() > until => panic!("no answer: {status}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// What the kubelet's CSI plugin checks of anyone who says that he is a CSI driver, and does then; the node's name by the driver.
async fn register(info: &PluginInfo) -> Result<String, String> {
    if info.r#type != "CSIPlugin" {
        return Err(format!("no handler registered for plugin type {}", info.r#type));
    }
    if info.name != NAME {
        return Err(format!("{:?} is no name of a driver here", info.name));
    }
    let major = |version: &String| version.trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok());
    let highest: Option<u32> = info.supported_versions.iter().filter_map(major).max();
    if highest != Some(1) {
        return Err(format!("none of the versions {:?} is supported", info.supported_versions));
    }
    let endpoint = Path::new(&info.endpoint);
    if !endpoint.is_absolute() {
        return Err(format!("the endpoint {:?} is no path", info.endpoint));
    }
    let mut node = NodeClient::new(connect(endpoint.to_owned()));
    let asked = node.node_get_info(csi::NodeGetInfoRequest {}).await;
    asked.map(|answer| answer.into_inner().node_id).map_err(|status| format!("NodeGetInfo: {status}"))
}

fn registering() -> Harness {
    let harness = Harness::new(Pool::Local);
    harness.configure("kubeletRegistration: true");
    harness.with_http();
    harness
}

fn registered() -> Seen {
    Seen::Registered { node: "node-1".to_owned() }
}

fn socket(harness: &Harness) -> PathBuf {
    Kubelet::directory(harness).join(format!("{NAME}-reg.sock"))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Asks until it is ready; the last answer.
fn ready(harness: &Harness) -> String {
    let until = Instant::now() + LONG;
    loop {
        match harness.get("/readyz") {
            (200, body) => return body,
            (_, body) if Instant::now() > until => panic!("not ready: {body}"),
            _ => std::thread::yield_now(),
        }
    }
}

#[test]
fn the_kubelet_takes_the_driver_up_and_the_socket_goes_with_it() {
    isolated(|| {
        let mut harness = registering();
        let mut kubelet = Kubelet::start(&harness);
        harness.start();
        let (status, body) = harness.get("/readyz");
        assert_eq!(status, 503, "{body}");
        for words in
            ["[+] calls: ok", "[+] backends: ok", "[-] registration: the kubelet has not taken the driver up", "--kubelet-dir"]
        {
            assert!(body.contains(words), "{body}");
        }
        let mode = fs::symlink_metadata(socket(&harness)).expect("the socket").mode();
        assert_eq!(mode & 0o777, 0o600, "as private as the driver's own");
        assert_eq!(kubelet.next(&harness), registered());
        assert!(ready(&harness).contains("[+] registration: ok"));
        assert!(harness.stop());
        assert_eq!(kubelet.next(&harness), Seen::Gone);
        assert!(!socket(&harness).exists());
    });
}

#[test]
fn a_refusal_is_reported_and_tried_again() {
    isolated(|| {
        let mut harness = registering();
        let mut kubelet = Kubelet::start(&harness);
        kubelet.refuses = Some("the node has no room for it");
        harness.start();
        for _ in 0..2 {
            assert_eq!(kubelet.next(&harness), Seen::Refused);
            assert_eq!(kubelet.next(&harness), Seen::Gone, "it goes, to come anew");
            let (status, body) = harness.get("/readyz");
            assert_eq!(status, 503);
            assert!(body.contains("[-] registration:") && body.contains("the node has no room for it"), "{body}");
        }
        assert!(harness.log().contains("the node has no room for it"), "{}", harness.log());
        kubelet.refuses = None;
        assert_eq!(kubelet.next(&harness), registered());
        ready(&harness);
        assert!(harness.stop());
    });
}

#[test]
fn a_socket_that_is_removed_or_replaced_is_made_again() {
    isolated(|| {
        let mut harness = registering();
        let mut kubelet = Kubelet::start(&harness);
        harness.start();
        assert_eq!(kubelet.next(&harness), registered());
        fs::remove_file(socket(&harness)).expect("removed");
        assert_eq!(kubelet.next(&harness), Seen::Gone);
        assert_eq!(kubelet.next(&harness), registered());

        // One that nobody listens on any more: another process has put it there and ended.
        let other = Kubelet::directory(&harness).join(".other");
        drop(UnixListener::bind(&other).expect("bound"));
        fs::rename(&other, socket(&harness)).expect("in its place");
        kubelet.known.clear();
        assert_eq!(kubelet.next_registered(&harness), registered());
        ready(&harness);
        assert!(harness.stop());
    });
}

impl Kubelet {
    /// The next that is taken up, whatever goes before.
    fn next_registered(&mut self, harness: &Harness) -> Seen {
        loop {
            match self.next(harness) {
                Seen::Gone => {}
                seen => return seen,
            }
        }
    }
}

#[test]
fn a_kubelet_that_starts_again_finds_the_driver() {
    isolated(|| {
        let mut harness = registering();
        // The kubelet's directory is older than the driver; the kubelet itself comes later, and again.
        fs::create_dir_all(Kubelet::directory(&harness)).expect("the directory");
        harness.start();
        for _ in 0..2 {
            let mut kubelet = Kubelet::start(&harness);
            assert_eq!(kubelet.find(&harness), [registered()]);
            ready(&harness);
        }
        // Its directory is lost, and made anew.
        fs::remove_file(socket(&harness)).expect("removed");
        fs::remove_dir(Kubelet::directory(&harness)).expect("removed");
        let until = Instant::now() + LONG;
        loop {
            let (_, body) = harness.get("/readyz");
            if body.contains("there is no socket for the kubelet")
                && body.contains("plugins_registry: there is no such directory")
            {
                break;
            }
            assert!(Instant::now() < until, "{body}");
        }
        let mut kubelet = Kubelet::start(&harness);
        assert_eq!(kubelet.next(&harness), registered());
        assert!(harness.stop());
    });
}

#[test]
fn kubelet_that_sees_the_driver_elsewhere_gets_that_endpoint() {
    isolated(|| {
        let mut harness = registering();
        let elsewhere = harness.path("elsewhere.sock");
        std::os::unix::fs::symlink(harness.path("csi.sock"), &elsewhere).expect("a link");
        harness.configure(&format!("kubeletEndpoint: {}", elsewhere.display()));
        let mut kubelet = Kubelet::start(&harness);
        harness.start();
        let reported = harness.block_on(async {
            let mut client = RegistrationClient::new(connect(socket(&harness)));
            client.get_info(InfoRequest {}).await.expect("an answer").into_inner()
        });
        assert_eq!(reported.endpoint, elsewhere.display().to_string());
        assert_eq!(kubelet.find(&harness), [registered()], "by way of it");
        assert!(harness.stop());
    });
}

/// A second driver beside the harness's, for the same kubelet; what it says when it ends.
fn second(harness: &Harness) -> (bool, String) {
    let program = std::env::var_os("LONGSHORE").unwrap_or_else(|| env!("CARGO_BIN_EXE_longshore").into());
    let output = Command::new(program)
        .args(["serve", "--mode", "node", "--kubelet-registration", "--node-id", "node-2", "--kubelet-dir"])
        .arg(harness.path("kubelet"))
        .arg("--state-dir")
        .arg(harness.path("second"))
        .arg("--endpoint")
        .arg(harness.path("second.sock"))
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_living_driver_s_socket_is_not_taken_and_a_dead_one_s_is() {
    isolated(|| {
        let mut harness = registering();
        let mut kubelet = Kubelet::start(&harness);
        harness.start();
        assert_eq!(kubelet.next(&harness), registered());
        let before = identity(&socket(&harness)).expect("the socket");
        let (success, said) = second(&harness);
        assert!(!success && said.contains("-reg.sock: a living process listens there"), "{said}");
        assert!(said.contains("--driver-name"), "the remedy: {said}");
        assert_eq!(identity(&socket(&harness)).expect("the socket"), before);
        assert!(!harness.path("second.sock").exists(), "the second one's own socket goes with it");

        harness.kill();
        assert_eq!(identity(&socket(&harness)).expect("what a killed driver leaves"), before);
        kubelet.known.clear();
        harness.start();
        assert_eq!(kubelet.next_registered(&harness), registered());

        // Anyone who has taken the name meanwhile keeps it, also at our end.
        let other = UnixListener::bind(Kubelet::directory(&harness).join(".other")).expect("bound");
        fs::rename(Kubelet::directory(&harness).join(".other"), socket(&harness)).expect("in its place");
        let until = Instant::now() + LONG;
        while !harness.get("/readyz").1.contains("a living process listens there") {
            assert!(Instant::now() < until, "{}", harness.log());
        }
        assert!(harness.stop());
        assert!(socket(&harness).exists());
        drop(other);
    });
}

#[test]
fn a_directory_that_is_not_there_is_reported_at_the_start() {
    isolated(|| {
        let mut harness = registering();
        assert!(!harness.try_start());
        assert!(harness.wait_end());
        let directory = Kubelet::directory(&harness).display().to_string();
        let log = harness.log();
        assert!(log.contains(&format!("{directory}: there is no such directory")) && log.contains("--kubelet-dir"), "{log}");
        assert!(!harness.path("csi.sock").exists(), "the driver's own socket is gone again");
    });
}

#[test]
fn a_controller_has_nothing_to_register() {
    let program = std::env::var_os("LONGSHORE").unwrap_or_else(|| env!("CARGO_BIN_EXE_longshore").into());
    let output = Command::new(program)
        .args(["serve", "--check", "--mode", "controller", "--kubelet-registration"])
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("kubeletRegistration: a controller has nothing to register"), "{said}");
}

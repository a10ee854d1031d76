//! The two halves of a driver for storage that every node reaches: a controller without any right, and a node.
//!
//! As `manifests/` deploys them (`deployment: central`), with the command line as their client.

#![allow(clippy::disallowed_methods, reason = "tests start programs and the driver itself")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{isolated, run, skipped};

const DRIVER: &str = env!("CARGO_BIN_EXE_longshore");
/// The user of the controller's pod.
const NOBODY: u32 = 65532;
/// A root that cannot be written to but for one folder, no capability, and none to be had.
const CONFINED: &str = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro / && shift && \
    exec setpriv --reuid=65532 --regid=65532 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs \"$@\"";

/// Ended with the test.
struct Driver {
    child: Child,
    log: Option<BufReader<std::process::ChildStderr>>,
}

impl Driver {
    /// Started, and listening.
    fn start(command: &mut Command) -> Driver {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
        let log = child.stderr.take().map(BufReader::new);
        let mut driver = Driver { child, log };
        let mut said = String::new();
        while !said.contains("listening") {
            let read = driver.log.as_mut().expect("a pipe").read_line(&mut said).expect("a log");
            assert!(read > 0, "the driver ended: {said}");
        }
        driver
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn serve(command: &mut Command, folder: &Path, mode: &str) -> Driver {
    let flag = |name: &str, value: &str| format!("--{name}={}", folder.join(value).display());
    let own = folder.join(mode);
    fs::create_dir(&own).expect("a folder");
    if mode == "controller" {
        chown(&own, Some(NOBODY), Some(NOBODY)).expect("given away");
    }
    command.args(["serve", "--node-id=node-1", &format!("--mode={mode}"), &flag("config", "config.yaml")]);
    command.args([flag("kubelet-dir", "kubelet"), flag("state-dir", &format!("{mode}/state"))]);
    Driver::start(command.arg(flag("endpoint", &format!("{mode}/csi.sock"))))
}

#[test]
fn a_controller_without_rights_makes_what_a_node_mounts_and_grows() {
    isolated(|| {
        if !rustix::process::geteuid().is_root() {
            return skipped("only root mounts");
        }
        let folder = tempfile::Builder::new().prefix("longshore-test-").tempdir_in("/var/tmp").expect("a folder");
        let folder = folder.path();
        let of = |name: &str| folder.join(name).display().to_string();
        for name in ["pool", "kubelet", "kubelet/staging"] {
            fs::create_dir(folder.join(name)).expect("a folder");
        }
        chown(folder.join("pool"), Some(NOBODY), Some(NOBODY)).expect("given away");
        // mktemp's 0700 is for root alone.
        run("chmod", ["755", &folder.display().to_string()]);
        let pools = format!("pools: [{{name: default, path: {}}}]", of("pool/images"));
        fs::write(folder.join("config.yaml"), format!("backends: [{{name: shared, type: image, shared: true, {pools}}}]\n"))
            .expect("a configuration");

        let mut confined = Command::new("unshare");
        confined.args(["--mount", "--propagation=private", "sh", "-c", CONFINED, "sh", &folder.display().to_string(), DRIVER]);
        let controller = serve(&mut confined, folder, "controller");
        let of_process = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", controller.child.id())).expect("a process");
        let status = of_process("status");
        let has = |line: &str| status.lines().any(|found| found.split_whitespace().collect::<Vec<_>>().join(" ") == line);
        assert!(has("Uid: 65532 65532 65532 65532") && has("CapBnd: 0000000000000000"), "{status}");
        assert!(has("CapEff: 0000000000000000") && has("NoNewPrivs: 1"), "{status}");
        let mounts = of_process("mountinfo");
        let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).expect("a root");
        assert!(root.split(' ').nth(5).is_some_and(|options| options.split(',').any(|option| option == "ro")), "{root}");

        let node = serve(&mut Command::new(DRIVER), folder, "node");
        let call = |mode: &str, words: &[&str]| {
            let endpoint = format!("--endpoint={}", of(&format!("{mode}/csi.sock")));
            run(DRIVER, ["call", &endpoint].iter().chain(words))
        };
        let context = |volume: &str| {
            let answer: serde_json::Value = serde_json::from_str(volume).expect("JSON");
            let context = answer["volume"]["volume_context"]["longshore.dev/parameters"].as_str().expect("a context");
            format!("--context=longshore.dev/parameters={context}")
        };
        // No other test's: without rights, devices are told by what their files are called.
        let name = folder.file_name().expect("a name").to_string_lossy();
        let volume = format!("shared:{name}");
        let (staging, target) = (of("kubelet/staging"), of("kubelet/target"));
        let made =
            context(&call("controller", &["create-volume", &format!("--name={name}"), "--size=320MiB", "--fs=xfs", "--json"]));
        call("node", &["stage-volume", &volume, "--fs=xfs", &format!("--staging={staging}"), &made]);
        call(
            "node",
            &["publish-volume", &volume, "--fs=xfs", &format!("--staging={staging}"), &format!("--target={target}"), &made],
        );
        let blocks = || run("stat", ["--file-system", "--format=%b", &target]).parse::<u64>().expect("a number");
        let before = blocks();

        call("controller", &["create-snapshot", "--name=s", &volume]);
        call("controller", &["expand-volume", &volume, "--size=640MiB"]);
        // The kubelet only asks a node that says so.
        assert!(call("node", &["node-get-capabilities"]).lines().any(|line| line == "EXPAND_VOLUME"));
        call("node", &["node-expand-volume", &volume, &format!("--path={target}"), &format!("--staging={staging}")]);
        assert!(blocks() > before + before / 2, "{before} blocks before, {} now", blocks());

        // It may not open devices, but sees that one shows the volume: on the same machine.
        let endpoint = format!("--endpoint={}", of("controller/csi.sock"));
        let refused = Command::new(DRIVER).args(["call", &endpoint, "delete-volume", &volume]).output().expect("an answer");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(1) && said.contains("FAILED_PRECONDITION"), "{said}");

        call("node", &["unpublish-volume", &volume, &format!("--target={target}")]);
        call("node", &["unstage-volume", &volume, &format!("--staging={staging}")]);
        // As of a PersistentVolume that was written by hand, with attributes of its own.
        call("node", &["stage-volume", &volume, "--fs=xfs", &format!("--staging={staging}"), "--context=onDelete=retain"]);
        call("node", &["unstage-volume", &volume, &format!("--staging={staging}")]);
        call("controller", &["delete-snapshot", "shared:s"]);
        call("controller", &["delete-volume", &volume]);
        drop((controller, node));
        assert_eq!(fs::read_dir(folder.join("pool/images/volumes")).expect("a pool").count(), 0);
    });
}

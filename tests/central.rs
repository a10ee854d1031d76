//! The two halves of a driver for storage that every node reaches: a controller without any right, and a node.
//!
//! As `manifests/` deploys them (`deployment: central`), with the command line as their client.

#![allow(clippy::disallowed_methods, reason = "tests start programs and the driver itself")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::sequence::{Writer, last_of_one_instant};
use common::{isolated, loop_files, mount_points, run, skipped};

const DRIVER: &str = env!("CARGO_BIN_EXE_longshore");
/// The user of the controller's pod.
const NOBODY: u32 = 65532;
/// A root that cannot be written to but for one directory, no capability, and none to be had.
const CONFINED: &str = "mount --rbind \"$1\" \"$1\" && mount -o remount,bind,ro / && shift && \
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

impl Driver {
    fn end(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end();
    }
}

fn serve(command: &mut Command, directory: &Path, mode: &str) -> Driver {
    let flag = |name: &str, value: &str| format!("--{name}={}", directory.join(value).display());
    let own = directory.join(mode);
    fs::create_dir(&own).expect("a directory");
    if mode == "controller" {
        chown(&own, Some(NOBODY), Some(NOBODY)).expect("given away");
    }
    command.args(["serve", "--node-id=node-1", &format!("--mode={mode}"), &flag("config", "config.yaml")]);
    command.args([flag("kubelet-dir", "kubelet"), flag("state-dir", &format!("{mode}/state"))]);
    Driver::start(command.arg(flag("endpoint", &format!("{mode}/csi.sock"))))
}

/// Both halves over one pool, with a directory each.
struct Halves {
    controller: Driver,
    node: Driver,
    directory: tempfile::TempDir,
}

impl Halves {
    /// The pool lies on a file system of this type; `None` where the test may not mount.
    fn start(fstype: &str) -> Option<Halves> {
        if !rustix::process::geteuid().is_root() {
            skipped("only root mounts");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("longshore-test-").tempdir_in("/var/tmp").expect("a directory");
        let path = directory.path();
        let of = |name: &str| path.join(name).display().to_string();
        for name in ["pool", "kubelet"] {
            fs::create_dir(path.join(name)).expect("a directory");
        }
        // Unbound when the last mount namespace that has it ends.
        run("truncate", ["-s", "4G", &of("pool.img")]);
        run(&format!("mkfs.{fstype}"), ["-q", &of("pool.img")]);
        run("mount", ["-o", "loop", &of("pool.img"), &of("pool")]);
        fs::create_dir(path.join("pool/images")).expect("a directory");
        for name in ["pool", "pool/images"] {
            chown(path.join(name), Some(NOBODY), Some(NOBODY)).expect("given away");
        }
        // mktemp's 0700 is for root alone.
        run("chmod", ["755", &path.display().to_string()]);
        let pools = format!("pools: [{{name: default, path: {}}}]", of("pool/images"));
        fs::write(path.join("config.yaml"), format!("backends: [{{name: shared, type: image, shared: true, {pools}}}]\n"))
            .expect("a configuration");
        let mut confined = Command::new("unshare");
        confined.args(["--mount", "--propagation=private", "sh", "-c", CONFINED, "sh", &path.display().to_string(), DRIVER]);
        let controller = serve(&mut confined, path, "controller");
        let node = serve(&mut Command::new(DRIVER), path, "node");
        Some(Halves { controller, node, directory })
    }

    fn of(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn arguments(&self, mode: &str, words: &[&str]) -> Vec<String> {
        let endpoint = format!("--endpoint={}", self.of(&format!("{mode}/csi.sock")));
        ["call", &endpoint].iter().chain(words).map(|word| (*word).to_owned()).collect()
    }

    /// What the command line prints of a call to one half; a failure ends the test.
    fn call(&self, mode: &str, words: &[&str]) -> String {
        run(DRIVER, self.arguments(mode, words))
    }

    /// What a call to the controller is refused with, as a failed precondition.
    fn refused(&self, words: &[&str]) -> String {
        let refused = Command::new(DRIVER).args(self.arguments("controller", words)).output().expect("an answer");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && said.contains("FAILED_PRECONDITION"), "{words:?}: {said}");
        said
    }

    /// A name that no other test uses: without rights, devices are recognised by the names of their files.
    fn name(&self) -> String {
        self.directory.path().file_name().expect("a name").to_string_lossy().into_owned()
    }

    /// Makes a volume with an xfs, and publishes it; what brings it to the node again.
    fn place(&self, name: &str) -> Placed {
        let made = ["create-volume", &format!("--name={name}"), "--size=320MiB", "--fs=xfs", "--json"];
        let answer: serde_json::Value = serde_json::from_str(&self.call("controller", &made)).expect("JSON");
        let context = answer["volume"]["volume_context"]["longshore.dev/parameters"].as_str().expect("a context");
        let staging = self.of(&format!("kubelet/staging-{name}"));
        fs::create_dir(&staging).expect("a directory");
        let placed = Placed {
            volume: format!("shared:{name}"),
            context: format!("--context=longshore.dev/parameters={context}"),
            staging: format!("--staging={staging}"),
            target: self.of(&format!("kubelet/target-{name}")),
        };
        let Placed { volume, context, staging, target } = &placed;
        self.call("node", &["stage-volume", volume, "--fs=xfs", staging, context]);
        self.call("node", &["publish-volume", volume, "--fs=xfs", staging, &format!("--target={target}"), context]);
        placed
    }

    fn take_away(&self, placed: &Placed) {
        self.call("node", &["unpublish-volume", &placed.volume, &format!("--target={}", placed.target)]);
        self.call("node", &["unstage-volume", &placed.volume, &placed.staging]);
    }

    /// What lies in a directory of the pool.
    fn count(&self, name: &str) -> usize {
        fs::read_dir(self.directory.path().join("pool/images").join(name)).map_or(0, Iterator::count)
    }
}

/// Takes down what they made, also where the test failed.
impl Drop for Halves {
    fn drop(&mut self) {
        for half in [&mut self.controller, &mut self.node] {
            half.end();
        }
        let ours = format!("{}/", self.directory.path().display());
        let detach = |device: &str| {
            Command::new("losetup").args(["--detach", device]).status().ok();
        };
        let mut points: Vec<String> = mount_points().into_iter().filter(|point| point.starts_with(&ours)).collect();
        // Those inside others first; a volume's before the pool's.
        points.sort_by_key(|point| (!point.contains("/kubelet/"), std::cmp::Reverse(point.len())));
        for point in points {
            let devices = loop_files().into_iter().filter(|(_, file)| file.starts_with(&ours) && file.ends_with("/image"));
            if !point.contains("/kubelet/") {
                devices.for_each(|(device, _)| detach(&device));
            }
            Command::new("umount").args(["--lazy", &point]).status().ok();
        }
    }
}

/// A volume that is published on the node.
struct Placed {
    volume: String,
    context: String,
    staging: String,
    target: String,
}

#[test]
fn a_controller_without_rights_makes_what_a_node_mounts_and_grows() {
    isolated(|| {
        let Some(halves) = Halves::start("xfs") else { return };
        let of_process =
            |file: &str| fs::read_to_string(format!("/proc/{}/{file}", halves.controller.child.id())).expect("a process");
        let status = of_process("status");
        let has = |line: &str| status.lines().any(|found| found.split_whitespace().collect::<Vec<_>>().join(" ") == line);
        assert!(has("Uid: 65532 65532 65532 65532") && has("CapBnd: 0000000000000000"), "{status}");
        assert!(has("CapEff: 0000000000000000") && has("NoNewPrivs: 1"), "{status}");
        let mounts = of_process("mountinfo");
        let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).expect("a root");
        assert!(root.split(' ').nth(5).is_some_and(|options| options.split(',').any(|option| option == "ro")), "{root}");

        let placed = halves.place(&halves.name());
        let Placed { volume, context: _, staging, target } = &placed;
        let blocks = || run("stat", ["--file-system", "--format=%b", target]).parse::<u64>().expect("a number");
        let before = blocks();

        halves.call("controller", &["create-snapshot", "--name=s", volume]);
        halves.call("controller", &["expand-volume", volume, "--size=640MiB"]);
        // The kubelet only asks a node that says so.
        assert!(halves.call("node", &["node-get-capabilities"]).lines().any(|line| line == "EXPAND_VOLUME"));
        halves.call("node", &["node-expand-volume", volume, &format!("--path={target}"), staging]);
        assert!(blocks() > before + before / 2, "{before} blocks before, {} now", blocks());

        // It may not open devices, but sees that one shows the volume: on the same machine.
        halves.refused(&["delete-volume", volume]);

        halves.take_away(&placed);
        // As of a PersistentVolume that was written by hand, with attributes of its own.
        halves.call("node", &["stage-volume", volume, "--fs=xfs", staging, "--context=onDelete=retain"]);
        halves.call("node", &["unstage-volume", volume, staging]);
        halves.call("controller", &["delete-snapshot", "shared:s"]);
        // Of an earlier version: its volumes have no spare file, and what its nodes wrote is root's.
        let spare = halves.directory.path().join("pool/images/volumes").join(halves.name()).join(".lease.tmp");
        fs::remove_file(&spare).expect("the spare file");
        halves.call("node", &["stage-volume", volume, "--fs=xfs", staging, "--context=onDelete=retain"]);
        halves.call("node", &["unstage-volume", volume, staging]);
        assert_eq!(fs::metadata(&spare).expect("the next spare file").uid(), NOBODY, "the controller's");
        chown(&spare, Some(0), Some(0)).expect("given away");
        halves.call("controller", &["delete-volume", volume]);
        assert_eq!(halves.count("volumes"), 0);
    });
}

/// The controller cannot freeze what a node has mounted.
#[test]
fn snapshot_by_controller_without_node_is_of_one_instant_with_reflinks() {
    const BLOCKS: u64 = 1024;
    isolated(|| {
        let Some(halves) = Halves::start("xfs") else { return };
        let names = ["a", "b"].map(|end| format!("{}-{end}", halves.name()));
        let placed = names.each_ref().map(|name| halves.place(name));
        let file = Path::new(&placed[0].target).join("file");
        let writer = Writer::start(&[&file], BLOCKS);
        // The file's blocks are where they stay: what is written from now on changes nothing but them.
        run("sync", ["-f", &file.display().to_string()]);
        for round in 0..3 {
            let before = writer.acknowledged();
            halves.call("controller", &["create-snapshot", &format!("--name=s{round}"), &placed[0].volume]);
            let image = halves.directory.path().join(format!("pool/images/snapshots/s{round}/image"));
            let last = last_of_one_instant(&image, 0, BLOCKS);
            assert!(last >= before, "{before} were acknowledged, the snapshot has {last}");
            halves.call("controller", &["delete-snapshot", &format!("shared:s{round}")]);
            writer.wait_for(last + BLOCKS);
        }
        // Two of them have no common instant.
        let said = halves.refused(&["create-group-snapshot", "--name=g", &placed[0].volume, &placed[1].volume]);
        assert!(said.contains("no common instant"), "{said}");
        assert_eq!([halves.count("snapshots"), halves.count("groups"), halves.count("tmp")], [0, 0, 0]);
        drop(writer);
        for placed in &placed {
            halves.take_away(placed);
            halves.call("controller", &["delete-volume", &placed.volume]);
        }
    });
}

#[test]
fn snapshot_by_controller_without_node_is_refused_without_reflinks() {
    isolated(|| {
        let Some(halves) = Halves::start("ext4") else { return };
        let placed = halves.place(&halves.name());
        let Placed { volume, .. } = &placed;
        let clone = ["create-volume", "--name=clone", "--size=320MiB", "--fs=xfs", "--from-volume", volume];
        for words in [&["create-snapshot", "--name=s", volume.as_str()][..], &clone] {
            let said = halves.refused(words);
            assert!(said.contains("on this machine") && said.contains("no reflinks"), "{said}");
        }
        halves.take_away(&placed);
        // No lease says that a node has it.
        halves.call("controller", &["create-snapshot", "--name=s", volume]);
        halves.call("controller", &["delete-snapshot", "shared:s"]);
        assert_eq!([halves.count("snapshots"), halves.count("volumes"), halves.count("tmp")], [0, 1, 0]);
        halves.call("controller", &["delete-volume", volume]);
    });
}

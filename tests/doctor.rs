//! `longshore doctor` on the real kernel: what is wrong is made so for real, and reported with a remedy; nothing stays behind.

#![allow(clippy::disallowed_methods, reason = "the program itself is what is tested")]

mod common;

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Harness, LoopDevice, Pool, isolated, run, skipped, text};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;

/// What the kubelet gives to every container.
const IN_POD: (&str, &str) = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");

fn command(harness: &Harness, name: &str) -> Command {
    let mut command = harness.command(name);
    command.env_remove(IN_POD.0);
    command
}

fn output(command: &mut Command) -> Output {
    let _starting = common::starting();
    command.output().expect("it runs")
}

/// The checks, with this exit code.
fn checks(harness: &Harness, code: i32, environment: &[(&str, &str)]) -> Vec<Value> {
    let output = output(command(harness, "doctor").arg("--json").envs(environment.iter().copied()));
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let checks = report["checks"].as_array().expect("checks").clone();
    let wrong = checks.iter().find(|check| (check["level"] == "ok") == check["remedy"].is_string());
    assert_eq!(wrong, None, "all that is not well has a remedy");
    checks
}

/// The level of the check of this name whose finding has these words.
fn level(checks: &[Value], name: &str, words: &str) -> String {
    let has = |check: &&Value| check["name"] == name && check["found"].as_str().is_some_and(|found| found.contains(words));
    let check = checks.iter().find(has).unwrap_or_else(|| panic!("no {name} with {words:?}: {checks:#?}"));
    check["level"].as_str().expect("a level").to_owned()
}

fn files(harness: &Harness) -> String {
    let directories = ["state", "kubelet", "pool"].map(|name| text(&harness.path(name)));
    run("find", directories.iter().map(String::as_str).chain(["-printf", "%p %i %s %T@\n"]))
}

/// Seen where `setup` made it so.
fn reported(expected: (&str, &str, &str), code: i32, setup: impl FnOnce(&mut Harness) + Send + 'static) {
    let [name, words, wanted] = [expected.0, expected.1, expected.2].map(str::to_owned);
    isolated(move || {
        let mut harness = Harness::new(Pool::Local);
        setup(&mut harness);
        assert_eq!(level(&checks(&harness, code, &[]), &name, &words), wanted);
    });
}

#[test]
fn a_node_that_is_well_is_called_so_and_nothing_stays_behind() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        let before = files(&harness);
        let seen = checks(&harness, 0, &[]);
        assert_eq!(files(&harness), before);
        for (name, words, wanted) in [
            ("clock", "20", "ok"),
            ("kernel", "Linux", "ok"),
            ("mount-api", "mount_setattr", "ok"),
            ("filesystem", "ext4", "ok"),
            ("loop", "in use", "ok"),
            ("devices", "/dev", "ok"),
            ("tool", "mkfs.ext4", "ok"),
            ("kubelet-dir", "can be written to", "ok"),
            ("state-dir", "is synced", "ok"),
            ("pool", "can be written to", "ok"),
            ("reflink", "shares blocks", "ok"),
            ("direct-io", "direct I/O", "ok"),
            ("pool-room", "free of", "ok"),
            ("registration", "is not there", "warning"),
            ("socket", "is free", "ok"),
        ] {
            assert_eq!(level(&seen, name, words), wanted, "{name}: {seen:#?}");
        }
        let shown = String::from_utf8(output(&mut command(&harness, "doctor")).stdout).expect("UTF-8");
        assert!(shown.is_ascii() && shown.contains("0 errors") && shown.contains("WARNING  registration"), "{shown}");
        harness.start();
        assert_eq!(level(&checks(&harness, 0, &[]), "socket", "longshore listens"), "ok");
        harness.kill();
        assert_eq!(level(&checks(&harness, 0, &[]), "socket", "was left by a process that is gone"), "ok");
        harness.start();
    });
}

#[test]
fn a_controller_needs_no_node() {
    isolated(|| {
        let harness = Harness::new(Pool::Local);
        fs::remove_dir(harness.path("kubelet")).expect("removed");
        let output = output(command(&harness, "doctor").args(["--json", "--mode", "controller"]));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let names: Vec<&str> =
            report["checks"].as_array().expect("checks").iter().filter_map(|check| check["name"].as_str()).collect();
        assert!(
            output.status.success() && names.contains(&"pool") && !names.contains(&"tool") && !names.contains(&"loop"),
            "{names:?}"
        );
    });
}

#[test]
fn in_a_pod_a_private_kubelet_directory_is_an_error_and_the_driver_does_not_start() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        let kubelet = harness.path("kubelet");
        // As the container runtime mounts it, without mountPropagation.
        mount(Some(&kubelet), &kubelet, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bound");
        assert_eq!(level(&checks(&harness, 0, &[]), "propagation", "not shared"), "warning", "outside of a pod nobody knows");
        assert_eq!(level(&checks(&harness, 1, &[IN_POD]), "propagation", "no pod sees it"), "error");
        let refused = |harness: &Harness, words: &str| {
            let output = output(command(harness, "serve").env(IN_POD.0, IN_POD.1));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(2) && said.contains(words) && said.contains("Bidirectional"), "{said}");
        };
        refused(&harness, "no pod sees it");
        mount(None::<&str>, &kubelet, None::<&str>, MsFlags::MS_SHARED, None::<&str>).expect("shared");
        assert_eq!(level(&checks(&harness, 0, &[IN_POD]), "propagation", "shared"), "ok");
        harness.set(IN_POD.0, IN_POD.1);
        harness.start();
        harness.kill();
        umount2(&kubelet, MntFlags::empty()).expect("unmounted");
        fs::remove_dir(&kubelet).expect("removed");
        assert_eq!(level(&checks(&harness, 1, &[IN_POD]), "propagation", "is not there"), "error");
        refused(&harness, "is not there");
        assert!(!kubelet.exists(), "nothing was made in its place");
        assert_eq!(level(&checks(&harness, 0, &[]), "kubelet-dir", "is not there"), "warning");
    });
}

#[test]
fn a_tool_that_is_missing_is_named_with_its_package() {
    for (tool, wanted, code) in [("mkfs.ext4", "error", 1), ("mkfs.xfs", "warning", 0)] {
        isolated(move || {
            let harness = Harness::new(Pool::Local);
            let path = run("sh", ["-c", &format!("command -v {tool}")]);
            mount(Some("/dev/null"), path.as_str(), None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("hidden");
            let seen = checks(&harness, code, &[]);
            assert_eq!(level(&seen, "tool", &format!("{tool} is not installed")), wanted);
        });
    }
}

#[test]
fn a_socket_that_another_has() {
    isolated(|| {
        let harness = Harness::new(Pool::Local);
        let _other = UnixListener::bind(harness.path("csi.sock")).expect("bound");
        assert_eq!(level(&checks(&harness, 1, &[]), "socket", &format!("process {}", std::process::id())), "error");
    });
    reported(("socket", "it is no socket", "error"), 1, |harness| fs::write(harness.path("csi.sock"), "").expect("written"));
}

#[test]
fn a_registration_that_answers_and_one_that_does_not() {
    isolated(|| {
        let harness = Harness::new(Pool::Local);
        let directory = harness.path("kubelet/plugins_registry");
        fs::create_dir(&directory).expect("a directory");
        let listening = UnixListener::bind(directory.join("longshore.csi.dev-reg.sock")).expect("bound");
        assert_eq!(level(&checks(&harness, 0, &[]), "registration", "answers"), "ok");
        drop(listening);
        assert_eq!(level(&checks(&harness, 0, &[]), "registration", "no process listens"), "warning");
    });
}

fn read_only(path: &Path) {
    mount(Some(path), path, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bound");
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>).expect("made read-only");
}

#[test]
fn directories_that_cannot_be_used() {
    reported(("state-dir", "Read-only", "error"), 1, |harness| read_only(&harness.path("state")));
    reported(("pool", "Read-only", "error"), 1, |harness| read_only(&harness.path("pool/images")));
    reported(("pool", "is no pool, and not empty", "error"), 1, |harness| {
        fs::write(harness.path("pool/images/thesis.tex"), "precious").expect("written");
    });
    reported(("kubelet-dir", "is no directory", "error"), 1, |harness| {
        fs::remove_dir(harness.path("kubelet")).expect("removed");
        fs::write(harness.path("kubelet"), "").expect("written");
    });
    isolated(|| {
        let harness = Harness::new(Pool::Local);
        fs::remove_dir(harness.path("state")).expect("removed");
        assert_eq!(level(&checks(&harness, 0, &[]), "state-dir", "is to be made in"), "ok");
        assert!(!harness.path("state").exists(), "it was only looked at");
    });
}

/// As the init container of the node's pod: else nothing could be unmounted, nor what fills a pool be deleted.
#[test]
fn driver_whose_storage_is_full_or_read_only_is_not_kept_from_starting() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        let pool = harness.path("pool/images");
        mount(Some("full"), &pool, Some("tmpfs"), MsFlags::empty(), Some("size=2m")).expect("a tmpfs");
        harness.start();
        harness.kill();
        fs::write(pool.join("filler"), vec![1; 2 << 20]).expect_err("it is full");
        assert_eq!(level(&checks(&harness, 1, &[]), "pool-room", "free of"), "error");
        let before_start = |harness: &Harness| output(command(harness, "doctor").arg("--before-start"));
        let found = before_start(&harness);
        let said = String::from_utf8_lossy(&found.stdout);
        assert!(found.status.success() && said.contains("ERROR    pool-room"), "{said}");
        harness.start();
        harness.kill();
        read_only(&pool);
        assert!(before_start(&harness).status.success());
        // What it cannot do without still counts.
        fs::remove_dir_all(harness.path("kubelet")).expect("removed");
        fs::write(harness.path("kubelet"), "").expect("written");
        assert_eq!(before_start(&harness).status.code(), Some(1));
    });
}

#[test]
fn a_pool_without_reflinks_on_the_kubelets_disk() {
    isolated(|| {
        let harness = Harness::in_memory(Pool::Local);
        let seen = checks(&harness, 0, &[]);
        assert_eq!(level(&seen, "reflink", "cannot share blocks"), "warning");
        assert_eq!(level(&seen, "pool-disk", "the kubelet's file system"), "warning");
    });
}

#[test]
fn pool_on_an_ext4_without_a_journal() {
    isolated(|| {
        for (features, words, wanted) in
            [("has_journal", "with a journal", "ok"), ("^has_journal", "without a journal", "warning")]
        {
            let harness = Harness::in_memory(Pool::Local);
            let image = harness.path("ext4.img");
            run("truncate", ["-s", "64M", &text(&image)]);
            let device = LoopDevice::over(&image);
            run("mkfs.ext4", ["-q", "-O", features, &device.0]);
            mount(Some(device.0.as_str()), &harness.path("pool/images"), Some("ext4"), MsFlags::empty(), None::<&str>)
                .expect("mounted");
            assert_eq!(level(&checks(&harness, 0, &[]), "journal", words), wanted);
            umount2(&harness.path("pool/images"), MntFlags::empty()).expect("unmounted");
        }
    });
}

#[test]
fn without_the_right_to_mount_it_says_so() {
    isolated(|| {
        let harness = Harness::new(Pool::Local);
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-sys_admin", "--"]).arg(env!("CARGO_BIN_EXE_longshore")).args(["doctor", "--state-dir"]);
        command.arg(harness.path("state")).arg("--kubelet-dir").arg(harness.path("kubelet")).stdin(Stdio::null());
        let output = output(&mut command);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code() != Some(1) && said.is_empty() {
            return skipped(&format!("setpriv: {}", String::from_utf8_lossy(&output.stderr)));
        }
        assert!(said.contains("ERROR    permissions") && said.contains("CAP_SYS_ADMIN"), "{said}");
    });
}

#[test]
fn a_dead_file_system_costs_its_own_check_only() {
    isolated(|| {
        use std::os::fd::AsRawFd;
        let harness = Harness::new(Pool::Local);
        let Ok(fuse) = fs::File::options().read(true).write(true).open("/dev/fuse") else { return skipped("no FUSE") };
        let pool = harness.path("pool/images");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
        mount(Some("dead"), &pool, Some("fuse"), MsFlags::empty(), Some(options.as_str())).expect("mounted");
        let begun = Instant::now();
        let seen = checks(&harness, 1, &[]);
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!(level(&seen, "pool", "no answer within"), "error");
        assert_ne!(level(&seen, "state-dir", "sync"), "error", "a busy disk may be a slow one");
        drop(fuse);
        umount2(&pool, MntFlags::MNT_DETACH).expect("unmounted");
    });
}

/// docs/doctor.md has every check by its name.
#[test]
fn every_check_is_documented() {
    const GUIDE: &str = include_str!("../docs/doctor.md");
    isolated(|| {
        let harness = Harness::new(Pool::Local);
        let seen = [checks(&harness, 0, &[]), checks(&harness, 0, &[IN_POD])].concat();
        assert_eq!(level(&seen, "cryptsetup-locks", "the container's own"), "warning");
        level(&seen, "sidecars", "sidecars");
        for check in seen {
            let name = check["name"].as_str().expect("a name");
            let row = |line: &str| line.starts_with('|') && line.contains(&format!("`{name}`"));
            assert!(GUIDE.lines().any(row), "docs/doctor.md says nothing of {name}");
        }
    });
}

/// This directory of the machine for this test alone, with these files.
fn with_files(harness: &Harness, directory: &str, files: &[(&str, &str)]) {
    let layers = harness.path(&directory.replace('/', "-"));
    let layer = |name: &str| {
        fs::create_dir_all(layers.join(name)).expect("a directory");
        layers.join(name)
    };
    let tmpfs = layer("layers");
    let none: Option<&str> = None;
    mount(Some("tmpfs"), &tmpfs, Some("tmpfs"), MsFlags::empty(), none).expect("a tmpfs");
    let (upper, work) = (tmpfs.join("upper"), tmpfs.join("work"));
    fs::create_dir(&upper).and_then(|()| fs::create_dir(&work)).expect("directories");
    let options = format!("lowerdir={directory},upperdir={},workdir={}", upper.display(), work.display());
    mount(Some("overlay"), directory, Some("overlay"), MsFlags::empty(), Some(options.as_str())).expect("an overlay");
    for (name, content) in files {
        let path = Path::new(directory).join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, content).expect("written");
    }
}

#[test]
fn node_that_would_activate_a_tenants_disk_is_reported() {
    for (files, words, wanted) in [
        (&[("lvm/lvm.conf", "devices {\n# global_filter = [ \"a|.*|\" ]\n}\n")][..], "every physical volume", "warning"),
        (&[("lvm/lvm.conf", "devices {\n  global_filter = [ \"r|.*|\" ]\n}\n")], "global_filter accepts", "ok"),
        (&[("lvm/lvm.conf", "global {\n event_activation=0\n}\n")], "event_activation=0", "ok"),
        (&[("lvm/lvm.conf", ""), ("lvm/devices/system.devices", "")], "system.devices only", "ok"),
        (&[("lvm/lvm.conf", "use_devicesfile = 0\n"), ("lvm/devices/system.devices", "")], "every physical volume", "warning"),
    ] {
        isolated(move || {
            let harness = Harness::new(Pool::Local);
            with_files(&harness, "/etc", files);
            assert_eq!(level(&checks(&harness, 0, &[]), "lvm-activation", words), wanted, "{files:?}");
        });
    }
    for (line, words, wanted) in [
        ("# AUTO -all\n", "assembles every array", "warning"),
        ("ARRAY /dev/md0 UUID=a\nAUTO +imsm\n", "assembles every array", "warning"),
        ("HOMEHOST <system>\nauto +1.x -all\n", "AUTO -all", "ok"),
    ] {
        isolated(move || {
            let harness = Harness::new(Pool::Local);
            with_files(&harness, "/usr/sbin", &[("mdadm", "")]);
            with_files(&harness, "/etc", &[("mdadm/mdadm.conf", line)]);
            assert_eq!(level(&checks(&harness, 0, &[]), "md-assembly", words), wanted, "{line}");
        });
    }
    // The container's own /etc says nothing of the node's.
    isolated(|| {
        let harness = Harness::new(Pool::Local);
        with_files(&harness, "/etc", &[("lvm/lvm.conf", "")]);
        let output = output(command(&harness, "doctor").arg("--json").envs([IN_POD]));
        assert!(!String::from_utf8_lossy(&output.stdout).contains("lvm-activation"));
    });
    for (startup, wanted) in [("automatic", "warning"), ("manual", "ok")] {
        isolated(move || {
            let harness = Harness::new(Pool::Local);
            fs::write(harness.path("config.yaml"), "backends: [{name: san, type: iscsi}]\n").expect("written");
            with_files(&harness, "/etc", &[("iscsi/iscsid.conf", &format!("node.startup = {startup}\n"))]);
            let output = output(command(&harness, "doctor").arg("--json"));
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(level(report["checks"].as_array().expect("checks"), "iscsi-startup", "iscsid logs in"), wanted);
        });
    }
}

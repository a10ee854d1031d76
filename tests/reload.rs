//! `longshore reload`: a changed configuration file is applied as a whole while the driver runs, or not at all.
#![allow(clippy::disallowed_methods, reason = "the program itself is what is tested")]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Harness, MIB, Pool, capability, create, isolated, run, stage_request, starting, text};
use longshore::csi;
use tonic::{Code, Status};

/// Starts as a client beside the driver has it: nothing but its socket.
fn command(harness: &Harness, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
    command.args(arguments).env_clear().env("CSI_ENDPOINT", format!("unix://{}", harness.path("csi.sock").display()));
    command.stdin(Stdio::null());
    command
}

/// The exit code, and what was printed.
fn outcome(output: &Output) -> (i32, String) {
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    (output.status.code().expect("an exit code"), said)
}

fn longshore(harness: &Harness, arguments: &[&str]) -> (i32, String) {
    let _starting = starting();
    outcome(&command(harness, arguments).output().expect("it starts"))
}

fn reload(harness: &Harness) -> (i32, String) {
    longshore(harness, &["reload"])
}

/// Whether a line of the table says so: the setting, its value in force, that of the file, and what it needs.
fn has_row(report: &str, row: [&str; 4]) -> bool {
    report.lines().any(|line| line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).eq(row))
}

/// Changes the file in one step, as the kubelet does for a ConfigMap.
fn edit(harness: &Harness, replaced: &[(&str, &str)]) {
    let path = harness.path("config.yaml");
    let mut yaml = fs::read_to_string(&path).expect("the configuration");
    for (old, new) in replaced {
        assert!(yaml.contains(old), "{old} is not in {yaml}");
        yaml = yaml.replace(old, new);
    }
    fs::write(harness.path("config.new"), yaml).expect("written");
    fs::rename(harness.path("config.new"), path).expect("replaced");
}

fn available(harness: &Harness) -> i64 {
    let request =
        csi::GetCapacityRequest { parameters: [("backend".to_owned(), "image".to_owned())].into(), ..Default::default() };
    harness.block_on(harness.controller().get_capacity(request)).expect("an answer").into_inner().available_capacity
}

fn publish_inline(harness: &Harness, id: &str, attributes: &[(&str, &str)]) -> Result<(), Status> {
    let own = [("csi.storage.k8s.io/ephemeral", "true"), ("backend", "image")];
    let request = csi::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: text(&harness.target(id)),
        volume_capability: Some(capability(Some("ext4"))),
        volume_context: own.iter().chain(attributes).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..Default::default()
    };
    harness.block_on(harness.node().node_publish_volume(request)).map(drop)
}

fn unpublish(harness: &Harness, id: &str) {
    let request = csi::NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: text(&harness.target(id)) };
    harness.block_on(harness.node().node_unpublish_volume(request)).expect("unpublished");
}

/// Why a static volume of this backend is refused, before anything is sent to its storage.
fn refused_stage(harness: &Harness, attributes: &[(&str, &str)], mount_flags: &[&str]) -> String {
    let mut capability = capability(None);
    if !mount_flags.is_empty() {
        capability = common::capability(Some(""));
        let Some(csi::volume_capability::AccessType::Mount(mount)) = &mut capability.access_type else { panic!("a mount") };
        mount.mount_flags = mount_flags.iter().map(|&flag| flag.to_owned()).collect();
    }
    let request = csi::NodeStageVolumeRequest {
        volume_context: attributes.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
        ..stage_request("static", harness.staging("static"), capability)
    };
    harness.block_on(harness.node().node_stage_volume(request)).expect_err("refused").message().to_owned()
}

#[test]
fn changed_settings_are_in_force_after_a_reload_without_a_restart() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.configure(
            "  - {name: nas, type: nfs, forbidMountOptions: [nolock]}\n  \
               - {name: san, type: iscsi, allowedPortals: [192.0.2.0/24]}\ninlineMaxSize: 64MiB",
        );
        harness.start();
        let pid = harness.pid();
        let nfs = |harness: &Harness| {
            refused_stage(harness, &[("backend", "nas"), ("server", "192.0.2.9"), ("share", "/srv")], &["nolock", "nconnect=4"])
        };
        let before = available(&harness);
        assert!(nfs(&harness).contains("nolock is forbidden by forbidMountOptions"), "{}", nfs(&harness));
        publish_inline(&harness, "csi-large", &[("size", "128MiB")]).expect_err("too large");
        publish_inline(&harness, "csi-mkfs", &[("size", "64MiB"), ("mkfsOptions", "-m 0")]).expect("allowed");
        unpublish(&harness, "csi-mkfs");
        assert_eq!(reload(&harness), (0, format!("{}: nothing has changed\n", harness.path("config.yaml").display())));

        edit(
            &harness,
            &[
                ("overcommit: 8.0", "overcommit: 4.0"),
                ("[nolock]", "[nconnect]"),
                ("192.0.2.0/24", "198.51.100.0/24"),
                ("inlineMaxSize: 64MiB", "inlineMaxSize: 128MiB"),
                (", mkfsOptions]", "]\nlog: {level: debug}"),
            ],
        );
        let checked = longshore(&harness, &["reload", "--check"]);
        assert!(checked.0 == 0 && checked.1.ends_with(": can be applied; nothing was applied\n"), "{checked:?}");
        assert_eq!(available(&harness), before, "it was only checked");
        let (code, report) = reload(&harness);
        assert!(code == 0 && report.ends_with("config.yaml: applied\n"), "{report}");
        for row in [
            ["backends[image].pools[default].overcommit", "8.0", "4.0", "reload"],
            ["backends[nas].forbidMountOptions", "[nolock]", "[nconnect]", "reload"],
            ["backends[san].allowedPortals", "[192.0.2.0/24]", "[198.51.100.0/24]", "reload"],
            ["inlineMaxSize", "67108864", "134217728", "reload"],
            ["log.level", "info", "debug", "reload"],
        ] {
            assert!(has_row(&report, row), "{row:?} is not in\n{report}");
            let logged = format!("{}: {} -> {}", row[0], row[1], row[2]);
            assert!(harness.log().lines().any(|line| line.contains("was reloaded") && line.contains(&logged)), "{logged}");
        }

        assert_eq!(available(&harness), before / 2);
        assert!(nfs(&harness).contains("nconnect is forbidden by forbidMountOptions"), "{}", nfs(&harness));
        publish_inline(&harness, "csi-large", &[("size", "128MiB")]).expect("small enough now");
        unpublish(&harness, "csi-large");
        publish_inline(&harness, "csi-mkfs", &[("size", "64MiB"), ("mkfsOptions", "-m 0")]).expect_err("not allowed any more");
        assert_eq!(longshore(&harness, &["log-level"]).1, "debug\n");
        assert!(harness.log().contains("DEBUG"));

        // A level for the moment stays until that of the file changes.
        assert_eq!(longshore(&harness, &["log-level", "warn"]).0, 0);
        edit(&harness, &[("overcommit: 4.0", "overcommit: 8.0")]);
        assert_eq!((reload(&harness).0, available(&harness)), (0, before));
        assert_eq!(longshore(&harness, &["log-level"]).1, "warn\n");
        edit(&harness, &[("level: debug", "level: info")]);
        assert_eq!((reload(&harness).0, longshore(&harness, &["log-level"]).1), (0, "info\n".to_owned()));
        assert_eq!(harness.pid(), pid, "it is the same process");
        harness.assert_nothing_left();
        assert!(harness.stop());
    });
}

#[test]
fn invalid_file_is_refused_and_the_old_settings_stay_in_force() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let (before, good) = (available(&harness), fs::read_to_string(harness.path("config.yaml")).expect("it"));
        let halved = good.replace("overcommit: 8.0", "overcommit: 4.0");
        for (yaml, words) in [
            (format!("{halved}grase: 1m\n"), ["grase", "did you mean `grace`"]),
            (halved.replace("type: fake", "type: tape"), ["tape", "expected one of"]),
            (format!("{halved}mode: controller\nkubeletRegistration: true\n"), ["kubeletRegistration", "a controller"]),
            (good.replace("overcommit: 8.0", "overcommit: -1"), ["overcommit", "more than 0"]),
            (format!("{halved}{{"), ["config.yaml", "line"]),
        ] {
            fs::write(harness.path("config.yaml"), &yaml).expect("written");
            for arguments in [&["reload"][..], &["reload", "--check"]] {
                let (code, report) = longshore(&harness, arguments);
                assert!(code == 2 && words.iter().all(|word| report.contains(word)), "{code}: {report}\n{yaml}");
                assert!(report.contains("nothing was applied"), "{report}");
            }
            assert!(harness.log().contains("the configuration was not reloaded") && harness.log().contains(words[0]));
        }
        fs::remove_file(harness.path("config.yaml")).expect("removed");
        let (code, report) = reload(&harness);
        assert!(code == 2 && report.contains("No such file"), "{report}");
        assert_eq!(available(&harness), before);
        fs::write(harness.path("config.yaml"), &halved).expect("written");
        assert_eq!((reload(&harness).0, available(&harness)), (0, before / 2), "it is taken up once it is valid");
        assert!(harness.stop());
    });
}

#[test]
fn setting_that_needs_a_restart_is_named_and_nothing_is_applied() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.configure("driverName: one.example.org");
        harness.start();
        let before = available(&harness);
        edit(
            &harness,
            &[("overcommit: 8.0", "overcommit: 4.0"), ("one.example.org", "two.example.org"), ("name: fake", "name: other")],
        );
        for arguments in [&["reload", "--check"][..], &["reload"]] {
            let (code, report) = longshore(&harness, arguments);
            assert_eq!(code, 1, "{report}");
            for row in [
                ["driverName", "one.example.org", "two.example.org", "restart"],
                ["backends", "[image, fake]", "[image, other]", "restart"],
            ] {
                assert!(has_row(&report, row), "{row:?} is not in\n{report}");
            }
            assert!(report.contains("nothing was applied; a setting needs a restart"), "{report}");
            assert_eq!(available(&harness), before, "{arguments:?}");
        }
        let log = harness.log();
        let line = log.lines().rfind(|line| line.contains("not reloaded")).expect("it is logged");
        assert!(line.contains("driverName: one.example.org -> two.example.org"), "{line}");

        // Only the path of a pool, beside what could be applied.
        edit(
            &harness,
            &[("two.example.org", "one.example.org"), ("name: other", "name: fake"), ("/pool/images", "/pool/others")],
        );
        let (code, report) = reload(&harness);
        let (old, new) = (text(&harness.path("pool/images")), text(&harness.path("pool/others")));
        assert!(code == 1 && has_row(&report, ["backends[image].pools[default].path", &old, &new, "restart"]), "{report}");
        assert!(has_row(&report, ["backends[image].pools[default].overcommit", "8.0", "4.0", "reload"]), "{report}");
        assert_eq!(available(&harness), before);
        edit(&harness, &[("/pool/others", "/pool/images")]);
        assert_eq!((reload(&harness).0, available(&harness)), (0, before / 2));
        assert!(harness.stop());
    });
}

#[test]
fn two_reloads_at_once_apply_a_change_once() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let before = available(&harness);
        for (old, new) in [("8.0", "4.0"), ("4.0", "2.0"), ("2.0", "1.0")] {
            edit(&harness, &[(&format!("overcommit: {old}"), &format!("overcommit: {new}"))]);
            let started = {
                let _starting = starting();
                let start = |_| command(&harness, &["reload"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
                (0..6).map(start).collect::<Result<Vec<_>, _>>().expect("they start")
            };
            let ended = started.into_iter().map(|child| outcome(&child.wait_with_output().expect("it ends")));
            let ended: Vec<_> = ended.collect();
            assert!(ended.iter().all(|(code, _)| *code == 0), "{ended:?}");
            assert_eq!(ended.iter().filter(|(_, report)| report.contains(": applied")).count(), 1, "{ended:?}");
            assert_eq!(ended.iter().filter(|(_, report)| report.contains("nothing has changed")).count(), 5, "{ended:?}");
        }
        assert_eq!(available(&harness), before / 8);
        assert!(harness.stop());
    });
}

/// Thawed also when the test fails.
struct Frozen(String);

impl Frozen {
    fn freeze(path: String) -> Frozen {
        run("fsfreeze", ["--freeze", &path]);
        Frozen(path)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        Command::new("fsfreeze").args(["--unfreeze", &self.0]).status().ok();
    }
}

#[test]
fn call_that_runs_during_a_reload_ends_as_it_was_promised() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let make = |name: &str, patience: Duration| {
            let mut request = tonic::Request::new(create(name, 64, Some("ext4"), "image"));
            request.set_timeout(patience);
            harness.block_on(harness.controller().create_volume(request))
        };
        make("first", Duration::from_secs(20)).expect("created");
        let frozen = Frozen::freeze(text(&harness.path("pool")));
        // Its room is set aside; the pool's file system lets it do no more. A later call hears that it runs.
        let deadline = Instant::now() + Duration::from_secs(30);
        while make("running", Duration::from_millis(300)).expect_err("the pool is frozen").code() != Code::Aborted {
            assert!(Instant::now() < deadline, "it never began: {}", harness.log());
        }
        edit(&harness, &[("overcommit: 8.0", "overcommit: 8.0\n        capacity: 1MiB")]);
        let (code, report) = reload(&harness);
        assert!(
            code == 0 && has_row(&report, ["backends[image].pools[default].capacity", "not set", "1048576", "reload"]),
            "{report}"
        );
        drop(frozen);
        let deadline = Instant::now() + Duration::from_secs(30);
        let made = loop {
            match make("running", Duration::from_secs(20)) {
                Ok(made) => break made.into_inner().volume.expect("a volume"),
                Err(status) => assert!(status.code() == Code::Aborted && Instant::now() < deadline, "{status}"),
            }
        };
        assert_eq!(made.capacity_bytes, 64 * MIB);
        let full = make("next", Duration::from_secs(20)).expect_err("the new limit holds");
        assert_eq!(full.code(), Code::ResourceExhausted, "{full}");
        assert_eq!(available(&harness), 0);
    });
}

/// A ConfigMap in a pod: the file is a link through `..data`, which the kubelet turns to a new directory.
#[test]
fn config_map_volume_is_reloaded_after_its_link_was_turned() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        let yaml = fs::read_to_string(harness.path("config.yaml")).expect("it");
        for (directory, yaml) in [("..one", yaml.clone()), ("..two", yaml.replace("overcommit: 8.0", "overcommit: 4.0"))] {
            fs::create_dir(harness.path(directory)).expect("made");
            fs::write(harness.path(directory).join("config.yaml"), yaml).expect("written");
        }
        fs::remove_file(harness.path("config.yaml")).expect("removed");
        symlink("..one", harness.path("..data")).expect("linked");
        symlink("..data/config.yaml", harness.path("config.yaml")).expect("linked");
        harness.start();
        let before = available(&harness);
        symlink("..two", harness.path("..data_tmp")).expect("linked");
        fs::rename(harness.path("..data_tmp"), harness.path("..data")).expect("turned");
        fs::remove_dir_all(harness.path("..one")).expect("removed");
        assert_eq!(available(&harness), before, "nothing is reloaded by itself");
        assert_eq!((reload(&harness).0, available(&harness)), (0, before / 2));
        assert!(harness.stop());
    });
}

#[test]
fn flag_of_the_driver_goes_before_the_changed_file() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.configure("inlineMaxSize: 64MiB");
        harness.argue("--inline-max-size=32MiB");
        harness.start();
        edit(&harness, &[("inlineMaxSize: 64MiB", "inlineMaxSize: 128MiB")]);
        let (code, report) = reload(&harness);
        assert!(code == 0 && report.ends_with(": nothing has changed\n"), "{report}");
        let refused = publish_inline(&harness, "csi-large", &[("size", "64MiB")]).expect_err("too large");
        assert!(refused.message().contains("32 MiB"), "{refused}");
        assert!(harness.stop());
    });
}

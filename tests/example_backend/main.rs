//! The backend of docs/adding-a-backend.md, built from outside of src/: one row, and all else is there.

#![allow(clippy::disallowed_methods, reason = "tests start programs and the driver itself")]

#[path = "../common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{Harness, MIB, Pool, capability, create, isolated, mounts_at, publish_request, stage_request, text};
use longshore::csi;
use serde_json::Value;
use tonic::Code;

/// Builds the program, which `cargo test` of all tests has done already.
fn program() -> PathBuf {
    let _starting = common::starting();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--locked", "--offline", "--quiet", "--example", "example-backend"]);
    // With others the driver of all tests would be replaced.
    for (feature, is_on) in [("faults", cfg!(feature = "faults")), ("otlp", cfg!(feature = "otlp"))] {
        cargo.args(is_on.then_some(["--features", feature]).into_iter().flatten());
    }
    // What the cargo of the tests says of this package: build scripts that read it would run again, and all behind them be compiled again.
    for (name, _) in std::env::vars_os() {
        let is_of_package =
            |name: &str| name == "OUT_DIR" || ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix));
        if name.to_str().is_some_and(is_of_package) {
            cargo.env_remove(name);
        }
    }
    let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let directory = Path::new(env!("CARGO_BIN_EXE_longshore")).parent().expect("a directory");
    directory.join("examples/example-backend")
}

fn output(program: &Path, arguments: &[&str]) -> Output {
    let _starting = common::starting();
    let mut command = Command::new(program);
    command.env_remove("CSI_ENDPOINT").env_remove("KUBE_NODE_NAME").env_remove("LONGSHORE_CONFIG").stdin(Stdio::null());
    command.args(arguments).output().expect("it runs")
}

fn printed(program: &Path, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A driver whose first backend is of the type `example`.
fn harness() -> Harness {
    let mut harness = Harness::new(Pool::Local);
    harness.set_program(Some(program()));
    let records = harness.path("records");
    fs::create_dir(&records).expect("a directory");
    let backend = format!("{{name: scratch, type: example, directory: {}, capacity: 64MiB}}", records.display());
    fs::write(harness.path("config.yaml"), format!("backends:\n- {backend}\n- {{name: fake, type: fake}}\n")).expect("written");
    harness
}

#[test]
fn code_of_the_guide_is_the_program_of_these_tests() {
    let guide = include_str!("../../docs/adding-a-backend.md");
    let code = guide.split("```rust").nth(1).and_then(|rest| rest.split_once('\n')?.1.split("```").next()).expect("a block");
    assert_eq!(
        code,
        include_str!("driver.rs"),
        "docs/adding-a-backend.md has another program than tests/example_backend/driver.rs"
    );
}

#[test]
fn volume_of_an_added_backend_lives_as_any_other() {
    isolated(|| {
        let mut harness = harness();
        harness.start();
        let (mut controller, mut node) = (harness.controller(), harness.node());
        let request = create("a", 8, Some(""), "scratch");
        let make = |request| harness.block_on(async { controller.clone().create_volume(request).await });
        let volume = make(request.clone()).expect("created").into_inner().volume.expect("a volume");
        assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("scratch:a", 8 * MIB));
        assert_eq!(make(request).expect("created already").into_inner().volume.expect("a volume"), volume);
        assert!(harness.path("records/a.json").exists());
        let full = make(create("b", 64, Some(""), "scratch")).expect_err("56 MiB are left");
        assert_eq!(full.code(), Code::ResourceExhausted, "{full}");

        let (staging, target) = (harness.staging("a"), harness.target("a"));
        let stage = csi::NodeStageVolumeRequest {
            volume_context: volume.volume_context.clone(),
            ..stage_request(volume.volume_id.clone(), &staging, capability(Some("")))
        };
        let publish = csi::NodePublishVolumeRequest {
            volume_context: volume.volume_context.clone(),
            ..publish_request(volume.volume_id.clone(), &staging, &target, capability(Some("")))
        };
        for _ in 0..2 {
            harness.block_on(node.node_stage_volume(stage.clone())).expect("staged");
            harness.block_on(node.node_publish_volume(publish.clone())).expect("published");
        }
        assert_eq!((mounts_at(&staging), mounts_at(&target)), (1, 1));
        let delete = csi::DeleteVolumeRequest { volume_id: volume.volume_id.clone(), ..Default::default() };
        let refused = harness.block_on(controller.delete_volume(delete.clone())).expect_err("it is staged");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");

        // Killed and started again: the volume and its mounts are what they were.
        fs::write(target.join("file"), "contents").expect("written");
        harness.kill();
        harness.start();
        let (mut controller, mut node) = (harness.controller(), harness.node());
        harness.block_on(node.node_publish_volume(publish)).expect("published already");
        assert_eq!(fs::read_to_string(target.join("file")).expect("read"), "contents");

        let unpublish = csi::NodeUnpublishVolumeRequest { volume_id: volume.volume_id.clone(), target_path: text(&target) };
        let unstage = csi::NodeUnstageVolumeRequest { volume_id: volume.volume_id.clone(), staging_target_path: text(&staging) };
        for _ in 0..2 {
            harness.block_on(node.node_unpublish_volume(unpublish.clone())).expect("unpublished");
            harness.block_on(node.node_unstage_volume(unstage.clone())).expect("unstaged");
            harness.block_on(controller.delete_volume(delete.clone())).expect("deleted");
        }
        assert_eq!((mounts_at(&staging), mounts_at(&target)), (0, 0));
        let listed = harness.block_on(controller.list_volumes(csi::ListVolumesRequest::default())).expect("listed").into_inner();
        assert!(listed.entries.is_empty() && !harness.path("records/a.json").exists());
        assert!(harness.stop());
    });
}

#[test]
fn added_backend_is_in_help_schema_doctor_and_messages() {
    isolated(|| {
        let harness = harness();
        let program = program();
        let help = printed(&program, &["serve", "--help"]);
        assert!(help.contains("example   memory of the node, while a volume is staged"), "{help}");
        assert!(help.contains("image     "), "the others are still there: {help}");

        let schema: Value = serde_json::from_str(&printed(&program, &["config-schema"])).expect("JSON");
        let backend = &schema["$defs"]["Backend"];
        assert!(backend["properties"]["type"]["enum"].as_array().expect("types").contains(&"example".into()), "{backend:#}");
        let types = backend["allOf"].as_array().expect("types");
        let own = types.iter().find(|entry| entry["if"]["properties"]["type"]["const"] == "example").expect("its fields");
        assert_eq!(own["then"]["required"], serde_json::json!(["name", "directory", "capacity"]));
        assert_eq!(own["then"]["additionalProperties"], false);

        let (config, state) = (text(&harness.path("config.yaml")), text(&harness.path("state")));
        let doctor = ["doctor", "--json", "--mode", "controller", "--config", &config, "--state-dir", &state];
        let report: Value = serde_json::from_slice(&output(&program, &doctor).stdout).expect("JSON");
        let checks = report["checks"].as_array().expect("checks");
        let records =
            |check: &&Value| check["name"] == "pool" && check["found"].as_str().is_some_and(|it| it.contains("records"));
        assert_eq!(checks.iter().find(records).map(|check| &check["level"]), Some(&"ok".into()), "{report:#}");

        let wrong = |backend: &str| {
            fs::write(&config, format!("backends:\n- {backend}\n")).expect("written");
            let output = output(&program, &["serve", "--check", "--config", &config]);
            assert_eq!(output.status.code(), Some(2));
            String::from_utf8(output.stderr).expect("UTF-8")
        };
        for (backend, words) in [
            ("{name: a, type: exampel}", ["unknown variant `exampel`", "did you mean `example`?"]),
            ("{name: a, type: example, capacity: 1GiB, directry: /srv}", ["line 2", "did you mean `directory`?"]),
            ("{name: a, type: example, capacity: 1GiB, directory: srv}", ["directory", "srv is not absolute"]),
            (
                "{name: a, type: example, capacity: 1GiB, directory: /srv/x}\n- {name: b, type: image, pools: [{name: p, path: /srv}]}",
                ["b: pool /srv", "shares its directory with one of a"],
            ),
        ] {
            let message = wrong(backend);
            assert!(words.iter().all(|word| message.contains(word)), "{backend}\n -> {message}");
        }
    });
}

//! Mount options may hold passwords (csi.proto, MountVolume.mount_flags): their values are in no error, log, span, journal or
//! file, at any log level and whatever fails; their names are where people look for them.

mod common;

use std::fmt::Debug;
use std::fs;
use std::path::Path;

use common::{Harness, Pool, capability, create, isolated, text};
use longshore::csi;
use tonic::{Code, Status};

const SECRET: &str = "hunter2-kLq7";

fn with_flags(fstype: &str, flags: &[&str]) -> Option<csi::VolumeCapability> {
    let mut wanted = capability(Some(fstype));
    if let Some(csi::volume_capability::AccessType::Mount(mount)) = &mut wanted.access_type {
        mount.mount_flags = flags.iter().map(|&flag| flag.to_owned()).collect();
    }
    Some(wanted)
}

fn assert_hidden(place: &str, content: &[u8]) {
    let found = content.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
    assert!(!found, "the value is in {place}: {}", String::from_utf8_lossy(content));
}

/// No file below the directory has it.
fn assert_hidden_below(directory: &Path) {
    for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry")) {
        let path = entry.path();
        match entry.file_type().expect("a type") {
            kind if kind.is_dir() => assert_hidden_below(&path),
            kind if kind.is_file() => assert_hidden(&text(&path), &fs::read(&path).expect("a file")),
            _ => {}
        }
    }
}

/// The error of a call that must fail, which names these.
fn refused<T: Debug>(answer: Result<T, Status>, code: Code, words: &[&str]) {
    let status = answer.expect_err("refused");
    assert_hidden("the error", format!("{status:?}").as_bytes());
    assert_eq!(status.code(), code, "{status}");
    for word in words {
        assert!(status.message().contains(word), "{status}: lacks {word:?}");
    }
}

fn harness() -> Harness {
    let mut harness = Harness::new(Pool::Local);
    harness.set("LONGSHORE_LOG", "trace");
    harness.start();
    harness
}

#[test]
fn value_of_unknown_option_is_in_no_error_log_or_journal() {
    let secret = format!("password={SECRET}");
    isolated(move || {
        let mut harness = harness();
        for fstype in ["ext4", "xfs", "btrfs"] {
            let mib = if fstype == "ext4" { 64 } else { 320 };
            let id = format!("image:{fstype}");
            let staging = text(&harness.staging(fstype));
            let (mut controller, mut node) = (harness.controller(), harness.node());
            let stage = |flags: &[&str]| csi::NodeStageVolumeRequest {
                volume_id: id.clone(),
                staging_target_path: staging.clone(),
                volume_capability: with_flags(fstype, flags),
                ..Default::default()
            };
            harness.block_on(controller.create_volume(create(fstype, mib, Some(fstype), "image"))).expect("created");
            for (flags, code, words) in [
                (&["noexec", secret.as_str()][..], Code::InvalidArgument, &["password", "with the option"][..]),
                (&["bind", &secret], Code::InvalidArgument, &["mount option bind"]),
                (&[&format!("x-pass={SECRET}")], Code::InvalidArgument, &["mount option x-pass"]),
                (&[&format!("password={SECRET}{}", "y".repeat(300))], Code::Internal, &["mount option password", "at most 255"]),
                (&[&format!("ro,password=\"{SECRET}")], Code::InvalidArgument, &["number 1"]),
                (&[&format!("context=\"{SECRET}\"x")], Code::InvalidArgument, &["number 1"]),
            ] {
                refused(harness.block_on(node.node_stage_volume(stage(flags))), code, words);
                harness.assert_nothing_left();
            }
        }
        assert!(harness.stop());
        assert_hidden("the log", harness.log().as_bytes());
        assert!(harness.log().contains("password"), "its name is there");
        assert_hidden_below(&harness.path("state"));
    });
}

#[test]
fn value_of_accepted_option_is_in_no_journal_and_a_repeated_stage_still_compares_it() {
    isolated(|| {
        // A value that ext4 accepts, and that nothing else in the log is: seconds between commits.
        let (option, other) = ("commit=86399", "commit=86398");
        let mut harness = harness();
        let (mut controller, mut node) = (harness.controller(), harness.node());
        harness.block_on(controller.create_volume(create("v", 64, Some("ext4"), "image"))).expect("created");
        let (staging, target) = (text(&harness.staging("v")), text(&harness.target("v")));
        let stage = |flags: &[&str]| csi::NodeStageVolumeRequest {
            volume_id: "image:v".to_owned(),
            staging_target_path: staging.clone(),
            volume_capability: with_flags("ext4", flags),
            ..Default::default()
        };
        let publish = |flags: &[&str]| csi::NodePublishVolumeRequest {
            volume_id: "image:v".to_owned(),
            staging_target_path: staging.clone(),
            target_path: target.clone(),
            volume_capability: with_flags("ext4", flags),
            ..Default::default()
        };
        harness.block_on(node.node_stage_volume(stage(&["noexec", option]))).expect("staged");
        let shown = fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
        assert!(shown.lines().any(|line| line.contains(&staging) && line.contains(option)), "{shown}");
        let file = harness.path("state/journal/image:v/stage.json");
        let journal = fs::read_to_string(&file).expect("the journal");
        assert!(journal.contains("noexec") && journal.contains("\"commit=sha256:"), "{journal}");
        assert!(!journal.contains("86399"), "{journal}");

        harness.block_on(node.node_stage_volume(stage(&[option, "noexec"]))).expect("staged so already");
        let status = harness.block_on(node.node_stage_volume(stage(&["noexec", other]))).expect_err("another value");
        assert_eq!(status.code(), Code::AlreadyExists, "{status}");
        assert!(status.message().contains("noexec,commit=***") && status.message().contains("other values"), "{status}");
        assert!(!status.message().contains("8639"), "{status}");

        // A driver that starts finds the stage again, and so does a publish.
        harness.kill();
        harness.start();
        let mut node = harness.node();
        harness.block_on(node.node_stage_volume(stage(&["noexec", option]))).expect("staged so already");
        harness.block_on(node.node_publish_volume(publish(&["noexec", option]))).expect("published");
        let status = harness.block_on(node.node_publish_volume(publish(&[&format!("x-y={SECRET}")]))).expect_err("refused");
        assert_hidden("the error", format!("{status:?}").as_bytes());
        assert!(status.message().contains("mount option x-y"), "{status}");
        // The values that a version before this one wrote are read, compared, and not written again.
        harness.kill();
        let mut written: serde_json::Value = serde_json::from_str(&journal).expect("JSON");
        written["access"]["filesystem"]["mount_flags"] = serde_json::json!(["noexec", option]);
        let durable = fs::read_to_string(&file).expect("the journal");
        assert!(durable.contains("\"commit=sha256:"), "{durable}");
        fs::write(&file, written.to_string()).expect("the journal");
        harness.start();
        let mut node = harness.node();
        harness.block_on(node.node_stage_volume(stage(&["noexec", option]))).expect("staged so already");
        let unpublish = csi::NodeUnpublishVolumeRequest { volume_id: "image:v".to_owned(), target_path: target.clone() };
        harness.block_on(node.node_unpublish_volume(unpublish)).expect("unpublished");
        let unstage = csi::NodeUnstageVolumeRequest { volume_id: "image:v".to_owned(), staging_target_path: staging.clone() };
        harness.block_on(node.node_unstage_volume(unstage)).expect("unstaged");
        harness.assert_nothing_left();
        assert!(harness.stop());
        // Not the digits alone, which a time may have.
        assert!(!harness.log().contains("commit=8639"), "{}", harness.log());
        assert_hidden_below(&harness.path("state"));
    });
}

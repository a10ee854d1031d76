//! What an operator greps for is on the line of each call, in text and as JSON.

mod common;

use std::collections::HashMap;

use common::{Harness, Pool, capability, create, isolated, publish_request, stage_request, text};
use longshore::csi;
use serde_json::Value;

const TOKEN: &str = "a-token-that-nobody-may-read";

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A volume's life as Kubernetes speaks of it.
fn live(harness: &Harness) {
    let (mut controller, mut node) = (harness.controller(), harness.node());
    let mut creation = create("pvc-1", 64, Some("ext4"), "image");
    creation.parameters.extend(map(&[
        ("csi.storage.k8s.io/pvc/name", "data-db-0"),
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
        ("csi.storage.k8s.io/pv/name", "pvc-1"),
    ]));
    harness.block_on(controller.create_volume(creation)).expect("created");
    let snapshot = csi::CreateSnapshotRequest {
        name: "snapshot-1".to_owned(),
        source_volume_id: "image:pvc-1".to_owned(),
        parameters: map(&[
            ("csi.storage.k8s.io/volumesnapshot/name", "nightly"),
            ("csi.storage.k8s.io/volumesnapshot/namespace", "shop"),
        ]),
        ..Default::default()
    };
    harness.block_on(controller.create_snapshot(snapshot)).expect("a snapshot");
    let attach = csi::ControllerPublishVolumeRequest {
        volume_id: "fake:gone".to_owned(),
        node_id: "node-7".to_owned(),
        volume_capability: Some(capability(None)),
        ..Default::default()
    };
    harness.block_on(controller.controller_publish_volume(attach)).expect_err("there is no such volume");
    let (staging, target) = (text(&harness.staging("pvc-1")), text(&harness.target("db-0")));
    let stage = stage_request("image:pvc-1", &staging, capability(Some("ext4")));
    harness.block_on(node.node_stage_volume(stage)).expect("staged");
    let publish = csi::NodePublishVolumeRequest {
        volume_context: map(&[
            ("csi.storage.k8s.io/pod.name", "db-0"),
            ("csi.storage.k8s.io/pod.namespace", "shop"),
            ("csi.storage.k8s.io/pod.uid", "6c1f"),
            ("csi.storage.k8s.io/serviceAccount.tokens", TOKEN),
        ]),
        ..publish_request("image:pvc-1", &staging, &target, capability(Some("ext4")))
    };
    harness.block_on(node.node_publish_volume(publish)).expect("published");
    let unstage = csi::NodeUnstageVolumeRequest { volume_id: "image:pvc-1".to_owned(), staging_target_path: staging.clone() };
    harness.block_on(node.node_unstage_volume(unstage.clone())).expect_err("it is published");
    let unpublish = csi::NodeUnpublishVolumeRequest { volume_id: "image:pvc-1".to_owned(), target_path: target };
    harness.block_on(node.node_unpublish_volume(unpublish)).expect("unpublished");
    harness.block_on(node.node_unstage_volume(unstage)).expect("unstaged");
}

fn lived(format: &str) -> Vec<String> {
    let mut harness = Harness::new(Pool::Local);
    harness.configure(&format!("log: {{format: {format}}}"));
    harness.start();
    live(&harness);
    assert!(harness.stop());
    harness.assert_nothing_left();
    assert!(!harness.log().contains(TOKEN));
    harness.log().lines().map(str::to_owned).collect()
}

#[test]
fn each_call_has_one_line_with_all_of_it() {
    isolated(|| {
        let lines = lived("text");
        for (call, number, words) in [
            (
                "CreateVolume",
                1,
                &[
                    "INFO",
                    "id=\"pvc-1\"",
                    "made=image:pvc-1",
                    "pvc=\"shop/data-db-0\"",
                    "pv=\"pvc-1\"",
                    "code=Ok",
                    "took=",
                    "step=\"",
                ][..],
            ),
            ("CreateSnapshot", 1, &["snapshot=\"shop/nightly\"", "made=image:snapshot-1"]),
            ("ControllerPublishVolume", 1, &["WARN", "id=\"fake:gone\"", "node=\"node-7\"", "code=NotFound"]),
            ("NodeStageVolume", 1, &["id=\"image:pvc-1\"", "node=\"node-1\"", "path=\"", "step=\"", "code=Ok"]),
            ("NodePublishVolume", 1, &["id=\"image:pvc-1\"", "pod=\"shop/db-0\"", "pod_uid=\"6c1f\"", "path=\""]),
            ("NodeUnstageVolume", 2, &["id=\"image:pvc-1\"", "took=", "code="]),
        ] {
            let reported: Vec<&String> =
                lines.iter().filter(|line| line.contains(&format!("rpc=\"{call}\"")) && line.contains("code=")).collect();
            assert_eq!(reported.len(), number, "{call}: {lines:#?}");
            for line in reported {
                assert!(words.iter().all(|word| line.contains(word)), "{words:?} in {line}");
            }
        }
    });
}

#[test]
fn as_json_each_is_a_field() {
    isolated(|| {
        let lines = lived("json");
        let reported: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let of = |call: &str| {
            let mut found = reported.iter().filter(|line| line["span"]["rpc"] == call && !line["fields"]["code"].is_null());
            found.next().unwrap_or_else(|| panic!("no line of {call}"))
        };
        let line = of("CreateVolume");
        for (field, value) in
            [("id", "pvc-1"), ("made", "image:pvc-1"), ("pvc", "shop/data-db-0"), ("pv", "pvc-1"), ("node", "node-1")]
        {
            assert_eq!(line["span"][field], value, "{line}");
        }
        assert_eq!((line["fields"]["code"].as_str(), line["fields"]["final"].as_bool()), (Some("Ok"), Some(true)));
        assert!(line["fields"]["step"].is_string() && line["fields"]["took"].is_string(), "{line}");
        let line = of("NodePublishVolume");
        assert_eq!((line["span"]["pod"].as_str(), line["span"]["pod_uid"].as_str()), (Some("shop/db-0"), Some("6c1f")));
        assert!(line["span"]["path"].as_str().is_some_and(|path| path.ends_with("db-0/mount")), "{line}");
        assert_eq!(of("ControllerPublishVolume")["span"]["node"], "node-7");
        assert_eq!(of("NodeUnstageVolume")["fields"]["code"], "FailedPrecondition");
    });
}

//! `longshore inspect --backend`: what nobody names, what is named and not there, and the one volume that may be deleted.

use std::fs;
use std::process::{Command, Output};

use super::common::starting;
use super::driver::{Driver, SECRET, ZONE};
use super::proxy::Cloud;

const SPEED: u32 = 50;

/// Runs it against the driver's cloud, with these handles in use; none of a snapshot.
fn inspect(driver: &Driver, handles: &[&str], more: &[&str]) -> Output {
    let none = driver.harness.path("no-snapshots");
    fs::write(&none, "").expect("the handles");
    inspect_volumes(driver, handles, &[&["--snapshot-handles", none.to_str().expect("plain")], more].concat())
}

/// As `inspect`, without a list of the snapshots.
fn inspect_volumes(driver: &Driver, handles: &[&str], more: &[&str]) -> Output {
    let file = driver.harness.path("handles");
    fs::write(&file, handles.join("\n")).expect("the handles");
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
    command.args(["inspect", "--backend", "ebs", "--handles"]).arg(&file).arg("--config").arg(driver.harness.path("config.yaml"));
    command.arg("--state-dir").arg(driver.harness.path("state")).args(more);
    command.env("AWS_ACCESS_KEY_ID", super::KEY).env("AWS_SECRET_ACCESS_KEY", SECRET).env("AWS_EC2_METADATA_DISABLED", "true");
    command.env("AWS_CONFIG_FILE", "/dev/null").env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    command.env("LONGSHORE_CLOUD_SPEED", SPEED.to_string());
    let _starting = starting();
    command.output().expect("it runs")
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

#[test]
fn disk_without_a_handle_is_reported_and_deleted_by_name_only() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let driver = Driver::start(&cloud, SPEED, &instance);
    for name in ["used", "leaked", "busy"] {
        driver.create(name).expect("created");
    }
    driver.attach("ebs:busy", &instance).expect("attached");
    let snapshot = driver.snapshot("old", "ebs:used").expect("taken").snapshot_id;
    let [used, busy, leaked] = ["ebs:used", "ebs:busy", "ebs:leaked"].map(|id| driver.handle(id));
    let handles = [used.as_str(), "ebs:gone", "other:x"];

    let report = inspect(&driver, &handles, &["--json"]);
    assert_eq!(report.status.code(), Some(1), "{}", text(&report));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let names = |what: &str| -> Vec<&str> {
        let mut all: Vec<&str> =
            report[what].as_array().expect("a list").iter().filter_map(|one| one["handle"].as_str()).collect();
        all.sort_unstable();
        all
    };
    let mut unnamed = [busy.as_str(), &leaked];
    unnamed.sort_unstable();
    assert_eq!(names("volumes"), unnamed);
    assert_eq!(names("snapshots"), [snapshot.as_str()]);
    assert_eq!(report["missing"], serde_json::json!(["ebs:gone"]));
    assert_eq!(driver.disks().len(), 3, "it only tells");

    // Without the list of the snapshots in use none is called unnamed, and nothing is deleted.
    let alone = inspect_volumes(&driver, &handles, &["--json"]);
    let alone: serde_json::Value = serde_json::from_slice(&alone.stdout).expect("JSON");
    assert_eq!((&alone["snapshots"], &alone["snapshotsCompared"]), (&serde_json::json!([]), &serde_json::json!(false)));
    assert!(text(&inspect_volumes(&driver, &handles, &[])).contains("Snapshots were not compared"));
    let refused = inspect_volumes(&driver, &handles, &["--delete", &leaked]);
    assert!(refused.status.code() == Some(2) && text(&refused).contains("--snapshot-handles"), "{}", text(&refused));
    assert_eq!(driver.disks().len(), 3);
    // With it, what it names is in use.
    let list = driver.harness.path("snapshots");
    fs::write(&list, format!("{snapshot}\n\n")).expect("the handles");
    let both = inspect_volumes(&driver, &handles, &["--json", "--snapshot-handles", list.to_str().expect("plain")]);
    let both: serde_json::Value = serde_json::from_slice(&both.stdout).expect("JSON");
    assert_eq!((&both["snapshots"], &both["snapshotsCompared"]), (&serde_json::json!([]), &serde_json::json!(true)));
    assert_eq!(both["missing"], serde_json::json!(["ebs:gone"]));

    // Neither what is named, nor what a node has, nor by a list that cannot be one.
    for (handles, volume, words) in [
        (&handles[..], used.as_str(), "a PersistentVolume names it"),
        (&handles, "ebs:used", "a PersistentVolume names it"),
        (&handles, &busy, "attached to node"),
        (&["other:x"], &leaked, "names no volume of ebs"),
        (&handles, "ebs:nowhere", "does not exist"),
    ] {
        let refused = inspect(&driver, handles, &["--delete", volume]);
        assert!(!refused.status.success() && text(&refused).contains(words), "{volume}: {}", text(&refused));
    }
    assert_eq!(driver.disks().len(), 3);
    let deleted = inspect(&driver, &handles, &["--delete", &leaked]);
    assert!(deleted.status.success(), "{}", text(&deleted));
    assert_eq!(driver.disks().len(), 2);

    let named = inspect(&driver, &[&used, &busy, &snapshot], &[]);
    assert_eq!(named.status.code(), Some(0), "{}", text(&named));
    assert!(!text(&named).contains(SECRET));

    driver.detach("ebs:busy", &instance).expect("detached");
    driver.delete_snapshot(&snapshot).expect("deleted");
    for id in ["ebs:used", "ebs:busy"] {
        driver.delete(id).expect("deleted");
    }
    driver.assert_clean("at the end");
}

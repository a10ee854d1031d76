//! Volumes through their lives, as Compute Engine sees it.

use super::super::tenant::{existing_disk_by_its_handle, own_disk_is_refused_by_the_handle_of_another_driver};
use super::*;

#[test]
fn gce_disk_of_another_program_is_used_by_its_handle() {
    existing_disk_by_its_handle::<Google>();
}

#[test]
fn gce_own_disk_is_refused_by_the_handle_of_another_driver() {
    own_disk_is_refused_by_the_handle_of_another_driver::<Google>();
}

#[test]
fn gce_life_of_a_volume() {
    let Some(google) = Google::start() else { return };
    let driver = start(&google);
    let id = driver.create("data").expect("created");
    let disk = google.disk();
    assert_eq!(id, format!("pd:d-{ZONE}_{}.data", disk["id"].as_str().expect("a number")));
    assert_eq!((&disk["sizeGb"], &disk["labels"]["team"]), (&json!("10"), &json!("storage")));
    assert!(disk["type"].as_str().expect("a type").ends_with("/diskTypes/pd-balanced"));
    assert_eq!(driver.create("data").expect("again"), id);

    let context = driver.attach(&id, "n1").expect("attached");
    assert_eq!(context["identity"], format!("longshore-{}", disk["id"].as_str().expect("a number")));
    assert_eq!(context["madeEmpty"], "true");
    let attached = &google.state()["instances"][0]["disks"][1];
    assert_eq!((&attached["deviceName"], &attached["mode"]), (&json!(context["identity"]), &json!("READ_WRITE")));
    assert_eq!(driver.attach(&id, "n1").expect("again")["identity"], context["identity"]);
    assert_eq!(code(driver.attach(&id, "n2")).0, Code::FailedPrecondition);
    assert_eq!(driver.list(), [(id.clone(), vec![node("n1")])]);
    assert_eq!(code(driver.delete(&id)).0, Code::FailedPrecondition);

    assert_eq!(driver.expand(&id, 20).expect("grown"), 20 * GIB);
    assert_eq!(driver.expand(&id, 20).expect("again"), 20 * GIB);
    assert_eq!(google.count("disks.resize"), 1);
    let snapshot = driver.snapshot("then", &id).expect("a snapshot");
    assert_eq!(driver.snapshot("then", &id).expect("again"), snapshot);
    let restored = driver.create_as(driver.restored_from("restored", &snapshot)).expect("restored").volume_id;
    let copy = driver.create_as(driver.clone_of("copy", &id)).expect("copied").volume_id;
    let made =
        |name: &str| google.disks().into_iter().find(|disk| disk["description"].as_str().is_some_and(|text| text.contains(name)));
    assert!(made("restored").expect("a disk")["sourceSnapshotId"].is_string());
    assert!(made("copy").expect("a disk")["sourceDiskId"].is_string());
    let context = driver.attach(&restored, "n2").expect("attached");
    assert!(!context.contains_key("madeEmpty"), "it was made of a snapshot");
    driver.detach(&restored, "n2").expect("detached");
    driver.delete(&restored).expect("deleted");
    driver.delete(&copy).expect("deleted");
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete_snapshot(&snapshot).expect("again");

    driver.detach(&id, "n1").expect("detached");
    driver.detach(&id, "n1").expect("again");
    let context = driver.attach(&id, "n2").expect("attached elsewhere");
    assert!(!context.contains_key("madeEmpty"), "a pod has written to it");
    driver.detach(&id, "n2").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.delete(&id).expect("again");
    driver.assert_clean(&google, "at the end");
}

#[test]
fn gce_archive_snapshot_is_restored_as_any_other() {
    let Some(google) = Google::start() else { return };
    let driver = start(&google);
    let id = driver.create("data").expect("created");
    let request = csi::CreateSnapshotRequest {
        name: "kept".to_owned(),
        source_volume_id: id.clone(),
        parameters: HashMap::from([("snapshot-type".to_owned(), "archive".to_owned())]),
        ..Default::default()
    };
    let snapshot = driver.snapshot_as(request).expect("a snapshot");
    assert_eq!(google.snapshots()[0]["snapshotType"], "ARCHIVE");
    let restored = driver.create_as(driver.restored_from("restored", &snapshot)).expect("restored").volume_id;
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete(&restored).expect("deleted");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&google, "at the end");
}

/// The name is free again, and the next disk has another number: the id of the first one means nothing any more.
#[test]
fn gce_later_disk_of_the_same_name_is_another() {
    let Some(google) = Google::start() else { return };
    let driver = start(&google);
    let first = driver.create("data").expect("created");
    let name = google.disk()["name"].clone();
    driver.delete(&first).expect("deleted");
    let second = driver.create("data").expect("created");
    assert_ne!(first, second);
    assert_eq!(google.disk()["name"], name);
    driver.delete(&first).expect("it is gone already");
    google.disk();
    assert_eq!(code(driver.attach(&first, "n1")).0, Code::NotFound);
    driver.delete(&second).expect("deleted");
    driver.assert_clean(&google, "at the end");
}

#[test]
fn gce_regional_disk_is_kept_in_two_zones() {
    let Some(google) = Google::start() else { return };
    let driver = start(&google);
    let mut request = creation("regional");
    request.parameters.insert("replication-type".to_owned(), "regional-pd".to_owned());
    let volume = driver.create_as(request.clone()).expect("created");
    let zones: Vec<_> =
        volume.accessible_topology.iter().map(|topology| &topology.segments["topology.longshore.csi.dev/zone"]).collect();
    assert_eq!((zones.len(), zones.contains(&&ZONE.to_owned())), (2, true), "{zones:?}");
    assert!(volume.volume_id.starts_with("pd:d-europe-west3_"), "{}", volume.volume_id);
    assert_eq!(driver.create_as(request).expect("again").volume_id, volume.volume_id);
    driver.attach(&volume.volume_id, "n1").expect("attached");
    driver.expand(&volume.volume_id, 300).expect("grown");
    let snapshot = driver.snapshot("then", &volume.volume_id).expect("a snapshot");
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.detach(&volume.volume_id, "n1").expect("detached");
    driver.delete(&volume.volume_id).expect("deleted");
    driver.assert_clean(&google, "at the end");
}

#[test]
fn gce_hyperdisk_has_rates_that_change_and_several_writers() {
    let Some(google) = Google::start() else { return };
    let driver = start(&google);
    let parameters =
        [("type", "hyperdisk-balanced"), ("provisioned-iops-on-create", "3000"), ("provisioned-throughput-on-create", "140Mi")];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let block = shared_block();
    let request =
        csi::CreateVolumeRequest { parameters: parameters.into(), volume_capabilities: vec![block.clone()], ..creation("fast") };
    let id = driver.create_as(request).expect("created").volume_id;
    let disk = google.disk();
    assert_eq!(
        (&disk["provisionedIops"], &disk["provisionedThroughput"], &disk["accessMode"]),
        (&json!("3000"), &json!("140"), &json!("READ_WRITE_MANY"))
    );
    driver.modify(&id, &[("iops", "4000")]).expect("changed");
    driver.modify(&id, &[("iops", "4000")]).expect("again");
    assert_eq!((&google.disk()["provisionedIops"], google.count("disks.update")), (&json!("4000"), 1));
    assert_eq!(code(driver.modify(&id, &[("type", "pd-ssd")])).0, Code::InvalidArgument);
    for name in ["n1", "n2"] {
        driver.attach_as(&id, name, block.clone(), false).expect("attached to both");
    }
    assert_eq!(google.disk()["users"].as_array().expect("a list").len(), 2);
    for name in ["n1", "n2"] {
        driver.detach(&id, name).expect("detached");
    }
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&google, "at the end");
}

#[test]
fn gce_volume_that_is_only_read_is_attached_so() {
    let Some(google) = Google::start() else { return };
    let driver = start(&google);
    let id = driver.create("data").expect("created");
    driver.attach_as(&id, "n1", capability(Some("ext4")), true).expect("attached");
    assert_eq!(google.state()["instances"][0]["disks"][1]["mode"], "READ_ONLY");
    driver.detach(&id, "n1").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&google, "at the end");
}

#[test]
fn gce_lists_have_all_pages_and_no_other_clusters_disks() {
    let Some(google) = Google::start() else { return };
    google.order(&json!({"settings": {"page": 2}}));
    let driver = start(&google);
    let other = driver_of(&google, "other").started();
    let theirs = other.create("data").expect("created");
    let mut ours: Vec<String> = (0..5).map(|number| driver.create(&format!("data-{number}")).expect("created")).collect();
    ours.push(driver.create("data").expect("the other cluster's has another name"));
    let listed: Vec<String> = driver.list().into_iter().map(|(id, _)| id).collect();
    assert_eq!(listed.len(), 6);
    assert!(ours.iter().all(|id| listed.contains(id)) && !listed.contains(&theirs));
    // By its id the other cluster's disk is neither attached nor deleted.
    let driver = Driver { persistent: false, ..driver };
    driver.attach(&theirs, "n1").expect_err("another cluster's");
    driver.delete(&theirs).expect_err("another cluster's");
    assert_eq!(google.disks().len(), 7);
    let driver = Driver { persistent: true, ..driver };
    for id in ours {
        driver.delete(&id).expect("deleted");
    }
    other.delete(&theirs).expect("deleted");
    driver.assert_clean(&google, "at the end");
}

/// Whose name is ours and whose description is another's is neither used nor deleted.
#[test]
fn gce_disk_of_our_name_with_another_description_is_left_alone() {
    let Some(google) = Google::start() else { return };
    let driver = start(&google);
    let id = driver.create("data").expect("created");
    google.order(&json!({"describe": {"from": "\"volume\":\"data\"", "to": "\"volume\":\"other\""}}));
    let driver = Driver { persistent: false, ..driver };
    for refused in [driver.create("data").map(drop), driver.delete(&id), driver.attach(&id, "n1").map(drop)] {
        let (_, message) = code(refused);
        assert!(message.contains("longshore.dev/volume=data"), "{message}");
    }
    google.disk();
    google.assert_valid();
}

#[test]
fn gce_machine_that_is_gone_has_no_disks_and_one_that_sleeps_keeps_them() {
    let Some(google) = Google::start() else { return };
    let driver = start(&google);
    let id = driver.create("data").expect("created");
    assert_eq!(code(driver.attach(&id, "no-such-node")).0, Code::NotFound);
    driver.detach(&id, "no-such-node").expect("it is attached nowhere");
    driver.attach(&id, "n1").expect("attached");
    google.order(&json!({"status": {format!("{ZONE}/n1"): "SUSPENDED"}}));
    let (refused, message) = code(driver.detach(&id, "n1"));
    assert_eq!(refused, Code::FailedPrecondition, "{message}");
    google.order(&json!({"status": {format!("{ZONE}/n1"): "TERMINATED"}}));
    driver.detach(&id, "n1").expect("a stopped machine");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&google, "at the end");
}

#[test]
fn gce_machine_is_not_filled_beyond_its_limit() {
    let Some(google) = Google::start() else { return };
    google.order(&json!({"instances": {format!("{ZONE}/small"): "c4d-standard-2"}}));
    let driver = start(&google);
    let ids: Vec<String> = (0..4).map(|number| driver.create(&format!("data-{number}")).expect("created")).collect();
    for id in &ids[..3] {
        driver.attach(id, "small").expect("attached");
    }
    let before = google.count("instances.attachDisk");
    assert_eq!(code(driver.attach(&ids[3], "small")).0, Code::ResourceExhausted);
    assert_eq!(google.count("instances.attachDisk"), before, "it is refused before any request");
    // What the cloud itself refuses at the operation's end (issue 1819).
    google.order(&json!({"settings": {"room": 1}}));
    assert_eq!(code(driver.attach(&ids[3], "n1")).0, Code::ResourceExhausted);
    for id in &ids {
        driver.detach(id, "small").expect("detached");
        driver.delete(id).expect("deleted");
    }
    driver.assert_clean(&google, "at the end");
}

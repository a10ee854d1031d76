//! Backups as snapshots: VolumeSnapshotClasses of `type: backup`, as cinder-csi-plugin has them.

use super::super::tenant::{Variant, With, killed_before_every_step, lost};
use super::*;

struct Backups;

impl Variant for Backups {
    type Cloud = OpenStack;
    const NAME: &'static str = "cinder with backups";

    fn driver_with(cloud: &OpenStack, more: &str) -> Driver {
        let class = HashMap::from([("type".to_owned(), "backup".to_owned())]);
        Driver { snapshot_class: class, ..driver_with(cloud, "test", &format!("backups: true\n    {more}")) }
    }

    fn request_of(call: Call) -> Option<&'static str> {
        match call {
            Call::Snapshot => Some("create backup"),
            Call::DeleteSnapshot => Some("delete backup"),
            _ => None,
        }
    }

    /// A restored volume has the metadata of another one, until CreateVolume is called again.
    fn can_be_undone(call: Call) -> bool {
        call != Call::Restore
    }
}

type WithBackups = With<Backups>;

fn open() -> (WithBackups, Driver) {
    let cloud = WithBackups::open().expect("an emulator");
    let driver = cloud.driver().started();
    (cloud, driver)
}

fn volume(cloud: &OpenStack, name: &str) -> Value {
    let state = cloud.state();
    let found: Vec<&Value> = state.volumes.values().filter(|volume| volume["name"] == name).collect();
    assert_eq!(found.len(), 1, "{name}: {:#?}", state.volumes);
    found[0].clone()
}

/// How many backups and snapshots there are.
fn counted(cloud: &OpenStack) -> (usize, usize) {
    let state = cloud.state();
    (state.backups.len(), state.snapshots.len())
}

#[test]
fn cinder_backup_is_a_snapshot_that_outlives_its_volume() {
    let (cloud, driver) = open();
    let id = driver.create("data").expect("created");
    driver.attach(&id, "n1").expect("attached");
    let snapshot = driver.snapshot("then", &id).expect("a backup of a volume in use");
    assert_eq!(driver.snapshot("then", &id).expect("again"), snapshot);
    let backup = cloud.state().backups.values().next().expect("a backup").clone();
    assert_eq!(snapshot, format!("vol:d-backup_{}.then", backup["id"].as_str().expect("an id")));
    assert_eq!((&backup["name"], &backup["metadata"]["team"]), (&json!("then"), &json!("storage")));
    assert_eq!((counted(&cloud), cloud.count("create backup")), ((1, 0), 1), "the snapshot that it was made of is gone");
    driver.detach(&id, "n1").expect("detached");
    driver.delete(&id).expect("a backup does not keep its volume");

    let listed = driver.call(|mut client| async move { client.list_snapshots(csi::ListSnapshotsRequest::default()).await });
    let entries = listed.expect("a list").entries;
    let shown: Vec<_> = entries.into_iter().filter_map(|entry| entry.snapshot).collect();
    assert_eq!((shown.len(), shown[0].snapshot_id.as_str(), shown[0].ready_to_use), (1, snapshot.as_str(), true));

    // Cinder replaces the metadata of a restored volume by that of the volume that was backed up.
    let restored = driver.create_as(driver.restored_from("restored", &snapshot)).expect("restored").volume_id;
    assert_eq!(driver.create_as(driver.restored_from("restored", &snapshot)).expect("again").volume_id, restored);
    let made = volume(&cloud, "restored");
    assert_eq!((&made["metadata"]["longshore.dev:volume"], &made["size"]), (&json!("restored"), &json!(20)));
    assert_eq!(made["metadata"]["src_backup_id"], backup["id"]);
    assert_eq!(driver.list(), [(restored.clone(), Vec::new())]);
    let another = driver.create("data").expect("the name is free");
    assert_ne!(another, restored);
    let context = driver.attach(&restored, "n1").expect("attached");
    assert!(!context.contains_key("madeEmpty"), "{context:?}");
    driver.detach(&restored, "n1").expect("detached");
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete_snapshot(&snapshot).expect("again");
    [&restored, &another].into_iter().for_each(|id| driver.delete(id).expect("deleted"));
    driver.assert_clean(&cloud, "at the end");
}

/// The driver is killed while a volume is restored, and the volume has another one's metadata when the next driver looks.
#[test]
fn cinder_volume_that_was_restored_meanwhile_is_found_by_its_description() {
    let (cloud, mut driver) = open();
    let id = driver.create("data").expect("created");
    let snapshot = driver.snapshot("then", &id).expect("a backup");
    cloud.trouble("create volume", Trouble::Late(Duration::from_secs(3600)), 1);
    driver.persistent = false;
    let request = driver.restored_from("restored", &snapshot);
    assert!(!is_final(code(driver.create_as(request.clone())).0));
    driver.harness.kill();
    cloud.state().hurry();
    assert_eq!(volume(&cloud, "restored")["metadata"]["longshore.dev:volume"], "data", "as Cinder does it");
    driver.harness.start();
    driver.persistent = true;
    // By its metadata it would be the source.
    assert_eq!(driver.create("data").expect("again"), id);
    assert_eq!(driver.list(), [(id.clone(), Vec::new())]);
    let restored = driver.create_as(request).expect("found").volume_id;
    assert_eq!(volume(&cloud, "restored")["metadata"]["longshore.dev:volume"], "restored");
    assert_eq!(cloud.state().volumes.len(), 2);
    // What a person restores has the source's metadata, and is not the source.
    let theirs = "0b3c0a54-0e0e-4d0b-8a4a-1f0c7a3a7a2b";
    let copy = json!({"id": theirs, "name": "restore", "description": null, "snapshot_id": null});
    let mut copied = volume(&cloud, "data");
    copied.as_object_mut().expect("a map").extend(copy.as_object().expect("a map").clone());
    copied["metadata"]["src_backup_id"] = json!(snapshot.split(['_', '.']).nth(1).expect("an id"));
    cloud.state().volumes.insert(theirs.to_owned(), copied);
    assert_eq!(driver.create("data").expect("again"), id);
    for id in [&id, &restored] {
        driver.delete(id).expect("deleted");
    }
    assert!(cloud.state().volumes.contains_key(theirs));
    driver.delete_snapshot(&snapshot).expect("deleted");
    cloud.state().volumes.clear();
    driver.assert_clean(&cloud, "at the end");
}

/// Outside of Kubernetes a volume is restored under its own name. What a person does with it afterwards is left alone.
#[test]
fn cinder_volume_is_restored_under_the_name_of_its_source() {
    let (cloud, mut driver) = open();
    let id = driver.create("data").expect("created");
    let snapshot = driver.snapshot("then", &id).expect("a backup");
    driver.delete(&id).expect("deleted");
    let request = driver.restored_from("data", &snapshot);
    let restored = driver.create_as(request.clone()).expect("restored");
    assert_eq!(restored.content_source, request.volume_content_source);
    assert_eq!(driver.create_as(request.clone()).expect("again").volume_id, restored.volume_id);
    let made = volume(&cloud, "data");
    let disk = made["id"].as_str().expect("an id").to_owned();
    assert!(restored.volume_id.contains(&disk) && made["metadata"]["longshore.dev:source"].is_string(), "{made:#?}");

    // A person restores a backup of it, and Cinder copies its name and its description, too.
    let theirs = "0b3c0a54-0e0e-4d0b-8a4a-1f0c7a3a7a2b";
    let mut copied = made.clone();
    (copied["id"], copied["metadata"]["src_backup_id"]) = (json!(theirs), json!("1a2b3c4d-0e0e-4d0b-8a4a-1f0c7a3a7a2b"));
    cloud.state().volumes.insert(theirs.to_owned(), copied.clone());
    assert_eq!(driver.create_as(request.clone()).expect("again").volume_id, restored.volume_id);
    driver.delete(&restored.volume_id).expect("deleted");
    let second = driver.create_as(request).expect("another").volume_id;
    assert_eq!(cloud.state().volumes.len(), 2);
    assert_eq!(cloud.state().volumes[theirs], copied);
    assert!(!second.contains(theirs));
    cloud.state().volumes.remove(theirs);

    // It is taken away from the driver.
    let disk = volume(&cloud, "data")["id"].as_str().expect("an id").to_owned();
    let taken = json!({"owner": "someone"});
    cloud.state().volumes.get_mut(&disk).expect("ours")["metadata"] = taken.clone();
    driver.persistent = false;
    assert_eq!(code(driver.delete(&second)).0, Code::FailedPrecondition);
    assert_eq!(cloud.state().volumes[&disk]["metadata"], taken, "its metadata is left as it is");
    cloud.state().volumes.clear();
    driver.persistent = true;
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

/// Without the right to set metadata again, others' look-ups are answered all the same.
#[test]
fn cinder_restored_volume_is_not_whole_before_it_has_its_metadata() {
    let (cloud, mut driver) = open();
    let id = driver.create("data").expect("created");
    let snapshot = driver.snapshot("then", &id).expect("a backup");
    let denied = "Policy doesn't allow volume:update_volume_metadata to be performed.";
    cloud.trouble("replace metadata", Trouble::Refuse { status: 403, message: denied, retry_after: None }, u32::MAX);
    driver.persistent = false;
    let request = driver.restored_from("restored", &snapshot);
    assert!(!is_final(code(driver.create_as(request.clone())).0));
    driver.attach(&id, "n1").expect("another volume");
    driver.detach(&id, "n1").expect("another volume");
    assert!(driver.harness.log().contains(denied), "{}", driver.harness.log());
    cloud.forget_troubles();
    driver.persistent = true;
    let restored = driver.create_as(request).expect("restored").volume_id;
    assert_eq!(volume(&cloud, "restored")["metadata"]["longshore.dev:volume"], "restored");
    driver.delete_snapshot(&snapshot).expect("deleted");
    [&id, &restored].into_iter().for_each(|id| driver.delete(id).expect("deleted"));
    driver.assert_clean(&cloud, "at the end");
}

#[test]
fn cinder_backup_that_fails_is_made_again_and_says_why() {
    let (cloud, mut driver) = open();
    let id = driver.create("data").expect("created");
    driver.persistent = false;
    let full = "BackupLimitExceeded: Maximum number of backups allowed (10) exceeded";
    cloud.trouble("create backup", Trouble::Refuse { status: 413, message: full, retry_after: Some(0) }, 1);
    let (refused, message) = code(driver.snapshot("then", &id));
    assert_eq!((refused, message.contains(full)), (Code::ResourceExhausted, true), "{message}");
    assert_eq!(counted(&cloud), (0, 0), "what was begun is deleted");

    driver.persistent = true;
    let why = "Backup failed: the object store does not answer";
    cloud.trouble("create backup", Trouble::Fail(why), 1);
    let snapshot = driver.snapshot("then", &id).expect("the second is made");
    assert_eq!(cloud.count("create backup"), 2, "without that which was refused");
    assert!(driver.harness.log().contains(why), "{}", driver.harness.log());

    driver.delete_snapshot(&snapshot).expect("deleted");
    assert_eq!(counted(&cloud), (0, 0));
    cloud.trouble("delete snapshot", Trouble::Fail("snapshot is busy"), 1);
    driver.snapshot("then", &id).expect("ready once the snapshot of which it was made is gone");
    assert_eq!(counted(&cloud), (1, 0));

    // A restoration that fails leaves a volume, which is deleted and made again.
    let snapshot = driver.snapshot("then", &id).expect("again");
    let why = "restore: the object store does not answer";
    cloud.trouble("create volume", Trouble::Fail(why), 1);
    let (refused, message) = code(driver.create_as(driver.restored_from("restored", &snapshot)));
    assert_eq!((refused, message.contains(why)), (Code::Internal, true), "{message}");
    assert_eq!(cloud.state().volumes.len(), 1);
    let restored = driver.create_as(driver.restored_from("restored", &snapshot)).expect("the second is made").volume_id;
    assert_eq!(cloud.state().volumes.len(), 2);
    driver.delete_snapshot(&snapshot).expect("deleted");
    for id in [&id, &restored] {
        driver.delete(id).expect("deleted");
    }
    driver.assert_clean(&cloud, "at the end");
}

#[test]
fn cinder_backup_needs_the_configuration_to_say_so() {
    let (cloud, driver) = open();
    let id = driver.create("data").expect("created");
    let snapshot = driver.snapshot("then", &id).expect("a backup");
    let without = Driver { persistent: false, snapshot_class: driver.snapshot_class.clone(), ..start(&cloud) };
    let (refused, message) = code(without.snapshot("other", &id));
    assert_eq!((refused, message.contains("backups: true")), (Code::InvalidArgument, true), "{message}");
    let (_, message) = code(without.delete_snapshot(&snapshot));
    assert!(message.contains("backups: true"), "{message}");
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

#[test]
fn cinder_answers_about_backups_that_are_lost() {
    lost::<WithBackups>("after");
}

#[test]
fn cinder_killed_before_every_step_with_backups() {
    killed_before_every_step::<WithBackups>();
}

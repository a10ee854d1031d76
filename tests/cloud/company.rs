//! In company: backups that others restore with our tags, tags that others change, lists that begin with an empty page, and a second
//! cluster, whose disks of the same names are in every world of the unkind cloud.

use std::time::Duration;

use longshore::csi;
use tonic::Code;

use super::driver::{Driver, ZONE, tag};
use super::lifecycle::{clone_of, from_snapshot};
use super::proxy::Cloud;

const SPEED: u32 = 20;

/// The cloud's ids of the disks that there are.
fn ids(driver: &Driver) -> Vec<String> {
    driver.disks().iter().map(|disk| disk.get("volumeId").to_owned()).collect()
}

fn instance_of(driver: &Driver, volume: &str) -> Option<String> {
    let disks = driver.disks();
    let disk = disks.iter().find(|disk| disk.get("volumeId") == volume).expect("it is there");
    disk.items("attachmentSet").first().map(|attachment| attachment.get("instanceId").to_owned())
}

fn restart(driver: &mut Driver) {
    driver.harness.kill();
    driver.harness.start();
}

#[test]
fn backup_restored_with_the_volumes_tags_outlives_the_volume() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let mut driver = Driver::start(&cloud, SPEED, &instance);
    let handle = driver.create("data").expect("created").volume_id;
    let original = driver.disk().get("volumeId").to_owned();
    let copy = cloud.restore_backup(&original);
    for _ in 0..2 {
        assert_eq!(driver.create("data").expect("a repeat").volume_id, handle);
        driver.attach("ebs:data", &instance).expect("attached");
        assert_eq!((instance_of(&driver, &original).as_deref(), instance_of(&driver, &copy)), (Some(instance.as_str()), None));
        let taken = driver.snapshot("then", "ebs:data").expect("taken");
        let named = driver.snapshots().into_iter().find(|item| tag(item, "longshore.dev/snapshot") == "then");
        assert_eq!(named.expect("it is there").get("volumeId"), original);
        driver.delete_snapshot(&taken.snapshot_id).expect("deleted");
        driver.detach("ebs:data", &instance).expect("detached");
        cloud.clock.skip(Duration::from_secs(60));
        // The second time by a driver that remembers nothing.
        restart(&mut driver);
    }
    driver.expand("ebs:data", 20).expect("grown");
    let sizes: Vec<_> =
        driver.disks().iter().map(|disk| (disk.get("volumeId") == original, disk.get("size").to_owned())).collect();
    assert!(sizes.contains(&(true, "20".to_owned())) && sizes.contains(&(false, "10".to_owned())), "{sizes:?}");
    driver.delete("ebs:data").expect("deleted");
    assert_eq!(ids(&driver), [copy.as_str()]);
    driver.delete("ebs:data").expect("a repeat");
    restart(&mut driver);
    driver.delete("ebs:data").expect("a repeat");
    assert_eq!(ids(&driver), [copy.as_str()]);
    let log = driver.harness.log();
    assert!(log.contains("left alone") && log.contains(&copy), "{log}");
    let gone = driver.attach("ebs:data", &instance).expect_err("its disk is gone, whatever carries its tags");
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
    // The copy is a volume of its own, by its own id.
    let adopted = format!("ebs:d-{copy}.data");
    driver.attach(&adopted, &instance).expect("attached");
    driver.detach(&adopted, &instance).expect("detached");
    driver.delete(&adopted).expect("deleted");
    assert_eq!(ids(&driver), [""; 0]);
}

#[test]
fn volume_of_a_copied_volume_is_distinguished_from_the_backup_by_its_handle_only() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let mut driver = Driver::start(&cloud, SPEED, &instance);
    driver.create("data").expect("created");
    driver.create_as(clone_of("copy", "ebs:data")).expect("cloned");
    let disks = driver.disks();
    let cloned = disks.iter().find(|disk| tag(disk, "longshore.dev/volume") == "copy").expect("it is there");
    let cloned = cloned.get("volumeId").to_owned();
    let restored = cloud.restore_backup(&cloned);
    restart(&mut driver);
    // By its name it could be either: neither is used, nor deleted.
    driver.persistent = false;
    let refused = driver.create_as(clone_of("copy", "ebs:data")).expect_err("which?");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for part in [cloned.as_str(), &restored, "remove the tag longshore.dev/volume"] {
        assert!(refused.message().contains(part), "{refused}");
    }
    let handles = ["ebs:data", "ebs:copy"].map(|id| driver.handle(id));
    driver.forget_handles();
    let refused = driver.delete("ebs:copy").expect_err("which?");
    assert!(refused.code() == Code::FailedPrecondition && refused.message().contains(&restored), "{refused}");
    assert_eq!(ids(&driver).len(), 3);
    driver.persistent = true;
    for handle in handles {
        driver.delete(&handle).expect("deleted");
    }
    assert_eq!(ids(&driver), [restored]);
}

#[test]
fn copied_snapshot_outlives_the_snapshot() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let mut driver = Driver::start(&cloud, SPEED, &instance);
    driver.create("data").expect("created");
    let handle = driver.snapshot("then", "ebs:data").expect("taken").snapshot_id;
    let original = driver.snapshots()[0].get("snapshotId").to_owned();
    assert_eq!(handle, format!("ebs:d-{original}.then"));
    let copy = cloud.copy_snapshot(&original);
    restart(&mut driver);
    assert_eq!(driver.snapshot("then", "ebs:data").expect("a repeat").snapshot_id, handle);
    driver.create_as(from_snapshot("restored", &handle)).expect("restored");
    let from: Vec<_> = driver.disks().iter().map(|disk| disk.get("snapshotId").to_owned()).collect();
    assert!(from.contains(&original) && !from.contains(&copy), "{from:?}");
    for _ in 0..2 {
        driver.delete_snapshot(&handle).expect("deleted");
        let left: Vec<_> = driver.snapshots().iter().map(|snapshot| snapshot.get("snapshotId").to_owned()).collect();
        assert_eq!(left, [copy.as_str()]);
        restart(&mut driver);
    }
    for name in ["ebs:data", "ebs:restored"] {
        driver.delete(name).expect("deleted");
    }
}

#[test]
fn disk_whose_tags_an_administrator_changed_is_refused_and_not_forgotten() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let mut driver = Driver::start(&cloud, SPEED, &instance);
    driver.create("data").expect("created");
    let disk = driver.disk().get("volumeId").to_owned();
    for (key, ours, value) in [
        ("longshore.dev/cluster", "test", Some("another")),
        ("longshore.dev/cluster", "test", None),
        ("longshore.dev/volume", "data", None),
    ] {
        cloud.retag(&disk, key, value);
        restart(&mut driver);
        driver.persistent = false;
        for refused in [
            driver.delete("ebs:data").expect_err("not ours now"),
            driver.attach("ebs:data", &instance).map(drop).expect_err("not ours now"),
            driver.detach("ebs:data", &instance).expect_err("not ours now"),
            driver.expand("ebs:data", 20).map(drop).expect_err("not ours now"),
            driver.snapshot("then", "ebs:data").map(drop).expect_err("not ours now"),
        ] {
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            for part in [disk.as_str(), &format!("{key}={ours}"), "restore these tags"] {
                assert!(refused.message().contains(part), "{refused}");
            }
        }
        driver.persistent = true;
        assert_eq!((driver.disk().get("size"), driver.disk().get("status")), ("10", "available"));
        cloud.retag(&disk, key, Some(ours));
    }
    driver.delete("ebs:data").expect("ours again");
    driver.assert_clean("at the end");
}

/// A CreateVolume whose answer nobody had, and a handle that has no disk recorded: all that is known is the name, and the first page of the
/// list is empty.
#[test]
fn disk_behind_an_empty_first_page_is_not_forgotten() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let mut driver = Driver::start(&cloud, SPEED, &instance);
    driver.create("data").expect("created");
    let snapshot = driver.snapshot("then", "ebs:data").expect("taken").snapshot_id;
    cloud.clock.skip(Duration::from_secs(60));
    restart(&mut driver);
    driver.forget_handles();
    let listed = driver.list(0);
    assert_eq!(listed.keys().map(String::as_str).collect::<Vec<_>>(), ["ebs:data"]);
    let request = csi::ListSnapshotsRequest::default();
    let snapshots = driver.call(|mut client| {
        let request = request.clone();
        async move { client.list_snapshots(request).await }
    });
    assert_eq!(snapshots.expect("a list").entries.len(), 1);
    assert!(driver.attach("ebs:data", &instance).is_ok());
    driver.detach("ebs:data", &instance).expect("detached");
    driver.delete_snapshot(&super::driver::unrecorded(&snapshot)).expect("deleted");
    driver.delete("ebs:data").expect("deleted");
    driver.assert_clean("after the names alone were known");
}

//! Volumes through their lives, as OpenStack sees it.

use super::super::tenant::{existing_disk_by_its_handle, own_disk_is_refused_by_the_handle_of_another_driver};
use super::*;

#[test]
fn cinder_disk_of_another_program_is_used_by_its_handle() {
    existing_disk_by_its_handle::<OpenStack>();
}

#[test]
fn cinder_own_disk_is_refused_by_the_handle_of_another_driver() {
    own_disk_is_refused_by_the_handle_of_another_driver::<OpenStack>();
}

#[test]
fn cinder_life_of_a_volume() {
    let cloud = OpenStack::start(None);
    let driver = start(&cloud);
    let id = driver.create("data").expect("created");
    let volume = cloud.volume();
    let disk = volume["id"].as_str().expect("an id").to_owned();
    assert_eq!(id, format!("vol:d-{disk}.data"));
    assert_eq!(
        (&volume["size"], &volume["name"], &volume["availability_zone"], &volume["metadata"]["team"]),
        (&json!(10), &json!("data"), &json!(VOLUME_ZONE), &json!("storage"))
    );
    assert_eq!(driver.create("data").expect("again"), id);

    let context = driver.attach(&id, "n1").expect("attached");
    assert_eq!((context["identity"].as_str(), context["madeEmpty"].as_str()), (disk.as_str(), "true"));
    assert_eq!(driver.attach(&id, "n1").expect("again")["identity"], disk);
    assert_eq!(code(driver.attach(&id, "n2")).0, Code::FailedPrecondition);
    assert_eq!(driver.list(), [(id.clone(), vec![node("n1")])]);
    assert_eq!(code(driver.delete(&id)).0, Code::FailedPrecondition);

    assert_eq!(driver.expand(&id, 20).expect("grown while it is in use"), 20 * GIB);
    assert_eq!(driver.expand(&id, 20).expect("again"), 20 * GIB);
    assert_eq!(cloud.count("extend volume"), 1);
    driver.modify(&id, &[("type", "fast")]).expect("another type");
    driver.modify(&id, &[("type", "fast")]).expect("again");
    assert_eq!((&cloud.volume()["volume_type"], cloud.count("retype volume")), (&json!("fast"), 1));
    assert_eq!(code(driver.modify(&id, &[("iops", "100")])).0, Code::InvalidArgument);
    assert_eq!(code(driver.modify(&id, &[("type", "no-such-type")])).0, Code::InvalidArgument);

    let snapshot = driver.snapshot("then", &id).expect("a snapshot");
    assert_eq!(driver.snapshot("then", &id).expect("again"), snapshot);
    let restored = driver.create_as(driver.restored_from("restored", &snapshot)).expect("restored").volume_id;
    let copy = driver.create_as(driver.clone_of("copy", &id)).expect("copied").volume_id;
    let made = |name: &str| cloud.state().volumes.values().find(|volume| volume["name"] == name).cloned().expect("a volume");
    assert!(made("restored")["snapshot_id"].is_string());
    assert_eq!(made("copy")["source_volid"], disk);
    let context = driver.attach(&restored, "n2").expect("attached");
    assert!(!context.contains_key("madeEmpty"), "it was made of a snapshot");
    assert_eq!(made("restored")["metadata"]["longshore.dev:blank"], "used");
    driver.detach(&restored, "n2").expect("detached");
    driver.delete(&restored).expect("deleted");
    driver.delete(&copy).expect("deleted");
    let driver = Driver { persistent: false, ..driver };
    driver.detach(&id, "n1").expect("detached");
    assert_eq!(code(driver.delete(&id)).0, Code::FailedPrecondition, "it has a snapshot");
    let driver = Driver { persistent: true, ..driver };
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete_snapshot(&snapshot).expect("again");

    driver.detach(&id, "n1").expect("again");
    let context = driver.attach(&id, "n2").expect("attached elsewhere");
    assert!(!context.contains_key("madeEmpty"), "a pod has written to it");
    driver.detach(&id, "n2").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.delete(&id).expect("again");
    driver.assert_clean(&cloud, "at the end");
}

/// The rights of docs/cinder.md are the requests that were made: an application credential with access rules for these may do no more.
#[test]
fn cinder_rights_are_those_of_the_document() {
    let cloud = OpenStack::start(None);
    let driver = driver_with(&cloud, "test", "backups: true").started();
    let mut shared = creation("shared");
    shared.parameters.insert("type".to_owned(), "shared".to_owned());
    shared.volume_capabilities = vec![shared_block()];
    let shared = driver.create_as(shared).expect("created").volume_id;
    let id = driver.create("data").expect("created");
    driver.attach(&id, "n1").expect("attached");
    driver.detach(&id, "n1").expect("detached");
    driver.expand(&id, 20).expect("grown");
    driver.modify(&id, &[("type", "fast")]).expect("changed");
    let snapshot = driver.snapshot("then", &id).expect("a snapshot");
    let backed_up = Driver { snapshot_class: HashMap::from([("type".to_owned(), "backup".to_owned())]), ..driver };
    let backup = backed_up.snapshot("saved", &id).expect("a backup");
    let restored = backed_up.create_as(backed_up.restored_from("restored", &backup)).expect("restored").volume_id;
    backed_up.delete(&restored).expect("deleted");
    backed_up.delete_snapshot(&backup).expect("deleted");
    let driver = backed_up;
    driver.list();
    driver.call(|mut client| async move { client.list_snapshots(csi::ListSnapshotsRequest::default()).await }).expect("a list");
    driver.call(|mut client| async move { client.get_capacity(csi::GetCapacityRequest::default()).await }).expect("a capacity");
    cloud.trouble("create volume", Trouble::Fail("create volume:Driver failed."), 1);
    driver.create("failed").expect_err("it is deleted again");
    let mut anywhere = creation("anywhere");
    anywhere.accessibility_requirements = None;
    let ids =
        [id, shared, driver.create("failed").expect("another is made"), driver.create_as(anywhere).expect("created").volume_id];
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.attach(&ids[0], "n2").expect("attached");
    cloud.state().servers.remove(&node("n2"));
    driver.detach(&ids[0], "n2").expect("what is left of it is deleted");
    ids.iter().for_each(|id| driver.delete(id).expect("deleted"));
    driver.assert_clean(&cloud, "at the end");
    let text = include_str!("../../../docs/cinder.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | `")).map(|(name, _)| name.to_owned());
    let documented: std::collections::BTreeSet<String> = rows.filter(|name| !name.contains('`')).collect();
    let made = cloud.state().counts.keys().map(|name| (*name).to_owned()).filter(|name| name != "token").collect();
    assert_eq!(documented, made, "in docs/cinder.md, and made");
}

#[test]
fn cinder_volume_for_several_nodes_is_of_a_type_with_multiattach() {
    let cloud = OpenStack::start(None);
    let driver = start(&cloud);
    let of_type = |kind: &str| {
        let mut request = csi::CreateVolumeRequest { volume_capabilities: vec![shared_block()], ..creation("shared") };
        request.parameters.insert("type".to_owned(), kind.to_owned());
        request
    };
    let (refused, message) = code(driver.create_as(of_type("ssd")));
    assert_eq!((refused, message.contains("multiattach")), (Code::InvalidArgument, true), "{message}");
    let id = driver.create_as(of_type("shared")).expect("created").volume_id;
    for name in ["n1", "n2"] {
        driver.attach_as(&id, name, shared_block(), false).expect("attached to both");
    }
    assert_eq!(driver.list()[0].1.len(), 2);
    driver.detach(&id, "n1").expect("detached");
    assert_eq!(driver.list()[0].1, [node("n2")]);
    driver.detach(&id, "n2").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

/// cloud-provider-openstack issues 765, 1293 and 1300: zones of Nova and of Cinder have names of their own.
#[test]
fn cinder_zone_is_that_of_the_machine_by_the_map() {
    let cloud = OpenStack::start(None);
    cloud.add_server("far", "az-b");
    let driver = start(&cloud);
    let volume = driver.create_as(creation("data")).expect("created");
    assert_eq!(volume.accessible_topology[0].segments["topology.longshore.csi.dev/zone"], VOLUME_ZONE);
    let info = driver.harness.block_on(driver.harness.node().node_get_info(csi::NodeGetInfoRequest::default()));
    let info = info.expect("the node").into_inner();
    assert_eq!(info.accessible_topology.expect("a topology").segments["topology.longshore.csi.dev/zone"], VOLUME_ZONE);
    assert_eq!((info.node_id, info.max_volumes_per_node), (node("n1"), 25));
    let before = cloud.count("attach volume");
    let (refused, message) = code(driver.attach(&volume.volume_id, "far"));
    assert_eq!((refused, cloud.count("attach volume")), (Code::InvalidArgument, before), "{message}");
    let mut elsewhere = creation("elsewhere");
    elsewhere.parameters.insert("availability".to_owned(), "ceph-b".to_owned());
    let (refused, message) = code(driver.create_as(elsewhere));
    assert_eq!((refused, message.contains("availability")), (Code::InvalidArgument, true), "{message}");
    driver.delete(&volume.volume_id).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

#[test]
fn cinder_lists_have_all_pages_and_no_other_clusters_volumes() {
    let cloud = OpenStack::start(None);
    cloud.state().page = 2;
    let driver = start(&cloud);
    let other = driver_of(&cloud, "other").started();
    let theirs = other.create("data").expect("created");
    let mut ours: Vec<String> = (0..5).map(|number| driver.create(&format!("data-{number}")).expect("created")).collect();
    ours.push(driver.create("data").expect("names are not unique"));
    let listed: Vec<String> = driver.list().into_iter().map(|(id, _)| id).collect();
    assert_eq!(listed.len(), 6);
    assert!(ours.iter().all(|id| listed.contains(id)) && !listed.contains(&theirs));
    // By its id the other cluster's volume is neither attached nor deleted.
    let driver = Driver { persistent: false, ..driver };
    driver.attach(&theirs, "n1").expect_err("another cluster's");
    driver.delete(&theirs).expect_err("another cluster's");
    assert_eq!(cloud.state().volumes.len(), 7);
    let driver = Driver { persistent: true, ..driver };
    ours.iter().for_each(|id| driver.delete(id).expect("deleted"));
    other.delete(&theirs).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

/// cloud-provider-openstack issues 91 and 1403: a volume of the name that another program made is not taken for ours.
#[test]
fn cinder_volume_with_the_same_name_or_changed_metadata_is_left_alone() {
    let cloud = OpenStack::start(None);
    let mut driver = start(&cloud);
    let id = driver.create("data").expect("created");
    let disk = cloud.volume()["id"].as_str().expect("an id").to_owned();
    cloud.state().volumes.get_mut(&disk).expect("ours")["metadata"]["longshore.dev:volume"] = json!("other");
    driver.persistent = false;
    for refused in [driver.create("data").map(drop), driver.delete(&id), driver.attach(&id, "n1").map(drop)] {
        let (_, message) = code(refused);
        assert!(message.contains("longshore.dev/volume=data"), "{message}");
    }
    driver.persistent = true;
    // The next process does not know that it was ours.
    driver.harness.kill();
    driver.harness.start();
    let second = driver.create("data").expect("another");
    assert_ne!(second, id);
    assert_eq!(cloud.state().volumes.len(), 2);
    driver.delete(&second).expect("deleted");
    cloud.volume();
}

/// cloud-provider-openstack issues 944, 1003 and 1056: the node is down, or gone.
#[test]
fn cinder_machine_that_is_gone_has_no_volumes_and_one_that_is_suspended_keeps_them() {
    let cloud = OpenStack::start(None);
    let driver = start(&cloud);
    let id = driver.create("data").expect("created");
    assert_eq!(code(driver.attach(&id, "no-such-node")).0, Code::NotFound);
    driver.detach(&id, "no-such-node").expect("it is attached nowhere");
    driver.attach(&id, "n1").expect("attached");
    let set = |status: &str| cloud.state().servers.get_mut(&node("n1")).expect("a server")["status"] = json!(status);
    set("SUSPENDED");
    let (refused, message) = code(driver.detach(&id, "n1"));
    assert_eq!(refused, Code::FailedPrecondition, "{message}");
    set("SHUTOFF");
    driver.detach(&id, "n1").expect("a server that is down");
    // Of a server that was deleted while Cinder was away an attachment is left, which nobody else deletes.
    driver.attach(&id, "n1").expect("attached");
    cloud.state().servers.remove(&node("n1"));
    driver.detach(&id, "n1").expect("what is left is deleted");
    assert!(cloud.state().attachments.is_empty());
    driver.attach(&id, "n2").expect("attached elsewhere");
    // Or of one that Nova has detached by itself.
    cloud.state().servers.get_mut(&node("n2")).expect("a server")["os-extended-volumes:volumes_attached"] = json!([]);
    driver.detach(&id, "n2").expect("what is left is deleted");
    assert_eq!((cloud.volume()["status"].clone(), cloud.count("delete attachment")), (json!("available"), 2));
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

#[test]
fn cinder_volume_deleted_by_hand_is_gone_and_its_name_is_another_volume() {
    let cloud = OpenStack::start(None);
    let driver = start(&cloud);
    let id = driver.create("data").expect("created");
    cloud.state().volumes.clear();
    assert_eq!(code(driver.attach(&id, "n1")).0, Code::NotFound);
    driver.delete(&id).expect("it is gone");
    let second = driver.create("data").expect("another");
    assert_ne!(second, id);
    driver.delete(&id).expect("it is gone");
    cloud.volume();
    driver.delete(&second).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

#[test]
fn cinder_machine_is_not_filled_beyond_its_limit() {
    let cloud = OpenStack::start(None);
    cloud.state().room = 1;
    let driver = start(&cloud);
    let ids = ["data-0", "data-1"].map(|name| driver.create(name).expect("created"));
    driver.attach(&ids[0], "n1").expect("attached");
    assert_eq!(code(driver.attach(&ids[1], "n1")).0, Code::ResourceExhausted, "Nova says so");
    let full: Vec<Value> = (0..26).map(|number| json!({"id": format!("other-{number}")})).collect();
    cloud.state().servers.get_mut(&node("n2")).expect("a server")["os-extended-volumes:volumes_attached"] = json!(full);
    let before = cloud.count("attach volume");
    assert_eq!(code(driver.attach(&ids[1], "n2")).0, Code::ResourceExhausted);
    assert_eq!(cloud.count("attach volume"), before, "it is refused before any request");
    driver.detach(&ids[0], "n1").expect("detached");
    ids.iter().for_each(|id| driver.delete(id).expect("deleted"));
    driver.assert_clean(&cloud, "at the end");
}

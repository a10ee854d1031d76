//! Ephemeral inline volumes.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::Ordering;

use longshore::backend::{Backend, Connect};
use longshore::ops::controller::Controller;
use longshore::ops::lock::Locks;
use longshore::ops::node::{Handle, Node, PublishRequest};
use longshore::os::loopdev;
use longshore::volume::{Bytes, Error, Outcome, Secrets, VolumeId};
use serde_json::json;

use crate::harness::{
    Harness, filesystem, harness, is_final, mounts_at, mounts_below, names, publish_request, stage_request, unmount, unpublish,
    unstage,
};

const NAME: &str = "csi-0123456789abcdef";

fn request(harness: &Harness, attributes: &[(&str, &str)]) -> PublishRequest {
    let mut volume_context = BTreeMap::from([("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned())]);
    volume_context.extend(attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    PublishRequest {
        handle: Handle::Name(NAME.to_owned()),
        staging: None,
        target: harness.kubelet("t"),
        capability: filesystem(None),
        read_only: false,
        volume_context,
        publish_context: BTreeMap::new(),
        secrets: Secrets::default(),
    }
}

/// The only volume in the storage, or that the storage had last.
fn id(harness: &Harness) -> VolumeId {
    let names = harness.backend.names.lock().unwrap();
    let ids: Vec<_> = names.keys().map(|local| VolumeId::from_parts(harness.backend.name(), local).unwrap()).collect();
    assert_eq!(ids.len(), 1, "{names:?}");
    ids[0].clone()
}

fn assert_rolled_back(harness: &Harness) {
    harness.assert_storage_empty();
    let base = harness.state().parent().unwrap().to_owned();
    assert!(mounts_below(&base).is_empty(), "{:?}", mounts_below(&base));
    assert!(names(&harness.state().join("journal")).is_empty(), "the journal is left");
    assert!(names(&harness.state().join("inline")).is_empty());
    assert!(!harness.kubelet("t").exists());
}

#[test]
fn inline_volume_lives_from_publish_to_unpublish() {
    harness(|harness| {
        let node = harness.node();
        let handle = Handle::Name(NAME.to_owned());
        let publish = request(harness, &[("size", "16MiB"), ("fsType", "ext4"), ("discard", "true"), ("backend", "files")]);
        assert_eq!(node.publish(&publish).unwrap(), Outcome::Changed(()));
        assert_eq!(node.publish(&publish).unwrap(), Outcome::Unchanged(()));
        let mount = &mounts_at(&publish.target)[0];
        assert!(mount.fstype == "ext4" && mount.super_options.iter().any(|option| option == "discard"), "{mount:?}");
        fs::write(publish.target.join("x"), "x").unwrap();
        assert_eq!(fs::metadata(harness.backend.path(&id(harness))).unwrap().len(), 16 << 20);
        assert!(node.stats(&handle, &publish.target).unwrap().total > 0);
        assert!(node.health(&handle, Some(&publish.target), None).unwrap().is_empty());
        assert_eq!(node.unpublish(&handle, &publish.target).unwrap(), Outcome::Changed(()));
        assert_eq!(node.unpublish(&handle, &publish.target).unwrap(), Outcome::Unchanged(()));
        assert_rolled_back(harness);
    });
}

/// In a pod the staging mount is the container's own, and goes with it.
#[test]
fn inline_volume_without_its_staging_mount_is_well_and_lives_on() {
    harness(|harness| {
        let handle = Handle::Name(NAME.to_owned());
        let publish = request(harness, &[("size", "16MiB")]);
        harness.node().publish(&publish).unwrap();
        unmount(&harness.state().join("inline").join(id(harness).to_string()));
        let node = harness.node();
        let health = node.health(&handle, Some(&publish.target), None).unwrap();
        assert!(health.is_empty(), "{health:?}");
        assert!(node.stats(&handle, &publish.target).unwrap().total > 0);
        node.publish(&publish).unwrap();
        node.unpublish(&handle, &publish.target).unwrap();
        assert_rolled_back(harness);
    });
}

#[test]
fn a_name_that_looks_like_an_id_is_a_name_too() {
    harness(|harness| {
        let node = harness.node();
        let handle = Handle::Id("files:odd".parse().unwrap());
        let publish = PublishRequest { handle: handle.clone(), ..request(harness, &[("size", "16MiB")]) };
        node.publish(&publish).unwrap();
        node.unpublish(&handle, &publish.target).unwrap();
        assert!(names(&harness.state().join("journal")).is_empty());
        assert!(!publish.target.exists());
    });
}

#[test]
fn a_wrong_attribute_leaves_nothing() {
    harness(|harness| {
        let node = harness.node();
        for attributes in [[("size", "1KiB")], [("sice", "1GiB")], [("fsType", "ntfs")], [("backend", "none")]] {
            let error = node.publish(&request(harness, &attributes)).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. } | Error::OutOfRange { .. }), "{attributes:?}: {error}");
            assert_rolled_back(harness);
        }
        // Refused late, by mkfs.
        let error = node.publish(&request(harness, &[("size", "16MiB"), ("mkfsOptions", "-O no_such_feature")])).unwrap_err();
        assert!(is_final(&error), "{error}");
        assert_rolled_back(harness);
    });
}

#[test]
fn one_that_was_interrupted_is_gone_after_the_start() {
    harness(|harness| {
        let node = harness.node();
        let publish = request(harness, &[("size", "16MiB")]);
        node.publish(&publish).unwrap();
        unmount(&publish.target);
        drop(node);
        harness.edit_journal(&id(harness), &[("phase", json!("staging"))]);
        let node = harness.node();
        assert_rolled_back(harness);
        assert_eq!(node.unpublish(&publish.handle, &publish.target).unwrap(), Outcome::Unchanged(()));
    });
}

/// A persistent volume of the inline volume's name, as CreateVolume makes it, with a file on it.
fn persistent(harness: &Harness) -> VolumeId {
    let id = harness.volume(VolumeId::derive(harness.backend.name(), NAME).local(), Bytes(16 << 20));
    let node = harness.node_called("n2", "state2");
    let (staging, capability) = (harness.staging("p"), filesystem(None));
    node.stage(&stage_request(&id, &staging, &capability)).unwrap();
    fs::write(staging.join("precious"), "data").unwrap();
    unstage(&node, &id, &staging).unwrap();
    id
}

fn assert_precious(harness: &Harness, id: &VolumeId) {
    let node = harness.node_called("n2", "state2");
    let (staging, capability) = (harness.kubelet("p"), filesystem(None));
    node.stage(&stage_request(id, &staging, &capability)).unwrap();
    assert_eq!(fs::read_to_string(staging.join("precious")).unwrap(), "data");
    unstage(&node, id, &staging).unwrap();
}

#[test]
fn inline_volume_with_the_name_of_a_persistent_one_leaves_it_alone() {
    harness(|harness| {
        let id = persistent(harness);
        let node = harness.node();
        let publish = request(harness, &[("size", "16MiB")]);
        node.publish(&publish).unwrap();
        assert_eq!(names(&publish.target), ["lost+found"], "it is a volume of its own");
        node.unpublish(&publish.handle, &publish.target).unwrap();
        assert_precious(harness, &id);
        // As well when the persistent one is in use here.
        let (staging, target, capability) = (harness.kubelet("p"), harness.kubelet("pt"), filesystem(None));
        node.stage(&stage_request(&id, &staging, &capability)).unwrap();
        node.publish(&publish_request(&id, &staging, &target, &capability)).unwrap();
        node.publish(&publish).unwrap();
        node.unpublish(&publish.handle, &publish.target).unwrap();
        assert_eq!(fs::read_to_string(target.join("precious")).unwrap(), "data");
        unpublish(&node, &id, &target).unwrap();
        unstage(&node, &id, &staging).unwrap();
    });
}

#[test]
fn inline_volume_of_another_node_is_neither_used_nor_deleted() {
    harness(|harness| {
        let (one, two) = (harness.node(), harness.node_called("n2", "state2"));
        let publish = request(harness, &[("size", "16MiB")]);
        one.publish(&publish).unwrap();
        fs::write(publish.target.join("x"), "one").unwrap();
        let other = PublishRequest { target: harness.kubelet("t2"), ..publish.clone() };
        two.publish(&other).unwrap();
        assert_eq!(names(&other.target), ["lost+found"]);
        two.unpublish(&other.handle, &other.target).unwrap();
        assert_eq!(fs::read_to_string(publish.target.join("x")).unwrap(), "one");
        one.unpublish(&publish.handle, &publish.target).unwrap();
        drop((one, two));
        assert_rolled_back(harness);
    });
}

#[test]
fn inline_volume_whose_journal_was_lost_is_known_by_its_storage() {
    harness(|harness| {
        let node = harness.node();
        let publish = request(harness, &[("size", "16MiB")]);
        node.publish(&publish).unwrap();
        fs::write(publish.target.join("x"), "x").unwrap();
        let id = id(harness);
        drop(node);
        for name in names(&harness.journal(&id)) {
            fs::remove_file(harness.journal(&id).join(name)).unwrap();
        }
        fs::remove_dir(harness.journal(&id)).unwrap();
        let node = harness.node();
        // What is mounted is the same volume: it is adopted, and goes with its pod.
        node.publish(&publish).unwrap();
        assert_eq!(fs::read_to_string(publish.target.join("x")).unwrap(), "x");
        node.unpublish(&publish.handle, &publish.target).unwrap();
        assert_rolled_back(harness);
    });
}

#[test]
fn publish_of_inline_volume_that_storage_calls_otherwise_is_refused_and_leaves_it() {
    harness(|harness| {
        let node = harness.node();
        let publish = request(harness, &[("size", "16MiB")]);
        node.publish(&publish).unwrap();
        node.unpublish(&publish.handle, &publish.target).unwrap();
        let id = id(harness);
        harness.volume(id.local(), Bytes(16 << 20));
        harness.backend.names.lock().unwrap().insert(id.local().to_owned(), "database".to_owned());
        let error = node.publish(&publish).unwrap_err();
        assert!(matches!(error, Error::Conflict { .. }) && error.to_string().contains("database"), "{error}");
        assert!(harness.backend.path(&id).exists() && !harness.journal(&id).exists());
    });
}

#[test]
fn unpublish_of_volume_that_only_the_journal_calls_inline_keeps_it() {
    harness(|harness| {
        // As an earlier version had it: the journal says inline, the id is that of a persistent volume.
        let id = persistent(harness);
        for published in [true, false] {
            let node = harness.node();
            let publish = request(harness, &[("size", "16MiB")]);
            node.publish(&publish).unwrap();
            drop(node);
            as_earlier_version(harness, &id, published);
            let node = harness.node();
            if published {
                assert_eq!(node.publish(&publish).unwrap(), Outcome::Unchanged(()), "a repeat changes nothing");
                assert_eq!(fs::read_to_string(publish.target.join("precious")).unwrap(), "data");
            }
            node.unpublish(&publish.handle, &publish.target).unwrap();
            assert!(!harness.journal(&id).exists(), "the journal is left");
            drop(node);
            assert_precious(harness, &id);
        }
    });
}

/// Turns a published inline volume into one that an earlier version published, or was killed while it did.
fn as_earlier_version(harness: &Harness, id: &VolumeId, published: bool) {
    let new = self::id(harness);
    let target = harness.kubelet("t");
    let (old_staging, staging) =
        (harness.state().join("inline").join(new.to_string()), harness.state().join("inline").join(id.to_string()));
    unmount(&target);
    unmount(&old_staging);
    harness.backend.disconnect(&new, None).unwrap();
    fs::remove_file(harness.backend.path(&new)).unwrap();
    harness.backend.names.lock().unwrap().clear();
    fs::rename(old_staging, &staging).unwrap();
    fs::rename(harness.journal(&new), harness.journal(id)).unwrap();
    let file = fs::File::options().read(true).write(true).open(harness.backend.path(id)).unwrap();
    let device = loopdev::attach(&file, &id.to_string(), false).unwrap().path;
    let source = harness.backend.connected(id, None).unwrap();
    if published {
        for place in [&staging, &target] {
            rustix::mount::mount(&device, place, "ext4", rustix::mount::MountFlags::empty(), None).unwrap();
        }
    }
    let phase = if published { "staged" } else { "staging" };
    let changes = [("id", json!(id)), ("staging", json!(staging)), ("source", json!(source)), ("phase", json!(phase))];
    harness.edit_journal(id, &changes);
    for name in names(&harness.journal(id)).iter().filter(|name| name.starts_with("target-")) {
        let path = harness.journal(id).join(name);
        let text = fs::read_to_string(&path).unwrap().replace(&new.to_string(), &id.to_string());
        fs::write(path, text).unwrap();
    }
}

#[test]
fn published_inline_volume_is_not_deleted_by_a_controller() {
    harness(|harness| {
        let node = harness.node();
        let publish = request(harness, &[("size", "16MiB")]);
        node.publish(&publish).unwrap();
        let id = id(harness);
        let own = Controller::new(harness.registry(), Locks::default(), Some(node.clone()));
        let elsewhere = Controller::new(harness.registry(), Locks::default(), None);
        for controller in [&own, &elsewhere] {
            let error = controller.delete(&id).unwrap_err();
            assert!(matches!(error, Error::InUse { .. }) && error.to_string().contains("node n1"), "{error}");
        }
        assert_eq!(own.get(&id).unwrap().published, [node.id().clone()]);
        node.unpublish(&publish.handle, &publish.target).unwrap();
        assert_eq!(elsewhere.delete(&id).unwrap(), Outcome::Unchanged(()));
        drop((own, node));
        assert_rolled_back(harness);
    });
}

#[test]
fn attributes_that_outlive_the_pod_or_the_limit_are_refused_and_earlier_volumes_stay() {
    harness(|harness| {
        let handle = Handle::Name(NAME.to_owned());
        let small = request(harness, &[("size", "32MiB")]);
        harness.node().publish(&small).unwrap();

        harness.inline_max_size.store(16 << 20, Ordering::SeqCst);
        let node = harness.node();
        assert_eq!(node.publish(&small).unwrap(), Outcome::Unchanged(()), "it was published under an earlier limit");
        unpublish_handle(&node, &handle, harness);
        assert_rolled_back(harness);
        harness.backend.names.lock().unwrap().clear();

        let error = node.publish(&small).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { field: "volume_context.size", .. }) && is_final(&error), "{error}");
        let text = error.to_string();
        assert!(text.contains("32 MiB") && text.contains("16 MiB") && text.contains("inlineMaxSize"), "{text}");
        let by_default = node.publish(&request(harness, &[])).unwrap_err();
        assert!(by_default.to_string().contains("1 GiB"), "the size that is not given counts: {by_default}");
        for value in ["delete", "retain", "archive", "anything"] {
            let error = node.publish(&request(harness, &[("size", "16MiB"), ("onDelete", value)])).unwrap_err();
            assert!(matches!(&error, Error::Invalid { field: "volume_context.onDelete", .. }) && is_final(&error), "{error}");
        }
        for (key, value) in [("encryption", "luks2"), ("preallocate", "true"), ("pool", "other"), ("anything", "x")] {
            let error = node.publish(&request(harness, &[("size", "16MiB"), (key, value)])).unwrap_err();
            assert!(matches!(&error, Error::Invalid { field: "volume_context", .. }) && is_final(&error), "{error}");
            let text = error.to_string();
            assert!(
                text.contains(&format!("parameter {key} is not allowed")) && text.contains("allowInlineParameters"),
                "{text}"
            );
        }
        assert!(harness.backend.names.lock().unwrap().is_empty());
        assert_rolled_back(harness);
        node.publish(&request(harness, &[("size", "16MiB")])).unwrap();
        unpublish_handle(&node, &handle, harness);
        assert_rolled_back(harness);
    });
}

fn unpublish_handle(node: &Node, handle: &Handle, harness: &Harness) {
    node.unpublish(handle, &harness.kubelet("t")).unwrap();
}

#[test]
fn volume_of_a_backend_that_left_the_configuration_is_deleted_once_that_is_back() {
    harness(|harness| {
        let handle = Handle::Name(NAME.to_owned());
        harness.node().publish(&request(harness, &[("size", "16MiB")])).unwrap();
        let node = harness.node_without_backend();
        for _ in 0..2 {
            let error = node.unpublish(&handle, &harness.kubelet("t")).unwrap_err();
            assert!(matches!(&error, Error::BackendUnavailable { backend, .. } if backend == "files"), "{error}");
        }
        drop(node);
        unpublish_handle(&harness.node(), &handle, harness);
        assert_rolled_back(harness);
    });
}

//! Ephemeral inline volumes.

use std::collections::BTreeMap;
use std::fs;

use longshore::ops::node::{Handle, PublishRequest};
use longshore::volume::{Error, Outcome, Secrets, VolumeId};
use serde_json::json;

use crate::world::{World, filesystem, is_final, mounts_at, names, world};

const NAME: &str = "csi-0123456789abcdef";

fn request(world: &World, attributes: &[(&str, &str)]) -> PublishRequest {
    let mut volume_context = BTreeMap::from([("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned())]);
    volume_context.extend(attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    PublishRequest {
        handle: Handle::Name(NAME.to_owned()),
        staging: None,
        target: world.kubelet("t"),
        capability: filesystem(None),
        read_only: false,
        volume_context,
        publish_context: BTreeMap::new(),
        secrets: Secrets::default(),
    }
}

fn id() -> VolumeId {
    VolumeId::derive(&"files".parse().unwrap(), NAME)
}

fn assert_nothing_left(world: &World) {
    world.assert_gone(&id());
    assert!(!world.backend.path(&id()).exists(), "the volume is left");
    assert!(names(&world.state().join("inline")).is_empty());
    assert!(!world.kubelet("t").exists());
}

#[test]
fn it_lives_from_publish_to_unpublish() {
    world(|world| {
        let node = world.node();
        let handle = Handle::Name(NAME.to_owned());
        let publish = request(world, &[("size", "16MiB"), ("fsType", "ext4"), ("discard", "true"), ("backend", "files")]);
        assert_eq!(node.publish(&publish).unwrap(), Outcome::Changed(()));
        assert_eq!(node.publish(&publish).unwrap(), Outcome::Unchanged(()));
        let mount = &mounts_at(&publish.target)[0];
        assert!(mount.fstype == "ext4" && mount.super_options.iter().any(|option| option == "discard"), "{mount:?}");
        fs::write(publish.target.join("x"), "x").unwrap();
        assert_eq!(fs::metadata(world.backend.path(&id())).unwrap().len(), 16 << 20);
        assert!(node.stats(&handle, &publish.target).unwrap().total > 0);
        assert!(node.health(&handle, Some(&publish.target), None).unwrap().is_empty());
        assert_eq!(node.unpublish(&handle, &publish.target).unwrap(), Outcome::Changed(()));
        assert_eq!(node.unpublish(&handle, &publish.target).unwrap(), Outcome::Unchanged(()));
        assert_nothing_left(world);
    });
}

#[test]
fn a_name_that_looks_like_an_id_is_a_name_too() {
    world(|world| {
        let node = world.node();
        let handle = Handle::Id("files:odd".parse().unwrap());
        let publish = PublishRequest { handle: handle.clone(), ..request(world, &[("size", "16MiB")]) };
        node.publish(&publish).unwrap();
        node.unpublish(&handle, &publish.target).unwrap();
        assert!(names(&world.state().join("journal")).is_empty());
        assert!(!publish.target.exists());
    });
}

#[test]
fn a_wrong_attribute_leaves_nothing() {
    world(|world| {
        let node = world.node();
        for attributes in [[("size", "1KiB")], [("sice", "1GiB")], [("fsType", "ntfs")], [("backend", "none")]] {
            let error = node.publish(&request(world, &attributes)).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. } | Error::OutOfRange { .. }), "{attributes:?}: {error}");
            assert_nothing_left(world);
        }
        // Refused late, by mkfs.
        let error = node.publish(&request(world, &[("size", "16MiB"), ("mkfsOptions", "-O no_such_feature")])).unwrap_err();
        assert!(is_final(&error), "{error}");
        assert_nothing_left(world);
    });
}

#[test]
fn one_that_was_cut_off_is_gone_after_the_start() {
    world(|world| {
        let node = world.node();
        let publish = request(world, &[("size", "16MiB")]);
        node.publish(&publish).unwrap();
        rustix::mount::unmount(&publish.target, rustix::mount::UnmountFlags::empty()).unwrap();
        drop(node);
        world.edit_journal(&id(), &[("phase", json!("staging"))]);
        let node = world.node();
        assert_nothing_left(world);
        assert_eq!(node.unpublish(&publish.handle, &publish.target).unwrap(), Outcome::Unchanged(()));
    });
}

//! Images as loop devices.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use longshore::backend::image::{ImageBackend, Role};
use longshore::backend::{self, Backend, BlockDevice, ConnectRequest, Source};
use longshore::os::block::Device;
use longshore::os::fs::{Contents, probe};
use longshore::os::loopdev;
use longshore::volume::{Bytes, Error, MountFlags, Outcome, Secrets, VolumeId};

use crate::harness::*;

fn connect(backend: &ImageBackend, id: &VolumeId) -> longshore::volume::Result<Outcome<Source>> {
    let parameters = serde_json::Value::Null;
    let context = BTreeMap::new();
    let request = ConnectRequest {
        id,
        parameters: &parameters,
        publish_context: &context,
        secrets: &Secrets::default(),
        mount_flags: &MountFlags::default(),
        read_only: false,
        earlier: None,
    };
    backend.connect().connect(&request)
}

fn device(source: &Source) -> BlockDevice {
    match source {
        Source::Device(device) => device.clone(),
        Source::Filesystem { .. } | Source::Directory(_) => panic!("{source:?} is no device"),
    }
}

/// Lets go of a volume's device also when the test fails.
struct Connected<'a>(&'a dyn backend::Connect, VolumeId, Source);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.disconnect(&self.1, Some(&self.2)) {
            eprintln!("{error}");
        }
    }
}

fn size(device: &BlockDevice) -> u64 {
    run("blockdev", &["--getsize64", device.path.to_str().expect("a name")]).parse().expect("a number")
}

#[test]
fn a_volume_is_connected_once_and_found_by_identity() {
    let directory = directory();
    let provisioner = open_at(directory.path());
    let node = ImageBackend::open(config(vec![pool("p", directory.path())]), Role { provision: false }).expect("opens");
    let (v, w) = (volume_id("v"), volume_id("w"));
    for id in ["v", "w"] {
        create(&provisioner, id, 8 * MIB);
    }
    let image = directory.path().join("volumes/v/image");
    let node_side = node.connect();
    assert!(matches!(connect(&node, &volume_id("none")).expect_err("none"), Error::NotFound { .. }));

    let Outcome::Changed(source) = connect(&node, &v).expect("connected") else { panic!("not connected before") };
    let _v = Connected(node_side, v.clone(), source.clone());
    let Outcome::Changed(other) = connect(&node, &w).expect("connected") else { panic!("not connected before") };
    let _w = Connected(node_side, w.clone(), other.clone());
    let found = device(&source);
    let stat = fs::metadata(&image).expect("the image");
    assert!(found.identity.ends_with(&format!(" {}@{}", stat.ino(), stat.dev())), "{}", found.identity);
    assert_eq!(size(&found), 8 * MIB);
    let probed = || {
        let open = Device::open(&found.path, false).expect("a device");
        probe(&open, node_side.backing_file(&v, &open).expect("looked").as_ref().into()).expect("a size")
    };
    assert_eq!(probed(), Contents::Blank);
    let others = Device::open(&device(&other).path, false).expect("a device");
    assert!(matches!(node_side.backing_file(&v, &others).expect_err("another's"), Error::Unverified { .. }));

    assert_eq!(connect(&node, &v).expect("again"), Outcome::Unchanged(source.clone()));
    assert_eq!(node_side.connected(&v, None).expect("looked"), Some(source.clone()));
    assert_eq!(node_side.connected(&v, Some(&source)).expect("looked"), Some(source.clone()));
    assert_eq!(node_side.connected(&v, Some(&other)).expect("looked"), Some(source.clone()), "a wrong hint is not believed");

    let block = File::options().write(true).open(&found.path).expect("the device");
    block.write_all_at(&[9; 4096], 4096).expect("written");
    block.sync_all().expect("synced");
    drop(block);
    assert!(holds(&image, 4096, 4096, 9));
    assert!(matches!(probed(), Contents::Unknown(_)));
    assert!(node_side.used(&v).expect("looked").expect("known") >= Bytes(4096));

    provisioner.expand().expect("expands").expand(&v, Bytes(16 * MIB)).expect("expanded");
    assert_eq!(node_side.refresh(&v, &source).expect("refreshed"), Bytes(16 * MIB));
    assert_eq!(size(&found), 16 * MIB);
    assert!(node_side.refresh(&v, &other).is_err());

    let error = provision(&provisioner).delete(&v).expect_err("in use");
    assert!(matches!(error, Error::InUse { .. }), "{error}");

    assert_eq!(node_side.disconnect(&v, None).expect("disconnected"), Outcome::Changed(()));
    assert_eq!(node_side.disconnect(&v, Some(&source)).expect("again"), Outcome::Unchanged(()));
    assert_eq!(node_side.connected(&v, Some(&source)).expect("looked"), None);
    assert_eq!(loopdev::find((stat.dev(), stat.ino()), Path::new("volumes/v/image")).expect("looked"), []);
    assert_eq!(node_side.connected(&w, None).expect("looked"), Some(other), "the other one stays");
    provision(&provisioner).delete(&v).expect("deleted");
}

#[test]
fn all_devices_of_an_image_are_let_go() {
    let directory = directory();
    let backend = open_at(directory.path());
    create(&backend, "v", 2 * MIB);
    let id = volume_id("v");
    let source = connect(&backend, &id).expect("connected").into_inner();
    let _guard = Connected(backend.connect(), id.clone(), source.clone());
    let image = File::options().read(true).write(true).open(directory.path().join("volumes/v/image")).expect("opens");
    let second = loopdev::attach(&image, "a stray", false).expect("attached");
    assert!(backend.connect().connected(&id, None).expect("looked").is_some());
    backend.connect().disconnect(&id, Some(&source)).expect("disconnected");
    assert_eq!(loopdev::find(second.backing, Path::new("volumes/v/image")).expect("looked"), []);
}

#[test]
fn a_device_whose_volume_is_gone_is_let_go_by_the_hint() {
    let directory = directory();
    let backend = open_at(directory.path());
    create(&backend, "v", 2 * MIB);
    create(&backend, "w", 2 * MIB);
    let id = volume_id("v");
    let source = connect(&backend, &id).expect("connected").into_inner();
    let _guard = Connected(backend.connect(), id.clone(), source.clone());
    let other = connect(&backend, &volume_id("w")).expect("connected").into_inner();
    let _other = Connected(backend.connect(), volume_id("w"), other.clone());
    let gone = directory.path().join("volumes/v");
    fs::remove_file(gone.join("image")).expect("removed");
    fs::remove_file(gone.join("meta.json")).expect("removed");
    fs::remove_dir(&gone).expect("removed");
    assert_eq!(backend.connect().connected(&id, Some(&source)).expect("looked"), Some(source.clone()));
    assert_eq!(backend.connect().connected(&id, Some(&other)).expect("looked"), None, "that is another volume's");
    assert_eq!(backend.connect().disconnect(&id, Some(&other)).expect("nothing to do"), Outcome::Unchanged(()));
    assert_eq!(backend.connect().disconnect(&id, Some(&source)).expect("disconnected"), Outcome::Changed(()));
    assert_eq!(backend.connect().connected(&id, Some(&source)).expect("looked"), None);
    assert!(backend.connect().connected(&volume_id("w"), None).expect("looked").is_some());
}

#[test]
fn a_read_only_pool_gives_read_only_devices() {
    isolated(|| {
        let disk = Disk::new(Kind::Ext4, 64);
        let backend = open_at(&disk.pool());
        create(&backend, "v", 4 * MIB);
        disk.remount(true);
        let source = connect(&backend, &volume_id("v")).expect("connected").into_inner();
        let guard = Connected(backend.connect(), volume_id("v"), source.clone());
        assert_eq!(run("blockdev", &["--getro", device(&source).path.to_str().expect("a name")]), "1");
        drop(guard);
    });
}

#[test]
fn device_that_an_older_version_has_connected_is_the_one_that_it_was() {
    let directory = directory();
    let backend = open_at(directory.path());
    create(&backend, "v", 2 * MIB);
    let id = volume_id("v");
    let now = connect(&backend, &id).expect("connected").into_inner();
    let _guard = Connected(backend.connect(), id.clone(), now.clone());
    let stat = fs::metadata(directory.path().join("volumes/v/image")).expect("an image");
    let named = |identity: String| Source::Device(BlockDevice { identity, ..device(&now) });
    let then = named(format!("{}:{}", stat.dev(), stat.ino()));
    assert_eq!(backend.connect().connected(&id, Some(&then)).expect("looked"), Some(then.clone()));
    assert!(backend.connect().is_same_device(&then).expect("looked"));
    for other in [format!("{}:{}", stat.dev(), stat.ino() + 1), device(&now).identity.replace('@', "1@")] {
        let other = named(other);
        assert!(!backend.connect().is_same_device(&other).expect("looked"));
        assert_eq!(backend.connect().connected(&id, Some(&other)).expect("looked"), Some(now.clone()), "never believed");
    }
    assert_eq!(backend.connect().disconnect(&id, Some(&then)).expect("disconnected"), Outcome::Changed(()));
}

/// As after a boot without the pool's disk: pods that had the volume are taken down all the same.
#[test]
fn volume_of_a_pool_that_is_away_is_not_connected_where_no_device_shows_it() {
    isolated(|| {
        let disk = Disk::new(Kind::Ext4, 64);
        let backend = open_at(&disk.pool());
        create(&backend, "v", 8 * MIB);
        let id = volume_id("v");
        let source = connect(&backend, &id).expect("connected").into_inner();
        let node = backend.connect();
        let held = Connected(node, id.clone(), source.clone());
        disk.unmount();
        // Its device keeps the file system.
        assert!(matches!(node.connected(&id, None), Err(Error::BackendUnavailable { .. })));
        assert!(matches!(node.disconnect(&id, None), Err(Error::BackendUnavailable { .. })));
        assert_eq!(node.connected(&id, Some(&source)).expect("by its journal"), Some(source.clone()));
        drop(held);
        assert_eq!(node.connected(&id, None).expect("nothing shows it"), None);
        assert_eq!(node.disconnect(&id, None).expect("nothing shows it"), Outcome::Unchanged(()));
    });
}

//! What a node remembers of an image from boot to boot: it is the same one by its pool and volume, whatever number the pool's file system has
//! got; and a volume that was made anew under the same id is another.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use longshore::backend::{Backend, ConnectRequest, Source};
use longshore::os::block::Device;
use longshore::os::fs::Mark;
use longshore::os::fs::mark::Purpose;
use longshore::os::loopdev;
use longshore::volume::{FsType, MountFlags};

use crate::harness::*;
use crate::shared::Driver;

/// The lasting identity of volume `v`.
fn lasting(backend: &dyn Backend) -> String {
    let (parameters, context, secrets) = (serde_json::Value::Null, Default::default(), Default::default());
    let id = volume_id("v");
    let request = ConnectRequest {
        id: &id,
        parameters: &parameters,
        publish_context: &context,
        secrets: &secrets,
        mount_flags: &MountFlags::default(),
        read_only: false,
        earlier: None,
    };
    let source = backend.connect().connect(&request).expect("connected").into_inner();
    backend.connect().disconnect(&id, Some(&source)).expect("disconnected");
    match source {
        Source::Device(device) => device.lasting_identity().to_owned(),
        other => panic!("{other:?} is no device"),
    }
}

#[test]
fn identity_of_an_image_outlasts_a_boot_but_not_its_volume() {
    for kind in [Kind::Ext4, Kind::Btrfs] {
        isolated(move || {
            let mut disk = Disk::new(kind, 256);
            let image = disk.pool().join("volumes/v/image");
            let backend = open_at(&disk.pool());
            create(&backend, "v", 16 * MIB);
            let (first, number) = (lasting(&backend), fs::metadata(&image).expect("an image").dev());
            drop(backend);
            disk.renumber();
            assert_ne!(fs::metadata(&image).expect("an image").dev(), number, "{kind:?}: the test's own ground");
            let backend = open_at(&disk.pool());
            assert_eq!(lasting(&backend), first, "{kind:?}");
            provision(&backend).delete(&volume_id("v")).expect("deleted");
            create(&backend, "v", 16 * MIB);
            assert_ne!(lasting(&backend), first, "{kind:?}");
        });
    }
}

/// A node with a pool on a disk, and a volume `v` whose mkfs was interrupted.
struct Interrupted {
    driver: Driver,
    disk: Disk,
    directory: tempfile::TempDir,
}

const ID: &str = "image:v";

impl Interrupted {
    fn new(kind: Kind) -> Interrupted {
        let (disk, directory) = (Disk::new(kind, 256), directory());
        let pools = format!("pools: [{{name: default, path: {}}}]", disk.pool().display());
        fs::write(directory.path().join("config.yaml"), format!("backends: [{{name: image, type: image, {pools}}}]\n"))
            .expect("written");
        fs::write(directory.path().join("boot"), "11111111-2222-3333-4444-555555555555\n").expect("a boot id");
        let driver = Driver::new(directory.path(), "node-a");
        let mut node = Interrupted { driver, disk, directory };
        node.driver.start("all", None);
        node.driver.call(&["create-volume", "--name=v", "--size=16MiB", "--fs=ext4"]);
        node.driver.call(&["stage-volume", ID, "--fs=ext4", &node.driver.staging()]);
        node.driver.kill();
        node.detach();
        let image = File::options().write(true).open(node.image()).expect("an image");
        image.write_all_at(&[0; 1 << 20], 0).expect("written");
        image.write_all_at(&[0x5a; 4096], 8 << 20).expect("written");
        let device = loopdev::attach(&image, "v", false).expect("a device");
        let open = Device::open(&device.path, true).expect("opens");
        let mark = Mark::new(&open, Purpose::Filesystem(FsType::Ext4)).expect("a mark");
        mark.write(&open).expect("marked");
        drop(open);
        node.detach();
        let journal = node.driver.directory.join("state/journal").join(ID).join("stage.json");
        let mut entry: serde_json::Value = serde_json::from_slice(&fs::read(&journal).expect("a journal")).expect("JSON");
        entry["phase"] = "staging".into();
        entry["format"] = serde_json::json!({ "purpose": mark.purpose, "offset": mark.offset });
        fs::write(&journal, entry.to_string()).expect("written");
        node
    }

    fn image(&self) -> PathBuf {
        self.disk.pool().join("volumes/v/image")
    }

    /// As a boot does.
    fn detach(&self) {
        let stat = fs::metadata(self.image()).expect("an image");
        for device in loopdev::find((stat.dev(), stat.ino()), Path::new("volumes/v/image")).expect("a list") {
            loopdev::detach(&device.path, device.backing).expect("detached");
        }
    }

    fn boot(&mut self) {
        self.driver.start("all", Some(&self.directory.path().join("boot")));
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        self.driver.kill();
        self.detach();
    }
}

#[test]
fn interrupted_mkfs_is_completed_after_a_boot_that_renumbered_the_pool() {
    for kind in [Kind::Ext4, Kind::Btrfs] {
        isolated(move || {
            let mut node = Interrupted::new(kind);
            node.disk.renumber();
            node.boot();
            node.driver.call(&["stage-volume", ID, "--fs=ext4", &node.driver.staging()]);
            assert!(node.driver.is_mounted(), "{kind:?}");
            node.driver.shell("echo kept > data && sync");
            node.driver.call(&["unstage-volume", ID, &node.driver.staging()]);
            node.driver.call(&["stage-volume", ID, "--fs=ext4", &node.driver.staging()]);
            assert_eq!(node.driver.shell("cat data"), "kept", "{kind:?}: once only");
            node.driver.call(&["unstage-volume", ID, &node.driver.staging()]);
        });
    }
}

#[test]
fn volume_made_anew_is_not_formatted_for_the_interrupted_mkfs_of_the_one_before() {
    isolated(|| {
        let mut node = Interrupted::new(Kind::Ext4);
        let before = fs::metadata(node.image()).expect("an image");
        // By another controller.
        let backend = open_at(&node.disk.pool());
        provision(&backend).delete(&volume_id("v")).expect("deleted");
        create(&backend, "v", 16 * MIB);
        drop(backend);
        let now = fs::metadata(node.image()).expect("an image");
        if (before.dev(), before.ino()) != (now.dev(), now.ino()) {
            eprintln!("SKIPPED: the new image has another inode number, by which it is distinguished in any case");
            return;
        }
        run("mkfs.ext4", &["-qF", &node.image().display().to_string()]);
        let image = File::options().read(true).write(true).open(node.image()).expect("an image");
        image.write_all_at(b"precious", (16 << 20) - 4096).expect("written");
        node.boot();
        let staged = node.driver.output(&["stage-volume", ID, "--fs=ext4", &node.driver.staging()]);
        node.driver.output(&["unstage-volume", ID, &node.driver.staging()]);
        let mut kept = [0; 8];
        image.read_exact_at(&mut kept, (16 << 20) - 4096).expect("read");
        assert_eq!(&kept, b"precious", "{}", String::from_utf8_lossy(&staged.stderr));
        assert!(staged.status.success(), "{}", String::from_utf8_lossy(&staged.stderr));
    });
}

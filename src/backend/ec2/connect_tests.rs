//! Loop devices stand in for disks: they come late, under another name, or with another volume's serial number.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::backend::Connect;
use crate::os::loopdev::{self, Loop};
use crate::volume::{Bytes, MountFlags, Outcome, Secrets, VolumeId};

use super::*;

const ONE: &str = "vol-0123456789abcdef0";
const OTHER: &str = "vol-0fedcba9876543210";
const SOON: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(60);

/// Loop devices, and the directory that says which disks they stand for.
struct Lab {
    directory: tempfile::TempDir,
    node: Node,
}

/// A loop device that goes with it.
struct Disk {
    device: Loop,
    backing: File,
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = loopdev::detach(&self.device.path, self.device.backing);
    }
}

impl Disk {
    fn name(&self) -> &str {
        self.device.path.file_name().and_then(|name| name.to_str()).expect("a name")
    }
}

impl Lab {
    fn new(patience: Duration) -> Lab {
        let directory = tempfile::tempdir().expect("a directory");
        let disks = Disks::stand_in(directory.path().to_owned());
        let node = Node { patience, ..Node::new(None, &Limits::default(), disks) };
        Lab { directory, node }
    }

    /// `None`, and said, where this machine has no loop devices for us.
    fn disk(&self, size: u64) -> Option<Disk> {
        let backing = tempfile::tempfile_in(self.directory.path()).expect("a file");
        backing.set_len(size).expect("a size");
        match loopdev::attach(&backing, "stand-in", false) {
            Ok(device) => Some(Disk { device, backing }),
            Err(error) => {
                eprintln!("SKIPPED: EBS volumes on loop devices: {error}");
                None
            }
        }
    }

    fn put(&self, disk: &Disk, file: &str, text: &str) {
        let path = self.directory.path().join("block").join(disk.name()).join(file);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }

    /// The disk is this volume by sysfs, and that one by its controller.
    fn says(&self, disk: &Disk, sysfs: &str, controller: &str) {
        self.put(disk, "controller", &controller.replacen('-', "", 1));
        self.put(disk, "device/model", "Amazon Elastic Block Store\n");
        self.put(disk, "device/serial", &sysfs.replacen('-', "", 1));
        let (major, minor) = disk.device.number;
        self.put(disk, "dev", &format!("{major}:{minor}\n"));
    }

    fn is_xen(&self, disk: &Disk, sequence: u64) {
        self.put(disk, "device/devtype", "vbd\n");
        self.put(disk, "diskseq", &sequence.to_string());
        let (major, minor) = disk.device.number;
        self.put(disk, "dev", &format!("{major}:{minor}\n"));
    }

    fn gone(&self, disk: &Disk) {
        let directory = self.directory.path().join("block").join(disk.name());
        std::fs::remove_file(directory.join("dev")).expect("was there");
    }

    fn connect(&self, context: &[(&str, &str)], earlier: Option<&Source>) -> Result<Source> {
        self.connect_as(&id(), context, earlier)
    }

    fn connect_as(&self, id: &VolumeId, context: &[(&str, &str)], earlier: Option<&Source>) -> Result<Source> {
        let context: BTreeMap<_, _> = context.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = ConnectRequest {
            id,
            parameters: &serde_json::Value::Null,
            publish_context: &context,
            secrets: &Secrets::default(),
            mount_flags: &MountFlags::default(),
            read_only: false,
            earlier,
        };
        self.node.connect(&request).map(Outcome::into_inner)
    }
}

fn id() -> VolumeId {
    "ebs:a".parse().expect("an id")
}

fn device(source: &Source) -> &BlockDevice {
    match source {
        Source::Device(device) => device,
        other => panic!("{other:?}"),
    }
}

fn is(source: &Source, disk: &Disk) {
    let device = device(source);
    assert_eq!((&device.path, device.number), (&disk.device.path, disk.device.number));
}

#[test]
fn a_disk_that_comes_late_is_waited_for() {
    let lab = Lab::new(LONG);
    let Some(other) = lab.disk(1 << 20) else { return };
    lab.says(&other, OTHER, OTHER);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| lab.connect(&[(VOLUME, ONE), (DEVICE, "/dev/xvdba")], None));
        let late = lab.disk(2 << 20).expect("a second");
        assert!(!connecting.is_finished(), "it answered before the disk was there");
        lab.says(&late, ONE, ONE);
        let source = connecting.join().expect("no panic").expect("connected");
        is(&source, &late);
        assert_eq!(device(&source).identity, "nvme-vol0123456789abcdef0");
        assert_eq!(lab.node.refresh(&id(), &source).expect("a size"), Bytes(2 << 20));
        assert!(lab.node.is_same_device(&source).expect("looks"));
    });
}

#[test]
fn attached_disk_that_is_not_the_recorded_one_is_refused() {
    let lab = Lab::new(SOON);
    let error = lab.connect_as(&id().record(OTHER).expect("an id"), &[(VOLUME, ONE)], None).expect_err("another disk");
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(OTHER), "{error}");
    let Some(disk) = lab.disk(1 << 20) else { return };
    lab.says(&disk, ONE, ONE);
    lab.connect_as(&id().record(ONE).expect("an id"), &[(VOLUME, ONE)], None).expect("the recorded one");
}

#[test]
fn missing_device_is_reported_with_those_present() {
    let lab = Lab::new(SOON);
    let error = lab.connect(&[(VOLUME, ONE)], None).expect_err("no disk at all");
    assert!(error.to_string().contains("its disks, of which there are none"), "{error}");
    let Some(other) = lab.disk(1 << 20) else { return };
    lab.says(&other, OTHER, OTHER);
    let error = lab.connect(&[(VOLUME, ONE), (DEVICE, "/dev/xvdba")], None).expect_err("not there");
    assert!(matches!(error, Error::InProgress { .. }), "{error:?}");
    let text = error.to_string();
    let seen = format!("{} (vol0fedcba9876543210 Amazon Elastic Block Store)", other.name());
    assert!(text.contains(ONE) && text.contains(&seen), "{text}");
    // It is there, but the name in /dev is of another device.
    lab.says(&other, ONE, ONE);
    lab.put(&other, "dev", "259:77\n");
    let error = lab.connect(&[(VOLUME, ONE)], None).expect_err("another device");
    assert!(matches!(error, Error::InProgress { .. }) && error.to_string().contains("not in /dev"), "{error:?}");
}

#[test]
fn device_that_the_controller_denies_is_not_used() {
    let lab = Lab::new(SOON);
    let Some(disk) = lab.disk(1 << 20) else { return };
    lab.says(&disk, ONE, ONE);
    let source = lab.connect(&[(VOLUME, ONE)], None).expect("connected");
    // The disk of this name and number is another volume's by now, and sysfs does not know yet.
    lab.says(&disk, ONE, OTHER);
    let error = lab.connect(&[(VOLUME, ONE)], None).expect_err("another volume");
    assert!(matches!(error, Error::Unverified { .. }), "{error:?}");
    assert!(error.to_string().contains("its controller reports vol0fedcba9876543210"), "{error}");
    assert!(!lab.node.is_same_device(&source).expect("looks"));
    assert_eq!(lab.node.connected(&id(), Some(&source)).expect("looks"), None);
    assert!(matches!(lab.node.refresh(&id(), &source), Err(Error::Unverified { .. })));
    assert!(matches!(lab.node.disconnect(&id(), Some(&source)), Ok(Outcome::Unchanged(()))));
    // Nor is a disk that is none of NVMe's.
    std::fs::remove_file(lab.directory.path().join("block").join(disk.name()).join("controller")).expect("was there");
    assert!(matches!(lab.connect(&[(VOLUME, ONE)], None), Err(Error::InProgress { .. })));
}

#[test]
fn two_disks_of_one_volume_are_none() {
    let lab = Lab::new(SOON);
    let (Some(one), Some(two)) = (lab.disk(1 << 20), lab.disk(1 << 20)) else { return };
    lab.says(&one, ONE, ONE);
    let source = lab.connect(&[(VOLUME, ONE)], None).expect("one");
    lab.says(&two, ONE, ONE);
    let error = lab.connect(&[(VOLUME, ONE)], None).expect_err("two");
    assert!(matches!(error, Error::Unverified { .. }) && error.to_string().contains(two.name()), "{error:?}");
    assert_eq!(lab.node.connected(&id(), Some(&source)).expect("the one of before"), Some(source));
}

#[test]
fn a_volume_is_found_again_under_another_name() {
    let lab = Lab::new(SOON);
    let (Some(before), Some(after)) = (lab.disk(1 << 20), lab.disk(1 << 20)) else { return };
    lab.says(&before, ONE, ONE);
    let hint = lab.connect(&[(VOLUME, ONE)], None).expect("connected");
    assert_eq!(lab.node.connected(&id(), Some(&hint)).expect("looks").as_ref(), Some(&hint));
    lab.says(&before, OTHER, OTHER);
    assert_eq!(lab.node.connected(&id(), Some(&hint)).expect("looks"), None);
    lab.says(&after, ONE, ONE);
    let found = lab.node.connected(&id(), Some(&hint)).expect("looks").expect("is there");
    is(&found, &after);
    assert_eq!(device(&found).identity, device(&hint).identity);
    assert!(!lab.node.is_same_device(&hint).expect("looks"), "the old name is another volume's");
    // A call without publish_context ends what was begun with it.
    is(&lab.connect(&[], Some(&hint)).expect("as before"), &after);
    lab.gone(&after);
    let error = lab.connect(&[], Some(&hint)).expect_err("detached");
    assert!(matches!(error, Error::Unverified { .. }), "{error:?}");
    assert_eq!(lab.node.connected(&id(), None).expect("looks"), None);
}

#[test]
fn on_xen_a_disk_is_its_name_and_its_count() {
    let lab = Lab::new(SOON);
    let Some(disk) = lab.disk(1 << 20) else { return };
    let named = format!("/dev/{}", disk.name());
    let context = [(VOLUME, ONE), (DEVICE, named.as_str())];
    assert!(matches!(lab.connect(&context, None), Err(Error::InProgress { .. })), "a name alone is nothing");
    lab.is_xen(&disk, 41);
    let source = lab.connect(&context, None).expect("connected");
    is(&source, &disk);
    assert_eq!(device(&source).identity, format!("xen-vol0123456789abcdef0-{}-41", disk.name()));
    assert!(lab.node.is_same_device(&source).expect("looks"));
    assert_eq!(lab.node.refresh(&id(), &source).expect("a size"), Bytes(1 << 20));
    // Detached, and another volume attached by the same name.
    lab.is_xen(&disk, 42);
    assert!(!lab.node.is_same_device(&source).expect("looks"));
    assert_eq!(lab.node.connected(&id(), Some(&source)).expect("looks"), None);
    assert!(matches!(lab.connect(&[], Some(&source)), Err(Error::Unverified { .. })));
    // Where disks say who they are, a name means nothing.
    lab.says(&disk, OTHER, OTHER);
    let Some(nvme) = lab.disk(1 << 20) else { return };
    lab.says(&nvme, ONE, ONE);
    is(&lab.connect(&context, None).expect("by its serial number"), &nvme);
}

#[test]
fn device_is_flushed_before_it_is_disconnected() {
    let lab = Lab::new(SOON);
    let Some(disk) = lab.disk(1 << 20) else { return };
    lab.says(&disk, ONE, ONE);
    let source = lab.connect(&[(VOLUME, ONE)], None).expect("connected");
    // As a pod that never syncs.
    let pod = File::options().write(true).open(&disk.device.path).expect("opens");
    pod.write_all_at(b"the last words", 4096).expect("writes");
    lab.node.disconnect(&id(), Some(&source)).expect("flushes");
    let mut bytes = [0; 14];
    disk.backing.read_exact_at(&mut bytes, 4096).expect("reads");
    assert_eq!(&bytes, b"the last words");
}

/// A mount may outlive its device, and must be known for what it was.
#[test]
fn a_number_that_is_nobodys_is_still_its_own() {
    let lab = Lab::new(SOON);
    let identity = "nvme-vol0123456789abcdef0".to_owned();
    let gone = BlockDevice { path: "/dev/nvme99n1".into(), number: (259, 999_999), identity };
    let source = Source::Device(gone.clone());
    assert!(lab.node.is_same_device(&source).expect("looks"));
    assert_eq!(lab.node.connected(&id(), Some(&source)).expect("looks"), None);
    assert!(matches!(lab.node.disconnect(&id(), Some(&source)), Ok(Outcome::Unchanged(()))));
    assert!(
        !lab.node.is_same_device(&Source::Device(BlockDevice { identity: "7:12".to_owned(), ..gone })).expect("none of ours")
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let lab = Lab::new(LONG);
    for context in [
        &[][..],
        &[(DEVICE, "/dev/xvdba")],
        &[(VOLUME, "")],
        &[(VOLUME, "snap-0123456789abcdef0")],
        &[(VOLUME, "vol-0123/../x")],
        &[(VOLUME, ONE), (DEVICE, "/dev/../etc/passwd")],
        &[(VOLUME, ONE), (DEVICE, "/dev/")],
    ] {
        let error = lab.connect(context, None).expect_err("refused");
        assert!(error.to_string().starts_with("publish_context: "), "{context:?}: {error:?}");
    }
    let other = Source::Device(BlockDevice { path: "/dev/loop0".into(), number: (7, 0), identity: "7:12".to_owned() });
    assert!(matches!(lab.connect(&[], Some(&other)), Err(Error::Invalid { .. })));
}

#[test]
fn an_identity_is_read_as_it_was_written() {
    let wanted = |name: Option<&str>, sequence| Wanted { serial: "vol0123".to_owned(), name: name.map(str::to_owned), sequence };
    assert_eq!(Wanted::parse(&wanted(None, None).identity()), Some(wanted(None, None)));
    for sequence in [None, Some(7)] {
        let whole = wanted(Some("xvdba"), sequence);
        assert_eq!(Wanted::parse(&whole.identity_on_xen("xvdba")), Some(whole));
    }
    for identity in
        ["", "nvme", "nvme-", "nvme-vol", "nvme-vol0123-xvda", "xen-vol0123", "xen-vol0123-xvda-x", "scsi-vol0123", "7:12"]
    {
        assert_eq!(Wanted::parse(identity), None, "{identity}");
    }
    for (device, name) in [("/dev/xvdba", "xvdba"), ("/dev/sdf", "xvdf"), ("xvdf", "xvdf"), ("/dev/sdba", "xvdba")] {
        assert_eq!(name_on_xen(device).expect(device), name);
    }
    assert_eq!(wanted(None, None).volume(), "vol-0123");
}

//! Raw block volumes.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use longshore::ops::lock::{Key, Locks};
use longshore::ops::node::{ExpandRequest, Handle, PublishRequest};
use longshore::os::{loopdev, udev};
use longshore::volume::{AccessMode, Bytes, Capability, Error, Outcome, VolumeId};
use rustix::io::Errno;

use crate::harness::{
    Harness, block, filesystem, harness, is_final, mounts_at, publish_request, stage_request, unmount, unpublish, unstage,
};

/// Whether the kernel takes a write through this node.
fn takes_writes(path: &Path) -> bool {
    let Ok(mut file) = File::options().write(true).open(path) else { return false };
    file.write_all(&[7; 4096]).and_then(|()| file.sync_all()).is_ok()
}

#[test]
fn volume_is_unpublished_and_unstaged_while_the_id_of_the_node_is_not_known() {
    harness(|harness| {
        harness.backend.unnamed.store(true, Ordering::SeqCst);
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(8));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        node.stage(&stage_request(&id, &staging, &block())).unwrap();
        node.publish(&publish_request(&id, &staging, &target, &block())).unwrap();
        assert!(matches!(node.info(), Err(Error::BackendUnavailable { .. })), "NodeGetInfo waits for it");
        assert_eq!(unpublish(&node, &id, &target).unwrap(), Outcome::Changed(()));
        assert_eq!(unstage(&node, &id, &staging).unwrap(), Outcome::Changed(()));
        assert!(!target.exists() && harness.device(&id).is_none());
    });
}

#[test]
fn a_device_is_shown_at_its_target_and_leaves_nothing() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(8));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let stage = stage_request(&id, &staging, &block());
        let publish = publish_request(&id, &staging, &target, &block());
        assert_eq!(node.stage(&stage).unwrap(), Outcome::Changed(()));
        assert_eq!(node.stage(&stage).unwrap(), Outcome::Unchanged(()));
        assert_eq!(node.staged(&[&id]).unwrap(), std::slice::from_ref(&id));
        assert_eq!(node.publish(&publish).unwrap(), Outcome::Changed(()));
        assert_eq!(node.publish(&publish).unwrap(), Outcome::Unchanged(()));

        let device = harness.device(&id).unwrap();
        let stat = fs::metadata(&target).unwrap();
        assert!(stat.file_type().is_block_device());
        assert_eq!(stat.rdev(), fs::metadata(device).unwrap().rdev());
        assert_eq!(mounts_at(&target).len(), 1);
        assert!(takes_writes(&target));
        let mut first = [0; 1];
        File::open(harness.backend.path(&id)).unwrap().read_exact_at(&mut first, 0).unwrap();
        assert_eq!(first, [7], "what a pod writes reaches the image");
        let stats = node.stats(&Handle::Id(id.clone()), &target).unwrap();
        assert_eq!((stats.total, stats.inodes), (8 << 20, None));

        assert!(node.in_use(&id).unwrap().unwrap().contains("staged"));
        assert!(matches!(unstage(&node, &id, &staging), Err(Error::InUse { .. })));
        assert_eq!(unpublish(&node, &id, &target).unwrap(), Outcome::Changed(()));
        assert_eq!(unpublish(&node, &id, &target).unwrap(), Outcome::Unchanged(()));
        assert!(!target.exists());
        assert_eq!(unstage(&node, &id, &staging).unwrap(), Outcome::Changed(()));
        assert_eq!(unstage(&node, &id, &staging).unwrap(), Outcome::Unchanged(()));
        assert!(staging.exists(), "the staging directory is the CO's");
        assert_eq!(node.in_use(&id).unwrap(), None);
        harness.assert_gone(&id);
    });
}

#[test]
fn a_read_only_device_refuses_writes() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(8));
        let staging = harness.staging("s");
        node.stage(&stage_request(&id, &staging, &block())).unwrap();
        let at = |name: &str, read_only| PublishRequest {
            read_only,
            ..publish_request(&id, &staging, &harness.kubelet(name), &block())
        };
        node.publish(&at("ro1", true)).unwrap();
        node.publish(&at("ro2", true)).unwrap();
        assert!(!takes_writes(&harness.kubelet("ro1")));
        let error = node.publish(&at("rw", false)).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }) && error.to_string().contains("kubelet/ro"), "{error}");
        assert!(!harness.kubelet("rw").exists(), "a refusal leaves nothing");
        assert!(matches!(node.publish(&at("ro1", false)), Err(Error::Conflict { .. } | Error::InUse { .. })));

        unpublish(&node, &id, &harness.kubelet("ro1")).unwrap();
        assert!(!takes_writes(&harness.kubelet("ro2")), "one read-only target is left");
        unpublish(&node, &id, &harness.kubelet("ro2")).unwrap();
        node.publish(&at("rw", false)).unwrap();
        assert!(takes_writes(&harness.kubelet("rw")));
        assert!(matches!(node.publish(&at("ro1", true)), Err(Error::InUse { .. })));
        unpublish(&node, &id, &harness.kubelet("rw")).unwrap();
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

#[test]
fn a_readers_volume_is_connected_read_only() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(8));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let reader = Capability { mode: AccessMode::SingleNodeReaderOnly, ..block() };
        node.stage(&stage_request(&id, &staging, &reader)).unwrap();
        node.publish(&publish_request(&id, &staging, &target, &reader)).unwrap();
        assert!(!takes_writes(&target));
        assert!(!takes_writes(&harness.device(&id).unwrap()), "the loop device itself");
        unpublish(&node, &id, &target).unwrap();
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

#[test]
fn a_single_writer_is_alone() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(8));
        let staging = harness.staging("s");
        let alone = Capability { mode: AccessMode::SingleNodeSingleWriter, ..block() };
        node.stage(&stage_request(&id, &staging, &alone)).unwrap();
        let at = |name: &str| publish_request(&id, &staging, &harness.kubelet(name), &alone);
        node.publish(&at("t1")).unwrap();
        assert_eq!(node.publish(&at("t1")).unwrap(), Outcome::Unchanged(()));
        let error = node.publish(&at("t2")).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        assert!(!harness.kubelet("t2").exists());
        unpublish(&node, &id, &harness.kubelet("t1")).unwrap();
        node.publish(&at("t2")).unwrap();
    });
}

#[test]
fn a_device_grows_while_it_is_published() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(8));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        node.stage(&stage_request(&id, &staging, &block())).unwrap();
        node.publish(&publish_request(&id, &staging, &target, &block())).unwrap();
        let expand = |required| {
            node.expand(&ExpandRequest {
                handle: id.clone().into(),
                path: target.clone(),
                staging: Some(staging.clone()),
                required: Some(required),
                block: Some(true),
            })
        };
        assert!(matches!(expand(Bytes::mib(16)), Err(Error::OutOfRange { .. })));
        File::options().write(true).open(harness.backend.path(&id)).unwrap().set_len(16 << 20).unwrap();
        assert_eq!(expand(Bytes::mib(16)).unwrap(), Bytes::mib(16));
        assert_eq!(expand(Bytes::mib(16)).unwrap(), Bytes::mib(16));
        assert_eq!(node.stats(&Handle::Id(id.clone()), &target).unwrap().total, 16 << 20);
        let elsewhere =
            ExpandRequest { handle: id.into(), path: harness.kubelet("other"), staging: None, required: None, block: None };
        assert!(matches!(node.expand(&elsewhere), Err(Error::NotFound { .. })));
    });
}

#[test]
fn a_volume_that_does_not_exist_leaves_nothing() {
    harness(|harness| {
        let node = harness.node();
        let id = "files:none".parse().unwrap();
        let staging = harness.staging("s");
        let error = node.stage(&stage_request(&id, &staging, &block())).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }) && is_final(&error), "{error}");
        harness.assert_gone(&id);
        let unknown = "other:none".parse().unwrap();
        assert!(matches!(node.stage(&stage_request(&unknown, &staging, &block())), Err(Error::NotFound { .. })));
        assert_eq!(unstage(&node, &unknown, &staging).unwrap(), Outcome::Unchanged(()));
        assert!(matches!(node.stats(&Handle::Id(id), &staging), Err(Error::NotFound { .. })));
    });
}

#[test]
fn volume_is_published_only_as_it_is_staged() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(8));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let publish = publish_request(&id, &staging, &target, &block());
        assert!(matches!(node.publish(&publish), Err(Error::NotStaged { .. })));
        node.stage(&stage_request(&id, &staging, &block())).unwrap();
        let otherwise = publish_request(&id, &staging, &target, &filesystem(None));
        assert!(matches!(node.publish(&otherwise), Err(Error::Conflict { .. })));
        let elsewhere = publish_request(&id, &harness.staging("s2"), &target, &block());
        assert!(matches!(node.publish(&elsewhere), Err(Error::NotStaged { .. })));
        assert!(!target.exists());
    });
}

/// Takes the volume's loop device from the machine, node and all, as a disk that is pulled. The kernel removes the node below /dev.
fn pull(harness: &Harness, id: &VolumeId) {
    let path = harness.device(id).expect("connected");
    let number: u32 =
        path.to_str().and_then(|path| path.strip_prefix("/dev/loop")).expect("a loop device").parse().expect("a number");
    let stat = fs::metadata(harness.backend.path(id)).expect("stat");
    loopdev::detach(&path, (stat.dev(), stat.ino())).expect("detaches");
    let control = File::options().read(true).write(true).open("/dev/loop-control").expect("opens");
    // Other tests may have taken the free device meanwhile.
    let removed = || match remove_loop_device(&control, number) {
        Ok(()) => Ok(true),
        Err(Errno::BUSY) => Ok(false),
        Err(errno) => panic!("remove loop device {number}: {errno}"),
    };
    assert!(
        udev::wait_until(Instant::now().checked_add(Duration::from_secs(60)), removed).unwrap(),
        "loop device {number} stays"
    );
}

#[allow(unsafe_code, reason = "LOOP_CTL_REMOVE takes the number itself")]
fn remove_loop_device(control: &File, number: u32) -> Result<(), Errno> {
    const LOOP_CTL_REMOVE: libc::c_ulong = 0x4c81;
    // SAFETY: the argument is a number, no pointer.
    match unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_REMOVE as _, number) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

#[test]
fn published_device_that_was_removed_is_unpublished_and_unstaged() {
    // By the target's own record, after a restart, and by the stage's record, as forms 1 and 2 of the journal have it.
    for (restart, form) in [(false, 3), (true, 3), (true, 2), (true, 1)] {
        harness(|harness| {
            let node = harness.node();
            let id = harness.volume("a", Bytes::mib(8));
            let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
            node.stage(&stage_request(&id, &staging, &block())).unwrap();
            node.publish(&publish_request(&id, &staging, &target, &block())).unwrap();
            pull(harness, &id);
            let root = mounts_at(&target)[0].root.clone();
            assert!(root.to_str().unwrap().ends_with("//deleted"), "{}", root.display());
            if form < 3 {
                harness.edit_journal_entries(&id, |entry| {
                    entry["version"] = form.into();
                    entry.as_object_mut().unwrap().remove("device");
                });
            }
            let node = if restart { harness.node() } else { node };
            let error = unstage(&node, &id, &staging).unwrap_err();
            assert!(matches!(error, Error::InUse { .. }) && error.to_string().contains("unpublish it there"), "{error}");
            assert_eq!(unpublish(&node, &id, &target).unwrap(), Outcome::Changed(()));
            assert!(!target.exists());
            unstage(&node, &id, &staging).unwrap();
            harness.assert_gone(&id);
        });
    }
}

/// Another device's node at the target is not the volume's, whatever its own device was.
#[test]
fn device_of_another_volume_at_the_target_is_refused_and_left() {
    harness(|harness| {
        let node = harness.node();
        let (id, other) = (harness.volume("a", Bytes::mib(8)), harness.volume("b", Bytes::mib(8)));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        node.stage(&stage_request(&id, &staging, &block())).unwrap();
        node.stage(&stage_request(&other, &harness.staging("s2"), &block())).unwrap();
        node.publish(&publish_request(&id, &staging, &target, &block())).unwrap();
        unmount(&target);
        rustix::mount::mount_bind(harness.device(&other).unwrap(), &target).unwrap();
        assert!(matches!(unpublish(&node, &id, &target), Err(Error::InUse { .. })));
        assert!(matches!(node.publish(&publish_request(&id, &staging, &target, &block())), Err(Error::Conflict { .. })));
        assert_eq!(mounts_at(&target).len(), 1);
        let error = unstage(&node, &other, &harness.kubelet("s2")).unwrap_err();
        assert!(error.to_string().contains(target.to_str().unwrap()), "the device is found by its number: {error}");
    });
}

/// The publish names another mode than the stage: the stage's counts as well, so that two publishes cannot overlap.
#[test]
fn publish_of_a_single_writer_excludes_others_whatever_mode_it_names() {
    harness(|harness| {
        let locks = Locks::default();
        let node = harness.node_locked(locks.clone());
        let id = harness.volume("a", Bytes::mib(16));
        let staging = harness.staging("s");
        let alone = Capability { mode: AccessMode::SingleNodeSingleWriter, ..filesystem(None) };
        node.stage(&stage_request(&id, &staging, &alone)).unwrap();
        let publish = publish_request(&id, &staging, &harness.kubelet("t1"), &filesystem(None));
        // As another publish that runs.
        let other = locks.shared(Key::Volume(id.clone()), "publish").unwrap();
        assert!(matches!(node.publish(&publish), Err(Error::Busy { .. })));
        drop(other);
        node.publish(&publish).unwrap();
        let second = publish_request(&id, &staging, &harness.kubelet("t2"), &filesystem(None));
        assert!(matches!(node.publish(&second), Err(Error::InUse { .. })));
        unpublish(&node, &id, &harness.kubelet("t1")).unwrap();
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

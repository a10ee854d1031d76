//! What lies in the way: foreign and stacked mounts, links, paths outside.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use longshore::os;
use longshore::volume::{Bytes, Error, FsType, VolumeId};

use crate::harness::{
    Harness, block, filesystem, harness, is_final, mounts_at, publish_request, stage_request, tmpfs_on, total, unmount,
    unpublish, unstage,
};
use crate::holder::Holder;

#[test]
fn a_foreign_mount_on_the_staging_path_is_refused_and_left() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        let staging = harness.staging("s");
        tmpfs_on(&staging);
        for capability in [filesystem(None), block()] {
            let error = node.stage(&stage_request(&id, &staging, &capability)).unwrap_err();
            assert!(matches!(error, Error::InUse { .. }) && error.to_string().contains("umount"), "{error}");
        }
        assert!(matches!(unstage(&node, &id, &staging), Err(Error::InUse { .. })));
        assert_eq!(mounts_at(&staging).len(), 1);
        assert_eq!((harness.device(&id), harness.journal(&id).exists()), (None, false));
    });
}

#[test]
fn foreign_mounts_at_and_in_a_target_are_refused_and_left() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.staging("t"));
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        let publish = publish_request(&id, &staging, &target, &filesystem(None));
        tmpfs_on(&target);
        assert!(matches!(node.publish(&publish), Err(Error::Conflict { .. })));
        assert!(matches!(unpublish(&node, &id, &target), Err(Error::InUse { .. })));
        assert_eq!(mounts_at(&target)[0].fstype, "tmpfs");
        unmount(&target);

        node.publish(&publish).unwrap();
        let inside = target.join("inside");
        fs::create_dir(&inside).unwrap();
        tmpfs_on(&inside);
        let error = unpublish(&node, &id, &target).unwrap_err();
        assert!(error.to_string().contains("inside"), "{error}");
        unmount(&inside);
        unpublish(&node, &id, &target).unwrap();
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

/// A pod's author chooses the names in his volumes: a subPath of a tmpfs, bound by the kubelet, is no device node of ours.
#[test]
fn subpath_of_a_tmpfs_named_as_the_device_does_not_block_unstage() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        for (staging, capability) in [("s1", filesystem(None)), ("s2", block())] {
            let staging = harness.staging(staging);
            node.stage(&stage_request(&id, &staging, &capability)).unwrap();
            let device = harness.device(&id).unwrap();
            let name = device.file_name().unwrap().to_str().unwrap();
            let (memory, place) =
                (harness.kubelet("pods/uid/volumes/empty"), harness.kubelet("pods/uid/volume-subpaths/empty/0"));
            fs::create_dir_all(&memory).unwrap();
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            tmpfs_on(&memory);
            fs::write(memory.join(name), "").unwrap();
            fs::write(&place, "").unwrap();
            rustix::mount::mount_bind(memory.join(name), &place).unwrap();
            assert_eq!(mounts_at(&place)[0].root, Path::new("/").join(name));
            unstage(&node, &id, &staging).unwrap();
            assert_eq!((harness.device(&id), harness.journal(&id).exists()), (None, false));
            unmount(&place);
            unmount(&memory);
        }
    });
}

/// Has the journal say that the volume was the device with this number when it was staged and published.
fn record_device(harness: &Harness, id: &VolumeId, number: (u32, u32)) {
    harness.edit_journal_entries(id, |entry| {
        let device = if entry.get("source").is_some() { &mut entry["source"]["device"] } else { &mut entry["device"] };
        assert!(device["number"].is_array(), "{device}");
        device["number"] = serde_json::json!([number.0, number.1]);
    });
}

/// The kernel keeps the mounts of a disk that was deleted, as an iSCSI disk is whose session ended. A tmpfs stands for its file system:
/// no block device has that one's number either.
#[test]
fn volume_whose_disk_is_gone_is_unpublished_and_unstaged() {
    for restart in [false, true] {
        harness(|harness| {
            let node = harness.node();
            let id = harness.volume("a", Bytes::mib(16));
            let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
            node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
            node.publish(&publish_request(&id, &staging, &target, &filesystem(None))).unwrap();
            unmount(&target);
            unmount(&staging);
            tmpfs_on(&staging);
            rustix::mount::mount_bind(&staging, &target).unwrap();
            record_device(harness, &id, mounts_at(&staging)[0].device);
            let node = if restart { harness.node() } else { node };
            assert!(matches!(unstage(&node, &id, &staging), Err(Error::InUse { .. })), "it is still published");
            assert_eq!((mounts_at(&staging).len(), mounts_at(&target).len()), (1, 1));
            unpublish(&node, &id, &target).unwrap();
            assert!(!target.exists());
            unstage(&node, &id, &staging).unwrap();
            harness.assert_gone(&id);
        });
    }
}

/// The volume's disk is gone, and another has its number: what is mounted of that is not the volume's, wherever it is.
#[test]
fn mount_of_a_disk_that_has_the_number_of_one_that_is_gone_is_left() {
    harness(|harness| {
        let node = harness.node();
        let (id, other) = (harness.volume("a", Bytes::mib(16)), harness.volume("b", Bytes::mib(16)));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        node.publish(&publish_request(&id, &staging, &target, &filesystem(None))).unwrap();
        let theirs = harness.staging("s2");
        node.stage(&stage_request(&other, &theirs, &filesystem(None))).unwrap();
        for place in [&target, &staging] {
            unmount(place);
            rustix::mount::mount_bind(&theirs, place).unwrap();
        }
        record_device(harness, &id, mounts_at(&theirs)[0].device);
        for node in [node, harness.node()] {
            assert!(matches!(unpublish(&node, &id, &target), Err(Error::InUse { .. })));
            assert!(matches!(unstage(&node, &id, &staging), Err(Error::InUse { .. })));
            assert_eq!((mounts_at(&staging).len(), mounts_at(&target).len()), (1, 1));
        }
    });
}

#[test]
fn a_stack_of_our_own_mounts_is_refused_by_stage_and_cleared_by_unstage() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        let staging = harness.staging("s");
        let stage = stage_request(&id, &staging, &filesystem(None));
        node.stage(&stage).unwrap();
        rustix::mount::mount_bind(&staging, &staging).unwrap();
        assert_eq!(mounts_at(&staging).len(), 2);
        assert!(matches!(node.stage(&stage), Err(Error::InUse { .. })));
        let publish = publish_request(&id, &staging, &harness.kubelet("t"), &filesystem(None));
        assert!(matches!(node.publish(&publish), Err(Error::InUse { .. })));
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

#[test]
fn paths_outside_and_links_are_refused() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        let link = harness.kubelet("link");
        symlink("/etc", &link).unwrap();
        let dotted = harness.kubelet("x/../../outside");
        for path in [Path::new("/etc"), Path::new("relative"), &dotted, &link, &link.join("below")] {
            let error = node.stage(&stage_request(&id, path, &filesystem(None))).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }) && is_final(&error), "{}: {error}", path.display());
            harness.assert_gone(&id);
        }
        let staging = harness.staging("s");
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        for path in [Path::new("/etc"), &dotted, &link, &link.join("below"), &staging, &staging.join("below")] {
            let error = node.publish(&publish_request(&id, &staging, path, &filesystem(None))).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. } | Error::InUse { .. }), "{}: {error}", path.display());
        }
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

#[test]
fn a_busy_target_is_not_final_and_continues() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let capability = filesystem(Some(FsType::Ext4));
        node.stage(&stage_request(&id, &staging, &capability)).unwrap();
        node.publish(&publish_request(&id, &staging, &target, &capability)).unwrap();
        let busy = fs::File::create(target.join("open")).unwrap();
        let error = unpublish(&node, &id, &target).unwrap_err();
        assert!(!is_final(&error) && error.to_string().contains("fuser"), "{error}");
        drop(busy);
        unpublish(&node, &id, &target).unwrap();
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

#[test]
fn volume_mounted_in_another_namespace_is_written_out_and_stays_connected() {
    const WRITTEN: &[u8] = b"what no pod has synced";
    for fstype in FsType::ALL {
        harness(|harness| {
            let id = harness.volume("a", Bytes::mib(320));
            let staging = harness.staging("s");
            let node = harness.node();
            node.stage(&stage_request(&id, &staging, &filesystem(Some(fstype)))).unwrap();
            fs::write(staging.join("data"), WRITTEN.repeat(4096)).unwrap();
            let holder = Holder::new(());
            for _ in 0..2 {
                let error = unstage(&node, &id, &staging).unwrap_err();
                assert!(!is_final(&error), "{error}");
                let named = format!("{} has it mounted at {}", holder.name(), staging.display());
                assert!(error.to_string().contains(&named), "{error}");
                assert!(mounts_at(&staging).is_empty() && harness.device(&id).is_some() && harness.journal(&id).exists());
            }
            let image = fs::read(harness.backend.path(&id)).unwrap();
            assert!(image.windows(WRITTEN.len()).any(|bytes| bytes == WRITTEN), "{fstype}: it is still in memory only");
            // Staged again meanwhile, it is the same file system; nothing checks or grows it behind the other's back.
            node.stage(&stage_request(&id, &staging, &filesystem(Some(fstype)))).unwrap();
            assert_eq!(fs::read(staging.join("data")).unwrap(), WRITTEN.repeat(4096));
            assert!(unstage(&node, &id, &staging).is_err());
            drop(holder);
            unstage(&node, &id, &staging).unwrap();
            harness.assert_gone(&id);
        });
    }
}

/// e2fsck and resize2fs on what another mount namespace has mounted would destroy it.
#[test]
fn ext4_mounted_in_another_namespace_is_neither_checked_nor_grown_offline() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(64));
        let staging = harness.staging("s");
        let node = harness.node();
        let stage = stage_request(&id, &staging, &filesystem(None));
        node.stage(&stage).unwrap();
        let holder = Holder::new(());
        unstage(&node, &id, &staging).unwrap_err();
        fs::File::options().write(true).open(harness.backend.path(&id)).unwrap().set_len(128 << 20).unwrap();
        os::loopdev::refresh(&harness.device(&id).unwrap()).unwrap();
        match node.stage(&stage) {
            // Grown as what is mounted is.
            Ok(_) => assert!(total(&staging) > 100 << 20),
            // Growing a mounted ext4 wants CAP_SYS_RESOURCE, which is not to be had everywhere.
            Err(error) => assert!(error.to_string().contains("os error 1"), "{error}"),
        }
        drop(holder);
        node.stage(&stage).unwrap();
        assert!(total(&staging) > 100 << 20);
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

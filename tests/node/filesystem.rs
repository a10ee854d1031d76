//! File systems: made only on blank devices, checked, grown, shown.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use longshore::ops::node::{ExpandRequest, Handle, PublishRequest};
use longshore::ops::parameters::CONTEXT_KEY;
use longshore::volume::{AccessMode, AccessType, Bytes, Capability, Error, FsType, Outcome, Result, VolumeId};

use crate::harness::{
    filesystem, harness, is_final, mounts_at, publish_request, stage_request, tmpfs_on, total, unmount, unpublish, unstage,
    with_flags,
};

/// Large enough for xfs.
const SIZE: Bytes = Bytes::mib(320);

#[test]
fn each_file_system_lives_its_life_and_keeps_its_data() {
    for fstype in FsType::ALL {
        harness(|harness| {
            let node = harness.node();
            let id = harness.volume("a", SIZE);
            let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
            let capability = filesystem(Some(fstype));
            let stage = stage_request(&id, &staging, &capability);
            let publish = publish_request(&id, &staging, &target, &capability);
            for round in 0..2 {
                assert_eq!(node.stage(&stage).unwrap(), Outcome::Changed(()), "{fstype}");
                assert_eq!(node.stage(&stage).unwrap(), Outcome::Unchanged(()), "{fstype}");
                assert_eq!(node.publish(&publish).unwrap(), Outcome::Changed(()), "{fstype}");
                assert_eq!(node.publish(&publish).unwrap(), Outcome::Unchanged(()), "{fstype}");
                let mounts = mounts_at(&target);
                assert_eq!((mounts.len(), mounts[0].fstype.as_str()), (1, fstype.as_str()));
                assert_eq!(mounts[0].source, harness.device(&id).unwrap());
                if fstype == FsType::Xfs {
                    assert!(mounts[0].super_options.iter().any(|option| option == "nouuid"));
                }
                if round == 0 {
                    fs::write(target.join("data"), "kept").unwrap();
                } else {
                    assert_eq!(fs::read_to_string(target.join("data")).unwrap(), "kept", "{fstype}");
                }
                let stats = node.stats(&Handle::Id(id.clone()), &target).unwrap();
                assert_eq!(stats.total, total(&target));
                assert!(node.health(&Handle::Id(id.clone()), Some(&target), Some(&staging)).unwrap().is_empty());
                assert!(matches!(unstage(&node, &id, &staging), Err(Error::InUse { .. })));
                assert_eq!(unpublish(&node, &id, &target).unwrap(), Outcome::Changed(()));
                assert_eq!(unpublish(&node, &id, &target).unwrap(), Outcome::Unchanged(()));
                assert!(!target.exists());
                assert_eq!(unstage(&node, &id, &staging).unwrap(), Outcome::Changed(()));
                assert_eq!(unstage(&node, &id, &staging).unwrap(), Outcome::Unchanged(()));
                harness.assert_gone(&id);
            }
        });
    }
}

/// As where the configuration no longer says that disks of other drivers are used, while one is in use.
#[test]
fn volume_whose_handle_means_nothing_any_more_is_undone_by_its_paths() {
    harness(|harness| {
        let node = harness.node();
        let existing = VolumeId::existing(&"files".parse().unwrap(), "vol-1").unwrap();
        let id = harness.volume(existing.local(), SIZE);
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let capability = filesystem(Some(FsType::Ext4));
        node.stage(&stage_request(&id, &staging, &capability)).unwrap();
        node.publish(&publish_request(&id, &staging, &target, &capability)).unwrap();
        let handle = Handle::Name("vol-1".to_owned());
        assert!(matches!(node.unstage(&handle, &staging), Err(Error::InUse { .. })), "it is published");
        assert_eq!(node.unpublish(&handle, &target).unwrap(), Outcome::Changed(()));
        assert_eq!(node.unstage(&handle, &staging).unwrap(), Outcome::Changed(()));
        harness.assert_gone(&id);
        assert_eq!(node.unstage(&handle, &staging).unwrap(), Outcome::Unchanged(()));
        // What nobody knows is not said to be unmounted while it is mounted.
        tmpfs_on(&staging);
        let error = node.unstage(&handle, &staging).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }) && error.to_string().contains("foreign"), "{error}");
        assert_eq!(mounts_at(&staging).len(), 1);
        unmount(&staging);
    });
}

#[test]
fn device_not_proven_blank_is_never_formatted() {
    harness(|harness| {
        let node = harness.node();
        let staging = harness.staging("s");
        // This backend does not say where there can be data: all of a device is read.
        for (name, offset) in [("start", 512), ("middle", (37 << 20) + 4321), ("end", (64 << 20) - 600)] {
            let id = harness.volume(name, Bytes::mib(64));
            let image = File::options().read(true).write(true).open(harness.backend.path(&id)).unwrap();
            image.write_all_at(&[0x5a; 512], offset).unwrap();
            let before = fs::read(harness.backend.path(&id)).unwrap();
            let error = node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap_err();
            assert!(matches!(error, Error::Unverified { .. }) && is_final(&error), "{name}: {error}");
            assert!(fs::read(harness.backend.path(&id)).unwrap() == before, "{name}: its bytes changed");
            harness.assert_gone(&id);
        }
    });
}

/// No controller has refused it where nothing is attached.
#[test]
fn access_mode_that_the_backend_cannot_serve_is_neither_staged_nor_published() {
    harness(|harness| {
        let node = harness.node();
        let (id, staging, target) = (harness.volume("a", SIZE), harness.staging("s"), harness.kubelet("t"));
        let by_all = Capability { mode: AccessMode::MultiNodeMultiWriter, ..filesystem(None) };
        let refused = |outcome: Result<Outcome<()>>| {
            let error = outcome.unwrap_err();
            assert!(matches!(&error, Error::Invalid { .. }) && error.to_string().contains("for one node"), "{error}");
        };
        refused(node.stage(&stage_request(&id, &staging, &by_all)));
        harness.assert_gone(&id);
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        refused(node.publish(&publish_request(&id, &staging, &target, &by_all)));
        assert!(mounts_at(&target).is_empty());
    });
}

#[test]
fn another_file_system_than_the_one_there_is_refused() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", SIZE);
        let staging = harness.staging("s");
        node.stage(&stage_request(&id, &staging, &filesystem(Some(FsType::Xfs)))).unwrap();
        let otherwise = stage_request(&id, &staging, &filesystem(Some(FsType::Ext4)));
        assert!(matches!(node.stage(&otherwise), Err(Error::Conflict { .. })));
        let elsewhere = stage_request(&id, &harness.staging("s2"), &filesystem(None));
        assert!(matches!(node.stage(&elsewhere), Err(Error::Conflict { .. })));
        unstage(&node, &id, &staging).unwrap();
        let error = node.stage(&otherwise).unwrap_err();
        assert!(error.to_string().contains("xfs") && error.to_string().contains("ext4"), "{error}");
        harness.assert_gone(&id);
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        assert_eq!(mounts_at(&staging)[0].fstype, "xfs", "without a wish, what is there");
    });
}

#[test]
fn a_volume_restored_into_a_larger_one_is_grown_at_stage() {
    for fstype in FsType::ALL {
        harness(|harness| {
            let node = harness.node();
            let id = harness.volume("a", SIZE);
            let staging = harness.staging("s");
            let stage = stage_request(&id, &staging, &filesystem(Some(fstype)));
            node.stage(&stage).unwrap();
            let before = total(&staging);
            unstage(&node, &id, &staging).unwrap();
            File::options().write(true).open(harness.backend.path(&id)).unwrap().set_len(2 * SIZE.0).unwrap();
            node.stage(&stage).unwrap();
            assert!(total(&staging) > before + SIZE.0 / 2, "{fstype}: {before} -> {}", total(&staging));
        });
    }
}

#[test]
fn a_mounted_file_system_grows() {
    // ext4's online growth needs CAP_SYS_RESOURCE of a whole machine; it is shown in the virtual machine.
    for fstype in [FsType::Xfs, FsType::Btrfs] {
        harness(|harness| {
            let node = harness.node();
            let id = harness.volume("a", SIZE);
            let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
            node.stage(&stage_request(&id, &staging, &filesystem(Some(fstype)))).unwrap();
            node.publish(&publish_request(&id, &staging, &target, &filesystem(Some(fstype)))).unwrap();
            let before = total(&target);
            File::options().write(true).open(harness.backend.path(&id)).unwrap().set_len(2 * SIZE.0).unwrap();
            let required = Some(Bytes(2 * SIZE.0));
            let request =
                ExpandRequest { handle: id.into(), path: target.clone(), staging: Some(staging), required, block: Some(false) };
            for _ in 0..2 {
                assert_eq!(node.expand(&request).unwrap(), Bytes(2 * SIZE.0));
            }
            assert!(total(&target) > before + SIZE.0 / 2, "{fstype}: {before} -> {}", total(&target));
        });
    }
}

#[test]
fn read_only_is_read_only_from_the_first_instant() {
    for fstype in FsType::ALL {
        harness(|harness| {
            let node = harness.node();
            let id = harness.volume("a", SIZE);
            let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
            let reader = Capability { mode: AccessMode::SingleNodeReaderOnly, ..filesystem(Some(fstype)) };
            let error = node.stage(&stage_request(&id, &staging, &reader)).unwrap_err();
            assert!(matches!(error, Error::Unverified { .. }), "a blank one has nothing to read: {error}");
            harness.assert_gone(&id);

            let writer = filesystem(Some(fstype));
            node.stage(&stage_request(&id, &staging, &writer)).unwrap();
            let read_only = PublishRequest { read_only: true, ..publish_request(&id, &staging, &target, &writer) };
            node.publish(&read_only).unwrap();
            assert!(fs::write(target.join("x"), "x").is_err());
            assert!(matches!(node.publish(&PublishRequest { read_only: false, ..read_only }), Err(Error::Conflict { .. })));
            unpublish(&node, &id, &target).unwrap();
            unstage(&node, &id, &staging).unwrap();

            node.stage(&stage_request(&id, &staging, &reader)).unwrap();
            assert!(mounts_at(&staging)[0].super_options.iter().any(|option| option == "ro"));
            node.publish(&publish_request(&id, &staging, &target, &reader)).unwrap();
            assert!(fs::write(target.join("x"), "x").is_err());
            unpublish(&node, &id, &target).unwrap();
            unstage(&node, &id, &staging).unwrap();
            harness.assert_gone(&id);
        });
    }
}

#[test]
fn mount_options_reach_the_mount_or_are_refused() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        for flags in [["no-such-option"], ["bind"]] {
            let capability = with_flags(filesystem(None), &flags);
            let error = node.stage(&stage_request(&id, &staging, &capability)).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(flags[0]), "{error}");
            harness.assert_gone(&id);
        }
        let capability = with_flags(filesystem(None), &["noexec", "nosuid", "commit=30"]);
        node.stage(&stage_request(&id, &staging, &capability)).unwrap();
        node.publish(&publish_request(&id, &staging, &target, &capability)).unwrap();
        let mount = &mounts_at(&target)[0];
        for option in ["noexec", "nosuid"] {
            assert!(mount.options.iter().any(|there| there == option), "{option}: {mount:?}");
        }
        assert!(mount.super_options.iter().any(|there| there == "commit=30"), "{mount:?}");
    });
}

#[test]
fn a_group_may_write() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let AccessType::Filesystem { fstype, mount_flags, .. } = filesystem(None).access else { panic!() };
        let access = AccessType::Filesystem { fstype, mount_flags, group: Some(4711) };
        let capability = Capability { access, ..filesystem(None) };
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        fs::write(staging.join("file"), "").unwrap();
        node.publish(&publish_request(&id, &staging, &target, &capability)).unwrap();
        for path in [target.clone(), target.join("file")] {
            let stat = fs::metadata(&path).unwrap();
            assert_eq!((stat.gid(), stat.mode() & 0o060), (4711, 0o060), "{}", path.display());
        }
    });
}

#[test]
fn a_file_system_has_the_layout_that_its_class_names() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        let staging = harness.staging("s");
        let mut stage = stage_request(&id, &staging, &filesystem(Some(FsType::Ext4)));
        let parameters = r#"{"node": {"blockSize": "1024", "numberOfInodes": "256"}, "backend": null}"#;
        stage.volume_context.insert(CONTEXT_KEY.to_owned(), parameters.to_owned());
        node.stage(&stage).unwrap();
        let kernel = rustix::fs::statvfs(&staging).unwrap();
        assert_eq!((kernel.f_bsize, kernel.f_files), (1024, 256));
    });
}

#[test]
fn a_refused_mkfs_leaves_nothing() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        let staging = harness.staging("s");
        let mut stage = stage_request(&id, &staging, &filesystem(None));
        let parameters = r#"{"node": {"mkfsOptions": "-O no_such_feature"}, "backend": null}"#;
        stage.volume_context.insert(CONTEXT_KEY.to_owned(), parameters.to_owned());
        let error = node.stage(&stage).unwrap_err();
        assert!(is_final(&error), "{error}");
        harness.assert_gone(&id);
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
    });
}

#[test]
fn health_says_what_is_wrong() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        node.publish(&publish_request(&id, &staging, &target, &filesystem(None))).unwrap();
        let handle = Handle::Id(id.clone());
        let reasons = || {
            let health = node.health(&handle, Some(&target), Some(&staging)).unwrap();
            health.iter().map(|problem| problem.reason).collect::<Vec<_>>()
        };
        assert!(reasons().is_empty());
        unmount(&target);
        assert_eq!(reasons(), ["MountMissing"]);
        assert!(matches!(node.stats(&handle, &target), Err(Error::NotFound { .. })), "never the node's own disk");
        unmount(&staging);
        assert_eq!(reasons(), ["MountMissing"], "one reason is said once");
        assert!(matches!(
            node.publish(&publish_request(&id, &staging, &target, &filesystem(None))),
            Err(Error::NotStaged { .. })
        ));
        assert!(matches!(node.health(&Handle::Id("files:none".parse().unwrap()), None, None), Err(Error::NotFound { .. })));
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

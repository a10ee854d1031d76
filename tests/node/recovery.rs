//! What a kill, a reboot or a lost journal leaves behind, and how it ends.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use longshore::backend::{Connect, ConnectRequest, Quiesce, Writers};
use longshore::ops::node::{ExpandRequest, Handle};
use longshore::os::block::Device;
use longshore::os::fs::Mark;
use longshore::os::fs::mark::Purpose;
use longshore::os::udev;
use longshore::volume::{Bytes, Error, FsType, MountFlags, Outcome, Secrets};
use serde_json::json;

use crate::harness::{
    block, filesystem, harness, is_final, mounts_at, names, publish_request, run, stage_request, unmount, unpublish, unstage,
};

#[test]
fn stage_that_no_call_has_answered_is_undone_at_the_start() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(16));
        let staging = harness.staging("s");
        harness.node().stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        for phase in ["staging", "unstaging"] {
            harness.edit_journal(&id, &[("phase", json!(phase))]);
            let node = harness.node();
            harness.assert_gone(&id);
            assert_eq!(node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap(), Outcome::Changed(()));
        }
    });
}

#[test]
fn a_stage_that_was_acknowledged_survives_a_restart() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let publish = publish_request(&id, &staging, &target, &filesystem(None));
        let node = harness.node();
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        node.publish(&publish).unwrap();
        drop(node);
        let node = harness.node();
        assert_eq!(node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap(), Outcome::Unchanged(()));
        assert_eq!(node.publish(&publish).unwrap(), Outcome::Unchanged(()));
        assert_eq!(mounts_at(&target).len(), 1);
    });
}

/// Leaves the device as a kill in the middle of mkfs would.
fn interrupted_mkfs(
    harness: &crate::harness::Harness,
    id: &longshore::volume::VolumeId,
    staging: &std::path::Path,
    fstype: FsType,
) {
    harness.node().stage(&stage_request(id, staging, &filesystem(Some(fstype)))).unwrap();
    unmount(staging);
    let device = Device::open(&harness.device(id).expect("connected"), true).unwrap();
    // What another test starts may have a copy of the mount for a moment; until then the kernel writes to the device.
    let gone = || device.is_claimed().map(|claimed| !claimed);
    assert!(udev::wait_until(std::time::Instant::now().checked_add(std::time::Duration::from_secs(30)), gone).unwrap());
    let image = File::options().read(true).write(true).open(harness.backend.path(id)).unwrap();
    image.write_all_at(&[0; 1 << 20], 0).unwrap();
    image.write_all_at(&[0x5a; 4096], 200 << 20).unwrap();
    let mark = Mark::new(&device, Purpose::Filesystem(fstype)).unwrap();
    mark.write(&device).unwrap();
    harness.edit_journal(id, &[("phase", json!("staging")), ("format", journaled(&mark))]);
}

/// Leaves an ext4 as a kill in the middle of resize2fs would, for the journal; its device.
fn interrupted_growth(
    harness: &crate::harness::Harness,
    id: &longshore::volume::VolumeId,
    staging: &std::path::Path,
) -> std::path::PathBuf {
    harness.node().stage(&stage_request(id, staging, &filesystem(None))).unwrap();
    unmount(staging);
    let path = harness.device(id).expect("connected");
    let uses = longshore::os::fs::ext4_uses(&Device::open(&path, false).unwrap()).unwrap();
    harness.edit_journal(id, &[("phase", json!("staging")), ("growth", json!(uses))]);
    path
}

/// What the journal has of a format in progress.
fn journaled(mark: &Mark) -> serde_json::Value {
    json!({ "purpose": mark.purpose, "offset": mark.offset })
}

#[test]
fn a_mkfs_that_was_interrupted_is_done_again() {
    for fstype in FsType::ALL {
        harness(|harness| {
            let id = harness.volume("a", Bytes::mib(320));
            let staging = harness.staging("s");
            interrupted_mkfs(harness, &id, &staging, fstype);
            let node = harness.node();
            assert_eq!(harness.device(&id), None, "{fstype}: nothing is left connected meanwhile");
            assert!(node.in_use(&id).unwrap().is_some(), "{fstype}: it must not be deleted unseen");
            node.stage(&stage_request(&id, &staging, &filesystem(Some(fstype)))).unwrap();
            assert_eq!(mounts_at(&staging)[0].fstype, fstype.as_str());
            fs::write(staging.join("data"), "x").unwrap();
            unstage(&node, &id, &staging).unwrap();
            harness.assert_gone(&id);
            node.stage(&stage_request(&id, &staging, &filesystem(Some(fstype)))).unwrap();
            assert!(staging.join("data").exists(), "{fstype}: once only");
        });
    }
}

#[test]
fn a_mkfs_that_was_interrupted_is_ended_by_unstage() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(320));
        let staging = harness.staging("s");
        interrupted_mkfs(harness, &id, &staging, FsType::Xfs);
        let node = harness.node();
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
        node.stage(&stage_request(&id, &staging, &filesystem(Some(FsType::Xfs)))).unwrap();
        assert_eq!(mounts_at(&staging)[0].fstype, "xfs");
    });
}

#[test]
fn a_mkfs_that_was_interrupted_and_cannot_be_ended_now_is_not_forgotten() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(320));
        let staging = harness.staging("s");
        interrupted_mkfs(harness, &id, &staging, FsType::Xfs);
        let node = harness.node();
        harness.backend.away.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            let error = unstage(&node, &id, &staging).unwrap_err();
            assert!(!is_final(&error), "{error}");
        }
        harness.backend.away.store(false, Ordering::SeqCst);
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
        node.stage(&stage_request(&id, &staging, &filesystem(Some(FsType::Xfs)))).unwrap();
        assert_eq!(mounts_at(&staging)[0].fstype, "xfs");
    });
}

/// Whatever the journal says: only the medium tells whether a format may be repeated.
#[test]
fn device_without_format_mark_is_not_formatted_on_the_word_of_the_journal() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(320));
        let staging = harness.staging("s");
        interrupted_mkfs(harness, &id, &staging, FsType::Xfs);
        let image = File::options().write(true).open(harness.backend.path(&id)).unwrap();
        image.write_all_at(&[0x5a; 1 << 20], 319 << 20).unwrap();
        let error = harness.node().stage(&stage_request(&id, &staging, &filesystem(Some(FsType::Xfs)))).unwrap_err();
        assert!(matches!(error, Error::Unverified { .. }) && is_final(&error), "{error}");
    });
}

/// Its image was copied, its journal is lost, it has grown: the mark tells.
#[test]
fn interrupted_mkfs_is_repeated_without_journal_and_after_growth() {
    for (journal, grown) in [(false, false), (true, true)] {
        harness(|harness| {
            let id = harness.volume("a", Bytes::mib(320));
            let staging = harness.staging("s");
            interrupted_mkfs(harness, &id, &staging, FsType::Xfs);
            harness.backend.disconnect(&id, None).unwrap();
            let path = harness.backend.path(&id);
            fs::copy(&path, path.with_extension("new")).unwrap();
            fs::rename(path.with_extension("new"), &path).unwrap();
            if !journal {
                fs::remove_file(harness.journal(&id).join("stage.json")).unwrap();
            }
            if grown {
                File::options().write(true).open(&path).unwrap().set_len(400 << 20).unwrap();
            }
            let node = harness.node();
            node.stage(&stage_request(&id, &staging, &filesystem(Some(FsType::Xfs)))).unwrap();
            fs::write(staging.join("data"), "x").unwrap();
            unstage(&node, &id, &staging).unwrap();
            node.stage(&stage_request(&id, &staging, &filesystem(Some(FsType::Xfs)))).unwrap();
            assert!(staging.join("data").exists(), "journal {journal}, grown {grown}: once only");
        });
    }
}

/// Node A was killed after its mkfs, before or after the mark was cleared; node B has the volume then, and fills it. What A's journal
/// remembers is no reason to format it again, neither for a stage nor for an unstage.
#[test]
fn volume_filled_by_another_node_after_interrupted_mkfs_is_kept() {
    for (fstype, cleared) in FsType::ALL.into_iter().flat_map(|fstype| [(fstype, true), (fstype, false)]) {
        for unstage_first in [true, false] {
            harness(|harness| {
                let what = format!("{fstype}, mark cleared: {cleared}, unstage first: {unstage_first}");
                let id = harness.volume("a", Bytes::mib(320));
                let staging = harness.staging("s");
                let stage = stage_request(&id, &staging, &filesystem(Some(fstype)));
                interrupted_mkfs(harness, &id, &staging, fstype);
                if cleared {
                    let device = Device::open(&harness.device(&id).expect("connected"), true).unwrap();
                    device.zero(0, 320 << 20).unwrap();
                    device.flush().unwrap();
                }
                harness.backend.disconnect(&id, None).unwrap();
                let other = harness.peer("b");
                let elsewhere = stage_request(&id, &harness.peer_staging("b"), &filesystem(Some(fstype)));
                other.stage(&elsewhere).unwrap();
                fs::write(elsewhere.staging.join("data"), "kept").unwrap();
                unstage(&other, &id, &elsewhere.staging).unwrap();
                let node = harness.node();
                if unstage_first {
                    unstage(&node, &id, &staging).unwrap();
                }
                node.stage(&stage).unwrap();
                assert_eq!(fs::read_to_string(staging.join("data")).unwrap(), "kept", "{what}");
                unstage(&node, &id, &staging).unwrap();
                harness.assert_gone(&id);
            });
        }
    }
}

/// What a pod writes to the raw device ends the format that was interrupted: it is nothing that a later stage may format over.
#[test]
fn raw_data_written_after_interrupted_mkfs_is_not_formatted() {
    for journal in [true, false] {
        harness(|harness| {
            let id = harness.volume("a", Bytes::mib(320));
            let staging = harness.staging("s");
            interrupted_mkfs(harness, &id, &staging, FsType::Xfs);
            if !journal {
                harness.backend.disconnect(&id, None).unwrap();
                fs::remove_file(harness.journal(&id).join("stage.json")).unwrap();
            }
            let node = harness.node();
            node.stage(&stage_request(&id, &staging, &block())).unwrap();
            File::options().write(true).open(harness.backend.path(&id)).unwrap().write_all_at(&[0x77; 4096], 1 << 20).unwrap();
            unstage(&node, &id, &staging).unwrap();
            let error = node.stage(&stage_request(&id, &staging, &filesystem(Some(FsType::Xfs)))).unwrap_err();
            assert!(matches!(error, Error::Unverified { .. }), "{error}");
            let mut kept = [0; 4096];
            File::open(harness.backend.path(&id)).unwrap().read_exact_at(&mut kept, 1 << 20).unwrap();
            assert_eq!(kept, [0x77; 4096], "the pod's data");
        });
    }
}

/// mkfs.ext4 came to its end, the mark was not cleared; then another file system is asked for, whose mkfs fails, since the volume is too small
/// for it. Nothing of the first one has a name then by which the volume would be taken for another's.
#[test]
fn failed_mkfs_of_another_file_system_leaves_the_volume_usable() {
    for fstype in [FsType::Ext4, FsType::Btrfs].map(Some) {
        harness(|harness| {
            let id = harness.volume("a", Bytes::mib(160));
            let staging = harness.staging("s");
            harness.backend.connect(&connect_request(&id)).unwrap();
            let device = Device::open(&harness.device(&id).expect("connected"), true).unwrap();
            let mark = Mark::new(&device, Purpose::Filesystem(FsType::Ext4)).unwrap();
            mark.write(&device).unwrap();
            longshore::os::fs::mkfs(&device, FsType::Ext4, &["-b".to_owned(), "1024".to_owned()], Some(&mark)).unwrap();
            drop(device);
            harness.backend.disconnect(&id, None).unwrap();
            let node = harness.node();
            let error = node.stage(&stage_request(&id, &staging, &filesystem(Some(FsType::Xfs)))).unwrap_err();
            assert!(error.to_string().contains("mkfs.xfs"), "{error}");
            node.stage(&stage_request(&id, &staging, &filesystem(fstype))).unwrap();
            fs::write(staging.join("data"), "x").unwrap();
            unstage(&node, &id, &staging).unwrap();
            node.stage(&stage_request(&id, &staging, &filesystem(fstype))).unwrap();
            assert!(staging.join("data").exists(), "once only");
        });
    }
}

/// A mark is believed only where nothing speaks against it: a file system that another mkfs made, or that was mounted since, is a user's
/// data, whatever lies near its end.
#[test]
fn format_mark_beside_a_file_system_of_others_or_in_use_is_no_reason_to_format() {
    let tools = [("mkfs.ext4", FsType::Ext4), ("mkfs.xfs", FsType::Xfs), ("mkfs.btrfs", FsType::Btrfs)];
    for (tool, fstype) in tools {
        harness(|harness| {
            let id = harness.volume("a", Bytes::mib(320));
            let staging = harness.staging("s");
            let stage = stage_request(&id, &staging, &filesystem(Some(fstype)));
            let node = harness.node();
            let image = harness.backend.path(&id);
            let mark = |uuid: Option<String>| {
                harness.backend.connect(&connect_request(&id)).unwrap();
                let device = Device::open(&harness.device(&id).expect("connected"), true).unwrap();
                let mark = Mark::new(&device, Purpose::Filesystem(fstype)).unwrap();
                Mark { uuid: uuid.unwrap_or(mark.uuid.clone()), ..mark }.write(&device).unwrap();
                drop(device);
                harness.backend.disconnect(&id, None).unwrap();
            };
            let image = image.to_str().unwrap();
            let uuid_now = || run("blkid", &["-p", "-s", "UUID", "-o", "value", image]);
            run(tool, &["-q", image]);
            let uuid = uuid_now();
            mark(None);
            node.stage(&stage).unwrap();
            fs::write(staging.join("data"), "kept").unwrap();
            unstage(&node, &id, &staging).unwrap();
            // Now it was mounted, and a mark of its very UUID appears, as a tenant could write it into a file.
            mark(Some(uuid.clone()));
            node.stage(&stage).unwrap();
            assert_eq!(fs::read_to_string(staging.join("data")).unwrap(), "kept", "{fstype}");
            unstage(&node, &id, &staging).unwrap();
            assert_eq!(uuid_now(), uuid, "{fstype}");
        });
    }
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(320));
        let staging = harness.staging("s");
        interrupted_mkfs(harness, &id, &staging, FsType::Xfs);
        let image = File::options().write(true).open(harness.backend.path(&id)).unwrap();
        image.write_all_at(b"SWAPSPACE2", 4086).unwrap();
        let error = harness.node().stage(&stage_request(&id, &staging, &filesystem(Some(FsType::Xfs)))).unwrap_err();
        assert!(matches!(error, Error::Unverified { .. }) && error.to_string().contains("swap"), "{error}");
    });
}

fn connect_request(id: &longshore::volume::VolumeId) -> ConnectRequest<'_> {
    type Nothing = (BTreeMap<String, String>, Secrets, MountFlags);
    static NOTHING: std::sync::LazyLock<Nothing> = std::sync::LazyLock::new(Default::default);
    ConnectRequest {
        id,
        parameters: &serde_json::Value::Null,
        publish_context: &NOTHING.0,
        secrets: &NOTHING.1,
        mount_flags: &NOTHING.2,
        read_only: false,
        earlier: None,
    }
}

/// What e2fsck would "repair" then is no longer what our own resize2fs left.
#[test]
fn interrupted_growth_is_forgotten_once_another_node_has_mounted_it() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(64));
        let staging = harness.staging("s");
        let stage = stage_request(&id, &staging, &filesystem(None));
        interrupted_growth(harness, &id, &staging);
        harness.backend.disconnect(&id, None).unwrap();
        let other = harness.peer("b");
        let elsewhere = stage_request(&id, &harness.peer_staging("b"), &filesystem(None));
        other.stage(&elsewhere).unwrap();
        unstage(&other, &id, &elsewhere.staging).unwrap();
        // Damage that only a person may judge: the root directory is cleared.
        let image = harness.backend.path(&id).display().to_string();
        for request in ["clri <2>", "set_super_value state 2"] {
            run("debugfs", &["-w", "-R", request, &image]);
        }
        // As the repair of our own growth, `e2fsck -fy` would make it anew and say that all is well.
        let error = harness.node().stage(&stage).unwrap_err();
        assert!(error.to_string().contains("exit status 4"), "{error}");
    });
}

/// NodeUnstageVolume has none.
#[test]
fn interrupted_growth_is_completed_at_unstage_without_publish_context() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(64));
        let staging = harness.staging("s");
        let path = interrupted_growth(harness, &id, &staging);
        // As our own resize2fs may leave it.
        run("debugfs", &["-w", "-R", "set_super_value free_blocks_count 7", &path.display().to_string()]);
        let node = harness.node();
        harness.backend.needs_context.store(true, Ordering::SeqCst);
        unstage(&node, &id, &staging).unwrap();
        assert!(!harness.journal(&id).exists());
        run("e2fsck", &["-f", "-n", &harness.backend.path(&id).display().to_string()]);
    });
}

/// Else the volume would stay attached to this node for ever.
#[test]
fn interrupted_growth_of_a_volume_that_is_gone_does_not_keep_it_staged() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(64));
        let staging = harness.staging("s");
        interrupted_growth(harness, &id, &staging);
        harness.backend.disconnect(&id, None).unwrap();
        let node = harness.node();
        harness.backend.away.store(true, Ordering::SeqCst);
        unstage(&node, &id, &staging).expect_err("it may pass");
        harness.backend.away.store(false, Ordering::SeqCst);
        fs::remove_file(harness.backend.path(&id)).unwrap();
        unstage(&node, &id, &staging).unwrap();
        assert!(!harness.journal(&id).exists());
    });
}

#[test]
fn after_a_reboot_nothing_is_published_before_it_is_staged_again() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let publish = publish_request(&id, &staging, &target, &filesystem(None));
        let node = harness.node();
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        node.publish(&publish).unwrap();
        fs::write(target.join("data"), "kept").unwrap();
        drop(node);
        unmount(&target);
        unmount(&staging);
        harness.backend.disconnect(&id, None).unwrap();
        harness.edit_journal(&id, &[("boot", json!("another"))]);

        let node = harness.node();
        assert!(node.staged(&[&id]).unwrap().is_empty());
        assert!(matches!(node.publish(&publish), Err(Error::NotStaged { .. })));
        assert_eq!(node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap(), Outcome::Changed(()));
        node.publish(&publish).unwrap();
        assert_eq!(fs::read_to_string(target.join("data")).unwrap(), "kept");
        unpublish(&node, &id, &target).unwrap();
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

#[test]
fn mount_of_another_boots_journal_is_not_unmounted() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(16));
        let other = harness.volume("b", Bytes::mib(16));
        let staging = harness.staging("s");
        let node = harness.node();
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        unstage(&node, &id, &staging).unwrap();
        // Volume b has now the device that an earlier boot's entry of a names, and lies where a was.
        node.stage(&stage_request(&other, &staging, &filesystem(None))).unwrap();
        fs::create_dir(harness.journal(&id)).unwrap();
        fs::copy(harness.journal(&other).join("stage.json"), harness.journal(&id).join("stage.json")).unwrap();
        harness.edit_journal(&id, &[("id", json!(id.to_string())), ("boot", json!("another")), ("phase", json!("unstaging"))]);
        let node = harness.node();
        assert_eq!(mounts_at(&staging).len(), 1, "the start left it alone");
        assert!(matches!(unstage(&node, &id, &staging), Err(Error::InUse { .. })));
        assert_eq!(mounts_at(&staging).len(), 1);
        unstage(&node, &other, &staging).unwrap();
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
        harness.assert_gone(&other);
    });
}

#[test]
fn a_lost_journal_is_made_again_by_stage() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let publish = publish_request(&id, &staging, &target, &filesystem(None));
        let node = harness.node();
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        node.publish(&publish).unwrap();
        for name in names(&harness.journal(&id)) {
            fs::remove_file(harness.journal(&id).join(name)).unwrap();
        }
        let error = unstage(&node, &id, &staging).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "still published, says mountinfo: {error}");
        assert_eq!(node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap(), Outcome::Changed(()));
        assert_eq!(node.publish(&publish).unwrap(), Outcome::Changed(()));
        assert_eq!((mounts_at(&staging).len(), mounts_at(&target).len()), (1, 1));
        unpublish(&node, &id, &target).unwrap();
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

#[test]
fn a_torn_journal_does_not_stop_the_undoing() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let node = harness.node();
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        node.publish(&publish_request(&id, &staging, &target, &filesystem(None))).unwrap();
        for name in names(&harness.journal(&id)) {
            let path = harness.journal(&id).join(name);
            let whole = fs::read(&path).unwrap();
            fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        }
        let node = harness.node();
        assert!(node.in_use(&id).unwrap().is_some(), "the backend still has it connected");
        unpublish(&node, &id, &target).unwrap();
        unstage(&node, &id, &staging).unwrap();
        assert_eq!((mounts_at(&staging).len(), harness.device(&id)), (0, None));
        assert_eq!(node.in_use(&id).unwrap(), None);
        assert!(names(&harness.journal(&id)).iter().all(|name| name.ends_with(".damaged")));
    });
}

/// Every length that a torn write may have left, and the right length with nothing in it.
#[test]
fn a_journal_torn_anywhere_is_no_reason_to_touch_or_to_publish() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let publish = publish_request(&id, &staging, &target, &filesystem(None));
        let node = harness.node();
        node.stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        node.publish(&publish).unwrap();
        fs::write(target.join("data"), "kept").unwrap();
        drop(node);
        let mut torn = 0;
        for name in names(&harness.journal(&id)) {
            let path = harness.journal(&id).join(&name);
            let whole = fs::read(&path).unwrap();
            let prefixes = (0..whole.len()).map(|length| whole[..length].to_vec());
            for content in prefixes.chain([vec![0; whole.len()]]) {
                fs::write(&path, &content).unwrap();
                let node = harness.node();
                assert_eq!((mounts_at(&staging).len(), mounts_at(&target).len()), (1, 1), "{name}: {} bytes", content.len());
                if name == "stage.json" {
                    assert!(matches!(node.publish(&publish), Err(Error::NotStaged { .. })), "{} bytes", content.len());
                }
                assert!(matches!(unstage(&node, &id, &staging), Err(Error::InUse { .. })), "{name}: {} bytes", content.len());
                fs::remove_file(path.with_extension("json.damaged")).unwrap();
                fs::write(&path, &whole).unwrap();
                torn += 1;
            }
        }
        println!("FIGURE: torn journals: {torn} lengths");
        let node = harness.node();
        assert_eq!(node.publish(&publish).unwrap(), Outcome::Unchanged(()));
        assert_eq!(fs::read_to_string(target.join("data")).unwrap(), "kept");
        unpublish(&node, &id, &target).unwrap();
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

#[test]
fn a_publish_that_was_interrupted_is_undone_at_the_start() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let node = harness.node();
        node.stage(&stage_request(&id, &staging, &block())).unwrap();
        let mut publish = publish_request(&id, &staging, &target, &block());
        publish.read_only = true;
        node.publish(&publish).unwrap();
        unmount(&target);
        drop(node);
        let node = harness.node();
        assert!(!target.exists());
        assert_eq!(names(&harness.journal(&id)), ["stage.json"]);
        publish.read_only = false;
        node.publish(&publish).unwrap();
        File::options().write(true).open(&target).unwrap().write_all_at(&[1; 512], 0).unwrap();
    });
}

#[test]
fn a_failure_that_cannot_be_undone_is_not_final_and_ends_later() {
    harness(|harness| {
        let node = harness.node();
        let id = harness.volume("a", Bytes::mib(16));
        let staging = harness.staging("s");
        let image = File::options().write(true).open(harness.backend.path(&id)).unwrap();
        image.write_all_at(&[0x5a; 512], 4096).unwrap();
        harness.backend.stuck.store(true, Ordering::SeqCst);
        let stage = stage_request(&id, &staging, &filesystem(None));
        let error = node.stage(&stage).unwrap_err();
        assert!(!is_final(&error), "its loop device is left: {error}");
        assert!(harness.device(&id).is_some() && harness.journal(&id).exists());
        let error = unstage(&node, &id, &staging).unwrap_err();
        assert!(!is_final(&error), "{error}");
        harness.backend.stuck.store(false, Ordering::SeqCst);
        assert!(is_final(&node.stage(&stage).unwrap_err()));
        harness.assert_gone(&id);
        unstage(&node, &id, &staging).unwrap();
    });
}

mod ioctl {
    nix::ioctl_readwrite!(freeze, b'X', 119, i32);
}

/// Freezes the file system mounted at a path; EBUSY where it is frozen already.
fn freeze(path: &std::path::Path) -> nix::Result<i32> {
    let mount = File::open(path).unwrap();
    let mut unused = 0;
    // SAFETY: the descriptor is open, and the kernel does not look at the argument.
    #[allow(unsafe_code, reason = "FIFREEZE has no safe wrapper")]
    unsafe {
        ioctl::freeze(std::os::fd::AsRawFd::as_raw_fd(&mount), &raw mut unused)
    }
}

#[test]
fn file_system_left_frozen_is_thawed_at_the_start() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(16));
        let staging = harness.staging("s");
        harness.node().stage(&stage_request(&id, &staging, &filesystem(None))).unwrap();
        let entry: serde_json::Value =
            serde_json::from_slice(&fs::read(harness.journal(&id).join("stage.json")).unwrap()).unwrap();
        // A mount that cannot be thawed (it is not below the driver's directories) keeps nothing else frozen.
        for mounts in [json!(["/proc", staging]), json!([staging])] {
            let record = json!({ "version": 1, "mounts": mounts, "boot": entry["boot"] });
            let path = harness.state().join("journal/frozen-1-0.json");
            fs::write(&path, record.to_string()).unwrap();
            freeze(&staging).unwrap();
            let node = harness.node();
            assert_eq!(path.exists(), mounts[0] == "/proc");
            fs::write(staging.join("x"), "written").unwrap();
            drop(node);
        }
    });
}

#[test]
fn raw_and_unused_volumes_are_held_without_a_freeze() {
    harness(|harness| {
        let node = harness.node();
        let (raw, unused) = (harness.volume("raw", Bytes::mib(8)), harness.volume("unused", Bytes::mib(8)));
        let staging = harness.staging("s");
        node.stage(&stage_request(&raw, &staging, &block())).unwrap();
        let device = File::options().write(true).open(harness.device(&raw).unwrap()).unwrap();
        device.write_all_at(&[7; 4096], 0).unwrap();
        let held = node.freeze(&[raw.clone(), unused.clone()]).unwrap();
        assert_eq!([held.writers(&raw), held.writers(&unused)], [Writers::None, Writers::None], "published nowhere");
        // Past the page cache of the loop device, which is not the image's.
        let mut first = [0; 1];
        File::open(harness.backend.path(&raw)).unwrap().read_exact_at(&mut first, 0).unwrap();
        assert_eq!(first, [7], "what was written is in the image");
        held.release().unwrap();
        let target = harness.kubelet("target");
        node.publish(&publish_request(&raw, &staging, &target, &block())).unwrap();
        let held = node.freeze(std::slice::from_ref(&raw)).unwrap();
        let how = format!("{:?}", held.writers(&raw));
        assert!(how.starts_with("Possible") && how.contains(target.to_str().unwrap()), "{how}");
        held.release().unwrap();
        unpublish(&node, &raw, &target).unwrap();
        assert_eq!(names(&harness.state().join("journal")), [raw.to_string()]);
    });
}

/// Its backend has left the configuration: no call says that the volume does not exist, and those that need no backend continue.
#[test]
fn volume_of_a_backend_that_left_the_configuration_is_not_called_missing() {
    for capability in [filesystem(None), block()] {
        harness(|harness| {
            let id = harness.volume("a", Bytes::mib(16));
            let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
            let (stage, publish) =
                (stage_request(&id, &staging, &capability), publish_request(&id, &staging, &target, &capability));
            let node = harness.node();
            node.stage(&stage).unwrap();
            node.publish(&publish).unwrap();
            drop(node);

            let node = harness.node_without_backend();
            let handle = Handle::Id(id.clone());
            let down = |call: &str, error: Error| {
                let text = error.to_string();
                assert!(matches!(&error, Error::BackendUnavailable { backend, .. } if backend == "files"), "{call}: {text}");
                assert!(text.contains("not in the configuration") && text.contains(&id.to_string()), "{call}: {text}");
            };
            let expand =
                ExpandRequest { handle: handle.clone(), path: target.clone(), staging: None, required: None, block: None };
            down("stage", node.stage(&stage).unwrap_err());
            down("publish", node.publish(&publish).unwrap_err());
            down("stats", node.stats(&handle, &target).unwrap_err());
            down("health", node.health(&handle, Some(&target), Some(&staging)).unwrap_err());
            down("expand", node.expand(&expand).unwrap_err());
            assert!(node.in_use(&id).unwrap().is_some());
            unpublish(&node, &id, &target).unwrap();
            down("unstage", unstage(&node, &id, &staging).unwrap_err());
            assert!(harness.journal(&id).exists(), "it is still connected");
            drop(node);

            unstage(&harness.node(), &id, &staging).unwrap();
            harness.assert_gone(&id);
        });
    }
}

/// What an earlier version finds after a downgrade: it touches nothing, and says why.
#[test]
fn entry_of_a_later_version_keeps_its_volume_and_all_calls_say_so() {
    harness(|harness| {
        let id = harness.volume("a", Bytes::mib(16));
        let (staging, target) = (harness.staging("s"), harness.kubelet("t"));
        let (stage, publish) =
            (stage_request(&id, &staging, &filesystem(None)), publish_request(&id, &staging, &target, &filesystem(None)));
        let node = harness.node();
        node.stage(&stage).unwrap();
        node.publish(&publish).unwrap();
        drop(node);
        let mut files: Vec<_> = names(&harness.journal(&id)).into_iter().map(|name| harness.journal(&id).join(name)).collect();
        files.sort();
        let earlier: Vec<_> = files.iter().map(|path| fs::read(path).unwrap()).collect();
        harness.edit_journal_entries(&id, |entry| {
            entry["version"] = (entry["version"].as_u64().unwrap() + 1).into();
            entry["added"] = json!({ "by": "a later version" });
        });
        let later: Vec<_> = files.iter().map(|path| fs::read(path).unwrap()).collect();

        let node = harness.node();
        let handle = Handle::Id(id.clone());
        let errors = [
            node.stage(&stage).unwrap_err(),
            node.publish(&publish).unwrap_err(),
            node.stats(&handle, &target).unwrap_err(),
            node.health(&handle, None, None).unwrap_err(),
            unpublish(&node, &id, &target).unwrap_err(),
            unstage(&node, &id, &staging).unwrap_err(),
            node.in_use(&id).unwrap_err(),
        ];
        for error in errors {
            let text = longshore::volume::error::chain(&error);
            assert!(!is_final(&error) && text.contains("written by another version of Longshore (form 4"), "{text}");
        }
        assert_eq!((mounts_at(&staging).len(), mounts_at(&target).len(), harness.device(&id).is_some()), (1, 1, true));
        let mut left: Vec<_> = names(&harness.journal(&id)).into_iter().map(|name| harness.journal(&id).join(name)).collect();
        left.sort();
        assert_eq!(left, files);
        assert_eq!(files.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>(), later);
        drop(node);

        for (path, content) in files.iter().zip(&earlier) {
            fs::write(path, content).unwrap();
        }
        let node = harness.node();
        unpublish(&node, &id, &target).unwrap();
        unstage(&node, &id, &staging).unwrap();
        harness.assert_gone(&id);
    });
}

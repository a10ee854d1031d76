//! A volume's whole life through the socket, seen by what the kernel shows.

mod common;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{
    Harness, LoopDevice, MIB, Pool, capability, create, isolated, mounts_at, publish_request, run, skipped, stage_request, text,
};
use longshore::csi;
use longshore::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, mknod};
use tonic::Code;

const NONE: Option<&str> = None;

/// A volume that is staged and published.
struct Placed {
    volume: csi::Volume,
    capability: csi::VolumeCapability,
    staging: PathBuf,
    target: PathBuf,
}

impl Placed {
    fn stage_request(&self) -> csi::NodeStageVolumeRequest {
        csi::NodeStageVolumeRequest {
            volume_context: self.volume.volume_context.clone(),
            ..stage_request(self.volume.volume_id.clone(), &self.staging, self.capability.clone())
        }
    }

    fn publish_request(&self) -> csi::NodePublishVolumeRequest {
        csi::NodePublishVolumeRequest {
            volume_context: self.volume.volume_context.clone(),
            ..publish_request(self.volume.volume_id.clone(), &self.staging, &self.target, self.capability.clone())
        }
    }
}

/// Creates, stages and publishes, each twice: a repeat changes nothing.
fn place(harness: &Harness, request: csi::CreateVolumeRequest) -> Placed {
    let (mut controller, mut node) = (harness.controller(), harness.node());
    let name = request.name.clone();
    let capability = request.volume_capabilities[0].clone();
    let volume =
        harness.block_on(controller.create_volume(request.clone())).expect("created").into_inner().volume.expect("a volume");
    let again =
        harness.block_on(controller.create_volume(request)).expect("created already").into_inner().volume.expect("a volume");
    assert_eq!(volume.volume_id, again.volume_id);
    let placed = Placed { volume, capability, staging: harness.staging(&name), target: harness.target(&name) };
    for _ in 0..2 {
        harness.block_on(node.node_stage_volume(placed.stage_request())).expect("staged");
    }
    for _ in 0..2 {
        harness.block_on(node.node_publish_volume(placed.publish_request())).expect("published");
    }
    assert_eq!(mounts_at(&placed.target), 1, "exactly one mount at the target");
    placed
}

fn unpublish_request(placed: &Placed) -> csi::NodeUnpublishVolumeRequest {
    csi::NodeUnpublishVolumeRequest { volume_id: placed.volume.volume_id.clone(), target_path: text(&placed.target) }
}

fn unstage_request(placed: &Placed) -> csi::NodeUnstageVolumeRequest {
    csi::NodeUnstageVolumeRequest { volume_id: placed.volume.volume_id.clone(), staging_target_path: text(&placed.staging) }
}

/// The inverse of `place`, each twice.
fn remove(harness: &Harness, placed: &Placed) {
    let (mut controller, mut node) = (harness.controller(), harness.node());
    for _ in 0..2 {
        harness.block_on(node.node_unpublish_volume(unpublish_request(placed))).expect("unpublished");
    }
    assert!(!placed.target.exists(), "the target is gone");
    for _ in 0..2 {
        harness.block_on(node.node_unstage_volume(unstage_request(placed))).expect("unstaged");
    }
    for _ in 0..2 {
        let request = csi::DeleteVolumeRequest { volume_id: placed.volume.volume_id.clone(), ..Default::default() };
        harness.block_on(controller.delete_volume(request)).expect("deleted");
    }
}

fn snapshot(harness: &Harness, name: &str, placed: &Placed) -> csi::Snapshot {
    let request = csi::CreateSnapshotRequest {
        source_volume_id: placed.volume.volume_id.clone(),
        name: name.to_owned(),
        ..Default::default()
    };
    let taken = harness.block_on(harness.controller().create_snapshot(request)).expect("a snapshot");
    taken.into_inner().snapshot.expect("a snapshot")
}

fn delete_snapshot(harness: &Harness, id: &str) {
    let request = csi::DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
    harness.block_on(harness.controller().delete_snapshot(request)).expect("deleted");
}

/// Bytes of the file system's total, by statvfs.
fn total(path: &Path) -> i64 {
    let stat = nix::sys::statvfs::statvfs(path).expect("a mounted file system");
    i64::try_from(stat.blocks() * stat.fragment_size()).expect("a size")
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u64).wrapping_mul(2_654_435_761).to_le_bytes()[2] ^ seed).collect()
}

/// Create, stage, publish, write, snapshot, expand while in use, restore into a larger volume, compare, tear down.
fn life(pool: Pool, fstype: &'static str, grows_online: bool) {
    isolated(move || {
        let mut harness = Harness::new(pool);
        harness.start();
        let placed = place(&harness, create("first", 320, Some(fstype), "image"));
        let first = pattern(1, 3 << 20);
        fs::write(placed.target.join("data"), &first).expect("written");

        let stats = csi::NodeGetVolumeStatsRequest {
            volume_id: placed.volume.volume_id.clone(),
            volume_path: text(&placed.target),
            staging_target_path: text(&placed.staging),
        };
        let usage = harness.block_on(harness.node().node_get_volume_stats(stats)).expect("statistics").into_inner().usage;
        assert_eq!(usage[0].total, total(&placed.target));

        let taken = snapshot(&harness, "then", &placed);
        assert!(taken.ready_to_use);
        fs::write(placed.target.join("data"), pattern(2, 3 << 20)).expect("not frozen any more");

        if grows_online {
            let before = total(&placed.target);
            let range = Some(csi::CapacityRange { required_bytes: 512 * MIB, limit_bytes: 0 });
            let grow = csi::ControllerExpandVolumeRequest {
                volume_id: placed.volume.volume_id.clone(),
                capacity_range: range,
                ..Default::default()
            };
            let answer = harness.block_on(harness.controller().controller_expand_volume(grow)).expect("expanded").into_inner();
            assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (512 * MIB, true));
            let grow = csi::NodeExpandVolumeRequest {
                volume_id: placed.volume.volume_id.clone(),
                volume_path: text(&placed.target),
                staging_target_path: text(&placed.staging),
                capacity_range: range,
                ..Default::default()
            };
            harness.block_on(harness.node().node_expand_volume(grow)).expect("grown");
            assert!(total(&placed.target) > before + 150 * MIB, "the file system has grown while it was in use");
        }

        let mut request = create("second", 640, Some(fstype), "image");
        request.volume_content_source = Some(csi::VolumeContentSource {
            r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id: taken.snapshot_id.clone() })),
        });
        let mut small = csi::CreateVolumeRequest { name: "small".to_owned(), ..request.clone() };
        small.capacity_range = Some(csi::CapacityRange { required_bytes: MIB, limit_bytes: 300 * MIB });
        let status = harness.block_on(harness.controller().create_volume(small.clone())).expect_err("smaller than its source");
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
        small.capacity_range = Some(csi::CapacityRange { required_bytes: MIB, limit_bytes: 0 });
        let small =
            harness.block_on(harness.controller().create_volume(small)).expect("made").into_inner().volume.expect("a volume");
        assert_eq!(small.capacity_bytes, taken.size_bytes, "as large as what was copied");
        let delete = csi::DeleteVolumeRequest { volume_id: small.volume_id, ..Default::default() };
        harness.block_on(harness.controller().delete_volume(delete)).expect("deleted");
        let restored = place(&harness, request);
        assert_eq!(fs::read(restored.target.join("data")).expect("restored"), first, "byte by byte what it was then");
        assert!(total(&restored.target) > 500 * MIB, "it has grown to the larger volume: {}", total(&restored.target));

        let mut request = create("third", 640, Some(fstype), "image");
        request.volume_content_source = Some(csi::VolumeContentSource {
            r#type: Some(Type::Volume(VolumeSource { volume_id: placed.volume.volume_id.clone() })),
        });
        let cloned = place(&harness, request);
        assert_eq!(fs::read(cloned.target.join("data")).expect("cloned"), pattern(2, 3 << 20));

        let listed =
            harness.block_on(harness.controller().list_volumes(csi::ListVolumesRequest::default())).expect("a list").into_inner();
        assert_eq!(listed.entries.len(), 3);
        for entry in &listed.entries {
            assert_eq!(entry.status.as_ref().expect("a status").published_node_ids, ["node-1"]);
        }
        for placed in [&cloned, &restored, &placed] {
            remove(&harness, placed);
        }
        delete_snapshot(&harness, &taken.snapshot_id);
        assert!(harness.stop(), "SIGTERM ends it with success");
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

#[test]
fn list_of_many_volumes_names_the_node_of_the_one_that_is_staged() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        for number in 0..150 {
            harness
                .block_on(harness.controller().create_volume(create(&format!("v{number}"), 16, Some("ext4"), "image")))
                .expect("created");
        }
        let placed = place(&harness, create("v77", 16, Some("ext4"), "image"));
        let published = || {
            let list = harness.block_on(harness.controller().list_volumes(csi::ListVolumesRequest::default()));
            let entries = list.expect("a list").into_inner().entries;
            let count = entries.len();
            let nodes = |entry: &csi::list_volumes_response::Entry| entry.status.clone().unwrap_or_default().published_node_ids;
            let published = entries.iter().filter(|entry| !nodes(entry).is_empty());
            let published = published.map(|entry| (entry.volume.clone().unwrap_or_default().volume_id, nodes(entry)));
            (count, published.collect::<Vec<_>>())
        };
        assert_eq!(published(), (150, vec![(placed.volume.volume_id.clone(), vec!["node-1".to_owned()])]));
        remove(&harness, &placed);
        assert_eq!(published(), (149, vec![]));
    });
}

#[test]
fn ext4_on_a_pool_with_reflinks() {
    life(Pool::Xfs, "ext4", false);
}

#[test]
fn xfs_on_a_pool_with_reflinks() {
    life(Pool::Xfs, "xfs", true);
}

#[test]
fn btrfs_on_a_pool_with_reflinks() {
    life(Pool::Xfs, "btrfs", true);
}

/// udev scans a device by its name below /dev/mapper (btrfs-progs, 64-btrfs-dm.rules), an administrator by any: mountinfo shows that name.
#[test]
fn btrfs_whose_device_was_scanned_by_another_name() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let placed = place(&harness, create("v", 200, Some("btrfs"), "image"));
        let source = || PathBuf::from(run("findmnt", ["-n", "-o", "SOURCE", &text(&placed.target)]));
        let number = fs::metadata(source()).expect("a device").rdev();
        // The file system of /dev is not this test's alone.
        let directory = tempfile::Builder::new().prefix("longshore-test-").tempdir_in("/dev").expect("a directory");
        let alias = directory.path().join("alias");
        mknod(&alias, SFlag::S_IFBLK, Mode::S_IRUSR | Mode::S_IWUSR, number).expect("a node");
        run("btrfs", ["device", "scan", &text(&alias)]);
        assert_eq!(source(), alias);
        let other = harness.path("kubelet/pods/other/volumes/v/mount");
        fs::create_dir_all(other.parent().expect("a parent")).expect("a directory");
        let request = csi::NodePublishVolumeRequest { target_path: text(&other), ..placed.publish_request() };
        harness.block_on(harness.node().node_publish_volume(request)).expect("published");
        harness.kill();
        harness.start();
        let inspected = harness.command("inspect").output().expect("it runs");
        assert!(inspected.status.success(), "{}", String::from_utf8_lossy(&inspected.stdout));
        let request = csi::NodeUnpublishVolumeRequest { volume_id: placed.volume.volume_id.clone(), target_path: text(&other) };
        harness.block_on(harness.node().node_unpublish_volume(request)).expect("unpublished");
        remove(&harness, &placed);
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

#[test]
fn xfs_on_a_pool_without_reflinks() {
    life(Pool::Local, "xfs", true);
}

#[test]
fn a_raw_block_volume_keeps_its_bytes_and_read_only_stops_writes() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let placed = place(&harness, create("raw", 16, None, "image"));
        let mut device = fs::OpenOptions::new().read(true).write(true).open(&placed.target).expect("the device");
        assert_eq!(device.seek(SeekFrom::End(0)).expect("a size"), 16 << 20);
        device.seek(SeekFrom::Start(0)).expect("a seek");
        device.write_all(b"written once").expect("writable");
        device.sync_all().expect("synced");
        drop(device);

        harness.block_on(harness.node().node_unpublish_volume(unpublish_request(&placed))).expect("unpublished");
        let request = csi::NodePublishVolumeRequest { readonly: true, ..placed.publish_request() };
        harness.block_on(harness.node().node_publish_volume(request)).expect("published read-only");
        let mut content = [0; 12];
        fs::File::open(&placed.target).expect("readable").read_exact(&mut content).expect("read");
        assert_eq!(&content, b"written once");
        let write = fs::OpenOptions::new().write(true).open(&placed.target).and_then(|mut device| {
            device.write_all(b"overwritten!")?;
            device.sync_all()
        });
        assert!(write.is_err(), "a read-only raw block volume was written");
        remove(&harness, &placed);
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

/// kubernetes, pkg/volume/csi/csi_block.go, `NewBlockVolumeMapper`: the path of a raw block volume's statistics is the kubelet's own bind mount.
#[test]
fn statistics_of_raw_block_are_of_where_the_kubelet_has_bound_the_device() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let [placed, other] = ["raw", "other"].map(|name| place(&harness, create(name, 16, None, "image")));
        let bound = harness.path("kubelet/plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev");
        fs::create_dir_all(&bound).expect("a directory");
        let bind = |name: &str, device: &Path| {
            let point = bound.join(name);
            fs::write(&point, "").expect("a file");
            mount(Some(device), &point, NONE, MsFlags::MS_BIND, NONE).expect("bound");
            point
        };
        let [ours, others] = [bind("pod", &placed.target), bind("other", &other.target)];
        let file = bound.join("file");
        fs::write(&file, "").expect("a file");
        let stats = |path: &Path| {
            let request = csi::NodeGetVolumeStatsRequest {
                volume_id: placed.volume.volume_id.clone(),
                volume_path: text(path),
                staging_target_path: text(&placed.staging),
            };
            harness.block_on(harness.node().node_get_volume_stats(request)).map(|answer| answer.into_inner().usage)
        };
        assert_eq!(stats(&placed.target).expect("statistics")[0].total, 16 << 20);
        assert_eq!(stats(&ours).expect("statistics")[0].total, 16 << 20);
        for path in [&others, &file, &bound.join("nothing"), &other.target] {
            assert_eq!(stats(path).expect_err("not of this volume").code(), Code::NotFound, "{}", path.display());
        }
        let grow = csi::NodeExpandVolumeRequest {
            volume_id: placed.volume.volume_id.clone(),
            volume_path: text(&ours),
            ..Default::default()
        };
        let refused = harness.block_on(harness.node().node_expand_volume(grow)).expect_err("no place of the journal");
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
        for point in [&ours, &others] {
            umount2(point, MntFlags::empty()).expect("unmounted");
        }
        for placed in [&placed, &other] {
            remove(&harness, placed);
        }
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

#[test]
fn a_read_only_publish_cannot_be_written_while_another_can() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let placed = place(&harness, create("shared", 64, Some("ext4"), "image"));
        let reader = harness.target("reader");
        let request = csi::NodePublishVolumeRequest { readonly: true, target_path: text(&reader), ..placed.publish_request() };
        harness.block_on(harness.node().node_publish_volume(request)).expect("published read-only");
        fs::write(placed.target.join("file"), "seen").expect("writable there");
        assert_eq!(fs::read_to_string(reader.join("file")).expect("readable here"), "seen");
        let refused = fs::write(reader.join("file"), "no").expect_err("not writable here");
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));

        let refused =
            harness.block_on(harness.node().node_unstage_volume(unstage_request(&placed))).expect_err("still published");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let request = csi::NodeUnpublishVolumeRequest { target_path: text(&reader), ..unpublish_request(&placed) };
        harness.block_on(harness.node().node_unpublish_volume(request)).expect("unpublished");
        remove(&harness, &placed);
        harness.assert_nothing_left();
    });
}

#[test]
fn read_write_once_pod_is_published_once() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let mut request = create("single", 64, Some("ext4"), "image");
        let mode = csi::volume_capability::access_mode::Mode::SingleNodeSingleWriter;
        request.volume_capabilities[0].access_mode = Some(csi::volume_capability::AccessMode { mode: mode.into() });
        let placed = place(&harness, request);
        let second = harness.target("second-pod");
        let request = csi::NodePublishVolumeRequest { target_path: text(&second), ..placed.publish_request() };
        let refused = harness.block_on(harness.node().node_publish_volume(request)).expect_err("a second pod");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(!second.exists(), "nothing is left of the refused publish");
        remove(&harness, &placed);
        harness.assert_nothing_left();
    });
}

#[test]
fn publish_of_a_volume_that_is_not_staged_fails() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let request = create("unstaged", 64, Some("ext4"), "image");
        let volume = harness.block_on(harness.controller().create_volume(request.clone())).expect("created").into_inner().volume;
        let placed = Placed {
            volume: volume.expect("a volume"),
            capability: capability(Some("ext4")),
            staging: harness.staging("unstaged"),
            target: harness.target("unstaged"),
        };
        let refused = harness.block_on(harness.node().node_publish_volume(placed.publish_request())).expect_err("not staged");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(!placed.target.exists());

        // After a stage that someone else unmounted, too: a pod must not write into the node's own disk.
        harness.block_on(harness.node().node_stage_volume(placed.stage_request())).expect("staged");
        umount2(&placed.staging, MntFlags::UMOUNT_NOFOLLOW).expect("unmounted behind its back");
        let refused = harness.block_on(harness.node().node_publish_volume(placed.publish_request())).expect_err("not staged");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        harness.block_on(harness.node().node_stage_volume(placed.stage_request())).expect("staged again");
        harness.block_on(harness.node().node_publish_volume(placed.publish_request())).expect("published");
        remove(&harness, &placed);
        harness.assert_nothing_left();
    });
}

const INLINE: &str = "csi-4f2c8a0f5d5d9f3c2b8b8f6d5f4c3b2a1908f7e6d5c4b3a29180f7e6d5c4b3a2";

fn inline_request(target: &Path) -> csi::NodePublishVolumeRequest {
    let context = [("csi.storage.k8s.io/ephemeral", "true"), ("size", "64MiB"), ("backend", "image")];
    csi::NodePublishVolumeRequest {
        volume_id: INLINE.to_owned(),
        target_path: text(target),
        volume_capability: Some(capability(Some("ext4"))),
        volume_context: context.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect::<HashMap<_, _>>(),
        ..Default::default()
    }
}

#[test]
fn an_inline_volume_lives_from_publish_to_unpublish() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let target = harness.target("inline");
        let request = inline_request(&target);
        for _ in 0..2 {
            harness.block_on(harness.node().node_publish_volume(request.clone())).expect("published");
        }
        assert_eq!(mounts_at(&target), 1);
        fs::write(target.join("scratch"), "x").expect("writable");
        let request = csi::NodeUnpublishVolumeRequest { volume_id: INLINE.to_owned(), target_path: text(&target) };
        for _ in 0..2 {
            harness.block_on(harness.node().node_unpublish_volume(request.clone())).expect("unpublished");
        }
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

#[test]
fn the_group_of_a_pod_can_write() {
    isolated(|| {
        use std::os::unix::fs::MetadataExt;
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let mut request = create("group", 64, Some("ext4"), "image");
        if let Some(csi::volume_capability::AccessType::Mount(mount)) = &mut request.volume_capabilities[0].access_type {
            mount.volume_mount_group = "4711".to_owned();
        }
        let placed = place(&harness, request);
        let root = fs::metadata(&placed.target).expect("mounted");
        assert_eq!(root.gid(), 4711);
        assert_eq!(root.mode() & 0o2070, 0o2070, "setgid, and the group may write: {:o}", root.mode());
        remove(&harness, &placed);
        harness.assert_nothing_left();
    });
}

#[test]
fn changed_blocks_are_what_was_written() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let placed = place(&harness, create("tracked", 64, None, "image"));
        let write = |offset: u64, byte: u8| {
            let mut device = fs::OpenOptions::new().write(true).open(&placed.target).expect("the device");
            device.seek(SeekFrom::Start(offset)).expect("a seek");
            device.write_all(&[byte; 4096]).expect("written");
            device.sync_all().expect("synced");
        };
        write(8192, 1);
        write(40 << 20, 1);
        let base = snapshot(&harness, "base", &placed);
        write(40 << 20, 2);
        write(50 << 20, 2);
        let target = snapshot(&harness, "target", &placed);

        let mut metadata = harness.metadata();
        let allocated = harness.block_on(async {
            let request = csi::GetMetadataAllocatedRequest { snapshot_id: base.snapshot_id.clone(), ..Default::default() };
            let mut stream = metadata.get_metadata_allocated(request).await.expect("a stream").into_inner();
            let mut blocks = Vec::new();
            while let Some(message) = stream.message().await.expect("a message") {
                assert_eq!(message.volume_capacity_bytes, 64 * MIB);
                blocks.extend(message.block_metadata.into_iter().map(|block| (block.byte_offset, block.size_bytes)));
            }
            blocks
        });
        assert_eq!(allocated, [(8192, 4096), (40 << 20, 4096)]);

        let delta = |starting_offset: i64| {
            let (base, target) = (base.snapshot_id.clone(), target.snapshot_id.clone());
            let request = csi::GetMetadataDeltaRequest {
                base_snapshot_id: base,
                target_snapshot_id: target,
                starting_offset,
                max_results: 1,
                ..Default::default()
            };
            let mut metadata = harness.metadata();
            harness.block_on(async {
                let mut stream = metadata.get_metadata_delta(request).await.expect("a stream").into_inner();
                let mut blocks = Vec::new();
                while let Some(message) = stream.message().await.expect("a message") {
                    assert!(message.block_metadata.len() <= 1, "max_results");
                    blocks.extend(message.block_metadata.into_iter().map(|block| (block.byte_offset, block.size_bytes)));
                }
                blocks
            })
        };
        assert_eq!(delta(0), [(40 << 20, 4096), (50 << 20, 4096)]);
        assert_eq!(delta(45 << 20), [(50 << 20, 4096)]);
        for id in [&base.snapshot_id, &target.snapshot_id] {
            delete_snapshot(&harness, id);
        }
        remove(&harness, &placed);
        harness.assert_pool_empty();
    });
}

#[test]
fn a_group_of_snapshots_is_of_one_instant() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let placed: Vec<Placed> = ["a", "b"].map(|name| place(&harness, create(name, 64, Some("ext4"), "image"))).into();
        let request = csi::CreateVolumeGroupSnapshotRequest {
            name: "both".to_owned(),
            source_volume_ids: placed.iter().map(|placed| placed.volume.volume_id.clone()).collect(),
            ..Default::default()
        };
        let taken = harness.block_on(harness.groups().create_volume_group_snapshot(request)).expect("a group").into_inner();
        let group = taken.group_snapshot.expect("a group");
        assert_eq!(group.snapshots.len(), 2);
        assert!(group.snapshots.iter().all(|member| member.group_snapshot_id == group.group_snapshot_id && member.ready_to_use));
        let request = csi::DeleteSnapshotRequest { snapshot_id: group.snapshots[0].snapshot_id.clone(), ..Default::default() };
        harness.block_on(harness.controller().delete_snapshot(request)).expect_err("a member goes with its group only");
        let request = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id.clone(),
            snapshot_ids: group.snapshots.iter().map(|member| member.snapshot_id.clone()).collect(),
            ..Default::default()
        };
        for _ in 0..2 {
            harness.block_on(harness.groups().delete_volume_group_snapshot(request.clone())).expect("deleted");
        }
        for placed in &placed {
            remove(&harness, placed);
        }
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

/// A member that an administrator gave up is no reason to keep the others for ever; one that is damaged is left until then.
#[test]
fn group_is_deleted_once_its_damaged_member_is_removed_by_hand() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        for name in ["a", "b"] {
            harness.block_on(harness.controller().create_volume(create(name, 16, None, "image"))).expect("created");
        }
        for restarted in [false, true] {
            let request = csi::CreateVolumeGroupSnapshotRequest {
                name: "both".to_owned(),
                source_volume_ids: vec!["image:a".to_owned(), "image:b".to_owned()],
                ..Default::default()
            };
            let taken = harness.block_on(harness.groups().create_volume_group_snapshot(request)).expect("a group");
            let group = taken.into_inner().group_snapshot.expect("a group");
            let ids: Vec<String> = group.snapshots.iter().map(|member| member.snapshot_id.clone()).collect();
            let member = harness.path("pool/images/snapshots").join(ids[0].split_once(':').expect("an id").1);
            let request = csi::DeleteVolumeGroupSnapshotRequest {
                group_snapshot_id: group.group_snapshot_id,
                snapshot_ids: ids,
                ..Default::default()
            };
            let delete = |harness: &Harness| harness.block_on(harness.groups().delete_volume_group_snapshot(request.clone()));
            fs::write(member.join("meta.json"), "{").expect("written");
            let status = delete(&harness).expect_err("a member is damaged");
            assert!(status.message().contains("meta.json"), "{status}");
            assert_eq!(fs::read_dir(harness.path("pool/images/snapshots")).expect("a directory").count(), 2);
            ["image", "meta.json"].iter().for_each(|file| fs::remove_file(member.join(file)).expect("removed"));
            fs::remove_dir(&member).expect("removed");
            if restarted {
                harness.kill();
                harness.start();
            }
            for _ in 0..2 {
                delete(&harness).unwrap_or_else(|status| panic!("restarted: {restarted}: {status}"));
            }
            assert_eq!(fs::read_dir(harness.path("pool/images/snapshots")).expect("a directory").count(), 0);
        }
        for name in ["a", "b"] {
            let request = csi::DeleteVolumeRequest { volume_id: format!("image:{name}"), ..Default::default() };
            harness.block_on(harness.controller().delete_volume(request)).expect("deleted");
        }
        harness.assert_pool_empty();
    });
}

#[test]
fn a_snapshot_is_usable_where_its_volume_is_and_says_so() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let volume = harness.block_on(harness.controller().create_volume(create("here", 16, None, "image"))).expect("created");
        let place = volume.into_inner().volume.expect("a volume").accessible_topology;
        assert_eq!(place[0].segments["topology.longshore.csi.dev/node"], "node-1");
        let request = |node: &str| csi::CreateSnapshotRequest {
            source_volume_id: "image:here".to_owned(),
            name: format!("at-{node}"),
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: vec![csi::Topology {
                    segments: HashMap::from([("topology.longshore.csi.dev/node".to_owned(), node.to_owned())]),
                }],
                preferred: Vec::new(),
            }),
            ..Default::default()
        };
        let taken = harness.block_on(harness.controller().create_snapshot(request("node-1"))).expect("a snapshot").into_inner();
        let taken = taken.snapshot.expect("a snapshot");
        assert!(taken.accessible_topology == place);
        let refused = harness.block_on(harness.controller().create_snapshot(request("node-2"))).expect_err("not from there");
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        delete_snapshot(&harness, &taken.snapshot_id);
        let request = csi::DeleteVolumeRequest { volume_id: "image:here".to_owned(), ..Default::default() };
        harness.block_on(harness.controller().delete_volume(request)).expect("deleted");
        harness.assert_pool_empty();
    });
}

/// The scheduler does not know where a local snapshot lies, and may choose another node for its restore.
#[test]
fn volume_of_a_source_that_another_node_may_have_is_handed_back_to_the_scheduler() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let snapshot = SnapshotSource { snapshot_id: "image:elsewhere".to_owned() };
        let volume = VolumeSource { volume_id: "image:elsewhere".to_owned() };
        for source in [Type::Snapshot(snapshot), Type::Volume(volume)] {
            let asked = |topology: Option<csi::TopologyRequirement>| {
                let request = csi::CreateVolumeRequest {
                    volume_content_source: Some(csi::VolumeContentSource { r#type: Some(source.clone()) }),
                    accessibility_requirements: topology,
                    ..create("restored", 16, None, "image")
                };
                harness.block_on(harness.controller().create_volume(request)).expect_err("it is not here")
            };
            let here =
                csi::Topology { segments: HashMap::from([("topology.longshore.csi.dev/node".to_owned(), "node-1".to_owned())]) };
            let refused = asked(Some(csi::TopologyRequirement { requisite: vec![here.clone()], preferred: vec![here] }));
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
            assert!(refused.message().contains("image:elsewhere does not exist on this node"), "{refused}");
            assert_eq!(asked(None).code(), Code::NotFound, "nobody could choose another node");
        }
        harness.assert_pool_empty();
    });
}

#[test]
fn node_info_of_several_backends_has_one_topology_prefix_and_the_smallest_limit() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        for (name, limit) in [("fast", 20), ("cold", 5)] {
            harness.configure(&format!(
                "  - name: {name}\n    type: ec2\n    cluster: test\n    region: eu-west-1\n    zone: eu-west-1a\n    volumeAttachLimit: {limit}"
            ));
        }
        harness.set_node_id("i-0123456789abcdef0");
        harness.set("AWS_EC2_METADATA_DISABLED", "true");
        harness.start();
        let info = harness.block_on(harness.node().node_get_info(csi::NodeGetInfoRequest {})).expect("known").into_inner();
        assert_eq!(info.max_volumes_per_node, 5, "more of them would be sent here than the smaller limit lets in");
        let keys: Vec<String> = info.accessible_topology.expect("segments").segments.into_keys().collect();
        assert!(keys.len() == 2 && keys.iter().all(|key| key.starts_with("topology.longshore.csi.dev/")), "{keys:?}");
    });
}

/// An instance metadata service, in a thread that ends with the process. While it is away it answers nobody.
fn instance_metadata(away: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let away = Arc::clone(away);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let path = lines.next().and_then(|line| Some(line.split(' ').nth(1)?.to_owned())).unwrap_or_default();
            lines.for_each(drop);
            if away.load(Ordering::SeqCst) {
                continue;
            }
            let body = match path.strip_prefix("/latest/").unwrap_or_default() {
                "api/token" => "token",
                "meta-data/instance-id" => "i-0123456789abcdef0",
                "meta-data/instance-type" => "m5.large",
                "meta-data/placement/availability-zone" => "eu-west-1b",
                _ => "",
            };
            let header = "x-aws-ec2-metadata-token-ttl-seconds: 600\r\nConnection: close";
            let _ = write!(stream, "HTTP/1.1 200 OK\r\n{header}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    endpoint
}

#[test]
fn driver_of_several_backends_serves_without_instance_metadata_and_registers_its_node_only_rightly() {
    if fs::read_to_string("/sys/class/dmi/id/board_asset_tag").is_ok_and(|tag| tag.starts_with("i-")) {
        return skipped("this machine is an instance of EC2, which is known without its metadata service");
    }
    isolated(|| {
        let away = Arc::new(AtomicBool::new(true));
        let mut harness = Harness::new(Pool::Local);
        harness.configure("  - name: ebs\n    type: ec2\n    cluster: test\n    region: eu-west-1");
        harness.set("AWS_EC2_METADATA_SERVICE_ENDPOINT", &instance_metadata(&away));
        let info = |harness: &Harness| {
            let info = harness.block_on(harness.node().node_get_info(csi::NodeGetInfoRequest {}))?.into_inner();
            let mut segments = info.accessible_topology.expect("segments").segments;
            let zone = segments.remove("topology.longshore.csi.dev/zone");
            Ok::<_, tonic::Status>((info.node_id, zone.unwrap_or_default()))
        };
        let known = ("i-0123456789abcdef0".to_owned(), "eu-west-1b".to_owned());

        harness.start();
        let volume = harness.block_on(harness.controller().create_volume(create("other", 8, None, "image")));
        let volume_id = volume.expect("the other backend serves").into_inner().volume.expect("a volume").volume_id;
        let status = info(&harness).expect_err("a CSINode without its zone would stay so");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("instance metadata") && status.message().contains("--node-id"), "{status}");

        away.store(false, Ordering::SeqCst);
        assert_eq!(info(&harness).expect("known without a restart"), known);
        harness.kill();
        away.store(true, Ordering::SeqCst);
        harness.start();
        assert_eq!(info(&harness).expect("as before"), known);

        harness
            .block_on(harness.controller().delete_volume(csi::DeleteVolumeRequest { volume_id, ..Default::default() }))
            .expect("deleted");
        harness.assert_pool_empty();
    });
}

#[test]
fn a_killed_driver_finds_everything_again() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let placed = place(&harness, create("kept", 64, Some("ext4"), "image"));
        fs::write(placed.target.join("file"), "kept").expect("written");
        harness.kill();
        assert_eq!(fs::read_to_string(placed.target.join("file")).expect("pods continue"), "kept");
        harness.start();
        harness.block_on(harness.node().node_publish_volume(placed.publish_request())).expect("published already");
        assert_eq!(mounts_at(&placed.target), 1);
        remove(&harness, &placed);
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

/// The state directory, the kubelet's and the pool lie on the node's only disk, and others write to it: pods must end all the same.
#[test]
fn volumes_of_a_node_whose_disk_is_full_are_unpublished_unstaged_and_deleted() {
    isolated(|| {
        for fstype in ["ext4", "xfs"] {
            let image = tempfile::NamedTempFile::new_in("/var/tmp").expect("a file");
            image.as_file().set_len(320 << 20).expect("its length");
            let device = LoopDevice::over(image.path());
            run(&format!("mkfs.{fstype}"), ["-q", &device.0]);
            let mut harness = Harness::new(Pool::Local);
            let disk = harness.path("disk");
            fs::create_dir(&disk).expect("a directory");
            mount(Some(device.0.as_str()), &disk, Some(fstype), MsFlags::empty(), NONE).expect("mounted");
            for name in ["state", "kubelet", "pool"] {
                fs::create_dir(disk.join(name)).expect("a directory");
                mount(Some(&disk.join(name)), &harness.path(name), NONE, MsFlags::MS_BIND, NONE).expect("bound");
            }
            fs::create_dir(harness.path("pool/images")).expect("a directory");
            harness.start();
            let others = [("mounted", Some("ext4")), ("raw", None), ("deleted", Some("ext4")), ("restarted", Some("ext4"))];
            let placed: Vec<Placed> =
                others.iter().map(|(name, fstype)| place(&harness, create(name, 16, *fstype, "image"))).collect();
            let target = harness.target("inline");
            harness.block_on(harness.node().node_publish_volume(inline_request(&target))).expect("published");

            let filler = fs::File::create_new(disk.join("filler")).expect("a file");
            let fills = || {
                for block in [1 << 20, 1 << 12, 1 << 10] {
                    while (&filler).write_all(&vec![1; block]).and_then(|()| filler.sync_all()).is_ok() {}
                }
            };
            for (number, placed) in placed.iter().enumerate() {
                fills();
                if number == 3 {
                    harness.kill();
                    harness.start();
                    fills();
                }
                let (mut controller, mut node) = (harness.controller(), harness.node());
                harness.block_on(node.node_unpublish_volume(unpublish_request(placed))).expect("unpublished");
                fills();
                harness.block_on(node.node_unstage_volume(unstage_request(placed))).expect("unstaged");
                fills();
                let request = csi::DeleteVolumeRequest { volume_id: placed.volume.volume_id.clone(), ..Default::default() };
                harness.block_on(controller.delete_volume(request)).expect("deleted");
            }
            fills();
            let request = csi::NodeUnpublishVolumeRequest { volume_id: INLINE.to_owned(), target_path: text(&target) };
            harness.block_on(harness.node().node_unpublish_volume(request)).expect("unpublished");
            harness.kill();
            let own = ["kubelet", "state"].map(|name| text(&harness.path(name)));
            assert!(harness.mounts().iter().all(|mount| own.contains(mount)), "{:?}", harness.mounts());
            assert_eq!([harness.loops(), harness.journal()].concat(), [""; 0]);
            harness.assert_pool_empty();
        }
    });
}

#[test]
fn a_volume_that_cannot_have_its_mutable_parameters_is_not_left_behind() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let mut request = create("torn", 8, None, "image");
        request.parameters.insert("preallocate".to_owned(), "true".to_owned());
        request.mutable_parameters.insert("preallocate".to_owned(), "false".to_owned());
        let status = harness.block_on(harness.controller().create_volume(request)).expect_err("a contradiction");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        harness.assert_pool_empty();
    });
}

/// A device's name and number are used again; a volume that once had it must not be taken for its user.
#[test]
fn a_device_that_became_another_volumes_does_not_keep_its_first_from_being_unstaged() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let [first, second] = ["first", "second"].map(|name| place(&harness, create(name, 16, Some("ext4"), "image")));
        harness.block_on(harness.node().node_unpublish_volume(unpublish_request(&first))).expect("unpublished");
        harness.kill();
        // As an unstage leaves it that ends between letting go of the device and forgetting it, and then a stage that gets
        // the same device.
        let entry = |name: &str| harness.path("state/journal").join(format!("image:{name}")).join("stage.json");
        let read =
            |name: &str| serde_json::from_slice::<serde_json::Value>(&fs::read(entry(name)).expect("a journal")).expect("JSON");
        let (mut forgotten, other) = (read("first"), read("second"));
        let device = forgotten["source"]["device"]["path"].as_str().expect("a device").to_owned();
        run("umount", [&first.staging]);
        run("losetup", ["--detach", &device]);
        for field in ["path", "number"] {
            forgotten["source"]["device"][field] = other["source"]["device"][field].clone();
        }
        fs::write(entry("first"), forgotten.to_string()).expect("written");
        harness.start();
        harness.block_on(harness.node().node_unstage_volume(unstage_request(&first))).expect("unstaged");
        assert_eq!(mounts_at(&second.target), 1, "the other volume is left as it is");
        remove(&harness, &first);
        remove(&harness, &second);
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

#[test]
fn a_client_that_only_keeps_its_connection_does_not_delay_the_end() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        let mut end = || {
            harness.start();
            let mut identity = harness.identity();
            harness.block_on(identity.probe(csi::ProbeRequest {})).expect("it answers");
            let begun = Instant::now();
            assert!(harness.stop_unheard(), "SIGTERM ends it with success");
            begun.elapsed()
        };
        // A slow machine delays one of them, what is wrong with us each.
        let quickest = [end(), end(), end()].into_iter().min();
        assert!(quickest < Some(Duration::from_millis(500)), "{quickest:?}");
    });
}

/// Damages the file system in an image with debugfs, as a crash of the machine might.
fn damage(harness: &Harness, requests: &[&str]) -> PathBuf {
    let image = harness.path("pool/images/volumes/hurt/image");
    for request in requests.iter().chain(&["set_super_value state 0"]) {
        run("debugfs", ["-w", "-R", request, &text(&image)]);
    }
    image
}

#[test]
fn errors_that_fsck_may_repair_are_repaired_before_the_mount_and_others_are_reported() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let placed = place(&harness, create("hurt", 64, Some("ext4"), "image"));
        fs::write(placed.target.join("file"), "kept").expect("written");
        let take_off = || {
            harness.block_on(harness.node().node_unpublish_volume(unpublish_request(&placed))).expect("unpublished");
            harness.block_on(harness.node().node_unstage_volume(unstage_request(&placed))).expect("unstaged");
        };
        take_off();
        let image = damage(&harness, &["set_super_value free_blocks_count 1"]);
        harness.block_on(harness.node().node_stage_volume(placed.stage_request())).expect("repaired and staged");
        harness.block_on(harness.node().node_publish_volume(placed.publish_request())).expect("published");
        assert_eq!(fs::read_to_string(placed.target.join("file")).expect("still there"), "kept");
        take_off();
        run("e2fsck", ["-fn", &text(&image)]);
        assert!(harness.log().contains("repaired errors"), "it is reported");

        damage(&harness, &["clri <2>"]);
        let before = fs::read(&image).expect("the image");
        let status =
            harness.block_on(harness.node().node_stage_volume(placed.stage_request())).expect_err("not for a machine to repair");
        assert!(status.message().contains("e2fsck"), "{status}");
        harness.assert_nothing_left();
        assert!(before.len() == fs::read(&image).expect("the image").len(), "it is neither formatted nor cut");
    });
}

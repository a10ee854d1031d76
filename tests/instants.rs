//! What a snapshot, a clone or a group holds while a pod writes: what was there at one instant, or the call is refused.

mod common;

use std::path::PathBuf;

use common::sequence::{Writer, last_of_one_instant, numbers};
use common::{Harness, Pool, create, isolated, text};
use longshore::csi;
use tonic::{Code, Status};

/// Blocks that a writer writes, over and over: so many that a byte copy of them takes longer than a write.
const BLOCKS: u64 = 4096;

/// A volume that is staged; the members say where.
struct Staged {
    id: String,
    request: csi::CreateVolumeRequest,
    context: std::collections::HashMap<String, String>,
    staging: PathBuf,
    target: PathBuf,
}

fn stage(harness: &Harness, name: &str, fstype: Option<&str>, pool: &str) -> Staged {
    // What mkfs.xfs takes at least.
    let mib = if fstype == Some("xfs") { 300 } else { 64 };
    let mut request = create(name, mib, fstype, "image");
    request.parameters.insert("pool".to_owned(), pool.to_owned());
    let made = harness.block_on(harness.controller().create_volume(request.clone())).expect("created").into_inner();
    let volume = made.volume.expect("a volume");
    let (staging, target) = (harness.staging(name), harness.target(name));
    let staged = Staged { id: volume.volume_id, request, context: volume.volume_context, staging, target };
    let request = csi::NodeStageVolumeRequest {
        volume_id: staged.id.clone(),
        staging_target_path: text(&staged.staging),
        volume_capability: staged.request.volume_capabilities.first().cloned(),
        volume_context: staged.context.clone(),
        ..Default::default()
    };
    harness.block_on(harness.node().node_stage_volume(request)).expect("staged");
    staged
}

fn publish(harness: &Harness, staged: &Staged, readonly: bool) {
    let request = csi::NodePublishVolumeRequest {
        volume_id: staged.id.clone(),
        staging_target_path: text(&staged.staging),
        target_path: text(&staged.target),
        volume_capability: staged.request.volume_capabilities.first().cloned(),
        volume_context: staged.context.clone(),
        readonly,
        ..Default::default()
    };
    harness.block_on(harness.node().node_publish_volume(request)).expect("published");
}

fn unpublish(harness: &Harness, staged: &Staged) {
    let request = csi::NodeUnpublishVolumeRequest { volume_id: staged.id.clone(), target_path: text(&staged.target) };
    harness.block_on(harness.node().node_unpublish_volume(request)).expect("unpublished");
}

fn place(harness: &Harness, name: &str, fstype: Option<&str>, pool: &str) -> Staged {
    let staged = stage(harness, name, fstype, pool);
    publish(harness, &staged, false);
    staged
}

fn remove(harness: &Harness, staged: Vec<Staged>) {
    for staged in staged {
        unpublish(harness, &staged);
        let request = csi::NodeUnstageVolumeRequest { volume_id: staged.id.clone(), staging_target_path: text(&staged.staging) };
        harness.block_on(harness.node().node_unstage_volume(request)).expect("unstaged");
        let request = csi::DeleteVolumeRequest { volume_id: staged.id, ..Default::default() };
        harness.block_on(harness.controller().delete_volume(request)).expect("deleted");
    }
    harness.assert_nothing_left();
}

fn snapshot(harness: &Harness, name: &str, of: &Staged) -> Result<csi::Snapshot, Status> {
    let request = csi::CreateSnapshotRequest { source_volume_id: of.id.clone(), name: name.to_owned(), ..Default::default() };
    let taken = harness.block_on(harness.controller().create_snapshot(request))?.into_inner();
    Ok(taken.snapshot.expect("a snapshot"))
}

fn delete_snapshot(harness: &Harness, taken: csi::Snapshot) {
    let request = csi::DeleteSnapshotRequest { snapshot_id: taken.snapshot_id, ..Default::default() };
    harness.block_on(harness.controller().delete_snapshot(request)).expect("deleted");
}

fn clone(harness: &Harness, name: &str, of: &Staged) -> Result<csi::Volume, Status> {
    use csi::volume_content_source::{Type, VolumeSource};
    let from = Type::Volume(VolumeSource { volume_id: of.id.clone() });
    let request = csi::CreateVolumeRequest {
        name: name.to_owned(),
        volume_content_source: Some(csi::VolumeContentSource { r#type: Some(from) }),
        ..of.request.clone()
    };
    Ok(harness.block_on(harness.controller().create_volume(request))?.into_inner().volume.expect("a volume"))
}

fn group(harness: &Harness, name: &str, of: &[&Staged]) -> Result<csi::VolumeGroupSnapshot, Status> {
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: of.iter().map(|staged| staged.id.clone()).collect(),
        ..Default::default()
    };
    let taken = harness.block_on(harness.groups().create_volume_group_snapshot(request))?.into_inner();
    Ok(taken.group_snapshot.expect("a group"))
}

fn delete_group(harness: &Harness, taken: &csi::VolumeGroupSnapshot) {
    let request = csi::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: taken.group_snapshot_id.clone(),
        snapshot_ids: taken.snapshots.iter().map(|member| member.snapshot_id.clone()).collect(),
        ..Default::default()
    };
    harness.block_on(harness.groups().delete_volume_group_snapshot(request)).expect("deleted");
}

fn local(id: &str) -> &str {
    id.split_once(':').expect("an id").1
}

fn image_of(harness: &Harness, pool: &str, snapshot: &csi::Snapshot) -> PathBuf {
    harness.path(pool).join("images/snapshots").join(local(&snapshot.snapshot_id)).join("image")
}

fn member(harness: &Harness, taken: &csi::VolumeGroupSnapshot, of: &Staged) -> PathBuf {
    let member = taken.snapshots.iter().find(|member| member.source_volume_id == of.id).expect("a member");
    image_of(harness, "pool", member)
}

/// Final, and nothing is in the pool that was not there before.
fn assert_refused(harness: &Harness, pool: &str, refused: &Status, reasons: &[&str]) {
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for reason in reasons {
        assert!(refused.message().contains(reason), "{reason}: {refused}");
    }
    for directory in ["snapshots", "groups", "tmp", "trash"] {
        let path = harness.path(pool).join("images").join(directory);
        let left: Vec<_> = std::fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "left by a refused call: {left:?}");
    }
}

#[test]
fn snapshot_of_written_raw_block_without_reflinks_is_refused_and_leaves_nothing() {
    isolated(|| {
        let mut harness = Harness::new(Pool::XfsAndExt4);
        harness.start();
        let raw = place(&harness, "raw", None, "plain");
        let writer = Writer::start(&[&raw.target], BLOCKS);
        let refused = snapshot(&harness, "s", &raw).expect_err("a copy takes time while it is written");
        assert_refused(&harness, "pool/plain", &refused, &[&text(&raw.target), "no reflinks", "xfs or btrfs"]);
        let refused = clone(&harness, "c", &raw).expect_err("a copy takes time while it is written");
        assert_refused(&harness, "pool/plain", &refused, &[&text(&raw.target)]);
        let refused = group(&harness, "g", &[&raw]).expect_err("a copy takes time while it is written");
        assert_refused(&harness, "pool/plain", &refused, &[&text(&raw.target)]);
        let last = writer.acknowledged();
        writer.wait_for(last + 10);
        drop(writer);
        remove(&harness, vec![raw]);
        harness.assert_pool_empty();
    });
}

#[test]
fn snapshot_of_raw_block_without_writers_is_taken_without_reflinks() {
    isolated(|| {
        let mut harness = Harness::new(Pool::XfsAndExt4);
        harness.start();
        let raw = place(&harness, "raw", None, "plain");
        drop(Writer::start(&[&raw.target], BLOCKS));
        unpublish(&harness, &raw);
        let staged = snapshot(&harness, "staged", &raw).expect("staged, but published nowhere");
        let last = last_of_one_instant(&image_of(&harness, "pool/plain", &staged), 0, BLOCKS);
        publish(&harness, &raw, true);
        let read_only = snapshot(&harness, "read-only", &raw).expect("its device refuses writes");
        assert_eq!(last_of_one_instant(&image_of(&harness, "pool/plain", &read_only), 0, BLOCKS), last);
        for taken in [staged, read_only] {
            delete_snapshot(&harness, taken);
        }
        remove(&harness, vec![raw]);
        harness.assert_pool_empty();
    });
}

/// A pod that was deleted by force continues, with the device open that its node was asked to unpublish.
#[test]
fn snapshot_of_unpublished_raw_block_with_open_writer_is_refused_without_reflinks() {
    isolated(|| {
        let mut harness = Harness::new(Pool::XfsAndExt4);
        harness.start();
        let raw = place(&harness, "raw", None, "plain");
        // As a container's runtime makes one for it.
        let node = harness.path("node");
        let device = nix::sys::stat::stat(&raw.target).expect("the device").st_rdev;
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
        nix::sys::stat::mknod(&node, nix::sys::stat::SFlag::S_IFBLK, mode, device).expect("a node");
        let writer = Writer::start(&[&node], BLOCKS);
        unpublish(&harness, &raw);
        let last = writer.acknowledged();
        writer.wait_for(last + 10);
        let refused = snapshot(&harness, "s", &raw).expect_err("it changed while it was copied");
        assert_refused(&harness, "pool/plain", &refused, &["written to while it was copied"]);
        drop(writer);
        delete_snapshot(&harness, snapshot(&harness, "s", &raw).expect("the writer has ended"));
        remove(&harness, vec![raw]);
        harness.assert_pool_empty();
    });
}

#[test]
fn snapshot_and_clone_of_written_raw_block_with_reflinks_are_of_one_instant() {
    for pool in [Pool::Xfs, Pool::Btrfs] {
        isolated(move || {
            let mut harness = Harness::new(pool);
            harness.start();
            let raw = place(&harness, "raw", None, "default");
            let writer = Writer::start(&[&raw.target], BLOCKS);
            for round in 0..5 {
                let before = writer.acknowledged();
                let taken = snapshot(&harness, &format!("s{round}"), &raw).expect("one instant of the image");
                let last = last_of_one_instant(&image_of(&harness, "pool", &taken), 0, BLOCKS);
                assert!(last >= before, "{pool:?}: {before} were acknowledged, the snapshot has {last}");
                // The snapshot's extents are shared: each is written elsewhere before the next one is taken.
                writer.wait_for(last + BLOCKS);
                delete_snapshot(&harness, taken);
            }
            let copy = clone(&harness, "copy", &raw).expect("one instant of the image");
            let image = harness.path("pool/images/volumes").join(local(&copy.volume_id)).join("image");
            last_of_one_instant(&image, 0, BLOCKS);
            drop(writer);
            let request = csi::DeleteVolumeRequest { volume_id: copy.volume_id, ..Default::default() };
            harness.block_on(harness.controller().delete_volume(request)).expect("deleted");
            remove(&harness, vec![raw]);
            harness.assert_pool_empty();
        });
    }
}

#[test]
fn group_of_two_written_raw_blocks_is_refused_and_leaves_nothing() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        let raw = ["a", "b"].map(|name| place(&harness, name, None, "default"));
        let writer = Writer::start(&[&raw[0].target, &raw[1].target], 256);
        let refused = group(&harness, "g", &[&raw[0], &raw[1]]).expect_err("they have no common instant");
        let places = [text(&raw[0].target), text(&raw[1].target)];
        assert_refused(&harness, "pool", &refused, &[&places[0], &places[1], "no common instant"]);
        drop(writer);
        remove(&harness, raw.into());
        harness.assert_pool_empty();
    });
}

#[test]
fn group_of_one_written_raw_block_and_file_systems_is_of_one_instant() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        // In the order of the ids, the raw one lies between the file systems.
        let volumes =
            [("a", Some("ext4")), ("b", None), ("c", Some("xfs"))].map(|(name, fstype)| place(&harness, name, fstype, "default"));
        let unused = stage(&harness, "d", None, "default");
        let (ext4, xfs) = (volumes[0].target.join("file"), volumes[2].target.join("file"));
        let writer = Writer::start(&[&ext4, &volumes[1].target, &xfs], 64);
        for round in 0..5 {
            let before = writer.acknowledged();
            let all = [&volumes[0], &volumes[1], &volumes[2], &unused];
            let taken = group(&harness, &format!("g{round}"), &all).expect("one instant");
            let lasts: Vec<u64> = (0..3_u8)
                .map(|stream| {
                    let image = member(&harness, &taken, &volumes[usize::from(stream)]);
                    *numbers(&image, stream).last().expect("numbers")
                })
                .collect();
            assert!(lasts[0] >= lasts[1] && lasts[1] >= lasts[2] && lasts[0] - lasts[2] <= 1, "not one instant: {lasts:?}");
            assert!(lasts[2] >= before, "{before} were acknowledged: {lasts:?}");
            delete_group(&harness, &taken);
            writer.wait_for(lasts[0] + 200);
        }
        drop(writer);
        remove(&harness, volumes.into_iter().chain([unused]).collect());
        harness.assert_pool_empty();
    });
}

#[test]
fn fake_snapshot_of_published_raw_block_is_refused() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let name = harness.name();
        let mut request = create(&name, 8, None, "fake");
        request.parameters.remove("pool");
        let made = harness.block_on(harness.controller().create_volume(request.clone())).expect("created").into_inner();
        let volume = made.volume.expect("a volume");
        let (staging, target) = (harness.staging("raw"), harness.target("raw"));
        let raw = Staged { id: volume.volume_id, request, context: volume.volume_context, staging, target };
        let request = csi::NodeStageVolumeRequest {
            volume_id: raw.id.clone(),
            staging_target_path: text(&raw.staging),
            volume_capability: raw.request.volume_capabilities.first().cloned(),
            volume_context: raw.context.clone(),
            ..Default::default()
        };
        harness.block_on(harness.node().node_stage_volume(request)).expect("staged");
        delete_snapshot(&harness, snapshot(&harness, "staged", &raw).expect("published nowhere"));
        publish(&harness, &raw, false);
        let refused = snapshot(&harness, "s", &raw).expect_err("a copy takes time");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains(&text(&raw.target)), "{refused}");
        let listed = harness.block_on(harness.controller().list_snapshots(csi::ListSnapshotsRequest::default()));
        assert!(listed.expect("a list").into_inner().entries.is_empty());
        remove(&harness, vec![raw]);
    });
}

//! The crash and the fault matrix: every step of every mutating call goes wrong once.
//!
//! A story walks one volume through its life. In the crash matrix the driver is killed before the 1st, 2nd, ... n-th
//! step of each call, started again, and the call is repeated, or its inverse is called. In the fault matrix the n-th
//! step fails with an error number. Steps are counted where they run, so a new step is covered without anyone
//! remembering it. What is asserted is what the kernel and the pool show.
#![cfg(feature = "faults")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Instant;

use common::{Harness, MIB, Pool, capability, create, isolated, text};
use longshore::csi;
use longshore::volume::SnapshotId;
use tonic::{Code, Status};

/// The calls of the story, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Create,
    Stage,
    Publish,
    Snapshot,
    Group,
    Modify,
    Expand,
    NodeExpand,
    Restore,
    Clone,
    Unpublish,
    Unstage,
    DeleteGroup,
    DeleteSnapshot,
    Delete,
}

const STORY: [Call; 15] = [
    Call::Create,
    Call::Stage,
    Call::Publish,
    Call::Snapshot,
    Call::Group,
    Call::Modify,
    Call::Expand,
    Call::NodeExpand,
    Call::Restore,
    Call::Clone,
    Call::Unpublish,
    Call::Unstage,
    Call::DeleteGroup,
    Call::DeleteSnapshot,
    Call::Delete,
];

/// What takes everything down, from any state; each must be OK, whether there is something to take down or not.
const TEAR_DOWN: [Call; 5] = [Call::Unpublish, Call::Unstage, Call::DeleteGroup, Call::DeleteSnapshot, Call::Delete];

const VOLUME: &str = "image:story";
const SNAPSHOT: &str = "image:then";
const GROUP: &str = "image:together";
const CONTENT: &[u8] = b"what was written before must be there byte by byte";
/// Behind what any file system keeps at the start of its device, so that it is a place of its own on a raw one.
const PLACE: u64 = 1 << 20;

/// The snapshot of the volume in the group.
fn member() -> String {
    SnapshotId::derive(&"image".parse().expect("a name"), "together/story").to_string()
}

struct Story {
    harness: Harness,
    fstype: Option<&'static str>,
    staging: PathBuf,
    target: PathBuf,
}

/// All that a call may leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    mounts: Vec<String>,
    loops: Vec<String>,
    journal: Vec<String>,
    pool: BTreeSet<String>,
}

impl Story {
    fn new(fstype: Option<&'static str>) -> Story {
        let harness = Harness::new(Pool::Xfs);
        let (staging, target) = (harness.staging("story"), harness.target("story"));
        Story { harness, fstype, staging, target }
    }

    fn size(&self) -> i64 {
        match self.fstype {
            Some("xfs") => 320,
            Some("btrfs") => 256,
            _ => 64,
        }
    }

    fn source(&self, call: Call) -> csi::VolumeContentSource {
        use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
        let source = match call {
            Call::Clone => Type::Volume(VolumeSource { volume_id: VOLUME.to_owned() }),
            _ => Type::Snapshot(SnapshotSource { snapshot_id: SNAPSHOT.to_owned() }),
        };
        csi::VolumeContentSource { r#type: Some(source) }
    }

    fn perform(&self, call: Call) -> Result<(), Status> {
        let (mut controller, mut node, mut groups) = (self.harness.controller(), self.harness.node(), self.harness.groups());
        let volume_id = VOLUME.to_owned();
        let capability = capability(self.fstype);
        let range = Some(csi::CapacityRange { required_bytes: (self.size() + 64) * MIB, limit_bytes: 0 });
        self.harness.block_on(async {
            match call {
                Call::Create => controller.create_volume(create("story", self.size(), self.fstype, "image")).await.map(drop),
                Call::Restore | Call::Clone => {
                    let name = if call == Call::Clone { "cloned" } else { "restored" };
                    let mut request = create(name, self.size() + 128, self.fstype, "image");
                    request.volume_content_source = Some(self.source(call));
                    controller.create_volume(request).await.map(drop)
                }
                Call::Stage => {
                    let request = csi::NodeStageVolumeRequest {
                        volume_id,
                        staging_target_path: text(&self.staging),
                        volume_capability: Some(capability),
                        ..Default::default()
                    };
                    node.node_stage_volume(request).await.map(drop)
                }
                Call::Publish => {
                    let request = csi::NodePublishVolumeRequest {
                        volume_id,
                        staging_target_path: text(&self.staging),
                        target_path: text(&self.target),
                        volume_capability: Some(capability),
                        ..Default::default()
                    };
                    node.node_publish_volume(request).await.map(drop)
                }
                Call::Snapshot => {
                    let request =
                        csi::CreateSnapshotRequest { source_volume_id: volume_id, name: "then".to_owned(), ..Default::default() };
                    controller.create_snapshot(request).await.map(drop)
                }
                Call::Group => {
                    let request = csi::CreateVolumeGroupSnapshotRequest {
                        name: "together".to_owned(),
                        source_volume_ids: vec![volume_id],
                        ..Default::default()
                    };
                    groups.create_volume_group_snapshot(request).await.map(drop)
                }
                Call::Modify => {
                    let mutable_parameters = [("onDelete".to_owned(), "scrub".to_owned())].into();
                    let request = csi::ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() };
                    controller.controller_modify_volume(request).await.map(drop)
                }
                Call::Expand => {
                    let request = csi::ControllerExpandVolumeRequest { volume_id, capacity_range: range, ..Default::default() };
                    controller.controller_expand_volume(request).await.map(drop)
                }
                Call::NodeExpand => {
                    let request = csi::NodeExpandVolumeRequest {
                        volume_id,
                        volume_path: text(&self.target),
                        staging_target_path: text(&self.staging),
                        capacity_range: range,
                        ..Default::default()
                    };
                    node.node_expand_volume(request).await.map(drop)
                }
                Call::Unpublish => {
                    let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path: text(&self.target) };
                    node.node_unpublish_volume(request).await.map(drop)
                }
                Call::Unstage => {
                    let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path: text(&self.staging) };
                    node.node_unstage_volume(request).await.map(drop)
                }
                Call::DeleteGroup => {
                    let request = csi::DeleteVolumeGroupSnapshotRequest {
                        group_snapshot_id: GROUP.to_owned(),
                        snapshot_ids: vec![member()],
                        ..Default::default()
                    };
                    groups.delete_volume_group_snapshot(request).await.map(drop)
                }
                Call::DeleteSnapshot => {
                    let request = csi::DeleteSnapshotRequest { snapshot_id: SNAPSHOT.to_owned(), ..Default::default() };
                    controller.delete_snapshot(request).await.map(drop)
                }
                Call::Delete => {
                    for id in ["image:cloned", "image:restored", VOLUME] {
                        let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
                        controller.delete_volume(request).await?;
                    }
                    Ok(())
                }
            }
        })
    }

    /// Whether the call can be part of this story: ext4 grows online only with a capability that is not had everywhere.
    fn has(&self, call: Call) -> bool {
        call != Call::NodeExpand || self.fstype != Some("ext4")
    }

    fn calls(&self) -> impl Iterator<Item = Call> + '_ {
        STORY.into_iter().filter(|call| self.has(*call))
    }

    fn perform_ok(&self, call: Call, when: &str) {
        if let Err(status) = self.perform(call) {
            panic!("{call:?} {when}: {status}");
        }
    }

    /// Writes right after the publish, and from then on until the unpublish reads what was written.
    fn content(&self, done: Call) {
        let path = if self.fstype.is_some() { self.target.join("file") } else { self.target.clone() };
        let place = if self.fstype.is_some() { 0 } else { PLACE };
        if done == Call::Publish {
            let mut file =
                fs::OpenOptions::new().create(self.fstype.is_some()).truncate(false).write(true).open(&path).expect("the volume");
            file.seek(SeekFrom::Start(place)).expect("a seek");
            file.write_all(CONTENT).expect("written");
            file.sync_all().expect("synced");
        }
        if (Call::Publish..Call::Unpublish).contains(&done) {
            let mut file = fs::File::open(&path).expect("the volume");
            file.seek(SeekFrom::Start(place)).expect("a seek");
            let mut content = vec![0; CONTENT.len()];
            file.read_exact(&mut content).expect("what was written");
            assert_eq!(content, CONTENT, "after {done:?}");
        }
    }

    fn left(&self) -> Left {
        let pool = self.harness.path("pool/images");
        let inner = |folder: &str| {
            let entries =
                fs::read_dir(pool.join(folder)).map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
            entries.into_iter().map(|entry| format!("{folder}/{}", entry.file_name().to_string_lossy())).collect::<Vec<_>>()
        };
        Left {
            mounts: self.harness.mounts(),
            loops: self.harness.loops(),
            journal: self.harness.journal(),
            pool: ["volumes", "snapshots", "groups", "tmp", "trash"].into_iter().flat_map(inner).collect(),
        }
    }

    fn tear_down(&mut self, when: &str) {
        for call in TEAR_DOWN {
            self.perform_ok(call, &format!("in the tear-down {when}"));
        }
        assert!(self.harness.stop(), "the driver ends with success");
        self.harness.assert_nothing_left();
        self.harness.assert_pool_empty();
    }

    /// Walks up to `call`, with the driver running and no fault.
    fn walk_to(&mut self, call: Call) {
        self.harness.set("LONGSHORE_FAULT", "");
        self.harness.start();
        for earlier in self.calls().take_while(|earlier| *earlier < call).collect::<Vec<_>>() {
            self.perform_ok(earlier, "on the way");
            self.content(earlier);
        }
        assert!(self.harness.stop(), "the driver ends with success");
    }

    /// Whether the driver came to this step, by what it said; after an answer or an end all is said.
    fn reached(&self, step: u64) -> bool {
        self.harness.log().contains(&format!("fault: step {step}: "))
    }

    /// The call has fewer steps: the fault must not meet a later one.
    fn disarm(&mut self) {
        assert!(self.harness.stop(), "the driver ends with success");
        self.start_with("");
    }

    fn start_with(&mut self, fault: &str) {
        self.harness.set("LONGSHORE_FAULT", fault);
        self.harness.start();
    }
}

/// What to do after the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Repeat,
    Inverse,
}

/// One cell; `false` where the call has fewer steps than `step`.
fn crash(story: &mut Story, call: Call, fault: &str, step: u64, then: Then) -> bool {
    let when = format!("({:?}, {call:?} killed at {fault}@{step}, then {then:?})", story.fstype);
    story.walk_to(call);
    story.start_with(&format!("{fault}@{step}"));
    let answer = story.perform(call);
    // The kill may come a moment after the answer, where it was asked for within the last step.
    let killed = story.reached(step);
    assert!(!killed || story.harness.wait_end(), "it was not killed {when}");
    story.harness.forget_log();
    if !killed {
        assert!(answer.is_ok(), "{when}: {answer:?}");
        story.disarm();
        story.content(call);
        story.tear_down(&when);
        return false;
    }
    story.start_with("");
    if then == Then::Repeat {
        story.perform_ok(call, &format!("repeated {when}"));
        story.content(call);
        for later in story.calls().filter(|later| *later > call).collect::<Vec<_>>() {
            story.perform_ok(later, &format!("after {when}"));
            story.content(later);
        }
    }
    story.tear_down(&when);
    true
}

fn crash_matrix(fstype: Option<&'static str>) {
    isolated(move || {
        let mut story = Story::new(fstype);
        let (mut cells, begun) = (0, Instant::now());
        for call in story.calls().collect::<Vec<_>>() {
            // To take down what a killed tear-down has left is to repeat it.
            let ways: &[Then] = if TEAR_DOWN.contains(&call) { &[Then::Repeat] } else { &[Then::Repeat, Then::Inverse] };
            for then in ways.iter().copied() {
                let mut step = 1;
                while crash(&mut story, call, "crash", step, then) {
                    step += 1;
                    cells += 1;
                }
                assert!(step > 1 || call == Call::NodeExpand, "{call:?} has no step: nothing was tested");
            }
        }
        println!("crash matrix {fstype:?}: {cells} cells in {} s", begun.elapsed().as_secs());
    });
}

#[test]
fn killed_before_every_step_ext4() {
    crash_matrix(Some("ext4"));
}

#[test]
fn killed_before_every_step_xfs() {
    crash_matrix(Some("xfs"));
}

#[test]
fn killed_before_every_step_raw_block() {
    crash_matrix(None);
}

/// A kill within mkfs, a copy, a mount: must end neither in a half-made file system that is mounted, nor in a volume
/// that can never be used.
#[test]
fn killed_within_every_step_btrfs() {
    isolated(|| {
        let mut story = Story::new(Some("btrfs"));
        let (mut cells, begun) = (0, Instant::now());
        for call in story.calls().collect::<Vec<_>>() {
            let mut step = 1;
            while crash(&mut story, call, "crash-within", step, Then::Repeat) {
                step += 1;
                cells += 1;
            }
        }
        println!("kills within steps, btrfs: {cells} cells in {} s", begun.elapsed().as_secs());
    });
}

fn is_final(code: Code) -> bool {
    !matches!(code, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
}

fn fault_matrix(fstype: Option<&'static str>, errno: &'static str) {
    isolated(move || {
        let mut story = Story::new(fstype);
        let (mut cells, begun) = (0, Instant::now());
        for call in story.calls().collect::<Vec<_>>() {
            for step in 1.. {
                let when = format!("({fstype:?}, {call:?} with {errno}@{step})");
                story.walk_to(call);
                story.start_with(&format!("{errno}@{step}"));
                let before = story.left();
                let answer = story.perform(call);
                if let Err(status) = &answer {
                    cells += 1;
                    if is_final(status.code()) && !TEAR_DOWN.contains(&call) {
                        assert_eq!(story.left(), before, "{status} is final, but something was left {when}");
                    }
                    story.perform_ok(call, &format!("repeated after {status} {when}"));
                }
                let reached = story.reached(step);
                if !reached {
                    story.disarm();
                }
                story.content(call);
                for later in story.calls().filter(|later| *later > call).collect::<Vec<_>>() {
                    story.perform_ok(later, &format!("after {when}"));
                    story.content(later);
                }
                story.tear_down(&when);
                story.harness.forget_log();
                if !reached {
                    break;
                }
            }
        }
        println!("fault matrix {fstype:?} {errno}: {cells} cells in {} s", begun.elapsed().as_secs());
    });
}

#[test]
fn every_step_fails_once_with_eio() {
    fault_matrix(Some("ext4"), "EIO");
}

#[test]
fn every_step_fails_once_with_enospc() {
    fault_matrix(Some("xfs"), "ENOSPC");
}

#[test]
fn every_step_fails_once_with_ebusy() {
    fault_matrix(None, "EBUSY");
}

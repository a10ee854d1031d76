//! The crash, hang and fault matrices: every step of every mutating call goes wrong once.
//!
//! A story walks one volume through its life, first undisturbed, with the state of the node and of the pool noted after
//! each call. Then it is repeated, and before each call stands still: the call is made with its 1st, 2nd, ... n-th step
//! killed, hung or failed, then repeated, or undone by its inverse, and the state must be the one that was noted. Steps are
//! counted where they run, so a new step is covered without anyone remembering it. What is compared is what the kernel and
//! the pool show; what was written before is read back byte by byte.
#![cfg(feature = "faults")]

mod common;
#[path = "matrix/state.rs"]
mod state;
#[path = "matrix/story.rs"]
mod story;

use std::time::{Duration, Instant};

use common::holder::Holder;
use common::{Harness, Pool, capability, create, is_left_out, isolated, stage_request, text};
use longshore::csi;
use story::{Call, Settled, Story, Variant, is_final};
use tonic::Code;

const PLAIN: Variant = Variant {
    name: "",
    backend: "image",
    pool: Pool::Xfs,
    fstype: Some("ext4"),
    parameters: &[],
    secrets: &[],
    calls: &Call::LIFE,
    only: &[],
};
const EXT4: Variant = Variant { name: "ext4", ..PLAIN };
const XFS: Variant = Variant { name: "xfs", fstype: Some("xfs"), ..PLAIN };
const BTRFS: Variant = Variant { name: "btrfs", fstype: Some("btrfs"), ..PLAIN };
const BLOCK: Variant = Variant { name: "raw block", fstype: None, ..PLAIN };
/// Without reflinks: what is copied is frozen meanwhile.
const COPIES: Variant = Variant { name: "pool without reflinks", pool: Pool::Local, only: &Call::COPYING, ..PLAIN };
const TARGETS: Variant =
    Variant { name: "several targets", calls: &Call::TARGETS, only: &[Call::PublishReadOnly, Call::Unpublish], ..PLAIN };
const READ_ONLY_BLOCK: Variant = Variant {
    name: "raw block read-only",
    calls: &Call::READ_ONLY_BLOCK,
    only: &[Call::PublishReadOnly, Call::UnpublishReadOnly],
    ..BLOCK
};
const INLINE: Variant = Variant { name: "ephemeral", calls: &Call::INLINE, ..PLAIN };
/// The one that attaches. Its volumes go with their driver, so that it is failed only, not killed.
const FAKE: Variant = Variant { name: "fake", backend: "fake", calls: &Call::ATTACHED, ..PLAIN };

/// Encrypted: what else is done to such a device is as without.
const LUKS: Variant = Variant {
    name: "LUKS2 ext4",
    parameters: &[("encryption", "luks2")],
    secrets: &[("encryptionPassphrase", "a long passphrase")],
    only: &[Call::Stage, Call::NodeExpand, Call::StageRestored, Call::Unstage],
    ..PLAIN
};
const LUKS_BLOCK: Variant = Variant { name: "LUKS2 raw block", fstype: None, only: &[Call::Stage, Call::Unstage], ..LUKS };

const NFS: Variant = Variant { name: "NFS", backend: "nfs", fstype: Some("nfs"), calls: &Call::SHARE, ..PLAIN };
/// Of a node's own file system, with reflinks.
const DIRECTORY: Variant =
    Variant { name: "directory", backend: "directory", pool: Pool::Xfs, fstype: Some("xfs"), calls: &Call::SHARE, ..PLAIN };
/// What of it is otherwise where its volumes are subvolumes.
const SUBVOLUME: Variant = Variant {
    name: "directory on btrfs",
    pool: Pool::Btrfs,
    fstype: Some("btrfs"),
    only: &[Call::Create, Call::Snapshot, Call::Restore, Call::DeleteSnapshot, Call::Delete],
    ..DIRECTORY
};
const ISCSI: Variant = Variant { name: "iSCSI", backend: "iscsi", calls: &Call::SAN, ..PLAIN };
const THIN: Variant =
    Variant { name: "LVM thin", backend: "lvm", calls: &Call::THIN, parameters: &[("deviceClass", "thin")], ..PLAIN };
const THICK: Variant = Variant {
    name: "LVM thick",
    backend: "lvm",
    fstype: None,
    calls: &Call::ALONE,
    parameters: &[("deviceClass", "thick")],
    ..PLAIN
};
/// Whole disks, of loop devices; wiped to the last byte at the end.
const DISK: Variant =
    Variant { name: "disk", backend: "disk", calls: &Call::FIXED, parameters: &[("onDelete", "scrub")], ..PLAIN };
const NEW_DISK: Variant = Variant { name: story::NEW_DISK, backend: "disk", calls: &Call::MADE, only: &[Call::Create], ..PLAIN };
/// A clone is made as a restored volume is; a thin volume is deleted as a snapshot is, and staged as others are.
const THIN_CALLS: [Call; 4] = [Call::Create, Call::Snapshot, Call::Restore, Call::DeleteSnapshot];
const THICK_CALLS: [Call; 2] = [Call::Create, Call::Expand];
/// What the image backend has, and nothing else, is image's; what a node does to a device when it is there is the same for each.
const ISCSI_CALLS: [Call; 4] = [Call::Attach, Call::Stage, Call::Unstage, Call::Detach];
/// A clone is copied as a snapshot is restored; what is bound is taken away as any other mount is.
const NFS_CALLS: [Call; 9] = [
    Call::Create,
    Call::Stage,
    Call::Publish,
    Call::Expand,
    Call::Snapshot,
    Call::Restore,
    Call::Unstage,
    Call::DeleteSnapshot,
    Call::Delete,
];

/// What else has steps of its own.
const OTHERS: [Variant; 4] = [COPIES, TARGETS, READ_ONLY_BLOCK, INLINE];

/// What to do after a step has gone wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Repeat,
    Inverse,
}

const WAYS: [Way; 2] = [Way::Repeat, Way::Inverse];

/// What a matrix counted.
#[derive(Default)]
struct Count {
    cells: u64,
    kills: u64,
    faults: u64,
    interrupted: u64,
}

/// Tells the story of a variant, with `wrong` at every call; prints what was counted.
fn matrix(suite: &'static str, variant: Variant, only: &'static [Call], wrong: fn(&mut Story, usize, &mut Count)) {
    let mut story = Story::new(variant);
    let mut count = Count::default();
    story.tell_undisturbed();
    for index in 0..story.calls().len() {
        let call = story.calls()[index];
        if call.has_own_steps() && [variant.only, only].iter().all(|only| only.is_empty() || only.contains(&call)) {
            let (before, begun) = (count.cells, Instant::now());
            wrong(&mut story, index, &mut count);
            eprintln!("{suite} {}: {call:?}: {} cells in {:?}", variant.name, count.cells - before, begun.elapsed());
            assert!(
                count.cells > before || suite.contains("within") || suite.contains("overdue"),
                "{call:?}: nothing was tested"
            );
        }
        story.go_on(index);
    }
    story.end();
    let of = |number: u64, noun: &str| if number == 0 { String::new() } else { format!(", {number} {noun}") };
    let more = [of(count.kills, "kills"), of(count.faults, "faults"), of(count.interrupted, "programs interrupted")].concat();
    println!("FIGURE: {suite} {}: {} cells{more}", variant.name, count.cells);
}

/// Brings the story to where it stood before the call, and sees that it is there.
fn settle(story: &mut Story, index: usize, way: Way, when: &str) {
    if way == Way::Repeat {
        story.repeat(index, when);
    }
    story.go_back(index, when);
}

/// Performs the call with a fault at its first, second, ... step, until it has no more of them.
fn at_each_step(story: &mut Story, index: usize, fault: &str, mut then: impl FnMut(&mut Story, Settled, Way, &str)) {
    for way in WAYS {
        for step in (1..).filter(|step| !is_left_out(*step, way == Way::Repeat)) {
            let when = story.when(index, &format!("{fault} at step {step}, then {way:?}"));
            story.arm(&format!("{fault}@{step}"));
            let answer = story.perform(index);
            if !story.reached(step) {
                assert!(answer.is_ok(), "{when}: {answer:?}");
                story.arm("");
                story.go_back(index, &when);
                break;
            }
            then(story, answer, way, &when);
        }
    }
}

/// The driver is killed before each step.
fn crash(story: &mut Story, index: usize, count: &mut Count) {
    at_each_step(story, index, "crash", |story, _, way, when| {
        story.killed(when);
        (count.cells, count.kills) = (count.cells + 1, count.kills + 1);
        settle(story, index, way, when);
    });
}

/// In microseconds.
const LONGEST_STEP: u64 = 500_000;

/// The driver is killed within each step: at several moments of one that runs a program, in the middle of any other that
/// lasts. A program that was interrupted must be gone, and must not have become a mounted half-made file system, nor a volume
/// that can never be used.
fn crash_within(story: &mut Story, index: usize, count: &mut Count) {
    for step in story.steps(index) {
        let (ways, moments): (&[Way], &[u64]) = match step.programs.is_empty() {
            false => (&WAYS, &[3, 20, 40, 60, 80, 97]),
            true if step.micros > 1000 => (&[Way::Repeat], &[50]),
            true => continue,
        };
        let all = ways.iter().flat_map(|way| (0..).zip(moments).map(move |(at, percent)| (*way, at, *percent)));
        for (way, _, percent) in all.filter(|(way, at, _)| ways.len() == 1 || !is_left_out(*at, *way == Way::Repeat)) {
            // A machine that stalled just when the step was timed would have us wait until long after its end.
            let (number, micros) = (step.number, step.micros.min(LONGEST_STEP) * percent / 100);
            let when = story.when(index, &format!("killed {micros} us into step {number} ({}), then {way:?}", step.name));
            story.arm(&format!("crash-within:{micros}@{number}"));
            // The kill may come a moment after the answer.
            let _answer = story.perform(index);
            assert!(story.reached(number), "the step was not reached {when}");
            let interrupted = story.killed(&when);
            (count.cells, count.kills) = (count.cells + 1, count.kills + 1);
            count.interrupted += interrupted.len() as u64;
            story.lingering = !step.programs.is_empty();
            settle(story, index, way, &when);
            story.lingering = false;
            for pid in interrupted {
                assert!(story::is_gone(pid), "a program that the killed driver had started still runs {when}");
            }
        }
    }
}

/// The step never ends. Its caller gives up; who asks again hears that it is not over; others continue. Then the driver is killed.
fn hang(story: &mut Story, index: usize, count: &mut Count) {
    for way in WAYS {
        for step in (1..).filter(|step| !is_left_out(*step, way == Way::Repeat)) {
            let when = story.when(index, &format!("hung before step {step}, then {way:?}"));
            story.arm(&format!("hang@{step}"));
            story.patience = story.impatience();
            let mut answer = story.perform(index);
            // On a slow machine the caller may have gone before the step was reached.
            while !story.reached(step) && answer.as_ref().is_err_and(|status| !is_final(status.code())) {
                answer = story.perform(index);
            }
            story.patience = story::PATIENCE;
            if !story.reached(step) {
                assert!(answer.is_ok(), "{when}: {answer:?}");
                story.arm("");
                story.go_back(index, &when);
                break;
            }
            let status = answer.expect_err("a step that hangs does not answer");
            assert!(!is_final(status.code()), "{status} is final {when}");
            for _ in 0..2 {
                let status = story.perform(index).expect_err("the call still runs");
                assert_eq!(status.code(), Code::Aborted, "{status} {when}");
            }
            story.others_go_on(&when);
            story.kill();
            (count.cells, count.kills) = (count.cells + 1, count.kills + 1);
            settle(story, index, way, &when);
        }
    }
}

/// A volume that is unstaged and grown after a stage that went wrong at any step: its end, where the mark of an interrupted format is looked for,
/// is elsewhere then.
#[test]
fn stage_that_went_wrong_is_repeated_on_the_grown_volume() {
    const MIB: i64 = 1 << 20;
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        let restart = |harness: &mut Harness, fault: &str| {
            harness.kill();
            harness.set("LONGSHORE_FAULT", fault);
            harness.start();
        };
        for fault in ["crash", "EROFS"] {
            for step in 1.. {
                let name = format!("{}-{step}", fault.to_lowercase());
                let when = format!("{fault} at step {step}");
                let (id, staging) = (format!("image:{name}"), harness.staging(&name));
                let stage = |harness: &Harness| {
                    let request = stage_request(&id, &staging, capability(Some("ext4")));
                    harness.block_on(harness.node().node_stage_volume(request))
                };
                restart(&mut harness, "");
                harness.block_on(harness.controller().create_volume(create(&name, 16, Some("ext4"), "image"))).expect("created");
                restart(&mut harness, &format!("{fault}@{step}"));
                let went_well = stage(&harness).is_ok();
                restart(&mut harness, "");
                let unstage = csi::NodeUnstageVolumeRequest { volume_id: id.clone(), staging_target_path: text(&staging) };
                harness.block_on(harness.node().node_unstage_volume(unstage.clone())).expect(&when);
                let grow = csi::ControllerExpandVolumeRequest {
                    volume_id: id.clone(),
                    capacity_range: Some(csi::CapacityRange { required_bytes: 17 * MIB, limit_bytes: 0 }),
                    ..Default::default()
                };
                harness.block_on(harness.controller().controller_expand_volume(grow)).expect(&when);
                stage(&harness).expect(&when);
                harness.block_on(harness.node().node_unstage_volume(unstage)).expect(&when);
                let delete = csi::DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
                harness.block_on(harness.controller().delete_volume(delete)).expect(&when);
                if went_well {
                    break;
                }
            }
        }
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

fn hold() -> Holder {
    Holder::new(common::starting())
}

/// Another mount namespace has a copy of the volume's mount, from before the call on, or from a moment in its midst on. What is still in
/// the kernel is not disconnected; the error is not final and names who has it; once he has gone, the call ends as if nothing had been.
fn held(story: &mut Story, index: usize, count: &mut Count) {
    for from_before in [true, false] {
        for step in 1.. {
            let when = story.when(index, &format!("step {step}, held from before: {from_before}"));
            let mut holder = from_before.then(hold);
            story.arm(&format!("{}@{step}", if from_before { "crash" } else { "hang" }));
            story.patience = if from_before { story::PATIENCE } else { Duration::from_millis(300) };
            let mut answer = story.perform(index);
            // On a slow machine the caller may have gone before the step was reached.
            while !from_before && !story.reached(step) && answer.as_ref().is_err_and(|status| !is_final(status.code())) {
                answer = story.perform(index);
            }
            story.patience = story::PATIENCE;
            let reached = story.reached(step);
            match (reached, from_before) {
                (true, true) => drop(story.killed(&when)),
                (true, false) => {
                    holder = Some(hold());
                    story.kill();
                }
                (false, _) => assert_eq!(answer.is_err(), from_before, "{answer:?} {when}"),
            }
            (count.cells, count.kills) = (count.cells + 1, count.kills + u64::from(reached));
            story.arm("");
            if let Some(holder) = holder.filter(|holder| holder.has(&story.staging("story"))) {
                let status = story.perform(index).expect_err(&when);
                assert!(!is_final(status.code()), "{status} {when}");
                assert!(status.message().contains(&holder.name()), "{status} names not {} {when}", holder.name());
                assert!(!story.loops().is_empty(), "it was disconnected {when}");
            }
            settle(story, index, Way::Repeat, &when);
            if !reached {
                break;
            }
        }
    }
}

/// A program hangs until its deadline has passed.
fn overdue(story: &mut Story, index: usize, count: &mut Count) {
    for step in story.steps(index).into_iter().filter(|step| !step.programs.is_empty()) {
        for way in WAYS {
            let when = story.when(index, &format!("{} stopped in step {}, then {way:?}", step.programs[0], step.number));
            story.arm(&format!("overdue@{}", step.number));
            let answer = story.perform(index);
            assert!(story.said("is stopped"), "no program was stopped {when}");
            (count.cells, count.faults) = (count.cells + 1, count.faults + 1);
            failed(story, index, answer, way, &when);
        }
    }
}

/// Each step fails with an error number.
fn fault(story: &mut Story, index: usize, count: &mut Count, errno: &str) {
    at_each_step(story, index, errno, |story, answer, way, when| {
        (count.cells, count.faults) = (count.cells + 1, count.faults + 1);
        failed(story, index, answer, way, when);
    });
}

/// From a step on everything fails, so that nothing can be rolled back; then the repeat fails at one step, and can be.
fn fault_twice(story: &mut Story, index: usize, count: &mut Count) {
    for first in 1.. {
        for second in 1.. {
            let when = story.when(index, &format!("EIO from step {first} on, then at step {second} of the repeat"));
            story.arm(&format!("EIO@{first}+1"));
            let answer = story.perform(index);
            if !story.reached(first) {
                assert!(answer.is_ok(), "{when}: {answer:?}");
                story.arm("");
                story.go_back(index, &when);
                return;
            }
            story.arm(&format!("EIO@{second}"));
            let answer = story.perform(index);
            if !story.reached(second) {
                story.arm("");
                settle(story, index, Way::Repeat, &format!("{when} {answer:?}"));
                break;
            }
            (count.cells, count.faults) = (count.cells + 1, count.faults + 2);
            let way = if story.calls()[index].holds() { Way::Repeat } else { Way::Inverse };
            failed(story, index, answer, way, &when);
        }
    }
}

/// An answer after a fault is final only if nothing was left of the call.
fn failed(story: &mut Story, index: usize, answer: Settled, way: Way, when: &str) {
    story.arm("");
    if let Err(status) = &answer
        && is_final(status.code())
        && (status.code() != Code::ResourceExhausted || story.calls()[index].is_creation())
    {
        story.is_as_before(index, &format!("{status} is final, but something was left {when}"));
    }
    settle(story, index, way, &format!("{when} {answer:?}"));
}

fn eio(story: &mut Story, index: usize, count: &mut Count) {
    fault(story, index, count, "EIO");
}

fn enospc(story: &mut Story, index: usize, count: &mut Count) {
    fault(story, index, count, "ENOSPC");
}

fn ebusy(story: &mut Story, index: usize, count: &mut Count) {
    fault(story, index, count, "EBUSY");
}

fn erofs(story: &mut Story, index: usize, count: &mut Count) {
    fault(story, index, count, "EROFS");
}

macro_rules! tests {
    ($($name:ident: $suite:literal, $wrong:ident, $variants:expr, $only:expr;)*) => { $(
        #[test]
        fn $name() {
            for variant in $variants {
                if let Some(why) = variant.cannot_run() {
                    common::skipped(why);
                    continue;
                }
                isolated(move || matrix($suite, variant, $only, $wrong));
            }
        }
    )* };
}

// A controller's steps are the same for each file system, so that each error number goes through all calls of one variant, and
// through the node's calls of every other.
tests! {
    killed_before_every_step_ext4: "crash matrix", crash, [EXT4], &[];
    killed_before_every_step_xfs: "crash matrix", crash, [XFS], &[];
    killed_before_every_step_btrfs: "crash matrix", crash, [BTRFS], &[];
    killed_before_every_step_raw_block: "crash matrix", crash, [BLOCK], &[];
    killed_before_every_step_others: "crash matrix", crash, OTHERS, &[];
    killed_within_every_step_ext4: "crash matrix within steps", crash_within, [EXT4], &[];
    killed_within_every_step_xfs: "crash matrix within steps", crash_within, [XFS], &[];
    killed_within_every_step_btrfs: "crash matrix within steps", crash_within, [BTRFS], &[];
    killed_within_every_step_raw_block: "crash matrix within steps", crash_within, [BLOCK], &[];
    killed_within_every_step_others: "crash matrix within steps", crash_within, [COPIES, INLINE], &[];
    held_by_another_mount_namespace: "held volume matrix", held, [EXT4, XFS, BTRFS], &[Call::Unstage];
    every_step_hangs_ext4: "hang matrix", hang, [EXT4], &[];
    every_step_hangs_xfs: "hang matrix", hang, [XFS], &Call::ON_NODE;
    every_step_hangs_btrfs: "hang matrix", hang, [BTRFS], &Call::ON_NODE;
    every_step_hangs_raw_block: "hang matrix", hang, [BLOCK], &Call::ON_NODE;
    every_step_hangs_others: "hang matrix", hang, OTHERS, &[];
    every_program_is_overdue: "hang matrix overdue programs", overdue, [EXT4, XFS, BTRFS, INLINE], &Call::ON_NODE;
    every_step_fails_with_eio: "fault matrix EIO", eio, [EXT4], &[];
    every_step_fails_with_enospc: "fault matrix ENOSPC", enospc, [XFS], &[];
    every_step_fails_with_ebusy: "fault matrix EBUSY", ebusy, [BLOCK], &[];
    every_step_fails_with_erofs: "fault matrix EROFS", erofs, [BTRFS], &[];
    a_node_step_fails_with_eio: "fault matrix EIO", eio, [XFS, BTRFS, BLOCK], &Call::ON_NODE;
    a_node_step_fails_with_enospc: "fault matrix ENOSPC", enospc, [EXT4, BTRFS, BLOCK], &Call::ON_NODE;
    a_node_step_fails_with_ebusy: "fault matrix EBUSY", ebusy, [EXT4, XFS, BTRFS], &Call::ON_NODE;
    a_node_step_fails_with_erofs: "fault matrix EROFS", erofs, [EXT4, XFS, BLOCK], &Call::ON_NODE;
    every_step_fails_and_so_does_the_repeat_ext4: "fault matrix twice", fault_twice, [EXT4], &[];
    every_step_fails_and_so_does_the_repeat_raw_block: "fault matrix twice", fault_twice, [BLOCK, READ_ONLY_BLOCK], &[];
    every_step_fails_and_so_does_the_repeat_others: "fault matrix twice", fault_twice, [TARGETS, INLINE], &[];
    killed_before_every_step_luks: "crash matrix", crash, [LUKS, LUKS_BLOCK], &[];
    killed_within_every_step_luks: "crash matrix within steps", crash_within, [LUKS], &[Call::Stage];
    every_step_fails_with_eio_luks: "fault matrix EIO", eio, [LUKS], &[Call::Stage, Call::NodeExpand, Call::Unstage];
    killed_before_every_step_nfs: "crash matrix", crash, [NFS], &NFS_CALLS;
    killed_within_every_step_nfs: "crash matrix within steps", crash_within, [NFS], &[Call::Stage, Call::Publish];
    every_step_hangs_nfs: "hang matrix", hang, [NFS], &[Call::Stage, Call::Publish];
    every_step_fails_with_eio_nfs: "fault matrix EIO", eio, [NFS], &NFS_CALLS;
    killed_before_every_step_directory: "crash matrix", crash, [DIRECTORY, SUBVOLUME], &[];
    killed_within_every_step_directory: "crash matrix within steps", crash_within, [DIRECTORY], &[Call::Stage];
    every_step_hangs_directory: "hang matrix", hang, [DIRECTORY], &[Call::Stage];
    every_step_fails_with_eio_directory: "fault matrix EIO", eio, [DIRECTORY, SUBVOLUME], &[];
    every_step_fails_with_enospc_directory: "fault matrix ENOSPC", enospc, [DIRECTORY], &[];
    killed_before_every_step_iscsi: "crash matrix", crash, [ISCSI], &ISCSI_CALLS;
    every_step_fails_with_eio_iscsi: "fault matrix EIO", eio, [ISCSI], &ISCSI_CALLS;
    killed_before_every_step_lvm_thin: "crash matrix", crash, [THIN], &THIN_CALLS;
    killed_before_every_step_lvm_thick: "crash matrix", crash, [THICK], &THICK_CALLS;
    killed_within_every_step_lvm_thick: "crash matrix within steps", crash_within, [THICK], &[Call::Create];
    every_step_fails_with_eio_lvm_thick: "fault matrix EIO", eio, [THICK], &[Call::Create];
    every_step_hangs_lvm_thin: "hang matrix", hang, [THIN], &[Call::Snapshot];
    killed_before_every_step_disk: "crash matrix", crash, [DISK, NEW_DISK], &[];
    every_step_hangs_disk: "hang matrix", hang, [DISK], &[Call::Create];
    every_step_fails_with_eio_disk: "fault matrix EIO", eio, [DISK, NEW_DISK], &[];
    other_steps_fail_with_eio: "fault matrix EIO", eio, [COPIES, TARGETS, READ_ONLY_BLOCK, INLINE, FAKE], &[];
    other_steps_fail_with_ebusy: "fault matrix EBUSY", ebusy, [TARGETS, READ_ONLY_BLOCK, INLINE], &[];
}

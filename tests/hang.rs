//! One stuck volume never holds up another, and work outlives its caller.
#![cfg(feature = "faults")]

mod common;

use std::time::{Duration, Instant};

use common::{Harness, Pool, capability, create, isolated, stage_request, text};
use longshore::csi;
use tonic::Code;

fn stage(harness: &Harness, name: &str) -> csi::NodeStageVolumeRequest {
    stage_request(format!("image:{name}"), harness.staging(name), capability(Some("ext4")))
}

/// Stages, and gives up once the driver has said that. On a slow machine a client may be gone before its call has begun.
fn give_up_once(harness: &Harness, name: &str, said: &str) {
    while !harness.log().contains(said) {
        let mut request = tonic::Request::new(stage(harness, name));
        request.set_timeout(Duration::from_millis(300));
        harness.block_on(harness.node().node_stage_volume(request)).expect_err("the client gave up");
    }
}

/// Stages and unstages `name` some times; the median of how long both took.
fn pace(harness: &Harness, name: &str) -> Duration {
    let mut node = harness.node();
    let mut times: Vec<Duration> = (0..15)
        .map(|_| {
            let started = Instant::now();
            harness.block_on(node.node_stage_volume(stage(harness, name))).expect("staged");
            let request = csi::NodeUnstageVolumeRequest {
                volume_id: format!("image:{name}"),
                staging_target_path: text(&harness.staging(name)),
            };
            harness.block_on(node.node_unstage_volume(request)).expect("unstaged");
            started.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

#[test]
fn a_stuck_volume_is_reported_and_no_other_waits_for_it() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.set("LONGSHORE_FAULT", "");
        harness.start();
        for name in ["stuck", "free"] {
            harness.block_on(harness.controller().create_volume(create(name, 64, Some("ext4"), "image"))).expect("created");
        }
        let before = pace(&harness, "free");
        assert!(harness.stop());

        // The third step of a stage never ends. The client gives up; the work, and its lock, stay.
        harness.set("LONGSHORE_FAULT", "hang@3");
        harness.start();
        let mut node = harness.node();
        give_up_once(&harness, "stuck", "hang at step 3");
        for _ in 0..3 {
            let busy = harness.block_on(node.node_stage_volume(stage(&harness, "stuck"))).expect_err("busy");
            assert_eq!(busy.code(), Code::Aborted, "{busy}");
            assert!(busy.message().contains("stage has been at"), "{busy}");
        }
        let meanwhile = pace(&harness, "free");
        println!("stage and unstage: {before:?} alone, {meanwhile:?} beside a stuck volume");
        assert!(meanwhile < before * 3 + Duration::from_millis(50), "{before:?} alone, {meanwhile:?} beside a stuck volume");

        // Killed and started again, the stuck one continues as if nothing had been.
        harness.kill();
        harness.set("LONGSHORE_FAULT", "");
        harness.start();
        let mut node = harness.node();
        harness.block_on(node.node_stage_volume(stage(&harness, "stuck"))).expect("staged");
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: "image:stuck".to_owned(),
            staging_target_path: text(&harness.staging("stuck")),
        };
        harness.block_on(node.node_unstage_volume(request)).expect("unstaged");
        harness.assert_nothing_left();
    });
}

#[test]
fn work_is_finished_though_its_caller_has_gone() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        harness.block_on(harness.controller().create_volume(create("left", 64, Some("ext4"), "image"))).expect("created");
        // Too short for a mkfs and a mount: most of these callers are gone before the end.
        let mut node = harness.node();
        for milliseconds in 1..=8 {
            let mut request = tonic::Request::new(stage(&harness, "left"));
            request.set_timeout(Duration::from_millis(milliseconds));
            let _gone_or_done = harness.block_on(node.node_stage_volume(request));
        }
        let staged = loop {
            match harness.block_on(node.node_stage_volume(stage(&harness, "left"))) {
                Err(status) if status.code() == Code::Aborted => {}
                answer => break answer,
            }
        };
        staged.expect("the work of a caller that has gone is found done");
        assert_eq!(common::mounts_at(&harness.staging("left")), 1, "staged once");
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: "image:left".to_owned(),
            staging_target_path: text(&harness.staging("left")),
        };
        harness.block_on(node.node_unstage_volume(request)).expect("unstaged");
        harness.assert_nothing_left();
    });
}

/// The number of a step and the process that runs in it, from the log of a driver.
fn program_in(log: &str, program: &str) -> Option<(u64, i32)> {
    let mut step = 0;
    for line in log.lines().filter_map(|line| line.strip_prefix("fault: ")) {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["step", number, ..] if number.ends_with(':') => step = number.trim_end_matches(':').parse().expect("a number"),
            ["program", name, "is", pid] if *name == program => return Some((step, pid.parse().ok()?)),
            _ => {}
        }
    }
    None
}

/// A mkfs that is killed with its driver while it hangs in the kernel lives on until the kernel lets it go. Here we stand for it: we
/// have its descriptors, and so the very open file that it would have.
#[test]
fn a_program_that_outlives_its_driver_is_waited_for() {
    use std::os::unix::fs::FileExt;

    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.set("LONGSHORE_FAULT", "");
        harness.start();
        for name in ["measured", "cut"] {
            harness.block_on(harness.controller().create_volume(create(name, 64, Some("ext4"), "image"))).expect("created");
        }
        // Steps are counted from the driver's start.
        assert!(harness.stop());
        harness.start();
        harness.block_on(harness.node().node_stage_volume(stage(&harness, "measured"))).expect("staged");
        let (step, _) = program_in(&harness.log(), "mkfs.ext4").expect("a mkfs");
        assert!(harness.stop());

        harness.forget_log();
        harness.set("LONGSHORE_FAULT", &format!("stop@{step}"));
        harness.start();
        give_up_once(&harness, "cut", "program mkfs.ext4 is stopped");
        let (_, mkfs) = program_in(&harness.log(), "mkfs.ext4").expect("a mkfs");
        let mkfs = rustix::process::Pid::from_raw(mkfs).expect("a pid");
        let pidfd = rustix::process::pidfd_open(mkfs, rustix::process::PidfdFlags::empty()).expect("mkfs lives");
        let numbers = std::fs::read_dir(format!("/proc/{}/fd", mkfs.as_raw_nonzero())).expect("its descriptors").flatten();
        let mut held: Vec<std::fs::File> = numbers
            .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|path| path.to_string_lossy().starts_with("/dev/loop")))
            .map(|entry| entry.file_name().to_string_lossy().parse().expect("a number"))
            .map(|fd| {
                rustix::process::pidfd_getfd(&pidfd, fd, rustix::process::PidfdGetfdFlags::empty()).expect("its file").into()
            })
            .collect();
        let device = held.pop().expect("mkfs has its device open");
        harness.kill();
        harness.set("LONGSHORE_FAULT", "");
        harness.start();

        device.write_all_at(b"a late write", 0).expect("written");
        for _ in 0..2 {
            let busy = harness.block_on(harness.node().node_stage_volume(stage(&harness, "cut"))).expect_err("busy");
            assert_eq!(busy.code(), Code::DeadlineExceeded, "{busy}");
            assert!(busy.message().contains("a program that still has"), "{busy}");
        }
        let unstage = csi::NodeUnstageVolumeRequest {
            volume_id: "image:cut".to_owned(),
            staging_target_path: text(&harness.staging("cut")),
        };
        harness.block_on(harness.node().node_unstage_volume(unstage.clone())).expect_err("its mkfs is not at its end");
        let mut start = [0; 12];
        device.read_exact_at(&mut start, 0).expect("read");
        assert_eq!(&start, b"a late write", "nobody wrote meanwhile");
        drop((device, held));

        harness.block_on(harness.node().node_stage_volume(stage(&harness, "cut"))).expect("staged");
        assert_eq!(common::mounts_at(&harness.staging("cut")), 1);
        for name in ["cut", "measured"] {
            let request = csi::NodeUnstageVolumeRequest {
                volume_id: format!("image:{name}"),
                staging_target_path: text(&harness.staging(name)),
            };
            harness.block_on(harness.node().node_unstage_volume(request)).expect("unstaged");
        }
        harness.assert_nothing_left();
    });
}

fn stats_request(harness: &Harness, name: &str) -> csi::NodeGetVolumeStatsRequest {
    csi::NodeGetVolumeStatsRequest {
        volume_id: format!("image:{name}"),
        volume_path: text(&harness.staging(name)),
        ..Default::default()
    }
}

/// Each read of a hung volume takes a thread for ever: repeated ones must not take one each, as long as the first has not ended.
#[test]
fn repeated_reads_of_a_hung_volume_take_one_thread_and_another_volume_answers() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        let fault = harness.path("fault");
        let order = |text: &str| {
            std::fs::write(fault.with_extension("new"), text).expect("writes");
            std::fs::rename(fault.with_extension("new"), &fault).expect("renames");
        };
        order("");
        harness.set("LONGSHORE_FAULT_FILE", &text(&fault));
        harness.start();
        for name in ["stuck", "free"] {
            harness.block_on(harness.controller().create_volume(create(name, 64, Some("ext4"), "image"))).expect("created");
            harness.block_on(harness.node().node_stage_volume(stage(&harness, name))).expect("staged");
        }
        harness.block_on(harness.node().node_get_volume_stats(stats_request(&harness, "stuck"))).expect("it answers");
        let threads = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").count();
        let before = threads(harness.pid());

        // From now on every look at a file system hangs.
        order("1 hang@1+1");
        let mut calls = tokio::task::JoinSet::new();
        let clients: Vec<_> = (0..50).map(|_| (harness.node(), stats_request(&harness, "stuck"))).collect();
        harness.block_on(async {
            for (mut node, request) in clients {
                let mut call = tonic::Request::new(request);
                call.set_timeout(Duration::from_secs(10));
                calls.spawn(async move { node.node_get_volume_stats(call).await });
            }
            let mut busy = 0;
            while let Some(call) = calls.join_next().await {
                let status = call.expect("no panic").expect_err("the file system hangs");
                if status.code() == Code::Aborted {
                    busy += 1;
                    let words = ["volume image:stuck", "NodeGetVolumeStats has been at", "measure file system", " for "];
                    assert!(words.iter().all(|word| status.message().contains(word)), "{status}");
                }
            }
            assert_eq!(busy, 49, "all but the one that hangs get Aborted");
        });
        let hung = threads(harness.pid());
        assert!(hung <= before + 4, "{before} threads before, {hung} with 50 reads of a hung volume");

        order("2");
        harness.block_on(harness.node().node_get_volume_stats(stats_request(&harness, "free"))).expect("another volume answers");
        let busy =
            harness.block_on(harness.node().node_get_volume_stats(stats_request(&harness, "stuck"))).expect_err("it still hangs");
        assert_eq!(busy.code(), Code::Aborted, "{busy}");

        harness.kill();
        harness.start();
        for name in ["stuck", "free"] {
            harness.block_on(harness.node().node_get_volume_stats(stats_request(&harness, name))).expect("it answers");
            let unstage = csi::NodeUnstageVolumeRequest {
                volume_id: format!("image:{name}"),
                staging_target_path: text(&harness.staging(name)),
            };
            harness.block_on(harness.node().node_unstage_volume(unstage)).expect("unstaged");
        }
        harness.assert_nothing_left();
    });
}

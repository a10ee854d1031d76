//! Power cuts: the writes of a device are recorded, unsynced ones are lost, and a driver is started on what is left.
//!
//! The pool and the state directory lie on that device. The kills of the other tests leave the page cache as it was; here only
//! what a flush has passed is certain to be there. Power is cut at each flush, and between flushes, where a part of the later
//! writes is there. `LONGSHORE_POWER` is how many cuts of the second kind each test makes (20), `LONGSHORE_POWER_SEED` what
//! chance begins with.
#![allow(clippy::disallowed_methods, reason = "the tests put file systems on devices of their own")]

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod node;
#[path = "../common/one_file.rs"]
mod one_file;
mod pool;

use std::path::Path;

use common::{Harness, isolated, skipped};
use disk::{PowerCut, Recording};

/// Cuts between flushes, where `LONGSHORE_POWER` does not say.
const CUTS: u64 = 20;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

/// Cuts the power at all flushes and between them; returns how often.
fn cut_power<T>(recording: &mut Recording<T>, check: impl Fn(&Harness, &T, usize) -> Vec<String>) -> usize {
    let seed = number("LONGSHORE_POWER_SEED").unwrap_or_else(|| u64::from(std::process::id())).max(1);
    println!("LONGSHORE_POWER_SEED={seed}");
    let more = number("LONGSHORE_POWER").unwrap_or(CUTS);
    let cuts = recording.cuts(usize::try_from(more).expect("a number of cuts"), seed);
    for cut in &cuts {
        let wrong = recording.after(cut, |harness, clients| check(harness, clients, cut.flush));
        let (fstype, flushes) = (recording.fstype, recording.flushes);
        assert!(wrong.is_empty(), "{fstype}, {cut:?} of {flushes:?}, seed {seed}: {}", wrong.join("\n"));
    }
    cuts.len()
}

fn controller_loses_nothing(fstype: &'static str) {
    let mut recording = Recording::new(fstype, pool::run_clients);
    let [first, last] = recording.flushes;
    // The check itself must see a loss: the disk as it was one flush before an answer is not enough for all of them.
    let mut answers: Vec<usize> = pool::answered(&recording.result).filter(|answered| *answered > first).collect();
    answers.sort_unstable();
    let lost = answers.iter().any(|answered| {
        let cut = PowerCut::at(answered - 1);
        !recording.after(&cut, |harness, clients| pool::check(harness, clients, *answered)).is_empty()
    });
    assert!(lost, "{fstype}: no call needs the last flush before its answer: the record of flushes is not one");
    let cuts = cut_power(&mut recording, |harness, clients, flush| pool::check(harness, clients, flush));
    let calls = pool::calls(&recording.result);
    println!("FIGURE: power cuts {fstype}: {cuts} cuts, {} flushes, {calls} calls", last - first);
}

fn node_keeps_volumes(fstype: &'static str) {
    let mut recording = Recording::new(fstype, node::run_clients);
    let cuts = cut_power(&mut recording, |harness, clients, flush| node::check(harness, clients, flush));
    let ([first, last], calls) = (recording.flushes, node::calls(&recording.result));
    println!("FIGURE: power cuts of a node {fstype}: {cuts} cuts, {} flushes, {calls} calls", last - first);
}

fn on(fstype: &'static str, test: fn(&'static str)) {
    if !Path::new("/dev/fuse").exists() {
        return skipped("no /dev/fuse");
    }
    isolated(|| test(fstype));
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_ext4_lose_nothing_answered() {
    on("ext4", controller_loses_nothing);
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_xfs_lose_nothing_answered() {
    on("xfs", controller_loses_nothing);
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_ext4_leave_volumes_that_a_node_stages_again() {
    on("ext4", node_keeps_volumes);
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_xfs_leave_volumes_that_a_node_stages_again() {
    on("xfs", node_keeps_volumes);
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_btrfs_lose_nothing_answered() {
    on("btrfs", controller_loses_nothing);
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_btrfs_leave_volumes_that_a_node_stages_again() {
    on("btrfs", node_keeps_volumes);
}

//! Power cuts: the writes of a device are recorded, unsynced ones are lost, and a driver is started on what is left.
//!
//! The pool and the state directory lie on that device. The kills of the other tests leave the page cache as it was; here only
//! what a flush has passed is certain to be there. Power is cut at each flush, and between flushes, where a part of the later
//! writes is there, and again while the driver recovers from that. `LONGSHORE_POWER` is how many cuts of the second kind each test makes (20), `LONGSHORE_POWER_SEED` what
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

use common::{Harness, Pool, isolated, skipped};
use disk::{Clock, PowerCut, Recording};
use node::{Client, Kind};

/// Cuts between flushes, where `LONGSHORE_POWER` does not say.
const CUTS: u64 = 20;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

/// Recoveries that are recorded in each test, and cuts in each of them.
const RECOVERIES: usize = 3;
const CUTS_IN_RECOVERY: usize = 8;

/// What chance begins with.
fn seed() -> u64 {
    let seed = number("LONGSHORE_POWER_SEED").unwrap_or_else(|| u64::from(std::process::id())).max(1);
    println!("LONGSHORE_POWER_SEED={seed}");
    seed
}

/// Cuts the power at all flushes, or at `most` of them, and between them; returns how often.
fn cut_power<T>(
    harness: &mut Harness,
    recording: &mut Recording<T>,
    most: usize,
    mut seed: u64,
    check: impl Fn(&Harness, &T, usize) -> Vec<String>,
) -> usize {
    let more = number("LONGSHORE_POWER").unwrap_or(CUTS);
    let mut cuts = recording.cuts(usize::try_from(more).expect("a number of cuts"), seed);
    while cuts.len() > most {
        cuts.remove(disk::below(cuts.len(), &mut seed));
    }
    for cut in &cuts {
        let wrong = recording.after(harness, cut, |harness, clients| check(harness, clients, cut.flush));
        let (fstype, flushes) = (recording.fstype, recording.flushes);
        assert!(wrong.is_empty(), "{fstype}, {cut:?} of {flushes:?}, seed {seed}: {}", wrong.join("\n"));
    }
    cuts.len()
}

/// Cuts the power, and again while the file system and the driver recover and the interrupted calls are repeated; returns how often.
/// `check` gets the flushes of both cuts.
fn cut_recoveries<T, R>(
    harness: &mut Harness,
    recording: &mut Recording<T>,
    mut seed: u64,
    recover: impl Fn(&Harness, &T, usize, &Clock) -> R,
    check: impl Fn(&Harness, &T, &R, [usize; 2]) -> Vec<String>,
) -> usize {
    let mut count = 0;
    for _ in 0..RECOVERIES {
        let first = recording.somewhere(&mut seed);
        let mut second =
            recording.after_cut(harness, &first, |harness, result, clock| recover(harness, result, first.flush, clock));
        for _ in 0..CUTS_IN_RECOVERY {
            let cut = second.somewhere(&mut seed);
            let wrong = second.after(harness, &cut, |harness, recovered| {
                check(harness, &recording.result, recovered, [first.flush, cut.flush])
            });
            let fstype = recording.fstype;
            assert!(wrong.is_empty(), "{fstype}, {first:?} and then {cut:?}, seed {seed}: {}", wrong.join("\n"));
            count += 1;
        }
    }
    count
}

/// Lets other controllers and nodes use the pool.
fn share_pool(harness: &Harness) {
    let config = harness.path("config.yaml");
    let before = std::fs::read_to_string(&config).expect("the configuration");
    let alone = "    type: image\n    pools:";
    std::fs::write(&config, before.replace(alone, "    type: image\n    shared: true\n    pools:")).expect("the configuration");
}

fn controller_loses_nothing(fstype: &'static str, prepare: fn(&Harness)) {
    let mut harness = Harness::in_memory(Pool::Local);
    let mut recording = Recording::new(&mut harness, fstype, prepare, pool::run_clients);
    let [first, last] = recording.flushes;
    // The check itself must see a loss: the disk as it was one flush before an answer is not enough for all of them.
    let mut answers: Vec<usize> = pool::answered(&recording.result).filter(|answered| *answered > first).collect();
    answers.sort_unstable();
    let lost = answers.iter().any(|answered| {
        let cut = PowerCut::at(answered - 1);
        !recording.after(&mut harness, &cut, |harness, clients| pool::check(harness, clients, *answered)).is_empty()
    });
    assert!(lost, "{fstype}: no call needs the last flush before its answer: the record of flushes is not one");
    let seed = seed();
    let cuts =
        cut_power(&mut harness, &mut recording, usize::MAX, seed, |harness, clients, flush| pool::check(harness, clients, flush));
    let again = cut_recoveries(
        &mut harness,
        &mut recording,
        seed,
        |harness, clients, flush, clock| pool::recover(harness, clients, flush, clock),
        |harness, _, clients, [_, flush]| pool::check(harness, clients, flush),
    );
    let calls = pool::calls(&recording.result);
    let shared = std::fs::read_to_string(harness.path("config.yaml")).is_ok_and(|config| config.contains("shared: true"));
    let on = if shared { format!("of a shared pool on {fstype}") } else { fstype.to_owned() };
    println!("FIGURE: power cuts {on}: {cuts} cuts, {again} in recovery, {} flushes, {calls} calls", last - first);
}

fn node_keeps_volumes(fstype: &'static str, kind: &'static Kind) {
    let mut harness = Harness::in_memory(Pool::Local);
    let mut recording =
        Recording::new(&mut harness, fstype, kind.prepare, |harness, clock| node::run_clients(harness, clock, kind));
    let seed = seed();
    let cuts =
        cut_power(&mut harness, &mut recording, kind.cuts, seed, |harness, clients, flush| node::check(harness, clients, flush));
    let recover = |harness: &Harness, clients: &Vec<Client>, flush, _: &Clock| {
        let wrong = node::check(harness, clients, flush);
        assert!(wrong.is_empty(), "{fstype}, behind flush {flush}, seed {seed}: {}", wrong.join("\n"));
    };
    let again = cut_recoveries(&mut harness, &mut recording, seed, recover, |harness, clients, (), [flush, _]| {
        node::check(harness, clients, flush)
    });
    let ([first, last], calls) = (recording.flushes, node::calls(&recording.result));
    let on = format!("{} on {fstype}", kind.backend);
    println!("FIGURE: power cuts of a node, {on}: {cuts} cuts, {again} in recovery, {} flushes, {calls} calls", last - first);
}

fn on(fstype: &'static str, test: impl FnOnce(&'static str) + Send) {
    if !Path::new("/dev/fuse").exists() {
        return skipped("no /dev/fuse");
    }
    isolated(|| test(fstype));
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_ext4_lose_nothing_answered() {
    on("ext4", |fstype| controller_loses_nothing(fstype, |_| {}));
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_xfs_lose_nothing_answered() {
    on("xfs", |fstype| controller_loses_nothing(fstype, |_| {}));
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_of_a_shared_pool_lose_nothing_answered() {
    on("xfs", |fstype| controller_loses_nothing(fstype, share_pool));
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_ext4_leave_volumes_that_a_node_stages_again() {
    on("ext4", |fstype| node_keeps_volumes(fstype, &node::IMAGE));
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_xfs_leave_volumes_that_a_node_stages_again() {
    on("xfs", |fstype| node_keeps_volumes(fstype, &node::IMAGE));
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_btrfs_lose_nothing_answered() {
    on("btrfs", |fstype| controller_loses_nothing(fstype, |_| {}));
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_btrfs_leave_volumes_that_a_node_stages_again() {
    on("btrfs", |fstype| node_keeps_volumes(fstype, &node::IMAGE));
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_below_directories_leave_volumes_that_a_node_stages_again() {
    on("xfs", |fstype| node_keeps_volumes(fstype, &node::DIRECTORY));
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_below_subvolumes_leave_volumes_that_a_node_stages_again() {
    on("btrfs", |fstype| node_keeps_volumes(fstype, &node::DIRECTORY));
}

#[test]
#[ignore = "a ring of its own (scripts/test power)"]
fn unsynced_writes_lost_on_whole_disks_leave_volumes_that_a_node_stages_again() {
    on("ext4", |fstype| node_keeps_volumes(fstype, &node::WHOLE_DISK));
}

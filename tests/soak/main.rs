//! A soak: many clients, many volumes, a driver that is killed every few seconds and whose steps fail, and an oracle that
//! knows what each volume must contain.
//!
//! Each of the workers owns a volume for a while and does with it what a CO does: it repeats a call until that is done or
//! refused for good, takes it back, gives up far too early, sends it twice, or leaves it open for a later time. What is not
//! known yet is never taken for known; what is known is compared with what the kernel, the pools and the journal show after each
//! call, and with the bytes read at every target. Meanwhile others send calls about the same volume that must not
//! change anything. `LONGSHORE_SOAK` is for how many seconds (120), `LONGSHORE_SOAK_SEED` what chance begins with.
//! `LONGSHORE_SOAK_OLDER` is the driver of another version, built with the feature `faults`: each start takes the other one, as upgrades and
//! rollbacks with volumes in use do.
#![cfg(feature = "faults")]
#![allow(clippy::disallowed_methods, reason = "what a deletion kept is removed, as an operator does")]

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod model;
mod session;
mod shared;
mod worker;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Harness, Pool, isolated};
use longshore::csi;
use model::Random;
use shared::{BACK, Shared};
use worker::{Answer, Manner, Worker};

const WORKERS: usize = 16;
const VOLUMES: usize = 200;
/// A soak with more violations is ended.
const ENOUGH: usize = 10;
/// The part of the time at whose end nothing is killed and no step fails, in percent.
const CALM: u64 = 15;
/// How far the driver's memory may grow in the calm, in KiB.
const GROWTH: u64 = 16 << 10;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

#[test]
fn volumes_under_kills_and_faults_lose_and_leave_nothing() {
    isolated(|| {
        let seconds = number("LONGSHORE_SOAK").unwrap_or(120);
        let seed = number("LONGSHORE_SOAK_SEED").unwrap_or_else(|| u64::from(std::process::id()));
        println!("LONGSHORE_SOAK_SEED={seed}");
        // A process that is killed leaves the same in memory as on a disk, and more often.
        let place = if fs::exists("/dev/shm").unwrap_or(false) { "/dev/shm" } else { "/var/tmp" };
        let mut harness = Harness::new_in(place, Pool::XfsAndExt4);
        // A spare place for each worker, to restore into.
        let shared = Shared::new(&harness, seed, VOLUMES + WORKERS);
        let older = std::env::var_os("LONGSHORE_SOAK_OLDER").map(PathBuf::from);
        let mut soak = Soak { harness: &mut harness, shared: &shared, older, kills: 0, faults: 0, slowest: Duration::ZERO };
        let begun = Instant::now();
        soak.run(Duration::from_secs(seconds));
        let (kills, faults, slowest) = (soak.kills, soak.faults, soak.slowest);
        let violations = shared.violations.lock().expect("no worker panicked");
        let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        println!(
            "soak: {} refused, {} interrupted, {} contents compared, slowest start {slowest:?}, {:?} with all verified and torn down",
            count(&shared.counts.refused),
            count(&shared.counts.cut),
            count(&shared.counts.compared),
            begun.elapsed()
        );
        println!(
            "FIGURE: soak: {seconds} seconds, {} operations, {kills} kills, {faults} faults, {} violations",
            count(&shared.counts.operations),
            violations.len()
        );
        // Their first lines; what came before each is printed above.
        let first: Vec<&str> = violations.iter().filter_map(|violation| violation.lines().next()).collect();
        assert!(first.is_empty(), "{} violations:\n{}", first.len(), first.join("\n"));
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

struct Soak<'s> {
    harness: &'s mut Harness,
    shared: &'s Shared,
    /// Every other start is of this driver.
    older: Option<PathBuf>,
    kills: u64,
    faults: usize,
    slowest: Duration,
}

impl<'s> Soak<'s> {
    fn run(&mut self, time: Duration) {
        let shared = self.shared;
        let end = Instant::now() + time;
        let calm = end - time * u32::try_from(CALM).expect("small") / 100;
        let mut random = Random(shared.seed);
        self.start("");
        let empty = self.provisioned();
        std::thread::scope(|scope| {
            for number in 0..WORKERS {
                scope.spawn(move || {
                    let mut worker = Worker::new(shared, number);
                    while !shared.stop.load(Ordering::Relaxed) {
                        worker.turn(VOLUMES);
                    }
                });
            }
            while Instant::now() < calm && !self.enough() {
                let life = Duration::from_millis(2000 + random.below(3000));
                let died = self.harness.ends_within(life);
                shared.down();
                self.kills += u64::from(!died);
                self.harness.kill();
                let fault = fault(&mut random);
                self.start(&fault);
            }
            self.restart();
            let before = memory(self.harness.pid());
            while Instant::now() < end && !self.enough() {
                if self.harness.ends_within(Duration::from_millis(500)) {
                    shared.violation(None, &format!("it ended by itself:\n{}", self.harness.log()));
                }
            }
            let after = memory(self.harness.pid());
            println!("soak: memory in the calm: {before} KiB at its start, {after} KiB at its end");
            shared.closing.store(true, Ordering::Relaxed);
            shared.stop.store(true, Ordering::Relaxed);
            if after > before + GROWTH {
                shared.violation(None, &format!("its memory grew from {before} to {after} KiB"));
            }
        });
        self.verify(&empty);
    }

    fn enough(&self) -> bool {
        self.shared.violations.lock().expect("no worker panicked").len() >= ENOUGH
    }

    fn start(&mut self, fault: &str) {
        let log = self.harness.log();
        self.faults += log.lines().filter(|line| is_fault(line)).count();
        if let Ok(directory) = std::env::var("LONGSHORE_SOAK_LOGS") {
            fs::write(format!("{directory}/{}.log", self.shared.incarnation()), log).expect("the log is kept");
        }
        self.harness.forget_log();
        self.harness.set("LONGSHORE_FAULT", fault);
        self.harness.set_program(self.older.clone().filter(|_| self.shared.incarnation().is_multiple_of(2)));
        let begun = Instant::now();
        if !self.harness.try_start() {
            self.shared.violation(None, &format!("it does not come up again:\n{}", self.harness.log()));
            panic!("no driver");
        }
        self.slowest = self.slowest.max(begun.elapsed());
        if begun.elapsed() > BACK / 2 {
            self.shared.violation(None, &format!("it took {:?} to come up again", begun.elapsed()));
        }
        self.shared.up(!fault.is_empty() && !fault.starts_with("crash") && !fault.starts_with("hang"));
    }

    /// With no fault.
    fn restart(&mut self) {
        self.shared.down();
        self.harness.kill();
        self.start("");
    }

    /// In parallel, for all volumes.
    fn each(&self, work: impl Fn(&mut Worker<'s>, usize) + Sync) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for number in 0..WORKERS {
                let (next, work, shared) = (&next, &work, self.shared);
                scope.spawn(move || {
                    let mut worker = Worker::new(shared, number);
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= VOLUMES {
                            return;
                        }
                        work(&mut worker, index);
                    }
                });
            }
        });
    }

    /// What each pool can still provision.
    fn provisioned(&self) -> Vec<Option<i64>> {
        let mut worker = Worker::new(self.shared, WORKERS);
        let place = &self.shared.places[VOLUMES];
        let ask = |pool: &str| {
            let parameters = [("backend", "image"), ("pool", pool)].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            let request = csi::GetCapacityRequest { parameters, ..Default::default() };
            let answer = worker.call(place, "GetCapacity", Manner::Patient, async move |calls| {
                calls.controller().get_capacity(tonic::Request::new(request)).await
            });
            match answer {
                Answer::Ok(answer) => Some(answer.into_inner().available_capacity),
                Answer::Refused(status, _) => {
                    self.shared.violation(None, &format!("GetCapacity of pool {pool}: {status}"));
                    None
                }
                Answer::Cut { .. } => None,
            }
        };
        ["default", "plain"].map(ask).to_vec()
    }

    /// Everything is looked into, counted and taken down, by one process.
    fn verify(&mut self, empty: &[Option<i64>]) {
        let shared = self.shared;
        let pid = self.harness.pid();
        let before = idle_descriptors(pid, usize::MAX);
        self.each(|worker, index| worker.verify(&shared.places[index], &shared.places[VOLUMES + worker.number]));
        // The books of a process that lived through all that, and those that a fresh one makes from the disks.
        let (kept, made) = (self.provisioned(), {
            self.restart();
            self.provisioned()
        });
        if kept != made {
            shared.violation(None, &format!("it could provision {kept:?} bytes, and after a restart {made:?}"));
        }
        let pid_now = self.harness.pid();
        let fresh = idle_descriptors(pid_now, usize::MAX);
        self.each(|worker, index| worker.tear_down(&shared.places[index]));
        let after = idle_descriptors(pid_now, fresh.len());
        let counts = [&before, &fresh, &after].map(Vec::len);
        println!(
            "soak: descriptors at idle: {}, then of a fresh process {}, and {} after the tear-down",
            counts[0], counts[1], counts[2]
        );
        if after.len() > fresh.len() {
            shared.violation(None, &format!("it has these open at idle: {after:?}; when it was fresh: {fresh:?}"));
        }
        let left = self.provisioned();
        if left != empty {
            shared.violation(None, &format!("it can provision {left:?} bytes with nothing there, {empty:?} at first"));
        }
        if !self.harness.stop() {
            shared.violation(None, "it did not end with success");
        }
    }
}

fn fault(random: &mut Random) -> String {
    let errno = *random.pick(&["EIO", "ENOSPC", "EBUSY", "EROFS"]);
    let step = 1 + random.below(200);
    match random.below(20) {
        0..5 => String::new(),
        5..9 => format!("crash@{step}"),
        9..12 => format!("crash-within@{step}"),
        12 => format!("hang@{step}"),
        13..15 => format!("{errno}@{step}"),
        _ => format!("{errno}%{}", 5 + random.below(60)),
    }
}

/// As the driver tells of a step that went wrong.
fn is_fault(line: &str) -> bool {
    line.strip_prefix("fault: ").is_some_and(|reported| reported.contains(" at step "))
}

/// Memory of its own in KiB: of what is resident, the pages of the program itself come in as its code is first run.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the driver lives");
    let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// What the driver has open once its clients have gone: it needs a moment to see that, until they are as few as `wanted`, or become no fewer.
fn idle_descriptors(pid: u32, wanted: usize) -> Vec<String> {
    let open = || -> Vec<String> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("the driver lives");
        let shown = |path: PathBuf| fs::read_link(path).ok().map(|link| link.display().to_string());
        entries.filter_map(|entry| shown(entry.ok()?.path())).collect()
    };
    let begun = Instant::now();
    let mut least = open();
    while least.len() > wanted && begun.elapsed() < BACK {
        std::thread::park_timeout(Duration::from_millis(50));
        least = open();
    }
    least
}

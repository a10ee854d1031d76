//! Many volumes on many machines: how many requests each of them costs, and how many of those are throttled, where the cloud lets itself be asked
//! no more often than its vendor publishes.
//!
//! `LONGSHORE_CLOUD_VOLUMES=5000` says how many volumes, five for each machine; 100 by default.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::buckets::{self, Count, Size};
use super::driver::Called;
use super::emulated::Passed;
use super::front;
use super::tenant::{Driver, SPEED, Stage};
use super::wire::Request;

/// As many at once as a cluster's sidecars are set to: `--worker-threads`.
const WORKERS: usize = 50;
const VOLUMES_EACH: usize = 5;

/// A rate that a vendor publishes.
pub struct Rate {
    pub of: &'static str,
    pub limit: Limit,
}

#[derive(Clone, Copy)]
pub enum Limit {
    /// A bucket that holds so many, and gets so many a second.
    Bucket(Size),
    /// So many in each minute.
    Minute(f64),
}

/// A cloud with rates.
pub trait Rated: Stage {
    const RATES: &'static [Rate];
    /// The most mutating requests that each volume costs in each phase, and the most describing ones: in hundredths. Of the latter some look
    /// whether something has ended, and a busy machine makes more of them.
    const MOST: [(u64, u64); 4];

    /// Where it is asked.
    fn address(&mut self) -> &mut SocketAddr;
    /// Machines `m0`, `m1` and so on, each with room for five.
    fn add_machines(&self, count: usize);
    /// Which rate counts a request; `None` for what is none of the cloud's API.
    fn rate_of(request: &Request) -> Option<&'static str>;
    fn throttled() -> Passed;
}

#[derive(Default)]
struct Meter {
    /// What a bucket holds, or what was asked in this minute, and when that was counted.
    left: BTreeMap<&'static str, (f64, Duration)>,
    /// By rate, and whether they change something.
    counts: BTreeMap<(&'static str, bool), Count>,
}

impl Meter {
    /// Whether a request may pass now.
    fn take(&mut self, rates: &[Rate], of: &'static str, mutates: bool, now: Duration) -> bool {
        let may = match rates.iter().find(|rate| rate.of == of).map(|rate| rate.limit) {
            None => true,
            Some(Limit::Bucket(size)) => buckets::take(self.left.entry(of).or_insert((size.0, now)), size, now),
            Some(Limit::Minute(most)) => {
                let (asked, counted) = self.left.entry(of).or_insert((0.0, now));
                if now.as_secs() / 60 > counted.as_secs() / 60 {
                    *asked = 0.0;
                }
                *counted = now;
                *asked += 1.0;
                *asked <= most
            }
        };
        let count = self.counts.entry((of, mutates)).or_default();
        count.requests += 1;
        count.throttled += u64::from(!may);
        may
    }
}

/// Makes, attaches, detaches and deletes volumes.
pub fn many_volumes<S: Rated + Sync>() {
    let Some(mut cloud) = S::open() else { return };
    let volumes: usize = std::env::var("LONGSHORE_CLOUD_VOLUMES").map_or(100, |count| count.parse().expect("a number"));
    let speed = if volumes > 1000 { 5 } else { SPEED };
    cloud.add_machines(volumes.div_ceil(VOLUMES_EACH));
    let meter = Arc::new(Mutex::new(Meter::default()));
    let (begun, passed) = (Instant::now(), meter.clone());
    let refuse = move |request: &Request| {
        let of = S::rate_of(request)?;
        let may = passed.lock().expect("no panic").take(S::RATES, of, request.method != "GET", begun.elapsed() * speed);
        (!may).then(S::throttled)
    };
    let inner = *cloud.address();
    let proxy = front::before(inner, refuse, || ());
    *cloud.address() = proxy.address;
    let mut driver = cloud.driver();
    driver.harness.set("LONGSHORE_CLOUD_SPEED", &speed.to_string());
    driver.patience = Duration::from_secs(300);
    let driver = driver.started();
    *cloud.address() = inner;

    let ids: Vec<Mutex<String>> = (0..volumes).map(|_| Mutex::default()).collect();
    let id = |number: usize| ids[number].lock().expect("no panic").clone();
    let machine = |number: usize| format!("m{}", number / VOLUMES_EACH);
    type Work<'a> = &'a (dyn Fn(&Driver, usize) -> Called<()> + Sync);
    let create: Work<'_> = &|driver, number| {
        *ids[number].lock().expect("no panic") = driver.create(&format!("data-{number}"))?;
        Ok(())
    };
    let attach: Work<'_> = &|driver, number| driver.attach(&id(number), &machine(number)).map(drop);
    let detach: Work<'_> = &|driver, number| driver.detach(&id(number), &machine(number));
    let delete: Work<'_> = &|driver, number| driver.delete(&id(number));
    let phases = [("create", create), ("attach", attach), ("detach", detach), ("delete", delete)];
    let mut wrong = Vec::new();
    for ((name, work), (mutating, describing)) in phases.into_iter().zip(S::MOST) {
        let before = meter.lock().expect("no panic").counts.clone();
        let (begun, next) = (Instant::now(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= volumes {
                            return;
                        }
                        work(&driver, number).unwrap_or_else(|status| panic!("{name} {number}: {status}"));
                    }
                });
            }
        });
        let whole = begun.elapsed().as_secs_f64() * f64::from(speed);
        let (mut sent, mut asked, mut throttled, mut least) = (0, 0, 0, 0.0_f64);
        for (key @ (of, mutates), count) in &meter.lock().expect("no panic").counts {
            let old = before.get(key).copied().unwrap_or_default();
            let requests = count.requests - old.requests;
            throttled += count.throttled - old.throttled;
            *(if *mutates { &mut sent } else { &mut asked }) += requests;
            least = least.max(match S::RATES.iter().find(|rate| rate.of == *of).map(|rate| rate.limit) {
                None => 0.0,
                Some(Limit::Bucket((most, refill))) => (requests as f64 - most) / refill,
                Some(Limit::Minute(most)) => ((requests as f64 / most).ceil() - 1.0) * 60.0,
            });
        }
        println!(
            "FIGURE: {} scale {name}: {volumes} volumes, {sent} mutating requests, {asked} describing requests, {throttled} throttled \
             requests, {whole:.0} seconds of the cloud's time, {least:.0} by its rates",
            S::NAME
        );
        let limits = [(sent, mutating), (asked, describing)];
        if limits.iter().any(|(count, most)| count * 100 > most * volumes as u64) || throttled * 100 > sent + asked {
            wrong.push(format!("{name}: {sent} mutating, {asked} describing, {throttled} throttled for {volumes} volumes"));
        }
    }
    let all: BTreeSet<String> = (0..volumes).map(id).collect();
    assert_eq!(all.len(), volumes);
    driver.assert_clean(&cloud, "at the end");
    assert_eq!(wrong, Vec::<String>::new());
}

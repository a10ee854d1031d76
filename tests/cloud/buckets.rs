//! How often EC2 lets itself be asked.
//!
//! From "Request throttling for the Amazon EC2 API" in the Amazon EC2 Developer Guide: each action has a bucket of its own, for
//! each account and region; what a bucket holds and how fast it is refilled is published.

use std::collections::BTreeMap;
use std::time::Duration;

/// The most that a bucket holds, and how many come in a second.
pub type Size = (f64, f64);

const NON_MUTATING: Size = (100.0, 20.0);
/// Without pages and without filter.
const UNFILTERED: Size = (50.0, 10.0);
const MUTATING: Size = (50.0, 5.0);
/// "Uncategorized actions" that have sizes of their own.
const OWN: &[(&str, Size)] = &[
    ("CreateSnapshot", (100.0, 5.0)),
    ("CreateSnapshots", (100.0, 5.0)),
    ("CreateVolume", (100.0, 5.0)),
    ("DeleteSnapshot", (100.0, 5.0)),
    ("DeleteTags", (100.0, 10.0)),
    ("DeleteVolume", (100.0, 5.0)),
    ("RunInstances", (5.0, 2.0)),
    ("TerminateInstances", (100.0, 5.0)),
];
/// Those that cost more when they ask for all.
const COSTLY: [&str; 3] = ["DescribeInstances", "DescribeSnapshots", "DescribeVolumes"];

fn size(action: &str, narrowed: bool) -> Size {
    match OWN.iter().find(|(name, _)| *name == action) {
        Some((_, size)) => *size,
        None if COSTLY.contains(&action) && !narrowed => UNFILTERED,
        None if is_mutating(action) => MUTATING,
        None => NON_MUTATING,
    }
}

pub fn is_mutating(action: &str) -> bool {
    !["Describe", "List", "Get", "Search"].iter().any(|prefix| action.starts_with(prefix))
}

/// What was asked, of one action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub requests: u64,
    pub throttled: u64,
}

#[derive(Debug, Default)]
pub struct Buckets {
    /// Tokens, and when they were counted.
    left: BTreeMap<(String, bool), (f64, Duration)>,
    pub counts: BTreeMap<String, Count>,
}

/// Takes a token, if there is one, of a bucket: what it holds, and when that was counted.
pub fn take((left, counted): &mut (f64, Duration), (most, rate): Size, now: Duration) -> bool {
    *left = (*left + now.saturating_sub(*counted).as_secs_f64() * rate).min(most);
    *counted = now;
    let has = *left >= 1.0;
    if has {
        *left -= 1.0;
    }
    has
}

impl Buckets {
    /// Takes a token, if there is one.
    pub fn take(&mut self, action: &str, narrowed: bool, now: Duration) -> bool {
        let (most, rate) = size(action, narrowed);
        let own = COSTLY.contains(&action) && !narrowed;
        let has = take(self.left.entry((action.to_owned(), own)).or_insert((most, now)), (most, rate), now);
        let count = self.counts.entry(action.to_owned()).or_default();
        count.requests += 1;
        count.throttled += u64::from(!has);
        has
    }
}

#[test]
fn a_bucket_empties_and_fills_at_the_published_rate() {
    let mut buckets = Buckets::default();
    let mut taken = |action: &str, narrowed: bool, seconds: u64| {
        (0..200).filter(|_| buckets.take(action, narrowed, Duration::from_secs(seconds))).count()
    };
    assert_eq!(taken("AttachVolume", true, 0), 50);
    assert_eq!(taken("AttachVolume", true, 3), 15);
    assert_eq!(taken("CreateVolume", true, 3), 100, "each action has its own");
    assert_eq!(taken("DescribeVolumes", true, 3), 100);
    assert_eq!(taken("DescribeVolumes", false, 3), 50, "without filter and pages");
    assert_eq!(taken("DescribeVolumes", false, 1000), 50, "it never holds more");
}

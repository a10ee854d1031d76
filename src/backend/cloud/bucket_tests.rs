use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const LINE: (&str, Purpose) = ("A", Purpose::Call);
const LIMIT: Limit = Limit { capacity: 100.0, refill: 5.0 };

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// How many requests get through from `from` to `to`, asked for every 10 ms.
fn passed(bucket: &mut Bucket, from: f64, to: f64) -> usize {
    let mut passed = 0;
    for tick in 0..((to - from) * 100.0) as u64 {
        bucket.advance(seconds(from + tick as f64 / 100.0));
        while bucket.wait(0).is_zero() {
            bucket.tokens -= 1.0;
            passed += 1;
        }
    }
    passed
}

#[test]
fn a_burst_goes_through_and_then_what_comes_back() {
    let mut bucket = Bucket::new(LIMIT, Duration::ZERO);
    assert_eq!(passed(&mut bucket, 0.0, 0.01), 90);
    let sustained = passed(&mut bucket, 0.01, 100.01);
    assert!((498..=500).contains(&sustained), "{sustained}");
}

/// The cloud's own bucket is never overdrawn, however the requests bunch up on their way.
#[test]
fn the_published_limit_is_never_passed() {
    let mut bucket = Bucket::new(LIMIT, Duration::ZERO);
    let (mut theirs, mut at) = (LIMIT.capacity, 0.0_f64);
    for tick in 0..20_000_u32 {
        let now = f64::from(tick) / 100.0;
        let sent = passed(&mut bucket, now, now + 0.01);
        // Late by up to 1.5 s, or not at all; refilled once per second.
        let arrives = now + if tick % 300 < 150 { 1.5 - f64::from(tick % 150) / 100.0 } else { 0.0 };
        if arrives.floor() > at.floor() {
            theirs = (theirs + (arrives.floor() - at.floor()) * LIMIT.refill).min(LIMIT.capacity);
        }
        at = at.max(arrives);
        theirs -= sent as f64;
        assert!(theirs >= 0.0, "{theirs} at {now}");
    }
}

#[test]
fn being_throttled_slows_down_and_that_passes() {
    let mut bucket = Bucket::new(LIMIT, Duration::ZERO);
    bucket.throttled(seconds(1.0));
    assert!(bucket.tokens <= 0.0);
    assert!((bucket.share - 0.7).abs() < 1e-9);
    // The same excess counts once; a further one further.
    bucket.throttled(seconds(1.5));
    assert!(bucket.share < 0.72, "{}", bucket.share);
    bucket.throttled(seconds(2.5));
    assert!((0.49..0.52).contains(&bucket.share), "{}", bucket.share);
    for second in 3..200 {
        bucket.throttled(seconds(f64::from(second)));
    }
    assert!(bucket.share >= LEAST_SHARE && bucket.share < 0.08, "{}", bucket.share);
    let slow = passed(&mut bucket, 200.0, 210.0);
    assert!((3..=9).contains(&slow), "{slow}");
    let whole = passed(&mut bucket, 300.0, 400.0);
    assert!(whole >= 500, "{whole}");
}

/// Anyone who waits as long as it was asked to finds its token, and none much sooner.
#[test]
fn the_wait_that_is_reported_is_right() {
    for share in [LEAST_SHARE, 0.3, 0.7, 1.0] {
        for ahead in [0, 1, 7, 60, 400] {
            let bucket = Bucket { share, tokens: 0.4, ..Bucket::new(LIMIT, Duration::ZERO) };
            let wait = bucket.wait(ahead);
            let mut early = bucket.clone();
            early.advance(wait.saturating_sub(seconds(0.05)));
            // Without the limit on a burst, which anyone who waits does not reach: those ahead take theirs.
            let tokens = |seconds: f64| {
                let mut bucket = Bucket { limit: Limit { capacity: 1e6, ..LIMIT }, ..bucket.clone() };
                bucket.advance(Duration::from_secs_f64(seconds));
                bucket.tokens
            };
            assert!(tokens(wait.as_secs_f64()) >= ahead as f64 + 1.0, "{share} {ahead}");
            assert!(tokens(wait.as_secs_f64() - 0.01) < ahead as f64 + 1.0, "{share} {ahead}");
        }
    }
}

fn buckets(limit: Limit) -> Buckets {
    Buckets::new(Clock::default(), move |_| limit)
}

#[test]
fn request_past_its_deadline_is_refused_at_once() {
    let buckets = buckets(Limit { capacity: 1.0, refill: 0.01 });
    assert!(buckets.take("A", Purpose::Call, Duration::ZERO).is_ok());
    let begin = std::time::Instant::now();
    let refusal = buckets.take("A", Purpose::Call, buckets.clock.now() + Duration::from_secs(90)).expect_err("100 s");
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert_eq!((refusal.because, refusal.maybe_done), (CloudErrorKind::Throttled, false));
    let after = refusal.retry_after.expect("a time").as_secs();
    assert!((98..=100).contains(&after), "{after}");
    // Each action has a bucket of its own.
    assert!(buckets.take("B", Purpose::Call, Duration::ZERO).is_ok());
}

#[test]
fn requests_pass_in_the_order_of_arrival() {
    let buckets = Arc::new(buckets(Limit { capacity: 1.0, refill: 20.0 }));
    let far = Duration::from_secs(3600);
    buckets.take("A", Purpose::Call, far).expect("the first");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut threads = Vec::new();
    for number in 0..12 {
        let (buckets, order) = (buckets.clone(), order.clone());
        let waiting = buckets.clone();
        let before = waiting.lines()[&LINE].next;
        let thread = std::thread::spawn(move || {
            buckets.take("A", Purpose::Call, far).expect("a turn");
            order.lock().expect("no panic").push(number);
        });
        // Until it is in line, or has had its turn without waiting.
        while waiting.lines()[&LINE].next == before && !thread.is_finished() {
            std::thread::yield_now();
        }
        threads.push(thread);
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert!(order.lock().expect("no panic").is_sorted(), "{order:?}");
    assert!(buckets.lines()[&LINE].waiting.is_empty());
}

/// The attacher's reconciliation, and the health monitor's, in an account with many volumes.
#[test]
fn lists_leave_a_share_to_calls_and_have_one_of_their_own() {
    let limit = Limit { capacity: 20.0, refill: 10.0 };
    let buckets = Arc::new(Buckets::new(Clock::fast(10, Duration::from_secs(3600)), move |_| limit));
    let (pages, stop) = (Arc::new(Mutex::new(0_u32)), Arc::new(AtomicBool::new(false)));
    let lists: Vec<_> = (0..8)
        .map(|_| {
            let (buckets, pages, stop) = (buckets.clone(), pages.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let deadline = buckets.clock.now() + Duration::from_secs(40);
                    buckets.take("A", Purpose::List, deadline).expect("a page's turn");
                    *pages.lock().expect("no panic") += 1;
                }
            })
        })
        .collect();
    // Half of the burst is gone, and the other half is not theirs.
    while *pages.lock().expect("no panic") < 12 {
        std::thread::yield_now();
    }
    for _ in 0..40 {
        let waited = buckets.take("A", Purpose::Call, buckets.clock.now() + Duration::from_secs(1)).expect("in time");
        // Eight lists in the one line would be before it, for 0.8 s.
        assert!(waited < Duration::from_millis(500), "a look-up waited {waited:?} for lists");
        buckets.clock.sleep(Duration::from_millis(250));
    }
    let before = *pages.lock().expect("no panic");
    while *pages.lock().expect("no panic") < before + 8 {
        std::thread::yield_now();
    }
    stop.store(true, Ordering::SeqCst);
    lists.into_iter().for_each(|list| list.join().expect("no panic"));
}

#[test]
fn requests_that_throttling_makes_late_are_refused_then() {
    let buckets = Arc::new(buckets(Limit { capacity: 1.0, refill: 0.2 }));
    buckets.take("A", Purpose::Call, Duration::from_secs(9)).expect("the first");
    let waiting = buckets.clone();
    let deadline = buckets.clock.now() + Duration::from_secs(6);
    let thread = std::thread::spawn(move || waiting.take("A", Purpose::Call, deadline));
    while buckets.lines()[&LINE].waiting.is_empty() {
        std::thread::yield_now();
    }
    buckets.throttled("A", None);
    let refusal = thread.join().expect("no panic").expect_err("too late");
    assert_eq!(refusal.because, CloudErrorKind::Throttled);
    // At once, not when its turn would have come.
    assert!(deadline - buckets.clock.now() > Duration::from_secs(3));
    assert!(buckets.lines()[&LINE].waiting.is_empty());
}

#[test]
fn retry_after_closes_a_bucket_for_all_and_nothing_comes_back_meanwhile() {
    let clock = Clock::fast(30, Duration::from_secs(3600));
    let buckets = Buckets::new(clock, |_| LIMIT);
    buckets.take("A", Purpose::Call, clock.now()).expect("a burst");
    buckets.throttled("A", Some(Duration::from_secs(20)));
    let began = clock.now();
    let refusal = buckets.take("A", Purpose::Call, began + Duration::from_secs(19)).expect_err("closed");
    assert!(refusal.retry_after.is_some_and(|after| after > Duration::from_secs(19)), "{refusal:?}");
    buckets.take("A", Purpose::Call, began + Duration::from_secs(60)).expect("open again");
    assert!(clock.now() - began >= Duration::from_secs(20));
    assert!(buckets.take("A", Purpose::Call, clock.now()).is_err(), "no burst came back while it was closed");
    // Another action is not concerned, and no reply stops a driver for longer than a call waits.
    buckets.take("B", Purpose::Call, clock.now()).expect("a bucket of its own");
    buckets.throttled("B", Some(Duration::from_secs(100_000)));
    let refusal = buckets.take("B", Purpose::Call, clock.now()).expect_err("closed");
    assert!(refusal.retry_after.is_some_and(|after| after < Duration::from_secs(41)), "{refusal:?}");
}

#[test]
fn remaining_quota_of_a_reply_is_all_that_is_left() {
    let buckets = Buckets::new(Clock::default(), |_| Limit { capacity: 100.0, refill: 0.001 });
    let left = |purpose| (0..200).take_while(|_| buckets.take("A", purpose, Duration::ZERO).is_ok()).count();
    buckets.remaining("A", 7.0);
    assert_eq!(left(Purpose::List), 3);
    assert_eq!(left(Purpose::Call), 4);
    // More than was thought is believed once it has come back.
    buckets.remaining("A", 1000.0);
    assert_eq!(left(Purpose::Call), 0);
}

#[test]
fn actions_of_a_group_take_from_one_bucket() {
    let limit = |_: &str| Limit { capacity: 10.0, refill: 0.001 };
    let buckets = Buckets::of_groups(Clock::default(), limit, |action| if action == "other" { action } else { "group" });
    let take = |action| buckets.take(action, Purpose::Call, Duration::ZERO).map(drop);
    for action in ["one", "two", "one", "two", "one", "two", "one", "two", "one"] {
        take(action).expect("there is one left");
    }
    take("two").expect_err("another has taken it");
    take("other").expect("of its own");
}

//! How often a cloud may be asked: a token bucket for each of its actions, that learns from its refusals.
//!
//! A cloud throttles by token buckets of its own, of which it has published the sizes; other users of the account take from them too.
//! So a bucket here starts from the published size, takes a smaller share of it when the cloud throttles all the same, and goes back to
//! the whole within [`RECOVERY`]. Requests are sent in the order in which they came; one that could not be sent before its deadline is
//! refused at once. Lists of all there is, whose pages can be many, have a share of each bucket, so that they neither hold up the
//! look-ups that calls wait for nor starve.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::api::{Answer, CloudErrorKind, Refusal};
use super::clock::Clock;

/// How much of the published size is used: a request that was sent later may arrive sooner, and a cloud refills in steps of a second.
const BURST: f64 = 0.9;
/// How much of a bucket lists may take.
const LISTS: f64 = 0.5;
/// What a reply that throttles makes of the share.
const DECREASE: f64 = 0.7;
/// The share never gets smaller.
const LEAST_SHARE: f64 = 0.05;
/// The replies within this time tell of the same excess.
const SAME_EXCESS: Duration = Duration::from_secs(1);
/// In this time the share grows from nothing to the whole.
const RECOVERY: Duration = Duration::from_secs(60);

/// What a cloud allows of an action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Requests at once.
    pub capacity: f64,
    /// Requests per second.
    pub refill: f64,
}

/// For what a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A call waits for it.
    Call,
    /// A page of a list of all there is.
    List,
}

/// All the buckets of one account in one region.
pub struct Buckets {
    clock: Clock,
    limit: Box<dyn Fn(&str) -> Limit + Send + Sync>,
    lines: Mutex<Lines>,
}

/// What takes for a list has passed its own line before it joins that of all.
type Lines = HashMap<(&'static str, Purpose), Line>;

/// A bucket, and who waits for it, by the numbers of their tickets.
struct Line {
    bucket: Bucket,
    next: u64,
    waiting: BTreeMap<u64, Thread>,
}

impl Buckets {
    /// `limit` says what the cloud allows of an action.
    pub fn new(clock: Clock, limit: impl Fn(&str) -> Limit + Send + Sync + 'static) -> Buckets {
        Buckets { clock, limit: Box::new(limit), lines: Mutex::default() }
    }

    /// Waits until a request of `action` may be sent; answers how long that was.
    ///
    /// # Errors
    /// `Throttled`, at once, where it would not be sent before `deadline`, a time of the clock.
    pub fn take(&self, action: &'static str, purpose: Purpose, deadline: Duration) -> Answer<Duration> {
        let own = match purpose {
            Purpose::Call => Duration::ZERO,
            Purpose::List => self.pass((action, Purpose::List), deadline)?,
        };
        Ok(own + self.pass((action, Purpose::Call), deadline)?)
    }

    /// Waits in one line.
    fn pass(&self, key: (&'static str, Purpose), deadline: Duration) -> Answer<Duration> {
        let begin = self.clock.now();
        let mut ticket = None;
        loop {
            let now = self.clock.now();
            let mut lines = self.lines();
            let line = self.line(&mut lines, key, now);
            line.bucket.advance(now);
            let mine = ticket.unwrap_or(line.next);
            let ahead = line.waiting.range(..mine).count();
            let wait = line.bucket.wait(ahead);
            if wait.is_zero() {
                line.bucket.tokens -= 1.0;
                line.waiting.remove(&mine);
                return Ok(now.saturating_sub(begin));
            }
            if now + wait > deadline {
                if line.waiting.remove(&mine).is_some() {
                    // Those behind are a place further ahead.
                    line.wake();
                }
                return Err(too_late(key.0, ahead, wait));
            }
            if ticket.is_none() {
                line.next += 1;
                line.waiting.insert(mine, std::thread::current());
                ticket = Some(mine);
            }
            drop(lines);
            std::thread::park_timeout(self.clock.real(wait));
        }
    }

    /// The cloud refused a request of `action` as one too many.
    pub fn throttled(&self, action: &'static str) {
        let now = self.clock.now();
        let mut lines = self.lines();
        for purpose in [Purpose::Call, Purpose::List] {
            let line = self.line(&mut lines, (action, purpose), now);
            line.bucket.throttled(now);
            // Some may be too late now.
            line.wake();
        }
    }

    fn line<'a>(&self, lines: &'a mut Lines, key: (&'static str, Purpose), now: Duration) -> &'a mut Line {
        let fresh = || {
            let whole = (self.limit)(key.0);
            let limit = match key.1 {
                Purpose::Call => whole,
                Purpose::List => Limit { capacity: whole.capacity * LISTS, refill: whole.refill * LISTS },
            };
            Line { bucket: Bucket::new(limit, now), next: 0, waiting: BTreeMap::new() }
        };
        lines.entry(key).or_insert_with(fresh)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn wake(&self) {
        self.waiting.values().for_each(Thread::unpark);
    }
}

fn too_late(action: &'static str, ahead: usize, wait: Duration) -> Refusal {
    let seconds = wait.as_secs_f64();
    Refusal {
        because: CloudErrorKind::Throttled,
        action,
        code: "own rate limit".to_owned(),
        message: format!("{ahead} requests wait to be sent already, and this one would have to for {seconds:.1} s"),
        request_id: None,
        maybe_done: false,
        retry_after: Some(wait),
    }
}

/// The arithmetic of one bucket; times are since the clock's start.
#[derive(Clone, Debug)]
struct Bucket {
    limit: Limit,
    /// At `at`.
    tokens: f64,
    /// How much of the limit is ours, from [`LEAST_SHARE`] to 1; at `at`.
    share: f64,
    at: Duration,
    throttled: Option<Duration>,
}

impl Bucket {
    fn new(limit: Limit, now: Duration) -> Bucket {
        let mut bucket = Bucket { limit, tokens: 0.0, share: 1.0, at: now, throttled: None };
        bucket.tokens = bucket.capacity();
        bucket
    }

    fn capacity(&self) -> f64 {
        (self.limit.capacity * BURST * self.share).max(1.0)
    }

    /// Advances to `now`.
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        let recovery = RECOVERY.as_secs_f64();
        let growing = passed.min((1.0 - self.share) * recovery);
        let shares = self.share * growing + growing * growing / (2.0 * recovery) + (passed - growing);
        self.share = (self.share + growing / recovery).min(1.0);
        self.tokens = (self.tokens + self.limit.refill * shares).min(self.capacity());
        self.at = self.at.max(now);
    }

    /// How long until there is a token for one that has `ahead` others before it: what `advance` gains, solved for the time.
    fn wait(&self, ahead: usize) -> Duration {
        let missing = (ahead as f64 + 1.0 - self.tokens) / self.limit.refill;
        if missing <= 1e-9 {
            return Duration::ZERO;
        }
        let recovery = RECOVERY.as_secs_f64();
        let growing = recovery * ((self.share * self.share + 2.0 * missing / recovery).sqrt() - self.share);
        let growth = (1.0 - self.share) * recovery;
        let seconds = if growing <= growth { growing } else { growth + missing - growth * (1.0 + self.share) / 2.0 };
        // Not a moment too soon.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 4) + Duration::from_micros(10)
    }

    fn throttled(&mut self, now: Duration) {
        self.advance(now);
        self.tokens = self.tokens.min(0.0);
        if self.throttled.is_none_or(|last| now >= last + SAME_EXCESS) {
            self.throttled = Some(now);
            self.share = (self.share * DECREASE).max(LEAST_SHARE);
        }
    }
}

#[cfg(test)]
mod tests {
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
            threads.push(std::thread::spawn(move || {
                buckets.take("A", Purpose::Call, far).expect("a turn");
                order.lock().expect("no panic").push(number);
            }));
            // Until it is in line, or has had its turn.
            while waiting.lines().get(&LINE).is_none_or(|line| line.next <= number) {
                std::thread::yield_now();
            }
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
        buckets.throttled("A");
        let refusal = thread.join().expect("no panic").expect_err("too late");
        assert_eq!(refusal.because, CloudErrorKind::Throttled);
        // At once, not when its turn would have come.
        assert!(deadline - buckets.clock.now() > Duration::from_secs(3));
        assert!(buckets.lines()[&LINE].waiting.is_empty());
    }
}

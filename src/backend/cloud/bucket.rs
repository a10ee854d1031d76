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
use super::timeouts::REQUEST;

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
/// The longest that a reply closes a bucket for: a wrong `Retry-After` must not stop a driver, so that each call has a request in time.
const MOST_CLOSED: Duration = REQUEST;
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
    group: fn(&'static str) -> &'static str,
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
        Buckets::of_groups(clock, limit, |action| action)
    }

    /// Where several actions take from one bucket: `group` is that of an action, and `limit` what the cloud allows of a group.
    pub fn of_groups(
        clock: Clock,
        limit: impl Fn(&str) -> Limit + Send + Sync + 'static,
        group: fn(&'static str) -> &'static str,
    ) -> Buckets {
        Buckets { clock, limit: Box::new(limit), group, lines: Mutex::default() }
    }

    /// Waits until a request of `action` may be sent; answers how long that was.
    ///
    /// # Errors
    /// `Throttled`, at once, where it would not be sent before `deadline`, a time of the clock.
    pub fn take(&self, action: &'static str, purpose: Purpose, deadline: Duration) -> Answer<Duration> {
        let action = (self.group)(action);
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
            let wait = line.bucket.wait_from(now, ahead);
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

    /// The cloud refused a request of `action` as one too many, and wants none before `retry_after` has passed, where it says so.
    pub fn throttled(&self, action: &'static str, retry_after: Option<Duration>) {
        let (now, action) = (self.clock.now(), (self.group)(action));
        let mut lines = self.lines();
        for purpose in [Purpose::Call, Purpose::List] {
            let line = self.line(&mut lines, (action, purpose), now);
            line.bucket.throttled(now);
            line.bucket.close(now, retry_after.unwrap_or_default());
            // Some may be too late now.
            line.wake();
        }
    }

    /// A reply says how many requests of `action` are left (Azure: `x-ms-ratelimit-remaining-…`): others may have taken from the same quota.
    pub fn remaining(&self, action: &'static str, left: f64) {
        let (now, action) = (self.clock.now(), (self.group)(action));
        let mut lines = self.lines();
        for (purpose, share) in [(Purpose::Call, 1.0), (Purpose::List, LISTS)] {
            let bucket = &mut self.line(&mut lines, (action, purpose), now).bucket;
            bucket.advance(now);
            bucket.tokens = bucket.tokens.min(left * share);
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
    /// Later than now where the bucket is closed until then.
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

    /// As `wait`, seen from `now`, be the bucket closed.
    fn wait_from(&self, now: Duration, ahead: usize) -> Duration {
        let wait = self.wait(ahead);
        let closed = self.at.saturating_sub(now);
        if closed.is_zero() { wait } else { closed + wait }
    }

    /// Nothing is sent, and nothing comes back, for so long.
    fn close(&mut self, now: Duration, span: Duration) {
        self.at = self.at.max(now + span.min(MOST_CLOSED));
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
#[path = "bucket_tests.rs"]
mod tests;

//! Sends a request again where that can do no harm, with full jitter between attempts, until the request's deadline.
//!
//! Every attempt takes from the bucket of its action. What was throttled was not done, and is always sent again. What was lost (no
//! answer, none that can be read, the cloud's own failure) is sent again only where it was never sent, or a repeat cannot do it twice.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use super::api::{Answer, CloudErrorKind, Refusal};
use super::bucket::{Buckets, Purpose};
use super::clock::Clock;
use super::timeouts::REQUEST;
use crate::metrics::CloudRequests;

/// A cloud that gave no answer so often in a row is reported.
const MOST_LOST: u32 = 4;

/// What a second request does, where the first may have been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It only reads.
    Reads,
    /// Nothing more: it carries a token, or finds done what it would do.
    Harmless,
    /// The same once more.
    Doubles,
}

/// How long a request is tried for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// After this time no attempt begins; in the clock's time, as the others here.
    pub deadline: Duration,
    /// The most between the first and the second attempt; twice as much between further ones.
    pub first: Duration,
    /// The most between any two.
    pub most: Duration,
    /// For one attempt, from connecting to the whole answer; in real time, since that is what a cloud takes.
    pub answer: Duration,
}

impl Default for Patience {
    /// Below what sidecars give a call (a minute, as they are usually deployed).
    fn default() -> Self {
        Patience {
            deadline: REQUEST,
            first: Duration::from_millis(500),
            most: Duration::from_secs(10),
            answer: Duration::from_secs(20),
        }
    }
}

/// What sends requests.
pub struct Retry {
    clock: Clock,
    buckets: Buckets,
    patience: Patience,
    requests: CloudRequests,
}

impl Retry {
    pub fn new(clock: Clock, buckets: Buckets, patience: Patience, requests: CloudRequests) -> Retry {
        Retry { clock, buckets, patience, requests }
    }

    /// When a request that comes now has to be done with, in the clock's time.
    pub fn deadline(&self) -> Duration {
        self.clock.now() + self.patience.deadline
    }

    /// What a reply says of the quota that is left for `action`; for a client to call in its attempts.
    pub fn remaining(&self, action: &'static str, left: f64) {
        self.buckets.remaining(action, left);
    }

    /// Runs `attempt` until it is answered, or that can no longer be hoped for.
    ///
    /// # Errors
    /// That of the last attempt; its `maybe_done` is set if any attempt may have been done.
    pub fn run<T>(
        &self,
        (action, purpose): (&'static str, Purpose),
        repeat: Repeat,
        deadline: Duration,
        mut attempt: impl FnMut() -> Answer<T>,
    ) -> Answer<T> {
        let mut tries = Tries::new(repeat, self.patience);
        loop {
            let answer = self.buckets.take(action, purpose, deadline).and_then(|waited| {
                self.requests.waited(action, waited);
                let begin = Instant::now();
                let answer = attempt();
                self.requests.ended(action, outcome(&answer), begin.elapsed());
                if let Err(refusal) = &answer
                    && refusal.because == CloudErrorKind::Throttled
                {
                    self.buckets.throttled(action, refusal.retry_after);
                }
                answer
            });
            let refusal = match answer {
                Ok(value) => return Ok(value),
                Err(refusal) => refusal,
            };
            let left = deadline.saturating_sub(self.clock.now());
            match tries.next(refusal, left, random()) {
                Ok(wait) => self.clock.sleep(wait),
                Err(refusal) => return Err(refusal),
            }
        }
    }
}

fn outcome<T>(answer: &Answer<T>) -> &'static str {
    match answer.as_ref().map_err(|refusal| refusal.because) {
        Ok(_) => "ok",
        Err(CloudErrorKind::Throttled) => "throttled",
        Err(CloudErrorKind::Unavailable) => "lost",
        Err(_) => "refused",
    }
}

/// From 0 to 1. The standard library seeds its hashers at random, which is good enough for jitter.
fn random() -> f64 {
    RandomState::new().hash_one(0_u8) as f64 / u64::MAX as f64
}

/// What became of the attempts so far.
#[derive(Debug)]
struct Tries {
    repeat: Repeat,
    patience: Patience,
    number: u32,
    lost: u32,
    maybe_done: bool,
}

impl Tries {
    fn new(repeat: Repeat, patience: Patience) -> Tries {
        Tries { repeat, patience, number: 0, lost: 0, maybe_done: false }
    }

    /// How long to wait before the next attempt, or that there is none. `left` is the time to the deadline, `random` from 0 to 1.
    fn next(&mut self, mut refusal: Refusal, left: Duration, random: f64) -> Answer<Duration> {
        self.maybe_done |= refusal.maybe_done && self.repeat != Repeat::Reads;
        self.lost = if refusal.because == CloudErrorKind::Unavailable { self.lost + 1 } else { 0 };
        let again = match refusal.because {
            CloudErrorKind::Throttled => true,
            CloudErrorKind::Unavailable => self.lost < MOST_LOST && (!refusal.maybe_done || self.repeat != Repeat::Doubles),
            _ => false,
        };
        let most = self.patience.first.saturating_mul(1 << self.number.min(16)).min(self.patience.most);
        let wait = most.mul_f64(random).max(refusal.retry_after.unwrap_or_default());
        self.number += 1;
        if again && wait < left {
            return Ok(wait);
        }
        refusal.maybe_done = self.maybe_done;
        if refusal.because == CloudErrorKind::Throttled {
            refusal.retry_after.get_or_insert(self.patience.most);
        }
        Err(refusal)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::bucket::Limit;
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn refusal(because: CloudErrorKind, maybe_done: bool) -> Refusal {
        let (code, message) = ("Code".to_owned(), "message".to_owned());
        Refusal { because, action: "A", code, message, request_id: None, maybe_done, retry_after: None }
    }

    fn tries(repeat: Repeat) -> Tries {
        Tries::new(repeat, Patience::default())
    }

    #[test]
    fn only_what_can_do_no_harm_is_sent_again() {
        use CloudErrorKind::*;
        use Repeat::*;
        for (repeat, because, maybe_done, again) in [
            (Reads, Throttled, false, true),
            (Harmless, Throttled, false, true),
            (Doubles, Throttled, false, true),
            (Reads, Unavailable, true, true),
            (Harmless, Unavailable, true, true),
            (Doubles, Unavailable, true, false),
            // The connection was refused.
            (Doubles, Unavailable, false, true),
        ] {
            let next = tries(repeat).next(refusal(because, maybe_done), LONG, 0.5);
            assert_eq!(next.is_ok(), again, "{repeat:?} {because:?} {maybe_done}");
        }
        for because in [
            NotFound,
            NoInstance,
            NotAttached,
            InUse,
            NameTaken,
            InstanceFull,
            OtherParameters,
            TooSoon,
            Quota,
            NoCapacity,
            Invalid,
            Denied,
            Key,
            Other,
        ] {
            assert!(tries(Reads).next(refusal(because, false), LONG, 0.5).is_err(), "{because:?}");
        }
    }

    #[test]
    fn waits_grow_to_a_limit_and_are_anywhere_below() {
        let mut tries = tries(Repeat::Reads);
        let mut waits = Vec::new();
        for _ in 0..40 {
            waits.push(tries.next(refusal(CloudErrorKind::Throttled, false), LONG, 1.0).expect("again").as_millis());
        }
        assert_eq!(waits[..7], [500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        assert_eq!(waits[39], 10_000);
        assert_eq!(tries.next(refusal(CloudErrorKind::Throttled, false), LONG, 0.0), Ok(Duration::ZERO));
        // The cloud says for how long.
        let reported = Refusal { retry_after: Some(Duration::from_secs(30)), ..refusal(CloudErrorKind::Throttled, false) };
        assert_eq!(tries.next(reported, LONG, 0.0), Ok(Duration::from_secs(30)));
    }

    #[test]
    fn retries_end_at_the_deadline() {
        let mut reads = tries(Repeat::Reads);
        let last = reads.next(refusal(CloudErrorKind::Throttled, false), Duration::ZERO, 0.0).expect_err("the deadline");
        assert!(last.retry_after.is_some());
        let mut reads = tries(Repeat::Reads);
        let answers: Vec<bool> =
            (0..4).map(|_| reads.next(refusal(CloudErrorKind::Unavailable, true), LONG, 0.5).is_ok()).collect();
        assert_eq!(answers, [true, true, true, false]);
    }

    #[test]
    fn unknown_outcome_of_one_attempt_is_kept() {
        let mut harmless = tries(Repeat::Harmless);
        assert!(harmless.next(refusal(CloudErrorKind::Unavailable, true), LONG, 0.5).is_ok());
        let last = harmless.next(refusal(CloudErrorKind::InUse, false), LONG, 0.5).expect_err("not again");
        assert_eq!((last.because, last.maybe_done), (CloudErrorKind::InUse, true));
        let mut reads = tries(Repeat::Reads);
        let last = reads.next(refusal(CloudErrorKind::Unavailable, true), Duration::ZERO, 0.5).expect_err("the deadline");
        assert!(!last.maybe_done);
    }

    #[test]
    fn quota_headers_of_a_reply_slow_down_all_requests_of_the_action() {
        let clock = Clock::fast(30, Duration::from_secs(3600));
        let buckets = Buckets::new(clock, |_| Limit { capacity: 100.0, refill: 0.5 });
        let retry = Retry::new(clock, buckets, Patience::default(), CloudRequests::default());
        let (call, now) = (("A", Purpose::Call), Duration::ZERO);
        let reply = || {
            retry.remaining("A", 1.0);
            Ok(())
        };
        retry.run(call, Repeat::Reads, now, reply).expect("answered");
        retry.run(call, Repeat::Reads, now, || Ok(())).expect("the last");
        let refused = retry.run(call, Repeat::Reads, now, || Ok(())).expect_err("none is left");
        assert_eq!(refused.because, CloudErrorKind::Throttled);
        // Another call hears from one reply how long nothing is accepted.
        let throttled = || Refusal { retry_after: Some(Duration::from_secs(30)), ..refusal(CloudErrorKind::Throttled, false) };
        retry.run::<()>(("B", Purpose::Call), Repeat::Doubles, clock.now(), || Err(throttled())).expect_err("throttled");
        let refused = retry.run(("B", Purpose::Call), Repeat::Doubles, clock.now() + Duration::from_secs(25), || Ok(()));
        assert_eq!(refused.expect_err("not sent").code, "own rate limit");
    }

    #[test]
    fn each_attempt_takes_from_the_bucket_and_throttling_is_learned_from() {
        let clock = Clock::default();
        let buckets = Buckets::new(clock, |_| Limit { capacity: 10.0, refill: 50.0 });
        let patience = Patience { first: Duration::from_millis(1), ..Patience::default() };
        let retry = Retry::new(clock, buckets, patience, CloudRequests::default());
        let answers = RefCell::new(vec![
            Ok(7),
            Err(refusal(CloudErrorKind::Unavailable, true)),
            Err(refusal(CloudErrorKind::Throttled, false)),
        ]);
        let times = RefCell::new(Vec::new());
        let answer = retry.run(("A", Purpose::Call), Repeat::Reads, retry.deadline(), || {
            times.borrow_mut().push(clock.now());
            answers.borrow_mut().pop().expect("three attempts")
        });
        assert_eq!(answer, Ok(7));
        // The first reply emptied the bucket: a token comes back after 1/50 s at the soonest, and slower at seven tenths.
        let times = times.into_inner();
        assert!(times[1] - times[0] >= Duration::from_millis(20), "{times:?}");
        // At once many are more than the bucket has, however many tokens have come back meanwhile.
        let refused = (0..1000).find_map(|_| retry.run(("A", Purpose::Call), Repeat::Reads, Duration::ZERO, || Ok(())).err());
        assert_eq!(refused.map(|refusal| refusal.because), Some(CloudErrorKind::Throttled));
    }
}

//! Many questions become one.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::super::poller::{Poller, Source};
use super::super::{Answer, CloudErrorKind};
use super::fake::refusal;
use super::*;

/// A number about which nobody may ask.
const REFUSED: u32 = 666;
/// A number that is out of order.
const BROKEN: u32 = 668;

/// Numbers: even ones exist. At most ten in a request.
#[derive(Default)]
struct Numbers {
    requests: Mutex<Vec<Vec<u32>>>,
    fails: AtomicU32,
    panics: AtomicBool,
    dropped: Arc<AtomicBool>,
    /// While it is locked, a question about [`BROKEN`] alone is not answered.
    hangs: Mutex<()>,
    /// As `hangs`, of a question about others, too.
    hangs_together: Mutex<()>,
}

impl Source for Arc<Numbers> {
    type Key = u32;
    type Item = u32;

    fn batch(&self, _: &u32) -> (&'static str, usize) {
        ("", 10)
    }

    fn fetch(&self, keys: &[u32]) -> Answer<Vec<(u32, u32)>> {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "asked to panic");
        self.requests.lock().expect("not poisoned").push(keys.to_vec());
        if self.fails.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Err(refusal("numbers", CloudErrorKind::Unavailable));
        }
        if keys.contains(&REFUSED) {
            return Err(refusal("numbers", CloudErrorKind::Invalid));
        }
        if keys.contains(&BROKEN) {
            let _answered = if keys.len() == 1 { self.hangs.lock() } else { self.hangs_together.lock() };
            return Err(refusal("numbers", CloudErrorKind::Unavailable));
        }
        Ok(keys.iter().filter(|key| *key % 2 == 0).map(|key| (*key, key * 100)).collect())
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

fn numbers() -> (Arc<Numbers>, Poller<Arc<Numbers>>, Clock) {
    asked(false)
}

fn asked(one_by_one: bool) -> (Arc<Numbers>, Poller<Arc<Numbers>>, Clock) {
    let clock = Clock::fast(SPEED, Duration::ZERO);
    let numbers = Arc::new(Numbers::default());
    (Arc::clone(&numbers), Poller::new(numbers, clock, one_by_one), clock)
}

#[test]
fn questions_of_one_moment_are_few_requests() {
    let (numbers, poller, _) = numbers();
    let found = poller.look_all(&(0..25).collect::<Vec<_>>()).expect("answered");
    assert_eq!((found.len(), &found[&4]), (13, &vec![400]));
    let sizes: Vec<usize> = numbers.requests.lock().expect("not poisoned").iter().map(Vec::len).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 25, "no key is asked about twice");
    assert!(sizes.len() <= 4 && sizes.iter().all(|size| *size <= 10), "{sizes:?}");
    assert_eq!(poller.look(&3).expect("answered"), [0; 0]);
}

/// A list's page asks about hundreds, and the next page is asked for at once.
#[test]
fn one_who_asks_about_many_at_once_waits_no_longer_than_one_who_asks_about_one() {
    // Not a faster one: a busy machine is not to be mistaken for a wait.
    let clock = Clock::fast(1, Duration::ZERO);
    let poller = Poller::new(Arc::new(Numbers::default()), clock, false);
    let keys: Vec<u32> = (0..500).collect();
    poller.look_all(&keys).expect("answered");
    let begun = clock.now();
    poller.look_all(&keys).expect("answered");
    let took = clock.now() - begun;
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn failure_reaches_the_look_up_and_not_the_wait() {
    let (numbers, poller, clock) = numbers();
    numbers.fails.store(1, Ordering::SeqCst);
    assert_eq!(poller.look(&2).expect_err("fails").code, "Fake.Unavailable");
    assert!(poller.last().expect("asked").1.is_err());
    numbers.fails.store(3, Ordering::SeqCst);
    let until = clock.now() + Duration::from_secs(60);
    assert_eq!(poller.wait(&2, until, |seen| seen.first().copied()).expect("at last"), 200);
    assert!(poller.last().expect("asked").1.is_ok());
    // It looks a last time at its end, and says what it saw.
    let until = clock.now() + Duration::from_secs(5);
    let unfinished = poller.wait(&3, until, |seen| seen.first().copied()).expect_err("never");
    assert_eq!((unfinished.last, unfinished.refusal.is_none()), (Some(vec![]), true));
    assert!(clock.now() >= until);
}

#[test]
fn key_that_is_refused_does_not_fail_the_others_of_its_request() {
    let (numbers, poller, _) = asked(true);
    std::thread::scope(|scope| {
        let [found, refused] = [2, REFUSED].map(|key| {
            let poller = &poller;
            scope.spawn(move || poller.look(&key))
        });
        assert_eq!(found.join().expect("no panic").expect("answered"), [200]);
        assert_eq!(refused.join().expect("no panic").expect_err("refused").code, "Fake.Invalid");
    });
    let requests = numbers.requests.lock().expect("not poisoned");
    assert_eq!(requests[0], [2, REFUSED]);
    assert!(requests.contains(&vec![2]) && requests.contains(&vec![REFUSED]), "{requests:?}");
    drop(requests);
    assert_eq!(poller.look_all(&[4, 6, REFUSED]).expect_err("refused").code, "Fake.Invalid");
    let requests = numbers.requests.lock().expect("not poisoned");
    assert!(requests[1..].iter().all(|keys| keys.len() == 1 || !keys.contains(&REFUSED)), "it goes along no more: {requests:?}");
    drop(requests);

    let (numbers, poller, _) = asked(false);
    assert_eq!(poller.look_all(&[4, 6, REFUSED]).expect_err("refused").code, "Fake.Invalid");
    let requests = numbers.requests.lock().expect("not poisoned");
    assert!(
        requests.iter().flatten().count() == 3,
        "of a cloud that is asked about many at once none is asked again: {requests:?}"
    );
}

#[test]
fn key_that_is_refused_is_asked_about_alone_until_it_is_answered() {
    let (numbers, poller, clock) = asked(true);
    let until = clock.now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| poller.wait(&BROKEN, until, |seen| seen.first().copied()).expect_err("never"));
        while clock.now() < until {
            assert_eq!(poller.look(&2).expect("answered"), [200]);
        }
        assert!(waits.join().expect("no panic").refusal.is_some());
    });
    let requests = numbers.requests.lock().expect("not poisoned");
    let together = requests.iter().filter(|keys| keys.len() > 1 && keys.contains(&BROKEN)).count();
    assert!(together <= 1 && requests.iter().filter(|keys| keys.contains(&BROKEN)).count() > 5, "{requests:?}");
}

/// In real time: the thread waits for some seconds.
#[test]
fn key_that_the_cloud_does_not_answer_for_holds_up_no_other() {
    let numbers = Arc::new(Numbers::default());
    let poller = Poller::new(Arc::clone(&numbers), Clock::fast(1, Duration::ZERO), true);
    std::thread::scope(|scope| {
        let hangs = numbers.hangs.lock();
        let first = scope.spawn(|| poller.look(&BROKEN));
        while numbers.requests.lock().expect("not poisoned").is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(poller.look(&2).expect("answered"), [200]);
        let second = scope.spawn(|| poller.look(&BROKEN));
        while numbers.requests.lock().expect("not poisoned").len() < 3 {
            std::thread::yield_now();
        }
        let begun = std::time::Instant::now();
        assert_eq!(poller.look(&4).expect("answered"), [400]);
        assert!(begun.elapsed() < Duration::from_secs(2), "it is known not to be answered");
        drop(hangs);
        for asked in [first, second] {
            assert_eq!(asked.join().expect("no panic").expect_err("out of order").code, "Fake.Unavailable");
        }
    });
}

/// In real time.
#[test]
fn key_that_shares_a_request_with_one_that_is_not_answered_for_is_asked_about_alone() {
    let numbers = Arc::new(Numbers::default());
    let poller = Poller::new(Arc::clone(&numbers), Clock::fast(1, Duration::ZERO), true);
    std::thread::scope(|scope| {
        let hang = (numbers.hangs.lock(), numbers.hangs_together.lock());
        let asked = scope.spawn(|| poller.look_all(&[2, BROKEN]));
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while !numbers.requests.lock().expect("not poisoned").contains(&vec![2]) {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        assert_eq!(numbers.requests.lock().expect("not poisoned")[0], [2, BROKEN]);
        drop(hang);
        assert_eq!(asked.join().expect("no panic").expect_err("out of order").code, "Fake.Unavailable");
    });
}

#[test]
fn waits_share_the_query_of_a_look_up() {
    let (numbers, poller, clock) = numbers();
    let until = clock.now() + Duration::from_secs(100);
    std::thread::scope(|scope| {
        for number in [1, 3, 5] {
            let poller = &poller;
            scope.spawn(move || poller.wait(&number, until, |seen| seen.first().copied()).expect_err("never"));
        }
        while clock.now() < until {
            poller.look(&2).expect("answered");
        }
    });
    let requests = numbers.requests.lock().expect("not poisoned");
    let along = requests.iter().filter(|keys| keys.contains(&2) && keys.len() > 1).count();
    let alone = requests.iter().filter(|keys| !keys.contains(&2)).count();
    assert!(along > alone, "{along} {alone}");
    assert!(alone <= 75, "three waits of 100 s share their moments: {alone}");
}

#[test]
fn its_thread_ends_with_it_and_a_panic_holds_nobody() {
    let (numbers, poller, _) = numbers();
    numbers.panics.store(true, Ordering::SeqCst);
    assert_eq!(poller.look(&2).expect_err("panicked").code, "stopped");
    assert_eq!(poller.look(&2).expect("another thread"), [200]);
    let dropped = Arc::clone(&numbers.dropped);
    drop((numbers, poller));
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !dropped.load(Ordering::SeqCst) {
        assert!(std::time::Instant::now() < deadline, "the thread still has it");
        std::thread::yield_now();
    }
}

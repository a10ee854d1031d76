//! Many questions become one.
//!
//! Anyone who wants to know something says what, and by when at the latest. One thread gathers what is asked within a moment, sends one
//! request for as many as one takes, and hands the answers out. Those who wait for a state ask again and again, often at first and
//! seldom later, all at the same moments of the clock: N of them cost N/500 requests each time. A request that is sent anyway takes along
//! as many who wait as it has room for.
//!
//! An answer comes from a request that was sent after its question was asked. The thread sleeps while nobody asks, and ends with its
//! poller.
//!
//! Where each key is a request of its own all the same, one for which the cloud does not answer holds up no others: they are asked about
//! again without it, and until it is answered it is asked about alone, on a thread of its own. Nor does the thread wait long for a request
//! of several.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::api::{Answer, CloudErrorKind, Refusal};
use super::clock::Clock;

/// How long a look-up waits for others to come along.
const WINDOW: Duration = Duration::from_millis(50);
/// How long after a request the next one is sent, for each question that waits for it: who asks alone is answered at once, and of hundreds
/// each can wait for as many others as possible, since all together wait for what the cloud lets through.
const SPACING: Duration = Duration::from_millis(100);
/// The same where each key is a request of its own, and only what is the same for several is saved.
const NARROW_SPACING: Duration = Duration::from_millis(20);
/// The most of it.
const MOST_SPACING: Duration = Duration::from_secs(4);
/// After this time the thread continues without the answer to a request, in real time.
const SLOW: Duration = Duration::from_secs(3);
/// How many refused keys are asked about at the same time, each on a thread of its own.
const MOST_ALONE: usize = 32;
/// How many refused keys are remembered.
const MOST_REFUSED: usize = 1000;
/// How long a look-up may take in all. A request has a deadline of its own, and others may be before it.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one poller asks about.
pub(super) trait Source: Send + Sync + 'static {
    type Key: Clone + Ord + Send + 'static;
    type Item: Clone + Send + 'static;

    /// What may be asked in one request, and how many of it at most.
    fn batch(&self, key: &Self::Key) -> (&'static str, usize);

    /// One request about keys of one batch; what does not exist is missing from the answer.
    fn fetch(&self, keys: &[Self::Key]) -> Answer<Vec<(Self::Key, Self::Item)>>;
}

/// How a wait ended without what it waited for.
#[derive(Clone, Debug)]
pub(super) struct Unfinished<T> {
    /// What was seen last; `None` where nothing was answered at all.
    pub last: Option<Vec<T>>,
    /// Why the last question was not answered, if it was not.
    pub refusal: Option<Box<Refusal>>,
}

/// The last request: when it ended, and how.
pub(super) type Ended = (Duration, Answer<()>);

pub(super) struct Poller<S: Source> {
    shared: Arc<Shared<S>>,
}

struct Shared<S: Source> {
    source: S,
    clock: Clock,
    /// Each key is a request of its own all the same.
    one_by_one: bool,
    state: Mutex<State<S>>,
    changed: Condvar,
}

struct State<S: Source> {
    asks: Vec<Ask<S>>,
    runs: bool,
    stopped: bool,
    last: Option<Ended>,
    /// When the thread has sent its last request, and got the answer.
    ended: Option<Duration>,
    /// Each was refused, or has not been answered for long, and is asked about alone until it is answered.
    refused: BTreeSet<S::Key>,
    /// Those that are being asked about alone.
    alone: BTreeSet<S::Key>,
}

impl<S: Source> State<S> {
    fn refuse(&mut self, keys: &BTreeSet<S::Key>) {
        if self.refused.len() + keys.len() > MOST_REFUSED {
            self.refused.clear();
        }
        self.refused.extend(keys.iter().cloned());
    }

    /// Whether questions about a key wait until a request about a refused one has ended.
    fn is_held(&self, key: &S::Key) -> bool {
        self.refused.contains(key) && (self.alone.contains(key) || self.alone.len() >= MOST_ALONE)
    }
}

struct Ask<S: Source> {
    key: S::Key,
    due: Duration,
    /// Of one who asks about several at once, and not the first of them: such a one waits for others as anyone does.
    is_further: bool,
    sender: mpsc::Sender<Answer<Vec<S::Item>>>,
}

/// What is asked at once.
struct Request<S: Source> {
    keys: BTreeSet<S::Key>,
    asks: Vec<Ask<S>>,
}

impl<S: Source> Request<S> {
    fn new(ask: Ask<S>) -> Request<S> {
        Request { keys: BTreeSet::from([ask.key.clone()]), asks: vec![ask] }
    }

    fn take(&mut self, ask: Ask<S>) {
        self.keys.insert(ask.key.clone());
        self.asks.push(ask);
    }
}

/// The requests that are due.
struct Due<S: Source> {
    /// The thread sends them one after the other.
    together: Vec<Request<S>>,
    /// About keys that were refused.
    alone: BTreeMap<S::Key, Request<S>>,
}

impl<S: Source> Poller<S> {
    pub fn new(source: S, clock: Clock, one_by_one: bool) -> Poller<S> {
        let state = Mutex::new(State {
            asks: Vec::new(),
            runs: false,
            stopped: false,
            last: None,
            ended: None,
            refused: BTreeSet::new(),
            alone: BTreeSet::new(),
        });
        Poller { shared: Arc::new(Shared { source, clock, one_by_one, state, changed: Condvar::new() }) }
    }

    /// What there is of `key` now: nothing, one, or several.
    pub fn look(&self, key: &S::Key) -> Answer<Vec<S::Item>> {
        self.look_all(std::slice::from_ref(key)).map(|mut found| found.remove(key).unwrap_or_default())
    }

    /// The same for many at once; what does not exist is missing.
    pub fn look_all(&self, keys: &[S::Key]) -> Answer<BTreeMap<S::Key, Vec<S::Item>>> {
        let now = self.shared.clock.now();
        let asked: BTreeSet<&S::Key> = keys.iter().collect();
        let asked = asked.into_iter().enumerate();
        let asked: Vec<_> = asked.map(|(number, key)| (key.clone(), self.ask(key, now + WINDOW, number > 0))).collect();
        let mut found = BTreeMap::new();
        for (key, answer) in asked {
            let items = self.receive(&answer, now + PATIENCE)?;
            if !items.is_empty() {
                found.insert(key, items);
            }
        }
        Ok(found)
    }

    /// Waits until `done` says so of what is seen of `key`, at the latest until `until`, when it looks a last time. A request that fails
    /// is survived.
    pub fn wait<T>(
        &self,
        key: &S::Key,
        until: Duration,
        mut done: impl FnMut(&[S::Item]) -> Option<T>,
    ) -> Result<T, Unfinished<S::Item>> {
        let clock = &self.shared.clock;
        let began = clock.now();
        let mut unfinished = Unfinished { last: None, refusal: None };
        loop {
            let now = clock.now();
            let due = next(now, now.saturating_sub(began)).min(until.max(now));
            match self.receive(&self.ask(key, due, false), due + PATIENCE) {
                Ok(items) => {
                    if let Some(result) = done(&items) {
                        return Ok(result);
                    }
                    unfinished = Unfinished { last: Some(items), refusal: None };
                }
                Err(refusal) => unfinished.refusal = Some(Box::new(refusal)),
            }
            if clock.now() >= until {
                return Err(unfinished);
            }
        }
    }

    /// How the last request ended.
    pub fn last(&self) -> Option<Ended> {
        self.shared.state().last.clone()
    }

    fn ask(&self, key: &S::Key, due: Duration, is_further: bool) -> mpsc::Receiver<Answer<Vec<S::Item>>> {
        let (sender, receiver) = mpsc::channel();
        let mut state = self.shared.state();
        state.asks.push(Ask { key: key.clone(), due, is_further, sender });
        if !state.runs {
            let shared = Arc::clone(&self.shared);
            // Where no thread can be had, the channel is closed at once: a caller gets that as an error.
            state.runs = std::thread::Builder::new().name("cloud poller".to_owned()).spawn(move || run(&shared)).is_ok();
            if !state.runs {
                state.asks.clear();
            }
        }
        drop(state);
        self.shared.changed.notify_one();
        receiver
    }

    fn receive(&self, answer: &mpsc::Receiver<Answer<Vec<S::Item>>>, until: Duration) -> Answer<Vec<S::Item>> {
        let clock = &self.shared.clock;
        match answer.recv_timeout(clock.real(until.saturating_sub(clock.now()))) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(unanswered("timeout", "the requests before it have not come to an end")),
            Err(RecvTimeoutError::Disconnected) => Err(unanswered("stopped", "the driver stops, or has no thread to ask")),
        }
    }
}

impl<S: Source> Drop for Poller<S> {
    fn drop(&mut self) {
        self.shared.state().stopped = true;
        self.shared.changed.notify_all();
    }
}

impl<S: Source> Shared<S> {
    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something is due; what is to be asked then. `None` at the end.
    fn gather(&self) -> Option<Due<S>> {
        let mut state = self.state();
        loop {
            if state.stopped {
                return None;
            }
            let now = self.clock.now();
            let least = if self.one_by_one { NARROW_SPACING } else { SPACING };
            let asks = || state.asks.iter().filter(|ask| !state.is_held(&ask.key));
            let waiting = asks().filter(|ask| !ask.is_further).count();
            let spaced = state.ended.map(|ended| ended + spacing(least, waiting));
            match asks().map(|ask| ask.due).min().map(|due| due.max(spaced.unwrap_or_default())) {
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(due) if due > now => {
                    let rest = self.clock.real(due - now);
                    state = self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
                }
                Some(_) => break,
            }
        }
        Some(self.batches(&mut state, self.clock.now()))
    }

    /// Puts together what is due, with as many others as the requests have room for, and leaves the rest for later.
    fn batches(&self, state: &mut State<S>, now: Duration) -> Due<S> {
        let mut asks = std::mem::take(&mut state.asks);
        asks.sort_by_key(|ask| ask.due);
        let mut requests: BTreeMap<&'static str, Vec<Request<S>>> = BTreeMap::new();
        let mut alone: BTreeMap<S::Key, Request<S>> = BTreeMap::new();
        for ask in asks {
            if state.refused.contains(&ask.key) {
                match alone.get_mut(&ask.key) {
                    Some(request) => request.take(ask),
                    None if ask.due <= now && !state.is_held(&ask.key) => {
                        state.alone.insert(ask.key.clone());
                        alone.insert(ask.key.clone(), Request::new(ask));
                    }
                    None => state.asks.push(ask),
                }
                continue;
            }
            let (batch, most) = self.source.batch(&ask.key);
            let of_batch = requests.entry(batch).or_default();
            let room = of_batch.iter_mut().find(|request| request.keys.contains(&ask.key) || request.keys.len() < most);
            match room {
                Some(request) => request.take(ask),
                None if ask.due <= now => of_batch.push(Request::new(ask)),
                None => state.asks.push(ask),
            }
        }
        Due { together: requests.into_values().flatten().collect(), alone }
    }

    /// Sends a request about one key, which is among those that are asked about alone, on a thread of its own.
    fn answer_alone(self: &Arc<Self>, key: S::Key, request: Request<S>) {
        let alone = Alone { shared: Arc::clone(self), key };
        let answer = move || alone.shared.answer_or_log(request);
        // Where no thread can be had, the channels are closed at once: the callers get that as an error.
        std::thread::Builder::new().name("cloud look-up".to_owned()).spawn(answer).ok();
    }

    /// Sends a request, and waits for the answer, but not for long.
    fn answer_within_a_moment(self: &Arc<Self>, request: Request<S>) {
        let Request { keys, asks } = request;
        let asks = Arc::new(Mutex::new(asks));
        // It is dropped once the request has ended.
        let (ended, end) = mpsc::channel::<()>();
        let (shared, asked, left) = (Arc::clone(self), keys.clone(), Arc::clone(&asks));
        let answer = move || {
            let _ended = ended;
            let answered = || shared.answer(&asked, || taken(&left));
            if catch_unwind(AssertUnwindSafe(answered)).is_err() {
                tracing::error!("a request for descriptions panicked");
                taken(&left);
            }
        };
        if std::thread::Builder::new().name("cloud look-up".to_owned()).spawn(answer).is_err() {
            return;
        }
        if end.recv_timeout(SLOW) == Err(RecvTimeoutError::Timeout) {
            self.state().refuse(&keys);
            // It may be one of them that is not answered for. Of one alone there is nobody else to wait.
            if keys.len() > 1 {
                self.answer_each_alone(&keys, taken(&asks));
            }
        }
    }

    fn answer_each_alone(self: &Arc<Self>, keys: &BTreeSet<S::Key>, mut asks: Vec<Ask<S>>) {
        for key in keys {
            let own: Vec<Ask<S>> = asks.extract_if(.., |ask| ask.key == *key).collect();
            if !own.is_empty() {
                self.state().alone.insert(key.clone());
                self.answer_alone(key.clone(), Request { keys: BTreeSet::from([key.clone()]), asks: own });
            }
        }
    }

    /// A panic ends this request only: those who wait for it see their channels closed, those who ask meanwhile are answered.
    fn answer_or_log(self: &Arc<Self>, request: Request<S>) {
        let Request { keys, asks } = request;
        if catch_unwind(AssertUnwindSafe(|| self.answer(&keys, || asks))).is_err() {
            tracing::error!("a request for descriptions panicked");
        }
    }

    /// Sends one request, and tells all who asked for it and still wait for its answer.
    fn answer(self: &Arc<Self>, keys: &BTreeSet<S::Key>, asks: impl FnOnce() -> Vec<Ask<S>>) {
        let answer = self.source.fetch(&keys.iter().cloned().collect::<Vec<_>>());
        let asks = asks();
        let mut state = self.state();
        state.last = Some((self.clock.now(), answer.as_ref().map(|_| ()).map_err(Clone::clone)));
        match &answer {
            // Not of a cloud that takes hundreds at once, which would be asked about each of them.
            Err(refusal) if self.one_by_one => {
                state.refuse(keys);
                // It may be for one of them: the others are answered all the same.
                let is_everybodys = matches!(refusal.because, CloudErrorKind::Denied | CloudErrorKind::Key);
                if keys.len() > 1 && !is_everybodys {
                    drop(state);
                    return self.answer_each_alone(keys, asks);
                }
            }
            _ => state.refused.retain(|key| !keys.contains(key)),
        }
        drop(state);
        let mut found: BTreeMap<S::Key, Vec<S::Item>> = BTreeMap::new();
        let refusal = match answer {
            Ok(items) => {
                for (key, item) in items {
                    found.entry(key).or_default().push(item);
                }
                None
            }
            Err(refusal) => Some(refusal),
        };
        for ask in asks {
            let receiver = match &refusal {
                None => Ok(found.get(&ask.key).cloned().unwrap_or_default()),
                Some(refusal) => Err(refusal.clone()),
            };
            // Anyone who is no longer there needs no answer.
            ask.sender.send(receiver).ok();
        }
    }
}

fn taken<A>(asks: &Mutex<Vec<A>>) -> Vec<A> {
    std::mem::take(&mut asks.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A key is asked about alone until this is dropped, however its request ends.
struct Alone<S: Source> {
    shared: Arc<Shared<S>>,
    key: S::Key,
}

impl<S: Source> Drop for Alone<S> {
    fn drop(&mut self) {
        self.shared.state().alone.remove(&self.key);
        self.shared.changed.notify_one();
    }
}

fn run<S: Source>(shared: &Arc<Shared<S>>) {
    /// However the thread ends, nobody waits for it, and the next who asks starts another.
    struct Runs<'a, S: Source>(&'a Shared<S>);
    impl<S: Source> Drop for Runs<'_, S> {
        fn drop(&mut self) {
            let mut state = self.0.state();
            state.runs = false;
            state.asks.clear();
        }
    }
    let _runs = Runs(shared);
    while let Some(due) = shared.gather() {
        for (key, request) in due.alone {
            shared.answer_alone(key, request);
        }
        for request in due.together {
            match shared.one_by_one {
                true => shared.answer_within_a_moment(request),
                false => shared.answer_or_log(request),
            }
        }
        shared.state().ended = Some(shared.clock.now());
    }
}

/// When one who has waited for `age` looks next: at a whole multiple of a span, so that all who wait look at once.
fn next(now: Duration, age: Duration) -> Duration {
    let span: u64 = match age.as_secs() {
        0..15 => 1000,
        15..60 => 2000,
        60..300 => 5000,
        _ => 15_000,
    };
    let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis((millis / span + 1) * span)
}

fn spacing(each: Duration, asks: usize) -> Duration {
    each.saturating_mul(u32::try_from(asks).unwrap_or(u32::MAX)).min(MOST_SPACING)
}

fn unanswered(code: &str, message: &str) -> Refusal {
    Refusal {
        because: CloudErrorKind::Unavailable,
        action: "describe",
        code: code.to_owned(),
        message: message.to_owned(),
        request_id: None,
        maybe_done: false,
        retry_after: None,
    }
}

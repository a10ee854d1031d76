//! One attempt at a time at what may hang: it runs on a thread of its own, and anyone who wants its result meanwhile waits for this one,
//! but only so long. The thread waits for the next attempt for a while, so that frequent ones start none.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lock;

/// How long a thread waits for the next attempt.
const KEPT: Duration = Duration::from_secs(5);

/// An attempt that runs now, if any.
#[derive(Debug)]
pub struct Single<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    /// Of its thread; at most 15 bytes are shown (comm in proc(5)).
    name: &'static str,
    state: Mutex<State<T>>,
    next: Condvar,
}

struct State<T> {
    running: Option<Arc<Attempt<T>>>,
    /// A thread waits for work.
    idle: bool,
    work: Option<Work<T>>,
}

struct Work<T> {
    attempt: Arc<Attempt<T>>,
    run: Box<dyn FnOnce() -> T + Send>,
}

/// One that was started.
#[derive(Debug)]
pub struct Attempt<T> {
    since: Instant,
    end: Mutex<End<T>>,
    ended: Condvar,
}

#[derive(Debug)]
enum End<T> {
    Running,
    Done(T),
    Panicked,
}

/// Why there is no result.
#[derive(Debug)]
pub enum NoResult {
    /// The attempt runs, for so long by now.
    Running(Duration),
    Panicked,
    NoThread(io::Error),
}

impl NoResult {
    /// For an error message: `action` is what was attempted.
    pub fn reason(&self, action: &str) -> String {
        match self {
            NoResult::Running(since) => {
                let since = humantime::format_duration(Duration::from_secs(since.as_secs()));
                format!("{action} has not ended for {since}")
            }
            NoResult::Panicked => format!("{action} panicked"),
            NoResult::NoThread(error) => format!("no thread for {action}: {error}"),
        }
    }
}

impl<T> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since = lock(&self.state).running.as_ref().map(|attempt| attempt.since);
        f.debug_struct("Shared").field("name", &self.name).field("running", &since).finish_non_exhaustive()
    }
}

impl<T: Clone + Send + 'static> Single<T> {
    /// `name` is that of its thread.
    pub fn new(name: &'static str) -> Single<T> {
        let state = State { running: None, idle: false, work: None };
        Single { shared: Arc::new(Shared { name, state: Mutex::new(state), next: Condvar::new() }) }
    }

    /// The result of the attempt that runs, else of a new one by `work`. Waits until the attempt is `patience` old; it then continues, and
    /// the next call joins it.
    ///
    /// # Errors
    /// Where there is no result by then, or never will be.
    pub fn run(&self, patience: Duration, work: impl FnOnce() -> T + Send + 'static) -> Result<T, NoResult> {
        self.start(work)?.wait(patience)
    }

    /// The attempt that runs, or a new one.
    ///
    /// # Errors
    /// `NoThread`.
    pub fn start(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<Arc<Attempt<T>>, NoResult> {
        let mut state = lock(&self.shared.state);
        if let Some(attempt) = &state.running {
            return Ok(attempt.clone());
        }
        let attempt = Arc::new(Attempt { since: Instant::now(), end: Mutex::new(End::Running), ended: Condvar::new() });
        let work = Work { attempt: attempt.clone(), run: Box::new(work) };
        if std::mem::take(&mut state.idle) {
            state.work = Some(work);
            self.shared.next.notify_all();
        } else {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name(shared.name.to_owned()).spawn(move || shared.work(work));
            thread.map_err(NoResult::NoThread)?;
        }
        state.running = Some(attempt.clone());
        Ok(attempt)
    }
}

impl<T: Clone> Attempt<T> {
    /// Waits until it has ended, or is `patience` old.
    ///
    /// # Errors
    /// Where there is no result by then, or never will be.
    pub fn wait(&self, patience: Duration) -> Result<T, NoResult> {
        let left = patience.saturating_sub(self.since.elapsed());
        let end = lock(&self.end);
        let waited = self.ended.wait_timeout_while(end, left, |end| matches!(end, End::Running));
        let (end, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*end {
            End::Done(result) => Ok(result.clone()),
            End::Running => Err(NoResult::Running(self.since.elapsed())),
            End::Panicked => Err(NoResult::Panicked),
        }
    }
}

impl<T> Shared<T> {
    /// What the thread does.
    fn work(&self, first: Work<T>) {
        let mut next = Some(first);
        while let Some(Work { attempt, run }) = next {
            Ending { shared: self, attempt, end: End::Panicked }.after(run);
            let waited = self.next.wait_timeout_while(lock(&self.state), KEPT, |state| state.work.is_none());
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            next = state.work.take();
            state.idle = false;
        }
    }
}

/// Ends an attempt when dropped, also after a panic: the next call starts a new one.
struct Ending<'a, T> {
    shared: &'a Shared<T>,
    attempt: Arc<Attempt<T>>,
    end: End<T>,
}

impl<T> Ending<'_, T> {
    fn after(mut self, run: impl FnOnce() -> T) {
        self.end = End::Done(run());
    }
}

impl<T> Drop for Ending<'_, T> {
    fn drop(&mut self) {
        let end = std::mem::replace(&mut self.end, End::Panicked);
        // First, so that nobody who comes after this result was given gets it once more.
        let mut state = lock(&self.shared.state);
        state.running = None;
        // After a panic there is no thread any more.
        state.idle = matches!(end, End::Done(_));
        drop(state);
        *lock(&self.attempt.end) = end;
        self.attempt.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn attempt_that_hangs_is_joined_and_its_result_is_had_when_it_ends() {
        static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);
        let single = Arc::new(Single::new("test"));
        let (end, ended) = mpsc::channel::<()>();
        let work = move || {
            ATTEMPTS.fetch_add(1, Ordering::SeqCst);
            ended.recv().map_err(|_| "nobody ends it")
        };
        assert!(matches!(single.run(SHORT, work), Err(NoResult::Running(since)) if since >= SHORT));
        let joined: Vec<_> = (0..8)
            .map(|_| {
                let single = single.clone();
                std::thread::spawn(move || single.run(LONG, || Err("a second attempt")))
            })
            .collect();
        // It is older than their patience: they do not wait at all.
        assert!(matches!(single.run(SHORT, || Err("a second attempt")), Err(NoResult::Running(_))));
        end.send(()).expect("it runs");
        for thread in joined {
            // One that came after the end made an attempt of its own.
            assert!(matches!(thread.join().expect("no panic"), Ok(Ok(()) | Err("a second attempt"))));
        }
        assert_eq!(ATTEMPTS.load(Ordering::SeqCst), 1);
        assert!(matches!(single.run(LONG, || Ok(())), Ok(Ok(()))), "the next attempt is a new one");
    }

    #[test]
    fn attempt_that_panics_leaves_nobody_waiting() {
        let single = Single::<()>::new("test");
        assert!(matches!(single.run(LONG, || panic!("on purpose")), Err(NoResult::Panicked)));
        assert!(single.run(LONG, || ()).is_ok());
    }

    #[test]
    fn frequent_attempts_are_made_by_one_thread() {
        let single = Single::new("test");
        let threads: std::collections::BTreeSet<_> =
            (0..1000).map(|_| single.run(LONG, || format!("{:?}", std::thread::current().id())).expect("it ends")).collect();
        assert_eq!(threads.len(), 1, "{threads:?}");
    }
}

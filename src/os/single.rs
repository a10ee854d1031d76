//! One attempt at a time at what may hang: it runs on a thread of its own, and whoever wants its result meanwhile waits for this one,
//! but only so long.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lock;

/// An attempt that runs now, if any.
#[derive(Debug)]
pub struct Single<T> {
    running: Arc<Mutex<Option<Arc<Attempt<T>>>>>,
}

#[derive(Debug)]
struct Attempt<T> {
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

impl<T> Default for Single<T> {
    fn default() -> Self {
        Single { running: Arc::default() }
    }
}

impl<T: Clone + Send + 'static> Single<T> {
    /// The result of the attempt that runs, else of a new one by `work`. Waits until the attempt is `patience` old; it then goes on, and
    /// the next call joins it.
    ///
    /// # Errors
    /// Where there is no result by then, or never will be.
    pub fn run(&self, patience: Duration, work: impl FnOnce() -> T + Send + 'static) -> Result<T, NoResult> {
        let attempt = self.start(work).map_err(NoResult::NoThread)?;
        let left = patience.saturating_sub(attempt.since.elapsed());
        let end = lock(&attempt.end);
        let waited = attempt.ended.wait_timeout_while(end, left, |end| matches!(end, End::Running));
        let (end, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*end {
            End::Done(result) => Ok(result.clone()),
            End::Running => Err(NoResult::Running(attempt.since.elapsed())),
            End::Panicked => Err(NoResult::Panicked),
        }
    }

    /// The attempt that runs, or a new one.
    fn start(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Arc<Attempt<T>>> {
        let mut running = lock(&self.running);
        if let Some(attempt) = &*running {
            return Ok(attempt.clone());
        }
        let attempt = Arc::new(Attempt { since: Instant::now(), end: Mutex::new(End::Running), ended: Condvar::new() });
        *running = Some(attempt.clone());
        drop(running);
        // Dropped also where there is no thread.
        let ending = Ending { running: self.running.clone(), attempt: attempt.clone(), end: End::Panicked };
        std::thread::Builder::new().name("attempt".to_owned()).spawn(move || ending.after(work))?;
        Ok(attempt)
    }
}

/// Ends an attempt when dropped, also after a panic: the next call starts a new one.
struct Ending<T> {
    running: Arc<Mutex<Option<Arc<Attempt<T>>>>>,
    attempt: Arc<Attempt<T>>,
    end: End<T>,
}

impl<T> Ending<T> {
    fn after(mut self, work: impl FnOnce() -> T) {
        self.end = End::Done(work());
    }
}

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        // First, so that nobody who comes after this result was given gets it once more.
        *lock(&self.running) = None;
        *lock(&self.attempt.end) = std::mem::replace(&mut self.end, End::Panicked);
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
        let single = Arc::new(Single::default());
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
        let single = Single::<()>::default();
        assert!(matches!(single.run(LONG, || panic!("on purpose")), Err(NoResult::Panicked)));
        assert!(single.run(LONG, || ()).is_ok());
    }
}

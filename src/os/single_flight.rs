//! Whether a server that may be dead answers: one check at a time, shared by all who wait for it.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long a result is used again, also a failure: a dead server costs one check in a second, not one for each caller.
const FRESH: Duration = Duration::from_secs(1);

/// The last result of each, by the server's name.
#[derive(Debug)]
pub struct SingleFlight<E> {
    known: Mutex<HashMap<String, Entry<E>>>,
    answered: Condvar,
}

#[derive(Clone, Debug)]
enum Entry<E> {
    Asking,
    Known(Instant, Result<(), E>),
}

impl<E> Default for SingleFlight<E> {
    fn default() -> Self {
        SingleFlight { known: Mutex::default(), answered: Condvar::new() }
    }
}

impl<E: Clone> SingleFlight<E> {
    /// Checks `name` by `question`, unless it was checked within the last second; waits for a check that runs already. Returns when the
    /// check does, which must have a deadline of its own.
    ///
    /// # Errors
    /// That of the check, or of the one within the last second.
    pub fn check(&self, name: &str, question: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut known = self.known();
        loop {
            match known.get(name) {
                Some(Entry::Known(when, answer)) if when.elapsed() < FRESH => return answer.clone(),
                Some(Entry::Asking) => known = self.answered.wait(known).unwrap_or_else(PoisonError::into_inner),
                _ => break,
            }
        }
        known.insert(name.to_owned(), Entry::Asking);
        drop(known);
        let mut asked = Asked { flight: self, name, answer: None };
        let answer = question();
        asked.answer = Some(answer.clone());
        answer
    }

    /// The next caller checks again, whatever the last result.
    pub fn invalidate(&self, name: &str) {
        let mut known = self.known();
        if let Some(Entry::Known(..)) = known.get(name) {
            known.remove(name);
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Entry<E>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the result to those who wait; after a panic, they check themselves.
struct Asked<'a, E: Clone> {
    flight: &'a SingleFlight<E>,
    name: &'a str,
    answer: Option<Result<(), E>>,
}

impl<E: Clone> Drop for Asked<'_, E> {
    fn drop(&mut self) {
        let mut known = self.flight.known();
        match self.answer.take() {
            Some(answer) => known.insert(self.name.to_owned(), Entry::Known(Instant::now(), answer)),
            None => known.remove(self.name),
        };
        drop(known);
        self.flight.answered.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn many_who_ask_a_dead_server_are_one_question() {
        let flight = SingleFlight::<&str>::default();
        let asked = AtomicUsize::new(0);
        let (end, ended) = mpsc::channel::<()>();
        let ended = Mutex::new(ended);
        std::thread::scope(|scope| {
            let ask = || {
                flight.check("dead", || {
                    asked.fetch_add(1, Ordering::SeqCst);
                    let _no_more: Result<(), _> = ended.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    Err("no answer")
                })
            };
            let waiting: Vec<_> = (0..20).map(|_| scope.spawn(ask)).collect();
            assert_eq!(flight.check("alive", || Ok(())), Ok(()), "another one is not held up");
            drop(end);
            for thread in waiting {
                assert_eq!(thread.join().expect("no panic"), Err("no answer"));
            }
        });
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        flight.invalidate("dead");
        assert_eq!(flight.check("dead", || Ok(())), Ok(()), "it is back");
    }

    #[test]
    fn a_question_that_panics_leaves_nobody_waiting() {
        let flight = SingleFlight::<()>::default();
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| flight.check("a", || panic!("on purpose"))));
        assert!(asked.is_err());
        assert_eq!(flight.check("a", || Ok(())), Ok(()));
    }
}

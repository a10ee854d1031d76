//! Whether something answers that may be dead: one question at a time, however many want to know.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long an answer is good, be it a bad one: a dead server costs each second one question, not one for each who asks.
const FRESH: Duration = Duration::from_secs(1);

/// What is known of each, by its name: a server's.
#[derive(Debug)]
pub struct Answers<E> {
    known: Mutex<HashMap<String, Known<E>>>,
    told: Condvar,
}

#[derive(Clone, Debug)]
enum Known<E> {
    Asking,
    Told(Instant, Result<(), E>),
}

impl<E> Default for Answers<E> {
    fn default() -> Self {
        Answers { known: Mutex::default(), told: Condvar::new() }
    }
}

impl<E: Clone> Answers<E> {
    /// Asks `name` by `question`, unless it was asked a moment ago; where someone asks already, waits for that. Comes back when a
    /// question does, which must have a deadline of its own.
    ///
    /// # Errors
    /// The question's, or that of another who asked the same a moment ago.
    pub fn ask(&self, name: &str, question: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut known = self.known();
        loop {
            match known.get(name) {
                Some(Known::Told(when, answer)) if when.elapsed() < FRESH => return answer.clone(),
                Some(Known::Asking) => known = self.told.wait(known).unwrap_or_else(PoisonError::into_inner),
                _ => break,
            }
        }
        known.insert(name.to_owned(), Known::Asking);
        drop(known);
        let mut asked = Asked { answers: self, name, answer: None };
        let answer = question();
        asked.answer = Some(answer.clone());
        answer
    }

    /// Whatever was answered, the next who asks asks anew.
    pub fn forget(&self, name: &str) {
        let mut known = self.known();
        if let Some(Known::Told(..)) = known.get(name) {
            known.remove(name);
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known<E>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the answer to those who wait; after a panic, that there is none.
struct Asked<'a, E: Clone> {
    answers: &'a Answers<E>,
    name: &'a str,
    answer: Option<Result<(), E>>,
}

impl<E: Clone> Drop for Asked<'_, E> {
    fn drop(&mut self) {
        let mut known = self.answers.known();
        match self.answer.take() {
            Some(answer) => known.insert(self.name.to_owned(), Known::Told(Instant::now(), answer)),
            None => known.remove(self.name),
        };
        drop(known);
        self.answers.told.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn many_who_ask_a_dead_server_are_one_question() {
        let answers = Answers::<&str>::default();
        let asked = AtomicUsize::new(0);
        let (end, ended) = mpsc::channel::<()>();
        let ended = Mutex::new(ended);
        std::thread::scope(|scope| {
            let ask = || {
                answers.ask("dead", || {
                    asked.fetch_add(1, Ordering::SeqCst);
                    let _no_more: Result<(), _> = ended.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    Err("no answer")
                })
            };
            let waiting: Vec<_> = (0..20).map(|_| scope.spawn(ask)).collect();
            assert_eq!(answers.ask("alive", || Ok(())), Ok(()), "another one is not held up");
            drop(end);
            for thread in waiting {
                assert_eq!(thread.join().expect("no panic"), Err("no answer"));
            }
        });
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        answers.forget("dead");
        assert_eq!(answers.ask("dead", || Ok(())), Ok(()), "it is back");
    }

    #[test]
    fn a_question_that_panics_leaves_nobody_waiting() {
        let answers = Answers::<()>::default();
        let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| answers.ask("a", || panic!("on purpose"))));
        assert!(asked.is_err());
        assert_eq!(answers.ask("a", || Ok(())), Ok(()));
    }
}

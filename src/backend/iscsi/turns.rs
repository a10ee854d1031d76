//! One operation at a time on the sessions with a target: two volumes may share them.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::volume::{Error, Result};

/// How long an operation waits for its turn; then the CO asks again.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub struct Turns {
    /// By target, since when.
    taken: Mutex<BTreeMap<String, (&'static str, Instant)>>,
    given_back: Condvar,
}

/// Given back when dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    target: String,
}

impl Turns {
    /// # Errors
    /// `Busy`, saying what runs.
    pub fn take(&self, target: &str, operation: &'static str) -> Result<Turn<'_>> {
        self.take_within(target, operation, PATIENCE)
    }

    fn take_within(&self, target: &str, operation: &'static str, patience: Duration) -> Result<Turn<'_>> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.given_back.wait_timeout_while(taken, patience, |taken| taken.contains_key(target));
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some((operation, since)) = taken.get(target) {
            let object = format!("target {target}");
            let step = "another volume's session".to_owned();
            return Err(Error::Busy { object, operation, step, since: since.elapsed() });
        }
        taken.insert(target.to_owned(), (operation, Instant::now()));
        Ok(Turn { turns: self, target: target.to_owned() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.target);
        self.turns.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_for_each_target() {
        let turns = Turns::default();
        let first = turns.take("a", "connect").expect("free");
        let _other = turns.take("b", "connect").expect("another target");
        let busy = turns.take_within("a", "disconnect", Duration::from_millis(10)).expect_err("taken");
        assert!(matches!(busy, Error::Busy { operation: "connect", .. }));
        drop(first);
        std::thread::scope(|scope| {
            let held = turns.take("a", "connect").expect("given back");
            let waiting = scope.spawn(|| turns.take("a", "disconnect").map(drop));
            drop(held);
            waiting.join().expect("no panic").expect("its turn");
        });
    }
}

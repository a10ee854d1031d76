//! One operation at a time on what several volumes share: the sessions with a target, the mount of a share.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub struct Turns {
    /// By the name of what is shared.
    taken: Mutex<BTreeMap<String, Taken>>,
    given_back: Condvar,
}

/// Who has the turn, and since when.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub operation: &'static str,
    pub since: Instant,
}

/// Given back when dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    name: String,
}

impl Turns {
    /// Waits until nobody else is at `name`, but not for one that hangs.
    ///
    /// # Errors
    /// Who still is at it after `patience`.
    pub fn take(&self, name: &str, operation: &'static str, patience: Duration) -> Result<Turn<'_>, Taken> {
        let waited = self.given_back.wait_timeout_while(self.taken(), patience, |taken| taken.contains_key(name));
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = taken.get(name) {
            return Err(*other);
        }
        taken.insert(name.to_owned(), Taken { operation, since: Instant::now() });
        Ok(Turn { turns: self, name: name.to_owned() })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<String, Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken().remove(&self.name);
        self.turns.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn one_at_a_time_for_each_target() {
        let turns = Turns::default();
        let first = turns.take("a", "connect", LONG).expect("free");
        let _other = turns.take("b", "connect", LONG).expect("another target");
        let busy = turns.take("a", "disconnect", Duration::from_millis(10)).expect_err("taken");
        assert_eq!(busy.operation, "connect");
        drop(first);
        std::thread::scope(|scope| {
            let held = turns.take("a", "connect", LONG).expect("given back");
            let waiting = scope.spawn(|| turns.take("a", "disconnect", LONG).map(drop));
            drop(held);
            waiting.join().expect("no panic").expect("its turn");
        });
    }
}

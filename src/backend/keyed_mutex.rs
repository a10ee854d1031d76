//! One operation at a time on what several volumes share: the sessions with a target, the mount of a share.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub struct KeyedMutex {
    /// By the name of what is shared.
    held: Mutex<BTreeMap<String, Holder>>,
    released: Condvar,
}

/// Which operation holds it, and since when.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    pub operation: &'static str,
    pub since: Instant,
}

/// Released when dropped.
#[derive(Debug)]
pub struct KeyedGuard<'a> {
    mutex: &'a KeyedMutex,
    name: String,
}

impl KeyedMutex {
    /// Waits until no other operation holds `name`, for at most `patience`.
    ///
    /// # Errors
    /// The operation that still holds it.
    pub fn lock(&self, name: &str, operation: &'static str, patience: Duration) -> Result<KeyedGuard<'_>, Holder> {
        let waited = self.released.wait_timeout_while(self.held(), patience, |held| held.contains_key(name));
        let (mut held, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = held.get(name) {
            return Err(*other);
        }
        held.insert(name.to_owned(), Holder { operation, since: Instant::now() });
        Ok(KeyedGuard { mutex: self, name: name.to_owned() })
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Holder>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeyedGuard<'_> {
    fn drop(&mut self) {
        self.mutex.held().remove(&self.name);
        self.mutex.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn one_at_a_time_for_each_target() {
        let mutex = KeyedMutex::default();
        let first = mutex.lock("a", "connect", LONG).expect("free");
        let _other = mutex.lock("b", "connect", LONG).expect("another target");
        let busy = mutex.lock("a", "disconnect", Duration::from_millis(10)).expect_err("held");
        assert_eq!(busy.operation, "connect");
        drop(first);
        std::thread::scope(|scope| {
            let held = mutex.lock("a", "connect", LONG).expect("released");
            let waiting = scope.spawn(|| mutex.lock("a", "disconnect", LONG).map(drop));
            drop(held);
            waiting.join().expect("no panic").expect("the lock");
        });
    }
}

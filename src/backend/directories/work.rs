//! Copies that take longer than a call may: they continue in a thread of their own, and a repeated call reports how far they are.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::os::tree::{Control, Copied};
use crate::volume::{Error, Result};

/// A copy that runs, or has ended and was not yet heard of.
#[derive(Debug)]
pub(super) struct Work {
    pub control: Control,
    /// What is copied: it must stay meanwhile.
    pub source: Source,
    state: Mutex<State>,
    changed: Condvar,
}

/// By local id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Volume(String),
    Snapshot(String),
}

#[derive(Debug)]
enum State {
    Running,
    Ended(Result<Copied>),
    /// A call has returned the result.
    Heard,
}

impl Work {
    /// Begins it.
    ///
    /// # Errors
    /// Where no thread can be had.
    pub fn start(source: Source, copy: impl FnOnce(&Control) -> Result<Copied> + Send + 'static) -> Result<Arc<Work>> {
        let work = Work { control: Control::default(), source, state: Mutex::new(State::Running), changed: Condvar::new() };
        let work = Arc::new(work);
        let own = Arc::clone(&work);
        let run = move || {
            let unwound = || Err(Error::failed("run", "the thread that copies", "it ended by a panic"));
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| copy(&own.control)));
            *own.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Ended(ended.unwrap_or_else(|_| unwound()));
            own.changed.notify_all();
        };
        match std::thread::Builder::new().name("copy".to_owned()).spawn(run) {
            Ok(_) => Ok(work),
            Err(error) => Err(Error::failed("start", "a thread to copy", error).rolled_back()),
        }
    }

    /// Whether it has ended within this time.
    pub fn ends_within(&self, patience: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, patience, |state| matches!(state, State::Running));
        !matches!(*waited.unwrap_or_else(PoisonError::into_inner).0, State::Running)
    }

    /// What came of it, once; `None` while it runs, and afterwards.
    pub fn take(&self) -> Option<Result<Copied>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Running) {
            return None;
        }
        match std::mem::replace(&mut *state, State::Heard) {
            State::Ended(result) => Some(result),
            State::Running | State::Heard => None,
        }
    }
}

/// What was copied into a volume or snapshot, for the log.
pub(super) fn log_copied(into: &dyn std::fmt::Display, copied: Copied) {
    let Copied { entries, bytes, vanished, lost } = copied;
    tracing::info!(%into, entries, bytes, vanished, "copied");
    if lost > 0 {
        tracing::warn!(%into, lost, "extended attributes and access control lists that this file system cannot have were left out");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_of_background_work_is_reported_once() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let work = Work::start(Source::Volume("a".to_owned()), move |_| {
            wait.recv().ok();
            Ok(Copied::default())
        })
        .expect("started");
        assert!(!work.ends_within(Duration::from_millis(10)) && work.take().is_none());
        drop(go);
        assert!(work.ends_within(Duration::from_secs(30)));
        assert_eq!(work.take().expect("ended").expect("well"), Copied::default());
        assert!(work.take().is_none());
    }

    #[test]
    fn a_panic_is_an_end() {
        let work = Work::start(Source::Volume("a".to_owned()), |_| panic!("on purpose")).expect("started");
        assert!(work.ends_within(Duration::from_secs(30)));
        assert!(work.take().expect("ended").is_err());
    }
}

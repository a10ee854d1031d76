//! Side effects have names.
//!
//! Every side effect runs in [`step`]. The name shows in the span of the trace, in what Busy tells a second caller
//! ("has been at "mkfs" for 3 s"), and in metrics.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where a running operation is. Shared by the thread that works and those who ask.
#[derive(Debug)]
pub struct Progress {
    now: Mutex<(String, Instant)>,
}

impl Default for Progress {
    fn default() -> Self {
        Progress { now: Mutex::new(("start".to_owned(), Instant::now())) }
    }
}

impl Progress {
    fn set(&self, step: String) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = (step, Instant::now());
    }

    /// The step that runs, and for how long.
    pub fn now(&self) -> (String, Duration) {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        (now.0.clone(), now.1.elapsed())
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Progress>>> = const { RefCell::new(None) };
}

/// Runs `work` with its steps told to `progress`.
pub fn with_progress<T>(progress: Arc<Progress>, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Arc<Progress>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.with(|current| *current.borrow_mut() = self.0.take());
        }
    }
    let _restore = Restore(CURRENT.with(|current| current.borrow_mut().replace(progress)));
    work()
}

/// The progress of the operation on this thread, for a lock to show to those whom it turns away.
pub fn current() -> Arc<Progress> {
    CURRENT.with(|current| current.borrow().clone()).unwrap_or_default()
}

/// Runs one side effect called `name` on `object`.
pub fn step<T, E: From<super::Error>>(
    name: &'static str,
    object: &dyn std::fmt::Display,
    effect: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let span = tracing::debug_span!("step", name, %object);
    let _entered = span.enter();
    note(name, object);
    #[cfg(feature = "faults")]
    if CURRENT.with(|current| current.borrow().is_some()) {
        return super::faults::run(name, object, effect);
    }
    effect()
}

/// Tells where a long step is ("40 % of 10 GiB"), without starting another.
pub fn note(name: &'static str, detail: &dyn std::fmt::Display) {
    CURRENT.with(|current| {
        if let Some(progress) = &*current.borrow() {
            progress.set(format!("{name} {detail}"));
        }
    });
}

//! Side effects have names.
//!
//! Every side effect runs in [`step`]. The name shows in the span of the trace, in what Busy tells a second caller
//! ("has been at "mkfs" for 3 s"), and in metrics.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::metrics::Steps;

/// What an operation is at that has come to no step yet.
const START: &str = "start";

/// Where a running operation is. Shared by the thread that works and those who ask.
#[derive(Debug)]
pub struct Progress {
    now: Mutex<(String, Instant)>,
    /// Where its steps are counted.
    steps: Steps,
}

impl Default for Progress {
    fn default() -> Self {
        Progress::counted(Steps::default())
    }
}

impl Progress {
    /// One whose steps are counted there.
    pub fn counted(steps: Steps) -> Self {
        Progress { now: Mutex::new((START.to_owned(), Instant::now())), steps }
    }

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

/// Runs `work` with its steps reported to `progress`.
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

/// The last step of the operation on this thread, with its object; `None` where it has come to none.
pub fn last() -> Option<String> {
    CURRENT.with(|current| current.borrow().as_ref().map(|progress| progress.now().0)).filter(|step| step != START)
}

/// Runs one side effect called `name` on `object`.
pub fn step<T, E: From<super::Error>>(
    name: &'static str,
    object: &dyn std::fmt::Display,
    effect: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    note(name, object);
    #[cfg(feature = "faults")]
    let _within = super::gate::enter(name, object);
    let span = tracing::debug_span!("step", name, %object);
    let _entered = span.enter();
    let started = Instant::now();
    let result = run(name, object, effect);
    count(name, result.is_err(), started.elapsed());
    result
}

fn count(name: &'static str, failed: bool, took: Duration) {
    CURRENT.with(|current| {
        if let Some(progress) = &*current.borrow() {
            progress.steps.ended(name, failed, took);
        }
    });
}

#[cfg_attr(not(feature = "faults"), allow(unused_variables, reason = "reported to what makes it fail"))]
fn run<T, E: From<super::Error>>(
    name: &'static str,
    object: &dyn std::fmt::Display,
    effect: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
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

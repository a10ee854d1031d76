//! Work that outlives its caller.
//!
//! A client that times out makes tonic drop the handler. The work must not be dropped with it, half-way through a mkfs:
//! it runs on a thread of its own, with its locks, and the handler only waits for it. Work that has not begun by then never
//! begins: its caller may have called the inverse meanwhile, which found nothing to undo.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::metrics::Steps;
use crate::os::memory;
pub use crate::os::step::last as last_step;
use crate::os::step::{self, Progress};
use crate::volume::{Error, Result};

/// Often enough that a burst leaves nothing, seldom enough to cost nothing.
const TIDY_AFTER: Duration = Duration::from_secs(5);

/// Runs operations, and knows how many run.
#[derive(Clone, Debug)]
pub struct Tasks {
    running: watch::Sender<usize>,
    steps: Steps,
}

impl Default for Tasks {
    fn default() -> Self {
        Tasks::counted(Steps::default())
    }
}

struct Counted(watch::Sender<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

impl Tasks {
    /// Whose steps are counted there.
    pub fn counted(steps: Steps) -> Self {
        Tasks { running: watch::Sender::new(0), steps }
    }

    /// Runs `work` on a thread that may block; once it has begun to its end, whatever becomes of the caller.
    ///
    /// # Errors
    /// Those of `work`; a panic becomes a failure that is not final, since nobody knows how far it came.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.running.send_modify(|running| *running += 1);
        let counted = Counted(self.running.clone());
        let progress = Arc::new(Progress::counted(self.steps.clone()));
        let span = tracing::Span::current();
        let caller = Arc::new(());
        let waiting = Arc::downgrade(&caller);
        let handle = tokio::task::spawn_blocking(move || {
            let _counted = counted;
            let _entered = span.enter();
            if waiting.upgrade().is_none() {
                drop(work);
                return Err(Error::Pending { object: "operation".to_owned(), reason: "nobody waits for it".to_owned() });
            }
            step::with_progress(progress, work)
        });
        let result = handle.await;
        drop(caller);
        result.unwrap_or_else(|panic| Err(Error::failed("run", "operation", panic)))
    }

    /// Gives free memory back to the kernel some seconds after work was done, again and again; never ends.
    pub async fn tidy_memory(self) {
        let mut running = self.running.subscribe();
        while running.changed().await.is_ok() {
            tokio::time::sleep(TIDY_AFTER).await;
            running.mark_unchanged();
            if let Err(panic) = tokio::task::spawn_blocking(memory::give_back).await {
                tracing::error!(%panic, "memory is not given back");
            }
        }
    }

    /// Waits until nothing runs; `false` where something still does after `grace`.
    pub async fn drained(&self, grace: Duration) -> bool {
        let mut running = self.running.subscribe();
        let idle = running.wait_for(|running| *running == 0);
        tokio::time::timeout(grace, idle).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_goes_on_when_the_caller_has_gone() {
        let tasks = Tasks::default();
        let (finish, wait) = mpsc::channel::<()>();
        let (done, seen) = mpsc::channel::<()>();
        let (began, has_begun) = tokio::sync::oneshot::channel();
        let call = tasks.run(move || {
            began.send(()).expect("the test listens");
            wait.recv().expect("told to finish");
            done.send(()).expect("the test listens");
            Ok(())
        });
        tokio::select! {
            _ = call => panic!("nobody told it to finish"),
            begun = has_begun => begun.expect("it runs, and its caller goes"),
        }
        assert!(!tasks.drained(Duration::from_millis(1)).await);
        finish.send(()).expect("it still runs");
        assert!(tasks.drained(Duration::from_secs(10)).await);
        seen.try_recv().expect("it came to its end");
    }

    /// As where every thread has a stuck operation: the next waits for one, and its caller does not.
    #[test]
    fn work_does_not_begin_when_the_caller_has_gone() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build().expect("one");
        runtime.block_on(async {
            let tasks = Tasks::default();
            let (finish, wait) = mpsc::channel::<()>();
            let stuck = tokio::spawn({
                let tasks = tasks.clone();
                async move { tasks.run(move || wait.recv().map_err(|gone| Error::failed("wait", "test", gone))).await }
            });
            tokio::task::yield_now().await;
            let (done, seen) = mpsc::channel::<()>();
            let call = tasks.run(move || done.send(()).map_err(|gone| Error::failed("tell", "test", gone)));
            assert!(tokio::time::timeout(Duration::from_millis(20), call).await.is_err(), "the caller gave up");
            finish.send(()).expect("it still runs");
            stuck.await.expect("no panic").expect("done");
            assert!(tasks.drained(Duration::from_secs(10)).await);
            seen.try_recv().expect_err("it began for nobody");
        });
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_of_this_call_only() {
        let tasks = Tasks::default();
        let error = tasks.run(|| -> Result<()> { panic!("a bug") }).await.expect_err("it panicked");
        assert!(matches!(error, Error::Failed { left: crate::volume::Left::Unverified, .. }));
        assert!(tasks.drained(Duration::from_secs(1)).await);
    }
}

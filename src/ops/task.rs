//! Work that outlives its caller.
//!
//! A client that times out makes tonic drop the handler. The work must not be dropped with it, half-way through a mkfs:
//! it runs on a thread of its own, with its locks, and the handler only waits for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::os::memory;
use crate::os::step::{self, Progress};
use crate::volume::{Error, Result};

/// Often enough that a burst leaves nothing, seldom enough to cost nothing.
const TIDY_AFTER: Duration = Duration::from_secs(5);

/// Runs operations, and knows how many run.
#[derive(Clone, Debug)]
pub struct Tasks {
    running: watch::Sender<usize>,
}

impl Default for Tasks {
    fn default() -> Self {
        Tasks { running: watch::Sender::new(0) }
    }
}

struct Counted(watch::Sender<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

impl Tasks {
    /// Runs `work` to its end on a thread that may block, whatever becomes of the caller.
    ///
    /// # Errors
    /// Those of `work`; a panic becomes a failure that is not final, since nobody knows how far it came.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.running.send_modify(|running| *running += 1);
        let counted = Counted(self.running.clone());
        let span = tracing::Span::current();
        let handle = tokio::task::spawn_blocking(move || {
            let _counted = counted;
            let _entered = span.enter();
            step::with_progress(Arc::new(Progress::default()), work)
        });
        match handle.await {
            Ok(result) => result,
            Err(panic) => Err(Error::failed("run", "operation", panic)),
        }
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
        let call = tasks.run(move || {
            wait.recv().expect("told to finish");
            done.send(()).expect("the test listens");
            Ok(())
        });
        assert!(tokio::time::timeout(Duration::from_millis(20), call).await.is_err(), "the caller gave up");
        assert!(!tasks.drained(Duration::from_millis(1)).await);
        finish.send(()).expect("it still runs");
        assert!(tasks.drained(Duration::from_secs(10)).await);
        seen.try_recv().expect("it came to its end");
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_of_this_call_only() {
        let tasks = Tasks::default();
        let error = tasks.run(|| -> Result<()> { panic!("a bug") }).await.expect_err("it panicked");
        assert!(matches!(error, Error::Failed { left: crate::volume::Left::Unverified, .. }));
        assert!(tasks.drained(Duration::from_secs(1)).await);
    }
}

//! Work that outlives its caller.
//!
//! A client that times out makes tonic drop the handler. The work must not be dropped with it, half-way through a mkfs:
//! it runs on a thread of its own, with its locks, and the handler only waits for it. Work that has not begun by then never
//! begins: its caller may have called the inverse meanwhile, which found nothing to undo.
//!
//! A read of a volume whose disk or server gives no answer has its thread for ever. So that repeated ones do not take all threads, there is
//! one of a kind for each volume ([`Tasks::read_turn`]); who comes meanwhile waits without a thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::metrics::Steps;
pub use crate::os::step::last as last_step;
use crate::os::step::{self, Progress};
use crate::os::{lock, loopdev, memory};
use crate::volume::{Error, Result};

/// What was used is given back when nothing was done for so long, and after so many times that while something is: often enough that a burst
/// leaves nothing, seldom enough to cost nothing.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_TURNS: u32 = 5;
/// How long a read waits for the one of its kind that runs: far longer than that takes where nothing hangs.
const READ_PATIENCE: Duration = Duration::from_secs(2);

/// Runs operations, and knows how many run.
#[derive(Clone, Debug)]
pub struct Tasks {
    running: watch::Sender<usize>,
    steps: Steps,
    reads: Reads,
}

/// The reads that run, by their kind and what they read.
type Reads = Arc<Mutex<HashMap<(&'static str, String), Read>>>;

#[derive(Debug)]
struct Read {
    since: Instant,
    progress: Arc<Progress>,
    /// Dropped when the read ends.
    ended: watch::Sender<()>,
}

/// The right to a read, until it is dropped.
#[derive(Debug)]
#[must_use = "the turn is over when this is dropped"]
pub struct ReadTurn {
    reads: Reads,
    key: (&'static str, String),
    progress: Arc<Progress>,
}

impl Drop for ReadTurn {
    fn drop(&mut self) {
        lock(&self.reads).remove(&self.key);
    }
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
        Tasks { running: watch::Sender::new(0), steps, reads: Reads::default() }
    }

    /// Runs `work` on a thread that may block; once it has begun to its end, whatever becomes of the caller.
    ///
    /// # Errors
    /// Those of `work`; a panic becomes a failure that is not final, since nobody knows how far it came.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.run_in(Arc::new(Progress::counted(self.steps.clone())), work).await
    }

    /// As [`Tasks::run`], for a read: its turn ends with the work.
    ///
    /// # Errors
    /// As [`Tasks::run`].
    pub async fn run_read<T: Send + 'static>(
        &self,
        turn: ReadTurn,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let progress = turn.progress.clone();
        let work = move || {
            let _turn = turn;
            work()
        };
        self.run_in(progress, work).await
    }

    /// Waits until no read of this kind (`operation`) of the same `object` runs.
    ///
    /// # Errors
    /// `Busy` where one has not ended in time, with what it does and since when.
    pub async fn read_turn(&self, operation: &'static str, object: &str) -> Result<ReadTurn> {
        let key = (operation, object.to_owned());
        let until = tokio::time::Instant::now() + READ_PATIENCE;
        loop {
            let mut ended = {
                let mut reads = lock(&self.reads);
                let Some(read) = reads.get(&key) else {
                    let progress = Arc::new(Progress::counted(self.steps.clone()));
                    let read = Read { since: Instant::now(), progress: progress.clone(), ended: watch::Sender::new(()) };
                    reads.insert(key.clone(), read);
                    return Ok(ReadTurn { reads: self.reads.clone(), key, progress });
                };
                read.ended.subscribe()
            };
            if tokio::time::timeout_at(until, ended.changed()).await.is_err() {
                let busy = |read: &Read| Error::Busy {
                    object: object.to_owned(),
                    operation,
                    step: read.progress.now().0,
                    since: read.since.elapsed(),
                };
                // It may have ended this very moment.
                if let Some(read) = lock(&self.reads).get(&key) {
                    return Err(busy(read));
                }
            }
        }
    }

    async fn run_in<T: Send + 'static>(
        &self,
        progress: Arc<Progress>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.running.send_modify(|running| *running += 1);
        let counted = Counted(self.running.clone());
        let span = tracing::Span::current();
        let caller = Arc::new(());
        let waiting = Arc::downgrade(&caller);
        let handle = tokio::task::spawn_blocking(move || {
            let _counted = counted;
            let _entered = span.enter();
            if waiting.upgrade().is_none() {
                drop(work);
                return Err(Error::InProgress { object: "operation".to_owned(), reason: "no caller waits for it".to_owned() });
            }
            step::with_progress(progress, work)
        });
        let result = handle.await;
        drop(caller);
        result.unwrap_or_else(|panic| Err(Error::failed("run", "the operation", panic)))
    }

    /// Says that a call was answered without work of its own: what it used of the program's code is given back, too.
    pub fn touch(&self) {
        self.running.send_modify(|_| {});
    }

    /// Gives free memory and loop devices back to the kernel, at the start and a second after a call; never ends.
    pub async fn tidy(self) {
        let mut running = self.running.subscribe();
        loop {
            if let Err(panic) = tokio::task::spawn_blocking(memory::give_back).await {
                tracing::error!(%panic, "memory is not given back");
            }
            if running.changed().await.is_err() {
                break;
            }
            for _ in 0..QUIET_TURNS {
                running.mark_unchanged();
                tokio::time::sleep(QUIET).await;
                if !running.has_changed().unwrap_or(false) {
                    break;
                }
            }
            running.mark_unchanged();
            // In small turns, since the end of the process waits for one that has begun.
            loop {
                match tokio::task::spawn_blocking(loopdev::remove_spare).await {
                    Ok(Ok(true)) => {}
                    Ok(Ok(false)) => break,
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "unused loop devices stay");
                        break;
                    }
                    Err(panic) => {
                        tracing::error!(%panic, "unused loop devices stay");
                        break;
                    }
                }
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_continues_when_the_caller_has_gone() {
        let tasks = Tasks::default();
        let (finish, wait) = mpsc::channel::<()>();
        let (done, seen) = mpsc::channel::<()>();
        let (began, has_begun) = tokio::sync::oneshot::channel();
        let call = tasks.run(move || {
            began.send(()).expect("the test listens");
            wait.recv().expect("asked to finish");
            done.send(()).expect("the test listens");
            Ok(())
        });
        tokio::select! {
            _ = call => panic!("no message to finish came"),
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
    async fn read_that_hangs_keeps_later_ones_of_its_kind_and_volume_from_a_thread() {
        let tasks = Tasks::default();
        let (finish, wait) = mpsc::channel::<()>();
        let turn = tasks.read_turn("stats", "volume a").await.expect("the first");
        let hung = tokio::spawn({
            let tasks = tasks.clone();
            async move {
                let work = move || {
                    step::note("measure", &"/a");
                    wait.recv().map_err(|gone| Error::failed("wait", "test", gone))
                };
                tasks.run_read(turn, work).await
            }
        });
        let mut others = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let tasks = tasks.clone();
            others.spawn(async move { tasks.read_turn("stats", "volume a").await });
        }
        while let Some(other) = others.join_next().await {
            let error = other.expect("no panic").expect_err("the first hangs");
            let Error::Busy { object, operation, step, since } = error else { panic!("{error}") };
            assert_eq!((object.as_str(), operation, step.as_str()), ("volume a", "stats", "measure /a"));
            assert!(since >= READ_PATIENCE, "{since:?}");
        }
        assert_eq!(*tasks.running.borrow(), 1, "nobody else has a thread");
        drop(tasks.read_turn("stats", "volume b").await.expect("another volume"));
        drop(tasks.read_turn("health", "volume a").await.expect("another kind"));
        finish.send(()).expect("it still runs");
        hung.await.expect("no panic").expect("ends");
        drop(tasks.read_turn("stats", "volume a").await.expect("it has ended"));
        assert!(lock(&tasks.reads).is_empty());
    }

    #[tokio::test]
    async fn reads_that_end_are_all_run_one_after_the_other() {
        let tasks = Tasks::default();
        let at_once = Arc::new(AtomicUsize::new(0));
        let mut reads = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (tasks, at_once) = (tasks.clone(), at_once.clone());
            reads.spawn(async move {
                let turn = tasks.read_turn("stats", "volume a").await?;
                let work = move || {
                    assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0);
                    std::thread::yield_now();
                    at_once.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                };
                tasks.run_read(turn, work).await
            });
        }
        while let Some(read) = reads.join_next().await {
            read.expect("no panic").expect("it has its turn");
        }
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_of_this_call_only() {
        let tasks = Tasks::default();
        let error = tasks.run(|| -> Result<()> { panic!("a bug") }).await.expect_err("it panicked");
        assert!(matches!(error, Error::Failed { rollback: crate::volume::Rollback::Unknown, .. }));
        assert!(tasks.drained(Duration::from_secs(1)).await);
    }
}

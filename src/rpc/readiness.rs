//! What Probe answers: whether the driver takes calls, and whether its backends can be reached.
//!
//! Probe may come at any rate, and a backend's own probe may hang. So a good result is kept for a moment, at most one probe
//! runs at a time, and who asks waits for it only so long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::backend::registry::Registry;
use crate::volume::{Error, Result};

/// For how long a good result holds.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// Shared by Probe and the server.
#[derive(Clone)]
pub struct Readiness {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Registry,
    taking_calls: AtomicBool,
    started: Instant,
    /// Until when the last good result holds, in milliseconds after `started`.
    good_until: AtomicU64,
    /// The probe that runs now; those who ask meanwhile wait for this one.
    running: Mutex<Option<watch::Receiver<Progress>>>,
}

#[derive(Clone)]
enum Progress {
    /// The backend that is being asked.
    Asking(String),
    Done(Result<(), Arc<Error>>),
}

impl Readiness {
    pub(super) fn new(registry: Registry) -> Self {
        Readiness {
            shared: Arc::new(Shared {
                registry,
                taking_calls: AtomicBool::new(false),
                started: Instant::now(),
                good_until: AtomicU64::new(0),
                running: Mutex::new(None),
            }),
        }
    }

    /// From now on, calls are taken, or no longer are. Probe then says `ready` or not.
    pub fn set_ready(&self, ready: bool) {
        self.shared.taking_calls.store(ready, Ordering::Release);
    }

    pub fn is_ready(&self) -> bool {
        self.shared.taking_calls.load(Ordering::Acquire)
    }

    /// Whether every backend can be used.
    ///
    /// # Errors
    /// That of the first which cannot, with what to do; `BackendDown` for one that gives no answer within `patience`.
    pub async fn backends(&self, patience: Duration) -> Result<(), Arc<Error>> {
        if self.shared.still_good() {
            return Ok(());
        }
        let mut progress = self.join();
        let done = async {
            let done = progress.wait_for(|progress| matches!(progress, Progress::Done(_))).await;
            match done.as_deref() {
                Ok(Progress::Done(result)) => result.clone(),
                Ok(Progress::Asking(backend)) => Err(unanswered(backend, "it is still asked")),
                Err(_) => Err(unanswered("of this driver", "its probe ended without an answer")),
            }
        };
        if let Ok(result) = tokio::time::timeout(patience, done).await {
            return result;
        }
        match &*progress.borrow() {
            Progress::Done(result) => result.clone(),
            Progress::Asking(backend) => {
                let patience = humantime::format_duration(patience);
                Err(unanswered(backend, &format!("no answer within {patience}; see what its storage is doing")))
            }
        }
    }

    /// The probe that runs, or a new one.
    fn join(&self) -> watch::Receiver<Progress> {
        let mut running = self.shared.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(progress) = &*running {
            return progress.clone();
        }
        let (tell, progress) = watch::channel(Progress::Asking("of this driver".to_owned()));
        *running = Some(progress.clone());
        let shared = self.shared.clone();
        // Not one of the counted tasks: a probe that hangs holds nothing, so nobody need wait for it at the end.
        tokio::task::spawn_blocking(move || {
            let running = Cleared(&shared);
            let result = shared.ask(&tell);
            if result.is_ok() {
                shared.keep();
            }
            // First, so that nobody who asks after this answer was given gets it once more.
            drop(running);
            tell.send_replace(Progress::Done(result.map_err(Arc::new)));
        });
        progress
    }
}

/// Lets the next probe start, also after a panic.
struct Cleared<'a>(&'a Shared);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Shared {
    fn ask(&self, tell: &watch::Sender<Progress>) -> Result<()> {
        self.registry.iter().try_for_each(|backend| {
            tell.send_replace(Progress::Asking(backend.name().to_string()));
            backend.probe()
        })
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn keep(&self) {
        let good_for = u64::try_from(GOOD_FOR.as_millis()).unwrap_or(0);
        self.good_until.store(self.millis().saturating_add(good_for), Ordering::Release);
    }

    fn still_good(&self) -> bool {
        self.millis() < self.good_until.load(Ordering::Acquire)
    }
}

fn unanswered(backend: &str, reason: &str) -> Arc<Error> {
    Arc::new(Error::BackendDown { backend: backend.to_owned(), reason: reason.to_owned() })
}

//! Whether the driver takes calls and which of its backends can be used: what Probe and `/readyz` answer.
//!
//! Both may be asked at any rate, and a backend's own probe may hang. So the backends are asked on threads of their own, a good
//! result is kept for a moment, at most one probe of each backend runs at a time, and who asks waits for it only so long.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant as Deadline;

use crate::backend::Backend;
use crate::backend::leadership::Leadership;
use crate::backend::registry::Registry;
use crate::volume::Error;

/// For how long a good result holds.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// Shared by Probe and the server.
#[derive(Clone)]
pub struct Readiness {
    shared: Arc<Shared>,
}

struct Shared {
    taking_calls: AtomicBool,
    backends: Vec<Arc<Probed>>,
    leadership: Leadership,
}

/// A backend, and what its probes found.
struct Probed {
    backend: Arc<dyn Backend>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When the last probe found all of it usable.
    good: Option<Instant>,
    /// The probe that runs now; those who ask meanwhile wait for this one.
    running: Option<watch::Receiver<Option<Condition>>>,
    /// What the log has of it.
    logged: Option<String>,
}

/// What a probe found.
#[derive(Clone, Debug)]
struct Condition {
    /// What cannot be used, and why.
    problem: Option<Arc<Error>>,
    /// At least a part of it can be used.
    usable: bool,
}

impl Readiness {
    pub(super) fn new(registry: &Registry) -> Self {
        let probed = |backend: &Arc<dyn Backend>| Arc::new(Probed { backend: backend.clone(), state: Mutex::default() });
        let backends = registry.iter().map(probed).collect();
        Readiness {
            shared: Arc::new(Shared {
                taking_calls: AtomicBool::new(false),
                backends,
                leadership: registry.leadership().clone(),
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

    /// Why this process does not provision, where another one does.
    pub fn standby(&self) -> Option<Error> {
        self.shared.leadership.standby()
    }

    /// Whether there is anything that only one process at a time provisions from.
    pub fn is_contended(&self) -> bool {
        self.shared.leadership.is_contended()
    }

    /// Whether this process is on no standby, and at least one backend can be used, at least in part. Returns when the first is found usable, and at the latest after
    /// `patience`. All are probed, also those that come later.
    pub async fn is_usable(&self, patience: Duration) -> bool {
        if self.standby().is_some() {
            return false;
        }
        let deadline = Deadline::now() + patience;
        let asked: Vec<Answer> = self.shared.backends.iter().map(Probed::ask).collect();
        if asked.iter().any(|answer| matches!(answer, Answer::Known(condition) if condition.usable)) {
            return true;
        }
        let mut asked: JoinSet<bool> = asked
            .into_iter()
            .map(|answer| async move { answer.by(deadline).await.is_some_and(|condition| condition.usable) })
            .collect();
        while let Some(usable) = asked.join_next().await {
            if usable.unwrap_or(false) {
                return true;
            }
        }
        self.shared.backends.is_empty()
    }

    /// What keeps backends from being used, in whole or in part, in the order of the configuration: the backend's own words, or that
    /// it gave no answer within `patience`.
    pub async fn problems(&self, patience: Duration) -> Vec<Arc<Error>> {
        let deadline = Deadline::now() + patience;
        // All are asked before the first is waited for.
        let asked: Vec<(&Probed, Answer)> = self.shared.backends.iter().map(|probed| (&**probed, probed.ask())).collect();
        let mut problems = Vec::new();
        for (probed, answer) in asked {
            match answer.by(deadline).await {
                Some(condition) => problems.extend(condition.problem),
                None => problems.push(Arc::new(Error::BackendUnavailable {
                    backend: probed.backend.name().to_string(),
                    reason: format!("no answer within {}; check its storage", humantime::format_duration(patience)),
                })),
            }
        }
        problems
    }
}

/// A result that is known, or the probe that will have it.
enum Answer {
    Known(Condition),
    Running(watch::Receiver<Option<Condition>>),
}

impl Answer {
    /// The result; `None` where there is none by `deadline`.
    async fn by(self, deadline: Deadline) -> Option<Condition> {
        match self {
            Answer::Known(condition) => Some(condition),
            Answer::Running(mut running) => {
                let done = tokio::time::timeout_at(deadline, running.wait_for(Option::is_some)).await;
                // Too late, or the probe panicked.
                done.ok()?.ok()?.clone()
            }
        }
    }
}

impl Probed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A good result of a moment ago, the probe that runs, or a new one.
    fn ask(self: &Arc<Self>) -> Answer {
        let mut state = self.state();
        if state.good.is_some_and(|since| since.elapsed() < GOOD_FOR) {
            return Answer::Known(Condition { problem: None, usable: true });
        }
        if let Some(running) = &state.running {
            return Answer::Running(running.clone());
        }
        let (tell, running) = watch::channel(None);
        state.running = Some(running.clone());
        let probed = self.clone();
        // Not one of the counted tasks: a probe that hangs holds nothing, so nobody need wait for it at the end.
        tokio::task::spawn_blocking(move || {
            let cleared = Cleared(&probed);
            let condition = probed.probe();
            // First, so that nobody who asks after this answer was given gets it once more.
            drop(cleared);
            tell.send_replace(Some(condition));
        });
        Answer::Running(running)
    }

    fn probe(&self) -> Condition {
        let problem = self.backend.probe().err().map(Arc::new);
        let usable = problem.is_none() || self.backend.is_usable_in_part();
        let mut state = self.state();
        state.good = problem.is_none().then(Instant::now);
        let text = problem.as_ref().map(ToString::to_string);
        // Once for each change, however often it is asked.
        if state.logged != text {
            let backend = self.backend.name();
            match &problem {
                Some(error) => tracing::warn!(%backend, usable_in_part = usable, %error, "the backend cannot be used in full"),
                None => tracing::info!(%backend, "the backend can be used again"),
            }
            state.logged = text;
        }
        Condition { problem, usable }
    }
}

/// Lets the next probe start, also after a panic.
struct Cleared<'a>(&'a Probed);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        self.0.state().running = None;
    }
}

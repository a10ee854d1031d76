//! Which of several processes provisions, where each pool or share is provisioned from by one at a time: the holder of its lock.
//!
//! The locks have an order, which is the same in every process: by backend, then by pool or share. The first of them that is not away
//! decides. A process that finds it held elsewhere is on standby: it takes no other lock, and changes nothing. So no two processes each
//! hold what the other one waits for. One that leads and finds an earlier lock held elsewhere (that pool was away when it began) ends:
//! it is started again as a standby, and the sidecars that lead beside it give way, too.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::os;
use crate::volume::{BackendName, Error, Result};

use super::{Backend, Exclusive, FirstLock};

/// How long all storage together is waited for at one look: the start waits for the first.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a standby waits between two attempts.
const STANDBY_INTERVAL: Duration = Duration::from_secs(1);
/// How often a leader looks whether it still is.
const LEADER_INTERVAL: Duration = Duration::from_secs(5);
/// How often a standby says in the log that it is one.
const REMINDER: Duration = Duration::from_secs(60);

/// Whether this process provisions.
#[derive(Clone, Default)]
pub struct Leadership {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// By name.
    backends: Vec<Arc<dyn Backend>>,
    standby: Mutex<Option<Standby>>,
}

#[derive(Clone, Debug)]
struct Standby {
    backend: BackendName,
    reason: String,
}

impl Leadership {
    /// Of a process that leads, and does not contend.
    pub(super) fn new<'a>(backends: impl Iterator<Item = &'a Arc<dyn Backend>>) -> Leadership {
        let backends = backends.filter(|backend| backend.exclusive().is_some()).cloned().collect();
        Leadership { shared: Arc::new(Shared { backends, standby: Mutex::default() }) }
    }

    /// Why this process does not provision; `None` where it does.
    pub fn standby(&self) -> Option<Error> {
        self.get().map(|Standby { backend, reason }| Error::BackendUnavailable { backend: backend.to_string(), reason })
    }

    /// Whether there is anything that only one process has.
    pub fn is_contended(&self) -> bool {
        !self.shared.backends.is_empty()
    }

    /// Leads or stands by; what a standby waits for is tried again on a thread, as long as the process lives. `lost` is called at most
    /// once, where this process must end.
    ///
    /// # Errors
    /// What waiting will not repair.
    pub fn contend(&self, lost: impl FnOnce(Error) + Send + 'static) -> Result<()> {
        if !self.is_contended() {
            return Ok(());
        }
        self.exclusives().for_each(|(_, exclusive)| exclusive.stand_by());
        match self.held_elsewhere()? {
            None => self.lead()?,
            Some(standby) => {
                tracing::warn!(
                    reason = standby.reason,
                    "on standby: another process provisions; its lock is tried again every second"
                );
                self.set(Some(standby));
            }
        }
        let own = self.clone();
        let watch = move || lost(own.watch());
        let started = thread::Builder::new().name("leadership".to_owned()).spawn(watch);
        started.map(drop).map_err(|error| os::Error::io("start thread", "leadership", error).into())
    }

    /// Returns why this process must end.
    #[allow(clippy::disallowed_methods, reason = "no event tells that another process, or another machine, has freed its lock")]
    fn watch(&self) -> Error {
        let (since, mut reported) = (Instant::now(), Instant::now());
        loop {
            let standby = self.get();
            thread::sleep(if standby.is_some() { STANDBY_INTERVAL } else { LEADER_INTERVAL });
            match (standby, self.held_elsewhere()) {
                (None, Ok(None)) => {}
                (None, Ok(Some(Standby { backend, reason }))) => {
                    let reason = format!("{reason}; this process ends, so that one provisions from everything");
                    return Error::BackendUnavailable { backend: backend.to_string(), reason };
                }
                (None, Err(error)) => tracing::warn!(%error, "whether another process provisions cannot be seen"),
                (Some(_), Ok(None)) => {
                    if let Err(error) = self.lead() {
                        return error;
                    }
                    let after = humantime::format_duration(Duration::from_secs(since.elapsed().as_secs()));
                    tracing::info!(%after, "no longer on standby: this process provisions");
                }
                (Some(_), Ok(Some(standby))) => {
                    if reported.elapsed() >= REMINDER {
                        tracing::warn!(reason = standby.reason, "still on standby: another process provisions");
                        reported = Instant::now();
                    }
                    self.set(Some(standby));
                }
                (Some(_), Err(error)) => return error,
            }
        }
    }

    /// Who has the first lock, or one that this process had, if another process has it.
    fn held_elsewhere(&self) -> Result<Option<Standby>> {
        let until = Instant::now() + PATIENCE;
        let mut lost = self.exclusives().filter_map(|(backend, exclusive)| Some((backend, exclusive.lost(until)?)));
        if let Some((backend, reason)) = lost.next() {
            return Ok(Some(Standby { backend: backend.clone(), reason }));
        }
        for (backend, exclusive) in self.exclusives() {
            match exclusive.first_lock(until)? {
                FirstLock::Here => return Ok(None),
                FirstLock::Elsewhere(reason) => return Ok(Some(Standby { backend: backend.clone(), reason })),
                FirstLock::Away => {}
            }
        }
        Ok(None)
    }

    /// All at the same time: one that hangs is waited for once.
    fn lead(&self) -> Result<()> {
        thread::scope(|scope| {
            let opening: Vec<_> = self.shared.backends.iter().map(|backend| scope.spawn(|| lead(backend.as_ref()))).collect();
            opening.into_iter().try_for_each(|opening| opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
        self.set(None);
        Ok(())
    }

    fn exclusives(&self) -> impl Iterator<Item = (&BackendName, &dyn Exclusive)> {
        self.shared.backends.iter().filter_map(|backend| Some((backend.name(), backend.exclusive()?)))
    }

    fn get(&self) -> Option<Standby> {
        self.shared.standby.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, standby: Option<Standby>) {
        *self.shared.standby.lock().unwrap_or_else(PoisonError::into_inner) = standby;
    }
}

fn lead(backend: &dyn Backend) -> Result<()> {
    backend.exclusive().map_or(Ok(()), Exclusive::lead)
}

//! Whole trees of others' files, copied and removed.
//!
//! Anyone who owns the files may rename, swap and plant things meanwhile. So all is done by descriptors and single names ([`Directory`]):
//! no link is followed, no mount entered, `..` is never opened, and nothing outside of the directories given is touched. Depth costs
//! no stack. What vanishes or changes meanwhile is no error: a tree that is in use is copied file by file, not at one
//! instant; [`changed_since`] finds out.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytesize::ByteSize;

mod attributes;
mod changed;
mod copy;
mod remove;
mod walk;

pub use changed::{ChangeTime, changed_since, contents, write_back};
pub use copy::{Copied, copy};
pub use remove::{Stuck, empty};

/// How often the log hears of something long.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Tells the log how far something is, now and then.
struct Report {
    what: &'static str,
    last: Instant,
}

impl Report {
    fn of(what: &'static str) -> Report {
        Report { what, last: Instant::now() }
    }

    fn tell(&mut self, directory: &Path, control: &Control) {
        if self.last.elapsed() >= REPORT_EVERY {
            self.last = Instant::now();
            tracing::info!(directory = %directory.display(), progress = %control, "{}", self.what);
        }
    }
}

/// How far something long is; by it, it is stopped.
#[derive(Debug, Default)]
pub struct Control {
    entries: AtomicU64,
    bytes: AtomicU64,
    stop: AtomicBool,
    /// For who waits in `pause`.
    stopping: (Mutex<()>, Condvar),
}

impl Control {
    /// From now on it ends as soon as it can.
    pub fn stop(&self) {
        let _held = self.stopping.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.stop.store(true, Ordering::Release);
        self.stopping.1.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Files, directories and the like that are done.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Of data that was copied.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn did(&self, entries: u64, bytes: u64) {
        self.entries.fetch_add(entries, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Waits, but not when it is to stop.
    pub fn pause(&self, time: Duration) {
        let held = self.stopping.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An early end does no harm, so the answer is all the same.
        drop(self.stopping.1.wait_timeout_while(held, time, |()| !self.is_stopped()));
    }
}

impl std::fmt::Display for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} entries", self.entries())?;
        match self.bytes() {
            0 => Ok(()),
            bytes => write!(f, ", {} so far", ByteSize::b(bytes)),
        }
    }
}

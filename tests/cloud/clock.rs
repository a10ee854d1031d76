//! The time of the emulated cloud, which passes faster than ours, or at once.

use std::sync::Mutex;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct Clock {
    start: Instant,
    speed: u32,
    skipped: Mutex<Duration>,
}

/// Never.
pub const NEVER: Duration = Duration::MAX;

impl Clock {
    pub fn new(speed: u32) -> Clock {
        Clock { start: Instant::now(), speed, skipped: Mutex::default() }
    }

    /// Since the cloud began.
    pub fn now(&self) -> Duration {
        self.start.elapsed() * self.speed + *self.skipped.lock().expect("no panic")
    }

    pub fn skip(&self, span: Duration) {
        *self.skipped.lock().expect("no panic") += span;
    }

    pub fn sleep(&self, span: Duration) {
        std::thread::sleep(span / self.speed);
    }
}

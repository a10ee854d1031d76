//! Time, which tests may let pass faster.

use std::time::{Duration, Instant};

/// How often a cloud may be asked, and how long something takes there, is measured by this.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    speed: u32,
}

impl Default for Clock {
    /// As fast as time; with the feature `faults` as fast as `LONGSHORE_CLOUD_SPEED` says, for simulations.
    fn default() -> Self {
        #[cfg(feature = "faults")]
        let speed = std::env::var("LONGSHORE_CLOUD_SPEED").ok().and_then(|speed| speed.parse().ok()).unwrap_or(1);
        #[cfg(not(feature = "faults"))]
        let speed = 1;
        Clock { start: Instant::now(), speed }
    }
}

impl Clock {
    /// Since the clock was made.
    pub fn now(&self) -> Duration {
        self.start.elapsed() * self.speed
    }

    /// How long `span` of this clock is in real time, to sleep or wait by.
    pub fn real(&self, span: Duration) -> Duration {
        span / self.speed
    }

    /// Returns when so much of this clock's time has passed.
    pub fn sleep(&self, span: Duration) {
        let end = self.now() + span;
        while let Some(left) = end.checked_sub(self.now()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(self.real(left));
        }
    }
}

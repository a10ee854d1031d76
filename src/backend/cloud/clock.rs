//! Time, which tests may let pass faster.

use std::time::{Duration, Instant};

use super::refusal::Answer;

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
    /// One that is `speed` times as fast as time, and has been running for `age` of its own.
    #[cfg(test)]
    pub fn fast(speed: u32, age: Duration) -> Clock {
        Clock { start: Instant::now().checked_sub(age / speed).expect("the machine is older"), speed }
    }

    /// Since the clock was made.
    pub fn now(&self) -> Duration {
        self.start.elapsed() * self.speed
    }

    /// How long `span` of this clock is in real time, to sleep or wait by.
    pub fn real(&self, span: Duration) -> Duration {
        span / self.speed
    }

    /// Looks twice a second until what is seen is as it should be, or `end` has come; what was seen last.
    ///
    /// # Errors
    /// That of a look.
    pub fn look_until<T>(&self, end: Duration, mut look: impl FnMut() -> Answer<T>, is_over: impl Fn(&T) -> bool) -> Answer<T> {
        const PAUSE: Duration = Duration::from_millis(500);
        loop {
            let seen = look()?;
            if is_over(&seen) || self.now() >= end {
                return Ok(seen);
            }
            self.sleep(PAUSE);
        }
    }

    /// Returns when so much of this clock's time has passed.
    pub fn sleep(&self, span: Duration) {
        let end = self.now() + span;
        while let Some(left) = end.checked_sub(self.now()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(self.real(left));
        }
    }
}

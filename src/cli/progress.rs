//! A sign of life for what takes long.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shorter calls show nothing, so that nothing flickers.
const PATIENCE: Duration = Duration::from_millis(400);

/// Whether and where to show something.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    shown: bool,
}

/// Gone from the screen when dropped.
struct Spinner(ProgressBar);

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Progress {
    /// On standard error, if that is a terminal and the output is for people.
    pub fn new(for_people: bool) -> Self {
        Progress { shown: for_people && io::stderr().is_terminal() }
    }

    /// Awaits `work`; from some time on `what` and the time since the start stand on the screen.
    pub async fn watch<T>(self, what: &str, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        if self.shown {
            if let Ok(done) = tokio::time::timeout(PATIENCE, &mut work).await {
                return done;
            }
            let _spinner = Spinner::start(what);
            return work.await;
        }
        work.await
    }
}

impl Spinner {
    fn start(what: &str) -> Self {
        let style =
            ProgressStyle::with_template("{spinner} {msg} ({elapsed})").unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::new_spinner().with_style(style).with_message(what.to_owned()).with_elapsed(PATIENCE);
        bar.enable_steady_tick(Duration::from_millis(100));
        Spinner(bar)
    }
}

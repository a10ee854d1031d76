//! One worker per base empties its trash, in the background, slowly enough that nobody is hurt.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::os::dir::OpenDir;
use crate::os::tree::{self, Control};

/// When what could not be removed is tried again: soon, since a file that is still open only keeps its directory until it is closed; then
/// after twice the time, and so on up to the longest.
const AGAIN: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Sweeper {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    trash: OpenDir,
    control: Control,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// Something came since it was last begun.
    more: bool,
    /// In words.
    stuck: Vec<String>,
}

/// What there is to say of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sweep {
    /// So many entries were removed since the start; `None` while there is nothing to do.
    pub removed: Option<u64>,
    pub stuck: Vec<String>,
}

impl Sweeper {
    pub fn new(trash: OpenDir) -> Sweeper {
        let shared = Shared { trash, control: Control::default(), state: Mutex::default(), changed: Condvar::new() };
        Sweeper { shared: Arc::new(shared) }
    }

    /// There is something in the trash.
    pub fn wake(&self) {
        let mut state = self.shared.state();
        state.more = true;
        self.shared.changed.notify_all();
        if state.running {
            return;
        }
        let own = Arc::clone(&self.shared);
        match std::thread::Builder::new().name("sweep".to_owned()).spawn(move || own.run()) {
            Ok(_) => state.running = true,
            Err(error) => tracing::warn!(%error, "the trash waits for the next deletion"),
        }
    }

    pub fn look(&self) -> Sweep {
        let state = self.shared.state();
        let busy = state.running && (state.more || state.stuck.is_empty());
        Sweep { removed: busy.then(|| self.shared.control.entries()), stuck: state.stuck.clone() }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.shared.control.stop();
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut again = AGAIN;
        loop {
            self.state().more = false;
            let begun = (Instant::now(), self.control.entries());
            let stuck = match tree::empty(&self.trash, &self.control) {
                Ok(stuck) => stuck.into_iter().map(|stuck| format!("{}: {}", stuck.path.display(), stuck.error)).collect(),
                Err(error) => vec![error.to_string()],
            };
            let removed = self.control.entries() - begun.1;
            if removed > 0 {
                let took = begun.0.elapsed().as_secs();
                tracing::info!(trash = %self.trash.shown().display(), removed, seconds = took, stuck = stuck.len(), "emptied the trash");
            }
            if let Some(first) = stuck.first() {
                tracing::warn!(trash = %self.trash.shown().display(), count = stuck.len(), first, "not all of the trash can be removed");
            }
            let mut state = self.state();
            state.stuck = stuck;
            let mut over = !state.more;
            if !state.stuck.is_empty() {
                let waited = self.changed.wait_timeout_while(state, again, |state| !state.more && !self.control.is_stopped());
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                again = if state.more { AGAIN } else { LONGEST.min(again * 2) };
                over = false;
            }
            if over || self.control.is_stopped() {
                state.running = false;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_file_is_removed_once_it_is_closed() {
        crate::os::mount::testing::in_own_namespace(|| {
            let directory = tempfile::tempdir().expect("a directory");
            let held = directory.path().join("volume/held");
            std::fs::create_dir_all(&held).expect("made");
            let none: Option<&str> = None;
            nix::mount::mount(Some(&held), &held, none, nix::mount::MsFlags::MS_BIND, none).expect("bound");
            let sweeper = Sweeper::new(OpenDir::open(directory.path()).expect("open"));
            sweeper.wake();
            let end = Instant::now() + Duration::from_secs(30);
            while sweeper.look().stuck.is_empty() {
                assert!(Instant::now() < end);
                std::thread::yield_now();
            }
            nix::mount::umount(&held).expect("let go");
            while directory.path().join("volume").exists() || !sweeper.look().stuck.is_empty() {
                assert!(Instant::now() < end, "{:?}", sweeper.look());
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn sweeper_ends_when_idle_and_starts_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let sweeper = Sweeper::new(OpenDir::open(directory.path()).expect("open"));
        for round in 0..3 {
            std::fs::create_dir_all(directory.path().join("volume/deep/er")).expect("made");
            sweeper.wake();
            let end = Instant::now() + Duration::from_secs(30);
            while sweeper.look().removed.is_some() || directory.path().join("volume").exists() {
                assert!(Instant::now() < end, "round {round}: {:?}", sweeper.look());
                std::thread::yield_now();
            }
            assert!(sweeper.look().stuck.is_empty());
        }
    }
}

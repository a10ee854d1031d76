//! Whether the server behind a mount answers, found out without waiting for it longer than some seconds.
//!
//! A call of our own to a server that is gone hangs, and this process at its end with it. So a child asks (stat(1) of the file
//! system), which can be killed and left behind. At most one question is under way; its answer is good for a second.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::process::{Run, Tool, run};
use super::{Error, Result};

/// How long the server has.
const PATIENCE: Duration = Duration::from_secs(3);
/// For how long an answer is believed.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// What is known of one server; ask it through any mount of it.
#[derive(Debug)]
pub struct Answers {
    /// For errors.
    server: String,
    state: Mutex<State>,
    asked: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// A child is asking now.
    asking: bool,
    /// When the last question ended, and whether there was an answer.
    last: Option<(Instant, bool)>,
}

impl Answers {
    pub fn new(server: impl Into<String>) -> Answers {
        Answers { server: server.into(), state: Mutex::default(), asked: Condvar::new() }
    }

    /// Comes back within some seconds: `Ok` where the server has answered, about this mount or another of it, within the last
    /// second. While a question to a server that did not answer the last one is under way, that is the answer at once.
    ///
    /// # Errors
    /// `Deadline` where there is no answer; `Io` with what it answered otherwise (ESTALE, EIO).
    pub fn ask(&self, mounted: BorrowedFd<'_>) -> Result<()> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            if state.last.is_some_and(|(when, good)| good && when.elapsed() < GOOD_FOR) {
                return Ok(());
            }
            if !state.asking {
                break;
            }
            // Who came while another asks has that one's answer, unless it is foreseeable.
            if state.last.is_some_and(|(when, good)| !good && when >= begun) || self.is_silent(&state) {
                return Err(self.no_answer());
            }
            let left = (PATIENCE * 2).saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(self.no_answer());
            }
            state = self.asked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.asking = true;
        drop(state);
        let answer = self.question(mounted);
        let mut state = self.state();
        state.asking = false;
        state.last = Some((Instant::now(), !matches!(answer, Err(Error::Deadline { .. }))));
        self.asked.notify_all();
        answer
    }

    /// Whether the last question had no answer; asks nothing.
    pub fn is_down(&self) -> bool {
        self.is_silent(&self.state())
    }

    fn is_silent(&self, state: &State) -> bool {
        state.last.is_some_and(|(_, good)| !good)
    }

    fn question(&self, mounted: BorrowedFd<'_>) -> Result<()> {
        let path = format!("/proc/self/fd/{}", mounted.as_raw_fd());
        let output = run(Run {
            tool: Tool { name: "stat", package: "coreutils" },
            arguments: ["--file-system", "--format", "%T", "--", &path].map(str::to_owned).to_vec(),
            keep: vec![mounted],
            stdin: Vec::new(),
            deadline: PATIENCE,
        })
        .map_err(|error| if matches!(error, Error::Deadline { .. }) { self.no_answer() } else { error })?;
        if output.failure(&[0]).is_none() {
            return Ok(());
        }
        // It answered, if not well; so the same question of our own does not hang, and has a number for an answer.
        rustix::fs::fstatfs(mounted).map(|_| ()).map_err(|errno| Error::io("ask", &self.server, errno))
    }

    fn no_answer(&self) -> Error {
        Error::Deadline { action: "ask server", object: self.server.clone(), after: PATIENCE }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_system_that_answers_is_asked_once_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let open = File::open(folder.path()).unwrap();
        let answers = Answers::new("here");
        answers.ask(open.as_fd()).unwrap();
        let first = answers.state().last.unwrap().0;
        answers.ask(open.as_fd()).unwrap();
        assert_eq!(answers.state().last.unwrap().0, first, "the answer is still good");
        assert!(!answers.is_down());
    }

    #[test]
    fn of_a_silent_server_others_hear_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let open = File::open(folder.path()).unwrap();
        let answers = Answers::new("there");
        *answers.state() = State { asking: true, last: Some((Instant::now(), false)) };
        let begun = Instant::now();
        assert!(matches!(answers.ask(open.as_fd()), Err(Error::Deadline { .. })));
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert!(answers.is_down());
        // Nobody asks any more: then it is asked anew.
        answers.state().asking = false;
        answers.ask(open.as_fd()).unwrap();
    }

    #[test]
    fn who_comes_while_it_is_asked_has_the_same_answer() {
        let folder = tempfile::tempdir().unwrap();
        let open = File::open(folder.path()).unwrap();
        let answers = Answers::new("here");
        answers.state().asking = true;
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| answers.ask(open.as_fd()));
            *answers.state() = State { asking: false, last: Some((Instant::now(), true)) };
            answers.asked.notify_all();
            waiting.join().unwrap().unwrap();
        });
    }
}

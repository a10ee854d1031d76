//! Failures on demand, for tests: compiled in only with the feature `faults`.
//!
//! `LONGSHORE_FAULT=WHAT@N` in the driver's environment makes the N-th step (from 1, counted where steps run, in calls
//! only, not while the driver starts) go wrong once:
//! - `crash`: the process is killed (SIGKILL) before the step;
//! - `crash-within`: it is killed a few milliseconds into the step;
//! - `hang`: the step never begins and never ends;
//! - an errno's name (`EIO`, `ENOSPC`, `EBUSY`, `EROFS`): the step fails with it and does nothing.
//!
//! `WHAT%P` makes P of 1000 steps go wrong, by chance.
//!
//! Each step is told on standard error, so that a test sees how many there are, and so is each that goes wrong.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

struct Fault {
    what: String,
    when: When,
}

enum When {
    Step(u64),
    PerMille(u64),
}

impl When {
    fn is(&self, step: u64) -> bool {
        match self {
            When::Step(at) => step == *at,
            // Hashes with random keys, so that no two processes fail at the same steps.
            When::PerMille(share) => RandomState::new().hash_one(step) % 1000 < *share,
        }
    }
}

static FAULT: OnceLock<Option<Fault>> = OnceLock::new();
static STEPS: AtomicU64 = AtomicU64::new(0);

fn fault() -> Option<&'static Fault> {
    FAULT
        .get_or_init(|| {
            let text = std::env::var("LONGSHORE_FAULT").ok()?;
            let (what, when) = match text.split_once('@') {
                Some((what, at)) => (what, When::Step(at.parse().ok()?)),
                None => text.split_once('%').and_then(|(what, share)| Some((what, When::PerMille(share.parse().ok()?))))?,
            };
            Some(Fault { what: what.to_owned(), when })
        })
        .as_ref()
}

/// What becomes of the step that is about to run: an error number to fail with, or nothing.
pub(super) fn before(name: &str, object: &dyn std::fmt::Display) -> Option<io::Error> {
    let fault = fault()?;
    let step = STEPS.fetch_add(1, Ordering::SeqCst) + 1;
    eprintln!("fault: step {step}: {name} {object}");
    if !fault.when.is(step) {
        return None;
    }
    eprintln!("fault: {} at step {step}", fault.what);
    let errno = match fault.what.as_str() {
        "crash" => die(),
        "crash-within" => {
            std::thread::spawn(|| {
                std::thread::park_timeout(Duration::from_millis(4));
                die()
            });
            return None;
        }
        "hang" => loop {
            std::thread::park();
        },
        "EIO" => libc::EIO,
        "ENOSPC" => libc::ENOSPC,
        "EBUSY" => libc::EBUSY,
        "EROFS" => libc::EROFS,
        other => {
            eprintln!("fault: {other:?} is not known");
            return None;
        }
    };
    Some(io::Error::from_raw_os_error(errno))
}

fn die() -> ! {
    kill(Pid::this(), Signal::SIGKILL).ok();
    std::process::abort()
}

//! Failures on demand, for tests: compiled in only with the feature `faults`.
//!
//! `LONGSHORE_FAULT=WHAT@N` in the driver's environment makes the N-th step (from 1, counted where steps run, in calls
//! only, not while the driver starts) go wrong once. With `LONGSHORE_FAULT_FILE=PATH` that file says `ORDER WHAT@N` and is read
//! before each step: when it has changed, steps are counted from 1 again, so that one driver can be failed many times.
//! - `crash`: the process is killed (SIGKILL) before the step;
//! - `crash-within:MICROSECONDS`: it is killed that long after the step began;
//! - `hang`: the step never begins and never ends;
//! - `stop`: a program that the step starts is stopped (SIGSTOP) at once;
//! - `overdue`: the same, and its deadline passes;
//! - an errno's name (`EIO`, `ENOSPC`, `EBUSY`, `EROFS`): the step fails with it and does nothing.
//!
//! Instead of the N-th, `WHAT@N+M` means each M-th from the N-th on, and `WHAT%P` P of 1000, by chance.
//!
//! Each step and each program is printed on standard error, so that a test sees how many there are, how long they take, and which
//! went wrong.

use std::cell::Cell;
use std::fmt::{self, Display};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The deadline of a program that is stopped.
const OVERDUE: Duration = Duration::from_millis(100);

/// The order in force, and how many steps have run since it came.
static ORDER: Mutex<(String, u64)> = Mutex::new((String::new(), 0));

thread_local! {
    /// Whether programs are stopped, and with which deadline instead of their own.
    static STOPPED: Cell<Option<Option<Duration>>> = const { Cell::new(None) };
}

/// What is to happen, and the number of the step that is about to run; `None` where nobody asked for faults.
fn order() -> Option<(String, u64)> {
    let text = match std::env::var_os("LONGSHORE_FAULT_FILE") {
        Some(path) => std::fs::read_to_string(path).ok()?,
        None => std::env::var("LONGSHORE_FAULT").ok()?,
    };
    let mut order = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
    if order.0 != text {
        *order = (text, 0);
    }
    order.1 += 1;
    Some(order.clone())
}

/// Runs a step, unless it is to go wrong.
pub(super) fn run<T, E: From<super::Error>>(
    name: &'static str,
    object: &dyn Display,
    effect: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let Some((text, step)) = order() else { return effect() };
    tell(format_args!("step {step}: {name} {object}"));
    if let Some(what) = text.split_whitespace().last().and_then(|order| due(order, step)) {
        tell(format_args!("{what} at step {step}"));
        if let Some(errno) = happen(what) {
            let source = io::Error::from_raw_os_error(errno);
            return Err(super::Error::Io { action: name, object: object.to_string(), source }.into());
        }
    }
    let begun = Instant::now();
    let result = effect();
    STOPPED.set(None);
    tell(format_args!("step {step} took {} us", begun.elapsed().as_micros()));
    result
}

/// What is to become of this step, if it is one that `order` means.
fn due(order: &str, step: u64) -> Option<&str> {
    let (what, due) = match order.split_once('@') {
        Some((what, at)) => match at.split_once('+') {
            Some((first, every)) => (what, step.checked_sub(first.parse().ok()?)?.checked_rem(every.parse().ok()?)? == 0),
            None => (what, at.parse() == Ok(step)),
        },
        None => {
            let (what, share) = order.split_once('%')?;
            // Hashes with random keys, so that no two processes fail at the same steps.
            (what, RandomState::new().hash_one(step) % 1000 < share.parse().ok()?)
        }
    };
    due.then_some(what)
}

/// The error number to fail with, if it is that.
fn happen(what: &str) -> Option<i32> {
    match what.split_once(':').unwrap_or((what, "")) {
        ("crash", _) => die(),
        ("crash-within", microseconds) => {
            let delay = Duration::from_micros(microseconds.parse().unwrap_or(4000));
            std::thread::spawn(move || {
                let end = Instant::now() + delay;
                while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                    std::thread::park_timeout(left);
                }
                die()
            });
            None
        }
        ("hang", _) => loop {
            std::thread::park();
        },
        ("stop", _) => {
            STOPPED.set(Some(None));
            None
        }
        ("overdue", _) => {
            STOPPED.set(Some(Some(OVERDUE)));
            None
        }
        ("EIO", _) => Some(libc::EIO),
        ("ENOSPC", _) => Some(libc::ENOSPC),
        ("EBUSY", _) => Some(libc::EBUSY),
        ("EROFS", _) => Some(libc::EROFS),
        _ => {
            tell(format_args!("{what:?} is not known"));
            None
        }
    }
}

/// Hears of every program that was started; the deadline that it has instead of its own.
pub(super) fn started(program: &str, pid: u32) -> Option<Duration> {
    order_given().then(|| tell(format_args!("program {program} is {pid}")))?;
    let deadline = STOPPED.get()?;
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP).ok();
    tell(format_args!("program {program} is stopped"));
    deadline
}

/// Hears of every program that came to its end.
pub(super) fn ended(program: &str) {
    if order_given() {
        tell(format_args!("ended {program}"));
    }
}

/// Tells it by one write(2), so that no matter who dies meanwhile leaves a whole line or none.
fn tell(what: fmt::Arguments<'_>) {
    io::stderr().write_all(format!("fault: {what}\n").as_bytes()).ok();
}

fn order_given() -> bool {
    ["LONGSHORE_FAULT_FILE", "LONGSHORE_FAULT"].into_iter().any(|name| std::env::var_os(name).is_some())
}

fn die() -> ! {
    kill(Pid::this(), Signal::SIGKILL).ok();
    std::process::abort()
}

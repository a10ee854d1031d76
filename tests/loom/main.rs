//! The locks under a model checker: `src/ops/lock.rs` itself, over loom's mutex, in every order in which its threads
//! can come to it.
//!
//! What a lock is to protect is a `Volume`: loom's cell, which fails the model where a writer meets anyone, or where
//! what one holder did is not seen by the next.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use longshore::volume::Error;
use loom::cell::UnsafeCell;
use loom::thread;

use lock::{Guard, Key, Locks};

#[allow(dead_code, reason = "the models use a part of it")]
#[path = "../../src/ops/lock.rs"]
mod lock;

/// What lock.rs names as `crate::`.
mod os {
    pub use longshore::os::step;
}
mod volume {
    pub use longshore::volume::{Error, GroupId, Result, SnapshotId, VolumeId};
}
/// What it names as `super::`.
mod sync {
    pub use loom::sync::Mutex;
}

/// A test for each model; the last to end prints how much was tried.
macro_rules! models {
    ($($name:ident)*) => {
        const MODELS: usize = [$(stringify!($name)),*].len();
        $(
            #[test]
            fn $name() {
                check(models::$name);
            }
        )*
    };
}

models! {
    two_exclusives_are_never_at_work_at_once
    sharers_and_an_exclusive_are_never_at_work_together
    a_release_lets_the_next_in
    the_holder_that_is_reported_still_holds
    a_panic_releases
    work_that_outlives_its_caller_keeps_its_lock
    volume_and_target_in_any_order_end_and_leave_nothing
    of_two_groups_in_order_one_wins
}

/// (models, interleavings)
static TRIED: Mutex<(usize, usize)> = Mutex::new((0, 0));

fn check(model: fn()) {
    let interleavings = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = interleavings.clone();
    loom::model(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    let interleavings = interleavings.load(std::sync::atomic::Ordering::Relaxed);
    assert!(interleavings > 1, "a model that has one order only shows nothing");
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    *tried = (tried.0 + 1, tried.1 + interleavings);
    if tried.0 == MODELS {
        println!("FIGURE: loom: {} models, {} interleavings", tried.0, tried.1);
    }
}

fn volume(name: &str) -> Key {
    Key::Volume(format!("image:{name}").parse().expect("a valid id"))
}

/// What only a holder may touch.
struct Volume {
    changes: UnsafeCell<usize>,
}

// What the lock has to make true, and loom checks.
#[allow(unsafe_code, reason = "the cell checks that it is never used at once")]
unsafe impl Sync for Volume {}

#[allow(unsafe_code, reason = "the cell checks that it is never used at once")]
impl Volume {
    fn new() -> Arc<Volume> {
        Arc::new(Volume { changes: UnsafeCell::new(0) })
    }

    /// What an exclusive holder does.
    fn change(&self) {
        self.changes.with_mut(|changes| {
            thread::yield_now();
            unsafe { *changes += 1 }
        });
    }

    /// What a sharer does.
    fn look(&self) -> usize {
        self.changes.with(|changes| {
            thread::yield_now();
            unsafe { *changes }
        })
    }
}

/// Runs the works on threads of their own, the last on this one; what they answer, in order.
fn at_once<T: 'static>(mut works: Vec<Box<dyn FnOnce() -> T + Send>>) -> Vec<T> {
    let last = works.pop().expect("some work");
    let threads: Vec<_> = works.into_iter().map(thread::spawn).collect();
    let last = last();
    let mut answers: Vec<T> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    answers.push(last);
    answers
}

/// Of whom a `Busy` speaks.
fn holder(error: &Error) -> &'static str {
    match error {
        Error::Busy { operation, .. } => operation,
        other => panic!("not busy: {other}"),
    }
}

fn assert_idle(locks: &Locks, keys: &[Key]) {
    assert!(locks.running().is_empty(), "held by nobody: {:?}", locks.running());
    for key in keys {
        drop(locks.exclusive(key.clone(), "afterwards").expect("free"));
    }
}

mod models {
    use super::*;

    pub fn two_exclusives_are_never_at_work_at_once() {
        let (locks, object) = (Locks::default(), Volume::new());
        let work = |operation: &'static str, other: &'static str| -> Box<dyn FnOnce() -> usize + Send> {
            let (locks, object) = (locks.clone(), object.clone());
            Box::new(move || match locks.exclusive(volume("a"), operation) {
                Ok(_guard) => {
                    object.change();
                    1
                }
                Err(busy) => {
                    assert_eq!(holder(&busy), other);
                    0
                }
            })
        };
        let done: usize = at_once(vec![work("stage", "unstage"), work("unstage", "stage")]).iter().sum();
        assert!(done >= 1, "both were turned away");
        let _guard = locks.exclusive(volume("a"), "afterwards").expect("free");
        assert_eq!(object.look(), done, "each has seen what the other did");
    }

    pub fn sharers_and_an_exclusive_are_never_at_work_together() {
        let (locks, object) = (Locks::default(), Volume::new());
        let share = || -> Box<dyn FnOnce() -> bool + Send> {
            let (locks, object) = (locks.clone(), object.clone());
            Box::new(move || match locks.shared(volume("a"), "publish") {
                Ok(_guard) => object.look() <= 1,
                Err(busy) => holder(&busy) == "unstage",
            })
        };
        let alone: Box<dyn FnOnce() -> bool + Send> = {
            let (locks, object) = (locks.clone(), object.clone());
            Box::new(move || match locks.exclusive(volume("a"), "unstage") {
                Ok(_guard) => {
                    object.change();
                    true
                }
                Err(busy) => holder(&busy) == "publish",
            })
        };
        assert_eq!(at_once(vec![share(), share(), alone]), [true; 3]);
        assert_idle(&locks, &[volume("a")]);
    }

    /// Who was turned away comes again once the other has gone, and is never turned away then.
    pub fn a_release_lets_the_next_in() {
        let (locks, object) = (Locks::default(), Volume::new());
        let first = {
            let (locks, object) = (locks.clone(), object.clone());
            thread::spawn(move || {
                let guards: Vec<Guard> = (0..2).map(|_| locks.shared(volume("a"), "publish").expect("shared")).collect();
                assert_eq!(object.look(), 0);
                for guard in guards {
                    drop(guard);
                    thread::yield_now();
                }
            })
        };
        first.join().expect("no panic");
        let next = {
            let (locks, object) = (locks.clone(), object.clone());
            thread::spawn(move || {
                let _guard = locks.exclusive(volume("a"), "unstage").expect("released");
                object.change();
            })
        };
        // Another volume's lock is not in the way, whenever it is taken and released.
        drop(locks.exclusive(volume("b"), "stage").expect("another volume"));
        next.join().expect("no panic");
        let _guard = locks.shared(volume("a"), "publish").expect("released");
        assert_eq!(object.look(), 1);
    }

    /// Of several sharers the first may have left: a `Busy` must not blame it, nor its step.
    pub fn the_holder_that_is_reported_still_holds() {
        let locks = Locks::default();
        let first = locks.shared(volume("a"), "snapshot").expect("free");
        let second = locks.shared(volume("a"), "publish").expect("shared");
        let leaves = thread::spawn(move || drop(first));
        let before = locks.exclusive(volume("a"), "unstage").expect_err("held");
        assert!(["snapshot", "publish"].contains(&holder(&before)));
        leaves.join().expect("no panic");
        let after = locks.exclusive(volume("a"), "unstage").expect_err("held");
        assert_eq!(holder(&after), "publish", "who has left is blamed");
        assert_eq!(locks.running().iter().map(|running| running.operation).collect::<Vec<_>>(), ["publish"]);
        drop(second);
        assert_idle(&locks, &[volume("a")]);
    }

    pub fn a_panic_releases() {
        let (locks, object) = (Locks::default(), Volume::new());
        let fails = {
            let locks = locks.clone();
            thread::spawn(move || {
                let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let _guard = locks.exclusive(volume("a"), "stage");
                    // Without the noise of a panic's message.
                    std::panic::resume_unwind(Box::new("a bug"));
                }));
                assert!(caught.is_err());
            })
        };
        if let Ok(_guard) = locks.exclusive(volume("a"), "unstage") {
            object.change();
        }
        fails.join().expect("caught");
        assert_idle(&locks, &[volume("a")]);
    }

    /// The guard is in the work, not with the handler: who repeats the call meets the work, or what it has done.
    pub fn work_that_outlives_its_caller_keeps_its_lock() {
        let (locks, object) = (Locks::default(), Volume::new());
        let (ready, is_ready) = loom::sync::mpsc::channel();
        let work = {
            let (locks, object) = (locks.clone(), object.clone());
            thread::spawn(move || {
                let _guard = locks.exclusive(volume("a"), "stage").expect("free");
                ready.send(()).expect("the caller is there still");
                object.change();
            })
        };
        is_ready.recv().expect("it works");
        // The caller gives up here, and calls again.
        match locks.exclusive(volume("a"), "stage") {
            Ok(_guard) => assert_eq!(object.look(), 1, "the work was done"),
            Err(busy) => assert_eq!(holder(&busy), "stage"),
        }
        work.join().expect("no panic");
        assert_idle(&locks, &[volume("a")]);
    }

    /// Takes them as the operations do: one after the other, and none is kept where one is not to be had.
    fn take(locks: &Locks, keys: &[Key], operation: &'static str) -> longshore::volume::Result<Vec<Guard>> {
        keys.iter().map(|key| locks.exclusive(key.clone(), operation)).collect()
    }

    pub fn volume_and_target_in_any_order_end_and_leave_nothing() {
        let (locks, object) = (Locks::default(), Volume::new());
        let keys = [volume("a"), Key::target(Path::new("/pods/1/mount"))];
        let work = |keys: Vec<Key>| -> Box<dyn FnOnce() + Send> {
            let (locks, object) = (locks.clone(), object.clone());
            Box::new(move || match take(&locks, &keys, "publish") {
                Ok(_guards) => object.change(),
                Err(busy) => assert_eq!(holder(&busy), "publish"),
            })
        };
        at_once(vec![work(keys.to_vec()), work(keys.iter().rev().cloned().collect())]);
        assert_idle(&locks, &keys);
    }

    pub fn of_two_groups_in_order_one_wins() {
        let (locks, object) = (Locks::default(), Volume::new());
        let work = |names: [&'static str; 2]| -> Box<dyn FnOnce() -> bool + Send> {
            let (locks, object) = (locks.clone(), object.clone());
            Box::new(move || {
                let guards = take(&locks, &names.map(volume), "group snapshot");
                if guards.is_ok() {
                    object.change();
                }
                guards.is_ok()
            })
        };
        let won = at_once(vec![work(["a", "b"]), work(["b", "c"]), work(["a", "b"])]);
        assert!(won.contains(&true), "each was in another's way");
        assert_idle(&locks, &["a", "b", "c"].map(volume));
    }
}

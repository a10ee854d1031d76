//! Mount namespaces for tests, and tests that cannot run here.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Runs `test` on a thread of its own in a mount namespace of its own, from which nothing comes out. What it leaves mounted goes when the
/// thread ends, soon after this returns. `None`, said aloud, without the right to make one.
pub fn in_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> Option<T> {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let inside = || {
        if let Err(errno) = unshare(CloneFlags::CLONE_NEWNS) {
            skipped(&format!("no mount namespace of our own: {errno}"));
            return None;
        }
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("/ made private");
        Some(test())
    };
    let ended = std::thread::scope(|scope| {
        std::thread::Builder::new().name(name).spawn_scoped(scope, inside).expect("a thread starts").join()
    });
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Reports that a test did not run; the test runner counts these lines. They are added to the file LONGSHORE_SKIPPED, if it is set.
pub fn skipped(why: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("SKIPPED: {name}: {why}");
    if let Ok(path) = std::env::var("LONGSHORE_SKIPPED") {
        let mut list = OpenOptions::new().append(true).create(true).open(path).expect("the list of skipped tests");
        writeln!(list, "{name}: {why}").expect("the list of skipped tests");
    }
}

/// A child that is being started has our open files until it runs its program.
static STARTING: RwLock<()> = RwLock::new(());

/// Anyone who starts a program holds this until it runs. A test that ended in a panic meanwhile fails no other.
pub fn starting() -> RwLockWriteGuard<'static, ()> {
    STARTING.write().unwrap_or_else(PoisonError::into_inner)
}

/// For as long as it is there, no program is being started: anyone who has a file open of what is then to be unmounted, or a lock, holds it.
pub fn nobody_starts() -> RwLockReadGuard<'static, ()> {
    STARTING.read().unwrap_or_else(PoisonError::into_inner)
}

/// Whether matrices take a part of their cells (`LONGSHORE_MATRIX=short`).
pub fn is_short() -> bool {
    std::env::var("LONGSHORE_MATRIX").is_ok_and(|value| value == "short")
}

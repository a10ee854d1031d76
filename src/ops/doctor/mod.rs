//! What `longshore doctor` checks of a node or a configuration before trouble.
//!
//! Nothing stays behind: what must be tried is tried with files that have no name. Each check has a deadline, and none waits for
//! another. A check says what it found and, where that is not well, what to do.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::{Duration, Instant};

mod activation;
mod host;
mod places;
mod setup;
mod storage;

pub use crate::backend::{Check, Level};
pub use places::reaches_pods;
pub use setup::Setup;

/// For how long each check is given. A node that starts a hundred pods after its boot is slow, too.
const PATIENCE: Duration = Duration::from_secs(20);

type Work = Box<dyn FnOnce() -> Vec<Check> + Send>;

/// Runs all checks that make sense for this setup; in a fixed order, and never for much longer than one of them may take.
pub fn examine(setup: &Setup) -> Vec<Check> {
    let with = |check: fn(&Setup) -> Vec<Check>| -> Work {
        let setup = setup.clone();
        Box::new(move || check(&setup))
    };
    let mut work: Vec<(&'static str, Work)> = vec![("clock", with(host::clock))];
    if setup.node {
        work.push(("kernel", with(host::kernel)));
        work.push(("permissions", with(host::permissions)));
        work.push(("loop", with(host::loops)));
        work.push(("devices", with(host::devices)));
        work.push(("activation", with(activation::activation)));
        work.extend(setup.node_checks.iter().map(|check| (check.name, Box::new(check.run) as Work)));
        let mut names = BTreeSet::new();
        let needed = host::TOOLS.iter().chain(&setup.tools).filter(|used| names.insert(used.tool.name));
        work.extend(needed.copied().map(|used| ("tool", Box::new(move || vec![host::tool(&used)]) as Work)));
        work.push(("kubelet-dir", with(places::kubelet)));
        work.push(("registration", with(places::registration)));
        work.push((places::PRIVATE_MOUNTS, with(places::private_mounts)));
    }
    work.push(("state-dir", with(places::state)));
    for pool in setup.storage.clone() {
        let setup = setup.clone();
        work.push(("pool", Box::new(move || places::pool(&setup, &pool))));
    }
    for backend in setup.backends.clone() {
        let setup = setup.clone();
        work.push((storage::STORAGE, Box::new(move || storage::storage(&setup, &backend))));
    }
    work.push(("socket", with(places::socket)));
    run(work, PATIENCE)
}

/// Whether a check is of storage, which may be full or away: the driver starts without it, and it must, since it alone unmounts volumes and
/// deletes what fills the storage.
pub fn is_of_storage(check: &Check) -> bool {
    ["state-dir", "pool", "pool-room", "pool-quota", storage::STORAGE].contains(&check.name)
}

fn run(work: Vec<(&'static str, Work)>, patience: Duration) -> Vec<Check> {
    let until = Instant::now() + patience;
    let started: Vec<_> = work
        .into_iter()
        .map(|(name, check)| {
            let (sender, receiver) = mpsc::sync_channel(1);
            // Nobody listens any more to one that was too slow; one that could not be started says nothing, and is reported as that.
            std::thread::Builder::new().name(name.to_owned()).spawn(move || sender.send(check()).ok()).ok();
            (name, receiver)
        })
        .collect();
    let answer = |(name, receiver): (&'static str, mpsc::Receiver<Vec<Check>>)| {
        receiver.recv_timeout(until.saturating_duration_since(Instant::now())).unwrap_or_else(|_| {
            let found = format!("no answer within {}", humantime::format_duration(patience));
            vec![Check::error(name, found, "look for a dead file system or device (`dmesg`, `cat /proc/self/mountinfo`)")]
        })
    };
    started.into_iter().flat_map(answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_gives_no_answer_hides_no_other() {
        let (_hold, held) = mpsc::channel::<()>();
        let stuck: Work = Box::new(move || {
            held.recv().ok();
            Vec::new()
        });
        let work: Vec<(&'static str, Work)> = vec![("stuck", stuck), ("well", Box::new(|| vec![Check::ok("well", "so")]))];
        let begun = Instant::now();
        let checks = run(work, Duration::from_millis(300));
        assert!(begun.elapsed() < Duration::from_secs(20));
        assert_eq!(checks[1], Check::ok("well", "so"));
        assert!(checks[0].name == "stuck" && checks[0].level == Level::Error && checks[0].found.contains("300ms"), "{checks:?}");
    }
}

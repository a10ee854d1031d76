//! Device events.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use udev::{MonitorBuilder, MonitorSocket};

use super::process::poll;
use super::{Error, Result};

/// How long we rely on an event to come before we look for ourselves. Events do not reach everyone: those of udevd stay in its
/// network namespace, and a device node made with mknod makes none.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Waits until the device node is there, on kernel events rather than by polling; at most `deadline`.
///
/// # Errors
/// `Deadline`; `Io` where it cannot be said whether it is there.
pub fn wait_for_node(path: &Path, deadline: Duration) -> Result<()> {
    let until = Instant::now().checked_add(deadline);
    let there = wait_until(until, || match path.metadata() {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(Error::io("look for device", path, error)),
    })?;
    if there {
        return Ok(());
    }
    Err(Error::Deadline { action: "wait for device", object: path.display().to_string(), after: deadline })
}

/// Waits until `seen` says so, looking again whenever something happens to a block device. Answers whether it was seen
/// before the deadline (none: for ever).
pub fn wait_until(until: Option<Instant>, mut seen: impl FnMut() -> Result<bool>) -> Result<bool> {
    // Mostly it is so already, and then nobody needs to listen.
    if seen()? {
        return Ok(true);
    }
    let events = listen();
    loop {
        // After listening began, or what happens in between is missed.
        if seen()? {
            return Ok(true);
        }
        let now = Instant::now();
        if until.is_some_and(|until| until <= now) {
            return Ok(false);
        }
        let slice = now + LOOK_AGAIN;
        let mut fds: Vec<PollFd<'_>> = events.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        poll(&mut fds, Some(until.map_or(slice, |until| until.min(slice))))
            .map_err(|error| Error::io("wait for", "device events", error))?;
        for socket in &events {
            socket.iter().for_each(drop);
        }
    }
}

/// Whether udevd has done all that it does for a new block device; so it is, too, where no udevd is seen to run.
pub fn is_done_with(number: (u32, u32)) -> bool {
    !Path::new("/run/udev/control").exists() || Path::new("/run/udev/data").join(name_of(number)).exists()
}

/// The block devices that [`is_done_with`] answers yes for, by their names in udevd's data; `None` where it does of all.
pub fn done() -> Option<BTreeSet<OsString>> {
    if !Path::new("/run/udev/control").exists() {
        return None;
    }
    Some(std::fs::read_dir("/run/udev/data").into_iter().flatten().flatten().map(|entry| entry.file_name()).collect())
}

fn name_of((major, minor): (u32, u32)) -> String {
    format!("b{major}:{minor}")
}

/// Whether a device was among them.
pub fn was_done_with(done: Option<&BTreeSet<OsString>>, number: (u32, u32)) -> bool {
    done.is_none_or(|done| done.contains(OsStr::new(&name_of(number))))
}

/// Events of the kernel, which come also where no udevd runs, and those of udevd, which come when its links are made.
/// Without any (no netlink for us) there is still [`LOOK_AGAIN`].
fn listen() -> Vec<MonitorSocket> {
    [MonitorBuilder::new_kernel(), MonitorBuilder::new()]
        .into_iter()
        .filter_map(|builder| match builder.and_then(|builder| builder.match_subsystem("block")?.listen()) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::debug!(%error, "no device events");
                None
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_there_is_not_waited_for() {
        wait_for_node(Path::new("/dev/null"), Duration::ZERO).unwrap();
    }

    #[test]
    fn a_node_that_never_comes_is_a_deadline() {
        let begun = Instant::now();
        let error = wait_for_node(Path::new("/dev/null/below/a/file"), Duration::from_millis(250)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(begun.elapsed() >= Duration::from_millis(250));
    }

    #[test]
    fn a_node_that_comes_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait_for_node(&path, Duration::from_secs(30)));
            std::fs::write(&path, "").unwrap();
            waiting.join().unwrap().unwrap();
        });
    }
}

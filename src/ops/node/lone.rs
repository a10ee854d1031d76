//! One process per state directory: its file `lock` is held (flock) by the driver that serves the node, or by `inspect --fix`.
//!
//! The kernel gives it back when the holder ends, however it does.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::os::{self, udev};
use crate::volume::{Error, Result};

const LOCK: &str = "lock";
/// How long what a killed driver left (a child that it was about to start, the driver itself on its way out) may keep the lock.
const ORPHANS: Duration = Duration::from_secs(5);

/// The lock, given back when dropped.
#[derive(Debug)]
pub struct StateDirLock {
    _file: File,
}

/// Where the lock is.
pub fn path(state: &Path) -> PathBuf {
    state.join(LOCK)
}

impl StateDirLock {
    /// Takes the lock of an existing state directory.
    ///
    /// # Errors
    /// `InUse`, naming the process that has it; a failure where the file cannot be made.
    pub fn take(state: &Path) -> Result<StateDirLock> {
        let path = path(state);
        let failed = |error| os::Error::io("open", &path, error);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
        let file = options.open(&path).map_err(failed)?;
        let locked = || match file.try_lock() {
            Ok(()) => Ok(true),
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            Err(std::fs::TryLockError::Error(error)) => Err(os::Error::io("lock", &path, error)),
        };
        if !locked()? {
            let holder = holder(&file);
            // In a container that was started anew we have the number of the one before us.
            let others = |pid: u32| pid != std::process::id() && Path::new("/proc").join(pid.to_string()).exists();
            let lives = holder.is_some_and(others);
            if lives || !udev::wait_until(Instant::now().checked_add(ORPHANS), locked)? {
                let holder = holder.map_or("another process".to_owned(), |pid| format!("process {pid}"));
                return Err(Error::InUse {
                    object: format!("state directory {}", state.display()),
                    by: format!("{holder} serves this node from it; stop that one, or name another directory"),
                });
            }
        }
        // For people only, so that a full disk is no reason to stop.
        if let Err(error) = file.write_all_at(format!("{:10}\n", std::process::id()).as_bytes(), 0) {
            tracing::warn!(path = %path.display(), %error, "the lock is held, but our process id could not be written into it");
        }
        Ok(StateDirLock { _file: file })
    }
}

/// What the last holder wrote.
fn holder(file: &File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_driver_is_refused_with_the_holder() {
        let state = tempfile::tempdir().unwrap();
        let first = StateDirLock::take(state.path()).unwrap();
        let said = std::fs::read_to_string(path(state.path())).unwrap();
        assert_eq!(said.trim(), std::process::id().to_string());
        // A living process that is not this one.
        std::fs::write(path(state.path()), "1\n").unwrap();
        let error = StateDirLock::take(state.path()).unwrap_err();
        assert!(matches!(&error, Error::InUse { by, .. } if by.starts_with("process 1 ")), "{error}");
        drop(first);
        StateDirLock::take(state.path()).unwrap();
    }
}

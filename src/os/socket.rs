//! Whether a process listens on a Unix socket, and who.
#![allow(unsafe_code, reason = "SO_PEERCRED has no safe wrapper that knows a peer of another PID namespace, whose id is 0")]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::deadline::within;
use super::{Error, Result};

/// What is at a socket's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// Nothing.
    None,
    /// A file on which nobody listens any more.
    Dead,
    /// A process listens; its id, where it is in our PID namespace.
    Living(Option<u32>),
}

/// Connects and hangs up again.
///
/// # Errors
/// `Unexpected` where it is no socket; `Deadline` where a living process does not take the connection; `Io`.
pub fn listener(path: &Path, patience: Duration) -> Result<Listener> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Listener::None),
        Err(error) => return Err(Error::io("stat", path, error)),
        Ok(seen) if !seen.file_type().is_socket() => {
            return Err(Error::Unexpected { object: path.display().to_string(), reason: "it is no socket".to_owned() });
        }
        Ok(_) => {}
    }
    let place = path.to_owned();
    match within(patience, move || UnixStream::connect(place).map(|stream| peer(&stream))) {
        None => Err(Error::Deadline { action: "connect to", object: path.display().to_string(), after: patience }),
        Some(Ok(pid)) => Ok(Listener::Living(pid)),
        Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(Listener::Dead),
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(Listener::None),
        Some(Err(error)) => Err(Error::io("connect to", path, error)),
    }
}

/// Who called listen(2).
fn peer(stream: &UnixStream) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes where `peer` is.
    let answer = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut length)
    };
    u32::try_from(peer.pid).ok().filter(|pid| answer == 0 && *pid > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_living_the_dead_and_the_missing_are_distinguished() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let look = || listener(&path, Duration::from_secs(30));
        assert_eq!(look().unwrap(), Listener::None);
        let bound = UnixListener::bind(&path).unwrap();
        assert_eq!(look().unwrap(), Listener::Living(Some(std::process::id())));
        drop(bound);
        // A program that another test starts has it until its exec.
        let dead = || Ok(look()? == Listener::Dead);
        assert!(crate::os::udev::wait_until(Instant::now().checked_add(Duration::from_secs(30)), dead).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(matches!(look(), Err(Error::Unexpected { .. })));
    }
}

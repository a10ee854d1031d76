//! Mounts of NFS shares, by mount.nfs(8): it knows names, versions, security and locks, which the kernel asks of its caller.
//!
//! A server may be dead: what asks it is a program with a deadline, and unmounting ends in any case.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use super::deadline::within;
use super::mountinfo::{Mount, MountTable};
use super::process::{Run, Tool, run_ok};
use super::{Error, Result};
use crate::volume::MountFlags;

pub use super::responsive::{answers, answers_open};

const MOUNT: Tool = Tool { name: "mount.nfs", package: "nfs-common" };
const UMOUNT: Tool = Tool { name: "umount", package: "mount" };

/// How long a server has to let a share be mounted. A first mount of an idle machine takes three seconds.
const MOUNTED_IN: Duration = Duration::from_secs(20);
/// How long a busy server may take for the end of a session.
const UNMOUNTED_IN: Duration = Duration::from_secs(10);
/// How long a server has to take a connection.
const CONNECTED_IN: Duration = Duration::from_secs(3);
/// The port of a server that has no other (nfs(5), `port`).
const PORT: u16 = 2049;

/// The mount of a share that lies at `place`.
///
/// # Errors
/// `Unexpected` where something else does.
pub fn at(table: &MountTable, place: &Path, source: &str) -> Result<Option<Mount>> {
    match table.at(place).as_slice() {
        [] => Ok(None),
        [one] if one.fstype.starts_with("nfs") && one.source == Path::new(source) => Ok(Some((*one).clone())),
        others => {
            let there: Vec<String> = others.iter().map(|mount| mount.source.display().to_string()).collect();
            let reason = format!("{} is mounted there instead of {source}; unmount it", there.join(", "));
            Err(Error::Unexpected { object: place.display().to_string(), reason })
        }
    }
}

/// Mounts `source` (`server:/path`) at `place`, a path of ours; seen to be there on return. One attempt: who asks again is the CO.
///
/// # Errors
/// `Deadline` where the server gave no answer; `Tool` with what the server or the kernel said, but not the options' values.
pub fn mount(source: &str, place: &Path, options: &MountFlags) -> Result<Mount> {
    let words: Vec<&str> = options.expose().iter().map(String::as_str).chain(["retry=0"]).collect();
    let asked = run_mount(source, place, &["-o", &words.join(",")], MOUNTED_IN).map_err(|error| match error {
        Error::Tool { tool, object, status, output } => Error::Tool { tool, object, status, output: options.redact(&output) },
        error => error,
    });
    match (at(&MountTable::read()?, place, source)?, asked) {
        (Some(mount), Ok(_)) => Ok(mount),
        (Some(_), Err(error)) | (None, Err(error)) => Err(error),
        (None, Ok(_)) => {
            Err(Error::Unexpected { object: place.display().to_string(), reason: format!("{source} is not mounted there") })
        }
    }
}

/// Runs mount.nfs.
pub(super) fn run_mount(source: &str, place: &Path, more: &[&str], deadline: Duration) -> Result<()> {
    let place = place.to_str().ok_or_else(|| Error::Path { path: place.to_owned(), reason: "is no text".to_owned() })?;
    let arguments = [source, place].iter().chain(more).map(|&word| word.to_owned()).collect();
    run_ok(Run { tool: MOUNT, arguments, keep: Vec::new(), stdin: Vec::new(), deadline }, source, &[0]).map(drop)
}

/// Unmounts what lies at `place`, whatever its server does: as always, then by force, then by leaving it to the kernel, which ends it
/// when nobody uses it any more. Seen to be gone on return.
///
/// # Errors
/// The last attempt's.
pub fn unmount(place: &Path) -> Result<()> {
    let mut last = None;
    for how in [&[][..], &["--force"], &["--lazy"]] {
        if MountTable::read()?.at(place).is_empty() {
            return Ok(());
        }
        if !how.is_empty() {
            tracing::warn!(path = %place.display(), "the share does not unmount; now {}", how.join(" ").trim_start_matches("--"));
        }
        let mut arguments = vec!["--internal-only".to_owned(), "--no-canonicalize".to_owned()];
        arguments.extend(how.iter().map(|&option| option.to_owned()));
        arguments.push(place.display().to_string());
        let deadline = UNMOUNTED_IN;
        let program = Run { tool: UMOUNT, arguments, keep: Vec::new(), stdin: Vec::new(), deadline };
        last = run_ok(program, &place.display().to_string(), &[0]).err();
    }
    match last {
        Some(error) if !MountTable::read()?.at(place).is_empty() => Err(error),
        _ => Ok(()),
    }
}

/// Whether a server takes connections at all; `port` is that of the option.
pub fn connects(server: &str, port: Option<u16>) -> bool {
    let server = server.trim_start_matches('[').trim_end_matches(']').to_owned();
    let attempt = move || {
        let mut addresses = (server.as_str(), port.unwrap_or(PORT)).to_socket_addrs().into_iter().flatten();
        addresses.any(|address| TcpStream::connect_timeout(&address, CONNECTED_IN).is_ok())
    };
    // Names may be asked of a server of their own.
    within(2 * CONNECTED_IN, attempt).unwrap_or(false)
}

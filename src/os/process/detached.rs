//! Programs that are never killed, since what they change must not be left half done.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::os::memfd;

use super::super::{Error, Result};
use super::command::{Output, Tool};
use super::spawn::start_detached;
use super::wait::how_it_ended;

/// Runs a program to its end, without a limit to its output, and never kills it: it continues after `patience`, and after the end of this
/// process. It has `held` as its standard input: a file with a flock(2), which ends when this process and the program have closed it.
///
/// # Errors
/// `ToolMissing`; `Io` where it could not be started; `Deadline` after `patience`: it still runs.
pub fn run_detached<T: AsFd + Send + 'static>(tool: Tool, arguments: Vec<String>, patience: Duration, held: T) -> Result<Output> {
    let path = tool.find()?;
    let (send, receive) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(tool.name.to_owned()).spawn(move || {
        let output = run(tool, &path, &arguments, held.as_fd());
        drop(held);
        // Nobody waits for it any more.
        if let Err(mpsc::SendError(late)) = send.send(output) {
            report(tool, &arguments, late);
        }
    });
    thread.map_err(|error| Error::io("start a thread for", tool.name, error))?;
    match receive.recv_timeout(patience) {
        Ok(output) => output,
        Err(RecvTimeoutError::Timeout) => Err(Error::Deadline { action: "run", object: tool.name.to_owned(), after: patience }),
        Err(RecvTimeoutError::Disconnected) => {
            Err(Error::Unexpected { object: tool.name.to_owned(), reason: "its thread ended without a result".to_owned() })
        }
    }
}

#[cfg_attr(not(feature = "faults"), allow(unused_variables, reason = "reported to what makes it fail"))]
fn run(tool: Tool, path: &std::path::Path, arguments: &[String], stdin: BorrowedFd<'_>) -> Result<Output> {
    let (stdout, stderr) = (memfd::create("stdout", 0)?, memfd::create("stderr", 0)?);
    let copy =
        |file: BorrowedFd<'_>| file.try_clone_to_owned().map(File::from).map_err(|error| Error::io("duplicate", path, error));
    let mut child = start_detached(path, arguments, [copy(stdin)?, copy(stdout.as_fd())?, copy(stderr.as_fd())?])?;
    let status = child.wait().map_err(|error| Error::io("wait for", path, error))?;
    #[cfg(feature = "faults")]
    crate::os::faults::ended(tool.name);
    let text = |mut file: File| -> Result<String> {
        let mut bytes = Vec::new();
        file.rewind()
            .and_then(|()| file.read_to_end(&mut bytes))
            .map_err(|error| Error::io("read the output of", path, error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Output { status: how_it_ended(status), stdout: text(stdout)?, stderr: text(stderr)? })
}

/// A program that ended after its caller had given up waiting.
fn report(tool: Tool, arguments: &[String], output: Result<Output>) {
    let command = format!("{} {}", tool.name, arguments.first().map_or("", String::as_str));
    match output.and_then(|output| output.accepted(tool.name, &command, &[0])) {
        Ok(_) => tracing::info!(command, "a program that took long has ended"),
        Err(error) => tracing::warn!(command, %error, "a program that took long has failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHELL: Tool = Tool { name: "sh", package: "dash" };

    fn shell(script: &str, patience: Duration, held: impl AsFd + Send + 'static) -> Result<Output> {
        run_detached(SHELL, vec!["-c".to_owned(), script.to_owned()], patience, held)
    }

    #[test]
    fn output_longer_than_a_pipe_is_whole() {
        let held = memfd::create("lock", 0).expect("a file");
        let output =
            shell("head -c 300000 /dev/zero | tr '\\0' x; echo why >&2; exit 3", Duration::from_secs(60), held).expect("it ran");
        assert_eq!((output.status, output.stdout.len(), output.stderr.as_str()), (Ok(3), 300_000, "why\n"));
    }

    #[test]
    fn overdue_program_continues_and_keeps_its_lock() {
        use rustix::fs::{FlockOperation, flock};
        let directory = tempfile::tempdir().expect("a directory");
        let [go, done, lock] = ["go", "done", "lock"].map(|name| directory.path().join(name));
        nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        let held = File::create(&lock).expect("made");
        flock(&held, FlockOperation::LockExclusive).expect("free");
        let script = format!("read line <{}; echo \"$line\" >{}", go.display(), done.display());
        assert!(matches!(shell(&script, Duration::from_millis(20), held), Err(Error::Deadline { .. })));
        let other = File::open(&lock).expect("there");
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err(), "the lock is held while it runs");
        std::fs::write(&go, "written\n").expect("the program reads it");
        flock(&other, FlockOperation::LockExclusive).expect("released at its end");
        assert_eq!(std::fs::read_to_string(&done).expect("written"), "written\n");
    }
}

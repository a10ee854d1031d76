//! What a tool leaves that was killed, at any of its writes.
#![allow(unsafe_code, reason = "what a child does between fork and exec cannot be said in safe Rust")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::testing::{Loop, Mounted, tool};
use crate::os::process::Tool;

/// Runs a tool and kills it before its `number`th write (from 1), as the kernel does when our own process is killed. Answers whether
/// it came so far; otherwise it has ended by itself.
#[expect(clippy::zombie_processes, clippy::disallowed_methods, reason = "waitpid reaps it; what is traced is started as such")]
pub(crate) fn killed_at_write(name: &'static str, arguments: &[&str], number: u64) -> bool {
    let path = Tool { name, package: "one that has it" }.find().unwrap();
    let mut command = Command::new(path);
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: runs in the child between fork and exec, where it makes one system call.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
    let child = command.spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    let writes = [libc::SYS_write, libc::SYS_pwrite64, libc::SYS_writev, libc::SYS_pwritev].map(i64::cast_unsigned);
    let mut seen = 0;
    let mut last = waitpid(pid, None).unwrap();
    ptrace::setoptions(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_EXITKILL).unwrap();
    loop {
        let mut signal = None;
        match last {
            WaitStatus::PtraceSyscall(_) => {
                let call = ptrace::syscall_info(pid).unwrap();
                // SAFETY: at a system call's entry this is the part of the union that the kernel has filled.
                if call.op == libc::PTRACE_SYSCALL_INFO_ENTRY && writes.contains(&unsafe { call.u.entry.nr }) {
                    seen += 1;
                }
                if seen == number {
                    ptrace::kill(pid).unwrap();
                }
            }
            // That of its exec.
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            WaitStatus::Stopped(_, other) => signal = Some(other),
            WaitStatus::Signaled(_, Signal::SIGKILL, _) => return true,
            WaitStatus::Exited(..) => return false,
            other => panic!("{name}: {other:?}"),
        }
        // It may be gone already: that is what the next wait tells.
        ptrace::syscall(pid, signal).ok();
        last = waitpid(pid, None).unwrap();
    }
}

/// The writes of a program at which it is killed: each, or with `LONGSHORE_MATRIX=short` every third.
pub(crate) fn writes() -> impl Iterator<Item = u64> {
    (1..).step_by(if test_support::is_short() { 3 } else { 1 })
}

/// The bytes of an ext4 as a power cut leaves it, with a synced file and one that was deleted while it was open.
pub(crate) fn ext4_interrupted(size: u64) -> Option<Vec<u8>> {
    let under = Loop::new(size)?;
    tool("mkfs.ext4", &["-q", under.name()])?;
    let directory = tempfile::tempdir().unwrap();
    let _mounted = Mounted::new(&under.device, directory.path(), "ext4");
    std::fs::write(directory.path().join("file"), "content").unwrap();
    let deleted = File::create(directory.path().join("deleted")).unwrap();
    deleted.write_all_at(&[1; 100_000], 0).unwrap();
    deleted.sync_all().unwrap();
    std::fs::remove_file(directory.path().join("deleted")).unwrap();
    rustix::fs::syncfs(&deleted).unwrap();
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    under.image.read_exact_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

/// Whether a full check has nothing against it, and the file is there.
pub(crate) fn is_whole_ext4(device: &Loop) -> bool {
    let checked = tool("e2fsck", &["-f", "-n", device.name()]);
    checked.is_some() && tool("debugfs", &["-R", "cat file", device.name()]).as_deref() == Some("content")
}

//! Freezing file systems: what the kernel shows, and that a thaw comes no matter who dies.
#![allow(clippy::unwrap_used, reason = "a test ends so")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use longshore::os;
use longshore::os::freeze::{Frozen, freeze_by, thaw};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

#[path = "../src/os/fs/testing.rs"]
#[allow(dead_code, reason = "shared with the library's own tests")]
mod testing;

use testing::{Scratch, in_namespace};

const LONG: Duration = Duration::from_secs(60);
const SIZE: u64 = 400 << 20;

/// Set for the process that is to be killed: the mount point that it freezes.
const VICTIM: &str = "LONGSHORE_TEST_FREEZE";

mod ioctl {
    nix::ioctl_readwrite!(freeze, b'X', 119, i32);
}

fn freeze(mounts: &[&File], longest: Duration) -> os::Result<Frozen> {
    let mounts: Vec<_> = mounts.iter().map(|mount| mount.as_fd()).collect();
    freeze_by(Path::new(env!("CARGO_BIN_EXE_longshore")), &mounts, longest)
}

/// Freezes in this process. EBUSY if it is frozen.
fn freeze_here(mount: &File) -> nix::Result<i32> {
    let mut unused = 0;
    // SAFETY: the descriptor is open, and the argument is an int, as the request says.
    #[allow(unsafe_code, reason = "FIFREEZE has no safe wrapper")]
    unsafe {
        ioctl::freeze(mount.as_raw_fd(), &raw mut unused)
    }
}

/// As the kernel has it: a second freeze is refused.
fn is_frozen(mount: &File) -> bool {
    match freeze_here(mount) {
        Ok(_) => {
            thaw(mount.as_fd()).unwrap();
            false
        }
        Err(errno) => {
            assert_eq!(errno, nix::Error::EBUSY);
            true
        }
    }
}

/// Thaws at the end, so that a failed test leaves nothing that cannot be unmounted.
struct Thawed<'a>(&'a File);

impl Drop for Thawed<'_> {
    fn drop(&mut self) {
        if let Err(error) = thaw(self.0.as_fd()) {
            eprintln!("{error}");
        }
    }
}

/// Makes a file there in a thread, and says when it is done: not before the thaw.
fn write_to(directory: &Path) -> mpsc::Receiver<()> {
    let path = directory.join("written");
    let (done, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        std::fs::write(path, "x").unwrap();
        done.send(()).unwrap();
    });
    receiver
}

/// Processes that this thread started and has not waited for.
fn children() -> Vec<Pid> {
    let pids = std::fs::read_to_string("/proc/thread-self/children").unwrap();
    pids.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
}

#[test]
fn a_group_is_frozen_until_it_is_thawed() {
    in_namespace(|| {
        let Some(scratches) =
            ["ext4", "xfs", "btrfs"].map(|fstype| Scratch::mounted(fstype, SIZE)).into_iter().collect::<Option<Vec<_>>>()
        else {
            return;
        };
        let directories: Vec<File> = scratches.iter().map(|scratch| File::open(scratch.path()).unwrap()).collect();
        let _thawed: Vec<_> = directories.iter().map(Thawed).collect();
        let frozen = freeze(&directories.iter().collect::<Vec<_>>(), LONG).unwrap();
        assert!(directories.iter().all(is_frozen));
        assert!(directories.iter().all(|directory| frozen.holds(directory.as_fd()).unwrap()));
        let written = write_to(scratches[0].path());
        assert!(written.recv_timeout(Duration::from_millis(200)).is_err(), "a write waits");
        frozen.thaw().unwrap();
        written.recv_timeout(LONG).unwrap();
        assert!(!directories.iter().any(is_frozen));
        assert_eq!(children(), [], "the guard has ended");
    });
}

#[test]
fn a_drop_thaws() {
    in_namespace(|| {
        let Some(scratch) = Scratch::mounted("ext4", SIZE) else { return };
        let directory = File::open(scratch.path()).unwrap();
        let _thawed = Thawed(&directory);
        drop(freeze(&[&directory], LONG).unwrap());
        assert!(!is_frozen(&directory));
    });
}

#[test]
fn all_or_none() {
    in_namespace(|| {
        let (Some(one), Some(other)) = (Scratch::mounted("ext4", SIZE), Scratch::mounted("xfs", SIZE)) else { return };
        let (one, other) = (
            File::open(one.path()).map(|file| (file, one)).unwrap(),
            File::open(other.path()).map(|file| (file, other)).unwrap(),
        );
        let _thawed = (Thawed(&one.0), Thawed(&other.0));
        freeze_here(&other.0).unwrap();
        let error = freeze(&[&one.0, &other.0], LONG).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EBUSY), "{error}");
        assert!(error.to_string().contains(other.1.path().to_str().unwrap()), "{error}");
        assert!(!is_frozen(&one.0));
        assert!(is_frozen(&other.0), "another's freeze is left alone");
    });
}

#[test]
fn one_file_system_twice_counts_once() {
    in_namespace(|| {
        let Some(scratch) = Scratch::mounted("ext4", SIZE) else { return };
        let directory = File::open(scratch.path()).unwrap();
        let again = File::open(scratch.path()).unwrap();
        let _thawed = Thawed(&directory);
        freeze(&[&directory, &again], LONG).unwrap().thaw().unwrap();
        assert!(!is_frozen(&directory));
    });
}

#[test]
fn at_the_deadline_it_thaws_and_says_so() {
    in_namespace(|| {
        let Some(scratch) = Scratch::mounted("xfs", SIZE) else { return };
        let directory = File::open(scratch.path()).unwrap();
        let _thawed = Thawed(&directory);
        let begun = Instant::now();
        let frozen = freeze(&[&directory], Duration::from_millis(300)).unwrap();
        write_to(scratch.path()).recv_timeout(LONG).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(300));
        assert!(!is_frozen(&directory));
        let error = frozen.thaw().unwrap_err().to_string();
        assert!(error.contains("thawed before their time"), "{error}");
    });
}

#[test]
fn thaw_by_another_process_is_noticed() {
    in_namespace(|| {
        let Some(scratch) = Scratch::mounted("ext4", SIZE) else { return };
        let directory = File::open(scratch.path()).unwrap();
        let frozen = freeze(&[&directory], LONG).unwrap();
        thaw(directory.as_fd()).unwrap();
        let error = frozen.thaw().unwrap_err();
        assert!(error.to_string().contains("something else thawed it"), "{error}");
    });
}

#[test]
fn file_system_that_cannot_be_frozen_is_written_out() {
    in_namespace(|| {
        let Some(scratch) = Scratch::tmpfs() else { return };
        let directory = File::open(scratch.path()).unwrap();
        let frozen = freeze(&[&directory], LONG).unwrap();
        assert!(!frozen.holds(directory.as_fd()).unwrap(), "and that is reported");
        frozen.thaw().unwrap();
        thaw(directory.as_fd()).unwrap();
        assert_eq!(children(), []);
    });
}

#[test]
fn signals_that_ask_it_to_end_do_not() {
    in_namespace(|| {
        let Some(scratch) = Scratch::mounted("ext4", SIZE) else { return };
        let directory = File::open(scratch.path()).unwrap();
        let _thawed = Thawed(&directory);
        let frozen = freeze(&[&directory], LONG).unwrap();
        let guards = children();
        assert_eq!(guards.len(), 1);
        assert_eq!(nix::unistd::getpgid(Some(guards[0])).unwrap(), guards[0], "a group of its own");
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            nix::sys::signal::kill(guards[0], signal).unwrap();
        }
        assert!(is_frozen(&directory));
        frozen.thaw().unwrap();
        assert!(!is_frozen(&directory));
    });
}

#[test]
fn a_killed_guard_is_stood_in_for() {
    in_namespace(|| {
        let Some(scratch) = Scratch::mounted("ext4", SIZE) else { return };
        let directory = File::open(scratch.path()).unwrap();
        let _thawed = Thawed(&directory);
        let frozen = freeze(&[&directory], LONG).unwrap();
        let guards = children();
        assert_eq!(guards.len(), 1);
        nix::sys::signal::kill(guards[0], Signal::SIGKILL).unwrap();
        assert!(is_frozen(&directory));
        let error = frozen.thaw().unwrap_err().to_string();
        assert!(error.contains("the guard was killed"), "{error}");
        assert!(!is_frozen(&directory));
    });
}

/// This test is two processes: the second, which the first starts, freezes and is killed.
#[test]
fn when_we_are_killed_it_thaws() {
    if let Some(place) = std::env::var_os(VICTIM) {
        let directory = File::open(place).unwrap();
        let _frozen = freeze(&[&directory], LONG).unwrap();
        println!("frozen");
        loop {
            std::thread::park();
        }
    }
    in_namespace(|| {
        let Some(scratch) = Scratch::mounted("ext4", SIZE) else { return };
        let directory = File::open(scratch.path()).unwrap();
        let _thawed = Thawed(&directory);
        #[allow(clippy::disallowed_methods, reason = "a process to be killed")]
        let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "when_we_are_killed_it_thaws", "--nocapture"])
            .env(VICTIM, scratch.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("frozen")));
        assert!(is_frozen(&directory));
        let written = write_to(scratch.path());
        assert!(written.recv_timeout(Duration::from_millis(200)).is_err(), "a write waits");
        victim.kill().unwrap();
        victim.wait().unwrap();
        written.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(!is_frozen(&directory));
    });
}

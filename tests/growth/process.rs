//! What the kernel knows of the driver's process.

use std::fmt;
use std::fs;
use std::time::Duration;

/// CPU time of all threads that the process has or had, without the programs that it started.
#[allow(unsafe_code, reason = "clock_getcpuclockid and clock_gettime of it have no safe wrapper among our crates")]
pub fn own_cpu(pid: u32) -> Duration {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let pid = libc::pid_t::try_from(pid).expect("a pid");
    // SAFETY: both write to what they are given, which is ours.
    let failed = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) != 0 || libc::clock_gettime(clock, &raw mut time) != 0 };
    assert!(!failed, "the process lives");
    Duration::new(time.tv_sec.try_into().expect("positive"), time.tv_nsec.try_into().expect("below a second"))
}

/// Resident memory in KiB, and threads.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident: u64,
    pub anonymous: u64,
    pub peak: u64,
    pub threads: u64,
}

impl Memory {
    pub fn of(pid: u32) -> Memory {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()).expect("a field");
        let number = |name| field(name).parse().expect("a number");
        Memory { resident: number("VmRSS:"), anonymous: number("RssAnon:"), peak: number("VmHWM:"), threads: number("Threads:") }
    }
}

impl fmt::Display for Memory {
    #[allow(clippy::cast_precision_loss, reason = "for print")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |kib: u64| kib as f64 / 1024.0;
        write!(f, "{:.1} / {:.1}, {}", mib(self.resident), mib(self.anonymous), self.threads)
    }
}

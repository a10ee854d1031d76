//! A process that keeps copies of mounts, as a container with the host's files and without mount propagation does.
#![allow(dead_code, reason = "each test program uses another part of it")]
#![allow(clippy::disallowed_methods, reason = "a process of its own, which is ended on drop")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

/// In a mount namespace of its own, with private copies of all mounts that were there when it began. Ended on drop.
pub struct Holder(Child);

impl Holder {
    /// Begins one, and waits until it has its copies. `starting` is kept while its program is not yet running.
    pub fn new<T>(starting: T) -> Holder {
        let mut command = Command::new("unshare");
        let holder = Holder(command.args(["--mount", "--propagation", "private", "sleep", "600"]).spawn().expect("a process"));
        while !holder.read("comm").starts_with("sleep") {
            std::thread::yield_now();
        }
        drop(starting);
        holder
    }

    /// As errors and `longshore inspect` name it.
    pub fn name(&self) -> String {
        format!("process {} (sleep)", self.0.id())
    }

    pub fn has(&self, place: &Path) -> bool {
        self.read("mountinfo").lines().any(|line| line.split(' ').nth(4) == place.to_str())
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.0.id())).expect("it lives")
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().expect("it lives");
        self.0.wait().expect("reaped");
    }
}

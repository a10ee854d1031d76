//! What the holder of a lock writes into its file, for people: its process id, and the name of its host, which in Kubernetes is its pod's.

use std::fmt;

/// Bytes. Always as many, in place: a full file system must not keep anybody from opening the pool.
const LENGTH: usize = 80;
/// Bytes to read; what an earlier version wrote is shorter.
pub(super) const LONGEST: u64 = LENGTH as u64;
/// An earlier version wrote the process id alone.
const PID_WIDTH: usize = 10;
const HOST_WIDTH: usize = LENGTH - PID_WIDTH - 2;

/// Who wrote it last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockHolder {
    pub pid: Option<u32>,
    pub host: Option<String>,
}

impl LockHolder {
    pub(super) fn this() -> LockHolder {
        LockHolder { pid: Some(std::process::id()), host: Some(this_host()) }
    }

    pub(super) fn parse(text: &[u8]) -> LockHolder {
        let text = String::from_utf8_lossy(text);
        let mut words = text.split_whitespace();
        let pid = words.next().and_then(|word| word.parse().ok());
        LockHolder { pid, host: words.next().map(str::to_owned) }
    }

    pub(super) fn encode(&self) -> String {
        let host: String = self.host.iter().flat_map(|host| host.chars()).take(HOST_WIDTH).collect();
        format!("{:PID_WIDTH$} {host:HOST_WIDTH$}\n", self.pid.unwrap_or(0))
    }

    /// Why this process does not provision, for people.
    pub(super) fn provisions(&self) -> String {
        format!("{self} provisions from it; this one does as soon as that one has ended")
    }

    /// Whether it was a process of this host. An earlier version did not say.
    pub(super) fn is_of_this_host(&self) -> bool {
        self.host.as_ref().is_none_or(|host| *host == this_host())
    }
}

fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.host) {
            (Some(pid), Some(host)) => write!(f, "process {pid} on {host}"),
            (Some(pid), None) => write!(f, "process {pid}"),
            (None, _) => f.write_str("another process"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_has_always_as_many_bytes() {
        let this = LockHolder::this();
        assert_eq!(LockHolder::parse(this.encode().as_bytes()), this);
        let other = LockHolder { pid: Some(7), host: Some("longshore-controller-0".to_owned()) };
        assert_eq!(LockHolder::parse(other.encode().as_bytes()), other);
        for holder in [this, other, LockHolder::default(), LockHolder { pid: Some(u32::MAX), host: Some("a".repeat(253)) }] {
            assert_eq!(holder.encode().len(), LENGTH, "{holder}");
        }
    }

    #[test]
    fn what_an_earlier_version_wrote_is_read() {
        let earlier = LockHolder::parse(b"      1234\n");
        assert_eq!((earlier.to_string(), earlier.is_of_this_host()), ("process 1234".to_owned(), true));
        assert_eq!(LockHolder::parse(b"").to_string(), "another process");
    }
}

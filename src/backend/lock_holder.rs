//! What the holder of a lock writes into its file, for people: its process id, and the name of its host, which in Kubernetes is its pod's.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::time::SystemTime;

use crate::os::{self, locks};

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

    /// From the start of a lock's file.
    pub(super) fn read(file: &mut File) -> io::Result<LockHolder> {
        let mut text = Vec::new();
        file.rewind()?;
        file.take(LONGEST).read_to_end(&mut text)?;
        Ok(LockHolder::parse(&text))
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

/// The record in a lock's file, and whether the lock is seen to be held. The record stays when the lock is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRecord {
    pub holder: LockHolder,
    /// When the lock was acquired.
    pub since: Option<SystemTime>,
    /// The kernel shows the lock. It does not show those of other machines, nor of other PID namespaces.
    pub held: bool,
}

impl LockRecord {
    /// Takes no lock. `None` where there is neither a record nor a lock that can be seen.
    ///
    /// # Errors
    /// Where the file or /proc/locks cannot be read.
    pub fn read(path: &Path) -> os::Result<Option<LockRecord>> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(os::Error::io("open", path, error)),
        };
        let written = LockHolder::read(&mut file).map_err(|error| os::Error::io("read", path, error))?;
        let since = file.metadata().and_then(|seen| seen.modified()).ok();
        let all = locks::read()?;
        Ok(match locks::on(&all, "FLOCK", path)? {
            // The kernel's word, but for a process of another PID namespace.
            Some(held) => {
                let holder = LockHolder { pid: held.pid.filter(|pid| *pid != 0).or(written.pid), ..written };
                Some(LockRecord { holder, since, held: true })
            }
            None if written.pid.is_some() => Some(LockRecord { holder: written, since, held: false }),
            None => None,
        })
    }

    /// Whether the holder may be one that cannot be seen from here.
    pub fn is_of_another_host(&self) -> bool {
        !self.held && !self.holder.is_of_this_host()
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
    fn record_of_a_released_lock_is_distinguished_from_a_lock_that_is_held() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let read = || LockRecord::read(file.path()).expect("readable");
        assert_eq!(read(), None);
        let other = LockHolder { pid: Some(7), host: Some("another-host".to_owned()) };
        std::fs::write(file.path(), other.encode()).expect("written");
        let record = read().expect("a record");
        assert!(record.holder == other && record.is_of_another_host() && record.since.is_some(), "{record:?}");
        file.as_file().lock().expect("free");
        let record = read().expect("held");
        assert_eq!((record.held, record.holder.pid, record.is_of_another_host()), (true, Some(std::process::id()), false));
        file.as_file().unlock().expect("ours");
        std::fs::write(file.path(), LockHolder::this().encode()).expect("written");
        assert!(read().is_some_and(|record| !record.held && !record.is_of_another_host()));
        assert_eq!(LockRecord::read(Path::new("/no/such/lock")).expect("no file is no record"), None);
    }

    #[test]
    fn what_an_earlier_version_wrote_is_read() {
        let earlier = LockHolder::parse(b"      1234\n");
        assert_eq!((earlier.to_string(), earlier.is_of_this_host()), ("process 1234".to_owned(), true));
        assert_eq!(LockHolder::parse(b"").to_string(), "another process");
    }
}

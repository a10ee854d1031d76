//! Who holds which lock, from /proc/locks (proc_locks(5)): looking takes no lock, so it delays no other process.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Error, Result};

const LOCKS: &str = "/proc/locks";

/// One lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// `FLOCK`, `POSIX`, `OFDLCK`.
    pub kind: String,
    /// Who took it; `None` for an open file description's lock, which is no process's.
    pub pid: Option<u32>,
    /// Major and minor of the file system's device.
    device: (u32, u32),
    inode: u64,
}

/// All locks that this process may see: those of processes outside of our PID namespace are not shown.
pub fn read() -> Result<Vec<HeldLock>> {
    let text = std::fs::read_to_string(LOCKS).map_err(|error| Error::io("read", LOCKS, error))?;
    Ok(parse(&text))
}

/// The first lock of `kind` on the file at `path`; `None` also where there is no such file.
///
/// # Errors
/// `Io` where the file cannot be looked at.
pub fn on<'a>(held: &'a [HeldLock], kind: &str, path: &Path) -> Result<Option<&'a HeldLock>> {
    match path.metadata() {
        Ok(seen) => Ok(held.iter().find(|held| held.kind == kind && held.is_on(&seen))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("stat", path, error)),
    }
}

impl HeldLock {
    fn is_on(&self, seen: &Metadata) -> bool {
        let device = (rustix::fs::major(seen.dev()), rustix::fs::minor(seen.dev()));
        // btrfs answers stat(2) with a number of its own making for each subvolume; of those only the major is 0 in both.
        let same = self.device == device || (self.device.0 == 0 && device.0 == 0);
        same && self.inode == seen.ino()
    }
}

/// Lines that are none of these are left out: waiters (`->`), and what later kernels may add.
fn parse(text: &str) -> Vec<HeldLock> {
    text.lines().filter_map(line).collect()
}

/// `1: FLOCK  ADVISORY  WRITE 5437 08:01:131093 0 EOF`
fn line(line: &str) -> Option<HeldLock> {
    let mut fields = line.split_whitespace().skip(1);
    let kind = fields.next()?.to_owned();
    let pid = fields.nth(2)?.parse().ok();
    let mut place = fields.next()?.split(':');
    let mut hexadecimal = || u32::from_str_radix(place.next()?, 16).ok();
    let device = (hexadecimal()?, hexadecimal()?);
    Some(HeldLock { kind, pid, device, inode: place.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_waiters_are_not() {
        let text = "1: FLOCK  ADVISORY  WRITE 5437 08:1f:131093 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 5438 08:1f:131093 0 EOF\n\
                    2: OFDLCK ADVISORY  WRITE -1 00:05:345 0 EOF\nnonsense\n";
        let held = parse(text);
        let lock = |kind: &str, pid, device, inode| HeldLock { kind: kind.to_owned(), pid, device, inode };
        assert_eq!(held, [lock("FLOCK", Some(5437), (8, 31), 131_093), lock("OFDLCK", None, (0, 5), 345)]);
    }

    #[test]
    fn a_lock_of_ours_is_seen() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(on(&read().unwrap(), "FLOCK", file.path()).unwrap(), None);
        file.as_file().lock().unwrap();
        let held = read().unwrap();
        let seen = on(&held, "FLOCK", file.path()).unwrap();
        assert_eq!(seen.and_then(|held| held.pid), Some(std::process::id()));
        assert_eq!(on(&held, "FLOCK", Path::new("/no/such/file")).unwrap(), None);
    }
}

//! What this process takes of the machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{Error, Result};

const STATM: &str = "/proc/self/statm";
const OPEN_FILES: &str = "/proc/self/fd";

/// User and system time of all threads, since the start.
pub fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Since the machine was started, its sleep included: the same for all processes, and for those after us.
pub fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// Bytes that are resident: the second field of /proc/self/statm, in pages (proc(5)).
///
/// # Errors
/// Where proc is not mounted, or says something else.
pub fn resident() -> Result<u64> {
    let text = std::fs::read_to_string(STATM).map_err(|error| Error::io("read", STATM, error))?;
    let pages: Option<u64> = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    let pages = pages.ok_or_else(|| Error::Unexpected { object: STATM.to_owned(), reason: format!("it says {text:?}") })?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Open file descriptors.
///
/// # Errors
/// Where proc is not mounted.
pub fn open_files() -> Result<u64> {
    let entries = std::fs::read_dir(OPEN_FILES).map_err(|error| Error::io("list", OPEN_FILES, error))?;
    // One of them is the list's own.
    Ok((entries.count() as u64).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_with_work() {
        let (files, time) = (open_files().expect("proc"), cpu());
        // Other tests open and close some, too, but not so many.
        let open: Vec<std::fs::File> = (0..500).map(|_| std::fs::File::open("/dev/null").expect("a device")).collect();
        assert!(open_files().expect("proc") >= files + 400);
        drop(open);
        assert!(cpu() > time);
        let held = vec![1_u8; 64 << 20];
        assert!(resident().expect("proc") > 64 << 20, "{}", held.len());
    }
}

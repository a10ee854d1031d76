//! FIFREEZE and FITHAW, with a thaw that comes even if we are killed.
//!
//! A child process (this same binary, `longshore freeze-guard`) inherits descriptors of the mounts, freezes them, says so
//! on its standard output, and thaws them all when its standard input closes: by our will or by our death. It thaws at
//! a deadline too, and then says so.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::Result;

/// File systems held still. Thawed on drop.
#[derive(Debug)]
pub struct Frozen {
    child: std::process::Child,
}

/// Freezes the file systems of these descriptors (of mount points, opened O_RDONLY), all or none, for at most `longest`.
pub fn freeze(mounts: &[BorrowedFd<'_>], longest: Duration) -> Result<Frozen> {
    unimplemented!()
}

impl Frozen {
    /// Thaws, and says whether all was frozen until now (an error if the deadline thawed it earlier).
    pub fn thaw(self) -> Result<()> {
        unimplemented!()
    }
}

/// Thaws one file system if it is frozen; one that is not is fine.
pub fn thaw(mount: BorrowedFd<'_>) -> Result<()> {
    unimplemented!()
}

/// The child's main function: `descriptors` are numbers of inherited descriptors. Answers the exit status.
pub fn guard_main(descriptors: &[i32], longest: Duration) -> i32 {
    unimplemented!()
}

//! Mount namespaces for tests.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Covers `path` by a file system that does not answer: who looks at it waits until this is dropped, and then sees what was there
/// before. `None` where there is no FUSE.
pub(crate) struct Hung<'a> {
    path: &'a Path,
    server: Option<File>,
}

impl<'a> Hung<'a> {
    pub(crate) fn over(path: &'a Path) -> Option<Hung<'a>> {
        let Ok(server) = File::options().read(true).write(true).open("/dev/fuse") else {
            eprintln!("SKIPPED: there is no /dev/fuse");
            return None;
        };
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        nix::mount::mount(Some("hung"), path, Some("fuse"), nix::mount::MsFlags::empty(), Some(options.as_str())).unwrap();
        Some(Hung { path, server: Some(server) })
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        nix::mount::umount2(self.path, nix::mount::MntFlags::MNT_DETACH).unwrap();
        // Anyone who waits for an answer gets an error.
        self.server.take();
    }
}

pub(crate) use test_support::in_namespace as in_own_namespace;

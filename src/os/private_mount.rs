//! NFS mounts that nobody sees: no path leads to them, in no namespace, and they go with this process, however it ends.
//!
//! mount.nfs(8) runs in a mount namespace of its own, made for this and left at once; what is kept is an open descriptor of a
//! detached copy of its mount (open_tree(2), OPEN_TREE_CLONE).

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, OpenTreeFlags, UnmountFlags, mount_change, open_tree, unmount};

use super::{Error, Result, nfs};

/// What comes on top of mount.nfs's own deadline until a caller no longer waits.
const SLACK: Duration = Duration::from_secs(5);

/// Mounts `source` (`server:/path`) with these options; answers its top directory, open for reading. `at` is an existing directory, on
/// which nothing is ever seen.
///
/// # Errors
/// `Tool` with what mount.nfs said; `Deadline`; `ToolMissing`; `Io`.
pub fn mount(source: &str, options: &[String], at: &Path, deadline: Duration) -> Result<OwnedFd> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let (wanted, options, place) = (source.to_owned(), options.join(","), at.to_owned());
    // A namespace is a thread's: this one ends, and its mounts with it.
    std::thread::Builder::new()
        .name("mount".to_owned())
        .spawn(move || sender.send(mount_unseen(&wanted, &options, &place, deadline)))
        .map_err(|error| Error::io("start a thread to mount", source, error))?;
    let late = Error::Deadline { action: "mount", object: source.to_owned(), after: deadline };
    receiver.recv_timeout(deadline + SLACK).unwrap_or(Err(late))
}

fn mount_unseen(source: &str, options: &str, at: &Path, deadline: Duration) -> Result<OwnedFd> {
    enter_namespace(source)?;
    // -n: no line in a table of mounts that others read.
    let mounted = nfs::run_mount(source, at, &["-n", "-o", options], deadline).and_then(|()| detached(at));
    // A daemon that mount.nfs started (rpc.statd) lives on in this namespace, and would hold the mount in it.
    match unmount(at, UnmountFlags::DETACH) {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => tracing::warn!(source, %errno, "a mount that nobody sees stays in its own namespace"),
    }
    mounted
}

/// A mount namespace of this thread's own: what is mounted in it is seen nowhere else, and what is unmounted elsewhere goes from it too.
/// A private copy of a volume's mount would keep its file system in the kernel for as long as mount.nfs runs, or the daemon that it
/// started (mount_namespaces(7)).
fn enter_namespace(source: &str) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| Error::io("leave the mount namespace for", source, errno))?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|errno| Error::io("make a slave of", "/", errno))
}

fn detached(at: &Path) -> Result<OwnedFd> {
    let failed = |action| move |errno| Error::io(action, at, errno);
    let tree = open_tree(CWD, at, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
        .map_err(failed("take out of sight"))?;
    // As open_tree opens it (O_PATH) it could not be listed.
    readable(tree.as_fd(), at)
}

fn readable(tree: impl AsFd, shown: &Path) -> Result<OwnedFd> {
    rustix::fs::openat(tree, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::io("open", PathBuf::from(shown), errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::mountinfo::MountTable;

    #[test]
    fn namespace_keeps_no_unmounted_volume_and_shows_nothing_of_its_own() {
        crate::os::mount::testing::in_own_namespace(|| {
            let directory = tempfile::tempdir().unwrap();
            let [volume, own] = ["volume", "own"].map(|name| directory.path().join(name));
            [&volume, &own].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
            mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC).unwrap();
            let mount =
                |path: &Path| rustix::mount::mount("test", path, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
            let is_mounted = |path: &Path| !MountTable::read().unwrap().at(path).is_empty();
            mount(&volume);
            let (entered, unmounted) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    enter_namespace("test").unwrap();
                    mount(&own);
                    let before = is_mounted(&volume);
                    entered.wait();
                    unmounted.wait();
                    (before, is_mounted(&volume), is_mounted(&own))
                });
                entered.wait();
                assert!(!is_mounted(&own), "seen outside");
                unmount(&volume, UnmountFlags::empty()).unwrap();
                unmounted.wait();
                assert_eq!(thread.join().unwrap(), (true, false, true));
            });
        });
    }

    #[test]
    fn failed_private_mount_names_the_cause_and_leaves_nothing() {
        crate::os::mount::testing::in_own_namespace(|| {
            let directory = tempfile::tempdir().unwrap();
            let options = ["soft".to_owned()];
            match mount("127.0.0.1:/nowhere", &options, directory.path(), Duration::from_secs(20)) {
                Err(Error::ToolMissing { tool, .. }) => assert_eq!(tool, "mount.nfs"),
                Err(Error::Tool { tool, object, .. }) => assert_eq!((tool, object.as_str()), ("mount.nfs", "127.0.0.1:/nowhere")),
                other => panic!("{other:?}"),
            }
            let table = MountTable::read().unwrap();
            assert!(table.iter().all(|mount| !mount.mount_point.starts_with(directory.path())));
        });
    }
}

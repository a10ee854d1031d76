//! Trees are removed flat: a directory found in another is not descended into, but moved up beside the one that is being emptied.
//! So no depth costs anything, nothing needs to be remembered, and a removal that was interrupted continues with what lies there.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::FileType;

use super::{Control, Report};
use crate::os::dir::{Entry, OpenDir};
use crate::os::{Error, Result, subvolume};

/// Entries between two pauses.
const BATCH: usize = 256;
/// Of what cannot be removed in one directory; beyond it, the directory is left for another time.
const MOST_STUCK: usize = 1000;
/// A pause is as long as what came before it took, so that at most half of a server's time is ours; but no longer than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Something that cannot be removed, and why.
#[derive(Debug)]
pub struct Stuck {
    pub path: PathBuf,
    pub error: Error,
}

/// Removes all that is in `trash`, a directory that only we can reach, with pauses. What cannot be removed (immutable files, others'
/// mounts, what is held by an open file) stays and is reported; all else goes.
///
/// # Errors
/// Where `trash` itself cannot be listed.
pub fn empty(trash: &OpenDir, control: &Control) -> Result<Vec<Stuck>> {
    let mut removal =
        Removal { trash, control, stuck: Vec::new(), batch: 0, since: Instant::now(), report: Report::of("remove") };
    removal.clear(trash, |removal, entry| removal.remove_tree(entry))?;
    Ok(removal.stuck)
}

struct Removal<'a> {
    trash: &'a OpenDir,
    control: &'a Control,
    stuck: Vec<Stuck>,
    batch: usize,
    since: Instant,
    report: Report,
}

impl Removal<'_> {
    /// Lets `remove` take away all entries of `directory`, until only those are left that it cannot. Whether none is.
    fn clear(&mut self, directory: &OpenDir, remove: impl Fn(&mut Self, &Entry) -> Result<()>) -> Result<bool> {
        let mut left: BTreeSet<OsString> = BTreeSet::new();
        loop {
            // Listed anew for each batch: a place in a list does not outlive removals everywhere.
            let mut entries = directory.entries(BATCH + left.len())?;
            entries.retain(|entry| !left.contains(&entry.name));
            if entries.is_empty() || left.len() > MOST_STUCK {
                return Ok(left.is_empty());
            }
            for entry in entries {
                if self.control.is_stopped() {
                    return Ok(false);
                }
                if let Err(error) = remove(self, &entry) {
                    let path = directory.path_of(&entry.name);
                    left.insert(entry.name);
                    if self.stuck.len() < MOST_STUCK {
                        self.stuck.push(Stuck { path, error });
                    }
                }
            }
        }
    }

    /// Something that lies in the trash itself.
    fn remove_tree(&mut self, entry: &Entry) -> Result<()> {
        let unlinked = if entry.kind == Some(FileType::Directory) { None } else { self.unlink(self.trash, &entry.name)? };
        if unlinked.is_some() || self.remove_subvolume(self.trash, &entry.name)? {
            return Ok(());
        }
        let opened = match self.trash.directory(&entry.name) {
            // Not for us: a server that squashes root, and a directory closed to all.
            Err(error) if error.errno() == Some(libc::EACCES) => {
                self.trash.set_mode(&entry.name, 0o700)?;
                self.trash.directory(&entry.name)?
            }
            opened => opened?,
        };
        let Some(directory) = opened else { return Ok(()) };
        let all_gone = self.clear(&directory, |removal, entry| removal.take_out(&directory, entry))?;
        if !all_gone {
            return Err(Error::Unexpected {
                object: directory.shown().display().to_string(),
                reason: "not all of it can be removed".to_owned(),
            });
        }
        self.trash.remove_directory(&entry.name)?;
        self.done();
        Ok(())
    }

    /// An entry of a directory that is being emptied: a directory goes up into the trash, anything else away.
    fn take_out(&mut self, directory: &OpenDir, entry: &Entry) -> Result<()> {
        match self.take_out_as_it_is(directory, entry) {
            // Not for us: a server that squashes root, and a directory that is closed, or one that takes no writes.
            Err(error) if error.errno() == Some(libc::EACCES) => {
                directory.set_own_mode(0o700)?;
                if entry.kind == Some(FileType::Directory) {
                    directory.set_mode(&entry.name, 0o700)?;
                }
                self.take_out_as_it_is(directory, entry)
            }
            done => done,
        }
    }

    fn take_out_as_it_is(&mut self, directory: &OpenDir, entry: &Entry) -> Result<()> {
        let unlinked = if entry.kind == Some(FileType::Directory) { None } else { self.unlink(directory, &entry.name)? };
        if unlinked.is_some() {
            return Ok(());
        }
        let moved = directory.rename(&entry.name, self.trash, unused_name());
        match moved {
            Err(error) if error.is_missing() => Ok(()),
            // One that is read-only cannot be moved.
            Err(error) if error.errno() == Some(libc::EROFS) && self.remove_subvolume(directory, &entry.name)? => Ok(()),
            moved => moved,
        }
    }

    /// Whether it was a subvolume of btrfs, which goes at once. What is in one could not be moved up: it is another tree.
    fn remove_subvolume(&mut self, directory: &OpenDir, name: &OsStr) -> Result<bool> {
        if !directory.stat(name)?.is_some_and(|stat| subvolume::is_one(directory, &stat)) {
            return Ok(false);
        }
        subvolume::remove(directory, name)?;
        self.done();
        Ok(true)
    }

    /// `None` where it is a directory.
    fn unlink(&mut self, directory: &OpenDir, name: &OsStr) -> Result<Option<()>> {
        match directory.remove_file(name) {
            Ok(_) => {
                self.done();
                Ok(Some(()))
            }
            Err(error) if error.errno() == Some(libc::EISDIR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn done(&mut self) {
        self.control.did(1, 0);
        self.batch += 1;
        if self.batch >= BATCH {
            self.control.pause(self.since.elapsed().min(LONGEST_PAUSE));
            self.report.tell(self.trash.shown(), self.control);
            self.batch = 0;
            self.since = Instant::now();
        }
    }
}

/// A name that nothing in the trash has: no two calls on one machine at one nanosecond have one number.
fn unused_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("~{now:x}.{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use super::*;

    struct Ground {
        directory: tempfile::TempDir,
        trash: OpenDir,
    }

    fn ground() -> Ground {
        let directory = tempfile::tempdir().unwrap();
        for name in ["trash", "outside", "outside/sub"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        for name in ["outside/file", "outside/sub/file"] {
            std::fs::write(directory.path().join(name), "precious").unwrap();
        }
        let trash = OpenDir::open(&directory.path().join("trash")).unwrap();
        Ground { directory, trash }
    }

    impl Ground {
        fn at(&self, path: &str) -> PathBuf {
            self.directory.path().join(path)
        }

        fn empty(&self) -> Vec<Stuck> {
            empty(&self.trash, &Control::default()).unwrap()
        }

        fn assert_only_the_outside_is_left(&self) {
            assert!(self.trash.entries(1).unwrap().is_empty());
            for name in ["outside/file", "outside/sub/file"] {
                assert_eq!(std::fs::read(self.at(name)).unwrap(), b"precious", "{name}");
            }
        }
    }

    #[test]
    fn links_go_and_what_they_lead_to_stays() {
        let ground = ground();
        std::fs::create_dir_all(ground.at("trash/volume/a/b")).unwrap();
        for (target, link) in [("../../outside", "volume/out"), ("/etc", "volume/a/etc"), ("..", "volume/a/b/up"), ("/", "top")] {
            symlink(target, ground.at("trash").join(link)).unwrap();
        }
        std::fs::hard_link(ground.at("outside/file"), ground.at("trash/volume/hard")).unwrap();
        rustix::fs::mknodat(&ground.trash, "volume/fifo", FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        std::fs::set_permissions(ground.at("trash/volume/a"), std::fs::Permissions::from_mode(0o0)).unwrap();
        assert!(ground.empty().is_empty());
        ground.assert_only_the_outside_is_left();
    }

    #[test]
    fn depth_costs_nothing() {
        let ground = ground();
        let mut deepest = ground.trash.try_clone().unwrap();
        for _ in 0..5_000 {
            deepest = deepest.ensure_directory("d", 0o755).unwrap();
        }
        drop(deepest);
        assert!(ground.empty().is_empty());
        ground.assert_only_the_outside_is_left();
    }

    #[test]
    fn interrupted_removal_is_continued() {
        let ground = ground();
        for directory in 0..20 {
            let path = ground.at(&format!("trash/volume/{directory}/sub"));
            std::fs::create_dir_all(&path).unwrap();
            (0..20).for_each(|file| std::fs::write(path.join(file.to_string()), "x").unwrap());
        }
        let control = Control::default();
        std::thread::scope(|scope| {
            let removal = scope.spawn(|| empty(&ground.trash, &control).unwrap());
            while control.entries() < 50 {
                std::thread::yield_now();
            }
            control.stop();
            removal.join().unwrap();
        });
        assert!(!ground.trash.entries(1).unwrap().is_empty(), "it was not stopped in time: this test would prove nothing");
        ground.empty();
        ground.assert_only_the_outside_is_left();
    }

    #[test]
    fn unremovable_file_is_reported_and_the_rest_removed() {
        crate::os::mount::testing::in_own_namespace(|| {
            let ground = ground();
            std::fs::create_dir_all(ground.at("trash/volume/mounted")).unwrap();
            std::fs::create_dir_all(ground.at("trash/other/directory")).unwrap();
            std::fs::write(ground.at("trash/volume/file"), "x").unwrap();
            let (from, to) = (ground.at("outside"), ground.at("trash/volume/mounted"));
            let none: Option<&str> = None;
            nix::mount::mount(Some(&from), &to, none, nix::mount::MsFlags::MS_BIND, none).unwrap();
            let stuck = ground.empty();
            assert!(stuck.iter().any(|stuck| stuck.path.ends_with("volume/mounted")), "{stuck:?}");
            assert!(!ground.at("trash/volume/file").exists() && !ground.at("trash/other").exists());
            nix::mount::umount(&to).unwrap();
            assert!(ground.empty().is_empty());
            ground.assert_only_the_outside_is_left();
        });
    }

    /// Anyone who has a directory of it open continues renaming, planting and swapping while it is removed.
    #[test]
    fn directory_open_elsewhere_does_not_mislead_the_removal() {
        let ground = ground();
        let inside = ground.at("trash/volume/a");
        std::fs::create_dir_all(&inside).unwrap();
        let open = OpenDir::open(&inside).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // In a directory that is gone all of this fails, as it should.
                    let made = rustix::fs::mkdirat(&open, "dir", rustix::fs::Mode::RWXU).is_ok();
                    rustix::fs::symlinkat(ground.at("outside").as_path(), &open, "link").ok();
                    rustix::fs::renameat_with(&open, "dir", &open, "link", rustix::fs::RenameFlags::EXCHANGE).ok();
                    if made {
                        rustix::fs::symlinkat(Path::new("../../outside/sub"), &open, "dir/deeper").ok();
                    }
                }
            });
            for _ in 0..50 {
                ground.empty();
            }
            over.store(true, Ordering::Relaxed);
        });
        ground.empty();
        ground.assert_only_the_outside_is_left();
    }

    #[test]
    fn twenty_thousand_files() {
        let ground = ground();
        for directory in 0..20 {
            let path = ground.at(&format!("trash/volume/{directory}"));
            std::fs::create_dir_all(&path).unwrap();
            (0..1_000).for_each(|file| drop(std::fs::File::create_new(path.join(file.to_string())).unwrap()));
        }
        let control = Control::default();
        assert!(empty(&ground.trash, &control).unwrap().is_empty());
        assert_eq!(control.entries(), 20_021);
        ground.assert_only_the_outside_is_left();
    }
}

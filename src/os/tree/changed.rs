//! Trees that are looked at: whether one was changed while it was copied, and how much it takes.
//!
//! Each change sets the change time of what it changes: that of a file when it is written, that of a directory when an entry comes or
//! goes. Nobody can set it by hand. So a tree in which nothing has a change time since the copy began was the same all the time.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, StatxFlags, Timestamps};
use rustix::io::Errno;

use super::Control;
use super::attributes::Attributes;
use super::copy::Copied;
use super::walk::{Level, Walk};
use crate::os::dir::OpenDir;
use crate::os::{Error, Result, durable};

/// A part of the kernel's tick, by which times are set.
const CLOCK_PAUSE: Duration = Duration::from_millis(1);

/// A change time, by the clock of the file system: its server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeTime {
    seconds: i64,
    nanos: u32,
}

impl ChangeTime {
    /// The time now, later than that of every change before the call. `own` is a directory of ours in the same file system; its times
    /// are set.
    ///
    /// # Errors
    /// `Io`.
    #[allow(clippy::disallowed_methods, reason = "a clock has no event to wait for, and its tick is milliseconds")]
    pub fn now(own: &OpenDir) -> Result<ChangeTime> {
        let touch = || {
            let now = Timestamps {
                last_access: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
                last_modification: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
            };
            rustix::fs::futimens(own, &now).map_err(|errno| Error::io("set times of", own.shown(), errno))?;
            ChangeTime::of(own, OsStr::new(""))?
                .map_or_else(|| Err(Error::io("stat", own.shown(), Errno::NOENT)), |(time, _)| Ok(time))
        };
        let first = touch()?;
        loop {
            let now = touch()?;
            if now > first {
                return Ok(now);
            }
            thread::sleep(CLOCK_PAUSE);
        }
    }

    #[cfg(test)]
    pub fn later(self, seconds: i64) -> ChangeTime {
        ChangeTime { seconds: self.seconds + seconds, ..self }
    }

    /// When an entry of a directory was changed last; `None` where it is gone.
    ///
    /// # Errors
    /// `Io`.
    pub fn of_entry(directory: &OpenDir, name: &str) -> Result<Option<ChangeTime>> {
        Ok(ChangeTime::of(directory, OsStr::new(name))?.map(|(time, _)| time))
    }

    /// Of an entry, or of the directory itself; asked of the server, whatever this machine remembers. `None` where it is gone.
    fn of(directory: &OpenDir, name: &OsStr) -> Result<Option<(ChangeTime, FileType)>> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_FORCE_SYNC;
        match rustix::fs::statx(directory.as_fd(), name, flags, StatxFlags::CTIME | StatxFlags::TYPE) {
            Ok(seen) => {
                let time = ChangeTime { seconds: seen.stx_ctime.tv_sec, nanos: seen.stx_ctime.tv_nsec };
                Ok(Some((time, FileType::from_raw_mode(seen.stx_mode.into()))))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::io("stat", directory.path_of(name), errno)),
        }
    }
}

/// Something in a tree that was changed since then; `None` where nothing was.
///
/// # Errors
/// `Io`; `Unexpected` where it was stopped.
pub fn changed_since(tree: &OpenDir, since: ChangeTime, control: &Control) -> Result<Option<PathBuf>> {
    look(tree, control, |directory, name| {
        Ok(ChangeTime::of(directory, name)?.filter(|(time, _)| *time < since).map(|(_, kind)| kind))
    })
}

/// Writes out the files of a tree. A store to a page that is mapped and dirty already sets no change time; after this call the first one to
/// each page does; but never on a tmpfs. On NFS nothing is done: there it is the server that sets change times, with each write that it
/// is sent.
///
/// # Errors
/// As [`changed_since`].
pub fn write_back(tree: &OpenDir, control: &Control) -> Result<()> {
    const NFS: i64 = 0x6969;
    if rustix::fs::fstatfs(tree).is_ok_and(|found| found.f_type == NFS) {
        return Ok(());
    }
    let all = look(tree, control, |directory, name| {
        let kind = match name.is_empty() {
            true => Some(FileType::Directory),
            false => directory.stat(name)?.map(|stat| FileType::from_raw_mode(stat.st_mode)),
        };
        if kind == Some(FileType::RegularFile) {
            match directory.open_regular(name) {
                // What comes and goes is seen as a change.
                Err(error) if error.is_missing() => {}
                file => durable::write_back(file?).map_err(|error| Error::io("write back", directory.path_of(name), error))?,
            }
        }
        Ok(Some(kind.unwrap_or(FileType::Unknown)))
    });
    all.map(drop)
}

/// How many entries there are in a tree that does not change, and bytes that are allocated to them.
///
/// # Errors
/// As [`changed_since`].
pub fn contents(tree: &OpenDir, control: &Control) -> Result<Copied> {
    let mut contents = Copied::default();
    look(tree, control, |directory, name| {
        // Each directory is looked at by its name and by itself.
        let stat = if name.is_empty() { None } else { directory.stat(name)? };
        contents.entries += u64::from(stat.is_some());
        contents.bytes += stat.map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or_default() * 512);
        Ok(Some(stat.map_or(FileType::Directory, |stat| FileType::from_raw_mode(stat.st_mode))))
    })?;
    Ok(contents)
}

/// Looks at each entry of a tree by its directory and name, and at each directory with the name "" when all in it was looked at, until `kind`
/// answers with none: that is the path which is returned.
fn look(
    tree: &OpenDir,
    control: &Control,
    mut kind: impl FnMut(&OpenDir, &OsStr) -> Result<Option<FileType>>,
) -> Result<Option<PathBuf>> {
    let attributes = |directory: &OpenDir| Attributes::of(directory).map_err(|errno| Error::io("stat", directory.shown(), errno));
    let mut walk = Walk::new(tree, tree, attributes(tree)?)?;
    let mut directory = tree.try_clone()?;
    loop {
        let mut found = None;
        let mut below = Vec::new();
        let mut result = Ok(());
        directory.each_entry(|entry| {
            match kind(&directory, &entry.name) {
                Ok(Some(FileType::Directory)) => below.push(entry.name),
                Ok(Some(_)) => {}
                Ok(None) => found = Some(directory.path_of(&entry.name)),
                Err(error) => result = Err(error),
            }
            if control.is_stopped() {
                let object = directory.shown().display().to_string();
                result = Err(Error::Unexpected { object, reason: "the copy was stopped".to_owned() });
            }
            found.is_none() && result.is_ok()
        })?;
        result?;
        // Last: an entry that came or went while they were read.
        if kind(&directory, OsStr::new(""))?.is_none() {
            found.get_or_insert_with(|| directory.shown().to_owned());
        }
        if found.is_some() {
            return Ok(found);
        }
        walk.found(below);
        directory = loop {
            match walk.next()? {
                None if walk.vanished() > 0 => return Ok(Some(tree.shown().to_owned())),
                None => return Ok(None),
                Some(Level::Leave { .. }) => {}
                Some(Level::Enter { from, name, .. }) => {
                    let Some(next) = from.directory(&name)? else { return Ok(Some(from.path_of(&name))) };
                    let attributes = attributes(&next)?;
                    walk.enter(name, next.try_clone()?, next.try_clone()?, attributes);
                    break next;
                }
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn directory(path: &Path) -> OpenDir {
        OpenDir::open(path).expect("opens")
    }

    /// A change to a tree, made by path.
    type Change = fn(&Path);

    #[test]
    fn changed_since_finds_each_kind_of_change_and_nothing_else() {
        let scratch = tempfile::tempdir().expect("a directory");
        let own = scratch.path().join("own");
        fs::create_dir(&own).expect("made");
        let changes: [(Change, &str); 6] = [
            (|tree| fs::write(tree.join("a/b/file"), "new").expect("written"), "a/b/file"),
            (|tree| fs::write(tree.join("a/b/more"), "").expect("written"), "a/b"),
            (|tree| fs::remove_file(tree.join("a/b/file")).expect("removed"), "a/b"),
            (|tree| fs::rename(tree.join("a/b/file"), tree.join("top")).expect("moved"), ""),
            (|tree| fs::remove_dir(tree.join("a/empty")).expect("removed"), "a"),
            (|tree| std::os::unix::fs::symlink("x", tree.join("link")).expect("made"), ""),
        ];
        for (number, (change, at)) in changes.into_iter().enumerate() {
            let tree = scratch.path().join(format!("tree-{number}"));
            for name in ["a/b", "a/empty"] {
                fs::create_dir_all(tree.join(name)).expect("made");
            }
            fs::write(tree.join("a/b/file"), "old").expect("written");
            let since = ChangeTime::now(&directory(&own)).expect("a time");
            let changed = || changed_since(&directory(&tree), since, &Control::default()).expect("walked");
            fs::read(tree.join("a/b/file")).expect("read");
            assert_eq!(changed(), None, "read only");
            change(&tree);
            let found = changed().unwrap_or_else(|| panic!("change {number} is not seen"));
            assert!(found.starts_with(tree.join(at)), "{number}: {}", found.display());
        }
    }
}

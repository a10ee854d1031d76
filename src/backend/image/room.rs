//! Room for the leases and the attachment record of a shared pool's volume, so that it can be attached, staged, detached and deleted
//! where the pool's file system is full.
//!
//! Beside the image lie spare files for both. A new file is written over the spare one, in blocks that the file system has allocated
//! already, and then gets its name; the file that it replaces, or that is released, becomes the next spare one. A volume of an earlier
//! version gets them when its record is replaced and its lease released. Without a spare file a new one is made.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::os::{self, Error, random};

use super::files;
use super::layout::{ATTACHED, ATTACHED_BEFORE, ATTACHED_SPARE, LEASE_SPARE};

/// In bytes: a lease takes less, and a record of some twenty nodes.
const LENGTH: usize = 4 << 10;

/// Who may read a lease, which nodes and the controller make as different users.
const ALL: Mode = Mode::from_raw_mode(0o644);
/// Who may read the record.
const OWNER: Mode = Mode::from_raw_mode(0o600);

/// Makes the spare files of a volume that is being made in `directory`; `in_order` as of [`crate::os::durable::commits_in_order`].
pub(super) fn reserve(directory: &Path, in_order: bool) -> os::Result<()> {
    // Such as no file system makes small.
    static CONTENT: OnceLock<String> = OnceLock::new();
    let content = match CONTENT.get() {
        Some(content) => content,
        None => CONTENT.get_or_init({
            let content = random::hexadecimal(LENGTH / 2)?;
            || content
        }),
    };
    [LEASE_SPARE, ATTACHED_SPARE, ATTACHED_BEFORE].iter().try_for_each(|name| {
        let path = directory.join(name);
        let file = files::write_new(&path, content.as_bytes())?;
        // Only then it has blocks.
        if in_order { files::write_back(&file, &path) } else { files::sync(&file, &path) }
    })
}

/// Writes a lease into the file `draft`, synced. It gets its name by link(2).
pub(super) fn draft_lease(directory: &File, draft: &str, content: &[u8]) -> os::Result<()> {
    let spare = links(directory, LEASE_SPARE)?.is_some();
    if spare {
        // Of an earlier attempt; it may be the spare file itself, by another name, and rename(2) does nothing then.
        files::remove_in(directory, draft)?;
        rename(directory, LEASE_SPARE, draft)?;
    }
    let written = write_over(directory, draft, content, ALL);
    if written.is_err() {
        // An empty file has no room for the next one.
        let undone = if spare { give_back(directory, draft) } else { files::remove_in(directory, draft) };
        if let Err(error) = undone {
            tracing::debug!(draft, %error, "a draft of a lease stays");
        }
    }
    written
}

/// The lease that was drafted was not taken: its file is the spare one again.
pub(super) fn give_back(directory: &File, draft: &str) -> os::Result<()> {
    match links(directory, draft)? {
        Some(1) if has_room(directory, draft)? => rename(directory, draft, LEASE_SPARE).map(drop),
        // The answer said otherwise, but it has the lease's name.
        _ => files::remove_in(directory, draft),
    }
}

/// Takes a lease's name away; its file becomes the spare one where there is none. To be synced by the caller.
pub(super) fn release_lease(directory: &File, name: &str) -> os::Result<()> {
    match links(directory, LEASE_SPARE)? {
        None => rename(directory, name, LEASE_SPARE).map(drop),
        // rename(2) does nothing between two names of one file.
        Some(_) => files::remove_in(directory, name),
    }
}

/// Replaces the attachment record as a whole, durably; one writer at a time. The earlier one keeps a name, and with it its room.
pub(super) fn replace_record(directory: &File, path: &Path, content: &[u8]) -> os::Result<()> {
    // After a replacement that was interrupted.
    if links(directory, ATTACHED_SPARE)?.is_none() && links(directory, ATTACHED_BEFORE)? == Some(1) {
        rename(directory, ATTACHED_BEFORE, ATTACHED_SPARE)?;
    }
    write_over(directory, ATTACHED_SPARE, content, OWNER)?;
    // The first one finds a second spare file there.
    if links(directory, ATTACHED)?.is_some() {
        files::remove_in(directory, ATTACHED_BEFORE)?;
        files::link_new(directory, ATTACHED, ATTACHED_BEFORE)?;
    }
    rename(directory, ATTACHED_SPARE, ATTACHED)?;
    files::sync(directory, path)?;
    rename(directory, ATTACHED_BEFORE, ATTACHED_SPARE)?;
    Ok(())
}

/// Writes a file over what a spare one holds. One that has another name, too, is in use by that, and one of another user cannot be opened: a
/// new one is made then, for the user whose directory it is. Nodes are root, and the controller, which deletes the volume, need not be.
fn write_over(directory: &File, name: &str, content: &[u8], mode: Mode) -> os::Result<()> {
    let failed = |action, error| Error::io(action, name, error);
    let open = |more: OFlags| {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(directory, name, flags | more, mode).map(File::from)
    };
    let there = match open(OFlags::empty()) {
        Ok(file) if rustix::fs::fstat(&file).map_err(|error| failed("stat", error))?.st_nlink == 1 => Some(file),
        Ok(_) | Err(Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::LOOP) => None,
        Err(error) => return Err(failed("open", error)),
    };
    let mut file = match there {
        Some(file) => file,
        None => {
            files::remove_in(directory, name)?;
            let file = open(OFlags::CREATE | OFlags::EXCL).map_err(|error| failed("create", error))?;
            rustix::fs::fchmod(&file, mode).map_err(|error| failed("set the mode of", error))?;
            let owner = rustix::fs::fstat(directory).map_err(|error| failed("stat directory of", error))?;
            let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
            if let Err(error) = rustix::fs::fchown(&file, Some(uid), Some(gid)) {
                tracing::debug!(name, %error, "it stays this process's");
            }
            file
        }
    };
    let written = file.write_all(content).and_then(|()| file.set_len(content.len() as u64)).and_then(|()| file.sync_all());
    written.map_err(|error| Error::io("write", name, error))
}

fn has_room(directory: &File, name: &str) -> os::Result<bool> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| Error::io("stat", name, error))?;
    Ok(stat.st_size > 0)
}

/// How many names a file has; `None` where there is none.
#[allow(clippy::useless_conversion, reason = "the field's type differs between architectures")]
fn links(directory: &File, name: &str) -> os::Result<Option<u64>> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(u64::from(stat.st_nlink))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(Error::io("stat", name, error)),
    }
}

/// Whether there was such a file.
fn rename(directory: &File, from: &str, to: &str) -> os::Result<bool> {
    match rustix::fs::renameat(directory.as_fd(), from, directory.as_fd(), to) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(Error::io("rename", from, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const BOTH: [&str; 2] = [ATTACHED_SPARE, ATTACHED];

    fn volume() -> (tempfile::TempDir, File) {
        let directory = tempfile::tempdir().expect("a directory");
        reserve(directory.path(), false).expect("reserved");
        let open = File::open(directory.path()).expect("opened");
        (directory, open)
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names = files::names(directory).expect("listed");
        names.sort();
        names
    }

    /// As a driver leaves it that is killed before each step of a replacement.
    #[test]
    fn interrupted_replacement_of_a_record_is_repeated_in_the_room_that_is_there() {
        for first in [true, false] {
            for steps in 0..5 {
                let (directory, open) = volume();
                let path = directory.path();
                if !first {
                    replace_record(&open, path, b"before").expect("written");
                    assert_eq!(names(path), [BOTH[0], LEASE_SPARE, BOTH[1]]);
                }
                let room = |name: &str| path.join(name).symlink_metadata().expect("a file").ino();
                let rooms = if first { [ATTACHED_BEFORE, ATTACHED_SPARE].map(room) } else { BOTH.map(room) };
                if steps > 0 {
                    write_over(&open, ATTACHED_SPARE, b"lost", OWNER).expect("written");
                }
                if steps > 1 && !first {
                    files::link_new(&open, ATTACHED, ATTACHED_BEFORE).expect("linked");
                }
                if steps > 2 {
                    rename(&open, ATTACHED_SPARE, ATTACHED).expect("renamed");
                }
                if steps > 3 {
                    rename(&open, ATTACHED_BEFORE, ATTACHED_SPARE).expect("renamed");
                }
                for content in [&b"after"[..], b"a longer record after that", b"short"] {
                    replace_record(&open, path, content).expect("written");
                    assert_eq!(std::fs::read(path.join(ATTACHED)).expect("read"), content, "{steps} steps");
                    assert_eq!(names(path), [BOTH[0], LEASE_SPARE, BOTH[1]], "{steps} steps");
                    let mut now = BOTH.map(room);
                    now.sort_unstable();
                    let mut before = rooms;
                    before.sort_unstable();
                    assert_eq!(now, before, "{steps} steps: no other file than those of the beginning");
                }
            }
        }
    }

    #[test]
    fn lease_is_never_written_over_while_it_has_its_name() {
        let (directory, open) = volume();
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).expect("read");
        // Killed after the lease had its name, and before the draft had lost its own.
        draft_lease(&open, "draft", b"one").expect("written");
        assert!(files::link_new(&open, "draft", "lease").expect("linked"));
        draft_lease(&open, "draft", b"two, and longer").expect("written");
        assert_eq!((read("lease").as_str(), read("draft").as_str()), ("one", "two, and longer"));
        give_back(&open, "draft").expect("given back");
        // The storage had linked it, and its answer said otherwise.
        release_lease(&open, "lease").expect("released");
        draft_lease(&open, "draft", b"three").expect("written");
        assert!(files::link_new(&open, "draft", "lease").expect("linked"));
        give_back(&open, "draft").expect("given back");
        draft_lease(&open, "draft", b"four").expect("written");
        assert_eq!(read("lease"), "three");
        give_back(&open, "draft").expect("given back");
        release_lease(&open, "lease").expect("released");
        assert_eq!(names(directory.path()), [ATTACHED_SPARE, ATTACHED_BEFORE, LEASE_SPARE]);
    }
}

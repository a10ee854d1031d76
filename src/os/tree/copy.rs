//! A tree copied with all that makes its files what they are.
//!
//! Kept: data with its holes, owners, modes, times, extended attributes and access control lists where both sides have them, links as
//! they are, hard links within the tree, FIFOs, sockets, device nodes. Data is shared where the file system can (FICLONE; NFS 4.2
//! CLONE), else copied by the kernel or the server (copy_file_range(2)), else by us.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::attributes::{self, Attributes};
use super::walk::{Level, Walk};
use super::{Control, Report};
use crate::os::dir::{Entry, OpenDir};
use crate::os::{Error, Result, copy as data};

/// What is copied between two looks at whether to stop.
const CHUNK: u64 = 64 << 20;
/// What is read or written at once where the kernel does not copy.
const BUFFER: usize = 1 << 20;
/// What is looked at for being all zeroes, and then left a hole.
const BLOCK: usize = 64 << 10;
/// How much of a file may be read to find its data: this, and so many times what is allocated for it. A file of 8 EiB without data takes
/// no space, and would be read for years. Not what is allocated alone: a file system that compresses allocates less than there is.
const SEARCHED: u64 = 1 << 40;
const SEARCHED_PER_ALLOCATED: u64 = 1 << 10;

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub entries: u64,
    /// Sum of the files' sizes, without what is a hole where that is known.
    pub bytes: u64,
    /// Entries that went, or became another kind of thing, or another mount, while they were looked at.
    pub vanished: u64,
    /// Extended attributes that the file system of the copy cannot have.
    pub lost: u64,
}

/// Copies all that is in `from` into the empty directory `to`, and `from`'s own attributes to it. `links` is an empty directory in the file
/// system of `to` for what is linked more than once; it is empty again afterwards. All is synced on return.
///
/// # Errors
/// `Io`; `Unexpected` where it was stopped. `to` and `links` then hold a part: remove them.
pub fn copy(from: &OpenDir, to: &OpenDir, links: &OpenDir, control: &Control) -> Result<Copied> {
    let top = Attributes::of(from).map_err(|errno| Error::io("stat", from.shown(), errno))?;
    let mut copier = Copier {
        control,
        links,
        linked: HashSet::new(),
        done: Copied::default(),
        by_clone: true,
        buffer: Vec::new(),
        report: Report::of("copy"),
    };
    let mut walk = Walk::new(from, to, top)?;
    let below = copier.contents(from, to)?;
    walk.found(below);
    while let Some(step) = walk.next()? {
        match step {
            Level::Enter { from, to, name } => match copier.directory(&from, &to, &name)? {
                Some((from, to, attributes)) => {
                    let below = copier.contents(&from, &to)?;
                    walk.enter(name, from, to, attributes);
                    walk.found(below);
                }
                None => copier.done.vanished += 1,
            },
            Level::Leave { to, attributes } => copier.leave(&to, &attributes)?,
        }
    }
    copier.done.vanished += walk.vanished();
    copier.unlink_anchors()?;
    Ok(copier.done)
}

struct Copier<'a> {
    control: &'a Control,
    links: &'a OpenDir,
    /// Devices and inodes of which there is a copy in `links`.
    linked: HashSet<(u64, u64)>,
    done: Copied,
    /// Until the file system says that it cannot.
    by_clone: bool,
    buffer: Vec<u8>,
    report: Report,
}

/// How often a name is looked at that is there, but was not what it had been said to be.
const TRIES: u32 = 5;

/// Whether this says that something is no longer there as what it was.
fn is_vanished(error: &Error) -> bool {
    matches!(error, Error::Path { .. }) || matches!(error.errno(), Some(libc::ENOENT | libc::ENXIO | libc::ENODEV))
}

impl Copier<'_> {
    /// Copies everything in a directory but the directories in it, which are answered.
    fn contents(&mut self, from: &OpenDir, to: &OpenDir) -> Result<Vec<OsString>> {
        let mut below = Vec::new();
        let mut result = Ok(());
        from.each_entry(|entry| {
            if self.control.is_stopped() {
                result = Err(Error::Unexpected {
                    object: from.shown().display().to_string(),
                    reason: "the copy was stopped".to_owned(),
                });
            } else {
                match self.entry(from, to, &entry) {
                    Ok(true) => below.push(entry.name),
                    Ok(false) => {}
                    Err(error) => result = Err(error),
                }
            }
            result.is_ok()
        })?;
        result.map(|()| below)
    }

    /// Whether it is a directory.
    fn entry(&mut self, from: &OpenDir, to: &OpenDir, entry: &Entry) -> Result<bool> {
        if entry.kind == Some(FileType::Directory) {
            return Ok(true);
        }
        let mut first = None;
        for _ in 0..TRIES {
            let Some(stat) = from.stat(&entry.name)? else {
                self.done.vanished += 1;
                return Ok(false);
            };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let copied = match kind {
                FileType::Directory => return Ok(true),
                FileType::RegularFile => self.file(from, to, &entry.name),
                FileType::Symlink => self.symlink(from, to, &entry.name, &stat),
                _ => self.special(to, &entry.name, kind, &stat),
            };
            match copied {
                Ok(()) => {
                    self.done.entries += 1;
                    self.control.did(1, 0);
                    self.report.tell(from.shown(), self.control);
                    return Ok(false);
                }
                Err(error) if is_vanished(&error) && !still_there(from, &entry.name, kind)? => {
                    self.done.vanished += 1;
                    return Ok(false);
                }
                // It may have been another for a moment, and be itself again.
                Err(error) if is_vanished(&error) => first = first.or(Some(error)),
                Err(error) => return Err(first.unwrap_or(error)),
            }
        }
        first.map_or(Ok(false), Err)
    }

    /// Makes a directory for one that is there; closed to others until it is done.
    fn directory(&mut self, from: &OpenDir, to: &OpenDir, name: &OsStr) -> Result<Option<(OpenDir, OpenDir, Attributes)>> {
        let opened = match from.directory(name) {
            Err(error) if is_vanished(&error) => return Ok(None),
            opened => opened?,
        };
        let Some(source) = opened else { return Ok(None) };
        let attributes = Attributes::of(&source).map_err(|errno| Error::io("stat", source.shown(), errno))?;
        to.make_directory(name, 0o700)?;
        Ok(Some((source, to.existing(name)?, attributes)))
    }

    /// A directory of which all is copied.
    fn leave(&mut self, to: &OpenDir, attributes: &Attributes) -> Result<()> {
        self.done.lost += attributes.give(to).map_err(|errno| Error::io("set attributes of", to.shown(), errno))?;
        self.done.entries += 1;
        self.control.did(1, 0);
        to.sync()
    }

    fn file(&mut self, from: &OpenDir, to: &OpenDir, name: &OsStr) -> Result<()> {
        let source = from.open_regular(name)?;
        let failed = |action: &'static str, error: std::io::Error| Error::io(action, from.path_of(name), error);
        let attributes = Attributes::of(&source).map_err(|errno| failed("stat", errno.into()))?;
        let inode = (attributes.stat.st_dev, attributes.stat.st_ino);
        let many = attributes.stat.st_nlink > 1;
        if many && self.linked.contains(&inode) {
            match rustix::fs::linkat(self.links, anchor(inode), to, name, AtFlags::empty()) {
                Ok(()) => return Ok(()),
                // It has as many links as it can have there.
                Err(Errno::MLINK) => {}
                Err(errno) => return Err(Error::io("link", to.path_of(name), errno)),
            }
        }
        let target = to.open_file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600)?;
        let size = u64::try_from(attributes.stat.st_size).unwrap_or_default();
        self.data(&source, &target, size)?;
        let given = attributes.give(&target).map_err(|errno| Error::io("set attributes of", to.path_of(name), errno))?;
        self.done.lost += given;
        target.sync_all().map_err(|error| Error::io("sync", to.path_of(name), error))?;
        if many && !self.linked.contains(&inode) {
            rustix::fs::linkat(to, name, self.links, anchor(inode), AtFlags::empty())
                .map_err(|errno| Error::io("link", to.path_of(name), errno))?;
            self.linked.insert(inode);
        }
        Ok(())
    }

    fn symlink(&mut self, from: &OpenDir, to: &OpenDir, name: &OsStr, stat: &Stat) -> Result<()> {
        let target = rustix::fs::readlinkat(from, name, Vec::new()).map_err(|errno| match errno {
            // No link any more.
            Errno::INVAL => Error::io("read link", from.path_of(name), Errno::NOENT),
            errno => Error::io("read link", from.path_of(name), errno),
        })?;
        rustix::fs::symlinkat(target, to, name).map_err(|errno| Error::io("make link", to.path_of(name), errno))?;
        attributes::give_by_name(stat, to, name)
    }

    /// A device node does nothing where it lies: anyone who mounts the volume mounts it `nodev`.
    fn special(&mut self, to: &OpenDir, name: &OsStr, kind: FileType, stat: &Stat) -> Result<()> {
        rustix::fs::mknodat(to, name, kind, Mode::RUSR | Mode::WUSR, stat.st_rdev)
            .map_err(|errno| Error::io("make node", to.path_of(name), errno))?;
        attributes::give_by_name(stat, to, name)
    }

    fn data(&mut self, source: &File, target: &File, size: u64) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        let allocated = source.metadata().map_or(size, |meta| meta.blocks().saturating_mul(512));
        if self.by_clone {
            match rustix::fs::ioctl_ficlone(target, source) {
                Ok(()) => {
                    // Not its holes: a file of 8 EiB may take no room at all.
                    self.copied(size.min(allocated));
                    return Ok(());
                }
                Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => self.by_clone = false,
                Err(errno) => return Err(Error::io("clone", name_of(target), errno)),
            }
        }
        target.set_len(size).map_err(|error| Error::io("set size of", name_of(target), error))?;
        let mut end_seen = Ok(None);
        data::data_extents(source, 0, &mut |start, length| {
            // A file system that has holes and does not tell where: NFS before 4.2.
            let holes = length == size && allocated < size;
            if holes && size > searched_at_most(allocated) {
                end_seen = Err(Error::Unexpected {
                    object: name_of(source),
                    reason: format!(
                        "it has {size} bytes with {allocated} allocated, and its file system does not report holes: copying it would \
                         not end in useful time. Mount the share with nfsvers=4.2, or make the file smaller"
                    ),
                });
                return std::ops::ControlFlow::Break(());
            }
            end_seen = self.run(source, target, start..start + length, holes);
            match end_seen {
                Ok(None) => std::ops::ControlFlow::Continue(()),
                _ => std::ops::ControlFlow::Break(()),
            }
        })?;
        // It became shorter while it was copied.
        if let Some(end) = end_seen? {
            target.set_len(end).map_err(|error| Error::io("set size of", name_of(target), error))?;
        }
        Ok(())
    }

    /// Copies a run of data; answers where the file ends if that is amid it.
    fn run(&mut self, source: &File, target: &File, run: std::ops::Range<u64>, holes: bool) -> Result<Option<u64>> {
        let mut at = run.start;
        let mut by_kernel = !holes;
        while at < run.end {
            if self.control.is_stopped() {
                return Err(Error::Unexpected { object: name_of(target), reason: "the copy was stopped".to_owned() });
            }
            let wanted = CHUNK.min(run.end - at);
            let copied = if by_kernel { by_the_kernel(source, target, at, wanted)? } else { None };
            let copied = match copied {
                Some(copied) => copied,
                None => {
                    by_kernel = false;
                    match self.by_hand(source, target, at, wanted)? {
                        0 => return Ok(Some(at)),
                        copied => copied,
                    }
                }
            };
            at += copied;
            self.copied(copied);
        }
        Ok(None)
    }

    /// Reads and writes; what is all zeroes stays the hole that it is in the new file. No bytes: the end of the file.
    fn by_hand(&mut self, source: &File, target: &File, at: u64, wanted: u64) -> Result<u64> {
        self.buffer.resize(BUFFER, 0);
        let length = usize::try_from(wanted).unwrap_or(BUFFER).min(BUFFER);
        let buffer = self.buffer.get_mut(..length).unwrap_or_default();
        let read = source.read_at(buffer, at).map_err(|error| Error::io("read", name_of(source), error))?;
        for (block, number) in buffer.get(..read).unwrap_or_default().chunks(BLOCK).zip(0_u64..) {
            if block.iter().any(|byte| *byte != 0) {
                let place = at + number * BLOCK as u64;
                target.write_all_at(block, place).map_err(|error| Error::io("write", name_of(target), error))?;
            }
        }
        Ok(read as u64)
    }

    fn copied(&mut self, bytes: u64) {
        // Three sparse files of 8 EiB, shared with the copy, are more than 2^64 bytes.
        self.done.bytes = self.done.bytes.saturating_add(bytes);
        self.control.did(0, bytes);
    }

    fn unlink_anchors(&mut self) -> Result<()> {
        self.linked.drain().try_for_each(|inode| self.links.remove_file(anchor(inode)).map(|_| ()))
    }
}

/// How many bytes the kernel copied; `None` where it cannot, or where there may be none.
fn by_the_kernel(source: &File, target: &File, at: u64, wanted: u64) -> Result<Option<u64>> {
    let (mut read_at, mut write_at) = (at, at);
    let length = usize::try_from(wanted).unwrap_or(BUFFER);
    match rustix::fs::copy_file_range(source, Some(&mut read_at), target, Some(&mut write_at), length) {
        // No bytes: the end, or a file system that cannot. A plain read tells which.
        Ok(0) | Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Ok(copied) => Ok(Some(copied as u64)),
        Err(Errno::INTR) => Ok(Some(0)),
        Err(errno) => Err(Error::io("copy to", name_of(target), errno)),
    }
}

fn searched_at_most(allocated: u64) -> u64 {
    allocated.saturating_mul(SEARCHED_PER_ALLOCATED).saturating_add(SEARCHED)
}

fn still_there(directory: &OpenDir, name: &OsStr, kind: FileType) -> Result<bool> {
    Ok(directory.stat(name)?.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind))
}

fn anchor((device, inode): (u64, u64)) -> String {
    format!("{device:x}.{inode:x}")
}

/// For messages.
fn name_of(file: &File) -> String {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(&link).map_or(link, |path| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{Timespec, Timestamps, XattrFlags, utimensat};

    use super::*;
    use crate::os::fs::testing::{Scratch, in_namespace};

    struct Ground {
        path: PathBuf,
    }

    impl Ground {
        fn at(path: &Path) -> Ground {
            for name in ["from", "to", "links", "outside"] {
                std::fs::create_dir(path.join(name)).unwrap();
            }
            std::fs::write(path.join("outside/file"), "secret").unwrap();
            Ground { path: path.to_owned() }
        }

        fn from(&self, name: &str) -> PathBuf {
            self.path.join("from").join(name)
        }

        fn to(&self, name: &str) -> PathBuf {
            self.path.join("to").join(name)
        }

        fn copy(&self) -> Result<Copied> {
            let open = |name: &str| OpenDir::open(&self.path.join(name)).unwrap();
            copy(&open("from"), &open("to"), &open("links"), &Control::default())
        }
    }

    fn set_time(path: &Path, seconds: i64) {
        let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }

    /// An access control list that gives user 7 the right to read: version 2, then tag, rights and id of each entry.
    fn list() -> Vec<u8> {
        let entry = |tag: u16, rights: u16, id: u32| [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat();
        let all = u32::MAX;
        let entries = [entry(1, 6, all), entry(2, 4, 7), entry(4, 4, all), entry(16, 4, all), entry(32, 0, all)];
        [&2_u32.to_le_bytes()[..], &entries.concat()].concat()
    }

    fn extended(path: &Path, name: &str) -> Option<Vec<u8>> {
        let mut value = vec![0; 1000];
        let length = rustix::fs::lgetxattr(path, name, &mut value).ok()?;
        value.truncate(length);
        Some(value)
    }

    /// Everything that a tree can hold; afterwards the copy has it too.
    fn all_of_it(path: &Path, reflink: bool) {
        let ground = Ground::at(path);
        let file = File::create_new(ground.from("sparse")).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(&[7; 1 << 20], 32 << 20).unwrap();
        file.sync_all().unwrap();
        std::fs::create_dir_all(ground.from("a/b")).unwrap();
        std::fs::write(ground.from("a/b/suid"), "runs").unwrap();
        std::fs::hard_link(ground.from("a/b/suid"), ground.from("hard")).unwrap();
        std::fs::hard_link(ground.from("a/b/suid"), ground.from("a/hard")).unwrap();
        rustix::fs::chown(ground.from("a/b/suid"), Some(rustix::fs::Uid::from_raw(1000)), Some(rustix::fs::Gid::from_raw(2000)))
            .unwrap();
        std::fs::set_permissions(ground.from("a/b/suid"), PermissionsExt::from_mode(0o6755)).unwrap();
        symlink(ground.path.join("outside"), ground.from("link")).unwrap();
        std::os::unix::fs::lchown(ground.from("link"), Some(5), Some(6)).unwrap();
        symlink("nowhere", ground.from("a/dangling")).unwrap();
        std::os::unix::net::UnixListener::bind(ground.from("socket")).unwrap();
        let top = OpenDir::open(&ground.path.join("from")).unwrap();
        rustix::fs::mknodat(&top, "fifo", FileType::Fifo, Mode::RUSR, 0).unwrap();
        rustix::fs::mknodat(&top, "null", FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 3)).unwrap();
        std::fs::write(ground.from("listed"), "x").unwrap();
        rustix::fs::setxattr(ground.from("listed"), "system.posix_acl_access", &list(), XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(ground.from("listed"), "user.colour", b"blue", XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(ground.from("a"), "system.posix_acl_default", &list(), XattrFlags::empty()).unwrap();
        std::fs::write(ground.from("a/plain"), "not of the list").unwrap();
        std::fs::set_permissions(ground.from("a"), PermissionsExt::from_mode(0o3751)).unwrap();
        std::fs::write(ground.from("strange \n\\ name"), "").unwrap();
        for (name, seconds) in [("sparse", 1), ("link", 2), ("a/b", 3), ("a", 4), ("fifo", 5), ("a/b/suid", 6), ("", 7)] {
            set_time(&ground.from(name), seconds);
        }

        let copied = ground.copy().unwrap();
        assert_eq!((copied.vanished, copied.lost), (0, 0));
        assert_eq!(copied.entries, 15);
        assert_eq!(std::fs::read_dir(ground.path.join("links")).unwrap().count(), 0);

        let seen = |path: &Path| {
            let meta = path.symlink_metadata().unwrap();
            (
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.len() * u64::from(!meta.is_dir()),
                meta.mtime(),
                meta.mtime_nsec(),
                meta.rdev(),
                meta.nlink(),
            )
        };
        let names = "sparse a a/b a/b/suid hard a/hard link a/dangling socket fifo null listed a/plain"
            .split(' ')
            .chain(["strange \n\\ name", ""]);
        for name in names {
            assert_eq!(seen(&ground.from(name)), seen(&ground.to(name)), "{name}");
            for attribute in ["system.posix_acl_access", "system.posix_acl_default", "user.colour"] {
                assert_eq!(extended(&ground.from(name), attribute), extended(&ground.to(name), attribute), "{name}: {attribute}");
            }
        }
        let inode = |name: &str| ground.to(name).symlink_metadata().unwrap().ino();
        assert_eq!((inode("hard"), inode("a/hard")), (inode("a/b/suid"), inode("a/b/suid")));
        assert_eq!(std::fs::read_link(ground.to("link")).unwrap(), ground.path.join("outside"));
        assert!(ground.to("socket").symlink_metadata().unwrap().file_type().is_socket());
        assert_eq!(std::fs::read(ground.to("sparse")).unwrap(), std::fs::read(ground.from("sparse")).unwrap());
        assert!(ground.to("sparse").metadata().unwrap().blocks() * 512 <= 2 << 20, "holes are kept");
        if reflink {
            let (base, target) = (File::open(ground.from("sparse")).unwrap(), File::open(ground.to("sparse")).unwrap());
            assert_eq!(base.metadata().unwrap().blocks(), target.metadata().unwrap().blocks());
        }
    }

    #[test]
    fn a_copy_has_all_that_the_tree_has() {
        in_namespace(|| {
            for fstype in ["ext4", "xfs"] {
                let Some(scratch) = Scratch::mounted(fstype, 400 << 20) else { return };
                all_of_it(scratch.path(), fstype == "xfs");
            }
        });
    }

    #[test]
    fn depth_and_breadth_cost_no_stack_and_no_descriptors() {
        let directory = tempfile::tempdir().unwrap();
        let ground = Ground::at(directory.path());
        let mut deepest = OpenDir::open(&ground.from("")).unwrap();
        for level in 0..5_000_u32 {
            // Something is left to be done on the way up, too.
            if level % 100 == 0 {
                deepest.make_directory("beside", 0o755).unwrap();
                deepest.write("file", level.to_string().as_bytes()).unwrap();
            }
            deepest = deepest.ensure_directory("d", 0o755).unwrap();
        }
        let copied = ground.copy().unwrap();
        assert_eq!((copied.entries, copied.vanished), (5_101, 0));
        let deep: PathBuf = std::iter::repeat_n("d", 4_900).collect();
        let reached = OpenDir::open(&ground.to("")).unwrap().existing(deep).unwrap();
        assert_eq!(reached.read("file", 9).unwrap().as_deref(), Some(&b"4900"[..]));
        // Too deep for those who would remove it by its path.
        crate::os::tree::empty(&OpenDir::open(&ground.to("")).unwrap(), &Control::default()).unwrap();
        crate::os::tree::empty(&OpenDir::open(&ground.from("")).unwrap(), &Control::default()).unwrap();
    }

    #[test]
    fn it_ends_when_it_is_asked_to() {
        let directory = tempfile::tempdir().unwrap();
        let ground = Ground::at(directory.path());
        std::fs::write(ground.from("file"), "x").unwrap();
        let control = Control::default();
        control.stop();
        let open = |name: &str| OpenDir::open(&directory.path().join(name)).unwrap();
        copy(&open("from"), &open("to"), &open("links"), &control).unwrap_err();
    }

    /// Anyone who owns the files continues renaming, planting, cutting and swapping while they are copied.
    #[test]
    fn copy_of_a_tree_in_use_takes_nothing_from_outside() {
        let directory = tempfile::tempdir().unwrap();
        let ground = Ground::at(directory.path());
        for name in ["dir", "dir/sub", "other"] {
            std::fs::create_dir(ground.from(name)).unwrap();
            std::fs::write(ground.from(name).join("file"), vec![1; 300_000]).unwrap();
        }
        symlink(directory.path().join("outside"), ground.from("link")).unwrap();
        symlink(directory.path().join("outside/file"), ground.from("dir/file-link")).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let top = OpenDir::open(&ground.from("")).unwrap();
                let exchange = |a: &str, b: &str| {
                    rustix::fs::renameat_with(&top, a, &top, b, rustix::fs::RenameFlags::EXCHANGE).ok();
                };
                while !over.load(Ordering::Relaxed) {
                    exchange("dir", "link");
                    exchange("dir/file", "dir/file-link");
                    exchange("dir", "link");
                    exchange("dir/sub", "other");
                    // Cut and grown.
                    std::fs::write(ground.from("other/file"), "short").ok();
                    std::fs::write(ground.from("other/file"), vec![2; 500_000]).ok();
                    std::fs::remove_file(ground.from("dir/sub/gone")).ok();
                    std::fs::write(ground.from("dir/sub/gone"), "").ok();
                }
            });
            for round in 0..40 {
                for name in ["to", "links"] {
                    std::fs::rename(directory.path().join(name), directory.path().join(format!("{name}{round}"))).unwrap();
                    std::fs::create_dir(directory.path().join(name)).unwrap();
                }
                ground.copy().unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        let mut files = 0;
        let mut directories = vec![directory.path().to_owned()];
        while let Some(path) = directories.pop() {
            for entry in std::fs::read_dir(path).unwrap().map(std::result::Result::unwrap) {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() && entry.file_name() != "outside" {
                    directories.push(entry.path());
                } else if kind.is_file() {
                    files += 1;
                    let content = std::fs::read(entry.path()).unwrap();
                    assert!(!content.starts_with(b"secret"), "{} came from outside", entry.path().display());
                }
            }
        }
        assert!(files > 40, "{files}");
        assert_eq!(std::fs::read(directory.path().join("outside/file")).unwrap(), b"secret");
    }
}

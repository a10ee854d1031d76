//! A file system that several machines share, as each of them sees it: a FUSE mount that passes every request on to one directory.
//!
//! Each mount has a device number of its own, so that the kernel, of which there is only one here, takes the same file for another
//! on each machine, as it is with a real cluster file system; and each can be interrupted from its storage.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{CWD, Mode, OFlags};

/// One machine's view of the storage; unmounted when dropped.
pub struct Share {
    cut: Arc<AtomicBool>,
    _session: BackgroundSession,
}

impl Share {
    /// Shows `storage` at `place`.
    pub fn mount(storage: &Path, place: &Path) -> Share {
        let cut = Arc::new(AtomicBool::new(false));
        let root = path_only(storage).expect("the storage");
        let inodes = Mutex::new(HashMap::from([(INodeNo::ROOT.0, (root, 1))]));
        let view = View { cut: Arc::clone(&cut), inodes, files: Mutex::default(), next: AtomicU64::new(1) };
        let session = fuser::spawn_mount(view, place, &Config::default()).expect("FUSE");
        Share { cut, _session: session }
    }

    /// Whether every request for data or names fails from now on. Attributes of what is open are reported, as from a cache: the kernel that both
    /// machines have asks each loop device for its file's, no matter whose it is.
    pub fn isolate(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    pub fn is_interrupted(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }
}

struct View {
    cut: Arc<AtomicBool>,
    /// What the kernel knows, by inode number, with how often it looked it up.
    inodes: Mutex<HashMap<u64, (OwnedFd, u64)>>,
    files: Mutex<HashMap<u64, Arc<File>>>,
    next: AtomicU64,
}

fn path_only(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Nothing of it is cached: another machine may change it.
const TTL: Duration = Duration::ZERO;

impl View {
    fn path(&self, inode: INodeNo) -> io::Result<PathBuf> {
        if self.cut.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.known(inode)
    }

    fn known(&self, inode: INodeNo) -> io::Result<PathBuf> {
        let inodes = self.inodes.lock().expect("not poisoned");
        let (descriptor, _) = inodes.get(&inode.0).ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))?;
        Ok(PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd())))
    }

    fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        if self.cut.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let files = self.files.lock().expect("not poisoned");
        files.get(&handle.0).cloned().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Follows the magic link, and no other.
    fn attributes(&self, inode: INodeNo) -> io::Result<FileAttr> {
        Ok(FileAttr { ino: inode, ..attributes(&fs::metadata(self.known(inode)?)?) })
    }

    fn found(&self, path: &Path) -> io::Result<FileAttr> {
        let descriptor = path_only(path)?;
        let attributes = attributes(&fs::metadata(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?);
        let mut inodes = self.inodes.lock().expect("not poisoned");
        inodes.entry(attributes.ino.0).or_insert((descriptor, 0)).1 += 1;
        Ok(attributes)
    }

    fn keep(&self, file: File) -> FileHandle {
        let handle = self.next.fetch_add(1, Ordering::SeqCst);
        self.files.lock().expect("not poisoned").insert(handle, Arc::new(file));
        FileHandle(handle)
    }
}

fn attributes(metadata: &Metadata) -> FileAttr {
    let time = |seconds: i64, nanos: i64| {
        SystemTime::UNIX_EPOCH + Duration::new(seconds.try_into().unwrap_or(0), nanos.try_into().unwrap_or(0))
    };
    let kind = match metadata.file_type() {
        kind if kind.is_dir() => FileType::Directory,
        kind if kind.is_symlink() => FileType::Symlink,
        kind if kind.is_fifo() => FileType::NamedPipe,
        _ => FileType::RegularFile,
    };
    FileAttr {
        ino: INodeNo(metadata.ino()),
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        crtime: SystemTime::UNIX_EPOCH,
        kind,
        perm: u16::try_from(metadata.mode() & 0o7777).expect("12 bits"),
        nlink: u32::try_from(metadata.nlink()).expect("few"),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// Answers with what was found, or with the error.
macro_rules! answer {
    ($reply:ident, $result:expr, $found:ident => $good:expr) => {
        let result = || -> io::Result<_> { $result };
        match result() {
            Ok($found) => $good,
            Err(error) => $reply.error(Errno::from(error)),
        }
    };
}

impl Filesystem for View {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer!(reply, self.found(&self.path(parent)?.join(name)), found => reply.entry(&TTL, &found, Generation(0)));
    }

    fn forget(&self, _: &Request, inode: INodeNo, count: u64) {
        let mut inodes = self.inodes.lock().expect("not poisoned");
        if let Some((_, known)) = inodes.get_mut(&inode.0).filter(|_| inode != INodeNo::ROOT) {
            *known = known.saturating_sub(count);
            if *known == 0 {
                inodes.remove(&inode.0);
            }
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.attributes(inode), found => reply.attr(&TTL, &found));
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = || {
            let path = self.path(inode)?;
            if let Some(size) = size {
                File::options().write(true).open(&path)?.set_len(size)?;
            }
            if let Some(mode) = mode {
                fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
            }
            self.attributes(inode)
        };
        answer!(reply, set(), found => reply.attr(&TTL, &found));
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let make = || {
            let path = self.path(parent)?.join(name);
            fs::DirBuilder::new().mode(mode).create(&path)?;
            self.found(&path)
        };
        answer!(reply, make(), found => reply.entry(&TTL, &found, Generation(0)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, fs::remove_file(self.path(parent)?.join(name)), done => {
            let () = done;
            reply.ok();
        });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer!(reply, fs::remove_dir(self.path(parent)?.join(name)), done => {
            let () = done;
            reply.ok();
        });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || {
            let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
            Ok(rustix::fs::renameat_with(CWD, self.path(parent)?.join(name), CWD, self.path(to)?.join(new), flags)?)
        };
        answer!(reply, rename(), done => {
            let () = done;
            reply.ok();
        });
    }

    fn link(&self, _: &Request, inode: INodeNo, to: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let link = || {
            let new = self.path(to)?.join(name);
            rustix::fs::linkat(CWD, self.path(inode)?, CWD, &new, rustix::fs::AtFlags::SYMLINK_FOLLOW)?;
            self.found(&new)
        };
        answer!(reply, link(), found => reply.entry(&TTL, &found, Generation(0)));
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let open = || {
            let flags = OFlags::from_bits_retain(flags.0.cast_unsigned()) & (OFlags::RWMODE | OFlags::TRUNC);
            let file = rustix::fs::open(self.path(inode)?, flags | OFlags::CLOEXEC, Mode::empty())?;
            Ok(self.keep(file.into()))
        };
        answer!(reply, open(), handle => reply.opened(handle, FopenFlags::empty()));
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, flags: i32, reply: ReplyCreate) {
        let create = || {
            let path = self.path(parent)?.join(name);
            let exclusive = flags & libc::O_EXCL != 0;
            let mut options = File::options();
            options.read(true).write(true).create(!exclusive).create_new(exclusive).truncate(flags & libc::O_TRUNC != 0);
            let file = options.mode(mode).open(&path)?;
            Ok((self.found(&path)?, self.keep(file)))
        };
        answer!(reply, create(), made => reply.created(&TTL, &made.0, Generation(0), made.1, FopenFlags::empty()));
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.files.lock().expect("not poisoned").remove(&handle.0);
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = || {
            let (file, mut bytes) = (self.file(handle)?, vec![0; size as usize]);
            let mut length = 0;
            loop {
                match file.read_at(&mut bytes[length..], offset + length as u64)? {
                    0 => break,
                    more => length += more,
                }
            }
            bytes.truncate(length);
            Ok(bytes)
        };
        answer!(reply, read(), bytes => reply.data(&bytes));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        answer!(reply, self.file(handle)?.write_all_at(data, offset), done => {
            let () = done;
            reply.written(u32::try_from(data.len()).expect("small"));
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        answer!(reply, self.file(handle)?.sync_all(), done => {
            let () = done;
            reply.ok();
        });
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer!(reply, File::open(self.path(inode)?)?.sync_all(), done => {
            let () = done;
            reply.ok();
        });
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let list = || {
            let mut entries = fs::read_dir(self.path(inode)?)?.collect::<io::Result<Vec<_>>>()?;
            entries.sort_by_key(fs::DirEntry::file_name);
            entries.iter().map(|entry| Ok((entry.file_name(), attributes(&entry.metadata()?)))).collect::<io::Result<Vec<_>>>()
        };
        answer!(reply, list(), entries => {
            for (number, (name, found)) in (1..).zip(entries).filter(|(number, _)| *number > offset) {
                if reply.add(found.ino, number, found.kind, name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let usage = || Ok(rustix::fs::statvfs(self.path(INodeNo::ROOT)?)?);
        let small = |number: u64| u32::try_from(number).unwrap_or(4096);
        answer!(reply, usage(), found => reply.statfs(
            found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree, small(found.f_bsize), 255, small(found.f_frsize)
        ));
    }

    fn fallocate(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        let allocate = || {
            let mode = rustix::fs::FallocateFlags::from_bits_retain(mode.cast_unsigned());
            Ok(rustix::fs::fallocate(&*self.file(handle)?, mode, offset, length)?)
        };
        answer!(reply, allocate(), done => {
            let () = done;
            reply.ok();
        });
    }

    fn lseek(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let seek = || {
            let from = match whence {
                libc::SEEK_DATA => rustix::fs::SeekFrom::Data(offset.cast_unsigned()),
                libc::SEEK_HOLE => rustix::fs::SeekFrom::Hole(offset.cast_unsigned()),
                _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
            };
            Ok(rustix::fs::seek(&*self.file(handle)?, from)?)
        };
        answer!(reply, seek(), at => reply.offset(at.cast_signed()));
    }
}

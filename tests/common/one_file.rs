//! One file over FUSE, whose reads and writes a test decides about. The kernel caches none of it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use nix::mount::{MntFlags, umount2};

/// What it is called below the mount point.
pub const NAME: &str = "file";
const FILE: INodeNo = INodeNo(2);

/// What is behind the file; offsets and sizes in bytes. An error of it is EIO to the reader or writer.
pub trait Storage: Send + Sync + 'static {
    fn size(&self) -> u64;
    /// At most `size` bytes; fewer at the end.
    fn read(&self, offset: u64, size: usize) -> io::Result<Vec<u8>>;
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// An fsync of the file, as by a flush of a loop device over it.
    fn sync(&self) {}
}

/// The file, served at its mount point.
pub struct Served {
    session: BackgroundSession,
    point: PathBuf,
}

/// Serves the file at this mount point until `end`.
pub fn serve(storage: impl Storage, point: &Path) -> Served {
    let session = fuser::spawn_mount(OneFile(storage), point, &fuser::Config::default()).expect("FUSE");
    Served { session, point: point.to_owned() }
}

impl Served {
    /// Unmounts the file, and waits until nobody has it open. The kernel closes the file of a loop device a moment after it is
    /// unbound, in whichever process looked at it last.
    pub fn end(self) {
        umount2(&self.point, MntFlags::MNT_DETACH).expect("the end of FUSE");
        self.session.join().expect("the end of FUSE");
    }
}

struct OneFile<S>(S);

impl<S: Storage> OneFile<S> {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let (kind, size) = if inode == FILE { (FileType::RegularFile, self.0.size()) } else { (FileType::Directory, 0) };
        FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl<S: Storage> Filesystem for OneFile<S> {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some(NAME) => reply.entry(&Duration::ZERO, &self.attributes(FILE), Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &self.attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.read(offset, size as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.write(offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).expect("small")),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.0.sync();
        reply.ok();
    }
}

//! Block devices, on one open descriptor.
#![allow(unsafe_code, reason = "BLKGETSIZE64, BLKROGET, BLKROSET and BLKZEROOUT have no safe wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::FcntlArg;
use rustix::fs::{FileType, Mode, OFlags};

use super::{Error, Result, udev};

/// linux/fs.h
mod ioctl {
    // The request carries the size of a size_t, but what the kernel writes is always a u64.
    nix::ioctl_read_bad!(size, nix::request_code_read!(0x12, 114, size_of::<libc::size_t>()), u64);
    nix::ioctl_read_bad!(read_only, nix::request_code_none!(0x12, 94), libc::c_int);
    nix::ioctl_write_ptr_bad!(set_read_only, nix::request_code_none!(0x12, 93), libc::c_int);
    nix::ioctl_none_bad!(drop_cache, nix::request_code_none!(0x12, 97));
    // Start and length in bytes.
    nix::ioctl_write_ptr_bad!(zero_out, nix::request_code_none!(0x12, 127), [u64; 2]);
}

/// An open block device; probe, identity check and mkfs all go through this one descriptor.
#[derive(Debug)]
pub struct Device {
    file: File,
    path: PathBuf,
    number: (u32, u32),
}

/// Whether no block device has this number any more. Where sysfs cannot be read, that is not known, and the answer is no.
pub fn is_gone((major, minor): (u32, u32)) -> bool {
    let devices = Path::new("/sys/dev/block");
    devices.is_dir() && matches!(devices.join(format!("{major}:{minor}")).try_exists(), Ok(false))
}

impl Device {
    /// Opens a block device (anything else is an error) read-only or read-write. Links are followed
    /// (`/dev/disk/by-id/...`); the path is for messages, what counts from then on is [`Device::number`].
    ///
    /// # Errors
    /// `Io` of open(2); `Unexpected` where it is no block device, which is then not even opened: opening a FIFO would
    /// hang and opening some character devices does things.
    pub fn open(path: &Path, writable: bool) -> Result<Device> {
        let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| Error::io("open block device", path, errno))?;
        let stat = rustix::fs::fstat(&place).map_err(|errno| Error::io("stat", path, errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::BlockDevice {
            return Err(Error::Unexpected {
                object: path.display().to_string(),
                reason: format!("not a block device but {}", kind_name(kind)),
            });
        }
        // Through the descriptor just looked at: the name may be another device's by now.
        let file = File::options()
            .read(true)
            .write(writable)
            .open(format!("/proc/self/fd/{}", place.as_raw_fd()))
            .map_err(|error| Error::io("open block device", path, error))?;
        let number = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        Ok(Device { file, path: path.to_owned(), number })
    }

    /// The same for reading; `None` where there is no device of this number behind the name: not any more, or not yet, since the kernel
    /// shows a name before the device can be opened (ENXIO).
    pub fn open_if_there(path: &Path, number: (u32, u32)) -> Result<Option<Device>> {
        match Device::open(path, false) {
            Ok(open) => Ok(Some(open).filter(|open| open.number == number)),
            Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ENXIO | libc::ENODEV)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens one for writing that nobody else has open exclusively, and keeps off all who ask for that: a mount, mkfs, device-mapper.
    ///
    /// # Errors
    /// As `open`; EBUSY where another has it.
    pub fn open_exclusive(path: &Path) -> Result<Device> {
        let mut device = Device::open(path, true)?;
        let exclusive = File::options().read(true).write(true).custom_flags(libc::O_EXCL).open(device.argument());
        device.file = exclusive.map_err(|error| Error::io("open exclusively", path, error))?;
        Ok(device)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor of the open device.
    pub fn number(&self) -> (u32, u32) {
        self.number
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Keeps off all others who ask for this, until the descriptor is closed: an open file description lock (fcntl(2)). A program
    /// that was given the descriptor has the lock too, for as long as it lives. So one that was killed, at its deadline or with
    /// an earlier driver, but hangs in the kernel is seen, and waited for. The device must be open for writing.
    ///
    /// # Errors
    /// `Deadline` where another has it for longer than `patience`.
    pub fn lock_exclusive(&self, patience: Duration) -> Result<()> {
        let whole = libc::flock {
            l_type: libc::c_short::try_from(libc::F_WRLCK).unwrap_or_default(),
            l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        let held = || match nix::fcntl::fcntl(&self.file, FcntlArg::F_OFD_SETLK(&whole)) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(errno) => Err(self.error("lock", errno)),
        };
        if udev::wait_until(Instant::now().checked_add(patience), held)? {
            return Ok(());
        }
        let object = self.path.display().to_string();
        Err(Error::Deadline { action: "wait for a program that still has", object, after: patience })
    }

    /// Whether something has it exclusively: a mounted file system, in whatever mount namespace, device-mapper, md, swap, a mkfs or a
    /// check (open(2), O_EXCL of a block device). Who only has it open is not seen. A device that is gone is claimed by nothing.
    pub fn is_claimed(&self) -> Result<bool> {
        let exclusive = File::options().read(true).custom_flags(libc::O_EXCL).open(self.argument());
        match exclusive.map_err(|error| Error::io("open exclusively", &self.path, error)) {
            Ok(_) => Ok(false),
            Err(error) if error.errno() == Some(libc::EBUSY) => Ok(true),
            Err(error) if matches!(error.errno(), Some(libc::ENXIO | libc::ENODEV)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Size in bytes (BLKGETSIZE64).
    pub fn size(&self) -> Result<u64> {
        let mut size = 0;
        // SAFETY: the descriptor is open, and the kernel writes one u64 where `size` is.
        unsafe { ioctl::size(self.file.as_raw_fd(), &raw mut size) }.map_err(|errno| self.error("read size of", errno))?;
        Ok(size)
    }

    /// Whether the kernel refuses writes (BLKROGET).
    pub fn read_only(&self) -> Result<bool> {
        let mut read_only = 0;
        // SAFETY: the descriptor is open, and the kernel writes one int where `read_only` is.
        unsafe { ioctl::read_only(self.file.as_raw_fd(), &raw mut read_only) }
            .map_err(|errno| self.error("read write protection of", errno))?;
        Ok(read_only != 0)
    }

    /// Makes the kernel refuse writes, or take them again (BLKROSET). Descriptors that are open already are refused too.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        let read_only = libc::c_int::from(read_only);
        // SAFETY: the descriptor is open, and the kernel reads one int where `read_only` is.
        unsafe { ioctl::set_read_only(self.file.as_raw_fd(), &raw const read_only) }
            .map_err(|errno| self.error("set write protection of", errno))?;
        Ok(())
    }

    /// As a program finds it that keeps the descriptor: by no name that could come to mean another device.
    pub fn argument(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// Writes zeroes over `length` bytes from `offset`, as far as the device reaches. Not flushed.
    pub fn zero(&self, offset: u64, length: u64) -> Result<()> {
        const PIECE: u64 = 1 << 20;
        let end = self.size()?.min(offset.saturating_add(length));
        let zeroes = vec![0; usize::try_from(PIECE.min(length)).unwrap_or_default()];
        for at in (offset..end).step_by(zeroes.len().max(1)) {
            let rest = usize::try_from(end - at).unwrap_or(usize::MAX).min(zeroes.len());
            let piece = zeroes.get(..rest).unwrap_or_default();
            self.file.write_all_at(piece, at).map_err(|error| self.error("wipe", error))?;
        }
        Ok(())
    }

    /// Has the kernel write zeroes to all of the device that lies at `from` and after (BLKZEROOUT), by the disk's own command where it has one;
    /// durable on return. `progress` gets up to where it is done, in bytes, which is not durable yet.
    pub fn zero_out(&self, from: u64, mut progress: impl FnMut(u64) -> Result<()>) -> Result<()> {
        // A call cannot be interrupted while it runs.
        const PIECE: usize = 256 << 20;
        let size = self.size()?;
        for start in (from..size).step_by(PIECE) {
            let range = [start, (PIECE as u64).min(size - start)];
            // SAFETY: the descriptor is open, and the kernel reads two u64 where `range` is.
            unsafe { ioctl::zero_out(self.file.as_raw_fd(), &raw const range) }
                .map_err(|errno| self.error("write zeroes to", errno))?;
            progress(start + range[1])?;
        }
        self.flush()
    }

    /// Has what is read next be read from the disk (BLKFLSBUF): what was written by way of a partition, or past the page cache, is not in it.
    pub fn drop_cache(&self) -> Result<()> {
        // SAFETY: the descriptor is open, and nothing is passed.
        unsafe { ioctl::drop_cache(self.file.as_raw_fd()) }.map_err(|errno| self.error("drop the page cache of", errno))?;
        Ok(())
    }

    /// Writes what the page cache holds (fsync).
    pub fn flush(&self) -> Result<()> {
        rustix::fs::fsync(self.file.as_fd()).map_err(|errno| self.error("flush", errno))
    }

    fn error(&self, action: &'static str, errno: impl Into<io::Error>) -> Error {
        Error::io(action, &self.path, errno)
    }
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_is_no_block_device_is_refused_by_name() {
        for (path, what) in [("/dev/null", "a character device"), ("/proc/self/stat", "a regular file"), ("/", "a directory")] {
            match Device::open(Path::new(path), false) {
                Err(Error::Unexpected { object, reason }) => {
                    assert_eq!(object, path);
                    assert!(reason.contains(what), "{path}: {reason}");
                }
                other => panic!("{path}: {other:?}"),
            }
        }
        assert!(Device::open(Path::new("/dev/no-such-device"), false).unwrap_err().is_missing());
    }

    #[test]
    fn a_fifo_does_not_hang_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(Device::open(&path, false), Err(Error::Unexpected { .. })));
    }
}

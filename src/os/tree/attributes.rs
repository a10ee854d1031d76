//! What a file is beside its data: owner, mode, times, extended attributes, access control lists.

use std::ffi::CString;
use std::os::fd::AsFd;

use rustix::fs::{Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::os::{Error, Result};

/// NFS 4's own lists: always there, mostly saying no more than the mode.
const NFS4_ACL: &[u8] = b"system.nfs4_acl";
/// XATTR_LIST_MAX and XATTR_SIZE_MAX (xattr(7)).
const LONGEST: usize = 64 << 10;

/// Read while the file was open.
#[derive(Debug)]
pub(super) struct Attributes {
    pub stat: Stat,
    extended: Vec<(CString, Vec<u8>)>,
}

/// The answers that mean "not in this file system".
fn cannot_have(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL | Errno::NODATA | Errno::ACCESS)
}

impl Attributes {
    /// Of an open file or directory.
    pub fn of(file: impl AsFd) -> rustix::io::Result<Attributes> {
        let stat = rustix::fs::fstat(&file)?;
        let mut extended = Vec::new();
        for name in names(&file)? {
            if let Some(value) = value(&file, &name)? {
                extended.push((name, value));
            }
        }
        Ok(Attributes { stat, extended })
    }

    pub fn owner(&self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.stat.st_uid)), Some(Gid::from_raw(self.stat.st_gid)))
    }

    pub fn mode(&self) -> Mode {
        Mode::from_raw_mode(self.stat.st_mode & 0o7777)
    }

    pub fn times(&self) -> Timestamps {
        times(&self.stat)
    }

    /// Gives them to an open file or directory: owner first, since that takes the set-user-ID bit away; times last. How many the file
    /// system there cannot have.
    pub fn give(&self, file: impl AsFd) -> rustix::io::Result<u64> {
        let (uid, gid) = self.owner();
        rustix::fs::fchown(&file, uid, gid)?;
        let mut lost = 0;
        for (name, value) in self.extended.iter().filter(|(name, _)| name.to_bytes() != NFS4_ACL) {
            match rustix::fs::fsetxattr(&file, name, value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(errno) if cannot_have(errno) => lost += 1,
                Err(errno) => return Err(errno),
            }
        }
        rustix::fs::fchmod(&file, self.mode())?;
        if let Some((name, value)) = self.extended.iter().find(|(name, _)| name.to_bytes() == NFS4_ACL)
            && self::value(&file, name)?.as_ref() != Some(value)
        {
            match rustix::fs::fsetxattr(&file, name, value, XattrFlags::empty()) {
                Ok(()) => rustix::fs::fchmod(&file, self.mode())?,
                Err(errno) if cannot_have(errno) => lost += 1,
                Err(errno) => return Err(errno),
            }
        }
        rustix::fs::futimens(&file, &self.times())?;
        Ok(lost)
    }
}

/// To the nanosecond.
pub(super) fn times(stat: &Stat) -> Timestamps {
    let spec = |seconds, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds.cast_signed() };
    Timestamps {
        last_access: spec(stat.st_atime, stat.st_atime_nsec),
        last_modification: spec(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// None where there are no extended attributes at all.
fn names(file: impl AsFd) -> rustix::io::Result<Vec<CString>> {
    let mut list = vec![0_u8; LONGEST];
    let length = match rustix::fs::flistxattr(&file, &mut list) {
        Ok(length) => length,
        Err(errno) if cannot_have(errno) => 0,
        Err(errno) => return Err(errno),
    };
    let list = list.get(..length).unwrap_or_default();
    Ok(list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).filter_map(|name| CString::new(name).ok()).collect())
}

/// `None` where it went meanwhile, or is not for us.
fn value(file: impl AsFd, name: &CString) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut value = vec![0_u8; LONGEST];
    match rustix::fs::fgetxattr(file, name, &mut value) {
        Ok(length) => {
            value.truncate(length);
            value.shrink_to_fit();
            Ok(Some(value))
        }
        Err(errno) if cannot_have(errno) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// For a name in a directory: what is no file and no directory has no attributes that we keep but these.
pub(super) fn give_by_name(stat: &Stat, directory: &crate::os::dir::OpenDir, name: &std::ffi::OsStr) -> Result<()> {
    let failed = |errno| Error::io("set attributes of", directory.path_of(name), errno);
    let (uid, gid) = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
    rustix::fs::chownat(directory, name, uid, gid, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::Symlink {
        directory.set_mode(name, stat.st_mode & 0o7777)?;
    }
    rustix::fs::utimensat(directory, name, &times(stat), rustix::fs::AtFlags::SYMLINK_NOFOLLOW).map_err(failed)
}

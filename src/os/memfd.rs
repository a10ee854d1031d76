//! Files that live in memory only (memfd_create(2)): sparse, without a name, gone with their last user.

use std::fs::File;
use std::os::linux::fs::MetadataExt;

use rustix::fs::MemfdFlags;

use super::{Error, Result};

/// Makes one of `size` bytes, all of it a hole. `label` (at most 249 bytes) is what `losetup -l` and `/proc/*/fd` show.
pub fn create(label: &str, size: u64) -> Result<File> {
    let descriptor =
        rustix::fs::memfd_create(label, MemfdFlags::CLOEXEC).map_err(|errno| Error::io("memfd_create", label, errno))?;
    let file = File::from(descriptor);
    file.set_len(size).map_err(|error| Error::io("ftruncate", label, error))?;
    Ok(file)
}

/// What a file is, whatever it is called: its device and inode, as LOOP_GET_STATUS64 names a backing file.
pub fn identity(file: &File) -> Result<(u64, u64)> {
    let metadata = file.metadata().map_err(|error| Error::io("fstat", "memfd", error))?;
    Ok((metadata.st_dev(), metadata.st_ino()))
}

/// Bytes of memory that a file takes; holes take none.
pub fn used(file: &File) -> Result<u64> {
    let metadata = file.metadata().map_err(|error| Error::io("fstat", "memfd", error))?;
    Ok(metadata.st_blocks() * 512)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_new_file_is_a_hole_that_grows_where_it_is_written() {
        let file = create("test", 1 << 40).expect("memfd_create works everywhere");
        assert_eq!(file.metadata().expect("fstat").len(), 1 << 40);
        assert_eq!(used(&file).expect("fstat"), 0);
        file.write_all_at(b"x", 1 << 39).expect("a page of memory");
        assert!((1..1 << 30).contains(&used(&file).expect("fstat")), "only what was written, or one huge page");
    }

    #[test]
    fn no_two_are_the_same() {
        let (one, other) = (create("same", 0).expect("a memfd"), create("same", 0).expect("a memfd"));
        assert_ne!(identity(&one).expect("fstat"), identity(&other).expect("fstat"));
    }
}

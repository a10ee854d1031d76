//! Files copied with their holes, shared by reflink, compared by extent, overwritten.
//!
//! Works on open files only. Data is reached with positioned reads and writes; the file offset of the descriptors is
//! moved (SEEK_DATA) and means nothing afterwards.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Error, Result, step};

mod compare;
mod extents;
mod file;
mod scrub;

pub use compare::differing_extents;
pub use extents::data_extents;
pub use scrub::scrub;

use extents::Data;
use file::{failed, name_of, size_of};

/// What is copied between two looks at the clock.
const CHUNK: u64 = 64 << 20;
/// What is read or written at once where the kernel does not copy.
const BUFFER: usize = 1 << 20;
/// How often the log hears of a long copy.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// How `clone_or_copy` did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// FICLONE: nothing was copied.
    Reflink,
    /// Data was copied, holes were kept.
    Copy,
}

/// Makes the empty file `to` hold what `from` holds: by FICLONE where the file system can, else by a copy that keeps
/// holes (SEEK_DATA, copy_file_range). Reports progress in the log and through [`super::step::note`]. Syncs `to`.
///
/// `to` may have a size, and space set aside by fallocate(2), which a copy fills and a reflink gives back.
///
/// # Errors
/// `Unexpected` if `to` holds data, which is then left alone; `Io` otherwise, and `to` then holds a part: remove it.
pub fn clone_or_copy(from: &File, to: &File) -> Result<Method> {
    let method = if share(from, to)? {
        Method::Reflink
    } else {
        copy_data(from, to, size_of(from)?)?;
        Method::Copy
    };
    to.sync_all().map_err(|error| failed("sync", to, error))?;
    Ok(method)
}

/// As [`clone_or_copy`], but by FICLONE only; `false` where the file system cannot share the extents of these two files.
///
/// The kernel locks `from` against writes meanwhile, direct ones as well: `to` then holds what `from` held at one instant, no matter who
/// writes to it.
///
/// # Errors
/// As of `clone_or_copy`.
pub fn clone_only(from: &File, to: &File) -> Result<bool> {
    let shared = share(from, to)?;
    to.sync_all().map_err(|error| failed("sync", to, error))?;
    Ok(shared)
}

/// Gives the empty file `to` the size of `from`, and its extents where the file system can share them.
fn share(from: &File, to: &File) -> Result<bool> {
    if Data::of(to, 0)?.next()?.is_some() {
        let object = name_of(to).display().to_string();
        return Err(Error::Unexpected { object, reason: "to be copied to, but it holds data".to_owned() });
    }
    to.set_len(size_of(from)?).map_err(|error| failed("set size of", to, error))?;
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => Ok(true),
        Err(errno) if cannot_share(errno) => Ok(false),
        Err(errno) => Err(failed("reflink to", to, errno)),
    }
}

/// Whether files in this directory can share extents: seen by trying with two temporary unnamed files. Where there are no
/// unnamed files (O_TMPFILE), there is no sharing either.
pub fn reflink_works(directory: &Path) -> Result<bool> {
    let unnamed = || rustix::fs::open(directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    let (from, to) = match unnamed().and_then(|from| Ok((File::from(from), File::from(unnamed()?)))) {
        Ok(files) => files,
        Err(Errno::OPNOTSUPP) => return Ok(false),
        Err(errno) => return Err(Error::io("create an unnamed file in", directory, errno)),
    };
    // Some file systems let two empty files share the nothing that they have.
    from.write_all_at(&[1; 4096], 0).map_err(|error| Error::io("write an unnamed file in", directory, error))?;
    match rustix::fs::ioctl_ficlone(&to, &from) {
        Ok(()) => Ok(true),
        Err(errno) if cannot_share(errno) => Ok(false),
        Err(errno) => Err(Error::io("try a reflink in", directory, errno)),
    }
}

/// The answers of FICLONE that mean "not these two files": another file system, one that cannot, or files that differ
/// in a way that forbids it (btrfs: nodatacow).
fn cannot_share(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS)
}

fn copy_data(from: &File, to: &File, size: u64) -> Result<()> {
    let mut copier = Copier { from, to, by_kernel: true, buffer: Vec::new() };
    let mut progress = Progress::new("copy", size);
    let mut data = Data::of(from, 0)?;
    while let Some(run) = data.next()? {
        let mut at = run.start;
        while at < run.end {
            at += copier.copy(at, CHUNK.min(run.end - at))?;
            progress.at(at);
        }
    }
    // What is in the page cache is still to be written, which may take as long again.
    progress.last("sync");
    Ok(())
}

struct Copier<'a> {
    from: &'a File,
    to: &'a File,
    /// Until the kernel says that it cannot.
    by_kernel: bool,
    buffer: Vec<u8>,
}

impl Copier<'_> {
    /// Copies at most `length` bytes at `offset`; how many.
    fn copy(&mut self, offset: u64, length: u64) -> Result<u64> {
        if self.by_kernel {
            let (mut read_at, mut write_at) = (offset, offset);
            let length = usize::try_from(length).unwrap_or(BUFFER);
            match rustix::fs::copy_file_range(self.from, Some(&mut read_at), self.to, Some(&mut write_at), length) {
                // No bytes: some file systems say so of files that they cannot copy. A plain read tells the truth.
                Ok(0) | Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => self.by_kernel = false,
                Ok(copied) => return Ok(copied as u64),
                Err(Errno::INTR) => return Ok(0),
                Err(errno) => return Err(failed("copy to", self.to, errno)),
            }
        }
        self.buffer.resize(BUFFER, 0);
        let length = usize::try_from(length).unwrap_or(BUFFER).min(BUFFER);
        let buffer = self.buffer.get_mut(..length).unwrap_or_default();
        self.from.read_exact_at(buffer, offset).map_err(|error| failed("read", self.from, error))?;
        self.to.write_all_at(buffer, offset).map_err(|error| failed("write", self.to, error))?;
        Ok(length as u64)
    }
}

/// Tells how far something long is.
struct Progress {
    what: &'static str,
    size: u64,
    reported: Instant,
}

impl Progress {
    fn new(what: &'static str, size: u64) -> Progress {
        Progress { what, size, reported: Instant::now() }
    }

    /// The place in the file, so that holes count as done.
    fn at(&mut self, offset: u64) {
        let percent = u128::from(offset) * 100 / u128::from(self.size.max(1));
        let detail = format!("{percent} % of {}", ByteSize::b(self.size));
        step::note(self.what, &detail);
        if self.reported.elapsed() >= REPORT_EVERY {
            self.reported = Instant::now();
            tracing::info!(progress = %detail, "{}", self.what);
        }
    }

    fn last(&self, what: &'static str) {
        step::note(what, &format_args!("after {} of {}", self.what, ByteSize::b(self.size)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::fs::testing::{self, Scratch};

    const MIB: u64 = 1 << 20;

    /// Data at 1 and 5 MiB (an odd length), holes else; 9 MiB and 17 bytes.
    fn sample(file: &File) {
        file.set_len(9 * MIB + 17).unwrap();
        file.write_all_at(&[7; 1 << 20], MIB).unwrap();
        file.write_all_at(b"odd", 5 * MIB).unwrap();
        file.sync_all().unwrap();
    }

    fn content(file: &File) -> Vec<u8> {
        let mut content = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut content, 0).unwrap();
        content
    }

    fn runs(file: &File, offset: u64) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        data_extents(file, offset, &mut |start, length| {
            runs.push((start, length));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        runs
    }

    fn differing(base: &File, target: &File, offset: u64, block: u64) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        differing_extents(base, target, offset, block, &mut |start, length| {
            runs.push((start, length));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        runs
    }

    /// What `differing_extents` must say, the slow way.
    fn differing_by_hand(base: &File, target: &File, offset: u64, block: u64) -> Vec<(u64, u64)> {
        let (mut base, mut target) = (content(base), content(target));
        let size = base.len().max(target.len()).next_multiple_of(block as usize);
        base.resize(size, 0);
        target.resize(size, 0);
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for at in ((offset / block * block) as usize..size).step_by(block as usize) {
            if base[at..at + block as usize] != target[at..at + block as usize] {
                match runs.last_mut() {
                    Some((start, length)) if *start + *length == at as u64 => *length += block,
                    _ => runs.push((at as u64, block)),
                }
            }
        }
        runs
    }

    fn all_of_it(directory: &Path) -> Method {
        let new = || tempfile::tempfile_in(directory).unwrap();
        let (from, to) = (new(), new());
        sample(&from);
        let method = clone_or_copy(&from, &to).unwrap();
        assert!(content(&from) == content(&to), "{directory:?}");
        assert_eq!(runs(&from, 0), runs(&to, 0), "holes are kept in {directory:?}");
        assert_eq!(method == Method::Reflink, reflink_works(directory).unwrap(), "{directory:?}");

        assert!(runs(&to, 0).iter().all(|(start, length)| start + length <= 9 * MIB + 17));
        assert_eq!(runs(&to, MIB + 12_345)[0].0, MIB + 12_345);
        assert_eq!(runs(&to, 10 * MIB), []);

        let error = clone_or_copy(&from, &to).unwrap_err();
        assert!(matches!(error, Error::Unexpected { .. }), "{error}");

        assert_eq!(differing(&from, &to, 0, 4096), []);
        to.write_all_at(b"x", 5 * MIB + 2).unwrap();
        to.write_all_at(&[0; 10], MIB + 4090).unwrap();
        to.write_all_at(b"in a hole", 8 * MIB - 3).unwrap();
        to.write_all_at(b"behind the end", 9 * MIB + 17).unwrap();
        for (offset, block) in [(0, 4096), (0, 65_536), (MIB + 5000, 512), (0, 1 << 20), (0, 3000), (6 * MIB, 4 << 20)] {
            assert_eq!(differing(&from, &to, offset, block), differing_by_hand(&from, &to, offset, block), "{offset} {block}");
            assert_eq!(differing(&to, &from, offset, block), differing_by_hand(&from, &to, offset, block), "{offset} {block}");
        }

        let before = runs(&to, 0);
        scrub(&to).unwrap();
        assert!(content(&to).iter().all(|byte| *byte == 0));
        assert_eq!(runs(&to, 0), before, "overwritten, not punched");
        assert_eq!(content(&from)[MIB as usize], 7, "the other file keeps its own");
        method
    }

    #[test]
    fn on_the_temporary_directory() {
        let directory = tempfile::tempdir().unwrap();
        all_of_it(directory.path());
    }

    #[test]
    fn on_ext4_it_copies() {
        testing::in_namespace(|| {
            let Some(scratch) = Scratch::mounted("ext4", 128 * MIB) else { return };
            assert_eq!(all_of_it(scratch.path()), Method::Copy);
        });
    }

    #[test]
    fn on_xfs_and_btrfs_it_shares() {
        testing::in_namespace(|| {
            for fstype in ["xfs", "btrfs"] {
                let Some(scratch) = Scratch::mounted(fstype, 400 * MIB) else { return };
                assert_eq!(all_of_it(scratch.path()), Method::Reflink);
            }
        });
    }

    #[test]
    fn on_tmpfs_it_copies() {
        testing::in_namespace(|| {
            let Some(scratch) = Scratch::tmpfs() else { return };
            assert_eq!(all_of_it(scratch.path()), Method::Copy);
        });
    }

    #[test]
    fn between_two_file_systems_it_copies() {
        testing::in_namespace(|| {
            let Some(scratch) = Scratch::tmpfs() else { return };
            let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile_in(scratch.path()).unwrap());
            sample(&from);
            assert_eq!(clone_or_copy(&from, &to).unwrap(), Method::Copy);
            assert!(content(&from) == content(&to));
            assert_eq!(runs(&from, 0), runs(&to, 0));
            assert_eq!(differing(&from, &to, 0, 4096), []);
        });
    }

    /// Shared extents are not read: a file of 64 GiB of them is compared at once.
    #[test]
    fn shared_extents_are_not_read() {
        testing::in_namespace(|| {
            let Some(scratch) = Scratch::mounted("xfs", 400 * MIB) else { return };
            let new = || tempfile::tempfile_in(scratch.path()).unwrap();
            let (base, target) = (new(), new());
            base.write_all_at(&vec![3; 8 << 20], 0).unwrap();
            // The same 8 MiB again and again: more to read than this test has time for.
            let mut size = 8 * MIB;
            while size < 1 << 36 {
                share(&base, size, size);
                size *= 2;
            }
            assert_eq!(clone_or_copy(&base, &target).unwrap(), Method::Reflink);
            target.write_all_at(b"x", (1 << 35) + 5).unwrap();
            assert_eq!(differing(&base, &target, 0, 4096), [(1 << 35, 4096)]);
        });
    }

    /// Lets the file share its first `length` bytes at `offset` too.
    fn share(file: &File, length: u64, offset: u64) {
        let (mut from, mut to, mut left) = (0, offset, length);
        while left > 0 {
            let copied =
                rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut to), left.min(1 << 30) as usize).unwrap();
            assert!(copied > 0);
            left -= copied as u64;
        }
    }

    #[test]
    fn holes_and_space_set_aside_are_no_data() {
        let file = tempfile::tempfile().unwrap();
        assert!(runs(&file, 0).is_empty());
        file.set_len(10 * MIB).unwrap();
        assert!(runs(&file, 0).is_empty());
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 5 * MIB).unwrap();
        assert!(runs(&file, 0).is_empty());
        file.write_all_at(&[0], 7 * MIB).unwrap();
        assert_eq!(runs(&file, 0).len(), 1, "a zero that was written is data");
    }

    #[test]
    fn copy_ends_when_its_progress_breaks() {
        let (file, empty) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        sample(&file);
        let mut count = 0;
        let mut once = |_, _| {
            count += 1;
            std::ops::ControlFlow::Break(())
        };
        data_extents(&file, 0, &mut once).unwrap();
        differing_extents(&empty, &file, 0, 4096, &mut once).unwrap();
        assert_eq!(count, 2);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_no_scrubbed_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        sample(file.as_file());
        let error = scrub(&File::open(file.path()).unwrap()).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EBADF));
    }

    #[test]
    fn progress_is_reported() {
        let progress = std::sync::Arc::new(step::Progress::default());
        step::with_progress(progress.clone(), || Progress::new("copy", 10 << 30).at(4 << 30));
        assert_eq!(progress.now().0, "copy 40 % of 10.0 GiB");
    }
}

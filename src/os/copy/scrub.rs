//! Data overwritten, and seen to be.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::extents::Data;
use super::{BUFFER, Error, Progress, Result, failed, name_of, size_of};

/// What direct I/O wants of addresses, offsets and lengths: no disk has larger logical blocks.
const ALIGNMENT: usize = 4096;

/// Overwrites the file's data with zeroes, syncs, and reads them back past the page cache: an error unless all of it is zero.
///
/// What that means for the disk depends on the file system of the file:
/// - ext4, and xfs where no reflink shares the blocks: the very blocks that held the data hold zeroes.
/// - Blocks shared by reflink with other files stay theirs; they are overwritten when the last of those files is scrubbed.
///   A block that two files share while both are being scrubbed is copied for one and overwritten for the other.
/// - btrfs writes elsewhere and frees the old blocks: nobody reads them through the file system any more, but they stay on
///   the disk until they are used again or discarded. So it is where the storage below does so (SSDs, thin volumes).
/// - What was punched out of the file before (discard from the volume) is no longer part of it and is not overwritten.
///
/// The file must be open for reading and writing, and not be in use.
///
/// # Errors
/// `Io`; `Unexpected` with the offset of the first byte that was read back as something else.
pub fn scrub(file: &File) -> Result<()> {
    overwrite(file)?;
    file.sync_all().map_err(|error| failed("sync", file, error))?;
    verify(file)
}

fn overwrite(file: &File) -> Result<()> {
    let zeroes = vec![0; BUFFER];
    let mut progress = Progress::new("scrub", size_of(file)?);
    let mut data = Data::of(file, 0)?;
    while let Some(run) = data.next()? {
        for chunk in chunks(run) {
            let length = usize::try_from(chunk.end - chunk.start).unwrap_or(BUFFER);
            let zeroes = zeroes.get(..length).unwrap_or(&zeroes);
            file.write_all_at(zeroes, chunk.start).map_err(|error| failed("overwrite", file, error))?;
            progress.at(chunk.end);
        }
    }
    progress.last("sync");
    Ok(())
}

fn verify(file: &File) -> Result<()> {
    let mut reader = Reader::of(file)?;
    let mut progress = Progress::new("verify zeroes", size_of(file)?);
    let mut data = Data::of(file, 0)?;
    while let Some(run) = data.next()? {
        let start = run.start - run.start % ALIGNMENT as u64;
        for chunk in chunks(start..run.end) {
            if let Some(offset) = reader.first_set(&chunk)? {
                let reason = format!("overwritten with zeroes, but byte {offset} was read back from the disk as something else");
                return Err(Error::Unexpected { object: name_of(file).display().to_string(), reason });
            }
            progress.at(chunk.end);
        }
    }
    Ok(())
}

fn chunks(run: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    run.clone().step_by(BUFFER).map(move |start| start..run.end.min(start.saturating_add(BUFFER as u64)))
}

/// Reads from the disk, not from the page cache.
struct Reader<'a> {
    file: &'a File,
    /// None where the file system has no direct I/O; then the cache is dropped before each read.
    direct: Option<File>,
    buffer: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn of(file: &'a File) -> Result<Reader<'a>> {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = match File::options().read(true).custom_flags(libc::O_DIRECT).open(link) {
            Ok(direct) => Some(direct),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
            Err(error) => return Err(failed("open for direct I/O", file, error)),
        };
        Ok(Reader { file, direct, buffer: vec![0; BUFFER + ALIGNMENT] })
    }

    /// The first byte that is not zero in `range`, which begins at a multiple of ALIGNMENT.
    fn first_set(&mut self, range: &Range<u64>) -> Result<Option<u64>> {
        let wanted = usize::try_from(range.end - range.start).unwrap_or(BUFFER);
        let mut done = 0;
        while done < wanted {
            let offset = range.start + done as u64;
            let read = self.read(offset, (wanted - done).next_multiple_of(ALIGNMENT))?;
            let Some(bytes) = read.get(..read.len().min(wanted - done)) else { break };
            if bytes.is_empty() {
                return Err(failed("read back", self.file, std::io::ErrorKind::UnexpectedEof));
            }
            if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
                return Ok(Some(offset + at as u64));
            }
            done += bytes.len();
        }
        Ok(None)
    }

    /// At most `length` bytes at `offset`.
    fn read(&mut self, offset: u64, length: usize) -> Result<&[u8]> {
        let shift = self.buffer.as_ptr().align_offset(ALIGNMENT);
        let file = self.file;
        let buffer = self.buffer.get_mut(shift..).and_then(|aligned| aligned.get_mut(..length)).unwrap_or_default();
        if let Some(direct) = &self.direct {
            match direct.read_at(buffer, offset) {
                Ok(read) => return Ok(buffer.get(..read).unwrap_or_default()),
                // It opens for direct I/O, but does none (or wants a larger alignment).
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.direct = None,
                Err(error) => return Err(failed("read back", file, error)),
            }
        }
        let length = std::num::NonZeroU64::new(length as u64);
        rustix::fs::fadvise(file, offset, length, rustix::fs::Advice::DontNeed)
            .map_err(|errno| failed("drop the page cache of", file, errno))?;
        let read = file.read_at(buffer, offset).map_err(|error| failed("read back", file, error))?;
        Ok(buffer.get(..read).unwrap_or_default())
    }
}

//! Where two files differ.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::{FileExt, MetadataExt};

use super::extents::{Map, Place};
use super::{BUFFER, Error, Result, failed, name_of};

/// The runs, in whole `block`s, where `target` differs from `base`. Runs that FIEMAP shows to lie on the same physical
/// blocks are equal without reading (never so for encoded, inline, delayed or unknown extents); all others are read and
/// compared. The end of a shorter file counts as zeroes.
///
/// Runs are in ascending order and do not touch; they begin and end at multiples of `block`, so that the last may go past
/// the end of the file. `offset` counts as the beginning of its block. Both files must be at rest.
///
/// # Errors
/// `Unexpected` for a block of 0 bytes; `Io`.
pub fn differing_extents(
    base: &File,
    target: &File,
    offset: u64,
    block: u64,
    emit: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<()> {
    if block == 0 {
        let object = name_of(target).display().to_string();
        return Err(Error::Unexpected { object, reason: "to be compared in blocks of 0 bytes".to_owned() });
    }
    let (mut base, mut target) = (Side::of(base)?, Side::of(target)?);
    // Places on two file systems cannot be distinguished by their numbers.
    let comparable = base.device == target.device;
    let end = base.map.size().max(target.map.size());
    let mut runs = Runs { block, emit, pending: 0..0 };
    let mut at = offset - offset % block;
    while at < end {
        let (base_place, base_end) = base.map.at(at)?;
        let (target_place, target_end) = target.map.at(at)?;
        let until = base_end.min(target_end).min(end);
        let equal = match (base_place, target_place) {
            (Place::Zeroes, Place::Zeroes) => true,
            (Place::Shared(here), Place::Shared(there)) => comparable && here == there,
            _ => false,
        };
        if equal {
            at = until;
            continue;
        }
        // A chunk at a time, so that an end in the middle of a block is taken up where it was.
        let until = until.min(at.saturating_add(BUFFER as u64));
        base.load(base_place, at..until)?;
        target.load(target_place, at..until)?;
        if runs.compare(&base.buffer, &target.buffer, at).is_break() {
            return Ok(());
        }
        // The rest of a block that is known to differ need not be read.
        at = until.max(runs.pending.end);
    }
    match runs.flush() {
        // Broken or not, it was the last.
        ControlFlow::Continue(()) | ControlFlow::Break(()) => Ok(()),
    }
}

/// One of the two files.
struct Side<'a> {
    file: &'a File,
    map: Map<'a>,
    device: u64,
    buffer: Vec<u8>,
}

impl<'a> Side<'a> {
    fn of(file: &'a File) -> Result<Side<'a>> {
        let device = file.metadata().map_err(|error| failed("stat", file, error))?.dev();
        Ok(Side { file, map: Map::of(file)?, device, buffer: Vec::with_capacity(BUFFER) })
    }

    /// Fills the buffer with what is in `range` (at most BUFFER bytes).
    fn load(&mut self, place: Place, range: Range<u64>) -> Result<()> {
        self.buffer.clear();
        self.buffer.resize(usize::try_from(range.end - range.start).unwrap_or(BUFFER), 0);
        if place != Place::Zeroes {
            self.file.read_exact_at(&mut self.buffer, range.start).map_err(|error| failed("read", self.file, error))?;
        }
        Ok(())
    }
}

/// Puts differing blocks together to runs.
struct Runs<'a> {
    block: u64,
    emit: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    /// Found and not yet emitted: the next block may continue it.
    pending: Range<u64>,
}

impl Runs<'_> {
    /// Compares two equally long pieces that begin at `offset`, block by block.
    fn compare(&mut self, base: &[u8], target: &[u8], offset: u64) -> ControlFlow<()> {
        if base == target {
            return ControlFlow::Continue(());
        }
        let mut rest = (base, target);
        let mut at = offset;
        while !rest.0.is_empty() {
            let to_block_end = self.block - at % self.block;
            let length = usize::try_from(to_block_end).unwrap_or(usize::MAX).min(rest.0.len()).min(rest.1.len());
            let (base, base_rest) = rest.0.split_at(length);
            let (target, target_rest) = rest.1.split_at(length);
            if base != target {
                self.add(at - at % self.block)?;
            }
            rest = (base_rest, target_rest);
            at += length as u64;
        }
        ControlFlow::Continue(())
    }

    fn add(&mut self, start: u64) -> ControlFlow<()> {
        let end = start.saturating_add(self.block);
        if self.pending.is_empty() || start > self.pending.end {
            self.flush()?;
            self.pending = start..end;
        } else {
            self.pending.end = self.pending.end.max(end);
        }
        ControlFlow::Continue(())
    }

    fn flush(&mut self) -> ControlFlow<()> {
        let Range { start, end } = std::mem::take(&mut self.pending);
        if start == end { ControlFlow::Continue(()) } else { (self.emit)(start, end - start) }
    }
}

//! Files copied with their holes, shared by reflink, compared by extent.

use std::fs::File;
use std::ops::ControlFlow;

use super::Result;

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
pub fn clone_or_copy(from: &File, to: &File) -> Result<Method> {
    unimplemented!()
}

/// Whether files in this folder can share extents: seen by trying with two temporary unnamed files.
pub fn reflink_works(folder: &std::path::Path) -> Result<bool> {
    unimplemented!()
}

/// The runs of `file` that hold data (SEEK_DATA, SEEK_HOLE), from `offset` on, until `emit(offset, length)` breaks.
pub fn data_extents(file: &File, offset: u64, emit: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<()> {
    unimplemented!()
}

/// The runs, in whole `block`s, where `target` differs from `base`. Runs that FIEMAP shows to lie on the same physical
/// blocks are equal without reading (never so for encoded, inline, delayed or unknown extents); all others are read and
/// compared. The end of a shorter file counts as zeroes.
pub fn differing_extents(
    base: &File,
    target: &File,
    offset: u64,
    block: u64,
    emit: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<()> {
    unimplemented!()
}

/// Whether the file is one single hole (its first SEEK_DATA is ENXIO after a sync).
pub fn is_all_hole(file: &File) -> Result<bool> {
    unimplemented!()
}

/// Overwrites the file's data with zeroes, syncs, and reads them back past the page cache: an error unless all of it is zero.
pub fn scrub(file: &File) -> Result<()> {
    unimplemented!()
}

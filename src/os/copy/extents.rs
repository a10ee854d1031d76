//! Where a file has data (SEEK_DATA), and where that data lies on the disk (FIEMAP).
#![allow(unsafe_code, reason = "FIEMAP has no safe wrapper")]

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::os::fd::AsRawFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{Result, failed, size_of};

/// The runs of `file` that hold data (SEEK_DATA, SEEK_HOLE), from `offset` on, until `emit(offset, length)` breaks.
///
/// The first run begins at `offset` where that is amid data; none goes past the end of the file. What was set aside by
/// fallocate(2) and never written is a hole. A file system that knows no holes shows one run.
pub fn data_extents(file: &File, offset: u64, emit: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<()> {
    let mut data = Data::of(file, offset)?;
    while let Some(run) = data.next()? {
        if emit(run.start, run.end - run.start).is_break() {
            break;
        }
    }
    Ok(())
}

/// The runs of data of a file, in order, as they are when asked for.
pub(super) struct Data<'a> {
    file: &'a File,
    at: u64,
    size: u64,
}

impl<'a> Data<'a> {
    pub(super) fn of(file: &'a File, offset: u64) -> Result<Data<'a>> {
        Ok(Data { file, at: offset, size: size_of(file)? })
    }

    pub(super) fn next(&mut self) -> Result<Option<Range<u64>>> {
        while self.at < self.size {
            let Some(start) = self.seek(SeekFrom::Data(self.at))? else { return Ok(None) };
            // None: the file was cut short meanwhile.
            let Some(end) = self.seek(SeekFrom::Hole(start))? else { return Ok(None) };
            self.at = end;
            // No length: punched between the two calls.
            if start < end {
                return Ok(Some(start..end));
            }
        }
        Ok(None)
    }

    /// None past the last data, or past the size that the file had at first.
    fn seek(&self, place: SeekFrom) -> Result<Option<u64>> {
        match rustix::fs::seek(self.file, place) {
            Ok(found) => Ok(Some(found.min(self.size))),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(failed("find data in", self.file, errno)),
        }
    }
}

/// What FIEMAP or SEEK_DATA says of a run of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A hole, space set aside and never written, or past the end: reads as zeroes.
    Zeroes,
    /// On shared blocks, which begin at this place of the disk.
    Shared(u64),
    /// Anything else: only reading tells.
    Data,
}

/// A file's places, asked for in ascending order.
pub(super) struct Map<'a> {
    file: &'a File,
    size: u64,
    source: Source<'a>,
}

enum Source<'a> {
    Fiemap(Box<Page>),
    /// The run last found; where there is no FIEMAP (tmpfs).
    Seek(Data<'a>, Range<u64>),
}

impl<'a> Map<'a> {
    /// The file must be at rest: what is written to it later may be missed.
    pub(super) fn of(file: &'a File) -> Result<Map<'a>> {
        let size = size_of(file)?;
        let source = match Page::read(file, 0) {
            Ok(page) => Source::Fiemap(page),
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL) => Source::Seek(Data::of(file, 0)?, 0..0),
            Err(errno) => return Err(failed("map extents of", file, errno)),
        };
        Ok(Map { file, size, source })
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// What `offset` is part of, and where that ends (never at `offset` itself).
    pub(super) fn at(&mut self, offset: u64) -> Result<(Place, u64)> {
        if offset >= self.size {
            return Ok((Place::Zeroes, u64::MAX));
        }
        let (place, end) = match &mut self.source {
            Source::Fiemap(page) => loop {
                match page.at(offset) {
                    Some(found) => break found,
                    None => *page = Page::read(self.file, offset).map_err(|errno| failed("map extents of", self.file, errno))?,
                }
            },
            Source::Seek(data, run) => {
                while run.end <= offset {
                    *run = data.next()?.unwrap_or(u64::MAX..u64::MAX);
                }
                if offset < run.start { (Place::Zeroes, run.start) } else { (Place::Data, run.end) }
            }
        };
        Ok((place, end.min(self.size)))
    }
}

// linux/fiemap.h
const FIEMAP_FLAG_SYNC: u32 = 0x1;
const EXTENT_LAST: u32 = 0x1;
const EXTENT_UNWRITTEN: u32 = 0x800;
const EXTENT_SHARED: u32 = 0x2000;
/// Unknown, delayed, encoded, encrypted, not aligned, inline, in a tail: the physical offset means nothing, or does not
/// tell the content.
const EXTENT_OPAQUE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;

const EXTENTS_PER_PAGE: usize = 256;

/// `struct fiemap` without its array.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Header {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

mod ioctl {
    nix::ioctl_readwrite!(fiemap, b'f', 11, super::Header);
}

/// Some extents of a file, from `start` on.
#[repr(C)]
struct Page {
    header: Header,
    extents: [Extent; EXTENTS_PER_PAGE],
    /// The next extent to look at: questions come in ascending order.
    next: usize,
}

impl Page {
    /// FIEMAP writes out what is dirty first, so that nothing is delayed and unwritten means zeroes.
    fn read(file: &File, start: u64) -> std::result::Result<Box<Page>, Errno> {
        let header = Header {
            start,
            length: u64::MAX - start,
            flags: FIEMAP_FLAG_SYNC,
            count: EXTENTS_PER_PAGE as u32,
            ..Header::default()
        };
        let mut page = Box::new(Page { header, extents: [Extent::default(); EXTENTS_PER_PAGE], next: 0 });
        // SAFETY: the descriptor is open; behind the header, in the same `repr(C)` allocation to which the pointer
        // belongs, is room for as many extents as `count` says, and any bytes are a valid `Extent`.
        unsafe { ioctl::fiemap(file.as_raw_fd(), (&raw mut *page).cast()) }
            .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        page.header.start = start;
        Ok(page)
    }

    fn known(&self) -> &[Extent] {
        self.extents.get(..self.header.mapped as usize).unwrap_or(&self.extents)
    }

    /// The place of `offset`, and its end; none if that is on a later page.
    fn at(&mut self, offset: u64) -> Option<(Place, u64)> {
        while let Some(extent) = self.known().get(self.next) {
            let end = extent.logical.saturating_add(extent.length);
            if offset < extent.logical {
                return Some((Place::Zeroes, extent.logical));
            }
            if offset < end {
                return Some((extent.place(offset), end));
            }
            self.next += 1;
        }
        // Past all on this page. It was the last one if the kernel said so or had nothing more to say.
        let complete = self.known().last().is_none_or(|last| last.flags & EXTENT_LAST != 0);
        complete.then_some((Place::Zeroes, u64::MAX))
    }
}

impl Extent {
    fn place(&self, offset: u64) -> Place {
        if self.flags & EXTENT_OPAQUE != 0 {
            Place::Data
        } else if self.flags & EXTENT_UNWRITTEN != 0 {
            Place::Zeroes
        } else if self.flags & EXTENT_SHARED != 0 {
            // Only what the kernel calls shared is compared by place: equal numbers alone may be places on two disks
            // (the data and the real-time device of xfs).
            Place::Shared(self.physical.saturating_add(offset - self.logical))
        } else {
            Place::Data
        }
    }
}

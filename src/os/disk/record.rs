//! A small record on a disk, at a fixed place: whole, or as it was before, whenever the power goes.
//!
//! There are two copies. A change writes one and flushes it, then the other: at any moment one of them is whole, and once a change is
//! answered both are the same, so that one that has decayed does not bring back what was before. All is read and written past the page
//! cache (O_DIRECT): the disk and its partitions each have one of their own.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use sha2::{Digest, Sha256};

use crate::os::block::Device;
use crate::os::{Error, Result};

/// Bytes of a copy: a multiple of each logical block that there is.
const COPY: usize = 64 << 10;
const COPIES: u64 = 2;
/// Bytes of both.
pub const LENGTH: u64 = COPIES * COPY as u64;
const MAGIC: &[u8; 16] = b"LONGSHORE RECORD";
/// Magic, sequence, length, digest of sequence and content.
const HEADER: usize = 16 + 8 + 8 + 32;
/// The largest logical block, to which memory must be aligned.
const ALIGNED: usize = 4096;

/// What was found at the place of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No copy has ever been written there.
    None,
    Record {
        content: Vec<u8>,
        /// How often the record was written.
        sequence: u64,
        /// Both copies are this: a change was not interrupted, and nothing has decayed.
        even: bool,
    },
    /// Of a record no copy is whole.
    Damaged,
}

/// Memory that the kernel can read and write directly.
struct Aligned(Vec<u8>);

impl Aligned {
    fn new(length: usize) -> Aligned {
        Aligned(vec![0; length + ALIGNED])
    }

    fn bytes(&mut self) -> &mut [u8] {
        let offset = self.0.as_ptr().align_offset(ALIGNED);
        let end = self.0.len() - ALIGNED + offset;
        self.0.get_mut(offset..end).unwrap_or_default()
    }
}

/// Opens what is open already once more, past the page cache.
fn direct(device: &Device, writable: bool) -> Result<File> {
    let file = File::options().read(true).write(writable).custom_flags(libc::O_DIRECT).open(device.argument());
    file.map_err(|error| Error::io("open for direct I/O", device.path(), error))
}

/// Reads `length` bytes, a multiple of 4096 as `offset` is, past the page cache.
pub fn read_direct(device: &Device, offset: u64, length: usize) -> Result<Vec<u8>> {
    let file = direct(device, false)?;
    let mut memory = Aligned::new(length);
    file.read_exact_at(memory.bytes(), offset).map_err(|error| Error::io("read", device.path(), error))?;
    Ok(memory.bytes().to_vec())
}

/// The record whose [`LENGTH`] bytes these are.
pub fn parse(bytes: &[u8]) -> Found {
    let copies = bytes.chunks(COPY).take(COPIES as usize);
    let written = copies.clone().any(|copy| copy.starts_with(MAGIC));
    let sound: Vec<(Vec<u8>, u64)> = copies.filter_map(whole).collect();
    let even = matches!(sound.as_slice(), [one, other] if one == other);
    match sound.into_iter().max_by_key(|(_, sequence)| *sequence) {
        Some((content, sequence)) => Found::Record { content, sequence, even },
        None if written => Found::Damaged,
        None => Found::None,
    }
}

fn whole(copy: &[u8]) -> Option<(Vec<u8>, u64)> {
    let (header, content) = copy.split_at_checked(HEADER)?;
    let word = |at: usize| header.get(at..)?.first_chunk().copied().map(u64::from_le_bytes);
    let (sequence, length) = (word(16)?, word(24)?);
    let content = content.get(..usize::try_from(length).ok()?)?;
    let whole = header.starts_with(MAGIC) && header.get(32..)? == digest(sequence, content);
    whole.then(|| (content.to_vec(), sequence))
}

fn digest(sequence: u64, content: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(sequence.to_le_bytes()).chain_update(content).finalize().into()
}

/// Writes a record at `offset`, durable on return. `sequence` is one more than that of the record that it follows.
///
/// # Errors
/// `Io`: the new record may be there, or the one before; `Unexpected` where it is too long.
pub fn write(device: &Device, offset: u64, content: &[u8], sequence: u64) -> Result<()> {
    let file = direct(device, true)?;
    let mut memory = Aligned::new(COPY);
    let copy = memory.bytes();
    let mut text = MAGIC.to_vec();
    text.extend(sequence.to_le_bytes());
    text.extend((content.len() as u64).to_le_bytes());
    text.extend(digest(sequence, content));
    text.extend(content);
    let Some(place) = copy.get_mut(..text.len()) else {
        let reason = format!("a record of {} bytes is too long", content.len());
        return Err(Error::Unexpected { object: device.path().display().to_string(), reason });
    };
    place.copy_from_slice(&text);
    for number in 0..COPIES {
        file.write_all_at(copy, offset + number * COPY as u64).map_err(|error| Error::io("write", device.path(), error))?;
        device.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::fs::testing::{Loop, in_namespace};

    const AT: u64 = 1 << 20;

    fn seen(device: &Device) -> Found {
        parse(&read_direct(device, AT, LENGTH as usize).expect("reads"))
    }

    #[test]
    fn record_survives_a_torn_write_and_a_decayed_copy() {
        in_namespace(|| {
            let Some(under) = Loop::new(4 << 20) else { return };
            let device = Device::open(&under.device, true).expect("opens");
            assert_eq!(seen(&device), Found::None);
            write(&device, AT, b"one", 1).expect("writes");
            write(&device, AT, b"two", 2).expect("writes");
            let record = |text: &str, sequence, even| Found::Record { content: text.into(), sequence, even };
            assert_eq!(seen(&device), record("two", 2, true));
            let spoil = |copy: u64| {
                let mut memory = Aligned::new(ALIGNED);
                direct(&device, true).expect("opens").write_all_at(memory.bytes(), AT + copy * COPY as u64).expect("writes");
            };
            spoil(0);
            assert_eq!(seen(&device), record("two", 2, false), "not what was before");
            write(&device, AT, b"three", 3).expect("writes");
            spoil(1);
            assert_eq!(seen(&device), record("three", 3, false));
            spoil(0);
            assert_eq!(seen(&device), Found::None, "zeroes are no record");
            let too_long = write(&device, AT, &vec![0; COPY], 4);
            assert!(matches!(too_long, Err(Error::Unexpected { .. })), "{too_long:?}");
        });
    }

    #[test]
    fn record_without_a_whole_copy_is_damaged() {
        let mut bytes = vec![0; LENGTH as usize];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        assert_eq!(parse(&bytes), Found::Damaged);
        bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(parse(&bytes), Found::Damaged);
        assert_eq!(parse(&[]), Found::None);
    }
}

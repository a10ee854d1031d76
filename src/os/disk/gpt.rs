//! The partition table of a disk that holds one volume: a small partition for the driver's record, and one for the data.
//!
//! The kernel gets each partition by an ioctl (BLKPG), which works for each disk, be its partitions scanned or not.
#![allow(unsafe_code, reason = "BLKPG has no safe wrapper")]

use std::fmt;
use std::io::Cursor;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::str::FromStr;

use gptman::{GPT, GPTHeader, GPTPartitionEntry};
use serde::{Deserialize, Serialize};

use super::{Partition, record};
use crate::os::block::Device;
use crate::os::{Error, Result, memfd, random};

/// Where the record's partition begins, in bytes; what a disk is known by lies before its end.
pub const RECORD_START: u64 = 1 << 20;
/// Where the data's partition begins, in bytes.
pub const DATA_START: u64 = 2 << 20;
/// Of the data's partition.
pub const DATA: u32 = 2;
/// Of the record's.
pub const RECORD: u32 = 1;
/// To what partitions are aligned, and what is left for the second table at the disk's end, in bytes.
const UNIT: u64 = 1 << 20;

/// What the types of the partitions mean to other tools: nothing that they know.
const RECORD_TYPE: &str = "5b1d3c6e-7e54-4f3c-9c39-6f1f0f6d6a01";
const DATA_TYPE: &str = "5b1d3c6e-7e54-4f3c-9c39-6f1f0f6d6a02";

/// A GUID as GPT has it: its first three groups are little-endian (UEFI specification, appendix A).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Guid([u8; 16]);

/// Where the bytes of the text are in GPT's order.
const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];

impl Guid {
    /// A random one (RFC 9562, version 4).
    ///
    /// # Errors
    /// `Io` of /dev/random.
    pub fn random() -> Result<Guid> {
        let mut digits = random::hexadecimal(16)?;
        digits.replace_range(12..13, "4");
        digits.replace_range(16..17, "a");
        digits.parse().map_err(|reason| Error::Unexpected { object: "a random GUID".to_owned(), reason })
    }
}

impl fmt::Display for Guid {
    /// As below `/dev/disk/by-partuuid`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, index) in ORDER.iter().enumerate() {
            if [4, 6, 8, 10].contains(&position) {
                f.write_str("-")?;
            }
            write!(f, "{:02x}", self.0.get(*index).copied().unwrap_or_default())?;
        }
        Ok(())
    }
}

impl FromStr for Guid {
    type Err = String;

    fn from_str(text: &str) -> Result<Guid, String> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        let mut bytes = [0; 16];
        for (position, index) in ORDER.iter().enumerate() {
            let pair = digits.get(2 * position..2 * position + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
            let (Some(place), Some(byte)) = (bytes.get_mut(*index), pair) else { return Err(format!("{text:?} is no GUID")) };
            *place = byte;
        }
        if digits.len() == 32 { Ok(Guid(bytes)) } else { Err(format!("{text:?} is no GUID")) }
    }
}

impl From<Guid> for String {
    fn from(guid: Guid) -> String {
        guid.to_string()
    }
}

impl TryFrom<String> for Guid {
    type Error = String;

    fn try_from(text: String) -> Result<Guid, String> {
        text.parse()
    }
}

/// How many bytes of a disk of `size` bytes its volume has; 0 for a disk that is too small.
pub fn data_size(size: u64) -> u64 {
    (size - size % UNIT).saturating_sub(DATA_START + UNIT)
}

/// How much of a disk's start, and of its end, a table takes at most, in bytes.
pub const TABLE: usize = 64 << 10;

/// The table of a disk, which is all there is in its first [`RECORD_START`] bytes and behind its last partition.
pub struct Table {
    start: Vec<u8>,
    end: Vec<u8>,
    size: u64,
}

impl Table {
    /// That of a disk of `size` bytes with logical blocks of `block` bytes.
    ///
    /// # Errors
    /// `Unexpected` where the disk is too small; `Io` where there is no memory.
    pub fn new(size: u64, block: u64, disk: Guid, data: Guid) -> Result<Table> {
        let failed = |error: gptman::Error| Error::Unexpected {
            object: "a partition table".to_owned(),
            reason: format!("it cannot be made for {size} bytes: {error}"),
        };
        let entry = |kind: &str, guid: Guid, start: u64, length: u64, name: &str| {
            let kind = kind.parse::<Guid>().map_err(|reason| Error::Unexpected { object: "a GUID".to_owned(), reason })?;
            Ok::<_, Error>(GPTPartitionEntry {
                partition_type_guid: kind.0,
                unique_partition_guid: guid.0,
                starting_lba: start / block,
                ending_lba: (start + length) / block - 1,
                attribute_bits: 0,
                partition_name: name.into(),
            })
        };
        // As large as the disk, and all holes but for the table.
        let mut file = memfd::create("partition table", size)?;
        let mut table = GPT::new_from(&mut file, block, disk.0).map_err(failed)?;
        table[RECORD] = entry(RECORD_TYPE, disk, RECORD_START, record::LENGTH, "longshore record")?;
        table[DATA] = entry(DATA_TYPE, data, DATA_START, data_size(size), "longshore volume")?;
        GPT::write_protective_mbr_into(&mut file, block).map_err(failed)?;
        table.write_into(&mut file).map_err(failed)?;
        let read = |offset: u64| {
            let mut bytes = vec![0; TABLE];
            file.read_exact_at(&mut bytes, offset).map_err(|error| Error::io("read", "memory", error))?;
            Ok::<_, Error>(bytes)
        };
        Ok(Table { start: read(0)?, end: read(size - TABLE as u64)?, size })
    }

    /// Whether an open whole disk has nothing in its place but, perhaps, parts of this very table.
    pub fn has_room(&self, device: &Device) -> Result<bool> {
        let start = record::read_direct(device, 0, RECORD_START as usize)?;
        let end = record::read_direct(device, self.size - TABLE as u64, TABLE)?;
        Ok(is_part(&start, &self.start) && is_part(&end, &self.end))
    }

    /// Writes it; flushed on return. The record's partition is there for the record to be seen and kept off by other tools.
    ///
    /// # Errors
    /// `Io`; a part of the table may be there.
    pub fn write(&self, device: &Device) -> Result<()> {
        for (bytes, offset) in [(&self.end, self.size - TABLE as u64), (&self.start, 0)] {
            device.file().write_all_at(bytes, offset).map_err(|error| Error::io("write", device.path(), error))?;
            device.flush()?;
        }
        Ok(())
    }
}

/// Whether each sector is zeroes, or what is expected there.
fn is_part(bytes: &[u8], expected: &[u8]) -> bool {
    const SECTOR: usize = 512;
    let mut expected = expected.chunks(SECTOR);
    bytes.chunks(SECTOR).all(|sector| {
        let own = expected.next();
        sector.iter().all(|byte| *byte == 0) || own == Some(sector)
    })
}

/// Whether the first [`TABLE`] bytes of a disk have its table, `size` being that of the disk when it was written.
///
/// # Errors
/// What is there instead, in words.
pub fn check(start: &[u8], block: u64, size: u64, data: Guid) -> Result<(), String> {
    let damaged = |error: gptman::Error| format!("its partition table cannot be read: {error}; `sgdisk --verify` tells more");
    let mut reader = Cursor::new(start);
    reader.set_position(block);
    let header = GPTHeader::read_from(&mut reader).map_err(damaged)?;
    let entries = header.read_partitions(&mut reader, block).map_err(damaged)?;
    let used: Vec<&GPTPartitionEntry> = entries.iter().filter(|entry| entry.is_used()).collect();
    let first_and_last = (DATA_START / block, (DATA_START + data_size(size)) / block - 1);
    match used.as_slice() {
        [_, entry] if entry.unique_partition_guid == data.0 && (entry.starting_lba, entry.ending_lba) == first_and_last => Ok(()),
        _ => Err(format!("its partition table was changed: it has {} partitions, and not those of the driver", used.len())),
    }
}

/// linux/blkpg.h
mod ioctl {
    pub const ADD: libc::c_int = 1;
    pub const DELETE: libc::c_int = 2;

    #[repr(C)]
    pub struct Partition {
        pub start: libc::c_longlong,
        pub length: libc::c_longlong,
        pub number: libc::c_int,
        pub device_name: [u8; 64],
        pub volume_name: [u8; 64],
    }

    #[repr(C)]
    pub struct Argument {
        pub operation: libc::c_int,
        pub flags: libc::c_int,
        pub length: libc::c_int,
        pub data: *mut Partition,
    }

    nix::ioctl_write_ptr_bad!(partition, nix::request_code_none!(0x12, 105), Argument);
}

/// Has the kernel show those of the partitions of an open whole disk that it does not show; `size` as in [`check`].
///
/// # Errors
/// EBUSY where it shows others in their place.
pub fn add_partitions(device: &Device, size: u64, shown: &[Partition]) -> Result<()> {
    let both = [(RECORD, RECORD_START, record::LENGTH), (DATA, DATA_START, data_size(size))];
    for (index, start, length) in both {
        if !shown.iter().any(|shown| (shown.index, shown.start, shown.size) == (index, start, length)) {
            change(device, ioctl::ADD, index, start, length, "add partition to")?;
        }
    }
    Ok(())
}

/// Has the kernel show the data's partition no longer, by which it is seen that nobody has it open; what is on the disk stays.
///
/// # Errors
/// EBUSY where a program or a mount has it open; ENXIO where it is not shown.
pub fn delete_partition(device: &Device) -> Result<()> {
    change(device, ioctl::DELETE, DATA, 0, 0, "delete partition of")
}

fn change(device: &Device, operation: libc::c_int, index: u32, start: u64, length: u64, action: &'static str) -> Result<()> {
    let signed = |bytes: u64| libc::c_longlong::try_from(bytes).unwrap_or(libc::c_longlong::MAX);
    let mut partition = ioctl::Partition {
        start: signed(start),
        length: signed(length),
        number: index.cast_signed(),
        device_name: [0; 64],
        volume_name: [0; 64],
    };
    let argument = ioctl::Argument {
        operation,
        flags: 0,
        length: libc::c_int::try_from(size_of::<ioctl::Partition>()).unwrap_or_default(),
        data: &raw mut partition,
    };
    // SAFETY: the descriptor is open, and both structures are laid out as the kernel's and live until the call is over.
    unsafe { ioctl::partition(device.file().as_raw_fd(), &raw const argument) }
        .map_err(|errno| Error::io(action, device.path(), errno))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::os::disk;
    use crate::os::fs::testing::{Loop, in_namespace, tool};

    #[test]
    fn guid_reads_as_it_prints() {
        let text = "5b1d3c6e-7e54-4f3c-9c39-6f1f0f6d6a02";
        let guid: Guid = text.parse().expect("a GUID");
        assert_eq!(guid.to_string(), text);
        assert_eq!(guid.0[..4], [0x6e, 0x3c, 0x1d, 0x5b], "the first group is little-endian");
        for text in ["", "5b1d3c6e-7e54-4f3c-9c39-6f1f0f6d6a0", "5b1d3c6e-7e54-4f3c-9c39-6f1f0f6d6a0203", "x"] {
            assert!(text.parse::<Guid>().is_err(), "{text}");
        }
        assert_ne!(Guid::random().expect("random"), Guid::random().expect("random"));
    }

    #[test]
    fn data_ends_before_the_second_table() {
        assert_eq!(data_size(16 << 20), 13 << 20);
        assert_eq!(data_size((16 << 20) + 4096), 13 << 20);
        assert_eq!(data_size(3 << 20), 0);
        assert_eq!(data_size(0), 0);
    }

    #[test]
    fn table_is_what_other_tools_read_and_the_kernel_shows_its_partition() {
        in_namespace(|| {
            let Some(under) = Loop::with_partitions(64 << 20) else { return };
            let device = Device::open(&under.device, true).expect("opens");
            let (whole, data) = (Guid::random().expect("random"), Guid::random().expect("random"));
            let table = Table::new(64 << 20, 512, whole, data).expect("made");
            assert!(table.has_room(&device).expect("reads"));
            table.write(&device).expect("writes");
            assert!(table.has_room(&device).expect("reads"), "its own parts");
            assert!(!Table::new(64 << 20, 512, data, whole).expect("made").has_room(&device).expect("reads"));
            let start = record::read_direct(&device, 0, TABLE).expect("reads");
            assert_eq!(check(&start, 512, 64 << 20, data), Ok(()));
            let other = check(&start, 512, 64 << 20, whole).expect_err("another volume's");
            assert!(other.contains("was changed"), "{other}");
            assert!(check(&vec![0; 1 << 20], 512, 64 << 20, data).is_err());
            if let Some(dump) = tool("sfdisk", &["--dump", under.name()]) {
                assert!(dump.contains(&format!("start=        4096, size=      {}", (61 << 20) / 512)), "{dump}");
                assert!(dump.to_lowercase().contains(&data.to_string()), "{dump}");
            }
            add_partitions(&device, 64 << 20, &[]).expect("adds");
            assert_eq!(add_partitions(&device, 64 << 20, &[]).expect_err("they are there").errno(), Some(libc::EBUSY));
            let seen = disk::of(Path::new("/sys"), device.number()).expect("reads").expect("is there");
            add_partitions(&device, 64 << 20, &seen.partitions).expect("both are there");
            let partition = seen.partition(DATA).expect("a partition").clone();
            assert_eq!((partition.start, partition.size), (DATA_START, 61 << 20));
            assert_eq!(disk::of(Path::new("/sys"), partition.number).expect("reads"), Some(seen));
            let open = Device::open(&partition.path(), false).expect("opens");
            assert_eq!(delete_partition(&device).expect_err("it is open").errno(), Some(libc::EBUSY));
            drop(open);
            delete_partition(&device).expect("nobody has it open");
            assert_eq!(delete_partition(&device).expect_err("it is gone").errno(), Some(libc::ENXIO));
        });
    }
}

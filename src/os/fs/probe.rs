//! What is on a device: a known signature, proven nothing, or unknown. Unknown is never blank.
//!
//! Our own reader and not blkid: its "nothing found" may mean that it could not read.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;

use super::mark::Made;
use super::signature::{AT_START, START, Signature, places};
use super::superblock::{self, Superblock};
use super::*;
use crate::os::copy;
use crate::os::step::note;

/// What a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// A file system that we can mount.
    Filesystem(FsType),
    /// Something else that has a name: `LUKS`, `GPT partition table`, `ext4 backup superblock at 128 MiB`.
    Other(String),
    /// Zeroes from the first byte to the last: all of it was read, or is a hole in the file beneath; or its storage made it empty, and no
    /// signature and no sample says otherwise.
    Blank,
    /// It could not be read everywhere, or holds data that we have no name for; why, with offsets.
    Unknown(String),
}

/// What is known of where a device has data, so that not all of a blank one must be read.
#[derive(Clone, Copy, Debug)]
pub enum Evidence<'a> {
    /// Nothing: it is read from its first byte to its last.
    None,
    /// The file whose bytes the device shows: its holes need not be read.
    Beneath(&'a File),
    /// The storage's word that it made this device empty, for this very volume. It is believed where nothing speaks against it: the
    /// places of all signatures, the first and last [`EDGE`], and [`SAMPLES`] samples are read.
    MadeEmpty,
}

impl<'a> From<Option<&'a File>> for Evidence<'a> {
    fn from(beneath: Option<&'a File>) -> Self {
        beneath.map_or(Evidence::None, Evidence::Beneath)
    }
}

/// What is read at once.
const CHUNK: usize = 1 << 20;
/// In bytes.
const EDGE: u64 = 16 << 20;
/// Of one [`SAMPLE`] each, evenly spread.
const SAMPLES: u64 = 256;
/// In bytes.
const SAMPLE: u64 = 64 << 10;
/// What is not larger is read whole, whatever is known.
const SMALL: u64 = 1 << 30;

/// Looks, through the open descriptor. A device on which no signature is found is read to its first byte that is not zero,
/// so a blank one to its end, unless there is `evidence`. The caller has flushed the device.
///
/// # Errors
/// Only of asking for the size. What cannot be read is [`Contents::Unknown`].
pub fn probe(device: &Device, evidence: Evidence<'_>) -> Result<Contents> {
    Ok(contents(device.file(), device.size()?, evidence))
}

/// What a device holds, and whether a format of it is in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// As if the mark were not there.
    pub contents: Contents,
    /// The format that was interrupted. `None` where a sound file system is there that the format did not make, or that was mounted since:
    /// then the mark means nothing.
    pub mark: Option<Mark>,
    /// A mark that means nothing, and lies behind the file system: the format came to its end, but for the mark's removal, or another made the
    /// file system. Nothing has it mounted, so that it cannot grow over the mark meanwhile.
    pub finished: Option<Mark>,
}

/// As [`probe`], with the mark of a format in progress: see [`super::mark`]; `marked` is where the journal says that it may lie, too.
///
/// # Errors
/// Only of asking for the size. A mark that cannot be read is none: then nothing is repeated. A btrfs with a mark that does not pass
/// its check is [`Contents::Unknown`]: a power failure may have left it so at the end of mkfs, but it may also have been used since.
pub fn probe_marked(device: &Device, evidence: Evidence<'_>, marked: Option<u64>) -> Result<Probed> {
    let size = device.size()?;
    let Some(mark) = mark::find(device, marked).ok().flatten() else {
        return Ok(Probed { contents: contents(device.file(), size, evidence), mark: None, finished: None });
    };
    let mut reader = Reader { file: device.file(), size, buffer: Vec::new(), hidden: mark.range() };
    let contents = look(&mut reader, evidence).unwrap_or_else(Contents::Unknown);
    let made = match &contents {
        Contents::Filesystem(fstype) => mark::made(&mark, device, *fstype),
        _ => Made::Interrupted,
    };
    if let (Made::Finished, Contents::Filesystem(FsType::Btrfs)) = (made, &contents)
        && let Err(error) = check::check_btrfs(device)
    {
        return Ok(Probed { contents: Contents::Unknown(unfinished(&error)), mark: None, finished: None });
    }
    let behind = |fstype| {
        device.is_claimed().is_ok_and(|claimed| !claimed) && size_on_device(device, fstype).is_ok_and(|size| size <= mark.offset)
    };
    let finished = match (made, &contents) {
        (Made::Finished | Made::Nothing, Contents::Filesystem(fstype)) if behind(*fstype) => Some(mark.clone()),
        _ => None,
    };
    Ok(Probed { contents, mark: (made == Made::Interrupted).then_some(mark), finished })
}

fn unfinished(error: &Error) -> String {
    format!(
        "its mkfs.btrfs was interrupted, or it is mounted: {error}. If it was never used, run `wipefs --all` on it, and it is formatted again"
    )
}

/// The same for whatever can be read; `size` in bytes.
pub fn contents(file: &File, size: u64, evidence: Evidence<'_>) -> Contents {
    if size == 0 {
        return Contents::Unknown("its size is 0".to_owned());
    }
    look(&mut Reader { file, size, buffer: Vec::new(), hidden: 0..0 }, evidence).unwrap_or_else(Contents::Unknown)
}

/// The error is why it is unknown.
fn look(reader: &mut Reader<'_>, evidence: Evidence<'_>) -> Result<Contents, String> {
    let start = reader.read(0, START.min(reader.size))?.to_vec();
    let others: Vec<&Signature> = AT_START.iter().filter(|signature| signature.is_in(&start)).collect();
    let ours: Vec<(FsType, Superblock)> =
        FsType::ALL.into_iter().filter_map(|fstype| Some((fstype, superblock_in(fstype, &start)?))).collect();
    let sound = ours.iter().filter_map(|(fstype, found)| match found {
        Superblock::Sound { size } => Some((*fstype, *size)),
        _ => None,
    });
    match *sound.collect::<Vec<_>>() {
        [] => match without_ours(&ours, &others)? {
            Some(contents) => Ok(contents),
            None => away_from_start(reader, evidence),
        },
        [(fstype, size)] => sole_superblock(reader, fstype, size, &others),
        [(one, _), (other, _), ..] => Err(two(one.as_str(), other.as_str())),
    }
}

fn superblock_in(fstype: FsType, start: &[u8]) -> Option<Superblock> {
    superblock::parse(fstype, start.get(usize::try_from(superblock::place(fstype)).ok()?..)?)
}

/// One superblock of ours is sound. It is what counts, stale rests of others or not, unless the device may belong to
/// something greater.
fn sole_superblock(reader: &mut Reader<'_>, fstype: FsType, size: u64, others: &[&Signature]) -> Result<Contents, String> {
    if let Some(container) = others.iter().find(|other| other.contests) {
        return Err(two(fstype.as_str(), container.name));
    }
    for place in places(reader.size).iter().filter(|place| place.contests()) {
        if let Some((name, _)) = place.look(reader.read(place.offset, place.length)?) {
            return Err(two(fstype.as_str(), name));
        }
    }
    if size > reader.size {
        return Err(format!("it holds {fstype} of {size} bytes, but has only {}: it may have been cut short", reader.size));
    }
    Ok(Contents::Filesystem(fstype))
}

fn two(one: &str, other: &str) -> String {
    format!("it holds both {one} and {other}, and only one of them can be true; `wipefs` shows them and removes the wrong one")
}

/// No superblock of ours is sound. What else is at the start?
fn without_ours(ours: &[(FsType, Superblock)], others: &[&Signature]) -> Result<Option<Contents>, String> {
    let other = |signature: &&Signature| Contents::Other(signature.name.to_owned());
    if let Some(container) = others.iter().find(|other| other.contests) {
        return Ok(Some(other(container)));
    }
    if let Some((fstype, found)) = ours.first() {
        return match found {
            Superblock::Foreign(name) => Ok(Some(Contents::Other(name.clone()))),
            Superblock::Broken(why) => Err(format!("it begins as {fstype}, but {why}")),
            Superblock::Sound { .. } => Ok(Some(Contents::Filesystem(*fstype))),
        };
    }
    Ok(others.first().map(other))
}

/// Nothing at the start has a name. If anything is there at all, it may have one elsewhere.
fn away_from_start(reader: &mut Reader<'_>, evidence: Evidence<'_>) -> Result<Contents, String> {
    let Some(data) = first_data(reader, evidence)? else { return Ok(Contents::Blank) };
    for place in places(reader.size) {
        if let Some((name, advice)) = place.look(reader.read(place.offset, place.length)?) {
            return Ok(Contents::Other(format!("{name} at {}, nothing known at the start ({advice})", Offset(place.offset))));
        }
    }
    Err(format!("there is data at {}, under no signature known here", Offset(data)))
}

/// Where the first byte is that is not zero.
fn first_data(reader: &mut Reader<'_>, evidence: Evidence<'_>) -> Result<Option<u64>, String> {
    let file = match evidence {
        Evidence::Beneath(file) => file,
        Evidence::MadeEmpty if reader.size > SMALL => return sampled_data(reader),
        Evidence::None | Evidence::MadeEmpty => return reader.first_data(0..reader.size),
    };
    let fail = |error: Error| format!("of the file beneath it cannot be said where it has data: {error}");
    file.sync_all().map_err(|error| fail(Error::io("sync", "the file", error)))?;
    let mut found = Ok(None);
    copy::data_extents(file, 0, &mut |offset, length| {
        found = reader.first_data(offset..reader.size.min(offset + length));
        if found == Ok(None) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .map_err(fail)?;
    // Last, since it may have been cut while we read; some kernels show zeroes where a loop device's file has ended.
    let length = file.metadata().map_err(|error| fail(Error::io("stat", "the file", error)))?.len();
    if length < reader.size {
        return Err(format!("the file beneath it has only {length} bytes of its {}: it was cut short", reader.size));
    }
    found
}

/// Where data was met, of what is not known to hold any.
fn sampled_data(reader: &mut Reader<'_>) -> Result<Option<u64>, String> {
    let size = reader.size;
    let mut ranges = vec![0..EDGE, size - EDGE..size];
    ranges.extend(places(size).iter().map(|place| place.offset..place.offset + place.length));
    ranges.extend((0..SAMPLES).map(|number| size / SAMPLES * number).map(|offset| offset..offset + SAMPLE));
    for range in ranges {
        if let Some(at) = reader.first_data(range)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Which of the bytes is the first that is not zero.
fn first_set(bytes: &[u8]) -> Option<u64> {
    // Whole pieces first: that is one fast comparison each.
    const ZEROES: [u8; 4096] = [0; 4096];
    let piece = bytes.chunks(ZEROES.len()).position(|piece| !ZEROES.starts_with(piece))?;
    let from = piece * ZEROES.len();
    let within = bytes.get(from..)?.iter().position(|byte| *byte != 0)?;
    Some((from + within) as u64)
}

struct Reader<'a> {
    file: &'a File,
    size: u64,
    buffer: Vec<u8>,
    /// Read as zeroes.
    hidden: Range<u64>,
}

impl Reader<'_> {
    /// Where the first byte in this range is that is not zero.
    fn first_data(&mut self, range: Range<u64>) -> Result<Option<u64>, String> {
        let size = self.size;
        for offset in range.clone().step_by(CHUNK) {
            note("probe", &format_args!("at {} of {} MiB", offset >> 20, size >> 20));
            let bytes = self.read(offset, (range.end - offset).min(CHUNK as u64))?;
            if let Some(at) = first_set(bytes) {
                return Ok(Some(offset + at));
            }
        }
        Ok(None)
    }

    /// All `length` bytes at `offset`, or why not.
    fn read(&mut self, offset: u64, length: u64) -> Result<&[u8], String> {
        self.buffer.resize(usize::try_from(length).map_err(|error| error.to_string())?, 0);
        let mut done = 0;
        while let Some(rest) = self.buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            match self.file.read_at(rest, at) {
                Ok(0) => return Err(format!("it has nothing at {}, although its size is {} bytes", Offset(at), self.size)),
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("it cannot be read at {}: {error}", Offset(at))),
            }
        }
        let within = |at: u64| usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX).min(self.buffer.len());
        let hidden = within(self.hidden.start)..within(self.hidden.end);
        self.buffer.get_mut(hidden).unwrap_or_default().fill(0);
        Ok(&self.buffer)
    }
}

/// A place on a device, for people.
struct Offset(u64);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("byte 0"),
            offset if offset % (1 << 20) == 0 => write!(f, "{} MiB", offset >> 20),
            offset if offset % (1 << 10) == 0 => write!(f, "{} KiB", offset >> 10),
            offset => write!(f, "byte {offset}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{self, Loop, tool};
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Offsets and what is written there.
    type Writes<'a> = &'a [(u64, &'a [u8])];

    fn sparse(size: u64) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        file
    }

    /// Made by a tool with its arguments; the file's name comes last. None where it is not installed.
    fn made(size: u64, name: &'static str, arguments: &[&str]) -> Option<tempfile::NamedTempFile> {
        let file = sparse(size);
        tool(name, &[arguments, &[file.path().to_str().unwrap()]].concat())?;
        Some(file)
    }

    fn seen(file: &tempfile::NamedTempFile) -> Contents {
        contents(file.as_file(), file.as_file().metadata().unwrap().len(), Evidence::Beneath(file.as_file()))
    }

    /// A device that is blank but for these.
    fn with(size: u64, writes: Writes<'_>) -> Contents {
        seen(&written(size, writes))
    }

    fn written(size: u64, writes: Writes<'_>) -> tempfile::NamedTempFile {
        let file = sparse(size);
        for (offset, bytes) in writes {
            file.as_file().write_all_at(bytes, *offset).unwrap();
        }
        file
    }

    /// Where the storage says that it made it empty.
    fn known_blank(file: &tempfile::NamedTempFile) -> Contents {
        contents(file.as_file(), file.as_file().metadata().unwrap().len(), Evidence::MadeEmpty)
    }

    fn unknown(contents: &Contents, what: &str) {
        assert!(matches!(contents, Contents::Unknown(why) if why.contains(what)), "{contents:?}, not {what}");
    }

    fn other(contents: &Contents, name: &str) {
        assert!(matches!(contents, Contents::Other(found) if found.starts_with(name)), "{contents:?}, not {name}");
    }

    #[test]
    fn ours_are_known() {
        for (name, options, fstype) in [
            ("mkfs.ext4", "-q", FsType::Ext4),
            ("mkfs.ext4", "-q -b 1024", FsType::Ext4),
            ("mkfs.ext4", "-q -O ^has_journal,^64bit", FsType::Ext4),
            ("mkfs.xfs", "-q", FsType::Xfs),
            ("mkfs.xfs", "-q -m crc=0", FsType::Xfs),
            ("mkfs.btrfs", "-q", FsType::Btrfs),
            ("mkfs.btrfs", "-q --csum blake2 -m single", FsType::Btrfs),
        ] {
            let Some(file) = made(400 * MIB, name, &options.split(' ').collect::<Vec<_>>()) else { continue };
            assert_eq!(seen(&file), Contents::Filesystem(fstype), "{name} {options}");
        }
    }

    #[test]
    fn a_tiny_one_is_known() {
        let Some(file) = made(2 * MIB, "mkfs.ext4", &["-q"]) else { return };
        assert_eq!(seen(&file), Contents::Filesystem(FsType::Ext4));
    }

    #[test]
    fn others_made_by_their_tools_have_names() {
        for (name, options, expected) in [
            ("mkfs.ext4", "-q -t ext2", "ext2"),
            ("mkfs.ext4", "-q -t ext3", "ext3"),
            ("mkfs.ext4", "-q -O journal_dev", "ext4 journal device"),
            ("mkswap", "-q", "swap"),
            ("mkswap", "-q -p 65536", "swap"),
            ("mkfs.minix", "-3", ""),
        ] {
            let Some(file) = made(64 * MIB, name, &options.split(' ').collect::<Vec<_>>()) else { continue };
            match expected {
                "" => unknown(&seen(&file), "there is data at"),
                expected => other(&seen(&file), expected),
            }
        }
    }

    #[test]
    fn signatures_at_the_start_have_names() {
        let partition = b"\x80\x20\x21\x00\x83\xff\xff\xff\x00\x08\x00\x00\x00\x20\x00\x00";
        let rows: &[(&str, Writes<'_>)] = &[
            ("LUKS", &[(0, b"LUKS\xba\xbe\0\x02")]),
            ("LVM physical volume", &[(512, b"LABELONE")]),
            ("md RAID member (1.2)", &[(4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0")]),
            ("bcache", &[(4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")]),
            ("Ceph BlueStore", &[(0, b"bluestore block device\n")]),
            ("ZFS", &[(129 << 10, b"\x0c\xb1\xba\0\0\0\0\0")]),
            ("GPT partition table", &[(512, b"EFI PART"), (510, b"\x55\xaa")]),
            ("MBR partition table", &[(446, partition), (510, b"\x55\xaa")]),
            ("boot sector", &[(510, b"\x55\xaa")]),
            ("vfat", &[(82, b"FAT32   "), (510, b"\x55\xaa")]),
            ("squashfs", &[(0, b"hsqs")]),
            ("iso9660", &[(32769, b"CD001")]),
            ("nilfs2", &[(1024, b"\x02\0\0\0\0\0\x34\x34")]),
            ("reiserfs", &[(65588, b"ReIsEr2Fs")]),
        ];
        for (name, writes) in rows {
            other(&with(64 * MIB, writes), name);
        }
    }

    #[test]
    fn a_signature_elsewhere_is_reported_with_its_place() {
        let mut md_new = vec![0; 4096];
        md_new[..8].copy_from_slice(b"\xfc\x4e\x2b\xa9\x01\0\0\0");
        md_new[128..136].copy_from_slice(&((1024 * MIB - 8192) / 512).to_le_bytes());
        let size = 1024 * MIB;
        let rows: &[(&str, u64, &[u8])] = &[
            ("ext4 backup superblock at 128 MiB", 128 * MIB + 56, b"\x53\xef"),
            ("ext4 backup superblock at 8193 KiB", 8193 * 1024 + 56, b"\x53\xef"),
            ("ext4 backup superblock at 640 MiB", 640 * MIB + 56, b"\x53\xef"),
            ("xfs secondary superblock at 256 MiB", 256 * MIB, b"XFSB"),
            ("xfs secondary superblock at 896 MiB", 896 * MIB, b"XFSB"),
            ("btrfs superblock mirror at 64 MiB", 64 * MIB + 64, b"_BHRfS_M"),
            ("LUKS2 secondary header at 16 KiB", 16 << 10, b"SKUL\xba\xbe"),
            ("LUKS2 secondary header at 4 MiB", 4 * MIB, b"SKUL\xba\xbe"),
            ("GPT backup partition table at byte 1073741312", size - 512, b"EFI PART"),
            ("md RAID member at 1048512 KiB", size - 65536, b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a\0\0\0"),
            ("md RAID member at 1048568 KiB", size - 8192, &md_new),
            ("ZFS label at 1048064 KiB", size - (512 << 10) + (128 << 10), b"\x0c\xb1\xba\0\0\0\0\0"),
            ("DRBD metadata at 1048572 KiB", size - 4096 + 60, b"\x83\x74\x02\x6b"),
        ];
        for (name, offset, bytes) in rows {
            other(&with(size, &[(*offset, bytes)]), name);
        }
    }

    #[test]
    fn file_system_with_an_erased_start_is_found() {
        for (name, expected) in [
            (
                "mkfs.ext4",
                "ext4 backup superblock at 128 MiB, nothing known at the start (`e2fsck -b 32768 -B 4096` may repair it",
            ),
            ("mkfs.xfs", "xfs secondary superblock at 256 MiB"),
            ("mkfs.btrfs", "btrfs superblock mirror at 64 MiB"),
        ] {
            let Some(file) = made(1024 * MIB, name, &["-q"]) else { continue };
            file.as_file().write_all_at(&vec![0; 4 << 20], 0).unwrap();
            other(&seen(&file), expected);
        }
    }

    #[test]
    fn holes_of_all_sizes_are_blank() {
        for size in [512, 4096, MIB - 512, MIB, 5 * MIB + 512, 16 * MIB + 1024, 10 << 30, (14 << 40) + 512] {
            assert_eq!(seen(&sparse(size)), Contents::Blank, "{size}");
        }
    }

    /// The word of a storage that it made a device empty spares reading it, not looking.
    #[test]
    fn device_known_blank_is_still_read() {
        let size = 64 << 30;
        assert_eq!(known_blank(&sparse(size)), Contents::Blank);
        assert_eq!(known_blank(&sparse(5 * MIB)), Contents::Blank);
        for offset in [0, EDGE - 1, 64 * MIB + 64, size / SAMPLES * 77 + 5, size - 9000, size - EDGE] {
            unknown(&known_blank(&written(size, &[(offset, b"x")])), "there is data at");
        }
        unknown(&known_blank(&written(500 * MIB, &[(300 * MIB + 123_457, b"x")])), "there is data at");
        other(&known_blank(&written(size, &[(64 * MIB + 64, b"_BHRfS_M")])), "btrfs superblock mirror at 64 MiB");
        // Between the samples only the word speaks.
        let unseen = written(size, &[(size / 2 + size / SAMPLES / 2, b"x")]);
        assert_eq!(known_blank(&unseen), Contents::Blank);
        unknown(&seen(&unseen), "there is data at");
    }

    #[test]
    fn one_byte_anywhere_is_enough_to_be_unknown() {
        let size = 100 * MIB;
        for offset in [0, 1023, 300_000, 4 * MIB - 1, 50 * MIB + 17, size - 4 * MIB, size - 1] {
            let name = Offset(offset).to_string();
            unknown(&with(size, &[(offset, b"\x01")]), &format!("data at {name}"));
        }
        for offset in [0, 5 * MIB + 17, 12 * MIB - 1] {
            unknown(&with(12 * MIB, &[(offset, b"\x01")]), &format!("data at {}", Offset(offset)));
        }
    }

    #[test]
    fn unreadable_device_is_unknown() {
        let file = sparse(MIB);
        unknown(&contents(file.as_file(), 0, Evidence::None), "size is 0");
        unknown(&contents(file.as_file(), 64 * MIB, Evidence::None), "it has nothing at");
        let short = sparse(62 * MIB);
        unknown(&contents(sparse(64 * MIB).as_file(), 64 * MIB, Evidence::Beneath(short.as_file())), "it was cut short");
        let write_only = File::options().write(true).open(file.path()).unwrap();
        unknown(&contents(&write_only, MIB, Evidence::None), "cannot be read at byte 0");
    }

    /// The kernel's own EIO: the image ends before its loop device does.
    #[test]
    fn a_device_that_fails_is_unknown() {
        let Some(device) = Loop::new(64 * MIB) else { return };
        let open = Device::open(&device.device, false).unwrap();
        assert_eq!(probe(&open, Evidence::None).unwrap(), Contents::Blank);
        drop(open);
        device.image.set_len(62 * MIB).unwrap();
        tool("blockdev", &["--flushbufs", device.name()]);
        let open = Device::open(&device.device, false).unwrap();
        unknown(&probe(&open, Evidence::None).unwrap(), "cannot be read at");
    }

    #[test]
    fn beside_a_container_a_file_system_proves_nothing() {
        let Some(file) = made(400 * MIB, "mkfs.ext4", &["-q"]) else { return };
        let partition = b"\x80\x20\x21\x00\x83\xff\xff\xff\x00\x08\x00\x00\x00\x20\x00\x00";
        let size = 400 * MIB;
        let rows: &[(&str, Writes<'_>)] = &[
            ("LUKS", &[(0, b"LUKS\xba\xbe")]),
            ("MBR partition table", &[(446, partition), (510, b"\x55\xaa")]),
            ("md RAID member", &[(size - 65536, b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a\0\0\0")]),
        ];
        for (name, writes) in rows {
            for (offset, bytes) in *writes {
                file.as_file().write_all_at(bytes, *offset).unwrap();
            }
            unknown(&seen(&file), &format!("both ext4 and {name}"));
            for (offset, bytes) in *writes {
                file.as_file().write_all_at(&vec![0; bytes.len()], *offset).unwrap();
            }
            assert_eq!(seen(&file), Contents::Filesystem(FsType::Ext4));
        }
    }

    #[test]
    fn beside_stale_rests_a_file_system_is_known() {
        let Some(file) = made(400 * MIB, "mkfs.xfs", &["-q"]) else { return };
        file.as_file().write_all_at(b"EFI PART", 400 * MIB - 512).unwrap();
        file.as_file().write_all_at(b"CD001", 32769).unwrap();
        assert_eq!(seen(&file), Contents::Filesystem(FsType::Xfs));
        let Some(btrfs) = made(400 * MIB, "mkfs.btrfs", &["-q"]) else { return };
        let mut superblock = vec![0; 4096];
        btrfs.as_file().read_exact_at(&mut superblock, 65536).unwrap();
        file.as_file().write_all_at(&superblock, 65536).unwrap();
        unknown(&seen(&file), "both xfs and btrfs");
    }

    #[test]
    fn a_superblock_that_cannot_be_is_unknown() {
        unknown(&with(64 * MIB, &[(0, b"XFSB")]), "begins as xfs");
        unknown(&with(64 * MIB, &[(65600, b"_BHRfS_M")]), "begins as btrfs");
        unknown(&with(64 * MIB, &[(65600, b"!BHRfS_M")]), "its mkfs was interrupted");
        unknown(&with(64 * MIB, &[(1080, b"\x53\xef"), (1120, b"\x40")]), "begins as ext4");
        let Some(file) = made(400 * MIB, "mkfs.xfs", &["-q"]) else { return };
        file.as_file().write_all_at(&[1], 126).unwrap();
        unknown(&seen(&file), "its mkfs was interrupted");
    }

    #[test]
    fn a_file_system_larger_than_its_device_is_unknown() {
        for name in ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs"] {
            let Some(file) = made(400 * MIB, name, &["-q"]) else { continue };
            file.as_file().set_len(399 * MIB).unwrap();
            unknown(&seen(&file), "it may have been cut short");
        }
    }

    #[test]
    fn a_discarded_device_is_blank() {
        testing::in_namespace(|| {
            for name in ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs"] {
                let Some(device) = Loop::new(400 * MIB) else { return };
                tool(name, &["-q", device.name()]);
                tool("blkdiscard", &["--zeroout", device.name()]);
                assert_eq!(
                    probe(&Device::open(&device.device, false).unwrap(), Evidence::None).unwrap(),
                    Contents::Blank,
                    "{name}"
                );
            }
        });
    }
}

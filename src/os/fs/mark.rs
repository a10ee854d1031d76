//! The mark of a format in progress: one sector near the end of the device, written before mkfs or luksFormat and cleared after it.
//!
//! It is the only evidence by which a format is repeated. It lies on the medium, so every node sees the same, no matter which node was interrupted;
//! a journal may say where to look for it, never that it is there. It is written on a device that was proven blank, and cleared before
//! the first mount: while it is there, nothing but the interrupted format was ever kept on the device.
//!
//! mkfs is asked to leave the last [`RESERVED`] bytes alone (see [`filesystem_size`]), so that no format overwrites its own mark.

use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use super::superblock;
use super::*;
use crate::os::random;
use crate::volume::digest::sha256;

/// Bytes at the end of the device that mkfs leaves alone, at the least. The mark lies at their beginning: mkfs.xfs writes zeroes over the
/// last 128 KiB of any device. Less than the difference at which a file system is grown.
const RESERVED: u64 = 192 << 10;
/// The mark lies at a multiple of this, which is a multiple of every block size.
const ALIGNMENT: u64 = 64 << 10;
/// What is written at once: a whole block of any device.
const LENGTH: usize = 4096;
/// What counts: one sector, which a power failure leaves old or new.
const SECTOR: usize = 512;
const MAGIC: &[u8; 24] = b"longshore format mark 1\n";

/// What is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    Filesystem(FsType),
    Luks,
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Purpose::Filesystem(fstype) => write!(f, "mkfs.{fstype}"),
            Purpose::Luks => f.write_str("luksFormat"),
        }
    }
}

/// A format in progress, as the medium has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub purpose: Purpose,
    /// The UUID that the file system or the LUKS header gets, in its text form.
    pub uuid: String,
    /// Where the mark lies, in bytes.
    pub offset: u64,
}

impl Mark {
    /// A mark for this device, with a UUID of its own. Nothing is written.
    ///
    /// # Errors
    /// `Unexpected` for a device that is too small to be formatted.
    pub fn new(device: &Device, purpose: Purpose) -> Result<Mark> {
        let random = random::hexadecimal(16)?;
        // RFC 9562, version 4.
        let uuid = format!("{}-{}-4{}-8{}-{}", &random[..8], &random[8..12], &random[13..16], &random[17..20], &random[20..]);
        Mark::with_uuid(device, purpose, uuid)
    }

    /// The same, with a UUID that is given.
    pub fn with_uuid(device: &Device, purpose: Purpose, uuid: String) -> Result<Mark> {
        let size = device.size()?;
        let offset = offset_on(size).ok_or_else(|| Error::Unexpected {
            object: device_name(device),
            reason: format!("{size} bytes are too few for a file system; it was not formatted"),
        })?;
        Ok(Mark { purpose, uuid, offset })
    }

    /// Writes it, durable on return. The device must be open for writing.
    pub fn write(&self, device: &Device) -> Result<()> {
        let mut block = [0; LENGTH];
        let text = self.text();
        let sector = [MAGIC.as_slice(), sha256(text.as_bytes()).as_bytes(), b"\n", text.as_bytes(), b"\n"].concat();
        for (to, from) in block.iter_mut().take(SECTOR).zip(sector) {
            *to = from;
        }
        device.file().write_all_at(&block, self.offset).map_err(|error| Error::io("mark format on", device.path(), error))?;
        device.flush()
    }

    /// Takes it away, durable on return, if it is still there: nothing else is overwritten.
    pub fn clear(&self, device: &Device) -> Result<()> {
        if read(device, self.offset)?.as_ref() != Some(self) {
            return Ok(());
        }
        // What lies beside it is not known to be ours.
        device.zero(self.offset, SECTOR as u64)?;
        device.flush()
    }

    fn text(&self) -> String {
        let purpose = match self.purpose {
            Purpose::Filesystem(fstype) => fstype.as_str(),
            Purpose::Luks => "luks",
        };
        format!("{purpose} {} {}", self.uuid, self.offset)
    }

    /// The bytes that it takes.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset + LENGTH as u64
    }
}

/// The mark of a format in progress: at its place on a device of this size, or `elsewhere`, where the journal says that it was written
/// when the device was smaller.
///
/// # Errors
/// Where the device cannot be read there.
pub fn find(device: &Device, elsewhere: Option<u64>) -> Result<Option<Mark>> {
    let size = device.size()?;
    for offset in [offset_on(size), elsewhere.filter(|offset| offset + LENGTH as u64 <= size)].into_iter().flatten() {
        if let Some(mark) = read(device, offset)? {
            return Ok(Some(mark));
        }
    }
    Ok(None)
}

/// The size in bytes of a file system that leaves the mark alone; `None` where it must have all of the device: mkfs.xfs refuses less
/// than its least size, and writes nothing to the end of its last group.
pub(super) fn filesystem_size(fstype: FsType, size: u64) -> Option<u64> {
    offset_on(size).filter(|limit| fstype != FsType::Xfs || *limit >= fstype.least_size().0)
}

/// Whether a file system of so many bytes has all of its device, but for what mkfs leaves alone.
pub fn fills(filesystem: u64, device: u64) -> bool {
    filesystem >= offset_on(device).unwrap_or(device)
}

/// Zeroes at both ends of a device, and wherever else a signature may lie: what a format that was interrupted has left has no name any more, so
/// that a mkfs that is not forced takes the device, and nobody treats it as another's. The mark of the format stays. Durable on return.
pub fn wipe(device: &Device, mark: Option<&Mark>) -> Result<()> {
    const END: u64 = 1 << 20;
    let size = device.size()?;
    let kept = mark.map_or(size..size, Mark::range);
    let places = signature::places(size).into_iter().map(|place| (place.offset, place.offset + place.length));
    for (from, to) in places.chain([(0, END.min(size)), (size.saturating_sub(END), size)]) {
        for (from, to) in [(from, to.min(kept.start)), (from.max(kept.end), to)] {
            device.zero(from, to.saturating_sub(from))?;
        }
    }
    device.flush()
}

fn offset_on(size: u64) -> Option<u64> {
    let offset = size.checked_sub(RESERVED)? & !(ALIGNMENT - 1);
    (offset > 0).then_some(offset)
}

fn read(device: &Device, offset: u64) -> Result<Option<Mark>> {
    let mut sector = [0; SECTOR];
    device.file().read_exact_at(&mut sector, offset).map_err(|error| Error::io("read format mark of", device.path(), error))?;
    Ok(parse(&sector).filter(|mark| mark.offset == offset))
}

fn parse(sector: &[u8; SECTOR]) -> Option<Mark> {
    let mut lines = sector.strip_prefix(MAGIC)?.split(|byte| *byte == b'\n');
    let (digest, text) = (lines.next()?, std::str::from_utf8(lines.next()?).ok()?);
    if digest != sha256(text.as_bytes()).as_bytes() {
        return None;
    }
    let mut words = text.split(' ');
    let purpose = match words.next()? {
        "luks" => Purpose::Luks,
        name => Purpose::Filesystem(name.parse().ok()?),
    };
    Some(Mark { purpose, uuid: words.next()?.to_owned(), offset: words.next()?.parse().ok()? })
}

/// What the mark says of the sound file system on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// The format made it, it was never mounted, and may be incomplete.
    Interrupted,
    /// The format came to its end, and may have been mounted since; a btrfs, if it passes a check.
    Finished,
    /// Nothing: another mkfs made it.
    Nothing,
}

/// Where it is not certain that nothing was ever written to the file system, it is not made again.
pub(super) fn made(mark: &Mark, device: &Device, fstype: FsType) -> Made {
    let read = |offset, length| {
        let mut bytes = vec![0; length];
        device.file().read_exact_at(&mut bytes, offset).ok().map(|()| bytes)
    };
    // By the UUID alone: a format that is repeated as another file system keeps it.
    if superblock::uuid(fstype, &read).as_deref() != Some(mark.uuid.as_str()) {
        Made::Nothing
    } else if superblock::never_mounted(fstype, &read) == Some(true) {
        Made::Interrupted
    } else {
        Made::Finished
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Loop, Mounted, in_namespace, tool};
    use super::*;

    const MIB: u64 = 1 << 20;

    fn marked(size: u64, fstype: FsType) -> Option<(Loop, Device, Mark)> {
        let under = Loop::new(size)?;
        let device = Device::open(&under.device, true).unwrap();
        let mark = Mark::new(&device, Purpose::Filesystem(fstype)).unwrap();
        mark.write(&device).unwrap();
        Some((under, device, mark))
    }

    #[test]
    fn mark_written_is_found_and_cleared() {
        let Some((_under, device, mark)) = marked(64 * MIB, FsType::Ext4) else { return };
        assert_eq!(find(&device, None).unwrap(), Some(mark.clone()));
        mark.clear(&device).unwrap();
        assert_eq!(find(&device, None).unwrap(), None);
        assert_eq!(probe(&device, Evidence::None).unwrap(), Contents::Blank);
    }

    #[test]
    fn mark_of_smaller_device_is_found_where_the_journal_says() {
        let Some((under, device, mark)) = marked(64 * MIB, FsType::Ext4) else { return };
        under.resize(128 * MIB);
        assert_eq!(find(&device, None).unwrap(), None);
        assert_eq!(find(&device, Some(mark.offset)).unwrap(), Some(mark));
        assert_eq!(find(&device, Some(u64::MAX / 2)).unwrap(), None, "beyond the end");
    }

    #[test]
    fn mark_damaged_or_copied_elsewhere_is_no_mark() {
        let Some((_under, device, mark)) = marked(64 * MIB, FsType::Xfs) else { return };
        let mut block = [0; LENGTH];
        device.file().read_exact_at(&mut block, mark.offset).unwrap();
        device.file().write_all_at(&block, 32 * MIB).unwrap();
        assert_eq!(find(&device, Some(32 * MIB)).unwrap(), Some(mark.clone()), "the one in its place counts");
        for byte in 0..MAGIC.len() + 65 {
            let mut damaged = block;
            damaged[byte] ^= 1;
            device.file().write_all_at(&damaged, mark.offset).unwrap();
            assert_eq!(find(&device, Some(32 * MIB)).unwrap(), None, "byte {byte}");
        }
        mark.clear(&device).unwrap();
        device.file().read_exact_at(&mut block, mark.offset).unwrap();
        assert!(block.iter().any(|byte| *byte != 0), "what is no longer the mark is not overwritten");
    }

    /// Whatever mkfs does, its mark is there until we clear it.
    #[test]
    fn mkfs_leaves_its_mark_alone() {
        in_namespace(|| {
            for (fstype, options) in [
                (FsType::Ext4, ""),
                (FsType::Ext4, "-b 1024"),
                (FsType::Ext4, "-O bigalloc -C 65536"),
                (FsType::Xfs, ""),
                (FsType::Xfs, "-d agcount=2 -l size=64m"),
                (FsType::Xfs, "-b size=1024"),
                (FsType::Btrfs, ""),
                (FsType::Btrfs, "-m single"),
            ] {
                for size in [400 * MIB, 400 * MIB + 4096] {
                    let Some((under, device, mark)) = marked(size, fstype) else { return };
                    let options: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
                    mkfs(&device, fstype, &options, Some(&mark)).unwrap();
                    assert_eq!(find(&device, None).unwrap().as_ref(), Some(&mark), "{fstype} {options:?}");
                    let unused = if fstype == FsType::Btrfs { Made::Finished } else { Made::Interrupted };
                    assert_eq!(made(&mark, &device, fstype), unused, "{fstype} {options:?}");
                    assert!(size - size_on_device(&device, fstype).unwrap() < MIB, "{fstype} {options:?}");
                    let directory = tempfile::tempdir().unwrap();
                    {
                        let _mounted = Mounted::new(&under.device, directory.path(), fstype.as_str());
                        let probed = probe_marked(&device, Evidence::None, None).unwrap();
                        assert_eq!(probed.finished, None, "{fstype} {options:?} is mounted");
                    }
                    assert_eq!(made(&mark, &device, fstype), Made::Finished, "{fstype} {options:?} was mounted");
                    let probed = probe_marked(&device, Evidence::None, None).unwrap();
                    assert_eq!(probed.contents, Contents::Filesystem(fstype), "{fstype} {options:?}");
                    assert_eq!((probed.mark, probed.finished.as_ref()), (None, Some(&mark)), "{fstype} {options:?}");
                }
            }
        });
    }

    /// A power failure at the end of mkfs may leave it so; but it may also have been used and damaged since.
    #[test]
    fn btrfs_with_a_mark_that_fails_its_check_is_not_formatted() {
        let Some((under, device, mark)) = marked(320 * MIB, FsType::Btrfs) else { return };
        mkfs(&device, FsType::Btrfs, &[], Some(&mark)).unwrap();
        // All but the superblocks.
        for at in (MIB..319 * MIB).step_by(1 << 20).filter(|at| *at != 64 * MIB) {
            device.zero(at, MIB).unwrap();
        }
        device.flush().unwrap();
        let probed = probe_marked(&device, Evidence::None, None).unwrap();
        assert!(matches!(&probed.contents, Contents::Unknown(why) if why.contains("wipefs --all")), "{probed:?}");
        assert_eq!((probed.mark, probed.finished), (None, None));
        tool("wipefs", &["--all", under.name()]).unwrap();
        let probed = probe_marked(&device, Evidence::None, None).unwrap();
        assert_eq!((probed.mark, probed.finished), (Some(mark), None), "as the message says: {:?}", probed.contents);
    }

    #[test]
    fn filesystem_of_another_format_is_not_made_by_this_mark() {
        for fstype in FsType::ALL {
            let Some((under, device, mark)) = marked(400 * MIB, fstype) else { return };
            if tool(["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs"][fstype as usize], &["-q", under.name()]).is_none() {
                continue;
            }
            assert_eq!(made(&mark, &device, fstype), Made::Nothing, "{fstype}");
        }
    }

    #[test]
    fn xfs_of_least_size_is_made_with_its_mark() {
        let size = FsType::Xfs.least_size().0;
        let Some((_under, device, mark)) = marked(size, FsType::Xfs) else { return };
        mkfs(&device, FsType::Xfs, &[], Some(&mark)).unwrap();
        assert_eq!(find(&device, None).unwrap().as_ref(), Some(&mark));
        assert_eq!(made(&mark, &device, FsType::Xfs), Made::Interrupted);
    }
}

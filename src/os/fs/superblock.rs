//! The superblocks of the file systems that we mount: enough of each to know it for what it is, and its size.
//!
//! Offsets are those of the kernel's ext4.h, xfs_format.h and btrfs_tree.h. Bytes that are not there count as zeroes,
//! which no magic is.

use crate::volume::FsType;

/// What a superblock is read by: any of ours fits in.
pub(super) const LENGTH: usize = 4096;

/// A magic of ours was found. What stands around it?
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Superblock {
    /// One that can be, of a file system of that many bytes on this device.
    Sound { size: u64 },
    /// Of a sort that we do not mount (ext2, a btrfs of several devices).
    Foreign(String),
    /// One that cannot be, or whose mkfs was interrupted; why.
    Broken(String),
}

/// Where on a device the LENGTH bytes with the first superblock begin.
pub(super) fn place(fstype: FsType) -> u64 {
    match fstype {
        FsType::Ext4 | FsType::Xfs => 0,
        FsType::Btrfs => 64 << 10,
    }
}

/// Reads the superblock; none without its magic. `bytes` are those of [`place`].
pub(super) fn parse(fstype: FsType, bytes: &[u8]) -> Option<Superblock> {
    match fstype {
        FsType::Ext4 => ext(bytes.get(1024..)?),
        FsType::Xfs => xfs(bytes),
        FsType::Btrfs => btrfs(bytes),
    }
}

fn ext(bytes: &[u8]) -> Option<Superblock> {
    const JOURNAL: u32 = 0x4; // compatible
    const JOURNAL_DEVICE: u32 = 0x8; // incompatible
    const SIXTY_FOUR_BITS: u32 = 0x80;
    // What ext3 knows: file types, recovery, meta block groups; sparse superblocks, large files, directory trees.
    const EXT3_INCOMPATIBLE: u32 = 0x2 | 0x4 | 0x10;
    const EXT3_READ_ONLY: u32 = 0x1 | 0x2 | 0x4;

    if field(bytes, 56) != [0x53, 0xef] {
        return None;
    }
    let le32 = |at| u32::from_le_bytes(field(bytes, at));
    let (compatible, incompatible, read_only) = (le32(92), le32(96), le32(100));
    if incompatible & JOURNAL_DEVICE != 0 {
        return Some(Superblock::Foreign("ext4 journal device".to_owned()));
    }
    if incompatible & !EXT3_INCOMPATIBLE == 0 && read_only & !EXT3_READ_ONLY == 0 {
        let name = if compatible & JOURNAL == 0 { "ext2" } else { "ext3" };
        return Some(Superblock::Foreign(name.to_owned()));
    }
    let high = if incompatible & SIXTY_FOUR_BITS == 0 { 0 } else { le32(336) };
    let blocks = u64::from(high) << 32 | u64::from(le32(4));
    let (log_block_size, blocks_per_group, inodes_per_group) = (le32(24), le32(32), le32(40));
    if log_block_size > 6 || blocks == 0 || blocks_per_group == 0 || inodes_per_group == 0 {
        return Some(Superblock::Broken("its block size or counts cannot be".to_owned()));
    }
    Some(sized(blocks, 1024 << log_block_size))
}

/// Of an ext4 superblock.
pub(super) const EXT4_LENGTH: usize = 1024;

/// What the kernel and e2fsck write into the first ext4 superblock and not into its backups: offsets, and the bits that count.
/// linux/fs/ext4/ext4.h, struct ext4_super_block
const EXT4_CHANGING: [(std::ops::Range<usize>, u32); 16] = [
    (0x0c..0x14, !0),       // free blocks, free inodes
    (0x2c..0x36, !0),       // times of mount and write, number of mounts
    (0x3a..0x3c, !0),       // state
    (0x40..0x44, !0),       // time of check
    (0x5a..0x5c, !0),       // the group in which it lies
    (0x60..0x64, 0x4),      // needs recovery
    (0x64..0x68, 0x1_0002), // large files, orphans present
    (0x88..0xc8, !0),       // where it was mounted
    (0xe8..0xec, !0),       // orphans
    (0x158..0x15c, !0),     // free blocks
    (0x178..0x180, !0),     // written
    (0x194..0x200, !0),     // errors
    (0x248..0x24c, !0),     // overhead
    (0x274..0x276, !0),     // times of write and mount
    (0x277..0x27c, !0),     // times of check and errors, kinds of errors
    (0x3fc..0x400, !0),     // checksum
];

/// Where the first backup of this ext4 superblock lies, in bytes.
pub(super) fn ext4_backup(first: &[u8; EXT4_LENGTH]) -> Option<u64> {
    let le32 = |at| u32::from_le_bytes(field(first, at));
    let (first_data_block, log_block_size, blocks_per_group) = (le32(20), le32(24), le32(32));
    let block = u64::from(first_data_block) + u64::from(blocks_per_group);
    block.checked_mul(1024_u64.checked_shl(log_block_size)?)
}

/// The first superblock of an ext4 as it should be, if it is one that e2fsck was about to write when it was killed.
///
/// e2fsck writes what has changed piece by piece, the checksum last. So its checksum is wrong, that of the backup is right, and both
/// describe the same file system. Each piece is sound, be it the old or the new one; how they go together is for a full check, which
/// the state asks for.
pub(super) fn ext4_completed(first: &[u8; EXT4_LENGTH], backup: &[u8; EXT4_LENGTH]) -> Option<[u8; EXT4_LENGTH]> {
    const VALID: u8 = 0x1;
    const STATE: usize = 58;
    let half_written =
        ext4_checksum(first)? != ext4_stored_checksum(first) && ext4_checksum(backup)? == ext4_stored_checksum(backup);
    if !half_written || ext4_constant(first) != ext4_constant(backup) {
        return None;
    }
    let mut completed = *first;
    *completed.get_mut(STATE)? &= !VALID;
    let checksum = ext4_checksum(&completed)?;
    *completed.last_chunk_mut()? = checksum.to_le_bytes();
    Some(completed)
}

/// Without what is in [`EXT4_CHANGING`].
fn ext4_constant(bytes: &[u8; EXT4_LENGTH]) -> [u8; EXT4_LENGTH] {
    let mut bytes = *bytes;
    for (range, bits) in EXT4_CHANGING {
        for (byte, bits) in bytes.get_mut(range).into_iter().flatten().zip(bits.to_le_bytes().into_iter().cycle()) {
            *byte &= !bits;
        }
    }
    bytes
}

/// What its checksum should be; none where it has none.
fn ext4_checksum(bytes: &[u8; EXT4_LENGTH]) -> Option<u32> {
    const CRC32C: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
    const METADATA_CHECKSUMS: u32 = 0x400; // read-only compatible
    let has = u32::from_le_bytes(field(bytes, 100)) & METADATA_CHECKSUMS != 0 && field(bytes, 0x175) == [1];
    let (covered, _) = bytes.split_last_chunk::<4>()?;
    // ext4 leaves out the last inversion.
    has.then(|| !CRC32C.checksum(covered))
}

fn ext4_stored_checksum(bytes: &[u8; EXT4_LENGTH]) -> u32 {
    u32::from_le_bytes(field(bytes, EXT4_LENGTH - 4))
}

/// Reads so many bytes from there; `None` where that fails.
type Read<'a> = &'a dyn Fn(u64, usize) -> Option<Vec<u8>>;

/// The UUID of the file system, in its text form.
pub(super) fn uuid(fstype: FsType, read: Read<'_>) -> Option<String> {
    let at = match fstype {
        FsType::Ext4 => 1024 + 0x68, // s_uuid
        FsType::Xfs => 32,           // sb_uuid
        FsType::Btrfs => place(FsType::Btrfs) + 32,
    };
    let digits: String = read(at, 16)?.iter().map(|byte| format!("{byte:02x}")).collect();
    Some([&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-"))
}

/// Whether a file system with a sound superblock was never mounted for writing since its mkfs; `None` where that is not known: no field of a
/// btrfs says so of every mount, but mkfs.btrfs writes the magic of its superblock last.
pub(super) fn never_mounted(fstype: FsType, read: Read<'_>) -> Option<bool> {
    let zero = |at, length| Some(read(at, length)?.iter().all(|byte| *byte == 0));
    match fstype {
        // s_mtime, s_mnt_count
        FsType::Ext4 => Some(zero(1024 + 0x2c, 4)? && zero(1024 + 0x34, 2)?),
        FsType::Xfs => xfs_log_is_new(read),
        FsType::Btrfs => None,
    }
}

/// When an ext4 was mounted last, and how often, with its UUID: as long as these are the same, nobody has mounted it meanwhile.
pub(super) fn ext4_uses(read: Read<'_>) -> Option<String> {
    let bytes = read(1024, EXT4_LENGTH)?;
    // s_mtime with s_mtime_hi, s_mnt_count
    let (time, count) = (u32::from_le_bytes(field(&bytes, 0x2c)), u16::from_le_bytes(field(&bytes, 0x34)));
    let [high] = field(&bytes, 0x275);
    Some(format!("{} {} {count}", uuid(FsType::Ext4, read)?, u64::from(high) << 32 | u64::from(time)))
}

/// mkfs.xfs writes one record at the start of an internal log, of at most 256 KiB, and zeroes behind. The first mount stamps the 2 MiB that
/// follow the head of the log (xlog_clear_stale_blocks).
fn xfs_log_is_new(read: Read<'_>) -> Option<bool> {
    const BEHIND_FIRST_RECORD: u64 = 512 << 10;
    let superblock = read(0, LENGTH)?;
    let be32 = |at| u64::from(u32::from_be_bytes(field(&superblock, at)));
    let (block_size, group_blocks, log_blocks) = (be32(4), be32(84), be32(96));
    let [group_log] = field(&superblock, 124);
    let start = u64::from_be_bytes(field(&superblock, 48));
    let group = start.checked_shr(group_log.into())?;
    let block = group.checked_mul(group_blocks)?.checked_add(start - (group << group_log))?;
    // An external log is not seen from here.
    if start == 0 || log_blocks.checked_mul(block_size)? <= BEHIND_FIRST_RECORD {
        return None;
    }
    let at = block.checked_mul(block_size)?.checked_add(BEHIND_FIRST_RECORD)?;
    Some(read(at, LENGTH)?.iter().all(|byte| *byte == 0))
}

fn xfs(bytes: &[u8]) -> Option<Superblock> {
    if field(bytes, 0) != *b"XFSB" {
        return None;
    }
    let be32 = |at| u32::from_be_bytes(field(bytes, at));
    let block_size = be32(4);
    let blocks = u64::from_be_bytes(field(bytes, 8));
    let (group_blocks, groups) = (u64::from(be32(84)), u64::from(be32(88)));
    let version = u16::from_be_bytes(field(bytes, 100)) & 0xf;
    let [in_progress] = field(bytes, 126);
    if in_progress != 0 {
        return Some(Superblock::Broken("its mkfs was interrupted".to_owned()));
    }
    let groups_fit =
        blocks <= groups.saturating_mul(group_blocks) && blocks > groups.saturating_sub(1).saturating_mul(group_blocks);
    if !(512..=65536).contains(&block_size) || !block_size.is_power_of_two() || !(4..=5).contains(&version) || !groups_fit {
        return Some(Superblock::Broken("its version, block size or counts cannot be".to_owned()));
    }
    Some(sized(blocks, u64::from(block_size)))
}

fn btrfs(bytes: &[u8]) -> Option<Superblock> {
    match &field(bytes, 64) {
        b"_BHRfS_M" => {}
        b"!BHRfS_M" => return Some(Superblock::Broken("its mkfs was interrupted".to_owned())),
        _ => return None,
    }
    let le32 = |at| u32::from_le_bytes(field(bytes, at));
    let le64 = |at| u64::from_le_bytes(field(bytes, at));
    let (own_place, devices, on_this_device) = (le64(48), le64(136), le64(209));
    let checksum = u16::from_le_bytes(field(bytes, 196));
    let sizes_fit = [le32(144), le32(148)].iter().all(|size| (512..=65536).contains(size) && size.is_power_of_two());
    if own_place != place(FsType::Btrfs) || checksum > 3 || !sizes_fit || on_this_device == 0 {
        return Some(Superblock::Broken("its place, checksum type or sizes cannot be".to_owned()));
    }
    if devices != 1 {
        return Some(Superblock::Foreign(format!("btrfs of {devices} devices")));
    }
    Some(Superblock::Sound { size: on_this_device })
}

fn sized(blocks: u64, block_size: u64) -> Superblock {
    match blocks.checked_mul(block_size) {
        Some(size) => Superblock::Sound { size },
        None => Superblock::Broken("its size cannot be".to_owned()),
    }
}

/// The `N` bytes at `at`.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

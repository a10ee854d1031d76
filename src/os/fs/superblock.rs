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
    /// One that cannot be, or whose mkfs was cut off; why.
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
        return Some(Superblock::Broken("its mkfs was cut off".to_owned()));
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
        b"!BHRfS_M" => return Some(Superblock::Broken("its mkfs was cut off".to_owned())),
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

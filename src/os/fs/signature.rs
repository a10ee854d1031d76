//! Where others leave their signatures, and which: at the start of a device, at its end, and in copies in between.

/// One that is looked for at the start.
pub(super) struct Signature {
    pub(super) name: &'static str,
    test: Test,
    /// Whether it means that the device may belong to something that can hold one of our file systems, or the rest of one
    /// (a container, a member, a partitioned disk): then a superblock of ours beside it proves nothing.
    pub(super) contests: bool,
}

enum Test {
    Magic(usize, &'static [u8]),
    Found(fn(&[u8]) -> bool),
}

impl Signature {
    pub(super) fn is_in(&self, start: &[u8]) -> bool {
        match self.test {
            Test::Magic(offset, magic) => start.get(offset..).is_some_and(|rest| rest.starts_with(magic)),
            Test::Found(found) => found(start),
        }
    }
}

/// How much of the start [`AT_START`] looks at.
pub(super) const START: u64 = 256 << 10;

const fn file_system(name: &'static str, offset: usize, magic: &'static [u8]) -> Signature {
    Signature { name, test: Test::Magic(offset, magic), contests: false }
}

const fn container(name: &'static str, offset: usize, magic: &'static [u8]) -> Signature {
    Signature { name, test: Test::Magic(offset, magic), contests: true }
}

const MD: &[u8] = b"\xfc\x4e\x2b\xa9";
const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";

/// The more telling first: a boot sector's 55 AA is also at the start of a FAT.
pub(super) const AT_START: &[Signature] = &[
    container("LUKS", 0, b"LUKS\xba\xbe"),
    Signature { name: "LVM physical volume", test: Test::Found(has_lvm_label), contests: true },
    container("md RAID member (1.1)", 0, MD),
    container("md RAID member (1.2)", 4096, MD),
    container("bcache", 4096 + 24, BCACHE),
    container("bcachefs", 4096 + 24, BCACHEFS),
    container("Ceph BlueStore", 0, b"bluestore block device"),
    container("VDO", 0, b"dmvdo001"),
    container("Stratis", 512 + 4, b"!Stra0tis\x86\xff\x02^\x41rh"),
    container("BitLocker", 3, b"-FVE-FS-"),
    Signature { name: "ZFS", test: Test::Found(has_zfs_label), contests: true },
    container("GPT partition table", 512, b"EFI PART"),
    container("GPT partition table (4 KiB sectors)", 4096, b"EFI PART"),
    Signature { name: "MBR partition table", test: Test::Found(has_partitions), contests: true },
    Signature { name: "swap", test: Test::Found(has_swap_magic), contests: false },
    file_system("ntfs", 3, b"NTFS    "),
    file_system("exfat", 3, b"EXFAT   "),
    file_system("ReFS", 3, b"ReFS\0\0\0\0"),
    file_system("vfat", 82, b"FAT32   "),
    file_system("vfat", 54, b"FAT16   "),
    file_system("vfat", 54, b"FAT12   "),
    file_system("squashfs", 0, b"hsqs"),
    file_system("squashfs", 0, b"sqsh"),
    file_system("erofs", 1024, b"\xe2\xe1\xf5\xe0"),
    file_system("f2fs", 1024, b"\x10\x20\xf5\xf2"),
    file_system("hfsplus", 1024, b"H+\0\x04"),
    file_system("hfsplus", 1024, b"HX\0\x05"),
    file_system("nilfs2", 1024, b"\x02\0\0\0\0\0\x34\x34"),
    file_system("apfs", 32, b"NXSB"),
    file_system("jfs", 32 << 10, b"JFS1"),
    file_system("iso9660", (32 << 10) + 1, b"CD001"),
    file_system("udf", (32 << 10) + 1, b"BEA01"),
    file_system("reiserfs", (8 << 10) + 52, b"ReIsEr"),
    file_system("reiserfs", (64 << 10) + 52, b"ReIsEr"),
    file_system("reiser4", 64 << 10, b"ReIsEr4"),
    file_system("gfs2", 64 << 10, b"\x01\x16\x19\x70"),
    file_system("ocfs2", 1024, b"OCFSV2"),
    file_system("ocfs2", 2048, b"OCFSV2"),
    file_system("ocfs2", 4096, b"OCFSV2"),
    file_system("ocfs2", 8192, b"OCFSV2"),
    file_system("boot sector", 510, b"\x55\xaa"),
];

/// In one of the first four sectors.
fn has_lvm_label(start: &[u8]) -> bool {
    start.chunks(512).take(4).any(|sector| sector.starts_with(b"LABELONE"))
}

/// At the end of the first page, whatever the size of a page was.
fn has_swap_magic(start: &[u8]) -> bool {
    const MAGICS: [&[u8]; 4] = [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0", b"S2SUSPEND\0"];
    (12..=16)
        .filter_map(|shift| start.get((1_usize << shift) - 10..))
        .any(|end| MAGICS.iter().any(|magic| end.starts_with(magic)))
}

/// 55 AA alone is on many a boot sector. A table has four entries that can be, one of them in use.
fn has_partitions(start: &[u8]) -> bool {
    let Some((sector, [0x55, 0xaa])) = start.get(..512).and_then(<[u8]>::split_last_chunk::<2>) else { return false };
    let entries = || sector.get(446..).unwrap_or_default().chunks_exact(16);
    let possible = entries().all(|entry| matches!(entry.first(), Some(0 | 0x80)));
    let any_set = |bytes: Option<&[u8]>| bytes.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0));
    // Its type, where it starts, and its length.
    let in_use = |entry: &[u8]| [4..5, 8..12, 12..16].into_iter().all(|part| any_set(entry.get(part)));
    possible && entries().any(in_use)
}

/// The uberblocks of a label: a ring of at least 1 KiB each, in the label's second half.
fn has_zfs_label(label: &[u8]) -> bool {
    const MAGICS: [[u8; 8]; 2] = [0x00ba_b10c_u64.to_le_bytes(), 0x00ba_b10c_u64.to_be_bytes()];
    let ring = label.get(128 << 10..256 << 10).unwrap_or_default();
    ring.chunks(1024).any(|uberblock| MAGICS.iter().any(|magic| uberblock.starts_with(magic)))
}

/// Of version 0.90 (of either byte order) or 1.0. What of its own place a superblock says must be so, for this is where files
/// may have their data.
fn is_md(bytes: &[u8], offset: u64) -> bool {
    let word = |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; 4]);
    let place = bytes.get(128..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; 8]);
    let new = word(0) == MD && word(4) == 1_u32.to_le_bytes() && place == (offset / 512).to_le_bytes();
    let old = |bytes: fn(u32) -> [u8; 4]| word(0) == bytes(0xa92b_4efc) && word(4) == bytes(0) && word(8) == bytes(90);
    new || old(u32::to_le_bytes) || old(u32::to_be_bytes)
}

/// A place away from the start where something leaves a copy of its signature, or has it at all.
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) length: u64,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Ext { block_size: u64 },
    Xfs,
    Btrfs,
    Luks2,
    Gpt,
    Zfs,
    Md,
    Drbd,
}

impl Place {
    /// What is there: its name, and what to do about it.
    pub(super) fn look(&self, bytes: &[u8]) -> Option<(&'static str, String)> {
        let has = |offset: usize, magics: &[&[u8]]| {
            let rest = bytes.get(offset..).unwrap_or_default();
            magics.iter().any(|magic| rest.starts_with(magic))
        };
        let found = match self.kind {
            Kind::Ext { .. } => has(56, &[b"\x53\xef"]),
            Kind::Xfs => has(0, &[b"XFSB"]),
            Kind::Btrfs => has(64, &[b"_BHRfS_M"]),
            Kind::Luks2 => has(0, &[b"SKUL\xba\xbe"]),
            Kind::Gpt => has(0, &[b"EFI PART"]),
            Kind::Zfs => has_zfs_label(bytes),
            Kind::Md => is_md(bytes, self.offset),
            Kind::Drbd => {
                (60..=68).step_by(4).any(|at| has(at, &[b"\x83\x74\x02\x67", b"\x83\x74\x02\x6b", b"\x83\x74\x02\x6d"]))
            }
        };
        found.then(|| (self.name(), self.advice()))
    }

    /// As [`Signature::contests`].
    pub(super) fn contests(&self) -> bool {
        matches!(self.kind, Kind::Md | Kind::Drbd)
    }

    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Ext { .. } => "ext4 backup superblock",
            Kind::Xfs => "xfs secondary superblock",
            Kind::Btrfs => "btrfs superblock mirror",
            Kind::Luks2 => "LUKS2 secondary header",
            Kind::Gpt => "GPT backup partition table",
            Kind::Zfs => "ZFS label",
            Kind::Md => "md RAID member",
            Kind::Drbd => "DRBD metadata",
        }
    }

    fn advice(&self) -> String {
        match self.kind {
            Kind::Ext { block_size } => format!("`e2fsck -b {} -B {block_size}` may repair it", self.offset / block_size),
            Kind::Xfs => "`xfs_repair` may repair it".to_owned(),
            Kind::Btrfs => "`btrfs rescue super-recover` may repair it".to_owned(),
            Kind::Luks2 => "`cryptsetup repair` may repair it".to_owned(),
            Kind::Gpt => "`sgdisk --verify` tells more".to_owned(),
            Kind::Zfs => "`zdb -l` tells more".to_owned(),
            Kind::Md => "`mdadm --examine` tells more".to_owned(),
            Kind::Drbd => "`drbdadm dump-md` tells more".to_owned(),
        }
    }
}

/// All such places on a device of this size, in order, for the geometries that the tools choose by default.
pub(super) fn places(size: u64) -> Vec<Place> {
    let mut places = at_end(size);
    places.extend(ext_backups(size));
    places.extend(xfs_groups(size));
    let mut add =
        |kind, offsets: &[u64], length| places.extend(offsets.iter().map(|offset| Place { offset: *offset, length, kind }));
    add(Kind::Btrfs, &[64 << 20, 256 << 30, 1 << 50], 4096);
    add(Kind::Luks2, &[16, 32, 64, 128, 256, 512, 1024, 2048, 4096].map(|kib| kib << 10), 512);
    add(Kind::Zfs, &[256 << 10], 256 << 10);
    places.retain(|place| place.offset.checked_add(place.length).is_some_and(|end| end <= size));
    places.sort_by_key(|place| place.offset);
    places
}

fn at_end(size: u64) -> Vec<Place> {
    let before_end = |distance: u64, aligned: u64| (size - size % aligned).checked_sub(distance);
    [
        (Kind::Gpt, before_end(512, 512), 512),
        (Kind::Gpt, before_end(4096, 4096), 512),
        // Version 0.90; version 1.0, whose 8 KiB are counted from the end and then aligned.
        (Kind::Md, before_end(64 << 10, 64 << 10), 4096),
        (Kind::Md, before_end(8 << 10, 512).map(|offset| offset - offset % 4096), 4096),
        (Kind::Drbd, before_end(4096, 4096), 4096),
        (Kind::Zfs, before_end(512 << 10, 256 << 10), 256 << 10),
        (Kind::Zfs, before_end(256 << 10, 256 << 10), 256 << 10),
    ]
    .into_iter()
    .filter_map(|(kind, offset, length)| Some(Place { offset: offset?, length, kind }))
    .collect()
}

/// In block groups 1 and the powers of 3, 5 and 7 (`sparse_super`), a group being what one block's bits can map.
fn ext_backups(size: u64) -> impl Iterator<Item = Place> {
    [1024, 2048, 4096_u64].into_iter().flat_map(move |block_size| {
        let group = 8 * block_size * block_size;
        // With blocks of 1 KiB the boot block shifts all by one.
        let shift = if block_size == 1024 { 1024 } else { 0 };
        let powers = [3, 5, 7_u64]
            .into_iter()
            .flat_map(|base| std::iter::successors(Some(base), move |power| power.checked_mul(base)).take(24));
        std::iter::once(1)
            .chain(powers)
            .filter_map(move |number| number.checked_mul(group)?.checked_add(shift))
            .filter(move |offset| *offset < size)
            .map(move |offset| Place { offset, length: 1024, kind: Kind::Ext { block_size } })
    })
}

/// The starts of the second and the last allocation group, for any number of groups up to 64: mkfs.xfs makes 4 (on one disk), 8,
/// 16 or 32 (on stripes) or one per processor. Above 4 TiB a group is 1 TiB.
fn xfs_groups(size: u64) -> impl Iterator<Item = Place> {
    const BLOCK: u64 = 4096;
    const LARGEST: u64 = 1 << 40;
    let blocks = size / BLOCK;
    let by_count = (2..=64_u64).flat_map(move |count| {
        let group = blocks.div_ceil(count).saturating_mul(BLOCK);
        [group, group.saturating_mul(count - 1)]
    });
    // The largest groups end one block short of 1 TiB.
    let largest = (1..=8).flat_map(|number| [number * LARGEST, number * (LARGEST - BLOCK)]);
    by_count.chain(largest).map(|offset| Place { offset, length: 512, kind: Kind::Xfs })
}

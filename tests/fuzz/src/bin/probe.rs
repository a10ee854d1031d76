//! Superblocks and signatures: bytes written over a device of zeroes, at the places where they may lie.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use longshore::os::fs::{Contents, Evidence, contents};
use longshore::volume::FsType;
use rustix::fs::{MemfdFlags, memfd_create};

static DEVICE: LazyLock<File> = LazyLock::new(|| File::from(memfd_create("device", MemfdFlags::CLOEXEC).expect("a memfd")));

/// Small enough to be read whole each time. One is no whole number of sectors.
const SIZES: [u64; 6] = [512, 4096, 64 << 10, 200_001, (256 << 10) + 4096, 640 << 10];
/// A size that our file systems have, of whose superblock only is read.
const LARGE: u64 = 400 << 20;
const MAGICS: [&[u8]; 3] = [b"\x53\xef", b"XFSB", b"_BHRfS_M"];
/// Where something of a signature begins; from the end of the device where negative. All of it is read of any device.
const PLACES: [i64; 24] = [
    0, 3, 32, 54, 446, 510, 512, 1024, 1080, 4086, 4096, 4120, 8192, 16384, 32768, 65536, 65600, 131_072, -512, -4096, -8192,
    -65536, -262_144, -524_288,
];

// A byte for the size, then pieces: a byte for the place, two for the length, and the bytes.
fuzz_target!(|data: &[u8]| {
    let Some((which, mut rest)) = data.split_first() else { return };
    let large = MAGICS.iter().any(|magic| data.windows(magic.len()).any(|window| window == *magic)) && *which >= 128;
    let size = if large { LARGE } else { SIZES[usize::from(*which) % SIZES.len()] };
    DEVICE.set_len(0).expect("emptied");
    DEVICE.set_len(size).expect("all zeroes");
    let mut written = Vec::new();
    while let [place, low, high, after @ ..] = rest {
        let (bytes, after) = after.split_at(after.len().min(usize::from(u16::from_le_bytes([*low, *high]))));
        rest = after;
        let place = PLACES[usize::from(*place) % PLACES.len()];
        let from = if place < 0 { size.saturating_sub(place.unsigned_abs()) } else { place.unsigned_abs() };
        let room = usize::try_from(size.saturating_sub(from)).expect("it fits");
        let bytes = &bytes[..bytes.len().min(room)];
        DEVICE.write_all_at(bytes, from).expect("written");
        written.push((from, bytes.len()));
    }
    let zeroes = written.iter().all(|(from, length)| {
        let mut bytes = vec![0; *length];
        DEVICE.read_exact_at(&mut bytes, *from).expect("read");
        bytes.iter().all(|byte| *byte == 0)
    });
    let has = |offset: u64, magic: &[u8]| {
        let mut bytes = vec![0; magic.len()];
        DEVICE.read_exact_at(&mut bytes, offset).is_ok() && bytes == magic
    };
    let found = contents(&DEVICE, size, Evidence::None);
    // Where holes need not be read, the answer is the same.
    assert_eq!(contents(&DEVICE, size, Evidence::Beneath(&DEVICE)), found);
    // What is small is read whole, whatever a storage says.
    assert_eq!(contents(&DEVICE, size, Evidence::MadeEmpty), found);
    match found {
        Contents::Blank => assert!(zeroes, "data was taken for nothing"),
        found if zeroes => panic!("{found:?} among zeroes"),
        Contents::Filesystem(FsType::Ext4) => assert!(has(1080, b"\x53\xef")),
        Contents::Filesystem(FsType::Xfs) => assert!(has(0, b"XFSB")),
        Contents::Filesystem(FsType::Btrfs) => assert!(has(65600, b"_BHRfS_M")),
        Contents::Other(why) | Contents::Unknown(why) => assert!(!why.is_empty()),
    }
    // What is shorter than it says cannot be read everywhere, and is never blank.
    if !large {
        for evidence in [Evidence::None, Evidence::Beneath(&DEVICE), Evidence::MadeEmpty] {
            assert!(!matches!(contents(&DEVICE, size + 512, evidence), Contents::Blank));
        }
    }
});

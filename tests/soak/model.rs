//! What each volume and snapshot must be, and what it must contain.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;

use longshore::csi;

use super::common::{MIB, capability, create};

/// How many targets a volume may be published at.
pub const TARGETS: usize = 3;
/// How many snapshots of its own a volume has at most.
pub const SNAPSHOTS: usize = 2;
/// How many pieces of content a volume has at most; on a raw device one lies at the start of each MiB.
pub const PIECES: u32 = 8;
/// Bytes of a piece on a raw device; in a file it may be up to four times as long.
const PIECE: usize = 16 << 10;
const ZEROES: [u8; 4096] = [0; 4096];

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True in so many of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.next()).expect("64 bits") % from.len()]
    }
}

/// Bytes that only this seed gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub seed: u64,
    pub length: usize,
}

impl Piece {
    pub fn new(random: &mut Random, raw: bool) -> Piece {
        let length = if raw { PIECE } else { 1 + usize::try_from(random.below(4 * PIECE as u64)).expect("64 bits") };
        Piece { seed: random.next(), length }
    }

    fn bytes(self) -> Vec<u8> {
        let mut random = Random(self.seed);
        let mut bytes = Vec::with_capacity(self.length + 8);
        while bytes.len() < self.length {
            bytes.extend_from_slice(&random.next().to_le_bytes());
        }
        bytes.truncate(self.length);
        // Never taken for a hole.
        bytes[0] |= 1;
        bytes
    }
}

/// What a volume contains: files `f<key>`, or pieces at `key` MiB of a raw device and zeroes elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Content {
    pub pieces: BTreeMap<u32, Piece>,
    /// What was being written while a snapshot was taken: may be there, or not, or in part.
    pub unsure: BTreeSet<u32>,
}

impl Content {
    /// Writes one piece through a target, and syncs it.
    pub fn write(raw: bool, target: &Path, key: u32, piece: Piece) -> Result<(), String> {
        let bytes = piece.bytes();
        let written = if raw {
            fs::OpenOptions::new().write(true).open(target).and_then(|mut device| {
                device.seek(SeekFrom::Start(u64::from(key) << 20))?;
                device.write_all(&bytes)?;
                device.sync_all()
            })
        } else {
            fs::File::create(target.join(format!("f{key}"))).and_then(|mut file| {
                file.write_all(&bytes)?;
                file.sync_all()
            })
        };
        written.map_err(|error| format!("piece {key} cannot be written at {}: {error}", target.display()))
    }

    /// Compares with all that is at a target.
    pub fn compare(&self, raw: bool, target: &Path) -> Result<(), String> {
        let at = |error: std::io::Error| format!("{} cannot be read: {error}", target.display());
        if raw {
            let mut device = Vec::new();
            fs::File::open(target).and_then(|mut file| file.read_to_end(&mut device)).map_err(at)?;
            return self.compare_device(device);
        }
        let mut seen = BTreeSet::new();
        for entry in fs::read_dir(target).map_err(at)? {
            let name = entry.map_err(at)?.file_name().to_string_lossy().into_owned();
            if name == "lost+found" {
                continue;
            }
            let key = name.strip_prefix('f').and_then(|key| key.parse().ok()).ok_or(format!("{name} is not ours"))?;
            if self.unsure.contains(&key) {
                continue;
            }
            let piece = self.pieces.get(&key).ok_or(format!("{name} ought not to be there"))?;
            if fs::read(target.join(&name)).map_err(at)? != piece.bytes() {
                return Err(format!("{name} differs from what was written: {piece:?}"));
            }
            seen.insert(key);
        }
        match self.pieces.keys().find(|key| !seen.contains(*key) && !self.unsure.contains(*key)) {
            Some(key) => Err(format!("f{key} is gone: {:?}", self.pieces[key])),
            None => Ok(()),
        }
    }

    /// Compares with all the bytes of a device.
    pub fn compare_device(&self, mut device: Vec<u8>) -> Result<(), String> {
        let keys: BTreeSet<u32> = self.pieces.keys().chain(&self.unsure).copied().collect();
        for key in keys {
            let start = usize::try_from(key).expect("64 bits") << 20;
            let place = device.get_mut(start..start + PIECE).ok_or(format!("piece {key} lies behind the end"))?;
            if let Some(piece) = self.pieces.get(&key).filter(|_| !self.unsure.contains(&key))
                && *place != piece.bytes()
            {
                let zeroes = place.iter().all(|byte| *byte == 0);
                return Err(format!("piece {key} differs from what was written (all zeroes: {zeroes}): {piece:?}"));
            }
            place.fill(0);
        }
        // In blocks: byte by byte it takes long without optimization.
        match device.chunks(ZEROES.len()).position(|block| *block != ZEROES[..block.len()]) {
            Some(block) => Err(format!("block {block} (of 4 KiB) of the device was never written, and is not zero")),
            None => Ok(()),
        }
    }
}

/// A volume that exists.
#[derive(Clone, Debug)]
pub struct Volume {
    /// `None` is raw block.
    pub fstype: Option<&'static str>,
    /// As it was made.
    pub request: csi::CreateVolumeRequest,
    pub context: HashMap<String, String>,
    pub capacity: i64,
    /// What the device shows while it is staged.
    pub device: i64,
    pub on_delete: &'static str,
    /// It was staged once: a file system is on it.
    pub formatted: bool,
    pub staged: bool,
    /// Where it is published, and whether read-only.
    pub targets: [Option<bool>; TARGETS],
    pub content: Content,
}

impl Volume {
    /// A volume to make: empty, or as its source.
    pub fn plan(random: &mut Random, name: &str, from: Option<(csi::VolumeContentSource, &Snapshot)>) -> Volume {
        let (fstype, least) = match &from {
            Some((_, snapshot)) => (snapshot.fstype, snapshot.size),
            None => match random.below(20) {
                0 => (Some("xfs"), 320 * MIB),
                1 => (Some("btrfs"), 256 * MIB),
                2..10 => (Some("ext4"), 16 * MIB),
                _ => (None, i64::from(PIECES) * MIB),
            },
        };
        let larger = if random.chance(25) { i64::try_from(random.below(16)).expect("small") * MIB } else { 0 };
        let mut request = create(name, (least + larger) / MIB, fstype, "image");
        request.volume_content_source = from.as_ref().map(|(source, _)| source.clone());
        if let Some(pool) = random.pick(&[None, Some("default"), Some("plain")]) {
            request.parameters.insert("pool".to_owned(), (*pool).to_owned());
        }
        let ways = ["delete", "delete", "delete", "delete", "retain", "archive", "scrub"];
        let mut on_delete = "delete";
        if random.chance(20) {
            on_delete = *random.pick(&ways);
            request.parameters.insert("onDelete".to_owned(), on_delete.to_owned());
        }
        if random.chance(10) {
            on_delete = *random.pick(&ways);
            request.mutable_parameters.insert("onDelete".to_owned(), on_delete.to_owned());
        }
        Volume {
            fstype,
            capacity: least + larger,
            device: 0,
            on_delete,
            formatted: from.as_ref().is_some_and(|(_, snapshot)| snapshot.formatted),
            staged: false,
            targets: [None; TARGETS],
            content: from.map(|(_, snapshot)| snapshot.content.clone()).unwrap_or_default(),
            context: HashMap::new(),
            request,
        }
    }

    pub fn raw(&self) -> bool {
        self.fstype.is_none()
    }

    pub fn capability(&self) -> csi::VolumeCapability {
        capability(self.fstype)
    }

    pub fn published(&self) -> impl Iterator<Item = usize> + '_ {
        (0..TARGETS).filter(|target| self.targets[*target].is_some())
    }

    /// What a snapshot of it would be now.
    pub fn snapshot(&self) -> Snapshot {
        let Volume { fstype, capacity, formatted, content, .. } = self;
        Snapshot { fstype: *fstype, size: *capacity, formatted: *formatted, content: content.clone() }
    }
}

/// A snapshot that exists.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub fstype: Option<&'static str>,
    pub size: i64,
    pub formatted: bool,
    pub content: Content,
}

/// A group snapshot that exists.
#[derive(Clone, Debug)]
pub struct Group {
    /// By the volume's name.
    pub members: BTreeMap<String, Snapshot>,
}

/// What changes a volume, or what belongs to it.
#[derive(Clone, Debug)]
pub enum Op {
    Create(Box<Volume>),
    Delete,
    Stage,
    Unstage,
    Publish { target: usize, read_only: bool },
    Unpublish { target: usize },
    Snapshot { number: usize },
    DeleteSnapshot { number: usize },
    Group(Group),
    DeleteGroup,
    Expand { capacity: i64 },
    NodeExpand,
    Modify { on_delete: &'static str },
}

impl Op {
    /// What takes it back; none where there is nothing to take back.
    pub fn inverse(&self) -> Option<Op> {
        Some(match self {
            Op::Create(_) => Op::Delete,
            Op::Stage => Op::Unstage,
            Op::Publish { target, .. } => Op::Unpublish { target: *target },
            Op::Snapshot { number } => Op::DeleteSnapshot { number: *number },
            Op::Group(_) => Op::DeleteGroup,
            _ => return None,
        })
    }

    /// Whether a final error ends it with nothing done; others are repeated until they are done.
    pub fn may_fail(&self) -> bool {
        self.inverse().is_some()
    }

    /// Whether it copies a volume that may be in use.
    pub fn copies_volume(&self) -> bool {
        use csi::volume_content_source::Type;
        match self {
            Op::Create(volume) => {
                let from = volume.request.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref());
                matches!(from, Some(Type::Volume(_)))
            }
            Op::Snapshot { .. } | Op::Group(_) => true,
            _ => false,
        }
    }

    /// Whether it can be left open while the rest continues: not if it copies what others may change.
    pub fn can_wait(&self) -> bool {
        match self {
            Op::Create(volume) => volume.request.volume_content_source.is_none(),
            Op::Group(_) | Op::DeleteGroup => false,
            _ => true,
        }
    }

    /// In one line.
    pub fn show(&self) -> String {
        match self {
            Op::Create(volume) => {
                let Volume { fstype, capacity, request, .. } = &**volume;
                let mutable = &request.mutable_parameters;
                let source = request.volume_content_source.as_ref().and_then(|source| source.r#type.as_ref());
                format!("Create {fstype:?} {} MiB {:?} {mutable:?} from {source:?}", capacity / MIB, request.parameters)
            }
            Op::Group(group) => format!("Group of {:?}", group.members.keys().collect::<Vec<_>>()),
            other => format!("{other:?}"),
        }
    }
}

/// A call that its client gave up may be begun only now. Until then, or the driver's end, nobody asks for anything else.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    pub until: Instant,
    pub incarnation: u64,
}

/// All that is known of one volume's name.
#[derive(Debug, Default)]
pub struct Slot {
    pub volume: Option<Volume>,
    pub snapshots: [Option<Snapshot>; SNAPSHOTS],
    /// Of which this volume is the first.
    pub group: Option<Group>,
    /// Of which it is not known whether it was done.
    pub pending: Option<Op>,
    /// What was written while a snapshot that is pending may have been taken.
    pub writing: BTreeSet<u32>,
    pub rest: Option<Rest>,
    /// A violation was found: what is true of it is no longer known.
    pub broken: bool,
}

//! The index of a pool: what its opening needs to know of each volume and snapshot, in one file instead of one for each.
//!
//! It is a cache. The directories say what there is, and a row is only about the very metadata file that it was read from ([`Stamp`]). So
//! nothing depends on it: it is not synced, a damaged line is left out, and without it every metadata file is read.
//!
//! A line is `<CRC-32C, in 8 hexadecimal digits> <JSON>`; the first one says of which pool. Of several lines about one volume the last
//! counts. Lines are only appended; when most of them are about what was deleted or changed, the file is written anew.

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::os::{self, durable};
use crate::volume::{Bytes, ContentSource};

use super::files::{self, Stamp, StoredStamp};
use super::layout::INDEX;
use super::ledger::{Ledger, VolumeRow};
use super::meta::SnapshotMeta;
use super::parallel::map_each;

const FORMAT: u32 = 1;
/// A longer file is not read, in bytes: there are never so many volumes.
const LONGEST: u64 = 1 << 30;
/// The file is written anew when it has twice as many lines as there are rows, and so many more.
const SPARE_LINES: usize = 1024;
const CRC32C: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
const DIGITS: usize = 8;

/// The pool that an index is of.
pub(super) struct Contents<'a> {
    pub root: BorrowedFd<'a>,
    pub path: &'a Path,
    pub id: &'a str,
    /// The number of the device that it lies on.
    pub device: u64,
    pub ledger: &'a Ledger,
}

#[derive(Serialize, Deserialize)]
enum Line<'a> {
    #[serde(rename = "pool")]
    Pool { format: u32, id: &'a str },
    /// Parameters of volumes, and their number.
    #[serde(rename = "p")]
    Parameters(usize, Value),
    /// The local id, capacity, name where that is not the local id, source, and the number of the parameters.
    #[serde(rename = "v")]
    Volume(StoredStamp, &'a str, u64, Option<String>, Option<ContentSource>, usize),
    #[serde(rename = "s")]
    Snapshot(StoredStamp, SnapshotMeta),
}

/// What is in it, by local id.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub volumes: HashMap<String, (Stamp, VolumeRow)>,
    pub snapshots: HashMap<String, (Stamp, SnapshotMeta)>,
    /// Of the file; none where it is to be written anew. Where lines are missing, a number of parameters could be given a second time.
    pub lines: Option<usize>,
}

/// The lines of the file; none before [`Index::begin`], and where it cannot be written. The file is opened for each line: a file that is
/// open for writing would keep the file system from being remounted read-only.
#[derive(Debug, Default)]
pub(super) struct Index(Mutex<Option<Lines>>);

/// Encodes lines, and counts them.
#[derive(Debug, Default)]
struct Lines {
    count: usize,
    /// Those that have a line, by their address: the ledger has one copy of each. They are kept, so that no others get that address.
    parameters: HashMap<usize, (usize, Arc<Value>)>,
}

impl Rows {
    /// Reads the index of a pool. Damaged lines are left out.
    pub fn read(pool: &Contents<'_>) -> Rows {
        match files::read(pool.root, Path::new(INDEX), LONGEST) {
            Ok(text) => text.and_then(|text| Rows::parse(&text, pool.id, pool.device)).unwrap_or_default(),
            Err(error) => {
                tracing::warn!(pool = %pool.path.display(), %error, "the index cannot be read; each metadata file is read instead");
                Rows::default()
            }
        }
    }

    /// `None` where it is of another pool or format. `device` is the pool's.
    fn parse(text: &[u8], pool: &str, device: u64) -> Option<Rows> {
        let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        let decoded = map_each(&lines, |line| decode(line));
        let is_whole = decoded.iter().all(Option::is_some);
        let mut decoded = decoded.into_iter().flatten();
        if !matches!(decoded.next()?, Line::Pool { format: FORMAT, id } if id == pool) {
            return None;
        }
        let mut rows = Rows { lines: is_whole.then_some(lines.len()), ..Rows::default() };
        let mut parameters: HashMap<usize, Arc<Value>> = HashMap::new();
        for line in decoded {
            match line {
                Line::Pool { .. } => {}
                Line::Parameters(number, value) => drop(parameters.insert(number, Arc::new(value))),
                Line::Volume(stamp, local, capacity, name, source, number) => {
                    // Where the line of its parameters is damaged, an earlier row must not count either.
                    rows.volumes.remove(local);
                    if let Some(parameters) = parameters.get(&number) {
                        let (name, source) = (name.map(Into::into), source.map(Box::new));
                        let row = VolumeRow { capacity: Bytes(capacity), name, source, parameters: Arc::clone(parameters) };
                        rows.volumes.insert(local.to_owned(), (Stamp::of_stored(device, stamp), row));
                    }
                }
                Line::Snapshot(stamp, meta) => {
                    let local = meta.id.local().to_owned();
                    rows.snapshots.insert(local, (Stamp::of_stored(device, stamp), meta));
                }
            }
        }
        Some(rows)
    }
}

impl Index {
    /// From now on rows are put. The file is written anew, from the ledger, unless it is good as it is, with so many lines.
    pub fn begin(&self, pool: &Contents<'_>, lines: Option<usize>) {
        let begun = match lines {
            // The last line may be interrupted.
            Some(count) if !is_long(pool, count) => append(pool, b"\n").map(|()| Lines { count, ..Lines::default() }),
            _ => write_anew(pool),
        };
        *os::lock(&self.0) = begun.map_err(|error| give_up(pool, &error)).ok();
    }

    /// A volume's metadata file was written or read.
    pub fn put_volume(&self, pool: &Contents<'_>, local: &str, stamp: Stamp, row: &VolumeRow) {
        self.put(pool, |lines, text| lines.put_volume(text, local, stamp, row));
    }

    pub fn put_snapshot(&self, pool: &Contents<'_>, stamp: Stamp, meta: &SnapshotMeta) {
        self.put(pool, |lines, text| lines.put_snapshot(text, stamp, meta));
    }

    fn put(&self, pool: &Contents<'_>, encode: impl FnOnce(&mut Lines, &mut Vec<u8>)) {
        let mut index = os::lock(&self.0);
        let Some(lines) = index.as_mut() else { return };
        let put = if is_long(pool, lines.count) {
            write_anew(pool).map(|anew| *lines = anew)
        } else {
            let mut text = Vec::new();
            encode(lines, &mut text);
            append(pool, &text)
        };
        if let Err(error) = put {
            give_up(pool, &error);
            *index = None;
        }
    }
}

/// Whether most lines are about what is no longer there.
fn is_long(pool: &Contents<'_>, lines: usize) -> bool {
    lines > 2 * pool.ledger.count() + SPARE_LINES
}

fn give_up(pool: &Contents<'_>, error: &os::Error) {
    tracing::warn!(pool = %pool.path.display(), %error, "the index cannot be written; the next start reads each metadata file");
}

fn append(pool: &Contents<'_>, text: &[u8]) -> os::Result<()> {
    let mut file = files::append(pool.root, Path::new(INDEX))?;
    file.write_all(text).map_err(|error| os::Error::io("write", pool.path.join(INDEX), error))
}

/// Replaces the file by what the ledger has read.
fn write_anew(pool: &Contents<'_>) -> os::Result<Lines> {
    let (mut lines, mut text) = (Lines::default(), Vec::new());
    lines.put(&mut text, &Line::Pool { format: FORMAT, id: pool.id });
    let (volumes, snapshots) = pool.ledger.rows();
    volumes.iter().for_each(|(local, stamp, row)| lines.put_volume(&mut text, local, *stamp, row));
    snapshots.iter().for_each(|(stamp, meta)| lines.put_snapshot(&mut text, *stamp, meta));
    durable::write(pool.path, INDEX, &text).map(|()| lines)
}

impl Lines {
    fn put(&mut self, text: &mut Vec<u8>, line: &Line<'_>) {
        let start = text.len();
        text.resize(start + DIGITS + 1, b' ');
        if serde_json::to_writer(&mut *text, line).is_err() {
            return text.truncate(start);
        }
        let checksum = format!("{:08x}", CRC32C.checksum(&text[start + DIGITS + 1..]));
        text[start..start + DIGITS].copy_from_slice(checksum.as_bytes());
        text.push(b'\n');
        self.count += 1;
    }

    fn put_volume(&mut self, text: &mut Vec<u8>, local: &str, stamp: Stamp, row: &VolumeRow) {
        let address = Arc::as_ptr(&row.parameters).addr();
        let number = match self.parameters.get(&address) {
            Some((number, _)) => *number,
            None => {
                // No other line of this file has this number.
                let number = self.count;
                self.put(text, &Line::Parameters(number, (*row.parameters).clone()));
                self.parameters.insert(address, (number, Arc::clone(&row.parameters)));
                number
            }
        };
        let (name, source) = (row.name.as_deref().map(Into::into), row.source.as_deref().cloned());
        self.put(text, &Line::Volume(stamp.stored(), local, row.capacity.0, name, source, number));
    }

    fn put_snapshot(&mut self, text: &mut Vec<u8>, stamp: Stamp, meta: &SnapshotMeta) {
        self.put(text, &Line::Snapshot(stamp.stored(), meta.clone()));
    }
}

/// `None` where it is not as it was written.
fn decode(line: &[u8]) -> Option<Line<'_>> {
    let (checksum, json) = line.split_at_checked(DIGITS + 1)?;
    let checksum = u32::from_str_radix(std::str::from_utf8(checksum).ok()?.trim_end(), 16).ok()?;
    if CRC32C.checksum(json) != checksum { None } else { serde_json::from_slice(json).ok() }
}

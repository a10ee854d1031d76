//! A writer whose numbers show whether a copy is of one instant.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Bytes of a record, and of a block that a number is written to.
const BLOCK: usize = 4096;
/// Begins each record, so that it is found in the image of a file system, too.
const MAGIC: &[u8; 16] = b"longshore-number";

/// A record at an address that O_DIRECT takes.
struct Record {
    bytes: Vec<u8>,
    start: usize,
}

impl Record {
    fn new(stream: u8) -> Record {
        let bytes = vec![0; 2 * BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        let mut record = Record { bytes, start };
        record.as_mut()[..16].copy_from_slice(MAGIC);
        record.as_mut()[16] = stream;
        record
    }

    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + BLOCK]
    }

    fn write(&mut self, number: u64, to: &File, blocks: u64) {
        self.as_mut()[24..32].copy_from_slice(&number.to_le_bytes());
        to.write_all_at(self.as_mut(), number % blocks * BLOCK as u64).expect("a write");
    }
}

/// Writes 1, 2, 3, ... round and round over the first blocks of one or several files or devices: each number to the first, then,
/// once that is acknowledged, to the second, and so on. Past every cache, until it is dropped.
pub struct Writer {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Begins, after each block was written once.
    pub fn start(places: &[&Path], blocks: u64) -> Writer {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, counts) = (Arc::clone(&stop), Arc::clone(&acknowledged));
        let places: Vec<PathBuf> = places.iter().map(|place| (*place).to_owned()).collect();
        let write = move || {
            let open = |place: &PathBuf| {
                OpenOptions::new().write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT).open(place)
            };
            let files: Vec<File> = places.iter().map(|place| open(place).expect("opens")).collect();
            let mut records: Vec<Record> = (0..files.len()).map(|stream| Record::new(stream as u8)).collect();
            let mut number = 0;
            while !ends.load(Ordering::Relaxed) {
                number += 1;
                for (file, record) in files.iter().zip(&mut records) {
                    record.write(number, file, blocks);
                }
                counts.store(number, Ordering::Release);
            }
        };
        let thread = std::thread::spawn(write);
        let writer = Writer { stop, acknowledged, thread: Some(thread) };
        writer.wait_for(blocks);
        writer
    }

    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Returns when this number was written.
    pub fn wait_for(&self, number: u64) {
        while self.acknowledged() < number {
            assert!(!self.thread.as_ref().is_some_and(JoinHandle::is_finished), "the writer failed");
            std::thread::yield_now();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The numbers of one stream that an image holds, in ascending order.
pub fn numbers(image: &Path, stream: u8) -> Vec<u64> {
    let mut file = File::open(image).unwrap_or_else(|error| panic!("{}: {error}", image.display()));
    let mut numbers = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    while file.read_exact(&mut buffer).is_ok() {
        // A file system may have blocks that are smaller than a record; its first sector says all.
        for sector in buffer.chunks(512) {
            if &sector[..16] == MAGIC && sector[16] == stream {
                numbers.push(u64::from_le_bytes(sector[24..32].try_into().expect("8 bytes")));
            }
        }
    }
    numbers.sort_unstable();
    numbers
}

/// The last number of a stream, once all are seen to be those that were there at one instant: the last ones, without a gap.
pub fn last_of_one_instant(image: &Path, stream: u8, blocks: u64) -> u64 {
    let numbers = numbers(image, stream);
    let last = *numbers.last().expect("numbers");
    let expected: Vec<u64> = (last + 1 - blocks..=last).collect();
    let gap = numbers.iter().zip(&expected).find(|(found, expected)| found != expected);
    assert!(
        numbers == expected,
        "not of one instant: {} numbers up to {last}, the first that is not there: {gap:?}",
        numbers.len()
    );
    last
}

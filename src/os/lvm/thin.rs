//! Which blocks of a thin volume are mapped, and which two thin volumes do not share, by what thin_dump(8) and thin_delta(8) print of the
//! pool's metadata. Both need a snapshot of it, as it changes meanwhile ([`dm::message`], `reserve_metadata_snap`).
//!
//! [`dm::message`]: crate::os::dm::message

use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::Path;
use std::time::Duration;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::os::process::{self, Run};
use crate::os::{Error, Result};

use super::{THIN_DELTA, THIN_DUMP};

/// What is mapped of a terabyte is read within seconds, if the disk is not busy.
const DEADLINE: Duration = Duration::from_secs(600);
const SECTOR: u64 = 512;

/// Which blocks. Thin volumes are known by their ids in the pool.
#[derive(Clone, Copy, Debug)]
pub enum Blocks {
    Mapped {
        thin: u64,
    },
    /// What is mapped otherwise in the second, or in one of them alone.
    Differing {
        from: u64,
        to: u64,
    },
}

/// Lists them; `metadata` is the device with the pool's metadata, of which a snapshot is held. What is printed, a line for each run of blocks,
/// is kept in the file `spool`, which loses its name at once: no other call may use that name at the same time.
///
/// # Errors
/// `Tool` where the program fails.
pub fn list(metadata: &Path, blocks: Blocks, spool: &Path) -> Result<Extents> {
    let (tool, which) = match blocks {
        Blocks::Mapped { thin } => (THIN_DUMP, vec!["--dev-id".to_owned(), thin.to_string()]),
        Blocks::Differing { from, to } => {
            (THIN_DELTA, vec!["--snap1".to_owned(), from.to_string(), "--snap2".to_owned(), to.to_string()])
        }
    };
    let made = File::options().read(true).write(true).create(true).truncate(true).open(spool);
    let file =
        made.and_then(|file| std::fs::remove_file(spool).map(|()| file)).map_err(|error| Error::io("create", spool, error))?;
    let printed = file.try_clone().map_err(|error| Error::io("duplicate", spool, error))?;
    let device = metadata.display().to_string();
    let arguments = [vec!["--metadata-snap".to_owned()], which, vec![device.clone()]].concat();
    let run = Run { tool, arguments, keep: Vec::new(), stdin: Vec::new(), deadline: DEADLINE };
    process::run_to_file(run, printed)?.accepted(tool.name, &device, &[0])?;
    Extents::read(file).map_err(|error| Error::io("read", spool, error))
}

/// Runs of blocks, as (offset, length) in bytes, in ascending order.
#[derive(Debug)]
pub struct Extents {
    reader: Reader<BufReader<File>>,
    buffer: Vec<u8>,
    /// Bytes of a block; of the element that is read first.
    block: Option<u64>,
    ended: bool,
    failed: bool,
}

impl Extents {
    fn read(mut file: File) -> std::io::Result<Extents> {
        file.rewind()?;
        Ok(Extents {
            reader: Reader::from_reader(BufReader::new(file)),
            buffer: Vec::new(),
            block: None,
            ended: false,
            failed: false,
        })
    }

    /// `None` at the end of the document.
    fn next_run(&mut self) -> Result<Option<(u64, u64)>, String> {
        loop {
            self.buffer.clear();
            let event = self.reader.read_event_into(&mut self.buffer).map_err(|error| error.to_string())?;
            match event {
                Event::Start(element) | Event::Empty(element) => {
                    let (offset, length) = match element.local_name().as_ref() {
                        "superblock" => {
                            self.block = number(&element, "data_block_size")?.checked_mul(SECTOR);
                            continue;
                        }
                        "single_mapping" => (number(&element, "origin_block")?, 1),
                        "range_mapping" => (number(&element, "origin_begin")?, number(&element, "length")?),
                        "different" | "left_only" | "right_only" => (number(&element, "begin")?, number(&element, "length")?),
                        _ => continue,
                    };
                    let block = self.block.ok_or("it does not begin with the size of a block")?;
                    let run = offset.checked_mul(block).zip(length.checked_mul(block));
                    return run.map(Some).ok_or_else(|| format!("block {offset} is too far away"));
                }
                Event::End(element) if element.local_name().as_ref() == "superblock" => self.ended = true,
                Event::Eof if self.ended => return Ok(None),
                Event::Eof => return Err("it has no end".to_owned()),
                _ => {}
            }
        }
    }
}

impl Iterator for Extents {
    type Item = Result<(u64, u64)>;

    /// An error is the last.
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let run = self.next_run();
        self.failed = run.is_err();
        let object = "what was printed of a thin pool's metadata".to_owned();
        run.map_err(|reason| Error::Unexpected { object, reason }).transpose()
    }
}

fn number(element: &BytesStart<'_>, name: &str) -> Result<u64, String> {
    let attribute = element.try_get_attribute(name).map_err(|error| error.to_string())?;
    attribute.and_then(|attribute| attribute.value.parse().ok()).ok_or_else(|| format!("an element has no number {name}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn extents(text: &str) -> Vec<Result<(u64, u64)>> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        Extents::read(file).expect("read").collect()
    }

    /// As thin-provisioning-tools 0.9.0 prints it.
    const DUMP: &str = r#"<superblock uuid="" time="1" transaction="3" flags="0" version="2" data_block_size="128" nr_data_blocks="0">
  <device dev_id="1" mapped_blocks="18" transaction="0" creation_time="0" snap_time="1">
    <range_mapping origin_begin="0" data_begin="0" length="16" time="0"/>
    <single_mapping origin_block="20" data_block="16" time="0"/>
    <single_mapping origin_block="100" data_block="17" time="1"/>
  </device>
</superblock>
"#;
    const DELTA: &str = r#"<superblock uuid="" time="1" transaction="3" data_block_size="128" nr_data_blocks="1536">
  <diff left="1" right="2">
    <same begin="0" length="1"/>
    <different begin="1" length="3"/>
    <left_only begin="20" length="1"/>
    <right_only begin="100" length="2"/>
  </diff>
</superblock>
"#;
    const BLOCK: u64 = 64 << 10;

    #[test]
    fn mapped_blocks_are_read_as_bytes() {
        let read: Vec<_> = extents(DUMP).into_iter().collect::<Result<_>>().expect("whole");
        assert_eq!(read, [(0, 16 * BLOCK), (20 * BLOCK, BLOCK), (100 * BLOCK, BLOCK)]);
    }

    #[test]
    fn blocks_that_one_of_two_lacks_differ() {
        let read: Vec<_> = extents(DELTA).into_iter().collect::<Result<_>>().expect("whole");
        assert_eq!(read, [(BLOCK, 3 * BLOCK), (20 * BLOCK, BLOCK), (100 * BLOCK, 2 * BLOCK)]);
    }

    #[test]
    fn truncated_list_is_an_error() {
        for cut in [0, 40, DUMP.len() / 2, DUMP.len() - 3] {
            assert!(extents(&DUMP[..cut]).last().expect("an error").is_err(), "{cut}");
        }
    }
}

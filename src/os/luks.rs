//! LUKS2 (cryptsetup(8)): an encrypted device, its header, and the mapping that shows it in clear.
//!
//! A header says in its `subsystem` field what is behind it ([`State`]), so that a mkfs or a growth that was interrupted is known
//! for one on whatever node the volume turns up next.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::block::Device;
use super::dm::{self, Mapped};
use super::process::{Output, Run, Tool, run_ok};
use super::{Error, Result};
use crate::volume::Encryption;

/// Both headers and the key slots, as `luksFormat` lays them out: what is encrypted begins behind.
pub const OVERHEAD: u64 = Encryption::Luks2.overhead().0;

const CRYPTSETUP: Tool = Tool { name: "cryptsetup", package: "cryptsetup-bin" };
/// A key is derived in seconds on purpose; a slow and loaded machine takes many of them.
const LONGEST: Duration = Duration::from_secs(300);
/// cryptsetup's exit status for a passphrase that opens no key slot.
const WRONG_PASSPHRASE: i32 = 2;

/// What deriving the key costs. 64 MiB of memory instead of up to 1 GiB: it is taken within the driver's own memory limit, for
/// several volumes at a time.
const COST: &[&str] = if cfg!(any(test, feature = "faults")) {
    // Hundreds of headers are made in a test, none of which protects anything.
    &["--pbkdf", "argon2id", "--pbkdf-memory", "32", "--pbkdf-parallel", "1", "--pbkdf-force-iterations", "4"]
} else {
    &["--pbkdf", "argon2id", "--pbkdf-memory", "65536", "--pbkdf-parallel", "1"]
};

/// What is behind a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing was ever kept in it: what it shows in clear is noise, or half a file system.
    New,
    /// A file system that was whole, and is being grown without being mounted.
    Growing,
    /// Whatever it shows in clear.
    Used,
}

impl State {
    const fn subsystem(self) -> &'static str {
        match self {
            State::New => "longshore-new",
            State::Growing => "longshore-growing",
            State::Used => "longshore",
        }
    }
}

/// What the start of an encrypted device says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// 1 or 2.
    pub version: u16,
    pub state: State,
    pub uuid: String,
}

/// The header at the start of the device; `None` where there is none.
pub fn header(device: &Device) -> Result<Option<Header>> {
    let mut bytes = [0; 512];
    if device.size()? < OVERHEAD {
        return Ok(None);
    }
    device.file().read_exact_at(&mut bytes, 0).map_err(|error| Error::io("read header of", device.path(), error))?;
    Ok(parse(&bytes))
}

/// The LUKS2 On-Disk Format Specification, section 2.1. cryptsetup checks what it protects by a checksum.
fn parse(bytes: &[u8; 512]) -> Option<Header> {
    let rest = bytes.strip_prefix(b"LUKS\xba\xbe")?;
    let version = u16::from_be_bytes(*rest.first_chunk()?);
    let subsystem = bytes.get(208..256)?.split(|byte| *byte == 0).next()?;
    let said = |state: &State| version == 2 && state.subsystem().as_bytes() == subsystem;
    let state = [State::New, State::Growing].into_iter().find(said).unwrap_or(State::Used);
    let uuid = String::from_utf8_lossy(bytes.get(168..208)?.split(|byte| *byte == 0).next()?).to_ascii_lowercase();
    Some(Header { version, state, uuid })
}

/// Writes a header with this UUID onto a device that was proven blank, marked as new.
///
/// # Errors
/// `Tool` with what cryptsetup said. Interrupted, it leaves a part within the first [`OVERHEAD`] bytes.
pub fn format(device: &Device, passphrase: &str, uuid: &str) -> Result<()> {
    let arguments = ["luksFormat", "--batch-mode", "--type", "luks2", "--key-file", "-", "--subsystem", State::New.subsystem()];
    cryptsetup(device, &[&arguments, ["--uuid", uuid].as_slice(), COST].concat(), None, passphrase, &[0])?;
    device.flush()
}

/// Makes what is encrypted appear as the mapping `name`. `Ok(None)`: the passphrase is wrong.
///
/// Without the kernel's keyring, so that it can grow later without the passphrase, which the CO does not send then.
pub fn open(device: &Device, name: &str, passphrase: &str, read_only: bool, discard: bool) -> Result<Option<Mapped>> {
    // After a boot a node opens all of its volumes at once, each of which takes 64 MiB: one after the other they fit into any limit.
    let one_at_a_time = "--serialize-memory-hard-pbkdf";
    let mut arguments = vec!["open", "--type", "luks2", "--disable-keyring", one_at_a_time, "--key-file", "-"];
    arguments.extend(read_only.then_some("--readonly"));
    arguments.extend(discard.then_some("--allow-discards"));
    let output = cryptsetup(device, &arguments, Some(name), passphrase, &[0, WRONG_PASSPHRASE])?;
    if output.status == Ok(WRONG_PASSPHRASE) {
        return Ok(None);
    }
    match dm::find(name)? {
        Some(mapped) if mapped.live && mapped.below == [device.number()] => Ok(Some(mapped)),
        other => Err(Error::Unexpected {
            object: name.to_owned(),
            reason: format!("the mapping that was made is not on {}: {other:?}", device.path().display()),
        }),
    }
}

/// Makes the mapping as large as its device has become.
pub fn grow(name: &str) -> Result<()> {
    let arguments = vec!["resize".to_owned(), name.to_owned()];
    let command = Run { tool: CRYPTSETUP, arguments, keep: Vec::new(), stdin: Vec::new(), deadline: LONGEST };
    run_ok(command, name, &[0]).map(drop)
}

/// Writes into the header what is behind it.
pub fn mark(device: &Device, state: State) -> Result<()> {
    cryptsetup(device, &["config", "--subsystem", state.subsystem()], None, "", &[0])?;
    device.flush()
}

/// Takes away what [`format`] wrote, or a part of it. Everything that is encrypted is lost for ever.
pub fn wipe(device: &Device) -> Result<()> {
    device.zero(0, OVERHEAD)?;
    device.flush()
}

/// `cryptsetup OPTIONS DEVICE [NAME]`, with the device by its open descriptor and the passphrase on standard input.
fn cryptsetup(device: &Device, options: &[&str], name: Option<&str>, passphrase: &str, accepted: &[i32]) -> Result<Output> {
    let mut arguments: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    arguments.push(device.argument());
    arguments.extend(name.map(str::to_owned));
    let stdin = passphrase.as_bytes().to_vec();
    let command = Run { tool: CRYPTSETUP, arguments, keep: vec![device.file().as_fd()], stdin, deadline: LONGEST };
    run_ok(command, &device.path().display().to_string(), accepted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::fs::interrupted::killed_at_write;
    use crate::os::fs::testing::Loop;

    const UUID: &str = "11111111-1111-8111-8111-111111111111";

    fn bytes(version: u8, subsystem: &[u8]) -> [u8; 512] {
        let mut bytes = [0; 512];
        let mut put = |offset: usize, what: &[u8]| bytes[offset..offset + what.len()].copy_from_slice(what);
        put(0, b"LUKS\xba\xbe\0");
        put(7, &[version]);
        put(168, UUID.as_bytes());
        put(208, subsystem);
        bytes
    }

    #[test]
    fn a_header_says_what_is_behind_it() {
        let header = |state| Header { version: 2, state, uuid: UUID.to_owned() };
        assert_eq!(parse(&bytes(2, b"longshore-new")), Some(header(State::New)));
        assert_eq!(parse(&bytes(2, b"longshore-growing")), Some(header(State::Growing)));
        assert_eq!(parse(&bytes(2, b"longshore")), Some(header(State::Used)));
        assert_eq!(parse(&bytes(2, b"longshore-newer")), Some(header(State::Used)));
        assert_eq!(parse(&bytes(1, b"longshore-new")).map(|header| header.state), Some(State::Used));
        assert_eq!(parse(&[0; 512]), None);
    }

    /// Whichever of the two headers was being written, cryptsetup continues with the other.
    #[test]
    fn killed_at_any_write_a_mark_is_made_or_not() {
        let Some(under) = Loop::new(32 << 20) else { return };
        let device = Device::open(&under.device, true).unwrap();
        if let Err(error) = CRYPTSETUP.find() {
            return eprintln!("SKIPPED: {error}");
        }
        format(&device, "passphrase", UUID).unwrap();
        assert_eq!(header(&device).unwrap().map(|header| header.uuid).as_deref(), Some(UUID));
        mark(&device, State::Used).unwrap();
        let mut before = vec![0; usize::try_from(OVERHEAD).unwrap()];
        device.file().read_exact_at(&mut before, 0).unwrap();
        let mut states = Vec::new();
        for number in 1.. {
            device.file().write_all_at(&before, 0).unwrap();
            let killed =
                killed_at_write("cryptsetup", &["config", "--subsystem", State::Growing.subsystem(), under.name()], number);
            assert!(killed || number > 4, "it wrote less than this test needs");
            let opened = cryptsetup(&device, &["open", "--test-passphrase", "--key-file", "-"], None, "passphrase", &[0]);
            assert!(opened.is_ok(), "killed at write {number}: {opened:?}");
            states.push(header(&device).unwrap().unwrap().state);
            // Both say the same from then on, should one be lost.
            device.file().write_all_at(&[0; 4096], 0).unwrap();
            cryptsetup(&device, &["open", "--test-passphrase", "--key-file", "-"], None, "passphrase", &[0]).unwrap();
            assert_eq!(header(&device).unwrap().map(|header| header.state), states.last().copied(), "killed at write {number}");
            if !killed {
                println!("FIGURE: killed at each write of cryptsetup: {} kills", number - 1);
                break;
            }
        }
        let made = states.partition_point(|state| *state == State::Used);
        assert!(0 < made && states[made..].iter().all(|state| *state == State::Growing), "{states:?}");
    }
}

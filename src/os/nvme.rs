//! NVMe disks: which this machine has, by sysfs, and which an open one is, by its controller's own word.
#![allow(unsafe_code, reason = "NVMe's ioctls have no safe wrapper")]

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::block::Device;
use super::scsi::{attribute, children, number};
use super::{Error, Result};

/// Bytes of what Identify answers (NVM Express base specification, "Identify command").
const IDENTIFY_LENGTH: usize = 4096;

/// linux/nvme_ioctl.h
mod ioctl {
    /// struct nvme_passthru_cmd
    #[repr(C)]
    #[derive(Default)]
    pub struct Command {
        pub opcode: u8,
        pub flags: u8,
        pub rsvd1: u16,
        pub nsid: u32,
        pub cdw2: u32,
        pub cdw3: u32,
        pub metadata: u64,
        pub addr: u64,
        pub metadata_len: u32,
        pub data_len: u32,
        pub cdw10: u32,
        pub cdw11_to_15: [u32; 5],
        /// Milliseconds; 0 is the kernel's own deadline, after which it resets the controller: a shorter one of ours would do harm.
        pub timeout_ms: u32,
        pub result: u32,
    }
    const _: () = assert!(size_of::<Command>() == 72);

    nix::ioctl_none!(namespace, b'N', 0x40);
    nix::ioctl_readwrite!(admin, b'N', 0x41, Command);
}

/// The command (base specification, "Opcodes for Admin Commands"), and of what: "CNS values".
const IDENTIFY: u8 = 0x06;
const GET_LOG_PAGE: u8 = 0x02;
/// Bytes, and number, of the log page.
const LOG_LENGTH: usize = 512;
const SMART_LOG: u32 = 0x02;
const NAMESPACE: u32 = 0;
const CONTROLLER: u32 = 1;

/// What an open disk's controller says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// At most 20 characters.
    pub serial: String,
    /// At most 40 characters.
    pub model: String,
}

/// A whole disk that sysfs shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// `nvme1n1`.
    pub name: String,
    pub number: (u32, u32),
    /// As the kernel read it when the controller came.
    pub serial: String,
    pub model: String,
}

/// All whole disks whose controller has a serial number. The kernel's hidden paths to a disk of several have no number, and are left out.
pub fn disks(sysfs: &Path) -> Result<Vec<Disk>> {
    let block = sysfs.join("block");
    let mut disks = Vec::new();
    for name in children(&block)? {
        let directory = block.join(&name);
        let Some(serial) = attribute(&directory, "device/serial")? else { continue };
        let Some(number) = attribute(&directory, "dev")?.as_deref().and_then(number) else { continue };
        let model = attribute(&directory, "device/model")?.unwrap_or_default();
        disks.push(Disk { name, number, serial, model });
    }
    Ok(disks)
}

/// What the controller of an open disk, or partition, says; `None` where it is no NVMe disk. Needs CAP_SYS_ADMIN.
///
/// # Errors
/// Also where the controller is gone (ENODEV), or refuses.
pub fn controller(device: &Device) -> Result<Option<Controller>> {
    let Some(answer) = identify(device, CONTROLLER)? else { return Ok(None) };
    Ok(Some(Controller { serial: text(&answer, 4, 20), model: text(&answer, 24, 40) }))
}

/// The size in bytes that the controller of an open whole disk says, which the kernel may not have taken over yet; `None` where it is no
/// NVMe disk.
pub fn size(device: &Device) -> Result<Option<u64>> {
    Ok(identify(device, NAMESPACE)?.map(|answer| size_of_namespace(&answer)))
}

/// What the vendor says of an open whole disk, behind what the specification says of it ("Identify Namespace Data Structure", bytes 384 on);
/// `None` where it is no NVMe disk.
pub fn vendor_data(device: &Device) -> Result<Option<Vec<u8>>> {
    Ok(identify(device, NAMESPACE)?.map(|answer| answer.get(384..).unwrap_or_default().to_vec()))
}

/// Has the kernel look at a disk's controllers anew; what has changed is taken over a little later.
pub fn rescan(sysfs: &Path, disk: &str) -> Result<()> {
    let directory = sysfs.join("block").join(disk).join("device");
    // With several paths to a disk `device` is its subsystem, in which the controllers are.
    let mut controllers: Vec<PathBuf> = vec![directory.clone()];
    controllers
        .extend(children(&directory)?.into_iter().filter(|name| name.starts_with("nvme")).map(|name| directory.join(name)));
    for order in controllers.iter().map(|controller| controller.join("rescan_controller")).filter(|order| order.exists()) {
        std::fs::write(&order, "1").map_err(|error| Error::io("write", &order, error))?;
    }
    Ok(())
}

/// What the SMART / Health log of an open disk warns of (base specification, "SMART / Health Information"); empty is nothing. `None` where it is
/// no NVMe disk.
pub fn warnings(device: &Device) -> Result<Option<Vec<&'static str>>> {
    // Of all namespaces; the length is in words of four bytes, less one.
    let words = u32::try_from(LOG_LENGTH / 4 - 1).unwrap_or_default();
    let log = command(device, GET_LOG_PAGE, |_| u32::MAX, LOG_LENGTH, (words << 16) | SMART_LOG, "read the health log of")?;
    Ok(log.map(|log| meant(log.first().copied().unwrap_or_default())))
}

fn meant(warning: u8) -> Vec<&'static str> {
    const BITS: [&str; 6] = [
        "its spare blocks are nearly used up",
        "its temperature is outside of its bounds",
        "its reliability is degraded by errors",
        "it takes no more writes",
        "its memory is not backed up any more",
        "its persistent memory is unreliable",
    ];
    BITS.iter().enumerate().filter(|(bit, _)| warning & (1 << bit) != 0).map(|(_, words)| *words).collect()
}

fn identify(device: &Device, of: u32) -> Result<Option<Vec<u8>>> {
    command(device, IDENTIFY, |nsid| if of == NAMESPACE { nsid } else { 0 }, IDENTIFY_LENGTH, of, "identify the controller of")
}

/// The answer to an admin command that reads `length` bytes; `None` where it is no NVMe disk.
fn command(
    device: &Device,
    opcode: u8,
    namespace: impl FnOnce(u32) -> u32,
    length: usize,
    cdw10: u32,
    action: &'static str,
) -> Result<Option<Vec<u8>>> {
    let fd = device.file().as_raw_fd();
    // SAFETY: the descriptor is open, and nothing is passed.
    let nsid = match unsafe { ioctl::namespace(fd) } {
        Ok(nsid) => nsid.cast_unsigned(),
        // Loop and Xen devices say EINVAL to what they do not know.
        Err(Errno::ENOTTY | Errno::EINVAL) => return Ok(None),
        Err(errno) => return Err(Error::io("ask for the namespace of", device.path(), errno)),
    };
    let mut answer = vec![0_u8; length];
    let mut command = ioctl::Command {
        opcode,
        nsid: namespace(nsid),
        addr: answer.as_mut_ptr().expose_provenance() as u64,
        data_len: u32::try_from(answer.len()).unwrap_or_default(),
        cdw10,
        ..Default::default()
    };
    // SAFETY: the descriptor is open, `command` is laid out as the kernel's struct nvme_passthru_cmd, and the kernel writes at most
    // `data_len` bytes at `addr`, which `answer` has until the call is over.
    match unsafe { ioctl::admin(fd, &raw mut command) } {
        Ok(0) => Ok(Some(answer)),
        Ok(status) => Err(Error::Unexpected {
            object: device.path().display().to_string(),
            reason: format!("its controller refuses to be asked (NVMe status {status:#x}): {action} it"),
        }),
        Err(errno) => Err(Error::io(action, device.path(), errno)),
    }
}

/// ASCII, filled up with spaces; some fill up with zeroes.
fn text(answer: &[u8], offset: usize, length: usize) -> String {
    let bytes = answer.get(offset..offset + length).unwrap_or_default();
    String::from_utf8_lossy(bytes).trim_matches([' ', '\0']).to_owned()
}

/// NSZE blocks, of the size that FLBAS picks from the formats (NVM command set specification, "Identify Namespace Data Structure").
fn size_of_namespace(answer: &[u8]) -> u64 {
    let byte = |offset: usize| answer.get(offset).copied().unwrap_or_default();
    let blocks = answer.first_chunk::<8>().copied().map(u64::from_le_bytes).unwrap_or_default();
    let format = usize::from(byte(26) & 0xf);
    let shift = u32::from(byte(128 + 4 * format + 2));
    blocks.checked_shl(shift).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identify_data_is_read() {
        let mut answer = vec![0; IDENTIFY_LENGTH];
        answer[4..24].copy_from_slice(b"vol0123456789abcdef0");
        answer[24..64].copy_from_slice(b"Amazon Elastic Block Store              ");
        assert_eq!(
            (text(&answer, 4, 20).as_str(), text(&answer, 24, 40).as_str()),
            ("vol0123456789abcdef0", "Amazon Elastic Block Store")
        );
        answer[4..24].copy_from_slice(b"vol01234567\0\0\0\0\0\0\0\0\0");
        assert_eq!(text(&answer, 4, 20), "vol01234567");

        let mut answer = vec![0; IDENTIFY_LENGTH];
        answer[..8].copy_from_slice(&2_621_440_u64.to_le_bytes());
        answer[26] = 1;
        answer[130] = 12;
        answer[134] = 9;
        assert_eq!(size_of_namespace(&answer), 2_621_440 << 9);
        assert_eq!(size_of_namespace(&[]), 0);
    }

    #[test]
    fn each_bit_of_the_warning_has_its_words() {
        assert_eq!(meant(0), Vec::<&str>::new());
        assert_eq!(meant(0b100), ["its reliability is degraded by errors"]);
        assert_eq!(meant(0xff).len(), 6);
    }

    /// As strace shows nvme-cli's.
    #[test]
    fn the_requests_are_the_kernels() {
        assert_eq!(nix::request_code_none!(b'N', 0x40), 0x4e40);
        assert_eq!(nix::request_code_readwrite!(b'N', 0x41, size_of::<ioctl::Command>()), 0xc048_4e41);
    }

    #[test]
    fn sysfs_shows_disks_with_a_serial() {
        let root = tempfile::tempdir().expect("a directory");
        let put = |path: &str, text: &str| {
            let path = root.path().join("block").join(path);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        };
        put("nvme1n1/device/serial", "vol0123456789abcdef0\n");
        put("nvme1n1/device/model", "Amazon Elastic Block Store              \n");
        put("nvme1n1/dev", "259:1\n");
        put("nvme0c0n1/device/serial", "hidden: it has no number\n");
        put("sda/dev", "8:0\n");
        let disk = Disk {
            name: "nvme1n1".to_owned(),
            number: (259, 1),
            serial: "vol0123456789abcdef0".to_owned(),
            model: "Amazon Elastic Block Store".to_owned(),
        };
        assert_eq!(disks(root.path()).expect("reads"), [disk]);
        assert_eq!(disks(Path::new("/no/such/directory")).expect("none"), []);

        put("nvme1n1/device/rescan_controller", "");
        put("nvme2n1/device/nvme2/rescan_controller", "");
        for (disk, order) in [("nvme1n1", "device"), ("nvme2n1", "device/nvme2")] {
            rescan(root.path(), disk).expect("writes");
            let order = root.path().join("block").join(disk).join(order).join("rescan_controller");
            assert_eq!(std::fs::read_to_string(order).expect("reads"), "1", "{disk}");
        }
        rescan(root.path(), "sda").expect("nothing to do");
    }
}

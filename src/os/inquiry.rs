//! What an open SCSI disk says it is: INQUIRY, page 0x83 (SPC-4, "Device Identification VPD page").
#![allow(unsafe_code, reason = "SG_IO has no safe wrapper")]

use std::os::fd::AsRawFd;
use std::ptr;

use nix::errno::Errno;

use super::block::Device;
use super::{Error, Result};

/// scsi/sg.h
mod ioctl {
    use std::ffi::c_void;

    /// struct sg_io_hdr
    #[repr(C)]
    pub struct Header {
        pub interface: i32,
        pub direction: i32,
        pub command_length: u8,
        pub sense_length: u8,
        pub iovec_count: u16,
        pub length: u32,
        pub data: *mut c_void,
        pub command: *const u8,
        pub sense: *mut u8,
        pub timeout_ms: u32,
        pub flags: u32,
        pub pack_id: i32,
        pub user: *mut c_void,
        pub status: u8,
        pub masked_status: u8,
        pub message_status: u8,
        pub sense_written: u8,
        pub host_status: u16,
        pub driver_status: u16,
        pub residual: i32,
        pub duration: u32,
        pub info: u32,
    }
    const _: () = assert!(size_of::<Header>() == 88);

    nix::ioctl_readwrite_bad!(sg_io, 0x2285, Header);
}

const FROM_DEVICE: i32 = -3;
const INQUIRY: u8 = 0x12;
const DEVICE_IDENTIFICATION: u8 = 0x83;
/// Of an answer.
const LENGTH: u16 = 1024;
/// A path that is tried again for longer is no answer.
const PATIENCE_MS: u32 = 10_000;

/// The names of an open whole disk that are its vendor's own, or begin with the vendor's: those of the logical unit itself. `None` where it is
/// no SCSI disk, or has no such page.
///
/// # Errors
/// Also where the disk is gone (ENODEV).
pub fn vendor_names(device: &Device) -> Result<Option<Vec<String>>> {
    let mut answer = vec![0_u8; LENGTH.into()];
    let [high, low] = LENGTH.to_be_bytes();
    let command = [INQUIRY, 1, DEVICE_IDENTIFICATION, high, low, 0];
    let mut sense = [0_u8; 32];
    let mut header = ioctl::Header {
        interface: i32::from(b'S'),
        direction: FROM_DEVICE,
        command_length: 6,
        sense_length: 32,
        iovec_count: 0,
        length: LENGTH.into(),
        data: answer.as_mut_ptr().cast(),
        command: command.as_ptr(),
        sense: sense.as_mut_ptr(),
        timeout_ms: PATIENCE_MS,
        flags: 0,
        pack_id: 0,
        user: ptr::null_mut(),
        status: 0,
        masked_status: 0,
        message_status: 0,
        sense_written: 0,
        host_status: 0,
        driver_status: 0,
        residual: 0,
        duration: 0,
        info: 0,
    };
    // SAFETY: the descriptor is open, `header` is laid out as the kernel's struct sg_io_hdr, and its pointers are to buffers of the lengths that
    // it says, which live until the call is over.
    match unsafe { ioctl::sg_io(device.file().as_raw_fd(), &raw mut header) } {
        Ok(_) if header.status == 0 && header.host_status == 0 && header.driver_status == 0 => Ok(Some(names(&answer))),
        // CHECK CONDITION: a page that it does not have.
        Ok(_) if header.status == 2 && header.host_status == 0 => Ok(None),
        Ok(_) => Err(Error::Unexpected {
            object: device.path().display().to_string(),
            reason: format!("it does not say what it is (SCSI status {:#x}, host {:#x})", header.status, header.host_status),
        }),
        Err(Errno::ENOTTY | Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(None),
        Err(errno) => Err(Error::io("identify", device.path(), errno)),
    }
}

/// Designators of the logical unit (association 0) of type 0, "vendor specific", or 1, "T10 vendor ID based".
fn names(page: &[u8]) -> Vec<String> {
    let length = page.get(2..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_be_bytes);
    let mut rest = page.get(4..).unwrap_or_default();
    rest = rest.get(..length.into()).unwrap_or(rest);
    let mut found = Vec::new();
    while let [_, kind, _, length, behind @ ..] = rest {
        let Some((text, further)) = behind.split_at_checked((*length).into()) else { break };
        if kind & 0x30 == 0 && matches!(kind & 0xf, 0 | 1) {
            found.push(String::from_utf8_lossy(text).trim_matches([' ', '\0']).to_owned());
        }
        rest = further;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(designators: &[(u8, &[u8])]) -> Vec<u8> {
        let body = designators
            .iter()
            .flat_map(|(kind, text)| [&[2, *kind, 0, u8::try_from(text.len()).expect("short")], *text].concat());
        let body: Vec<u8> = body.collect();
        let length = u16::try_from(body.len()).expect("short").to_be_bytes();
        [&[0, DEVICE_IDENTIFICATION], &length[..], &body].concat()
    }

    #[test]
    fn names_of_the_unit_are_read() {
        let all =
            page(&[(3, b"12345678"), (0, b"longshore-7\0"), (0x10, b"of the port"), (1, b"Google  PersistentDisk  longshore-7")]);
        assert_eq!(names(&all), ["longshore-7", "Google  PersistentDisk  longshore-7"]);
        // What ends early has no more.
        assert_eq!(names(&all[..all.len() - 1]), ["longshore-7"]);
        for length in 0..all.len() {
            names(&all[..length]);
        }
        assert_eq!(names(&[]), Vec::<String>::new());
    }
}

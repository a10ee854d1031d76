//! What configfs says.

use super::fileio::{label, parse_bytes, parse_inode};
use super::*;
use std::path::Path;

#[test]
fn kernel_attributes_of_a_disk_are_read() {
    let info = "Status: ACTIVATED  Max Queue Depth: 0  SectorSize: 512  HwMaxSectors: 16384\n        TCM FILEIO ID: 0        \
                File: /proc/self/fd/7  Size: 134217728  Mode: O_DSYNC Async: 0\n";
    assert_eq!(parse_bytes(info), Some(134_217_728));
    assert_eq!(parse_bytes("Size: none"), None);
    assert_eq!(parse_inode("254:123456\n"), Some((254, 123_456)));
    for alias in ["", "\n", "254", "254:", "a:b"] {
        assert_eq!(parse_inode(alias), None, "{alias:?}");
    }
}

#[test]
fn a_serial_number_is_seen_as_this_device() {
    assert_eq!(wwid("5f1d7a8411bd4bca9e0b0123456789ab"), "naa.60014055f1d7a8411bd4bca9e0b01234");
}

#[test]
fn a_long_label_is_cut_between_characters() {
    let long = format!("/{}", "ä".repeat(300));
    assert_eq!(label(Path::new(&long)).len(), 511);
    assert_eq!(label(Path::new(&format!("/a{}", "ä".repeat(300)))).len(), 510);
    assert_eq!(label(Path::new("/pool/image")), "/pool/image");
}

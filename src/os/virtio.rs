//! Disks of virtio-blk, as sysfs shows them (drivers/block/virtio_blk.c, `serial_show`: the disk itself is asked).

use std::path::Path;

use super::Result;
use super::scsi::{Disk, attribute, children, number};

/// All whole disks below a directory of block devices that have a serial number of their own, with it; the kernel shows at most 20 characters.
///
/// # Errors
/// Where the directory cannot be read.
pub fn disks_with_serial(block: &Path) -> Result<Vec<(Disk, String)>> {
    let mut disks = Vec::new();
    for name in children(block)? {
        let directory = block.join(&name);
        let Some(serial) = attribute(&directory, "serial")? else { continue };
        let Some(number) = attribute(&directory, "dev")?.as_deref().and_then(number) else { continue };
        disks.push((Disk { name, number }, serial));
    }
    Ok(disks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_without_a_serial_number_are_left_out() {
        let root = tempfile::tempdir().expect("a directory");
        let put = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        };
        put("vda/dev", "252:0\n");
        put("vda/serial", "");
        put("vdb/dev", "252:16\n");
        put("vdb/serial", "0123abcd-4567-89ab-c\n");
        put("sda/dev", "8:0\n");
        put("vdc/serial", "going");
        let found = disks_with_serial(root.path()).expect("read");
        let expected = Disk { name: "vdb".to_owned(), number: (252, 16) };
        assert_eq!(found, [(expected, "0123abcd-4567-89ab-c".to_owned())]);
    }
}

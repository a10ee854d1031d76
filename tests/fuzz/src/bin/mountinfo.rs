//! /proc/self/mountinfo: arbitrary bytes, and what the kernel would write of arbitrary paths.
#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use longshore::os::mountinfo::{Mount, MountTable};

fuzz_target!(|data: &[u8]| {
    if let Ok(table) = MountTable::parse(data) {
        let lines = data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        assert_eq!(table.iter().count(), lines, "a line was left out");
        for mount in table.iter().take(8) {
            assert!(table.at(&mount.mount_point).iter().all(|found| found.mount_point == mount.mount_point));
            assert!(table.below(&mount.mount_point).all(|found| found.mount_point != mount.mount_point));
            assert!(table.of_device(mount.device).any(|found| found == mount));
        }
    }
    written_and_read(data);
});

/// The input's pieces, parted by NUL, which no path holds, become mounts on top of each other's directories.
fn written_and_read(data: &[u8]) {
    let paths: Vec<Vec<u8>> = data.split(|byte| *byte == 0).take(6).map(|piece| [b"/", piece].concat()).collect();
    let mut text = Vec::new();
    for (number, path) in paths.iter().enumerate() {
        text.extend(format!("{} {number} 7:{number} ", number + 1).bytes());
        // A path, then a name: fs/proc_namespace.c escapes one sign more in names.
        text.extend([escaped(path, b" \t\n\\"), b" ".into(), escaped(path, b" \t\n\\"), b" rw shared:1 - ext4 ".into()].concat());
        text.extend([escaped(path, b" \t\n\\#"), b" rw,errors=remount-ro\n".into()].concat());
    }
    let table = MountTable::parse(&text).expect("as the kernel writes it");
    let read: Vec<&Mount> = table.iter().collect();
    assert_eq!(read.len(), paths.len());
    for (mount, path) in read.iter().zip(&paths) {
        for seen in [&mount.root, &mount.mount_point, &mount.source] {
            assert_eq!(seen.as_os_str().as_bytes(), path);
        }
        assert!(!mount.is_read_only());
        let at = table.at(Path::new(OsStr::from_bytes(path)));
        assert!(at.iter().all(|found| found.mount_point == mount.mount_point));
    }
}

fn escaped(bytes: &[u8], which: &[u8]) -> Vec<u8> {
    let one = |byte: &u8| if which.contains(byte) { format!("\\{byte:03o}").into_bytes() } else { vec![*byte] };
    bytes.iter().flat_map(one).collect()
}

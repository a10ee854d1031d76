//! Paths of the CO's, below a directory that is full of magic links: /proc.
#![no_main]

use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use longshore::os::path::Root;

static ROOT: LazyLock<Root> = LazyLock::new(|| Root::open(Path::new("/proc")).expect("/proc"));

fuzz_target!(|data: &[u8]| {
    let path = Path::new(OsStr::from_bytes(data));
    // Opened, it lies below, wherever links may lead: with O_PATH, which does nothing to what it opens.
    if let Ok(Some(opened)) = ROOT.open_path(path) {
        let is = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).expect("an open file has a name");
        assert!(is.starts_with("/proc") || is.starts_with("anon_inode:"), "{} is {}", path.display(), is.display());
    }
    let Ok(relative) = ROOT.relative(path) else { return };
    assert!(data.starts_with(b"/proc/") && data.len() < 4096 && !data.contains(&0));
    assert!(relative.components().all(|part| matches!(part, Component::Normal(name) if name.len() <= 255)));
    // Byte for byte what was asked for, so that mountinfo shows it so.
    assert_eq!(ROOT.path().join(&relative).as_os_str().as_bytes(), data);
});

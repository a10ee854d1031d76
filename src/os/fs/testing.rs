//! What kernel tests stand on: mount namespaces, loop devices and file systems of their own, which go also on a panic.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags};

use crate::os::block::Device;
use crate::os::process::{Run, Tool, run, run_ok};

/// Runs `test` in a thread with a mount namespace of its own; skips it, aloud, where that is not allowed.
pub(crate) fn in_namespace(test: impl FnOnce() + Send) {
    test_support::in_namespace(test);
}

/// As `in_namespace`, with a directory on an empty btrfs.
pub(crate) fn on_btrfs(test: impl FnOnce(&Path) + Send) {
    in_namespace(|| {
        if let Some(scratch) = Scratch::mounted("btrfs", 300 << 20) {
            test(scratch.path());
        }
    });
}

/// Runs a tool and wants it to succeed; none (said aloud) where it is not installed.
pub(crate) fn tool(name: &'static str, arguments: &[&str]) -> Option<String> {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let tool = Tool { name, package: "one that has it" };
    if let Err(error) = tool.find() {
        eprintln!("SKIPPED: {error}");
        return None;
    }
    let command = Run { tool, arguments, keep: Vec::new(), stdin: Vec::new(), deadline: Duration::from_secs(60) };
    Some(run_ok(command, "test", &[0]).unwrap().stdout)
}

/// A sparse file under a loop device, detached on drop.
pub(crate) struct Loop {
    pub(crate) device: PathBuf,
    pub(crate) image: File,
    _directory: tempfile::TempDir,
}

impl Loop {
    pub(crate) fn new(size: u64) -> Option<Loop> {
        Loop::attached(size, &[])
    }

    /// Whose partitions go with it; without this flag the kernel keeps them for what gets the number next.
    pub(crate) fn with_partitions(size: u64) -> Option<Loop> {
        Loop::attached(size, &["--partscan"])
    }

    fn attached(size: u64, flags: &[&str]) -> Option<Loop> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let image = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        image.set_len(size).unwrap();
        let device = tool("losetup", &[flags, &["--find", "--show", path.to_str().unwrap()]].concat())?;
        let device = PathBuf::from(device.trim());
        // The kernel keeps write protection with the number: another test may have left it.
        Device::open(&device, false).unwrap().set_read_only(false).unwrap();
        Some(Loop { device, image, _directory: directory })
    }

    pub(crate) fn name(&self) -> &str {
        self.device.to_str().unwrap()
    }

    pub(crate) fn resize(&self, size: u64) {
        self.image.set_len(size).unwrap();
        tool("losetup", &["--set-capacity", self.name()]).unwrap();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let arguments = vec!["--detach".to_owned(), self.name().to_owned()];
        let tool = Tool { name: "losetup", package: "mount" };
        let command = Run { tool, arguments, keep: Vec::new(), stdin: Vec::new(), deadline: Duration::from_secs(60) };
        match run(command) {
            Ok(output) if output.status == Ok(0) => {}
            other => eprintln!("{} is left over: {other:?}", self.device.display()),
        }
    }
}

/// A program that has a file open, ended on drop.
pub(crate) struct User(std::process::Child);

impl User {
    pub(crate) fn of(file: File) -> User {
        #[allow(clippy::disallowed_methods, reason = "a process of its own, which is ended on drop")]
        User(std::process::Command::new("sleep").arg("60").stdin(file).spawn().unwrap())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A mount, undone on drop: at the latest when a child that another test starts has let go of what it was born with.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    pub(crate) fn new(source: &Path, place: &Path, fstype: &str) -> Mounted {
        nix::mount::mount(Some(source), place, Some(fstype), MsFlags::empty(), None::<&str>).unwrap();
        Mounted(place.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(errno) = nix::mount::umount2(&self.0, MntFlags::MNT_DETACH) {
            eprintln!("{} is still mounted: {errno}", self.0.display());
        }
    }
}

/// An empty file system, mounted. The fields go in their order: the mount, the device, the directory.
pub(crate) struct Scratch {
    _mounted: Mounted,
    _under: Option<Loop>,
    directory: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn mounted(fstype: &str, size: u64) -> Option<Scratch> {
        let under = Loop::new(size)?;
        let mkfs = match fstype {
            "ext4" => "mkfs.ext4",
            "xfs" => "mkfs.xfs",
            _ => "mkfs.btrfs",
        };
        tool(mkfs, &["-q", under.name()])?;
        let directory = tempfile::tempdir().unwrap();
        Some(Scratch { _mounted: Mounted::new(&under.device, directory.path(), fstype), _under: Some(under), directory })
    }

    pub(crate) fn tmpfs() -> Option<Scratch> {
        let directory = tempfile::tempdir().unwrap();
        Some(Scratch { _mounted: Mounted::new(Path::new("none"), directory.path(), "tmpfs"), _under: None, directory })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

//! Loop devices that stand in for a cloud's disks, for tests of its node's half: a directory says of each what it is, as sysfs does.

use std::fs::File;
use std::path::PathBuf;

use crate::backend::{Connect, ConnectRequest, Source};
use crate::os::loopdev::{self, Loop};
use crate::volume::{MountFlags, Outcome, Result, Secrets};

use super::attach::VOLUME;

pub struct Lab<N> {
    directory: tempfile::TempDir,
    pub node: N,
}

/// A loop device that goes with it.
pub struct LoopDisk {
    pub device: Loop,
    /// As long as the device.
    _backing: File,
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = loopdev::detach(&self.device.path, self.device.backing);
    }
}

impl<N: Connect> Lab<N> {
    /// `node` gets the directory.
    pub fn new(node: impl FnOnce(PathBuf) -> N) -> Lab<N> {
        let directory = tempfile::tempdir().expect("a directory");
        let node = node(directory.path().to_owned());
        Lab { directory, node }
    }

    /// A disk of which these files say what it is; `None`, and said, where this machine has no loop devices for us.
    pub fn disk(&self, files: &[(&str, &str)]) -> Option<LoopDisk> {
        self.disk_of(1 << 20, files)
    }

    /// The same, of so many bytes.
    pub fn disk_of(&self, size: u64, files: &[(&str, &str)]) -> Option<LoopDisk> {
        let backing = tempfile::tempfile_in(self.directory.path()).expect("a file");
        backing.set_len(size).expect("a size");
        let device = match loopdev::attach(&backing, "stand-in", false) {
            Ok(device) => device,
            Err(error) => {
                eprintln!("SKIPPED: disks on loop devices: {error}");
                return None;
            }
        };
        let disk = LoopDisk { device, _backing: backing };
        let (major, minor) = disk.device.number;
        files.iter().for_each(|(file, text)| self.put(&disk, file, text));
        self.put(&disk, "dev", &format!("{major}:{minor}\n"));
        Some(disk)
    }

    /// The disk is no longer on the machine.
    pub fn remove(&self, disk: LoopDisk) {
        let name = disk.device.path.file_name().expect("a name");
        #[allow(clippy::disallowed_methods, reason = "files of a stand-in, of which none is a mount point")]
        std::fs::remove_dir_all(self.directory.path().join("block").join(name)).expect("removed");
    }

    pub fn put(&self, disk: &LoopDisk, file: &str, text: &str) {
        let path = self.directory.path().join("block").join(disk.device.path.file_name().expect("a name")).join(file);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }

    /// `disk` is what publish_context says.
    pub fn connect(&self, id: &str, disk: Option<&str>, earlier: Option<&Source>) -> Result<Source> {
        let context = disk.map(|disk| (VOLUME.to_owned(), disk.to_owned())).into_iter().collect();
        let request = ConnectRequest {
            id: &id.parse().expect("an id"),
            parameters: &serde_json::Value::Null,
            publish_context: &context,
            secrets: &Secrets::default(),
            mount_flags: &MountFlags::default(),
            read_only: false,
            earlier,
        };
        self.node.connect(&request).map(Outcome::into_inner)
    }

    /// The disk shows up late, and is another one's later: `other` makes it so.
    pub fn disk_is_found_however_late(&self, id: &str, disk: &str, identity: &str, late: &[(&str, &str)], other: (&str, &str)) {
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| self.connect(id, Some(disk), None));
            let late = self.disk(late).expect("a second");
            let source = connecting.join().expect("no panic").expect("connected");
            let Source::Device(device) = &source else { panic!("{source:?}") };
            assert_eq!((&device.path, device.identity.as_str()), (&late.device.path, identity));
            assert!(self.node.is_same_device(&source).expect("looks"));
            assert_eq!(self.connect(id, None, Some(&source)).expect("as earlier"), source);
            // The number is another volume's by now.
            self.put(&late, other.0, other.1);
            assert!(!self.node.is_same_device(&source).expect("looks"));
            self.connect(id, None, Some(&source)).expect_err("another volume's");
            let id = id.parse().expect("an id");
            self.node.refresh(&id, &source).expect_err("another volume's");
            assert_eq!(self.node.disconnect(&id, Some(&source)).expect("nothing to do"), Outcome::Unchanged(()));
        });
    }

    /// None, or two, or one that is not the volume's. `refused` is the volume's id, what is attached, and why it is not used.
    pub fn doubtful_disk_is_not_used(
        &self,
        id: &str,
        disk: &str,
        files: &[(&str, &str)],
        refused: &[(&str, Option<&str>, &str)],
    ) {
        let error = self.connect(id, Some(disk), None).expect_err("no disk").to_string();
        assert!(error.contains("not shown up") && error.contains("there are none"), "{error}");
        let Some(_one) = self.disk(files) else { return };
        let Some(_two) = self.disk(files) else { return };
        let error = self.connect(id, Some(disk), None).expect_err("two").to_string();
        assert!(error.contains("none is used"), "{error}");
        for (id, disk, words) in refused {
            let error = self.connect(id, *disk, None).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}

//! A machine whose disks come and go as its cloud says: for each that is attached a loop device of this machine stands in, which a driver finds
//! in a directory laid out like sysfs.
//!
//! A proxy before the cloud looks after each request, before its answer, at what is attached: a disk that a driver hears to be attached is there, and one
//! that has grown is larger.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::TempDir;

use super::common::{LoopDevice, run, text};
use super::emulated::Server;
use super::front;

/// A disk that the cloud has attached to the machine.
pub struct Attached {
    /// Its contents stay, by this name.
    pub disk: String,
    pub gib: u64,
    /// What sysfs, and the disk itself, say of it.
    pub files: Vec<(&'static str, String)>,
}

/// A disk that is there.
struct Device {
    /// Detached with this.
    device: LoopDevice,
    gib: u64,
    entry: PathBuf,
}

/// The disks of a machine.
pub struct Disks {
    /// With `sysfs`.
    at: PathBuf,
    /// What the disks hold, by their names.
    files: PathBuf,
    devices: BTreeMap<String, Device>,
}

pub struct Machine {
    /// Of the proxy.
    pub address: SocketAddr,
    /// `None` at the end: a request that comes then changes nothing any more.
    disks: Arc<Mutex<Option<Disks>>>,
    directory: TempDir,
    _proxy: Server,
}

impl Drop for Machine {
    fn drop(&mut self) {
        *self.disks.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Machine {
    /// Before the cloud, which is asked at `address`; `attached` is what it has attached at the moment.
    pub fn start<C: Send + Sync + 'static>(
        cloud: &Arc<C>,
        address: SocketAddr,
        attached: impl Fn(&C) -> Vec<Attached> + Send + Sync + 'static,
    ) -> Machine {
        let directory = tempfile::Builder::new().prefix("longshore-machine").tempdir_in("/var/tmp").expect("a directory");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("it can be read");
        let disks = Disks::new(directory.path().to_owned(), directory.path().join("files"));
        let disks = Arc::new(Mutex::new(Some(disks)));
        let (cloud, shown) = (Arc::downgrade(cloud), disks.clone());
        let update = move || {
            if let (Some(disks), Some(cloud)) = (shown.lock().unwrap_or_else(PoisonError::into_inner).as_mut(), cloud.upgrade()) {
                disks.update(attached(&cloud));
            }
        };
        let proxy = front::before(address, |_| None, update);
        Machine { address: proxy.address, disks, directory, _proxy: proxy }
    }

    /// What is laid out like sysfs.
    pub fn sysfs(&self) -> String {
        text(&self.directory.path().join("sysfs"))
    }
}

impl Disks {
    pub fn new(at: PathBuf, files: PathBuf) -> Disks {
        for part in [&at.join("sysfs/block"), &at.join("new"), &files] {
            fs::create_dir_all(part).expect("a directory");
        }
        Disks { at, files, devices: BTreeMap::new() }
    }

    /// From now on these are there.
    pub fn update(&mut self, attached: Vec<Attached>) {
        self.devices.retain(|disk, device| {
            let stays = attached.iter().any(|attached| attached.disk == *disk);
            if !stays {
                fs::remove_dir_all(&device.entry).expect("it is taken out");
            }
            stays
        });
        for Attached { disk, gib, files } in attached {
            let file = self.files.join(&disk);
            match self.devices.get_mut(&disk) {
                Some(device) if device.gib == gib => {}
                Some(device) => {
                    sized(&file, gib);
                    run("losetup", ["--set-capacity", &device.device.0]);
                    device.gib = gib;
                }
                None => {
                    sized(&file, gib);
                    let device = LoopDevice::over(&file);
                    let name = Path::new(&device.0).file_name().expect("a name").to_owned();
                    let (new, entry) = (self.at.join("new").join(&name), self.at.join("sysfs/block").join(&name));
                    fs::create_dir_all(new.join("device")).expect("a directory");
                    for kernel in ["dev", "diskseq"] {
                        fs::copy(Path::new("/sys/block").join(&name).join(kernel), new.join(kernel)).expect("the kernel says so");
                    }
                    fs::write(new.join("disk"), &disk).expect("a file");
                    for (file, text) in files {
                        fs::write(new.join(file), text + "\n").expect("a file");
                    }
                    fs::rename(&new, &entry).expect("it comes");
                    self.devices.insert(disk, Device { device, gib, entry });
                }
            }
        }
    }
}

fn sized(file: &Path, gib: u64) {
    File::options().create(true).truncate(false).write(true).open(file).expect("a file").set_len(gib << 30).expect("a size");
}

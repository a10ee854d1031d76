//! SCSI units (LUNs) as sysfs shows them (drivers/scsi/scsi_sysfs.c).

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::{Error, Result};

/// TYPE_DISK (SPC-4, 6.4.2).
const DISK: &str = "0";

/// A logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The kernel's number of it.
    pub lun: u64,
    /// In sysfs.
    directory: PathBuf,
}

/// The block device of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// `sda`.
    pub name: String,
    pub number: (u32, u32),
}

impl Disk {
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }
}

impl Unit {
    /// What is called by the name of a disk.
    pub fn of(disk: &str) -> Option<Unit> {
        let directory = Path::new("/sys/block").join(disk).join("device").canonicalize().ok()?;
        unit_at(directory)
    }

    /// `host:channel:target:lun`.
    pub fn address(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub fn is_disk(&self) -> Result<bool> {
        Ok(attribute(&self.directory, "type")?.is_none_or(|kind| kind == DISK))
    }

    /// Its identity in the whole world (VPD page 0x83): `naa.6001405...`, `eui...`, `t10...`. `None` where it has none.
    pub fn wwid(&self) -> Result<Option<String>> {
        Ok(attribute(&self.directory, "wwid")?.map(|wwid| wwid.split_whitespace().collect::<Vec<_>>().join(" ")))
    }

    /// `running`; `blocked` while its session is tried again; `transport-offline` when that was given up for now.
    pub fn state(&self) -> Result<String> {
        Ok(attribute(&self.directory, "state")?.unwrap_or_default())
    }

    /// Its block device; `None` where there is none (yet).
    pub fn disk(&self) -> Result<Option<Disk>> {
        let directory = self.directory.join("block");
        let Some(name) = children(&directory)?.into_iter().next() else { return Ok(None) };
        let number = attribute(&directory.join(&name), "dev")?.as_deref().and_then(number);
        Ok(number.map(|number| Disk { name, number }))
    }

    /// Asks the unit for its size and identity anew.
    pub fn rescan(&self) -> Result<()> {
        self.order("rescan")
    }

    /// Takes the unit from this machine, seen to be gone on return. What its target has is not touched.
    ///
    /// # Errors
    /// EBUSY while its disk is mounted, or lies below another device.
    pub fn remove(&self) -> Result<()> {
        // The kernel itself would take it from below anyone who uses it. Held until it is gone, so that nobody comes to.
        let alone = |disk: Disk| rustix::fs::open(disk.path(), OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty());
        let alone = self.disk()?.map(alone);
        // A dead path cannot be opened, and that is no hindrance.
        if let Some(Err(errno @ rustix::io::Errno::BUSY)) = alone {
            return Err(Error::io("remove", self.address(), errno));
        }
        self.order("delete")?;
        if self.directory.exists() {
            return Err(Error::Unexpected {
                object: self.address(),
                reason: "it is still there after it was removed".to_owned(),
            });
        }
        Ok(())
    }

    fn order(&self, file: &'static str) -> Result<()> {
        let path = self.directory.join(file);
        std::fs::write(&path, "1").map_err(|error| Error::io("write", &path, error))
    }
}

/// Whether a WWID is one that the world registers, for one disk alone: an NAA or EUI-64 name with a company's id. Others, `t10.` and local
/// ones, some targets give to several disks, as tgt does `t10.IET 00010001` and an NAA name of company 0.
pub fn is_registered(wwid: &str) -> bool {
    // Where the company's id stands (SPC-4, 7.8.6.6; IEEE Extended, Registered and Registered Extended).
    let company = match wwid.split_once('.') {
        Some(("naa", name)) if name.starts_with('2') => name.get(4..10),
        Some(("naa", name)) if name.starts_with(['5', '6']) => name.get(1..7),
        Some(("eui", name)) => name.get(..6),
        _ => None,
    };
    company.is_some_and(|company| company != "000000" && company.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// All whole disks below a directory of block devices that have a model, with it.
pub fn disks_with_model(block: &Path) -> Result<Vec<(Disk, String)>> {
    let mut disks = Vec::new();
    for name in children(block)? {
        let directory = block.join(&name);
        let Some(model) = attribute(&directory, "device/model")? else { continue };
        let Some(number) = attribute(&directory, "dev")?.as_deref().and_then(number) else { continue };
        disks.push((Disk { name, number }, model));
    }
    Ok(disks)
}

/// The units of an iSCSI session, or of another transport's, by its directory in sysfs.
pub(super) fn units_below(session: &Path) -> Result<Vec<Unit>> {
    let mut units = Vec::new();
    for target in children(session)?.iter().filter(|name| name.starts_with("target")) {
        let directory = session.join(target);
        units.extend(children(&directory)?.iter().filter_map(|name| unit_at(directory.join(name))));
    }
    Ok(units)
}

/// `3:0:0:5`
fn unit_at(directory: PathBuf) -> Option<Unit> {
    let name = directory.file_name()?.to_str()?;
    let parts: Vec<u64> = name.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [_, _, _, lun] = parts.as_slice() else { return None };
    Some(Unit { lun: *lun, directory })
}

/// `8:16`
pub(super) fn number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// What a file of sysfs says, without its newline; `None` where it is not there, or has nothing to say. An object may go at any
/// time: then its files answer ENODEV, or EINVAL while it is half gone.
pub(super) fn attribute(directory: &Path, name: &str) -> Result<Option<String>> {
    let path = directory.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(error) if is_gone(&error) || error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

/// The names in a directory of sysfs, in their order; none where it is gone.
pub(super) fn children(directory: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        entries => entries.map_err(|error| Error::io("list", directory, error))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        match entry {
            Ok(entry) => names.push(entry.file_name().to_string_lossy().into_owned()),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(Error::io("list", directory, error)),
        }
    }
    names.sort();
    Ok(names)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::ENOTDIR | libc::EIO | libc::ENOTCONN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_and_vendor_wwids_are_not_registered() {
        for wwid in
            ["naa.6001405f5d6bd2a3c4d1e0b8a7c6d5e4", "naa.5000c500a1b2c3d4", "naa.2000080069123456", "eui.0025385b71b00001"]
        {
            assert!(is_registered(wwid), "{wwid}");
        }
        for wwid in [
            "",
            "naa.",
            "naa.60000000000000000e00000000010001",
            "naa.3000000100010001",
            "t10.IET 00010001",
            "eui.",
            "naa.6zzzzzz0",
        ] {
            assert!(!is_registered(wwid), "{wwid}");
        }
    }

    #[test]
    fn units_are_found_by_their_address() {
        let root = tempfile::tempdir().expect("a directory");
        for name in ["target3:0:0/3:0:0:5/block/sdq", "target3:0:0/power", "connection1:0", "target3:0:1/3:0:1:x"] {
            std::fs::create_dir_all(root.path().join(name)).expect("a directory");
        }
        let unit = root.path().join("target3:0:0/3:0:0:5");
        std::fs::write(unit.join("wwid"), "t10.LIO     disk  \n").expect("a file");
        std::fs::write(unit.join("type"), "0\n").expect("a file");
        std::fs::write(unit.join("block/sdq/dev"), "65:16\n").expect("a file");
        let units = units_below(root.path()).expect("a unit");
        let [unit] = units.as_slice() else { panic!("{units:?}") };
        assert_eq!((unit.lun, unit.address().as_str()), (5, "3:0:0:5"));
        assert_eq!(unit.wwid().expect("reads").as_deref(), Some("t10.LIO disk"));
        assert!(unit.is_disk().expect("reads"));
        assert_eq!(unit.disk().expect("reads"), Some(Disk { name: "sdq".to_owned(), number: (65, 16) }));
        assert_eq!(units_below(Path::new("/no/such/session")).expect("none"), []);
    }
}

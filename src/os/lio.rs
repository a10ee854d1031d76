//! The kernel's SCSI target (LIO) and its iSCSI face, by configfs (kernel documentation, target/tcm_mod_builder and
//! drivers/target/*_configfs.c): files become disks, disks become LUNs of targets, and initiators are let in by name.
//!
//! ```text
//! core/fileio_<hba>/<disk>/             a file as a disk
//! iscsi/<target>/tpgt_1/lun/lun_0       the disk, as the target's one LUN
//!                      /np/<portal>     where it listens
//!                      /acls/<name>     an initiator that is let in, with its credentials and its view of the LUN
//! ```
//! - A disk is written through: the kernel opens the file with O_DSYNC, and the initiator is told that there is no write cache. So
//!   what an initiator was told is written survives a crash of this machine, which initiators outlive: had the disk a cache, what was
//!   lost of it would never be written again.
//! - Nobody is let in but those named (no demo mode), and nobody learns of a target by discovery who is not.
//! - Every call is repeatable, finds what a killed one left, and takes what is gone already for done.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Error, Result};

const CONFIGFS: &str = "/sys/kernel/config";
/// CONFIGFS_MAGIC of linux/magic.h.
const MAGIC: i64 = 0x6265_6570;
/// The kernel takes no longer ones (SE_UDEV_PATH_LEN, with the NUL).
const LONGEST_LABEL: usize = 511;
/// What a scrambled password is made of; longer than any that CHAP wants (RFC 3720, 8.2.1).
const SCRAMBLED: usize = 16;
/// ALUA states (SPC-4, 6.37): served; come back in a moment.
const ACTIVE: &str = "0";
const TRANSITION: &str = "15";

/// The kernel's target.
#[derive(Debug)]
pub struct Lio {
    root: OwnedFd,
    path: PathBuf,
}

/// A file that is shown as a disk.
#[derive(Debug)]
pub struct Disk<'a> {
    /// Exactly this file, whatever its name leads to later.
    pub file: &'a File,
    pub bytes: u64,
    /// Of 32 hexadecimal digits; what initiators know the disk by is made of the first 25: [`wwid`].
    pub serial: &'a str,
    /// The file's path, for people, and by which its owner knows it again.
    pub label: &'a Path,
}

/// A disk as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSeen {
    /// Device and inode of the file, `None` where the disk was never finished.
    pub inode: Option<(u64, u64)>,
    pub label: PathBuf,
    pub bytes: u64,
}

/// An initiator that is let in.
#[derive(Debug)]
pub struct Initiator<'a> {
    pub name: &'a str,
    pub write_protect: bool,
    /// Where the target asks for none: by its name alone.
    pub chap: Option<Credentials<'a>>,
}

/// Of an initiator, and those by which the target proves itself to it.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    pub user: &'a str,
    pub password: &'a str,
    pub mutual_user: &'a str,
    pub mutual_password: &'a str,
}

impl std::fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(hidden)")
    }
}

/// As which device an initiator sees a disk of this serial number (`/sys/block/sdX/device/wwid`): NAA 6, LIO's company id, the first
/// 25 digits (drivers/target/target_core_spc.c, spc_gen_naa_6h_vendor_specific).
pub fn wwid(serial: &str) -> String {
    format!("naa.6001405{}", serial.get(..25).unwrap_or(serial))
}

impl Lio {
    /// `None` where the kernel has no target loaded, so that nothing is exported.
    ///
    /// # Errors
    /// `Unexpected` where configfs is not mounted: then nothing is known.
    pub fn open() -> Result<Option<Lio>> {
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mounted = rustix::fs::open(CONFIGFS, directory, Mode::empty())
            .and_then(|configfs| Ok((rustix::fs::fstatfs(&configfs)?.f_type, configfs)));
        let configfs = match mounted {
            #[allow(clippy::unnecessary_cast, clippy::useless_conversion, reason = "the type differs between architectures")]
            Ok((magic, configfs)) if magic as i64 == MAGIC => configfs,
            Ok(_) | Err(Errno::NOENT) => {
                return Err(Error::Unexpected {
                    object: CONFIGFS.to_owned(),
                    reason:
                        "configfs is not mounted there: run `mount -t configfs configfs /sys/kernel/config`, and in a container \
                             give it the host's"
                            .to_owned(),
                });
            }
            Err(errno) => return Err(Error::io("open", CONFIGFS, errno)),
        };
        let path = Path::new(CONFIGFS).join("target");
        match rustix::fs::openat(&configfs, "target", directory, Mode::empty()) {
            Ok(root) => Ok(Some(Lio { root, path })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::io("open", path, errno)),
        }
    }

    /// As `open`, for anyone who needs it.
    ///
    /// # Errors
    /// `Unexpected` with what to load.
    pub fn loaded() -> Result<Lio> {
        Lio::open()?.ok_or_else(|| not_loaded(&Path::new(CONFIGFS).join("target")))
    }

    // ---- disks

    /// Shows a file as a disk, with discard; one that is shown already is left as it is.
    ///
    /// # Errors
    /// `Unexpected` where a disk of this name shows another file.
    pub fn make_disk(&self, hba: u32, name: &str, disk: &Disk<'_>) -> Result<()> {
        let inode = inode_of(disk.file, disk.label)?;
        let directory = disk_directory(hba, name);
        self.make_disk_directory(hba, &directory)?;
        if let Some(seen) = self.disk(hba, name)?
            && self.is_on(&directory.join("enable"))?
        {
            if seen.inode != Some(inode) {
                let reason = format!("it shows {}, not {}; take it down by hand", seen.label.display(), disk.label.display());
                return Err(Error::Unexpected { object: self.shown(&directory), reason });
            }
        } else {
            // By descriptor, so that it is this file; a path would also be interrupted at 255 bytes, and at its first comma.
            let file = format!("/proc/self/fd/{}", disk.file.as_raw_fd());
            self.write(&directory.join("control"), &format!("fd_dev_name={file},fd_dev_size={}", disk.bytes))?;
            self.write(&directory.join("udev_path"), label(disk.label))?;
            self.write(&directory.join("alias"), &format!("{}:{}", inode.0, inode.1))?;
            self.write(&directory.join("wwn/vpd_unit_serial"), disk.serial)?;
            self.write(&directory.join("enable"), "1")?;
        }
        self.set(&directory.join("attrib/emulate_tpu"), "1")?;
        // Copies between disks at an initiator's word (XCOPY) are for none of ours.
        self.set(&directory.join("attrib/emulate_3pc"), "0")
    }

    fn make_disk_directory(&self, hba: u32, directory: &Path) -> Result<()> {
        // Anyone who takes the last disk of it down removes the adapter, perhaps just now.
        for _ in 0..100 {
            self.make_directory(&adapter(hba)).map_err(|error| refused(error, &self.path))?;
            match self.make_directory(directory) {
                Err(error) if error.is_missing() => {}
                made => return made,
            }
        }
        Err(Error::io("make directory", self.path.join(directory), Errno::NOENT))
    }

    /// `None` where there is no such disk.
    pub fn disk(&self, hba: u32, name: &str) -> Result<Option<DiskSeen>> {
        let directory = disk_directory(hba, name);
        let Some(info) = self.read(&directory.join("info"))? else { return Ok(None) };
        let alias = self.read(&directory.join("alias"))?.unwrap_or_default();
        let label = self.read(&directory.join("udev_path"))?.unwrap_or_default();
        Ok(Some(DiskSeen {
            inode: parse_inode(&alias),
            label: PathBuf::from(label.trim_end()),
            bytes: parse_bytes(&info).unwrap_or(0),
        }))
    }

    /// The names of the disks of an adapter.
    pub fn disks(&self, hba: u32) -> Result<Vec<String>> {
        self.directories(&adapter(hba))
    }

    /// Whether some disk, no matter who made it, is known to show this file.
    pub fn shows(&self, inode: (u64, u64)) -> Result<Option<String>> {
        for adapter in self.directories(Path::new("core"))? {
            for disk in self.directories(&Path::new("core").join(&adapter))? {
                let directory = Path::new("core").join(&adapter).join(&disk);
                if self.read(&directory.join("alias"))?.as_deref().and_then(parse_inode) == Some(inode) {
                    return Ok(Some(self.shown(&directory)));
                }
            }
        }
        Ok(None)
    }

    /// Makes a disk as large as its file has become. Initiators see it when they look again.
    pub fn resize(&self, hba: u32, name: &str, bytes: u64) -> Result<()> {
        let directory = disk_directory(hba, name);
        self.write(&directory.join("control"), &format!("fd_dev_size={bytes}"))?;
        match self.disk(hba, name)? {
            Some(seen) if seen.bytes == bytes => Ok(()),
            seen => {
                let reason = format!("it was to have {bytes} bytes, but is {seen:?}");
                Err(Error::Unexpected { object: self.shown(&directory), reason })
            }
        }
    }

    /// From now on initiators are told to try again in a moment. What was begun before may still be written, but nothing that was
    /// sent after its end was told. Costs them about a second.
    pub fn pause(&self, hba: u32, name: &str) -> Result<()> {
        self.write(&access_state(hba, name), TRANSITION)
    }

    /// Ends a pause, and says whether there was one until now.
    pub fn resume(&self, hba: u32, name: &str) -> Result<bool> {
        let state = access_state(hba, name);
        let paused = self.read(&state)?.is_some_and(|state| state.trim() == TRANSITION);
        if paused {
            self.write(&state, ACTIVE)?;
        }
        Ok(paused)
    }

    /// Takes a disk down; its file stays.
    ///
    /// # Errors
    /// `Io` with EBUSY while it is some target's LUN.
    pub fn remove_disk(&self, hba: u32, name: &str) -> Result<()> {
        self.remove_directory(&disk_directory(hba, name))?;
        match self.remove_directory(&adapter(hba)) {
            Err(error) if matches!(error.errno(), Some(libc::ENOTEMPTY | libc::EBUSY)) => Ok(()),
            done => done,
        }
    }

    // ---- targets

    /// Makes a target with this disk as LUN 0, listening nowhere yet; lets nobody in.
    pub fn make_target(&self, target: &str, hba: u32, disk: &str, chap: bool) -> Result<()> {
        self.make_directory(Path::new("iscsi")).map_err(|error| refused(error, &self.path))?;
        self.make_directory(&Path::new("iscsi").join(target))?;
        let group = group(target);
        self.make_directory(&group)?;
        // The credentials in it are for root alone: the kernel's default is that everybody may read.
        self.close_to_others(&group)?;
        for (attribute, value) in [
            ("authentication", if chap { "1" } else { "0" }),
            ("generate_node_acls", "0"),
            ("demo_mode_discovery", "0"),
            ("demo_mode_write_protect", "1"),
            // A new initiator may not write until that is said.
            ("prod_mode_write_protect", "1"),
        ] {
            self.set(&group.join("attrib").join(attribute), value)?;
        }
        self.make_directory(&group.join("lun/lun_0"))?;
        self.link(&disk_directory(hba, disk), &group.join("lun/lun_0/disk"))
    }

    /// Listens on exactly these addresses, whether this machine has them now or not.
    pub fn listen(&self, target: &str, portals: &[SocketAddr]) -> Result<()> {
        let directory = group(target).join("np");
        let wanted: Vec<String> = portals.iter().map(SocketAddr::to_string).collect();
        for other in self.directories(&directory)?.iter().filter(|bound| !wanted.contains(bound)) {
            self.remove_directory(&directory.join(other))?;
        }
        wanted.iter().try_for_each(|portal| self.make_directory(&directory.join(portal)))?;
        self.set(&group(target).join("enable"), "1")
    }

    /// Where the target listens; none where it is not enabled.
    pub fn portals(&self, target: &str) -> Result<Vec<SocketAddr>> {
        if !self.is_on(&group(target).join("enable"))? {
            return Ok(Vec::new());
        }
        Ok(self.directories(&group(target).join("np"))?.iter().filter_map(|portal| portal.parse().ok()).collect())
    }

    /// The targets whose names begin so.
    pub fn targets(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = self.directories(Path::new("iscsi"))?;
        names.retain(|name| name.starts_with(prefix));
        Ok(names)
    }

    /// Lets an initiator in.
    pub fn admit(&self, target: &str, initiator: &Initiator<'_>) -> Result<()> {
        let acl = acl(target, initiator.name);
        self.make_directory(&acl)?;
        self.close_to_others(&acl)?;
        self.make_directory(&acl.join("lun_0"))?;
        self.link(&group(target).join("lun/lun_0"), &acl.join("lun_0/lun"))?;
        self.set(&acl.join("lun_0/write_protect"), if initiator.write_protect { "1" } else { "0" })?;
        // Last: without them nobody can log in, and anyone who does sees the LUN as he should.
        let Some(chap) = initiator.chap else { return Ok(()) };
        let values = [
            ("userid_mutual", chap.mutual_user),
            ("password_mutual", chap.mutual_password),
            ("userid", chap.user),
            ("password", chap.password),
        ];
        values.iter().try_for_each(|(attribute, value)| self.write(&acl.join("auth").join(attribute), value))
    }

    /// Whether an initiator is let in as told, down to its view of the LUN.
    pub fn admits(&self, target: &str, name: &str, write_protect: bool) -> Result<bool> {
        let acl = acl(target, name);
        let linked = self.kind(&acl.join("lun_0/lun"))? == Some(FileType::Symlink);
        Ok(linked && self.is_on(&acl.join("lun_0/write_protect"))? == write_protect)
    }

    /// Who is let in.
    pub fn initiators(&self, target: &str) -> Result<Vec<String>> {
        self.directories(&group(target).join("acls"))
    }

    /// Shuts an initiator out: on return its sessions are ended, all that they had begun is done or dropped, and it cannot come
    /// back. Whether it had been let in.
    ///
    /// First its credentials are made invalid and its sessions ended, and only then is the LUN taken away: without a LUN, a session is
    /// shown an empty disk of the kernel's in its place, and reads zeroes from it.
    pub fn expel(&self, target: &str, name: &str) -> Result<bool> {
        let acl = acl(target, name);
        if self.kind(&acl)?.is_none() {
            return Ok(false);
        }
        self.write(&acl.join("auth/password"), &super::random::hexadecimal(SCRAMBLED)?)?;
        // To change the depth of the queue ends all sessions (core_tpg_set_initiator_node_queue_depth).
        let depth = acl.join("cmdsn_depth");
        let now = self.read(&depth)?.and_then(|depth| depth.trim().parse::<u32>().ok()).unwrap_or(0);
        self.write(&depth, if now == 64 { "63" } else { "64" })?;
        for lun in self.directories(&acl)?.iter().filter(|name| name.starts_with("lun_")) {
            self.remove_linking(&acl.join(lun))?;
        }
        // Waits until the last command of the last session has ended.
        self.remove_directory(&acl)?;
        Ok(true)
    }

    /// Removes a target that lets nobody in.
    ///
    /// # Errors
    /// `Unexpected` where somebody is let in.
    pub fn remove_target(&self, target: &str) -> Result<()> {
        let group = group(target);
        if self.kind(&group)?.is_some() {
            if let Some(initiator) = self.initiators(target)?.first() {
                let reason = format!("it lets {initiator} in");
                return Err(Error::Unexpected { object: self.shown(&group), reason });
            }
            self.set(&group.join("enable"), "0")?;
            for portal in self.directories(&group.join("np"))? {
                self.remove_directory(&group.join("np").join(portal))?;
            }
            for lun in self.directories(&group.join("lun"))? {
                self.remove_linking(&group.join("lun").join(lun))?;
            }
            self.remove_directory(&group)?;
        }
        self.remove_directory(&Path::new("iscsi").join(target))
    }

    // ---- configfs

    fn shown(&self, relative: &Path) -> String {
        self.path.join(relative).display().to_string()
    }

    fn error(&self, action: &'static str, relative: &Path, errno: Errno) -> Error {
        Error::io(action, self.path.join(relative), errno)
    }

    /// What is there; `None` where nothing is.
    fn kind(&self, relative: &Path) -> Result<Option<FileType>> {
        match rustix::fs::statat(&self.root, relative, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("look at", relative, errno)),
        }
    }

    /// An attribute's text; `None` where its object is gone.
    fn read(&self, relative: &Path) -> Result<Option<String>> {
        let open = rustix::fs::openat(&self.root, relative, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let mut text = String::new();
        match open.map(File::from) {
            Ok(mut file) => match file.read_to_string(&mut text) {
                Ok(_) => Ok(Some(text)),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
                Err(error) => Err(Error::io("read", self.path.join(relative), error)),
            },
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("open", relative, errno)),
        }
    }

    fn is_on(&self, relative: &Path) -> Result<bool> {
        Ok(self.read(relative)?.is_some_and(|text| text.trim() == "1"))
    }

    /// Writes an attribute, in one call, as configfs wants it. The value is in no error: it may be a secret.
    fn write(&self, relative: &Path, value: &str) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, relative, flags, Mode::empty())
            .map_err(|errno| self.error("open", relative, errno))?;
        match rustix::io::write(&file, value.as_bytes()) {
            Ok(written) if written == value.len() => Ok(()),
            Ok(_) => {
                Err(Error::Unexpected { object: self.shown(relative), reason: "the kernel took only a part of it".to_owned() })
            }
            Err(errno) => Err(self.error("write", relative, errno)),
        }
    }

    /// Writes an attribute unless it has this value: some may not be written once they are in use.
    fn set(&self, relative: &Path, value: &str) -> Result<()> {
        match self.read(relative)? {
            Some(text) if text.trim() == value => Ok(()),
            _ => self.write(relative, value),
        }
    }

    fn make_directory(&self, relative: &Path) -> Result<()> {
        match rustix::fs::mkdirat(&self.root, relative, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(self.error("make directory", relative, errno)),
        }
    }

    fn close_to_others(&self, relative: &Path) -> Result<()> {
        rustix::fs::chmodat(&self.root, relative, Mode::RWXU, AtFlags::empty())
            .map_err(|errno| self.error("chmod", relative, errno))
    }

    /// The kernel looks for the object by the link's text, from where this process is: it must be absolute.
    fn link(&self, object: &Path, relative: &Path) -> Result<()> {
        match rustix::fs::symlinkat(self.path.join(object), &self.root, relative) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(self.error("link", relative, errno)),
        }
    }

    /// Removes an object of the kernel's; gone is fine.
    fn remove_directory(&self, relative: &Path) -> Result<()> {
        match rustix::fs::unlinkat(&self.root, relative, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error("remove", relative, errno)),
        }
    }

    /// Removes a LUN: the links that make it one, then itself.
    fn remove_linking(&self, relative: &Path) -> Result<()> {
        for link in self.entries(relative, FileType::Symlink)? {
            match rustix::fs::unlinkat(&self.root, relative.join(&link), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(self.error("unlink", &relative.join(link), errno)),
            }
        }
        self.remove_directory(relative)
    }

    fn directories(&self, relative: &Path) -> Result<Vec<String>> {
        self.entries(relative, FileType::Directory)
    }

    /// The names of what lies there; none where it is gone.
    fn entries(&self, relative: &Path, kind: FileType) -> Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |errno| self.error("list", relative, errno);
        let directory = match rustix::fs::openat(&self.root, relative, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(Vec::new()),
            Err(errno) => return Err(failed(errno)),
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(directory.as_fd()).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().to_str()
                && entry.file_type() == kind
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }
}

fn adapter(hba: u32) -> PathBuf {
    PathBuf::from(format!("core/fileio_{hba}"))
}

fn disk_directory(hba: u32, name: &str) -> PathBuf {
    adapter(hba).join(name)
}

fn access_state(hba: u32, name: &str) -> PathBuf {
    disk_directory(hba, name).join("alua/default_tg_pt_gp/alua_access_state")
}

fn group(target: &str) -> PathBuf {
    Path::new("iscsi").join(target).join("tpgt_1")
}

fn acl(target: &str, initiator: &str) -> PathBuf {
    group(target).join("acls").join(initiator)
}

/// As much of a path as the kernel keeps.
fn label(path: &Path) -> &str {
    let text = path.to_str().unwrap_or("?");
    let mut end = text.len().min(LONGEST_LABEL);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[allow(clippy::useless_conversion, reason = "the fields' types differ between architectures")]
fn inode_of(file: &File, path: &Path) -> Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file).map_err(|errno| Error::io("look at", path, errno))?;
    Ok((stat.st_dev.into(), stat.st_ino.into()))
}

fn parse_inode(alias: &str) -> Option<(u64, u64)> {
    let (device, inode) = alias.trim().split_once(':')?;
    Some((device.parse().ok()?, inode.parse().ok()?))
}

/// `TCM FILEIO ID: 0        File: /p/image  Size: 67108864  Mode: O_DSYNC Async: 0` (target_core_file.c, fd_show_configfs_dev_params)
fn parse_bytes(info: &str) -> Option<u64> {
    info.rsplit_once("Size: ")?.1.split_whitespace().next()?.parse().ok()
}

/// A directory that the kernel makes by loading a module.
fn refused(error: Error, root: &Path) -> Error {
    match error.errno() {
        Some(libc::ENOENT | libc::EINVAL | libc::ENODEV) => not_loaded(root),
        _ => error,
    }
}

fn not_loaded(root: &Path) -> Error {
    let reason = "the kernel's iSCSI target is not loaded: run `modprobe -a iscsi_target_mod target_core_file`";
    Error::Unexpected { object: root.display().to_string(), reason: reason.to_owned() }
}

impl Display for DiskSeen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.label.display(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_of_a_disk_is_read() {
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
}

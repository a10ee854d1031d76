//! Mounts, by the new mount API: fsopen(2), fsmount(2), open_tree(2), mount_setattr(2), move_mount(2). Linux 5.12.
#![allow(unsafe_code, reason = "mount_setattr(2) has no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use super::mountinfo::MountTable;
use super::path::Root;
use super::{Error, Result};
use crate::volume::MountFlags;
use crate::volume::mount_flags::option_name;

/// What fsconfig(2) takes for one value.
const VALUE_LIMIT: usize = 255;

/// Options that belong to a mount rather than to its file system (mount_setattr(2)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub read_only: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    pub noatime: bool,
    pub nodiratime: bool,
    /// `strictatime`; the kernel's default is relatime.
    pub strictatime: bool,
    pub nosymfollow: bool,
}

impl Attributes {
    /// Takes over an option of a mount; says whether it was one.
    fn take(&mut self, option: &str) -> bool {
        match option {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "nosuid" => self.nosuid = true,
            "suid" => self.nosuid = false,
            "nodev" => self.nodev = true,
            "dev" => self.nodev = false,
            "noexec" => self.noexec = true,
            "exec" => self.noexec = false,
            "nodiratime" => self.nodiratime = true,
            "diratime" => self.nodiratime = false,
            "nosymfollow" => self.nosymfollow = true,
            "symfollow" => self.nosymfollow = false,
            "noatime" => (self.noatime, self.strictatime) = (true, false),
            "strictatime" => (self.noatime, self.strictatime) = (false, true),
            "atime" | "relatime" | "norelatime" | "nostrictatime" => (self.noatime, self.strictatime) = (false, false),
            "defaults" => {}
            _ => return false,
        }
        true
    }

    fn flags(&self) -> MountAttrFlags {
        [
            (self.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
            (self.nosuid, MountAttrFlags::MOUNT_ATTR_NOSUID),
            (self.nodev, MountAttrFlags::MOUNT_ATTR_NODEV),
            (self.noexec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
            (self.noatime, MountAttrFlags::MOUNT_ATTR_NOATIME),
            (self.strictatime && !self.noatime, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
            (self.nodiratime, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
            (self.nosymfollow, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
        ]
        .into_iter()
        .filter_map(|(wanted, flag)| wanted.then_some(flag))
        .collect()
    }
}

/// Parts mount options into those of the mount and those of the file system. `rw`, `defaults`, `relatime`, `suid`, `dev`,
/// `exec`, `atime` are the default and vanish; of two that contradict each other the later counts, as with mount(8). One
/// string may hold several, with commas between them; a value with commas stands in double quotes
/// (`context="system_u:object_r:container_file_t:s0:c1,c2"`), which are taken off.
///
/// # Errors
/// `Unexpected`, naming an option that makes no sense here (`bind`, `remount`, `move`, `loop`, `shared`, `x-...` and the like).
pub fn split_options(options: &MountFlags) -> Result<(Attributes, MountFlags)> {
    let mut attributes = Attributes::default();
    let mut of_filesystem = Vec::new();
    for options in options.expose() {
        for option in split_commas(options)? {
            if option.is_empty() || attributes.take(&option) {
                continue;
            }
            if let Some(reason) = senseless(&option) {
                return Err(refuse(&option, reason));
            }
            of_filesystem.push(option);
        }
    }
    Ok((attributes, of_filesystem.into()))
}

fn refuse(option: &str, reason: &str) -> Error {
    let object = match option_name(option) {
        "" => "a mount option".to_owned(),
        name => format!("mount option {name}"),
    };
    Error::Unexpected { object, reason: reason.to_owned() }
}

/// Splits at the commas that are not within double quotes, and takes the quotes off.
fn split_commas(options: &str) -> Result<Vec<String>> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for character in options.chars() {
        match (character, parts.last_mut()) {
            ('"', _) => quoted = !quoted,
            (',', _) if !quoted => parts.push(String::new()),
            (_, Some(part)) => part.push(character),
            (_, None) => {}
        }
    }
    if quoted { Err(refuse(options, "has a double quote that is not closed")) } else { Ok(parts) }
}

/// Why an option cannot be one of a volume's file system, if so.
fn senseless(option: &str) -> Option<&'static str> {
    if option.contains('\0') {
        return Some("holds a NUL byte");
    }
    let key = option.split_once('=').map_or(option, |(key, _)| key);
    match key {
        "" => Some("has no name"),
        "bind" | "rbind" | "remount" | "move" | "rmove" | "beneath" => {
            Some("says how to mount, which is the driver's to decide; leave it out")
        }
        "shared" | "rshared" | "private" | "rprivate" | "slave" | "rslave" | "unbindable" | "runbindable" => {
            Some("is about mount propagation, which is the pod's to decide (mountPropagation); leave it out")
        }
        "loop" | "offset" | "sizelimit" | "encryption" | "source" => {
            Some("says what to mount, which is the driver's to decide; leave it out")
        }
        "auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "group" | "nofail" | "_netdev" | "comment" | "helper"
        | "uhelper"
            // `user=name` and `group=name` are options of some network file systems.
            if key == option || !matches!(key, "user" | "group") =>
        {
            Some("is for /etc/fstab and mount(8), the kernel does not know it; leave it out")
        }
        _ if key.starts_with("x-") || key.starts_with("X-") => {
            Some("is for /etc/fstab and mount(8), the kernel does not know it; leave it out")
        }
        _ => None,
    }
}

/// Makes a detached mount of a file system: nobody sees it until [`attach`]. What the file system says of a refused
/// option (it is read from the context) is in the error. With `attributes.read_only` the file system itself is read-only
/// too, as by `mount -o ro`: else one on a write-protected device would be refused.
///
/// If the same device is mounted already, it is the same file system, and most kinds then ignore `options`. Their values are in no
/// error.
///
/// # Errors
/// `Io`: EINVAL for an option, ENODEV for a kind of file system that the kernel lacks, EBUSY where the device is mounted in
/// another mode or held by something else.
pub fn new_filesystem(fstype: &str, source: &Path, options: &MountFlags, attributes: &Attributes) -> Result<OwnedFd> {
    let object = format!("{} as {fstype}", source.display());
    if fstype == "btrfs"
        && let Err(error) = super::fs::forget(source)
    {
        // If that matters, the mount will tell.
        tracing::debug!(%error, "before a mount");
    }
    let context = fsopen(fstype, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|errno| Error::io("mount", &object, errno))?;
    let refused = |doing: &str, errno| {
        let messages = options.redact(&said(&context));
        Error::io("mount", format!("{object}{doing}{messages}"), errno)
    };

    fsconfig_set_string(&context, "source", source).map_err(|errno| refused("", errno))?;
    if attributes.read_only {
        fsconfig_set_flag(&context, "ro").map_err(|errno| refused(" with the option ro", errno))?;
    }
    for option in options.expose() {
        let set = match option.split_once('=') {
            Some((_, value)) if value.len() > VALUE_LIMIT => {
                return Err(refuse(option, &format!("has a value of {} bytes; at most {VALUE_LIMIT} can be", value.len())));
            }
            Some((key, value)) => fsconfig_set_string(&context, key, value),
            None => fsconfig_set_flag(&context, option.as_str()),
        };
        set.map_err(|errno| refused(&format!(" with the option {}", option_name(option)), errno))?;
    }
    fsconfig_create(&context).map_err(|errno| refused("", errno))?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes.flags()).map_err(|errno| refused("", errno))
}

/// What the file system has said so far, in parentheses. Each read(2) of a context gives one message; without any it is
/// ENODATA.
fn said(context: &OwnedFd) -> String {
    let mut messages: Vec<String> = Vec::new();
    let mut buffer = [0; 1024];
    // The kernel keeps 8 at most; the limit is against a kernel that is not what we think.
    while messages.len() < 32 {
        let Ok(length) = rustix::io::read(context, &mut buffer) else { break };
        let line = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        // The first letter is the level: e, w or i.
        let message = line.split_once(' ').filter(|(level, _)| level.len() == 1).map_or(&*line, |(_, message)| message);
        messages.push(message.trim_end().to_owned());
    }
    if messages.is_empty() { String::new() } else { format!(" ({})", messages.join("; ")) }
}

/// Opens a directory (O_PATH) of the file system mounted at `mount`, a path of the driver's own; never through a link, and not of what
/// is mounted inside.
///
/// Each directory on the way is asked of its server before its name for the next is believed (statx(2), AT_STATX_FORCE_SYNC): a client of
/// NFS keeps names for a minute, and one of them may be another directory's by now, its old one being in somebody's trash.
///
/// # Errors
/// `Path` where a link or a file is in the way; `Io`: ENOENT, ESTALE.
pub fn open_in(mount: &Path, directory: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let asked = |open: OwnedFd, path: &Path| match rustix::fs::statx(
        &open,
        "",
        AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC,
        StatxFlags::BASIC_STATS,
    ) {
        Ok(_) => Ok(open),
        Err(errno) => Err(Error::io("ask for", path, errno)),
    };
    let top = rustix::fs::open(mount, flags | OFlags::NOFOLLOW, Mode::empty());
    let mut open = asked(top.map_err(|errno| Error::io("open mount", mount, errno))?, mount)?;
    let mut path = mount.to_owned();
    for name in directory {
        path.push(name);
        let next = rustix::fs::openat2(&open, name, flags, Mode::empty(), resolve).map_err(|errno| match errno {
            Errno::LOOP | Errno::XDEV | Errno::NOTDIR => Error::Path {
                path: mount.join(directory),
                reason: "leads over a link, into another file system, or through a file; nothing of it is used".to_owned(),
            },
            errno => Error::io("open directory", &path, errno),
        })?;
        open = asked(next, &path)?;
    }
    Ok(open)
}

/// Makes a detached copy of the mount at `from` (an O_PATH descriptor of a directory, file or device node), with
/// `attributes` set before anyone can see it. Not recursive. What the original mount forbids (`ro`, `noexec`, ...) the copy
/// forbids too: attributes are added, never taken away.
pub fn clone_mount(from: BorrowedFd<'_>, attributes: &Attributes) -> Result<OwnedFd> {
    let object = || format!("/proc/self/fd/{}", from.as_raw_fd());
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = open_tree(from, "", flags).map_err(|errno| Error::io("clone mount", object(), errno))?;
    set_attributes(&mount, attributes).map_err(|error| Error::io("set mount attributes", object(), error))?;
    Ok(mount)
}

fn set_attributes(mount: &OwnedFd, attributes: &Attributes) -> io::Result<()> {
    let set = u64::from(attributes.flags().bits());
    if set == 0 {
        return Ok(());
    }
    // The three kinds of atime are a number in one field, so that setting one needs the field cleared.
    let clear = if attributes.noatime || attributes.strictatime { libc::MOUNT_ATTR__ATIME } else { 0 };
    let attr = libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is a C string, and the kernel reads as many bytes of `attr` as we say, which is its size.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the kernel has mount_setattr(2), asked so that nothing can come of it.
///
/// # Errors
/// `Io`: ENOSYS where it has not; EPERM where a container's seccomp profile keeps it from us.
pub fn is_supported() -> Result<()> {
    let nothing: *const libc::mount_attr = std::ptr::null();
    // SAFETY: the kernel refuses a structure of no bytes (EINVAL) before it looks at anything else.
    let answer = unsafe { libc::syscall(libc::SYS_mount_setattr, -1, c"".as_ptr(), libc::AT_EMPTY_PATH, nothing, 0_usize) };
    match io::Error::last_os_error() {
        error if answer != 0 && matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            Err(Error::io("call", "mount_setattr", error))
        }
        _ => Ok(()),
    }
}

/// Moves a detached mount onto `target` (O_PATH); on top, where something is mounted there already.
///
/// # Errors
/// `Io`: EINVAL where one is a directory and the other is not.
pub fn attach(mount: OwnedFd, target: BorrowedFd<'_>, target_path: &Path) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&mount, "", target, "", flags).map_err(|errno| Error::io("mount onto", target_path, errno))
}

/// Unmounts the mount `id` (of mountinfo), which is on top at `path`. Through the open parent directory, and only if it is this
/// mount that lies there: the path may by now lead over a link, or to another's. Nothing of the mount itself is looked at: its server
/// may be dead.
///
/// # Errors
/// `Path`, `Unexpected` where it is not there any more; `Io`: EBUSY.
pub fn unmount(root: &Root, path: &Path, id: u64) -> Result<()> {
    let (parent, name) = root.parent(path)?;
    let directory = format!("/proc/self/fd/{}", parent.as_raw_fd());
    let unexpected = |reason: &str| Err(Error::Unexpected { object: path.display().to_string(), reason: reason.to_owned() });
    // The open directory is the one that mountinfo speaks of, before and after it was read. What is mounted upon cannot be renamed,
    // so that from then on the name in the open directory leads to that mount.
    let is_directory =
        || rustix::fs::readlink(&directory, Vec::new()).is_ok_and(|link| Some(link.as_bytes()) == path.parent().map(bytes));
    if !is_directory() || MountTable::read()?.at(path).last().map(|top| top.id) != Some(id) || !is_directory() {
        return unexpected("another mount is there by now");
    }
    let place = Path::new(&directory).join(name);
    rustix::mount::unmount(place, UnmountFlags::NOFOLLOW).map_err(|errno| Error::io("unmount", path, errno))
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// The id, in mountinfo, of the mount that an open place is on.
pub fn id(place: BorrowedFd<'_>, path: &Path) -> Result<u64> {
    match rustix::fs::statx(place, "", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, StatxFlags::MNT_ID) {
        Ok(seen) => Ok(seen.stx_mnt_id),
        Err(errno) => Err(Error::io("look at", path, errno)),
    }
}

/// For tests that mount.
#[cfg(test)]
pub(crate) mod testing {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::path::Path;

    /// Covers `path` by a file system that does not answer: who looks at it waits until this is dropped, and then sees what was there
    /// before. `None` where there is no FUSE.
    pub(crate) struct Hung<'a> {
        path: &'a Path,
        server: Option<File>,
    }

    impl<'a> Hung<'a> {
        pub(crate) fn over(path: &'a Path) -> Option<Hung<'a>> {
            let Ok(server) = File::options().read(true).write(true).open("/dev/fuse") else {
                eprintln!("SKIPPED: there is no /dev/fuse");
                return None;
            };
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
            nix::mount::mount(Some("hung"), path, Some("fuse"), nix::mount::MsFlags::empty(), Some(options.as_str())).unwrap();
            Some(Hung { path, server: Some(server) })
        }
    }

    impl Drop for Hung<'_> {
        fn drop(&mut self) {
            nix::mount::umount2(self.path, nix::mount::MntFlags::MNT_DETACH).unwrap();
            // Anyone who waits for an answer gets an error.
            self.server.take();
        }
    }

    pub(crate) use test_support::in_namespace as in_own_namespace;
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::time::{Duration, Instant};

    use rustix::fs::openat;

    use super::testing::in_own_namespace;
    use super::*;
    use crate::os::mountinfo::{Mount, MountTable};
    use crate::os::udev;

    fn flags(options: &[&str]) -> MountFlags {
        options.iter().map(|&option| option.to_owned()).collect()
    }

    fn split(options: &[&str]) -> Result<(Attributes, Vec<String>)> {
        split_options(&flags(options)).map(|(attributes, options)| (attributes, options.expose().to_vec()))
    }

    #[test]
    fn options_are_parted() {
        let (attributes, rest) =
            split(&["ro", "noatime,nodev", "discard", "data=ordered", "user=me", "sync", "errors=remount-ro"]).unwrap();
        assert_eq!(attributes, Attributes { read_only: true, noatime: true, nodev: true, ..Attributes::default() });
        assert_eq!(rest, ["discard", "data=ordered", "user=me", "sync", "errors=remount-ro"]);
    }

    #[test]
    fn defaults_vanish_and_the_later_counts() {
        let defaults = split(&["rw", "defaults", "relatime", "suid", "dev", "exec", "atime", "", "diratime,symfollow"]).unwrap();
        assert_eq!(defaults, (Attributes::default(), Vec::new()));
        assert_eq!(
            split(&["ro,nosuid", "rw", "noexec"]).unwrap().0,
            Attributes { nosuid: true, noexec: true, ..Attributes::default() }
        );
        assert_eq!(split(&["noatime", "strictatime"]).unwrap().0, Attributes { strictatime: true, ..Attributes::default() });
        assert_eq!(split(&["strictatime", "relatime"]).unwrap().0, Attributes::default());
    }

    #[test]
    fn quotes_keep_commas_together() {
        assert_eq!(split(&[r#"context="a:b:c1,c2",discard"#]).unwrap().1, ["context=a:b:c1,c2", "discard"]);
        assert!(split(&[r#"context="a:b"#]).unwrap_err().to_string().contains("not closed"));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for bad in [
            "bind",
            "rbind",
            "remount",
            "move",
            "loop",
            "loop=/dev/loop0",
            "offset=512",
            "source=/dev/sda",
            "shared",
            "rslave",
            "unbindable",
            "x-systemd.automount",
            "X-mount.mkdir=0700",
            "_netdev",
            "nofail",
            "user",
            "comment=x",
            "=x",
            "a\0b",
        ] {
            let error = split(&["noatime", bad]).unwrap_err();
            assert!(matches!(error, Error::Unexpected { .. }), "{bad}: {error}");
            let named = format!("mount option {}: ", option_name(bad));
            assert!(error.to_string().starts_with(if bad == "=x" { "a mount option: has no name" } else { &named }), "{error}");
        }
    }

    /// A directory that may be mounted on, below which paths are resolved.
    fn ground() -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        (directory, root)
    }

    fn tmpfs(source: &str, attributes: &Attributes) -> OwnedFd {
        new_filesystem("tmpfs", Path::new(source), &flags(&["size=1M"]), attributes).unwrap()
    }

    fn at(path: &Path) -> Vec<Mount> {
        MountTable::read().unwrap().at(path).into_iter().cloned().collect()
    }

    fn create(directory: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
        openat(directory, name, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR)
    }

    #[test]
    fn a_refused_option_is_told_in_the_file_systems_words() {
        in_own_namespace(|| {
            let mount = |options: &[&str]| {
                new_filesystem("tmpfs", Path::new("none"), &flags(options), &Attributes::default()).unwrap_err()
            };
            for option in ["foo=hunter2", "foo"] {
                let error = mount(&["size=1M", option]);
                assert_eq!(error.errno(), Some(libc::EINVAL));
                let text = error.to_string();
                assert!(text.starts_with("mount none as tmpfs with the option foo (") && !text.contains("hunter2"), "{text}");
                assert!(text.contains("Unknown parameter 'foo'"), "{text}");
            }
            assert!(mount(&["size=much"]).to_string().contains("Bad value for 'size'"), "{}", mount(&["size=much"]));
            assert!(mount(&[&format!("mpol={}", "x".repeat(256))]).to_string().contains("at most 255"));
        });
    }

    #[test]
    fn an_unknown_file_system_is_enodev_and_a_missing_device_enoent() {
        in_own_namespace(|| {
            let mount = |fstype, source| {
                new_filesystem(fstype, Path::new(source), &MountFlags::default(), &Attributes::default()).unwrap_err()
            };
            assert_eq!(mount("nosuchfs", "none").errno(), Some(libc::ENODEV));
            assert_eq!(mount("ext4", "/dev/no-such-device").errno(), Some(libc::ENOENT));
        });
    }

    #[test]
    fn mounts_come_late_and_stack() {
        in_own_namespace(|| {
            let (_directory, root) = ground();
            let path = root.path().join("a b");
            let target = root.make_dir(&path, 0o700).unwrap();
            // The second is made first: the ids say nothing of who is on top.
            let second = tmpfs("second", &Attributes::default());
            let first = tmpfs("first", &Attributes::default());
            assert!(at(&path).is_empty());
            attach(first, target.as_fd(), &path).unwrap();
            attach(second, target.as_fd(), &path).unwrap();
            let sources = || at(&path).iter().map(|mount| mount.source.display().to_string()).collect::<Vec<_>>();
            assert_eq!(sources(), ["first", "second"]);
            assert_eq!(root.remove(&path).unwrap_err().errno(), Some(libc::EBUSY));
            let lower = at(&path)[0].id;
            assert!(matches!(unmount(&root, &path, lower), Err(Error::Unexpected { .. })), "only what is on top");
            unmount(&root, &path, at(&path)[1].id).unwrap();
            assert_eq!(sources(), ["first"]);
            unmount(&root, &path, lower).unwrap();
            assert!(at(&path).is_empty());
            assert!(matches!(unmount(&root, &path, lower), Err(Error::Unexpected { .. })));
            root.remove(&path).unwrap();
        });
    }

    #[test]
    fn a_read_only_clone_is_never_writable() {
        in_own_namespace(|| {
            let (_directory, root) = ground();
            let (stage, target) = (root.path().join("stage"), root.path().join("target"));
            let stage_fd = root.make_dir(&stage, 0o700).unwrap();
            attach(tmpfs("x", &Attributes::default()), stage_fd.as_fd(), &stage).unwrap();
            // Opened again: the first descriptor is of the directory below the mount.
            let staged = root.open_path(&stage).unwrap().unwrap();

            let clone = clone_mount(staged.as_fd(), &Attributes { read_only: true, ..Attributes::default() }).unwrap();
            assert_eq!(create(&clone, "f").unwrap_err(), Errno::ROFS, "not even before it is attached");
            let target_fd = root.make_dir(&target, 0o700).unwrap();
            attach(clone, target_fd.as_fd(), &target).unwrap();
            assert_eq!(std::fs::write(target.join("f"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
            std::fs::write(stage.join("f"), "written").unwrap();
            assert_eq!(std::fs::read(target.join("f")).unwrap(), b"written");
            let (stage_mount, target_mount) = (&at(&stage)[0], &at(&target)[0]);
            assert!(target_mount.is_read_only() && !stage_mount.is_read_only());
            assert_eq!(stage_mount.device, target_mount.device);

            // And a clone of the read-only one does not win back what was taken.
            let target_fd = root.open_path(&target).unwrap().unwrap();
            let again = clone_mount(target_fd.as_fd(), &Attributes { noatime: true, ..Attributes::default() }).unwrap();
            assert_eq!(create(&again, "g").unwrap_err(), Errno::ROFS);
        });
    }

    #[test]
    fn attributes_are_those_the_kernel_shows() {
        in_own_namespace(|| {
            let (_directory, root) = ground();
            let all = Attributes {
                read_only: true,
                nosuid: true,
                nodev: true,
                noexec: true,
                nodiratime: true,
                nosymfollow: true,
                ..Attributes::default()
            };
            let noatime = Attributes { noatime: true, ..Attributes::default() };
            let strict = Attributes { strictatime: true, ..Attributes::default() };
            let cases: [(&str, &Attributes, &[&str]); 4] = [
                ("all", &all, &["ro", "nosuid", "nodev", "noexec", "nodiratime", "relatime", "nosymfollow"]),
                ("noatime", &noatime, &["rw", "noatime"]),
                ("strict", &strict, &["rw"]),
                ("none", &Attributes::default(), &["rw", "relatime"]),
            ];
            for (name, attributes, shown) in cases {
                let path = root.path().join(name);
                let fd = root.make_dir(&path, 0o700).unwrap();
                let plain = root.path().join(format!("{name} plain"));
                let plain_fd = root.make_dir(&plain, 0o700).unwrap();
                attach(tmpfs("x", attributes), fd.as_fd(), &path).unwrap();
                attach(tmpfs("x", &Attributes::default()), plain_fd.as_fd(), &plain).unwrap();
                let plain_fd = root.open_path(&plain).unwrap().unwrap();
                let clone = root.path().join(format!("{name} clone"));
                let clone_fd = root.make_dir(&clone, 0o700).unwrap();
                attach(clone_mount(plain_fd.as_fd(), attributes).unwrap(), clone_fd.as_fd(), &clone).unwrap();
                for path in [&path, &clone] {
                    let mut options = at(path)[0].options.clone();
                    let mut shown = shown.to_vec();
                    options.sort();
                    shown.sort();
                    assert_eq!(options, shown, "{}", path.display());
                }
                assert_eq!(at(&path)[0].super_options.contains(&"ro".to_owned()), attributes.read_only);
            }
        });
    }

    #[test]
    fn files_and_device_nodes_can_be_cloned_onto_files_only() {
        in_own_namespace(|| {
            let (_directory, root) = ground();
            let path = root.path().join("device");
            let target = root.make_file(&path, 0o600).unwrap();
            let null = rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            attach(clone_mount(null.as_fd(), &Attributes::default()).unwrap(), target.as_fd(), &path).unwrap();
            assert_eq!(path.metadata().unwrap().rdev(), Path::new("/dev/null").metadata().unwrap().rdev());
            assert_eq!(at(&path)[0].root, Path::new("/null"));
            // A repeated call finds the device there.
            root.make_file(&path, 0o600).unwrap();
            unmount(&root, &path, at(&path)[0].id).unwrap();
            assert!(path.metadata().unwrap().is_file());

            let directory = root.path().join("directory");
            let directory_fd = root.make_dir(&directory, 0o700).unwrap();
            let clone = clone_mount(null.as_fd(), &Attributes::default()).unwrap();
            assert_eq!(attach(clone, directory_fd.as_fd(), &directory).unwrap_err().errno(), Some(libc::EINVAL));
            assert!(at(&directory).is_empty());
        });
    }

    #[test]
    fn unmount_follows_no_link_and_says_busy() {
        in_own_namespace(|| {
            let (_directory, root) = ground();
            let (path, link) = (root.path().join("a"), root.path().join("link"));
            let target = root.make_dir(&path, 0o700).unwrap();
            attach(tmpfs("x", &Attributes::default()), target.as_fd(), &path).unwrap();
            let id = at(&path)[0].id;
            symlink(&path, &link).unwrap();
            assert!(unmount(&root, &link, id).is_err());
            symlink(root.path(), root.path().join("way")).unwrap();
            assert!(matches!(unmount(&root, &root.path().join("way/a"), id), Err(Error::Path { .. })));
            assert_eq!(at(&path).len(), 1);
            let open = std::fs::File::create(path.join("f")).unwrap();
            assert_eq!(unmount(&root, &path, id).unwrap_err().errno(), Some(libc::EBUSY));
            drop(open);
            // A program that another test starts has the file open, too, until its exec.
            let unmounted = || match unmount(&root, &path, id) {
                Err(error) if error.errno() == Some(libc::EBUSY) => Ok(false),
                result => result.map(|()| true),
            };
            assert!(udev::wait_until(Instant::now().checked_add(Duration::from_secs(10)), unmounted).unwrap());
            assert_eq!(at(&path).len(), 0);
        });
    }
}

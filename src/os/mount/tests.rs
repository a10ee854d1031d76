//! Mounts of this kernel.

use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::{Duration, Instant};

use rustix::fs::openat;

use super::super::path::Root;
use super::super::{Error, Result};
use super::options::{Attributes, split_options};
use super::testing::in_own_namespace;
use super::*;
use crate::os::mountinfo::{Mount, MountTable};
use crate::os::udev;
use crate::volume::MountFlags;
use crate::volume::mount_flags::option_name;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

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
fn contradicting_options_are_named() {
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
fn a_refused_option_is_reported_in_the_file_systems_words() {
    in_own_namespace(|| {
        let mount =
            |options: &[&str]| new_filesystem("tmpfs", Path::new("none"), &flags(options), &Attributes::default()).unwrap_err();
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

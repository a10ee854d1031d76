//! The format proof: a device with anything on it, or of which something cannot be read, is never formatted, and the error says
//! what was seen and what to do.
//!
//! Each device is an image of the real driver, filled behind its back by the real tools where Debian has them.
#![allow(clippy::disallowed_methods, reason = "the tools that it belongs to put it on a device")]

mod common;
#[path = "common/one_file.rs"]
mod one_file;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{
    Harness, LoopDevice, Pool, capability, create, isolated, mounts_at, publish_request, run, skipped, stage_request, text,
};
use longshore::csi;
use longshore::csi::volume_capability::access_mode::Mode;
use longshore::os::copy;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use one_file::{Served, Storage};
use tonic::{Code, Status};

const MIB: u64 = 1 << 20;
/// Large enough for each file system of ours, and for a backup superblock of ext4 (128 MiB) and btrfs (64 MiB).
const LARGE: u64 = 400;
const SMALL: u64 = 64;

/// The driver, and what has been shown so far.
struct Proof {
    harness: Harness,
    devices: u64,
    formatted: Vec<String>,
}

impl Proof {
    fn image(&self, name: &str) -> PathBuf {
        self.harness.path("pool/images/volumes").join(name).join("image")
    }

    /// A new volume's image: a hole.
    fn volume(&self, name: &str, mib: u64) -> PathBuf {
        let request = create(name, mib.cast_signed(), Some("ext4"), "image");
        self.harness.block_on(self.harness.controller().create_volume(request)).expect("created");
        self.image(name)
    }

    fn stage(&self, name: &str, capability: csi::VolumeCapability) -> Result<(), Status> {
        let request = stage_request(format!("image:{name}"), self.harness.staging(name), capability);
        self.harness.block_on(self.harness.node().node_stage_volume(request)).map(drop)
    }

    fn publish(&self, name: &str) -> Result<(), Status> {
        let request = publish_request(
            format!("image:{name}"),
            self.harness.staging(name),
            self.harness.target(name),
            capability(Some("ext4")),
        );
        self.harness.block_on(self.harness.node().node_publish_volume(request)).map(drop)
    }

    fn unstage(&self, name: &str) {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: format!("image:{name}"),
            staging_target_path: text(&self.harness.staging(name)),
        };
        self.harness.block_on(self.harness.node().node_unstage_volume(request)).expect("unstaged");
        self.harness.assert_nothing_left();
    }

    /// A volume with what `fill` puts on it; `false` where its tool is missing. To stage it must be refused in these `words`, and
    /// leave it as it is.
    fn refused(&mut self, name: &str, mib: u64, words: &[&str], fill: impl FnOnce(&Path) -> bool) {
        let image = self.volume(name, mib);
        if fill(&image) {
            for capability in both_ways() {
                self.refused_as(name, capability, words, &image);
            }
            self.devices += 1;
        }
        // Not to fill the disk.
        fs::remove_file(&image).expect("removed");
    }

    fn refused_as(&mut self, name: &str, capability: csi::VolumeCapability, words: &[&str], image: &Path) {
        let before = bytes(image);
        let answer = self.stage(name, capability);
        if bytes(image) != before {
            self.formatted.push(format!("{name}: {answer:?}"));
        }
        self.assert_says(name, &answer.expect_err(name), words);
        self.harness.assert_nothing_left();
        assert_eq!(mounts_at(&self.harness.staging(name)), 0);
        self.unstage(name);
    }

    fn assert_says(&self, name: &str, status: &Status, words: &[&str]) {
        let said = status.message();
        assert_eq!(status.code(), Code::FailedPrecondition, "{name}: {status}");
        assert!(said.contains(&format!("image:{name}")) || said.contains(&format!("{name}/image")), "which volume? {said}");
        for word in words {
            assert!(said.contains(word), "{name}: {word:?} is not in: {said}");
        }
        const REMEDIES: [&str; 5] = ["use a new volume", "Ask for", "Stage it for writing", "unstage", "restore"];
        assert!(REMEDIES.iter().any(|remedy| said.to_lowercase().contains(&remedy.to_lowercase())), "what to do? {said}");
    }
}

/// All of a file that is not zeroes, by offset. What is a hole need not be read.
fn bytes(path: &Path) -> BTreeMap<u64, Vec<u8>> {
    let file = File::open(path).expect("a file");
    let mut blocks = BTreeMap::new();
    copy::data_extents(&file, 0, &mut |offset, length| {
        let mut run = vec![0; usize::try_from(length).expect("small")];
        file.read_exact_at(&mut run, offset).expect("readable");
        let pieces = run.chunks(4096).zip((offset..).step_by(4096));
        blocks.extend(pieces.filter(|(piece, _)| *piece != &[0; 4096][..piece.len()]).map(|(piece, at)| (at, piece.to_vec())));
        ControlFlow::Continue(())
    })
    .expect("its extents");
    blocks
}

/// As ext4, whose mkfs does not look at what is there (the other two would refuse by themselves), to write and to read.
fn both_ways() -> [csi::VolumeCapability; 2] {
    [capability(Some("ext4")), reader("ext4")]
}

fn reader(fstype: &str) -> csi::VolumeCapability {
    let mode = csi::volume_capability::AccessMode { mode: Mode::SingleNodeReaderOnly.into() };
    csi::VolumeCapability { access_mode: Some(mode), ..capability(Some(fstype)) }
}

/// Runs a tool on the image, which is named IMAGE in the arguments; `false`, said aloud, where it is not installed.
fn made(program: &str, arguments: &[&str], image: &Path) -> bool {
    let size = image.metadata().expect("an image").len();
    let named = arguments.iter().map(|argument| argument.replace("IMAGE", &text(image)));
    let output = Command::new(program).args(named).stdin(Stdio::null()).output();
    match output {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            skipped(&format!("no {program}"));
            return false;
        }
        // What a shell says of a program that is missing.
        Ok(output) if output.status.code() == Some(127) => {
            skipped(&format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)));
            return false;
        }
        output => {
            let output = output.expect(program);
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    // Some make the file as long as what they wrote.
    File::options().write(true).open(image).and_then(|file| file.set_len(size)).expect("as long as before");
    true
}

fn write(image: &Path, offset: u64, bytes: &[u8]) -> bool {
    let file = File::options().write(true).open(image).expect("an image");
    file.write_all_at(bytes, offset).expect("written");
    true
}

fn zeroed(image: &Path, length: u64) -> bool {
    write(image, 0, &vec![0; usize::try_from(length).expect("small")])
}

/// No tool made these, and none knows them.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    io::Read::read_exact(&mut File::open("/dev/urandom").expect("random"), &mut bytes).expect("random bytes");
    // 55 AA at the end of the first sector would have a name, one time in 65536.
    for byte in &mut bytes {
        *byte |= 1;
    }
    bytes
}

fn proof() -> Proof {
    let mut harness = Harness::new(Pool::Local);
    harness.start();
    Proof { harness, devices: 0, formatted: Vec::new() }
}

#[test]
fn device_that_is_not_blank_is_not_formatted() {
    isolated(|| {
        let mut proof = proof();
        known_signatures(&mut proof);
        backups_only(&mut proof);
        ours_as_another(&mut proof);
        bytes_without_a_name(&mut proof);
        cut_short(&mut proof);
        unreadable(&mut proof);
        swapped(&mut proof);
        println!("FIGURE: format proof: {} devices, {} formatted", proof.devices, proof.formatted.len());
        assert_eq!(proof.formatted, Vec::<String>::new());
        assert!(proof.devices > 60, "{}", proof.devices);
    });
}

fn known_signatures(proof: &mut Proof) {
    let directory = proof.harness.path("directory");
    fs::create_dir(&directory).expect("a directory");
    fs::write(directory.join("file"), "x").expect("a file");
    let (directory, key) = (text(&directory), text(&proof.harness.path("directory/file")));
    let luks = |version: &'static str| {
        ["luksFormat", "--batch-mode", "--type", version, "--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000", "--key-file"]
    };
    let rows: &[(&str, &str, &str, &[&str])] = &[
        ("ext2", "ext2", "mkfs.ext2", &["-q", "-F", "IMAGE"]),
        ("ext3", "ext3", "mkfs.ext3", &["-q", "-F", "IMAGE"]),
        ("ext4-journal", "journal", "mkfs.ext4", &["-q", "-F", "-O", "journal_dev", "IMAGE"]),
        ("fat16", "vfat", "mkfs.vfat", &["-F", "16", "IMAGE"]),
        ("fat32", "vfat", "mkfs.vfat", &["-F", "32", "IMAGE"]),
        ("ntfs", "ntfs", "mkntfs", &["-F", "-Q", "-q", "IMAGE"]),
        ("f2fs", "f2fs", "mkfs.f2fs", &["-q", "IMAGE"]),
        ("squashfs", "squashfs", "mksquashfs", &[&directory, "IMAGE", "-noappend", "-quiet", "-no-progress"]),
        ("iso9660", "iso9660", "genisoimage", &["-quiet", "-o", "IMAGE", &directory]),
        ("swap", "swap", "mkswap", &["-q", "IMAGE"]),
        ("bcache", "bcache", "make-bcache", &["-B", "IMAGE"]),
        ("luks1", "LUKS", "cryptsetup", &[luks("luks1").as_slice(), &[&key, "IMAGE"]].concat()),
        ("luks2", "LUKS", "cryptsetup", &[luks("luks2").as_slice(), &[&key, "IMAGE"]].concat()),
        ("gpt", "GPT partition table", "sh", &["-c", &partitions("gpt")]),
        ("mbr", "MBR partition table", "sh", &["-c", &partitions("dos")]),
        ("minix", "data at", "mkfs.minix", &["IMAGE"]),
    ];
    for (name, word, program, arguments) in rows {
        proof.refused(name, SMALL, &[word], |image| made(program, arguments, image));
    }
    // Their tools want a real block device, or the kernel's module.
    proof.refused("lvm", SMALL, &["LVM physical volume"], |image| write(image, 512, &lvm_label()));
    proof.refused("md-1-1", SMALL, &["md RAID member (1.1)"], |image| write(image, 0, &md(0)));
    proof.refused("md-1-2", SMALL, &["md RAID member (1.2)"], |image| write(image, 4096, &md(4096)));
    proof.refused("zfs", SMALL, &["ZFS"], |image| zfs_labels(image, &[0, 1, 2, 3]));
}

fn partitions(label: &str) -> String {
    format!("printf 'label: {label}\\n,10M\\n,\\n' | sfdisk -q IMAGE")
}

fn lvm_label() -> Vec<u8> {
    [b"LABELONE".as_slice(), &1_u64.to_le_bytes(), &[0xde, 0xad, 0xbe, 0xef], &32_u32.to_le_bytes(), b"LVM2 001", &[b'u'; 32]]
        .concat()
}

/// A superblock of version 1, which says where it lies (in sectors).
fn md(offset: u64) -> Vec<u8> {
    let mut superblock = vec![0; 256];
    superblock[..8].copy_from_slice(b"\xfc\x4e\x2b\xa9\x01\0\0\0");
    superblock[16..32].copy_from_slice(&[0x11; 16]);
    superblock[128..136].copy_from_slice(&(offset / 512).to_le_bytes());
    superblock
}

/// Two labels of 256 KiB at the start, two at the end; the uberblocks are in a label's second half.
fn zfs_labels(image: &Path, which: &[u64]) -> bool {
    let end = image.metadata().expect("an image").len();
    let places = [0, 256 << 10, end - (512 << 10), end - (256 << 10)];
    which
        .iter()
        .all(|label| write(image, places[usize::try_from(*label).expect("small")] + (128 << 10), &0x00ba_b10c_u64.to_le_bytes()))
}

fn backups_only(proof: &mut Proof) {
    let key = text(&proof.harness.path("directory/file"));
    let luks2 = [
        "luksFormat",
        "--batch-mode",
        "--type=luks2",
        "--pbkdf=pbkdf2",
        "--pbkdf-force-iterations=1000",
        "--key-file",
        &key,
        "IMAGE",
    ];
    let luks1 = luks2.map(|argument| if argument == "--type=luks2" { "--type=luks1" } else { argument });
    // How much of the start is wiped.
    type Row<'a> = (&'a str, &'a [&'a str], &'a str, &'a [&'a str], u64);
    let rows: &[Row<'_>] = &[
        (
            "no-ext4",
            &["ext4 backup superblock at 128 MiB", "e2fsck -b 32768"],
            "mkfs.ext4",
            &["-q", "-F", "-b", "4096", "IMAGE"],
            MIB,
        ),
        ("no-ext4-small", &["ext4 backup superblock at 8193 KiB"], "mkfs.ext4", &["-q", "-F", "-b", "1024", "IMAGE"], MIB),
        ("no-ext2", &["ext4 backup superblock at 128 MiB"], "mkfs.ext2", &["-q", "-F", "-b", "4096", "IMAGE"], MIB),
        // Groups of a size that nobody expects: it is data.
        ("no-ext4-odd", &["data at"], "mkfs.ext4", &["-q", "-F", "-g", "7000", "IMAGE"], 4 * MIB),
        ("no-xfs", &["xfs secondary superblock at 100 MiB", "xfs_repair"], "mkfs.xfs", &["-q", "IMAGE"], MIB),
        ("no-btrfs", &["btrfs superblock mirror at 64 MiB", "btrfs rescue"], "mkfs.btrfs", &["-q", "IMAGE"], MIB),
        ("no-luks2", &["LUKS2 secondary header at 16 KiB", "cryptsetup repair"], "cryptsetup", &luks2, 4096),
        ("no-luks1", &["data at"], "cryptsetup", &luks1, 1024),
        ("no-fat32", &["data at"], "mkfs.vfat", &["-F", "32", "IMAGE"], 512),
        ("no-ntfs", &["data at"], "mkntfs", &["-F", "-Q", "-q", "IMAGE"], MIB),
        ("no-f2fs", &["data at"], "mkfs.f2fs", &["-q", "IMAGE"], 4096),
        ("no-gpt", &["GPT backup partition table", "sgdisk --verify"], "sh", &["-c", &partitions("gpt")], MIB),
    ];
    for (name, words, program, arguments, wiped) in rows {
        proof.refused(name, LARGE, words, |image| made(program, arguments, image) && zeroed(image, *wiped));
    }
    let end = LARGE * MIB;
    proof.refused("md-0-90", LARGE, &["md RAID member", "mdadm --examine"], |image| {
        write(image, end - (64 << 10), b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a\0\0\0")
    });
    proof.refused("md-1-0", LARGE, &["md RAID member"], |image| write(image, end - 8192, &md(end - 8192)));
    proof.refused("zfs-second", LARGE, &["ZFS label at 256 KiB"], |image| zfs_labels(image, &[1]));
    proof.refused("zfs-end", LARGE, &["ZFS label", "zdb -l"], |image| zfs_labels(image, &[2, 3]));
    // The text of its metadata stays where the label is gone.
    proof.refused("no-lvm", LARGE, &["data at byte 4100"], |image| write(image, 4096 + 4, b" LVM2 x[5A%r0N*>"));
}

/// A file system of ours is never made into another, nor into itself again.
fn ours_as_another(proof: &mut Proof) {
    for (actual, arguments) in
        [("ext4", ["-q", "-F", "IMAGE"].as_slice()), ("xfs", &["-q", "IMAGE"]), ("btrfs", &["-q", "IMAGE"])]
    {
        let image = proof.volume(actual, LARGE);
        assert!(made(&format!("mkfs.{actual}"), arguments, &image));
        for asked in ["ext4", "xfs", "btrfs"].into_iter().filter(|asked| *asked != actual) {
            let words = [format!("it holds {actual}"), format!("{asked} was asked for"), format!("Ask for {actual} (fsType)")];
            let words = words.each_ref().map(String::as_str);
            proof.refused_as(actual, capability(Some(asked)), &words, &image);
            proof.refused_as(actual, reader(asked), &words, &image);
        }
        proof.stage(actual, reader(actual)).expect("staged read-only, as what it is");
        proof.unstage(actual);
        proof.devices += 1;
    }
    let blank = proof.volume("read-only", SMALL);
    proof.refused_as("read-only", reader("ext4"), &["it is blank", "read-only", "Stage it for writing once"], &blank);
    proof.devices += 1;
}

/// Bytes that no one has a name for, wherever they are.
fn bytes_without_a_name(proof: &mut Proof) {
    let end = LARGE * MIB;
    let random: [(&str, u64, usize); 6] = [
        ("random-start", 0, 4096),
        ("random-first-mib", 0, 1 << 20),
        ("random-middle", 211 * MIB + 8192, 4096),
        ("random-quarter", 100 * MIB + 70_000, 100),
        ("random-large", 17 * MIB, 8 << 20),
        ("random-end", end - 4096, 4096),
    ];
    for (name, offset, length) in random {
        proof.refused(name, LARGE, &["data at"], |image| write(image, offset, &noise(length)));
    }
    for (number, offset) in [0, 511, 70_000, 5 * MIB + 17, end / 2 + 1, 300 * MIB + 5, end - 1].into_iter().enumerate() {
        proof.refused(&format!("one-byte-{number}"), LARGE, &["data at"], |image| write(image, offset, &[1]));
    }
    // An image without holes, zeroes but for one block: nothing beneath the device says where the data is.
    let dense = |image: &Path| (0..SMALL).all(|mib| write(image, mib * MIB, &vec![0; 1 << 20]));
    proof.refused("dense", SMALL, &["data at"], |image| dense(image) && write(image, 41 * MIB + 12_288, &noise(512)));

    // What is blank is still formatted, or all of this would show nothing.
    type Fill<'a> = &'a dyn Fn(&Path) -> bool;
    let blank: [(&str, Fill<'_>); 3] = [
        ("blank-hole", &|_| true),
        ("blank-dense", &dense),
        ("blank-set-aside", &|image| made("fallocate", &["--length", "64M", "IMAGE"], image)),
    ];
    for (name, fill) in blank {
        let image = proof.volume(name, SMALL);
        assert!(fill(&image));
        proof.stage(name, capability(Some("ext4"))).expect("formatted");
        proof.unstage(name);
        assert_eq!(run("blkid", ["-p", "-s", "TYPE", "-o", "value", &text(&image)]), "ext4");
    }
}

/// An image that has become shorter than its volume, before anyone looks.
fn cut_short(proof: &mut Proof) {
    for (name, length) in [("cut-to-nothing", 0), ("cut-in-half", SMALL / 2 * MIB), ("cut-by-a-sector", SMALL * MIB - 512)] {
        let image = proof.volume(name, SMALL);
        File::options().write(true).open(&image).and_then(|file| file.set_len(length)).expect("cut");
        for capability in both_ways() {
            proof.refused_as(name, capability, &["long"], &image);
        }
        proof.devices += 1;
    }
}

/// A file over FUSE, of which some cannot be read, or which is cut while it is read.
struct Faulty {
    file: File,
    fault: Fault,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// One sector at this offset gives EIO.
    Unreadable(u64),
    /// Cut to `to` bytes by the first read at or beyond `by`.
    Cut { by: u64, to: u64 },
}

impl Storage for Faulty {
    fn size(&self) -> u64 {
        self.file.metadata().map_or(0, |stat| stat.len())
    }

    fn read(&self, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        let end = offset + size as u64;
        match self.fault {
            Fault::Unreadable(at) if (offset..end).contains(&at) || (at..at + 512).contains(&offset) => {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            Fault::Cut { by, to } if end > by => self.file.set_len(to).expect("cut"),
            _ => {}
        }
        let mut bytes = vec![0; size];
        let length = self.file.read_at(&mut bytes, offset)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}

/// The volume's image is a file over FUSE from now on, until its end. `backing` has its bytes.
fn faulty(proof: &Proof, name: &str, fault: Fault, backing: &Path) -> Served {
    let point = proof.harness.path("fuse").join(name);
    fs::create_dir_all(&point).expect("a mount point");
    let file = File::options().read(true).write(true).open(backing).expect("the bytes");
    let served = one_file::serve(Faulty { file, fault }, &point);
    let image = proof.image(name);
    let none: Option<&str> = None;
    mount(Some(&point.join(one_file::NAME)), &image, none, MsFlags::MS_BIND, none).expect("the image is over FUSE");
    served
}

fn unreadable(proof: &mut Proof) {
    let end = SMALL * MIB;
    let place = |offset: u64| (Fault::Unreadable(offset), "cannot be read at");
    let cut = |by: u64, to: u64| (Fault::Cut { by, to }, "it");
    let ext4: fn(&Path) -> bool = |backing| made("mkfs.ext4", &["-q", "-F", "IMAGE"], backing);
    let blank: fn(&Path) -> bool = |_| true;
    let cases = [
        ("eio-first", blank, place(0)),
        ("eio-start", blank, place(200 << 10)),
        ("eio-third", blank, place(21 * MIB + 512)),
        ("eio-middle", blank, place(32 * MIB)),
        ("eio-late", blank, place(55 * MIB + 4096)),
        ("eio-last", blank, place(end - 512)),
        ("eio-in-a-superblock", ext4, place(1024)),
        ("cut-at-the-start", blank, cut(4096, 0)),
        ("cut-early", blank, cut(10 * MIB, MIB)),
        ("cut-in-the-middle", blank, cut(32 * MIB, 16 * MIB)),
        ("cut-at-the-end", blank, cut(end - 4096, end - 8192)),
    ];
    let backing = proof.harness.path("pool/backing");
    for (name, fill, (fault, word)) in cases {
        let image = proof.volume(name, SMALL);
        for capability in both_ways() {
            File::create(&backing).and_then(|file| file.set_len(end)).expect("a file");
            assert!(fill(&backing));
            let before = bytes(&backing);
            let served = faulty(proof, name, fault, &backing);
            let answer = proof.stage(name, capability);
            if bytes(&backing) != before {
                proof.formatted.push(format!("{name}: {answer:?}"));
            }
            proof.assert_says(name, &answer.expect_err(name), &[word]);
            proof.harness.assert_nothing_left();
            proof.unstage(name);
            umount2(&image, MntFlags::empty()).expect("unmounted");
            served.end();
        }
        proof.devices += 1;
    }
}

/// Another image, another node of the device's name, another file under the device: between the probe and mkfs. mkfs has the
/// descriptor that was probed, so none of them is hit.
fn swapped(proof: &mut Proof) {
    let tool = fs::canonicalize("/usr/sbin/mkfs.ext4").expect("mkfs.ext4");
    let directory = proof.harness.path("tool");
    fs::create_dir(&directory).expect("a directory");
    // By its name it knows what to make.
    fs::copy(&tool, directory.join("mkfs.ext4")).expect("copied");
    let script = directory.join("script");
    let cases = [
        ("swapped-image", "mv OTHER IMAGE"),
        ("swapped-node", "mount --bind NODE $device"),
        ("swapped-binding", "losetup -d $device; losetup $device OTHER && exit 1"),
    ];
    for (name, swap) in cases {
        let image = proof.volume(name, SMALL);
        let other = proof.harness.path("other");
        File::create(&other).and_then(|file| file.set_len(SMALL * MIB)).expect("another image");
        assert!(made("mkfs.ext4", &["-q", "-F", "IMAGE"], &other));
        let before = bytes(&other);
        let bound = (name == "swapped-node").then(|| LoopDevice::over(&other));
        let node = bound.as_ref().map_or("", |bound| bound.0.as_str());
        let swap = swap.replace("NODE", node).replace("OTHER", &text(&other)).replace("IMAGE", &text(&image));
        let real = text(&directory.join("mkfs.ext4"));
        let said = directory.join("said");
        let lines = format!(
            "#!/bin/sh\nfor word; do case $word in /proc/*) device=$(readlink $word) ;; esac; done\necho $device >{}\n{swap}\nexec {real} \"$@\"\n",
            text(&said)
        );
        fs::write(&script, lines).expect("a script");
        fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("executable");
        let none: Option<&str> = None;
        mount(Some(&script), &tool, none, MsFlags::MS_BIND, none).expect("our mkfs, in this namespace");
        let answer = proof.stage(name, capability(Some("ext4")));
        umount2(&tool, MntFlags::MNT_DETACH).expect("the tool's own again");
        let device = fs::read_to_string(&said).expect("mkfs ran").trim().to_owned();
        assert!(device.starts_with("/dev/loop"), "{device}");

        if bound.is_some() {
            umount2(device.as_str(), MntFlags::empty()).expect("the device's own node again");
        }
        let now = if name == "swapped-image" { &image } else { &other };
        if bytes(now) != before {
            proof.formatted.push(format!("{name}: {answer:?}"));
        }
        match name {
            "swapped-binding" => answer.expect("the kernel keeps the device bound while it is open"),
            "swapped-image" => {
                assert_eq!(proof.publish(name).expect_err("its image is another").code(), Code::FailedPrecondition)
            }
            _ => drop(answer.expect_err("not the device that was formatted")),
        }
        proof.unstage(name);
        assert!(bytes(now) == before, "{name}: touched");
        proof.devices += 1;
    }
}

#[test]
fn a_corrupt_ext4_is_repaired_or_left_alone() {
    isolated(|| {
        let proof = proof();
        let image = proof.volume("v", SMALL);
        let staging = proof.harness.staging("v");
        proof.stage("v", capability(Some("ext4"))).expect("formatted");
        fs::write(staging.join("data"), "kept").expect("written");
        proof.unstage("v");
        let debugfs = |request: &str| run("debugfs", ["-w", "-R", request, &text(&image)]);

        debugfs("set_super_value free_blocks_count 7");
        debugfs("set_super_value state 2");
        proof.stage("v", capability(Some("ext4"))).expect("repaired");
        assert_eq!(fs::read_to_string(staging.join("data")).expect("a file"), "kept");
        assert!(proof.harness.log().contains("repaired"));
        proof.unstage("v");
        run("e2fsck", ["-fn", &text(&image)]);

        // As a check leaves its superblock that was killed between two of its writes.
        File::options().write(true).open(&image).and_then(|file| file.write_all_at(b"7", 1024 + 52)).expect("number of mounts");
        proof.stage("v", capability(Some("ext4"))).expect("completed");
        assert_eq!(fs::read_to_string(staging.join("data")).expect("a file"), "kept");
        assert!(proof.harness.log().contains("an earlier check was interrupted"));
        proof.unstage("v");
        run("e2fsck", ["-fn", &text(&image)]);

        // Without its root directory it is for a person to decide.
        debugfs("clri <2>");
        debugfs("set_super_value state 2");
        let uuid = || run("blkid", ["-p", "-s", "UUID", "-o", "value", &text(&image)]);
        let before = uuid();
        let status = proof.stage("v", capability(Some("ext4"))).expect_err("beyond repairing");
        assert!(status.message().contains("run `e2fsck -f`"), "{status}");
        assert_eq!(uuid(), before, "not made anew");
        proof.harness.assert_nothing_left();
    });
}

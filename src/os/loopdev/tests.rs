//! Loop devices of this kernel.
#![allow(unsafe_code, reason = "LOOP_CONFIGURE, LOOP_GET_STATUS64 and their like have no safe wrapper")]

use std::collections::BTreeSet;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::block::Device;
use super::super::{Error, Result, udev};
use super::status::{Loop, STATUS_DEADLINE, SYS_BLOCK, file_of, find, info, is_bound, list, shows, status, status_in_time};
use super::*;
use crate::os::mount::testing::in_own_namespace;
use crate::os::mount::{self, Attributes};
use crate::os::path::Root;
use crate::os::process::{self, Run, Tool};
use crate::volume::MountFlags;
use loopdev::LoopControl;
use nix::errno::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self};
use std::time::{Duration, Instant};

/// Of each backing file.
const NAME: &str = "image";

/// A file of a MiB, detached from whatever it is bound to when it goes out of scope.
struct Backing {
    directory: tempfile::TempDir,
    file: File,
    identity: (u64, u64),
}

impl Drop for Backing {
    fn drop(&mut self) {
        clean_up(self.identity);
    }
}

/// Detaches all that is bound to a file. What a failed test left mounted goes with its namespace, in a moment.
fn clean_up(backing: (u64, u64)) {
    let until = Instant::now().checked_add(Duration::from_secs(10));
    let gone = udev::wait_until(until, || {
        let devices = find(backing, Path::new(NAME))?;
        Ok(devices.iter().all(|device| detach(&device.path, backing).is_ok()))
    });
    if !matches!(gone, Ok(true)) {
        eprintln!("a loop device is left over: {gone:?}");
    }
}

/// Detached when it goes out of scope.
struct Guard(Loop);

impl Drop for Guard {
    fn drop(&mut self) {
        clean_up(self.0.backing);
    }
}

/// `None` where there are no loop devices for us.
fn backing() -> Option<Backing> {
    if let Err(error) = LoopControl::open() {
        eprintln!("SKIPPED: loop devices: {CONTROL}: {error}");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = File::options().read(true).write(true).create_new(true).open(directory.path().join("image")).unwrap();
    file.set_len(1 << 20).unwrap();
    let metadata = file.metadata().unwrap();
    Some(Backing { directory, file, identity: (metadata.dev(), metadata.ino()) })
}

fn sys(device: &Loop, attribute: &str) -> String {
    let path = Path::new(SYS_BLOCK).join(device.path.file_name().unwrap()).join(attribute);
    std::fs::read_to_string(path).unwrap().trim_end().to_owned()
}

#[test]
fn a_device_is_attached_found_and_detached() {
    let Some(mut backing) = backing() else { return };
    assert!(find(backing.identity, Path::new(NAME)).unwrap().is_empty());
    let device = attach(&backing.file, "label", false).unwrap();
    assert_eq!(device.backing, backing.identity);
    assert!(!device.read_only);
    assert_eq!(sys(&device, "loop/backing_file"), backing.directory.path().join("image").display().to_string());
    assert_eq!(file_of(&device.path).unwrap(), Some(backing.directory.path().join("image")));
    assert_eq!(device.label, "label");
    assert_eq!(sys(&device, "dev"), format!("{}:{}", device.number.0, device.number.1));
    assert_eq!(sys(&device, "queue/logical_block_size"), "512");
    assert_eq!(sys(&device, "loop/autoclear"), "0");
    assert_eq!(sys(&device, "loop/dio") == "1", device.direct_io);
    assert_eq!(find(backing.identity, Path::new(NAME)).unwrap(), std::slice::from_ref(&device));
    assert_eq!(status(&device.path).unwrap().as_ref(), Some(&device));

    let open = Device::open(&device.path, true).unwrap();
    assert_eq!((open.number(), open.size().unwrap(), open.read_only().unwrap()), (device.number, 1 << 20, false));
    open.file().write_all(b"through").unwrap();
    open.flush().unwrap();
    drop(open);
    let mut content = [0; 7];
    backing.file.rewind().unwrap();
    backing.file.read_exact(&mut content).unwrap();
    assert_eq!(&content, b"through");

    // A renamed file is the same file.
    std::fs::rename(backing.directory.path().join("image"), backing.directory.path().join("renamed")).unwrap();
    assert_eq!(find(backing.identity, Path::new(NAME)).unwrap(), std::slice::from_ref(&device));

    // Not by a wrong identity.
    detach(&device.path, (backing.identity.0, backing.identity.1 + 1)).unwrap();
    assert_eq!(find(backing.identity, Path::new(NAME)).unwrap(), std::slice::from_ref(&device));
    for _ in 0..2 {
        detach(&device.path, backing.identity).unwrap();
        assert!(find(backing.identity, Path::new(NAME)).unwrap().is_empty());
    }
}

#[test]
fn the_mode_and_flags_of_the_given_descriptor_do_not_matter() {
    let Some(backing) = backing() else { return };
    let path = backing.directory.path().join("image");
    for file in [File::open(&path).unwrap(), File::options().append(true).open(&path).unwrap()] {
        let device = attach(&file, "label", false).unwrap();
        assert!(!device.read_only);
        let mut open = File::options().write(true).open(&device.path).unwrap();
        open.write_all(&[7; 4096]).unwrap();
        open.sync_all().unwrap();
        drop(open);
        assert_eq!(std::fs::read(&path).unwrap()[..4096], [7; 4096]);
        assert_eq!(path.metadata().unwrap().len(), 1 << 20);
        detach(&device.path, device.backing).unwrap();
    }
}

#[test]
fn a_read_only_device_takes_no_writes() {
    let Some(backing) = backing() else { return };
    let device = attach(&backing.file, "label", true).unwrap();
    assert!(device.read_only);
    assert!(Device::open(&device.path, false).unwrap().read_only().unwrap());
    let written = File::options().write(true).open(&device.path).and_then(|mut file| {
        file.write_all(&[1; 512])?;
        file.sync_all()
    });
    assert!(written.is_err());
}

#[test]
fn write_protection_can_be_set_and_taken_off() {
    let Some(backing) = backing() else { return };
    let device = attach(&backing.file, "label", false).unwrap();
    let open = Device::open(&device.path, false).unwrap();
    open.set_read_only(true).unwrap();
    assert!(open.read_only().unwrap());
    assert_eq!(sys(&device, "ro"), "1");
    open.set_read_only(false).unwrap();
    assert_eq!(sys(&device, "ro"), "0");
}

/// The kernel keeps it with the number; a program that was killed in between leaves it to anyone who comes next.
#[test]
fn an_earlier_user_s_write_protection_is_not_ours() {
    let Some(first) = (0..8).map(|_| backing()).collect::<Option<Vec<_>>>() else { return };
    let protected: BTreeSet<_> = first
        .iter()
        .map(|backing| {
            let device = attach(&backing.file, "label", false).unwrap();
            Device::open(&device.path, false).unwrap().set_read_only(true).unwrap();
            device.path
        })
        .collect();
    drop(first);
    let second: Vec<_> = (0..16).map(|_| backing().unwrap()).collect();
    let devices: Vec<_> = second.iter().map(|backing| attach(&backing.file, "label", false).unwrap()).collect();
    assert!(devices.iter().any(|device| protected.contains(&device.path)), "none of {protected:?} was used again");
    for device in devices {
        assert_eq!(sys(&device, "ro"), "0", "{}", device.path.display());
    }
}

#[test]
fn a_long_label_is_cut() {
    let Some(backing) = backing() else { return };
    let device = attach(&backing.file, &"l".repeat(100), false).unwrap();
    let open = File::open(&device.path).unwrap();
    let name = info(open.as_raw_fd()).unwrap().file_name;
    assert_eq!((&name[..63], name[63]), (&[b'l'; 63][..], 0));
}

#[test]
fn a_grown_file_is_taken_over() {
    let Some(backing) = backing() else { return };
    let device = attach(&backing.file, "label", false).unwrap();
    backing.file.set_len(3 << 20).unwrap();
    assert_eq!(Device::open(&device.path, false).unwrap().size().unwrap(), 1 << 20);
    assert_eq!(refresh(&device.path).unwrap(), 3 << 20);
    assert_eq!(sys(&device, "size"), (3 << 11).to_string());
}

#[test]
fn a_device_that_is_open_is_busy_and_stays_as_it_was() {
    let Some(backing) = backing() else { return };
    let device = attach(&backing.file, "label", false).unwrap();
    for flags in [0, libc::O_EXCL] {
        let user = File::options().read(true).custom_flags(flags).open(&device.path).unwrap();
        assert_eq!(detach(&device.path, device.backing).unwrap_err().errno(), Some(libc::EBUSY));
        assert_eq!(sys(&device, "loop/autoclear"), "0");
        drop(user);
        assert_eq!(find(device.backing, Path::new(NAME)).unwrap(), std::slice::from_ref(&device));
    }
    detach(&device.path, device.backing).unwrap();
}

/// A journal of another driver, or of an earlier life, names this number: its owner mounts and detaches it as if alone. Anyone who claimed
/// it here would be refused, since its owner has claimed it.
#[test]
fn device_of_another_is_not_claimed_by_detach() {
    let Some(backing) = backing() else { return };
    let device = attach(&backing.file, "label", false).unwrap();
    let owner = File::options().read(true).custom_flags(libc::O_EXCL).open(&device.path).unwrap();
    let another = (device.backing.0, device.backing.1 + 1);
    for _ in 0..100 {
        detach(&device.path, another).unwrap();
    }
    drop(owner);
    assert_eq!(find(device.backing, Path::new(NAME)).unwrap(), std::slice::from_ref(&device));
}

#[test]
fn detach_waits_for_who_claims_the_device_for_a_moment() {
    let Some(backing) = backing() else { return };
    let device = attach(&backing.file, "label", false).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let claiming = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Once it is detached, another test may have its number.
                if !is_unbound_from(&device.path, device.backing).unwrap() {
                    drop(File::options().read(true).custom_flags(libc::O_EXCL).open(&device.path));
                }
            }
        });
        let results: Vec<_> = (0..50)
            .map(|_| {
                detach(&device.path, device.backing)?;
                attach(&backing.file, "label", false).map(|again| again.path == device.path)
            })
            .take_while(|result| result.as_ref().is_ok_and(|same| *same))
            .collect();
        stop.store(true, Ordering::Relaxed);
        claiming.join().unwrap();
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    });
}

#[test]
fn short_opening_of_a_device_is_waited_for() {
    let Some(backing) = backing() else { return };
    let device = attach(&backing.file, "label", false).unwrap();
    let looker = File::open(&device.path).unwrap();
    std::thread::scope(|scope| {
        let detaching = scope.spawn(|| detach(&device.path, device.backing));
        // Until it has been asked to go, which only we hold up.
        while is_bound(device.path.file_name().unwrap()).unwrap() && sys(&device, "loop/autoclear") == "0" {
            assert!(!detaching.is_finished());
            std::thread::yield_now();
        }
        drop(looker);
        detaching.join().unwrap().unwrap();
    });
    assert!(find(backing.identity, Path::new(NAME)).unwrap().is_empty());
}

#[test]
fn a_mounted_device_is_busy_and_can_be_grown() {
    let Some(backing) = backing() else { return };
    backing.file.set_len(16 << 20).unwrap();
    let device = attach(&backing.file, "label", false).unwrap();
    let mkfs = Tool { name: "mkfs.ext4", package: "e2fsprogs" };
    let arguments = vec!["-q".to_owned(), device.path.display().to_string()];
    let run = Run { tool: mkfs, arguments, keep: Vec::new(), stdin: Vec::new(), deadline: Duration::from_secs(60) };
    if let Err(error @ Error::ToolMissing { .. }) = process::run_ok(run, "test image", &[0]) {
        eprintln!("SKIPPED: a mounted loop device: {error}");
        return;
    }
    in_own_namespace(|| {
        let root = Root::open(backing.directory.path()).unwrap();
        let path = root.path().join("mounted");
        let target = root.make_dir(&path, 0o700).unwrap();
        let fs = mount::new_filesystem("ext4", &device.path, &MountFlags::default(), &Attributes::default()).unwrap();
        mount::attach(fs, target.as_fd(), &path).unwrap();
        let begun = Instant::now();
        assert_eq!(detach(&device.path, device.backing).unwrap_err().errno(), Some(libc::EBUSY));
        assert!(begun.elapsed() < DETACH_DEADLINE, "reported at once");
        assert_eq!(sys(&device, "loop/autoclear"), "0");
        backing.file.set_len(20 << 20).unwrap();
        assert_eq!(refresh(&device.path).unwrap(), 20 << 20);
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).unwrap();
        root.remove(&path).unwrap();
    });
    detach(&device.path, device.backing).unwrap();
}

/// A loop device of 4096-byte blocks over `backing`: what a disk of that kind is.
fn with_large_blocks(backing: &Backing) -> Loop {
    let control = LoopControl::open().unwrap();
    let config = kernel::Config {
        fd: backing.file.as_raw_fd().cast_unsigned(),
        block_size: 4096,
        info: kernel::Info::EMPTY,
        reserved: [0; 8],
    };
    loop {
        let device = control.next_free().unwrap();
        // SAFETY: both descriptors are open, and `config` is laid out as the kernel's struct loop_config.
        match unsafe { kernel::configure(device.as_raw_fd(), &raw const config) } {
            Ok(_) => {
                let device = status(&device.path().unwrap()).unwrap().unwrap();
                // Another test leaves its write protection to anyone who has its number next.
                Device::open(&device.path, false).unwrap().set_read_only(false).unwrap();
                return device;
            }
            Err(errno) => assert_eq!(errno, Errno::EBUSY),
        }
    }
}

#[test]
fn blocks_are_512_bytes_and_files_recognised_on_every_file_system() {
    let Some(disk) = backing() else { return };
    disk.file.set_len(400 << 20).unwrap();
    let large = with_large_blocks(&disk);
    for (fstype, package, device) in [
        ("tmpfs", None, Path::new("none")),
        ("ext4", Some(Tool { name: "mkfs.ext4", package: "e2fsprogs" }), &large.path),
        ("xfs", Some(Tool { name: "mkfs.xfs", package: "xfsprogs" }), &large.path),
        ("btrfs", Some(Tool { name: "mkfs.btrfs", package: "btrfs-progs" }), &large.path),
    ] {
        if let Some(tool) = package {
            let force = if fstype == "ext4" { "-F" } else { "-f" };
            let arguments = vec!["-q".to_owned(), force.to_owned(), device.display().to_string()];
            let run = Run { tool, arguments, keep: Vec::new(), stdin: Vec::new(), deadline: Duration::from_secs(60) };
            if let Err(error @ Error::ToolMissing { .. }) = process::run_ok(run, "test image", &[0]).map(drop) {
                eprintln!("SKIPPED: loop devices over {fstype}: {error}");
                continue;
            }
        }
        in_own_namespace(|| {
            let root = Root::open(disk.directory.path()).unwrap();
            let path = root.path().join(fstype);
            let target = root.make_dir(&path, 0o700).unwrap();
            let fs = mount::new_filesystem(fstype, device, &MountFlags::default(), &Attributes::default()).unwrap();
            mount::attach(fs, target.as_fd(), &path).unwrap();
            let file = File::options().read(true).write(true).create_new(true).open(path.join("image")).unwrap();
            file.set_len(1 << 20).unwrap();
            let metadata = file.metadata().unwrap();
            let attached = attach(&file, fstype, false).unwrap();
            let _guard = Guard(attached.clone());
            assert_eq!(attached.backing, (metadata.dev(), metadata.ino()), "{fstype}");
            assert_eq!(sys(&attached, "queue/logical_block_size"), "512", "{fstype}");
            assert_eq!(find(attached.backing, Path::new(NAME)).unwrap(), std::slice::from_ref(&attached), "{fstype}");
            // Blocks of 512 bytes cannot go directly to a disk of larger ones. (btrfs says they can, and goes through its cache.)
            assert!(!matches!(fstype, "ext4" | "xfs") || !attached.direct_io, "{fstype}");
            let open = Device::open(&attached.path, true).unwrap();
            open.file().write_all_at(&[7; 512], 1536).unwrap();
            open.flush().unwrap();
            drop(open);
            let mut content = [0; 1536];
            file.read_exact_at(&mut content, 1024).unwrap();
            assert!(content[..512] == [0; 512] && content[512..1024] == [7; 512] && content[1024..] == [0; 512], "{fstype}");
            detach(&attached.path, attached.backing).unwrap();
            drop(file);
            // A program that another test starts has this mount's file, and what it was made by (fsopen), open until its exec.
            let until = Instant::now().checked_add(Duration::from_secs(10));
            let unmounted = || Ok(rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).is_ok());
            assert!(udev::wait_until(until, unmounted).unwrap());
            let unclaimed =
                || Ok(package.is_none() || File::options().read(true).custom_flags(libc::O_EXCL).open(device).is_ok());
            assert!(udev::wait_until(until, unclaimed).unwrap(), "{fstype}");
        });
    }
    detach(&large.path, large.backing).unwrap();
}

#[test]
fn many_at_once_get_one_each() {
    let Some(backing) = backing() else { return };
    let devices: Vec<Loop> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| attach(&backing.file, "label", true).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut paths: Vec<_> = devices.iter().map(|device| &device.path).collect();
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 8);
    assert_eq!(find(backing.identity, Path::new(NAME)).unwrap().len(), 8);
    std::thread::scope(|scope| {
        for device in &devices {
            scope.spawn(|| detach(&device.path, device.backing).unwrap());
        }
    });
    assert!(find(backing.identity, Path::new(NAME)).unwrap().is_empty());
}

/// A file system with one file, by the protocol of fuse(4), whose server stops answering on demand: until it is ended, but for no
/// longer than `LONGEST_HANG`, since other processes of this machine ask its loop device, too.
struct Served {
    stop: Arc<AtomicBool>,
    end: Option<mpsc::Sender<()>>,
    server: Option<std::thread::JoinHandle<()>>,
}

const LONGEST_HANG: Duration = Duration::from_secs(20);

impl Served {
    fn at(path: &Path) -> Option<Served> {
        let Ok(mut device) = File::options().read(true).write(true).open("/dev/fuse") else {
            eprintln!("SKIPPED: there is no /dev/fuse");
            return None;
        };
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        nix::mount::mount(Some("test"), path, Some("fuse"), nix::mount::MsFlags::empty(), Some(options.as_str())).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, path) = (stop.clone(), path.to_owned());
        let (end, ended) = mpsc::channel();
        let server = std::thread::spawn(move || {
            let mut request = vec![0; 1 << 18];
            while let Ok(length) = device.read(&mut request) {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let Some(answer) = Served::answer(&request[..length]) else { continue };
                if device.write_all(&answer).is_err() {
                    break;
                }
            }
            // Until the sender is dropped.
            ended.recv_timeout(LONGEST_HANG).ok();
            // By force: anyone who waits for an answer gets an error.
            nix::mount::umount2(&path, nix::mount::MntFlags::MNT_FORCE | nix::mount::MntFlags::MNT_DETACH).unwrap();
        });
        Some(Served { stop, end: Some(end), server: Some(server) })
    }

    /// linux/fuse.h
    fn answer(request: &[u8]) -> Option<Vec<u8>> {
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        let node = u64::from_le_bytes(request[16..24].try_into().unwrap());
        let attributes = |node: u64| {
            let (size, mode): (u64, u32) = if node == 1 { (0, 0o40_755) } else { (1 << 20, 0o100_644) };
            let longs = [node, size, size / 512, 0, 0, 0].into_iter().flat_map(u64::to_le_bytes);
            longs.chain([0, 0, 0, mode, 1, 0, 0, 0, 512, 0].into_iter().flat_map(u32::to_le_bytes)).collect::<Vec<u8>>()
        };
        let (error, body): (i32, Vec<u8>) = match word(4) {
            // FORGET and BATCH_FORGET have no answer.
            2 | 42 => return None,
            // LOOKUP: the node's number; no answer is kept for any time.
            1 => (0, 2_u64.to_le_bytes().into_iter().chain([0; 32]).chain(attributes(2)).collect()),
            // GETATTR
            3 => (0, [0; 16].into_iter().chain(attributes(node)).collect()),
            // OPEN
            14 => (0, vec![0; 16]),
            // READ
            15 => (0, vec![0; word(56) as usize]),
            // RELEASE
            18 => (0, Vec::new()),
            // INIT: version 7.31.
            26 => {
                let words = [7, 31, 0, 0, 0, 4096, 1, 0].into_iter().flat_map(u32::to_le_bytes);
                (0, words.chain([0; 32]).collect())
            }
            _ => (-libc::ENOSYS, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).unwrap();
        let head = length.to_le_bytes().into_iter().chain(error.to_le_bytes()).chain(request[8..16].iter().copied());
        Some(head.chain(body).collect())
    }

    /// The next question has no answer.
    fn hang(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    fn end(&mut self) {
        self.end.take();
        self.hang();
        self.server.take().map(std::thread::JoinHandle::join);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Its server reads until it is asked something.
        self.end();
    }
}

/// What such a device is bound to cannot be asked: it is unbound as it is.
struct Unbound(Option<PathBuf>);

impl Drop for Unbound {
    fn drop(&mut self) {
        if let Some(device) = self.0.take().map(|path| File::open(path).unwrap()) {
            // SAFETY: the descriptor is open, no memory is passed.
            unsafe { kernel::clear(device.as_raw_fd()) }.unwrap();
        }
    }
}

/// Threads of this process that ask a device and wait for the file system's answer.
fn stuck() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|thread| thread.path());
    let read = |thread: &Path, name| std::fs::read_to_string(thread.join(name)).unwrap_or_default();
    threads.filter(|thread| read(thread, "comm") == "ask loop\n" && read(thread, "wchan") == "request_wait_answer").count()
}

#[test]
fn device_whose_file_hangs_holds_up_no_look_for_another() {
    in_own_namespace(|| {
        let Some(backing) = backing() else { return };
        let directory = tempfile::tempdir().unwrap();
        // Dropped after the file system.
        let mut unbound = Unbound(None);
        let Some(mut served) = Served::at(directory.path()) else { return };
        let hung_name = Path::new("hung");
        let file = File::open(directory.path().join(hung_name)).unwrap();
        let hung = attach(&file, "label", true).unwrap();
        unbound.0 = Some(hung.path.clone());
        let ours = attach(&backing.file, "label", false).unwrap();
        assert_eq!(find(hung.backing, hung_name).unwrap(), std::slice::from_ref(&hung));
        served.hang();

        let found = || find(ours.backing, Path::new(NAME)).unwrap();
        assert_eq!(found(), std::slice::from_ref(&ours), "the other does not answer");
        // Another test's look may have asked it at the same moment.
        let left = stuck();
        let started = Instant::now();
        for _ in 0..20 {
            assert_eq!(found(), std::slice::from_ref(&ours));
        }
        assert!(started.elapsed() < STATUS_DEADLINE, "it is known by now which one hangs: {:?}", started.elapsed());
        assert_eq!(stuck(), left, "and it is not asked again");
        assert_eq!(status_in_time(&ours.path).unwrap().as_ref(), Some(&ours));
        for refused in [find(hung.backing, hung_name).map(drop), status_in_time(&hung.path).map(drop)] {
            let error = refused.unwrap_err();
            let named = matches!(&error, Error::Deadline { object, .. } if Path::new(object) == hung.path);
            assert!(named, "it may be bound to the file: {error}");
        }
        assert!(list().unwrap().1.iter().any(|silent| silent.device == hung.path));
        assert!(shows(&hung.path, hung_name).unwrap() && !shows(&ours.path, hung_name).unwrap(), "sysfs asks no file");

        served.end();
        let until = Instant::now().checked_add(Duration::from_secs(30));
        assert!(udev::wait_until(until, || Ok(stuck() == 0)).unwrap(), "its thread has ended");
        // Now the kernel says ENOTCONN of its file.
        assert_eq!(found(), std::slice::from_ref(&ours), "the file system of the other is gone");
        let error = find(hung.backing, hung_name).unwrap_err();
        assert!(error.errno() == Some(libc::ENOTCONN), "it may be bound to the file: {error}");
    });
}

#[test]
fn directory_cannot_back_a_device() {
    let directory = File::open("/").unwrap();
    assert!(matches!(attach(&directory, "/", true), Err(Error::Unexpected { .. })));
}

#[test]
fn a_missing_device_is_detached_already() {
    detach(Path::new("/dev/loop9999999"), (1, 2)).unwrap();
    assert!(status(Path::new("/dev/loop9999999")).unwrap_err().is_missing());
}

/// A program that another test starts has a copy of each descriptor until its exec.
fn comes_to_be_unbound(file: impl Fn() -> File) -> bool {
    let until = Instant::now().checked_add(Duration::from_secs(10));
    udev::wait_until(until, || Ok(is_unbound(file()))).unwrap()
}

/// On each file system that a lease is believed of and this test can have without a device.
#[test]
fn file_of_a_loop_device_is_not_taken_as_unbound_no_matter_who_bound_it() {
    let Some(backing) = backing() else { return };
    in_own_namespace(|| {
        let root = Root::open(backing.directory.path()).unwrap();
        let [place, other] = ["tmpfs", "other"].map(|name| {
            let path = root.path().join(name);
            root.make_dir(&path, 0o700).unwrap();
            path
        });
        nix::mount::mount(Some("none"), &place, Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>).unwrap();
        let [path, link] = ["image", "link"].map(|name| place.join(name));
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        std::fs::hard_link(&path, &link).unwrap();
        nix::mount::mount(Some(&place), &other, None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>).unwrap();
        let look = || File::open(&path).unwrap();
        assert!(comes_to_be_unbound(look));
        for (name, read_only) in [(&path, false), (&path, true), (&link, false), (&other.join("image"), true)] {
            // In a mount namespace of its own, which is gone by the time of the question.
            let bind = || {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
                attach(&File::open(name).unwrap(), "label", read_only).unwrap()
            };
            let device = std::thread::scope(|scope| scope.spawn(bind).join().unwrap());
            let _guard = Guard(device.clone());
            assert!(!is_unbound(look()));
            assert_eq!(find(device.backing, Path::new("image")).unwrap().len(), 1);
            detach(&device.path, device.backing).unwrap();
            assert!(comes_to_be_unbound(look));
        }
        rustix::mount::unmount(&other, rustix::mount::UnmountFlags::DETACH).unwrap();
        rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).unwrap();
    });
}

/// The kernel would grant it the lease: see [`is_unbound`].
#[test]
fn descriptor_of_a_memfd_itself_proves_nothing() {
    if backing().is_none() {
        return;
    }
    let memfd = crate::os::memfd::create("image", 1 << 20).unwrap();
    let identity = crate::os::memfd::identity(&memfd).unwrap();
    let again = || File::open(format!("/proc/self/fd/{}", memfd.as_raw_fd())).unwrap();
    assert!(comes_to_be_unbound(again));
    let device = attach(&memfd, "label", false).unwrap();
    let unbound = [is_unbound(memfd.try_clone().unwrap()), is_unbound(again())];
    detach(&device.path, identity).unwrap();
    assert_eq!(unbound, [false; 2]);
    assert!(comes_to_be_unbound(again));
}

#[test]
fn file_of_an_overlay_is_not_taken_as_unbound() {
    in_own_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let place = root.path().join("disk");
        root.make_dir(&place, 0o700).unwrap();
        let none: Option<&str> = None;
        nix::mount::mount(Some("none"), &place, Some("tmpfs"), nix::mount::MsFlags::empty(), none).unwrap();
        let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| {
            std::fs::create_dir(place.join(name)).unwrap();
            place.join(name)
        });
        File::create(lower.join("image")).unwrap().set_len(1 << 20).unwrap();
        let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        nix::mount::mount(Some("none"), &merged, Some("overlay"), nix::mount::MsFlags::empty(), Some(options.as_str())).unwrap();
        assert!(!is_unbound(File::open(merged.join("image")).unwrap()));
        rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).unwrap();
    });
}

/// Who opens the file while the lease is held makes the kernel send a signal; that of its choice would end this process.
#[test]
fn opening_the_file_at_that_moment_ends_nothing_and_waits() {
    let memfd = crate::os::memfd::create("image", 1 << 20).unwrap();
    let open = || File::open(format!("/proc/self/fd/{}", memfd.as_raw_fd())).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(open());
            }
        });
        for _ in 0..20_000 {
            is_unbound(open());
        }
        stop.store(true, Ordering::Relaxed);
        opening.join().unwrap();
    });
    assert!(comes_to_be_unbound(open));
}

/// Those that another test binds meanwhile come and go.
#[test]
fn unused_devices_of_ours_are_removed_but_for_a_few_and_no_others() {
    let Some(backing) = backing() else { return };
    let control = LoopControl::open().unwrap();
    // SAFETY: the descriptor is open, no memory is passed.
    let foreign = unsafe { kernel::add(control.as_raw_fd(), -1) }.unwrap();
    // Made in the tick of the clock in which the next one is asked for, it would pass for ours.
    let tick = spare::now();
    while spare::now() == tick {
        std::thread::yield_now();
    }
    // The unused ones of the machine first, until the kernel has made enough.
    let (mut devices, mut made) = (Vec::new(), 0);
    while made < 2 * spare::KEPT {
        let device = attach(&backing.file, "label", false).unwrap();
        made += usize::from(spare::is_ours(device.path.file_name().unwrap()));
        devices.push(device);
    }
    let last = devices.pop().unwrap();
    let keeps_last_open = File::open(&last.path).unwrap();
    devices.iter().for_each(|device| detach(&device.path, device.backing).unwrap());
    assert!(spare::unused().unwrap().len() > spare::KEPT);
    let until = Instant::now().checked_add(Duration::from_secs(60));
    let few = udev::wait_until(until, || {
        while remove_spare()? {}
        Ok(spare::unused()?.len() <= spare::KEPT)
    });
    drop(keeps_last_open);
    let (bound, foreign_stays) = (status(&last.path), Path::new(SYS_BLOCK).join(format!("loop{foreign}")).exists());
    // SAFETY: the descriptor is open, no memory is passed.
    let _ = unsafe { kernel::remove(control.as_raw_fd(), foreign) };
    assert!(few.unwrap(), "{:?}", spare::unused());
    assert_eq!(bound.unwrap().as_ref(), Some(&last), "what is bound stays");
    assert!(foreign_stays, "what another has made stays");
}

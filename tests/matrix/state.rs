//! What the kernel, the journal and the pool show, but for what differs from run to run: numbers of loop devices, inodes, times.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Harness, run};

/// Sorted lines, for people who read the difference.
pub fn of(harness: &Harness) -> Vec<String> {
    let mut lines = Vec::new();
    mounts(harness, &mut lines);
    for device in harness.loops() {
        let sys = Path::new("/sys/block").join(device.trim_start_matches("/dev/"));
        let read = |name: &str| fs::read_to_string(sys.join(name)).unwrap_or_default().trim().to_owned();
        let backing = read("loop/backing_file").replace(&harness.path("").display().to_string(), "");
        let (size, read_only, autoclear) = (read("size"), read("ro"), read("loop/autoclear"));
        lines.push(format!("loop: {backing} sectors={size} ro={read_only} autoclear={autoclear}"));
    }
    for device in harness.loops() {
        let holders = Path::new("/sys/block").join(device.trim_start_matches("/dev/")).join("holders");
        let names = fs::read_dir(holders).expect("sysfs").flatten().map(|holder| holder.path().join("dm/name"));
        lines.extend(names.map(|name| format!("mapping: {}", fs::read_to_string(name).expect("sysfs").trim())));
    }
    files("journal", &harness.path("state/journal"), &mut lines);
    files("inline", &harness.path("state/inline"), &mut lines);
    files("pool", &harness.path("pool/images"), &mut lines);
    files("shares of the node", &harness.path("state/nfs/nfs"), &mut lines);
    if let Ok(share) = std::env::var(super::story::NFS_SHARE) {
        let directory = Path::new(share.split_once(':').expect("server:/path").1);
        emptied(&directory.join(".longshore/trash"));
        // What is in a volume is read by the story itself.
        let names = fs::read_dir(directory).expect("the share").flatten().map(|entry| entry.file_name());
        lines.extend(names.map(|name| format!("share/{}/", name.to_string_lossy())));
        files("share/.longshore", &directory.join(".longshore"), &mut lines);
    }
    let base = harness.path(super::story::DIRECTORY);
    if base.is_dir() {
        emptied(&base.join(".longshore/trash"));
        let names = fs::read_dir(&base).expect("the base directory").flatten().map(|entry| entry.file_name());
        lines.extend(names.map(|name| format!("base/{}/", name.to_string_lossy())));
        files("base/.longshore", &base.join(".longshore"), &mut lines);
    }
    if let Ok(devices) = std::env::var(super::story::VOLUME_GROUP) {
        volume_group(&devices, &mut lines);
    }
    for number in [0, 1] {
        lines.extend(disk(&harness.path(&format!("pool/disk{number}"))));
    }
    files("iSCSI pool", &harness.path("pool/iscsi"), &mut lines);
    iscsi(&mut lines);
    lines.sort();
    lines
}

/// What is deleted is gone at once from where it was, and emptied behind its caller's back.
#[allow(clippy::disallowed_methods, reason = "a server tells no client when a directory is empty")]
fn emptied(trash: &Path) {
    let begun = Instant::now();
    while fs::read_dir(trash).is_ok_and(|mut entries| entries.next().is_some()) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{} is not emptied", trash.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What LVM has, and what is active of it: of the driver, not of the thin pool.
fn volume_group(devices: &str, lines: &mut Vec<String>) {
    let fields = "lv_name,lv_size,lv_attr,origin,lv_active,lv_tags";
    let lvs = ["lvs", "-qq", "--noheadings", "--devices", devices, "-o", fields, "@longshore"];
    lines.extend(run("lvm", lvs).lines().map(|line| {
        let tags = line.split(',').filter(|tag| !tag.contains("longshore.record."));
        tags.collect::<Vec<_>>().join(",")
    }));
    for entry in fs::read_dir("/sys/block").expect("sysfs").flatten() {
        let name = fs::read_to_string(entry.path().join("dm/name")).unwrap_or_default();
        if name.starts_with("vg0-longshore") {
            lines.push(format!("mapping: {}", name.trim()));
        }
    }
}

/// What the record of a disk says of its volume, but for numbers that grow, and for whether it is blank, which it says only until it was
/// connected once, be it in vain; nothing where the disk is free.
fn disk(image: &Path) -> Option<String> {
    const RECORD: usize = 1 << 20;
    let bytes = fs::read(image).ok()?;
    let copy = |at: usize| {
        let header = bytes.get(at..at + 64)?.strip_prefix(b"LONGSHORE RECORD")?;
        let number = |from: usize| u64::from_le_bytes(header[from..from + 8].try_into().expect("eight bytes"));
        let length = usize::try_from(number(8)).expect("a length");
        Some((number(0), serde_json::from_slice::<Value>(&bytes[at + 64..at + 64 + length]).expect("JSON")))
    };
    let (_, mut record) = [RECORD, RECORD + (64 << 10)].into_iter().filter_map(copy).max_by_key(|(sequence, _)| *sequence)?;
    let state = record["state"].take();
    let volume = state.as_object()?.values().next()?;
    let content = state.as_object()?.keys().next()?;
    Some(format!("disk: {content} {}", volume["id"]))
}

/// What this machine's kernel exports, and to what it is logged in.
fn iscsi(lines: &mut Vec<String>) {
    let names = |directory: &str| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    for session in names("/sys/class/iscsi_session") {
        let target = fs::read_to_string(session.join("targetname")).unwrap_or_default();
        lines.push(format!("session: {}", target.trim()));
    }
    for disk in names("/sys/class/scsi_disk") {
        let serial = fs::read_to_string(disk.join("device/wwid")).unwrap_or_default();
        lines.push(format!("disk: {}", if serial.is_empty() { "" } else { "of a unit" }));
    }
    for target in names("/sys/kernel/config/target/iscsi").iter().filter(|path| path.join("tpgt_1").is_dir()) {
        lines.push(format!("target: {}", target.file_name().expect("a name").to_string_lossy()));
        let within = |part: &str| names(&target.join("tpgt_1").join(part).display().to_string());
        for part in ["lun", "acls", "np"] {
            let parts = within(part).into_iter().filter(|path| path.is_dir());
            lines.extend(parts.map(|path| format!("{part}: {}", path.file_name().expect("a name").to_string_lossy())));
        }
    }
    for store in names("/sys/kernel/config/target/core").iter().filter(|path| path.is_dir() && !path.ends_with("alua")) {
        let objects = names(&store.display().to_string()).into_iter().filter(|path| path.is_dir());
        lines.extend(objects.map(|object| format!("backstore: {}", object.file_name().expect("a name").to_string_lossy())));
    }
}

fn mounts(harness: &Harness, lines: &mut Vec<String>) {
    let ours = harness.path("").display().to_string();
    let table = fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
    for line in table.lines() {
        // 36 35 98:0 /root /mount/point rw,noatime shared:1 - ext3 /dev/loop0 rw,errors=continue
        let fields: Vec<&str> = line.split(' ').collect();
        let dash = fields.iter().position(|field| *field == "-").expect("mountinfo's dash");
        let Some(place) = fields[4].strip_prefix(&ours).filter(|place| !place.starts_with("pool")) else { continue };
        let (root, source) = (without_number(fields[3]), without_number(fields[dash + 2]));
        // ext4 of Linux 6.1 tells one of its defaults at times.
        let own = fields[dash + 3].replace(",mb_optimize_scan=0", "");
        // The number of the subvolume on which a btrfs mount lies is another each time.
        let own = own.split(',').filter(|option| !option.starts_with("subvolid=")).collect::<Vec<_>>().join(",");
        let (fstype, options) = (fields[dash + 1], fields[5]);
        let metadata = fs::metadata(fields[4]).expect("a mount point");
        let size = if metadata.file_type().is_block_device() {
            let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
            let sys = format!("/sys/dev/block/{major}:{minor}");
            ["size", "ro"].map(|name| fs::read_to_string(format!("{sys}/{name}")).unwrap_or_default().trim().to_owned()).join("/")
        } else {
            rustix::fs::statvfs(fields[4]).expect("statvfs").f_blocks.to_string()
        };
        lines.push(format!("mount: {place}: {source} {fstype} root={root} {options} {own} size={size}"));
    }
}

/// `/dev/loop3` is `/dev/loop`, `/dev/dm-0` is `/dev/dm-`.
fn without_number(name: &str) -> &str {
    if name.contains("loop") || name.contains("/dm-") {
        name.trim_end_matches(|character: char| character.is_ascii_digit())
    } else if name.starts_with("/dev/sd") {
        "/dev/sd"
    } else {
        name
    }
}

/// Every file and directory, with its size, or with its content where that is JSON.
fn files(what: &str, directory: &Path, lines: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = format!("{what}/{}", entry.file_name().to_string_lossy());
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            lines.push(format!("{name}/"));
            // A share's mount, and what was copied of a volume on one.
            if !name.ends_with("/mount") && !name.ends_with("/data") {
                files(&name, &path, lines);
            }
        } else if name != "pool/lock" && !name.ends_with("pool/index") {
            // The index is a cache: it also has lines about what was deleted.
            let text = if name.ends_with(".json") { fs::read(&path).unwrap_or_default() } else { Vec::new() };
            match serde_json::from_slice::<Value>(&text) {
                Ok(mut value) => {
                    forget(&mut value);
                    lines.push(format!("{name}: {value}"));
                }
                Err(_) => lines.push(format!("{name}: {} bytes", metadata.len())),
            }
        }
    }
}

/// What is another in each run. `provisioned` is what a snapshot has allocated, which the file system rounds as it likes.
fn forget(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for name in ["created", "promised", "number", "inode", "identity", "device", "keys"] {
                fields.remove(name);
            }
            if let Some(Value::String(path)) = fields.get_mut("path") {
                *path = without_number(path).to_owned();
            }
            fields.values_mut().for_each(forget);
        }
        Value::Array(items) => items.iter_mut().for_each(forget),
        _ => {}
    }
}

//! mkfs, never forced.

use std::time::Duration;

use rustix::io::Errno;

use super::*;
use crate::os::process::{Output, Run, Tool, run};

/// Long enough for a slow disk of many TiB; short enough that a dead one is reported.
const LONGEST: Duration = Duration::from_secs(15 * 60);

const LOST_A_RACE: &str = "cannot check mount status of";
/// Of mkfs.ext4, which opens the device exclusively, and of the others.
const IN_USE: [&str; 2] = ["is apparently in use by the system", "Device or resource busy"];

/// Makes a file system on the open device (by `/proc/self/fd`), with `options` before the device, and syncs it.
/// The caller has proven the device blank on this same descriptor, and has it open for writing. mkfs.xfs and mkfs.btrfs look
/// again themselves; mkfs.ext4 does so only for a terminal.
///
/// With a `mark`, which the caller has written, the file system has its UUID, and ends before it. `None` only where something else on the
/// medium says that a format is in progress (a LUKS header).
///
/// # Errors
/// `Tool` with what mkfs said (an option that it does not know, a signature that it found); EBUSY where something else has the device,
/// and nothing was written; `ToolMissing`; `Deadline`, after which the device holds a part.
pub fn mkfs(device: &Device, fstype: FsType, options: &[String], mark: Option<&Mark>) -> Result<()> {
    let tool = match fstype {
        FsType::Ext4 => Tool { name: "mkfs.ext4", package: "e2fsprogs" },
        FsType::Xfs => Tool { name: "mkfs.xfs", package: "xfsprogs" },
        FsType::Btrfs => Tool { name: "mkfs.btrfs", package: "btrfs-progs" },
    };
    let arguments = arguments(&device.argument(), device.size()?, fstype, options, mark);
    let output = attempts(|| {
        let keep = vec![device.file().as_fd()];
        run(Run { tool, arguments: arguments.clone(), keep, stdin: Vec::new(), deadline: LONGEST })
    })?;
    match output.failure(&[0]) {
        None => device.flush(),
        Some(_) if IN_USE.iter().any(|said| output.stderr.contains(said)) => {
            Err(Error::Io { action: "make a file system on", object: device_name(device), source: Errno::BUSY.into() })
        }
        Some(status) => Err(Error::Tool { tool: tool.name, object: device_name(device), status, output: reason(&output.stderr) }),
    }
}

fn arguments(device: &str, size: u64, fstype: FsType, options: &[String], mark: Option<&Mark>) -> Vec<String> {
    let mut arguments = vec!["-q".to_owned()];
    arguments.extend_from_slice(options);
    let after = mark.and_then(|mark| beside_mark(mark, fstype, size, &mut arguments));
    arguments.push(device.to_owned());
    arguments.extend(after);
    arguments
}

/// Adds what keeps the mark on the device and its UUID in the file system, where `arguments` do not say otherwise. Returns what comes
/// after the device.
fn beside_mark(mark: &Mark, fstype: FsType, device_size: u64, arguments: &mut Vec<String>) -> Option<String> {
    let given: Vec<String> = arguments.clone();
    let mut add = |option: &str, part: &str, value: String| {
        if !says(&given, option, part) {
            arguments.extend([option.to_owned(), format!("{part}{value}")]);
        }
    };
    let size = mark::filesystem_size(fstype, device_size);
    match fstype {
        FsType::Ext4 => {
            add("-U", "", mark.uuid.clone());
            return size.map(|size| format!("{}k", size >> 10));
        }
        FsType::Xfs => {
            add("-m", "uuid=", mark.uuid.clone());
            size.into_iter().for_each(|size| add("-d", "size=", size.to_string()));
            // It would discard all of the device, the mark too; what is blank need not be discarded.
            arguments.push("-K".to_owned());
        }
        FsType::Btrfs => {
            if !given.iter().any(|word| word.starts_with("--uuid=")) {
                add("-U", "", mark.uuid.clone());
            }
            size.into_iter().for_each(|size| add("-b", "", size.to_string()));
        }
    }
    None
}

/// Whether these arguments hold the option, with this part in its value (`-d agcount=4,size=...`, `-dsize=...`).
fn says(arguments: &[String], option: &str, part: &str) -> bool {
    let values = arguments.iter().zip(arguments.iter().skip(1).map(Some).chain([None])).filter_map(|(word, next)| {
        let glued = word.strip_prefix(option)?;
        if glued.is_empty() { next.map(String::as_str) } else { Some(glued) }
    });
    values.flat_map(|value| value.split(',')).any(|value| value.starts_with(part))
}

/// mkfs.btrfs asks every mounted loop device what it shows, and gives up, before it writes anything, where one of them went
/// away in between: on a busy node that is no error, and soon over.
fn attempts(mut run: impl FnMut() -> Result<Output>) -> Result<Output> {
    const MOST: usize = 8;
    let mut output = run()?;
    for _ in 1..MOST {
        if output.failure(&[0]).is_none() || !output.stderr.contains(LOST_A_RACE) {
            break;
        }
        output = run()?;
    }
    Ok(output)
}

/// The first lines: what is wrong comes before a page of usage.
fn reason(stderr: &str) -> String {
    const MOST: usize = 6;
    let lines: Vec<&str> = stderr.trim().lines().collect();
    match lines.get(..MOST) {
        Some(first) if lines.len() > MOST => format!("{} ...", first.join("\n")),
        _ => lines.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::OpenOptionsExt;
    use std::time::{Duration, Instant};

    use super::interrupted::{killed_at_write, writes};
    use super::testing::{Loop, Mounted, in_namespace};
    use super::*;
    use crate::os::udev;

    const MIB: u64 = 1 << 20;

    #[test]
    fn each_is_made_and_can_be_mounted() {
        in_namespace(|| {
            for fstype in FsType::ALL {
                let Some(under) = Loop::new(400 * MIB) else { return };
                let device = Device::open(&under.device, true).unwrap();
                mkfs(&device, fstype, &["-L".to_owned(), "ours".to_owned()], None).unwrap();
                assert_eq!(probe(&device, Evidence::None).unwrap(), Contents::Filesystem(fstype));
                let directory = tempfile::tempdir().unwrap();
                let _mounted = Mounted::new(&under.device, directory.path(), fstype.as_str());
                let label = testing::tool("lsblk", &["-nro", "LABEL", under.name()]);
                assert!(label.is_none_or(|label| label.trim() == "ours" || label.trim().is_empty()));
            }
        });
    }

    /// The tools' own second look, since we never force them.
    #[test]
    fn existing_file_system_is_not_overwritten() {
        for fstype in [FsType::Xfs, FsType::Btrfs] {
            let Some(under) = Loop::new(400 * MIB) else { return };
            let device = Device::open(&under.device, true).unwrap();
            mkfs(&device, FsType::Ext4, &[], None).unwrap();
            let error = mkfs(&device, fstype, &[], None).unwrap_err();
            assert!(matches!(&error, Error::Tool { object, .. } if object.starts_with("/dev/loop")), "{error}");
            assert_eq!(probe(&device, Evidence::None).unwrap(), Contents::Filesystem(FsType::Ext4));
        }
    }

    /// In place of one that goes away at the wrong instant: a mount of a loop device that cannot be asked, until it is unmounted.
    #[test]
    fn a_loop_device_that_goes_away_meanwhile_is_no_failure() {
        in_namespace(|| {
            let Some(under) = Loop::new(400 * MIB) else { return };
            let directory = tempfile::tempdir().unwrap();
            let [outer, inner] = ["", "inner"].map(|name| directory.path().join(name).display().to_string());
            let node = directory.path().join("gone").display().to_string();
            testing::tool("mount", &["-t", "tmpfs", "-o", "nodev", "outer", &outer]).unwrap();
            fs::create_dir(&inner).unwrap();
            testing::tool("mknod", &[&node, "b", "7", "0"]).unwrap();
            testing::tool("mount", &["-t", "tmpfs", &node, &inner]).unwrap();
            let device = Device::open(&under.device, true).unwrap();
            let run = |tool, arguments: &[&str]| {
                let arguments = arguments.iter().map(|argument| (*argument).to_owned()).chain([device.argument()]).collect();
                let keep = vec![device.file().as_fd()];
                run(Run { tool, arguments, keep, stdin: Vec::new(), deadline: LONGEST })
            };
            let mut times = 0;
            let output = attempts(|| {
                times += 1;
                if times == 3 {
                    testing::tool("umount", &[&inner]).unwrap();
                }
                run(Tool { name: "mkfs.btrfs", package: "btrfs-progs" }, &["-q"])
            });
            assert_eq!((output.unwrap().status, times), (Ok(0), 3));
            assert_eq!(probe(&device, Evidence::None).unwrap(), Contents::Filesystem(FsType::Btrfs));
            let mut times = 0;
            let refused = attempts(|| {
                times += 1;
                run(Tool { name: "mkfs.btrfs", package: "btrfs-progs" }, &["-q"])
            });
            assert_eq!((refused.unwrap().status, times), (Ok(1), 1), "it is not tried again over what is there");
            testing::tool("umount", &[&outer]).unwrap();
        });
    }

    /// At whichever of its writes mkfs is killed: the medium says that its format was interrupted, and nothing else is taken for it.
    #[test]
    fn mkfs_killed_at_any_write_is_reported_by_its_mark() {
        let mut kills = 0;
        for (fstype, name) in [(FsType::Ext4, "mkfs.ext4"), (FsType::Xfs, "mkfs.xfs"), (FsType::Btrfs, "mkfs.btrfs")] {
            for number in writes() {
                let Some(under) = Loop::new(320 * MIB) else { return };
                let device = Device::open(&under.device, true).unwrap();
                let mark = Mark::new(&device, mark::Purpose::Filesystem(fstype)).unwrap();
                mark.write(&device).unwrap();
                let arguments = arguments(under.name(), device.size().unwrap(), fstype, &[], Some(&mark));
                let killed = killed_at_write(name, &arguments.iter().map(String::as_str).collect::<Vec<_>>(), number);
                let probed = probe_marked(&device, Evidence::None, None).unwrap();
                // mkfs.btrfs has written everything but copies of its superblock when the first one is valid.
                let whole = fstype == FsType::Btrfs && probed.contents == Contents::Filesystem(fstype);
                let marks = (probed.mark.as_ref(), probed.finished.as_ref());
                let expected = if whole { (None, Some(&mark)) } else { (Some(&mark), None) };
                assert_eq!(marks, expected, "{name} killed at write {number}: {:?}", probed.contents);
                if whole {
                    let directory = tempfile::tempdir().unwrap();
                    let _mounted = Mounted::new(&under.device, directory.path(), "btrfs");
                }
                match probed.contents {
                    Contents::Blank | Contents::Unknown(_) => {}
                    Contents::Filesystem(found) => assert_eq!(found, fstype, "killed at write {number}"),
                    Contents::Other(what) => assert!(what.contains(fstype.as_str()), "killed at write {number}: {what}"),
                }
                if !killed {
                    break;
                }
                kills += 1;
            }
        }
        println!("FIGURE: killed at each write of mkfs: {kills} kills");
    }

    #[test]
    fn options_of_the_user_go_before_ours() {
        let arguments = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (words, option, part, expected) in [
            ("-q -d agcount=4,size=300m", "-d", "size=", true),
            ("-q -dsize=300m", "-d", "size=", true),
            ("-q -l size=64m", "-d", "size=", false),
            ("-q -b size=1024", "-d", "size=", false),
            ("-q -m crc=1,uuid=a", "-m", "uuid=", true),
            ("-q -U", "-U", "", false),
            ("-q -U a", "-U", "", true),
        ] {
            assert_eq!(says(&arguments(words), option, part), expected, "{words}");
        }
    }

    #[test]
    fn device_in_use_is_reported_as_busy_and_stays_blank() {
        let Some(under) = Loop::new(400 * MIB) else { return };
        let device = Device::open(&under.device, true).unwrap();
        let claimed = fs::File::options().read(true).custom_flags(libc::O_EXCL).open(&under.device).unwrap();
        for fstype in [FsType::Ext4, FsType::Xfs, FsType::Btrfs] {
            let error = mkfs(&device, fstype, &[], None).unwrap_err();
            assert_eq!(error.errno(), Some(libc::EBUSY), "{error}");
            assert_eq!(probe(&device, Evidence::None).unwrap(), Contents::Blank, "{fstype:?}");
        }
        drop(claimed);
        // A program that another test started meanwhile has what was open here until its exec.
        let made = udev::wait_until(Instant::now().checked_add(Duration::from_secs(10)), || {
            match mkfs(&device, FsType::Ext4, &[], None) {
                Err(error) if error.errno() == Some(libc::EBUSY) => Ok(false),
                other => other.map(|()| true),
            }
        });
        assert!(made.unwrap(), "still busy");
    }

    #[test]
    fn a_bad_option_is_reported_in_the_words_of_the_tool() {
        let Some(under) = Loop::new(400 * MIB) else { return };
        let device = Device::open(&under.device, true).unwrap();
        let error = mkfs(&device, FsType::Xfs, &["-m".to_owned(), "nonsense=1".to_owned()], None).unwrap_err();
        assert!(matches!(&error, Error::Tool { tool: "mkfs.xfs", output, .. } if output.contains("nonsense")), "{error}");
        assert_eq!(probe(&device, Evidence::None).unwrap(), Contents::Blank);
    }
}

//! mkfs, never forced.

use std::time::Duration;

use super::*;
use crate::os::process::{Output, Run, Tool, run};

/// Long enough for a slow disk of many TiB; short enough that a dead one is told about.
const LONGEST: Duration = Duration::from_secs(15 * 60);

const LOST_A_RACE: &str = "cannot check mount status of";

/// Makes a file system on the open device (by `/proc/self/fd`), with `options` before the device, and syncs it.
/// The caller has proven the device blank on this same descriptor, and has it open for writing. mkfs.xfs and mkfs.btrfs look
/// again themselves; mkfs.ext4 does so only for a terminal.
///
/// # Errors
/// `Tool` with what mkfs said (an option that it does not know, a signature that it found); `ToolMissing`; `Deadline`, after
/// which the device holds a part.
pub fn mkfs(device: &Device, fstype: FsType, options: &[String]) -> Result<()> {
    let tool = match fstype {
        FsType::Ext4 => Tool { name: "mkfs.ext4", package: "e2fsprogs" },
        FsType::Xfs => Tool { name: "mkfs.xfs", package: "xfsprogs" },
        FsType::Btrfs => Tool { name: "mkfs.btrfs", package: "btrfs-progs" },
    };
    let mut arguments = vec!["-q".to_owned()];
    arguments.extend_from_slice(options);
    arguments.push(device.argument());
    let output = attempts(|| {
        let keep = vec![device.file().as_fd()];
        run(Run { tool, arguments: arguments.clone(), keep, stdin: Vec::new(), deadline: LONGEST })
    })?;
    match output.failure(&[0]) {
        None => device.flush(),
        Some(status) => Err(Error::Tool { tool: tool.name, object: device_name(device), status, output: reason(&output.stderr) }),
    }
}

/// mkfs.btrfs asks every mounted loop device what it shows, and gives up, before it writes anything, where one of them went
/// away in between: on a busy node that is nobody's error, and soon over.
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

    use super::testing::{Loop, Mounted, in_namespace};
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn each_is_made_and_can_be_mounted() {
        in_namespace(|| {
            for fstype in FsType::ALL {
                let Some(under) = Loop::new(400 * MIB) else { return };
                let device = Device::open(&under.device, true).unwrap();
                mkfs(&device, fstype, &["-L".to_owned(), "ours".to_owned()]).unwrap();
                assert_eq!(probe(&device, Evidence::None).unwrap(), Contents::Filesystem(fstype));
                let folder = tempfile::tempdir().unwrap();
                let _mounted = Mounted::new(&under.device, folder.path(), fstype.as_str());
                let label = testing::tool("lsblk", &["-nro", "LABEL", under.name()]);
                assert!(label.is_none_or(|label| label.trim() == "ours" || label.trim().is_empty()));
            }
        });
    }

    /// The tools' own second look, since we never force them.
    #[test]
    fn what_is_there_is_not_overwritten() {
        for fstype in [FsType::Xfs, FsType::Btrfs] {
            let Some(under) = Loop::new(400 * MIB) else { return };
            let device = Device::open(&under.device, true).unwrap();
            mkfs(&device, FsType::Ext4, &[]).unwrap();
            let error = mkfs(&device, fstype, &[]).unwrap_err();
            assert!(matches!(&error, Error::Tool { object, .. } if object.starts_with("/dev/loop")), "{error}");
            assert_eq!(probe(&device, Evidence::None).unwrap(), Contents::Filesystem(FsType::Ext4));
        }
    }

    /// In place of one that goes away at the wrong instant: a mount of a loop device that cannot be asked, until it is unmounted.
    #[test]
    fn a_loop_device_that_goes_away_meanwhile_is_no_failure() {
        in_namespace(|| {
            let Some(under) = Loop::new(400 * MIB) else { return };
            let folder = tempfile::tempdir().unwrap();
            let [outer, inner] = ["", "inner"].map(|name| folder.path().join(name).display().to_string());
            let node = folder.path().join("gone").display().to_string();
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

    #[test]
    fn a_bad_option_is_told_in_the_words_of_the_tool() {
        let Some(under) = Loop::new(400 * MIB) else { return };
        let device = Device::open(&under.device, true).unwrap();
        let error = mkfs(&device, FsType::Xfs, &["-m".to_owned(), "nonsense=1".to_owned()]).unwrap_err();
        assert!(matches!(&error, Error::Tool { tool: "mkfs.xfs", output, .. } if output.contains("nonsense")), "{error}");
        assert_eq!(probe(&device, Evidence::None).unwrap(), Contents::Blank);
    }
}

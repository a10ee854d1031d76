//! mkfs, never forced.

use std::time::Duration;

use super::*;
use crate::os::process::{Run, Tool, run};

/// Long enough for a slow disk of many TiB; short enough that a dead one is told about.
const LONGEST: Duration = Duration::from_secs(15 * 60);

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
    arguments.push(device_argument(device));
    let command = Run { tool, arguments, keep: vec![device.file().as_fd()], stdin: Vec::new(), deadline: LONGEST };
    let output = run(command)?;
    let status = match output.status {
        Ok(0) => return device.flush(),
        Ok(code) => format!("exit status {code}"),
        Err(signal) => format!("killed by signal {signal}"),
    };
    Err(Error::Tool { tool: tool.name, object: device_name(device), status, output: reason(&output.stderr) })
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
                assert_eq!(probe(&device, None).unwrap(), Contents::Filesystem(fstype));
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
            assert_eq!(probe(&device, None).unwrap(), Contents::Filesystem(FsType::Ext4));
        }
    }

    #[test]
    fn a_bad_option_is_told_in_the_words_of_the_tool() {
        let Some(under) = Loop::new(400 * MIB) else { return };
        let device = Device::open(&under.device, true).unwrap();
        let error = mkfs(&device, FsType::Xfs, &["-m".to_owned(), "nonsense=1".to_owned()]).unwrap_err();
        assert!(matches!(&error, Error::Tool { tool: "mkfs.xfs", output, .. } if output.contains("nonsense")), "{error}");
        assert_eq!(probe(&device, None).unwrap(), Contents::Blank);
    }
}

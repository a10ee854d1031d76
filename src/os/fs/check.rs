//! The check before a mount.

use std::time::Duration;

use super::*;
use crate::os::process::{Output, Run, Tool, run_ok};

const E2FSCK: Tool = Tool { name: "e2fsck", package: "e2fsprogs" };
/// A full check reads all metadata, of a large and slow disk for hours.
const LONGEST: Duration = Duration::from_secs(6 * 3600);
/// e2fsck's status has a bit for each: errors were mended; the system should be rebooted, which is meant for a mounted root.
const MENDED: i32 = 1;
const REBOOT: i32 = 2;

/// What the check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    Clean,
    /// It had errors and mended them.
    Mended,
}

/// ext4: `e2fsck -p`; xfs and btrfs check themselves when mounted (xfs replays its log, fsck.xfs does nothing), so nothing.
/// A clean ext4 is not read through; one that was cut off has its journal replayed, and counts as clean.
///
/// # Errors
/// `Tool` where errors are left, with what to run by hand.
pub fn check(device: &Device, fstype: FsType) -> Result<Checked> {
    match fstype {
        FsType::Ext4 => e2fsck(device, &["-p"]),
        FsType::Xfs | FsType::Btrfs => Ok(Checked::Clean),
    }
}

/// How much a full check may mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mend {
    /// What can be mended without a person's judgement.
    Safely,
    /// Everything. For damage of which we know that it is our own resize2fs's, which was cut off: it leaves an invalid resize inode,
    /// which `-p` refuses, and bitmaps and a superblock in the making, all of which is derived anew.
    All,
}

/// Reads an ext4 through: `e2fsck -fp`, or `-fy`. resize2fs wants to see a check that is newer than the last mount.
///
/// # Errors
/// `Tool` where errors are left.
pub fn check_fully(device: &Device, mend: Mend) -> Result<Checked> {
    e2fsck(device, &["-f", if mend == Mend::All { "-y" } else { "-p" }])
}

/// The device must not be mounted; e2fsck refuses if it is.
fn e2fsck(device: &Device, options: &[&str]) -> Result<Checked> {
    let name = device_name(device);
    let mut arguments: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    arguments.push(device.argument());
    let command = Run { tool: E2FSCK, arguments, keep: vec![device.file().as_fd()], stdin: Vec::new(), deadline: LONGEST };
    match run_ok(command, &name, &[0, MENDED, REBOOT, MENDED | REBOOT]) {
        Ok(Output { status: Ok(0), .. }) => Ok(Checked::Clean),
        Ok(_) => Ok(Checked::Mended),
        Err(Error::Tool { tool, object, status, output }) => {
            let output = format!(
                "{output}\nIt was left as it is. With the volume unstaged, run `e2fsck -f` on its storage, but not as {name}: by then \
                 that may be another's"
            );
            Err(Error::Tool { tool, object, status, output })
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Loop, Mounted, in_namespace, tool};
    use super::*;

    fn debugfs(device: &Loop, request: &str) -> Option<String> {
        tool("debugfs", &["-w", "-R", request, device.name()])
    }

    #[test]
    fn clean_mended_and_beyond_mending() {
        let Some(under) = Loop::new(64 << 20) else { return };
        let device = Device::open(&under.device, true).unwrap();
        mkfs(&device, FsType::Ext4, &[]).unwrap();
        assert_eq!(check(&device, FsType::Ext4).unwrap(), Checked::Clean);

        // A count that is wrong is safe to mend.
        debugfs(&under, "set_super_value free_blocks_count 7").unwrap();
        debugfs(&under, "set_super_value state 2").unwrap();
        assert_eq!(check(&device, FsType::Ext4).unwrap(), Checked::Mended);
        assert_eq!(check(&device, FsType::Ext4).unwrap(), Checked::Clean);

        // A root folder that is none is not.
        debugfs(&under, "clri <2>").unwrap();
        debugfs(&under, "set_super_value state 2").unwrap();
        let error = check(&device, FsType::Ext4).unwrap_err().to_string();
        assert!(error.contains("exit status 4") && error.contains("run `e2fsck -f`") && error.contains(under.name()), "{error}");
    }

    #[test]
    fn one_that_was_cut_off_is_replayed() {
        in_namespace(|| {
            let Some(under) = Loop::new(64 << 20) else { return };
            let device = Device::open(&under.device, true).unwrap();
            mkfs(&device, FsType::Ext4, &[]).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let mounted = Mounted::new(&under.device, folder.path(), "ext4");
            let refused = check(&device, FsType::Ext4).unwrap_err();
            assert!(matches!(refused, Error::Tool { .. }), "{refused}");
            std::fs::File::create(folder.path().join("file")).unwrap().sync_all().unwrap();

            // The image as a power cut would leave it, on another device.
            let Some(copy) = Loop::new(64 << 20) else { return };
            tool(
                "dd",
                &[&format!("if={}", under.name()), &format!("of={}", copy.name()), "bs=1M", "status=none", "iflag=direct"],
            );
            let device = Device::open(&copy.device, true).unwrap();
            assert!(matches!(check(&device, FsType::Ext4), Ok(Checked::Clean | Checked::Mended)));
            drop(mounted);
            let _mounted = Mounted::new(&copy.device, folder.path(), "ext4");
            assert!(folder.path().join("file").exists());
        });
    }

    #[test]
    fn the_others_check_themselves() {
        let Some(under) = Loop::new(64 << 20) else { return };
        let device = Device::open(&under.device, true).unwrap();
        assert_eq!(check(&device, FsType::Xfs).unwrap(), Checked::Clean);
        assert_eq!(check(&device, FsType::Btrfs).unwrap(), Checked::Clean);
    }
}

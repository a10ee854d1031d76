//! The check before a mount.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::io::Errno;

use super::*;
use crate::os::process::{Output, Run, Tool, run};

const BTRFS: Tool = Tool { name: "btrfs", package: "btrfs-progs" };
const E2FSCK: Tool = Tool { name: "e2fsck", package: "e2fsprogs" };
/// A full check reads all metadata, of a large and slow disk for hours.
const LONGEST: Duration = Duration::from_secs(6 * 3600);
/// e2fsck's status has a bit for each: errors were repaired; the system should be rebooted, which is meant for a mounted root.
const REPAIRED: i32 = 1;
const REBOOT: i32 = 2;
/// It could not begin.
const FAILED: i32 = 8;

/// What the check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    Clean,
    /// It had errors and repaired them.
    Repaired,
    /// An earlier check was interrupted while it wrote the superblock.
    Completed,
}

/// ext4: `e2fsck -p`; xfs and btrfs check themselves when mounted (xfs replays its log, fsck.xfs does nothing), so nothing.
/// A clean ext4 is not read through; one that was interrupted has its journal replayed, and counts as clean.
///
/// # Errors
/// `Tool` where errors are left, with what to run by hand.
pub fn check(device: &Device, fstype: FsType) -> Result<Checked> {
    match fstype {
        FsType::Ext4 => e2fsck(device, &["-p"]),
        FsType::Xfs | FsType::Btrfs => Ok(Checked::Clean),
    }
}

/// How much a full check may repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// What can be repaired without a person's judgement.
    Safely,
    /// Everything. For damage of which we know that it is our own resize2fs's, which was interrupted: it leaves an invalid resize inode,
    /// which `-p` refuses, and bitmaps and a superblock in the making, all of which is derived anew.
    All,
}

/// Reads an ext4 through: `e2fsck -fp`, or `-fy`. resize2fs wants to see a check that is newer than the last mount.
///
/// # Errors
/// `Tool` where errors are left.
pub fn check_fully(device: &Device, repair: Repair) -> Result<Checked> {
    e2fsck(device, &["-f", if repair == Repair::All { "-y" } else { "-p" }])
}

/// Reads all metadata of a btrfs that is not mounted, and writes nothing: btrfs-check(8).
///
/// # Errors
/// `Tool` where it has errors, or is mounted.
pub(super) fn check_btrfs(device: &Device) -> Result<()> {
    let arguments = ["check", "--readonly", "--", &device.argument()].map(str::to_owned).to_vec();
    let output = run(Run { tool: BTRFS, arguments, keep: vec![device.file().as_fd()], stdin: Vec::new(), deadline: LONGEST })?;
    output.accepted(BTRFS.name, &device_name(device), &[0]).map(drop)
}

/// The device must not be mounted; e2fsck refuses if it is.
fn e2fsck(device: &Device, options: &[&str]) -> Result<Checked> {
    let mut output = run_e2fsck(device, options)?;
    let completed = output.status == Ok(FAILED) && complete_superblock(device)?;
    if completed {
        output = run_e2fsck(device, options)?;
    }
    let name = device_name(device);
    // It opens a block device exclusively. What it finds in use is not damaged, and may be free a moment later.
    if output.status == Ok(FAILED) && output.stdout.contains("is in use") {
        return Err(Error::Io { action: "check the file system of", object: name, source: Errno::BUSY.into() });
    }
    match output.accepted(E2FSCK.name, &name, &[0, REPAIRED, REBOOT, REPAIRED | REBOOT]) {
        Ok(_) if completed => Ok(Checked::Completed),
        Ok(Output { status: Ok(0), .. }) => Ok(Checked::Clean),
        Ok(_) => Ok(Checked::Repaired),
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

fn run_e2fsck(device: &Device, options: &[&str]) -> Result<Output> {
    let mut arguments: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    arguments.push(device.argument());
    run(Run { tool: E2FSCK, arguments, keep: vec![device.file().as_fd()], stdin: Vec::new(), deadline: LONGEST })
}

/// Writes the checksum of a superblock that an e2fsck left half written when it was killed with an earlier driver. Says whether it was one.
///
/// e2fsck itself would take a backup superblock (not with `-p`), and with it the old descriptions of all groups: killed again before it
/// has set those right, it leaves them with a superblock that is valid.
fn complete_superblock(device: &Device) -> Result<bool> {
    const PLACE: u64 = 1024;
    let failed = |action, error| Error::io(action, device.path(), error);
    let read = |at| {
        let mut bytes = [0; superblock::EXT4_LENGTH];
        device.file().read_exact_at(&mut bytes, at).map(|()| bytes)
    };
    let first = read(PLACE).map_err(|error| failed("read superblock of", error))?;
    // A small file system has no backup.
    let Some(Ok(backup)) = superblock::ext4_backup(&first).map(read) else { return Ok(false) };
    let Some(completed) = superblock::ext4_completed(&first, &backup) else { return Ok(false) };
    device.file().write_all_at(&completed, PLACE).map_err(|error| failed("complete superblock of", error))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::OpenOptionsExt;

    use super::interrupted::{ext4_interrupted, is_whole_ext4, killed_at_write, writes};
    use super::testing::{Loop, Mounted, in_namespace, tool};
    use super::*;

    fn debugfs(device: &Loop, request: &str) -> Option<String> {
        tool("debugfs", &["-w", "-R", request, device.name()])
    }

    #[test]
    fn clean_repaired_and_beyond_repairing() {
        let Some(under) = Loop::new(64 << 20) else { return };
        let device = Device::open(&under.device, true).unwrap();
        mkfs(&device, FsType::Ext4, &[], None).unwrap();
        assert_eq!(check(&device, FsType::Ext4).unwrap(), Checked::Clean);

        // A count that is wrong is safe to repair.
        debugfs(&under, "set_super_value free_blocks_count 7").unwrap();
        debugfs(&under, "set_super_value state 2").unwrap();
        assert_eq!(check(&device, FsType::Ext4).unwrap(), Checked::Repaired);
        assert_eq!(check(&device, FsType::Ext4).unwrap(), Checked::Clean);

        // A root directory that is none is not.
        debugfs(&under, "clri <2>").unwrap();
        debugfs(&under, "set_super_value state 2").unwrap();
        let error = check(&device, FsType::Ext4).unwrap_err().to_string();
        assert!(error.contains("exit status 4") && error.contains("run `e2fsck -f`") && error.contains(under.name()), "{error}");
    }

    #[test]
    fn device_in_use_is_reported_as_busy_and_not_as_damaged() {
        let Some(under) = Loop::new(64 << 20) else { return };
        let device = Device::open(&under.device, true).unwrap();
        mkfs(&device, FsType::Ext4, &[], None).unwrap();
        let claimed = File::options().read(true).custom_flags(libc::O_EXCL).open(&under.device).unwrap();
        for refused in [check(&device, FsType::Ext4), check_fully(&device, Repair::All)] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.errno(), Some(libc::EBUSY), "{refused}");
        }
        drop(claimed);
        assert_eq!(check(&device, FsType::Ext4).unwrap(), Checked::Clean);
    }

    #[test]
    fn one_that_was_interrupted_is_replayed() {
        in_namespace(|| {
            let Some(under) = Loop::new(64 << 20) else { return };
            let device = Device::open(&under.device, true).unwrap();
            mkfs(&device, FsType::Ext4, &[], None).unwrap();
            let directory = tempfile::tempdir().unwrap();
            let mounted = Mounted::new(&under.device, directory.path(), "ext4");
            let refused = check(&device, FsType::Ext4).unwrap_err();
            assert!(matches!(refused, Error::Tool { .. }), "{refused}");
            File::create(directory.path().join("file")).unwrap().sync_all().unwrap();

            // The image as a power cut would leave it, on another device.
            let Some(copy) = Loop::new(64 << 20) else { return };
            tool(
                "dd",
                &[&format!("if={}", under.name()), &format!("of={}", copy.name()), "bs=1M", "status=none", "iflag=direct"],
            );
            let device = Device::open(&copy.device, true).unwrap();
            assert!(matches!(check(&device, FsType::Ext4), Ok(Checked::Clean | Checked::Repaired)));
            drop(mounted);
            let _mounted = Mounted::new(&copy.device, directory.path(), "ext4");
            assert!(directory.path().join("file").exists());
        });
    }

    /// e2fsck writes a superblock in pieces, its checksum last.
    #[test]
    fn killed_at_any_write_it_is_done_by_the_next() {
        in_namespace(|| {
            let Some(replayed) = ext4_interrupted(24 << 20) else { return };
            let Some(under) = Loop::new(24 << 20) else { return };
            let device = Device::open(&under.device, true).unwrap();
            // With errors: the file's blocks and inode count as free.
            device.file().write_all_at(&replayed, 0).unwrap();
            check(&device, FsType::Ext4).unwrap();
            for request in ["freei file", "freeb 1500 3", "set_super_value free_blocks_count 7", "set_super_value state 2"] {
                debugfs(&under, request).unwrap();
            }
            let mut repaired = vec![0; 24 << 20];
            device.file().read_exact_at(&mut repaired, 0).unwrap();

            let (mut kills, mut completed) = (0, 0);
            for (bytes, options) in [(&replayed, &["-p"][..]), (&replayed, &["-f", "-p"]), (&repaired, &["-p"])] {
                for number in writes() {
                    device.file().write_all_at(bytes, 0).unwrap();
                    let killed = killed_at_write("e2fsck", &[options, &[under.name()]].concat(), number);
                    assert!(killed || number > 10, "it wrote less than this test needs");
                    let checked = check(&device, FsType::Ext4);
                    assert!(checked.is_ok(), "{options:?} killed at write {number}: {checked:?}");
                    assert!(is_whole_ext4(&under), "{options:?} killed at write {number}");
                    kills += u32::from(killed);
                    completed += u32::from(checked.unwrap() == Checked::Completed);
                    if !killed {
                        break;
                    }
                }
            }
            assert!(completed > 0, "no superblock was half written");
            println!("FIGURE: killed at each write of e2fsck: {kills} kills, {completed} superblocks completed");
        });
    }

    #[test]
    fn a_superblock_that_is_damaged_otherwise_is_not_written() {
        let Some(under) = Loop::new(24 << 20) else { return };
        let device = Device::open(&under.device, true).unwrap();
        mkfs(&device, FsType::Ext4, &[], None).unwrap();
        let file = device.file();
        let mut whole = vec![0; 24 << 20];
        file.read_exact_at(&mut whole, 0).unwrap();
        let (mount_count, identity, checksum_of_backup) = (1024 + 0x34, 1024 + 0x68, 8193 * 1024 + 0x3fc);
        for damaged in [vec![identity], vec![mount_count, identity], vec![mount_count, checksum_of_backup]] {
            file.write_all_at(&whole, 0).unwrap();
            for at in &damaged {
                file.write_all_at(&[!whole[*at]], u64::try_from(*at).unwrap()).unwrap();
            }
            let before = std::fs::read(under.name()).unwrap();
            let error = check(&device, FsType::Ext4).unwrap_err().to_string();
            assert!(error.contains("exit status 8") && error.contains("run `e2fsck -f`"), "{damaged:?}: {error}");
            assert!(before == std::fs::read(under.name()).unwrap(), "{damaged:?}: it was written to");
        }
        file.write_all_at(&whole, 0).unwrap();
        file.write_all_at(&[!whole[mount_count]], u64::try_from(mount_count).unwrap()).unwrap();
        assert_eq!(check(&device, FsType::Ext4).unwrap(), Checked::Completed);
    }

    #[test]
    fn the_others_check_themselves() {
        let Some(under) = Loop::new(64 << 20) else { return };
        let device = Device::open(&under.device, true).unwrap();
        assert_eq!(check(&device, FsType::Xfs).unwrap(), Checked::Clean);
        assert_eq!(check(&device, FsType::Btrfs).unwrap(), Checked::Clean);
    }
}

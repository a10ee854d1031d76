//! How a connected device becomes a mounted file system.

use crate::os::fs::Contents;
use crate::os::fs::mark::Purpose;
use crate::volume::{Error, FsType, Result, VolumeId};

use super::remedy::wipe_remedy;

/// What a connected device showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceContents {
    pub volume: VolumeId,
    /// `/dev/loop3`, for messages.
    pub device: String,
    pub contents: Contents,
    /// A format of ours that was interrupted, as the medium itself says: by its mark, or by the LUKS header over it. The device was blank
    /// when it began, and was never mounted since.
    pub interrupted: Option<Purpose>,
    /// A growth of ours of the unmounted ext4 on this very device was interrupted, and it was not mounted since.
    pub growing: bool,
    /// Of the file system, where there is one.
    pub fs_size: Option<u64>,
    pub device_size: u64,
    /// The device itself takes no writes.
    pub device_read_only: bool,
    /// It is mounted, in whatever mount namespace, or claimed otherwise: neither check, offline growth nor mkfs.
    pub mounted: bool,
}

/// The second round's steps, on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepare {
    /// Write onto the medium, and into the journal, that a mkfs begins.
    RecordMkfs(FsType),
    /// Take away what an interrupted mkfs left at both ends.
    Wipe,
    Mkfs(FsType),
    Check(FsType),
    /// Before a growth.
    CheckFully(FsType),
    /// Repairs what a growth that was interrupted left.
    RepairGrowth(FsType),
    /// Write into the journal that a growth begins.
    RecordGrowth,
    GrowUnmounted(FsType),
    Mount(FsType),
    GrowMounted(FsType),
}

/// The second round, for a file system on a device.
///
/// # Errors
/// `Unverified` for anything on the device that is neither ours nor proven nothing: it is left as it is.
pub fn prepare(fstype: Option<FsType>, read_only: bool, check: bool, found: &DeviceContents) -> Result<Vec<Prepare>> {
    match found.interrupted {
        Some(Purpose::Filesystem(begun)) => return redo_mkfs(begun, fstype, read_only, found),
        Some(Purpose::Luks) if found.contents != Contents::Blank => {
            let reason = "its luksFormat was interrupted, but it is to be used without encryption; use a new volume";
            return Err(unproven(found, reason.to_owned()));
        }
        Some(Purpose::Luks) | None => {}
    }
    if found.growing {
        return go_on_growing(fstype, read_only, found);
    }
    let actual = match &found.contents {
        Contents::Filesystem(actual) => *actual,
        Contents::Blank => {
            let fstype = fstype.unwrap_or(FsType::DEFAULT);
            writable_for_mkfs(read_only, found)?;
            return Ok(vec![Prepare::RecordMkfs(fstype), Prepare::Mkfs(fstype), Prepare::Mount(fstype)]);
        }
        Contents::Other(what) => {
            return Err(unproven(
                found,
                format!("it holds {what}, and is not formatted over it. {}", wipe_remedy(&found.device)),
            ));
        }
        Contents::Unknown(why) => {
            return Err(unproven(
                found,
                format!(
                    "it is neither proven blank nor a known file system ({why}), and is not formatted. {}",
                    wipe_remedy(&found.device)
                ),
            ));
        }
    };
    if let Some(wanted) = fstype.filter(|wanted| *wanted != actual) {
        let reason = format!(
            "it holds {actual}, but {wanted} was asked for; its data is left as it is. Ask for {actual} (fsType), or use a new volume"
        );
        return Err(unproven(found, reason));
    }
    let mut steps = Vec::new();
    let writable = !read_only && !found.device_read_only;
    let grow = writable && found.fs_size.is_some_and(|size| worth_growing(actual, size, found.device_size));
    // xfs and btrfs grow only while mounted; what is mounted already can only grow so too.
    let offline = actual == FsType::Ext4 && !found.mounted;
    if grow && offline {
        steps.extend([Prepare::CheckFully(actual), Prepare::RecordGrowth, Prepare::GrowUnmounted(actual)]);
    } else if writable && check && !found.mounted {
        steps.push(Prepare::Check(actual));
    }
    steps.push(Prepare::Mount(actual));
    if grow && !offline {
        steps.push(Prepare::GrowMounted(actual));
    }
    Ok(steps)
}

/// The device has the mark of our own mkfs, which was written when it was blank: it is blank in all but the bytes. Yet where something
/// that our mkfs does not write is seen, someone else was there.
fn redo_mkfs(begun: FsType, fstype: Option<FsType>, read_only: bool, found: &DeviceContents) -> Result<Vec<Prepare>> {
    let foreign = match &found.contents {
        Contents::Other(what) => (!what.contains(begun.as_str())).then(|| what.clone()),
        // A sound one is of this mark's UUID and was never mounted, of whatever type: else there were no mark.
        Contents::Filesystem(_) | Contents::Blank | Contents::Unknown(_) => None,
    };
    if let Some(what) = foreign {
        let reason = format!(
            "its mkfs ({begun}) was interrupted, but now it holds {what}: another process or node wrote to it. {}",
            wipe_remedy(&found.device)
        );
        return Err(unproven(found, reason));
    }
    writable_for_mkfs(read_only, found)?;
    let fstype = fstype.unwrap_or(begun);
    // First what the earlier one has left, by its mark: of another file system's mkfs it would be another's.
    Ok(vec![Prepare::Wipe, Prepare::RecordMkfs(fstype), Prepare::Mkfs(fstype), Prepare::Mount(fstype)])
}

/// The ext4 was whole before only our own resize2fs wrote on it, and nobody mounted it since. Its superblock may be in the making.
fn go_on_growing(fstype: Option<FsType>, read_only: bool, found: &DeviceContents) -> Result<Vec<Prepare>> {
    let ext4 = FsType::Ext4;
    let foreign = match &found.contents {
        Contents::Filesystem(actual) => (*actual != ext4).then(|| actual.to_string()),
        Contents::Other(what) => (!what.contains(ext4.as_str())).then(|| what.clone()),
        Contents::Blank => Some("nothing".to_owned()),
        Contents::Unknown(_) => None,
    };
    let refused = if let Some(what) = foreign {
        Some(format!("now it holds {what}: another process or node wrote to it. {}", wipe_remedy(&found.device)))
    } else if let Some(asked) = fstype.filter(|asked| *asked != ext4) {
        Some(format!("{asked} was asked for; its data is left as it is. Ask for {ext4} (fsType), or use a new volume"))
    } else if found.mounted {
        Some("it is mounted; unmount it first".to_owned())
    } else if read_only || found.device_read_only {
        Some("it is to be used read-only; stage it for writing once".to_owned())
    } else {
        None
    };
    match refused {
        Some(reason) => Err(unproven(found, format!("the growth of its {ext4} was interrupted, but {reason}"))),
        None => Ok(vec![Prepare::RepairGrowth(ext4), Prepare::GrowUnmounted(ext4), Prepare::Mount(ext4)]),
    }
}

fn claimed(found: &DeviceContents) -> Error {
    let reason = "it holds no file system, but something uses it (a mount in another mount namespace, device-mapper, swap); it was not \
                  formatted. End what uses it (`lsblk`, `findmnt --task PID`), then stage the volume again";
    unproven(found, reason.to_owned())
}

fn writable_for_mkfs(read_only: bool, found: &DeviceContents) -> Result<()> {
    if found.mounted {
        return Err(claimed(found));
    }
    if read_only || found.device_read_only {
        return Err(unproven(
            found,
            "it is blank, and to be used read-only: there is nothing to mount. Stage it for writing once".to_owned(),
        ));
    }
    Ok(())
}

/// Whether the device has become larger than the file system on it. mkfs leaves a last piece out that is too small for a
/// group of its own; that is no reason to check and grow at every stage.
pub fn worth_growing(fstype: FsType, fs_size: u64, device_size: u64) -> bool {
    let slack = match fstype {
        // A group's inode table and bitmaps with the default ratio.
        FsType::Ext4 => 4 << 20,
        FsType::Xfs | FsType::Btrfs => 1 << 20,
    };
    device_size.saturating_sub(fs_size) >= slack
}

fn unproven(found: &DeviceContents, reason: String) -> Error {
    Error::Unverified { device: format!("volume {} on {}", found.volume, found.device), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXT4: Option<FsType> = Some(FsType::Ext4);
    const XFS: Option<FsType> = Some(FsType::Xfs);
    const SIZE: u64 = 1 << 30;

    fn found(contents: Contents) -> DeviceContents {
        let fs_size = matches!(contents, Contents::Filesystem(_)).then_some(SIZE);
        DeviceContents {
            volume: "image:a".parse().expect("an id"),
            device: "/dev/loop3".to_owned(),
            contents,
            interrupted: None,
            growing: false,
            fs_size,
            device_size: SIZE,
            device_read_only: false,
            mounted: false,
        }
    }

    fn ready(fstype: Option<FsType>, found: &DeviceContents) -> Vec<Prepare> {
        prepare(fstype, false, true, found).expect("can be prepared")
    }

    #[test]
    fn only_what_is_proven_blank_is_formatted() {
        for (asked, made) in [(None, FsType::Ext4), (XFS, FsType::Xfs), (Some(FsType::Btrfs), FsType::Btrfs)] {
            let steps = ready(asked, &found(Contents::Blank));
            assert_eq!(steps, [Prepare::RecordMkfs(made), Prepare::Mkfs(made), Prepare::Mount(made)]);
        }
        let never = [
            Contents::Unknown("read error at 4096".to_owned()),
            Contents::Other("LUKS".to_owned()),
            Contents::Filesystem(FsType::Ext4),
        ];
        for contents in never {
            for asked in [XFS, Some(FsType::Btrfs)] {
                for read_only in [false, true] {
                    let result = prepare(asked, read_only, true, &found(contents.clone()));
                    assert!(matches!(result, Err(Error::Unverified { .. })), "{contents:?} as {asked:?}: {result:?}");
                }
            }
        }
    }

    #[test]
    fn blank_device_is_not_formatted_for_a_read_only_stage() {
        assert!(matches!(prepare(None, true, true, &found(Contents::Blank)), Err(Error::Unverified { .. })));
        let protected = DeviceContents { device_read_only: true, ..found(Contents::Blank) };
        assert!(matches!(prepare(None, false, true, &protected), Err(Error::Unverified { .. })));
        let protected = DeviceContents { interrupted: EXT4.map(Purpose::Filesystem), ..protected };
        assert!(matches!(prepare(EXT4, false, true, &protected), Err(Error::Unverified { .. })));
    }

    #[test]
    fn a_known_file_system_is_checked_and_mounted() {
        for fstype in FsType::ALL {
            let there = found(Contents::Filesystem(fstype));
            for asked in [None, Some(fstype)] {
                assert_eq!(ready(asked, &there), [Prepare::Check(fstype), Prepare::Mount(fstype)]);
            }
            assert_eq!(prepare(None, false, false, &there).expect("unchecked"), [Prepare::Mount(fstype)]);
            assert_eq!(prepare(None, true, true, &there).expect("read-only"), [Prepare::Mount(fstype)]);
        }
    }

    #[test]
    fn a_larger_device_is_filled() {
        let larger = |fstype| DeviceContents { device_size: 2 * SIZE, ..found(Contents::Filesystem(fstype)) };
        let ext4 = FsType::Ext4;
        assert_eq!(
            ready(None, &larger(ext4)),
            [Prepare::CheckFully(ext4), Prepare::RecordGrowth, Prepare::GrowUnmounted(ext4), Prepare::Mount(ext4)]
        );
        for fstype in [FsType::Xfs, FsType::Btrfs] {
            assert_eq!(
                ready(None, &larger(fstype)),
                [Prepare::Check(fstype), Prepare::Mount(fstype), Prepare::GrowMounted(fstype)]
            );
            assert_eq!(prepare(None, true, true, &larger(fstype)).expect("read-only"), [Prepare::Mount(fstype)]);
        }
        assert_eq!(prepare(None, true, true, &larger(ext4)).expect("read-only"), [Prepare::Mount(ext4)]);
    }

    #[test]
    fn a_mounted_device_is_neither_checked_nor_grown_offline() {
        let ext4 = FsType::Ext4;
        let there = DeviceContents { mounted: true, device_size: 2 * SIZE, ..found(Contents::Filesystem(ext4)) };
        assert_eq!(ready(None, &there), [Prepare::Mount(ext4), Prepare::GrowMounted(ext4)]);
    }

    #[test]
    fn an_interrupted_mkfs_is_done_again_unless_another_writer_came() {
        let xfs = FsType::Xfs;
        let again = [Prepare::Wipe, Prepare::RecordMkfs(xfs), Prepare::Mkfs(xfs), Prepare::Mount(xfs)];
        let half = [
            Contents::Blank,
            Contents::Unknown("data at 4096".to_owned()),
            Contents::Filesystem(xfs),
            // What was made first, before another type was asked for.
            Contents::Filesystem(FsType::Ext4),
            Contents::Other("xfs backup superblock at 128 MiB".to_owned()),
        ];
        for contents in half {
            let there = DeviceContents { interrupted: Some(Purpose::Filesystem(xfs)), ..found(contents) };
            assert_eq!(ready(XFS, &there), again, "{there:?}");
        }
        let foreign = Contents::Other("LUKS".to_owned());
        let there = DeviceContents { interrupted: Some(Purpose::Filesystem(xfs)), ..found(foreign) };
        assert!(matches!(prepare(XFS, false, true, &there), Err(Error::Unverified { .. })), "{there:?}");
        let in_use = DeviceContents { interrupted: Some(Purpose::Filesystem(xfs)), mounted: true, ..found(Contents::Blank) };
        assert!(matches!(prepare(XFS, false, true, &in_use), Err(Error::Unverified { .. })));
    }

    #[test]
    fn interrupted_luks_format_is_no_reason_for_mkfs() {
        let marked = |contents| DeviceContents { interrupted: Some(Purpose::Luks), ..found(contents) };
        for contents in [Contents::Unknown("data at 4096".to_owned()), Contents::Other("LUKS".to_owned())] {
            assert!(matches!(prepare(XFS, false, true, &marked(contents)), Err(Error::Unverified { .. })));
        }
        assert_eq!(ready(EXT4, &marked(Contents::Blank)), ready(EXT4, &found(Contents::Blank)));
    }

    #[test]
    fn an_interrupted_growth_is_repaired_and_continues_unless_another_writer_came() {
        let ext4 = FsType::Ext4;
        let growing = |contents| DeviceContents { growing: true, ..found(contents) };
        let half = [
            Contents::Filesystem(ext4),
            Contents::Unknown("begins as ext4, but its checksum is wrong".to_owned()),
            Contents::Other("ext4 backup superblock at 128 MiB".to_owned()),
        ];
        for contents in half {
            let steps = ready(EXT4, &growing(contents));
            assert_eq!(steps, [Prepare::RepairGrowth(ext4), Prepare::GrowUnmounted(ext4), Prepare::Mount(ext4)]);
        }
        let there = growing(Contents::Filesystem(ext4));
        for (asked, read_only, there) in [
            (EXT4, false, growing(Contents::Filesystem(FsType::Xfs))),
            (EXT4, false, growing(Contents::Other("LUKS".to_owned()))),
            (EXT4, false, growing(Contents::Blank)),
            (EXT4, false, DeviceContents { mounted: true, ..there.clone() }),
            (EXT4, true, there.clone()),
            (XFS, false, there),
        ] {
            assert!(matches!(prepare(asked, read_only, true, &there), Err(Error::Unverified { .. })), "{there:?}");
        }
    }

    #[test]
    fn a_last_piece_too_small_for_a_group_is_no_growth() {
        assert!(!worth_growing(FsType::Ext4, SIZE, SIZE));
        assert!(!worth_growing(FsType::Ext4, SIZE, SIZE + (2 << 20)));
        assert!(worth_growing(FsType::Ext4, SIZE, SIZE + (4 << 20)));
        assert!(worth_growing(FsType::Xfs, SIZE, SIZE + (1 << 20)));
        assert!(!worth_growing(FsType::Btrfs, SIZE, SIZE / 2));
    }
}

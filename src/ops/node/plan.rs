//! What to do, from what is wanted and what was seen. Pure: no I/O, so every case is a row of a table.
//!
//! A stage is planned in two rounds, since what is on a device shows only once it is connected.

use std::path::{Path, PathBuf};

use crate::backend::Source;
use crate::os::fs::Contents;
use crate::os::fs::mark::Purpose;
use crate::os::luks::Header;
use crate::os::mountinfo::Mount;
use crate::volume::{AccessMode, Error, FsType, MountFlags, Result, VolumeId};

use super::journal::{Access, Phase, StageEntry, TargetEntry};
use super::observe::At;

/// How a volume is to be staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub id: VolumeId,
    pub staging: PathBuf,
    pub access: WantedAccess,
    pub mode: AccessMode,
    pub read_only: bool,
    pub inline: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedAccess {
    Block,
    Filesystem {
        /// `None`: what is there; on a blank device the default.
        fstype: Option<FsType>,
        mount_flags: MountFlags,
    },
}

/// What there is before anything was done.
#[derive(Clone, Debug)]
pub struct Seen {
    pub entry: Option<StageEntry>,
    /// Whether the entry was written in this boot; only then mounts and device numbers in it mean anything.
    pub same_boot: bool,
    /// What the backend says now.
    pub connected: Option<Source>,
    /// What is mounted or shown of it: what is connected, or the mapping on it, where it is encrypted.
    pub used: Option<Source>,
    /// What is mounted at the staging path.
    pub staging: At,
}

/// The first round's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Unmount what an earlier stage left, at the staging path in its journal entry; nobody was told of it.
    ClearMounts,
    /// Disconnect what an earlier stage connected otherwise.
    Disconnect,
    /// Write the intent.
    Begin,
    Connect,
    /// The mount is there and right; only the journal of it was lost.
    Adopt,
}

/// The first round. Nothing to do means that it is staged already, exactly so.
///
/// # Errors
/// `Conflict` where it is staged otherwise; `InUse` where the staging path is taken.
pub fn start(wanted: &Wanted, seen: &Seen) -> Result<Vec<Start>> {
    if let At::Foreign(mount) = &seen.staging {
        return Err(taken(&wanted.staging, mount));
    }
    let Some(entry) = &seen.entry else { return start_without_journal(wanted, seen) };
    if entry.inline != wanted.inline {
        let kind = |inline: bool| if inline { "an ephemeral volume" } else { "a persistent volume" };
        return Err(conflict(wanted, kind(entry.inline), kind(wanted.inline)));
    }
    let mut steps = Vec::new();
    if entry.phase == Phase::Staged && seen.same_boot {
        compatible(wanted, entry)?;
        if let At::Stack(count) = seen.staging {
            return Err(stacked(&wanted.staging, count));
        }
        let mounted = wanted.access == WantedAccess::Block || matches!(seen.staging, At::Ours(_));
        let connected = seen.connected.is_some() && seen.connected == entry.source && seen.used.is_some();
        if mounted && connected {
            return Ok(steps);
        }
    }
    // Begun and never acknowledged, or half undone, or of another boot: start afresh.
    if seen.same_boot {
        steps.push(Start::ClearMounts);
    }
    // What an unstage left connected serves again: something may use it still, in another mount namespace.
    let otherwise = seen.connected.is_some() && entry.read_only != wanted.read_only;
    // What the journal names is no longer what the volume is (its image was replaced); nothing else will let it go.
    let stale = seen.same_boot && entry.source.is_some() && seen.connected != entry.source;
    if otherwise || stale {
        steps.push(Start::Disconnect);
    }
    steps.extend([Start::Begin, Start::Connect]);
    Ok(steps)
}

fn start_without_journal(wanted: &Wanted, seen: &Seen) -> Result<Vec<Start>> {
    match (&seen.staging, &wanted.access) {
        (At::Stack(count), _) => Err(stacked(&wanted.staging, *count)),
        (At::Ours(mount), WantedAccess::Filesystem { fstype, .. }) => {
            if let Some(fstype) = fstype.filter(|fstype| fstype.as_str() != mount.fstype) {
                return Err(conflict(wanted, &mount.fstype, fstype.as_str()));
            }
            if mount.is_read_only() != wanted.read_only {
                return Err(conflict(wanted, access_word(mount.is_read_only()), access_word(wanted.read_only)));
            }
            Ok(vec![Start::Begin, Start::Connect, Start::Adopt])
        }
        (At::Ours(mount), WantedAccess::Block) => Err(conflict(wanted, &mount.fstype, "raw block")),
        _ => Ok(vec![Start::Begin, Start::Connect]),
    }
}

fn compatible(wanted: &Wanted, entry: &StageEntry) -> Result<()> {
    if entry.staging != wanted.staging {
        let at = |path: &Path| format!("staging path {}", path.display());
        return Err(conflict(wanted, &at(&entry.staging), &at(&wanted.staging)));
    }
    if entry.read_only != wanted.read_only {
        return Err(conflict(wanted, access_word(entry.read_only), access_word(wanted.read_only)));
    }
    match (&entry.access, &wanted.access) {
        (Access::Block, WantedAccess::Block) => Ok(()),
        (Access::Block, WantedAccess::Filesystem { .. }) => Err(conflict(wanted, "raw block", "a file system")),
        (Access::Filesystem { .. }, WantedAccess::Block) => Err(conflict(wanted, "a file system", "raw block")),
        (Access::Filesystem { fstype, mount_flags }, WantedAccess::Filesystem { fstype: asked, mount_flags: flags }) => {
            // What is mounted as it is (NFS) has a name that is none of ours; the CO's default does not apply to it.
            let ours = fstype.as_deref().and_then(|name| name.parse::<FsType>().ok());
            if let (Some(existing), Some(asked)) = (ours, asked)
                && existing != *asked
            {
                return Err(conflict(wanted, existing.as_str(), asked.as_str()));
            }
            if !mount_flags.are(flags) {
                let [existing, asked] =
                    [&mount_flags.names(), flags].map(|flags| format!("mount options {:?}", flags.to_string()));
                let other = if existing == asked { " with other values" } else { "" };
                return Err(conflict(wanted, &existing, &format!("{asked}{other}")));
            }
            Ok(())
        }
    }
}

/// What the device of an encrypted volume showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locked {
    pub volume: VolumeId,
    /// `/dev/loop3`, for messages.
    pub device: String,
    pub contents: Contents,
    pub header: Option<Header>,
    /// The medium has the mark of a luksFormat of ours that was interrupted, and no header that says it was ever used.
    pub interrupted: bool,
    /// The device itself takes no writes.
    pub device_read_only: bool,
    pub mapping: Mapping,
}

/// The mapping of an encrypted volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    None,
    /// It is whole and lies on this device.
    Whole,
    /// Half made, or on another device.
    Stale,
}

/// What makes the device of an encrypted volume appear in clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlock {
    Close,
    /// Write onto the medium, and into the journal, that a LUKS format begins.
    RecordFormat,
    /// Take away what an interrupted format left.
    Wipe,
    Format,
    Open,
    /// The device may have grown since the mapping was opened.
    Grow,
}

/// # Errors
/// `Unverified` for anything on the device that is neither a LUKS2 header nor proven nothing: it is left as it is.
pub fn unlock(read_only: bool, locked: &Locked) -> Result<Vec<Unlock>> {
    let refuse =
        |reason: String| Err(Error::Unverified { device: format!("volume {} on {}", locked.volume, locked.device), reason });
    let blank = locked.interrupted || locked.contents == Contents::Blank;
    let mut steps = Vec::new();
    if locked.mapping == Mapping::Stale || (locked.mapping == Mapping::Whole && blank) {
        steps.push(Unlock::Close);
    }
    if blank && (read_only || locked.device_read_only) {
        return refuse("it is blank, and to be used read-only: there is nothing to open. Stage it for writing once".to_owned());
    }
    match (&locked.contents, &locked.header) {
        (contents, _) if locked.interrupted && foreign_to_luks(contents).is_some() => {
            return refuse(format!(
                "its LUKS format was interrupted, but now it holds {}: another process or node wrote to it. {}",
                foreign_to_luks(contents).unwrap_or_default(),
                wipe_remedy(&locked.device)
            ));
        }
        _ if locked.interrupted => steps.extend([Unlock::RecordFormat, Unlock::Wipe, Unlock::Format, Unlock::Open]),
        (_, Some(header)) if header.version == 2 => match locked.mapping {
            Mapping::Whole if !read_only => steps.push(Unlock::Grow),
            Mapping::Whole => {}
            Mapping::None | Mapping::Stale => steps.push(Unlock::Open),
        },
        (_, Some(header)) => {
            return refuse(format!(
                "its LUKS header is of version {}, not 2; with the volume unstaged, `cryptsetup convert --type luks2` changes it",
                header.version
            ));
        }
        (Contents::Blank, None) => steps.extend([Unlock::RecordFormat, Unlock::Format, Unlock::Open]),
        (Contents::Filesystem(found), None) => {
            return refuse(format!(
                "it holds {found} in clear, but is to be encrypted; its data is left as it is. Use it without encryption, or \
                 copy it into a new volume"
            ));
        }
        (Contents::Other(what) | Contents::Unknown(what), None) => {
            return refuse(format!(
                "it is neither proven blank nor encrypted with LUKS2 ({what}), and is not formatted. {}",
                wipe_remedy(&locked.device)
            ));
        }
    }
    Ok(steps)
}

/// What no LUKS format writes.
fn foreign_to_luks(contents: &Contents) -> Option<String> {
    match contents {
        Contents::Filesystem(found) => Some(found.to_string()),
        Contents::Other(what) => (!what.contains("LUKS")).then(|| what.clone()),
        Contents::Blank | Contents::Unknown(_) => None,
    }
}

/// What a connected device showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
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
pub fn prepare(fstype: Option<FsType>, read_only: bool, check: bool, found: &Found) -> Result<Vec<Prepare>> {
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
fn redo_mkfs(begun: FsType, fstype: Option<FsType>, read_only: bool, found: &Found) -> Result<Vec<Prepare>> {
    let foreign = match &found.contents {
        Contents::Filesystem(actual) => (*actual != begun).then(|| actual.to_string()),
        Contents::Other(what) => (!what.contains(begun.as_str())).then(|| what.clone()),
        Contents::Blank | Contents::Unknown(_) => None,
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
    Ok(vec![Prepare::RecordMkfs(fstype), Prepare::Wipe, Prepare::Mkfs(fstype), Prepare::Mount(fstype)])
}

/// The ext4 was whole before only our own resize2fs wrote on it, and nobody mounted it since. Its superblock may be in the making.
fn go_on_growing(fstype: Option<FsType>, read_only: bool, found: &Found) -> Result<Vec<Prepare>> {
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

fn claimed(found: &Found) -> Error {
    let reason = "it holds no file system, but something uses it (a mount in another mount namespace, device-mapper, swap); it was not \
                  formatted. End what uses it (`lsblk`, `findmnt --task PID`), then stage the volume again";
    unproven(found, reason.to_owned())
}

fn writable_for_mkfs(read_only: bool, found: &Found) -> Result<()> {
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

/// How a volume is to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedTarget {
    pub target: PathBuf,
    pub read_only: bool,
    /// No other target on this node (SINGLE_NODE_SINGLE_WRITER).
    pub alone: bool,
}

/// What there is at a target.
#[derive(Clone, Debug)]
pub struct SeenTarget {
    pub at: At,
    pub entry: Option<TargetEntry>,
    /// The other targets of the volume that are mounted.
    pub others: Vec<TargetEntry>,
}

/// What a publish has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// It is there.
    Nothing,
    /// It is there, but not in the journal.
    Record,
    Mount,
}

/// # Errors
/// `Conflict` where something else, or the same otherwise, is mounted at the target; `InUse` where another target forbids it.
pub fn publish(id: &VolumeId, wanted: &WantedTarget, seen: &SeenTarget) -> Result<Publish> {
    let object = || format!("target {} of volume {id}", wanted.target.display());
    if wanted.alone
        && let Some(other) = seen.others.first()
    {
        return Err(Error::InUse {
            object: format!("volume {id}"),
            by: format!(
                "it may have one user only (SINGLE_NODE_SINGLE_WRITER) and is published at {}; unpublish it there first",
                other.target.display()
            ),
        });
    }
    match &seen.at {
        At::Nothing => Ok(Publish::Mount),
        At::Stack(count) => Err(stacked(&wanted.target, *count)),
        At::Foreign(mount) => Err(Error::Conflict {
            object: object(),
            existing: format!("a mount of {} ({})", mount.source.display(), mount.fstype),
            wanted: "this volume".to_owned(),
        }),
        At::Ours(mount) => {
            let read_only = match &seen.entry {
                // A bind of a device node shows nothing of it in mountinfo.
                Some(entry) if entry.block => entry.read_only,
                _ => mount.options.iter().any(|option| option == "ro"),
            };
            if read_only != wanted.read_only {
                let [existing, wanted] = [read_only, wanted.read_only].map(|read_only| access_word(read_only).to_owned());
                return Err(Error::Conflict { object: object(), existing, wanted });
            }
            Ok(if seen.entry.is_some() { Publish::Nothing } else { Publish::Record })
        }
    }
}

/// Write protection lies on the device, not on a bind of its node: one way for all its targets.
///
/// # Errors
/// `InUse` where another target has it the other way.
pub fn protection(id: &VolumeId, wanted: &WantedTarget, others: &[TargetEntry]) -> Result<()> {
    match others.iter().find(|other| other.read_only != wanted.read_only) {
        None => Ok(()),
        Some(other) => Err(Error::InUse {
            object: format!("volume {id}"),
            by: format!(
                "its raw block device is published {} at {}, and cannot be {} at the same time on one node; unpublish it there first",
                access_word(other.read_only),
                other.target.display(),
                access_word(wanted.read_only)
            ),
        }),
    }
}

pub fn access_word(read_only: bool) -> &'static str {
    if read_only { "read-only" } else { "read-write" }
}

fn conflict(wanted: &Wanted, existing: &str, asked: &str) -> Error {
    Error::Conflict { object: format!("stage of volume {}", wanted.id), existing: existing.to_owned(), wanted: asked.to_owned() }
}

fn unproven(found: &Found, reason: String) -> Error {
    Error::Unverified { device: format!("volume {} on {}", found.volume, found.device), reason }
}

fn wipe_remedy(device: &str) -> String {
    // The device is disconnected again when a person reads this.
    format!(
        "If nothing on it is wanted, use a new volume, or clear the storage of this one (`blkdiscard --zeroout`), but not as \
         {device}: by now that may be another's"
    )
}

/// A path on which someone else mounted something.
pub fn taken(path: &Path, mount: &Mount) -> Error {
    Error::InUse {
        object: path.display().to_string(),
        by: format!(
            "{} ({}) is mounted there, which is not this volume; unmount it (`umount {}`) if it is not needed",
            mount.source.display(),
            mount.fstype,
            path.display()
        ),
    }
}

pub fn stacked(path: &Path, count: usize) -> Error {
    Error::InUse {
        object: path.display().to_string(),
        by: format!("{count} mounts lie on top of each other there; unmount all but the first (`umount {}`)", path.display()),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

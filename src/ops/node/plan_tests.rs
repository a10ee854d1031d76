//! The planner's tables.

use super::*;
use crate::backend::BlockDevice;
use crate::os::luks::State;

const EXT4: Option<FsType> = Some(FsType::Ext4);
const XFS: Option<FsType> = Some(FsType::Xfs);

fn id() -> VolumeId {
    "image:a".parse().expect("valid")
}

fn filesystem(fstype: Option<FsType>, flags: &[&str]) -> Wanted {
    Wanted {
        id: id(),
        staging: "/k/s".into(),
        access: WantedAccess::Filesystem { fstype, mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect() },
        mode: AccessMode::SingleNodeWriter,
        read_only: false,
        inline: false,
    }
}

fn block() -> Wanted {
    Wanted { access: WantedAccess::Block, ..filesystem(None, &[]) }
}

fn device(number: u32) -> Source {
    Source::Device(BlockDevice { path: format!("/dev/loop{number}").into(), number: (7, number), identity: "i".to_owned() })
}

fn entry_of(wanted: &Wanted, fstype: &str) -> StageEntry {
    StageEntry {
        version: super::super::journal::VERSION,
        id: id(),
        phase: Phase::Staged,
        source: Some(device(3)),
        mapping: None,
        access: match &wanted.access {
            WantedAccess::Block => Access::Block,
            WantedAccess::Filesystem { mount_flags, .. } => {
                Access::Filesystem { fstype: Some(fstype.to_owned()), mount_flags: mount_flags.into() }
            }
        },
        mode: wanted.mode,
        staging: wanted.staging.clone(),
        read_only: wanted.read_only,
        format: None,
        growth: None,
        inline: wanted.inline,
        boot: "b".to_owned(),
        parameters: serde_json::Value::Null,
        created: 0,
    }
}

fn mounted(fstype: &str, options: &str) -> Mount {
    Mount {
        id: 10,
        parent: 1,
        device: (7, 3),
        root: "/".into(),
        mount_point: "/k/s".into(),
        options: options.split(',').map(str::to_owned).collect(),
        propagation: Vec::new(),
        fstype: fstype.to_owned(),
        source: "/dev/loop3".into(),
        super_options: vec!["rw".to_owned()],
        node: std::sync::OnceLock::new(),
    }
}

fn seen(entry: Option<StageEntry>, connected: Option<Source>, staging: At) -> Seen {
    Seen { entry, same_boot: true, used: connected.clone(), connected, staging }
}

fn ours() -> At {
    At::Ours(mounted("ext4", "rw"))
}

#[test]
fn a_fresh_volume_is_journaled_and_connected() {
    for wanted in [filesystem(None, &[]), block()] {
        let steps = start(&wanted, &seen(None, None, At::Nothing)).expect("free");
        assert_eq!(steps, [Start::Begin, Start::Connect]);
    }
}

#[test]
fn what_is_staged_so_already_needs_nothing() {
    let with_flags = filesystem(EXT4, &["noexec", "noatime"]);
    let other_order = filesystem(None, &["noatime", "noexec"]);
    let entry = entry_of(&with_flags, "ext4");
    for wanted in [with_flags, other_order] {
        assert_eq!(start(&wanted, &seen(Some(entry.clone()), Some(device(3)), ours())).expect("same"), []);
    }
    let entry = entry_of(&block(), "");
    assert_eq!(start(&block(), &seen(Some(entry), Some(device(3)), At::Nothing)).expect("same"), []);
}

#[test]
fn what_is_staged_otherwise_is_a_conflict() {
    let there = filesystem(EXT4, &[]);
    let cases = [
        filesystem(XFS, &[]),
        filesystem(EXT4, &["noexec"]),
        block(),
        Wanted { staging: "/k/other".into(), ..there.clone() },
        Wanted { read_only: true, ..there.clone() },
        Wanted { inline: true, ..there.clone() },
    ];
    for wanted in cases {
        let result = start(&wanted, &seen(Some(entry_of(&there, "ext4")), Some(device(3)), ours()));
        assert!(matches!(result, Err(Error::Conflict { .. })), "{wanted:?}: {result:?}");
    }
}

#[test]
fn a_share_does_not_mind_the_default_file_system() {
    let wanted = filesystem(EXT4, &[]);
    let entry = entry_of(&wanted, "nfs4");
    assert_eq!(start(&wanted, &seen(Some(entry), Some(device(3)), ours())).expect("same"), []);
}

#[test]
fn a_taken_or_stacked_staging_path_is_refused() {
    let wanted = filesystem(None, &[]);
    for entry in [None, Some(entry_of(&wanted, "ext4"))] {
        for at in [At::Foreign(mounted("tmpfs", "rw")), At::Stack(2)] {
            let result = start(&wanted, &seen(entry.clone(), Some(device(3)), at.clone()));
            assert!(matches!(result, Err(Error::InUse { .. })), "{at:?}: {result:?}");
        }
    }
}

#[test]
fn what_was_interrupted_is_begun_afresh() {
    let wanted = filesystem(EXT4, &[]);
    let at = |phase| StageEntry { phase, ..entry_of(&wanted, "ext4") };
    type Case<'a> = (StageEntry, bool, Option<Source>, At, &'a [Start]);
    let afresh = [Start::ClearMounts, Start::Disconnect, Start::Begin, Start::Connect];
    let cases: [Case<'_>; 7] = [
        // What the journal names is not what the volume is now: it is let go first.
        (at(Phase::Staging), true, None, At::Nothing, &afresh),
        (at(Phase::Staged), true, Some(device(4)), ours(), &afresh),
        (at(Phase::Staging), true, Some(device(3)), ours(), &[Start::ClearMounts, Start::Begin, Start::Connect]),
        (at(Phase::Unstaging), true, Some(device(3)), ours(), &[Start::ClearMounts, Start::Begin, Start::Connect]),
        // Somebody unmounted it.
        (at(Phase::Staged), true, Some(device(3)), At::Nothing, &[Start::ClearMounts, Start::Begin, Start::Connect]),
        // A reboot: numbers and mounts of before mean nothing.
        (at(Phase::Staged), false, None, At::Nothing, &[Start::Begin, Start::Connect]),
        (
            StageEntry { read_only: true, ..at(Phase::Staged) },
            false,
            Some(device(4)),
            At::Nothing,
            &[Start::Disconnect, Start::Begin, Start::Connect],
        ),
    ];
    for (entry, same_boot, connected, staging, steps) in cases {
        let seen = Seen { entry: Some(entry), same_boot, used: connected.clone(), connected, staging };
        assert_eq!(start(&wanted, &seen).expect("goes on"), steps, "{seen:?}");
    }
}

#[test]
fn after_a_reboot_it_may_be_staged_otherwise() {
    let entry = entry_of(&filesystem(EXT4, &[]), "ext4");
    let seen = Seen { entry: Some(entry), same_boot: false, connected: None, used: None, staging: At::Nothing };
    for wanted in [block(), Wanted { staging: "/k/other".into(), ..filesystem(XFS, &["noexec"]) }] {
        assert_eq!(start(&wanted, &seen).expect("free"), [Start::Begin, Start::Connect]);
    }
}

#[test]
fn a_mount_without_a_journal_is_taken_over_only_if_it_is_what_was_asked_for() {
    let lost = seen(None, Some(device(3)), ours());
    for wanted in [filesystem(None, &[]), filesystem(EXT4, &[])] {
        assert_eq!(start(&wanted, &lost).expect("the same"), [Start::Begin, Start::Connect, Start::Adopt]);
    }
    for wanted in [filesystem(XFS, &[]), block(), Wanted { read_only: true, ..filesystem(EXT4, &[]) }] {
        assert!(matches!(start(&wanted, &lost), Err(Error::Conflict { .. })), "{wanted:?}");
    }
}

const SIZE: u64 = 1 << 30;

fn found(contents: Contents) -> Found {
    let fs_size = matches!(contents, Contents::Filesystem(_)).then_some(SIZE);
    Found {
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

fn ready(fstype: Option<FsType>, found: &Found) -> Vec<Prepare> {
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
fn nothing_is_formatted_read_only() {
    assert!(matches!(prepare(None, true, true, &found(Contents::Blank)), Err(Error::Unverified { .. })));
    let protected = Found { device_read_only: true, ..found(Contents::Blank) };
    assert!(matches!(prepare(None, false, true, &protected), Err(Error::Unverified { .. })));
    let protected = Found { interrupted: EXT4.map(Purpose::Filesystem), ..protected };
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
    let larger = |fstype| Found { device_size: 2 * SIZE, ..found(Contents::Filesystem(fstype)) };
    let ext4 = FsType::Ext4;
    assert_eq!(
        ready(None, &larger(ext4)),
        [Prepare::CheckFully(ext4), Prepare::RecordGrowth, Prepare::GrowUnmounted(ext4), Prepare::Mount(ext4)]
    );
    for fstype in [FsType::Xfs, FsType::Btrfs] {
        assert_eq!(ready(None, &larger(fstype)), [Prepare::Check(fstype), Prepare::Mount(fstype), Prepare::GrowMounted(fstype)]);
        assert_eq!(prepare(None, true, true, &larger(fstype)).expect("read-only"), [Prepare::Mount(fstype)]);
    }
    assert_eq!(prepare(None, true, true, &larger(ext4)).expect("read-only"), [Prepare::Mount(ext4)]);
}

#[test]
fn a_mounted_device_is_neither_checked_nor_grown_offline() {
    let ext4 = FsType::Ext4;
    let there = Found { mounted: true, device_size: 2 * SIZE, ..found(Contents::Filesystem(ext4)) };
    assert_eq!(ready(None, &there), [Prepare::Mount(ext4), Prepare::GrowMounted(ext4)]);
}

#[test]
fn an_interrupted_mkfs_is_done_again_unless_somebody_else_wrote() {
    let xfs = FsType::Xfs;
    let again = [Prepare::RecordMkfs(xfs), Prepare::Wipe, Prepare::Mkfs(xfs), Prepare::Mount(xfs)];
    let half = [
        Contents::Blank,
        Contents::Unknown("data at 4096".to_owned()),
        Contents::Filesystem(xfs),
        Contents::Other("xfs backup superblock at 128 MiB".to_owned()),
    ];
    for contents in half {
        let there = Found { interrupted: Some(Purpose::Filesystem(xfs)), ..found(contents) };
        assert_eq!(ready(XFS, &there), again, "{there:?}");
    }
    for contents in [Contents::Filesystem(FsType::Ext4), Contents::Other("LUKS".to_owned())] {
        let there = Found { interrupted: Some(Purpose::Filesystem(xfs)), ..found(contents) };
        assert!(matches!(prepare(XFS, false, true, &there), Err(Error::Unverified { .. })), "{there:?}");
    }
    let in_use = Found { interrupted: Some(Purpose::Filesystem(xfs)), mounted: true, ..found(Contents::Blank) };
    assert!(matches!(prepare(XFS, false, true, &in_use), Err(Error::Unverified { .. })));
}

#[test]
fn interrupted_luks_format_is_no_reason_for_mkfs() {
    let marked = |contents| Found { interrupted: Some(Purpose::Luks), ..found(contents) };
    for contents in [Contents::Unknown("data at 4096".to_owned()), Contents::Other("LUKS".to_owned())] {
        assert!(matches!(prepare(XFS, false, true, &marked(contents)), Err(Error::Unverified { .. })));
    }
    assert_eq!(ready(EXT4, &marked(Contents::Blank)), ready(EXT4, &found(Contents::Blank)));
}

#[test]
fn an_interrupted_growth_is_repaired_and_goes_on_unless_somebody_else_wrote() {
    let ext4 = FsType::Ext4;
    let growing = |contents| Found { growing: true, ..found(contents) };
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
        (EXT4, false, Found { mounted: true, ..there.clone() }),
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

fn target_wanted(read_only: bool, alone: bool) -> WantedTarget {
    WantedTarget { target: "/k/t".into(), read_only, alone }
}

fn target(path: &str, block: bool, read_only: bool) -> TargetEntry {
    TargetEntry {
        version: super::super::journal::VERSION,
        id: id(),
        target: path.into(),
        block,
        read_only,
        device: None,
        boot: "b".to_owned(),
    }
}

#[test]
fn a_target_is_mounted_recorded_or_right() {
    let entry = || Some(target("/k/t", false, false));
    let cases = [
        (At::Nothing, None, Publish::Mount),
        (At::Nothing, entry(), Publish::Mount),
        (At::Ours(mounted("ext4", "rw,nosuid")), entry(), Publish::Nothing),
        (At::Ours(mounted("ext4", "rw")), None, Publish::Record),
    ];
    for (at, entry, expected) in cases {
        let seen = SeenTarget { at, entry, others: Vec::new() };
        assert_eq!(publish(&id(), &target_wanted(false, false), &seen).expect("fits"), expected, "{seen:?}");
    }
}

#[test]
fn a_target_that_is_otherwise_is_refused() {
    let see = |at, entry| SeenTarget { at, entry, others: Vec::new() };
    let cases = [
        (see(At::Foreign(mounted("tmpfs", "rw")), None), false),
        (see(At::Ours(mounted("ext4", "rw")), Some(target("/k/t", false, false))), true),
        (see(At::Ours(mounted("ext4", "ro")), None), false),
        (see(At::Ours(mounted("devtmpfs", "rw")), Some(target("/k/t", true, true))), false),
    ];
    for (seen, read_only) in cases {
        let result = publish(&id(), &target_wanted(read_only, false), &seen);
        assert!(matches!(result, Err(Error::Conflict { .. })), "{seen:?}: {result:?}");
    }
    let result = publish(&id(), &target_wanted(false, false), &see(At::Stack(2), None));
    assert!(matches!(result, Err(Error::InUse { .. })));
}

#[test]
fn a_single_writer_is_alone_on_its_node() {
    let others = vec![target("/k/other", false, false)];
    let seen = SeenTarget { at: At::Nothing, entry: None, others };
    assert!(matches!(publish(&id(), &target_wanted(false, true), &seen), Err(Error::InUse { .. })));
    assert_eq!(publish(&id(), &target_wanted(false, false), &seen).expect("others may share"), Publish::Mount);
    let again = SeenTarget { at: ours(), entry: Some(target("/k/t", false, false)), others: Vec::new() };
    assert_eq!(publish(&id(), &target_wanted(false, true), &again).expect("a repeat"), Publish::Nothing);
}

#[test]
fn a_device_is_protected_for_all_its_targets_or_for_none() {
    let others = [target("/k/other", true, true)];
    assert!(protection(&id(), &target_wanted(true, false), &others).is_ok());
    assert!(matches!(protection(&id(), &target_wanted(false, false), &others), Err(Error::InUse { .. })));
    assert!(protection(&id(), &target_wanted(false, false), &[]).is_ok());
}

fn locked(contents: Contents, version: Option<u16>) -> Locked {
    Locked {
        volume: id(),
        device: "/dev/loop3".to_owned(),
        contents,
        header: version.map(|version| Header { version, state: State::Used }),
        interrupted: false,
        device_read_only: false,
        mapping: Mapping::None,
    }
}

#[test]
fn only_what_is_blank_is_encrypted() {
    use Unlock::*;
    let blank = locked(Contents::Blank, None);
    let luks = locked(Contents::Other("LUKS".to_owned()), Some(2));
    assert_eq!(unlock(false, &blank).unwrap(), [RecordFormat, Format, Open]);
    assert_eq!(unlock(false, &luks).unwrap(), [Open]);
    assert_eq!(unlock(true, &luks).unwrap(), [Open]);
    assert_eq!(unlock(false, &Locked { mapping: Mapping::Whole, ..luks.clone() }).unwrap(), [Grow]);
    assert_eq!(unlock(true, &Locked { mapping: Mapping::Whole, ..luks.clone() }).unwrap(), []);
    assert_eq!(unlock(false, &Locked { mapping: Mapping::Stale, ..luks.clone() }).unwrap(), [Close, Open]);
    for (contents, version, says) in [
        (Contents::Filesystem(FsType::Xfs), None, "holds xfs in clear"),
        (Contents::Other("GPT".to_owned()), None, "neither proven blank nor encrypted with LUKS2 (GPT)"),
        (Contents::Unknown("an error".to_owned()), None, "(an error)"),
        (Contents::Other("LUKS".to_owned()), Some(1), "version 1"),
    ] {
        let error = unlock(false, &locked(contents, version)).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("/dev/loop3"), "{error}");
    }
    assert!(unlock(true, &blank).is_err());
    assert!(unlock(false, &Locked { device_read_only: true, ..blank }).is_err());
}

#[test]
fn an_interrupted_luks_format_is_done_again_unless_somebody_else_wrote() {
    use Unlock::*;
    let interrupted = |contents| Locked { interrupted: true, ..locked(contents, None) };
    for contents in [
        Contents::Blank,
        Contents::Unknown("data at 0".to_owned()),
        Contents::Other("LUKS".to_owned()),
        Contents::Other("LUKS2 secondary header at 16 KiB".to_owned()),
    ] {
        assert_eq!(unlock(false, &interrupted(contents)).unwrap(), [RecordFormat, Wipe, Format, Open]);
    }
    let open = Locked { mapping: Mapping::Whole, ..interrupted(Contents::Other("LUKS".to_owned())) };
    assert_eq!(unlock(false, &open).unwrap(), [Close, RecordFormat, Wipe, Format, Open]);
    for contents in [Contents::Filesystem(FsType::Ext4), Contents::Other("GPT".to_owned())] {
        let error = unlock(false, &interrupted(contents)).unwrap_err().to_string();
        assert!(error.contains("another process or node wrote"), "{error}");
    }
}

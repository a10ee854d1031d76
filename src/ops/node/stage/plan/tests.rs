//! The first round as tables.

use super::super::super::journal::VERSION;
use super::super::super::observe::testing::{mounted, ours};
use super::*;
use crate::backend::{BlockDevice, Directory};
use crate::volume::{AccessMode, VolumeId};

const EXT4: Option<FsType> = Some(FsType::Ext4);
const XFS: Option<FsType> = Some(FsType::Xfs);

fn id() -> VolumeId {
    "image:a".parse().expect("valid")
}

fn filesystem(fstype: Option<FsType>, flags: &[&str]) -> DesiredStage {
    DesiredStage {
        id: id(),
        staging: "/k/s".into(),
        access: DesiredAccess::Filesystem { fstype, mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect() },
        mode: AccessMode::SingleNodeWriter,
        read_only: false,
        inline: false,
    }
}

fn block() -> DesiredStage {
    DesiredStage { access: DesiredAccess::Block, ..filesystem(None, &[]) }
}

fn device(number: u32) -> Source {
    Source::Device(BlockDevice { path: format!("/dev/loop{number}").into(), number: (7, number), identity: "i".to_owned() })
}

fn entry_of(wanted: &DesiredStage, fstype: &str) -> StageEntry {
    StageEntry {
        version: VERSION,
        id: id(),
        phase: Phase::Staged,
        source: Some(device(3)),
        mapping: None,
        access: match &wanted.access {
            DesiredAccess::Block => Access::Block,
            DesiredAccess::Filesystem { mount_flags, .. } => {
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

fn seen(entry: Option<StageEntry>, connected: Option<Source>, staging: MountState) -> StageObservation {
    StageObservation { entry, same_boot: true, used: connected.clone(), connected, staging }
}

#[test]
fn a_fresh_volume_is_journaled_and_connected() {
    for wanted in [filesystem(None, &[]), block()] {
        let steps = start(&wanted, &seen(None, None, MountState::Nothing)).expect("free");
        assert_eq!(steps, [Start::Begin, Start::Connect]);
    }
}

#[test]
fn stage_of_a_volume_staged_alike_plans_no_step() {
    let with_flags = filesystem(EXT4, &["noexec", "noatime"]);
    let other_order = filesystem(None, &["noatime", "noexec"]);
    let entry = entry_of(&with_flags, "ext4");
    for wanted in [with_flags, other_order] {
        assert_eq!(start(&wanted, &seen(Some(entry.clone()), Some(device(3)), ours())).expect("same"), []);
    }
    let entry = entry_of(&block(), "");
    assert_eq!(start(&block(), &seen(Some(entry), Some(device(3)), MountState::Nothing)).expect("same"), []);
}

#[test]
fn stage_of_a_volume_staged_otherwise_is_a_conflict() {
    let there = filesystem(EXT4, &[]);
    let cases = [
        filesystem(XFS, &[]),
        filesystem(EXT4, &["noexec"]),
        block(),
        DesiredStage { staging: "/k/other".into(), ..there.clone() },
        DesiredStage { read_only: true, ..there.clone() },
        DesiredStage { inline: true, ..there.clone() },
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
fn directory_of_a_network_share_is_staged_without_a_mount() {
    let wanted = filesystem(None, &[]);
    let source = |root| {
        Source::Directory(Directory {
            mount: "/s/mount".into(),
            directory: "a".into(),
            fstype: "nfs4".to_owned(),
            source: "server:/export/a".to_owned(),
            device: (0, 50),
            root,
            options: Vec::new(),
        })
    };
    let steps = |root, staging| {
        let source = Some(source(root));
        let entry = StageEntry { source: source.clone(), ..entry_of(&wanted, "nfs4") };
        start(&wanted, &seen(Some(entry), source, staging)).expect("fits")
    };
    assert_eq!(steps(None, MountState::Nothing), []);
    for earlier in [ours(), MountState::Stack(2)] {
        assert_eq!(steps(None, earlier.clone()), [], "an earlier version's mounts");
        let lost = start(&DesiredStage { read_only: true, ..wanted.clone() }, &seen(None, Some(source(None)), earlier));
        assert_eq!(lost.expect("the journal was lost"), [Start::Begin, Start::Connect]);
    }
    // Stale or unmounted: what is recorded stays until it is connected.
    let entry = StageEntry { source: Some(source(None)), ..entry_of(&wanted, "nfs4") };
    for connected in
        [None, Some(Source::Directory(Directory { device: (0, 51), ..source(None).network_directory().unwrap().clone() }))]
    {
        let seen = seen(Some(entry.clone()), connected, MountState::Nothing);
        assert_eq!(start(&wanted, &seen).expect("anew"), [Start::Connect]);
    }
    let own = steps(Some("/export/a".into()), MountState::Nothing);
    assert_eq!(own, [Start::ClearMounts, Start::Begin, Start::Connect], "a local directory is mounted there");
}

#[test]
fn a_taken_or_stacked_staging_path_is_refused() {
    let wanted = filesystem(None, &[]);
    for entry in [None, Some(entry_of(&wanted, "ext4"))] {
        for at in [MountState::Foreign(mounted("tmpfs", "rw")), MountState::Stack(2)] {
            let result = start(&wanted, &seen(entry.clone(), Some(device(3)), at.clone()));
            assert!(matches!(result, Err(Error::InUse { .. })), "{at:?}: {result:?}");
        }
    }
}

#[test]
fn interrupted_stage_is_begun_afresh() {
    let wanted = filesystem(EXT4, &[]);
    let at = |phase| StageEntry { phase, ..entry_of(&wanted, "ext4") };
    type Case<'a> = (StageEntry, bool, Option<Source>, MountState, &'a [Start]);
    let afresh = [Start::ClearMounts, Start::Disconnect, Start::Begin, Start::Connect];
    let cases: [Case<'_>; 7] = [
        // What the journal names is not what the volume is now: it is let go first.
        (at(Phase::Staging), true, None, MountState::Nothing, &afresh),
        (at(Phase::Staged), true, Some(device(4)), ours(), &afresh),
        (at(Phase::Staging), true, Some(device(3)), ours(), &[Start::ClearMounts, Start::Begin, Start::Connect]),
        (at(Phase::Unstaging), true, Some(device(3)), ours(), &[Start::ClearMounts, Start::Begin, Start::Connect]),
        // An administrator unmounted it.
        (at(Phase::Staged), true, Some(device(3)), MountState::Nothing, &[Start::ClearMounts, Start::Begin, Start::Connect]),
        // A reboot: numbers and mounts of before mean nothing.
        (at(Phase::Staged), false, None, MountState::Nothing, &[Start::Begin, Start::Connect]),
        (
            StageEntry { read_only: true, ..at(Phase::Staged) },
            false,
            Some(device(4)),
            MountState::Nothing,
            &[Start::Disconnect, Start::Begin, Start::Connect],
        ),
    ];
    for (entry, same_boot, connected, staging, steps) in cases {
        let seen = StageObservation { entry: Some(entry), same_boot, used: connected.clone(), connected, staging };
        assert_eq!(start(&wanted, &seen).expect("continues"), steps, "{seen:?}");
    }
}

#[test]
fn after_a_reboot_it_may_be_staged_otherwise() {
    let entry = entry_of(&filesystem(EXT4, &[]), "ext4");
    let seen =
        StageObservation { entry: Some(entry), same_boot: false, connected: None, used: None, staging: MountState::Nothing };
    for wanted in [block(), DesiredStage { staging: "/k/other".into(), ..filesystem(XFS, &["noexec"]) }] {
        assert_eq!(start(&wanted, &seen).expect("free"), [Start::Begin, Start::Connect]);
    }
}

#[test]
fn a_mount_without_a_journal_is_taken_over_only_if_it_is_what_was_asked_for() {
    let lost = seen(None, Some(device(3)), ours());
    for wanted in [filesystem(None, &[]), filesystem(EXT4, &[])] {
        assert_eq!(start(&wanted, &lost).expect("the same"), [Start::Begin, Start::Connect, Start::Adopt]);
    }
    for wanted in [filesystem(XFS, &[]), block(), DesiredStage { read_only: true, ..filesystem(EXT4, &[]) }] {
        assert!(matches!(start(&wanted, &lost), Err(Error::Conflict { .. })), "{wanted:?}");
    }
}

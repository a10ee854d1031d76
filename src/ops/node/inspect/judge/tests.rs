//! What is concluded from what was seen.

use std::time::{Duration, Instant};

use crate::backend::{Place as Pool, Stored as InPool};
use crate::os::mountinfo::MountTable;
use crate::volume::{AccessMode, Bytes};

use super::super::super::journal::{Found, RecordedFlags, VERSION as JOURNAL};
use super::super::facts::{Entry, Facts, Looked, Ours};
use super::super::repair::Repair;
use super::super::report::{Kind, Report, Role, State};
use super::*;
use crate::backend::{BlockDevice, Connected, SharedConnection, Source, Survey};
use crate::ops::node::journal::{Access, Phase, StageEntry, TargetEntry};
use crate::volume::{Health, VolumeId};
use std::collections::BTreeMap;

const STAGING: &str = "/k/plugins/s/globalmount";
const TARGET: &str = "/k/pods/uid/volumes/kubernetes.io~csi/a/mount";

fn id(name: &str) -> VolumeId {
    format!("image:{name}").parse().expect("an id")
}

fn device(minor: u32) -> BlockDevice {
    BlockDevice { path: format!("/dev/loop{minor}").into(), number: (7, minor), identity: format!("1:{minor}") }
}

fn connected(name: &str, minor: u32) -> Connected {
    let release = ["losetup", "--detach", &format!("/dev/loop{minor}")].map(str::to_owned).to_vec();
    let shows = format!("/pool/volumes/{name}/image");
    Connected { device: device(minor), id: id(name), ours: true, shows, size: Some(Bytes::GIB), release }
}

fn stored(name: &str) -> InPool {
    InPool {
        id: id(name),
        at: format!("/pool/volumes/{name}/image"),
        capacity: Some(Bytes::GIB),
        allocated: None,
        created: None,
        attached: Vec::new(),
        health: Health::new(),
    }
}

fn stage(name: &str, minor: u32, staging: &str) -> StageEntry {
    StageEntry {
        version: JOURNAL,
        id: id(name),
        phase: Phase::Staged,
        source: Some(Source::Device(device(minor))),
        mapping: None,
        access: Access::Filesystem { fstype: Some("ext4".to_owned()), mount_flags: RecordedFlags::default() },
        mode: AccessMode::SingleNodeWriter,
        staging: staging.into(),
        read_only: false,
        format: None,
        growth: None,
        inline: false,
        boot: "boot".to_owned(),
        parameters: serde_json::Value::Null,
        created: 1,
    }
}

fn entry(stage: Option<StageEntry>, name: &str, targets: &[&str]) -> Entry {
    let target = |path: &&str| TargetEntry {
        version: JOURNAL,
        id: id(name),
        target: path.into(),
        block: false,
        read_only: false,
        device: None,
        boot: "boot".to_owned(),
    };
    let found = Found {
        id: id(name),
        directory: format!("/s/journal/image:{name}").into(),
        stage,
        written: None,
        targets: targets.iter().map(target).collect(),
        damaged: Vec::new(),
        unreadable: Vec::new(),
    };
    Entry { found, still: Some(true), moving: false }
}

/// Volume a on loop3, staged and published, with all that belongs to it.
fn facts() -> Facts {
    let pool = Pool {
        name: "default".to_owned(),
        at: "/pool".to_owned(),
        total: Bytes::GIB,
        free: Bytes::GIB,
        read_only: false,
        provisioner: None,
        recorded: None,
    };
    let survey = Survey { places: vec![pool], volumes: vec![stored("a")], devices: vec![connected("a", 3)], ..Survey::default() };
    Facts {
        boot: "boot".to_owned(),
        kubelet: "/k".into(),
        state: "/s".into(),
        endpoint: "/run/csi.sock".into(),
        journal: vec![entry(Some(stage("a", 3, STAGING)), "a", &[TARGET])],
        mounts: mounts(&[(3, STAGING), (3, TARGET)]),
        backends: BTreeMap::from([("image".to_owned(), Looked::Seen(survey))]),
        mappings: Some(Vec::new()),
        ..Facts::default()
    }
}

fn mounts(all: &[(u32, &str)]) -> MountTable {
    let mut text = "1 1 0:1 / / rw - rootfs rootfs rw\n".to_owned();
    for (at, (minor, place)) in all.iter().enumerate() {
        text.push_str(&format!("{} 1 7:{minor} / {place} rw - ext4 /dev/loop{minor} rw\n", at + 10));
    }
    MountTable::parse(text.as_bytes()).expect("a mountinfo")
}

fn survey(facts: &mut Facts) -> &mut Survey {
    match facts.backends.get_mut("image") {
        Some(Looked::Seen(survey)) => survey,
        _ => panic!("a survey"),
    }
}

fn report(facts: &Facts) -> Report {
    judge(facts, "node", "driver")
}

/// What was found, and whether `--fix` does it.
fn found(facts: &Facts) -> Vec<(Kind, bool)> {
    report(facts).findings.iter().map(|finding| (finding.kind, finding.fix)).collect()
}

#[test]
fn a_whole_stack_is_shown_and_nothing_is_found() {
    let report = report(&facts());
    assert!(report.is_well(), "{report:#?}");
    let volume = &report.volumes[0];
    let places: Vec<_> = volume.places.iter().map(|place| (place.role, place.mounted, place.pod_uid.as_deref())).collect();
    assert_eq!(places, [(Role::Staging, true, None), (Role::Target, true, Some("uid"))]);
    assert_eq!((volume.state, volume.devices.len(), volume.devices[0].journaled), (State::Staged, 1, true));
}

#[test]
fn the_kubelets_subpaths_of_a_published_volume_belong_to_it() {
    let subpath = "/k/pods/uid/volume-subpaths/a/c/0";
    let mut facts = facts();
    facts.mounts = mounts(&[(3, STAGING), (3, TARGET), (3, subpath)]);
    assert_eq!(found(&facts), []);
    facts.mounts = mounts(&[(3, STAGING), (3, TARGET), (3, "/k/pods/other/volume-subpaths/a/c/0")]);
    assert_eq!(found(&facts), [(Kind::MountUnknown, false)], "of a pod that has not got it");
}

#[test]
fn without_a_journal_all_is_unowned_and_what_a_pod_may_use_stays() {
    let mut facts = facts();
    facts.journal.clear();
    let all = [(Kind::MountUnknown, true), (Kind::MountUnknown, false), (Kind::DeviceUnowned, false)];
    assert_eq!(found(&facts), all);
    facts.mounts = mounts(&[(3, STAGING)]);
    assert_eq!(found(&facts), [(Kind::MountUnknown, true), (Kind::DeviceUnowned, true)]);
    facts.mounts = mounts(&[(3, "/mnt/rescue")]);
    assert_eq!(found(&facts), [(Kind::MountUnknown, false), (Kind::DeviceUnowned, false)], "mounted by hand");
    survey(&mut facts).devices[0].ours = false;
    facts.mounts = mounts(&[]);
    assert_eq!(found(&facts), [(Kind::DeviceUnowned, false)], "attached by hand");
}

#[test]
fn a_stage_without_its_mount_is_undone_only_where_nothing_is_published() {
    let mut facts = facts();
    facts.mounts = mounts(&[(3, TARGET)]);
    assert_eq!(found(&facts), [(Kind::MountMissing, false)]);
    facts.mounts = mounts(&[]);
    assert_eq!(found(&facts), [(Kind::TargetMissing, true), (Kind::MountMissing, true)]);
    let report = report(&facts);
    let commands = &report.findings[1].commands;
    assert_eq!(commands[0], "losetup --detach /dev/loop3");
    assert!(commands[1].starts_with("rm --force -- /s/journal/image:a/stage.json "), "{commands:?}");
    assert_eq!(report.volumes[0].problems[0].reason, "MountMissing");
}

#[test]
fn a_driver_that_runs_is_asked_and_what_it_is_at_is_left_alone() {
    let mut facts = facts();
    facts.mounts = mounts(&[(3, TARGET)]);
    facts.driver = Some(super::super::report::Process { pid: Some(1), since: None, answers: true });
    let commands = report(&facts).findings[0].commands.clone();
    assert_eq!(commands, [format!("longshore call --endpoint unix:///run/csi.sock unstage-volume image:a --staging {STAGING}")]);
    facts.journal[0].moving = true;
    assert!(report(&facts).is_well());
    facts.journal[0].moving = false;
    if let Some(stage) = &mut facts.journal[0].found.stage {
        stage.phase = Phase::Unstaging;
    }
    assert!(report(&facts).is_well());
    assert_eq!(report(&facts).running.operations[0].operation, "unstage");
    facts.driver = None;
    assert_eq!(found(&facts), [(Kind::StageInterrupted, true)]);
}

#[test]
fn of_a_device_that_is_anothers_by_now_nothing_is_the_volumes() {
    let mut facts = facts();
    facts.journal[0].still = Some(false);
    survey(&mut facts).devices.clear();
    let kinds = found(&facts);
    assert_eq!(kinds, [(Kind::MountForeign, false), (Kind::MountForeign, false)], "what is mounted there now is not ours");
    facts.mounts = mounts(&[]);
    assert_eq!(found(&facts), [(Kind::TargetMissing, true), (Kind::DeviceMissing, true)]);
}

#[test]
fn unreadable_state_leads_to_no_finding() {
    let mut facts = facts();
    facts.mounts = mounts(&[]);
    facts.backends.insert("image".to_owned(), Looked::Failed);
    facts.journal[0].still = None;
    facts.not_seen.push(super::super::report::NotSeen { what: "backend image".to_owned(), why: "down".to_owned() });
    let report = report(&facts);
    assert!(report.is_well() && report.volumes[0].state == State::Staged, "{report:#?}");
    facts.backends.clear();
    assert_eq!(found(&facts), [], "nor of a backend that is not configured");
}

#[test]
fn of_a_pool_in_part_unseen_nothing_is_repaired() {
    let mut facts = facts();
    facts.mounts = mounts(&[]);
    survey(&mut facts).unseen.push(("pool b".to_owned(), "away".to_owned()));
    assert_eq!(found(&facts), [(Kind::TargetMissing, false), (Kind::MountMissing, false)]);
}

#[test]
fn a_second_device_over_an_image_is_an_orphan_and_the_first_is_not() {
    let mut facts = facts();
    survey(&mut facts).devices.push(connected("a", 4));
    let report = report(&facts);
    assert_eq!(report.findings.len(), 1);
    let Some(Repair::Release { device: released, .. }) = &report.findings[0].repair else { panic!("{report:#?}") };
    assert_eq!(released, &device(4));
}

#[test]
fn ephemeral_and_half_written_entries_are_left_to_the_driver() {
    let mut facts = facts();
    facts.mounts = mounts(&[]);
    let change = |facts: &mut Facts, change: &dyn Fn(&mut StageEntry)| {
        if let Some(stage) = &mut facts.journal[0].found.stage {
            change(stage);
        }
    };
    change(&mut facts, &|stage| stage.inline = true);
    assert_eq!(found(&facts), [(Kind::TargetMissing, false), (Kind::MountMissing, false)]);
    change(&mut facts, &|stage| (stage.inline, stage.growth) = (false, Some(String::new())));
    assert_eq!(found(&facts), [(Kind::TargetMissing, true), (Kind::MountMissing, false)]);
    // Nothing of it is on the node: remembered, and no orphan.
    change(&mut facts, &|stage| (stage.phase, stage.source) = (Phase::Staging, None));
    facts.journal[0].found.targets.clear();
    survey(&mut facts).devices.clear();
    assert!(found(&facts).is_empty());
    assert_eq!(report(&facts).volumes[0].state, State::Interrupted);
}

#[test]
fn device_map_of_published_block_volume_belongs_to_it() {
    let devices = "/k/plugins/kubernetes.io/csi/volumeDevices";
    let [target, map, other] =
        ["publish/pvc-1/uid", "pvc-1/dev/uid", "pvc-1/dev/other"].map(|place| format!("{devices}/{place}"));
    let mut facts = facts();
    facts.journal = vec![entry(Some(StageEntry { access: Access::Block, ..stage("a", 3, STAGING) }), "a", &[&target])];
    facts.mounts = mounts(&[(3, &target), (3, &map)]);
    assert_eq!(found(&facts), []);
    let places: Vec<_> = report(&facts).volumes[0].places.iter().map(|place| (place.role, place.pod_uid.clone())).collect();
    assert_eq!(places, [(Role::Target, Some("uid".to_owned())), (Role::DeviceMap, Some("uid".to_owned()))]);
    // Of a pod that the volume is not published for: a pod may be using it all the same.
    facts.mounts = mounts(&[(3, &target), (3, &other)]);
    assert_eq!(found(&facts), [(Kind::MountUnknown, false)]);
}

#[test]
fn staging_mount_of_published_inline_volume_is_not_needed() {
    let mut facts = facts();
    facts.mounts = mounts(&[(3, TARGET)]);
    let inline = |facts: &mut Facts, inline| facts.journal[0].found.stage.as_mut().expect("a stage").inline = inline;
    inline(&mut facts, true);
    let seen = report(&facts);
    assert!(seen.is_well(), "{:?}", seen.findings);
    let volume = &seen.volumes[0];
    assert!(volume.problems.is_empty() && volume.places.iter().all(|place| place.mounted), "{volume:?}");
    inline(&mut facts, false);
    assert_eq!(found(&facts), [(Kind::MountMissing, false)]);
}

#[test]
fn a_mapping_without_a_stage_goes_before_its_device() {
    let mut facts = facts();
    facts.journal.clear();
    facts.mounts = mounts(&[]);
    let mapped = crate::os::dm::Mapped {
        path: "/dev/dm-0".into(),
        number: (253, 0),
        uuid: "CRYPT-LUKS2-0-longshore-x-image:a".to_owned(),
        live: true,
        suspended: false,
        open: false,
        below: vec![(7, 3)],
    };
    facts.mappings = Some(vec![Ours { name: "longshore-x-image:a".to_owned(), id: id("a"), mapped }]);
    assert_eq!(found(&facts), [(Kind::MappingUnowned, true), (Kind::DeviceUnowned, true)]);
    assert_eq!(report(&facts).findings[0].commands, ["cryptsetup close longshore-x-image:a"]);
    let line = format!("1 1 0:1 / / rw - rootfs rootfs rw\n10 1 253:0 / {STAGING} rw - xfs /dev/mapper/x rw\n");
    facts.mounts = MountTable::parse(line.as_bytes()).expect("a mountinfo");
    assert_eq!(found(&facts)[0], (Kind::MountUnknown, true), "mounts of the mapping are the volume's");
}

#[test]
fn a_volume_is_found_by_a_part_of_its_id_that_no_other_has() {
    let mut facts = facts();
    survey(&mut facts).volumes = vec![stored("pvc-1"), stored("pvc-12"), stored("pvc-3")];
    facts.journal.clear();
    survey(&mut facts).devices.clear();
    let report = report(&facts);
    assert_eq!(report.find("pvc-1"), Ok("image:pvc-1".to_owned()), "a whole id goes before a part of another");
    assert_eq!(report.find("-3"), Ok("image:pvc-3".to_owned()));
    assert_eq!(report.find("pvc-").map_err(|several| several.len()), Err(3));
    assert_eq!(report.find("x"), Err(Vec::new()));
}

#[test]
fn a_thousand_stacks_take_no_time() {
    let names: Vec<String> = (0..1000).map(|n| format!("v{n}")).collect();
    let places: Vec<(String, String)> = names
        .iter()
        .map(|name| (format!("/k/plugins/{name}/globalmount"), format!("/k/pods/uid-{name}/volumes/x/{name}/mount")))
        .collect();
    let mut facts = facts();
    let mut all = Vec::new();
    for (minor, (staging, target)) in (0_u32..).zip(&places) {
        all.extend([(minor, staging.as_str()), (minor, target.as_str())]);
    }
    facts.mounts = mounts(&all);
    let stacks = || (0_u32..).zip(names.iter().zip(&places));
    facts.journal =
        stacks().map(|(minor, (name, (staging, target)))| entry(Some(stage(name, minor, staging)), name, &[target])).collect();
    survey(&mut facts).volumes = names.iter().map(|name| stored(name)).collect();
    survey(&mut facts).devices = stacks().map(|(minor, (name, _))| connected(name, minor)).collect();
    let begun = Instant::now();
    let report = report(&facts);
    assert!(report.is_well() && report.volumes.len() == 1000, "{:?}", report.findings.first());
    // Some 30 ms without optimisation; what is caught here is a quadratic search.
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

fn connection(users: &[&str]) -> SharedConnection {
    let release = vec![["umount", "--", "/s/nfs/x/mount"].map(str::to_owned).to_vec()];
    let users = users.iter().map(|name| id(name)).collect();
    SharedConnection {
        object: "/s/nfs/x/mount".to_owned(),
        state: "server:/share".to_owned(),
        up: true,
        users,
        devices: Vec::new(),
        release,
    }
}

#[test]
fn shared_connection_without_journaled_volume_is_unowned() {
    let found =
        |connection: SharedConnection| judge(&Facts { connections: vec![("nfs".to_owned(), connection)], ..facts() }, "n", "d");
    let well = found(connection(&["a", "gone"]));
    assert!(well.is_well(), "{:?}", well.findings);
    assert_eq!(well.connections.first().map(|connection| connection.volumes.len()), Some(2));
    for (users, volume) in [(&[][..], None), (&["gone"], Some("image:gone")), (&["gone", "too"], None)] {
        let report = found(connection(users));
        let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
        assert_eq!((finding.kind, finding.volume.as_deref(), finding.fix), (Kind::LinkUnowned, volume, true));
        assert_eq!(finding.commands, ["umount -- /s/nfs/x/mount"]);
    }
    // What is staged from it, or mounted, keeps it, whatever its users are.
    let staged = found(SharedConnection { devices: vec![device(3)], ..connection(&[]) });
    assert!(staged.is_well(), "{:?}", staged.findings);
    let line = "90 1 8:16 / /mnt/by-hand rw - ext4 /dev/sdb rw\n";
    let disk = BlockDevice { path: "/dev/sdb".into(), number: (8, 16), identity: "LUN 0 of t".to_owned() };
    let connections = vec![("san".to_owned(), SharedConnection { devices: vec![disk], ..connection(&["gone"]) })];
    let mounts = MountTable::parse(line.as_bytes()).expect("a table");
    let report = judge(&Facts { connections, mounts, journal: Vec::new(), ..facts() }, "n", "d");
    let reported = report.findings.iter().find(|finding| finding.kind == Kind::LinkUnowned).expect("reported");
    assert!(!reported.fix && reported.why_not.as_deref() == Some("/mnt/by-hand is mounted from it"), "{reported:?}");
}

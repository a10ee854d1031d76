//! The journal on a disk.

use std::collections::BTreeMap;

use super::entries::{Access, Format, Phase, RecordedFlags, StageEntry, TargetEntry, VERSION};
use super::files::{STAGE, encode, names, target_name};
use super::snapshot::look;
use super::*;
use crate::backend::{BlockDevice, Source};
use crate::os::fs::mark::Purpose;
use crate::volume::{AccessMode, MountFlags, VolumeId};
use std::fs;
use std::path::Path;

fn id() -> VolumeId {
    "image:a".parse().expect("valid")
}

pub fn entry() -> StageEntry {
    StageEntry {
        version: VERSION,
        id: id(),
        phase: Phase::Staging,
        source: None,
        mapping: None,
        access: Access::Filesystem { fstype: None, mount_flags: vec!["noexec".to_owned()].into() },
        mode: AccessMode::SingleNodeWriter,
        staging: "/var/lib/kubelet/s".into(),
        read_only: false,
        format: Some(Format { purpose: Purpose::Luks, offset: 4096 }),
        growth: None,
        inline: false,
        boot: "b".to_owned(),
        parameters: serde_json::json!({ "node": BTreeMap::<String, String>::new() }),
        created: 1,
    }
}

fn target(path: &str) -> TargetEntry {
    TargetEntry {
        version: VERSION,
        id: id(),
        target: path.into(),
        block: true,
        read_only: true,
        device: Some(BlockDevice { path: "/dev/loop3".into(), number: (7, 3), identity: "x".to_owned() }),
        boot: "b".to_owned(),
    }
}

fn flags(options: &[&str]) -> MountFlags {
    options.iter().map(|&option| option.to_owned()).collect()
}

#[test]
fn recorded_mount_options_are_compared_and_their_values_are_not_written() {
    let given = flags(&["noexec", "password=hunter2", "context=\"a:b,c\"", "empty="]);
    let recorded = RecordedFlags::from(&given);
    let text = serde_json::to_string(&recorded).expect("it serializes");
    assert!(text.contains("noexec") && text.contains("password=sha256:") && !text.contains("hunter2"), "{text}");
    assert_ne!(text, serde_json::to_string(&RecordedFlags::from(&given)).expect("it serializes"), "salted");
    let read: RecordedFlags = serde_json::from_str(&text).expect("it is read");
    assert_eq!(read, recorded);
    // As earlier versions wrote it; what is written again has no value.
    let clear: RecordedFlags = serde_json::from_value(given.expose().into()).expect("it is read");
    assert!(!format!("{clear:?}{}", serde_json::to_string(&clear).expect("it serializes")).contains("hunter2"));
    for recorded in [&recorded, &read, &clear] {
        assert!(recorded.are(&given));
        assert!(recorded.are(&flags(&["empty=", "context=\"a:b,c\"", "noexec", "password=hunter2"])), "in another order");
        for other in [
            &["noexec", "password=hunter3", "context=\"a:b,c\"", "empty="][..],
            &["noexec", "password", "context=\"a:b,c\"", "empty="],
            &["noexec", "password=hunter2", "context=\"a:b,c\""],
            &["noexec", "noexec", "password=hunter2", "context=\"a:b,c\"", "empty="],
        ] {
            assert!(!recorded.are(&flags(other)), "{other:?}");
        }
        assert_eq!(recorded.names().to_string(), "noexec,password=***,context=***,empty=***");
        assert_eq!(recorded.without_values(), None);
    }
    let twice = RecordedFlags::from(&flags(&["ro", "ro"]));
    assert!(!twice.are(&flags(&["ro", "rw"])) && !twice.are(&flags(&["ro"])) && twice.are(&flags(&["ro", "ro"])));
    assert_eq!(twice.without_values(), Some(flags(&["ro", "ro"])));
    // A value that looks like a digest is digested as any other.
    let odd = flags(&[&format!("a=sha256:{}:{}", "0".repeat(16), "0".repeat(64))]);
    assert!(RecordedFlags::from(&odd).are(&odd));
}

#[test]
fn entry_is_read_as_written_and_the_last_removal_leaves_no_directory() {
    let state = tempfile::tempdir().expect("a directory");
    let journal = Journal::open(state.path()).expect("opens");
    assert_eq!(journal.stage(&id()).expect("reads"), None);
    journal.write_stage(&entry()).expect("writes");
    journal.write_target(&target("/t/1")).expect("writes");
    journal.write_target(&target("/t/2")).expect("writes");
    assert_eq!(journal.stage(&id()).expect("reads"), Some(entry()));
    assert_eq!(journal.target(&id(), Path::new("/t/2")).expect("reads"), Some(target("/t/2")));
    assert_eq!(journal.targets(&id()).expect("reads").len(), 2);
    assert_eq!(journal.volumes().expect("reads"), [id()]);
    let found = look(state.path()).expect("reads").volumes;
    assert_eq!((found.len(), &found[0].stage, found[0].targets.len()), (1, &Some(entry()), 2));
    assert!(found[0].files().iter().all(|file| file.exists()) && found[0].files().len() == 3);
    journal.remove_target(&id(), Path::new("/t/1")).expect("removes");
    journal.remove_target(&id(), Path::new("/t/1")).expect("removes again");
    journal.remove_stage(&id()).expect("removes");
    assert!(journal.knows(&id()).expect("reads"), "one target is left");
    journal.remove_target(&id(), Path::new("/t/2")).expect("removes");
    assert!(!state.path().join("journal/image:a").exists());
    journal.remove_stage(&id()).expect("nothing to remove is fine");
}

#[test]
fn drafts_of_killed_writers_are_swept_and_entries_stay() {
    let state = tempfile::tempdir().expect("a directory");
    let journal = Journal::open(state.path()).expect("opens");
    journal.write_stage(&entry()).expect("writes");
    let directory = state.path().join("journal");
    fs::write(directory.join("image:a/.stage.json.tmp"), "{").expect("writes");
    fs::write(directory.join(".frozen-1-0.json.tmp"), "{").expect("writes");
    fs::create_dir(directory.join("image:b")).expect("makes");
    fs::write(directory.join("image:b/.stage.json.tmp"), "").expect("writes");
    journal.sweep().expect("sweeps");
    assert_eq!(names(&directory).expect("reads"), ["image:a"]);
    assert_eq!(names(&directory.join("image:a")).expect("reads"), ["stage.json"]);
    journal.sweep().expect("nothing to sweep is fine");
}

#[test]
fn a_torn_file_is_kept_aside_and_nothing_is_guessed() {
    let state = tempfile::tempdir().expect("a directory");
    let journal = Journal::open(state.path()).expect("opens");
    journal.write_stage(&entry()).expect("writes");
    let path = state.path().join("journal/image:a/stage.json");
    let whole = fs::read(&path).expect("reads");
    for length in [0, 1, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).expect("tears it");
        assert!(look(state.path()).expect("reads").volumes[0].damaged.contains(&path), "and left where it is");
        assert_eq!(journal.stage(&id()).expect("no error"), None, "{length} bytes");
        assert!(!path.exists() && path.with_extension("json.damaged").exists());
    }
    let found = look(state.path()).expect("reads").volumes;
    assert_eq!(found[0].damaged, [path.with_extension("json.damaged")]);
    assert!(journal.knows(&id()).expect("reads"));
}

#[test]
fn a_field_that_is_not_known_is_damage_wherever_it_stands() {
    let device = BlockDevice { path: "/dev/loop3".into(), number: (7, 3), identity: "x".to_owned() };
    let entry = StageEntry { source: Some(Source::Device(device)), ..entry() };
    let whole = String::from_utf8(encode(&entry).expect("encodes")).expect("text");
    assert!(serde_json::from_slice::<StageEntry>(whole.as_bytes()).is_ok());
    for (field, misspelt) in [("fstype", "0stype"), ("identity", "identity\": \"x\", \"more"), ("boot", "boots")] {
        let damaged = whole.replace(&format!("\"{field}\""), &format!("\"{misspelt}\""));
        assert!(damaged != whole && serde_json::from_slice::<StageEntry>(damaged.as_bytes()).is_err(), "{damaged}");
    }
}

/// As an earlier version finds it after a downgrade.
#[test]
fn entry_of_a_later_form_is_kept_and_its_volume_refused() {
    let state = tempfile::tempdir().expect("a directory");
    let journal = Journal::open(state.path()).expect("opens");
    journal.write_stage(&entry()).expect("writes");
    journal.write_target(&target("/t/1")).expect("writes");
    let directory = state.path().join("journal/image:a");
    let later = |name: &str| {
        let path = directory.join(name);
        let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("reads")).expect("JSON");
        let object = fields.as_object_mut().expect("an object");
        object.extend([("version".to_owned(), (VERSION + 1).into()), ("added".to_owned(), true.into())]);
        object.retain(|name, _| name != "boot");
        fs::write(&path, fields.to_string()).expect("writes");
        fields.to_string()
    };
    let (stage, target) = (later(STAGE), later(&target_name(Path::new("/t/1"))));
    let errors = [
        journal.stage(&id()).expect_err("of a later form"),
        journal.target(&id(), Path::new("/t/1")).expect_err("of a later form"),
        journal.targets(&id()).expect_err("of a later form"),
    ];
    for error in errors {
        let text = crate::volume::error::chain(&error);
        let form = format!("form {}, this version reads 1 to {VERSION}", VERSION + 1);
        assert!(text.contains("image:a") && text.contains(&form) && text.contains("start that version"), "{text}");
    }
    journal.sweep().expect("sweeps");
    assert!(journal.knows(&id()).expect("reads"));
    let found = look(state.path()).expect("reads").volumes;
    assert!(found[0].unreadable.len() == 2 && found[0].damaged.is_empty(), "{found:?}");
    assert_eq!(fs::read_to_string(directory.join(STAGE)).expect("kept"), stage);
    assert_eq!(fs::read_to_string(directory.join(target_name(Path::new("/t/1")))).expect("kept"), target);
    assert_eq!(names(&directory).expect("reads").len(), 2, "nothing is kept aside");
}

#[test]
fn target_of_an_earlier_form_is_read_without_a_device() {
    let state = tempfile::tempdir().expect("a directory");
    let journal = Journal::open(state.path()).expect("opens");
    journal.write_target(&target("/t/1")).expect("writes");
    let path = state.path().join("journal/image:a").join(target_name(Path::new("/t/1")));
    let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("reads")).expect("JSON");
    fields.as_object_mut().expect("an object").remove("device");
    for version in 1..VERSION {
        fields["version"] = version.into();
        fs::write(&path, fields.to_string()).expect("writes");
        let read = journal.target(&id(), Path::new("/t/1")).expect("reads");
        assert_eq!(read, Some(TargetEntry { device: None, ..target("/t/1") }), "form {version}");
    }
}

#[test]
fn entry_of_the_first_form_is_read_without_its_evidence() {
    let state = tempfile::tempdir().expect("a directory");
    let journal = Journal::open(state.path()).expect("opens");
    let current = StageEntry { format: None, ..entry() };
    journal.write_stage(&current).expect("writes");
    let path = state.path().join("journal/image:a/stage.json");
    let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("reads")).expect("JSON");
    let object = fields.as_object_mut().expect("an object");
    object.retain(|name, _| !["format", "growth"].contains(&name.as_str()));
    object.extend([("version".to_owned(), 1.into()), ("formatting".to_owned(), "xfs".into())]);
    object.extend([("encrypting".to_owned(), true.into()), ("growing".to_owned(), true.into())]);
    fs::write(&path, fields.to_string()).expect("writes");
    assert_eq!(journal.stage(&id()).expect("reads"), Some(current));
}

#[test]
fn an_entry_of_another_volume_is_no_entry() {
    let state = tempfile::tempdir().expect("a directory");
    let journal = Journal::open(state.path()).expect("opens");
    journal.write_stage(&entry()).expect("writes");
    let other: VolumeId = "image:b".parse().expect("valid");
    fs::rename(state.path().join("journal/image:a"), state.path().join("journal/image:b")).expect("moves");
    assert!(journal.stage(&other).is_err());
}

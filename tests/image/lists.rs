//! Lists come from memory only as long as the disk shows that they may.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use longshore::backend::Backend;
use longshore::backend::image::ImageBackend;
use longshore::volume::{Bytes, ContentSource, VolumeId};
use serde_json::Value;

use super::harness::*;

/// What the metadata files say: by id, name, capacity or size, source and parameters.
fn on_disk(path: &Path, kind: &str) -> BTreeMap<String, (String, u64, Value, Value)> {
    let directory = path.join(kind);
    let of = |name: &String| {
        let text = fs::read(directory.join(name).join("meta.json")).expect("metadata");
        let meta: Value = serde_json::from_slice(&text).expect("JSON");
        let text = |field: &str| meta[field].as_str().expect("text").to_owned();
        let size = meta["capacity"].as_u64().or_else(|| meta["size"].as_u64()).expect("bytes");
        (text("id"), (text("name"), size, meta["source"].clone(), meta["parameters"].clone()))
    };
    names(&directory).iter().map(of).collect()
}

/// Lists twice: once as it is, and once more from what the first list has read.
fn assert_lists_are_the_disk(backend: &ImageBackend, path: &Path, when: &str) {
    for _ in 0..2 {
        let volumes = provision(backend).list(None, 99).expect("a list").into_iter();
        let volumes = volumes.map(|volume| {
            let source = serde_json::to_value(&volume.source).expect("JSON");
            (volume.id.to_string(), (volume.name, volume.capacity.0, source, volume.parameters))
        });
        assert_eq!(volumes.collect::<BTreeMap<_, _>>(), on_disk(path, "volumes"), "{when}");
        let snapshots = snapshots(backend).list_snapshots(None, None, 99).expect("a list").into_iter();
        let snapshots = snapshots.map(|found| {
            let source = Value::from(found.source.to_string());
            (found.id.to_string(), (found.name, found.size.0, source, Value::Null))
        });
        assert_eq!(snapshots.collect::<BTreeMap<_, _>>(), on_disk(path, "snapshots"), "{when}");
    }
}

#[test]
fn lists_equal_the_disk_after_each_change_of_ours_and_of_others() {
    let (directory, aside) = (directory(), directory());
    let path = directory.path();
    let backend = open_at(path);
    let check = |when| assert_lists_are_the_disk(&backend, path, when);
    for name in ["a", "b", "c"] {
        create(&backend, name, MIB);
    }
    check("created");
    let parameters = [("onDelete", "retain")];
    create_with(&backend, &spec("d", 2 * MIB, &parameters)).expect("created");
    take(&backend, "s", "a");
    take(&backend, "t", "b");
    check("snapshots taken");
    create_from(&backend, "e", MIB, ContentSource::Snapshot(snapshot_id("s"))).expect("restored");
    check("restored");
    for capacity in [2 * MIB, 3 * MIB] {
        backend.expand().expect("expands").expand(&volume_id("a"), Bytes(capacity)).expect("grown");
        check("expanded");
    }
    snapshots(&backend).delete_snapshot(&snapshot_id("t")).expect("deleted");
    provision(&backend).delete(&volume_id("b")).expect("deleted");
    check("deleted");
    create_with(&backend, &spec("b", 5 * MIB, &parameters)).expect("created");
    check("made anew");

    // An administrator moves a volume away and back, gives one another's size, and replaces metadata by what a backup had.
    fs::rename(path.join("volumes/c"), aside.path().join("c")).expect("moved");
    check("moved away");
    fs::rename(aside.path().join("c"), path.join("volumes/c")).expect("moved");
    check("moved back");
    let meta = path.join("volumes/c/meta.json");
    let text = fs::read_to_string(&meta).expect("metadata");
    let smaller = text.replace("\"capacity\": 1048576", "\"capacity\": 1048000");
    assert_ne!(smaller, text);
    fs::write(&meta, &smaller).expect("written");
    check("written in place");
    fs::write(aside.path().join("meta.json"), &text).expect("written");
    fs::rename(aside.path().join("meta.json"), &meta).expect("replaced");
    check("replaced");

    drop(backend);
    let backend = open_at(path);
    assert_lists_are_the_disk(&backend, path, "restarted");
}

#[test]
fn damage_after_a_list_is_seen_by_the_next_one() {
    let directory = directory();
    let path = directory.path();
    let backend = open_at(path);
    create(&backend, "v", MIB);
    take(&backend, "s", "v");
    let listed = || {
        let volumes = provision(&backend).list(None, 9).expect("a list");
        let names: Vec<String> = volumes.into_iter().map(|volume| volume.name).collect();
        (names, snapshots(&backend).list_snapshots(None, None, 9).expect("a list").len())
    };
    assert_eq!(listed(), (vec!["v".to_owned()], 1));
    for directory in ["volumes/v", "snapshots/s"] {
        let meta = path.join(directory).join("meta.json");
        let text = fs::read(&meta).expect("read");
        fs::write(&meta, &text[..text.len() / 2]).expect("cut");
    }
    // A damaged volume is not absent, but nothing is known of it; of a snapshot not even which volume's it is.
    assert_eq!(listed(), (vec![String::new()], 0));
}

/// Calls of read(2) by this thread.
fn reads() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/io").expect("I/O accounting");
    let line = text.lines().find_map(|line| line.strip_prefix("syscr: ")).expect("a count");
    line.parse().expect("a number")
}

#[test]
fn list_of_what_did_not_change_reads_no_file() {
    let directory = directory();
    let backend = open_at(directory.path());
    for number in 0..20 {
        create(&backend, &format!("v{number}"), MIB);
        take(&backend, &format!("s{number}"), &format!("v{number}"));
    }
    let list = |backend: &ImageBackend| {
        let before = reads();
        let after: Option<&VolumeId> = None;
        assert_eq!(provision(backend).list(after, 99).expect("a list").len(), 20);
        assert_eq!(snapshots(backend).list_snapshots(None, None, 99).expect("a list").len(), 20);
        reads() - before
    };
    // What was made is read once, by the first list; what was there when the pool was opened has been read.
    assert!(list(&backend) >= 40);
    assert!(list(&backend) < 10);
    drop(backend);
    assert!(list(&open_at(directory.path())) < 10);
}

#[test]
fn pool_of_many_volumes_is_counted_whole_when_it_is_opened() {
    const MANY: u64 = 1000;
    let directory = directory();
    let path = directory.path();
    let backend = open_at(path);
    create(&backend, "v0", MIB);
    drop(backend);
    let meta = fs::read_to_string(path.join("volumes/v0/meta.json")).expect("read");
    for number in 1..MANY {
        let name = format!("v{number}");
        let volume = path.join("volumes").join(&name);
        fs::create_dir(&volume).expect("made");
        fs::write(volume.join("meta.json"), meta.replace("v0", &name)).expect("written");
        fs::File::create(volume.join("image")).and_then(|image| image.set_len(MIB)).expect("an image");
    }
    // Of what is damaged the image counts.
    fs::write(path.join("volumes/v1/meta.json"), &meta[..20]).expect("cut");
    fs::File::options().write(true).open(path.join("volumes/v1/image")).and_then(|image| image.set_len(3 * MIB)).expect("longer");
    fs::remove_file(path.join("volumes/v2/image")).expect("removed");

    let backend = open_at(path);
    let usage = backend.usage().pools.remove(0).1.expect("usage").provisioned.expect("counted");
    assert_eq!((usage.volumes, usage.provisioned), (MANY, Bytes((MANY + 2) * MIB)));
    let listed = provision(&backend).list(None, 2000).expect("a list");
    assert_eq!(listed.len() as u64, MANY);
    let sick = backend.health().expect("health").unhealthy(None, 9).expect("reported");
    assert_eq!(sick.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [volume_id("v1"), volume_id("v2")]);
}

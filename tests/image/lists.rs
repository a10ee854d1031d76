//! Lists come from memory only as long as the disk shows that they may.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

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
            (volume.id.to_string(), (volume.name, volume.capacity.0, source, (*volume.parameters).clone()))
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
    // What was made is known as it was written; what was there when the pool was opened is in its index.
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
        File::create(volume.join("image")).and_then(|image| image.set_len(MIB)).expect("an image");
    }
    // Of what is damaged the image counts.
    fs::write(path.join("volumes/v1/meta.json"), &meta[..20]).expect("cut");
    File::options().write(true).open(path.join("volumes/v1/image")).and_then(|image| image.set_len(3 * MIB)).expect("longer");
    fs::remove_file(path.join("volumes/v2/image")).expect("removed");

    let backend = open_at(path);
    let usage = backend.usage().pools.remove(0).1.expect("usage").provisioned.expect("counted");
    assert_eq!((usage.volumes, usage.provisioned), (MANY, Bytes((MANY + 2) * MIB)));
    let listed = provision(&backend).list(None, 2000).expect("a list");
    assert_eq!(listed.len() as u64, MANY);
    let sick = backend.health().expect("health").unhealthy(None, 9).expect("reported");
    assert_eq!(sick.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [volume_id("v1"), volume_id("v2")]);
}

/// The file `index` of the pool, as text.
fn index(path: &Path) -> String {
    fs::read_to_string(path.join("index")).expect("the index")
}

#[test]
fn opening_of_a_pool_with_an_index_reads_no_metadata() {
    const MANY: usize = 90;
    let directory = directory();
    let path = directory.path();
    let backend = open_at(path);
    for number in 0..MANY {
        create(&backend, &format!("v{number}"), MIB);
    }
    take(&backend, "s", "v1");
    backend.expand().expect("expands").expand(&volume_id("v2"), Bytes(2 * MIB)).expect("grown");
    provision(&backend).delete(&volume_id("v3")).expect("deleted");
    drop(backend);
    let before = reads();
    let backend = open_at(path);
    assert!(reads() - before < 40, "{} reads", reads() - before);
    assert_lists_are_the_disk(&backend, path, "opened by the index");
    let usage = backend.usage().pools.remove(0).1.expect("usage").provisioned.expect("counted");
    assert_eq!((usage.volumes, usage.snapshots), (MANY as u64 - 1, 1));
}

#[test]
fn index_that_is_damaged_outdated_or_of_another_pool_changes_nothing() {
    let (directory, other) = (directory(), directory());
    let (path, other) = (directory.path(), other.path());
    let backend = open_at(path);
    for name in ["a", "b", "c"] {
        create(&backend, name, MIB);
    }
    take(&backend, "s", "a");
    drop(backend);
    let good = index(path);
    let foreign = {
        let backend = open_at(other);
        create(&backend, "a", 7 * MIB);
        drop(backend);
        index(other)
    };
    let last = good.rfind("{\"v\"").expect("a volume's line");
    let longer = good.replace("1048576", "9048576");
    assert_ne!(longer, good);
    let cases = [
        ("empty", String::new()),
        ("no text of ours", "\u{fffd}\n\n".repeat(9)),
        ("of another pool", foreign),
        ("interrupted", good[..last + 9].to_owned()),
        ("a line twice", format!("{good}{}\n", good.lines().last().expect("a line"))),
        ("changed by hand", longer),
        ("of a later format", good.replacen("\"format\":1", "\"format\":2", 1)),
    ];
    for (name, text) in cases {
        fs::write(path.join("index"), text).expect("written");
        let backend = open_at(path);
        assert_lists_are_the_disk(&backend, path, name);
        let usage = backend.usage().pools.remove(0).1.expect("usage").provisioned.expect("counted");
        assert!(usage.volumes == 3 && usage.provisioned.0 >= 3 * MIB && usage.provisioned.0 < 4 * MIB, "{name}: {usage:?}");
    }
    // What another version changed without the index is counted as the disk shows it.
    fs::write(path.join("index"), &good).expect("written");
    let meta = path.join("volumes/b/meta.json");
    let text = fs::read_to_string(&meta).expect("read").replace("1048576", "2097152");
    File::options().write(true).open(path.join("volumes/b/image")).and_then(|image| image.set_len(2 * MIB)).expect("longer");
    fs::write(other.join("meta.json"), text).expect("written");
    fs::rename(other.join("meta.json"), &meta).expect("replaced");
    fs::remove_file(path.join("index")).and_then(|()| fs::write(path.join("index"), &good)).expect("an old index");
    let backend = open_at(path);
    let counted = || backend.usage().pools.remove(0).1.expect("usage").provisioned.expect("counted").provisioned.0;
    let until = Instant::now() + Duration::from_secs(20);
    while counted() < 4 * MIB {
        assert!(Instant::now() < until, "the changed volume is not counted");
        std::thread::yield_now();
    }
    assert_lists_are_the_disk(&backend, path, "outdated");
}

#[test]
fn index_of_a_pool_of_short_lives_does_not_grow_for_ever() {
    let directory = directory();
    let backend = open_at(directory.path());
    for number in 0..1300 {
        create(&backend, &format!("v{}", number % 7), MIB);
        provision(&backend).delete(&volume_id(&format!("v{}", number % 7))).expect("deleted");
    }
    let lines = index(directory.path()).lines().count();
    assert!(lines < 1100, "{lines} lines");
}

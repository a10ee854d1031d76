//! What volumes, snapshots and clones hold.

use std::ops::ControlFlow;

use longshore::backend::image::{ImageBackend, Role};
use longshore::backend::{Backend, VolumeSpec};
use longshore::volume::{Bytes, ContentSource, Error, OnDelete, Outcome, RawParameters, Rollback};

use crate::harness::*;

fn extents(backend: &ImageBackend, base: Option<&str>, target: &str, offset: u64) -> Vec<(u64, u64)> {
    let changed = backend.changed_blocks().expect("changed blocks");
    let mut found = Vec::new();
    let mut emit = |extent: longshore::volume::Extent| {
        found.push((extent.offset, extent.length));
        ControlFlow::Continue(())
    };
    match base {
        None => changed.allocated(&snapshot_id(target), offset, &mut emit),
        Some(base) => changed.delta(&snapshot_id(base), &snapshot_id(target), offset, &mut emit),
    }
    .expect("extents");
    found
}

#[test]
fn a_snapshot_restores_byte_by_byte_on_every_file_system() {
    for kind in Kind::ALL {
        isolated(move || {
            let disk = Disk::new(kind, 768);
            let backend = open_at(&disk.pool());
            create(&backend, "v", 128 * MIB);
            let image = disk.pool().join("volumes/v/image");
            write(&image, 0, 64 * MIB, 7);
            write(&image, 100 * MIB, MIB, 8);

            let before = disk.used();
            let snapshot = take(&backend, "s", "v");
            assert_eq!(snapshot.size, Bytes(128 * MIB));
            assert!(snapshot.ready && snapshot.group.is_none());
            let taken = disk.pool().join("snapshots/s/image");
            let grown = disk.used().saturating_sub(before);
            assert_eq!(grown < 8 * MIB, kind.shares(), "{kind:?}: a snapshot of 65 MiB took {}", Bytes(grown));
            assert!(allocated(&taken) < 70 * MIB, "{kind:?}: holes stayed holes");

            write(&image, 0, 64 * MIB, 9);
            assert!(holds(&taken, 0, 64 * MIB, 7) && holds(&taken, 100 * MIB, MIB, 8), "{kind:?}");

            let source = ContentSource::Snapshot(snapshot_id("s"));
            let restored = create_from(&backend, "r", 192 * MIB, source.clone()).expect("restored");
            assert_eq!((restored.capacity, restored.source), (Bytes(192 * MIB), Some(source)));
            let copy = disk.pool().join("volumes/r/image");
            assert_eq!(length(&copy), 192 * MIB);
            assert!(holds(&copy, 0, 64 * MIB, 7) && holds(&copy, 64 * MIB, 36 * MIB, 0) && holds(&copy, 100 * MIB, MIB, 8));
            assert!(holds(&copy, 101 * MIB, 91 * MIB, 0));

            let held = NoQuiesce::default();
            let clone = VolumeSpec { source: Some(ContentSource::Volume(volume_id("v"))), ..spec("c", 128 * MIB, &[]) };
            provision(&backend).create(&clone, &held).expect("cloned");
            assert_eq!(held.held.into_inner(), 1, "a source that may be in use is held");
            assert!(holds(&disk.pool().join("volumes/c/image"), 0, 64 * MIB, 9));

            assert_eq!(provision(&backend).delete(&volume_id("v")).expect("deleted"), Outcome::Changed(()));
            assert!(holds(&taken, 0, 64 * MIB, 7), "a snapshot outlives its volume");
            assert!(snapshots(&backend).find_snapshot(&snapshot_id("s")).expect("looked").is_some());
            assert_eq!(snapshots(&backend).delete_snapshot(&snapshot_id("s")).expect("deleted"), Outcome::Changed(()));
            assert_eq!(snapshots(&backend).delete_snapshot(&snapshot_id("s")).expect("again"), Outcome::Unchanged(()));
            assert_clean(&disk.pool());
        });
    }
}

#[test]
fn a_source_is_never_interrupted() {
    isolated(|| {
        let disk = Disk::new(Kind::Xfs, 400);
        let backend = open_at(&disk.pool());
        create(&backend, "v", 8 * MIB);
        take(&backend, "s", "v");
        let small = create_from(&backend, "r", 4 * MIB, ContentSource::Snapshot(snapshot_id("s"))).expect_err("too small");
        assert!(matches!(small, Error::OutOfRange { .. }), "{small}");
        // An expansion that was interrupted left a longer image: what a file system may have grown into is kept.
        std::fs::File::options()
            .write(true)
            .open(disk.pool().join("volumes/v/image"))
            .expect("opens")
            .set_len(16 * MIB)
            .expect("longer");
        let limited = VolumeSpec {
            source: Some(ContentSource::Volume(volume_id("v"))),
            limit: Some(Bytes(8 * MIB)),
            ..spec("c", 8 * MIB, &[])
        };
        let small = create_with(&backend, &limited).expect_err("too small");
        assert!(matches!(small, Error::OutOfRange { .. }), "{small}");
        assert_eq!(take(&backend, "s2", "v").size, Bytes(16 * MIB));
        let missing = create_from(&backend, "m", MIB, ContentSource::Snapshot(snapshot_id("none"))).expect_err("no source");
        assert!(matches!(missing, Error::NotFound { kind: "snapshot", .. }), "{missing}");
        assert_eq!(names(&disk.pool().join("volumes")), ["v"]);
        assert_clean(&disk.pool());
    });
}

#[test]
fn a_copy_whose_hold_broke_is_thrown_away() {
    let directory = directory();
    let pool = directory.path().join("pool");
    let backend = open_at(&pool);
    create(&backend, "v", 4 * MIB);
    let broken = NoQuiesce { breaks: true, ..NoQuiesce::default() };
    let error = snapshots(&backend).create_snapshot(&snapshot_spec("s", "v"), &broken).expect_err("broken");
    assert!(matches!(error, Error::Failed { rollback: Rollback::Verified, .. }), "{error}");
    assert_eq!(names(&pool.join("snapshots")), [""; 0]);
    assert_clean(&pool);
    assert_eq!(snapshots(&backend).list_snapshots(None, None, 10).expect("a list"), []);
}

#[test]
fn changed_blocks_are_what_was_written() {
    for kind in Kind::ALL {
        isolated(move || {
            let disk = Disk::new(kind, 512);
            let backend = open_at(&disk.pool());
            create(&backend, "v", 64 * MIB);
            let image = disk.pool().join("volumes/v/image");
            write(&image, 0, 40 * MIB, 1);
            take(&backend, "s1", "v");
            write(&image, 8192, 4096, 2);
            write(&image, 12288, 4096, 2);
            write(&image, 4 * MIB + 100, 10, 3);
            write(&image, 50 * MIB, 20_000, 4);
            take(&backend, "s2", "v");
            assert_eq!(extents(&backend, None, "s1", 0), [(0, 16 * MIB), (16 * MIB, 16 * MIB), (32 * MIB, 8 * MIB)], "{kind:?}");
            let written = [(8192, 8192), (4 * MIB, 4096), (50 * MIB, 20_480)];
            assert_eq!(extents(&backend, Some("s1"), "s2", 0), written, "{kind:?}");
            assert_eq!(extents(&backend, Some("s1"), "s2", 12288), [(12288, 4096), (4 * MIB, 4096), (50 * MIB, 20_480)]);
            assert_eq!(extents(&backend, Some("s1"), "s2", 64 * MIB), []);
            assert_eq!(extents(&backend, Some("s1"), "s1", 0), []);

            create(&backend, "w", 64 * MIB);
            take(&backend, "t", "w");
            let changed = backend.changed_blocks().expect("changed blocks");
            let mut none = |_| ControlFlow::Continue(());
            let other = changed.delta(&snapshot_id("s1"), &snapshot_id("t"), 0, &mut none).expect_err("another volume");
            assert!(matches!(other, Error::Invalid { .. }), "{other}");
            let behind = changed.allocated(&snapshot_id("s1"), 64 * MIB + 1, &mut none).expect_err("behind the end");
            assert!(matches!(behind, Error::OutOfRange { .. }), "{behind}");
        });
    }
}

#[test]
fn on_delete_says_where_the_data_goes() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        isolated(move || {
            let disk = Disk::new(kind, 400);
            let pool = disk.pool();
            let backend = open_at(&pool);
            for (name, how) in [("d", "delete"), ("r", "retain"), ("a", "archive"), ("s", "scrub")] {
                create_with(&backend, &spec(name, 8 * MIB, &[("onDelete", how)])).expect("created");
                write(&pool.join("volumes").join(name).join("image"), MIB, MIB, 5);
            }
            // What the disk held before the scrub is read past everything: from the disk's own device.
            let scrubbed = std::fs::File::open(pool.join("volumes/s/image")).expect("opens");
            for name in ["d", "r", "a", "s"] {
                assert_eq!(provision(&backend).delete(&volume_id(name)).expect("deleted"), Outcome::Changed(()));
                assert_eq!(provision(&backend).delete(&volume_id(name)).expect("again"), Outcome::Unchanged(()));
                assert!(provision(&backend).find(&volume_id(name)).expect("looked").is_none());
            }
            let mut left = Vec::new();
            use std::os::unix::fs::FileExt;
            left.resize(usize::try_from(8 * MIB).expect("a length"), 1);
            scrubbed.read_exact_at(&mut left, 0).expect("the unlinked file");
            assert!(left.iter().all(|byte| *byte == 0), "zeroes were written before it went");
            for (directory, prefix) in [("retained", "r."), ("archive", "a.")] {
                let kept = names(&pool.join(directory));
                assert!(kept.len() == 1 && kept[0].starts_with(prefix), "{kept:?}");
                assert!(holds(&pool.join(directory).join(&kept[0]).join("image"), MIB, MIB, 5));
            }
            // The name is free again, twice in a second.
            for round in 2..4 {
                create_with(&backend, &spec("r", 8 * MIB, &[("onDelete", "retain")])).expect("created again");
                provision(&backend).delete(&volume_id("r")).expect("deleted again");
                assert_eq!(names(&pool.join("retained")).len(), round);
            }
            assert_eq!(names(&pool.join("volumes")), [""; 0]);
            assert_clean(&pool);
        });
    }
}

#[test]
fn a_volume_grows_and_never_shrinks() {
    let directory = directory();
    let pool = directory.path().join("pool");
    let image = pool.join("volumes/v/image");
    let backend = open_at(&pool);
    create(&backend, "v", 4 * MIB);
    write(&image, 0, 4096, 6);
    let grow =
        |backend: &ImageBackend, to| backend.expand().expect("expands").expand(&volume_id("v"), Bytes(to)).expect("expanded");
    assert_eq!(grow(&backend, 9 * MIB - 1), Outcome::Changed(Bytes(9 * MIB)));
    assert_eq!(length(&image), 9 * MIB);
    assert_eq!(grow(&backend, 2 * MIB), Outcome::Unchanged(Bytes(9 * MIB)));
    // Killed after the image grew, before its recorded capacity did.
    std::fs::File::options().write(true).open(&image).expect("opens").set_len(32 * MIB).expect("longer");
    let backend = {
        drop(backend);
        open_at(&pool)
    };
    assert_eq!(provision(&backend).find(&volume_id("v")).expect("looked").expect("there").capacity, Bytes(9 * MIB));
    assert_eq!(grow(&backend, 16 * MIB), Outcome::Changed(Bytes(16 * MIB)));
    assert_eq!(length(&image), 32 * MIB, "never shorter");
    assert_eq!(grow(&backend, 48 * MIB), Outcome::Changed(Bytes(48 * MIB)));
    assert_eq!(length(&image), 48 * MIB);
    assert!(holds(&image, 0, 4096, 6));
    let missing = backend.expand().expect("expands").expand(&volume_id("w"), Bytes(MIB)).expect_err("none");
    assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
}

/// The file system of a volume may have grown with its image before its recorded capacity did.
#[test]
fn clone_of_a_volume_whose_expansion_was_interrupted_holds_all_of_it() {
    let directory = directory();
    let pool = directory.path().join("pool");
    let backend = open_at(&pool);
    create(&backend, "v", 4 * MIB);
    let image = pool.join("volumes/v/image");
    std::fs::File::options().write(true).open(&image).expect("opens").set_len(8 * MIB).expect("longer");
    write(&image, 7 * MIB, 4096, 6);
    let of_v = |name: &str, limit: Option<u64>| VolumeSpec {
        source: Some(ContentSource::Volume(volume_id("v"))),
        limit: limit.map(Bytes),
        ..spec(name, 4 * MIB, &[])
    };
    let error = create_with(&backend, &of_v("limited", Some(8 * MIB - 1))).expect_err("it needs more");
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    let copy = create_with(&backend, &of_v("copy", None)).expect("copied");
    assert_eq!(copy.capacity, Bytes(8 * MIB));
    assert!(holds(&pool.join("volumes/copy/image"), 7 * MIB, 4096, 6));
    assert_clean(&pool);
}

#[test]
fn parameters_change_during_a_volumes_life() {
    let directory = directory();
    let pool = directory.path().join("pool");
    let backend = open_at(&pool);
    let made = create(&backend, "v", 8 * MIB);
    let image = pool.join("volumes/v/image");
    assert_eq!(allocated(&image), 0, "sparse");
    let modify = |pairs: &[(&str, &str)]| {
        let raw = RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let modify = backend.modify().expect("modifies");
        modify.check(&raw).and_then(|()| modify.modify(&volume_id("v"), &raw))
    };
    assert_eq!(modify(&[("preallocate", "true"), ("onDelete", "retain")]).expect("modified"), Outcome::Changed(()));
    assert!(allocated(&image) >= 8 * MIB);
    assert_eq!(modify(&[("preallocate", "true"), ("onDelete", "retain")]).expect("again"), Outcome::Unchanged(()));
    assert!(matches!(modify(&[("preallocate", "false")]).expect_err("not back"), Error::Invalid { .. }));
    assert!(matches!(modify(&[("pool", "q")]).expect_err("not that"), Error::Invalid { .. }));
    let found = provision(&backend).find(&volume_id("v")).expect("looked").expect("there");
    assert_eq!(found, made, "what it was made with is still reported, so that a repeated CreateVolume fits");
    backend.expand().expect("expands").expand(&volume_id("v"), Bytes(12 * MIB)).expect("expanded");
    assert!(allocated(&image) >= 12 * MIB, "what is preallocated stays so");
    provision(&backend).delete(&volume_id("v")).expect("deleted");
    assert_eq!(names(&pool.join("retained")).len(), 1, "{:?}", OnDelete::Retain);
}

#[test]
fn everything_is_recognised_by_the_next_process() {
    isolated(|| {
        let disk = Disk::new(Kind::Xfs, 400);
        let backend = open_at(&disk.pool());
        create_with(&backend, &spec("v", 8 * MIB, &[("onDelete", "archive")])).expect("created");
        take(&backend, "s", "v");
        groups(&backend)
            .create_group(&"image:g".parse().expect("an id"), "g", &[snapshot_spec("m", "v")], &NoQuiesce::default())
            .expect("a group");
        let all = |backend: &ImageBackend| {
            (
                provision(backend).list(None, 10).expect("a list"),
                snapshots(backend).list_snapshots(None, None, 10).expect("a list"),
                groups(backend).find_group(&"image:g".parse().expect("an id")).expect("looked").expect("there"),
                provision(backend).capacity(&longshore::backend::CapacityQuery::default()).expect("a capacity"),
            )
        };
        let before = all(&backend);
        assert_eq!((before.0.len(), before.1.len()), (1, 2));
        drop(backend);
        assert_eq!(all(&open_at(&disk.pool())), before);

        // Another process, on the node, reads without the lock.
        let provisioner = open_at(&disk.pool());
        let node = ImageBackend::open(config(vec![pool("p", &disk.pool())]), Role { provision: false }).expect("opens");
        assert!(node.provision().is_none() && node.snapshots().is_none());
        assert_eq!(node.connect().used(&volume_id("v")).expect("looked"), Some(Bytes(0)));
        drop(provisioner);
    });
}

//! What is provisioned, and what happens when there is no more.

use std::fs::File;

use longshore::backend::image::{ImageBackend, PoolConfig};
use longshore::backend::{Backend, CapacityQuery};
use longshore::volume::{Bytes, ContentSource, Error};

use crate::harness::*;

fn available(backend: &ImageBackend) -> u64 {
    provision(backend).capacity(&CapacityQuery::default()).expect("a capacity").available.0 / MIB
}

fn limited(path: &std::path::Path, mebibytes: u64, overcommit: f64) -> PoolConfig {
    PoolConfig { capacity: Some(Bytes(mebibytes * MIB)), overcommit, ..pool("p", path) }
}

#[track_caller]
fn assert_full<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.expect_err("no room");
    assert!(matches!(error, Error::NoCapacity { .. }) && error.to_string().contains("pool p"), "{error}");
}

#[test]
fn provisioned_capacity_is_counted_and_given_back() {
    let directory = directory();
    let backend = open(vec![limited(directory.path(), 50, 2.0)]);
    assert_eq!(available(&backend), 100);
    create(&backend, "v", 60 * MIB);
    write(&directory.path().join("volumes/v/image"), 0, 5 * MIB, 1);
    take(&backend, "s", "v");
    assert_eq!(available(&backend), 35, "a snapshot counts with what it holds");
    assert_full(create_with(&backend, &spec("w", 36 * MIB, &[])));
    assert_full(backend.expand().expect("expands").expand(&volume_id("v"), Bytes(96 * MIB)));
    assert_full(create_from(&backend, "r", 60 * MIB, ContentSource::Snapshot(snapshot_id("s"))));
    assert_eq!(names(&directory.path().join("volumes")), ["v"]);
    assert_clean(directory.path());
    backend.expand().expect("expands").expand(&volume_id("v"), Bytes(95 * MIB)).expect("just fits");
    assert_full(snapshots(&backend).create_snapshot(&snapshot_spec("s2", "v"), &NoQuiesce::default()));
    drop(backend);
    let backend = open(vec![limited(directory.path(), 50, 2.0)]);
    assert_eq!(available(&backend), 0, "counted again by the next process");
    snapshots(&backend).delete_snapshot(&snapshot_id("s")).expect("deleted");
    assert_eq!(available(&backend), 5);
    provision(&backend).delete(&volume_id("v")).expect("deleted");
    assert_eq!(available(&backend), 100);
}

#[test]
fn archived_image_takes_room_until_it_is_removed() {
    let directory = directory();
    let backend = open(vec![limited(directory.path(), 10, 1.0)]);
    create_with(&backend, &spec("v", 8 * MIB, &[("onDelete", "archive"), ("preallocate", "true")])).expect("created");
    provision(&backend).delete(&volume_id("v")).expect("deleted");
    assert!(available(&backend) <= 2);
    assert_full(create_with(&backend, &spec("w", 8 * MIB, &[])));
    let archive = directory.path().join("archive");
    let kept = archive.join(&names(&archive)[0]);
    std::fs::remove_file(kept.join("image")).expect("removed");
    create(&backend, "w", 8 * MIB);
}

#[test]
fn concurrent_creates_never_overshoot() {
    let directory = directory();
    let backend = open(vec![limited(directory.path(), 100, 1.0)]);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let backend = &backend;
            scope.spawn(move || {
                for number in 0..8 {
                    match create_with(backend, &spec(&format!("v{thread}-{number}"), 3 * MIB, &[])) {
                        Ok(_) => {}
                        Err(error) => assert!(matches!(error, Error::NoCapacity { .. }), "{error}"),
                    }
                }
            });
        }
    });
    let images = names(&directory.path().join("volumes"));
    assert_eq!(images.len(), 33, "as many as fit, not one more");
    assert_eq!(available(&backend), 1);
    assert_clean(directory.path());
}

#[test]
fn a_disk_that_fills_up_on_the_way_is_rolled_back() {
    for kind in Kind::ALL {
        isolated(move || {
            let disk = Disk::new(kind, 400);
            let backend = open(vec![PoolConfig { overcommit: 100.0, ..pool("p", &disk.pool()) }]);
            create(&backend, "v", 64 * MIB);
            write(&disk.pool().join("volumes/v/image"), 0, 64 * MIB, 1);
            take(&backend, "s", "v");
            // Another program fills the disk, and leaves too little for another copy.
            let stuffing = disk.mountpoint().join("stuffing");
            let file = File::create_new(&stuffing).expect("created");
            let free = {
                let figures = nix::sys::statvfs::statvfs(&disk.mountpoint()).expect("statvfs");
                figures.blocks_available() * figures.fragment_size()
            };
            nix::fcntl::fallocate(
                &file,
                nix::fcntl::FallocateFlags::empty(),
                0,
                i64::try_from(free.saturating_sub(24 * MIB)).expect("a size"),
            )
            .expect("stuffed");
            assert_full(create_with(&backend, &spec("w", 128 * MIB, &[("preallocate", "true")])));
            if !kind.shares() {
                assert_full(snapshots(&backend).create_snapshot(&snapshot_spec("t", "v"), &NoQuiesce::default()));
                assert_full(create_from(&backend, "r", 64 * MIB, ContentSource::Snapshot(snapshot_id("s"))));
            }
            assert_eq!(names(&disk.pool().join("volumes")), ["v"]);
            assert_eq!(names(&disk.pool().join("snapshots")), ["s"]);
            assert_clean(&disk.pool());
            let problem = backend.health().expect("health").storage_health().expect("reported");
            assert!(matches!(problem.first().map(|problem| problem.reason), Some("PoolNearlyFull" | "PoolFull") | None));
            drop(file);
            std::fs::remove_file(&stuffing).expect("removed");
            // btrfs gives the room back when it commits, xfs in the background.
            let mounted = File::open(disk.mountpoint()).expect("open");
            nix::unistd::syncfs(&mounted).expect("synced");
            create_from(&backend, "r", 64 * MIB, ContentSource::Snapshot(snapshot_id("s"))).expect("room again");
        });
    }
}

#[test]
fn a_full_disk_can_still_be_opened_and_emptied() {
    isolated(|| {
        let disk = Disk::new(Kind::Ext4, 64);
        let backend = open(vec![PoolConfig { overcommit: 100.0, ..pool("p", &disk.pool()) }]);
        create(&backend, "v", 64 * MIB);
        let image = File::options().write(true).open(disk.pool().join("volumes/v/image")).expect("opens");
        let mut offset = 0;
        let block = vec![1; 65536];
        while std::os::unix::fs::FileExt::write_all_at(&image, &block, offset).is_ok() {
            offset += 65536;
        }
        drop((image, backend));
        let backend = open(vec![PoolConfig { overcommit: 100.0, ..pool("p", &disk.pool()) }]);
        assert_eq!(backend.health().expect("health").storage_health().expect("reported")[0].reason, "PoolFull");
        assert!(create_with(&backend, &spec("w", MIB, &[("preallocate", "true")])).is_err());
        provision(&backend).delete(&volume_id("v")).expect("deleted");
        create_with(&backend, &spec("w", MIB, &[("preallocate", "true")])).expect("room again");
        assert_clean(&disk.pool());
    });
}

#[test]
fn a_new_volume_goes_where_most_room_is_and_a_restored_one_beside_its_source() {
    let (small, large) = (directory(), directory());
    let backend = open(vec![
        PoolConfig { name: "small".to_owned(), ..limited(small.path(), 20, 1.0) },
        PoolConfig { name: "large".to_owned(), ..limited(large.path(), 100, 1.0) },
    ]);
    create(&backend, "v", 10 * MIB);
    assert_eq!(names(&large.path().join("volumes")), ["v"]);
    create_with(&backend, &spec("w", 4 * MIB, &[("pool", "small")])).expect("created");
    take(&backend, "s", "w");
    create_from(&backend, "r", 4 * MIB, ContentSource::Snapshot(snapshot_id("s"))).expect("restored");
    assert_eq!(names(&small.path().join("volumes")), ["r", "w"]);
    create_from(&backend, "big", 40 * MIB, ContentSource::Snapshot(snapshot_id("s"))).expect("restored elsewhere");
    assert_eq!(names(&large.path().join("volumes")), ["big", "v"]);
    let answer = provision(&backend).capacity(&CapacityQuery::default()).expect("a capacity");
    assert_eq!((answer.available, answer.maximum, answer.minimum), (Bytes(62 * MIB), Bytes(50 * MIB), Bytes(MIB)));
    let of_small = CapacityQuery { parameters: serde_json::json!({"pool": "small"}), ..CapacityQuery::default() };
    assert_eq!(provision(&backend).capacity(&of_small).expect("a capacity").maximum, Bytes(12 * MIB));
}

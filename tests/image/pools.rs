//! Pools that are foreign, taken, away, read-only or damaged.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use fuser::{FileHandle, Filesystem, INodeNo, ReplyAttr, Request};
use longshore::backend::image::{ImageBackend, Role};
use longshore::backend::{Backend, VolumeSpec};
use longshore::volume::{Bytes, ContentSource, Error, Outcome, Severity, VolumeId};
use nix::mount::{MntFlags, umount2};

use crate::harness::*;

fn try_open(path: &std::path::Path) -> Result<ImageBackend, Error> {
    let _alone = nobody_starts();
    ImageBackend::open(config(vec![pool("p", path)]), Role { provision: true })
}

#[test]
fn a_directory_that_is_not_ours_is_left_as_it_is() {
    let directory = directory();
    fs::write(directory.path().join("thesis.txt"), "years of work").expect("written");
    let error = try_open(directory.path()).expect_err("not empty");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(directory.path().to_str().expect("UTF-8")) && text.contains("empty"), "{text}");
    assert_eq!(names(directory.path()), ["thesis.txt"]);
}

#[test]
fn a_first_use_that_was_interrupted_continues() {
    let directory = directory();
    // As a kill between the lock and the marker leaves it, on a fresh ext4.
    fs::write(directory.path().join("lock"), "").expect("written");
    for name in ["volumes", "snapshots", "lost+found"] {
        fs::create_dir(directory.path().join(name)).expect("a directory");
    }
    create(&open_at(directory.path()), "v", MIB);
    assert_eq!(names(&directory.path().join("volumes")), ["v"]);
}

#[test]
fn a_pool_that_lost_a_directory_is_not_an_empty_one() {
    let directory = directory();
    drop(open_at(directory.path()));
    fs::remove_dir(directory.path().join("volumes")).expect("removed");
    let backend = open_at(directory.path());
    let error = provision(&backend).find(&volume_id("v")).expect_err("cannot be seen");
    assert!(matches!(error, Error::BackendUnavailable { .. }) && error.to_string().contains("volumes"), "{error}");
}

#[test]
fn only_one_process_provisions() {
    let directory = directory();
    let path = directory.path().join("pool");
    let first = open_at(&path);
    let error = try_open(&path).expect_err("taken");
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    // Another process sees the lock, too.
    let lock = path.join("lock");
    let free = || ended(Command::new("flock").arg("--nonblock").arg(&lock).arg("true")).status.success();
    assert!(!free());
    create(&first, "v", MIB);
    drop(first);
    assert!(free());
    let second = open_at(&path);
    assert_eq!(provision(&second).list(None, 9).expect("a list").len(), 1);
}

/// As a file server does, once its client was silent for longer than its lease.
#[test]
fn process_that_has_lost_its_lock_provisions_no_more() {
    let (first, second) = (directory(), directory());
    let pools = || vec![pool("a", first.path()), pool("b", second.path())];
    let backend = open(pools());
    create_with(&backend, &spec("v", MIB, &[("pool", "b")])).expect("created");
    let lock = second.path().join("lock");
    let mut content = fs::read(&lock).expect("the lock");
    content[..80].copy_from_slice(format!("{:10} {:68}\n", 7, "other-pod").as_bytes());
    fs::write(&lock, content).expect("written");
    let error = create_with(&backend, &spec("w", MIB, &[("pool", "b")])).expect_err("taken over");
    assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
    let error = provision(&backend).delete(&volume_id("v")).expect_err("taken over");
    assert!(error.to_string().contains("other-pod"), "{error}");
    assert_eq!(names(&second.path().join("volumes")), ["v"]);
    let error = create_from(&backend, "copy", MIB, ContentSource::Volume(volume_id("v"))).expect_err("taken over");
    assert!(error.to_string().contains("other-pod"), "{error}");
    let error = provision(&backend).delete(&volume_id("nothing")).expect_err("taken over");
    assert!(error.to_string().contains("other-pod"), "{error}");
    let reason = backend.exclusive().expect("locks").lost(Instant::now()).expect("noticed");
    assert!(reason.contains("pool b ") && reason.contains("other-pod"), "{reason}");
    drop(backend);
    let backend = open(pools());
    create_with(&backend, &spec("w", MIB, &[("pool", "b")])).expect("by another process");
    // Another process could lock a new one: this one ends, and the next one makes it.
    fs::remove_file(&lock).expect("removed");
    assert!(backend.exclusive().expect("locks").lost(Instant::now()).is_some());
    provision(&backend).delete(&volume_id("v")).expect_err("not kept");
    drop(backend);
    provision(&open(pools())).delete(&volume_id("v")).expect("deleted");
}

#[test]
fn a_pool_belongs_to_one_backend() {
    let directory = directory();
    drop(open_at(directory.path()));
    let mut other = config(vec![pool("p", directory.path())]);
    other.name = "other".parse().expect("a name");
    let error = ImageBackend::open(other, Role { provision: true }).expect_err("another's");
    assert!(error.to_string().contains("\"image\""), "{error}");
    fs::write(directory.path().join("longshore-pool.json"), "{\"format\": 1,").expect("written");
    let error = try_open(directory.path()).expect_err("damaged");
    assert!(error.to_string().contains("longshore-pool.json"), "{error}");
}

#[test]
fn a_pool_that_is_away_is_reported_and_comes_back() {
    isolated(|| {
        let disk = Disk::new(Kind::Xfs, 400);
        let here = directory();
        let backend = open(vec![pool("away", &disk.pool()), pool("here", here.path())]);
        create_with(&backend, &spec("a", MIB, &[("pool", "away")])).expect("created");
        create_with(&backend, &spec("h", MIB, &[("pool", "here")])).expect("created");
        disk.unmount();
        let error = backend.probe().expect_err("away");
        assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
        assert!(error.to_string().contains(disk.pool().to_str().expect("UTF-8")), "{error}");
        for id in ["a", "never"] {
            let error = provision(&backend).find(&volume_id(id)).expect_err("cannot be seen");
            assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
        }
        let error = provision(&backend).delete(&volume_id("a")).expect_err("cannot be seen");
        assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
        // While it was there it was this process's alone, and had no such volume.
        assert_eq!(provision(&backend).delete(&volume_id("never")).expect("nothing to do"), Outcome::Unchanged(()));
        let health = backend.health().expect("health");
        assert_eq!(health.storage_health().expect("reported")[0].reason, "PoolUnreachable");
        assert_eq!(health.volume_health(&volume_id("a")).expect("reported")[0].reason, "PoolUnreachable");
        assert!(provision(&backend).find(&volume_id("h")).expect("looked").is_some(), "the other pool works");
        create_with(&backend, &spec("h2", MIB, &[("pool", "here")])).expect("the other pool works");
        assert_eq!(names(&disk.mountpoint()), [""; 0], "no pool was made on the bare mount point");

        disk.mount();
        backend.probe().expect("back");
        assert!(provision(&backend).find(&volume_id("a")).expect("looked").is_some());
        assert_eq!(provision(&backend).delete(&volume_id("a")).expect("deleted"), Outcome::Changed(()));
    });
}

#[test]
fn one_of_two_pools_away_leaves_the_backend_usable_in_part() {
    let directory = directory();
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    let backend = open(vec![pool("a", &first), pool("b", &second)]);
    backend.probe().expect("both are there");
    fs::rename(&first, directory.path().join("a.away")).expect("moved");
    backend.probe().expect_err("one is away");
    assert!(backend.is_usable_in_part());
    fs::rename(&second, directory.path().join("b.away")).expect("moved");
    assert!(!backend.is_usable_in_part());
}

/// A call whose answer was lost is repeated, also for what lies in the pool that is there.
#[test]
fn deletion_of_what_is_gone_waits_for_a_pool_that_is_away_only_where_that_may_have_it() {
    let directory = directory();
    let (first, second, away) = (directory.path().join("a"), directory.path().join("b"), directory.path().join("away"));
    let backend = open(vec![pool("a", &first), pool("b", &second)]);
    create_with(&backend, &spec("old", MIB, &[("pool", "a")])).expect("created");
    create_with(&backend, &spec("v", MIB, &[("pool", "b")])).expect("created");
    take(&backend, "s", "v");
    fs::rename(&first, &away).expect("moved");
    for _ in 0..2 {
        snapshots(&backend).delete_snapshot(&snapshot_id("s")).expect("gone");
        provision(&backend).delete(&volume_id("v")).expect("gone");
    }
    let error = provision(&backend).delete(&volume_id("old")).expect_err("not seen");
    assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
    drop(backend);
    // Nobody knows what it holds.
    let backend = open(vec![pool("a", &first), pool("b", &second)]);
    drop(backend);
    fs::remove_dir_all(&first).expect("removed");
    fs::rename(&away, &first).expect("moved back");
    let backend = open(vec![pool("a", &first), pool("b", &second)]);
    provision(&backend).delete(&volume_id("old")).expect("deleted");
}

fn look_for_create(backend: &ImageBackend, spec: &VolumeSpec) -> Result<Option<VolumeId>, Error> {
    Ok(provision(backend).find_for_create(&spec.id, &spec.parameters)?.map(|volume| volume.id))
}

/// CreateVolume as `ops` does it.
fn provide(backend: &ImageBackend, spec: &VolumeSpec) -> Result<(), Error> {
    match look_for_create(backend, spec)? {
        Some(_) => Ok(()),
        None => create_with(backend, spec).map(drop),
    }
}

#[test]
fn create_skips_a_pool_that_is_away_only_where_it_surely_lacks_the_volume() {
    let directory = directory();
    let (first, second, away) = (directory.path().join("a"), directory.path().join("b"), directory.path().join("away"));
    let memory = directory.path().join("memory");
    let both = || {
        let _alone = nobody_starts();
        let config = config(vec![pool("a", &first), pool("b", &second)]);
        ImageBackend::open_remembering(config, Role { provision: true }, Some(&memory), None).expect("opened")
    };
    let backend = both();
    create_with(&backend, &spec("old", MIB, &[("pool", "a")])).expect("created");
    fs::rename(&first, &away).expect("moved");
    // Its ledger says what it holds.
    provide(&backend, &spec("new", MIB, &[])).expect("the pool that is away does not hold it");
    assert_eq!(names(&second.join("volumes")), ["new"]);
    let error = provide(&backend, &spec("old", MIB, &[])).expect_err("the pool that is away holds it");
    assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
    drop(backend);

    // Away at the start: nobody knows what it holds.
    let backend = both();
    for name in ["old", "newer"] {
        let error = provide(&backend, &spec(name, MIB, &[])).expect_err("not known");
        assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("pool a (") && text.contains("StorageClass") && text.contains("parameter pool"), "{text}");
    }
    provide(&backend, &spec("newer", MIB, &[("pool", "b")])).expect("the class names a pool that is there");
    let error = provide(&backend, &spec("newest", MIB, &[("pool", "a")])).expect_err("the class names the one that is away");
    assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
    assert_eq!(names(&second.join("volumes")), ["new", "newer"]);
}

#[test]
fn a_volume_id_in_two_pools_is_refused_and_both_are_named() {
    let directory = directory();
    let (first, second) = (directory.path().join("a"), directory.path().join("b"));
    for path in [&first, &second] {
        create(&open_at(path), "v", MIB);
    }
    let backend = open(vec![pool("a", &first), pool("b", &second)]);
    let id = volume_id("v");
    let refused = [
        provide(&backend, &spec("v", MIB, &[])),
        provide(&backend, &spec("v", MIB, &[("pool", "b")])),
        provision(&backend).find(&id).map(drop),
        provision(&backend).delete(&id).map(drop),
        backend.expand().expect("it expands").expand(&id, Bytes(2 * MIB)).map(drop),
    ];
    for answer in refused {
        let text = answer.expect_err("which of the two?").to_string();
        assert!(text.contains("a/volumes/v") && text.contains("b/volumes/v"), "{text}");
    }
    assert_eq!((names(&first.join("volumes")), names(&second.join("volumes"))), (vec!["v".to_owned()], vec!["v".to_owned()]));
}

/// A file system that never answers.
#[derive(Default)]
struct Silent(Mutex<Vec<ReplyAttr>>);

impl Filesystem for Silent {
    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.0.lock().expect("no panic").push(reply);
    }
}

#[test]
fn pool_that_hangs_holds_up_no_volume_of_another() {
    isolated(|| {
        let directory = directory();
        let (first, second) = (directory.path().join("a"), directory.path().join("b"));
        let backend = Arc::new(open(vec![pool("a", &first), pool("b", &second)]));
        create_with(&backend, &spec("w", MIB, &[("pool", "a")])).expect("created");
        create_with(&backend, &spec("v", MIB, &[("pool", "b")])).expect("created");
        let silent = fuser::spawn_mount(Silent::default(), &first, &fuser::Config::default()).expect("FUSE");
        let own = backend.clone();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let started = Instant::now();
            let v = volume_id("v");
            assert!(provision(&own).find(&v).expect("looked").is_some());
            own.expand().expect("it expands").expand(&v, Bytes(2 * MIB)).expect("expanded");
            let health = own.health().expect("health").volume_health(&v).expect("reported");
            assert!(health.is_empty(), "{health:?}");
            let own_pool = started.elapsed();
            assert!(own_pool < Duration::from_secs(1), "its ledger says where it lies: {own_pool:?}");
            provide(&own, &spec("new", MIB, &[])).expect("the pool that hangs surely lacks it");
            assert!(own.probe().is_err() && own.is_usable_in_part());
            for answer in [provision(&own).find(&volume_id("w")).map(drop), provide(&own, &spec("w", MIB, &[])).map(drop)] {
                let error = answer.expect_err("its pool hangs");
                assert!(matches!(error, Error::BackendUnavailable { .. }) && error.to_string().contains("pool a ("), "{error}");
            }
            assert_eq!(provision(&own).delete(&v).expect("deleted"), Outcome::Changed(()));
            sender.send(()).ok();
        });
        let ended = receiver.recv_timeout(Duration::from_secs(60));
        // What hangs gets an error, and the pool lies there again.
        umount2(&first, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH).expect("FUSE is aborted");
        drop(silent);
        ended.expect("no call about the other pool hangs");
        let until = Instant::now() + Duration::from_secs(60);
        while let Err(error) = provision(&backend).find(&volume_id("w")) {
            assert!(matches!(error, Error::BackendUnavailable { .. }) && Instant::now() < until, "{error}");
        }
        assert!(provision(&backend).find(&volume_id("w")).expect("looked").is_some());
    });
}

#[test]
fn a_read_only_pool_is_read_and_never_half_changed() {
    isolated(|| {
        let disk = Disk::new(Kind::Xfs, 400);
        let backend = open_at(&disk.pool());
        create(&backend, "v", MIB);
        disk.remount(true);
        let refused = |backend: &ImageBackend| {
            let error = backend.probe().expect_err("read-only");
            assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
            assert!(error.to_string().contains(disk.pool().to_str().expect("UTF-8")), "{error}");
            let error = create_with(backend, &spec("w", MIB, &[])).expect_err("read-only");
            assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
            let error = provision(backend).delete(&volume_id("v")).expect_err("read-only");
            assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
            assert!(provision(backend).find(&volume_id("v")).expect("looked").is_some(), "it can still be read");
            assert_eq!(backend.health().expect("health").storage_health().expect("reported")[0].reason, "PoolReadOnly");
        };
        refused(&backend);
        drop(backend);
        let backend = open_at(&disk.pool());
        refused(&backend);
        disk.remount(false);
        backend.probe().expect("writable again");
        create(&backend, "w", MIB);
        assert_eq!(provision(&backend).delete(&volume_id("v")).expect("deleted"), Outcome::Changed(()));
        assert_clean(&disk.pool());
    });
}

#[test]
fn leftovers_of_interrupted_calls_vanish_and_foreign_files_stay() {
    let directory = directory();
    let path = directory.path();
    let backend = open_at(path);
    create(&backend, "v", MIB);
    drop(backend);
    let elsewhere = tempfile::tempdir().expect("a directory");
    fs::write(elsewhere.path().join("image"), "precious").expect("written");
    for (parent, name) in [("tmp", "volume~a"), ("tmp", "snapshot~b"), ("trash", "volume~v"), ("trash", "volume~strange")] {
        let leftover = path.join(parent).join(name);
        fs::create_dir(&leftover).expect("a directory");
        fs::write(leftover.join("image"), "half").expect("written");
        fs::write(leftover.join(".meta.json.tmp"), "half").expect("written");
    }
    fs::write(path.join("trash/volume~strange/notes.txt"), "not ours").expect("written");
    fs::write(path.join("groups/.g.json.tmp"), "half").expect("written");
    symlink(elsewhere.path(), path.join("tmp/volume~link")).expect("a link");
    let backend = open_at(path);
    assert_eq!(names(&path.join("tmp")), ["volume~link"]);
    assert_eq!(names(&path.join("trash")), ["volume~strange"]);
    assert_eq!(names(&path.join("trash/volume~strange")), ["notes.txt"]);
    assert_eq!(names(&path.join("groups")), [""; 0]);
    assert_eq!(fs::read_to_string(elsewhere.path().join("image")).expect("there"), "precious");
    assert_eq!(provision(&backend).list(None, 9).expect("a list").len(), 1);
}

#[test]
fn damage_is_reported_and_left_alone() {
    let directory = directory();
    let path = directory.path();
    let backend = open_at(path);
    for name in ["whole", "cut", "gone", "short", "other", "linked"] {
        create(&backend, name, 2 * MIB);
    }
    let volumes = path.join("volumes");
    let meta = fs::read(volumes.join("cut/meta.json")).expect("read");
    fs::write(volumes.join("cut/meta.json"), &meta[..meta.len() / 2]).expect("cut");
    fs::remove_file(volumes.join("gone/image")).expect("removed");
    fs::File::options().write(true).open(volumes.join("short/image")).expect("opens").set_len(MIB).expect("shorter");
    fs::write(volumes.join("other/meta.json"), fs::read(volumes.join("whole/meta.json")).expect("read")).expect("copied");
    fs::rename(volumes.join("linked/image"), path.join("moved")).expect("moved");
    symlink(path.join("moved"), volumes.join("linked/image")).expect("a link");

    let expected = [
        ("cut", "MetadataDamaged", Severity::Inaccessible),
        ("gone", "ImageMissing", Severity::DataLoss),
        ("linked", "MetadataDamaged", Severity::Inaccessible),
        ("other", "MetadataDamaged", Severity::Inaccessible),
        ("short", "ImageTruncated", Severity::DataLoss),
    ];
    let check = |backend: &ImageBackend| {
        let health = backend.health().expect("health");
        for (name, reason, severity) in expected {
            let id = volume_id(name);
            for error in [
                provision(backend).find(&id).expect_err(name),
                provision(backend).delete(&id).expect_err(name),
                backend.expand().expect("expands").expand(&id, Bytes(4 * MIB)).expect_err(name),
                snapshots(backend).create_snapshot(&snapshot_spec("s", name), &NoQuiesce::default()).expect_err(name),
            ] {
                assert!(matches!(error, Error::Unverified { .. }), "{name}: {error}");
                assert!(error.to_string().contains(&format!("volumes/{name}/")), "{name}: {error}");
            }
            let problems = health.volume_health(&id).expect("reported");
            assert_eq!((problems[0].reason, problems[0].severity), (reason, severity), "{name}");
        }
        assert_eq!(health.volume_health(&volume_id("whole")).expect("reported"), []);
        assert!(matches!(health.volume_health(&volume_id("none")).expect_err("none"), Error::NotFound { .. }));
        let sick: Vec<_> = health.unhealthy(None, 9).expect("reported").into_iter().map(|(id, _)| id).collect();
        assert_eq!(sick, expected.map(|(name, _, _)| volume_id(name)));
        let page: Vec<VolumeId> =
            health.unhealthy(Some(&volume_id("gone")), 2).expect("reported").into_iter().map(|(id, _)| id).collect();
        assert_eq!(page, [volume_id("linked"), volume_id("other")]);
        assert_eq!(provision(backend).list(None, 9).expect("a list").len(), 6, "what is damaged is not absent");
        create(backend, "new", MIB);
        provision(backend).delete(&volume_id("new")).expect("the others work");
    };
    check(&backend);
    drop(backend);
    let backend = open_at(path);
    check(&backend);
    fs::write(volumes.join("cut/meta.json"), &meta).expect("restored");
    assert!(provision(&backend).find(&volume_id("cut")).expect("looked").is_some(), "a restored file is enough");
    assert_clean(path);
}

#[test]
fn lists_are_in_order_over_all_pools_a_page_at_a_time() {
    let (one, two) = (directory(), directory());
    let backend = open(vec![pool("one", one.path()), pool("two", two.path())]);
    let all: Vec<String> = (0..25).map(|number| format!("v{number:02}")).collect();
    for (number, name) in all.iter().enumerate() {
        let pool = if number % 3 == 0 { "one" } else { "two" };
        create_with(&backend, &spec(name, MIB, &[("pool", pool)])).expect("created");
    }
    // Removed by hand: a page is filled up with what comes after.
    fs::remove_file(one.path().join("volumes/v03/image")).expect("removed");
    fs::remove_file(one.path().join("volumes/v03/meta.json")).expect("removed");
    fs::remove_dir(one.path().join("volumes/v03")).expect("removed");
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = provision(&backend).list(after.as_ref(), 7).expect("a page");
        let Some(last) = page.last() else { break };
        assert!(page.len() == 7 || seen.len() + page.len() == 24, "a page is only short at the end");
        after = Some(last.id.clone());
        seen.extend(page.into_iter().map(|volume| volume.name));
    }
    assert_eq!(seen, all.into_iter().filter(|name| name != "v03").collect::<Vec<_>>());
    assert!(provision(&backend).find(&volume_id("v03")).expect("looked").is_none());
    let unknown = backend.parameters(&longshore::volume::RawParameters::new([("pool".to_owned(), "three".to_owned())]));
    let unknown = unknown.expect_err("no such pool").to_string();
    assert!(unknown.contains("three") && unknown.contains("one, two"), "{unknown}");
}

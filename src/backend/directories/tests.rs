//! The controller's side on plain local directories.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::record::{self, Phase, SnapshotRecord, VolumeRecord};
use super::*;
use crate::backend::nfs::{NfsConfig, NfsParameters, ShareConfig, locations_on, requested_parameters};
use crate::backend::{
    CapacityQuery, Expand, FreezeGuard, Modify, Provision, Quiesce, ReportHealth, SnapshotSpec, Snapshots, VolumeSpec,
};
use crate::os::dir::OpenDir;
use crate::os::fs::testing::on_btrfs;
use crate::os::mount::testing::Hung;
use crate::os::subvolume;
use crate::os::tree::{self, ChangeTime, Control};
use crate::volume::{
    ContentSource, NodeParameters, Outcome, RawParameters, Severity, SnapshotId, TopologyRequirement, Volume, VolumeId,
};

fn on_directories(config: &NfsConfig, state: &Path, directories: &[PathBuf]) -> Controller {
    Controller::new(&config.name, locations_on(config, directories), None, state).impatient()
}

struct NothingMounted;

impl Quiesce for NothingMounted {
    fn freeze(&self, _volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        Ok(Box::new(NothingMounted))
    }
}

impl FreezeGuard for NothingMounted {
    fn release(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Shares `a` and `b`, a directory `outside` beside them, and the driver's state.
struct Ground {
    directory: tempfile::TempDir,
    config: NfsConfig,
}

fn ground(shares: &[&str]) -> Ground {
    ground_in(&std::env::temp_dir(), shares)
}

fn ground_in(parent: &Path, shares: &[&str]) -> Ground {
    let directory = tempfile::tempdir_in(parent).expect("a directory");
    for name in shares.iter().chain(&["outside", "state"]) {
        std::fs::create_dir(directory.path().join(name)).expect("made");
        std::fs::set_permissions(directory.path().join(name), PermissionsExt::from_mode(0o755)).expect("set");
    }
    std::fs::write(directory.path().join("outside/file"), "precious").expect("written");
    let share = |name: &&str| ShareConfig {
        server: "nas".to_owned(),
        share: Path::new("/").join(name),
        mount_options: Vec::new(),
        capacity: Some(Bytes::GIB),
        quota: None,
    };
    let config = NfsConfig {
        name: "nfs".parse().expect("a name"),
        shares: shares.iter().map(share).collect(),
        allow_mount_options: Vec::new(),
        forbid_mount_options: Vec::new(),
    };
    Ground { directory, config }
}

impl Ground {
    fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// After the controllers before it.
    fn open(&self) -> Controller {
        self.config.shares.iter().for_each(|share| self.await_lock(share));
        self.open_beside()
    }

    /// Until no controller has the share: a program that another test starts has the descriptor of its lock, until its exec.
    fn await_lock(&self, share: &ShareConfig) {
        let end = Instant::now() + Duration::from_secs(120);
        let lock = self.at(&share.share.to_string_lossy()[1..]).join(".longshore/lock");
        let Ok(file) = std::fs::File::open(lock) else { return };
        while file.try_lock().is_err() {
            assert!(Instant::now() < end, "{share:?} is still locked");
            std::thread::yield_now();
        }
    }

    /// Beside another controller.
    fn open_beside(&self) -> Controller {
        let directories: Vec<PathBuf> =
            self.config.shares.iter().map(|share| self.at(&share.share.to_string_lossy()[1..])).collect();
        on_directories(&self.config, &self.at("state"), &directories)
    }

    /// All that lies on the share `a`, but what is always there.
    fn left(&self) -> BTreeSet<String> {
        let mut left = BTreeSet::new();
        let mut directories = vec![self.at("a")];
        while let Some(directory) = directories.pop() {
            // Others remove meanwhile.
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                let path = entry.path();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    directories.push(path.clone());
                }
                left.insert(path.strip_prefix(self.at("a")).expect("below").to_string_lossy().into_owned());
            }
        }
        for own in ["", "/marker.json", "/lock", "/owner", "/spare", "/volumes", "/drafts", "/snapshots", "/trash", "/archive"] {
            left.remove(&format!(".longshore{own}"));
        }
        left
    }

    fn assert_nothing_left(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        while !self.left().is_empty() {
            assert!(Instant::now() < end, "{:?}", self.left());
            std::thread::yield_now();
        }
        assert_eq!(std::fs::read(self.at("outside/file")).expect("there"), b"precious");
    }

    fn record_path(&self, local: &str) -> PathBuf {
        self.at("a/.longshore/volumes").join(format!("{local}.json"))
    }

    fn record(&self, local: &str) -> VolumeRecord {
        serde_json::from_slice(&std::fs::read(self.record_path(local)).expect("a record")).expect("ours")
    }

    fn set_record(&self, record: &VolumeRecord) {
        std::fs::write(self.record_path(record.id.local()), record::encode(record).expect("text")).expect("written");
    }
}

fn id(local: &str) -> VolumeId {
    format!("nfs:{local}").parse().expect("an id")
}

fn snapshot_id(local: &str) -> SnapshotId {
    format!("nfs:{local}").parse().expect("an id")
}

fn parameters(pairs: &[(&str, &str)]) -> Value {
    let raw = RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    let own = NfsParameters::of_class(&raw).expect("valid");
    serde_json::json!({"node": NodeParameters::default(), "backend": own})
}

fn spec(local: &str, pairs: &[(&str, &str)]) -> VolumeSpec {
    VolumeSpec {
        id: id(local),
        name: local.to_owned(),
        capacity: Bytes::mib(100),
        limit: None,
        source: None,
        parameters: parameters(pairs),
        several_nodes: false,
        mutable: RawParameters::default(),
        topology: TopologyRequirement::default(),
    }
}

/// As `ops` does it.
fn create(controller: &Controller, spec: &VolumeSpec) -> Result<Volume> {
    match controller.find_for_create(&spec.id, &spec.parameters)? {
        Some(volume) => Ok(volume),
        None => controller.create(spec, &NothingMounted),
    }
}

/// Repeats a call while it says that it continues.
fn at_last<T>(call: impl Fn() -> Result<T>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match call() {
            Err(Error::InProgress { .. }) if Instant::now() < end => std::thread::yield_now(),
            answer => return answer,
        }
    }
}

fn ids(controller: &Controller) -> Vec<String> {
    controller.list(None, 100).expect("listed").iter().map(|volume| volume.id.local().to_owned()).collect()
}

#[test]
fn a_volume_comes_and_goes() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    let made = create(&controller, &spec("one", &[])).expect("made");
    assert_eq!(ground.at("a/one").metadata().expect("there").mode() & 0o7777, 0o777);
    assert_eq!(made.parameters["backend"]["server"], "nas");
    assert_eq!(made.parameters["backend"]["share"], "/a");
    assert_eq!(requested_parameters(&made.parameters["backend"]), parameters(&[])["backend"]);
    assert_eq!(controller.find(&id("one")).expect("looked").as_ref(), Some(&made));
    std::fs::create_dir(ground.at("a/one/full")).expect("made");
    std::fs::write(ground.at("a/one/full/of"), "data").expect("written");

    let own = create(&controller, &spec("two", &[("mountPermissions", "2750"), ("uid", "7"), ("gid", "8")])).expect("made");
    let seen = ground.at("a/two").metadata().expect("there");
    assert_eq!((seen.mode() & 0o7777, seen.uid(), seen.gid()), (0o2750, 7, 8));
    assert_eq!(ids(&controller), ["one", "two"]);
    assert_eq!(controller.list(Some(&id("one")), 1).expect("listed"), [own]);

    // All of it is known again by another process.
    drop(controller);
    let controller = ground.open();
    assert_eq!(ids(&controller), ["one", "two"]);
    for local in ["one", "two"] {
        assert_eq!(controller.delete(&id(local)).expect("deleted"), Outcome::Changed(()));
        assert_eq!(controller.delete(&id(local)).expect("repeated"), Outcome::Unchanged(()));
        assert!(!ground.at("a").join(local).exists());
    }
    ground.assert_nothing_left();
}

#[test]
fn templates_make_parents_and_take_the_empty_ones_away() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    std::fs::create_dir(ground.at("a/shop")).expect("made");
    std::fs::write(ground.at("a/shop/notes"), "mine").expect("written");
    for (local, directory) in [("one", "shop/x/data"), ("two", "shop/x/logs"), ("three", "other/deep/er/data")] {
        create(&controller, &spec(local, &[("subDir", directory)])).expect("made");
        assert!(ground.at("a").join(directory).is_dir());
    }
    for directory in ["shop/x/data", "shop/x", "shop", "shop/x/data/in", "other/deep"] {
        let error = create(&controller, &spec("four", &[("subDir", directory)])).expect_err(directory);
        assert!(matches!(error, Error::Conflict { .. }), "{directory}: {error}");
    }
    for local in ["one", "three"] {
        controller.delete(&id(local)).expect("deleted");
    }
    assert!(ground.at("a/shop/x/logs").is_dir() && !ground.at("a/other").exists());
    controller.delete(&id("two")).expect("deleted");
    assert!(!ground.at("a/shop/x").exists());
    assert_eq!(std::fs::read(ground.at("a/shop/notes")).expect("there"), b"mine");
}

#[test]
fn foreign_directory_at_the_volumes_place_is_named_and_left() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    std::fs::create_dir(ground.at("a/full")).expect("made");
    std::fs::write(ground.at("a/full/file"), "mine").expect("written");
    std::fs::create_dir(ground.at("a/empty")).expect("made");
    std::fs::write(ground.at("a/file"), "mine").expect("written");
    symlink(ground.at("outside"), ground.at("a/link")).expect("linked");
    symlink("/no/where", ground.at("a/dangling")).expect("linked");
    std::fs::create_dir(ground.at("a/writable")).expect("made");
    std::fs::set_permissions(ground.at("a/writable"), PermissionsExt::from_mode(0o777)).expect("set");
    let before = ground.left();
    for directory in ["full", "empty", "file", "link", "dangling", "link/in", "file/in", "writable/in"] {
        let error = create(&controller, &spec("one", &[("subDir", directory)])).expect_err(directory);
        assert!(matches!(&error, Error::Conflict { object, .. } if object.contains("/a/")), "{directory}: {error}");
    }
    assert_eq!(controller.find(&id("one")).expect("looked"), None);
    // The drafts go in the background.
    let end = Instant::now() + Duration::from_secs(30);
    while ground.left() != before {
        assert!(Instant::now() < end, "{:?}", ground.left());
    }
    assert_eq!(std::fs::read_dir(ground.at("outside")).expect("listed").count(), 1);
}

#[test]
fn retained_volume_is_no_longer_found() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    for (local, way) in [("kept", "retain"), ("old", "archive")] {
        create(&controller, &spec(local, &[("onDelete", way), ("subDir", &format!("ns/{local}"))])).expect("made");
        std::fs::write(ground.at("a/ns").join(local).join("file"), local).expect("written");
        controller.delete(&id(local)).expect("deleted");
        assert_eq!(controller.delete(&id(local)).expect("repeated"), Outcome::Unchanged(()));
    }
    assert!(ids(&controller).is_empty());
    assert_eq!(std::fs::read(ground.at("a/ns/kept/file")).expect("there"), b"kept");
    assert!(!ground.at("a/ns/old").exists());
    let archived: Vec<String> = ground.left().into_iter().filter(|path| path.starts_with(".longshore/archive/old-")).collect();
    assert_eq!(archived.len(), 3, "{archived:?}");
    // What was retained is in the way of a volume that would lie in it, or be it.
    for directory in ["ns/kept", "ns/kept/in"] {
        let error = create(&controller, &spec("new", &[("subDir", directory)])).expect_err(directory);
        assert!(matches!(error, Error::Conflict { .. }), "{error}");
    }
}

/// A state, how it is made, and whether of a volume that is whole.
type Interrupted = (&'static str, fn(&Ground), bool);

/// Each state that a kill can leave, by hand; the next process ends it.
#[test]
fn on_delete_may_be_modified() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    let made = create(&controller, &spec("v", &[])).expect("made");
    std::fs::write(ground.at("a/v/file"), "kept").expect("written");
    let raw = |value: &str| RawParameters::new([("onDelete".to_owned(), value.to_owned())]);
    for bad in ["scrub", "burn"] {
        assert!(matches!(controller.modify(&id("v"), &raw(bad)), Err(Error::Invalid { .. })), "{bad}");
    }
    assert_eq!(controller.modify(&id("v"), &raw("retain")).expect("modified"), Outcome::Changed(()));
    assert_eq!(controller.modify(&id("v"), &raw("retain")).expect("a repeat"), Outcome::Unchanged(()));
    assert!(matches!(controller.modify(&id("none"), &raw("retain")), Err(Error::NotFound { .. })));
    assert_eq!(controller.find(&id("v")).expect("found"), Some(made), "what was asked for is as it was");
    controller.delete(&id("v")).expect("deleted");
    assert_eq!(std::fs::read_to_string(ground.at("a/v/file")).expect("still there"), "kept");
}

#[test]
fn a_kill_anywhere_leaves_nothing_that_the_next_process_does_not_end() {
    assert_next_process_ends_everything(&std::env::temp_dir());
    on_btrfs(assert_next_process_ends_everything);
}

fn assert_next_process_ends_everything(on: &Path) {
    let interrupted: [Interrupted; 8] = [
        ("a draft without a record", |ground| std::fs::create_dir(ground.at("a/.longshore/drafts/one")).expect("made"), false),
        (
            "a record that is half written",
            |ground| {
                std::fs::write(ground.at("a/.longshore/volumes/.one.json.tmp"), "{").expect("written");
            },
            false,
        ),
        (
            "a draft with its record",
            |ground| {
                std::fs::rename(ground.at("a/x/one"), ground.at("a/.longshore/drafts/one")).expect("back");
                ground.set_record(&VolumeRecord { phase: Phase::Making, ..ground.record("one") });
            },
            true,
        ),
        (
            "a claimed place",
            |ground| {
                std::fs::rename(ground.at("a/x/one"), ground.at("a/.longshore/drafts/one")).expect("back");
                std::fs::create_dir(ground.at("a/x/one")).expect("made");
                std::fs::set_permissions(ground.at("a/x/one"), PermissionsExt::from_mode(0o0)).expect("set");
                ground.set_record(&VolumeRecord { phase: Phase::Making, ..ground.record("one") });
            },
            true,
        ),
        (
            "in place, not yet whole",
            |ground| {
                ground.set_record(&VolumeRecord { phase: Phase::Making, ..ground.record("one") });
            },
            true,
        ),
        (
            "deleted, still in place",
            |ground| {
                std::fs::write(ground.at("a/x/one/file"), "data").expect("written");
                ground.set_record(&VolumeRecord { phase: Phase::Deleting { at: 7 }, ..ground.record("one") });
            },
            true,
        ),
        (
            "deleted, in the trash",
            |ground| {
                std::fs::rename(ground.at("a/x/one"), ground.at("a/.longshore/trash/one~7")).expect("gone");
                ground.set_record(&VolumeRecord { phase: Phase::Deleting { at: 7 }, ..ground.record("one") });
            },
            true,
        ),
        ("half of the trash", |ground| std::fs::create_dir_all(ground.at("a/.longshore/trash/~1/b/c")).expect("made"), false),
    ];
    for (state, make, made) in interrupted {
        for repeat in [false, true] {
            let ground = ground_in(on, &["a"]);
            let controller = ground.open();
            controller.probe().expect("there");
            if made {
                create(&controller, &spec("one", &[("subDir", "x/one")])).expect("made");
            }
            drop(controller);
            make(&ground);
            let controller = ground.open();
            assert_eq!(controller.find(&id("one")).expect("looked"), None, "{state}");
            assert!(ids(&controller).is_empty(), "{state}");
            if repeat {
                create(&controller, &spec("one", &[("subDir", "x/one")])).expect(state);
                assert_eq!(std::fs::read_dir(ground.at("a/x/one")).expect("there").count(), 0, "{state}");
                controller.delete(&id("one")).expect(state);
            }
            ground.assert_nothing_left();
            let everything = controller.capacity(&CapacityQuery::default()).expect("reported").available;
            assert!(everything > Bytes::mib(900) || everything.0 % (1 << 20) == 0, "{everything}");
        }
    }
}

#[test]
fn a_foreign_directory_in_the_place_of_what_was_deleted_is_left() {
    let ground = ground(&["a"]);
    create(&ground.open(), &spec("one", &[])).expect("made");
    std::fs::rename(ground.at("a/one"), ground.at("a/.longshore/trash/one~7")).expect("gone");
    ground.set_record(&VolumeRecord { phase: Phase::Deleting { at: 7 }, ..ground.record("one") });
    std::fs::create_dir(ground.at("a/one")).expect("made");
    std::fs::write(ground.at("a/one/file"), "another's").expect("written");
    let controller = ground.open();
    assert_eq!(controller.delete(&id("one")).expect("done"), Outcome::Unchanged(()));
    assert_eq!(std::fs::read(ground.at("a/one/file")).expect("there"), b"another's");
}

#[test]
fn capacity_of_a_reload_limits_what_is_made_from_then_on() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    create(&controller, &spec("one", &[])).expect("made");
    let large = VolumeSpec { capacity: Bytes::mib(1500), ..spec("two", &[]) };
    create(&controller, &large).expect_err("1 GiB in all");
    let mut shares = ground.config.shares.clone();
    let mut apply = |capacity| {
        shares[0].capacity = Some(capacity);
        controller.apply_capacities(shares.iter().map(|share| share.capacity).collect())();
        controller.usage().pools[0].1.expect("seen").provisionable
    };
    assert_eq!(apply(Bytes::mib(2000)), Bytes::mib(2000));
    create(&controller, &large).expect("it fits now");
    assert_eq!(apply(Bytes::mib(100)), Bytes::mib(100));
    assert_eq!(controller.capacity(&CapacityQuery::default()).expect("reported").available, Bytes(0));
    create(&controller, &spec("three", &[])).expect_err("more is provisioned than the limit");
    create(&controller, &large).expect("what is there is found");
}

#[test]
fn provisioned_capacity_is_limited_to_the_share() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    create(&controller, &spec("one", &[])).expect("made");
    let large = VolumeSpec { capacity: Bytes::mib(925), ..spec("two", &[]) };
    let error = create(&controller, &large).expect_err("too large").to_string();
    assert!(error.contains("924 MiB of 1 GiB left"), "{error}");
    assert!(matches!(controller.expand(&id("one"), Bytes::mib(1025)), Err(Error::NoCapacity { .. })));
    assert_eq!(controller.expand(&id("one"), Bytes::mib(1000)).expect("fits"), Outcome::Changed(Bytes::mib(1000)));
    assert_eq!(controller.expand(&id("one"), Bytes::mib(500)).expect("larger already"), Outcome::Unchanged(Bytes::mib(1000)));
    std::fs::write(ground.at("a/one/file"), vec![1; 30 << 20]).expect("written");
    let taken =
        SnapshotSpec { id: snapshot_id("s"), name: "s".to_owned(), source: id("one"), parameters: RawParameters::default() };
    let begun = controller.create_snapshot(&taken, &NothingMounted);
    let error = begun.err().unwrap_or_else(|| refused(&controller, &taken.id));
    assert!(matches!(&error, Error::NoCapacity { reason, .. } if reason.contains("24 MiB of 1 GiB left")), "{error}");
    assert!(controller.find_snapshot(&taken.id).expect("looked").is_none());
    std::fs::File::create(ground.at("a/one/file")).and_then(|file| file.set_len(1)).expect("emptied");
    snapshot_of_one(&controller);
    controller.delete_snapshot(&taken.id).expect("deleted");
    drop(controller);
    let controller = ground.open();
    assert_eq!(controller.find(&id("one")).expect("looked").expect("there").capacity, Bytes::mib(1000));
    assert!(controller.capacity(&CapacityQuery::default()).expect("reported").available <= Bytes::mib(24));
    let usage = controller.usage();
    assert_eq!(usage.pools[0].1.expect("seen").provisioned.expect("reported").provisioned, Bytes::mib(1000));
    controller.delete(&id("one")).expect("deleted");
    assert!(create(&controller, &large).is_ok());
}

#[test]
fn snapshots_are_whole_and_outlive_their_volume() {
    assert_snapshots_are_whole(&std::env::temp_dir());
    on_btrfs(assert_snapshots_are_whole);
}

fn assert_snapshots_are_whole(on: &Path) {
    let ground = ground_in(on, &["a"]);
    let controller = ground.open();
    create(&controller, &spec("one", &[("mountPermissions", "0750"), ("uid", "7")])).expect("made");
    std::fs::create_dir(ground.at("a/one/dir")).expect("made");
    std::fs::write(ground.at("a/one/dir/file"), "then").expect("written");
    let taken =
        SnapshotSpec { id: snapshot_id("s"), name: "s".to_owned(), source: id("one"), parameters: RawParameters::default() };
    controller.create_snapshot(&taken, &NothingMounted).expect("taken");
    let ready = || controller.find_snapshot(&taken.id).map(|found| found.filter(|snapshot| snapshot.ready));
    let end = Instant::now() + Duration::from_secs(30);
    while ready().expect("looked").is_none() {
        assert!(Instant::now() < end);
    }
    std::fs::write(ground.at("a/one/dir/file"), "now").expect("written");
    let restored = VolumeSpec { source: Some(ContentSource::Snapshot(taken.id.clone())), ..spec("restored", &[]) };
    at_last(|| create(&controller, &restored)).expect("restored");
    let cloned = VolumeSpec { source: Some(ContentSource::Volume(id("one"))), ..spec("cloned", &[("mountPermissions", "0700")]) };
    at_last(|| create(&controller, &cloned)).expect("cloned");
    controller.delete(&id("one")).expect("deleted");
    assert_eq!(std::fs::read(ground.at("a/restored/dir/file")).expect("there"), b"then");
    assert_eq!(std::fs::read(ground.at("a/cloned/dir/file")).expect("there"), b"now");
    let seen = |path: &str| ground.at(path).metadata().map(|meta| (meta.mode() & 0o7777, meta.uid())).expect("there");
    assert_eq!((seen("a/restored"), seen("a/cloned")), ((0o750, 7), (0o700, 7)));

    drop(controller);
    let controller = ground.open();
    let listed = controller.list_snapshots(Some(&id("one")), None, 9).expect("listed");
    assert_eq!(listed.len(), 1);
    assert!(listed[0].ready && listed[0].size == Bytes::mib(100));
    assert!(controller.list_snapshots(Some(&id("two")), None, 9).expect("listed").is_empty());
    assert_eq!(controller.delete_snapshot(&taken.id).expect("deleted"), Outcome::Changed(()));
    assert_eq!(controller.delete_snapshot(&taken.id).expect("repeated"), Outcome::Unchanged(()));
    for local in ["restored", "cloned"] {
        controller.delete(&id(local)).expect("deleted");
    }
    ground.assert_nothing_left();
}

/// Nobody can freeze what clients write: what changed while it was copied is of no single instant.
#[test]
fn copy_of_written_volume_is_refused_unless_its_class_takes_it_by_file() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    create(&controller, &spec("one", &[])).expect("made");
    for number in 0..200 {
        std::fs::write(ground.at("a/one").join(number.to_string()), number.to_string()).expect("written");
    }
    let taken = |consistency: Option<&str>| {
        let parameters = consistency.map(|value| ("consistency".to_owned(), value.to_owned()));
        let parameters = RawParameters::new(parameters);
        Snapshots::check(&controller, &parameters)?;
        let spec = SnapshotSpec { id: snapshot_id("s"), name: "s".to_owned(), source: id("one"), parameters };
        let mut taken = controller.create_snapshot(&spec, &NothingMounted)?;
        let end = Instant::now() + Duration::from_secs(60);
        while !taken.ready {
            assert!(Instant::now() < end);
            taken = controller.find_snapshot(&spec.id)?.expect("begun");
        }
        Ok::<_, Error>(taken)
    };
    let clone = |name: &str, parameters: &[(&str, &str)]| {
        let spec = VolumeSpec { source: Some(ContentSource::Volume(id("one"))), ..spec(name, parameters) };
        at_last(|| create(&controller, &spec))
    };
    assert!(matches!(taken(Some("block")), Err(Error::Invalid { .. })));
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also where something panics.
        let writes = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::fs::write(ground.at("a/one/199"), "new").expect("written");
            }
        });
        let refused = [taken(None).map(drop), clone("refused", &[]).map(drop)];
        let by_file = [taken(Some("file")).map(drop), clone("cloned", &[("consistency", "file")]).map(drop)];
        drop(writes);
        for refused in refused {
            let error = refused.expect_err("it changed meanwhile");
            assert!(matches!(error, Error::InUse { .. }) && error.to_string().contains("consistency: file"), "{error}");
        }
        by_file.into_iter().for_each(|taken| taken.expect("taken"));
    });
    assert_eq!(ids(&controller), ["cloned", "one"]);
    controller.delete_snapshot(&snapshot_id("s")).expect("deleted");
    taken(None).expect("nobody writes any more");
    clone("again", &[]).expect("nobody writes any more");
    controller.delete_snapshot(&snapshot_id("s")).expect("deleted");
    for local in ["one", "cloned", "again"] {
        controller.delete(&id(local)).expect("deleted");
    }
    ground.assert_nothing_left();
}

/// A store to a mapped page that is dirty already changes no time.
#[test]
#[allow(unsafe_code, reason = "mmap(2)")]
fn copy_of_a_volume_that_is_written_by_mmap_is_refused() {
    const TMPFS: i64 = 0x0102_1994;
    let ground = ground(&["a"]);
    if rustix::fs::statfs(ground.at("a")).is_ok_and(|found| found.f_type == TMPFS) {
        eprintln!("SKIPPED: on a tmpfs no store to a mapped page sets a time");
        return;
    }
    let controller = ground.open();
    create(&controller, &spec("one", &[])).expect("made");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(ground.at("a/one/file")).expect("made");
    file.set_len(4096).expect("sized");
    // SAFETY: a new mapping, of a file of this length.
    let mapped = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, std::os::fd::AsRawFd::as_raw_fd(&file), 0)
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    // SAFETY: it stays mapped, and only this thread uses it.
    let store = |byte: u8| unsafe { mapped.cast::<u8>().write_volatile(byte) };
    store(1);
    let (ready, _) = controller.locate_whole("one").expect("looked").expect("there");
    let directory = ready.at(Path::new("one")).expect("looked").expect("there");
    let copy = |stores: bool| {
        let copy = || {
            if stores {
                store(2);
            }
            Ok(tree::Copied::default())
        };
        ready.copy_unchanged(&id("one"), &directory, None, &Control::default(), copy)
    };
    let error = copy(true).expect_err("it was written to").to_string();
    assert!(error.contains("changed while it was copied"), "{error}");
    copy(false).expect("it was not");
}

#[test]
fn copy_is_refused_once_the_clock_was_set_back() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    create(&controller, &spec("one", &[])).expect("made");
    let (ready, _) = controller.locate_whole("one").expect("looked").expect("there");
    let directory = ready.at(Path::new("one")).expect("looked").expect("there");
    let copy = |seconds| {
        let since = ChangeTime::now(&ready.drafts).expect("a time").later(seconds);
        let copied = || Ok(tree::Copied::default());
        ready.copy_unchanged(&id("one"), &directory, Some(since), &Control::default(), copied)
    };
    copy(0).expect("nothing changed");
    let error = copy(3600).expect_err("it is earlier than when it was begun").to_string();
    assert!(error.contains("clock") && error.contains("set back"), "{error}");
}

/// Holes take no room: a pod's sparse file must not keep others from getting volumes.
#[test]
fn snapshot_counts_what_is_allocated_and_not_the_size_of_sparse_files() {
    on_btrfs(|on| {
        let ground = ground_in(on, &["a"]);
        let controller = ground.open();
        create(&controller, &spec("one", &[])).expect("made");
        let directory = ground.at("a/one/dir");
        std::fs::create_dir(&directory).expect("made");
        std::fs::write(directory.join("data"), vec![1; 1 << 20]).expect("written");
        std::fs::File::create(directory.join("sparse")).and_then(|file| file.set_len(1 << 60)).expect("made");
        let [from, to, links] = [&directory, &ground.at("a/to"), &ground.at("a/links")].map(|path| {
            std::fs::create_dir_all(path).expect("made");
            OpenDir::open(path).expect("opened")
        });
        std::fs::File::open(directory.join("data")).and_then(|file| file.sync_all()).expect("allocated");
        let copied = tree::copy(&from, &to, &links, &Control::default()).expect("copied");
        assert_eq!((copied.entries, copied.bytes), (3, 1 << 20));
    });
}

/// A record is written before anything of its data is: without it, the data are not what a kill leaves.
#[test]
fn snapshot_without_its_record_is_left() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    create(&controller, &spec("one", &[])).expect("made");
    std::fs::write(ground.at("a/one/file"), "then").expect("written");
    snapshot_of_one(&controller);
    let (meta, aside) = (ground.at("a/.longshore/snapshots/s/meta.json"), ground.at("outside/meta.json"));
    std::fs::rename(&meta, &aside).expect("moved");
    drop(controller);
    let controller = ground.open();
    controller.probe().expect("opened");
    let taken =
        SnapshotSpec { id: snapshot_id("s"), name: "s".to_owned(), source: id("one"), parameters: RawParameters::default() };
    for answer in [controller.find_snapshot(&taken.id).map(drop), controller.delete_snapshot(&taken.id).map(drop)] {
        assert!(matches!(answer, Err(Error::Unverified { .. })), "{answer:?}");
    }
    assert_eq!(std::fs::read(ground.at("a/.longshore/snapshots/s/data/file")).expect("it is there"), b"then");
    drop(controller);
    std::fs::rename(&aside, &meta).expect("restored");
    let controller = ground.open();
    assert!(controller.find_snapshot(&snapshot_id("s")).expect("looked").is_some_and(|found| found.ready));
}

/// Another share lies at the address by now, which was used by a driver of the same name.
#[test]
fn another_share_in_the_place_of_the_known_one_is_refused() {
    let ground = ground(&["a", "b"]);
    let controller = ground.open();
    create(&controller, &spec("one", &[("share", "/a")])).expect("made");
    create(&controller, &spec("two", &[("share", "/b")])).expect("made");
    drop(controller);
    ground.config.shares.iter().for_each(|share| ground.await_lock(share));
    for (from, to) in [("a", "away"), ("b", "a"), ("away", "b")] {
        std::fs::rename(ground.at(from), ground.at(to)).expect("moved");
    }
    let controller = ground.open();
    let error = controller.delete(&id("one")).expect_err("it is not known whether it is there").to_string();
    assert!(error.contains("not the share that was used before"), "{error}");
    assert!(ground.at("b/one").is_dir() && ground.at("a/two").is_dir());
}

/// What takes long continues behind the call, is asked for again, is stopped by a deletion, and survives the end of the process.
#[test]
fn long_deletion_continues_in_the_background() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    create(&controller, &spec("one", &[])).expect("made");
    for number in 0..4_000 {
        std::fs::write(ground.at("a/one").join(number.to_string()), number.to_string()).expect("written");
    }
    let cloned = VolumeSpec { source: Some(ContentSource::Volume(id("one"))), ..spec("cloned", &[]) };
    let error = create(&controller, &cloned).expect_err("it takes long").to_string();
    assert!(error.contains("entries"), "{error}");
    assert!(!ground.at("a/cloned").exists() && ids(&controller) == ["one"]);
    assert!(matches!(controller.delete(&id("one")), Err(Error::InProgress { .. })), "it is being copied");
    at_last(|| create(&controller, &cloned)).expect("cloned");
    assert_eq!(std::fs::read_dir(ground.at("a/cloned")).expect("there").count(), 4_000);

    // Interrupted, and asked for again with another size.
    create(&controller, &VolumeSpec { id: id("other"), ..cloned.clone() }).expect_err("it takes long");
    at_last(|| create(&controller, &VolumeSpec { id: id("other"), capacity: Bytes::mib(200), ..cloned.clone() }))
        .expect("cloned");
    create(&controller, &VolumeSpec { id: id("third"), ..cloned.clone() }).expect_err("it takes long");
    controller.delete(&id("third")).expect("stopped and deleted");

    let taken =
        SnapshotSpec { id: snapshot_id("s"), name: "s".to_owned(), source: id("one"), parameters: RawParameters::default() };
    assert!(!controller.create_snapshot(&taken, &NothingMounted).expect("begun").ready);
    assert!(matches!(controller.delete(&id("one")), Err(Error::InProgress { .. })), "it is being copied");
    drop(controller);
    // The thread of the old process continues and holds the share, as a process does until it has ended.
    let controller = at_last(|| {
        let controller = ground.open();
        controller.probe().map(|()| controller).map_err(|_| Error::InProgress { object: String::new(), reason: String::new() })
    })
    .expect("opened");
    let end = Instant::now() + Duration::from_secs(60);
    while !controller.find_snapshot(&taken.id).expect("looked").expect("there").ready {
        assert!(Instant::now() < end);
    }
    assert_eq!(std::fs::read_dir(ground.at("a/.longshore/snapshots/s/data")).expect("there").count(), 4_000);
}

/// A snapshot `s` of the volume `one`, ready.
fn snapshot_of_one(controller: &Controller) -> SnapshotSpec {
    let taken =
        SnapshotSpec { id: snapshot_id("s"), name: "s".to_owned(), source: id("one"), parameters: RawParameters::default() };
    controller.create_snapshot(&taken, &NothingMounted).expect("taken");
    await_ready(controller, &taken.id);
    taken
}

fn await_ready(controller: &Controller, id: &SnapshotId) {
    let end = Instant::now() + Duration::from_secs(30);
    while !controller.find_snapshot(id).expect("looked").expect("there").ready {
        assert!(Instant::now() < end);
    }
}

#[test]
fn controller_whose_lock_went_to_another_stops_provisioning() {
    let ground = ground(&["a"]);
    let first = ground.open();
    create(&first, &spec("one", &[])).expect("made");
    let (ready, _) = first.locate_whole("one").expect("looked").expect("there");
    ready.check_owner().expect("the first's");
    // The server gave the lock away: the first still holds the one of a file that is no longer there.
    std::fs::remove_file(ground.at("a/.longshore/lock")).expect("removed");
    let second = ground.open();
    second.probe().expect("opened");
    let error = ready.check_owner().expect_err("what the first is at is the second's").to_string();
    assert!(error.contains("taken over"), "{error}");
    drop(ready);
    create(&second, &spec("two", &[])).expect("made");
    for refused in [create(&first, &spec("three", &[])).map(drop), first.delete(&id("one")).map(drop), first.probe()] {
        let error = refused.expect_err("it is the second's share").to_string();
        assert!(error.contains("provisions from it") && !error.contains("share share"), "{error}");
    }
    second.delete(&id("one")).expect("the second deletes it");
    drop(second);
    ground.await_lock(&ground.config.shares[0]);
    create(&first, &spec("three", &[])).expect("the lock is free again");
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(2)
}

#[test]
fn shares_that_hang_are_waited_for_once_for_the_first_lock() {
    let _one_at_a_time = lock(&SHARES_HANG);
    crate::os::mount::testing::in_own_namespace(|| {
        let names = ["a", "b", "c", "d"];
        let ground = ground(&names);
        let places = names.map(|share| ground.at(share));
        let hung: Vec<_> = places.iter().map_while(|place| Hung::over(place)).collect();
        if hung.len() < places.len() {
            return;
        }
        let controller = ground.open_beside();
        controller.stand_by();
        let begun = Instant::now();
        let found = controller.first_lock(soon()).expect("nothing that waiting will not repair");
        let took = begun.elapsed();
        assert!(matches!(found, FirstLock::Away), "{found:?}");
        assert!(took < Duration::from_secs(5), "2 s for all of them, and not for each: {took:?}");
    });
}

#[test]
fn controller_on_standby_opens_no_share_until_the_lock_is_free() {
    let ground = ground(&["a", "b"]);
    let first = ground.open();
    first.probe().expect("both are its own");
    create(&first, &spec("one", &[])).expect("made");
    let second = ground.open_beside();
    second.stand_by();
    let found = second.first_lock(soon()).expect("nothing that waiting will not repair");
    let by = format!("process {} on ", std::process::id());
    assert!(matches!(&found, FirstLock::Elsewhere(reason) if reason.contains("nas:/a") && reason.contains(&by)), "{found:?}");
    for refused in [create(&second, &spec("two", &[])).map(drop), second.delete(&id("one")).map(drop)] {
        let error = refused.expect_err("it is on standby");
        assert!(matches!(&error, Error::BackendUnavailable { reason, .. } if reason.contains("on standby")), "{error}");
    }
    second.probe().expect("it is well");
    assert!(second.bases.iter().all(|base| base.current().is_none()));
    drop(first);
    ground.config.shares.iter().for_each(|share| ground.await_lock(share));
    assert!(matches!(second.first_lock(soon()), Ok(FirstLock::Here)));
    second.lead().expect("it leads");
    create(&second, &spec("two", &[])).expect("made");
    assert_eq!(second.list(None, 9).expect("listed").len(), 2);
}

/// A file system of 1 MiB. A tmpfs has no blocks that are only root's.
fn small_disk() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let small = c"size=1m";
    rustix::mount::mount("none", directory.path(), "tmpfs", rustix::mount::MountFlags::empty(), Some(small)).expect("mounted");
    directory
}

/// Else nothing could be deleted once the pods have filled the file system.
#[test]
fn volume_of_a_full_base_is_deleted_also_after_a_restart() {
    crate::os::mount::testing::in_own_namespace(|| {
        let directory = small_disk();
        let ground = ground_in(directory.path(), &["a"]);
        let controller = ground.open();
        create(&controller, &spec("one", &[])).expect("made");
        create(&controller, &spec("two", &[])).expect("made");
        let fill = |path: &str| {
            let mut file = std::fs::File::create(ground.at(path)).expect("made");
            std::iter::repeat(()).take_while(|()| file.write_all(&[1; 512]).is_ok()).count()
        };
        assert!(fill("a/one/file") > 0);
        std::fs::write(ground.at("state/file"), "data").expect_err("it is full");
        controller.delete(&id("two")).expect("deleted");
        drop(controller);
        fill("a/one/more");
        let controller = ground.open();
        controller.probe().expect("it opens");
        assert_eq!(controller.delete(&id("one")).expect("deleted"), Outcome::Changed(()));
        ground.assert_nothing_left();
    });
}

/// Their data stays, so that no deletion gives back room.
#[test]
fn volumes_of_a_full_base_are_archived_one_after_the_other() {
    crate::os::mount::testing::in_own_namespace(|| {
        let directory = small_disk();
        let ground = ground_in(directory.path(), &["a"]);
        let controller = ground.open();
        for name in ["one", "two", "three"] {
            create(&controller, &spec(name, &[("onDelete", "archive")])).expect("made");
        }
        create(&controller, &spec("last", &[])).expect("made");
        let mut file = std::fs::File::create(ground.at("a/last/file")).expect("made");
        let mut fill = || std::iter::repeat(()).take_while(|()| file.write_all(&[1; 512]).is_ok()).count();
        for name in ["one", "two", "three"] {
            fill();
            assert_eq!(controller.delete(&id(name)).expect("archived"), Outcome::Changed(()), "{name}");
        }
        assert_eq!(std::fs::read_dir(ground.at("a/.longshore/archive")).expect("a directory").count(), 6);
        fill();
        assert_eq!(controller.delete(&id("last")).expect("deleted"), Outcome::Changed(()));
    });
}

/// As what an administrator, a backup or a later version has put there.
#[test]
fn what_cannot_be_recovered_keeps_no_other_volume_from_being_served() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    create(&controller, &spec("one", &[])).expect("made");
    create(&controller, &spec("two", &[])).expect("made");
    drop(controller);
    let mut record = ground.record("two");
    record.phase = Phase::Deleting { at: 1 };
    record.parameters["backend"]["onDelete"] = "unknown".into();
    ground.set_record(&record);
    let foreign = ["volumes/notes", "volumes/directory", "volumes/other.json.bak", "snapshots/notes"]
        .map(|name| ground.at("a/.longshore").join(name));
    for path in &foreign {
        match path.ends_with("directory") {
            true => std::fs::create_dir(path).expect("made"),
            false => std::fs::write(path, "an administrator's").expect("written"),
        }
    }
    std::fs::write(ground.at("a/.longshore/volumes/.one.json.tmp"), "{").expect("written");
    let controller = ground.open();
    assert_eq!(ids(&controller), ["one"]);
    assert!(controller.delete(&id("two")).is_err(), "and it is tried again");
    assert!(foreign.iter().all(|path| path.exists()) && ground.at("a/two").exists());
    assert!(!ground.at("a/.longshore/volumes/.one.json.tmp").exists());
}

#[test]
fn a_snapshot_that_was_interrupted_is_made_anew() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    create(&controller, &spec("one", &[])).expect("made");
    std::fs::write(ground.at("a/one/file"), "data").expect("written");
    let taken = snapshot_of_one(&controller);
    drop(controller);
    let directory = ground.at("a/.longshore/snapshots/s");
    let text = std::fs::read_to_string(directory.join("meta.json")).expect("read").replace("\"ready\": true", "\"ready\": false");
    std::fs::write(directory.join("meta.json"), text).expect("written");
    std::fs::write(directory.join("data/file"), "half").expect("written");
    std::fs::write(directory.join("data/stray"), "half").expect("written");
    let controller = ground.open();
    controller.probe().expect("there");
    await_ready(&controller, &taken.id);
    assert_eq!(std::fs::read(directory.join("data/file")).expect("there"), b"data");
    assert!(!directory.join("data/stray").exists());
}

/// What was made in an instant is whole, and stays; whatever was written since, and also without its volume.
#[test]
fn interrupted_snapshot_of_a_subvolume_is_what_was_taken() {
    on_btrfs(|on| {
        let ground = ground_in(on, &["a"]);
        let controller = ground.open();
        create(&controller, &spec("one", &[])).expect("made");
        std::fs::write(ground.at("a/one/file"), "data").expect("written");
        let taken = snapshot_of_one(&controller);
        std::fs::write(ground.at("a/one/file"), "later").expect("written");
        // The thread that copied may end a moment after the snapshot is ready.
        at_last(|| controller.delete(&id("one"))).expect("deleted");
        drop(controller);
        let directory = ground.at("a/.longshore/snapshots/s");
        let text = std::fs::read_to_string(directory.join("meta.json")).expect("read");
        std::fs::write(directory.join("meta.json"), text.replace("\"ready\": true", "\"ready\": false")).expect("written");
        std::fs::create_dir(directory.join("links")).expect("made");
        let controller = ground.open();
        controller.probe().expect("there");
        await_ready(&controller, &taken.id);
        assert_eq!(std::fs::read(directory.join("data/file")).expect("there"), b"data");
        assert_eq!(std::fs::write(directory.join("data/file"), "").expect_err("read-only").raw_os_error(), Some(libc::EROFS));
        controller.delete_snapshot(&taken.id).expect("deleted");
        ground.assert_nothing_left();
    });
}

/// Also where the process that made it so ended before it looked.
#[test]
fn later_state_of_a_subvolume_never_becomes_an_interrupted_snapshot() {
    on_btrfs(|on| {
        let ground = ground_in(on, &["a"]);
        let controller = ground.open();
        create(&controller, &spec("one", &[])).expect("made");
        let taken = snapshot_of_one(&controller);
        let ready = controller.bases[0].current().expect("open");
        let (_, record) = controller.locate_snapshot("s").expect("looked").expect("there");
        let directory = ready.snapshots.existing("s").expect("there");
        subvolume::remove(&directory, "data".as_ref()).expect("removed");
        let record = SnapshotRecord { ready: false, ..record };
        ready.write_snapshot(&record).expect("written");
        let since = ChangeTime::of_entry(&directory, "meta.json").expect("a time").expect("there");
        std::fs::write(ground.at("a/one/file"), "later").expect("written");
        let stopped = Control::default();
        stopped.stop();
        let volume = ready.at(Path::new("one")).expect("looked").expect("there");
        ready.fill_snapshot(&record, &volume, &directory, Some(since), &stopped).expect_err("stopped before it has looked");
        let end = Instant::now() + Duration::from_secs(30);
        let error = loop {
            match controller.find_snapshot(&taken.id) {
                Ok(found) => assert!(found.is_some_and(|found| !found.ready) && Instant::now() < end, "it has the later state"),
                Err(error) => break error,
            }
        };
        assert!(matches!(&error, Error::InUse { by, .. } if by.contains("changed while it was copied")), "{error}");
        controller.delete(&id("one")).expect("deleted");
        ground.assert_nothing_left();
    });
}

/// Elsewhere this is refused (`copy_of_written_volume_is_refused_unless_its_class_takes_it_by_file`).
#[test]
fn snapshot_and_clone_of_a_written_subvolume_are_of_one_instant() {
    on_btrfs(|on| {
        let ground = ground_in(on, &["a"]);
        let controller = ground.open();
        create(&controller, &spec("one", &[])).expect("made");
        let place = ground.at("a/one");
        let write = |name: &str, number: u64| {
            std::fs::write(place.join("new"), number.to_string()).expect("written");
            std::fs::rename(place.join("new"), place.join(name)).expect("replaced");
        };
        let both = |number: u64| ["first", "second"].into_iter().for_each(|name| write(name, number));
        both(0);
        let over = AtomicBool::new(false);
        let copies = std::thread::scope(|scope| {
            scope.spawn(|| (1..).take_while(|_| !over.load(Ordering::Relaxed)).for_each(both));
            let copies: Vec<u64> = (0..20)
                .map(|round| {
                    let taken = snapshot_of_one(&controller);
                    let local = format!("clone-{round}");
                    let clone = VolumeSpec { source: Some(ContentSource::Volume(id("one"))), ..spec(&local, &[]) };
                    at_last(|| create(&controller, &clone)).expect("cloned");
                    let first = ["a/.longshore/snapshots/s/data".to_owned(), format!("a/{local}")].map(|copy| {
                        let read = |name| {
                            let text = std::fs::read_to_string(ground.at(&copy).join(name)).expect("read");
                            text.parse::<u64>().expect("a number")
                        };
                        let (first, second) = (read("first"), read("second"));
                        assert!(first == second || first == second + 1, "{copy}: {first}, {second}");
                        first
                    });
                    controller.delete_snapshot(&taken.id).expect("deleted");
                    controller.delete(&clone.id).expect("deleted");
                    first[0]
                })
                .collect();
            over.store(true, Ordering::Relaxed);
            copies
        });
        assert!(copies[0] < copies[19], "nothing was written meanwhile: this proves nothing: {copies:?}");
        controller.delete(&id("one")).expect("deleted");
        ground.assert_nothing_left();
    });
}

/// It is copied file by file, as any directory: what another subvolume has is in no snapshot.
#[test]
fn volume_with_a_subvolume_in_it_is_copied_whole() {
    on_btrfs(|on| {
        let ground = ground_in(on, &["a"]);
        let controller = ground.open();
        create(&controller, &spec("one", &[])).expect("made");
        let open = OpenDir::open(&ground.at("a/one")).expect("opened");
        subvolume::create(&open, "inner", 0o755).expect("made");
        std::fs::write(ground.at("a/one/inner/file"), "data").expect("written");
        let taken = snapshot_of_one(&controller);
        let restored = VolumeSpec { source: Some(ContentSource::Snapshot(taken.id.clone())), ..spec("restored", &[]) };
        at_last(|| create(&controller, &restored)).expect("restored");
        assert_eq!(std::fs::read(ground.at("a/restored/inner/file")).expect("copied"), b"data");
        controller.delete_snapshot(&taken.id).expect("deleted");
        for local in ["one", "restored"] {
            controller.delete(&id(local)).expect("deleted");
        }
        ground.assert_nothing_left();
    });
}

/// A caller that read the record before the copy ended asks for the copy after it.
#[test]
fn ready_snapshot_is_not_copied_again() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    create(&controller, &spec("one", &[])).expect("made");
    std::fs::write(ground.at("a/one/file"), "old").expect("written");
    snapshot_of_one(&controller);
    std::fs::write(ground.at("a/one/file"), "new").expect("written");
    let ready = controller.bases[0].ready().expect("open");
    // The copy that made it ready may not have ended.
    let copies: Vec<_> = lock(&ready.works).values().cloned().collect();
    assert!(copies.iter().all(|copy| copy.ends_within(Duration::from_secs(30))));
    assert!(ready.copy_snapshot("s").expect("looked").is_none());
    assert_eq!(std::fs::read(ground.at("a/.longshore/snapshots/s/data/file")).expect("there"), b"old");
}

/// The error of a snapshot that cannot be made.
fn refused(controller: &Controller, taken: &SnapshotId) -> Error {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        assert!(Instant::now() < end);
        match controller.find_snapshot(taken) {
            Ok(found) => assert!(found.is_some_and(|found| !found.ready)),
            Err(error) => return error,
        }
    }
}

/// As it is while it is copied.
fn unready(controller: &Controller, taken: &SnapshotId) {
    let (ready, mut record) = controller.locate_snapshot(taken.local()).expect("looked").expect("there");
    let copies: Vec<_> = lock(&ready.works).values().cloned().collect();
    assert!(copies.iter().all(|copy| copy.ends_within(Duration::from_secs(30))));
    record.ready = false;
    ready.write_snapshot(&record).expect("written");
}

/// Its record was written, and nothing more.
#[test]
fn snapshot_of_a_subvolume_that_was_not_taken_is_of_when_it_was_begun_or_none() {
    on_btrfs(|on| {
        let ground = ground_in(on, &["a"]);
        for changed in [false, true] {
            let controller = ground.open();
            create(&controller, &spec("one", &[])).expect("made");
            std::fs::write(ground.at("a/one/file"), "old").expect("written");
            let taken = snapshot_of_one(&controller).id;
            unready(&controller, &taken);
            let directory = OpenDir::open(&ground.at("a/.longshore/snapshots/s")).expect("opened");
            subvolume::remove(&directory, "data".as_ref()).expect("removed");
            if changed {
                std::fs::write(ground.at("a/one/file"), "new").expect("written");
            }
            drop(controller);
            let controller = ground.open();
            if changed {
                let error = refused(&controller, &taken);
                assert!(error.to_string().contains("changed while it was copied"), "{error}");
            } else {
                await_ready(&controller, &taken);
                assert_eq!(std::fs::read(ground.at("a/.longshore/snapshots/s/data/file")).expect("there"), b"old");
            }
            controller.delete_snapshot(&taken).expect("deleted");
            controller.delete(&id("one")).expect("deleted");
            ground.assert_nothing_left();
        }
    });
}

/// A process that ended before its copy did: the next one copies what was there when the snapshot was begun, or says that it cannot.
#[test]
fn interrupted_snapshot_is_of_when_it_was_begun_or_none() {
    let begun = |change: &dyn Fn(&Controller, &Ground)| {
        let ground = ground(&["a"]);
        let controller = ground.open();
        create(&controller, &spec("one", &[])).expect("made");
        std::fs::write(ground.at("a/one/file"), "old").expect("written");
        let taken = snapshot_of_one(&controller);
        unready(&controller, &taken.id);
        change(&controller, &ground);
        drop(controller);
        let controller = ground.open();
        (ground, controller, taken.id)
    };
    let (ground, controller, taken) = begun(&|_, _| ());
    await_ready(&controller, &taken);
    assert_eq!(std::fs::read(ground.at("a/.longshore/snapshots/s/data/file")).expect("there"), b"old");

    let (_ground, controller, taken) = begun(&|_, ground| std::fs::write(ground.at("a/one/file"), "new").expect("written"));
    let error = refused(&controller, &taken);
    assert!(error.to_string().contains("changed while it was copied"), "{error}");
    assert!(controller.find_snapshot(&taken).expect("looked").is_none());

    let (ground, controller, taken) = begun(&|controller, _| {
        controller.delete(&id("one")).expect("deleted");
    });
    let error = refused(&controller, &taken);
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    assert!(controller.find_snapshot(&taken).expect("looked").is_none());
    controller.delete_snapshot(&taken).expect("deleted");
    ground.assert_nothing_left();
}

#[test]
fn a_share_that_is_away_makes_nothing_look_gone() {
    let ground = ground(&["a", "b"]);
    let controller = ground.open();
    create(&controller, &spec("here", &[("share", "/a")])).expect("made");
    create(&controller, &spec("there", &[("share", "/b")])).expect("made");
    // With most room.
    let one = VolumeSpec { capacity: Bytes::mib(300), ..spec("one", &[("share", "/a")]) };
    create(&controller, &one).expect("made");
    assert_eq!(create(&controller, &spec("two", &[])).expect("made").parameters["backend"]["share"], "/b");
    assert_eq!(ids(&controller), ["here", "one", "there", "two"]);
    drop(controller);

    std::fs::rename(ground.at("b"), ground.at("away")).expect("moved");
    let controller = ground.open();
    assert!(controller.find(&id("here")).expect("on the other").is_some());
    for answer in [
        controller.find(&id("there")).map(|_| ()),
        controller.delete(&id("there")).map(|_| ()),
        controller.list(None, 9).map(|_| ()),
        create(&controller, &spec("new", &[])).map(|_| ()),
    ] {
        assert!(matches!(answer, Err(Error::BackendUnavailable { .. })), "{answer:?}");
    }
    controller.probe().expect("one is enough");
    assert!(controller.storage_health().expect("reported").iter().any(|problem| problem.reason == "ShareUnreachable"));
    // The server has another file system there now: not a new share.
    std::fs::create_dir(ground.at("b")).expect("made");
    let error = controller.find(&id("there")).expect_err("not the same").to_string();
    assert!(error.contains(".longshore is missing") && error.contains("nfs-shares"), "{error}");
    std::fs::remove_dir(ground.at("b")).expect("removed");
    std::fs::rename(ground.at("away"), ground.at("b")).expect("back");
    assert!(controller.find(&id("there")).expect("looked").is_some());
}

/// Held by tests whose shares hang: [`asking`] counts the threads of all of them.
static SHARES_HANG: Mutex<()> = Mutex::new(());

/// Threads of this process that ask shares and have got no answer.
fn asking() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    let status = threads.map(|thread| std::fs::read_to_string(thread.path().join("status")).unwrap_or_default());
    status.filter(|status| status.starts_with("Name:\task share\n") && status.contains("State:\tD")).count()
}

#[test]
fn share_whose_server_hangs_holds_up_no_other_and_takes_one_thread() {
    let _one_at_a_time = lock(&SHARES_HANG);
    crate::os::mount::testing::in_own_namespace(|| {
        let ground = ground(&["a", "b"]);
        let controller = ground.open();
        create(&controller, &spec("here", &[("share", "/a")])).expect("made");
        create(&controller, &spec("there", &[("share", "/b")])).expect("made");
        let path = ground.at("a");
        let Some(hung) = Hung::over(&path) else { return };
        let quick = |what: &str, call: &dyn Fn() -> Result<()>| {
            let started = Instant::now();
            call().expect(what);
            assert!(started.elapsed() < Duration::from_secs(5), "{what} took {:?}", started.elapsed());
        };
        quick("find", &|| controller.find(&id("there")).map(|found| assert!(found.is_some())));
        quick("expand", &|| controller.expand(&id("there"), Bytes::mib(200)).map(drop));
        // Its own volumes are waited for, until it is known that it hangs.
        let refused = controller.find(&id("here"));
        assert!(matches!(refused, Err(Error::BackendUnavailable { .. })), "{refused:?}");
        quick("probe", &|| controller.probe());
        quick("create", &|| create(&controller, &spec("new", &[("share", "/b")])).map(drop));
        quick("create anywhere", &|| create(&controller, &spec("newer", &[])).map(drop));
        quick("delete", &|| controller.delete(&id("there")).map(drop));
        quick("capacity", &|| controller.capacity(&CapacityQuery::default()).map(drop));
        for refused in [
            controller.find(&id("here")).map(drop),
            controller.delete(&id("here")).map(drop),
            // It may be on the share that hangs.
            controller.delete(&id("unknown")).map(drop),
            controller.list(None, 9).map(drop),
        ] {
            let text = refused.expect_err("nobody can look").to_string();
            assert!(text.contains("nas:/a") && text.contains("has not ended for"), "{text}");
        }
        assert_eq!(asking(), 1, "one thread hangs, however many calls came");
        drop(controller);

        // The same for a share whose opening hangs.
        ground.await_lock(&ground.config.shares[1]);
        let controller = ground.open_beside();
        // A program that another test starts may have the lock of the other one for a moment.
        let end = Instant::now() + Duration::from_secs(60);
        while let Err(error) = controller.probe() {
            assert!(Instant::now() < end, "{error}");
        }
        let error = controller.find(&id("here")).expect_err("nobody can look").to_string();
        assert!(error.contains("nas:/a"), "{error}");
        quick("create", &|| create(&controller, &spec("newest", &[("share", "/b")])).map(drop));
        quick("find", &|| controller.find(&id("newest")).map(|found| assert!(found.is_some())));
        drop(hung);
        at_last(|| match controller.find(&id("here")) {
            Err(Error::BackendUnavailable { .. }) => {
                Err(Error::InProgress { object: "share".to_owned(), reason: "opens".to_owned() })
            }
            found => found.map(|found| assert!(found.is_some())),
        })
        .expect("it is there again");
        assert_eq!(ids(&controller), ["here", "new", "newer", "newest"]);
    });
}

#[test]
fn create_skips_a_share_that_is_away_only_where_it_surely_lacks_the_volume() {
    let ground = ground(&["a", "b"]);
    let controller = ground.open();
    create(&controller, &spec("old", &[("share", "/a")])).expect("made");
    create(&controller, &spec("other", &[("share", "/b")])).expect("made");
    std::fs::rename(ground.at("a"), ground.at("away")).expect("moved");
    // Its index says what it holds.
    create(&controller, &spec("new", &[])).expect("the share that is away does not hold it");
    assert!(ground.at("b/new").is_dir());
    let error = create(&controller, &spec("old", &[])).expect_err("the share that is away holds it");
    assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
    drop(controller);

    // Away at the start: nobody knows what it holds.
    let controller = ground.open();
    let error = create(&controller, &spec("newer", &[])).expect_err("not known");
    let text = error.to_string();
    assert!(matches!(error, Error::BackendUnavailable { .. }), "{text}");
    assert!(text.contains("nas:/a") && text.contains("StorageClass") && text.contains("parameters server and share"), "{text}");
    create(&controller, &spec("newer", &[("share", "/b")])).expect("the class names a share that is there");
    let error = create(&controller, &spec("newest", &[("share", "/a")])).expect_err("the class names the one that is away");
    assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
    assert!(ground.at("b/newer").is_dir() && !ground.at("b/newest").exists() && !ground.at("b/old").exists());
    std::fs::rename(ground.at("away"), ground.at("a")).expect("back");
    assert!(ground.at("a/old").is_dir() && ids(&controller) == ["new", "newer", "old", "other"]);
}

#[test]
fn a_volume_id_on_two_shares_is_refused_and_both_are_named() {
    let ground = ground(&["a", "b"]);
    // Made anew elsewhere while the first share was away, by a class that names the second.
    create(&ground.open(), &spec("v", &[("share", "/a")])).expect("made");
    std::fs::rename(ground.at("a"), ground.at("away")).expect("moved");
    create(&ground.open(), &spec("v", &[("share", "/b")])).expect("the class names another share");
    std::fs::rename(ground.at("away"), ground.at("a")).expect("back");
    let controller = ground.open();
    controller.list(None, 9).expect("both shares are opened");
    let refused = [
        create(&controller, &spec("v", &[])).map(drop),
        controller.find(&id("v")).map(drop),
        controller.delete(&id("v")).map(drop),
    ];
    for answer in refused {
        let text = answer.expect_err("which of the two?").to_string();
        assert!(text.contains("nas:/a") && text.contains("nas:/b"), "{text}");
    }
    assert!(ground.at("a/v").is_dir() && ground.at("b/v").is_dir());
    // As the message says, while the driver runs.
    for path in ["b/v", "b/.longshore/volumes/v.json"] {
        std::fs::rename(ground.at(path), ground.at("outside").join(path.rsplit('/').next().expect("a name"))).expect("moved");
    }
    let found = controller.find(&id("v")).expect("one is left").expect("there");
    assert_eq!(found.parameters["backend"]["share"], "/a");
    // Nor does what it had in the index keep a new one from being made.
    std::fs::remove_file(ground.record_path("v")).expect("removed");
    std::fs::rename(ground.at("a/v"), ground.at("outside/a")).expect("moved");
    create(&controller, &VolumeSpec { capacity: Bytes::GIB, ..spec("v", &[("share", "/a")]) }).expect("made anew");
}

#[test]
fn one_process_provisions_and_one_backend_owns() {
    let ground = ground(&["a"]);
    let first = ground.open();
    first.probe().expect("there");
    let error = ground.open_beside().probe().expect_err("taken").to_string();
    assert!(error.contains("provisions from it") && !error.contains("share share"), "{error}");
    drop(first);
    ground.await_lock(&ground.config.shares[0]);
    let config = NfsConfig { name: "other".parse().expect("a name"), ..ground.config.clone() };
    let error = on_directories(&config, &ground.at("state"), &[ground.at("a")]).probe().expect_err("not its own").to_string();
    assert!(error.contains("belongs to the backend nfs"), "{error}");
    std::fs::set_permissions(ground.at("a/.longshore"), PermissionsExt::from_mode(0o755)).expect("set");
    let error = ground.open().probe().expect_err("open to others").to_string();
    assert!(error.contains("0700"), "{error}");
}

#[test]
fn damaged_record_is_reported_and_left() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    for local in ["bad", "good", "lost"] {
        create(&controller, &spec(local, &[])).expect("made");
    }
    drop(controller);
    std::fs::write(ground.record_path("bad"), "{\"format\": 1, \"id\"").expect("written");
    std::fs::remove_dir(ground.at("a/lost")).expect("removed");
    let controller = ground.open();
    assert_eq!(ids(&controller), ["bad", "good", "lost"]);
    for answer in [controller.find(&id("bad")).map(|_| ()), controller.delete(&id("bad")).map(|_| ()), {
        controller.create(&spec("bad", &[]), &NothingMounted).map(|_| ())
    }] {
        assert!(matches!(&answer, Err(Error::Unverified { device, .. }) if device.ends_with("bad.json")), "{answer:?}");
    }
    assert!(ground.at("a/bad").is_dir());
    let unhealthy = controller.unhealthy(None, 9).expect("reported");
    let found: Vec<_> = unhealthy.iter().map(|(id, health)| (id.local(), health[0].reason, health[0].severity)).collect();
    let wanted = [("bad", "MetadataDamaged", Severity::Inaccessible), ("lost", "DirectoryMissing", Severity::DataLoss)];
    assert_eq!(found, wanted);
    assert!(controller.volume_health(&id("good")).expect("reported").is_empty());
    controller.delete(&id("lost")).expect("given up");
    assert_eq!(ids(&controller), ["bad", "good"]);
}

/// Tells tenants on drop that it is over.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A tenant renames, plants and swaps in his own volume while it is copied and deleted.
#[test]
fn a_tenant_reaches_nothing_outside() {
    let ground = ground(&["a"]);
    let controller = ground.open();
    let over = AtomicBool::new(false);
    let outside = ground.at("outside");
    std::thread::scope(|scope| {
        // Also after a panic, which the scope holds back until the tenants have ended.
        let _end = Ends(&over);
        for round in 0..15 {
            let local = format!("v{round}");
            create(&controller, &spec(&local, &[])).expect("made");
            let directory = ground.at("a").join(&local);
            for sub in 0..10 {
                let sub = directory.join(sub.to_string());
                std::fs::create_dir_all(sub.join("deep/er")).expect("made");
                (0..20).for_each(|file| std::fs::write(sub.join(format!("deep/{file}")), "x").expect("written"));
            }
            let open = OpenDir::open(&directory).expect("the tenant has it mounted");
            let (over, outside) = (&over, &outside);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    for sub in 0..10 {
                        let (name, link) = (sub.to_string(), format!("link{sub}"));
                        rustix::fs::symlinkat(outside, &open, &link).ok();
                        rustix::fs::renameat_with(&open, &name, &open, &link, rustix::fs::RenameFlags::EXCHANGE).ok();
                    }
                    if open.stat_self().is_ok_and(|stat| stat.st_nlink == 0) {
                        return;
                    }
                }
            });
            let taken = SnapshotSpec {
                id: snapshot_id(&local),
                name: local.clone(),
                source: id(&local),
                // It changes all the time.
                parameters: RawParameters::new([("consistency".to_owned(), "file".to_owned())]),
            };
            controller.create_snapshot(&taken, &NothingMounted).expect("taken");
            at_last(|| controller.delete(&id(&local))).expect("deleted");
            controller.delete_snapshot(&taken.id).expect("deleted");
        }
        let end = Instant::now() + Duration::from_secs(60);
        // A link made in a directory that is going can hold it back for a moment.
        while !ground.left().is_empty() && Instant::now() < end {
            controller.delete(&id("none")).expect("nothing");
        }
    });
    assert_eq!(std::fs::read_dir(ground.at("outside")).expect("listed").count(), 1);
    assert_eq!(std::fs::read(ground.at("outside/file")).expect("there"), b"precious");
}

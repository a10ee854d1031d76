//! A real Cinder (29.0.0 from PyPI): its API, scheduler and volume service in one process (`real.py`), with a driver that keeps volumes in files.
//! Keystone and Nova are stand-ins: Cinder runs without Keystone (`auth_strategy = noauth`), and what Nova asks Cinder for, the emulator asks.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Child;

use super::super::moto;
use super::*;

/// A real service takes its own time.
const SLOW: u32 = 4;

struct Real {
    process: Child,
    cloud: OpenStack,
    scratch: tempfile::TempDir,
}

impl Drop for Real {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.scratch.path().join("cinder.log")).unwrap_or_default();
            let lines: Vec<&str> =
                log.lines().filter(|line| [" ERROR ", " WARNING "].iter().any(|level| line.contains(level))).collect();
            eprintln!(
                "what Cinder's log has of warnings and errors, the last of them:\n{}",
                lines[lines.len().saturating_sub(200)..].join("\n")
            );
        }
    }
}

impl Real {
    /// `None`, and said, where it cannot be installed.
    fn start() -> Option<Real> {
        let requirements = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cloud/cinder/requirements.txt"));
        let scratch = tempfile::tempdir().expect("a directory");
        let place = scratch.path().display().to_string();
        let started = common::tools::python("cinder", requirements)
            .and_then(|python| moto::serve_by(&python, &[include_str!("real.py"), &place]));
        match started {
            Ok((address, process)) => Some(Real { process, cloud: OpenStack::start(Some(address)), scratch }),
            Err(why) => {
                skipped(&why);
                None
            }
        }
    }

    /// What Cinder itself has of this kind.
    fn all(&self, kind: &str) -> Vec<Value> {
        emulator::all_of(&self.cloud, kind)
    }

    fn volume(&self, name: &str) -> Value {
        let found: Vec<Value> = self.all("volumes").into_iter().filter(|volume| volume["name"] == name).collect();
        assert_eq!(found.len(), 1, "{found:#?}");
        found[0].clone()
    }
}

/// In one test: it takes seconds to start.
#[test]
fn cinder_real_service_keeps_volumes_through_their_lives() {
    let Some(real) = Real::start() else { return };
    let cloud = &real.cloud;
    let mut driver = driver_with(cloud, "test", "backups: true");
    let config = driver.harness.path("config.yaml");
    let zones = fs::read_to_string(&config).expect("the configuration").replace(VOLUME_ZONE, "nova");
    fs::write(&config, zones).expect("the configuration");
    driver.harness.set("LONGSHORE_CLOUD_SPEED", &SLOW.to_string());
    driver.patience = Duration::from_secs(60) / SLOW;
    let driver = driver.started();
    let small = |name: &str| csi::CreateVolumeRequest {
        capacity_range: Some(csi::CapacityRange { required_bytes: GIB, limit_bytes: 0 }),
        ..creation(name)
    };
    let typed = |name: &str, kind: &str| {
        let mut request = small(name);
        request.parameters.insert("type".to_owned(), kind.to_owned());
        request
    };
    let id = driver.create_as(typed("data", "ssd")).expect("created").volume_id;
    assert_eq!(driver.create_as(typed("data", "ssd")).expect("again").volume_id, id);
    let volume = real.volume("data");
    assert_eq!(
        (&volume["size"], &volume["status"], &volume["availability_zone"], &volume["volume_type"]),
        (&json!(1), &json!("available"), &json!("nova"), &json!("ssd"))
    );
    assert_eq!((&volume["metadata"]["longshore.dev:cluster"], &volume["metadata"]["team"]), (&json!("test"), &json!("storage")));

    // Before there is a snapshot: over oslo.messaging's fake transport the services share their objects, and Cinder's own `save` fails then.
    driver.modify(&id, &[("type", "fast")]).expect("another type");
    driver.modify(&id, &[("type", "fast")]).expect("again");

    // Nova's part, as Cinder sees it.
    let context = driver.attach(&id, "n1").expect("attached");
    assert_eq!((context["identity"].as_str(), context["madeEmpty"].as_str()), (volume["id"].as_str().expect("an id"), "true"));
    assert_eq!(real.volume("data")["status"], "in-use");
    assert_eq!(driver.list(), [(id.clone(), vec![node("n1")])]);
    assert_eq!(code(driver.attach(&id, "n2")).0, Code::FailedPrecondition);
    assert_eq!(code(driver.delete(&id)).0, Code::FailedPrecondition);
    let snapshot = driver.snapshot("then", &id).expect("a snapshot of a volume in use");
    driver.detach(&id, "n1").expect("detached");
    assert_eq!(
        real.volume("data")["metadata"]["longshore.dev:blank"].as_str().map(|blank| blank.starts_with("attaching")),
        Some(true)
    );

    assert_eq!(driver.expand(&id, 2).expect("grown"), 2 * GIB);
    assert_eq!((&real.volume("data")["size"], &real.volume("data")["volume_type"]), (&json!(2), &json!("fast")));
    let made = |mut request: csi::CreateVolumeRequest, gib: i64| {
        request.capacity_range = Some(csi::CapacityRange { required_bytes: gib * GIB, limit_bytes: 0 });
        driver.create_as(request).expect("made").volume_id
    };
    let restored = made(driver.restored_from("restored", &snapshot), 3);
    let copy = made(driver.clone_of("copy", &id), 2);
    assert_eq!(real.volume("restored")["size"], 3);
    assert_eq!(real.volume("copy")["source_volid"], volume["id"]);

    // cinder-backup, which replaces the metadata of what it restores.
    let file = |name: &str| {
        let id = real.volume(name)["id"].as_str().expect("an id").to_owned();
        real.scratch.path().join("volumes").join(id)
    };
    let written = fs::OpenOptions::new().write(true).open(file("data")).expect("the volume");
    written.write_all_at(b"at its begin", 0).and_then(|()| written.write_all_at(b"and further on", GIB as u64)).expect("written");
    let driver = Driver { snapshot_class: HashMap::from([("type".to_owned(), "backup".to_owned())]), ..driver };
    let backup = driver.snapshot("saved", &id).expect("a backup");
    assert_eq!(driver.snapshot("saved", &id).expect("again"), backup);
    assert_eq!((real.all("backups").len(), real.all("snapshots").len()), (1, 1), "its temporary snapshot is gone");
    let mut request = driver.restored_from("from-backup", &backup);
    request.capacity_range = Some(csi::CapacityRange { required_bytes: 3 * GIB, limit_bytes: 0 });
    let from_backup = driver.create_as(request).expect("restored").volume_id;
    let made = real.volume("from-backup");
    assert_eq!((&made["size"], &made["metadata"]["longshore.dev:volume"]), (&json!(3), &json!("from-backup")));
    let read = fs::File::open(file("from-backup")).expect("the volume");
    let mut text = [0; 14];
    read.read_exact_at(&mut text, GIB as u64).expect("read");
    assert_eq!(&text, b"and further on");
    driver.delete(&from_backup).expect("deleted");
    driver.delete_snapshot(&backup).expect("deleted");
    driver.delete_snapshot(&backup).expect("again");
    assert_eq!(real.all("backups"), Vec::<Value>::new());

    // Two volumes on a page (osapi_max_limit).
    let listed = driver.list();
    assert_eq!(listed.len(), 3, "{listed:?}");
    let listed = driver.call(|mut client| async move { client.list_snapshots(csi::ListSnapshotsRequest::default()).await });
    assert_eq!(listed.expect("a list").entries.len(), 1);

    // Quotas: five volumes.
    let more = ["more-0", "more-1"].map(|name| driver.create_as(small(name)).expect("created").volume_id);
    let (refused, message) = code(driver.create_as(small("more-2")));
    assert_eq!((refused, message.contains("413")), (Code::ResourceExhausted, true), "{message}");
    let (refused, message) = code(driver.create_as(typed("odd", "no-such-type")));
    assert_eq!(refused, Code::InvalidArgument, "{message}");
    more.iter().for_each(|id| driver.delete(id).expect("deleted"));

    // What the back end cannot hold ends in an error, with a message.
    let mut request = small("large");
    request.capacity_range = Some(csi::CapacityRange { required_bytes: 2000 * GIB, limit_bytes: 0 });
    let (refused, message) = code(driver.create_as(request));
    assert_eq!((refused, message.contains("backend")), (Code::ResourceExhausted, true), "{message}");

    let second = Driver { persistent: false, ..driver };
    assert_eq!(code(second.delete(&id)).0, Code::FailedPrecondition, "it has a snapshot");
    let driver = Driver { persistent: true, ..second };
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete_snapshot(&snapshot).expect("again");
    for id in [&restored, &copy, &id] {
        driver.delete(id).expect("deleted");
        driver.delete(id).expect("again");
    }
    assert_eq!((real.all("volumes"), real.all("snapshots"), real.all("attachments")), (vec![], vec![], vec![]));
    driver.assert_clean(cloud, "at the end");
}

//! Storage that does not answer while the driver starts: the others are served, and it is when it answers again.

mod common;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{Harness, Pool, capability, create, isolated, run, stage_request, text};
use longshore::csi;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::{Code, Status};

const LONG: Duration = Duration::from_secs(60);
/// The driver waits 2 s for its pools, and 2 s for what it recovers.
const START: Duration = Duration::from_secs(15);

/// A frozen file system; thawed at the latest when the test ends, or nothing could be unmounted.
struct Frozen(Option<PathBuf>);

impl Frozen {
    /// That of the pool `plain`.
    fn plain(harness: &Harness) -> Frozen {
        let place = harness.path("pool/plain");
        run("fsfreeze", [OsStr::new("--freeze"), place.as_os_str()]);
        Frozen(Some(place))
    }

    fn thaw(&mut self) {
        if let Some(place) = self.0.take() {
            run("fsfreeze", [OsStr::new("--unfreeze"), place.as_os_str()]);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
    }
}

fn create_in(harness: &Harness, name: &str, pool: &str) -> Result<(), Status> {
    let mut request = create(name, 64, Some("ext4"), "image");
    request.parameters =
        HashMap::from([("backend", "image"), ("pool", pool)].map(|(key, value)| (key.to_owned(), value.to_owned())));
    harness.block_on(harness.controller().create_volume(request)).map(drop)
}

fn delete(harness: &Harness, name: &str) -> Result<(), Status> {
    let request = csi::DeleteVolumeRequest { volume_id: format!("image:{name}"), ..Default::default() };
    harness.block_on(harness.controller().delete_volume(request)).map(drop)
}

fn stage(harness: &Harness, name: &str) -> Result<(), Status> {
    let request = stage_request(format!("image:{name}"), harness.staging(name), capability(Some("ext4")));
    harness.block_on(harness.node().node_stage_volume(request)).map(drop)
}

fn unstage(harness: &Harness, name: &str) -> Result<(), Status> {
    let request =
        csi::NodeUnstageVolumeRequest { volume_id: format!("image:{name}"), staging_target_path: text(&harness.staging(name)) };
    harness.block_on(harness.node().node_unstage_volume(request)).map(drop)
}

/// Repeats a call as a CO does, for as long as its error is not final.
fn at_last(what: &str, call: impl Fn() -> Result<(), Status>) {
    let until = Instant::now() + LONG;
    while let Err(status) = call() {
        assert!(matches!(status.code(), Code::Unavailable | Code::Aborted), "{what}: {status}");
        assert!(Instant::now() < until, "{what}: {status}");
    }
}

#[test]
fn a_pool_that_is_frozen_at_the_start_is_used_when_it_is_thawed_and_no_other_waits_for_it() {
    isolated(|| {
        let mut harness = Harness::new(Pool::XfsAndExt4);
        harness.with_http();
        harness.start();
        create_in(&harness, "cold", "plain").expect("created");
        create_in(&harness, "free", "default").expect("created");
        assert!(harness.stop());

        let mut frozen = Frozen::plain(&harness);
        let started = Instant::now();
        harness.start();
        assert!(started.elapsed() < START, "served after {:?}", started.elapsed());
        stage(&harness, "free").expect("its pool answers");
        create_in(&harness, "new", "default").expect("its pool answers");
        unstage(&harness, "free").expect("its pool answers");
        let ready = harness.block_on(harness.identity().probe(csi::ProbeRequest {})).expect("no error").into_inner().ready;
        assert_eq!(ready, Some(true), "a pool can be used");
        let (status, body) = harness.get("/readyz");
        assert!(status == 503 && body.contains("pool plain") && body.contains("fsfreeze"), "{status}: {body}");
        let refused = [
            ("stage", stage(&harness, "cold")),
            ("delete", delete(&harness, "cold")),
            ("create", create_in(&harness, "other", "plain")),
        ];
        for (what, answer) in refused {
            let status = answer.expect_err(what);
            assert_eq!(status.code(), Code::Unavailable, "{what}: {status}");
            assert!(status.message().contains("pool plain") && status.message().contains("does not answer"), "{what}: {status}");
        }
        let opening = fs::read_dir(format!("/proc/{}/task", harness.pid())).expect("threads").flatten().filter(|thread| {
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            status.starts_with("Name:\topen pool\n") && status.contains("State:\tD")
        });
        assert_eq!(opening.count(), 1, "one opening, however many calls came");

        frozen.thaw();
        at_last("stage", || stage(&harness, "cold"));
        create_in(&harness, "other", "plain").expect("it is usable");
        assert!(harness.log().contains("the pool is there"), "{}", harness.log());
        unstage(&harness, "cold").expect("unstaged");
        for name in ["cold", "free", "new", "other"] {
            delete(&harness, name).expect("deleted");
        }
        harness.assert_nothing_left();
        harness.assert_pool_empty();
        assert!(harness.stop());
    });
}

/// Makes the journal say that the driver was killed in the unstage of a volume.
fn interrupted_unstage(harness: &Harness, name: &str) {
    let directory = harness.path("state/journal").join(format!("image:{name}"));
    let path = directory.join("stage.json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{error}: {:?}", harness.journal()));
    let mut entry: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    entry["phase"] = "unstaging".into();
    fs::write(&path, entry.to_string()).expect("written");
}

#[test]
fn a_volume_that_hangs_in_recovery_is_reported_and_no_other_waits_for_it() {
    isolated(|| {
        let mut harness = Harness::new(Pool::XfsAndExt4);
        harness.with_http();
        harness.start();
        for (name, pool) in [("cold", "plain"), ("free", "default"), ("cut", "default")] {
            create_in(&harness, name, pool).expect("created");
            stage(&harness, name).expect("staged");
        }
        fs::write(harness.staging("cold").join("data"), "precious").expect("written");
        harness.kill();
        for name in ["cold", "cut"] {
            interrupted_unstage(&harness, name);
        }

        // Its unmounting writes to a file that is frozen.
        let mut frozen = Frozen::plain(&harness);
        let started = Instant::now();
        harness.start();
        assert!(started.elapsed() < START, "served after {:?}", started.elapsed());
        assert_eq!(harness.get("/healthz").0, 200, "the kubelet would kill a driver that recovers");
        for answer in [stage(&harness, "cold"), unstage(&harness, "cold"), delete(&harness, "cold")] {
            let status = answer.expect_err("it is being recovered");
            assert_eq!(status.code(), Code::Aborted, "{status}");
            assert!(status.message().contains("image:cold") && status.message().contains("recover"), "{status}");
        }
        assert_eq!(common::mounts_at(&harness.staging("cut")), 0, "undone");
        unstage(&harness, "free").expect("it waits for nobody");
        for name in ["free", "cut"] {
            stage(&harness, name).expect("it waits for nobody");
        }

        // It is asked to stop, and what is not done is taken up by the next start.
        kill(Pid::from_raw(i32::try_from(harness.pid()).expect("a pid")), Signal::SIGTERM).expect("it runs");
        let until = Instant::now() + LONG;
        while !harness.log().contains("work unfinished") {
            assert!(Instant::now() < until, "it does not stop\n{}", harness.log());
        }
        assert!(harness.log().contains("recover of volume image:cold"), "{}", harness.log());
        // The kernel lets a process end only when its thread comes back from the frozen file system.
        frozen.thaw();
        assert!(harness.ends_within(LONG));

        harness.start();
        at_last("stage", || stage(&harness, "cold"));
        assert_eq!(fs::read_to_string(harness.staging("cold").join("data")).expect("read"), "precious");
        for name in ["cold", "free", "cut"] {
            unstage(&harness, name).expect("unstaged");
            delete(&harness, name).expect("deleted");
        }
        harness.assert_nothing_left();
        harness.assert_pool_empty();
        assert!(harness.stop());
    });
}

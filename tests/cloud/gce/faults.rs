//! What goes wrong between the driver and Compute Engine.

use super::super::tenant::{CALLS, Stage, Story, both, killed_before_every_step, lost};
use super::*;

// An answer that is lost is the harder case; `make test` has no time for both.
#[test]
#[ignore = "run by `make test-e2e`"]
fn gce_requests_that_are_lost() {
    lost::<Google>("before");
}

#[test]
fn gce_answers_that_are_lost() {
    lost::<Google>("after");
}

#[test]
fn gce_killed_before_every_step() {
    killed_before_every_step::<Google>();
}

/// Killed once a request's operation runs, whose answer nobody heard.
#[test]
fn gce_killed_while_an_operation_runs() {
    let Some(mut story) = Story::<Google>::start() else { return };
    for call in CALLS {
        let expected = story.undisturbed(call);
        for again in [true, false] {
            let when = format!("{call:?}, killed while its operation runs, {}", if again { "made again" } else { "undone" });
            story.prepare(call);
            story.cloud.fault(json!({"method": Google::request_of(call), "kind": "late", "delay": 0.5}));
            let (address, method) = (story.cloud.address, Google::request_of(call));
            let before = story.cloud.count(method);
            let pid = nix::unistd::Pid::from_raw(i32::try_from(story.driver.harness.pid()).expect("a pid"));
            story.driver.persistent = false;
            let killer = std::thread::spawn(move || {
                let begun = Instant::now();
                while count(address, method) <= before && begun.elapsed() < Duration::from_secs(20) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("the driver lives");
            });
            let answer = story.perform(call);
            killer.join().expect("killed");
            story.driver.persistent = true;
            assert!(answer.is_err(), "{when}: {answer:?}");
            story.driver.harness.kill();
            story.driver.harness.start();
            if again {
                story.perform(call).unwrap_or_else(|status| panic!("{when}: {status}\n{}", story.driver.harness.log()));
                assert_eq!(story.cloud.summary(), expected, "{when}\n{}", story.driver.harness.log());
            }
            story.clear(&when);
        }
    }
}

fn count(address: SocketAddr, method: &str) -> u64 {
    // Not to be dropped: the process is another's.
    let mut stream = TcpStream::connect(address).expect("the emulator serves");
    stream.write_all(b"GET /test HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let state: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    state["counts"][method].as_u64().unwrap_or_default()
}

/// gcp-compute-persistent-disk-csi-driver issue 965: a detachment that nobody waits for any more removes the next attachment.
#[test]
fn gce_late_detachment_does_not_remove_the_next_attachment() {
    let Some(google) = Google::start() else { return };
    let mut driver = start(&google);
    let id = driver.create("data").expect("created");
    driver.attach(&id, "n1").expect("attached");
    google.fault(json!({"method": "instances.detachDisk", "kind": "late", "delay": 3600}));
    driver.persistent = false;
    assert!(!is_final(code(driver.detach(&id, "n1")).0));
    // The next controller knows of it only from the cloud.
    driver.harness.kill();
    driver.harness.start();
    let (refused, message) = code(driver.attach(&id, "n1"));
    assert!(!is_final(refused) && message.contains("detachDisk"), "{message}");
    google.order(&json!({"hurry": true}));
    driver.persistent = true;
    driver.attach(&id, "n1").expect("attached after the detachment has ended");
    assert_eq!(google.state()["running"], json!([]));
    assert_eq!(google.disk()["users"].as_array().expect("a list").len(), 1);
    driver.detach(&id, "n1").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&google, "at the end");
}

#[test]
fn gce_operation_that_fails_at_its_end_is_refused_with_its_own_error() {
    let Some(google) = Google::start() else { return };
    let mut driver = start(&google);
    driver.persistent = false;
    for (error, expected) in [
        ("QUOTA_EXCEEDED", Code::ResourceExhausted),
        ("REGION_QUOTA_EXCEEDED", Code::ResourceExhausted),
        ("ZONE_RESOURCE_POOL_EXHAUSTED", Code::ResourceExhausted),
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", Code::ResourceExhausted),
        ("INVALID_USAGE", Code::InvalidArgument),
        ("UNSUPPORTED_OPERATION", Code::InvalidArgument),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", Code::Unavailable),
        ("RATE_LIMIT_EXCEEDED", Code::Unavailable),
    ] {
        google.fault(json!({"method": "disks.insert", "kind": "fail", "code": error, "message": "words of the operation"}));
        let (refused, message) = code(driver.create("data"));
        assert_eq!(refused, expected, "{error}: {message}");
        assert!(message.contains(error) && message.contains("words of the operation"), "{message}");
        assert_eq!(google.disks(), Vec::<Value>::new());
    }
    // Of these nothing is concluded: the disk is made by the next attempts.
    driver.persistent = true;
    for error in ["INTERNAL_ERROR", "OPERATION_CANCELED_BY_USER", ""] {
        google.fault(json!({"method": "disks.insert", "kind": "fail", "code": error}));
        let id = driver.create("data").expect("created");
        google.fault(json!({"method": "instances.attachDisk", "kind": "fail", "code": error}));
        driver.attach(&id, "n1").expect("attached");
        google.fault(json!({"method": "instances.detachDisk", "kind": "fail", "code": error}));
        driver.detach(&id, "n1").expect("detached");
        google.fault(json!({"method": "disks.delete", "kind": "fail", "code": error}));
        driver.delete(&id).expect("deleted");
        driver.assert_clean(&google, error);
    }
}

#[test]
fn gce_request_that_is_refused_says_why() {
    let Some(google) = Google::start() else { return };
    let mut driver = start(&google);
    driver.persistent = false;
    for (status, reason, message, expected) in [
        (403, "quotaExceeded", "Quota 'SSD_TOTAL_GB' exceeded.", Code::ResourceExhausted),
        (403, "forbidden", "Required 'compute.disks.create' permission for 'projects/p-1'", Code::PermissionDenied),
        (400, "invalid", "Invalid value for field 'resource.sizeGb'", Code::InvalidArgument),
        (400, "invalid", "Cloud KMS error when using key projects/p/locations/l/keyRings/r/cryptoKeys/k", Code::PermissionDenied),
    ] {
        google.fault(json!({"method": "disks.insert", "kind": "refuse", "status": status, "reason": reason, "message": message}));
        let (refused, text) = code(driver.create("data"));
        assert_eq!((refused, text.contains(message)), (expected, true), "{text}");
    }
    // A project that is not there says nothing of a volume.
    let id = driver.create("data").expect("created");
    google.fault(json!({"method": "disks.get", "kind": "refuse", "status": 404, "reason": "notFound", "message": "The resource 'projects/p-1' was not found"}));
    assert!(!is_final(code(driver.delete(&id)).0));
    driver.persistent = true;
    // A rate limit, by both of its statuses, and a machine with a full queue (issue 1129).
    for (method, status, reason, message) in [
        ("disks.insert", 403, "rateLimitExceeded", "Quota exceeded for quota metric"),
        ("disks.insert", 429, "rateLimitExceeded", "Too many requests"),
        ("disks.get", 403, "rateLimitExceeded", "Quota exceeded for quota metric"),
    ] {
        google.fault(
            json!({"method": method, "kind": "refuse", "times": 2, "status": status, "reason": reason, "message": message}),
        );
        let second = driver.create("second").expect("created");
        driver.delete(&second).expect("deleted");
    }
    google.fault(
        json!({"method": "instances.attachDisk", "kind": "refuse", "times": 2, "status": 403, "reason": "rateLimitExceeded",
        "message": "Too many pending operations on a resource."}),
    );
    driver.attach(&id, "n1").expect("attached");
    driver.detach(&id, "n1").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&google, "at the end");
}

#[test]
fn gce_labels_that_another_program_changes_at_the_same_time_stay() {
    let Some(google) = Google::start() else { return };
    let driver = start(&google);
    let id = driver.create("data").expect("created");
    google.fault(json!({"method": "disks.setLabels", "kind": "conflict", "times": 2}));
    driver.attach(&id, "n1").expect("attached");
    let labels = google.disk()["labels"].clone();
    assert!(labels["other"].is_string() && labels["longshore-blank"] != "never-attached", "{labels}");
    driver.detach(&id, "n1").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&google, "at the end");
}

/// A name stays in use until the deletion has ended.
#[test]
fn gce_name_that_is_being_deleted_is_waited_for() {
    let Some(google) = Google::start() else { return };
    let mut driver = start(&google);
    let id = driver.create("data").expect("created");
    google.fault(json!({"method": "disks.delete", "kind": "late", "delay": 3600}));
    driver.persistent = false;
    assert!(!is_final(code(driver.delete(&id)).0));
    let (refused, message) = code(driver.create("data"));
    assert!(!is_final(refused), "{message}");
    google.order(&json!({"hurry": true}));
    driver.persistent = true;
    let second = driver.create("data").expect("created");
    assert_ne!(id, second);
    assert_eq!(google.disk()["status"], "READY");
    driver.delete(&second).expect("deleted");
    driver.assert_clean(&google, "at the end");
}

/// Two controllers that both think that they lead: one disk, one attachment.
#[test]
fn gce_two_controllers_make_one_disk() {
    let Some(google) = Google::start() else { return };
    let drivers = [start(&google), start(&google)];
    for round in 0..3 {
        let name = format!("data-{round}");
        let ids = both(&drivers, |driver| driver.create(&name));
        assert_eq!(ids[0], ids[1]);
        google.disk();
        let attached = both(&drivers, |driver| driver.attach(&ids[0], "n1").map(|context| context["identity"].clone()));
        assert_eq!(attached[0], attached[1]);
        assert_eq!(google.disk()["users"].as_array().expect("a list").len(), 1);
        both(&drivers, |driver| driver.detach(&ids[0], "n1"));
        both(&drivers, |driver| driver.delete(&ids[0]));
        drivers[0].assert_clean(&google, &name);
    }
}

/// The rights that are documented are enough (no test has others), and each is used.
#[test]
fn gce_rights_are_those_of_the_document() {
    let Some(google) = Google::start() else { return };
    let driver = start(&google);
    let mut request = creation("data");
    request.parameters.insert("type".to_owned(), "hyperdisk-balanced".to_owned());
    let id = driver.create_as(request).expect("created").volume_id;
    driver.attach(&id, "n1").expect("attached");
    driver.detach(&id, "n1").expect("detached");
    driver.expand(&id, 20).expect("grown");
    driver.modify(&id, &[("iops", "5000")]).expect("changed");
    let snapshot = driver.snapshot("then", &id).expect("a snapshot");
    let mut ids = vec![id.clone()];
    for mut request in [driver.restored_from("restored", &snapshot), driver.clone_of("copy", &id)] {
        request.parameters.insert("type".to_owned(), "hyperdisk-balanced".to_owned());
        ids.push(driver.create_as(request).expect("made").volume_id);
    }
    let mut regional = creation("regional");
    regional.parameters.insert("replication-type".to_owned(), "regional-pd".to_owned());
    ids.push(driver.create_as(regional).expect("created").volume_id);
    driver.list();
    let listed = driver.call(|mut client| async move { client.list_snapshots(csi::ListSnapshotsRequest::default()).await });
    assert_eq!(listed.expect("a list").entries.len(), 1);
    // A disk for many readers, of which its description names only 50.
    let mut request = driver.restored_from("model", &snapshot);
    request.parameters = HashMap::from(
        [("type", "hyperdisk-ml"), ("access-mode", "READ_ONLY_MANY")].map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    let mut readers = capability(None);
    readers.access_type = Some(csi::volume_capability::AccessType::Block(csi::volume_capability::BlockVolume {}));
    readers.access_mode.as_mut().expect("a mode").mode = csi::volume_capability::access_mode::Mode::MultiNodeReaderOnly.into();
    request.volume_capabilities = vec![readers.clone()];
    let model = driver.create_as(request).expect("made").volume_id;
    ids.iter().for_each(|id| driver.delete(id).expect("deleted"));
    ids = vec![model.clone()];
    google.order(&json!({"crowd": 60}));
    driver.attach_as(&model, "n1", readers, true).expect("attached, though the description does not name it");
    assert_eq!(driver.list()[0].1.len(), 61);
    driver.detach(&model, "n1").expect("detached");
    assert_eq!(driver.list()[0].1.len(), 60);
    (0..60).for_each(|at| driver.detach(&model, &format!("m{at}")).expect("detached"));
    driver.delete_snapshot(&snapshot).expect("deleted");
    ids.iter().for_each(|id| driver.delete(id).expect("deleted"));
    driver.assert_clean(&google, "at the end");
    let documented = documented_rights();
    assert_eq!(google.state()["used"], json!(documented), "sorted, in docs/gce.md");

    let rights: Vec<String> = documented.into_iter().filter(|right| right != "compute.disks.create").collect();
    google.order(&json!({"settings": {"rights": rights}}));
    let (refused, message) = code(driver.create("data"));
    assert_eq!(refused, Code::PermissionDenied);
    assert!(message.contains("compute.disks.create"), "{message}");
}

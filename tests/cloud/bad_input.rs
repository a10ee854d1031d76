//! What cannot be: a clear error with the cloud's own code and request id, the right finality, nothing left, and no secret shown.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore::csi;
use tonic::{Code, Status};

use super::driver::{Driver, GIB, ZONE, creation, is_final, tag};
use super::proxy::{Cloud, Trouble};

const SPEED: u32 = 10;
/// Than the driver waits for a state.
const LONGER: Duration = Duration::from_secs(90);

fn start() -> Option<(Arc<Cloud>, Driver, Vec<String>)> {
    let cloud = Cloud::start(SPEED)?;
    let instances = cloud.run_instances(2, "m5.large", ZONE);
    let driver = Driver::start(&cloud, SPEED, &instances[0]);
    Some((cloud, driver, instances))
}

fn with(name: &str, gib: i64, parameters: &[(&str, &str)]) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        capacity_range: Some(csi::CapacityRange { required_bytes: gib * GIB, limit_bytes: 0 }),
        parameters: parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..creation(name)
    }
}

/// The cloud's code and the id of the request that it refused are in the message.
fn tells(status: &Status, cloud: &Cloud, code: &str) {
    let id = cloud.refused(code).unwrap_or_else(|| panic!("the cloud never said {code}: {status}"));
    assert!(status.message().contains(code) && status.message().contains(&id), "{code} and {id} are not in {status}");
}

#[test]
fn parameters_that_cannot_be_are_refused_before_anything_is_made() {
    let Some((cloud, driver, _)) = start() else { return };
    for (gib, parameters, names) in [
        (10, [("type", "gp9")].as_slice(), "gp9"),
        (10, &[("type", "gp3"), ("iops", "1000")], "iops"),
        (10, &[("type", "gp3"), ("throughput", "9000")], "throughput"),
        (10, &[("type", "gp2"), ("iops", "3000")], "iops"),
        (10, &[("type", "gp3"), ("kmsKeyId", "alias/mine")], "kmsKeyId"),
        (10, &[("type", "gp3"), ("iopz", "3000")], "iopz"),
        (10, &[("type", "gp3"), ("iops", "many")], "iops"),
        (10, &[("tagSpecification_1", "aws:mine=1")], "aws:"),
    ] {
        let status = driver.create_as(with("data", gib, parameters)).expect_err("it cannot be");
        assert_eq!(status.code(), Code::InvalidArgument, "{parameters:?}: {status}");
        assert!(status.message().contains(names), "{parameters:?}: {status}");
    }
    let status = driver.create_as(with("data", 99_999, &[("type", "gp3")])).expect_err("too large");
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    // What hangs together in other ways is EC2's to judge.
    let status = driver.create_as(with("data", 10, &[("type", "io1"), ("iops", "5000")])).expect_err("50 for each GiB");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    tells(&status, &cloud, "InvalidParameterValue");
    driver.assert_clean("after what cannot be");
}

#[test]
fn a_zone_that_is_not_there() {
    let Some((_, driver, _)) = start() else { return };
    let zone = csi::Topology { segments: HashMap::from([("topology.kubernetes.io/zone".to_owned(), "us-east-1z".to_owned())]) };
    let accessibility_requirements = Some(csi::TopologyRequirement { requisite: vec![zone.clone()], preferred: vec![zone] });
    let status =
        driver.create_as(csi::CreateVolumeRequest { accessibility_requirements, ..creation("data") }).expect_err("no such zone");
    assert!([Code::InvalidArgument, Code::ResourceExhausted].contains(&status.code()), "{status}");
    assert!(status.message().contains("us-east-1z"), "{status}");
    driver.assert_clean("after a zone that is not there");
}

#[test]
fn credentials_that_are_wrong_or_may_not() {
    let Some((cloud, driver, instances)) = start() else { return };
    driver.create("before").expect("created");
    cloud.manners().key = "AKIASOMEBODYELSE0000".to_owned();
    let mut driver = driver;
    driver.persistent = false;
    let status = driver.create("data").expect_err("the key is wrong");
    tells(&status, &cloud, "AuthFailure");
    let status = driver.delete("ebs:before").expect_err("the key is wrong");
    tells(&status, &cloud, "AuthFailure");
    assert_eq!(driver.disks().len(), 1);
    cloud.manners().key = super::KEY.to_owned();
    driver.persistent = true;
    let denied = Trouble::Refuse {
        status: 403,
        code: "UnauthorizedOperation",
        message: "You are not authorized to perform this operation. Encoded authorization failure message: abc",
    };
    cloud.order("CreateVolume", denied.clone());
    let status = driver.create("data").expect_err("it may not");
    tells(&status, &cloud, "UnauthorizedOperation");
    assert!(is_final(status.code()), "{status}");
    assert_eq!(driver.disks().len(), 1, "nothing was made");
    cloud.order("AttachVolume", denied);
    driver.persistent = false;
    let status = driver.attach("ebs:before", &instances[0]).expect_err("it may not");
    tells(&status, &cloud, "UnauthorizedOperation");
    driver.persistent = true;
    driver.delete("ebs:before").expect("deleted");
    driver.assert_clean("with the right key again");
}

#[test]
fn an_address_where_nobody_answers() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    // Nobody listens where a server has just been.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    // And one listens who never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    for port in [port, silent.local_addr().expect("an address").port()] {
        let endpoint = format!("http://127.0.0.1:{port}");
        let mut driver = Driver::new(&cloud, 1, "i-0123456789abcdef0", &endpoint);
        driver.harness.start();
        driver.persistent = false;
        let begun = Instant::now();
        let status = driver.create("data").expect_err("there is nobody");
        assert!(!is_final(status.code()), "{status}");
        assert!(begun.elapsed() <= Duration::from_secs(61), "{:?}", begun.elapsed());
        if status.code() != Code::DeadlineExceeded {
            assert!(status.message().contains(&format!("127.0.0.1:{port}")), "{status}");
        }
        driver.assert_discreet();
    }
}

#[test]
fn machines_and_volumes_that_are_not_there() {
    let Some((cloud, driver, instances)) = start() else { return };
    driver.create("data").expect("created");
    let status = driver.attach("ebs:data", "i-0123456789abcdef0").expect_err("no such machine");
    assert_eq!(status.code(), Code::NotFound, "{status}");
    assert!(status.message().contains("i-0123456789abcdef0"), "{status}");
    let status = driver.attach("ebs:data", "node-1").expect_err("no machine at all");
    assert_eq!(status.code(), Code::NotFound, "{status}");
    let status = driver.attach("ebs:other", &instances[0]).expect_err("no such volume");
    assert_eq!(status.code(), Code::NotFound, "{status}");
    assert_eq!(driver.expand("ebs:other", 20).expect_err("no such volume").code(), Code::NotFound);
    assert_eq!(driver.snapshot("then", "ebs:other").expect_err("no such volume").code(), Code::NotFound);
    driver.delete("ebs:other").expect("what is not there is deleted");
    driver.detach("ebs:other", &instances[0]).expect("and detached");
    driver.detach("ebs:data", "i-0123456789abcdef0").expect("from a machine that is gone too");
    driver.delete_snapshot("ebs:then").expect("a snapshot too");
    // A machine that ends just when a disk is attached to it.
    let ended = Trouble::Refuse { status: 400, code: "IncorrectState", message: "The instance 'i-0' is not 'running'." };
    cloud.order("AttachVolume", ended);
    let mut driver = driver;
    (driver.persistent, driver.patience) = (false, LONGER);
    let status = driver.attach("ebs:data", &instances[1]).expect_err("it ended");
    tells(&status, &cloud, "IncorrectState");
    driver.persistent = true;
    driver.delete("ebs:data").expect("deleted");
    driver.assert_clean("at the end");
}

/// A resource has at most 50 tags (EC2 user guide, "Tag restrictions"); the class may give 30 of them, as long as they can be.
#[test]
fn thirty_long_tags_of_a_class_fit_beside_ours() {
    let Some((cloud, driver, _)) = start() else { return };
    // All parameters together have 4 KiB (CSI spec, "Size Limits").
    let value = "v".repeat(105);
    let tags: Vec<(String, String)> =
        (1..=30).map(|number| (format!("tagSpecification_{number}"), format!("key-{number}={value}"))).collect();
    let parameters: Vec<(&str, &str)> = tags.iter().map(|(name, tag)| (name.as_str(), tag.as_str())).collect();
    driver.create_as(with("data", 10, &parameters)).expect("made");
    let disk = driver.disk();
    assert!((1..=30).all(|number| tag(&disk, &format!("key-{number}")) == value), "{disk:?}");
    driver.create_as(with("data", 10, &parameters)).expect("a repeat finds it");
    driver.disk();
    assert!(cloud.refused("TagLimitExceeded").is_none());
    driver.delete("ebs:data").expect("deleted");
    driver.assert_clean("at the end");
}

#[test]
fn a_key_that_is_refused_at_once_or_too_late() {
    let Some((cloud, driver, _)) = start() else { return };
    let request = || with("data", 10, &[("encrypted", "true"), ("kmsKeyId", "alias/mine")]);
    cloud.order(
        "CreateVolume",
        Trouble::Refuse { status: 400, code: "InvalidKMSKey.InvalidState", message: "The KMS key is disabled" },
    );
    let status = driver.create_as(request()).expect_err("the key is disabled");
    tells(&status, &cloud, "InvalidKMSKey.InvalidState");
    assert!(is_final(status.code()), "{status}");
    driver.assert_clean("after a key that is refused");
    // EC2 accepts it, and the disk vanishes instead of becoming available.
    cloud.world().fails = true;
    let mut driver = driver;
    (driver.persistent, driver.patience) = (false, LONGER);
    let status = driver.create_as(request()).expect_err("the key cannot be used");
    assert!(status.message().contains("KMS key") && status.message().contains("kms:CreateGrant"), "{status}");
    cloud.world().fails = false;
    driver.persistent = true;
    cloud.clock.skip(Duration::from_secs(60));
    driver.assert_clean("after a disk that vanished");
    // The key is repaired: the same name is made, although its token is spent.
    driver.create_as(request()).expect("made");
    driver.disk();
    driver.delete("ebs:data").expect("deleted");
    driver.assert_clean("at the end");
}

#[test]
fn quotas_and_a_cloud_without_room() {
    let Some((cloud, driver, instances)) = start() else { return };
    for (code, message) in [
        ("VolumeLimitExceeded", "You have exceeded your maximum gp3 storage limit of 50 TiB in this region"),
        ("InsufficientVolumeCapacity", "There is not enough capacity to fulfill your EBS volume creation request"),
        ("MaxIOPSLimitExceeded", "You have exceeded your maximum IOPS in this region"),
    ] {
        cloud.order("CreateVolume", Trouble::Refuse { status: 400, code, message });
        let status = driver.create("data").expect_err("no room");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        tells(&status, &cloud, code);
        driver.assert_clean(code);
    }
    // A machine takes 27 disks, its own among them.
    for number in 0..27 {
        driver.create(&format!("data-{number}")).expect("created");
    }
    for number in 0..26 {
        driver.attach(&format!("ebs:data-{number}"), &instances[0]).expect("attached");
    }
    let status = driver.attach("ebs:data-26", &instances[0]).expect_err("it is full");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    driver.attach("ebs:data-26", &instances[1]).expect("attached to another");
    let devices: std::collections::BTreeSet<_> =
        driver.disks().iter().map(|disk| disk.items("attachmentSet")[0].get("device").to_owned()).collect();
    assert_eq!(devices.len(), 26, "each has a name of its own, on each machine");
    for number in 0..27 {
        driver.detach(&format!("ebs:data-{number}"), &instances[usize::from(number == 26)]).expect("detached");
        driver.delete(&format!("ebs:data-{number}")).expect("deleted");
    }
    driver.assert_clean("at the end");
}

#[test]
fn stuck_disk_is_reported_and_continues_when_it_can() {
    let Some((cloud, driver, instances)) = start() else { return };
    driver.create("data").expect("created");
    let mut driver = driver;
    for state in ["attaching", "detaching", "busy"] {
        cloud.world().stuck.insert(state);
        (driver.persistent, driver.patience) = (false, LONGER);
        let begin = |driver: &Driver| match state {
            "attaching" => driver.attach("ebs:data", &instances[0]).map(drop),
            _ => driver.detach("ebs:data", &instances[0]),
        };
        let status = begin(&driver).expect_err("it is stuck");
        assert!(!is_final(status.code()), "{state}: {status}");
        let word = if state == "busy" { "still uses" } else { &state[..6] };
        assert!(status.message().contains(word) && status.message().contains(&instances[0]), "{state}: {status}");
        driver.persistent = true;
        cloud.release();
        begin(&driver).expect("it continues");
        if state != "attaching" {
            assert_eq!(driver.disk().get("status"), "available");
            driver.attach("ebs:data", &instances[0]).expect("attached again");
        }
    }
    driver.detach("ebs:data", &instances[0]).expect("detached");
    driver.delete("ebs:data").expect("deleted");
    driver.assert_clean("at the end");
}

/// A disk that was changed within six hours cannot be changed again, and that is reported with when it can.
#[test]
fn a_second_change_must_wait() {
    let Some((cloud, driver, _)) = start() else { return };
    driver.create("data").expect("created");
    driver.expand("ebs:data", 20).expect("grown");
    cloud.clock.skip(Duration::from_secs(3600));
    let mut driver = driver;
    driver.persistent = false;
    let status = driver.expand("ebs:data", 30).map(drop).expect_err("too soon");
    tells(&status, &cloud, "VolumeModificationRateExceeded");
    assert!(!is_final(status.code()), "it will be possible: {status}");
    driver.persistent = true;
    assert_eq!(driver.disk().get("size"), "20");
    cloud.clock.skip(Duration::from_secs(6 * 3600));
    driver.expand("ebs:data", 30).expect("grown further");
    assert_eq!(driver.disk().get("size"), "30");
    driver.delete("ebs:data").expect("deleted");
    driver.assert_clean("at the end");
}

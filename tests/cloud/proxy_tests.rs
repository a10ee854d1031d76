//! That the unfriendly cloud does what EC2 does: a test that relied on it would else prove nothing.

use std::time::Duration;

use super::moto::{self, parameters_of};
use super::proxy::{Cloud, INTERNAL_ERROR, Trouble};
use super::wire::{self, Parameters};
use super::xml::Element;

const ZONE: &str = "us-east-1a";

/// Over the network: status and answer, or `None` where there was none.
fn send(cloud: &Cloud, action: &str, parameters: &[(&str, &str)]) -> Option<(u16, Element)> {
    let (status, body) = wire::send(cloud.address, &moto::signed(&parameters_of(action, parameters)))?;
    body.ends_with('>').then(|| (status, Element::parse(&body)))
}

fn code(cloud: &Cloud, action: &str, parameters: &[(&str, &str)]) -> String {
    let refusal = cloud.ask(action, parameters).expect_err("it is refused");
    assert!(!refusal.message.is_empty(), "{refusal:?}");
    refusal.code
}

fn create(cloud: &Cloud, parameters: &[(&str, &str)]) -> String {
    let mut all = vec![("AvailabilityZone", ZONE), ("VolumeType", "gp3")];
    all.extend_from_slice(parameters);
    cloud.must("CreateVolume", &all).get("volumeId").to_owned()
}

fn state(cloud: &Cloud, volume: &str) -> String {
    cloud.must("DescribeVolumes", &[("VolumeId.1", volume)]).items("volumeSet")[0].get("status").to_owned()
}

fn attachment(cloud: &Cloud, volume: &str) -> String {
    let answer = cloud.must("DescribeVolumes", &[("VolumeId.1", volume)]);
    answer.items("volumeSet")[0].items("attachmentSet").first().map_or(String::new(), |is| is.get("status").to_owned())
}

fn pass(cloud: &Cloud, seconds: u64) {
    cloud.clock.skip(Duration::from_secs(seconds));
}

#[test]
fn a_token_makes_one_disk() {
    let Some(cloud) = Cloud::start(1) else { return };
    let parameters = [("Size", "10"), ("ClientToken", "a token")];
    let volume = create(&cloud, &parameters);
    assert_eq!(create(&cloud, &parameters), volume);
    assert_ne!(create(&cloud, &[("Size", "10")]), volume);
    let other = [("Size", "11"), ("ClientToken", "a token"), ("AvailabilityZone", ZONE), ("VolumeType", "gp3")];
    assert_eq!(code(&cloud, "CreateVolume", &other), "IdempotentParameterMismatch");
    assert_eq!(cloud.moto.volumes().len(), 2);
    // A request that was repeated underway.
    cloud.order("CreateVolume", Trouble::Twice);
    let again = [("Size", "12"), ("ClientToken", "b"), ("AvailabilityZone", ZONE), ("VolumeType", "gp3")];
    assert_eq!(send(&cloud, "CreateVolume", &again).expect("an answer").0, 200);
    assert_eq!(cloud.moto.volumes().len(), 3);
}

#[test]
fn states_follow_from_the_time() {
    let Some(cloud) = Cloud::start(1) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let volume = create(&cloud, &[("Size", "10")]);
    let attach = [("VolumeId", volume.as_str()), ("InstanceId", &instance), ("Device", "/dev/xvdaa")];
    assert_eq!(state(&cloud, &volume), "creating");
    assert_eq!(code(&cloud, "AttachVolume", &attach), "IncorrectState");
    pass(&cloud, 60);
    assert_eq!(state(&cloud, &volume), "available");
    assert_eq!(code(&cloud, "DetachVolume", &[("VolumeId", &volume)]), "IncorrectState");
    cloud.must("AttachVolume", &attach);
    assert_eq!((state(&cloud, &volume), attachment(&cloud, &volume)), ("in-use".to_owned(), "attaching".to_owned()));
    assert_eq!(code(&cloud, "AttachVolume", &attach), "VolumeInUse");
    assert_eq!(code(&cloud, "DeleteVolume", &[("VolumeId", &volume)]), "VolumeInUse");
    pass(&cloud, 60);
    assert_eq!(attachment(&cloud, &volume), "attached");
    let reported = cloud.must("DescribeInstances", &[("InstanceId.1", &instance)]);
    let reported = &reported.items("reservationSet")[0].items("instancesSet")[0];
    let names: Vec<_> = reported.items("blockDeviceMapping").iter().map(|item| item.get("deviceName")).collect();
    assert_eq!(names, ["/dev/sda1", "/dev/xvdaa"]);
    cloud.must("DetachVolume", &[("VolumeId", &volume)]);
    assert_eq!(attachment(&cloud, &volume), "detaching");
    pass(&cloud, 60);
    assert_eq!(state(&cloud, &volume), "available");
    cloud.must("DeleteVolume", &[("VolumeId", &volume)]);
    assert_eq!(state(&cloud, &volume), "deleting");
    pass(&cloud, 60);
    assert_eq!(code(&cloud, "DescribeVolumes", &[("VolumeId.1", &volume)]), "InvalidVolume.NotFound");
    assert_eq!(cloud.moto.volumes(), []);
}

#[test]
fn stuck_disk_stays_so_until_it_is_released() {
    let Some(cloud) = Cloud::start(1) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let volume = create(&cloud, &[("Size", "10")]);
    pass(&cloud, 60);
    cloud.world().stuck.insert("attaching");
    cloud.must("AttachVolume", &[("VolumeId", &volume), ("InstanceId", &instance), ("Device", "/dev/xvdaa")]);
    pass(&cloud, 7200);
    assert_eq!(attachment(&cloud, &volume), "attaching");
    cloud.release();
    assert_eq!(attachment(&cloud, &volume), "attached");
    cloud.world().stuck.insert("busy");
    cloud.must("DetachVolume", &[("VolumeId", &volume)]);
    pass(&cloud, 7200);
    assert_eq!(attachment(&cloud, &volume), "busy");
    cloud.release();
    assert_eq!(attachment(&cloud, &volume), "");
}

#[test]
fn attachment_that_ec2_refuses_is_refused() {
    let Some(cloud) = Cloud::start(1) else { return };
    let here = cloud.run_instances(2, "m5.large", ZONE);
    let there = cloud.run_instances(1, "m5.large", "us-east-1b").remove(0);
    let volumes: Vec<String> = (0..28).map(|_| create(&cloud, &[("Size", "1")])).collect();
    pass(&cloud, 60);
    let parameters = |volume: usize, instance: &str, device: &str| {
        let [volume, instance, device] = [&volumes[volume], instance, device].map(str::to_owned);
        [("VolumeId", volume), ("InstanceId", instance), ("Device", device)]
    };
    let refused = |volume: usize, instance: &str, device: &str| {
        let parameters = parameters(volume, instance, device);
        code(&cloud, "AttachVolume", &parameters.each_ref().map(|(name, value)| (*name, value.as_str())))
    };
    assert_eq!(refused(0, &there, "/dev/xvdaa"), "InvalidVolume.ZoneMismatch");
    assert_eq!(refused(0, "i-0123456789abcdef0", "/dev/xvdaa"), "InvalidInstanceID.NotFound");
    assert_eq!(refused(0, &here[0], "/dev/sda1"), "InvalidParameterValue");
    for number in 0..26 {
        let parameters = parameters(number, &here[0], &format!("/dev/xvdb{number}"));
        cloud.must("AttachVolume", &parameters.each_ref().map(|(name, value)| (*name, value.as_str())));
    }
    assert_eq!(refused(26, &here[0], "/dev/xvdb3"), "InvalidParameterValue");
    assert_eq!(refused(26, &here[0], "/dev/xvdc0"), "AttachmentLimitExceeded", "27, its own among them");
    assert_eq!(refused(3, &here[1], "/dev/xvdaa"), "VolumeInUse");
    let other = [("VolumeId", volumes[3].as_str()), ("InstanceId", &here[1])];
    assert_eq!(code(&cloud, "DetachVolume", &other), "InvalidAttachment.NotFound");
    // The machine goes, and its disks are free.
    cloud.must("TerminateInstances", &[("InstanceId.1", &here[0])]);
    assert_eq!(state(&cloud, &volumes[3]), "available");
    assert_eq!(refused(3, &here[0], "/dev/xvdaa"), "IncorrectState");
    assert!(cloud.moto.volumes().iter().all(|volume| volume.get("status") == "available"));
}

#[test]
fn sizes_and_speeds_have_bounds_and_changes_must_wait() {
    let Some(cloud) = Cloud::start(1) else { return };
    let refused = |kind: &str, parameters: &[(&str, &str)]| {
        let mut all = vec![("AvailabilityZone", ZONE), ("VolumeType", kind)];
        all.extend_from_slice(parameters);
        code(&cloud, "CreateVolume", &all)
    };
    assert_eq!(refused("gp9", &[("Size", "10")]), "UnknownVolumeType");
    assert_eq!(refused("st1", &[("Size", "10")]), "InvalidParameterValue");
    assert_eq!(refused("gp3", &[("Size", "10"), ("Iops", "6000")]), "InvalidParameterValue", "500 for each GiB");
    assert_eq!(refused("gp2", &[("Size", "10"), ("Iops", "3000")]), "InvalidParameterCombination");
    assert_eq!(refused("gp3", &[("Size", "10"), ("Throughput", "800")]), "InvalidParameterValue", "a fourth of the IOPS");
    assert_eq!(refused("io2", &[("Size", "10")]), "MissingParameter");
    assert_eq!(code(&cloud, "CreateVolume", &[("AvailabilityZone", "us-east-1z"), ("Size", "1")]), "InvalidZone.NotFound");
    assert_eq!(cloud.moto.volumes(), [], "nothing was made");
    let volume = create(&cloud, &[("Size", "10")]);
    pass(&cloud, 60);
    let changed = cloud.must("ModifyVolume", &[("VolumeId", &volume), ("Size", "20")]);
    assert_eq!(changed.child("volumeModification").expect("it").get("modificationState"), "modifying");
    let size =
        |cloud: &Cloud| cloud.must("DescribeVolumes", &[("VolumeId.1", &volume)]).items("volumeSet")[0].get("size").to_owned();
    assert_eq!(size(&cloud), "10", "not yet");
    let again = [("VolumeId", volume.as_str()), ("Size", "30")];
    assert_eq!(code(&cloud, "ModifyVolume", &again), "IncorrectModificationState");
    pass(&cloud, 10);
    assert_eq!(size(&cloud), "20");
    pass(&cloud, 3600);
    assert_eq!(code(&cloud, "ModifyVolume", &again), "VolumeModificationRateExceeded");
    let reported = cloud.must("DescribeVolumesModifications", &[("VolumeId.1", &volume)]);
    assert_eq!(reported.items("volumeModificationSet")[0].get("modificationState"), "completed");
    pass(&cloud, 6 * 3600);
    cloud.must("ModifyVolume", &again);
    assert_eq!(cloud.moto.volumes()[0].get("size"), "30");
}

#[test]
fn lists_have_pages_and_filters() {
    let Some(cloud) = Cloud::start(1) else { return };
    cloud.manners().unkind = false;
    cloud.manners().late = Duration::ZERO;
    for number in 0..7 {
        let value = if number < 4 { "a b" } else { "other" };
        let tag = [
            ("TagSpecification.1.ResourceType", "volume"),
            ("TagSpecification.1.Tag.1.Key", "k&"),
            ("TagSpecification.1.Tag.1.Value", value),
        ];
        create(&cloud, &[[("Size", "1")].as_slice(), &tag].concat());
    }
    let page = |token: &str| {
        let mut parameters = vec![("MaxResults", "5")];
        parameters.extend((!token.is_empty()).then_some(("NextToken", token)));
        cloud.must("DescribeVolumes", &parameters)
    };
    let first = page("");
    let second = page(first.get("nextToken"));
    assert_eq!((first.items("volumeSet").len(), second.items("volumeSet").len(), second.get("nextToken")), (5, 2, ""));
    assert_eq!(code(&cloud, "DescribeVolumes", &[("NextToken", "nonsense")]), "InvalidParameterValue");
    let (_, tagged) =
        send(&cloud, "DescribeVolumes", &[("Filter.1.Name", "tag:k&"), ("Filter.1.Value.1", "a b")]).expect("an answer");
    assert_eq!(tagged.items("volumeSet").len(), 4);
    let many: Parameters = (0..201).map(|number| (format!("Filter.1.Value.{}", number + 1), "x".to_owned())).collect();
    let mut parameters: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    parameters.push(("Filter.1.Name", "tag:k&"));
    assert_eq!(code(&cloud, "DescribeVolumes", &parameters), "FilterLimitExceeded");
}

#[test]
fn requests_beyond_the_published_rate_are_throttled() {
    let Some(cloud) = Cloud::start(1) else { return };
    let statuses: Vec<u16> =
        (0..60).map(|_| send(&cloud, "ModifyVolume", &[("VolumeId", "vol-0"), ("Size", "1")]).expect("an answer").0).collect();
    let throttled = statuses.iter().filter(|status| **status == 503).count();
    assert!((1..=10).contains(&throttled), "{throttled} of 60 with a bucket of 50");
    assert_eq!(cloud.counts()["ModifyVolume"].throttled, throttled as u64);
    assert!(cloud.refused("RequestLimitExceeded").is_some());
}

#[test]
fn orders_are_followed() {
    let Some(cloud) = Cloud::start(1) else { return };
    let parameters = [("Size", "1"), ("AvailabilityZone", ZONE)];
    let made = |cloud: &Cloud| cloud.moto.volumes().len();
    cloud.order("CreateVolume", Trouble::CutBefore);
    assert!(send(&cloud, "CreateVolume", &parameters).is_none());
    assert_eq!(made(&cloud), 0);
    cloud.order("CreateVolume", Trouble::CutAfter);
    assert!(send(&cloud, "CreateVolume", &parameters).is_none());
    assert_eq!(made(&cloud), 1);
    cloud.order("CreateVolume", Trouble::CutWithin);
    assert!(send(&cloud, "CreateVolume", &parameters).is_none());
    assert_eq!(made(&cloud), 2);
    cloud.order("CreateVolume", INTERNAL_ERROR);
    let (status, answer) = send(&cloud, "CreateVolume", &parameters).expect("an answer");
    assert_eq!((status, answer.items("Errors")[0].get("Code")), (500, "InternalError"));
    assert_eq!(Some(answer.get("RequestID").to_owned()), cloud.refused("InternalError"));
    assert_eq!(made(&cloud), 2);
    cloud.order("CreateVolume", Trouble::FailAfter);
    assert_eq!(send(&cloud, "CreateVolume", &parameters).expect("an answer").0, 500);
    assert_eq!(made(&cloud), 3);
    cloud.order_after("DescribeVolumes", Trouble::Garbage, 1, 1);
    assert_eq!(send(&cloud, "DescribeVolumes", &[]).expect("an answer").0, 200);
    assert_eq!(send(&cloud, "DescribeVolumes", &[]).expect("an answer").0, 502);
    assert!(!cloud.calm());
    cloud.manners().key = "AKIAOTHER".to_owned();
    let (status, answer) = send(&cloud, "DescribeVolumes", &[]).expect("an answer");
    assert_eq!((status, answer.items("Errors")[0].get("Code")), (401, "AuthFailure"));
}

#[test]
fn descriptions_may_be_out_of_date() {
    let Some(cloud) = Cloud::start(1) else { return };
    pass(&cloud, 3600);
    cloud.manners().unkind = false;
    let volume = create(&cloud, &[("Size", "1")]);
    cloud.manners().behind = Duration::from_secs(30);
    let reported = |cloud: &Cloud| send(cloud, "DescribeVolumes", &[]).expect("an answer").1.items("volumeSet").len();
    assert_eq!(reported(&cloud), 0, "not yet reported");
    pass(&cloud, 60);
    cloud.must("DeleteVolume", &[("VolumeId", &volume)]);
    assert_eq!(reported(&cloud), 1, "still reported");
    pass(&cloud, 60);
    assert_eq!(reported(&cloud), 0);
}

#[test]
fn snapshots_take_their_time_and_have_blocks() {
    let Some(cloud) = Cloud::start(1) else { return };
    let volume = create(&cloud, &[("Size", "4")]);
    pass(&cloud, 60);
    let snapshot = cloud.must("CreateSnapshot", &[("VolumeId", &volume)]).get("snapshotId").to_owned();
    assert_eq!(code(&cloud, "CreateSnapshot", &[("VolumeId", &volume)]), "SnapshotCreationPerVolumeRateExceeded");
    let from = [("SnapshotId", snapshot.as_str()), ("AvailabilityZone", ZONE), ("VolumeType", "gp3")];
    assert_eq!(code(&cloud, "CreateVolume", &from), "IncorrectState");
    pass(&cloud, 60);
    let reported = cloud.must("DescribeSnapshots", &[("SnapshotId.1", &snapshot)]);
    assert_eq!(
        (reported.items("snapshotSet")[0].get("status"), reported.items("snapshotSet")[0].get("progress")),
        ("completed", "100%")
    );
    assert_eq!(cloud.must("CreateVolume", &from).get("size"), "4");
    cloud.world().blocks.insert(snapshot.clone(), (0..5).map(|at| (at * 3, 1)).collect());
    let blocks = |query: &str| {
        let mut request = moto::signed(&Parameters::new());
        (request.method, request.path) = ("GET".to_owned(), format!("/snapshots/{snapshot}/blocks?{query}"));
        let (_, body) = wire::send(cloud.address, &request).expect("an answer");
        serde_json::from_str::<serde_json::Value>(&body).expect("JSON")
    };
    let first = blocks("maxResults=3");
    assert_eq!(first["Blocks"].as_array().map(Vec::len), Some(3));
    let second = blocks(&format!("pageToken={}", first["NextToken"].as_str().expect("a token")));
    assert_eq!(second["Blocks"][1]["BlockIndex"], 12);
    cloud.must("DeleteSnapshot", &[("SnapshotId", &snapshot)]);
    assert_eq!(code(&cloud, "DeleteSnapshot", &[("SnapshotId", &snapshot)]), "InvalidSnapshot.NotFound");
}

#[test]
fn a_disk_may_be_attached_twice_where_it_was_made_so() {
    let Some(cloud) = Cloud::start(1) else { return };
    let instances = cloud.run_instances(2, "m5.large", ZONE);
    let volume = create(&cloud, &[("Size", "10"), ("VolumeType", "io2"), ("Iops", "100"), ("MultiAttachEnabled", "true")]);
    pass(&cloud, 60);
    for instance in &instances {
        cloud.must("AttachVolume", &[("VolumeId", &volume), ("InstanceId", instance), ("Device", "/dev/xvdaa")]);
    }
    pass(&cloud, 60);
    cloud.must("DetachVolume", &[("VolumeId", &volume), ("InstanceId", &instances[1])]);
    pass(&cloud, 60);
    let left = cloud.moto.volumes()[0].items("attachmentSet")[0].get("instanceId").to_owned();
    assert_eq!(left, instances[0], "moto knows of the one that is left");
    cloud.must("DetachVolume", &[("VolumeId", &volume), ("InstanceId", &instances[0])]);
    pass(&cloud, 60);
    assert_eq!(state(&cloud, &volume), "available");
}

#[test]
fn lists_begin_with_an_empty_page_and_what_is_new_is_shown_late() {
    let Some(cloud) = Cloud::start(1) else { return };
    pass(&cloud, 60);
    let tags = [
        ("TagSpecification.1.ResourceType", "volume"),
        ("TagSpecification.1.Tag.1.Key", "longshore.dev/cluster"),
        ("TagSpecification.1.Tag.1.Value", "ours"),
    ];
    let made: Vec<String> = (0..3)
        .map(|_| {
            let parameters = [[("Size", "1"), ("AvailabilityZone", ZONE)].as_slice(), &tags].concat();
            send(&cloud, "CreateVolume", &parameters).expect("an answer").1.get("volumeId").to_owned()
        })
        .collect();
    // The last one: on a busy machine the first is shown by now.
    let (status, refused) = send(&cloud, "DescribeVolumes", &[("VolumeId.1", &made[2])]).expect("an answer");
    assert_eq!((status, refused.items("Errors")[0].get("Code")), (400, "InvalidVolume.NotFound"));
    pass(&cloud, 60);
    assert_eq!(send(&cloud, "DescribeVolumes", &[("VolumeId.1", &made[0])]).expect("an answer").0, 200);
    let page = |value: &str, token: &str| {
        let mut parameters =
            vec![("Filter.1.Name", "tag:longshore.dev/cluster"), ("Filter.1.Value.1", value), ("MaxResults", "500")];
        parameters.extend((!token.is_empty()).then_some(("NextToken", token)));
        let (_, answer) = send(&cloud, "DescribeVolumes", &parameters).expect("an answer");
        (answer.items("volumeSet").len(), answer.get("nextToken").to_owned())
    };
    for cluster in ["ours", "another"] {
        let mut sizes = Vec::new();
        let mut token = String::new();
        loop {
            let (size, next) = page(cluster, &token);
            sizes.push(size);
            token = next;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(sizes, [0, 2, 1], "{cluster}");
    }
    cloud.must("DeleteVolume", &[("VolumeId", &made[0])]);
    assert_eq!(cloud.moto.volumes().len(), 2, "of the other cluster's moto knows nothing");
}

#[test]
fn token_of_a_deleted_disk_is_refused() {
    let Some(cloud) = Cloud::start(1) else { return };
    let parameters = [("Size", "1"), ("AvailabilityZone", ZONE), ("ClientToken", "t")];
    let (_, made) = send(&cloud, "CreateVolume", &parameters).expect("an answer");
    pass(&cloud, 60);
    cloud.must("DeleteVolume", &[("VolumeId", made.get("volumeId"))]);
    let (status, refused) = send(&cloud, "CreateVolume", &parameters).expect("an answer");
    let error = &refused.items("Errors")[0];
    assert_eq!((status, error.get("Code")), (400, "IdempotentParameterMismatch"));
    assert!(error.get("Message").contains("already deleted"), "{error:?}");
}

#[test]
fn copies_carry_the_tags_of_their_originals() {
    let Some(cloud) = Cloud::start(1) else { return };
    let tag = [
        ("TagSpecification.1.ResourceType", "volume"),
        ("TagSpecification.1.Tag.1.Key", "k"),
        ("TagSpecification.1.Tag.1.Value", "v"),
    ];
    let volume = create(&cloud, &[[("Size", "1")].as_slice(), &tag].concat());
    pass(&cloud, 60);
    let copy = cloud.restore_backup(&volume);
    let described = cloud.must("DescribeVolumes", &[("VolumeId.1", &copy)]);
    let copy = &described.items("volumeSet")[0];
    assert_eq!((copy.items("tagSet")[0].get("value"), copy.get("snapshotId").is_empty()), ("v", false));
    let copied = cloud.copy_snapshot(copy.get("snapshotId"));
    let described = cloud.must("DescribeSnapshots", &[("SnapshotId.1", &copied)]);
    let copied = &described.items("snapshotSet")[0];
    assert_eq!((copied.items("tagSet")[0].get("value"), copied.get("volumeId")), ("v", "vol-ffffffff"));
    cloud.retag(&volume, "k", None);
    let described = cloud.must("DescribeVolumes", &[("VolumeId.1", &volume)]);
    assert_eq!(described.items("volumeSet")[0].items("tagSet"), []);
}

//! The policy of docs/ec2.md: enough for the driver, and for nothing of others'. Every driver of these tests has it.

use std::collections::BTreeSet;

use super::driver::{Driver, ZONE};
use super::moto;
use super::proxy::Cloud;
use super::rights;
use super::wire;

const SPEED: u32 = 20;

/// Sends a request as the driver's role does: its code, or nothing where it was done.
fn code(cloud: &Cloud, action: &str, parameters: &[(&str, &str)]) -> String {
    let parameters = moto::parameters_of(action, parameters);
    let needed = rights::needed(&cloud.world(), action, &parameters);
    assert!(!needed.is_empty(), "{action}: nothing is there");
    let request = moto::signed(&parameters);
    let (status, body) = wire::send(cloud.address, &request).expect("an answer");
    if status == 200 { String::new() } else { super::xml::Element::parse(&body).items("Errors")[0].get("Code").to_owned() }
}

#[test]
fn documented_policy_lets_nobody_touch_what_is_not_the_clusters() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let _driver = Driver::start(&cloud, SPEED, &instance);
    for cluster in [None, Some("another")] {
        let mut parameters = vec![("Size", "10"), ("AvailabilityZone", ZONE), ("Encrypted", "true")];
        let tags = [
            ("TagSpecification.1.ResourceType", "volume"),
            ("TagSpecification.1.Tag.1.Key", "longshore.dev/cluster"),
            ("TagSpecification.1.Tag.1.Value", cluster.unwrap_or_default()),
        ];
        parameters.extend(tags.into_iter().filter(|_| cluster.is_some()));
        let volume = cloud.must("CreateVolume", &parameters).get("volumeId").to_owned();
        let snapshot = cloud.must("CreateSnapshot", &[("VolumeId", &volume)]).get("snapshotId").to_owned();
        cloud.clock.skip(std::time::Duration::from_secs(60));
        let ours = [("TagSpecification.1.Tag.1.Key", "longshore.dev/cluster"), ("TagSpecification.1.Tag.1.Value", "test")];
        let with = |kind: &'static str, more: &[(&'static str, &str)]| {
            let all = [("TagSpecification.1.ResourceType", kind)].into_iter().chain(ours);
            all.chain(more.iter().copied()).map(|(name, text)| (name.to_owned(), text.to_owned())).collect::<Vec<_>>()
        };
        let requests: [(&str, Vec<(String, String)>); 12] = [
            ("AttachVolume", owned(&[("VolumeId", &volume), ("InstanceId", &instance), ("Device", "/dev/xvdba")])),
            ("DetachVolume", owned(&[("VolumeId", &volume), ("InstanceId", &instance)])),
            ("ModifyVolume", owned(&[("VolumeId", &volume), ("Size", "20")])),
            ("DeleteVolume", owned(&[("VolumeId", &volume)])),
            ("CreateSnapshot", with("snapshot", &[("VolumeId", &volume)])),
            ("CopyVolumes", with("volume", &[("SourceVolumeId", &volume)])),
            ("DeleteSnapshot", owned(&[("SnapshotId", &snapshot)])),
            ("EnableFastSnapshotRestores", owned(&[("SourceSnapshotId.1", &snapshot), ("AvailabilityZone.1", ZONE)])),
            ("CreateVolume", with("volume", &[("SnapshotId", &snapshot), ("AvailabilityZone", ZONE)])),
            ("CreateVolume", owned(&[("Size", "10"), ("AvailabilityZone", ZONE)])),
            ("CreateTags", owned(&[("ResourceId.1", &volume), ("Tag.1.Key", "longshore.dev/cluster"), ("Tag.1.Value", "test")])),
            ("CreateTags", owned(&[("ResourceId.1", &volume), ("Tag.1.Key", "longshore.dev/blank"), ("Tag.1.Value", "x")])),
        ];
        for (action, parameters) in requests {
            let parameters: Vec<(&str, &str)> = parameters.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
            assert_eq!(code(&cloud, action, &parameters), "UnauthorizedOperation", "{action} {parameters:?} of {cluster:?}");
        }
    }
}

#[test]
fn documented_policy_lets_the_driver_change_no_tag_but_one() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let driver = Driver::start(&cloud, SPEED, &instance);
    driver.create("data").expect("created");
    let volume = driver.disk().get("volumeId").to_owned();
    let tag = |key: &str| code(&cloud, "CreateTags", &[("ResourceId.1", &volume), ("Tag.1.Key", key), ("Tag.1.Value", "x")]);
    assert_eq!(tag("longshore.dev/blank"), "");
    assert_eq!(tag("longshore.dev/volume"), "UnauthorizedOperation");
    // A volume without the cluster's tag could never be deleted by the driver, and is not made.
    driver.delete("ebs:data").expect("deleted");
}

#[test]
fn documented_policy_has_no_action_that_the_driver_does_not_know() {
    let policy = rights::documented("test");
    let actions: BTreeSet<&str> = policy["Statement"]
        .as_array()
        .expect("statements")
        .iter()
        .flat_map(|statement| {
            statement["Action"].as_array().into_iter().flatten().chain(statement.get("Action").filter(|one| one.is_string()))
        })
        .map(|action| action.as_str().expect("a text"))
        .collect();
    let client = [
        include_str!("../../src/backend/ec2/api/volumes.rs"),
        include_str!("../../src/backend/ec2/api/snapshots.rs"),
        include_str!("../../src/backend/ec2/api/instances.rs"),
        include_str!("../../src/backend/ec2/api/blocks.rs"),
    ]
    .concat();
    for action in actions {
        let name = action.split_once(':').expect("a service").1;
        assert!(client.contains(&format!("\"{name}\"")), "{action} is sent by nobody");
    }
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

//! Volumes through their lives, as moto sees it: with EC2's manners before it, and by itself.

use std::collections::HashMap;
use std::time::Duration;

use longshore::csi;
use tonic::Code;

use super::driver::{Driver, GIB, ZONE, creation, is_final, publication, tag};
use super::moto::IMAGE;
use super::proxy::{BLOCK, Cloud, INTERNAL_ERROR, Trouble};
use super::xml::Element;

const SPEED: u32 = 20;

const REFUSED: Trouble =
    Trouble::Refuse { status: 403, code: "UnauthorizedOperation", message: "You are not authorized to perform this operation." };

fn source(of: csi::volume_content_source::Type) -> Option<csi::VolumeContentSource> {
    Some(csi::VolumeContentSource { r#type: Some(of) })
}

pub fn from_snapshot(name: &str, id: &str) -> csi::CreateVolumeRequest {
    let snapshot = csi::volume_content_source::SnapshotSource { snapshot_id: id.to_owned() };
    let volume_content_source = source(csi::volume_content_source::Type::Snapshot(snapshot));
    let capacity_range = Some(csi::CapacityRange { required_bytes: 20 * GIB, limit_bytes: 0 });
    csi::CreateVolumeRequest { volume_content_source, capacity_range, ..creation(name) }
}

pub fn clone_of(name: &str, id: &str) -> csi::CreateVolumeRequest {
    let volume = csi::volume_content_source::VolumeSource { volume_id: id.to_owned() };
    let volume_content_source = source(csi::volume_content_source::Type::Volume(volume));
    let capacity_range = Some(csi::CapacityRange { required_bytes: 20 * GIB, limit_bytes: 0 });
    csi::CreateVolumeRequest { volume_content_source, capacity_range, ..creation(name) }
}

fn named<'a>(disks: &'a [Element], local: &str) -> &'a Element {
    let found: Vec<_> = disks.iter().filter(|disk| tag(disk, "longshore.dev/volume") == local).collect();
    assert_eq!(found.len(), 1, "{local}: {disks:#?}");
    found[0]
}

/// As `existing_disk_by_its_handle` of the other clouds. The rights of the documented policy end at the cluster's tag.
#[test]
fn disk_of_another_program_is_used_by_its_handle() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instances = cloud.run_instances(2, "m5.large", ZONE);
    let made = cloud.must("CreateVolume", &[("AvailabilityZone", ZONE), ("Size", "10"), ("VolumeType", "gp3")]);
    let handle = made.get("volumeId");
    let start = |existing: &str| {
        let mut driver = Driver::new(&cloud, SPEED, &instances[0], &format!("http://{}", cloud.address));
        let path = driver.harness.path("config.yaml");
        let config = std::fs::read_to_string(&path).expect("the configuration");
        std::fs::write(&path, format!("{config}    {existing}\n")).expect("the configuration");
        cloud.manners().policy = None;
        driver.harness.start();
        driver
    };
    let driver = start("");
    assert_eq!(driver.attach(handle, &instances[0]).expect_err("no volume of ours").code(), Code::NotFound);
    driver.delete(handle).expect("there is no such volume");
    drop(driver);

    let driver = start("existingDisks: use");
    let context = driver.attach(handle, &instances[0]).expect("attached");
    assert_eq!((context["volume"].as_str(), context.get("madeEmpty")), (handle, None));
    assert_eq!(driver.attach(handle, &instances[0]).expect("again"), context);
    assert_eq!(driver.attach(handle, &instances[1]).expect_err("elsewhere").code(), Code::FailedPrecondition);
    assert_eq!(driver.expand(handle, 20).expect("grown").capacity_bytes, 20 * GIB);
    let snapshot = driver.snapshot("then", handle).expect("a snapshot");
    assert_eq!(snapshot.source_volume_id, handle, "as the CO asked");
    driver.create_as(from_snapshot("restored", &snapshot.snapshot_id)).expect("restored");
    driver.create_as(clone_of("copy", handle)).expect("copied");
    assert_eq!(driver.list(0).len(), 2, "only what this driver made is listed");
    for name in ["ebs:restored", "ebs:copy"] {
        driver.delete(name).expect("deleted");
    }
    driver.delete_snapshot(&snapshot.snapshot_id).expect("deleted");
    driver.detach(handle, &instances[0]).expect("detached");
    let refused = driver.delete(handle).expect_err("it is not to be deleted");
    assert!(refused.code() == Code::FailedPrecondition && refused.message().contains("existingDisks"), "{refused}");
    let disk = cloud.moto.volumes().remove(0);
    assert_eq!((disk.get("status"), disk.items("tagSet").len()), ("available", 0), "nothing of it was changed: {disk:#?}");
    drop(driver);

    let driver = start("existingDisks: delete");
    driver.delete(handle).expect("deleted");
    driver.delete(handle).expect("again");
    assert_eq!(cloud.moto.volumes(), []);
    driver.assert_clean("at the end");
}

/// The whole life. `waits` is called where EC2 wants six hours to pass; `copies` is whether a volume is copied without a snapshot.
fn live(driver: &Driver, instance: &str, copies: bool, waits: impl Fn()) {
    let volume = driver.create("data").expect("created");
    let zone = &volume.accessible_topology[0].segments["topology.longshore.csi.dev/zone"];
    let disk = driver.disk();
    let handle = format!("ebs:d-{}.data", disk.get("volumeId"));
    assert_eq!((&volume.volume_id, volume.capacity_bytes), (&handle, 10 * GIB));
    assert_eq!((disk.get("size"), disk.get("volumeType"), disk.get("availabilityZone")), ("10", "gp3", ZONE));
    assert_eq!((zone.as_str(), tag(&disk, "longshore.dev/volume"), tag(&disk, "team")), (ZONE, "data".into(), "storage".into()));
    driver.create("data").expect("again");
    driver.disk();

    let context = driver.attach("ebs:data", instance).expect("attached");
    let disk = driver.disk();
    let attached = disk.items("attachmentSet").first().expect("attached");
    assert_eq!((attached.get("instanceId"), attached.get("device")), (instance, context["device"].as_str()));
    assert_eq!(context["volume"], disk.get("volumeId"));
    assert_eq!(driver.attach("ebs:data", instance).expect("again"), context);
    assert_eq!(driver.list(0)["ebs:data"], [instance]);

    let grown = driver.expand("ebs:data", 20).expect("grown");
    assert_eq!((grown.capacity_bytes, driver.disk().get("size")), (20 * GIB, "20"));
    driver.expand("ebs:data", 20).expect("again");
    waits();
    driver.modify("ebs:data", &[("iops", "4000"), ("throughput", "250")]).expect("modified");
    let disk = driver.disk();
    assert_eq!((disk.get("iops"), disk.get("throughput"), disk.get("size")), ("4000", "250", "20"));
    driver.modify("ebs:data", &[("iops", "4000"), ("throughput", "250")]).expect("again");

    let snapshot = driver.snapshot("nightly", "ebs:data").expect("a snapshot");
    assert!(snapshot.ready_to_use);
    assert_eq!((&snapshot.source_volume_id, snapshot.size_bytes), (&handle, 20 * GIB));
    let taken = driver.snapshots();
    assert_eq!((taken.len(), taken[0].get("volumeId")), (1, disk.get("volumeId")));
    driver.create_as(from_snapshot("restored", &snapshot.snapshot_id)).expect("restored");
    driver.create_as(clone_of("cloned", "ebs:data")).expect("cloned");
    let disks = driver.disks();
    assert_eq!(named(&disks, "restored").get("snapshotId"), taken[0].get("snapshotId"));
    assert_eq!(named(&disks, "cloned").get("snapshotId").is_empty(), copies);
    assert_eq!(driver.snapshots().len(), 1, "a copy leaves none");
    assert_eq!(driver.list(2).len(), 3);

    driver.detach("ebs:data", instance).expect("detached");
    assert_eq!(named(&driver.disks(), "data").get("status"), "available");
    driver.detach("ebs:data", instance).expect("again");
    assert_eq!(driver.list(0)["ebs:data"], Vec::<String>::new());
    for name in ["ebs:data", "ebs:restored", "ebs:cloned"] {
        driver.delete(name).expect("deleted");
        driver.delete(name).expect("again");
    }
    driver.delete_snapshot(&snapshot.snapshot_id).expect("deleted");
    driver.delete_snapshot(&snapshot.snapshot_id).expect("again");
    driver.assert_clean("at the end");
}

#[test]
fn a_volume_lives_in_a_cloud_as_ec2_is() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let driver = Driver::start(&cloud, SPEED, &instance);
    live(&driver, &instance, true, || cloud.clock.skip(Duration::from_secs(7 * 3600)));
    assert_eq!(cloud.requests().2, 0, "nothing was throttled");
}

#[test]
fn disk_is_known_to_be_blank_at_its_first_attachment_only() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instances = cloud.run_instances(2, "m5.large", ZONE);
    let mut driver = Driver::start(&cloud, SPEED, &instances[0]);
    driver.create("data").expect("made");
    let blank = |driver: &Driver| tag(&driver.disk(), "longshore.dev/blank");
    assert_eq!(blank(&driver), "never-attached");
    let context = driver.attach("ebs:data", &instances[0]).expect("attached");
    assert_eq!(context.get("madeEmpty").map(String::as_str), Some("true"));
    assert!(blank(&driver).starts_with("attaching-"), "{}", blank(&driver));
    driver.detach("ebs:data", &instances[0]).expect("detached");
    for restarts in [false, true] {
        if restarts {
            driver.harness.kill();
            driver.harness.start();
        }
        let context = driver.attach("ebs:data", &instances[1]).expect("attached");
        assert_eq!(context.get("madeEmpty"), None, "a pod has had it");
        driver.detach("ebs:data", &instances[1]).expect("detached");
    }
    assert_eq!(blank(&driver), "used");
    driver.delete("ebs:data").expect("deleted");
    driver.assert_clean("at the end");
}

/// EC2 has one copy of a volume in progress at a time, none of a copy that is in progress, and none in another zone.
#[test]
fn clones_that_ec2_does_not_copy_go_through_a_snapshot() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let mut driver = Driver::start(&cloud, SPEED, &instance);
    driver.create("data").expect("created");
    cloud.world().stuck.insert("initializing");
    let asked = || cloud.counts().get("CopyVolumes").map_or(0, |count| count.requests);
    let through_snapshots = |name: &str, of: &str, copies: u64| {
        let before = (asked(), cloud.done("CreateSnapshot"));
        driver.create_as(clone_of(name, of)).expect("cloned");
        assert_eq!(asked() - before.0, copies, "{name}");
        assert_eq!(driver.snapshots(), [], "{name}: its snapshot is left");
        let disks = driver.disks();
        assert!(tag(named(&disks, name), "longshore.dev/blank").is_empty(), "{name} is reported as blank");
        cloud.done("CreateSnapshot") - before.1
    };
    assert_eq!(through_snapshots("first", "ebs:data", 1), 0);
    assert_eq!(through_snapshots("second", "ebs:data", 1), 1, "ConcurrentCopyVolumeLimitExceeded");
    assert_eq!(through_snapshots("of-first", "ebs:first", 1), 1, "it is filled in still");
    cloud.order("CopyVolumes", REFUSED);
    assert_eq!(through_snapshots("denied", "ebs:of-first", 1), 1, "UnauthorizedOperation");
    let zone = csi::Topology { segments: HashMap::from([("topology.kubernetes.io/zone".to_owned(), "us-east-1b".to_owned())]) };
    let elsewhere = csi::CreateVolumeRequest {
        accessibility_requirements: Some(csi::TopologyRequirement { requisite: vec![zone.clone()], preferred: vec![zone] }),
        ..clone_of("elsewhere", "ebs:data")
    };
    let before = asked();
    cloud.order("DeleteSnapshot", REFUSED);
    driver.persistent = false;
    let left = driver.create_as(elsewhere.clone()).expect_err("its snapshot is left");
    driver.persistent = true;
    assert!(!is_final(left.code()) && left.message().contains("vol-") && left.message().contains("temporary snapshot"), "{left}");
    driver.create_as(elsewhere).expect("cloned");
    assert_eq!(asked(), before);
    let log = driver.harness.log();
    assert!(log.contains("refused a direct copy") && log.contains("UnauthorizedOperation"), "{log}");
    for name in ["data", "first", "second", "of-first", "denied", "elsewhere"] {
        driver.delete(&format!("ebs:{name}")).expect("deleted");
    }
    driver.assert_clean("at the end");
}

/// The answer that there is no such source is final: the CO does not retry.
#[test]
fn copy_whose_source_is_gone_leaves_nothing() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let mut driver = Driver::start(&cloud, SPEED, &instance);
    driver.create("data").expect("created");
    cloud.world().stuck.insert("pending");
    cloud.order("CopyVolumes", REFUSED);
    driver.persistent = false;
    let clone = clone_of("copy", &driver.handle("ebs:data"));
    let begun = driver.create_as(clone.clone()).expect_err("its snapshot is pending");
    assert!(!is_final(begun.code()) && driver.snapshots().len() == 1, "{begun}");
    // Under load the client's deadline passes first, and the copy ends a moment after its answer.
    driver.persistent = true;
    driver.delete("ebs:data").expect("deleted");
    let gone = driver.create_as(clone).expect_err("its source is gone");
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
    driver.assert_clean("after it was refused");
}

/// What others wrote, with nothing of ours between.
#[test]
fn a_volume_lives_in_moto() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let mut driver = Driver::new(&cloud, SPEED, "i-0123456789abcdef0", &format!("http://{}", cloud.moto.address));
    driver.moto = cloud.moto.default_account();
    let parameters = [("ImageId", IMAGE), ("MinCount", "1"), ("MaxCount", "1"), ("Placement.AvailabilityZone", ZONE)];
    let answer = driver.moto.must("RunInstances", &parameters);
    let instance = answer.items("instancesSet")[0].get("instanceId");
    driver.harness.start();
    live(&driver, instance, false, || {});
}

/// Descriptions lag behind what was done, as they do where many copies of a database answer.
#[test]
fn a_volume_lives_in_a_cloud_that_tells_old_news() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    cloud.clock.skip(Duration::from_secs(60));
    cloud.manners().behind = Duration::from_secs(8);
    let driver = Driver::start(&cloud, SPEED, &instance);
    live(&driver, &instance, true, || cloud.clock.skip(Duration::from_secs(7 * 3600)));
}

#[test]
fn one_name_is_one_disk_however_often_it_is_asked_for() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let driver = Driver::start(&cloud, SPEED, &instance);
    // Many at once, while the cloud is slow.
    cloud.manners().latency = Duration::from_secs(4);
    let channel = driver.harness.channel();
    let answers = driver.harness.block_on(async {
        let calls = (0..8).map(|_| {
            let mut client = csi::controller_client::ControllerClient::new(channel.clone());
            tokio::spawn(async move { client.create_volume(creation("data")).await })
        });
        let calls: Vec<_> = calls.collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.expect("no panic"));
        }
        answers
    });
    cloud.manners().latency = Duration::ZERO;
    let handle = driver.create("data").expect("created").volume_id;
    assert!(answers.iter().flatten().all(|answer| answer.get_ref().volume.as_ref().expect("a volume").volume_id == handle));
    let first = driver.disk().get("volumeId").to_owned();
    // With another size it is another volume's name.
    let other = csi::CreateVolumeRequest {
        capacity_range: Some(csi::CapacityRange { required_bytes: 99 * GIB, limit_bytes: 0 }),
        ..creation("data")
    };
    assert_eq!(driver.create_as(other).expect_err("the name is taken").code(), Code::AlreadyExists);
    driver.disk();
    // Another process, which remembers nothing, finds it.
    let mut driver = driver;
    driver.harness.kill();
    driver.harness.start();
    driver.create("data").expect("found");
    assert_eq!(driver.disk().get("volumeId"), first);
    // When it is gone the name makes a new one, although EC2 still knows the token.
    driver.delete("ebs:data").expect("deleted");
    driver.assert_clean("after the first");
    driver.create("data").expect("made anew");
    assert_ne!(driver.disk().get("volumeId"), first);
    driver.delete("ebs:data").expect("deleted");
    driver.assert_clean("at the end");
}

/// Another program's, or another cluster's, is never touched, whatever it is called.
#[test]
fn disk_without_the_clusters_tag_is_left_alone() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let driver = Driver::start(&cloud, SPEED, &instance);
    let foreign = |cluster: &str| {
        let tags = [("longshore.dev/cluster", cluster), ("longshore.dev/backend", "ebs"), ("longshore.dev/volume", "data")];
        let mut parameters = vec![("Size", "10"), ("AvailabilityZone", ZONE), ("TagSpecification.1.ResourceType", "volume")];
        let names: Vec<_> =
            (1..=3).map(|number| ["Key", "Value"].map(|what| format!("TagSpecification.1.Tag.{number}.{what}"))).collect();
        for (names, (key, value)) in names.iter().zip(tags) {
            parameters.extend([(names[0].as_str(), key), (names[1].as_str(), value)]);
        }
        cloud.must("CreateVolume", &parameters).get("volumeId").to_owned()
    };
    let other = foreign("another");
    driver.create("data").expect("ours");
    assert!(!driver.disk().get("volumeId").is_empty());
    driver.delete("ebs:data").expect("deleted");
    driver.delete("ebs:data").expect("again");
    let left: Vec<_> = cloud.moto.volumes().iter().map(|disk| disk.get("volumeId").to_owned()).collect();
    assert_eq!(left, [other]);
}

#[test]
fn attributes_of_a_class_are_set_with_the_disk_and_with_its_size() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let driver = Driver::start(&cloud, SPEED, &instance);
    let parameters = [
        ("type", "io2"),
        ("iopsPerGB", "50"),
        ("encrypted", "true"),
        ("tagSpecification_1", "owner={{ .PVCNamespace }}"),
        ("csi.storage.k8s.io/pvc/namespace", "accounts"),
        ("csi.storage.k8s.io/pvc/name", "ledger"),
        ("csi.storage.k8s.io/pv/name", "pvc-1"),
    ];
    let parameters: HashMap<_, _> = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    driver.create_as(csi::CreateVolumeRequest { parameters, ..creation("ledger") }).expect("created");
    let disk = driver.disk();
    assert_eq!((disk.get("volumeType"), disk.get("iops"), disk.get("encrypted")), ("io2", "500", "true"));
    assert_eq!(tag(&disk, "owner"), "accounts");
    driver.delete("ebs:ledger").expect("deleted");
    driver.assert_clean("at the end");
}

/// ReadWriteMany of a raw block volume: EC2 calls it multi-attach, and has it for some types only.
#[test]
fn several_machines_have_a_disk_that_was_made_for_them() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instances = cloud.run_instances(2, "m5.large", ZONE);
    let driver = Driver::start(&cloud, SPEED, &instances[0]);
    let shared = csi::VolumeCapability {
        access_type: Some(csi::volume_capability::AccessType::Block(csi::volume_capability::BlockVolume {})),
        access_mode: Some(csi::volume_capability::AccessMode {
            mode: csi::volume_capability::access_mode::Mode::MultiNodeMultiWriter.into(),
        }),
    };
    let mut request = csi::CreateVolumeRequest { volume_capabilities: vec![shared.clone()], ..creation("shared") };
    let refused = driver.create_as(request.clone()).expect_err("gp3 is for one");
    assert!(refused.code() == Code::InvalidArgument && refused.message().contains("take type io2"), "{refused}");
    driver.assert_clean("after it was refused");

    request.parameters = [("type", "io2"), ("iops", "500"), ("tagSpecification_1", "team=storage")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    driver.create_as(request.clone()).expect("made for several");

    // One that was made for one machine is none for several, whatever its type could be.
    let again = csi::CreateVolumeRequest { name: "one".to_owned(), ..request.clone() };
    let first = csi::CreateVolumeRequest { volume_capabilities: creation("one").volume_capabilities, ..again.clone() };
    driver.create_as(first).expect("made for one");
    let refused = driver.create_as(again).expect_err("it is there, but for one");
    assert!(refused.code() == Code::AlreadyExists && refused.message().contains("one for several nodes"), "{refused}");
    let parameters = request.parameters.clone();
    let confirmed = |id: &str| {
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: driver.handle(id),
            volume_capabilities: vec![shared.clone()],
            parameters: parameters.clone(),
            ..Default::default()
        };
        let answer = driver.call(|mut client| {
            let request = request.clone();
            async move { client.validate_volume_capabilities(request).await }
        });
        answer.expect("it is there").confirmed.is_some()
    };
    assert!(confirmed("ebs:shared") && !confirmed("ebs:one"));
    driver.delete("ebs:one").expect("deleted");
    for instance in &instances {
        let request = csi::ControllerPublishVolumeRequest {
            volume_capability: Some(shared.clone()),
            ..publication(&driver.handle("ebs:shared"), instance)
        };
        driver
            .call(|mut client| {
                let request = request.clone();
                async move { client.controller_publish_volume(request).await }
            })
            .expect("attached");
    }
    let mut on = driver.list(0)["ebs:shared"].clone();
    on.sort();
    let mut all = instances.clone();
    all.sort();
    assert_eq!(on, all);
    driver.detach("ebs:shared", &instances[0]).expect("detached");
    assert_eq!(driver.list(0)["ebs:shared"], instances[1..]);
    driver.detach("ebs:shared", &instances[1]).expect("detached");
    driver.delete("ebs:shared").expect("deleted");
    driver.assert_clean("at the end");
}

/// The two snapshots of a volume, and what changed between them.
#[test]
fn changed_blocks_come_from_the_direct_api_in_pages() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let driver = Driver::start(&cloud, SPEED, &instance);
    driver.create("data").expect("created");
    let ids = ["first", "second"].map(|name| {
        cloud.clock.skip(Duration::from_secs(60));
        driver.snapshot(name, "ebs:data").expect("a snapshot").snapshot_id
    });
    let named = |name: &str| {
        let found = driver.snapshots().into_iter().find(|snapshot| tag(snapshot, "longshore.dev/snapshot") == name);
        found.expect("it is there").get("snapshotId").to_owned()
    };
    cloud.world().blocks.insert(named("first"), [(0, 1), (7, 1), (9, 1)].into());
    cloud.world().blocks.insert(named("second"), [(0, 1), (7, 2), (20_000, 1)].into());
    cloud.order("ListChangedBlocks", INTERNAL_ERROR);
    let delta = csi::GetMetadataDeltaRequest {
        base_snapshot_id: ids[0].clone(),
        target_snapshot_id: ids[1].clone(),
        starting_offset: 0,
        max_results: 2,
        secrets: HashMap::new(),
    };
    let mut client = driver.harness.metadata();
    let blocks = driver.harness.block_on(async {
        let mut stream = client.get_metadata_delta(delta).await?.into_inner();
        let mut blocks = Vec::new();
        while let Some(message) = stream.message().await? {
            blocks.extend(message.block_metadata.iter().map(|block| block.byte_offset.cast_unsigned() / BLOCK));
        }
        Ok::<_, tonic::Status>(blocks)
    });
    assert_eq!(blocks.expect("blocks"), [7, 9, 20_000]);
    for name in &ids {
        driver.delete_snapshot(name).expect("deleted");
    }
    driver.delete("ebs:data").expect("deleted");
    driver.assert_clean("at the end");
    assert!(!cloud.calm());
}

/// A machine that is gone holds no volume back.
#[test]
fn a_machine_that_is_gone_does_not_keep_its_disks() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instances = cloud.run_instances(2, "m5.large", ZONE);
    let driver = Driver::start(&cloud, SPEED, &instances[0]);
    driver.create("data").expect("created");
    driver.attach("ebs:data", &instances[1]).expect("attached");
    let mut driver = driver;
    driver.persistent = false;
    let elsewhere = driver.attach("ebs:data", &instances[0]).expect_err("it is attached already");
    assert_eq!(elsewhere.code(), Code::FailedPrecondition, "{elsewhere}");
    assert!(elsewhere.message().contains(&instances[1]), "{elsewhere}");
    driver.persistent = true;
    cloud.must("TerminateInstances", &[("InstanceId.1", &instances[1])]);
    driver.detach("ebs:data", &instances[1]).expect("detached");
    driver.attach("ebs:data", &instances[0]).expect("attached to another");
    driver.detach("ebs:data", &instances[0]).expect("detached");
    driver.delete("ebs:data").expect("deleted");
    driver.assert_clean("at the end");
}

//! Volumes through their lives, as Azure sees it.

use super::super::tenant::{existing_disk_by_its_handle, own_disk_is_refused_by_the_handle_of_another_driver};
use super::*;

#[test]
fn azure_disk_of_another_program_is_used_by_its_handle() {
    existing_disk_by_its_handle::<Azure>();
}

#[test]
fn azure_own_disk_is_refused_by_the_handle_of_another_driver() {
    own_disk_is_refused_by_the_handle_of_another_driver::<Azure>();
}

#[test]
fn azure_life_of_a_volume() {
    let azure = Azure::start();
    let driver = start(&azure);
    let id = driver.create("data").expect("created");
    let disk = azure.disk();
    let name = disk["name"].as_str().expect("a name").to_ascii_lowercase();
    assert_eq!(id, format!("az:d-{name}.data"));
    assert_eq!(
        (&disk["properties"]["diskSizeGB"], &disk["zones"], &disk["tags"]["team"]),
        (&json!(10), &json!(["1"]), &json!("storage"))
    );
    assert_eq!(
        (&disk["sku"]["name"], &disk["properties"]["networkAccessPolicy"]),
        (&json!("StandardSSD_LRS"), &json!("DenyAll"))
    );
    assert_eq!(driver.create("data").expect("again"), id);

    let context = driver.attach(&id, "n1").expect("attached");
    assert_eq!(
        (context["device"].as_str(), context["volume"].as_str(), context["madeEmpty"].as_str()),
        ("0", name.as_str(), "true")
    );
    assert_eq!(azure.luns("n1"), [(0, name.clone())]);
    assert_eq!(driver.attach(&id, "n1").expect("again")["device"], "0");
    assert_eq!(code(driver.attach(&id, "n2")).0, Code::FailedPrecondition);
    assert_eq!(driver.list(), [(id.clone(), vec![node("n1")])]);
    assert_eq!(code(driver.delete(&id)).0, Code::FailedPrecondition);

    assert_eq!(driver.expand(&id, 20).expect("grown while it is in use"), 20 * GIB);
    assert_eq!(driver.expand(&id, 20).expect("again"), 20 * GIB);
    assert_eq!(azure.count("disks.update"), 1);
    driver.modify(&id, &[("skuName", "Premium_LRS"), ("tags", "tier=fast")]).expect("another type");
    driver.modify(&id, &[("skuName", "Premium_LRS"), ("tags", "tier=fast")]).expect("again");
    let disk = azure.disk();
    assert_eq!((&disk["sku"]["name"], azure.count("disks.update")), (&json!("Premium_LRS"), 2));
    assert_eq!((&disk["tags"]["tier"], &disk["tags"]["team"]), (&json!("fast"), &json!("storage")));
    assert_eq!(code(driver.modify(&id, &[("skuName", "UltraSSD_LRS")])).0, Code::InvalidArgument);

    let snapshot = driver.snapshot("then", &id).expect("a snapshot");
    assert_eq!(driver.snapshot("then", &id).expect("again"), snapshot);
    assert_eq!(azure.state().snapshots.values().next().expect("one")["properties"]["incremental"], true);
    let restored = driver.create_as(driver.restored_from("restored", &snapshot)).expect("restored").volume_id;
    let copy = driver.create_as(driver.clone_of("copy", &id)).expect("copied").volume_id;
    let source = |name: &str| {
        let state = azure.state();
        let disk = state.disks.values().find(|disk| disk["tags"]["longshore.dev.name"] == name).expect("a disk");
        disk["properties"]["creationData"]["sourceResourceId"].as_str().expect("a source").to_owned()
    };
    assert!(source("restored").contains("/snapshots/") && source("copy").ends_with(&format!("/disks/{name}")));
    let context = driver.attach(&restored, "n2").expect("attached");
    assert!(!context.contains_key("madeEmpty"), "it was made of a snapshot");
    driver.detach(&restored, "n2").expect("detached");
    driver.delete(&restored).expect("deleted");
    driver.delete(&copy).expect("deleted");
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete_snapshot(&snapshot).expect("again");

    driver.detach(&id, "n1").expect("detached");
    driver.detach(&id, "n1").expect("again");
    let context = driver.attach(&id, "n2").expect("attached elsewhere");
    assert!(!context.contains_key("madeEmpty"), "a pod has written to it");
    driver.detach(&id, "n2").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.delete(&id).expect("again");
    driver.assert_clean(&azure, "at the end");
}

#[test]
fn azure_disk_has_what_its_class_says() {
    let azure = Azure::start();
    let driver = start(&azure);
    let set = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/diskEncryptionSets/keys";
    let fast = [
        ("skuName", "PremiumV2_LRS"),
        ("DiskIOPSReadWrite", "4000"),
        ("DiskMBpsReadWrite", "150"),
        ("LogicalSectorSize", "4096"),
    ];
    let id = driver.create_as(with(&fast, creation("fast"))).expect("created").volume_id;
    let properties = azure.disk()["properties"].clone();
    assert_eq!((&properties["diskIOPSReadWrite"], &properties["diskMBpsReadWrite"]), (&json!(4000), &json!(150)));
    assert_eq!(properties["creationData"]["logicalSectorSize"], 4096);
    driver.modify(&id, &[("DiskIOPSReadWrite", "5000")]).expect("changed");
    assert_eq!(azure.disk()["properties"]["diskIOPSReadWrite"], 5000);
    // Such a disk is copied through a snapshot only, which is gone afterwards.
    let copy = driver.create_as(with(&fast, driver.clone_of("copy", &id))).expect("copied").volume_id;
    assert!(azure.state().snapshots.is_empty());
    driver.delete(&copy).expect("deleted");
    driver.delete(&id).expect("deleted");

    let zrs = [("skuName", "Premium_ZRS"), ("diskEncryptionSetID", set), ("cachingMode", "ReadOnly"), ("tags", "a=b")];
    let volume = driver.create_as(with(&zrs, creation("zrs"))).expect("created");
    assert!(volume.accessible_topology.is_empty(), "{:?}", volume.accessible_topology);
    let disk = azure.disk();
    assert_eq!((&disk["zones"], &disk["tags"]["a"]), (&Value::Null, &json!("b")));
    assert_eq!(disk["properties"]["encryption"]["diskEncryptionSetId"], set);
    azure.add_machine("far", "Standard_D4s_v5", Some("3"));
    driver.attach(&volume.volume_id, "far").expect("attached in any zone");
    let caching = azure.machine("far", |machine| machine["properties"]["storageProfile"]["dataDisks"][0]["caching"].clone());
    assert_eq!(caching, "ReadOnly");
    driver.detach(&volume.volume_id, "far").expect("detached");
    assert_eq!(disk["properties"]["networkAccessPolicy"], "DenyAll");
    driver.delete(&volume.volume_id).expect("deleted");

    let access = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/diskAccesses/a";
    let exported = [
        ("storageAccountType", "Standard_LRS"),
        ("enablePerformancePlus", "true"),
        ("networkAccessPolicy", "AllowPrivate"),
        ("diskAccessID", access),
        ("publicNetworkAccess", "Enabled"),
        ("diskEncryptionSetID", set),
        ("diskEncryptionType", "EncryptionAtRestWithPlatformAndCustomerKeys"),
    ];
    let mut request = creation("exported");
    request.capacity_range = Some(csi::CapacityRange { required_bytes: 600 * GIB, limit_bytes: 0 });
    let id = driver.create_as(with(&exported, request)).expect("created").volume_id;
    let properties = azure.disk()["properties"].clone();
    assert_eq!((&properties["networkAccessPolicy"], &properties["diskAccessId"]), (&json!("AllowPrivate"), &json!(access)));
    assert_eq!(
        (&properties["publicNetworkAccess"], &properties["creationData"]["performancePlus"]),
        (&json!("Enabled"), &json!(true))
    );
    assert_eq!(properties["encryption"]["type"], "EncryptionAtRestWithPlatformAndCustomerKeys");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

#[test]
fn azure_premium_disk_has_the_tier_and_the_bursting_of_its_classes() {
    let azure = Azure::start();
    let mut driver = start(&azure);
    let premium = [("skuName", "Premium_LRS"), ("performanceTier", "p40"), ("enableBursting", "true")];
    let of = |gib: u64, name: &str| csi::CreateVolumeRequest {
        capacity_range: Some(csi::CapacityRange { required_bytes: (gib * GIB as u64) as i64, limit_bytes: 0 }),
        ..creation(name)
    };
    for (gib, words) in [(10, "enableBursting: is for disks of more than 512 GiB"), (4000, "P40 is less than P50")] {
        let (refused, message) = code(driver.create_as(with(&premium, of(gib, "data"))));
        assert_eq!(refused, Code::InvalidArgument, "{message}");
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(azure.count("disks.put"), 0);
    let id = driver.create_as(with(&premium, of(600, "data"))).expect("created").volume_id;
    let performance = || {
        let properties = &azure.disk()["properties"];
        (properties["tier"].clone(), properties["burstingEnabled"].clone())
    };
    assert_eq!(performance(), (json!("P40"), json!(true)));
    driver.modify(&id, &[("performanceTier", "P30"), ("enableBursting", "false")]).expect("changed");
    assert_eq!(performance(), (json!("P30"), json!(false)));
    let updates = azure.count("disks.update");
    driver.modify(&id, &[("performanceTier", "P30"), ("enableBursting", "false")]).expect("it is so");
    assert_eq!(azure.count("disks.update"), updates);
    // Azure takes it only of a disk that is not attached, and says so.
    driver.attach(&id, "n1").expect("attached");
    driver.persistent = false;
    let (refused, message) = code(driver.modify(&id, &[("enableBursting", "true")]));
    driver.persistent = true;
    assert!(refused == Code::FailedPrecondition && message.contains("while the disk is not attached"), "{refused:?} {message}");
    driver.modify(&id, &[("performanceTier", "P50")]).expect("changed while it is attached");
    driver.detach(&id, "n1").expect("detached");
    driver.modify(&id, &[("skuName", "Standard_LRS")]).expect("changed");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

#[test]
fn azure_disk_of_another_zone_is_not_attached() {
    let azure = Azure::start();
    let driver = start(&azure);
    azure.add_machine("far", "Standard_D4s_v5", Some("3"));
    let id = driver.create("data").expect("created");
    let (refused, message) = code(driver.attach(&id, "far"));
    assert_eq!(refused, Code::InvalidArgument, "{message}");
    assert!(message.contains("westeurope-3") && message.contains("westeurope-1"), "{message}");
    driver.delete(&id).expect("deleted");
    // Without a wish any zone of the region.
    let anywhere = csi::CreateVolumeRequest { accessibility_requirements: None, ..creation("anywhere") };
    let id = driver.create_as(anywhere).expect("created").volume_id;
    assert!(["1", "2", "3"].contains(&azure.disk()["zones"][0].as_str().expect("a zone")));
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

#[test]
fn azure_shared_disk_is_on_several_machines() {
    let azure = Azure::start();
    let driver = start(&azure);
    let request = csi::CreateVolumeRequest { volume_capabilities: vec![shared_block()], ..creation("shared") };
    let (refused, message) = code(driver.create_as(request.clone()));
    assert_eq!((refused, message.contains("maxShares")), (Code::InvalidArgument, true), "{message}");
    let id = driver.create_as(with(&[("skuName", "Premium_LRS"), ("maxShares", "2")], request)).expect("created").volume_id;
    for name in ["n1", "n2"] {
        driver.attach_as(&id, name, shared_block(), false).expect("attached to both");
    }
    let mut published = driver.list()[0].1.clone();
    published.sort();
    assert_eq!(published, [node("n1"), node("n2")]);
    // Not while it is attached.
    let driver = Driver { persistent: false, ..driver };
    assert_eq!(code(driver.expand(&id, 20)).0, Code::FailedPrecondition);
    let driver = Driver { persistent: true, ..driver };
    driver.detach(&id, "n1").expect("detached");
    assert_eq!(driver.list()[0].1, [node("n2")]);
    driver.detach(&id, "n2").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

/// Several at once to one machine are in few requests, each in a LUN of its own.
#[test]
fn azure_attachments_to_one_machine_are_sent_together() {
    let azure = Azure::start();
    azure.state().delay = Duration::from_millis(300);
    let driver = start(&azure);
    let ids: Vec<String> = (0..8).map(|number| driver.create(&format!("data-{number}")).expect("created")).collect();
    let all = |call: &(dyn Fn(&str) + Sync)| {
        std::thread::scope(|scope| ids.iter().for_each(|id| drop(scope.spawn(move || call(id)))));
    };
    all(&|id| drop(driver.attach(id, "n1").expect("attached")));
    let luns: std::collections::BTreeSet<u64> = azure.luns("n1").into_iter().map(|(lun, _)| lun).collect();
    assert_eq!(luns.len(), 8);
    let attaching = azure.count("virtualMachines.attachDetachDataDisks");
    assert!(attaching <= 5, "{attaching} requests");
    all(&|id| driver.detach(id, "n1").expect("detached"));
    let detaching = azure.count("virtualMachines.attachDetachDataDisks") - attaching;
    assert!(detaching <= 5, "{detaching} requests");
    all(&|id| driver.delete(id).expect("deleted"));
    driver.assert_clean(&azure, "at the end");
}

/// 64 at once, which is what the largest sizes take: 16 of them in each request but the first.
#[test]
fn azure_64_disks_of_one_machine_are_attached_in_few_requests() {
    let azure = Azure::start();
    azure.add_machine("large", "Standard_D64s_v6", Some("1"));
    azure.state().room = Some(64);
    let mut driver = start(&azure);
    driver.patience = Duration::from_secs(60);
    let ids: Vec<String> = (0..65).map(|number| driver.create(&format!("data-{number}")).expect("created")).collect();
    let requests = |of: &[String], call: &(dyn Fn(&str) + Sync)| {
        let before = azure.count("virtualMachines.attachDetachDataDisks");
        std::thread::scope(|scope| of.iter().for_each(|id| drop(scope.spawn(move || call(id)))));
        azure.count("virtualMachines.attachDetachDataDisks") - before
    };
    let attaching = requests(&ids[..64], &|id| drop(driver.attach(id, "large").expect("attached")));
    assert_eq!(azure.luns("large").len(), 64);
    assert_eq!(code(driver.attach(&ids[64], "large")).0, Code::ResourceExhausted);
    let beyond = requests(&ids[64..], &|id| drop(driver.attach(id, "large").expect_err("there is no room")));
    assert_eq!(beyond, 0, "the 65th is refused before any request");
    let detaching = requests(&ids[..64], &|id| driver.detach(id, "large").expect("detached"));
    println!("FIGURE: azure 64 disks of one machine: {attaching} requests to attach them, {detaching} to detach them");
    assert!(attaching <= 16 && detaching <= 16, "{attaching} and {detaching}");
    requests(&ids, &|id| driver.delete(id).expect("deleted"));
    driver.assert_clean(&azure, "at the end");
}

#[test]
fn azure_machine_is_not_filled_beyond_its_limit() {
    let azure = Azure::start();
    azure.add_machine("small", "Standard_D2s_v5", Some("1"));
    azure.add_machine("odd", "Standard_NC6s_v3", Some("1"));
    let driver = start(&azure);
    let ids: Vec<String> = (0..5).map(|number| driver.create(&format!("data-{number}")).expect("created")).collect();
    for id in &ids[..4] {
        driver.attach(id, "small").expect("attached");
    }
    let before = azure.count("virtualMachines.attachDetachDataDisks");
    assert_eq!(code(driver.attach(&ids[4], "small")).0, Code::ResourceExhausted);
    assert_eq!(azure.count("virtualMachines.attachDetachDataDisks"), before, "it is refused before any request");
    // Of a size that is not known the cloud decides.
    azure.state().room = Some(0);
    assert_eq!(code(driver.attach(&ids[4], "odd")).0, Code::ResourceExhausted);
    azure.state().room = None;
    for id in &ids {
        driver.detach(id, "small").expect("detached");
        driver.delete(id).expect("deleted");
    }
    driver.assert_clean(&azure, "at the end");
}

#[test]
fn azure_machine_that_is_gone_has_no_disks_and_one_that_sleeps_keeps_them() {
    let azure = Azure::start();
    let driver = start(&azure);
    azure.add_machine("set/3", "Standard_D4s_v5", Some("1"));
    let id = driver.create("data").expect("created");
    assert_eq!(code(driver.attach(&id, "no-such-node")).0, Code::NotFound);
    driver.detach(&id, "no-such-node").expect("it is attached nowhere");
    driver.attach(&id, "set/3").expect("attached to a machine of a scale set");
    assert_eq!(driver.list(), [(id.clone(), vec![node("set/3")])]);
    driver.detach(&id, "set/3").expect("detached");
    driver.attach(&id, "n1").expect("attached");
    let state = |code: &str| {
        azure.machine("n1", |machine| machine["properties"]["instanceView"]["statuses"] = json!([{"code": code}]));
    };
    state("HibernationState/Hibernated");
    let (refused, message) = code(driver.detach(&id, "n1"));
    assert_eq!(refused, Code::FailedPrecondition, "{message}");
    state("PowerState/deallocated");
    driver.detach(&id, "n1").expect("from a machine without a host");
    // A machine that was deleted keeps its disks by their word.
    state("PowerState/running");
    driver.attach(&id, "n1").expect("attached");
    azure.remove_machine("n1");
    driver.detach(&id, "n1").expect("its machine is gone");
    {
        let mut state = azure.state();
        let disk = state.disks.values_mut().next().expect("one");
        disk["managedBy"] = Value::Null;
        disk["properties"]["diskState"] = "Unattached".into();
    }
    driver.attach(&id, "n2").expect("attached elsewhere");
    driver.detach(&id, "n2").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

/// What else is attached to a machine stays, and its LUN is not taken.
#[test]
fn azure_disks_of_others_are_left_alone() {
    let azure = Azure::start();
    let driver = start(&azure);
    let other = json!({"lun": 0, "name": "other", "caching": "None", "managedDisk": {"id": "/subscriptions/x/resourceGroups/y/providers/Microsoft.Compute/disks/other"}});
    azure.machine("n1", |machine| machine["properties"]["storageProfile"]["dataDisks"] = json!([other]));
    let id = driver.create("data").expect("created");
    assert_eq!(driver.attach(&id, "n1").expect("attached")["device"], "1");
    driver.detach(&id, "n1").expect("detached");
    assert_eq!(azure.luns("n1"), [(0, "other".to_owned())]);
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

#[test]
fn azure_lists_have_all_pages_and_no_other_clusters_disks() {
    let azure = Azure::start();
    azure.state().page = 2;
    let driver = start(&azure);
    let other = driver_of(&azure, "other").started();
    let theirs = other.create("data").expect("created");
    let mut ours: Vec<String> = (0..5).map(|number| driver.create(&format!("data-{number}")).expect("created")).collect();
    ours.push(driver.create("data").expect("the other cluster's has another name"));
    let listed: Vec<String> = driver.list().into_iter().map(|(id, _)| id).collect();
    assert_eq!(listed.len(), 6);
    assert!(ours.iter().all(|id| listed.contains(id)) && !listed.contains(&theirs));
    let driver = Driver { persistent: false, ..driver };
    driver.attach(&theirs, "n1").expect_err("another cluster's");
    driver.delete(&theirs).expect_err("another cluster's");
    assert_eq!(azure.state().disks.len(), 7);
    let driver = Driver { persistent: true, ..driver };
    for id in ours {
        driver.delete(&id).expect("deleted");
    }
    other.delete(&theirs).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

/// Whose name is ours and whose tags are another's is neither used nor changed nor deleted.
#[test]
fn azure_disk_of_our_name_with_other_tags_is_left_alone() {
    let azure = Azure::start();
    let driver = start(&azure);
    let id = driver.create("data").expect("created");
    let tags = json!({"owner": "someone"});
    azure.state().disks.values_mut().next().expect("one")["tags"] = tags.clone();
    let driver = Driver { persistent: false, ..driver };
    for refused in [driver.create("data").map(drop), driver.delete(&id), driver.attach(&id, "n1").map(drop)] {
        let (_, message) = code(refused);
        assert!(message.contains("longshore.dev/volume=data"), "{message}");
    }
    assert_eq!(azure.disk()["tags"], tags);
    assert_eq!(azure.state().violations, Vec::<String>::new());
}

#[test]
fn azure_tokens_are_those_of_machine_secret_and_cluster() {
    let azure = Azure::start();
    for (more, grant) in [
        ("", "machine "),
        ("clientId: client-1", "machine client-1"),
        ("tenantId: tenant-1\n    clientId: client-1\n    clientSecretFile: $SCRATCH/secret", "secret client-1"),
        ("tenantId: tenant-1\n    clientId: client-1\n    federatedTokenFile: $SCRATCH/federated", "federated client-1"),
    ] {
        let driver = driver_with(&azure, "test", more).started();
        azure.state().grants.clear();
        let id = driver.create("data").expect("created");
        assert_eq!(azure.state().grants, [grant], "one token for all requests");
        // It is refused once, before its time.
        azure.state().token += 1;
        driver.delete(&id).expect("deleted");
        assert_eq!(azure.state().grants, [grant, grant]);
        driver.assert_clean(&azure, more);
    }
    let wrong =
        driver_with(&azure, "test", "tenantId: tenant-1\n    clientId: client-1\n    clientSecretFile: $SCRATCH/config.yaml")
            .started();
    let wrong = Driver { persistent: false, ..wrong };
    let (_, message) = code(wrong.create("data"));
    assert!(message.contains("invalid_client") && message.contains("clientId") && !message.contains(SECRET), "{message}");
}

/// The rights that are documented are those of the requests that were made.
#[test]
fn azure_rights_are_those_of_the_document() {
    let azure = Azure::start();
    azure.add_machine("set/3", "Standard_D4s_v5", Some("1"));
    let driver = start(&azure);
    let anywhere = csi::CreateVolumeRequest { accessibility_requirements: None, ..creation("anywhere") };
    let anywhere = driver.create_as(anywhere).expect("created").volume_id;
    let id = driver.create("data").expect("created");
    for name in ["n1", "set/3"] {
        driver.attach(&id, name).expect("attached");
        driver.detach(&id, name).expect("detached");
    }
    driver.expand(&id, 20).expect("grown");
    driver.modify(&id, &[("skuName", "Premium_LRS")]).expect("changed");
    let snapshot = driver.snapshot("then", &id).expect("a snapshot");
    let restored = driver.create_as(driver.restored_from("restored", &snapshot)).expect("restored").volume_id;
    driver.list();
    driver.call(|mut client| async move { client.list_snapshots(csi::ListSnapshotsRequest::default()).await }).expect("a list");
    driver.delete_snapshot(&snapshot).expect("deleted");
    [anywhere, id, restored].iter().for_each(|id| driver.delete(id).expect("deleted"));
    driver.assert_clean(&azure, "at the end");
    let text = include_str!("../../../docs/azure.md");
    let rights = text.lines().filter_map(|line| line.trim().strip_prefix("\"Microsoft.")?.split('"').next());
    let documented: std::collections::BTreeSet<String> = rights.map(|right| format!("Microsoft.{right}")).collect();
    assert_eq!(documented, azure.state().rights, "in docs/azure.md, and needed");
}

//! The controller's and the node's side, on loop devices for disks.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::change::data_of;
use super::look::{Looked, Seen};
use super::record::{Record, State};
use super::*;
use crate::backend::{CapacityQuery, ConnectRequest, FreezeGuard, Quiesce, Source, VolumeSpec};
use crate::os::block::Device;
use crate::os::disk::{gpt, record as slots};
use crate::os::fs::testing::{Loop, Mounted, User, in_namespace, tool};
use crate::volume::{Bytes, MountFlags, Outcome, Secrets, Severity, TopologyRequirement, Volume};

struct Still;

impl Quiesce for Still {
    fn freeze(&self, _volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        Ok(Box::new(Still))
    }
}

impl FreezeGuard for Still {
    fn release(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Disks of these sizes in MiB; nothing where there are no loop devices.
fn disks(sizes: &[u64]) -> Option<Vec<Loop>> {
    sizes.iter().map(|size| Loop::with_partitions(size << 20)).collect()
}

fn backend_with(disks: &[Loop], rest: &str) -> DiskBackend {
    let devices: Vec<&str> = disks.iter().map(Loop::name).collect();
    let yaml = format!("{{name: disk, node: here, classes: [{{name: all, devices: [{}]{rest}}}]}}", devices.join(", "));
    DiskBackend::open(serde_yaml_ng::from_str(&yaml).expect("valid"), true).expect("opens")
}

fn backend(disks: &[Loop]) -> DiskBackend {
    backend_with(disks, "")
}

fn spec(name: &str, mib: u64, on_delete: &str) -> VolumeSpec {
    VolumeSpec {
        id: format!("disk:{name}").parse().expect("an id"),
        name: name.to_owned(),
        capacity: Bytes::mib(mib),
        limit: None,
        source: None,
        parameters: serde_json::json!({"node": {}, "backend": {"onDelete": on_delete}}),
        several_nodes: false,
        mutable: RawParameters::default(),
        topology: TopologyRequirement::default(),
    }
}

fn create(backend: &DiskBackend, name: &str, mib: u64) -> Result<Volume> {
    let spec = spec(name, mib, "delete");
    match backend.find_for_create(&spec.id, &spec.parameters)? {
        Some(volume) => Ok(volume),
        None => backend.create(&spec, &Still),
    }
}

fn connect(backend: &DiskBackend, id: &VolumeId, parameters: &serde_json::Value) -> Result<Source> {
    let request = ConnectRequest {
        id,
        parameters,
        publish_context: &BTreeMap::new(),
        secrets: &Secrets::default(),
        mount_flags: &MountFlags::default(),
        read_only: false,
        earlier: None,
    };
    Ok(Connect::connect(backend, &request)?.into_inner())
}

fn device(source: &Source) -> Device {
    let Source::Device(device) = source else { panic!("{source:?}") };
    Device::open(&device.path, true).expect("opens")
}

fn only(backend: &DiskBackend) -> Looked {
    let mut looked = backend.scan().expect("sysfs");
    assert_eq!(looked.len(), 1);
    looked.remove(0)
}

fn is_zero(file: &File, from: u64, length: u64) -> bool {
    let mut bytes = vec![0; usize::try_from(length).expect("small")];
    file.read_exact_at(&mut bytes, from).expect("reads");
    bytes.iter().all(|byte| *byte == 0)
}

fn as_data(disk: &Loop) {
    disk.image.write_all_at(b"data", 60 << 20).expect("writes");
}

#[test]
fn volume_is_the_smallest_disk_that_fits_and_is_zeroes_for_its_next_user() {
    in_namespace(|| {
        let Some(under) = disks(&[256, 64, 128]) else { return };
        let backend = backend(&under);
        let capacity = backend.capacity(&CapacityQuery::default()).expect("answers");
        assert_eq!((capacity.available, capacity.maximum), (Bytes::mib(253 + 61 + 125), Bytes::mib(253)));
        let volume = create(&backend, "a", 20).expect("room");
        assert_eq!(volume.capacity, Bytes::mib(61));
        assert_eq!(create(&backend, "a", 20).expect("the same"), volume);
        assert_eq!(backend.find(&volume.id).expect("looks"), Some(volume.clone()));
        let second = create(&backend, "b", 20).expect("room");
        assert_eq!(second.capacity, Bytes::mib(125));
        let limited = VolumeSpec { limit: Some(Bytes::mib(200)), ..spec("c", 20, "delete") };
        let error = backend.create(&limited, &Still).expect_err("only a larger disk is left").to_string();
        assert!(error.contains("20 MiB to 200 MiB is asked for; of 3 disks 1 seemed free"), "{error}");

        let source = connect(&backend, &volume.id, &serde_json::Value::Null).expect("connects");
        assert!(backend.known_blank(&volume.id, &BTreeMap::new()));
        assert_eq!(connect(&backend, &volume.id, &serde_json::Value::Null).expect("is connected"), source);
        assert!(backend.is_same_device(&source).expect("looks"));
        backend.about_to_write(&volume.id, &source).expect("clears");
        let open = device(&source);
        assert_eq!(open.size().expect("a size"), 61 << 20);
        open.file().write_all_at(b"secret", 30 << 20).expect("writes");
        open.flush().expect("flushes");
        assert!(matches!(backend.delete(&volume.id), Err(Error::InUse { .. })), "a program has it open");
        drop(open);
        backend.disconnect(&volume.id, Some(&source)).expect("nobody has it");
        assert!(!backend.known_blank(&volume.id, &BTreeMap::new()));
        assert_eq!(backend.delete(&volume.id).expect("wipes"), Outcome::Changed(()));
        assert_eq!(backend.delete(&volume.id).expect("is gone"), Outcome::Unchanged(()));
        assert!(!backend.is_same_device(&source).expect("looks"), "its journal entry must not mean the next volume");
        assert!(is_zero(&under[1].image, gpt::DATA_START, 61 << 20), "what the first user wrote");
        let next = create(&backend, "d", 20).expect("room");
        assert_eq!(next.capacity, Bytes::mib(61), "the disk is used again");
        let again = connect(&backend, &next.id, &serde_json::Value::Null).expect("connects");
        assert!(!backend.is_same_device(&source).expect("looks"));
        assert!(backend.is_same_device(&again).expect("looks"));
        let listed: Vec<VolumeId> = backend.list(None, 10).expect("lists").into_iter().map(|volume| volume.id).collect();
        assert_eq!(listed.len(), 2);
        assert!(listed.contains(&next.id) && listed.contains(&second.id));
    });
}

#[test]
fn disk_with_anything_on_it_is_never_used() {
    in_namespace(|| {
        let Some(under) = disks(&[64, 64, 64, 8, 64, 64]) else { return };
        let [file_system, late, used, _small, read_only, partitioned] = under.as_slice() else { unreachable!() };
        tool("mkfs.ext4", &["-q", file_system.name()]).expect("made");
        late.image.write_all_at(b"x", (64 << 20) - 1).expect("writes");
        tool("mkswap", &[used.name()]);
        Device::open(&read_only.device, false).expect("opens").set_read_only(true).expect("sets");
        partitioned.image.write_all_at(b"\x55\xaa", 510).expect("writes");
        let backend = backend(&under);
        let error = create(&backend, "a", 1).expect_err("none is blank").to_string();
        assert!(error.contains("of 6 disks 1 seemed free"), "the byte at the end is found only by reading all: {error}");
        let seen: Vec<String> = backend.scan().expect("sysfs").into_iter().map(|looked| format!("{:?}", looked.seen)).collect();
        for words in ["it holds ext4", "it has only 8 MiB", "it is read-only", "boot sector"] {
            assert!(seen.iter().any(|seen| seen.contains(words)), "{words}: {seen:?}");
        }
        assert_eq!(
            tool("blkid", &["-p", "-o", "value", "-s", "TYPE", file_system.name()]).as_deref().map(str::trim),
            Some("ext4")
        );
        Device::open(&read_only.device, false).expect("opens").set_read_only(false).expect("sets");
        let mounted = tempfile::tempdir().expect("a directory");
        let _mounted = Mounted::new(&file_system.device, mounted.path(), "ext4");
        let claimed = backend.scan().expect("sysfs").into_iter().find(|looked| looked.disk.path() == file_system.device);
        assert!(matches!(claimed.expect("there").seen, Seen::Unfit(why) if why.contains("ext4")));
    });
}

#[test]
fn samples_are_believed_only_where_the_class_says_so() {
    in_namespace(|| {
        // Larger than what is read whole whatever the evidence.
        let Some(under) = disks(&[1100]) else { return };
        // At no sample.
        under[0].image.write_all_at(b"x", (550 << 20) + (1 << 20) + 7).expect("writes");
        let strict = create(&backend(&under), "a", 1).expect_err("it is not blank").to_string();
        assert!(strict.contains("of 1 disks 1 seemed free"), "{strict}");
        create(&backend_with(&under, ", proof: samples"), "a", 1).expect("the operator's word");
    });
}

#[test]
fn interrupted_claims_and_wipes_go_on_where_they_were() {
    in_namespace(|| {
        let Some(under) = disks(&[64]) else { return };
        let backend = backend(&under);
        // Killed in the middle of the partition table, as far as the disk shows it.
        let looked = only(&backend);
        let id: VolumeId = "disk:a".parse().expect("an id");
        let mut held = backend.hold(&looked).expect("locks").expect("nobody has it");
        let claiming = Record::claiming(&backend.config.name, &held.disk, false).expect("random");
        let table = gpt::Table::new(64 << 20, 512, claiming.disk, claiming.data).expect("made");
        held.write("claim disk", &id, claiming).expect("writes");
        drop(held);
        table.write(&Device::open(&under[0].device, true).expect("opens")).expect("writes");
        under[0].image.write_all_at(&[0; 512], 512).expect("writes");
        assert!(only(&backend).is_free(&backend.config.classes[0]));
        let volume = create(&backend, "a", 1).expect("continues");
        assert!(only(&backend).ours().expect("ours").table.is_none());

        let source = connect(&backend, &volume.id, &serde_json::Value::Null).expect("connects");
        backend.about_to_write(&volume.id, &source).expect("clears");
        device(&source).file().write_all_at(b"secret", 40 << 20).expect("writes");
        device(&source).flush().expect("flushes");
        // Killed while it was overwritten: what is before `done` is not looked at again.
        let looked = only(&backend);
        let mut held = backend.hold(&looked).expect("locks").expect("nobody has it");
        let volume_record = looked.ours().and_then(|ours| ours.record.volume()).cloned().expect("a volume");
        held.set("mark for wiping", &id, State::Wiping { volume: volume_record, done: 1 << 20 }).expect("writes");
        drop(held);
        assert_eq!(backend.find(&volume.id).expect("looks"), None);
        let full = create(&backend, "b", 1).expect_err("it is not free yet");
        assert!(matches!(full, Error::NoCapacity { .. }), "{full}");
        assert_eq!(backend.delete(&volume.id).expect("continues"), Outcome::Changed(()));
        assert!(is_zero(&under[0].image, gpt::DATA_START, 61 << 20));
        create(&backend, "b", 1).expect("it is free");
    });
}

#[test]
fn disk_that_was_written_to_by_hand_is_not_given_out() {
    in_namespace(|| {
        let Some(under) = disks(&[64]) else { return };
        let id: VolumeId = "disk:a".parse().expect("an id");
        // While its partition table was not there yet, as mkfs.ext4 would.
        let first = backend(&under);
        let mut held = first.hold(&only(&first)).expect("locks").expect("nobody has it");
        let claiming = Record::claiming(&first.config.name, &held.disk, false).expect("random");
        held.write("claim disk", &id, claiming).expect("writes");
        drop(held);
        under[0].image.write_all_at(b"precious", 1024).expect("writes");
        let refused = create(&first, "a", 1).expect_err("it may be someone's");
        assert!(matches!(refused, Error::NoCapacity { .. }), "{refused}");
        let mut kept = [0; 8];
        under[0].image.read_exact_at(&mut kept, 1024).expect("reads");
        assert_eq!(&kept, b"precious");

        // While it was free.
        under[0].image.write_all_at(&[0; 8], 1024).expect("writes");
        let second = backend(&under);
        let volume = create(&second, "a", 1).expect("room");
        second.delete(&volume.id).expect("it is free");
        under[0].image.write_all_at(b"precious", gpt::DATA_START + 1024).expect("writes");
        let refused = create(&second, "b", 1).expect_err("it was written to");
        assert!(matches!(refused, Error::NoCapacity { .. }), "{refused}");
        assert!(only(&second).refused.expect("why").contains("was written to"));
    });
}

#[test]
fn disk_that_is_in_use_is_not_taken() {
    in_namespace(|| {
        let Some(under) = disks(&[64]) else { return };
        let backend = backend(&under);
        // Without O_EXCL, as a virtual machine has it.
        let user = User::of(File::open(&under[0].device).expect("opens"));
        let refused = create(&backend, "a", 1);
        drop(user);
        assert!(matches!(&refused, Err(Error::InProgress { reason, .. }) if reason.contains("sleep")), "{refused:?}");
        let mut whole = vec![0; 64 << 20];
        under[0].image.read_exact_at(&mut whole, 0).expect("reads");
        assert!(whole.iter().all(|byte| *byte == 0));
        create(&backend, "a", 1).expect("nobody has it any more");
    });
}

#[test]
fn disk_that_was_only_sampled_is_wiped_before_it_is_proven_blank() {
    in_namespace(|| {
        let Some(under) = disks(&[1100]) else { return };
        let at = (550 << 20) + (1 << 20) + 7;
        under[0].image.write_all_at(b"x", at).expect("writes");
        let sampling = backend_with(&under, ", proof: samples");
        let volume = create(&sampling, "a", 1).expect("the operator's word");
        let strict = backend(&under);
        let class = &strict.config.classes[0];
        assert!(sampling.delete(&volume.id).is_ok() && only(&strict).is_free(class), "never connected, and wiped all the same");
        assert!(is_zero(&under[0].image, at, 1));
        create(&strict, "b", 1).expect("it was overwritten");
    });
}

#[test]
fn volume_is_blank_until_it_is_about_to_be_written() {
    in_namespace(|| {
        let Some(under) = disks(&[64]) else { return };
        let first = backend(&under);
        let volume = create(&first, "a", 1).expect("room");
        let source = connect(&first, &volume.id, &serde_json::Value::Null).expect("connects");
        first.disconnect(&volume.id, Some(&source)).expect("a stage that failed early");
        // The next driver.
        let second = backend(&under);
        let source = connect(&second, &volume.id, &serde_json::Value::Null).expect("connects");
        assert!(second.known_blank(&volume.id, &BTreeMap::new()));
        second.about_to_write(&volume.id, &source).expect("clears");
        second.disconnect(&volume.id, Some(&source)).expect("nobody has it");
        connect(&second, &volume.id, &serde_json::Value::Null).expect("connects");
        assert!(!second.known_blank(&volume.id, &BTreeMap::new()), "it may have been written");
    });
}

#[test]
fn copies_of_a_record_that_differ_are_written_again() {
    in_namespace(|| {
        let Some(under) = disks(&[64]) else { return };
        let backend = backend(&under);
        let volume = create(&backend, "a", 1).expect("room");
        // Power was lost between the two: the second is that of before.
        under[0].image.write_all_at(&[0; 64], gpt::RECORD_START + slots::LENGTH / 2).expect("writes");
        assert!(!only(&backend).ours().expect("ours").even);
        connect(&backend, &volume.id, &serde_json::Value::Null).expect("connects");
        assert!(only(&backend).ours().expect("ours").even);
    });
}

#[test]
fn volume_whose_disk_is_away_is_not_taken_for_deleted() {
    in_namespace(|| {
        let Some(under) = disks(&[64, 64]) else { return };
        let both = backend(&under);
        let volume = create(&both, "a", 1).expect("room");
        let other = backend(&under[..1]);
        let without = if other.list(None, 10).expect("lists").is_empty() { other } else { backend(&under[1..]) };
        for answer in [
            without.find(&volume.id).map(drop),
            without.delete(&volume.id).map(drop),
            connect(&without, &volume.id, &serde_json::Value::Null).map(drop),
        ] {
            let error = answer.expect_err("its disk is not here");
            assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
        }
        let health = without.volume_health(&volume.id).expect("answers");
        assert_eq!((health[0].severity, health[0].reason), (Severity::Inaccessible, "DiskMissing"));
        assert_eq!(both.delete(&volume.id).expect("it is here"), Outcome::Changed(()));
    });
}

#[test]
fn disk_whose_record_is_a_copy_or_damaged_is_left_alone() {
    in_namespace(|| {
        let Some(under) = disks(&[64, 64]) else { return };
        let backend = backend(&under);
        let volume = create(&backend, "a", 1).expect("room");
        let (own, other) = if is_zero(&under[0].image, gpt::RECORD_START, slots::LENGTH) { (1, 0) } else { (0, 1) };
        let mut start = vec![0; 2 << 20];
        under[own].image.read_exact_at(&mut start, 0).expect("reads");
        under[other].image.write_all_at(&start, 0).expect("writes");
        as_data(&under[other]);
        let health = backend.volume_health(&volume.id).expect("answers");
        assert_eq!(health[0].reason, "DiskCopied");
        for answer in [backend.delete(&volume.id).map(drop), connect(&backend, &volume.id, &serde_json::Value::Null).map(drop)] {
            assert!(matches!(answer, Err(Error::Unverified { .. })), "{answer:?}");
        }
        assert!(!is_zero(&under[other].image, 60 << 20, 4), "what was on the copy");

        // A record of which nothing is whole may be that of any volume.
        let place = gpt::RECORD_START + 30;
        for copy in [0, slots::LENGTH / 2] {
            under[other].image.write_all_at(b"decayed", place + copy).expect("writes");
        }
        assert!(backend.find(&volume.id).expect("the other one is whole").is_some());
        let capacity = backend.capacity(&CapacityQuery::default()).expect("answers");
        assert_eq!(capacity.maximum, Bytes(0), "nothing is made as long as one disk may hold anything");
        let unheard_of: VolumeId = "disk:b".parse().expect("an id");
        assert!(matches!(backend.find(&unheard_of), Err(Error::BackendUnavailable { .. })));
        assert_eq!(backend.storage_health().expect("answers")[0].reason, "DiskUnreadable");
    });
}

#[test]
fn changed_partition_table_is_neither_used_nor_wiped() {
    in_namespace(|| {
        let Some(under) = disks(&[64]) else { return };
        let backend = backend(&under);
        let volume = create(&backend, "a", 1).expect("room");
        if tool("sfdisk", &["--delete", "--no-reread", "--force", under[0].name(), "2"]).is_none() {
            return;
        }
        as_data(&under[0]);
        for answer in [backend.delete(&volume.id).map(drop), connect(&backend, &volume.id, &serde_json::Value::Null).map(drop)] {
            let error = answer.expect_err("refused").to_string();
            assert!(error.contains("its partition table was changed"), "{error}");
        }
        assert!(!is_zero(&under[0].image, 60 << 20, 4));
        assert_eq!(backend.volume_health(&volume.id).expect("answers")[0].reason, "PartitionTableChanged");
    });
}

#[test]
fn volume_on_a_disk_that_has_grown_is_as_large_as_before() {
    in_namespace(|| {
        let Some(under) = disks(&[64]) else { return };
        let backend = backend(&under);
        let volume = create(&backend, "a", 1).expect("room");
        let source = connect(&backend, &volume.id, &serde_json::Value::Null).expect("connects");
        under[0].resize(128 << 20);
        assert_eq!(backend.find(&volume.id).expect("looks"), Some(volume.clone()));
        assert_eq!(connect(&backend, &volume.id, &serde_json::Value::Null).expect("connects"), source);
        assert_eq!(backend.delete(&volume.id).expect("wipes"), Outcome::Changed(()));
        assert_eq!(create(&backend, "b", 1).expect("it is free").capacity, volume.capacity);
    });
}

#[test]
fn retained_volume_keeps_its_data_and_its_disk_is_not_used_again() {
    in_namespace(|| {
        let Some(under) = disks(&[64]) else { return };
        let backend = backend(&under);
        let volume = backend.create(&spec("a", 1, "retain"), &Still).expect("room");
        let source = connect(&backend, &volume.id, &serde_json::Value::Null).expect("connects");
        backend.about_to_write(&volume.id, &source).expect("clears");
        device(&source).file().write_all_at(b"precious", 40 << 20).expect("writes");
        let set = |word: &str| {
            let wanted = RawParameters::new([("onDelete".to_owned(), word.to_owned())]);
            Modify::modify(&backend, &volume.id, &wanted).expect("sets")
        };
        assert_eq!(
            [set("scrub"), set("scrub"), set("retain")],
            [Outcome::Changed(()), Outcome::Unchanged(()), Outcome::Changed(())]
        );
        backend.delete(&volume.id).expect("it stays");
        assert_eq!(backend.find(&volume.id).expect("looks"), None);
        assert!(matches!(create(&backend, "b", 1), Err(Error::NoCapacity { .. })));
        assert!(data_of(&only(&backend).disk, 64 << 20).is_ok(), "an administrator finds the partition");
        let survey = backend.inspect().expect("has it").survey().expect("looks");
        assert!(survey.leftovers[0].what.contains("its data is kept"), "{survey:?}");
        assert!(survey.devices.is_empty(), "its partition is no device that was left connected");
    });
}

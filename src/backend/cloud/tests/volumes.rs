//! Volumes come and go, whatever the cloud does.

use std::collections::BTreeSet;

use super::super::garbage::compare;
use super::super::tags::{BACKEND, CLUSTER, NAME, Owner, VOLUME};
use super::super::{CloudErrorKind, DiskId, DiskState, MachineState};
use super::fake::Wrong::{Lost, NotDone, Refused};
use super::snapshots::at_last;
use super::*;
use crate::volume::Severity;

#[test]
fn a_volume_comes_and_goes() {
    let bench = Bench::new();
    let made = bench.create("one").expect("made");
    assert_eq!((made.id.to_string().as_str(), made.name.as_str(), made.capacity), ("cloud:d-vol-0001.one", "one", GIB));
    assert_eq!((made.topology.as_slice(), &*made.parameters), (&[zone("a")][..], &spec("one").parameters));
    let disks = bench.cloud.disks_now();
    let tags = &disks[0].tags;
    assert_eq!((tags[CLUSTER].as_str(), tags[BACKEND].as_str(), tags[VOLUME].as_str()), ("ours", "cloud", "one"));
    assert_eq!((tags["team"].as_str(), disks[0].state), ("red", DiskState::Available));
    assert!(tags.values().all(|value| value.chars().count() <= 256));
    assert_eq!(bench.provision().find(&bench.id("one")).expect("answered"), Some(made.clone()));
    assert_eq!(bench.provision().list(None, 10).expect("answered"), [made]);
    assert_eq!(bench.delete("one").expect("deleted"), Outcome::Changed(()));
    assert_eq!(bench.delete("one").expect("a repeat"), Outcome::Unchanged(()));
    assert_eq!(bench.provision().find(&bench.id("one")).expect("answered"), None);
    assert_eq!(bench.cloud.disks_now(), []);
    assert_eq!(bench.cloud.count("create_disk"), 1);
}

#[test]
fn a_lost_answer_makes_no_second_disk() {
    for wrong in [vec![Lost], vec![NotDone], vec![Lost, NotDone], vec![NotDone, Lost, Lost]] {
        let mut bench = Bench::new();
        bench.cloud.wrong("create_disk", wrong.clone());
        if let Err(error) = bench.ensure("one") {
            assert!(!is_final(&error), "{error}");
            bench.restart();
            bench.ensure("one").expect("made");
        }
        assert_eq!(bench.cloud.disks_now().len(), 1, "{wrong:?}");
        for wrong in [Lost, NotDone] {
            bench.cloud.wrong("delete_disk", [wrong]);
            assert_eq!(bench.delete("one").expect("deleted"), Outcome::Changed(()));
            assert_eq!(bench.cloud.disks_now(), []);
            bench.ensure("one").expect("made again");
        }
    }
}

#[test]
fn a_description_that_is_out_of_date_is_not_believed() {
    for stale in [1, 3, 6] {
        let bench = Bench::new();
        bench.cloud.state().stale = stale;
        for round in 0..2 {
            bench.ensure("one").expect("made");
            assert!(bench.provision().find(&bench.id("one")).expect("answered").is_some(), "{stale} {round}");
            bench.attach("one", "i-1").expect("attached");
            bench.detach("one", "i-1").expect("detached");
            assert_eq!(bench.delete("one").expect("deleted"), Outcome::Changed(()));
            assert_eq!(bench.provision().find(&bench.id("one")).expect("answered"), None, "{stale} {round}");
            assert_eq!(bench.cloud.disks_now(), []);
        }
    }
}

#[test]
fn a_killed_drivers_disk_is_found_by_the_next() {
    let mut bench = Bench::new();
    bench.cloud.state().stale = 4;
    bench.cloud.state().delays.create = None;
    bench.cloud.wrong("create_disk", [Lost, NotDone, NotDone]);
    assert!(!is_final(&bench.create("one").expect_err("no answer")));
    bench.restart();
    let error = bench.ensure("one").expect_err("it takes for ever");
    assert!(matches!(error, Error::InProgress { .. }), "{error}");
    bench.restart();
    let disk = bench.cloud.disks_now()[0].id.clone();
    bench.cloud.with_disk(&disk, |disk| disk.state = DiskState::Available);
    bench.ensure("one").expect("found");
    assert_eq!(bench.cloud.disks_now().len(), 1);
    // One that was never answered goes, too, and a young driver waits until it is shown.
    bench.cloud.state().delays.create = Some(Duration::ZERO);
    bench.cloud.wrong("create_disk", [Lost, NotDone, NotDone]);
    bench.create("two").expect_err("no answer");
    bench.cloud.state().stale = 0;
    bench.restart();
    assert_eq!(bench.delete("two").expect("deleted"), Outcome::Changed(()));
    assert_eq!(bench.cloud.disks_now().len(), 1);
}

#[test]
fn unanswered_create_is_not_given_up_after_an_empty_look_up() {
    let bench = Bench::new();
    bench.cloud.state().stale = 1_000_000;
    bench.cloud.wrong("create_disk", [Lost, NotDone, NotDone]);
    bench.create("one").expect_err("no answer");
    let error = bench.delete("one").expect_err("it may be there");
    assert!(matches!(error, Error::InProgress { .. }), "{error}");
    bench.cloud.wrong("disks", [Refused(CloudErrorKind::Denied)]);
    assert!(!is_final(&bench.delete("one").expect_err("no answer")));
    assert_eq!(bench.cloud.count("delete_disk"), 0);
}

#[test]
fn a_name_is_used_again() {
    let mut bench = Bench::new();
    for round in 1..4 {
        bench.ensure("one").expect("made");
        bench.delete("one").expect("deleted");
        assert_eq!(bench.cloud.count("create_disk"), round, "the next token at once");
    }
    // Another process has to find out that the tokens are used up.
    bench.cloud.age();
    bench.backend = driver(&bench.cloud, bench.clock);
    bench.ensure("one").expect("made");
    assert_eq!(bench.cloud.disks_now().len(), 1);
    // What was made not long ago may be hidden, where a token answers as it did: another disk is made once that cannot be.
    bench.cloud.state().answers_spent = true;
    bench.ensure("two").expect("made");
    bench.delete("two").expect("deleted");
    bench.backend = driver(&bench.cloud, bench.clock);
    let began = bench.clock.now();
    while let Err(error) = bench.ensure("two") {
        assert!(matches!(error, Error::InProgress { .. }), "{error}");
    }
    assert!(bench.clock.now() - began >= Duration::from_secs(300));
    assert_eq!(bench.cloud.disks_now().len(), 2);
}

#[test]
fn two_drivers_at_once_make_one_disk() {
    let bench = Bench::new();
    let other = driver(&bench.cloud, bench.clock);
    std::thread::scope(|scope| {
        let two = scope.spawn(|| other.provision().expect("a controller").create(&spec("one"), &Nothing).expect("made"));
        assert_eq!(bench.create("one").expect("made"), two.join().expect("no panic"));
    });
    assert_eq!(bench.cloud.disks_now().len(), 1);
}

#[test]
fn many_at_once_are_few_questions() {
    const MANY: usize = 300;
    // Hundreds of threads are no fast machine.
    let bench = Bench::with_speed(4);
    let all = |work: &(dyn Fn(&str) + Sync)| {
        std::thread::scope(|scope| {
            for number in 0..MANY {
                scope.spawn(move || work(&format!("v{number}")));
            }
        });
    };
    all(&|name| {
        at_last(|| bench.ensure(name));
    });
    let (made, asked) = (bench.cloud.count("create_disk"), bench.cloud.count("disks"));
    assert_eq!((made, bench.cloud.disks_now().len()), (MANY as u64, MANY));
    println!("FIGURE: cloud frame: {MANY} volumes made, {asked} describes");
    assert!(asked <= MANY as u64 / 6, "{asked} describes for {MANY} volumes");
    for number in 0..MANY {
        let name = format!("n{number}");
        let one = Instance {
            id: node(&name),
            zone: Some("a".to_owned()),
            site: None,
            kind: "m5.large".to_owned(),
            state: MachineState::Running,
            attached: [].into(),
            limit: Some(8),
            cards: [].into(),
        };
        bench.cloud.state().instances.insert(node(&name), one);
    }
    all(&|name| {
        at_last(|| bench.attach(name, &name.replace('v', "n")));
    });
    let (attached, asked) = (bench.cloud.count("attach_disk"), bench.cloud.count("disks") - asked);
    let machines = bench.cloud.count("instances");
    assert_eq!(attached, MANY as u64);
    println!("FIGURE: cloud frame: {MANY} volumes attached, {asked} describes of disks, {machines} describes of machines");
    assert!(asked <= MANY as u64 / 6 && machines <= MANY as u64 / 10, "{asked} and {machines} describes");
    all(&|name| {
        bench.detach(name, &name.replace('v', "n")).expect("detached");
        bench.delete(name).expect("deleted");
    });
    assert_eq!((bench.cloud.count("delete_disk"), bench.cloud.disks_now().len()), (MANY as u64, 0));
}

#[test]
fn a_disk_that_fails_is_deleted_and_reported() {
    let bench = Bench::new();
    bench.cloud.state().fail_disks = true;
    let error = bench.ensure("one").expect_err("it fails");
    assert!(is_final(&error) && error.to_string().contains("vol-0001"), "{error}");
    assert_eq!(bench.cloud.disks_now(), []);
    bench.cloud.wrong("delete_disk", [Refused(CloudErrorKind::Throttled)]);
    let error = bench.ensure("one").expect_err("it fails, and stays");
    assert!(!is_final(&error), "{error}");
    bench.cloud.state().fail_disks = false;
    let error = bench.ensure("one").expect_err("the failed one is deleted first");
    assert!(is_final(&error), "{error}");
    bench.ensure("one").expect("made");
    assert_eq!(bench.cloud.disks_now().len(), 1);
}

#[test]
fn a_refusal_keeps_the_clouds_words_and_its_finality() {
    let bench = Bench::new();
    for (because, is_over) in [
        (CloudErrorKind::Invalid, true),
        (CloudErrorKind::Quota, true),
        (CloudErrorKind::NoCapacity, true),
        (CloudErrorKind::Denied, true),
        (CloudErrorKind::Key, true),
        (CloudErrorKind::Other, true),
        (CloudErrorKind::Throttled, false),
        (CloudErrorKind::Unavailable, false),
    ] {
        bench.cloud.wrong("create_disk", [Refused(because)]);
        let error = bench.create("one").expect_err("refused");
        assert_eq!(is_final(&error), is_over, "{error}");
        assert!(error.to_string().contains("r-1"), "{error}");
        // After a lost answer nothing is over.
        bench.cloud.wrong("create_disk", [NotDone, Refused(because)]);
        assert!(!is_final(&bench.create(&format!("{because:?}")).expect_err("refused")));
    }
    bench.cloud.wrong("disks", [Refused(CloudErrorKind::Denied)]);
    assert!(!is_final(&bench.provision().find(&bench.id("one")).expect_err("no answer")));
    assert_eq!(bench.cloud.disks_now(), []);
}

/// A driver that remembers nothing of what this one did.
fn another(bench: &Bench) -> CloudBackend {
    driver(&bench.cloud, bench.clock)
}

#[test]
fn backup_restored_with_the_volumes_tags_is_left_alone_by_every_call() {
    let mut bench = Bench::new();
    bench.create("one").expect("made");
    let original = bench.cloud.disks_now()[0].id.clone();
    let copy = bench.cloud.restore_backup(&original);
    let is_attached = |bench: &Bench, disk: &DiskId| {
        bench.cloud.disks_now().iter().any(|seen| seen.id == *disk && !seen.attachments.is_empty())
    };
    bench.restart();
    // CreateVolume's repeat, which has only the name.
    assert_eq!(bench.ensure("one").expect("found").id.recorded(), Some(original.0.as_str()));
    bench.attach("one", "i-1").expect("attached");
    assert!(is_attached(&bench, &original) && !is_attached(&bench, &copy));
    Backend::expand(&bench.backend).expect("it can").expand(&bench.id("one"), Bytes(2 * GIB.0)).expect("grown");
    let sizes: Vec<Bytes> = bench.cloud.disks_now().iter().map(|disk| disk.capacity).collect();
    assert_eq!(sizes, [Bytes(2 * GIB.0), GIB]);
    assert_eq!(bench.provision().list(None, 9).expect("listed").len(), 2, "each under its own id");
    bench.detach("one", "i-1").expect("detached");
    assert_eq!(bench.delete("one").expect("deleted"), Outcome::Changed(()));
    for _ in 0..2 {
        let left: Vec<DiskId> = bench.cloud.disks_now().into_iter().map(|disk| disk.id).collect();
        assert_eq!(left.as_slice(), std::slice::from_ref(&copy));
        assert_eq!(bench.delete("one").expect("a repeat"), Outcome::Unchanged(()));
        assert!(matches!(bench.attach("one", "i-1"), Err(Error::NotFound { kind: "volume", .. })));
        bench.restart();
    }
    // The name is made anew, rather than given the copy.
    let anew = bench.create("one").expect("made");
    assert!(![original.0.as_str(), &copy.0].contains(&anew.id.recorded().expect("recorded")), "{}", anew.id);
}

#[test]
fn several_disks_that_could_be_the_volumes_are_refused_and_named() {
    let bench = Bench::new();
    let handle = bench.create("one").expect("made").id;
    let tags = bench.cloud.disks_now()[0].tags.clone();
    bench.cloud.put(|disk| disk.tags = tags.clone());
    let other = another(&bench);
    let (provision, attach) = (other.provision().expect("a controller"), other.attach().expect("a controller"));
    // Those that have only the name: CreateVolume's repeat, and handles without a recorded disk.
    for error in [
        provision.find(&id("one")).expect_err("which?"),
        attach.detach(&id("one"), None).expect_err("which?"),
        provision.delete(&id("one")).expect_err("which?"),
    ] {
        assert!(matches!(error, Error::Unverified { .. }), "{error}");
        assert!(error.to_string().contains("vol-0001, vol-0002") && error.to_string().contains("remove the tag"), "{error}");
    }
    assert_eq!(bench.cloud.disks_now().len(), 2);
    // The handle says which.
    attach.detach(&handle, None).expect("not attached");
    assert!(provision.find(&handle).expect("looked").is_some());
    assert_eq!(provision.delete(&handle).expect("deleted"), Outcome::Changed(()));
    assert_eq!(bench.cloud.disks_now()[0].id.0, "vol-0002");
}

#[test]
fn handle_without_a_recorded_disk_is_served_by_its_tag() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    let other = another(&bench);
    assert!(other.provision().expect("a controller").find(&id("one")).expect("looked").is_some());
    assert_eq!(other.provision().expect("a controller").delete(&id("one")).expect("deleted"), Outcome::Changed(()));
    assert_eq!(bench.cloud.disks_now(), []);
}

#[test]
fn disk_whose_tags_were_changed_is_neither_used_nor_taken_for_gone() {
    for (tag, value) in
        [(CLUSTER, Some("theirs")), (BACKEND, Some("other")), (VOLUME, Some("two")), (CLUSTER, None), (VOLUME, None)]
    {
        let mut bench = Bench::new();
        bench.create("one").expect("made");
        let before = bench.cloud.disks_now().remove(0);
        bench.cloud.with_disk(&before.id, |disk| {
            disk.tags.remove(tag);
            disk.tags.extend(value.map(|value| (tag.to_owned(), value.to_owned())));
        });
        for _ in 0..2 {
            for error in [
                bench.delete("one").expect_err("not ours now"),
                bench.attach("one", "i-1").map(drop).expect_err("not ours now"),
                bench.detach("one", "i-1").map(drop).expect_err("not ours now"),
                Backend::expand(&bench.backend)
                    .expect("it can")
                    .expand(&bench.id("one"), Bytes(GIB.0 * 2))
                    .map(drop)
                    .expect_err("no"),
                bench
                    .backend
                    .snapshots()
                    .expect("it can")
                    .create_snapshot(&member("s", bench.id("one")), &Nothing)
                    .map(drop)
                    .expect_err("no"),
            ] {
                let text = error.to_string();
                assert!(
                    matches!(error, Error::Unverified { .. }) && text.contains("vol-0001") && text.contains("restore"),
                    "{text}"
                );
            }
            bench.restart();
        }
        for action in ["delete_disk", "attach_disk", "detach_disk", "change_disk", "create_snapshot"] {
            assert_eq!(bench.cloud.count(action), 0, "{tag} {value:?}: {action}");
        }
        bench.cloud.with_disk(&before.id, |disk| disk.tags = before.tags.clone());
        assert_eq!(bench.delete("one").expect("ours again"), Outcome::Changed(()));
    }
}

#[test]
fn list_without_an_end_proves_no_absence() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    bench.cloud.state().endless = true;
    let other = another(&bench);
    let provision = other.provision().expect("a controller");
    for error in [
        provision.delete(&id("one")).expect_err("not known"),
        provision.find(&id("one")).map(drop).expect_err("not known"),
        provision.list(None, 9).map(drop).expect_err("not known"),
        other.garbage(&BTreeSet::new()).map(drop).expect_err("not known"),
    ] {
        assert!(!is_final(&error) && error.to_string().contains("NextToken"), "{error}");
    }
    bench.cloud.state().endless = false;
    assert_eq!(provision.delete(&id("one")).expect("deleted"), Outcome::Changed(()));
}

#[test]
fn spent_token_makes_the_next_disk_at_once() {
    let mut bench = Bench::new();
    bench.cloud.state().vanish_disks = true;
    let error = bench.ensure("one").expect_err("it vanishes");
    assert!(!is_final(&error) && error.to_string().contains("deleted it before it was available"), "{error}");
    bench.cloud.state().vanish_disks = false;
    bench.restart();
    let began = bench.clock.now();
    bench.ensure("one").expect("made");
    assert!(bench.clock.now() - began < Duration::from_secs(60), "the cloud says that the token is spent");
    assert_eq!(bench.cloud.disks_now().len(), 1);
}

#[test]
fn volumes_of_others_are_left_alone() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    let theirs = bench.cloud.disks_now()[0].id.clone();
    for (tag, value) in [(CLUSTER, "theirs"), (BACKEND, "other")] {
        bench.cloud.with_disk(&theirs, |disk| disk.tags.insert(tag.to_owned(), value.to_owned()).map_or((), drop));
        assert_eq!(bench.provision().list(None, 10).expect("answered"), []);
        let other = another(&bench);
        assert_eq!(other.provision().expect("a controller").delete(&id("one")).expect("none of ours"), Outcome::Unchanged(()));
        assert_eq!(bench.cloud.disks_now().len(), 1);
    }
    bench.create("two").expect("made");
    let ours = bench.cloud.disks_now()[1].id.clone();
    bench.cloud.with_disk(&ours, |disk| disk.tags.remove(NAME).map_or((), drop));
    let error = bench.provision().find(&bench.id("two")).expect_err("changed by hand");
    assert!(error.to_string().contains("restore them"), "{error}");
}

#[test]
fn zones_are_chosen() {
    let bench = Bench::new();
    let make = |name: &str, requisite: &[&str]| {
        let requisite = requisite.iter().map(|name| zone(name)).collect();
        let spec = VolumeSpec { topology: TopologyRequirement { requisite, preferred: Vec::new() }, ..spec(name) };
        let place = bench.provision().create(&spec, &Nothing).expect("made").topology.remove(0);
        place.segments()["zone"].clone()
    };
    assert_eq!(make("one", &["b"]), "b");
    let names: Vec<String> = (0..6).map(|number| format!("any{number}")).collect();
    let spread: BTreeSet<String> = names.iter().map(|name| make(name, &[])).collect();
    assert_eq!(spread.len(), 2, "{spread:?}");
    let asked = |name: &str| crate::backend::CapacityQuery { topology: Some(zone(name)), ..Default::default() };
    assert!(bench.provision().capacity(&asked("a")).expect("answered").available > GIB);
    assert_eq!(bench.provision().capacity(&asked("z")).expect("answered").available, Bytes(0));
}

#[test]
fn lists_are_paged_by_our_ids_and_fetched_once() {
    let bench = Bench::new();
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        bench.create(name).expect("made");
    }
    let before = bench.cloud.count("disks");
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = bench.provision().list(after.as_ref(), 2).expect("answered");
        after = page.last().map(|last| last.id.clone());
        let is_last = page.len() < 2;
        seen.extend(page.into_iter().map(|volume| volume.name));
        if is_last {
            break;
        }
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e", "f", "g"]);
    assert_eq!(bench.cloud.count("disks") - before, 3, "three pages of the cloud's, the first of them empty, once");
    bench.delete("a").expect("deleted");
    assert_eq!(bench.provision().list(None, 1).expect("answered")[0].name, "b");
}

#[test]
fn health_tells_what_is_wrong() {
    let bench = Bench::new();
    let health = bench.backend.health().expect("a controller");
    bench.create("one").expect("made");
    assert_eq!(health.storage_health().expect("asked"), []);
    assert_eq!(health.volume_health(&bench.id("one")).expect("asked"), []);
    let disk = bench.cloud.disks_now()[0].id.clone();
    bench.cloud.with_disk(&disk, |disk| disk.state = DiskState::Failed);
    let reported = health.unhealthy(None, 9).expect("asked");
    assert_eq!((reported[0].0.clone(), reported[0].1[0].severity), (bench.id("one"), Severity::DataLoss));
    bench.cloud.wrong("disks", [Refused(CloudErrorKind::Denied)]);
    health.volume_health(&bench.id("one")).expect_err("no answer");
    assert_eq!(health.storage_health().expect("remembered")[0].reason, "CloudUnreachable");
    assert!(bench.backend.probe().is_err());
}

#[test]
fn disk_whose_id_was_answered_is_never_called_missing() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    let disk = bench.cloud.disks_now()[0].id.clone();
    bench.cloud.with_disk(&disk, |disk| disk.state = DiskState::Creating);
    let error = bench.provision().find(&bench.id("one")).expect_err("it is being restored");
    assert!(matches!(&error, Error::InProgress { .. }), "{error}");
    bench.cloud.with_disk(&disk, |disk| disk.state = DiskState::Failed);
    let error = bench.provision().find(&bench.id("one")).expect_err("it is lost");
    assert!(matches!(&error, Error::Unverified { reason, .. } if reason.contains(&disk.0)), "{error}");
    bench.cloud.with_disk(&disk, |disk| disk.state = DiskState::Deleting);
    assert_eq!(bench.provision().find(&bench.id("one")).expect("looked"), None);
}

#[test]
fn garbage_is_what_no_handle_names() {
    let bench = Bench::new();
    for name in ["one", "two", "old"] {
        bench.create(name).expect("made");
    }
    bench.attach("two", "i-1").expect("attached");
    let gone = id("one").record("vol-0999").expect("recorded");
    // One handle has no disk recorded, of an earlier driver.
    let handles = [bench.id("one"), id("old"), gone.clone()].map(|id| id.to_string());
    let handles: BTreeSet<String> = handles.into_iter().chain(["cloud:gone".to_owned(), "other:x".to_owned()]).collect();
    let found = bench.backend.garbage(&handles).expect("looked");
    assert_eq!(found.disks.len(), 1);
    let two = Some(bench.id("two").to_string());
    assert_eq!((&found.disks[0].handle, found.disks[0].attached.len()), (&two, 1));
    assert_eq!(found.missing, [gone.to_string(), "cloud:gone".to_owned()]);
    let refused = |id: &VolumeId| bench.backend.delete_garbage(id, &handles).expect_err("refused").to_string();
    for named in [bench.id("one"), id("one"), bench.id("old"), id("old")] {
        assert!(refused(&named).contains("PersistentVolume"), "{named}");
    }
    assert!(refused(&bench.id("two")).contains("i-1"));
    assert!(refused(&id("three")).contains("does not exist"));
    bench.detach("two", "i-1").expect("detached");
    bench.backend.delete_garbage(&bench.id("two"), &handles).expect("deleted");
    assert_eq!(bench.cloud.disks_now().len(), 2);
    // A restored backup is reported, and may be deleted by its own id only.
    let copy = bench.cloud.restore_backup(&bench.cloud.disks_now()[0].id);
    let found = bench.backend.garbage(&handles).expect("looked");
    assert!(
        found.disks.len() == 1 && found.disks[0].what.contains(&copy.0) && found.disks[0].what.contains("several"),
        "{found:?}"
    );
    let copy = id("one").record(&copy.0).expect("recorded");
    bench.backend.delete_garbage(&copy, &handles).expect("deleted");
    assert_eq!(bench.cloud.disks_now().len(), 2);
    let mut deleted = bench.cloud.disks_now();
    deleted.iter_mut().for_each(|disk| disk.state = DiskState::Deleted);
    let owner = Owner { backend: backend_name(), cluster: "ours".to_owned(), longest_value: 256, existing: None };
    assert_eq!(compare(&owner, &handles, &deleted, &[]).missing.len(), 4);
}

#[test]
fn backup_of_a_volume_by_another_service_is_no_garbage() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    let handles = BTreeSet::from([bench.id("one").to_string()]);
    bench.backend.snapshots().expect("it can").create_snapshot(&member("s", bench.id("one")), &Nothing).expect("taken");
    assert_eq!(bench.backend.garbage(&handles).expect("looked").snapshots.len(), 1);
    // Data Lifecycle Manager and AWS Backup copy a disk's tags to the snapshots that they take of it.
    let snapshot = bench.cloud.snapshots_now().remove(0).id;
    bench.cloud.retag(&snapshot, &bench.cloud.disks_now()[0].tags.clone());
    assert_eq!(bench.backend.garbage(&handles).expect("looked").snapshots, []);
}

#[test]
fn quota_refusal_after_the_disk_was_made_finds_the_disk() {
    let mut bench = Bench::new();
    bench.cloud.wrong("create_disk", [Lost, NotDone, NotDone]);
    bench.create("one").expect_err("no answer");
    bench.restart();
    // The repeat's look-up did not show it yet; now the quota is used up, by this very disk.
    for because in [CloudErrorKind::Quota, CloudErrorKind::NoCapacity] {
        bench.cloud.wrong("create_disk", [Refused(because)]);
        bench.create("one").expect("it is there");
    }
    assert_eq!(bench.cloud.disks_now().len(), 1);
}

#[test]
fn quota_refusal_is_not_final_where_the_disk_cannot_be_looked_for() {
    let bench = Bench::new();
    bench.cloud.wrong("create_disk", [Refused(CloudErrorKind::Quota)]);
    bench.cloud.wrong("disks", [Refused(CloudErrorKind::Unavailable); 100]);
    let error = bench.create("one").expect_err("refused");
    assert!(!is_final(&error) && error.to_string().contains("Fake.Quota"), "{error}");
}

#[test]
fn standby_that_takes_over_does_not_believe_its_first_empty_look_up() {
    let mut bench = Bench::new();
    // Up for an hour, and has never acted.
    let standby = standby(Arc::clone(&bench.cloud) as _, bench.clock);
    bench.cloud.state().stale = 4;
    bench.cloud.state().delays.create = Some(Duration::ZERO);
    bench.cloud.wrong("create_disk", [Lost, NotDone, NotDone]);
    bench.create("one").expect_err("the leader is killed before the answer");
    bench.backend = standby;
    assert_eq!(bench.delete("one").expect("deleted"), Outcome::Changed(()));
    assert_eq!(bench.cloud.disks_now(), []);
}

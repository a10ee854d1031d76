//! Volumes are bound to nodes, whatever the cloud does.

use std::time::SystemTime;

use super::super::{AttachmentState, CloudErrorKind};
use super::fake::Wrong::{Lost, NotDone, Refused};
use super::*;

fn bench() -> Bench {
    let bench = Bench::new();
    for name in ["one", "two"] {
        bench.create(name).expect("made");
    }
    bench
}

#[test]
fn attached_and_detached() {
    let bench = bench();
    assert_eq!(bench.attach("one", "i-1").expect("attached"), Outcome::Changed("/dev/xvda".to_owned()));
    assert_eq!(bench.attach("one", "i-1").expect("a repeat"), Outcome::Unchanged("/dev/xvda".to_owned()));
    assert_eq!(bench.attach("two", "i-1").expect("attached"), Outcome::Changed("/dev/xvdb".to_owned()));
    assert_eq!(bench.attached("one"), ["i-1"]);
    let error = bench.attach("one", "i-2").expect_err("elsewhere");
    assert!(matches!(&error, Error::InUse { by, .. } if by.contains("i-1")), "{error}");
    assert!(matches!(bench.delete("one"), Err(Error::InUse { .. })));
    let attach = bench.backend.attach().expect("a controller");
    let otherwise = attach.attach(&bench.id("one"), &node("i-1"), AccessMode::SingleNodeWriter, true);
    assert!(matches!(otherwise, Err(Error::Conflict { .. })));
    let shared = attach.attach(&bench.id("one"), &node("i-2"), AccessMode::MultiNodeMultiWriter, false);
    assert!(matches!(shared, Err(Error::Unsupported { .. })));
    assert_eq!(bench.detach("one", "i-1").expect("detached"), Outcome::Changed(()));
    assert_eq!(bench.detach("one", "i-1").expect("a repeat"), Outcome::Unchanged(()));
    assert_eq!(bench.detach("none", "i-1").expect("no such volume"), Outcome::Unchanged(()));
    assert_eq!(attach.detach(&bench.id("two"), None).expect("from all"), Outcome::Changed(()));
    assert_eq!(bench.attached("two"), [""; 0]);
    bench.attach("one", "i-2").expect("free");
    assert!(matches!(bench.attach("two", "i-9"), Err(Error::NotFound { kind: "node", .. })));
    assert!(matches!(bench.attach("none", "i-1"), Err(Error::NotFound { kind: "volume", .. })));
}

#[test]
fn a_lost_answer_is_found_out_about() {
    for wrong in [Lost, NotDone] {
        let mut bench = bench();
        bench.cloud.wrong("attach_disk", [wrong]);
        if let Err(error) = bench.attach("one", "i-1") {
            assert!(!is_final(&error), "{error}");
            bench.restart();
            bench.attach("one", "i-1").expect("attached");
        }
        assert_eq!(bench.attached("one"), ["i-1"]);
        bench.cloud.wrong("detach_disk", [wrong]);
        if let Err(error) = bench.detach("one", "i-1") {
            assert!(!is_final(&error), "{error}");
            bench.detach("one", "i-1").expect("detached");
        }
        assert_eq!(bench.attached("one"), [""; 0]);
    }
}

#[test]
fn a_killed_drivers_attachment_is_waited_for_and_undone() {
    let mut bench = bench();
    bench.cloud.state().delays.attach = None;
    let error = bench.attach("one", "i-1").expect_err("it takes for ever");
    assert!(matches!(error, Error::InProgress { .. }), "{error}");
    bench.restart();
    assert!(matches!(bench.attach("one", "i-1"), Err(Error::InProgress { .. })));
    assert_eq!(bench.cloud.count("attach_disk"), 1, "it is waited for, not begun again");
    // The attachment is not shown any more, but a young driver knows that it may be there.
    bench.cloud.state().delays.attach = Some(Duration::ZERO);
    bench.detach("one", "i-1").expect("detached");
    bench.cloud.state().stale = 1;
    bench.restart();
    bench.cloud.wrong("attach_disk", [Lost]);
    bench.attach("one", "i-1").expect("attached");
    bench.restart();
    bench.cloud.state().stale = 3;
    bench.provision().find(&bench.id("one")).expect("seen");
    assert_eq!(bench.detach("one", "i-1").expect("detached"), Outcome::Changed(()));
    let disks = bench.cloud.disks_now();
    assert!(disks[0].attachments.iter().all(|at| at.state == AttachmentState::Detaching));
}

#[test]
fn no_name_is_given_twice() {
    let bench = Bench::new();
    let names: Vec<String> = (0..8).map(|number| format!("v{number}")).collect();
    for name in names.iter().chain([&"more".to_owned()]) {
        bench.create(name).expect("made");
    }
    bench.cloud.state().cursed.insert("/dev/xvdc".to_owned());
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| bench.attach(name, "i-1").expect("attached"));
        }
    });
    let disks = bench.cloud.disks_now();
    let devices: std::collections::BTreeSet<&str> =
        disks.iter().flat_map(|disk| &disk.attachments).map(|at| at.device.as_str()).collect();
    assert_eq!(devices.len(), 8);
    assert!(!devices.contains("/dev/xvdc"));
    assert!(bench.cloud.count("attach_disk") <= 9, "the bad name is tried once");
    assert!(bench.cloud.count("instances") <= 3, "{} looks at one node", bench.cloud.count("instances"));
    let error = bench.attach("more", "i-1").expect_err("full");
    assert!(matches!(&error, Error::NodeFull { reason, .. } if reason.contains("m5.large")), "{error}");
    assert_eq!(bench.cloud.count("attach_disk"), 9);
    bench.detach("v3", "i-1").expect("detached");
    bench.attach("more", "i-1").expect("room");
    assert_eq!(bench.backend.attach().expect("a controller").limit(&node("i-1")).expect("reported"), Some(8));
}

#[test]
fn disk_at_a_site_is_made_and_attached_there_only() {
    let bench = Bench::new();
    bench.cloud.state().instances.get_mut(&node("i-2")).expect("a machine").site = Some("outpost".to_owned());
    let make = |name: &str, requisite: Vec<Topology>, preferred: Vec<Topology>| {
        let spec = VolumeSpec { topology: TopologyRequirement { requisite, preferred }, ..spec(name) };
        let made = bench.provision().create(&spec, &Nothing).expect("made");
        bench.handles.lock().expect("no panic").insert(name.to_owned(), made.id.clone());
        made.topology.into_iter().next().expect("a place")
    };
    let there = || at("a", Some("outpost"));
    assert_eq!(make("there", vec![zone("a"), there()], vec![there(), zone("a")]), there());
    assert_eq!(make("only", vec![there()], Vec::new()), there());
    // By chance nobody gets there, whatever its digest.
    for number in 0..8 {
        assert_eq!(make(&format!("any{number}"), vec![there(), zone("a")], Vec::new()), zone("a"));
    }
    bench.attach("there", "i-2").expect("there");
    for (name, machine) in [("only", "i-1"), ("any1", "i-2")] {
        let error = bench.attach(name, machine).expect_err("elsewhere");
        assert!(matches!(&error, Error::Invalid { field: "node_id", .. } if error.to_string().contains("outpost")), "{error}");
    }
    assert_eq!(bench.cloud.count("attach_disk"), 1);
}

/// What publish_context says.
fn known_blank(bench: &Bench, name: &str, on: &str) -> bool {
    let attach = bench.backend.attach().expect("a controller");
    let outcome = attach.attach(&bench.id(name), &node(on), AccessMode::SingleNodeWriter, false).expect("attached");
    outcome.into_inner().contains_key("madeEmpty")
}

fn blank_tag(bench: &Bench) -> String {
    bench.cloud.disks_now()[0].tags["longshore.dev/blank"].clone()
}

#[test]
fn disk_is_known_to_be_blank_at_its_first_attachment_only() {
    let mut bench = Bench::new();
    bench.create("one").expect("made");
    assert_eq!(blank_tag(&bench), "never-attached");
    // As the cloud throttles: nothing was attached.
    bench.cloud.wrong("attach_disk", [Refused(CloudErrorKind::Throttled)]);
    assert!(!is_final(&bench.attach("one", "i-1").expect_err("throttled")));
    assert!(blank_tag(&bench).starts_with("attaching-"), "before the request that attaches it");
    assert!(known_blank(&bench, "one", "i-1"));
    assert!(known_blank(&bench, "one", "i-1"), "the answer may have been lost");
    assert_eq!(bench.cloud.count("tag_disk"), 1);
    bench.detach("one", "i-1").expect("detached");
    // Tags that are shown may be old.
    let id = bench.cloud.disks_now()[0].id.clone();
    let never = |disk: &mut Disk| drop(disk.tags.insert("longshore.dev/blank".to_owned(), "never-attached".to_owned()));
    bench.cloud.with_disk(&id, never);
    assert!(!known_blank(&bench, "one", "i-1"), "a pod has had it");
    bench.detach("one", "i-1").expect("detached");
    // Nor is it for another process, however its tags are shown while it is young.
    bench.restart();
    bench.cloud.with_disk(&id, never);
    assert!(!known_blank(&bench, "one", "i-2"), "what a process before did may not be shown yet");
    bench.detach("one", "i-2").expect("detached");
    bench.restart();
    assert!(!known_blank(&bench, "one", "i-2"));
    assert_eq!(blank_tag(&bench), "used");
}

#[test]
fn attachment_by_others_ends_what_is_known_of_a_blank_disk() {
    let bench = bench();
    // Another process attached it, and detached it again, after this one was refused.
    bench.cloud.wrong("attach_disk", [Refused(CloudErrorKind::Throttled)]);
    bench.attach("one", "i-1").expect_err("throttled");
    let id = bench.cloud.disks_now().into_iter().find(|disk| disk.tags["longshore.dev/name"] == "one").expect("a disk").id;
    let other = |disk: &mut Disk| drop(disk.tags.insert("longshore.dev/blank".to_owned(), "attaching-other".to_owned()));
    bench.cloud.with_disk(&id, other);
    assert!(!known_blank(&bench, "one", "i-1"));
    // An administrator moved it by hand, and back.
    assert!(known_blank(&bench, "two", "i-1"));
    let id = bench.cloud.disks_now().into_iter().find(|disk| disk.tags["longshore.dev/name"] == "two").expect("a disk").id;
    bench.cloud.with_disk(&id, |disk| disk.attachments[0].since = Some(SystemTime::UNIX_EPOCH));
    assert!(!known_blank(&bench, "two", "i-1"));
}

/// It would be written to while its tag says that it is blank, to the next process too.
#[test]
fn disk_whose_tag_cannot_be_changed_is_not_attached() {
    let bench = bench();
    for because in [CloudErrorKind::Throttled, CloudErrorKind::Unavailable] {
        bench.cloud.wrong("tag_disk", [Refused(because)]);
        assert!(!is_final(&bench.attach("one", "i-1").expect_err("not tagged")));
        assert_eq!(bench.cloud.count("attach_disk"), 0, "the tag first");
    }
    bench.cloud.wrong("tag_disk", [Refused(CloudErrorKind::Denied)]);
    let error = bench.attach("one", "i-1").expect_err("a role without the right");
    let text = error.to_string();
    assert!(matches!(error, Error::Denied { .. }) && text.contains("allow tag_disk") && text.contains("blank"), "{text}");
    assert_eq!(bench.cloud.count("attach_disk"), 0);
    assert!(known_blank(&bench, "one", "i-1"), "the right was given");
    // What is used already needs no other tag.
    bench.detach("one", "i-1").expect("detached");
    bench.cloud.wrong("tag_disk", [Refused(CloudErrorKind::Denied)]);
    assert!(!known_blank(&bench, "one", "i-1"));
}

#[test]
fn disks_are_spread_over_the_cards_of_a_machine() {
    let bench = Bench::new();
    let names: Vec<String> = (0..7).map(|number| format!("v{number}")).collect();
    for name in &names {
        bench.create(name).expect("made");
    }
    // The root disk is on the first.
    bench.cloud.state().instances.get_mut(&node("i-1")).expect("a machine").cards = [(0, 1), (1, 0), (2, 0)].into();
    let on_cards = || {
        let state = bench.cloud.state();
        state.cards.values().fold([0; 3], |mut cards, card| {
            cards[*card as usize] += 1;
            cards
        })
    };
    std::thread::scope(|scope| {
        for name in &names[..5] {
            scope.spawn(|| bench.attach(name, "i-1").expect("attached"));
        }
    });
    assert_eq!(on_cards(), [1, 2, 2]);
    // A card may be full before the machine is.
    bench.cloud.state().card_limit = Some(2);
    let error = bench.attach("v5", "i-1").expect_err("each card has two");
    assert!(matches!(error, Error::NodeFull { .. }), "{error}");
    bench.detach("v4", "i-1").expect("detached");
    bench.cloud.state().card_limit = Some(3);
    bench.attach("v5", "i-1").expect("room");
    assert_eq!(on_cards(), [1, 2, 2]);
    bench.cloud.wrong("attach_disk", [Refused(CloudErrorKind::InstanceFull)]);
    bench.attach("v6", "i-1").expect("to the next card");
    assert_eq!(on_cards(), [1, 3, 2]);
}

#[test]
fn a_refusal_to_attach_has_its_meaning() {
    let bench = bench();
    for (because, is_over) in [
        (CloudErrorKind::Denied, true),
        (CloudErrorKind::Throttled, false),
        (CloudErrorKind::Unavailable, false),
        (CloudErrorKind::Other, true),
    ] {
        bench.cloud.wrong("attach_disk", [Refused(because)]);
        let error = bench.attach("one", "i-1").expect_err("refused");
        assert_eq!(is_final(&error), is_over, "{error}");
    }
    bench.cloud.wrong("attach_disk", [Refused(CloudErrorKind::InstanceFull)]);
    assert!(matches!(bench.attach("one", "i-1"), Err(Error::NodeFull { .. })));
    bench.cloud.wrong("attach_disk", [Refused(CloudErrorKind::NoInstance)]);
    assert!(matches!(bench.attach("one", "i-1"), Err(Error::NotFound { kind: "node", .. })));
    // In use, says the cloud, but shows nothing.
    bench.cloud.wrong("attach_disk", [Refused(CloudErrorKind::InUse)]);
    assert!(!is_final(&bench.attach("one", "i-1").expect_err("in use")));
    bench.cloud.with_disk(&bench.cloud.disks_now()[1].id.clone(), |disk| disk.zones = ["b".to_owned()].into());
    assert!(matches!(bench.attach("two", "i-1"), Err(Error::Invalid { field: "node_id", .. })));
    bench.attach("one", "i-1").expect("attached");
}

#[test]
fn stuck_attachment_is_reported_and_another_device_name_used() {
    let bench = bench();
    bench.cloud.state().delays.attach = None;
    let mut last = String::new();
    for _ in 0..7 {
        let error = bench.attach("one", "i-1").expect_err("stuck");
        assert!(!is_final(&error), "{error}");
        last = error.to_string();
    }
    assert!(last.contains("has been attaching") && last.contains("/dev/xvda"), "{last}");
    let health = bench.backend.health().expect("a controller").volume_health(&bench.id("one")).expect("asked");
    assert_eq!(health[0].reason, "AttachmentStuck");
    bench.cloud.state().delays.attach = Some(Duration::ZERO);
    bench.detach("one", "i-1").expect("detached");
    assert_eq!(bench.attach("one", "i-1").expect("attached"), Outcome::Changed("/dev/xvdb".to_owned()));
    bench.cloud.state().delays.detach = None;
    for _ in 0..7 {
        let error = bench.detach("one", "i-1").expect_err("stuck");
        assert!(!is_final(&error), "{error}");
        last = error.to_string();
    }
    assert!(last.contains("does not let go of /dev/xvdb"), "{last}");
    assert_eq!(bench.cloud.count("detach_disk"), 2, "it is waited for, not begun again");
    let disk = bench.cloud.disks_now()[0].id.clone();
    bench.cloud.with_disk(&disk, |disk| disk.attachments[0].state = AttachmentState::Busy);
    let error = bench.detach("one", "i-1").expect_err("busy");
    assert!(!is_final(&error) && error.to_string().contains("still uses"), "{error}");
}

#[test]
fn accepted_detach_from_machine_that_hibernates_is_in_progress_with_the_remedy() {
    let bench = bench();
    bench.attach("one", "i-1").expect("attached");
    bench.cloud.state().delays.detach = None;
    bench.cloud.state().instances.get_mut(&node("i-1")).expect("a machine").state = MachineState::Hibernated;
    for result in [bench.detach("one", "i-1").map(drop), bench.attach("one", "i-2").map(drop)] {
        let error = result.expect_err("it continues once the machine is started");
        assert!(matches!(&error, Error::InProgress { reason, .. } if reason.contains("hibernated; start it")), "{error}");
    }
}

#[test]
fn a_node_that_is_gone_holds_nothing() {
    let bench = bench();
    bench.attach("one", "i-1").expect("attached");
    bench.attach("two", "i-1").expect("attached");
    bench.cloud.state().instances.remove(&node("i-1"));
    assert_eq!(bench.detach("one", "i-1").expect("gone with its node"), Outcome::Changed(()));
    // It has begun to be detached, and its machine is gone before the end.
    let disk = bench.cloud.disks_now()[1].id.clone();
    bench.cloud.with_disk(&disk, |disk| disk.attachments[0].state = AttachmentState::Detaching);
    assert_eq!(bench.detach("two", "i-1").expect("gone with its node"), Outcome::Changed(()));
    // The cloud has come to know, too.
    bench.cloud.with_disk(&disk, |disk| {
        disk.attachments.clear();
        disk.state = super::super::DiskState::Available;
    });
    bench.attach("two", "i-2").expect("free");
}

#[test]
fn detached_is_what_the_cloud_says() {
    let bench = bench();
    for because in [CloudErrorKind::NotAttached, CloudErrorKind::NotFound, CloudErrorKind::NoInstance] {
        bench.attach("one", "i-1").expect("attached");
        bench.cloud.wrong("detach_disk", [Refused(because)]);
        assert_eq!(bench.detach("one", "i-1").expect("it is not"), Outcome::Changed(()), "{because:?}");
    }
    bench.cloud.wrong("disks", [Refused(CloudErrorKind::Unavailable)]);
    assert!(!is_final(&bench.detach("one", "i-1").expect_err("nobody knows")));
    // What this driver attached a moment ago may not be shown: the cloud is asked, not believed.
    bench.detach("one", "i-1").expect("detached");
    bench.attach("one", "i-1").expect("attached");
    let before = bench.cloud.count("detach_disk");
    bench.cloud.with_disk(&bench.cloud.disks_now()[0].id.clone(), |disk| disk.attachments.clear());
    assert_eq!(bench.detach("one", "i-1").expect("asked"), Outcome::Unchanged(()));
    assert_eq!(bench.cloud.count("detach_disk"), before + 1);
}

/// Only what the cloud says about the disk is explained by its machine's state.
#[test]
fn detach_that_was_not_sent_or_not_allowed_is_not_answered_as_done() {
    let bench = bench();
    bench.attach("one", "i-1").expect("attached");
    // As described a moment too early, or with the rights of another account.
    let machine = bench.cloud.state().instances.remove(&node("i-1")).expect("a machine");
    for because in [
        CloudErrorKind::Throttled,
        CloudErrorKind::Unavailable,
        CloudErrorKind::Denied,
        CloudErrorKind::Key,
        CloudErrorKind::TooSoon,
    ] {
        bench.cloud.wrong("detach_disk", [Refused(because)]);
        let error = bench.detach("one", "i-1").expect_err("not done");
        assert!(error.to_string().contains(&format!("Fake.{because:?}")), "{error}");
    }
    assert_eq!(bench.attached("one"), ["i-1"]);
    bench.cloud.state().instances.insert(node("i-1"), machine);
    assert_eq!(bench.detach("one", "i-1").expect("detached"), Outcome::Changed(()));
}

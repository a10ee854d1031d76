//! Requests are over once their operations are, whichever process began them.

use super::super::{CloudErrorKind, DiskId, Refusal};
use super::fake::Wrong::{Lost, Refused};
use super::fake::refusal;
use super::identity::Site;
use super::stand_in::StandIn;
use super::*;

impl Site {
    pub fn attach(&self, volume: &VolumeId, to: &str) -> Result<Outcome<BTreeMap<String, String>>> {
        self.backend.attach().expect("a controller").attach(volume, &node(to), AccessMode::SingleNodeWriter, false)
    }

    pub fn detach(&self, volume: &VolumeId, from: &str) -> Result<Outcome<()>> {
        self.backend.attach().expect("a controller").detach(volume, Some(&node(from)))
    }

    /// The operations of the next such request end so.
    pub fn fail_at_end(&self, action: &'static str, because: CloudErrorKind) {
        let maybe_done = because == CloudErrorKind::Unavailable;
        let refusal = Refusal { maybe_done, ..refusal(action, because) };
        self.cloud.state().fail_at_end.entry(action).or_default().push_back(refusal);
    }

    pub fn nodes_of(&self, disk: &DiskId) -> Vec<NodeId> {
        let disks = self.cloud.disks_now().into_iter().filter(|seen| seen.id == *disk);
        disks.flat_map(|disk| disk.attachments).map(|place| place.instance).collect()
    }
}

#[test]
fn list_says_who_has_each_volume_where_a_look_up_would_be_a_request_for_each() {
    let site = Site::new(StandIn::new());
    let [one, two] = ["one", "two"].map(|name| site.ensure(&spec(name)).expect("made").id);
    site.attach(&one, "i-1").expect("attached");
    let before = site.cloud.count("disks");
    let listed = site.provision().list_published(None, 10).expect("listed").into_iter();
    let nodes: BTreeMap<VolumeId, _> = listed.map(|(volume, nodes)| (volume.id, nodes.map(Vec::from_iter))).collect();
    assert_eq!(nodes, [(one, Some(vec![node("i-1")])), (two, Some(vec![]))].into());
    assert_eq!(site.cloud.count("disks"), before + 1);
    // Where hundreds are one request, that is more recent than the list.
    let bench = Bench::new();
    bench.create("one").expect("made");
    assert_eq!(bench.provision().list_published(None, 10).expect("listed")[0].1, None);
}

#[test]
fn operation_that_fails_at_its_end_is_reported_as_a_refusal_is() {
    for (because, is_over) in [
        (CloudErrorKind::Quota, true),
        (CloudErrorKind::NoCapacity, true),
        (CloudErrorKind::Denied, true),
        (CloudErrorKind::Throttled, false),
        // Cancelled, or without a code.
        (CloudErrorKind::Unavailable, false),
    ] {
        let site = Site::new(StandIn::new());
        site.fail_at_end("create_disk", because);
        if because == CloudErrorKind::Unavailable {
            // It is sent again: the name makes no second disk.
            site.ensure(&spec("one")).expect("made");
        } else {
            let error = site.ensure(&spec("one")).expect_err("its operation failed");
            assert_eq!((is_final(&error), site.cloud.disks_now().len()), (is_over, 0), "{error}");
            assert!(error.to_string().contains("r-1"), "{error}");
        }
        let made = site.ensure(&spec("one")).expect("made");
        site.fail_at_end("delete_disk", because);
        match site.provision().delete(&made.id) {
            Ok(_) => assert_eq!(because, CloudErrorKind::Unavailable),
            Err(error) => {
                assert!(error.to_string().contains("r-1"), "{error}");
                assert_eq!(site.provision().delete(&made.id).expect("deleted"), Outcome::Changed(()));
            }
        }
        assert_eq!(site.cloud.disks_now(), []);
    }
    let site = Site::new(StandIn::new());
    let made = site.ensure(&spec("one")).expect("made").id;
    for (because, is_full) in [(CloudErrorKind::InstanceFull, true), (CloudErrorKind::Other, false)] {
        site.fail_at_end("attach_disks", because);
        let error = site.attach(&made, "i-1").expect_err("its operation failed");
        assert_eq!(matches!(error, Error::NodeFull { .. }), is_full, "{error}");
    }
    site.attach(&made, "i-1").expect("attached");
    site.fail_at_end("detach_disks", CloudErrorKind::NotAttached);
    site.detach(&made, "i-1").expect("it is not");
}

#[test]
fn poll_that_is_refused_ends_nothing() {
    let site = Site::new(StandIn::new());
    site.cloud.wrong("operations", [CloudErrorKind::Throttled, CloudErrorKind::Denied, CloudErrorKind::Unavailable].map(Refused));
    site.ensure(&spec("one")).expect("made, and looked at again");
    assert_eq!((site.cloud.count("create_disk"), site.cloud.disks_now().len()), (1, 1));
}

#[test]
fn operation_that_does_not_end_is_waited_for_by_the_next_process_too() {
    let mut site = Site::new(StandIn::new());
    site.cloud.state().holds = true;
    for _ in 0..2 {
        let error = site.ensure(&spec("one")).expect_err("it takes for ever");
        assert!(matches!(error, Error::InProgress { .. }), "{error}");
        site.restart();
    }
    site.cloud.state().holds = false;
    site.cloud.end_all();
    let made = site.ensure(&spec("one")).expect("made").id;
    assert_eq!(site.cloud.count("create_disk"), 1);
    site.cloud.state().holds = true;
    for _ in 0..2 {
        let error = site.provision().delete(&made).expect_err("it takes for ever");
        assert!(matches!(&error, Error::InProgress { reason, .. } if reason.contains("operation")), "{error}");
        site.restart();
    }
    // It was not deleted after all: the next call finds that, and deletes it.
    site.fail_at_end("delete_disk", CloudErrorKind::Other);
    site.cloud.end_all();
    site.cloud.state().holds = false;
    assert_eq!(site.provision().delete(&made).expect("deleted"), Outcome::Changed(()));
    assert_eq!((site.cloud.count("delete_disk"), site.cloud.disks_now().len()), (2, 0));
}

#[test]
fn disk_that_is_still_being_made_is_deleted_once_it_is_there() {
    let mut site = Site::new(StandIn::new());
    site.cloud.state().holds = true;
    assert!(matches!(site.ensure(&spec("one")), Err(Error::InProgress { .. })));
    site.restart();
    // CreateVolume was never answered, and the claim is gone.
    assert!(matches!(site.provision().delete(&id("one")), Err(Error::InProgress { .. })));
    assert_eq!(site.cloud.count("delete_disk"), 0);
    site.cloud.end_all();
    site.cloud.state().holds = false;
    assert_eq!(site.provision().delete(&id("one")).expect("deleted"), Outcome::Changed(()));
    assert_eq!(site.cloud.disks_now(), []);
}

/// A detachment that timed out came to its end minutes later, and removed the attachment that came after it
/// (gcp-compute-persistent-disk-csi-driver issue 965).
#[test]
fn late_detach_does_not_remove_the_next_attachment() {
    for is_restarted in [false, true] {
        let mut site = Site::new(StandIn::new());
        let made = site.ensure(&spec("one")).expect("made").id;
        let disk = DiskId(made.recorded().expect("recorded").to_owned());
        site.attach(&made, "i-1").expect("attached");
        site.cloud.state().holds = true;
        assert!(matches!(site.detach(&made, "i-1"), Err(Error::InProgress { .. })));
        if is_restarted {
            site.restart();
        }
        // The pod comes back to the node. Neither this nor a repeat of the detachment may be sent.
        let error = site.attach(&made, "i-1").expect_err("barred");
        assert!(matches!(&error, Error::InProgress { reason, .. } if reason.contains("detach_disks on node i-1")), "{error}");
        assert!(matches!(site.detach(&made, "i-1"), Err(Error::InProgress { .. })));
        site.cloud.wrong("operations", [Refused(CloudErrorKind::Denied)]);
        assert!(!is_final(&site.attach(&made, "i-1").expect_err("unknown")));
        assert_eq!((site.cloud.count("attach_disks"), site.cloud.count("detach_disks")), (1, 1));
        site.cloud.end_all();
        site.cloud.state().holds = false;
        assert_eq!(site.nodes_of(&disk), [], "the late end");
        assert!(matches!(site.attach(&made, "i-1"), Ok(Outcome::Changed(_))));
        site.cloud.end_all();
        assert_eq!(site.nodes_of(&disk), [node("i-1")]);
    }
}

#[test]
fn snapshot_that_is_saved_for_hours_bars_neither_attachment_nor_deletion() {
    let mut site = Site::new(StandIn::new());
    let made = site.ensure(&spec("one")).expect("made").id;
    site.cloud.state().holds_only = Some("create_snapshot");
    let snapshots = site.backend.snapshots().expect("a controller");
    snapshots.create_snapshot(&member("s", made.clone()), &Nothing).ok();
    for is_restarted in [false, true] {
        if is_restarted {
            site.restart();
        }
        assert!(matches!(site.attach(&made, "i-1"), Ok(Outcome::Changed(_))));
        assert_eq!(site.detach(&made, "i-1").expect("detached"), Outcome::Changed(()));
    }
    assert_eq!(site.provision().delete(&made).expect("deleted"), Outcome::Changed(()));
}

/// A disk that a person moved and brought back is attached as it was, and used.
#[test]
fn attachment_whose_time_is_not_known_is_reported_as_the_first_once() {
    let site = Site::new(StandIn::new());
    let made = site.ensure(&spec("one")).expect("made").id;
    let is_first = || site.attach(&made, "i-1").expect("attached").into_inner().contains_key("madeEmpty");
    assert!(is_first());
    assert!(!is_first());
}

#[test]
fn attachment_of_a_killed_driver_is_detached_once_it_has_come() {
    let mut site = Site::new(StandIn::new());
    let made = site.ensure(&spec("one")).expect("made").id;
    let disk = DiskId(made.recorded().expect("recorded").to_owned());
    site.cloud.state().takes = 4;
    site.cloud.state().holds_only = Some("attach_disks");
    assert!(matches!(site.attach(&made, "i-1"), Err(Error::InProgress { .. })));
    site.restart();
    assert!(matches!(site.detach(&made, "i-1"), Err(Error::InProgress { .. })), "it may yet be attached");
    site.cloud.state().holds_only = None;
    assert_eq!(site.detach(&made, "i-1").expect("detached"), Outcome::Changed(()));
    site.cloud.end_all();
    assert_eq!(site.nodes_of(&disk), []);
}

#[test]
fn attachment_that_is_shown_before_its_operation_has_ended_is_not_answered_as_done() {
    for is_lost in [false, true] {
        let site = Site::new(StandIn::new());
        let made = site.ensure(&spec("one")).expect("made").id;
        site.attach(&made, "i-1").expect("attached");
        site.detach(&made, "i-1").expect("detached, and the tag is changed");
        site.cloud.state().holds = true;
        site.cloud.state().shows_early = true;
        site.cloud.wrong("attach_disks", is_lost.then_some(Lost));
        let error = site.attach(&made, "i-1").expect_err("it may yet fail");
        assert!(matches!(&error, Error::InProgress { reason, .. } if reason.contains("operation")), "{error}");
        site.fail_at_end("attach_disks", CloudErrorKind::Other);
        site.cloud.end_all();
        let disk = DiskId(made.recorded().expect("recorded").to_owned());
        assert_eq!(site.nodes_of(&disk), []);
        site.cloud.state().holds = false;
        assert!(matches!(site.attach(&made, "i-1"), Ok(Outcome::Changed(_))));
        assert_eq!(site.nodes_of(&disk), [node("i-1")]);
    }
}

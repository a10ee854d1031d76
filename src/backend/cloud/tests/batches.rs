//! Several disks in one request, for as many as there is room; and what becomes of disks by the state of their machine.

use super::super::device_names::{AttachJob, Begun};
use super::super::{CloudErrorKind, DiskAccess, DiskId, DiskState, MachineState, tags};
use super::fake::Wrong::{Lost, NotDone, Refused};
use super::fake::lost;
use super::identity::Site;
use super::stand_in::StandIn;
use super::*;
use crate::volume::ContentSource;

fn made(site: &Site, count: usize) -> Vec<VolumeId> {
    (0..count).map(|number| site.ensure(&spec(&format!("v{number}"))).expect("made").id).collect()
}

fn disk_of(volume: &VolumeId) -> DiskId {
    DiskId(volume.recorded().expect("recorded").to_owned())
}

/// All at once.
fn each<T: Send>(volumes: &[VolumeId], work: impl Fn(&VolumeId) -> Result<T> + Sync) -> Vec<Result<T>> {
    std::thread::scope(|scope| {
        let all: Vec<_> = volumes.iter().map(|volume| scope.spawn(|| work(volume))).collect();
        all.into_iter().map(|one| one.join().expect("no panic")).collect()
    })
}

fn limit(site: &Site, count: u64) {
    site.cloud.state().instances.values_mut().for_each(|machine| machine.limit = Some(count));
}

#[test]
fn disks_of_one_machine_are_attached_and_detached_together() {
    let site = Site::new(StandIn::new());
    limit(&site, 12);
    let volumes = made(&site, 12);
    site.cloud.state().on_the_way = Duration::from_millis(200);
    assert!(each(&volumes, |volume| site.attach(volume, "i-1")).iter().all(Result::is_ok));
    let slots: std::collections::BTreeSet<String> =
        site.cloud.disks_now().into_iter().flat_map(|disk| disk.attachments).map(|place| place.device.to_string()).collect();
    assert_eq!(slots.len(), 12, "each has a slot of its own");
    let requests = site.cloud.count("attach_disks");
    assert!((4..12).contains(&requests), "{requests} requests for 12 disks, at most three in each");
    assert!(each(&volumes, |volume| site.detach(volume, "i-1")).iter().all(Result::is_ok));
    let requests = site.cloud.count("detach_disks");
    assert!((4..12).contains(&requests), "{requests} requests for 12 disks, at most three in each");
    assert!(site.cloud.disks_now().iter().all(|disk| disk.attachments.is_empty()));
}

/// The cloud panics where it is asked for more than it has room for.
#[test]
fn what_has_no_room_is_refused_before_any_request() {
    let site = Site::new(StandIn::new());
    limit(&site, 5);
    let volumes = made(&site, 8);
    let results = each(&volumes, |volume| site.attach(volume, "i-1"));
    let (attached, full): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((attached.len(), full.len()), (5, 3));
    assert!(full.into_iter().all(|error| matches!(error, Err(Error::NodeFull { .. }))));
    assert_eq!(each(&volumes[..1], |volume| site.attach(volume, "i-2")).len(), 1);
}

#[test]
fn disk_that_is_refused_does_not_fail_those_of_the_same_request() {
    for at_end in [false, true] {
        let site = Site::new(StandIn::new());
        limit(&site, 6);
        let volumes = made(&site, 6);
        site.cloud.state().on_the_way = Duration::from_millis(200);
        // The first request waits for all that come meanwhile, then one of a batch is refused.
        for _ in 0..2 {
            match at_end {
                true => site.fail_at_end("attach_disks", CloudErrorKind::Other),
                false => site.cloud.wrong("attach_disks", [Refused(CloudErrorKind::InUse)]),
            }
        }
        let results = each(&volumes, |volume| site.attach(volume, "i-1"));
        let failed = results.iter().filter(|result| result.is_err()).count();
        assert!(failed <= 2, "one for each refusal at most: {results:?}");
        for volume in &volumes {
            site.attach(volume, "i-1").expect("attached, now or before");
            assert_eq!(site.nodes_of(&disk_of(volume)), [node("i-1")]);
        }
    }
}

#[test]
fn lost_answer_of_several_is_found_out_about_for_each() {
    for wrong in [Lost, NotDone] {
        let mut site = Site::new(StandIn::new());
        let volumes = made(&site, 4);
        site.cloud.wrong("attach_disks", [wrong, wrong]);
        for result in each(&volumes, |volume| site.attach(volume, "i-1")) {
            result.map_or_else(|error| assert!(!is_final(&error), "{error}"), drop);
        }
        site.restart();
        for volume in &volumes {
            site.attach(volume, "i-1").expect("attached");
        }
        site.cloud.wrong("detach_disks", [wrong, wrong]);
        for result in each(&volumes, |volume| site.detach(volume, "i-1")) {
            result.map_or_else(|error| assert!(!is_final(&error), "{error}"), drop);
        }
        for volume in &volumes {
            site.detach(volume, "i-1").expect("detached");
            assert!(site.nodes_of(&disk_of(volume)).is_empty());
        }
    }
}

#[test]
fn contents_are_recorded_before_the_first_attachment_and_go_with_copies() {
    let mut site = Site::new(StandIn::new());
    let volumes = made(&site, 3);
    let contents = |site: &Site, volume| {
        let context = site.attach(volume, "i-1").expect("attached").into_inner();
        site.detach(volume, "i-1").expect("detached");
        (context.get("contents").cloned(), context.contains_key("copied"))
    };
    let (first, second) = (contents(&site, &volumes[0]), contents(&site, &volumes[1]));
    assert!(first.0.is_some() && !first.1 && first != second, "{first:?} {second:?}");
    site.restart();
    assert_eq!(contents(&site, &volumes[0]), first);
    let source = Some(ContentSource::Volume(volumes[0].clone()));
    let copy = site.ensure(&VolumeSpec { source, ..spec("copy") }).expect("copied").id;
    assert_eq!(contents(&site, &copy), (first.0, true));
    // Whatever was done with it before, nothing of its contents is recorded: it may have been formatted by an earlier driver.
    site.cloud.retag(|tags| {
        tags.retain(|key, _| key != tags::CONTENTS);
        tags.entry(tags::BLANK.to_owned()).and_modify(|value| tags::USED.clone_into(value));
    });
    site.restart();
    assert_eq!(contents(&site, &volumes[2]), (None, false));
    assert_eq!(contents(&site, &volumes[1]), (None, false));
    // A disk that a machine recognises needs none of this.
    let site = Site::new(StandIn::without_names());
    assert_eq!(contents(&site, &made(&site, 1)[0]), (None, false));
}

/// azuredisk-csi-driver issue 2537: a person detaches a disk, for which publish_context still names the slot.
#[test]
fn slot_that_publish_context_names_is_given_to_no_other_disk() {
    let site = Site::new(StandIn::new());
    let volumes = made(&site, 3);
    let slot = |volume| site.attach(volume, "i-1").map(|context| context.into_inner()["device"].clone());
    assert_eq!(slot(&volumes[0]).expect("attached"), "0");
    site.cloud.detach_by_hand(&disk_of(&volumes[0]));
    assert_eq!(slot(&volumes[1]).expect("attached"), "1");
    assert_eq!(slot(&volumes[0]).expect("attached again"), "0", "its own");
    site.cloud.detach_by_hand(&disk_of(&volumes[0]));
    site.cloud.state().instances.values_mut().for_each(|machine| machine.limit = Some(64));
    let many = (10..24).map(|number| site.ensure(&spec(&format!("v{number}"))).expect("made").id).collect::<Vec<_>>();
    let slots: Vec<String> = many.iter().map(|volume| slot(volume).expect("attached")).collect();
    assert!(!slots.contains(&"0".to_owned()), "{slots:?}");
    let error = slot(&volumes[2]).expect_err("no slot is left");
    assert!(matches!(&error, Error::NodeFull { .. }), "{error}");
    // The CO has heard that it is detached.
    site.detach(&volumes[0], "i-1").expect("detached");
    assert_eq!(slot(&volumes[2]).expect("attached"), "0");
}

/// Its request is sent by another call, and takes longer than it waits for the lock.
#[test]
fn attachment_that_another_call_sends_is_waited_for_to_its_end() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let site = Site::new(StandIn::new());
    let volume = made(&site, 1).remove(0);
    let controller = site.backend.controller_as(|controller| controller).expect("a controller");
    let job = || {
        let access = DiskAccess { mode: AccessMode::SingleNodeWriter, read_only: false };
        AttachJob { volume: volume.clone(), disk: site.cloud.disks_now().remove(0), access }
    };
    let machine = node("i-1");
    for is_served in [true, false] {
        let lock = controller.nodes.locks.lock(machine.as_str(), "attach", Duration::ZERO).expect("free");
        let result = std::thread::scope(|scope| {
            let follower = scope.spawn(|| controller.begin_attach_within(PATIENCE, job(), &machine));
            let taken = loop {
                let leader = controller.nodes.attaching.join(&machine, job());
                let interrupted = || Ok(Begun::Perhaps(lost("attach_disks")));
                let taken = controller.nodes.attaching.take(&machine, &leader, 3, interrupted);
                if taken.all.len() == 2 {
                    break taken;
                }
                std::thread::yield_now();
            };
            std::thread::park_timeout(PATIENCE + Duration::from_millis(300));
            assert!(!follower.is_finished(), "the request may be on its way");
            if is_served {
                taken.all[1].end(Ok(Begun::Accepted(None)));
            }
            drop(taken);
            follower.join().expect("no panic")
        });
        drop(lock);
        match is_served {
            true => assert!(matches!(result, Ok(Begun::Accepted(None))), "{result:?}"),
            false => assert!(matches!(result, Ok(Begun::Perhaps(_))), "{result:?}"),
        }
    }
    // Who was not taken along sends nothing later.
    let lock = controller.nodes.locks.lock(machine.as_str(), "attach", Duration::ZERO).expect("free");
    assert!(matches!(controller.begin_attach_within(Duration::ZERO, job(), &machine), Err(Error::Busy { .. })));
    drop(lock);
    controller.begin_attach_within(PATIENCE, job(), &machine).expect("alone");
    assert_eq!(site.cloud.count("attach_disks"), 1);
}

#[test]
fn lost_detach_bars_the_next_attachment_until_its_end_is_known() {
    let site = Site::new(StandIn::new());
    let volume = made(&site, 1).remove(0);
    site.attach(&volume, "i-1").expect("attached");
    site.cloud.wrong("detach_disks", [NotDone]);
    assert!(!is_final(&site.detach(&volume, "i-1").expect_err("lost")));
    // It is shown as attached, and may be detached at any moment.
    assert!(matches!(site.attach(&volume, "i-1"), Err(Error::InProgress { .. })));
    site.detach(&volume, "i-1").expect("detached");
    site.attach(&volume, "i-1").expect("attached");
    assert_eq!(site.nodes_of(&disk_of(&volume)), [node("i-1")]);
}

#[test]
fn lost_detach_of_an_attachment_that_is_not_shown_is_not_answered_as_done() {
    let site = Site::new(StandIn::new());
    let volumes = made(&site, 2);
    let attach_hidden = |volume| {
        site.cloud.state().hides_attachments = false;
        site.attach(volume, "i-1").expect("attached");
        site.cloud.state().hides_attachments = true;
    };
    attach_hidden(&volumes[0]);
    for _ in 0..2 {
        site.cloud.wrong("detach_disks", [NotDone]);
        assert!(matches!(site.detach(&volumes[0], "i-1"), Err(Error::InProgress { .. })));
        assert_eq!(site.nodes_of(&disk_of(&volumes[0])), [node("i-1")]);
    }
    assert_eq!(site.detach(&volumes[0], "i-1").expect("answered"), Outcome::Changed(()));
    assert_eq!(site.nodes_of(&disk_of(&volumes[0])), []);
    // After some time a description is true.
    attach_hidden(&volumes[1]);
    site.cloud.wrong("detach_disks", [NotDone]);
    assert!(matches!(site.detach(&volumes[1], "i-1"), Err(Error::InProgress { .. })));
    let requests = site.cloud.count("detach_disks");
    site.clock.sleep(Duration::from_secs(61));
    assert_eq!(site.detach(&volumes[1], "i-1").expect("believed"), Outcome::Unchanged(()));
    assert_eq!(site.cloud.count("detach_disks"), requests);
}

/// The process before it attached the disk; its absence was to be believed after the start-up grace.
#[test]
fn lost_detach_is_repeated_after_the_startup_grace_too() {
    let mut site = Site::new(StandIn::new());
    let volume = made(&site, 1).remove(0);
    site.attach(&volume, "i-1").expect("attached");
    site.restart();
    site.cloud.state().hides_attachments = true;
    site.cloud.wrong("detach_disks", [NotDone]);
    assert!(matches!(site.detach(&volume, "i-1"), Err(Error::InProgress { .. })));
    site.clock.sleep(Duration::from_secs(6));
    site.detach(&volume, "i-1").expect("answered");
    assert_eq!(site.nodes_of(&disk_of(&volume)), []);
}

#[test]
fn disk_is_detached_by_the_rule_of_its_machines_state() {
    for state in [MachineState::Running, MachineState::Stopped, MachineState::Deallocated, MachineState::Failed] {
        let site = Site::new(StandIn::new());
        let volume = made(&site, 1).remove(0);
        site.attach(&volume, "i-1").expect("attached");
        site.cloud.state().instances.get_mut(&node("i-1")).expect("a machine").state = state;
        assert!(matches!(site.attach(&volume, "i-2"), Err(Error::InUse { .. })), "{state:?}");
        assert_eq!(site.detach(&volume, "i-1").expect("by a request"), Outcome::Changed(()), "{state:?}");
    }
    let site = Site::new(StandIn::new());
    let volume = made(&site, 1).remove(0);
    site.attach(&volume, "i-1").expect("attached");
    let state = |state| site.cloud.state().instances.get_mut(&node("i-1")).expect("a machine").state = state;
    state(MachineState::Hibernated);
    let error = site.detach(&volume, "i-1").expect_err("it stays");
    assert!(matches!(&error, Error::InUse { by, .. } if by.contains("hibernated")), "{error}");
    state(MachineState::BeingDeleted);
    assert!(matches!(site.detach(&volume, "i-1"), Err(Error::InProgress { .. })), "its end is waited for");
    assert!(matches!(site.attach(&volume, "i-2"), Err(Error::InProgress { .. })));
    site.cloud.state().instances.remove(&node("i-1"));
    assert_eq!(site.detach(&volume, "i-1").expect("gone with its machine"), Outcome::Changed(()));
    // A description that is not known proves nothing.
    let site = Site::new(StandIn::new());
    let volume = made(&site, 1).remove(0);
    site.attach(&volume, "i-1").expect("attached");
    site.cloud.wrong("instances", [Refused(CloudErrorKind::Denied)]);
    site.cloud.wrong("detach_disks", [Refused(CloudErrorKind::Other)]);
    site.detach(&volume, "i-1").expect_err("refused");
    assert_eq!(site.cloud.disks_now()[0].state, DiskState::InUse);
}

/// A slot says nothing of what is in it; an identity does, wherever the disk is.
#[test]
fn node_hears_whether_it_gets_a_slot_or_an_identity() {
    for (cloud, key, other) in [(StandIn::new(), "device", "identity"), (StandIn::without_names(), "identity", "device")] {
        let site = Site::new(cloud);
        let volumes = made(&site, 3);
        for volume in &volumes {
            let context = site.attach(volume, "i-1").expect("attached").into_inner();
            assert_eq!(context["volume"], disk_of(volume).0);
            assert!(context.contains_key(key) && !context.contains_key(other), "{context:?}");
            let size = (key == "device").then(|| GIB.0.to_string());
            assert_eq!(context.get("size"), size.as_ref(), "of what is in a slot");
            assert_eq!(site.attach(volume, "i-1").expect("a repeat").into_inner()[key], context[key]);
        }
    }
    // An identity is refused as one; no other can be tried.
    let site = Site::new(StandIn::without_names());
    let volume = made(&site, 1).remove(0);
    site.cloud.wrong("attach_disks", [Refused(CloudErrorKind::NameTaken)]);
    site.attach(&volume, "i-1").expect_err("refused");
    assert_eq!(site.cloud.count("attach_disks"), 1);
    site.attach(&volume, "i-1").expect("attached, as the same");
}
